/* Fronts of the layers: bias, shortcut, pooling, dropout, loss, images. Check, early out, select, execute. */
#include "device/checks.h"

#include "base/error.h"

static dsc_status check_bias(dsc_check *check, const char *op, dsc_queue *q, const char *b_name,
                             const dsc_tensor *b, const char *y_name, const dsc_tensor *y) {
    DSC_TRY(dsc_check_begin_half(check, op, q, y_name, y));
    if (y->ndim < 1)
        return DSC_FAIL(DSC_E_INVALID, "%s: %s has no dimension; [..., c] is expected", op, y_name);
    DSC_TRY(dsc_check_param_shape(check, b_name, b, DSC_SHAPE(y->dim[y->ndim - 1])));
    DSC_TRY(dsc_check_apart(check, y_name, y, b_name, b));
    return DSC_OK;
}

dsc_status dsc_op_bias_add(dsc_queue *q, const dsc_tensor *b, dsc_tensor *y) {
    dsc_check check;
    DSC_TRY(check_bias(&check, "bias_add", q, "b", b, "y", y));
    if (dsc_tensor_count(y) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->bias_add(q, b, y));
    return DSC_OK;
}

dsc_status dsc_op_bias_grad(dsc_queue *q, const dsc_tensor *dy, double beta, dsc_tensor *db) {
    dsc_check check;
    DSC_TRY(check_bias(&check, "bias_grad", q, "db", db, "dy", dy));
    DSC_TRY(dsc_check_beta(&check, "beta", beta));
    if (dsc_tensor_count(dy) == 0)
        DSC_TRY(dsc_check_empty_sum(&check, beta, db));
    else
        DSC_TRY(dsc_device_table_for(q->device, check.dtype)->bias_grad(q, dy, beta, db));
    return DSC_OK;
}

/* ---- the parameter-free shortcut ---- */

static dsc_status check_shortcut(dsc_check *check, const char *op, dsc_queue *q, int64_t stride,
                                 const dsc_tensor *x, const dsc_tensor *y) {
    DSC_TRY(dsc_check_begin_half(check, op, q, "x", x));
    DSC_TRY(dsc_check_dims(check, "x", x, 4));
    DSC_TRY(dsc_check_real(check, "y", y));
    DSC_TRY(dsc_check_dims(check, "y", y, 4));
    if (stride < 1)
        return DSC_FAIL(DSC_E_INVALID, "%s: the stride is %lld; it must be positive", op, (long long)stride);
    int64_t oh = (x->dim[1] + stride - 1) / stride, ow = (x->dim[2] + stride - 1) / stride, k = y->dim[3];
    DSC_TRY(dsc_check_shape(check, "y", y, DSC_SHAPE(x->dim[0], oh, ow, k)));
    if (k < x->dim[3])
        return DSC_FAIL(DSC_E_INVALID, "%s: %lld channels become %lld; they may not become fewer", op,
                        (long long)x->dim[3], (long long)k);
    DSC_TRY(dsc_check_apart(check, "y", y, "x", x));
    return DSC_OK;
}

dsc_status dsc_op_shortcut_forward(dsc_queue *q, int64_t stride, const dsc_tensor *x, dsc_tensor *y) {
    dsc_check check;
    DSC_TRY(check_shortcut(&check, "shortcut_forward", q, stride, x, y));
    if (dsc_tensor_count(y) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->shortcut_forward(q, stride, x, y));
    return DSC_OK;
}

dsc_status dsc_op_shortcut_backward(dsc_queue *q, int64_t stride, const dsc_tensor *dy, double beta,
                                    dsc_tensor *dx) {
    dsc_check check;
    DSC_TRY(check_shortcut(&check, "shortcut_backward", q, stride, dx, dy));
    DSC_TRY(dsc_check_beta(&check, "beta", beta));
    if (dsc_tensor_count(dx) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->shortcut_backward(q, stride, dy, beta, dx));
    return DSC_OK;
}

