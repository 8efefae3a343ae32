/* Linear layer: y[rows,out] = x[rows,in] w[out,in]' + b[out], where a row is a sample or a position of a sequence.
 * Lowering may have fused it with an addition or with the GELU that follows.
 *
 * After a flatten of an h x w x c map PyTorch's columns are in the order c, h, w; here they are h, w, c. GPT-2's files
 * store weights as [in, out]. A tied layer uses the table of an embedding as its weight. */
#include "base/error.h"
#include "base/versioned.h"
#include "model/exec.h"

#include <math.h>
#include <string.h>

typedef struct attributes {
    int64_t features;
    dsc_linear_options options;
} attributes;

static dsc_status shape(const dsc_model *m, dsc_node *node) {
    const attributes *own = node->attributes;
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    if (!dsc_shape_is_sequence(x))
        DSC_TRY(dsc_graph_expect_vector(m, node));
    if (own->features < 1)
        return DSC_FAIL(DSC_E_INVALID, "%s: %lld output features, but at least 1 is needed",
                        dsc_graph_describe(m, node), (long long)own->features);
    if (!(own->options.std >= 0 && own->options.std < 1e6))
        return DSC_FAIL(DSC_E_INVALID, "%s: initial weights of standard deviation %g: must be 0 or above",
                        dsc_graph_describe(m, node), own->options.std);
    if (own->options.blocks < 1 || own->features % own->options.blocks != 0)
        return DSC_FAIL(DSC_E_INVALID, "%s: %lld blocks, but they must divide the %lld features",
                        dsc_graph_describe(m, node), (long long)own->options.blocks,
                        (long long)own->features);
    node->blocks = own->options.blocks;
    node->shape = (dsc_shape){.flat = x->flat, .h = x->flat ? 1 : x->h, .w = 1, .c = own->features};
    return DSC_OK;
}

static dsc_status declare_weight(dsc_model *m, dsc_node *node, const dsc_shape *x, int64_t in) {
    const attributes *own = node->attributes;
    int64_t out = own->features;
    dsc_state_tensor weight = {.trained = 1,
                               .tensor = {.dtype = m->options.dtype, .ndim = 2, .dim = {out, in}}};
    weight.std = own->options.std > 0 ? own->options.std : sqrt(2.0 / (double)in);
    weight.entry.permuted = own->options.in_out || (x->flat && x->h * x->w > 1);
    if (own->options.in_out) { /* [1, out, 1, in] in memory, [in, out] in files */
        weight.entry.ndim = 2;
        memcpy(weight.entry.dim, (int64_t[]){in, out}, 2 * sizeof in);
        memcpy(weight.entry.ohwc, (int64_t[]){1, out, 1, in}, sizeof weight.entry.ohwc);
    } else {
        memcpy(weight.entry.ohwc, (int64_t[]){out, x->h, x->w, x->c}, sizeof weight.entry.ohwc);
    }
    node->layer = m->layer_count++;
    return dsc_graph_declare(m, node, "weight", &weight, &node->weight);
}

static dsc_status declare(dsc_model *m, dsc_node *node) {
    const attributes *own = node->attributes;
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    int64_t in = dsc_shape_features(x), out = own->features;
    if (own->options.in_out && x->flat && x->h * x->w > 1)
        return DSC_FAIL(DSC_E_INVALID, "%s: a weight that files hold as [in, out] after a flattened map",
                        dsc_graph_describe(m, node));
    if (own->options.tied >= 0) {
        DSC_TRY(dsc_embedding_find(m, own->options.tied, out, in, &node->weight));
        DSC_TRY(dsc_graph_declare_alias(m, node, "weight", node->weight));
        node->tied = m->tied_count++;
    } else {
        DSC_TRY(declare_weight(m, node, x, in));
    }
    if (!own->options.bias)
        return DSC_OK;
    dsc_state_tensor bias = {.trained = 1, .tensor = {.dtype = m->options.dtype, .ndim = 1, .dim = {out}}};
    return dsc_graph_declare(m, node, "bias", &bias, &node->bias);
}

