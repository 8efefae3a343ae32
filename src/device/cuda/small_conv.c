/* Convolutions with 3x3 taps and few channels: which ones are supported, and their operations. */
#include "device/cuda/small_conv.h"

#include "device/cuda/small_conv_kernels.h"

static dsc_small_type type_of(dsc_dtype dtype) {
    return dtype == DSC_F32 ? DSC_SMALL_F32 : dtype == DSC_BF16 ? DSC_SMALL_BF16 : DSC_SMALL_F16;
}

static int wide(const dsc_tensor *t) {
    return (uintptr_t)t->data % 16 == 0;
}

static int32_t outputs_along(int64_t size, int64_t stride) {
    return (int32_t)((size - 1) / stride + 1);
}

static dsc_small_conv forward_of(const dsc_cuda *cuda, const dsc_conv_desc *desc) {
    const dsc_conv2d_shape *s = &desc->shape;
    dsc_small_conv conv = {.type = type_of(desc->dtype),
                           .n = (int32_t)desc->n,
                           .h = (int32_t)s->in_h,
                           .w = (int32_t)s->in_w,
                           .c = (int32_t)s->in_c,
                           .oh = outputs_along(s->in_h, s->stride_h),
                           .ow = outputs_along(s->in_w, s->stride_w),
                           .k = (int32_t)s->out_c,
                           .stride = (int32_t)s->stride_h,
                           .shared = cuda->shared};
    return conv;
}

/* Describes the gradient of the data. With stride 1 it is the convolution of the output's gradient with the weights
 * rotated by 180 degrees. */
static dsc_small_conv backward_of(const dsc_cuda *cuda, const dsc_conv_desc *desc) {
    dsc_small_conv conv = forward_of(cuda, desc);
    conv.c = (int32_t)desc->shape.out_c;
    conv.k = (int32_t)desc->shape.in_c;
    conv.turned = 1;
    return conv;
}

static dsc_small_weight weight_of(const dsc_cuda *cuda, const dsc_conv_desc *desc) {
    dsc_small_conv like = forward_of(cuda, desc);
    dsc_small_weight conv = {.type = like.type,
                             .n = like.n,
                             .h = like.h,
                             .w = like.w,
                             .c = like.c,
                             .oh = like.oh,
                             .ow = like.ow,
                             .k = like.k,
                             .stride = like.stride,
                             .shared = like.shared};
    return conv;
}

/* ---- which convolutions are supported ---- */

static int takes_channels(int64_t channels) {
    return channels % 16 == 0 && channels >= 16 && channels <= 64;
}

/* Returns 1 if 32 bits suffice, in which kernels count the elements of up to 4 images, and the rows of all images. */
static int takes_size(const dsc_conv_desc *desc) {
    const dsc_conv2d_shape *s = &desc->shape;
    const int64_t limit = INT32_MAX / 64 / 4;
    return desc->n > 0 && s->in_h > 0 && s->in_w > 0 && s->in_h <= limit && s->in_w <= limit &&
           s->in_h * s->in_w <= limit && desc->n <= limit && desc->n * s->in_h <= limit &&
           desc->n * s->in_h * ((s->in_w + 7) / 8) <= INT32_MAX / 2;
}

static int takes(const dsc_cuda *cuda, const dsc_conv_desc *desc) {
    const dsc_conv2d_shape *s = &desc->shape;
    int type = (desc->dtype == DSC_F32 && !cuda->strict) || desc->dtype == DSC_BF16 || desc->dtype == DSC_F16;
    int taps = s->kernel_h == 3 && s->kernel_w == 3 && s->pad_h == 1 && s->pad_w == 1 && s->dilation_h == 1 &&
               s->dilation_w == 1 && s->groups == 1;
    int stride = s->stride_h == s->stride_w && (s->stride_h == 1 || (s->stride_h == 2 && s->in_c != 3));
    return cuda->capability >= 80 && type && taps && stride && takes_size(desc) && takes_channels(s->out_c) &&
           (s->in_c == 3 || takes_channels(s->in_c));
}

