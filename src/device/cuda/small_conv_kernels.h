/* Kernels of small_conv.cu and small_conv_weight.cu: convolutions with 3x3 taps, padding 1 and few channels. */
#ifndef DSC_DEVICE_CUDA_SMALL_CONV_KERNELS_H
#define DSC_DEVICE_CUDA_SMALL_CONV_KERNELS_H

#include "device/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dsc_small_type { DSC_SMALL_F32, DSC_SMALL_BF16, DSC_SMALL_F16 } dsc_small_type;

/* Computes y[n,oh,ow,k] from x[n,h,w,c] and weights [k,3,3,c]. `turned`: the weights are [c,3,3,k], and are read
 * transposed and rotated by 180 degrees. That is the gradient of the data, where x is the gradient of the output. */
typedef struct dsc_small_conv {
    dsc_small_type type;
    int32_t n, h, w, c, oh, ow, k, stride;
    int32_t turned, add;            /* add: 1: adds to y; 0: overwrites y */
    int32_t wide_x, wide_w, wide_y; /* 1: the tensor is aligned to 16 bytes */
    size_t shared;                  /* bytes of shared memory that a block may have */
    const void *x, *weights;
    const float *bias; /* may be NULL */
    void *y;
} dsc_small_conv;

/* Returns the bytes of shared memory that a block needs at least. Pointers are not read. */
size_t dsc_cuda_small_conv_shared(const dsc_small_conv *conv);
cudaError_t dsc_cuda_launch_small_conv(const dsc_cuda_launch *at, const dsc_small_conv *conv);

/* Computes dw[k,3,3,c] from x[n,h,w,c] and dy[n,oh,ow,k]. */
typedef struct dsc_small_weight {
    dsc_small_type type;
    int32_t n, h, w, c, oh, ow, k, stride;
    int32_t add;
    int32_t wide_x, wide_dy;
    size_t shared;
    const void *x, *dy;
    float *partial; /* dsc_cuda_small_weight_workspace bytes, aligned to 16 */
    float *dw;
} dsc_small_weight;

size_t dsc_cuda_small_weight_shared(const dsc_small_weight *conv);
size_t dsc_cuda_small_weight_workspace(const dsc_small_weight *conv, int multiprocessors);
cudaError_t dsc_cuda_launch_small_weight(const dsc_cuda_launch *at, const dsc_small_weight *conv);

#ifdef __cplusplus
}
#endif

#endif
