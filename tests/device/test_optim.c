/* The optimisers' updates: against ref, against steps computed by hand, and with z being x. */
#include "device/trial.h"
#include "device/updates.h"

#include <math.h>
#include <stdlib.h>

static const int64_t sizes[] = {1, 3, 16, 257, 40003};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

/* A third step of Adam's, with values that make every term count. */
static const double hyper_values[DSC_HYPER_COUNT] = {
    [DSC_HYPER_LR] = 0.1,
    [DSC_HYPER_MOMENTUM] = 0.9,
    [DSC_HYPER_DECAY] = 0.05,
    [DSC_HYPER_BETA1] = 0.9,
    [DSC_HYPER_BETA2] = 0.999,
    [DSC_HYPER_EPS] = 1e-3,
    [DSC_HYPER_TRUST] = 0.02,
    [DSC_HYPER_CORRECTION1] = 1 - 0.9 * 0.9 * 0.9,
    [DSC_HYPER_CORRECTION2] = 1 - 0.999 * 0.999 * 0.999,
};

static void add_hyper(trial *tr) {
    double *values = trial_typed(tr, "hyper", ROLE_IN, DSC_F64, 1, SHAPE(DSC_HYPER_COUNT));
    memcpy(values, hyper_values, sizeof hyper_values);
}

static dsc_status sgd_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const int *nesterov = params;
    return sgd(q, *nesterov, &t[0], &t[1], &t[2], &t[3], &t[4]);
}

static void test_sgd(void **state) {
    (void)state;
    static const int flags[] = {0, 1};
    for (int f = 0; f < 2; f++)
        for (int s = 0; s < SIZES; s++) {
            trial tr;
            trial_start(&tr, f ? "sgd, nesterov" : "sgd", sgd_run, &flags[f]);
            add_hyper(&tr);
            trial_in(&tr, "z", SHAPE(sizes[s]));
            trial_in(&tr, "g", SHAPE(sizes[s]));
            trial_inout(&tr, "m", 2, SHAPE(sizes[s]));
            trial_inout(&tr, "x", 2, SHAPE(sizes[s]));
            trial_check(&tr);
        }
}

/* Second moments in [0.1, 1]. */
static void make_positive(double *v, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        v[i] = (double)(float)(0.55 + 0.45 * v[i]);
}

static dsc_status adam_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const int *decoupled = params;
    return adam(q, *decoupled, &t[0], &t[1], &t[2], &t[3], &t[4], &t[5]);
}

/* |m/c1| <= 3.7 and sqrt(v/c2) >= 5.7: the direction stays below 1. */
static void test_adam(void **state) {
    (void)state;
    static const int flags[] = {0, 1};
    for (int f = 0; f < 2; f++)
        for (int s = 0; s < SIZES; s++) {
            trial tr;
            trial_start(&tr, f ? "adamw" : "adam", adam_run, &flags[f]);
            add_hyper(&tr);
            trial_in(&tr, "z", SHAPE(sizes[s]));
            trial_in(&tr, "g", SHAPE(sizes[s]));
            trial_inout(&tr, "m", 1, SHAPE(sizes[s]));
            make_positive(trial_inout(&tr, "v", 1, SHAPE(sizes[s])), sizes[s]);
            trial_inout(&tr, "x", 2, SHAPE(sizes[s]));
            trial_check(&tr);
        }
}

static dsc_status lars_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    (void)params;
    return lars(q, &t[0], &t[1], &t[2], &t[3], &t[4], &t[5]);
}

static void test_lars(void **state) {
    (void)state;
    static const double norms[][2] = {{9, 4}, {0, 4}, {9, 0}};
    for (int n = 0; n < 3; n++)
        for (int s = 0; s < SIZES; s++) {
            trial tr;
            trial_start(&tr, "lars", lars_run, NULL);
            add_hyper(&tr);
            memcpy(trial_typed(&tr, "norms", ROLE_IN, DSC_F64, 1, SHAPE(2)), norms[n], sizeof norms[n]);
            trial_in(&tr, "z", SHAPE(sizes[s]));
            trial_in(&tr, "g", SHAPE(sizes[s]));
            trial_inout(&tr, "m", 2, SHAPE(sizes[s]));
            trial_inout(&tr, "x", 2, SHAPE(sizes[s]));
            trial_check(&tr);
        }
}

