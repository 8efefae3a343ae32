/* The parameter-free shortcut of the CIFAR ResNets: every stride-th pixel, the channels between zeros. */
#include "base/error.h"
#include "model/exec.h"

static dsc_status shape(const dsc_model *m, dsc_node *node) {
    DSC_TRY(dsc_graph_expect_map(m, node));
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    if (node->stride < 1)
        return DSC_FAIL(DSC_E_INVALID, "%s: stride %lld, but it must be at least 1",
                        dsc_graph_describe(m, node), (long long)node->stride);
    if (node->channels < x->c)
        return DSC_FAIL(DSC_E_INVALID,
                        "%s on %s: %lld output channels, but it cannot have fewer than its input",
                        dsc_graph_describe(m, node), dsc_shape_text(x), (long long)node->channels);
    int64_t s = node->stride;
    node->shape = (dsc_shape){.h = (x->h - 1) / s + 1, .w = (x->w - 1) / s + 1, .c = node->channels};
    return DSC_OK;
}

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step) {
    (void)exec;
    return dsc_op_shortcut_forward(q, step->node->stride, step->x[0], step->y);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step, const dsc_pass *pass) {
    (void)exec;
    (void)pass;
    return dsc_op_shortcut_backward(q, step->node->stride, step->dy, step->beta[0], step->dx[0]);
}

const dsc_layer_type dsc_layer_shortcut = {
    .name = "shortcut", .shape = shape, .forward = forward, .backward = backward};

dsc_status dsc_model_shortcut(dsc_model *m, dsc_value x, int64_t stride, int64_t channels, dsc_value *y) {
    dsc_node node = dsc_graph_node(&dsc_layer_shortcut, NULL, x);
    node.stride = stride;
    node.channels = channels;
    return dsc_graph_add(m, &node, y);
}
