/* Gossip in the training step: SGP, OSGP and D-PSGD. They differ in the order in which the optimiser and a
 * round of averaging (average.c) run:
 *
 *                    sgp, dpsgd                      osgp
 *   before_forward   end the round; parameters <- z  end the round if it is complete or too old; begin one if
 *                                                    none is under way; parameters <- z
 *   update_begin     parameters <- x                 parameters <- x
 *   update_end       begin a round
 *
 * z = x / w. dpsgd is sgp on matchings, without a weight. With w = 1, as between the rounds of regular graphs,
 * z equals x and nothing is copied. A message of osgp is at most synch_freq + 1 steps old when it is added. */
#include "consensus/average.h"
#include "consensus/group.h"
#include "consensus/table.h"

#include "base/error.h"
#include "base/memory.h"

#include <inttypes.h>

typedef struct gossip {
    dsc_group group;
    dsc_average *average; /* of the parameters, or with groups of this rank's slice */
    int64_t synch_freq;
    int64_t age;    /* steps since the round under way has begun */
    int64_t most;   /* the most rounds that any rank can have begun by now */
    int in_step;    /* 1: this step's work on rounds is done, and the update has not ended yet */
    int presented;  /* 1: the parameters hold z, and the shadow holds x */
    int unspread;   /* 1: a round has ended while settling, and the slice must still be sent to the group */
    int overlapped; /* 1: osgp */
} gossip;

/* ---- creating and destroying ---- */

static dsc_status open_gossip(dsc_consensus *c, const dsc_consensus_options *options) {
    gossip *g;
    DSC_TRY(dsc_memory_alloc(1, sizeof *g, &g));
    c->state = g;
    g->overlapped = c->table == &dsc_consensus_osgp;
    g->synch_freq = options->synch_freq;
    if (options->synch_freq > 0 && !g->overlapped)
        return DSC_FAIL(DSC_E_INVALID,
                        "synch_freq %" PRId64 ": messages of %s stay away for no step; use osgp, or 0",
                        options->synch_freq, c->table->name);
    dsc_group *group = &g->group;
    DSC_TRY(dsc_group_open(group, c, options));
    dsc_average_options o;
    dsc_average_options_init(&o);
    o.graph = options->graph;
    o.peers = options->peers;
    o.pairwise = c->table == &dsc_consensus_dpsgd;
    o.bucket_bytes = options->bucket_bytes;
    o.wire = options->wire;
    o.timeout = options->peer_timeout;
    if (group->size == 1) {
        DSC_TRY(dsc_average_create(c->comm, c->queue, c->runs, c->run_count, &o, &g->average));
    } else {
        int64_t first = group->first[group->place], count = group->first[group->place + 1] - first;
        DSC_TRY(dsc_average_create(group->between, c->queue, group->slices + first, count, &o, &g->average));
        g->average->settle_comm = c->comm;
        g->average->name_factor = group->size;
        g->average->name_offset = group->place;
    }
    const dsc_topology *topology = dsc_average_topology(g->average);
    if (dsc_topology_ranks(topology) > 1 && (g->overlapped || !dsc_topology_is_regular(topology)))
        DSC_TRY(dsc_consensus_make_shadow(c));
    return DSC_OK;
}

static void close_gossip(dsc_consensus *c) {
    gossip *g = c->state;
    if (c->abandoned)
        dsc_average_abandon(&g->average);
    else
        dsc_average_destroy(&g->average);
    dsc_group_close(&g->group, c);
    dsc_memory_free(&c->state);
}

/* ---- in a step ---- */

static dsc_status begin(gossip *g, dsc_queue *queue) {
    DSC_TRY(dsc_average_begin(g->average, queue));
    g->age = 0;
    return DSC_OK;
}

static dsc_status end(gossip *g, dsc_queue *queue) {
    DSC_TRY(dsc_average_end(g->average, queue));
    return dsc_group_spread(&g->group, queue);
}

