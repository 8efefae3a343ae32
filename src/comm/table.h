/* What a communication backend implements, and what the front keeps about communicators and requests.
 *
 * The front (comm.c, transfer.c) checks arguments, counts bytes, serves what needs no transport (no elements;
 * one rank) and cuts long messages into pieces; a backend starts, tests and waits for one piece at a time.
 * Its handles are opaque here.
 *
 * A communicator has a table that moves host memory (self, mpi), and may have a second one that moves memory
 * of the used queue's GPU, in the order of that queue (nccl). Without the second, such memory is copied to
 * the host and back (staging.c). */
#ifndef DSC_COMM_TABLE_H
#define DSC_COMM_TABLE_H

#include "descent/comm.h"
#include "device/table.h"

#include <stdatomic.h>

typedef enum dsc_comm_op {
    DSC_COMM_ALLREDUCE,
    DSC_COMM_REDUCE,
    DSC_COMM_BROADCAST,
    DSC_COMM_ALLGATHER,
    DSC_COMM_REDUCE_SCATTER,
    DSC_COMM_SEND,
    DSC_COMM_RECV,
    DSC_COMM_BARRIER
} dsc_comm_op;

/* One operation, or one piece of a long one. `count` are the elements of the vector; in all-gather and
 * reduce-scatter those of one rank's part.
 *
 *   op               send          recv
 *   all-reduce       the vector    the same memory
 *   reduce           the vector    the result, at the root; may be the same memory
 *   broadcast        the vector    the same memory
 *   all-gather       the own part  all parts; the own part may lie in its place already
 *   reduce-scatter   all parts     the own part of the result, elsewhere
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

/* A piece under way. */
typedef struct dsc_piece {
    union {
        void *pointer;
        int64_t number;
    } handle;         /* the backend's own */
    int64_t expected; /* elements of `dtype` that a receive must bring; -1 for other operations */
    dsc_dtype dtype;
} dsc_piece;

/* Whether a rank of a communicator was lost: known to it and to all that were split from it, which may be
 * used by other threads. */
typedef struct dsc_watch {
    atomic_int users;
    atomic_int alarmed; /* stays 1 */
    _Atomic double next_look;
    void *state; /* the backend's own */
} dsc_watch;

typedef struct dsc_comm_table {
    const char *name;
    /* Gives back comm->state. Collective. */
    void (*close)(dsc_comm *comm);
    /* Fills in rank, size, local_rank, local_size and state of `child`; leaves them alone for a negative
     * colour. Collective. */
    dsc_status (*split)(dsc_comm *comm, int colour, int key, dsc_comm *child);
    /* Starts one piece: count is 1 to message_limit (for the whole of an all-gather or reduce-scatter). */
    dsc_status (*start)(dsc_comm *comm, const dsc_transfer *transfer, dsc_piece *piece);
    dsc_status (*test)(dsc_comm *comm, dsc_piece *piece, int *done);
    dsc_status (*wait)(dsc_comm *comm, dsc_piece *piece);
    /* Blocks. NULL: a barrier is started like other operations. */
    dsc_status (*barrier)(dsc_comm *comm);
    /* Lets messages leave that were held back; NULL: none are. */
    dsc_status (*flush)(dsc_comm *comm);
    /* Takes back a receive under way, where that is possible. */
    void (*cancel)(dsc_comm *comm, dsc_piece *piece);
    /* Instead of close: waits for nobody and keeps what operations in flight need. NULL: close is like that,
     * and none of this is there: cancel, is_last, look, survivors. */
    void (*abandon)(dsc_comm *comm);
    /* 1 when close waits for the other ranks. */
    int (*is_last)(const dsc_comm *comm);
    /* Has another rank raised the alarm? */
    dsc_status (*look)(dsc_watch *watch, int *alarmed);
    /* Raises the alarm, and fills in `child` as split does, with a watch of its own. */
    dsc_status (*survivors)(dsc_comm *comm, double patience, dsc_comm *child);
    /* Gives back watch->state. */
    void (*close_watch)(dsc_watch *watch);
} dsc_comm_table;

/* A communicator and all that were split from it count their bytes here. */
typedef struct dsc_comm_counters {
    atomic_int users;
    _Atomic uint64_t bytes[DSC_TRAFFIC_COUNT];
} dsc_comm_counters;

