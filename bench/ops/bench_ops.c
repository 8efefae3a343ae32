/* bench_ops: the rates of the cpu device's operations, next to what the machine can do at most. One line per
 * operation: median time, rate, share of the measured peak; and the same without oneDNN, by our own path,
 * where that differs.
 *
 *   bench_ops [--threads N] [--seconds S]     S: time spent on each measurement, 0.2 */
#include "base/clock.h"
#include "device/cpu/conv.h"
#include "device/ops.h"
#include "ops/peak.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_REPEATS = 1000, MAX_TENSORS = 16 };

/* One device and the tensors of the current line. */
typedef struct bench {
    dsc_device *device;
    dsc_queue *q;
    dsc_tensor tensors[MAX_TENSORS];
    int count;
    double seconds;
} bench;

/* The peaks that rates are compared with. */
typedef struct peaks {
    double flops, bytes; /* GFLOP/s, GB/s */
} peaks;

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

typedef struct line {
    const char *operation, *shape, *how, *unit;
    double work, peak; /* flops or bytes of a call; the peak rate */
} line;

static void print_head(void) {
    printf("%-20s %-27s %-24s %9s %8s %-7s %6s   %9s %8s %6s\n", "operation", "shape", "implementation", "ms",
           "rate", "", "peak", "own ms", "rate", "peak");
}

/* own: seconds by our own path; 0 when there is no difference. */
static void print_line(const line *l, double seconds, double own) {
    double rate = l->work / seconds * 1e-9;
    printf("%-20s %-27s %-24s %9.3f %8.1f %-7s %5.0f%%", l->operation, l->shape, l->how, seconds * 1e3, rate,
           l->unit, 100 * rate / l->peak);
    if (own > 0) {
        double own_rate = l->work / own * 1e-9;
        printf("   %9.3f %8.1f %5.0f%%", own * 1e3, own_rate, 100 * own_rate / l->peak);
    }
    printf("\n");
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

/* Square images and kernels, padded so that stride 1 keeps the size; one output channel. */
static dsc_conv_desc describe(int64_t n, int64_t size, int64_t channels, int64_t kernel, int64_t stride) {
    dsc_conv_desc d = {.dtype = DSC_F32, .n = n};
    dsc_conv2d_shape *s = &d.shape;
    dsc_conv2d_shape_init(s);
    s->in_h = s->in_w = size;
    s->in_c = channels;
    s->out_c = 1;
    s->kernel_h = s->kernel_w = kernel;
    s->stride_h = s->stride_w = stride;
    s->pad_h = s->pad_w = kernel / 2;
    return d;
}

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

/* Median seconds of the three passes on one device, and what implements them. */
static void time_conv(bench *b, const dsc_conv_desc *d, double seconds[DSC_CONV_PASSES],
                      char how[DSC_CONV_PASSES][32]) {
    int64_t oh = 0, ow = 0;
    conv_call call;
    must(dsc_conv_output(d, &oh, &ow));
    must(dsc_conv_create(b->device, d, &call.conv));
    int64_t bytes = (int64_t)dsc_conv_workspace(call.conv);
    call.x = make(b, DSC_F32, 4, (const int64_t[]){d->n, d->shape.in_h, d->shape.in_w, d->shape.in_c});
    call.w = make(b, DSC_F32, 4,
                  (const int64_t[]){d->shape.out_c, d->shape.kernel_h, d->shape.kernel_w, d->shape.in_c});
    call.y = make(b, DSC_F32, 4, (const int64_t[]){d->n, oh, ow, d->shape.out_c});
    call.work = make(b, DSC_U8, 1, &bytes);
    for (int pass = 0; pass < DSC_CONV_PASSES; pass++) {
        call.pass = (dsc_conv_pass)pass;
        seconds[pass] = time_of(b, run_conv, &call);
        snprintf(how[pass], 32, "%s", dsc_cpu_conv_implementation(call.conv, call.pass));
    }
    dsc_conv_destroy(&call.conv);
    free_all(b);
}

static void bench_conv(bench *b, bench *plain, const peaks *peak, const conv_case *s) {
    static const char *const names[] = {"conv forward", "conv backward data", "conv backward weight"};
    dsc_conv_desc d = describe(s->n, s->size, s->c, s->kernel, s->stride);
    d.shape.out_c = s->k;
    double seconds[DSC_CONV_PASSES], own[DSC_CONV_PASSES];
    char how[DSC_CONV_PASSES][32], own_how[DSC_CONV_PASSES][32], shape[64];
    time_conv(b, &d, seconds, how);
    time_conv(plain, &d, own, own_how);
    snprintf(shape, sizeof shape, "%lldx%lldx%lldx%lld k%lld %lldx%lld/%lld", (long long)d.n,
             (long long)d.shape.in_h, (long long)d.shape.in_w, (long long)d.shape.in_c,
             (long long)d.shape.out_c, (long long)d.shape.kernel_h, (long long)d.shape.kernel_w,
             (long long)d.shape.stride_h);
    int64_t oh = 0, ow = 0;
    must(dsc_conv_output(&d, &oh, &ow));
    double flops = 2.0 * (double)(d.n * oh * ow * d.shape.out_c) *
                   (double)(d.shape.kernel_h * d.shape.kernel_w * d.shape.in_c);
    for (int pass = 0; pass < DSC_CONV_PASSES; pass++) {
        line l = {names[pass], shape, how[pass], "GFLOP/s", flops, peak->flops};
        print_line(&l, seconds[pass], own[pass]);
    }
}

/* ---- matrices ---- */

typedef struct matrix_call {
    dsc_tensor *a, *b, *c;
} matrix_call;

static dsc_status run_gemm(bench *b, const void *params) {
    const matrix_call *call = params;
    return dsc_op_gemm(b->q, 0, 0, 1, call->a, call->b, 0, call->c);
}

static dsc_status run_syrk(bench *b, const void *params) {
    const matrix_call *call = params;
    return dsc_op_syrk(b->q, 1, call->a, 0, call->c);
}

static double time_gemm(bench *b, int64_t m, int64_t n, int64_t k) {
    matrix_call call = {make(b, DSC_F32, 2, (const int64_t[]){m, k}),
                        make(b, DSC_F32, 2, (const int64_t[]){k, n}),
                        make(b, DSC_F32, 2, (const int64_t[]){m, n})};
    double seconds = time_of(b, run_gemm, &call);
    free_all(b);
    return seconds;
}

static void bench_matrices(bench *b, bench *plain, const peaks *peak) {
    static const int64_t sizes[][3] = {{128, 10, 64},      {128, 64, 64},  {512, 512, 512},
                                       {1024, 1024, 1024}, {16, 145, 145}, {64, 577, 577}};
    static const int64_t rows[][2] = {{8192, 64}, {8192, 145}, {8192, 577}, {1024, 1152}};
    char shape[64];
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
        snprintf(shape, sizeof shape, "%lldx%lldx%lld", (long long)m, (long long)n, (long long)k);
        line l = {"gemm", shape, "", "GFLOP/s", 2.0 * (double)(m * n * k), peak->flops};
        print_line(&l, time_gemm(b, m, n, k), time_gemm(plain, m, n, k));
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t m = rows[i][0], n = rows[i][1];
        matrix_call call = {make(b, DSC_F32, 2, (const int64_t[]){m, n}), NULL,
                            make(b, DSC_F32, 2, (const int64_t[]){n, n})};
        snprintf(shape, sizeof shape, "%lld rows of %lld", (long long)m, (long long)n);
        line l = {"syrk", shape, "", "GFLOP/s", (double)(m * n * (n + 1)), peak->flops};
        print_line(&l, time_of(b, run_syrk, &call), 0);
        free_all(b);
    }
}

