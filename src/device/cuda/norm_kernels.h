/* Launches of norm.cu. Formulas and shapes in ops.h; pointers to memory of the device, NULL where ops.h says
 * so. x, residual, y and their gradients are of type `dtype`, everything else of that type or, next to
 * halves, F32. */
#ifndef DSC_DEVICE_CUDA_NORM_KERNELS_H
#define DSC_DEVICE_CUDA_NORM_KERNELS_H

#include "descent/device.h"
#include "device/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_cuda_norm_forward_call {
    dsc_dtype dtype;
    int relu;
    int64_t rows, channels; /* both positive */
    double eps, momentum;
    const void *x, *residual, *gamma, *shift;
    void *running_mean, *running_var;
    void *mean, *invstd; /* in training */
    void *y;
} dsc_cuda_norm_forward_call;

typedef struct dsc_cuda_norm_backward_call {
    dsc_dtype dtype;
    int64_t rows, channels;
    int add_x, add_residual, add_params; /* 1: beta is 1 */
    const void *x, *y, *dy, *gamma, *mean, *invstd;
    void *dx, *dresidual, *dgamma, *dshift;
} dsc_cuda_norm_backward_call;

cudaError_t dsc_cuda_launch_norm_train(const dsc_cuda_launch *at, const dsc_cuda_norm_forward_call *call);
cudaError_t dsc_cuda_launch_norm_eval(const dsc_cuda_launch *at, const dsc_cuda_norm_forward_call *call);
cudaError_t dsc_cuda_launch_norm_backward(const dsc_cuda_launch *at, const dsc_cuda_norm_backward_call *call);

#ifdef __cplusplus
}
#endif

#endif
