/* Our own convolution: patches of a slab of output positions, small enough for the cache, and one matrix
 * product per slab and group. Threads share the slabs; the products inside are single-threaded.
 *
 *   P[rows, kh*kw*cg]: the input under each output position (cg = c/groups, kg = k/groups)
 *   forward           Y[rows, kg]  = P W'
 *   backward, data    dP           = dY W, scattered back onto dx; an image is one thread's work
 *   backward, weight  dW[kg, width] = dY' P, summed per thread, then over the threads in order
 *
 * A 1x1 convolution without stride and padding is its own patch matrix. */
#include "device/cpu/conv.h"

#include "base/error.h"
#include "base/memory.h"

#include <cblas.h>
#include <string.h>

/* Floats of a slab of patches. */
enum { SLAB_FLOATS = 1 << 16 };

typedef struct own_conv {
    dsc_conv_desc d;
    int64_t oh, ow, cg, kg;
    int64_t width; /* of a patch */
    int64_t rows;  /* output positions: n oh ow */
    int64_t slab;  /* rows at a time */
    int direct;    /* 1: x itself is the patch matrix */
    int parts;
} own_conv;

static own_conv describe(const dsc_conv_desc *desc, int64_t oh, int64_t ow, int threads) {
    own_conv o = {.d = *desc, .oh = oh, .ow = ow, .cg = desc->c / desc->groups, .kg = desc->k / desc->groups};
    o.width = desc->kh * desc->kw * o.cg;
    o.rows = desc->n * oh * ow;
    o.slab = SLAB_FLOATS / o.width;
    if (o.slab < 32)
        o.slab = 32;
    if (o.slab > o.rows)
        o.slab = o.rows;
    o.direct = desc->kh == 1 && desc->kw == 1 && desc->stride_h == 1 && desc->stride_w == 1 &&
               desc->pad_h == 0 && desc->pad_w == 0;
    o.parts = o.rows * o.width * o.kg < 65536 ? 1 : threads;
    return o;
}

static own_conv describe_conv(const dsc_conv *conv) {
    return describe(&conv->desc, conv->oh, conv->ow, conv->device->threads);
}

/* ---- patches ---- */

/* One row of a patch: kw taps of cg channels from line `x` of the input (w pixels); zero outside. */
static void patch_line(const own_conv *o, const float *x, int64_t left, float *to) {
    int64_t step = o->d.dil_w, c = o->d.c, cg = o->cg;
    for (int64_t s = 0; s < o->d.kw; s++) {
        int64_t column = left + s * step;
        if (column >= 0 && column < o->d.w)
            memcpy(to + s * cg, x + column * c, (size_t)cg * sizeof *to);
        else
            memset(to + s * cg, 0, (size_t)cg * sizeof *to);
    }
}

/* The same when the taps are neighbours in memory. */
static void patch_run(const own_conv *o, const float *x, int64_t left, float *to) {
    int64_t c = o->d.c, first = left < 0 ? -left : 0;
    int64_t last = left + o->d.kw > o->d.w ? o->d.w - left : o->d.kw;
    if (first > 0)
        memset(to, 0, (size_t)((first < o->d.kw ? first : o->d.kw) * c) * sizeof *to);
    if (first < last)
        memcpy(to + first * c, x + (left + first) * c, (size_t)((last - first) * c) * sizeof *to);
    if (last < o->d.kw)
        memset(to + (last > 0 ? last : 0) * c, 0,
               (size_t)((o->d.kw - (last > 0 ? last : 0)) * c) * sizeof *to);
}

/* Patches of positions [first, first + rows), `stride` floats from one to the next. */
static void patches(const own_conv *o, const float *x, int64_t group, dsc_cpu_range r, int64_t stride,
                    float *out) {
    int neighbours = o->d.groups == 1 && o->d.dil_w == 1;
    int64_t line = o->d.kw * o->cg;
    for (int64_t row = r.first; row < r.first + r.count; row++, out += stride) {
        int64_t image = row / (o->oh * o->ow), i = row / o->ow % o->oh, j = row % o->ow;
        int64_t top = i * o->d.stride_h - o->d.pad_h, left = j * o->d.stride_w - o->d.pad_w;
        for (int64_t t = 0; t < o->d.kh; t++) {
            int64_t h = top + t * o->d.dil_h;
            float *to = out + t * line;
            const float *from = x + (image * o->d.h + h) * o->d.w * o->d.c + group * o->cg;
            if (h < 0 || h >= o->d.h)
                memset(to, 0, (size_t)line * sizeof *to);
            else if (neighbours)
                patch_run(o, from, left, to);
            else
                patch_line(o, from, left, to);
        }
    }
}

