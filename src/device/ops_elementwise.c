/* Fronts of the element-wise operations and reductions: check, early out, select, execute. */
#include "device/checks.h"

#include "base/clock.h"
#include "base/error.h"

#include <stdint.h>

static int is_float(dsc_dtype dtype) {
    return dtype == DSC_F32 || dtype == DSC_F64 || dtype == DSC_BF16 || dtype == DSC_F16;
}

/* Integer tensors are filled with whole numbers in their range only: other conversions are undefined in C. */
static dsc_status check_fill_value(double value, dsc_dtype dtype) {
    double low, high; /* value in [low, high) */
    switch (dtype) {
    case DSC_I32:
        low = -0x1p31;
        high = 0x1p31;
        break;
    case DSC_I64:
        low = -0x1p63;
        high = 0x1p63;
        break;
    case DSC_U8:
        low = 0;
        high = 256;
        break;
    default:
        return DSC_OK;
    }
    if (!(value >= low && value < high) || value != (double)(int64_t)value)
        return DSC_FAIL(DSC_E_INVALID, "fill: %g is not a value of type %s", value, dsc_dtype_name(dtype));
    return DSC_OK;
}

dsc_status dsc_op_fill(dsc_queue *q, double value, dsc_tensor *t) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_any(&check, "fill", q));
    DSC_TRY(dsc_check_any(&check, "t", t));
    DSC_TRY(check_fill_value(value, t->dtype));
    if (dsc_tensor_count(t) == 0)
        return DSC_OK;
    DSC_TRY(q->device->table->fill(q, value, t));
    return DSC_OK;
}

/* Returns 1 if both have the same type and the same memory. */
static int is_same(const dsc_tensor *src, const dsc_tensor *dst) {
    return src->data == dst->data && src->dtype == dst->dtype;
}

static dsc_status check_convert(const dsc_check *check, const dsc_tensor *src, const dsc_tensor *dst) {
    DSC_TRY(dsc_check_any(check, "src", src));
    DSC_TRY(dsc_check_any(check, "dst", dst));
    if (src->dtype != dst->dtype && !(is_float(src->dtype) && is_float(dst->dtype)))
        return DSC_FAIL(DSC_E_INVALID,
                        "%s: %s to %s; equal types, or two of fp32, fp64, bf16 and fp16, are expected",
                        check->op, dsc_dtype_name(src->dtype), dsc_dtype_name(dst->dtype));
    DSC_TRY(dsc_check_same_count(check, "dst", dst, "src", src));
    return is_same(src, dst) ? DSC_OK : dsc_check_apart(check, "dst", dst, "src", src);
}

dsc_status dsc_op_convert(dsc_queue *q, const dsc_tensor *src, dsc_tensor *dst) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_any(&check, "convert", q));
    DSC_TRY(check_convert(&check, src, dst));
    if (is_same(src, dst) || dsc_tensor_count(dst) == 0)
        return DSC_OK;
    DSC_TRY(q->device->table->convert(q, src, dst));
    return DSC_OK;
}

static dsc_status check_convert_item(const dsc_check *check, const dsc_convert_item *item) {
    const dsc_tensor *src = &item->src, *dst = &item->dst;
    int real = src->dtype == DSC_F32 || src->dtype == DSC_F64;
    DSC_TRY(check_convert(check, src, dst));
    if (!is_float(src->dtype) || (item->clamp && (!real || dst->dtype != src->dtype)))
        return DSC_FAIL(DSC_E_INVALID, "%s: %s to %s; %s expected", check->op, dsc_dtype_name(src->dtype),
                        dsc_dtype_name(dst->dtype),
                        item->clamp ? "with clamp two of fp32, or of fp64, are"
                                    : "two of fp32, fp64, bf16 and fp16 are");
    return item->clamp ? dsc_check_same_shape(check, "dst", dst, "src", src) : DSC_OK;
}

static dsc_status convert_items(dsc_queue *q, const dsc_convert_item *items, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        dsc_tensor dst = items[i].dst;
        DSC_TRY(items[i].clamp ? dsc_op_relu_forward(q, &items[i].src, &dst)
                               : dsc_op_convert(q, &items[i].src, &dst));
    }
    return DSC_OK;
}

dsc_status dsc_op_convert_batch(dsc_queue *q, const dsc_convert_item *items, int64_t count) {
    dsc_check check;
    int empty = 0;
    DSC_TRY(dsc_check_batch(&check, "convert_batch", q, items, count));
    for (int64_t i = 0; i < count; i++) {
        dsc_status status = check_convert_item(&check, &items[i]);
        if (status != DSC_OK)
            return dsc_error_prefix(status, "item %lld", (long long)i);
        empty |= dsc_tensor_count(&items[i].dst) == 0;
    }
    if (count == 0)
        return DSC_OK;
    if (q->device->table->convert_batch && !empty)
        DSC_TRY(q->device->table->convert_batch(q, items, count));
    else
        DSC_TRY(convert_items(q, items, count));
    return DSC_OK;
}

