/* A device whose memory the host cannot touch, for tests without a GPU: ref behind a wall. Addresses it hands
 * out are none of the host's, and copies happen at the last moment that the contract allows: when the queue
 * is waited for, or before its next operation. So whoever touches memory directly, or uses the host's side of
 * a copy too early, is found out. It has what communicators and buckets need. */
#ifndef DSC_TESTS_COMM_FAR_H
#define DSC_TESTS_COMM_FAR_H

#include "test.h"

#include "device/table.h"

#include <stdlib.h>

enum { FAR_COPIES = 64, FAR_QUEUES = 8 };
#define FAR_WALL ((uintptr_t)1 << 62)

typedef struct far_copy {
    const void *from;
    void *to;
    size_t bytes;
} far_copy;

/* The state of a queue: copies that are still to be made. */
typedef struct far_lane {
    far_copy copies[FAR_COPIES];
    int count;
} far_lane;

static struct {
    far_lane *lanes[FAR_QUEUES];
    int64_t downloads, uploads, syncs, host_allocations; /* so far */
} far_work;

static inline void *far_inside(const void *data) {
    return (void *)((uintptr_t)data ^ FAR_WALL);
}

static inline void far_catch_up(far_lane *lane) {
    for (int i = 0; i < lane->count; i++)
        memcpy(lane->copies[i].to, lane->copies[i].from, lane->copies[i].bytes);
    lane->count = 0;
}

static inline void far_catch_up_all(void) {
    for (int i = 0; i < FAR_QUEUES; i++) {
        if (far_work.lanes[i])
            far_catch_up(far_work.lanes[i]);
    }
}

static inline void far_put(far_lane *lane, const void *from, void *to, size_t bytes) {
    if (lane->count == FAR_COPIES)
        far_catch_up(lane);
    lane->copies[lane->count++] = (far_copy){from, to, bytes};
}

static inline dsc_status far_queue_open(dsc_queue *q) {
    int i = 0;
    while (i < FAR_QUEUES && far_work.lanes[i])
        i++;
    assert_true(i < FAR_QUEUES);
    q->state = far_work.lanes[i] = calloc(1, sizeof(far_lane));
    return q->state ? DSC_OK : DSC_E_MEMORY;
}

static inline void far_queue_close(dsc_queue *q) {
    int i = 0;
    while (far_work.lanes[i] != q->state)
        i++;
    far_catch_up(q->state);
    free(q->state);
    far_work.lanes[i] = NULL;
}

static inline dsc_status far_alloc(dsc_device *device, size_t bytes, void **out) {
    void *data = calloc(1, bytes + 2 * sizeof bytes);
    if (!data)
        return DSC_E_MEMORY;
    memcpy(data, &bytes, sizeof bytes);
    dsc_device_count_alloc(device, bytes);
    *out = far_inside((char *)data + 2 * sizeof bytes);
    return DSC_OK;
}

static inline void far_free(dsc_device *device, void *data) {
    size_t bytes;
    char *block = (char *)far_inside(data) - 2 * sizeof bytes;
    far_catch_up_all();
    memcpy(&bytes, block, sizeof bytes);
    dsc_device_count_free(device, bytes);
    free(block);
}

static inline dsc_status far_upload(dsc_queue *q, const void *host, size_t bytes, void *data) {
    far_work.uploads++;
    far_put(q->state, host, far_inside(data), bytes);
    return DSC_OK;
}

static inline dsc_status far_download(dsc_queue *q, const void *data, size_t bytes, void *host) {
    far_work.downloads++;
    far_put(q->state, far_inside(data), host, bytes);
    return DSC_OK;
}

static inline dsc_status far_sync(dsc_queue *q) {
    far_work.syncs++;
    far_catch_up(q->state);
    return DSC_OK;
}

static inline dsc_status far_host_alloc(dsc_device *device, size_t bytes, void **out) {
    (void)device;
    far_work.host_allocations++;
    *out = calloc(1, bytes > 0 ? bytes : 1);
    return *out ? DSC_OK : DSC_E_MEMORY;
}

static inline void far_host_free(dsc_device *device, void *data) {
    (void)device;
    far_catch_up_all();
    free(data);
}

static inline dsc_tensor far_view(const dsc_tensor *t) {
    dsc_tensor inside = *t;
    inside.data = far_inside(t->data);
    return inside;
}

static inline dsc_status far_convert(dsc_queue *q, const dsc_tensor *src, dsc_tensor *dst) {
    dsc_tensor from = far_view(src), to = far_view(dst);
    far_catch_up(q->state);
    return dsc_ref_table.convert(q, &from, &to);
}

static inline dsc_status far_scale_by(dsc_queue *q, const dsc_tensor *s, dsc_tensor *t) {
    dsc_tensor factor = far_view(s), scaled = far_view(t);
    far_catch_up(q->state);
    return dsc_ref_table.scale_by(q, &factor, &scaled);
}

static const dsc_device_table far_table = {
    .alloc = far_alloc,
    .free = far_free,
    .upload = far_upload,
    .download = far_download,
    .host_alloc = far_host_alloc,
    .host_free = far_host_free,
    .queue_open = far_queue_open,
    .queue_close = far_queue_close,
    .queue_sync = far_sync,
    .convert = far_convert,
    .scale_by = far_scale_by,
};

static inline dsc_device *far_create(void) {
    dsc_device *device = calloc(1, sizeof *device);
    assert_non_null(device);
    device->table = &far_table;
    device->name = "far";
    device->has_halves = 1;
    device->threads = 1;
    return device;
}

#endif
