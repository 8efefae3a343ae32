/* Numbers that are not finite, and misuse: they must be refused and must not spoil later steps. */
#include "kfac/twin.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

/* ---- numbers that are not finite ---- */

/* One step whose a and g of one layer hold `bad` at an element; both factors of that layer are left out. */
static void run_with(twin *t, int64_t k, int layer, double bad, int in_a, int in_g) {
    assert_ok(dsc_kfac_begin(t->kfac, 1));
    net_draw(&t->n, k, 0, 1);
    net_draw_gradients(&t->n, k);
    if (in_a)
        net_set(&t->n, &t->n.layers[layer].a, 1, bad);
    if (in_g)
        net_set(&t->n, &t->n.layers[layer].g, 2, bad);
    for (int l = t->n.count - 1; l >= 0; l--)
        assert_ok(dsc_kfac_capture(t->kfac, t->n.queue, l, &t->n.layers[l].a, &t->n.layers[l].g));
    assert_ok(dsc_kfac_step(t->kfac, t->n.queue, 0.1));
}

static void test_rejected_factors(void **state) {
    (void)state;
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    for (int p = 0; p < PLACES; p++)
        for (int i = 0; i < 3; i++) {
            twin t;
            dsc_kfac_options options = twin_options();
            twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
            twin_step(&t, &(net_step){.number = 0, .lr = 0.1}, "before");
            assert_int_equal(twin_report(&t)->rejected_factors, 0);
            double a = twin_state(&t, "last.A", 4), g = twin_state(&t, "last.G", 4);
            double other = twin_state(&t, "rows.A", 4);
            run_with(&t, 1, 3, bad[i], 1, 1);
            assert_true(net_gradients_finite(&t.n));
            assert_int_equal(twin_report(&t)->rejected_factors, 2);
            assert_true(twin_state(&t, "last.A", 4) == a && twin_state(&t, "last.G", 4) == g);
            assert_true(twin_state(&t, "rows.A", 4) != other);
            /* The naive run goes on with the earlier factors of the layer. */
            naive_unit *last = &t.v.units[t.v.count - 1];
            double *kept_a = net_array(last->a_n * last->a_n, sizeof(double));
            double *kept_g = net_array(last->g_n * last->g_n, sizeof(double));
            memcpy(kept_a, last->a, (size_t)(last->a_n * last->a_n) * sizeof(double));
            memcpy(kept_g, last->g, (size_t)(last->g_n * last->g_n) * sizeof(double));
            naive_run(&t.v, &t.n, &(net_step){.number = 1, .lr = 0.1}, HYPER(&options), t.want);
            memcpy(last->a, kept_a, (size_t)(last->a_n * last->a_n) * sizeof(double));
            memcpy(last->g, kept_g, (size_t)(last->g_n * last->g_n) * sizeof(double));
            free(kept_a);
            free(kept_g);
            twin_step(&t, &(net_step){.number = 2, .lr = 0.1}, "after");
            assert_int_equal(twin_report(&t)->rejected_factors, 2);
            twin_close(&t);
        }
}

/* Bad values in the first step: in a or g only, in one group only, and by overflow of a product (which tensor cores
 * may round to the largest number). */
