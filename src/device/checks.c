/* Checks shared by the fronts of the operations. */
#include "device/checks.h"

#include "base/error.h"

#include <stdio.h>

enum { SHAPE_TEXT = 160 };

/* Writes a shape as text, such as "[2,3]". */
static const char *shape_text(int ndim, const int64_t *dim, char text[SHAPE_TEXT]) {
    int used = snprintf(text, SHAPE_TEXT, "[");
    for (int i = 0; i < ndim; i++)
        used += snprintf(text + used, (size_t)(SHAPE_TEXT - used), "%s%lld", i ? "," : "", (long long)dim[i]);
    snprintf(text + used, (size_t)(SHAPE_TEXT - used), "]");
    return text;
}

dsc_status dsc_check_begin_any(dsc_check *check, const char *op, dsc_queue *q) {
    if (!q)
        return DSC_FAIL(DSC_E_INVALID, "%s: no queue", op);
    *check = (dsc_check){.op = op, .q = q, .dtype = DSC_F32, .param = DSC_F32};
    return DSC_OK;
}

dsc_status dsc_check_begin(dsc_check *check, const char *op, dsc_queue *q, const char *name,
                           const dsc_tensor *t) {
    DSC_TRY(dsc_check_begin_any(check, op, q));
    DSC_TRY(dsc_check_any(check, name, t));
    if (t->dtype != DSC_F32 && t->dtype != DSC_F64)
        return DSC_FAIL(DSC_E_INVALID, "%s: %s is %s; fp32 or fp64 is expected", op, name,
                        dsc_dtype_name(t->dtype));
    check->dtype = t->dtype;
    check->param = t->dtype;
    return DSC_OK;
}

dsc_status dsc_check_batch(dsc_check *check, const char *op, dsc_queue *q, const void *items, int64_t count) {
    DSC_TRY(dsc_check_begin_any(check, op, q));
    if (count < 0 || (count > 0 && !items))
        return DSC_FAIL(DSC_E_INVALID, "%s: %lld items%s", op, (long long)count,
                        items ? "; 0 or more are expected" : " and no array");
    return DSC_OK;
}

dsc_status dsc_check_first(dsc_check *check, int64_t i, const char *name, const dsc_tensor *t) {
    if (i == 0)
        DSC_TRY(dsc_check_begin(check, check->op, check->q, name, t));
    else
        DSC_TRY(dsc_check_real(check, name, t));
    return DSC_OK;
}

static int is_half(dsc_dtype dtype) {
    return dtype == DSC_BF16 || dtype == DSC_F16;
}

dsc_status dsc_check_computes(const dsc_device *device, const char *op, const char *name, dsc_dtype dtype) {
    if (is_half(dtype) && !device->has_halves)
        return DSC_FAIL(DSC_E_INVALID, "%s: %s is %s; device %s computes in fp32 and fp64 only", op, name,
                        dsc_dtype_name(dtype), device->name);
    if (!is_half(dtype) && dtype != DSC_F32 && dtype != DSC_F64)
        return DSC_FAIL(DSC_E_INVALID, "%s: %s is %s; %s is expected", op, name, dsc_dtype_name(dtype),
                        device->has_halves ? "fp32, fp64, bf16 or fp16" : "fp32 or fp64");
    return DSC_OK;
}

dsc_status dsc_check_set_half(dsc_check *check, const char *name, dsc_dtype dtype) {
    DSC_TRY(dsc_check_computes(check->q->device, check->op, name, dtype));
    check->dtype = dtype;
    check->param = is_half(dtype) ? DSC_F32 : dtype;
    return DSC_OK;
}

dsc_status dsc_check_begin_half(dsc_check *check, const char *op, dsc_queue *q, const char *name,
                                const dsc_tensor *t) {
    DSC_TRY(dsc_check_begin_any(check, op, q));
    DSC_TRY(dsc_check_any(check, name, t));
    DSC_TRY(dsc_check_set_half(check, name, t->dtype));
    return DSC_OK;
}

