/* The loop over steps and epochs. */
#include "base/clock.h"
#include "base/error.h"
#include "base/versioned.h"
#include "descent/log.h"
#include "train/gossip.h"
#include "train/start.h"
#include "train/survive.h"
#include "train/trainer.h"

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

static int finished(const dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    return t->state.epoch >= o->epochs || (o->steps > 0 && t->state.step >= o->steps);
}

/* ---- what is told and written ---- */

static double per_second(int64_t images, double seconds) {
    return seconds > 0 ? (double)images / seconds : 0;
}

/* Seconds to the end of training, evaluations left out. */
static double time_left(const dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    int64_t left = (o->epochs - t->state.epoch) * t->epoch_steps - t->state.position / t->step_images;
    if (o->steps > 0 && o->steps - t->state.step < left)
        left = o->steps - t->state.step;
    return left > 0 ? (double)left * t->smoothed : 0;
}

/* Collective, unless every rank has a K-FAC of its own: then of rank 0's. */
static dsc_status write_kfac(dsc_trainer *t) {
    const dsc_kfac_report *report;
    if (t->self && t->rank != 0)
        return DSC_OK;
    DSC_TRY(dsc_kfac_get_report(t->kfac, t->queue, &report));
    dsc_metrics_kfac(t->metrics, &t->state, &t->report, report);
    return DSC_OK;
}

/* Tells of the step that was collected last. */
static void report_step(dsc_trainer *t) {
    double seconds = t->report.seconds;
    if (!t->has_report)
        return;
    t->has_report = 0;
    t->process_images += t->step_images;
    t->step_seconds += seconds;
    t->epoch_seconds += seconds;
    t->epoch_images += t->step_images;
    t->smoothed = t->smoothed > 0 ? 0.95 * t->smoothed + 0.05 * seconds : seconds;
    if (t->report.step % t->options.log_every == 0)
        dsc_metrics_step(t->metrics, &t->report, per_second(t->step_images, seconds));
    dsc_progress p = dsc_trainer_progress(t, DSC_EVENT_STEP);
    p.step = t->report.step;
    p.loss = t->report.loss;
    p.lr = t->report.lr;
    p.images_per_s = per_second(t->step_images, t->smoothed);
    p.eta_s = time_left(t);
    dsc_trainer_tell(t, &p);
}

/* Waits for all steps, so that everything they say is known. */
static dsc_status drain(dsc_trainer *t) {
    while (dsc_stepper_pending(t->stepper) > 0) {
        DSC_TRY(dsc_trainer_collect(t));
        report_step(t);
    }
    return DSC_OK;
}

/* Waits for all steps, and where ranks gossip they meet. */
static dsc_status meet(dsc_trainer *t) {
    DSC_TRY(drain(t));
    return t->collective ? DSC_OK : dsc_gossip_meet(t);
}

static int stopping(const dsc_trainer *t) {
    return t->report.stop || t->agreed.stop;
}

static void report_epoch(dsc_trainer *t, int64_t epoch) {
    double images_per_s = per_second(t->epoch_images, t->epoch_seconds);
    dsc_metrics_epoch(t->metrics, &t->state, epoch, t->report.lr, images_per_s);
    dsc_progress p = dsc_trainer_progress(t, DSC_EVENT_EPOCH);
    p.epoch = epoch;
    p.step_of_epoch = t->epoch_steps;
    p.loss = t->state.epoch_loss;
    p.lr = t->report.lr;
    p.images_per_s = images_per_s;
    p.eta_s = time_left(t);
    dsc_trainer_tell(t, &p);
}

static void report_eval(dsc_trainer *t, int64_t epoch, const dsc_judgement *j) {
    const dsc_eval_result *result = &j->result;
    dsc_metrics_eval(t->metrics, &t->state, epoch, j);
    dsc_progress p = dsc_trainer_progress(t, DSC_EVENT_EVAL);
    p.epoch = epoch;
    p.loss = result->loss;
    p.top1 = result->top1;
    p.top5 = result->top5;
    p.images_per_s = per_second(result->images, result->seconds);
    dsc_trainer_tell(t, &p);
}

/* ---- between steps ---- */