static void test_rejected_early(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++)
        for (int i = 0; i < (chosen() ? 3 : 4); i++) {
            twin t;
            dsc_kfac_options options = twin_options();
            twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
            double bad = i < 3 ? NAN : (p == REF ? 1e200 : 1e30);
            run_with(&t, 0, i == 2 ? 1 : 0, bad, i != 1, i == 1);
            assert_true(net_gradients_finite(&t.n));
            int64_t rejected = twin_report(&t)->rejected_factors;
            if (rejected < 1 || rejected > 2)
                fail_msg("%s in %s, case %d: %d factors rejected", places[p].device,
                         dsc_dtype_name(places[p].dtype), i, (int)rejected);
            if (i == 0 || i == 3)
                assert_true(twin_state(&t, "conv.A", 0) == 1 && twin_state(&t, "conv.A", 1) == 0);
            if (i == 1)
                assert_true(twin_state(&t, "conv.G", 0) == 1 && twin_state(&t, "conv.G", 1) == 0);
            if (i == 2) /* element 1 lies in group 0 of 2 */
                assert_true(twin_state(&t, "grouped[0].A", 1) == 0 && twin_state(&t, "grouped[1].A", 1) != 0);
            for (int64_t k = 1; k < 4; k++)
                assert_ok(net_run(&t.n, t.kfac, &(net_step){.number = k, .lr = 0.1}));
            assert_true(net_gradients_finite(&t.n));
            assert_int_equal(twin_report(&t)->rejected_factors, rejected);
            twin_close(&t);
        }
}

static void test_bad_gradient(void **state) {
    (void)state;
    static const double bad[] = {NAN, INFINITY};
    for (int p = 0; p < PLACES; p++)
        for (int i = 0; i < 4; i++)
            for (int clip = 0; clip < 2; clip++) {
                twin t;
                dsc_kfac_options options = twin_options();
                options.kl_clip = clip ? 0.001 : 0;
                twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
                assert_ok(net_run(&t.n, t.kfac, &(net_step){.number = 0, .lr = 0.1}));
                assert_ok(dsc_kfac_begin(t.kfac, 1));
                net_draw(&t.n, 1, 0, 1);
                net_draw_gradients(&t.n, 1);
                for (int l = t.n.count - 1; l >= 0; l--)
                    assert_ok(dsc_kfac_capture(t.kfac, t.n.queue, l, &t.n.layers[l].a, &t.n.layers[l].g));
                net_set(&t.n, i < 2 ? &t.n.layers[0].weight_grad : &t.n.layers[3].bias_grad, 1, bad[i % 2]);
                if (dsc_device_is_host(places[p].handle)) {
                    assert_fails(DSC_E_NUMERIC, "not finite", dsc_kfac_step(t.kfac, t.n.queue, 0.1));
                } else { /* a GPU does not wait, so nu reports it */
                    double nu = 0;
                    assert_ok(dsc_kfac_step(t.kfac, t.n.queue, 0.1));
                    assert_ok(dsc_kfac_nu(t.kfac, t.n.queue, &nu));
                    assert_true(isnan(nu) && net_gradient_is(&t.n, 1, t.n.layers[1].d));
                }
                twin_close(&t);
            }
}

/* After a refused gradient the step is begun again: its captures have entered the averages once, and the gradients of
 * the other layers were not changed. */
static void test_goes_on_after_bad_gradient(void **state) {
    (void)state;
    skip_on_chosen("a step that a GPU has put into its queue counts");
    for (int p = 0; p < PLACES; p++)
        for (int64_t passes = 1; passes < 3; passes++) {
            twin t;
            dsc_kfac_options options = twin_options();
            options.passes = passes;
            twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
            for (int64_t k = 0; k < 3; k++) {
                assert_ok(dsc_kfac_begin(t.kfac, 1));
                for (int64_t pass = 0; pass < passes; pass++) {
                    net_draw(&t.n, 20 + k, pass, 1);
                    naive_capture(&t.v, 0);
                    for (int l = t.n.count - 1; l >= 0; l--)
                        assert_ok(dsc_kfac_capture(t.kfac, t.n.queue, l, &t.n.layers[l].a, &t.n.layers[l].g));
                }
                naive_step(&t.v, HYPER(&options), 1, 0, 0.1, t.want);
                net_draw_gradients(&t.n, 20 + k);
                net_set(&t.n, &t.n.layers[3].weight_grad, 0, NAN);
                assert_fails(DSC_E_NUMERIC, "", dsc_kfac_step(t.kfac, t.n.queue, 0.1));
                assert_true(net_gradient_is(&t.n, 0, t.n.layers[0].d));
                twin_step(&t, &(net_step){.number = k, .lr = 0.1, .passes = passes}, "after a bad gradient");
                assert_int_equal(twin_report(&t)->step, k + 1);
            }
            twin_close(&t);
        }
}

