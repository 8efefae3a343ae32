/* K-FAC's damping, adapted: see damping.h. */
#include "train/damping.h"

#include "base/error.h"
#include "base/memory.h"
#include "device/ops.h"
#include "kfac/kfac_parts.h"
#include "model/graph.h"
#include "train/kfac_setup.h"

#include <math.h>

/* ---- the rule ---- */

double dsc_damping_next(double damping, double actual, double predicted, int64_t steps,
                        const double bounds[2]) {
    double w = fmax(pow(0.95, (double)steps), 0.25), ratio = actual / predicted;
    if (predicted > 0 && isfinite(predicted)) {
        if (ratio > 0.75)
            damping *= w;
        else if (!(ratio >= 0.25))
            damping /= w;
    }
    return fmin(fmax(damping, bounds[0]), bounds[1]);
}

/* ---- options ---- */

dsc_status dsc_damping_check(const dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    const double least_f16 = 1.6e-5; /* a little above 1/65504 */
    int bounded = o->kfac->method == DSC_KFAC_INVERSE || o->kfac->outer_product;
    if (o->kfac_damping_adapt == 0)
        return DSC_OK;
    if (o->kfac_damping_min > o->kfac_damping_max)
        return DSC_FAIL(DSC_E_INVALID, "kfac-damping-min %g is above kfac-damping-max %g: exchange them",
                        o->kfac_damping_min, o->kfac_damping_max);
    if (!t->collective)
        return DSC_FAIL(
            DSC_E_INVALID,
            "kfac-damping-adapt %lld with %s: every rank has a loss and parameters of its own, and "
            "would come to another damping; use allreduce, or kfac-damping-adapt 0",
            (long long)o->kfac_damping_adapt, dsc_consensus_name(o->consensus->kind));
    if (o->optim->kind != DSC_SGD)
        return DSC_FAIL(DSC_E_INVALID,
                        "kfac-damping-adapt %lld with %s, whose steps are not those that K-FAC predicts: use "
                        "sgd, or kfac-damping-adapt 0",
                        (long long)o->kfac_damping_adapt, dsc_optim_name(o->optim->kind));
    if (o->kfac->inverse_dtype == DSC_F16 && bounded && o->kfac_damping_min < least_f16)
        return DSC_FAIL(DSC_E_INVALID,
                        "kfac-damping-min %g: 1/damping does not fit into fp16, in which decompositions are "
                        "stored: must be %g at least, or use bf16 or fp32",
                        o->kfac_damping_min, least_f16);
    return DSC_OK;
}

double dsc_damping_now(const dsc_trainer *t, double scheduled) {
    const dsc_train_options *o = &t->options;
    if (o->kfac_damping_adapt == 0)
        return scheduled;
    return fmin(fmax(scheduled * t->state.damping_factor, o->kfac_damping_min), o->kfac_damping_max);
}

int dsc_damping_is_due(const dsc_trainer *t) {
    int64_t every = t->options.kfac_damping_adapt;
    return every > 0 && t->state.step % every == every - 1 && dsc_kfac_recipe(t->kfac) != 2;
}

/* ---- memory ---- */

static dsc_status copy_of(dsc_trainer *t, const dsc_tensor *from, dsc_tensor *out) {
    return dsc_tensor_alloc(t->device, from->dtype, from->ndim, from->dim, out);
}

/* Adds the weight and the bias of a layer, -1 for none. */
static dsc_status add_params(dsc_trainer *t, int64_t weight, int64_t bias) {
    dsc_damping *d = &t->damping;
    const int64_t params[2] = {weight, bias};
    for (int i = 0; i < 2; i++) {
        if (params[i] < 0)
            continue;
        DSC_TRY(copy_of(t, &dsc_model_params(t->model)[params[i]].value, &d->values[d->param_count]));
        d->params[d->param_count++] = params[i];
    }
    return DSC_OK;
}

dsc_status dsc_damping_create(dsc_trainer *t) {
    dsc_damping *d = &t->damping;
    const dsc_layer_info *layers = dsc_model_layers(t->model);
    const int64_t four = 4;
    if (t->options.kfac_damping_adapt == 0)
        return DSC_OK;
    int64_t count = dsc_model_layer_count(t->model), buffers = dsc_model_buffer_count(t->model);
    int64_t most = 2 * dsc_kfac_first_of(t->model, t->options.kfac, DSC_KFAC_EXTRAS);
    DSC_TRY(dsc_memory_alloc(most, sizeof *d->params, &d->params));
    DSC_TRY(dsc_memory_alloc(most, sizeof *d->values, &d->values));
    DSC_TRY(dsc_memory_alloc(buffers, sizeof *d->buffers, &d->buffers));
    for (int64_t l = 0; l < count; l++)
        if (dsc_kfac_covers(t->kfac, l))
            DSC_TRY(add_params(t, layers[l].weight, layers[l].bias));
    for (int64_t i = 0; i < t->model->node_count; i++) {
        const dsc_node *node = &t->model->nodes[i];
        const int64_t number = dsc_kfac_number_of(t->model, t->options.kfac, node);
        if (number >= 0 && dsc_kfac_covers(t->kfac, number))
            DSC_TRY(add_params(t, node->weight,
                               node->tied >= 0 ? -1 : node->bias)); /* K-FAC skips a tied head's bias */
    }
    for (; d->buffer_count < buffers; d->buffer_count++)
        DSC_TRY(
            copy_of(t, &dsc_model_buffers(t->model)[d->buffer_count].value, &d->buffers[d->buffer_count]));
    return dsc_tensor_alloc(t->device, DSC_F64, 1, &four, &d->stats);
}

