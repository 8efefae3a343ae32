/* Moves host memory with a transport that can use GPU memory only: the opposite of staging.c. Data to be sent are
 * copied to the GPU, in the order of the communicator's queue; when the operation is waited for, the result
 * is copied back, and the host waits for that. The memory on the GPU is kept for the next operation. */
#include "comm/contact/contact.h"

#include "base/error.h"
#include "base/memory.h"
#include "device/recording.h"

struct dsc_lift {
    dsc_lifts *owner;
    dsc_tensor memory; /* bytes on the GPU */
    dsc_queue *queue;
    dsc_piece piece; /* the piece that the communicator's device_table moves */
    void *to;        /* where the result goes on the host; NULL: nowhere */
    dsc_tensor result;
    dsc_lift *next_free, *next;
};

struct dsc_lifts {
    dsc_lift *all, *free;
};

static size_t align(size_t bytes) {
    return (bytes + DSC_ALIGNMENT - 1) / DSC_ALIGNMENT * DSC_ALIGNMENT;
}

void dsc_lifts_free(dsc_lifts **lifts) {
    if (!*lifts)
        return;
    while ((*lifts)->all) {
        dsc_lift *lift = (*lifts)->all;
        (*lifts)->all = lift->next;
        dsc_tensor_free(&lift->memory);
        dsc_memory_free(&lift);
    }
    dsc_memory_free(lifts);
}

static dsc_status take_lift(dsc_lifts *lifts, dsc_device *device, size_t bytes, dsc_lift **out) {
    dsc_lift *lift = lifts->free;
    int64_t count = (int64_t)bytes;
    if (!lift) {
        DSC_TRY(dsc_memory_alloc(1, sizeof *lift, &lift));
        lift->owner = lifts;
        lift->next = lifts->all;
        lifts->all = lift;
        lift->next_free = lifts->free;
        lifts->free = lift;
    }
    if (lift->memory.device != device || dsc_tensor_bytes(&lift->memory) < bytes) {
        if (lift->memory.data)
            dsc_tensor_free(&lift->memory);
        DSC_TRY(dsc_tensor_alloc(device, DSC_U8, 1, &count, &lift->memory));
    }
    lifts->free = lift->next_free;
    lift->next_free = NULL;
    *out = lift;
    return DSC_OK;
}

static void return_lift(dsc_lift *lift) {
    lift->next_free = lift->owner->free;
    lift->owner->free = lift;
}

static dsc_status check_transport(const dsc_comm *comm, dsc_comm_op op) {
    if (!comm->device_table || !comm->queue)
        return DSC_FAIL(
            DSC_E_UNSUPPORTED,
            "%s of host memory, on a communicator made by NCCL alone: it goes through the GPU, "
            "which is not known yet: call dsc_comm_use_queue with a queue of the GPU on the first "
            "communicator, before others are split from it",
            dsc_comm_op_name(op));
    if (dsc_queue_is_recording(comm->queue))
        return DSC_FAIL(DSC_E_INVALID,
                        "%s of host memory through the GPU cannot be recorded: end the recording first",
                        dsc_comm_op_name(op));
    return DSC_OK;
}

/* Returns a view of `bytes` bytes of the lift's memory, from byte `at` on. */
static dsc_tensor part_of(const dsc_lift *lift, size_t at, size_t bytes) {
    int64_t count = (int64_t)bytes;
    return dsc_tensor_view(lift->memory.device, (char *)lift->memory.data + at, DSC_U8, 1, &count);
}

/* Copies the data to be sent, and starts the transfer between the GPUs. The result of a reduce-scatter is placed
 * after these data; other results replace them. */
static dsc_status launch(dsc_comm *comm, dsc_lift *lift, const dsc_transfer *t) {
    size_t part = (size_t)t->count * dsc_dtype_size(t->dtype);
    size_t whole = dsc_comm_is_gather(t->op) ? part * (size_t)comm->size : part;
    size_t from = t->op == DSC_COMM_ALLGATHER ? (size_t)comm->rank * part : 0;
    size_t to = t->op == DSC_COMM_REDUCE_SCATTER ? align(whole) : 0;
    int is_root = t->peer == comm->rank;
    dsc_transfer inner = *t;
    dsc_tensor source = part_of(lift, from, t->op == DSC_COMM_REDUCE_SCATTER ? whole : part);
    lift->result = part_of(lift, to, t->op == DSC_COMM_ALLGATHER ? whole : part);
    lift->to = t->recv;
    if (t->op == DSC_COMM_SEND || (t->op == DSC_COMM_REDUCE && !is_root) ||
        (t->op == DSC_COMM_BROADCAST && is_root))
        lift->to = NULL;
    if (t->op != DSC_COMM_RECV && (t->op != DSC_COMM_BROADCAST || is_root))
        DSC_TRY(dsc_tensor_upload(lift->queue, t->send, dsc_tensor_bytes(&source), &source));
    inner.send = source.data;
    inner.recv = lift->result.data;
    lift->piece = (dsc_piece){.expected = t->op == DSC_COMM_RECV ? t->count : -1, .dtype = t->dtype};
    return comm->device_table->start(comm, &inner, &lift->piece);
}

dsc_status dsc_lift_start(dsc_comm *comm, dsc_lifts **lifts, const dsc_transfer *t, dsc_lift **out) {
    size_t part = (size_t)t->count * dsc_dtype_size(t->dtype);
    size_t bytes = align(dsc_comm_is_gather(t->op) ? part * (size_t)comm->size : part) + align(part);
    dsc_lift *lift = NULL;
    DSC_TRY(check_transport(comm, t->op));
    if (!*lifts)
        DSC_TRY(dsc_memory_alloc(1, sizeof **lifts, lifts));
    DSC_TRY(take_lift(*lifts, dsc_queue_device(comm->queue), bytes, &lift));
    lift->queue = comm->queue;
    DSC_TRY(launch(comm, lift, t)); /* a lift that failed is not reused: its copy may still be running */
    *out = lift;
    return DSC_OK;
}

static dsc_status finish(dsc_lift *lift) {
    dsc_status status = DSC_OK;
    if (lift->to)
        status = dsc_tensor_download(lift->queue, &lift->result, dsc_tensor_bytes(&lift->result), lift->to);
    if (status == DSC_OK)
        status = dsc_queue_sync(lift->queue);
    return_lift(lift);
    DSC_TRY(status);
    return DSC_OK;
}

dsc_status dsc_lift_test(dsc_comm *comm, dsc_lift *lift, int *done) {
    DSC_TRY(comm->device_table->test(comm, &lift->piece, done));
    return *done ? finish(lift) : DSC_OK;
}

dsc_status dsc_lift_wait(dsc_comm *comm, dsc_lift *lift) {
    DSC_TRY(comm->device_table->wait(comm, &lift->piece));
    return finish(lift);
}
