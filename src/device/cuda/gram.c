/* Factors: Gram matrices of patches. This file has the operations and plans; the kernels are in gram.cu (any
 * convolution), gram_shift.cu (3x3 convolutions with stride 1 and padding 1) and halves.c (many wide rows). */
#include "device/cuda/entries.h"
#include "device/cuda/gram_kernels.h"
#include "device/cuda/halves.h"

#include "base/hash.h"

#include <string.h>

/* The most bytes of partial sums, and the most rows that one sum in float may cover: more would lose digits. */
enum { PARTIAL_BYTES = 64 << 20, SUM_ROWS = 1 << 16 };

/* Plans fill the multiprocessors with blocks at most this many times. */
enum { WAVES_MOST = 8 };

static int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* ---- the patches ---- */

/* Returns 1 if the patches are the pixels themselves. */
static int is_plain(const dsc_conv_desc *d) {
    const dsc_conv2d_shape *s = &d->shape;
    return s->kernel_h == 1 && s->kernel_w == 1 && s->stride_h == 1 && s->stride_w == 1 && s->pad_h == 0 &&
           s->pad_w == 0 && s->extra_h == 0 && s->extra_w == 0;
}

static dsc_status describe(const dsc_conv_desc *d, int64_t group, int ones, const void *x,
                           dsc_gram_patches *p) {
    const dsc_conv2d_shape *s = &d->shape;
    int64_t oh = 0, ow = 0;
    DSC_TRY(dsc_conv_output(d, &oh, &ow));
    memset(p, 0, sizeof *p);
    p->x = x;
    p->dtype = d->dtype;
    p->c = s->in_c;
    p->cg = s->in_c / s->groups;
    p->first = group * p->cg;
    p->rows = d->n * oh * ow;
    p->width = s->kernel_h * s->kernel_w * p->cg;
    p->n = p->width + (ones ? 1 : 0);
    p->kw = (int)s->kernel_w;
    p->stride_h = (int)s->stride_h;
    p->stride_w = (int)s->stride_w;
    p->pad_h = (int)s->pad_h;
    p->pad_w = (int)s->pad_w;
    p->dil_h = (int)s->dilation_h;
    p->dil_w = (int)s->dilation_w;
    p->images = is_plain(d) ? p->rows : d->n;
    p->h = is_plain(d) ? 1 : (int)s->in_h;
    p->w = is_plain(d) ? 1 : (int)s->in_w;
    p->oh = is_plain(d) ? 1 : (int)oh;
    p->ow = is_plain(d) ? 1 : (int)ow;
    return DSC_OK;
}

/* Returns 1 if four channels can be read at once. */
static int can_vector(const dsc_gram_patches *p) {
    size_t bytes = 4 * dsc_dtype_size(p->dtype);
    return p->c % 4 == 0 && p->cg % 4 == 0 && (uintptr_t)p->x % bytes == 0;
}

/* ---- splits ---- */

/* A cost model. Approximate microseconds for a stage of a block (stage_us; the blocks of a multiprocessor share it),
 * for a block's start and end, and for writing and reading a megabyte of partial sums. */
static const double START_US = 2.0, MEGABYTE_US = 0.5;

static double stage_us(int tile) {
    return tile == 128 ? 2.0 : tile == 64 ? 2.0 : tile == 32 ? 1.0 : 0.5;
}

static double split_us(const dsc_gram_plan *plan, int64_t stages, int64_t splits, int64_t places) {
    int64_t waves = divide_up(plan->tiles * splits, places);
    double megabytes = splits > 1 ? (double)(splits * plan->tiles * plan->tile * plan->tile) * 4e-6 : 0;
    return (double)waves * ((double)divide_up(stages, splits) * stage_us(plan->tile) + START_US) +
           megabytes * MEGABYTE_US;
}

/* Returns the best number of splits by the cost model, among those that fill the multiprocessors 1/4, 1/2, 1, 2 ...
 * times. */
static int64_t choose_splits(const dsc_gram_plan *plan, int64_t stages, int64_t places, int64_t least,
                             int64_t most) {
    int64_t best = least;
    for (int64_t quarters = 1; quarters <= 4 * WAVES_MOST; quarters += quarters < 4 ? quarters : 4) {
        int64_t s = quarters * places / (4 * plan->tiles);
        s = s < least ? least : s > most ? most : s;
        s = divide_up(stages, divide_up(stages, s));
        if (split_us(plan, stages, s, places) < split_us(plan, stages, best, places))
            best = s;
    }
    return best;
}

