/* What a communication backend implements, and the structs behind communicators and requests.
 *
 * comm.c and transfer.c check arguments, count bytes, complete operations that need no transport (no elements, or
 * one rank) and cut long messages into pieces. A backend starts, tests and waits for one piece at a time; its
 * handles are opaque here.
 *
 * A communicator has a table that moves host memory (self, mpi, functions, contact). It may have a second one that
 * moves memory of its queue's GPU, in the order of that queue (nccl). Without the second, GPU memory is copied
 * to the host and back (staging.c). */
#ifndef DSC_COMM_TABLE_H
#define DSC_COMM_TABLE_H

#include "base/visible.h"
#include "descent/comm.h"
#include "device/table.h"

#include <stdatomic.h>

/* One operation, or one piece of a long one. `count` is the number of elements of the vector; for
 * all-gather and reduce-scatter, of one rank's part.
 *
 *   op               send          recv
 *   all-reduce       the vector    the same memory
 *   reduce           the vector    the result, at the root; may be the same memory
 *   broadcast        the vector    the same memory
 *   all-gather       own part      all parts; the own part may already be in its place
 *   reduce-scatter   all parts     own part of the result, in other memory
 *   send, recv       the vector    the vector */
typedef struct dsc_transfer {
    dsc_comm_op op;
    dsc_reduction reduction;
    dsc_dtype dtype;
    int peer; /* root, destination or source */
    int tag;
    const void *send;
    void *recv;
    int64_t count;
} dsc_transfer;

/* A piece in flight. */
typedef struct dsc_piece {
    union {
        void *pointer;
        int64_t number;
    } handle;         /* private to the backend */
    int64_t expected; /* number of elements of `dtype` that a receive must bring; -1 for other operations */
    dsc_dtype dtype;
} dsc_piece;

/* Tells whether a rank was lost. Shared by a communicator and all that were split from it, which may be used by
 * other threads. */
typedef struct dsc_watch {
    atomic_int users;
    atomic_int alarmed; /* 1 once the alarm was raised; never reset */
    _Atomic double next_look;
    void *state; /* private to the backend */
} dsc_watch;

typedef struct dsc_comm_table {
    const char *name;
    /* Frees comm->state. Collective. */
    void (*close)(dsc_comm *comm);
    /* Fills in rank, size, local_rank, local_size and state of `child`; leaves them alone for a negative
     * colour. Collective. */
    dsc_status (*split)(dsc_comm *comm, int colour, int key, dsc_comm *child);
    /* Starts one piece of 1 to message_limit elements (of all parts together, for all-gather and
     * reduce-scatter); a device_table takes any length. */
    dsc_status (*start)(dsc_comm *comm, const dsc_transfer *transfer, dsc_piece *piece);
    dsc_status (*test)(dsc_comm *comm, dsc_piece *piece, int *done);
    dsc_status (*wait)(dsc_comm *comm, dsc_piece *piece);
    /* Blocks. NULL: a barrier is started like other operations. */
    dsc_status (*barrier)(dsc_comm *comm);
    /* Sends messages that were held back to be grouped; NULL: the backend holds none back. */
    dsc_status (*flush)(dsc_comm *comm);
    /* Cancels a receive in flight, if that is possible; NULL: it never is. */
    void (*cancel)(dsc_comm *comm, dsc_piece *piece);
    /* Called instead of close: does not wait for other ranks, and keeps what operations in flight need. NULL:
     * `close` never waits, and cancel, is_last, look and survivors are NULL, too. */
    void (*abandon)(dsc_comm *comm);
    /* Returns 1 for the last communicator before the library finalises MPI, which waits for the other ranks. */
    int (*is_last)(const dsc_comm *comm);
    /* Checks whether another rank has raised the alarm. */
    dsc_status (*look)(dsc_watch *watch, int *alarmed);
    /* Raises the alarm and fills in `child` as split does, with the ranks that answer and a new watch. */
    dsc_status (*survivors)(dsc_comm *comm, double patience, dsc_comm *child);
    /* Frees watch->state. */
    void (*close_watch)(dsc_watch *watch);
} dsc_comm_table;

