/* Communicators: collectives, point-to-point messages, groups, fusion buckets.
 *
 * Operations send and receive tensors. An operation is begun, and later waited for; in between its tensors must
 * not be touched. All ranks of a communicator begin its operations in the same order. "Collective" means that
 * every rank of the communicator must call the function. Only one thread at a time may use a communicator.
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

/* The kinds of traffic; the bytes of each are counted separately (dsc_comm_bytes). */
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
    /* "auto" (default): "mpi" under a launcher, otherwise "self", one process alone. "nccl": NCCL for tensors in GPU
     * memory, MPI for host memory. "mpi:openmpi" and "mpi:mpich" are "mpi" with the module of that library; otherwise
     * the module is that of the MPI library that the process has loaded, or else that of the launcher. */
    const char *kind;
    int thread_multiple;   /* 1: several threads will communicate at the same time; default 0 */
    int64_t message_limit; /* most elements per message, longer ones are split; 0 (default): 2^31 - 1 */
    /* 1: dsc_comm_survivors can continue without lost ranks; default 0. For "mpi"; "self" has no other ranks, and
     * "nccl" refuses it. All pairs of ranks are then connected at creation. */
    int survive;
    /* NULL (default): all ranks of the job. Otherwise the address of an MPI_Comm whose ranks form the communicator; the
     * caller has initialised MPI. The MPI_Comm is duplicated and stays the caller's. For "auto", "mpi" and "nccl". */
    const void *mpi_comm;
} dsc_comm_options;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_comm_options_init_sized(dsc_comm_options *options, size_t size);
#define dsc_comm_options_init(options) dsc_comm_options_init_sized((options), sizeof *(options))
/* Returns DSC_OK if this process has what a communicator of this kind ("self", "mpi", "mpi:..." or "nccl") needs;
 * otherwise DSC_E_UNSUPPORTED, and the message names the module or library that is missing and where it was
 * searched for. Loads the modules, but does not initialise MPI. Not collective. */
DSC_API dsc_status dsc_comm_check_kind(const char *kind) DSC_MUST_CHECK;
/* Creates the communicator of all ranks, which the caller destroys with dsc_comm_destroy. options may be NULL: the
 * defaults. Collective. "mpi" initialises MPI unless the program has done so. If it was initialised here, it is
 * finalised when the process ends, provided that all communicators have been destroyed or the exit status is 0;
 * otherwise it is not finalised, so that the launcher notices and ends the other ranks.
 *
 * "auto" fails with DSC_E_COMM in a process that was started by a launcher other than MPI's (torchrun:
 * WORLD_SIZE > 1 and RANK are set). Connect the ranks of such a launcher with one of the two functions at the end
 * of this header, dsc_comm_create_from_functions and dsc_comm_create_from_contact. */
DSC_API dsc_status dsc_comm_create(const dsc_comm_options *options, dsc_comm **out) DSC_MUST_CHECK;
/* Waits for the operations in flight, frees the communicator and sets *comm to NULL. If a wait has timed out or an
 * alarm was raised, it calls dsc_comm_abandon instead. Collective. Accepts NULL and *comm == NULL. */
DSC_API void dsc_comm_destroy(dsc_comm **comm);
/* Ends the whole job at once with this exit status. A program calls it on a rank that has failed, after printing
 * the error message, so that no other rank waits for ever. Does not return. comm may be NULL. */
DSC_API void dsc_comm_abort(dsc_comm *comm, int exit_status) __attribute__((noreturn));

/* Returns the rank of this process in the communicator, or the number of ranks. */
DSC_API int dsc_comm_rank(const dsc_comm *comm);
DSC_API int dsc_comm_size(const dsc_comm *comm);
/* Returns the rank of this process among the ranks on its node, or the number of ranks on its node. */
DSC_API int dsc_comm_local_rank(const dsc_comm *comm);
DSC_API int dsc_comm_local_size(const dsc_comm *comm);
/* Returns the number of CPU threads that this rank should use: the CPUs that it is bound to, divided among the ranks
 * of the node that are bound to the same CPUs. */
DSC_API int dsc_comm_threads(const dsc_comm *comm);
/* dsc_comm_name returns "self", "mpi", "nccl" or "functions"; dsc_comm_description returns one line with the library
 * and its version. Both strings belong to the communicator. */
