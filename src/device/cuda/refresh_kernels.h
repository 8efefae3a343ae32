/* Kernels of refresh.cu and orthonormal.cu: the refresh of eigenbases [n,k], many at once (device/ops.h).
 * `wide`: 1 for matrices of double, 0 for float. */
#ifndef DSC_DEVICE_CUDA_REFRESH_KERNELS_H
#define DSC_DEVICE_CUDA_REFRESH_KERNELS_H

#include "device/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSC_REFRESH_ITEMS = 48 }; /* of one call */

/* ---- rotations ---- */

typedef struct dsc_rotation {
    const void *b, *q, *y;
    void *x, *z;
    double *values; /* [k], scratch: the eigenvalues */
    int32_t *order; /* [k], scratch: order[j] is the column that becomes j */
    double delta;
    int32_t n, k;
} dsc_rotation;

cudaError_t dsc_cuda_launch_rotations(const dsc_cuda_launch *at, int wide, const dsc_rotation *items,
                                      int count);

/* ---- Rayleigh quotients ---- */

typedef struct dsc_rayleigh {
    const void *a, *q, *y;
    void *v;
    double *result;
    double *sums; /* scratch: 3 k doubles for each part of the rows */
    double delta;
    int32_t n, k, rows; /* rows: of a part */
} dsc_rayleigh;

cudaError_t dsc_cuda_launch_rayleighs(const dsc_cuda_launch *at, int wide, const dsc_rayleigh *items,
                                      int count);

/* ---- orthonormal columns ---- */

enum { DSC_PANEL = 64 }; /* columns that are eliminated at a time */

typedef struct dsc_orthonormal {
    void *h, *z;
    void *inverse; /* [DSC_PANEL, DSC_PANEL], scratch: that of the panel's triangle */
    int *failed;   /* scratch: becomes 1 where H is not positive definite; else it stays */
    int32_t n, k;
} dsc_orthonormal;

/* Columns begin .. end - 1; begin is a multiple of DSC_PANEL. */
typedef struct dsc_column_range {
    int32_t begin, end;
} dsc_column_range;

/* For the panel that begins at column `begin` and has been reduced by all before it: the inverse of its
 * triangle, and the panel's columns of R' and of the result, in the rows of H below it and in Z. Items that
 * have no such column are left alone. */
cudaError_t dsc_cuda_launch_panels(const dsc_cuda_launch *at, int wide, const dsc_orthonormal *items,
                                   int count, int32_t begin);
/* Reduces columns `to`, of Z and of H's lower triangle, by columns `by`, which are finished and come before
 * them. */
cudaError_t dsc_cuda_launch_reductions(const dsc_cuda_launch *at, int wide, const dsc_orthonormal *items,
                                       int count, dsc_column_range by, dsc_column_range to);

#ifdef __cplusplus
}
#endif

#endif
