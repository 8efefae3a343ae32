#include "consensus/graphs.h"

#include <math.h>

dsc_status graph_try(const char *name, int n, int k, dsc_topology **out) {
    dsc_topology_options options;
    dsc_topology_options_init(&options);
    options.peers = k;
    return dsc_topology_create(name, n, &options, out);
}

dsc_topology *graph_create(const char *name, int n, int k) {
    dsc_topology *t = NULL;
    assert_ok(graph_try(name, n, k, &t));
    return t;
}

int graph_is_one_of(const char *name, const char *const *list) {
    for (; *list; list++)
        if (strcmp(name, *list) == 0)
            return 1;
    return 0;
}

int graph_is_possible(const char *name, int n, int k) {
    static const char *const free_peers[] = {"exponential", "exponential-pm", "linear", "ring", NULL};
    if (strncmp(name, "bipartite", 9) == 0 && n % 2)
        return 0;
    if (strcmp(name, "hypercube") == 0 && (n & (n - 1)))
        return 0;
    if (strcmp(name, "ring") == 0 && k > 2)
        return 0;
    return k == 1 || (k <= n - 1 && graph_is_one_of(name, free_peers));
}

double graph_matrix[GRAPH_MOST][GRAPH_MOST];
static double from_in[GRAPH_MOST][GRAPH_MOST];

void graph_fill_matrix(const dsc_topology *t, int64_t step, int *most) {
    int n = dsc_topology_ranks(t);
    dsc_edge edges[GRAPH_MOST];
    memset(graph_matrix, 0, sizeof graph_matrix);
    memset(from_in, 0, sizeof from_in);
    for (int r = 0; r < n; r++) {
        double self = -1;
        int count = dsc_topology_out(t, r, step, edges, &self);
        assert_in_range(count, 0, dsc_topology_most_peers(t));
        *most = count > *most ? count : *most;
        graph_matrix[r][r] = from_in[r][r] = self;
        for (int i = 0; i < count; i++) {
            assert_in_range(edges[i].rank, 0, n - 1);
            assert_int_not_equal(edges[i].rank, r);
            assert_true(graph_matrix[edges[i].rank][r] == 0); /* not twice */
            assert_true(edges[i].share > 0);
            graph_matrix[edges[i].rank][r] = edges[i].share;
        }
        count = dsc_topology_in(t, r, step, edges);
        assert_in_range(count, 0, dsc_topology_most_peers(t));
        *most = count > *most ? count : *most;
        for (int i = 0; i < count; i++) {
            assert_true(i == 0 || edges[i].rank > edges[i - 1].rank);
            from_in[r][edges[i].rank] = edges[i].share;
        }
    }
    assert_memory_equal(graph_matrix, from_in, sizeof graph_matrix);
}

static void check_matrix(const dsc_topology *t) {
    int n = dsc_topology_ranks(t);
    for (int r = 0; r < n; r++) {
        double column = 0, row = 0;
        int sent = 0;
        assert_true(graph_matrix[r][r] > 0);
        for (int i = 0; i < n; i++) {
            column += graph_matrix[i][r];
            row += graph_matrix[r][i];
            sent += i != r && graph_matrix[i][r] > 0;
            if (dsc_topology_is_matching(t))
                assert_memory_equal(&graph_matrix[i][r], &graph_matrix[r][i], sizeof(double));
        }
        assert_true(fabs(column - 1) < 1e-14);
        if (dsc_topology_is_regular(t))
            assert_true(fabs(row - 1) < 2e-12); /* a file's shares are rounded */
        if (dsc_topology_is_matching(t))
            assert_in_range(sent, 0, 1);
    }
}

void graph_check(const dsc_topology *t) {
    int most = 0;
    for (int64_t step = 0; step < dsc_topology_period(t); step++) {
        graph_fill_matrix(t, step, &most);
        check_matrix(t);
    }
    assert_int_equal(most, dsc_topology_most_peers(t));
}

void graph_assert_same_step(const dsc_topology *a, const dsc_topology *b, int64_t step, int64_t other) {
    for (int r = 0; r < dsc_topology_ranks(a); r++) {
        dsc_edge x[GRAPH_MOST], y[GRAPH_MOST];
        double self[2];
        int count = dsc_topology_out(a, r, step, x, &self[0]);
        assert_int_equal(dsc_topology_out(b, r, other, y, &self[1]), count);
        assert_true(self[0] == self[1]);
        for (int i = 0; i < count; i++)
            assert_true(x[i].rank == y[i].rank && x[i].share == y[i].share);
        assert_int_equal(dsc_topology_in(a, r, step, x), dsc_topology_in(b, r, other, y));
    }
}