/* Copies x to the shadow and puts z = x / w into the parameters. */
static dsc_status present(dsc_consensus *c, gossip *g, dsc_queue *queue) {
    double weight = dsc_average_weight(g->average);
    if (weight == 1 || g->presented)
        return DSC_OK;
    DSC_TRY(dsc_consensus_make_shadow(c));
    DSC_TRY(dsc_consensus_scale(c, queue, 1, c->runs, c->shadow));
    DSC_TRY(dsc_consensus_scale(c, queue, 1 / weight, c->shadow, c->runs));
    g->presented = 1;
    return DSC_OK;
}

/* The reverse: puts x back into the parameters, and z, which the optimiser reads, into the shadow. */
static dsc_status take_back(dsc_consensus *c, gossip *g, dsc_queue *queue) {
    DSC_TRY(dsc_consensus_scale(c, queue, 1, c->shadow, c->runs));
    DSC_TRY(dsc_consensus_scale(c, queue, 1 / dsc_average_weight(g->average), c->runs, c->shadow));
    g->presented = 0;
    return DSC_OK;
}

static dsc_status before_forward(dsc_consensus *c, dsc_queue *queue) {
    gossip *g = c->state;
    if (!g->in_step && dsc_average_is_under_way(g->average))
        DSC_TRY(end(g, queue));
    g->in_step = 1;
    return present(c, g, queue);
}

/* The part of a step that runs only once, however often the parameters are presented. */
static dsc_status end_and_begin(gossip *g, dsc_queue *queue) {
    g->age++;
    g->most++;
    if (dsc_average_is_under_way(g->average)) {
        int due = g->age > g->synch_freq;
        if (!due) {
            DSC_TRY(dsc_average_test(g->average, &due));
            DSC_TRY(dsc_group_agree(&g->group, queue, &due));
        }
        if (due)
            DSC_TRY(end(g, queue));
    }
    if (!dsc_average_is_under_way(g->average)) {
        DSC_TRY(begin(g, queue));
        DSC_TRY(dsc_group_scale_others(&g->group, queue, g->average->self));
    }
    return DSC_OK;
}

static dsc_status before_forward_overlapped(dsc_consensus *c, dsc_queue *queue) {
    gossip *g = c->state;
    if (!g->in_step)
        DSC_TRY(end_and_begin(g, queue));
    g->in_step = 1;
    return present(c, g, queue);
}

static dsc_status grad_ready(dsc_consensus *c, dsc_queue *queue, int64_t param) {
    gossip *g = c->state;
    int done = 0;
    DSC_TRY(dsc_consensus_gradient_ready(c, queue, param));
    if (dsc_average_is_under_way(g->average)) /* lets MPI make progress during the backward pass */
        DSC_TRY(dsc_average_test(g->average, &done));
    return DSC_OK;
}

static dsc_status update_begin(dsc_consensus *c, dsc_queue *queue, const dsc_tensor **read) {
    gossip *g = c->state;
    if (!g->in_step)
        return DSC_FAIL(DSC_E_INVALID, "an update begins, but no step has begun since the last one: call "
                                       "dsc_consensus_before_forward");
    if (!g->presented)
        return DSC_OK;
    DSC_TRY(take_back(c, g, queue));
    *read = c->read;
    return DSC_OK;
}

static dsc_status update_end(dsc_consensus *c, dsc_queue *queue) {
    gossip *g = c->state;
    g->in_step = 0;
    return c->average_due ? DSC_OK : begin(g, queue);
}

static dsc_status update_end_overlapped(dsc_consensus *c, dsc_queue *queue) {
    (void)queue;
    gossip *g = c->state;
    g->in_step = 0;
    return DSC_OK;
}

/* ---- between steps ---- */