/* ---- pooling ---- */

static dsc_status pool_extent(const char *name, int64_t size, int64_t kernel, int64_t stride, int64_t pad,
                              int64_t *out) {
    if (kernel < 1 || stride < 1 || kernel > INT32_MAX || stride > INT32_MAX)
        return DSC_FAIL(DSC_E_INVALID, "pool: kernel %lld and stride %lld in %s; both must be positive",
                        (long long)kernel, (long long)stride, name);
    if (pad < 0 || pad > kernel / 2)
        return DSC_FAIL(DSC_E_INVALID, "pool: %lld pads for a kernel of %lld in %s; 0 to %lld is expected",
                        (long long)pad, (long long)kernel, name, (long long)(kernel / 2));
    if (size < 1 || kernel > size + 2 * pad)
        return DSC_FAIL(DSC_E_INVALID,
                        "pool: the kernel reaches over %lld elements in %s; the padded input "
                        "has %lld",
                        (long long)kernel, name, (long long)(size + 2 * pad));
    *out = (size + 2 * pad - kernel) / stride + 1;
    return DSC_OK;
}

dsc_status dsc_pool_output(const dsc_pool_desc *desc, int64_t h, int64_t w, int64_t *oh, int64_t *ow) {
    int64_t rows = 0, columns = 0;
    if (desc->kind != DSC_POOL_MAX && desc->kind != DSC_POOL_AVG)
        return DSC_FAIL(DSC_E_INVALID, "pool: kind %d is unknown", (int)desc->kind);
    DSC_TRY(pool_extent("height", h, desc->kh, desc->stride_h, desc->pad_h, &rows));
    DSC_TRY(pool_extent("width", w, desc->kw, desc->stride_w, desc->pad_w, &columns));
    *oh = rows;
    *ow = columns;
    return DSC_OK;
}

static dsc_status check_pool(dsc_check *check, const char *op, dsc_queue *q, const dsc_pool_desc *desc,
                             const dsc_tensor *index, const dsc_tensor *x, const dsc_tensor *y) {
    int64_t oh = 0, ow = 0;
    DSC_TRY(dsc_check_begin_half(check, op, q, "x", x));
    DSC_TRY(dsc_check_dims(check, "x", x, 4));
    DSC_TRY(dsc_pool_output(desc, x->dim[1], x->dim[2], &oh, &ow));
    DSC_TRY(dsc_check_real_shape(check, "y", y, DSC_SHAPE(x->dim[0], oh, ow, x->dim[3])));
    DSC_TRY(dsc_check_apart(check, "y", y, "x", x));
    if (!index)
        return DSC_OK;
    if (desc->kind == DSC_POOL_AVG)
        return DSC_FAIL(DSC_E_INVALID, "%s: an average has no index", op);
    const int bytes = index->dtype == DSC_U8 && desc->kh * desc->kw <= 256;
    DSC_TRY(dsc_check_typed(check, "index", index, bytes ? DSC_U8 : DSC_I32));
    DSC_TRY(dsc_check_same_shape(check, "index", index, "y", y));
    return DSC_OK;
}

dsc_status dsc_op_pool_forward(dsc_queue *q, const dsc_pool_desc *desc, const dsc_tensor *x,
                               dsc_tensor *index, dsc_tensor *y) {
    dsc_check check;
    DSC_TRY(check_pool(&check, "pool_forward", q, desc, index, x, y));
    if (dsc_tensor_count(y) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->pool_forward(q, desc, x, index, y));
    return DSC_OK;
}

dsc_status dsc_op_pool_backward(dsc_queue *q, const dsc_pool_desc *desc, const dsc_tensor *index,
                                const dsc_tensor *dy, double beta, dsc_tensor *dx) {
    dsc_check check;
    DSC_TRY(check_pool(&check, "pool_backward", q, desc, index, dx, dy));
    if (desc->kind == DSC_POOL_MAX && !index)
        return DSC_FAIL(DSC_E_INVALID, "pool_backward: index is missing; forward fills it in");
    DSC_TRY(dsc_check_beta(&check, "beta", beta));
    if (dsc_tensor_count(dx) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->pool_backward(q, desc, index, dy, beta, dx));
    return DSC_OK;
}