void dsc_damping_destroy(dsc_trainer *t) {
    dsc_damping *d = &t->damping;
    for (int64_t i = 0; i < d->param_count; i++)
        dsc_tensor_free(&d->values[i]);
    for (int64_t i = 0; i < d->buffer_count; i++)
        dsc_tensor_free(&d->buffers[i]);
    dsc_tensor_free(&d->stats);
    dsc_memory_free(&d->params);
    dsc_memory_free(&d->values);
    dsc_memory_free(&d->buffers);
    *d = (dsc_damping){0};
}

/* ---- a trial ---- */

/* Copies parameters and batch-norm statistics, or puts them back. */
static dsc_status keep(dsc_trainer *t, int back) {
    dsc_damping *d = &t->damping;
    for (int64_t i = 0; i < d->param_count + d->buffer_count; i++) {
        int64_t b = i - d->param_count;
        dsc_tensor own =
            b < 0 ? dsc_model_params(t->model)[d->params[i]].value : dsc_model_buffers(t->model)[b].value;
        dsc_tensor *copy = b < 0 ? &d->values[i] : &d->buffers[b];
        DSC_TRY(back ? dsc_op_convert(t->queue, copy, &own) : dsc_op_convert(t->queue, &own, copy));
    }
    return DSC_OK;
}

/* Computes the sum of the losses of this step's batch on all ranks, with the present parameters, and the number of
 * its rows. The masks of dropout are those of the step. */
static dsc_status find_loss(dsc_trainer *t, const dsc_batch *given, double stats[4]) {
    dsc_queue *q = t->queue;
    dsc_damping *d = &t->damping;
    const int64_t size = t->options.batch_size, micro_batches = t->options.batches_per_allreduce;
    const double grad_scale = 1.0 / ((double)(size * micro_batches) * t->labels);
    dsc_batch batch = {0};
    DSC_TRY(dsc_exec_clear_stats(t->exec, q));
    for (int64_t micro = 0; micro < micro_batches; micro++) {
        if (given)
            batch = *given;
        else
            DSC_TRY(dsc_trainer_next_batch(t, micro, &batch));
        if (!given)
            dsc_loader_take_bad(t->loader, NULL, 0); /* the step has counted them */
        DSC_TRY(dsc_exec_set_position(t->exec, q, t->state.step, (micro * t->ranks + t->rank) * size));
        DSC_TRY(dsc_exec_forward(t->exec, q, &batch.x));
        DSC_TRY(dsc_exec_loss(t->exec, q, &batch.labels, grad_scale));
    }
    DSC_TRY(dsc_op_convert(q, dsc_exec_stats(t->exec), &d->stats));
    DSC_TRY(dsc_queue_sync(q));
    DSC_TRY(dsc_comm_allreduce(t->comm, DSC_TRAFFIC_OTHER, DSC_SUM, &d->stats));
    DSC_TRY(dsc_tensor_download(q, &d->stats, 4 * sizeof *stats, stats));
    return dsc_queue_sync(q);
}

dsc_status dsc_damping_adapt(dsc_trainer *t, const dsc_batch *batch, double lr) {
    const dsc_train_options *o = &t->options;
    const double bounds[2] = {o->kfac_damping_min, o->kfac_damping_max};
    dsc_tensor numbers = dsc_results_numbers(t->results, DSC_NUMBER_LOSS, DSC_NUMBER_ROWS + 1);
    double before[DSC_NUMBER_ROWS + 1], after[4], terms[2], r = fmin(1, lr / (1 - o->optim->momentum));
    DSC_TRY(dsc_tensor_download(t->queue, &numbers, sizeof before, before));
    DSC_TRY(dsc_kfac_step_terms(t->kfac, t->queue, terms));
    if (!isfinite(before[DSC_NUMBER_LOSS]) || !isfinite(terms[0])) /* nothing will be updated */
        return DSC_OK;
    DSC_TRY(keep(t, 0));
    for (int64_t i = 0; i < t->damping.param_count; i++) {
        dsc_param p = dsc_model_params(t->model)[t->damping.params[i]];
        DSC_TRY(dsc_op_axpby(t->queue, -r, &p.grad, 1, &p.value));
    }
    DSC_TRY(find_loss(t, batch, after));
    DSC_TRY(keep(t, 1));
    /* Divided by the expected number of labels, as the gradients are: with masked tokens the actual number varies. */
    double actual = (before[DSC_NUMBER_LOSS] - after[0]) / (t->labels * (double)t->step_images);
    double predicted = r * terms[0] - r * r * terms[1] / 2;
    double damping = dsc_kfac_hyper_now(t->kfac)->damping;
    double next = dsc_damping_next(damping, actual, predicted, o->kfac_damping_adapt, bounds);
    t->state.damping_factor *= next / damping;
    return DSC_OK;
}
