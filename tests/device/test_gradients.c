/* Gradients against central differences, in double on ref.
 *
 * The objective is f = sum of weights * outputs. D(h) = (f(v + h) - f(v - h)) / 2h has an error of c h^2 +
 * ..., so D(h/2) differs from the derivative by a third of its distance to D(h), away from kinks; on top of
 * that come rounding errors of f, about eps |f| / h each. An analytic gradient g is right when |g - D(h/2)|
 * <= |D(h) - D(h/2)| + 64 eps F / h,   F: the sum of absolute terms of f. D(h) and D(h/2) must agree well
 * enough for that to mean something. */
#include "device/rig.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

typedef double (*objective)(const void *context);

static const double step = 0x1p-12;

/* A vector that the objective depends on, and its analytic gradient. */
static void check_gradient(const char *what, objective f, const void *context, double size, double *values,
                           const double *gradient, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        double value = values[i], d[2];
        for (int halving = 0; halving < 2; halving++) {
            double h = halving ? step / 2 : step;
            values[i] = value + h;
            double above = f(context);
            values[i] = value - h;
            d[halving] = (above - f(context)) / (2 * h);
        }
        values[i] = value;
        double noise = 64 * DBL_EPSILON * size / step;
        if (!(fabs(d[0] - d[1]) <= 1e-4 * (1 + fabs(gradient[i])) + noise))
            fail_msg("%s[%lld]: D(h) = %.12g, D(h/2) = %.12g: a kink", what, (long long)i, d[0], d[1]);
        if (!(fabs(gradient[i] - d[1]) <= fabs(d[0] - d[1]) + noise))
            fail_msg("%s[%lld]: gradient %.12g, difference %.12g", what, (long long)i, gradient[i], d[1]);
    }
}

static double weighted_sum(const double *weights, const double *values, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += weights[i] * values[i];
    return sum;
}

static double sum_of_magnitudes(const double *a, const double *b, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += fabs(a[i] * b[i]);
    return sum;
}

static double *random_array(uint64_t stream, int64_t count) {
    double *values = test_array(count, sizeof *values);
    random_values(stream, count, values);
    return values;
}

/* ---- convolution ---- */

typedef struct conv_problem {
    dsc_conv *conv;
    int64_t x_dim[4], w_dim[4], y_dim[4];
    int64_t x_count, w_count, y_count;
    double *x, *w, *bias, *weights;
} conv_problem;

static double conv_objective(const void *context) {
    const conv_problem *p = context;
    const rig *r = &rigs[0];
    place x = place_of(r, DSC_F64, 4, p->x_dim, p->x), w = place_of(r, DSC_F64, 4, p->w_dim, p->w);
    place b = place_of(r, DSC_F64, SHAPE(p->w_dim[0]), p->bias), y = place_make(r, DSC_F64, 4, p->y_dim);
    double *out = test_array(p->y_count, sizeof *out);
    assert_ok(dsc_op_conv_forward(r->q, p->conv, &x.t, &w.t, &b.t, NULL, &y.t));
    place_read(r, &y, out);
    double f = weighted_sum(p->weights, out, p->y_count);
    place *all[] = {&x, &w, &b, &y};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        place_free(all[i]);
    free(out);
    return f;
}