/* ---- misuse ---- */

/* Fails with a message. */
#define assert_refused(call)                                                                                 \
    do {                                                                                                     \
        assert_int_equal((call), DSC_E_INVALID);                                                             \
        assert_true(strlen(dsc_error_message()) > 10);                                                       \
    } while (0)

static void test_misuse_of_order(void **state) {
    (void)state;
    twin t;
    dsc_kfac_options options = twin_options();
    twin_open(&t, &places[CPU], twin_mixed, TWIN_MIXED, &options);
    net_layer *l = t.n.layers;
    net_draw(&t.n, 0, 0, 1);
    assert_refused(dsc_kfac_capture(t.kfac, t.n.queue, 0, &l[0].a, &l[0].g));
    assert_refused(dsc_kfac_step(t.kfac, t.n.queue, 0.1));
    assert_refused(dsc_kfac_begin(t.kfac, 0));
    assert_refused(dsc_kfac_begin(t.kfac, -1));
    assert_refused(dsc_kfac_begin(t.kfac, NAN));
    assert_ok(dsc_kfac_begin(t.kfac, 1));
    assert_ok(dsc_kfac_capture(t.kfac, t.n.queue, 2, &l[2].a, &l[2].g));
    assert_refused(dsc_kfac_capture(t.kfac, t.n.queue, 2, &l[2].a, &l[2].g));
    assert_refused(dsc_kfac_capture(t.kfac, t.n.queue, -1, &l[0].a, &l[0].g));
    assert_refused(dsc_kfac_capture(t.kfac, t.n.queue, TWIN_MIXED, &l[0].a, &l[0].g));
    twin_close(&t);
}

static void test_misuse_of_tensors(void **state) {
    (void)state;
    twin t;
    dsc_kfac_options options = twin_options();
    twin_open(&t, &places[CPU], twin_mixed, TWIN_MIXED, &options);
    net_layer *l = t.n.layers;
    naive_run(&t.v, &t.n, &(net_step){.number = 0, .lr = 0.1}, HYPER(&options), t.want);
    assert_ok(dsc_kfac_begin(t.kfac, 1));
    assert_refused(dsc_kfac_capture(t.kfac, t.n.queue, 0, NULL, &l[0].g));
    assert_refused(dsc_kfac_capture(t.kfac, t.n.queue, 0, &l[0].a, NULL));
    assert_refused(dsc_kfac_capture(t.kfac, t.n.queue, 0, &l[1].a, &l[0].g));
    assert_refused(dsc_kfac_capture(t.kfac, t.n.queue, 0, &l[0].a, &l[1].g));
    assert_refused(dsc_kfac_capture(t.kfac, t.n.queue, 0, &l[0].g, &l[0].a));
    dsc_tensor wrong = l[0].a;
    wrong.dim[0]--; /* fewer samples than g */
    assert_refused(dsc_kfac_capture(t.kfac, t.n.queue, 0, &wrong, &l[0].g));
    wrong = l[3].a;
    wrong.dim[0]--;
    assert_refused(dsc_kfac_capture(t.kfac, t.n.queue, 3, &wrong, &l[3].g));
    wrong = l[3].a;
    wrong.dtype = DSC_I32;
    assert_refused(dsc_kfac_capture(t.kfac, t.n.queue, 3, &wrong, &l[3].g));
    wrong = l[3].a;
    wrong.dim[1]--;
    assert_refused(dsc_kfac_capture(t.kfac, t.n.queue, 3, &wrong, &l[3].g));
    /* Refused captures change nothing: the step goes on with all layers. */
    for (int i = t.n.count - 1; i >= 0; i--)
        assert_ok(dsc_kfac_capture(t.kfac, t.n.queue, i, &l[i].a, &l[i].g));
    assert_ok(dsc_kfac_step(t.kfac, t.n.queue, 0.1));
    assert_true(naive_excess(&t.v, t.want, options.damping, t.eps) <= 1);
    twin_close(&t);
}

