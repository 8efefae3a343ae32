/* Reports, gathered from all ranks.
 *
 *   cosine       <P, D> / (|P| |D|) in the last step that decomposed
 *   condition    (a_max g_max + damping) / (a_min g_min + damping), from its eigenvalues */
#include "base/error.h"
#include "base/memory.h"
#include "kfac/kfac_parts.h"
#include "kfac/refresh.h"

#include <math.h>
#include <string.h>

enum { EXTREMES = 4 }; /* numbers for each unit: -min and max of A, then of G */
/* Of the spectra of A and G together: how many numbers are added up over the ranks; how many maxima there are (-least
 * and most of each). */
enum { SPECTRUM_SUMS = 2 * (3 + DSC_KFAC_SPECTRUM_BUCKETS), SPECTRUM_ENDS = 4 };

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

dsc_status dsc_kfac_report_create(dsc_kfac *k) {
    int64_t items =
        larger(k->layouts[0].plan->item_count, k->layout_count > 1 ? k->layouts[1].plan->item_count : 0);
    int64_t count = larger(larger(DSC_KFAC_UPKEEP_NUMBERS * items, EXTREMES * k->unit_count),
                           larger(DSC_KFAC_COUNTERS + k->ranks, 2 * DSC_KFAC_SIDES * k->unit_count));
    count = larger(larger(count, 2 * items), SPECTRUM_SUMS);
    DSC_TRY(dsc_memory_alloc(k->unit_count, sizeof *k->layer_reports, &k->layer_reports));
    DSC_TRY(dsc_memory_alloc(k->ranks, sizeof *k->report_work, &k->report_work));
    DSC_TRY(dsc_memory_alloc(k->ranks, sizeof *k->report_solve_ms, &k->report_solve_ms));
    DSC_TRY(dsc_memory_alloc(3 * k->unit_count, sizeof *k->report_products, &k->report_products));
    DSC_TRY(dsc_memory_alloc(k->unit_count, sizeof *k->report_nus, &k->report_nus));
    DSC_TRY(dsc_memory_alloc(count, sizeof *k->gathered_host, &k->gathered_host));
    DSC_TRY(dsc_memory_alloc(EXTREMES * k->unit_count, sizeof *k->report_extremes, &k->report_extremes));
    return dsc_tensor_alloc(k->device, DSC_F64, 1, &count, &k->gathered);
}

/* Reduces `count` numbers of gathered_host over all ranks. */
static dsc_status reduce(dsc_kfac *k, dsc_queue *q, int64_t count, dsc_reduction op) {
    dsc_tensor t = dsc_tensor_slice(&k->gathered, 0, count);
    size_t bytes = dsc_tensor_bytes(&t);
    DSC_TRY(dsc_tensor_upload(q, k->gathered_host, bytes, &t));
    DSC_TRY(dsc_queue_sync(q));
    DSC_TRY(dsc_comm_allreduce(k->control, DSC_TRAFFIC_OTHER, op, &t));
    DSC_TRY(dsc_tensor_download(q, &t, bytes, k->gathered_host));
    return dsc_queue_sync(q);
}

/* Counts the batch factors that were rejected, each on the rank that owns the factor only. */
static dsc_status count_rejected(dsc_kfac *k, dsc_queue *q, double *out) {
    *out = 0;
    if (k->unit_count == 0)
        return DSC_OK;
    DSC_TRY(dsc_tensor_download(q, &k->bad, dsc_tensor_bytes(&k->bad), k->gathered_host));
    DSC_TRY(dsc_queue_sync(q));
    for (int64_t i = 0; i < DSC_KFAC_SIDES * k->unit_count; i++) {
        const dsc_kfac_factor *f = &k->members[i / 2].factor[i % 2];
        if (!f->shared && f->owner == k->rank)
            *out += k->gathered_host[2 * f->slot + 1];
    }
    return DSC_OK;
}

/* Gathers the counters, summed over the ranks, and the solve time of each rank, which is summed with zeros from the
 * others. */
