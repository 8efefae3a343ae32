/* Flatten: the same numbers, seen as a vector. */
#include "base/error.h"
#include "model/exec.h"

static dsc_status shape(const dsc_model *m, dsc_node *node) {
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    node->shape = *x;
    node->shape.flat = 1;
    if (!x->flat && (x->h * x->w == 1 || x->c == 1)) /* PyTorch has the same order of elements */
        node->shape = (dsc_shape){.flat = 1, .h = 1, .w = 1, .c = dsc_shape_count(x)};
    return DSC_OK;
}

static dsc_status plan(dsc_exec *exec, dsc_exec_op *op) {
    (void)exec;
    op->view = 1;
    return DSC_OK;
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                           const dsc_backward_pass *pass) {
    (void)exec;
    (void)pass;
    if (op->dx[0]->data == op->dy->data)
        return DSC_OK;
    return dsc_op_axpby(q, 1, op->dy, op->beta[0], op->dx[0]);
}

static const dsc_layer_type flatten = {
    .name = "flatten", .in_place = 1, .shape = shape, .plan = plan, .backward = backward};

dsc_status dsc_model_flatten(dsc_model *m, dsc_value x, dsc_value *y) {
    return dsc_graph_add(m, &flatten, NULL, &x, 1, NULL, y);
}