/* ---- Gram matrices of patches ---- */

typedef struct gram_case {
    int64_t n, size, c, kernel, stride;
    int ones;
    int layers; /* of ResNet-32 with this factor */
} gram_case;

/* Both factors of every layer of ResNet-32 on 128 images of 32x32: of the inputs, then of the gradients. */
static const gram_case gram_cases[] = {
    {128, 32, 3, 3, 1, 0, 1},  {128, 32, 16, 3, 1, 0, 10}, {128, 32, 16, 3, 2, 0, 1},
    {128, 16, 32, 3, 1, 0, 9}, {128, 16, 32, 3, 2, 0, 1},  {128, 8, 64, 3, 1, 0, 9},
    {128, 1, 64, 1, 1, 1, 1},  {128, 32, 16, 1, 1, 0, 11}, {128, 16, 32, 1, 1, 0, 10},
    {128, 8, 64, 1, 1, 0, 10}, {128, 1, 10, 1, 1, 0, 1}};

typedef struct gram_call {
    dsc_conv_desc desc;
    dsc_tensor *x, *work, *c;
} gram_call;

static dsc_status run_gram(bench *b, const void *params) {
    const gram_call *call = params;
    return dsc_op_patch_gram(b->q, &call->desc, call->x, 0, 1, 0, call->work, call->c);
}

/* Rates count the flops of a symmetric product of patches, n (n + 1) a position, however few are done.
 * Returns the seconds of all layers with this factor. */
