/* Moving data between ranks. */
#include "train/share.h"

#include "base/error.h"
#include "base/memory.h"

#include <string.h>

/* After a wait that failed MPI may still write to the block, so that it cannot be freed. */
static void free_block(dsc_tensor *block, dsc_status status) {
    if (status == DSC_E_LOST || status == DSC_E_COMM)
        dsc_memory_keep(block->data);
    else if (block->data)
        dsc_tensor_free(block);
}

static dsc_status share_through(dsc_comm *comm, dsc_queue *queue, dsc_tensor *block, void *data) {
    size_t bytes = dsc_tensor_bytes(block);
    DSC_TRY(dsc_comm_broadcast(comm, DSC_TRAFFIC_OTHER, 0, block));
    DSC_TRY(dsc_tensor_download(queue, block, bytes, data));
    return dsc_queue_sync(queue);
}

dsc_status dsc_share_bytes(dsc_comm *comm, dsc_queue *queue, void *data, size_t bytes) {
    dsc_tensor block = {0};
    int64_t count = (int64_t)bytes;
    dsc_status status = dsc_tensor_alloc(dsc_queue_device(queue), DSC_U8, 1, &count, &block);
    if (status == DSC_OK)
        status = dsc_tensor_upload(queue, data, bytes, &block);
    if (status == DSC_OK)
        status = dsc_queue_sync(queue);
    status = dsc_comm_agree(comm, status);
    if (status == DSC_OK)
        status = share_through(comm, queue, &block, data);
    free_block(&block, status);
    return status;
}

static dsc_status gather_through(dsc_comm *comm, dsc_queue *queue, dsc_tensor *block, const void *own,
                                 size_t bytes, void *all) {
    dsc_request *request;
    dsc_tensor part = dsc_tensor_slice(block, (int64_t)bytes * dsc_comm_rank(comm), (int64_t)bytes);
    DSC_TRY(dsc_tensor_upload(queue, own, bytes, &part));
    DSC_TRY(dsc_queue_sync(queue));
    DSC_TRY(dsc_comm_allgather_begin(comm, DSC_TRAFFIC_OTHER, &part, block, &request));
    DSC_TRY(dsc_comm_wait(&request));
    DSC_TRY(dsc_tensor_download(queue, block, dsc_tensor_bytes(block), all));
    return dsc_queue_sync(queue);
}

dsc_status dsc_share_gather(dsc_comm *comm, dsc_queue *queue, dsc_status status, const void *own,
                            size_t bytes, void **all) {
    dsc_tensor block = {0};
    int64_t count = (int64_t)bytes * dsc_comm_size(comm);
    *all = NULL;
    if (status == DSC_OK)
        status = dsc_memory_alloc(count, 1, all);
    if (status == DSC_OK)
        status = dsc_tensor_alloc(dsc_queue_device(queue), DSC_U8, 1, &count, &block);
    status = dsc_comm_agree(comm, status);
    if (status == DSC_OK)
        status = gather_through(comm, queue, &block, own, bytes, *all);
    free_block(&block, status);
    if (status != DSC_OK)
        dsc_memory_free(all);
    return status;
}

dsc_status dsc_share_text(dsc_comm *comm, dsc_queue *queue, dsc_status status, char **text) {
    int rank = dsc_comm_rank(comm);
    int64_t bytes = status == DSC_OK && rank == 0 ? (int64_t)strlen(*text) + 1 : 0;
    DSC_TRY(dsc_comm_agree(comm, status));
    DSC_TRY(dsc_share_bytes(comm, queue, &bytes, sizeof bytes));
    if (rank != 0)
        status = dsc_memory_alloc(bytes, 1, text);
    DSC_TRY(dsc_comm_agree(comm, status));
    return dsc_share_bytes(comm, queue, *text, (size_t)bytes);
}

/* ---- from one rank to another ---- */

enum { CARRIER_TAG = 1 };

dsc_status dsc_carrier_open(dsc_comm *comm, dsc_queue *queue, size_t bytes, size_t sent, dsc_carrier *out) {
    int64_t count = (int64_t)sent;
    *out = (dsc_carrier){.comm = comm, .queue = queue};
    dsc_status status = dsc_memory_alloc((int64_t)bytes, 1, &out->host);
    if (status == DSC_OK)
        status = dsc_tensor_alloc(dsc_queue_device(queue), DSC_U8, 1, &count, &out->block);
    if (status != DSC_OK)
        dsc_carrier_close(out);
    return status;
}

void dsc_carrier_close(dsc_carrier *carrier) {
    if (carrier->request)
        dsc_memory_keep(carrier->block.data);
    else if (carrier->block.data)
        dsc_tensor_free(&carrier->block);
    dsc_memory_free(&carrier->host);
    *carrier = (dsc_carrier){0};
}

/* Sends the block even when the upload to it has failed: the other rank waits for it. */
static dsc_status send(dsc_carrier *c, int to, size_t bytes) {
    dsc_tensor t = dsc_tensor_slice(&c->block, 0, (int64_t)bytes);
    dsc_status status = dsc_tensor_upload(c->queue, c->host, bytes, &t);
    if (status == DSC_OK)
        status = dsc_queue_sync(c->queue);
    DSC_TRY(dsc_comm_send_begin(c->comm, DSC_TRAFFIC_OTHER, to, CARRIER_TAG, &t, &c->request));
    DSC_TRY(dsc_comm_wait(&c->request));
    return status;
}

static dsc_status receive(dsc_carrier *c, int from, size_t bytes) {
    dsc_tensor t = dsc_tensor_slice(&c->block, 0, (int64_t)bytes);
    DSC_TRY(dsc_comm_recv_begin(c->comm, from, CARRIER_TAG, &t, &c->request));
    DSC_TRY(dsc_comm_wait(&c->request));
    DSC_TRY(dsc_tensor_download(c->queue, &t, bytes, c->host));
    return dsc_queue_sync(c->queue);
}

dsc_status dsc_carrier_move(dsc_carrier *carrier, int from, int to, size_t bytes) {
    int rank = dsc_comm_rank(carrier->comm);
    if (from == to || (rank != from && rank != to))
        return DSC_OK;
    return rank == from ? send(carrier, to, bytes) : receive(carrier, from, bytes);
}

/* ---- models ---- */

dsc_status dsc_share_buffers(dsc_comm *comm, dsc_queue *queue, dsc_model *model) {
    const dsc_param *buffers = dsc_model_buffers(model);
    DSC_TRY(dsc_queue_sync(queue));
    for (int64_t i = 0; i < dsc_model_buffer_count(model); i++) {
        dsc_tensor buffer = buffers[i].value;
        DSC_TRY(dsc_comm_broadcast(comm, DSC_TRAFFIC_OTHER, 0, &buffer));
    }
    return DSC_OK;
}

dsc_status dsc_share_model(dsc_comm *comm, dsc_queue *queue, dsc_model *model) {
    dsc_tensor values = dsc_model_values(model);
    DSC_TRY(dsc_queue_sync(queue));
    DSC_TRY(dsc_comm_broadcast(comm, DSC_TRAFFIC_PARAMETERS, 0, &values));
    return dsc_share_buffers(comm, queue, model);
}