static void test_misuse_of_create(void **state) {
    (void)state;
    net n;
    dsc_kfac_layer layers[NET_LAYERS];
    dsc_kfac *kfac = NULL;
    dsc_kfac_options options = twin_options();
    net_open(&n, places[CPU].queue, DSC_F32, twin_mixed, TWIN_MIXED, TWIN_SAMPLES);
    net_describe(&n, layers);
    size_t bytes = dsc_device_bytes(places[CPU].handle);
    n.layers[1].conv.out_c++; /* its gradient is too small now, and groups do not divide */
    assert_refused(dsc_kfac_create(alone, n.queue, layers, TWIN_MIXED, &options, &kfac));
    n.layers[1].conv.out_c--;
    layers[3].bias_grad.dim[0]--;
    assert_refused(dsc_kfac_create(alone, n.queue, layers, TWIN_MIXED, &options, &kfac));
    layers[3].bias_grad.dim[0]++;
    layers[2].weight_grad.dtype = DSC_I32;
    assert_refused(dsc_kfac_create(alone, n.queue, layers, TWIN_MIXED, &options, &kfac));
    layers[2].weight_grad.dtype = DSC_F32;
    layers[2].weight_grad.data = NULL;
    assert_refused(dsc_kfac_create(alone, n.queue, layers, TWIN_MIXED, &options, &kfac));
    net_describe(&n, layers);
    n.layers[0].conv.stride_h = 0;
    assert_refused(dsc_kfac_create(alone, n.queue, layers, TWIN_MIXED, &options, &kfac));
    n.layers[0].conv.stride_h = 1;
    options.skip_layers = "(";
    assert_refused(dsc_kfac_create(alone, n.queue, layers, TWIN_MIXED, &options, &kfac));
    options.skip_layers = NULL;
    assert_refused(dsc_kfac_create(alone, n.queue, layers, -1, &options, &kfac));
    assert_refused(dsc_kfac_create(alone, n.queue, NULL, 1, &options, &kfac));
    assert_refused(dsc_kfac_create(alone, NULL, layers, TWIN_MIXED, &options, &kfac));
    assert_refused(dsc_kfac_create(NULL, n.queue, layers, TWIN_MIXED, &options, &kfac));
    assert_null(kfac);
    assert_int_equal(dsc_device_bytes(places[CPU].handle), bytes);
    dsc_kfac_destroy(&kfac);
    dsc_kfac_destroy(NULL);
    net_close(&n);
}

/* A skipped layer is not checked. */
static void test_skipped_is_not_checked(void **state) {
    (void)state;
    net n;
    dsc_kfac_layer layers[NET_LAYERS];
    dsc_kfac *kfac = NULL;
    dsc_kfac_options options = twin_options();
    net_open(&n, places[CPU].queue, DSC_F32, twin_mixed, TWIN_MIXED, TWIN_SAMPLES);
    net_describe(&n, layers);
    layers[2].weight_grad.dtype = DSC_BF16;
    assert_refused(dsc_kfac_create(alone, n.queue, layers, TWIN_MIXED, &options, &kfac));
    char expression[64];
    snprintf(expression, sizeof expression, "^%.40s$", layers[2].name);
    options.skip_layers = expression;
    assert_ok(dsc_kfac_create(alone, n.queue, layers, TWIN_MIXED, &options, &kfac));
    dsc_kfac_destroy(&kfac);
    net_close(&n);
}

static int schedule_fails;