static dsc_status judge(dsc_trainer *t, dsc_judgement *j) {
    DSC_TRY(dsc_trainer_evaluate(t, &j->result));
    j->has_ranks = t->whole_loader != NULL;
    if (j->has_ranks)
        DSC_TRY(dsc_trainer_evaluate_ranks(t, &j->ranks));
    j->has_consensus = !t->collective;
    return j->has_consensus ? dsc_gossip_measure(t, &j->consensus) : DSC_OK;
}

/* After a meeting. */
static dsc_status evaluate_now(dsc_trainer *t, int64_t epoch) {
    dsc_judgement j = {0};
    DSC_TRY(judge(t, &j));
    t->state.seconds = dsc_clock_now() - t->start;
    t->state.val_loss = j.result.loss;
    t->state.top1 = j.result.top1;
    t->state.top5 = j.result.top5;
    t->state.evaluated_step = t->state.step;
    if (!isfinite(j.result.loss))
        dsc_log(DSC_LOG_WARNING,
                "the validation loss of step %lld is not finite: the model overflows on some images, and "
                "this step is never the best; try a lower learning rate or a longer warm-up",
                (long long)t->state.step);
    else if (j.result.top1 > t->state.best_top1) {
        t->state.best_top1 = j.result.top1;
        t->state.best_step = t->state.step;
        t->save_now = t->options.checkpoint_every >= 0;
    }
    report_eval(t, epoch, &j);
    return DSC_OK;
}

/* Sum and number of the losses of the epoch under way, over all ranks. */
static const double *losses(dsc_trainer *t) {
    if (t->collective) {
        t->met_loss[0] = t->state.loss_sum;
        t->met_loss[1] = t->state.loss_rows;
    }
    return t->met_loss;
}

static dsc_status end_epoch(dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    int64_t epoch = t->state.epoch;
    DSC_TRY(meet(t));
    const double *sums = losses(t);
    if (sums[1] > 0)
        t->state.epoch_loss = sums[0] / sums[1];
    t->state.epoch++;
    t->state.position = 0;
    t->state.loss_sum = t->state.loss_rows = 0;
    t->met_loss[0] = t->met_loss[1] = 0;
    report_epoch(t, epoch);
    t->epoch_seconds = 0;
    t->epoch_images = 0;
    if (o->checkpoint_every == 0)
        t->save_now = 1;
    if (o->eval_every > 0 && t->state.epoch % o->eval_every == 0)
        DSC_TRY(evaluate_now(t, epoch));
    return t->collective ? DSC_OK : dsc_gossip_set_peers(t);
}

/* The last state is always evaluated, once. */
static dsc_status evaluate_last(dsc_trainer *t) {
    DSC_TRY(meet(t));
    if (t->options.eval_every == 0 || t->state.evaluated_step == t->state.step)
        return DSC_OK;
    return evaluate_now(t, dsc_trainer_last_epoch(t));
}

static int checkpoint_due(dsc_trainer *t) {
    int64_t every = t->options.checkpoint_every;
    int due = t->save_now || finished(t) || (every > 0 && t->state.step > 0 && t->state.step % every == 0);
    t->save_now = 0;
    return due;
}

static dsc_status measure(dsc_trainer *t) {
    dsc_consensus_report report;
    DSC_TRY(meet(t));
    DSC_TRY(dsc_gossip_measure(t, &report));
    dsc_metrics_consensus(t->metrics, &t->state, dsc_trainer_last_epoch(t), &report);
    return DSC_OK;
}

static dsc_status take_step(dsc_trainer *t) {
    DSC_TRY(dsc_trainer_step(t));
    report_step(t);
    return t->collective ? DSC_OK : dsc_gossip_signal(t);
}

static int due(const dsc_trainer *t, int64_t every) {
    return every > 0 && t->state.step % every == 0;
}

static dsc_status step_once(dsc_trainer *t) {
    DSC_TRY(take_step(t));
    int kfac = t->options.out && t->kfac && dsc_kfac_decomposed(t->kfac);
    int check = t->collective && due(t, t->options.check_every);
    if (kfac || check)
        DSC_TRY(drain(t));
    if (kfac)
        DSC_TRY(write_kfac(t));
    if (!t->collective && due(t, t->options.distance_every))
        DSC_TRY(measure(t));
    if (t->report.failed || t->agreed.failed)
        return dsc_comm_agree(t->comm, dsc_metrics_status(t->metrics));
    return check ? dsc_trainer_check(t) : DSC_OK;
}

