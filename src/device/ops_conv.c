/* The geometry of convolutions, planned convolutions, and the fronts of their passes. The forward pass, for output row
 * i and column j, output channel k, kernel row u and column v:
 *   y[n, i, j, k] = sum over u, v, c of w[k, u, v, c] x[n, row, column, c]
 *   row = i stride_h + u dilation_h - pad_h,   column = j stride_w + v dilation_w - pad_w */
#include "device/checks.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/versioned.h"

static dsc_status check_least(const char *name, int64_t value, int64_t least) {
    if (value < least || value > INT32_MAX)
        return DSC_FAIL(DSC_E_INVALID, "conv: %s is %lld; %lld to 2^31 - 1 is expected", name,
                        (long long)value, (long long)least);
    return DSC_OK;
}

/* Checks that the kernel, with a reach of `reach` elements, fits into `padded` elements of input and padding. */
static dsc_status check_extent(const char *name, int64_t padded, int64_t reach) {
    if (reach > padded)
        return DSC_FAIL(DSC_E_INVALID,
                        "conv: the kernel reaches over %lld elements in %s; the padded input has %lld",
                        (long long)reach, name, (long long)padded);
    return DSC_OK;
}

static dsc_status check_count(const char *name, const int64_t dim[4]) {
    int64_t count = (int64_t)sizeof(double);
    int overflow = 0;
    for (int i = 0; i < 4; i++)
        overflow |= __builtin_mul_overflow(count, dim[i], &count);
    if (overflow)
        return DSC_FAIL(DSC_E_INVALID, "conv: %s [%lld,%lld,%lld,%lld] is too large", name, (long long)dim[0],
                        (long long)dim[1], (long long)dim[2], (long long)dim[3]);
    return DSC_OK;
}

void dsc_conv2d_shape_init_sized(dsc_conv2d_shape *shape, size_t size) {
    const dsc_conv2d_shape defaults = {.kernel_h = 1,
                                       .kernel_w = 1,
                                       .stride_h = 1,
                                       .stride_w = 1,
                                       .dilation_h = 1,
                                       .dilation_w = 1,
                                       .groups = 1};
    dsc_versioned_init(shape, size, &defaults, sizeof defaults);
}

dsc_status dsc_conv2d_shape_read(const dsc_conv2d_shape *given, dsc_conv2d_shape *out) {
    dsc_conv2d_shape_init(out);
    return dsc_versioned_define("conv2d_shape", given, sizeof *out, out);
}

/* Checks that every member is in its range, and that the groups divide the channels. */
static dsc_status check_members(const dsc_conv2d_shape *s) {
    const struct {
        const char *name;
        int64_t value, least;
    } field[] = {
        {"in_h", s->in_h, 1},
        {"in_w", s->in_w, 1},
        {"in_c", s->in_c, 1},
        {"out_c", s->out_c, 1},
        {"kernel_h", s->kernel_h, 1},
        {"kernel_w", s->kernel_w, 1},
        {"stride_h", s->stride_h, 1},
        {"stride_w", s->stride_w, 1},
        {"pad_h", s->pad_h, 0},
        {"pad_w", s->pad_w, 0},
        {"dilation_h", s->dilation_h, 1},
        {"dilation_w", s->dilation_w, 1},
        {"groups", s->groups, 1},
        {"extra_h", s->extra_h, 0},
        {"extra_w", s->extra_w, 0},
    };
    for (size_t i = 0; i < sizeof field / sizeof field[0]; i++)
        DSC_TRY(check_least(field[i].name, field[i].value, field[i].least));
    if (s->in_c % s->groups || s->out_c % s->groups)
        return DSC_FAIL(DSC_E_INVALID, "conv: %lld input and %lld output channels; multiples of %lld groups",
                        (long long)s->in_c, (long long)s->out_c, (long long)s->groups);
    return DSC_OK;
}

static dsc_status shape_output(const dsc_conv2d_shape *s, int64_t *out_h, int64_t *out_w) {
    DSC_TRY(check_members(s));
    int64_t reach_h = s->dilation_h * (s->kernel_h - 1) + 1, reach_w = s->dilation_w * (s->kernel_w - 1) + 1;
    int64_t padded_h = s->in_h + 2 * s->pad_h + s->extra_h, padded_w = s->in_w + 2 * s->pad_w + s->extra_w;
    DSC_TRY(check_extent("height", padded_h, reach_h));
    DSC_TRY(check_extent("width", padded_w, reach_w));
    *out_h = (padded_h - reach_h) / s->stride_h + 1;
    *out_w = (padded_w - reach_w) / s->stride_w + 1;
    return DSC_OK;
}

