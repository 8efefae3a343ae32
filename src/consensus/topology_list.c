/* Graphs that are given as lists of edges: by a file, or by functions that a program registered.
 *
 * Such a graph need not be regular, because push-sum sends weights, too. But every rank must keep some of its mass,
 * or its weight would become 0, and over all steps there must be a path from every rank to every other, or the ranks
 * would never agree on an average. */
#include "consensus/topology_table.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/versioned.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const double dsc_least_share = 1e-6;

static int64_t cell_of(const dsc_listed_edge *e, int ranks, int receiver) {
    return e->step * ranks + (receiver ? e->to : e->from);
}

/* Sorts edges by their cell (the step, and the rank of the sender or of the receiver) into `order`. The sort is
 * stable: edges of one cell stay in the order of `before` (NULL: that of the list). starts[c] is the position in
 * `order` where cell c begins. */
static void sort_edges(const dsc_listed_graph *p, int receiver, const int64_t *before, int64_t *starts,
                       int64_t *order) {
    int64_t cells = p->steps * p->ranks;
    for (int64_t i = 0; i < p->count; i++)
        starts[cell_of(&p->edges[i], p->ranks, receiver) + 1]++;
    for (int64_t c = 0; c < cells; c++)
        starts[c + 1] += starts[c];
    for (int64_t i = 0; i < p->count; i++) {
        int64_t edge = before ? before[i] : i;
        order[starts[cell_of(&p->edges[edge], p->ranks, receiver)]++] = edge;
    }
    for (int64_t c = cells; c > 0; c--)
        starts[c] = starts[c - 1];
    starts[0] = 0;
}

/* Refuses repeated edges. `order` is by receiver, then by sender, so that equal edges are neighbours. */
static dsc_status check_repeats(const dsc_listed_graph *p, const int64_t *order) {
    for (int64_t i = 1; i < p->count; i++) {
        const dsc_listed_edge *a = &p->edges[order[i - 1]], *b = &p->edges[order[i]];
        if (a->step == b->step && a->to == b->to && a->from == b->from)
            return p->is_file
                       ? DSC_FAIL(DSC_E_INVALID,
                                  "%s:%" PRId64 ": '%d %d' again, as in line %" PRId64
                                  " of this step: keep one of them",
                                  p->name, b->line, b->from, b->to, a->line)
                       : DSC_FAIL(DSC_E_INVALID,
                                  "graph '%s', step %" PRId64 ": rank %d sends to rank %d twice: once is "
                                  "enough",
                                  p->name, b->step, b->from, b->to);
    }
    return DSC_OK;
}

/* Fills in default shares, and the share that the sender of a cell keeps. */
static dsc_status share_out(dsc_listed_graph *p, const int64_t *order, int64_t count, double *kept) {
    double sum = 0, uniform = 1.0 / (double)(1 + count);
    int64_t given = 0;
    for (int64_t i = 0; i < count; i++) {
        dsc_listed_edge *e = &p->edges[order[i]];
        given += e->share > 0;
        e->share = e->share > 0 ? e->share : uniform;
        sum += e->share;
    }
    *kept = given ? 1 - sum : uniform;
    if (*kept >= dsc_least_share)
        return DSC_OK;
    const dsc_listed_edge *last = &p->edges[order[count - 1]];
    char where[256];
    if (p->is_file)
        snprintf(where, sizeof where, "%s:%" PRId64 ": with this line", p->name, last->line);
    else
        snprintf(where, sizeof where, "graph '%s':", p->name);
    return DSC_FAIL(DSC_E_INVALID,
                    "%s rank %d sends %.9g of its mass in step %" PRId64
                    ": all shares together must leave it at least %g; make them smaller",
                    where, last->from, sum, last->step, dsc_least_share);
}

static dsc_status fill_list(const dsc_listed_graph *p, int receiver, const int64_t *order,
                            dsc_edge_list *list) {
    DSC_TRY(dsc_memory_alloc(p->count, sizeof *list->edges, &list->edges));
    for (int64_t i = 0; i < p->count; i++) {
        const dsc_listed_edge *e = &p->edges[order[i]];
        list->edges[i] = (dsc_edge){receiver ? e->from : e->to, e->share};
    }
    return DSC_OK;
}