DSC_API const char *dsc_comm_name(const dsc_comm *comm);
DSC_API const char *dsc_comm_description(const dsc_comm *comm);

/* Creates one communicator for each colour (>= 0), of all ranks that pass this colour, ordered by key, then by rank.
 * A rank that passes a negative colour gets *out = NULL. Bytes sent are counted in `comm`. Collective. */
DSC_API dsc_status dsc_comm_split(dsc_comm *comm, int colour, int key, dsc_comm **out) DSC_MUST_CHECK;

/* Sets the queue whose order operations on GPU tensors follow, for this communicator and those split from
 * it later: an operation begins after everything that is in the queue so far, and work that is put into
 * the queue after dsc_comm_wait sees the result. Required before the first operation on GPU memory; host
 * tensors need no queue. The queue must outlive the operations; NULL: no queue. Collective.
 *
 * "self" and "mpi" copy GPU tensors through page-locked host memory, and the host waits for the copies. With
 * "nccl" the GPUs exchange them directly, and the host does not wait. Every rank then needs a GPU of its own;
 * the operations of a communicator and of those split from it run in the order in which they are begun; and
 * recordings (CUDA graphs) that contain operations must be destroyed before the communicator. */
DSC_API dsc_status dsc_comm_use_queue(dsc_comm *comm, dsc_queue *queue) DSC_MUST_CHECK;

/* Reduces `t` element by element over all ranks, in place. Types: F32, F64, I32, I64, U8, BF16 and F16; the last two
 * are added in float32 and rounded after each addition (on GPUs by "nccl": in NCCL's order and with its rounding).
 * Shape and type must be the same on every rank. As in all ..._begin functions, *request receives the request, which
 * the caller completes with dsc_comm_wait or dsc_comm_test. Collective. Asynchronous. */
DSC_API dsc_status dsc_comm_allreduce_begin(dsc_comm *comm, dsc_traffic traffic, dsc_reduction op,
                                            dsc_tensor *t, dsc_request **request) DSC_MUST_CHECK;
/* The same as dsc_comm_allreduce_begin, with the result on rank `root` only; on other ranks t does not change. */
DSC_API dsc_status dsc_comm_reduce_begin(dsc_comm *comm, dsc_traffic traffic, dsc_reduction op, int root,
                                         dsc_tensor *t, dsc_request **request) DSC_MUST_CHECK;
/* Copies t from rank `root` to all ranks. Collective. Asynchronous. */
DSC_API dsc_status dsc_comm_broadcast_begin(dsc_comm *comm, dsc_traffic traffic, int root, dsc_tensor *t,
                                            dsc_request **request) DSC_MUST_CHECK;
/* Writes the parts of all ranks to `all`, in rank order (count(all) = size * count(part)). `part` may be this rank's
 * own part of `all`. Collective. Asynchronous. */
DSC_API dsc_status dsc_comm_allgather_begin(dsc_comm *comm, dsc_traffic traffic, const dsc_tensor *part,
                                            dsc_tensor *all, dsc_request **request) DSC_MUST_CHECK;
/* Reduces `all` over all ranks and writes this rank's part of the result to `part` (count(all) =
 * size * count(part)). Collective. Asynchronous. */
DSC_API dsc_status dsc_comm_reduce_scatter_begin(dsc_comm *comm, dsc_traffic traffic, dsc_reduction op,
                                                 const dsc_tensor *all, dsc_tensor *part,
                                                 dsc_request **request) DSC_MUST_CHECK;
/* Begins to send `t` to rank `to`, or to receive it from rank `from`. Messages between two ranks with the same tag
 * (0..32767) arrive in the order in which they were begun. Asynchronous. On GPUs with "nccl" there are no tags:
 * messages between two ranks arrive in order, whatever their tags; both ranks must begin them at the same point in
 * the sequence of the communicator's collectives; they leave with the next collective, wait or test; and a wrong
 * length is not detected. */
DSC_API dsc_status dsc_comm_send_begin(dsc_comm *comm, dsc_traffic traffic, int to, int tag,
                                       const dsc_tensor *t, dsc_request **request) DSC_MUST_CHECK;
