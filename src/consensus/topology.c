/* Graphs for gossip: the front. Names, checks that all kinds share, and the step's place in the period. */
#include "descent/topology.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/option.h"
#include "base/versioned.h"
#include "consensus/topology_table.h"

#include <stdio.h>
#include <string.h>

static const dsc_topology_kind *const kinds[] = {
    &dsc_topology_exponential,
    &dsc_topology_exponential_pm,
    &dsc_topology_linear,
    &dsc_topology_ring,
    &dsc_topology_static_exponential,
    &dsc_topology_complete,
    &dsc_topology_bipartite_exponential,
    &dsc_topology_bipartite_linear,
    &dsc_topology_hypercube,
    &dsc_topology_base2,
};
enum { KIND_COUNT = sizeof kinds / sizeof *kinds };

/* In the order of `kinds`. */
static const char *const names[KIND_COUNT + 1] = {
    "exponential", "exponential-pm",        "linear",           "ring",      "static-exponential",
    "complete",    "bipartite-exponential", "bipartite-linear", "hypercube", "base-2",
    NULL,
};

const char *const *dsc_topology_names(void) {
    return names;
}

void dsc_topology_options_init_sized(dsc_topology_options *options, size_t size) {
    const dsc_topology_options defaults = {.peers = 1};
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}

static int is_file(const char *name) {
    static const char suffix[] = ".graph";
    size_t length = strlen(name), tail = sizeof suffix - 1;
    return strchr(name, '/') || (length >= tail && strcmp(name + length - tail, suffix) == 0);
}

static dsc_status unknown_name(const char *name) {
    char known[256] = "";
    size_t used = 0;
    for (int i = 0; i < KIND_COUNT; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", names[i]);
    const char *near = dsc_option_nearest(name, names, KIND_COUNT);
    return DSC_FAIL(DSC_E_INVALID,
                    "graph '%s' is unknown%s%s%s: choose %s, or name a file (with a '/' in it, or ending in "
                    ".graph)",
                    name, near ? " (did you mean '" : "", near ? near : "", near ? "'?)" : "", known);
}

static dsc_status find_kind(const char *name, const dsc_topology_kind **out) {
    if (is_file(name)) {
        *out = &dsc_topology_file;
        return DSC_OK;
    }
    for (int i = 0; i < KIND_COUNT; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = kinds[i];
            return DSC_OK;
        }
    return unknown_name(name);
}

static dsc_status check_numbers(const dsc_topology *t) {
    if (t->ranks < 1)
        return DSC_FAIL(DSC_E_INVALID, "graph '%s' on %d ranks: there must be at least 1", t->name, t->ranks);
    if (t->peers < 1)
        return DSC_FAIL(DSC_E_INVALID, "graph '%s' with %d peers a step: there must be at least 1", t->name,
                        t->peers);
    if (t->kind->fixed_peers && t->peers != 1 && t->ranks > 1)
        return DSC_FAIL(DSC_E_INVALID,
                        "graph '%s' fixes the number of peers a step, %d cannot be asked for: leave it at 1, "
                        "or take exponential, exponential-pm or linear",
                        t->name, t->peers);
    if (t->peers > t->ranks - 1 && t->ranks > 1)
        return DSC_FAIL(DSC_E_INVALID, "graph '%s' with %d peers a step: of %d ranks at most %d are peers",
                        t->name, t->peers, t->ranks, t->ranks - 1);
    if (t->kind->needs_pairs && t->ranks % 2 && t->ranks > 1)
        return DSC_FAIL(DSC_E_INVALID,
                        "graph '%s' pairs all ranks in every step, which %d cannot: take an even number, or "
                        "base-2, where ranks may idle",
                        t->name, t->ranks);
    return DSC_OK;
}

static dsc_status set_up(dsc_topology *t, const char *name, const dsc_topology_options *options) {
    DSC_TRY(find_kind(name, &t->kind));
    DSC_TRY(dsc_memory_strdup(name, &t->name));
    t->peers = options->peers;
    DSC_TRY(check_numbers(t));
    t->period = 1;
    t->regular = t->matching = 1;
    if (t->ranks > 1 || t->kind == &dsc_topology_file)
        DSC_TRY(t->kind->open(t));
    return DSC_OK;
}

dsc_status dsc_topology_create(const char *name, int ranks, const dsc_topology_options *options,
                               dsc_topology **out) {
    dsc_topology_options taken;
    dsc_topology_options_init(&taken);
    DSC_TRY(dsc_versioned_read("topology", options, sizeof taken, &taken));
    if (!name)
        return DSC_FAIL(DSC_E_INVALID, "a graph needs a name");
    dsc_topology *t;
    DSC_TRY(dsc_memory_alloc(1, sizeof *t, &t));
    t->ranks = ranks;
    dsc_status status;
    DSC_TRY_GOTO(status, set_up(t, name, &taken), failed);
    *out = t;
    return DSC_OK;
failed:
    dsc_topology_destroy(&t);
    return status;
}

void dsc_topology_destroy(dsc_topology **topology) {
    if (!topology || !*topology)
        return;
    dsc_topology *t = *topology;
    dsc_memory_free(&t->name);
    dsc_memory_free(&t->starts);
    dsc_memory_free(&t->offsets);
    dsc_memory_free(&t->falling);
    dsc_memory_free(&t->sent.edges);
    dsc_memory_free(&t->sent.starts);
    dsc_memory_free(&t->got.edges);
    dsc_memory_free(&t->got.starts);
    dsc_memory_free(&t->kept);
    dsc_memory_free(topology);
}

const char *dsc_topology_name(const dsc_topology *topology) {
    return topology->name;
}

int dsc_topology_ranks(const dsc_topology *topology) {
    return topology->ranks;
}

int64_t dsc_topology_period(const dsc_topology *topology) {
    return topology->period;
}

int dsc_topology_most_peers(const dsc_topology *topology) {
    return topology->most_peers;
}

int dsc_topology_is_regular(const dsc_topology *topology) {
    return topology->regular;
}

int dsc_topology_is_matching(const dsc_topology *topology) {
    return topology->matching;
}

int dsc_topology_out(const dsc_topology *topology, int rank, int64_t step, dsc_edge *edges, double *self) {
    double kept = 1;
    int count = 0;
    if (topology->ranks > 1)
        count = topology->kind->out(topology, rank, step % topology->period, edges, &kept);
    if (self)
        *self = kept;
    return count;
}

int dsc_topology_in(const dsc_topology *topology, int rank, int64_t step, dsc_edge *edges) {
    if (topology->ranks == 1)
        return 0;
    return topology->kind->in(topology, rank, step % topology->period, edges);
}

dsc_status dsc_topology_hash(const dsc_topology *topology, uint64_t *hash) {
    const dsc_topology *t = topology;
    const int64_t head[] = {t->ranks, t->period};
    uint64_t h = dsc_hash_bytes(*hash, head, sizeof head);
    dsc_edge *edges;
    DSC_TRY(dsc_memory_alloc(t->most_peers, sizeof *edges, &edges));
    for (int64_t step = 0; step < t->period; step++)
        for (int rank = 0; rank < t->ranks; rank++) {
            double self;
            int count = dsc_topology_out(t, rank, step, edges, &self);
            for (int i = 0; i <= count; i++) {
                double entry[2] = {i < count ? edges[i].rank : -1, i < count ? edges[i].share : self};
                h = dsc_hash_bytes(h, entry, sizeof entry);
            }
        }
    dsc_memory_free(&edges);
    *hash = h;
    return DSC_OK;
}