dsc_status dsc_own_patches(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x, int64_t group,
                           int64_t first, dsc_tensor *out) {
    int64_t oh = 0, ow = 0, rows = out->dim[0], stride = out->dim[1];
    DSC_TRY(dsc_conv_output(desc, &oh, &ow));
    own_conv o = describe(desc, oh, ow, 1);
    int parts = dsc_cpu_parts(q->device, rows * stride);
#pragma omp parallel for num_threads(parts) schedule(static, 1) if (parts > 1)
    for (int p = 0; p < parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(rows, 1, parts, p);
        float *to = (float *)out->data + r.first * stride;
        patches(&o, x->data, group, (dsc_cpu_range){first + r.first, r.count}, stride, to);
        for (int64_t row = 0; stride > o.width && row < r.count; row++)
            to[row * stride + o.width] = 1;
    }
    return DSC_OK;
}

/* dx += the patches' gradient of positions of one image. */
static void scatter(const own_conv *o, const float *from, int64_t group, dsc_cpu_range r,
                    const dsc_cpu_kernels *k, float *image) {
    for (int64_t row = r.first; row < r.first + r.count; row++, from += o->width) {
        int64_t top = row / o->ow * o->d.stride_h - o->d.pad_h,
                left = row % o->ow * o->d.stride_w - o->d.pad_w;
        for (int64_t tap = 0; tap < o->d.kh * o->d.kw; tap++) {
            int64_t h = top + tap / o->d.kw * o->d.dil_h, w = left + tap % o->d.kw * o->d.dil_w;
            float *to = image + (h * o->d.w + w) * o->d.c + group * o->cg;
            if (h >= 0 && h < o->d.h && w >= 0 && w < o->d.w)
                k->add(o->cg, to, from + tap * o->cg, to);
        }
    }
}

/* ---- passes ---- */

size_t dsc_own_conv_workspace(const dsc_conv *conv, dsc_conv_pass pass) {
    own_conv o = describe_conv(conv);
    int64_t patch = o.direct ? 0 : o.slab * o.width, weight = o.d.k * o.width;
    int64_t part = pass == DSC_CONV_BACKWARD_WEIGHT ? patch + weight : patch;
    return (size_t)(o.parts * part) * sizeof(float);
}

/* The patch matrix of a slab: where it starts, and its row length. */
static const float *slab_patches(const own_conv *o, const float *x, int64_t group, dsc_cpu_range r,
                                 float *space, int *stride) {
    *stride = (int)(o->direct ? o->d.c : o->width);
    if (o->direct)
        return x + r.first * o->d.c + group * o->cg;
    patches(o, x, group, r, o->width, space);
    return space;
}

static dsc_cpu_range slab_at(const own_conv *o, dsc_cpu_range part, int64_t at) {
    int64_t left = part.first + part.count - at;
    return (dsc_cpu_range){at, left < o->slab ? left : o->slab};
}

static void forward_part(const own_conv *o, dsc_cpu_range part, const float *x, const float *w, float *space,
                         float *y) {
    for (int64_t at = part.first; at < part.first + part.count; at += o->slab) {
        dsc_cpu_range r = slab_at(o, part, at);
        for (int64_t g = 0; g < o->d.groups; g++) {
            int stride;
            const float *p = slab_patches(o, x, g, r, space, &stride);
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)r.count, (int)o->kg, (int)o->width, 1,
                        p, stride, w + g * o->kg * o->width, (int)o->width, 0,
                        y + r.first * o->d.k + g * o->kg, (int)o->d.k);
        }
    }
}