static void check_conv(const dsc_conv_desc *d) {
    const rig *r = &rigs[0];
    int64_t oh = 0, ow = 0;
    assert_ok(dsc_conv_output(d, &oh, &ow));
    conv_problem p = {
        .x_dim = {d->n, d->shape.in_h, d->shape.in_w, d->shape.in_c},
        .w_dim = {d->shape.out_c, d->shape.kernel_h, d->shape.kernel_w, d->shape.in_c / d->shape.groups},
        .y_dim = {d->n, oh, ow, d->shape.out_c}};
    p.x_count = d->n * d->shape.in_h * d->shape.in_w * d->shape.in_c;
    p.w_count = d->shape.out_c * d->shape.kernel_h * d->shape.kernel_w * (d->shape.in_c / d->shape.groups);
    p.y_count = d->n * oh * ow * d->shape.out_c;
    p.x = random_array(1, p.x_count);
    p.w = random_array(2, p.w_count);
    p.bias = random_array(3, d->shape.out_c);
    p.weights = random_array(4, p.y_count);
    assert_ok(dsc_conv_create(r->device, d, &p.conv));
    assert_int_equal(dsc_conv_workspace(p.conv), 0); /* of ref */
    place x = place_of(r, DSC_F64, 4, p.x_dim, p.x), w = place_of(r, DSC_F64, 4, p.w_dim, p.w);
    place dy = place_of(r, DSC_F64, 4, p.y_dim, p.weights), dx = place_make(r, DSC_F64, 4, p.x_dim);
    place dw = place_make(r, DSC_F64, 4, p.w_dim), db = place_make(r, DSC_F64, SHAPE(d->shape.out_c));
    assert_ok(dsc_op_conv_backward_data(r->q, p.conv, &w.t, &dy.t, 0, NULL, &dx.t));
    assert_ok(dsc_op_conv_backward_weight(r->q, p.conv, &x.t, &dy.t, 0, NULL, &dw.t));
    assert_ok(dsc_op_bias_grad(r->q, &dy.t, 0, &db.t));
    double size =
        (double)(p.y_count * (d->shape.kernel_h * d->shape.kernel_w * d->shape.in_c / d->shape.groups +
                              1)); /* all numbers are below 1 */
    double *g = test_array(p.x_count + p.w_count + d->shape.out_c, sizeof *g);
    place_read(r, &dx, g);
    check_gradient("conv dx", conv_objective, &p, size, p.x, g, p.x_count);
    place_read(r, &dw, g);
    check_gradient("conv dw", conv_objective, &p, size, p.w, g, p.w_count);
    place_read(r, &db, g);
    check_gradient("conv db", conv_objective, &p, size, p.bias, g, d->shape.out_c);
    place *all[] = {&x, &w, &dy, &dx, &dw, &db};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        place_free(all[i]);
    dsc_conv_destroy(&p.conv);
    double *arrays[] = {p.x, p.w, p.bias, p.weights, g};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        free(arrays[i]);
}

