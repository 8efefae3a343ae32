/* Dropout: y = x mask / (1 - rate) in training, y = x in evaluation. */
#include "base/error.h"
#include "model/exec.h"

static dsc_status declare(dsc_model *m, dsc_node *node) {
    node->dropout.layer = (int)m->dropout_count++;
    return DSC_OK;
}

static dsc_status plan(dsc_exec *exec, dsc_step *step) {
    step->view = exec->mode == DSC_EXEC_EVAL;
    return DSC_OK;
}

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step) {
    return dsc_op_dropout(q, &step->node->dropout, &exec->position, step->x[0], 0, step->y);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step, const dsc_pass *pass) {
    (void)pass;
    return dsc_op_dropout(q, &step->node->dropout, &exec->position, step->dy, step->beta[0], step->dx[0]);
}

const dsc_layer_type dsc_layer_dropout = {.name = "dropout",
                                          .in_place = 1,
                                          .shape = dsc_graph_same_shape,
                                          .declare = declare,
                                          .plan = plan,
                                          .forward = forward,
                                          .backward = backward};

dsc_status dsc_model_dropout(dsc_model *m, dsc_value x, double rate, dsc_value *y) {
    if (!(rate >= 0 && rate < 1))
        return DSC_FAIL(DSC_E_INVALID, "dropout: rate %g, but it must be at least 0 and below 1", rate);
    dsc_node node = dsc_graph_node(&dsc_layer_dropout, NULL, x);
    node.dropout = (dsc_dropout_desc){.rate = rate, .seed = m->options.seed};
    return dsc_graph_add(m, &node, y);
}