dsc_status dsc_own_conv_forward(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x, const dsc_tensor *w,
                                const dsc_tensor *bias, dsc_tensor *work, dsc_tensor *y) {
    own_conv o = describe_conv(conv);
    int64_t space = o.direct ? 0 : o.slab * o.width;
#pragma omp parallel for num_threads(o.parts) schedule(static, 1) if (o.parts > 1)
    for (int p = 0; p < o.parts; p++)
        forward_part(&o, dsc_cpu_share(o.rows, 1, o.parts, p), x->data, w->data,
                     work ? (float *)work->data + p * space : NULL, y->data);
    if (bias)
        DSC_TRY(q->device->table->bias_add(q, bias, y));
    return DSC_OK;
}

/* Images [images.first, ...) of dx. */
static void data_part(const own_conv *o, dsc_cpu_range images, const float *w, const float *dy, double beta,
                      float *space, const dsc_cpu_kernels *k, float *dx) {
    int64_t places = o->oh * o->ow, size = o->d.h * o->d.w * o->d.c;
    for (int64_t image = images.first; image < images.first + images.count; image++) {
        float *to = dx + image * size;
        if (beta == 0 && !o->direct)
            memset(to, 0, (size_t)size * sizeof *to);
        for (int64_t at = 0; at < places; at += o->slab) {
            dsc_cpu_range r = slab_at(o, (dsc_cpu_range){0, places}, at);
            for (int64_t g = 0; g < o->d.groups; g++) {
                cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)r.count, (int)o->width,
                            (int)o->kg, 1, dy + (image * places + at) * o->d.k + g * o->kg, (int)o->d.k,
                            w + g * o->kg * o->width, (int)o->width, o->direct ? (float)beta : 0,
                            o->direct ? to + at * o->d.c + g * o->cg : space,
                            (int)(o->direct ? o->d.c : o->width));
                if (!o->direct)
                    scatter(o, space, g, r, k, to);
            }
        }
    }
}

dsc_status dsc_own_conv_backward_data(dsc_queue *q, dsc_conv *conv, const dsc_tensor *w, const dsc_tensor *dy,
                                      double beta, dsc_tensor *work, dsc_tensor *dx) {
    own_conv o = describe_conv(conv);
    int64_t space = o.direct ? 0 : o.slab * o.width;
#pragma omp parallel for num_threads(o.parts) schedule(static, 1) if (o.parts > 1)
    for (int p = 0; p < o.parts; p++)
        data_part(&o, dsc_cpu_share(o.d.n, 1, o.parts, p), w->data, dy->data, beta,
                  work ? (float *)work->data + p * space : NULL, dsc_cpu_kernels_of(q), dx->data);
    return DSC_OK;
}

static void weight_part(const own_conv *o, dsc_cpu_range part, const float *x, const float *dy, float *sum,
                        float *space) {
    memset(sum, 0, (size_t)(o->d.k * o->width) * sizeof *sum);
    for (int64_t at = part.first; at < part.first + part.count; at += o->slab) {
        dsc_cpu_range r = slab_at(o, part, at);
        for (int64_t g = 0; g < o->d.groups; g++) {
            int stride;
            const float *p = slab_patches(o, x, g, r, space, &stride);
            cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)o->kg, (int)o->width, (int)r.count, 1,
                        dy + r.first * o->d.k + g * o->kg, (int)o->d.k, p, stride, 1,
                        sum + g * o->kg * o->width, (int)o->width);
        }
    }
}

dsc_status dsc_own_conv_backward_weight(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x,
                                        const dsc_tensor *dy, double beta, dsc_tensor *work, dsc_tensor *dw) {
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    own_conv o = describe_conv(conv);
    int64_t weight = o.d.k * o.width, part = weight + (o.direct ? 0 : o.slab * o.width);
    float *space = work->data;
#pragma omp parallel for num_threads(o.parts) schedule(static, 1) if (o.parts > 1)
    for (int p = 0; p < o.parts; p++)
        weight_part(&o, dsc_cpu_share(o.rows, 1, o.parts, p), x->data, dy->data, space + p * part,
                    space + p * part + weight);
    for (int p = 0; p < o.parts; p++)
        k->axpby(weight, 1, space + p * part, p > 0 || beta != 0 ? 1 : 0, dw->data);
    return DSC_OK;
}
