/* A run: steps, epochs, evaluations, checkpoints, and its end. */
#include "base/clock.h"
#include "base/error.h"
#include "base/versioned.h"
#include "descent/log.h"
#include "device/scope.h"
#include "kfac/kfac_parts.h"
#include "train/early_stop.h"
#include "train/survive.h"
#include "train/sync.h"
#include "train/trainer_internal.h"
#include "train/warn.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* ---- stopping ---- */

static atomic_int stop_requested;

void dsc_train_request_stop(void) {
    atomic_store(&stop_requested, 1);
}

int dsc_stop_requested(void) {
    return atomic_load(&stop_requested);
}

void dsc_stop_clear(void) {
    atomic_store(&stop_requested, 0);
}

static int stopping(const dsc_trainer *t) {
    return t->report.stop_requested || t->agreed.stop;
}

/* ---- images that cannot be read ---- */

int dsc_trainer_finds_too_many_bad(const dsc_trainer *t) {
    return t->state.bad_images + t->bad.own > t->bad.train.limit;
}

/* 1 when more images than the options allow cannot be read. All ranks get the same result. */
static int too_many_bad(const dsc_trainer *t) {
    return t->state.bad_images > t->bad.train.limit || t->bad.in_val > t->bad.val.limit;
}

dsc_status dsc_trainer_name_bad(dsc_trainer *t) {
    if (t->bad.unnamed == 0)
        return DSC_OK;
    t->bad.unnamed = 0;
    return dsc_bad_images_name(&t->bad.train, t->comm, t->queue);
}

/* Fails, on all ranks alike, when there are too many of them. */
static dsc_status check_bad(const dsc_trainer *t) {
    char checkpoint[DSC_ORIGIN_SIZE + 16] = "";
    if (t->good)
        snprintf(checkpoint, sizeof checkpoint, "checkpoint: %s", t->good);
    DSC_TRY(dsc_bad_images_check(&t->bad.train, t->state.bad_images, checkpoint));
    return dsc_bad_images_check(&t->bad.val, t->bad.in_val, checkpoint);
}

/* ---- progress of the run ---- */

int dsc_trainer_is_done(const dsc_trainer *trainer) {
    const dsc_train_options *o = &trainer->options;
    const dsc_train_state *s = &trainer->state;
    return dsc_trainer_epoch(trainer) >= o->epochs || (o->steps > 0 && s->step >= o->steps) ||
           dsc_early_stop(trainer) != DSC_STOP_NONE;
}

int64_t dsc_trainer_steps(const dsc_trainer *trainer) {
    return trainer->state.step;
}

int64_t dsc_trainer_epoch(const dsc_trainer *trainer) {
    return trainer->state.epoch + dsc_trainer_epoch_done(trainer);
}

int64_t dsc_trainer_last_epoch(const dsc_trainer *t) {
    const dsc_train_state *s = &t->state;
    return s->position > 0 || s->epoch == 0 ? s->epoch : s->epoch - 1;
}

int dsc_trainer_epoch_done(const dsc_trainer *t) {
    return t->state.position + t->step_images > t->info.count;
}

/* NCCL's communicators are destroyed by all of their ranks together. */
static int may_fail_alone(const dsc_trainer *t) {
    return t->ranks > 1 && (!t->collective || strcmp(dsc_comm_name(t->comm), "nccl") == 0);
}

/* 1 when all ranks have stopped at the same step, as asked or because of too many bad images. */
static int stopped_together(const dsc_trainer *t, dsc_status status) {
    return status == DSC_E_INTERRUPTED || (status == DSC_E_FORMAT && too_many_bad(t));
}

/* Once a run has begun, a rank of a gossip run may fail while the others continue. */
static dsc_status note_failure(dsc_trainer *t, dsc_status status) {
    if (status != DSC_OK && !stopped_together(t, status) && may_fail_alone(t))
        t->alone = 1;
    return status;
}

dsc_status dsc_trainer_note_loss(dsc_trainer *t, dsc_status status) {
    return status == DSC_E_LOST ? note_failure(t, status) : status;
}

/* ---- between steps ---- */

dsc_status dsc_trainer_synchronise(dsc_trainer *t) {
    DSC_TRY(dsc_trainer_drain(t));
    return t->collective ? DSC_OK : dsc_sync_synchronise(t);
}

