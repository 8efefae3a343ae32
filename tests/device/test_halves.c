/* Operations on bf16 and fp16, on devices that compute in them: products, convolutions, factors, layers. */
#include "device/trial.h"

#include "device/table.h"

#include <math.h>
#include <stdlib.h>

/* ---- products ---- */

typedef struct gemm_case {
    int trans_a, trans_b, wide; /* wide: C is float32 */
    int64_t m, n, k;
    double alpha, beta;
} gemm_case;

static const gemm_case gemms[] = {
    {0, 0, 0, 1, 1, 1, 1, 0},    {0, 1, 0, 33, 17, 64, 1, 0},   {1, 0, 1, 40, 24, 100, 0.5, 1},
    {0, 0, 1, 64, 10, 31, 1, 0}, {1, 1, 0, 7, 9, 130, -1, 0.5}, {1, 0, 1, 10, 64, 128, 1, 0},
};

static dsc_status gemm_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const gemm_case *c = params;
    return dsc_op_gemm(q, c->trans_a, c->trans_b, c->alpha, &t[0], &t[1], c->beta, &t[2]);
}

static void test_gemm(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof gemms / sizeof gemms[0]; i++) {
        const gemm_case *c = &gemms[i];
        trial tr;
        trial_start(&tr, "gemm", gemm_run, c);
        tr.terms = (double)c->k;
        trial_in(&tr, "a", SHAPE(c->trans_a ? c->k : c->m, c->trans_a ? c->m : c->k));
        trial_in(&tr, "b", SHAPE(c->trans_b ? c->n : c->k, c->trans_b ? c->k : c->n));
        trial_beta(&tr, "c", (double)c->k * fabs(c->alpha) + fabs(c->beta), c->beta, SHAPE(c->m, c->n));
        if (c->wide)
            trial_param(&tr);
        trial_check_halves(&tr);
    }
}

/* ---- convolutions ---- */

typedef struct conv_case {
    dsc_conv_desc desc;
    double beta;
    int bias;
} conv_case;

