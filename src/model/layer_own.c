/* Layers that a program defines (dsc_layer_def), as one more kind of layer in the graph.
 *
 * The attributes of each node are a struct `own`, which has its own dsc_layer_type because the definition decides
 * what backward reads. The attributes of the definition follow at its end. */
#include "base/error.h"
#include "base/memory.h"
#include "base/versioned.h"
#include "model/exec.h"

#include <math.h>
#include <stdalign.h>
#include <stdio.h>
#include <string.h>

enum { NAME = 64 };

typedef struct declared_param {
    char name[NAME];
    int ndim;
    int64_t dim[DSC_MAX_DIMS];
    double std, start;
} declared_param;

typedef struct declared_tensor {
    dsc_dtype dtype;
    int per_sample, ndim;
    int64_t dim[DSC_MAX_DIMS];
} declared_tensor;

typedef struct own {
    dsc_layer_type type;
    dsc_layer_def def;
    char kind[NAME];
    declared_param params[DSC_LAYER_PARAMS];
    declared_tensor saved[DSC_LAYER_TENSORS], temporary[DSC_LAYER_TENSORS];
    int param_count, saved_count, temporary_count;
    dsc_kfac_as kfac;
    int kfac_weight, kfac_bias;
    alignas(max_align_t) unsigned char attributes[];
} own;

/* A declaration in progress; the callback sees only its first member. */
typedef struct declaring {
    dsc_layer_declaration public;
    own *layer;
} declaring;

/* ---- declaring ---- */

static dsc_status check_dims(const own *layer, const char *what, const char *name, int ndim, int most,
                             const int64_t *dim) {
    if (ndim < 1 || ndim > most || !dim)
        return DSC_FAIL(DSC_E_INVALID, "%s %s '%s' has %d dimensions, but they must be 1 to %d", layer->kind,
                        what, name, dim ? ndim : 0, most);
    for (int i = 0; i < ndim; i++)
        if (dim[i] < 1)
            return DSC_FAIL(DSC_E_INVALID, "%s %s '%s': dimension %d is %lld, but must be at least 1",
                            layer->kind, what, name, i, (long long)dim[i]);
    return DSC_OK;
}

dsc_status dsc_layer_declare_param(dsc_layer_declaration *declaration, const char *name, int ndim,
                                   const int64_t *dim, double std, double start) {
    if (!declaration || !name || !*name || strlen(name) >= NAME)
        return DSC_FAIL(DSC_E_INVALID,
                        "parameter '%s' cannot be declared: its name must have 1 to %d characters",
                        name ? name : "", NAME - 1);
    own *layer = ((declaring *)declaration)->layer;
    if (layer->param_count == DSC_LAYER_PARAMS)
        return DSC_FAIL(DSC_E_INVALID, "%s parameter '%s': a layer has at most %d", layer->kind, name,
                        DSC_LAYER_PARAMS);
    for (int i = 0; i < layer->param_count; i++)
        if (strcmp(layer->params[i].name, name) == 0)
            return DSC_FAIL(DSC_E_INVALID, "%s parameter '%s' is declared twice", layer->kind, name);
    DSC_TRY(check_dims(layer, "parameter", name, ndim, DSC_MAX_DIMS, dim));
    if (!(std >= 0 && isfinite(std) && isfinite(start)))
        return DSC_FAIL(DSC_E_INVALID,
                        "%s parameter '%s': initial values of deviation %g, or %g, but they must "
                        "be finite, and the deviation at least 0",
                        layer->kind, name, std, start);
    declared_param *p = &layer->params[layer->param_count++];
    *p = (declared_param){.ndim = ndim, .std = std, .start = start};
    snprintf(p->name, sizeof p->name, "%s", name);
    memcpy(p->dim, dim, (size_t)ndim * sizeof *dim);
    return DSC_OK;
}

