/* Communicators: collectives, point-to-point messages, groups, fusion buckets.
 *
 * Communication takes tensors. An operation is begun and waited for; in between its tensors may not be
 * touched. All ranks of a communicator begin its operations in the same order. "Collective" means that
 * every rank of the communicator must call the function. A communicator is used by one thread at a time.
 *
 * Objects passed as `const T *` or `T *` must not be NULL unless a function says so. */
#ifndef DSC_COMM_H
#define DSC_COMM_H

#include "descent/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_comm dsc_comm;
typedef struct dsc_request dsc_request;

/* The kinds of traffic that bytes are counted by. */
typedef enum dsc_traffic {
    DSC_TRAFFIC_GRADIENTS,
    DSC_TRAFFIC_FACTORS,
    DSC_TRAFFIC_DECOMPOSITIONS,
    DSC_TRAFFIC_PRECONDITIONED,
    DSC_TRAFFIC_PARAMETERS,
    DSC_TRAFFIC_OTHER,
    DSC_TRAFFIC_COUNT
} dsc_traffic;

typedef enum dsc_reduction { DSC_SUM, DSC_MAX, DSC_MIN } dsc_reduction;

typedef struct dsc_comm_options {
    size_t size;
    /* "auto" (the default): "mpi" under a launcher, otherwise "self". "nccl": NCCL for tensors in GPU memory,
     * MPI for host memory. "mpi:openmpi" and "mpi:mpich" are "mpi" with the module of that library;
     * otherwise the module is that of the MPI library that the process has loaded, else of the launcher. */
    const char *kind;
    int thread_multiple;   /* 1: several threads will communicate at the same time */
    int64_t message_limit; /* largest number of elements in one message, longer ones are split; 0: 2^31 - 1 */
    /* 1: dsc_comm_survivors will be able to continue without lost ranks. For "mpi"; "self" has no other
     * ranks, and "nccl" is refused. All pairs of ranks are connected at creation. */
    int survive;
    /* NULL (the default): all ranks. Otherwise the address of an MPI_Comm of the caller's, who has initialised
     * MPI: its ranks. It is duplicated, so it stays the caller's. For "auto", "mpi" and "nccl". */
    const void *mpi_comm;
} dsc_comm_options;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_comm_options_init_sized(dsc_comm_options *options, size_t size);
#define dsc_comm_options_init(options) dsc_comm_options_init_sized((options), sizeof *(options))
/* DSC_OK when this process has what communicators of the kind "self", "mpi", "mpi:..." or "nccl" need;
 * otherwise DSC_E_UNSUPPORTED, and the message names the module or library that is missing and where it was
 * searched for. Loads the modules, but does not initialise MPI. Not collective. */
DSC_API dsc_status dsc_comm_check_kind(const char *kind) DSC_MUST_CHECK;
/* Makes the communicator of all ranks. Collective. "mpi" initialises MPI unless the program has done so. MPI
 * that was initialised here is finalised when the process ends, provided that all communicators have been
 * destroyed or the exit status is 0; otherwise the launcher notices, and ends the other ranks.
 *
 * "auto" fails with DSC_E_COMM in a process that was started by a launcher which is not MPI's (torchrun:
 * WORLD_SIZE > 1 and RANK are set): its ranks are connected by one of the two functions at the end of this
 * header, dsc_comm_create_from_functions and dsc_comm_create_from_contact. */
DSC_API dsc_status dsc_comm_create(const dsc_comm_options *options, dsc_comm **out) DSC_MUST_CHECK;
/* Waits for operations in flight; where a wait has timed out or an alarm was raised it calls dsc_comm_abandon
 * instead. Collective. Accepts NULL and *comm == NULL. */
DSC_API void dsc_comm_destroy(dsc_comm **comm);
/* Ends the whole job at once with this exit status. A program calls it on a rank that has failed, after
 * printing the message, so that no other rank waits for ever. Does not return. comm may be NULL. */
DSC_API void dsc_comm_abort(dsc_comm *comm, int exit_status) __attribute__((noreturn));

DSC_API int dsc_comm_rank(const dsc_comm *comm);
DSC_API int dsc_comm_size(const dsc_comm *comm);
/* The rank and the number of ranks among those on this node. */
DSC_API int dsc_comm_local_rank(const dsc_comm *comm);
DSC_API int dsc_comm_local_size(const dsc_comm *comm);
/* Number of CPU threads for this rank: the CPUs it is bound to, divided among the ranks of the node that are
 * bound to the same CPUs. */
