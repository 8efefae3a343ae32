/* Batch norm, with fused ReLU and residual. */
#include "device/table.h"
#include "device/trial.h"

#include <math.h>
#include <stdlib.h>

typedef struct norm_case {
    int64_t rows, channels;
    dsc_norm_desc desc;
    int residual;
    double beta_x, beta_residual, beta_p;
    double offset, spread; /* x is offset + spread * uniform(-1, 1) */
} norm_case;

static const norm_case cases[] = {
    {1, 1, {1e-2, 0.1, 0}, 0, 0, 0, 0, 0, 1},        {2, 3, {1e-2, 0.1, 0}, 0, 0, 0, 0, 0, 1},
    {7, 5, {1e-5, 0.1, 1}, 0, 1, 0, 0, 0, 1},        {33, 16, {1e-5, 0.1, 0}, 1, 0, 1, 1, 0, 1},
    {40, 17, {1e-5, 0.3, 1}, 1, 1, 0, 1, 0.5, 2},    {64, 64, {1e-5, 0.1, 1}, 1, 0, 1, 0, 0, 1},
    {5, 130, {1e-5, 1, 1}, 1, 1, 1, 1, -0.5, 1},     {2000, 24, {1e-5, 0.1, 1}, 1, 0, 0, 0, 0, 1},
    {4099, 10, {1e-5, 0, 1}, 0, 1, 0, 1, 0, 1},      {50, 8, {1e-5, 0.1, 0}, 0, 0, 0, 0, 1000, 0.5},
    {3000, 16, {1e-5, 0.1, 1}, 1, 0, 0, 0, -500, 1}, {100, 4, {1e-5, 0.1, 0}, 0, 0, 0, 0, 100, 0},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static void fill_x(const norm_case *c, double *x) {
    for (int64_t i = 0; i < c->rows * c->channels; i++)
        x[i] = (double)(float)(c->offset + c->spread * x[i]);
}

/* Statistics of x in double: 1/std, and the largest |xhat| and |mean|/std. The last says how many digits the
 * subtraction of the mean costs. */
typedef struct norm_sizes {
    double invstd, xhat, cancellation;
} norm_sizes;

static norm_sizes sizes_of(const norm_case *c, const double *x, double *mean, double *invstd) {
    norm_sizes s = {0, 0, 0};
    for (int64_t channel = 0; channel < c->channels; channel++) {
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < c->rows; i++)
            sum += x[i * c->channels + channel];
        double m = sum / (double)c->rows;
        for (int64_t i = 0; i < c->rows; i++)
            squares += pow(x[i * c->channels + channel] - m, 2);
        double scale = 1 / sqrt(squares / (double)c->rows + c->desc.eps);
        for (int64_t i = 0; i < c->rows; i++)
            s.xhat = fmax(s.xhat, fabs(x[i * c->channels + channel] - m) * scale);
        s.invstd = fmax(s.invstd, scale);
        s.cancellation = fmax(s.cancellation, fabs(m) * scale);
        mean[channel] = (double)(float)m;
        invstd[channel] = (double)(float)scale;
    }
    return s;
}

/* Rounding errors of a long sum are as good as random: they grow with the root of the number of terms. */
static double terms_of(const norm_case *c) {
    return 4 * sqrt((double)c->rows);
}

static dsc_status train_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const norm_case *c = params;
    dsc_norm_params p = {&t[0], &t[1], &t[2], &t[3], NULL};
    return dsc_op_norm_forward_train(q, &c->desc, &t[4], c->residual ? &t[8] : NULL, &p, &t[5], &t[6], &t[7]);
}

static dsc_status eval_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const norm_case *c = params;
    dsc_norm_params p = {&t[0], &t[1], &t[2], &t[3], NULL};
    return dsc_op_norm_forward_eval(q, &c->desc, &t[4], c->residual ? &t[6] : NULL, &p, &t[5]);
}