static dsc_status declare_tensor(dsc_layer_declaration *declaration, int saved, declared_tensor tensor,
                                 const int64_t *dim) {
    const char *what = saved ? "saved" : "temporary";
    if (!declaration)
        return DSC_FAIL(DSC_E_INVALID, "a %s tensor cannot be declared: the declaration is NULL", what);
    own *layer = ((declaring *)declaration)->layer;
    int *count = saved ? &layer->saved_count : &layer->temporary_count;
    char number[16];
    snprintf(number, sizeof number, "%d", *count);
    if (*count == DSC_LAYER_TENSORS)
        return DSC_FAIL(DSC_E_INVALID, "%s %s tensor %s: a layer has at most %d", layer->kind, what, number,
                        DSC_LAYER_TENSORS);
    DSC_TRY(check_dims(layer, what, number, tensor.ndim, DSC_MAX_DIMS - 1, dim));
    memcpy(tensor.dim, dim, (size_t)tensor.ndim * sizeof *dim);
    (saved ? layer->saved : layer->temporary)[(*count)++] = tensor;
    return DSC_OK;
}

dsc_status dsc_layer_declare_saved(dsc_layer_declaration *declaration, dsc_dtype dtype, int per_sample,
                                   int ndim, const int64_t *dim) {
    return declare_tensor(declaration, 1, (declared_tensor){dtype, per_sample, ndim, {0}}, dim);
}

dsc_status dsc_layer_declare_temporary(dsc_layer_declaration *declaration, dsc_dtype dtype, int per_sample,
                                       int ndim, const int64_t *dim) {
    return declare_tensor(declaration, 0, (declared_tensor){dtype, per_sample, ndim, {0}}, dim);
}

/* Checks that the parameters of a layer that is linear for K-FAC match its input and output. */
static dsc_status check_kfac(const dsc_model *m, const dsc_node *node) {
    const own *layer = node->attributes;
    if (layer->kfac == DSC_KFAC_AS_NONE)
        return DSC_OK;
    int64_t in = dsc_shape_count(dsc_graph_input(m, node, 0)), out = dsc_shape_count(&node->shape);
    int w = layer->kfac_weight, b = layer->kfac_bias, n = layer->param_count;
    int fits = w >= 0 && w < n && b < n && b != w && node->inputs == 1;
    const declared_param *weight = fits ? &layer->params[w] : NULL,
                         *bias = fits && b >= 0 ? &layer->params[b] : NULL;
    fits = fits && weight->ndim == 2 && weight->dim[0] == out && weight->dim[1] == in;
    fits = fits && (!bias || (bias->ndim == 1 && bias->dim[0] == out));
    if (!fits)
        return DSC_FAIL(DSC_E_INVALID,
                        "%s: to be linear for K-FAC it must have one input, a weight [%lld, %lld] "
                        "and, unless kfac_bias is -1, a bias [%lld]",
                        dsc_graph_describe(m, node), (long long)out, (long long)in, (long long)out);
    return DSC_OK;
}

static dsc_status shape(const dsc_model *m, dsc_node *node) {
    own *layer = node->attributes;
    dsc_shape x[DSC_LAYER_INPUTS];
    for (int i = 0; i < node->inputs; i++)
        x[i] = *dsc_graph_input(m, node, i);
    declaring d = {.public = {.size = sizeof d.public,
                              .attributes = layer->attributes,
                              .inputs = node->inputs,
                              .x = x,
                              .value_dtype = dsc_model_value_dtype(m),
                              .param_dtype = m->options.dtype,
                              .kfac_bias = -1},
                   .layer = layer};
    unsigned errors = dsc_error_count();
    dsc_status status = layer->def.declare(&d.public);
    if (status != DSC_OK)
        return dsc_error_callback(status, errors, "declare", "%s", dsc_graph_describe(m, node));
    node->shape = d.public.y;
    layer->kfac = d.public.kfac;
    layer->kfac_weight = d.public.kfac_weight;
    layer->kfac_bias = d.public.kfac_bias;
    if (layer->param_count > 0 && !node->name)
        return DSC_FAIL(DSC_E_INVALID, "%s: the name is empty, but parameters need one", layer->kind);
    return check_kfac(m, node);
}

