/* Kernels of refresh.cu: the refresh of eigenbases [n,k], many at once (device/ops.h).
 * `wide`: 1 for matrices of double, 0 for float. */
#ifndef DSC_DEVICE_CUDA_REFRESH_KERNELS_H
#define DSC_DEVICE_CUDA_REFRESH_KERNELS_H

#include "device/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSC_REFRESH_ITEMS = 48 }; /* the most items of one call */

/* ---- rotations ---- */

typedef struct dsc_rotation {
    const void *b, *q, *y;
    void *x, *z;
    double *values; /* [k], scratch: the eigenvalues */
    int32_t *order; /* [k], scratch: column order[j] becomes column j */
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
    int32_t n, k, rows; /* rows: the number in each part */
} dsc_rayleigh;

cudaError_t dsc_cuda_launch_rayleighs(const dsc_cuda_launch *at, int wide, const dsc_rayleigh *items,
                                      int count);

#ifdef __cplusplus
}
#endif

#endif
