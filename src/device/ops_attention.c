/* Fronts of multi-head self-attention: check, early out, select, execute. */
#include "device/checks.h"

#include "base/error.h"

/* The largest number of channels per head that a GPU's kernels can handle. */
enum { MOST_ON_GPU = 128 };

dsc_status dsc_attention_width(const dsc_device *device, const dsc_attention_desc *desc, int64_t channels,
                               int64_t *d) {
    int64_t heads = desc->heads, width = channels / 3;
    if (channels < 3 || channels % 3 != 0)
        return DSC_FAIL(
            DSC_E_INVALID,
            "attention: %lld channels cannot be cut into queries, keys and values; a multiple of 3 is "
            "expected",
            (long long)channels);
    if (heads < 1 || width % heads != 0)
        return DSC_FAIL(DSC_E_INVALID, "attention: %lld channels of queries cannot be cut into %lld heads",
                        (long long)width, (long long)heads);
    if (!device->is_host && width / heads > MOST_ON_GPU)
        return DSC_FAIL(DSC_E_UNSUPPORTED,
                        "attention: heads of %lld channels; on a GPU they may have %d: use more heads",
                        (long long)(width / heads), MOST_ON_GPU);
    *d = width;
    return DSC_OK;
}

size_t dsc_op_attention_workspace(dsc_device *device, const dsc_attention_desc *desc, const dsc_tensor *x) {
    if (x->ndim != 4 || desc->heads < 1)
        return 0; /* the operation itself will report the error */
    return dsc_device_table_for(device, x->dtype)->attention_workspace(device, desc, x);
}

static dsc_status check_context(const dsc_check *check, const dsc_attention_desc *desc,
                                const dsc_attention_context *context, int64_t n) {
    if (!(desc->dropout.rate >= 0 && desc->dropout.rate < 1))
        return DSC_FAIL(DSC_E_INVALID,
                        "%s: the rate of dropout is %g; at least 0 and less than 1 is expected", check->op,
                        desc->dropout.rate);
    if (context && context->position) {
        DSC_TRY(dsc_check_typed(check, "position", context->position, DSC_I64));
        DSC_TRY(dsc_check_shape(check, "position", context->position, DSC_SHAPE(2)));
    }
    if (context && context->lengths) {
        DSC_TRY(dsc_check_typed(check, "lengths", context->lengths, DSC_I32));
        DSC_TRY(dsc_check_shape(check, "lengths", context->lengths, DSC_SHAPE(n)));
    }
    return DSC_OK;
}

/* Checks that x, y and lse (NULL: none) match each other and the workspace. */
static dsc_status check_call(dsc_check *check, const char *op, dsc_queue *q, const dsc_attention_desc *desc,
                             const dsc_tensor *x, const dsc_tensor *work, const dsc_tensor *lse,
                             const dsc_tensor *y) {
    int64_t d = 0;
    DSC_TRY(dsc_check_begin_half(check, op, q, "x", x));
    DSC_TRY(dsc_check_dims(check, "x", x, 4));
    int64_t n = x->dim[0], t = x->dim[1];
    if (x->dim[2] != 1)
        return DSC_FAIL(DSC_E_INVALID, "%s: x has width %lld; [n, positions, 1, channels] is expected", op,
                        (long long)x->dim[2]);
    DSC_TRY(dsc_attention_width(q->device, desc, x->dim[3], &d));
    DSC_TRY(dsc_check_real_shape(check, "y", y, DSC_SHAPE(n, t, 1, d)));
    if (lse)
        DSC_TRY(dsc_check_param_shape(check, "lse", lse, DSC_SHAPE(n, desc->heads, t)));
    DSC_TRY(dsc_check_work(check, work, dsc_op_attention_workspace(q->device, desc, x)));
    return DSC_OK;
}

dsc_status dsc_op_attention_forward(dsc_queue *q, const dsc_attention_desc *desc, const dsc_tensor *x,
                                    const dsc_attention_context *context, dsc_tensor *work, dsc_tensor *lse,
                                    dsc_tensor *y) {
    static const dsc_attention_context none = {NULL, NULL};
    dsc_check check;
    DSC_TRY(check_call(&check, "attention_forward", q, desc, x, work, lse, y));
    DSC_TRY(check_context(&check, desc, context, x->dim[0]));
    DSC_TRY(dsc_check_apart(&check, "y", y, "x", x));
    if (lse)
        DSC_TRY(dsc_check_apart(&check, "lse", lse, "x", x));
    if (dsc_tensor_count(x) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)
                ->attention_forward(q, desc, x, context ? context : &none, work, lse, y));
    return DSC_OK;
}

dsc_status dsc_op_attention_backward(dsc_queue *q, const dsc_attention_desc *desc, const dsc_tensor *x,
                                     const dsc_attention_context *context, const dsc_tensor *y,
                                     const dsc_tensor *lse, const dsc_tensor *dy,
                                     const dsc_attention_grads *grads) {
    static const dsc_attention_context none = {NULL, NULL};
    dsc_check check;
    DSC_TRY(check_call(&check, "attention_backward", q, desc, x, grads->work, lse, y));
    DSC_TRY(check_context(&check, desc, context, x->dim[0]));
    DSC_TRY(dsc_check_param(&check, "lse", lse)); /* refuses NULL */
    DSC_TRY(dsc_check_real_like(&check, "dy", dy, "y", y));
    DSC_TRY(dsc_check_real_like(&check, "dx", grads->dx, "x", x));
    DSC_TRY(dsc_check_beta(&check, "beta", grads->beta));
    DSC_TRY(dsc_check_apart(&check, "dx", grads->dx, "x", x));
    DSC_TRY(dsc_check_apart(&check, "dx", grads->dx, "y", y));
    DSC_TRY(dsc_check_apart(&check, "dx", grads->dx, "dy", dy));
    if (dsc_tensor_count(x) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)
                ->attention_backward(q, desc, x, context ? context : &none, y, lse, dy, grads));
    return DSC_OK;
}
