/* Ranks as threads of one process: a communicator whose transport is this memory, so that what runs on many
 * ranks and in many threads can be watched as a whole (ThreadSanitizer), without MPI. A send is complete when
 * its receive has it, which no correct program may be hung by. Collectives block where they begin. */
#ifndef DSC_TESTS_CONSENSUS_THREAD_RANKS_H
#define DSC_TESTS_CONSENSUS_THREAD_RANKS_H

#include "base/error.h"
#include "base/memory.h"
#include "comm/table.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { THREAD_RANKS = 16 };

/* A send without its receive, or a receive without its send. */
typedef struct thread_end {
    int64_t id;
    int from, to;
    dsc_transfer transfer;
} thread_end;

typedef struct thread_group {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int size, users, arrived;
    int64_t barriers, last_id;
    const void *slots[THREAD_RANKS];
    thread_end *ends; /* oldest first */
    int64_t count, capacity;
} thread_group;

static atomic_int thread_groups; /* that are there */

static thread_group *thread_group_create(int size) {
    thread_group *g = calloc(1, sizeof *g);
    if (!g)
        abort();
    pthread_mutex_init(&g->mutex, NULL);
    pthread_cond_init(&g->changed, NULL);
    g->size = g->users = size;
    atomic_fetch_add(&thread_groups, 1);
    return g;
}

static void thread_group_barrier(thread_group *g) {
    pthread_mutex_lock(&g->mutex);
    int64_t barrier = g->barriers;
    if (++g->arrived == g->size) {
        g->arrived = 0;
        g->barriers++;
        pthread_cond_broadcast(&g->changed);
    }
    while (g->barriers == barrier)
        pthread_cond_wait(&g->changed, &g->mutex);
    pthread_mutex_unlock(&g->mutex);
}

/* Everybody's pointer is in slots when it returns; a barrier must follow before they are used again. */
static void thread_group_show(thread_group *g, int rank, const void *slot) {
    g->slots[rank] = slot;
    thread_group_barrier(g);
}

#define THREAD_REDUCE(type)                                                                                  \
    for (int64_t i = 0; i < t->count; i++) {                                                                 \
        type v = ((const type *)g->slots[0])[i];                                                             \
        for (int r = 1; r < g->size; r++) {                                                                  \
            type w = ((const type *)g->slots[r])[i];                                                         \
            v = (type)(t->reduction == DSC_SUM   ? v + w                                                     \
                       : t->reduction == DSC_MAX ? (v > w ? v : w)                                           \
                       : v < w                   ? v                                                         \
                                                 : w);                                                                         \
        }                                                                                                    \
        ((type *)out)[i] = v;                                                                                \
    }

static void thread_reduce(const thread_group *g, const dsc_transfer *t, void *out) {
    switch (t->dtype) {
    case DSC_F32:
        THREAD_REDUCE(float)
        break;
    case DSC_F64:
        THREAD_REDUCE(double)
        break;
    case DSC_I32:
        THREAD_REDUCE(int32_t)
        break;
    case DSC_I64:
        THREAD_REDUCE(int64_t)
        break;
    case DSC_U8:
        THREAD_REDUCE(uint8_t)
        break;
    default:
        abort();
    }
}

static void thread_collective(dsc_comm *comm, const dsc_transfer *t) {
    thread_group *g = comm->state;
    size_t bytes = (size_t)t->count * dsc_dtype_size(t->dtype);
    char *result = malloc(bytes * (size_t)g->size);
    if (!result)
        abort();
    thread_group_show(g, comm->rank, t->send);
    if (t->op == DSC_COMM_ALLREDUCE)
        thread_reduce(g, t, result);
    else if (t->op == DSC_COMM_BROADCAST)
        memcpy(result, g->slots[t->peer], bytes);
    else if (t->op == DSC_COMM_ALLGATHER)
        for (int r = 0; r < g->size; r++)
            memcpy(result + (size_t)r * bytes, g->slots[r], bytes);
    else
        abort();
    thread_group_barrier(g);
    memcpy(t->recv, result, t->op == DSC_COMM_ALLGATHER ? bytes * (size_t)g->size : bytes);
    free(result);
}

static int thread_ends_match(const thread_end *a, const thread_end *b) {
    return a->transfer.op != b->transfer.op && a->from == b->from && a->to == b->to &&
           a->transfer.tag == b->transfer.tag;
}

static dsc_status thread_deliver(const thread_end *a, const thread_end *b) {
    const dsc_transfer *send = a->transfer.op == DSC_COMM_SEND ? &a->transfer : &b->transfer;
    const dsc_transfer *recv = a->transfer.op == DSC_COMM_SEND ? &b->transfer : &a->transfer;
    if (send->count != recv->count || send->dtype != recv->dtype)
        return DSC_FAIL(DSC_E_COMM, "recv with tag %d: the message is of another length or type", recv->tag);
    memcpy(recv->recv, send->send, (size_t)send->count * dsc_dtype_size(send->dtype));
    return DSC_OK;
}

static void thread_keep(thread_group *g, const thread_end *end) {
    if (g->count == g->capacity) {
        g->capacity = 2 * g->capacity + 64;
        g->ends = realloc(g->ends, (size_t)g->capacity * sizeof *g->ends);
        if (!g->ends)
            abort();
    }
    g->ends[g->count++] = *end;
}

