/* Embeddings on the cpu device: rows of a table, and their gradients. */
#include "device/cpu/cpu.h"

#include <string.h>

static int64_t row_of(const dsc_tensor *ids, int64_t i, int64_t vocabulary) {
    double id =
        ids->dtype == DSC_F64 ? ((const double *)ids->data)[i] : (double)((const float *)ids->data)[i];
    return dsc_embedding_row(id, vocabulary);
}

static dsc_status embedding_forward(dsc_queue *q, const dsc_tensor *ids, const dsc_tensor *table,
                                    dsc_tensor *y) {
    int64_t rows = dsc_tensor_count(ids), vocabulary = table->dim[0], features = table->dim[1];
    size_t bytes = (size_t)features * sizeof(float);
    int parts = dsc_cpu_parts(q->device, rows * features);
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        int64_t v = row_of(ids, i, vocabulary);
        float *to = (float *)y->data + i * features;
        if (v < 0)
            memset(to, 0, bytes);
        else
            memcpy(to, (const float *)table->data + v * features, bytes);
    }
    return DSC_OK;
}

/* Computes some features of all rows of dtable; the rows of dy are added in order. */
static void add_features(const dsc_cpu_kernels *k, const dsc_tensor *ids, const dsc_tensor *dy, double beta,
                         dsc_cpu_range r, dsc_tensor *dtable) {
    int64_t rows = dsc_tensor_count(ids), vocabulary = dtable->dim[0], features = dtable->dim[1];
    const float *from = (const float *)dy->data + r.first;
    float *to = (float *)dtable->data + r.first;
    for (int64_t v = 0; beta == 0 && v < vocabulary; v++)
        memset(to + v * features, 0, (size_t)r.count * sizeof *to);
    for (int64_t v = 0; beta != 0 && beta != 1 && v < vocabulary; v++)
        k->scale(r.count, (float)beta, to + v * features);
    for (int64_t i = 0; i < rows; i++) {
        int64_t v = row_of(ids, i, vocabulary);
        if (v >= 0)
            dsc_cpu_add(k, r.count, to + v * features, from + i * features, to + v * features);
    }
}

/* Features are shared among threads, so that no sum depends on the number of threads. */
static dsc_status embedding_backward(dsc_queue *q, const dsc_tensor *ids, const dsc_tensor *dy, double beta,
                                     dsc_tensor *work, dsc_tensor *dtable) {
    (void)work;
    enum { LINE = 16 }; /* floats in a cache line */
    int64_t features = dtable->dim[1];
    int parts = dsc_cpu_parts(q->device, dsc_tensor_count(dy) + dsc_tensor_count(dtable));
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++) {
        dsc_cpu_range range = dsc_cpu_share(features, LINE, parts, p);
        if (range.count > 0)
            add_features(dsc_cpu_kernels_of(q), ids, dy, beta, range, dtable);
    }
    return DSC_OK;
}

void dsc_cpu_table_embedding(dsc_device_table *table) {
    table->embedding_forward = embedding_forward;
    table->embedding_backward = embedding_backward;
}
