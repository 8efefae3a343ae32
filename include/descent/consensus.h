/* How ranks keep their parameters in agreement: gossip averaging of any buffers, and the calls that a training
 * step makes to one of several algorithms (all-reduce or gossip). The calls of a step:
 *
 *   before_forward   gossip adds the messages that have arrived and puts the values to compute with into the
 *                    parameters
 *   grad_ready       called during the backward pass for each parameter: all-reduce starts its buckets
 *   after_backward   afterwards the gradients are those that the optimiser must use
 *   update_begin     afterwards the parameters hold the numerators; the caller runs its optimiser on them
 *   update_end       sends and mixes the updated parameters
 *
 * This header depends on parameters and communicators only, not on models or optimisers.
 *
 * Gossip. A rank holds a numerator x (in the parameters) and a push-sum weight w, which starts as 1; its
 * values are z = x / w. It keeps a share of both and sends the rest to its peers (topology.h), so that the
 * sums over all ranks, including messages in flight, never change. Let d(g) be the optimiser's step for the
 * gradient g, and W_t the mixing matrix of step t, which acts on x and w alike:
 *
 *   allreduce   x <- x - d(mean g(x))
 *   sgp         x <- W_t (x - d(g(z)))      sent after the update, received before the next forward pass
 *   osgp        x <- W_t x - d(g(z))        sent before the forward pass, received before a later one
 *   dpsgd       as sgp, but W_t is a matching: partners exchange their values, and there is no weight
 *   adpsgd      a separate thread averages pairs, x <- (x + x_peer) / 2, at any time
 *
 * The optimiser updates x; weight decay and norms read z; momentum stays on its rank.
 *
 * Objects passed as `const T *` or `T *` must not be NULL unless a function says so; the destroy functions
 * accept NULL and a pointer to NULL. */
#ifndef DSC_CONSENSUS_H
#define DSC_CONSENSUS_H

#include "descent/comm.h"
#include "descent/topology.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- averaging ---- */

typedef struct dsc_average dsc_average;

typedef struct dsc_average_options {
    size_t size;
    /* The name or the file of a graph (topology.h), the same on all ranks. NULL (default): exponential; with
     * `pairwise` bipartite-exponential, or base-2 for an odd number of ranks. */
    const char *graph;
    int peers; /* per round; default 1 */
    /* 0 (default): push-sum. 1: push-pull, where ranks exchange in pairs and no weight is sent; the graph must be a
     * matching. */
    int pairwise;
    size_t bucket_bytes; /* size of a message; default 4 MiB */
    dsc_dtype wire; /* type of the messages: DSC_F32 (the default), DSC_BF16, DSC_F16; sums are float32 */
    dsc_traffic traffic; /* default DSC_TRAFFIC_PARAMETERS */
    /* Seconds to wait for a peer before the wait fails with DSC_E_COMM, naming the peer; 0 (default): for ever. */
    double timeout;
    /* NULL (default), or for every tensor a text that describes its shape and the order of its elements, such as
     * "[64,3,3,3] strides [27,1,9,3]". The texts must be the same on all ranks, because averaging tensors of equal
     * size but different order would give nonsense. Read only during dsc_average_create. */
    const char *const *layouts;
} dsc_average_options;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_average_options_init_sized(dsc_average_options *options, size_t size);
#define dsc_average_options_init(options) dsc_average_options_init_sized((options), sizeof *(options))
/* Creates an object that averages tensors[count] (F32) over the ranks of `comm`, round by round. Between rounds the
 * tensors hold the numerators. The tensor structs are copied; their memory stays the caller's. options may be NULL.
 * Messages use a communicator that is split from `comm` here, so `comm` stays free for everything else. For GPU
 * memory, rounds follow the order of the queue that `comm` has now (dsc_comm_use_queue), and of no other. Returns
 * DSC_E_INVALID if number, shapes or layouts of the tensors, the graph or the options differ between ranks; the
 * message names the first tensor that differs, with two ranks and what they have. Collective. */
DSC_API dsc_status dsc_average_create(dsc_comm *comm, dsc_queue *queue, const dsc_tensor *tensors,
                                      int64_t count, const dsc_average_options *options,
                                      dsc_average **out) DSC_MUST_CHECK;
/* Frees the object and sets *average to NULL. Call dsc_average_settle before. Otherwise messages in flight get 5
 * seconds to complete; after that their memory and the communicator are abandoned (dsc_comm_abandon). Collective. */
