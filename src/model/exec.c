/* Executors: creation, and the loops over their operations, forward and backward, which allocate nothing. */
#include "model/exec.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/versioned.h"

#include <string.h>

/* ---- creating and destroying ---- */

static dsc_tensor batch_of(const dsc_exec *exec, const dsc_shape *s) {
    dsc_model *m = exec->model;
    dsc_dtype dtype = dsc_model_value_dtype(m);
    if (s->flat)
        return dsc_tensor_view(m->device, NULL, dtype, 2, (int64_t[]){exec->batch, dsc_shape_count(s)});
    const int64_t dim[4] = {exec->batch, exec->decodes ? 1 : s->h, s->w, s->c};
    return dsc_tensor_view(m->device, NULL, dtype, 4, dim);
}

/* Returns the tied head of a language model: the last layer, or the one before it if the last one adds a bias (BERT).
 * -1: there is none. */
static dsc_value tied_head(const dsc_model *m) {
    const dsc_node *last = &m->nodes[m->logits];
    const dsc_value head = last->type->takes_long_rows ? last->in[0] : m->logits;
    const dsc_node *node = &m->nodes[head];
    return node->tied >= 0 && node->bias < 0 && !node->shape.flat ? head : -1;
}

/* The offset of a parameter in the block of all values, in elements. */
static int64_t place_of(const dsc_model *m, int64_t param) {
    const dsc_tensor *value = &m->params[param].value;
    return ((const char *)value->data - (const char *)m->values) / (int64_t)dsc_dtype_size(value->dtype);
}

/* The length of a row of logits: the number of classes, or more. Tensor cores want rows of halves aligned to 16 bytes,
 * which those of GPT-2's 50257 and BERT's 30522 tokens are not, so a training executor makes the rows of a tied head
 * longer. The products then also read the parameters that follow the table; the logits that result are not read, and
 * their gradient is 0. The head writes zeros to the gradients of these parameters, which does no harm because the
 * backward pass begins with the head; only the gradient of BERT's bias exists by then, and the rows end before it. */
static int64_t logit_width(const dsc_exec *exec) {
    const dsc_model *m = exec->model;
    const dsc_value head = tied_head(m);
    const int64_t classes = m->nodes[m->logits].shape.c, unit = classes >= 1024 ? 64 : 8,
                  width = (classes + unit - 1) / unit * unit;
    if (exec->mode != DSC_EXEC_TRAIN || dsc_model_value_dtype(m) == m->options.dtype || head < 0)
        return classes;
    const int64_t table = m->nodes[head].weight, features = m->params[table].value.dim[1];
    const int64_t end = head == m->logits ? m->parameter_total : place_of(m, m->nodes[m->logits].weight);
    return place_of(m, table) + width * features <= end ? width : classes;
}

static dsc_status allocate(dsc_exec *exec) {
    const dsc_model *m = exec->model;
    DSC_TRY(dsc_memory_alloc(m->node_count, sizeof *exec->values, &exec->values));
    DSC_TRY(dsc_memory_alloc(m->node_count, sizeof *exec->grads, &exec->grads));
    DSC_TRY(dsc_memory_alloc(m->node_count, sizeof *exec->from_input, &exec->from_input));
    DSC_TRY(dsc_memory_alloc(m->param_count, sizeof *exec->ready, &exec->ready));
    for (int64_t v = 0; v < m->node_count; v++)
        exec->values[v] = exec->grads[v] = batch_of(exec, &m->nodes[v].shape);
    const dsc_value long_rows[2] = {m->logits, tied_head(m)};
    for (int i = 0; i < 2 && long_rows[1] >= 0; i++)
        exec->values[long_rows[i]].dim[3] = exec->grads[long_rows[i]].dim[3] = logit_width(exec);
    if (m->tokens) /* a half type would round their numbers */
        exec->values[m->input].dtype = m->options.dtype;
    return DSC_OK;
}

