/* Linear layer: y[n,out] = x[n,in] w[out,in]' + b[out].
 *
 * Behind a flatten of an h x w x c map PyTorch's columns are in the order c, h, w; here they are h, w, c. */
#include "base/error.h"
#include "model/exec.h"

#include <math.h>
#include <string.h>

static dsc_status shape(const dsc_model *m, dsc_node *node) {
    DSC_TRY(dsc_graph_expect_vector(m, node));
    if (node->channels < 1)
        return DSC_FAIL(DSC_E_INVALID, "%s: %lld output features, but at least 1 is needed",
                        dsc_graph_describe(m, node), (long long)node->channels);
    node->shape = (dsc_shape){.flat = 1, .h = 1, .w = 1, .c = node->channels};
    return DSC_OK;
}

static dsc_status declare(dsc_model *m, dsc_node *node) {
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    int64_t in = dsc_shape_count(x), out = node->channels;
    dsc_slot weight = {.trained = 1, .tensor = {.dtype = m->options.dtype, .ndim = 2, .dim = {out, in}}};
    weight.std = sqrt(2.0 / (double)in);
    weight.there.permuted = x->h * x->w > 1;
    memcpy(weight.there.ohwc, (int64_t[]){out, x->h, x->w, x->c}, sizeof weight.there.ohwc);
    DSC_TRY(dsc_graph_declare(m, node, "weight", &weight, &node->weight));
    if (node->with_bias) {
        dsc_slot bias = {.trained = 1, .tensor = {.dtype = m->options.dtype, .ndim = 1, .dim = {out}}};
        DSC_TRY(dsc_graph_declare(m, node, "bias", &bias, &node->bias));
    }
    node->layer = m->layer_count++;
    return DSC_OK;
}

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step) {
    DSC_TRY(dsc_op_gemm(q, 0, 1, 1, step->x[0], &step->matrix, 0, step->y));
    if (step->node->bias < 0)
        return DSC_OK;
    return dsc_op_bias_add(q, dsc_step_bias(exec, step), step->y);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step, const dsc_pass *pass) {
    if (pass->param_grads) {
        DSC_TRY(dsc_op_gemm(q, 1, 0, 1, step->dy, step->x[0], pass->beta, dsc_step_weight_grad(exec, step)));
        if (step->node->bias >= 0)
            DSC_TRY(dsc_op_bias_grad(q, step->dy, pass->beta, dsc_step_bias_grad(exec, step)));
    }
    if (!step->dx[0])
        return DSC_OK;
    return dsc_op_gemm(q, 0, 0, 1, step->dy, &step->matrix, step->beta[0], step->dx[0]);
}

const dsc_layer_type dsc_layer_linear = {.name = "linear",
                                         .keeps_x = 1,
                                         .shape = shape,
                                         .declare = declare,
                                         .forward = forward,
                                         .backward = backward};

dsc_status dsc_model_linear(dsc_model *m, const char *name, dsc_value x, int64_t features, int bias,
                            dsc_value *y) {
    dsc_node node = dsc_graph_node(&dsc_layer_linear, name ? name : "", x);
    node.channels = features;
    node.with_bias = bias;
    return dsc_graph_add(m, &node, y);
}