static void test_forward_train(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        const norm_case *c = &cases[i];
        char name[60];
        snprintf(name, sizeof name, "norm_forward_train case %d", i);
        double *mean = test_array(c->channels, sizeof *mean), *invstd = test_array(c->channels, sizeof *mean);
        double *x = test_array(c->rows * c->channels, sizeof *x);
        random_values(5, c->rows * c->channels, x); /* the trial's fifth operand */
        fill_x(c, x);
        norm_sizes s = sizes_of(c, x, mean, invstd);
        double y_scale = s.xhat + s.cancellation + 2, size = fabs(c->offset) + c->spread;
        trial tr;
        trial_start(&tr, name, train_run, c);
        tr.terms = terms_of(c);
        trial_in(&tr, "gamma", SHAPE(c->channels));
        trial_in(&tr, "shift", SHAPE(c->channels));
        trial_inout(&tr, "running_mean", 1 + size, SHAPE(c->channels));
        trial_inout(&tr, "running_var", 1 + c->spread * c->spread, SHAPE(c->channels));
        fill_x(c, trial_in(&tr, "x", SHAPE(1, c->rows, 1, c->channels)));
        trial_out(&tr, "mean", size, SHAPE(c->channels));
        trial_out(&tr, "invstd", s.invstd, SHAPE(c->channels));
        trial_out(&tr, "y", y_scale, SHAPE(1, c->rows, 1, c->channels));
        if (c->residual)
            trial_in(&tr, "residual", SHAPE(1, c->rows, 1, c->channels));
        trial_check(&tr);
        free(mean);
        free(invstd);
        free(x);
    }
}

static void test_forward_eval(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        const norm_case *c = &cases[i];
        char name[60];
        snprintf(name, sizeof name, "norm_forward_eval case %d", i);
        trial tr;
        trial_start(&tr, name, eval_run, c);
        trial_in(&tr, "gamma", SHAPE(c->channels));
        trial_in(&tr, "shift", SHAPE(c->channels));
        double *mean = trial_in(&tr, "running_mean", SHAPE(c->channels));
        double *var = trial_in(&tr, "running_var", SHAPE(c->channels));
        for (int64_t j = 0; j < c->channels; j++) {
            mean[j] = (double)(float)(c->offset + mean[j]);
            var[j] = (double)(float)(0.25 + fabs(var[j])); /* 1/std <= 2 */
        }
        fill_x(c, trial_in(&tr, "x", SHAPE(c->rows, c->channels)));
        double size = fabs(c->offset) + c->spread + 1;
        trial_out(&tr, "y", 4 * size + 2, SHAPE(c->rows, c->channels));
        if (c->residual)
            trial_in(&tr, "residual", SHAPE(c->rows, c->channels));
        trial_check(&tr);
    }
}

static dsc_status backward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const norm_case *c = params;
    dsc_norm_grads grads = {
        .dx = &t[5], .dgamma = &t[6], .dshift = &t[7], .beta_x = c->beta_x, .beta_p = c->beta_p};
    int next = 8;
    if (c->residual) {
        grads.dresidual = &t[next++];
        grads.beta_residual = c->beta_residual;
    }
    const dsc_tensor *y = c->desc.relu ? &t[next] : NULL;
    return dsc_op_norm_backward(q, &c->desc, &t[0], y, &t[1], &t[2], &t[3], &t[4], &grads);
}

/* The same with dx in the memory of dy. */
static dsc_status backward_in_place(dsc_queue *q, dsc_tensor *t, const void *params) {
    dsc_tensor dy = t[1];
    dsc_status status = dsc_op_convert(q, &dy, &t[5]);
    if (status != DSC_OK)
        return status;
    t[1] = t[5];
    status = backward_run(q, t, params);
    t[1] = dy;
    return status;
}

