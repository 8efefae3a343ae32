/* Pooling: entries. Kernels in pool.cu. */
#include "device/cuda/entries.h"
#include "device/cuda/pool_kernels.h"
#include "device/cuda/state.h"

static dsc_cuda_pool_shape pool_shape(const dsc_pool_desc *desc, const dsc_tensor *x, const dsc_tensor *y) {
    return (dsc_cuda_pool_shape){.window = *desc,
                                 .n = x->dim[0],
                                 .h = x->dim[1],
                                 .w = x->dim[2],
                                 .c = x->dim[3],
                                 .oh = y->dim[1],
                                 .ow = y->dim[2]};
}

dsc_status dsc_cuda_pool_forward(dsc_queue *q, const dsc_pool_desc *desc, const dsc_tensor *x,
                                 dsc_tensor *index, dsc_tensor *y) {
    dsc_cuda_pool_shape shape = pool_shape(desc, x, y);
    DSC_CUDA_TRY(dsc_cuda_launch_pool_forward(dsc_cuda_at(q), x->dtype, &shape, x->data,
                                              index ? index->data : NULL, y->data));
    return DSC_OK;
}

dsc_status dsc_cuda_pool_backward(dsc_queue *q, const dsc_pool_desc *desc, const dsc_tensor *index,
                                  const dsc_tensor *dy, double beta, dsc_tensor *dx) {
    dsc_cuda_pool_shape shape = pool_shape(desc, dx, dy);
    const int32_t *places = desc->kind == DSC_POOL_MAX ? index->data : NULL;
    DSC_CUDA_TRY(dsc_cuda_launch_pool_backward(dsc_cuda_at(q), dx->dtype, &shape, places, dy->data, beta != 0,
                                               dx->data));
    return DSC_OK;
}

dsc_status dsc_cuda_global_pool_forward(dsc_queue *q, const dsc_tensor *x, dsc_tensor *y) {
    int64_t pixels = x->dim[1] * x->dim[2];
    DSC_CUDA_TRY(dsc_cuda_launch_global_pool_forward(dsc_cuda_at(q), x->dtype, x->dim[0], pixels, x->dim[3],
                                                     x->data, y->data));
    return DSC_OK;
}

dsc_status dsc_cuda_global_pool_backward(dsc_queue *q, const dsc_tensor *dy, double beta, dsc_tensor *dx) {
    int64_t pixels = dx->dim[1] * dx->dim[2];
    DSC_CUDA_TRY(dsc_cuda_launch_global_pool_backward(dsc_cuda_at(q), dx->dtype, dx->dim[0], pixels,
                                                      dx->dim[3], dy->data, beta != 0, dx->data));
    return DSC_OK;
}
