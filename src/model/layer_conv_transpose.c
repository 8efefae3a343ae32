/* Transposed convolution: for input pixel (i, j) of channel ch, kernel row u and column v, output channel k
 *   y[n, i s - p + u d, j s - p + v d, k] = b[k] + sum over (i, j, u, v, ch) of x[n, i, j, ch] w[ch, u, v, k].
 *
 * It is the data gradient of the convolution that maps y to x (dsc_conv_transposed). The forward pass of that
 * convolution on dy gives dx, and its weight gradient, with x as its output gradient, gives dw. PyTorch stores the
 * weights as [ch, k/groups, kh, kw]. */
#include "base/error.h"
#include "model/exec.h"

#include <math.h>
#include <string.h>

typedef struct attributes {
    dsc_conv2d_shape given;
    dsc_conv2d_shape conv; /* from y to x */
    int bias;
} attributes;

static dsc_status shape(const dsc_model *m, dsc_node *node) {
    attributes *own = node->attributes;
    DSC_TRY(dsc_graph_expect_map(m, node));
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    own->given.in_h = x->h;
    own->given.in_w = x->w;
    own->given.in_c = x->c;
    dsc_status status = dsc_conv_transposed(&own->given, &own->conv);
    dsc_conv_desc desc = {.dtype = dsc_model_value_dtype(m), .n = 1, .shape = own->conv};
    int64_t h = 0, w = 0;
    if (status == DSC_OK)
        status = dsc_conv_output(&desc, &h, &w); /* checks the sizes of the tensors; h and w are those of x */
    if (status != DSC_OK)
        return dsc_error_prefix(status, "%s on %s", dsc_graph_describe(m, node), dsc_shape_text(x));
    node->shape = (dsc_shape){.h = own->conv.in_h, .w = own->conv.in_w, .c = own->given.out_c};
    return DSC_OK;
}

/* The mean number of kernel rows, or columns, that contribute to an output. */
static double mean_taps(int64_t kernel, int64_t stride) {
    return kernel > stride ? (double)kernel / (double)stride : 1;
}

static dsc_status declare(dsc_model *m, dsc_node *node) {
    const attributes *own = node->attributes;
    const dsc_conv2d_shape *s = &own->given;
    int64_t c = s->in_c, k = s->out_c / s->groups, h = s->kernel_h, w = s->kernel_w;
    dsc_state_tensor weight = {.trained = 1, .tensor = {.dtype = m->options.dtype, .ndim = 4}};
    memcpy(weight.tensor.dim, (int64_t[]){c, h, w, k}, 4 * sizeof(int64_t));
    double fan_in = (double)(c / s->groups) * mean_taps(h, s->stride_h) * mean_taps(w, s->stride_w);
    weight.std = sqrt(2 / fan_in);
    weight.entry.ndim = 4;
    memcpy(weight.entry.dim, (int64_t[]){c, k, h, w}, 4 * sizeof(int64_t));
    weight.entry.permuted = k > 1 && (h > 1 || w > 1);
    memcpy(weight.entry.ohwc, weight.tensor.dim, sizeof weight.entry.ohwc);
    DSC_TRY(dsc_graph_declare(m, node, "weight", &weight, &node->weight));
    if (s->groups == 1) /* K-FAC does not support others */
        node->layer = m->layer_count++;
    if (!own->bias)
        return DSC_OK;
    dsc_state_tensor bias = {.trained = 1,
                             .tensor = {.dtype = m->options.dtype, .ndim = 1, .dim = {s->out_c}}};
    return dsc_graph_declare(m, node, "bias", &bias, &node->bias);
}

static void describe(const dsc_node *node, dsc_layer_info *info) {
    const attributes *own = node->attributes;
    info->kind = DSC_LAYER_CONV_TRANSPOSE2D;
    info->shape = &own->given;
    info->out_h = node->shape.h;
    info->out_w = node->shape.w;
    info->bias = -1;
}

