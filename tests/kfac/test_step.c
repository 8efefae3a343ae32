/* The order of a step, schedules, layers left out, 16-bit types, diagonal blocks, and reports. */
#include "kfac/twin.h"

#include "base/error.h"
#include "base/memory.h"
#include "kfac/kfac_parts.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* ---- order ---- */

static void test_frequencies(void **state) {
    (void)state;
    static const int64_t pairs[][2] = {{1, 1}, {1, 3}, {3, 1}, {2, 3}, {4, 2}, {5, 7}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        twin t;
        dsc_kfac_options options = twin_options();
        options.factor_freq = pairs[i][0];
        options.update_freq = pairs[i][1];
        twin_open(&t, &places[REF], twin_mixed, TWIN_MIXED, &options);
        for (int64_t k = 0; k < 8; k++) {
            twin_step(&t, &(net_step){.number = k, .lr = 0.1}, "frequencies");
            const dsc_kfac_report *report = twin_report(&t);
            assert_int_equal(report->step, k + 1);
            assert_int_equal(report->updated, k % pairs[i][0] == 0);
            assert_int_equal(report->decomposed, k % pairs[i][1] == 0);
            assert_int_equal(dsc_kfac_decomposed(t.kfac), k % pairs[i][1] == 0);
        }
        twin_close(&t);
    }
}

static void test_wants_factors(void **state) {
    (void)state;
    static const int64_t frequencies[] = {1, 2, 3, 0};
    for (int i = 0; i < 4; i++) {
        twin t;
        dsc_kfac_options options = twin_options();
        options.factor_freq = frequencies[i];
        twin_open(&t, &places[CPU], twin_mixed, TWIN_MIXED, &options);
        for (int64_t k = 0; k < 5; k++) {
            int wanted = frequencies[i] > 0 && k % frequencies[i] == 0;
            assert_ok(dsc_kfac_begin(t.kfac, 1));
            assert_int_equal(dsc_kfac_wants_factors(t.kfac), wanted);
            net_draw(&t.n, k, 0, 1);
            net_draw_gradients(&t.n, k);
            for (int l = t.n.count - 1; l >= 0; l--)
                assert_ok(dsc_kfac_capture(t.kfac, t.n.queue, l, wanted ? &t.n.layers[l].a : NULL,
                                           wanted ? &t.n.layers[l].g : NULL));
            assert_ok(dsc_kfac_step(t.kfac, t.n.queue, 0.1));
            assert_true(net_gradients_finite(&t.n));
        }
        twin_close(&t);
    }
}

/* T = 0: not a bit of any gradient changes. */
static void test_off(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++) {
        twin t;
        dsc_kfac_options options = twin_options();
        options.update_freq = 0;
        options.kl_clip = 1e-6;
        twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
        for (int64_t k = 0; k < 3; k++) {
            double nu;
            assert_ok(net_run(&t.n, t.kfac, &(net_step){.number = k, .lr = 10}));
            for (int l = 0; l < t.n.count; l++)
                assert_true(net_gradient_is(&t.n, l, t.n.layers[l].d));
            assert_false(dsc_kfac_decomposed(t.kfac));
            assert_ok(dsc_kfac_nu(t.kfac, t.n.queue, &nu));
            assert_true(nu == 1);
        }
        twin_close(&t);
    }
}

/* F = 0: the factors stay the identity, P = D / (1 + damping), or D / (1 + damping)^2 by inverses. */
static void test_no_factors(void **state) {
    (void)state;
    for (int method = 0; method < 2; method++) {
        twin t;
        dsc_kfac_options options = twin_options();
        options.method = method ? DSC_KFAC_INVERSE : DSC_KFAC_EIGEN;
        options.factor_freq = 0;
        twin_open(&t, &places[REF], twin_mixed, TWIN_MIXED, &options);
        for (int64_t k = 0; k < 2; k++) {
            twin_step(&t, &(net_step){.number = k, .lr = 0.1}, "no factors");
            double scale = method ? 1.125 * 1.125 : 1.125, d = t.n.layers[0].d[5], p[100];
            net_read(&t.n, 0, p);
            assert_true(fabs(p[5] - d / scale) <= 64 * DBL_EPSILON);
        }
        twin_close(&t);
    }
}

