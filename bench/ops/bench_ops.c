/* bench_ops: the rates of the cpu device's operations, next to what the machine can do at most. One line per
 * operation: median time, rate, share of the measured peak; convolutions by oneDNN and by our own path.
 *
 *   bench_ops [--threads N] [--seconds S]     S: time spent on each line, 0.2 */
#include "base/clock.h"
#include "device/cpu/conv.h"
#include "device/ops.h"
#include "ops/peak.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_REPEATS = 1000, MAX_TENSORS = 16 };

typedef struct bench {
    dsc_device *device;
    dsc_queue *q;
    dsc_tensor tensors[MAX_TENSORS]; /* of the current line */
    int count;
    double seconds, peak_flops, peak_bytes;
} bench;

typedef dsc_status (*bench_function)(bench *b, const void *params);

/* Prints the error and ends the program: this is a main program. */
static void must(dsc_status status) {
    if (status == DSC_OK)
        return;
    fprintf(stderr, "bench_ops: %s: %s\n", dsc_status_text(status), dsc_error_message());
    exit(1);
}

static dsc_tensor *make(bench *b, dsc_dtype dtype, int ndim, const int64_t *dim) {
    dsc_tensor *t = &b->tensors[b->count++];
    must(dsc_tensor_alloc(b->device, dtype, ndim, dim, t));
    if (dtype == DSC_F32) {
        float *values = t->data;
        int64_t n = dsc_tensor_count(t);
        for (int64_t i = 0; i < n; i++)
            values[i] = (float)((i * 2654435761u >> 8) & 0xFFFF) / 65536.0f - 0.5f;
    }
    return t;
}