/* The byte counters shared by a communicator and all that were split from it. */
typedef struct dsc_comm_counters {
    atomic_int users;
    _Atomic uint64_t bytes[DSC_TRAFFIC_COUNT];
} dsc_comm_counters;

/* Page-locked host memory for one operation on GPU memory; its communicator keeps it for reuse. */
typedef struct dsc_staging dsc_staging;
struct dsc_staging {
    void *data;
    size_t bytes;
    dsc_device owner; /* only used to free `data`, as the device itself may be destroyed by then */
    dsc_staging *next;
};

/* Requests and their arrays of pieces are kept in their communicator and reused, so a step allocates nothing once as
 * many requests have been in flight before. */
struct dsc_request {
    dsc_comm *comm;
    const dsc_comm_table *table; /* moves its pieces */
    dsc_staging *staging;        /* NULL: the tensors themselves are sent and received */
    dsc_queue *queue;            /* does the copies to and from staging */
    const void *arrived;         /* where the result arrives in staging */
    dsc_tensor result;           /* where it is copied to; data is NULL if there is no result */
    dsc_piece *pieces;
    int64_t capacity, count, done; /* pieces [0, done) are complete */
    int busy;
    int expired;    /* 1: the last wait for it has timed out, and it is still in flight */
    dsc_comm_op op; /* op, peer and tag are for error messages */
    int peer, tag;
    dsc_traffic traffic; /* traffic, began and bytes are for the trace (base/trace.h) */
    double began;        /* 0: it is not traced */
    int64_t bytes;
    void *own; /* memory from dsc_own_take that it keeps after a timeout; NULL: none */
    dsc_request *next_free;
    dsc_request *next; /* in the list of all requests of the communicator */
};

enum { DSC_COMM_MESSAGE_SIZE = 2048 }; /* of the error text that dsc_comm_agree passes on */
enum { DSC_NCCL_ID_BYTES = 128 };      /* of an ncclUniqueId */

struct dsc_comm {
    const dsc_comm_table *table;
    void *state; /* private to the backend */
    int rank, size, local_rank, local_size, threads;
    int64_t message_limit;
    char description[160];
    dsc_comm_counters *counters;
    dsc_queue *queue;                   /* gives operations on GPU tensors their order; NULL: not set */
    const dsc_comm_table *device_table; /* moves memory of the queue's GPU; NULL: copied through the host */
    void *device_state;
    const struct dsc_nccl_functions *nccl; /* for kind "nccl" (backends.h); NULL for other kinds */
    int has_nccl_id; /* 1: all ranks already know nccl_id, and dsc_nccl_functions.inherit uses it */
    unsigned char nccl_id[DSC_NCCL_ID_BYTES];
    int thread_multiple; /* as in dsc_comm_options */
    int alone_too;       /* 1: even a single rank uses the transport; set by tests */
    dsc_request *requests, *free_requests;
    dsc_staging *free_staging;
    double timeout;   /* seconds; 0: none */
    dsc_watch *watch; /* NULL: created without dsc_comm_options.survive */
    int owns_watch;   /* 1: the watch is over the ranks of this communicator, not of a parent */
    void *own;        /* memory for operations that begin and wait in one call */
    int64_t own_bytes;
    dsc_buckets *kept;       /* buckets that were destroyed while in flight */
    int released;            /* 1: abandoned although all its ranks may be alive (dsc_comm_release) */
    dsc_comm *next_released; /* in the backend's list of released communicators */
    char message[DSC_COMM_MESSAGE_SIZE];
};

/* Returns the number of bytes that one rank sends for an operation on `bytes` bytes (of all parts, for all-gather and
 * reduce-scatter) over `ranks` ranks, rounded down. For broadcast it is what the root sends, for reduce what
 * each of the other ranks sends. */
