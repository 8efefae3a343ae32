/* NCCL moves GPU memory between ranks in the order of the communicator's queue, without the host. The table
 * for host memory (mpi, functions, contact) does everything else: groups, barriers, and setting up NCCL.
 *
 * Operations run in a stream of their own, the lane, which a communicator shares with those split from it.
 * They therefore run in the order in which they were begun, and cannot block each other on the GPU, as
 * operations of several NCCL communicators otherwise may. Beginning an operation makes the lane wait for
 * the queue, then puts the operation and an event into the lane. Waiting makes the queue wait for that
 * event; the host does not wait. All of this can be recorded.
 *
 * NCCL's messages have no tags, and a send may complete only when its receive runs. Messages begun one
 * after the other are therefore held back, and sent as one group by the next collective, wait or test. */
#include "comm/backends.h"

#include "base/error.h"
#include "base/memory.h"
#include "descent/version.h"
#include "device/cuda/current.h"
#include "device/cuda/state.h"
#include "device/recording.h"

#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct operation operation;
typedef struct nccl_state nccl_state;

/* A stream, and the messages held back. */
typedef struct lane {
    int ordinal; /* of the GPU */
    int users;   /* number of communicators */
    cudaStream_t stream;
    cudaEvent_t fork;        /* marks the point in the queue at which an operation begins */
    operation *held, **tail; /* messages held back, oldest first; where the next one is added */
} lane;

/* An operation in flight; the struct is reused after the wait. */
struct operation {
    nccl_state *owner;
    cudaEvent_t done;
    dsc_queue *queue;
    int recorded;          /* 1: begun in a recording */
    dsc_transfer transfer; /* valid while the operation is held back */
    operation *next_held, *next_free, *next;
};

struct nccl_state {
    ncclComm_t comm;
    lane *lane;
    operation *operations, *free_operations;
    nccl_state *next_alive;
};

/* All communicators, for nccl_abort. */
static struct {
    pthread_mutex_t lock;
    nccl_state *first;
} alive = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const dsc_comm_table nccl_table;

/* ---- errors ---- */

static dsc_status nccl_fail(ncclResult_t result, ncclComm_t comm, const char *what, const char *file,
                            int line) {
    const char *details = ncclGetLastError(comm);
    (void)cudaGetLastError(); /* reported here, so that the next launch does not report it again */
    return dsc_error_raise(DSC_E_COMM, file, line, "nccl: %s: %s%s%s", what, ncclGetErrorString(result),
                           details && *details ? "; " : "", details ? details : "");
}