static void free_all(bench *b) {
    while (b->count > 0)
        dsc_tensor_free(&b->tensors[--b->count]);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median seconds of a call, after one to warm up. */
static double time_of(bench *b, bench_function run, const void *params) {
    static double times[MAX_REPEATS];
    int count = 0;
    must(run(b, params));
    double begin = dsc_clock_now();
    do {
        double start = dsc_clock_now();
        must(run(b, params));
        times[count++] = dsc_clock_now() - start;
    } while (count < MAX_REPEATS && (count < 5 || dsc_clock_now() - begin < b->seconds));
    qsort(times, (size_t)count, sizeof times[0], compare);
    return times[count / 2];
}

/* work: flops or bytes of a call. */
static void print_line(const char *operation, const char *shape, const char *how, double seconds, double work,
                       const char *unit, double peak) {
    double rate = work / seconds * 1e-9;
    printf("%-22s %-28s %-26s %9.3f %9.1f %-7s %5.0f%%\n", operation, shape, how, seconds * 1e3, rate, unit,
           100 * rate / peak);
    fflush(stdout);
}

/* ---- convolutions ---- */

typedef struct conv_case {
    int64_t n, size, c, k, kernel, stride;
} conv_case;

/* ResNet-32 on 32x32 images, then layers of ResNet-50. */
static const conv_case conv_cases[] = {
    {128, 32, 3, 16, 3, 1},   {128, 32, 16, 16, 3, 1},   {128, 32, 16, 32, 3, 2},  {128, 16, 32, 32, 3, 1},
    {128, 16, 32, 64, 3, 2},  {128, 8, 64, 64, 3, 1},    {16, 224, 3, 64, 7, 2},   {16, 56, 64, 64, 1, 1},
    {16, 56, 64, 64, 3, 1},   {16, 56, 64, 256, 1, 1},   {16, 56, 128, 128, 3, 2}, {16, 56, 256, 512, 1, 2},
    {16, 14, 256, 256, 3, 1}, {16, 14, 1024, 256, 1, 1}, {16, 7, 512, 512, 3, 1}};

typedef struct conv_call {
    dsc_conv *conv;
    dsc_tensor *x, *w, *y, *work;
    dsc_conv_pass pass;
} conv_call;

static dsc_status run_conv(bench *b, const void *params) {
    const conv_call *call = params;
    switch (call->pass) {
    case DSC_CONV_FORWARD:
        return dsc_op_conv_forward(b->q, call->conv, call->x, call->w, NULL, call->work, call->y);
    case DSC_CONV_BACKWARD_DATA:
        return dsc_op_conv_backward_data(b->q, call->conv, call->w, call->y, 0, call->work, call->x);
    default:
        return dsc_op_conv_backward_weight(b->q, call->conv, call->x, call->y, 0, call->work, call->w);
    }
}

static void bench_conv(bench *b, const conv_case *s) {
    static const char *const names[] = {"conv forward", "conv backward data", "conv backward weight"};
    dsc_conv_desc d = {DSC_F32,   s->n,      s->size,       s->size,       s->c, s->k, s->kernel, s->kernel,
                       s->stride, s->stride, s->kernel / 2, s->kernel / 2, 1,    1,    1};
    int64_t oh, ow;
    conv_call call;
    char shape[64];
    must(dsc_conv_output(&d, &oh, &ow));
    must(dsc_conv_create(b->device, &d, &call.conv));
    int64_t bytes = (int64_t)dsc_conv_workspace(call.conv);
    call.x = make(b, DSC_F32, 4, (const int64_t[]){d.n, d.h, d.w, d.c});
    call.w = make(b, DSC_F32, 4, (const int64_t[]){d.k, d.kh, d.kw, d.c});
    call.y = make(b, DSC_F32, 4, (const int64_t[]){d.n, oh, ow, d.k});
    call.work = make(b, DSC_U8, 1, &bytes);
    snprintf(shape, sizeof shape, "%lldx%lldx%lldx%lld k%lld %lldx%lld/%lld", (long long)d.n, (long long)d.h,
             (long long)d.w, (long long)d.c, (long long)d.k, (long long)d.kh, (long long)d.kw,
             (long long)d.stride_h);
    double flops = 2.0 * (double)(d.n * oh * ow * d.k) * (double)(d.kh * d.kw * d.c);
    for (int pass = 0; pass < DSC_CONV_PASSES; pass++) {
        call.pass = (dsc_conv_pass)pass;
        print_line(names[pass], shape, dsc_cpu_conv_implementation(call.conv, call.pass),
                   time_of(b, run_conv, &call), flops, "GFLOP/s", b->peak_flops);
    }
    dsc_conv_destroy(&call.conv);
    free_all(b);
}

/* ---- matrices ---- */

typedef struct matrix_call {
    int trans_a, trans_b;
    dsc_tensor *a, *b, *c;
} matrix_call;

static dsc_status run_gemm(bench *b, const void *params) {
    const matrix_call *call = params;
    return dsc_op_gemm(b->q, call->trans_a, call->trans_b, 1, call->a, call->b, 0, call->c);
}

static dsc_status run_syrk(bench *b, const void *params) {
    const matrix_call *call = params;
    return dsc_op_syrk(b->q, 1, call->a, 0, call->c);
}

static void bench_matrices(bench *b) {
    static const int64_t sizes[][3] = {
        {128, 64, 64}, {512, 512, 512}, {1024, 1024, 1024}, {16, 576, 576}, {64, 576, 576}};
    static const int64_t rows[][2] = {{8192, 64}, {8192, 145}, {8192, 577}, {1024, 1152}};
    char shape[64];
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
        matrix_call call = {0, 0, make(b, DSC_F32, 2, (const int64_t[]){m, k}),
                            make(b, DSC_F32, 2, (const int64_t[]){k, n}),
                            make(b, DSC_F32, 2, (const int64_t[]){m, n})};
        snprintf(shape, sizeof shape, "%lldx%lldx%lld", (long long)m, (long long)n, (long long)k);
        print_line("gemm", shape, "OpenBLAS", time_of(b, run_gemm, &call), 2.0 * (double)(m * n * k),
                   "GFLOP/s", b->peak_flops);
        free_all(b);
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t m = rows[i][0], n = rows[i][1];
        matrix_call call = {0, 0, make(b, DSC_F32, 2, (const int64_t[]){m, n}), NULL,
                            make(b, DSC_F32, 2, (const int64_t[]){n, n})};
        snprintf(shape, sizeof shape, "%lld rows of %lld", (long long)m, (long long)n);
        print_line("syrk", shape, "OpenBLAS", time_of(b, run_syrk, &call), (double)(m * n * (n + 1)),
                   "GFLOP/s", b->peak_flops);
        free_all(b);
    }
}

/* ---- memory-bound passes ---- */

typedef struct norm_call {
    dsc_norm_desc desc;
    dsc_tensor *x, *y, *dy, *dx, *residual, *dresidual, *channel[8];
} norm_call;

static dsc_status run_norm_forward(bench *b, const void *params) {
    const norm_call *n = params;
    dsc_norm_params p = {n->channel[0], n->channel[1], n->channel[2], n->channel[3]};
    return dsc_op_norm_forward_train(b->q, &n->desc, n->x, n->residual, &p, n->channel[4], n->channel[5],
                                     n->y);
}

