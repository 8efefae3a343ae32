/* Reference: multi-head self-attention by its definition, one row (forward, dQ) or one column (dK, dV) of the scores
 * at a time. */
#include "device/formulas.h"
#include "device/ref/element.h"
#include "device/ref/ref.h"

#include <math.h>

/* One head of one sample. in_x and in_y: the head's first channel at position i, in the query, key or value (part 0, 1,
 * 2) of x, and in y. */
typedef struct head {
    const dsc_tensor *x, *y, *lse, *dy;
    const dsc_attention_desc *desc;
    const dsc_attention_context *context;
    int64_t t, d, dh, sample, number;
} head;

static int64_t in_x(const head *h, int part, int64_t i) {
    return (h->sample * h->t + i) * 3 * h->d + part * h->d + h->number * h->dh;
}

static int64_t in_y(const head *h, int64_t i) {
    return (h->sample * h->t + i) * h->d + h->number * h->dh;
}

static int sees(const head *h, int64_t i, int64_t j) {
    const dsc_tensor *lengths = h->context->lengths;
    return (!h->desc->causal || j <= i) && (!lengths || j < (int64_t)get(lengths, h->sample));
}

/* The factor of P for query i and key j: Z of ops.h. */
static double dropped(const head *h, int64_t i, int64_t j) {
    const dsc_dropout_desc *desc = &h->desc->dropout;
    if (!h->context->position || desc->rate == 0)
        return 1;
    const int64_t *at = h->context->position->data;
    dsc_dropout_stream stream = dsc_dropout_start(desc, at[0]);
    int64_t number = (at[1] + h->sample) * h->desc->heads + h->number;
    uint32_t words[4];
    dsc_dropout_words(&stream, dsc_attention_block(number, h->t, i) + j / 4, words);
    return dsc_dropout_keeps(&stream, words[j % 4]) ? 1 / (1 - desc->rate) : 0;
}

static double score(const head *h, int64_t i, int64_t j) {
    double sum = 0;
    for (int64_t c = 0; c < h->dh; c++)
        sum += get(h->x, in_x(h, 0, i) + c) * get(h->x, in_x(h, 1, j) + c);
    return sum / sqrt((double)h->dh);
}

size_t dsc_ref_attention_workspace(dsc_device *device, const dsc_attention_desc *desc, const dsc_tensor *x) {
    (void)device, (void)desc;
    return 2 * (size_t)x->dim[1] * sizeof(double);
}

static void forward_row(const head *h, int64_t i, double *p, dsc_tensor *lse, dsc_tensor *y) {
    double largest = -INFINITY, sum = 0;
    for (int64_t j = 0; j < h->t; j++) {
        p[j] = sees(h, i, j) ? score(h, i, j) : -INFINITY;
        largest = p[j] > largest ? p[j] : largest;
    }
    int empty = largest == -INFINITY; /* a row without keys */
    for (int64_t j = 0; j < h->t; j++) {
        p[j] = empty ? 0 : exp(p[j] - largest);
        sum += p[j];
    }
    for (int64_t j = 0; j < h->t; j++)
        p[j] = empty ? 0 : p[j] / sum * dropped(h, i, j);
    for (int64_t c = 0; c < h->dh; c++) {
        double value = 0;
        for (int64_t j = 0; j < h->t; j++)
            value += p[j] * get(h->x, in_x(h, 2, j) + c);
        set(y, in_y(h, i) + c, value);
    }
    if (lse)
        set(lse, (h->sample * lse->dim[1] + h->number) * h->t + i, empty ? 0 : largest + log(sum));
}

dsc_status dsc_ref_attention_forward(dsc_queue *q, const dsc_attention_desc *desc, const dsc_tensor *x,
                                     const dsc_attention_context *context, dsc_tensor *work, dsc_tensor *lse,
                                     dsc_tensor *y) {
    (void)q;
    int64_t d = y->dim[3];
    head h = {.x = x, .desc = desc, .context = context, .t = x->dim[1], .d = d, .dh = d / desc->heads};
    for (h.sample = 0; h.sample < x->dim[0]; h.sample++)
        for (h.number = 0; h.number < desc->heads; h.number++)
            for (int64_t i = 0; i < h.t; i++)
                forward_row(&h, i, work->data, lse, y);
    return DSC_OK;
}

/* P Z and dS = P (Z (dY V') - delta), delta = rowsum(dY Y), for query i and key j; both are 0 if i does not attend to
 * j. */
static void weigh(const head *h, int64_t i, int64_t j, double *p, double *ds) {
    double dp = 0, delta = 0;
    *p = *ds = 0;
    if (!sees(h, i, j))
        return;
    for (int64_t c = 0; c < h->dh; c++) {
        double dy = get(h->dy, in_y(h, i) + c);
        dp += dy * get(h->x, in_x(h, 2, j) + c);
        delta += dy * get(h->y, in_y(h, i) + c);
    }
    double z = dropped(h, i, j);
    *p = exp(score(h, i, j) - get(h->lse, (h->sample * h->lse->dim[1] + h->number) * h->t + i));
    *ds = *p * (z * dp - delta);
    *p *= z;
}

/* Computes dQ of position `at` from its row of dS, and dK and dV from its columns of dS and P Z. */
static void backward_position(const head *h, int64_t at, double *p, double *ds, double beta, dsc_tensor *dx) {
    double scale = 1 / sqrt((double)h->dh);
    for (int64_t j = 0; j < h->t; j++)
        weigh(h, at, j, &p[j], &ds[j]);
    for (int64_t c = 0; c < h->dh; c++) {
        double dq = 0;
        for (int64_t j = 0; j < h->t; j++)
            dq += ds[j] * get(h->x, in_x(h, 1, j) + c);
        update(dx, in_x(h, 0, at) + c, beta, dq * scale);
    }
    for (int64_t i = 0; i < h->t; i++)
        weigh(h, i, at, &p[i], &ds[i]);
    for (int64_t c = 0; c < h->dh; c++) {
        double dk = 0, dv = 0;
        for (int64_t i = 0; i < h->t; i++) {
            dk += ds[i] * get(h->x, in_x(h, 0, i) + c);
            dv += p[i] * get(h->dy, in_y(h, i) + c);
        }
        update(dx, in_x(h, 1, at) + c, beta, dk * scale);
        update(dx, in_x(h, 2, at) + c, beta, dv);
    }
}

dsc_status dsc_ref_attention_backward(dsc_queue *q, const dsc_attention_desc *desc, const dsc_tensor *x,
                                      const dsc_attention_context *context, const dsc_tensor *y,
                                      const dsc_tensor *lse, const dsc_tensor *dy,
                                      const dsc_attention_grads *grads) {
    (void)q;
    int64_t t = x->dim[1], d = y->dim[3];
    double *p = grads->work->data;
    head h = {.x = x, .y = y, .lse = lse, .dy = dy, .desc = desc, .context = context, .t = t, .d = d};
    h.dh = d / desc->heads;
    for (h.sample = 0; h.sample < x->dim[0]; h.sample++)
        for (h.number = 0; h.number < desc->heads; h.number++)
            for (int64_t at = 0; at < t; at++)
                backward_position(&h, at, p, p + t, grads->beta, grads->dx);
    return DSC_OK;
}
