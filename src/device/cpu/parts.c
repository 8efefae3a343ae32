/* Parts of feature maps, and upsampling by 2, on the cpu device; the formulas are in ops.h. */
#include "device/cpu/cpu.h"

#include "base/error.h"

#include <string.h>

/* ---- parts ---- */

static void move_run(const dsc_cpu_kernels *k, int64_t n, const float *from, int add, float *to) {
    if (add)
        dsc_cpu_add(k, n, to, from, to);
    else
        memcpy(to, from, (size_t)n * sizeof *to);
}

/* Copies the part to or from the whole, line by line. A line with all channels is one contiguous run. */
static dsc_status move_part(dsc_queue *q, const dsc_part_desc *desc, const dsc_tensor *part,
                            const dsc_tensor *whole, int paste, int add) {
    const dsc_cpu_kernels *kernels = dsc_cpu_kernels_of(q);
    int64_t h = part->dim[1], w = part->dim[2], c = part->dim[3];
    int64_t whole_h = whole->dim[1], whole_w = whole->dim[2], k = whole->dim[3];
    int64_t lines = part->dim[0] * h, runs = c == k ? 1 : w, length = c == k ? w * c : c;
    int parts = dsc_cpu_parts(q->device, dsc_tensor_count(part));
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int64_t line = 0; line < lines; line++) {
        int64_t row = line / h * whole_h + desc->top + line % h;
        float *own = (float *)part->data + line * w * c;
        float *outer = (float *)whole->data + (row * whole_w + desc->left) * k + desc->first;
        for (int64_t j = 0; j < runs; j++)
            move_run(kernels, length, paste ? own + j * c : outer + j * k, add,
                     paste ? outer + j * k : own + j * c);
    }
    return DSC_OK;
}

static dsc_status cut(dsc_queue *q, const dsc_part_desc *desc, const dsc_tensor *whole, double beta,
                      dsc_tensor *part) {
    return move_part(q, desc, part, whole, 0, beta != 0);
}

static dsc_status paste(dsc_queue *q, const dsc_part_desc *desc, const dsc_tensor *part, double beta,
                        dsc_tensor *whole) {
    return move_part(q, desc, part, whole, 1, beta != 0);
}

/* ---- upsampling ---- */

static const float near_share = (float)DSC_UPSAMPLE_NEAR, far_share = (float)DSC_UPSAMPLE_FAR;

/* y = near_share a + far_share b */
static void mix(int64_t n, const float *a, const float *b, float *y) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = near_share * a[i] + far_share * b[i];
}

/* Upsamples one line of w pixels to 2 w. */
static void widen(dsc_upsample_kind kind, int64_t w, int64_t c, const float *x, float *y) {
    for (int64_t j = 0; j < 2 * w; j++)
        if (kind == DSC_UPSAMPLE_NEAREST)
            memcpy(y + j * c, x + j / 2 * c, (size_t)c * sizeof *y);
        else
            mix(c, x + j / 2 * c, x + dsc_upsample_neighbour(j, w) * c, y + j * c);
}

/* `space` holds a line of x for every part. */
static dsc_status upsample_forward(dsc_queue *q, dsc_upsample_kind kind, const dsc_tensor *x, dsc_tensor *y) {
    int64_t h = x->dim[1], w = x->dim[2], c = x->dim[3], lines = y->dim[0] * 2 * h;
    int parts = dsc_cpu_parts(q->device, dsc_tensor_count(y));
    float *space;
    DSC_TRY(dsc_cpu_scratch(q, parts * w * c * (int64_t)sizeof *space, &space));
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++) {
        dsc_cpu_range range = dsc_cpu_share(lines, 1, parts, p);
        for (int64_t line = range.first; line < range.first + range.count; line++) {
            int64_t i = line % (2 * h);
            const float *image = (const float *)x->data + line / (2 * h) * h * w * c;
            const float *from = image + i / 2 * w * c;
            if (kind == DSC_UPSAMPLE_BILINEAR) {
                mix(w * c, from, image + dsc_upsample_neighbour(i, h) * w * c, space + p * w * c);
                from = space + p * w * c;
            }
            widen(kind, w, c, from, (float *)y->data + line * 2 * w * c);
        }
    }
    return DSC_OK;
}

/* The outputs to which input r of a line of `size` inputs contributes, in ascending order: 2 r and 2 r + 1 and, with
 * bilinear upsampling, the ones before and after these; at the border, the border output itself. */
typedef struct quad {
    int64_t at[4];
} quad;

static quad outputs_of(int64_t r, int64_t size) {
    return (quad){{r > 0 ? 2 * r - 1 : 0, 2 * r, 2 * r + 1, r + 1 < size ? 2 * r + 2 : 2 * r + 1}};
}

/* Sums what the outputs `t` contribute to the gradient of their input: y = the sum, or y + the sum if `add` is 1.
 * Output i is the n numbers at from + i step. */
static void collect(dsc_upsample_kind kind, int64_t n, const float *from, int64_t step, quad t, int add,
                    float *y) {
    const float *a = from + t.at[0] * step, *b = from + t.at[1] * step, *c = from + t.at[2] * step,
                *d = from + t.at[3] * step;
    if (kind == DSC_UPSAMPLE_NEAREST) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = (add ? y[i] : 0) + (b[i] + c[i]);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = (add ? y[i] : 0) + (near_share * (b[i] + c[i]) + far_share * (a[i] + d[i]));
    }
}

/* Each line of dx is gathered: first from rows of dy, into a line of 2 w pixels, then from the columns of that line. */
static dsc_status upsample_backward(dsc_queue *q, dsc_upsample_kind kind, const dsc_tensor *dy, double beta,
                                    dsc_tensor *dx) {
    int64_t h = dx->dim[1], w = dx->dim[2], c = dx->dim[3], lines = dx->dim[0] * h, width = 2 * w * c;
    int parts = dsc_cpu_parts(q->device, dsc_tensor_count(dy));
    float *space;
    DSC_TRY(dsc_cpu_scratch(q, parts * width * (int64_t)sizeof *space, &space));
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++) {
        dsc_cpu_range range = dsc_cpu_share(lines, 1, parts, p);
        float *sums = space + p * width;
        for (int64_t line = range.first; line < range.first + range.count; line++) {
            const float *image = (const float *)dy->data + line / h * 2 * h * width;
            collect(kind, width, image, width, outputs_of(line % h, h), 0, sums);
            for (int64_t s = 0; s < w; s++)
                collect(kind, c, sums, c, outputs_of(s, w), beta != 0,
                        (float *)dx->data + (line * w + s) * c);
        }
    }
    return DSC_OK;
}

void dsc_cpu_table_parts(dsc_device_table *table) {
    table->cut = cut;
    table->paste = paste;
    table->upsample_forward = upsample_forward;
    table->upsample_backward = upsample_backward;
}
