/* Variants of the algorithm that are off by default, on one rank, against computations in float64. */
#include "kfac/twin.h"

#include "kfac/kfac_parts.h"

#include <math.h>
#include <stdlib.h>

/* ---- the damping divided between A and G ---- */

static dsc_kfac_options split_options(void) {
    dsc_kfac_options options = twin_options();
    options.method = DSC_KFAC_INVERSE;
    options.damping_split = DSC_KFAC_SPLIT_PI;
    return options;
}

static void test_split(void **state) {
    (void)state;
    static const dsc_dtype types[][2] = {{DSC_F32, DSC_F32}, {DSC_BF16, DSC_F32}, {DSC_F32, DSC_BF16}};
    for (int p = 0; p < PLACES; p++)
        for (int i = 0; i < 3; i++) {
            twin t;
            dsc_kfac_options options = split_options();
            options.factor_freq = 2;
            options.update_freq = 3;
            options.factor_dtype = types[i][0];
            options.inverse_dtype = types[i][1];
            twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
            if (i > 0)
                t.eps = 0x1p-8;
            for (int64_t k = 0; k < 6; k++)
                twin_step(&t, &(net_step){.number = k, .lr = 0.1}, "split");
            twin_close(&t);
        }
}

/* The traces are those of the whole factor, also where its diagonal blocks are solved one by one. */
static void test_split_of_blocks(void **state) {
    (void)state;
    twin t;
    dsc_kfac_options options = split_options();
    options.diag_blocks = 2;
    twin_open(&t, &places[REF], twin_mixed, TWIN_MIXED, &options);
    for (int64_t k = 0; k < 3; k++)
        twin_step(&t, &(net_step){.number = k, .lr = 0.1}, "split of blocks");
    twin_close(&t);
}

/* Factors of 0 have no ratio of traces: sqrt(damping) for both. P = D / damping. */
static void test_split_of_zero(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++) {
        twin t;
        dsc_kfac_options options = split_options();
        options.stat_decay = 0;
        twin_open(&t, &places[p], twin_mixed + 2, 1, &options);
        net_draw(&t.n, 0, 0, 1);
        net_draw_gradients(&t.n, 0);
        dsc_tensor *const zeros[] = {&t.n.layers[0].a, &t.n.layers[0].g};
        for (int i = 0; i < 2; i++)
            for (int64_t j = 0; j < dsc_tensor_count(zeros[i]); j++)
                net_set(&t.n, zeros[i], j, 0);
        assert_ok(dsc_kfac_begin(t.kfac, 1));
        assert_ok(dsc_kfac_capture(t.kfac, t.n.queue, 0, zeros[0], zeros[1]));
        assert_ok(dsc_kfac_step(t.kfac, t.n.queue, 0.1));
        net_read(&t.n, 0, t.want[0]);
        for (int64_t i = 0; i < net_gradient_count(&t.n, 0); i++) {
            double want = t.n.layers[0].d[i] / options.damping;
            assert_true(fabs(t.want[0][i] - want) <= 16 * t.eps * fabs(want));
        }
        twin_close(&t);
    }
}

/* A step on inputs 16 times as large, and output gradients 1/16 as large, as those of the net: A is as far above
 * 1 as G is below it, their product stays. */
static void unbalanced_step(twin *t, int64_t number) {
    assert_ok(dsc_kfac_begin(t->kfac, 1));
    net_draw(&t->n, number, 0, 1);
    net_draw_gradients(&t->n, number);
    for (int l = t->n.count - 1; l >= 0; l--) {
        dsc_tensor *a = &t->n.layers[l].a, *g = &t->n.layers[l].g;
        for (int64_t i = 0; i < dsc_tensor_count(a); i++)
            net_set(&t->n, a, i, 16 * net_get(&t->n, a, i));
        for (int64_t i = 0; i < dsc_tensor_count(g); i++)
            net_set(&t->n, g, i, net_get(&t->n, g, i) / 16);
        assert_ok(dsc_kfac_capture(t->kfac, t->n.queue, l, a, g));
    }
    assert_ok(dsc_kfac_step(t->kfac, t->n.queue, 0.1));
}

/* Distance of P from that of the eigen method after some steps, over all layers; split -1: the eigen method
 * itself, whose P becomes `exact`. */