static dsc_status check_model(const dsc_model *m, dsc_exec_mode mode, int64_t batch) {
    if (!m)
        return DSC_FAIL(DSC_E_INVALID, "executor: no model");
    if (!m->sealed)
        return DSC_FAIL(DSC_E_INVALID, "executor: the model is not sealed; call dsc_model_seal first");
    if (mode < DSC_EXEC_TRAIN || mode > DSC_EXEC_TRAIN_ONCE)
        return DSC_FAIL(DSC_E_INVALID, "executor: there is no mode %d", (int)mode);
    if (batch < 1 || batch > INT32_MAX)
        return DSC_FAIL(DSC_E_INVALID, "executor: batch of %lld samples, but it must be 1 to %d",
                        (long long)batch, INT32_MAX);
    for (int64_t v = 0; v < m->node_count; v++)
        if (dsc_shape_count(&m->nodes[v].shape) > INT64_MAX / 64 / batch)
            return DSC_FAIL(DSC_E_MEMORY, "executor: %lld samples of %s at %s do not fit into any memory",
                            (long long)batch, dsc_shape_text(&m->nodes[v].shape),
                            dsc_graph_describe(m, &m->nodes[v]));
    return DSC_OK;
}

/* Creates an executor from `like`, which holds its special fields; all other fields are set here. */
static dsc_status create(dsc_model *m, dsc_exec_mode mode, int64_t batch, const dsc_exec *like,
                         dsc_exec **out) {
    DSC_TRY(check_model(m, mode, batch));
    dsc_exec *exec;
    DSC_TRY(dsc_memory_alloc(1, sizeof *exec, &exec));
    *exec = *like;
    exec->model = m;
    exec->once = mode == DSC_EXEC_TRAIN_ONCE;
    exec->mode = exec->once ? DSC_EXEC_TRAIN : mode;
    exec->recompute = exec->mode == DSC_EXEC_TRAIN && m->options.recompute;
    dsc_exec_smooth_labels(exec, 1);
    exec->loss = dsc_model_classes(m) == 1 ? DSC_LOSS_BCE : DSC_LOSS_CROSS_ENTROPY;
    exec->batch = batch;
    dsc_status status;
    DSC_TRY_GOTO(status, allocate(exec), fail);
    DSC_TRY_GOTO(status, dsc_exec_lower(exec), fail);
    DSC_TRY_GOTO(status, dsc_exec_place(exec), fail);
    *out = exec;
    return DSC_OK;
fail:
    dsc_exec_destroy(&exec);
    if (status == DSC_E_MEMORY)
        dsc_error_prefix(status, "batches of %lld need too much memory, use smaller ones", (long long)batch);
    return status;
}

dsc_status dsc_exec_create(dsc_model *m, dsc_exec_mode mode, int64_t batch, dsc_exec **out) {
    return create(m, mode, batch, &(dsc_exec){.lasting = 0}, out);
}

dsc_status dsc_exec_create_lasting(dsc_model *m, dsc_exec_mode mode, int64_t batch, dsc_exec **out) {
    return create(m, mode, batch, &(dsc_exec){.lasting = 1}, out);
}

static int is_causal(const dsc_node *node) {
    const dsc_attention_attributes *attention = node->type == &dsc_layer_attention ? node->attributes : NULL;
    return node->type->by_position && dsc_shape_is_sequence(&node->shape) &&
           (!attention || attention->desc.causal);
}

int dsc_graph_is_causal(const dsc_model *m) {
    for (int64_t v = 0; v < m->node_count; v++)
        if (!is_causal(&m->nodes[v]))
            return 0;
    return 1;
}

int dsc_graph_sees_ahead(const dsc_model *m) {
    return dsc_model_takes_tokens(m) && dsc_model_positions(m) > 1 && !dsc_graph_is_causal(m);
}

