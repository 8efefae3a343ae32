/* Batch norm: entries. Kernels in norm.cu. */
#include "device/cuda/entries.h"
#include "device/cuda/norm_kernels.h"
#include "device/cuda/state.h"

static void *data_of(const dsc_tensor *t) {
    return t ? t->data : NULL;
}

static dsc_cuda_norm_forward_call forward_call(const dsc_norm_desc *desc, const dsc_tensor *x,
                                               const dsc_tensor *residual, const dsc_norm_params *params,
                                               dsc_tensor *y) {
    int64_t channels = params->gamma->dim[0];
    return (dsc_cuda_norm_forward_call){.dtype = x->dtype,
                                        .relu = desc->relu,
                                        .rows = dsc_tensor_count(x) / channels,
                                        .channels = channels,
                                        .eps = desc->eps,
                                        .momentum = desc->momentum,
                                        .x = x->data,
                                        .residual = data_of(residual),
                                        .gamma = params->gamma->data,
                                        .shift = params->shift->data,
                                        .running_mean = params->running_mean->data,
                                        .running_var = params->running_var->data,
                                        .y = y->data};
}

dsc_status dsc_cuda_norm_forward_train(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                       const dsc_tensor *residual, const dsc_norm_params *params,
                                       dsc_tensor *mean, dsc_tensor *invstd, dsc_tensor *y) {
    dsc_cuda_norm_forward_call call = forward_call(desc, x, residual, params, y);
    call.mean = mean->data;
    call.invstd = invstd->data;
    DSC_CUDA_TRY(dsc_cuda_launch_norm_train(dsc_cuda_at(q), &call));
    return DSC_OK;
}

dsc_status dsc_cuda_norm_forward_eval(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                      const dsc_tensor *residual, const dsc_norm_params *params,
                                      dsc_tensor *y) {
    dsc_cuda_norm_forward_call call = forward_call(desc, x, residual, params, y);
    DSC_CUDA_TRY(dsc_cuda_launch_norm_eval(dsc_cuda_at(q), &call));
    return DSC_OK;
}

dsc_status dsc_cuda_norm_backward(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                  const dsc_tensor *y, const dsc_tensor *dy, const dsc_tensor *gamma,
                                  const dsc_tensor *mean, const dsc_tensor *invstd,
                                  const dsc_norm_grads *grads) {
    int64_t channels = gamma->dim[0];
    dsc_cuda_norm_backward_call call = {.dtype = x->dtype,
                                        .rows = dsc_tensor_count(x) / channels,
                                        .channels = channels,
                                        .add_x = grads->beta_x != 0,
                                        .add_residual = grads->beta_residual != 0,
                                        .add_params = grads->beta_p != 0,
                                        .x = x->data,
                                        .y = desc->relu ? y->data : NULL,
                                        .dy = dy->data,
                                        .gamma = gamma->data,
                                        .mean = mean->data,
                                        .invstd = invstd->data,
                                        .dx = grads->dx->data,
                                        .dresidual = data_of(grads->dresidual),
                                        .dgamma = grads->dgamma->data,
                                        .dshift = grads->dshift->data};
    DSC_CUDA_TRY(dsc_cuda_launch_norm_backward(dsc_cuda_at(q), &call));
    return DSC_OK;
}