dsc_status dsc_trainer_check(dsc_trainer *t) {
    dsc_status status = dsc_consensus_check(t->consensus, t->queue);
    if (status == DSC_E_NUMERIC)
        dsc_error_prefix(status, "after step %lld (last good checkpoint: %s)", (long long)t->state.step,
                         dsc_trainer_good(t));
    return dsc_comm_agree(t->comm, status);
}

/* Keeps the best numbers so far. Returns whether the evaluation is the best one: of a model that predicts tokens or
 * pixels by its loss, because accuracies there hardly tell models apart, and of others by its accuracy. */
static int note_best(dsc_trainer *t, double loss, double top1) {
    dsc_train_state *s = &t->state;
    const int lower = loss >= 0 && (s->best_loss < 0 || loss < s->best_loss), higher = top1 > s->best_top1;
    if (lower)
        s->best_loss = loss;
    if (higher)
        s->best_top1 = top1;
    return dsc_trainer_by_loss(t) ? lower : higher;
}

/* The numbers of the run that come from an evaluation. With an average of the weights, the better of the two
 * is the step's. */
static void note_evaluation(dsc_trainer *t, const dsc_evaluation *e) {
    dsc_train_state *s = &t->state;
    s->val_loss = e->result.loss;
    s->top1 = e->result.top1;
    s->top5 = e->result.top5;
    s->evaluated_step = s->step;
    if (e->has_ema) {
        s->ema_loss = e->ema.loss;
        s->ema_top1 = e->ema.top1;
        s->ema_top5 = e->ema.top5;
    }
    double top1 = isfinite(s->val_loss) ? s->top1 : -1, loss = isfinite(s->val_loss) ? s->val_loss : -1;
    if (e->has_ema && isfinite(s->ema_loss)) {
        top1 = fmax(top1, s->ema_top1);
        loss = loss < 0 ? s->ema_loss : fmin(loss, s->ema_loss);
    }
    if (!isfinite(s->val_loss))
        dsc_log(DSC_LOG_WARNING,
                "the validation loss of step %lld is not finite: the model overflows on some samples, and "
                "this step is never the best; try a lower learning rate or a longer warm-up",
                (long long)s->step);
    s->stale++;
    if (note_best(t, loss, top1)) {
        s->best_step = s->step;
        s->stale = 0;
        t->save_now = t->options.checkpoint_every >= 0;
    }
}

/* After a synchronisation: evaluates this state and reports it. */
static dsc_status evaluate_now(dsc_trainer *t, int64_t epoch) {
    double began = dsc_clock_now();
    dsc_evaluation e = {
        .has_ranks = t->whole_loader != NULL, .has_consensus = !t->collective, .has_ema = t->ema != NULL};
    DSC_TRY(dsc_trainer_evaluate_mean(t, &e.result));
    t->bad.in_val = e.result.bad_images;
    if (e.has_ema)
        DSC_TRY(dsc_trainer_evaluate_ema(t, &e.ema));
    if (e.has_ranks)
        DSC_TRY(dsc_trainer_evaluate_ranks(t, &e.ranks));
    if (e.has_consensus)
        DSC_TRY(dsc_sync_measure(t, &e.consensus));
    t->state.seconds = dsc_clock_now() - t->start;
    note_evaluation(t, &e);
    dsc_trainer_report_evaluation(t, epoch, &e);
    dsc_trainer_trace(t, "evaluate", began);
    dsc_early_report(t);
    return DSC_OK;
}

/* Waits for the last steps of an epoch. */
static dsc_status settle_epoch(dsc_trainer *t) {
    DSC_TRY(dsc_trainer_synchronise(t));
    return dsc_trainer_name_bad(t);
}

/* Ends the present epoch, which is settled: reports its mean loss and begins the next epoch. */
static dsc_status end_epoch(dsc_trainer *t) {
    int64_t epoch = t->state.epoch;
    const double own[2] = {t->state.loss_sum, t->state.loss_rows};
    const double *sums = t->collective ? own : t->summed_loss;
    if (sums[1] > 0)
        t->state.epoch_loss = sums[0] / sums[1];
    t->state.epoch++;
    t->state.position = 0;
    t->state.loss_sum = t->state.loss_rows = 0;
    t->summed_loss[0] = t->summed_loss[1] = 0;
    dsc_trainer_report_epoch(t, epoch);
    t->state.bad_images = 0;
    return t->collective ? DSC_OK : dsc_sync_set_peers(t);
}

