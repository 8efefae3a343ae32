/* Transposed convolutions. A pixel of the input times the weight is added to a patch of the output. So such a layer
 * is a 1x1 convolution with an output for every element of the patch, if the gradients of the patches are written
 * out: every form of K-FAC must give the same for both. Strategies on several ranks are compared with the naive
 * implementation; in the case in which the factors give the exact Fisher matrix, they are compared with that. */
#include "kfac/crew.h"

#include "device/half.h"

#include <stdlib.h>

static const net_shape transposed[LAYERS] = {
    {"up", DSC_KFAC_CONV_TRANSPOSE2D, .in_c = 4, .out_c = 2, .in_h = 2, .in_w = 3, .kernel_h = 2,
     .kernel_w = 2, .stride_h = 2, .stride_w = 2},
    {"overlapping", DSC_KFAC_CONV_TRANSPOSE2D, .in_c = 3, .out_c = 1, .in_h = 3, .in_w = 2, .kernel_h = 3,
     .kernel_w = 3, .stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 1},
    {"conv", DSC_KFAC_CONV2D, .in_c = 2, .out_c = 3, .bias = 1, .in_h = 4, .in_w = 4, .kernel_h = 3,
     .kernel_w = 3, .pad_h = 1, .pad_w = 1},
    {"pointwise", DSC_KFAC_CONV_TRANSPOSE2D, .in_c = 3, .out_c = 4, .in_h = 2, .in_w = 2},
    {"last", DSC_KFAC_LINEAR, .in_c = 5, .out_c = 4, .bias = 1},
};

/* The crew with other layers. */
static int open_transposed(void **state) {
    (void)state;
    crew_open();
    for (int p = 0; p < PLACES; p++) {
        net_close(&nets[p]);
        net_open_share(&nets[p], places[p].queue, places[p].dtype, transposed, LAYERS, SAMPLES, comm);
    }
    return 0;
}

static void test_strategies(void **state) {
    (void)state;
    const net_step steps[] = {step_of(0), step_of(1), step_of(2), step_of(3), step_of(4)};
    int count;
    const config *configs = some_configs(&count);
    for (int i = 0; i < count; i++)
        for (int part = 0; part < 2; part++) {
            dsc_kfac_options options = options_of(&configs[i]);
            options.factor_samples = part; /* of every rank's share */
            run_beside(&configs[i], &options, steps, 5, 1);
        }
    all_fine(comm);
}

/* Blocks on the diagonals of both factors. */
static void test_diagonal_blocks(void **state) {
    (void)state;
    const net_step steps[] = {step_of(0), step_of(1), step_of(2)};
    for (int method = 0; method < METHODS; method += 2)
        for (int64_t blocks = 2; blocks <= 4; blocks++) {
            config c = {.strategy = DSC_KFAC_COMM_OPT, .rows = ranks, .symmetric = 1, .method = method};
            c.placement = DSC_KFAC_COMPUTE;
            c.bucket_bytes = 700;
            dsc_kfac_options options = options_of(&c);
            options.diag_blocks = blocks;
            run_beside(&c, &options, steps, 3, 1);
        }
    all_fine(comm);
}

/* ---- the same as a convolution of patches ---- */

enum { N = 4, MOST = 2000, STEPS = 4 };

/* A value that 16-bit types represent exactly. */
static double number(int64_t i) {
    return (double)((i * 37 + 11) % 23 - 11) / 8;
}

static dsc_conv2d_shape shape_of(int64_t in_c, int64_t out_c, int64_t kernel, int64_t stride, int64_t pad) {
    dsc_conv2d_shape s;
    dsc_conv2d_shape_init(&s);
    s.in_h = 3;
    s.in_w = 4;
    s.in_c = in_c;
    s.out_c = out_c;
    s.kernel_h = s.kernel_w = kernel;
    s.stride_h = s.stride_w = stride;
    s.pad_h = s.pad_w = pad;
    return s;
}

static int64_t extent(int64_t in, int64_t kernel, int64_t stride, int64_t pad, int64_t extra) {
    return (in - 1) * stride - 2 * pad + kernel + extra;
}

/* The parameters of one run of a layer. */
typedef struct trial {
    const place *at;
    dsc_conv2d_shape shape;
    dsc_kfac_options options;
    dsc_dtype captured;
    dsc_image_layout layout;
    int any_size;
} trial;

static int64_t rows_of(const trial *t) {
    return t->shape.kernel_h * t->shape.kernel_w * t->shape.out_c;
}

