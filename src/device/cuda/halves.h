/* Large products of float32 on the fastest path of the tensor cores. Each operand is split into a sum of two fp16
 * matrices (halves_kernels.h), and cuBLAS computes three of the four products of these parts; for items marked `fast`
 * it computes one, which has the precision of TF32. Gram matrices of rows in bf16 or fp16 need one product and no
 * copy. */
#ifndef DSC_DEVICE_CUDA_HALVES_H
#define DSC_DEVICE_CUDA_HALVES_H

#include "device/cuda/gram_kernels.h"
#include "device/cuda/state.h"
#include "device/ops.h"

/* `count` products C[m,n] = alpha op(A) op(B) + beta C with k terms, of fp16 or bf16 operands; sums and results are
 * float32. Rows are lda, ldb, ldc elements apart, matrices step_a, step_b, step_c. */
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

/* C[m,n] = alpha A B' + beta C with k terms. All are float32; the operands are rounded to TF32. Rows of all three
 * matrices are `width` elements apart. */
typedef struct dsc_tf32_product {
    int64_t m, n, k, width;
    const float *a, *b;
    float *c;
    float alpha, beta;
} dsc_tf32_product;
/* products.c */
dsc_status dsc_cuda_multiply_tf32(dsc_queue *q, const dsc_tf32_product *p) DSC_MUST_CHECK;

/* Returns 1 if dsc_cuda_halves_gemm computes this item. */
int dsc_cuda_halves_takes(const dsc_queue *q, const dsc_gemm_item *item);
/* Computes the items of the batch for which dsc_cuda_halves_takes returns 1. The queue must be ready
 * (dsc_cuda_halves_ready). */
dsc_status dsc_cuda_halves_gemm(dsc_queue *q, const dsc_gemm_item *items, int64_t count) DSC_MUST_CHECK;
/* Sets *ready to 1 if there are such items and the queue has the memory that they need, else to 0. The first call
 * that finds the queue neither recorded nor captured allocates the memory. */
dsc_status dsc_cuda_halves_ready(dsc_queue *q, const dsc_gemm_item *items, int64_t count,
                                 int *ready) DSC_MUST_CHECK;
void dsc_cuda_halves_close(dsc_queue *q);

/* Returns 1 if dsc_cuda_halves_gram computes the Gram matrix of these patches. */
int dsc_cuda_halves_sums(const dsc_cuda *cuda, const dsc_gram_patches *p);
/* Returns the bytes that its `work` needs; `work` is aligned to 64 bytes. */
size_t dsc_cuda_halves_gram_bytes(const dsc_gram_patches *p);
dsc_status dsc_cuda_halves_gram(dsc_queue *q, const dsc_gram_patches *p, void *work,
                                const dsc_gram_target *to) DSC_MUST_CHECK;

#endif
