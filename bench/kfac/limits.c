/* What bounds a K-FAC update on this machine: the rate of a large matrix product on all threads, the time of
 * all eigen solves of a model one after the other on one thread, and of the same solves spread over the
 * threads. Prints one JSON object.
 *
 *   bench_limits [MODEL [THREADS [ROUNDS]]] */
#include "kfac/factors.h"

#include "base/clock.h"
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>

enum { SIDE = 2048, MAX_ROUNDS = 100 };

static void check(dsc_status status) {
    dsc_bench_check("bench_limits", status);
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

static double time_product(dsc_queue *q, dsc_tensor m[3]) {
    double began = dsc_clock_now();
    check(dsc_op_gemm(q, 0, 0, 1, &m[0], &m[1], 0, &m[2]));
    return dsc_clock_now() - began;
}

typedef struct factors {
    int64_t count;
    dsc_solve_item *items;
    dsc_tensor *truth; /* the matrices to solve, copied for each measurement */
    dsc_tensor work;
} factors;

static factors make_factors(dsc_queue *q, const int64_t *sizes, int64_t count) {
    dsc_device *device = dsc_queue_device(q);
    factors f = {.count = count};
    check(dsc_memory_alloc(count, sizeof *f.items, &f.items));
    check(dsc_memory_alloc(count, sizeof *f.truth, &f.truth));
    for (int64_t i = 0; i < count; i++) {
        f.truth[i] = dsc_bench_tensor(device, DSC_F32, sizes[i], sizes[i]);
        f.items[i].a = dsc_bench_tensor(device, DSC_F32, sizes[i], sizes[i]);
        f.items[i].v = dsc_bench_tensor(device, DSC_F32, sizes[i], 0);
        dsc_bench_draw(q, (uint64_t)i, &f.truth[i]);
    }
    int64_t bytes = (int64_t)dsc_op_syev_batch_workspace(device, DSC_F32, sizes[0], count);
    f.work = dsc_bench_tensor(device, DSC_U8, bytes, 0);
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
    int64_t count = dsc_bench_sizes(narrow, model, &sizes);
    factors alone = make_factors(one_thread, sizes, count), shared = make_factors(all_threads, sizes, count);
    dsc_tensor m[3];
    for (int i = 0; i < 3; i++) {
        m[i] = dsc_bench_tensor(wide, DSC_F32, SIDE, SIDE);
        dsc_bench_random(all_threads, (uint64_t)i, &m[i]);
    }
    time_product(all_threads, m);
    for (int i = 0; i < rounds; i++) {
        product[i] = time_product(all_threads, m);
        one[i] = time_solves(one_thread, &alone, 0);
        many[i] = time_solves(all_threads, &shared, 1);
    }
    double gflops = 2e-9 * SIDE * SIDE * (double)SIDE / dsc_bench_median(product, rounds);
    printf("{\"model\": \"%s\", \"threads\": %d, \"factors\": %lld, \"sgemm_gflops\": %.1f, "
           "\"solves_one_thread_s\": "
           "%.5f, \"solves_s\": %.5f}\n",
           model, threads, (long long)count, gflops, dsc_bench_median(one, rounds),
           dsc_bench_median(many, rounds));
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