static dsc_status thread_message(dsc_comm *comm, const dsc_transfer *t, dsc_piece *piece) {
    thread_group *g = comm->state;
    int sends = t->op == DSC_COMM_SEND;
    thread_end own = {
        .from = sends ? comm->rank : t->peer, .to = sends ? t->peer : comm->rank, .transfer = *t};
    dsc_status status = DSC_OK;
    pthread_mutex_lock(&g->mutex);
    piece->handle.number = own.id = ++g->last_id;
    int64_t i = 0;
    while (i < g->count && !thread_ends_match(&g->ends[i], &own))
        i++;
    if (i < g->count) {
        status = thread_deliver(&g->ends[i], &own);
        g->count--;
        memmove(g->ends + i, g->ends + i + 1, (size_t)(g->count - i) * sizeof *g->ends);
        pthread_cond_broadcast(&g->changed);
    } else {
        thread_keep(g, &own);
    }
    pthread_mutex_unlock(&g->mutex);
    return status;
}

static dsc_status thread_start(dsc_comm *comm, const dsc_transfer *t, dsc_piece *piece) {
    if (t->op == DSC_COMM_SEND || t->op == DSC_COMM_RECV)
        return thread_message(comm, t, piece);
    piece->handle.number = 0;
    thread_collective(comm, t);
    return DSC_OK;
}

static int thread_is_done(const thread_group *g, const dsc_piece *piece) {
    for (int64_t i = 0; i < g->count; i++)
        if (g->ends[i].id == piece->handle.number)
            return 0;
    return 1;
}

static dsc_status thread_test(dsc_comm *comm, dsc_piece *piece, int *done) {
    thread_group *g = comm->state;
    pthread_mutex_lock(&g->mutex);
    *done = thread_is_done(g, piece);
    pthread_mutex_unlock(&g->mutex);
    return DSC_OK;
}

static dsc_status thread_wait(dsc_comm *comm, dsc_piece *piece) {
    thread_group *g = comm->state;
    pthread_mutex_lock(&g->mutex);
    while (!thread_is_done(g, piece))
        pthread_cond_wait(&g->changed, &g->mutex);
    pthread_mutex_unlock(&g->mutex);
    return DSC_OK;
}

static dsc_status thread_barrier(dsc_comm *comm) {
    thread_group_barrier(comm->state);
    return DSC_OK;
}

static void thread_place(dsc_comm *comm, thread_group *g, int rank) {
    comm->state = g;
    comm->rank = comm->local_rank = rank;
    comm->size = comm->local_size = g->size;
}

/* All ranks of one colour, in their order. */
static dsc_status thread_split(dsc_comm *comm, int colour, int key, dsc_comm *child) {
    thread_group *g = comm->state, *made = comm->rank == 0 ? thread_group_create(g->size) : NULL;
    if (colour != 0 || key != comm->rank)
        abort();
    thread_group_show(g, comm->rank, made);
    thread_group *shared = (thread_group *)(uintptr_t)g->slots[0];
    thread_group_barrier(g);
    thread_place(child, shared, comm->rank);
    return DSC_OK;
}

static void thread_close(dsc_comm *comm) {
    thread_group *g = comm->state;
    pthread_mutex_lock(&g->mutex);
    int last = --g->users == 0;
    pthread_mutex_unlock(&g->mutex);
    if (!last)
        return;
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->mutex);
    free(g->ends);
    free(g);
    atomic_fetch_sub(&thread_groups, 1);
}

static void thread_cancel(dsc_comm *comm, dsc_piece *piece) {
    thread_group *g = comm->state;
    pthread_mutex_lock(&g->mutex);
    int64_t i = 0;
    while (i < g->count && g->ends[i].id != piece->handle.number)
        i++;
    if (i < g->count) {
        g->count--;
        memmove(g->ends + i, g->ends + i + 1, (size_t)(g->count - i) * sizeof *g->ends);
    }
    pthread_mutex_unlock(&g->mutex);
}

/* The group stays, for messages that are still to be taken. */
static void thread_abandon(dsc_comm *comm) {
    (void)comm;
}

/* An alarm is what a test sets in the watch. */
static dsc_status thread_look(dsc_watch *watch, int *alarmed) {
    (void)watch;
    *alarmed = 0;
    return DSC_OK;
}

static void thread_close_watch(dsc_watch *watch) {
    (void)watch;
}

static const dsc_comm_table thread_table = {
    .name = "threads",
    .close = thread_close,
    .split = thread_split,
    .start = thread_start,
    .test = thread_test,
    .wait = thread_wait,
    .barrier = thread_barrier,
    .cancel = thread_cancel,
    .abandon = thread_abandon,
    .look = thread_look,
    .close_watch = thread_close_watch,
};

/* The communicator of one of the group's ranks; dsc_comm_destroy gives it back, and the last one the group.
 */
static dsc_status thread_comm_create(thread_group *g, int rank, dsc_comm **out) {
    dsc_comm *comm;
    DSC_TRY(dsc_memory_alloc(1, sizeof *comm, &comm));
    DSC_TRY(dsc_memory_alloc(1, sizeof *comm->counters, &comm->counters));
    atomic_init(&comm->counters->users, 1);
    comm->table = &thread_table;
    comm->threads = 1;
    comm->thread_multiple = 1;
    comm->message_limit = INT32_MAX;
    thread_place(comm, g, rank);
    *out = comm;
    return DSC_OK;
}

#endif
