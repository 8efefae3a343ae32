/* Pieces of a second-order step on the cpu device: element-wise work and copies, divided into ranges of rows. */
#include "device/cpu/cpu.h"

#include <string.h>

static dsc_status outer_inverse(dsc_queue *q, const dsc_tensor *damping, const dsc_tensor *rows,
                                const dsc_tensor *columns, dsc_tensor *out) {
    int64_t m = out->dim[0], n = out->dim[1];
    int parts = dsc_cpu_parts(q->device, m * n);
    float value = (float)*(const double *)damping->data;
    const float *row = rows->data, *column = columns->data;
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int64_t i = 0; i < m; i++) {
        float *to = (float *)out->data + i * n;
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            to[j] = dsc_outer_inverse_f(row[i], column[j], value);
    }
    return DSC_OK;
}

/* ---- parts of a matrix ---- */

static dsc_status gather(dsc_queue *q, const dsc_tensor *src, const dsc_tensor *rows,
                         const dsc_tensor *columns, dsc_tensor *dst) {
    int64_t m = dst->dim[0], n = dst->dim[1], width = src->dim[1];
    int parts = dsc_cpu_parts(q->device, m * n);
    const int32_t *row = rows->data, *column = columns->data;
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int64_t i = 0; i < m; i++) {
        const float *from = (const float *)src->data + row[i] * width;
        float *to = (float *)dst->data + i * n;
        for (int64_t j = 0; j < n; j++)
            to[j] = from[column[j]];
    }
    return DSC_OK;
}

static dsc_status scatter(dsc_queue *q, const dsc_tensor *src, const dsc_tensor *rows,
                          const dsc_tensor *columns, dsc_tensor *dst) {
    int64_t m = src->dim[0], n = src->dim[1], width = dst->dim[1];
    int parts = dsc_cpu_parts(q->device, m * n);
    const int32_t *row = rows->data, *column = columns->data;
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int64_t i = 0; i < m; i++) {
        const float *from = (const float *)src->data + i * n;
        float *to = (float *)dst->data + row[i] * width;
        for (int64_t j = 0; j < n; j++)
            to[column[j]] = from[j];
    }
    return DSC_OK;
}

void dsc_cpu_table_second(dsc_device_table *table) {
    table->outer_inverse = outer_inverse;
    table->gather = gather;
    table->scatter = scatter;
}
