/* Communicators that need nothing but NCCL and one function of the caller's, `exchange`, which gives every rank
 * the bytes of all ranks.
 *
 * On the first communicator, collective operations on host memory consist of exchanges, in the call that
 * begins them: every rank gets the data of all ranks and takes from them what it needs. A subset of the ranks
 * cannot exchange, so communicators that are split from the first one move host memory through the GPU, with
 * NCCL (lift.c). Messages between two ranks do so on all communicators. When a communicator is split, the ids for
 * the NCCL communicators of its parts are sent over it. */
#include "comm/contact/contact.h"

#include "comm/backends.h"
#include "comm/reduce.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/versioned.h"

#include <stdio.h>
#include <string.h>

enum { EXCHANGE_BYTES = 1 << 24 }; /* at most, of all ranks together, in one exchange of a long vector */

typedef struct contact_state {
    dsc_comm_contact c; /* exchange is NULL in communicators that were split from another one */
    unsigned char *all; /* the bytes of all ranks in the last exchange */
    int64_t capacity;
    dsc_lifts *lifts;
} contact_state;

/* ---- collective operations by exchange ---- */

/* Sets s->all to the bytes of all ranks. */
static dsc_status exchange(const dsc_comm *comm, const void *own, size_t bytes) {
    contact_state *s = comm->state;
    DSC_TRY(dsc_memory_grow(&s->all, &s->capacity, (int64_t)bytes * comm->size, 1));
    unsigned errors = dsc_error_count();
    dsc_status status = s->c.exchange(s->c.context, own, bytes, s->all);
    if (status != DSC_OK)
        return dsc_error_callback(status, errors, "exchange", "`exchange` of %zu bytes between %d ranks",
                                  bytes, comm->size);
    return DSC_OK;
}

#define REDUCE(type)                                                                                         \
    do {                                                                                                     \
        const type *a = in;                                                                                  \
        type *b = inout;                                                                                     \
        for (int64_t i = 0; i < n; i++)                                                                      \
            b[i] = op == DSC_MAX   ? (a[i] > b[i] ? a[i] : b[i])                                             \
                   : op == DSC_MIN ? (a[i] < b[i] ? a[i] : b[i])                                             \
                                   : (type)(a[i] + b[i]);                                                    \
    } while (0)

/* Sets inout[i] to the reduction of in[i] and inout[i]. */
static void reduce(dsc_dtype dtype, dsc_reduction op, const void *in, void *inout, int64_t n) {
    switch (dtype) {
    case DSC_F32:
        REDUCE(float);
        break;
    case DSC_F64:
        REDUCE(double);
        break;
    case DSC_BF16:
        dsc_reduce_bf16(in, inout, n, op);
        break;
    case DSC_F16:
        dsc_reduce_f16(in, inout, n, op);
        break;
    case DSC_I32:
        REDUCE(int32_t);
        break;
    case DSC_I64:
        REDUCE(int64_t);
        break;
    case DSC_U8:
        REDUCE(uint8_t);
        break;
    }
}

/* Takes what this rank needs from s->all, which holds n elements of every rank, from element `first` on. */
static void take(const dsc_comm *comm, const dsc_transfer *t, int64_t first, int64_t n) {
    const contact_state *s = comm->state;
    size_t size = dsc_dtype_size(t->dtype), bytes = (size_t)n * size;
    char *to = (char *)t->recv + (size_t)first * size;
    if (t->op == DSC_COMM_BROADCAST) {
        memcpy(to, s->all + (size_t)t->peer * bytes, bytes);
    } else if (t->op == DSC_COMM_ALLGATHER) {
        for (int r = 0; r < comm->size; r++)
            memcpy(to + (size_t)r * (size_t)t->count * size, s->all + (size_t)r * bytes, bytes);
    } else if (t->op == DSC_COMM_ALLREDUCE || t->peer == comm->rank) { /* in rank order */
        memcpy(to, s->all, bytes);
        for (int r = 1; r < comm->size; r++)
            reduce(t->dtype, t->reduction, s->all + (size_t)r * bytes, to, n);
    }
}

/* Exchanges a vector, a limited number of elements at a time. */
static dsc_status exchange_vector(const dsc_comm *comm, const dsc_transfer *t) {
    size_t size = dsc_dtype_size(t->dtype);
    int64_t most = EXCHANGE_BYTES / ((int64_t)size * comm->size);
    most = most > 0 ? most : 1;
    for (int64_t first = 0; first < t->count; first += most) {
        int64_t n = t->count - first < most ? t->count - first : most;
        DSC_TRY(exchange(comm, (const char *)t->send + (size_t)first * size, (size_t)n * size));
        take(comm, t, first, n);
    }
    return DSC_OK;
}

