/* Who sends to whom: the graphs that gossip runs on, as pure functions of (ranks, rank, step).
 *
 * In step t every rank keeps a share of what it has and sends the rest in shares to its peers: column r of
 * the matrix W_t holds rank r's shares, they sum to 1. A graph is a schedule of such steps that repeats after
 * dsc_topology_period() of them. Names (k: peers per step; offsets are added to the own rank, modulo n):
 *
 *   exponential            entry i: j (k+1)^i for j = 1..k; i = 0 .. floor(log_{k+1}(n-1))
 *   exponential-pm         +1, -1, +2, -2, +4, -4, ...          k of them a step, cyclic
 *   linear                 +1, -1, +3, -3, +5, -5, ...          k of them a step, cyclic
 *   ring                   k = 1: the next rank; k = 2: both neighbours
 *   static-exponential     all 2^i < n in every step
 *   complete               everybody
 *   bipartite-exponential  d = +1, -1, +3, -3, +5, -5, +9, -9 ...: even r pairs with r + d, odd r with r - d
 *   bipartite-linear       the same with d = +-1, +-3, +-5, ...
 *   hypercube              r xor 2^i, n a power of two
 *   base-2                 exact averaging for every n, at most one peer a step
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

/* One end of a message: the other rank, and the share of the sender's mass that travels. */
typedef struct dsc_edge {
    int rank;
    double share;
} dsc_edge;

typedef struct dsc_topology_options {
    size_t size;
    int peers; /* k per step, 1; at most ranks - 1 */
} dsc_topology_options;

DSC_API void dsc_topology_options_init(dsc_topology_options *options);
/* `name`: one of the above or a file. DSC_E_INVALID, with the reason, for what cannot work: an odd number of
 * ranks where matchings need an even one, k too large, a rank that sends to itself. DSC_E_FORMAT for a file
 * that is none, with its line. Not collective. */
DSC_API dsc_status dsc_topology_create(const char *name, int ranks, const dsc_topology_options *options,
                                       dsc_topology **out) DSC_MUST_CHECK;
DSC_API void dsc_topology_destroy(dsc_topology **topology);
/* The names above, NULL behind the last. */
DSC_API const char *const *dsc_topology_names(void);

DSC_API const char *dsc_topology_name(const dsc_topology *topology);
DSC_API int dsc_topology_ranks(const dsc_topology *topology);
DSC_API int64_t dsc_topology_period(const dsc_topology *topology);
/* The most messages that a rank sends, or gets, in a step. */
DSC_API int dsc_topology_most_peers(const dsc_topology *topology);
/* 1 when every step's matrix is doubly stochastic: the push-sum weight is 1 whenever nothing is in flight. */
DSC_API int dsc_topology_is_regular(const dsc_topology *topology);
/* 1 when in every step ranks exchange in pairs, with the same share both ways: W_t = W_t^T. */
DSC_API int dsc_topology_is_matching(const dsc_topology *topology);

/* What `rank` sends in a step, in the order of sending; `self` (may be NULL): the share that it keeps.
 * `edges` holds most_peers of them. Returns their number. And what it gets, by rising rank: share is the
 * sender's. */
DSC_API int dsc_topology_out(const dsc_topology *topology, int rank, int64_t step, dsc_edge *edges,
                             double *self);
DSC_API int dsc_topology_in(const dsc_topology *topology, int rank, int64_t step, dsc_edge *edges);

/* How fast one period averages: *exact = the first step after which every rank holds the average, 0 when
 * there is none within four periods; *rho = |second eigenvalue of a period's product|^(1/period), 0 where it
 * is exact. From the matrices, for up to a few hundred ranks. */
DSC_API dsc_status dsc_topology_rate(const dsc_topology *topology, int64_t *exact,
                                     double *rho) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
