/* Large products of float32 as products of fp16: which products, where their parts lie, and the order of work.
 *
 * A wave is a set of items that fits into the queue's memory: one launch splits all its operands, products of one shape
 * are batched calls of cuBLAS, and one launch scales the sums into the results. Tensor cores truncate when they add, so
 * a sum of high parts covers only several hundred terms, and is added to the next one by an ordinary sum. */
#include "device/cuda/halves.h"
#include "device/cuda/entries.h"
#include "device/cuda/halves_kernels.h"

#include <string.h>

/* The fewest multiplications and the shortest side for which a product becomes faster; the terms of a sum of high
 * parts. */
static const double LEAST_WORK = 3e7;
enum { LEAST_SIDE = 96, SUM_TERMS = 784 };
/* A queue's memory for the parts of a wave: its usual size, and the size if an item needs more. Its first LIMIT_BYTES
 * hold the limits of operands. */
enum { LEAST_BYTES = 64 << 20, MOST_BYTES = 192 << 20, LIMIT_BYTES = 1024, ALIGNMENT = 256 };
/* The most items of a wave, each of which has two operands, and of items that are sorted by shape. */
enum { WAVE_ITEMS = DSC_HALVES / 2, SORTED_ITEMS = 256 };

/* Pads the rows, columns and terms of split matrices to whole 16 bytes in either order, which the fast kernels of
 * cuBLAS need. */
static int64_t padded(int64_t size) {
    return (size + 7) / 8 * 8;
}

