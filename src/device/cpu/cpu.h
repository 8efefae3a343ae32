/* The inside of the cpu device: its state, how work is shared among threads, and the entries of its table. */
#ifndef DSC_DEVICE_CPU_CPU_H
#define DSC_DEVICE_CPU_CPU_H

#include "device/cpu/kernels.h"
#include "device/table.h"

typedef struct dsc_cpu {
    dsc_device_table table;
    const dsc_cpu_kernels *kernels;
    int onednn; /* 1: products, and convolutions where it has a good implementation, go to oneDNN; 0 in builds
                   without it */
    int blas;   /* 1: else, products go to OpenBLAS */
} dsc_cpu;

/* Memory of a queue for sums per thread; grows to the largest call. */
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

/* `bytes` of the queue's scratch memory, valid until the next call, not cleared. */
dsc_status dsc_cpu_scratch(dsc_queue *q, int64_t bytes, void *out) DSC_MUST_CHECK;

/* OpenMP's settings of the calling thread: the number of threads, and whether it may start fewer. */
typedef struct dsc_cpu_threads {
    int count, dynamic;
} dsc_cpu_threads;

/* Makes OpenMP, and with it oneDNN, OpenBLAS and LAPACK, use exactly `count` threads on the calling thread.
 * Returns the settings from before, which dsc_cpu_leave_threads restores because they belong to the caller.
 *
 * oneDNN gets the device's number of threads. OpenBLAS and LAPACK get one: OpenBLAS cuts its work before it
 * asks OpenMP for threads, and waits for ever when it gets fewer. Work for them is shared among threads by
 * this device. */
dsc_cpu_threads dsc_cpu_use_threads(int count) DSC_MUST_CHECK;
void dsc_cpu_leave_threads(dsc_cpu_threads before);

/* Into how many parts work on `elements` elements is cut: one when starting threads would cost more than it
 * saves, else as many as threads. Depends on nothing else, so that results are reproducible. */
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

/* Elements of a period (see kernels.h) for rows of c channels. */
static inline int64_t dsc_cpu_period(int64_t c) {
    return (255 + c) / c * c;
}

/* out[width] = v[c], repeated. */
static inline void dsc_cpu_repeat(int64_t c, int64_t width, const float *v, float *out) {
    for (int64_t i = 0; i < width; i++)
        out[i] = v[i % c];
}

/* ---- entries, by file ---- */
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
