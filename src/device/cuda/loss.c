/* Losses: entries. Kernels in loss.cu. */
#include "device/cuda/entries.h"
#include "device/cuda/loss_kernels.h"
#include "device/cuda/state.h"

dsc_status dsc_cuda_softmax_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_tensor *labels,
                                 double smoothing, double grad_scale, const dsc_tensor *loss_scale,
                                 dsc_tensor *dlogits, dsc_tensor *stats) {
    dsc_cuda_loss_call call = {.rows = logits->dim[0],
                               .classes = logits->dim[1],
                               .smoothing = smoothing,
                               .grad_scale = grad_scale,
                               .labels = labels->data,
                               .loss_scale = loss_scale ? loss_scale->data : NULL,
                               .stats = stats->data};
    DSC_CUDA_TRY(dsc_cuda_launch_softmax_loss(dsc_cuda_at(q), logits->dtype, &call, logits->data,
                                              dlogits ? dlogits->data : NULL));
    return DSC_OK;
}

dsc_status dsc_cuda_sample_labels(dsc_queue *q, uint64_t seed, const dsc_tensor *position,
                                  const dsc_tensor *logits, dsc_tensor *labels) {
    dsc_cuda_sample_call call = {.rows = logits->dim[0],
                                 .classes = logits->dim[1],
                                 .seed = seed,
                                 .position = position->data,
                                 .labels = labels->data};
    DSC_CUDA_TRY(dsc_cuda_launch_sample_labels(dsc_cuda_at(q), logits->dtype, &call, logits->data));
    return DSC_OK;
}
