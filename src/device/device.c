/* Devices, their memory, queues and events: the part that does not depend on the backend. */
#include "device/backends.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/versioned.h"
#include "descent/log.h"

#include <string.h>

typedef struct device_kind {
    const char *name;
    dsc_status (*open)(dsc_device *device, const dsc_device_options *options);
} device_kind;

static dsc_status open_cuda(dsc_device *device, const dsc_device_options *options) {
    const dsc_cuda_functions *cuda;
    dsc_status status = dsc_cuda_find(&cuda);
    if (status != DSC_OK)
        return dsc_error_prefix(status, "device '%s'", options->name);
    return cuda->open(device, options);
}

/* Names with a colon are devices with some features switched off, for tests and comparisons; dsc_device_names does
 * not list them. */
static const device_kind kinds[] = {
    {"ref", dsc_ref_open},      {"cpu", dsc_cpu_open},      {"cpu:plain", dsc_cpu_open},
    {"cpu:avx2", dsc_cpu_open}, {"cpu:base", dsc_cpu_open}, {"cuda", open_cuda},
    {"cuda:fp32", open_cuda},
};
static const char choices[] = "choose auto, ref or cpu, or cuda on a GPU";

void dsc_device_options_init_sized(dsc_device_options *options, size_t size) {
    const dsc_device_options defaults = {.name = "auto"};
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}

int dsc_device_count(const char *name) {
    const dsc_cuda_functions *cuda;
    if (strncmp(name, "cuda", 4) != 0)
        return 1;
    if (dsc_cuda_find(&cuda) != DSC_OK) {
        dsc_log(DSC_LOG_DEBUG, "%s", dsc_error_message());
        return 0;
    }
    return cuda->count();
}

static dsc_status find_kind(const char *name, const device_kind **out) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].name, name) == 0) {
            *out = &kinds[i];
            return DSC_OK;
        }
    }
    return DSC_FAIL(DSC_E_INVALID, "device '%s' is unknown; %s", name, choices);
}

/* Fills in the defaults, then the caller's options, and checks them. */
static dsc_status read_options(const dsc_device_options *given, dsc_device_options *options) {
    dsc_device_options_init(options);
    DSC_TRY(dsc_versioned_read("device", given, sizeof *options, options));
    if (!options->name)
        return DSC_FAIL(DSC_E_INVALID, "device: no name; %s", choices);
    if (options->threads < 0)
        return DSC_FAIL(DSC_E_INVALID, "device: %d threads; give 1 or more, or 0 for all", options->threads);
    if (options->ordinal < 0)
        return DSC_FAIL(DSC_E_INVALID, "device: GPU %d; they are counted from 0", options->ordinal);
    return DSC_OK;
}