/* Fills in edges and shares of the topology. `order` has room for 2 p->count elements. */
static dsc_status build(dsc_topology *t, dsc_listed_graph *p, int64_t *order) {
    int64_t cells = p->steps * p->ranks, *by_receiver = order + p->count;
    DSC_TRY(dsc_memory_alloc(cells + 1, sizeof *t->sent.starts, &t->sent.starts));
    DSC_TRY(dsc_memory_alloc(cells + 1, sizeof *t->got.starts, &t->got.starts));
    DSC_TRY(dsc_memory_alloc(cells, sizeof *t->kept, &t->kept));
    sort_edges(p, 0, NULL, t->sent.starts, order);
    sort_edges(p, 1, order, t->got.starts, by_receiver);
    DSC_TRY(check_repeats(p, by_receiver));
    for (int64_t c = 0; c < cells; c++) {
        int64_t begin = t->sent.starts[c];
        DSC_TRY(share_out(p, order + begin, t->sent.starts[c + 1] - begin, &t->kept[c]));
    }
    DSC_TRY(fill_list(p, 0, order, &t->sent));
    return fill_list(p, 1, by_receiver, &t->got);
}

/* Finds the largest number of messages of a rank in a step, and whether the graph is regular and a matching. */
static void find_properties(dsc_topology *t) {
    const double rounding = 1e-12;
    int64_t cells = t->period * t->ranks;
    t->most_peers = 0;
    t->regular = t->matching = 1;
    for (int64_t c = 0; c < cells; c++) {
        int64_t sent = t->sent.starts[c + 1] - t->sent.starts[c],
                got = t->got.starts[c + 1] - t->got.starts[c];
        int most = (int)(sent > got ? sent : got);
        t->most_peers = most > t->most_peers ? most : t->most_peers;
        double row = t->kept[c];
        for (int64_t i = t->got.starts[c]; i < t->got.starts[c + 1]; i++)
            row += t->got.edges[i].share;
        if (fabs(row - 1) > rounding)
            t->regular = 0;
        const dsc_edge *out = &t->sent.edges[t->sent.starts[c]], *in = &t->got.edges[t->got.starts[c]];
        if (sent > 1 || sent != got || (sent && (out->rank != in->rank || out->share != in->share)))
            t->matching = 0;
    }
}

/* Follows the edges of all steps from rank 0. Returns a rank that cannot be reached, or -1 if there is none.
 * `reached` and `todo` have one element per rank. */
static int find_unreached(const dsc_topology *t, const dsc_edge_list *list, int *reached, int *todo) {
    int count = 1;
    memset(reached, 0, (size_t)t->ranks * sizeof *reached);
    reached[0] = 1;
    todo[0] = 0;
    while (count > 0) {
        int rank = todo[--count];
        for (int64_t c = rank; c < t->period * t->ranks; c += t->ranks)
            for (int64_t i = list->starts[c]; i < list->starts[c + 1]; i++) {
                int other = list->edges[i].rank;
                if (!reached[other])
                    todo[count++] = other;
                reached[other] = 1;
            }
    }
    for (int r = 0; r < t->ranks; r++)
        if (!reached[r])
            return r;
    return -1;
}

static dsc_status check_connected(const dsc_topology *t, const dsc_listed_graph *list) {
    int *memory;
    DSC_TRY(dsc_memory_alloc(2 * (int64_t)t->ranks, sizeof *memory, &memory));
    int unheard = find_unreached(t, &t->got, memory, memory + t->ranks);
    int unreached = find_unreached(t, &t->sent, memory, memory + t->ranks);
    dsc_memory_free(&memory);
    if (unreached < 0 && unheard < 0)
        return DSC_OK;
    int from = unreached < 0 ? unheard : 0, to = unreached < 0 ? 0 : unreached;
    char where[256];
    if (list->is_file)
        snprintf(where, sizeof where, "%s:%" PRId64 ": in all of the file's steps", list->name, list->lines);
    else
        snprintf(where, sizeof where, "graph '%s' on %d ranks: in all of its steps", list->name, list->ranks);
    return DSC_FAIL(
        DSC_E_INVALID,
        "%s there is no path from rank %d to rank %d: add edges until everybody's share can reach "
        "everybody",
        where, from, to);
}

dsc_status dsc_topology_from_list(dsc_topology *topology, dsc_listed_graph *list) {
    int64_t *order;
    DSC_TRY(dsc_memory_alloc(2 * list->count, sizeof *order, &order));
    dsc_status status;
    DSC_TRY_GOTO(status, build(topology, list, order), out);
    topology->period = list->steps;
    find_properties(topology);
    DSC_TRY_GOTO(status, check_connected(topology, list), out);
out:
    dsc_memory_free(&order);
    return status;
}

