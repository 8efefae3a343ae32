/* Our own convolution: extracts the patches of a slab of output positions (im2col), small enough for the cache, and
 * computes one matrix product per slab and group. Threads share the slabs.
 *
 *   P[rows, width]: the input under each output position, width = kh kw cg (cg = c/groups, kg = k/groups)
 *   forward           Y[rows, kg]    = P W'
 *   backward, weight  dW'[width, kg] = P' dY, summed per thread, then over the threads in order
 *   backward, data    with stride 1, a convolution of dy with the flipped weights; else
 *                     dP[rows, width] = dY W, added to dx at the place of each patch: one thread computes an image
 *
 * A 1x1 convolution without stride and padding is its own patch matrix. */
#include "device/cpu/conv.h"
#include "device/cpu/gemm.h"

#include "base/error.h"
#include "base/memory.h"

#include <string.h>

/* The floats of a slab of patches, the unit of its number of rows (that of the tiles of a product), and the fewest
 * rows. */
enum { SLAB_FLOATS = 1 << 16, SLAB_UNIT = 12, SLAB_LEAST = 48 };

typedef struct own_conv {
    dsc_conv2d_shape s;
    int64_t n, oh, ow, cg, kg;
    int64_t width;   /* of a patch */
    int64_t rows;    /* output positions: n oh ow */
    int64_t slab;    /* rows at a time */
    int64_t patch;   /* floats of a slab's patches; 0: x itself is the patch matrix */
    int64_t weights; /* floats of w */
    int parts;
} own_conv;

static own_conv describe(const dsc_conv2d_shape *s, int64_t n, int64_t oh, int64_t ow, int threads) {
    own_conv o = {.s = *s, .n = n, .oh = oh, .ow = ow, .cg = s->in_c / s->groups, .kg = s->out_c / s->groups};
    o.width = s->kernel_h * s->kernel_w * o.cg;
    o.rows = n * oh * ow;
    o.slab = SLAB_FLOATS / o.width / SLAB_UNIT * SLAB_UNIT;
    if (o.slab < SLAB_LEAST)
        o.slab = SLAB_LEAST;
    int direct = s->kernel_h == 1 && s->kernel_w == 1 && s->stride_h == 1 && s->stride_w == 1 &&
                 s->pad_h == 0 && s->pad_w == 0;
    o.patch = direct ? 0 : o.slab * o.width;
    o.weights = s->out_c * o.width;
    o.parts = o.rows * o.width * o.kg < 65536 ? 1 : threads;
    return o;
}

static own_conv describe_conv(const dsc_conv *conv) {
    return describe(&conv->desc.shape, conv->desc.n, conv->oh, conv->ow, conv->device->threads);
}

/* Returns 1 if the gradient of the input can be computed as a convolution. */
static int can_turn(const dsc_conv2d_shape *s) {
    return s->stride_h == 1 && s->stride_w == 1 && s->dilation_h * (s->kernel_h - 1) >= s->pad_h &&
           s->dilation_w * (s->kernel_w - 1) >= s->pad_w;
}

/* Describes that convolution, from dy to dx. */
static own_conv describe_turned(const dsc_conv *conv) {
    const dsc_conv2d_shape *from = &conv->desc.shape;
    dsc_conv2d_shape s = *from;
    s.in_h = conv->oh;
    s.in_w = conv->ow;
    s.in_c = from->out_c;
    s.out_c = from->in_c;
    s.pad_h = s.dilation_h * (s.kernel_h - 1) - s.pad_h;
    s.pad_w = s.dilation_w * (s.kernel_w - 1) - s.pad_w;
    return describe(&s, conv->desc.n, from->in_h, from->in_w, conv->device->threads);
}

/* ---- patches ---- */

/* Extracts one row of a patch: kw taps of cg channels from line `x` of the input (w pixels); zero outside. */
static void patch_line(const own_conv *o, const float *x, int64_t left, float *to) {
    int64_t step = o->s.dilation_w, c = o->s.in_c, cg = o->cg;
    for (int64_t s = 0; s < o->s.kernel_w; s++) {
        int64_t column = left + s * step;
        if (column >= 0 && column < o->s.in_w)
            memcpy(to + s * cg, x + column * c, (size_t)cg * sizeof *to);
        else
            memset(to + s * cg, 0, (size_t)cg * sizeof *to);
    }
}

