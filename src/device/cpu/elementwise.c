/* Element-wise operations and reductions on the cpu device: divided into parts, with one kernel call each. */
#include "device/cpu/cpu.h"

#include "base/error.h"

#include <string.h>

/* Parts begin at multiples of this many elements: whole cache lines, so that no two threads write to the same one. */
enum { UNIT = 64 };
/* The distance of the sums of two parts, in doubles, for the same reason. */
enum { APART = 8 };

static dsc_status fill(dsc_queue *q, double value, dsc_tensor *t) {
    if (t->dtype != DSC_F32)
        return dsc_ref_table.fill(q, value, t);
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    int64_t n = dsc_tensor_count(t);
    int parts = dsc_cpu_parts(q->device, n);
    float *y = t->data;
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(n, UNIT, parts, p);
        k->fill(r.count, (float)value, y + r.first);
    }
    return DSC_OK;
}

static void convert_range(const dsc_cpu_kernels *k, dsc_cpu_range r, const dsc_tensor *src, dsc_tensor *dst) {
    if (src->dtype == dst->dtype)
        memcpy((float *)dst->data + r.first, (const float *)src->data + r.first,
               (size_t)r.count * sizeof(float));
    else if (dst->dtype == DSC_BF16)
        k->to_bf16(r.count, (const float *)src->data + r.first, (uint16_t *)dst->data + r.first);
    else if (dst->dtype == DSC_F16)
        k->to_f16(r.count, (const float *)src->data + r.first, (uint16_t *)dst->data + r.first);
    else if (src->dtype == DSC_BF16)
        k->from_bf16(r.count, (const uint16_t *)src->data + r.first, (float *)dst->data + r.first);
    else
        k->from_f16(r.count, (const uint16_t *)src->data + r.first, (float *)dst->data + r.first);
}

/* Returns 1 for F32 to or from F32, BF16 and, if the hardware converts it, F16; ref does the others. */
static int convert_here(const dsc_cpu_kernels *k, dsc_dtype src, dsc_dtype dst) {
    if (src != DSC_F32 && dst != DSC_F32)
        return 0;
    dsc_dtype other = src == DSC_F32 ? dst : src;
    return other == DSC_F32 || other == DSC_BF16 || (other == DSC_F16 && k->to_f16);
}

static dsc_status convert(dsc_queue *q, const dsc_tensor *src, dsc_tensor *dst) {
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    if (!convert_here(k, src->dtype, dst->dtype))
        return dsc_ref_table.convert(q, src, dst);
    if (src->data == dst->data)
        return DSC_OK;
    int64_t n = dsc_tensor_count(src);
    int parts = dsc_cpu_parts(q->device, n);
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++)
        convert_range(k, dsc_cpu_share(n, UNIT, parts, p), src, dst);
    return DSC_OK;
}

static dsc_status map(dsc_queue *q, dsc_map map, const dsc_tensor *a, const dsc_tensor *b, double beta,
                      dsc_tensor *y) {
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    int64_t n = dsc_tensor_count(y);
    int parts = dsc_cpu_parts(q->device, n);
    const float *left = a->data, *right = b ? b->data : NULL;
    float *to = y->data;
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(n, UNIT, parts, p);
        k->map[map](r.count, left + r.first, right ? right + r.first : NULL, beta != 0, to + r.first);
    }
    return DSC_OK;
}

static dsc_status axpby(dsc_queue *q, double alpha, const dsc_tensor *x, double beta, dsc_tensor *y) {
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    int64_t n = dsc_tensor_count(y);
    int parts = dsc_cpu_parts(q->device, n);
    const float *from = x->data;
    float *to = y->data;
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(n, UNIT, parts, p);
        k->axpby(r.count, (float)alpha, from + r.first, (float)beta, to + r.first);
    }
    return DSC_OK;
}

static dsc_status blend(dsc_queue *q, const dsc_tensor *decay, const dsc_tensor *x, dsc_tensor *bad,
                        dsc_tensor *y) {
    double keep = *(const double *)decay->data, *flags = bad->data;
    if (!(flags[0] > 0))
        return axpby(q, 1 - keep, x, keep, y);
    flags[1] += 1;
    return DSC_OK;
}

static dsc_status scale_by(dsc_queue *q, const dsc_tensor *s, dsc_tensor *t) {
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    int64_t n = dsc_tensor_count(t);
    int parts = dsc_cpu_parts(q->device, n);
    float factor = (float)*(const double *)s->data;
    float *y = t->data;
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(n, UNIT, parts, p);
        k->scale(r.count, factor, y + r.first);
    }
    return DSC_OK;
}

static dsc_status dot(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *y, double beta, dsc_tensor *out) {
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    int64_t n = dsc_tensor_count(x);
    int parts = dsc_cpu_parts(q->device, n);
    const float *a = x->data, *b = y->data;
    double *sums;
    DSC_TRY(dsc_cpu_scratch(q, parts * APART * (int64_t)sizeof *sums, &sums));
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(n, UNIT, parts, p);
        sums[p * APART] = k->dot(r.count, a + r.first, b + r.first);
    }
    double *result = out->data;
    double sum = beta == 0 ? 0 : beta * *result;
    for (int p = 0; p < parts; p++)
        sum += sums[p * APART];
    *result = sum;
    return DSC_OK;
}