static dsc_status declare(dsc_model *m, dsc_node *node) {
    const own *layer = node->attributes;
    for (int i = 0; i < layer->param_count; i++) {
        const declared_param *p = &layer->params[i];
        dsc_state_tensor t = {.trained = 1, .std = p->std, .start = p->start};
        int64_t number;
        t.tensor.dtype = m->options.dtype;
        t.tensor.ndim = p->ndim;
        memcpy(t.tensor.dim, p->dim, sizeof p->dim);
        DSC_TRY(dsc_graph_declare(m, node, p->name, &t, &number));
    }
    if (layer->kfac == DSC_KFAC_AS_LINEAR) {
        node->weight = node->first_param + layer->kfac_weight;
        node->bias = layer->kfac_bias < 0 ? -1 : node->first_param + layer->kfac_bias;
        node->layer = m->layer_count++;
    }
    return DSC_OK;
}

/* ---- running ---- */

static dsc_tensor tensor_of(const dsc_exec *exec, const declared_tensor *t) {
    int64_t dim[DSC_MAX_DIMS] = {exec->batch};
    int lead = t->per_sample != 0;
    memcpy(dim + lead, t->dim, (size_t)t->ndim * sizeof *dim);
    return dsc_tensor_view(exec->model->device, NULL, t->dtype, t->ndim + lead, dim);
}

/* Places the temporary tensors one after the other in the workspace that all operations share, and returns the bytes
 * that they need. `out` may be NULL. */
static size_t place_temporaries(const dsc_exec *exec, const own *layer, dsc_tensor *out) {
    size_t used = 0;
    for (int i = 0; i < layer->temporary_count; i++) {
        dsc_tensor t = tensor_of(exec, &layer->temporary[i]);
        if (out) {
            t.data = (char *)exec->work.data + used;
            out[i] = t;
        }
        used += (dsc_tensor_bytes(&t) + DSC_ALIGNMENT - 1) / DSC_ALIGNMENT * DSC_ALIGNMENT;
    }
    return used;
}

static dsc_status plan(dsc_exec *exec, dsc_exec_op *op) {
    const own *layer = op->node->attributes;
    op->saves_always = 1;
    for (int i = 0; i < layer->saved_count; i++)
        op->saved[i] = tensor_of(exec, &layer->saved[i]);
    size_t work = place_temporaries(exec, layer, NULL);
    if (work > exec->work_bytes)
        exec->work_bytes = work;
    return DSC_OK;
}

/* The tensors of a call, and the lists of pointers to them. */
typedef struct lists {
    dsc_tensor values[DSC_LAYER_PARAMS], saved[DSC_LAYER_TENSORS], temporary[DSC_LAYER_TENSORS];
    const dsc_tensor *x[DSC_LAYER_INPUTS], *param[DSC_LAYER_PARAMS], *param_as_value[DSC_LAYER_PARAMS];
    dsc_tensor *saved_list[DSC_LAYER_TENSORS], *temporary_list[DSC_LAYER_TENSORS];
    dsc_tensor *dparam[DSC_LAYER_PARAMS];
} lists;

static dsc_layer_call make_call(const dsc_exec *exec, const dsc_exec_op *op, lists *l) {
    const own *layer = op->node->attributes;
    dsc_param *params = exec->model->params + op->node->first_param;
    place_temporaries(exec, layer, l->temporary);
    for (int i = 0; i < op->inputs; i++)
        l->x[i] = op->x[i];
    for (int i = 0; i < layer->param_count; i++) {
        l->values[i] = dsc_exec_param(exec, op->node->first_param + i);
        l->param_as_value[i] = &l->values[i];
        l->param[i] = &params[i].value;
    }
    for (int i = 0; i < DSC_LAYER_TENSORS; i++) {
        l->saved[i] = op->saved[i];
        l->saved_list[i] = &l->saved[i];
        l->temporary_list[i] = &l->temporary[i];
    }
    return (dsc_layer_call){.size = sizeof(dsc_layer_call),
                            .attributes = layer->attributes,
                            .training = exec->mode == DSC_EXEC_TRAIN,
                            .batch = exec->batch,
                            .inputs = op->inputs,
                            .params = layer->param_count,
                            .x = l->x,
                            .y = op->y,
                            .param = l->param,
                            .param_as_value = l->param_as_value,
                            .saved = l->saved_list,
                            .temporary = l->temporary_list};
}

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    const own *layer = op->node->attributes;
    lists l;
    dsc_layer_call call = make_call(exec, op, &l);
    unsigned errors = dsc_error_count();
    dsc_status status = layer->def.forward(q, &call);
    return status == DSC_OK ? DSC_OK : dsc_error_callback(status, errors, "forward", NULL);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                           const dsc_backward_pass *pass) {
    const own *layer = op->node->attributes;
    lists l;
    dsc_layer_call call = make_call(exec, op, &l);
    for (int i = 0; i < op->inputs && !layer->def.needs_x; i++)
        l.x[i] = NULL;
    call.y = layer->def.needs_y ? op->y : NULL;
    for (int i = 0; i < layer->param_count; i++)
        l.dparam[i] = pass->param_grads ? &exec->model->params[op->node->first_param + i].grad : NULL;
    call.dy = op->dy;
    call.dx = op->dx;
    call.dx_beta = op->beta;
    call.dparam = l.dparam;
    call.dparam_beta = pass->beta;
    unsigned errors = dsc_error_count();
    dsc_status status = layer->def.backward(q, &call);
    return status == DSC_OK ? DSC_OK : dsc_error_callback(status, errors, "backward", NULL);
}

