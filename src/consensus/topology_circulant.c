/* Circulant graphs, which look the same from every rank: in a step all ranks send to the same offsets.
 *
 * Each kind has a list of offsets. With p peers per step, step t uses entries t p .. t p + p - 1 of the list,
 * cyclically. Offsets that are 0 modulo the number of ranks, and repeats within a step, are dropped; with m
 * offsets left, every rank keeps a share of 1 / (1 + m) and sends as much to each peer. Every rank receives as many
 * messages as it sends, so the rows of the matrix W_t of step t sum to 1, like its columns. */
#include "consensus/topology_table.h"

#include "base/error.h"
#include "base/memory.h"

typedef struct list {
    int *offsets; /* 0 .. ranks - 1 */
    int64_t count, capacity;
} list;

static dsc_status append(list *l, int ranks, int64_t offset) {
    DSC_TRY(dsc_memory_grow(&l->offsets, &l->capacity, l->count + 1, sizeof *l->offsets));
    int64_t inside = offset % ranks;
    l->offsets[l->count++] = (int)(inside < 0 ? inside + ranks : inside);
    return DSC_OK;
}

static dsc_status append_both(list *l, int ranks, int64_t offset) {
    DSC_TRY(append(l, ranks, offset));
    return append(l, ranks, -offset);
}

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Fills in the offsets of all steps. seen[o] is the last step that used offset o, counted from 1. */
static void fill_steps(dsc_topology *t, const list *l, int64_t per_step, int64_t *seen) {
    int64_t used = 0;
    for (int64_t step = 0; step < t->period; step++) {
        t->starts[step] = used;
        for (int64_t i = 0; i < per_step; i++) {
            int offset = l->offsets[(step * per_step + i) % l->count];
            if (offset == 0 || seen[offset] == step + 1)
                continue;
            seen[offset] = step + 1;
            t->offsets[used++] = offset;
        }
        int peers = (int)(used - t->starts[step]);
        t->most_peers = peers > t->most_peers ? peers : t->most_peers;
        if (peers > 1 || (peers == 1 && 2 * (int64_t)t->offsets[used - 1] != t->ranks))
            t->matching = 0;
        int64_t place = t->starts[step];
        for (int offset = t->ranks - 1; offset > 0 && place < used; offset--)
            if (seen[offset] == step + 1)
                t->falling[place++] = offset;
    }
    t->starts[t->period] = used;
}

static dsc_status make_steps(dsc_topology *t, const list *l, int64_t per_step) {
    t->period = l->count / common_divisor(l->count, per_step);
    DSC_TRY(dsc_memory_alloc(t->period + 1, sizeof *t->starts, &t->starts));
    DSC_TRY(dsc_memory_alloc(t->period * per_step, sizeof *t->offsets, &t->offsets));
    DSC_TRY(dsc_memory_alloc(t->period * per_step, sizeof *t->falling, &t->falling));
    int64_t *seen;
    DSC_TRY(dsc_memory_alloc(t->ranks, sizeof *seen, &seen));
    fill_steps(t, l, per_step, seen);
    dsc_memory_free(&seen);
    return DSC_OK;
}

typedef dsc_status (*list_function)(list *l, int ranks, int peers);

/* Fills in the topology from the list that `write` makes. all = 1: every step uses the whole list. */
static dsc_status open_list(dsc_topology *t, list_function write, int all) {
    list l = {0};
    dsc_status status = write(&l, t->ranks, t->peers);
    if (status == DSC_OK)
        status = make_steps(t, &l, all ? l.count : t->peers);
    dsc_memory_free(&l.offsets);
    return status;
}

static int circulant_out(const dsc_topology *t, int rank, int64_t step, dsc_edge *edges, double *self) {
    const int *offsets = t->offsets + t->starts[step];
    int count = (int)(t->starts[step + 1] - t->starts[step]);
    double share = 1.0 / (1 + count);
    for (int i = 0; i < count; i++) {
        int room = t->ranks - rank;
        edges[i] = (dsc_edge){offsets[i] < room ? rank + offsets[i] : offsets[i] - room, share};
    }
    *self = share;
    return count;
}