/* `bytes`: the room for partial sums. */
static dsc_gram_plan make_plan(const dsc_gram_patches *p, const dsc_cuda *cuda, size_t bytes) {
    dsc_gram_plan plan = {.tile = p->n <= 16 ? 16 : p->n <= 32 ? 32 : p->n <= 192 ? 64 : 128, .splits = 1};
    plan.stages = dsc_cuda_gram_shared(p->dtype, plan.tile, 3) <= cuda->shared ? 3 : 2;
    int64_t side = divide_up(p->n, plan.tile), unit = dsc_cuda_gram_stage_rows(plan.tile);
    plan.tiles = side * (side + 1) / 2;
    plan.chunk = unit;
    if (p->rows == 0)
        return plan;
    int64_t stages = divide_up(p->rows, unit),
            places = (plan.tile == 128 ? 1 : 2) * (int64_t)cuda->multiprocessors;
    int64_t one = plan.tiles * plan.tile * plan.tile * (int64_t)sizeof(float), most = (int64_t)bytes / one;
    most = most < 1 ? 1 : most < stages ? most : stages;
    int64_t least = divide_up(p->rows, SUM_ROWS);
    least = least < most ? least : most;
    plan.chunk = divide_up(stages, choose_splits(&plan, stages, places, least, most)) * unit;
    plan.splits = divide_up(p->rows, plan.chunk);
    return plan;
}

static size_t plan_bytes(const dsc_gram_plan *plan) {
    if (plan->splits == 1)
        return 0;
    return (size_t)(plan->splits * plan->tiles * plan->tile * plan->tile) * sizeof(float);
}

/* ---- 3x3 convolutions with stride 1 and padding 1 ---- */

/* The most columns of a line at a time, the most parts of the border, and the parts of the sums of x for a column of
 * ones; the bytes of shared memory that a block needs besides what it asks for. */
enum { COLUMNS_MOST = 16, BORDER_MOST = 8, ONE_PARTS = 64, RESERVED_SHARED = 1024 };

/* Approximate microseconds for one column of DSC_GRAM_LINES lines, and for one column of the border. */
static const double COLUMN_US = 0.6, BORDER_COLUMN_US = 0.2;

static int64_t pairs_of(const dsc_gram_patches *p) {
    int64_t side = p->cg / DSC_GRAM_CHANNELS;
    return side * side;
}

static int64_t shift_floats(const dsc_gram_patches *p, int64_t parts, int64_t border) {
    return (parts * DSC_GRAM_MAIN + border * DSC_GRAM_BORDER) * p->cg * p->cg;
}

static int can_shift(const dsc_gram_patches *p, const dsc_cuda *cuda) {
    return p->dtype != DSC_F64 && p->width == DSC_GRAM_TAPS * p->cg && p->kw == 3 && p->stride_h == 1 &&
           p->stride_w == 1 && p->pad_h == 1 && p->pad_w == 1 && p->dil_h == 1 && p->dil_w == 1 &&
           p->oh == p->h && p->ow == p->w && p->h >= 2 && p->w >= 2 && p->cg % DSC_GRAM_CHANNELS == 0 &&
           p->c % 4 == 0 && shift_floats(p, 1, 1) * (int64_t)sizeof(float) <= PARTIAL_BYTES &&
           dsc_cuda_gram_shift_shared(p->dtype, 1, (int)pairs_of(p)) <= cuda->shared;
}

static double shift_us(const dsc_gram_patches *p, const dsc_gram_shift_plan *plan, int places) {
    int64_t pairs = pairs_of(p), blocks = pairs * (plan->parts + plan->border);
    int64_t stages = divide_up(plan->groups * plan->chunks, plan->parts);
    int64_t border_stages = divide_up(plan->frames * plan->chunks, plan->border);
    double megabytes = (double)shift_floats(p, plan->parts, plan->border) * 4e-6;
    double main = (double)(stages * plan->columns) * COLUMN_US + START_US;
    double border = (double)(border_stages * plan->columns) * BORDER_COLUMN_US + START_US;
    double last = (double)(pairs * plan->border) * border / places;
    double us = (double)divide_up(pairs * plan->parts, places) * main + (last > border ? last : border);
    if (blocks <= places)
        us = main > border ? main : border;
    return us + megabytes * MEGABYTE_US;
}

/* Chooses the numbers of parts that are fastest by the cost model, among those that fill the multiprocessors 1, 2 ...
 * times; sums in float may not become too long. */
