/* Launches of loss.cu. Formulas and shapes in ops.h; logits and their gradient are of type `dtype`. */
#ifndef DSC_DEVICE_CUDA_LOSS_KERNELS_H
#define DSC_DEVICE_CUDA_LOSS_KERNELS_H

#include "descent/device.h"
#include "device/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_cuda_loss_call {
    int64_t rows, classes; /* both positive */
    double smoothing, grad_scale;
    const int32_t *labels;
    const double *loss_scale; /* may be NULL */
    double *stats;
} dsc_cuda_loss_call;
/* dlogits may be NULL. */
cudaError_t dsc_cuda_launch_softmax_loss(const dsc_cuda_launch *at, dsc_dtype dtype,
                                         const dsc_cuda_loss_call *call, const void *logits, void *dlogits);

typedef struct dsc_cuda_sample_call {
    int64_t rows, classes;
    uint64_t seed;
    const int64_t *position;
    int32_t *labels;
} dsc_cuda_sample_call;
cudaError_t dsc_cuda_launch_sample_labels(const dsc_cuda_launch *at, dsc_dtype dtype,
                                          const dsc_cuda_sample_call *call, const void *logits);

#ifdef __cplusplus
}
#endif

#endif
