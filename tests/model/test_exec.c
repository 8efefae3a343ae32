/* Executors: fusion, evaluation, running statistics, dropout keys, accumulation, hooks, memory, devices. */
#include "chosen.h"

#include "base/error.h"
#include "base/memory.h"
#include "device/ops.h"
#include "model/exec.h"
#include "model/own_layers.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 6 };

/* ref in double, or the environment's device in float (chosen.h). */
static dsc_device *device;
static dsc_queue *queue;
static dsc_dtype real = DSC_F64;
static double epsilon = DBL_EPSILON;

static int setup(void **state) {
    (void)state;
    device = open_device(chosen_exact_or("ref"));
    if (chosen()) {
        real = DSC_F32;
        epsilon = (double)FLT_EPSILON;
    }
    queue = open_queue(device);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
    return 0;
}

/* A network with executor and data. */
typedef struct rig {
    dsc_model *m;
    dsc_exec *exec;
    dsc_tensor x, labels;
} rig;

static rig open_rig(const net *what, dsc_exec_mode mode) {
    rig r = {.m = make_model(device, what, real, 0)};
    assert_ok(dsc_exec_create(r.m, mode, BATCH, &r.exec));
    r.x = random_tensor(queue, 1, real, 4, (int64_t[]){BATCH, what->h, what->w, what->c});
    r.labels = random_labels(queue, 2, BATCH, NET_CLASSES);
    return r;
}

static void close_rig(rig *r) {
    dsc_tensor_free(&r->x);
    dsc_tensor_free(&r->labels);
    dsc_exec_destroy(&r->exec);
    dsc_model_destroy(&r->m);
}

static double *logits_of(rig *r) {
    assert_ok(dsc_exec_forward(r->exec, queue, &r->x));
    return read_doubles(queue, dsc_exec_logits(r->exec));
}

static double *gradients_of(rig *r) {
    dsc_tensor grads = dsc_model_grads(r->m);
    assert_ok(dsc_exec_forward(r->exec, queue, &r->x));
    assert_ok(dsc_exec_loss(r->exec, queue, &r->labels, 1));
    assert_ok(dsc_exec_backward(r->exec, queue, NULL));
    return read_doubles(queue, &grads);
}

/* Checks that the values differ by at most `terms` roundings of the largest one. */
static void assert_close(int64_t n, const double *a, const double *b, double terms) {
    double scale = fmax(largest(n, a), 1);
    assert_true(largest_difference(n, a, b) <= terms * epsilon * scale);
}

/* ---- fusion ---- */

static int fused_ops(const dsc_exec *exec) {
    int count = 0;
    for (int64_t i = 0; i < exec->op_count; i++)
        count += exec->ops[i].relu;
    return count;
}

static void test_fusion(void **state) {
    (void)state;
    for (const net *what = nets; what->name; what++) {
        rig fused = open_rig(what, DSC_EXEC_TRAIN);
        assert_int_equal(fused_ops(fused.exec), what->fused);
        net_no_fusion = 1;
        rig plain = open_rig(what, DSC_EXEC_TRAIN);
        net_no_fusion = 0;
        assert_int_equal(fused_ops(plain.exec), 0);
        double *a = gradients_of(&fused), *b = gradients_of(&plain);
        double *la = read_doubles(queue, dsc_exec_logits(fused.exec));
        double *lb = read_doubles(queue, dsc_exec_logits(plain.exec));
        if (!what->random) {
            assert_close(BATCH * NET_CLASSES, la, lb, 1000);
            assert_close(dsc_model_parameter_total(fused.m), a, b, 10000);
        }
        free(la);
        free(lb);
        free(a);
        free(b);
        close_rig(&fused);
        close_rig(&plain);
    }
}

/* When both terms of an addition are batch norms, the later norm takes in the addition, whatever their order is. */
static void test_fusion_of_two(void **state) {
    (void)state;
    const char *names[] = {"downsample", "downsample, swapped"};
    for (int i = 0; i < 2; i++) {
        rig r = open_rig(find_net(names[i]), DSC_EXEC_TRAIN);
        int found = 0;
        for (int64_t k = 0; k < r.exec->op_count; k++)
            if (r.exec->ops[k].relu && r.exec->ops[k].inputs == 2) {
                assert_string_equal(r.exec->ops[k].node->name, "downsample.1");
                found++;
            }
        assert_int_equal(found, 1);
        close_rig(&r);
    }
}

/* ---- training and evaluation ---- */

/* input 2x2x3 -> batch norm -> flatten -> linear. */
static dsc_status build_norm_only(dsc_model *m, dsc_value *logits) {
    dsc_value x;
    dsc_status status = dsc_model_input(m, 2, 2, 3, &x);
    if (status == DSC_OK)
        status = dsc_model_batch_norm(m, "bn", x, &x);
    if (status == DSC_OK)
        status = dsc_model_flatten(m, x, &x);
    return status == DSC_OK ? dsc_model_linear(m, "fc", x, NET_CLASSES, 1, logits) : status;
}

static const net norm_only = {"norm", build_norm_only, 2, 2, 3, 0, 0};

/* Mean and unbiased variance of channel ch over all pixels. */
static void channel_statistics(const double *x, int64_t rows, int64_t c, int64_t ch, double *mean,
                               double *var) {
    double sum = 0, square = 0;
    for (int64_t i = 0; i < rows; i++)
        sum += x[i * c + ch];
    *mean = sum / (double)rows;
    for (int64_t i = 0; i < rows; i++)
        square += (x[i * c + ch] - *mean) * (x[i * c + ch] - *mean);
    *var = square / (double)(rows - 1);
}

