/* The operations. Each is checked, completed at once if it needs no transport, cut into pieces no longer than
 * the communicator's message_limit and started, and its bytes are counted.
 *
 * Tensors in GPU memory are moved in one piece by the communicator's device_table; without one they are copied
 * through the host (staging.c). */
#include "comm/table.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/trace.h"
#include "device/ops.h"

#include <stdio.h>
#include <string.h>

enum { TAG_LIMIT = 32767 };

static const char *const names[] = {
    [DSC_COMM_ALLREDUCE] = "allreduce", [DSC_COMM_REDUCE] = "reduce",
    [DSC_COMM_BROADCAST] = "broadcast", [DSC_COMM_ALLGATHER] = "allgather",
    [DSC_COMM_SEND] = "send",           [DSC_COMM_REDUCE_SCATTER] = "reduce_scatter",
    [DSC_COMM_RECV] = "recv",           [DSC_COMM_BARRIER] = "barrier"};

const char *dsc_comm_op_name(dsc_comm_op op) {
    return names[op];
}

/* ---- requests ---- */

/* Takes a free request, or a new one, with space for `pieces` pieces. */
static dsc_status take_request(dsc_comm *comm, int64_t pieces, dsc_request **out) {
    dsc_request *request = comm->free_requests;
    if (!request) {
        DSC_TRY(dsc_memory_alloc(1, sizeof *request, &request));
        request->comm = comm;
        request->next = comm->requests;
        comm->requests = request;
        comm->free_requests = request;
    }
    DSC_TRY(dsc_memory_grow(&request->pieces, &request->capacity, pieces, sizeof *request->pieces));
    comm->free_requests = request->next_free;
    request->next_free = NULL;
    request->count = request->done = 0;
    request->busy = 1;
    request->expired = 0;
    request->table = comm->table;
    request->began = dsc_trace_is_on() ? dsc_clock_now() : 0;
    request->traffic = DSC_TRAFFIC_OTHER;
    request->bytes = 0;
    *out = request;
    return DSC_OK;
}

static void return_request(dsc_request *request) {
    if (request->began > 0 && request->count > 0)
        dsc_trace_message(dsc_traffic_name(request->traffic), names[request->op], request->began,
                          dsc_clock_now(), request->bytes);
    dsc_staging_return(request);
    request->busy = 0;
    request->next_free = request->comm->free_requests;
    request->comm->free_requests = request;
}

/* Sends the messages that the GPU's transport has held back in order to group them. */
static dsc_status flush(dsc_comm *comm) {
    if (comm->device_table && comm->device_table->flush)
        DSC_TRY(comm->device_table->flush(comm));
    return DSC_OK;
}

/* Waits for the pieces in turn. A failure is returned at once, because later pieces may never complete. */
static dsc_status wait_pieces(dsc_request *request) {
    dsc_comm *comm = request->comm;
    if (dsc_comm_is_limited(request))
        return dsc_comm_wait_limited(request);
    DSC_TRY(flush(comm));
    for (; request->done < request->count; request->done++)
        DSC_TRY(request->table->wait(comm, &request->pieces[request->done]));
    return DSC_OK;
}

dsc_status dsc_comm_wait(dsc_request **request) {
    if (!request || !*request)
        return DSC_OK;
    dsc_request *r = *request;
    r->expired = 0;
    dsc_status status = wait_pieces(r);
    if (status == DSC_OK)
        status = dsc_staging_finish(r);
    if (r->expired)
        return dsc_error_pass(status, __FILE__, __LINE__);
    *request = NULL;
    return_request(r);
    return status == DSC_OK ? DSC_OK : dsc_error_pass(status, __FILE__, __LINE__);
}

dsc_status dsc_comm_poll(dsc_request *request, int *done) {
    dsc_comm *comm = request->comm;
    *done = 1;
    DSC_TRY(flush(comm));
    for (; request->done < request->count; request->done++) {
        DSC_TRY(request->table->test(comm, &request->pieces[request->done], done));
        if (!*done)
            return DSC_OK;
    }
    return DSC_OK;
}

dsc_status dsc_comm_test(dsc_request **request, int *done) {
    *done = 1;
    if (!request || !*request)
        return DSC_OK;
    dsc_request *r = *request;
    dsc_status status = dsc_comm_poll(r, done);
    if (status == DSC_OK && !*done)
        return DSC_OK;
    if (status == DSC_OK)
        status = dsc_staging_finish(r);
    *request = NULL;
    return_request(r);
    return status == DSC_OK ? DSC_OK : dsc_error_pass(status, __FILE__, __LINE__);
}