static dsc_status moody_schedule(void *context, int64_t step, dsc_kfac_hyper *hyper) {
    (void)context;
    (void)step;
    hyper->damping = schedule_fails ? -1 : hyper->damping;
    return schedule_fails > 1 ? DSC_E_IO : DSC_OK; /* without a message */
}

/* A step begun again whose schedule fails may be begun once more. */
static void test_begin_fails(void **state) {
    (void)state;
    twin t;
    dsc_kfac_options options = twin_options();
    options.passes = 2;
    options.schedule = moody_schedule;
    twin_open(&t, &places[CPU], twin_mixed, TWIN_MIXED, &options);
    net_layer *l = t.n.layers;
    net_draw(&t.n, 0, 0, 1);
    schedule_fails = 0;
    assert_ok(dsc_kfac_begin(t.kfac, 1));
    for (int pass = 0; pass < 2; pass++) /* after its last pass this layer's factors are on their way */
        assert_ok(dsc_kfac_capture(t.kfac, t.n.queue, 1, &l[1].a, &l[1].g));
    schedule_fails = 1;
    assert_refused(dsc_kfac_begin(t.kfac, 1));
    assert_refused(dsc_kfac_begin(t.kfac, 1));
    schedule_fails = 2;
    assert_int_equal(dsc_kfac_begin(t.kfac, 1), DSC_E_IO);
    assert_string_equal(dsc_error_message(),
                        "kfac, step 0: the caller's function `schedule` returned DSC_E_IO "
                        "(input or output failed) without a message");
    schedule_fails = 0;
    assert_ok(dsc_kfac_begin(t.kfac, 1));
    for (int pass = 0; pass < 2; pass++)
        for (int i = t.n.count - 1; i >= 0; i--)
            assert_ok(dsc_kfac_capture(t.kfac, t.n.queue, i, &l[i].a, &l[i].g));
    assert_ok(dsc_kfac_step(t.kfac, t.n.queue, 0.1));
    twin_close(&t);
}

/* Every allocation during creation fails once; nothing leaks. */
static void test_create_survives_failures(void **state) {
    (void)state;
    net n;
    dsc_kfac_layer layers[NET_LAYERS];
    net_open(&n, places[CPU].queue, DSC_F32, twin_mixed, TWIN_MIXED, TWIN_SAMPLES);
    net_describe(&n, layers);
    for (int kind = 0; kind < 3; kind++) {
        dsc_kfac_options options = twin_options();
        options.passes = 2;
        options.outer_product = kind == 1;
        options.diag_blocks = kind == 2 ? 2 : 1;
        size_t bytes = dsc_device_bytes(places[CPU].handle);
        dsc_status status = DSC_E_MEMORY;
        int nth = 0;
        while (status != DSC_OK && ++nth < 3000) {
            dsc_kfac *kfac = NULL;
            dsc_memory_fail_at(nth);
            status = dsc_kfac_create(alone, n.queue, layers, TWIN_MIXED, &options, &kfac);
            dsc_memory_fail_at(0);
            assert_true(status == DSC_OK ? kfac != NULL : status == DSC_E_MEMORY && !kfac);
            dsc_kfac_destroy(&kfac);
            assert_int_equal(dsc_device_bytes(places[CPU].handle), bytes);
        }
        assert_true(status == DSC_OK && nth > 4);
    }
    net_close(&n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rejected_factors), cmocka_unit_test(test_rejected_early),
        cmocka_unit_test(test_bad_gradient),     cmocka_unit_test(test_goes_on_after_bad_gradient),
        cmocka_unit_test(test_misuse_of_order),  cmocka_unit_test(test_misuse_of_tensors),
        cmocka_unit_test(test_misuse_of_create), cmocka_unit_test(test_skipped_is_not_checked),
        cmocka_unit_test(test_begin_fails),      cmocka_unit_test(test_create_survives_failures),
    };
    return cmocka_run_group_tests_name("kfac guards", tests, places_open, places_close);
}
