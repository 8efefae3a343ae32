/* Crop: the middle h x w pixels of an H x W map, from row (H - h) / 2 and column (W - w) / 2 on, rounded down. */
#include "base/error.h"
#include "model/exec.h"

typedef struct attributes {
    int64_t h, w;
    dsc_part_desc part;
} attributes;

static dsc_status shape(const dsc_model *m, dsc_node *node) {
    attributes *own = node->attributes;
    DSC_TRY(dsc_graph_expect_map(m, node));
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    if (own->h < 1 || own->h > x->h || own->w < 1 || own->w > x->w)
        return DSC_FAIL(DSC_E_INVALID, "%s on %s: %lldx%lld pixels, but 1x1 to %lldx%lld is possible",
                        dsc_graph_describe(m, node), dsc_shape_text(x), (long long)own->h, (long long)own->w,
                        (long long)x->h, (long long)x->w);
    own->part = (dsc_part_desc){.top = (x->h - own->h) / 2, .left = (x->w - own->w) / 2};
    node->shape = (dsc_shape){.h = own->h, .w = own->w, .c = x->c};
    return DSC_OK;
}

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    (void)exec;
    const attributes *own = op->node->attributes;
    return dsc_op_cut(q, &own->part, op->x[0], 0, op->y);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                           const dsc_backward_pass *pass) {
    (void)exec;
    (void)pass;
    const attributes *own = op->node->attributes;
    if (op->beta[0] == 0)
        DSC_TRY(dsc_op_fill(q, 0, op->dx[0]));
    return dsc_op_paste(q, &own->part, op->dy, op->beta[0], op->dx[0]);
}

static const dsc_layer_type crop = {.name = "crop",
                                    .attribute_bytes = sizeof(attributes),
                                    .shape = shape,
                                    .forward = forward,
                                    .backward = backward};

dsc_status dsc_model_crop(dsc_model *m, dsc_value x, int64_t h, int64_t w, dsc_value *y) {
    return dsc_graph_add(m, &crop, NULL, &x, 1, &(attributes){.h = h, .w = w}, y);
}