/* A step that is begun again: its captures have entered the averages, and it keeps its number. */
static void test_begun_again(void **state) {
    (void)state;
    static const unsigned absent[] = {0, 5, 15, 8};
    for (int p = 0; p < PLACES; p++) {
        twin t;
        dsc_kfac_options options = twin_options();
        options.kl_clip = 0.001;
        twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
        for (int64_t k = 0; k < 4; k++) {
            assert_ok(dsc_kfac_begin(t.kfac, 1));
            net_draw(&t.n, 20 + k, 0, 1);
            naive_capture(&t.v, absent[k]);
            for (int l = t.n.count - 1; l >= 0; l--)
                if (!(absent[k] >> l & 1))
                    assert_ok(dsc_kfac_capture(t.kfac, t.n.queue, l, &t.n.layers[l].a, &t.n.layers[l].g));
            naive_step(&t.v, HYPER(&options), 1, 0, 0.25, t.want);
            twin_step(&t, &(net_step){.number = k, .lr = 0.25}, "begun again");
            assert_int_equal(twin_report(&t)->step, k + 1);
        }
        twin_close(&t);
    }
}

/* ---- schedules ---- */

/* Everything changes; steps 3 to 5 are off. */
static dsc_kfac_hyper at_step(int64_t k) {
    return (dsc_kfac_hyper){.damping = 0.125 * (double)(1 + k),
                            .stat_decay = k < 3 ? 0.5 : 0.75,
                            .kl_clip = k % 2 ? 0.001 : 0,
                            .factor_freq = k < 4 ? 1 : 2,
                            .update_freq = k < 3 ? 1 : (k < 6 ? 0 : 3),
                            .diag_blocks = 1};
}

static dsc_status change_all(void *context, int64_t step, dsc_kfac_hyper *hyper) {
    assert_true(hyper->damping == 77); /* the value of the options, in every step */
    ++*(int *)context;
    *hyper = at_step(step);
    return DSC_OK;
}

static void test_schedule(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++) {
        int calls = 0;
        twin t;
        dsc_kfac_options options = twin_options();
        options.damping = 77;
        options.schedule = change_all;
        options.context = &calls;
        twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
        for (int64_t k = 0; k < 11; k++) {
            dsc_kfac_hyper hyper = at_step(k);
            twin_step_under(&t, &(net_step){.number = k, .lr = 0.5}, &hyper, "schedule");
            const dsc_kfac_report *report = twin_report(&t);
            assert_true(report->hyper->damping == hyper.damping && report->hyper->kl_clip == hyper.kl_clip);
            assert_int_equal(report->hyper->update_freq, hyper.update_freq);
            assert_int_equal(calls, k + 1);
        }
        twin_close(&t);
    }
}

/* The damping changes while the decomposition stays: the eigen form follows at once, the others keep the
 * damping that they were made with. */
static dsc_status grow_damping(void *context, int64_t step, dsc_kfac_hyper *hyper) {
    (void)context;
    hyper->damping = 0.125 * (double)(1 + step);
    return DSC_OK;
}

static void test_damping_between_updates(void **state) {
    (void)state;
    for (int method = 0; method < 3; method++) {
        twin t;
        dsc_kfac_options options = twin_options();
        options.method = method == 2 ? DSC_KFAC_INVERSE : DSC_KFAC_EIGEN;
        options.outer_product = method == 1;
        options.schedule = grow_damping;
        options.update_freq = 3;
        twin_open(&t, &places[REF], twin_mixed, TWIN_MIXED, &options);
        for (int64_t k = 0; k < 7; k++) {
            dsc_kfac_hyper hyper = dsc_kfac_hyper_of(&options);
            assert_ok(grow_damping(NULL, k, &hyper));
            twin_step_under(&t, &(net_step){.number = k, .lr = 0.1}, &hyper, "damping");
        }
        twin_close(&t);
    }
}