static const conv_case convs[] = {
    {CONV(DSC_BF16, 2, 8, 8, 16, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 0},
    {CONV(DSC_BF16, 3, 8, 8, 16, 32, 3, 3, 2, 2, 1, 1, 1, 1, 1), 1, 0},
    {CONV(DSC_BF16, 2, 6, 6, 8, 24, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0, 1},
    {CONV(DSC_BF16, 2, 9, 8, 3, 8, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 1}, /* a first layer */
    {CONV(DSC_BF16, 2, 7, 5, 5, 3, 3, 3, 2, 2, 1, 1, 1, 1, 1), 1, 0}, /* odd channels */
    {CONV(DSC_BF16, 2, 6, 6, 8, 12, 3, 3, 1, 1, 1, 1, 1, 1, 4), 0, 0},
    {CONV(DSC_BF16, 2, 19, 17, 32, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0, 1}, /* the end of a U-Net */
    {CONV(DSC_BF16, 1, 9, 7, 264, 5, 1, 1, 1, 1, 0, 0, 1, 1, 1), 1, 0},
};

typedef enum pass { FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT } pass;

static dsc_status run_pass(pass which, dsc_queue *q, dsc_tensor *t, const conv_case *c) {
    rig r = {.device = dsc_queue_device(q), .q = q, .label = "conv"};
    dsc_conv_desc desc = c->desc;
    dsc_conv *conv;
    desc.dtype = t[0].dtype;
    assert_ok(dsc_conv_create(r.device, &desc, &conv));
    place work = place_make(&r, DSC_U8, SHAPE((int64_t)dsc_conv_workspace(conv)));
    dsc_status status;
    if (which == FORWARD)
        status =
            dsc_op_conv_forward(q, conv, &t[0], &t[1], c->bias ? &t[2] : NULL, &work.t, &t[c->bias ? 3 : 2]);
    else if (which == BACKWARD_DATA)
        status = dsc_op_conv_backward_data(q, conv, &t[0], &t[1], c->beta, &work.t, &t[2]);
    else
        status = dsc_op_conv_backward_weight(q, conv, &t[0], &t[1], c->beta, &work.t, &t[2]);
    if (status == DSC_OK)
        place_check_guards(&r, &work, "conv's work");
    place_free(&work);
    dsc_conv_destroy(&conv);
    return status;
}

static dsc_status forward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    return run_pass(FORWARD, q, t, params);
}

static dsc_status backward_data_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    return run_pass(BACKWARD_DATA, q, t, params);
}

static dsc_status backward_weight_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    return run_pass(BACKWARD_WEIGHT, q, t, params);
}

static void check_passes(const conv_case *c) {
    const dsc_conv_desc *d = &c->desc;
    int64_t oh = 0, ow = 0;
    trial tr;
    assert_ok(dsc_conv_output(d, &oh, &ow));
    const int64_t x[4] = {d->n, d->shape.in_h, d->shape.in_w, d->shape.in_c},
                  w[4] = {d->shape.out_c, d->shape.kernel_h, d->shape.kernel_w,
                          d->shape.in_c / d->shape.groups};
    const int64_t y[4] = {d->n, oh, ow, d->shape.out_c};
    trial_start(&tr, "conv_forward", forward_run, c);
    tr.linear = 1;
    tr.rounded = c->bias; /* added to what cuDNN has rounded */
    tr.terms = (double)(d->shape.kernel_h * d->shape.kernel_w * d->shape.in_c / d->shape.groups + 1);
    trial_in(&tr, "x", 4, x);
    trial_in(&tr, "w", 4, w);
    if (c->bias) {
        trial_in(&tr, "bias", SHAPE(d->shape.out_c));
        trial_param(&tr);
    }
    trial_out(&tr, "y", 1, 4, y);
    trial_check_halves(&tr);
    trial_start(&tr, "conv_backward_data", backward_data_run, c);
    tr.linear = 1;
    tr.terms = (double)(d->shape.kernel_h * d->shape.kernel_w * d->shape.out_c / d->shape.groups + 1);
    trial_in(&tr, "w", 4, w);
    trial_in(&tr, "dy", 4, y);
    trial_beta(&tr, "dx", 1, c->beta, 4, x);
    trial_check_halves(&tr);
    trial_start(&tr, "conv_backward_weight", backward_weight_run, c);
    tr.linear = 1;
    tr.rounded = 1; /* cuDNN sums into float32 and returns a half */
    tr.terms = (double)(d->n * oh * ow + 1);
    trial_in(&tr, "x", 4, x);
    trial_in(&tr, "dy", 4, y);
    trial_beta(&tr, "dw", 1, c->beta, 4, w);
    trial_param(&tr);
    trial_check_halves(&tr);
}

static void test_conv(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof convs / sizeof convs[0]; i++)
        check_passes(&convs[i]);
}

/* ---- factors ---- */

typedef struct gram_case {
    dsc_conv_desc desc;
    int ones;
} gram_case;