DSC_API int dsc_comm_threads(const dsc_comm *comm);
/* "self", "mpi", "nccl" or "functions"; and one line with the library and its version. Owned by the
 * communicator. */
DSC_API const char *dsc_comm_name(const dsc_comm *comm);
DSC_API const char *dsc_comm_description(const dsc_comm *comm);

/* Makes the communicator of all ranks that pass the same colour (>= 0), ordered by key, then by rank; *out
 * = NULL for a negative colour. Its bytes are counted in `comm`. Collective. */
DSC_API dsc_status dsc_comm_split(dsc_comm *comm, int colour, int key, dsc_comm **out) DSC_MUST_CHECK;

/* Sets the queue whose order operations on GPU tensors follow, for this communicator and those split from
 * it later: an operation begins after everything that is in the queue so far, and work that is put into
 * the queue after dsc_comm_wait finds the result. Needed before the first operation on GPU memory; host
 * tensors need no queue. The queue must outlive the operations; NULL: no queue. Collective.
 *
 * "self" and "mpi" copy GPU tensors through page-locked host memory, and the host waits for the copies.
 * With "nccl" GPUs exchange them directly, and the host does not wait. Then every rank needs a GPU of its
 * own; operations of a communicator and of those split from it run in the order in which they are begun;
 * and recordings that contain operations must be destroyed before the communicator. */
DSC_API dsc_status dsc_comm_use_queue(dsc_comm *comm, dsc_queue *queue) DSC_MUST_CHECK;

/* Element-wise reduction of `t` over all ranks, in place, for F32, F64, I32, I64 and U8. BF16 and F16 are
 * added in float32 and rounded after each addition (on GPUs by "nccl": in NCCL's order and with its
 * rounding). Same shape and type on every rank. Collective. Asynchronous. */
DSC_API dsc_status dsc_comm_allreduce_begin(dsc_comm *comm, dsc_traffic traffic, dsc_reduction op,
                                            dsc_tensor *t, dsc_request **request) DSC_MUST_CHECK;
/* The same, with the result on `root` only; on other ranks t does not change. */
DSC_API dsc_status dsc_comm_reduce_begin(dsc_comm *comm, dsc_traffic traffic, dsc_reduction op, int root,
                                         dsc_tensor *t, dsc_request **request) DSC_MUST_CHECK;
/* Copies root's t to all ranks. Collective. Asynchronous. */
DSC_API dsc_status dsc_comm_broadcast_begin(dsc_comm *comm, dsc_traffic traffic, int root, dsc_tensor *t,
                                            dsc_request **request) DSC_MUST_CHECK;
/* all = the parts of all ranks, in rank order (count(all) = size * count(part)). `part` may be this rank's
 * own part of `all`. Collective. Asynchronous. */
DSC_API dsc_status dsc_comm_allgather_begin(dsc_comm *comm, dsc_traffic traffic, const dsc_tensor *part,
                                            dsc_tensor *all, dsc_request **request) DSC_MUST_CHECK;
/* part = this rank's part of the reduction of `all` over all ranks (count(all) = size * count(part)).
 * Collective. Asynchronous. */
DSC_API dsc_status dsc_comm_reduce_scatter_begin(dsc_comm *comm, dsc_traffic traffic, dsc_reduction op,
                                                 const dsc_tensor *all, dsc_tensor *part,
                                                 dsc_request **request) DSC_MUST_CHECK;
/* Point-to-point messages. Messages between two ranks with the same tag (0..32767) arrive in the order in
 * which they were begun. Asynchronous. On GPUs with "nccl" there are no tags: messages between two ranks
 * arrive in order, whatever their tags, both ranks must begin them at the same point among the
 * communicator's collectives, they leave with the next collective, wait or test, and a wrong length is not
 * noticed. */
DSC_API dsc_status dsc_comm_send_begin(dsc_comm *comm, dsc_traffic traffic, int to, int tag,
                                       const dsc_tensor *t, dsc_request **request) DSC_MUST_CHECK;