static dsc_status bad_schedule(void *context, int64_t step, dsc_kfac_hyper *hyper) {
    double *field[] = {&hyper->damping, &hyper->damping, &hyper->stat_decay, &hyper->kl_clip};
    static const double values[] = {-1, 1e-50, 1.5, NAN};
    int which = *(int *)context;
    if (step < 1)
        return DSC_OK;
    if (which < 4)
        *field[which] = values[which];
    else if (which == 4)
        hyper->factor_freq = -1;
    else if (which == 5)
        hyper->update_freq = -2;
    else if (which == 6)
        hyper->diag_blocks = 3;
    else
        return DSC_FAIL(DSC_E_IO, "the schedule's file is gone");
    return DSC_OK;
}

static void test_bad_schedule(void **state) {
    (void)state;
    for (int which = 0; which < 8; which++) {
        twin t;
        dsc_kfac_options options = twin_options();
        options.schedule = bad_schedule;
        options.context = &which;
        twin_open(&t, &places[CPU], twin_mixed, TWIN_MIXED, &options);
        assert_ok(net_run(&t.n, t.kfac, &(net_step){.number = 0, .lr = 0.1}));
        if (which < 7)
            assert_fails(DSC_E_INVALID, which < 2 ? "under a schedule" : "", dsc_kfac_begin(t.kfac, 1));
        else
            assert_fails(DSC_E_IO, "the schedule's file is gone", dsc_kfac_begin(t.kfac, 1));
        assert_true(strlen(dsc_error_message()) > 10);
        twin_close(&t);
    }
}

/* ---- layers left out ---- */

static void test_absent_layers(void **state) {
    (void)state;
    static const unsigned absent[] = {0, 1, 4 | 2, 0, 8, 15, 0};
    for (int p = 0; p < PLACES; p++)
        for (int method = 0; method < 3; method++) {
            twin t;
            dsc_kfac_options options = twin_options();
            options.method = method == 2 ? DSC_KFAC_INVERSE : DSC_KFAC_EIGEN;
            options.outer_product = method == 1;
            options.kl_clip = 0.001;
            twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
            for (int64_t k = 0; k < 7; k++) {
                double before = twin_state(&t, "conv.A", 2), after;
                twin_step(&t, &(net_step){.number = k, .lr = 0.25, .absent = absent[k]}, "absent");
                for (int l = 0; l < t.n.count; l++)
                    assert_int_equal(net_gradient_is(&t.n, l, t.n.layers[l].d), absent[k] >> l & 1);
                after = twin_state(&t, "conv.A", 2);
                assert_int_equal(before == after, absent[k] & 1);
            }
            twin_close(&t);
        }
}

/* A layer that runs for the first time between decompositions: its factors are still as good as the
 * identity, so the gradient keeps its direction. */
static void test_late_layer(void **state) {
    (void)state;
    for (int method = 0; method < 2; method++) {
        twin t;
        dsc_kfac_options options = twin_options();
        options.method = method ? DSC_KFAC_INVERSE : DSC_KFAC_EIGEN;
        options.update_freq = 3;
        twin_open(&t, &places[REF], twin_mixed, TWIN_MIXED, &options);
        for (int64_t k = 0; k < 3; k++) {
            assert_ok(net_run(&t.n, t.kfac, &(net_step){.number = k, .lr = 0.1, .absent = k == 0 ? 8 : 0}));
            int64_t count = net_gradient_count(&t.n, 3);
            const double *d = t.n.layers[3].d;
            double p[100];
            net_read(&t.n, 3, p);
            for (int64_t i = 0; i < count; i++)
                assert_true(fabs(p[i] * d[0] - d[i] * p[0]) <= 1e-12 && (d[i] == 0 || p[i] / d[i] > 0.5));
        }
        assert_ok(net_run(&t.n, t.kfac, &(net_step){.number = 3, .lr = 0.1}));
        assert_true(net_gradients_finite(&t.n));
        twin_close(&t);
    }
}