dsc_status dsc_conv2d_output(const dsc_conv2d_shape *shape, int64_t *out_h, int64_t *out_w) {
    dsc_conv2d_shape s;
    DSC_TRY(dsc_conv2d_shape_read(shape, &s));
    return shape_output(&s, out_h, out_w);
}

/* Computes the height or width of a transposed convolution's output. No term reaches 2^62. */
static dsc_status transposed_extent(const char *name, int64_t in, int64_t kernel, int64_t stride, int64_t pad,
                                    int64_t dilation, int64_t extra, int64_t *out) {
    int64_t size = (in - 1) * stride - 2 * pad + dilation * (kernel - 1) + 1 + extra;
    if (extra >= stride)
        return DSC_FAIL(DSC_E_INVALID,
                        "conv: %lld more elements of output in %s; with stride %lld, 0 to %lld are possible",
                        (long long)extra, name, (long long)stride, (long long)stride - 1);
    if (size < 1 || size > INT32_MAX)
        return DSC_FAIL(DSC_E_INVALID,
                        "conv: the output would have %lld elements in %s; 1 to 2^31 - 1 is expected",
                        (long long)size, name);
    *out = size;
    return DSC_OK;
}

dsc_status dsc_conv_transposed(const dsc_conv2d_shape *s, dsc_conv2d_shape *conv) {
    DSC_TRY(check_members(s));
    dsc_conv2d_shape back = *s;
    DSC_TRY(transposed_extent("height", s->in_h, s->kernel_h, s->stride_h, s->pad_h, s->dilation_h,
                              s->extra_h, &back.in_h));
    DSC_TRY(transposed_extent("width", s->in_w, s->kernel_w, s->stride_w, s->pad_w, s->dilation_w, s->extra_w,
                              &back.in_w));
    back.in_c = s->out_c;
    back.out_c = s->in_c;
    back.extra_h = back.extra_w = 0;
    *conv = back;
    return DSC_OK;
}

dsc_status dsc_conv_output(const dsc_conv_desc *desc, int64_t *oh, int64_t *ow) {
    const dsc_conv2d_shape *s = &desc->shape;
    DSC_TRY(check_least("n", desc->n, 1));
    if (desc->dtype != DSC_F32 && desc->dtype != DSC_F64 && desc->dtype != DSC_BF16 && desc->dtype != DSC_F16)
        return DSC_FAIL(DSC_E_INVALID, "conv: the type is %s; fp32, fp64, bf16 or fp16 is expected",
                        dsc_dtype_name(desc->dtype));
    int64_t rows = 0, columns = 0;
    DSC_TRY(shape_output(s, &rows, &columns));
    DSC_TRY(check_count("x", (const int64_t[]){desc->n, s->in_h, s->in_w, s->in_c}));
    DSC_TRY(check_count("w", (const int64_t[]){s->out_c, s->kernel_h, s->kernel_w, s->in_c / s->groups}));
    DSC_TRY(check_count("y", (const int64_t[]){desc->n, rows, columns, s->out_c}));
    *oh = rows;
    *ow = columns;
    return DSC_OK;
}