static dsc_status check_global_pool(dsc_check *check, const char *op, dsc_queue *q, const dsc_tensor *x,
                                    const dsc_tensor *y) {
    DSC_TRY(dsc_check_begin_half(check, op, q, "x", x));
    DSC_TRY(dsc_check_dims(check, "x", x, 4));
    if (x->dim[1] == 0 || x->dim[2] == 0)
        return DSC_FAIL(DSC_E_INVALID, "%s: x is %lld by %lld pixels; one at least is expected", op,
                        (long long)x->dim[1], (long long)x->dim[2]);
    DSC_TRY(dsc_check_real_shape(check, "y", y, DSC_SHAPE(x->dim[0], x->dim[3])));
    DSC_TRY(dsc_check_apart(check, "y", y, "x", x));
    return DSC_OK;
}

dsc_status dsc_op_global_pool_forward(dsc_queue *q, const dsc_tensor *x, dsc_tensor *y) {
    dsc_check check;
    DSC_TRY(check_global_pool(&check, "global_pool_forward", q, x, y));
    if (dsc_tensor_count(y) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->global_pool_forward(q, x, y));
    return DSC_OK;
}

dsc_status dsc_op_global_pool_backward(dsc_queue *q, const dsc_tensor *dy, double beta, dsc_tensor *dx) {
    dsc_check check;
    DSC_TRY(check_global_pool(&check, "global_pool_backward", q, dx, dy));
    DSC_TRY(dsc_check_beta(&check, "beta", beta));
    if (dsc_tensor_count(dx) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->global_pool_backward(q, dy, beta, dx));
    return DSC_OK;
}

/* ---- dropout and loss ---- */

dsc_status dsc_op_dropout(dsc_queue *q, const dsc_dropout_desc *desc, const dsc_tensor *position,
                          const dsc_tensor *x, double beta, dsc_tensor *y) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_half(&check, "dropout", q, "x", x));
    if (x->ndim < 1)
        return DSC_FAIL(DSC_E_INVALID, "dropout: x has no dimension; [samples, ...] is expected");
    DSC_TRY(dsc_check_real_like(&check, "y", y, "x", x));
    DSC_TRY(dsc_check_typed(&check, "position", position, DSC_I64));
    DSC_TRY(dsc_check_shape(&check, "position", position, DSC_SHAPE(2)));
    DSC_TRY(dsc_check_beta(&check, "beta", beta));
    if (!(desc->rate >= 0 && desc->rate < 1))
        return DSC_FAIL(DSC_E_INVALID, "dropout: the rate is %g; at least 0 and less than 1 is expected",
                        desc->rate);
    if (beta == 0)
        DSC_TRY(dsc_check_apart_or_same(&check, "y", y, "x", x));
    else
        DSC_TRY(dsc_check_apart(&check, "y", y, "x", x));
    if (dsc_tensor_count(y) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->dropout(q, desc, position, x, beta, y));
    return DSC_OK;
}