/* A layer that runs in some of the passes: its factors are averaged over those. */
static void test_absent_in_a_pass(void **state) {
    (void)state;
    static const unsigned absent[3][3] = {{0, 1, 9}, {15, 6, 0}, {2, 2, 0}};
    for (int p = 0; p < PLACES; p++) {
        twin t;
        dsc_kfac_options options = twin_options();
        options.passes = 3;
        twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
        for (int64_t k = 0; k < 3; k++) {
            assert_ok(dsc_kfac_begin(t.kfac, 1));
            for (int64_t pass = 0; pass < 3; pass++) {
                net_draw(&t.n, k, pass, 1);
                naive_capture(&t.v, absent[k][pass]);
                for (int l = t.n.count - 1; l >= 0; l--)
                    if (!(absent[k][pass] >> l & 1))
                        assert_ok(dsc_kfac_capture(t.kfac, t.n.queue, l, &t.n.layers[l].a, &t.n.layers[l].g));
            }
            net_draw_gradients(&t.n, k);
            for (int l = 0; l < t.n.count; l++)
                memcpy(t.want[l], t.n.layers[l].d, (size_t)net_gradient_count(&t.n, l) * sizeof(double));
            naive_step(&t.v, HYPER(&options), 1, 1, 0.1, t.want);
            assert_ok(dsc_kfac_step(t.kfac, t.n.queue, 0.1));
            assert_true(naive_excess(&t.v, t.want, options.damping, t.eps) <= 1);
        }
        twin_close(&t);
    }
}

static void test_skipped_layers(void **state) {
    (void)state;
    static const struct {
        const char *expressions;
        unsigned skipped;
    } cases[] = {{"^last$", 8}, {"conv2d", 3}, {"^rows ^conv$", 5}, {"linear grouped", 14}};
    for (int i = 0; i < 4; i++) {
        twin t;
        dsc_kfac_options options = twin_options();
        options.skip_layers = cases[i].expressions;
        options.kl_clip = 0.001;
        twin_open(&t, &places[REF], twin_mixed, TWIN_MIXED, &options);
        for (int64_t k = 0; k < 3; k++) {
            net_step step = {.number = k, .lr = 0.25}, without = step;
            without.absent = cases[i].skipped;
            naive_run(&t.v, &t.n, &without, HYPER(&options), t.want);
            assert_ok(net_run(&t.n, t.kfac, &step)); /* captures of skipped layers are allowed */
            assert_true(naive_excess(&t.v, t.want, options.damping, t.eps) <= 1);
            for (int l = 0; l < t.n.count; l++)
                assert_int_equal(net_gradient_is(&t.n, l, t.n.layers[l].d), cases[i].skipped >> l & 1);
        }
        twin_close(&t);
    }
}

static void test_everything_skipped(void **state) {
    (void)state;
    twin t;
    dsc_kfac_options options = twin_options();
    options.skip_layers = "linear conv2d";
    twin_open(&t, &places[CPU], twin_mixed, TWIN_MIXED, &options);
    assert_ok(net_run(&t.n, t.kfac, &(net_step){.number = 0, .lr = 0.1}));
    for (int l = 0; l < t.n.count; l++)
        assert_true(net_gradient_is(&t.n, l, t.n.layers[l].d));
    assert_int_equal(twin_report(&t)->layer_count, 0);
    twin_close(&t);
}

/* ---- a scale that the device keeps ---- */

