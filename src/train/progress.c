/* Reports of a run: progress events for the caller, and lines of metrics.jsonl. */
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "descent/log.h"
#include "descent/ops.h"
#include "model/graph.h"
#include "train/announce.h"
#include "train/early_stop.h"
#include "train/share.h"
#include "train/trainer_internal.h"
#include "train/warn.h"

#include <stdio.h>

enum { DESCRIPTION_SIZE = 160 };

dsc_progress dsc_trainer_progress(const dsc_trainer *t, dsc_event_kind kind) {
    return (dsc_progress){.kind = kind,
                          .step = t->state.step,
                          .epoch = t->state.epoch,
                          .tokens = dsc_trainer_tokens(t),
                          .positions = t->model ? dsc_model_positions(t->model) : 0,
                          .step_of_epoch = t->state.position / t->step_images,
                          .epoch_steps = t->epoch_steps,
                          .epochs = t->options.epochs};
}

void dsc_trainer_emit(const dsc_trainer *t, const dsc_progress *progress) {
    if (t->rank == 0 && t->options.progress)
        t->options.progress(t->options.progress_context, progress);
}

void dsc_trainer_emit_text(const dsc_trainer *t, dsc_event_kind kind, const char *text) {
    dsc_progress p = dsc_trainer_progress(t, kind);
    p.text = text;
    dsc_trainer_emit(t, &p);
}

int64_t dsc_trainer_tokens(const dsc_trainer *t) {
    return t->model && dsc_model_takes_tokens(t->model) ? dsc_model_positions(t->model) : 0;
}

int dsc_trainer_by_loss(const dsc_trainer *t) {
    return dsc_model_positions(t->model) > 1;
}

static double per_second(int64_t images, double seconds) {
    return seconds > 0 ? (double)images / seconds : 0;
}

/* The model FLOPs utilisation: the share of all ranks' peak, assuming that the others have the same peak as this rank.
 * Forward and backward passes count, optimiser and K-FAC do not. */
static double utilisation(const dsc_trainer *t, double images_per_s) {
    const double passes = 3; /* forward; gradients of inputs and of weights */
    return t->peak > 0 ? images_per_s * passes * dsc_model_flops(t->model) / (t->peak * t->ranks) : 0;
}

static dsc_rate rate_of(const dsc_trainer *t, int64_t images, double seconds) {
    const double images_per_s = per_second(images, seconds);
    return (dsc_rate){.images_per_s = images_per_s, .mfu = utilisation(t, images_per_s)};
}

/* Measures the device's peak, if metrics or a progress function use it. All ranks measure at the same time, as they
 * compute at the same time, so that a device that several ranks share is shared here, too. When there is no memory for
 * the measurement, the run goes on without it. */
static void measure_peak(dsc_trainer *t) {
    if (!t->options.out && !t->options.progress)
        return;
    if (dsc_device_measure_peak(t->queue, dsc_model_value_dtype(t->model), &t->peak) != DSC_OK) {
        t->peak = 0;
        dsc_log(DSC_LOG_INFO, "utilisation is not reported: %s", dsc_error_message());
    }
}

/* Seconds to the end of training, without evaluations. */
static double time_left(const dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    int64_t left = (o->epochs - t->state.epoch) * t->epoch_steps - t->state.position / t->step_images;
    if (o->steps > 0 && o->steps - t->state.step < left)
        left = o->steps - t->state.step;
    return left > 0 ? (double)left * t->smoothed_seconds : 0;
}

/* Steps between two `step` lines. */
static int64_t log_every(const dsc_trainer *t) {
    const int64_t lines = 200; /* of an epoch, where the caller does not say */
    if (t->options.log_every > 0)
        return t->options.log_every;
    return t->epoch_steps > lines ? t->epoch_steps / lines : 1;
}

void dsc_trainer_report_step(dsc_trainer *t) {
    double seconds = t->report.seconds;
    t->process_images += t->step_images;
    t->step_seconds += seconds;
    t->epoch_seconds += seconds;
    t->epoch_images += t->step_images;
    t->smoothed_seconds = t->smoothed_seconds > 0 ? 0.95 * t->smoothed_seconds + 0.05 * seconds : seconds;
    t->load.steps++;
    for (int i = 0; i < DSC_PHASE_COUNT; i++)
        t->load.phase_ms[i] += t->report.phase_ms[i];
    for (int i = 0; i < DSC_TRAFFIC_OTHER; i++)
        t->load.bytes[i] += (double)t->report.bytes[i];
    if (t->report.step % log_every(t) == 0)
        dsc_metrics_step(t->metrics, &t->report, rate_of(t, t->step_images, seconds));
    dsc_progress p = dsc_trainer_progress(t, DSC_EVENT_STEP);
    p.step = t->report.step;
    p.loss = t->report.loss;
    p.lr = t->report.lr;
    p.images_per_s = per_second(t->step_images, t->smoothed_seconds);
    p.mfu = utilisation(t, p.images_per_s);
    p.eta_s = time_left(t);
    dsc_trainer_emit(t, &p);
    dsc_warn_of_loss(t);
}