int dsc_comm_settle_requests(dsc_comm *comm) {
    for (dsc_request *r = comm->requests; r; r = r->next) {
        int done = 1;
        if (!r->busy)
            continue;
        if (!r->expired)
            (void)wait_pieces(r); /* the result is dropped, as its destination may already be freed */
        if (r->expired && (dsc_comm_poll(r, &done) != DSC_OK || !done))
            return 0;
    }
    return 1;
}

void dsc_comm_drop_requests(dsc_comm *comm) {
    while (comm->requests) {
        dsc_request *request = comm->requests;
        comm->requests = request->next;
        dsc_staging_return(request);
        dsc_memory_free(&request->own);
        dsc_memory_free(&request->pieces);
        dsc_memory_free(&request);
    }
    comm->free_requests = NULL;
}

/* ---- counting ---- */

uint64_t dsc_comm_cost(dsc_comm_op op, uint64_t bytes, int ranks) {
    uint64_t n = (uint64_t)ranks;
    switch (op) {
    case DSC_COMM_ALLREDUCE:
        return 2 * (n - 1) * bytes / n;
    case DSC_COMM_ALLGATHER:
    case DSC_COMM_REDUCE_SCATTER:
        return (n - 1) * bytes / n;
    case DSC_COMM_BROADCAST:
        return (n - 1) * bytes;
    case DSC_COMM_REDUCE:
        return n > 1 ? bytes : 0;
    case DSC_COMM_SEND:
        return bytes;
    case DSC_COMM_RECV:
    case DSC_COMM_BARRIER:
        break;
    }
    return 0;
}

int dsc_comm_is_gather(dsc_comm_op op) {
    return op == DSC_COMM_ALLGATHER || op == DSC_COMM_REDUCE_SCATTER;
}

int dsc_comm_is_idle(const dsc_comm *comm, dsc_comm_op op) {
    return comm->size == 1 && !comm->alone_too && op != DSC_COMM_SEND && op != DSC_COMM_RECV;
}

static void count_bytes(dsc_comm *comm, dsc_traffic traffic, const dsc_transfer *transfer) {
    int is_root = transfer->peer == comm->rank;
    if ((transfer->op == DSC_COMM_BROADCAST && !is_root) || (transfer->op == DSC_COMM_REDUCE && is_root))
        return;
    uint64_t bytes = (uint64_t)transfer->count * dsc_dtype_size(transfer->dtype);
    if (dsc_comm_is_gather(transfer->op))
        bytes *= (uint64_t)comm->size;
    dsc_comm_add_bytes(comm, traffic, dsc_comm_cost(transfer->op, bytes, comm->size));
}

/* ---- starting ---- */

static dsc_status start_piece(dsc_request *request, const dsc_transfer *transfer) {
    dsc_piece *piece = &request->pieces[request->count];
    *piece = (dsc_piece){.expected = transfer->op == DSC_COMM_RECV ? transfer->count : -1,
                         .dtype = transfer->dtype};
    DSC_TRY(request->table->start(request->comm, transfer, piece));
    request->count++;
    return DSC_OK;
}

/* Starts the transfer of a vector in pieces of at most message_limit elements. */
static dsc_status start_vector(dsc_request *request, const dsc_transfer *transfer) {
    int64_t limit = request->comm->message_limit;
    size_t size = dsc_dtype_size(transfer->dtype);
    for (int64_t first = 0; first < transfer->count; first += limit) {
        dsc_transfer piece = *transfer;
        piece.send = (const char *)transfer->send + (size_t)first * size;
        piece.recv = (char *)transfer->recv + (size_t)first * size;
        piece.count = transfer->count - first < limit ? transfer->count - first : limit;
        DSC_TRY(start_piece(request, &piece));
    }
    return DSC_OK;
}

static void copy_own_part(const dsc_comm *comm, const dsc_transfer *transfer) {
    size_t bytes = (size_t)transfer->count * dsc_dtype_size(transfer->dtype);
    size_t place = (size_t)comm->rank * bytes;
    if (transfer->op == DSC_COMM_ALLGATHER)
        memmove((char *)transfer->recv + place, transfer->send, bytes);
    else
        memmove(transfer->recv, (const char *)transfer->send + place, bytes);
}

