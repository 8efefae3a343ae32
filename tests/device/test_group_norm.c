/* Norms of single samples: over rows, and over groups of channels and all positions. */
#include "device/trial.h"

#include <math.h>
#include <stdlib.h>

typedef struct norm_case {
    int64_t n, positions, c;
    dsc_group_norm_desc desc;
    int shift;
    double beta;
} norm_case;

/* Rows (layer norm, RMS norm): single ones, odd lengths, more than threads' blocks, longer than a run of sums. Groups:
 * of one channel, of all, narrow maps, maps of many periods. */
static const norm_case cases[] = {
    {1, 1, 1, {1e-2, 1, 0}, 1, 0},     {5, 1, 3, {1e-2, 1, 0}, 1, 1},    {70, 1, 33, {1e-2, 1, 0}, 0, 0},
    {333, 1, 128, {1e-2, 1, 0}, 1, 1}, {3, 1, 9001, {1e-2, 1, 0}, 1, 0}, {5, 1, 7, {1e-2, 1, 1}, 0, 1},
    {257, 1, 160, {1e-2, 1, 1}, 0, 0}, {2, 9, 4, {1e-2, 4, 0}, 1, 0},    {3, 12, 6, {1e-2, 3, 0}, 1, 1},
    {1, 700, 8, {1e-2, 1, 0}, 1, 0},   {2, 50, 48, {1e-2, 6, 1}, 0, 1},  {40, 25, 16, {1e-2, 2, 0}, 1, 0},
    {4, 1, 24, {1e-2, 4, 0}, 1, 1},    {37, 1, 264, {1e-2, 1, 0}, 1, 1}, {600, 1, 768, {1e-2, 1, 0}, 1, 1},
    {20, 1, 1024, {1e-2, 1, 0}, 1, 0}, {11, 1, 776, {1e-2, 1, 1}, 0, 1}};
enum { CASES = sizeof cases / sizeof cases[0] };

static dsc_status forward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const norm_case *c = params;
    return dsc_op_group_norm_forward(q, &c->desc, &t[0], &t[1], c->shift ? &t[2] : NULL, &t[3], &t[4], &t[5]);
}

static void add_forward(trial *tr, const norm_case *c) {
    trial_start(tr, "group_norm_forward", forward_run, c);
    tr->terms = 8 + log2((double)(c->positions * c->c));
    double *x = trial_in(tr, "x", SHAPE(c->n, c->positions, c->c));
    for (int64_t i = 0; i < c->n * c->positions * c->c; i++)
        x[i] = (double)(float)(x[i] + 0.5);
    trial_in(tr, "gamma", SHAPE(c->c));
    trial_param(tr);
    trial_in(tr, "shift", SHAPE(c->c));
    trial_param(tr);
    trial_out(tr, "mean", 1, SHAPE(c->n, c->desc.groups));
    trial_param(tr);
    trial_out(tr, "invstd", 4, SHAPE(c->n, c->desc.groups));
    trial_param(tr);
    trial_out(tr, "y", 8, SHAPE(c->n, c->positions, c->c));
}

static dsc_status backward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const norm_case *c = params;
    dsc_norm_grads grads = {.dx = &t[5], .dgamma = &t[6], .beta_x = c->beta, .beta_p = c->beta};
    if (c->shift)
        grads.dshift = &t[7];
    return dsc_op_group_norm_backward(q, &c->desc, &t[0], &t[1], &t[2], c->desc.rms ? NULL : &t[3], &t[4],
                                      &grads);
}