/* Makes a tensor of `values` in the type and the layout that the trial asks for. */
static dsc_tensor make(const trial *t, const int64_t dim[4], const double *values) {
    dsc_tensor tensor;
    int nchw = t->layout == DSC_NCHW;
    const int64_t turned[4] = {dim[0], dim[3], dim[1], dim[2]}, positions = dim[1] * dim[2], c = dim[3];
    int64_t count = dim[0] * positions * c;
    char *host = net_array(count, sizeof(double));
    for (int64_t i = 0; i < count; i++) {
        int64_t to = nchw ? (i / (positions * c) * c + i % c) * positions + i / c % positions : i;
        if (t->captured == DSC_F64)
            ((double *)(void *)host)[to] = values[i];
        else if (t->captured == DSC_F32)
            ((float *)(void *)host)[to] = (float)values[i];
        else
            ((uint16_t *)(void *)host)[to] = dsc_bf16_from_float((float)values[i]);
    }
    assert_ok(dsc_tensor_alloc(t->at->device, t->captured, 4, nchw ? turned : dim, &tensor));
    assert_ok(dsc_tensor_upload(t->at->queue, host, dsc_tensor_bytes(&tensor), &tensor));
    assert_ok(dsc_queue_sync(t->at->queue));
    free(host);
    return tensor;
}

static void upload(const place *at, const double *values, dsc_tensor *to) {
    float narrow[MOST];
    for (int64_t i = 0; i < dsc_tensor_count(to); i++)
        narrow[i] = (float)values[i];
    const void *host = at->dtype == DSC_F64 ? (const void *)values : narrow;
    assert_ok(dsc_tensor_upload(at->queue, host, dsc_tensor_bytes(to), to));
    assert_ok(dsc_queue_sync(at->queue));
}

static void download(const place *at, const dsc_tensor *from, double *values) {
    float narrow[MOST];
    void *host = at->dtype == DSC_F64 ? (void *)values : narrow;
    assert_ok(dsc_tensor_download(at->queue, from, dsc_tensor_bytes(from), host));
    assert_ok(dsc_queue_sync(at->queue));
    for (int64_t i = 0; at->dtype != DSC_F64 && i < dsc_tensor_count(from); i++)
        values[i] = (double)narrow[i];
}

/* Gradients g[N, h, w, out_c] of step k, and as patches[N, in_h, in_w, rows]. */
static void draw_gradients(const trial *t, int64_t k, int64_t h, int64_t w, double *g, double *patches) {
    const dsc_conv2d_shape *s = &t->shape;
    int64_t rows = rows_of(t);
    for (int64_t i = 0; i < N * h * w * s->out_c; i++)
        g[i] = number(7 * i * i + 50 + k) / 16;
    for (int64_t i = 0; i < N * s->in_h * s->in_w * rows; i++) {
        int64_t pixel = i / rows, tap = i % rows / s->out_c, image = pixel / s->in_w / s->in_h;
        int64_t y = pixel / s->in_w % s->in_h * s->stride_h - s->pad_h + tap / s->kernel_w;
        int64_t x = pixel % s->in_w * s->stride_w - s->pad_w + tap % s->kernel_w;
        int inside = y >= 0 && y < h && x >= 0 && x < w;
        patches[i] = inside ? g[((image * h + y) * w + x) * s->out_c + i % s->out_c] : 0;
    }
}

/* Element i of the gradient's memory is this element of D[rows, in_c]. */
static int64_t place_in_d(const trial *t, int as_patches, int64_t i) {
    return as_patches ? i : i % rows_of(t) * t->shape.in_c + i / rows_of(t);
}

