/* How ranks agree: averaging of any buffers by gossip, and the moments of a training step at which ranks
 * agree, with one implementation per way.
 *
 *   before_forward   gossip takes in what arrived and presents the parameters to compute at
 *   grad_ready       called during backward, per parameter: all-reduce starts its buckets
 *   after_backward   gradients are what the optimiser shall see
 *   update_begin     the numerators are in the parameters: the caller runs its optimiser on them
 *   update_end       sends and mixes what the optimiser left
 *
 * It knows parameters and communicators only, no model and no optimiser.
 *
 * Gossip. A rank holds a numerator x (the parameters) and a push-sum weight w, which starts as 1; what it
 * stands for is z = x / w. Of both it keeps a share and sends the rest to its peers (topology.h), so that the
 * sums over all ranks, with what is in flight, never change. With n ranks, optimiser step d(g) and W_t acting
 * on x and w alike:
 *
 *   allreduce   x <- x - d(mean g(x))
 *   sgp         x <- W_t (x - d(g(z)))      sent after the update, taken in before the next forward
 *   osgp        x <- W_t x - d(g(z))        sent before the forward, taken in before a later one
 *   dpsgd       as sgp, W_t a matching: partners exchange, no weight
 *   adpsgd      a thread of its own averages pairs, x <- (x + x_peer) / 2, at any moment
 *
 * The optimiser acts on x, weight decay and norms read z, momentum stays with its rank. */
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
    const char *graph; /* a name or file of topology.h, the same graph on all ranks; NULL: exponential */
    int peers;         /* per round, 1 */
    int pairwise;      /* 0: push-sum. 1: push-pull: pairs exchange and no weight travels; the graph must be a
                          matching (NULL: bipartite-exponential, base-2 for an odd number of ranks) */
    size_t bucket_bytes; /* of a message, 4 MiB */
    dsc_dtype wire;      /* DSC_F32, DSC_BF16 or DSC_F16: what travels; sums are in float32 */
    dsc_traffic traffic; /* DSC_TRAFFIC_PARAMETERS */
    double
        timeout; /* seconds to wait for a peer before it counts as lost (DSC_E_COMM names it); 0: for ever */
} dsc_average_options;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_average_options_init_sized(dsc_average_options *options, size_t size);
#define dsc_average_options_init(options) dsc_average_options_init_sized((options), sizeof *(options))
/* `tensors` (F32) hold the values, and the numerators between rounds; the structs are copied, memory stays
 * the caller's. Messages travel in a communicator of its own, which is split off `comm` here: `comm` is free
 * for everything else. Rounds of memory that the host cannot reach keep the order of the queue that `comm`
 * has by dsc_comm_use_queue now, and of no other. DSC_E_INVALID when sizes, graph or options differ between
 * ranks. Collective. */
DSC_API dsc_status dsc_average_create(dsc_comm *comm, dsc_queue *queue, const dsc_tensor *tensors,
                                      int64_t count, const dsc_average_options *options,
                                      dsc_average **out) DSC_MUST_CHECK;
/* Settle first. A round or a settling that is still under way is given 5 seconds to come to its end; then its
 * memory, and the communicator, are left to MPI (dsc_comm_abandon). Collective. */
DSC_API void dsc_average_destroy(dsc_average **average);
/* A round: sends the peers' shares of the tensors as they are in the queue's order, and keeps the own one in
 * place. Asynchronous: the tensors may be changed before it ends. On a GPU with several ranks, DSC_E_INVALID
 * for another queue than the communicator's, here and where a round ends. */
DSC_API dsc_status dsc_average_begin(dsc_average *average, dsc_queue *queue) DSC_MUST_CHECK;
/* *done = 1 when all messages of the round have arrived and left. */
DSC_API dsc_status dsc_average_test(dsc_average *average, int *done) DSC_MUST_CHECK;
/* Waits for the messages and adds them to the tensors. DSC_E_INVALID when no round has begun. */
DSC_API dsc_status dsc_average_end(dsc_average *average, dsc_queue *queue) DSC_MUST_CHECK;
/* 1 between begin and end. */
DSC_API int dsc_average_is_under_way(const dsc_average *average);
/* Ends what is under way, on every rank after the same number of rounds. When it fails because somebody did
 * not come in time, it can be called again and goes on from there; nothing else can begin until it has
 * succeeded. Collective; blocks. */