static dsc_status gather_counters(dsc_kfac *k, dsc_queue *q, double counters[DSC_KFAC_COUNTERS],
                                  double *solve_ms) {
    double rejected;
    DSC_TRY(count_rejected(k, q, &rejected));
    for (int i = 0; i < DSC_KFAC_COUNTERS; i++) {
        k->gathered_host[i] = i == DSC_KFAC_REJECTED ? rejected : (double)k->counters[i];
        if (k->rank == 0)
            k->gathered_host[i] += (double)k->counted[i];
    }
    for (int r = 0; r < k->ranks; r++)
        k->gathered_host[DSC_KFAC_COUNTERS + r] = r == k->rank ? k->solve_ms : 0;
    DSC_TRY(reduce(k, q, DSC_KFAC_COUNTERS + k->ranks, DSC_SUM));
    for (int i = 0; i < DSC_KFAC_COUNTERS; i++)
        counters[i] = k->gathered_host[i];
    for (int r = 0; solve_ms && r < k->ranks; r++)
        solve_ms[r] = k->gathered_host[DSC_KFAC_COUNTERS + r];
    return DSC_OK;
}

dsc_status dsc_kfac_totals(dsc_kfac *k, dsc_queue *q, int64_t totals[DSC_KFAC_COUNTERS]) {
    double counters[DSC_KFAC_COUNTERS];
    DSC_TRY(gather_counters(k, q, counters, NULL));
    for (int i = 0; i < DSC_KFAC_COUNTERS; i++)
        totals[i] = (int64_t)counters[i];
    return DSC_OK;
}

/* Reads the smallest and largest eigenvalue of this rank's items into gathered_host, [2 items]. Exact solves give
 * eigenvalues in ascending order, so the first and the last are enough; those of a rotated basis have no order. */
static dsc_status read_extremes(dsc_kfac *k, dsc_queue *q, const dsc_kfac_layout *layout) {
    int64_t items = layout->plan->item_count;
    if (k->wave) {
        DSC_TRY(dsc_kfac_refresh_extremes(k, q, layout));
        for (int64_t i = 0; i < items; i++) {
            k->gathered_host[2 * i] = k->wave->smallest[i];
            k->gathered_host[2 * i + 1] = k->wave->largest[i];
        }
        return DSC_OK;
    }
    for (int64_t i = 0; i < items; i++) {
        const dsc_tensor *v = &layout->bases[i].values;
        if (layout->plan->items[i].owner != k->rank)
            continue;
        for (int end = 0; end < 2; end++) {
            dsc_tensor from = dsc_tensor_slice(v, end ? v->dim[0] - 1 : 0, 1);
            dsc_tensor to = dsc_tensor_slice(&k->gathered, 2 * i + end, 1);
            DSC_TRY(dsc_op_convert(q, &from, &to));
        }
    }
    dsc_tensor all = dsc_tensor_slice(&k->gathered, 0, 2 * items);
    DSC_TRY(dsc_tensor_download(q, &all, dsc_tensor_bytes(&all), k->gathered_host));
    return dsc_queue_sync(q);
}

/* Gathers the same for both factors of every unit, over its blocks, from their owners. Minima are sent negated, as
 * maxima. */
static dsc_status gather_extremes(dsc_kfac *k, dsc_queue *q) {
    const dsc_kfac_layout *layout = &k->layouts[k->active];
    int64_t items = layout->plan->item_count, count = EXTREMES * k->unit_count;
    double *extremes = k->report_extremes;
    DSC_TRY(read_extremes(k, q, layout));
    for (int64_t i = 0; i < count; i++)
        extremes[i] = -INFINITY;
    for (int64_t i = 0; i < items; i++) {
        const dsc_kfac_item *item = &layout->plan->items[i];
        double *of = extremes + EXTREMES * item->unit + (item->side == DSC_KFAC_A ? 0 : 2);
        if (item->owner != k->rank)
            continue;
        of[0] = fmax(of[0], -k->gathered_host[2 * i]);
        of[1] = fmax(of[1], k->gathered_host[2 * i + 1]);
    }
    memcpy(k->gathered_host, extremes, (size_t)count * sizeof *extremes);
    return reduce(k, q, count, DSC_MAX);
}

static void fill_layers(dsc_kfac *k, int eigen) {
    const dsc_kfac_plan *plan = k->layouts[k->active].plan;
    int64_t n = k->unit_count;
    for (int64_t u = 0; u < n; u++) {
        dsc_kfac_layer_report *r = &k->layer_reports[u];
        const double *p = k->report_products + u, *g = k->gathered_host + EXTREMES * u + 2;
        const double *a = k->gathered_host + EXTREMES * plan->a_unit[u];
        double norms = sqrt(p[n]) * sqrt(p[2 * n]);
        *r = (dsc_kfac_layer_report){.name = plan->units[u].name,
                                     .cosine = norms > 0 ? p[0] / norms : NAN,
                                     .a_min = eigen ? -a[0] : NAN,
                                     .a_max = eigen ? a[1] : NAN,
                                     .g_min = eigen ? -g[0] : NAN,
                                     .g_max = eigen ? g[1] : NAN};
        r->condition = (r->a_max * r->g_max + k->used_damping) / (r->a_min * r->g_min + k->used_damping);
    }
}

