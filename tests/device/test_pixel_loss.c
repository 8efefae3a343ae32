/* Losses of single numbers: every device against ref in double, values by hand, extremes, refusals. Their gradients are
 * compared with differences in test_gradients.c. */
#include "device/trial.h"

#include <math.h>

typedef __typeof__(dsc_op_bce_loss) pixel_loss;

typedef struct pixel_case {
    const char *name;
    pixel_loss *loss;
    int64_t rows, width; /* width: of squared errors */
    double spread, grad_scale;
    int gradient, scaled; /* scaled: with a loss scale */
} pixel_case;

static const pixel_case cases[] = {
    {"bce_loss", dsc_op_bce_loss, 1, 1, 1, 1, 1, 0},
    {"bce_loss", dsc_op_bce_loss, 7, 1, 4, 0.5, 1, 1},
    {"bce_loss", dsc_op_bce_loss, 513, 1, 40, 1, 0, 0},
    {"bce_loss", dsc_op_bce_loss, 5000, 1, 10, 1.0 / 5000, 1, 1},
    {"bce_loss", dsc_op_bce_loss, 140000, 1, 2, 1, 1, 0},
    {"dice_loss", dsc_op_dice_loss, 1, 1, 1, 1, 1, 0},
    {"dice_loss", dsc_op_dice_loss, 7, 1, 4, 0.5, 1, 1},
    {"dice_loss", dsc_op_dice_loss, 513, 1, 40, 1, 0, 1},
    {"dice_loss", dsc_op_dice_loss, 5000, 1, 10, 1.0 / 5000, 1, 1},
    {"dice_loss", dsc_op_dice_loss, 140000, 1, 2, 1, 1, 0},
    {"mse_loss", dsc_op_mse_loss, 1, 1, 1, 1, 1, 0},
    {"mse_loss", dsc_op_mse_loss, 7, 3, 4, 0.5, 1, 1},
    {"mse_loss", dsc_op_mse_loss, 171, 3, 4, 1, 0, 1},
    {"mse_loss", dsc_op_mse_loss, 1000, 140, 2, 0.001, 1, 1},
};

static dsc_status loss_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const pixel_case *c = params;
    return c->loss(q, &t[0], &t[1], c->grad_scale, c->scaled ? &t[3] : NULL, c->gradient ? &t[4] : NULL,
                   &t[2]);
}

/* Formulas are in double: the rounding of dx is left, and in stats that of a sum of `count` numbers, whatever the
 * type of x. Labels are 0, 1 and, for rows that are left out, negative. */
static void check_case(const pixel_case *c, void (*check)(trial *tr)) {
    trial tr;
    trial_start(&tr, c->name, loss_run, c);
    int64_t count = c->rows * c->width;
    double *x = trial_in(&tr, "x", SHAPE(c->rows, c->width));
    for (int64_t i = 0; i < count; i++)
        x[i] = (double)(float)(c->spread * x[i]);
    int squares = c->loss == dsc_op_mse_loss;
    double *against = trial_typed(&tr, squares ? "targets" : "labels", ROLE_IN, squares ? DSC_F32 : DSC_I32,
                                  1, SHAPE(c->rows, c->width));
    for (int64_t i = 0; i < count; i++)
        against[i] = squares ? (double)(i % 17 - 8) / 4 : i % 7 == 5 ? -3 : (double)(i * 5 % 3 % 2);
    double size = (double)count * (1 + c->spread); /* of the sum of losses */
    double *stats = trial_typed(&tr, "stats", ROLE_INOUT, DSC_F64, (double)count * size, SHAPE(4));
    stats[0] = 100;
    stats[3] = 1000;
    *trial_typed(&tr, "loss_scale", ROLE_IN, DSC_F64, 1, SHAPE(1)) = 4;
    if (c->gradient)
        trial_out(&tr, "dx", 16 * c->grad_scale * (squares ? c->spread + 2 : 1), SHAPE(c->rows, c->width));
    check(&tr);
}

static void test_conformance(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_case(&cases[i], trial_check);
        check_case(&cases[i], trial_check_halves);
    }
}

