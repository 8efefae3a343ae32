/* Embeddings: looking up the tokens of a sequence in a table, and adding learnt vectors to its positions.
 *
 *   embedding            y[n,t] = W[x[n,t]],   dW[v] = sum over all n, t with x[n,t] = v of dy[n,t]
 *   position embedding   y[n,t] = x[n,t] + W[t],   dW[t] = sum over n of dy[n,t]
 *
 * The table of an embedding may also be the weight of a later linear layer (a tied head). That layer runs first in
 * backward, so the embedding adds its gradient to the one that is already there. */
#include "base/error.h"
#include "model/exec.h"

/* ---- tokens ---- */

typedef struct attributes {
    int64_t vocabulary, features;
    double std;
    int shared; /* 1: another layer uses the table, too, and writes its gradient first */
} attributes;

static dsc_status check_std(const dsc_model *m, const dsc_node *node, double std) {
    if (!(std > 0 && std < 1e6))
        return DSC_FAIL(DSC_E_INVALID, "%s: initial values of standard deviation %g: must be above 0",
                        dsc_graph_describe(m, node), std);
    return DSC_OK;
}

static dsc_status shape(const dsc_model *m, dsc_node *node) {
    const attributes *own = node->attributes;
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    if (node->in[0] != m->input || !m->tokens)
        return DSC_FAIL(DSC_E_INVALID, "%s: its input must be the tokens of dsc_model_tokens",
                        dsc_graph_describe(m, node));
    if (own->vocabulary < 1 || own->vocabulary > 1 << 24 || own->features < 1)
        return DSC_FAIL(DSC_E_INVALID,
                        "%s: a table of %lld tokens and %lld features: there must be 1 to %d tokens, and 1 "
                        "feature at least",
                        dsc_graph_describe(m, node), (long long)own->vocabulary, (long long)own->features,
                        1 << 24);
    DSC_TRY(check_std(m, node, own->std));
    node->shape = (dsc_shape){.h = x->h, .w = 1, .c = own->features};
    return DSC_OK;
}

static dsc_status declare_table(dsc_model *m, dsc_node *node, int64_t rows, int64_t features, double std) {
    dsc_state_tensor weight = {
        .trained = 1, .tensor = {.dtype = m->options.dtype, .ndim = 2, .dim = {rows, features}}, .std = std};
    node->table = m->table_count++;
    return dsc_graph_declare(m, node, "weight", &weight, &node->weight);
}

static dsc_status declare(dsc_model *m, dsc_node *node) {
    const attributes *own = node->attributes;
    return declare_table(m, node, own->vocabulary, own->features, own->std);
}

static dsc_status plan(dsc_exec *exec, dsc_exec_op *op) {
    const attributes *own = op->node->attributes;
    size_t work = dsc_op_embedding_workspace(exec->model->device, dsc_tensor_count(&exec->values[op->in[0]]),
                                             own->vocabulary);
    if (work > exec->work_bytes)
        exec->work_bytes = work;
    return DSC_OK;
}

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    dsc_tensor table = dsc_exec_param(exec, op->node->weight);
    return dsc_op_embedding_forward(q, op->x[0], &table, op->y);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                           const dsc_backward_pass *pass) {
    const attributes *own = op->node->attributes;
    dsc_tensor work = exec->work;
    if (!pass->param_grads)
        return DSC_OK;
    return dsc_op_embedding_backward(q, op->x[0], op->dy, own->shared ? 1 : pass->beta, &work,
                                     dsc_exec_weight_grad(exec, op));
}

static const dsc_layer_type embedding = {.name = "embedding",
                                         .attribute_bytes = sizeof(attributes),
                                         .named = 1,
                                         .keeps_x = 1,
                                         .by_position = 1,
                                         .shape = shape,
                                         .declare = declare,
                                         .plan = plan,
                                         .forward = forward,
                                         .backward = backward};

dsc_status dsc_model_embedding(dsc_model *m, const char *name, dsc_value tokens, int64_t vocabulary,
                               int64_t features, double std, dsc_value *y) {
    const attributes own = {.vocabulary = vocabulary, .features = features, .std = std};
    return dsc_graph_add(m, &embedding, name, &tokens, 1, &own, y);
}