/* ---- adding a layer ---- */

void dsc_layer_def_init_sized(dsc_layer_def *def, size_t size) {
    const dsc_layer_def defaults = {.needs_x = 1, .needs_y = 1};
    dsc_versioned_init(def, size, &defaults, sizeof defaults);
}

static dsc_status check_def(const dsc_layer_def *def, const dsc_value *inputs, int count,
                            const void *attributes) {
    const char *kind = def->kind ? def->kind : "";
    if (!*kind || strlen(kind) >= NAME)
        return DSC_FAIL(DSC_E_INVALID, "a layer of the kind '%s': the name must have 1 to %d characters",
                        kind, NAME - 1);
    if (!def->declare || !def->forward || !def->backward)
        return DSC_FAIL(DSC_E_INVALID, "%s: the definition has no function `%s`", kind,
                        !def->declare  ? "declare"
                        : def->forward ? "backward"
                                       : "forward");
    if (count < 1 || count > DSC_LAYER_INPUTS || !inputs)
        return DSC_FAIL(DSC_E_INVALID, "%s: %d inputs, but there must be 1 to %d", kind, inputs ? count : 0,
                        DSC_LAYER_INPUTS);
    if (def->attribute_bytes && !attributes)
        return DSC_FAIL(DSC_E_INVALID, "%s: its %zu bytes of attributes are NULL", kind,
                        def->attribute_bytes);
    if (def->in_place && (def->needs_x || count != 1))
        return DSC_FAIL(DSC_E_INVALID,
                        "%s: in_place is for one input and needs_x = 0, because y is written over "
                        "x[0]",
                        kind);
    return DSC_OK;
}

dsc_status dsc_model_layer(dsc_model *m, const char *name, const dsc_layer_def *def, const dsc_value *inputs,
                           int count, const void *attributes, dsc_value *y) {
    dsc_layer_def given;
    dsc_layer_def_init(&given);
    DSC_TRY(dsc_versioned_define("layer_def", def, sizeof given, &given));
    DSC_TRY(check_def(&given, inputs, count, attributes));
    own *layer;
    size_t bytes = sizeof *layer + given.attribute_bytes;
    DSC_TRY(dsc_memory_alloc(1, bytes, &layer));
    layer->def = given;
    snprintf(layer->kind, sizeof layer->kind, "%s", given.kind);
    if (given.attribute_bytes)
        memcpy(layer->attributes, attributes, given.attribute_bytes);
    layer->type = (dsc_layer_type){.name = layer->kind,
                                   .attribute_bytes = bytes,
                                   .in_place = given.in_place,
                                   .keeps_x = given.needs_x ? count : 0,
                                   .keeps_y = given.needs_y,
                                   .whole_samples = 1,
                                   .shape = shape,
                                   .declare = declare,
                                   .plan = plan,
                                   .forward = forward,
                                   .backward = backward};
    dsc_status status = dsc_graph_add(m, &layer->type, name, inputs, count, layer, y);
    if (status == DSC_OK) { /* the node has a copy of `layer`, and must use the type in the copy */
        dsc_node *node = &m->nodes[*y];
        own *copy = node->attributes;
        copy->def.kind = copy->kind;
        copy->type.name = copy->kind;
        node->type = &copy->type;
    }
    dsc_memory_free(&layer);
    return status;
}