/* Starts an all-gather or reduce-scatter of more than message_limit elements, as one broadcast from, or one
 * reduction to, the owner of each part. */
static dsc_status start_parts(dsc_request *request, const dsc_transfer *transfer) {
    dsc_comm *comm = request->comm;
    size_t bytes = (size_t)transfer->count * dsc_dtype_size(transfer->dtype);
    int gather = transfer->op == DSC_COMM_ALLGATHER;
    if (gather)
        copy_own_part(comm, transfer);
    for (int owner = 0; owner < comm->size; owner++) {
        size_t place = (size_t)owner * bytes;
        dsc_transfer part = *transfer;
        part.peer = owner;
        part.op = gather ? DSC_COMM_BROADCAST : DSC_COMM_REDUCE;
        if (gather)
            part.send = part.recv = (char *)transfer->recv + place;
        else
            part.send = (const char *)transfer->send + place;
        DSC_TRY(start_vector(request, &part));
    }
    return DSC_OK;
}

/* Starts a transfer, unless there is nothing to move. `far` is the device in whose memory the data are, or NULL for
 * host memory. `by_parts`: see start_parts. */
static dsc_status start(dsc_request *request, dsc_device *far, const dsc_transfer *transfer, int by_parts) {
    dsc_comm *comm = request->comm;
    if (transfer->count == 0)
        return DSC_OK;
    if (dsc_comm_is_idle(comm, transfer->op)) { /* one rank: at most a copy of its own part */
        if (dsc_comm_is_gather(transfer->op) && !far)
            copy_own_part(comm, transfer);
        if (!dsc_comm_is_gather(transfer->op) || !far || transfer->send == transfer->recv)
            return DSC_OK;
        int64_t bytes = transfer->count * (int64_t)dsc_dtype_size(transfer->dtype);
        dsc_tensor from = dsc_tensor_view(far, (void *)(uintptr_t)transfer->send, DSC_U8, 1, &bytes);
        dsc_tensor to = dsc_tensor_view(far, transfer->recv, DSC_U8, 1, &bytes);
        return dsc_op_convert(comm->queue, &from, &to);
    }
    if (far && comm->device_table) {
        request->table = comm->device_table; /* it takes any length */
        return start_piece(request, transfer);
    }
    /* Point-to-point messages that are held back may still be joined by others, but a collective sends them. */
    if (transfer->op != DSC_COMM_SEND && transfer->op != DSC_COMM_RECV)
        DSC_TRY(flush(comm));
    dsc_transfer on_host = *transfer;
    if (far)
        DSC_TRY(dsc_staging_begin(request, far, &on_host));
    if (by_parts)
        return start_parts(request, &on_host);
    return dsc_comm_is_gather(transfer->op) ? start_piece(request, &on_host)
                                            : start_vector(request, &on_host);
}

static void name_request(dsc_request *request, const dsc_transfer *transfer) {
    request->op = transfer->op;
    request->peer = transfer->peer;
    request->tag = transfer->tag;
}

/* Starts an operation whose arguments have been checked. If a piece cannot be started, earlier ones may
 * be in flight, so neither the request nor its staging memory is reused. */
