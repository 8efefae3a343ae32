/* Addition: y = a + b. */
#include "base/error.h"
#include "model/exec.h"

static dsc_status shape(const dsc_model *m, dsc_node *node) {
    const dsc_shape *a = dsc_graph_input(m, node, 0), *b = dsc_graph_input(m, node, 1);
    if (a->flat != b->flat || a->h != b->h || a->w != b->w || a->c != b->c)
        return DSC_FAIL(
            DSC_E_INVALID, "%s: the inputs are %s (value %d) and %s (value %d)%s, but must be alike",
            dsc_graph_describe(m, node), dsc_shape_text(a), node->in[0], dsc_shape_text(b), node->in[1],
            a->flat && b->flat && dsc_shape_count(a) == dsc_shape_count(b)
                ? ", flattened from maps of different shapes"
                : "");
    node->shape = *a;
    return DSC_OK;
}

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    (void)exec;
    return dsc_op_add(q, op->x[0], op->x[1], op->y);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                           const dsc_backward_pass *pass) {
    (void)exec;
    (void)pass;
    for (int i = 0; i < 2; i++)
        if (op->dx[i] && op->dx[i]->data != op->dy->data)
            DSC_TRY(dsc_op_axpby(q, 1, op->dy, op->beta[i], op->dx[i]));
    return DSC_OK;
}

const dsc_layer_type dsc_layer_add = {
    .name = "add", .in_place = 1, .by_position = 1, .shape = shape, .forward = forward, .backward = backward};

dsc_status dsc_model_add(dsc_model *m, dsc_value a, dsc_value b, dsc_value *y) {
    return dsc_graph_add(m, &dsc_layer_add, NULL, (dsc_value[]){a, b}, 2, NULL, y);
}
