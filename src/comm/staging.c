/* Moves GPU memory with a transport that can use host memory only. Data to be sent are first copied to
 * page-locked memory; a result that arrives there is copied back when the operation is waited for. Both copies
 * are in the order of the communicator's queue, and the host waits for both, because the transport knows nothing
 * of queues, and the next operation reuses the staging memory.
 *
 *   op               copied to the host        copied back
 *   all-reduce       the vector                the vector
 *   reduce           the vector                the vector, at the root
 *   broadcast        the vector, at the root   the vector, elsewhere
 *   all-gather       the own part              all parts
 *   reduce-scatter   all parts                 the own part
 *   send             the vector
 *   recv                                       the vector */
#include "comm/table.h"

#include "base/error.h"
#include "base/memory.h"
#include "device/recording.h"

/* ---- memory ---- */

static void free_staging(dsc_staging **staging) {
    dsc_host_free(&(*staging)->owner, &(*staging)->data);
    dsc_memory_free(staging);
}

static dsc_status make_staging(dsc_device *device, size_t bytes, dsc_staging **out) {
    dsc_staging *staging;
    DSC_TRY(dsc_memory_alloc(1, sizeof *staging, &staging));
    staging->owner.table = device->table;
    staging->bytes = bytes;
    dsc_status status = dsc_host_alloc(device, bytes, &staging->data);
    if (status != DSC_OK)
        dsc_memory_free(&staging);
    DSC_TRY(status);
    *out = staging;
    return DSC_OK;
}

/* Takes the smallest free buffer that is large enough. If there is none, frees the largest and allocates a
 * new one. Operations that repeat every step thus find the buffers of the previous step. */
static dsc_status take_staging(dsc_comm *comm, dsc_device *device, size_t bytes, dsc_staging **out) {
    dsc_staging **best = NULL, **largest = NULL;
    for (dsc_staging **at = &comm->free_staging; *at; at = &(*at)->next) {
        if ((*at)->owner.table != device->table)
            continue;
        if ((*at)->bytes >= bytes && (!best || (*at)->bytes < (*best)->bytes))
            best = at;
        if (!largest || (*at)->bytes > (*largest)->bytes)
            largest = at;
    }
    dsc_staging **chosen = best ? best : largest;
    dsc_staging *staging = chosen ? *chosen : NULL;
    if (staging)
        *chosen = staging->next;
    if (staging && !best)
        free_staging(&staging);
    if (!staging)
        DSC_TRY(make_staging(device, bytes, &staging));
    *out = staging;
    return DSC_OK;
}

void dsc_staging_return(dsc_request *request) {
    if (!request->staging)
        return;
    request->staging->next = request->comm->free_staging;
    request->comm->free_staging = request->staging;
    request->staging = NULL;
}

void dsc_staging_drop(dsc_comm *comm) {
    while (comm->free_staging) {
        dsc_staging *staging = comm->free_staging;
        comm->free_staging = staging->next;
        free_staging(&staging);
    }
}

/* ---- copies ---- */

static int sends(const dsc_comm *comm, const dsc_transfer *t) {
    return t->op == DSC_COMM_BROADCAST ? t->peer == comm->rank : t->op != DSC_COMM_RECV;
}

static int receives(const dsc_comm *comm, const dsc_transfer *t) {
    if (t->op == DSC_COMM_BROADCAST)
        return t->peer != comm->rank;
    return t->op == DSC_COMM_REDUCE ? t->peer == comm->rank : t->op != DSC_COMM_SEND;
}

static size_t align(size_t bytes) {
    return (bytes + DSC_ALIGNMENT - 1) / DSC_ALIGNMENT * DSC_ALIGNMENT;
}

dsc_status dsc_staging_begin(dsc_request *request, dsc_device *device, dsc_transfer *transfer) {
    dsc_comm *comm = request->comm;
    int64_t part = transfer->count, whole = dsc_comm_is_gather(transfer->op) ? part * comm->size : part;
    int64_t sent = transfer->op == DSC_COMM_REDUCE_SCATTER ? whole : part;
    int64_t received = transfer->op == DSC_COMM_ALLGATHER ? whole : part;
    size_t element = dsc_dtype_size(transfer->dtype);
    size_t result_at =
        align((size_t)whole * element); /* where a result that does not replace its input goes */
    int apart = transfer->op == DSC_COMM_REDUCE_SCATTER;
    if (dsc_queue_is_recording(comm->queue))
        return DSC_FAIL(DSC_E_INVALID,
                        "an operation of communicator '%s' copies over the host and cannot be recorded: end "
                        "the recording first, or use nccl",
                        dsc_comm_name(comm));
    DSC_TRY(take_staging(comm, device, result_at + (apart ? (size_t)part * element : 0), &request->staging));
    request->queue = comm->queue;
    char *host = request->staging->data;
    dsc_tensor source = dsc_tensor_view(device, (void *)(uintptr_t)transfer->send, transfer->dtype, 1, &sent);
    request->result = dsc_tensor_view(device, receives(comm, transfer) ? transfer->recv : NULL,
                                      transfer->dtype, 1, &received);
    transfer->send =
        transfer->op == DSC_COMM_ALLGATHER ? host + (size_t)comm->rank * (size_t)part * element : host;
    transfer->recv = apart ? host + result_at : host;
    request->arrived = transfer->recv;
    if (!sends(comm, transfer))
        return DSC_OK;
    DSC_TRY(dsc_tensor_download(comm->queue, &source, dsc_tensor_bytes(&source),
                                (void *)(uintptr_t)transfer->send));
    return dsc_queue_sync(comm->queue);
}

dsc_status dsc_staging_finish(dsc_request *request) {
    if (!request->staging || !request->result.data)
        return DSC_OK;
    DSC_TRY(dsc_tensor_upload(request->queue, request->arrived, dsc_tensor_bytes(&request->result),
                              &request->result));
    return dsc_queue_sync(request->queue);
}
