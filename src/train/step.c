/* One training step, from the batch to its results.
 *
 * With p ranks, m micro-batches and batch size b, the optimiser sees
 *
 *   gradient = 1/p sum_ranks 1/(m b) sum_micro sum_rows dloss/dx
 *
 * (where a model predicts t positions of a sample, 1/(m b t) and all their rows; where only a share s of these has a
 * label, as in masked language modelling, 1/(m b t s): the expected number of labels instead of the actual one),
 *
 * so p ranks of batch b, m micro-batches of batch b and one batch of p m b agree up to rounding (except with soft Dice,
 * which is no sum over samples: every micro-batch of every rank has its own). With gossip
 * the sum over the ranks is left out, and so is every other collective.
 *
 * On a GPU the host does not wait for the device in a step, except for decompositions. The work is recorded
 * and replayed (recorder.h), phases are timed by stamps in the queue (phases.h), and results are read a step
 * later (results.h). So the device itself must notice a loss or a preconditioned gradient that is not finite:
 * it then leaves out that update and all later ones. */
#include "base/clock.h"
#include "base/error.h"
#include "base/trace.h"
#include "comm/table.h"
#include "consensus/table.h"
#include "data/dataset.h"
#include "device/ops.h"
#include "kfac/kfac_parts.h"
#include "model/exec.h"
#include "optim/optim_parts.h"
#include "train/damping.h"
#include "train/factors.h"
#include "train/kfac_setup.h"
#include "train/trainer_internal.h"

#include <math.h>

/* ---- around the step ---- */

void dsc_trainer_trace(const dsc_trainer *t, const char *name, double began) {
    if (t->phases.traced)
        dsc_trace_span(DSC_TRACK_STEPS, name, began, dsc_clock_now(), "step", t->phases.step);
}

/* The next micro-batch of the training data. The loader advances by itself; a seek is only needed after a
 * resume, and after an epoch that ends with some whole batches unused. */