/* ---- the spectrum ---- */

static void count_value(double value, dsc_kfac_spectrum *s) {
    double least = DSC_KFAC_SPECTRUM_LEAST, most = DSC_KFAC_SPECTRUM_MOST;
    double log = value > 0 ? fmin(fmax(log10(value), least), most) : least;
    int64_t bucket = (int64_t)((log - least) * DSC_KFAC_SPECTRUM_PER_DECADE);
    s->buckets[bucket < DSC_KFAC_SPECTRUM_BUCKETS ? bucket : DSC_KFAC_SPECTRUM_BUCKETS - 1]++;
    s->count++;
    s->sum += log;
    s->squares += log * log;
    s->least = fmin(s->least, log);
    s->most = fmax(s->most, log);
}

/* Counts the eigenvalues of the factors that this rank decomposes. */
static dsc_status count_values(dsc_kfac *k, dsc_queue *q, dsc_kfac_spectrum spectrum[2]) {
    const dsc_kfac_layout *layout = &k->layouts[k->active];
    const dsc_tensor *all = &layout->values;
    void *host = NULL;
    if (!all->data)
        return DSC_OK;
    DSC_TRY(dsc_memory_alloc((int64_t)dsc_tensor_bytes(all), 1, &host));
    dsc_status status = dsc_tensor_download(q, all, dsc_tensor_bytes(all), host);
    if (status == DSC_OK)
        status = dsc_queue_sync(q);
    for (int64_t i = 0; status == DSC_OK && i < layout->plan->item_count; i++) {
        const dsc_kfac_item *item = &layout->plan->items[i];
        const dsc_tensor *v = &layout->bases[i].values;
        if (item->owner != k->rank || !v->data)
            continue;
        const void *from = (const char *)host + ((const char *)v->data - (const char *)all->data);
        for (int64_t j = 0; j < v->dim[0]; j++)
            count_value(v->dtype == DSC_F64 ? ((const double *)from)[j] : (double)((const float *)from)[j],
                        &spectrum[item->side == DSC_KFAC_G]);
    }
    dsc_memory_free(&host);
    return status;
}

dsc_status dsc_kfac_get_spectrum(dsc_kfac *kfac, dsc_queue *queue, dsc_kfac_spectrum spectrum[2]) {
    dsc_kfac *k = kfac;
    double *numbers = k->gathered_host;
    for (int s = 0; s < 2; s++)
        spectrum[s] = (dsc_kfac_spectrum){.least = INFINITY, .most = -INFINITY};
    if (k->options.method != DSC_KFAC_EIGEN || !k->decomposed || k->unit_count == 0)
        return DSC_OK;
    DSC_TRY(count_values(k, queue, spectrum));
    for (int s = 0; s < 2; s++) { /* count, sum, squares and the buckets are contiguous */
        memcpy(numbers + s * (SPECTRUM_SUMS / 2), &spectrum[s].count, SPECTRUM_SUMS / 2 * sizeof *numbers);
    }
    DSC_TRY(reduce(k, queue, SPECTRUM_SUMS, DSC_SUM));
    for (int s = 0; s < 2; s++)
        memcpy(&spectrum[s].count, numbers + s * (SPECTRUM_SUMS / 2), SPECTRUM_SUMS / 2 * sizeof *numbers);
    for (int s = 0; s < 2; s++) {
        numbers[2 * s] = -spectrum[s].least;
        numbers[2 * s + 1] = spectrum[s].most;
    }
    DSC_TRY(reduce(k, queue, SPECTRUM_ENDS, DSC_MAX));
    for (int s = 0; s < 2; s++) {
        spectrum[s].least = -numbers[2 * s];
        spectrum[s].most = numbers[2 * s + 1];
    }
    return DSC_OK;
}

/* ---- memory ---- */

static size_t bytes_of(const dsc_tensor *t) {
    return t->data ? dsc_tensor_bytes(t) : 0;
}

