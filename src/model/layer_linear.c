/* Linear layer: y[n,out] = x[n,in] w[out,in]' + b[out].
 *
 * After a flatten of an h x w x c map PyTorch's columns are in the order c, h, w; here they are h, w, c. */
#include "base/error.h"
#include "model/exec.h"

#include <math.h>
#include <string.h>

typedef struct attributes {
    int64_t features;
    int bias;
} attributes;

static dsc_status shape(const dsc_model *m, dsc_node *node) {
    const attributes *own = node->attributes;
    DSC_TRY(dsc_graph_expect_vector(m, node));
    if (own->features < 1)
        return DSC_FAIL(DSC_E_INVALID, "%s: %lld output features, but at least 1 is needed",
                        dsc_graph_describe(m, node), (long long)own->features);
    node->shape = (dsc_shape){.flat = 1, .h = 1, .w = 1, .c = own->features};
    return DSC_OK;
}

static dsc_status declare(dsc_model *m, dsc_node *node) {
    const attributes *own = node->attributes;
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    int64_t in = dsc_shape_count(x), out = own->features;
    dsc_state_tensor weight = {.trained = 1,
                               .tensor = {.dtype = m->options.dtype, .ndim = 2, .dim = {out, in}}};
    weight.std = sqrt(2.0 / (double)in);
    weight.entry.permuted = x->h * x->w > 1;
    memcpy(weight.entry.ohwc, (int64_t[]){out, x->h, x->w, x->c}, sizeof weight.entry.ohwc);
    DSC_TRY(dsc_graph_declare(m, node, "weight", &weight, &node->weight));
    if (own->bias) {
        dsc_state_tensor bias = {.trained = 1,
                                 .tensor = {.dtype = m->options.dtype, .ndim = 1, .dim = {out}}};
        DSC_TRY(dsc_graph_declare(m, node, "bias", &bias, &node->bias));
    }
    node->layer = m->layer_count++;
    return DSC_OK;
}

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    DSC_TRY(dsc_op_gemm(q, 0, 1, 1, op->x[0], &op->matrix, 0, op->y));
    if (op->node->bias < 0)
        return DSC_OK;
    return dsc_op_bias_add(q, dsc_exec_bias(exec, op), op->y);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                           const dsc_backward_pass *pass) {
    if (pass->param_grads) {
        DSC_TRY(dsc_op_gemm(q, 1, 0, 1, op->dy, op->x[0], pass->beta, dsc_exec_weight_grad(exec, op)));
        if (op->node->bias >= 0)
            DSC_TRY(dsc_op_bias_grad(q, op->dy, pass->beta, dsc_exec_bias_grad(exec, op)));
    }
    if (!op->dx[0])
        return DSC_OK;
    return dsc_op_gemm(q, 0, 0, 1, op->dy, &op->matrix, op->beta[0], op->dx[0]);
}

static const dsc_layer_type linear = {.name = "linear",
                                      .attribute_bytes = sizeof(attributes),
                                      .named = 1,
                                      .keeps_x = 1,
                                      .shape = shape,
                                      .declare = declare,
                                      .forward = forward,
                                      .backward = backward};

dsc_status dsc_model_linear(dsc_model *m, const char *name, dsc_value x, int64_t features, int bias,
                            dsc_value *y) {
    return dsc_graph_add(m, &linear, name, &x, 1, &(attributes){features, bias}, y);
}