static void test_running_statistics(void **state) {
    (void)state;
    rig r = open_rig(&norm_only, DSC_EXEC_TRAIN);
    double *x = read_doubles(queue, &r.x), expected_mean[3], expected_var[3];
    free(logits_of(&r));
    free(logits_of(&r));
    for (int ch = 0; ch < 3; ch++) {
        double mean, var;
        channel_statistics(x, BATCH * 4, 3, ch, &mean, &var);
        expected_mean[ch] = 0.9 * (0.1 * mean) + 0.1 * mean;
        expected_var[ch] = 0.9 * (0.9 + 0.1 * var) + 0.1 * var;
    }
    const dsc_param *b = dsc_model_buffers(r.m);
    double *mean = read_doubles(queue, &b[0].value), *var = read_doubles(queue, &b[1].value);
    assert_close(3, expected_mean, mean, 4 * BATCH * 4);
    assert_close(3, expected_var, var, 4 * BATCH * 4);
    int64_t batches = 0;
    assert_ok(dsc_tensor_download(queue, &b[2].value, sizeof batches, &batches));
    assert_ok(dsc_queue_sync(queue));
    assert_int_equal(batches, 2);
    free(mean);
    free(var);
    free(x);
    close_rig(&r);
}

/* Evaluation normalises by the running statistics and leaves them alone. */
static void test_norm_evaluation(void **state) {
    (void)state;
    rig r = open_rig(&norm_only, DSC_EXEC_EVAL);
    const dsc_param *p = dsc_model_params(r.m), *b = dsc_model_buffers(r.m);
    double set_mean[3] = {0.5, -1, 2}, set_var[3] = {0.25, 4, 1}, expected[BATCH * NET_CLASSES];
    dsc_tensor running[2] = {b[0].value, b[1].value};
    write_doubles(queue, set_mean, &running[0]);
    write_doubles(queue, set_var, &running[1]);
    double *x = read_doubles(queue, &r.x), *gamma = read_doubles(queue, &p[0].value);
    double *shift = read_doubles(queue, &p[1].value), *w = read_doubles(queue, &p[2].value);
    double *bias = read_doubles(queue, &p[3].value);
    for (int n = 0; n < BATCH; n++)
        for (int k = 0; k < NET_CLASSES; k++) {
            double sum = bias[k];
            for (int i = 0; i < 12; i++) {
                int ch = i % 3;
                double y = gamma[ch] * (x[n * 12 + i] - set_mean[ch]) / sqrt(set_var[ch] + 1e-5) + shift[ch];
                sum += w[k * 12 + i] * y;
            }
            expected[n * NET_CLASSES + k] = sum;
        }
    double *logits = logits_of(&r);
    assert_close(BATCH * NET_CLASSES, expected, logits, 100);
    double *mean = read_doubles(queue, &running[0]), *var = read_doubles(queue, &running[1]);
    assert_memory_equal(mean, set_mean, sizeof set_mean);
    assert_memory_equal(var, set_var, sizeof set_var);
    int64_t batches = 7;
    assert_ok(dsc_tensor_download(queue, &b[2].value, sizeof batches, &batches));
    assert_ok(dsc_queue_sync(queue));
    assert_int_equal(batches, 0);
    double *all[] = {x, gamma, shift, w, bias, logits, mean, var};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    close_rig(&r);
}

/* Every network evaluates as it does without fusion and storage in place. */
static void test_evaluation_fused(void **state) {
    (void)state;
    for (const net *what = nets; what->name; what++) {
        rig a = open_rig(what, DSC_EXEC_EVAL);
        net_no_fusion = 1;
        rig b = open_rig(what, DSC_EXEC_EVAL);
        net_no_fusion = 0;
        double *la = logits_of(&a), *lb = logits_of(&b);
        assert_close(BATCH * NET_CLASSES, la, lb, 1000);
        free(la);
        free(lb);
        close_rig(&a);
        close_rig(&b);
    }
}

/* ---- dropout ---- */

static dsc_status build_dropout(dsc_model *m, dsc_value *logits) {
    dsc_value x;
    dsc_status status = dsc_model_input(m, 2, 2, 3, &x);
    if (status == DSC_OK)
        status = dsc_model_flatten(m, x, &x);
    if (status == DSC_OK)
        status = dsc_model_dropout(m, x, 0.5, &x);
    if (status == DSC_OK)
        status = dsc_model_linear(m, "fc1", x, 8, 1, &x);
    if (status == DSC_OK)
        status = dsc_model_dropout(m, x, 0.5, &x);
    return status == DSC_OK ? dsc_model_linear(m, "fc", x, NET_CLASSES, 1, logits) : status;
}

static const net dropout_net = {"dropout", build_dropout, 2, 2, 3, 0, 1};

static double *logits_at(rig *r, int64_t step, int64_t first) {
    assert_ok(dsc_exec_set_position(r->exec, queue, step, first));
    return logits_of(r);
}

/* The mask depends on step and sample only: not on which executor, nor on how samples are split. */
static void test_dropout(void **state) {
    (void)state;
    const int64_t n = BATCH * NET_CLASSES, half = n / 2;
    rig r = open_rig(&dropout_net, DSC_EXEC_TRAIN);
    double *a = logits_at(&r, 4, 0), *b = logits_at(&r, 4, 0), *c = logits_at(&r, 5, 0);
    assert_memory_equal(a, b, (size_t)n * sizeof *a);
    assert_true(largest_difference(n, a, c) > 0.01);
    rig part = {.m = r.m};
    assert_ok(dsc_exec_create(r.m, DSC_EXEC_TRAIN, BATCH / 2, &part.exec));
    part.x = dsc_tensor_slice(&r.x, BATCH / 2 * 12, BATCH / 2 * 12);
    part.x = dsc_tensor_view(device, part.x.data, real, 4, (int64_t[]){BATCH / 2, 2, 2, 3});
    double *second = logits_at(&part, 4, BATCH / 2);
    assert_close(half, a + half, second, 100);
    dsc_exec_destroy(&part.exec);
    free(a);
    free(b);
    free(c);
    free(second);
    close_rig(&r);
}