#define NCCL_TRY(comm, call)                                                                                 \
    do {                                                                                                     \
        ncclResult_t nccl_result_ = (call);                                                                  \
        if (nccl_result_ != ncclSuccess)                                                                     \
            return nccl_fail(nccl_result_, (comm), #call, __FILE__, __LINE__);                               \
    } while (0)

/* Reports asynchronous errors: a peer that is gone, a broken connection. */
static dsc_status check_health(const nccl_state *s) {
    ncclResult_t result = ncclSuccess;
    NCCL_TRY(s->comm, ncclCommGetAsyncError(s->comm, &result));
    if (result != ncclSuccess)
        return nccl_fail(result, s->comm, "an operation under way", __FILE__, __LINE__);
    return DSC_OK;
}

/* ---- operations ---- */

static cudaStream_t stream_of(const dsc_queue *queue) {
    return dsc_cuda_queue_of(queue)->stream;
}

static ncclDataType_t nccl_type(dsc_dtype dtype) {
    switch (dtype) {
    case DSC_F32:
        return ncclFloat32;
    case DSC_F64:
        return ncclFloat64;
    case DSC_BF16:
        return ncclBfloat16;
    case DSC_F16:
        return ncclFloat16;
    case DSC_I32:
        return ncclInt32;
    case DSC_I64:
        return ncclInt64;
    case DSC_U8:
        return ncclUint8;
    }
    return ncclNumTypes;
}

static ncclRedOp_t nccl_op(dsc_reduction reduction) {
    return reduction == DSC_SUM ? ncclSum : reduction == DSC_MAX ? ncclMax : ncclMin;
}

static dsc_status call(const nccl_state *s, const dsc_transfer *t) {
    ncclDataType_t type = nccl_type(t->dtype);
    ncclRedOp_t op = nccl_op(t->reduction);
    cudaStream_t stream = s->lane->stream;
    size_t n = (size_t)t->count;
    switch (t->op) {
    case DSC_COMM_ALLREDUCE:
        NCCL_TRY(s->comm, ncclAllReduce(t->send, t->recv, n, type, op, s->comm, stream));
        break;
    case DSC_COMM_REDUCE:
        NCCL_TRY(s->comm, ncclReduce(t->send, t->recv, n, type, op, t->peer, s->comm, stream));
        break;
    case DSC_COMM_BROADCAST:
        NCCL_TRY(s->comm, ncclBroadcast(t->send, t->recv, n, type, t->peer, s->comm, stream));
        break;
    case DSC_COMM_ALLGATHER:
        NCCL_TRY(s->comm, ncclAllGather(t->send, t->recv, n, type, s->comm, stream));
        break;
    case DSC_COMM_REDUCE_SCATTER:
        NCCL_TRY(s->comm, ncclReduceScatter(t->send, t->recv, n, type, op, s->comm, stream));
        break;
    case DSC_COMM_SEND:
        NCCL_TRY(s->comm, ncclSend(t->send, n, type, t->peer, s->comm, stream));
        break;
    case DSC_COMM_RECV:
        NCCL_TRY(s->comm, ncclRecv(t->recv, n, type, t->peer, s->comm, stream));
        break;
    case DSC_COMM_BARRIER: /* done by the table for host memory */
        break;
    }
    return DSC_OK;
}

/* Makes the lane wait for everything that is in the queue so far. */
static dsc_status follow_queue(lane *l, const dsc_queue *queue) {
    DSC_CUDA_TRY(cudaEventRecord(l->fork, stream_of(queue)));
    DSC_CUDA_TRY(cudaStreamWaitEvent(l->stream, l->fork, 0));
    return DSC_OK;
}

static dsc_status mark_end(operation *o) {
    DSC_CUDA_TRY(cudaEventRecord(o->done, o->owner->lane->stream));
    return DSC_OK;
}

static dsc_status check_recording(const operation *o) {
    if (o->recorded != dsc_queue_is_recording(o->queue))
        return DSC_FAIL(DSC_E_INVALID,
                        "an operation was begun %s a recording and waited for %s it: do both "
                        "on the same side",
                        o->recorded ? "in" : "outside", o->recorded ? "outside" : "in");
    return DSC_OK;
}

static dsc_status call_all(const nccl_state *s, const operation *first, const operation *end) {
    NCCL_TRY(s->comm, ncclGroupStart());
    dsc_status status = DSC_OK;
    for (const operation *o = first; o != end && status == DSC_OK; o = o->next_held)
        status = call(s, &o->transfer);
    ncclResult_t result = ncclGroupEnd();
    DSC_TRY(status);
    NCCL_TRY(s->comm, result);
    return DSC_OK;
}

/* Starts messages of one communicator that were begun one after the other, from `first` to the one before `end`. */
static dsc_status start_group(operation *first, operation *end) {
    nccl_state *s = first->owner;
    for (operation *o = first; o != end; o = o->next_held) {
        DSC_TRY(check_recording(o));
        DSC_TRY(follow_queue(s->lane, o->queue));
    }
    DSC_TRY(call_all(s, first, end));
    for (operation *o = first; o != end; o = o->next_held)
        DSC_TRY(mark_end(o));
    return DSC_OK;
}

/* Sends all messages that are held back. */
static dsc_status release(lane *l) {
    if (!l->held)
        return DSC_OK;
    operation *first = l->held;
    l->held = NULL;
    l->tail = &l->held;
    DSC_CUDA_ON(l->ordinal);
    while (first) {
        operation *end = first->next_held;
        while (end && end->owner == first->owner)
            end = end->next_held;
        DSC_TRY(start_group(first, end));
        first = end;
    }
    return DSC_OK;
}

static void hold(lane *l, operation *o, const dsc_transfer *transfer) {
    o->transfer = *transfer;
    o->next_held = NULL;
    *l->tail = o;
    l->tail = &o->next_held;
}

static dsc_status take_operation(nccl_state *s, dsc_queue *queue, operation **out) {
    operation *o = s->free_operations;
    if (!o) {
        DSC_TRY(dsc_memory_alloc(1, sizeof *o, &o));
        o->owner = s;
        o->next = s->operations;
        s->operations = o;
        DSC_CUDA_TRY(cudaEventCreateWithFlags(&o->done, cudaEventDisableTiming));
    } else {
        s->free_operations = o->next_free;
    }
    o->next_free = NULL;
    o->queue = queue;
    o->recorded = dsc_queue_is_recording(queue);
    *out = o;
    return DSC_OK;
}

static void return_operation(operation *o) {
    o->next_free = o->owner->free_operations;
    o->owner->free_operations = o;
}

static dsc_status nccl_start(dsc_comm *comm, const dsc_transfer *transfer, dsc_piece *piece) {
    nccl_state *s = comm->device_state;
    operation *o = NULL;
    DSC_CUDA_ON(s->lane->ordinal);
    DSC_TRY(take_operation(s, comm->queue, &o));
    piece->handle.pointer = o;
    if (transfer->op == DSC_COMM_SEND || transfer->op == DSC_COMM_RECV) {
        hold(s->lane, o, transfer);
        return DSC_OK;
    }
    DSC_TRY(release(s->lane));
    DSC_TRY(follow_queue(s->lane, o->queue));
    DSC_TRY(call(s, transfer));
    return mark_end(o);
}

static dsc_status nccl_flush(dsc_comm *comm) {
    return release(((nccl_state *)comm->device_state)->lane);
}

/* In a recording nothing runs, so nothing is ever complete. */
static dsc_status nccl_test(dsc_comm *comm, dsc_piece *piece, int *done) {
    nccl_state *s = comm->device_state;
    operation *o = piece->handle.pointer;
    *done = 0;
    DSC_TRY(check_health(s));
    if (o->recorded)
        return DSC_OK;
    DSC_CUDA_ON(s->lane->ordinal);
    cudaError_t error = cudaEventQuery(o->done);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return DSC_OK;
    }
    DSC_CUDA_TRY(error);
    return_operation(o);
    *done = 1;
    return DSC_OK;
}

