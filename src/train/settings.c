/* Options of training and evaluation: defaults and checks. */
#include "train/settings.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/versioned.h"
#include "descent/model.h"

#include <math.h>
#include <string.h>

void dsc_train_options_init_sized(dsc_train_options *options, size_t size) {
    const dsc_train_options defaults = {
        .model = "resnet20",
        .data = "synthetic",
        .epochs = 100,
        .batch_size = 128,
        .seed = 42,
        .data_threads = 1,
        .augment = 1,
        .lr = 0.1,
        .lr_schedule = DSC_SCHEDULE_STEP,
        .warmup_epochs = 5,
        .warmup_start = -1,
        .lr_scaling = 1,
        .lr_decay_rate = 0.1,
        .batches_per_allreduce = 1,
        .keep = 2,
        .eval_every = 1,
        .log_every = 1,
        .check_every = 500,
        .epoch_steps = 1000,
        .kfac_damping_alpha = 0.5,
        .kfac_update_freq_alpha = 10,
    };
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}

static const char *const fisher_names[] = {"empirical", "sampled"};

dsc_status dsc_fisher_parse(const char *name, dsc_fisher *out) {
    for (int i = 0; name && i < 2; i++) {
        if (strcmp(name, fisher_names[i]) == 0) {
            *out = (dsc_fisher)i;
            return DSC_OK;
        }
    }
    return DSC_FAIL(DSC_E_INVALID, "Fisher matrix '%s': known are empirical and sampled",
                    name ? name : "(null)");
}

const char *dsc_fisher_name(dsc_fisher fisher) {
    return fisher_names[fisher == DSC_FISHER_SAMPLED];
}

static const char *const scope_names[] = {"global", "gossip", "local"};

dsc_status dsc_kfac_scope_parse(const char *name, dsc_kfac_scope *out) {
    for (int i = 0; name && i < 3; i++) {
        if (strcmp(name, scope_names[i]) == 0) {
            *out = (dsc_kfac_scope)i;
            return DSC_OK;
        }
    }
    return DSC_FAIL(DSC_E_INVALID, "scope of K-FAC '%s': known are global, gossip and local",
                    name ? name : "(null)");
}

const char *dsc_kfac_scope_name(dsc_kfac_scope scope) {
    return (int)scope >= 0 && (int)scope < 3 ? scope_names[scope] : "unknown";
}

void dsc_eval_options_init_sized(dsc_eval_options *options, size_t size) {
    const dsc_eval_options defaults = {.batch_size = 128, .seed = DSC_SEED_OF_CHECKPOINT, .data_threads = 1};
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}

static dsc_status at_least(const char *name, int64_t value, int64_t limit) {
    if (value < limit)
        return DSC_FAIL(DSC_E_INVALID, "%s %lld: must be %lld at least", name, (long long)value,
                        (long long)limit);
    return DSC_OK;
}

static dsc_status finite_at_least(const char *name, double value, double limit) {
    if (!isfinite(value) || value < limit)
        return DSC_FAIL(DSC_E_INVALID, "%s %g: must be a number, %g at least", name, value, limit);
    return DSC_OK;
}

static dsc_status check_counts(const dsc_train_options *o) {
    DSC_TRY(at_least("epochs", o->epochs, 1));
    DSC_TRY(at_least("steps", o->steps, 0));
    DSC_TRY(at_least("batch size", o->batch_size, 1));
    DSC_TRY(at_least("validation batch size", o->val_batch_size, 0));
    DSC_TRY(at_least("image size", o->image_size, 0));
    DSC_TRY(at_least("data threads", o->data_threads, 1));
    DSC_TRY(at_least("batches per all-reduce", o->batches_per_allreduce, 1));
    DSC_TRY(at_least("checkpoints to keep", o->keep, 0));
    DSC_TRY(at_least("epochs between evaluations", o->eval_every, 0));
    DSC_TRY(at_least("steps between lines of the log", o->log_every, 1));
    DSC_TRY(at_least("steps of an epoch", o->epoch_steps, 1));
    return at_least("steps between checks", o->check_every, 0);
}

