/* The K-FAC preconditioner of a run: its scope, its schedules, its creation. */
#include "train/kfac_setup.h"

#include "kfac/kfac_parts.h"

#include "base/error.h"
#include "base/memory.h"
#include "train/checkpoint_directory.h"
#include "train/damping.h"
#include "train/factors.h"
#include "train/finetune.h"
#include "train/safetensors.h"
#include "train/share.h"

#include <math.h>
#include <string.h>

/* ---- schedules ---- */

static double power_at(const double *epochs, int count, double alpha, double epoch) {
    double product = 1;
    for (int i = 0; i < count; i++)
        if (epochs[i] <= epoch)
            product *= alpha;
    return product;
}

/* Returns a frequency times a factor. A frequency of 0, which means never, stays 0. */
static int64_t scaled_frequency(int64_t base, double factor) {
    const double most = 1e15;
    double scaled = round((double)base * factor);
    if (base == 0)
        return 0;
    return scaled < 1 ? 1 : scaled > most ? (int64_t)most : (int64_t)scaled;
}

dsc_kfac_hyper dsc_kfac_setup_hyper(const dsc_train_options *o, dsc_kfac_hyper base, double epoch) {
    double frequency = power_at(o->kfac_update_freq_decay, o->kfac_update_freq_decay_count,
                                o->kfac_update_freq_alpha, epoch);
    base.damping *=
        power_at(o->kfac_damping_decay, o->kfac_damping_decay_count, o->kfac_damping_alpha, epoch);
    base.factor_freq = scaled_frequency(base.factor_freq, frequency);
    base.update_freq = scaled_frequency(base.update_freq, frequency);
    if (epoch < o->kfac_diag_warmup)
        base.diag_blocks = 1;
    return base;
}

/* Applies the epoch schedules, then the caller's own. The epoch is the trainer's, because K-FAC's steps may have begun
 * later. */
static dsc_status schedule(void *context, int64_t step, dsc_kfac_hyper *hyper) {
    const dsc_trainer *t = context;
    const dsc_kfac_options *own = t->options.kfac;
    double share = (double)(t->state.position / t->step_images) / (double)t->epoch_steps;
    *hyper = dsc_kfac_setup_hyper(&t->options, *hyper, (double)t->state.epoch + share);
    hyper->damping = dsc_damping_now(t, hyper->damping);
    return own->schedule ? own->schedule(own->context, step, hyper) : DSC_OK;
}

/* ---- how decompositions are refreshed ---- */

/* Returns 1 if the file was saved with warm refresh: only then does it hold the upkeep of the factors. */
static int has_upkeep(const dsc_st_reader *reader) {
    static const char *const names[] = {"kfac.refresh", "kfac.refresh.shared", "rank.0.kfac.refresh",
                                        "rank.0.kfac.refresh.shared"};
    int found = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        found |= dsc_st_find(reader, names[i]) != NULL;
    return found;
}

/* On rank 0, returns how the run that wrote the checkpoint refreshed its eigenvectors, or `otherwise` if this run does
 * not continue from a checkpoint or the checkpoint has no eigenvectors. Errors in the checkpoint are reported later,
 * when it is loaded. */
static dsc_kfac_refresh find_stored(dsc_trainer *t, dsc_kfac_refresh otherwise) {
    dsc_origin from = {{0}};
    dsc_st_reader *reader = NULL;
    char *path = NULL;
    const char *method = NULL;
    if (dsc_origin_find(t, &from) == DSC_OK && from.path[0] &&
        dsc_checkpoint_state_path(from.path, &path) == DSC_OK && dsc_st_open(path, &reader) == DSC_OK)
        method = dsc_st_metadata(reader, "kfac_method");
    if (method && strcmp(method, dsc_kfac_method_name(DSC_KFAC_EIGEN)) == 0)
        otherwise = has_upkeep(reader) ? DSC_KFAC_WARM : DSC_KFAC_EXACT;
    dsc_st_close(&reader);
    dsc_memory_free(&path);
    return otherwise;
}

dsc_status dsc_kfac_setup_refresh(dsc_trainer *t) {
    dsc_kfac_options *o = &t->settings.kfac;
    if (o->refresh != DSC_KFAC_AUTO)
        return DSC_OK;
    if (o->update_freq == 0) {
        o->refresh = DSC_KFAC_EXACT; /* without K-FAC, metrics and config say exact on every device */
        return DSC_OK;
    }
    dsc_kfac_refresh refresh = dsc_kfac_resolve_refresh(o, t->device);
    if (t->rank == 0 && o->method == DSC_KFAC_EIGEN)
        refresh = find_stored(t, refresh);
    DSC_TRY(dsc_share_bytes(t->comm, t->queue, &refresh, sizeof refresh));
    o->refresh = refresh;
    return DSC_OK;
}

/* ---- creation ---- */

/* Checks K-FAC's scope against the consensus. With gossip every rank has its own gradient, which only a rank that holds
 * all decompositions can precondition. */
