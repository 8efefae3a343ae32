/* Concatenation: the channels of a, then those of b. */
#include "base/error.h"
#include "model/exec.h"

static dsc_status shape(const dsc_model *m, dsc_node *node) {
    const dsc_shape *a = dsc_graph_input(m, node, 0), *b = dsc_graph_input(m, node, 1);
    if (a->flat || b->flat || a->h != b->h || a->w != b->w)
        return DSC_FAIL(
            DSC_E_INVALID,
            "%s: the inputs are %s (value %d) and %s (value %d), but maps of equal height and width are "
            "needed; a crop makes the larger one smaller",
            dsc_graph_describe(m, node), dsc_shape_text(a), node->in[0], dsc_shape_text(b), node->in[1]);
    node->shape = *a;
    node->shape.c += b->c;
    return DSC_OK;
}

/* Returns the part of y that holds the channels of input i. */
static dsc_part_desc part_of(const dsc_exec_op *op, int i) {
    return (dsc_part_desc){.first = i ? op->x[0]->dim[3] : 0};
}

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    (void)exec;
    for (int i = 0; i < 2; i++) {
        dsc_part_desc part = part_of(op, i);
        DSC_TRY(dsc_op_paste(q, &part, op->x[i], 0, op->y));
    }
    return DSC_OK;
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                           const dsc_backward_pass *pass) {
    (void)exec;
    (void)pass;
    for (int i = 0; i < 2; i++) {
        dsc_part_desc part = part_of(op, i);
        if (op->dx[i])
            DSC_TRY(dsc_op_cut(q, &part, op->dy, op->beta[i], op->dx[i]));
    }
    return DSC_OK;
}

static const dsc_layer_type concat = {
    .name = "concat", .by_position = 1, .shape = shape, .forward = forward, .backward = backward};

dsc_status dsc_model_concat(dsc_model *m, dsc_value a, dsc_value b, dsc_value *y) {
    return dsc_graph_add(m, &concat, NULL, (dsc_value[]){a, b}, 2, NULL, y);
}
