/* ReLU: y = max(x, 0); the gradient passes where y > 0. */
#include "model/exec.h"

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step) {
    (void)exec;
    return dsc_op_relu_forward(q, step->x[0], step->y);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step, const dsc_pass *pass) {
    (void)exec;
    (void)pass;
    return dsc_op_relu_backward(q, step->y, step->dy, step->beta[0], step->dx[0]);
}

const dsc_layer_type dsc_layer_relu = {.name = "relu",
                                       .in_place = 1,
                                       .keeps_y = 1,
                                       .shape = dsc_graph_same_shape,
                                       .forward = forward,
                                       .backward = backward};

dsc_status dsc_model_relu(dsc_model *m, dsc_value x, dsc_value *y) {
    dsc_node node = dsc_graph_node(&dsc_layer_relu, NULL, x);
    return dsc_graph_add(m, &node, y);
}
