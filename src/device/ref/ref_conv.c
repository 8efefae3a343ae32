/* Reference: convolution.
 *   y[n,i,j,o] = bias[o] + sum over r, s, ch of w[o,r,s,ch] x[n, row, column, first + ch]
 *   row = i stride + r dilation - pad,   column = j stride + s dilation - pad,
 * where first is the first input channel of o's group; x is zero outside. The backward passes sum the same
 * products over the other indices. */
#include "device/ref/element.h"
#include "device/ref/ref.h"

/* The input row (or column) under kernel row (or column) r of output i; it may be outside. */
static int64_t source(int64_t i, int64_t r, int64_t stride, int64_t dil, int64_t pad) {
    return i * stride + r * dil - pad;
}

/* The output position to which x[h] contributes through kernel row r; -1 if there is no such position. */
static int64_t target(int64_t h, int64_t r, int64_t stride, int64_t dil, int64_t pad, int64_t size) {
    int64_t scaled = h + pad - r * dil;
    return scaled >= 0 && scaled % stride == 0 && scaled / stride < size ? scaled / stride : -1;
}

static double forward_sum(const dsc_conv_desc *d, const dsc_tensor *x, const dsc_tensor *w,
                          const int64_t at[4]) {
    const dsc_conv2d_shape *shape = &d->shape;
    int64_t width = shape->in_c / shape->groups, first = at[3] / (shape->out_c / shape->groups) * width;
    double sum = 0;
    for (int64_t r = 0; r < shape->kernel_h; r++) {
        for (int64_t s = 0; s < shape->kernel_w; s++) {
            int64_t h = source(at[1], r, shape->stride_h, shape->dilation_h, shape->pad_h);
            int64_t v = source(at[2], s, shape->stride_w, shape->dilation_w, shape->pad_w);
            if (h < 0 || h >= shape->in_h || v < 0 || v >= shape->in_w)
                continue;
            for (int64_t ch = 0; ch < width; ch++)
                sum += get(x, at4(x, at[0], h, v, first + ch)) * get(w, at4(w, at[3], r, s, ch));
        }
    }
    return sum;
}

dsc_status dsc_ref_conv_forward(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x, const dsc_tensor *w,
                                const dsc_tensor *bias, dsc_tensor *work, dsc_tensor *y) {
    (void)q;
    (void)work;
    for (int64_t n = 0; n < y->dim[0]; n++)
        for (int64_t i = 0; i < y->dim[1]; i++)
            for (int64_t j = 0; j < y->dim[2]; j++)
                for (int64_t o = 0; o < y->dim[3]; o++) {
                    const int64_t at[4] = {n, i, j, o};
                    double sum = forward_sum(&conv->desc, x, w, at);
                    set(y, at4(y, n, i, j, o), bias ? sum + get(bias, o) : sum);
                }
    return DSC_OK;
}

/* The gradient of x at (n, h, w, channel): the sum over all outputs to which it contributes. */
static double data_sum(const dsc_conv_desc *d, const dsc_tensor *w, const dsc_tensor *dy,
                       const int64_t at[4]) {
    const dsc_conv2d_shape *shape = &d->shape;
    int64_t width = shape->in_c / shape->groups, outputs = shape->out_c / shape->groups,
            group = at[3] / width;
    double sum = 0;
    for (int64_t r = 0; r < shape->kernel_h; r++) {
        for (int64_t s = 0; s < shape->kernel_w; s++) {
            int64_t i = target(at[1], r, shape->stride_h, shape->dilation_h, shape->pad_h, dy->dim[1]);
            int64_t j = target(at[2], s, shape->stride_w, shape->dilation_w, shape->pad_w, dy->dim[2]);
            if (i < 0 || j < 0)
                continue;
            for (int64_t o = group * outputs; o < (group + 1) * outputs; o++)
                sum += get(dy, at4(dy, at[0], i, j, o)) * get(w, at4(w, o, r, s, at[3] % width));
        }
    }
    return sum;
}

