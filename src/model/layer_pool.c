/* Max and average pooling over windows, and the mean over the whole map. */
#include "base/error.h"
#include "model/exec.h"

static dsc_status window_shape(const dsc_model *m, dsc_node *node) {
    DSC_TRY(dsc_graph_expect_map(m, node));
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    node->shape = *x;
    dsc_status status = dsc_pool_output(&node->pool, x->h, x->w, &node->shape.h, &node->shape.w);
    if (status != DSC_OK)
        return dsc_error_prefix(status, "%s on %s", dsc_graph_describe(m, node), dsc_shape_text(x));
    return DSC_OK;
}

/* Max pooling remembers in training which place of a window won. */
static dsc_status max_plan(dsc_exec *exec, dsc_step *step) {
    const dsc_shape *y = &step->node->shape;
    step->saved[0] =
        dsc_tensor_view(exec->model->device, NULL, DSC_I32, 4, (int64_t[]){exec->batch, y->h, y->w, y->c});
    return DSC_OK;
}

static dsc_status window_forward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step) {
    (void)exec;
    dsc_tensor index = step->saved[0];
    return dsc_op_pool_forward(q, &step->node->pool, step->x[0], index.data ? &index : NULL, step->y);
}

static dsc_status window_backward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step,
                                  const dsc_pass *pass) {
    (void)exec;
    (void)pass;
    return dsc_op_pool_backward(q, &step->node->pool, step->saved[0].data ? &step->saved[0] : NULL, step->dy,
                                step->beta[0], step->dx[0]);
}

const dsc_layer_type dsc_layer_max_pool = {.name = "max_pool",
                                           .shape = window_shape,
                                           .plan = max_plan,
                                           .forward = window_forward,
                                           .backward = window_backward};
const dsc_layer_type dsc_layer_avg_pool = {
    .name = "avg_pool", .shape = window_shape, .forward = window_forward, .backward = window_backward};

static dsc_status add_window(dsc_model *m, const dsc_layer_type *type, dsc_value x, dsc_pool_desc desc,
                             dsc_value *y) {
    dsc_node node = dsc_graph_node(type, NULL, x);
    node.pool = desc;
    return dsc_graph_add(m, &node, y);
}

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
    return add_window(m, &dsc_layer_max_pool, x, square(DSC_POOL_MAX, kernel, stride, pad), y);
}

dsc_status dsc_model_avg_pool(dsc_model *m, dsc_value x, int64_t kernel, int64_t stride, int64_t pad,
                              dsc_value *y) {
    return add_window(m, &dsc_layer_avg_pool, x, square(DSC_POOL_AVG, kernel, stride, pad), y);
}

static dsc_status global_shape(const dsc_model *m, dsc_node *node) {
    DSC_TRY(dsc_graph_expect_map(m, node));
    node->shape = (dsc_shape){.flat = 1, .h = 1, .w = 1, .c = dsc_graph_input(m, node, 0)->c};
    return DSC_OK;
}

static dsc_status global_forward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step) {
    (void)exec;
    return dsc_op_global_pool_forward(q, step->x[0], step->y);
}

static dsc_status global_backward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step,
                                  const dsc_pass *pass) {
    (void)exec;
    (void)pass;
    return dsc_op_global_pool_backward(q, step->dy, step->beta[0], step->dx[0]);
}

const dsc_layer_type dsc_layer_global_pool = {
    .name = "global_pool", .shape = global_shape, .forward = global_forward, .backward = global_backward};

dsc_status dsc_model_global_pool(dsc_model *m, dsc_value x, dsc_value *y) {
    dsc_node node = dsc_graph_node(&dsc_layer_global_pool, NULL, x);
    return dsc_graph_add(m, &node, y);
}
