/* Pooling, the parameter-free shortcut and dropout of the cpu device; the formulas are in ops.h. Pooling and the
 * shortcut work on rows of c channels. */
#include "device/cpu/cpu.h"

#include "base/error.h"

#include <string.h>

/* ---- shortcut ---- */

static dsc_status shortcut_forward(dsc_queue *q, int64_t stride, const dsc_tensor *x, dsc_tensor *y) {
    int64_t h = x->dim[1], w = x->dim[2], c = x->dim[3];
    int64_t oh = y->dim[1], ow = y->dim[2], k = y->dim[3], before = (k - c) / 2;
    int64_t lines = y->dim[0] * oh;
    int parts = dsc_cpu_parts(q->device, dsc_tensor_count(y));
    const float *from = x->data;
    float *to = y->data;
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int64_t line = 0; line < lines; line++) {
        const float *source = from + (line / oh * h + line % oh * stride) * w * c;
        float *target = to + line * ow * k;
        memset(target, 0, (size_t)(ow * k) * sizeof *target);
        for (int64_t j = 0; j < ow; j++)
            memcpy(target + j * k + before, source + j * stride * c, (size_t)c * sizeof *target);
    }
    return DSC_OK;
}

static dsc_status shortcut_backward(dsc_queue *q, int64_t stride, const dsc_tensor *dy, double beta,
                                    dsc_tensor *dx) {
    const dsc_cpu_kernels *kernels = dsc_cpu_kernels_of(q);
    int64_t h = dx->dim[1], w = dx->dim[2], c = dx->dim[3];
    int64_t oh = dy->dim[1], ow = dy->dim[2], k = dy->dim[3], before = (k - c) / 2;
    int64_t lines = dx->dim[0] * h;
    int parts = dsc_cpu_parts(q->device, dsc_tensor_count(dx));
    const float *from = dy->data;
    float *to = dx->data;
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int64_t line = 0; line < lines; line++) {
        int64_t image = line / h, i = line % h;
        float *target = to + line * w * c;
        if (beta == 0)
            memset(target, 0, (size_t)(w * c) * sizeof *target);
        if (i % stride)
            continue;
        const float *source = from + (image * oh + i / stride) * ow * k + before;
        for (int64_t j = 0; j < ow; j++)
            dsc_cpu_add(kernels, c, target + j * stride * c, source + j * k, target + j * stride * c);
    }
    return DSC_OK;
}

/* ---- windows ---- */

typedef struct window_shape {
    const dsc_pool_desc *desc;
    int64_t h, w, c, oh, ow;
} window_shape;

/* The taps of the window of output (i, j) that lie inside the input: rows [r0, r1), columns [s0, s1). */
typedef struct window {
    int64_t top, left, r0, r1, s0, s1;
} window;