/* Checks that a decoder can compute every layer position by position. */
static dsc_status check_decoder(const dsc_model *m) {
    if (!m || !m->sealed || !m->tokens)
        return DSC_FAIL(DSC_E_INVALID, "decoder: a sealed model of sequences (dsc_model_tokens) is needed");
    for (int64_t v = 0; v < m->node_count; v++) {
        const dsc_node *node = &m->nodes[v];
        if (!is_causal(node))
            return DSC_FAIL(DSC_E_INVALID,
                            "decoder: %s uses later positions of a sequence: it cannot be computed one "
                            "position at a time",
                            dsc_graph_describe(m, node));
    }
    return DSC_OK;
}

dsc_status dsc_exec_create_decoder(dsc_model *m, int64_t batch, dsc_exec **out) {
    DSC_TRY(check_decoder(m));
    return create(m, DSC_EXEC_EVAL, batch, &(dsc_exec){.decodes = 1}, out);
}

void dsc_exec_destroy(dsc_exec **exec) {
    if (!exec || !*exec)
        return;
    dsc_exec *e = *exec;
    for (int64_t i = 0; i < e->op_count; i++)
        dsc_conv_destroy(&e->ops[i].conv);
    dsc_tensor_free(&e->second.dlogits);
    dsc_tensor_free(&e->second.stats);
    dsc_device_free(e->model->device, &e->arena);
    dsc_memory_free(&e->segments);
    dsc_memory_free(&e->ready);
    dsc_memory_free(&e->from_input);
    dsc_memory_free(&e->grads);
    dsc_memory_free(&e->values);
    dsc_memory_free(&e->ops);
    dsc_memory_free(exec);
}

dsc_model *dsc_exec_model(const dsc_exec *exec) {
    return exec->model;
}

size_t dsc_exec_bytes(const dsc_exec *exec) {
    return exec->bytes;
}

size_t dsc_exec_bytes_without_reuse(const dsc_exec *exec) {
    return exec->bytes_without_reuse;
}

size_t dsc_exec_bytes_without_recompute(const dsc_exec *exec) {
    return exec->bytes_without_recompute;
}

const dsc_tensor *dsc_exec_stats(const dsc_exec *exec) {
    return &exec->stats;
}

const dsc_tensor *dsc_exec_logits(const dsc_exec *exec) {
    return &exec->logits;
}

dsc_status dsc_exec_check_call(const char *what, const dsc_exec *exec, const dsc_queue *q) {
    if (!exec || !q)
        return DSC_FAIL(DSC_E_INVALID, "%s: no %s", what, exec ? "queue" : "executor");
    return DSC_OK;
}

dsc_status dsc_exec_clear_stats(dsc_exec *exec, dsc_queue *q) {
    DSC_TRY(dsc_exec_check_call("clearing statistics", exec, q));
    return dsc_op_fill(q, 0, &exec->stats);
}

dsc_tensor dsc_exec_param(const dsc_exec *exec, int64_t number) {
    const dsc_model *m = exec->model;
    dsc_tensor value = m->params[number].value;
    if (exec->half.data) {
        size_t first = (size_t)((char *)value.data - (char *)m->values) / dsc_dtype_size(value.dtype);
        value.dtype = exec->half.dtype;
        value.data = (char *)exec->half.data + first * dsc_dtype_size(value.dtype);
    }
    return value;
}

const dsc_tensor *dsc_exec_weight(const dsc_exec *exec, const dsc_exec_op *op) {
    return &exec->model->params[op->node->weight].value;
}

const dsc_tensor *dsc_exec_bias(const dsc_exec *exec, const dsc_exec_op *op) {
    return op->node->bias < 0 ? NULL : &exec->model->params[op->node->bias].value;
}

dsc_tensor *dsc_exec_weight_grad(const dsc_exec *exec, const dsc_exec_op *op) {
    return &exec->model->params[op->node->weight].grad;
}

dsc_tensor *dsc_exec_bias_grad(const dsc_exec *exec, const dsc_exec_op *op) {
    return op->node->bias < 0 ? NULL : &exec->model->params[op->node->bias].grad;
}

/* ---- forward ---- */

