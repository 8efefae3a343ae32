/* C = alpha P' P + beta C over the patches P of any convolution: slabs of patches (or, for a 1x1 convolution without
 * stride and padding, the rows of x as they are), and the symmetric product of each slab.
 *
 * If C is small, each thread sums over its own share of the positions, and then the sums are added in order, so that
 * results depend on the number of threads. If C is large, slabs are processed one after the other, and each thread
 * computes some rows of C. */
#include "device/cpu/gram.h"
#include "device/cpu/conv.h"

#include "base/error.h"
#include "base/memory.h"

#include <string.h>

enum { SLAB_FLOATS = 1 << 16, SLAB_LEAST = 64, TAIL_ROWS = DSC_GRAM_SLACK };

/* The number of flops below which starting threads would cost more than it saves. */
enum { FEW_FLOPS = 1 << 20 };

typedef struct plan {
    const dsc_gram_call *call;
    int64_t rows;   /* output positions */
    int64_t slab;   /* rows at a time */
    int64_t direct; /* the first rows, which are read from x itself */
    int64_t tail;   /* the rows after those, which are read from a copy of the end of x */
    int copied;     /* 1: patches are extracted, and direct and tail are 0 */
    int apart;      /* 1: each part has its own sum */
    int parts;
    int64_t sum, space; /* floats of a part's sum and slab */
} plan;

static plan make_plan(const dsc_gram_call *call) {
    const dsc_conv_desc *d = call->d;
    const dsc_conv2d_shape *s = &d->shape;
    plan p = {.call = call, .rows = d->n * call->oh * call->ow};
    p.copied = call->ones || s->kernel_h * s->kernel_w != 1 || s->stride_h != 1 || s->stride_w != 1 ||
               s->pad_h != 0 || s->pad_w != 0 || s->extra_h != 0 || s->extra_w != 0;
    p.slab = SLAB_FLOATS / (p.copied ? call->n : s->in_c);
    if (p.slab < SLAB_LEAST)
        p.slab = SLAB_LEAST;
    if (p.slab > DSC_GRAM_RUN)
        p.slab = DSC_GRAM_RUN;
    p.apart = call->n * call->n <= DSC_GRAM_PRIVATE;
    p.parts = p.rows * call->n * call->n < FEW_FLOPS ? 1 : call->threads;
    if (!p.copied && call->cg % DSC_GRAM_SLACK != 0) /* what is read past the last row must exist */
        p.tail = p.rows < TAIL_ROWS ? p.rows : TAIL_ROWS;
    p.direct = p.copied ? 0 : p.rows - p.tail;
    p.sum = p.apart ? call->n * call->n : 0;
    if (p.copied)
        p.space = p.slab * call->n + DSC_GRAM_SLACK;
    return p;
}

static int64_t tail_floats(const plan *p) {
    return p->tail > 0 ? p->tail * p->call->d->shape.in_c + DSC_GRAM_SLACK : 0;
}

static int64_t plan_bytes(const plan *p) {
    int64_t spaces = p->apart ? p->parts : 1;
    return (tail_floats(p) + spaces * (p->sum + p->space)) * (int64_t)sizeof(float);
}

/* Describes the symmetric product of the rows `r` of P; the caller sets where it goes (c, alpha). */
static dsc_cpu_gram product_of(const plan *p, dsc_cpu_range r, const float *tail, const float *space) {
    const dsc_gram_call *call = p->call;
    int64_t pitch = p->copied ? call->n : call->d->shape.in_c;
    const float *a = space;
    if (!p->copied && r.first < p->direct)
        a = call->x + r.first * pitch + call->group * call->cg;
    else if (!p->copied)
        a = tail + (r.first - p->direct) * pitch + call->group * call->cg;
    return (dsc_cpu_gram){.m = call->n,
                          .n = call->n,
                          .a = a,
                          .b = a,
                          .images = 1,
                          .lines = 1,
                          .pixels = r.count,
                          .pixel_pitch = pitch,
                          .c_row = call->n,
                          .lower = 1};
}

/* The slab from row `at` on, up to row `end` at most; it never spans both x and the copied tail. */
static dsc_cpu_range slab_at(const plan *p, int64_t at, int64_t end) {
    int64_t last = at + p->slab < end ? at + p->slab : end;
    if (at < p->direct && last > p->direct)
        last = p->direct;
    return (dsc_cpu_range){at, last - at};
}

static void form_patches(const plan *p, dsc_cpu_range r, float *space) {
    const dsc_gram_call *call = p->call;
    dsc_own_patch_rows(call->d, call->oh, call->ow, call->x, call->group, r, call->n, space);
}

/* Computes sum[n,n] over one part's rows. */
static void sum_part(const plan *p, dsc_cpu_range part, const float *tail, float *sum, float *space) {
    memset(sum, 0, (size_t)p->sum * sizeof *sum);
    dsc_cpu_range r = {part.first, 0};
    for (int64_t at = part.first; at < part.first + part.count; at += r.count) {
        r = slab_at(p, at, part.first + part.count);
        if (p->copied)
            form_patches(p, r, space);
        dsc_cpu_gram g = product_of(p, r, tail, space);
        g.c = sum;
        g.alpha = 1;
        for (int64_t i = 0; i < g.m; i += p->call->k->gram_rows)
            p->call->k->gram_strip(&g, i);
    }
}