static const gram_case grams[] = {
    {CONV(DSC_BF16, 2, 8, 8, 16, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0},
    {CONV(DSC_BF16, 2, 9, 7, 3, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 1},
    {CONV(DSC_BF16, 2, 8, 8, 6, 1, 3, 3, 2, 2, 1, 1, 1, 1, 1), 1},
    {CONV(DSC_BF16, 100, 1, 1, 33, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1), 1},
};

/* The lower triangle; what is above it is filled in on either side. */
static dsc_status gram_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const gram_case *g = params;
    rig r = {.device = dsc_queue_device(q), .q = q, .label = "gram"};
    dsc_conv_desc desc = g->desc;
    desc.dtype = t[0].dtype;
    place work =
        place_make(&r, DSC_U8, SHAPE((int64_t)dsc_op_patch_gram_workspace(r.device, &desc, g->ones)));
    dsc_status status = dsc_op_patch_gram(q, &desc, &t[0], 0, 0.5, 0, &work.t, &t[1]);
    if (status == DSC_OK)
        status = dsc_op_symmetrize(q, &t[1]);
    place_check_guards(&r, &work, "patch_gram's work");
    place_free(&work);
    return status;
}

static dsc_status packed_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const gram_case *g = params;
    rig r = {.device = dsc_queue_device(q), .q = q, .label = "packed gram"};
    dsc_conv_desc desc = g->desc;
    desc.dtype = t[0].dtype;
    int64_t n = desc.shape.kernel_h * desc.shape.kernel_w * desc.shape.in_c + g->ones;
    place work =
        place_make(&r, DSC_U8, SHAPE((int64_t)dsc_op_patch_gram_workspace(r.device, &desc, g->ones)));
    place full = place_make(&r, t[1].dtype, SHAPE(n * n));
    dsc_status status = dsc_op_patch_gram_packed(q, &desc, &t[0], 0, 0.5, &work.t, &full.t, &t[1]);
    place_check_guards(&r, &work, "patch_gram_packed's work");
    place_free(&work);
    place_free(&full);
    return status;
}

static void test_gram(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof grams / sizeof grams[0]; i++)
        for (int packed = 0; packed < 2; packed++) {
            const dsc_conv_desc *d = &grams[i].desc;
            int64_t n = d->shape.kernel_h * d->shape.kernel_w * d->shape.in_c + grams[i].ones;
            trial tr;
            trial_start(&tr, packed ? "patch_gram_packed" : "patch_gram", packed ? packed_run : gram_run,
                        &grams[i]);
            tr.linear = 1;
            tr.terms = (double)(d->n * d->shape.in_h * d->shape.in_w);
            trial_in(&tr, "x", SHAPE(d->n, d->shape.in_h, d->shape.in_w, d->shape.in_c));
            if (packed)
                trial_out(&tr, "p", 1, SHAPE(n * (n + 1) / 2));
            else
                trial_out(&tr, "c", 1, SHAPE(n, n));
            trial_param(&tr);
            trial_check_halves(&tr);
        }
}

/* ---- plain layers ---- */

static const int64_t sizes[] = {1, 7, 257, 4099};
enum { SIZES = sizeof sizes / sizeof sizes[0] };
static const double betas[] = {0, 1};

static dsc_status bias_add_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    (void)params;
    return dsc_op_bias_add(q, &t[0], &t[1]);
}

static dsc_status bias_grad_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    return dsc_op_bias_grad(q, &t[0], *(const double *)params, &t[1]);
}

static void test_bias(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{1, 1}, {5, 3}, {33, 16}, {7, 130}, {1001, 10}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        trial tr;
        trial_start(&tr, "bias_add", bias_add_run, NULL);
        trial_in(&tr, "b", SHAPE(shapes[s][1]));
        trial_param(&tr);
        trial_inout(&tr, "y", 2, SHAPE(shapes[s][0], shapes[s][1]));
        trial_check_halves(&tr);
        trial_start(&tr, "bias_grad", bias_grad_run, &betas[s % 2]);
        tr.linear = 1;
        tr.terms = (double)shapes[s][0];
        trial_in(&tr, "dy", SHAPE(shapes[s][0], 1, shapes[s][1]));
        trial_beta(&tr, "db", 1, betas[s % 2], SHAPE(shapes[s][1]));
        trial_param(&tr);
        trial_check_halves(&tr);
    }
}

static dsc_status relu_forward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    (void)params;
    return dsc_op_relu_forward(q, &t[0], &t[1]);
}

static dsc_status relu_backward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    return dsc_op_relu_backward(q, &t[0], &t[1], *(const double *)params, &t[2]);
}

static dsc_status map_forward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    return dsc_op_map(q, ((const dsc_map *)params)[0], &t[0], NULL, 0, &t[1]);
}

static dsc_status map_backward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    return dsc_op_map(q, ((const dsc_map *)params)[1], &t[0], &t[1], 1, &t[2]);
}

