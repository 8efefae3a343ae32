/* Models: creating them, sealing them, and reading what a sealed model holds.
 *
 * Initial weights are normal with variance 2 / fan-in (He et al. 2015); element i of parameter p, in memory
 * order, is drawn from its own random sequence (seed, p, i). */
#include "base/error.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/versioned.h"
#include "model/graph.h"

#include <stdio.h>
#include <string.h>

void dsc_model_options_init_sized(dsc_model_options *options, size_t size) {
    const dsc_model_options defaults = {.seed = 42, .dtype = DSC_F32};
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
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
    if (options->name && (!options->name[0] || strlen(options->name) >= DSC_MODEL_NAME_SIZE))
        return DSC_FAIL(DSC_E_INVALID, "model name '%.70s': must have 1 to %d characters", options->name,
                        DSC_MODEL_NAME_SIZE - 1);
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
    m->options.name = NULL; /* the caller's memory; m->name is the copy */
    snprintf(m->name, sizeof m->name, "%s", chosen.name ? chosen.name : "custom");
    m->input = m->logits = -1;
    *out = m;
    return DSC_OK;
}

static void free_sealed(dsc_model *m) {
    dsc_memory_free(&m->params);
    dsc_memory_free(&m->buffers);
    dsc_memory_free(&m->state);
    dsc_memory_free(&m->layers);
    dsc_memory_free(&m->layer_shapes);
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

/* Allocates one block for all values, one for all gradients, one for running statistics and one for counters. */
static dsc_status allocate_blocks(dsc_model *m) {
    int64_t running = 0, counters = 0;
    for (int64_t i = 0; i < m->tensor_count; i++)
        if (!m->tensors[i].trained && m->tensors[i].tensor.dtype == DSC_I64)
            counters++;
        else if (!m->tensors[i].trained)
            running += dsc_tensor_count(&m->tensors[i].tensor);
    size_t size = dsc_dtype_size(m->options.dtype);
    DSC_TRY(dsc_device_alloc(m->device, (size_t)m->parameter_total * size, &m->values));
    DSC_TRY(dsc_device_alloc(m->device, (size_t)m->parameter_total * size, &m->grads));
    DSC_TRY(dsc_device_alloc(m->device, (size_t)running * size, &m->running));
    DSC_TRY(dsc_tensor_alloc(m->device, DSC_I64, 1, &counters, &m->batches));
    DSC_TRY(dsc_memory_alloc(m->param_count, sizeof *m->params, &m->params));
    DSC_TRY(dsc_memory_alloc(m->buffer_count, sizeof *m->buffers, &m->buffers));
    DSC_TRY(dsc_memory_alloc(m->tensor_count, sizeof *m->state, &m->state));
    DSC_TRY(dsc_memory_alloc(m->layer_count, sizeof *m->layer_shapes, &m->layer_shapes));
    return dsc_memory_alloc(m->layer_count, sizeof *m->layers, &m->layers);
}

/* Gives every tensor its part of the blocks, in order, and fills in the lists that callers can read. */
static void place_tensors(dsc_model *m) {
    char *value = m->values, *grad = m->grads, *running = m->running, *counter = m->batches.data;
    for (int64_t i = 0; i < m->tensor_count; i++) {
        dsc_state_tensor *t = &m->tensors[i];
        dsc_param *listed = t->trained ? &m->params[t->number] : &m->buffers[t->number];
        m->state[i] = t->entry;
        m->state[i].name = t->name;
        m->state[i].tensor = &listed->value;
        if (t->alias)
            continue;
        size_t bytes = dsc_tensor_bytes(&t->tensor);
        char **block = t->trained ? &value : t->tensor.dtype == DSC_I64 ? &counter : &running;
        t->tensor.data = *block;
        *block += bytes;
        listed->name = t->name;
        listed->value = listed->grad = t->tensor;
        listed->grad.data = t->trained ? grad : NULL;
        if (t->trained)
            grad += bytes;
    }
}

static void list_layers(dsc_model *m) {
    for (int64_t i = 0; i < m->node_count; i++) {
        const dsc_node *node = &m->nodes[i];
        if (node->layer < 0)
            continue;
        const dsc_shape *x = dsc_graph_input(m, node, 0), *y = &node->shape;
        dsc_layer_info *info = &m->layers[node->layer];
        *info = (dsc_layer_info){.name = node->name, .kind = DSC_LAYER_LINEAR, .out_h = 1, .out_w = 1};
        info->weight = node->weight;
        info->bias = node->bias;
        dsc_conv2d_shape *shape = &m->layer_shapes[node->layer];
        dsc_conv2d_shape_init(shape);
        shape->in_h = shape->in_w = 1;
        shape->in_c = node->type->whole_samples ? dsc_shape_count(x) : dsc_shape_features(x);
        shape->out_c = node->type->whole_samples ? dsc_shape_count(y) : y->c;
        info->shape = shape;
        if (node->type->describe)
            node->type->describe(node, info);
    }
}

/* Draws every number from its own sequence, so that the result does not depend on the number of threads. */
static void draw_normal(uint64_t seed, uint32_t number, double std, int64_t count, dsc_dtype dtype, void *out,
                        int threads) {
    const int64_t few = 1 << 14; /* up to this many, threads are not worth it */
#pragma omp parallel for num_threads(threads) schedule(static) if (count > few)
    for (int64_t i = 0; i < count; i++) {
        dsc_rng rng = dsc_rng_start(seed, DSC_RNG_INIT, number, (uint64_t)i);
        double x = std * dsc_rng_normal(&rng);
        if (dtype == DSC_F64)
            ((double *)out)[i] = x;
        else
            ((float *)out)[i] = (float)x;
    }
}

/* Sets the initial values of all tensors. `host` has room for the largest one. */
static dsc_status initialise(dsc_model *m, dsc_queue *q, void *host) {
    for (int64_t i = 0; i < m->tensor_count; i++) {
        dsc_state_tensor *t = &m->tensors[i];
        if (t->alias)
            continue;
        if (t->std == 0) {
            DSC_TRY(dsc_op_fill(q, t->start, &t->tensor));
            continue;
        }
        draw_normal(m->options.seed, (uint32_t)t->number, t->std, dsc_tensor_count(&t->tensor),
                    t->tensor.dtype, host, dsc_device_threads(m->device));
        DSC_TRY(dsc_tensor_upload(q, host, dsc_tensor_bytes(&t->tensor), &t->tensor));
        DSC_TRY(dsc_queue_sync(q)); /* because `host` is reused */
    }
    return dsc_queue_sync(q);
}

static dsc_status initialise_all(dsc_model *m) {
    size_t largest = 0;
    for (int64_t i = 0; i < m->tensor_count; i++)
        if (m->tensors[i].std > 0 && dsc_tensor_bytes(&m->tensors[i].tensor) > largest)
            largest = dsc_tensor_bytes(&m->tensors[i].tensor);
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

dsc_status dsc_model_set_std(dsc_model *m, const char *name, double std) {
    if (!m || !name || m->sealed)
        return DSC_FAIL(DSC_E_INVALID, "initial values of '%s': %s", name ? name : "",
                        m && m->sealed ? "the model is sealed" : "no model or no name");
    if (!(std >= 0 && std < 1e6))
        return DSC_FAIL(DSC_E_INVALID,
                        "initial values of '%s': standard deviation %g, but it must be in [0, 1e6)", name,
                        std);
    for (int64_t i = 0; i < m->tensor_count; i++) {
        dsc_state_tensor *t = &m->tensors[i];
        if (t->trained && !t->alias && strcmp(t->name, name) == 0) {
            t->std = std;
            t->start = 0;
            return DSC_OK;
        }
    }
    return DSC_FAIL(DSC_E_NOT_FOUND, "initial values of '%s': the model has no such parameter", name);
}

/* Checks that every value is used and that there is something to train. */
static dsc_status check_graph(dsc_model *m, dsc_value logits) {
    if (!m)
        return DSC_FAIL(DSC_E_INVALID, "seal: no model");
    if (m->sealed)
        return DSC_FAIL(DSC_E_INVALID, "the model is sealed already");
    if (logits < 0 || logits >= m->node_count)
        return DSC_FAIL(DSC_E_INVALID, "logits are value %d, but the model has %lld values", logits,
                        (long long)m->node_count);
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
    place_tensors(m);
    list_layers(m);
    if (!m->options.zeros) /* the memory is zeroed */
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

const char *dsc_model_name(const dsc_model *m) {
    return m->name;
}

int64_t dsc_model_classes(const dsc_model *m) {
    return m->logits < 0 ? 0 : dsc_shape_count(&m->nodes[m->logits].shape) / dsc_model_positions(m);
}

int64_t dsc_model_positions(const dsc_model *m) {
    const dsc_shape *s = m->logits < 0 ? NULL : &m->nodes[m->logits].shape;
    return !s || s->flat ? 1 : s->h * s->w;
}

int dsc_model_takes_tokens(const dsc_model *m) {
    return m->tokens;
}

void dsc_model_input_shape(const dsc_model *m, int64_t shape[3]) {
    const dsc_shape none = {0}, *s = m->input < 0 ? &none : &m->nodes[m->input].shape;
    shape[0] = s->h;
    shape[1] = s->w;
    shape[2] = s->c;
}

dsc_status dsc_model_value_shape(const dsc_model *m, dsc_value value, dsc_shape *shape) {
    if (!m || !shape || value < 0 || value >= m->node_count)
        return DSC_FAIL(DSC_E_INVALID, "the shape of value %d: the model has %lld values", value,
                        m ? (long long)m->node_count : 0);
    *shape = m->nodes[value].shape;
    return DSC_OK;
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
    return m->tensor_count;
}

const dsc_state_entry *dsc_model_state(const dsc_model *m) {
    return m->state;
}

int dsc_model_state_is_alias(const dsc_model *m, int64_t index) {
    return m->tensors[index].alias;
}

int64_t dsc_model_layer_count(const dsc_model *m) {
    return m->layer_count;
}

const dsc_layer_info *dsc_model_layers(const dsc_model *m) {
    return m->layers;
}

int64_t dsc_model_layer_blocks(const dsc_model *m, int64_t layer) {
    for (int64_t i = 0; i < m->node_count; i++)
        if (m->nodes[i].layer == layer && m->nodes[i].blocks > 1)
            return m->nodes[i].blocks;
    return 1;
}