static double bench_gram(bench *b, const peaks *peak, const gram_case *s) {
    gram_call call = {.desc = describe(s->n, s->size, s->c, s->kernel, s->stride)};
    const dsc_conv_desc *d = &call.desc;
    int64_t oh = 0, ow = 0, n = s->kernel * s->kernel * s->c + s->ones;
    int64_t bytes = (int64_t)dsc_op_patch_gram_workspace(b->device, d, s->ones);
    must(dsc_conv_output(d, &oh, &ow));
    call.x = make(b, DSC_F32, 4, (const int64_t[]){d->n, d->shape.in_h, d->shape.in_w, d->shape.in_c});
    call.work = make(b, DSC_U8, 1, &bytes);
    call.c = make(b, DSC_F32, 2, (const int64_t[]){n, n});
    char shape[64], how[32];
    snprintf(shape, sizeof shape, "%lldx%lldx%lldx%lld %lldx%lld/%lld", (long long)d->n,
             (long long)d->shape.in_h, (long long)d->shape.in_w, (long long)d->shape.in_c,
             (long long)d->shape.kernel_h, (long long)d->shape.kernel_w, (long long)d->shape.stride_h);
    snprintf(how, sizeof how, "%d layer%s", s->layers, s->layers == 1 ? "" : "s");
    line l = {"patch gram", shape, how, "GFLOP/s", (double)(d->n * oh * ow * n * (n + 1)), peak->flops};
    double seconds = time_of(b, run_gram, &call);
    print_line(&l, seconds, 0);
    free_all(b);
    return s->layers * seconds;
}

/* All factors of the network, next to the 130 GFLOP of full products of patches. */
static void bench_grams(bench *b, const peaks *peak) {
    double seconds = 0, gemm = 130e9 / (2.0 * 1024 * 1024 * 1024) * time_gemm(b, 1024, 1024, 1024);
    for (size_t i = 0; i < sizeof gram_cases / sizeof gram_cases[0]; i++)
        seconds += bench_gram(b, peak, &gram_cases[i]);
    printf(
        "all factors of ResNet-32, 128 images: %.1f ms, %.3f of the %.1f ms that gemm 1024x1024x1024 takes "
        "for 130 GFLOP\n",
        seconds * 1e3, seconds / gemm, gemm * 1e3);
}

/* ---- attention ---- */

typedef struct attention_case {
    int64_t n, t, heads, dh;
} attention_case;

/* The small and the large character model, and GPT-2 with 124 million parameters. */
static const attention_case attention_cases[] = {{12, 64, 4, 32}, {16, 256, 6, 64}, {2, 1024, 12, 64}};

typedef struct attention_call {
    dsc_attention_desc desc;
    dsc_attention_context context;
    dsc_tensor *x, *y, *lse, *work, *dx;
} attention_call;

static dsc_status run_attention_forward(bench *b, const void *params) {
    const attention_call *call = params;
    return dsc_op_attention_forward(b->q, &call->desc, call->x, &call->context, call->work, call->lse,
                                    call->y);
}

static dsc_status run_attention_backward(bench *b, const void *params) {
    const attention_call *call = params;
    dsc_attention_grads grads = {.work = call->work, .dx = call->dx};
    return dsc_op_attention_backward(b->q, &call->desc, call->x, &call->context, call->y, call->lse, call->y,
                                     &grads);
}

/* Rates count the products of the pairs of a query and a key it sees: two forward, five backward, where one
 * of these computes the scores again. */
static void bench_attention(bench *b, const peaks *peak, const attention_case *s, int causal,
                            double dropout) {
    int64_t d = s->heads * s->dh, pairs = causal ? s->t * (s->t + 1) / 2 : s->t * s->t;
    const int64_t dim[] = {s->n, s->t, 1, 3 * d};
    attention_call call = {.desc = {.heads = s->heads, .causal = causal, .dropout = {.rate = dropout}}};
    dsc_tensor *position = make(b, DSC_I64, 1, (const int64_t[]){2});
    memset(position->data, 0, dsc_tensor_bytes(position));
    call.context.position = position;
    call.x = make(b, DSC_F32, 4, dim);
    call.dx = make(b, DSC_F32, 4, dim);
    call.y = make(b, DSC_F32, 4, (const int64_t[]){s->n, s->t, 1, d});
    call.lse = make(b, DSC_F32, 3, (const int64_t[]){s->n, s->heads, s->t});
    int64_t bytes = (int64_t)dsc_op_attention_workspace(b->device, &call.desc, call.x);
    call.work = make(b, DSC_U8, 1, &bytes);
    char shape[64];
    snprintf(shape, sizeof shape, "%lldx%lld, %lld heads of %lld", (long long)s->n, (long long)s->t,
             (long long)s->heads, (long long)s->dh);
    double product = 2.0 * (double)(s->n * s->heads * pairs * s->dh);
    const char *how = dropout > 0 ? "causal, dropout" : causal ? "causal" : "";
    line forward = {"attention forward", shape, how, "GFLOP/s", 2 * product, peak->flops};
    print_line(&forward, time_of(b, run_attention_forward, &call), 0);
    line backward = {"attention backward", shape, how, "GFLOP/s", 5 * product, peak->flops};
    print_line(&backward, time_of(b, run_attention_backward, &call), 0);
    free_all(b);
}