DSC_API dsc_status dsc_comm_recv_begin(dsc_comm *comm, int from, int tag, dsc_tensor *t,
                                       dsc_request **request) DSC_MUST_CHECK;
/* Waits for a request, frees it and sets *request to NULL. Accepts NULL and *request == NULL. A wait that times out
 * or is ended by an alarm (see below) leaves *request in flight. */
DSC_API dsc_status dsc_comm_wait(dsc_request **request) DSC_MUST_CHECK;
/* If the request is complete, frees it and sets *done = 1 and *request = NULL; otherwise sets *done = 0. Does not
 * wait. Also lets MPI make progress with other operations. Accepts NULL and *request == NULL, as complete. */
DSC_API dsc_status dsc_comm_test(dsc_request **request, int *done) DSC_MUST_CHECK;
/* Waits until all ranks have called it. Collective; blocks. */
DSC_API dsc_status dsc_comm_barrier(dsc_comm *comm) DSC_MUST_CHECK;

/* Begin an operation and wait for it in one call, for small tensors outside the training step. Collective; they
 * block. */
DSC_API dsc_status dsc_comm_allreduce(dsc_comm *comm, dsc_traffic traffic, dsc_reduction op,
                                      dsc_tensor *t) DSC_MUST_CHECK;
DSC_API dsc_status dsc_comm_broadcast(dsc_comm *comm, dsc_traffic traffic, int root,
                                      dsc_tensor *t) DSC_MUST_CHECK;
/* Makes all ranks succeed or fail together. `own` is this rank's status. Returns DSC_OK if all ranks passed DSC_OK;
 * otherwise it fails on every rank: a rank that failed keeps its own error, and the others get the message of the
 * lowest failing rank. Collective; blocks. */
DSC_API dsc_status dsc_comm_agree(dsc_comm *comm, dsc_status own) DSC_MUST_CHECK;

/* ---- lost ranks ----
 * MPI does not report that a rank has ended: operations with it simply never complete. With a time limit a wait
 * fails instead; with dsc_comm_options.survive the other ranks can continue without the lost one, if the launcher
 * does not end them (Open MPI: mpirun --enable-recovery). Programs that need none of this can skip this section. */

/* Limits every wait of this communicator, and of those split from it later, to `seconds`: dsc_comm_wait, the calls
 * that begin and wait, barrier, agree. 0 (default): no limit. At the limit a wait fails with DSC_E_COMM, or with
 * DSC_E_LOST if dsc_comm_options.survive is set, and the message names the operation and the peer. The operation
 * stays in flight, with its tensors: it can be waited for again or be abandoned. A wait also fails with DSC_E_LOST,
 * at once, if another rank has raised the alarm, and so does every wait after it. Operations of NCCL have no
 * limit, because the host does not wait for them. dsc_comm_split has the same limit (at least 5 s), but when it
 * is exceeded, all that can be done with the communicators is to destroy them. Not collective. */
DSC_API dsc_status dsc_comm_set_timeout(dsc_comm *comm, double seconds) DSC_MUST_CHECK;
/* Sets *alarmed = 1 if another rank has called dsc_comm_survivors, or a wait of this rank has timed out; otherwise 0.
 * Cheap enough for loops that wait with dsc_comm_test. Always 0 without dsc_comm_options.survive. */
DSC_API dsc_status dsc_comm_is_alarmed(dsc_comm *comm, int *alarmed) DSC_MUST_CHECK;
/* Raises the alarm and creates a communicator of the ranks that answer within `patience` seconds, in their old
 * order, with the same options and byte counters. `patience` must be longer than any rank may go without a wait
 * with a time limit or a call of dsc_comm_is_alarmed. `comm` must have been created with dsc_comm_options.survive,
 * or by this function. Collective among the ranks that are alive; blocks for up to a few times `patience`. Returns
 * DSC_E_COMM if this rank came too late and the others continue without it. A rank that hears from no other is alone
 * in the new communicator. Communicators that were split from `comm` must be split again from the new one. The old
 * ones stay the caller's: begin nothing on them, and free them with dsc_comm_abandon. Error messages continue to
 * name the rank that the process had at the start. */
