/* Dropout: y = x mask / (1 - rate) in training, y = x in evaluation. */
#include "base/error.h"
#include "model/exec.h"

static dsc_status declare(dsc_model *m, dsc_node *node) {
    dsc_dropout_desc *desc = node->attributes;
    desc->layer = (int)m->dropout_count++;
    return DSC_OK;
}

static dsc_status plan(dsc_exec *exec, dsc_exec_op *op) {
    op->view = exec->mode == DSC_EXEC_EVAL;
    return DSC_OK;
}

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    return dsc_op_dropout(q, op->node->attributes, &exec->position, op->x[0], 0, op->y);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                           const dsc_backward_pass *pass) {
    (void)pass;
    return dsc_op_dropout(q, op->node->attributes, &exec->position, op->dy, op->beta[0], op->dx[0]);
}

static const dsc_layer_type dropout = {.name = "dropout",
                                       .attribute_bytes = sizeof(dsc_dropout_desc),
                                       .in_place = 1,
                                       .by_position = 1,
                                       .shape = dsc_graph_same_shape,
                                       .declare = declare,
                                       .plan = plan,
                                       .forward = forward,
                                       .backward = backward};

dsc_status dsc_model_dropout(dsc_model *m, dsc_value x, double rate, dsc_value *y) {
    if (!(rate >= 0 && rate < 1))
        return DSC_FAIL(DSC_E_INVALID, "dropout: rate %g, but it must be at least 0 and below 1", rate);
    dsc_dropout_desc desc = {.rate = rate, .seed = m ? m->options.seed : 0};
    return dsc_graph_add(m, &dropout, NULL, &x, 1, &desc, y);
}
