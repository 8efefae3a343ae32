/* Warnings about a run. */
#include "train/warn.h"

#include "base/memory.h"
#include "data/dataset.h"
#include "descent/log.h"
#include "model/graph.h"
#include "train/model_file.h"
#include "train/trainer_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { NAMED_CLASSES = 3, EVALUATIONS = 3, STEPS = 1000, SMOOTH_STEPS = 20 };

void dsc_warn(const dsc_trainer *t, const char *format, ...) {
    char text[1024];
    va_list arguments;
    if (t->rank != 0)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    dsc_log(DSC_LOG_WARNING, "%s", text);
    dsc_metrics_alarm(t->metrics, &t->state, dsc_trainer_last_epoch(t), text);
}

/* ---- options ---- */

/* The epoch at which the run ends. */
static double last_epoch(const dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    double epochs = (double)o->epochs;
    return o->steps > 0 ? fmin(epochs, (double)o->steps / (double)t->epoch_steps) : epochs;
}

/* Warns of epochs at which an option changes something but which the run does not reach; names the first of them. */
static void check_milestones(const dsc_trainer *t, const char *name, const double *epochs, int count) {
    double end = last_epoch(t);
    for (int i = 0; i < count; i++)
        if (epochs[i] >= end) {
            dsc_warn(t,
                     "%s: epoch %g is never reached, because the run ends after %g; lower it or train longer",
                     name, epochs[i], end);
            return;
        }
}

static void check_schedules(const dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    double peers[DSC_MAX_DECAYS];
    for (int i = 0; i < o->peers_count; i++)
        peers[i] = (double)o->peers_epochs[i];
    if (o->lr_schedule == DSC_SCHEDULE_STEP)
        check_milestones(t, "lr-decay", o->lr_decay, o->lr_decay_count);
    check_milestones(t, "peers-schedule", peers, o->peers_count);
    if (!t->kfac)
        return;
    check_milestones(t, "kfac-damping-decay", o->kfac_damping_decay, o->kfac_damping_decay_count);
    check_milestones(t, "kfac-update-freq-decay", o->kfac_update_freq_decay, o->kfac_update_freq_decay_count);
    if (o->kfac->diag_blocks > 1)
        check_milestones(t, "kfac-diag-warmup", &o->kfac_diag_warmup, 1);
}

static int has_linear_on_sequences(const dsc_model *m) {
    for (int64_t i = 0; i < m->node_count; i++)
        if (m->nodes[i].type == &dsc_layer_linear && !m->nodes[i].shape.flat)
            return 1;
    return 0;
}

static void check_kfac(const dsc_trainer *t) {
    const dsc_kfac_options *k = t->options.kfac;
    if (!t->kfac)
        return;
    if (k->factor_freq > k->update_freq)
        dsc_warn(
            t,
            "kfac-update-freq %lld is below kfac-cov-update-freq %lld: decompositions between two updates "
            "of the factors find them unchanged and are wasted; give %lld or more, or update the factors "
            "more often",
            (long long)k->update_freq, (long long)k->factor_freq, (long long)k->factor_freq);
    dsc_kfac_options usual;
    dsc_kfac_options_init(&usual);
    if (k->strategy != DSC_KFAC_HYBRID_OPT && k->grad_worker_fraction != usual.grad_worker_fraction)
        dsc_warn(t,
                 "kfac-grad-worker-fraction %g has no effect: only the strategy hybrid-opt uses it, not %s",
                 k->grad_worker_fraction, dsc_kfac_strategy_name(k->strategy));
    if (k->tied_head != DSC_KFAC_TIED_SKIP && t->model->tied_count == 0)
        dsc_warn(
            t,
            "kfac-tied-head %s has no effect: no layer of the model shares its weight with a table of tokens",
            dsc_kfac_tied_name(k->tied_head));
    if (k->embeddings && t->model->table_count == 0)
        dsc_warn(t, "kfac-embeddings has no effect: model %s has no embeddings", t->options.model);
    if (k->sharing != usual.sharing && !has_linear_on_sequences(t->model))
        dsc_warn(t, "kfac-sharing %s has no effect: model %s has no linear layers on sequences",
                 dsc_kfac_sharing_name(k->sharing), t->options.model);
}

/* ---- data ---- */

/* Counts how often each class occurs; NULL where labels are not known before samples are read. */
static int64_t *count_classes(const dsc_dataset *data) {
    int64_t *counts = NULL;
    if (!data || !data->type->label ||
        dsc_memory_alloc(data->info.classes, sizeof *counts, &counts) != DSC_OK)
        return NULL;
    for (int64_t i = 0; i < data->info.count; i++) {
        int32_t label = data->type->label(data, i);
        if (label >= 0 && label < data->info.classes)
            counts[label]++;
    }
    return counts;
}

static void add_class(const dsc_dataset *data, int64_t index, char *text, size_t size) {
    size_t used = strlen(text);
    const char *separator = used > 0 ? ", " : "", *name = dsc_dataset_class_name(data, index);
    if (name)
        snprintf(text + used, size - used, "%s'%s'", separator, name);
    else
        snprintf(text + used, size - used, "%s%lld", separator, (long long)index);
}