static void test_conv(void **state) {
    (void)state;
    static const dsc_conv_desc cases[] = {
        CONV(DSC_F64, 2, 4, 5, 2, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1), /* plain */
        CONV(DSC_F64, 1, 5, 6, 2, 2, 3, 2, 2, 3, 1, 0, 1, 1, 1), /* stride */
        CONV(DSC_F64, 1, 6, 5, 2, 2, 2, 3, 1, 1, 2, 1, 3, 2, 1), /* dilation */
        CONV(DSC_F64, 2, 3, 3, 4, 6, 2, 2, 1, 1, 0, 1, 1, 1, 2), /* groups */
        CONV(DSC_F64, 1, 7, 6, 4, 4, 3, 2, 2, 2, 2, 1, 2, 1, 4), /* all of it */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_conv(&cases[i]);
}

/* ---- a linear layer: Y = X W' + b, so dX = dY W, dW = dY' X, db = column sums ---- */

enum { ROWS = 3, IN = 4, OUT = 5 };

typedef struct linear_problem {
    double x[ROWS * IN], w[OUT * IN], b[OUT], weights[ROWS * OUT];
} linear_problem;

static double linear_objective(const void *context) {
    const linear_problem *p = context;
    const rig *r = &rigs[0];
    place x = place_of(r, DSC_F64, SHAPE(ROWS, IN), p->x), w = place_of(r, DSC_F64, SHAPE(OUT, IN), p->w);
    place b = place_of(r, DSC_F64, SHAPE(OUT), p->b), y = place_make(r, DSC_F64, SHAPE(ROWS, OUT));
    double out[ROWS * OUT];
    assert_ok(dsc_op_gemm(r->q, 0, 1, 1, &x.t, &w.t, 0, &y.t));
    assert_ok(dsc_op_bias_add(r->q, &b.t, &y.t));
    place_read(r, &y, out);
    place *all[] = {&x, &w, &b, &y};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        place_free(all[i]);
    return weighted_sum(p->weights, out, ROWS * OUT);
}

static void test_linear(void **state) {
    (void)state;
    const rig *r = &rigs[0];
    linear_problem p;
    random_values(1, ROWS * IN, p.x);
    random_values(2, OUT * IN, p.w);
    random_values(3, OUT, p.b);
    random_values(4, ROWS * OUT, p.weights);
    place x = place_of(r, DSC_F64, SHAPE(ROWS, IN), p.x), w = place_of(r, DSC_F64, SHAPE(OUT, IN), p.w);
    place dy = place_of(r, DSC_F64, SHAPE(ROWS, OUT), p.weights),
          dx = place_make(r, DSC_F64, SHAPE(ROWS, IN));
    place dw = place_make(r, DSC_F64, SHAPE(OUT, IN)), db = place_make(r, DSC_F64, SHAPE(OUT));
    assert_ok(dsc_op_gemm(r->q, 0, 0, 1, &dy.t, &w.t, 0, &dx.t));
    assert_ok(dsc_op_gemm(r->q, 1, 0, 1, &dy.t, &x.t, 0, &dw.t));
    assert_ok(dsc_op_bias_grad(r->q, &dy.t, 0, &db.t));
    double g[OUT * IN], size = ROWS * OUT * (IN + 1);
    place_read(r, &dx, g);
    check_gradient("linear dx", linear_objective, &p, size, p.x, g, ROWS * IN);
    place_read(r, &dw, g);
    check_gradient("linear dw", linear_objective, &p, size, p.w, g, OUT * IN);
    place_read(r, &db, g);
    check_gradient("linear db", linear_objective, &p, size, p.b, g, OUT);
    place *all[] = {&x, &w, &dy, &dx, &dw, &db};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        place_free(all[i]);
}

/* ---- batch norm ---- */

enum { NORM_ROWS = 6, CHANNELS = 3, NORM_COUNT = NORM_ROWS * CHANNELS };

typedef struct norm_problem {
    dsc_norm_desc desc;
    int residual;
    double x[NORM_COUNT], r[NORM_COUNT], gamma[CHANNELS], shift[CHANNELS], weights[NORM_COUNT];
    double y[NORM_COUNT], mean[CHANNELS], invstd[CHANNELS]; /* of the last forward */
} norm_problem;

static void norm_forward(norm_problem *p) {
    const rig *g = &rigs[0];
    place x = place_of(g, DSC_F64, SHAPE(NORM_ROWS, CHANNELS), p->x);
    place residual = place_of(g, DSC_F64, SHAPE(NORM_ROWS, CHANNELS), p->r);
    place gamma = place_of(g, DSC_F64, SHAPE(CHANNELS), p->gamma),
          shift = place_of(g, DSC_F64, SHAPE(CHANNELS), p->shift);
    place running = place_of(g, DSC_F64, SHAPE(CHANNELS), p->gamma),
          y = place_make(g, DSC_F64, SHAPE(NORM_ROWS, CHANNELS));
    place mean = place_make(g, DSC_F64, SHAPE(CHANNELS)), invstd = place_make(g, DSC_F64, SHAPE(CHANNELS));
    dsc_norm_params params = {&gamma.t, &shift.t, &running.t, &running.t, NULL};
    assert_ok(dsc_op_norm_forward_train(g->q, &p->desc, &x.t, p->residual ? &residual.t : NULL, &params,
                                        &mean.t, &invstd.t, &y.t));
    place_read(g, &y, p->y);
    place_read(g, &mean, p->mean);
    place_read(g, &invstd, p->invstd);
    place *all[] = {&x, &residual, &gamma, &shift, &running, &y, &mean, &invstd};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        place_free(all[i]);
}

static double norm_objective(const void *context) {
    norm_problem p = *(const norm_problem *)context;
    norm_forward(&p);
    return weighted_sum(p.weights, p.y, NORM_COUNT);
}

/* The smallest distance of the ReLU's input to its kink. */
static double distance_to_kink(const norm_problem *p) {
    norm_problem linear = *p;
    linear.desc.relu = 0;
    norm_forward(&linear);
    double least = INFINITY;
    for (int i = 0; i < NORM_COUNT; i++)
        least = fmin(least, fabs(linear.y[i]));
    return least;
}

static void draw_norm_problem(norm_problem *p) {
    for (uint64_t stream = 0;; stream += 8) { /* until no element is near the kink */
        random_values(stream, NORM_COUNT, p->x);
        random_values(stream + 1, NORM_COUNT, p->r);
        random_values(stream + 2, CHANNELS, p->gamma);
        random_values(stream + 3, CHANNELS, p->shift);
        random_values(stream + 4, NORM_COUNT, p->weights);
        if (distance_to_kink(p) > 0.02)
            return;
    }
}

static void check_norm(int relu, int residual) {
    const rig *r = &rigs[0];
    norm_problem p = {.desc = {1e-3, 0.1, relu}, .residual = residual};
    draw_norm_problem(&p);
    norm_forward(&p);
    place x = place_of(r, DSC_F64, SHAPE(NORM_ROWS, CHANNELS), p.x),
          y = place_of(r, DSC_F64, SHAPE(NORM_ROWS, CHANNELS), p.y);
    place dy = place_of(r, DSC_F64, SHAPE(NORM_ROWS, CHANNELS), p.weights);
    place gamma = place_of(r, DSC_F64, SHAPE(CHANNELS), p.gamma),
          mean = place_of(r, DSC_F64, SHAPE(CHANNELS), p.mean);
    place invstd = place_of(r, DSC_F64, SHAPE(CHANNELS), p.invstd),
          dx = place_make(r, DSC_F64, SHAPE(NORM_ROWS, CHANNELS));
    place dr = place_make(r, DSC_F64, SHAPE(NORM_ROWS, CHANNELS)),
          dgamma = place_make(r, DSC_F64, SHAPE(CHANNELS));
    place dshift = place_make(r, DSC_F64, SHAPE(CHANNELS));
    dsc_norm_grads grads = {
        .dx = &dx.t, .dresidual = residual ? &dr.t : NULL, .dgamma = &dgamma.t, .dshift = &dshift.t};
    assert_ok(dsc_op_norm_backward(r->q, &p.desc, &x.t, relu ? &y.t : NULL, &dy.t, &gamma.t, &mean.t,
                                   &invstd.t, &grads));
    double g[NORM_COUNT], size = sum_of_magnitudes(p.weights, p.y, NORM_COUNT) + NORM_COUNT;
    place_read(r, &dx, g);
    check_gradient("norm dx", norm_objective, &p, size, p.x, g, NORM_COUNT);
    place_read(r, &dgamma, g);
    check_gradient("norm dgamma", norm_objective, &p, size, p.gamma, g, CHANNELS);
    place_read(r, &dshift, g);
    check_gradient("norm dshift", norm_objective, &p, size, p.shift, g, CHANNELS);
    if (residual) {
        place_read(r, &dr, g);
        check_gradient("norm dresidual", norm_objective, &p, size, p.r, g, NORM_COUNT);
    }
    place *all[] = {&x, &y, &dy, &gamma, &mean, &invstd, &dx, &dr, &dgamma, &dshift};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        place_free(all[i]);
}

static void test_norm(void **state) {
    (void)state;
    for (int relu = 0; relu < 2; relu++)
        for (int residual = 0; residual < 2; residual++)
            check_norm(relu, residual);
}

/* ---- pooling, globally and in windows; the shortcut ---- */

enum { SIDE = 5, DEPTH = 2, PIXELS = SIDE * SIDE * DEPTH };

typedef enum pooling { POOL_WINDOWS, POOL_GLOBAL, POOL_SHORTCUT } pooling;

typedef struct pool_problem {
    pooling which;
    dsc_pool_desc desc;
    int64_t y_dim[4], y_count;
    int y_ndim;
    double x[PIXELS], weights[4 * PIXELS];
} pool_problem;

static double pool_objective(const void *context) {
    const pool_problem *p = context;
    const rig *r = &rigs[0];
    double out[4 * PIXELS];
    place x = place_of(r, DSC_F64, SHAPE(1, SIDE, SIDE, DEPTH), p->x),
          y = place_make(r, DSC_F64, p->y_ndim, p->y_dim);
    if (p->which == POOL_WINDOWS)
        assert_ok(dsc_op_pool_forward(r->q, &p->desc, &x.t, NULL, &y.t));
    else if (p->which == POOL_GLOBAL)
        assert_ok(dsc_op_global_pool_forward(r->q, &x.t, &y.t));
    else
        assert_ok(dsc_op_shortcut_forward(r->q, 2, &x.t, &y.t));
    place_read(r, &y, out);
    place_free(&x);
    place_free(&y);
    return weighted_sum(p->weights, out, p->y_count);
}

static void check_pool(pool_problem *p) {
    const rig *r = &rigs[0];
    /* A permutation: 7 has no factor in common with the count, so that maxima are far from ties. */
    for (int i = 0; i < PIXELS; i++)
        p->x[i] = (double)(i * 7 % PIXELS) / PIXELS;
    p->y_count = 1;
    for (int i = 0; i < p->y_ndim; i++)
        p->y_count *= p->y_dim[i];
    random_values(9, p->y_count, p->weights);
    place x = place_of(r, DSC_F64, SHAPE(1, SIDE, SIDE, DEPTH), p->x),
          y = place_make(r, DSC_F64, p->y_ndim, p->y_dim);
    place index = place_make(r, DSC_I32, p->y_ndim, p->y_dim),
          dx = place_make(r, DSC_F64, SHAPE(1, SIDE, SIDE, DEPTH));
    place dy = place_of(r, DSC_F64, p->y_ndim, p->y_dim, p->weights);
    dsc_tensor *kept = p->desc.kind == DSC_POOL_MAX ? &index.t : NULL;
    if (p->which == POOL_WINDOWS) {
        assert_ok(dsc_op_pool_forward(r->q, &p->desc, &x.t, kept, &y.t));
        assert_ok(dsc_op_pool_backward(r->q, &p->desc, kept, &dy.t, 0, &dx.t));
    } else if (p->which == POOL_GLOBAL) {
        assert_ok(dsc_op_global_pool_backward(r->q, &dy.t, 0, &dx.t));
    } else {
        assert_ok(dsc_op_shortcut_backward(r->q, 2, &dy.t, 0, &dx.t));
    }
    double g[PIXELS];
    place_read(r, &dx, g);
    check_gradient("pool dx", pool_objective, p, (double)p->y_count, p->x, g, PIXELS);
    place *all[] = {&x, &y, &index, &dx, &dy};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        place_free(all[i]);
}

static void test_pool(void **state) {
    (void)state;
    pool_problem problems[] = {
        {.which = POOL_WINDOWS,
         .desc = {DSC_POOL_MAX, 3, 3, 2, 2, 1, 1},
         .y_ndim = 4,
         .y_dim = {1, 3, 3, DEPTH}},
        {.which = POOL_WINDOWS,
         .desc = {DSC_POOL_AVG, 3, 2, 1, 2, 1, 1},
         .y_ndim = 4,
         .y_dim = {1, 5, 3, DEPTH}},
        {.which = POOL_GLOBAL, .y_ndim = 2, .y_dim = {1, DEPTH}},
        {.which = POOL_SHORTCUT, .y_ndim = 4, .y_dim = {1, 3, 3, DEPTH + 3}},
    };
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++)
        check_pool(&problems[i]);
}

