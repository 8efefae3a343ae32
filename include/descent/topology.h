/* The graphs of gossip, which say who sends to whom, as pure functions of (ranks, rank, step).
 *
 * In step t every rank keeps a share of what it has and sends the rest in shares to its peers: column r of
 * the matrix W_t holds the shares of rank r, which sum to 1. A graph is a schedule of such steps that
 * repeats after dsc_topology_period() of them. The names and the peers of rank r of n (k peers per step;
 * offsets are added to r, modulo n):
 *
 *   exponential            step i of the period: offsets j (k+1)^i for j = 1..k; i = 0 .. floor(log_{k+1}(n-1))
 *   exponential-pm         offsets +1, -1, +2, -2, +4, -4, ...  k of them per step, cyclic
 *   linear                 offsets +1, -1, +3, -3, +5, -5, ...  k of them per step, cyclic
 *   ring                   k = 1: the next rank; k = 2: both neighbours
 *   static-exponential     offsets 2^i < n, all of them in every step
 *   complete               all other ranks
 *   bipartite-exponential  d = +1, -1, +3, -3, +5, -5, +9, -9 ...: even r pairs with r + d, odd r with r - d
 *   bipartite-linear       the same with d = +-1, +-3, +-5, ...
 *   hypercube              r xor 2^i, n a power of two
 *   base-2                 exact averaging for every n, at most one peer per step
 *
 * or a file (a name with a '/' or ending in ".graph"), see docs/gossip.md. */
#ifndef DSC_TOPOLOGY_H
#define DSC_TOPOLOGY_H

#include "descent/status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_topology dsc_topology;

/* One end of a message: the other rank, and the share of the sender's values and weight that is sent. */
typedef struct dsc_edge {
    int rank;
    double share;
} dsc_edge;

typedef struct dsc_topology_options {
    size_t size;
    int peers; /* k, the peers per step; default 1, at most ranks - 1 */
} dsc_topology_options;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_topology_options_init_sized(dsc_topology_options *options, size_t size);
#define dsc_topology_options_init(options) dsc_topology_options_init_sized((options), sizeof *(options))
/* Creates the graph `name`, one of the above, one that was registered, or a file, for this number of ranks. The caller
 * destroys it with dsc_topology_destroy. options may be NULL: the defaults. Returns DSC_E_INVALID, with the reason, for
 * a graph that cannot work: an odd number of ranks where all ranks pair up, k too large, a rank that sends to itself.
 * Returns DSC_E_FORMAT, with the line, for a file that is not a graph file. Not collective. */
DSC_API dsc_status dsc_topology_create(const char *name, int ranks, const dsc_topology_options *options,
                                       dsc_topology **out) DSC_MUST_CHECK;
/* Destroys a graph and sets *topology to NULL. Accepts NULL and *topology == NULL. */
DSC_API void dsc_topology_destroy(dsc_topology **topology);
/* Returns the names above and those that were registered, terminated by NULL. The list belongs to the library; graphs
 * that are registered later appear in the same list. */
DSC_API const char *const *dsc_topology_names(void);

/* The definition of a graph that dsc_topology_create, and so the option `graph` of the consensus, finds by its name. */
typedef struct dsc_topology_def {
    size_t size;
    /* The name, of letters, digits, '-', '_' and '.'; copied. */
    const char *name;
    /* Passed to both functions. It stays the caller's and must live as long as the process. */
    void *context;
    /* Writes the number of steps after which the graph repeats, for these numbers of ranks (2 or more) and of peers
     * per step. To refuse them, it sets a message with dsc_error_set and returns a status other than DSC_OK. */
    dsc_status (*period)(void *context, int ranks, int peers, int64_t *period);
    /* Writes what `rank` sends in step 0 <= step < period: to edges[] the receivers and their shares, in the order of
     * sending, and to *count their number, at most ranks - 1. Each share must be at least 1e-6, and so must the share
     * that the sender keeps. A share of 0, which is the value before the call, stands for 1 / (1 + *count). Both
     * functions must write the same on every rank. */
    dsc_status (*out)(void *context, int ranks, int peers, int64_t step, int rank, dsc_edge *edges,
                      int *count);
} dsc_topology_def;
/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_topology_def_init_sized(dsc_topology_def *def, size_t size);
#define dsc_topology_def_init(def) dsc_topology_def_init_sized((def), sizeof *(def))
/* Registers a graph for the rest of the process; a name that is in use is refused (DSC_E_INVALID).
 * dsc_topology_create calls the functions for all ranks of a whole period and checks, as for files, that the shares
 * leave something to the sender and that every rank can reach every other. Thread-safe. Every rank must register the
 * graph itself. */
DSC_API dsc_status dsc_topology_register(const dsc_topology_def *def) DSC_MUST_CHECK;

/* Returns the name, which belongs to the graph. */
DSC_API const char *dsc_topology_name(const dsc_topology *topology);
/* Returns the number of ranks that the graph was created for. */
DSC_API int dsc_topology_ranks(const dsc_topology *topology);
/* Returns the number of steps after which the graph repeats. */
DSC_API int64_t dsc_topology_period(const dsc_topology *topology);
/* Returns the largest number of messages that a rank sends or receives in a step. */
DSC_API int dsc_topology_most_peers(const dsc_topology *topology);
/* Returns 1 if the matrix of every step is doubly stochastic, so that push-sum weights are 1 when nothing is in
 * flight; otherwise 0. */
DSC_API int dsc_topology_is_regular(const dsc_topology *topology);
/* Returns 1 if in every step ranks exchange in pairs, with the same share in both directions (W_t = W_t^T);
 * otherwise 0. */
DSC_API int dsc_topology_is_matching(const dsc_topology *topology);

/* dsc_topology_out writes the messages that `rank` sends in a step to `edges`, in the order of sending, and the share
 * that it keeps to *self (which may be NULL). dsc_topology_in writes the messages that it receives, in increasing order
 * of the sending ranks, with the senders' shares. `edges` must have space for dsc_topology_most_peers of them. Both
 * return the number of messages. */
DSC_API int dsc_topology_out(const dsc_topology *topology, int rank, int64_t step, dsc_edge *edges,
                             double *self);
DSC_API int dsc_topology_in(const dsc_topology *topology, int rank, int64_t step, dsc_edge *edges);

/* Computes how fast a graph averages. *exact becomes the number of steps after which every rank holds the exact
 * average, or 0 if that does not happen within four periods. *rho becomes the contraction per step, |second eigenvalue
 * of one period's product|^(1/period), or 0 if the graph is exact. Computed from the matrices, for up to 1024 ranks;
 * DSC_E_UNSUPPORTED for more. */
DSC_API dsc_status dsc_topology_rate(const dsc_topology *topology, int64_t *exact,
                                     double *rho) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
