/* Transposed convolutions: outputs and gradients against the formula of PyTorch's ConvTranspose2d in double, with the
 * weights in PyTorch's order. */
#include "chosen.h"

#include "model/nets.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

enum { BATCH = 2 };

/* Sizes of x, then kernel, stride, padding, dilation, groups, extra, as PyTorch's arguments are. */
typedef struct geometry {
    int64_t in[3], out_c, kernel[2], stride[2], pad[2], dilation[2], groups, extra[2];
    int bias;
} geometry;

static const geometry cases[] = {
    {{3, 4, 6}, 4, {2, 2}, {2, 2}, {0, 0}, {1, 1}, 1, {0, 0}, 1},
    {{5, 3, 4}, 3, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 1, {1, 1}, 1},
    {{4, 4, 3}, 5, {4, 4}, {2, 2}, {1, 1}, {1, 1}, 1, {0, 0}, 0},
    {{3, 3, 4}, 6, {3, 2}, {1, 3}, {2, 0}, {2, 1}, 2, {0, 2}, 1},
    {{2, 5, 1}, 1, {1, 1}, {3, 2}, {0, 0}, {1, 1}, 1, {2, 1}, 0},
    {{2, 2, 32}, 16, {2, 2}, {2, 2}, {0, 0}, {1, 1}, 1, {0, 0}, 1},
};

typedef struct sizes {
    int64_t h, w, k; /* of the output */
    int64_t x_count, y_count, w_count;
} sizes;

static sizes sizes_of(const geometry *g) {
    int64_t out[2];
    for (int i = 0; i < 2; i++)
        out[i] = (g->in[i] - 1) * g->stride[i] - 2 * g->pad[i] + g->dilation[i] * (g->kernel[i] - 1) + 1 +
                 g->extra[i];
    return (sizes){.h = out[0],
                   .w = out[1],
                   .k = g->out_c,
                   .x_count = BATCH * g->in[0] * g->in[1] * g->in[2],
                   .y_count = BATCH * out[0] * out[1] * g->out_c,
                   .w_count = g->in[2] * (g->out_c / g->groups) * g->kernel[0] * g->kernel[1]};
}

/* Calls visit(context, element of x, of w in PyTorch's order, of y) for every product of the formula. */
static void each_product(const geometry *g, void (*visit)(double **t, int64_t x, int64_t w, int64_t y),
                         double **t) {
    sizes s = sizes_of(g);
    int64_t c = g->in[2], part = g->out_c / g->groups, kh = g->kernel[0], kw = g->kernel[1];
    for (int64_t at = 0; at < s.x_count; at++) {
        int64_t ch = at % c, j = at / c % g->in[1], i = at / c / g->in[1] % g->in[0],
                n = at / c / g->in[1] / g->in[0];
        for (int64_t tap = 0; tap < part * kh * kw; tap++) {
            int64_t v = tap % kw, u = tap / kw % kh, o = tap / kw / kh;
            int64_t row = i * g->stride[0] - g->pad[0] + u * g->dilation[0];
            int64_t column = j * g->stride[1] - g->pad[1] + v * g->dilation[1];
            int64_t k = ch / (c / g->groups) * part + o;
            if (row >= 0 && row < s.h && column >= 0 && column < s.w)
                visit(t, at, ch * part * kh * kw + tap, ((n * s.h + row) * s.w + column) * s.k + k);
        }
    }
}

/* t: x, w, y */
static void add_forward(double **t, int64_t x, int64_t w, int64_t y) {
    t[2][y] += t[0][x] * t[1][w];
}

/* t: x, w, dy, dw */
static void add_gradient(double **t, int64_t x, int64_t w, int64_t y) {
    t[3][w] += t[0][x] * t[2][y];
}

static double *zeros(int64_t n) {
    double *t = calloc((size_t)n, sizeof *t);
    assert_non_null(t);
    return t;
}

/* The numbers of a state entry in PyTorch's order. */
static double *as_pytorch(dsc_queue *q, const dsc_state_entry *entry, const dsc_tensor *tensor) {
    double *own = read_doubles(q, tensor);
    if (!entry->permuted)
        return own;
    const int64_t *d = entry->ohwc;
    double *out = zeros(d[0] * d[1] * d[2] * d[3]);
    for (int64_t o = 0; o < d[0]; o++)
        for (int64_t p = 0; p < d[1] * d[2]; p++)
            for (int64_t c = 0; c < d[3]; c++)
                out[(o * d[3] + c) * d[1] * d[2] + p] = own[(o * d[1] * d[2] + p) * d[3] + c];
    free(own);
    return out;
}

/* The outputs of the layer are the logits. */
static dsc_model *make_layer(dsc_device *device, const geometry *g, dsc_dtype dtype) {
    dsc_model_options options;
    dsc_conv2d_shape shape = square_conv(g->out_c, 1);
    dsc_model *m = NULL;
    dsc_value x;
    dsc_model_options_init(&options);
    options.dtype = dtype;
    shape.kernel_h = g->kernel[0], shape.kernel_w = g->kernel[1];
    shape.stride_h = g->stride[0], shape.stride_w = g->stride[1];
    shape.pad_h = g->pad[0], shape.pad_w = g->pad[1];
    shape.dilation_h = g->dilation[0], shape.dilation_w = g->dilation[1];
    shape.extra_h = g->extra[0], shape.extra_w = g->extra[1];
    shape.groups = g->groups;
    assert_ok(dsc_model_create(device, &options, &m));
    assert_ok(dsc_model_input(m, g->in[0], g->in[1], g->in[2], &x));
    assert_ok(dsc_model_conv_transpose2d(m, "up", x, &shape, g->bias, &x));
    assert_ok(dsc_model_flatten(m, x, &x));
    assert_ok(dsc_model_seal(m, x));
    return m;
}