static void test_activations(void **state) {
    (void)state;
    static const dsc_map maps[][2] = {{DSC_MAP_GELU, DSC_MAP_GELU_SLOPE},
                                      {DSC_MAP_GELU_TANH, DSC_MAP_GELU_TANH_SLOPE},
                                      {DSC_MAP_SILU, DSC_MAP_SILU_SLOPE},
                                      {DSC_MAP_TANH, DSC_MAP_TANH_SLOPE},
                                      {DSC_MAP_SIGMOID, DSC_MAP_SIGMOID_SLOPE}};
    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++)
        for (int s = 0; s < SIZES; s++) {
            trial tr;
            trial_start(&tr, "activation", map_forward_run, maps[i]);
            trial_in(&tr, "x", SHAPE(sizes[s]));
            trial_out(&tr, "y", 1, SHAPE(sizes[s]));
            trial_check_halves(&tr);
            trial_start(&tr, "its backward pass", map_backward_run, maps[i]);
            trial_in(&tr, "x", SHAPE(sizes[s]));
            trial_in(&tr, "dy", SHAPE(sizes[s]));
            trial_inout(&tr, "dx", 2, SHAPE(sizes[s]));
            trial_check_halves(&tr);
        }
}

static dsc_status add_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    (void)params;
    return dsc_op_add(q, &t[0], &t[1], &t[2]);
}

static void test_elementwise(void **state) {
    (void)state;
    for (int s = 0; s < SIZES; s++) {
        trial tr;
        trial_start(&tr, "relu_forward", relu_forward_run, NULL);
        trial_in(&tr, "x", SHAPE(sizes[s]))[0] = 0;
        trial_out(&tr, "y", 0, SHAPE(sizes[s]));
        trial_check_halves(&tr);
        for (int b = 0; b < 2; b++) {
            trial_start(&tr, "relu_backward", relu_backward_run, &betas[b]);
            trial_in(&tr, "y", SHAPE(sizes[s]))[0] = 0;
            trial_in(&tr, "dy", SHAPE(sizes[s]));
            trial_beta(&tr, "dx", 2, betas[b], SHAPE(sizes[s]));
            trial_check_halves(&tr);
        }
        trial_start(&tr, "add", add_run, NULL);
        trial_in(&tr, "a", SHAPE(sizes[s]));
        trial_in(&tr, "b", SHAPE(sizes[s]));
        trial_out(&tr, "y", 2, SHAPE(sizes[s]));
        trial_check_halves(&tr);
    }
}

static dsc_status dropout_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    static const dsc_dropout_desc desc = {0.3, 7, 2};
    return dsc_op_dropout(q, &desc, &t[0], &t[1], *(const double *)params, &t[2]);
}

static void test_dropout(void **state) {
    (void)state;
    for (int b = 0; b < 2; b++) {
        trial tr;
        trial_start(&tr, "dropout", dropout_run, &betas[b]);
        double *position = trial_typed(&tr, "position", ROLE_IN, DSC_I64, 1, SHAPE(2));
        position[0] = 5;
        position[1] = 3;
        trial_in(&tr, "x", SHAPE(9, 131));
        trial_beta(&tr, "y", 4, betas[b], SHAPE(9, 131));
        trial_check_halves(&tr);
    }
}

/* ---- poolings and the shortcut ---- */

typedef struct pool_case {
    dsc_pool_desc desc;
    double beta;
    int64_t c;
} pool_case;

static const pool_case pools[] = {{{DSC_POOL_MAX, 3, 3, 2, 2, 1, 1}, 0, 16},
                                  {{DSC_POOL_MAX, 2, 2, 2, 2, 0, 0}, 1, 5},
                                  {{DSC_POOL_AVG, 3, 2, 1, 3, 1, 0}, 0, 17},
                                  {{DSC_POOL_AVG, 2, 2, 2, 2, 0, 0}, 1, 8}};
enum { SIDE = 9, IMAGES = 2 };

