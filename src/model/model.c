/* A model's life: creation, sealing, and what a sealed model lends out.
 *
 * Initial weights are normal with variance 2 / fan-in (He et al. 2015); element i of parameter p, in the
 * order in which it lies in memory, draws from a random sequence of its own (seed, p, i). */
#include "base/error.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/versioned.h"
#include "model/graph.h"

#include <string.h>

void dsc_model_options_init(dsc_model_options *options) {
    *options = (dsc_model_options){.size = sizeof *options, .seed = 42, .dtype = DSC_F32};
}

static dsc_status check_options(dsc_device *device, const dsc_model_options *options) {
    if (!device)
        return DSC_FAIL(DSC_E_INVALID, "model: no device");
    if (options->dtype != DSC_F32 && options->dtype != DSC_F64)
        return DSC_FAIL(DSC_E_UNSUPPORTED, "model of type %s: must be %s or %s",
                        dsc_dtype_name(options->dtype), dsc_dtype_name(DSC_F32), dsc_dtype_name(DSC_F64));
    if (options->dtype == DSC_F64 && !dsc_device_is_host(device))
        return DSC_FAIL(DSC_E_UNSUPPORTED, "model of type %s: device '%s' cannot run it; use ref or cpu",
                        dsc_dtype_name(options->dtype), dsc_device_name(device));
    int half = options->activations == DSC_BF16 || options->activations == DSC_F16;
    if (options->activations != DSC_F32 && !half)
        return DSC_FAIL(DSC_E_UNSUPPORTED, "activations of type %s: must be fp32, bf16 or fp16",
                        dsc_dtype_name(options->activations));
    if (half && (options->dtype != DSC_F32 || dsc_device_is_host(device)))
        return DSC_FAIL(DSC_E_UNSUPPORTED,
                        "activations of type %s: device '%s' computes in fp32 only; use a GPU, or fp32",
                        dsc_dtype_name(options->activations), dsc_device_name(device));
    if (!(options->label_smoothing >= 0 && options->label_smoothing < 1))
        return DSC_FAIL(DSC_E_INVALID, "label smoothing %g: must be at least 0 and below 1",
                        options->label_smoothing);
    return DSC_OK;
}

dsc_status dsc_model_create(dsc_device *device, const dsc_model_options *options, dsc_model **out) {
    dsc_model_options chosen;
    dsc_model_options_init(&chosen);
    DSC_TRY(dsc_versioned_read("model", options, sizeof chosen, &chosen));
    DSC_TRY(check_options(device, &chosen));
    dsc_model *m;
    DSC_TRY(dsc_memory_alloc(1, sizeof *m, &m));
    m->device = device;
    m->options = chosen;
    m->input = m->logits = -1;
    *out = m;
    return DSC_OK;
}

static void free_sealed(dsc_model *m) {
    dsc_memory_free(&m->params);
    dsc_memory_free(&m->buffers);
    dsc_memory_free(&m->state);
    dsc_memory_free(&m->layers);
    dsc_device_free(m->device, &m->values);
    dsc_device_free(m->device, &m->grads);
    dsc_device_free(m->device, &m->running);
    dsc_device_free(m->device, &m->batches.data);
}

void dsc_model_destroy(dsc_model **model) {
    if (!model || !*model)
        return;
    free_sealed(*model);
    dsc_graph_free(*model);
    dsc_memory_free(model);
}

/* ---- sealing ---- */

/* One memory block for all values, one for all gradients, one for running statistics, one for counters. */
static dsc_status allocate_blocks(dsc_model *m) {
    int64_t running = 0, counters = 0;
    for (int64_t i = 0; i < m->slot_count; i++)
        if (!m->slots[i].trained && m->slots[i].tensor.dtype == DSC_I64)
            counters++;
        else if (!m->slots[i].trained)
            running += dsc_tensor_count(&m->slots[i].tensor);
    size_t size = dsc_dtype_size(m->options.dtype);
    DSC_TRY(dsc_device_alloc(m->device, (size_t)m->parameter_total * size, &m->values));
    DSC_TRY(dsc_device_alloc(m->device, (size_t)m->parameter_total * size, &m->grads));
    DSC_TRY(dsc_device_alloc(m->device, (size_t)running * size, &m->running));
    DSC_TRY(dsc_tensor_alloc(m->device, DSC_I64, 1, &counters, &m->batches));
    DSC_TRY(dsc_memory_alloc(m->param_count, sizeof *m->params, &m->params));
    DSC_TRY(dsc_memory_alloc(m->buffer_count, sizeof *m->buffers, &m->buffers));
    DSC_TRY(dsc_memory_alloc(m->slot_count, sizeof *m->state, &m->state));
    return dsc_memory_alloc(m->layer_count, sizeof *m->layers, &m->layers);
}