static void choose_parts(const dsc_gram_patches *p, int places, dsc_gram_shift_plan *plan) {
    int64_t least = divide_up(p->rows, 4 * (int64_t)SUM_ROWS), pairs = pairs_of(p);
    int64_t stages = plan->groups * plan->chunks;
    double best = 0;
    dsc_gram_shift_plan next = *plan;
    for (next.border = 1; next.border <= BORDER_MOST && next.border <= plan->frames; next.border *= 2) {
        int64_t space = PARTIAL_BYTES / ((int64_t)sizeof(float) * p->cg * p->cg);
        int64_t most = (space - next.border * DSC_GRAM_BORDER) / DSC_GRAM_MAIN;
        most = most < 1 ? 1 : most < stages ? most : stages;
        for (int64_t waves = 1; waves <= WAVES_MOST; waves++) {
            int64_t parts = waves * places / pairs - (waves == 1 ? next.border : 0);
            parts = parts < least ? least : parts;
            parts = parts < 1 ? 1 : parts > most ? most : parts;
            next.parts = (int)divide_up(stages, divide_up(stages, parts));
            double us = shift_us(p, &next, places);
            if (plan->parts == 0 || us < best) {
                *plan = next;
                best = us;
            }
        }
    }
}

static dsc_gram_shift_plan plan_shift(const dsc_gram_patches *p, const dsc_cuda *cuda) {
    dsc_gram_shift_plan plan = {.groups = divide_up(p->images * p->h, DSC_GRAM_LINES),
                                .frames = divide_up(p->images, DSC_GRAM_IMAGES)};
    for (int columns = p->w < COLUMNS_MOST ? p->w : COLUMNS_MOST; columns >= 1; columns--) {
        plan.chunks = (int)divide_up(p->w, columns);
        plan.columns = (int)divide_up(p->w, plan.chunks);
        plan.shared = dsc_cuda_gram_shift_shared(p->dtype, plan.columns, (int)pairs_of(p));
        if (plan.shared <= cuda->shared / DSC_GRAM_BLOCKS - RESERVED_SHARED || columns == 1)
            break;
    }
    choose_parts(p, DSC_GRAM_BLOCKS * cuda->multiprocessors, &plan);
    plan.one_parts = p->n > p->width ? ONE_PARTS : 0;
    return plan;
}

/* Plans that were made before, by the shapes that they depend on. A capture of statistics asks for its plan three
 * times, and does so in every step; without a recording, planning would cost as much as the launches. */
typedef struct kept_shift {
    dsc_gram_patches p; /* without the address of x */
    int multiprocessors;
    size_t shared;
    dsc_gram_shift_plan plan;
} kept_shift;
enum { KEPT_SHIFTS = 64 };
static _Thread_local kept_shift kept_shifts[KEPT_SHIFTS];

static dsc_gram_shift_plan make_shift(const dsc_gram_patches *p, const dsc_cuda *cuda) {
    dsc_gram_patches key;
    memcpy(&key, p, sizeof key); /* including the padding bytes, which are 0 */
    key.x = NULL;
    key.first = 0;
    kept_shift *kept = &kept_shifts[dsc_hash_bytes(0, &key, sizeof key) % KEPT_SHIFTS];
    if (kept->multiprocessors != cuda->multiprocessors || kept->shared != cuda->shared ||
        memcmp(&kept->p, &key, sizeof key) != 0) {
        kept->plan = plan_shift(p, cuda);
        kept->multiprocessors = cuda->multiprocessors;
        kept->shared = cuda->shared;
        memcpy(&kept->p, &key, sizeof key);
    }
    return kept->plan;
}

static size_t shift_bytes(const dsc_gram_patches *p, const dsc_gram_shift_plan *plan) {
    return (size_t)shift_floats(p, plan->parts, plan->border) * sizeof(float) +
           (size_t)(plan->one_parts * DSC_GRAM_TAPS * p->cg) * sizeof(double);
}

static dsc_status run_shift(dsc_queue *q, const dsc_gram_patches *p, void *work, const dsc_gram_target *to) {
    dsc_gram_shift_plan plan = make_shift(p, dsc_cuda_of(q->device));
    plan.partial = work;
    plan.ones = (double *)(void *)(plan.partial + shift_floats(p, plan.parts, plan.border));
    DSC_CUDA_TRY(dsc_cuda_launch_gram_shift(dsc_cuda_at(q), p, &plan, to));
    return DSC_OK;
}

/* ---- the operations ---- */

/* Partial sums are read and written 16 bytes at a time; `work` may begin anywhere. */
enum { ALIGNMENT = 64 };

static void *align(void *data) {
    char *p = data;
    return p + (ALIGNMENT - (uintptr_t)p % ALIGNMENT) % ALIGNMENT;
}

static dsc_status run(dsc_queue *q, const dsc_gram_patches *p, void *work, size_t bytes,
                      const dsc_gram_target *to) {
    const dsc_cuda_launch *at = dsc_cuda_at(q);
    if (p->dtype == DSC_F64) {
        DSC_CUDA_TRY(dsc_cuda_launch_gram_double(at, p, to));
        return DSC_OK;
    }
    dsc_gram_plan plan = make_plan(p, dsc_cuda_of(q->device), bytes);
    plan.partial = work;
    DSC_CUDA_TRY(dsc_cuda_launch_gram(at, p, &plan, to, can_vector(p)));
    return DSC_OK;
}

