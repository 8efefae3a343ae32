/* Computes how fast a graph averages, from its matrices.
 *
 * With Q = I - 1 1'/n, D_t = Q W_t .. W_1 Q maps the differences between ranks at the start to those after
 * step t: every rank holds the average if and only if D_t = 0. The columns of W sum to 1, so W maps
 * vectors of sum 0 to vectors of sum 0, and D of a period has the eigenvalues of the period's product
 * except the 1 that belongs to the average. Applying Q again after every step removes the rounding errors
 * in that direction, so D keeps its relative precision however small it gets. D is scaled so that its largest
 * entry is 1, and the scale is kept as a logarithm. If a schedule averages exactly, the norm falls to the size
 * of rounding errors in one step.
 *
 * The largest modulus of an eigenvalue is lim |D^m|^(1/m) and is found by squaring D: this needs no
 * eigenvectors, and complex eigenvalues and defective matrices are not special cases. */
#include "consensus/topology_table.h"

#include "base/error.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

enum { MAX_RANKS = 1024, PERIODS = 4, MAX_SQUARINGS = 40 };
static const double rounding = 1e-12; /* relative to norm 1 */

typedef struct work {
    int64_t n;
    double *now, *next; /* n x n */
    double *means;      /* n */
    dsc_edge *edges;
} work;

static void swap(work *w) {
    double *old = w->now;
    w->now = w->next;
    w->next = old;
}

/* Subtracts from every column of w->now its mean, that is, computes Q D. */
static void subtract_means(work *w) {
    int64_t n = w->n;
    memset(w->means, 0, (size_t)n * sizeof *w->means);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            w->means[j] += w->now[i * n + j] / (double)n;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            w->now[i * n + j] -= w->means[j];
}

/* Scales w->now so that its largest absolute entry is 1, unless that is a rounding error. Returns that entry. */
static double scale(work *w) {
    double most = 0;
    for (int64_t i = 0; i < w->n * w->n; i++)
        most = fabs(w->now[i]) > most ? fabs(w->now[i]) : most;
    if (most > rounding)
        for (int64_t i = 0; i < w->n * w->n; i++)
            w->now[i] /= most;
    return most;
}

static void start_from_differences(work *w) {
    for (int64_t i = 0; i < w->n; i++)
        for (int64_t j = 0; j < w->n; j++)
            w->now[i * w->n + j] = (i == j) - 1.0 / (double)w->n;
}

/* w->now <- W_step w->now. */
static void apply_step(work *w, const dsc_topology *t, int64_t step) {
    int64_t n = w->n;
    memset(w->next, 0, (size_t)(n * n) * sizeof *w->next);
    for (int r = 0; r < (int)n; r++) {
        double self;
        int count = dsc_topology_out(t, r, step, w->edges, &self);
        const double *from = w->now + r * n;
        for (int64_t j = 0; j < n; j++)
            w->next[r * n + j] += self * from[j];
        for (int e = 0; e < count; e++) {
            double *to = w->next + w->edges[e].rank * n;
            for (int64_t j = 0; j < n; j++)
                to[j] += w->edges[e].share * from[j];
        }
    }
    swap(w);
}

/* Follows the steps of some periods. *exact is as in dsc_topology_rate; if it is 0, w->now holds the scaled D after
 * these steps, and *log_scale the logarithm of its scale. */
static void follow_steps(work *w, const dsc_topology *t, int64_t periods, int64_t *exact, double *log_scale) {
    start_from_differences(w);
    *log_scale = 0;
    *exact = 0;
    for (int64_t step = 0; step < periods * t->period; step++) {
        apply_step(w, t, step);
        subtract_means(w);
        double norm = scale(w);
        if (norm <= rounding) {
            *exact = step + 1;
            return;
        }
        *log_scale += log(norm);
    }
}

static void square(work *w) {
    int64_t n = w->n;
    memset(w->next, 0, (size_t)(n * n) * sizeof *w->next);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < n; k++) {
            double a = w->now[i * n + k];
            const double *from = w->now + k * n;
            double *to = w->next + i * n;
            for (int64_t j = 0; j < n; j++)
                to[j] += a * from[j];
        }
    swap(w);
}

/* Returns the logarithm of the largest modulus of an eigenvalue of e^log_scale * w->now; -inf if all are 0. Uses the
 * growth from D^m to D^2m, which converges sooner than |D^m|^(1/m). */
static double largest_modulus(work *w, double log_scale) {
    double log_norm = log_scale, power = 1, last = INFINITY;
    for (int i = 0; i < MAX_SQUARINGS; i++) {
        square(w);
        subtract_means(w);
        double norm = scale(w);
        if (norm <= rounding)
            return -INFINITY;
        double grown = 2 * log_norm + log(norm), rate = (grown - log_norm) / power;
        if (fabs(rate - last) < rounding)
            return rate;
        last = rate;
        log_norm = grown;
        power *= 2;
    }
    return last;
}

static void find_rate(work *w, const dsc_topology *t, int64_t *exact, double *rho) {
    double log_scale;
    *rho = 0;
    follow_steps(w, t, PERIODS, exact, &log_scale);
    if (*exact)
        return;
    int64_t none;
    follow_steps(w, t, 1, &none, &log_scale);
    *rho = exp(largest_modulus(w, log_scale) / (double)t->period);
}

dsc_status dsc_topology_rate(const dsc_topology *topology, int64_t *exact, double *rho) {
    int64_t n = topology->ranks;
    if (n > MAX_RANKS)
        return DSC_FAIL(DSC_E_UNSUPPORTED,
                        "the contraction rate of %d ranks: found for up to %d, from matrices of that size",
                        topology->ranks, (int)MAX_RANKS);
    work w = {.n = n};
    dsc_status status;
    DSC_TRY_GOTO(status, dsc_memory_alloc(n * n, sizeof *w.now, &w.now), out);
    DSC_TRY_GOTO(status, dsc_memory_alloc(n * n, sizeof *w.next, &w.next), out);
    DSC_TRY_GOTO(status, dsc_memory_alloc(n, sizeof *w.means, &w.means), out);
    DSC_TRY_GOTO(status, dsc_memory_alloc(topology->most_peers, sizeof *w.edges, &w.edges), out);
    find_rate(&w, topology, exact, rho);
out:
    dsc_memory_free(&w.now);
    dsc_memory_free(&w.next);
    dsc_memory_free(&w.means);
    dsc_memory_free(&w.edges);
    return status;
}
