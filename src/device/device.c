/* Devices, their memory, queues and events: what is above the backends. */
#include "device/table.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/versioned.h"

#include <string.h>

typedef struct device_kind {
    const char *name;
    dsc_status (*open)(dsc_device *device, const dsc_device_options *options);
} device_kind;

/* The last three are cpu with parts of it switched off, for tests and comparisons; not among the names. */
static const device_kind kinds[] = {{"ref", dsc_ref_open},
                                    {"cpu", dsc_cpu_open},
                                    {"cpu:plain", dsc_cpu_open},
                                    {"cpu:avx2", dsc_cpu_open},
                                    {"cpu:base", dsc_cpu_open}};
static const char *const names[] = {"ref", "cpu", NULL};
static const char fastest[] = "cpu";

void dsc_device_options_init(dsc_device_options *options) {
    *options = (dsc_device_options){.size = sizeof *options, .name = "auto", .threads = 0};
}

const char *const *dsc_device_names(void) {
    return names;
}

static dsc_status find_kind(const char *name, const device_kind **out) {
    const char *wanted = strcmp(name, "auto") == 0 ? fastest : name;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].name, wanted) == 0) {
            *out = &kinds[i];
            return DSC_OK;
        }
    }
    return DSC_FAIL(DSC_E_INVALID, "device '%s' is unknown; choose auto, ref or cpu", name);
}

/* The caller's options over the defaults, checked. */
static dsc_status read_options(const dsc_device_options *given, dsc_device_options *options) {
    dsc_device_options_init(options);
    DSC_TRY(dsc_versioned_read("device", given, sizeof *options, options));
    if (!options->name)
        return DSC_FAIL(DSC_E_INVALID, "device: no name; choose auto, ref or cpu");
    if (options->threads < 0)
        return DSC_FAIL(DSC_E_INVALID, "device: %d threads; give 1 or more, or 0 for all", options->threads);
    return DSC_OK;
}

