/* Graphs without communication: what every schedule must hold for 2 to 64 ranks, known lists, the published
 * exact steps and contraction rates, refusals. */
#include "consensus/graphs.h"

#include "base/memory.h"

#include <math.h>

/* ---- every graph ---- */

static void test_every_graph(void **state) {
    (void)state;
    int seen = 0;
    for (int n = 2; n <= GRAPH_MOST; n++) {
        const int peers[] = {1, 2, 3, 4, 7, n - 1};
        for (const char *const *name = dsc_topology_names(); *name; name++)
            for (size_t i = 0; i < sizeof peers / sizeof *peers; i++) {
                if (!graph_is_possible(*name, n, peers[i]))
                    continue;
                dsc_topology *t = graph_create(*name, n, peers[i]);
                assert_string_equal(dsc_topology_name(t), *name);
                assert_int_equal(dsc_topology_ranks(t), n);
                assert_int_equal(dsc_topology_is_regular(t), 1);
                graph_check(t);
                dsc_topology_destroy(&t);
                assert_null(t);
                seen++;
            }
    }
    assert_true(seen > 1000);
}

static void test_matchings(void **state) {
    (void)state;
    static const char *const claimed[] = {"bipartite-exponential", "bipartite-linear", "hypercube", "base-2",
                                          NULL};
    for (int n = 2; n <= GRAPH_MOST; n++)
        for (const char *const *name = dsc_topology_names(); *name; name++) {
            if (!graph_is_possible(*name, n, 1))
                continue;
            dsc_topology *t = graph_create(*name, n, 1);
            /* Two ranks have one other each; linear and powers reach theirs, at n / 2, in some steps only. */
            assert_int_equal(dsc_topology_is_matching(t), n == 2 || graph_is_one_of(*name, claimed));
            dsc_topology_destroy(&t);
        }
}

/* Perfect ones: nobody idles. And of a bipartite pair one rank is even. */
static void test_perfect_matchings(void **state) {
    (void)state;
    static const char *const names[] = {"bipartite-exponential", "bipartite-linear", "hypercube"};
    for (int n = 2; n <= GRAPH_MOST; n += 2)
        for (int g = 0; g < 3; g++) {
            if (!graph_is_possible(names[g], n, 1))
                continue;
            dsc_topology *t = graph_create(names[g], n, 1);
            for (int64_t step = 0; step < dsc_topology_period(t); step++)
                for (int r = 0; r < n; r++) {
                    dsc_edge edge;
                    double self;
                    assert_int_equal(dsc_topology_out(t, r, step, &edge, &self), 1);
                    assert_true(edge.share == 0.5 && self == 0.5);
                    if (g < 2)
                        assert_int_equal((edge.rank + r) % 2, 1);
                }
            dsc_topology_destroy(&t);
        }
}

/* Nothing depends on what was asked before, and the schedule repeats for ever. */
static void test_pure(void **state) {
    (void)state;
    for (int n = 2; n <= GRAPH_MOST; n += 3)
        for (const char *const *name = dsc_topology_names(); *name; name++) {
            if (!graph_is_possible(*name, n, 1))
                continue;
            dsc_topology *a = graph_create(*name, n, 1), *b = graph_create(*name, n, 1);
            int64_t period = dsc_topology_period(a), far = INT64_MAX / period / 2 * period;
            for (int64_t step = period - 1; step >= 0; step--) {
                graph_assert_same_step(a, b, step, step + period);
                graph_assert_same_step(a, a, step, step + far);
                graph_assert_same_step(b, a, step, step);
            }
            dsc_edge edges[GRAPH_MOST];
            assert_int_equal(dsc_topology_out(a, 1, 0, edges, NULL), dsc_topology_out(b, 1, 0, edges, NULL));
            dsc_topology_destroy(&a);
            dsc_topology_destroy(&b);
        }
}

static void test_one_rank(void **state) {
    (void)state;
    for (const char *const *name = dsc_topology_names(); *name; name++)
        for (int k = 1; k <= 3; k++) {
            dsc_topology *t = graph_create(*name, 1, k);
            double self = 0, rho = -1;
            int64_t exact = -1;
            assert_int_equal(dsc_topology_period(t), 1);
            assert_int_equal(dsc_topology_most_peers(t), 0);
            assert_int_equal(dsc_topology_out(t, 0, 5, NULL, &self), 0);
            assert_int_equal(dsc_topology_in(t, 0, 5, NULL), 0);
            assert_true(self == 1);
            assert_true(dsc_topology_is_regular(t) && dsc_topology_is_matching(t));
            assert_ok(dsc_topology_rate(t, &exact, &rho));
            assert_true(exact == 1 && rho == 0);
            dsc_topology_destroy(&t);
        }
    dsc_topology_destroy(NULL);
}