static dsc_status check_scope(const dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    const char *scope = dsc_kfac_scope_name(o->kfac_scope), *way = dsc_consensus_name(o->consensus->kind);
    int alone = o->kfac_scope != DSC_SCOPE_GLOBAL;
    if (t->collective && alone)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC's scope %s: with %s all ranks share one gradient and its factors; use global",
                        scope, way);
    if (!t->collective && !alone && t->ranks > 1 && o->kfac->strategy != DSC_KFAC_COMM_OPT)
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC's strategy %s with %s: every rank preconditions a gradient of its own and needs "
            "all decompositions; use comm-opt, or scope gossip or local without a strategy",
            dsc_kfac_strategy_name(o->kfac->strategy), way);
    if (!t->collective && !alone && t->ranks > 1 && o->consensus->synch_freq > 0)
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC's scope global with synch_freq %lld: steps would wait for all ranks, and these "
            "for messages that come some steps later; use scope gossip or local, or synch_freq 0",
            (long long)o->consensus->synch_freq);
    if (!t->collective && !alone && t->ranks > 1 && o->kfac->kl_clip_scaling == DSC_KFAC_CLIP_RANKS)
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC's clip scaled with ranks, with %s: every rank clips a gradient of its own, which "
            "is no mean over the ranks; use kfac-kl-clip-scaling none, or scope gossip or local",
            way);
    if (o->kfac_scope == DSC_SCOPE_GOSSIP && t->ranks > 1 && o->consensus->synch_freq > 0 &&
        strcmp(dsc_comm_name(t->comm), "nccl") == 0)
        return DSC_FAIL(
            DSC_E_UNSUPPORTED,
            "K-FAC's scope gossip with synch_freq %lld over nccl: parameters and factors would leave in "
            "another order on each rank, and NCCL keeps one; use the communicator mpi, scope local, or "
            "synch_freq 0",
            (long long)o->consensus->synch_freq);
    if (alone && t->ranks > 1 && o->consensus->group != 1)
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC's scope %s with groups of ranks (%d): those of a group hold one model, and would "
            "precondition its gradient differently; use scope global or groups of 1",
            scope, o->consensus->group);
    if (o->kfac_scope == DSC_SCOPE_GOSSIP && o->kfac->factor_dtype != DSC_F32)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC's scope gossip averages factors of fp32 only, these are %s; use fp32",
                        dsc_dtype_name(o->kfac->factor_dtype));
    return DSC_OK;
}

/* Finds the ranks that K-FAC works on: all, or this one alone. A rank alone decomposes all layers itself: eigenvectors
 * of one rank's factors mean nothing for another's, so neighbours cannot share that work by averaging results, and to
 * take over each other's results for certain layers they would have to wait for each other. */
static dsc_status find_comm(dsc_trainer *t, dsc_comm **comm) {
    dsc_comm_options self;
    *comm = t->comm;
    if (t->options.kfac_scope == DSC_SCOPE_GLOBAL)
        return DSC_OK;
    dsc_comm_options_init(&self);
    self.kind = "self";
    DSC_TRY(dsc_comm_create(&self, &t->kfac_comm));
    *comm = t->kfac_comm;
    return dsc_comm_use_queue(t->kfac_comm, t->queue);
}

static dsc_status make_kfac(dsc_trainer *t, dsc_comm *comm, const dsc_kfac_layer *layers, int64_t count) {
    dsc_kfac_options o = *t->options.kfac;
    o.schedule = schedule;
    o.context = t;
    o.passes = t->options.batches_per_allreduce;
    if (t->epoch_steps > o.health_steps)
        o.health_steps = t->epoch_steps;
    if (comm != t->comm)
        o.strategy = DSC_KFAC_COMM_OPT; /* on one rank all are equal; this one supports every option */
    o.late_factors = t->options.kfac_scope == DSC_SCOPE_GOSSIP;
    /* Dice is one term for the whole batch and not a likelihood: its factors are scaled as for one term per sample. */
    const int likelihood = t->options.loss != DSC_LOSS_DICE || t->options.kfac_fisher == DSC_FISHER_SAMPLED;
    o.loss_terms = likelihood ? llround(fmax(t->labels, 1)) : 1;
    DSC_TRY(dsc_kfac_create(comm, t->queue, layers, count, &o, &t->kfac));
    return t->beside ? dsc_kfac_capture_beside(t->kfac) : DSC_OK;
}

dsc_status dsc_kfac_setup_create(dsc_trainer *t) {
    dsc_kfac_layer *layers = NULL;
    dsc_comm *comm = NULL;
    int64_t count = 0;
    if (t->options.kfac->update_freq == 0)
        return DSC_OK;
    dsc_status status = check_scope(t);
    if (status == DSC_OK)
        status = dsc_damping_check(t);
    if (status == DSC_OK)
        status = dsc_kfac_setup_layers(t->model, t->options.kfac, &layers, &count);
    if (status == DSC_OK)
        dsc_finetune_leave_out(t, layers, count);
    if (status == DSC_OK)
        status = find_comm(t, &comm);
    status = dsc_comm_agree(t->comm, status);
    if (status == DSC_OK)
        status = dsc_comm_agree(t->comm, make_kfac(t, comm, layers, count));
    if (status == DSC_OK)
        status = dsc_comm_agree(t->comm, dsc_damping_create(t));
    dsc_kfac_layers_free(&layers);
    DSC_TRY(status);
    return dsc_kfac_setup_make_factors(t);
}

dsc_status dsc_kfac_setup_make_factors(dsc_trainer *t) {
    int gossips = t->kfac && t->options.kfac_scope == DSC_SCOPE_GOSSIP && t->ranks > 1;
    if (!gossips || !dsc_kfac_averages(t->kfac)->data)
        return DSC_OK;
    return dsc_factors_create(t->comm, t->queue, t->kfac, t->options.consensus, &t->factors);
}

void dsc_kfac_setup_destroy(dsc_trainer *t) {
    dsc_damping_destroy(t);
    dsc_factors_destroy(&t->factors);
    dsc_kfac_destroy(&t->kfac);
    dsc_comm_destroy(&t->kfac_comm);
}
