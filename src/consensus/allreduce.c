/* All-reduce: the gradients are averaged over all ranks, in buckets that leave while the backward pass still
 * runs. Every rank then makes the same update, so the parameters stay equal bit for bit.
 *
 * Gradients become ready in falling order of the parameters, so that is the order in which the buckets get
 * them: tensor i of the buckets is parameter count - 1 - i. */
#include "consensus/table.h"

#include "base/error.h"

#include <inttypes.h>

/* Options that only gossip uses are refused rather than ignored. */
static dsc_status check_options(const dsc_consensus_options *o) {
    if (o->graph)
        return DSC_FAIL(DSC_E_INVALID,
                        "allreduce with graph '%s': all ranks take part in every step, and none are peers; "
                        "leave the graph out, or use sgp, osgp, dpsgd or adpsgd",
                        o->graph);
    if (o->peers != 1)
        return DSC_FAIL(DSC_E_INVALID,
                        "allreduce with %d peers per step: all ranks take part in every step; leave it at 1, "
                        "or use sgp or osgp",
                        o->peers);
    if (o->synch_freq != 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "allreduce with synch_freq %" PRId64 ": no message may stay away; use osgp, or 0",
                        o->synch_freq);
    if (o->group != 1)
        return DSC_FAIL(DSC_E_INVALID,
                        "allreduce with groups of %d ranks: all ranks average their gradients; leave it at "
                        "1, or use sgp, osgp or dpsgd",
                        o->group);
    if (o->average_every != 0 || o->slow_momentum != 0 || o->slow_rate != 1)
        return DSC_FAIL(DSC_E_INVALID,
                        "allreduce with average_every %" PRId64 ", slow_momentum %g, slow_rate %g: all ranks "
                        "hold the same values, and there is nothing to average; leave them at 0, 0 and 1, or "
                        "use sgp, osgp, dpsgd or adpsgd",
                        o->average_every, o->slow_momentum, o->slow_rate);
    return DSC_OK;
}

static dsc_status open_allreduce(dsc_consensus *consensus, const dsc_consensus_options *options) {
    dsc_buckets *buckets = NULL;
    DSC_TRY(check_options(options));
    DSC_TRY(dsc_consensus_open_gradients(consensus, consensus->comm, options, &buckets));
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