/* ---- known lists ---- */

typedef struct known {
    const char *name;
    int n, k, rank;
    int64_t step, period;
    int count, peers[8];
} known;

static const known lists[] = {
    {"exponential", 16, 1, 3, 2, 4, 1, {7}},
    {"exponential", 16, 1, 12, 3, 4, 1, {4}},
    {"exponential", 9, 1, 0, 3, 4, 1, {8}},
    {"exponential", 16, 2, 1, 1, 3, 2, {4, 7}},
    {"exponential", 16, 2, 1, 2, 3, 2, {10, 3}},
    {"exponential", 9, 2, 0, 1, 2, 2, {3, 6}},
    {"exponential", 4, 2, 0, 1, 2, 2, {3, 2}},
    {"exponential", 8, 3, 0, 1, 2, 1, {4}}, /* 4, 8 = 0, 12 = 4: one is left */
    {"exponential", 5, 4, 2, 0, 1, 4, {3, 4, 0, 1}},
    {"exponential-pm", 8, 1, 0, 3, 6, 1, {6}},
    {"exponential-pm", 8, 2, 0, 1, 3, 2, {2, 6}},
    {"exponential-pm", 8, 2, 0, 2, 3, 1, {4}},
    {"exponential-pm", 8, 4, 0, 1, 3, 3, {4, 1, 7}}, /* +4, -4, +1, -1 */
    {"linear", 8, 1, 2, 4, 8, 1, {7}},
    {"linear", 8, 1, 2, 5, 8, 1, {5}},
    {"linear", 7, 3, 0, 1, 2, 3, {4, 5, 2}},
    {"ring", 5, 1, 4, 9, 1, 1, {0}},
    {"ring", 5, 2, 4, 9, 1, 2, {0, 3}},
    {"static-exponential", 12, 1, 10, 0, 1, 4, {11, 0, 2, 6}},
    {"complete", 4, 1, 2, 0, 1, 3, {3, 0, 1}},
    {"bipartite-exponential", 32, 1, 0, 6, 10, 1, {9}},
    {"bipartite-exponential", 32, 1, 0, 7, 10, 1, {23}},
    {"bipartite-exponential", 32, 1, 9, 6, 10, 1, {0}},
    {"bipartite-exponential", 32, 1, 23, 7, 10, 1, {0}},
    {"bipartite-linear", 8, 1, 4, 6, 8, 1, {3}},
    {"bipartite-linear", 8, 1, 4, 7, 8, 1, {5}},
    {"hypercube", 8, 1, 5, 2, 3, 1, {1}},
    {"base-2", 7, 1, 6, 0, 5, 0, {0}},
    {"base-2", 7, 1, 4, 0, 5, 1, {5}},
    {"base-2", 7, 1, 2, 1, 5, 1, {0}},
    {"base-2", 7, 1, 2, 2, 5, 1, {6}},
    {"base-2", 7, 1, 3, 2, 5, 0, {0}},
    {"base-2", 7, 1, 6, 3, 5, 1, {4}},
    {"base-2", 7, 1, 2, 3, 5, 1, {3}},
    {"base-2", 7, 1, 4, 4, 5, 1, {5}},
    {"base-2", 12, 1, 4, 3, 5, 1, {1}},
    {"base-2", 12, 1, 4, 4, 5, 1, {10}},
};

static void test_lists(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const known *l = &lists[i];
        dsc_topology *t = graph_create(l->name, l->n, l->k);
        dsc_edge edges[GRAPH_MOST];
        int count = dsc_topology_out(t, l->rank, l->step, edges, NULL);
        int right = count == l->count && dsc_topology_period(t) == l->period;
        for (int j = 0; right && j < count; j++)
            right = edges[j].rank == l->peers[j];
        if (!right)
            fail_msg("%s, n = %d, k = %d, rank %d, step %d: %d peers, the first %d; period %d", l->name, l->n,
                     l->k, l->rank, (int)l->step, count, count ? edges[0].rank : -1,
                     (int)dsc_topology_period(t));
        dsc_topology_destroy(&t);
    }
}