/* Does a collective operation by exchanges; a reduce-scatter as one reduction to each rank. */
static dsc_status exchange_all(const dsc_comm *comm, const dsc_transfer *t) {
    if (t->op != DSC_COMM_REDUCE_SCATTER)
        return exchange_vector(comm, t);
    for (int r = 0; r < comm->size; r++) {
        dsc_transfer part = *t;
        part.op = DSC_COMM_REDUCE;
        part.peer = r;
        part.send = (const char *)t->send + (size_t)r * (size_t)t->count * dsc_dtype_size(t->dtype);
        DSC_TRY(exchange_vector(comm, &part));
    }
    return DSC_OK;
}

/* ---- operations ---- */

/* The handle of an operation that is complete already is NULL. */
static dsc_status contact_start(dsc_comm *comm, const dsc_transfer *t, dsc_piece *piece) {
    contact_state *s = comm->state;
    dsc_lift *lift = NULL;
    if (s->c.exchange && t->op != DSC_COMM_SEND && t->op != DSC_COMM_RECV)
        DSC_TRY(exchange_all(comm, t));
    else
        DSC_TRY(dsc_lift_start(comm, &s->lifts, t, &lift));
    piece->handle.pointer = lift;
    return DSC_OK;
}

static dsc_status contact_test(dsc_comm *comm, dsc_piece *piece, int *done) {
    *done = 1;
    return piece->handle.pointer ? dsc_lift_test(comm, piece->handle.pointer, done) : DSC_OK;
}

static dsc_status contact_wait(dsc_comm *comm, dsc_piece *piece) {
    return piece->handle.pointer ? dsc_lift_wait(comm, piece->handle.pointer) : DSC_OK;
}

static dsc_status contact_barrier(dsc_comm *comm) {
    int32_t nothing = 0;
    const dsc_transfer transfer = {
        .op = DSC_COMM_ALLREDUCE, .dtype = DSC_I32, .send = &nothing, .recv = &nothing, .count = 1};
    return dsc_comm_run(comm, &transfer);
}

/* ---- groups ---- */

/* What every rank tells the others when a communicator is split. */
typedef struct card {
    uint64_t node;
    int colour, key;
} card;

static int comes_before(const card *cards, int a, int b) {
    return cards[a].key != cards[b].key ? cards[a].key < cards[b].key : a < b;
}

/* Finds this rank's place in its group; returns the group's first rank. */
static int find_place(const dsc_comm *comm, const card *cards, dsc_comm *child) {
    int me = comm->rank, first = me;
    child->rank = child->size = child->local_rank = child->local_size = 0;
    for (int r = 0; r < comm->size; r++) {
        if (cards[r].colour != cards[me].colour)
            continue;
        int before = comes_before(cards, r, me), near = cards[r].node == cards[me].node;
        child->size++;
        child->rank += before;
        child->local_size += near;
        child->local_rank += near && before;
        if (comes_before(cards, r, first))
            first = r;
    }
    return first;
}

static dsc_status gather(dsc_comm *comm, void *all, size_t bytes) {
    const dsc_transfer transfer = {.op = DSC_COMM_ALLGATHER,
                                   .dtype = DSC_U8,
                                   .send = (char *)all + (size_t)comm->rank * bytes,
                                   .recv = all,
                                   .count = (int64_t)bytes};
    return dsc_comm_run(comm, &transfer);
}

/* The first rank of each group makes the id of its NCCL communicator; `ids` has space for all ranks. */
static dsc_status share_ids(dsc_comm *comm, int first, unsigned char *ids, dsc_comm *child) {
    int needed = first == comm->rank && (child->size > 1 || child->alone_too);
    dsc_status status = needed ? comm->nccl->make_id(ids + (size_t)comm->rank * DSC_NCCL_ID_BYTES) : DSC_OK;
    DSC_TRY(dsc_comm_agree(comm, status));
    DSC_TRY(gather(comm, ids, DSC_NCCL_ID_BYTES));
    if (first >= 0) {
        memcpy(child->nccl_id, ids + (size_t)first * DSC_NCCL_ID_BYTES, DSC_NCCL_ID_BYTES);
        child->has_nccl_id = 1;
    }
    return DSC_OK;
}

static dsc_status split_with(dsc_comm *comm, card *cards, unsigned char *ids, dsc_comm *child) {
    int first = -1;
    DSC_TRY(gather(comm, cards, sizeof *cards));
    if (cards[comm->rank].colour >= 0)
        first = find_place(comm, cards, child);
    return comm->device_table ? share_ids(comm, first, ids, child) : DSC_OK;
}