DSC_API dsc_status dsc_comm_survivors(dsc_comm *comm, double patience, dsc_comm **out) DSC_MUST_CHECK;
/* Frees a communicator whose ranks may be gone, without waiting for any of them, and sets *comm to NULL. Receives in
 * flight are cancelled where possible. Everything else is left to MPI, which may still read the tensors of sends and
 * write those of collectives: their memory must never be freed. The library then no longer finalises MPI when the
 * process ends. Not collective. Accepts NULL and *comm == NULL. */
DSC_API void dsc_comm_abandon(dsc_comm **comm);

/* Returns the bytes of this kind that this rank has sent so far, counted by one formula per operation (n ranks, b
 * bytes): all-reduce 2(n-1)/n b; reduce-scatter and all-gather (n-1)/n b, where b are the bytes of all parts;
 * broadcast (n-1) b at the root; reduce b on all ranks but the root; send b. */
DSC_API uint64_t dsc_comm_bytes(const dsc_comm *comm, dsc_traffic traffic);
/* Returns the name of the kind, a static string: "gradients", "factors", ... */
DSC_API const char *dsc_traffic_name(dsc_traffic traffic);

/* ---- fusion buckets ---- They average a list of tensors over all ranks in a few large messages, which are sent
 * while later tensors are still being computed. The list is in the order in which the tensors become ready, the
 * same on every rank. Tensors that are adjacent in memory are sent without being copied. */
typedef struct dsc_buckets dsc_buckets;

typedef struct dsc_bucket_options {
    size_t size;
    size_t bytes;   /* size of a bucket; default 4 MiB (a larger tensor is a bucket of its own) */
    dsc_dtype wire; /* type of the messages: DSC_BF16, DSC_F16, or DSC_F32 (the default): no conversion */
    dsc_traffic traffic; /* default DSC_TRAFFIC_GRADIENTS */
    /* 0 (default): sums are divided by the number of ranks after the exchange. 1: every rank divides before it,
     * so that no sum overflows a half type. */
    int divide_first;
    /* For each tensor, the only rank that gets its mean; on the other ranks the tensor is undefined afterwards. NULL
     * (default): all ranks get all means. Read only by dsc_buckets_create. */
    const int *roots;
} dsc_bucket_options;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_bucket_options_init_sized(dsc_bucket_options *options, size_t size);
#define dsc_bucket_options_init(options) dsc_bucket_options_init_sized((options), sizeof *(options))
/* Creates the buckets for tensors[count], which are in the order in which they will become ready. The structs are
 * copied; their memory stays the caller's. options may be NULL: the defaults. Collective. */
DSC_API dsc_status dsc_buckets_create(dsc_comm *comm, dsc_queue *queue, const dsc_tensor *tensors,
                                      int64_t count, const dsc_bucket_options *options,
                                      dsc_buckets **out) DSC_MUST_CHECK;
/* Waits for buckets in flight, frees everything and sets *buckets to NULL. Accepts NULL and *buckets == NULL. */
DSC_API void dsc_buckets_destroy(dsc_buckets **buckets);
/* Announces that tensor `index` is final. If it was the last one missing in its bucket, the bucket is sent. Also lets
 * MPI make progress. All ranks must announce the same tensors. Asynchronous. */
DSC_API dsc_status dsc_buckets_ready(dsc_buckets *buckets, int64_t index) DSC_MUST_CHECK;
/* Waits for all buckets. Afterwards every tensor holds the mean over the ranks, and a new round may begin. Returns
 * DSC_E_INVALID if a tensor was not announced. */
DSC_API dsc_status dsc_buckets_wait(dsc_buckets *buckets) DSC_MUST_CHECK;
/* Returns the number of buckets. */
DSC_API int64_t dsc_buckets_count(const dsc_buckets *buckets);

/* ---- communicators of the caller's own ---- For programs whose ranks are connected by something other than
 * MPI. If one of the caller's functions fails, it returns a status and sets the message with dsc_error_set; the
 * library puts the name of the function in front of it. */

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