static double distance_from_eigen(int split, double damping, double **exact) {
    twin t;
    double off = 0, size = 0;
    dsc_kfac_options options = split_options();
    options.stat_decay = 0;
    options.damping = damping;
    options.damping_split = split > 0 ? DSC_KFAC_SPLIT_PI : DSC_KFAC_SPLIT_NONE;
    if (split < 0)
        options.method = DSC_KFAC_EIGEN;
    twin_open(&t, &places[REF], twin_mixed, TWIN_MIXED, &options);
    unbalanced_step(&t, 0);
    for (int l = 0; l < t.n.count; l++) {
        int64_t count = net_gradient_count(&t.n, l);
        net_read(&t.n, l, t.want[l]);
        if (split < 0)
            memcpy(exact[l], t.want[l], (size_t)count * sizeof **exact);
        for (int64_t i = 0; i < count; i++) {
            off += (t.want[l][i] - exact[l][i]) * (t.want[l][i] - exact[l][i]);
            size += exact[l][i] * exact[l][i];
        }
    }
    twin_close(&t);
    return sqrt(off / size);
}

/* The purpose of the split: when A and G differ in size, as in convolutions, it brings the inverse nearer to the eigen
 * method. */
static void test_split_is_nearer(void **state) {
    (void)state;
    static const double dampings[] = {0.125, 0.01, 0.003};
    double *exact[NET_LAYERS];
    net n;
    net_open(&n, places[REF].queue, DSC_F64, twin_mixed, TWIN_MIXED, TWIN_SAMPLES);
    naive_gradients_open(&n, exact);
    for (int i = 0; i < 3; i++) {
        distance_from_eigen(-1, dampings[i], exact);
        double none = distance_from_eigen(0, dampings[i], exact);
        double split = distance_from_eigen(1, dampings[i], exact);
        print_message("damping %g: off by %.3f added to both, %.3f split\n", dampings[i], none, split);
        assert_true(split < 0.9 * none);
    }
    naive_gradients_close(&n, exact);
    net_close(&n);
}

static void test_split_refusals(void **state) {
    (void)state;
    dsc_kfac_layer layers[NET_LAYERS];
    dsc_kfac *kfac = NULL;
    dsc_kfac_split split;
    net n;
    net_open(&n, places[REF].queue, DSC_F64, twin_mixed, 1, TWIN_SAMPLES);
    net_describe(&n, layers);
    dsc_kfac_options options = split_options();
    options.method = DSC_KFAC_EIGEN;
    assert_fails(DSC_E_INVALID, "choose method inverse, or split none",
                 dsc_kfac_create(alone, n.queue, layers, 1, &options, &kfac));
    options = split_options();
    options.inverse_dtype = DSC_F16;
    assert_fails(DSC_E_INVALID, "use bf16 or fp32, or split none",
                 dsc_kfac_create(alone, n.queue, layers, 1, &options, &kfac));
    options.inverse_dtype = DSC_F32;
    options.damping_split = (dsc_kfac_split)2;
    assert_fails(DSC_E_INVALID, "kfac-damping-split 2 is unknown: choose one of none, pi",
                 dsc_kfac_create(alone, n.queue, layers, 1, &options, &kfac));
    assert_fails(DSC_E_INVALID, "choose one of none, pi", dsc_kfac_split_parse("phi", &split));
    assert_ok(dsc_kfac_split_parse("pi", &split));
    assert_true(split == DSC_KFAC_SPLIT_PI);
    assert_string_equal(dsc_kfac_split_name(DSC_KFAC_SPLIT_NONE), "none");
    net_close(&n);
}

/* ---- averages that start without the identity ---- */

/* The initial identity has no effect on the averages; with a decay of 3/4 the first four batches have equal weights.
 * Layers that are absent from some steps count their own updates. On both devices and in both types, with averages that
 * are updated at once, and after several passes. */
