/* Communicators: collectives, point to point, groups, fusion buckets.
 *
 * Everything that travels is a tensor. Each operation is begun and waited for: between the two its tensors
 * may not be touched. Operations on one communicator are begun in the same order on all its ranks.
 * "Collective" means: every rank of the communicator must call it. A communicator is used by one thread at a
 * time. */
#ifndef DSC_COMM_H
#define DSC_COMM_H

#include "descent/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_comm dsc_comm;
typedef struct dsc_request dsc_request;

/* What bytes are counted as. */
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
    const char *kind;    /* "auto" (the default: mpi under a launcher, else self), "self", "mpi", "nccl" (mpi
                            for the host, NCCL for tensors of GPUs) */
    int thread_multiple; /* 1: several threads will communicate at once */
    int64_t message_limit; /* elements in one message at most; 0: 2^31 - 1. Longer ones are split. */
    int survive; /* 1: dsc_comm_survivors will be able to go on without ranks that were lost. For "mpi" only:
                    "self" has nobody to lose, "nccl" is refused. Every two ranks are connected at once. */
} dsc_comm_options;

DSC_API void dsc_comm_options_init(dsc_comm_options *options);
/* The communicator of all ranks. Collective. "mpi" initialises MPI unless the program has, and then finalises
 * it when the last communicator is destroyed. */
DSC_API dsc_status dsc_comm_create(const dsc_comm_options *options, dsc_comm **out) DSC_MUST_CHECK;
/* Collective. Accepts NULL and *comm == NULL. Waits for operations in flight; where a wait has timed out or
 * an alarm was raised it is dsc_comm_abandon. */
DSC_API void dsc_comm_destroy(dsc_comm **comm);
/* Ends the whole job with this exit status, at once. For whoever owns main(): a rank that failed calls it
 * after printing its message, so that no other rank waits for it for ever. Does not return. comm may be NULL.
 */
DSC_API void dsc_comm_abort(dsc_comm *comm, int exit_status) __attribute__((noreturn));

DSC_API int dsc_comm_rank(const dsc_comm *comm);
DSC_API int dsc_comm_size(const dsc_comm *comm);
/* Rank and number of ranks among those on this node. */
DSC_API int dsc_comm_local_rank(const dsc_comm *comm);
DSC_API int dsc_comm_local_size(const dsc_comm *comm);
/* CPU threads this rank may use without taking another's: the CPUs it is bound to, shared among the ranks of
 * the node that are bound to the same. */
DSC_API int dsc_comm_threads(const dsc_comm *comm);
/* "self", "mpi", "nccl"; and one line about library and version. Lent. */
DSC_API const char *dsc_comm_name(const dsc_comm *comm);
DSC_API const char *dsc_comm_description(const dsc_comm *comm);

/* The communicator of the ranks that pass the same colour (>= 0), ordered by key, then rank; *out = NULL for
 * a negative colour. Collective. Bytes are counted in the communicator it was split from. */
DSC_API dsc_status dsc_comm_split(dsc_comm *comm, int colour, int key, dsc_comm **out) DSC_MUST_CHECK;

/* The queue in whose order tensors of a GPU are handed to this communicator and to those split from it later:
 * an operation begins when what is in the queue so far is done, and what is put into the queue after
 * dsc_comm_wait finds its result. Needed before the first operation on memory that the host cannot reach;
 * tensors of a host device need none. The queue must outlive the communicator's operations; NULL takes it
 * back. Collective.
 * "self" and "mpi" copy such tensors over page-locked memory of the host, and the host waits for the copies.
 * With "nccl" GPUs exchange them by themselves and the host waits for nothing: every rank has a GPU of its
 * own, operations of a communicator and of those split from it run in the order of their beginning, and
 * recordings that hold operations are destroyed before the communicator is. */
DSC_API dsc_status dsc_comm_use_queue(dsc_comm *comm, dsc_queue *queue) DSC_MUST_CHECK;

/* Element-wise reduction of `t` over all ranks, in place. F32 F64 I32 I64 U8; BF16 and F16 are added in
 * float32 and rounded after each addition (on GPUs by "nccl": in NCCL's order and with its rounding).
 * Collective; same shape and type on every rank. Asynchronous. */
DSC_API dsc_status dsc_comm_allreduce_begin(dsc_comm *comm, dsc_traffic traffic, dsc_reduction op,
                                            dsc_tensor *t, dsc_request **request) DSC_MUST_CHECK;
