/* bench_refresh: eigenbases turned to those of changed factors by products and one Cholesky, against the exact
 * solves of the same factors in the same run. For whole bases and for bases cut to a quarter: the time of each
 * part in milliseconds, the ratio, and how well the bases fit (the mean over the factors of the residual that
 * dsc_op_rayleigh_batch reports, before and after). Inverses by Cholesky, and exact solves by the quickest
 * algorithm that the device has for few rows, are timed as well.
 *
 *   bench_refresh [--device cpu|cuda] [--model NAME] [--least ROWS] [--most ROWS] [--threads N] [--rounds N]
 *
 * Factors of less than --least or more than --most rows are left out. */
#include "kfac/factors.h"

#include "base/clock.h"
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROUNDS = 100 };
enum { PRODUCTS, ROTATION, ORTHONORMAL, RAYLEIGH, PHASES };

static const double delta = 1e-3, drift = 0.4; /* drift: the part of a factor that is new after ten steps */

static void check(dsc_status status) {
    dsc_bench_check("bench_refresh", status);
}

/* A factor, its earlier value, and the exact solution of one of them. */
typedef struct factor {
    dsc_tensor a, before, exact, v;
} factor;

/* A basis of a factor and all that its refresh needs. */
typedef struct basis {
    dsc_tensor a, q, y, b, x, z, h, v, result;
} basis;

typedef struct bench {
    dsc_queue *q;
    int64_t count;
    factor *factors;
    basis *bases;
    dsc_solve_item *solves;
    dsc_gemm_item *products;
    dsc_rotation_item *rotations;
    dsc_orthonormal_item *orthonormals;
    dsc_rayleigh_item *rayleighs;
    dsc_tensor work;
} bench;

/* ---- exact solves ---- */

/* Seconds of the solves of the earlier factors (`old`), or of the present ones; `quick`: with the quickest algorithm
 * for few rows. */
static double solve(bench *b, int old, int quick) {
    for (int64_t i = 0; i < b->count; i++) {
        factor *f = &b->factors[i];
        check(dsc_op_convert(b->q, old ? &f->before : &f->a, &f->exact));
        b->solves[i] = (dsc_solve_item){.a = f->exact, .v = f->v, .quick = quick};
    }
    check(dsc_queue_sync(b->q));
    double began = dsc_clock_now();
    check(dsc_op_syev_batch(b->q, b->solves, b->count, &b->work));
    check(dsc_queue_sync(b->q));
    return dsc_clock_now() - began;
}

/* Seconds of the inverses of the same factors. */
static double invert(bench *b) {
    for (int64_t i = 0; i < b->count; i++) {
        check(dsc_op_convert(b->q, &b->factors[i].a, &b->factors[i].exact));
        b->solves[i] = (dsc_solve_item){.a = b->factors[i].exact};
    }
    check(dsc_queue_sync(b->q));
    double began = dsc_clock_now();
    check(dsc_op_chol_inverse_batch(b->q, b->solves, b->count));
    return dsc_clock_now() - began;
}

static void make_factors(bench *b, const int64_t *sizes) {
    dsc_device *device = dsc_queue_device(b->q);
    check(dsc_memory_alloc(b->count, sizeof *b->factors, &b->factors));
    check(dsc_memory_alloc(b->count, sizeof *b->solves, &b->solves));
    for (int64_t i = 0; i < b->count; i++) {
        factor *f = &b->factors[i];
        dsc_tensor *all[] = {&f->a, &f->before, &f->exact};
        for (int t = 0; t < 3; t++)
            *all[t] = dsc_bench_tensor(device, DSC_F32, sizes[i], sizes[i]);
        f->v = dsc_bench_tensor(device, DSC_F32, sizes[i], 0);
        dsc_bench_draw(b->q, (uint64_t)(2 * i), &f->before);
        dsc_bench_draw(b->q, (uint64_t)(2 * i + 1), &f->a);
        check(dsc_op_axpby(b->q, 1 - drift, &f->before, drift, &f->a));
    }
    int64_t bytes = (int64_t)dsc_op_syev_batch_workspace(device, DSC_F32, sizes[0], b->count);
    b->work = dsc_bench_tensor(device, DSC_U8, bytes > 0 ? bytes : 1, 0);
}

