/* Launches of layer.cu. Formulas and shapes in ops.h; activations are of type `dtype`, bias and its gradient
 * of that type or, next to halves, F32. `add`: 1 where beta is. */
#ifndef DSC_DEVICE_CUDA_LAYER_KERNELS_H
#define DSC_DEVICE_CUDA_LAYER_KERNELS_H

#include "device/cuda/launch.h"
#include "device/formulas.h"

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t dsc_cuda_launch_bias_add(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t rows,
                                     int64_t channels, const void *b, void *y);
cudaError_t dsc_cuda_launch_bias_grad(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t rows,
                                      int64_t channels, const void *dy, int add, void *db);
cudaError_t dsc_cuda_launch_relu_forward(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t count,
                                         const void *x, void *y);
cudaError_t dsc_cuda_launch_relu_backward(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t count,
                                          const void *y, const void *dy, int add, void *dx);
cudaError_t dsc_cuda_launch_add(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t count, const void *a,
                                const void *b, void *y);

typedef struct dsc_cuda_shortcut_shape {
    int64_t stride;
    int64_t h, w, c;   /* of x */
    int64_t oh, ow, k; /* of y */
} dsc_cuda_shortcut_shape;
cudaError_t dsc_cuda_launch_shortcut_forward(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t n,
                                             const dsc_cuda_shortcut_shape *shape, const void *x, void *y);
cudaError_t dsc_cuda_launch_shortcut_backward(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t n,
                                              const dsc_cuda_shortcut_shape *shape, const void *dy, int add,
                                              void *dx);

/* The stream's step is read from the device: position[0]. keep = 1 - rate; row: elements of a sample. */
typedef struct dsc_cuda_dropout_call {
    dsc_dropout_stream stream;
    double keep;
    int64_t count, row;
    int add;
    const int64_t *position;
} dsc_cuda_dropout_call;
cudaError_t dsc_cuda_launch_dropout(const dsc_cuda_launch *at, dsc_dtype dtype,
                                    const dsc_cuda_dropout_call *call, const void *x, void *y);

typedef struct dsc_cuda_augment_call {
    dsc_augment_desc desc;
    int64_t n, h, w, c, rh, rw;
    const uint8_t *raw;
    const int32_t *place;
} dsc_cuda_augment_call;
cudaError_t dsc_cuda_launch_augment(const dsc_cuda_launch *at, dsc_dtype dtype,
                                    const dsc_cuda_augment_call *call, void *x);

#ifdef __cplusplus
}
#endif

#endif