static dsc_status lamb_direction_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    (void)params;
    return lamb_direction(q, &t[0], &t[1], &t[2], &t[3], &t[4], &t[5]);
}

static dsc_status lamb_apply_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    (void)params;
    return lamb_apply(q, &t[0], &t[1], &t[2], &t[3]);
}

static void test_lamb(void **state) {
    (void)state;
    static const double norms[][2] = {{9, 4}, {0, 4}, {9, 0}};
    for (int s = 0; s < SIZES; s++) {
        trial tr;
        trial_start(&tr, "lamb_direction", lamb_direction_run, NULL);
        add_hyper(&tr);
        trial_in(&tr, "z", SHAPE(sizes[s]));
        trial_in(&tr, "g", SHAPE(sizes[s]));
        trial_inout(&tr, "m", 1, SHAPE(sizes[s]));
        make_positive(trial_inout(&tr, "v", 1, SHAPE(sizes[s])), sizes[s]);
        trial_out(&tr, "u", 2, SHAPE(sizes[s]));
        trial_check(&tr);
        for (int n = 0; n < 3; n++) {
            trial_start(&tr, "lamb_apply", lamb_apply_run, NULL);
            add_hyper(&tr);
            memcpy(trial_typed(&tr, "norms", ROLE_IN, DSC_F64, 1, SHAPE(2)), norms[n], sizeof norms[n]);
            trial_in(&tr, "u", SHAPE(sizes[s]));
            trial_inout(&tr, "x", 2, SHAPE(sizes[s]));
            trial_check(&tr);
        }
    }
}

/* ---- by hand ---- */

typedef struct fixture {
    const rig *r;
    place hyper, norms, g, m, v, x, u;
} fixture;

static fixture fixture_make(const rig *r, dsc_dtype type, double x) {
    return (fixture){
        .r = r,
        .hyper = place_of(r, DSC_F64, SHAPE(DSC_HYPER_COUNT), hyper_values),
        .norms = place_of(r, DSC_F64, SHAPE(2), (const double[]){0, 0}),
        .g = place_of(r, type, SHAPE(1), (const double[]){0}),
        .m = place_of(r, type, SHAPE(1), (const double[]){0}),
        .v = place_of(r, type, SHAPE(1), (const double[]){0}),
        .x = place_of(r, type, SHAPE(1), &x),
        .u = place_of(r, type, SHAPE(1), (const double[]){0}),
    };
}

static void fixture_free(fixture *f) {
    place *all[] = {&f->hyper, &f->norms, &f->g, &f->m, &f->v, &f->x, &f->u};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        place_free(all[i]);
}

static void set_hyper(fixture *f, const double values[DSC_HYPER_COUNT]) {
    place_write(f->r, &f->hyper, values);
}

static void check_value(const fixture *f, const place *p, double want) {
    double got = place_get(f->r, p, 0);
    if (!(fabs(got - want) <= 8 * dtype_eps(p->t.dtype) * fabs(want)))
        fail_msg("%s: %.17g instead of %.17g", f->r->label, got, want);
}