/* Forward, then backward with what forward remembers: dy is the last operand but one. */
static dsc_status pool_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const pool_case *c = params;
    int is_max = c->desc.kind == DSC_POOL_MAX;
    dsc_status status = dsc_op_pool_forward(q, &c->desc, &t[0], is_max ? &t[1] : NULL, &t[2]);
    if (status == DSC_OK)
        status = dsc_op_pool_backward(q, &c->desc, is_max ? &t[1] : NULL, &t[3], c->beta, &t[4]);
    return status;
}

static void test_pool(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof pools / sizeof pools[0]; i++) {
        const pool_case *c = &pools[i];
        int64_t oh = 0, ow = 0;
        trial tr;
        assert_ok(dsc_pool_output(&c->desc, SIDE, SIDE, &oh, &ow));
        trial_start(&tr, "pool", pool_run, c);
        tr.terms = 9;
        double *x = trial_in(&tr, "x", SHAPE(IMAGES, SIDE, SIDE, c->c));
        for (int64_t k = 0; k < IMAGES * SIDE * SIDE * c->c; k++)
            x[k] = (double)(k * 7 % 251) / 256; /* both types hold these: no new ties */
        trial_typed(&tr, "index", ROLE_OUT, DSC_I32, 0, SHAPE(IMAGES, oh, ow, c->c));
        trial_out(&tr, "y", 1, SHAPE(IMAGES, oh, ow, c->c));
        trial_in(&tr, "dy", SHAPE(IMAGES, oh, ow, c->c));
        trial_beta(&tr, "dx", 10, c->beta, SHAPE(IMAGES, SIDE, SIDE, c->c));
        trial_check_halves(&tr);
    }
}

static dsc_status global_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    dsc_status status = dsc_op_global_pool_forward(q, &t[0], &t[1]);
    if (status == DSC_OK)
        status = dsc_op_global_pool_backward(q, &t[2], *(const double *)params, &t[3]);
    return status;
}

static dsc_status shortcut_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    dsc_status status = dsc_op_shortcut_forward(q, 2, &t[0], &t[1]);
    if (status == DSC_OK)
        status = dsc_op_shortcut_backward(q, 2, &t[2], *(const double *)params, &t[3]);
    return status;
}

static void test_global_and_shortcut(void **state) {
    (void)state;
    static const int64_t channels[] = {5, 16};
    for (int b = 0; b < 2; b++)
        for (int s = 0; s < 2; s++) {
            int64_t c = channels[s], k = 2 * c;
            trial tr;
            trial_start(&tr, "global_pool", global_run, &betas[b]);
            tr.terms = SIDE * SIDE;
            trial_in(&tr, "x", SHAPE(IMAGES, SIDE, SIDE, c));
            trial_out(&tr, "y", 1, SHAPE(IMAGES, c));
            trial_in(&tr, "dy", SHAPE(IMAGES, c));
            trial_beta(&tr, "dx", 2, betas[b], SHAPE(IMAGES, SIDE, SIDE, c));
            trial_check_halves(&tr);
            trial_start(&tr, "shortcut", shortcut_run, &betas[b]);
            trial_in(&tr, "x", SHAPE(IMAGES, SIDE, SIDE, c));
            trial_out(&tr, "y", 1, SHAPE(IMAGES, (SIDE + 1) / 2, (SIDE + 1) / 2, k));
            trial_in(&tr, "dy", SHAPE(IMAGES, (SIDE + 1) / 2, (SIDE + 1) / 2, k));
            trial_beta(&tr, "dx", 2, betas[b], SHAPE(IMAGES, SIDE, SIDE, c));
            trial_check_halves(&tr);
        }
}

/* ---- batch norm ---- */

typedef struct norm_case {
    int64_t rows, channels;
    dsc_norm_desc desc;
    int residual;
    double beta;
} norm_case;

