/* Input values for tests that compare K-FAC with explicit computations, and their transfer to and from a device. The
 * values are the same on every rank, and multiples of 1/64, which every type represents exactly. */
#ifndef DSC_TESTS_KFAC_NUMBERS_H
#define DSC_TESTS_KFAC_NUMBERS_H

#include "kfac/crew.h"

enum { MOST_NUMBERS = 1024 }; /* largest number of elements of a tensor here */

/* A pseudo-random value between -32/64 and 32/64, determined by its arguments. */
static inline double drawn(int64_t step, int64_t pass, int what, int64_t i) {
    uint64_t h = (uint64_t)(step * 1000003 + pass * 10007 + what * 101 + i) * 0x9E3779B97F4A7C15u;
    h ^= h >> 29;
    h *= 0xBF58476D1CE4E5B9u;
    return (double)((int64_t)(h >> 40) % 65) / 64 - 0.5;
}

/* Allocates a tensor on the device of `at`; the caller frees it with dsc_tensor_free. */
static inline dsc_tensor space(const place *at, dsc_dtype dtype, int ndim, const int64_t *dim) {
    dsc_tensor t;
    assert_ok(dsc_tensor_alloc(at->device, dtype, ndim, dim, &t));
    return t;
}

/* Copies `from` to `t`, rounded to float unless `t` is double. */
static inline void put(const place *at, dsc_tensor *t, const double *from) {
    float narrow[MOST_NUMBERS];
    int64_t count = dsc_tensor_count(t);
    assert_in_range(count, 0, MOST_NUMBERS);
    for (int64_t i = 0; i < count; i++)
        narrow[i] = (float)from[i];
    const void *data = t->dtype == DSC_F64 ? (const void *)from : narrow;
    assert_ok(dsc_tensor_upload(at->queue, data, dsc_tensor_bytes(t), t));
    assert_ok(dsc_queue_sync(at->queue));
}

/* Copies `t`, which is float or double, to `to`. */
static inline void take(const place *at, const dsc_tensor *t, double *to) {
    float narrow[MOST_NUMBERS];
    int64_t count = dsc_tensor_count(t);
    assert_in_range(count, 0, MOST_NUMBERS);
    void *data = t->dtype == DSC_F64 ? (void *)to : narrow;
    assert_ok(dsc_tensor_download(at->queue, t, dsc_tensor_bytes(t), data));
    assert_ok(dsc_queue_sync(at->queue));
    for (int64_t i = 0; i < count && t->dtype != DSC_F64; i++)
        to[i] = (double)narrow[i];
}

#endif