/* Host memory for one operation on memory of a GPU, page-locked; kept in its communicator. */
typedef struct dsc_staging dsc_staging;
struct dsc_staging {
    void *data;
    size_t bytes;
    dsc_device owner; /* knows no more than how to free `data`: the device itself may be gone by then */
    dsc_staging *next;
};

/* Requests are kept in their communicator and used again, with their arrays of pieces: a step allocates
 * nothing once it has had as many in flight before. */
struct dsc_request {
    dsc_comm *comm;
    const dsc_comm_table *table; /* that moves its pieces */
    dsc_staging *staging;        /* NULL: pieces move the tensors themselves */
    dsc_queue *queue;            /* of staging: its order */
    const void *arrived;         /* the result in staging */
    dsc_tensor result;           /* where it goes; data is NULL when nothing comes back */
    dsc_piece *pieces;
    int64_t capacity, count, done; /* pieces [0, done) are complete */
    int busy;
    int expired;    /* 1: the last wait for it was given up, it is in flight */
    dsc_comm_op op; /* of the whole; with peer and tag for messages */
    int peer, tag;
    void *own; /* memory that the communicator has left to it; NULL: none */
    dsc_request *next_free;
    dsc_request *next; /* of all requests of the communicator */
};

enum { DSC_COMM_MESSAGE_SIZE = 2048 }; /* of the error text that dsc_comm_agree passes on */

struct dsc_comm {
    const dsc_comm_table *table;
    void *state; /* the backend's own */
    int rank, size, local_rank, local_size, threads;
    int64_t message_limit;
    char description[160];
    dsc_comm_counters *counters;
    dsc_queue *queue; /* in whose order tensors of a GPU are handed over; NULL: none so far */
    const dsc_comm_table *device_table; /* moves memory of the queue's GPU; NULL: staging does */
    void *device_state;
    int by_nccl;         /* 1: of kind "nccl" */
    int thread_multiple; /* as in the options */
    int alone_too;       /* 1: operations of one rank use the transport as well; set by tests */
    dsc_request *requests, *free_requests;
    dsc_staging *free_staging;
    double timeout;   /* seconds; 0: none */
    dsc_watch *watch; /* NULL: lost ranks are not survived */
    int owns_watch;   /* 1: the watch is over the ranks of this one, not of one it was split from */
    void *own;        /* memory for operations that begin and wait in one call */
    int64_t own_bytes;
    dsc_buckets *kept; /* destroyed with buckets in flight */
    char message[DSC_COMM_MESSAGE_SIZE];
};

/* Bytes that one rank sends for an operation on `bytes` bytes over `ranks` ranks, rounded down: the one
 * formula. `bytes` are those of the vector, of the whole in all-gather and reduce-scatter. For broadcast it
 * is what the root sends, for reduce what each other rank sends. */
uint64_t dsc_comm_cost(dsc_comm_op op, uint64_t bytes, int ranks);
/* 1 when operations on tensors of the queue's device can be part of a recording (device/recording.h): with
 * one rank, which has nothing to exchange, or with "nccl". An operation must be begun and waited for in the
 * same recording; dsc_comm_test finds it not done there. */
int dsc_comm_records(const dsc_comm *comm);
/* Counts bytes that were sent without a call: by a recording that is replayed. */
void dsc_comm_add_bytes(dsc_comm *comm, dsc_traffic traffic, uint64_t bytes);
/* As dsc_comm_test, but the request is kept: dsc_comm_wait gives it back. */
dsc_status dsc_comm_poll(dsc_request *request, int *done) DSC_MUST_CHECK;
/* Waits for the requests in flight of a communicator that is being destroyed. 0: one of them was given up. */
int dsc_comm_settle_requests(dsc_comm *comm);
/* Gives back its requests. */
void dsc_comm_drop_requests(dsc_comm *comm);

/* 1 when waiting for the request is limited in time. */
int dsc_comm_is_limited(const dsc_request *request);
/* Waits for its pieces within the limit; else request->expired is set, and it fails. */
dsc_status dsc_comm_wait_limited(dsc_request *request) DSC_MUST_CHECK;
/* How long a wait has lasted, all zero at its start. */
typedef struct dsc_patience {
    double looked, waited; /* when last (0: not yet); seconds */
} dsc_patience;