/* In evaluation the network is the one without dropout. */
static void test_dropout_evaluation(void **state) {
    (void)state;
    rig r = open_rig(&dropout_net, DSC_EXEC_EVAL);
    double *a = logits_at(&r, 4, 0), *b = logits_at(&r, 5, 3), expected[BATCH * NET_CLASSES];
    assert_memory_equal(a, b, sizeof expected);
    const dsc_param *p = dsc_model_params(r.m);
    double *w[4], *x = read_doubles(queue, &r.x);
    for (int i = 0; i < 4; i++)
        w[i] = read_doubles(queue, &p[i].value);
    for (int n = 0; n < BATCH; n++) {
        double hidden[8];
        for (int k = 0; k < 8; k++) {
            hidden[k] = w[1][k];
            for (int i = 0; i < 12; i++)
                hidden[k] += w[0][k * 12 + i] * x[n * 12 + i];
        }
        for (int k = 0; k < NET_CLASSES; k++) {
            expected[n * NET_CLASSES + k] = w[3][k];
            for (int i = 0; i < 8; i++)
                expected[n * NET_CLASSES + k] += w[2][k * 8 + i] * hidden[i];
        }
    }
    assert_close(BATCH * NET_CLASSES, expected, a, 100);
    for (int i = 0; i < 4; i++)
        free(w[i]);
    free(x);
    free(a);
    free(b);
    close_rig(&r);
}

/* ---- loss and backward ---- */

/* One forward, two losses, each with its backward: alone and accumulated. */
static void test_accumulate(void **state) {
    (void)state;
    for (const net *what = nets; what->name; what++) {
        rig r = open_rig(what, DSC_EXEC_TRAIN);
        dsc_tensor other = random_labels(queue, 3, BATCH, NET_CLASSES), grads = dsc_model_grads(r.m);
        int64_t n = dsc_tensor_count(&grads);
        dsc_backward_options options;
        dsc_backward_options_init(&options);
        assert_ok(dsc_exec_forward(r.exec, queue, &r.x));
        const dsc_tensor *labels[] = {&r.labels, &other, &r.labels, &other};
        double *g[4];
        for (int i = 0; i < 4; i++) {
            options.accumulate = i == 3;
            assert_ok(dsc_exec_loss(r.exec, queue, labels[i], 0.25));
            assert_ok(dsc_exec_backward(r.exec, queue, &options));
            g[i] = read_doubles(queue, &grads);
        }
        assert_memory_equal(g[0], g[2], (size_t)n * sizeof *g[0]);
        assert_true(largest_difference(n, g[0], g[1]) > 1e-3);
        for (int64_t i = 0; i < n; i++)
            g[2][i] += g[1][i];
        assert_close(n, g[2], g[3], 1000);
        for (int i = 0; i < 4; i++)
            free(g[i]);
        dsc_tensor_free(&other);
        close_rig(&r);
    }
}

/* A model's label smoothing can be turned off and on again. */
static void test_smoothing_off(void **state) {
    (void)state;
    double loss[4];
    for (int i = 0; i < 4; i++) { /* none, smoothed, turned off, turned on */
        rig r = {.m = make_model(device, find_net("dense"), real, i > 0 ? 0.25 : 0)};
        assert_ok(dsc_exec_create(r.m, DSC_EXEC_TRAIN, BATCH, &r.exec));
        r.x = random_tensor(
            queue, 1, real, 4,
            (int64_t[]){BATCH, find_net("dense")->h, find_net("dense")->w, find_net("dense")->c});
        r.labels = random_labels(queue, 2, BATCH, NET_CLASSES);
        if (i >= 2)
            dsc_exec_smooth_labels(r.exec, 0);
        if (i == 3)
            dsc_exec_smooth_labels(r.exec, 1);
        assert_ok(dsc_exec_forward(r.exec, queue, &r.x));
        assert_ok(dsc_exec_loss(r.exec, queue, &r.labels, 1));
        double *stats = read_doubles(queue, dsc_exec_stats(r.exec));
        loss[i] = stats[0];
        free(stats);
        close_rig(&r);
    }
    assert_true(loss[2] == loss[0] && loss[3] == loss[1] && loss[0] != loss[1]);
}

static void test_stats(void **state) {
    (void)state;
    rig r = open_rig(find_net("dense"), DSC_EXEC_EVAL);
    double *logits = logits_of(&r), expected[4] = {0};
    int32_t labels[BATCH] = {0, 1, -1, 2, 3, 4};
    assert_ok(dsc_tensor_upload(queue, labels, sizeof labels, &r.labels));
    assert_ok(dsc_queue_sync(queue));
    for (int n = 0; n < BATCH; n++) {
        const double *z = logits + n * NET_CLASSES;
        double sum = 0;
        int better = 0;
        if (labels[n] < 0)
            continue;
        for (int k = 0; k < NET_CLASSES; k++) {
            sum += exp(z[k] - z[labels[n]]);
            better += z[k] > z[labels[n]];
        }
        expected[0] += log(sum);
        expected[1] += better == 0;
        expected[2] += better < 5;
        expected[3] += 1;
    }
    assert_ok(dsc_exec_loss(r.exec, queue, &r.labels, 1));
    assert_ok(dsc_exec_loss(r.exec, queue, &r.labels, 1));
    double *stats = read_doubles(queue, dsc_exec_stats(r.exec));
    for (int i = 0; i < 4; i++)
        expected[i] *= 2;
    assert_close(4, expected, stats, 100);
    free(stats);
    assert_ok(dsc_exec_clear_stats(r.exec, queue));
    stats = read_doubles(queue, dsc_exec_stats(r.exec));
    assert_true(largest(4, stats) == 0);
    free(stats);
    free(logits);
    close_rig(&r);
}

/* ---- losses of one output ---- */

static dsc_status build_pixels(dsc_model *m, dsc_value *logits) {
    dsc_value x;
    dsc_conv2d_shape conv = square_conv(1, 1);
    DSC_TRY(dsc_model_input(m, 3, 4, 2, &x));
    return dsc_model_conv2d(m, "conv", x, &conv, 1, logits);
}

enum { PIXELS = 12, PIXEL_PARAMS = 3 };

/* Gradients of both parameters and the statistics of a loss. */
static void pixel_loss(const rig *r, dsc_loss loss, double grads[PIXEL_PARAMS], double stats[4]) {
    assert_ok(dsc_exec_set_loss(r->exec, loss));
    assert_ok(dsc_exec_clear_stats(r->exec, queue));
    assert_ok(dsc_exec_forward(r->exec, queue, &r->x));
    assert_ok(dsc_exec_loss(r->exec, queue, &r->labels, 1.0 / (BATCH * PIXELS)));
    assert_ok(dsc_exec_backward(r->exec, queue, NULL));
    dsc_tensor all = dsc_model_grads(r->m);
    double *values = read_doubles(queue, &all), *sums = read_doubles(queue, dsc_exec_stats(r->exec));
    memcpy(grads, values, PIXEL_PARAMS * sizeof *grads);
    memcpy(stats, sums, 4 * sizeof *stats);
    free(values);
    free(sums);
}

