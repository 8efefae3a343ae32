/* The parameter-free shortcut of the CIFAR ResNets: every stride-th pixel, channels padded with zeros on both sides. */
#include "base/error.h"
#include "model/exec.h"

typedef struct attributes {
    int64_t stride, channels;
} attributes;

static dsc_status shape(const dsc_model *m, dsc_node *node) {
    const attributes *own = node->attributes;
    DSC_TRY(dsc_graph_expect_map(m, node));
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    if (own->stride < 1)
        return DSC_FAIL(DSC_E_INVALID, "%s: stride %lld, but it must be at least 1",
                        dsc_graph_describe(m, node), (long long)own->stride);
    if (own->channels < x->c)
        return DSC_FAIL(DSC_E_INVALID,
                        "%s on %s: %lld output channels, but it cannot have fewer than its input",
                        dsc_graph_describe(m, node), dsc_shape_text(x), (long long)own->channels);
    int64_t s = own->stride;
    node->shape = (dsc_shape){.h = (x->h - 1) / s + 1, .w = (x->w - 1) / s + 1, .c = own->channels};
    return DSC_OK;
}

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    (void)exec;
    return dsc_op_shortcut_forward(q, ((const attributes *)op->node->attributes)->stride, op->x[0], op->y);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                           const dsc_backward_pass *pass) {
    (void)exec;
    (void)pass;
    return dsc_op_shortcut_backward(q, ((const attributes *)op->node->attributes)->stride, op->dy,
                                    op->beta[0], op->dx[0]);
}

static const dsc_layer_type shortcut = {.name = "shortcut",
                                        .attribute_bytes = sizeof(attributes),
                                        .shape = shape,
                                        .forward = forward,
                                        .backward = backward};

dsc_status dsc_model_shortcut(dsc_model *m, dsc_value x, int64_t stride, int64_t channels, dsc_value *y) {
    return dsc_graph_add(m, &shortcut, NULL, &x, 1, &(attributes){stride, channels}, y);
}
