/* The reference device: plain C, one thread, every operation in double whatever the type of its tensors.
 * It is slow and simple, and the specification that other devices are tested against. */
#include "device/ref/ref.h"

#include "base/error.h"
#include "base/memory.h"

#include <stdio.h>
#include <string.h>

/* Host memory is preceded by its size, for the device's byte counters. */
enum { HEADER_BYTES = DSC_ALIGNMENT };

static dsc_status host_alloc(dsc_device *device, size_t bytes, void **out) {
    char *block;
    if (bytes > (size_t)INT64_MAX - HEADER_BYTES)
        return DSC_FAIL(DSC_E_MEMORY, "cannot allocate %zu bytes of device memory", bytes);
    DSC_TRY(dsc_memory_alloc((int64_t)(bytes + HEADER_BYTES), 1, &block));
    memcpy(block, &bytes, sizeof bytes);
    dsc_device_count_alloc(device, bytes);
    *out = block + HEADER_BYTES;
    return DSC_OK;
}

static void host_free(dsc_device *device, void *data) {
    char *block = (char *)data - HEADER_BYTES;
    size_t bytes;
    memcpy(&bytes, block, sizeof bytes);
    dsc_device_count_free(device, bytes);
    dsc_memory_free(&block);
}

static dsc_status host_upload(dsc_queue *q, const void *host, size_t bytes, void *data) {
    (void)q;
    memcpy(data, host, bytes);
    return DSC_OK;
}

static dsc_status host_download(dsc_queue *q, const void *data, size_t bytes, void *host) {
    (void)q;
    memcpy(host, data, bytes);
    return DSC_OK;
}

const dsc_device_table dsc_ref_table = {.alloc = host_alloc,
                                        .free = host_free,
                                        .upload = host_upload,
                                        .download = host_download,
#define ENTRY(name) .name = dsc_ref_##name,
                                        DSC_OPERATIONS(ENTRY, DSC_REF_NONE)
#undef ENTRY
};

dsc_status dsc_ref_open(dsc_device *device, const dsc_device_options *options) {
    (void)options; /* always one thread */
    device->table = &dsc_ref_table;
    device->name = "ref";
    device->is_host = 1;
    device->threads = 1;
    snprintf(device->description, sizeof device->description, "ref: plain C in double precision, 1 thread");
    return DSC_OK;
}