static void add_backward(trial *tr, const norm_case *c) {
    double rows = (double)(c->n * c->positions);
    trial_start(tr, "group_norm_backward", backward_run, c);
    tr->terms = 8 + log2((double)(c->positions * c->c));
    trial_in(tr, "x", SHAPE(c->n, c->positions, c->c));
    trial_in(tr, "dy", SHAPE(c->n, c->positions, c->c));
    trial_in(tr, "gamma", SHAPE(c->c));
    trial_param(tr);
    trial_in(tr, "mean", SHAPE(c->n, c->desc.groups));
    trial_param(tr);
    double *invstd = trial_in(tr, "invstd", SHAPE(c->n, c->desc.groups));
    trial_param(tr);
    for (int64_t i = 0; i < c->n * c->desc.groups; i++)
        invstd[i] = fabs(invstd[i]) + 0.5;
    trial_beta(tr, "dx", 6, c->beta, SHAPE(c->n, c->positions, c->c));
    trial_beta(tr, "dgamma", 4 * sqrt(rows) + rows / 16, c->beta, SHAPE(c->c));
    trial_param(tr);
    if (c->shift) {
        trial_beta(tr, "dshift", 2 * sqrt(rows) + rows / 16, c->beta, SHAPE(c->c));
        trial_param(tr);
    }
}

static void test_forward(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        trial tr;
        add_forward(&tr, &cases[i]);
        trial_check(&tr);
        add_forward(&tr, &cases[i]);
        trial_check_halves(&tr);
    }
}

static void test_backward(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        trial tr;
        add_backward(&tr, &cases[i]);
        trial_check(&tr);
        add_backward(&tr, &cases[i]);
        trial_check_halves(&tr);
    }
}

/* Row 1, 2, 4, 5 by hand: mean 3, variance 5/2; RMS: mean of squares 46/4. */
static void test_by_hand(void **state) {
    (void)state;
    static const double values[] = {1, 2, 4, 5}, ones[] = {1, 1, 1, 1};
    for (int r = 0; r < rig_count; r++)
        for (int rms = 0; rms < 2; rms++) {
            const dsc_group_norm_desc desc = {0, 1, rms};
            place x = place_of(&rigs[r], DSC_F32, SHAPE(1, 4), values),
                  y = place_make(&rigs[r], DSC_F32, SHAPE(1, 4));
            place gamma = place_of(&rigs[r], DSC_F32, SHAPE(4), ones);
            double want[4], limit[4];
            for (int i = 0; i < 4; i++) {
                want[i] = rms ? values[i] / sqrt(11.5) : (values[i] - 3) / sqrt(2.5);
                limit[i] = 4e-7;
            }
            assert_ok(dsc_op_group_norm_forward(rigs[r].q, &desc, &x.t, &gamma.t, NULL, NULL, NULL, &y.t));
            place_expect_near(&rigs[r], &y, want, limit, "a row by hand");
            place_free(&x);
            place_free(&y);
            place_free(&gamma);
        }
}

/* Means of 1000 times the deviation do not spoil the result. */
static void test_large_mean(void **state) {
    (void)state;
    enum { C = 64 };
    for (int r = 0; r < rig_count; r++)
        for (int64_t groups = 1; groups <= 4; groups += 3) {
            const dsc_group_norm_desc desc = {1e-12, groups, 0};
            double values[4 * C], ones[C], want[4 * C], limit[4 * C];
            for (int i = 0; i < 4 * C; i++)
                values[i] = 1000 + (i % 2 ? 1 : -1), want[i] = i % 2 ? 1 : -1, limit[i] = 1e-6;
            for (int i = 0; i < C; i++)
                ones[i] = 1;
            place x = place_of(&rigs[r], DSC_F32, SHAPE(2, 2, C), values);
            place y = place_make(&rigs[r], DSC_F32, SHAPE(2, 2, C)),
                  gamma = place_of(&rigs[r], DSC_F32, SHAPE(C), ones);
            assert_ok(dsc_op_group_norm_forward(rigs[r].q, &desc, &x.t, &gamma.t, NULL, NULL, NULL, &y.t));
            place_expect_near(&rigs[r], &y, want, limit, "a large mean");
            place_free(&x);
            place_free(&y);
            place_free(&gamma);
        }
}

