/* Layers without parameters or descriptors: ReLU, addition, the CIFAR shortcut, flatten, dropout. */
#include "base/error.h"
#include "model/exec.h"

static dsc_status same_shape(const dsc_model *m, dsc_node *node) {
    node->shape = *dsc_graph_input(m, node, 0);
    return DSC_OK;
}

/* ---- ReLU: y = max(x, 0) ---- */

static dsc_status relu_forward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step) {
    (void)exec;
    return dsc_op_relu_forward(q, step->x[0], step->y);
}

static dsc_status relu_backward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step,
                                const dsc_pass *pass) {
    (void)exec;
    (void)pass;
    return dsc_op_relu_backward(q, step->y, step->dy, step->beta[0], step->dx[0]);
}

const dsc_layer_type dsc_layer_relu = {.name = "relu",
                                       .in_place = 1,
                                       .keeps_y = 1,
                                       .shape = same_shape,
                                       .forward = relu_forward,
                                       .backward = relu_backward};

dsc_status dsc_model_relu(dsc_model *m, dsc_value x, dsc_value *y) {
    dsc_node node = dsc_graph_node(&dsc_layer_relu, NULL, x);
    return dsc_graph_add(m, &node, y);
}

/* ---- addition: y = a + b ---- */

static dsc_status add_shape(const dsc_model *m, dsc_node *node) {
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

static dsc_status add_forward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step) {
    (void)exec;
    return dsc_op_add(q, step->x[0], step->x[1], step->y);
}

static dsc_status add_backward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step,
                               const dsc_pass *pass) {
    (void)exec;
    (void)pass;
    for (int i = 0; i < 2; i++)
        if (step->dx[i] && step->dx[i]->data != step->dy->data)
            DSC_TRY(dsc_op_axpby(q, 1, step->dy, step->beta[i], step->dx[i]));
    return DSC_OK;
}

const dsc_layer_type dsc_layer_add = {
    .name = "add", .in_place = 1, .shape = add_shape, .forward = add_forward, .backward = add_backward};

dsc_status dsc_model_add(dsc_model *m, dsc_value a, dsc_value b, dsc_value *y) {
    dsc_node node = dsc_graph_node(&dsc_layer_add, NULL, a);
    node.inputs = 2;
    node.in[1] = b;
    return dsc_graph_add(m, &node, y);
}

/* ---- shortcut: every stride-th pixel, channels between zeros ---- */

static dsc_status shortcut_shape(const dsc_model *m, dsc_node *node) {
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

static dsc_status shortcut_forward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step) {
    (void)exec;
    return dsc_op_shortcut_forward(q, step->node->stride, step->x[0], step->y);
}

static dsc_status shortcut_backward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step,
                                    const dsc_pass *pass) {
    (void)exec;
    (void)pass;
    return dsc_op_shortcut_backward(q, step->node->stride, step->dy, step->beta[0], step->dx[0]);
}

const dsc_layer_type dsc_layer_shortcut = {
    .name = "shortcut", .shape = shortcut_shape, .forward = shortcut_forward, .backward = shortcut_backward};

dsc_status dsc_model_shortcut(dsc_model *m, dsc_value x, int64_t stride, int64_t channels, dsc_value *y) {
    dsc_node node = dsc_graph_node(&dsc_layer_shortcut, NULL, x);
    node.stride = stride;
    node.channels = channels;
    return dsc_graph_add(m, &node, y);
}

/* ---- flatten: the same numbers, seen as a vector ---- */

static dsc_status flatten_shape(const dsc_model *m, dsc_node *node) {
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    node->shape = *x;
    node->shape.flat = 1;
    if (!x->flat && (x->h * x->w == 1 || x->c == 1)) /* PyTorch's order is the same */
        node->shape = (dsc_shape){.flat = 1, .h = 1, .w = 1, .c = dsc_shape_count(x)};
    return DSC_OK;
}

static dsc_status flatten_plan(dsc_exec *exec, dsc_step *step) {
    (void)exec;
    step->view = 1;
    return DSC_OK;
}

static dsc_status flatten_backward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step,
                                   const dsc_pass *pass) {
    (void)exec;
    (void)pass;
    if (step->dx[0]->data == step->dy->data)
        return DSC_OK;
    return dsc_op_axpby(q, 1, step->dy, step->beta[0], step->dx[0]);
}

const dsc_layer_type dsc_layer_flatten = {.name = "flatten",
                                          .in_place = 1,
                                          .shape = flatten_shape,
                                          .plan = flatten_plan,
                                          .backward = flatten_backward};

dsc_status dsc_model_flatten(dsc_model *m, dsc_value x, dsc_value *y) {
    dsc_node node = dsc_graph_node(&dsc_layer_flatten, NULL, x);
    return dsc_graph_add(m, &node, y);
}

/* ---- dropout: y = x mask / (1 - rate) in training, y = x in evaluation ---- */

static dsc_status dropout_declare(dsc_model *m, dsc_node *node) {
    node->dropout.layer = (int)m->dropout_count++;
    return DSC_OK;
}

static dsc_status dropout_plan(dsc_exec *exec, dsc_step *step) {
    step->view = exec->mode == DSC_EXEC_EVAL;
    return DSC_OK;
}

static dsc_status dropout_forward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step) {
    return dsc_op_dropout(q, &step->node->dropout, &exec->position, step->x[0], 0, step->y);
}

static dsc_status dropout_backward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step,
                                   const dsc_pass *pass) {
    (void)pass;
    return dsc_op_dropout(q, &step->node->dropout, &exec->position, step->dy, step->beta[0], step->dx[0]);
}

const dsc_layer_type dsc_layer_dropout = {.name = "dropout",
                                          .in_place = 1,
                                          .shape = same_shape,
                                          .declare = dropout_declare,
                                          .plan = dropout_plan,
                                          .forward = dropout_forward,
                                          .backward = dropout_backward};

dsc_status dsc_model_dropout(dsc_model *m, dsc_value x, double rate, dsc_value *y) {
    if (!(rate >= 0 && rate < 1))
        return DSC_FAIL(DSC_E_INVALID, "dropout: rate %g, but it must be at least 0 and below 1", rate);
    dsc_node node = dsc_graph_node(&dsc_layer_dropout, NULL, x);
    node.dropout = (dsc_dropout_desc){.rate = rate, .seed = m->options.seed};
    return dsc_graph_add(m, &node, y);
}
