/* Fronts of the operations that copy parts of feature maps, and of upsampling. */
#include "device/checks.h"

#include "base/error.h"

/* ---- parts ---- */

static dsc_status check_part(dsc_check *check, const char *op, dsc_queue *q, const dsc_part_desc *desc,
                             const dsc_tensor *whole, const dsc_tensor *part) {
    DSC_TRY(dsc_check_begin_half(check, op, q, "whole", whole));
    DSC_TRY(dsc_check_dims(check, "whole", whole, 4));
    DSC_TRY(dsc_check_real(check, "part", part));
    DSC_TRY(dsc_check_dims(check, "part", part, 4));
    const int64_t *p = part->dim, *w = whole->dim;
    DSC_TRY(dsc_check_shape(check, "part", part, DSC_SHAPE(w[0], p[1], p[2], p[3])));
    const int64_t first[3] = {desc->top, desc->left, desc->first};
    static const char *const names[3] = {"rows", "columns", "channels"};
    for (int i = 0; i < 3; i++)
        if (first[i] < 0 || first[i] > w[i + 1] - p[i + 1])
            return DSC_FAIL(DSC_E_INVALID, "%s: the part has %lld %s from %lld on; the whole has %lld", op,
                            (long long)p[i + 1], names[i], (long long)first[i], (long long)w[i + 1]);
    DSC_TRY(dsc_check_apart(check, "part", part, "whole", whole));
    return DSC_OK;
}

dsc_status dsc_op_cut(dsc_queue *q, const dsc_part_desc *desc, const dsc_tensor *whole, double beta,
                      dsc_tensor *part) {
    dsc_check check;
    DSC_TRY(check_part(&check, "cut", q, desc, whole, part));
    DSC_TRY(dsc_check_beta(&check, "beta", beta));
    if (dsc_tensor_count(part) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->cut(q, desc, whole, beta, part));
    return DSC_OK;
}

dsc_status dsc_op_paste(dsc_queue *q, const dsc_part_desc *desc, const dsc_tensor *part, double beta,
                        dsc_tensor *whole) {
    dsc_check check;
    DSC_TRY(check_part(&check, "paste", q, desc, whole, part));
    DSC_TRY(dsc_check_beta(&check, "beta", beta));
    if (dsc_tensor_count(part) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->paste(q, desc, part, beta, whole));
    return DSC_OK;
}

/* ---- upsampling ---- */

static dsc_status check_upsample(dsc_check *check, const char *op, dsc_queue *q, dsc_upsample_kind kind,
                                 const dsc_tensor *x, const dsc_tensor *y) {
    if (kind != DSC_UPSAMPLE_NEAREST && kind != DSC_UPSAMPLE_BILINEAR)
        return DSC_FAIL(DSC_E_INVALID, "%s: kind %d is unknown", op, (int)kind);
    DSC_TRY(dsc_check_begin_half(check, op, q, "x", x));
    DSC_TRY(dsc_check_dims(check, "x", x, 4));
    const int64_t *d = x->dim;
    DSC_TRY(dsc_check_real_shape(check, "y", y, DSC_SHAPE(d[0], 2 * d[1], 2 * d[2], d[3])));
    DSC_TRY(dsc_check_apart(check, "y", y, "x", x));
    return DSC_OK;
}

dsc_status dsc_op_upsample_forward(dsc_queue *q, dsc_upsample_kind kind, const dsc_tensor *x, dsc_tensor *y) {
    dsc_check check;
    DSC_TRY(check_upsample(&check, "upsample_forward", q, kind, x, y));
    if (dsc_tensor_count(y) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->upsample_forward(q, kind, x, y));
    return DSC_OK;
}

dsc_status dsc_op_upsample_backward(dsc_queue *q, dsc_upsample_kind kind, const dsc_tensor *dy, double beta,
                                    dsc_tensor *dx) {
    dsc_check check;
    DSC_TRY(check_upsample(&check, "upsample_backward", q, kind, dx, dy));
    DSC_TRY(dsc_check_beta(&check, "beta", beta));
    if (dsc_tensor_count(dx) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->upsample_backward(q, kind, dy, beta, dx));
    return DSC_OK;
}
