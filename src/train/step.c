/* One training step. With p ranks, m micro-batches and batch b:
 *
 *   gradient = 1/p sum_ranks 1/(m b) sum_micro sum_rows dloss/dx
 *
 * so p ranks of batch b, m micro-batches of batch b and one batch of p m b agree up to rounding. */
#include "base/clock.h"
#include "base/error.h"
#include "device/ops.h"
#include "train/precondition.h"
#include "train/trainer.h"

#include <math.h>
#include <string.h>

enum { STATS = 4, STOP = 4, FAILED = 5 };

/* Adds the milliseconds since *mark to a phase and moves the mark. */
static void lap(dsc_trainer *t, dsc_phase phase, double *mark) {
    double now = dsc_clock_now();
    t->report.ms[phase] += 1000 * (now - *mark);
    *mark = now;
}

/* The same for the backward pass, less the time that layers spent in K-FAC, which K-FAC tells itself. */
static void lap_backward(dsc_trainer *t, double *mark) {
    lap(t, DSC_PHASE_BACKWARD, mark);
    t->report.ms[DSC_PHASE_BACKWARD] -= 1000 * t->capture_seconds;
    t->capture_seconds = 0;
}

/* The loader goes from batch to batch by itself; it is only told where to go when the run is elsewhere: after
 * a resume, and behind an epoch that leaves whole batches over. */