/* ---- refreshes ---- */

/* The last k columns of the exact basis, the largest first. */
static void take_columns(bench *b, const dsc_tensor *exact, dsc_tensor *to) {
    int64_t n = to->dim[0], k = to->dim[1];
    float *from, *columns;
    check(dsc_memory_alloc(n * n, sizeof *from, &from));
    check(dsc_memory_alloc(n * k, sizeof *columns, &columns));
    check(dsc_tensor_download(b->q, exact, dsc_tensor_bytes(exact), from));
    check(dsc_queue_sync(b->q));
    for (int64_t e = 0; e < n * k; e++)
        columns[e] = from[e / k * n + (n - 1 - e % k)];
    check(dsc_tensor_upload(b->q, columns, dsc_tensor_bytes(to), to));
    check(dsc_queue_sync(b->q));
    dsc_memory_free(&from);
    dsc_memory_free(&columns);
}

/* Makes bases with a part of the columns, from the solutions in b->factors. */
static void make_bases(bench *b, int part) {
    dsc_device *device = dsc_queue_device(b->q);
    check(dsc_memory_alloc(b->count, sizeof *b->bases, &b->bases));
    check(dsc_memory_alloc(b->count, sizeof *b->products, &b->products));
    check(dsc_memory_alloc(b->count, sizeof *b->rotations, &b->rotations));
    check(dsc_memory_alloc(b->count, sizeof *b->orthonormals, &b->orthonormals));
    check(dsc_memory_alloc(b->count, sizeof *b->rayleighs, &b->rayleighs));
    for (int64_t i = 0; i < b->count; i++) {
        int64_t n = b->factors[i].a.dim[0], k = (n + part - 1) / part;
        basis *s = &b->bases[i];
        dsc_tensor *tall[] = {&s->q, &s->y, &s->z}, *square[] = {&s->b, &s->x, &s->h};
        s->a = b->factors[i].a;
        for (int t = 0; t < 3; t++) {
            *tall[t] = dsc_bench_tensor(device, DSC_F32, n, k);
            *square[t] = dsc_bench_tensor(device, DSC_F32, k, k);
        }
        s->v = dsc_bench_tensor(device, DSC_F32, k, 0);
        s->result = dsc_bench_tensor(device, DSC_F64, 3, 0);
        take_columns(b, &b->factors[i].exact, &s->q);
        b->rotations[i] = (dsc_rotation_item){s->b, s->q, s->y, s->x, s->z, delta};
        b->orthonormals[i] = (dsc_orthonormal_item){.h = s->h, .z = s->z, .fast = k == n};
        b->rayleighs[i] = (dsc_rayleigh_item){s->a, s->z, s->y, s->v, s->result, delta};
    }
}

static void free_bases(bench *b) {
    for (int64_t i = 0; i < b->count; i++) {
        basis *s = &b->bases[i];
        dsc_tensor *all[] = {&s->q, &s->y, &s->b, &s->x, &s->z, &s->h, &s->v, &s->result};
        for (size_t t = 0; t < sizeof all / sizeof all[0]; t++)
            dsc_tensor_free(all[t]);
    }
    dsc_memory_free(&b->bases);
    dsc_memory_free(&b->products);
    dsc_memory_free(&b->rotations);
    dsc_memory_free(&b->orthonormals);
    dsc_memory_free(&b->rayleighs);
}

/* The products of a refresh, in their order. */
typedef enum product { Y_OF_Q, B_OF_Y, Z_PLUS_QX, H_OF_Z, Y_OF_Z } product;

static void multiply(bench *b, product which) {
    for (int64_t i = 0; i < b->count; i++) {
        const basis *s = &b->bases[i];
        const dsc_gemm_item items[] = {
            [Y_OF_Q] = {.a = s->a, .b = s->q, .c = s->y},
            [B_OF_Y] = {.trans_a = 1, .a = s->q, .b = s->y, .c = s->b},
            [Z_PLUS_QX] = {.beta = 1, .a = s->q, .b = s->x, .c = s->z},
            [H_OF_Z] = {.trans_a = 1, .a = s->z, .b = s->z, .c = s->h},
            [Y_OF_Z] = {.a = s->a, .b = s->z, .c = s->y},
        };
        b->products[i] = items[which];
        b->products[i].alpha = 1;
        b->products[i].fast = 1;
    }
    check(dsc_op_gemm_batch(b->q, b->products, b->count));
}