/* The same if the taps are contiguous in memory. */
static void patch_run(const own_conv *o, const float *x, int64_t left, float *to) {
    int64_t c = o->s.in_c, first = left < 0 ? -left : 0;
    int64_t last = left + o->s.kernel_w > o->s.in_w ? o->s.in_w - left : o->s.kernel_w;
    if (first > 0)
        memset(to, 0, (size_t)((first < o->s.kernel_w ? first : o->s.kernel_w) * c) * sizeof *to);
    if (first < last)
        memcpy(to + first * c, x + (left + first) * c, (size_t)((last - first) * c) * sizeof *to);
    if (last < o->s.kernel_w)
        memset(to + (last > 0 ? last : 0) * c, 0,
               (size_t)((o->s.kernel_w - (last > 0 ? last : 0)) * c) * sizeof *to);
}

/* Extracts the patches of positions [r.first, r.first + r.count), `stride` floats from one to the next. */
static void patches(const own_conv *o, const float *x, int64_t group, dsc_cpu_range r, int64_t stride,
                    float *out) {
    int neighbours = o->s.groups == 1 && o->s.dilation_w == 1;
    int64_t line = o->s.kernel_w * o->cg;
    for (int64_t row = r.first; row < r.first + r.count; row++, out += stride) {
        int64_t image = row / (o->oh * o->ow), i = row / o->ow % o->oh, j = row % o->ow;
        int64_t top = i * o->s.stride_h - o->s.pad_h, left = j * o->s.stride_w - o->s.pad_w;
        for (int64_t t = 0; t < o->s.kernel_h; t++) {
            int64_t h = top + t * o->s.dilation_h;
            float *to = out + t * line;
            const float *from = x + (image * o->s.in_h + h) * o->s.in_w * o->s.in_c + group * o->cg;
            if (h < 0 || h >= o->s.in_h)
                memset(to, 0, (size_t)line * sizeof *to);
            else if (neighbours)
                patch_run(o, from, left, to);
            else
                patch_line(o, from, left, to);
        }
    }
}

void dsc_own_patch_rows(const dsc_conv_desc *desc, int64_t oh, int64_t ow, const float *x, int64_t group,
                        dsc_cpu_range rows, int64_t stride, float *out) {
    own_conv o = describe(&desc->shape, desc->n, oh, ow, 1);
    patches(&o, x, group, rows, stride, out);
    for (int64_t row = 0; stride > o.width && row < rows.count; row++)
        out[row * stride + o.width] = 1;
}

dsc_status dsc_own_patches(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x, int64_t group,
                           int64_t first, dsc_tensor *out) {
    int64_t oh = 0, ow = 0, rows = out->dim[0], stride = out->dim[1];
    DSC_TRY(dsc_conv_output(desc, &oh, &ow));
    int parts = dsc_cpu_parts(q->device, rows * stride);
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(rows, 1, parts, p);
        dsc_own_patch_rows(desc, oh, ow, x->data, group, (dsc_cpu_range){first + r.first, r.count}, stride,
                           (float *)out->data + r.first * stride);
    }
    return DSC_OK;
}

/* dx += the gradients `from` of the patches at positions r of one image (col2im). */
static void scatter(const own_conv *o, const float *from, int64_t group, dsc_cpu_range r,
                    const dsc_cpu_kernels *k, float *image) {
    for (int64_t row = r.first; row < r.first + r.count; row++, from += o->width) {
        int64_t top = row / o->ow * o->s.stride_h - o->s.pad_h;
        int64_t left = row % o->ow * o->s.stride_w - o->s.pad_w;
        for (int64_t tap = 0; tap < o->s.kernel_h * o->s.kernel_w; tap++) {
            int64_t h = top + tap / o->s.kernel_w * o->s.dilation_h,
                    w = left + tap % o->s.kernel_w * o->s.dilation_w;
            float *to = image + (h * o->s.in_w + w) * o->s.in_c + group * o->cg;
            if (h >= 0 && h < o->s.in_h && w >= 0 && w < o->s.in_w)
                dsc_cpu_add(k, o->cg, to, from + tap * o->cg, to);
        }
    }
}

/* ---- the order of weights ---- */

