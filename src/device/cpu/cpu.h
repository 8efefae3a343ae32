/* Internals of the cpu device: its state, how work is shared among threads, and how its table is filled. */
#ifndef DSC_DEVICE_CPU_CPU_H
#define DSC_DEVICE_CPU_CPU_H

#include "device/cpu/kernels.h"
#include "device/table.h"

typedef struct dsc_cpu {
    dsc_device_table table;
    const dsc_cpu_kernels *kernels;
    /* 1: oneDNN computes products, and convolutions for which it has a good implementation; 0 in builds without it */
    int onednn;
    int blas; /* 1: OpenBLAS computes products, unless oneDNN does */
} dsc_cpu;

/* A queue's scratch memory, for sums per thread; it grows to what the largest call needs. */
typedef struct dsc_cpu_queue {
    char *scratch;
    int64_t capacity;
} dsc_cpu_queue;

static inline const dsc_cpu *dsc_cpu_of(const dsc_queue *q) {
    return q->device->state;
}

static inline const dsc_cpu_kernels *dsc_cpu_kernels_of(const dsc_queue *q) {
    return dsc_cpu_of(q)->kernels;
}

/* Returns `bytes` bytes of the queue's scratch memory, not cleared, valid until the next call. */
dsc_status dsc_cpu_scratch(dsc_queue *q, int64_t bytes, void *out) DSC_MUST_CHECK;

/* OpenMP's settings for the calling thread: the number of threads, and whether OpenMP may start fewer. */
typedef struct dsc_cpu_threads {
    int count, dynamic;
} dsc_cpu_threads;

/* Makes OpenMP, and with it oneDNN, OpenBLAS and LAPACK, use exactly `count` threads when the calling thread calls
 * them. Returns the previous settings, which belong to the caller; dsc_cpu_leave_threads restores them.
 *
 * oneDNN gets the device's number of threads. OpenBLAS and LAPACK get one: OpenBLAS divides its work before it
 * asks OpenMP for threads, and waits forever if it gets fewer. Their work is shared among threads by this device
 * instead. */
dsc_cpu_threads dsc_cpu_use_threads(int count) DSC_MUST_CHECK;
void dsc_cpu_leave_threads(dsc_cpu_threads before);

/* The number of parts into which work on `elements` elements is divided: one if starting threads would cost more than
 * it saves, else the number of threads. It depends on nothing else, so that results are reproducible. */
static inline int dsc_cpu_parts(const dsc_device *device, int64_t elements) {
    return elements < 32768 ? 1 : device->threads;
}

/* Part `part` of `parts` of [0, n), cut at multiples of `unit`. */
typedef struct dsc_cpu_range {
    int64_t first, count;
} dsc_cpu_range;

static inline dsc_cpu_range dsc_cpu_share(int64_t n, int64_t unit, int parts, int part) {
    int64_t units = (n + unit - 1) / unit;
    int64_t first = units * part / parts * unit, last = units * (part + 1) / parts * unit;
    if (last > n)
        last = n;
    return (dsc_cpu_range){first, first < last ? last - first : 0};
}

/* The number of elements of a period (see kernels.h) for rows of c channels. */
static inline int64_t dsc_cpu_period(int64_t c) {
    return (255 + c) / c * c;
}

/* out[width] = v[c], repeated. */
static inline void dsc_cpu_repeat(int64_t c, int64_t width, const float *v, float *out) {
    for (int64_t i = 0; i < width; i++)
        out[i] = v[i % c];
}

/* ---- set the table's entries that a file implements ---- */
void dsc_cpu_table_elementwise(dsc_device_table *table);
void dsc_cpu_table_linalg(dsc_device_table *table);
void dsc_cpu_table_triangle(dsc_device_table *table);
void dsc_cpu_table_solve(dsc_device_table *table);
void dsc_cpu_table_batch(dsc_device_table *table);
void dsc_cpu_table_second(dsc_device_table *table);
void dsc_cpu_table_refresh(dsc_device_table *table);
void dsc_cpu_table_conv(dsc_device_table *table);
void dsc_cpu_table_gram(dsc_device_table *table);
void dsc_cpu_table_norm(dsc_device_table *table);
void dsc_cpu_table_attention(dsc_device_table *table);
void dsc_cpu_table_attention_step(dsc_device_table *table);
void dsc_cpu_table_group_norm(dsc_device_table *table);
void dsc_cpu_table_pool(dsc_device_table *table);
void dsc_cpu_table_parts(dsc_device_table *table);
void dsc_cpu_table_embedding(dsc_device_table *table);
void dsc_cpu_table_loss(dsc_device_table *table);
void dsc_cpu_table_pixel_loss(dsc_device_table *table);
void dsc_cpu_table_optim(dsc_device_table *table);

#endif
