/* Upsampling by 2 in both directions, nearest or bilinear. */
#include "base/error.h"
#include "model/exec.h"

static dsc_status shape(const dsc_model *m, dsc_node *node) {
    const dsc_upsample_kind *kind = node->attributes;
    DSC_TRY(dsc_graph_expect_map(m, node));
    if (*kind != DSC_UPSAMPLE_NEAREST && *kind != DSC_UPSAMPLE_BILINEAR)
        return DSC_FAIL(
            DSC_E_INVALID,
            "%s: kind %d, but DSC_UPSAMPLE_NEAREST (%d) and DSC_UPSAMPLE_BILINEAR (%d) are possible",
            dsc_graph_describe(m, node), (int)*kind, (int)DSC_UPSAMPLE_NEAREST, (int)DSC_UPSAMPLE_BILINEAR);
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    node->shape = (dsc_shape){.h = 2 * x->h, .w = 2 * x->w, .c = x->c};
    return DSC_OK;
}

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    (void)exec;
    return dsc_op_upsample_forward(q, *(const dsc_upsample_kind *)op->node->attributes, op->x[0], op->y);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                           const dsc_backward_pass *pass) {
    (void)exec;
    (void)pass;
    return dsc_op_upsample_backward(q, *(const dsc_upsample_kind *)op->node->attributes, op->dy, op->beta[0],
                                    op->dx[0]);
}

static const dsc_layer_type upsample = {.name = "upsample",
                                        .attribute_bytes = sizeof(dsc_upsample_kind),
                                        .shape = shape,
                                        .forward = forward,
                                        .backward = backward};

dsc_status dsc_model_upsample(dsc_model *m, dsc_value x, dsc_upsample_kind kind, dsc_value *y) {
    return dsc_graph_add(m, &upsample, NULL, &x, 1, &kind, y);
}