static int64_t aligned(int64_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* ---- items ---- */

static int64_t terms_of(const dsc_gemm_item *item) {
    return item->a.dim[item->trans_a ? 0 : 1];
}

/* The bytes of an operand's parts; sum_bytes returns those of a result's sums. */
static int64_t operand_bytes(const dsc_tensor *t, int fast) {
    return aligned(padded(t->dim[0]) * padded(t->dim[1]) * (int64_t)sizeof(uint16_t) * (fast ? 1 : 2));
}

static int64_t sum_bytes(const dsc_tensor *c) {
    return aligned(padded(c->dim[0]) * padded(c->dim[1]) * (int64_t)sizeof(float));
}

static int64_t item_bytes(const dsc_gemm_item *item) {
    return operand_bytes(&item->a, item->fast) + operand_bytes(&item->b, item->fast) + sum_bytes(&item->c);
}

int dsc_cuda_halves_takes(const dsc_queue *q, const dsc_gemm_item *item) {
    int64_t m = item->c.dim[0], n = item->c.dim[1], k = terms_of(item);
    const dsc_cuda *cuda = dsc_cuda_of(q->device);
    return cuda->capability >= 80 && !cuda->strict && item->c.dtype == DSC_F32 &&
           least(m, least(n, k)) >= LEAST_SIDE && (double)m * (double)n * (double)k >= LEAST_WORK &&
           LIMIT_BYTES + item_bytes(item) <= MOST_BYTES;
}

static int same_shape(const dsc_gemm_item *x, const dsc_gemm_item *y) {
    return x->trans_a == y->trans_a && x->trans_b == y->trans_b && x->fast == y->fast &&
           x->c.dim[0] == y->c.dim[0] && x->c.dim[1] == y->c.dim[1] && terms_of(x) == terms_of(y);
}

/* Moves items of equal shape next to each other, in the order in which the first item of each shape came. */
static void sort_items(const dsc_gemm_item **items, int count) {
    for (int i = 0; i < count; i++) {
        int end = i + 1; /* the end of the items with the shape of number i */
        for (int j = end; j < count; j++)
            if (same_shape(items[i], items[j])) {
                const dsc_gemm_item *found = items[j];
                memmove(items + end + 1, items + end, (size_t)(j - end) * sizeof *items);
                items[end++] = found;
            }
        i = end - 1;
    }
}

/* ---- a wave ---- */

typedef struct wave {
    dsc_queue *q;
    char *memory;
    int64_t used;
    int count;
    const dsc_gemm_item *items[WAVE_ITEMS];
    dsc_halves_matrices operands; /* a and b of each item */
    dsc_halves_results results;
} wave;

static void *take(wave *w, int64_t bytes) {
    void *data = w->memory + w->used;
    w->used += bytes;
    return data;
}

static dsc_halves_matrix operand_of(wave *w, const dsc_tensor *t, int fast, int number) {
    int64_t rows = padded(t->dim[0]), pitch = padded(t->dim[1]);
    return (dsc_halves_matrix){.from = t->data,
                               .high = take(w, operand_bytes(t, fast)),
                               .limit = (unsigned *)(void *)w->memory + number,
                               .low = fast ? 0 : rows * pitch,
                               .rows = (int32_t)rows,
                               .given = (int32_t)t->dim[0],
                               .columns = (int32_t)t->dim[1],
                               .step = (int32_t)t->dim[1],
                               .pitch = (int32_t)pitch};
}

/* Places `count` items of one shape from number `first` on: first all a, then all b, then all sums. */
static void place_group(wave *w, int first, int count) {
    for (int i = first; i < first + count; i++)
        w->operands.items[2 * i] = operand_of(w, &w->items[i]->a, w->items[i]->fast, 2 * i);
    for (int i = first; i < first + count; i++)
        w->operands.items[2 * i + 1] = operand_of(w, &w->items[i]->b, w->items[i]->fast, 2 * i + 1);
    for (int i = first; i < first + count; i++) {
        const dsc_gemm_item *item = w->items[i];
        w->results.items[i] = (dsc_halves_result){.sum = take(w, sum_bytes(&item->c)),
                                                  .c = item->c.data,
                                                  .limit_a = w->operands.items[2 * i].limit,
                                                  .limit_b = w->operands.items[2 * i + 1].limit,
                                                  .m = (int32_t)item->c.dim[0],
                                                  .n = (int32_t)item->c.dim[1],
                                                  .pitch = (int32_t)padded(item->c.dim[1]),
                                                  .alpha = (float)item->alpha,
                                                  .beta = (float)item->beta};
    }
}

static int group_end(const wave *w, int first) {
    int end = first + 1;
    while (end < w->count && same_shape(w->items[first], w->items[end]))
        end++;
    return end;
}

/* Adds up the products of high parts in pieces of `terms` terms. step_a, step_b: elements from one term to the
 * next. */
static dsc_status add_pieces(dsc_queue *q, dsc_half_products p, int64_t terms, int64_t step_a,
                             int64_t step_b) {
    const uint16_t *a = p.a, *b = p.b;
    int64_t k = p.k;
    for (int64_t term = 0; term < k; term += terms) {
        p.a = a + term * step_a;
        p.b = b + term * step_b;
        p.k = least(terms, k - term);
        DSC_TRY(dsc_cuda_half_products(q, &p));
        p.beta = 1;
    }
    return DSC_OK;
}

/* Computes the products of one shape, small parts first, so that they are not lost in large sums. */
static dsc_status multiply_group(wave *w, int first, int count) {
    const dsc_gemm_item *item = w->items[first];
    const dsc_halves_matrix *a = &w->operands.items[2 * first], *b = a + 1;
    dsc_half_products p = {.dtype = DSC_F16,
                           .trans_a = item->trans_a,
                           .trans_b = item->trans_b,
                           .m = padded(item->c.dim[0]),
                           .n = padded(item->c.dim[1]),
                           .k = padded(terms_of(item)),
                           .count = count,
                           .a = a->high + a->low,
                           .b = b->high,
                           .c = w->results.items[first].sum,
                           .lda = a->pitch,
                           .ldb = b->pitch,
                           .ldc = w->results.items[first].pitch,
                           .step_a = operand_bytes(&item->a, item->fast) / (int64_t)sizeof(uint16_t),
                           .step_b = operand_bytes(&item->b, item->fast) / (int64_t)sizeof(uint16_t),
                           .step_c = sum_bytes(&item->c) / (int64_t)sizeof(float),
                           .alpha = 1};
    if (item->fast)
        return dsc_cuda_half_products(w->q, &p);
    DSC_TRY(dsc_cuda_half_products(w->q, &p));
    p.a = a->high;
    p.b = b->high + b->low;
    p.beta = 1;
    DSC_TRY(dsc_cuda_half_products(w->q, &p));
    p.b = b->high;
    return add_pieces(w->q, p, SUM_TERMS, item->trans_a ? a->pitch : 1, item->trans_b ? 1 : b->pitch);
}

static dsc_status run_wave(wave *w) {
    const dsc_cuda_launch *at = dsc_cuda_at(w->q);
    w->used = LIMIT_BYTES;
    for (int first = 0; first < w->count; first = group_end(w, first))
        place_group(w, first, group_end(w, first) - first);
    w->operands.count = 2 * w->count;
    w->results.count = w->count;
    DSC_CUDA_TRY(cudaMemsetAsync(w->memory, 0, LIMIT_BYTES, at->stream));
    DSC_CUDA_TRY(dsc_cuda_launch_halves_limits(at, &w->operands));
    DSC_CUDA_TRY(dsc_cuda_launch_halves_split(at, &w->operands));
    for (int first = 0; first < w->count; first = group_end(w, first))
        DSC_TRY(multiply_group(w, first, group_end(w, first) - first));
    DSC_CUDA_TRY(dsc_cuda_launch_halves_join(at, &w->results));
    return DSC_OK;
}

static dsc_status run_waves(dsc_queue *q, const dsc_gemm_item **items, int count) {
    wave w;
    sort_items(items, count);
    w.q = q;
    w.memory = dsc_cuda_queue_of(q)->halves;
    for (int first = 0, next = 0; first < count; first = next) {
        int64_t bytes = LIMIT_BYTES;
        for (w.count = 0; next < count && w.count < WAVE_ITEMS; next++) {
            bytes += item_bytes(items[next]);
            if (bytes > dsc_cuda_queue_of(q)->halves_bytes)
                break;
            w.items[w.count++] = items[next];
        }
        DSC_TRY(run_wave(&w));
    }
    return DSC_OK;
}

dsc_status dsc_cuda_halves_gemm(dsc_queue *q, const dsc_gemm_item *items, int64_t count) {
    const dsc_gemm_item *taken[SORTED_ITEMS];
    int found = 0;
    for (int64_t i = 0; i < count; i++) {
        if (dsc_cuda_halves_takes(q, &items[i]))
            taken[found++] = &items[i];
        if (found == SORTED_ITEMS || (found > 0 && i == count - 1)) {
            DSC_TRY(run_waves(q, taken, found));
            found = 0;
        }
    }
    return DSC_OK;
}

/* ---- memory of a queue ---- */

dsc_status dsc_cuda_halves_ready(dsc_queue *q, const dsc_gemm_item *items, int64_t count, int *ready) {
    dsc_cuda_queue *own = dsc_cuda_queue_of(q);
    int64_t bytes = 0;
    for (int64_t i = 0; i < count; i++)
        if (dsc_cuda_halves_takes(q, &items[i]))
            bytes = most(bytes, LIMIT_BYTES + item_bytes(&items[i]));
    if (bytes > own->halves_bytes && !dsc_cuda_is_recorded(q)) {
        bytes = bytes <= LEAST_BYTES ? LEAST_BYTES : MOST_BYTES;
        own->halves_bytes = 0;
        if (own->halves)
            own->first_halves = own->halves; /* recordings may still use it */
        own->halves = NULL;
        DSC_TRY(dsc_device_alloc(q->device, (size_t)bytes, &own->halves));
        own->halves_bytes = bytes;
    }
    *ready = bytes > 0 && bytes <= own->halves_bytes;
    return DSC_OK;
}

void dsc_cuda_halves_close(dsc_queue *q) {
    dsc_cuda_queue *own = dsc_cuda_queue_of(q);
    dsc_device_free(q->device, &own->halves);
    dsc_device_free(q->device, &own->first_halves);
}

/* ---- Gram matrices ---- */

/* The numbers of rows, and of columns of plain rows and of patches, from which this is faster; the most bytes of split
 * rows and of partial sums. */
enum {
    GRAM_ROWS = 512,
    GRAM_COLUMNS = 192,
    PATCH_COLUMNS = 128,
    GRAM_SPLIT_BYTES = 56 << 20,
    GRAM_SUM_BYTES = 32 << 20
};

/* The rows of x are cut into slices; `parts` slices are split and multiplied at a time, each into a sum of its own. A
 * slice is three blocks of `block` elements: its low parts, its high parts, and its high parts times 0.5. */
typedef struct gram_plan {
    int64_t parts, pitch, block;
    int64_t split_bytes, sum_bytes;
} gram_plan;

static gram_plan plan_gram(const dsc_gram_patches *p) {
    gram_plan plan = {.pitch = padded(p->n), .block = DSC_GRAM_SLICE * padded(p->n)};
    int64_t split = 3 * plan.block * (int64_t)sizeof(uint16_t);
    int64_t sum = plan.pitch * plan.pitch * (int64_t)sizeof(float),
            slices = (p->rows + DSC_GRAM_SLICE - 1) / DSC_GRAM_SLICE;
    plan.parts = most(1, least(slices, least(GRAM_SPLIT_BYTES / split, GRAM_SUM_BYTES / sum)));
    int64_t rounds = (slices + plan.parts - 1) / plan.parts;
    plan.parts = (slices + rounds - 1) / rounds;
    plan.split_bytes = aligned(plan.parts * split);
    plan.sum_bytes = aligned(plan.parts * sum);
    return plan;
}

/* Returns 1 if the patches are the rows of x. */
static int are_rows(const dsc_gram_patches *p) {
    return p->h == 1 && p->w == 1 && p->oh == 1 && p->ow == 1 && p->pad_h == 0 && p->pad_w == 0 &&
           p->width == p->cg;
}

/* ---- rows of halves, without splitting ----
 *
 * Products of two halves are exact in float32. cuBLAS reads the rows where they lie, and splits long sums itself. When
 * tensor cores add up HALF_SLICE terms in one go, truncation loses at most 2^-24 of the sum for every 16 terms, that is
 * 1.2e-4, while rounding to a half has changed each term by up to 4e-3. For wide matrices only the blocks at and below
 * the diagonal are computed, one column of blocks at a time. A separate kernel computes the sums for a column of
 * ones. */
enum { HALF_SLICE = 32768, HALF_BLOCK = 768 };

static int are_half_rows(const dsc_gram_patches *p) {
    return (p->dtype == DSC_BF16 || p->dtype == DSC_F16) && are_rows(p) && p->c % 8 == 0 && p->cg % 8 == 0;
}

static int64_t half_sum_bytes(const dsc_gram_patches *p) {
    return aligned(p->width * p->width * (int64_t)sizeof(float));
}

static dsc_status multiply_half_rows(dsc_queue *q, const dsc_gram_patches *p, float *sums) {
    const int64_t block = p->width >= 2 * HALF_BLOCK ? HALF_BLOCK : p->width;
    for (int64_t row = 0; row < p->rows; row += HALF_SLICE)
        for (int64_t column = 0; column < p->width; column += block) {
            const uint16_t *x = (const uint16_t *)p->x + p->first + row * p->c + column;
            const dsc_half_products h = {.dtype = p->dtype,
                                         .trans_a = 1,
                                         .m = p->width - column,
                                         .n = least(block, p->width - column),
                                         .k = least(HALF_SLICE, p->rows - row),
                                         .count = 1,
                                         .a = x,
                                         .b = x,
                                         .c = sums + column * p->width + column,
                                         .lda = p->c,
                                         .ldb = p->c,
                                         .ldc = p->width,
                                         .alpha = 1,
                                         .beta = row > 0 ? 1 : 0};
            DSC_TRY(dsc_cuda_half_products(q, &h));
        }
    return DSC_OK;
}

static dsc_status half_rows_gram(dsc_queue *q, const dsc_gram_patches *p, void *work,
                                 const dsc_gram_target *to) {
    dsc_halves_gram g = {.sum = work,
                         .part = p->width * p->width,
                         .rows = p->rows,
                         .parts = 1,
                         .pitch = (int32_t)p->width,
                         .ones = -1,
                         .columns = (int32_t)p->width};
    if (p->n > p->width) {
        float *sums = (float *)(void *)((char *)work + half_sum_bytes(p));
        dsc_tensor x =
            dsc_tensor_view(q->device, (void *)(uintptr_t)p->x, p->dtype, 2, (int64_t[]){p->rows, p->width});
        dsc_tensor out = dsc_tensor_view(q->device, sums, DSC_F32, 1, &p->width);
        DSC_TRY(dsc_cuda_bias_grad(q, &x, 0, &out));
        g.ones = g.columns;
        g.sums = sums;
    }
    DSC_TRY(multiply_half_rows(q, p, work));
    DSC_CUDA_TRY(dsc_cuda_launch_halves_gram(dsc_cuda_at(q), &g, to));
    return DSC_OK;
}

/* ---- which Gram matrices are computed here ---- */

int dsc_cuda_halves_sums(const dsc_cuda *cuda, const dsc_gram_patches *p) {
    int half = are_half_rows(p) && (p->n == p->width || p->c == p->width);
    return cuda->capability >= 80 && !cuda->strict && (p->dtype == DSC_F32 || half) && p->rows >= GRAM_ROWS &&
           p->width >= (are_rows(p) ? GRAM_COLUMNS : PATCH_COLUMNS) &&
           p->n < INT32_MAX / DSC_GRAM_SLICE / 2 && p->c < INT32_MAX / 2;
}

size_t dsc_cuda_halves_gram_bytes(const dsc_gram_patches *p) {
    if (p->dtype != DSC_F32)
        return (size_t)(half_sum_bytes(p) + p->width * (int64_t)sizeof(float));
    gram_plan plan = plan_gram(p);
    return (size_t)(LIMIT_BYTES + plan.split_bytes + plan.sum_bytes);
}

/* Adds low'high + high'high / 2 of `count` slices to their sums. A sum plus its transpose is the whole. The small terms
 * come first, so that they are not lost in large sums. */
static dsc_status add_slices(dsc_queue *q, const gram_plan *plan, const uint16_t *slices, float *sums,
                             int64_t count, int first) {
    const dsc_half_products p = {.dtype = DSC_F16,
                                 .trans_a = 1,
                                 .m = plan->pitch,
                                 .n = plan->pitch,
                                 .k = 2 * DSC_GRAM_SLICE,
                                 .count = count,
                                 .a = slices,
                                 .b = slices + plan->block,
                                 .c = sums,
                                 .lda = plan->pitch,
                                 .ldb = plan->pitch,
                                 .ldc = plan->pitch,
                                 .step_a = 3 * plan->block,
                                 .step_b = 3 * plan->block,
                                 .step_c = plan->pitch * plan->pitch,
                                 .alpha = 1,
                                 .beta = first ? 0 : 1};
    return dsc_cuda_half_products(q, &p);
}

/* Finds the largest magnitude in x, over all its channels and pixels. */
static dsc_status find_limit(dsc_queue *q, const dsc_gram_patches *p, unsigned *limit) {
    const int64_t pixels = p->images * p->h * p->w, step = (1 << 24) / p->c + 1;
    dsc_halves_matrices m = {.count = 0};
    DSC_CUDA_TRY(cudaMemsetAsync(limit, 0, sizeof *limit, dsc_cuda_at(q)->stream));
    for (int64_t first = 0; first < pixels; first += step) {
        m.items[m.count++] = (dsc_halves_matrix){.from = (const float *)p->x + first * p->c,
                                                 .limit = limit,
                                                 .given = (int32_t)least(step, pixels - first),
                                                 .columns = (int32_t)p->c,
                                                 .step = (int32_t)p->c};
        if (m.count < DSC_HALVES && first + step < pixels)
            continue;
        DSC_CUDA_TRY(dsc_cuda_launch_halves_limits(dsc_cuda_at(q), &m));
        m.count = 0;
    }
    return DSC_OK;
}

/* Splits the rows of patches from `row` on, as many as m has room for. */
static dsc_status split_rows(dsc_queue *q, const dsc_gram_patches *p, int64_t row, dsc_halves_matrix *m) {
    const dsc_cuda_launch *at = dsc_cuda_at(q);
    m->given = (int32_t)least(m->rows, p->rows - row);
    if (!are_rows(p)) {
        DSC_CUDA_TRY(dsc_cuda_launch_halves_patches(at, p, m, row));
        return DSC_OK;
    }
    dsc_halves_matrices one = {.count = 1};
    m->from = (const float *)p->x + p->first + row * p->c;
    one.items[0] = *m;
    DSC_CUDA_TRY(dsc_cuda_launch_halves_split(at, &one));
    return DSC_OK;
}

dsc_status dsc_cuda_halves_gram(dsc_queue *q, const dsc_gram_patches *p, void *work,
                                const dsc_gram_target *to) {
    if (p->dtype != DSC_F32)
        return half_rows_gram(q, p, work, to);
    gram_plan plan = plan_gram(p);
    int64_t step = plan.parts * DSC_GRAM_SLICE;
    unsigned *limit = work;
    float *sums = (float *)(void *)((char *)work + LIMIT_BYTES + plan.split_bytes);
    uint16_t *slices = (uint16_t *)(void *)((char *)work + LIMIT_BYTES);
    dsc_halves_matrix x = {.high = slices + plan.block,
                           .limit = limit,
                           .low = -plan.block,
                           .half = (int32_t)plan.block,
                           .rows = (int32_t)step,
                           .columns = (int32_t)p->width,
                           .step = (int32_t)p->c,
                           .pitch = (int32_t)plan.pitch,
                           .ones = p->n > p->width};
    DSC_TRY(find_limit(q, p, limit));
    for (int64_t row = 0; row < p->rows; row += step) {
        DSC_TRY(split_rows(q, p, row, &x));
        DSC_TRY(
            add_slices(q, &plan, slices, sums, (x.given + DSC_GRAM_SLICE - 1) / DSC_GRAM_SLICE, row == 0));
    }
    dsc_halves_gram g = {.sum = sums,
                         .limit = limit,
                         .part = plan.pitch * plan.pitch,
                         .rows = p->rows,
                         .parts = (int32_t)plan.parts,
                         .pitch = (int32_t)plan.pitch,
                         .ones = p->n > p->width ? (int32_t)p->width : -1,
                         .columns = (int32_t)p->n};
    DSC_CUDA_TRY(dsc_cuda_launch_halves_gram(dsc_cuda_at(q), &g, to));
    return DSC_OK;
}