/* Computes both losses by their formulas, from the logits. */
static void naive_losses(const rig *r, const int32_t *labels, double *bce, double *dice) {
    double *z = read_doubles(queue, dsc_exec_logits(r->exec)), both = 0, sum = 0;
    *bce = 0;
    for (int i = 0; i < BATCH * PIXELS; i++) {
        double p = 1 / (1 + exp(-z[i]));
        *bce -= log(labels[i] ? p : 1 - p);
        both += p * labels[i];
        sum += p + labels[i];
    }
    *dice = BATCH * PIXELS * (1 - (2 * both + 1) / (sum + 1));
    free(z);
}

/* The sum of both losses has the sum of their values and gradients, and counts rows and right predictions once. */
static void test_pixel_losses(void **state) {
    (void)state;
    const net what = {"pixels", build_pixels, 3, 4, 2, 0, 0};
    const double limit = 400 * epsilon;
    double grads[3][PIXEL_PARAMS], stats[3][4], bce, dice;
    int32_t labels[BATCH * PIXELS];
    rig r = open_rig(&what, DSC_EXEC_TRAIN);
    dsc_tensor_free(&r.labels);
    r.labels = random_labels(queue, 5, BATCH * PIXELS, 2);
    assert_ok(dsc_tensor_download(queue, &r.labels, sizeof labels, labels));
    assert_ok(dsc_queue_sync(queue));
    for (int i = 0; i < 3; i++)
        pixel_loss(&r, (dsc_loss)(DSC_LOSS_BCE + i), grads[i], stats[i]);
    naive_losses(&r, labels, &bce, &dice);
    assert_true(fabs(stats[0][0] - bce) <= limit * bce);
    assert_true(fabs(stats[1][0] - dice) <= limit * dice);
    assert_true(fabs(stats[2][0] - bce - dice) <= limit * (bce + dice));
    for (int i = 0; i < 3; i++) {
        assert_true(stats[i][3] == BATCH * PIXELS);
        assert_true(stats[i][1] == stats[0][1] && stats[i][1] > 0);
        assert_true(fabs(grads[2][i] - grads[0][i] - grads[1][i]) <= limit);
        assert_true(fabs(grads[0][i]) > 1e-4 && fabs(grads[1][i]) > 1e-4);
    }
    assert_fails(DSC_E_INVALID, "loss cross-entropy: the model has 1 outputs at a position",
                 dsc_exec_set_loss(r.exec, DSC_LOSS_CROSS_ENTROPY));
    /* Drawn labels need a likelihood, which Dice is not. */
    assert_ok(dsc_exec_clear_stats(r.exec, queue));
    assert_ok(dsc_exec_likelihood_loss(r.exec, queue, &r.labels, 1));
    double *sums = read_doubles(queue, dsc_exec_stats(r.exec));
    assert_true(sums[0] == stats[0][0]);
    free(sums);
    close_rig(&r);

    rig classes = open_rig(&nets[0], DSC_EXEC_TRAIN);
    assert_fails(DSC_E_INVALID, "loss dice: the model has 5 outputs at a position, but must have one",
                 dsc_exec_set_loss(classes.exec, DSC_LOSS_DICE));
    assert_fails(DSC_E_INVALID, "there is no loss number 9", dsc_exec_set_loss(classes.exec, (dsc_loss)9));
    close_rig(&classes);
}

/* Squared differences: the gradient of the bias is the mean of 2 (y - target). */
static void test_squares(void **state) {
    (void)state;
    const net what = {"pixels", build_pixels, 3, 4, 2, 0, 0};
    const int64_t dim[2] = {BATCH * PIXELS, 1};
    rig r = open_rig(&what, DSC_EXEC_TRAIN);
    dsc_tensor targets = random_tensor(queue, 8, DSC_F32, 2, dim);
    assert_ok(dsc_exec_clear_stats(r.exec, queue));
    assert_ok(dsc_exec_forward(r.exec, queue, &r.x));
    assert_ok(dsc_exec_mse_loss(r.exec, queue, &targets, 1.0 / (BATCH * PIXELS)));
    assert_ok(dsc_exec_backward(r.exec, queue, NULL));
    dsc_tensor all = dsc_model_grads(r.m);
    double *y = read_doubles(queue, dsc_exec_logits(r.exec)), *t = read_doubles(queue, &targets);
    double *grads = read_doubles(queue, &all), *stats = read_doubles(queue, dsc_exec_stats(r.exec));
    double loss = 0, slope = 0;
    for (int i = 0; i < BATCH * PIXELS; i++) {
        loss += (y[i] - t[i]) * (y[i] - t[i]);
        slope += 2 * (y[i] - t[i]) / (BATCH * PIXELS);
    }
    assert_true(fabs(stats[0] - loss) <= 400 * epsilon * loss && stats[3] == BATCH * PIXELS);
    assert_true(fabs(grads[PIXEL_PARAMS - 1] - slope) <= 400 * epsilon);
    free(y);
    free(t);
    free(grads);
    free(stats);
    dsc_tensor_free(&targets);
    close_rig(&r);
}