dsc_status dsc_exec_set_position(dsc_exec *exec, dsc_queue *q, int64_t step, int64_t first_sample) {
    const int64_t position[2] = {step, first_sample};
    DSC_TRY(dsc_exec_check_call("position", exec, q));
    return dsc_tensor_upload(q, position, sizeof position, &exec->position);
}

const dsc_tensor *dsc_exec_position(const dsc_exec *exec) {
    return &exec->position;
}

static dsc_status check_input(const dsc_exec *exec, const dsc_tensor *x) {
    const dsc_tensor *own = &exec->values[exec->model->input];
    if (!x)
        return DSC_FAIL(DSC_E_INVALID, "forward: no x");
    int fits = x->ndim == own->ndim && memcmp(x->dim, own->dim, 4 * sizeof x->dim[0]) == 0;
    if (!fits)
        return DSC_FAIL(DSC_E_INVALID,
                        "forward: x has %d dimensions, [%lld,%lld,%lld,%lld], but [%lld,%lld,%lld,%lld] is "
                        "what the executor was made for",
                        x->ndim, (long long)x->dim[0], (long long)x->dim[1], (long long)x->dim[2],
                        (long long)x->dim[3], (long long)own->dim[0], (long long)own->dim[1],
                        (long long)own->dim[2], (long long)own->dim[3]);
    if (x->dtype != own->dtype && x->dtype != DSC_F32)
        return DSC_FAIL(DSC_E_INVALID, "forward: x is of type %s, but the model is of %s",
                        dsc_dtype_name(x->dtype), dsc_dtype_name(own->dtype));
    if (x->device != own->device)
        return DSC_FAIL(DSC_E_INVALID, "forward: x is not on the model's device, %s",
                        dsc_device_name(own->device));
    return DSC_OK;
}

/* Makes the input and all views of it point to x, or to x converted to the type of the input value. */
static dsc_status bind_input(dsc_exec *exec, dsc_queue *q, const dsc_tensor *x) {
    DSC_TRY(check_input(exec, x));
    void *data = x->data;
    if (x->dtype != exec->values[exec->model->input].dtype) {
        DSC_TRY(dsc_op_convert(q, x, &exec->converted));
        data = exec->converted.data;
    }
    for (int64_t v = 0; v < exec->model->node_count; v++)
        if (exec->from_input[v])
            exec->values[v].data = data;
    return DSC_OK;
}

static dsc_status run_forward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    dsc_status status = op->view ? DSC_OK : op->type->forward(exec, q, op);
    if (status != DSC_OK)
        return dsc_error_prefix(status, "forward of %s", dsc_graph_describe(exec->model, op->node));
    return DSC_OK;
}

dsc_status dsc_exec_forward(dsc_exec *exec, dsc_queue *q, const dsc_tensor *x) {
    DSC_TRY(dsc_exec_check_call("forward", exec, q));
    exec->has_forward = exec->has_loss = exec->last_is_there = exec->used_up = 0;
    DSC_TRY(bind_input(exec, q, x));
    if (exec->half.data) {
        dsc_tensor values = dsc_model_values(exec->model);
        DSC_TRY(dsc_op_convert(q, &values, &exec->half));
    }
    if (exec->lengths.data)
        DSC_TRY(dsc_op_sequence_lengths(q, &exec->values[exec->model->input], &exec->lengths));
    for (int64_t i = 0; i < exec->op_count; i++)
        DSC_TRY(run_forward(exec, q, &exec->ops[i]));
    if (exec->mode == DSC_EXEC_TRAIN)
        DSC_TRY(dsc_op_increment(q, &exec->model->batches)); /* num_batches_tracked */
    exec->has_forward = exec->last_is_there = 1;
    return DSC_OK;
}