/* turned[g][width][kg] = w[g][kg][width]. */
static void transpose_weights(const own_conv *o, const float *w, float *turned) {
#pragma omp parallel for num_threads(o->parts) schedule(static)
    for (int64_t row = 0; row < o->s.groups * o->width; row++) {
        int64_t g = row / o->width, p = row % o->width;
        for (int64_t j = 0; j < o->kg; j++)
            turned[row * o->kg + j] = w[(g * o->kg + j) * o->width + p];
    }
}

/* turned[g][kh][kw][kg][cg] = w[g][kg][kh - 1 - .][kw - 1 - .][cg]. */
static void flip_weights(const own_conv *o, const float *w, float *turned) {
    int64_t taps = o->s.kernel_h * o->s.kernel_w, rows = o->s.groups * taps * o->kg;
#pragma omp parallel for num_threads(o->parts) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        int64_t j = row % o->kg, tap = row / o->kg % taps, g = row / (o->kg * taps);
        memcpy(turned + row * o->cg, w + (g * o->kg + j) * o->width + (taps - 1 - tap) * o->cg,
               (size_t)o->cg * sizeof *w);
    }
}

/* ---- passes ---- */

/* The workspace begins with the transposed or flipped weights, followed by the space of each part. */
size_t dsc_own_conv_workspace(const dsc_conv *conv, dsc_conv_pass pass) {
    own_conv o = describe_conv(conv);
    if (pass == DSC_CONV_BACKWARD_DATA && can_turn(&o.s))
        o = describe_turned(conv);
    int64_t part = pass == DSC_CONV_BACKWARD_WEIGHT ? o.patch + o.weights : o.patch;
    int64_t shared = pass == DSC_CONV_BACKWARD_WEIGHT ? 0 : o.weights;
    return (size_t)(shared + o.parts * part) * sizeof(float);
}

/* Returns the patch matrix of a slab; *stride is the distance of its rows. */
static const float *slab_patches(const own_conv *o, const float *x, int64_t group, dsc_cpu_range r,
                                 float *space, int64_t *stride) {
    *stride = o->patch ? o->width : o->s.in_c;
    if (!o->patch)
        return x + r.first * o->s.in_c + group * o->cg;
    patches(o, x, group, r, o->width, space);
    return space;
}

static dsc_cpu_range slab_at(const own_conv *o, dsc_cpu_range part, int64_t at) {
    int64_t left = part.first + part.count - at;
    return (dsc_cpu_range){at, left < o->slab ? left : o->slab};
}

/* y = beta y + P W' for one part; w: the transposed weights. */
static void forward_part(const own_conv *o, dsc_cpu_range part, const dsc_cpu_kernels *k, const float *x,
                         const float *w, float beta, float *space, float *y) {
    for (int64_t at = part.first; at < part.first + part.count; at += o->slab) {
        dsc_cpu_range r = slab_at(o, part, at);
        for (int64_t g = 0; g < o->s.groups; g++) {
            dsc_cpu_gemm call = {.m = r.count,
                                 .n = o->kg,
                                 .k = o->width,
                                 .a_column = 1,
                                 .b = w + g * o->width * o->kg,
                                 .b_row = o->kg,
                                 .b_column = 1,
                                 .c = y + r.first * o->s.out_c + g * o->kg,
                                 .c_row = o->s.out_c,
                                 .alpha = 1,
                                 .beta = beta};
            call.a = slab_patches(o, x, g, r, space, &call.a_row);
            dsc_own_gemm_one(k, &call);
        }
    }
}

static void forward_parts(const own_conv *o, const dsc_cpu_kernels *k, const float *x, const float *w,
                          float beta, float *space, float *y) {
#pragma omp parallel for num_threads(o->parts) schedule(static, 1)
    for (int p = 0; p < o->parts; p++)
        forward_part(o, dsc_cpu_share(o->rows, SLAB_UNIT, o->parts, p), k, x, w, beta, space + p * o->patch,
                     y);
}

dsc_status dsc_own_conv_forward(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x, const dsc_tensor *w,
                                const dsc_tensor *bias, dsc_tensor *work, dsc_tensor *y) {
    own_conv o = describe_conv(conv);
    float *turned = work->data;
    transpose_weights(&o, w->data, turned);
    forward_parts(&o, dsc_cpu_kernels_of(q), x->data, turned, 0, turned + o.weights, y->data);
    if (bias)
        DSC_TRY(q->device->table->bias_add(q, bias, y));
    return DSC_OK;
}