/* Dyadic numbers: lr 1/2, momentum 1/2, decay 1/4; x = 2, then g = 1 and g = -1. With z = x. */
static void test_sgd_by_hand(void **state) {
    (void)state;
    static const double h[DSC_HYPER_COUNT] = {
        [DSC_HYPER_LR] = 0.5, [DSC_HYPER_MOMENTUM] = 0.5, [DSC_HYPER_DECAY] = 0.25};
    static const dsc_dtype types[] = {DSC_F32, DSC_F64};
    for (int r = 0; r < rig_count; r++)
        for (int t = 0; t < 4; t++) {
            fixture f = fixture_make(&rigs[r], types[t % 2], 2);
            int nesterov = t / 2;
            set_hyper(&f, h);
            place_fill(f.r, &f.g, 1);
            assert_ok(sgd(f.r->q, nesterov, &f.hyper.t, &f.x.t, &f.g.t, &f.m.t, &f.x.t));
            place_expect(f.r, &f.m, (const double[]){1.5}, "m");
            place_expect(f.r, &f.x, (const double[]){nesterov ? 0.875 : 1.25}, "x");
            place_fill(f.r, &f.g, -1);
            assert_ok(sgd(f.r->q, nesterov, &f.hyper.t, &f.x.t, &f.g.t, &f.m.t, &f.x.t));
            /* plain: d = -1 + 1.25/4 = -0.6875, m = 0.0625, x = 1.25 - 0.03125
             * nesterov: d = -1 + 0.875/4 = -0.78125, m = -0.03125, x = 0.875 - (d + m/2)/2 */
            place_expect(f.r, &f.m, (const double[]){nesterov ? -0.03125 : 0.0625}, "m");
            place_expect(f.r, &f.x, (const double[]){nesterov ? 1.2734375 : 1.21875}, "x");
            fixture_free(&f);
        }
}

/* beta1 = 1/2, beta2 = 3/4, eps = 1/2, lr = 1; g = 2, then g = 0; decay 0 and, decoupled, 1/8. */
static void test_adam_by_hand(void **state) {
    (void)state;
    static const dsc_dtype types[] = {DSC_F32, DSC_F64};
    for (int r = 0; r < rig_count; r++)
        for (int t = 0; t < 4; t++) {
            fixture f = fixture_make(&rigs[r], types[t % 2], 4);
            int decoupled = t / 2;
            double h[DSC_HYPER_COUNT] = {[DSC_HYPER_LR] = 1,
                                         [DSC_HYPER_DECAY] = decoupled ? 0.125 : 0,
                                         [DSC_HYPER_BETA1] = 0.5,
                                         [DSC_HYPER_BETA2] = 0.75,
                                         [DSC_HYPER_EPS] = 0.5,
                                         [DSC_HYPER_CORRECTION1] = 0.5,
                                         [DSC_HYPER_CORRECTION2] = 0.25};
            set_hyper(&f, h);
            place_fill(f.r, &f.g, 2);
            assert_ok(adam(f.r->q, decoupled, &f.hyper.t, &f.x.t, &f.g.t, &f.m.t, &f.v.t, &f.x.t));
            /* m = 1, v = 1: (1 / 0.5) / (sqrt(1 / 0.25) + 0.5) = 0.8 */
            double x = 4 - 0.8 - (decoupled ? 0.5 : 0);
            check_value(&f, &f.m, 1);
            check_value(&f, &f.v, 1);
            check_value(&f, &f.x, x);
            h[DSC_HYPER_CORRECTION1] = 0.75;
            h[DSC_HYPER_CORRECTION2] = 0.4375;
            set_hyper(&f, h);
            place_fill(f.r, &f.g, 0);
            assert_ok(adam(f.r->q, decoupled, &f.hyper.t, &f.x.t, &f.g.t, &f.m.t, &f.v.t, &f.x.t));
            /* m = 1/2, v = 3/4: (2/3) / (sqrt(12/7) + 1/2) */
            x -= 2.0 / 3 / (sqrt(12.0 / 7) + 0.5) + (decoupled ? x / 8 : 0);
            check_value(&f, &f.m, 0.5);
            check_value(&f, &f.v, 0.75);
            check_value(&f, &f.x, x);
            fixture_free(&f);
        }
}

/* Decay inside the gradient is part of the moments: x = 4, decay 1/2, g = 0 acts as g = 2. */
static void test_adam_coupled_decay(void **state) {
    (void)state;
    static const double h[DSC_HYPER_COUNT] = {[DSC_HYPER_LR] = 1,
                                              [DSC_HYPER_DECAY] = 0.5,
                                              [DSC_HYPER_BETA1] = 0.5,
                                              [DSC_HYPER_BETA2] = 0.75,
                                              [DSC_HYPER_EPS] = 0.5,
                                              [DSC_HYPER_CORRECTION1] = 0.5,
                                              [DSC_HYPER_CORRECTION2] = 0.25};
    for (int r = 0; r < rig_count; r++) {
        fixture f = fixture_make(&rigs[r], DSC_F32, 4);
        set_hyper(&f, h);
        assert_ok(adam(f.r->q, 0, &f.hyper.t, &f.x.t, &f.g.t, &f.m.t, &f.v.t, &f.x.t));
        check_value(&f, &f.m, 1);
        check_value(&f, &f.x, 3.2);
        fixture_free(&f);
    }
}