dsc_status dsc_exec_decode(dsc_exec *exec, dsc_queue *q, const dsc_tensor *x, int64_t position) {
    DSC_TRY(dsc_exec_check_call("decode", exec, q));
    const int64_t positions = exec->model->nodes[exec->model->input].shape.h;
    if (!exec->decodes)
        return DSC_FAIL(DSC_E_INVALID, "decode: the executor is no decoder (dsc_exec_create_decoder)");
    if (position < 0 || position >= positions)
        return DSC_FAIL(DSC_E_INVALID, "decode: position %lld lies outside of the model's 0 to %lld",
                        (long long)position, (long long)positions - 1);
    exec->decoded_position = position;
    return dsc_exec_forward(exec, q, x);
}

/* ---- backward ---- */

void dsc_backward_options_init_sized(dsc_backward_options *options, size_t size) {
    const dsc_backward_options defaults = {.param_grads = 1};
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}

/* Returns t with the shape that a preconditioner expects: for a linear layer [batch, features], or on a sequence
 * [batch, positions, features]; for a layer that a program defines as linear for K-FAC [batch, features]. */
static dsc_tensor rows_of(const dsc_exec *exec, const dsc_node *node, const dsc_tensor *t) {
    const int64_t n = exec->batch, numbers = dsc_tensor_count(t) / n, positions = node->shape.h;
    if (node->type != &dsc_layer_linear && !node->type->whole_samples)
        return *t;
    if (node->shape.flat || node->type->whole_samples)
        return dsc_tensor_view(t->device, t->data, t->dtype, 2, (int64_t[]){n, numbers});
    return dsc_tensor_view(t->device, t->data, t->dtype, 3, (int64_t[]){n, positions, numbers / positions});
}

static dsc_status capture(dsc_queue *q, const dsc_backward_options *o, int64_t layer, const dsc_tensor *a,
                          const dsc_tensor *g) {
    unsigned errors = dsc_error_count();
    dsc_status status = o->capture(o->context, q, layer, a, g);
    return status == DSC_OK ? DSC_OK : dsc_error_callback(status, errors, "capture", NULL);
}

/* Passes the tensors of a norm, and the statistics that forward saved, to the caller. */
static dsc_status capture_norm(dsc_queue *q, const dsc_backward_options *o, const dsc_exec *exec,
                               const dsc_exec_op *op) {
    int64_t c = dsc_tensor_count(&exec->model->params[op->node->weight].value), n = exec->batch;
    dsc_norm_tensors t = {.x = *op->x[0], .dy = *op->dy, .mean = op->saved[0], .invstd = op->saved[1]};
    if (op->relu)
        t.y = *op->y;
    dsc_tensor *const maps[] = {&t.x, &t.dy, &t.y};
    for (int i = 0; i < 3; i++) {
        const int64_t dim[3] = {n, maps[i]->data ? dsc_tensor_count(maps[i]) / (n * c) : 0, c};
        if (maps[i]->data)
            *maps[i] = dsc_tensor_view(maps[i]->device, maps[i]->data, maps[i]->dtype, 3, dim);
    }
    unsigned errors = dsc_error_count();
    dsc_status status = o->capture_norm(o->context, q, op->node->norm, &t);
    return status == DSC_OK ? DSC_OK : dsc_error_callback(status, errors, "capture_norm", NULL);
}

/* Passes the tensors of an embedding's table to the caller; a table of positions has no tokens. */
static dsc_status capture_table(dsc_queue *q, const dsc_backward_options *o, const dsc_exec *exec,
                                const dsc_exec_op *op) {
    const dsc_node *node = op->node;
    const int64_t n = exec->batch, t = node->shape.h, dim[3] = {n, t, node->shape.c};
    dsc_tensor dy = dsc_tensor_view(op->dy->device, op->dy->data, op->dy->dtype, 3, dim), tokens = *op->x[0];
    const int of_tokens = dsc_embedding_is_of_tokens(node);
    if (of_tokens)
        tokens = dsc_tensor_view(tokens.device, tokens.data, tokens.dtype, 2, dim);
    unsigned errors = dsc_error_count();
    dsc_status status = o->capture_table(o->context, q, node->table, of_tokens ? &tokens : NULL, &dy);
    return status == DSC_OK ? DSC_OK : dsc_error_callback(status, errors, "capture_table", NULL);
}