static int64_t at_least(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t at_most(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static window window_at(const window_shape *s, int64_t i, int64_t j) {
    window v = {.top = i * s->desc->stride_h - s->desc->pad_h,
                .left = j * s->desc->stride_w - s->desc->pad_w};
    v.r0 = at_least(0, -v.top);
    v.s0 = at_least(0, -v.left);
    v.r1 = at_most(s->desc->kh, s->h - v.top);
    v.s1 = at_most(s->desc->kw, s->w - v.left);
    return v;
}

static void max_window(const dsc_cpu_kernels *k, const window_shape *shape, const window *v, const float *x,
                       int32_t *index, float *y) {
    int started = 0;
    for (int64_t r = v->r0; r < v->r1; r++) {
        for (int64_t s = v->s0; s < v->s1; s++) {
            const float *tap = x + ((v->top + r) * shape->w + v->left + s) * shape->c;
            int32_t number = (int32_t)(r * shape->desc->kw + s);
            if (started) {
                k->max_tap(shape->c, number, tap, index, y);
                continue;
            }
            memcpy(y, tap, (size_t)shape->c * sizeof *y);
            for (int64_t ch = 0; index && ch < shape->c; ch++)
                index[ch] = number;
            started = 1;
        }
    }
}

static void average_window(const dsc_cpu_kernels *k, const window_shape *shape, const window *v,
                           const float *x, float *y) {
    memset(y, 0, (size_t)shape->c * sizeof *y);
    for (int64_t r = v->r0; r < v->r1; r++) {
        for (int64_t s = v->s0; s < v->s1; s++)
            dsc_cpu_add(k, shape->c, y, x + ((v->top + r) * shape->w + v->left + s) * shape->c, y);
    }
    k->scale(shape->c, 1.0f / (float)(shape->desc->kh * shape->desc->kw), y);
}

static dsc_status pool_forward(dsc_queue *q, const dsc_pool_desc *desc, const dsc_tensor *x,
                               dsc_tensor *index, dsc_tensor *y) {
    if (index && index->dtype == DSC_U8)
        return dsc_ref_table.pool_forward(q, desc, x, index, y);
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    window_shape shape = {desc, x->dim[1], x->dim[2], x->dim[3], y->dim[1], y->dim[2]};
    int64_t lines = y->dim[0] * shape.oh;
    int parts = dsc_cpu_parts(q->device, dsc_tensor_count(x));
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int64_t line = 0; line < lines; line++) {
        const float *image = (const float *)x->data + line / shape.oh * shape.h * shape.w * shape.c;
        for (int64_t j = 0; j < shape.ow; j++) {
            window v = window_at(&shape, line % shape.oh, j);
            int64_t at = (line * shape.ow + j) * shape.c;
            float *to = (float *)y->data + at;
            if (desc->kind == DSC_POOL_MAX)
                max_window(k, &shape, &v, image, index ? (int32_t *)index->data + at : NULL, to);
            else
                average_window(k, &shape, &v, image, to);
        }
    }
    return DSC_OK;
}

static void max_scatter(const window_shape *shape, const window *v, const int32_t *index, const float *dy,
                        float *dx) {
    for (int64_t ch = 0; ch < shape->c; ch++) {
        int64_t r = index[ch] / shape->desc->kw, s = index[ch] % shape->desc->kw;
        dx[((v->top + r) * shape->w + v->left + s) * shape->c + ch] += dy[ch];
    }
}

static void average_scatter(const dsc_cpu_kernels *k, const window_shape *shape, const window *v,
                            const float *dy, float *dx) {
    float weight = 1.0f / (float)(shape->desc->kh * shape->desc->kw);
    for (int64_t r = v->r0; r < v->r1; r++) {
        for (int64_t s = v->s0; s < v->s1; s++)
            k->axpby(shape->c, weight, dy, 1, dx + ((v->top + r) * shape->w + v->left + s) * shape->c);
    }
}

/* Windows overlap, so one thread processes a whole image. */
static dsc_status pool_backward(dsc_queue *q, const dsc_pool_desc *desc, const dsc_tensor *index,
                                const dsc_tensor *dy, double beta, dsc_tensor *dx) {
    if (index && index->dtype == DSC_U8)
        return dsc_ref_table.pool_backward(q, desc, index, dy, beta, dx);
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    window_shape shape = {desc, dx->dim[1], dx->dim[2], dx->dim[3], dy->dim[1], dy->dim[2]};
    int64_t places = shape.oh * shape.ow, size = shape.h * shape.w * shape.c;
    int parts = dsc_cpu_parts(q->device, dsc_tensor_count(dx));
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int64_t n = 0; n < dx->dim[0]; n++) {
        float *image = (float *)dx->data + n * size;
        if (beta == 0)
            memset(image, 0, (size_t)size * sizeof *image);
        for (int64_t place = 0; place < places; place++) {
            window v = window_at(&shape, place / shape.ow, place % shape.ow);
            int64_t at = (n * places + place) * shape.c;
            const float *from = (const float *)dy->data + at;
            if (desc->kind == DSC_POOL_MAX)
                max_scatter(&shape, &v, (const int32_t *)index->data + at, from, image);
            else
                average_scatter(k, &shape, &v, from, image);
        }
    }
    return DSC_OK;
}