/* ---- memory-bound passes ---- */

typedef struct norm_call {
    dsc_norm_desc desc;
    dsc_tensor *x, *y, *dy, *dx, *residual, *dresidual, *channel[8];
} norm_call;

static dsc_status run_norm_forward(bench *b, const void *params) {
    const norm_call *n = params;
    dsc_norm_params p = {.gamma = n->channel[0],
                         .shift = n->channel[1],
                         .running_mean = n->channel[2],
                         .running_var = n->channel[3]};
    return dsc_op_norm_forward_train(b->q, &n->desc, n->x, n->residual, &p, n->channel[4], n->channel[5],
                                     n->y);
}

static dsc_status run_norm_backward(bench *b, const void *params) {
    const norm_call *n = params;
    dsc_norm_grads grads = {
        .dx = n->dx, .dresidual = n->dresidual, .dgamma = n->channel[6], .dshift = n->channel[7]};
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

static void print_bytes(bench *b, const peaks *peak, const char *operation, const char *shape,
                        const char *how, double bytes, bench_function run, const norm_call *call) {
    line l = {operation, shape, how, "GB/s", bytes, peak->bytes};
    print_line(&l, time_of(b, run, call), 0);
}

/* Rates count each tensor once per pass that needs it: forward x, x, y; backward x, y, dy twice and dx. */
static void bench_norm(bench *b, const peaks *peak, int64_t rows, int64_t c, int with_residual) {
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
    print_bytes(b, peak, "norm forward", shape, how, (3 + with_residual) * bytes, run_norm_forward, &call);
    print_bytes(b, peak, "norm backward", shape, how, (7 + with_residual) * bytes, run_norm_backward, &call);
    if (!with_residual) {
        print_bytes(b, peak, "relu", shape, "", 2 * bytes, run_relu, &call);
        print_bytes(b, peak, "add", shape, "", 3 * bytes, run_add, &call);
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

static void read_arguments(int argc, char **argv, int *threads, double *seconds) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc && atoi(argv[i + 1]) > 0) {
            *threads = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc && atof(argv[i + 1]) > 0) {
            *seconds = atof(argv[++i]);
        } else {
            int help = strcmp(argv[i], "--help") == 0;
            fprintf(help ? stdout : stderr, "usage: bench_ops [--threads N] [--seconds S per measurement]\n");
            exit(help ? 0 : 2);
        }
    }
}

int main(int argc, char **argv) {
    bench b = {.seconds = 0.2}, plain;
    int threads = 0;
    read_arguments(argc, argv, &threads, &b.seconds);
    plain = b;
    open_device(&b, "cpu", threads);
    threads = dsc_device_threads(b.device);
    open_device(&plain, "cpu:plain", threads);
    peaks peak = {dsc_bench_peak_flops(threads), dsc_bench_peak_bandwidth(threads)};
    printf("peak, %d thread(s): %.0f GFLOP/s fused multiply-add, %.1f GB/s triad\n", threads, peak.flops,
           peak.bytes);
    print_head();
    for (size_t i = 0; i < sizeof conv_cases / sizeof conv_cases[0]; i++)
        bench_conv(&b, &plain, &peak, &conv_cases[i]);
    bench_matrices(&b, &plain, &peak);
    bench_grams(&b, &peak);
    for (size_t i = 0; i < sizeof attention_cases / sizeof attention_cases[0]; i++) {
        for (int causal = 0; causal < 2; causal++)
            bench_attention(&b, &peak, &attention_cases[i], causal, 0);
        bench_attention(&b, &peak, &attention_cases[i], 1, 0.2);
    }
    bench_norm(&b, &peak, 128 * 32 * 32, 16, 0);
    bench_norm(&b, &peak, 128 * 32 * 32, 16, 1);
    bench_norm(&b, &peak, 128 * 8 * 8, 64, 0);
    bench_norm(&b, &peak, 16 * 14 * 14, 1024, 1);
    close_device(&plain);
    close_device(&b);
    return 0;
}