/* ---- running ---- */

static int has_other_readers(const dsc_model *m, dsc_value v) {
    int readers = 0;
    for (int64_t i = 0; i < m->node_count; i++)
        for (int k = 0; k < m->nodes[i].inputs; k++)
            readers += m->nodes[i].in[k] == v;
    return readers > 1;
}

static size_t rounded(size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

/* The convolution's forward pass cannot add to dx. If x has other readers, the workspace has room for this layer's
 * gradient, which is then added to dx. */
static dsc_status plan(dsc_exec *exec, dsc_exec_op *op) {
    const attributes *own = op->node->attributes;
    dsc_model *m = exec->model;
    dsc_conv_desc desc = {.dtype = dsc_model_value_dtype(m), .n = exec->batch, .shape = own->conv};
    if (exec->mode == DSC_EXEC_EVAL)
        DSC_TRY(dsc_conv_create_backward_data(m->device, &desc, &op->conv));
    else
        DSC_TRY(dsc_conv_create(m->device, &desc, &op->conv));
    size_t work = dsc_conv_workspace(op->conv);
    if (exec->mode == DSC_EXEC_TRAIN && has_other_readers(m, op->in[0]))
        work = rounded(work) + dsc_tensor_bytes(&exec->values[op->in[0]]);
    if (work > exec->work_bytes)
        exec->work_bytes = work;
    return DSC_OK;
}

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    dsc_tensor work = exec->work, w = dsc_exec_param(exec, op->node->weight);
    DSC_TRY(dsc_op_conv_backward_data(q, op->conv, &w, op->x[0], 0, &work, op->y));
    if (op->node->bias < 0)
        return DSC_OK;
    return dsc_op_bias_add(q, dsc_exec_bias(exec, op), op->y);
}

static dsc_status backward_x(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    dsc_tensor work = exec->work, w = dsc_exec_param(exec, op->node->weight), dx = *op->dx[0];
    if (op->beta[0] != 0)
        dx.data = (char *)work.data + rounded(dsc_conv_workspace(op->conv));
    DSC_TRY(dsc_op_conv_forward(q, op->conv, op->dy, &w, NULL, &work, &dx));
    if (op->beta[0] == 0)
        return DSC_OK;
    return dsc_op_add(q, &dx, op->dx[0], op->dx[0]);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                           const dsc_backward_pass *pass) {
    dsc_tensor work = exec->work;
    if (pass->param_grads) {
        DSC_TRY(dsc_op_conv_backward_weight(q, op->conv, op->dy, op->x[0], pass->beta, &work,
                                            dsc_exec_weight_grad(exec, op)));
        if (op->node->bias >= 0)
            DSC_TRY(dsc_op_bias_grad(q, op->dy, pass->beta, dsc_exec_bias_grad(exec, op)));
    }
    return op->dx[0] ? backward_x(exec, q, op) : DSC_OK;
}

const dsc_layer_type dsc_layer_conv_transpose2d = {.name = "conv_transpose2d",
                                                   .attribute_bytes = sizeof(attributes),
                                                   .named = 1,
                                                   .keeps_x = 1,
                                                   .shape = shape,
                                                   .declare = declare,
                                                   .describe = describe,
                                                   .plan = plan,
                                                   .forward = forward,
                                                   .backward = backward};

dsc_status dsc_model_conv_transpose2d(dsc_model *m, const char *name, dsc_value x,
                                      const dsc_conv2d_shape *shape, int bias, dsc_value *y) {
    attributes own = {.bias = bias};
    dsc_status status = dsc_conv2d_shape_read(shape, &own.given);
    if (status != DSC_OK)
        return dsc_error_prefix(status, "conv_transpose2d '%s'", name ? name : "");
    return dsc_graph_add(m, &dsc_layer_conv_transpose2d, name, &x, 1, &own, y);
}