/* One step with gradients twice as large, which the loss scale compensates, or a scale of G by 1/4. */
static void run_scaled(const place *p, const dsc_kfac_options *options, int on_device, double *want) {
    const int64_t one = 1;
    const double quarter = 0.25;
    twin t;
    dsc_tensor scale;
    twin_open(&t, p, twin_mixed, TWIN_MIXED, options);
    assert_ok(dsc_tensor_alloc(p->handle, DSC_F64, 1, &one, &scale));
    assert_ok(dsc_tensor_upload(p->queue, &quarter, sizeof quarter, &scale));
    if (on_device)
        dsc_kfac_scale_g(t.kfac, &scale);
    assert_ok(dsc_kfac_begin(t.kfac, on_device ? 1 : 2));
    for (int64_t pass = 0; pass < options->passes; pass++) {
        net_draw(&t.n, 0, pass, 2);
        for (int l = t.n.count - 1; l >= 0; l--)
            assert_ok(dsc_kfac_capture(t.kfac, t.n.queue, l, &t.n.layers[l].a, &t.n.layers[l].g));
    }
    net_draw_gradients(&t.n, 0);
    assert_ok(dsc_kfac_step(t.kfac, t.n.queue, 0.1));
    for (int i = 0; i < 4; i++) {
        double value = twin_state(&t, i / 2 ? "grouped[1].G" : "last.A", i % 2);
        if (on_device)
            assert_true(value == want[i]);
        want[i] = value;
    }
    twin_close(&t);
    dsc_tensor_free(&scale);
}

/* Powers of two: equal to the last bit, whether a factor waits in its batch or enters the average at once. */
static void test_scale_g(void **state) {
    (void)state;
    static const dsc_dtype types[] = {DSC_F32, DSC_BF16};
    for (int p = 0; p < PLACES; p++)
        for (int i = 0; i < 8; i++) {
            dsc_kfac_options options = twin_options();
            double want[4];
            options.late_factors = i & 1;
            options.passes = i & 2 ? 2 : 1;
            options.factor_dtype = types[i >> 2];
            run_scaled(&places[p], &options, 0, want);
            run_scaled(&places[p], &options, 1, want);
        }
}

/* ---- types ---- */

/* Factors or decompositions in half precision: as near to float32 as their roundings allow. A factor is
 * rounded after each of the k updates; every rounding moves the system by u |G||A|. */
static void run_half(dsc_dtype factor, dsc_dtype inverse, dsc_kfac_method method, int outer_product) {
    double unit = (factor == DSC_BF16 || inverse == DSC_BF16) ? 0x1p-8 : 0x1p-11;
    twin t;
    dsc_kfac_options options = twin_options();
    options.damping = 1;
    options.method = method;
    options.outer_product = outer_product;
    options.factor_dtype = factor;
    options.inverse_dtype = inverse;
    twin_open(&t, &places[CPU], twin_mixed, TWIN_MIXED, &options);
    int differs = 0;
    for (int64_t k = 0; k < 3; k++) {
        naive_run(&t.v, &t.n, &(net_step){.number = k, .lr = 0.1}, HYPER(&options), t.want);
        assert_ok(net_run(&t.n, t.kfac, &(net_step){.number = k, .lr = 0.1}));
        for (int l = 0; l < t.n.count; l++) {
            int64_t count = net_gradient_count(&t.n, l);
            double *got = net_array(count, sizeof *got);
            net_read(&t.n, l, got);
            double distance = naive_distance(got, t.want[l], count);
            double condition = 0;
            for (int u = 0; u < t.v.count; u++)
                if (t.v.units[u].layer == l) {
                    double low, a, g;
                    naive_extremes(t.v.units[u].a, t.v.units[u].a_n, &low, &a);
                    naive_extremes(t.v.units[u].g, t.v.units[u].g_n, &low, &g);
                    condition = fmax(condition, (a + 1) * (g + 1));
                }
            if (!(distance <= 4 * unit * condition))
                fail_msg("factors %s, decompositions %s, method %d, layer %d: off by %g, %g allowed",
                         dsc_dtype_name(factor), dsc_dtype_name(inverse), (int)method, l, distance,
                         4 * unit * condition);
            differs |= distance > 64 * t.eps;
            free(got);
        }
    }
    assert_true(differs); /* otherwise it was not stored in fewer bits */
    twin_close(&t);
}