DSC_API dsc_status dsc_average_settle(dsc_average *average, dsc_queue *queue) DSC_MUST_CHECK;

/* The push-sum weight: the values are tensors / weight. 1 on regular graphs when no round is under way. */
DSC_API double dsc_average_weight(const dsc_average *average);
/* Rounds begun. */
DSC_API int64_t dsc_average_rounds(const dsc_average *average);
/* Goes on from there; for checkpoints. No round may be under way. */
DSC_API dsc_status dsc_average_restore(dsc_average *average, double weight, int64_t rounds) DSC_MUST_CHECK;
/* Another number of peers from the next round on. No round may be under way; the same on every rank. After
 * DSC_E_MEMORY it can be called again, and no round can begin until it has succeeded. */
DSC_API dsc_status dsc_average_set_peers(dsc_average *average, int peers) DSC_MUST_CHECK;
/* Lent. */
DSC_API const dsc_topology *dsc_average_topology(const dsc_average *average);

/* ---- the ways of agreeing ---- */

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
    dsc_consensus_kind kind;
    size_t bucket_bytes; /* 4 MiB */
    dsc_dtype wire;      /* DSC_F32 */
    /* Gossip. allreduce refuses all but the defaults, and waits as its communicator does
     * (dsc_comm_set_timeout). */
    const char *graph;  /* NULL: exponential (sgp, osgp), bipartite-exponential (dpsgd, adpsgd; base-2 for
                           dpsgd with an odd number of ranks) */
    int peers;          /* per step, 1 */
    int64_t synch_freq; /* osgp: steps that a message may stay away, 0 */
    int group; /* ranks that average their gradients among themselves, by all-reduce, and gossip as one;
                  neighbours in rank order, 1; 0: those of a node */
    int64_t average_every; /* steps between exact averages over all ranks, 0: never */
    double slow_momentum;  /* at these, and only with these: momentum of the average's way (SlowMo), 0 */
    double slow_rate;      /* and its learning rate, 1 */
    double peer_timeout;   /* seconds to wait for a peer; 0: for ever */
} dsc_consensus_options;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_consensus_options_init_sized(dsc_consensus_options *options, size_t size);
#define dsc_consensus_options_init(options) dsc_consensus_options_init_sized((options), sizeof *(options))
/* "allreduce" -> kind; DSC_E_INVALID lists the known names. */
DSC_API dsc_status dsc_consensus_parse(const char *name, dsc_consensus_kind *out) DSC_MUST_CHECK;
DSC_API const char *dsc_consensus_name(dsc_consensus_kind kind);

/* params: copied; memory stays the caller's; gradients become ready in falling order. Collective. */
DSC_API dsc_status dsc_consensus_create(dsc_comm *comm, dsc_queue *queue, const dsc_param *params,
                                        int64_t count, const dsc_consensus_options *options,
                                        dsc_consensus **out) DSC_MUST_CHECK;
/* Settle first. Rounds of gossip that are still under way are given 5 seconds to come to their end, then
 * their memory is left to MPI; adpsgd waits up to a minute and the peer timeout for the others to come.
 * Collective for adpsgd. */
DSC_API void dsc_consensus_destroy(dsc_consensus **consensus);
/* Gives everybody rank 0's values of the parameters. Collective; blocks. */
DSC_API dsc_status dsc_consensus_start(dsc_consensus *consensus) DSC_MUST_CHECK;
/* 1 when a step is collective: everybody takes part in every step, and all hold the same parameters. Gossip
 * ranks only ever wait for their peers. */
DSC_API int dsc_consensus_is_collective(const dsc_consensus *consensus);

/* The moments of a step, in this order. Asynchronous. */
DSC_API dsc_status dsc_consensus_before_forward(dsc_consensus *consensus, dsc_queue *queue) DSC_MUST_CHECK;
DSC_API dsc_status dsc_consensus_grad_ready(dsc_consensus *consensus, dsc_queue *queue,
                                            int64_t param) DSC_MUST_CHECK;
DSC_API dsc_status dsc_consensus_after_backward(dsc_consensus *consensus, dsc_queue *queue) DSC_MUST_CHECK;
/* Between these two calls the caller runs its optimiser, which updates the parameters in place. *read is
 * NULL, or one tensor per parameter with the values z that weight decay and norms must use (dsc_optim_step
 * takes it); it is owned by the consensus and valid until update_end. adpsgd holds its lock between the two,
 * so a caller whose optimiser fails must call update_cancel (or destroy the consensus) instead of update_end.
 */
