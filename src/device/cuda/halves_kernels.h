/* Kernels of halves.cu: float matrices as sums of two fp16 matrices, and back.
 *
 * x = 2^-shift (high + low) to 22 bits, where `shift` brings the largest magnitude of the matrix to 2^14: elements
 * down to 2^-28 of it keep all of these bits, smaller ones fewer. Products of fp16 are exact in float32. */
#ifndef DSC_DEVICE_CUDA_HALVES_KERNELS_H
#define DSC_DEVICE_CUDA_HALVES_KERNELS_H

#include "device/cuda/gram_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A matrix to be split. high[rows, pitch], and low `low` elements from there (0: not wanted); what lies
 * beyond `given` rows or beyond the columns becomes 0, but for a column of ones after the last one
 * (`ones`). For a Gram matrix `half` is not 0: rows are in slices of DSC_GRAM_SLICE, of three blocks of
 * `half` elements each, and half of high is `half` elements behind it. */
enum { DSC_GRAM_SLICE = 256 };
typedef struct dsc_halves_matrix {
    const float *from; /* [given, columns], rows `step` apart */
    uint16_t *high;
    unsigned *limit; /* the bits of its largest magnitude */
    int64_t low;
    int32_t rows, given, columns, step, pitch;
    int32_t ones;
    int32_t first; /* its first block of the launch */
    int32_t half;
} dsc_halves_matrix;

enum { DSC_HALVES = 60 }; /* of a launch: 4000 bytes of parameters */
typedef struct dsc_halves_matrices {
    int32_t count, blocks;
    dsc_halves_matrix items[DSC_HALVES];
} dsc_halves_matrices;

/* A product to be put together: c[m,n] = alpha 2^-(shifts of both operands) sum[m, pitch] + beta c. */
typedef struct dsc_halves_result {
    float *sum, *c;
    const unsigned *limit_a, *limit_b;
    int32_t m, n, pitch;
    float alpha, beta;
    int32_t first;
} dsc_halves_result;

typedef struct dsc_halves_results {
    int32_t count, blocks;
    dsc_halves_result items[DSC_HALVES];
} dsc_halves_results;

/* The Gram matrix of a split matrix: C[i,j] = alpha 2^-(shifts) sum over parts of (s[i,j] + s[j,i]) + beta
 * C, where s[parts][columns, pitch]; the shift of column `ones` (-1: there is none) is that of the number 1.
 * Where the column of ones was no part of the products, `sums` has the sums of the other columns. Of a matrix that was not
 * split, s[i,j] is the whole for i >= j. */
typedef struct dsc_halves_gram {
    const float *sum;
    const unsigned *limit; /* NULL: nothing was shifted */
    const float *sums;     /* [columns]; NULL: s has the column of ones, too */
    int64_t part;          /* elements from one part to the next */
    int64_t rows;          /* of the matrix */
    int32_t parts, pitch, ones, columns;
} dsc_halves_gram;

/* Sets first and blocks. */
cudaError_t dsc_cuda_launch_halves_limits(const dsc_cuda_launch *at, dsc_halves_matrices *m);
cudaError_t dsc_cuda_launch_halves_split(const dsc_cuda_launch *at, dsc_halves_matrices *m);
/* The same for `given` rows of patches from first_row on; `from`, `columns` and `step` of m are not used. */
cudaError_t dsc_cuda_launch_halves_patches(const dsc_cuda_launch *at, const dsc_gram_patches *p,
                                           const dsc_halves_matrix *m, int64_t first_row);
cudaError_t dsc_cuda_launch_halves_join(const dsc_cuda_launch *at, dsc_halves_results *r);
cudaError_t dsc_cuda_launch_halves_gram(const dsc_cuda_launch *at, const dsc_halves_gram *g,
                                        const dsc_gram_target *to);

#ifdef __cplusplus
}
#endif

#endif