static void test_warmup(void **state) {
    (void)state;
    static const dsc_dtype types[] = {DSC_F32, DSC_BF16};
    static const unsigned absent[] = {0, 4, 1, 0, 9, 0, 0};
    for (int p = 0; p < PLACES; p++)
        for (int i = 0; i < 8; i++) {
            twin t;
            dsc_kfac_options options = twin_options();
            int64_t passes = 1 + (i & 1);
            options.warmup_factors = 1;
            options.stat_decay = 0.75;
            options.factor_dtype = types[i / 2 & 1];
            options.symmetric = i / 4 & 1;
            options.passes = passes;
            twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
            if (options.factor_dtype != DSC_F32)
                t.eps = 0x1p-8;
            for (int64_t k = 0; k < 7; k++)
                twin_step(&t,
                          &(net_step){.number = k,
                                      .lr = 0.1,
                                      .passes = passes,
                                      .loss_scale = 1 / (double)passes,
                                      .absent = absent[k]},
                          "warm-up");
            twin_close(&t);
        }
}

/* After one step the average is the batch's factor, which has no trace of the identity: here it is 0. */
static void test_warmup_replaces(void **state) {
    (void)state;
    twin t;
    dsc_kfac_options options = twin_options();
    options.warmup_factors = 1;
    options.stat_decay = 0.95;
    twin_open(&t, &places[REF], twin_mixed + 2, 1, &options);
    net_draw(&t.n, 0, 0, 1);
    net_draw_gradients(&t.n, 0);
    for (int64_t j = 0; j < dsc_tensor_count(&t.n.layers[0].a); j++)
        net_set(&t.n, &t.n.layers[0].a, j, 0);
    assert_ok(dsc_kfac_begin(t.kfac, 1));
    assert_ok(dsc_kfac_capture(t.kfac, t.n.queue, 0, &t.n.layers[0].a, &t.n.layers[0].g));
    assert_ok(dsc_kfac_step(t.kfac, t.n.queue, 0.1));
    for (int64_t i = 0; i < 6; i++)
        assert_true(twin_state(&t, "rows.A", i) == 0);
    assert_true(twin_state(&t, "rows.updates", 0) == 1);
    twin_close(&t);
}

/* ---- factors from a part of the batch ---- */

static void test_factor_samples(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++)
        for (int64_t part = 1; part <= TWIN_SAMPLES + 1; part++)
            for (int scaling = 0; scaling < 2; scaling++) {
                twin t;
                dsc_kfac_options options = twin_options();
                int64_t passes = 1 + part % 2;
                options.factor_samples = part;
                options.scaling = scaling ? DSC_KFAC_PYTORCH : DSC_KFAC_PAPER;
                options.passes = passes;
                twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
                for (int64_t k = 0; k < 3; k++)
                    twin_step(&t,
                              &(net_step){
                                  .number = k, .lr = 0.1, .passes = passes, .loss_scale = 1 / (double)passes},
                              "part of the batch");
                twin_close(&t);
            }
}

/* The expectation is that of all samples: the mean over the samples, each taken alone, is the whole batch's
 * factor. */
static void test_factor_samples_unbiased(void **state) {
    (void)state;
    double sum[2][3] = {{0}}, whole[2][3];
    for (int take = -1; take < TWIN_SAMPLES; take++) {
        twin t;
        dsc_kfac_options options = twin_options();
        options.stat_decay = 0;
        options.factor_samples = take < 0 ? 0 : 1;
        twin_open(&t, &places[REF], twin_mixed, 1, &options);
        net_draw(&t.n, 0, 0, 1);
        net_draw_gradients(&t.n, 0);
        for (int side = 0; side < 2 && take > 0; side++) { /* sample `take` becomes the first */
            dsc_tensor *x = side ? &t.n.layers[0].g : &t.n.layers[0].a;
            int64_t size = dsc_tensor_count(x) / TWIN_SAMPLES;
            for (int64_t i = 0; i < size; i++)
                net_set(&t.n, x, i, net_get(&t.n, x, take * size + i));
        }
        assert_ok(dsc_kfac_begin(t.kfac, 1));
        assert_ok(dsc_kfac_capture(t.kfac, t.n.queue, 0, &t.n.layers[0].a, &t.n.layers[0].g));
        assert_ok(dsc_kfac_step(t.kfac, t.n.queue, 0.1));
        for (int i = 0; i < 3; i++) {
            double a = twin_state(&t, "conv.A", i), g = twin_state(&t, "conv.G", i);
            if (take < 0) {
                whole[0][i] = a;
                whole[1][i] = g;
            } else {
                sum[0][i] += a / TWIN_SAMPLES;
                sum[1][i] += g / TWIN_SAMPLES;
            }
        }
        twin_close(&t);
    }
    for (int i = 0; i < 6; i++)
        assert_true(fabs(sum[i / 3][i % 3] - whole[i / 3][i % 3]) <= 1e-14);
}