uint64_t dsc_comm_cost(dsc_comm_op op, uint64_t bytes, int ranks);
/* Returns 1 if operations on tensors of the queue's device can be part of a recording (device/recording.h): with
 * one rank, which has nothing to exchange, or with "nccl". An operation must be begun and waited for in the
 * same recording; in a recording, dsc_comm_test never reports it as done. */
int dsc_comm_records(const dsc_comm *comm);
/* Does the same as dsc_comm_abandon, for a communicator whose other ranks are alive: MPI can still be finalised at the
 * end of the process, if everything but receives, which are cancelled, is complete by then. Not collective. */
void dsc_comm_release(dsc_comm **comm);
/* Returns 1 if everything that a released communicator had in flight is complete, apart from its receives, which were
 * cancelled. */
DSC_MODULE_API int dsc_comm_is_complete(dsc_comm *comm);

/* Return 1 if this tensor, or any tensor, has been announced as ready in this round. */
int dsc_buckets_is_ready(const dsc_buckets *buckets, int64_t index);
int dsc_buckets_is_under_way(const dsc_buckets *buckets);
/* Destroys buckets without waiting. Returns 1 if operations are in flight: then the memory that they use is never
 * freed, and that of the tensors must never be freed, either. */
int dsc_buckets_abandon(dsc_buckets **buckets);

/* Adds to the byte counters when a recording is replayed, which sends without calling an operation. */
void dsc_comm_add_bytes(dsc_comm *comm, dsc_traffic traffic, uint64_t bytes);
/* Does the same as dsc_comm_test, but the request stays valid and must still be waited for. */
dsc_status dsc_comm_poll(dsc_request *request, int *done) DSC_MUST_CHECK;
/* Waits for the requests in flight of a communicator that is being destroyed. Returns 0 if one of them has timed
 * out. */
int dsc_comm_settle_requests(dsc_comm *comm);
/* Frees the requests of a communicator. */
void dsc_comm_drop_requests(dsc_comm *comm);

/* Returns 1 if a wait for the request has a time limit. */
int dsc_comm_is_limited(const dsc_request *request);
/* Waits for the request's pieces. At the time limit, or after an alarm, sets request->expired and fails. */
dsc_status dsc_comm_wait_limited(dsc_request *request) DSC_MUST_CHECK;
/* How long a wait has lasted so far; starts as all zeros. */
typedef struct dsc_patience {
    double looked; /* dsc_clock_now() of the last call (0: none yet) */
    double waited; /* seconds */
} dsc_patience;

/* To be called once per poll; returns the seconds waited so far. The time between two calls counts as at most
 * 0.25 s: a process that was itself stopped, by a signal or for lack of a core, must not take its peers
 * for lost. */
double dsc_comm_waited(dsc_patience *p);
/* Sleeps briefly between two polls; the sleeps get longer with the time waited so far, in seconds. */
DSC_MODULE_API void dsc_comm_rest(double waited);
/* Gives up one reference to the watch and sets *watch to NULL; *watch may be NULL. */
void dsc_watch_release(const dsc_comm_table *table, dsc_watch **watch);

/* Sets *own to a copy of `data` that the communicator owns, for an operation that begins and waits in one call:
 * after a timeout MPI goes on using the memory, and the caller's may be freed. NULL if there is no time limit, so that
 * the caller's memory can be used. */
dsc_status dsc_own_take(dsc_comm *comm, const void *data, size_t bytes, void **own) DSC_MUST_CHECK;
/* Waits, and copies the result from `own` (unless it is NULL) to `data` once the operation is complete. */
dsc_status dsc_own_wait(dsc_request *request, void *data, size_t bytes, void *own) DSC_MUST_CHECK;
/* Begins an operation on host memory and waits for it. `send` must be inside the memory at `recv`. */
DSC_MODULE_API dsc_status dsc_comm_run(dsc_comm *comm, const dsc_transfer *transfer) DSC_MUST_CHECK;
/* DSC_E_INVALID unless the communicator has a queue of this GPU; `what` names the operation. */
dsc_status dsc_comm_check_queue(const dsc_comm *comm, const char *what,
                                const dsc_device *device) DSC_MUST_CHECK;

