/* The exponential moving average of the weights. */
#include "train/ema.h"

#include "base/error.h"
#include "base/memory.h"
#include "device/ops.h"
#include "model/graph.h"
#include "train/share.h"
#include "train/trainer_internal.h"

/* All running statistics of batch norms as one vector; of 0 elements when there are none. */
static dsc_tensor running_of(const dsc_model *m) {
    int64_t count = 0;
    for (int64_t i = 0; i < m->buffer_count; i++)
        if (m->buffers[i].value.dtype == m->options.dtype) /* the others count batches */
            count += dsc_tensor_count(&m->buffers[i].value);
    return dsc_tensor_view(m->device, m->running, m->options.dtype, 1, &count);
}

static dsc_status alloc_like(const dsc_tensor *t, dsc_tensor *out) {
    return t->dim[0] > 0 ? dsc_tensor_alloc(t->device, t->dtype, 1, t->dim, out) : DSC_OK;
}

/* Makes a view of `block` for each of the model's tensors that has its type; they lie in the same order. */
static dsc_status name_views(const dsc_tensor *block, dsc_dtype dtype, const dsc_param *of, int64_t count,
                             dsc_param **out, int64_t *found) {
    char *data = block->data;
    DSC_TRY(dsc_memory_alloc(count, sizeof **out, out));
    for (int64_t i = 0; i < count; i++) {
        if (of[i].value.dtype != dtype)
            continue;
        dsc_param *view = &(*out)[(*found)++];
        view->name = of[i].name;
        view->value = of[i].value;
        view->value.data = data;
        data += dsc_tensor_bytes(&view->value);
    }
    return DSC_OK;
}

static dsc_status make(dsc_queue *queue, const dsc_model *m, dsc_ema *e) {
    dsc_tensor values = dsc_model_values(m), running = running_of(m);
    DSC_TRY(alloc_like(&values, &e->values));
    DSC_TRY(alloc_like(&running, &e->running));
    if (e->values.data)
        DSC_TRY(dsc_op_fill(queue, 0, &e->values));
    if (e->running.data)
        DSC_TRY(dsc_op_fill(queue, 0, &e->running));
    DSC_TRY(name_views(&e->values, values.dtype, m->params, m->param_count, &e->params, &e->param_count));
    return name_views(&e->running, running.dtype, m->buffers, m->buffer_count, &e->buffers, &e->buffer_count);
}

dsc_status dsc_ema_create(dsc_queue *queue, const dsc_model *model, dsc_ema **out) {
    dsc_ema *e = NULL;
    DSC_TRY(dsc_memory_alloc(1, sizeof *e, &e));
    dsc_status status = make(queue, model, e);
    if (status != DSC_OK) {
        dsc_ema_destroy(&e);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = e;
    return DSC_OK;
}

void dsc_ema_destroy(dsc_ema **ema) {
    if (!*ema)
        return;
    dsc_tensor *owned[] = {&(*ema)->values, &(*ema)->running, &(*ema)->own_values, &(*ema)->own_running};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        if (owned[i]->data)
            dsc_tensor_free(owned[i]);
    dsc_memory_free(&(*ema)->params);
    dsc_memory_free(&(*ema)->buffers);
    dsc_memory_free(ema);
}

dsc_status dsc_ema_add(dsc_ema *ema, dsc_queue *queue, const dsc_model *model, double decay) {
    const dsc_tensor values = dsc_model_values(model), running = running_of(model);
    if (ema->values.data)
        DSC_TRY(dsc_op_axpby(queue, 1 - decay, &values, decay, &ema->values));
    return ema->running.data ? dsc_op_axpby(queue, 1 - decay, &running, decay, &ema->running) : DSC_OK;
}

/* ---- the average instead of the model's own values ---- */

/* Keeps a copy of `own` in `kept` (allocated the first time) and replaces it by the average. */
static dsc_status replace(dsc_trainer *t, const dsc_tensor *sum, dsc_tensor *kept, dsc_tensor *own) {
    if (!sum->data)
        return DSC_OK;
    if (!kept->data)
        DSC_TRY(alloc_like(sum, kept));
    DSC_TRY(dsc_op_convert(t->queue, own, kept));
    return t->state.ema_weight > 0 ? dsc_op_axpby(t->queue, 1 / t->state.ema_weight, sum, 0, own) : DSC_OK;
}

static dsc_status replace_both(dsc_trainer *t) {
    dsc_tensor values = dsc_model_values(t->model), running = running_of(t->model);
    DSC_TRY(replace(t, &t->ema->values, &t->ema->own_values, &values));
    t->ema->swapped = 1;
    return replace(t, &t->ema->running, &t->ema->own_running, &running);
}

dsc_status dsc_ema_swap_in(dsc_trainer *t) {
    dsc_tensor values = dsc_model_values(t->model);
    DSC_TRY(dsc_comm_agree(t->comm, replace_both(t)));
    if (t->ranks == 1)
        return DSC_OK;
    if (!t->collective) {
        DSC_TRY(dsc_queue_sync(t->queue));
        DSC_TRY(dsc_comm_allreduce(t->comm, DSC_TRAFFIC_OTHER, DSC_SUM, &values));
        DSC_TRY(dsc_op_axpby(t->queue, 1.0 / t->ranks, &values, 0, &values));
    }
    return dsc_trainer_unite_buffers(t);
}

dsc_status dsc_ema_swap_out(dsc_trainer *t) {
    dsc_ema *e = t->ema;
    if (!e || !e->swapped)
        return DSC_OK;
    dsc_tensor values = dsc_model_values(t->model), running = running_of(t->model);
    if (e->own_values.data)
        DSC_TRY(dsc_op_convert(t->queue, &e->own_values, &values));
    if (e->own_running.data)
        DSC_TRY(dsc_op_convert(t->queue, &e->own_running, &running));
    e->swapped = 0;
    return dsc_queue_sync(t->queue);
}