static int copy_cell(const dsc_edge_list *list, int64_t cell, dsc_edge *edges) {
    int64_t count = list->starts[cell + 1] - list->starts[cell];
    if (count)
        memcpy(edges, list->edges + list->starts[cell], (size_t)count * sizeof *edges);
    return (int)count;
}

int dsc_topology_list_out(const dsc_topology *t, int rank, int64_t step, dsc_edge *edges, double *self) {
    int64_t cell = step * t->ranks + rank;
    *self = t->kept[cell];
    return copy_cell(&t->sent, cell, edges);
}

int dsc_topology_list_in(const dsc_topology *t, int rank, int64_t step, dsc_edge *edges) {
    return copy_cell(&t->got, step * t->ranks + rank, edges);
}

/* ---- registered graphs ---- */

enum { MAX_CELLS = 1 << 26 }; /* steps times ranks: each of three tables then takes half a gigabyte */

void dsc_topology_def_init_sized(dsc_topology_def *def, size_t size) {
    const dsc_topology_def defaults = {0};
    dsc_versioned_init(def, size, &defaults, sizeof defaults);
}

/* Adds the edges on which `rank` sends in a step to the list; `edges` has room for one edge per rank. */
static dsc_status add_edges(const dsc_topology *t, int64_t step, int rank, dsc_edge *edges,
                            dsc_listed_graph *list) {
    int count = 0;
    memset(edges, 0, (size_t)t->ranks * sizeof *edges);
    unsigned errors = dsc_error_count();
    dsc_status status = t->def->out(t->def->context, t->ranks, t->peers, step, rank, edges, &count);
    if (status != DSC_OK)
        return dsc_error_callback(status, errors, "out", "graph '%s', step %" PRId64 ", rank %d", t->name,
                                  step, rank);
    if (count < 0 || count > t->ranks - 1)
        return DSC_FAIL(DSC_E_INVALID,
                        "graph '%s', step %" PRId64 ": rank %d sends to %d ranks: must be 0 to %d", t->name,
                        step, rank, count, t->ranks - 1);
    DSC_TRY(dsc_memory_grow(&list->edges, &list->capacity, list->count + count, sizeof *list->edges));
    for (int i = 0; i < count; i++) {
        int to = edges[i].rank;
        double share = edges[i].share;
        if (to < 0 || to >= t->ranks || to == rank)
            return DSC_FAIL(DSC_E_INVALID,
                            "graph '%s', step %" PRId64
                            ": rank %d sends to rank %d: there are 0 to %d, and what a "
                            "rank keeps is not listed",
                            t->name, step, rank, to, t->ranks - 1);
        if (share != 0 && !(share >= dsc_least_share && share < 1))
            return DSC_FAIL(DSC_E_INVALID,
                            "graph '%s', step %" PRId64
                            ": rank %d sends a share of %g: must be at least %g and "
                            "less than 1, or 0 for an equal one",
                            t->name, step, rank, share, dsc_least_share);
        list->edges[list->count++] = (dsc_listed_edge){.step = step, .from = rank, .to = to, .share = share};
    }
    return DSC_OK;
}

static dsc_status open_registered(dsc_topology *t) {
    int64_t period = 0;
    unsigned errors = dsc_error_count();
    dsc_status status = t->def->period(t->def->context, t->ranks, t->peers, &period);
    if (status != DSC_OK)
        return dsc_error_callback(status, errors, "period", "graph '%s' on %d ranks with %d peers a step",
                                  t->name, t->ranks, t->peers);
    if (period < 1 || period > MAX_CELLS / t->ranks)
        return DSC_FAIL(DSC_E_INVALID,
                        "graph '%s' on %d ranks repeats after %" PRId64 " steps: must be 1 to %d", t->name,
                        t->ranks, period, MAX_CELLS / t->ranks);
    dsc_listed_graph list = {.name = t->name, .ranks = t->ranks, .steps = period};
    dsc_edge *edges;
    DSC_TRY(dsc_memory_alloc(t->ranks, sizeof *edges, &edges));
    for (int64_t step = 0; step < period; step++)
        for (int rank = 0; rank < t->ranks; rank++)
            DSC_TRY_GOTO(status, add_edges(t, step, rank, edges, &list), out);
    DSC_TRY_GOTO(status, dsc_topology_from_list(t, &list), out);
out:
    dsc_memory_free(&edges);
    dsc_memory_free(&list.edges);
    return status;
}

const dsc_topology_kind dsc_topology_registered = {
    .open = open_registered,
    .out = dsc_topology_list_out,
    .in = dsc_topology_list_in,
};
