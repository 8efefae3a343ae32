/* The table of layer kinds, copying and checking of a caller's layers, and functions that the kinds share. */
#include "kfac/kinds.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/versioned.h"
#include "descent/log.h"

#include <regex.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_FACTOR_ROWS = 1 << 24, /* 10^15 bytes of float32: any sum over layers still fits into 64 bits */
    MAX_SIZE = 1 << 24,        /* of images, channels, kernels, strides, paddings, dilations */
    MAX_NAME = 400             /* characters of a name; entries of a checkpoint append a few */
};

#define ENTRY(constant, name) [constant] = &dsc_kfac_kind_##name,
static const dsc_kfac_kind_entry *const kinds[] = {DSC_KFAC_KINDS(ENTRY)};
#undef ENTRY
enum { KIND_COUNT = sizeof kinds / sizeof kinds[0] };

const dsc_kfac_kind_entry *dsc_kfac_kind_of(const dsc_kfac_layer *layer) {
    return (int)layer->kind >= 0 && (int)layer->kind < KIND_COUNT ? kinds[layer->kind] : NULL;
}

int64_t dsc_kfac_positions(const dsc_kfac_layer *layer) {
    const dsc_kfac_kind_entry *kind = dsc_kfac_kind_of(layer);
    return kind->positions ? kind->positions(layer) : 1;
}

const char *dsc_kfac_kind_name(dsc_kfac_kind kind) {
    return (int)kind >= 0 && (int)kind < KIND_COUNT ? kinds[kind]->name : "unknown";
}

/* ---- copies ---- */

void dsc_kfac_layer_init_sized(dsc_kfac_layer *layer, size_t size) {
    const dsc_kfac_layer defaults = {.size = sizeof defaults};
    dsc_versioned_init(layer, size, &defaults, sizeof defaults);
}

static dsc_status check_name(const dsc_kfac_layer *l) {
    if (!l->name || !*l->name)
        return DSC_FAIL(DSC_E_INVALID, "a K-FAC layer without a name");
    if (strlen(l->name) > MAX_NAME)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC layer '%.40s...': its name has %zu characters, at most %d are possible",
                        l->name, strlen(l->name), MAX_NAME);
    return DSC_OK;
}

/* Gives late gradients, which have no memory yet, an address that is never read, because elsewhere an address means
 * that there is a gradient. */
static void mark_late(dsc_kfac_layer *own) {
    static char nowhere[1];
    own->weight_grad.data = nowhere;
    own->bias_grad.data = own->bias_grad.data || own->bias_grad.ndim > 0 ? nowhere : NULL;
    own->bias_grad.dtype = own->weight_grad.dtype;
    own->bias_grad.device = own->weight_grad.device;
}

static dsc_status copy_layer(const void *given, dsc_kfac_layer *own) {
    const size_t least = offsetof(dsc_kfac_layer, bias_grad) + sizeof own->bias_grad;
    size_t size;
    memcpy(&size, given, sizeof size);
    if (size < least || size > sizeof *own)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC layers of %zu bytes, this library knows %zu: fill them in with "
                        "dsc_kfac_layer_init, from the headers of the library that is linked",
                        size, sizeof *own);
    dsc_kfac_layer layer;
    char *name;
    dsc_kfac_layer_init(&layer);
    memcpy((char *)&layer + sizeof size, (const char *)given + sizeof size, size - sizeof size);
    DSC_TRY(check_name(&layer));
    DSC_TRY(dsc_memory_strdup(layer.name, &name));
    *own = layer;
    own->name = name;
    if (own->late_gradients)
        mark_late(own);
    const dsc_kfac_kind_entry *kind = dsc_kfac_kind_of(own);
    return kind && kind->read ? kind->read(&layer, own) : DSC_OK;
}

dsc_status dsc_kfac_layers_copy(const dsc_kfac_layer *layers, int64_t count, dsc_kfac_layer **out) {
    *out = NULL;
    if (count < 0 || (count > 0 && !layers))
        return DSC_FAIL(DSC_E_INVALID, "%lld K-FAC layers%s: must be 0 or more", (long long)count,
                        layers ? "" : " at NULL");
    DSC_TRY(dsc_memory_alloc(count, sizeof **out, out));
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < count && status == DSC_OK; i++)
        status = copy_layer((const char *)layers + (size_t)i * layers->size, &(*out)[i]);
    if (status != DSC_OK)
        dsc_kfac_layers_release(out, count);
    return status;
}