static dsc_status next_batch(dsc_trainer *t, int64_t micro, dsc_batch *batch) {
    int64_t global = t->options.batch_size * t->ranks;
    int64_t position = t->state.position + micro * global;
    if (t->loader_epoch != t->state.epoch || t->loader_position != position)
        DSC_TRY(dsc_loader_seek(t->loader, t->state.epoch, position));
    DSC_TRY(dsc_loader_next(t->loader, batch));
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

static dsc_status grad_ready(void *context, dsc_queue *q, int64_t param) {
    dsc_trainer *t = context;
    return dsc_consensus_grad_ready(t->consensus, q, param);
}

/* Forward and backward of one micro-batch; gradients leave during the last one. */
static dsc_status run_micro_batch(dsc_trainer *t, int64_t micro, double *mark) {
    int64_t batch = t->options.batch_size, count = t->options.batches_per_allreduce;
    dsc_batch samples;
    dsc_backward_options backward;
    DSC_TRY(next_batch(t, micro, &samples));
    lap(t, DSC_PHASE_DATA, mark);
    DSC_TRY(dsc_exec_set_position(t->exec, t->queue, t->state.step, (micro * t->ranks + t->rank) * batch));
    DSC_TRY(dsc_exec_forward(t->exec, t->queue, &samples.x));
    lap(t, DSC_PHASE_FORWARD, mark);
    DSC_TRY(dsc_precondition_sample(t, micro));
    *mark = dsc_clock_now();
    DSC_TRY(dsc_exec_loss(t->exec, t->queue, &samples.labels, 1.0 / (double)(batch * count)));
    lap(t, DSC_PHASE_FORWARD, mark);
    dsc_backward_options_init(&backward);
    backward.accumulate = micro > 0;
    backward.context = t;
    backward.grad_ready = micro == count - 1 ? grad_ready : NULL;
    dsc_precondition_watch(t, &backward);
    DSC_TRY(dsc_exec_backward(t->exec, t->queue, &backward));
    lap_backward(t, mark);
    return DSC_OK;
}

/* Loss and flags of all ranks, summed while the gradients travel: one small message a step. */
static dsc_status begin_sums(dsc_trainer *t, dsc_request **request) {
    const double flags[2] = {dsc_stop_requested(), dsc_metrics_failed(t->metrics)};
    dsc_tensor stats = dsc_tensor_slice(&t->exchange, 0, STATS);
    dsc_tensor rest = dsc_tensor_slice(&t->exchange, STATS, 2);
    DSC_TRY(dsc_op_convert(t->queue, dsc_exec_stats(t->exec), &stats));
    DSC_TRY(dsc_tensor_upload(t->queue, flags, sizeof flags, &rest));
    DSC_TRY(dsc_queue_sync(t->queue));
    return dsc_comm_allreduce_begin(t->comm, DSC_TRAFFIC_OTHER, DSC_SUM, &t->exchange, request);
}

/* Every rank sees the same sums, so all stop or none. A loss that is not finite makes the sum so. */
static dsc_status end_sums(dsc_trainer *t, dsc_request **request) {
    DSC_TRY(dsc_comm_wait(request));
    DSC_TRY(dsc_tensor_download(t->queue, &t->exchange, sizeof t->exchanged, t->exchanged));
    DSC_TRY(dsc_queue_sync(t->queue));
    t->report.loss = t->exchanged[0] / t->exchanged[3];
    t->report.stop = t->exchanged[STOP] > 0;
    t->report.failed = t->exchanged[FAILED] > 0;
    if (!isfinite(t->exchanged[0]))
        return DSC_FAIL(
            DSC_E_NUMERIC,
            "the loss of step %lld is %s and nothing was updated (last good checkpoint: %s): try a "
            "lower learning rate, a longer warm-up or clipping the gradient's norm",
            (long long)t->state.step + 1, isnan(t->exchanged[0]) ? "not a number" : "infinite",
            t->good ? t->good : "none");
    return DSC_OK;
}

static dsc_status exchange(dsc_trainer *t) {
    dsc_request *request = NULL;
    DSC_TRY(begin_sums(t, &request));
    DSC_TRY(dsc_consensus_after_backward(t->consensus, t->queue));
    return end_sums(t, &request);
}

static dsc_status update(void *context, dsc_queue *queue, const dsc_tensor *read) {
    dsc_trainer *t = context;
    return dsc_optim_step(t->optim, queue, t->report.lr, read);
}

/* The rate depends on the place in the epoch, not on the number of steps so far: a run that goes on with
 * another number of ranks stays on its schedule. */
static double current_rate(const dsc_trainer *t) {
    int64_t step = t->state.epoch * t->epoch_steps + t->state.position / t->step_images;
    return dsc_schedule_rate(&t->schedule, step);
}

static void finish(dsc_trainer *t, double began, const uint64_t before[DSC_TRAFFIC_COUNT]) {
    for (int i = 0; i < DSC_TRAFFIC_COUNT; i++)
        t->report.bytes[i] = dsc_comm_bytes(t->comm, (dsc_traffic)i) - before[i];
    t->state.step++;
    t->state.position += t->step_images;
    t->state.loss_sum += t->exchanged[0];
    t->state.loss_rows += t->exchanged[3];
    double now = dsc_clock_now();
    t->state.seconds = now - t->start;
    t->report.seconds = now - began;
}

dsc_status dsc_trainer_step(dsc_trainer *t) {
    uint64_t before[DSC_TRAFFIC_COUNT];
    double began = dsc_clock_now(), mark = began;
    for (int i = 0; i < DSC_TRAFFIC_COUNT; i++)
        before[i] = dsc_comm_bytes(t->comm, (dsc_traffic)i);
    memset(&t->report, 0, sizeof t->report);
    t->report.lr = current_rate(t);
    t->report.nu = NAN;

    DSC_TRY(dsc_precondition_begin(t));
    DSC_TRY(dsc_exec_clear_stats(t->exec, t->queue));
    DSC_TRY(dsc_consensus_before_forward(t->consensus, t->queue));
    lap(t, DSC_PHASE_EXCHANGE, &mark);
    for (int64_t micro = 0; micro < t->options.batches_per_allreduce; micro++)
        DSC_TRY(run_micro_batch(t, micro, &mark));
    DSC_TRY(exchange(t));
    lap(t, DSC_PHASE_EXCHANGE, &mark);

    DSC_TRY(dsc_precondition_step(t));
    mark = dsc_clock_now();
    DSC_TRY(dsc_consensus_update(t->consensus, t->queue, update, t));
    lap(t, DSC_PHASE_UPDATE, &mark);
    finish(t, began, before);
    return DSC_OK;
}
