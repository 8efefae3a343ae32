/* Synchronisation of ranks that gossip. */
#include "train/sync.h"

#include "base/error.h"
#include "base/memory.h"
#include "consensus/table.h"
#include "train/factors.h"

/* The numbers that ranks all-reduce: sums at synchronisation points, maxima between them. */
enum { STOP, FAILED, LOSS, ROWS, BAD, SUMS };
enum { INSIDE = FAILED + 1, OUTSIDE, STEP, FLAGS };

typedef enum signal_mode { BY_STEPS, BY_ROUNDS, AT_SYNCHRONISATION } signal_mode;

/* The tensors are in host memory: the host needs their values, and must not wait for a GPU to get them. */
struct dsc_gossip {
    dsc_comm *comm;
    dsc_device *host; /* NULL: the trainer's device is one */
    dsc_tensor flags; /* F64[FLAGS], being reduced while there is a request */
    dsc_tensor sums;  /* F64[SUMS] */
    dsc_request *request;
    signal_mode mode;
    int resting; /* BY_ROUNDS: no more rounds before the next synchronisation point has passed */
    /* The step at which the result of the last round takes effect; -1: at the next synchronisation point. */
    int64_t place;
};

/* After a rank was lost, flags that are being reduced must stay allocated: MPI may still write to them. */
static int must_keep(const dsc_gossip *g) {
    int alarmed = 0;
    return g->request && (dsc_comm_is_alarmed(g->comm, &alarmed) != DSC_OK || alarmed);
}

void dsc_sync_destroy(dsc_gossip **gossip) {
    if (!gossip || !*gossip)
        return;
    dsc_gossip *g = *gossip;
    if (must_keep(g)) {
        dsc_comm_abandon(&g->comm);
        dsc_memory_keep(g);
        *gossip = NULL;
        return;
    }
    dsc_comm_destroy(&g->comm); /* waits for the reduction of flags */
    dsc_tensor_free(&g->flags);
    dsc_tensor_free(&g->sums);
    dsc_device_destroy(&g->host);
    dsc_memory_free(gossip);
}

static dsc_status make(dsc_trainer *t, dsc_gossip *g) {
    const int64_t flags = FLAGS, sums = SUMS;
    dsc_device *device = t->device;
    if (!dsc_device_is_host(device)) {
        dsc_device_options options;
        dsc_device_options_init(&options);
        options.name = "ref";
        options.threads = 1;
        DSC_TRY(dsc_device_create(&options, &g->host));
        device = g->host;
    }
    DSC_TRY(dsc_tensor_alloc(device, DSC_F64, 1, &flags, &g->flags));
    return dsc_tensor_alloc(device, DSC_F64, 1, &sums, &g->sums);
}

static signal_mode choose_mode(const dsc_trainer *t) {
    const dsc_consensus_options *o = t->options.consensus;
    int asynchronous = o->kind == DSC_CONSENSUS_ADPSGD;
    int kfac = t->options.kfac->update_freq > 0 && t->options.kfac_scope == DSC_SCOPE_GLOBAL;
    if (!asynchronous && o->synch_freq == 0)
        return BY_STEPS;
    if (o->group != 1) /* 0: the ranks of a node */
        return AT_SYNCHRONISATION;
    return asynchronous && !kfac && o->average_every == 0 ? BY_ROUNDS : BY_STEPS;
}

dsc_status dsc_sync_create(dsc_trainer *t) {
    if (t->collective)
        return DSC_OK;
    dsc_status status = dsc_memory_alloc(1, sizeof *t->gossip, &t->gossip);
    if (status == DSC_OK) {
        t->gossip->mode = choose_mode(t);
        status = make(t, t->gossip);
    }
    DSC_TRY(dsc_comm_agree(t->comm, status));
    return dsc_comm_split(t->comm, 0, t->rank, &t->gossip->comm);
}

/* ---- signals ---- */

static void own_flags(const dsc_trainer *t, double *flags) {
    flags[STOP] = dsc_stop_requested() || dsc_trainer_finds_too_many_bad(t);
    flags[FAILED] = dsc_metrics_failed(t->metrics);
}

static void take_flags(dsc_trainer *t, const double *flags) {
    t->agreed.stop |= flags[STOP] > 0;
    t->agreed.failed |= flags[FAILED] > 0;
}

static dsc_status begin_flags(dsc_trainer *t, int inside) {
    dsc_gossip *g = t->gossip;
    double *flags = g->flags.data;
    own_flags(t, flags);
    flags[INSIDE] = inside;
    flags[OUTSIDE] = !inside;
    flags[STEP] = (double)t->state.step;
    return dsc_comm_allreduce_begin(g->comm, DSC_TRAFFIC_OTHER, DSC_MAX, &g->flags, &g->request);
}