/* ---- softmax loss ---- */

enum { SAMPLES = 4, CLASSES = 6 };

typedef struct loss_problem {
    double smoothing;
    int mixed;
    double logits[SAMPLES * CLASSES];
} loss_problem;

static const double labels[SAMPLES] = {2, -1, 0, 5}, others[SAMPLES] = {1, 2, 0, 3},
                    shares[SAMPLES] = {0.25, 0.5, 0.375, 0.125}, weights[CLASSES] = {1, 2, 0.5, 4, 1, 3};

/* The loss; and its gradient, where d is not NULL. */
static double run_loss(const loss_problem *p, double grad_scale, place *d) {
    const rig *r = &rigs[0];
    place x = place_of(r, DSC_F64, SHAPE(SAMPLES, CLASSES), p->logits),
          l = place_of(r, DSC_I32, SHAPE(SAMPLES), labels), o = place_of(r, DSC_I32, SHAPE(SAMPLES), others),
          s = place_of(r, DSC_F32, SHAPE(SAMPLES), shares), w = place_of(r, DSC_F32, SHAPE(CLASSES), weights);
    place stats = place_of(r, DSC_F64, SHAPE(4), (const double[]){0, 0, 0, 0});
    const dsc_targets targets = {.labels = &l.t,
                                 .smoothing = p->smoothing,
                                 .others = p->mixed ? &o.t : NULL,
                                 .shares = p->mixed ? &s.t : NULL,
                                 .weights = p->mixed ? &w.t : NULL};
    assert_ok(dsc_op_target_loss(r->q, &x.t, &targets, grad_scale, NULL, d ? &d->t : NULL, &stats.t));
    double loss = place_get(r, &stats, 0);
    place *all[] = {&x, &l, &o, &s, &w, &stats};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        place_free(all[i]);
    return loss;
}