static dsc_status count_nonfinite(dsc_queue *q, const dsc_tensor *t, dsc_tensor *out) {
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    int64_t n = dsc_tensor_count(t), total = 0;
    int parts = dsc_cpu_parts(q->device, n);
    const float *x = t->data;
#pragma omp parallel for num_threads(parts) schedule(static, 1) reduction(+ : total)
    for (int p = 0; p < parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(n, UNIT, parts, p);
        total += k->nonfinite(r.count, x + r.first);
    }
    *(double *)out->data += (double)total;
    return DSC_OK;
}

static dsc_status bias_add(dsc_queue *q, const dsc_tensor *b, dsc_tensor *y) {
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    int64_t n = dsc_tensor_count(y), c = dsc_tensor_count(b), width = dsc_cpu_period(c);
    int parts = dsc_cpu_parts(q->device, n);
    float *wide, *to = y->data;
    DSC_TRY(dsc_cpu_scratch(q, width * (int64_t)sizeof *wide, &wide));
    dsc_cpu_repeat(c, width, b->data, wide);
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(n, width, parts, p);
        k->bias_add(r.count, width, wide, to + r.first);
    }
    return DSC_OK;
}

/* The scratch memory of a part: `width` double sums, followed by `width` floats for partial sums. */
static dsc_status bias_grad(dsc_queue *q, const dsc_tensor *dy, double beta, dsc_tensor *db) {
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    int64_t n = dsc_tensor_count(dy), c = dsc_tensor_count(db), width = dsc_cpu_period(c);
    int parts = dsc_cpu_parts(q->device, n);
    const float *from = dy->data;
    double *sums;
    DSC_TRY(dsc_cpu_scratch(q, 2 * parts * width * (int64_t)sizeof *sums, &sums));
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(n, width, parts, p);
        double *own = sums + 2 * p * width;
        memset(own, 0, (size_t)width * sizeof *own);
        k->column_sums(r.count, width, from + r.first, (void *)(own + width), own);
    }
    float *to = db->data;
    for (int64_t ch = 0; ch < c; ch++) {
        double sum = beta == 0 ? 0 : (double)to[ch];
        for (int p = 0; p < parts; p++)
            for (int64_t i = ch; i < width; i += c)
                sum += sums[2 * p * width + i];
        to[ch] = (float)sum;
    }
    return DSC_OK;
}

/* ---- NCHW to NHWC ---- */

/* The number of positions of an image that are written together: reads of one channel then use whole cache lines. */
enum { TURN_POSITIONS = 32 };

/* Transposes positions [first, last) of one image, to[p, c] = from[c, p], for one size of elements. */
#define TURN(name, type)                                                                                     \
    static void name(const type *from, int64_t c, int64_t positions, int64_t first, int64_t last,            \
                     type *to) {                                                                             \
        for (int64_t ch = 0; ch < c; ch++)                                                                   \
            for (int64_t p = first; p < last; p++)                                                           \
                to[p * c + ch] = from[ch * positions + p];                                                   \
    }
TURN(turn_2, uint16_t)
TURN(turn_4, uint32_t)
TURN(turn_8, uint64_t)
#undef TURN

static dsc_status nhwc_batch(dsc_queue *q, const dsc_nhwc_item *items, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const dsc_tensor *x = &items[i].x;
        int64_t c = x->dim[1], positions = x->dim[2] * x->dim[3], image = c * positions;
        int64_t pieces = (positions + TURN_POSITIONS - 1) / TURN_POSITIONS;
        size_t bytes = dsc_dtype_size(x->dtype);
        int parts = dsc_cpu_parts(q->device, dsc_tensor_count(x));
#pragma omp parallel for num_threads(parts) schedule(static)
        for (int64_t piece = 0; piece < x->dim[0] * pieces; piece++) {
            int64_t at = piece / pieces * image, first = piece % pieces * TURN_POSITIONS;
            int64_t last = first + TURN_POSITIONS < positions ? first + TURN_POSITIONS : positions;
            if (bytes == 2)
                turn_2((const uint16_t *)x->data + at, c, positions, first, last,
                       (uint16_t *)items[i].y.data + at);
            else if (bytes == 4)
                turn_4((const uint32_t *)x->data + at, c, positions, first, last,
                       (uint32_t *)items[i].y.data + at);
            else
                turn_8((const uint64_t *)x->data + at, c, positions, first, last,
                       (uint64_t *)items[i].y.data + at);
        }
    }
    return DSC_OK;
}

void dsc_cpu_table_elementwise(dsc_device_table *table) {
    table->fill = fill;
    table->convert = convert;
    table->map = map;
    table->axpby = axpby;
    table->blend = blend;
    table->scale_by = scale_by;
    table->dot = dot;
    table->count_nonfinite = count_nonfinite;
    table->bias_add = bias_add;
    table->bias_grad = bias_grad;
    table->nhwc_batch = nhwc_batch;
}