static dsc_status nccl_wait(dsc_comm *comm, dsc_piece *piece) {
    nccl_state *s = comm->device_state;
    operation *o = piece->handle.pointer;
    DSC_TRY(check_health(s));
    DSC_TRY(check_recording(o));
    DSC_CUDA_ON(s->lane->ordinal);
    DSC_CUDA_TRY(cudaStreamWaitEvent(stream_of(o->queue), o->done, 0));
    return_operation(o);
    return DSC_OK;
}

/* ---- life cycle ---- */

static void leave_lane(lane **l) {
    if (*l && --(*l)->users == 0) {
        DSC_CUDA_ON_QUIETLY((*l)->ordinal);
        if ((*l)->stream)
            (void)cudaStreamDestroy((*l)->stream);
        if ((*l)->fork)
            (void)cudaEventDestroy((*l)->fork);
        (void)cudaGetLastError();
        dsc_memory_free(l);
    }
    *l = NULL;
}

static dsc_status open_lane(lane *l) {
    int least, greatest;
    DSC_CUDA_ON(l->ordinal);
    DSC_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    DSC_CUDA_TRY(cudaStreamCreateWithPriority(&l->stream, cudaStreamNonBlocking, greatest));
    DSC_CUDA_TRY(cudaEventCreateWithFlags(&l->fork, cudaEventDisableTiming));
    return DSC_OK;
}