/* The weights of base-2: the size of a part over the size of that part and all after it. */
static void test_base2_weights(void **state) {
    (void)state;
    dsc_topology *t = graph_create("base-2", 7, 1);
    dsc_edge edge;
    double self;
    assert_int_equal(dsc_topology_out(t, 5, 2, &edge, &self), 1);
    assert_true(edge.rank == 1 && edge.share == 4.0 / 7 && self == 1 - 4.0 / 7);
    assert_int_equal(dsc_topology_out(t, 6, 3, &edge, &self), 1);
    assert_true(edge.rank == 4 && edge.share == 2.0 / 3);
    dsc_topology_destroy(&t);
}

/* ---- rates ---- */

/* exact 0: rho, to so many digits. */
typedef struct expected {
    const char *name;
    int k, n;
    int64_t exact;
    double rho, within;
} expected;

static const expected rates[] = {
    {"exponential", 1, 4, 2, 0, 0},
    {"exponential", 1, 8, 3, 0, 0},
    {"exponential", 1, 16, 4, 0, 0},
    {"exponential", 1, 32, 5, 0, 0},
    {"hypercube", 1, 4, 2, 0, 0},
    {"hypercube", 1, 8, 3, 0, 0},
    {"hypercube", 1, 16, 4, 0, 0},
    {"hypercube", 1, 32, 5, 0, 0},
    {"exponential-pm", 1, 4, 3, 0, 0},
    {"exponential-pm", 1, 8, 5, 0, 0},
    {"exponential-pm", 1, 16, 7, 0, 0},
    {"exponential-pm", 1, 32, 9, 0, 0},
    {"exponential", 2, 4, 0, .3333, 5e-5},
    {"exponential", 2, 8, 0, .3333, 5e-5},
    {"exponential", 2, 16, 0, .5404, 5e-5},
    {"exponential", 2, 32, 0, .5950, 5e-5},
    {"exponential", 2, 3, 1, 0, 0},
    {"exponential", 2, 6, 2, 0, 0},
    {"exponential", 2, 9, 2, 0, 0},
    {"exponential", 2, 18, 3, 0, 0},
    {"exponential", 2, 27, 3, 0, 0},
    {"exponential", 2, 54, 4, 0, 0},
    {"bipartite-exponential", 1, 4, 2, 0, 0},
    {"bipartite-exponential", 1, 8, 3, 0, 0},
    {"bipartite-exponential", 1, 16, 5, 0, 0},
    {"bipartite-exponential", 1, 32, 0, .6244, 5e-5},
    {"static-exponential", 1, 4, 0, .3333, 5e-5},
    {"static-exponential", 1, 8, 0, .5, 5e-5},
    {"static-exponential", 1, 16, 0, .6, 5e-5},
    {"static-exponential", 1, 32, 0, .6667, 5e-5},
    {"ring", 2, 4, 0, .3333, 5e-5},
    {"ring", 2, 8, 0, .8047, 5e-5},
    {"ring", 2, 16, 0, .9493, 5e-5},
    {"ring", 2, 32, 0, .9872, 5e-5},
    {"ring", 1, 4, 0, .7071, 5e-5},
    {"ring", 1, 8, 0, .9239, 5e-5},
    {"ring", 1, 16, 0, .9808, 5e-5},
    {"ring", 1, 32, 0, .9952, 5e-5},
    {"exponential", 1, 5, 0, .587, 5e-4},
    {"exponential", 1, 6, 0, .6005, 5e-5},
    {"exponential", 1, 7, 0, .5, 5e-4},
    {"exponential", 1, 12, 0, .676, 5e-4},
    {"base-2", 1, 3, 3, 0, 0},
    {"base-2", 1, 5, 5, 0, 0},
    {"base-2", 1, 6, 4, 0, 0},
    {"base-2", 1, 7, 5, 0, 0},
    {"base-2", 1, 9, 7, 0, 0},
    {"base-2", 1, 12, 5, 0, 0},
    {"base-2", 1, 16, 4, 0, 0},
    {"base-2", 1, 24, 6, 0, 0},
    {"base-2", 1, 32, 5, 0, 0},
    {"complete", 1, 7, 1, 0, 0},
};