/* Adds the time since *last to a phase. */
static void account(bench *b, double *last, double *phase) {
    check(dsc_queue_sync(b->q));
    double now = dsc_clock_now();
    *phase += now - *last;
    *last = now;
}

static void refresh(bench *b, double seconds[PHASES]) {
    memset(seconds, 0, PHASES * sizeof *seconds);
    check(dsc_queue_sync(b->q));
    double last = dsc_clock_now();
    multiply(b, Y_OF_Q);
    multiply(b, B_OF_Y);
    account(b, &last, &seconds[PRODUCTS]);
    check(dsc_op_rotation_batch(b->q, b->rotations, b->count));
    account(b, &last, &seconds[ROTATION]);
    multiply(b, Z_PLUS_QX);
    multiply(b, H_OF_Z);
    account(b, &last, &seconds[PRODUCTS]);
    check(dsc_op_orthonormal_batch(b->q, b->orthonormals, b->count));
    account(b, &last, &seconds[ORTHONORMAL]);
    multiply(b, Y_OF_Z);
    account(b, &last, &seconds[PRODUCTS]);
    check(dsc_op_rayleigh_batch(b->q, b->rayleighs, b->count));
    account(b, &last, &seconds[RAYLEIGH]);
}

/* The mean of the residuals that the last call left; ends the program when a Cholesky has failed. */
static double mean_residual(bench *b) {
    double sum = 0;
    for (int64_t i = 0; i < b->count; i++) {
        double result[3];
        if (b->orthonormals[i].failed) {
            fprintf(stderr, "bench_refresh: no Cholesky factor of %lld rows\n",
                    (long long)b->bases[i].h.dim[0]);
            exit(1);
        }
        check(dsc_tensor_download(b->q, &b->bases[i].result, sizeof result, result));
        check(dsc_queue_sync(b->q));
        sum += result[2];
    }
    return sum / (double)b->count;
}

/* The mean residual of the bases before the refresh. */
static double residual_before(bench *b) {
    for (int64_t i = 0; i < b->count; i++)
        check(dsc_op_convert(b->q, &b->bases[i].q, &b->bases[i].z));
    multiply(b, Y_OF_Z);
    check(dsc_op_rayleigh_batch(b->q, b->rayleighs, b->count));
    return mean_residual(b);
}

/* ---- the table ---- */

static void print_line(const char *name, double seconds[PHASES][MAX_ROUNDS], double *ratios, int rounds) {
    double total = 0;
    printf("%-6s", name);
    for (int p = 0; p < PHASES; p++) {
        double median = dsc_bench_median(seconds[p], rounds);
        total += median;
        printf(" %11.3f", median * 1e3);
    }
    printf(" %11.3f %8.3f", total * 1e3, dsc_bench_median(ratios, rounds));
}

static void measure(bench *b, const char *name, int part, int rounds) {
    static double seconds[PHASES][MAX_ROUNDS], ratios[MAX_ROUNDS];
    solve(b, 1, 0);
    make_bases(b, part);
    double before = residual_before(b), now[PHASES];
    refresh(b, now);
    for (int i = 0; i < rounds; i++) {
        double exact = solve(b, 0, 0), total = 0;
        refresh(b, now);
        for (int p = 0; p < PHASES; p++) {
            seconds[p][i] = now[p];
            total += now[p];
        }
        ratios[i] = total / exact;
    }
    print_line(name, seconds, ratios, rounds);
    printf(" %9.4f %9.4f\n", before, mean_residual(b));
    free_bases(b);
}

/* ---- the program ---- */

typedef struct settings {
    const char *device, *model;
    int least, most, threads, rounds;
} settings;