static void fill_bytes(const dsc_kfac *k, dsc_kfac_report *r) {
    const dsc_tensor *const scratch[] = {&k->gram,     &k->packed,       &k->half,     &k->spare,
                                         &k->solve,    &k->solve_values, &k->work,     &k->joined,
                                         &k->messages, &k->images,       &k->shared_d, &k->means};
    r->factor_bytes = bytes_of(&k->averages) + bytes_of(&k->norms.averages) + bytes_of(&k->tables.averages);
    r->exchange_bytes = bytes_of(&k->batches) + bytes_of(&k->moments.batches) + bytes_of(&k->norms.batches) +
                        bytes_of(&k->tables.batches);
    r->decomposition_bytes =
        bytes_of(&k->moments.memory) + bytes_of(&k->moments.foreign_memory) + bytes_of(&k->tables.bases);
    r->work_bytes = bytes_of(&k->moments.old) + bytes_of(&k->moments.work) + bytes_of(&k->norms.work) +
                    bytes_of(&k->tables.solved) + bytes_of(&k->tables.between) + bytes_of(&k->tables.full) +
                    bytes_of(&k->tables.work);
    for (size_t i = 0; i < sizeof scratch / sizeof scratch[0]; i++)
        r->work_bytes += bytes_of(scratch[i]);
    for (int64_t l = 0; l < k->layer_count; l++) {
        r->exchange_bytes += bytes_of(&k->progress[l].batch);
        r->work_bytes += bytes_of(&k->progress[l].joined);
    }
    for (int i = 0; i < k->layout_count; i++) {
        const dsc_kfac_layout *l = &k->layouts[i];
        r->decomposition_bytes += bytes_of(&l->vectors) + bytes_of(&l->values);
        r->work_bytes += bytes_of(&l->packed) + bytes_of(&l->loads) + bytes_of(&l->first) +
                         bytes_of(&l->pieces) + bytes_of(&l->index) + bytes_of(&l->notes);
    }
    r->work_bytes += dsc_kfac_refresh_bytes(k);
}

dsc_status dsc_kfac_get_report(dsc_kfac *kfac, dsc_queue *queue, const dsc_kfac_report **out) {
    dsc_kfac *k = kfac;
    double counters[DSC_KFAC_COUNTERS];
    int eigen = k->options.method == DSC_KFAC_EIGEN && k->decomposed;
    DSC_TRY(gather_counters(k, queue, counters, k->report_solve_ms));
    if (eigen && k->unit_count > 0)
        DSC_TRY(gather_extremes(k, queue));
    if (k->unit_count > 0) {
        dsc_tensor kept = dsc_tensor_slice(&k->products, k->unit_count, 3 * k->unit_count);
        DSC_TRY(dsc_tensor_download(queue, &kept, dsc_tensor_bytes(&kept), k->report_products));
        if (k->clip.nus.data)
            DSC_TRY(dsc_tensor_download(queue, &k->clip.nus, dsc_tensor_bytes(&k->clip.nus), k->report_nus));
        DSC_TRY(dsc_queue_sync(queue));
    }
    fill_layers(k, eigen);
    DSC_TRY(dsc_kfac_nu(k, queue, &k->nu));
    for (int r = 0; r < k->ranks; r++)
        k->report_work[r] = k->layouts[k->active].plan->loads[r].work;
    k->report_hyper = k->hyper;
    k->report_times = k->times;
    k->report = (dsc_kfac_report){.step = k->step,
                                  .updated = k->updating,
                                  .decomposed = k->decomposed_now,
                                  .hyper = &k->report_hyper,
                                  .times = &k->report_times,
                                  .nu = k->nu,
                                  .failed_solves = (int64_t)counters[DSC_KFAC_FAILED],
                                  .retried_solves = (int64_t)counters[DSC_KFAC_RETRIED],
                                  .rejected_factors = (int64_t)counters[DSC_KFAC_REJECTED],
                                  .refreshed_factors = (int64_t)counters[DSC_KFAC_REFRESHED],
                                  .extra_iterations = (int64_t)counters[DSC_KFAC_EXTRA_ITERATIONS],
                                  .exact_fallbacks = (int64_t)counters[DSC_KFAC_FALLBACKS],
                                  .ranks = k->ranks,
                                  .work = k->report_work,
                                  .solve_ms = k->report_solve_ms,
                                  .layer_count = k->unit_count,
                                  .layers = k->layer_reports,
                                  .layer_nus = k->clip.nus.data ? k->report_nus : NULL};
    fill_bytes(k, &k->report);
    if (dsc_kfac_async_twin(k)) {
        dsc_kfac_report twin = {0};
        fill_bytes(dsc_kfac_async_twin(k), &twin);
        k->report.work_bytes += twin.factor_bytes + twin.decomposition_bytes + twin.work_bytes;
    }
    *out = &k->report;
    return DSC_OK;
}