/* Counts a look, and returns the seconds so far. What lies between two looks counts 0.25 s at most: a process
 * that was stopped itself, by a signal or for lack of a core, does not take its peers for lost. */
double dsc_comm_waited(dsc_patience *p);
/* Sleeps a little while something is waited for, the longer the longer that has lasted (in seconds). */
void dsc_comm_rest(double waited);
/* Gives back one user's share; *watch may be NULL. */
void dsc_watch_release(const dsc_comm_table *table, dsc_watch **watch);

/* Memory for an operation that begins and waits in one call on host memory of its caller, who will not keep
 * it when the wait is given up: a copy of `data`. *own = NULL where the caller's will do. */
dsc_status dsc_own_take(dsc_comm *comm, const void *data, size_t bytes, void **own) DSC_MUST_CHECK;
/* Waits, and copies the result to `data` when it has come. */
dsc_status dsc_own_wait(dsc_request *request, void *data, size_t bytes, void *own) DSC_MUST_CHECK;
/* An operation on host memory of the communicator's own, begun and waited for. What is sent lies where the
 * result goes. */
dsc_status dsc_comm_run(dsc_comm *comm, const dsc_transfer *transfer) DSC_MUST_CHECK;
/* DSC_E_INVALID unless the communicator has a queue of this device, which is not a host's; `what` names the
 * operation. */
dsc_status dsc_comm_check_queue(const dsc_comm *comm, const char *what,
                                const dsc_device *device) DSC_MUST_CHECK;

/* The queue in use, and back to it for who has used another one, which may be gone by then. */
dsc_queue *dsc_comm_queue(const dsc_comm *comm);
void dsc_comm_return_queue(dsc_comm *comm, dsc_queue *queue);

/* 1 for all-gather and reduce-scatter. */
int dsc_comm_is_gather(dsc_comm_op op);
/* 1 when one rank has nothing to do but, at most, to copy its own part. */
int dsc_comm_is_idle(const dsc_comm *comm, dsc_comm_op op);

/* Turns a transfer of a device's memory into one of host memory: takes staging for it and copies what is to
 * be sent, in the order of the communicator's queue, waiting for it. */
dsc_status dsc_staging_begin(dsc_request *request, dsc_device *device, dsc_transfer *transfer) DSC_MUST_CHECK;
/* Copies the result of a complete transfer to the device, in the order of the queue. */
dsc_status dsc_staging_finish(dsc_request *request) DSC_MUST_CHECK;
/* Gives the staging of a request back to the communicator; there may be none. */
void dsc_staging_return(dsc_request *request);
/* Frees what the communicator keeps. */
void dsc_staging_drop(dsc_comm *comm);

/* Number of processes that a launcher has started, from its environment variables; 1 when a launcher is there
 * but does not tell, 0 without a launcher. */
int dsc_launcher_size(void);

/* CPUs that this process is bound to: how many, and a hash of which. */
void dsc_affinity(int *cpus, uint64_t *hash);

/* Fill in table, state, rank, size, local_rank, local_size, threads and description. */
dsc_status dsc_self_open(dsc_comm *comm, const dsc_comm_options *options) DSC_MUST_CHECK;
/* The mpi backend is there only where DSC_HAVE_MPI is defined. Collective. */
dsc_status dsc_mpi_open(dsc_comm *comm, const dsc_comm_options *options) DSC_MUST_CHECK;
/* 1 between MPI's initialisation, by whomever, and its end. */
int dsc_mpi_is_up(void);
/* Ends all processes of the job. */
void dsc_mpi_abort(int exit_status);

/* The nccl backend is there only where DSC_HAVE_NCCL is defined. Puts its name and version into the
 * description. */
void dsc_nccl_describe(dsc_comm *comm);
/* Gives the communicator NCCL for the GPU of its queue, unless it has it. Collective. */
dsc_status dsc_nccl_use(dsc_comm *comm) DSC_MUST_CHECK;
/* The same for a communicator just split from `parent`, which has it. Collective. */
dsc_status dsc_nccl_inherit(dsc_comm *comm, dsc_comm *parent) DSC_MUST_CHECK;
/* Makes the operations of all communicators of this process give up. Does not wait for it. */
void dsc_nccl_abort(void);

#endif