DSC_API dsc_status dsc_consensus_update_begin(dsc_consensus *consensus, dsc_queue *queue,
                                              const dsc_tensor **read) DSC_MUST_CHECK;
DSC_API dsc_status dsc_consensus_update_end(dsc_consensus *consensus, dsc_queue *queue) DSC_MUST_CHECK;
/* Ends an update that has begun without sending anything: the step does not count, and adpsgd keeps the
 * values from before the update. Does nothing when no update has begun or `consensus` is NULL. Not
 * collective. */
DSC_API void dsc_consensus_update_cancel(dsc_consensus *consensus);
/* The learning rate of the step that comes; slow momentum needs it. */
DSC_API void dsc_consensus_set_rate(dsc_consensus *consensus, double lr);

/* Between steps. Ends what is in flight, so that the parameters are the numerators and nothing is lost by
 * stopping here; the next step goes on by itself. Bits are the same as without it, for adpsgd and osgp with
 * synch_freq > 0 the sums are. sgp, osgp and dpsgd can settle again after a timeout. Collective; blocks. */
DSC_API dsc_status dsc_consensus_settle(dsc_consensus *consensus, dsc_queue *queue) DSC_MUST_CHECK;
/* After settling: swaps values to evaluate or save into the parameters, either the mean over all ranks or
 * this rank's own z = x / w. swap_out brings the numerators back, bit for bit. No step can begin in between.
 * swap_in blocks, and is collective for DSC_VALUES_MEAN. */
typedef enum dsc_values { DSC_VALUES_MEAN, DSC_VALUES_OWN } dsc_values;
DSC_API dsc_status dsc_consensus_swap_in(dsc_consensus *consensus, dsc_queue *queue,
                                         dsc_values values) DSC_MUST_CHECK;
DSC_API dsc_status dsc_consensus_swap_out(dsc_consensus *consensus, dsc_queue *queue) DSC_MUST_CHECK;
/* After settling: how far the ranks' values are from their mean, sqrt(mean over ranks |z - mean|^2), and the
 * mean's own norm. 0 for collective ways. Collective; blocks. */
DSC_API dsc_status dsc_consensus_distance(dsc_consensus *consensus, dsc_queue *queue, double *distance,
                                          double *norm) DSC_MUST_CHECK;
/* After settling: another number of peers from the next step on; the same on every rank. */
DSC_API dsc_status dsc_consensus_set_peers(dsc_consensus *consensus, int peers) DSC_MUST_CHECK;
/* Sum over all ranks of the push-sum weights, after settling: the number of ranks. Collective; blocks. */
DSC_API dsc_status dsc_consensus_mass(dsc_consensus *consensus, double *mass) DSC_MUST_CHECK;

/* The state for a checkpoint, beside the parameters; every rank has its own, and it is read after
 * settling. First the push-sum weight w (1 where the algorithm has none), the rounds of gossip begun so
 * far (adpsgd: the exchanges completed), and the updates done. */
DSC_API double dsc_consensus_weight(const dsc_consensus *consensus);
DSC_API int64_t dsc_consensus_rounds(const dsc_consensus *consensus);
DSC_API int64_t dsc_consensus_steps(const dsc_consensus *consensus);
/* Continues from these numbers and from the parameters as they are now. Not collective. */
DSC_API dsc_status dsc_consensus_restore(dsc_consensus *consensus, double weight, int64_t rounds,
                                         int64_t steps) DSC_MUST_CHECK;
/* Then named tensors ("slow.NAME", "anchor.NAME" with slow momentum, otherwise none), which are read and
 * overwritten in place. They stay owned by the consensus; grad.data is NULL. */
DSC_API int64_t dsc_consensus_state_count(const dsc_consensus *consensus);
DSC_API const dsc_param *dsc_consensus_state(const dsc_consensus *consensus);

/* Compares a hash of the parameters over all ranks. DSC_E_NUMERIC, with both hashes and ranks, when they
 * differ although this way of agreeing keeps them equal. Collective where it does; blocks. */
DSC_API dsc_status dsc_consensus_check(dsc_consensus *consensus, dsc_queue *queue) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