static void test_order_of_calls(void **state) {
    (void)state;
    assert_fails(DSC_E_INVALID, "forward: no executor", dsc_exec_forward(NULL, queue, NULL));
    assert_fails(DSC_E_INVALID, "loss: no executor", dsc_exec_loss(NULL, queue, NULL, 1));
    assert_fails(DSC_E_INVALID, "backward: no executor", dsc_exec_backward(NULL, queue, NULL));
    dsc_exec *none = NULL;
    assert_fails(DSC_E_INVALID, "executor: no model", dsc_exec_create(NULL, DSC_EXEC_TRAIN, 1, &none));
    rig r = open_rig(find_net("residual"), DSC_EXEC_TRAIN), e = open_rig(find_net("residual"), DSC_EXEC_EVAL);
    assert_fails(DSC_E_INVALID, "no forward", dsc_exec_loss(r.exec, queue, &r.labels, 1));
    assert_fails(DSC_E_INVALID, "no loss", dsc_exec_backward(r.exec, queue, NULL));
    assert_ok(dsc_exec_forward(r.exec, queue, &r.x));
    assert_fails(DSC_E_INVALID, "no loss", dsc_exec_backward(r.exec, queue, NULL));
    assert_ok(dsc_exec_loss(r.exec, queue, &r.labels, 1));
    dsc_backward_options options = {0};
    assert_fails(DSC_E_INVALID, "dsc_backward_options_init", dsc_exec_backward(r.exec, queue, &options));
    assert_ok(dsc_exec_backward(r.exec, queue, NULL));
    assert_fails(DSC_E_INVALID, "no loss", dsc_exec_backward(r.exec, queue, NULL));
    assert_ok(dsc_exec_forward(e.exec, queue, &e.x));
    assert_ok(dsc_exec_loss(e.exec, queue, &e.labels, 1));
    assert_fails(DSC_E_INVALID, "evaluation", dsc_exec_backward(e.exec, queue, NULL));
    dsc_tensor wrong = r.x;
    wrong.dim[0]--;
    assert_fails(DSC_E_INVALID, "[5,5,5,3], but [6,5,5,3]", dsc_exec_forward(r.exec, queue, &wrong));
    wrong = r.x;
    wrong.dtype = DSC_I64;
    assert_fails(DSC_E_INVALID, "x is of type i64", dsc_exec_forward(r.exec, queue, &wrong));
    close_rig(&r);
    close_rig(&e);
}

/* A float input of a double model is converted. */
static void test_input_conversion(void **state) {
    (void)state;
    rig r = open_rig(find_net("dense"), DSC_EXEC_TRAIN); /* flattens the input: a view of it must follow */
    dsc_tensor x32;
    assert_ok(dsc_tensor_alloc(device, DSC_F32, 4, r.x.dim, &x32));
    assert_ok(dsc_op_convert(queue, &r.x, &x32));
    assert_ok(dsc_op_convert(queue, &x32, &r.x));
    double *a = gradients_of(&r);
    dsc_tensor x64 = r.x;
    r.x = x32;
    double *b = gradients_of(&r);
    assert_memory_equal(a, b, (size_t)dsc_model_parameter_total(r.m) * sizeof *a);
    r.x = x64;
    dsc_tensor_free(&x32);
    free(a);
    free(b);
    close_rig(&r);
}

/* ---- hooks ---- */

enum { MOST = 64 };
typedef struct record {
    rig *r;
    int captures, readies;
    int64_t layer[MOST], param[MOST];
    double *a[MOST], *g[MOST]; /* by layer */
    double *grad[MOST];        /* by parameter, when it was announced */
    int64_t captured_at_ready[MOST];
} record;

static dsc_status on_capture(void *context, dsc_queue *q, int64_t layer, const dsc_tensor *a,
                             const dsc_tensor *g) {
    record *rec = context;
    const dsc_layer_info *info = &dsc_model_layers(rec->r->m)[layer];
    assert_int_equal(dsc_tensor_count(a), BATCH * info->shape->in_h * info->shape->in_w * info->shape->in_c);
    assert_int_equal(dsc_tensor_count(g), BATCH * info->out_h * info->out_w * info->shape->out_c);
    assert_int_equal(a->ndim, info->kind == DSC_LAYER_LINEAR ? 2 : 4);
    rec->a[layer] = read_doubles(q, a);
    rec->g[layer] = read_doubles(q, g);
    rec->layer[rec->captures++] = layer;
    return DSC_OK;
}

static dsc_status on_ready(void *context, dsc_queue *q, int64_t param) {
    record *rec = context;
    rec->captured_at_ready[param] = rec->captures;
    rec->grad[param] = read_doubles(q, &dsc_model_params(rec->r->m)[param].grad);
    rec->param[rec->readies++] = param;
    return DSC_OK;
}

static void free_record(record *rec) {
    for (int i = 0; i < MOST; i++) {
        free(rec->a[i]);
        free(rec->g[i]);
        free(rec->grad[i]);
    }
}

/* The weight gradient of a transposed convolution: w[in_c, patch] += a g, where g is the patch of the output that the
 * pixel has contributed to. */
static void expected_transposed_gradient(const record *rec, int64_t layer, double *out) {
    const dsc_layer_info *l = &dsc_model_layers(rec->r->m)[layer];
    const dsc_conv2d_shape *s = l->shape;
    int64_t width = s->kernel_h * s->kernel_w * s->out_c;
    memset(out, 0, (size_t)(s->in_c * width) * sizeof *out);
    for (int64_t pixel = 0; pixel < BATCH * s->in_h * s->in_w; pixel++)
        for (int64_t j = 0; j < width; j++) {
            int64_t row = pixel / s->in_w % s->in_h * s->stride_h - s->pad_h;
            int64_t column = pixel % s->in_w * s->stride_w - s->pad_w;
            row += j / s->out_c / s->kernel_w * s->dilation_h;
            column += j / s->out_c % s->kernel_w * s->dilation_w;
            if (row < 0 || row >= l->out_h || column < 0 || column >= l->out_w)
                continue;
            int64_t image = pixel / s->in_w / s->in_h, at = (image * l->out_h + row) * l->out_w + column;
            for (int64_t i = 0; i < s->in_c; i++)
                out[i * width + j] +=
                    rec->a[layer][pixel * s->in_c + i] * rec->g[layer][at * s->out_c + j % s->out_c];
        }
}

