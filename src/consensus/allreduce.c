/* All-reduce: the gradients are averaged over all ranks, in buckets that are sent while the backward pass is still
 * running (gradients.c). Every rank then makes the same update, so the parameters stay equal bit for bit. */
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

/* The gradients are the only state, so there is no `close`: dsc_consensus_destroy closes them. */
static dsc_status open_allreduce(dsc_consensus *consensus, const dsc_consensus_options *options) {
    DSC_TRY(check_options(options));
    return dsc_consensus_open_gradients(consensus, consensus->comm, options);
}

const dsc_consensus_table dsc_consensus_allreduce = {
    .name = "allreduce",
    .keeps_equal = 1,
    .open = open_allreduce,
    .grad_ready = dsc_consensus_gradient_ready,
    .after_backward = dsc_consensus_wait_gradients,
};
