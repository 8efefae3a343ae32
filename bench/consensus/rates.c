/* How fast the graphs average: the expected exact steps and contraction rates (rho: the factor by which a step
 * shrinks the differences between ranks, in the long run) beside those that dsc_topology_rate finds in the matrices.
 * Pure arithmetic. Exits with 1 when a figure differs in a printed digit. */
#include "descent/topology.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_RANKS = 32, COLUMNS = 4 };

/* The expected figures, as printed: "2" for exact after 2 steps, ".3333" for a rate. */
typedef struct row {
    const char *title, *name;
    int peers;
    int ranks[COLUMNS];
    const char *expected[COLUMNS];
    const char *closed_form;
} row;

static const row rows[] = {
    {"exponential, k=1", "exponential", 1, {4, 8, 16, 32}, {"2", "3", "4", "5"}, "log2 n"},
    {"hypercube", "hypercube", 1, {4, 8, 16, 32}, {"2", "3", "4", "5"}, "log2 n"},
    {"exponential-pm, k=1", "exponential-pm", 1, {4, 8, 16, 32}, {"3", "5", "7", "9"}, "2 log2 n - 1"},
    {"exponential, k=2",
     "exponential",
     2,
     {4, 8, 16, 32},
     {".3333", ".3333", ".5404", ".5950"},
     "exact if n = 3^m or 2 3^m"},
    {"bipartite-exponential", "bipartite-exponential", 1, {4, 8, 16, 32}, {"2", "3", "5", ".6244"}, ""},
    {"static-exponential",
     "static-exponential",
     1,
     {4, 8, 16, 32},
     {".3333", ".5000", ".6000", ".6667"},
     "1 - 2/(1 + log2 n)"},
    {"ring, k=2", "ring", 2, {4, 8, 16, 32}, {".3333", ".8047", ".9493", ".9872"}, "(1 + 2 cos(2 pi/n))/3"},
    {"ring, k=1", "ring", 1, {4, 8, 16, 32}, {".7071", ".9239", ".9808", ".9952"}, "cos(pi/n)"},
    {"exponential, k=1", "exponential", 1, {5, 6, 7, 12}, {".587", ".6005", ".500", ".676"}, "never exact"},
    {"exponential, k=2", "exponential", 2, {9, 18, 27, 6}, {"2", "3", "3", "2"}, "3^m or 2 3^m"},
    {"base-2", "base-2", 1, {3, 5, 6, 7}, {"3", "5", "4", "5"}, "exact for every n"},
    {"base-2", "base-2", 1, {9, 12, 16, 24}, {"7", "5", "4", "6"}, ""},
    {"base-2", "base-2", 1, {32}, {"5"}, ""},
};

static const char *const first_step_expected[COLUMNS] = {".7071", ".9239", ".9808", ".9952"};

/* Formats a figure like the expected one: a whole number, or as many digits after the point. */
static const char *print_like(const char *expected, int64_t exact, double rho, char *text, size_t size) {
    if (exact)
        snprintf(text, size, "%d", (int)exact);
    else
        snprintf(text, size, "%.*f", (int)strlen(expected) - 1, rho);
    return text[0] == '0' ? text + 1 : text;
}

/* Returns 1 when the figures differ. */
static int print_cell(int ranks, const char *expected, int64_t exact, double rho) {
    char text[32];
    const char *found = print_like(expected, exact, rho, text, sizeof text);
    int differs = strcmp(expected, found) != 0;
    printf(" | n=%-2d %5s %5s%s", ranks, expected, found, differs ? "!" : " ");
    return differs;
}

static dsc_status open_graph(const char *name, int ranks, int peers, dsc_topology **out) {
    dsc_topology_options options;
    dsc_topology_options_init(&options);
    options.peers = peers;
    return dsc_topology_create(name, ranks, &options, out);
}

static dsc_status print_row(const row *r, int *differ) {
    printf("%-34s", r->title);
    for (int i = 0; i < COLUMNS && r->ranks[i]; i++) {
        dsc_topology *t = NULL;
        int64_t exact = 0;
        double rho = 0;
        dsc_status status = open_graph(r->name, r->ranks[i], r->peers, &t);
        if (status == DSC_OK)
            status = dsc_topology_rate(t, &exact, &rho);
        dsc_topology_destroy(&t);
        if (status != DSC_OK)
            return status;
        *differ += print_cell(r->ranks[i], r->expected[i], exact, rho);
    }
    printf(" | %s\n", r->closed_form);
    return DSC_OK;
}

/* y = W_0 x, or its transpose. */
static void multiply(const dsc_topology *t, int transposed, const double *x, double *y) {
    int n = dsc_topology_ranks(t);
    memset(y, 0, (size_t)n * sizeof *y);
    for (int r = 0; r < n; r++) {
        dsc_edge edges[MOST_RANKS];
        double self;
        int count = dsc_topology_out(t, r, 0, edges, &self);
        y[r] += self * x[r];
        for (int e = 0; e < count; e++) {
            int other = edges[e].rank;
            y[transposed ? r : other] += edges[e].share * x[transposed ? other : r];
        }
    }
}

/* The second singular value of the first step's matrix: power iteration with W'W on vectors of sum 0. */
static double second_singular(const dsc_topology *t) {
    int n = dsc_topology_ranks(t);
    double x[MOST_RANKS], y[MOST_RANKS], norm = 0;
    for (int i = 0; i < n; i++)
        x[i] = sin(1 + i * i);
    for (int round = 0; round < 5000; round++) {
        double mean = 0, sum = 0;
        for (int i = 0; i < n; i++)
            mean += x[i] / n;
        for (int i = 0; i < n; i++)
            x[i] -= mean;
        multiply(t, 0, x, y);
        multiply(t, 1, y, x);
        for (int i = 0; i < n; i++)
            sum += x[i] * x[i];
        norm = sqrt(sum);
        for (int i = 0; i < n; i++)
            x[i] /= norm;
    }
    return sqrt(norm);
}

static dsc_status print_first_step(int *differ) {
    printf("%-34s", "exponential, k=1: sigma2 of a step");
    for (int i = 0; i < COLUMNS; i++) {
        dsc_topology *t = NULL;
        dsc_status status = open_graph("exponential", 4 << i, 1, &t);
        if (status != DSC_OK)
            return status;
        *differ += print_cell(4 << i, first_step_expected[i], 0, second_singular(t));
        dsc_topology_destroy(&t);
    }
    printf(" | cos(pi/n)\n");
    return DSC_OK;
}

int main(void) {
    int differ = 0;
    printf(
        "Whole numbers: exact average after so many steps. Fractions: rho, contraction per step. Expected, "
        "then found.\n\n");
    dsc_status status = print_first_step(&differ);
    for (size_t i = 0; i < sizeof rows / sizeof *rows && status == DSC_OK; i++)
        status = print_row(&rows[i], &differ);
    if (status != DSC_OK) {
        fprintf(stderr, "rates: %s\n", dsc_error_message());
        return 1;
    }
    printf("\n%d figures differ\n", differ);
    return differ != 0;
}
