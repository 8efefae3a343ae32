/* Devices at sizes where they cut work into pieces, slabs, panels and threads' parts. Whole numbers in
 * and out, so that sums are exact in float32 whatever their order, and every device must agree to the bit. */
#include "device/rig.h"

#include "base/memory.h"

#include <omp.h>
#include <stdlib.h>

/* rigs[0] is ref. */
static void expect_equal(const rig *r, place *got, int64_t count, const double *want, const char *what) {
    double *values = test_array(count, sizeof *values);
    place_read(r, got, values);
    for (int64_t i = 0; i < count; i++)
        if (values[i] != want[i])
            fail_msg("%s on %s: element %lld is %g instead of %g", what, r->label, (long long)i, values[i],
                     want[i]);
    place_check_guards(r, got, what);
    free(values);
}

/* ---- convolution ---- */

typedef struct conv_data {
    dsc_conv_desc d;
    int64_t oh, ow, xs, ws, ys;
    double *x, *w, *y;
} conv_data;

typedef struct conv_result {
    double *y, *dx, *dw;
} conv_result;

static void run_conv(const rig *r, const conv_data *c, double beta, const conv_result *out, int check) {
    const dsc_conv_desc *d = &c->d;
    dsc_conv *conv;
    assert_ok(dsc_conv_create(r->device, d, &conv));
    place x = place_of(r, DSC_F32, SHAPE(d->n, d->shape.in_h, d->shape.in_w, d->shape.in_c), c->x);
    place w = place_of(
        r, DSC_F32,
        SHAPE(d->shape.out_c, d->shape.kernel_h, d->shape.kernel_w, d->shape.in_c / d->shape.groups), c->w);
    place dy = place_of(r, DSC_F32, SHAPE(d->n, c->oh, c->ow, d->shape.out_c), c->y);
    place y = place_make(r, DSC_F32, SHAPE(d->n, c->oh, c->ow, d->shape.out_c));
    place dx = place_of(r, DSC_F32, SHAPE(d->n, d->shape.in_h, d->shape.in_w, d->shape.in_c), c->x);
    place dw = place_of(
        r, DSC_F32,
        SHAPE(d->shape.out_c, d->shape.kernel_h, d->shape.kernel_w, d->shape.in_c / d->shape.groups), c->w);
    place work = place_make(r, DSC_U8, SHAPE((int64_t)dsc_conv_workspace(conv)));
    place_fill(r, &work, 255);
    assert_ok(dsc_op_conv_forward(r->q, conv, &x.t, &w.t, NULL, &work.t, &y.t));
    place_fill(r, &work, 255);
    assert_ok(dsc_op_conv_backward_data(r->q, conv, &w.t, &dy.t, beta, &work.t, &dx.t));
    place_fill(r, &work, 255);
    assert_ok(dsc_op_conv_backward_weight(r->q, conv, &x.t, &dy.t, beta, &work.t, &dw.t));
    place_check_guards(r, &work, "work");
    if (check) {
        expect_equal(r, &y, c->ys, out->y, "conv forward");
        expect_equal(r, &dx, c->xs, out->dx, "conv backward data");
        expect_equal(r, &dw, c->ws, out->dw, "conv backward weight");
    } else {
        place_read(r, &y, out->y);
        place_read(r, &dx, out->dx);
        place_read(r, &dw, out->dw);
    }
    place *all[] = {&x, &w, &dy, &y, &dx, &dw, &work};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        place_free(all[i]);
    dsc_conv_destroy(&conv);
}

static void test_conv_cuts(void **state) {
    (void)state;
    /* Pieces of the gradient; many slabs; strides; wide patches; groups; a first layer. */
    static const dsc_conv_desc descs[] = {CONV(DSC_F32, 18, 32, 32, 16, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1),
                                          CONV(DSC_F32, 6, 24, 24, 16, 32, 3, 3, 2, 2, 1, 1, 1, 1, 1),
                                          CONV(DSC_F32, 3, 7, 7, 72, 40, 5, 5, 1, 1, 2, 2, 1, 1, 1),
                                          CONV(DSC_F32, 4, 20, 20, 32, 64, 1, 1, 1, 1, 0, 0, 1, 1, 2),
                                          CONV(DSC_F32, 5, 40, 40, 3, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1)};
    for (size_t i = 0; i < sizeof descs / sizeof descs[0]; i++) {
        conv_data c = {.d = descs[i]};
        assert_ok(dsc_conv_output(&c.d, &c.oh, &c.ow));
        c.xs = c.d.n * c.d.shape.in_h * c.d.shape.in_w * c.d.shape.in_c;
        c.ws =
            c.d.shape.out_c * c.d.shape.kernel_h * c.d.shape.kernel_w * (c.d.shape.in_c / c.d.shape.groups);
        c.ys = c.d.n * c.oh * c.ow * c.d.shape.out_c;
        c.x = test_array(c.xs, sizeof(double));
        c.w = test_array(c.ws, sizeof(double));
        c.y = test_array(c.ys, sizeof(double));
        random_integers(1, 3, c.xs, c.x);
        random_integers(2, 3, c.ws, c.w);
        random_integers(3, 3, c.ys, c.y);
        conv_result want = {test_array(c.ys, sizeof(double)), test_array(c.xs, sizeof(double)),
                            test_array(c.ws, sizeof(double))};
        double beta = i % 2 ? 0 : 1;
        run_conv(&rigs[0], &c, beta, &want, 0);
        for (int r = 1; r < rig_count; r++)
            run_conv(&rigs[r], &c, beta, &want, 1);
        double *all[] = {c.x, c.w, c.y, want.y, want.dx, want.dw};
        for (size_t j = 0; j < sizeof all / sizeof all[0]; j++)
            free(all[j]);
    }
}

