/* Builds the graph: adds and checks nodes, and the tensors that they declare. */
#include "model/graph.h"

#include "base/error.h"
#include "base/memory.h"

#include <stdio.h>
#include <string.h>

int64_t dsc_shape_count(const dsc_shape *shape) {
    return shape->h * shape->w * shape->c;
}

int64_t dsc_shape_features(const dsc_shape *shape) {
    return shape->flat ? dsc_shape_count(shape) : shape->c;
}

const dsc_shape *dsc_graph_input(const dsc_model *m, const dsc_node *node, int i) {
    return &m->nodes[node->in[i]].shape;
}

dsc_status dsc_graph_same_shape(const dsc_model *m, dsc_node *node) {
    node->shape = *dsc_graph_input(m, node, 0);
    return DSC_OK;
}

int dsc_shape_is_sequence(const dsc_shape *shape) {
    return !shape->flat && shape->w == 1;
}

const char *dsc_shape_text(const dsc_shape *shape) {
    static _Thread_local char texts[4][80];
    static _Thread_local int next;
    char *text = texts[next++ % 4];
    if (shape->flat)
        snprintf(text, sizeof texts[0], "a vector of %lld", (long long)dsc_shape_count(shape));
    else
        snprintf(text, sizeof texts[0], "%lldx%lldx%lld", (long long)shape->h, (long long)shape->w,
                 (long long)shape->c);
    return text;
}

const char *dsc_graph_describe(const dsc_model *m, const dsc_node *node) {
    static _Thread_local char text[200];
    if (node->name)
        snprintf(text, sizeof text, "%s '%s'", node->type->name, node->name);
    else if (node >= m->nodes && node < m->nodes + m->node_count)
        snprintf(text, sizeof text, "%s (value %lld)", node->type->name, (long long)(node - m->nodes));
    else
        snprintf(text, sizeof text, "%s (value %lld)", node->type->name, (long long)m->node_count);
    return text;
}

dsc_status dsc_graph_expect_map(const dsc_model *m, const dsc_node *node) {
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    if (x->flat)
        return DSC_FAIL(DSC_E_INVALID, "%s: the input is %s, but a map (height x width x channels) is needed",
                        dsc_graph_describe(m, node), dsc_shape_text(x));
    return DSC_OK;
}

dsc_status dsc_graph_expect_vector(const dsc_model *m, const dsc_node *node) {
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    if (!x->flat)
        return DSC_FAIL(
            DSC_E_INVALID,
            "%s: the input is %s, but a vector is needed: put a flatten or a global pool before it",
            dsc_graph_describe(m, node), dsc_shape_text(x));
    return DSC_OK;
}

/* Checks that the model is not sealed, that the inputs exist, and that no other layer has the name. */
static dsc_status check_node(const dsc_model *m, const dsc_node *node) {
    const char *what = dsc_graph_describe(m, node);
    if (m->sealed)
        return DSC_FAIL(DSC_E_INVALID, "%s: the model is sealed, nothing can be added", what);
    for (int i = 0; i < node->inputs; i++)
        if (node->in[i] < 0 || node->in[i] >= m->node_count)
            return DSC_FAIL(DSC_E_INVALID, "%s: input %d is value %d, but the model has values 0 to %lld",
                            what, i, node->in[i], (long long)m->node_count - 1);
    if (!node->name)
        return DSC_OK;
    if (!*node->name)
        return DSC_FAIL(DSC_E_INVALID, "%s: the name is empty, but parameters need one", node->type->name);
    for (int64_t i = 0; i < m->node_count; i++)
        if (m->nodes[i].name && strcmp(m->nodes[i].name, node->name) == 0)
            return DSC_FAIL(DSC_E_INVALID, "%s: another layer has this name already", what);
    return DSC_OK;
}

static dsc_status check_size(const dsc_model *m, const dsc_node *node) {
    const dsc_shape *s = &node->shape;
    int64_t count;
    if (s->h < 1 || s->w < 1 || s->c < 1)
        return DSC_FAIL(DSC_E_INVALID, "%s: the output would be %s, but every size must be at least 1",
                        dsc_graph_describe(m, node), dsc_shape_text(s));
    if (__builtin_mul_overflow(s->h, s->w, &count) || __builtin_mul_overflow(count, s->c, &count) ||
        count > INT32_MAX)
        return DSC_FAIL(DSC_E_INVALID, "%s: the output would be %s, but a sample may have at most %d numbers",
                        dsc_graph_describe(m, node), dsc_shape_text(s), INT32_MAX);
    return DSC_OK;
}

static void drop_tensors(dsc_model *m, int64_t keep) {
    while (m->tensor_count > keep) {
        dsc_state_tensor *t = &m->tensors[--m->tensor_count];
        if (t->trained && !t->alias) {
            m->param_count--;
            m->parameter_total -= dsc_tensor_count(&t->tensor);
        } else if (!t->trained) {
            m->buffer_count--;
        }
        dsc_memory_free(&t->name);
    }
}

