/* Continuing without ranks that were lost. */
#include "train/survive.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "comm/table.h"
#include "consensus/table.h"
#include "descent/log.h"
#include "train/factors.h"
#include "train/kfac_setup.h"
#include "train/share.h"
#include "train/sync.h"

#include <stdio.h>
#include <string.h>

dsc_status dsc_survive_prepare(dsc_trainer *t) {
    if (t->options.on_peer_loss != DSC_PEER_LOSS_CONTINUE || t->ranks == 1)
        return DSC_OK;
    if (!t->comm->owns_watch)
        return DSC_FAIL(DSC_E_INVALID,
                        "going on without a lost rank: communicator '%s' cannot; create it with "
                        "dsc_comm_options.survive = 1",
                        dsc_comm_name(t->comm));
    return dsc_comm_set_timeout(t->comm, t->options.consensus->peer_timeout);
}

/* ---- ending the work with the lost ranks ---- */

/* The model then holds this rank's own values, and nothing is under way on the device. */
static dsc_status stop_work(dsc_trainer *t) {
    DSC_TRY(dsc_queue_sync(t->queue));
    while (t->results && dsc_results_pending(t->results) > 0)
        DSC_TRY(dsc_trainer_collect(t));
    if (t->results)
        DSC_TRY(dsc_loss_scale_get(&t->loss_scale, t->queue, t->state.loss_scale));
    DSC_TRY(dsc_ema_swap_out(t));
    if (t->consensus)
        DSC_TRY(dsc_consensus_rescue(t->consensus, t->queue));
    DSC_TRY(dsc_trainer_recover_buffers(t));
    return dsc_queue_sync(t->queue);
}

/* Destroys the parts that depend on the number of ranks. After the alarm nothing waits for other ranks, and memory that
 * messages may still touch is kept. */
static void take_apart(dsc_trainer *t) {
    dsc_trainer_free_step(t);
    dsc_factors_destroy(&t->factors);
    dsc_sync_destroy(&t->gossip);
    dsc_consensus_destroy(&t->consensus);
    dsc_trainer_free_swapped(t);
}

static dsc_status change_ranks(dsc_trainer *t, dsc_comm *next) {
    dsc_comm_abandon(&t->survivors);
    t->comm = t->survivors = next;
    t->rank = dsc_comm_rank(next);
    t->ranks = dsc_comm_size(next);
    return dsc_comm_use_queue(next, t->queue);
}

/* ---- where the run stands ---- */

typedef struct place {
    dsc_train_state state;
    int64_t stop;
    int64_t kfac_step; /* K-FAC's own step, which decides when it updates and decomposes; 0 without K-FAC */
} place;

/* K-FAC is the rank's own here, so dsc_kfac_state_get and _set involve no other rank. */
static int64_t find_kfac_step(const dsc_kfac *kfac) {
    const dsc_kfac_entry *entries = dsc_kfac_state_entries(kfac);
    int64_t i = 0;
    while (strcmp(entries[i].name, "step") != 0)
        i++;
    return i;
}

static dsc_status get_kfac_step(const dsc_trainer *t, int64_t *step) {
    *step = 0;
    return t->kfac ? dsc_kfac_state_get(t->kfac, t->queue, find_kfac_step(t->kfac), step) : DSC_OK;
}

static dsc_status set_kfac_step(const dsc_trainer *t, int64_t step) {
    return t->kfac ? dsc_kfac_state_set(t->kfac, t->queue, find_kfac_step(t->kfac), &step) : DSC_OK;
}

/* 1 when a is further than b. */
static int is_further(const dsc_train_state *a, const dsc_train_state *b) {
    const int64_t keys[][2] = {{a->step, b->step},
                               {a->epoch, b->epoch},
                               {a->position, b->position},
                               {a->evaluated_step, b->evaluated_step}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i][0] != keys[i][1])
            return keys[i][0] > keys[i][1];
    return 0;
}

/* Takes over the progress of the furthest rank. Time and loss scale stay this rank's own, and so do the
 * losses of the epoch, unless it has ended for that rank. The flag for failed metrics is cleared, because a
 * lost rank may have set it; the remaining ranks set theirs again. */
static dsc_status take_place(dsc_trainer *t, const place *places) {
    const dsc_train_state own = t->state;
    const place *best = &places[0];
    for (int r = 0; r < t->ranks; r++) {
        if (is_further(&places[r].state, &best->state))
            best = &places[r];
        t->agreed.stop |= places[r].stop != 0;
    }
    t->agreed.failed = 0;
    t->state = best->state;
    int same = own.epoch == best->state.epoch;
    t->state.loss_sum = same ? own.loss_sum : 0;
    t->state.loss_rows = same ? own.loss_rows : 0;
    t->state.seconds = dsc_clock_now() - t->start;
    memcpy(t->state.loss_scale, own.loss_scale, sizeof own.loss_scale);
    t->state.ema_weight = own.ema_weight;
    return set_kfac_step(t, best->kfac_step);
}