static dsc_status make_lane(int ordinal, lane **out) {
    lane *l;
    DSC_TRY(dsc_memory_alloc(1, sizeof *l, &l));
    *l = (lane){.ordinal = ordinal, .users = 1};
    l->tail = &l->held;
    dsc_status status = open_lane(l);
    if (status != DSC_OK)
        leave_lane(&l);
    DSC_TRY(status);
    *out = l;
    return DSC_OK;
}

static void note_alive(nccl_state *s) {
    pthread_mutex_lock(&alive.lock);
    s->next_alive = alive.first;
    alive.first = s;
    pthread_mutex_unlock(&alive.lock);
}

static void forget_alive(const nccl_state *s) {
    pthread_mutex_lock(&alive.lock);
    nccl_state **at = &alive.first;
    while (*at && *at != s)
        at = &(*at)->next_alive;
    if (*at)
        *at = s->next_alive;
    pthread_mutex_unlock(&alive.lock);
}

static void *abort_all(void *unused) {
    (void)unused;
    pthread_mutex_lock(&alive.lock);
    for (const nccl_state *s = alive.first; s; s = s->next_alive)
        (void)ncclCommAbort(s->comm);
    pthread_mutex_unlock(&alive.lock);
    return NULL;
}

/* Aborts in a separate thread: NCCL waits for recordings that still use a communicator, but the process is to
 * end now. */
static void nccl_abort(void) {
    pthread_t thread;
    if (alive.first && pthread_create(&thread, NULL, abort_all, NULL) == 0)
        pthread_detach(thread);
}

/* Drops messages held back by a communicator that is being destroyed. */
static void drop_held(const nccl_state *s) {
    operation **at = &s->lane->held;
    while (*at) {
        if ((*at)->owner == s)
            *at = (*at)->next_held;
        else
            at = &(*at)->next_held;
    }
    s->lane->tail = at;
}

static void free_state(nccl_state *s) {
    dsc_cuda_current current = {-1, 0};
    if (s->lane) {
        drop_held(s);
        if (dsc_cuda_enter(s->lane->ordinal, &current) != cudaSuccess)
            (void)cudaGetLastError();
    }
    if (s->comm) {
        forget_alive(s);
        (void)cudaStreamSynchronize(s->lane->stream);
        (void)ncclCommDestroy(s->comm);
    }
    while (s->operations) {
        operation *o = s->operations;
        s->operations = o->next;
        if (o->done)
            (void)cudaEventDestroy(o->done);
        dsc_memory_free(&o);
    }
    (void)cudaGetLastError();
    leave_lane(&s->lane);
    dsc_cuda_leave(&current);
    dsc_memory_free(&s);
}

static void nccl_close(dsc_comm *comm) {
    free_state(comm->device_state);
    comm->device_state = NULL;
    comm->device_table = NULL;
}

static const dsc_comm_table nccl_table = {
    .name = "nccl",
    .close = nccl_close,
    .start = nccl_start,
    .test = nccl_test,
    .wait = nccl_wait,
    .flush = nccl_flush,
};

/* ---- setting up ---- */

/* Where a rank's GPU is. */
typedef struct place {
    char node[64]; /* the host name */
    char boot[48]; /* the boot id, which tells nodes of the same name apart */
    char bus[24];  /* PCI address */
    int gpus;      /* number of GPUs that the rank sees */
} place;

static dsc_status find_place(int ordinal, place *out) {
    memset(out, 0, sizeof *out);
    if (gethostname(out->node, sizeof out->node - 1) != 0)
        snprintf(out->node, sizeof out->node, "this node");
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file) {
        if (!fgets(out->boot, sizeof out->boot, file))
            out->boot[0] = '\0';
        fclose(file);
    }
    DSC_CUDA_TRY(cudaDeviceGetPCIBusId(out->bus, sizeof out->bus, ordinal));
    DSC_CUDA_TRY(cudaGetDeviceCount(&out->gpus));
    return DSC_OK;
}