/* ---- y = beta y + f(a, b) ---- */

dsc_status dsc_op_map(dsc_queue *q, dsc_map map, const dsc_tensor *a, const dsc_tensor *b, double beta,
                      dsc_tensor *y) {
    static const struct {
        const char *op, *a, *b, *y;
    } names[] = {
#define NAMES(NAME, name, op, a, b, y) {op, a, b, y},
        DSC_MAPS(NAMES)
#undef NAMES
    };
    dsc_check check;
    if ((int)map < 0 || map >= DSC_MAP_COUNT)
        return DSC_FAIL(DSC_E_INVALID, "map: operation %d is unknown", (int)map);
    const char *a_name = names[map].a, *b_name = names[map].b, *y_name = names[map].y;
    DSC_TRY(dsc_check_begin_half(&check, names[map].op, q, a_name, a));
    if (b_name)
        DSC_TRY(dsc_check_real_like(&check, b_name, b, a_name, a));
    DSC_TRY(dsc_check_real_like(&check, y_name, y, a_name, a));
    DSC_TRY(dsc_check_beta(&check, "beta", beta));
    dsc_status (*check_apart)(const dsc_check *check, const char *name, const dsc_tensor *t,
                              const char *other_name, const dsc_tensor *other) =
        beta == 0 ? dsc_check_apart_or_same : dsc_check_apart;
    DSC_TRY(check_apart(&check, y_name, y, a_name, a));
    if (b_name)
        DSC_TRY(check_apart(&check, y_name, y, b_name, b));
    if (dsc_tensor_count(y) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->map(q, map, a, b_name ? b : NULL, beta, y));
    return DSC_OK;
}

dsc_status dsc_op_relu_forward(dsc_queue *q, const dsc_tensor *x, dsc_tensor *y) {
    return dsc_op_map(q, DSC_MAP_RELU, x, NULL, 0, y);
}

dsc_status dsc_op_relu_backward(dsc_queue *q, const dsc_tensor *y, const dsc_tensor *dy, double beta,
                                dsc_tensor *dx) {
    return dsc_op_map(q, DSC_MAP_RELU_MASK, y, dy, beta, dx);
}

dsc_status dsc_op_add(dsc_queue *q, const dsc_tensor *a, const dsc_tensor *b, dsc_tensor *y) {
    return dsc_op_map(q, DSC_MAP_ADD, a, b, 0, y);
}

/* Real tensors only, and only their element counts must agree. */
dsc_status dsc_op_multiply(dsc_queue *q, const dsc_tensor *x, dsc_tensor *y) {
    dsc_check check;
    DSC_TRY(dsc_check_begin(&check, "multiply", q, "x", x));
    DSC_TRY(dsc_check_real_count(&check, "y", y, "x", x));
    DSC_TRY(dsc_check_apart_or_same(&check, "y", y, "x", x));
    if (dsc_tensor_count(y) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->map(q, DSC_MAP_MULTIPLY, y, x, 0, y));
    return DSC_OK;
}

/* ---- combinations, sums and scalars ---- */

dsc_status dsc_op_axpby(dsc_queue *q, double alpha, const dsc_tensor *x, double beta, dsc_tensor *y) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_half(&check, "axpby", q, "x", x));
    DSC_TRY(dsc_check_real_count(&check, "y", y, "x", x));
    DSC_TRY(dsc_check_apart_or_same(&check, "y", y, "x", x));
    if (dsc_tensor_count(y) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->axpby(q, alpha, x, beta, y));
    return DSC_OK;
}

dsc_status dsc_op_scale_by(dsc_queue *q, const dsc_tensor *s, dsc_tensor *t) {
    dsc_check check;
    DSC_TRY(dsc_check_begin(&check, "scale_by", q, "t", t));
    DSC_TRY(dsc_check_f64(&check, "s", s, 1));
    DSC_TRY(dsc_check_apart(&check, "t", t, "s", s));
    if (dsc_tensor_count(t) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->scale_by(q, s, t));
    return DSC_OK;
}