/* ---- whole images ---- */

static dsc_status global_pool_forward(dsc_queue *q, const dsc_tensor *x, dsc_tensor *y) {
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    int64_t n = x->dim[0], places = x->dim[1] * x->dim[2], c = x->dim[3], width = dsc_cpu_period(c);
    int parts = dsc_cpu_parts(q->device, dsc_tensor_count(x));
    double *space;
    DSC_TRY(dsc_cpu_scratch(q, 2 * parts * width * (int64_t)sizeof *space, &space));
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(n, 1, parts, p);
        double *sums = space + 2 * p * width;
        for (int64_t image = r.first; image < r.first + r.count; image++) {
            memset(sums, 0, (size_t)width * sizeof *sums);
            k->column_sums(places * c, width, (const float *)x->data + image * places * c,
                           (void *)(sums + width), sums);
            for (int64_t ch = 0; ch < c; ch++) {
                double sum = 0;
                for (int64_t i = ch; i < width; i += c)
                    sum += sums[i];
                ((float *)y->data)[image * c + ch] = (float)(sum / (double)places);
            }
        }
    }
    return DSC_OK;
}

static dsc_status global_pool_backward(dsc_queue *q, const dsc_tensor *dy, double beta, dsc_tensor *dx) {
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    int64_t places = dx->dim[1] * dx->dim[2], c = dx->dim[3], rows = dx->dim[0] * places;
    int parts = dsc_cpu_parts(q->device, dsc_tensor_count(dx));
    float weight = 1.0f / (float)places;
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int64_t row = 0; row < rows; row++)
        k->axpby(c, weight, (const float *)dy->data + row / places * c, beta == 0 ? 0 : 1,
                 (float *)dx->data + row * c);
    return DSC_OK;
}

/* ---- dropout ---- */

typedef struct dropout_call {
    dsc_dropout_stream stream;
    int64_t start; /* the stream's element for element 0 */
    float scale, beta;
    const float *x;
    float *y;
} dropout_call;

static void dropout_range(const dropout_call *call, int64_t first, int64_t last) {
    uint32_t words[4] = {0, 0, 0, 0};
    int64_t known = -1;
    for (int64_t i = first; i < last; i++) {
        int64_t element = call->start + i;
        if (element / 4 != known) {
            known = element / 4;
            dsc_dropout_words(&call->stream, known, words);
        }
        float value = dsc_dropout_keeps(&call->stream, words[element % 4]) ? call->x[i] * call->scale : 0;
        call->y[i] = call->beta == 0 ? value : call->y[i] + value;
    }
}

static dsc_status dropout(dsc_queue *q, const dsc_dropout_desc *desc, const dsc_tensor *position,
                          const dsc_tensor *x, double beta, dsc_tensor *y) {
    const int64_t *at = position->data;
    int64_t n = dsc_tensor_count(x);
    int parts = dsc_cpu_parts(q->device, n);
    dropout_call call = {.stream = dsc_dropout_start(desc, at[0]),
                         .start = at[1] * (n / x->dim[0]),
                         .scale = (float)(1 / (1 - desc->rate)),
                         .beta = (float)beta,
                         .x = x->data,
                         .y = y->data};
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(n, 64, parts, p);
        dropout_range(&call, r.first, r.first + r.count);
    }
    return DSC_OK;
}

void dsc_cpu_table_pool(dsc_device_table *table) {
    table->shortcut_forward = shortcut_forward;
    table->shortcut_backward = shortcut_backward;
    table->pool_forward = pool_forward;
    table->pool_backward = pool_backward;
    table->global_pool_forward = global_pool_forward;
    table->global_pool_backward = global_pool_backward;
    table->dropout = dropout;
}