static dsc_status open_kind(const device_kind *kind, const dsc_device_options *options, dsc_device **out) {
    dsc_device *device;
    DSC_TRY(dsc_memory_alloc(1, sizeof *device, &device));
    atomic_init(&device->bytes, 0);
    atomic_init(&device->peak_bytes, 0);
    dsc_status status = kind->open(device, options);
    if (status != DSC_OK) {
        dsc_memory_free(&device);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = device;
    return DSC_OK;
}

/* Opens a GPU if there is a usable one, else the CPU. */
static dsc_status open_fastest(dsc_device_options *options, dsc_device **out) {
    const device_kind *kind;
    if (dsc_cuda_is_fastest()) {
        options->name = "cuda";
        DSC_TRY(find_kind(options->name, &kind));
        dsc_status status = open_kind(kind, options, out);
        if (status != DSC_E_UNSUPPORTED)
            return status;
        dsc_log(DSC_LOG_DEBUG, "%s", dsc_error_message());
    }
    options->name = "cpu";
    DSC_TRY(find_kind(options->name, &kind));
    return open_kind(kind, options, out);
}

dsc_status dsc_device_create(const dsc_device_options *given, dsc_device **out) {
    dsc_device_options options;
    const device_kind *kind = NULL;
    DSC_TRY(read_options(given, &options));
    if (strcmp(options.name, "auto") == 0) {
        DSC_TRY(open_fastest(&options, out));
        return DSC_OK;
    }
    DSC_TRY(find_kind(options.name, &kind));
    DSC_TRY(open_kind(kind, &options, out));
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

uint64_t dsc_device_identity(const dsc_device *device) {
    return device->identity;
}

dsc_status dsc_device_choices(dsc_device *device, char *text, size_t size, size_t *needed) {
    if (device->table->choices) {
        DSC_TRY(device->table->choices(device, text, size, needed));
        return DSC_OK;
    }
    *needed = 1;
    if (size > 0)
        text[0] = '\0';
    return DSC_OK;
}

dsc_status dsc_device_preset(dsc_device *device, const char *text) {
    if (text[0] == '\0')
        return DSC_OK;
    if (!device->table->preset) {
        dsc_log(DSC_LOG_WARNING, "device '%s' does not tune: choices of another device are ignored",
                device->name);
        return DSC_OK;
    }
    DSC_TRY(device->table->preset(device, text));
    return DSC_OK;
}

int dsc_device_tunes(const dsc_device *device) {
    return device->tunes;
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

dsc_status dsc_host_alloc(dsc_device *device, size_t bytes, void **out) {
    if (device->table->host_alloc) {
        DSC_TRY(device->table->host_alloc(device, bytes, out));
        return DSC_OK;
    }
    if (bytes > (size_t)INT64_MAX)
        return DSC_FAIL(DSC_E_MEMORY, "cannot allocate %zu bytes of host memory", bytes);
    DSC_TRY(dsc_memory_alloc((int64_t)bytes, 1, out));
    return DSC_OK;
}

void dsc_host_free(dsc_device *device, void **data) {
    if (!data || !*data)
        return;
    if (!device->table->host_free) {
        dsc_memory_free(data);
        return;
    }
    device->table->host_free(device, *data);
    *data = NULL;
}

dsc_status dsc_tensor_check(const dsc_tensor *t) {
    if (!t || !t->device)
        return DSC_FAIL(DSC_E_INVALID, "tensor: no %s", t ? "device" : "tensor");
    size_t bytes = dsc_tensor_bytes(t);
    if (bytes == 0)
        return DSC_OK;
    if (!t->data)
        return DSC_FAIL(DSC_E_INVALID, "tensor: no memory for its %lld elements",
                        (long long)dsc_tensor_count(t));
    const dsc_device_table *table = t->device->table;
    if (!table->check_memory)
        return DSC_OK;
    dsc_status status = table->check_memory(t->device, t->data);
    if (status != DSC_OK)
        return dsc_error_prefix(status, "tensor: its first byte");
    status = table->check_memory(t->device, (const char *)t->data + bytes - 1);
    if (status != DSC_OK)
        return dsc_error_prefix(status, "tensor: the last of its %zu bytes", bytes);
    return DSC_OK;
}

dsc_status dsc_device_enter(const dsc_device *device, dsc_device_scope *scope) {
    scope->device = NULL;
    if (!device->table->enter)
        return DSC_OK;
    DSC_TRY(device->table->enter(device, scope->state));
    scope->device = device;
    return DSC_OK;
}

void dsc_device_leave(dsc_device_scope *scope) {
    if (scope->device)
        scope->device->table->leave(scope->state);
    scope->device = NULL;
}

/* ---- queues ---- */

static dsc_status open_queue(dsc_device *device, int wrap, int low, void *stream, dsc_queue **out) {
    dsc_queue *q;
    if (!device)
        return DSC_FAIL(DSC_E_INVALID, "queue: no device");
    DSC_TRY(dsc_memory_alloc(1, sizeof *q, &q));
    q->device = device;
    q->low = low;
    dsc_status status = DSC_OK;
    if (wrap && device->table->queue_wrap)
        status = device->table->queue_wrap(q, stream);
    else if (device->table->queue_open)
        status = device->table->queue_open(q);
    if (status != DSC_OK) {
        dsc_memory_free(&q);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = q;
    return DSC_OK;
}

dsc_status dsc_queue_create(dsc_device *device, dsc_queue **out) {
    return open_queue(device, 0, 0, NULL, out);
}

dsc_status dsc_queue_create_low(dsc_device *device, dsc_queue **out) {
    return open_queue(device, 0, 1, NULL, out);
}

dsc_status dsc_queue_wrap(dsc_device *device, void *stream, dsc_queue **out) {
    return open_queue(device, 1, 0, stream, out);
}

dsc_status dsc_queue_rewrap(dsc_queue *queue, void *stream) {
    if (!queue)
        return DSC_FAIL(DSC_E_INVALID, "queue: none to continue in another stream");
    if (queue->device->table->queue_rewrap)
        DSC_TRY(queue->device->table->queue_rewrap(queue, stream));
    return DSC_OK;
}

void *dsc_queue_stream(const dsc_queue *queue) {
    return queue->device->table->queue_stream ? queue->device->table->queue_stream(queue) : NULL;
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
    if (!device)
        return DSC_FAIL(DSC_E_INVALID, "event: no device");
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

dsc_status dsc_event_elapsed(dsc_event *from, dsc_event *to, double *ms) {
    if (from->device != to->device)
        return DSC_FAIL(DSC_E_INVALID, "event: time between events of two devices, %s and %s",
                        from->device->name, to->device->name);
    *ms = 0;
    if (from->device->table->event_elapsed)
        DSC_TRY(from->device->table->event_elapsed(from, to, ms));
    return DSC_OK;
}

/* ---- copies ---- */

static dsc_status check_copy(const char *op, const dsc_queue *queue, const dsc_tensor *t, size_t bytes,
                             const void *host) {
    if (!queue || !t)
        return DSC_FAIL(DSC_E_INVALID, "%s: no %s", op, queue ? "tensor" : "queue");
    if (!host && bytes > 0)
        return DSC_FAIL(DSC_E_INVALID, "%s: no host memory", op);
    if (t->device != queue->device)
        return DSC_FAIL(DSC_E_INVALID, "%s: the tensor is not on the queue's device %s", op,
                        queue->device->name);
    if (bytes != dsc_tensor_bytes(t))
        return DSC_FAIL(DSC_E_INVALID, "%s: %zu bytes for a tensor of %zu bytes", op, bytes,
                        dsc_tensor_bytes(t));
    return DSC_OK;
}

dsc_status dsc_tensor_upload(dsc_queue *queue, const void *host, size_t bytes, dsc_tensor *t) {
    DSC_TRY(check_copy("upload", queue, t, bytes, host));
    if (bytes > 0)
        DSC_TRY(queue->device->table->upload(queue, host, bytes, t->data));
    return DSC_OK;
}

dsc_status dsc_tensor_download(dsc_queue *queue, const dsc_tensor *t, size_t bytes, void *host) {
    DSC_TRY(check_copy("download", queue, t, bytes, host));
    if (bytes > 0)
        DSC_TRY(queue->device->table->download(queue, t->data, bytes, host));
    return DSC_OK;
}
