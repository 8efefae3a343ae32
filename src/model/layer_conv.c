/* Convolution: y[n,oh,ow,k] = b[k] + sum over (i,j,ch) of w[k,i,j,ch] x[n, oh*s - p + i*d, ow*s - p + j*d,
 * ch].
 *
 * PyTorch keeps the weights as [k, c/groups, kh, kw]. */
#include "base/error.h"
#include "base/versioned.h"
#include "model/exec.h"

#include <math.h>
#include <string.h>

void dsc_conv2d_options_init(dsc_conv2d_options *options, int64_t kernel) {
    *options = (dsc_conv2d_options){.size = sizeof *options,
                                    .kernel_h = kernel,
                                    .kernel_w = kernel,
                                    .stride_h = 1,
                                    .stride_w = 1,
                                    .dilation_h = 1,
                                    .dilation_w = 1,
                                    .groups = 1};
}

static dsc_conv_desc describe(const dsc_model *m, const dsc_node *node, int64_t batch) {
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    const dsc_conv2d_options *o = &node->conv;
    return (dsc_conv_desc){.dtype = dsc_model_flow_dtype(m),
                           .n = batch,
                           .shape = {.size = sizeof(dsc_conv2d_shape),
                                     .in_h = x->h,
                                     .in_w = x->w,
                                     .in_c = x->c,
                                     .out_c = node->channels,
                                     .kernel_h = o->kernel_h,
                                     .kernel_w = o->kernel_w,
                                     .stride_h = o->stride_h,
                                     .stride_w = o->stride_w,
                                     .pad_h = o->pad_h,
                                     .pad_w = o->pad_w,
                                     .dilation_h = o->dilation_h,
                                     .dilation_w = o->dilation_w,
                                     .groups = o->groups}};
}

static dsc_status shape(const dsc_model *m, dsc_node *node) {
    DSC_TRY(dsc_graph_expect_map(m, node));
    dsc_conv_desc desc = describe(m, node, 1);
    node->shape = (dsc_shape){.c = node->channels};
    dsc_status status = dsc_conv_output(&desc, &node->shape.h, &node->shape.w);
    if (status != DSC_OK)
        return dsc_error_prefix(status, "%s on %s", dsc_graph_describe(m, node),
                                dsc_shape_text(dsc_graph_input(m, node, 0)));
    return DSC_OK;
}

static dsc_status declare(dsc_model *m, dsc_node *node) {
    const dsc_conv2d_options *o = &node->conv;
    int64_t k = node->channels, c = dsc_graph_input(m, node, 0)->c / o->groups;
    dsc_slot weight = {.trained = 1, .tensor = {.dtype = m->options.dtype, .ndim = 4}};
    memcpy(weight.tensor.dim, (int64_t[]){k, o->kernel_h, o->kernel_w, c}, 4 * sizeof(int64_t));
    weight.std = sqrt(2.0 / ((double)o->kernel_h * (double)o->kernel_w * (double)c));
    weight.there.ndim = 4;
    memcpy(weight.there.dim, (int64_t[]){k, c, o->kernel_h, o->kernel_w}, 4 * sizeof(int64_t));
    weight.there.permuted = c > 1 && (o->kernel_h > 1 || o->kernel_w > 1);
    memcpy(weight.there.ohwc, weight.tensor.dim, sizeof weight.there.ohwc);
    DSC_TRY(dsc_graph_declare(m, node, "weight", &weight, &node->weight));
    if (o->bias) {
        dsc_slot bias = {.trained = 1, .tensor = {.dtype = m->options.dtype, .ndim = 1, .dim = {k}}};
        DSC_TRY(dsc_graph_declare(m, node, "bias", &bias, &node->bias));
    }
    node->layer = m->layer_count++;
    return DSC_OK;
}

static dsc_status plan(dsc_exec *exec, dsc_step *step) {
    dsc_conv_desc desc = describe(exec->model, step->node, exec->batch);
    if (exec->mode == DSC_EXEC_EVAL)
        DSC_TRY(dsc_conv_create_forward(exec->model->device, &desc, &step->conv));
    else
        DSC_TRY(dsc_conv_create(exec->model->device, &desc, &step->conv));
    size_t work = dsc_conv_workspace(step->conv);
    if (work > exec->work_bytes)
        exec->work_bytes = work;
    return DSC_OK;
}

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step) {
    dsc_tensor work = exec->work;
    return dsc_op_conv_forward(q, step->conv, step->x[0], &step->matrix, dsc_step_bias(exec, step), &work,
                               step->y);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step, const dsc_pass *pass) {
    dsc_tensor work = exec->work;
    if (pass->param_grads) {
        DSC_TRY(dsc_op_conv_backward_weight(q, step->conv, step->x[0], step->dy, pass->beta, &work,
                                            dsc_step_weight_grad(exec, step)));
        if (step->node->bias >= 0)
            DSC_TRY(dsc_op_bias_grad(q, step->dy, pass->beta, dsc_step_bias_grad(exec, step)));
    }
    if (!step->dx[0])
        return DSC_OK;
    return dsc_op_conv_backward_data(q, step->conv, &step->matrix, step->dy, step->beta[0], &work,
                                     step->dx[0]);
}

const dsc_layer_type dsc_layer_conv2d = {.name = "conv2d",
                                         .keeps_x = 1,
                                         .shape = shape,
                                         .declare = declare,
                                         .plan = plan,
                                         .forward = forward,
                                         .backward = backward};

dsc_status dsc_model_conv2d(dsc_model *m, const char *name, dsc_value x, int64_t channels,
                            const dsc_conv2d_options *options, dsc_value *y) {
    dsc_node node = dsc_graph_node(&dsc_layer_conv2d, name ? name : "", x);
    node.channels = channels;
    dsc_conv2d_options_init(&node.conv, 1);
    DSC_TRY(dsc_versioned_read("conv2d", options, sizeof node.conv, &node.conv));
    return dsc_graph_add(m, &node, y);
}
