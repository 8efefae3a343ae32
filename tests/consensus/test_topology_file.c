/* Graphs from files: a named graph written as one is the same; irregular ones; refusals with their line;
 * damaged files. */
#include "consensus/graphs.h"

#include "base/memory.h"
#include "base/rng.h"
#include "consensus/topology_table.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

static dsc_status parse(const char *text, size_t length, int n, dsc_topology **out) {
    char name[] = "a.graph";
    dsc_topology *t;
    assert_ok(dsc_memory_alloc(1, sizeof *t, &t));
    assert_ok(dsc_memory_strdup(name, &t->name));
    t->kind = &dsc_topology_file;
    t->ranks = n;
    dsc_status status = dsc_topology_file_parse(t, text, length);
    if (status != DSC_OK)
        dsc_topology_destroy(&t);
    *out = t;
    return status;
}

static dsc_topology *parsed(const char *text, int n) {
    dsc_topology *t = NULL;
    assert_ok(parse(text, strlen(text), n, &t));
    return t;
}

static void write_file(char path[64], const char *text) {
    strcpy(path, "/tmp/test-graph-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

/* A named graph as a file. */
static void print_graph(const dsc_topology *t, int with_shares, char *text, size_t size) {
    int n = dsc_topology_ranks(t);
    size_t used = (size_t)snprintf(text, size, "# %s\nranks %d\n", dsc_topology_name(t), n);
    for (int64_t step = 0; step < dsc_topology_period(t); step++) {
        used += (size_t)snprintf(text + used, size - used, "step # %d\n", (int)step);
        for (int r = 0; r < n; r++) {
            dsc_edge edges[GRAPH_MOST];
            int count = dsc_topology_out(t, r, step, edges, NULL);
            for (int i = 0; i < count; i++) {
                used += (size_t)snprintf(text + used, size - used, "%d\t%d", r, edges[i].rank);
                if (with_shares)
                    used += (size_t)snprintf(text + used, size - used, " %.17g", edges[i].share);
                used += (size_t)snprintf(text + used, size - used, i % 2 ? "\r\n" : " \n");
            }
        }
    }
    assert_true(used < size);
}

static void test_is_named_graph(void **state) {
    (void)state;
    static char text[1 << 16];
    for (const char *const *name = dsc_topology_names(); *name; name++)
        for (int n = 2; n <= 16; n += 7) {
            if (!graph_is_possible(*name, n, 1))
                continue;
            dsc_topology *t = graph_create(*name, n, 1);
            print_graph(t, strcmp(*name, "base-2") == 0, text, sizeof text);
            dsc_topology *copy = parsed(text, n);
            assert_int_equal(dsc_topology_period(copy), dsc_topology_period(t));
            assert_int_equal(dsc_topology_most_peers(copy), dsc_topology_most_peers(t));
            assert_int_equal(dsc_topology_is_regular(copy), 1);
            assert_int_equal(dsc_topology_is_matching(copy), dsc_topology_is_matching(t));
            for (int64_t step = 0; step < dsc_topology_period(t); step++)
                graph_assert_same_step(copy, t, step, step);
            graph_check(copy);
            dsc_topology_destroy(&copy);
            dsc_topology_destroy(&t);
        }
}

static const char star[] = "# everybody talks to rank 0\n"
                           "ranks 4\n"
                           "\n"
                           "step\n"
                           "0 1\n"
                           "0 2\n"
                           "0 3   # a quarter each\n"
                           "1 0 0.5\n"
                           "2 0 0.25\n"
                           "3 0 0.75\n"
                           "step\n"
                           "1 2 0.125\n";

/* Whatever the order in the file: sent in it, expected by rising rank. */
static void test_order(void **state) {
    (void)state;
    dsc_topology *t = parsed("ranks 4\nstep\n3 0\n2 0\n1 0\n0 3\n0 1\n0 2\n", 4);
    dsc_edge edges[3];
    assert_int_equal(dsc_topology_out(t, 0, 0, edges, NULL), 3);
    assert_true(edges[0].rank == 3 && edges[1].rank == 1 && edges[2].rank == 2);
    assert_int_equal(dsc_topology_in(t, 0, 0, edges), 3);
    assert_true(edges[0].rank == 1 && edges[1].rank == 2 && edges[2].rank == 3);
    dsc_topology_destroy(&t);
}

/* An irregular graph: values over weights come to the mean, mass stays. */
static void test_irregular(void **state) {
    (void)state;
    char path[64];
    write_file(path, star);
    dsc_topology *t = graph_create(path, 4, 1);
    assert_string_equal(dsc_topology_name(t), path);
    unlink(path);
    assert_int_equal(dsc_topology_period(t), 2);
    assert_int_equal(dsc_topology_most_peers(t), 3);
    assert_int_equal(dsc_topology_is_regular(t), 0);
    assert_int_equal(dsc_topology_is_matching(t), 0);
    graph_check(t);
    dsc_edge edges[3];
    double self;
    assert_int_equal(dsc_topology_out(t, 2, 2, edges, &self), 1);
    assert_true(edges[0].rank == 0 && edges[0].share == 0.25 && self == 0.75);
    assert_int_equal(dsc_topology_in(t, 0, 2, edges), 3);
    assert_true(edges[2].rank == 3 && edges[2].share == 0.75);
    assert_int_equal(dsc_topology_out(t, 0, 1, edges, &self), 0);
    assert_true(self == 1);
    double x[4] = {16, 0, -8, 0}, w[4] = {1, 1, 1, 1};
    int most = 0;
    for (int64_t step = 0; step < 300; step++) {
        graph_fill_matrix(t, step, &most);
        double nx[4] = {0}, nw[4] = {0};
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) {
                nx[i] += graph_matrix[i][j] * x[j];
                nw[i] += graph_matrix[i][j] * w[j];
            }
        memcpy(x, nx, sizeof x);
        memcpy(w, nw, sizeof w);
        assert_true(fabs(w[0] + w[1] + w[2] + w[3] - 4) < 1e-12);
    }
    for (int i = 0; i < 4; i++)
        assert_true(w[i] > 0.1 && fabs(x[i] / w[i] - 2) < 1e-12);
    dsc_topology_destroy(&t);
}

/* Two ranks that send a and b: the other eigenvalue is 1 - a - b. Negative ones count by modulus. */
static void test_rates(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int n;
        int64_t exact;
        double rho;
    } cases[] = {
        {"ranks 2\nstep\n0 1 0.5\n1 0 0.25\n", 2, 0, 0.25},
        {"ranks 2\nstep\n0 1 0.75\n1 0 0.75\n", 2, 0, 0.5},
        {"ranks 2\nstep\n0 1 0.25\n1 0 0.75\n", 2, 1, 0},
        {"ranks 2\nstep\n0 1 0.5\nstep\n1 0 0.5\n", 2, 0, 0.5}, /* 0.25 in two steps */
        {"ranks 2\nstep\n0 1 0.000001\n1 0 0.000001\n", 2, 0, 0.999998},
        {"ranks 2\nstep\n0 1 0.499999\n1 0 0.5\n", 2, 0, 1e-6}, /* fast, and not exact */
        {"ranks 1\nstep\n", 1, 1, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dsc_topology *t = parsed(cases[i].text, cases[i].n);
        int64_t exact = -1;
        double rho = -1;
        assert_ok(dsc_topology_rate(t, &exact, &rho));
        assert_int_equal(exact, cases[i].exact);
        assert_true(fabs(rho - cases[i].rho) < 1e-10);
        dsc_topology_destroy(&t);
    }
}

/* A period whose product is far below rounding, and no step is exact. */
static void test_long_period(void **state) {
    (void)state;
    char text[2048] = "ranks 3\n";
    for (int step = 0; step < 20; step++)
        strcat(text, "step\n0 1 0.4\n0 2 0.2\n1 0 0.3945\n1 2 0.2\n2 0 0.39\n2 1 0.408\n");
    dsc_topology *t = parsed(text, 3);
    int64_t exact = -1;
    double rho = -1;
    assert_ok(dsc_topology_rate(t, &exact, &rho));
    /* One eigenvalue of the step is 1: the others' sum, and their product. */
    double trace = 0.4 + 0.4055 + 0.202 - 1;
    double det = 0.4 * (0.4055 * 0.202 - 0.408 * 0.2) - 0.3945 * (0.4 * 0.202 - 0.408 * 0.2) +
                 0.39 * (0.4 * 0.2 - 0.4055 * 0.2);
    double root = trace * trace / 4 - det;
    double modulus = root < 0 ? sqrt(det) : fabs(trace / 2) + sqrt(root);
    assert_int_equal(exact, 0);
    assert_true(fabs(rho - modulus) < 1e-9);
    dsc_topology_destroy(&t);
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *text;
        dsc_status status;
        const char *message;
    } cases[] = {
        {"", DSC_E_FORMAT, "a.graph: empty"},
        {"# nothing\n\n", DSC_E_FORMAT, "a.graph: empty"},
        {"step\n", DSC_E_FORMAT, "a.graph:1: 'step' where 'ranks N' is due"},
        {"\x7f"
         "ELF\x02",
         DSC_E_FORMAT, "a.graph:1: '?ELF?' where"},
        {"ranks\n", DSC_E_FORMAT, "a.graph:1: 'ranks '"},
        {"ranks 3 3\n", DSC_E_FORMAT, "one whole number"},
        {"ranks -3\n", DSC_E_FORMAT, "'ranks -3'"},
        {"ranks 3.0\n", DSC_E_FORMAT, "'ranks 3.0'"},
        {"ranks 4294967299\n", DSC_E_FORMAT, "'ranks 4294967299'"},
        {"ranks 99999999999999999999999999\n", DSC_E_FORMAT, "'ranks 999"},
        {"ranks 4\n", DSC_E_INVALID, "a.graph:1: the graph is made for 4 ranks and there are 3: start 4"},
        {"ranks 3\nranks 3\n", DSC_E_FORMAT, "a.graph:2: a second 'ranks'"},
        {"ranks 3\n# no more\n", DSC_E_FORMAT, "a.graph:2: no 'step'"},
        {"ranks 3\nstep 1\n", DSC_E_FORMAT, "a.graph:2: '1' after 'step'"},
        {"ranks 3\n0 1\nstep\n", DSC_E_FORMAT, "a.graph:2: an edge before the first 'step'"},
        {"ranks 3\nstep\nedge\n", DSC_E_FORMAT, "a.graph:3: 'edge' is no rank"},
        {"ranks 3\nstep\n0\n", DSC_E_FORMAT, "a.graph:3: one number alone"},
        {"ranks 3\nstep\n0 1 0.5 7\n", DSC_E_FORMAT, "too many words"},
        {"ranks 3\nstep\n0 1 half\n", DSC_E_FORMAT, "a.graph:3: share 'half' is no number"},
        {"ranks 3\nstep\n0 1 nan\n", DSC_E_FORMAT, "share 'nan'"},
        {"ranks 3\nstep\n0 1 inf\n", DSC_E_FORMAT, "share 'inf'"},
        {"ranks 3\nstep\n0 1 0.5x\n", DSC_E_FORMAT, "share '0.5x'"},
        {"ranks 3\nstep\n0 1 0.10000000000000000000000000000000000000000000000e9\n", DSC_E_FORMAT, "..."},
        {"ranks 3\nstep\n0 1\n1 3\n", DSC_E_INVALID, "a.graph:4: rank 3: with 3 ranks they go from 0 to 2"},
        {"ranks 3\nstep\n-1 1\n", DSC_E_FORMAT, "'-1' is no rank"},
        {"ranks 3\nstep\n1 1\n", DSC_E_INVALID, "a.graph:3: rank 1 sends to itself"},
        {"ranks 3\nstep\n0 1\n0 2\n0 1\n", DSC_E_INVALID, "a.graph:5: '0 1' again, as in line 3"},
        {"ranks 3\nstep\n1 2\n2 1\n0 2\n1 2\n", DSC_E_INVALID, "a.graph:6: '1 2' again, as in line 3"},
        {"ranks 3\nstep\n0 1 0\n", DSC_E_INVALID, "a.graph:3: share 0: must be"},
        {"ranks 3\nstep\n0 1 -0.5\n", DSC_E_INVALID, "share -0.5: must be"},
        {"ranks 3\nstep\n0 1 1\n", DSC_E_INVALID, "share 1: must be"},
        {"ranks 3\nstep\n0 1 1e400\n", DSC_E_INVALID, "share 1e400: must be"},
        {"ranks 3\nstep\n0 1 1e-7\n", DSC_E_INVALID, "at least 1e-06"},
        {"ranks 3\nstep\n0 1 0.5\n1 0\n0 2 0.5\n", DSC_E_INVALID,
         "a.graph:5: with this line rank 0 sends 1 "},
        {"ranks 3\nstep\n0 1 0.5\n0 2 0.4999999\n", DSC_E_INVALID, "rank 0 sends 0.9999999 of its mass"},
        {"ranks 3\nstep\n0 1 0.75\n0 2\n", DSC_E_INVALID, "rank 0 sends 1.08333333 of its mass in step 0"},
        {"ranks 3\nstep\n", DSC_E_INVALID, "no path from rank 0 to rank 1"},
        {"ranks 3\nstep\n0 1\n1 0\n", DSC_E_INVALID, "no path from rank 0 to rank 2"},
        {"ranks 3\nstep\n0 1\n1 0\n2 0\n", DSC_E_INVALID, "no path from rank 0 to rank 2"},
        {"ranks 3\nstep\n0 1\nstep\n1 0\n0 2\n", DSC_E_INVALID, "no path from rank 2 to rank 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dsc_topology *t = NULL;
        assert_fails(cases[i].status, cases[i].message, parse(cases[i].text, strlen(cases[i].text), 3, &t));
        assert_null(t);
    }
    dsc_topology *t =
        parsed("ranks 3\nstep\n0 1\nstep\n0 1\n1 2\nstep\n2 0", 3); /* a path over three steps */
    dsc_topology_destroy(&t);
}

static void test_names(void **state) {
    (void)state;
    dsc_topology *t = NULL;
    char path[64];
    assert_fails(DSC_E_NOT_FOUND, "graph file 'none.graph'", graph_try("none.graph", 3, 1, &t));
    assert_fails(DSC_E_NOT_FOUND, "./none", graph_try("./none", 3, 1, &t));
    assert_fails(DSC_E_IO, "/tmp/", graph_try("/tmp/", 3, 1, &t));
    write_file(path, star);
    assert_fails(DSC_E_INVALID, "made for 4 ranks and there are 1", graph_try(path, 1, 1, &t));
    assert_fails(DSC_E_INVALID, "fixes the number of peers", graph_try(path, 4, 2, &t));
    assert_null(t);
    unlink(path);
}

/* Cut off and with bits flipped: refused, or a graph that holds all that a graph must. */
static void test_fuzz(void **state) {
    (void)state;
    static char good[1 << 14], bad[1 << 14];
    dsc_topology *t = graph_create("base-2", 7, 1);
    print_graph(t, 1, good, sizeof good);
    dsc_topology_destroy(&t);
    size_t size = strlen(good);
    int taken = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        dsc_rng rng = dsc_rng_start(3, DSC_RNG_TEST, 0, i);
        size_t length = i % 4 == 0 ? dsc_rng_below(&rng, (uint32_t)size) : size;
        memcpy(bad, good, size);
        for (uint32_t flips = i % 4 == 0 ? 0 : 1 + dsc_rng_below(&rng, 8); flips > 0; flips--)
            bad[dsc_rng_below(&rng, (uint32_t)size)] ^= (char)(1 << dsc_rng_below(&rng, 8));
        char *exact = malloc(length + 1); /* of its own, so that a sanitizer sees reads after its end */
        assert_non_null(exact);
        memcpy(exact, bad, length);
        exact = realloc(exact, length ? length : 1);
        dsc_status status = parse(exact, length, 7, &t);
        free(exact);
        assert_true(status == DSC_OK || status == DSC_E_FORMAT || status == DSC_E_INVALID);
        if (status != DSC_OK)
            continue;
        graph_check(t);
        dsc_topology_destroy(&t);
        taken++;
    }
    assert_in_range(taken, 100, 19900);
}

static void test_torture(void **state) {
    (void)state;
    char path[64];
    write_file(path, star);
    dsc_status status = DSC_E_MEMORY;
    int64_t nth = 1;
    for (; status == DSC_E_MEMORY; nth++) {
        assert_in_range(nth, 1, 50);
        dsc_topology *t = NULL;
        dsc_memory_fail_at(nth);
        status = graph_try(path, 4, 1, &t);
        dsc_memory_fail_at(0);
        dsc_topology_destroy(&t);
    }
    assert_int_equal(status, DSC_OK);
    assert_true(nth > 8);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_is_named_graph), cmocka_unit_test(test_order), cmocka_unit_test(test_irregular),
        cmocka_unit_test(test_long_period),    cmocka_unit_test(test_rates), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_names),          cmocka_unit_test(test_fuzz),  cmocka_unit_test(test_torture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
