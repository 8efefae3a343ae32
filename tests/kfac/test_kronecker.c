/* The preconditioned gradient against the dense solve with explicit Kronecker products, for every kind of
 * layer: see naive.h for the formulas. In float64 on ref, in float32 on cpu. */
#include "kfac/twin.h"

#include <math.h>
#include <stdlib.h>

static const net_shape shapes[] = {
    {"linear", DSC_KFAC_LINEAR, .in_c = 4, .out_c = 3},
    {"one output", DSC_KFAC_LINEAR, .in_c = 6, .out_c = 1},
    {"one input", DSC_KFAC_LINEAR, .in_c = 1, .out_c = 5},
    {"sequence", DSC_KFAC_LINEAR, .in_c = 4, .out_c = 3, .sequence = 5},
    {"1x1", DSC_KFAC_CONV2D, .in_c = 4, .out_c = 3, .in_h = 3, .in_w = 2},
    {"1x1 stride 2", DSC_KFAC_CONV2D, .in_c = 3, .out_c = 3, .in_h = 5, .in_w = 4, .stride_h = 2,
     .stride_w = 2},
    {"3x3 same", DSC_KFAC_CONV2D, .in_c = 2, .out_c = 3, .in_h = 4, .in_w = 5, .kernel_h = 3, .kernel_w = 3,
     .pad_h = 1, .pad_w = 1},
    {"3x3 valid stride 2", DSC_KFAC_CONV2D, .in_c = 2, .out_c = 2, .in_h = 7, .in_w = 5, .kernel_h = 3,
     .kernel_w = 3, .stride_h = 2, .stride_w = 2},
    {"3x3 same dilation 2", DSC_KFAC_CONV2D, .in_c = 2, .out_c = 2, .in_h = 5, .in_w = 5, .kernel_h = 3,
     .kernel_w = 3, .pad_h = 2, .pad_w = 2, .dilation_h = 2, .dilation_w = 2},
    {"5x3 same", DSC_KFAC_CONV2D, .in_c = 1, .out_c = 3, .in_h = 5, .in_w = 4, .kernel_h = 5, .kernel_w = 3,
     .pad_h = 2, .pad_w = 1},
    {"2x3 uneven", DSC_KFAC_CONV2D, .in_c = 2, .out_c = 2, .in_h = 5, .in_w = 6, .kernel_h = 2, .kernel_w = 3,
     .stride_h = 2, .stride_w = 1, .pad_w = 1, .dilation_h = 1, .dilation_w = 2},
    {"3x3 groups", DSC_KFAC_CONV2D, .in_c = 4, .out_c = 6, .in_h = 4, .in_w = 4, .kernel_h = 3, .kernel_w = 3,
     .pad_h = 1, .pad_w = 1, .groups = 2},
    {"depthwise stride 2", DSC_KFAC_CONV2D, .in_c = 3, .out_c = 6, .in_h = 5, .in_w = 5, .kernel_h = 3,
     .kernel_w = 3, .stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 1, .groups = 3},
    {"kernel of the whole image", DSC_KFAC_CONV2D, .in_c = 2, .out_c = 3, .in_h = 3, .in_w = 2, .kernel_h = 3,
     .kernel_w = 2},
    {"transposed 2x2 stride 2", DSC_KFAC_CONV_TRANSPOSE2D, .in_c = 4, .out_c = 2, .in_h = 2, .in_w = 3,
     .kernel_h = 2, .kernel_w = 2, .stride_h = 2, .stride_w = 2},
    {"transposed 3x3 stride 2", DSC_KFAC_CONV_TRANSPOSE2D, .in_c = 3, .out_c = 1, .in_h = 3, .in_w = 2,
     .kernel_h = 3, .kernel_w = 3, .stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 1},
    {"transposed 1x1", DSC_KFAC_CONV_TRANSPOSE2D, .in_c = 4, .out_c = 3, .in_h = 3, .in_w = 2},
    {"transposed 2x1 uneven", DSC_KFAC_CONV_TRANSPOSE2D, .in_c = 2, .out_c = 3, .in_h = 3, .in_w = 3,
     .kernel_h = 2, .stride_w = 3, .pad_h = 1, .dilation_h = 2},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static const struct {
    const char *name;
    dsc_kfac_method method;
    int outer_product;
} methods[] = {
    {"eigen", DSC_KFAC_EIGEN, 0}, {"outer product", DSC_KFAC_EIGEN, 1}, {"inverse", DSC_KFAC_INVERSE, 0}};
enum { METHODS = sizeof methods / sizeof methods[0] };

static void run_alone(const place *p, const net_shape *shape, int method, dsc_kfac_scaling scaling) {
    char what[160];
    twin t;
    dsc_kfac_options options = twin_options();
    options.method = methods[method].method;
    options.outer_product = methods[method].outer_product;
    options.scaling = scaling;
    snprintf(what, sizeof what, "%s, %s, '%s'%s, %s, scaling %s", p->device, dsc_dtype_name(p->dtype),
             shape->name, shape->bias ? " with bias" : "", methods[method].name,
             dsc_kfac_scaling_name(scaling));
    twin_open(&t, p, shape, 1, &options);
    for (int64_t k = 0; k < 3; k++)
        twin_step(&t, &(net_step){.number = k, .lr = 0.1}, what);
    twin_close(&t);
}

static void test_every_kind(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++)
        for (int s = 0; s < SHAPES; s++)
            for (int bias = 0; bias < 2; bias++)
                for (int method = 0; method < METHODS; method++)
                    for (int scaling = 0; scaling < 2; scaling++) {
                        net_shape shape = shapes[s];
                        shape.bias = bias;
                        run_alone(&places[p], &shape, method, scaling ? DSC_KFAC_PYTORCH : DSC_KFAC_PAPER);
                    }
}

