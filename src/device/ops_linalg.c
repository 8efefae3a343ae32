/* Fronts of dense linear algebra: check, early out, select, execute. */
#include "device/checks.h"

#include "base/error.h"

dsc_status dsc_op_gemm(dsc_queue *q, int trans_a, int trans_b, double alpha, const dsc_tensor *a,
                       const dsc_tensor *b, double beta, dsc_tensor *c) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_half(&check, "gemm", q, "a", a));
    DSC_TRY(dsc_check_product(&check, (const int[]){trans_a, trans_b}, a, b, c));
    int64_t m = c->dim[0], n = c->dim[1], k = a->dim[trans_a ? 0 : 1];
    if (m == 0 || n == 0)
        return DSC_OK;
    const dsc_device_table *table = dsc_device_table_for(q->device, check.dtype);
    if (k == 0 && beta == 0) /* an empty sum: only beta C is left */
        DSC_TRY(q->device->table->fill(q, 0.0, c));
    else if (k == 0)
        DSC_TRY(table->axpby(q, beta, c, 0.0, c));
    else
        DSC_TRY(table->gemm(q, trans_a, trans_b, alpha, a, b, beta, c));
    return DSC_OK;
}

static dsc_status compose_linear(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *w,
                                 const dsc_linear_epilogue *e, dsc_tensor *y) {
    dsc_tensor *sum = e->inner ? e->inner : y;
    DSC_TRY(dsc_op_gemm(q, 0, 1, 1, x, w, 0, sum));
    if (e->b)
        DSC_TRY(dsc_op_bias_add(q, e->b, sum));
    if (e->inner)
        return dsc_op_map(q, DSC_MAP_GELU_TANH, e->inner, NULL, 0, y);
    return e->term ? dsc_op_add(q, y, e->term, y) : DSC_OK;
}

dsc_status dsc_op_linear(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *w, const dsc_linear_epilogue *e,
                         dsc_tensor *y) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_half(&check, "linear", q, "x", x));
    DSC_TRY(dsc_check_product(&check, (const int[]){0, 1}, x, w, y));
    if (e->b)
        DSC_TRY(dsc_check_param_shape(&check, "b", e->b, DSC_SHAPE(y->dim[1])));
    if (e->half_b)
        DSC_TRY(dsc_check_real_shape(&check, "half_b", e->half_b, DSC_SHAPE(y->dim[1])));
    if (e->term && e->inner)
        return DSC_FAIL(DSC_E_INVALID, "linear: both a term and a GELU; one of them at most is possible");
    if (e->term) {
        DSC_TRY(dsc_check_real_shape(&check, "term", e->term, DSC_SHAPE(y->dim[0], y->dim[1])));
        DSC_TRY(dsc_check_apart(&check, "y", y, "term", e->term));
    }
    if (e->inner) {
        DSC_TRY(dsc_check_real_shape(&check, "inner", e->inner, DSC_SHAPE(y->dim[0], y->dim[1])));
        DSC_TRY(dsc_check_apart(&check, "inner", e->inner, "x", x));
        DSC_TRY(dsc_check_apart(&check, "inner", e->inner, "w", w));
        DSC_TRY(dsc_check_apart(&check, "y", y, "inner", e->inner));
    }
    const dsc_device_table *table = dsc_device_table_for(q->device, check.dtype);
    int plain = !e->b && !e->term && !e->inner;
    if (table->linear && !plain && (e->half_b || !e->b) && dsc_tensor_count(x) > 0 &&
        dsc_tensor_count(y) > 0) {
        dsc_status status = table->linear(q, x, w, e, y);
        if (status != DSC_E_UNSUPPORTED)
            return status;
    }
    return compose_linear(q, x, w, e, y);
}

dsc_status dsc_op_gelu_gradient(dsc_queue *q, const dsc_tensor *dy, const dsc_tensor *w,
                                const dsc_tensor *inner, dsc_tensor *dx) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_half(&check, "gelu_gradient", q, "dy", dy));
    DSC_TRY(dsc_check_product(&check, (const int[]){0, 0}, dy, w, dx));
    DSC_TRY(dsc_check_real_shape(&check, "inner", inner, DSC_SHAPE(dx->dim[0], dx->dim[1])));
    DSC_TRY(dsc_check_apart(&check, "dx", dx, "inner", inner));
    const dsc_device_table *table = dsc_device_table_for(q->device, check.dtype);
    if (table->gelu_gradient && dsc_tensor_count(dy) > 0 && dsc_tensor_count(dx) > 0) {
        dsc_status status = table->gelu_gradient(q, dy, w, inner, dx);
        if (status != DSC_E_UNSUPPORTED)
            return status;
    }
    DSC_TRY(dsc_op_gemm(q, 0, 0, 1, dy, w, 0, dx));
    return dsc_op_map(q, DSC_MAP_GELU_TANH_SLOPE, inner, dx, 0, dx);
}

dsc_status dsc_op_syrk(dsc_queue *q, double alpha, const dsc_tensor *a, double beta, dsc_tensor *c) {
    dsc_check check;
    DSC_TRY(dsc_check_begin(&check, "syrk", q, "a", a));
    DSC_TRY(dsc_check_dims(&check, "a", a, 2));
    int64_t n = a->dim[1];
    DSC_TRY(dsc_check_real_shape(&check, "c", c, DSC_SHAPE(n, n)));
    DSC_TRY(dsc_check_apart(&check, "c", c, "a", a));
    if (n == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->syrk(q, alpha, a, beta, c));
    return DSC_OK;
}