void dsc_kfac_layers_release(dsc_kfac_layer **layers, int64_t count) {
    for (int64_t i = 0; *layers && i < count; i++) {
        dsc_kfac_layer *l = &(*layers)[i];
        const dsc_kfac_kind_entry *kind = dsc_kfac_kind_of(l);
        if (l->name && kind && kind->release)
            kind->release(l);
        dsc_memory_free(&l->name);
    }
    dsc_memory_free(layers);
}

/* ---- checks ---- */

dsc_status dsc_kfac_check_size(const dsc_kfac_layer *layer, const char *what, int64_t value, int64_t least) {
    if (value < least || value > MAX_SIZE)
        return DSC_FAIL(DSC_E_INVALID, "layer '%s': %s %lld: must be in %lld..%d", layer->name, what,
                        (long long)value, (long long)least, MAX_SIZE);
    return DSC_OK;
}

dsc_status dsc_kfac_check_rows(const dsc_kfac_layer *layer, char factor, int64_t rows) {
    if (rows > MAX_FACTOR_ROWS)
        return DSC_FAIL(DSC_E_INVALID,
                        "layer '%s': factor %c would have %lld rows, at most %d are possible: skip the layer",
                        layer->name, factor, (long long)rows, MAX_FACTOR_ROWS);
    return DSC_OK;
}

static dsc_status check_gradient(const dsc_kfac_layer *l, const char *what, const dsc_tensor *t,
                                 int64_t count) {
    if (!t->data)
        return DSC_OK;
    if (!l->late_gradients && dsc_tensor_count(t) != count)
        return DSC_FAIL(DSC_E_INVALID, "layer '%s': the gradient of its %s has %lld numbers: must be %lld",
                        l->name, what, (long long)dsc_tensor_count(t), (long long)count);
    if (t->dtype != DSC_F32 && t->dtype != DSC_F64)
        return DSC_FAIL(DSC_E_INVALID, "layer '%s': the gradient of its %s is %s: must be fp32 or fp64",
                        l->name, what, dsc_dtype_name(t->dtype));
    if (l->weight_grad.data && (t->dtype != l->weight_grad.dtype || t->device != l->weight_grad.device))
        return DSC_FAIL(DSC_E_INVALID,
                        "layer '%s': the gradients of its weight and bias must be of one type and on one "
                        "device",
                        l->name);
    return DSC_OK;
}

dsc_status dsc_kfac_layer_check(const dsc_kfac_layer *layer) {
    const dsc_kfac_kind_entry *kind = dsc_kfac_kind_of(layer);
    if (!kind) {
        char known[256] = "";
        size_t used = 0;
        for (int i = 0; i < KIND_COUNT && used < sizeof known; i++)
            used += (size_t)snprintf(known + used, sizeof known - used, "%s%s (%d)", i ? ", " : "",
                                     kinds[i]->name, i);
        return DSC_FAIL(DSC_E_INVALID, "layer '%s': kind %d: must be one of %s", layer->name,
                        (int)layer->kind, known);
    }
    DSC_TRY(dsc_kfac_check_size(layer, "inputs", layer->in_c, 1));
    DSC_TRY(dsc_kfac_check_size(layer, "outputs", layer->out_c, 1));
    if (kind->check)
        DSC_TRY(kind->check(layer));
    dsc_kfac_sizes s = kind->sizes(layer);
    DSC_TRY(dsc_kfac_check_rows(layer, 'A', s.a_n));
    DSC_TRY(dsc_kfac_check_rows(layer, 'G', s.g_n));
    int64_t outputs = s.units * s.g_n, inputs = s.a_n - (layer->bias_grad.data != NULL);
    if (s.units == 0) { /* a norm, with one number per channel, or a table */
        outputs = s.g_n;
        inputs = s.table ? s.a_n : 1;
    }
    DSC_TRY(check_gradient(layer, "weight", &layer->weight_grad, outputs * inputs));
    return check_gradient(layer, "bias", &layer->bias_grad, outputs);
}

dsc_status dsc_kfac_layer_factors(const dsc_kfac_layer *layer, int64_t *a_n, int64_t *g_n, int64_t *units) {
    dsc_kfac_layer *own;
    DSC_TRY(dsc_kfac_layers_copy(layer, 1, &own));
    dsc_status status = dsc_kfac_layer_check(own);
    if (status == DSC_OK) {
        dsc_kfac_sizes s = dsc_kfac_kind_of(own)->sizes(own);
        *a_n = s.a_n;
        *g_n = s.g_n;
        *units = s.units;
    }
    dsc_kfac_layers_release(&own, 1);
    return status;
}

