/* Multi-head self-attention in blocks of QUERIES queries and DSC_SCORES_ROW keys: at most two blocks of scores per
 * thread exist at a time. Matrix products are computed by our own kernels, which read queries, keys and values
 * directly from x.
 *
 * Forward: threads share the blocks of queries of all heads. A block of Y is a sum over blocks of keys,
 *   m' = max(m, max S),   Y = exp(m - m') Y + exp(S - m') V,   l = exp(m - m') l + rowsum exp(S - m'),
 * divided by l at the end. Backward: threads share the heads; P is recomputed from the rows' saved m + log l. The order
 * of sums does not depend on the number of threads. Blocks of keys that are only padding are skipped. */
#include "device/cpu/gemm.h"

#include <math.h>
#include <omp.h>

enum { QUERIES = 192 };

/* One head of one sample: q, k and v point to its first query, key and value, whose rows are 3 d apart; the rows of y
 * and dy are d apart. */
typedef struct head {
    const dsc_cpu_kernels *kernels;
    int64_t t, d, dh;
    int64_t length; /* positions before the padding */
    int causal;
    const dsc_dropout_stream *dropout; /* NULL: none */
    float kept;                        /* 1 / (1 - rate) */
    int64_t number;                    /* the number of the head, counted over all samples of the step */
    float scale;                       /* 1 / sqrt(dh) */
    const float *q, *k, *v, *dy;
    float *y, *lse;
    float *dq, *dk, *dv;
} head;

/* The scratch floats of a thread: two blocks of scores, and in the forward pass two numbers per query of the block, in
 * the backward pass one per position. */
static int64_t floats_of_thread(int64_t t) {
    int64_t rows = t > 2 * QUERIES ? t : 2 * QUERIES;
    return 2 * QUERIES * DSC_SCORES_ROW + (rows + 15) / 16 * 16;
}

static size_t attention_workspace(dsc_device *device, const dsc_attention_desc *desc, const dsc_tensor *x) {
    (void)desc;
    return (size_t)(device->threads * floats_of_thread(x->dim[1])) * sizeof(float);
}

/* What all heads of a call have in common. */
typedef struct call {
    const dsc_queue *q;
    const dsc_attention_desc *desc;
    const dsc_tensor *x, *y, *lse;
    const int32_t *lengths;
    int drops;
    dsc_dropout_stream dropout;
    int64_t first_sample;
} call;

