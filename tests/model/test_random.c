/* Random nets in double: the gradient of the loss along a random direction against a central difference, and the bits
 * of all kinds of training executors, which place values and gradients in memory in different ways.
 *
 * Values of a net are [BATCH, HEIGHT, 1, CHANNELS] throughout, so that any two of them can be added. All layers are
 * smooth. The error of the quotient is about its difference from that of half the step; a wrong memory plan causes a
 * far larger one. */
#include "chosen.h"

#include "base/rng.h"
#include "model/exec.h"
#include "model/nets.h"

#include <math.h>
#include <stdlib.h>

enum { BATCH = 2, HEIGHT = 3, CHANNELS = 4, CLASSES = 5, LAYERS = 12, NETS = 600 };

static dsc_device *device;
static dsc_queue *queue;

static int setup(void **state) {
    (void)state;
    device = open_device("ref");
    queue = open_queue(device);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
    return 0;
}

/* ---- nets ---- */

static dsc_value mlp(dsc_model *m, const char *name, dsc_value x) {
    char inner[32];
    snprintf(inner, sizeof inner, "%s.in", name);
    assert_ok(dsc_model_linear(m, inner, x, 2 * CHANNELS, 1, &x));
    assert_ok(dsc_model_activation(m, x, DSC_ACTIVATION_GELU_TANH, &x));
    assert_ok(dsc_model_linear(m, name, x, CHANNELS, 1, &x));
    return x;
}

static dsc_value attend(dsc_model *m, const char *name, dsc_value x, int causal) {
    dsc_attention_options options;
    dsc_attention_options_init(&options);
    options.heads = 2;
    options.causal = causal;
    assert_ok(dsc_model_linear(m, name, x, 3 * CHANNELS, 1, &x));
    assert_ok(dsc_model_attention(m, x, &options, &x));
    return x;
}

static dsc_value convolve(dsc_model *m, const char *name, dsc_value x, int norm) {
    dsc_conv2d_shape shape = square_conv(CHANNELS, 3);
    char batch_norm[32];
    snprintf(batch_norm, sizeof batch_norm, "%s.norm", name);
    shape.kernel_w = 1;
    shape.pad_h = 1;
    assert_ok(dsc_model_conv2d(m, name, x, &shape, 1, &x));
    if (norm)
        assert_ok(dsc_model_batch_norm(m, batch_norm, x, &x));
    return x;
}

/* A layer of a random kind on x and perhaps y, which is then marked as read; sums of both are the most frequent. */
static dsc_value random_layer(dsc_model *m, dsc_rng *rng, const char *name, dsc_value x, dsc_value y,
                              int *reads_y) {
    dsc_value z = x;
    switch (dsc_rng_below(rng, 12)) {
    case 0:
        assert_ok(dsc_model_linear(m, name, x, CHANNELS, 1, &z));
        break;
    case 1:
        assert_ok(dsc_model_activation(m, x, DSC_ACTIVATION_TANH, &z));
        break;
    case 2:
        assert_ok(dsc_model_activation(m, x, DSC_ACTIVATION_SILU, &z));
        break;
    case 3:
        assert_ok(dsc_model_layer_norm(m, name, x, 1e-5, 1, &z));
        break;
    case 4:
        assert_ok(dsc_model_dropout(m, x, 0.2, &z));
        break;
    case 5:
        z = convolve(m, name, x, dsc_rng_below(rng, 2) > 0);
        break;
    case 6:
        z = attend(m, name, x, dsc_rng_below(rng, 2) > 0);
        break;
    case 7:
        z = mlp(m, name, x);
        break;
    case 8:
        *reads_y = 1;
        assert_ok(dsc_model_concat(m, x, y, &z));
        assert_ok(dsc_model_linear(m, name, z, CHANNELS, 0, &z));
        break;
    default:
        *reads_y = 1;
        assert_ok(dsc_model_add(m, x, y, &z));
    }
    return z;
}

/* The net of this number. Values that no layer reads are added up at the end. */
static dsc_model *make_random(uint64_t number, int recompute) {
    dsc_rng rng = dsc_rng_start(number, DSC_RNG_TEST, 0, 0);
    dsc_model_options options;
    dsc_model *m;
    dsc_value v[LAYERS + 1], sum = -1, logits;
    int read[LAYERS + 1] = {0};
    dsc_model_options_init(&options);
    options.dtype = DSC_F64;
    options.recompute = recompute;
    assert_ok(dsc_model_create(device, &options, &m));
    assert_ok(dsc_model_input(m, HEIGHT, 1, CHANNELS, &v[0]));
    for (int n = 1; n <= LAYERS; n++) {
        const int recent = dsc_rng_below(&rng, 2) > 0,
                  x = recent ? n - 1 : (int)dsc_rng_below(&rng, (uint32_t)n);
        const int y = (int)dsc_rng_below(&rng, (uint32_t)n);
        char name[16];
        snprintf(name, sizeof name, "l%d", n);
        v[n] = random_layer(m, &rng, name, v[x], v[y], &read[y]);
        read[x] = 1;
    }
    for (int n = LAYERS; n >= 0; n--) {
        if (!read[n] && sum >= 0)
            assert_ok(dsc_model_add(m, sum, v[n], &sum));
        else if (!read[n])
            sum = v[n];
    }
    assert_ok(dsc_model_linear(m, "head", sum, CLASSES, 1, &logits));
    assert_ok(dsc_model_seal(m, logits));
    return m;
}