/* The weight gradient that a layer's input and output gradient give: patches' g, group by group. */
static void expected_weight_gradient(const record *rec, int64_t layer, double *out) {
    const dsc_layer_info *l = &dsc_model_layers(rec->r->m)[layer];
    dsc_conv_desc desc = {.dtype = DSC_F64, .n = BATCH, .shape = *l->shape};
    int64_t rows = BATCH * l->out_h * l->out_w, k = l->shape->out_c / desc.shape.groups;
    int64_t width = desc.shape.kernel_h * desc.shape.kernel_w * desc.shape.in_c / desc.shape.groups;
    dsc_tensor patches, x;
    assert_ok(dsc_tensor_alloc(device, DSC_F64, 2, (int64_t[]){rows, width}, &patches));
    assert_ok(dsc_tensor_alloc(device, DSC_F64, 4,
                               (int64_t[]){BATCH, l->shape->in_h, l->shape->in_w, l->shape->in_c}, &x));
    write_doubles(queue, rec->a[layer], &x);
    for (int64_t group = 0; group < desc.shape.groups; group++) {
        assert_ok(dsc_op_patches(queue, &desc, &x, group, 0, &patches));
        double *p = read_doubles(queue, &patches);
        for (int64_t i = group * k; i < (group + 1) * k; i++)
            for (int64_t j = 0; j < width; j++) {
                double sum = 0;
                for (int64_t row = 0; row < rows; row++)
                    sum += rec->g[layer][row * l->shape->out_c + i] * p[row * width + j];
                out[i * width + j] = sum;
            }
        free(p);
    }
    dsc_tensor_free(&x);
    dsc_tensor_free(&patches);
}

static void check_hooks(const net *what) {
    rig r = open_rig(what, DSC_EXEC_TRAIN);
    record rec = {.r = &r};
    dsc_backward_options options;
    dsc_backward_options_init(&options);
    options.context = &rec;
    options.capture = on_capture;
    options.grad_ready = on_ready;
    assert_ok(dsc_exec_forward(r.exec, queue, &r.x));
    assert_ok(dsc_exec_loss(r.exec, queue, &r.labels, 1));
    assert_ok(dsc_exec_backward(r.exec, queue, &options));
    int64_t params = dsc_model_param_count(r.m), layers = dsc_model_layer_count(r.m);
    assert_int_equal(rec.readies, params);
    assert_int_equal(rec.captures, layers);
    for (int64_t i = 0; i < params; i++) {
        const dsc_tensor *grad = &dsc_model_params(r.m)[i].grad;
        assert_int_equal(rec.param[i], params - 1 - i);
        double *now = read_doubles(queue, grad);
        assert_memory_equal(now, rec.grad[i], dsc_tensor_bytes(grad)); /* it was final */
        free(now);
    }
    for (int64_t i = 0; i < layers; i++) {
        const dsc_layer_info *info = &dsc_model_layers(r.m)[i];
        int64_t n = dsc_tensor_count(&dsc_model_params(r.m)[info->weight].grad);
        double *expected = malloc((size_t)n * sizeof *expected);
        assert_non_null(expected);
        assert_int_equal(rec.layer[i], layers - 1 - i);
        assert_true(rec.captured_at_ready[info->weight] >= layers - i); /* captured first */
        if (info->kind == DSC_LAYER_CONV_TRANSPOSE2D)
            expected_transposed_gradient(&rec, i, expected);
        else
            expected_weight_gradient(&rec, i, expected);
        assert_close(n, expected, rec.grad[info->weight], 1000);
        free(expected);
    }
    free_record(&rec);
    close_rig(&r);
}

static void test_hooks(void **state) {
    (void)state;
    for (const net *what = nets; what->name; what++)
        check_hooks(what);
    for (const net *what = own_nets; what->name && dsc_device_is_host(device); what++)
        check_hooks(what);
}

/* A backward pass that computes no gradients of parameters leaves these as they are and gives the same captures. */
static void test_capture_only(void **state) {
    (void)state;
    for (const net *what = nets; what->name; what++) {
        rig r = open_rig(what, DSC_EXEC_TRAIN);
        record with = {.r = &r}, without = {.r = &r};
        dsc_backward_options options;
        dsc_backward_options_init(&options);
        options.capture = on_capture;
        options.grad_ready = on_ready;
        dsc_tensor grads = dsc_model_grads(r.m);
        assert_ok(dsc_exec_forward(r.exec, queue, &r.x));
        for (int i = 0; i < 2; i++) {
            options.param_grads = i == 0;
            options.context = i == 0 ? &with : &without;
            assert_ok(dsc_exec_loss(r.exec, queue, &r.labels, 1));
            if (i == 1)
                assert_ok(dsc_op_fill(queue, 123, &grads));
            assert_ok(dsc_exec_backward(r.exec, queue, &options));
        }
        double *g = read_doubles(queue, &grads);
        for (int64_t i = 0; i < dsc_tensor_count(&grads); i++)
            assert_true(g[i] == 123);
        free(g);
        assert_int_equal(without.readies, 0);
        assert_int_equal(without.captures, with.captures);
        for (int64_t i = 0; i < dsc_model_layer_count(r.m); i++) {
            const dsc_layer_info *l = &dsc_model_layers(r.m)[i];
            size_t bytes = (size_t)(BATCH * l->out_h * l->out_w * l->shape->out_c) * sizeof(double);
            assert_memory_equal(with.g[i], without.g[i], bytes);
        }
        free_record(&with);
        free_record(&without);
        close_rig(&r);
    }
}

/* The tensors [a, g] of the last captures, and copies of their contents at that time. */
typedef struct lasting {
    int64_t count, changed;
    dsc_tensor tensors[DSC_EXEC_CAPTURES][2];
    double *then[DSC_EXEC_CAPTURES][2];
} lasting;

/* Compares the present contents of an earlier capture with the copy, and drops it. */
static void look_back(lasting *l, int64_t number) {
    int64_t at = number % DSC_EXEC_CAPTURES;
    for (int i = 0; i < 2; i++) {
        const dsc_tensor *t = &l->tensors[at][i];
        double *now = read_doubles(queue, t);
        l->changed += memcmp(now, l->then[at][i], (size_t)dsc_tensor_count(t) * sizeof *now) != 0;
        free(now);
        free(l->then[at][i]);
        l->then[at][i] = NULL;
    }
}