static void test_half_types(void **state) {
    (void)state;
    static const dsc_dtype types[] = {DSC_F32, DSC_BF16, DSC_F16};
    for (int f = 0; f < 3; f++)
        for (int i = 0; i < 3; i++)
            for (int method = 0; method < 3 && f + i > 0; method++)
                run_half(types[f], types[i], method == 2 ? DSC_KFAC_INVERSE : DSC_KFAC_EIGEN, method == 1);
}

/* Factors beyond fp16's largest value, 65504: either an error, or usable gradients. */
static void test_half_overflow(void **state) {
    (void)state;
    twin t;
    dsc_kfac_options options = twin_options();
    options.factor_dtype = DSC_F16;
    twin_open(&t, &places[CPU], twin_mixed, TWIN_MIXED, &options);
    assert_ok(dsc_kfac_begin(t.kfac, 1));
    net_draw(&t.n, 0, 0, 1);
    net_draw_gradients(&t.n, 0);
    net_set(&t.n, &t.n.layers[3].a, 1, 3000);
    for (int l = t.n.count - 1; l >= 0; l--)
        assert_ok(dsc_kfac_capture(t.kfac, t.n.queue, l, &t.n.layers[l].a, &t.n.layers[l].g));
    dsc_status status = dsc_kfac_step(t.kfac, t.n.queue, 0.1);
    assert_true(status == DSC_OK ? net_gradients_finite(&t.n) : status == DSC_E_NUMERIC);
    twin_close(&t);
}

/* ---- diagonal blocks with a warm-up ---- */

static dsc_status blocks_from_four(void *context, int64_t step, dsc_kfac_hyper *hyper) {
    (void)context;
    hyper->diag_blocks = step < 4 ? 1 : 3;
    return DSC_OK;
}

/* Steps 4 and 5 still use the whole factors decomposed at 3; step 6 decomposes blocks. */
static void test_block_warmup(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++)
        for (int method = 0; method < 2; method++) {
            twin t;
            dsc_kfac_options options = twin_options();
            options.method = method ? DSC_KFAC_INVERSE : DSC_KFAC_EIGEN;
            options.strategy = DSC_KFAC_COMM_OPT;
            options.diag_blocks = 3;
            options.update_freq = 3;
            options.schedule = blocks_from_four;
            twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
            for (int64_t k = 0; k < 10; k++) {
                dsc_kfac_hyper hyper = dsc_kfac_hyper_of(&options);
                assert_ok(blocks_from_four(NULL, k, &hyper));
                twin_step_under(&t, &(net_step){.number = k, .lr = 0.1}, &hyper, "warm-up");
            }
            twin_close(&t);
        }
}

/* ---- reports ---- */

static void check_layer(const twin *t, const dsc_kfac_layer_report *r, const naive_unit *u, double damping) {
    double a_min, a_max, g_min, g_max;
    naive_extremes(u->a_solved, u->a_n, &a_min, &a_max);
    naive_extremes(u->g_solved, u->g_n, &g_min, &g_max);
    double bound = naive_bound(&t->v, u->layer, damping, t->eps);
    assert_true(fabs(r->cosine - u->cosine) <= bound);
    assert_true(u->cosine < 0.999);
    assert_true(fabs(r->a_min - a_min) <= bound * a_max && fabs(r->a_max - a_max) <= bound * a_max);
    assert_true(fabs(r->g_min - g_min) <= bound * g_max && fabs(r->g_max - g_max) <= bound * g_max);
    double condition = (a_max * g_max + damping) / (a_min * g_min + damping);
    assert_true(fabs(r->condition - condition) <= 4 * bound * condition);
}