DSC_API dsc_status dsc_comm_recv_begin(dsc_comm *comm, int from, int tag, dsc_tensor *t,
                                       dsc_request **request) DSC_MUST_CHECK;
/* Waits for a request, frees it and sets *request to NULL; accepts NULL and *request == NULL. A wait that
 * times out or is ended by an alarm (see below) leaves *request in flight. */
DSC_API dsc_status dsc_comm_wait(dsc_request **request) DSC_MUST_CHECK;
/* *done = 1 and *request = NULL when the request is complete, otherwise *done = 0. Also lets MPI make
 * progress with other operations. */
DSC_API dsc_status dsc_comm_test(dsc_request **request, int *done) DSC_MUST_CHECK;
/* Collective; blocks. */
DSC_API dsc_status dsc_comm_barrier(dsc_comm *comm) DSC_MUST_CHECK;

/* Begin and wait in one call, for small tensors outside the step. */
DSC_API dsc_status dsc_comm_allreduce(dsc_comm *comm, dsc_traffic traffic, dsc_reduction op,
                                      dsc_tensor *t) DSC_MUST_CHECK;
DSC_API dsc_status dsc_comm_broadcast(dsc_comm *comm, dsc_traffic traffic, int root,
                                      dsc_tensor *t) DSC_MUST_CHECK;
/* Makes all ranks succeed or fail together: DSC_OK when all ranks have passed DSC_OK, otherwise a failure
 * on every rank, with its own error where it has one, and the message of the lowest failing rank on the
 * others. Collective; blocks. */
DSC_API dsc_status dsc_comm_agree(dsc_comm *comm, dsc_status own) DSC_MUST_CHECK;

/* ---- lost ranks ----
 * MPI does not report that a rank has ended: operations with it just never complete. With a time limit a wait
 * fails instead; with dsc_comm_options.survive the others can continue without the rank, if the launcher lets
 * them live (mpirun --enable-recovery of Open MPI). Programs that need none of this can skip this section. */

/* Limits every wait of this communicator, and of those split from it later, to so many seconds:
 * dsc_comm_wait, the calls that begin and wait, barrier, agree. 0 (the default): no limit. At the limit a
 * wait fails with DSC_E_COMM, or DSC_E_LOST with dsc_comm_options.survive, and names operation and peer.
 * The operation stays in flight, with its tensors: it can be waited for again or be abandoned. A wait also
 * fails with DSC_E_LOST, at once, when another rank has raised the alarm, and so does every wait after it.
 * Operations of NCCL have no limit, since the host does not wait for them. dsc_comm_split has the same
 * limit (at least 5 s), but when it reaches it, all communicators can only be destroyed. Not collective. */
DSC_API dsc_status dsc_comm_set_timeout(dsc_comm *comm, double seconds) DSC_MUST_CHECK;
/* *alarmed = 1 when another rank has called dsc_comm_survivors, or a wait of this rank has timed out.
 * Cheap, for loops that wait with dsc_comm_test. Always 0 without dsc_comm_options.survive. */
DSC_API dsc_status dsc_comm_is_alarmed(dsc_comm *comm, int *alarmed) DSC_MUST_CHECK;
/* Raises the alarm and makes a communicator of the ranks that answer within `patience` seconds, in their
 * old order, with the same options and byte counters. `patience` must be longer than a rank may be away
 * from waits with a time limit and from dsc_comm_is_alarmed. `comm` was created with
 * dsc_comm_options.survive, or by this function. Collective among the ranks that are alive; blocks for up
 * to a few times `patience`. DSC_E_COMM when this rank came too late and the others continue without it. A
 * rank that hears from no other is alone in the new communicator. Communicators that were split from
 * `comm` have to be split again from the new one. The old ones stay the caller's: begin nothing on them,
 * and free them with dsc_comm_abandon. Error messages continue to name the rank that the process had at
 * the start. */
DSC_API dsc_status dsc_comm_survivors(dsc_comm *comm, double patience, dsc_comm **out) DSC_MUST_CHECK;
/* Gives up a communicator whose ranks may be gone, without waiting for any of them. Receives in flight are
 * cancelled where possible. Everything else is left to MPI, which may still read the tensors of sends and
 * write those of collectives: their memory must never be freed. The library does not finalise MPI any
 * more when the process ends. Not collective. Accepts NULL and *comm == NULL. */