dsc_status dsc_check_any(const dsc_check *check, const char *name, const dsc_tensor *t) {
    if (!t)
        return DSC_FAIL(DSC_E_INVALID, "%s: %s is missing", check->op, name);
    if (t->device != check->q->device)
        return DSC_FAIL(DSC_E_INVALID, "%s: %s is on device %s; the queue's device, %s, is expected",
                        check->op, name, t->device ? t->device->name : "(none)", check->q->device->name);
    if (t->ndim < 0 || t->ndim > DSC_MAX_DIMS)
        return DSC_FAIL(DSC_E_INVALID, "%s: %s has %d dimensions; 0 to %d are possible", check->op, name,
                        t->ndim, DSC_MAX_DIMS);
    for (int i = 0; i < t->ndim; i++) {
        char text[SHAPE_TEXT];
        if (t->dim[i] < 0)
            return DSC_FAIL(DSC_E_INVALID, "%s: %s is %s; a dimension may not be negative", check->op, name,
                            shape_text(t->ndim, t->dim, text));
    }
    if (!t->data && dsc_tensor_count(t) > 0)
        return DSC_FAIL(DSC_E_INVALID, "%s: %s has no memory", check->op, name);
    return DSC_OK;
}

dsc_status dsc_check_typed(const dsc_check *check, const char *name, const dsc_tensor *t, dsc_dtype dtype) {
    DSC_TRY(dsc_check_any(check, name, t));
    if (t->dtype != dtype)
        return DSC_FAIL(DSC_E_INVALID, "%s: %s is %s; %s is expected", check->op, name,
                        dsc_dtype_name(t->dtype), dsc_dtype_name(dtype));
    return DSC_OK;
}

dsc_status dsc_check_real(const dsc_check *check, const char *name, const dsc_tensor *t) {
    DSC_TRY(dsc_check_typed(check, name, t, check->dtype));
    return DSC_OK;
}

dsc_status dsc_check_dims(const dsc_check *check, const char *name, const dsc_tensor *t, int ndim) {
    char text[SHAPE_TEXT];
    if (t->ndim != ndim)
        return DSC_FAIL(DSC_E_INVALID, "%s: %s is %s; %d dimension%s expected", check->op, name,
                        shape_text(t->ndim, t->dim, text), ndim, ndim == 1 ? " is" : "s are");
    return DSC_OK;
}

static int equal_shape(const dsc_tensor *t, int ndim, const int64_t *dim) {
    int equal = t->ndim == ndim;
    for (int i = 0; equal && i < ndim; i++)
        equal = t->dim[i] == dim[i];
    return equal;
}

dsc_status dsc_check_shape(const dsc_check *check, const char *name, const dsc_tensor *t, int ndim,
                           const int64_t *dim) {
    char is[SHAPE_TEXT], expected[SHAPE_TEXT];
    if (!equal_shape(t, ndim, dim))
        return DSC_FAIL(DSC_E_INVALID, "%s: %s is %s; %s is expected", check->op, name,
                        shape_text(t->ndim, t->dim, is), shape_text(ndim, dim, expected));
    return DSC_OK;
}

dsc_status dsc_check_same_shape(const dsc_check *check, const char *name, const dsc_tensor *t,
                                const char *other_name, const dsc_tensor *other) {
    char is[SHAPE_TEXT], expected[SHAPE_TEXT];
    if (!equal_shape(t, other->ndim, other->dim))
        return DSC_FAIL(DSC_E_INVALID, "%s: %s is %s; the shape of %s, %s, is expected", check->op, name,
                        shape_text(t->ndim, t->dim, is), other_name,
                        shape_text(other->ndim, other->dim, expected));
    return DSC_OK;
}

dsc_status dsc_check_same_count(const dsc_check *check, const char *name, const dsc_tensor *t,
                                const char *other_name, const dsc_tensor *other) {
    char is[SHAPE_TEXT], expected[SHAPE_TEXT];
    if (dsc_tensor_count(t) != dsc_tensor_count(other))
        return DSC_FAIL(DSC_E_INVALID, "%s: %s is %s; as many elements as %s, %s, are expected", check->op,
                        name, shape_text(t->ndim, t->dim, is), other_name,
                        shape_text(other->ndim, other->dim, expected));
    return DSC_OK;
}

dsc_status dsc_check_square(const dsc_check *check, const char *name, const dsc_tensor *t) {
    DSC_TRY(dsc_check_dims(check, name, t, 2));
    DSC_TRY(dsc_check_shape(check, name, t, DSC_SHAPE(t->dim[0], t->dim[0])));
    return DSC_OK;
}

dsc_status dsc_check_real_shape(const dsc_check *check, const char *name, const dsc_tensor *t, int ndim,
                                const int64_t *dim) {
    DSC_TRY(dsc_check_real(check, name, t));
    DSC_TRY(dsc_check_shape(check, name, t, ndim, dim));
    return DSC_OK;
}

dsc_status dsc_check_real_like(const dsc_check *check, const char *name, const dsc_tensor *t,
                               const char *other_name, const dsc_tensor *other) {
    DSC_TRY(dsc_check_real(check, name, t));
    DSC_TRY(dsc_check_same_shape(check, name, t, other_name, other));
    return DSC_OK;
}