unsigned dsc_cuda_small_conv_passes(const dsc_cuda *cuda, const dsc_conv_desc *desc) {
    unsigned passes = 0;
    if (!takes(cuda, desc))
        return 0;
    dsc_small_conv forward = forward_of(cuda, desc), backward = backward_of(cuda, desc);
    dsc_small_weight weight = weight_of(cuda, desc);
    if (dsc_cuda_small_conv_shared(&forward) <= forward.shared)
        passes |= DSC_SMALL_FORWARD;
    if (desc->shape.stride_h == 1 && desc->shape.in_c != 3 &&
        dsc_cuda_small_conv_shared(&backward) <= backward.shared)
        passes |= DSC_SMALL_BACKWARD_DATA;
    if (dsc_cuda_small_weight_shared(&weight) <= weight.shared)
        passes |= DSC_SMALL_BACKWARD_WEIGHT;
    return passes;
}

size_t dsc_cuda_small_conv_workspace(const dsc_cuda *cuda, const dsc_conv_desc *desc) {
    if (!(dsc_cuda_small_conv_passes(cuda, desc) & DSC_SMALL_BACKWARD_WEIGHT))
        return 0;
    dsc_small_weight weight = weight_of(cuda, desc);
    return dsc_cuda_small_weight_workspace(&weight, cuda->multiprocessors);
}

/* ---- the operations ---- */

static dsc_status launch(dsc_queue *q, dsc_small_conv *pass, const dsc_tensor *x, const dsc_tensor *w,
                         const dsc_tensor *y) {
    pass->x = x->data;
    pass->weights = w->data;
    pass->y = y->data;
    pass->wide_x = wide(x);
    pass->wide_w = wide(w);
    pass->wide_y = wide(y);
    DSC_CUDA_TRY(dsc_cuda_launch_small_conv(dsc_cuda_at(q), pass));
    return DSC_OK;
}

dsc_status dsc_cuda_small_conv_forward(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x, const dsc_tensor *w,
                                       const dsc_tensor *bias, dsc_tensor *work, dsc_tensor *y) {
    (void)work;
    dsc_small_conv pass = forward_of(dsc_cuda_of(q->device), &conv->desc);
    pass.bias = bias ? (const float *)bias->data : NULL;
    return launch(q, &pass, x, w, y);
}

dsc_status dsc_cuda_small_conv_backward_data(dsc_queue *q, dsc_conv *conv, const dsc_tensor *w,
                                             const dsc_tensor *dy, double beta, dsc_tensor *work,
                                             dsc_tensor *dx) {
    (void)work;
    dsc_small_conv pass = backward_of(dsc_cuda_of(q->device), &conv->desc);
    pass.add = beta != 0;
    return launch(q, &pass, dy, w, dx);
}

dsc_status dsc_cuda_small_conv_backward_weight(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x,
                                               const dsc_tensor *dy, double beta, dsc_tensor *work,
                                               dsc_tensor *dw) {
    dsc_small_weight pass = weight_of(dsc_cuda_of(q->device), &conv->desc);
    size_t need = dsc_cuda_small_weight_workspace(&pass, dsc_cuda_at(q)->multiprocessors);
    size_t have = work && work->data ? dsc_tensor_bytes(work) : 0;
    if (have < need || (uintptr_t)work->data % 16 != 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "conv_backward_weight: a workspace of %zu bytes; %zu, aligned to 16, are needed "
                        "(dsc_conv_workspace)",
                        have, need);
    pass.x = x->data;
    pass.dy = dy->data;
    pass.partial = (float *)work->data;
    pass.dw = (float *)dw->data;
    pass.add = beta != 0;
    pass.wide_x = wide(x);
    pass.wide_dy = wide(dy);
    DSC_CUDA_TRY(dsc_cuda_launch_small_weight(dsc_cuda_at(q), &pass));
    return DSC_OK;
}