/* ---- products ---- */

enum { M = 131, N = 150, K = 700 };

/* op(A) op(B) + beta C by the definition, in whole numbers. */
static void product(int trans_a, int trans_b, double beta, const double *a, const double *b, double *c) {
    for (int64_t i = 0; i < M; i++) {
        for (int64_t j = 0; j < N; j++) {
            double sum = 0;
            for (int64_t p = 0; p < K; p++)
                sum += a[trans_a ? p * M + i : i * K + p] * b[trans_b ? j * K + p : p * N + j];
            c[i * N + j] = sum + beta * c[i * N + j];
        }
    }
}

/* Checks the products of all transpositions on devices [first, last). */
static void check_products(int first, int last) {
    static double a[M * K], b[K * N], c[M * N], want[M * N];
    random_integers(4, 5, M * K, a);
    random_integers(5, 5, K * N, b);
    random_integers(6, 5, M * N, c);
    for (int trans = 0; trans < 4; trans++) {
        int trans_a = trans & 1, trans_b = trans >> 1;
        memcpy(want, c, sizeof want);
        product(trans_a, trans_b, 2, a, b, want);
        for (int r = first; r < last; r++) {
            place pa = place_of(&rigs[r], DSC_F32, 2, (const int64_t[]){trans_a ? K : M, trans_a ? M : K}, a);
            place pb = place_of(&rigs[r], DSC_F32, 2, (const int64_t[]){trans_b ? N : K, trans_b ? K : N}, b);
            place pc = place_of(&rigs[r], DSC_F32, SHAPE(M, N), c);
            assert_ok(dsc_op_gemm(rigs[r].q, trans_a, trans_b, 1, &pa.t, &pb.t, 2, &pc.t));
            expect_equal(&rigs[r], &pc, M * N, want, "gemm");
            place_free(&pa);
            place_free(&pb);
            place_free(&pc);
        }
    }
}

static void test_gemm_cuts(void **state) {
    (void)state;
    check_products(1, rig_count);
}

/* OpenBLAS's products are cut into rows and columns; a prime number of threads does not fill a grid. */
static void test_gemm_grids(void **state) {
    (void)state;
    skip_on_chosen("threads of the cpu device");
    int there = rig_count;
    assert_int_equal(rig_open("cpu:plain", 4) || rig_open("cpu:plain", 7) || rig_open("cpu:plain", 12), 0);
    check_products(there, rig_count);
    while (rig_count > there) {
        rig *last = &rigs[--rig_count];
        dsc_queue_destroy(&last->q);
        dsc_device_destroy(&last->device);
    }
}

static void test_syrk_cuts(void **state) {
    (void)state;
    static double a[K * N], c[N * N], want[N * N];
    random_integers(7, 5, K * N, a);
    random_integers(8, 5, N * N, c);
    memcpy(want, c, sizeof want);
    for (int64_t i = 0; i < N; i++) {
        for (int64_t j = 0; j <= i; j++) {
            double sum = 0;
            for (int64_t p = 0; p < K; p++)
                sum += a[p * N + i] * a[p * N + j];
            want[i * N + j] = 2 * sum - c[i * N + j];
        }
    }
    for (int r = 1; r < rig_count; r++) {
        place pa = place_of(&rigs[r], DSC_F32, SHAPE(K, N), a);
        place pc = place_of(&rigs[r], DSC_F32, SHAPE(N, N), c);
        assert_ok(dsc_op_syrk(rigs[r].q, 2, &pa.t, -1, &pc.t));
        expect_equal(&rigs[r], &pc, N * N, want, "syrk");
        place_free(&pa);
        place_free(&pc);
    }
}

/* ---- the rest ---- */