/* Deals the blocks out to the slots, in order, and fills in the lists that are lent. */
static void place_slots(dsc_model *m) {
    char *value = m->values, *grad = m->grads, *running = m->running, *counter = m->batches.data;
    for (int64_t i = 0; i < m->slot_count; i++) {
        dsc_slot *slot = &m->slots[i];
        size_t bytes = dsc_tensor_bytes(&slot->tensor);
        char **block = slot->trained ? &value : slot->tensor.dtype == DSC_I64 ? &counter : &running;
        slot->tensor.data = *block;
        *block += bytes;
        dsc_param *listed = slot->trained ? &m->params[slot->number] : &m->buffers[slot->number];
        listed->name = slot->name;
        listed->value = listed->grad = slot->tensor;
        listed->grad.data = slot->trained ? grad : NULL;
        if (slot->trained)
            grad += bytes;
        m->state[i] = slot->there;
        m->state[i].name = slot->name;
        m->state[i].tensor = &listed->value;
    }
}

static void list_layers(dsc_model *m) {
    for (int64_t i = 0; i < m->node_count; i++) {
        const dsc_node *node = &m->nodes[i];
        if (node->layer < 0)
            continue;
        const dsc_shape *x = dsc_graph_input(m, node, 0), *y = &node->shape;
        int conv = node->type == &dsc_layer_conv2d;
        m->layers[node->layer] = (dsc_layer_info){.name = node->name,
                                                  .kind = conv ? DSC_LAYER_CONV2D : DSC_LAYER_LINEAR,
                                                  .in_h = conv ? x->h : 1,
                                                  .in_w = conv ? x->w : 1,
                                                  .in_c = conv ? x->c : dsc_shape_count(x),
                                                  .out_h = y->h,
                                                  .out_w = y->w,
                                                  .out_c = y->c,
                                                  .conv = node->conv,
                                                  .weight = node->weight,
                                                  .bias = node->bias};
    }
}

static void draw_normal(uint64_t seed, uint32_t number, double std, int64_t count, dsc_dtype dtype,
                        void *out) {
    for (int64_t i = 0; i < count; i++) {
        dsc_rng rng = dsc_rng_start(seed, DSC_RNG_INIT, number, (uint64_t)i);
        double x = std * dsc_rng_normal(&rng);
        if (dtype == DSC_F64)
            ((double *)out)[i] = x;
        else
            ((float *)out)[i] = (float)x;
    }
}

/* `host` has room for the largest tensor. */
static dsc_status initialise(dsc_model *m, dsc_queue *q, void *host) {
    for (int64_t i = 0; i < m->slot_count; i++) {
        dsc_slot *slot = &m->slots[i];
        if (slot->std == 0) {
            DSC_TRY(dsc_op_fill(q, slot->start, &slot->tensor));
            continue;
        }
        draw_normal(m->options.seed, (uint32_t)slot->number, slot->std, dsc_tensor_count(&slot->tensor),
                    slot->tensor.dtype, host);
        DSC_TRY(dsc_tensor_upload(q, host, dsc_tensor_bytes(&slot->tensor), &slot->tensor));
        DSC_TRY(dsc_queue_sync(q)); /* `host` is written again */
    }
    return dsc_queue_sync(q);
}

