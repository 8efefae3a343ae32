/* Queues of streams that the caller owns and the check of a caller's memory, as far as all devices have them:
 * on a host device a wrapped queue is like any other. What is about GPUs is in test_cuda_streams.c. */
#include "device/streams.h"

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
