/* Where the tensors of a test lie: on ref; or on the device that DESCENT_TEST_DEVICE names, a GPU ("cuda") or
 * the one of far.h ("far"). Contents are written and read as a whole, on any device. */
#ifndef DSC_TESTS_COMM_PLACE_H
#define DSC_TESTS_COMM_PLACE_H

#include "comm/far.h"
#include "comm/parallel.h"

static dsc_device *place_device;
static dsc_queue *place_queue;

/* Each rank takes the next GPU. Ends the program as skipped where there is none. */
static inline void place_open(dsc_comm **comm) {
    const char *name = getenv("DESCENT_TEST_DEVICE");
    dsc_device_options options;
    dsc_device_options_init(&options);
    options.name = name ? name : "ref";
    options.ordinal = dsc_comm_local_rank(*comm);
    if (strcmp(options.name, "far") == 0) {
        place_device = far_create();
    } else {
        dsc_status status = dsc_device_create(&options, &place_device);
        if (status == DSC_E_UNSUPPORTED) {
            fprintf(stderr, "skipped: %s\n", dsc_error_message());
            dsc_comm_destroy(comm);
            exit(77);
        }
        assert_ok(status);
    }
    assert_ok(dsc_queue_create(place_device, &place_queue));
    assert_ok(dsc_comm_use_queue(*comm, place_queue));
}

static inline void place_close(void) {
    dsc_queue_destroy(&place_queue);
    if (place_device->table == &far_table)
        free(place_device);
    else
        dsc_device_destroy(&place_device);
    place_device = NULL;
}

/* Memory of a device; the host's is malloc's, so that its ends are watched. */
static inline void *memory_take(dsc_device *device, size_t bytes) {
    void *data = NULL;
    if (dsc_device_is_host(device))
        data = malloc(bytes > 0 ? bytes : 1);
    else
        assert_ok(dsc_device_alloc(device, bytes, &data));
    assert_non_null(data);
    return data;
}

static inline void memory_drop(dsc_device *device, void *data) {
    if (dsc_device_is_host(device))
        free(data);
    else
        dsc_device_free(device, &data);
}

static inline void write_tensor(dsc_tensor *t, const void *host) {
    size_t bytes = dsc_tensor_bytes(t);
    if (bytes == 0)
        return;
    if (dsc_device_is_host(t->device)) {
        memcpy(t->data, host, bytes);
        return;
    }
    EXPECT_OK(dsc_tensor_upload(place_queue, host, bytes, t));
    EXPECT_OK(dsc_queue_sync(place_queue));
}

/* Adds the read to the queue, and waits for it: so it finds what comes before it there. */
static inline void read_tensor(const dsc_tensor *t, void *host) {
    size_t bytes = dsc_tensor_bytes(t);
    if (bytes == 0)
        return;
    if (dsc_device_is_host(t->device)) {
        memcpy(host, t->data, bytes);
        return;
    }
    EXPECT_OK(dsc_tensor_download(place_queue, t, bytes, host));
    EXPECT_OK(dsc_queue_sync(place_queue));
}

#endif
