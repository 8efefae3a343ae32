/* Reference: one position of attention with a cache, by its definition. There is no workspace for the scores: they are
 * recomputed wherever they are needed. */
#include "device/ref/element.h"
#include "device/ref/ref.h"

#include <math.h>

/* One head of one sequence: the places of its query in x, of its first key in the cache (whose rows have 2 d numbers,
 * with values d after the keys), and of its result in y. */
typedef struct head {
    const dsc_tensor *x, *cache;
    int64_t keys, d, dh;
    int64_t query, first_key, y;
} head;

static double score(const head *h, int64_t j) {
    double sum = 0;
    for (int64_t c = 0; c < h->dh; c++)
        sum += get(h->x, h->query + c) * get(h->cache, h->first_key + j * 2 * h->d + c);
    return sum / sqrt((double)h->dh);
}

static void attend(const head *h, dsc_tensor *y) {
    enum { TOGETHER = 64 }; /* the number of channels for which a score is computed only once */
    double largest = -INFINITY, sum = 0, values[TOGETHER];
    for (int64_t j = 0; j < h->keys; j++) {
        double s = score(h, j);
        largest = s > largest ? s : largest;
    }
    for (int64_t j = 0; j < h->keys; j++)
        sum += exp(score(h, j) - largest);
    for (int64_t c0 = 0; c0 < h->dh; c0 += TOGETHER) {
        int64_t count = h->dh - c0 < TOGETHER ? h->dh - c0 : TOGETHER;
        for (int64_t c = 0; c < count; c++)
            values[c] = 0;
        for (int64_t j = 0; j < h->keys; j++) {
            double p = exp(score(h, j) - largest) / sum;
            for (int64_t c = 0; c < count; c++)
                values[c] += p * get(h->cache, h->first_key + (2 * j + 1) * h->d + c0 + c);
        }
        for (int64_t c = 0; c < count; c++)
            set(y, h->y + c0 + c, values[c]);
    }
}

dsc_status dsc_ref_attention_step(dsc_queue *q, const dsc_attention_desc *desc, const dsc_tensor *x,
                                  int64_t position, dsc_tensor *cache, dsc_tensor *y) {
    (void)q;
    int64_t positions = cache->dim[1], d = y->dim[3], dh = d / desc->heads;
    for (int64_t i = 0; i < x->dim[0]; i++) {
        for (int64_t c = 0; c < 2 * d; c++)
            set(cache, (i * positions + position) * 2 * d + c, get(x, i * 3 * d + d + c));
        for (int64_t number = 0; number < desc->heads; number++) {
            head h = {.x = x, .cache = cache, .keys = position + 1, .d = d, .dh = dh};
            h.query = i * 3 * d + number * dh;
            h.first_key = i * positions * 2 * d + number * dh;
            h.y = i * d + number * dh;
            attend(&h, y);
        }
    }
    return DSC_OK;
}