/* ---- one step ---- */

static int due(const dsc_trainer *t, int64_t every) {
    return every > 0 && t->state.step % every == 0;
}

/* Writes a `kfac` line after a decomposition. Collective, unless every rank has a K-FAC of its own: then the
 * line is about rank 0's. */
static dsc_status report_kfac(dsc_trainer *t) {
    const dsc_kfac_report *report;
    DSC_TRY(dsc_trainer_drain(t));
    double began = dsc_clock_now();
    if (t->kfac_comm && t->rank != 0)
        return DSC_OK;
    DSC_TRY(dsc_kfac_get_report(t->kfac, t->queue, &report));
    dsc_metrics_kfac(t->metrics, &t->state, &t->report, report);
    if (t->options.tensorboard) {
        dsc_kfac_spectrum spectrum[2];
        DSC_TRY(dsc_kfac_get_spectrum(t->kfac, t->queue, spectrum));
        dsc_metrics_spectrum(t->metrics, &t->state, spectrum);
    }
    dsc_trainer_trace(t, "kfac report", began);
    return DSC_OK;
}

/* Writes a `consensus` line: how far the ranks are apart. Collective. */
static dsc_status report_distance(dsc_trainer *t) {
    dsc_consensus_report report;
    DSC_TRY(dsc_trainer_synchronise(t));
    DSC_TRY(dsc_sync_measure(t, &report));
    dsc_metrics_consensus(t->metrics, &t->state, dsc_trainer_last_epoch(t), &report);
    return DSC_OK;
}

/* Warns once of each alarm that K-FAC gives. */
static void warn_of_kfac(dsc_trainer *t) {
    const char *message = NULL;
    dsc_kfac_alarm alarm = dsc_kfac_alarm_now(t->kfac, &message);
    if (!message || (t->kfac_warned >> alarm & 1) || t->rank != 0)
        return;
    t->kfac_warned |= 1u << alarm;
    dsc_warn(t, "%s", message);
}

/* A step and what is due right after it. */
static dsc_status step(dsc_trainer *t, const dsc_batch *given) {
    if (dsc_trainer_epoch_done(t)) {
        DSC_TRY(settle_epoch(t));
        DSC_TRY(check_bad(t));
        DSC_TRY(end_epoch(t));
    }
    DSC_TRY(dsc_trainer_take_step(t, given));
    DSC_TRY(dsc_trainer_name_bad(t));
    if (!t->collective)
        DSC_TRY(dsc_sync_signal(t));
    if (t->options.out && t->kfac && dsc_kfac_decomposed(t->kfac))
        DSC_TRY(report_kfac(t));
    if (t->kfac)
        warn_of_kfac(t);
    if (!t->collective && due(t, t->options.distance_every))
        DSC_TRY(report_distance(t));
    int check = t->collective && due(t, t->options.check_every);
    if (check)
        DSC_TRY(dsc_trainer_drain(t));
    if (t->report.metrics_failed || t->agreed.failed)
        return dsc_comm_agree(t->comm, dsc_metrics_status(t->metrics));
    return check ? dsc_trainer_check(t) : DSC_OK;
}

static dsc_status check_report(const dsc_step_report *report) {
    return dsc_versioned_check("dsc_step_report", report, sizeof *report);
}

static void give_report(const dsc_trainer *t, dsc_step_report *report) {
    dsc_step_report newest = t->report;
    newest.stop_requested |= t->agreed.stop;
    newest.metrics_failed |= t->agreed.failed;
    dsc_versioned_write(&newest, report);
}

dsc_status dsc_trainer_step(dsc_trainer *trainer, dsc_step_report *report) {
    DSC_TRY(check_report(report));
    if (!trainer->train_set)
        return DSC_FAIL(DSC_E_INVALID,
                        "this trainer was made without training data: hand in batches (dsc_trainer_step_on)");
    DSC_ON_DEVICE(trainer->device);
    DSC_TRY(dsc_trainer_begin(trainer));
    DSC_TRY(note_failure(trainer, step(trainer, NULL)));
    give_report(trainer, report);
    return check_bad(trainer);
}