dsc_status dsc_device_create(const dsc_device_options *given, dsc_device **out) {
    dsc_device_options options;
    const device_kind *kind = NULL;
    dsc_device *device;
    DSC_TRY(read_options(given, &options));
    DSC_TRY(find_kind(options.name, &kind));
    DSC_TRY(dsc_memory_alloc(1, sizeof *device, &device));
    atomic_init(&device->bytes, 0);
    atomic_init(&device->peak_bytes, 0);
    dsc_status status = kind->open(device, &options);
    if (status != DSC_OK) {
        dsc_memory_free(&device);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = device;
    return DSC_OK;
}

void dsc_device_destroy(dsc_device **device) {
    if (!device || !*device)
        return;
    if ((*device)->table->destroy)
        (*device)->table->destroy(*device);
    dsc_memory_free(device);
}

const char *dsc_device_name(const dsc_device *device) {
    return device->name;
}

const char *dsc_device_description(const dsc_device *device) {
    return device->description;
}

int dsc_device_threads(const dsc_device *device) {
    return device->threads;
}

int dsc_device_is_host(const dsc_device *device) {
    return device->is_host;
}

const dsc_device_table *dsc_device_table_for(const dsc_device *device, dsc_dtype dtype) {
    return device->is_host && dtype != DSC_F32 ? &dsc_ref_table : device->table;
}

/* ---- memory ---- */

dsc_status dsc_device_alloc(dsc_device *device, size_t bytes, void **out) {
    DSC_TRY(device->table->alloc(device, bytes, out));
    return DSC_OK;
}

void dsc_device_free(dsc_device *device, void **data) {
    if (!data || !*data)
        return;
    device->table->free(device, *data);
    *data = NULL;
}

void dsc_device_count_alloc(dsc_device *device, size_t bytes) {
    size_t now = atomic_fetch_add(&device->bytes, bytes) + bytes;
    size_t peak = atomic_load(&device->peak_bytes);
    while (now > peak && !atomic_compare_exchange_weak(&device->peak_bytes, &peak, now)) {
    }
}

void dsc_device_count_free(dsc_device *device, size_t bytes) {
    atomic_fetch_sub(&device->bytes, bytes);
}

size_t dsc_device_bytes(const dsc_device *device) {
    return atomic_load(&device->bytes);
}

size_t dsc_device_peak_bytes(const dsc_device *device) {
    return atomic_load(&device->peak_bytes);
}

/* ---- queues ---- */

dsc_status dsc_queue_create(dsc_device *device, dsc_queue **out) {
    dsc_queue *q;
    DSC_TRY(dsc_memory_alloc(1, sizeof *q, &q));
    q->device = device;
    dsc_status status = device->table->queue_open ? device->table->queue_open(q) : DSC_OK;
    if (status != DSC_OK) {
        dsc_memory_free(&q);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = q;
    return DSC_OK;
}

void dsc_queue_destroy(dsc_queue **queue) {
    if (!queue || !*queue)
        return;
    if ((*queue)->device->table->queue_close)
        (*queue)->device->table->queue_close(*queue);
    dsc_memory_free(queue);
}

dsc_device *dsc_queue_device(const dsc_queue *queue) {
    return queue->device;
}

dsc_status dsc_queue_sync(dsc_queue *queue) {
    if (queue->device->table->queue_sync)
        DSC_TRY(queue->device->table->queue_sync(queue));
    return DSC_OK;
}

/* ---- events ---- */

dsc_status dsc_event_create(dsc_device *device, dsc_event **out) {
    dsc_event *event;
    DSC_TRY(dsc_memory_alloc(1, sizeof *event, &event));
    event->device = device;
    dsc_status status = device->table->event_open ? device->table->event_open(event) : DSC_OK;
    if (status != DSC_OK) {
        dsc_memory_free(&event);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = event;
    return DSC_OK;
}

void dsc_event_destroy(dsc_event **event) {
    if (!event || !*event)
        return;
    if ((*event)->device->table->event_close)
        (*event)->device->table->event_close(*event);
    dsc_memory_free(event);
}

static dsc_status check_event(const dsc_event *event, const dsc_queue *queue) {
    if (event->device != queue->device)
        return DSC_FAIL(DSC_E_INVALID, "event: made on device %s, used in a queue of another device %s",
                        event->device->name, queue->device->name);
    return DSC_OK;
}

dsc_status dsc_event_record(dsc_event *event, dsc_queue *queue) {
    DSC_TRY(check_event(event, queue));
    if (event->device->table->event_record)
        DSC_TRY(event->device->table->event_record(event, queue));
    return DSC_OK;
}

dsc_status dsc_queue_wait(dsc_queue *queue, dsc_event *event) {
    DSC_TRY(check_event(event, queue));
    if (queue->device->table->queue_wait)
        DSC_TRY(queue->device->table->queue_wait(queue, event));
    return DSC_OK;
}

dsc_status dsc_event_sync(dsc_event *event) {
    if (event->device->table->event_sync)
        DSC_TRY(event->device->table->event_sync(event));
    return DSC_OK;
}

/* ---- copies ---- */

static dsc_status check_copy(const char *op, const dsc_queue *queue, const dsc_tensor *t, size_t bytes) {
    if (t->device != queue->device)
        return DSC_FAIL(DSC_E_INVALID, "%s: the tensor is not on the queue's device %s", op,
                        queue->device->name);
    if (bytes != dsc_tensor_bytes(t))
        return DSC_FAIL(DSC_E_INVALID, "%s: %zu bytes for a tensor of %zu bytes", op, bytes,
                        dsc_tensor_bytes(t));
    return DSC_OK;
}

dsc_status dsc_tensor_upload(dsc_queue *queue, const void *host, size_t bytes, dsc_tensor *t) {
    DSC_TRY(check_copy("upload", queue, t, bytes));
    if (bytes > 0)
        DSC_TRY(queue->device->table->upload(queue, host, bytes, t->data));
    return DSC_OK;
}

dsc_status dsc_tensor_download(dsc_queue *queue, const dsc_tensor *t, size_t bytes, void *host) {
    DSC_TRY(check_copy("download", queue, t, bytes));
    if (bytes > 0)
        DSC_TRY(queue->device->table->download(queue, t->data, bytes, host));
    return DSC_OK;
}