static int same_node(const place *a, const place *b) {
    return strcmp(a->node, b->node) == 0 && strcmp(a->boot, b->boot) == 0;
}

static int same_gpu(const place *a, const place *b) {
    return same_node(a, b) && strcmp(a->bus, b->bus) == 0;
}

/* Raises an error that names the ranks that share the GPU of `first`: at most eight. */
static dsc_status fail_shared(const place *places, int ranks, int first) {
    enum { NAMED = 8 };
    char text[NAMED * 16] = "";
    size_t used = 0;
    int sharers = 0;
    for (int r = first; r < ranks; r++) {
        if (!same_gpu(&places[r], &places[first]) || sharers++ >= NAMED)
            continue;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", used ? ", " : "", r);
    }
    return DSC_FAIL(
        DSC_E_UNSUPPORTED,
        "nccl: ranks %s%s share GPU %s of %s, which NCCL cannot do: use mpi (option comm), which copies "
        "over the host, or start at most %d rank%s on this node",
        text, sharers > NAMED ? ", ..." : "", places[first].bus, places[first].node, places[first].gpus,
        places[first].gpus == 1 ? "" : "s");
}

/* Fails if two ranks share a GPU. Every rank knows all places, and so comes to the same result. */
static dsc_status check_places(dsc_comm *comm, const place *own, place *places) {
    places[comm->rank] = *own;
    dsc_transfer transfer = {.op = DSC_COMM_ALLGATHER,
                             .dtype = DSC_U8,
                             .send = &places[comm->rank],
                             .recv = places,
                             .count = sizeof *own};
    DSC_TRY(dsc_comm_run(comm, &transfer));
    for (int a = 0; a < comm->size; a++) {
        for (int b = a + 1; b < comm->size; b++) {
            if (same_gpu(&places[a], &places[b]))
                return fail_shared(places, comm->size, a);
        }
    }
    return DSC_OK;
}

static dsc_status refuse_sharing(dsc_comm *comm, int ordinal) {
    place own, *places = NULL;
    dsc_status status = find_place(ordinal, &own);
    if (status == DSC_OK)
        status = dsc_memory_alloc(comm->size, sizeof *places, &places);
    status = dsc_comm_agree(comm, status);
    if (status == DSC_OK)
        status = check_places(comm, &own, places);
    dsc_memory_free(&places);
    DSC_TRY(status);
    return DSC_OK;
}

/* NCCL may sum in a different order if it can register the memory of a recording beforehand. A resumed run,
 * whose first steps are not recorded yet, would then get different bits. A value set by the user is kept. */
static void forgo_registering(void) {
    (void)setenv("NCCL_GRAPH_REGISTER", "0", 0);
}

_Static_assert(sizeof(ncclUniqueId) == DSC_NCCL_ID_BYTES, "an id fits into its place in dsc_comm");

static dsc_status nccl_make_id(unsigned char *id) {
    ncclUniqueId made;
    forgo_registering();
    NCCL_TRY(NULL, ncclGetUniqueId(&made));
    memcpy(id, &made, sizeof made);
    return DSC_OK;
}

/* Broadcasts an id for the NCCL communicator from rank 0, unless all ranks already know one. */
static dsc_status share_id(dsc_comm *comm) {
    if (comm->has_nccl_id)
        return DSC_OK;
    DSC_TRY(dsc_comm_agree(comm, comm->rank == 0 ? nccl_make_id(comm->nccl_id) : DSC_OK));
    dsc_transfer transfer = {.op = DSC_COMM_BROADCAST,
                             .dtype = DSC_U8,
                             .send = comm->nccl_id,
                             .recv = comm->nccl_id,
                             .count = sizeof comm->nccl_id};
    DSC_TRY(dsc_comm_run(comm, &transfer));
    return DSC_OK;
}