static dsc_status run_norm_backward(bench *b, const void *params) {
    const norm_call *n = params;
    dsc_norm_grads grads = {n->dx, n->dresidual, n->channel[6], n->channel[7], 0, 0, 0};
    return dsc_op_norm_backward(b->q, &n->desc, n->x, n->y, n->dy, n->channel[0], n->channel[4],
                                n->channel[5], &grads);
}

static dsc_status run_relu(bench *b, const void *params) {
    const norm_call *n = params;
    return dsc_op_relu_forward(b->q, n->x, n->y);
}

static dsc_status run_add(bench *b, const void *params) {
    const norm_call *n = params;
    return dsc_op_add(b->q, n->x, n->dy, n->y);
}

/* Rates count each tensor once per pass that needs it: forward x, x, y; backward x, y, dy twice and dx. */
static void bench_norm(bench *b, int64_t rows, int64_t c, int with_residual) {
    const int64_t dim[] = {rows, c};
    double bytes = (double)(rows * c) * sizeof(float);
    const char *how = with_residual ? "with ReLU and residual" : "with ReLU";
    char shape[64];
    norm_call call = {.desc = {1e-5, 0.1, 1}};
    call.x = make(b, DSC_F32, 2, dim);
    call.y = make(b, DSC_F32, 2, dim);
    call.dy = make(b, DSC_F32, 2, dim);
    call.dx = make(b, DSC_F32, 2, dim);
    call.residual = with_residual ? make(b, DSC_F32, 2, dim) : NULL;
    call.dresidual = with_residual ? make(b, DSC_F32, 2, dim) : NULL;
    for (int i = 0; i < 8; i++)
        call.channel[i] = make(b, DSC_F32, 1, &c);
    snprintf(shape, sizeof shape, "%lldx%lld", (long long)rows, (long long)c);
    print_line("norm forward", shape, how, time_of(b, run_norm_forward, &call), (3 + with_residual) * bytes,
               "GB/s", b->peak_bytes);
    print_line("norm backward", shape, how, time_of(b, run_norm_backward, &call), (7 + with_residual) * bytes,
               "GB/s", b->peak_bytes);
    if (!with_residual) {
        print_line("relu", shape, "", time_of(b, run_relu, &call), 2 * bytes, "GB/s", b->peak_bytes);
        print_line("add", shape, "", time_of(b, run_add, &call), 3 * bytes, "GB/s", b->peak_bytes);
    }
    free_all(b);
}

/* ---- main ---- */

static void open_device(bench *b, const char *name, int threads) {
    dsc_device_options options;
    dsc_device_options_init(&options);
    options.name = name;
    options.threads = threads;
    must(dsc_device_create(&options, &b->device));
    must(dsc_queue_create(b->device, &b->q));
    printf("%s\n", dsc_device_description(b->device));
}

static void close_device(bench *b) {
    dsc_queue_destroy(&b->q);
    dsc_device_destroy(&b->device);
}

static void bench_convs(bench *b, const char *name, int threads) {
    open_device(b, name, threads);
    for (size_t i = 0; i < sizeof conv_cases / sizeof conv_cases[0]; i++)
        bench_conv(b, &conv_cases[i]);
    close_device(b);
}

int main(int argc, char **argv) {
    bench b = {.seconds = 0.2};
    int threads = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc && atoi(argv[i + 1]) > 0) {
            threads = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc && atof(argv[i + 1]) > 0) {
            b.seconds = atof(argv[++i]);
        } else {
            int help = strcmp(argv[i], "--help") == 0;
            fprintf(help ? stdout : stderr, "usage: bench_ops [--threads N] [--seconds S a line]\n");
            return help ? 0 : 2;
        }
    }
    open_device(&b, "cpu", threads);
    threads = dsc_device_threads(b.device);
    b.peak_flops = dsc_bench_peak_flops(threads);
    b.peak_bytes = dsc_bench_peak_bandwidth(threads);
    printf("peak, %d threads: %.0f GFLOP/s fused multiply-add, %.1f GB/s triad\n", threads, b.peak_flops,
           b.peak_bytes);
    printf("%-22s %-28s %-26s %9s %9s %-7s %6s\n", "operation", "shape", "implementation", "ms", "rate", "",
           "peak");
    bench_norm(&b, 128 * 32 * 32, 16, 0);
    bench_norm(&b, 128 * 32 * 32, 16, 1);
    bench_norm(&b, 128 * 8 * 8, 64, 0);
    bench_norm(&b, 16 * 14 * 14, 1024, 1);
    bench_matrices(&b);
    close_device(&b);
    bench_convs(&b, "cpu", threads);
    bench_convs(&b, "cpu:plain", threads);
    return 0;
}
