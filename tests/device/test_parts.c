/* Parts of maps, upsampling by 2. */
#include "device/trial.h"

#include <math.h>

/* ---- parts ---- */

typedef struct part_case {
    dsc_part_desc desc;
    int64_t n, h, w, c; /* the part */
    int64_t whole_h, whole_w, whole_c;
} part_case;

static const part_case part_cases[] = {
    {{0, 0, 0}, 1, 1, 1, 1, 1, 1, 1},        {{0, 0, 0}, 2, 3, 4, 8, 3, 4, 24},
    {{0, 0, 8}, 2, 3, 4, 16, 3, 4, 24},      {{0, 0, 5}, 2, 3, 4, 7, 3, 4, 13},
    {{2, 1, 0}, 2, 3, 4, 8, 6, 6, 8},        {{1, 2, 4}, 3, 2, 3, 5, 4, 5, 11},
    {{0, 3, 16}, 1, 33, 32, 32, 33, 35, 48},
};

typedef struct part_call {
    const part_case *what;
    double beta;
} part_call;

static dsc_status cut_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const part_call *c = params;
    return dsc_op_cut(q, &c->what->desc, &t[0], c->beta, &t[1]);
}

static dsc_status paste_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const part_call *c = params;
    return dsc_op_paste(q, &c->what->desc, &t[0], c->beta, &t[1]);
}

static void check_parts(void (*check)(trial *tr)) {
    for (size_t i = 0; i < sizeof part_cases / sizeof part_cases[0]; i++)
        for (int beta = 0; beta < 2; beta++) {
            const part_case *c = &part_cases[i];
            part_call call = {c, beta};
            trial tr;
            trial_start(&tr, "cut", cut_run, &call);
            trial_in(&tr, "whole", SHAPE(c->n, c->whole_h, c->whole_w, c->whole_c));
            trial_beta(&tr, "part", 2 * beta, beta, SHAPE(c->n, c->h, c->w, c->c));
            check(&tr);
            trial_start(&tr, "paste", paste_run, &call);
            trial_in(&tr, "part", SHAPE(c->n, c->h, c->w, c->c));
            trial_inout(&tr, "whole", 2 * beta, SHAPE(c->n, c->whole_h, c->whole_w, c->whole_c));
            check(&tr);
        }
}

static void test_parts(void **state) {
    (void)state;
    check_parts(trial_check);
    check_parts(trial_check_halves);
}

/* The lower right pixel of 2 x 2, the second of three channels. */
static void test_parts_by_hand(void **state) {
    (void)state;
    static const dsc_part_desc desc = {1, 1, 1};
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place whole =
            place_of(g, DSC_F32, SHAPE(1, 2, 2, 3), (const double[]){1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
        place part = place_of(g, DSC_F32, SHAPE(1, 1, 1, 1), (const double[]){NAN});
        assert_ok(dsc_op_cut(g->q, &desc, &whole.t, 0, &part.t));
        place_expect(g, &part, (const double[]){11}, "cut");
        assert_ok(dsc_op_cut(g->q, &desc, &whole.t, 1, &part.t));
        place_expect(g, &part, (const double[]){22}, "cut with beta 1");
        assert_ok(dsc_op_paste(g->q, &desc, &part.t, 0, &whole.t));
        place_expect(g, &whole, (const double[]){1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 22, 12}, "paste");
        assert_ok(dsc_op_paste(g->q, &desc, &part.t, 1, &whole.t));
        place_expect(g, &whole, (const double[]){1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 44, 12}, "paste with beta 1");
        place_free(&whole);
        place_free(&part);
    }
}

/* ---- upsampling ---- */

typedef struct upsample_case {
    dsc_upsample_kind kind;
    double beta;
    int64_t n, h, w, c;
} upsample_case;

static const int64_t upsample_shapes[][4] = {{1, 1, 1, 1}, {2, 1, 3, 5},  {2, 4, 1, 8},
                                             {3, 2, 5, 7}, {2, 5, 4, 16}, {1, 16, 22, 24}};

static dsc_status upsample_forward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    return dsc_op_upsample_forward(q, ((const upsample_case *)params)->kind, &t[0], &t[1]);
}

static dsc_status upsample_backward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const upsample_case *c = params;
    return dsc_op_upsample_backward(q, c->kind, &t[0], c->beta, &t[1]);
}

static void check_upsample(const upsample_case *c, void (*check)(trial *tr)) {
    trial tr;
    trial_start(&tr, "upsample_forward", upsample_forward_run, c);
    tr.linear = 1;
    tr.terms = c->kind == DSC_UPSAMPLE_NEAREST ? 1 : 4;
    trial_in(&tr, "x", SHAPE(c->n, c->h, c->w, c->c));
    trial_out(&tr, "y", 1, SHAPE(c->n, 2 * c->h, 2 * c->w, c->c));
    check(&tr);
    trial_start(&tr, "upsample_backward", upsample_backward_run, c);
    tr.linear = 1;
    tr.terms = c->kind == DSC_UPSAMPLE_NEAREST ? 4 : 16;
    trial_in(&tr, "dy", SHAPE(c->n, 2 * c->h, 2 * c->w, c->c));
    trial_beta(&tr, "dx", 1, c->beta, SHAPE(c->n, c->h, c->w, c->c));
    check(&tr);
}