/* Classes without images; and the share of the largest class of the validation set, which is the accuracy of
 * somebody who guesses. */
static void check_classes(dsc_trainer *t) {
    const dsc_dataset *data = t->val_set;
    char names[512] = "";
    int64_t missing = 0, largest = 0, *counts = count_classes(data);
    t->watch.chance = 1.0 / (double)dsc_output_classes(dsc_model_classes(t->model));
    if (!counts)
        return;
    for (int64_t c = 0; c < data->info.classes; c++) {
        largest = counts[c] > largest ? counts[c] : largest;
        if (counts[c] == 0 && ++missing <= NAMED_CLASSES)
            add_class(data, c, names, sizeof names);
    }
    t->watch.chance = fmax(t->watch.chance, (double)largest / (double)data->info.count);
    if (missing > 0)
        dsc_warn(
            t,
            "%lld of %lld classes have no validation images (%s%s): the accuracy says nothing about them; "
            "add images of each class to the validation set",
            (long long)missing, (long long)data->info.classes, names, missing > NAMED_CLASSES ? ", ..." : "");
    dsc_memory_free(&counts);
}

static void check_files(const dsc_trainer *t, const dsc_dataset *data) {
    if (data && data->passed_over[0])
        dsc_warn(t, "%s", data->passed_over);
}

void dsc_warn_of_start(dsc_trainer *t, const char *resumed) {
    const dsc_consensus_options *c = t->options.consensus;
    t->watch = (dsc_run_watch){.lowest = INFINITY, .loss = NAN};
    if (t->rank != 0)
        return;
    check_schedules(t);
    check_kfac(t);
    if (t->train_set && t->train_set->mask > 0 && dsc_graph_is_causal(t->model))
        dsc_warn(t,
                 "mask %g: model %s sees only the tokens before one that is to be predicted; models that see "
                 "those after it, too, such as bert-base, are made for masked tokens",
                 t->train_set->mask, t->options.model);
    if (t->ranks == 1 && (c->peers > 1 || t->options.peers_count > 0))
        dsc_warn(t,
                 "peers-per-step and peers-schedule have no effect: there is one rank, and it has no peers; "
                 "start more ranks (mpirun -n N)");
    if (resumed[0] && dsc_trainer_is_done(t))
        dsc_warn(
            t,
            "nothing is left to train on %s: '%s' has %lld epochs and %lld steps already; raise epochs or "
            "steps, or start a new run",
            t->options.data, resumed, (long long)t->state.epoch, (long long)t->state.step);
    check_files(t, t->train_set);
    check_files(t, t->val_set);
    check_classes(t);
}

/* ---- results ---- */

/* The loss is smoothed over some steps. It has exploded when it is three times the loss of guessing, ln of the
 * number of classes, or of the first steps; or when it had fallen to half of the loss of guessing and is
 * above it again. */
void dsc_warn_of_loss(dsc_trainer *t) {
    dsc_run_watch *w = &t->watch;
    const double loss = t->report.loss;
    const double guessing = log((double)dsc_output_classes(dsc_model_classes(t->model)));
    if (t->rank != 0 || w->exploded || !isfinite(loss) || !(guessing > 0))
        return;
    w->steps++;
    const double weight = 1.0 / (double)(w->steps < SMOOTH_STEPS ? w->steps : SMOOTH_STEPS);
    w->loss = w->steps == 1 ? loss : (1 - weight) * w->loss + weight * loss;
    w->lowest = fmin(w->lowest, w->loss);
    if (w->steps < SMOOTH_STEPS)
        return;
    if (w->steps == SMOOTH_STEPS)
        w->first = fmax(guessing, fmin(w->loss, 3 * guessing));
    int grown = w->loss > 3 * w->first, lost = w->lowest < 0.5 * guessing && w->loss > guessing;
    if (!grown && !lost)
        return;
    w->exploded = 1;
    dsc_warn(
        t,
        "the loss has grown to %.3g at step %lld, from %.3g; guessing has %.3g: try a lower learning rate, a "
        "longer warm-up or clipping the gradient's norm (clip-norm)%s",
        w->loss, (long long)t->report.step, w->lowest, guessing,
        t->kfac ? ", or a larger damping of K-FAC" : "");
}

/* The best accuracy so far is within three standard deviations of guessing, after several evaluations or many
 * steps. */
void dsc_warn_of_accuracy(dsc_trainer *t, const dsc_eval_result *result) {
    dsc_run_watch *w = &t->watch;
    const double chance = w->chance;
    w->evaluations++;
    if (t->rank != 0 || w->guessing || (w->evaluations < EVALUATIONS && t->state.step < STEPS))
        return;
    double deviation = sqrt(chance * (1 - chance) / (double)(result->labels > 0 ? result->labels : 1));
    if (chance >= 1 || t->state.best_top1 > chance + 3 * deviation)
        return;
    w->guessing = 1;
    dsc_warn(
        t,
        "after %lld steps the accuracy, %.2f %%, is still that of guessing (%.2f %%): try another learning "
        "rate or a longer warm-up, and check that the labels belong to the images",
        (long long)t->state.step, 100 * fmax(t->state.best_top1, 0), 100 * chance);
}
