/* Tensors of any type with guard bytes around them, read and written as doubles. */
#ifndef DSC_TESTS_COMM_BUFFER_H
#define DSC_TESTS_COMM_BUFFER_H

#include "comm/place.h"
#include "device/half.h"

enum { GUARD_BYTES = 64, GUARD_VALUE = 0xA5 };

typedef struct buffer {
    void *raw;
    size_t bytes;
    dsc_tensor t;
} buffer;

/* All of a buffer's memory, as bytes. */
static inline dsc_tensor buffer_all(const buffer *b) {
    int64_t bytes = (int64_t)b->bytes + 2 * GUARD_BYTES;
    return dsc_tensor_view(b->t.device, b->raw, DSC_U8, 1, &bytes);
}

static inline unsigned char *host_take(size_t bytes) {
    unsigned char *host = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(host);
    return host;
}

static inline buffer buffer_make(dsc_device *device, dsc_dtype dtype, int64_t count) {
    buffer b;
    b.bytes = (size_t)count * dsc_dtype_size(dtype);
    b.raw = memory_take(device, b.bytes + 2 * GUARD_BYTES);
    b.t = dsc_tensor_view(device, (char *)b.raw + GUARD_BYTES, dtype, 1, &count);
    dsc_tensor all = buffer_all(&b);
    unsigned char *host = host_take(dsc_tensor_bytes(&all));
    memset(host, GUARD_VALUE, dsc_tensor_bytes(&all));
    write_tensor(&all, host);
    free(host);
    return b;
}

static inline void buffer_drop(buffer *b) {
    dsc_tensor all = buffer_all(b);
    unsigned char *host = host_take(dsc_tensor_bytes(&all));
    read_tensor(&all, host);
    for (size_t i = 0; i < GUARD_BYTES; i++)
        EXPECT(host[i] == GUARD_VALUE && host[GUARD_BYTES + b->bytes + i] == GUARD_VALUE);
    free(host);
    memory_drop(b->t.device, b->raw);
    b->raw = NULL;
}

/* Element i of host memory. */
static inline void put(void *host, dsc_dtype dtype, int64_t i, double value) {
    switch (dtype) {
    case DSC_F32:
        ((float *)host)[i] = (float)value;
        break;
    case DSC_F64:
        ((double *)host)[i] = value;
        break;
    case DSC_BF16:
        ((uint16_t *)host)[i] = dsc_bf16_from_float((float)value);
        break;
    case DSC_F16:
        ((uint16_t *)host)[i] = dsc_f16_from_float((float)value);
        break;
    case DSC_I32:
        ((int32_t *)host)[i] = (int32_t)value;
        break;
    case DSC_I64:
        ((int64_t *)host)[i] = (int64_t)value;
        break;
    case DSC_U8:
        ((uint8_t *)host)[i] = (uint8_t)value;
        break;
    }
}

static inline double take(const void *host, dsc_dtype dtype, int64_t i) {
    switch (dtype) {
    case DSC_F32:
        return (double)((const float *)host)[i];
    case DSC_F64:
        return ((const double *)host)[i];
    case DSC_BF16:
        return (double)dsc_bf16_to_float(((const uint16_t *)host)[i]);
    case DSC_F16:
        return (double)dsc_f16_to_float(((const uint16_t *)host)[i]);
    case DSC_I32:
        return ((const int32_t *)host)[i];
    case DSC_I64:
        return (double)((const int64_t *)host)[i];
    case DSC_U8:
        return ((const uint8_t *)host)[i];
    }
    return 0;
}

/* Element i of a tensor. */
static inline void set(dsc_tensor *t, int64_t i, double value) {
    dsc_tensor one = dsc_tensor_slice(t, i, 1);
    double host = 0;
    put(&host, t->dtype, 0, value);
    write_tensor(&one, &host);
}

static inline double get(const dsc_tensor *t, int64_t i) {
    dsc_tensor one = dsc_tensor_slice(t, i, 1);
    double host = 0;
    read_tensor(&one, &host);
    return take(&host, t->dtype, 0);
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
    unsigned char *host = host_take(dsc_tensor_bytes(t));
    for (int64_t i = 0; i < dsc_tensor_count(t); i++)
        put(host, t->dtype, i, element(t->dtype, rank, first + i));
    write_tensor(t, host);
    free(host);
}

static inline int holds(const dsc_tensor *t, int rank, int64_t first) {
    unsigned char *host = host_take(dsc_tensor_bytes(t));
    int right = 1;
    read_tensor(t, host);
    for (int64_t i = 0; i < dsc_tensor_count(t); i++)
        right &= take(host, t->dtype, i) == element(t->dtype, rank, first + i);
    free(host);
    return right;
}

static inline int holds_reduced(const dsc_tensor *t, dsc_reduction op, int ranks, int64_t first) {
    unsigned char *host = host_take(dsc_tensor_bytes(t));
    int right = 1;
    read_tensor(t, host);
    for (int64_t i = 0; i < dsc_tensor_count(t); i++)
        right &= take(host, t->dtype, i) == reduced(t->dtype, op, ranks, first + i);
    free(host);
    return right;
}

#endif
