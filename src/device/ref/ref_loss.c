/* Reference: softmax cross-entropy; labels drawn from a softmax.
 *
 * With p = softmax(logits), the target t and the weight w of a row (dsc_targets):
 *   loss = -w sum t log p = w (log sum exp(logits) - sum t logits)   (the elements of t sum to 1),
 *   dloss/dlogits = w (p - t). */
#include "device/formulas.h"
#include "device/ref/element.h"
#include "device/ref/ref.h"

#include <math.h>

/* The number of classes ranked before `label`: those with larger logits, lower classes with equal ones, and those with
 * NaN; all classes if the label's own logit is NaN. */
static int64_t rank_of(const dsc_tensor *logits, int64_t row, int64_t label) {
    double own = get(logits, at2(logits, row, label));
    int64_t before = 0;
    for (int64_t c = 0; c < logits->dim[1]; c++) {
        double other = get(logits, at2(logits, row, c));
        before += !(other < own) && (other != own || c < label);
    }
    return before;
}

/* log(sum(exp(row))), shifted by the maximum so that nothing overflows. */
static double log_sum_exp(const dsc_tensor *logits, int64_t row) {
    double largest = get(logits, at2(logits, row, 0));
    for (int64_t c = 1; c < logits->dim[1]; c++)
        largest = fmax(largest, get(logits, at2(logits, row, c)));
    double sum = exp(get(logits, at2(logits, row, 0)) - largest);
    for (int64_t c = 1; c < logits->dim[1]; c++)
        sum += exp(get(logits, at2(logits, row, c)) - largest);
    return largest + log(sum);
}

/* The target of a row. */
typedef struct target {
    int64_t label, other;
    double share, smoothing, weight;
} target;

static target target_of(const dsc_targets *t, int64_t row) {
    target to = {.label = ((const int32_t *)t->labels->data)[row],
                 .other = -1,
                 .smoothing = t->smoothing,
                 .weight = 1};
    if (t->others && get(t->shares, row) > 0) {
        to.other = ((const int32_t *)t->others->data)[row];
        to.share = get(t->shares, row);
    }
    return to;
}

static int is_valid(const target *to, int64_t classes) {
    return to->label < classes && (to->share == 0 || (to->other >= 0 && to->other < classes));
}

/* Returns the loss of one row, and writes its gradient to dlogits unless that is NULL. */
static double row_loss(const dsc_tensor *logits, int64_t row, const target *to, double scale,
                       dsc_tensor *dlogits) {
    int64_t classes = logits->dim[1];
    double normaliser = log_sum_exp(logits, row), loss = 0;
    for (int64_t c = 0; c < classes; c++) {
        double log_p = get(logits, at2(logits, row, c)) - normaliser;
        double hard = (c == to->label ? 1 - to->share : 0) + (c == to->other ? to->share : 0);
        double goal = (1 - to->smoothing) * hard + to->smoothing / (double)classes;
        if (goal != 0) /* because 0 log 0 is 0 here */
            loss -= goal * log_p;
        if (dlogits)
            set(dlogits, at2(dlogits, row, c), scale * to->weight * (exp(log_p) - goal));
    }
    return to->weight * loss;
}

static void set_row(dsc_tensor *t, int64_t row, double value) {
    for (int64_t c = 0; t && c < t->dim[1]; c++)
        set(t, at2(t, row, c), value);
}

dsc_status dsc_ref_target_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_targets *targets,
                               double grad_scale, const dsc_tensor *loss_scale, dsc_tensor *dlogits,
                               dsc_tensor *stats) {
    (void)q;
    double scale = loss_scale ? grad_scale * get(loss_scale, 0) : grad_scale;
    double total[4] = {0}; /* losses, top-1 correct, top-5 correct, rows */
    for (int64_t row = 0; row < logits->dim[0]; row++) {
        target to = target_of(targets, row);
        if (to.label < 0) {
            set_row(dlogits, row, 0);
            continue;
        }
        total[3] += 1;
        if (!is_valid(&to, logits->dim[1])) {
            total[0] = NAN;
            set_row(dlogits, row, NAN);
            continue;
        }
        if (targets->weights)
            to.weight = (1 - to.share) * get(targets->weights, to.label) +
                        (to.share > 0 ? to.share * get(targets->weights, to.other) : 0);
        total[0] += row_loss(logits, row, &to, scale, dlogits);
        int64_t rank = rank_of(logits, row, to.label);
        total[1] += rank < 1;
        total[2] += rank < 5;
    }
    for (int i = 0; i < 4; i++)
        update(stats, i, 1, total[i]);
    return DSC_OK;
}

dsc_status dsc_ref_sample_labels(dsc_queue *q, uint64_t seed, const dsc_tensor *position,
                                 int64_t rows_of_sample, const dsc_tensor *logits, int64_t classes,
                                 const dsc_tensor *known, dsc_tensor *labels) {
    (void)q;
    const int64_t *at = position->data; /* step, first sample */
    int64_t first = at[1] * rows_of_sample;
    for (int64_t row = 0; row < logits->dim[0]; row++) {
        dsc_logits z = dsc_logits_row(logits, row);
        int counts = !known || ((const int32_t *)known->data)[row] >= 0;
        ((int32_t *)labels->data)[row] =
            counts ? dsc_draw_label(z, classes, dsc_label_uniform(seed, at[0], first + row)) : -1;
    }
    return DSC_OK;
}