static dsc_status capture_tied(dsc_queue *q, const dsc_backward_options *o, const dsc_exec *exec,
                               const dsc_exec_op *op) {
    const dsc_tensor a = rows_of(exec, op->node, op->x[0]);
    unsigned errors = dsc_error_count();
    dsc_status status = o->capture_tied(o->context, q, op->node->tied, &a);
    return status == DSC_OK ? DSC_OK : dsc_error_callback(status, errors, "capture_tied", NULL);
}

static dsc_status announce(dsc_queue *q, const dsc_backward_options *o, int64_t param) {
    unsigned errors = dsc_error_count();
    dsc_status status = o->grad_ready(o->context, q, param);
    return status == DSC_OK ? DSC_OK : dsc_error_callback(status, errors, "grad_ready", NULL);
}

/* Computes the values again that the backward pass of a segment reads. */
static dsc_status recompute(dsc_exec *exec, dsc_queue *q, int64_t segment) {
    dsc_status status = DSC_OK;
    exec->recomputing = 1;
    for (int64_t i = exec->segments[segment]; i < exec->segments[segment + 1] && status == DSC_OK; i++)
        if (exec->ops[i].again)
            status = run_forward(exec, q, &exec->ops[i]);
    exec->recomputing = 0;
    return status;
}

dsc_status dsc_exec_backward(dsc_exec *exec, dsc_queue *q, const dsc_backward_options *given) {
    dsc_backward_options options;
    dsc_backward_options_init(&options);
    DSC_TRY(dsc_versioned_read("backward", given, sizeof options, &options));
    DSC_TRY(dsc_exec_check_call("backward", exec, q));
    if (exec->mode != DSC_EXEC_TRAIN)
        return DSC_FAIL(DSC_E_INVALID, "backward: the executor was made for evaluation");
    if (!exec->has_loss)
        return DSC_FAIL(DSC_E_INVALID, "backward: there was no loss before it");
    exec->has_loss = 0;
    exec->used_up = exec->once;
    const dsc_backward_pass pass = {.param_grads = options.param_grads, .beta = options.accumulate ? 1 : 0};
    int64_t next = exec->model->param_count - 1; /* the parameter to announce next */
    /* The segments before this one have not been recomputed yet. */
    int64_t segment = exec->segment_count - exec->last_is_there;
    exec->last_is_there = 0;
    memset(exec->ready, 0, (size_t)exec->model->param_count);
    for (int64_t i = exec->op_count - 1; i >= 0; i--) {
        const dsc_exec_op *op = &exec->ops[i];
        const dsc_node *node = op->node;
        if (segment > 0 && i + 1 == exec->segments[segment])
            DSC_TRY(recompute(exec, q, --segment));
        if (!op->backward)
            continue;
        if (options.capture && node->layer >= 0) {
            dsc_tensor a = rows_of(exec, node, op->x[0]), g = rows_of(exec, node, op->dy);
            DSC_TRY(capture(q, &options, node->layer, &a, &g));
        }
        if (options.capture_norm && node->norm >= 0)
            DSC_TRY(capture_norm(q, &options, exec, op));
        if (options.capture_table && node->table >= 0)
            DSC_TRY(capture_table(q, &options, exec, op));
        if (options.capture_tied && node->tied >= 0)
            DSC_TRY(capture_tied(q, &options, exec, op));
        dsc_status status = op->type->backward(exec, q, op, &pass);
        if (status != DSC_OK)
            return dsc_error_prefix(status, "backward of %s", dsc_graph_describe(exec->model, node));
        if (!options.param_grads || !options.grad_ready)
            continue;
        /* Parameters are announced in descending order: each one waits for all after it. */
        for (int64_t k = 0; k < node->param_count; k++)
            exec->ready[node->first_param + k] = 1;
        for (; next >= 0 && exec->ready[next]; next--)
            DSC_TRY(announce(q, &options, next));
    }
    return DSC_OK;
}