dsc_status dsc_embedding_find(const dsc_model *m, dsc_value value, int64_t vocabulary, int64_t features,
                              int64_t *param) {
    if (value < 0 || value >= m->node_count || m->nodes[value].type != &embedding)
        return DSC_FAIL(DSC_E_INVALID, "value %d, whose table is to be used, is no embedding's", value);
    const dsc_node *node = &m->nodes[value];
    const attributes *own = node->attributes;
    if (own->vocabulary != vocabulary || own->features != features)
        return DSC_FAIL(DSC_E_INVALID,
                        "the table of %s is [%lld, %lld], but the weight of the layer [%lld, %lld]",
                        dsc_graph_describe(m, node), (long long)own->vocabulary, (long long)own->features,
                        (long long)vocabulary, (long long)features);
    if (own->shared)
        return DSC_FAIL(DSC_E_INVALID, "the table of %s has another user already",
                        dsc_graph_describe(m, node));
    *param = node->weight;
    return DSC_OK;
}

void dsc_embedding_share(dsc_model *m, dsc_value value) {
    attributes *own = m->nodes[value].attributes;
    own->shared = 1;
}

int dsc_embedding_is_shared(const dsc_node *node) {
    return node->type == &embedding && ((const attributes *)node->attributes)->shared;
}

int dsc_embedding_is_of_tokens(const dsc_node *node) {
    return node->type == &embedding;
}

/* ---- positions ---- */

typedef struct position_attributes {
    double std;
} position_attributes;

static dsc_status position_shape(const dsc_model *m, dsc_node *node) {
    const position_attributes *own = node->attributes;
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    if (!dsc_shape_is_sequence(x))
        return DSC_FAIL(DSC_E_INVALID,
                        "%s: the input is %s, but a sequence (positions x 1 x channels) is needed",
                        dsc_graph_describe(m, node), dsc_shape_text(x));
    DSC_TRY(check_std(m, node, own->std));
    node->shape = *x;
    return DSC_OK;
}

static dsc_status position_declare(dsc_model *m, dsc_node *node) {
    const position_attributes *own = node->attributes;
    return declare_table(m, node, node->shape.h, node->shape.c, own->std);
}

/* Returns t as a matrix with `rows` rows, or, if rows is 0, as a vector. */
static dsc_tensor as_rows(const dsc_tensor *t, int64_t rows) {
    const int64_t all = dsc_tensor_count(t), dim[2] = {rows, rows ? all / rows : 0};
    return dsc_tensor_view(t->device, t->data, t->dtype, rows ? 2 : 1, rows ? dim : &all);
}

static dsc_status position_forward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    dsc_tensor table = as_rows(dsc_exec_weight(exec, op), 0), y = as_rows(op->y, exec->batch);
    if (exec->decodes)
        table = dsc_tensor_slice(&table, exec->decoded_position * op->node->shape.c, op->node->shape.c);
    if (op->x[0]->data != op->y->data)
        DSC_TRY(dsc_op_convert(q, op->x[0], op->y));
    return dsc_op_bias_add(q, &table, &y);
}

static dsc_status position_backward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                                    const dsc_backward_pass *pass) {
    dsc_tensor grad = as_rows(dsc_exec_weight_grad(exec, op), 0), dy = as_rows(op->dy, exec->batch);
    if (pass->param_grads)
        DSC_TRY(dsc_op_bias_grad(q, &dy, pass->beta, &grad));
    if (!op->dx[0] || op->dx[0]->data == op->dy->data)
        return DSC_OK;
    return dsc_op_axpby(q, 1, op->dy, op->beta[0], op->dx[0]);
}

static const dsc_layer_type position_embedding = {.name = "position embedding",
                                                  .attribute_bytes = sizeof(position_attributes),
                                                  .named = 1,
                                                  .in_place = 1,
                                                  .by_position = 1,
                                                  .shape = position_shape,
                                                  .declare = position_declare,
                                                  .forward = position_forward,
                                                  .backward = position_backward};

dsc_status dsc_model_position_embedding(dsc_model *m, const char *name, dsc_value x, double std,
                                        dsc_value *y) {
    return dsc_graph_add(m, &position_embedding, name, &x, 1, &(position_attributes){std}, y);
}

int dsc_embedding_is_of_positions(const dsc_node *node) {
    return node->type == &position_embedding;
}