static dsc_status contact_split(dsc_comm *comm, int colour, int key, dsc_comm *child) {
    contact_state *s = NULL;
    card *cards = NULL;
    unsigned char *ids = NULL;
    dsc_status status = dsc_memory_alloc(1, sizeof *s, &s);
    if (status == DSC_OK)
        status = dsc_memory_alloc(comm->size, sizeof *cards, &cards);
    if (status == DSC_OK)
        status = dsc_memory_alloc(comm->size, DSC_NCCL_ID_BYTES, &ids);
    status = dsc_comm_agree(comm, status);
    if (status == DSC_OK) {
        cards[comm->rank] = (card){.node = dsc_comm_node(), .colour = colour, .key = key};
        status = split_with(comm, cards, ids, child);
    }
    dsc_memory_free(&ids);
    dsc_memory_free(&cards);
    if (status == DSC_OK && colour >= 0)
        child->state = s;
    else
        dsc_memory_free(&s);
    DSC_TRY(status);
    return DSC_OK;
}

/* ---- life cycle ---- */

static void contact_close(dsc_comm *comm) {
    contact_state *s = comm->state;
    dsc_lifts_free(&s->lifts);
    if (s->c.close)
        s->c.close(s->c.context);
    dsc_memory_free(&s->all);
    dsc_memory_free(&comm->state);
}

/* The state is kept, like the communicator itself: NCCL may still use the memory of its operations. */
static void contact_abandon(dsc_comm *comm) {
    const contact_state *s = comm->state;
    if (s->c.close)
        s->c.close(s->c.context);
}

static const dsc_comm_table contact_table = {
    .name = "contact",
    .close = contact_close,
    .split = contact_split,
    .start = contact_start,
    .test = contact_test,
    .wait = contact_wait,
    .barrier = contact_barrier,
    .abandon = contact_abandon,
};

void dsc_comm_contact_init_sized(dsc_comm_contact *contact, size_t size) {
    const dsc_comm_contact defaults = {.ranks = 1, .local_ranks = 1};
    dsc_versioned_init(contact, size, &defaults, sizeof defaults);
}

/* If this fails, the caller still owns the context. */
static dsc_status open_contact(dsc_comm *comm, const dsc_comm_contact *c) {
    contact_state *s;
    DSC_TRY(dsc_memory_alloc(1, sizeof *s, &s));
    s->c = *c;
    comm->state = s;
    comm->table = &contact_table;
    comm->rank = c->rank;
    comm->size = c->ranks;
    comm->local_rank = c->local_rank;
    comm->local_size = c->local_ranks;
    snprintf(comm->description, sizeof comm->description,
             "contact: %d rank%s, brought together by the caller", comm->size, comm->size == 1 ? "" : "s");
    dsc_status status = dsc_comm_share_cpus(comm);
    if (status != DSC_OK) {
        dsc_comm_drop_requests(comm);
        dsc_memory_free(&s->all);
        dsc_memory_free(&comm->state);
        comm->table = NULL;
    }
    DSC_TRY(status);
    return DSC_OK;
}

dsc_status dsc_contact_create(const dsc_comm_contact *contact, const dsc_comm_options *options, int by_nccl,
                              dsc_comm **out) {
    dsc_comm_options o;
    dsc_comm_contact c;
    dsc_comm *comm = NULL;
    dsc_comm_contact_init(&c);
    DSC_TRY(dsc_versioned_define("comm_contact", contact, sizeof c, &c));
    if (!c.exchange)
        return DSC_FAIL(DSC_E_INVALID, "communicator by contact: the function `exchange` is missing");
    DSC_TRY(dsc_comm_check_ranks("contact", c.rank, c.ranks, c.local_rank, c.local_ranks));
    DSC_TRY(dsc_comm_read_options(options, &o));
    o.kind = by_nccl ? "nccl" : "auto";
    if (o.survive)
        return DSC_FAIL(DSC_E_UNSUPPORTED, "a communicator by contact cannot continue without a rank that "
                                           "was lost (survive): use mpi");
    DSC_TRY(dsc_comm_alloc(&o, &comm));
    dsc_status status = open_contact(comm, &c);
    if (status != DSC_OK)
        dsc_comm_destroy(&comm);
    DSC_TRY(status);
    dsc_comm_finish(comm);
    *out = comm;
    return DSC_OK;
}

dsc_status dsc_comm_create_from_contact(const dsc_comm_contact *contact, const dsc_comm_options *options,
                                        dsc_comm **out) {
    return dsc_contact_create(contact, options, 1, out);
}