static void test_rates(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        const expected *e = &rates[i];
        dsc_topology *t = graph_create(e->name, e->n, e->k);
        int64_t exact = -1;
        double rho = -1;
        assert_ok(dsc_topology_rate(t, &exact, &rho));
        if (exact != e->exact || fabs(rho - e->rho) > e->within)
            fail_msg("%s, k = %d, n = %d: exact %d, rho %.6f; expected %d, %.4f", e->name, e->k, e->n,
                     (int)exact, rho, (int)e->exact, e->rho);
        dsc_topology_destroy(&t);
    }
}

static void assert_rho(const char *name, int k, int n, double rho) {
    dsc_topology *t = graph_create(name, n, k);
    int64_t exact;
    double found;
    assert_ok(dsc_topology_rate(t, &exact, &found));
    if (fabs(found - rho) > 1e-10)
        fail_msg("%s, k = %d, n = %d: rho %.12f instead of %.12f", name, k, n, found, rho);
    dsc_topology_destroy(&t);
}

/* Exact for every number of ranks, in the rounds of the construction; and closed forms of the others. */
static void test_closed_forms(void **state) {
    (void)state;
    const double pi = 3.14159265358979323846;
    for (int n = 2; n <= GRAPH_MOST; n++) {
        dsc_topology *t = graph_create("base-2", n, 1);
        int64_t exact = 0;
        double rho = -1;
        assert_ok(dsc_topology_rate(t, &exact, &rho));
        assert_true(exact == dsc_topology_period(t) && rho == 0);
        dsc_topology_destroy(&t);
    }
    for (int n = 4; n <= GRAPH_MOST; n += 5) {
        assert_rho("ring", 1, n, cos(pi / n));
        assert_rho("ring", 2, n, fabs(1 + 2 * cos(2 * pi / n)) / 3);
    }
    for (int power = 2; power <= 6; power++)
        assert_rho("static-exponential", 1, 1 << power, 1 - 2.0 / (1 + power));
}

/* The second singular value of the first step of `exponential`: of W'W on vectors of sum 0. */
static double second_singular(const dsc_topology *t) {
    int n = dsc_topology_ranks(t), most = 0;
    double x[GRAPH_MOST], y[GRAPH_MOST], norm = 0;
    graph_fill_matrix(t, 0, &most);
    for (int i = 0; i < n; i++)
        x[i] = sin(1 + i * i);
    for (int round = 0; round < 5000; round++) {
        double mean = 0;
        for (int i = 0; i < n; i++)
            mean += x[i] / n;
        for (int i = 0; i < n; i++) {
            y[i] = 0;
            for (int j = 0; j < n; j++)
                y[i] += graph_matrix[i][j] * (x[j] - mean);
        }
        norm = 0;
        for (int i = 0; i < n; i++) {
            x[i] = 0;
            for (int j = 0; j < n; j++)
                x[i] += graph_matrix[j][i] * y[j];
            norm += x[i] * x[i];
        }
        norm = sqrt(norm);
        for (int i = 0; i < n; i++)
            x[i] /= norm;
    }
    return sqrt(norm);
}

static void test_one_step(void **state) {
    (void)state;
    static const double expected_sigma[] = {.7071, .9239, .9808, .9952};
    for (int i = 0; i < 4; i++) {
        dsc_topology *t = graph_create("exponential", 4 << i, 1);
        assert_true(fabs(second_singular(t) - expected_sigma[i]) < 5e-5);
        dsc_topology_destroy(&t);
    }
}

/* ---- refusals ---- */