dsc_status dsc_op_symmetrize(dsc_queue *q, dsc_tensor *a) {
    dsc_check check;
    DSC_TRY(dsc_check_begin(&check, "symmetrize", q, "a", a));
    DSC_TRY(dsc_check_square(&check, "a", a));
    if (a->dim[0] == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->symmetrize(q, a));
    return DSC_OK;
}

/* Checks a and p, after dsc_check_begin or dsc_check_first of a. */
static dsc_status check_triangle(const dsc_check *check, const dsc_tensor *a, const dsc_tensor *p) {
    DSC_TRY(dsc_check_square(check, "a", a));
    int64_t n = a->dim[0];
    DSC_TRY(dsc_check_real_shape(check, "p", p, DSC_SHAPE(n * (n + 1) / 2)));
    DSC_TRY(dsc_check_apart(check, "a", a, "p", p));
    return DSC_OK;
}

static dsc_status check_packed(dsc_check *check, const char *op, dsc_queue *q, const dsc_tensor *a,
                               const dsc_tensor *p) {
    DSC_TRY(dsc_check_begin(check, op, q, "a", a));
    DSC_TRY(check_triangle(check, a, p));
    return DSC_OK;
}

dsc_status dsc_op_tri_pack(dsc_queue *q, const dsc_tensor *a, dsc_tensor *p) {
    dsc_check check;
    DSC_TRY(check_packed(&check, "tri_pack", q, a, p));
    if (a->dim[0] == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->tri_pack(q, a, p));
    return DSC_OK;
}

dsc_status dsc_op_tri_unpack(dsc_queue *q, const dsc_tensor *p, dsc_tensor *a) {
    dsc_check check;
    DSC_TRY(check_packed(&check, "tri_unpack", q, a, p));
    if (a->dim[0] == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->tri_unpack(q, p, a));
    return DSC_OK;
}

static dsc_status unpack_items(dsc_queue *q, const dsc_unpack_item *items, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        dsc_tensor a = items[i].a;
        DSC_TRY(dsc_op_tri_unpack(q, &items[i].p, &a));
    }
    return DSC_OK;
}

dsc_status dsc_op_tri_unpack_batch(dsc_queue *q, const dsc_unpack_item *items, int64_t count) {
    dsc_check check;
    int empty = 0;
    DSC_TRY(dsc_check_batch(&check, "tri_unpack_batch", q, items, count));
    for (int64_t i = 0; i < count; i++) {
        dsc_status status = dsc_check_first(&check, i, "a", &items[i].a);
        if (status == DSC_OK)
            status = check_triangle(&check, &items[i].a, &items[i].p);
        if (status != DSC_OK)
            return dsc_error_prefix(status, "item %lld", (long long)i);
        empty |= items[i].a.dim[0] == 0;
    }
    if (count == 0)
        return DSC_OK;
    const dsc_device_table *table = dsc_device_table_for(q->device, check.dtype);
    if (table->tri_unpack_batch && !empty)
        DSC_TRY(table->tri_unpack_batch(q, items, count));
    else
        DSC_TRY(unpack_items(q, items, count));
    return DSC_OK;
}

size_t dsc_op_syev_workspace(dsc_device *device, dsc_dtype dtype, int64_t n) {
    return n > 0 ? device->table->syev_workspace(device, dtype, n) : 0;
}

dsc_status dsc_op_syev(dsc_queue *q, dsc_tensor *a, dsc_tensor *work, dsc_tensor *v) {
    dsc_check check;
    DSC_TRY(dsc_check_begin(&check, "syev", q, "a", a));
    DSC_TRY(dsc_check_square(&check, "a", a));
    int64_t n = a->dim[0];
    DSC_TRY(dsc_check_real_shape(&check, "v", v, DSC_SHAPE(n)));
    DSC_TRY(dsc_check_work(&check, work, dsc_op_syev_workspace(q->device, check.dtype, n)));
    DSC_TRY(dsc_check_apart(&check, "v", v, "a", a));
    if (n == 0)
        return DSC_OK;
    DSC_TRY(q->device->table->syev(q, a, work, v));
    return DSC_OK;
}

dsc_status dsc_op_chol_inverse(dsc_queue *q, dsc_tensor *a) {
    dsc_check check;
    DSC_TRY(dsc_check_begin(&check, "chol_inverse", q, "a", a));
    DSC_TRY(dsc_check_square(&check, "a", a));
    if (a->dim[0] == 0)
        return DSC_OK;
    DSC_TRY(q->device->table->chol_inverse(q, a));
    return DSC_OK;
}

dsc_status dsc_op_syev_careful(dsc_queue *q, dsc_tensor *a, dsc_tensor *v) {
    dsc_check check;
    DSC_TRY(dsc_check_begin(&check, "syev_careful", q, "a", a));
    DSC_TRY(dsc_check_square(&check, "a", a));
    DSC_TRY(dsc_check_real_shape(&check, "v", v, DSC_SHAPE(a->dim[0])));
    DSC_TRY(dsc_check_apart(&check, "v", v, "a", a));
    if (a->dim[0] == 0)
        return DSC_OK;
    DSC_TRY(q->device->table->syev_careful(q, a, v));
    return DSC_OK;
}

dsc_status dsc_op_add_diagonal(dsc_queue *q, const dsc_tensor *value, dsc_tensor *a) {
    dsc_check check;
    DSC_TRY(dsc_check_begin(&check, "add_diagonal", q, "a", a));
    DSC_TRY(dsc_check_square(&check, "a", a));
    DSC_TRY(dsc_check_f64(&check, "value", value, 1));
    DSC_TRY(dsc_check_apart(&check, "a", a, "value", value));
    if (a->dim[0] == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->add_diagonal(q, value, a));
    return DSC_OK;
}
