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

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step) {
    (void)exec;
    return dsc_op_add(q, step->x[0], step->x[1], step->y);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step, const dsc_pass *pass) {
    (void)exec;
    (void)pass;
    for (int i = 0; i < 2; i++)
        if (step->dx[i] && step->dx[i]->data != step->dy->data)
            DSC_TRY(dsc_op_axpby(q, 1, step->dy, step->beta[i], step->dx[i]));
    return DSC_OK;
}

const dsc_layer_type dsc_layer_add = {
    .name = "add", .in_place = 1, .shape = shape, .forward = forward, .backward = backward};

dsc_status dsc_model_add(dsc_model *m, dsc_value a, dsc_value b, dsc_value *y) {
    dsc_node node = dsc_graph_node(&dsc_layer_add, NULL, a);
    node.inputs = 2;
    node.in[1] = b;
    return dsc_graph_add(m, &node, y);
}