/* LARS: |z| = 3, |g| = 2, trust 1/2, decay 1/4: rate = 1.5 / 2.75; m = lr rate (g + decay z). */
static void test_lars_by_hand(void **state) {
    (void)state;
    static const double h[DSC_HYPER_COUNT] = {
        [DSC_HYPER_LR] = 2, [DSC_HYPER_MOMENTUM] = 0.5, [DSC_HYPER_DECAY] = 0.25, [DSC_HYPER_TRUST] = 0.5};
    for (int r = 0; r < rig_count; r++) {
        fixture f = fixture_make(&rigs[r], DSC_F32, 3);
        set_hyper(&f, h);
        place_write(f.r, &f.norms, (const double[]){9, 4});
        place_fill(f.r, &f.g, -2);
        assert_ok(lars(f.r->q, &f.hyper.t, &f.norms.t, &f.x.t, &f.g.t, &f.m.t, &f.x.t));
        double m = 2 * 1.5 / 2.75 * (-2 + 0.75);
        check_value(&f, &f.m, m);
        check_value(&f, &f.x, 3 - m);
        place_write(f.r, &f.norms, (const double[]){0, 4}); /* a norm of 0: rate 1 */
        place_fill(f.r, &f.m, 8);
        place_fill(f.r, &f.x, 0);
        assert_ok(lars(f.r->q, &f.hyper.t, &f.norms.t, &f.x.t, &f.g.t, &f.m.t, &f.x.t));
        place_expect(f.r, &f.m, (const double[]){0}, "m"); /* 8/2 + 2 * (-2) */
        fixture_free(&f);
    }
}

/* LAMB: the direction is Adam's plus decay z; then x moves by lr |z| / |u| u. */
static void test_lamb_by_hand(void **state) {
    (void)state;
    static const double h[DSC_HYPER_COUNT] = {
        [DSC_HYPER_LR] = 0.5,          [DSC_HYPER_DECAY] = 0.125, [DSC_HYPER_BETA1] = 0.5,
        [DSC_HYPER_BETA2] = 0.75,      [DSC_HYPER_EPS] = 0.5,     [DSC_HYPER_CORRECTION1] = 0.5,
        [DSC_HYPER_CORRECTION2] = 0.25};
    for (int r = 0; r < rig_count; r++) {
        fixture f = fixture_make(&rigs[r], DSC_F32, 4);
        set_hyper(&f, h);
        place_fill(f.r, &f.g, 2);
        assert_ok(lamb_direction(f.r->q, &f.hyper.t, &f.x.t, &f.g.t, &f.m.t, &f.v.t, &f.u.t));
        check_value(&f, &f.u, 0.8 + 0.5);
        place_write(f.r, &f.norms, (const double[]){16, 4});
        place_fill(f.r, &f.u, 1.5);
        assert_ok(lamb_apply(f.r->q, &f.hyper.t, &f.norms.t, &f.u.t, &f.x.t));
        place_expect(f.r, &f.x, (const double[]){4 - 0.5 * 2 * 1.5}, "x");
        place_write(f.r, &f.norms, (const double[]){16, 0});
        assert_ok(lamb_apply(f.r->q, &f.hyper.t, &f.norms.t, &f.u.t, &f.x.t));
        place_expect(f.r, &f.x, (const double[]){2.5 - 0.5 * 1.5}, "x");
        fixture_free(&f);
    }
}