/* Preconditions for some steps, as a transposed convolution or as a 1x1 convolution; out: D afterwards. */
static void run(const trial *t, int as_patches, double *out) {
    const dsc_conv2d_shape *s = &t->shape;
    int64_t rows = rows_of(t), weights = rows * s->in_c;
    int64_t h = extent(s->in_h, s->kernel_h, s->stride_h, s->pad_h, s->extra_h);
    int64_t w = extent(s->in_w, s->kernel_w, s->stride_w, s->pad_w, s->extra_w);
    const int64_t a_dim[4] = {N, s->in_h, s->in_w, s->in_c}, g_dim[4] = {N, h, w, s->out_c};
    const int64_t patch_dim[4] = {N, s->in_h, s->in_w, rows};
    static double a[MOST], g[MOST], patches[8 * MOST], d[MOST], memory[MOST];
    dsc_conv2d_shape shape = *s, pointwise = shape_of(s->in_c, rows, 1, 1, 0);
    dsc_kfac_layer layer;
    dsc_kfac *kfac;
    assert_true(N * h * w * s->out_c <= MOST && weights <= MOST && N * s->in_h * s->in_w * rows <= 8 * MOST);
    if (t->any_size)
        shape.in_h = shape.in_w = pointwise.in_h = pointwise.in_w = 0;
    dsc_kfac_layer_init(&layer);
    layer.name = "layer";
    layer.kind = as_patches ? DSC_KFAC_CONV2D : DSC_KFAC_CONV_TRANSPOSE2D;
    layer.conv = as_patches ? &pointwise : &shape;
    assert_ok(dsc_tensor_alloc(t->at->device, t->at->dtype, 1, &weights, &layer.weight_grad));
    assert_ok(dsc_kfac_create(comm, t->at->queue, &layer, 1, &t->options, &kfac));
    for (int64_t k = 0; k < STEPS; k++) {
        dsc_kfac_sample sample;
        dsc_kfac_sample_init(&sample);
        for (int64_t i = 0; i < N * s->in_h * s->in_w * s->in_c; i++)
            a[i] = number(i * i + 3 * k);
        for (int64_t i = 0; i < weights; i++)
            d[i] = number(i * i + k);
        for (int64_t i = 0; i < weights; i++)
            memory[i] = d[place_in_d(t, as_patches, i)];
        draw_gradients(t, k, h, w, g, patches);
        upload(t->at, memory, &layer.weight_grad);
        sample.a = make(t, a_dim, a);
        sample.g = as_patches ? make(t, patch_dim, patches) : make(t, g_dim, g);
        sample.a_layout = sample.g_layout = t->layout;
        EXPECT_OK(dsc_kfac_begin(kfac, 2));
        EXPECT_OK(dsc_kfac_capture_sample(kfac, t->at->queue, 0, &sample));
        EXPECT_OK(dsc_kfac_step(kfac, t->at->queue, 0.5));
        assert_ok(dsc_queue_sync(t->at->queue));
        dsc_tensor_free(&sample.a);
        dsc_tensor_free(&sample.g);
    }
    download(t->at, &layer.weight_grad, memory);
    for (int64_t i = 0; i < weights; i++)
        out[place_in_d(t, as_patches, i)] = memory[i];
    dsc_kfac_destroy(&kfac);
    dsc_tensor_free(&layer.weight_grad);
}

static void expect_same(const trial *t, double bound, const char *what) {
    static double got[MOST], want[MOST], drawn[MOST];
    int64_t count = rows_of(t) * t->shape.in_c;
    for (int64_t i = 0; i < count; i++)
        drawn[i] = number(i * i + STEPS - 1);
    run(t, 0, got);
    run(t, 1, want);
    double off = naive_distance(got, want, count);
    if (!(off <= bound) || !(naive_distance(want, drawn, count) > 0.01)) { /* it was preconditioned at all */
        char line[160];
        snprintf(line, sizeof line, "%s, kernel %d, stride %d: off by %g", what, (int)t->shape.kernel_h,
                 (int)t->shape.stride_h, off);
        remember(__FILE__, __LINE__, line);
    }
}

static dsc_kfac_options trial_options(void) {
    dsc_kfac_options options;
    dsc_kfac_options_init(&options);
    options.damping = 0.01;
    options.stat_decay = 0.5;
    options.kl_clip = 0;
    options.update_freq = 2;
    return options;
}

static void test_patches(void **state) {
    (void)state;
    dsc_conv2d_shape shapes_of[] = {shape_of(3, 5, 1, 1, 0), shape_of(5, 2, 2, 2, 0), shape_of(4, 2, 3, 2, 1),
                                    shape_of(4, 2, 3, 2, 1), shape_of(2, 3, 2, 3, 1)};
    shapes_of[3].extra_h = shapes_of[3].extra_w = 1;
    for (size_t i = 0; i < sizeof shapes_of / sizeof shapes_of[0]; i++) {
        trial plain = {
            .at = &places[REF], .shape = shapes_of[i], .options = trial_options(), .captured = DSC_F64};
        expect_same(&plain, 1e-10, "eigen");
        trial t = plain;
        t.options.method = DSC_KFAC_INVERSE;
        t.options.damping_split = DSC_KFAC_SPLIT_PI;
        expect_same(&t, 1e-10, "inverse");
        t = plain;
        t.options.ekfac = DSC_KFAC_EKFAC_SAMPLES;
        expect_same(&t, 1e-9, "moments of samples");
        t.options.factor_samples = 3;
        expect_same(&t, 1e-9, "moments of some samples");
        t.options.ekfac = DSC_KFAC_EKFAC_BATCH;
        expect_same(&t, 1e-9, "moments of batches");
        t = plain;
        t.options.loss_terms = 12;
        expect_same(&t, 1e-10, "terms of the loss");
        t.options.scaling = DSC_KFAC_PYTORCH;
        t.options.damping = 1e-6;
        expect_same(&t, 1e-9, "kfac-pytorch");
        t = plain;
        t.any_size = 1;
        expect_same(&t, 1e-10, "images of any size");
        t.layout = DSC_NCHW;
        expect_same(&t, 1e-10, "images in planes");
        t = plain;
        t.at = &places[CPU];
        t.captured = DSC_F32;
        expect_same(&t, 1e-3, "float32");
        t.captured = DSC_BF16;
        expect_same(&t, 1e-3, "bfloat16");
    }
    all_fine(comm);
}