/* All ranks continue from the step of the furthest one. Collective. */
static dsc_status find_place(dsc_trainer *t) {
    place own = {.state = t->state, .stop = t->agreed.stop};
    void *places;
    dsc_status status = get_kfac_step(t, &own.kfac_step);
    status = dsc_share_gather(t->comm, t->queue, status, &own, sizeof own, &places);
    if (status == DSC_OK)
        status = take_place(t, places);
    dsc_memory_free(&places);
    t->saved_step = -1; /* some ranks may not know of the last checkpoint */
    t->save_now = t->options.checkpoint_every >= 0 && t->state.position == 0 && t->state.epoch > 0;
    return status;
}

/* ---- starting again ---- */

/* Each rank starts with its own values, except with exact averages, which need the same start on all ranks. */
static dsc_status start_values(dsc_trainer *t) {
    if (t->options.consensus->average_every == 0)
        return DSC_OK;
    DSC_TRY(dsc_consensus_mean_in_place(t->consensus, t->queue, DSC_TRAFFIC_PARAMETERS));
    return dsc_slow_start(t->consensus, t->queue);
}

static dsc_status make_gossip(dsc_trainer *t) {
    DSC_TRY(dsc_trainer_make_consensus(t));
    DSC_TRY(dsc_kfac_setup_make_factors(t));
    return dsc_comm_agree(t->comm, dsc_sync_start_peers(t));
}

/* Makes the gossip; a graph that is not possible with fewer ranks is replaced by the default one, which always is. */
static dsc_status make_gossip_somehow(dsc_trainer *t) {
    dsc_consensus_options *o = &t->settings.consensus;
    char text[512];
    dsc_status status = make_gossip(t);
    int plain = !o->graph && o->peers == 1 && t->options.peers_count == 0;
    if (status != DSC_E_INVALID || plain)
        return status;
    snprintf(text, sizeof text,
             "%d ranks are left, and the graph cannot stay (%.300s): from now on the default graph, "
             "1 peer a step",
             t->ranks, dsc_error_message());
    dsc_factors_destroy(&t->factors);
    dsc_consensus_destroy(&t->consensus);
    o->graph = NULL;
    o->peers = 1;
    t->options.peers_count = 0;
    DSC_TRY(make_gossip(t));
    dsc_trainer_emit_text(t, DSC_EVENT_NOTE, text);
    return DSC_OK;
}

/* The first of the remaining ranks writes the files. A rank that was given up as lost but still runs may hold the
 * lock. */
static dsc_status open_metrics(dsc_trainer *t) {
    if (t->rank != 0 || !t->options.out || t->metrics)
        return DSC_OK;
    if (dsc_lock_take(t->options.out, &t->lock) != DSC_OK)
        dsc_log(DSC_LOG_WARNING, "%s", dsc_error_message());
    return dsc_metrics_open(t->options.out, 1, &t->metrics);
}

static dsc_status put_together(dsc_trainer *t) {
    dsc_status status = find_place(t);
    if (status == DSC_OK)
        status = dsc_trainer_spread(t);
    DSC_TRY(dsc_comm_agree(t->comm, status));
    status = make_gossip_somehow(t);
    if (status != DSC_OK)
        dsc_error_prefix(status, "%d of %d ranks remain, and cannot continue", t->ranks, t->reported_ranks);
    DSC_TRY(status);
    DSC_TRY(dsc_sync_create(t));
    DSC_TRY(start_values(t));
    DSC_TRY(dsc_trainer_make_step(t));
    DSC_TRY(dsc_loss_scale_set(&t->loss_scale, t->queue, t->state.loss_scale));
    return dsc_comm_agree(t->comm, open_metrics(t));
}

static dsc_status report(dsc_trainer *t) {
    int lost = t->reported_ranks - t->ranks;
    double mass = 0;
    char text[160];
    DSC_TRY(dsc_consensus_mass(t->consensus, &mass));
    dsc_metrics_ranks(t->metrics, &t->state, t->ranks, lost, mass);
    snprintf(text, sizeof text, "%d rank%s lost after step %lld of epoch %lld: %d go on", lost,
             lost == 1 ? " was" : "s were", (long long)t->state.step, (long long)t->state.epoch, t->ranks);
    dsc_trainer_emit_text(t, DSC_EVENT_NOTE, text);
    t->reported_ranks = t->ranks;
    return DSC_OK;
}

dsc_status dsc_survive(dsc_trainer *t) {
    dsc_comm *next = NULL;
    t->alone = 1; /* until all is well again */
    DSC_TRY(stop_work(t));
    dsc_status status = dsc_comm_survivors(t->comm, t->options.consensus->peer_timeout, &next);
    if (status != DSC_OK)
        dsc_metrics_close(&t->metrics); /* it may be another's by now */
    DSC_TRY(status);
    take_apart(t);
    DSC_TRY(change_ranks(t, next));
    DSC_TRY(put_together(t));
    DSC_TRY(report(t));
    t->alone = 0;
    return DSC_OK;
}
