/* Element-wise operations and reductions: entries. Kernels in elementwise.cu. */
#include "device/cuda/elementwise_kernels.h"
#include "device/cuda/entries.h"
#include "device/cuda/state.h"
#include "device/half.h"

#include <string.h>

/* ---- one tensor, two tensors ---- */

/* The bits of `value` in this type, in the lowest bytes. */
static uint64_t bits_of(double value, dsc_dtype dtype) {
    uint64_t bits = 0;
    switch (dtype) {
    case DSC_F32:
        return dsc_float_bits((float)value);
    case DSC_F64:
        memcpy(&bits, &value, sizeof bits);
        return bits;
    case DSC_BF16:
        return dsc_bf16_from_double(value);
    case DSC_F16:
        return dsc_f16_from_double(value);
    case DSC_I32:
        return (uint32_t)(int32_t)value;
    case DSC_I64:
        return (uint64_t)(int64_t)value;
    case DSC_U8:
        return (uint8_t)value;
    }
    return bits;
}

dsc_status dsc_cuda_fill(dsc_queue *q, double value, dsc_tensor *t) {
    DSC_CUDA_TRY(dsc_cuda_launch_fill(dsc_cuda_at(q), (int)dsc_dtype_size(t->dtype), bits_of(value, t->dtype),
                                      dsc_tensor_count(t), t->data));
    return DSC_OK;
}

dsc_status dsc_cuda_convert(dsc_queue *q, const dsc_tensor *src, dsc_tensor *dst) {
    DSC_CUDA_TRY(dsc_cuda_launch_convert(dsc_cuda_at(q), src->dtype, dst->dtype, dsc_tensor_count(dst),
                                         src->data, dst->data));
    return DSC_OK;
}

dsc_status dsc_cuda_axpby(dsc_queue *q, double alpha, const dsc_tensor *x, double beta, dsc_tensor *y) {
    DSC_CUDA_TRY(
        dsc_cuda_launch_axpby(dsc_cuda_at(q), y->dtype, dsc_tensor_count(y), alpha, x->data, beta, y->data));
    return DSC_OK;
}

dsc_status dsc_cuda_scale_by(dsc_queue *q, const dsc_tensor *s, dsc_tensor *t) {
    DSC_CUDA_TRY(dsc_cuda_launch_scale_by(dsc_cuda_at(q), t->dtype, dsc_tensor_count(t), s->data, t->data));
    return DSC_OK;
}

dsc_status dsc_cuda_multiply(dsc_queue *q, const dsc_tensor *x, dsc_tensor *y) {
    DSC_CUDA_TRY(dsc_cuda_launch_multiply(dsc_cuda_at(q), y->dtype, dsc_tensor_count(y), x->data, y->data));
    return DSC_OK;
}

/* ---- sums ---- */

dsc_status dsc_cuda_dot(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *y, double beta,
                        dsc_tensor *out) {
    const dsc_cuda_dot_item item = {x->data, y->data, dsc_tensor_count(x)};
    DSC_CUDA_TRY(dsc_cuda_launch_dots(dsc_cuda_at(q), x->dtype, &item, 1, beta, out->data));
    return DSC_OK;
}

dsc_status dsc_cuda_count_nonfinite(dsc_queue *q, const dsc_tensor *t, dsc_tensor *out) {
    const dsc_cuda_absorb_item item = {.x = t->data, .bad = out->data, .count = dsc_tensor_count(t)};
    DSC_CUDA_TRY(dsc_cuda_launch_counts(dsc_cuda_at(q), t->dtype, &item, 1, 1));
    return DSC_OK;
}

dsc_status dsc_cuda_blend(dsc_queue *q, const dsc_tensor *decay, const dsc_tensor *x, dsc_tensor *bad,
                          dsc_tensor *y) {
    const dsc_cuda_absorb_item item = {x->data, bad->data, y->data, dsc_tensor_count(y)};
    DSC_CUDA_TRY(dsc_cuda_launch_blends(dsc_cuda_at(q), y->dtype, decay->data, &item, 1));
    return DSC_OK;
}

/* ---- scalars ---- */

dsc_status dsc_cuda_clip_factor(dsc_queue *q, const dsc_tensor *sumsq, double limit, dsc_tensor *out) {
    DSC_CUDA_TRY(dsc_cuda_launch_clip_factor(dsc_cuda_at(q), sumsq->data, limit, out->data));
    return DSC_OK;
}

dsc_status dsc_cuda_increment(dsc_queue *q, dsc_tensor *t) {
    DSC_CUDA_TRY(dsc_cuda_launch_increment(dsc_cuda_at(q), dsc_tensor_count(t), t->data));
    return DSC_OK;
}

dsc_status dsc_cuda_guard(dsc_queue *q, const dsc_tensor *value, int firm, dsc_tensor *flag) {
    DSC_CUDA_TRY(dsc_cuda_launch_guard(dsc_cuda_at(q), value->data, firm, flag->data));
    return DSC_OK;
}

dsc_status dsc_cuda_loss_scale(dsc_queue *q, const dsc_tensor *bad, dsc_tensor *scale, dsc_tensor *skip) {
    DSC_CUDA_TRY(dsc_cuda_launch_loss_scale(dsc_cuda_at(q), bad->data, scale->data, skip->data));
    return DSC_OK;
}