static void test_refusals(void **state) {
    (void)state;
    dsc_topology *t = NULL;
    assert_fails(DSC_E_INVALID, "did you mean 'exponential'", graph_try("exponental", 4, 1, &t));
    assert_fails(DSC_E_INVALID, "base-2", graph_try("", 4, 1, &t));
    assert_fails(DSC_E_INVALID, "name", graph_try(NULL, 4, 1, &t));
    assert_fails(DSC_E_INVALID, "0 ranks", graph_try("ring", 0, 1, &t));
    assert_fails(DSC_E_INVALID, "-3 ranks", graph_try("ring", -3, 1, &t));
    assert_fails(DSC_E_INVALID, "0 peers", graph_try("exponential", 4, 0, &t));
    assert_fails(DSC_E_INVALID, "at most 3", graph_try("exponential", 4, 4, &t));
    assert_fails(DSC_E_INVALID, "at most 1", graph_try("ring", 2, 2, &t));
    assert_fails(DSC_E_INVALID, "both neighbours", graph_try("ring", 8, 3, &t));
    assert_fails(DSC_E_INVALID, "which 5 cannot", graph_try("bipartite-exponential", 5, 1, &t));
    assert_fails(DSC_E_INVALID, "base-2", graph_try("bipartite-linear", 3, 1, &t));
    assert_fails(DSC_E_INVALID, "not 12: take 8 or 16", graph_try("hypercube", 12, 1, &t));
    static const char *const fixed[] = {"static-exponential", "complete",  "bipartite-exponential",
                                        "bipartite-linear",   "hypercube", "base-2"};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        assert_fails(DSC_E_INVALID, "fixes the number of peers", graph_try(fixed[i], 8, 2, &t));
    dsc_topology_options unset = {0};
    assert_fails(DSC_E_INVALID, "dsc_topology_options_init", dsc_topology_create("ring", 4, &unset, &t));
    assert_null(t);
    assert_ok(dsc_topology_create("exponential", 2000, NULL, &t));
    int64_t exact;
    double rho;
    assert_fails(DSC_E_UNSUPPORTED, "2000", dsc_topology_rate(t, &exact, &rho));
    dsc_topology_destroy(&t);
}

/* Every allocation fails once: an error, nothing lost. */
static void test_torture(void **state) {
    (void)state;
    for (const char *const *name = dsc_topology_names(); *name; name++) {
        int64_t nth = 0;
        dsc_status status = DSC_E_MEMORY;
        for (; status == DSC_E_MEMORY; nth++) {
            assert_in_range(nth, 0, 50);
            dsc_topology *t = NULL;
            int64_t exact;
            double rho;
            dsc_memory_fail_at(nth + 1);
            status = graph_try(*name, 8, 1, &t);
            if (status == DSC_OK)
                status = dsc_topology_rate(t, &exact, &rho);
            dsc_memory_fail_at(0);
            dsc_topology_destroy(&t);
        }
        assert_int_equal(status, DSC_OK);
        assert_true(nth > 4);
    }
}

/* ---- registered graphs ---- */

typedef enum fault {
    FINE,
    SILENT,
    LOUD,
    ENDLESS,
    NOWHERE,
    ITSELF,
    TWICE,
    NO_SHARE,
    ALL,
    TOO_MANY,
    ALONE
} fault;

static dsc_status own_period(void *context, int ranks, int peers, int64_t *period) {
    const fault *f = context;
    if (*f == LOUD)
        return dsc_error_set(DSC_E_UNSUPPORTED, "%d ranks are too many", ranks);
    *period = *f == ENDLESS ? INT64_MAX : peers;
    return DSC_OK;
}

/* A ring, forth in even and back in odd steps, with the mistake of the context. */
static dsc_status own_out(void *context, int ranks, int peers, int64_t step, int rank, dsc_edge *edges,
                          int *count) {
    const fault *f = context;
    (void)peers;
    assert_true(edges[0].share == 0);
    *count = 1;
    edges[0].rank = (rank + (step % 2 ? ranks - 1 : 1)) % ranks;
    if (*f == SILENT)
        return DSC_E_IO;
    if (*f == NOWHERE && rank == 2)
        edges[0].rank = ranks;
    if (*f == ITSELF && rank == 2)
        edges[0].rank = rank;
    if (*f == NO_SHARE)
        edges[0].share = -0.5;
    if (*f == TWICE || *f == ALL) {
        edges[1].rank = *f == TWICE ? edges[0].rank : (rank + 2) % ranks;
        edges[0].share = edges[1].share = 0.5;
        *count = 2;
    }
    if (*f == TOO_MANY)
        *count = ranks;
    if (*f == ALONE && rank == 1)
        *count = 0;
    return DSC_OK;
}