DSC_API void dsc_average_destroy(dsc_average **average);
/* Frees the object without waiting for other ranks, for garbage collectors and error paths. The communicator of the
 * messages is abandoned (dsc_comm_abandon); memory of messages in flight stays allocated where MPI may still use it,
 * and everything else is freed. Peers that wait for a message of this rank are left waiting. Not collective. */
DSC_API void dsc_average_abandon(dsc_average **average);
/* Begins a round: sends their shares of the tensors to the peers, with the values at this point of the queue, and
 * leaves this rank's own share in place. Asynchronous: the tensors may be changed before the round ends. Returns
 * DSC_E_INVALID on a GPU with several ranks if `queue` is not the communicator's; so does dsc_average_end. */
DSC_API dsc_status dsc_average_begin(dsc_average *average, dsc_queue *queue) DSC_MUST_CHECK;
/* Sets *done = 1 if all messages of the round have been received and sent, otherwise 0. Does not wait. */
DSC_API dsc_status dsc_average_test(dsc_average *average, int *done) DSC_MUST_CHECK;
/* Ends the round: waits for the messages and adds them to the tensors. Returns DSC_E_INVALID if no round has begun. */
DSC_API dsc_status dsc_average_end(dsc_average *average, dsc_queue *queue) DSC_MUST_CHECK;
/* Returns 1 between dsc_average_begin and dsc_average_end, otherwise 0. */
DSC_API int dsc_average_is_under_way(const dsc_average *average);
/* Completes all rounds, and brings every rank to the same number of rounds. If it fails because a rank did not answer
 * in time, it can be called again and continues; no round can begin until it has succeeded. Collective; blocks. */
DSC_API dsc_status dsc_average_settle(dsc_average *average, dsc_queue *queue) DSC_MUST_CHECK;

/* Returns the push-sum weight w: the values are tensors / w. It is 1 on regular graphs if no round is under way. */
DSC_API double dsc_average_weight(const dsc_average *average);
/* Returns the number of rounds begun. */
DSC_API int64_t dsc_average_rounds(const dsc_average *average);
/* Sets weight and rounds to the numbers of a checkpoint, to continue from it. No round may be under way. */
DSC_API dsc_status dsc_average_restore(dsc_average *average, double weight, int64_t rounds) DSC_MUST_CHECK;
/* Changes the number of peers from the next round on; it must be the same on every rank. No round may be under way.
 * After DSC_E_MEMORY no round can begin until another call has succeeded. */
DSC_API dsc_status dsc_average_set_peers(dsc_average *average, int peers) DSC_MUST_CHECK;
/* Returns the graph in use, which is owned by `average`. */
DSC_API const dsc_topology *dsc_average_topology(const dsc_average *average);

/* ---- consensus in a training step ---- */

typedef struct dsc_consensus dsc_consensus;

typedef enum dsc_consensus_kind {
    DSC_CONSENSUS_ALLREDUCE,
    DSC_CONSENSUS_SGP,
    DSC_CONSENSUS_OSGP,
    DSC_CONSENSUS_DPSGD,
    DSC_CONSENSUS_ADPSGD
} dsc_consensus_kind;

typedef struct dsc_consensus_options {
    size_t size;
    dsc_consensus_kind kind; /* default DSC_CONSENSUS_ALLREDUCE */
    size_t bucket_bytes;     /* size of a message; default 4 MiB */
    dsc_dtype wire;          /* type of the messages; default DSC_F32 */

    /* The rest is for gossip. allreduce refuses values other than the defaults, and its waits are limited by the
     * communicator (dsc_comm_set_timeout). */

    /* The name or the file of a graph (topology.h). NULL (default): exponential for sgp and osgp;
     * bipartite-exponential for dpsgd and adpsgd, but base-2 for dpsgd with an odd number of ranks. */
    const char *graph;
    int peers;          /* per step; default 1 */
    int64_t synch_freq; /* osgp: how many steps a message may be late; default 0 */
    /* The number of neighbouring ranks that average their gradients by all-reduce and gossip as one; default 1.
     * 0: all ranks of a node. */
    int group;
    int64_t average_every; /* steps between exact averages over all ranks; 0 (the default): never */
    /* SlowMo, applied at the exact averages: momentum (default 0) and learning rate (default 1). */
    double slow_momentum;
    double slow_rate;
    double peer_timeout; /* seconds to wait for a peer; 0 (the default): for ever */

    /* As in dsc_average_options, with a text for every parameter. Read only during dsc_consensus_create. */
    const char *const *layouts;
} dsc_consensus_options;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_consensus_options_init_sized(dsc_consensus_options *options, size_t size);
#define dsc_consensus_options_init(options) dsc_consensus_options_init_sized((options), sizeof *(options))
/* Converts a name, such as "allreduce", to its constant, here DSC_CONSENSUS_ALLREDUCE, and back. An unknown name is
 * DSC_E_INVALID, and the message lists the known ones. */