static dsc_status keep_capture(void *context, dsc_queue *q, int64_t layer, const dsc_tensor *a,
                               const dsc_tensor *g) {
    lasting *l = context;
    (void)q;
    (void)layer;
    if (l->count >= DSC_EXEC_CAPTURES)
        look_back(l, l->count - DSC_EXEC_CAPTURES);
    int64_t at = l->count++ % DSC_EXEC_CAPTURES;
    l->tensors[at][0] = *a;
    l->tensors[at][1] = *g;
    for (int i = 0; i < 2; i++)
        l->then[at][i] = read_doubles(queue, &l->tensors[at][i]);
    return DSC_OK;
}

/* Captured tensors stay until the second next capture, or the end of the pass, if that is asked for. */
static void test_lasting_captures(void **state) {
    (void)state;
    for (int asked = 0; asked < 2; asked++) {
        dsc_model *m;
        dsc_exec *exec;
        dsc_backward_options options;
        lasting l = {0};
        assert_ok(dsc_zoo_create(device, "resnet20", 8, 8, 3, NET_CLASSES, NULL, &m));
        assert_ok(asked ? dsc_exec_create_lasting(m, DSC_EXEC_TRAIN, BATCH, &exec)
                        : dsc_exec_create(m, DSC_EXEC_TRAIN, BATCH, &exec));
        dsc_tensor x = random_tensor(queue, 1, DSC_F32, 4, (int64_t[]){BATCH, 8, 8, 3});
        dsc_tensor labels = random_labels(queue, 2, BATCH, NET_CLASSES);
        dsc_backward_options_init(&options);
        options.capture = keep_capture;
        options.context = &l;
        assert_ok(dsc_exec_forward(exec, queue, &x));
        assert_ok(dsc_exec_loss(exec, queue, &labels, 1));
        assert_ok(dsc_exec_backward(exec, queue, &options));
        for (int64_t i = l.count - DSC_EXEC_CAPTURES; i < l.count; i++)
            look_back(&l, i);
        assert_int_equal(l.count, dsc_model_layer_count(m));
        assert_int_equal(l.changed > 0, !asked);
        dsc_tensor_free(&x);
        dsc_tensor_free(&labels);
        dsc_exec_destroy(&exec);
        dsc_model_destroy(&m);
    }
}

static dsc_status fail_capture(void *context, dsc_queue *q, int64_t layer, const dsc_tensor *a,
                               const dsc_tensor *g) {
    (void)context, (void)q, (void)layer, (void)a, (void)g;
    return DSC_E_NUMERIC;
}

static void test_failing_hook(void **state) {
    (void)state;
    rig r = open_rig(find_net("dense"), DSC_EXEC_TRAIN);
    dsc_backward_options options;
    dsc_backward_options_init(&options);
    options.capture = fail_capture;
    assert_ok(dsc_exec_forward(r.exec, queue, &r.x));
    assert_ok(dsc_exec_loss(r.exec, queue, &r.labels, 1));
    assert_int_equal(dsc_exec_backward(r.exec, queue, &options), DSC_E_NUMERIC);
    assert_string_equal(dsc_error_message(),
                        "the caller's function `capture` returned DSC_E_NUMERIC (numerical "
                        "failure) without a message");
    close_rig(&r);
}

/* ---- memory ---- */

static void test_memory(void **state) {
    (void)state;
    skip_on_chosen("workspaces of another size than ref's");
    dsc_model *m = NULL;
    dsc_exec *train = NULL, *eval = NULL;
    assert_ok(dsc_zoo_create(device, "resnet20", 32, 32, 3, 10, NULL, &m));
    size_t before = dsc_device_bytes(device);
    assert_ok(dsc_exec_create(m, DSC_EXEC_TRAIN, 4, &train));
    assert_true(dsc_device_bytes(device) - before >= dsc_exec_bytes(train));
    assert_ok(dsc_exec_create(m, DSC_EXEC_EVAL, 4, &eval));
    assert_true(dsc_exec_bytes(train) < dsc_exec_bytes_without_reuse(train) * 2 / 3);
    assert_true(dsc_exec_bytes(eval) < dsc_exec_bytes_without_reuse(eval) / 5);
    assert_true(dsc_exec_bytes(eval) < dsc_exec_bytes(train) / 8);
    /* The largest map is 16 x 32 x 32 floats. Evaluation needs three of them: a block's input and two more.
     */
    size_t map = 4 * 16 * 32 * 32 * sizeof(float);
    assert_true(dsc_exec_bytes(eval) <= 3 * map + 4096 + train->work_bytes);
    dsc_exec_destroy(&eval);
    dsc_exec_destroy(&train);
    assert_int_equal(dsc_device_bytes(device), before);
    dsc_model_destroy(&m);
}

static void step_without_allocation(const char *name, const net *what) {
    dsc_device *d = open_device(name);
    dsc_queue *q = open_queue(d);
    dsc_model *m = make_model(d, what, DSC_F32, 0);
    dsc_exec *exec = NULL;
    dsc_tensor x = random_tensor(q, 1, DSC_F32, 4, (int64_t[]){BATCH, what->h, what->w, what->c});
    dsc_tensor labels = random_labels(q, 2, BATCH, NET_CLASSES);
    assert_ok(dsc_exec_create(m, DSC_EXEC_TRAIN, BATCH, &exec));
    int64_t allocations = 0;
    size_t bytes = 0;
    for (int step = 0; step < 3; step++) {
        if (step == 1) { /* after the first, in which a library may warm up */
            allocations = dsc_memory_allocations();
            bytes = dsc_device_bytes(d);
        }
        assert_ok(dsc_exec_set_position(exec, q, step, 0));
        assert_ok(dsc_exec_clear_stats(exec, q));
        assert_ok(dsc_exec_forward(exec, q, &x));
        assert_ok(dsc_exec_loss(exec, q, &labels, 1));
        assert_ok(dsc_exec_backward(exec, q, NULL));
    }
    assert_int_equal(dsc_memory_allocations(), allocations);
    assert_int_equal(dsc_device_bytes(d), bytes);
    dsc_exec_destroy(&exec);
    dsc_tensor_free(&x);
    dsc_tensor_free(&labels);
    dsc_model_destroy(&m);
    dsc_queue_destroy(&q);
    dsc_device_destroy(&d);
}

