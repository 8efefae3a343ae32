#ifndef DSC_DEVICE_CUDA_CLOCK_KERNELS_H
#define DSC_DEVICE_CUDA_CLOCK_KERNELS_H

#include "device/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t dsc_cuda_launch_timestamp(const dsc_cuda_launch *at, int64_t *out);

#ifdef __cplusplus
}
#endif
#endif