static call call_of(const dsc_queue *q, const dsc_attention_desc *desc, const dsc_attention_context *context,
                    const dsc_tensor *x, const dsc_tensor *y, const dsc_tensor *lse) {
    call c = {.q = q, .desc = desc, .x = x, .y = y, .lse = lse};
    c.lengths = context->lengths ? context->lengths->data : NULL;
    if (context->position && desc->dropout.rate > 0) {
        const int64_t *at = context->position->data;
        c.drops = 1;
        c.dropout = dsc_dropout_start(&desc->dropout, at[0]);
        c.first_sample = at[1];
    }
    return c;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static head head_of(const call *a, int64_t index) {
    int64_t t = a->x->dim[1], d = a->y->dim[3], heads = a->desc->heads, dh = d / heads;
    int64_t sample = index / heads, first = index % heads * dh;
    const float *in = (const float *)a->x->data + sample * t * 3 * d + first;
    return (head){.kernels = dsc_cpu_kernels_of(a->q),
                  .t = t,
                  .d = d,
                  .dh = dh,
                  .length = a->lengths ? most(0, least(t, a->lengths[sample])) : t,
                  .causal = a->desc->causal,
                  .dropout = a->drops ? &a->dropout : NULL,
                  .kept = (float)(1 / (1 - a->desc->dropout.rate)),
                  .number = a->first_sample * heads + index,
                  .scale = (float)(1 / sqrt((double)dh)),
                  .q = in,
                  .k = in + d,
                  .v = in + 2 * d,
                  .y = (float *)a->y->data + sample * t * d + first,
                  .lse = a->lse ? (float *)a->lse->data + index * t : NULL};
}

/* S[rows, keys] = alpha A B', where the rows of A and B have dh channels. */
static void multiply_rows(const head *h, const dsc_cpu_scores *b, float alpha, const float *a, int64_t a_row,
                          const float *keys, float *s) {
    dsc_cpu_gemm g = {.m = b->rows,
                      .n = b->keys,
                      .k = h->dh,
                      .a = a,
                      .a_row = a_row,
                      .a_column = 1,
                      .b = keys,
                      .b_row = 1,
                      .b_column = 3 * h->d,
                      .c = s,
                      .c_row = DSC_SCORES_ROW,
                      .alpha = alpha};
    dsc_own_gemm_one(h->kernels, &g);
}

/* C[rows, dh] = S B + beta C, summed over keys; the rows of B are 3 d apart, as in x. */
static void multiply_keys(const head *h, const dsc_cpu_scores *b, const float *s, const float *keys,
                          float beta, float *c, int64_t c_row) {
    dsc_cpu_gemm g = {.m = b->rows,
                      .n = h->dh,
                      .k = b->keys,
                      .a = s,
                      .a_row = DSC_SCORES_ROW,
                      .a_column = 1,
                      .b = keys,
                      .b_row = 3 * h->d,
                      .b_column = 1,
                      .c = c,
                      .c_row = c_row,
                      .alpha = 1,
                      .beta = beta};
    dsc_own_gemm_one(h->kernels, &g);
}

/* C[keys, dh] = S' B + beta C, summed over rows of S and B; those of B are `b_row` apart. */
static void multiply_queries(const head *h, const dsc_cpu_scores *b, const float *s, const float *rows,
                             int64_t b_row, float beta, float *c) {
    dsc_cpu_gemm g = {.m = b->keys,
                      .n = h->dh,
                      .k = b->rows,
                      .a = s,
                      .a_row = 1,
                      .a_column = DSC_SCORES_ROW,
                      .b = rows,
                      .b_row = b_row,
                      .b_column = 1,
                      .c = c,
                      .c_row = 3 * h->d,
                      .alpha = 1,
                      .beta = beta};
    dsc_own_gemm_one(h->kernels, &g);
}

/* The block of queries [r0, i1) and of keys from j0 on, before `end`. */
static dsc_cpu_scores block_of(const head *h, int64_t r0, int64_t i1, int64_t j0, int64_t end, float *s) {
    int64_t keys = least(end - j0, DSC_SCORES_ROW);
    return (dsc_cpu_scores){.rows = i1 - r0,
                            .keys = keys,
                            .real = most(0, least(keys, h->length - j0)),
                            .seen = h->causal ? r0 - j0 + 1 : keys,
                            .first = j0 == 0,
                            .s = s,
                            .dropout = h->dropout,
                            .kept = h->kept,
                            .block = dsc_attention_block(h->number, h->t, r0) + j0 / 4,
                            .block_row = dsc_attention_block(0, h->t, 1)};
}

/* Sets `rows` rows of the head's channels, `row` floats apart, to 0. */
static void clear_rows(const head *h, int64_t rows, int64_t row, float *y) {
    for (int64_t i = 0; i < rows; i++)
        h->kernels->fill(h->dh, 0, y + i * row);
}

static void forward_block(const head *h, int64_t i0, float *s) {
    int64_t i1 = least(i0 + QUERIES, h->t), end = least(h->causal ? i1 : h->t, h->length);
    float *largest = s + 2 * QUERIES * DSC_SCORES_ROW, *sum = largest + QUERIES;
    if (end == 0) { /* rows without keys */
        clear_rows(h, i1 - i0, h->d, h->y + i0 * h->d);
        if (h->lse)
            h->kernels->fill(i1 - i0, 0, h->lse + i0);
        return;
    }
    for (int64_t i = 0; i < i1 - i0; i++)
        largest[i] = -INFINITY;
    for (int64_t j0 = 0; j0 < end; j0 += DSC_SCORES_ROW) {
        int64_t r0 = h->causal && j0 > i0 ? j0 : i0; /* earlier queries attend to none of these keys */
        dsc_cpu_scores b = block_of(h, r0, i1, j0, end, s);
        float *y = h->y + r0 * h->d;
        multiply_rows(h, &b, h->scale, h->q + r0 * 3 * h->d, 3 * h->d, h->k + j0 * 3 * h->d, s);
        h->kernels->softmax_rows(&b, largest + r0 - i0, sum + r0 - i0, y, h->d, h->dh);
        multiply_keys(h, &b, s, h->v + j0 * 3 * h->d, b.first ? 0 : 1, y, h->d);
    }
    for (int64_t i = i0; i < i1; i++) {
        h->kernels->scale(h->dh, 1 / sum[i - i0], h->y + i * h->d);
        if (h->lse)
            h->lse[i] = largest[i - i0] + logf(sum[i - i0]);
    }
}

static int parts_of(const dsc_queue *q, const dsc_tensor *x) {
    return dsc_cpu_parts(q->device, dsc_tensor_count(x) * x->dim[1] / 48);
}

static dsc_status attention_forward(dsc_queue *q, const dsc_attention_desc *desc, const dsc_tensor *x,
                                    const dsc_attention_context *context, dsc_tensor *work, dsc_tensor *lse,
                                    dsc_tensor *y) {
    int64_t t = x->dim[1], blocks = (t + QUERIES - 1) / QUERIES, own = floats_of_thread(t);
    const call a = call_of(q, desc, context, x, y, lse);
    int parts = parts_of(q, x);
#pragma omp parallel for num_threads(parts) schedule(dynamic, 1)
    for (int64_t i = 0; i < x->dim[0] * desc->heads * blocks; i++) {
        head h = head_of(&a, i / blocks);
        forward_block(&h, (blocks - 1 - i % blocks) * QUERIES,
                      (float *)work->data + omp_get_thread_num() * own);
    }
    return DSC_OK;
}

static void backward_head(const head *h, float beta, float *p) {
    float *ds = p + QUERIES * DSC_SCORES_ROW, *delta = ds + QUERIES * DSC_SCORES_ROW;
    int64_t row = 3 * h->d, j0 = 0;
    for (int64_t i = 0; i < h->t; i++)
        delta[i] = (float)h->kernels->dot(h->dh, h->dy + i * h->d, h->y + i * h->d);
    for (; j0 == 0 || j0 < h->length; j0 += DSC_SCORES_ROW) {
        int64_t start = h->causal ? j0 / QUERIES * QUERIES : 0;
        for (int64_t i0 = start; i0 < h->t; i0 += QUERIES) {
            int64_t r0 = h->causal && j0 > i0 ? j0 : i0;
            dsc_cpu_scores b = block_of(h, r0, least(i0 + QUERIES, h->t), j0, h->t, p);
            const float *q = h->q + r0 * row, *k = h->k + j0 * row, *dy = h->dy + r0 * h->d;
            float beta_keys = i0 == start ? beta : 1, beta_queries = j0 == 0 ? beta : 1;
            multiply_rows(h, &b, h->scale, q, row, k, p);
            multiply_rows(h, &b, 1, dy, h->d, h->v + j0 * row, ds);
            h->kernels->softmax_grad_rows(&b, h->lse + r0, delta + r0, h->scale, ds);
            multiply_queries(h, &b, p, dy, h->d, beta_keys, h->dv + j0 * row);
            multiply_queries(h, &b, ds, q, row, beta_keys, h->dk + j0 * row);
            multiply_keys(h, &b, ds, k, beta_queries, h->dq + r0 * row, row);
        }
    }
    if (beta == 0 && j0 < h->t) {
        clear_rows(h, h->t - j0, row, h->dk + j0 * row);
        clear_rows(h, h->t - j0, row, h->dv + j0 * row);
    }
}

static dsc_status attention_backward(dsc_queue *q, const dsc_attention_desc *desc, const dsc_tensor *x,
                                     const dsc_attention_context *context, const dsc_tensor *y,
                                     const dsc_tensor *lse, const dsc_tensor *dy,
                                     const dsc_attention_grads *grads) {
    int64_t own = floats_of_thread(x->dim[1]);
    const call a = call_of(q, desc, context, x, y, lse);
    int parts = parts_of(q, x);
#pragma omp parallel for num_threads(parts) schedule(dynamic, 1)
    for (int64_t i = 0; i < x->dim[0] * desc->heads; i++) {
        head h = head_of(&a, i);
        float *out = (float *)grads->dx->data + (h.q - (const float *)x->data);
        h.dy = (const float *)dy->data + (h.y - (float *)y->data);
        h.dq = out;
        h.dk = out + h.d;
        h.dv = out + 2 * h.d;
        backward_head(&h, grads->beta != 0, (float *)grads->work->data + omp_get_thread_num() * own);
    }
    return DSC_OK;
}

void dsc_cpu_table_attention(dsc_device_table *table) {
    table->attention_workspace = attention_workspace;
    table->attention_forward = attention_forward;
    table->attention_backward = attention_backward;
}