static dsc_status create(dsc_device *device, const dsc_conv_desc *desc, dsc_conv_use use, dsc_conv **out) {
    int64_t oh = 0, ow = 0;
    DSC_TRY(dsc_conv_output(desc, &oh, &ow));
    DSC_TRY(dsc_check_computes(device, "conv", "the type", desc->dtype));
    if (desc->shape.extra_h != 0 || desc->shape.extra_w != 0)
        return DSC_FAIL(DSC_E_UNSUPPORTED,
                        "conv: padding of %lld x %lld at the bottom and right only; convolutions take equal "
                        "padding on both sides",
                        (long long)desc->shape.extra_h, (long long)desc->shape.extra_w);
    dsc_conv *conv;
    DSC_TRY(dsc_memory_alloc(1, sizeof *conv, &conv));
    conv->device = device;
    conv->table = dsc_device_table_for(device, desc->dtype);
    conv->desc = *desc;
    conv->use = use;
    conv->oh = oh;
    conv->ow = ow;
    dsc_status status = conv->table->conv_open ? conv->table->conv_open(conv) : DSC_OK;
    if (status != DSC_OK) {
        dsc_memory_free(&conv);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = conv;
    return DSC_OK;
}

dsc_status dsc_conv_create(dsc_device *device, const dsc_conv_desc *desc, dsc_conv **out) {
    return create(device, desc, DSC_CONV_EVERY_PASS, out);
}

dsc_status dsc_conv_create_forward(dsc_device *device, const dsc_conv_desc *desc, dsc_conv **out) {
    return create(device, desc, DSC_CONV_FORWARD_ONLY, out);
}

dsc_status dsc_conv_create_backward_data(dsc_device *device, const dsc_conv_desc *desc, dsc_conv **out) {
    return create(device, desc, DSC_CONV_BACKWARD_DATA_ONLY, out);
}

void dsc_conv_destroy(dsc_conv **conv) {
    if (!conv || !*conv)
        return;
    if ((*conv)->table->conv_close)
        (*conv)->table->conv_close(*conv);
    dsc_memory_free(conv);
}

size_t dsc_conv_workspace(const dsc_conv *conv) {
    return conv->workspace;
}

/* Checks the plan, which must be for every pass or for `use`, and the workspace. */
static dsc_status check_conv(dsc_check *check, const char *op, dsc_queue *q, const dsc_conv *conv,
                             dsc_conv_use use, const dsc_tensor *work) {
    static const char *const passes[] = {
        [DSC_CONV_FORWARD_ONLY] = "forward pass", [DSC_CONV_BACKWARD_DATA_ONLY] = "gradient of x"};
    DSC_TRY(dsc_check_begin_any(check, op, q));
    if (!conv)
        return DSC_FAIL(DSC_E_INVALID, "%s: conv is missing", op);
    if (conv->use != DSC_CONV_EVERY_PASS && conv->use != use)
        return DSC_FAIL(DSC_E_INVALID, "%s: conv was planned for the %s only", op, passes[conv->use]);
    if (conv->device != q->device)
        return DSC_FAIL(DSC_E_INVALID, "%s: conv was planned for another device than the queue's, %s", op,
                        q->device->name);
    DSC_TRY(dsc_check_set_half(check, "conv's type", conv->desc.dtype));
    DSC_TRY(dsc_check_work(check, work, conv->workspace));
    return DSC_OK;
}

static dsc_status check_x(const dsc_check *check, const char *name, const dsc_tensor *x,
                          const dsc_conv *conv) {
    const dsc_conv_desc *d = &conv->desc;
    const dsc_conv2d_shape *s = &d->shape;
    DSC_TRY(dsc_check_real_shape(check, name, x, DSC_SHAPE(d->n, s->in_h, s->in_w, s->in_c)));
    return DSC_OK;
}

static dsc_status check_w(const dsc_check *check, const dsc_tensor *w, const dsc_conv *conv) {
    const dsc_conv2d_shape *s = &conv->desc.shape;
    DSC_TRY(dsc_check_real_shape(check, "w", w,
                                 DSC_SHAPE(s->out_c, s->kernel_h, s->kernel_w, s->in_c / s->groups)));
    return DSC_OK;
}

static dsc_status check_dw(const dsc_check *check, const dsc_tensor *dw, const dsc_conv *conv) {
    const dsc_conv2d_shape *s = &conv->desc.shape;
    DSC_TRY(dsc_check_param_shape(check, "dw", dw,
                                  DSC_SHAPE(s->out_c, s->kernel_h, s->kernel_w, s->in_c / s->groups)));
    return DSC_OK;
}

static dsc_status check_y(const dsc_check *check, const char *name, const dsc_tensor *y,
                          const dsc_conv *conv) {
    DSC_TRY(dsc_check_real_shape(check, name, y,
                                 DSC_SHAPE(conv->desc.n, conv->oh, conv->ow, conv->desc.shape.out_c)));
    return DSC_OK;
}

dsc_status dsc_op_conv_forward(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x, const dsc_tensor *w,
                               const dsc_tensor *bias, dsc_tensor *work, dsc_tensor *y) {
    dsc_check check;
    DSC_TRY(check_conv(&check, "conv_forward", q, conv, DSC_CONV_FORWARD_ONLY, work));
    DSC_TRY(check_x(&check, "x", x, conv));
    DSC_TRY(check_w(&check, w, conv));
    DSC_TRY(check_y(&check, "y", y, conv));
    if (bias)
        DSC_TRY(dsc_check_param_shape(&check, "bias", bias, DSC_SHAPE(conv->desc.shape.out_c)));
    DSC_TRY(dsc_check_apart(&check, "y", y, "x", x));
    DSC_TRY(dsc_check_apart(&check, "y", y, "w", w));
    DSC_TRY(conv->table->conv_forward(q, conv, x, w, bias, work, y));
    return DSC_OK;
}

dsc_status dsc_op_conv_backward_data(dsc_queue *q, dsc_conv *conv, const dsc_tensor *w, const dsc_tensor *dy,
                                     double beta, dsc_tensor *work, dsc_tensor *dx) {
    dsc_check check;
    DSC_TRY(check_conv(&check, "conv_backward_data", q, conv, DSC_CONV_BACKWARD_DATA_ONLY, work));
    DSC_TRY(check_w(&check, w, conv));
    DSC_TRY(check_y(&check, "dy", dy, conv));
    DSC_TRY(check_x(&check, "dx", dx, conv));
    DSC_TRY(dsc_check_beta(&check, "beta", beta));
    DSC_TRY(dsc_check_apart(&check, "dx", dx, "dy", dy));
    DSC_TRY(dsc_check_apart(&check, "dx", dx, "w", w));
    DSC_TRY(conv->table->conv_backward_data(q, conv, w, dy, beta, work, dx));
    return DSC_OK;
}

dsc_status dsc_op_conv_backward_weight(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x,
                                       const dsc_tensor *dy, double beta, dsc_tensor *work, dsc_tensor *dw) {
    dsc_check check;
    DSC_TRY(check_conv(&check, "conv_backward_weight", q, conv, DSC_CONV_EVERY_PASS, work));
    DSC_TRY(check_x(&check, "x", x, conv));
    DSC_TRY(check_y(&check, "dy", dy, conv));
    DSC_TRY(check_dw(&check, dw, conv));
    DSC_TRY(dsc_check_beta(&check, "beta", beta));
    DSC_TRY(dsc_check_apart(&check, "dw", dw, "dy", dy));
    DSC_TRY(dsc_check_apart(&check, "dw", dw, "x", x));
    DSC_TRY(conv->table->conv_backward_weight(q, conv, x, dy, beta, work, dw));
    return DSC_OK;
}

dsc_status dsc_op_patches(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x, int64_t group,
                          int64_t first, dsc_tensor *out) {
    const dsc_conv2d_shape *s = &desc->shape;
    dsc_check check;
    int64_t oh = 0, ow = 0;
    DSC_TRY(dsc_conv_output(desc, &oh, &ow));
    DSC_TRY(dsc_check_begin_any(&check, "patches", q));
    DSC_TRY(dsc_check_set_half(&check, "the type", desc->dtype));
    DSC_TRY(dsc_check_real_shape(&check, "x", x, DSC_SHAPE(desc->n, s->in_h, s->in_w, s->in_c)));
    DSC_TRY(dsc_check_real(&check, "out", out));
    DSC_TRY(dsc_check_dims(&check, "out", out, 2));
    int64_t rows = out->dim[0], width = s->kernel_h * s->kernel_w * (s->in_c / s->groups);
    if (out->dim[1] != width + 1) /* one more column, of ones, is also allowed */
        DSC_TRY(dsc_check_shape(&check, "out", out, DSC_SHAPE(rows, width)));
    if (group < 0 || group >= s->groups)
        return DSC_FAIL(DSC_E_INVALID, "patches: group is %lld; 0 to %lld is expected", (long long)group,
                        (long long)s->groups - 1);
    if (first < 0 || first > desc->n * oh * ow - rows)
        return DSC_FAIL(DSC_E_INVALID, "patches: rows %lld to %lld; there are %lld output positions",
                        (long long)first, (long long)(first + rows), (long long)(desc->n * oh * ow));
    DSC_TRY(dsc_check_apart(&check, "out", out, "x", x));
    if (rows == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->patches(q, desc, x, group, first, out));
    return DSC_OK;
}