static dsc_status check_targets(dsc_check *check, const dsc_tensor *logits, const dsc_targets *t) {
    DSC_TRY(dsc_check_typed(check, "labels", t->labels, DSC_I32));
    DSC_TRY(dsc_check_shape(check, "labels", t->labels, DSC_SHAPE(logits->dim[0])));
    if (!t->others != !t->shares)
        return DSC_FAIL(DSC_E_INVALID, "softmax_loss: other labels and their shares come together");
    if (t->others) {
        DSC_TRY(dsc_check_typed(check, "others", t->others, DSC_I32));
        DSC_TRY(dsc_check_shape(check, "others", t->others, DSC_SHAPE(logits->dim[0])));
        DSC_TRY(dsc_check_typed(check, "shares", t->shares, DSC_F32));
        DSC_TRY(dsc_check_shape(check, "shares", t->shares, DSC_SHAPE(logits->dim[0])));
    }
    if (t->weights) {
        DSC_TRY(dsc_check_typed(check, "weights", t->weights, DSC_F32));
        DSC_TRY(dsc_check_shape(check, "weights", t->weights,
                                DSC_SHAPE(t->classes > 0 ? t->classes : logits->dim[1])));
    }
    if (t->classes < 0 || t->classes > logits->dim[1] ||
        (t->classes > 0 && logits->dtype != DSC_BF16 && logits->dtype != DSC_F16))
        return DSC_FAIL(DSC_E_INVALID, "softmax_loss: %lld classes of rows of %lld, in %s",
                        (long long)t->classes, (long long)logits->dim[1], dsc_dtype_name(logits->dtype));
    if (!(t->smoothing >= 0 && t->smoothing <= 1))
        return DSC_FAIL(DSC_E_INVALID, "softmax_loss: the smoothing is %g; 0 to 1 is expected", t->smoothing);
    return DSC_OK;
}

dsc_status dsc_op_target_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_targets *targets,
                              double grad_scale, const dsc_tensor *loss_scale, dsc_tensor *dlogits,
                              dsc_tensor *stats) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_half(&check, "softmax_loss", q, "logits", logits));
    DSC_TRY(dsc_check_dims(&check, "logits", logits, 2));
    DSC_TRY(check_targets(&check, logits, targets));
    DSC_TRY(dsc_check_f64(&check, "stats", stats, 4));
    if (loss_scale)
        DSC_TRY(dsc_check_f64(&check, "loss_scale", loss_scale, 1));
    if (dlogits) {
        DSC_TRY(dsc_check_real_like(&check, "dlogits", dlogits, "logits", logits));
        DSC_TRY(dsc_check_apart(&check, "dlogits", dlogits, "logits", logits));
    }
    if (logits->dim[0] == 0)
        return DSC_OK;
    if (logits->dim[1] == 0)
        return DSC_FAIL(DSC_E_INVALID, "softmax_loss: logits has no classes; one at least is expected");
    DSC_TRY(q->device->table->target_loss(q, logits, targets, grad_scale, loss_scale, dlogits, stats));
    return DSC_OK;
}

dsc_status dsc_op_softmax_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_tensor *labels,
                               double smoothing, double grad_scale, const dsc_tensor *loss_scale,
                               dsc_tensor *dlogits, dsc_tensor *stats) {
    const dsc_targets targets = {.labels = labels, .smoothing = smoothing};
    return dsc_op_target_loss(q, logits, &targets, grad_scale, loss_scale, dlogits, stats);
}

dsc_status dsc_op_sample_labels(dsc_queue *q, uint64_t seed, const dsc_tensor *position,
                                int64_t rows_of_sample, const dsc_tensor *logits, int64_t classes,
                                const dsc_tensor *known, dsc_tensor *labels) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_half(&check, "sample_labels", q, "logits", logits));
    DSC_TRY(dsc_check_dims(&check, "logits", logits, 2));
    DSC_TRY(dsc_check_typed(&check, "position", position, DSC_I64));
    DSC_TRY(dsc_check_shape(&check, "position", position, DSC_SHAPE(2)));
    DSC_TRY(dsc_check_typed(&check, "labels", labels, DSC_I32));
    DSC_TRY(dsc_check_shape(&check, "labels", labels, DSC_SHAPE(logits->dim[0])));
    DSC_TRY(dsc_check_apart(&check, "labels", labels, "logits", logits));
    DSC_TRY(dsc_check_apart(&check, "labels", labels, "position", position));
    if (known) {
        DSC_TRY(dsc_check_typed(&check, "known", known, DSC_I32));
        DSC_TRY(dsc_check_shape(&check, "known", known, DSC_SHAPE(logits->dim[0])));
        DSC_TRY(dsc_check_apart(&check, "labels", labels, "known", known));
    }
    if (logits->dim[0] == 0)
        return DSC_OK;
    if (classes < 1 || classes > logits->dim[1] || classes > INT32_MAX)
        return DSC_FAIL(DSC_E_INVALID, "sample_labels: %lld classes of rows of %lld; 1 to %d are possible",
                        (long long)classes, (long long)logits->dim[1], INT32_MAX);
    DSC_TRY(
        q->device->table->sample_labels(q, seed, position, rows_of_sample, logits, classes, known, labels));
    return DSC_OK;
}