size_t dsc_cuda_patch_gram_workspace(dsc_device *device, const dsc_conv_desc *desc, int ones) {
    dsc_gram_patches p = {.dtype = desc->dtype};
    if (desc->dtype == DSC_F64 || describe(desc, 0, ones, NULL, &p) != DSC_OK)
        return 0;
    dsc_gram_plan plan = make_plan(&p, dsc_cuda_of(device), PARTIAL_BYTES);
    size_t bytes =
        dsc_cuda_halves_sums(dsc_cuda_of(device), &p) ? dsc_cuda_halves_gram_bytes(&p) : plan_bytes(&plan);
    if (can_shift(&p, dsc_cuda_of(device))) { /* not used for an unaligned x, which is not known here */
        dsc_gram_shift_plan shift = make_shift(&p, dsc_cuda_of(device));
        size_t other = shift_bytes(&p, &shift);
        bytes = bytes > other ? bytes : other;
    }
    return bytes ? bytes + ALIGNMENT : 0;
}

static dsc_status gram(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x, int64_t group,
                       dsc_tensor *work, const dsc_gram_target *to) {
    const dsc_conv2d_shape *s = &desc->shape;
    dsc_gram_patches p;
    int ones = to->n > s->kernel_h * s->kernel_w * (s->in_c / s->groups);
    DSC_TRY(describe(desc, group, ones, x->data, &p));
    void *space = work && work->data ? align(work->data) : NULL;
    if (can_shift(&p, dsc_cuda_of(q->device)) && can_vector(&p))
        DSC_TRY(run_shift(q, &p, space, to));
    else if (dsc_cuda_halves_sums(dsc_cuda_of(q->device), &p))
        DSC_TRY(dsc_cuda_halves_gram(q, &p, space, to));
    else
        DSC_TRY(run(q, &p, space, PARTIAL_BYTES, to));
    return DSC_OK;
}

dsc_status dsc_cuda_patch_gram(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x, int64_t group,
                               double alpha, double beta, dsc_tensor *work, dsc_tensor *c) {
    dsc_gram_target to = {.c = c->data, .alpha = alpha, .beta = beta, .n = c->dim[0]};
    DSC_TRY(gram(q, desc, x, group, work, &to));
    return DSC_OK;
}

/* Returns the n of a packed triangle of `count` elements, with or without the column of ones. */
static int64_t packed_order(const dsc_conv_desc *desc, int64_t count) {
    const dsc_conv2d_shape *s = &desc->shape;
    int64_t n = s->kernel_h * s->kernel_w * (s->in_c / s->groups);
    return count == n * (n + 1) / 2 ? n : n + 1;
}

dsc_status dsc_cuda_patch_gram_packed(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x,
                                      int64_t group, double alpha, dsc_tensor *work, dsc_tensor *full,
                                      dsc_tensor *p) {
    (void)full;
    dsc_gram_target to = {
        .c = p->data, .alpha = alpha, .n = packed_order(desc, dsc_tensor_count(p)), .packed = 1};
    DSC_TRY(gram(q, desc, x, group, work, &to));
    return DSC_OK;
}

dsc_status dsc_cuda_patches(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x, int64_t group,
                            int64_t first, dsc_tensor *out) {
    const dsc_conv2d_shape *s = &desc->shape;
    dsc_gram_patches p;
    int ones = out->dim[1] > s->kernel_h * s->kernel_w * (s->in_c / s->groups);
    DSC_TRY(describe(desc, group, ones, x->data, &p));
    DSC_CUDA_TRY(dsc_cuda_launch_patches(dsc_cuda_at(q), &p, first, out->dim[0], out->data));
    return DSC_OK;
}

dsc_status dsc_cuda_syrk(dsc_queue *q, double alpha, const dsc_tensor *a, double beta, dsc_tensor *c) {
    dsc_gram_patches p = {.x = a->data,
                          .dtype = a->dtype,
                          .h = 1,
                          .w = 1,
                          .oh = 1,
                          .ow = 1,
                          .kw = 1,
                          .stride_h = 1,
                          .stride_w = 1,
                          .dil_h = 1,
                          .dil_w = 1,
                          .images = a->dim[0],
                          .c = a->dim[1],
                          .cg = a->dim[1],
                          .rows = a->dim[0],
                          .width = a->dim[1],
                          .n = a->dim[1]};
    dsc_gram_target to = {.c = c->data, .alpha = alpha, .beta = beta, .n = c->dim[0]};
    DSC_TRY(run(q, &p, dsc_cuda_at(q)->scratch, DSC_CUDA_SCRATCH, &to));
    return DSC_OK;
}
