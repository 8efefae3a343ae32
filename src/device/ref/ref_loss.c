/* Reference: softmax cross-entropy with label smoothing; labels drawn from a softmax.
 *
 * With p = softmax(logits) and the target t = (1 - smoothing) onehot(label) + smoothing / c:
 *   loss = -sum t log p = log sum exp(logits) - sum t logits   (the weights t add up to 1),
 *   dloss/dlogits = p - t. */
#include "device/formulas.h"
#include "device/ref/element.h"
#include "device/ref/ref.h"

#include <math.h>

/* Classes ranked before `label`: larger logits, of equal ones the lower class, and whatever is NaN or
 * compared with one. */
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

/* Loss of one row; its gradient into dlogits where asked for. */
static double row_loss(const dsc_tensor *logits, int64_t row, int64_t label, double smoothing, double scale,
                       dsc_tensor *dlogits) {
    int64_t classes = logits->dim[1];
    double normaliser = log_sum_exp(logits, row), loss = 0;
    for (int64_t c = 0; c < classes; c++) {
        double log_p = get(logits, at2(logits, row, c)) - normaliser;
        double target = (c == label ? 1 - smoothing : 0) + smoothing / (double)classes;
        if (target != 0) /* 0 log 0 is 0 */
            loss -= target * log_p;
        if (dlogits)
            set(dlogits, at2(dlogits, row, c), scale * (exp(log_p) - target));
    }
    return loss;
}

static void set_row(dsc_tensor *t, int64_t row, double value) {
    for (int64_t c = 0; t && c < t->dim[1]; c++)
        set(t, at2(t, row, c), value);
}

dsc_status dsc_ref_softmax_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_tensor *labels,
                                double smoothing, double grad_scale, const dsc_tensor *loss_scale,
                                dsc_tensor *dlogits, dsc_tensor *stats) {
    (void)q;
    double scale = loss_scale ? grad_scale * get(loss_scale, 0) : grad_scale;
    double total[4] = {0}; /* losses, correct at 1, correct within 5, rows */
    for (int64_t row = 0; row < logits->dim[0]; row++) {
        int64_t label = ((const int32_t *)labels->data)[row];
        if (label < 0) {
            set_row(dlogits, row, 0);
            continue;
        }
        total[3] += 1;
        if (label >= logits->dim[1]) {
            total[0] = NAN;
            set_row(dlogits, row, NAN);
            continue;
        }
        total[0] += row_loss(logits, row, label, smoothing, scale, dlogits);
        int64_t rank = rank_of(logits, row, label);
        total[1] += rank < 1;
        total[2] += rank < 5;
    }
    for (int i = 0; i < 4; i++)
        update(stats, i, 1, total[i]);
    return DSC_OK;
}

dsc_status dsc_ref_sample_labels(dsc_queue *q, uint64_t seed, const dsc_tensor *position,
                                 const dsc_tensor *logits, dsc_tensor *labels) {
    (void)q;
    const int64_t *at = position->data; /* step, first sample */
    int64_t classes = logits->dim[1];
    for (int64_t row = 0; row < logits->dim[0]; row++) {
        dsc_logits z = dsc_logits_row(logits, row);
        ((int32_t *)labels->data)[row] =
            dsc_draw_label(z, classes, dsc_label_uniform(seed, at[0], at[1] + row));
    }
    return DSC_OK;
}