/* The clip uses the sum of <P, D> over all layers: with these numbers it acts, with a small rate it does
 * not. */
static void test_clip(void **state) {
    (void)state;
    static const double rates[] = {0.5, 0.125, 1e-4, 0};
    for (int p = 0; p < PLACES; p++)
        for (int method = 0; method < METHODS; method++) {
            twin t;
            dsc_kfac_options options = twin_options();
            options.method = methods[method].method;
            options.outer_product = methods[method].outer_product;
            options.kl_clip = 0.001;
            twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
            for (int k = 0; k < 4; k++) {
                twin_step(&t, &(net_step){.number = k, .lr = rates[k]}, methods[method].name);
                double nu;
                assert_ok(dsc_kfac_nu(t.kfac, t.n.queue, &nu));
                assert_true(k < 2 ? nu < 0.5 : nu == 1);
            }
            twin_close(&t);
        }
}

/* G is formed from g without the loss scale; the scale is far from 1, so that an error would be visible. */
static void test_loss_scale(void **state) {
    (void)state;
    static const double scales[] = {1024, 0.25, 65536};
    for (int p = 0; p < PLACES; p++)
        for (int scaling = 0; scaling < 2; scaling++) {
            twin t;
            dsc_kfac_options options = twin_options();
            options.scaling = scaling ? DSC_KFAC_PYTORCH : DSC_KFAC_PAPER;
            twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
            for (int k = 0; k < 3; k++)
                twin_step(&t, &(net_step){.number = k, .lr = 0.1, .loss_scale = scales[k]}, "loss scale");
            twin_close(&t);
        }
}

/* Factors of m passes are averaged and enter the running average once; g of a loss over m passes is 1/m of
 * what one pass alone would give. */
static void test_passes(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++)
        for (int64_t passes = 2; passes <= 4; passes += 2)
            for (int method = 0; method < METHODS; method++) {
                twin t;
                dsc_kfac_options options = twin_options();
                options.method = methods[method].method;
                options.outer_product = methods[method].outer_product;
                options.passes = passes;
                twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
                for (int k = 0; k < 3; k++)
                    twin_step(&t,
                              &(net_step){
                                  .number = k, .lr = 0.1, .passes = passes, .loss_scale = 1 / (double)passes},
                              "passes");
                twin_close(&t);
            }
}

/* The usual case: averages are updated every second step, and decompositions are up to three steps old. */
static void test_between_updates(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++)
        for (int method = 0; method < METHODS; method++) {
            twin t;
            dsc_kfac_options options = twin_options();
            options.method = methods[method].method;
            options.outer_product = methods[method].outer_product;
            options.factor_freq = 2;
            options.update_freq = 3;
            options.kl_clip = 0.001;
            twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
            for (int k = 0; k < 8; k++)
                twin_step(&t, &(net_step){.number = k, .lr = 0.25}, methods[method].name);
            twin_close(&t);
        }
}