/* ---- images ---- */

dsc_status dsc_op_augment(dsc_queue *q, const dsc_augment_desc *desc, const dsc_tensor *raw,
                          const dsc_tensor *place, dsc_tensor *x) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_half(&check, "augment", q, "x", x));
    DSC_TRY(dsc_check_dims(&check, "x", x, 4));
    DSC_TRY(dsc_check_typed(&check, "raw", raw, DSC_U8));
    DSC_TRY(dsc_check_dims(&check, "raw", raw, 4));
    DSC_TRY(dsc_check_shape(&check, "raw", raw, DSC_SHAPE(x->dim[0], raw->dim[1], raw->dim[2], x->dim[3])));
    DSC_TRY(dsc_check_typed(&check, "place", place, DSC_I32));
    DSC_TRY(dsc_check_shape(&check, "place", place, DSC_SHAPE(x->dim[0], 3)));
    if (x->dim[3] > 4)
        return DSC_FAIL(DSC_E_INVALID, "augment: x has %lld channels; at most 4 are possible",
                        (long long)x->dim[3]);
    DSC_TRY(dsc_check_apart(&check, "x", x, "raw", raw));
    DSC_TRY(dsc_check_apart(&check, "x", x, "place", place));
    if (dsc_tensor_count(x) == 0)
        return DSC_OK;
    DSC_TRY(q->device->table->augment(q, desc, raw, place, x));
    return DSC_OK;
}

static dsc_status check_nhwc_item(const dsc_check *check, const dsc_nhwc_item *item) {
    const dsc_tensor *x = &item->x, *y = &item->y;
    DSC_TRY(dsc_check_any(check, "x", x));
    if (x->dtype != DSC_F32 && x->dtype != DSC_F64 && x->dtype != DSC_BF16 && x->dtype != DSC_F16)
        return DSC_FAIL(DSC_E_INVALID, "%s: x is %s; fp32, fp64, bf16 or fp16 is expected", check->op,
                        dsc_dtype_name(x->dtype));
    DSC_TRY(dsc_check_dims(check, "x", x, 4));
    DSC_TRY(dsc_check_typed(check, "y", y, x->dtype));
    DSC_TRY(dsc_check_shape(check, "y", y, DSC_SHAPE(x->dim[0], x->dim[2], x->dim[3], x->dim[1])));
    return dsc_check_apart(check, "y", y, "x", x);
}

dsc_status dsc_op_nhwc_batch(dsc_queue *q, const dsc_nhwc_item *items, int64_t count) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_any(&check, "nhwc_batch", q));
    if (count < 0 || (count > 0 && !items))
        return DSC_FAIL(DSC_E_INVALID, "nhwc_batch: %lld items%s", (long long)count,
                        items ? "; 0 or more are expected" : " and no array");
    int empty = 0;
    for (int64_t i = 0; i < count; i++) {
        dsc_status status = check_nhwc_item(&check, &items[i]);
        if (status != DSC_OK)
            return dsc_error_prefix(status, "item %lld", (long long)i);
        empty |= dsc_tensor_count(&items[i].x) == 0;
    }
    for (int64_t i = 0; empty && i < count; i++)
        if (dsc_tensor_count(&items[i].x) > 0)
            DSC_TRY(q->device->table->nhwc_batch(q, &items[i], 1));
    return empty || count == 0 ? DSC_OK : q->device->table->nhwc_batch(q, items, count);
}
