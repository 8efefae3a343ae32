/* Groups of ranks that gossip as one: makes the groups, cuts the slices, and exchanges values inside a group. */
#include "consensus/group.h"

#include "base/error.h"
#include "base/memory.h"
#include "device/ops.h"

#include <inttypes.h>

/* ---- the size of a group ---- */

/* Sets *size to the number of ranks on a node, which must be the same on every node; the ranks of a node must be
 * consecutive. Collective. */
static dsc_status count_node(dsc_consensus *c, int *size) {
    int rank = dsc_comm_rank(c->comm), ranks = dsc_comm_size(c->comm);
    int here = dsc_comm_local_size(c->comm);
    int fits = ranks % here == 0 && dsc_comm_local_rank(c->comm) == rank % here;
    double sums[2] = {fits, here};
    DSC_TRY(dsc_consensus_sum(c, sums, 2));
    if (sums[0] != ranks || sums[1] != (double)ranks * here)
        return DSC_FAIL(DSC_E_INVALID,
                        "groups by node: this node has %d of %d ranks; every node must have equally many, "
                        "with neighbouring numbers (mpirun --map-by slot)",
                        here, ranks);
    *size = here;
    return DSC_OK;
}

/* ---- slices ---- */

/* Cuts the concatenated runs: slice p holds their elements [total p / size, total (p + 1) / size). */
static dsc_status cut_slices(dsc_group *g, const dsc_consensus *c) {
    int64_t start = 0, pieces = 0;
    DSC_TRY(dsc_memory_alloc(g->size + c->run_count, sizeof *g->slices, &g->slices));
    DSC_TRY(dsc_memory_alloc(g->size + c->run_count, sizeof *g->requests, &g->requests));
    DSC_TRY(dsc_memory_alloc(g->size + 1, sizeof *g->first, &g->first));
    int64_t i = 0, inside = 0; /* element `start` is element `inside` of run i */
    for (int p = 0; p < g->size; p++) {
        int64_t end = c->total * (p + 1) / g->size;
        g->first[p] = pieces;
        while (start < end) {
            int64_t left = c->runs[i].dim[0] - inside;
            int64_t part = left < end - start ? left : end - start;
            if (part > 0)
                g->slices[pieces++] = dsc_tensor_slice(&c->runs[i], inside, part);
            start += part;
            inside += part;
            if (inside == c->runs[i].dim[0]) {
                i++;
                inside = 0;
            }
        }
    }
    g->first[g->size] = pieces;
    return DSC_OK;
}

/* ---- creating and destroying ---- */

dsc_status dsc_group_open(dsc_group *group, dsc_consensus *c, const dsc_consensus_options *options) {
    dsc_group *g = group;
    const int64_t one = 1;
    int rank = dsc_comm_rank(c->comm), ranks = dsc_comm_size(c->comm);
    g->size = options->group;
    if (g->size == 0)
        DSC_TRY(count_node(c, &g->size));
    if (ranks % g->size != 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "groups of %d ranks: %d ranks cannot be divided evenly; take a divisor of %d",
                        g->size, ranks, ranks);
    if (g->size == 1)
        return DSC_OK;
    g->place = rank % g->size;
    DSC_TRY(dsc_comm_split(c->comm, rank / g->size, rank, &g->inside));
    DSC_TRY(dsc_comm_split(c->comm, g->place, rank, &g->between));
    DSC_TRY(dsc_tensor_alloc(dsc_queue_device(c->queue), DSC_I64, 1, &one, &g->flag));
    DSC_TRY(cut_slices(g, c));
    return dsc_consensus_open_gradients(c, g->inside, options);
}

void dsc_group_close(dsc_group *group, dsc_consensus *c) {
    dsc_consensus_close_gradients(c);
    if (group->flag.data)
        dsc_tensor_free(&group->flag);
    dsc_memory_free(&group->slices);
    dsc_memory_free(&group->requests);
    dsc_memory_free(&group->first);
    dsc_consensus_close_comm(c, &group->between);
    dsc_consensus_close_comm(c, &group->inside);
}

/* ---- in a step ---- */

dsc_status dsc_group_agree(dsc_group *group, dsc_queue *queue, int *flag) {
    int64_t value = *flag;
    if (group->size == 1)
        return DSC_OK;
    DSC_TRY(dsc_tensor_upload(queue, &value, sizeof value, &group->flag));
    DSC_TRY(dsc_queue_sync(queue));
    DSC_TRY(dsc_comm_allreduce(group->inside, DSC_TRAFFIC_OTHER, DSC_MIN, &group->flag));
    DSC_TRY(dsc_tensor_download(queue, &group->flag, sizeof value, &value));
    DSC_TRY(dsc_queue_sync(queue));
    *flag = value != 0;
    return DSC_OK;
}

dsc_status dsc_group_spread(dsc_group *group, dsc_queue *queue) {
    dsc_group *g = group;
    if (g->size == 1)
        return DSC_OK;
    DSC_TRY(dsc_queue_sync(queue));
    for (int p = 0; p < g->size; p++)
        for (int64_t i = g->first[p]; i < g->first[p + 1]; i++)
            DSC_TRY(dsc_comm_broadcast_begin(g->inside, DSC_TRAFFIC_PARAMETERS, p, &g->slices[i],
                                             &g->requests[i]));
    for (int64_t i = 0; i < g->first[g->size]; i++)
        DSC_TRY(dsc_comm_wait(&g->requests[i]));
    return DSC_OK;
}

dsc_status dsc_group_scale_others(dsc_group *group, dsc_queue *queue, double factor) {
    dsc_group *g = group;
    if (g->size == 1 || factor == 1)
        return DSC_OK;
    for (int p = 0; p < g->size; p++)
        for (int64_t i = g->first[p]; i < g->first[p + 1] && p != g->place; i++)
            DSC_TRY(dsc_op_axpby(queue, factor, &g->slices[i], 0, &g->slices[i]));
    return DSC_OK;
}
