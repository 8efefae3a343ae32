#include "kfac/factors.h"

#include "base/memory.h"
#include "base/rng.h"
#include "descent/model.h"
#include "descent/trainer.h"

#include <stdio.h>
#include <stdlib.h>

void dsc_bench_check(const char *program, dsc_status status) {
    if (status == DSC_OK)
        return;
    fprintf(stderr, "%s: %s\n", program, dsc_error_message());
    exit(1);
}

static void check(dsc_status status) {
    dsc_bench_check("factors", status);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double dsc_bench_median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, by_value);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

dsc_tensor dsc_bench_tensor(dsc_device *device, dsc_dtype dtype, int64_t rows, int64_t columns) {
    const int64_t dim[2] = {rows, columns};
    dsc_tensor t;
    check(dsc_tensor_alloc(device, dtype, columns > 0 ? 2 : 1, dim, &t));
    return t;
}

static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

int64_t dsc_bench_sizes(dsc_device *device, const char *name, int64_t **out) {
    int64_t side, channels, classes, count, n = 0;
    dsc_model *model;
    dsc_kfac_layer *layers;
    check(dsc_zoo_default_input(name, &side, &channels, &classes));
    check(dsc_zoo_create(device, name, side, side, channels, classes, NULL, &model));
    check(dsc_kfac_layers_of_model(model, &layers, &count));
    check(dsc_memory_alloc(2 * count, sizeof **out, out));
    for (int64_t i = 0; i < count; i++, n += 2) {
        int64_t units;
        check(dsc_kfac_layer_factors(&layers[i], &(*out)[n], &(*out)[n + 1], &units));
    }
    qsort(*out, (size_t)n, sizeof **out, by_size);
    dsc_memory_free(&layers);
    dsc_model_destroy(&model);
    return n;
}

/* Uploads random rows; if `correlated`, each element keeps 0.9 of the one in the column before. */
static void upload_random(dsc_queue *q, uint64_t stream, int correlated, dsc_tensor *t) {
    dsc_rng rng = dsc_rng_start(1, DSC_RNG_TEST, 0, stream);
    int64_t count = dsc_tensor_count(t), n = t->dim[t->ndim - 1];
    float *x;
    check(dsc_memory_alloc(count, sizeof *x, &x));
    for (int64_t i = 0; i < count; i++)
        x[i] = 2 * dsc_rng_uniform(&rng) - 1;
    for (int64_t i = 0; correlated && i < count; i++)
        x[i] = i % n ? 0.9f * x[i - 1] + 0.4f * x[i] : x[i];
    check(dsc_tensor_upload(q, x, dsc_tensor_bytes(t), t));
    check(dsc_queue_sync(q));
    dsc_memory_free(&x);
}

void dsc_bench_random(dsc_queue *q, uint64_t stream, dsc_tensor *t) {
    upload_random(q, stream, 0, t);
}

void dsc_bench_draw(dsc_queue *q, uint64_t stream, dsc_tensor *a) {
    int64_t n = a->dim[0];
    dsc_tensor rows = dsc_bench_tensor(a->device, DSC_F32, n / 2 + 1, n);
    dsc_tensor little = dsc_bench_tensor(a->device, DSC_F64, 1, 0);
    upload_random(q, stream, 1, &rows);
    check(dsc_op_syrk(q, 1 / (double)n, &rows, 0, a));
    check(dsc_op_symmetrize(q, a));
    check(dsc_op_fill(q, 0.01, &little));
    check(dsc_op_add_diagonal(q, &little, a));
    check(dsc_queue_sync(q));
    dsc_tensor_free(&rows);
    dsc_tensor_free(&little);
}