static dsc_status check_epochs(const char *name, const double *epochs, int count) {
    if (count < 0 || count > DSC_MAX_DECAYS)
        return DSC_FAIL(DSC_E_INVALID, "%d %s: 0 to %d are allowed", count, name, DSC_MAX_DECAYS);
    for (int i = 0; i < count; i++)
        DSC_TRY(finite_at_least(name, epochs[i], 0));
    return DSC_OK;
}

static dsc_status check_rates(const dsc_train_options *o) {
    DSC_TRY(finite_at_least("learning rate", o->lr, 0));
    DSC_TRY(finite_at_least("warm-up epochs", o->warmup_epochs, 0));
    if (!isfinite(o->warmup_start))
        return DSC_FAIL(DSC_E_INVALID, "start of the warm-up %g: must be a number", o->warmup_start);
    DSC_TRY(finite_at_least("decay of the learning rate", o->lr_decay_rate, 0));
    DSC_TRY(check_epochs("epochs of decay", o->lr_decay, o->lr_decay_count));
    if (!(o->label_smoothing >= 0 && o->label_smoothing < 1))
        return DSC_FAIL(DSC_E_INVALID, "label smoothing %g: must be in [0, 1)", o->label_smoothing);
    return DSC_OK;
}

static dsc_status check_alpha(const char *name, double alpha) {
    if (!isfinite(alpha) || alpha <= 0)
        return DSC_FAIL(DSC_E_INVALID, "%s %g: must be a number above 0", name, alpha);
    return DSC_OK;
}

/* The rest of kfac's options is checked where they are used. */
static dsc_status check_kfac(const dsc_train_options *o) {
    DSC_TRY(at_least("steps between decompositions of K-FAC", o->kfac->update_freq, 0));
    DSC_TRY(check_alpha("K-FAC's alpha of the damping", o->kfac_damping_alpha));
    DSC_TRY(check_alpha("K-FAC's alpha of the frequencies", o->kfac_update_freq_alpha));
    DSC_TRY(
        check_epochs("epochs of the damping's decay", o->kfac_damping_decay, o->kfac_damping_decay_count));
    DSC_TRY(check_epochs("epochs of the frequencies' decay", o->kfac_update_freq_decay,
                         o->kfac_update_freq_decay_count));
    DSC_TRY(finite_at_least("warm-up of the diagonal blocks", o->kfac_diag_warmup, 0));
    if (o->kfac_fisher != DSC_FISHER_EMPIRICAL && o->kfac_fisher != DSC_FISHER_SAMPLED)
        return DSC_FAIL(DSC_E_INVALID, "Fisher matrix %d: known are empirical (%d) and sampled (%d)",
                        (int)o->kfac_fisher, DSC_FISHER_EMPIRICAL, DSC_FISHER_SAMPLED);
    if ((int)o->kfac_scope < DSC_SCOPE_GLOBAL || (int)o->kfac_scope > DSC_SCOPE_LOCAL)
        return DSC_FAIL(DSC_E_INVALID, "scope of K-FAC %d: known are global (%d), gossip (%d) and local (%d)",
                        (int)o->kfac_scope, DSC_SCOPE_GLOBAL, DSC_SCOPE_GOSSIP, DSC_SCOPE_LOCAL);
    return DSC_OK;
}

/* The rest of the consensus' options is checked where they are used. */
static dsc_status check_gossip(const dsc_train_options *o) {
    if (o->peers_count < 0 || o->peers_count > DSC_MAX_DECAYS)
        return DSC_FAIL(DSC_E_INVALID, "%d entries of the peers' schedule: 0 to %d are allowed",
                        o->peers_count, DSC_MAX_DECAYS);
    for (int i = 0; i < o->peers_count; i++) {
        DSC_TRY(
            at_least("epoch of the peers' schedule", o->peers_epochs[i], i ? o->peers_epochs[i - 1] + 1 : 0));
        DSC_TRY(at_least("peers of the schedule", o->peers_values[i], 1));
    }
    if (o->peers_count > 0 && o->consensus->kind == DSC_CONSENSUS_ALLREDUCE)
        return DSC_FAIL(DSC_E_INVALID, "a schedule of peers: allreduce has none; leave it out, or gossip");
    return at_least("steps between distances of the ranks", o->distance_every, 0);
}