static void gram_apart(const plan *p, const float *tail, float *sums, float *spaces) {
    const dsc_gram_call *call = p->call;
    int64_t n = call->n;
#pragma omp parallel for num_threads(p->parts) schedule(static, 1)
    for (int part = 0; part < p->parts; part++)
        sum_part(p, dsc_cpu_share(p->rows, 8, p->parts, part), tail, sums + part * p->sum,
                 spaces + part * p->space);
#pragma omp parallel for num_threads(p->parts) schedule(static, 8)
    for (int64_t i = 0; i < n; i++) {
        for (int part = 1; part < p->parts; part++)
            dsc_cpu_add(call->k, i + 1, sums + i * n, sums + part * p->sum + i * n, sums + i * n);
        call->k->axpby(i + 1, call->alpha, sums + i * n, call->beta, call->c + i * n);
    }
}

/* Adds products directly to C. */
static void gram_by_rows(const plan *p, const float *tail, float *space) {
    const dsc_gram_call *call = p->call;
    const dsc_cpu_kernels *k = call->k;
    int64_t n = call->n, strips = (n + k->gram_rows - 1) / k->gram_rows;
    for (int64_t i = 0; i < n && call->beta != 1; i++)
        if (call->beta == 0)
            k->fill(i + 1, 0, call->c + i * n);
        else
            k->scale(i + 1, call->beta, call->c + i * n);
    dsc_cpu_range r = {0, 0};
    for (int64_t at = 0; at < p->rows; at += r.count) {
        r = slab_at(p, at, p->rows);
#pragma omp parallel for num_threads(p->parts) schedule(static, 1)
        for (int part = 0; part < p->parts; part++) {
            dsc_cpu_range own = dsc_cpu_share(r.count, 1, p->parts, part);
            if (p->copied)
                form_patches(p, (dsc_cpu_range){r.first + own.first, own.count}, space + own.first * n);
        }
        dsc_cpu_gram g = product_of(p, r, tail, space);
        g.c = call->c;
        g.alpha = call->alpha;
#pragma omp parallel for num_threads(p->parts) schedule(static, 1)
        for (int64_t strip = strips - 1; strip >= 0; strip--)
            k->gram_strip(&g, strip * k->gram_rows);
    }
}

static void gram_rows(const dsc_gram_call *call, void *work) {
    plan p = make_plan(call);
    int64_t tail_first = p.direct * call->d->shape.in_c, parts = p.apart ? p.parts : 1;
    float *tail = work, *sums = tail + tail_floats(&p), *spaces = sums + parts * p.sum;
    memset(work, 0, (size_t)tail_floats(&p) * sizeof *tail);
    if (p.tail > 0)
        memcpy(tail, call->x + tail_first, (size_t)(p.tail * call->d->shape.in_c) * sizeof *tail);
    for (int64_t part = 0; p.copied && part < parts; part++)
        memset(spaces + (part + 1) * p.space - DSC_GRAM_SLACK, 0, DSC_GRAM_SLACK * sizeof *spaces);
    if (p.apart)
        gram_apart(&p, tail, sums, spaces);
    else
        gram_by_rows(&p, tail, spaces);
}

/* ---- the operations ---- */

static dsc_status describe(const dsc_device *device, const dsc_conv_desc *desc, int ones,
                           dsc_gram_call *call) {
    const dsc_conv2d_shape *s = &desc->shape;
    *call = (dsc_gram_call){.d = desc, .cg = s->in_c / s->groups, .ones = ones, .threads = device->threads};
    call->k = ((const dsc_cpu *)device->state)->kernels;
    call->n = s->kernel_h * s->kernel_w * call->cg + (ones ? 1 : 0);
    DSC_TRY(dsc_conv_output(desc, &call->oh, &call->ow));
    return DSC_OK;
}

static size_t patch_gram_workspace(dsc_device *device, const dsc_conv_desc *desc, int ones) {
    dsc_gram_call call;
    if (describe(device, desc, ones, &call) != DSC_OK)
        return 0;
    if (dsc_gram_can_shift(&call))
        return (size_t)dsc_gram_shift_bytes(&call) + DSC_ALIGNMENT;
    plan p = make_plan(&call);
    return (size_t)plan_bytes(&p) + DSC_ALIGNMENT;
}

static dsc_status patch_gram(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x, int64_t group,
                             double alpha, double beta, dsc_tensor *work, dsc_tensor *c) {
    const dsc_conv2d_shape *s = &desc->shape;
    dsc_gram_call call;
    int ones = c->dim[0] > s->kernel_h * s->kernel_w * (s->in_c / s->groups);
    DSC_TRY(describe(q->device, desc, ones, &call));
    call.x = x->data;
    call.group = group;
    call.alpha = (float)alpha;
    call.beta = (float)beta;
    call.c = c->data;
    char *space = work->data;
    space += (DSC_ALIGNMENT - (uintptr_t)space % DSC_ALIGNMENT) % DSC_ALIGNMENT;
    if (dsc_gram_can_shift(&call))
        dsc_gram_shift(&call, space);
    else
        gram_rows(&call, space);
    return DSC_OK;
}

void dsc_cpu_table_gram(dsc_device_table *table) {
    table->patch_gram_workspace = patch_gram_workspace;
    table->patch_gram = patch_gram;
}
