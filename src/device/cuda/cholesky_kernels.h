/* Kernels of cholesky.cu: factorise many matrices H[k,k] = L L' at once, and compute what follows from L. `wide`:
 * 1 for matrices of double, 0 for float. */
#ifndef DSC_DEVICE_CUDA_CHOLESKY_KERNELS_H
#define DSC_DEVICE_CUDA_CHOLESKY_KERNELS_H

#include "device/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSC_PANEL = 64 }; /* columns eliminated at a time */

/* Elimination turns the columns of H into those of L, except in the diagonal blocks, and the columns of a second
 * matrix Z into those of Z L^-T. Z is z[n,k], or the identity if z is NULL: the result, which is upper triangular,
 * is then stored in the diagonal blocks and the upper triangle of H. */
typedef struct dsc_cholesky {
    void *h, *z;
    void *inverse; /* [DSC_PANEL, DSC_PANEL], scratch: the inverse of the panel's triangle */
    int *failed;   /* scratch: set to 1 if H is not positive definite, else unchanged */
    int32_t n, k;
} dsc_cholesky;

/* Columns begin .. end - 1; begin is a multiple of DSC_PANEL. */
typedef struct dsc_column_range {
    int32_t begin, end;
} dsc_column_range;

/* Finishes the panel that begins at column `begin` and has been reduced by all panels before it. Items without such
 * a column are left alone. */
cudaError_t dsc_cuda_launch_panels(const dsc_cuda_launch *at, int wide, const dsc_cholesky *items, int count,
                                   int32_t begin);
/* Reduces the columns `to` of Z and of H's lower triangle by the columns `by`, which are finished and come before
 * them. */
cudaError_t dsc_cuda_launch_reductions(const dsc_cuda_launch *at, int wide, const dsc_cholesky *items,
                                       int count, dsc_column_range by, dsc_column_range to);
/* The last step of an inverse (z is NULL): H = L^-T L^-1, both triangles. */
cudaError_t dsc_cuda_launch_inverses(const dsc_cuda_launch *at, int wide, const dsc_cholesky *items,
                                     int count);

#ifdef __cplusplus
}
#endif

#endif