static dsc_status settle(dsc_consensus *c, dsc_queue *queue) {
    gossip *g = c->state;
    if (g->presented)
        return DSC_FAIL(DSC_E_INVALID, "settle: a step is under way: call it after dsc_consensus_update_end");
    int64_t before = dsc_average_rounds(g->average);
    g->unspread |= dsc_average_is_under_way(g->average);
    dsc_status status = dsc_average_settle_within(g->average, queue, g->overlapped ? g->most : before);
    g->unspread |= dsc_average_rounds(g->average) > before;
    DSC_TRY(status);
    g->most = dsc_average_rounds(g->average);
    if (g->unspread)
        DSC_TRY(dsc_group_spread(&g->group, queue));
    g->unspread = 0;
    return DSC_OK;
}

/* With synch_freq > 0 a rank that is ahead in steps may be behind in rounds, and others may be waiting for it. */
static dsc_status wait_for(dsc_consensus *c, dsc_queue *queue, dsc_request **request) {
    gossip *g = c->state;
    if (g->synch_freq == 0) /* every step is a round, so no rank can be waiting for this one */
        return dsc_comm_wait(request);
    int64_t before = dsc_average_rounds(g->average);
    dsc_status status = dsc_average_wait_within(g->average, queue, g->most, request);
    if (dsc_average_rounds(g->average) > before)
        g->age = 0;
    return status;
}

static dsc_status rescue(dsc_consensus *c, dsc_queue *queue) {
    gossip *g = c->state;
    if (g->group.size > 1)
        return DSC_FAIL(DSC_E_UNSUPPORTED, "groups of %d ranks cannot continue when one of them is lost",
                        g->group.size);
    if (g->presented)
        DSC_TRY(take_back(c, g, queue));
    DSC_TRY(dsc_average_give_up(g->average, queue));
    return dsc_consensus_scale(c, queue, 1 / dsc_average_weight(g->average), c->runs, c->runs);
}

static int is_busy(const dsc_consensus *c) {
    const gossip *g = c->state;
    return g->presented || dsc_average_is_under_way(g->average) || g->average->settling;
}

static double weight(const dsc_consensus *c) {
    const gossip *g = c->state;
    return dsc_average_weight(g->average);
}

static dsc_status adopt(dsc_consensus *c, dsc_queue *queue) {
    (void)queue;
    gossip *g = c->state;
    return dsc_average_restore(g->average, 1, dsc_average_rounds(g->average));
}

static dsc_status set_peers(dsc_consensus *c, int peers) {
    gossip *g = c->state;
    return dsc_average_set_peers(g->average, peers);
}

static const dsc_topology *topology_of(const dsc_consensus *c) {
    const gossip *g = c->state;
    return dsc_average_topology(g->average);
}

static int64_t rounds(const dsc_consensus *c) {
    const gossip *g = c->state;
    return dsc_average_rounds(g->average);
}

static dsc_status restore(dsc_consensus *c, double w, int64_t done) {
    gossip *g = c->state;
    DSC_TRY(dsc_average_restore(g->average, w, done));
    g->most = done;
    g->in_step = 0;
    return DSC_OK;
}

#define GOSSIP_TABLE(label, first, last)                                                                     \
    {                                                                                                        \
        .name = label, .before_forward = first, .update_begin = update_begin, .update_end = last,            \
        .open = open_gossip, .close = close_gossip, .adopt = adopt, .grad_ready = grad_ready,                \
        .after_backward = dsc_consensus_wait_gradients, .settle = settle, .wait = wait_for,                  \
        .is_busy = is_busy, .weight = weight, .rescue = rescue, .set_peers = set_peers, .rounds = rounds,    \
        .restore = restore, .topology = topology_of                                                          \
    }

const dsc_consensus_table dsc_consensus_sgp = GOSSIP_TABLE("sgp", before_forward, update_end);
const dsc_consensus_table dsc_consensus_osgp =
    GOSSIP_TABLE("osgp", before_forward_overlapped, update_end_overlapped);
const dsc_consensus_table dsc_consensus_dpsgd = GOSSIP_TABLE("dpsgd", before_forward, update_end);