static void test_registered(void **state) {
    (void)state;
    static fault f;
    dsc_topology_def def;
    dsc_topology *t = NULL;
    char name[] = "own-ring";
    dsc_topology_def_init(&def);
    assert_fails(DSC_E_INVALID, "dsc_topology_def_init", dsc_topology_register(NULL));
    def.name = name;
    def.context = &f;
    assert_fails(DSC_E_INVALID, "it has no function `period`", dsc_topology_register(&def));
    def.period = own_period;
    assert_fails(DSC_E_INVALID, "it has no function `out`", dsc_topology_register(&def));
    def.out = own_out;
    assert_ok(dsc_topology_register(&def));
    assert_fails(DSC_E_INVALID, "there is one of this name already", dsc_topology_register(&def));
    def.name = "ring";
    assert_fails(DSC_E_INVALID, "there is one of this name already", dsc_topology_register(&def));
    def.name = "own.graph";
    assert_fails(DSC_E_INVALID, "the name is that of a file", dsc_topology_register(&def));
    def.name = "a b";
    assert_fails(DSC_E_INVALID, "made of letters", dsc_topology_register(&def));
    memset(name, 'x', 3); /* the name was copied */
    int last = 0;
    while (dsc_topology_names()[last + 1])
        last++;
    assert_string_equal(dsc_topology_names()[last], "own-ring");
    assert_fails(DSC_E_INVALID, "did you mean 'own-ring'", graph_try("own-rang", 4, 1, &t));
    for (int n = 2; n <= 9; n++) {
        dsc_topology *own = graph_create("own-ring", n, 1), *ring = graph_create("ring", n, 1);
        graph_check(own);
        assert_int_equal(dsc_topology_period(own), 1);
        assert_true(dsc_topology_is_regular(own));
        graph_assert_same_step(own, ring, 0, 0);
        dsc_topology_destroy(&own);
        if (n > 2) { /* two steps: the second the other way round */
            own = graph_create("own-ring", n, 2);
            graph_check(own);
            assert_int_equal(dsc_topology_period(own), 2);
            graph_assert_same_step(own, ring, 4, 0);
            dsc_edge edge;
            double self;
            assert_int_equal(dsc_topology_out(own, 0, 1, &edge, &self), 1);
            assert_true(edge.rank == n - 1 && edge.share == 0.5 && self == 0.5);
            dsc_topology_destroy(&own);
        }
        dsc_topology_destroy(&ring);
    }
    t = graph_create("own-ring", 1, 1);
    dsc_topology_destroy(&t);
    static const struct {
        fault f;
        dsc_status status;
        const char *message;
    } cases[] = {
        {SILENT, DSC_E_IO, "graph 'own-ring', step 0, rank 0: the caller's function `out` returned DSC_E_IO"},
        {LOUD, DSC_E_UNSUPPORTED, "graph 'own-ring' on 4 ranks with 1 peers a step: 4 ranks are too many"},
        {ENDLESS, DSC_E_INVALID, "repeats after 9223372036854775807 steps: must be 1 to"},
        {NOWHERE, DSC_E_INVALID, "graph 'own-ring', step 0: rank 2 sends to rank 4: there are 0 to 3"},
        {ITSELF, DSC_E_INVALID, "rank 2 sends to rank 2"},
        {TWICE, DSC_E_INVALID, "graph 'own-ring', step 0: rank 3 sends to rank 0 twice"},
        {NO_SHARE, DSC_E_INVALID, "rank 0 sends a share of -0.5: must be at least 1e-06"},
        {ALL, DSC_E_INVALID, "graph 'own-ring': rank 0 sends 1 of its mass in step 0"},
        {TOO_MANY, DSC_E_INVALID, "rank 0 sends to 4 ranks: must be 0 to 3"},
        {ALONE, DSC_E_INVALID,
         "graph 'own-ring' on 4 ranks: in all of its steps there is no path from rank 0 to"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        f = cases[i].f;
        assert_fails(cases[i].status, cases[i].message, graph_try("own-ring", 4, 1, &t));
    }
    f = FINE;
    dsc_status status = DSC_E_MEMORY;
    for (int nth = 1; status == DSC_E_MEMORY; nth++) {
        dsc_memory_fail_at(nth);
        status = graph_try("own-ring", 4, 1, &t);
    }
    dsc_memory_fail_at(0);
    assert_ok(status);
    dsc_topology_destroy(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_graph),       cmocka_unit_test(test_matchings),
        cmocka_unit_test(test_perfect_matchings), cmocka_unit_test(test_pure),
        cmocka_unit_test(test_one_rank),          cmocka_unit_test(test_lists),
        cmocka_unit_test(test_base2_weights),     cmocka_unit_test(test_rates),
        cmocka_unit_test(test_closed_forms),      cmocka_unit_test(test_one_step),
        cmocka_unit_test(test_refusals),          cmocka_unit_test(test_torture),
        cmocka_unit_test(test_registered), /* last: it adds to the names */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