static void test_report_layers(void **state) {
    (void)state;
    static const char *const names[] = {"conv", "grouped[0]", "grouped[1]", "rows", "last"};
    for (int p = 0; p < PLACES; p++)
        for (int outer = 0; outer < 2; outer++) {
            twin t;
            dsc_kfac_options options = twin_options();
            options.outer_product = outer;
            options.update_freq = 2;
            twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
            for (int64_t k = 0; k < 3; k++)
                twin_step(&t, &(net_step){.number = k, .lr = 0.1}, "report");
            const dsc_kfac_report *report = twin_report(&t);
            assert_int_equal(report->layer_count, 5);
            for (int i = 0; i < 5; i++) {
                assert_string_equal(report->layers[i].name, names[i]);
                check_layer(&t, &report->layers[i], &t.v.units[i], options.damping);
            }
            /* Of the last step that decomposed. */
            double cosine = report->layers[0].cosine;
            twin_step(&t, &(net_step){.number = 3, .lr = 0.1}, "report");
            assert_true(twin_report(&t)->layers[0].cosine == cosine);
            twin_close(&t);
        }
}

static void test_report_without_values(void **state) {
    (void)state;
    twin t;
    dsc_kfac_options options = twin_options();
    options.method = DSC_KFAC_INVERSE;
    twin_open(&t, &places[REF], twin_mixed, TWIN_MIXED, &options);
    const dsc_kfac_report *report = twin_report(&t);
    assert_true(report->nu == 1 && report->step == 0 && report->ranks == 1);
    twin_step(&t, &(net_step){.number = 0, .lr = 0.1, .absent = 1}, "inverse");
    report = twin_report(&t);
    assert_true(isnan(report->layers[0].cosine)); /* left out */
    for (int i = 1; i < 5; i++)
        assert_true(fabs(report->layers[i].cosine - t.v.units[i].cosine) <= 1e-12);
    for (int i = 0; i < 5; i++) {
        assert_true(isnan(report->layers[i].a_min) && isnan(report->layers[i].g_max));
        assert_true(isnan(report->layers[i].condition));
    }
    const dsc_kfac_times *times = dsc_kfac_get_times(t.kfac);
    assert_true(times->factor >= 0 && times->decompose >= 0 && times->precondition >= 0);
    assert_true(times->factor == report->times->factor && times->decompose == report->times->decompose &&
                times->precondition == report->times->precondition);
    assert_int_equal(report->failed_solves, 0);
    assert_int_equal(report->retried_solves, 0);
    twin_close(&t);
}

/* Checks the bytes of one rank: packed averages, decompositions, and batch factors only when they must be kept: for
 * further passes, or because a GPU adds them all to the averages at once. */
static void run_memory(int p, int method, int64_t passes, int symmetric, dsc_dtype half) {
    twin t;
    dsc_kfac_options options = twin_options();
    size_t s = dsc_dtype_size(places[p].dtype), h = half == DSC_F32 ? s : 2;
    size_t factors = 0, decompositions = 0, exchange = 0;
    double work = 0;
    options.method = method == 2 ? DSC_KFAC_INVERSE : DSC_KFAC_EIGEN;
    options.outer_product = method == 1;
    options.passes = passes;
    options.symmetric = symmetric;
    options.factor_dtype = options.inverse_dtype = half;
    twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
    for (int u = 0; u < t.v.count; u++) {
        size_t n[2] = {(size_t)t.v.units[u].a_n, (size_t)t.v.units[u].g_n};
        for (int side = 0; side < 2; side++) {
            size_t packed = n[side] * (n[side] + 1) / 2;
            factors += packed * h;
            decompositions += n[side] * n[side] * h + (method < 2 ? n[side] * s : 0);
            int waits = passes > 1 || !dsc_device_is_host(places[p].handle);
            exchange += waits ? (symmetric ? packed : n[side] * n[side]) * s : 0;
            work += (double)(n[side] * n[side] * n[side]);
        }
        decompositions += method == 1 ? n[0] * n[1] * h : 0;
    }
    for (int64_t k = 0; k < 2; k++)
        assert_ok(
            net_run(&t.n, t.kfac,
                    &(net_step){.number = k, .lr = 0.1, .passes = passes, .loss_scale = 1 / (double)passes}));
    const dsc_kfac_report *report = twin_report(&t);
    assert_int_equal(report->factor_bytes, factors);
    assert_int_equal(report->decomposition_bytes, decompositions);
    assert_int_equal(report->exchange_bytes, exchange);
    assert_true(report->work[0] == work);
    /* The report covers all device memory except the net and a few small tensors. */
    size_t all = factors + decompositions + exchange + report->work_bytes;
    assert_true(dsc_device_bytes(places[p].handle) >= all);
    twin_close(&t);
}

