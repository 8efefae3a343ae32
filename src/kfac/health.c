/* Checks that K-FAC has its intended effect: cosines between D and P, refused refreshes, the clip.
 *
 * A step that decomposed leaves <P, D>, <P, P> and <D, D> of every unit and nu on the device. They are copied to
 * the host at the end of that step, and read before the next decomposition or when the caller asks: other steps
 * neither copy nor wait. A condition that held in all steps that decomposed, over at least options.health_steps
 * steps, raises an alarm. */
#include "kfac/internal.h"

#include "base/error.h"
#include "base/versioned.h"

#include <math.h>
#include <stdio.h>

static const double parallel_cosine = 0.999, small_nu = 0.05;

dsc_status dsc_kfac_health_create(dsc_kfac *k) {
    void *memory = NULL;
    dsc_kfac_health_forget(k);
    if (k->unit_count == 0)
        return DSC_OK;
    DSC_TRY(dsc_host_alloc(k->device, (size_t)(3 * k->unit_count + 1) * sizeof(double), &memory));
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
    k->health.smallest = k->health.nu = NAN;
    k->health.before[0] = k->counters[DSC_KFAC_REFRESHED];
    k->health.before[1] = k->counters[DSC_KFAC_FALLBACKS];
    for (int i = 0; i < DSC_KFAC_ALARM_COUNT; i++)
        k->health.since[i] = -1;
}

dsc_status dsc_kfac_health_copy(dsc_kfac *k, dsc_queue *q) {
    dsc_kfac_health_state *h = &k->health;
    dsc_tensor kept = dsc_tensor_slice(&k->products, k->unit_count, 3 * k->unit_count);
    DSC_TRY(dsc_tensor_download(q, &kept, dsc_tensor_bytes(&kept), h->products));
    DSC_TRY(dsc_tensor_download(q, &k->nu_tensor, sizeof(double), h->products + 3 * k->unit_count));
    DSC_TRY(dsc_event_record(h->copied, q));
    h->pending = 1;
    h->step = k->step;
    h->damping = k->hyper.damping;
    h->kl_clip = k->hyper.kl_clip;
    const int64_t accepted = k->counters[DSC_KFAC_REFRESHED], refused = k->counters[DSC_KFAC_FALLBACKS];
    h->refused = refused - h->before[1];
    h->refreshed = accepted - h->before[0] + h->refused;
    h->before[0] = accepted;
    h->before[1] = refused;
    return DSC_OK;
}

static int is_convolution(const dsc_kfac_unit *unit) {
    return unit->kind == DSC_KFAC_CONV2D || unit->kind == DSC_KFAC_CONV_TRANSPOSE2D;
}

/* Returns the smallest cosine of the convolutions that took part, or of all layers if there is no convolution; NaN if
 * none took part. */
static double smallest_cosine(const dsc_kfac *k) {
    const dsc_kfac_plan *plan = k->layouts[0].plan;
    const double *p = k->health.products;
    int64_t n = k->unit_count, convolutions = 0;
    double smallest = NAN;
    for (int64_t u = 0; u < n; u++)
        convolutions += is_convolution(&plan->units[u]);
    for (int64_t u = 0; u < n; u++) {
        double norms = sqrt(p[n + u]) * sqrt(p[2 * n + u]);
        if (norms > 0 && (convolutions == 0 || is_convolution(&plan->units[u])))
            smallest = fmin(smallest, p[u] / norms); /* fmin of a number and a NaN is the number */
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
    h->nu = h->products[3 * k->unit_count];
    const int holds[DSC_KFAC_ALARM_COUNT] = {
        [DSC_KFAC_ALARM_PARALLEL] = h->smallest > parallel_cosine,
        [DSC_KFAC_ALARM_REFUSED] = h->refreshed > 0 && 2 * h->refused >= h->refreshed,
        [DSC_KFAC_ALARM_CLIPPED] = h->nu < small_nu,
    };
    for (int i = 0; i < DSC_KFAC_ALARM_COUNT; i++) {
        if (!holds[i])
            h->since[i] = -1;
        else if (h->since[i] < 0)
            h->since[i] = h->step;
    }
    return DSC_OK;
}

/* Returns 1 if the condition of an alarm has held long enough. */
static int is_given(const dsc_kfac *k, int alarm) {
    int64_t since = k->health.since[alarm];
    return since >= 0 && k->step - since >= k->options.health_steps;
}

dsc_kfac_alarm dsc_kfac_alarm_now(dsc_kfac *kfac, const char **message) {
    dsc_kfac_health_state *h = &kfac->health;
    int alarm = DSC_KFAC_ALARM_NONE + 1;
    while (alarm < DSC_KFAC_ALARM_COUNT && !is_given(kfac, alarm))
        alarm++;
    *message = h->message;
    long long since = alarm < DSC_KFAC_ALARM_COUNT ? (long long)h->since[alarm] : -1;
    switch (alarm) {
    case DSC_KFAC_ALARM_PARALLEL:
        snprintf(h->message, sizeof h->message,
                 "K-FAC has changed nothing but the length of the gradients since step %lld (all cosines are "
                 "above %g): the damping, %g, is large beside the factors; try a smaller one%s",
                 since, parallel_cosine, h->damping,
                 kfac->options.scaling == DSC_KFAC_PAPER ? "" : ", or the scaling 'paper'");
        return DSC_KFAC_ALARM_PARALLEL;
    case DSC_KFAC_ALARM_REFUSED:
        snprintf(
            h->message, sizeof h->message,
            "K-FAC has refused at least half of its refreshed decompositions since step %lld: the factors "
            "change too much between them; decompose more often, or use exact decompositions",
            since);
        return DSC_KFAC_ALARM_REFUSED;
    case DSC_KFAC_ALARM_CLIPPED:
        snprintf(h->message, sizeof h->message,
                 "K-FAC's KL clip has shortened steps to less than %g of their length since step %lld (nu is "
                 "%.2g): the learning rate has no effect on them; raise the clip, %g, or lower the rate",
                 small_nu, since, h->nu, h->kl_clip);
        return DSC_KFAC_ALARM_CLIPPED;
    }
    *message = NULL;
    return DSC_KFAC_ALARM_NONE;
}

dsc_status dsc_kfac_health(dsc_kfac *kfac, dsc_queue *queue, dsc_kfac_health_report *out) {
    (void)queue;
    DSC_TRY(dsc_versioned_check("dsc_kfac_health_report", out, sizeof *out));
    DSC_TRY(dsc_kfac_health_read(kfac));
    int degenerate = is_given(kfac, DSC_KFAC_ALARM_PARALLEL);
    dsc_kfac_health_report report = {.size = sizeof report,
                                     .degenerate = degenerate,
                                     .smallest_cosine = kfac->health.smallest,
                                     .since = degenerate ? kfac->health.since[DSC_KFAC_ALARM_PARALLEL] : -1,
                                     .nu = kfac->health.nu};
    report.alarm = dsc_kfac_alarm_now(kfac, &report.message);
    dsc_versioned_write(&report, out);
    return DSC_OK;
}