/* ---- one sample with one position ---- */

static void read_factor(dsc_kfac *kfac, const place *at, const char *name, double *out) {
    for (int64_t i = 0; i < dsc_kfac_state_count(kfac); i++)
        if (strcmp(dsc_kfac_state_entries(kfac)[i].name, name) == 0)
            EXPECT_OK(dsc_kfac_state_get(kfac, at->queue, i, rank == 0 ? out : NULL));
}

/* Element (i, j) of a packed triangle. */
static double packed_at(const double *triangle, int64_t i, int64_t j) {
    return i < j ? packed_at(triangle, j, i) : triangle[i * (i + 1) / 2 + j];
}

/* G (x) A is vec(D) vec(D)' of the sample's gradient, the Fisher matrix. */
static void test_one_position(void **state) {
    (void)state;
    enum { IN = 3, OUT = 2, SIDE = 3, TAPS = SIDE * SIDE * OUT };
    const place *at = &places[REF];
    const int64_t a_dim[4] = {1, 1, 1, IN}, g_dim[4] = {1, SIDE, SIDE, OUT}, weights = IN * TAPS;
    trial t = {
        .at = at, .shape = shape_of(IN, OUT, SIDE, 2, 0), .options = trial_options(), .captured = DSC_F64};
    double a[IN], g[TAPS], d[IN * TAPS], factor_a[IN * (IN + 1) / 2] = {0};
    double factor_g[TAPS * (TAPS + 1) / 2] = {0};
    dsc_kfac_layer layer;
    dsc_kfac *kfac;
    for (int i = 0; i < IN; i++)
        a[i] = number(i);
    for (int i = 0; i < TAPS; i++)
        g[i] = number(i + 40);
    for (int i = 0; i < IN * TAPS; i++) /* of the weight[IN, SIDE, SIDE, OUT] */
        d[i] = a[i / TAPS] * g[i % TAPS];
    t.options.stat_decay = 0;
    t.shape.in_h = t.shape.in_w = 1;
    dsc_kfac_layer_init(&layer);
    layer.name = "layer";
    layer.kind = DSC_KFAC_CONV_TRANSPOSE2D;
    layer.conv = &t.shape;
    assert_ok(dsc_tensor_alloc(at->device, at->dtype, 1, &weights, &layer.weight_grad));
    upload(at, d, &layer.weight_grad);
    dsc_tensor captured[2] = {make(&t, a_dim, a), make(&t, g_dim, g)};
    assert_ok(dsc_kfac_create(comm, at->queue, &layer, 1, &t.options, &kfac));
    EXPECT_OK(dsc_kfac_begin(kfac, 1));
    EXPECT_OK(dsc_kfac_capture(kfac, at->queue, 0, &captured[0], &captured[1]));
    EXPECT_OK(dsc_kfac_step(kfac, at->queue, 0.5));
    read_factor(kfac, at, "layer.A", factor_a);
    read_factor(kfac, at, "layer.G", factor_g);
    int wrong = 0;
    for (int64_t r = 0; rank == 0 && r < IN * TAPS; r++)
        for (int64_t c = 0; c < IN * TAPS; c++) {
            double f = packed_at(factor_a, r / TAPS, c / TAPS) * packed_at(factor_g, r % TAPS, c % TAPS);
            wrong += !(fabs(f - d[r] * d[c]) <= 1e-14);
        }
    EXPECT(wrong == 0);
    dsc_kfac_destroy(&kfac);
    for (int i = 0; i < 2; i++)
        dsc_tensor_free(&captured[i]);
    dsc_tensor_free(&layer.weight_grad);
    all_fine(comm);
}

