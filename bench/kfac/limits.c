/* What bounds a K-FAC update on this machine: the rate of a large matrix product on all threads, the time of
 * all eigen solves of a model one after the other on one thread, and of the same solves spread over the
 * threads. Prints one JSON object.
 *
 *   bench_limits [MODEL [THREADS [ROUNDS]]] */
#include "base/clock.h"
#include "base/memory.h"
#include "base/rng.h"
#include "descent/model.h"
#include "descent/trainer.h"
#include "device/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 2048, MAX_ROUNDS = 100 };

static void check(dsc_status status) {
    if (status == DSC_OK)
        return;
    fprintf(stderr, "bench_limits: %s\n", dsc_error_message());
    exit(1);
}

static dsc_queue *open_cpu(int threads, dsc_device **device) {
    dsc_device_options options;
    dsc_queue *queue;
    dsc_device_options_init(&options);
    options.name = "cpu";
    options.threads = threads;
    check(dsc_device_create(&options, device));
    check(dsc_queue_create(*device, &queue));
    return queue;
}

static dsc_tensor make(dsc_device *device, dsc_dtype dtype, int64_t rows, int64_t columns) {
    const int64_t dim[2] = {rows, columns};
    dsc_tensor t;
    check(dsc_tensor_alloc(device, dtype, columns > 0 ? 2 : 1, dim, &t));
    return t;
}

static void fill_random(dsc_tensor *t, uint64_t stream) {
    dsc_rng rng = dsc_rng_start(1, DSC_RNG_TEST, 0, stream);
    float *data = t->data;
    for (int64_t i = 0, count = dsc_tensor_count(t); i < count; i++)
        data[i] = 2 * dsc_rng_uniform(&rng) - 1;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, by_value);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* Sizes of all factors of a model, the largest first. */
static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

static int64_t factor_sizes(const char *name, dsc_device *device, int64_t **out) {
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

/* Averages as they look in training: products of correlated rows, not of full rank, and a little of the
 * identity. */
static void draw_factor(dsc_queue *q, int64_t n, uint64_t stream, dsc_tensor *a) {
    dsc_tensor rows = make(a->device, DSC_F32, n / 2 + 1, n), little = make(a->device, DSC_F64, 1, 0);
    float *x = rows.data;
    fill_random(&rows, stream);
    for (int64_t i = 0; i < rows.dim[0]; i++)
        for (int64_t j = 1; j < n; j++)
            x[i * n + j] = 0.9f * x[i * n + j - 1] + 0.4f * x[i * n + j];
    check(dsc_op_syrk(q, 1 / (double)n, &rows, 0, a));
    check(dsc_op_symmetrize(q, a));
    check(dsc_op_fill(q, 0.01, &little));
    check(dsc_op_add_diagonal(q, &little, a));
    dsc_tensor_free(&rows);
    dsc_tensor_free(&little);
}

static double time_product(dsc_queue *q, dsc_tensor m[3]) {
    double began = dsc_clock_now();
    check(dsc_op_gemm(q, 0, 0, 1, &m[0], &m[1], 0, &m[2]));
    return dsc_clock_now() - began;
}

typedef struct factors {
    int64_t count;
    dsc_solve_item *items;
    dsc_tensor *truth; /* what is solved, each time anew */
    dsc_tensor work;
} factors;

static factors make_factors(dsc_queue *q, const int64_t *sizes, int64_t count) {
    dsc_device *device = dsc_queue_device(q);
    factors f = {.count = count};
    check(dsc_memory_alloc(count, sizeof *f.items, &f.items));
    check(dsc_memory_alloc(count, sizeof *f.truth, &f.truth));
    for (int64_t i = 0; i < count; i++) {
        f.truth[i] = make(device, DSC_F32, sizes[i], sizes[i]);
        f.items[i].a = make(device, DSC_F32, sizes[i], sizes[i]);
        f.items[i].v = make(device, DSC_F32, sizes[i], 0);
        draw_factor(q, sizes[i], (uint64_t)i, &f.truth[i]);
    }
    int64_t bytes = (int64_t)dsc_op_syev_batch_workspace(device, DSC_F32, sizes[0], count);
    f.work = make(device, DSC_U8, bytes, 0);
    return f;
}

static void free_factors(factors *f) {
    for (int64_t i = 0; i < f->count; i++) {
        dsc_tensor_free(&f->truth[i]);
        dsc_tensor_free(&f->items[i].a);
        dsc_tensor_free(&f->items[i].v);
    }
    dsc_tensor_free(&f->work);
    dsc_memory_free(&f->items);
    dsc_memory_free(&f->truth);
}

static double time_solves(dsc_queue *q, factors *f, int together) {
    for (int64_t i = 0; i < f->count; i++)
        check(dsc_op_convert(q, &f->truth[i], &f->items[i].a));
    double began = dsc_clock_now();
    if (together)
        check(dsc_op_syev_batch(q, f->items, f->count, &f->work));
    for (int64_t i = 0; !together && i < f->count; i++)
        check(dsc_op_syev(q, &f->items[i].a, &f->work, &f->items[i].v));
    return dsc_clock_now() - began;
}

int main(int argc, char **argv) {
    const char *model = argc > 1 ? argv[1] : "resnet32";
    int threads = argc > 2 ? atoi(argv[2]) : 2, rounds = argc > 3 ? atoi(argv[3]) : 5;
    double product[MAX_ROUNDS], one[MAX_ROUNDS], many[MAX_ROUNDS];
    dsc_device *narrow, *wide;
    int64_t *sizes;
    if (rounds < 1 || rounds > MAX_ROUNDS)
        rounds = 5;
    dsc_queue *one_thread = open_cpu(1, &narrow), *all_threads = open_cpu(threads, &wide);
    int64_t count = factor_sizes(model, narrow, &sizes);
    factors alone = make_factors(one_thread, sizes, count), shared = make_factors(all_threads, sizes, count);
    dsc_tensor m[3];
    for (int i = 0; i < 3; i++) {
        m[i] = make(wide, DSC_F32, SIDE, SIDE);
        fill_random(&m[i], (uint64_t)i);
    }
    time_product(all_threads, m);
    for (int i = 0; i < rounds; i++) {
        product[i] = time_product(all_threads, m);
        one[i] = time_solves(one_thread, &alone, 0);
        many[i] = time_solves(all_threads, &shared, 1);
    }
    double gflops = 2e-9 * SIDE * SIDE * (double)SIDE / median(product, rounds);
    printf("{\"model\": \"%s\", \"threads\": %d, \"factors\": %lld, \"sgemm_gflops\": %.1f, "
           "\"solves_one_thread_s\": "
           "%.5f, \"solves_s\": %.5f}\n",
           model, threads, (long long)count, gflops, median(one, rounds), median(many, rounds));
    for (int i = 0; i < 3; i++)
        dsc_tensor_free(&m[i]);
    free_factors(&alone);
    free_factors(&shared);
    dsc_memory_free(&sizes);
    dsc_queue_destroy(&one_thread);
    dsc_queue_destroy(&all_threads);
    dsc_device_destroy(&narrow);
    dsc_device_destroy(&wide);
    return 0;
}