static dsc_status signal_by_steps(dsc_trainer *t) {
    dsc_gossip *g = t->gossip;
    if (t->state.step % DSC_SIGNAL_STEPS != 0)
        return DSC_OK;
    if (g->request) {
        DSC_TRY(dsc_consensus_wait(t->consensus, t->queue, &g->request));
        take_flags(t, g->flags.data);
    }
    return begin_flags(t, 0);
}

/* Waits for a round with the step of every rank. */
static dsc_status find_place(dsc_trainer *t, int inside) {
    dsc_gossip *g = t->gossip;
    const double *flags = g->flags.data;
    DSC_TRY(begin_flags(t, inside));
    DSC_TRY(dsc_comm_wait(&g->request));
    g->resting = 1;
    g->place = flags[INSIDE] > 0 ? -1 : (int64_t)flags[STEP];
    return DSC_OK;
}

/* After a round: its result is the same on all ranks, so they all decide alike. */
static dsc_status go_round(dsc_trainer *t, int inside) {
    const double *flags = t->gossip->flags.data;
    if (flags[STOP] > 0 || flags[FAILED] > 0)
        return find_place(t, inside);
    return flags[OUTSIDE] > 0 ? begin_flags(t, inside) : DSC_OK;
}

static dsc_status signal_by_rounds(dsc_trainer *t) {
    dsc_gossip *g = t->gossip;
    int done = 0;
    if (!g->resting && !g->request)
        DSC_TRY(begin_flags(t, 0));
    if (!g->resting)
        DSC_TRY(dsc_comm_test(&g->request, &done));
    if (done)
        DSC_TRY(go_round(t, 0));
    if (g->resting && g->place >= 0 && t->state.step >= g->place)
        take_flags(t, g->flags.data);
    return DSC_OK;
}

dsc_status dsc_sync_signal(dsc_trainer *t) {
    signal_mode mode = t->gossip->mode;
    if (mode == BY_STEPS)
        return signal_by_steps(t);
    return mode == BY_ROUNDS ? signal_by_rounds(t) : DSC_OK;
}

/* ---- synchronisation points ---- */

/* Continues rounds until all ranks are at this point. */
static dsc_status end_rounds(dsc_trainer *t) {
    dsc_gossip *g = t->gossip;
    while (g->mode == BY_ROUNDS && g->request) {
        DSC_TRY(dsc_comm_wait(&g->request));
        DSC_TRY(go_round(t, 1));
    }
    return DSC_OK;
}

dsc_status dsc_sync_synchronise(dsc_trainer *t) {
    double *sums = t->gossip->sums.data;
    DSC_TRY(end_rounds(t));
    DSC_TRY(dsc_consensus_settle(t->consensus, t->queue));
    if (t->factors)
        DSC_TRY(dsc_factors_settle(t->factors, t->queue));
    own_flags(t, sums);
    sums[LOSS] = t->state.loss_sum;
    sums[ROWS] = t->state.loss_rows;
    sums[BAD] = (double)t->bad.own;
    DSC_TRY(dsc_comm_allreduce(t->gossip->comm, DSC_TRAFFIC_OTHER, DSC_SUM, &t->gossip->sums));
    take_flags(t, sums);
    t->summed_loss[0] = sums[LOSS];
    t->summed_loss[1] = sums[ROWS];
    t->state.bad_images += (int64_t)sums[BAD];
    t->bad.unnamed += (int64_t)sums[BAD];
    t->bad.own = 0;
    t->gossip->resting = 0;
    return dsc_trainer_name_bad(t);
}

dsc_status dsc_sync_forget_stop(dsc_trainer *t) {
    return t->gossip ? dsc_comm_wait(&t->gossip->request) : DSC_OK;
}

dsc_status dsc_sync_measure(dsc_trainer *t, dsc_consensus_report *report) {
    DSC_TRY(dsc_consensus_distance(t->consensus, t->queue, &report->distance, &report->norm));
    report->weight = dsc_consensus_weight(t->consensus);
    report->rounds = dsc_consensus_rounds(t->consensus);
    return dsc_consensus_mass(t->consensus, &report->mass);
}

/* ---- peers ---- */

static int scheduled_peers(const dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    int peers = o->consensus->peers;
    for (int i = 0; i < o->peers_count && o->peers_epochs[i] <= t->state.epoch; i++)
        peers = o->peers_values[i];
    return peers;
}

static dsc_status use_peers(dsc_trainer *t, int peers) {
    if (peers == t->peers)
        return DSC_OK;
    DSC_TRY(dsc_consensus_set_peers(t->consensus, peers));
    if (t->factors)
        DSC_TRY(dsc_factors_set_peers(t->factors, peers));
    t->peers = peers;
    return DSC_OK;
}

dsc_status dsc_sync_set_peers(dsc_trainer *t) {
    return use_peers(t, scheduled_peers(t));
}

dsc_status dsc_sync_start_peers(dsc_trainer *t) {
    for (int i = 0; i < t->options.peers_count; i++)
        DSC_TRY(use_peers(t, t->options.peers_values[i]));
    return dsc_sync_set_peers(t);
}
