#include "train/rand_score.h"

#include "base/error.h"
#include "base/memory.h"

#include <string.h>

/* Memory for a picture, an entry per pixel each. */
typedef struct work {
    int64_t count, h, w;
    int32_t *truth, *found; /* the segment of a pixel, -1: none */
    int32_t *stack;
    int32_t *order;  /* pixels of objects, those of a true segment next to each other */
    int64_t *sizes;  /* of predicted segments, over all pixels of objects */
    int64_t *shared; /* of these, pixels of the true segment under way */
} work;

static void close_work(work *k) {
    dsc_memory_free(&k->truth);
    dsc_memory_free(&k->found);
    dsc_memory_free(&k->stack);
    dsc_memory_free(&k->order);
    dsc_memory_free(&k->sizes);
    dsc_memory_free(&k->shared);
}

static dsc_status open_work(work *k) {
    DSC_TRY(dsc_memory_alloc(k->count, sizeof *k->truth, &k->truth));
    DSC_TRY(dsc_memory_alloc(k->count, sizeof *k->found, &k->found));
    DSC_TRY(dsc_memory_alloc(k->count, sizeof *k->stack, &k->stack));
    DSC_TRY(dsc_memory_alloc(k->count, sizeof *k->order, &k->order));
    DSC_TRY(dsc_memory_alloc(k->count, sizeof *k->sizes, &k->sizes));
    return dsc_memory_alloc(k->count, sizeof *k->shared, &k->shared);
}

/* Numbers the segments of pixels whose value is above `limit`, from 0 on. `order`, if it is not NULL, gets these
 * pixels, segment after segment, and *used how many they are. */
static void find_segments(const work *k, const uint8_t *value, int limit, int32_t *segment, int32_t *order,
                          int64_t *used) {
    int32_t next = 0;
    int64_t n = 0;
    memset(segment, -1, (size_t)k->count * sizeof *segment);
    for (int64_t first = 0; first < k->count; first++) {
        int64_t waiting = 0;
        if (value[first] <= limit || segment[first] >= 0)
            continue;
        k->stack[waiting++] = (int32_t)first;
        segment[first] = next;
        while (waiting > 0) {
            const int64_t at = k->stack[--waiting], row = at / k->w, column = at % k->w;
            const int64_t to[4] = {row > 0 ? at - k->w : -1, row + 1 < k->h ? at + k->w : -1,
                                   column > 0 ? at - 1 : -1, column + 1 < k->w ? at + 1 : -1};
            if (order)
                order[n++] = (int32_t)at;
            for (int i = 0; i < 4; i++)
                if (to[i] >= 0 && value[to[i]] > limit && segment[to[i]] < 0) {
                    segment[to[i]] = next;
                    k->stack[waiting++] = (int32_t)to[i];
                }
        }
        next++;
    }
    if (order)
        *used = n;
}

static double square(int64_t n) {
    return (double)n * (double)n;
}

/* The score of the segments in `found` and `truth`; `order` has `used` pixels. */
static double score_segments(work *k, int64_t used) {
    double both = 0, predicted = 0, actual = 0;
    memset(k->sizes, 0, (size_t)k->count * sizeof *k->sizes);
    for (int64_t i = 0; i < used; i++)
        if (k->found[k->order[i]] >= 0)
            k->sizes[k->found[k->order[i]]]++;
    for (int64_t s = 0; s < k->count; s++)
        predicted += square(k->sizes[s]);
    for (int64_t first = 0, end; first < used; first = end) {
        const int32_t own = k->truth[k->order[first]];
        for (end = first; end < used && k->truth[k->order[end]] == own; end++) {
            const int32_t s = k->found[k->order[end]];
            if (s < 0)
                continue;
            /* The sum of the squares grows by (n + 1)^2 - n^2 with each pixel. */
            both += (double)(2 * k->shared[s] + 1);
            k->shared[s]++;
        }
        for (int64_t i = first; i < end; i++)
            if (k->found[k->order[i]] >= 0)
                k->shared[k->found[k->order[i]]] = 0;
        actual += square(end - first);
    }
    return 2 * both / (predicted + actual);
}

dsc_status dsc_rand_score(const uint8_t *object, const uint8_t *level, int64_t h, int64_t w, int thresholds,
                          double *score) {
    work k = {.count = h * w, .h = h, .w = w};
    int64_t used = 0;
    if (k.count > INT32_MAX)
        return DSC_FAIL(DSC_E_UNSUPPORTED, "a picture of %lld x %lld pixels is too large for segments",
                        (long long)w, (long long)h);
    dsc_status status = open_work(&k);
    if (status == DSC_OK)
        find_segments(&k, object, 0, k.truth, k.order, &used);
    for (int t = 0; status == DSC_OK && t < thresholds; t++) {
        score[t] = -1;
        if (used == 0)
            continue;
        find_segments(&k, level, t, k.found, NULL, NULL);
        score[t] = score_segments(&k, used);
    }
    close_work(&k);
    return status;
}
