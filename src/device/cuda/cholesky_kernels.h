/* Kernels of cholesky.cu: H = L L' of many matrices H[k,k] at once, and what comes of it. `wide`: 1 for matrices
 * of double, 0 for float. */
#ifndef DSC_DEVICE_CUDA_CHOLESKY_KERNELS_H
#define DSC_DEVICE_CUDA_CHOLESKY_KERNELS_H

#include "device/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSC_PANEL = 64 }; /* columns that are eliminated at a time */

/* Elimination turns the columns of H into those of L, except in the diagonal blocks, and the columns of a second
 * matrix Z into those of Z L^-T. That is z[n,k], or, where z is NULL, the identity: its result, which is upper
 * triangular, takes the diagonal blocks and the upper triangle of H. */
typedef struct dsc_cholesky {
    void *h, *z;
    void *inverse; /* [DSC_PANEL, DSC_PANEL], scratch: that of the panel's triangle */
    int *failed;   /* scratch: becomes 1 where H is not positive definite; else it stays */
    int32_t n, k;
} dsc_cholesky;

/* Columns begin .. end - 1; begin is a multiple of DSC_PANEL. */
typedef struct dsc_column_range {
    int32_t begin, end;
} dsc_column_range;

/* Finishes the panel that begins at column `begin` and has been reduced by all before it. Items that have no
 * such column are left alone. */
cudaError_t dsc_cuda_launch_panels(const dsc_cuda_launch *at, int wide, const dsc_cholesky *items, int count,
                                   int32_t begin);
/* Reduces columns `to`, of Z and of H's lower triangle, by columns `by`, which are finished and come before
 * them. */
cudaError_t dsc_cuda_launch_reductions(const dsc_cuda_launch *at, int wide, const dsc_cholesky *items,
                                       int count, dsc_column_range by, dsc_column_range to);
/* The last step of an inverse (z is NULL): H := L^-T L^-1, both triangles. */
cudaError_t dsc_cuda_launch_inverses(const dsc_cuda_launch *at, int wide, const dsc_cholesky *items,
                                     int count);

#ifdef __cplusplus
}
#endif

#endif
