/* Our own kernels for 1x1 convolutions with stride 1 and at most 8 output channels, such as the last one of a U-Net.
 * The arguments are those of conv.c; no workspace is needed. */
#ifndef DSC_DEVICE_CUDA_NARROW_CONV_H
#define DSC_DEVICE_CUDA_NARROW_CONV_H

#include "device/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns 1 if these kernels support the convolution, in all passes. */
int dsc_cuda_is_narrow_conv(const dsc_conv_desc *desc);
dsc_status dsc_cuda_narrow_conv_forward(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *w,
                                        const dsc_tensor *bias, dsc_tensor *y) DSC_MUST_CHECK;
dsc_status dsc_cuda_narrow_conv_backward_data(dsc_queue *q, const dsc_tensor *w, const dsc_tensor *dy,
                                              double beta, dsc_tensor *dx) DSC_MUST_CHECK;
dsc_status dsc_cuda_narrow_conv_backward_weight(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *dy,
                                                double beta, dsc_tensor *dw) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
