/* Reference: losses of single numbers; the formulas are in ops.h. */
#include "device/formulas.h"
#include "device/ref/element.h"
#include "device/ref/ref.h"

static double scale_of(double grad_scale, const dsc_tensor *loss_scale) {
    return loss_scale ? grad_scale * get(loss_scale, 0) : grad_scale;
}

static int32_t label_of(const dsc_tensor *labels, int64_t i) {
    return ((const int32_t *)labels->data)[i];
}

static void add_stats(dsc_tensor *stats, double loss, double correct, double rows) {
    const double sums[4] = {loss, correct, correct, rows};
    for (int i = 0; i < 4; i++)
        update(stats, i, 1, sums[i]);
}

dsc_status dsc_ref_bce_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_tensor *labels,
                            double grad_scale, const dsc_tensor *loss_scale, dsc_tensor *dlogits,
                            dsc_tensor *stats) {
    (void)q;
    double scale = scale_of(grad_scale, loss_scale), loss = 0, correct = 0, rows = 0;
    for (int64_t i = 0; i < dsc_tensor_count(logits); i++) {
        int counts = label_of(labels, i) >= 0;
        double z = get(logits, i), t = dsc_binary_target(label_of(labels, i));
        if (counts) {
            loss += dsc_bce(z, t);
            correct += dsc_binary_correct(z, t);
            rows += 1;
        }
        if (dlogits)
            set(dlogits, i, counts ? scale * dsc_bce_slope(z, t) : 0);
    }
    add_stats(stats, loss, correct, rows);
    return DSC_OK;
}

dsc_status dsc_ref_dice_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_tensor *labels,
                             double grad_scale, const dsc_tensor *loss_scale, dsc_tensor *dlogits,
                             dsc_tensor *stats) {
    (void)q;
    double both = 0, sum = 0, correct = 0, rows = 0;
    for (int64_t i = 0; i < dsc_tensor_count(logits); i++) {
        double z = get(logits, i), p = dsc_sigmoid(z), t = dsc_binary_target(label_of(labels, i));
        if (label_of(labels, i) < 0)
            continue;
        both += p * t;
        sum += p + t;
        correct += dsc_binary_correct(z, t);
        rows += 1;
    }
    double scale = scale_of(grad_scale, loss_scale) * rows;
    for (int64_t i = 0; dlogits && i < dsc_tensor_count(logits); i++) {
        double t = dsc_binary_target(label_of(labels, i));
        set(dlogits, i, t < 0 ? 0 : scale * dsc_dice_slope(get(logits, i), t, both, sum));
    }
    add_stats(stats, rows * dsc_dice(both, sum), correct, rows);
    return DSC_OK;
}

dsc_status dsc_ref_mse_loss(dsc_queue *q, const dsc_tensor *y, const dsc_tensor *targets, double grad_scale,
                            const dsc_tensor *loss_scale, dsc_tensor *dy, dsc_tensor *stats) {
    (void)q;
    int64_t rows = y->dim[0], width = dsc_tensor_count(y) / rows;
    double scale = scale_of(grad_scale, loss_scale), loss = 0;
    for (int64_t i = 0; i < rows * width; i++) {
        double error = get(y, i) - get(targets, i);
        loss += error * error / (double)width;
        if (dy)
            set(dy, i, scale * 2 * error / (double)width);
    }
    add_stats(stats, loss, 0, (double)rows);
    return DSC_OK;
}
