/* What the tests of wrapped queues share: one device, and checks of messages and contents. */
#ifndef DSC_TESTS_DEVICE_STREAMS_H
#define DSC_TESTS_DEVICE_STREAMS_H

#include "device/rig.h"

enum { COUNT = 1000 };

static dsc_device *device;

static inline int open_device(void **state) {
    (void)state;
    device = chosen_open(chosen_or("cpu"), 1);
    return 0;
}

static inline int close_device(void **state) {
    (void)state;
    size_t left = dsc_device_bytes(device);
    dsc_device_destroy(&device);
    return left != 0;
}

static inline void assert_message(const char *part) {
    if (!strstr(dsc_error_message(), part))
        fail_msg("'%s' does not say '%s'", dsc_error_message(), part);
}

static inline void assert_contents(dsc_queue *q, const dsc_tensor *t, float first, float step) {
    float values[COUNT];
    assert_ok(dsc_tensor_download(q, t, sizeof values, values));
    assert_ok(dsc_queue_sync(q));
    for (int i = 0; i < COUNT; i++)
        assert_float_equal(values[i], first + step * (float)i, 0);
}

#endif