/* The same, result on `root` only; elsewhere t is left as it was. */
DSC_API dsc_status dsc_comm_reduce_begin(dsc_comm *comm, dsc_traffic traffic, dsc_reduction op, int root,
                                         dsc_tensor *t, dsc_request **request) DSC_MUST_CHECK;
/* root's t to everybody. Collective. Asynchronous. */
DSC_API dsc_status dsc_comm_broadcast_begin(dsc_comm *comm, dsc_traffic traffic, int root, dsc_tensor *t,
                                            dsc_request **request) DSC_MUST_CHECK;
/* all = every rank's part, in rank order (count(all) = size * count(part)). part may be the own place in all.
 * Collective. Asynchronous. */
DSC_API dsc_status dsc_comm_allgather_begin(dsc_comm *comm, dsc_traffic traffic, const dsc_tensor *part,
                                            dsc_tensor *all, dsc_request **request) DSC_MUST_CHECK;
/* part = the own piece of the sum of everybody's all (count(all) = size * count(part)). Collective.
 * Asynchronous. */
DSC_API dsc_status dsc_comm_reduce_scatter_begin(dsc_comm *comm, dsc_traffic traffic, dsc_reduction op,
                                                 const dsc_tensor *all, dsc_tensor *part,
                                                 dsc_request **request) DSC_MUST_CHECK;
/* Point to point; messages between two ranks with one tag arrive in the order they were begun. tag: 0..32767.
 * Asynchronous. On GPUs by "nccl" there are no tags: messages between two ranks arrive in the order they were
 * begun, whatever their tags, and both ranks begin them in the same place among the communicator's
 * collectives. They leave with the next collective, wait or test. A length that differs is not noticed. */
DSC_API dsc_status dsc_comm_send_begin(dsc_comm *comm, dsc_traffic traffic, int to, int tag,
                                       const dsc_tensor *t, dsc_request **request) DSC_MUST_CHECK;
DSC_API dsc_status dsc_comm_recv_begin(dsc_comm *comm, int from, int tag, dsc_tensor *t,
                                       dsc_request **request) DSC_MUST_CHECK;
/* Waits for a request and gives it back (*request = NULL; NULL is accepted). A wait that timed out or was
 * ended by an alarm (see below) leaves *request in flight. */
DSC_API dsc_status dsc_comm_wait(dsc_request **request) DSC_MUST_CHECK;
/* *done = 1 and *request = NULL when it is complete, else *done = 0. Also lets other transfers move on. */
DSC_API dsc_status dsc_comm_test(dsc_request **request, int *done) DSC_MUST_CHECK;
/* Collective; blocks. */
DSC_API dsc_status dsc_comm_barrier(dsc_comm *comm) DSC_MUST_CHECK;

/* Begin and wait in one call, for small things outside the step. */
DSC_API dsc_status dsc_comm_allreduce(dsc_comm *comm, dsc_traffic traffic, dsc_reduction op,
                                      dsc_tensor *t) DSC_MUST_CHECK;
DSC_API dsc_status dsc_comm_broadcast(dsc_comm *comm, dsc_traffic traffic, int root,
                                      dsc_tensor *t) DSC_MUST_CHECK;
/* A status everybody agrees on: DSC_OK when all ranks passed DSC_OK, else a failure on every rank: the own
 * error where there is one, elsewhere the message of the lowest failing rank. Collective; blocks. */
DSC_API dsc_status dsc_comm_agree(dsc_comm *comm, dsc_status own) DSC_MUST_CHECK;

/* ---- lost ranks ----
 * MPI does not tell when a rank has ended: operations with it just never complete. With a time limit a wait
 * for it ends in an error; with dsc_comm_options.survive the others can go on without it, where the launcher
 * lets them live (mpirun --enable-recovery of Open MPI). */

/* From now on every wait of this communicator, and of those split from it later, ends after so many seconds:
 * dsc_comm_wait, the calls that begin and wait, barrier, agree. 0 (the default): never. The error is
 * DSC_E_COMM, or DSC_E_LOST with dsc_comm_options.survive, and names operation and peer. The operation stays
 * in flight, with its tensors: it can be waited for again, or be abandoned. DSC_E_LOST comes also, at once,
 * when another rank has raised the alarm, and for every wait that follows. Tensors that GPUs exchange by
 * themselves ("nccl") are not watched: the host does not wait for them. dsc_comm_split has the same limit (5
 * at least), but when it fails for that, no communicator can do more than be destroyed. Not collective. */
