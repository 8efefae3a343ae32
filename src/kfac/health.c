/* Whether K-FAC still does more than change the length of gradients.
 *
 * A step that decomposed leaves <P, D>, <P, P> and <D, D> of every unit on the device. They are copied to the
 * host at the end of that step, and read before the next decomposition or when the caller asks. */
#include "kfac/internal.h"

#include "base/error.h"
#include "base/versioned.h"

#include <math.h>

static const double parallel_cosine = 0.999;
enum { LEAST_STEPS = 100 };

dsc_status dsc_kfac_health_create(dsc_kfac *k) {
    void *memory = NULL;
    k->health = (dsc_kfac_health_state){.smallest = NAN, .since = -1};
    if (k->unit_count == 0)
        return DSC_OK;
    DSC_TRY(dsc_host_alloc(k->device, (size_t)(3 * k->unit_count) * sizeof(double), &memory));
    k->health.products = memory;
    return dsc_event_create(k->device, &k->health.copied);
}

void dsc_kfac_health_destroy(dsc_kfac *k) {
    void *memory = k->health.products;
    if (memory)
        dsc_host_free(k->device, &memory);
    dsc_event_destroy(&k->health.copied);
}

void dsc_kfac_health_forget(dsc_kfac *k) {
    k->health.pending = 0;
    k->health.smallest = NAN;
    k->health.since = -1;
}

dsc_status dsc_kfac_health_copy(dsc_kfac *k, dsc_queue *q) {
    dsc_tensor kept = dsc_tensor_slice(&k->products, k->unit_count, 3 * k->unit_count);
    DSC_TRY(dsc_tensor_download(q, &kept, dsc_tensor_bytes(&kept), k->health.products));
    DSC_TRY(dsc_event_record(k->health.copied, q));
    k->health.pending = 1;
    k->health.step = k->step;
    return DSC_OK;
}

/* The smallest cosine of the convolutions that took part, of all layers where there is no convolution; NaN:
 * none did. */
static double smallest_cosine(const dsc_kfac *k) {
    const dsc_kfac_plan *plan = k->layouts[0].plan;
    const double *p = k->health.products;
    int64_t n = k->unit_count, convolutions = 0;
    double smallest = NAN;
    for (int64_t u = 0; u < n; u++)
        convolutions += plan->units[u].kind == DSC_KFAC_CONV2D;
    for (int64_t u = 0; u < n; u++) {
        double norms = sqrt(p[n + u]) * sqrt(p[2 * n + u]);
        if (norms > 0 && (convolutions == 0 || plan->units[u].kind == DSC_KFAC_CONV2D))
            smallest = fmin(smallest, p[u] / norms); /* fmin takes the number of a number and a NaN */
    }
    return smallest;
}

dsc_status dsc_kfac_health_read(dsc_kfac *k) {
    dsc_kfac_health_state *h = &k->health;
    if (!h->pending)
        return DSC_OK;
    DSC_TRY(dsc_event_sync(h->copied));
    h->pending = 0;
    h->smallest = smallest_cosine(k);
    if (!(h->smallest > parallel_cosine))
        h->since = -1;
    else if (h->since < 0)
        h->since = h->step;
    return DSC_OK;
}

int64_t dsc_kfac_degenerate_since(const dsc_kfac *kfac) {
    int64_t since = kfac->health.since;
    return since >= 0 && kfac->step - since >= LEAST_STEPS ? since : -1;
}

dsc_status dsc_kfac_health(dsc_kfac *kfac, dsc_queue *queue, dsc_kfac_health_report *out) {
    (void)queue;
    DSC_TRY(dsc_versioned_check("dsc_kfac_health_report", out, sizeof *out));
    DSC_TRY(dsc_kfac_health_read(kfac));
    dsc_kfac_health_report report = {.size = sizeof report,
                                     .degenerate = dsc_kfac_degenerate_since(kfac) >= 0,
                                     .smallest_cosine = kfac->health.smallest,
                                     .since = dsc_kfac_degenerate_since(kfac)};
    dsc_versioned_write(&report, out);
    return DSC_OK;
}
