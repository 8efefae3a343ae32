/* Two preconditioners on the same made-up data, one with exact decompositions and one with warm refresh: compares the
 * gradients that rotated bases give with those that exact ones give. */
#ifndef DSC_TESTS_KFAC_PAIR_H
#define DSC_TESTS_KFAC_PAIR_H

#include "base/error.h"
#include "kfac/internal.h"
#include "kfac/net.h"

#include <math.h>
#include <stdlib.h>

/* Fills the net's tensors before the captures of a step. NULL: net_draw and net_draw_gradients do. */
typedef void (*pair_fill)(net *n, int64_t step);

typedef struct pair {
    net *n;
    pair_fill fill;
    dsc_kfac *exact, *warm;
    double *want[NET_LAYERS], *have[NET_LAYERS]; /* gradients after the last step */
    double worst, mean; /* |P - P*| / |P*| of the last step: of a layer, of all together */
    double cosine;      /* the smallest of a layer */
} pair;

/* Factors of up to exact_rows rows are solved exactly by both. */
static inline void pair_open(pair *p, net *n, dsc_comm *c, const dsc_kfac_options *options,
                             int64_t exact_rows) {
    dsc_kfac_layer layers[NET_LAYERS];
    dsc_kfac_options own = *options;
    *p = (pair){.n = n};
    net_describe(n, layers);
    own.refresh = DSC_KFAC_EXACT;
    own.rank = 1;
    assert_ok(dsc_kfac_create(c, n->queue, layers, n->count, &own, &p->exact));
    own.refresh = DSC_KFAC_WARM;
    own.rank = options->rank;
    assert_ok(dsc_kfac_create(c, n->queue, layers, n->count, &own, &p->warm));
    assert_ok(dsc_kfac_refresh_exact_rows(p->warm, exact_rows));
    for (int l = 0; l < n->count; l++) {
        p->want[l] = net_array(net_gradient_count(n, l), sizeof(double));
        p->have[l] = net_array(net_gradient_count(n, l), sizeof(double));
    }
}

static inline void pair_close(pair *p) {
    for (int l = 0; l < p->n->count; l++) {
        free(p->want[l]);
        free(p->have[l]);
    }
    dsc_kfac_destroy(&p->exact);
    dsc_kfac_destroy(&p->warm);
}

static inline void pair_compare(pair *p) {
    double all[2] = {0};
    p->worst = 0;
    p->cosine = 1;
    for (int l = 0; l < p->n->count; l++) {
        double error = 0, norm = 0, have = 0, inner = 0;
        for (int64_t i = 0; i < net_gradient_count(p->n, l); i++) {
            error += pow(p->have[l][i] - p->want[l][i], 2);
            norm += pow(p->want[l][i], 2);
            have += pow(p->have[l][i], 2);
            inner += p->have[l][i] * p->want[l][i];
        }
        all[0] += error;
        all[1] += norm;
        if (!(sqrt(error / norm) <= p->worst))
            p->worst = sqrt(error / norm);
        if (!(inner / sqrt(norm * have) >= p->cosine))
            p->cosine = inner / sqrt(norm * have);
    }
    p->mean = sqrt(all[0] / all[1]);
}

static inline dsc_status pair_run(pair *p, dsc_kfac *kfac, const net_step *step) {
    net *n = p->n;
    if (!p->fill)
        return net_run(n, kfac, step);
    DSC_TRY(dsc_kfac_begin(kfac, 1));
    p->fill(n, step->number);
    for (int l = n->count - 1; l >= 0; l--)
        DSC_TRY(dsc_kfac_capture(kfac, n->queue, l, &n->layers[l].a, &n->layers[l].g));
    DSC_TRY(dsc_kfac_step(kfac, n->queue, step->lr));
    return dsc_queue_sync(n->queue);
}

/* Runs the same step on both, and compares the gradients. */
static inline void pair_step(pair *p, const net_step *step) {
    assert_ok(pair_run(p, p->exact, step));
    for (int l = 0; l < p->n->count; l++)
        net_read(p->n, l, p->want[l]);
    assert_ok(pair_run(p, p->warm, step));
    for (int l = 0; l < p->n->count; l++)
        net_read(p->n, l, p->have[l]);
    pair_compare(p);
}

static inline const dsc_kfac_report *pair_report(const pair *p) {
    const dsc_kfac_report *report = NULL;
    assert_ok(dsc_kfac_get_report(p->warm, p->n->queue, &report));
    return report;
}

#endif
