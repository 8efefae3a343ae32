/* Norms within a sample: layer norm and RMS norm over the channels of each position, group norm over a group of
 * channels at all positions. For the backward pass only mean and 1 / std of each group are kept, besides the input. */
#include "base/error.h"
#include "model/exec.h"

#include <math.h>
#include <string.h>

typedef struct attributes {
    dsc_group_norm_desc desc;
    int bias;
    int rows; /* 1: every position is normalised by itself */
} attributes;

static dsc_status shape(const dsc_model *m, dsc_node *node) {
    const attributes *own = node->attributes;
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    if (!(own->desc.eps > 0) || isinf(own->desc.eps))
        return DSC_FAIL(DSC_E_INVALID, "%s: eps is %g, but it must be positive and finite",
                        dsc_graph_describe(m, node), own->desc.eps);
    if (!own->rows && x->flat && x->h * x->w > 1) /* in PyTorch's order the groups would differ */
        return DSC_FAIL(DSC_E_INVALID, "%s: the input is a flattened map; put the norm before the flatten",
                        dsc_graph_describe(m, node));
    if (own->desc.groups < 1 || dsc_shape_features(x) % own->desc.groups != 0)
        return DSC_FAIL(DSC_E_INVALID, "%s: %lld groups, but they must divide the %lld channels",
                        dsc_graph_describe(m, node), (long long)own->desc.groups,
                        (long long)dsc_shape_features(x));
    return dsc_graph_same_shape(m, node);
}

static dsc_status declare(dsc_model *m, dsc_node *node) {
    const attributes *own = node->attributes;
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    dsc_state_tensor t = {.trained = 1,
                          .start = 1,
                          .tensor = {.dtype = m->options.dtype, .ndim = 1, .dim = {dsc_shape_features(x)}}};
    node->norm = m->norm_count++;
    t.entry.permuted = x->flat && x->h * x->w > 1;
    memcpy(t.entry.ohwc, (int64_t[]){1, x->flat ? x->h : 1, x->flat ? x->w : 1, x->c}, sizeof t.entry.ohwc);
    DSC_TRY(dsc_graph_declare(m, node, "weight", &t, &node->weight));
    t.start = 0;
    return own->bias ? dsc_graph_declare(m, node, "bias", &t, &node->bias) : DSC_OK;
}

/* The number of samples as the operation sees them: samples, or positions of samples. */
static int64_t samples(const dsc_exec *exec, const dsc_exec_op *op) {
    const attributes *own = op->node->attributes;
    return own->rows ? dsc_tensor_count(&exec->values[op->out]) / dsc_shape_features(&op->node->shape)
                     : exec->batch;
}

static dsc_status plan(dsc_exec *exec, dsc_exec_op *op) {
    const attributes *own = op->node->attributes;
    const int64_t dim[2] = {samples(exec, op), own->desc.groups};
    for (int i = own->desc.rms ? 1 : 0; i < 2; i++) /* mean, 1 / std */
        op->saved[i] = dsc_tensor_view(exec->model->device, NULL, exec->model->options.dtype, 2, dim);
    return DSC_OK;
}

/* Returns t as [samples, positions, channels]. */
static dsc_tensor view(const dsc_exec *exec, const dsc_exec_op *op, const dsc_tensor *t) {
    int64_t n = samples(exec, op), c = dsc_shape_features(&op->node->shape);
    return dsc_tensor_view(t->device, t->data, t->dtype, 3, (int64_t[]){n, dsc_tensor_count(t) / (n * c), c});
}

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    const attributes *own = op->node->attributes;
    dsc_tensor x = view(exec, op, op->x[0]), y = view(exec, op, op->y);
    dsc_tensor mean = op->saved[0], invstd = op->saved[1];
    return dsc_op_group_norm_forward(q, &own->desc, &x, dsc_exec_weight(exec, op), dsc_exec_bias(exec, op),
                                     mean.data ? &mean : NULL, invstd.data ? &invstd : NULL, &y);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                           const dsc_backward_pass *pass) {
    const attributes *own = op->node->attributes;
    dsc_tensor x = view(exec, op, op->x[0]), dy = view(exec, op, op->dy), dx;
    dsc_norm_grads grads = {.beta_x = op->beta[0], .beta_p = pass->beta};
    if (op->dx[0]) {
        dx = view(exec, op, op->dx[0]);
        grads.dx = &dx;
    }
    if (pass->param_grads) {
        grads.dgamma = dsc_exec_weight_grad(exec, op);
        grads.dshift = dsc_exec_bias_grad(exec, op);
    }
    return dsc_op_group_norm_backward(q, &own->desc, &x, &dy, dsc_exec_weight(exec, op),
                                      own->desc.rms ? NULL : &op->saved[0], &op->saved[1], &grads);
}

#define TYPE(of, positions)                                                                                  \
    {                                                                                                        \
        .name = of, .attribute_bytes = sizeof(attributes), .named = 1, .keeps_x = 1,                         \
        .by_position = (positions), .shape = shape, .declare = declare, .plan = plan, .forward = forward,    \
        .backward = backward                                                                                 \
    }

static const dsc_layer_type layer_norm = TYPE("layer_norm", 1), rms_norm = TYPE("rms_norm", 1),
                            group_norm = TYPE("group_norm", 0);

dsc_status dsc_model_layer_norm(dsc_model *m, const char *name, dsc_value x, double eps, int bias,
                                dsc_value *y) {
    const attributes own = {.desc = {.eps = eps, .groups = 1}, .bias = bias, .rows = 1};
    return dsc_graph_add(m, &layer_norm, name, &x, 1, &own, y);
}

dsc_status dsc_model_rms_norm(dsc_model *m, const char *name, dsc_value x, double eps, dsc_value *y) {
    const attributes own = {.desc = {.eps = eps, .groups = 1, .rms = 1}, .rows = 1};
    return dsc_graph_add(m, &rms_norm, name, &x, 1, &own, y);
}

dsc_status dsc_model_group_norm(dsc_model *m, const char *name, dsc_value x, int64_t groups, double eps,
                                dsc_value *y) {
    const attributes own = {.desc = {.eps = eps, .groups = groups}, .bias = 1};
    return dsc_graph_add(m, &group_norm, name, &x, 1, &own, y);
}