/* Diagonal blocks, ordered by channel, in both methods; linear layers keep whole factors. */
static void test_diagonal_blocks(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++)
        for (int method = 0; method < METHODS; method++)
            for (int64_t blocks = 2; blocks <= 5; blocks++) {
                if (methods[method].outer_product)
                    continue;
                twin t;
                dsc_kfac_options options = twin_options();
                options.method = methods[method].method;
                options.strategy = DSC_KFAC_COMM_OPT;
                options.diag_blocks = blocks;
                twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
                for (int k = 0; k < 3; k++)
                    twin_step(&t, &(net_step){.number = k, .lr = 0.1}, "blocks");
                twin_close(&t);
            }
}

/* ---- products that round ---- */

static const net_shape larger[] = {
    {"linear", DSC_KFAC_LINEAR, .in_c = 30, .out_c = 9, .bias = 1},
    {"1x1", DSC_KFAC_CONV2D, .in_c = 16, .out_c = 17, .in_h = 6, .in_w = 6},
    {"3x3", DSC_KFAC_CONV2D, .in_c = 4, .out_c = 8, .in_h = 6, .in_w = 6, .kernel_h = 3, .kernel_w = 3,
     .pad_h = 1, .pad_w = 1},
    {"1x1 again", DSC_KFAC_CONV2D, .in_c = 16, .out_c = 17, .in_h = 4, .in_w = 4},
};
enum { LARGER = sizeof larger / sizeof larger[0] };

static void run_rounded(const place *p, int method, double damping) {
    twin t;
    dsc_kfac_options options = twin_options();
    options.method = methods[method].method;
    options.outer_product = methods[method].outer_product;
    options.damping = damping;
    twin_open(&t, p, larger, LARGER, &options);
    for (int k = 0; k < 3; k++) {
        net_step step = {.number = k, .lr = 0.1};
        naive_run(&t.v, &t.n, &step, HYPER(&options), t.want);
        assert_ok(net_run(&t.n, t.kfac, &step));
        for (int l = 0; l < LARGER; l++) {
            int64_t count = net_gradient_count(&t.n, l);
            double *got = net_array(count, sizeof *got);
            net_read(&t.n, l, got);
            double distance = naive_distance(got, t.want[l], count);
            free(got);
            if (!(distance <= 1e-3))
                fail_msg("%s, %s, damping %g, step %d, '%s': off by %g", p->device, methods[method].name,
                         damping, k, larger[l].name, distance);
        }
    }
    twin_close(&t);
}

/* The device as users have it, where a GPU may round the factors of products to TF32: the result is good to
 * 1e-3. */
static void test_rounded_products(void **state) {
    (void)state;
    static const double dampings[] = {0.125, 0.003};
    place p = {chosen_or("cpu"), DSC_F32, 0, 1, NULL, NULL};
    p.handle = chosen_open(p.device, p.threads);
    assert_ok(dsc_queue_create(p.handle, &p.queue));
    if (chosen())
        assert_ok(dsc_comm_use_queue(alone, p.queue));
    for (int method = 0; method < METHODS; method++)
        for (int d = 0; d < 2; d++)
            run_rounded(&p, method, dampings[d]);
    if (chosen())
        assert_ok(dsc_comm_use_queue(alone, places[REF].queue));
    dsc_queue_destroy(&p.queue);
    dsc_device_destroy(&p.handle);
}

/* The preconditioner does something: for inputs this skewed P is not parallel to D. */
static void test_not_parallel(void **state) {
    (void)state;
    twin t;
    dsc_kfac_options options = twin_options();
    options.damping = 0.003;
    twin_open(&t, &places[CPU], twin_mixed, TWIN_MIXED, &options);
    for (int k = 0; k < 6; k++)
        assert_ok(net_run(&t.n, t.kfac, &(net_step){.number = k, .lr = 0.1}));
    for (int l = 0; l < t.n.count; l++) {
        int64_t count = net_gradient_count(&t.n, l);
        const double *d = t.n.layers[l].d;
        double inner = 0, pp = 0, dd = 0;
        net_read(&t.n, l, t.want[l]);
        for (int64_t i = 0; i < count; i++) {
            inner += d[i] * t.want[l][i];
            pp += t.want[l][i] * t.want[l][i];
            dd += d[i] * d[i];
        }
        assert_true(inner > 0 && inner < 0.95 * sqrt(pp * dd));
    }
    twin_close(&t);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind),      cmocka_unit_test(test_clip),
        cmocka_unit_test(test_loss_scale),      cmocka_unit_test(test_passes),
        cmocka_unit_test(test_between_updates), cmocka_unit_test(test_diagonal_blocks),
        cmocka_unit_test(test_not_parallel),    cmocka_unit_test(test_rounded_products),
    };
    if (argc > 1) /* runs only tests whose names match */
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("kfac kronecker", tests, places_open, places_close);
}