/* Computes one image of dx for strides other than 1. */
static void data_image(const own_conv *o, const dsc_cpu_kernels *k, const float *w, const float *dy,
                       float *space, float *dx) {
    dsc_cpu_range places = {0, o->oh * o->ow};
    for (int64_t at = 0; at < places.count; at += o->slab) {
        dsc_cpu_range r = slab_at(o, places, at);
        for (int64_t g = 0; g < o->s.groups; g++) {
            dsc_cpu_gemm call = {.m = r.count,
                                 .n = o->width,
                                 .k = o->kg,
                                 .a = dy + at * o->s.out_c + g * o->kg,
                                 .a_row = o->s.out_c,
                                 .a_column = 1,
                                 .b = w + g * o->kg * o->width,
                                 .b_row = o->width,
                                 .b_column = 1,
                                 .c = space,
                                 .c_row = o->width,
                                 .alpha = 1};
            dsc_own_gemm_one(k, &call);
            scatter(o, space, g, r, k, dx);
        }
    }
}

dsc_status dsc_own_conv_backward_data(dsc_queue *q, dsc_conv *conv, const dsc_tensor *w, const dsc_tensor *dy,
                                      double beta, dsc_tensor *work, dsc_tensor *dx) {
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    own_conv o = describe_conv(conv);
    float *space = work->data;
    if (can_turn(&o.s)) {
        own_conv turned = describe_turned(conv);
        flip_weights(&o, w->data, space);
        forward_parts(&turned, k, dy->data, space, (float)beta, space + o.weights, dx->data);
        return DSC_OK;
    }
    int64_t size = o.s.in_h * o.s.in_w * o.s.in_c, places = o.oh * o.ow * o.s.out_c;
#pragma omp parallel for num_threads(o.parts) schedule(static, 1)
    for (int p = 0; p < o.parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(o.n, 1, o.parts, p);
        for (int64_t n = r.first; n < r.first + r.count; n++) {
            float *image = (float *)dx->data + n * size;
            if (beta == 0)
                memset(image, 0, (size_t)size * sizeof *image);
            data_image(&o, k, w->data, (const float *)dy->data + n * places, space + p * o.patch, image);
        }
    }
    return DSC_OK;
}

/* Computes sum[g][width][kg] for one part. */
static void weight_part(const own_conv *o, dsc_cpu_range part, const dsc_cpu_kernels *k, const float *x,
                        const float *dy, float *sum, float *space) {
    memset(sum, 0, (size_t)o->weights * sizeof *sum);
    for (int64_t at = part.first; at < part.first + part.count; at += o->slab) {
        dsc_cpu_range r = slab_at(o, part, at);
        for (int64_t g = 0; g < o->s.groups; g++) {
            dsc_cpu_gemm call = {.m = o->width,
                                 .n = o->kg,
                                 .k = r.count,
                                 .a_row = 1,
                                 .b = dy + r.first * o->s.out_c + g * o->kg,
                                 .b_row = o->s.out_c,
                                 .b_column = 1,
                                 .c = sum + g * o->width * o->kg,
                                 .c_row = o->kg,
                                 .alpha = 1,
                                 .beta = 1};
            call.a = slab_patches(o, x, g, r, space, &call.a_column);
            dsc_own_gemm_one(k, &call);
        }
    }
}

dsc_status dsc_own_conv_backward_weight(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x,
                                        const dsc_tensor *dy, double beta, dsc_tensor *work, dsc_tensor *dw) {
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    own_conv o = describe_conv(conv);
    int64_t part = o.patch + o.weights;
    float *space = work->data, *to = dw->data;
#pragma omp parallel for num_threads(o.parts) schedule(static, 1)
    for (int p = 0; p < o.parts; p++)
        weight_part(&o, dsc_cpu_share(o.rows, SLAB_UNIT, o.parts, p), k, x->data, dy->data, space + p * part,
                    space + p * part + o.weights);
#pragma omp parallel for num_threads(o.parts) schedule(static)
    for (int64_t row = 0; row < o.s.out_c; row++) {
        for (int64_t i = 0; i < o.width; i++) {
            int64_t at = (row / o.kg * o.width + i) * o.kg + row % o.kg;
            float sum = space[at];
            for (int p = 1; p < o.parts; p++)
                sum += space[p * part + at];
            to[row * o.width + i] = beta == 0 ? sum : to[row * o.width + i] + sum;
        }
    }
    return DSC_OK;
}