/* Checks that a batch of the caller's has the type and size that the step was planned for: a replayed step would not
 * notice a difference. */
static dsc_status check_batch(const dsc_trainer *t, const dsc_tensor *x, const dsc_tensor *labels) {
    const int64_t size = t->options.batch_size, predictions = size * dsc_model_positions(t->model);
    int64_t shape[3];
    if (!x || !labels)
        return DSC_FAIL(DSC_E_INVALID, "a step on a batch: neither x nor labels may be NULL");
    if (x->device != t->device || labels->device != t->device)
        return DSC_FAIL(DSC_E_INVALID, "a step on a batch: x and labels must be on the trainer's device, %s",
                        dsc_device_name(t->device));
    dsc_model_input_shape(t->model, shape);
    if (x->ndim != 4 || x->dim[0] != size || memcmp(x->dim + 1, shape, sizeof shape) != 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "a step on a batch: x has %d dimensions, [%lld,%lld,%lld,%lld], but "
                        "[%lld,%lld,%lld,%lld] is what the trainer was made for",
                        x->ndim, (long long)x->dim[0], (long long)x->dim[1], (long long)x->dim[2],
                        (long long)x->dim[3], (long long)size, (long long)shape[0], (long long)shape[1],
                        (long long)shape[2]);
    if (x->dtype != DSC_F32 && x->dtype != t->options.activations)
        return DSC_FAIL(DSC_E_INVALID, "a step on a batch: x is of type %s, but the model is of %s",
                        dsc_dtype_name(x->dtype), dsc_dtype_name(t->options.activations));
    if (labels->ndim != 1 || labels->dim[0] != predictions || labels->dtype != DSC_I32)
        return DSC_FAIL(DSC_E_INVALID, "a step on a batch: labels must be %lld numbers of type %s",
                        (long long)predictions, dsc_dtype_name(DSC_I32));
    return DSC_OK;
}

dsc_status dsc_trainer_step_on(dsc_trainer *trainer, const dsc_tensor *x, const dsc_tensor *labels,
                               dsc_step_report *report) {
    DSC_TRY(check_report(report));
    if (trainer->options.batches_per_allreduce != 1)
        return DSC_FAIL(DSC_E_INVALID,
                        "a step on one batch with batches-per-allreduce %lld: only 1 is possible",
                        (long long)trainer->options.batches_per_allreduce);
    DSC_TRY(check_batch(trainer, x, labels));
    DSC_ON_DEVICE(trainer->device);
    DSC_TRY(dsc_trainer_begin(trainer));
    const dsc_batch batch = {.x = *x, .labels = *labels};
    DSC_TRY(note_failure(trainer, step(trainer, &batch)));
    give_report(trainer, report);
    return DSC_OK;
}

dsc_status dsc_trainer_finish(dsc_trainer *trainer, dsc_step_report *report) {
    DSC_TRY(check_report(report));
    DSC_TRY(dsc_trainer_begin(trainer));
    DSC_TRY(note_failure(trainer, dsc_trainer_synchronise(trainer)));
    give_report(trainer, report);
    return DSC_OK;
}

void dsc_trainer_time_phases(dsc_trainer *trainer, int on) {
    trainer->phases.timed = on != 0;
}

/* ---- a run ---- */

static dsc_status save(dsc_trainer *t) {
    double began = dsc_clock_now();
    if (!t->options.out)
        return dsc_trainer_synchronise(t);
    DSC_TRY(dsc_trainer_save(t, NULL));
    dsc_trainer_trace(t, "checkpoint", began);
    return DSC_OK;
}

static int checkpoint_due(dsc_trainer *t) {
    int64_t every = t->options.checkpoint_every;
    int now = t->save_now || dsc_trainer_is_done(t) || (t->state.step > 0 && due(t, every));
    t->save_now = 0;
    return now;
}

