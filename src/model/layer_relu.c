/* ReLU: y = max(x, 0); the gradient passes where y > 0. */
#include "model/exec.h"

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    (void)exec;
    return dsc_op_relu_forward(q, op->x[0], op->y);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                           const dsc_backward_pass *pass) {
    (void)exec;
    (void)pass;
    return dsc_op_relu_backward(q, op->y, op->dy, op->beta[0], op->dx[0]);
}

const dsc_layer_type dsc_layer_relu = {.name = "relu",
                                       .in_place = 1,
                                       .keeps_y = 1,
                                       .by_position = 1,
                                       .shape = dsc_graph_same_shape,
                                       .forward = forward,
                                       .backward = backward};

dsc_status dsc_model_relu(dsc_model *m, dsc_value x, dsc_value *y) {
    return dsc_graph_add(m, &dsc_layer_relu, NULL, &x, 1, NULL, y);
}