void dsc_trainer_report_epoch(dsc_trainer *t, int64_t epoch) {
    const dsc_rate rate = rate_of(t, t->epoch_images, t->epoch_seconds);
    dsc_metrics_epoch(t->metrics, &t->state, epoch, t->report.lr, rate);
    dsc_progress p = dsc_trainer_progress(t, DSC_EVENT_EPOCH);
    p.epoch = epoch;
    p.step_of_epoch = t->epoch_steps;
    p.loss = t->state.epoch_loss;
    p.lr = t->report.lr;
    p.images_per_s = rate.images_per_s;
    p.mfu = rate.mfu;
    p.eta_s = time_left(t);
    dsc_trainer_emit(t, &p);
    t->epoch_seconds = 0;
    t->epoch_images = 0;
}

dsc_status dsc_trainer_report_load(dsc_trainer *t, int64_t epoch) {
    const dsc_load own = t->load;
    void *all;
    t->load = (dsc_load){0};
    if (t->ranks == 1 || !t->options.out)
        return DSC_OK;
    DSC_TRY(dsc_share_gather(t->comm, t->queue, DSC_OK, &own, sizeof own, &all));
    dsc_metrics_load(t->metrics, &t->state, epoch, all, t->ranks);
    dsc_memory_free(&all);
    return DSC_OK;
}

void dsc_trainer_report_evaluation(dsc_trainer *t, int64_t epoch, const dsc_evaluation *e) {
    const dsc_eval_result *result = &e->result;
    dsc_metrics_eval(t->metrics, &t->state, epoch, e);
    dsc_progress p = dsc_trainer_progress(t, DSC_EVENT_EVAL);
    p.epoch = epoch;
    p.loss = result->loss;
    p.top1 = result->top1;
    p.top5 = result->top5;
    p.images_per_s = per_second(result->images, result->seconds);
    dsc_trainer_emit(t, &p);
    if (e->has_ema) {
        char text[128];
        snprintf(text, sizeof text,
                 "average of the weights: validation loss %.4f, top-1 %.2f %%, top-5 %.2f %%", e->ema.loss,
                 100 * e->ema.top1, 100 * e->ema.top5);
        dsc_trainer_emit_text(t, DSC_EVENT_NOTE, text);
    }
    dsc_warn_of_accuracy(t, result);
}

void dsc_trainer_fill_result(dsc_trainer *t, dsc_train_result *result) {
    const dsc_train_state *s = &t->state;
    const double own[2] = {s->loss_sum, s->loss_rows}, *sums = t->collective ? own : t->summed_loss;
    result->steps = s->step;
    result->epochs = s->epoch;
    result->train_loss = sums[1] > 0 ? sums[0] / sums[1] : s->epoch_loss;
    result->val_loss = s->val_loss;
    result->top1 = s->top1;
    result->top5 = s->top5;
    result->best_top1 = s->best_top1;
    result->best_loss = s->best_loss;
    result->positions = dsc_model_positions(t->model);
    result->seconds = dsc_clock_now() - t->process_start;
    result->images_per_s = per_second(t->process_images, t->step_seconds);
    result->mfu = utilisation(t, result->images_per_s);
    result->tokens = dsc_trainer_tokens(t);
    result->rank = t->rank;
    result->ranks = t->ranks;
    result->stopped = dsc_early_stop(t);
    result->target_s = result->stopped == DSC_STOP_TARGET ? s->target_s : -1;
}

/* ---- the start ---- */

dsc_status dsc_trainer_report_start(dsc_trainer *t, const char *resumed) {
    char own[DESCRIPTION_SIZE] = "";
    void *text = NULL;
    const char **devices = NULL;
    snprintf(own, sizeof own, "%s", dsc_device_description(t->device));
    measure_peak(t);
    dsc_status status = dsc_memory_alloc(t->ranks, sizeof *devices, &devices);
    status = dsc_share_gather(t->comm, t->queue, status, own, sizeof own, &text);
    if (status == DSC_OK) {
        for (int r = 0; r < t->ranks; r++)
            devices[r] = (const char *)text + (size_t)r * DESCRIPTION_SIZE;
        dsc_run_facts facts = {.ranks = t->ranks,
                               .device = dsc_device_description(t->device),
                               .comm = dsc_comm_description(t->comm),
                               .devices = devices,
                               .parameters = dsc_model_parameter_total(t->model),
                               .flops = dsc_model_flops(t->model),
                               .peak = t->peak,
                               .samples = t->info.count,
                               .epoch_steps = t->epoch_steps,
                               .positions = t->model ? dsc_model_positions(t->model) : 0,
                               .tokens = dsc_trainer_tokens(t),
                               .image_size = t->info.h,
                               .resumed = resumed[0] ? resumed : NULL,
                               .step = t->state.step};
        dsc_metrics_run(t->metrics, &t->options, &facts);
        dsc_announce(t, resumed);
        dsc_warn_of_start(t, resumed);
    }
    dsc_memory_free(&devices);
    dsc_memory_free(&text);
    return status;
}