/* Lists the senders in ascending order: those of lower rank have offsets up to this rank, the others larger ones. */
static int circulant_in(const dsc_topology *t, int rank, int64_t step, dsc_edge *edges) {
    const int *falling = t->falling + t->starts[step];
    int count = (int)(t->starts[step + 1] - t->starts[step]), above = 0, used = 0;
    double share = 1.0 / (1 + count);
    while (above < count && falling[above] > rank)
        above++;
    for (int i = above; i < count; i++)
        edges[used++] = (dsc_edge){rank - falling[i], share};
    for (int i = 0; i < above; i++)
        edges[used++] = (dsc_edge){rank - falling[i] + t->ranks, share};
    return used;
}

/* ---- the lists ---- */

static dsc_status exponential_list(list *l, int ranks, int peers) {
    for (int64_t power = 1; power <= ranks - 1; power *= peers + 1)
        for (int64_t j = 1; j <= peers; j++)
            DSC_TRY(append(l, ranks, j * power));
    return DSC_OK;
}

static dsc_status exponential_pm_list(list *l, int ranks, int peers) {
    (void)peers;
    for (int64_t power = 1; power <= ranks - 1; power *= 2)
        DSC_TRY(append_both(l, ranks, power));
    return DSC_OK;
}

static dsc_status linear_list(list *l, int ranks, int peers) {
    (void)peers;
    for (int64_t offset = 1; offset <= ranks - 1; offset += 2)
        DSC_TRY(append_both(l, ranks, offset));
    return DSC_OK;
}

static dsc_status ring_list(list *l, int ranks, int peers) {
    return peers == 1 ? append(l, ranks, 1) : append_both(l, ranks, 1);
}

static dsc_status powers_list(list *l, int ranks, int peers) {
    (void)peers;
    for (int64_t power = 1; power < ranks; power *= 2)
        DSC_TRY(append(l, ranks, power));
    return DSC_OK;
}

static dsc_status complete_list(list *l, int ranks, int peers) {
    (void)peers;
    for (int offset = 1; offset < ranks; offset++)
        DSC_TRY(append(l, ranks, offset));
    return DSC_OK;
}

static dsc_status open_exponential(dsc_topology *t) {
    return open_list(t, exponential_list, 0);
}

static dsc_status open_exponential_pm(dsc_topology *t) {
    return open_list(t, exponential_pm_list, 0);
}

static dsc_status open_linear(dsc_topology *t) {
    return open_list(t, linear_list, 0);
}

static dsc_status open_ring(dsc_topology *t) {
    if (t->peers > 2)
        return DSC_FAIL(DSC_E_INVALID,
                        "graph 'ring' with %d peers a step: 1 (the next rank) or 2 (both neighbours)",
                        t->peers);
    return open_list(t, ring_list, 1);
}

static dsc_status open_static_exponential(dsc_topology *t) {
    return open_list(t, powers_list, 1);
}

static dsc_status open_complete(dsc_topology *t) {
    return open_list(t, complete_list, 1);
}

const dsc_topology_kind dsc_topology_exponential = {
    .open = open_exponential,
    .out = circulant_out,
    .in = circulant_in,
};
const dsc_topology_kind dsc_topology_exponential_pm = {
    .open = open_exponential_pm,
    .out = circulant_out,
    .in = circulant_in,
};
const dsc_topology_kind dsc_topology_linear = {
    .open = open_linear,
    .out = circulant_out,
    .in = circulant_in,
};
const dsc_topology_kind dsc_topology_ring = {
    .open = open_ring,
    .out = circulant_out,
    .in = circulant_in,
};
const dsc_topology_kind dsc_topology_static_exponential = {
    .fixed_peers = 1,
    .open = open_static_exponential,
    .out = circulant_out,
    .in = circulant_in,
};
const dsc_topology_kind dsc_topology_complete = {
    .fixed_peers = 1,
    .open = open_complete,
    .out = circulant_out,
    .in = circulant_in,
};