/* Return and set the queue, without further effects: for code that uses another queue temporarily. */
dsc_queue *dsc_comm_queue(const dsc_comm *comm);
void dsc_comm_return_queue(dsc_comm *comm, dsc_queue *queue);

/* Returns "allreduce", "send", ..., for messages. */
const char *dsc_comm_op_name(dsc_comm_op op);
/* Returns 1 for all-gather and reduce-scatter. */
int dsc_comm_is_gather(dsc_comm_op op);
/* Returns 1 if the operation needs no transport because there is one rank, which at most copies its own part. */
int dsc_comm_is_idle(const dsc_comm *comm, dsc_comm_op op);

/* Turns a transfer of device memory into one of host memory: takes staging memory, copies the data to be sent in
 * the order of the communicator's queue, and waits for the copy. */
dsc_status dsc_staging_begin(dsc_request *request, dsc_device *device, dsc_transfer *transfer) DSC_MUST_CHECK;
/* Copies the result of a complete transfer to the device, in the order of the queue. */
dsc_status dsc_staging_finish(dsc_request *request) DSC_MUST_CHECK;
/* Returns the staging memory of a request, if it has any, to the communicator. */
void dsc_staging_return(dsc_request *request);
/* Frees the staging memory that the communicator keeps. */
void dsc_staging_drop(dsc_comm *comm);

/* ---- making communicators ---- */

/* Copies the caller's options (NULL: none) over the defaults and checks them. */
dsc_status dsc_comm_read_options(const dsc_comm_options *given, dsc_comm_options *out) DSC_MUST_CHECK;
/* Allocates an empty communicator, whose table, state, ranks, threads and description a backend fills in. Fails for
 * kind "nccl" if there is no NCCL. */
dsc_status dsc_comm_alloc(const dsc_comm_options *options, dsc_comm **out) DSC_MUST_CHECK;
/* Completes the description of a new communicator, and makes error messages of this process name its rank. */
void dsc_comm_finish(dsc_comm *comm);
/* Sets comm->threads to this rank's share of the CPUs that it is bound to. Collective. */
dsc_status dsc_comm_share_cpus(dsc_comm *comm) DSC_MUST_CHECK;
/* DSC_E_INVALID unless 0 <= rank < ranks and 0 <= local_rank < local_ranks <= ranks. */
dsc_status dsc_comm_check_ranks(const char *name, int rank, int ranks, int local_rank,
                                int local_ranks) DSC_MUST_CHECK;
/* Returns a hash that is equal on all ranks of a node. */
uint64_t dsc_comm_node(void);
/* DSC_E_INVALID if there is no communicator; `what` names the operation. */
dsc_status dsc_comm_check(const char *what, const dsc_comm *comm) DSC_MUST_CHECK;

/* Returns the number of processes that an MPI launcher has started, from its environment variables; 1 if the launcher
 * does not give the number, 0 if there is no launcher. */
int dsc_launcher_size(void);
/* Returns the number of processes that a launcher which is not MPI's has started and described by the variables
 * WORLD_SIZE and RANK (torchrun); 0 if there is none. */
int dsc_launcher_other_size(void);

/* Sets *cpus to the number of CPUs that this process is bound to, and *hash to a hash of their set. */
DSC_MODULE_API void dsc_affinity(int *cpus, uint64_t *hash);

/* Opens the backend "self": fills in table, state, rank, size, local_rank, local_size, threads and description. */
dsc_status dsc_self_open(dsc_comm *comm, const dsc_comm_options *options) DSC_MUST_CHECK;

#endif