static void check_backward(const char *what, trial_function run) {
    for (int i = 0; i < CASES; i++) {
        const norm_case *c = &cases[i];
        char name[60];
        if (run == backward_in_place && c->beta_x != 0)
            continue;
        snprintf(name, sizeof name, "%s case %d", what, i);
        trial tr;
        trial_start(&tr, name, run, c);
        tr.terms = terms_of(c);
        double *x = trial_in(&tr, "x", SHAPE(c->rows, c->channels));
        fill_x(c, x);
        trial_in(&tr, "dy", SHAPE(c->rows, c->channels));
        trial_in(&tr, "gamma", SHAPE(c->channels));
        double *mean = trial_in(&tr, "mean", SHAPE(c->channels));
        double *invstd = trial_in(&tr, "invstd", SHAPE(c->channels));
        norm_sizes s = sizes_of(c, x, mean, invstd);
        double xhat = s.xhat + s.cancellation, rows = (double)c->rows;
        trial_beta(&tr, "dx", s.invstd * (2 + xhat * xhat) + 1, c->beta_x, SHAPE(c->rows, c->channels));
        trial_beta(&tr, "dgamma", rows * xhat + 1, c->beta_p, SHAPE(c->channels));
        trial_beta(&tr, "dshift", rows + 1, c->beta_p, SHAPE(c->channels));
        if (c->residual)
            trial_beta(&tr, "dresidual", 2, c->beta_residual, SHAPE(c->rows, c->channels));
        if (c->desc.relu)
            trial_in(&tr, "y", SHAPE(c->rows, c->channels))[0] = 0; /* only its sign counts */
        trial_check(&tr);
    }
}

static void test_backward(void **state) {
    (void)state;
    check_backward("norm_backward", backward_run);
    check_backward("norm_backward in place", backward_in_place);
}

/* Gradients of a norm with ReLU, with the mask read from y (pass 0) and, where the backend can, computed from x. */
static void check_applied(const rig *g, dsc_dtype type, int64_t rows, int64_t c) {
    static const dsc_norm_desc desc = {1e-5, 0.1, 1};
    dsc_dtype wide = type == DSC_F64 ? DSC_F64 : DSC_F32;
    double *values = test_array(rows * c, sizeof *values), *want = test_array(rows * c, sizeof *want);
    random_values(1, rows * c, values);
    for (int64_t i = 0; i < rows * c; i++)
        values[i] += (double)(i % c) * 50; /* means beyond the precision of halves */
    place x = place_of(g, type, SHAPE(rows, c), values), y = place_make(g, type, SHAPE(rows, c));
    random_values(2, rows * c, values);
    place dy = place_of(g, type, SHAPE(rows, c), values), dx = place_make(g, type, SHAPE(rows, c));
    random_values(3, c, values);
    for (int64_t i = 0; i < c; i += 3)
        values[i] *= 1e-7; /* y underflows in fp16 */
    place gamma = place_of(g, wide, SHAPE(c), values), shift = place_make(g, wide, SHAPE(c));
    place sums = place_make(g, wide, SHAPE(2, c)), applied = place_make(g, wide, SHAPE(2, c));
    place mean = place_make(g, wide, SHAPE(c)), invstd = place_make(g, wide, SHAPE(c));
    place_fill(g, &shift, 0);
    place_fill(g, &sums, 0);
    dsc_tensor dgamma = dsc_tensor_view(g->device, sums.t.data, wide, 1, &c), dshift = dgamma;
    dshift.data = (char *)sums.t.data + c * (int64_t)dsc_dtype_size(wide);
    dsc_norm_params p = {&gamma.t, &shift.t, &dgamma, &dshift, &applied.t};
    assert_ok(dsc_op_norm_forward_train(g->q, &desc, &x.t, NULL, &p, &mean.t, &invstd.t, &y.t));
    assert_fails(DSC_E_INVALID, "applied is computed without the residual",
                 dsc_op_norm_forward_train(g->q, &desc, &x.t, &dy.t, &p, &mean.t, &invstd.t, &y.t));
    for (int pass = 0; pass < 2; pass++) {
        dsc_norm_grads grads = {
            .dx = &dx.t, .dgamma = &dgamma, .dshift = &dshift, .applied = pass ? &applied.t : NULL};
        assert_ok(dsc_op_norm_backward(g->q, &desc, &x.t, &y.t, &dy.t, &gamma.t, &mean.t, &invstd.t, &grads));
        if (pass)
            place_expect(g, &dx, want, "dx with the mask computed");
        place_read(g, &dx, want);
    }
    place *all[] = {&x, &y, &dy, &dx, &gamma, &shift, &sums, &applied, &mean, &invstd};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        place_free(all[i]);
    free(values);
    free(want);
}