static double loss_objective(const void *context) {
    return 0.5 * run_loss(context, 1, NULL);
}

static void test_loss(void **state) {
    (void)state;
    const rig *r = &rigs[0];
    for (int kind = 0; kind < 4; kind++) {
        loss_problem p = {.smoothing = 0.1 * (kind % 2), .mixed = kind / 2};
        double g[SAMPLES * CLASSES];
        random_values(11, SAMPLES * CLASSES, p.logits);
        place d = place_make(r, DSC_F64, SHAPE(SAMPLES, CLASSES));
        run_loss(&p, 0.5, &d);
        place_read(r, &d, g);
        check_gradient("dlogits", loss_objective, &p, SAMPLES * (log(CLASSES) + 2) * (p.mixed ? 4 : 1),
                       p.logits, g, SAMPLES * CLASSES);
        place_free(&d);
    }
}

/* ---- losses of single numbers ---- */

enum { NUMBERS = 6 };

typedef struct pixel_problem {
    __typeof__(dsc_op_bce_loss) *loss;
    dsc_dtype type; /* of what x is compared with */
    double x[NUMBERS];
} pixel_problem;

static const double against[NUMBERS] = {1, 0, -1, 1, 0, 1};

/* The sum of losses; and its gradient, where d is not NULL. */
static double run_pixel_loss(const pixel_problem *p, double grad_scale, place *d) {
    const rig *r = &rigs[0];
    place x = place_of(r, DSC_F64, SHAPE(2, NUMBERS / 2), p->x),
          a = place_of(r, p->type, SHAPE(2, NUMBERS / 2), against);
    place stats = place_of(r, DSC_F64, SHAPE(4), (const double[]){0, 0, 0, 0});
    assert_ok(p->loss(r->q, &x.t, &a.t, grad_scale, NULL, d ? &d->t : NULL, &stats.t));
    double loss = place_get(r, &stats, 0);
    place_free(&x);
    place_free(&a);
    place_free(&stats);
    return loss;
}

static double pixel_objective(const void *context) {
    return 0.5 * run_pixel_loss(context, 1, NULL);
}

static void test_pixel_losses(void **state) {
    (void)state;
    pixel_problem problems[] = {{.loss = dsc_op_bce_loss, .type = DSC_I32},
                                {.loss = dsc_op_dice_loss, .type = DSC_I32},
                                {.loss = dsc_op_mse_loss, .type = DSC_F32}};
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        double g[NUMBERS];
        random_values(12, NUMBERS, problems[i].x);
        place d = place_make(&rigs[0], DSC_F64, SHAPE(2, NUMBERS / 2));
        run_pixel_loss(&problems[i], 0.5, &d);
        place_read(&rigs[0], &d, g);
        check_gradient("dx of a pixel loss", pixel_objective, &problems[i], NUMBERS * 4.0, problems[i].x, g,
                       NUMBERS);
        place_free(&d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv), cmocka_unit_test(test_linear), cmocka_unit_test(test_norm),
        cmocka_unit_test(test_pool), cmocka_unit_test(test_loss),   cmocka_unit_test(test_pixel_losses),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