static void check_close(const char *what, int number, int64_t n, const double *got, const double *want,
                        double bound) {
    double off = largest_difference(n, got, want);
    if (!(off <= bound))
        fail_msg("case %d: %s is off by %g, more than %g", number, what, off, bound);
}

/* Compares the outputs of an executor with the formula. */
static void check_outputs(dsc_queue *q, const geometry *g, const dsc_model *m, const dsc_exec *exec,
                          const dsc_tensor *x, int number) {
    sizes s = sizes_of(g);
    const dsc_state_entry *state = dsc_model_state(m);
    double *t[3] = {read_doubles(q, x), as_pytorch(q, &state[0], state[0].tensor), zeros(s.y_count)};
    each_product(g, add_forward, t);
    double *bias = g->bias ? read_doubles(q, state[1].tensor) : zeros(s.k);
    for (int64_t i = 0; i < s.y_count; i++)
        t[2][i] += bias[i % s.k];
    double *got = read_doubles(q, dsc_exec_logits(exec));
    double eps = x->dtype == DSC_F64 ? DBL_EPSILON : FLT_EPSILON;
    check_close("y", number, s.y_count, got, t[2], 200 * eps * largest(s.y_count, t[2]));
    for (int i = 0; i < 3; i++)
        free(t[i]);
    free(bias);
    free(got);
}

/* Compares the gradients of the weights and of the bias. The gradient dy = softmax - onehot follows from the
 * outputs. */
static void check_gradients(dsc_queue *q, const geometry *g, const dsc_model *m, const dsc_exec *exec,
                            const dsc_tensor *x, const int32_t *labels, int number) {
    sizes s = sizes_of(g);
    const dsc_state_entry *state = dsc_model_state(m);
    int64_t row = s.y_count / BATCH;
    double *dy = read_doubles(q, dsc_exec_logits(exec)), *db = zeros(s.k);
    for (int n = 0; n < BATCH; n++) {
        double sum = 0;
        for (int64_t i = 0; i < row; i++)
            sum += dy[n * row + i] = exp(dy[n * row + i]);
        for (int64_t i = 0; i < row; i++)
            dy[n * row + i] = dy[n * row + i] / sum - (i == labels[n]);
    }
    for (int64_t i = 0; i < s.y_count; i++)
        db[i % s.k] += dy[i];
    double *t[4] = {read_doubles(q, x), NULL, dy, zeros(s.w_count)};
    each_product(g, add_gradient, t);
    double eps = x->dtype == DSC_F64 ? DBL_EPSILON : FLT_EPSILON;
    double bound = 200 * eps * (largest(s.w_count, t[3]) + largest(s.k, db));
    double *got = as_pytorch(q, &state[0], &dsc_model_params(m)[0].grad);
    check_close("dw", number, s.w_count, got, t[3], bound);
    free(got);
    if (g->bias) {
        got = read_doubles(q, &dsc_model_params(m)[1].grad);
        check_close("db", number, s.k, got, db, bound);
        free(got);
    }
    free(t[0]);
    free(dy);
    free(t[3]);
    free(db);
}

static void check_case(const char *device_name, dsc_dtype dtype, int number) {
    const geometry *g = &cases[number];
    dsc_device *device = open_device(device_name);
    dsc_queue *q = open_queue(device);
    dsc_model *m = make_layer(device, g, dtype);
    dsc_exec *exec = NULL, *eval = NULL;
    dsc_tensor x = random_tensor(q, 5, dtype, 4, (int64_t[]){BATCH, g->in[0], g->in[1], g->in[2]});
    dsc_tensor values = dsc_model_values(m), labels = random_labels(q, 4, BATCH, dsc_model_classes(m));
    dsc_tensor noise = random_tensor(q, 6, dtype, 1, values.dim);
    int32_t host[BATCH];
    double *start = read_doubles(q, &noise);
    write_doubles(q, start, &values); /* biases are not 0 */
    free(start);
    assert_ok(dsc_tensor_download(q, &labels, sizeof host, host));
    assert_ok(dsc_exec_create(m, DSC_EXEC_EVAL, BATCH, &eval));
    assert_ok(dsc_exec_forward(eval, q, &x));
    check_outputs(q, g, m, eval, &x, number);
    assert_ok(dsc_exec_create(m, DSC_EXEC_TRAIN, BATCH, &exec));
    assert_ok(dsc_exec_forward(exec, q, &x));
    check_outputs(q, g, m, exec, &x, number);
    assert_ok(dsc_exec_loss(exec, q, &labels, 1));
    assert_ok(dsc_exec_backward(exec, q, NULL));
    assert_ok(dsc_queue_sync(q));
    check_gradients(q, g, m, exec, &x, host, number);
    dsc_tensor_free(&noise);
    dsc_tensor_free(&labels);
    dsc_tensor_free(&x);
    dsc_exec_destroy(&exec);
    dsc_exec_destroy(&eval);
    dsc_model_destroy(&m);
    dsc_queue_destroy(&q);
    dsc_device_destroy(&device);
}

static void test_formula(void **state) {
    (void)state;
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        if (!chosen()) {
            check_case("ref", DSC_F64, i);
            check_case("cpu", DSC_F64, i);
        }
        check_case(chosen_exact_or("cpu"), DSC_F32, i);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_formula)};
    return cmocka_run_group_tests_name("model_transposed", tests, NULL, NULL);
}