static void test_applied(void **state) {
    (void)state;
    static const dsc_dtype types[] = {DSC_F32, DSC_F64, DSC_BF16, DSC_F16};
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < (dsc_device_is_host(rigs[r].device) ? 2 : 4); type++) {
            check_applied(&rigs[r], types[type], 700, 24);
            check_applied(&rigs[r], types[type], 37, 5);
        }
}

/* Values 1 and 3: mean 2, biased variance 1, unbiased 2. With eps 0 xhat is -1 and 1. */
static void test_by_hand(void **state) {
    (void)state;
    static const dsc_norm_desc desc = {0, 0.5, 0}, rectified = {0, 0.5, 1};
    static const dsc_dtype types[] = {DSC_F32, DSC_F64};
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < 2; type++) {
            const rig *g = &rigs[r];
            dsc_dtype t = types[type];
            place x = place_of(g, t, SHAPE(2, 1), (const double[]){1, 3});
            place residual = place_of(g, t, SHAPE(2, 1), (const double[]){-5, 1});
            place gamma = place_of(g, t, SHAPE(1), (const double[]){2});
            place shift = place_of(g, t, SHAPE(1), (const double[]){10});
            place rm = place_of(g, t, SHAPE(1), (const double[]){4}),
                  rv = place_of(g, t, SHAPE(1), (const double[]){4});
            place mean = place_make(g, t, SHAPE(1)), invstd = place_make(g, t, SHAPE(1));
            place y = place_make(g, t, SHAPE(2, 1)), dx = place_make(g, t, SHAPE(2, 1));
            place dy = place_of(g, t, SHAPE(2, 1), (const double[]){3, 5}),
                  dr = place_make(g, t, SHAPE(2, 1));
            place dgamma = place_make(g, t, SHAPE(1)), dshift = place_make(g, t, SHAPE(1));
            dsc_norm_params p = {&gamma.t, &shift.t, &rm.t, &rv.t, NULL};
            assert_ok(dsc_op_norm_forward_train(g->q, &desc, &x.t, NULL, &p, &mean.t, &invstd.t, &y.t));
            place_expect(g, &y, (const double[]){8, 12}, "norm y");
            place_expect(g, &mean, (const double[]){2}, "norm mean");
            place_expect(g, &invstd, (const double[]){1}, "norm invstd");
            place_expect(g, &rm, (const double[]){3}, "norm running_mean");
            place_expect(g, &rv, (const double[]){3}, "norm running_var");
            place_write(g, &rm, (const double[]){2});
            place_write(g, &rv, (const double[]){0.25});
            place_write(g, &shift, (const double[]){1});
            assert_ok(dsc_op_norm_forward_eval(g->q, &rectified, &x.t, &residual.t, &p, &y.t));
            place_expect(g, &y, (const double[]){0, 6}, "norm y in evaluation"); /* -4+1-5, 4+1+1 */
            dsc_norm_grads grads = {.dx = &dx.t, .dgamma = &dgamma.t, .dshift = &dshift.t};
            assert_ok(
                dsc_op_norm_backward(g->q, &desc, &x.t, NULL, &dy.t, &gamma.t, &mean.t, &invstd.t, &grads));
            place_expect(g, &dx, (const double[]){0, 0}, "norm dx"); /* two points have no freedom left */
            place_expect(g, &dgamma, (const double[]){2}, "norm dgamma");
            place_expect(g, &dshift, (const double[]){8}, "norm dshift");
            grads.dresidual = &dr.t;
            assert_ok(dsc_op_norm_backward(g->q, &rectified, &x.t, &y.t, &dy.t, &gamma.t, &mean.t, &invstd.t,
                                           &grads));
            place_expect(g, &dr, (const double[]){0, 5}, "norm dresidual");
            place_expect(g, &dgamma, (const double[]){5}, "norm dgamma, masked");
            place *all[] = {&x,      &residual, &gamma, &shift, &rm, &rv,     &mean,
                            &invstd, &y,        &dx,    &dy,    &dr, &dgamma, &dshift};
            for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
                place_free(all[i]);
        }
}