/* With any number of threads gradients are the same bits: pieces are cut by the shape alone. */
static void test_threads(void **state) {
    (void)state;
    enum { N = 300, C = 130 };
    static double first[2][C], now[2][C];
    int seen = 0;
    for (int r = 0; r < rig_count; r++) {
        if (strncmp(rigs[r].label, "cpu, ", 5) != 0) /* the others have other instructions */
            continue;
        for (int kind = 0; kind < 2; kind++) { /* rows, then groups */
            const dsc_group_norm_desc desc = {1e-5, kind ? 5 : 1, 0};
            int64_t n = kind ? 3 : N, p = kind ? N / 3 : 1;
            double *values = test_array(N * C, sizeof *values);
            random_values(5, N * C, values);
            place x = place_of(&rigs[r], DSC_F32, SHAPE(n, p, C), values);
            place dy = place_of(&rigs[r], DSC_F32, SHAPE(n, p, C), values);
            place gamma = place_of(&rigs[r], DSC_F32, SHAPE(C), values),
                  dgamma = place_make(&rigs[r], DSC_F32, SHAPE(C));
            place mean = place_make(&rigs[r], DSC_F32, SHAPE(n, desc.groups));
            place invstd = place_make(&rigs[r], DSC_F32, SHAPE(n, desc.groups));
            place y = place_make(&rigs[r], DSC_F32, SHAPE(n, p, C));
            const dsc_norm_grads grads = {.dgamma = &dgamma.t};
            assert_ok(
                dsc_op_group_norm_forward(rigs[r].q, &desc, &x.t, &gamma.t, NULL, &mean.t, &invstd.t, &y.t));
            assert_ok(dsc_op_group_norm_backward(rigs[r].q, &desc, &x.t, &dy.t, &gamma.t, &mean.t, &invstd.t,
                                                 &grads));
            place_read(&rigs[r], &dgamma, seen ? now[kind] : first[kind]);
            place *all[] = {&x, &dy, &gamma, &dgamma, &mean, &invstd, &y};
            for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
                place_free(all[i]);
            free(values);
        }
        if (seen++)
            assert_memory_equal(first, now, sizeof now);
    }
}

static void test_refusals(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        dsc_queue *q = rigs[r].q;
        place x = place_make(&rigs[r], DSC_F32, SHAPE(2, 6)), y = place_make(&rigs[r], DSC_F32, SHAPE(2, 6));
        place gamma = place_make(&rigs[r], DSC_F32, SHAPE(6)), few = place_make(&rigs[r], DSC_F32, SHAPE(5));
        const dsc_group_norm_desc odd = {1e-5, 4, 0}, negative = {-1, 1, 0}, good = {1e-5, 1, 0};
        const dsc_norm_grads none = {0};
        assert_fails(DSC_E_INVALID, "group_norm_forward: 4 groups of 6 channels",
                     dsc_op_group_norm_forward(q, &odd, &x.t, &gamma.t, NULL, NULL, NULL, &y.t));
        assert_fails(DSC_E_INVALID, "eps is -1",
                     dsc_op_group_norm_forward(q, &negative, &x.t, &gamma.t, NULL, NULL, NULL, &y.t));
        assert_fails(DSC_E_INVALID, "gamma is [5]",
                     dsc_op_group_norm_forward(q, &good, &x.t, &few.t, NULL, NULL, NULL, &y.t));
        assert_fails(DSC_E_INVALID, "x has 1 dimensions",
                     dsc_op_group_norm_forward(q, &good, &few.t, &few.t, NULL, NULL, NULL, &few.t));
        assert_fails(DSC_E_INVALID, "group_norm_backward: mean is missing",
                     dsc_op_group_norm_backward(q, &good, &x.t, &y.t, &gamma.t, NULL, &few.t, &none));
        place *all[] = {&x, &y, &gamma, &few};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),    cmocka_unit_test(test_backward), cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_large_mean), cmocka_unit_test(test_threads),  cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
