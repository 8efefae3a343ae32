/* Launches of pool.cu. Formulas and shapes in ops.h; activations are of type `dtype`. `add`: 1 where beta is.
 */
#ifndef DSC_DEVICE_CUDA_POOL_KERNELS_H
#define DSC_DEVICE_CUDA_POOL_KERNELS_H

#include "device/cuda/launch.h"
#include "device/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_cuda_pool_shape {
    dsc_pool_desc window;
    int64_t n, h, w, c, oh, ow;
} dsc_cuda_pool_shape;

/* index may be NULL. */
cudaError_t dsc_cuda_launch_pool_forward(const dsc_cuda_launch *at, dsc_dtype dtype,
                                         const dsc_cuda_pool_shape *shape, const void *x, int32_t *index,
                                         void *y);
cudaError_t dsc_cuda_launch_pool_backward(const dsc_cuda_launch *at, dsc_dtype dtype,
                                          const dsc_cuda_pool_shape *shape, const int32_t *index,
                                          const void *dy, int add, void *dx);
cudaError_t dsc_cuda_launch_global_pool_forward(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t n,
                                                int64_t pixels, int64_t channels, const void *x, void *y);
cudaError_t dsc_cuda_launch_global_pool_backward(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t n,
                                                 int64_t pixels, int64_t channels, const void *dy, int add,
                                                 void *dx);

#ifdef __cplusplus
}
#endif

#endif
