/* Reference: the parameter-free shortcut, pooling in windows, global pooling.
 *
 * The index of a maximum is its position in the window, row * kw + column. A NaN counts as larger than everything. */
#include "device/ref/element.h"
#include "device/ref/ref.h"

#include <math.h>

/* ---- shortcut ---- */

dsc_status dsc_ref_shortcut_forward(dsc_queue *q, int64_t stride, const dsc_tensor *x, dsc_tensor *y) {
    (void)q;
    int64_t lead = (y->dim[3] - x->dim[3]) / 2;
    for (int64_t n = 0; n < y->dim[0]; n++)
        for (int64_t i = 0; i < y->dim[1]; i++)
            for (int64_t j = 0; j < y->dim[2]; j++)
                for (int64_t k = 0; k < y->dim[3]; k++) {
                    int64_t c = k - lead;
                    int exists = c >= 0 && c < x->dim[3];
                    set(y, at4(y, n, i, j, k), exists ? get(x, at4(x, n, i * stride, j * stride, c)) : 0);
                }
    return DSC_OK;
}

dsc_status dsc_ref_shortcut_backward(dsc_queue *q, int64_t stride, const dsc_tensor *dy, double beta,
                                     dsc_tensor *dx) {
    (void)q;
    int64_t lead = (dy->dim[3] - dx->dim[3]) / 2;
    for (int64_t n = 0; n < dx->dim[0]; n++)
        for (int64_t h = 0; h < dx->dim[1]; h++)
            for (int64_t w = 0; w < dx->dim[2]; w++)
                for (int64_t c = 0; c < dx->dim[3]; c++) {
                    int taken = h % stride == 0 && w % stride == 0;
                    double value = taken ? get(dy, at4(dy, n, h / stride, w / stride, c + lead)) : 0;
                    update(dx, at4(dx, n, h, w, c), beta, value);
                }
    return DSC_OK;
}

/* ---- windows ---- */

/* The element of x under position (r, s) of the window of output (n, i, j, c); -1 in the padding. */
static int64_t under_window(const dsc_pool_desc *d, const dsc_tensor *x, const int64_t at[4], int64_t r,
                            int64_t s) {
    int64_t h = at[1] * d->stride_h + r - d->pad_h, w = at[2] * d->stride_w + s - d->pad_w;
    if (h < 0 || h >= x->dim[1] || w < 0 || w >= x->dim[2])
        return -1;
    return at4(x, at[0], h, w, at[3]);
}

static double window_max(const dsc_pool_desc *d, const dsc_tensor *x, const int64_t at[4], int64_t *place) {
    double best = 0;
    *place = -1;
    for (int64_t r = 0; r < d->kh; r++) {
        for (int64_t s = 0; s < d->kw; s++) {
            int64_t element = under_window(d, x, at, r, s);
            if (element < 0)
                continue;
            double value = get(x, element);
            if (*place < 0 || value > best || isnan(value)) {
                best = value;
                *place = r * d->kw + s;
            }
        }
    }
    return best;
}

static double window_mean(const dsc_pool_desc *d, const dsc_tensor *x, const int64_t at[4]) {
    double sum = 0;
    for (int64_t r = 0; r < d->kh; r++) {
        for (int64_t s = 0; s < d->kw; s++) {
            int64_t element = under_window(d, x, at, r, s);
            if (element >= 0)
                sum += get(x, element);
        }
    }
    return sum / (double)(d->kh * d->kw);
}

dsc_status dsc_ref_pool_forward(dsc_queue *q, const dsc_pool_desc *desc, const dsc_tensor *x,
                                dsc_tensor *index, dsc_tensor *y) {
    (void)q;
    for (int64_t n = 0; n < y->dim[0]; n++)
        for (int64_t i = 0; i < y->dim[1]; i++)
            for (int64_t j = 0; j < y->dim[2]; j++)
                for (int64_t c = 0; c < y->dim[3]; c++) {
                    const int64_t at[4] = {n, i, j, c};
                    int64_t place = 0;
                    int is_max = desc->kind == DSC_POOL_MAX;
                    double value = is_max ? window_max(desc, x, at, &place) : window_mean(desc, x, at);
                    set(y, at4(y, n, i, j, c), value);
                    if (index)
                        set(index, at4(y, n, i, j, c), (double)place);
                }
    return DSC_OK;
}

/* Distributes the gradient of one output to the elements under its window. */
static void spread(const dsc_pool_desc *d, const dsc_tensor *index, const dsc_tensor *dy, const int64_t at[4],
                   dsc_tensor *dx) {
    int64_t output = at4(dy, at[0], at[1], at[2], at[3]);
    for (int64_t r = 0; r < d->kh; r++) {
        for (int64_t s = 0; s < d->kw; s++) {
            int64_t element = under_window(d, dx, at, r, s);
            if (element < 0)
                continue;
            if (d->kind == DSC_POOL_AVG)
                update(dx, element, 1, get(dy, output) / (double)(d->kh * d->kw));
            else if (get(index, output) == (double)(r * d->kw + s))
                update(dx, element, 1, get(dy, output));
        }
    }
}

dsc_status dsc_ref_pool_backward(dsc_queue *q, const dsc_pool_desc *desc, const dsc_tensor *index,
                                 const dsc_tensor *dy, double beta, dsc_tensor *dx) {
    (void)q;
    for (int64_t i = 0, count = dsc_tensor_count(dx); beta == 0 && i < count; i++)
        set(dx, i, 0);
    for (int64_t n = 0; n < dy->dim[0]; n++)
        for (int64_t i = 0; i < dy->dim[1]; i++)
            for (int64_t j = 0; j < dy->dim[2]; j++)
                for (int64_t c = 0; c < dy->dim[3]; c++) {
                    const int64_t at[4] = {n, i, j, c};
                    spread(desc, index, dy, at, dx);
                }
    return DSC_OK;
}

/* ---- global pooling ---- */

dsc_status dsc_ref_global_pool_forward(dsc_queue *q, const dsc_tensor *x, dsc_tensor *y) {
    (void)q;
    int64_t channels = x->dim[3], pixels = x->dim[1] * x->dim[2];
    for (int64_t n = 0; n < x->dim[0]; n++) {
        for (int64_t c = 0; c < channels; c++) {
            double sum = 0;
            for (int64_t p = 0; p < pixels; p++)
                sum += get(x, (n * pixels + p) * channels + c);
            set(y, at2(y, n, c), sum / (double)pixels);
        }
    }
    return DSC_OK;
}

dsc_status dsc_ref_global_pool_backward(dsc_queue *q, const dsc_tensor *dy, double beta, dsc_tensor *dx) {
    (void)q;
    int64_t channels = dx->dim[3], pixels = dx->dim[1] * dx->dim[2];
    for (int64_t i = 0, count = dsc_tensor_count(dx); i < count; i++) {
        double value = get(dy, at2(dy, i / (pixels * channels), i % channels));
        update(dx, i, beta, value / (double)pixels);
    }
    return DSC_OK;
}