dsc_status dsc_kfac_check_captured(const dsc_kfac_layer *layer, const char *what, const dsc_tensor *t,
                                   int64_t channels, int64_t rows) {
    const dsc_tensor *grad = &layer->weight_grad;
    if (!t || !t->data)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer '%s': this step needs %s, which is missing", layer->name,
                        what);
    int half = t->dtype == DSC_BF16 || t->dtype == DSC_F16;
    int fits = t->dtype == grad->dtype || (half && grad->dtype == DSC_F32);
    if (t->device != grad->device || !fits)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer '%s': %s is %s on %s, its gradients are %s on %s",
                        layer->name, what, dsc_dtype_name(t->dtype),
                        t->device ? dsc_device_name(t->device) : "no device", dsc_dtype_name(grad->dtype),
                        dsc_device_name(grad->device));
    int64_t count = dsc_tensor_count(t), last = t->ndim < 1 ? 0 : t->dim[t->ndim - 1];
    if (count == 0)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer '%s': %s is empty; leave out a layer that did not run",
                        layer->name, what);
    if (last != channels)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer '%s': the last dimension of %s is %lld, expected %lld",
                        layer->name, what, (long long)last, (long long)channels);
    if (rows >= 0 && count / channels != rows)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer '%s': %s has %lld rows, its input makes %lld",
                        layer->name, what, (long long)(count / channels), (long long)rows);
    return DSC_OK;
}

/* ---- shared by kinds ---- */

dsc_kfac_rows dsc_kfac_matrix_rows(const dsc_tensor *t, int64_t channels, int64_t units) {
    int64_t count = dsc_tensor_count(t) / channels;
    const int64_t dim[4] = {count, 1, 1, channels};
    dsc_kfac_rows rows = {.x = dsc_tensor_view(t->device, t->data, t->dtype, 4, dim),
                          .desc = {.dtype = t->dtype, .n = count}};
    dsc_conv2d_shape *shape = &rows.desc.shape;
    dsc_conv2d_shape_init(shape);
    shape->in_h = shape->in_w = 1;
    shape->in_c = channels;
    shape->out_c = shape->groups = units;
    return rows;
}

void dsc_kfac_row_gradient(const dsc_kfac_layer *layer, int64_t unit, dsc_join_item *out) {
    dsc_kfac_sizes s = dsc_kfac_kind_of(layer)->sizes(layer);
    int64_t columns = s.a_n - (layer->bias_grad.data != NULL);
    const int64_t dim[2] = {s.g_n, columns};
    dsc_tensor part = dsc_tensor_slice(&layer->weight_grad, unit * s.g_n * columns, s.g_n * columns);
    out->w = dsc_tensor_view(part.device, part.data, part.dtype, 2, dim);
    if (layer->bias_grad.data)
        out->b = dsc_tensor_slice(&layer->bias_grad, unit * s.g_n, s.g_n);
}

/* ---- layers left out ---- */

/* Marks the layers in whose name or kind an expression is found. */
static dsc_status skip_one(const dsc_kfac_layer *layers, int64_t count, const char *expression,
                           unsigned char *skip) {
    regex_t regex;
    int code = regcomp(&regex, expression, REG_EXTENDED | REG_NOSUB);
    if (code) {
        char why[128];
        regerror(code, &regex, why, sizeof why);
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC layers to skip: '%s' is not a POSIX extended regular expression: %s",
                        expression, why);
    }
    int found = 0;
    for (int64_t i = 0; i < count; i++) {
        int matches = regexec(&regex, layers[i].name, 0, NULL, 0) == 0 ||
                      regexec(&regex, dsc_kfac_kind_name(layers[i].kind), 0, NULL, 0) == 0;
        skip[i] |= (unsigned char)matches;
        found |= matches;
    }
    regfree(&regex);
    if (!found)
        dsc_log(DSC_LOG_WARNING, "K-FAC layers to skip: '%s' is found in no layer's name or kind",
                expression);
    return DSC_OK;
}

dsc_status dsc_kfac_skip(const dsc_kfac_layer *layers, int64_t count, const char *expressions,
                         unsigned char *skip) {
    for (int64_t i = 0; i < count; i++)
        skip[i] = layers[i].leave_out != 0;
    if (!expressions)
        return DSC_OK;
    char *text;
    DSC_TRY(dsc_memory_strdup(expressions, &text));
    dsc_status status = DSC_OK;
    for (char *word = text; status == DSC_OK;) {
        word += strspn(word, " \t\n");
        if (!*word)
            break;
        char *end = word + strcspn(word, " \t\n");
        int last = *end == '\0';
        *end = '\0';
        status = skip_one(layers, count, word, skip);
        word = last ? end : end + 1;
    }
    dsc_memory_free(&text);
    return status;
}
