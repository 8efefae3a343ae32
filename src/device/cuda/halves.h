/* Large products of float32 on the tensor cores' fastest path: operands as sums of two fp16 matrices
 * (halves_kernels.h), of whose four products three are made, by cuBLAS; `fast` ones make one, which has the
 * precision of TF32. Gram matrices of rows that are bf16 or fp16 themselves need one product and no copy. */
#ifndef DSC_DEVICE_CUDA_HALVES_H
#define DSC_DEVICE_CUDA_HALVES_H

#include "device/cuda/gram_kernels.h"
#include "device/cuda/state.h"
#include "device/ops.h"

/* `count` products C[m,n] = alpha op(A) op(B) + beta C of fp16 or bf16 with k terms, sums and results in
 * float32; rows lda, ldb, ldc elements apart, matrices step_a, step_b, step_c. */
typedef struct dsc_half_products {
    dsc_dtype dtype; /* of A and B: F16 or BF16 */
    int trans_a, trans_b;
    int64_t m, n, k, count;
    const uint16_t *a, *b;
    float *c;
    int64_t lda, ldb, ldc, step_a, step_b, step_c;
    float alpha, beta;
} dsc_half_products;
/* products.c */
dsc_status dsc_cuda_half_products(dsc_queue *q, const dsc_half_products *p) DSC_MUST_CHECK;

/* C[m,n] = alpha A B' + beta C of float32 with k terms, which are rounded to TF32; rows of all three are
 * `width` elements apart. */
typedef struct dsc_tf32_product {
    int64_t m, n, k, width;
    const float *a, *b;
    float *c;
    float alpha, beta;
} dsc_tf32_product;
/* products.c */
dsc_status dsc_cuda_multiply_tf32(dsc_queue *q, const dsc_tf32_product *p) DSC_MUST_CHECK;

/* 1 when dsc_cuda_halves_gemm takes an item of this size. */
int dsc_cuda_halves_takes(const dsc_queue *q, const dsc_gemm_item *item);
/* Those items of the batch that dsc_cuda_halves_takes, in a queue that is ready. */
dsc_status dsc_cuda_halves_gemm(dsc_queue *q, const dsc_gemm_item *items, int64_t count) DSC_MUST_CHECK;
/* *ready = 1 when there are such items and the queue has the memory that they need. It is allocated by the
 * first call that finds the queue neither recorded nor captured. */
dsc_status dsc_cuda_halves_ready(dsc_queue *q, const dsc_gemm_item *items, int64_t count,
                                 int *ready) DSC_MUST_CHECK;
void dsc_cuda_halves_close(dsc_queue *q);

/* 1 when dsc_cuda_halves_gram sums up these patches. */
int dsc_cuda_halves_sums(const dsc_cuda *cuda, const dsc_gram_patches *p);
/* Bytes of its `work`, which begins at a multiple of 64. */
size_t dsc_cuda_halves_gram_bytes(const dsc_gram_patches *p);
dsc_status dsc_cuda_halves_gram(dsc_queue *q, const dsc_gram_patches *p, void *work,
                                const dsc_gram_target *to) DSC_MUST_CHECK;

#endif
