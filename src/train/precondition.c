/* K-FAC inside a training step.
 *
 * Empirical Fisher: layers hand over a and g in the backward pass of the true labels. Sampled Fisher: on
 * steps that move the factors an earlier backward pass, of labels drawn from softmax(logits), hands them over
 * and computes no parameters' gradients; labels are a pure function of (seed, step, sample), whatever the
 * number of ranks. */
#include "train/precondition.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "device/ops.h"
#include "train/kfac_layers.h"

#include <math.h>

/* ---- schedules ---- */

static double power_at(const double *epochs, int count, double alpha, double epoch) {
    double product = 1;
    for (int i = 0; i < count; i++)
        if (epochs[i] <= epoch)
            product *= alpha;
    return product;
}

/* 0 stays 0: never. */
static int64_t scaled_frequency(int64_t base, double factor) {
    const double most = 1e15;
    double scaled = round((double)base * factor);
    if (base == 0)
        return 0;
    return scaled < 1 ? 1 : scaled > most ? (int64_t)most : (int64_t)scaled;
}

dsc_kfac_hyper dsc_precondition_hyper(const dsc_train_options *o, dsc_kfac_hyper base, double epoch) {
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

/* The epoch schedules, then the caller's own. The epoch is the trainer's: K-FAC's steps may have begun later.
 */
static dsc_status schedule(void *context, int64_t step, dsc_kfac_hyper *hyper) {
    const dsc_trainer *t = context;
    const dsc_kfac_options *own = &t->options.kfac;
    double share = (double)(t->state.position / t->step_images) / (double)t->epoch_steps;
    *hyper = dsc_precondition_hyper(&t->options, *hyper, (double)t->state.epoch + share);
    return own->schedule ? own->schedule(own->context, step, hyper) : DSC_OK;
}

/* ---- making it ---- */

static dsc_status make_sampling(dsc_trainer *t) {
    int64_t two = 2, four = 4;
    if (t->options.kfac_fisher != DSC_FISHER_SAMPLED)
        return DSC_OK;
    DSC_TRY(dsc_tensor_alloc(t->device, DSC_I64, 1, &two, &t->fisher_position));
    DSC_TRY(dsc_tensor_alloc(t->device, DSC_I32, 1, &t->options.batch_size, &t->fisher_labels));
    return dsc_tensor_alloc(t->device, DSC_F64, 1, &four, &t->fisher_stats);
}

dsc_status dsc_precondition_create(dsc_trainer *t) {
    dsc_kfac_options o = t->options.kfac;
    dsc_kfac_layer *layers = NULL;
    int64_t count = 0;
    if (o.hyper.update_freq == 0)
        return DSC_OK;
    o.schedule = schedule;
    o.context = t;
    o.hyper.diag_blocks = o.diag_blocks;
    o.passes = t->options.batches_per_allreduce;
    dsc_status status = make_sampling(t);
    if (status == DSC_OK)
        status = dsc_kfac_layers_of(t->model, &layers, &count);
    status = dsc_comm_agree(t->comm, status);
    if (status == DSC_OK)
        status = dsc_kfac_create(t->comm, t->queue, layers, count, &o, &t->kfac);
    dsc_memory_free(&layers);
    return status;
}

void dsc_precondition_destroy(dsc_trainer *t) {
    dsc_kfac_destroy(&t->kfac);
    dsc_tensor_free(&t->fisher_position);
    dsc_tensor_free(&t->fisher_labels);
    dsc_tensor_free(&t->fisher_stats);
}

/* ---- in a step ---- */

dsc_status dsc_precondition_begin(dsc_trainer *t) {
    if (!t->kfac)
        return DSC_OK;
    return dsc_kfac_begin(t->kfac, 1.0 / (double)t->options.batches_per_allreduce);
}

static int samples_now(const dsc_trainer *t) {
    return t->kfac && t->options.kfac_fisher == DSC_FISHER_SAMPLED && dsc_kfac_wants_factors(t->kfac);
}

static dsc_status capture(void *context, dsc_queue *q, int64_t layer, const dsc_tensor *a,
                          const dsc_tensor *g) {
    dsc_trainer *t = context;
    double began = dsc_clock_now();
    DSC_TRY(dsc_kfac_capture(t->kfac, q, layer, a, g));
    t->capture_seconds += dsc_clock_now() - began;
    return DSC_OK;
}

static dsc_status draw_labels(dsc_trainer *t, int64_t first_sample) {
    dsc_tensor step = dsc_tensor_slice(&t->fisher_position, 0, 1),
               first = dsc_tensor_slice(&t->fisher_position, 1, 1);
    DSC_TRY(dsc_op_fill(t->queue, (double)t->state.step, &step));
    DSC_TRY(dsc_op_fill(t->queue, (double)first_sample, &first));
    return dsc_op_sample_labels(t->queue, t->options.seed, &t->fisher_position, dsc_exec_logits(t->exec),
                                &t->fisher_labels);
}

dsc_status dsc_precondition_sample(dsc_trainer *t, int64_t micro) {
    int64_t batch = t->options.batch_size, count = t->options.batches_per_allreduce;
    dsc_backward_options backward;
    double began = dsc_clock_now();
    if (!samples_now(t))
        return DSC_OK;
    dsc_tensor stats = *dsc_exec_stats(t->exec);
    DSC_TRY(draw_labels(t, (micro * t->ranks + t->rank) * batch));
    DSC_TRY(dsc_op_convert(t->queue, &stats, &t->fisher_stats));
    dsc_exec_smooth_labels(t->exec, 0); /* the Fisher matrix is that of the model's own distribution */
    dsc_status status = dsc_exec_loss(t->exec, t->queue, &t->fisher_labels, 1.0 / (double)(batch * count));
    dsc_exec_smooth_labels(t->exec, 1);
    DSC_TRY(status);
    dsc_backward_options_init(&backward);
    backward.param_grads = 0;
    backward.context = t;
    backward.capture = capture;
    DSC_TRY(dsc_exec_backward(t->exec, t->queue, &backward));
    DSC_TRY(dsc_op_convert(t->queue, &t->fisher_stats, &stats));
    t->report.ms[DSC_PHASE_FACTOR] += 1000 * (dsc_clock_now() - began - t->capture_seconds);
    t->capture_seconds = 0;
    return DSC_OK;
}

void dsc_precondition_watch(const dsc_trainer *t, dsc_backward_options *backward) {
    if (t->kfac && !samples_now(t))
        backward->capture = capture;
}

dsc_status dsc_precondition_step(dsc_trainer *t) {
    double ms[3];
    if (!t->kfac)
        return DSC_OK;
    dsc_status status = dsc_kfac_step(t->kfac, t->queue, t->report.lr);
    if (status == DSC_E_NUMERIC)
        dsc_error_prefix(status, "step %lld (last good checkpoint: %s)", (long long)t->state.step + 1,
                         t->good ? t->good : "none");
    DSC_TRY(status);
    dsc_kfac_times(t->kfac, ms);
    t->report.ms[DSC_PHASE_FACTOR] += ms[0];
    t->report.ms[DSC_PHASE_DECOMPOSE] += ms[1];
    t->report.ms[DSC_PHASE_PRECONDITION] += ms[2];
    return DSC_OK;
}