DSC_API void dsc_comm_abandon(dsc_comm **comm);

/* Bytes of one kind that this rank has sent so far, counted by one formula per operation (n ranks, b bytes):
 * all-reduce 2(n-1)/n b; reduce-scatter and all-gather (n-1)/n b, with b the bytes of all parts; broadcast
 * (n-1) b at the root; reduce b on all ranks but the root; send b. */
DSC_API uint64_t dsc_comm_bytes(const dsc_comm *comm, dsc_traffic traffic);
/* "gradients", "factors", ... */
DSC_API const char *dsc_traffic_name(dsc_traffic traffic);

/* ---- fusion buckets ---- Average a list of tensors over all ranks in few large messages, which leave
 * while later tensors are still being computed. The list gives the order in which tensors become ready,
 * the same on every rank. Tensors that are neighbours in memory are sent without being copied. */
typedef struct dsc_buckets dsc_buckets;

typedef struct dsc_bucket_options {
    size_t size;
    size_t bytes;   /* size of a bucket; default 4 MiB (a larger tensor is a bucket of its own) */
    dsc_dtype wire; /* type of the messages: DSC_BF16, DSC_F16, or DSC_F32 (the default): no conversion */
    dsc_traffic traffic; /* default DSC_TRAFFIC_GRADIENTS */
    /* 0 (the default): sums are divided by the number of ranks after the exchange. 1: every rank divides
     * before it, so that no sum overflows a half type. */
    int divide_first;
    /* For each tensor the only rank that gets its mean; on other ranks it is undefined afterwards. NULL (the
     * default): all ranks get all means. Read by dsc_buckets_create only. */
    const int *roots;
} dsc_bucket_options;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_bucket_options_init_sized(dsc_bucket_options *options, size_t size);
#define dsc_bucket_options_init(options) dsc_bucket_options_init_sized((options), sizeof *(options))
/* `tensors` are in the order in which they will become ready. The structs are copied; their memory stays the
 * caller's. Collective. */
DSC_API dsc_status dsc_buckets_create(dsc_comm *comm, dsc_queue *queue, const dsc_tensor *tensors,
                                      int64_t count, const dsc_bucket_options *options,
                                      dsc_buckets **out) DSC_MUST_CHECK;
/* Waits for buckets in flight. Accepts NULL and *buckets == NULL. */
DSC_API void dsc_buckets_destroy(dsc_buckets **buckets);
/* Announces that tensor `index` is final. Starts its bucket when it was the last one missing, and lets MPI
 * make progress. All ranks announce the same tensors. Asynchronous. */
DSC_API dsc_status dsc_buckets_ready(dsc_buckets *buckets, int64_t index) DSC_MUST_CHECK;
/* Waits for all buckets; every tensor then holds the mean over the ranks, and a new round may begin.
 * DSC_E_INVALID when a tensor was not announced. */
DSC_API dsc_status dsc_buckets_wait(dsc_buckets *buckets) DSC_MUST_CHECK;
/* The number of buckets. */
DSC_API int64_t dsc_buckets_count(const dsc_buckets *buckets);

/* ---- communicators of the caller's own ---- For programs whose ranks are connected by something else than
 * MPI. A function of the caller's that fails returns a status and sets the message with dsc_error_set; the
 * library puts the name of the function before it. */

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

/* One operation on host memory. `count` is the number of elements of the vector, in all-gather and
 * reduce-scatter that of one rank's part; it is at most dsc_comm_options.message_limit.
 *
 *   op               send          recv
 *   all-reduce       the vector    the same memory
 *   reduce           the vector    the result, at the root; may be the same memory
 *   broadcast        the vector    the same memory
 *   all-gather       own part      all parts; the own part may be in its place already
 *   reduce-scatter   all parts     own part of the result, in other memory
 *   send             the vector    not used
 *   recv             not used      the vector
 *   barrier          not used      not used */
typedef struct dsc_comm_message {
    size_t size;
    dsc_comm_op op;
    dsc_reduction reduction;
    dsc_dtype dtype; /* every type; BF16 and F16 are added in float32 and rounded */
    int peer;        /* root, destination or source */
    int tag;         /* 0 .. 32767; messages between two ranks with the same tag arrive in order */
    const void *send;
    void *recv;
    int64_t count;
} dsc_comm_message;