static void expect_near(const rig *g, const place *p, const double *want, const char *what) {
    double limit[8];
    for (int64_t i = 0; i < dsc_tensor_count(&p->t); i++)
        limit[i] = 4 * dtype_eps(DSC_F32) * fabs(want[i]);
    place_expect_near(g, p, want, limit, what);
}

/* Equal chances give log 2, and log 3 gives p = 3/4. The last row is left out. */
static void test_bce_by_hand(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place z = place_of(g, DSC_F32, SHAPE(5), (const double[]){0, 0, log(3), log(3), 7});
        place labels = place_of(g, DSC_I32, SHAPE(5), (const double[]){1, 0, 1, 0, -1});
        place stats = place_of(g, DSC_F64, SHAPE(4), (const double[]){1, 2, 3, 4});
        place dz = place_make(g, DSC_F32, SHAPE(5));
        assert_ok(dsc_op_bce_loss(g->q, &z.t, &labels.t, 2, NULL, &dz.t, &stats.t));
        expect_near(g, &stats, (const double[]){1 + 2 * log(2) + log(4.0 / 3) + log(4), 4, 5, 8}, "stats");
        expect_near(g, &dz, (const double[]){-1, 1, -0.5, 1.5, 0}, "dz");
        place *all[] = {&z, &labels, &stats, &dz};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

/* Four equal chances, one left out: I = 1, U = 3/2 + 2, so the loss is 1/3. */
static void test_dice_by_hand(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place z = place_of(g, DSC_F32, SHAPE(2, 2, 1), (const double[]){0, 0, 0, 0});
        place labels = place_of(g, DSC_I32, SHAPE(4), (const double[]){1, 0, 1, -1});
        place stats = place_of(g, DSC_F64, SHAPE(4), (const double[]){1, 2, 3, 4});
        place scale = place_of(g, DSC_F64, SHAPE(1), (const double[]){2});
        place dz = place_make(g, DSC_F32, SHAPE(2, 2, 1));
        assert_ok(dsc_op_dice_loss(g->q, &z.t, &labels.t, 4.5, &scale.t, &dz.t, &stats.t));
        expect_near(g, &stats, (const double[]){2, 3, 4, 7}, "stats");
        expect_near(g, &dz, (const double[]){-2, 1, -2, 0}, "dz");
        place_write(g, &labels, (const double[]){-1, -1, -1, -1}); /* nothing is left */
        assert_ok(dsc_op_dice_loss(g->q, &z.t, &labels.t, 4.5, &scale.t, &dz.t, &stats.t));
        expect_near(g, &stats, (const double[]){2, 3, 4, 7}, "stats of no rows");
        expect_near(g, &dz, (const double[]){0, 0, 0, 0}, "dz of no rows");
        place *all[] = {&z, &labels, &stats, &scale, &dz};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

static void test_mse_by_hand(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place y = place_of(g, DSC_F32, SHAPE(2, 2), (const double[]){1, 2, 3, 4});
        place targets = place_of(g, DSC_F32, SHAPE(2, 2), (const double[]){0, 0, 3, 6});
        place stats = place_of(g, DSC_F64, SHAPE(4), (const double[]){1, 2, 3, 4});
        place dy = place_make(g, DSC_F32, SHAPE(2, 2));
        assert_ok(dsc_op_mse_loss(g->q, &y.t, &targets.t, 0.5, NULL, &dy.t, &stats.t));
        place_expect(g, &stats, (const double[]){5.5, 2, 3, 6}, "stats");
        place_expect(g, &dy, (const double[]){0.5, 1, 0, -1}, "dy");
        place *all[] = {&y, &targets, &stats, &dy};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

/* Large and infinite logits; labels above 1 and numbers that are NaN make the loss NaN, and are not correct. */
static void test_extremes(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place z = place_of(g, DSC_F32, SHAPE(4), (const double[]){INFINITY, -INFINITY, 1000, -1000});
        place labels = place_of(g, DSC_I32, SHAPE(4), (const double[]){1, 0, 0, 1});
        place stats = place_of(g, DSC_F64, SHAPE(4), (const double[]){0, 0, 0, 0});
        place dz = place_make(g, DSC_F32, SHAPE(4));
        assert_ok(dsc_op_bce_loss(g->q, &z.t, &labels.t, 1, NULL, &dz.t, &stats.t));
        place_expect(g, &stats, (const double[]){2000, 2, 2, 4}, "stats of large logits");
        place_expect(g, &dz, (const double[]){0, 0, 1, -1}, "gradient at large logits");
        place_fill(g, &stats, 0);
        assert_ok(dsc_op_dice_loss(g->q, &z.t, &labels.t, 1, NULL, &dz.t, &stats.t));
        expect_near(g, &stats, (const double[]){4 * 0.4, 2, 2, 4}, "stats of large logits"); /* I 1, U 4 */
        place_expect(g, &dz, (const double[]){0, 0, 0, 0}, "Dice's gradient at large logits");
        for (int bad = 0; bad < 2; bad++)
            for (int dice = 0; dice < 2; dice++) {
                pixel_loss *loss = dice ? dsc_op_dice_loss : dsc_op_bce_loss;
                place_write(g, &z, (const double[]){bad ? NAN : 1, 1, 1, 1});
                place_write(g, &labels, (const double[]){bad ? 0 : 2, 1, -1, 0});
                place_fill(g, &stats, 0);
                assert_ok(loss(g->q, &z.t, &labels.t, 1, NULL, &dz.t, &stats.t));
                place_expect(g, &stats, (const double[]){NAN, 1, 1, 3}, "stats with a NaN");
                assert_true(isnan(place_get(g, &dz, 0)) && place_get(g, &dz, 2) == 0);
            }
        place *all[] = {&z, &labels, &stats, &dz};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

static void test_refusals(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place z = place_make(g, DSC_F32, SHAPE(2, 3)), labels = place_make(g, DSC_I32, SHAPE(6));
        place stats = place_of(g, DSC_F64, SHAPE(4), (const double[]){1, 2, 3, 4});
        place none = place_make(g, DSC_F32, SHAPE(0, 3)), nobody = place_make(g, DSC_I32, SHAPE(0));
        assert_fails(DSC_E_INVALID, "bce_loss: labels is fp32; i32 is expected",
                     dsc_op_bce_loss(g->q, &z.t, &z.t, 1, NULL, NULL, &stats.t));
        assert_fails(DSC_E_INVALID, "dice_loss: labels is [0]; as many elements as logits, [2,3]",
                     dsc_op_dice_loss(g->q, &z.t, &nobody.t, 1, NULL, NULL, &stats.t));
        assert_fails(DSC_E_INVALID, "bce_loss: dlogits shares memory with logits",
                     dsc_op_bce_loss(g->q, &z.t, &labels.t, 1, NULL, &z.t, &stats.t));
        assert_fails(DSC_E_INVALID, "dice_loss: stats is fp32",
                     dsc_op_dice_loss(g->q, &z.t, &labels.t, 1, NULL, NULL, &z.t));
        assert_fails(DSC_E_INVALID, "mse_loss: targets is [0,3]; the shape of y, [2,3], is expected",
                     dsc_op_mse_loss(g->q, &z.t, &none.t, 1, NULL, NULL, &stats.t));
        assert_fails(DSC_E_INVALID, "mse_loss: loss_scale is [4]; 1 element is expected",
                     dsc_op_mse_loss(g->q, &z.t, &z.t, 1, &stats.t, NULL, &stats.t));
        assert_ok(dsc_op_bce_loss(g->q, &none.t, &nobody.t, 1, NULL, NULL, &stats.t));
        assert_ok(dsc_op_dice_loss(g->q, &none.t, &nobody.t, 1, NULL, NULL, &stats.t));
        assert_ok(dsc_op_mse_loss(g->q, &none.t, &none.t, 1, NULL, NULL, &stats.t));
        place_expect(g, &stats, (const double[]){1, 2, 3, 4}, "stats of no rows");
        place *all[] = {&z, &labels, &stats, &none, &nobody};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conformance),  cmocka_unit_test(test_bce_by_hand),
        cmocka_unit_test(test_dice_by_hand), cmocka_unit_test(test_mse_by_hand),
        cmocka_unit_test(test_extremes),     cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