DSC_API dsc_status dsc_consensus_parse(const char *name, dsc_consensus_kind *out) DSC_MUST_CHECK;
DSC_API const char *dsc_consensus_name(dsc_consensus_kind kind);

/* Creates the consensus of params[count]. `params` is copied; names and tensors' memory stay the caller's. options may
 * be NULL. Gradients must become ready in order from the last parameter to the first. A gradient without memory (data
 * NULL) must be given by dsc_consensus_set_gradients before it is used. Returns DSC_E_INVALID if names, shapes, types
 * or layouts of the parameters differ between ranks: the message names the first that differs, with two ranks and what
 * they have. Collective. */
DSC_API dsc_status dsc_consensus_create(dsc_comm *comm, dsc_queue *queue, const dsc_param *params,
                                        int64_t count, const dsc_consensus_options *options,
                                        dsc_consensus **out) DSC_MUST_CHECK;
/* Frees the consensus and sets *consensus to NULL. Call dsc_consensus_settle before. Otherwise messages in flight get
 * 5 seconds to complete, after which their memory is left to MPI; adpsgd waits up to a minute plus the peer timeout
 * for the other ranks. Collective for adpsgd. */
DSC_API void dsc_consensus_destroy(dsc_consensus **consensus);
/* Frees the consensus without waiting for other ranks, for garbage collectors and error paths; see
 * dsc_average_abandon. adpsgd gives its thread a second to end. The gradients of an all-reduce that is under way must
 * not be freed. Not collective. */
DSC_API void dsc_consensus_abandon(dsc_consensus **consensus);
/* Broadcasts the parameters of rank 0 to all ranks, before the first step. Collective; blocks. */
DSC_API dsc_status dsc_consensus_start(dsc_consensus *consensus) DSC_MUST_CHECK;
/* Returns 1 if steps are collective: all ranks take part in every step and hold the same parameters (all-reduce).
 * Returns 0 with gossip, where a rank only ever waits for its peers. */
DSC_API int dsc_consensus_is_collective(const dsc_consensus *consensus);

/* The calls of a step, in this order. Asynchronous.
 *
 * Until the update, before_forward may be called again: before every further pass of a step that accumulates
 * gradients, or for an evaluation. The parameters then hold the same values (adpsgd: the newest). With several
 * passes, call grad_ready and after_backward in the last one only, when the gradients are sums over all passes.
 * A step that ends without an update (because gradients are not finite, for example) needs no further call if
 * another step follows; to settle instead, call update_begin and update_cancel, which bring the numerators back. */
DSC_API dsc_status dsc_consensus_before_forward(dsc_consensus *consensus, dsc_queue *queue) DSC_MUST_CHECK;
DSC_API dsc_status dsc_consensus_grad_ready(dsc_consensus *consensus, dsc_queue *queue,
                                            int64_t param) DSC_MUST_CHECK;
DSC_API dsc_status dsc_consensus_after_backward(dsc_consensus *consensus, dsc_queue *queue) DSC_MUST_CHECK;
/* Sets new addresses of the gradients of parameters first .. first + count - 1, for callers whose gradients move
 * from step to step; the addresses may differ between ranks. grads[i] NULL: the parameter has no gradient in this
 * step; it counts as zero where gradients are averaged, and nothing is written. Call it after the backward pass and
 * before dsc_consensus_after_backward, or before grad_ready of these parameters. grad_ready may then be left out:
 * after_backward announces the gradients that are missing. The memory must stay allocated until the work of
 * after_backward is done. From the first call with an address that differs from the one before, allreduce and groups
 * average in memory of their own. Not collective; asynchronous. */
DSC_API dsc_status dsc_consensus_set_gradients(dsc_consensus *consensus, int64_t first, int64_t count,
                                               void *const *grads) DSC_MUST_CHECK;
/* Between these two calls the caller runs its optimiser, which updates the parameters in place. *read becomes NULL,
 * or an array of one tensor per parameter with the values z that weight decay and norms must use (dsc_optim_step
 * takes it); it is owned by the consensus and valid until update_end. adpsgd holds its lock between the two calls, so
 * a caller whose optimiser fails must call update_cancel (or destroy the consensus) instead of update_end.
 *
 * An optimiser that cannot read one tensor and change another can run on z: if *read is not NULL, save the
 * parameters x, copy z into them, run the optimiser, and write x + (new z - z). This is the same update for every
 * optimiser that depends on the parameters through z only, up to the rounding of one addition. */
