/* Multi-head self-attention over the positions of a sequence (h of them, w = 1). The backward pass reads x, y and the
 * log-sum-exp of every row of scores, from which it computes the probabilities again. Dropout of the probabilities is
 * applied only in training. */
#include "base/error.h"
#include "base/versioned.h"
#include "model/exec.h"

static dsc_status shape(const dsc_model *m, dsc_node *node) {
    DSC_TRY(dsc_graph_expect_map(m, node));
    const dsc_attention_attributes *own = node->attributes;
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    if (x->w != 1)
        return DSC_FAIL(DSC_E_INVALID,
                        "%s: the input is %s, but a sequence (positions x 1 x channels) is needed",
                        dsc_graph_describe(m, node), dsc_shape_text(x));
    if (own->padded && (!m->tokens || m->nodes[m->input].shape.h != x->h))
        return DSC_FAIL(
            DSC_E_INVALID,
            "%s: padding is found in the tokens of dsc_model_tokens, of which the model has %lld, but "
            "the input is %s; set padded to 0",
            dsc_graph_describe(m, node), (long long)(m->tokens ? m->nodes[m->input].shape.h : 0),
            dsc_shape_text(x));
    node->shape = *x;
    dsc_status status = dsc_attention_width(m->device, &own->desc, x->c, &node->shape.c);
    if (status != DSC_OK)
        return dsc_error_prefix(status, "%s on %s", dsc_graph_describe(m, node), dsc_shape_text(x));
    return DSC_OK;
}

static dsc_status declare(dsc_model *m, dsc_node *node) {
    dsc_attention_attributes *own = node->attributes;
    if (own->desc.dropout.rate > 0)
        own->desc.dropout.layer = (int)m->dropout_count++;
    return DSC_OK;
}

static dsc_status plan(dsc_exec *exec, dsc_exec_op *op) {
    const dsc_attention_attributes *own = op->node->attributes;
    const dsc_attention_desc *desc = &own->desc;
    if (exec->decodes) { /* the cache of keys and values of all positions so far */
        const int64_t cache[3] = {exec->batch, op->node->shape.h, 2 * op->node->shape.c};
        op->saved[0] =
            dsc_tensor_view(exec->model->device, NULL, dsc_model_value_dtype(exec->model), 3, cache);
        op->saves_always = 1;
        return DSC_OK;
    }
    size_t work = dsc_op_attention_workspace(exec->model->device, desc, &exec->values[op->in[0]]);
    if (work > exec->work_bytes)
        exec->work_bytes = work;
    exec->padded |= own->padded;
    op->saved[0] = dsc_tensor_view(exec->model->device, NULL, exec->model->options.dtype, 3,
                                   (int64_t[]){exec->batch, desc->heads, op->node->shape.h});
    return DSC_OK;
}

static dsc_attention_context context_of(const dsc_exec *exec, const dsc_attention_attributes *own) {
    return (dsc_attention_context){.position = exec->mode == DSC_EXEC_TRAIN ? &exec->position : NULL,
                                   .lengths = own->padded ? &exec->lengths : NULL};
}

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    const dsc_attention_attributes *own = op->node->attributes;
    dsc_tensor work = exec->work, lse = op->saved[0];
    if (exec->decodes)
        return dsc_op_attention_step(q, &own->desc, op->x[0], exec->decoded_position, &lse, op->y);
    const dsc_attention_context context = context_of(exec, own);
    return dsc_op_attention_forward(q, &own->desc, op->x[0], &context, &work, lse.data ? &lse : NULL, op->y);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                           const dsc_backward_pass *pass) {
    (void)pass;
    const dsc_attention_attributes *own = op->node->attributes;
    const dsc_attention_context context = context_of(exec, own);
    dsc_tensor work = exec->work;
    dsc_attention_grads grads = {.beta = op->beta[0], .work = &work, .dx = op->dx[0]};
    return dsc_op_attention_backward(q, &own->desc, op->x[0], &context, op->y, &op->saved[0], op->dy, &grads);
}

const dsc_layer_type dsc_layer_attention = {.name = "attention",
                                            .attribute_bytes = sizeof(dsc_attention_attributes),
                                            .keeps_x = 1,
                                            .keeps_y = 1,
                                            .by_position = 1,
                                            .shape = shape,
                                            .declare = declare,
                                            .plan = plan,
                                            .forward = forward,
                                            .backward = backward};

void dsc_attention_options_init_sized(dsc_attention_options *options, size_t size) {
    const dsc_attention_options defaults = {.heads = 1};
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}

dsc_status dsc_model_attention(dsc_model *m, dsc_value x, const dsc_attention_options *given, dsc_value *y) {
    dsc_attention_options options;
    dsc_attention_options_init(&options);
    DSC_TRY(dsc_versioned_read("attention", given, sizeof options, &options));
    if (!(options.dropout >= 0 && options.dropout < 1))
        return DSC_FAIL(DSC_E_INVALID, "attention: dropout of %g, but it must be at least 0 and below 1",
                        options.dropout);
    const dsc_dropout_desc dropout = {.rate = options.dropout, .seed = m ? m->options.seed : 0};
    const dsc_attention_attributes own = {
        .desc = {.heads = options.heads, .causal = options.causal != 0, .dropout = dropout},
        .padded = options.padded != 0};
    return dsc_graph_add(m, &dsc_layer_attention, NULL, &x, 1, &own, y);
}
