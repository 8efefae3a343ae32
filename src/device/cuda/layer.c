/* Layers without a file of their own: entries. Kernels in layer.cu. */
#include "device/cuda/entries.h"
#include "device/cuda/layer_kernels.h"
#include "device/cuda/state.h"

dsc_status dsc_cuda_bias_add(dsc_queue *q, const dsc_tensor *b, dsc_tensor *y) {
    int64_t channels = b->dim[0], rows = dsc_tensor_count(y) / channels;
    DSC_CUDA_TRY(dsc_cuda_launch_bias_add(dsc_cuda_at(q), y->dtype, rows, channels, b->data, y->data));
    return DSC_OK;
}

dsc_status dsc_cuda_bias_grad(dsc_queue *q, const dsc_tensor *dy, double beta, dsc_tensor *db) {
    int64_t channels = db->dim[0], rows = dsc_tensor_count(dy) / channels;
    DSC_CUDA_TRY(
        dsc_cuda_launch_bias_grad(dsc_cuda_at(q), dy->dtype, rows, channels, dy->data, beta != 0, db->data));
    return DSC_OK;
}

dsc_status dsc_cuda_relu_forward(dsc_queue *q, const dsc_tensor *x, dsc_tensor *y) {
    DSC_CUDA_TRY(
        dsc_cuda_launch_relu_forward(dsc_cuda_at(q), x->dtype, dsc_tensor_count(x), x->data, y->data));
    return DSC_OK;
}

dsc_status dsc_cuda_relu_backward(dsc_queue *q, const dsc_tensor *y, const dsc_tensor *dy, double beta,
                                  dsc_tensor *dx) {
    DSC_CUDA_TRY(dsc_cuda_launch_relu_backward(dsc_cuda_at(q), y->dtype, dsc_tensor_count(y), y->data,
                                               dy->data, beta != 0, dx->data));
    return DSC_OK;
}

dsc_status dsc_cuda_add(dsc_queue *q, const dsc_tensor *a, const dsc_tensor *b, dsc_tensor *y) {
    DSC_CUDA_TRY(
        dsc_cuda_launch_add(dsc_cuda_at(q), a->dtype, dsc_tensor_count(a), a->data, b->data, y->data));
    return DSC_OK;
}

static dsc_cuda_shortcut_shape shortcut_shape(int64_t stride, const dsc_tensor *x, const dsc_tensor *y) {
    return (dsc_cuda_shortcut_shape){.stride = stride,
                                     .h = x->dim[1],
                                     .w = x->dim[2],
                                     .c = x->dim[3],
                                     .oh = y->dim[1],
                                     .ow = y->dim[2],
                                     .k = y->dim[3]};
}

dsc_status dsc_cuda_shortcut_forward(dsc_queue *q, int64_t stride, const dsc_tensor *x, dsc_tensor *y) {
    dsc_cuda_shortcut_shape shape = shortcut_shape(stride, x, y);
    DSC_CUDA_TRY(
        dsc_cuda_launch_shortcut_forward(dsc_cuda_at(q), x->dtype, x->dim[0], &shape, x->data, y->data));
    return DSC_OK;
}

dsc_status dsc_cuda_shortcut_backward(dsc_queue *q, int64_t stride, const dsc_tensor *dy, double beta,
                                      dsc_tensor *dx) {
    dsc_cuda_shortcut_shape shape = shortcut_shape(stride, dx, dy);
    DSC_CUDA_TRY(dsc_cuda_launch_shortcut_backward(dsc_cuda_at(q), dx->dtype, dx->dim[0], &shape, dy->data,
                                                   beta != 0, dx->data));
    return DSC_OK;
}

dsc_status dsc_cuda_dropout(dsc_queue *q, const dsc_dropout_desc *desc, const dsc_tensor *position,
                            const dsc_tensor *x, double beta, dsc_tensor *y) {
    dsc_cuda_dropout_call call = {.stream = dsc_dropout_start(desc, 0),
                                  .keep = 1 - desc->rate,
                                  .count = dsc_tensor_count(x),
                                  .row = dsc_tensor_count(x) / x->dim[0],
                                  .add = beta != 0,
                                  .position = position->data};
    DSC_CUDA_TRY(dsc_cuda_launch_dropout(dsc_cuda_at(q), x->dtype, &call, x->data, y->data));
    return DSC_OK;
}

dsc_status dsc_cuda_augment(dsc_queue *q, const dsc_augment_desc *desc, const dsc_tensor *raw,
                            const dsc_tensor *place, dsc_tensor *x) {
    dsc_cuda_augment_call call = {.desc = *desc,
                                  .n = x->dim[0],
                                  .h = x->dim[1],
                                  .w = x->dim[2],
                                  .c = x->dim[3],
                                  .rh = raw->dim[1],
                                  .rw = raw->dim[2],
                                  .raw = raw->data,
                                  .place = place->data};
    DSC_CUDA_TRY(dsc_cuda_launch_augment(dsc_cuda_at(q), x->dtype, &call, x->data));
    return DSC_OK;
}
