/* Softmax cross-entropy: losses, ranks, gradients. */
#include "device/table.h"
#include "device/trial.h"

#include <math.h>

typedef struct loss_case {
    int64_t rows, classes;
    double smoothing, grad_scale, spread;
    int gradient;
    int mixed, weighted; /* with other labels; with weights of the classes */
} loss_case;

static const loss_case cases[] = {
    {1, 1, 0, 1, 1, 1, 0, 0},         {3, 2, 0, 0.5, 1, 1, 0, 0},
    {7, 10, 0.1, 1, 4, 1, 0, 0},      {128, 10, 0, 1.0 / 128, 10, 1, 0, 0},
    {33, 100, 0.1, 2, 30, 0, 0, 0},   {5, 1000, 1, 0.01, 1, 1, 0, 0},
    {40, 1001, 0.05, 1, 20, 1, 0, 0}, {4000, 10, 0.1, 0.001, 8, 1, 0, 0},
    {9, 10, 0, 1, 4, 1, 1, 0},        {33, 200, 0.1, 1, 4, 1, 1, 1},
    {40, 10, 0.1, 1, 4, 1, 0, 1},     {12, 1000, 1, 0.5, 2, 1, 1, 1},
    {40, 1001, 0, 1, 300, 1, 0, 0}, /* threads whose first logits are far below 0 */
};

static dsc_status loss_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const loss_case *c = params;
    const dsc_targets targets = {.labels = &t[1],
                                 .smoothing = c->smoothing,
                                 .others = c->mixed ? &t[3] : NULL,
                                 .shares = c->mixed ? &t[4] : NULL,
                                 .weights = c->weighted ? &t[5] : NULL};
    return dsc_op_target_loss(q, &t[0], &targets, c->grad_scale, NULL, c->gradient ? &t[6] : NULL, &t[2]);
}

/* A loss is a difference of numbers of size spread + log(classes); p = exp(log p) inherits that error. */
static void start_loss(trial *tr, const char *name, const loss_case *c) {
    double size = 2 * c->spread + log((double)c->classes) + 1;
    trial_start(tr, name, loss_run, c);
    tr->terms = (double)c->classes;
    double *logits = trial_in(tr, "logits", SHAPE(c->rows, c->classes));
    for (int64_t j = 0; j < c->rows * c->classes; j++)
        logits[j] = (double)(float)(c->spread * logits[j]);
    double *labels = trial_typed(tr, "labels", ROLE_IN, DSC_I32, 1, SHAPE(c->rows));
    for (int64_t j = 0; j < c->rows; j++)
        labels[j] = j % 5 == 4 ? -1 : (double)(j * 7 % c->classes);
    double *stats = trial_typed(tr, "stats", ROLE_INOUT, DSC_F64, (double)c->rows * size, SHAPE(4));
    tr->operands[tr->count - 1].coarse = 1;
    stats[0] = 100;
    stats[3] = 1000;
    double *others = trial_typed(tr, "others", ROLE_IN, DSC_I32, 1, SHAPE(c->rows));
    double *shares = trial_typed(tr, "shares", ROLE_IN, DSC_F32, 1, SHAPE(c->rows));
    double *weights = trial_typed(tr, "weights", ROLE_IN, DSC_F32, 1, SHAPE(c->classes));
    for (int64_t j = 0; j < c->rows; j++) { /* a share of 0 makes an impossible label irrelevant */
        shares[j] = (double)(j % 4) / 8;
        others[j] = j % 4 ? (double)(j * 3 % c->classes) : -5;
    }
    for (int64_t j = 0; j < c->classes; j++)
        weights[j] = 0.5 + (double)(j % 3) / 4;
    if (c->gradient)
        trial_out(tr, "dlogits", c->grad_scale * size, SHAPE(c->rows, c->classes));
}

static void test_loss(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[40];
        trial tr;
        snprintf(name, sizeof name, "softmax_loss case %zu", i);
        start_loss(&tr, name, &cases[i]);
        trial_check(&tr);
        if (!rigs[rig_count - 1].device->has_halves)
            continue;
        start_loss(&tr, name, &cases[i]);
        trial_check_halves(&tr);
    }
}

static void check_close(double got, double want, double eps) {
    if (!(fabs(got - want) <= 16 * eps * (1 + fabs(want))))
        fail_msg("%.17g instead of %.17g", got, want);
}

