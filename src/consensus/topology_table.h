/* The interface of a kind of graph, and the struct that all kinds share. The functions of a kind are called
 * with steps in [0, period). */
#ifndef DSC_CONSENSUS_TOPOLOGY_TABLE_H
#define DSC_CONSENSUS_TOPOLOGY_TABLE_H

#include "descent/topology.h"

typedef struct dsc_topology_kind {
    int fixed_peers; /* 1: the graph fixes the number of peers, so that options.peers must be 1 */
    int needs_pairs; /* 1: needs an even number of ranks */
    /* Makes the checks of this kind and fills in the period and the fields that the kind needs. For one rank it is
     * called only for files. */
    dsc_status (*open)(dsc_topology *topology);
    /* Like dsc_topology_out and dsc_topology_in; `self` is never NULL. */
    int (*out)(const dsc_topology *topology, int rank, int64_t step, dsc_edge *edges, double *self);
    int (*in)(const dsc_topology *topology, int rank, int64_t step, dsc_edge *edges);
} dsc_topology_kind;

/* Edges by step and rank: those of cell c = step * ranks + rank are edges[starts[c] .. starts[c + 1]). */
typedef struct dsc_edge_list {
    dsc_edge *edges;
    int64_t *starts;
} dsc_edge_list;

struct dsc_topology {
    const dsc_topology_kind *kind;
    char *name;
    int ranks, peers;
    int64_t period;
    int most_peers, regular, matching;
    /* Circulant graphs: step s uses offsets[starts[s] .. starts[s + 1]), each in 1 .. ranks - 1, in the
     * order of sending; `falling` holds the same offsets in descending order. Bipartite graphs have one
     * offset for every two steps. */
    int64_t *starts;
    int *offsets, *falling;
    /* Graphs that are given as lists. */
    dsc_edge_list sent, got;
    double *kept;                /* per cell: the share that the rank keeps */
    const dsc_topology_def *def; /* registered graphs */
};

/* A graph as a list of edges, from a file or from a program's functions. */
typedef struct dsc_listed_edge {
    int64_t step, line; /* line: its line in the file */
    int from, to;
    double share; /* 0: not given */
} dsc_listed_edge;

typedef struct dsc_listed_graph {
    const char *name;
    int is_file; /* messages name lines, not steps */
    int ranks;
    int64_t steps, lines;
    dsc_listed_edge *edges;
    int64_t count, capacity;
} dsc_listed_graph;

/* The smallest share that may be sent or kept: smaller ones would be lost in the rounding of float32. */
extern const double dsc_least_share;

/* Checks a list whose edges all have valid senders, receivers and shares, and fills in the topology, of which
 * only name and ranks need to be set. Fills in shares of the list that are not given. */
dsc_status dsc_topology_from_list(dsc_topology *topology, dsc_listed_graph *list) DSC_MUST_CHECK;
/* `out` and `in` of kinds that are filled in from a list. */
int dsc_topology_list_out(const dsc_topology *topology, int rank, int64_t step, dsc_edge *edges,
                          double *self);
int dsc_topology_list_in(const dsc_topology *topology, int rank, int64_t step, dsc_edge *edges);

extern const dsc_topology_kind dsc_topology_exponential, dsc_topology_exponential_pm, dsc_topology_linear,
    dsc_topology_ring, dsc_topology_static_exponential, dsc_topology_complete,
    dsc_topology_bipartite_exponential, dsc_topology_bipartite_linear, dsc_topology_hypercube,
    dsc_topology_base2, dsc_topology_file, dsc_topology_registered;

/* Reads a graph file's text, `length` bytes without a terminating 0, into a topology of which only name and
 * ranks need to be set. */
dsc_status dsc_topology_file_parse(dsc_topology *topology, const char *text, size_t length) DSC_MUST_CHECK;

/* Continues `*hash` with all edges and shares of a period: graphs with equal hashes are the same, whatever their
 * names. */
dsc_status dsc_topology_hash(const dsc_topology *topology, uint64_t *hash) DSC_MUST_CHECK;

#endif