dsc_status dsc_check_real_count(const dsc_check *check, const char *name, const dsc_tensor *t,
                                const char *other_name, const dsc_tensor *other) {
    DSC_TRY(dsc_check_real(check, name, t));
    DSC_TRY(dsc_check_same_count(check, name, t, other_name, other));
    return DSC_OK;
}

dsc_status dsc_check_param(const dsc_check *check, const char *name, const dsc_tensor *t) {
    DSC_TRY(dsc_check_typed(check, name, t, check->param));
    return DSC_OK;
}

dsc_status dsc_check_param_shape(const dsc_check *check, const char *name, const dsc_tensor *t, int ndim,
                                 const int64_t *dim) {
    DSC_TRY(dsc_check_param(check, name, t));
    DSC_TRY(dsc_check_shape(check, name, t, ndim, dim));
    return DSC_OK;
}

dsc_status dsc_check_f64(const dsc_check *check, const char *name, const dsc_tensor *t, int64_t count) {
    char is[SHAPE_TEXT];
    DSC_TRY(dsc_check_typed(check, name, t, DSC_F64));
    if (dsc_tensor_count(t) != count)
        return DSC_FAIL(DSC_E_INVALID, "%s: %s is %s; %lld element%s expected", check->op, name,
                        shape_text(t->ndim, t->dim, is), (long long)count, count == 1 ? " is" : "s are");
    return DSC_OK;
}

dsc_status dsc_check_product(const dsc_check *check, const int trans[2], const dsc_tensor *a,
                             const dsc_tensor *b, const dsc_tensor *c) {
    DSC_TRY(dsc_check_real(check, "b", b));
    if (!c || c->dtype != check->param) /* with half types c may also be F32 */
        DSC_TRY(dsc_check_real(check, "c", c));
    DSC_TRY(dsc_check_any(check, "c", c));
    DSC_TRY(dsc_check_dims(check, "a", a, 2));
    DSC_TRY(dsc_check_dims(check, "b", b, 2));
    int64_t m = a->dim[trans[0] ? 1 : 0], k = a->dim[trans[0] ? 0 : 1], n = b->dim[trans[1] ? 0 : 1];
    DSC_TRY(dsc_check_shape(check, "b", b, 2, trans[1] ? (const int64_t[]){n, k} : (const int64_t[]){k, n}));
    DSC_TRY(dsc_check_shape(check, "c", c, DSC_SHAPE(m, n)));
    DSC_TRY(dsc_check_apart(check, "c", c, "a", a));
    DSC_TRY(dsc_check_apart(check, "c", c, "b", b));
    return DSC_OK;
}

dsc_status dsc_check_apart(const dsc_check *check, const char *name, const dsc_tensor *t,
                           const char *other_name, const dsc_tensor *other) {
    const char *a = t->data, *b = other->data;
    size_t a_bytes = dsc_tensor_bytes(t), b_bytes = dsc_tensor_bytes(other);
    if (a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes)
        return DSC_FAIL(DSC_E_INVALID, "%s: %s shares memory with %s; it may not", check->op, name,
                        other_name);
    return DSC_OK;
}

dsc_status dsc_check_apart_or_same(const dsc_check *check, const char *name, const dsc_tensor *t,
                                   const char *other_name, const dsc_tensor *other) {
    if (t->data != other->data)
        DSC_TRY(dsc_check_apart(check, name, t, other_name, other));
    return DSC_OK;
}

dsc_status dsc_check_beta(const dsc_check *check, const char *name, double beta) {
    if (beta != 0.0 && beta != 1.0)
        return DSC_FAIL(DSC_E_INVALID, "%s: %s is %g; 0 or 1 is expected", check->op, name, beta);
    return DSC_OK;
}

dsc_status dsc_check_work(const dsc_check *check, const dsc_tensor *work, size_t bytes) {
    if (!work && bytes == 0)
        return DSC_OK;
    DSC_TRY(dsc_check_typed(check, "work", work, DSC_U8));
    if (dsc_tensor_bytes(work) < bytes)
        return DSC_FAIL(DSC_E_INVALID, "%s: work has %zu bytes; %zu are needed", check->op,
                        dsc_tensor_bytes(work), bytes);
    return DSC_OK;
}

dsc_status dsc_check_empty_sum(const dsc_check *check, double beta, dsc_tensor *out) {
    if (beta == 0 && dsc_tensor_count(out) > 0)
        DSC_TRY(check->q->device->table->fill(check->q, 0.0, out));
    return DSC_OK;
}