static dsc_status initialise_all(dsc_model *m) {
    size_t largest = 0;
    for (int64_t i = 0; i < m->slot_count; i++)
        if (m->slots[i].std > 0 && dsc_tensor_bytes(&m->slots[i].tensor) > largest)
            largest = dsc_tensor_bytes(&m->slots[i].tensor);
    void *host = NULL;
    dsc_queue *q = NULL;
    dsc_status status;
    DSC_TRY_GOTO(status, dsc_memory_alloc((int64_t)largest, 1, &host), end);
    DSC_TRY_GOTO(status, dsc_queue_create(m->device, &q), end);
    DSC_TRY_GOTO(status, initialise(m, q, host), end);
end:
    dsc_queue_destroy(&q);
    dsc_memory_free(&host);
    return status;
}

/* Logits are a vector, every other value is used, there is something to train. */
static dsc_status check_graph(dsc_model *m, dsc_value logits) {
    if (m->sealed)
        return DSC_FAIL(DSC_E_INVALID, "the model is sealed already");
    if (logits < 0 || logits >= m->node_count)
        return DSC_FAIL(DSC_E_INVALID, "logits are value %d, but the model has %lld values", logits,
                        (long long)m->node_count);
    const dsc_node *last = &m->nodes[logits];
    if (!last->shape.flat)
        return DSC_FAIL(DSC_E_INVALID,
                        "logits come from %s as %s, but a vector with one entry a class is needed",
                        dsc_graph_describe(m, last), dsc_shape_text(&last->shape));
    for (int64_t v = 0; v < m->node_count; v++) {
        int64_t uses = v == logits;
        for (int64_t i = 0; i < m->node_count; i++)
            for (int k = 0; k < m->nodes[i].inputs; k++)
                uses += m->nodes[i].in[k] == v;
        if (uses == 0)
            return DSC_FAIL(DSC_E_INVALID, "%s: its output is never used; connect it or leave it out",
                            dsc_graph_describe(m, &m->nodes[v]));
    }
    if (m->param_count == 0)
        return DSC_FAIL(DSC_E_INVALID, "the model has no parameters: add a linear or conv2d layer");
    return DSC_OK;
}

dsc_status dsc_model_seal(dsc_model *m, dsc_value logits) {
    DSC_TRY(check_graph(m, logits));
    dsc_status status;
    DSC_TRY_GOTO(status, allocate_blocks(m), fail);
    place_slots(m);
    list_layers(m);
    DSC_TRY_GOTO(status, initialise_all(m), fail);
    m->logits = logits;
    m->sealed = 1;
    return DSC_OK;
fail:
    free_sealed(m);
    return status;
}

/* ---- what a sealed model holds ---- */

dsc_device *dsc_model_device(const dsc_model *m) {
    return m->device;
}

int64_t dsc_model_classes(const dsc_model *m) {
    return m->logits < 0 ? 0 : dsc_shape_count(&m->nodes[m->logits].shape);
}

void dsc_model_input_shape(const dsc_model *m, int64_t shape[3]) {
    const dsc_shape none = {0}, *s = m->input < 0 ? &none : &m->nodes[m->input].shape;
    shape[0] = s->h;
    shape[1] = s->w;
    shape[2] = s->c;
}

int64_t dsc_model_param_count(const dsc_model *m) {
    return m->param_count;
}

int64_t dsc_model_parameter_total(const dsc_model *m) {
    return m->parameter_total;
}

const dsc_param *dsc_model_params(const dsc_model *m) {
    return m->params;
}

dsc_tensor dsc_model_values(const dsc_model *m) {
    return dsc_tensor_view(m->device, m->values, m->options.dtype, 1, &m->parameter_total);
}

dsc_tensor dsc_model_grads(const dsc_model *m) {
    return dsc_tensor_view(m->device, m->grads, m->options.dtype, 1, &m->parameter_total);
}

int64_t dsc_model_buffer_count(const dsc_model *m) {
    return m->buffer_count;
}

const dsc_param *dsc_model_buffers(const dsc_model *m) {
    return m->buffers;
}

int64_t dsc_model_state_count(const dsc_model *m) {
    return m->slot_count;
}

const dsc_state_entry *dsc_model_state(const dsc_model *m) {
    return m->state;
}

int64_t dsc_model_layer_count(const dsc_model *m) {
    return m->layer_count;
}

const dsc_layer_info *dsc_model_layers(const dsc_model *m) {
    return m->layers;
}
