/* Graphs in which ranks exchange in pairs: W_t = W_t^T in every step.
 *
 * base-2 averages exactly for every number of ranks n = 2^e q, q odd. There are 2^e groups of q consecutive ranks.
 * q is a sum of decreasing powers of two, and each group is cut into parts V_1 .. V_L of these sizes, where
 * |V_1| = 2^p. The rounds inside a group are
 *
 *   rounds 1 .. p   hypercube rounds inside every part (fewer in smaller parts), which make its members equal
 *   round p + l     each member of the parts after V_l pairs with a different member of V_l, with edge weight
 *                   |V_l| / (|V_l| + members after it): the mean of the parts after V_l is then the group's mean
 *   after that      hypercube rounds inside V_l, which give all its members the mean
 *
 * and at the end there are e hypercube rounds across the groups. */
#include "consensus/topology_table.h"

#include "base/error.h"
#include "base/memory.h"

#include <inttypes.h>

/* Writes the edge of an exchange with one partner and returns the number of edges; partner -1: the rank is idle. */
static int pair(int partner, double share, dsc_edge *edges, double *self) {
    if (partner < 0) {
        *self = 1;
        return 0;
    }
    edges[0] = (dsc_edge){partner, share};
    *self = 1 - share;
    return 1;
}

/* Returns floor(log2(n)), n > 0. */
static int log2_of(int64_t n) {
    int power = 0;
    while (n >>= 1)
        power++;
    return power;
}

static void becomes_matching(dsc_topology *t, int64_t period) {
    t->period = period;
    t->most_peers = 1;
}

/* ---- bipartite: pairs of an even and an odd rank ---- */

/* Even ranks use an offset in even steps and its negative in odd steps, odd ranks the reverse. Offsets are odd and the
 * number of ranks is even, so the partner is never the rank itself. */
static int bipartite_partner(const dsc_topology *t, int rank, int64_t step) {
    int offset = t->offsets[step / 2];
    if ((rank + step) % 2) /* an even rank in an odd step, or an odd rank in an even one */
        offset = t->ranks - offset;
    int room = t->ranks - rank;
    return offset < room ? rank + offset : offset - room;
}

static int bipartite_out(const dsc_topology *t, int rank, int64_t step, dsc_edge *edges, double *self) {
    return pair(bipartite_partner(t, rank, step), 0.5, edges, self);
}

static int bipartite_in(const dsc_topology *t, int rank, int64_t step, dsc_edge *edges) {
    double self;
    return bipartite_out(t, rank, step, edges, &self);
}

static dsc_status open_bipartite_exponential(dsc_topology *t) {
    int count = log2_of(t->ranks - 1) + 1;
    DSC_TRY(dsc_memory_alloc(count, sizeof *t->offsets, &t->offsets));
    for (int i = 0; i < count; i++)
        t->offsets[i] = i ? 1 + (1 << i) : 1;
    becomes_matching(t, 2 * (int64_t)count);
    return DSC_OK;
}

static dsc_status open_bipartite_linear(dsc_topology *t) {
    int count = t->ranks / 2;
    DSC_TRY(dsc_memory_alloc(count, sizeof *t->offsets, &t->offsets));
    for (int i = 0; i < count; i++)
        t->offsets[i] = 1 + 2 * i;
    becomes_matching(t, 2 * (int64_t)count);
    return DSC_OK;
}

/* ---- hypercube ---- */

static dsc_status open_hypercube(dsc_topology *t) {
    if (t->ranks & (t->ranks - 1))
        return DSC_FAIL(DSC_E_INVALID,
                        "graph 'hypercube' needs a power of two of ranks, not %d: take %d or %" PRId64
                        ", or base-2, which is as exact for any number",
                        t->ranks, 1 << log2_of(t->ranks), (int64_t)2 << log2_of(t->ranks));
    becomes_matching(t, log2_of(t->ranks));
    return DSC_OK;
}

static int hypercube_out(const dsc_topology *t, int rank, int64_t step, dsc_edge *edges, double *self) {
    (void)t;
    return pair(rank ^ (1 << step), 0.5, edges, self);
}

static int hypercube_in(const dsc_topology *t, int rank, int64_t step, dsc_edge *edges) {
    double self;
    return hypercube_out(t, rank, step, edges, &self);
}

/* ---- base-2 ---- */

typedef struct exchange {
    int partner; /* -1: idle */
    double share;
} exchange;

/* Returns the exchange of `member` in a group of q > 1 ranks in round `round`; all numbers count from 0. */
static exchange exchange_in_group(int q, int member, int round) {
    const exchange idle = {-1, 0};
    int first_rounds = log2_of(q);
    int part = 0, begin = 0,
        rest = q; /* the current part, its first member, and the number of members from there on */
    for (;;) {
        int size = 1 << log2_of(rest), after = rest - size;
        int pairs_at = first_rounds + part; /* the round in which this part pairs with those after it */
        double share = (double)size / rest;
        if (member < begin + size) {
            int rounds = log2_of(size), inside = member - begin;
            if (round < rounds)
                return (exchange){begin + (inside ^ (1 << round)), 0.5};
            if (after > 0 && round == pairs_at && inside < after)
                return (exchange){begin + size + inside, share};
            if (after > 0 && round > pairs_at && round - pairs_at - 1 < rounds)
                return (exchange){begin + (inside ^ (1 << (round - pairs_at - 1))), 0.5};
            return idle;
        }
        if (round == pairs_at)
            return (exchange){begin + (member - begin - size), share};
        begin += size;
        rest = after;
        part++;
    }
}

/* Returns how often n can be halved. */
static int halvings(int n) {
    int count = 0;
    for (; n % 2 == 0; n /= 2)
        count++;
    return count;
}

static int rounds_in_group(int q) {
    return q > 1 ? 2 * log2_of(q) + 1 : 0;
}

static dsc_status open_base2(dsc_topology *t) {
    int e = halvings(t->ranks);
    becomes_matching(t, rounds_in_group(t->ranks >> e) + e);
    return DSC_OK;
}

static int base2_out(const dsc_topology *t, int rank, int64_t step, dsc_edge *edges, double *self) {
    int q = t->ranks >> halvings(t->ranks), group = rank / q, member = rank % q;
    int round = (int)step, inside = rounds_in_group(q);
    if (round >= inside)
        return pair((group ^ (1 << (round - inside))) * q + member, 0.5, edges, self);
    exchange m = exchange_in_group(q, member, round);
    return pair(m.partner < 0 ? -1 : group * q + m.partner, m.share, edges, self);
}

static int base2_in(const dsc_topology *t, int rank, int64_t step, dsc_edge *edges) {
    double self;
    return base2_out(t, rank, step, edges, &self);
}

const dsc_topology_kind dsc_topology_bipartite_exponential = {
    .fixed_peers = 1,
    .needs_pairs = 1,
    .open = open_bipartite_exponential,
    .out = bipartite_out,
    .in = bipartite_in,
};
const dsc_topology_kind dsc_topology_bipartite_linear = {
    .fixed_peers = 1,
    .needs_pairs = 1,
    .open = open_bipartite_linear,
    .out = bipartite_out,
    .in = bipartite_in,
};
const dsc_topology_kind dsc_topology_hypercube = {
    .fixed_peers = 1,
    .open = open_hypercube,
    .out = hypercube_out,
    .in = hypercube_in,
};
const dsc_topology_kind dsc_topology_base2 = {
    .fixed_peers = 1,
    .open = open_base2,
    .out = base2_out,
    .in = base2_in,
};
