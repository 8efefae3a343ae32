/* Engines of convolutions as text: there and back, for another kind of GPU, cut off and damaged. Needs cuDNN,
 * but no GPU. */
#include "test.h"

#include "base/memory.h"
#include "descent/log.h"
#include "device/cuda/conv_choices.h"
#include "device/cuda/entries.h"

enum { SIZE = 4096 };

static int warnings;

static void count_warnings(void *context, dsc_log_level level, const char *text) {
    (void)context;
    (void)text;
    warnings += level == DSC_LOG_WARNING;
}

static dsc_dnn_problem problem(int64_t n) {
    return (dsc_dnn_problem){.desc = {.dtype = n % 2 ? DSC_F32 : DSC_BF16,
                                      .n = n,
                                      .shape = {.size = sizeof(dsc_conv2d_shape),
                                                .in_h = 8,
                                                .in_w = 9,
                                                .in_c = 3,
                                                .out_c = 16,
                                                .kernel_h = 3,
                                                .kernel_w = 5,
                                                .stride_h = 1,
                                                .stride_w = 2,
                                                .pad_h = 1,
                                                .pad_w = 2,
                                                .dilation_h = 1,
                                                .dilation_w = 1,
                                                .groups = 1}}};
}

static dsc_dnn_choice choice(int64_t n) {
    dsc_dnn_choice c = {.engine = n == 3 ? DSC_DNN_LEGACY : 40 + n, .count = n};
    for (int64_t i = 0; i < n; i++) {
        c.knob[i].type = 2 * i;
        c.knob[i].value = 100 * n + i;
    }
    return c;
}

/* A GPU of this number. */
static dsc_cuda states[8];
static dsc_device gpus[8];

static dsc_device *gpu(int ordinal) {
    states[ordinal] = (dsc_cuda){.ordinal = ordinal, .capability = 90};
    gpus[ordinal].state = &states[ordinal];
    gpus[ordinal].name = "cuda";
    return &gpus[ordinal];
}

/* The first by advice, the others by timing. */
static void choose_five(dsc_device *device) {
    for (int64_t n = 1; n <= 5; n++) {
        dsc_dnn_problem p = problem(n);
        dsc_dnn_choice c = choice(n);
        assert_ok(dsc_cuda_choice_keep(dsc_cuda_of(device), &p, (dsc_dnn_kind)n, n > 1, &c));
    }
}

static void check_five(dsc_device *device) {
    for (int64_t n = 1; n <= 5; n++) {
        dsc_dnn_problem p = problem(n);
        dsc_dnn_choice c, expected = choice(n);
        assert_true(dsc_cuda_choice_find(dsc_cuda_of(device), &p, (dsc_dnn_kind)n, 1, &c));
        assert_true(dsc_dnn_same_choice(&c, &expected));
        assert_false(dsc_cuda_choice_find(dsc_cuda_of(device), &p, DSC_DNN_FORWARD, 0, &c));
    }
}

static void write_five(char text[SIZE]) {
    size_t needed = 0;
    dsc_device *from = gpu(0);
    choose_five(from);
    assert_ok(dsc_cuda_choices(from, NULL, 0, &needed));
    assert_true(needed > 5 * 80 && needed <= SIZE);
    size_t again = 0;
    assert_ok(dsc_cuda_choices(from, text, SIZE, &again));
    assert_true(again == needed && strlen(text) + 1 == needed);
}

static void test_there_and_back(void **state) {
    (void)state;
    char text[SIZE], second[SIZE];
    size_t needed;
    write_five(text);
    dsc_device *to = gpu(1);
    assert_ok(dsc_cuda_choices(to, second, SIZE, &needed)); /* neither tuned nor preset */
    assert_string_equal(second, "");
    assert_int_equal(needed, 1);
    assert_ok(dsc_cuda_preset(to, text));
    assert_ok(dsc_cuda_choices(to, second, SIZE, &needed)); /* nobody has asked for them so far */
    assert_string_equal(second, "");
    check_five(to);
    assert_ok(dsc_cuda_choices(to, second, SIZE, &needed));
    assert_string_equal(text, second);
}

/* What was advised is no choice of a device that tunes, and needs no text by itself. */
static void test_advised(void **state) {
    (void)state;
    char text[SIZE];
    size_t needed;
    dsc_device *device = gpu(5);
    dsc_dnn_problem p = problem(1);
    dsc_dnn_choice c = choice(1);
    assert_ok(dsc_cuda_choice_keep(dsc_cuda_of(device), &p, DSC_DNN_DATA, 0, &c));
    assert_true(dsc_cuda_choice_find(dsc_cuda_of(device), &p, DSC_DNN_DATA, 0, &c));
    assert_false(dsc_cuda_choice_find(dsc_cuda_of(device), &p, DSC_DNN_DATA, 1, &c));
    assert_ok(dsc_cuda_choices(device, text, SIZE, &needed));
    assert_string_equal(text, "");
}

static void test_elsewhere(void **state) {
    (void)state;
    char text[SIZE];
    dsc_dnn_problem p = problem(1);
    dsc_dnn_choice c;
    write_five(text);
    dsc_device *other = gpu(2);
    states[2].capability = 80;
    warnings = 0;
    assert_ok(dsc_cuda_preset(other, text));
    assert_int_equal(warnings, 1);
    assert_false(dsc_cuda_choice_find(dsc_cuda_of(other), &p, DSC_DNN_DATA, 0, &c));
}

/* All of a damaged text is taken, or nothing. */
static void test_damaged(void **state) {
    (void)state;
    char text[SIZE], damaged[SIZE];
    write_five(text);
    size_t length = strlen(text);
    int refused = 0;
    for (size_t cut = 0; cut < length; cut++) {
        memcpy(damaged, text, cut);
        damaged[cut] = '\0';
        dsc_status status = dsc_cuda_preset(gpu(3), damaged);
        int whole_lines = cut > 0 && text[cut - 1] == '\n';
        assert_int_equal(status, whole_lines ? DSC_OK : DSC_E_FORMAT);
    }
    for (size_t at = 0; at < length; at++) {
        for (int bit = 0; bit < 8; bit++) {
            memcpy(damaged, text, length + 1);
            damaged[at] = (char)(damaged[at] ^ 1 << bit);
            dsc_status status = dsc_cuda_preset(gpu(4), damaged);
            assert_true(status == DSC_OK || status == DSC_E_FORMAT);
            refused += status != DSC_OK;
        }
    }
    assert_true(refused > (int)length);
    dsc_dnn_problem p = problem(1);
    dsc_dnn_choice c;
    memcpy(damaged, text, length + 1);
    damaged[length - 1] = ' '; /* the last newline */
    assert_int_equal(dsc_cuda_preset(gpu(6), damaged), DSC_E_FORMAT);
    assert_false(dsc_cuda_choice_find(dsc_cuda_of(gpu(6)), &p, DSC_DNN_DATA, 0, &c));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_advised),
        cmocka_unit_test(test_elsewhere),
        cmocka_unit_test(test_damaged),
    };
    dsc_log_set_handler(count_warnings, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