static void read_arguments(int argc, char **argv, settings *s) {
    const struct {
        const char *name;
        int *number;
        const char **text;
    } options[] = {{"--device", NULL, &s->device},   {"--model", NULL, &s->model},
                   {"--least", &s->least, NULL},     {"--most", &s->most, NULL},
                   {"--threads", &s->threads, NULL}, {"--rounds", &s->rounds, NULL}};
    for (int i = 1; i < argc; i += 2) {
        size_t o = 0;
        while (o < sizeof options / sizeof options[0] && strcmp(argv[i], options[o].name) != 0)
            o++;
        int known = o < sizeof options / sizeof options[0] && i + 1 < argc;
        if (known && options[o].text)
            *options[o].text = argv[i + 1];
        else if (known)
            *options[o].number = atoi(argv[i + 1]);
        if (!known || (options[o].number && *options[o].number < 1) || s->rounds > MAX_ROUNDS) {
            fprintf(stderr,
                    "usage: bench_refresh [--device cpu|cuda] [--model NAME] [--least ROWS] [--most ROWS] "
                    "[--threads N] [--rounds N (at most 100)]\n");
            exit(2);
        }
    }
}

static dsc_queue *open_queue(const settings *s, dsc_device **device) {
    dsc_device_options options;
    dsc_queue *queue;
    dsc_device_options_init(&options);
    options.name = s->device;
    options.threads = s->threads;
    check(dsc_device_create(&options, device));
    check(dsc_queue_create(*device, &queue));
    return queue;
}

static void free_factors(bench *b) {
    for (int64_t i = 0; i < b->count; i++) {
        factor *f = &b->factors[i];
        dsc_tensor *all[] = {&f->a, &f->before, &f->exact, &f->v};
        for (int t = 0; t < 4; t++)
            dsc_tensor_free(all[t]);
    }
    dsc_tensor_free(&b->work);
    dsc_memory_free(&b->factors);
    dsc_memory_free(&b->solves);
}

int main(int argc, char **argv) {
    settings s = {
        .device = "cpu", .model = "resnet32", .least = 129, .most = 1 << 20, .threads = 2, .rounds = 5};
    bench b = {.count = 0};
    dsc_device *device;
    int64_t *sizes;
    read_arguments(argc, argv, &s);
    b.q = open_queue(&s, &device);
    int64_t all = dsc_bench_sizes(device, s.model, &sizes), first = 0;
    while (first < all && sizes[first] > s.most)
        first++;
    while (first + b.count < all && sizes[first + b.count] >= s.least)
        b.count++;
    if (b.count == 0) {
        fprintf(stderr, "bench_refresh: %s has no factor of %d to %d rows\n", s.model, s.least, s.most);
        return 1;
    }
    make_factors(&b, sizes + first);
    double exact[MAX_ROUNDS], quick[MAX_ROUNDS], inverses[MAX_ROUNDS];
    for (int i = -1; i < s.rounds; i++) {
        exact[i < 0 ? 0 : i] = solve(&b, 0, 0);
        quick[i < 0 ? 0 : i] = solve(&b, 0, 1);
        inverses[i < 0 ? 0 : i] = invert(&b);
    }
    printf("%s, %s: %lld factors of %lld to %lld rows\n", dsc_device_description(device), s.model,
           (long long)b.count, (long long)sizes[first + b.count - 1], (long long)sizes[first]);
    printf("exact solves %.3f ms, quick ones %.3f ms, inverses %.3f ms\n",
           dsc_bench_median(exact, s.rounds) * 1e3, dsc_bench_median(quick, s.rounds) * 1e3,
           dsc_bench_median(inverses, s.rounds) * 1e3);
    printf("%-6s %11s %11s %11s %11s %11s %8s %9s %9s\n", "ms", "products", "rotation", "orthonormal",
           "rayleigh", "refresh", "/ exact", "residual", "after");
    measure(&b, "whole", 1, s.rounds);
    measure(&b, "1/4", 4, s.rounds);
    free_factors(&b);
    dsc_memory_free(&sizes);
    dsc_queue_destroy(&b.q);
    dsc_device_destroy(&device);
    return 0;
}
