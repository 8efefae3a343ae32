/* Queues of streams that the caller owns and the check of a caller's memory, as far as all devices have them:
 * on a host device a wrapped queue is like any other. What is about GPUs is in test_cuda_streams.c. */
#include "device/rig.h"

enum { COUNT = 1000 };

static dsc_device *device;

static int open_device(void **state) {
    (void)state;
    device = chosen_open(chosen_or("cpu"), 1);
    return 0;
}

static int close_device(void **state) {
    (void)state;
    size_t left = dsc_device_bytes(device);
    dsc_device_destroy(&device);
    return left != 0;
}

static void assert_message(const char *part) {
    if (!strstr(dsc_error_message(), part))
        fail_msg("'%s' does not say '%s'", dsc_error_message(), part);
}

static void assert_contents(dsc_queue *q, const dsc_tensor *t, float first, float step) {
    float values[COUNT];
    assert_ok(dsc_tensor_download(q, t, sizeof values, values));
    assert_ok(dsc_queue_sync(q));
    for (int i = 0; i < COUNT; i++)
        assert_float_equal(values[i], first + step * (float)i, 0);
}

static void test_default_stream(void **state) {
    (void)state;
    dsc_queue *q = NULL;
    dsc_tensor t;
    assert_ok(dsc_queue_wrap(device, NULL, &q));
    assert_ptr_equal(dsc_queue_device(q), device);
    assert_null(dsc_queue_stream(q));
    assert_ok(dsc_tensor_alloc(device, DSC_F32, 1, (int64_t[]){COUNT}, &t));
    assert_ok(dsc_op_fill(q, 3, &t));
    assert_ok(dsc_queue_rewrap(q, NULL));
    assert_contents(q, &t, 3, 0);
    dsc_tensor_free(&t);
    dsc_queue_destroy(&q);
    assert_null(q);
}

static void test_bad_queue(void **state) {
    (void)state;
    dsc_queue *q = NULL;
    assert_int_equal(dsc_queue_wrap(NULL, NULL, &q), DSC_E_INVALID);
    assert_null(q);
    assert_int_equal(dsc_queue_rewrap(NULL, NULL), DSC_E_INVALID);
}

static void test_check_of_tensors(void **state) {
    (void)state;
    dsc_tensor t, nothing = {.device = device, .ndim = 1, .dim = {4}};
    assert_ok(dsc_tensor_alloc(device, DSC_F32, 1, (int64_t[]){COUNT}, &t));
    assert_ok(dsc_tensor_check(&t));
    dsc_tensor_free(&t);
    assert_int_equal(dsc_tensor_check(&nothing), DSC_E_INVALID);
    assert_message("no memory for its 4 elements");
    nothing.dim[0] = 0;
    assert_ok(dsc_tensor_check(&nothing));
    assert_int_equal(dsc_tensor_check(NULL), DSC_E_INVALID);
    nothing.device = NULL;
    assert_int_equal(dsc_tensor_check(&nothing), DSC_E_INVALID);
    assert_message("no device");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default_stream),
        cmocka_unit_test(test_bad_queue),
        cmocka_unit_test(test_check_of_tensors),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