/* ---- the bias, and what is refused ---- */

static void test_bias_and_refusals(void **state) {
    (void)state;
    const place *at = &places[REF];
    const int64_t weights = 3 * 2 * 2 * 2, two = 2;
    dsc_conv2d_shape shape = shape_of(3, 2, 2, 2, 0);
    trial t = {.at = at, .shape = shape, .options = trial_options(), .captured = DSC_F64};
    double ones[N * 6 * 8 * 3], bias[2];
    dsc_kfac_layer layer;
    dsc_kfac *kfac = NULL;
    int64_t a_n, g_n, units;
    for (size_t i = 0; i < sizeof ones / sizeof ones[0]; i++)
        ones[i] = 1;
    dsc_kfac_layer_init(&layer);
    layer.name = "up";
    layer.kind = DSC_KFAC_CONV_TRANSPOSE2D;
    layer.conv = &shape;
    assert_ok(dsc_tensor_alloc(at->device, at->dtype, 1, &weights, &layer.weight_grad));
    assert_ok(dsc_tensor_alloc(at->device, at->dtype, 1, &two, &layer.bias_grad));
    upload(at, ones, &layer.weight_grad);
    upload(at, ones, &layer.bias_grad);
    assert_ok(dsc_kfac_layer_factors(&layer, &a_n, &g_n, &units));
    assert_int_equal(a_n, 3);
    assert_int_equal(g_n, 8);
    assert_int_equal(units, 1);
    dsc_tensor a = make(&t, (const int64_t[]){N, 3, 4, 3}, ones);
    dsc_tensor g = make(&t, (const int64_t[]){N, 6, 8, 2}, ones);
    dsc_tensor turned = make(&t, (const int64_t[]){N, 8, 6, 2}, ones);
    assert_ok(dsc_kfac_create(comm, at->queue, &layer, 1, &t.options, &kfac));
    assert_ok(dsc_kfac_begin(kfac, 1));
    assert_fails(DSC_E_INVALID, "layer 'up': the gradient at its output must be [n,6,8,2]",
                 dsc_kfac_capture(kfac, at->queue, 0, &a, &turned));
    assert_fails(DSC_E_INVALID, "layer 'up': the last dimension of its input is 2, expected 3",
                 dsc_kfac_capture(kfac, at->queue, 0, &g, &g));
    assert_ok(dsc_kfac_capture(kfac, at->queue, 0, &a, &g));
    EXPECT_OK(dsc_kfac_step(kfac, at->queue, 0.5));
    download(at, &layer.bias_grad, bias);
    EXPECT(bias[0] == 1 && bias[1] == 1);
    dsc_kfac_destroy(&kfac);
    layer.late_gradients = 1;
    assert_fails(DSC_E_UNSUPPORTED, "layer 'up': late_gradients of a transposed convolution",
                 dsc_kfac_layer_factors(&layer, &a_n, &g_n, &units));
    layer.late_gradients = 0;
    shape.extra_w = 2;
    assert_fails(DSC_E_INVALID, "layer 'up': conv: 2 more elements of output in width",
                 dsc_kfac_layer_factors(&layer, &a_n, &g_n, &units));
    shape.extra_w = 0;
    shape.in_c = 4;
    shape.groups = 2;
    assert_fails(DSC_E_UNSUPPORTED, "layer 'up': a transposed convolution of 2 groups",
                 dsc_kfac_layer_factors(&layer, &a_n, &g_n, &units));
    shape.kernel_h = (int64_t)1 << 25;
    assert_fails(DSC_E_INVALID, "kernel height 33554432", dsc_kfac_layer_factors(&layer, &a_n, &g_n, &units));
    layer.conv = NULL;
    assert_fails(DSC_E_INVALID, "layer 'up': a conv_transpose2d layer needs its shape",
                 dsc_kfac_layer_factors(&layer, &a_n, &g_n, &units));
    dsc_tensor *all[] = {&a, &g, &turned, &layer.weight_grad, &layer.bias_grad};
    for (int i = 0; i < 5; i++)
        dsc_tensor_free(all[i]);
    all_fine(comm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strategies),        cmocka_unit_test(test_diagonal_blocks),
        cmocka_unit_test(test_patches),           cmocka_unit_test(test_one_position),
        cmocka_unit_test(test_bias_and_refusals),
    };
    return cmocka_run_group_tests_name("kfac-transposed", tests, open_transposed, close_crew);
}