static void test_upsample(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof upsample_shapes / sizeof upsample_shapes[0]; i++)
        for (int kind = 0; kind < 2; kind++)
            for (int beta = 0; beta < 2; beta++) {
                const int64_t *d = upsample_shapes[i];
                upsample_case c = {
                    kind ? DSC_UPSAMPLE_BILINEAR : DSC_UPSAMPLE_NEAREST, beta, d[0], d[1], d[2], d[3]};
                check_upsample(&c, trial_check);
                check_upsample(&c, trial_check_halves);
            }
}

/* All sums are exact in float32. With bilinear upsampling a line 0, 4 becomes 0, 1, 3, 4; an infinity stays in its
 * four pixels with the other kind. */
static void test_upsample_by_hand(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place x = place_of(g, DSC_F32, SHAPE(1, 2, 2, 1), (const double[]){0, 4, 16, 4});
        place y = place_make(g, DSC_F32, SHAPE(1, 4, 4, 1));
        assert_ok(dsc_op_upsample_forward(g->q, DSC_UPSAMPLE_BILINEAR, &x.t, &y.t));
        place_expect(g, &y, (const double[]){0, 1, 3, 4, 4, 4, 4, 4, 12, 10, 6, 4, 16, 13, 7, 4},
                     "bilinear upsampling");
        place_write(g, &y, (const double[]){16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0, 0, 0});
        assert_ok(dsc_op_upsample_backward(g->q, DSC_UPSAMPLE_BILINEAR, &y.t, 0, &x.t));
        place_expect(g, &x, (const double[]){18, 6, 6, 18}, "bilinear upsampling backwards");
        place_write(g, &x, (const double[]){1, 2, INFINITY, 4});
        assert_ok(dsc_op_upsample_forward(g->q, DSC_UPSAMPLE_NEAREST, &x.t, &y.t));
        place_expect(
            g, &y,
            (const double[]){1, 1, 2, 2, 1, 1, 2, 2, INFINITY, INFINITY, 4, 4, INFINITY, INFINITY, 4, 4},
            "nearest upsampling");
        place_write(g, &y, (const double[]){1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, INFINITY});
        place_write(g, &x, (const double[]){1, 1, 1, 1});
        assert_ok(dsc_op_upsample_backward(g->q, DSC_UPSAMPLE_NEAREST, &y.t, 1, &x.t));
        place_expect(g, &x, (const double[]){15, 23, 47, INFINITY}, "nearest upsampling backwards");
        place_free(&x);
        place_free(&y);
    }
}

static void test_refusals(void **state) {
    (void)state;
    static const dsc_part_desc start = {0, 0, 0}, low = {3, 0, 0}, before = {0, 0, -1},
                               far = {0, INT64_MAX, 0};
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place x = place_make(g, DSC_F32, SHAPE(1, 4, 4, 2)), y = place_make(g, DSC_F32, SHAPE(1, 2, 2, 2));
        place flat = place_make(g, DSC_F32, SHAPE(1, 2)), two = place_make(g, DSC_F32, SHAPE(2, 2, 2, 2));
        assert_fails(DSC_E_INVALID, "cut: the part has 2 rows from 3 on; the whole has 4",
                     dsc_op_cut(g->q, &low, &x.t, 0, &y.t));
        assert_fails(DSC_E_INVALID, "paste: the part has 2 channels from -1 on; the whole has 2",
                     dsc_op_paste(g->q, &before, &y.t, 0, &x.t));
        assert_fails(DSC_E_INVALID, "the part has 2 columns from", dsc_op_cut(g->q, &far, &x.t, 0, &y.t));
        assert_fails(DSC_E_INVALID, "cut: the part has 4 rows from 0 on; the whole has 2",
                     dsc_op_cut(g->q, &start, &y.t, 0, &x.t));
        assert_fails(DSC_E_INVALID, "cut: part is [2,2,2,2]; [1,2,2,2] is expected",
                     dsc_op_cut(g->q, &start, &x.t, 0, &two.t));
        assert_fails(DSC_E_INVALID, "cut: beta", dsc_op_cut(g->q, &start, &x.t, 0.5, &y.t));
        assert_fails(DSC_E_INVALID, "shares memory", dsc_op_cut(g->q, &start, &x.t, 0, &x.t));
        assert_fails(DSC_E_INVALID, "upsample_forward: kind 5 is unknown",
                     dsc_op_upsample_forward(g->q, (dsc_upsample_kind)5, &y.t, &x.t));
        assert_fails(DSC_E_INVALID, "upsample_forward: y is [1,2]; [1,4,4,2] is expected",
                     dsc_op_upsample_forward(g->q, DSC_UPSAMPLE_NEAREST, &y.t, &flat.t));
        assert_fails(DSC_E_INVALID, "upsample_backward: y is [1,2,2,2]; [1,8,8,2] is expected",
                     dsc_op_upsample_backward(g->q, DSC_UPSAMPLE_NEAREST, &y.t, 0, &x.t));
        place *all[] = {&x, &y, &flat, &two};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),    cmocka_unit_test(test_parts_by_hand),
        cmocka_unit_test(test_upsample), cmocka_unit_test(test_upsample_by_hand),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