/* ---- what is compared ---- */

typedef struct rig {
    dsc_model *m;
    dsc_exec *exec;
    dsc_tensor x, labels;
    int64_t rows;
} rig;

static rig open_rig(uint64_t number, int recompute, dsc_exec_mode mode, int lasting) {
    rig r = {.m = make_random(number, recompute)};
    r.rows = BATCH * dsc_model_positions(r.m);
    r.x = random_tensor(queue, 1, DSC_F64, 4, (int64_t[]){BATCH, HEIGHT, 1, CHANNELS});
    r.labels = random_labels(queue, 2, r.rows, CLASSES);
    assert_ok(lasting ? dsc_exec_create_lasting(r.m, mode, BATCH, &r.exec)
                      : dsc_exec_create(r.m, mode, BATCH, &r.exec));
    return r;
}

static void close_rig(rig *r) {
    dsc_tensor_free(&r->x);
    dsc_tensor_free(&r->labels);
    dsc_exec_destroy(&r->exec);
    dsc_model_destroy(&r->m);
}

static double loss(rig *r) {
    double stats[DSC_STAT_COUNT];
    assert_ok(dsc_exec_clear_stats(r->exec, queue));
    assert_ok(dsc_exec_set_position(r->exec, queue, 3, 12));
    assert_ok(dsc_exec_forward(r->exec, queue, &r->x));
    assert_ok(dsc_exec_loss(r->exec, queue, &r->labels, 1));
    assert_ok(dsc_tensor_download(queue, dsc_exec_stats(r->exec), sizeof stats, stats));
    return stats[DSC_STAT_LOSS];
}

/* All gradients after one step; free with free(). */
static double *gradients(rig *r) {
    loss(r);
    assert_ok(dsc_exec_backward(r->exec, queue, NULL));
    dsc_tensor grads = dsc_model_grads(r->m);
    return read_doubles(queue, &grads);
}

/* (loss(w + h d) - loss(w - h d)) / 2h */
static double quotient(rig *r, int64_t n, const double *w, const double *d, double h) {
    dsc_tensor values = dsc_model_values(r->m);
    double *moved = malloc((size_t)n * sizeof *moved), ends[2];
    assert_non_null(moved);
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < n; i++)
            moved[i] = w[i] + (side ? h : -h) * d[i];
        write_doubles(queue, moved, &values);
        ends[side] = loss(r);
    }
    write_doubles(queue, w, &values);
    free(moved);
    return (ends[1] - ends[0]) / (2 * h);
}

static void check_slope(uint64_t number, rig *r, const double *gradient) {
    const double h = 1e-4;
    dsc_tensor values = dsc_model_values(r->m);
    const int64_t n = dsc_tensor_count(&values);
    double *w = read_doubles(queue, &values), *d = malloc((size_t)n * sizeof *d), slope = 0;
    assert_non_null(d);
    random_doubles((uint32_t)number, n, d);
    for (int64_t i = 0; i < n; i++)
        slope += gradient[i] * d[i];
    const double rough = quotient(r, n, w, d, h), fine = quotient(r, n, w, d, h / 2);
    if (!(fabs(slope - fine) <= fabs(rough - fine) + 1e-7 * (1 + fabs(fine))))
        fail_msg("net %d: the gradient gives a slope of %.9g, differences %.9g", (int)number, slope, fine);
    free(w);
    free(d);
}

static void test_random_nets(void **state) {
    (void)state;
    for (uint64_t number = 0; number < NETS; number++) {
        rig kept = open_rig(number, 0, DSC_EXEC_TRAIN, 0);
        dsc_tensor values = dsc_model_values(kept.m);
        const size_t bytes = (size_t)dsc_tensor_count(&values) * sizeof(double);
        double *expected = gradients(&kept);
        check_slope(number, &kept, expected);
        for (int i = 1; i < 8; i++) {
            const int recompute = i % 2, lasting = i / 2 % 2, once = i / 4;
            rig other = open_rig(number, recompute, once ? DSC_EXEC_TRAIN_ONCE : DSC_EXEC_TRAIN, lasting);
            double *got = gradients(&other);
            if (memcmp(got, expected, bytes) != 0)
                fail_msg(
                    "net %d: the gradients of another executor differ (recompute %d, lasting %d, once %d)",
                    (int)number, recompute, lasting, once);
            free(got);
            close_rig(&other);
        }
        free(expected);
        close_rig(&kept);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_nets)};
    return cmocka_run_group_tests_name("model-random", tests, setup, teardown);
}
