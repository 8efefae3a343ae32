/* Launches of optim.cu. Formulas in ops.h; pointers to memory of the device, F32 or F64. */
#ifndef DSC_DEVICE_CUDA_OPTIM_KERNELS_H
#define DSC_DEVICE_CUDA_OPTIM_KERNELS_H

#include "descent/device.h"
#include "device/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What of these an update has: m, v its moments, x what it writes (LAMB's direction, too). */
typedef struct dsc_cuda_update {
    dsc_dtype dtype;
    int64_t count;
    const double *hyper, *norms;
    const void *z, *g;
    void *m, *v, *x;
} dsc_cuda_update;

cudaError_t dsc_cuda_launch_sgd(const dsc_cuda_launch *at, const dsc_cuda_update *u, int nesterov);
cudaError_t dsc_cuda_launch_adam(const dsc_cuda_launch *at, const dsc_cuda_update *u, int decoupled);
cudaError_t dsc_cuda_launch_lars(const dsc_cuda_launch *at, const dsc_cuda_update *u);
cudaError_t dsc_cuda_launch_lamb_direction(const dsc_cuda_launch *at, const dsc_cuda_update *u);
/* g: the direction. */
cudaError_t dsc_cuda_launch_lamb_apply(const dsc_cuda_launch *at, const dsc_cuda_update *u);

#ifdef __cplusplus
}
#endif

#endif