/* EKFAC's moments: those of one sample, with the gradient of a loss over all, are N^2 times its squares. */
static void test_factor_samples_of_moments(void **state) {
    (void)state;
    double s[2][12];
    for (int cut = 0; cut < 2; cut++) {
        twin t;
        dsc_kfac_options options = twin_options();
        options.ekfac = DSC_KFAC_EKFAC_SAMPLES;
        options.factor_samples = cut;
        options.stat_decay = 0.5;
        options.update_freq = 100;
        twin_open(&t, &places[REF], twin_mixed + 2, 1, &options);
        for (int k = 0; k < 2; k++) {
            net_draw(&t.n, k, 0, 1);
            net_draw_gradients(&t.n, k);
            for (int side = 0; side < 2; side++) { /* all samples are the first one */
                dsc_tensor *x = side ? &t.n.layers[0].g : &t.n.layers[0].a;
                int64_t size = dsc_tensor_count(x) / TWIN_SAMPLES;
                for (int64_t i = size; i < TWIN_SAMPLES * size; i++)
                    net_set(&t.n, x, i, net_get(&t.n, x, i % size));
            }
            assert_ok(dsc_kfac_begin(t.kfac, 1));
            assert_ok(dsc_kfac_capture(t.kfac, t.n.queue, 0, &t.n.layers[0].a, &t.n.layers[0].g));
            assert_ok(dsc_kfac_step(t.kfac, t.n.queue, 0.1));
        }
        for (int i = 0; i < 12; i++)
            s[cut][i] = twin_state(&t, "rows.moments", i);
        twin_close(&t);
    }
    for (int i = 0; i < 12; i++)
        assert_true(fabs(s[0][i] - s[1][i]) <= 1e-13 * fabs(s[0][i]));
}

/* ---- the clip's bound ---- */

/* The bound is that of `passes` batches, also after the number of passes has changed. */
static void test_clip_scaling(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++) {
        twin t;
        dsc_kfac_options options = twin_options();
        options.kl_clip = 1e-5;
        options.kl_clip_scaling = DSC_KFAC_CLIP_RANKS;
        twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
        for (int64_t passes = 1; passes <= 4; passes++) {
            dsc_kfac_hyper hyper = dsc_kfac_hyper_of(&options);
            double nu;
            hyper.kl_clip *= (double)passes;
            assert_ok(dsc_kfac_set_passes(t.kfac, passes));
            twin_step_under(
                &t,
                &(net_step){.number = passes, .lr = 0.5, .passes = passes, .loss_scale = 1 / (double)passes},
                &hyper, "scaled clip");
            assert_ok(dsc_kfac_nu(t.kfac, t.n.queue, &nu));
            assert_true(nu < 1);
            assert_true(twin_report(&t)->hyper->kl_clip == options.kl_clip);
        }
        twin_close(&t);
    }
}

/* Every layer by its own factor; a layer that is absent does not count. In two of the steps the rate is so small
 * that only some layers are clipped. */
static void test_clip_by_layer(void **state) {
    (void)state;
    static const double rates[] = {0.5, 0.01, 0.02, 0, 0.5};
    for (int p = 0; p < PLACES; p++)
        for (int method = 0; method < 2; method++) {
            twin t;
            dsc_kfac_options options = twin_options();
            options.method = method ? DSC_KFAC_INVERSE : DSC_KFAC_EIGEN;
            options.kl_clip = 0.001;
            options.clip = DSC_KFAC_CLIP_LAYER;
            twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
            assert_true(twin_report(&t)->layer_nus[4] == 1);
            for (int k = 0; k < 5; k++) {
                twin_step(&t, &(net_step){.number = k, .lr = rates[k], .absent = k == 4 ? 2 : 0}, "by layer");
                const dsc_kfac_report *report = twin_report(&t);
                for (int i = 0; i < report->layer_count; i++) {
                    double bound = naive_bound(&t.v, t.v.units[i].layer, options.damping, t.eps);
                    assert_true(fabs(report->layer_nus[i] - t.v.units[i].nu) <= bound);
                }
            }
            twin_close(&t);
        }
}