/* z may be x: the bits are those of z being an equal copy. */
static void test_z_is_x(void **state) {
    (void)state;
    enum { COUNT = 1000 };
    double values[4][COUNT];
    for (int i = 0; i < 4; i++)
        random_values(50 + (uint64_t)i, COUNT, values[i]);
    make_positive(values[3], COUNT);
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        double result[2][COUNT];
        for (int own = 0; own < 2; own++) {
            place h = place_of(g, DSC_F64, SHAPE(DSC_HYPER_COUNT), hyper_values);
            place x = place_of(g, DSC_F32, SHAPE(COUNT), values[0]),
                  z = place_of(g, DSC_F32, SHAPE(COUNT), values[0]);
            place grad = place_of(g, DSC_F32, SHAPE(COUNT), values[1]),
                  m = place_of(g, DSC_F32, SHAPE(COUNT), values[2]);
            place v = place_of(g, DSC_F32, SHAPE(COUNT), values[3]);
            place norms = place_of(g, DSC_F64, SHAPE(2), (const double[]){4, 9});
            const dsc_tensor *read = own ? &x.t : &z.t;
            assert_ok(sgd(g->q, 1, &h.t, read, &grad.t, &m.t, &x.t));
            assert_ok(dsc_op_convert(g->q, &x.t, &z.t));
            assert_ok(adam(g->q, 1, &h.t, read, &grad.t, &m.t, &v.t, &x.t));
            assert_ok(dsc_op_convert(g->q, &x.t, &z.t));
            assert_ok(lars(g->q, &h.t, &norms.t, read, &grad.t, &m.t, &x.t));
            place_read(g, &x, result[own]);
            place *all[] = {&h, &x, &z, &grad, &m, &v, &norms};
            for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
                place_free(all[i]);
        }
        assert_memory_equal(result[0], result[1], sizeof result[0]);
    }
}

static void test_refusals(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place h = place_of(g, DSC_F64, SHAPE(DSC_HYPER_COUNT), hyper_values),
              few = place_make(g, DSC_F64, SHAPE(2));
        place x = place_make(g, DSC_F32, SHAPE(2, 2)), d = place_make(g, DSC_F32, SHAPE(4));
        place m = place_make(g, DSC_F32, SHAPE(4)), small = place_make(g, DSC_F32, SHAPE(3));
        place_fill(g, &x, 0);
        place_fill(g, &d, 0);
        place_fill(g, &m, 0);
        assert_ok(sgd(g->q, 0, &h.t, &x.t, &d.t, &m.t, &x.t)); /* only the count must agree */
        assert_fails(DSC_E_INVALID, "sgd: hyper is [2]; 10 elements are expected",
                     sgd(g->q, 0, &few.t, &x.t, &d.t, &m.t, &x.t));
        assert_fails(DSC_E_INVALID, "sgd: g is [3]; as many elements as x, [2,2], are expected",
                     sgd(g->q, 0, &h.t, &x.t, &small.t, &m.t, &x.t));
        assert_fails(DSC_E_INVALID, "adam: v shares memory with m",
                     adam(g->q, 0, &h.t, &x.t, &d.t, &m.t, &m.t, &x.t));
        assert_fails(DSC_E_INVALID, "lars: norms is [10]; 2 elements are expected",
                     lars(g->q, &h.t, &h.t, &x.t, &d.t, &m.t, &x.t));
        assert_fails(DSC_E_INVALID, "lamb_direction: x shares memory with z",
                     lamb_direction(g->q, &h.t, &x.t, &d.t, &m.t, &small.t, &x.t));
        assert_fails(DSC_E_INVALID, "lamb_apply: g is fp64; fp32 is expected",
                     lamb_apply(g->q, &h.t, &few.t, &h.t, &x.t));
        place *all[] = {&h, &few, &x, &d, &m, &small};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sgd),
        cmocka_unit_test(test_adam),
        cmocka_unit_test(test_lars),
        cmocka_unit_test(test_lamb),
        cmocka_unit_test(test_sgd_by_hand),
        cmocka_unit_test(test_adam_by_hand),
        cmocka_unit_test(test_adam_coupled_decay),
        cmocka_unit_test(test_lars_by_hand),
        cmocka_unit_test(test_lamb_by_hand),
        cmocka_unit_test(test_z_is_x),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
