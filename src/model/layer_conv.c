/* Convolution: y[n,oh,ow,k] = b[k] + sum over (i,j,ch) of w[k,i,j,ch] x[n, oh*s - p + i*d, ow*s - p + j*d,
 * ch].
 *
 * PyTorch stores the weights as [k, c/groups, kh, kw]. */
#include "base/error.h"
#include "model/exec.h"

#include <math.h>
#include <string.h>

typedef struct attributes {
    dsc_conv2d_shape shape;
    int bias;
} attributes;

static dsc_status shape(const dsc_model *m, dsc_node *node) {
    attributes *own = node->attributes;
    DSC_TRY(dsc_graph_expect_map(m, node));
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    own->shape.in_h = x->h;
    own->shape.in_w = x->w;
    own->shape.in_c = x->c;
    dsc_conv_desc desc = {.dtype = dsc_model_value_dtype(m), .n = 1, .shape = own->shape};
    node->shape = (dsc_shape){.c = own->shape.out_c};
    dsc_status status = dsc_conv_output(&desc, &node->shape.h, &node->shape.w);
    if (status != DSC_OK)
        return dsc_error_prefix(status, "%s on %s", dsc_graph_describe(m, node), dsc_shape_text(x));
    return DSC_OK;
}

static dsc_status declare(dsc_model *m, dsc_node *node) {
    const attributes *own = node->attributes;
    const dsc_conv2d_shape *s = &own->shape;
    int64_t k = s->out_c, c = s->in_c / s->groups;
    dsc_state_tensor weight = {.trained = 1, .tensor = {.dtype = m->options.dtype, .ndim = 4}};
    memcpy(weight.tensor.dim, (int64_t[]){k, s->kernel_h, s->kernel_w, c}, 4 * sizeof(int64_t));
    weight.std = sqrt(2.0 / ((double)s->kernel_h * (double)s->kernel_w * (double)c));
    weight.entry.ndim = 4;
    memcpy(weight.entry.dim, (int64_t[]){k, c, s->kernel_h, s->kernel_w}, 4 * sizeof(int64_t));
    weight.entry.permuted = c > 1 && (s->kernel_h > 1 || s->kernel_w > 1);
    memcpy(weight.entry.ohwc, weight.tensor.dim, sizeof weight.entry.ohwc);
    DSC_TRY(dsc_graph_declare(m, node, "weight", &weight, &node->weight));
    if (own->bias) {
        dsc_state_tensor bias = {.trained = 1, .tensor = {.dtype = m->options.dtype, .ndim = 1, .dim = {k}}};
        DSC_TRY(dsc_graph_declare(m, node, "bias", &bias, &node->bias));
    }
    node->layer = m->layer_count++;
    return DSC_OK;
}

static void describe(const dsc_node *node, dsc_layer_info *info) {
    const attributes *own = node->attributes;
    info->kind = DSC_LAYER_CONV2D;
    info->shape = &own->shape;
    info->out_h = node->shape.h;
    info->out_w = node->shape.w;
}

static dsc_status plan(dsc_exec *exec, dsc_exec_op *op) {
    const attributes *own = op->node->attributes;
    dsc_conv_desc desc = {.dtype = dsc_model_value_dtype(exec->model), .n = exec->batch, .shape = own->shape};
    if (exec->mode == DSC_EXEC_EVAL)
        DSC_TRY(dsc_conv_create_forward(exec->model->device, &desc, &op->conv));
    else
        DSC_TRY(dsc_conv_create(exec->model->device, &desc, &op->conv));
    size_t work = dsc_conv_workspace(op->conv);
    if (work > exec->work_bytes)
        exec->work_bytes = work;
    return DSC_OK;
}

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    dsc_tensor work = exec->work;
    return dsc_op_conv_forward(q, op->conv, op->x[0], &op->matrix, dsc_exec_bias(exec, op), &work, op->y);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                           const dsc_backward_pass *pass) {
    dsc_tensor work = exec->work;
    if (pass->param_grads) {
        DSC_TRY(dsc_op_conv_backward_weight(q, op->conv, op->x[0], op->dy, pass->beta, &work,
                                            dsc_exec_weight_grad(exec, op)));
        if (op->node->bias >= 0)
            DSC_TRY(dsc_op_bias_grad(q, op->dy, pass->beta, dsc_exec_bias_grad(exec, op)));
    }
    if (!op->dx[0])
        return DSC_OK;
    return dsc_op_conv_backward_data(q, op->conv, &op->matrix, op->dy, op->beta[0], &work, op->dx[0]);
}

const dsc_layer_type dsc_layer_conv2d = {.name = "conv2d",
                                         .attribute_bytes = sizeof(attributes),
                                         .named = 1,
                                         .keeps_x = 1,
                                         .shape = shape,
                                         .declare = declare,
                                         .describe = describe,
                                         .plan = plan,
                                         .forward = forward,
                                         .backward = backward};

dsc_status dsc_model_conv2d(dsc_model *m, const char *name, dsc_value x, const dsc_conv2d_shape *shape,
                            int bias, dsc_value *y) {
    attributes own = {.bias = bias};
    dsc_status status = dsc_conv2d_shape_read(shape, &own.shape);
    if (status != DSC_OK)
        return dsc_error_prefix(status, "conv2d '%s'", name ? name : "");
    if (own.shape.extra_h != 0 || own.shape.extra_w != 0)
        return DSC_FAIL(DSC_E_UNSUPPORTED, "conv2d '%s': extra_h and extra_w are for K-FAC layers alone",
                        name ? name : "");
    return dsc_graph_add(m, &dsc_layer_conv2d, name, &x, 1, &own, y);
}