DSC_API dsc_status dsc_consensus_update_begin(dsc_consensus *consensus, dsc_queue *queue,
                                              const dsc_tensor **read) DSC_MUST_CHECK;
DSC_API dsc_status dsc_consensus_update_end(dsc_consensus *consensus, dsc_queue *queue) DSC_MUST_CHECK;
/* Ends an update that has begun, without sending anything: the step does not count, and adpsgd keeps the values from
 * before the update. Does nothing if no update has begun or `consensus` is NULL. Not collective. */
DSC_API void dsc_consensus_update_cancel(dsc_consensus *consensus);
/* Sets the learning rate of the next step, which slow momentum needs. */
DSC_API void dsc_consensus_set_rate(dsc_consensus *consensus, double lr);

/* Called between steps: completes all messages, so that the parameters are the numerators and nothing is lost if
 * training stops here; the next step needs no preparation. Settling does not change the bits of later results, except
 * with adpsgd, and with osgp and synch_freq > 0, where it only preserves the sums over all ranks. After a timeout sgp,
 * osgp and dpsgd can settle again. Collective; blocks. */
DSC_API dsc_status dsc_consensus_settle(dsc_consensus *consensus, dsc_queue *queue) DSC_MUST_CHECK;
/* The values that dsc_consensus_swap_in puts into the parameters: the mean over all ranks, or this rank's own
 * z = x / w. */
typedef enum dsc_values { DSC_VALUES_MEAN, DSC_VALUES_OWN } dsc_values;
/* Called after settling. swap_in puts the values to evaluate or save into the parameters; swap_out brings the
 * numerators back, bit for bit. No step can begin in between. swap_in blocks, and is collective for
 * DSC_VALUES_MEAN. */
DSC_API dsc_status dsc_consensus_swap_in(dsc_consensus *consensus, dsc_queue *queue,
                                         dsc_values values) DSC_MUST_CHECK;
DSC_API dsc_status dsc_consensus_swap_out(dsc_consensus *consensus, dsc_queue *queue) DSC_MUST_CHECK;
/* Called after settling. Writes the distance of the ranks' values from their mean, sqrt(mean over ranks
 * |z - mean|^2), and the norm of the mean. The distance is 0 for all-reduce. Collective; blocks. */
DSC_API dsc_status dsc_consensus_distance(dsc_consensus *consensus, dsc_queue *queue, double *distance,
                                          double *norm) DSC_MUST_CHECK;
/* Called after settling. Changes the number of peers from the next step on; it must be the same on every rank. */
DSC_API dsc_status dsc_consensus_set_peers(dsc_consensus *consensus, int peers) DSC_MUST_CHECK;
/* Returns the graph in use, even if the options named none; NULL for all-reduce. It is owned by the consensus. */
DSC_API const dsc_topology *dsc_consensus_topology(const dsc_consensus *consensus);
/* Called after settling. Writes the sum of all ranks' push-sum weights, which should be the number of ranks.
 * Collective; blocks. */
DSC_API dsc_status dsc_consensus_mass(dsc_consensus *consensus, double *mass) DSC_MUST_CHECK;

/* The state for a checkpoint, besides the parameters. Every rank has its own; read it after settling. These three
 * return the push-sum weight w (1 if the algorithm has none), the rounds of gossip begun so far (adpsgd: the exchanges
 * completed), and the updates done. */
DSC_API double dsc_consensus_weight(const dsc_consensus *consensus);
DSC_API int64_t dsc_consensus_rounds(const dsc_consensus *consensus);
DSC_API int64_t dsc_consensus_steps(const dsc_consensus *consensus);
/* Sets these three numbers, to continue from them and from the parameters as they are now. Not collective. */
DSC_API dsc_status dsc_consensus_restore(dsc_consensus *consensus, double weight, int64_t rounds,
                                         int64_t steps) DSC_MUST_CHECK;
/* The rest of the state: an array of named tensors ("slow.NAME" and "anchor.NAME" with slow momentum, otherwise none),
 * which the caller reads and overwrites in place. They belong to the consensus; grad.data is NULL. */
DSC_API int64_t dsc_consensus_state_count(const dsc_consensus *consensus);
DSC_API const dsc_param *dsc_consensus_state(const dsc_consensus *consensus);

/* For all-reduce, compares a hash of the parameters over all ranks, and returns DSC_E_NUMERIC, with hashes and ranks
 * in the message, if they differ. Collective; blocks. Does nothing for gossip. */
DSC_API dsc_status dsc_consensus_check(dsc_consensus *consensus, dsc_queue *queue) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
