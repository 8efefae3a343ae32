/* Host tensors of any type with guard bytes around them, read and written as doubles. */
#ifndef DSC_TESTS_COMM_BUFFER_H
#define DSC_TESTS_COMM_BUFFER_H

#include "comm/parallel.h"
#include "device/half.h"

enum { GUARD_BYTES = 64, GUARD_VALUE = 0xA5 };

typedef struct buffer {
    unsigned char *raw;
    size_t bytes;
    dsc_tensor t;
} buffer;

static inline buffer buffer_make(dsc_device *device, dsc_dtype dtype, int64_t count) {
    buffer b;
    b.bytes = (size_t)count * dsc_dtype_size(dtype);
    b.raw = malloc(b.bytes + 2 * GUARD_BYTES);
    assert_non_null(b.raw);
    memset(b.raw, GUARD_VALUE, b.bytes + 2 * GUARD_BYTES);
    b.t = dsc_tensor_view(device, b.raw + GUARD_BYTES, dtype, 1, &count);
    return b;
}

static inline void buffer_drop(buffer *b) {
    for (size_t i = 0; i < GUARD_BYTES; i++)
        EXPECT(b->raw[i] == GUARD_VALUE && b->raw[GUARD_BYTES + b->bytes + i] == GUARD_VALUE);
    free(b->raw);
    b->raw = NULL;
}

static inline void set(dsc_tensor *t, int64_t i, double value) {
    switch (t->dtype) {
    case DSC_F32:
        ((float *)t->data)[i] = (float)value;
        break;
    case DSC_F64:
        ((double *)t->data)[i] = value;
        break;
    case DSC_BF16:
        ((uint16_t *)t->data)[i] = dsc_bf16_from_float((float)value);
        break;
    case DSC_F16:
        ((uint16_t *)t->data)[i] = dsc_f16_from_float((float)value);
        break;
    case DSC_I32:
        ((int32_t *)t->data)[i] = (int32_t)value;
        break;
    case DSC_I64:
        ((int64_t *)t->data)[i] = (int64_t)value;
        break;
    case DSC_U8:
        ((uint8_t *)t->data)[i] = (uint8_t)value;
        break;
    }
}

static inline double get(const dsc_tensor *t, int64_t i) {
    switch (t->dtype) {
    case DSC_F32:
        return (double)((const float *)t->data)[i];
    case DSC_F64:
        return ((const double *)t->data)[i];
    case DSC_BF16:
        return (double)dsc_bf16_to_float(((const uint16_t *)t->data)[i]);
    case DSC_F16:
        return (double)dsc_f16_to_float(((const uint16_t *)t->data)[i]);
    case DSC_I32:
        return ((const int32_t *)t->data)[i];
    case DSC_I64:
        return (double)((const int64_t *)t->data)[i];
    case DSC_U8:
        return ((const uint8_t *)t->data)[i];
    }
    return 0;
}

/* Rank r's element i: small integers, quarters for the real types, so that sums over the ranks are exact in
 * every type. */
static inline double element(dsc_dtype dtype, int rank, int64_t i) {
    double v = (double)((i * 7 + rank * 5 + i / 16) % 16);
    if (dtype == DSC_U8)
        return v;
    return dtype == DSC_I32 || dtype == DSC_I64 ? v - 8 : (v - 8) / 4;
}

static inline double reduced(dsc_dtype dtype, dsc_reduction op, int ranks, int64_t i) {
    double result = element(dtype, 0, i);
    for (int r = 1; r < ranks; r++) {
        double v = element(dtype, r, i);
        if (op == DSC_SUM)
            result += v;
        else if (op == DSC_MAX ? v > result : v < result)
            result = v;
    }
    return result;
}

/* Fills t with rank's elements from `first` on. */
static inline void fill(dsc_tensor *t, int rank, int64_t first) {
    for (int64_t i = 0; i < dsc_tensor_count(t); i++)
        set(t, i, element(t->dtype, rank, first + i));
}

static inline int holds(const dsc_tensor *t, int rank, int64_t first) {
    for (int64_t i = 0; i < dsc_tensor_count(t); i++) {
        if (get(t, i) != element(t->dtype, rank, first + i))
            return 0;
    }
    return 1;
}

static inline int holds_reduced(const dsc_tensor *t, dsc_reduction op, int ranks, int64_t first) {
    for (int64_t i = 0; i < dsc_tensor_count(t); i++) {
        if (get(t, i) != reduced(t->dtype, op, ranks, first + i))
            return 0;
    }
    return 1;
}

#endif