dsc_status dsc_ref_conv_backward_data(dsc_queue *q, dsc_conv *conv, const dsc_tensor *w, const dsc_tensor *dy,
                                      double beta, dsc_tensor *work, dsc_tensor *dx) {
    (void)q;
    (void)work;
    for (int64_t n = 0; n < dx->dim[0]; n++)
        for (int64_t h = 0; h < dx->dim[1]; h++)
            for (int64_t v = 0; v < dx->dim[2]; v++)
                for (int64_t ch = 0; ch < dx->dim[3]; ch++) {
                    const int64_t at[4] = {n, h, v, ch};
                    update(dx, at4(dx, n, h, v, ch), beta, data_sum(&conv->desc, w, dy, at));
                }
    return DSC_OK;
}

/* The gradient of weight (o, r, s, channel): the sum over all outputs to which it contributes. */
static double weight_sum(const dsc_conv_desc *d, const dsc_tensor *x, const dsc_tensor *dy,
                         const int64_t at[4]) {
    const dsc_conv2d_shape *s = &d->shape;
    int64_t channel = at[0] / (s->out_c / s->groups) * (s->in_c / s->groups) + at[3];
    double sum = 0;
    for (int64_t n = 0; n < d->n; n++)
        for (int64_t i = 0; i < dy->dim[1]; i++)
            for (int64_t j = 0; j < dy->dim[2]; j++) {
                int64_t h = source(i, at[1], s->stride_h, s->dilation_h, s->pad_h);
                int64_t v = source(j, at[2], s->stride_w, s->dilation_w, s->pad_w);
                if (h >= 0 && h < s->in_h && v >= 0 && v < s->in_w)
                    sum += get(x, at4(x, n, h, v, channel)) * get(dy, at4(dy, n, i, j, at[0]));
            }
    return sum;
}

dsc_status dsc_ref_conv_backward_weight(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x,
                                        const dsc_tensor *dy, double beta, dsc_tensor *work, dsc_tensor *dw) {
    (void)q;
    (void)work;
    for (int64_t o = 0; o < dw->dim[0]; o++)
        for (int64_t r = 0; r < dw->dim[1]; r++)
            for (int64_t s = 0; s < dw->dim[2]; s++)
                for (int64_t ch = 0; ch < dw->dim[3]; ch++) {
                    const int64_t at[4] = {o, r, s, ch};
                    update(dw, at4(dw, o, r, s, ch), beta, weight_sum(&conv->desc, x, dy, at));
                }
    return DSC_OK;
}

/* Writes one row of patches: the kh*kw*width values of one group under output position (n, i, j), then a 1 if there is
 * one more column. */
static void patch_row(const dsc_conv_desc *d, const dsc_tensor *x, const int64_t at[3], int64_t group,
                      int64_t row, dsc_tensor *out) {
    const dsc_conv2d_shape *shape = &d->shape;
    int64_t width = shape->in_c / shape->groups, column = 0;
    for (int64_t r = 0; r < shape->kernel_h; r++) {
        for (int64_t s = 0; s < shape->kernel_w; s++) {
            int64_t h = source(at[1], r, shape->stride_h, shape->dilation_h, shape->pad_h);
            int64_t v = source(at[2], s, shape->stride_w, shape->dilation_w, shape->pad_w);
            int inside = h >= 0 && h < shape->in_h && v >= 0 && v < shape->in_w;
            for (int64_t ch = 0; ch < width; ch++)
                set(out, at2(out, row, column++),
                    inside ? get(x, at4(x, at[0], h, v, group * width + ch)) : 0);
        }
    }
    if (column < out->dim[1])
        set(out, at2(out, row, column), 1);
}

dsc_status dsc_ref_patches(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x, int64_t group,
                           int64_t first, dsc_tensor *out) {
    (void)q;
    int64_t oh = 0, ow = 0;
    dsc_status status = dsc_conv_output(desc, &oh, &ow);
    for (int64_t row = 0; status == DSC_OK && row < out->dim[0]; row++) {
        int64_t position = first + row;
        const int64_t at[3] = {position / (oh * ow), position / ow % oh, position % ow};
        patch_row(desc, x, at, group, row, out);
    }
    return status;
}