static const norm_case norms[] = {{7, 5, {1e-2, 0.1, 1}, 0, 1},
                                  {33, 16, {1e-2, 0.1, 0}, 1, 0},
                                  {130, 17, {1e-2, 0.3, 1}, 1, 1},
                                  {2000, 24, {1e-2, 0.1, 1}, 1, 0}};

/* gamma, shift, running mean and variance, x, residual; mean, invstd, y of training; y of evaluation. */
static dsc_status norm_forward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const norm_case *c = params;
    dsc_norm_params p = {&t[0], &t[1], &t[2], &t[3], NULL};
    const dsc_tensor *residual = c->residual ? &t[5] : NULL;
    dsc_status status = dsc_op_norm_forward_eval(q, &c->desc, &t[4], residual, &p, &t[9]);
    if (status == DSC_OK)
        status = dsc_op_norm_forward_train(q, &c->desc, &t[4], residual, &p, &t[6], &t[7], &t[8]);
    return status;
}

static double *norm_channels(trial *tr, const char *name, double scale, int64_t channels) {
    double *values =
        scale > 0 ? trial_inout(tr, name, scale, 1, &channels) : trial_in(tr, name, 1, &channels);
    trial_param(tr);
    return values;
}

/* |xhat| is below 4 for numbers spread evenly, 1/std below 10. */
static void test_norm_forward(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof norms / sizeof norms[0]; i++) {
        const norm_case *c = &norms[i];
        trial tr;
        trial_start(&tr, "norm_forward", norm_forward_run, c);
        tr.terms = 4 * sqrt((double)c->rows);
        norm_channels(&tr, "gamma", 0, c->channels);
        norm_channels(&tr, "shift", 0, c->channels);
        norm_channels(&tr, "running_mean", 2, c->channels);
        double *var = norm_channels(&tr, "running_var", 2, c->channels);
        for (int64_t k = 0; k < c->channels; k++)
            var[k] = (double)(float)(0.25 + fabs(var[k]));
        trial_in(&tr, "x", SHAPE(c->rows, c->channels));
        trial_in(&tr, "residual", SHAPE(c->rows, c->channels));
        trial_out(&tr, "mean", 1, SHAPE(c->channels));
        trial_param(&tr);
        trial_out(&tr, "invstd", 10, SHAPE(c->channels));
        trial_param(&tr);
        trial_out(&tr, "y", 8, SHAPE(c->rows, c->channels));
        trial_out(&tr, "y of evaluation", 8, SHAPE(c->rows, c->channels));
        trial_check_halves(&tr);
    }
}

/* x, y, dy, gamma, mean, invstd; dx, dresidual, dgamma, dshift. */
static dsc_status norm_backward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const norm_case *c = params;
    dsc_norm_grads grads = {.dx = &t[6],
                            .dresidual = c->residual ? &t[7] : NULL,
                            .dgamma = &t[8],
                            .dshift = &t[9],
                            .beta_x = c->beta,
                            .beta_residual = c->beta,
                            .beta_p = c->beta};
    return dsc_op_norm_backward(q, &c->desc, &t[0], c->desc.relu ? &t[1] : NULL, &t[2], &t[3], &t[4], &t[5],
                                &grads);
}

static void test_norm_backward(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof norms / sizeof norms[0]; i++) {
        const norm_case *c = &norms[i];
        const int64_t *channels = &c->channels;
        trial tr;
        trial_start(&tr, "norm_backward", norm_backward_run, c);
        tr.terms = 4 * sqrt((double)c->rows);
        trial_in(&tr, "x", SHAPE(c->rows, c->channels));
        trial_in(&tr, "y", SHAPE(c->rows, c->channels))[0] = 0; /* only its sign counts */
        trial_in(&tr, "dy", SHAPE(c->rows, c->channels));
        norm_channels(&tr, "gamma", 0, c->channels);
        double *mean = norm_channels(&tr, "mean", 0, c->channels);
        double *invstd = norm_channels(&tr, "invstd", 0, c->channels);
        for (int64_t k = 0; k < c->channels; k++) {
            mean[k] = (double)(float)(0.125 * mean[k]);
            invstd[k] = (double)(float)(1.75 + 0.25 * invstd[k]);
        }
        trial_beta(&tr, "dx", 40, c->beta, SHAPE(c->rows, c->channels));
        trial_inout(&tr, "dresidual", 2, SHAPE(c->rows, c->channels));
        trial_beta(&tr, "dgamma", 3 * (double)c->rows, c->beta, 1, channels);
        trial_param(&tr);
        trial_beta(&tr, "dshift", (double)c->rows + 1, c->beta, 1, channels);
        trial_param(&tr);
        trial_check_halves(&tr);
    }
}

