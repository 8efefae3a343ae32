/* The model that is evaluated and saved: parameters averaged over the ranks, where they differ, and the
 * batch-norm statistics of rank 0, or their average. They are swapped in for that time only; every rank
 * continues training with its own. */
#include "base/error.h"
#include "base/memory.h"
#include "device/ops.h"
#include "train/share.h"
#include "train/trainer_internal.h"

static int64_t buffer_count(const dsc_trainer *t) {
    return t->ranks > 1 ? dsc_model_buffer_count(t->model) : 0;
}

/* Copies all buffers into `own_buffers`, or back. */
static dsc_status copy_buffers(dsc_trainer *t, int back) {
    const dsc_param *buffers = dsc_model_buffers(t->model);
    for (int64_t i = 0; i < buffer_count(t); i++) {
        dsc_tensor own = buffers[i].value;
        if (back)
            DSC_TRY(dsc_op_convert(t->queue, &t->own_buffers[i], &own));
        else
            DSC_TRY(dsc_op_convert(t->queue, &own, &t->own_buffers[i]));
    }
    return DSC_OK;
}

static dsc_status keep_buffers(dsc_trainer *t) {
    const dsc_param *buffers = dsc_model_buffers(t->model);
    if (!t->own_buffers && buffer_count(t) > 0)
        DSC_TRY(dsc_memory_alloc(buffer_count(t), sizeof *t->own_buffers, &t->own_buffers));
    for (int64_t i = 0; i < buffer_count(t); i++) {
        const dsc_tensor *b = &buffers[i].value;
        if (!t->own_buffers[i].data)
            DSC_TRY(dsc_tensor_alloc(t->device, b->dtype, b->ndim, b->dim, &t->own_buffers[i]));
    }
    DSC_TRY(copy_buffers(t, 0));
    t->buffers_swapped = 1;
    return DSC_OK;
}

dsc_status dsc_trainer_recover_buffers(dsc_trainer *t) {
    if (t->buffers_swapped)
        DSC_TRY(copy_buffers(t, 1));
    t->buffers_swapped = 0;
    return DSC_OK;
}

void dsc_trainer_free_swapped(dsc_trainer *t) {
    for (int64_t i = 0; t->own_buffers && i < buffer_count(t); i++)
        dsc_tensor_free(&t->own_buffers[i]);
    dsc_memory_free(&t->own_buffers);
}

/* Takes the mean over the ranks; for whole numbers (counts of batches), rank 0's value. */
static dsc_status average_buffers(dsc_trainer *t) {
    const dsc_param *buffers = dsc_model_buffers(t->model);
    DSC_TRY(dsc_queue_sync(t->queue));
    for (int64_t i = 0; i < buffer_count(t); i++) {
        dsc_tensor b = buffers[i].value;
        if (b.dtype != DSC_F32) {
            DSC_TRY(dsc_comm_broadcast(t->comm, DSC_TRAFFIC_OTHER, 0, &b));
            continue;
        }
        DSC_TRY(dsc_comm_allreduce(t->comm, DSC_TRAFFIC_OTHER, DSC_SUM, &b));
        DSC_TRY(dsc_op_axpby(t->queue, 1.0 / t->ranks, &b, 0, &b));
    }
    return DSC_OK;
}

int dsc_trainer_swaps(const dsc_trainer *t) {
    return !t->collective || (t->options.bn_average && buffer_count(t) > 0);
}

dsc_status dsc_trainer_unite_buffers(dsc_trainer *t) {
    if (buffer_count(t) == 0)
        return DSC_OK;
    return t->options.bn_average ? average_buffers(t) : dsc_share_buffers(t->comm, t->queue, t->model);
}

dsc_status dsc_trainer_swap_in(dsc_trainer *t) {
    DSC_TRY(dsc_comm_agree(t->comm, keep_buffers(t)));
    if (!t->collective)
        DSC_TRY(dsc_consensus_swap_in(t->consensus, t->queue, DSC_VALUES_MEAN));
    return dsc_trainer_unite_buffers(t);
}

dsc_status dsc_trainer_swap_out(dsc_trainer *t) {
    if (!t->collective)
        DSC_TRY(dsc_consensus_swap_out(t->consensus, t->queue));
    return dsc_trainer_recover_buffers(t);
}