static dsc_status check_peer_loss(const dsc_train_options *o) {
    const dsc_consensus_options *c = o->consensus;
    if (o->on_peer_loss != DSC_PEER_LOSS_STOP && o->on_peer_loss != DSC_PEER_LOSS_CONTINUE)
        return DSC_FAIL(DSC_E_INVALID,
                        "what to do when a rank is lost %d: known are stop (%d), continue (%d)",
                        (int)o->on_peer_loss, DSC_PEER_LOSS_STOP, DSC_PEER_LOSS_CONTINUE);
    if (o->on_peer_loss == DSC_PEER_LOSS_STOP)
        return DSC_OK;
    if (c->kind == DSC_CONSENSUS_ALLREDUCE)
        return DSC_FAIL(DSC_E_INVALID, "going on without a lost rank: allreduce needs all ranks in every "
                                       "step; use one of sgp, osgp, dpsgd, adpsgd");
    if (!(c->peer_timeout > 0))
        return DSC_FAIL(DSC_E_INVALID,
                        "going on without a lost rank: a rank is lost when it was silent for peer_timeout "
                        "seconds, and that is %g: set it",
                        c->peer_timeout);
    if (c->group != 1)
        return DSC_FAIL(DSC_E_INVALID,
                        "going on without a lost rank: the others of its group (%d ranks) cannot; use groups "
                        "of 1",
                        c->group);
    if (o->kfac->update_freq > 0 && o->kfac_scope == DSC_SCOPE_GLOBAL)
        return DSC_FAIL(DSC_E_INVALID, "going on without a lost rank: K-FAC's scope global needs all ranks; "
                                       "use scope gossip or local");
    return DSC_OK;
}

static dsc_status check(dsc_train_options *o) {
    if (!o->model || !o->data)
        return DSC_FAIL(DSC_E_INVALID, "neither model nor data may be NULL");
    if (o->resume && strcmp(o->resume, "auto") == 0 && !o->out)
        return DSC_FAIL(DSC_E_INVALID, "resume 'auto' looks in the output directory, and none was given");
    DSC_TRY(check_counts(o));
    DSC_TRY(check_rates(o));
    DSC_TRY(check_kfac(o));
    DSC_TRY(check_gossip(o));
    DSC_TRY(check_peer_loss(o));
    if (o->image_size > 0)
        return DSC_OK;
    int64_t channels, classes;
    return dsc_zoo_default_input(o->model, &o->image_size, &channels, &classes);
}

static dsc_status copy_strings(dsc_settings *s) {
    const char **const strings[DSC_SETTINGS_STRINGS] = {
        &s->train.model,  &s->train.data,      &s->train.out,
        &s->train.resume, &s->consensus.graph, &s->kfac.skip_layers,
    };
    for (int i = 0; i < DSC_SETTINGS_STRINGS; i++) {
        if (!*strings[i])
            continue;
        DSC_TRY(dsc_memory_strdup(*strings[i], &s->strings[i]));
        *strings[i] = s->strings[i];
    }
    return DSC_OK;
}

dsc_status dsc_settings_read(const dsc_train_options *given, dsc_settings *out) {
    memset(out, 0, sizeof *out);
    dsc_train_options_init(&out->train);
    dsc_optim_options_init(&out->optim);
    dsc_consensus_options_init(&out->consensus);
    dsc_kfac_options_init(&out->kfac);
    DSC_TRY(dsc_versioned_read("train", given, sizeof out->train, &out->train));
    DSC_TRY(dsc_versioned_read("optim", out->train.optim, sizeof out->optim, &out->optim));
    DSC_TRY(dsc_versioned_read("consensus", out->train.consensus, sizeof out->consensus, &out->consensus));
    DSC_TRY(dsc_versioned_read("kfac", out->train.kfac, sizeof out->kfac, &out->kfac));
    if (!out->train.kfac)
        out->kfac.update_freq = 0;
    out->train.optim = &out->optim;
    out->train.consensus = &out->consensus;
    out->train.kfac = &out->kfac;
    DSC_TRY(copy_strings(out));
    return check(&out->train);
}

void dsc_settings_clear(dsc_settings *settings) {
    for (int i = 0; i < DSC_SETTINGS_STRINGS; i++)
        dsc_memory_free(&settings->strings[i]);
}
