/* What a backend implements: one constant table of functions, called by the fronts in ops_*.c and device.c
 * after all checks. Its operations come from the list at the end of ops.h. The cpu backend copies ref's table
 * (dsc_ref_table) and replaces the functions that it does better.
 *
 * The operations of a host backend are called for F32 only; for other real types the fronts use ref's table
 * (dsc_device_table_for). Exceptions, which are called for every type that their front allows: `fill`, `convert`,
 * `convert_batch`, `nhwc_batch`, `target_loss`, `sample_labels`, the solvers `syev`, `chol_inverse`, `syev_careful`
 * with their batches and workspaces, and `orthonormal_batch`. */
#ifndef DSC_DEVICE_TABLE_H
#define DSC_DEVICE_TABLE_H

#include "base/visible.h"
#include "device/ops.h"
#include "device/scope.h"

#include <stdatomic.h>

typedef struct dsc_device_table {
    /* life cycle and memory */
    void (*destroy)(dsc_device *device); /* frees device->state; may be NULL */
    /* alloc returns zeroed memory, aligned to at least 64 bytes. alloc and free report the size
     * (dsc_device_count_alloc, _free). */
    dsc_status (*alloc)(dsc_device *device, size_t bytes, void **out);
    void (*free)(dsc_device *device, void *data);
    dsc_status (*upload)(dsc_queue *q, const void *host, size_t bytes, void *data);
    dsc_status (*download)(dsc_queue *q, const void *data, size_t bytes, void *host);
    /* Checks that an address is in memory of the device; NULL if the backend cannot tell. */
    dsc_status (*check_memory)(const dsc_device *device, const void *data);
    /* Make the device the thread's current one, and restore the previous one (device/scope.h); NULL on devices for
     * which there is no such thing. */
    dsc_status (*enter)(const dsc_device *device, void *state);
    void (*leave)(void *state);
    /* host memory that is fast to copy from and to (pinned memory); NULL: all host memory is */
    dsc_status (*host_alloc)(dsc_device *device, size_t bytes, void **out);
    void (*host_free)(dsc_device *device, void *data);
    /* queues and events; NULL on devices whose operations run during the call */
    dsc_status (*queue_open)(dsc_queue *q);
    dsc_status (*queue_wrap)(dsc_queue *q, void *stream); /* queue_open with the caller's stream */
    dsc_status (*queue_rewrap)(dsc_queue *q, void *stream);
    void *(*queue_stream)(const dsc_queue *q);
    void (*queue_close)(dsc_queue *q);
    dsc_status (*queue_sync)(dsc_queue *q);
    dsc_status (*queue_wait)(dsc_queue *q, dsc_event *event);
    dsc_status (*event_open)(dsc_event *event);
    void (*event_close)(dsc_event *event);
    dsc_status (*event_record)(dsc_event *event, dsc_queue *q);
    dsc_status (*event_sync)(dsc_event *event);
    dsc_status (*event_elapsed)(dsc_event *from, dsc_event *to, double *ms);
    /* recordings; NULL on devices without them */
    dsc_status (*record_begin)(dsc_queue *q);
    dsc_status (*record_end)(dsc_queue *q, void **recording);
    dsc_status (*replay)(dsc_queue *q, void *recording);
    void (*record_free)(dsc_device *device, void *recording);

    /* the algorithms chosen for convolutions; NULL on devices without a choice */
    dsc_status (*choices)(dsc_device *device, char *text, size_t size, size_t *needed);
    dsc_status (*preset)(dsc_device *device, const char *text);
    /* planned convolutions: conv_open sets workspace and state; both functions may be NULL (no state, no workspace) */
    dsc_status (*conv_open)(dsc_conv *conv);
    void (*conv_close)(dsc_conv *conv);

    /* The operations, with the arguments of their fronts. Batches have no empty matrices, except weigh_batch. */
#define DSC_TABLE_MEMBER(name) __typeof__(dsc_op_##name) *name;
    DSC_OPERATIONS(DSC_TABLE_MEMBER, DSC_TABLE_MEMBER)
#undef DSC_TABLE_MEMBER
} dsc_device_table;

struct dsc_device {
    const dsc_device_table *table;
    const char *name;
    char description[160];
    int is_host;
    int has_halves; /* 1: operations accept half types */
    int threads;
    int tunes;         /* 1: chooses algorithms by timing them */
    uint64_t identity; /* 0 for hosts */
    void *state;       /* belongs to the backend */
    atomic_size_t bytes, peak_bytes;
};

struct dsc_queue {
    dsc_device *device;
    int recording;
    int low; /* 1: low priority, its work yields to that of other queues */
    void *state;
};

struct dsc_event {
    dsc_device *device;
    void *state;
};

/* The passes that a convolution is planned for. */
typedef enum dsc_conv_use {
    DSC_CONV_EVERY_PASS,
    DSC_CONV_FORWARD_ONLY,
    DSC_CONV_BACKWARD_DATA_ONLY
} dsc_conv_use;

struct dsc_conv {
    dsc_device *device;
    const dsc_device_table *table; /* the one that opened it: the device's, or ref's (dsc_device_table_for) */
    dsc_conv_desc desc;
    dsc_conv_use use;
    int64_t oh, ow;
    size_t workspace;
    void *state;
};

/* Returns the table for operations on this type: the device's, or ref's on a host device for types other than F32. */
const dsc_device_table *dsc_device_table_for(const dsc_device *device, dsc_dtype dtype);

/* Called by a backend's alloc and free: update the device's byte counters. */
DSC_MODULE_API void dsc_device_count_alloc(dsc_device *device, size_t bytes);
DSC_MODULE_API void dsc_device_count_free(dsc_device *device, size_t bytes);

/* The reference table, complete. */
extern const dsc_device_table dsc_ref_table;

/* Fill in table, name, description, threads and state of a device of this kind. */
dsc_status dsc_ref_open(dsc_device *device, const dsc_device_options *options) DSC_MUST_CHECK;
dsc_status dsc_cpu_open(dsc_device *device, const dsc_device_options *options) DSC_MUST_CHECK;

#endif
