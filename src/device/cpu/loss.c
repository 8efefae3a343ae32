/* Softmax cross-entropy on the cpu device, row by row in double, with the target t and the weight w of a row:
 *   p = softmax(z),  loss = w (log(sum exp(z)) - sum t z),  dloss/dz = w (p - t);
 * and labels drawn from p. */
#include "device/cpu/cpu.h"

#include "base/error.h"

#include <math.h>

enum { STATS = 4, APART = 8 };

typedef struct loss_call {
    int64_t c;
    double smoothing, grad_scale;
    const int32_t *labels, *others; /* others, shares and weights may be NULL */
    const float *shares, *weights;
} loss_call;

/* The target of a row. */
typedef struct target {
    int64_t label, other; /* other -1: none */
    double share, weight;
} target;

/* Returns 0 if a label of the row is not a class. */
static int find_target(const loss_call *call, int64_t row, target *out) {
    *out = (target){.label = call->labels[row], .other = -1, .weight = 1};
    if (call->others && call->shares[row] > 0) {
        out->other = call->others[row];
        out->share = (double)call->shares[row];
        if (out->other < 0 || out->other >= call->c)
            return 0;
    }
    if (out->label >= call->c)
        return 0;
    if (call->weights)
        out->weight = (1 - out->share) * (double)call->weights[out->label] +
                      (out->share > 0 ? out->share * (double)call->weights[out->other] : 0);
    return 1;
}

/* The number of classes ranked before `label`: those with larger logits, lower classes with equal ones, and those with
 * NaN; all classes if the label's own logit is NaN. */
static int64_t rank_of(int64_t c, const float *z, int64_t label) {
    int64_t before = 0;
    for (int64_t i = 0; i < c; i++)
        before += !(z[i] < z[label]) && (z[i] != z[label] || i < label);
    return before;
}

static void fill_row(int64_t c, float value, float *dz) {
    for (int64_t i = 0; dz && i < c; i++)
        dz[i] = value;
}

static double maximum(int64_t c, const float *z) {
    float highest = z[0];
    for (int64_t i = 1; i < c; i++)
        highest = z[i] > highest ? z[i] : highest;
    return (double)highest;
}

/* Adds a row to stats; writes its gradient unless dz is NULL. */
static void loss_row(const loss_call *call, const float *z, const target *to, float *dz, double *stats) {
    int64_t c = call->c;
    double highest = maximum(c, z), sum = exp((double)z[0] - highest), total = (double)z[0] - highest;
    for (int64_t i = 1; i < c; i++) {
        sum += exp((double)z[i] - highest);
        total += (double)z[i] - highest;
    }
    double uniform = call->smoothing / (double)c, loss = log(sum);
    double first = (1 - call->smoothing) * (1 - to->share), second = (1 - call->smoothing) * to->share;
    if (first > 0)
        loss -= first * ((double)z[to->label] - highest);
    if (second > 0)
        loss -= second * ((double)z[to->other] - highest);
    if (call->smoothing > 0)
        loss -= uniform * total;
    int64_t before = rank_of(c, z, to->label);
    stats[0] += to->weight * loss;
    stats[1] += before < 1;
    stats[2] += before < 5;
    double scale = call->grad_scale * to->weight;
    for (int64_t i = 0; dz && i < c; i++) {
        double goal = uniform + (i == to->label ? first : 0) + (i == to->other ? second : 0);
        dz[i] = (float)(scale * (exp((double)z[i] - highest) / sum - goal));
    }
}

static void loss_rows(const loss_call *call, dsc_cpu_range r, const float *z, float *dz, double *stats) {
    for (int i = 0; i < STATS; i++)
        stats[i] = 0;
    for (int64_t row = r.first; row < r.first + r.count; row++) {
        float *to = dz ? dz + row * call->c : NULL;
        target goal;
        if (call->labels[row] < 0) {
            fill_row(call->c, 0, to);
            continue;
        }
        stats[3] += 1;
        if (find_target(call, row, &goal)) {
            loss_row(call, z + row * call->c, &goal, to, stats);
        } else {
            stats[0] = NAN;
            fill_row(call->c, NAN, to);
        }
    }
}

static dsc_status target_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_targets *targets,
                              double grad_scale, const dsc_tensor *loss_scale, dsc_tensor *dlogits,
                              dsc_tensor *stats) {
    if (logits->dtype != DSC_F32)
        return dsc_ref_table.target_loss(q, logits, targets, grad_scale, loss_scale, dlogits, stats);
    loss_call call = {.c = logits->dim[1],
                      .smoothing = targets->smoothing,
                      .grad_scale = grad_scale,
                      .labels = targets->labels->data,
                      .others = targets->others ? targets->others->data : NULL,
                      .shares = targets->shares ? targets->shares->data : NULL,
                      .weights = targets->weights ? targets->weights->data : NULL};
    if (loss_scale)
        call.grad_scale *= *(const double *)loss_scale->data;
    int64_t n = logits->dim[0];
    /* An exponential costs about as much as sixteen elements of a simple loop. */
    int parts = dsc_cpu_parts(q->device, 16 * n * call.c);
    double *sums, *to = stats->data;
    DSC_TRY(dsc_cpu_scratch(q, parts * APART * (int64_t)sizeof *sums, &sums));
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++)
        loss_rows(&call, dsc_cpu_share(n, 1, parts, p), logits->data, dlogits ? dlogits->data : NULL,
                  sums + p * APART);
    for (int p = 0; p < parts; p++)
        for (int i = 0; i < STATS; i++)
            to[i] += sums[p * APART + i];
    return DSC_OK;
}

static dsc_status sample_labels(dsc_queue *q, uint64_t seed, const dsc_tensor *position,
                                int64_t rows_of_sample, const dsc_tensor *logits, int64_t classes,
                                const dsc_tensor *known, dsc_tensor *labels) {
    const int64_t *at = position->data; /* step, first sample */
    const int64_t first = at[1] * rows_of_sample;
    const int32_t *marks = known ? known->data : NULL;
    int64_t n = logits->dim[0];
    int parts = dsc_cpu_parts(q->device, 16 * n * classes);
    int32_t *to = labels->data;
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int64_t row = 0; row < n; row++)
        to[row] = marks && marks[row] < 0 ? -1
                                          : dsc_draw_label(dsc_logits_row(logits, row), classes,
                                                           dsc_label_uniform(seed, at[0], first + row));
    return DSC_OK;
}

void dsc_cpu_table_loss(dsc_device_table *table) {
    table->target_loss = target_loss;
    table->sample_labels = sample_labels;
}