/* No rows: forward leaves everything alone, backward's sums are 0. One row: the biased variance. */
static void test_few_rows(void **state) {
    (void)state;
    static const dsc_norm_desc desc = {1, 0.5, 0};
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place none = place_make(g, DSC_F32, SHAPE(0, 1)), none_too = place_make(g, DSC_F32, SHAPE(0, 1));
        place dx = place_make(g, DSC_F32, SHAPE(0, 1)),
              gamma = place_of(g, DSC_F32, SHAPE(1), (const double[]){1});
        place rm = place_of(g, DSC_F32, SHAPE(1), (const double[]){3}),
              rv = place_of(g, DSC_F32, SHAPE(1), (const double[]){3});
        place mean = place_of(g, DSC_F32, SHAPE(1), (const double[]){7}),
              sum = place_make(g, DSC_F32, SHAPE(1));
        place one = place_of(g, DSC_F32, SHAPE(1, 1), (const double[]){5}),
              y = place_make(g, DSC_F32, SHAPE(1, 1));
        dsc_norm_params p = {&gamma.t, &gamma.t, &rm.t, &rv.t, NULL};
        assert_ok(dsc_op_norm_forward_train(g->q, &desc, &none.t, NULL, &p, &mean.t, &sum.t, &none_too.t));
        place_expect(g, &rm, (const double[]){3}, "running_mean without rows");
        place_fill(g, &sum, NAN);
        dsc_norm_grads grads = {.dx = &dx.t, .dgamma = &sum.t, .dshift = &sum.t};
        assert_ok(dsc_op_norm_backward(g->q, &desc, &none.t, NULL, &none_too.t, &gamma.t, &mean.t, &mean.t,
                                       &grads));
        place_expect(g, &sum, (const double[]){0}, "dgamma without rows");
        assert_ok(dsc_op_norm_forward_train(g->q, &desc, &one.t, NULL, &p, &mean.t, &sum.t, &y.t));
        place_expect(g, &rm, (const double[]){4}, "running_mean of one row");
        place_expect(g, &rv, (const double[]){1.5}, "running_var of one row");
        place_expect(g, &y, (const double[]){1}, "y of one row");
        place *all[] = {&none, &none_too, &dx, &gamma, &rm, &rv, &mean, &sum, &one, &y};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

static void test_refusals(void **state) {
    (void)state;
    static const dsc_norm_desc desc = {1e-5, 0.1, 1}, bad = {1e-5, 2, 0};
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place x = place_make(g, DSC_F32, SHAPE(4, 3)), y = place_make(g, DSC_F32, SHAPE(4, 3));
        place dx = place_make(g, DSC_F32, SHAPE(4, 3)), c = place_make(g, DSC_F32, SHAPE(3));
        place four = place_make(g, DSC_F32, SHAPE(4));
        dsc_norm_params p = {&c.t, &c.t, &c.t, &c.t, NULL}, wrong = {&c.t, &four.t, &c.t, &c.t, NULL};
        assert_fails(DSC_E_INVALID, "norm_forward_train: shift is [4]; [3] is expected",
                     dsc_op_norm_forward_train(g->q, &desc, &x.t, NULL, &wrong, &c.t, &c.t, &y.t));
        assert_fails(DSC_E_INVALID, "norm_forward_train: y shares memory with x",
                     dsc_op_norm_forward_train(g->q, &desc, &x.t, NULL, &p, &c.t, &c.t, &x.t));
        assert_fails(DSC_E_INVALID, "the momentum is 2",
                     dsc_op_norm_forward_train(g->q, &bad, &x.t, NULL, &p, &c.t, &c.t, &y.t));
        assert_fails(DSC_E_INVALID, "norm_forward_eval: residual is [4]",
                     dsc_op_norm_forward_eval(g->q, &desc, &x.t, &four.t, &p, &y.t));
        dsc_norm_grads grads = {.dx = &dx.t, .dgamma = &c.t, .dshift = &c.t};
        assert_fails(DSC_E_INVALID, "norm_backward: y is missing",
                     dsc_op_norm_backward(g->q, &desc, &x.t, NULL, &y.t, &c.t, &c.t, &c.t, &grads));
        grads.beta_p = 0.5;
        assert_fails(DSC_E_INVALID, "norm_backward: beta_p is 0.5",
                     dsc_op_norm_backward(g->q, &desc, &x.t, &y.t, &y.t, &c.t, &c.t, &c.t, &grads));
        grads.dx = NULL;
        assert_fails(DSC_E_INVALID, "norm_backward: dx is missing",
                     dsc_op_norm_backward(g->q, &desc, &x.t, &y.t, &y.t, &c.t, &c.t, &c.t, &grads));
        place *all[] = {&x, &y, &dx, &c, &four};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

/* ---- Fisher matrices ---- */

typedef struct fisher_case {
    int64_t n, positions, c;
    int masked, normalised;
    /* 0: statistics of each channel; g: of g groups of channels in a position (by_sample 0) or a sample;
     * without_mean: of an RMS norm. */
    int64_t groups;
    int by_sample, without_mean;
} fisher_case;

/* Where the statistic of an element is. */
static int64_t statistic_at(const fisher_case *k, int64_t i, int64_t p, int64_t ch) {
    if (k->groups == 0)
        return ch;
    int64_t group = ch / (k->c / k->groups);
    return (k->by_sample ? i : i * k->positions + p) * k->groups + group;
}

static int64_t statistic_count(const fisher_case *k) {
    return k->groups == 0 ? k->c : (k->by_sample ? k->n : k->n * k->positions) * k->groups;
}

/* In double; x, y, dy [n, positions, c]. limit: rounding of the sums. */
static void fisher_by_hand(const fisher_case *k, const double *const in[5], double eps, double *want,
                           double *limit) {
    for (int64_t i = 0; i < k->n; i++)
        for (int64_t ch = 0; ch < k->c; ch++) {
            double u[2] = {0, 0}, size[2] = {0, 0};
            for (int64_t p = 0; p < k->positions; p++) {
                int64_t at = (i * k->positions + p) * k->c + ch;
                int64_t of = statistic_at(k, i, p, ch);
                double mean = k->without_mean ? 0 : in[3][of];
                double xhat = k->normalised ? in[0][at] : (in[0][at] - mean) * in[4][of];
                double g = k->masked && !(in[1][at] > 0) ? 0 : in[2][at];
                u[0] += g * xhat;
                u[1] += g;
                size[0] += fabs(g) * (fabs(in[0][at]) + 1) * 2;
                size[1] += fabs(g);
            }
            double terms = (double)(k->positions + 8) * eps;
            const double products[3] = {u[0] * u[0], u[0] * u[1], u[1] * u[1]};
            const double sizes[3] = {size[0] * size[0], size[0] * size[1], size[1] * size[1]};
            for (int plane = 0; plane < 3; plane++) {
                want[(i * 3 + plane) * k->c + ch] = products[plane];
                limit[(i * 3 + plane) * k->c + ch] = 4 * terms * sizes[plane];
            }
        }
}

static void check_fisher(const rig *r, dsc_dtype type, const fisher_case *k) {
    int64_t count = k->n * k->positions * k->c;
    double *in[5], *want = test_array(k->n * 3 * k->c, sizeof *want);
    double *limit = test_array(k->n * 3 * k->c, sizeof *limit);
    dsc_dtype param = type == DSC_F64 ? DSC_F64 : DSC_F32;
    for (int t = 0; t < 5; t++) {
        int64_t size = t < 3 ? count : statistic_count(k);
        in[t] = test_array(size, sizeof(double));
        random_values((uint64_t)(10 * k->c + t), size, in[t]);
        for (int64_t i = 0; t < 3 && i < count; i++)
            in[t][i] = round(32 * in[t][i]) / 32; /* exact in half types */
    }
    const int64_t groups = k->groups > 0 ? k->groups : 1;
    const int64_t dim[2] = {statistic_count(k) / groups, groups};
    int ndim = k->groups > 0 ? 2 : 1;
    place maps[3], mean = place_of(r, param, ndim, dim, in[3]), invstd = place_of(r, param, ndim, dim, in[4]);
    for (int t = 0; t < 3; t++)
        maps[t] = place_of(r, type, SHAPE(k->n, k->positions, k->c), in[t]);
    place out = place_make(r, param, SHAPE(k->n, 3, k->c));
    fisher_by_hand(k, (const double *const *)in, dtype_eps(param), want, limit);
    assert_ok(dsc_op_norm_fisher(r->q, &maps[0].t, k->masked ? &maps[1].t : NULL, &maps[2].t,
                                 k->normalised || k->without_mean ? NULL : &mean.t,
                                 k->normalised ? NULL : &invstd.t, &out.t));
    place_expect_near(r, &out, want, limit, "norm_fisher: out");
    place *all[] = {&maps[0], &maps[1], &maps[2], &mean, &invstd, &out};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        place_free(all[i]);
    for (int t = 0; t < 5; t++)
        free(in[t]);
    free(want);
    free(limit);
}

static void test_fisher(void **state) {
    (void)state;
    static const dsc_dtype types[] = {DSC_F32, DSC_F64, DSC_BF16, DSC_F16};
    static const fisher_case list[] = {
        {1, 1, 1, 0, 0, 0, 0, 0},    {3, 5, 7, 1, 0, 0, 0, 0},   {4, 64, 16, 0, 1, 0, 0, 0},
        {2, 100, 33, 1, 1, 0, 0, 0}, {5, 9, 130, 1, 0, 0, 0, 0}, {64, 4, 24, 0, 0, 0, 0, 0},
        {3, 9, 33, 0, 0, 1, 0, 0},   {2, 17, 24, 0, 0, 3, 0, 0}, {4, 5, 70, 0, 0, 1, 0, 1},
        {3, 20, 36, 0, 0, 4, 1, 0},  {2, 1, 6, 1, 0, 2, 1, 1},
    };
    for (int r = 0; r < rig_count; r++)
        for (int t = 0; t < (rigs[r].device->has_halves ? 4 : 2); t++)
            for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
                check_fisher(&rigs[r], types[t], &list[i]);
}

/* p = (F + damping I)^-1 d; F singular in the last channel. */
static void check_solve(const rig *r, dsc_dtype type, int64_t c, int full) {
    const double damping = 0.125;
    double *f = test_array(3 * c, sizeof *f), *d = test_array(2 * c, sizeof *d);
    double *want = test_array(2 * c, sizeof *want), *limit = test_array(2 * c, sizeof *limit);
    random_values(5, 3 * c, f);
    random_values(6, 2 * c, d);
    for (int64_t ch = 0; ch < c; ch++) {
        f[ch] = fabs(f[ch]) + 1;
        f[2 * c + ch] = fabs(f[2 * c + ch]) + 1;
        if (ch == c - 1)
            f[ch] = f[c + ch] = f[2 * c + ch] = 1;
        double a = f[ch] + damping, b = full ? f[c + ch] : 0, e = f[2 * c + ch] + damping;
        want[ch] = (e * d[ch] - b * d[c + ch]) / (a * e - b * b);
        want[c + ch] = (a * d[c + ch] - b * d[ch]) / (a * e - b * b);
        limit[ch] = limit[c + ch] = 64 * dtype_eps(type) * (fabs(want[ch]) + fabs(want[c + ch]) + 1);
    }
    place value = place_of(r, DSC_F64, SHAPE(1), &damping), matrix = place_of(r, type, SHAPE(3, c), f);
    place gamma = place_of(r, type, SHAPE(c), d), shift = place_of(r, type, SHAPE(c), d + c);
    place p = place_make(r, type, SHAPE(2, c));
    const dsc_norm_solve_item item = {matrix.t, gamma.t, shift.t, p.t};
    assert_ok(dsc_op_norm_solve_batch(r->q, &value.t, full, &item, 1));
    place_expect_near(r, &p, want, limit, "norm_solve_batch: p");
    place *all[] = {&value, &matrix, &gamma, &shift, &p};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        place_free(all[i]);
    free(f);
    free(d);
    free(want);
    free(limit);
}

static void test_solve(void **state) {
    (void)state;
    static const int64_t channels[] = {1, 3, 64, 1000};
    for (int r = 0; r < rig_count; r++)
        for (int i = 0; i < 4; i++)
            for (int full = 0; full < 2; full++) {
                check_solve(&rigs[r], DSC_F32, channels[i], full);
                check_solve(&rigs[r], DSC_F64, channels[i], full);
            }
}

static void test_fisher_refusals(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        place x = place_make(&rigs[r], DSC_F32, SHAPE(2, 3, 4)), c = place_make(&rigs[r], DSC_F32, SHAPE(4));
        place out = place_make(&rigs[r], DSC_F32, SHAPE(2, 3, 4)),
              dy = place_make(&rigs[r], DSC_F32, SHAPE(2, 3, 4));
        place few = place_make(&rigs[r], DSC_F32, SHAPE(2, 2, 4)),
              value = place_make(&rigs[r], DSC_F64, SHAPE(1));
        assert_fails(DSC_E_INVALID, "norm_fisher: invstd is missing",
                     dsc_op_norm_fisher(rigs[r].q, &x.t, NULL, &dy.t, &c.t, NULL, &out.t));
        const int64_t wrong[][2] = {{3, 1}, {6, 3}, {2, 0}};
        for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
            place rows = place_make(&rigs[r], DSC_F32, 2, wrong[i]);
            assert_fails(DSC_E_INVALID, "the first must be the 2 samples or the 6 positions of x",
                         dsc_op_norm_fisher(rigs[r].q, &x.t, NULL, &dy.t, NULL, &rows.t, &out.t));
            place_free(&rows);
        }
        assert_fails(DSC_E_INVALID, "norm_fisher: dy is [2,2,4]",
                     dsc_op_norm_fisher(rigs[r].q, &x.t, NULL, &few.t, NULL, NULL, &out.t));
        assert_fails(DSC_E_INVALID, "norm_fisher: out is [2,2,4]",
                     dsc_op_norm_fisher(rigs[r].q, &x.t, NULL, &dy.t, NULL, NULL, &few.t));
        const dsc_norm_solve_item item = {x.t, c.t, c.t, few.t};
        assert_fails(DSC_E_INVALID, "item 0: norm_solve_batch: f is [2,3,4]",
                     dsc_op_norm_solve_batch(rigs[r].q, &value.t, 1, &item, 1));
        place *all[] = {&x, &c, &out, &dy, &few, &value};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward_train), cmocka_unit_test(test_forward_eval),
        cmocka_unit_test(test_backward),      cmocka_unit_test(test_applied),
        cmocka_unit_test(test_by_hand),       cmocka_unit_test(test_few_rows),
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_fisher),
        cmocka_unit_test(test_solve),         cmocka_unit_test(test_fisher_refusals),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