/* A communicator made of functions, all on host memory; GPU tensors are copied over the host. Everything that
 * works with "mpi" works with it, except dsc_comm_options.survive.
 *
 * The functions of one context are called by one thread at a time. With dsc_comm_options.thread_multiple,
 * which adpsgd needs, functions of different contexts (a communicator and one split from it) are called by
 * several threads at the same time, also by threads that the library has created. */
typedef struct dsc_comm_functions dsc_comm_functions;
struct dsc_comm_functions {
    size_t size;
    const char *name; /* for messages and dsc_comm_description; copied */
    void *context;
    int rank, ranks, local_rank, local_ranks; /* local: among the ranks of this node */
    /* Starts one operation and returns without waiting for other ranks; *handle is passed to test and wait.
     * The message struct is valid during the call only, its memory until the operation is complete. All ranks
     * start collective operations in the same order. */
    dsc_status (*start)(void *context, const dsc_comm_message *message, void **handle);
    /* *done = 1 when the operation is complete, otherwise 0; does not wait. Waits that are limited in time
     * use it. Once an operation is complete, or when its test or wait has failed, its handle is not used
     * again. */
    dsc_status (*test)(void *context, void *handle, int *done);
    dsc_status (*wait)(void *context, void *handle);
    /* Makes the communicator of all ranks that pass the same colour, ordered by key, then by rank, and fills
     * in everything of `child` but its size; name and functions are already those of the parent. Does nothing
     * to `child` for a negative colour. Collective. NULL: dsc_comm_split is refused. */
    dsc_status (*split)(void *context, int colour, int key, dsc_comm_functions *child);
    /* Frees a context; called once for every context, in which operations may still be in flight when the
     * communicator was abandoned. It must not wait for other ranks then. May be NULL. */
    void (*close)(void *context);
};

/* Sets the defaults: one rank, no functions. The macro passes the size of the caller's struct. */
DSC_API void dsc_comm_functions_init_sized(dsc_comm_functions *functions, size_t size);
#define dsc_comm_functions_init(functions) dsc_comm_functions_init_sized((functions), sizeof *(functions))
/* Makes a communicator of the caller's functions. The struct is copied; the context is the communicator's
 * once this has succeeded, until it calls `close`. options: message_limit and thread_multiple as for
 * dsc_comm_create; kind "nccl" moves GPU tensors by NCCL, others are ignored; NULL: the defaults.
 * Collective. */
DSC_API dsc_status dsc_comm_create_from_functions(const dsc_comm_functions *functions,
                                                  const dsc_comm_options *options,
                                                  dsc_comm **out) DSC_MUST_CHECK;

/* A communicator on NCCL alone, without MPI: the caller only provides the first contact of the ranks. */
typedef struct dsc_comm_contact {
    size_t size;
    void *context;
    int rank, ranks, local_rank, local_ranks; /* local: among the ranks of this node */
    /* all[ranks * bytes] = the `bytes` bytes at `own` of every rank, in rank order; the two do not overlap.
     * Collective; blocks. */
    dsc_status (*exchange)(void *context, const void *own, size_t bytes, void *all);
    /* Frees the context; called once, when this communicator is destroyed. May be NULL. */
    void (*close)(void *context);
} dsc_comm_contact;

/* Sets the defaults: one rank, no functions. The macro passes the size of the caller's struct. */
DSC_API void dsc_comm_contact_init_sized(dsc_comm_contact *contact, size_t size);
#define dsc_comm_contact_init(contact) dsc_comm_contact_init_sized((contact), sizeof *(contact))
/* GPU tensors go through NCCL, as with kind "nccl". Host tensors of this communicator go through `exchange`,
 * when they are begun, so they should be small: agreements, counts. Host tensors of communicators that are
 * split from it, and all messages from and to host memory, go through the GPU, and the host waits for them.
 * For that dsc_comm_use_queue must have been called with a queue of the GPU before the split; those
 * communicators must be destroyed before the queue. The struct is copied; the context is the communicator's
 * once this has succeeded. options: message_limit and thread_multiple as for dsc_comm_create; NULL: the
 * defaults. Collective. */
DSC_API dsc_status dsc_comm_create_from_contact(const dsc_comm_contact *contact,
                                                const dsc_comm_options *options,
                                                dsc_comm **out) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