/* A step allocates nothing once it has run. */
static void test_no_allocation(void **state) {
    (void)state;
    for (int r = 1; r < rig_count; r++) {
        const rig *g = &rigs[r];
        dsc_conv_desc d = CONV(DSC_F32, 4, 16, 16, 16, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1);
        dsc_norm_desc norm = {1e-5, 0.1, 1};
        dsc_conv *conv;
        assert_ok(dsc_conv_create(g->device, &d, &conv));
        place x = place_make(g, DSC_F32, SHAPE(4, 16, 16, 16)),
              y = place_make(g, DSC_F32, SHAPE(4, 16, 16, 16));
        place w = place_make(g, DSC_F32, SHAPE(16, 3, 3, 16));
        place v = place_make(g, DSC_F32, SHAPE(16)), u = place_make(g, DSC_F32, SHAPE(16));
        place work = place_make(g, DSC_U8, SHAPE((int64_t)dsc_conv_workspace(conv)));
        dsc_norm_params params = {&v.t, &v.t, &u.t, &u.t, NULL};
        int64_t before = 0;
        for (int step = 0; step < 2; step++) {
            before = dsc_memory_allocations();
            assert_ok(dsc_op_conv_forward(g->q, conv, &x.t, &w.t, NULL, &work.t, &y.t));
            assert_ok(dsc_op_norm_forward_eval(g->q, &norm, &y.t, NULL, &params, &x.t));
            assert_ok(dsc_op_conv_backward_data(g->q, conv, &w.t, &y.t, 1, &work.t, &x.t));
            assert_ok(dsc_op_conv_backward_weight(g->q, conv, &x.t, &y.t, 1, &work.t, &w.t));
            assert_ok(dsc_op_bias_grad(g->q, &y.t, 0, &v.t));
        }
        assert_int_equal(dsc_memory_allocations(), before);
        place *all[] = {&x, &y, &w, &v, &u, &work};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
        dsc_conv_destroy(&conv);
    }
}

static void test_variants(void **state) {
    (void)state;
    skip_on_chosen("variants of the cpu device");
    static const char *const names[] = {"cpu", "cpu:plain", "cpu:avx2", "cpu:base"};
    dsc_device_options options;
    dsc_device *device = NULL;
    dsc_device_options_init(&options);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        options.name = names[i];
        options.threads = 3;
        assert_ok(dsc_device_create(&options, &device));
        assert_string_equal(dsc_device_name(device), "cpu");
        assert_int_equal(dsc_device_threads(device), 3);
        assert_non_null(strstr(dsc_device_description(device), "3 threads"));
        assert_non_null(strstr(dsc_device_description(device), "OpenBLAS"));
        if (i > 0)
            assert_non_null(strstr(dsc_device_description(device), "own convolution"));
        dsc_device_destroy(&device);
    }
    options.name = "cpu:fast";
    assert_fails(DSC_E_INVALID, "cpu:fast", dsc_device_create(&options, &device));
}

/* As many threads as there are CPUs, or fewer when OpenMP is set to that. */
static void test_default_threads(void **state) {
    (void)state;
    skip_on_chosen("threads of the cpu device");
    int before = omp_get_max_threads();
    dsc_device_options options;
    dsc_device *device = NULL;
    dsc_device_options_init(&options);
    options.name = "cpu";
    omp_set_num_threads(1);
    assert_ok(dsc_device_create(&options, &device));
    assert_int_equal(dsc_device_threads(device), 1);
    dsc_device_destroy(&device);
    omp_set_num_threads(100000);
    assert_ok(dsc_device_create(&options, &device));
    assert_int_equal(dsc_device_threads(device), omp_get_num_procs());
    dsc_device_destroy(&device);
    omp_set_num_threads(before);
}

/* oneDNN's threads would wait for partners that OpenMP does not start inside of a region: an error says so. */
static void test_conv_inside_region(void **state) {
    (void)state;
    skip_on_chosen("threads of the cpu device");
    dsc_conv_desc d = CONV(DSC_F32, 4, 16, 16, 16, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1);
    for (int r = 1; r < rig_count; r++) {
        const rig *g = &rigs[r];
        int planned =
            dsc_device_threads(g->device) > 1 && strstr(dsc_device_description(g->device), "oneDNN") != NULL;
        dsc_status status = DSC_OK;
        dsc_conv *conv;
        assert_ok(dsc_conv_create(g->device, &d, &conv));
        place x = place_make(g, DSC_F32, SHAPE(4, 16, 16, 16)),
              w = place_make(g, DSC_F32, SHAPE(16, 3, 3, 16));
        place dy = place_make(g, DSC_F32, SHAPE(4, 16, 16, 16));
        place work = place_make(g, DSC_U8, SHAPE((int64_t)dsc_conv_workspace(conv)));
#pragma omp parallel num_threads(2)
#pragma omp single
        status = dsc_op_conv_backward_weight(g->q, conv, &x.t, &dy.t, 0, &work.t, &w.t);
        assert_int_equal(status, planned ? DSC_E_UNSUPPORTED : DSC_OK);
        place *all[] = {&x, &w, &dy, &work};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
        dsc_conv_destroy(&conv);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv_cuts),       cmocka_unit_test(test_gemm_cuts),
        cmocka_unit_test(test_gemm_grids),      cmocka_unit_test(test_syrk_cuts),
        cmocka_unit_test(test_no_allocation),   cmocka_unit_test(test_variants),
        cmocka_unit_test(test_default_threads), cmocka_unit_test(test_conv_inside_region),
    };
    return cmocka_run_group_tests(tests, rigs_open_loose, rigs_close);
}