/* The total change of all layers has the same bound as with one factor for all; with one gradient that is not finite,
 * no gradient is changed. */
static void test_clip_by_layer_bound(void **state) {
    (void)state;
    twin t;
    double terms[2];
    dsc_kfac_options options = twin_options();
    options.kl_clip = 0.001;
    options.clip = DSC_KFAC_CLIP_LAYER;
    twin_open(&t, &places[REF], twin_mixed, TWIN_MIXED, &options);
    assert_ok(net_run(&t.n, t.kfac, &(net_step){.number = 0, .lr = 0.5}));
    assert_ok(dsc_kfac_step_terms(t.kfac, t.n.queue, terms));
    assert_true(0.25 * terms[1] <= 0.001 * (1 + 1e-12) && 0.25 * terms[1] >= 0.0009);
    assert_true(terms[0] > terms[1]);
    net_draw(&t.n, 1, 0, 1);
    net_draw_gradients(&t.n, 1);
    net_set(&t.n, &t.n.layers[0].weight_grad, 0, NAN);
    assert_ok(dsc_kfac_begin(t.kfac, 1));
    for (int l = t.n.count - 1; l >= 0; l--)
        assert_ok(dsc_kfac_capture(t.kfac, t.n.queue, l, &t.n.layers[l].a, &t.n.layers[l].g));
    dsc_status status = dsc_kfac_step(t.kfac, t.n.queue, 0.5);
    assert_true(status == DSC_E_NUMERIC || !dsc_device_is_host(places[REF].handle));
    for (int l = 1; l < t.n.count; l++)
        assert_true(net_gradient_is(&t.n, l, t.n.layers[l].d));
    twin_close(&t);
}

static void test_clip_scaling_names(void **state) {
    (void)state;
    dsc_kfac_clip_scaling scaling;
    assert_fails(DSC_E_INVALID, "kfac-kl-clip-scaling 'batch' is unknown: choose one of none, ranks",
                 dsc_kfac_clip_scaling_parse("batch", &scaling));
    assert_ok(dsc_kfac_clip_scaling_parse("ranks", &scaling));
    assert_true(scaling == DSC_KFAC_CLIP_RANKS);
    assert_string_equal(dsc_kfac_clip_scaling_name(DSC_KFAC_CLIP_NONE), "none");
    dsc_kfac_layer layers[NET_LAYERS];
    dsc_kfac *kfac = NULL;
    dsc_kfac_options options = twin_options();
    net n;
    net_open(&n, places[REF].queue, DSC_F64, twin_mixed, 1, TWIN_SAMPLES);
    net_describe(&n, layers);
    options.clip = DSC_KFAC_CLIP_LAYER;
    options.norm = DSC_KFAC_NORM_FULL;
    assert_fails(DSC_E_INVALID, "choose clip global, or norm off",
                 dsc_kfac_create(alone, n.queue, layers, 1, &options, &kfac));
    net_close(&n);
    dsc_kfac_clip clip;
    assert_fails(DSC_E_INVALID, "kfac-clip 'all' is unknown: choose one of global, layer",
                 dsc_kfac_clip_parse("all", &clip));
    assert_ok(dsc_kfac_clip_parse("layer", &clip));
    assert_true(clip == DSC_KFAC_CLIP_LAYER);
    assert_string_equal(dsc_kfac_clip_name(DSC_KFAC_CLIP_GLOBAL), "global");
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_split_of_blocks),
        cmocka_unit_test(test_split_of_zero),
        cmocka_unit_test(test_split_is_nearer),
        cmocka_unit_test(test_split_refusals),
        cmocka_unit_test(test_warmup),
        cmocka_unit_test(test_warmup_replaces),
        cmocka_unit_test(test_clip_scaling),
        cmocka_unit_test(test_clip_scaling_names),
        cmocka_unit_test(test_clip_by_layer),
        cmocka_unit_test(test_clip_by_layer_bound),
        cmocka_unit_test(test_factor_samples),
        cmocka_unit_test(test_factor_samples_unbiased),
        cmocka_unit_test(test_factor_samples_of_moments),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("kfac variants", tests, places_open, places_close);
}