static void free_node(dsc_node *node) {
    dsc_memory_free(&node->name);
    dsc_memory_free(&node->attributes);
}

/* Copies name and attributes into the node, makes room for it in the model, and sets its shape and tensors. */
static dsc_status complete_node(dsc_model *m, dsc_node *node, const char *name, const void *attributes) {
    const dsc_layer_type *type = node->type;
    char *copy = NULL;
    node->name = NULL;
    if (name)
        DSC_TRY(dsc_memory_strdup(name, &copy));
    node->name = copy;
    if (type->attribute_bytes) {
        DSC_TRY(dsc_memory_alloc(1, type->attribute_bytes, &node->attributes));
        memcpy(node->attributes, attributes, type->attribute_bytes);
    }
    DSC_TRY(type->shape(m, node));
    DSC_TRY(check_size(m, node));
    DSC_TRY(dsc_memory_grow(&m->nodes, &m->node_capacity, m->node_count + 1, sizeof *m->nodes));
    return type->declare ? type->declare(m, node) : DSC_OK;
}

dsc_status dsc_graph_add(dsc_model *m, const dsc_layer_type *type, const char *name, const dsc_value *inputs,
                         int count, const void *attributes, dsc_value *y) {
    if (!m || !y)
        return DSC_FAIL(DSC_E_INVALID, "%s: no %s", type->name, m ? "room for its value" : "model");
    dsc_node node = {.type = type,
                     .inputs = count,
                     .weight = -1,
                     .bias = -1,
                     .buffer = -1,
                     .layer = -1,
                     .norm = -1,
                     .table = -1,
                     .tied = -1};
    node.name = type->named && !name ? "" : name;
    node.first_param = m->param_count;
    for (int i = 0; i < count; i++)
        node.in[i] = inputs[i];
    DSC_TRY(check_node(m, &node));
    if (m->node_count >= INT32_MAX)
        return DSC_FAIL(DSC_E_INVALID, "%s: a model may have at most %d values", type->name, INT32_MAX);
    int64_t tensors = m->tensor_count, layers = m->layer_count, norms = m->norm_count,
            tables = m->table_count, tied = m->tied_count;
    dsc_status status = complete_node(m, &node, name, attributes);
    if (status != DSC_OK) {
        drop_tensors(m, tensors);
        m->layer_count = layers;
        m->norm_count = norms;
        m->table_count = tables;
        m->tied_count = tied;
        free_node(&node);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    node.param_count = m->param_count - node.first_param;
    m->nodes[m->node_count] = node;
    *y = (dsc_value)m->node_count++;
    return DSC_OK;
}

static dsc_status join_name(const char *name, const char *suffix, char **out) {
    size_t size = strlen(name) + strlen(suffix) + 2;
    DSC_TRY(dsc_memory_alloc((int64_t)size, 1, out));
    snprintf(*out, size, "%s.%s", name, suffix);
    return DSC_OK;
}

dsc_status dsc_graph_declare(dsc_model *m, dsc_node *node, const char *suffix, const dsc_state_tensor *tensor,
                             int64_t *number) {
    int64_t count = 1;
    for (int d = 0; d < tensor->tensor.ndim; d++)
        if (__builtin_mul_overflow(count, tensor->tensor.dim[d], &count) || count > INT64_MAX / 64)
            return DSC_FAIL(DSC_E_INVALID, "%s: the parameter '%s' would be too large to count",
                            dsc_graph_describe(m, node), suffix);
    DSC_TRY(dsc_memory_grow(&m->tensors, &m->tensor_capacity, m->tensor_count + 1, sizeof *m->tensors));
    dsc_state_tensor added = *tensor;
    DSC_TRY(join_name(node->name, suffix, &added.name));
    added.tensor.device = m->device;
    if (added.entry.ndim == 0) {
        added.entry.ndim = added.tensor.ndim;
        memcpy(added.entry.dim, added.tensor.dim, sizeof added.entry.dim);
    }
    if (added.trained) {
        added.number = m->param_count++;
        m->parameter_total += count;
    } else {
        added.number = m->buffer_count++;
    }
    *number = added.number;
    m->tensors[m->tensor_count++] = added;
    return DSC_OK;
}

dsc_status dsc_graph_declare_alias(dsc_model *m, dsc_node *node, const char *suffix, int64_t number) {
    int64_t first = 0;
    while (!m->tensors[first].trained || m->tensors[first].number != number)
        first++;
    DSC_TRY(dsc_memory_grow(&m->tensors, &m->tensor_capacity, m->tensor_count + 1, sizeof *m->tensors));
    dsc_state_tensor added = m->tensors[first];
    DSC_TRY(join_name(node->name, suffix, &added.name));
    added.alias = 1;
    m->tensors[m->tensor_count++] = added;
    return DSC_OK;
}

void dsc_graph_free(dsc_model *m) {
    drop_tensors(m, 0);
    dsc_memory_free(&m->tensors);
    for (int64_t i = 0; i < m->node_count; i++)
        free_node(&m->nodes[i]);
    dsc_memory_free(&m->nodes);
}