static dsc_status begin(dsc_comm *comm, dsc_device *far, dsc_traffic traffic, const dsc_transfer *transfer,
                        dsc_request **out) {
    int by_parts = dsc_comm_is_gather(transfer->op) && transfer->count > comm->message_limit / comm->size;
    int64_t pieces = (transfer->count + comm->message_limit - 1) / comm->message_limit;
    dsc_request *request = NULL;
    DSC_TRY(take_request(comm, by_parts ? pieces * comm->size : pieces, &request));
    name_request(request, transfer);
    request->traffic = traffic;
    request->bytes = transfer->count * (int64_t)dsc_dtype_size(transfer->dtype);
    dsc_status status = start(request, far, transfer, by_parts);
    if (status != DSC_OK) {
        request->busy = 0;
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    count_bytes(comm, traffic, transfer);
    *out = request;
    return DSC_OK;
}

/* ---- checks ---- */

static dsc_status check_tensor(const char *op, const dsc_tensor *t) {
    if (!t || !t->device)
        return DSC_FAIL(DSC_E_INVALID, "%s: the tensor is missing or belongs to no device", op);
    if (dsc_dtype_size(t->dtype) == 0)
        return DSC_FAIL(DSC_E_INVALID, "%s: tensor type %d is unknown", op, (int)t->dtype);
    if (t->ndim < 0 || t->ndim > DSC_MAX_DIMS)
        return DSC_FAIL(DSC_E_INVALID, "%s: a tensor of %d dimensions; 0 to %d are possible", op, t->ndim,
                        DSC_MAX_DIMS);
    for (int i = 0; i < t->ndim; i++) {
        if (t->dim[i] < 0)
            return DSC_FAIL(DSC_E_INVALID, "%s: dimension %d of the tensor is %lld; it may not be negative",
                            op, i, (long long)t->dim[i]);
    }
    if (!t->data && dsc_tensor_count(t) > 0)
        return DSC_FAIL(DSC_E_INVALID, "%s: a tensor of %lld elements without memory", op,
                        (long long)dsc_tensor_count(t));
    return DSC_OK;
}

/* Returns the device of a tensor in memory that the host cannot access, NULL for others. */
static dsc_device *far_device(const dsc_tensor *t) {
    return dsc_device_is_host(t->device) ? NULL : t->device;
}

/* Checks that `all` holds one `part` per rank, and that the two do not overlap, except that with may_be_inside `part`
 * may be this rank's own part of `all`. */
static dsc_status check_parts(const char *op, const dsc_comm *comm, const dsc_tensor *part,
                              const dsc_tensor *all, int may_be_inside) {
    DSC_TRY(check_tensor(op, part));
    DSC_TRY(check_tensor(op, all));
    if (part->dtype != all->dtype)
        return DSC_FAIL(DSC_E_INVALID, "%s: part is %s, all is %s; they must be of one type", op,
                        dsc_dtype_name(part->dtype), dsc_dtype_name(all->dtype));
    if (far_device(part) != far_device(all))
        return DSC_FAIL(DSC_E_INVALID, "%s: part is in memory of device '%s', all in that of '%s'", op,
                        dsc_device_name(part->device), dsc_device_name(all->device));
    int64_t count = dsc_tensor_count(part);
    if (dsc_tensor_count(all) != count * comm->size)
        return DSC_FAIL(DSC_E_INVALID, "%s: all has %lld elements; %d ranks with parts of %lld need %lld", op,
                        (long long)dsc_tensor_count(all), comm->size, (long long)count,
                        (long long)count * comm->size);
    uintptr_t p = (uintptr_t)part->data, a = (uintptr_t)all->data;
    size_t bytes = dsc_tensor_bytes(part);
    int overlap = p < a + dsc_tensor_bytes(all) && a < p + bytes;
    if (overlap && !(may_be_inside && p == a + (size_t)comm->rank * bytes))
        return DSC_FAIL(DSC_E_INVALID, "%s: part and all share memory%s", op,
                        may_be_inside ? ", and part is not this rank's own part of all" : "");
    return DSC_OK;
}

static dsc_status check_peer(const char *op, const dsc_comm *comm, int peer) {
    if (peer < 0 || peer >= comm->size)
        return DSC_FAIL(DSC_E_INVALID, "%s: rank %d: the communicator has ranks 0 to %d", op, peer,
                        comm->size - 1);
    return DSC_OK;
}

/* ---- operations ---- */

/* Checks and begins an operation on `t`. For all-gather and reduce-scatter `t` is the part and `all` the whole;
 * otherwise `all` is NULL. The caller has set op, reduction, peer and tag of the transfer. */
static dsc_status check_and_begin(dsc_comm *comm, dsc_traffic traffic, dsc_transfer transfer,
                                  const dsc_tensor *t, const dsc_tensor *all, dsc_request **request) {
    const char *name = names[transfer.op];
    int message = transfer.op == DSC_COMM_SEND || transfer.op == DSC_COMM_RECV;
    int gather = dsc_comm_is_gather(transfer.op);
    DSC_TRY(dsc_comm_check(name, comm));
    if ((unsigned)traffic >= DSC_TRAFFIC_COUNT)
        return DSC_FAIL(DSC_E_INVALID, "%s: traffic kind %d is unknown", name, (int)traffic);
    if (transfer.reduction != DSC_SUM && transfer.reduction != DSC_MAX && transfer.reduction != DSC_MIN)
        return DSC_FAIL(DSC_E_INVALID, "%s: reduction %d is unknown", name, (int)transfer.reduction);
    DSC_TRY(check_peer(name, comm, transfer.peer));
    if (message && (transfer.tag < 0 || transfer.tag > TAG_LIMIT))
        return DSC_FAIL(DSC_E_INVALID, "%s: tag %d: must be 0 to %d", name, transfer.tag, TAG_LIMIT);
    if (gather)
        DSC_TRY(check_parts(name, comm, t, all, transfer.op == DSC_COMM_ALLGATHER));
    else
        DSC_TRY(check_tensor(name, t));
    /* Device memory is moved in the order of a queue, so a queue is needed if anything is moved. */
    int moves = dsc_tensor_count(t) > 0 && (gather || !dsc_comm_is_idle(comm, transfer.op));
    if (far_device(t) && moves)
        DSC_TRY(dsc_comm_check_queue(comm, name, t->device));
    transfer.dtype = t->dtype;
    transfer.count = dsc_tensor_count(t);
    transfer.send = transfer.op == DSC_COMM_REDUCE_SCATTER ? all->data : t->data;
    transfer.recv = transfer.op == DSC_COMM_ALLGATHER ? all->data : t->data;
    return begin(comm, far_device(t), traffic, &transfer, request);
}

dsc_status dsc_comm_allreduce_begin(dsc_comm *comm, dsc_traffic traffic, dsc_reduction op, dsc_tensor *t,
                                    dsc_request **request) {
    dsc_transfer transfer = {.op = DSC_COMM_ALLREDUCE, .reduction = op};
    return check_and_begin(comm, traffic, transfer, t, NULL, request);
}

dsc_status dsc_comm_reduce_begin(dsc_comm *comm, dsc_traffic traffic, dsc_reduction op, int root,
                                 dsc_tensor *t, dsc_request **request) {
    dsc_transfer transfer = {.op = DSC_COMM_REDUCE, .reduction = op, .peer = root};
    return check_and_begin(comm, traffic, transfer, t, NULL, request);
}

dsc_status dsc_comm_broadcast_begin(dsc_comm *comm, dsc_traffic traffic, int root, dsc_tensor *t,
                                    dsc_request **request) {
    dsc_transfer transfer = {.op = DSC_COMM_BROADCAST, .peer = root};
    return check_and_begin(comm, traffic, transfer, t, NULL, request);
}

dsc_status dsc_comm_allgather_begin(dsc_comm *comm, dsc_traffic traffic, const dsc_tensor *part,
                                    dsc_tensor *all, dsc_request **request) {
    dsc_transfer transfer = {.op = DSC_COMM_ALLGATHER};
    return check_and_begin(comm, traffic, transfer, part, all, request);
}

dsc_status dsc_comm_reduce_scatter_begin(dsc_comm *comm, dsc_traffic traffic, dsc_reduction op,
                                         const dsc_tensor *all, dsc_tensor *part, dsc_request **request) {
    dsc_transfer transfer = {.op = DSC_COMM_REDUCE_SCATTER, .reduction = op};
    return check_and_begin(comm, traffic, transfer, part, all, request);
}

dsc_status dsc_comm_send_begin(dsc_comm *comm, dsc_traffic traffic, int to, int tag, const dsc_tensor *t,
                               dsc_request **request) {
    dsc_transfer transfer = {.op = DSC_COMM_SEND, .peer = to, .tag = tag};
    return check_and_begin(comm, traffic, transfer, t, NULL, request);
}

dsc_status dsc_comm_recv_begin(dsc_comm *comm, int from, int tag, dsc_tensor *t, dsc_request **request) {
    dsc_transfer transfer = {.op = DSC_COMM_RECV, .peer = from, .tag = tag};
    return check_and_begin(comm, DSC_TRAFFIC_OTHER, transfer, t, NULL, request);
}

dsc_status dsc_comm_barrier(dsc_comm *comm) {
    const dsc_transfer transfer = {.op = DSC_COMM_BARRIER};
    dsc_request *request = NULL;
    DSC_TRY(dsc_comm_check("barrier", comm));
    DSC_TRY(flush(comm));
    if (comm->size == 1)
        return DSC_OK;
    if (comm->table->barrier)
        return comm->table->barrier(comm);
    DSC_TRY(take_request(comm, 1, &request));
    name_request(request, &transfer);
    dsc_status status = start_piece(request, &transfer);
    if (status != DSC_OK) {
        return_request(request);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    return dsc_comm_wait(&request);
}

/* Sets *safe to the tensor to use for an operation that may time out. After a timeout MPI goes on using the
 * memory, while the caller may free theirs; host memory is therefore replaced by a copy that the communicator
 * owns. */
static dsc_status make_safe(dsc_comm *comm, const dsc_tensor *t, dsc_tensor *safe) {
    void *own = NULL;
    *safe = *t;
    if (!far_device(t))
        DSC_TRY(dsc_own_take(comm, t->data, dsc_tensor_bytes(t), &own));
    if (own)
        safe->data = own;
    return DSC_OK;
}

dsc_status dsc_comm_allreduce(dsc_comm *comm, dsc_traffic traffic, dsc_reduction op, dsc_tensor *t) {
    dsc_request *request = NULL;
    dsc_tensor safe;
    DSC_TRY(dsc_comm_check("allreduce", comm));
    DSC_TRY(check_tensor("allreduce", t));
    DSC_TRY(make_safe(comm, t, &safe));
    DSC_TRY(dsc_comm_allreduce_begin(comm, traffic, op, &safe, &request));
    return dsc_own_wait(request, t->data, dsc_tensor_bytes(t), safe.data == t->data ? NULL : safe.data);
}

dsc_status dsc_comm_broadcast(dsc_comm *comm, dsc_traffic traffic, int root, dsc_tensor *t) {
    dsc_request *request = NULL;
    dsc_tensor safe;
    DSC_TRY(dsc_comm_check("broadcast", comm));
    DSC_TRY(check_peer("broadcast", comm, root));
    DSC_TRY(check_tensor("broadcast", t));
    DSC_TRY(make_safe(comm, t, &safe));
    DSC_TRY(dsc_comm_broadcast_begin(comm, traffic, root, &safe, &request));
    return dsc_own_wait(request, t->data, dsc_tensor_bytes(t), safe.data == t->data ? NULL : safe.data);
}

/* ---- agreement ---- */

dsc_status dsc_comm_run(dsc_comm *comm, const dsc_transfer *transfer) {
    dsc_request *request = NULL;
    dsc_transfer safe = *transfer;
    void *own = NULL;
    size_t bytes = (size_t)transfer->count * dsc_dtype_size(transfer->dtype);
    if (dsc_comm_is_gather(transfer->op))
        bytes *= (size_t)comm->size;
    DSC_TRY(dsc_own_take(comm, transfer->recv, bytes, &own));
    if (own) {
        safe.send = (char *)own + ((const char *)transfer->send - (const char *)transfer->recv);
        safe.recv = own;
    }
    DSC_TRY(begin(comm, NULL, DSC_TRAFFIC_OTHER, &safe, &request));
    return dsc_own_wait(request, transfer->recv, bytes, own);
}

/* First finds the lowest failing rank (`size` if there is none), then broadcasts its status and message. */
dsc_status dsc_comm_agree(dsc_comm *comm, dsc_status own) {
    DSC_TRY(dsc_comm_check("agree", comm));
    int32_t lowest = own == DSC_OK ? comm->size : comm->rank;
    dsc_transfer transfer = {.op = DSC_COMM_ALLREDUCE,
                             .reduction = DSC_MIN,
                             .dtype = DSC_I32,
                             .send = &lowest,
                             .recv = &lowest,
                             .count = 1};
    dsc_status status = dsc_comm_run(comm, &transfer);
    if (status != DSC_OK)
        return dsc_error_pass(status, __FILE__, __LINE__);
    if (lowest == comm->size)
        return DSC_OK;
    unsigned char *text = (unsigned char *)comm->message; /* the status, then the message */
    if (lowest == comm->rank) {
        text[0] = (unsigned char)own;
        snprintf(comm->message + 1, sizeof comm->message - 1, "%s", dsc_error_message());
    }
    transfer = (dsc_transfer){.op = DSC_COMM_BROADCAST,
                              .dtype = DSC_U8,
                              .peer = lowest,
                              .send = text,
                              .recv = text,
                              .count = sizeof comm->message};
    status = dsc_comm_run(comm, &transfer);
    if (own != DSC_OK)
        return dsc_error_pass(own, __FILE__, __LINE__);
    DSC_TRY(status);
    return DSC_FAIL((dsc_status)text[0], "stopped by %s", comm->message + 1);
}
