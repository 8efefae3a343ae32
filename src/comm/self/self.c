/* The backend for one process without a launcher. transfer.c completes all collectives of one rank; this backend only
 * handles messages from the rank to itself. They are matched by tag, in the order in which they were begun, and copied
 * once both send and receive have been begun. */
#include "comm/table.h"

#include "base/config.h"
#include "base/error.h"
#include "base/memory.h"

#include <stdio.h>
#include <string.h>

/* A send whose receive has not been begun yet, or a receive whose send has not. */
typedef struct pending {
    int64_t id;
    dsc_transfer transfer;
} pending;

typedef struct self_state {
    pending *pending; /* oldest first */
    int64_t count, capacity;
    int64_t last_id;
} self_state;

static int64_t find_pending(const self_state *self, int64_t id) {
    int64_t i = 0;
    while (i < self->count && self->pending[i].id != id)
        i++;
    return i;
}

static void remove_pending(self_state *self, int64_t index) {
    self->count--;
    memmove(self->pending + index, self->pending + index + 1,
            (size_t)(self->count - index) * sizeof *self->pending);
}

static dsc_status deliver(const dsc_transfer *send, const dsc_transfer *recv) {
    if (send->count != recv->count || send->dtype != recv->dtype)
        return DSC_FAIL(DSC_E_COMM, "recv with tag %d: expected %lld elements of %s, got %lld of %s",
                        recv->tag, (long long)recv->count, dsc_dtype_name(recv->dtype),
                        (long long)send->count, dsc_dtype_name(send->dtype));
    memmove(recv->recv, send->send, (size_t)send->count * dsc_dtype_size(send->dtype));
    return DSC_OK;
}

static dsc_status self_start(dsc_comm *comm, const dsc_transfer *transfer, dsc_piece *piece) {
    self_state *self = comm->state;
    dsc_comm_op other = transfer->op == DSC_COMM_SEND ? DSC_COMM_RECV : DSC_COMM_SEND;
    piece->handle.number = ++self->last_id;
    for (int64_t i = 0; i < self->count; i++) {
        dsc_transfer match = self->pending[i].transfer;
        if (match.op == other && match.tag == transfer->tag) {
            remove_pending(self, i);
            return other == DSC_COMM_RECV ? deliver(transfer, &match) : deliver(&match, transfer);
        }
    }
    DSC_TRY(dsc_memory_grow(&self->pending, &self->capacity, self->count + 1, sizeof *self->pending));
    self->pending[self->count++] = (pending){.id = self->last_id, .transfer = *transfer};
    return DSC_OK;
}

static dsc_status self_test(dsc_comm *comm, dsc_piece *piece, int *done) {
    const self_state *self = comm->state;
    *done = find_pending(self, piece->handle.number) == self->count;
    return DSC_OK;
}

/* Fails if the other end has not been begun, because the wait would never end. */
static dsc_status self_wait(dsc_comm *comm, dsc_piece *piece) {
    self_state *self = comm->state;
    int64_t i = find_pending(self, piece->handle.number);
    if (i == self->count)
        return DSC_OK;
    dsc_transfer t = self->pending[i].transfer;
    remove_pending(self, i);
    if (t.op == DSC_COMM_SEND)
        return DSC_FAIL(DSC_E_COMM, "send with tag %d to the only rank: begin the receive before waiting",
                        t.tag);
    return DSC_FAIL(DSC_E_COMM, "recv with tag %d from the only rank: begin the send before waiting", t.tag);
}

static dsc_status self_barrier(dsc_comm *comm) {
    (void)comm;
    return DSC_OK;
}

static void self_close(dsc_comm *comm) {
    self_state *self = comm->state;
    dsc_memory_free(&self->pending);
    dsc_memory_free(&comm->state);
}

static dsc_status make_state(dsc_comm *comm) {
    DSC_TRY(dsc_memory_alloc(1, sizeof(self_state), &comm->state));
    comm->rank = comm->local_rank = 0;
    comm->size = comm->local_size = 1;
    return DSC_OK;
}

static dsc_status self_split(dsc_comm *comm, int colour, int key, dsc_comm *child) {
    (void)comm;
    (void)key;
    return colour < 0 ? DSC_OK : make_state(child);
}

static const dsc_comm_table self_table = {
    .name = "self",
    .close = self_close,
    .split = self_split,
    .start = self_start,
    .test = self_test,
    .wait = self_wait,
    .barrier = self_barrier,
};

dsc_status dsc_self_open(dsc_comm *comm, const dsc_comm_options *options) {
    (void)options;
    DSC_TRY(make_state(comm));
    uint64_t hash;
    dsc_affinity(&comm->threads, &hash);
#ifdef DSC_HAVE_MPI
    const char *note = "one process";
#else
    const char *note = "one process (built without MPI)";
#endif
    snprintf(comm->description, sizeof comm->description, "self: %s", note);
    comm->table = &self_table;
    return DSC_OK;
}