static dsc_status save(dsc_trainer *t) {
    DSC_TRY(meet(t));
    return dsc_trainer_save(t);
}

static dsc_status interrupted(dsc_trainer *t) {
    DSC_TRY(save(t));
    return DSC_FAIL(DSC_E_INTERRUPTED, "stopped after step %lld, as asked; checkpoint: %s",
                    (long long)t->state.step,
                    t->options.out ? t->good : "none, there is no output directory");
}

static dsc_status loop(dsc_trainer *t) {
    for (;;) {
        if (stopping(t))
            return interrupted(t);
        if (dsc_trainer_epoch_done(t))
            DSC_TRY(end_epoch(t));
        if (finished(t))
            DSC_TRY(evaluate_last(t));
        if (checkpoint_due(t))
            DSC_TRY(save(t));
        if (finished(t))
            return DSC_OK;
        if (!stopping(t)) /* as a meeting may have told */
            DSC_TRY(step_once(t));
    }
}

/* An evaluation that a loss has broken off is made up for. */
static dsc_status go_on(dsc_trainer *t) {
    const dsc_train_state *s = &t->state;
    int64_t every = t->options.eval_every;
    DSC_TRY(dsc_survive(t));
    if (every > 0 && s->position == 0 && s->epoch > 0 && s->epoch % every == 0 &&
        s->evaluated_step != s->step)
        DSC_TRY(evaluate_now(t, s->epoch - 1));
    return loop(t);
}

/* NCCL's communicators are destroyed by all of their ranks together. */
static int must_not_end_alone(const dsc_trainer *t) {
    return t->ranks > 1 && (!t->collective || strcmp(dsc_comm_name(t->comm), "nccl") == 0);
}

/* A start fails on all ranks, but later on a rank may fail alone. */
static dsc_status train(dsc_trainer *t) {
    DSC_TRY(dsc_trainer_start(t));
    dsc_status status = loop(t);
    while (status == DSC_E_LOST && t->options.on_peer_loss == DSC_PEER_LOSS_CONTINUE)
        status = go_on(t);
    if (status != DSC_OK && status != DSC_E_INTERRUPTED && must_not_end_alone(t))
        t->lost = 1;
    return status;
}

/* ---- a run ---- */

static void fill_result(dsc_trainer *t, dsc_train_result *result) {
    const dsc_train_state *s = &t->state;
    const double *sums = losses(t);
    result->steps = s->step;
    result->epochs = s->epoch;
    result->train_loss = sums[1] > 0 ? sums[0] / sums[1] : s->epoch_loss;
    result->val_loss = s->val_loss;
    result->top1 = s->top1;
    result->top5 = s->top5;
    result->best_top1 = s->best_top1;
    result->seconds = dsc_clock_now() - t->process_start;
    result->images_per_s = per_second(t->process_images, t->step_seconds);
    result->rank = t->rank;
    result->ranks = t->ranks;
}

static dsc_status end_run(dsc_trainer *t, dsc_status status, const dsc_train_result *result) {
    const char *text = status == DSC_OK ? "done" : status == DSC_E_INTERRUPTED ? "interrupted" : "failed";
    dsc_metrics_end(t->metrics, text, status == DSC_OK ? NULL : dsc_error_message(), result,
                    dsc_clock_now() - t->start);
    if (status != DSC_OK)
        return status;
    return dsc_comm_agree(t->comm, dsc_metrics_status(t->metrics));
}

dsc_status dsc_train_run(dsc_comm *comm, dsc_device *device, const dsc_train_options *options,
                         dsc_train_result *result) {
    dsc_trainer *t = NULL;
    dsc_train_result own = {.train_loss = -1, .val_loss = -1, .top1 = -1, .top5 = -1, .best_top1 = -1};
    DSC_TRY(dsc_versioned_check("dsc_train_result", result, sizeof own));
    dsc_status status = dsc_trainer_create(comm, device, options, &t);
    if (status == DSC_OK) {
        status = train(t);
        fill_result(t, &own);
        status = end_run(t, status, &own);
    }
    dsc_versioned_write(&own, result);
    dsc_trainer_destroy(&t);
    dsc_stop_clear();
    return status;
}