/* Two classes: equal logits give log 2; (log 3, 0) give p = (3/4, 1/4). Rows left out have no gradient. */
static void test_by_hand(void **state) {
    (void)state;
    static const dsc_dtype types[] = {DSC_F32, DSC_F64};
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < 2; type++) {
            const rig *g = &rigs[r];
            double eps = dtype_eps(types[type]);
            place logits = place_of(g, types[type], SHAPE(3, 2), (const double[]){0, 0, log(3), 0, 5, 5});
            place labels = place_of(g, DSC_I32, SHAPE(3), (const double[]){0, 1, -1});
            place stats = place_of(g, DSC_F64, SHAPE(4), (const double[]){0, 0, 0, 0});
            place d = place_make(g, types[type], SHAPE(3, 2));
            place_fill(g, &d, NAN);
            assert_ok(dsc_op_softmax_loss(g->q, &logits.t, &labels.t, 0, 2, NULL, &d.t, &stats.t));
            double got[6];
            place_read(g, &stats, got);
            check_close(got[0], log(2) + log(4), eps);
            assert_true(got[1] == 1 && got[2] == 2 && got[3] == 2);
            place_read(g, &d, got);
            static const double want[6] = {-1, 1, 1.5, -1.5, 0, 0};
            for (int i = 0; i < 6; i++)
                check_close(got[i], want[i], eps);
            assert_true(got[4] == 0 && got[5] == 0);
            /* Smoothing 0.2: the target of the second row is (0.1, 0.9). Added to what is there. */
            place_write(g, &labels, (const double[]){-1, 1, -7});
            place_write(g, &stats, (const double[]){10, 20, 30, 40});
            assert_ok(dsc_op_softmax_loss(g->q, &logits.t, &labels.t, 0.2, 1, NULL, &d.t, &stats.t));
            place_read(g, &stats, got);
            check_close(got[0] - 10, -0.1 * log(0.75) - 0.9 * log(0.25), eps);
            assert_true(got[1] == 20 && got[2] == 31 && got[3] == 41);
            place_read(g, &d, got);
            check_close(got[2], 0.65, eps);
            check_close(got[3], -0.65, eps);
            place *all[] = {&logits, &labels, &stats, &d};
            for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
                place_free(all[i]);
        }
}

/* Logits (log 3, 0), p = (3/4, 1/4). Three quarters of label 0 and a quarter of label 1 are the target p itself; half
 * of each is not. Weights 2 and 6 make 3 and 4 of these rows. Only the first label counts for being correct. */
