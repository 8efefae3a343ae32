/* Kernels of halves.cu: they split float matrices into sums of two fp16 matrices, and put results together.
 *
 * x = 2^-shift (high + low) to 22 bits, where `shift` scales the largest magnitude of the matrix to 2^14. Elements
 * down to 2^-28 of that magnitude keep all 22 bits, smaller ones fewer. Products of fp16 are exact in float32. */
#ifndef DSC_DEVICE_CUDA_HALVES_KERNELS_H
#define DSC_DEVICE_CUDA_HALVES_KERNELS_H

#include "device/cuda/gram_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A matrix to be split. The high parts go to high[rows, pitch], the low parts `low` elements from there (0: there are
 * none). Rows from `given` on and columns from `columns` on become 0; with `ones`, a column of ones follows the last
 * column. For a Gram matrix `half` is not 0: the rows are stored in slices of DSC_GRAM_SLICE rows, each of three
 * blocks of `half` elements, and the high parts times 0.5 go to the block after that of the high parts. */
enum { DSC_GRAM_SLICE = 256 };
typedef struct dsc_halves_matrix {
    const float *from; /* [given, columns], rows `step` apart */
    uint16_t *high;
    unsigned *limit; /* the bits of the largest magnitude */
    int64_t low;
    int32_t rows, given, columns, step, pitch;
    int32_t ones;
    int32_t first; /* the matrix's first block in the launch */
    int32_t half;
} dsc_halves_matrix;

enum { DSC_HALVES = 60 }; /* items of a launch: 4000 bytes of parameters */
typedef struct dsc_halves_matrices {
    int32_t count, blocks;
    dsc_halves_matrix items[DSC_HALVES];
} dsc_halves_matrices;

/* A result to be scaled: c[m,n] = alpha 2^-(shift of A + shift of B) sum[m, pitch] + beta c. */
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

/* The Gram matrix of a split matrix: C[i,j] = alpha 2^-(shifts of columns i and j) sum over parts of (s[i,j] + s[j,i])
 * + beta C, where s is [parts][columns, pitch]. Column `ones` (-1: there is none) has the shift of the number 1. If the
 * products did not include the column of ones, `sums` holds the sums of the other columns. For a matrix that was not
 * split, s[i,j] alone is the whole sum for i >= j. */
typedef struct dsc_halves_gram {
    const float *sum;
    const unsigned *limit; /* NULL: the matrix was not split */
    const float *sums;     /* [columns]; NULL: s includes the column of ones, if there is one */
    int64_t part;          /* elements from one part to the next */
    int64_t rows;          /* of the matrix */
    int32_t parts, pitch, ones, columns;
} dsc_halves_gram;

/* These two functions, and dsc_cuda_launch_halves_join, set `first` and `blocks`. */
cudaError_t dsc_cuda_launch_halves_limits(const dsc_cuda_launch *at, dsc_halves_matrices *m);
cudaError_t dsc_cuda_launch_halves_split(const dsc_cuda_launch *at, dsc_halves_matrices *m);
/* Splits `given` rows of patches from first_row on; `from`, `columns` and `step` of m are not used. */
cudaError_t dsc_cuda_launch_halves_patches(const dsc_cuda_launch *at, const dsc_gram_patches *p,
                                           const dsc_halves_matrix *m, int64_t first_row);
cudaError_t dsc_cuda_launch_halves_join(const dsc_cuda_launch *at, dsc_halves_results *r);
cudaError_t dsc_cuda_launch_halves_gram(const dsc_cuda_launch *at, const dsc_halves_gram *g,
                                        const dsc_gram_target *to);

#ifdef __cplusplus
}
#endif

#endif
