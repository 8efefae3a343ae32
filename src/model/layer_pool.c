/* Max and average pooling over windows, and global average pooling. */
#include "base/error.h"
#include "model/exec.h"

static dsc_status window_shape(const dsc_model *m, dsc_node *node) {
    DSC_TRY(dsc_graph_expect_map(m, node));
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    node->shape = *x;
    dsc_status status = dsc_pool_output(node->attributes, x->h, x->w, &node->shape.h, &node->shape.w);
    if (status != DSC_OK)
        return dsc_error_prefix(status, "%s on %s", dsc_graph_describe(m, node), dsc_shape_text(x));
    return DSC_OK;
}

/* In training max pooling keeps the index of the maximum in each window, on a GPU as one byte if that suffices. */
static dsc_status max_plan(dsc_exec *exec, dsc_exec_op *op) {
    const dsc_shape *y = &op->node->shape;
    const dsc_pool_desc *desc = op->node->attributes;
    dsc_device *device = exec->model->device;
    dsc_dtype type = !dsc_device_is_host(device) && desc->kh * desc->kw <= 256 ? DSC_U8 : DSC_I32;
    op->saved[0] = dsc_tensor_view(device, NULL, type, 4, (int64_t[]){exec->batch, y->h, y->w, y->c});
    return DSC_OK;
}

static dsc_status window_forward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    (void)exec;
    dsc_tensor index = op->saved[0];
    return dsc_op_pool_forward(q, op->node->attributes, op->x[0], index.data ? &index : NULL, op->y);
}

static dsc_status window_backward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                                  const dsc_backward_pass *pass) {
    (void)exec;
    (void)pass;
    return dsc_op_pool_backward(q, op->node->attributes, op->saved[0].data ? &op->saved[0] : NULL, op->dy,
                                op->beta[0], op->dx[0]);
}

static const dsc_layer_type max_pool = {.name = "max_pool",
                                        .attribute_bytes = sizeof(dsc_pool_desc),
                                        .shape = window_shape,
                                        .plan = max_plan,
                                        .forward = window_forward,
                                        .backward = window_backward};
static const dsc_layer_type avg_pool = {.name = "avg_pool",
                                        .attribute_bytes = sizeof(dsc_pool_desc),
                                        .shape = window_shape,
                                        .forward = window_forward,
                                        .backward = window_backward};

static dsc_pool_desc square(dsc_pool_kind kind, int64_t kernel, int64_t stride, int64_t pad) {
    return (dsc_pool_desc){.kind = kind,
                           .kh = kernel,
                           .kw = kernel,
                           .stride_h = stride,
                           .stride_w = stride,
                           .pad_h = pad,
                           .pad_w = pad};
}

dsc_status dsc_model_max_pool(dsc_model *m, dsc_value x, int64_t kernel, int64_t stride, int64_t pad,
                              dsc_value *y) {
    dsc_pool_desc desc = square(DSC_POOL_MAX, kernel, stride, pad);
    return dsc_graph_add(m, &max_pool, NULL, &x, 1, &desc, y);
}

dsc_status dsc_model_avg_pool(dsc_model *m, dsc_value x, int64_t kernel, int64_t stride, int64_t pad,
                              dsc_value *y) {
    dsc_pool_desc desc = square(DSC_POOL_AVG, kernel, stride, pad);
    return dsc_graph_add(m, &avg_pool, NULL, &x, 1, &desc, y);
}

static dsc_status global_shape(const dsc_model *m, dsc_node *node) {
    DSC_TRY(dsc_graph_expect_map(m, node));
    node->shape = (dsc_shape){.flat = 1, .h = 1, .w = 1, .c = dsc_graph_input(m, node, 0)->c};
    return DSC_OK;
}

static dsc_status global_forward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    (void)exec;
    return dsc_op_global_pool_forward(q, op->x[0], op->y);
}

static dsc_status global_backward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                                  const dsc_backward_pass *pass) {
    (void)exec;
    (void)pass;
    return dsc_op_global_pool_backward(q, op->dy, op->beta[0], op->dx[0]);
}

static const dsc_layer_type global_pool = {
    .name = "global_pool", .shape = global_shape, .forward = global_forward, .backward = global_backward};

dsc_status dsc_model_global_pool(dsc_model *m, dsc_value x, dsc_value *y) {
    return dsc_graph_add(m, &global_pool, NULL, &x, 1, NULL, y);
}
