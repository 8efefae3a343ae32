/* All-reduce: every rank's gradients become their mean, in buckets that leave while backward still runs; then
 * every rank makes the same update, so parameters stay equal bit for bit.
 *
 * Gradients become ready in falling order of the parameters, so that is the order in which the buckets get
 * them: tensor i of the buckets is parameter count - 1 - i. */
#include "consensus/table.h"

#include "base/error.h"
#include "base/memory.h"

static dsc_status open_allreduce(dsc_consensus *consensus, const dsc_consensus_options *options) {
    dsc_bucket_options bucket_options;
    dsc_bucket_options_init(&bucket_options);
    bucket_options.bytes = options->bucket_bytes;
    bucket_options.wire = options->wire;
    bucket_options.traffic = DSC_TRAFFIC_GRADIENTS;
    dsc_tensor *grads;
    DSC_TRY(dsc_memory_alloc(consensus->count, sizeof *grads, &grads));
    for (int64_t i = 0; i < consensus->count; i++)
        grads[i] = consensus->params[consensus->count - 1 - i].grad;
    dsc_buckets *buckets = NULL;
    dsc_status status = dsc_buckets_create(consensus->comm, consensus->queue, grads, consensus->count,
                                           &bucket_options, &buckets);
    dsc_memory_free(&grads);
    DSC_TRY(status);
    consensus->state = buckets;
    return DSC_OK;
}

static void close_allreduce(dsc_consensus *consensus) {
    dsc_buckets *buckets = consensus->state;
    dsc_buckets_destroy(&buckets);
    consensus->state = NULL;
}

static dsc_status grad_ready(dsc_consensus *consensus, dsc_queue *queue, int64_t param) {
    (void)queue;
    return dsc_buckets_ready(consensus->state, consensus->count - 1 - param);
}

static dsc_status after_backward(dsc_consensus *consensus, dsc_queue *queue) {
    (void)queue;
    return dsc_buckets_wait(consensus->state);
}

const dsc_consensus_table dsc_consensus_allreduce = {
    .name = "allreduce",
    .keeps_equal = 1,
    .open = open_allreduce,
    .close = close_allreduce,
    .grad_ready = grad_ready,
    .after_backward = after_backward,
};
