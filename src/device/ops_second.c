/* Fronts of the pieces of a second-order step: check, early out, select, execute. */
#include "device/checks.h"

#include "base/error.h"

dsc_status dsc_op_outer_inverse(dsc_queue *q, const dsc_tensor *damping, const dsc_tensor *rows,
                                const dsc_tensor *columns, dsc_tensor *out) {
    dsc_check check;
    DSC_TRY(dsc_check_begin(&check, "outer_inverse", q, "rows", rows));
    DSC_TRY(dsc_check_f64(&check, "damping", damping, 1));
    DSC_TRY(dsc_check_dims(&check, "rows", rows, 1));
    DSC_TRY(dsc_check_real(&check, "columns", columns));
    DSC_TRY(dsc_check_dims(&check, "columns", columns, 1));
    DSC_TRY(dsc_check_real_shape(&check, "out", out, DSC_SHAPE(rows->dim[0], columns->dim[0])));
    DSC_TRY(dsc_check_apart(&check, "out", out, "rows", rows));
    DSC_TRY(dsc_check_apart(&check, "out", out, "columns", columns));
    DSC_TRY(dsc_check_apart(&check, "out", out, "damping", damping));
    if (dsc_tensor_count(out) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->outer_inverse(q, damping, rows, columns, out));
    return DSC_OK;
}

static dsc_status check_part(dsc_check *check, const char *op, dsc_queue *q, const dsc_tensor *src,
                             const dsc_tensor *rows, const dsc_tensor *columns, const dsc_tensor *dst) {
    DSC_TRY(dsc_check_begin(check, op, q, "src", src));
    DSC_TRY(dsc_check_dims(check, "src", src, 2));
    DSC_TRY(dsc_check_real(check, "dst", dst));
    DSC_TRY(dsc_check_dims(check, "dst", dst, 2));
    DSC_TRY(dsc_check_typed(check, "rows", rows, DSC_I32));
    DSC_TRY(dsc_check_dims(check, "rows", rows, 1));
    DSC_TRY(dsc_check_typed(check, "columns", columns, DSC_I32));
    DSC_TRY(dsc_check_dims(check, "columns", columns, 1));
    DSC_TRY(dsc_check_apart(check, "dst", dst, "src", src));
    DSC_TRY(dsc_check_apart(check, "dst", dst, "rows", rows));
    DSC_TRY(dsc_check_apart(check, "dst", dst, "columns", columns));
    return DSC_OK;
}

dsc_status dsc_op_gather(dsc_queue *q, const dsc_tensor *src, const dsc_tensor *rows,
                         const dsc_tensor *columns, dsc_tensor *dst) {
    dsc_check check;
    DSC_TRY(check_part(&check, "gather", q, src, rows, columns, dst));
    DSC_TRY(dsc_check_shape(&check, "dst", dst, DSC_SHAPE(rows->dim[0], columns->dim[0])));
    if (dsc_tensor_count(dst) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->gather(q, src, rows, columns, dst));
    return DSC_OK;
}

dsc_status dsc_op_scatter(dsc_queue *q, const dsc_tensor *src, const dsc_tensor *rows,
                          const dsc_tensor *columns, dsc_tensor *dst) {
    dsc_check check;
    DSC_TRY(check_part(&check, "scatter", q, src, rows, columns, dst));
    DSC_TRY(dsc_check_shape(&check, "src", src, DSC_SHAPE(rows->dim[0], columns->dim[0])));
    if (dsc_tensor_count(src) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->scatter(q, src, rows, columns, dst));
    return DSC_OK;
}

/* ---- step length ---- */

dsc_status dsc_op_kl_clip(dsc_queue *q, const dsc_tensor *sum, const dsc_tensor *limits, dsc_tensor *out) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_any(&check, "kl_clip", q));
    DSC_TRY(dsc_check_f64(&check, "out", out, dsc_tensor_count(out)));
    DSC_TRY(dsc_check_f64(&check, "sum", sum, dsc_tensor_count(out)));
    DSC_TRY(dsc_check_f64(&check, "limits", limits, 2));
    DSC_TRY(dsc_check_apart_or_same(&check, "out", out, "sum", sum));
    DSC_TRY(dsc_check_apart(&check, "out", out, "limits", limits));
    if (dsc_tensor_count(out) == 0)
        return DSC_OK;
    DSC_TRY(q->device->table->kl_clip(q, sum, limits, out));
    return DSC_OK;
}

/* ---- damping ---- */

dsc_status dsc_op_damping_split(dsc_queue *q, const dsc_tensor *damping, const dsc_tensor *traces,
                                const dsc_tensor *rows, dsc_tensor *out) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_any(&check, "damping_split", q));
    int64_t count = dsc_tensor_count(out);
    if (count % 2 != 0)
        return DSC_FAIL(DSC_E_INVALID, "damping_split: out has %lld elements: must be pairs",
                        (long long)count);
    DSC_TRY(dsc_check_f64(&check, "damping", damping, 1));
    DSC_TRY(dsc_check_f64(&check, "traces", traces, count));
    DSC_TRY(dsc_check_f64(&check, "rows", rows, count));
    DSC_TRY(dsc_check_f64(&check, "out", out, count));
    DSC_TRY(dsc_check_apart(&check, "out", out, "damping", damping));
    DSC_TRY(dsc_check_apart(&check, "out", out, "traces", traces));
    DSC_TRY(dsc_check_apart(&check, "out", out, "rows", rows));
    if (count == 0)
        return DSC_OK;
    DSC_TRY(q->device->table->damping_split(q, damping, traces, rows, out));
    return DSC_OK;
}
