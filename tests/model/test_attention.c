/* The attention layer: shapes and their refusals, options, values against the formula, memory. Its gradients
 * are checked with those of the other layers (test_gradients.c). */
#include "chosen.h"

#include "model/nets.h"

#include <math.h>
#include <stdlib.h>

static dsc_attention_options with_heads(int64_t heads, int causal) {
    dsc_attention_options options;
    dsc_attention_options_init(&options);
    options.heads = heads;
    options.causal = causal;
    return options;
}

static void test_shapes(void **state) {
    (void)state;
    dsc_device *device = open_device("cpu");
    dsc_model *m;
    dsc_value x, map, flat, uneven, y = -1;
    dsc_conv2d_shape conv = square_conv(12, 1), seven = square_conv(7, 1), pair = square_conv(12, 1);
    dsc_shape shape;
    assert_ok(dsc_model_create(device, NULL, &m));
    assert_ok(dsc_model_input(m, 5, 2, 3, &map));
    assert_ok(dsc_model_conv2d(m, "map", map, &conv, 0, &y));
    pair.kernel_w = 2;
    assert_ok(dsc_model_conv2d(m, "pair", map, &pair, 0, &x));
    assert_ok(dsc_model_conv2d(m, "uneven", x, &seven, 0, &uneven));
    assert_ok(dsc_model_flatten(m, x, &flat));
    dsc_attention_options two = with_heads(2, 1), three = with_heads(3, 0), none = with_heads(0, 0);
    dsc_attention_options unset = {0};
    assert_fails(DSC_E_INVALID, "the input is 5x2x12, but a sequence (positions x 1 x channels) is needed",
                 dsc_model_attention(m, y, &two, &y));
    assert_fails(DSC_E_INVALID, "the input is a vector of 60, but a map",
                 dsc_model_attention(m, flat, &two, &y));
    assert_fails(DSC_E_INVALID, "on 5x1x7: attention: 7 channels cannot be cut into queries, keys and values",
                 dsc_model_attention(m, uneven, &two, &y));
    assert_fails(DSC_E_INVALID, "4 channels of queries cannot be cut into 3 heads",
                 dsc_model_attention(m, x, &three, &y));
    assert_fails(DSC_E_INVALID, "cannot be cut into 0 heads", dsc_model_attention(m, x, &none, &y));
    assert_fails(DSC_E_INVALID, "dsc_attention_options_init", dsc_model_attention(m, x, &unset, &y));
    assert_fails(DSC_E_INVALID, "no model", dsc_model_attention(NULL, x, &two, &y));
    dsc_attention_options dropped = two, padded = two;
    dropped.dropout = 1;
    padded.padded = 1;
    assert_fails(DSC_E_INVALID, "dropout of 1, but it must be at least 0 and below 1",
                 dsc_model_attention(m, x, &dropped, &y));
    assert_fails(DSC_E_INVALID, "padding is found in the tokens", dsc_model_attention(m, x, &padded, &y));
    assert_ok(dsc_model_attention(m, x, &two, &y));
    assert_ok(dsc_model_value_shape(m, y, &shape));
    assert_true(!shape.flat && shape.h == 5 && shape.w == 1 && shape.c == 4);
    assert_ok(dsc_model_attention(m, x, NULL, &y));
    dsc_model_destroy(&m);
    dsc_device_destroy(&device);
}

/* Input of t positions and 3 d channels, attention, and the mean over positions as logits. */
static dsc_model *make_sequence(dsc_device *device, int64_t t, int64_t d,
                                const dsc_attention_options *options) {
    dsc_model *m;
    dsc_value x;
    dsc_conv2d_shape conv = square_conv(3 * d, 1);
    assert_ok(dsc_model_create(device, NULL, &m));
    assert_ok(dsc_model_input(m, t, 1, 2, &x));
    assert_ok(dsc_model_conv2d(m, "in", x, &conv, 1, &x));
    assert_ok(dsc_model_attention(m, x, options, &x));
    assert_ok(dsc_model_global_pool(m, x, &x));
    assert_ok(dsc_model_seal(m, x));
    return m;
}

/* The logits are the mean over positions of y, computed here in double; a model needs parameters, so that a
 * linear layer with the weights of the identity follows. */
static void test_values(void **state) {
    (void)state;
    enum { T = 9, HEADS = 2, DH = 3, D = HEADS * DH };
    dsc_device *device = open_device("cpu");
    dsc_queue *q = open_queue(device);
    dsc_attention_options options = with_heads(HEADS, 1);
    dsc_model *m;
    dsc_exec *exec;
    dsc_value v;
    assert_ok(dsc_model_create(device, NULL, &m));
    assert_ok(dsc_model_input(m, T, 1, 3 * D, &v));
    assert_ok(dsc_model_attention(m, v, &options, &v));
    assert_ok(dsc_model_global_pool(m, v, &v));
    assert_ok(dsc_model_linear(m, "same", v, D, 0, &v));
    assert_ok(dsc_model_seal(m, v));
    dsc_tensor weights = dsc_model_values(m);
    double identity[D * D];
    for (int i = 0; i < D * D; i++)
        identity[i] = i % (D + 1) == 0;
    write_doubles(q, identity, &weights);
    assert_ok(dsc_exec_create(m, DSC_EXEC_EVAL, 1, &exec));
    dsc_tensor x = random_tensor(q, 5, DSC_F32, 4, (int64_t[]){1, T, 1, 3 * D});
    assert_ok(dsc_exec_forward(exec, q, &x));
    double *in = read_doubles(q, &x), *logits = read_doubles(q, dsc_exec_logits(exec));
    for (int head = 0; head < HEADS; head++) {
        double mean[DH] = {0};
        for (int i = 0; i < T; i++) {
            double sum = 0, y[DH] = {0};
            for (int j = 0; j <= i; j++) {
                double s = 0;
                for (int c = 0; c < DH; c++)
                    s += in[(i * 3) * D + head * DH + c] * in[(j * 3 + 1) * D + head * DH + c];
                double p = exp(s / sqrt(DH));
                sum += p;
                for (int c = 0; c < DH; c++)
                    y[c] += p * in[(j * 3 + 2) * D + head * DH + c];
            }
            for (int c = 0; c < DH; c++)
                mean[c] += y[c] / sum / T;
        }
        for (int c = 0; c < DH; c++)
            assert_true(fabs(mean[c] - logits[head * DH + c]) < 2e-6);
    }
    free(in);
    free(logits);
    dsc_tensor_free(&x);
    dsc_exec_destroy(&exec);
    dsc_model_destroy(&m);
    dsc_queue_destroy(&q);
    dsc_device_destroy(&device);
}

/* Twice as many positions need about twice the memory: there is no buffer of T x T. */
static void test_memory(void **state) {
    (void)state;
    dsc_device *device = open_device("cpu");
    dsc_attention_options options = with_heads(4, 1);
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        dsc_model *m = make_sequence(device, 8192 << i, 8, &options);
        dsc_exec *exec;
        assert_ok(dsc_exec_create(m, DSC_EXEC_TRAIN, 1, &exec));
        bytes[i] = dsc_exec_bytes(exec);
        dsc_exec_destroy(&exec);
        dsc_model_destroy(&m);
    }
    assert_true(bytes[1] <= 2 * bytes[0] + 4096);
    dsc_device_destroy(&device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests_name("model_attention", tests, NULL, NULL);
}