dsc_status dsc_op_dot(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *y, double beta, dsc_tensor *out) {
    dsc_check check;
    DSC_TRY(dsc_check_begin(&check, "dot", q, "x", x));
    DSC_TRY(dsc_check_real_count(&check, "y", y, "x", x));
    DSC_TRY(dsc_check_f64(&check, "out", out, 1));
    DSC_TRY(dsc_check_beta(&check, "beta", beta));
    DSC_TRY(dsc_check_apart(&check, "out", out, "x", x));
    DSC_TRY(dsc_check_apart(&check, "out", out, "y", y));
    if (dsc_tensor_count(x) == 0)
        DSC_TRY(dsc_check_empty_sum(&check, beta, out));
    else
        DSC_TRY(dsc_device_table_for(q->device, check.dtype)->dot(q, x, y, beta, out));
    return DSC_OK;
}

dsc_status dsc_op_clip_factor(dsc_queue *q, const dsc_tensor *sumsq, double limit, dsc_tensor *out) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_any(&check, "clip_factor", q));
    DSC_TRY(dsc_check_f64(&check, "sumsq", sumsq, 1));
    DSC_TRY(dsc_check_f64(&check, "out", out, 1));
    if (!(limit >= 0))
        return DSC_FAIL(DSC_E_INVALID, "clip_factor: the limit is %g; it may not be negative", limit);
    DSC_TRY(q->device->table->clip_factor(q, sumsq, limit, out));
    return DSC_OK;
}

dsc_status dsc_op_count_nonfinite(dsc_queue *q, const dsc_tensor *t, dsc_tensor *out) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_half(&check, "count_nonfinite", q, "t", t));
    DSC_TRY(dsc_check_f64(&check, "out", out, 1));
    DSC_TRY(dsc_check_apart(&check, "out", out, "t", t));
    if (dsc_tensor_count(t) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->count_nonfinite(q, t, out));
    return DSC_OK;
}

dsc_status dsc_op_blend(dsc_queue *q, const dsc_tensor *decay, const dsc_tensor *x, dsc_tensor *bad,
                        dsc_tensor *y) {
    dsc_check check;
    DSC_TRY(dsc_check_begin(&check, "blend", q, "x", x));
    DSC_TRY(dsc_check_real_count(&check, "y", y, "x", x));
    DSC_TRY(dsc_check_f64(&check, "decay", decay, 1));
    DSC_TRY(dsc_check_f64(&check, "bad", bad, 2));
    DSC_TRY(dsc_check_apart(&check, "y", y, "x", x));
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->blend(q, decay, x, bad, y));
    return DSC_OK;
}

dsc_status dsc_op_increment(dsc_queue *q, dsc_tensor *t) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_any(&check, "increment", q));
    DSC_TRY(dsc_check_typed(&check, "t", t, DSC_I64));
    if (dsc_tensor_count(t) == 0)
        return DSC_OK;
    DSC_TRY(q->device->table->increment(q, t));
    return DSC_OK;
}

dsc_status dsc_op_guard(dsc_queue *q, const dsc_tensor *value, int firm, dsc_tensor *flag) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_any(&check, "guard", q));
    DSC_TRY(dsc_check_f64(&check, "value", value, 1));
    DSC_TRY(dsc_check_f64(&check, "flag", flag, 1));
    DSC_TRY(dsc_check_apart(&check, "flag", flag, "value", value));
    DSC_TRY(q->device->table->guard(q, value, firm, flag));
    return DSC_OK;
}

dsc_status dsc_op_loss_scale(dsc_queue *q, const dsc_tensor *bad, dsc_tensor *scale, dsc_tensor *skip) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_any(&check, "loss_scale", q));
    DSC_TRY(dsc_check_f64(&check, "bad", bad, 1));
    DSC_TRY(dsc_check_f64(&check, "scale", scale, DSC_SCALE_COUNT));
    DSC_TRY(dsc_check_f64(&check, "skip", skip, 1));
    DSC_TRY(dsc_check_apart(&check, "scale", scale, "bad", bad));
    DSC_TRY(dsc_check_apart(&check, "skip", skip, "bad", bad));
    DSC_TRY(dsc_check_apart(&check, "skip", skip, "scale", scale));
    DSC_TRY(q->device->table->loss_scale(q, bad, scale, skip));
    return DSC_OK;
}

dsc_status dsc_op_timestamp(dsc_queue *q, dsc_tensor *t) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_any(&check, "timestamp", q));
    DSC_TRY(dsc_check_typed(&check, "t", t, DSC_I64));
    DSC_TRY(dsc_check_shape(&check, "t", t, DSC_SHAPE(1)));
    if (q->device->table->timestamp)
        DSC_TRY(q->device->table->timestamp(q, t));
    else
        *(int64_t *)t->data = (int64_t)(1e9 * dsc_clock_now());
    return DSC_OK;
}
