/* One training step of a run: its input, its place in the schedules, and what came out of it. The work itself
 * is stepper.c's. */
#include "base/clock.h"
#include "base/error.h"
#include "train/trainer.h"

#include <math.h>
#include <string.h>

/* The loader goes from batch to batch by itself; it is only told where to go when the run is elsewhere: after
 * a resume, and behind an epoch that leaves whole batches over. */
static dsc_status next_batch(dsc_trainer *t, int64_t micro, dsc_batch *batch) {
    int64_t global = t->options.batch_size * t->ranks;
    int64_t position = t->state.position + micro * global;
    if (t->loader_epoch != t->state.epoch || t->loader_position != position)
        DSC_TRY(dsc_loader_seek(t->loader, t->state.epoch, position));
    DSC_TRY(dsc_loader_next(t->loader, t->queue, batch));
    if (batch->epoch != t->state.epoch || batch->position != position)
        return DSC_FAIL(DSC_E_INTERNAL, "the loader gave sample %lld of epoch %lld instead of %lld of %lld",
                        (long long)batch->position, (long long)batch->epoch, (long long)position,
                        (long long)t->state.epoch);
    t->loader_epoch = batch->epoch;
    t->loader_position = position + global;
    if (t->loader_position + global > t->info.count) {
        t->loader_epoch++;
        t->loader_position = 0;
    }
    return DSC_OK;
}

/* The rate depends on the place in the epoch, not on the number of steps so far: a run that goes on with
 * another number of ranks stays on its schedule. */
static double current_rate(const dsc_trainer *t) {
    int64_t step = t->state.epoch * t->epoch_steps + t->state.position / t->step_images;
    return dsc_schedule_rate(&t->schedule, step);
}

static dsc_step_report *report_of(dsc_trainer *t, int64_t step) {
    return &t->pending[step % 2];
}

/* ---- what came out ---- */

static dsc_status refuse(const dsc_trainer *t, const dsc_step_results *r) {
    const char *good = t->good ? t->good : "none";
    if (!isfinite(r->loss_sum))
        return DSC_FAIL(
            DSC_E_NUMERIC,
            "the loss of step %lld is %s and nothing was updated (last good checkpoint: %s): try a "
            "lower learning rate, a longer warm-up or clipping the gradient's norm",
            (long long)t->report.step, isnan(r->loss_sum) ? "not a number" : "infinite", good);
    return DSC_FAIL(
        DSC_E_NUMERIC,
        "step %lld (last good checkpoint: %s): K-FAC: a gradient or its preconditioned form is not "
        "finite; nothing was updated",
        (long long)t->report.step, good);
}

/* In collective steps every rank sees the same sums, so all stop or none, and a loss that is not finite makes
 * the sum so. With gossip they are the rank's own: stopping is agreed on elsewhere, and a rank whose loss is
 * not finite fails alone. */
dsc_status dsc_trainer_collect(dsc_trainer *t) {
    dsc_step_results r;
    if (dsc_stepper_pending(t->stepper) == 0)
        return DSC_OK;
    int64_t step = t->state.step - dsc_stepper_pending(t->stepper);
    DSC_TRY(dsc_stepper_collect(t->stepper, &r));
    t->report = *report_of(t, step);
    t->report.loss = r.loss_sum / r.rows;
    t->report.stop = t->collective && r.stop > 0;
    t->report.failed = t->collective && r.failed > 0;
    t->report.nu = r.nu;
    t->report.loss_scale = r.loss_scale;
    t->report.skipped = r.skip == 1;
    t->report.seconds = r.seconds;
    memcpy(t->report.ms, r.ms, sizeof r.ms);
    if (!isfinite(r.loss_sum) || r.skip == 2)
        return refuse(t, &r);
    t->state.loss_sum += r.loss_sum;
    t->state.loss_rows += r.rows;
    t->report.time = t->state.seconds = dsc_clock_now() - t->start;
    t->has_report = 1;
    return DSC_OK;
}

/* ---- a step ---- */

static dsc_status put_into_queue(dsc_trainer *t, dsc_step_report *report) {
    int64_t batch = t->options.batch_size;
    DSC_TRY(dsc_stepper_begin(t->stepper, report->lr, dsc_stop_requested(), dsc_metrics_failed(t->metrics)));
    for (int64_t micro = 0; micro < t->options.batches_per_allreduce; micro++) {
        dsc_batch samples;
        DSC_TRY(next_batch(t, micro, &samples));
        DSC_TRY(dsc_stepper_micro(t->stepper, t->state.step, (micro * t->ranks + t->rank) * batch, &samples.x,
                                  &samples.labels));
    }
    dsc_status status = dsc_stepper_end(t->stepper);
    if (status == DSC_E_NUMERIC)
        dsc_error_prefix(status, "step %lld (last good checkpoint: %s)", (long long)t->state.step + 1,
                         t->good ? t->good : "none");
    return status;
}

dsc_status dsc_trainer_step(dsc_trainer *t) {
    uint64_t before[DSC_TRAFFIC_COUNT];
    dsc_step_report *report = report_of(t, t->state.step);
    for (int i = 0; i < DSC_TRAFFIC_COUNT; i++)
        before[i] = dsc_comm_bytes(t->comm, (dsc_traffic)i);
    *report = (dsc_step_report){.step = t->state.step + 1, .epoch = t->state.epoch, .lr = current_rate(t)};
    DSC_TRY(put_into_queue(t, report));
    report->decomposed = t->kfac && dsc_kfac_decomposed(t->kfac);
    for (int i = 0; i < DSC_TRAFFIC_COUNT; i++)
        report->bytes[i] = dsc_comm_bytes(t->comm, (dsc_traffic)i) - before[i];
    t->state.step++;
    t->state.position += t->step_images;
    if (dsc_stepper_pending(t->stepper) > dsc_stepper_lag(t->stepper))
        DSC_TRY(dsc_trainer_collect(t));
    return DSC_OK;
}
