/* Our own kernels for the convolutions of small residual networks: 3x3 taps, padding 1, stride 1 or 2, no dilation,
 * one group; 16, 32, 48 or 64 channels in and out, or 3 channels in. The arguments are those of conv.c. */
#ifndef DSC_DEVICE_CUDA_SMALL_CONV_H
#define DSC_DEVICE_CUDA_SMALL_CONV_H

#include "device/cuda/state.h"

enum { DSC_SMALL_FORWARD = 1, DSC_SMALL_BACKWARD_DATA = 2, DSC_SMALL_BACKWARD_WEIGHT = 4 };

/* Returns the passes (DSC_SMALL_...) of a convolution that these kernels support. */
unsigned dsc_cuda_small_conv_passes(const dsc_cuda *cuda, const dsc_conv_desc *desc);
/* Returns the bytes of workspace that these passes need. Only the gradient of the weights needs any. */
size_t dsc_cuda_small_conv_workspace(const dsc_cuda *cuda, const dsc_conv_desc *desc);

dsc_status dsc_cuda_small_conv_forward(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x, const dsc_tensor *w,
                                       const dsc_tensor *bias, dsc_tensor *work,
                                       dsc_tensor *y) DSC_MUST_CHECK;
dsc_status dsc_cuda_small_conv_backward_data(dsc_queue *q, dsc_conv *conv, const dsc_tensor *w,
                                             const dsc_tensor *dy, double beta, dsc_tensor *work,
                                             dsc_tensor *dx) DSC_MUST_CHECK;
dsc_status dsc_cuda_small_conv_backward_weight(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x,
                                               const dsc_tensor *dy, double beta, dsc_tensor *work,
                                               dsc_tensor *dw) DSC_MUST_CHECK;

#endif