DSC_API dsc_status dsc_comm_set_timeout(dsc_comm *comm, double seconds) DSC_MUST_CHECK;
/* *alarmed = 1 when another rank has called dsc_comm_survivors, or a wait of this one was given up. Cheap:
 * for loops that wait by dsc_comm_test. Always 0 without dsc_comm_options.survive. */
DSC_API dsc_status dsc_comm_is_alarmed(dsc_comm *comm, int *alarmed) DSC_MUST_CHECK;
/* Raises the alarm and makes a communicator of the ranks that answer it within `patience` seconds, in their
 * old order, with the same options and byte counters. patience must be longer than a rank may be away from
 * waits with a time limit and from dsc_comm_is_alarmed. Of the communicator that was created with
 * dsc_comm_options.survive, or of one from here. Collective among the ranks that are alive; blocks, up to a
 * few times `patience`. DSC_E_COMM when this rank came too late and the others go on without it. A rank that
 * hears nobody is alone in the new communicator. Split communicators are split again from the new one. The
 * old ones stay the caller's: nothing is to be begun on them, and dsc_comm_abandon gives them up. Error
 * messages go on naming the rank that the process had at the start. */
DSC_API dsc_status dsc_comm_survivors(dsc_comm *comm, double patience, dsc_comm **out) DSC_MUST_CHECK;
/* Gives up a communicator whose ranks may be gone, without waiting for anybody: receives in flight are
 * cancelled where possible, all else is left to MPI, which may still read the tensors of sends and write
 * those of collectives: their memory is never to be freed. From then on the library does not finalise MPI any
 * more: the program ends by exit. Not collective. Accepts NULL and *comm == NULL. */
DSC_API void dsc_comm_abandon(dsc_comm **comm);

/* Bytes this rank has sent so far, by kind, counted by one formula per operation (n ranks, b bytes):
 * all-reduce 2(n-1)/n b; reduce-scatter, all-gather (n-1)/n b of the whole; broadcast (n-1) b at the root;
 * reduce b at each non-root; send b. */
DSC_API uint64_t dsc_comm_bytes(const dsc_comm *comm, dsc_traffic traffic);
/* "gradients", "factors", ... */
DSC_API const char *dsc_traffic_name(dsc_traffic traffic);

/* ---- fusion buckets ----
 * A list of tensors averaged over all ranks in few large messages, started while later ones are still being
 * computed. Tensors are announced in the order in which they become ready, the same on every rank; neighbours
 * in memory travel without being copied. */
typedef struct dsc_buckets dsc_buckets;

typedef struct dsc_bucket_options {
    size_t size;
    size_t bytes;        /* size of a bucket, default 4 MiB (a larger tensor is a bucket of its own) */
    dsc_dtype wire;      /* DSC_F32 (the default: each as it is), DSC_BF16 or DSC_F16: what travels */
    dsc_traffic traffic; /* default DSC_TRAFFIC_GRADIENTS */
    int divide_first;    /* 0 (the default): sums travel and are divided by the number of ranks afterwards. 1:
                            every    rank's share is divided before, so that no sum overflows a half type. */
    const int *roots; /* NULL (the default): everybody gets every mean. Else of each tensor the one rank that
                         gets it; elsewhere it is undefined afterwards. Read by dsc_buckets_create only. */
} dsc_bucket_options;

DSC_API void dsc_bucket_options_init(dsc_bucket_options *options);
/* `tensors` in the order they will become ready. The structs are copied, their memory stays the caller's. */
DSC_API dsc_status dsc_buckets_create(dsc_comm *comm, dsc_queue *queue, const dsc_tensor *tensors,
                                      int64_t count, const dsc_bucket_options *options,
                                      dsc_buckets **out) DSC_MUST_CHECK;
DSC_API void dsc_buckets_destroy(dsc_buckets **buckets);
/* Tensor `index` is final: starts its bucket when it was the last one missing, and lets running transfers
 * move on. Collective in effect; asynchronous. */
DSC_API dsc_status dsc_buckets_ready(dsc_buckets *buckets, int64_t index) DSC_MUST_CHECK;
/* Waits for all buckets; every tensor then holds the mean over the ranks. DSC_E_INVALID when one was never
 * ready. Afterwards a new round may begin. */
DSC_API dsc_status dsc_buckets_wait(dsc_buckets *buckets) DSC_MUST_CHECK;
DSC_API int64_t dsc_buckets_count(const dsc_buckets *buckets);

#ifdef __cplusplus
}
#endif
#endif