/* ---- the loss ---- */

typedef struct loss_case {
    int64_t rows, classes;
    double smoothing, spread;
} loss_case;

static const loss_case losses[] = {{7, 10, 0.1, 4}, {128, 10, 0, 8}, {33, 100, 0.1, 16}, {5, 1001, 0, 4}};

static dsc_status loss_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const loss_case *c = params;
    return dsc_op_softmax_loss(q, &t[0], &t[1], c->smoothing, 1, NULL, &t[3], &t[2]);
}

static void test_loss(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
        const loss_case *c = &losses[i];
        double size = 2 * c->spread + log((double)c->classes) + 1;
        trial tr;
        trial_start(&tr, "softmax_loss", loss_run, c);
        tr.terms = (double)c->classes;
        double *logits = trial_in(&tr, "logits", SHAPE(c->rows, c->classes));
        for (int64_t k = 0; k < c->rows * c->classes; k++)
            logits[k] *= c->spread;
        double *labels = trial_typed(&tr, "labels", ROLE_IN, DSC_I32, 1, SHAPE(c->rows));
        for (int64_t k = 0; k < c->rows; k++)
            labels[k] = k % 5 == 4 ? -1 : (double)(k * 7 % c->classes);
        trial_typed(&tr, "stats", ROLE_INOUT, DSC_F64, (double)c->rows * size, SHAPE(4));
        tr.operands[tr.count - 1].coarse = 1;
        trial_out(&tr, "dlogits", size, SHAPE(c->rows, c->classes));
        trial_check_halves(&tr);
    }
}

/* ---- images ---- */

static dsc_status augment_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    static const dsc_augment_desc desc = {{0.0078125F, 0.015625F, 1, 0}, {-1, 0.5F, 0, 0}, {0, 0.25F, -1, 0}};
    (void)params;
    return dsc_op_augment(q, &desc, &t[0], &t[1], &t[2]);
}

static void test_augment(void **state) {
    (void)state;
    trial tr;
    trial_start(&tr, "augment", augment_run, NULL);
    double *raw = trial_typed(&tr, "raw", ROLE_IN, DSC_U8, 1, SHAPE(5, 9, 8, 3));
    for (int64_t i = 0; i < 5 * 9 * 8 * 3; i++)
        raw[i] = (double)(i * 37 % 256);
    double *where = trial_typed(&tr, "place", ROLE_IN, DSC_I32, 1, SHAPE(5, 3));
    for (int i = 0; i < 15; i++)
        where[i] = i % 3 == 2 ? i / 3 % 2 : i % 5 - 2;
    trial_out(&tr, "x", 4, SHAPE(5, 8, 8, 3));
    trial_check_halves(&tr);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemm),
        cmocka_unit_test(test_conv),
        cmocka_unit_test(test_gram),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_elementwise),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_global_and_shortcut),
        cmocka_unit_test(test_norm_forward),
        cmocka_unit_test(test_norm_backward),
        cmocka_unit_test(test_loss),
        cmocka_unit_test(test_augment),
    };
    int halves = 0;
    if (rigs_open_loose(NULL) != 0)
        return 1;
    for (int i = 0; i < rig_count; i++)
        halves |= rigs[i].device->has_halves;
    if (!halves) {
        (void)rigs_close(NULL);
        fprintf(stderr, "skipped: no device computes in bf16 and fp16\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, rigs_close);
}
