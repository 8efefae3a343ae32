/* Fronts of the losses of single numbers: check, early out, select, execute. */
#include "device/checks.h"

#include "base/error.h"

/* Checks the arguments that these losses share: stats, the loss scale, and the gradient of x (NULL: not wanted). */
static dsc_status check_outputs(const dsc_check *check, const char *name, const dsc_tensor *x,
                                const dsc_tensor *loss_scale, const char *gradient_name, const dsc_tensor *dx,
                                const dsc_tensor *stats) {
    DSC_TRY(dsc_check_f64(check, "stats", stats, 4));
    if (loss_scale)
        DSC_TRY(dsc_check_f64(check, "loss_scale", loss_scale, 1));
    if (dx) {
        DSC_TRY(dsc_check_real_like(check, gradient_name, dx, name, x));
        DSC_TRY(dsc_check_apart(check, gradient_name, dx, name, x));
    }
    return DSC_OK;
}

static dsc_status check_binary(dsc_check *check, const char *op, dsc_queue *q, const dsc_tensor *logits,
                               const dsc_tensor *labels, const dsc_tensor *loss_scale,
                               const dsc_tensor *dlogits, const dsc_tensor *stats) {
    DSC_TRY(dsc_check_begin_half(check, op, q, "logits", logits));
    DSC_TRY(dsc_check_typed(check, "labels", labels, DSC_I32));
    DSC_TRY(dsc_check_same_count(check, "labels", labels, "logits", logits));
    DSC_TRY(check_outputs(check, "logits", logits, loss_scale, "dlogits", dlogits, stats));
    return DSC_OK;
}

dsc_status dsc_op_bce_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_tensor *labels,
                           double grad_scale, const dsc_tensor *loss_scale, dsc_tensor *dlogits,
                           dsc_tensor *stats) {
    dsc_check check;
    DSC_TRY(check_binary(&check, "bce_loss", q, logits, labels, loss_scale, dlogits, stats));
    if (dsc_tensor_count(logits) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)
                ->bce_loss(q, logits, labels, grad_scale, loss_scale, dlogits, stats));
    return DSC_OK;
}

dsc_status dsc_op_dice_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_tensor *labels,
                            double grad_scale, const dsc_tensor *loss_scale, dsc_tensor *dlogits,
                            dsc_tensor *stats) {
    dsc_check check;
    DSC_TRY(check_binary(&check, "dice_loss", q, logits, labels, loss_scale, dlogits, stats));
    if (dsc_tensor_count(logits) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)
                ->dice_loss(q, logits, labels, grad_scale, loss_scale, dlogits, stats));
    return DSC_OK;
}

dsc_status dsc_op_mse_loss(dsc_queue *q, const dsc_tensor *y, const dsc_tensor *targets, double grad_scale,
                           const dsc_tensor *loss_scale, dsc_tensor *dy, dsc_tensor *stats) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_half(&check, "mse_loss", q, "y", y));
    if (y->ndim < 1)
        return DSC_FAIL(DSC_E_INVALID, "mse_loss: y has no dimension; [rows, ...] is expected");
    DSC_TRY(dsc_check_typed(&check, "targets", targets, DSC_F32));
    DSC_TRY(dsc_check_same_shape(&check, "targets", targets, "y", y));
    DSC_TRY(check_outputs(&check, "y", y, loss_scale, "dy", dy, stats));
    if (dsc_tensor_count(y) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)
                ->mse_loss(q, y, targets, grad_scale, loss_scale, dy, stats));
    return DSC_OK;
}