/* One operation on host memory. `count` is the number of elements of the vector, or, in all-gather and
 * reduce-scatter, of one rank's part; it is at most dsc_comm_options.message_limit.
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
    dsc_dtype dtype; /* any type; BF16 and F16 are added in float32 and rounded */
    int peer;        /* the rank of the root, the destination or the source */
    int tag;         /* 0 .. 32767; messages between two ranks with the same tag arrive in order */
    const void *send;
    void *recv;
    int64_t count;
} dsc_comm_message;

/* A communicator made of the caller's functions, which all work on host memory; GPU tensors are copied through the
 * host. Everything that works with "mpi" works with it, except dsc_comm_options.survive.
 *
 * The functions of one context are called by one thread at a time. With dsc_comm_options.thread_multiple, which
 * adpsgd needs, several threads, including threads that the library creates, may call the functions of different
 * contexts (a communicator and one split from it) at the same time. */
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
    /* Sets *done = 1 if the operation is complete, otherwise 0; does not wait. Waits with a time limit use it.
     * Once an operation is complete, or its test or wait has failed, its handle is not used again. */
    dsc_status (*test)(void *context, void *handle, int *done);
    /* Waits until the operation is complete. */
    dsc_status (*wait)(void *context, void *handle);
    /* Creates the communicator of all ranks that pass the same colour, ordered by key, then by rank, and fills in
     * everything in `child` except its size; name and functions are already those of the parent. For a negative
     * colour it leaves `child` alone. Collective. NULL: dsc_comm_split is refused. */
    dsc_status (*split)(void *context, int colour, int key, dsc_comm_functions *child);
    /* Frees a context; called once for every context. If the communicator was abandoned, operations may still be
     * in flight, and it must not wait for other ranks. May be NULL. */
    void (*close)(void *context);
};

/* Sets the defaults: one rank, no functions. The macro passes the size of the struct that the caller was compiled
 * with. */
DSC_API void dsc_comm_functions_init_sized(dsc_comm_functions *functions, size_t size);
#define dsc_comm_functions_init(functions) dsc_comm_functions_init_sized((functions), sizeof *(functions))
/* Creates a communicator from the caller's functions. The struct is copied. Once this has succeeded, the context
 * belongs to the communicator, until it calls `close`. options: message_limit and thread_multiple are those of
 * dsc_comm_create; kind "nccl" sends GPU tensors through NCCL, and other kinds are ignored; NULL: the defaults.
 * Collective. */
DSC_API dsc_status dsc_comm_create_from_functions(const dsc_comm_functions *functions,
                                                  const dsc_comm_options *options,
                                                  dsc_comm **out) DSC_MUST_CHECK;

/* A communicator that uses NCCL alone, without MPI: the caller only provides the first contact between the ranks. */
typedef struct dsc_comm_contact {
    size_t size;
    void *context;
    int rank, ranks, local_rank, local_ranks; /* local: among the ranks of this node */
    /* Writes the `bytes` bytes at `own` of every rank to all[ranks * bytes], in rank order; `own` and `all` do not
     * overlap. Collective; blocks. */
    dsc_status (*exchange)(void *context, const void *own, size_t bytes, void *all);
    /* Frees the context; called once, when this communicator is destroyed. May be NULL. */
    void (*close)(void *context);
} dsc_comm_contact;

/* Sets the defaults: one rank, no functions. The macro passes the size of the struct that the caller was compiled
 * with. */
DSC_API void dsc_comm_contact_init_sized(dsc_comm_contact *contact, size_t size);
#define dsc_comm_contact_init(contact) dsc_comm_contact_init_sized((contact), sizeof *(contact))
/* Creates a communicator from a first contact. GPU tensors go through NCCL, as with kind "nccl". Collectives on host
 * tensors of this communicator go through `exchange` as soon as they are begun, so they should be small: agreements,
 * counts. Host tensors of communicators that are split from it, and all point-to-point messages from and to host
 * memory, go through the GPU, and the host waits for them. For that, dsc_comm_use_queue must have been called with a
 * queue of the GPU before the split, and those communicators must be destroyed before the queue. The struct is copied;
 * once this has succeeded, the context belongs to the communicator. options: message_limit and thread_multiple are
 * those of dsc_comm_create; NULL: the defaults. Collective. */
DSC_API dsc_status dsc_comm_create_from_contact(const dsc_comm_contact *contact,
                                                const dsc_comm_options *options,
                                                dsc_comm **out) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