static void test_no_allocation(void **state) {
    (void)state;
    const char *const names[] = {chosen_or("ref"), chosen_or("cpu")};
    for (int i = chosen() ? 1 : 0; i < 2; i++)
        for (const net *what = nets; what->name; what++)
            step_without_allocation(names[i], what);
}

/* ---- devices ---- */

typedef struct outcome {
    int64_t logit_count;
    double *logits, *grads, *eval_logits;
} outcome;

typedef struct network {
    const char *name;
    int64_t side, batch;
} network;

/* One training step on random images and an evaluation after it. */
static outcome run_network(const network *what, const char *name, dsc_dtype dtype) {
    const int64_t n = what->batch, image[] = {n, what->side, what->side, 3};
    dsc_device *d = open_device(name);
    dsc_queue *q = open_queue(d);
    dsc_model_options options;
    dsc_model_options_init(&options);
    options.dtype = dtype;
    dsc_model *m = NULL;
    dsc_exec *train = NULL, *eval = NULL;
    assert_ok(dsc_zoo_create(d, what->name, what->side, what->side, 3, 10, &options, &m));
    assert_ok(dsc_exec_create(m, DSC_EXEC_TRAIN, n, &train));
    assert_ok(dsc_exec_create(m, DSC_EXEC_EVAL, n, &eval));
    dsc_tensor x = random_tensor(q, 5, DSC_F32, 4, image);
    dsc_tensor labels = random_labels(q, 6, n, 10), grads = dsc_model_grads(m);
    assert_ok(dsc_exec_forward(train, q, &x));
    assert_ok(dsc_exec_loss(train, q, &labels, 1.0 / (double)n));
    assert_ok(dsc_exec_backward(train, q, NULL));
    assert_ok(dsc_exec_forward(eval, q, &x));
    outcome out = {n * 10, read_doubles(q, dsc_exec_logits(train)), read_doubles(q, &grads),
                   read_doubles(q, dsc_exec_logits(eval))};
    dsc_tensor_free(&x);
    dsc_tensor_free(&labels);
    dsc_exec_destroy(&eval);
    dsc_exec_destroy(&train);
    dsc_model_destroy(&m);
    dsc_queue_destroy(&q);
    dsc_device_destroy(&d);
    return out;
}

static void free_outcome(outcome *o) {
    free(o->logits);
    free(o->grads);
    free(o->eval_logits);
}

/* |a - b| against |a|, as vectors. */
static double relative(int64_t n, const double *a, const double *b) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        size += a[i] * a[i];
    }
    return sqrt(difference / size);
}

static void check_near(const network *what, const char *device_name, const char *part, int64_t n,
                       const double *truth, const double *got, double tolerance) {
    double apart = relative(n, truth, got);
    if (!(apart < tolerance))
        fail_msg("%s, batch %d, on %s: %s is %g off, limit %g", what->name, (int)what->batch, device_name,
                 part, apart, tolerance);
}

/* Compares every parameter's gradient by itself, so that a wrong one is not hidden by the others. */
static void check_device(const network *what, const char *name, const outcome *truth, double tolerance) {
    outcome o = run_network(what, name, DSC_F32);
    dsc_model *m = NULL;
    dsc_device *d = open_device("ref");
    assert_ok(dsc_zoo_create(d, what->name, what->side, what->side, 3, 10, NULL, &m));
    check_near(what, name, "logits", o.logit_count, truth->logits, o.logits, tolerance);
    for (int64_t i = 0, from = 0; i < dsc_model_param_count(m); i++) {
        const dsc_param *p = &dsc_model_params(m)[i];
        int64_t count = dsc_tensor_count(&p->value);
        check_near(what, name, p->name, count, truth->grads + from, o.grads + from, tolerance);
        from += count;
    }
    check_near(what, name, "evaluation", o.logit_count, truth->eval_logits, o.eval_logits, tolerance);
    dsc_model_destroy(&m);
    dsc_device_destroy(&d);
    free_outcome(&o);
}

/* Devices in float are as near to the reference in double as float allows: up to 20 layers, each a sum of up to 576
 * terms whose rounding errors add like a random walk, and batch norms that magnify by less than 10. TF32 has 13 bits
 * less, so the limit is larger with it. In double every host device gives the bits of the reference. */
static void test_devices_agree(void **state) {
    (void)state;
    static const network networks[] = {
        {"resnet20", 8, 4}, {"lenet", 32, 4}, {"lenet", 32, 8}, {"lenet", 32, 12}};
    const double tolerance = 20 * sqrt(576) * 10 * FLT_EPSILON;
    for (size_t i = 0; i < sizeof networks / sizeof networks[0]; i++) {
        const network *what = &networks[i];
        outcome truth = run_network(what, "ref", DSC_F64);
        if (chosen()) {
            check_device(what, chosen_exact_or(NULL), &truth, tolerance);
            check_device(what, chosen(), &truth, 0.2);
        } else {
            check_device(what, "ref", &truth, tolerance);
            check_device(what, "cpu", &truth, tolerance);
        }
        free_outcome(&truth);
    }
    if (!chosen()) {
        outcome truth = run_network(networks, "ref", DSC_F64), twice = run_network(networks, "cpu", DSC_F64);
        assert_memory_equal(truth.logits, twice.logits, (size_t)truth.logit_count * sizeof(double));
        free_outcome(&twice);
        free_outcome(&truth);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smoothing_off),
        cmocka_unit_test(test_fusion),
        cmocka_unit_test(test_fusion_of_two),
        cmocka_unit_test(test_running_statistics),
        cmocka_unit_test(test_norm_evaluation),
        cmocka_unit_test(test_evaluation_fused),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_dropout_evaluation),
        cmocka_unit_test(test_accumulate),
        cmocka_unit_test(test_stats),
        cmocka_unit_test(test_pixel_losses),
        cmocka_unit_test(test_squares),
        cmocka_unit_test(test_order_of_calls),
        cmocka_unit_test(test_input_conversion),
        cmocka_unit_test(test_hooks),
        cmocka_unit_test(test_capture_only),
        cmocka_unit_test(test_lasting_captures),
        cmocka_unit_test(test_failing_hook),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_devices_agree),
    };
    return cmocka_run_group_tests_name("model_exec", tests, setup, teardown);
}