dsc_status dsc_trainer_next_batch(dsc_trainer *t, int64_t micro, dsc_batch *batch) {
    int64_t global = t->options.batch_size * t->ranks;
    int64_t position = t->state.position + micro * global;
    if (t->loader_epoch != t->state.epoch || t->loader_position != position)
        DSC_TRY(dsc_loader_seek(t->loader, t->state.epoch, position));
    dsc_tensor others, shares;
    DSC_TRY(dsc_loader_next(t->loader, t->queue, batch));
    if (dsc_loader_mixed_labels(t->loader, &others, &shares))
        dsc_exec_mix_labels(t->exec, &others, &shares);
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

/* The tokens of the batch, if some may be padding that the model's attention leaves out; else a tensor without memory.
 * Files of tokens have no padding. */
static dsc_tensor padding_of(const dsc_trainer *t) {
    const int in_files = t->train_set && t->train_set->whole_numbers;
    if (!t->exec->padded || in_files)
        return (dsc_tensor){0};
    return t->exec->values[t->model->input];
}

/* A layer's input a and output gradient g, during backward. */
static dsc_status capture(void *context, dsc_queue *q, int64_t layer, const dsc_tensor *a,
                          const dsc_tensor *g) {
    dsc_trainer *t = context;
    double began = dsc_clock_now();
    const dsc_tensor tokens = padding_of(t);
    dsc_kfac_sample sample;
    dsc_kfac_sample_init(&sample);
    sample.a = *a;
    sample.g = *g;
    /* A linear layer at every position. Means over the positions of a sequence (reduce) cannot leave padding out. */
    if (tokens.data && a->ndim == 3 && a->dim[1] == tokens.dim[1] &&
        t->options.kfac->sharing != DSC_KFAC_REDUCE)
        sample.tokens = tokens;
    DSC_TRY(dsc_kfac_capture_sample(t->kfac, q, layer, &sample));
    dsc_phases_in_kfac(&t->phases, began);
    return DSC_OK;
}

static int64_t first_of(const dsc_trainer *t, dsc_kfac_extra extra) {
    return dsc_kfac_first_of(t->model, t->options.kfac, extra);
}

/* A norm, which K-FAC knows by the numbers after those of the layers with a weight matrix. */
static dsc_status capture_norm(void *context, dsc_queue *q, int64_t norm, const dsc_norm_tensors *tensors) {
    dsc_trainer *t = context;
    double began = dsc_clock_now();
    dsc_kfac_sample sample;
    dsc_kfac_sample_init(&sample);
    sample.a = tensors->x;
    sample.g = tensors->dy;
    sample.y = tensors->y;
    sample.mean = tensors->mean;
    sample.invstd = tensors->invstd;
    DSC_TRY(dsc_kfac_capture_sample(t->kfac, q, first_of(t, DSC_KFAC_NORMS) + norm, &sample));
    dsc_phases_in_kfac(&t->phases, began);
    return DSC_OK;
}

/* The table of an embedding, which K-FAC knows by the numbers after those of the norms. */
static dsc_status capture_table(void *context, dsc_queue *q, int64_t table, const dsc_tensor *tokens,
                                const dsc_tensor *dy) {
    dsc_trainer *t = context;
    double began = dsc_clock_now();
    int64_t layer = first_of(t, DSC_KFAC_TABLES) + table;
    dsc_kfac_sample sample;
    dsc_kfac_sample_init(&sample);
    sample.g = *dy;
    const dsc_tensor padding = padding_of(t);
    if (tokens)
        sample.a = *tokens;
    else if (padding.data && dy->dim[1] == padding.dim[1]) /* one at every position */
        sample.tokens = padding;
    DSC_TRY(dsc_kfac_capture_sample(t->kfac, q, layer, &sample));
    dsc_phases_in_kfac(&t->phases, began);
    return DSC_OK;
}

/* A tied head, which K-FAC knows by the numbers after those of the tables. */
static dsc_status capture_tied(void *context, dsc_queue *q, int64_t head, const dsc_tensor *a) {
    dsc_trainer *t = context;
    double began = dsc_clock_now();
    const dsc_tensor padding = padding_of(t);
    dsc_kfac_sample sample;
    dsc_kfac_sample_init(&sample);
    sample.a = *a;
    if (padding.data && a->ndim == 3 && a->dim[1] == padding.dim[1])
        sample.tokens = padding;
    DSC_TRY(dsc_kfac_capture_sample(t->kfac, q, first_of(t, DSC_KFAC_TIED_HEADS) + head, &sample));
    dsc_phases_in_kfac(&t->phases, began);
    return DSC_OK;
}

/* Makes a backward pass call these functions, which hand K-FAC what it needs. */
static void capture_for_kfac(const dsc_trainer *t, dsc_backward_options *backward) {
    backward->capture = capture;
    if (t->options.kfac->norm != DSC_KFAC_NORM_OFF)
        backward->capture_norm = capture_norm;
    if (t->options.kfac->embeddings)
        backward->capture_table = capture_table;
    if (t->options.kfac->tied_head != DSC_KFAC_TIED_SKIP)
        backward->capture_tied = capture_tied;
}

static dsc_status grad_ready(void *context, dsc_queue *q, int64_t param) {
    dsc_trainer *t = context;
    return dsc_consensus_grad_ready(t->consensus, q, param);
}

/* The sampled Fisher: a backward pass for labels drawn from the model's own distribution, a pure function of (seed,
 * step, sample), which passes a and g of the layers to K-FAC and computes no gradients of parameters. Rows without a
 * label have none here, too. Dice is no likelihood: binary cross-entropy takes its place. The statistics of the loss
 * stay as they were. */
static dsc_status capture_sampled(dsc_trainer *t, const dsc_tensor *labels, double grad_scale) {
    dsc_queue *q = t->queue;
    dsc_backward_options backward;
    dsc_tensor stats = *dsc_exec_stats(t->exec);
    DSC_TRY(dsc_op_sample_labels(q, t->options.seed, dsc_exec_position(t->exec),
                                 dsc_model_positions(t->model), dsc_exec_logits(t->exec),
                                 dsc_model_classes(t->model), labels, &t->fisher_labels));
    DSC_TRY(dsc_op_convert(q, &stats, &t->fisher_stats));
    dsc_exec_smooth_labels(t->exec, 0); /* the Fisher matrix is that of the model's own distribution */
    dsc_status status = dsc_exec_likelihood_loss(t->exec, q, &t->fisher_labels, grad_scale);
    dsc_exec_smooth_labels(t->exec, 1);
    DSC_TRY(status);
    dsc_backward_options_init(&backward);
    backward.param_grads = 0;
    backward.context = t;
    capture_for_kfac(t, &backward);
    DSC_TRY(dsc_exec_backward(t->exec, q, &backward));
    DSC_TRY(dsc_kfac_join_captures(t->kfac, q));
    DSC_TRY(dsc_op_convert(q, &t->fisher_stats, &stats));
    dsc_phases_mark_host(&t->phases, DSC_PHASE_FACTOR);
    return DSC_OK;
}

/* Copies the numbers that differ from step to step to the device, so that the work after it can be recorded:
 * the learning rate, this rank's flags, no bad images yet, K-FAC's hyper-parameters. */
static dsc_status send_inputs(dsc_trainer *t, double lr) {
    const double flags[3] = {dsc_stop_requested(), dsc_metrics_failed(t->metrics), 0};
    dsc_tensor to = dsc_results_numbers(t->results, DSC_NUMBER_STOP, 3);
    DSC_TRY(dsc_tensor_upload(t->queue, flags, sizeof flags, &to));
    DSC_TRY(dsc_optim_prepare(t->optim, t->queue, lr));
    dsc_consensus_set_rate(t->consensus, lr);
    if (!t->kfac)
        return DSC_OK;
    DSC_TRY(dsc_kfac_begin(t->kfac, 1.0 / (double)t->options.batches_per_allreduce));
    return dsc_kfac_prepare(t->kfac, t->queue, lr);
}

/* Adds the bad images of the batch to those of this step. Copies nothing to the device while there are none. */
static dsc_status count_bad(dsc_trainer *t, int64_t *bad) {
    int64_t found;
    DSC_TRY(dsc_bad_images_take(&t->bad.train, t->loader, &found));
    if (found == 0)
        return DSC_OK;
    *bad += found;
    const double number = (double)*bad;
    dsc_tensor to = dsc_results_numbers(t->results, DSC_NUMBER_BAD, 1);
    return dsc_tensor_upload(t->queue, &number, sizeof number, &to);
}

/* The properties of this step that decide which recordings can be replayed. */
static dsc_segment plan_segment(const dsc_trainer *t) {
    dsc_segment s = {.timed = t->phases.timed};
    if (t->kfac) {
        s.factors = dsc_kfac_wants_factors(t->kfac);
        s.decomposes = dsc_kfac_wants_decomposition(t->kfac);
        s.recipe = dsc_kfac_recipe(t->kfac);
        s.tries = dsc_damping_is_due(t);
        s.generation = dsc_kfac_generation(t->kfac);
    }
    return s;
}

static dsc_status start_passes(dsc_trainer *t) {
    DSC_TRY(dsc_phases_start(&t->phases, t->queue));
    return dsc_exec_clear_stats(t->exec, t->queue);
}

/* Adds the factors of this step, averaged over the ranks, to K-FAC's running averages. With scope gossip, the
 * factors of peers are added before, and this rank's are sent after. */
static dsc_status update_factors(dsc_trainer *t, int moves, int decomposes) {
    if (t->factors && (moves || decomposes))
        DSC_TRY(dsc_factors_take(t->factors, t->queue, moves));
    DSC_TRY(dsc_kfac_absorb(t->kfac, t->queue));
    if (t->factors && moves)
        DSC_TRY(dsc_factors_send(t->factors, t->queue));
    return dsc_phases_mark(&t->phases, t->queue, DSC_PHASE_FACTOR);
}

/* Decomposes the factors. On devices other than the host, too, the host's clock times the decomposition, so the host
 * waits for the work before it, unless decompositions run concurrently with the steps (async_steps > 0). */
static dsc_status decompose(dsc_trainer *t) {
    dsc_phases *phases = &t->phases;
    double began = dsc_clock_now();
    if (!phases->is_host && t->options.kfac->async_steps == 0)
        DSC_TRY(dsc_queue_sync(t->queue));
    DSC_TRY(dsc_kfac_decompose(t->kfac, t->queue));
    if (!phases->is_host)
        dsc_phases_decomposed(phases, began);
    return dsc_phases_mark(phases, t->queue, DSC_PHASE_DECOMPOSE);
}

/* Averages the gradients over the ranks, and sums losses and flags in one small message. With gossip there is
 * no such message, and gradients are only averaged inside a group. */
static dsc_status exchange(dsc_trainer *t, int overlaps) {
    dsc_queue *q = t->queue;
    dsc_tensor stats = dsc_results_numbers(t->results, DSC_NUMBER_LOSS, DSC_NUMBER_ROWS + 1);
    dsc_tensor sums = dsc_results_numbers(t->results, DSC_NUMBER_LOSS, DSC_NUMBER_SUMMED);
    dsc_tensor grads = dsc_model_grads(t->model), skip = *dsc_optim_skip(t->optim);
    dsc_request *request = NULL;
    DSC_TRY(dsc_op_convert(q, dsc_exec_stats(t->exec), &stats));
    if (t->collective)
        DSC_TRY(dsc_comm_allreduce_begin(t->comm, DSC_TRAFFIC_OTHER, DSC_SUM, &sums, &request));
    for (int64_t i = dsc_model_param_count(t->model) - 1; i >= 0 && !overlaps; i--)
        DSC_TRY(dsc_consensus_grad_ready(t->consensus, q, i));
    DSC_TRY(dsc_consensus_after_backward(t->consensus, q));
    DSC_TRY(dsc_comm_wait(&request));
    return dsc_loss_scale_unscale(&t->loss_scale, q, &grads, &skip);
}

/* Copies the flag that the update was left out, and the loss scale, to the results of the step. */
static dsc_status keep_skip_and_scale(dsc_trainer *t) {
    dsc_tensor skipped = dsc_results_numbers(t->results, DSC_NUMBER_SKIP, 1);
    dsc_tensor scale = dsc_results_numbers(t->results, DSC_NUMBER_SCALE, 1);
    DSC_TRY(dsc_op_convert(t->queue, dsc_optim_skip(t->optim), &skipped));
    return t->loss_scale.state.data ? dsc_op_convert(t->queue, &t->loss_scale.value, &scale) : DSC_OK;
}

/* ---- the step ---- */

/* `given`: the batch; NULL: the next one of the training data. Work between dsc_recorder_begin and
 * dsc_recorder_end is skipped (run == 0) in steps that replay it. */
static dsc_status run_step(dsc_trainer *t, const dsc_batch *given, double lr) {
    dsc_queue *q = t->queue;
    dsc_phases *phases = &t->phases;
    const int64_t size = t->options.batch_size, micro_batches = t->options.batches_per_allreduce;
    const double grad_scale = 1.0 / ((double)(size * micro_batches) * t->labels);
    const int whole = micro_batches == 1 && dsc_recorder_takes_whole_step(t->recorder);
    const int overlaps = phases->is_host || whole; /* gradients are sent during the backward pass */
    dsc_tensor loss = dsc_results_numbers(t->results, DSC_NUMBER_LOSS, 1);
    dsc_tensor nu = dsc_results_numbers(t->results, DSC_NUMBER_NU, 1), skip = *dsc_optim_skip(t->optim);
    dsc_batch batch = given ? *given : (dsc_batch){0};
    int64_t bad = 0;
    int run = 1;

    if (given)
        dsc_exec_mix_labels(t->exec, NULL, NULL); /* of an earlier batch */
    DSC_TRY(send_inputs(t, lr));
    dsc_segment segment = plan_segment(t);
    const int sampled = segment.factors && t->options.kfac_fisher == DSC_FISHER_SAMPLED;

    for (int64_t micro = 0; micro < micro_batches; micro++) {
        /* Batch. */
        if (!given) {
            DSC_TRY(dsc_trainer_next_batch(t, micro, &batch));
            DSC_TRY(count_bad(t, &bad));
        }
        dsc_phases_host_work(phases, DSC_PHASE_DATA);
        DSC_TRY(dsc_exec_set_position(t->exec, q, t->state.step, (micro * t->ranks + t->rank) * size));

        /* Consensus before the forward pass: gossip adds messages and puts z = x / w into the parameters. */
        if (micro == 0) {
            DSC_TRY(dsc_consensus_before_forward(t->consensus, q));
            dsc_phases_host_work(phases, DSC_PHASE_EXCHANGE);
        }

        /* Forward, loss, backward; layers pass a and g to K-FAC. */
        segment.start = micro == 0 ? DSC_SEGMENT_FIRST_BATCH : DSC_SEGMENT_NEXT_BATCH;
        segment.x = batch.x.data;
        segment.labels = batch.labels.data;
        DSC_TRY(dsc_recorder_begin(t->recorder, &segment, &run));
        if (run) {
            dsc_backward_options backward;
            dsc_backward_options_init(&backward);
            backward.accumulate = micro > 0;
            backward.context = t;
            if (t->kfac && !sampled)
                capture_for_kfac(t, &backward);
            backward.grad_ready = overlaps && micro == micro_batches - 1 ? grad_ready : NULL;
            if (micro == 0)
                DSC_TRY(start_passes(t));
            DSC_TRY(dsc_exec_forward(t->exec, q, &batch.x));
            if (micro == 0 || phases->is_host) /* a device has one stamp: later passes count as backward */
                DSC_TRY(dsc_phases_mark(phases, q, DSC_PHASE_FORWARD));
            if (sampled)
                DSC_TRY(capture_sampled(t, &batch.labels, grad_scale));
            DSC_TRY(dsc_exec_loss(t->exec, q, &batch.labels, grad_scale));
            DSC_TRY(dsc_exec_backward(t->exec, q, &backward));
            if (t->kfac)
                DSC_TRY(dsc_kfac_join_captures(t->kfac, q));
            DSC_TRY(dsc_phases_mark(phases, q, DSC_PHASE_BACKWARD));
        } else if (t->kfac) {
            dsc_kfac_captured(t->kfac, micro + 1);
        }
        if (!whole)
            DSC_TRY(dsc_recorder_end(t->recorder));
    }

    /* Exchange. */
    segment.start = DSC_SEGMENT_EXCHANGE;
    segment.x = segment.labels = NULL;
    DSC_TRY(dsc_recorder_begin(t->recorder, &segment, &run));
    if (run) {
        DSC_TRY(exchange(t, overlaps));
        DSC_TRY(dsc_phases_mark(phases, q, DSC_PHASE_EXCHANGE));
    }
    /* On a host device a loss that is not finite is seen here, and the rest is left out; on a GPU
     * dsc_op_guard does that. */
    const int diverged = phases->is_host && !isfinite(*(const double *)loss.data);

    /* Factors, decomposition. */
    if (t->kfac && !diverged) {
        if (run)
            DSC_TRY(update_factors(t, segment.factors, segment.decomposes));
        else
            dsc_kfac_absorbed(t->kfac);
        if (segment.decomposes) {
            DSC_TRY(dsc_recorder_end(t->recorder));
            DSC_TRY(decompose(t));
            segment.recipe = dsc_kfac_recipe(t->kfac);
            segment.generation = dsc_kfac_generation(t->kfac);
        }
    }

    /* Preconditioning, update. */
    segment.start = DSC_SEGMENT_UPDATE;
    if (segment.tries) /* the host waits in the middle of it */
        DSC_TRY(dsc_recorder_end(t->recorder));
    else
        DSC_TRY(dsc_recorder_begin(t->recorder, &segment, &run));
    if ((run || segment.tries) && !diverged) {
        const dsc_tensor *read = NULL;
        DSC_TRY(dsc_op_guard(q, &loss, 1, &skip));
        if (t->kfac) {
            DSC_TRY(dsc_kfac_apply(t->kfac, q));
            DSC_TRY(dsc_op_convert(q, dsc_kfac_nu_tensor(t->kfac), &nu));
            DSC_TRY(dsc_op_guard(q, &nu, 0, &skip));
            if (segment.tries)
                DSC_TRY(dsc_damping_adapt(t, given ? given : micro_batches == 1 ? &batch : NULL, lr));
            DSC_TRY(dsc_phases_mark(phases, q, DSC_PHASE_PRECONDITION));
        }
        if (t->ema && !t->collective) /* while the parameters hold z */
            DSC_TRY(dsc_ema_add(t->ema, q, t->model, t->options.ema));
        DSC_TRY(dsc_consensus_update_begin(t->consensus, q, &read));
        DSC_TRY(dsc_optim_apply(t->optim, q, read));
        DSC_TRY(dsc_consensus_update_end(t->consensus, q));
        if (t->ema && t->collective)
            DSC_TRY(dsc_ema_add(t->ema, q, t->model, t->options.ema));
        DSC_TRY(keep_skip_and_scale(t));
        DSC_TRY(dsc_phases_mark(phases, q, DSC_PHASE_UPDATE));
    }
    DSC_TRY(dsc_recorder_end(t->recorder));

    /* Results. */
    if (t->kfac && !diverged)
        DSC_TRY(dsc_kfac_finish(t->kfac, q));
    return dsc_results_end(t->results, q);
}

/* ---- results ---- */

/* In collective steps every rank sees the same sums, so all ranks stop or none does, and a loss that is not
 * finite on one rank makes the sum not finite. With gossip the sums are the rank's own: ranks agree to stop
 * elsewhere (sync.h), and a rank whose loss is not finite fails alone. */
dsc_status dsc_trainer_collect(dsc_trainer *t) {
    dsc_outcome outcome;
    double began = dsc_clock_now();
    if (dsc_results_pending(t->results) == 0)
        return DSC_OK;
    DSC_TRY(dsc_results_collect(t->results, t->kfac != NULL, &outcome));
    if (t->phases.traced && outcome.with_stamps)
        dsc_phases_trace_stamps(&t->phases, outcome.report.step, outcome.stamps, t->kfac != NULL,
                                dsc_clock_now(), outcome.report.phase_ms);
    t->report = outcome.report;
    t->report.stop_requested &= t->collective;
    t->report.metrics_failed &= t->collective;
    if (!isfinite(outcome.loss_sum))
        return DSC_FAIL(
            DSC_E_NUMERIC,
            "the loss of step %lld is %s and nothing was updated (last good checkpoint: %s): try a "
            "lower learning rate, a longer warm-up or clipping the gradient's norm",
            (long long)t->report.step, isnan(outcome.loss_sum) ? "not a number" : "infinite",
            dsc_trainer_good(t));
    if (outcome.skip == 2)
        return DSC_FAIL(DSC_E_NUMERIC,
                        "step %lld (last good checkpoint: %s): K-FAC: a gradient or its preconditioned form "
                        "is not finite; nothing was updated",
                        (long long)t->report.step, dsc_trainer_good(t));
    t->state.loss_sum += outcome.loss_sum;
    t->state.loss_rows += outcome.rows;
    if (t->collective)
        t->state.bad_images += outcome.bad;
    *(t->collective ? &t->bad.unnamed : &t->bad.own) += outcome.bad;
    t->report.time_s = t->state.seconds = dsc_clock_now() - t->start;
    dsc_trainer_report_step(t);
    dsc_trainer_trace(t, "results", began);
    return DSC_OK;
}

dsc_status dsc_trainer_drain(dsc_trainer *t) {
    while (dsc_results_pending(t->results) > 0)
        DSC_TRY(dsc_trainer_collect(t));
    return DSC_OK;
}

/* ---- one step of a run ---- */

/* The rate depends on the position in the epoch, not on the number of steps so far: a run that continues with
 * another number of ranks stays on its schedule. */
static double current_rate(const dsc_trainer *t) {
    if (t->fixed_rate > 0)
        return t->fixed_rate;
    const int64_t step = t->state.epoch * t->epoch_steps + t->state.position / t->step_images;
    const double rate = dsc_schedule_rate(&t->schedule, step), end = t->options.lr_end;
    if (end == 0 || (double)step < t->schedule.warmup_epochs * (double)t->epoch_steps)
        return rate;
    return end * t->schedule.target +
           (1 - end) * rate; /* it falls to a share of the target instead of to 0 */
}

dsc_status dsc_trainer_take_step(dsc_trainer *t, const dsc_batch *given) {
    uint64_t before[DSC_TRAFFIC_COUNT];
    double began = dsc_clock_now();
    for (int i = 0; i < DSC_TRAFFIC_COUNT; i++)
        before[i] = dsc_comm_bytes(t->comm, (dsc_traffic)i);
    dsc_step_report *report = dsc_results_begin(t->results, !t->phases.is_host && t->phases.timed);
    report->step = t->state.step + 1;
    report->epoch = t->state.epoch;
    report->lr = current_rate(t);
    dsc_phases_begin(&t->phases, report->step, report->phase_ms);
    dsc_status status = run_step(t, given, report->lr);
    if (status != DSC_OK) {
        dsc_recorder_cancel(t->recorder);
        dsc_consensus_update_cancel(t->consensus);
    }
    if (status == DSC_E_NUMERIC)
        dsc_error_prefix(status, "step %lld (last good checkpoint: %s)", (long long)t->state.step + 1,
                         dsc_trainer_good(t));
    dsc_trainer_trace(t, "step", began);
    DSC_TRY(status);
    report->decomposed = t->kfac && dsc_kfac_decomposed(t->kfac);
    for (int i = 0; i < DSC_TRAFFIC_COUNT; i++)
        report->bytes[i] = dsc_comm_bytes(t->comm, (dsc_traffic)i) - before[i];
    t->state.step++;
    if (t->ema)
        t->state.ema_weight = t->options.ema * t->state.ema_weight + (1 - t->options.ema);
    t->state.position += t->step_images;
    if (dsc_results_pending(t->results) > dsc_results_lag(t->results))
        DSC_TRY(dsc_trainer_collect(t));
    return DSC_OK;
}