static void test_mixed_by_hand(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place logits = place_of(g, DSC_F32, SHAPE(3, 2), (const double[]){log(3), 0, log(3), 0, log(3), 0});
        place labels = place_of(g, DSC_I32, SHAPE(3), (const double[]){0, 1, 1});
        place others = place_of(g, DSC_I32, SHAPE(3), (const double[]){1, 0, 9});
        place shares = place_of(g, DSC_F32, SHAPE(3), (const double[]){0.25, 0.5, 0});
        place weights = place_of(g, DSC_F32, SHAPE(2), (const double[]){2, 6});
        place stats = place_of(g, DSC_F64, SHAPE(4), (const double[]){0, 0, 0, 0});
        place d = place_make(g, DSC_F32, SHAPE(3, 2));
        dsc_targets targets = {
            .labels = &labels.t, .others = &others.t, .shares = &shares.t, .weights = &weights.t};
        assert_ok(dsc_op_target_loss(g->q, &logits.t, &targets, 1, NULL, &d.t, &stats.t));
        const double eps = dtype_eps(DSC_F32), yes = log(4.0 / 3), no = log(4);
        double got[6];
        place_read(g, &stats, got);
        check_close(got[0], 3 * (0.75 * yes + 0.25 * no) + 4 * 0.5 * (yes + no) + 6 * no, eps);
        assert_true(got[1] == 1 && got[2] == 3 && got[3] == 3);
        place_read(g, &d, got);
        static const double want[6] = {0, 0, 1, -1, 4.5, -4.5};
        for (int i = 0; i < 6; i++)
            check_close(got[i], want[i], 4 * eps);
        /* Another label that is no class, where it has a share. */
        place_write(g, &shares, (const double[]){0.25, 0.5, 0.125});
        assert_ok(dsc_op_target_loss(g->q, &logits.t, &targets, 1, NULL, &d.t, &stats.t));
        assert_true(isnan(place_get(g, &stats, 0)));
        targets.shares = NULL;
        assert_fails(DSC_E_INVALID, "other labels and their shares come together",
                     dsc_op_target_loss(g->q, &logits.t, &targets, 1, NULL, &d.t, &stats.t));
        targets.shares = &shares.t;
        targets.weights = &shares.t;
        assert_fails(DSC_E_INVALID, "weights is [3]; [2] is expected",
                     dsc_op_target_loss(g->q, &logits.t, &targets, 1, NULL, &d.t, &stats.t));
        place *all[] = {&logits, &labels, &others, &shares, &weights, &stats, &d};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

/* Ten classes, all equal: the lower class ranks first, so label 0 is right at 1, labels below 5 within 5. */
static void test_ties(void **state) {
    (void)state;
    static const double labels[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place logits = place_make(g, DSC_F32, SHAPE(10, 10)), l = place_of(g, DSC_I32, SHAPE(10), labels);
        place stats = place_of(g, DSC_F64, SHAPE(4), (const double[]){0, 0, 0, 0});
        place_fill(g, &logits, 0.25);
        assert_ok(dsc_op_softmax_loss(g->q, &logits.t, &l.t, 0, 1, NULL, NULL, &stats.t));
        double got[4];
        place_read(g, &stats, got);
        assert_true(got[1] == 1 && got[2] == 5 && got[3] == 10);
        place_free(&logits);
        place_free(&l);
        place_free(&stats);
    }
}

/* Huge logits overflow nothing; a label out of range and a NaN make the loss NaN, and a NaN ranks before all.
 */
static void test_extremes(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place logits = place_of(g, DSC_F32, SHAPE(1, 3), (const double[]){1e30, -1e30, 0});
        place label = place_of(g, DSC_I32, SHAPE(1), (const double[]){0}),
              d = place_make(g, DSC_F32, SHAPE(1, 3));
        place stats = place_of(g, DSC_F64, SHAPE(4), (const double[]){0, 0, 0, 0});
        assert_ok(dsc_op_softmax_loss(g->q, &logits.t, &label.t, 0, 1, NULL, &d.t, &stats.t));
        place_expect(g, &stats, (const double[]){0, 1, 1, 1}, "stats of huge logits");
        place_expect(g, &d, (const double[]){0, 0, 0}, "gradient at huge logits");
        place_write(g, &logits, (const double[]){2, -INFINITY, -INFINITY});
        place_write(g, &stats, (const double[]){0, 0, 0, 0});
        assert_ok(dsc_op_softmax_loss(g->q, &logits.t, &label.t, 0, 1, NULL, &d.t, &stats.t));
        place_expect(g, &stats, (const double[]){0, 1, 1, 1}, "stats of certainty");
        place_expect(g, &d, (const double[]){0, 0, 0}, "gradient at certainty");
        place_write(g, &label, (const double[]){3});
        assert_ok(dsc_op_softmax_loss(g->q, &logits.t, &label.t, 0, 1, NULL, &d.t, &stats.t));
        assert_true(isnan(place_get(g, &stats, 0)));
        assert_true(place_get(g, &stats, 3) == 2);
        place_write(g, &label, (const double[]){0});
        for (int nans = 1; nans <= 3; nans++) {
            place_write(g, &logits, (const double[]){nans > 1 ? NAN : 1, nans > 2 ? NAN : 0, NAN});
            place_write(g, &stats, (const double[]){0, 0, 0, 0});
            assert_ok(dsc_op_softmax_loss(g->q, &logits.t, &label.t, 0, 1, NULL, &d.t, &stats.t));
            assert_true(isnan(place_get(g, &stats, 0)));
            assert_true(place_get(g, &stats, 1) == 0);
            assert_true(place_get(g, &stats, 3) == 1);
        }
        place *all[] = {&logits, &label, &d, &stats};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

static void test_refusals(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place logits = place_make(g, DSC_F32, SHAPE(2, 3)), labels = place_make(g, DSC_I32, SHAPE(2));
        place stats = place_of(g, DSC_F64, SHAPE(4), (const double[]){1, 2, 3, 4});
        place none = place_make(g, DSC_F32, SHAPE(0, 3)), nobody = place_make(g, DSC_I32, SHAPE(0));
        assert_fails(DSC_E_INVALID, "softmax_loss: labels is fp32; i32 is expected",
                     dsc_op_softmax_loss(g->q, &logits.t, &logits.t, 0, 1, NULL, NULL, &stats.t));
        assert_fails(DSC_E_INVALID, "softmax_loss: labels is [0]; [2] is expected",
                     dsc_op_softmax_loss(g->q, &logits.t, &nobody.t, 0, 1, NULL, NULL, &stats.t));
        assert_fails(DSC_E_INVALID, "softmax_loss: dlogits is [0,3]; the shape of logits, [2,3], is expected",
                     dsc_op_softmax_loss(g->q, &logits.t, &labels.t, 0, 1, NULL, &none.t, &stats.t));
        assert_fails(DSC_E_INVALID, "the smoothing is 1.5",
                     dsc_op_softmax_loss(g->q, &logits.t, &labels.t, 1.5, 1, NULL, NULL, &stats.t));
        assert_ok(dsc_op_softmax_loss(g->q, &none.t, &nobody.t, 0, 1, NULL, NULL, &stats.t));
        place_expect(g, &stats, (const double[]){1, 2, 3, 4}, "stats of no rows");
        place *all[] = {&logits, &labels, &stats, &none, &nobody};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss), cmocka_unit_test(test_by_hand),  cmocka_unit_test(test_mixed_by_hand),
        cmocka_unit_test(test_ties), cmocka_unit_test(test_extremes), cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