static void test_memory(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++)
        for (int method = 0; method < 3; method++)
            for (int64_t passes = 1; passes < 3; passes++)
                for (int symmetric = 0; symmetric < 2; symmetric++) {
                    run_memory(p, method, passes, symmetric, DSC_F32);
                    if (p == CPU)
                        run_memory(p, method, passes, symmetric, DSC_BF16);
                }
}

/* After one round of updates nothing is allocated any more. */
static void test_step_allocates_nothing(void **state) {
    (void)state;
    for (int method = 0; method < 3; method++)
        for (int64_t passes = 1; passes < 3; passes++) {
            twin t;
            dsc_kfac_options options = twin_options();
            options.method = method == 2 ? DSC_KFAC_INVERSE : DSC_KFAC_EIGEN;
            options.outer_product = method == 1;
            options.passes = passes;
            options.update_freq = 2;
            options.kl_clip = 0.001;
            twin_open(&t, &places[CPU], twin_mixed, TWIN_MIXED, &options);
            net_step step = {.lr = 0.1, .passes = passes, .loss_scale = 1 / (double)passes};
            for (step.number = 0; step.number < 2; step.number++)
                assert_ok(net_run(&t.n, t.kfac, &step));
            int64_t allocations = dsc_memory_allocations();
            size_t bytes = dsc_device_bytes(places[CPU].handle);
            size_t peak = dsc_device_peak_bytes(places[CPU].handle);
            for (; step.number < 6; step.number++) {
                double nu;
                assert_ok(net_run(&t.n, t.kfac, &step));
                assert_ok(dsc_kfac_nu(t.kfac, t.n.queue, &nu));
            }
            assert_int_equal(dsc_memory_allocations(), allocations);
            assert_int_equal(dsc_device_bytes(places[CPU].handle), bytes);
            assert_int_equal(dsc_device_peak_bytes(places[CPU].handle), peak);
            twin_close(&t);
        }
}

/* Two runs give the same bits. */
static void test_deterministic(void **state) {
    (void)state;
    double first[100], second[100];
    for (int run = 0; run < 2; run++) {
        twin t;
        dsc_kfac_options options = twin_options();
        options.kl_clip = 0.001;
        twin_open(&t, &places[CPU], twin_mixed, TWIN_MIXED, &options);
        for (int64_t k = 0; k < 3; k++)
            assert_ok(net_run(&t.n, t.kfac, &(net_step){.number = k, .lr = 0.1}));
        net_read(&t.n, 0, run ? second : first);
        if (run)
            assert_memory_equal(first, second, (size_t)net_gradient_count(&t.n, 0) * sizeof(double));
        twin_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_wants_factors),
        cmocka_unit_test(test_off),
        cmocka_unit_test(test_no_factors),
        cmocka_unit_test(test_begun_again),
        cmocka_unit_test(test_schedule),
        cmocka_unit_test(test_damping_between_updates),
        cmocka_unit_test(test_bad_schedule),
        cmocka_unit_test(test_absent_layers),
        cmocka_unit_test(test_late_layer),
        cmocka_unit_test(test_absent_in_a_pass),
        cmocka_unit_test(test_skipped_layers),
        cmocka_unit_test(test_everything_skipped),
        cmocka_unit_test(test_scale_g),
        cmocka_unit_test(test_half_types),
        cmocka_unit_test(test_half_overflow),
        cmocka_unit_test(test_block_warmup),
        cmocka_unit_test(test_report_layers),
        cmocka_unit_test(test_report_without_values),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_step_allocates_nothing),
        cmocka_unit_test(test_deterministic),
    };
    return cmocka_run_group_tests_name("kfac step", tests, places_open, places_close);
}