/* Returns t as a matrix with `features` columns. */
static dsc_tensor rows_of(const dsc_tensor *t, int64_t features) {
    const int64_t dim[2] = {dsc_tensor_count(t) / features, features};
    return dsc_tensor_view(t->device, t->data, t->dtype, 2, dim);
}

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    const int64_t out = op->matrix.dim[0];
    dsc_tensor x = rows_of(op->x[0], op->matrix.dim[1]), y = rows_of(op->y, out), half, term, activated;
    dsc_linear_epilogue e = {.b = dsc_exec_bias(exec, op)};
    if (e.b && exec->half.data) {
        half = dsc_exec_param(exec, op->node->bias);
        e.half_b = &half;
    }
    if (op->adds) {
        term = rows_of(op->x[1], out);
        e.term = &term;
    }
    if (op->activated < 0)
        return dsc_op_linear(q, &x, &op->matrix, &e, &y);
    activated = rows_of(&exec->values[op->activated], out);
    e.inner = &y;
    return dsc_op_linear(q, &x, &op->matrix, &e, &activated);
}

static dsc_status backward_data(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                                const dsc_tensor *dy) {
    dsc_tensor dx = rows_of(op->dx[0], op->matrix.dim[1]), inner;
    if (op->inner < 0)
        return dsc_op_gemm(q, 0, 0, 1, dy, &op->matrix, op->beta[0], &dx);
    inner = rows_of(&exec->values[op->inner], op->matrix.dim[1]);
    return dsc_op_gelu_gradient(q, dy, &op->matrix, &inner, &dx);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                           const dsc_backward_pass *pass) {
    dsc_tensor x = rows_of(op->x[0], op->matrix.dim[1]), dy = rows_of(op->dy, op->matrix.dim[0]);
    if (pass->param_grads) {
        dsc_tensor grad = *dsc_exec_weight_grad(exec, op);
        grad.dim[0] =
            op->matrix.dim[0]; /* longer rows of logits write zeros to gradients that are computed later */
        DSC_TRY(dsc_op_gemm(q, 1, 0, 1, &dy, &x, pass->beta, &grad));
        if (op->node->bias >= 0)
            DSC_TRY(dsc_op_bias_grad(q, &dy, pass->beta, dsc_exec_bias_grad(exec, op)));
    }
    if (op->dx[0])
        DSC_TRY(backward_data(exec, q, op, &dy));
    if (op->dx[1] && op->dx[1]->data != op->dy->data)
        return dsc_op_axpby(q, 1, op->dy, op->beta[1], op->dx[1]);
    return DSC_OK;
}

const dsc_layer_type dsc_layer_linear = {.name = "linear",
                                         .attribute_bytes = sizeof(attributes),
                                         .named = 1,
                                         .keeps_x = 1,
                                         .by_position = 1,
                                         .shape = shape,
                                         .declare = declare,
                                         .forward = forward,
                                         .backward = backward};

void dsc_linear_options_init_sized(dsc_linear_options *options, size_t size) {
    const dsc_linear_options defaults = {.bias = 1, .tied = -1, .blocks = 1};
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}

dsc_status dsc_model_linear_with(dsc_model *m, const char *name, dsc_value x, int64_t features,
                                 const dsc_linear_options *given, dsc_value *y) {
    attributes own = {.features = features};
    dsc_linear_options_init(&own.options);
    DSC_TRY(dsc_versioned_read("linear", given, sizeof own.options, &own.options));
    DSC_TRY(dsc_graph_add(m, &dsc_layer_linear, name, &x, 1, &own, y));
    if (own.options.tied >= 0)
        dsc_embedding_share(m, own.options.tied);
    return DSC_OK;
}

dsc_status dsc_model_linear(dsc_model *m, const char *name, dsc_value x, int64_t features, int bias,
                            dsc_value *y) {
    dsc_linear_options options;
    dsc_linear_options_init(&options);
    options.bias = bias;
    return dsc_model_linear_with(m, name, x, features, &options, y);
}
