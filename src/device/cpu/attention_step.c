/* One position of attention with a cache on the cpu device. The heads of all sequences are shared among threads; one
 * thread computes a whole head, so that the order of its sums is fixed. */
#include "device/cpu/cpu.h"

#include <math.h>
#include <string.h>

static dsc_status attention_step(dsc_queue *q, const dsc_attention_desc *desc, const dsc_tensor *x,
                                 int64_t position, dsc_tensor *cache, dsc_tensor *y) {
    const dsc_cpu_kernels *kernels = dsc_cpu_kernels_of(q);
    int64_t n = x->dim[0], positions = cache->dim[1], d = y->dim[3], dh = d / desc->heads;
    size_t bytes = (size_t)dh * sizeof(float);
    int parts = dsc_cpu_parts(q->device, n * (position + 1) * 2 * d);
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int64_t i = 0; i < n * desc->heads; i++) {
        int64_t sample = i / desc->heads, first = i % desc->heads * dh;
        const float *query = (const float *)x->data + sample * 3 * d + first;
        float *key = (float *)cache->data + sample * positions * 2 * d + first, *own = key + position * 2 * d;
        memcpy(own, query + d, bytes);
        memcpy(own + d, query + 2 * d, bytes);
        dsc_cpu_step a = {.keys = position + 1,
                          .width = dh,
                          .row = 2 * d,
                          .scale = (float)(1 / sqrt((double)dh)),
                          .query = query,
                          .key = key,
                          .value = key + d,
                          .y = (float *)y->data + sample * d + first};
        kernels->attention_step(&a);
    }
    return DSC_OK;
}

void dsc_cpu_table_attention_step(dsc_device_table *table) {
    table->attention_step = attention_step;
}