/* After an epoch the model is evaluated and saved if due; the final model is always evaluated, once. */
static dsc_status loop(dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    for (;;) {
        if (stopping(t) || too_many_bad(t)) {
            DSC_TRY(save(t));
            DSC_TRY(check_bad(t));
            return DSC_FAIL(DSC_E_INTERRUPTED, "stopped after step %lld, as asked; checkpoint: %s",
                            (long long)t->state.step, o->out ? t->good : "none (no output directory)");
        }
        if (dsc_trainer_epoch_done(t)) {
            DSC_TRY(settle_epoch(t));
            if (too_many_bad(t))
                continue;
            DSC_TRY(end_epoch(t));
            DSC_TRY(dsc_trainer_report_load(t, t->state.epoch - 1));
            t->save_now |= o->checkpoint_every == 0;
            if (t->val_exec && t->state.epoch % o->eval_every == 0)
                DSC_TRY(evaluate_now(t, t->state.epoch - 1));
        }
        if (dsc_trainer_is_done(t)) {
            DSC_TRY(dsc_trainer_synchronise(t));
            DSC_TRY(dsc_trainer_name_bad(t));
            if (t->load.steps > 0) /* a part of an epoch, on every rank */
                DSC_TRY(dsc_trainer_report_load(t, dsc_trainer_last_epoch(t)));
            if (t->val_exec && t->state.evaluated_step != t->state.step)
                DSC_TRY(evaluate_now(t, dsc_trainer_last_epoch(t)));
        }
        if (too_many_bad(t))
            continue;
        if (checkpoint_due(t))
            DSC_TRY(save(t));
        if (dsc_trainer_is_done(t))
            return DSC_OK;
        if (!stopping(t)) /* a synchronisation above may have found a request */
            DSC_TRY(step(t, NULL));
    }
}

/* Continues without the ranks that were lost, and repeats an evaluation that was interrupted. */
static dsc_status go_on(dsc_trainer *t) {
    const dsc_train_state *s = &t->state;
    DSC_TRY(dsc_survive(t));
    if (t->val_exec && s->position == 0 && s->epoch > 0 && s->epoch % t->options.eval_every == 0 &&
        s->evaluated_step != s->step)
        DSC_TRY(evaluate_now(t, s->epoch - 1));
    return loop(t);
}

dsc_status dsc_trainer_run(dsc_trainer *trainer, dsc_train_result *result) {
    dsc_trainer *t = trainer;
    dsc_train_result own = {0};
    DSC_TRY(dsc_versioned_check("dsc_train_result", result, sizeof own));
    dsc_trainer_fill_result(t, &own);
    dsc_versioned_write(&own, result);
    if (!t->train_set)
        return DSC_FAIL(DSC_E_INVALID,
                        "this trainer was made without training data: hand in batches (dsc_trainer_step_on)");
    DSC_ON_DEVICE(t->device);
    dsc_status status = dsc_trainer_begin(t);
    if (status == DSC_OK) {
        status = loop(t);
        while (status == DSC_E_LOST && t->options.on_peer_loss == DSC_PEER_LOSS_CONTINUE)
            status = go_on(t);
        status = note_failure(t, status);
    }
    dsc_trainer_fill_result(t, &own);
    const char *text = status == DSC_OK ? "done" : status == DSC_E_INTERRUPTED ? "interrupted" : "failed";
    dsc_metrics_end(t->metrics, text, status == DSC_OK ? NULL : dsc_error_message(), &own,
                    dsc_clock_now() - t->start);
    if (status == DSC_OK)
        status = dsc_comm_agree(t->comm, dsc_metrics_status(t->metrics));
    dsc_status forgotten = stopped_together(t, status) ? dsc_sync_forget_stop(t) : DSC_OK;
    if (forgotten != DSC_OK)
        status = note_failure(t, forgotten);
    dsc_stop_clear(); /* the request was for this run: another call may continue */
    t->report.stop_requested = t->agreed.stop = 0;
    dsc_versioned_write(&own, result);
    return status;
}

dsc_status dsc_train_run(dsc_comm *comm, dsc_device *device, const dsc_train_options *options,
                         dsc_train_result *result) {
    dsc_trainer *t = NULL;
    const dsc_train_result none = {.train_loss = -1,
                                   .val_loss = -1,
                                   .top1 = -1,
                                   .top5 = -1,
                                   .best_top1 = -1,
                                   .best_loss = -1,
                                   .target_s = -1};
    DSC_TRY(dsc_versioned_check("dsc_train_result", result, sizeof none));
    dsc_versioned_write(&none, result);
    dsc_status status = dsc_trainer_create_named(comm, device, options, &t);
    if (status == DSC_OK)
        status = dsc_trainer_run(t, result);
    dsc_trainer_destroy(&t);
    dsc_stop_clear();
    return status;
}
