/* Graphs for gossip, the public functions: names, checks for all kinds, and reducing steps modulo the period. */
#include "descent/topology.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/option.h"
#include "base/registry.h"
#include "base/versioned.h"
#include "consensus/topology_table.h"

#include <string.h>

typedef struct named_graph {
    const char *name;
    const dsc_topology_kind *kind;
    dsc_topology_def def; /* registered graphs */
} named_graph;

static const char *built_in(int i, const void **entry) {
    static const named_graph graphs[] = {
        {.name = "exponential", .kind = &dsc_topology_exponential},
        {.name = "exponential-pm", .kind = &dsc_topology_exponential_pm},
        {.name = "linear", .kind = &dsc_topology_linear},
        {.name = "ring", .kind = &dsc_topology_ring},
        {.name = "static-exponential", .kind = &dsc_topology_static_exponential},
        {.name = "complete", .kind = &dsc_topology_complete},
        {.name = "bipartite-exponential", .kind = &dsc_topology_bipartite_exponential},
        {.name = "bipartite-linear", .kind = &dsc_topology_bipartite_linear},
        {.name = "hypercube", .kind = &dsc_topology_hypercube},
        {.name = "base-2", .kind = &dsc_topology_base2},
        {.name = NULL}, /* terminates the list */
    };
    *entry = &graphs[i];
    return graphs[i].name;
}

static dsc_registry graphs = DSC_REGISTRY("graph", built_in);

const char *const *dsc_topology_names(void) {
    return dsc_registry_names(&graphs);
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

dsc_status dsc_topology_register(const dsc_topology_def *def) {
    named_graph *graph = NULL;
    char *name = NULL;
    dsc_topology_def given;
    dsc_topology_def_init(&given);
    DSC_TRY(dsc_versioned_define("topology_def", def, sizeof given, &given));
    const char *label = given.name ? given.name : "";
    if (!given.period || !given.out)
        return DSC_FAIL(DSC_E_INVALID, "graph '%s' cannot be registered: it has no function `%s`", label,
                        given.period ? "out" : "period");
    if (is_file(label))
        return DSC_FAIL(DSC_E_INVALID, "graph '%s' cannot be registered: the name is that of a file", label);
    dsc_status status;
    DSC_TRY_GOTO(status, dsc_memory_alloc(1, sizeof *graph, &graph), fail);
    DSC_TRY_GOTO(status, dsc_memory_strdup(label, &name), fail);
    *graph = (named_graph){.name = name, .kind = &dsc_topology_registered, .def = given};
    graph->def.name = name;
    DSC_TRY_GOTO(status, dsc_registry_add(&graphs, name, graph), fail);
    return DSC_OK;
fail:
    dsc_memory_free(&name);
    dsc_memory_free(&graph);
    return status;
}

static dsc_status unknown_name(const char *name) {
    char known[1024];
    const char *const *names = dsc_topology_names();
    int count = 0;
    while (names[count])
        count++;
    const char *near = dsc_option_nearest(name, names, count);
    return DSC_FAIL(DSC_E_INVALID,
                    "graph '%s' is unknown%s%s%s: choose %s, or name a file (with a '/' in it, or ending in "
                    ".graph)",
                    name, near ? " (did you mean '" : "", near ? near : "", near ? "'?)" : "",
                    dsc_registry_list(names, known, sizeof known));
}

static dsc_status find_kind(dsc_topology *t, const char *name) {
    if (is_file(name)) {
        t->kind = &dsc_topology_file;
        return DSC_OK;
    }
    const named_graph *graph = dsc_registry_find(&graphs, name, strlen(name));
    if (!graph)
        return unknown_name(name);
    t->kind = graph->kind;
    t->def = &graph->def;
    return DSC_OK;
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
    DSC_TRY(find_kind(t, name));
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