static dsc_status make_state(int ordinal, lane *shared, nccl_state **out) {
    nccl_state *s;
    DSC_TRY(dsc_memory_alloc(1, sizeof *s, &s));
    if (shared) {
        s->lane = shared;
        shared->users++;
    } else {
        dsc_status status = make_lane(ordinal, &s->lane);
        if (status != DSC_OK)
            dsc_memory_free(&s);
        DSC_TRY(status);
    }
    *out = s;
    return DSC_OK;
}

/* Makes the NCCL communicator. A rank that fails in here leaves others waiting in NCCL; as after any failure
 * between two agreements, its program ends the job. */
static dsc_status meet(dsc_comm *comm, nccl_state *s) {
    ncclUniqueId id;
    forgo_registering();
    DSC_TRY(share_id(comm));
    memcpy(&id, comm->nccl_id, sizeof id);
    comm->has_nccl_id = 0; /* an id is good for one communicator */
    DSC_CUDA_ON(s->lane->ordinal);
    ncclComm_t made = NULL;
    NCCL_TRY(NULL, ncclCommInitRank(&made, comm->size, id, comm->rank));
    s->comm = made;
    note_alive(s);
    return DSC_OK;
}

/* The ranks agree first only if the id is not known yet; otherwise the communicator may have nothing but NCCL to agree
 * with. */
static dsc_status open_nccl(dsc_comm *comm, int ordinal, lane *shared) {
    nccl_state *s = NULL;
    dsc_status status = make_state(ordinal, shared, &s);
    DSC_TRY(comm->has_nccl_id ? status : dsc_comm_agree(comm, status));
    status = meet(comm, s);
    if (status != DSC_OK)
        free_state(s);
    DSC_TRY(status);
    comm->device_state = s;
    comm->device_table = &nccl_table;
    return DSC_OK;
}

static int is_gpu(const dsc_device *device) {
    return strncmp(dsc_device_name(device), "cuda", 4) == 0;
}

static dsc_status nccl_use(dsc_comm *comm) {
    dsc_device *device = dsc_queue_device(comm->queue);
    if (!is_gpu(device))
        return DSC_FAIL(DSC_E_UNSUPPORTED,
                        "nccl: device '%s' is not one of NVIDIA's GPUs: use mpi (option comm)",
                        dsc_device_name(device));
    if (comm->size == 1 && !comm->alone_too)
        return DSC_OK;
    int ordinal = dsc_cuda_of(device)->ordinal;
    if (comm->device_table) {
        if (((nccl_state *)comm->device_state)->lane->ordinal == ordinal)
            return DSC_OK;
        nccl_close(comm);
    }
    DSC_TRY(refuse_sharing(comm, ordinal));
    return open_nccl(comm, ordinal, NULL);
}

/* With thread_multiple every communicator gets a lane of its own, so that threads do not share one. */
static dsc_status nccl_inherit(dsc_comm *comm, dsc_comm *parent) {
    lane *l = ((nccl_state *)parent->device_state)->lane;
    if (comm->size == 1 && !comm->alone_too)
        return DSC_OK;
    return open_nccl(comm, l->ordinal, comm->thread_multiple ? NULL : l);
}

/* Turns the description "mpi: 4 ranks, ..." into "nccl: 4 ranks, ..., NCCL 2.28.9". */
static void nccl_describe(dsc_comm *comm) {
    char rest[sizeof comm->description];
    int version = 0;
    const char *behind = strchr(comm->description, ' ');
    snprintf(rest, sizeof rest, "%s", behind ? behind : "");
    if (ncclGetVersion(&version) != ncclSuccess)
        version = 0;
    snprintf(comm->description, sizeof comm->description, "nccl:%.120s, NCCL %d.%d.%d", rest, version / 10000,
             version / 100 % 100, version % 100);
}

const dsc_module *dsc_nccl_module(void) {
    static const dsc_nccl_functions functions = {.describe = nccl_describe,
                                                 .use = nccl_use,
                                                 .inherit = nccl_inherit,
                                                 .stop = nccl_abort,
                                                 .make_id = nccl_make_id};
    static const dsc_module module = {.version = DSC_VERSION_STRING, .name = "nccl", .table = &functions};
    return &module;
}
