/* Losses of single numbers on the cpu device, in double; the formulas are in ops.h. */
#include "device/cpu/cpu.h"

#include "base/error.h"

enum { SUMS = 4, APART = 8 };

/* x: logits or predictions; dx may be NULL. */
typedef struct pixel_call {
    const float *x, *targets;
    const int32_t *labels;
    double scale;
    float *dx;
    double both, sum; /* of soft Dice, for its gradient */
} pixel_call;

static pixel_call describe(const dsc_tensor *x, const dsc_tensor *against, double grad_scale,
                           const dsc_tensor *loss_scale, dsc_tensor *dx) {
    return (pixel_call){.x = x->data,
                        .targets = against->data,
                        .labels = against->data,
                        .scale = loss_scale ? grad_scale * *(const double *)loss_scale->data : grad_scale,
                        .dx = dx ? dx->data : NULL};
}

/* Runs `body` on parts of [0, n) and adds up its sums in the order of the parts. An element costs as much as `cost`
 * elements of a simple loop. */
static dsc_status run_parts(dsc_queue *q, int64_t n, int cost,
                            void (*body)(const pixel_call *call, dsc_cpu_range r, double *sums),
                            const pixel_call *call, double total[SUMS]) {
    int parts = dsc_cpu_parts(q->device, cost * n);
    double *sums;
    DSC_TRY(dsc_cpu_scratch(q, parts * APART * (int64_t)sizeof *sums, &sums));
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++) {
        double own[SUMS] = {0};
        body(call, dsc_cpu_share(n, APART, parts, p), own);
        for (int i = 0; i < SUMS; i++)
            sums[p * APART + i] = own[i];
    }
    for (int i = 0; i < SUMS; i++)
        total[i] = 0;
    for (int p = 0; p < parts; p++)
        for (int i = 0; i < SUMS; i++)
            total[i] += sums[p * APART + i];
    return DSC_OK;
}

enum { EXPONENTIAL = 16 }; /* the cost of an exponential, in elements of a simple loop */

static void add_stats(dsc_tensor *stats, double loss, double correct, double rows) {
    double *to = stats->data;
    to[0] += loss;
    to[1] += correct;
    to[2] += correct;
    to[3] += rows;
}

/* ---- binary cross-entropy ---- */

/* sums: losses, correct, rows. */
static void bce_part(const pixel_call *call, dsc_cpu_range r, double *sums) {
    for (int64_t i = r.first; i < r.first + r.count; i++) {
        double z = (double)call->x[i], t = dsc_binary_target(call->labels[i]);
        int counts = call->labels[i] >= 0;
        if (counts) {
            sums[0] += dsc_bce(z, t);
            sums[1] += dsc_binary_correct(z, t);
            sums[2] += 1;
        }
        if (call->dx)
            call->dx[i] = counts ? (float)(call->scale * dsc_bce_slope(z, t)) : 0;
    }
}

static dsc_status bce_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_tensor *labels,
                           double grad_scale, const dsc_tensor *loss_scale, dsc_tensor *dlogits,
                           dsc_tensor *stats) {
    pixel_call call = describe(logits, labels, grad_scale, loss_scale, dlogits);
    double total[SUMS];
    DSC_TRY(run_parts(q, dsc_tensor_count(logits), 2 * EXPONENTIAL, bce_part, &call, total));
    add_stats(stats, total[0], total[1], total[2]);
    return DSC_OK;
}

/* ---- soft Dice ---- */

/* sums: sum p t, sum p + sum t, correct, rows. */
static void dice_part(const pixel_call *call, dsc_cpu_range r, double *sums) {
    for (int64_t i = r.first; i < r.first + r.count; i++) {
        double z = (double)call->x[i], t = dsc_binary_target(call->labels[i]);
        if (call->labels[i] < 0)
            continue;
        double p = dsc_sigmoid(z);
        sums[0] += p * t;
        sums[1] += p + t;
        sums[2] += dsc_binary_correct(z, t);
        sums[3] += 1;
    }
}

static void dice_gradient(const pixel_call *call, dsc_cpu_range r, double *sums) {
    (void)sums;
    for (int64_t i = r.first; i < r.first + r.count; i++) {
        double t = dsc_binary_target(call->labels[i]);
        call->dx[i] =
            t < 0 ? 0 : (float)(call->scale * dsc_dice_slope((double)call->x[i], t, call->both, call->sum));
    }
}

static dsc_status dice_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_tensor *labels,
                            double grad_scale, const dsc_tensor *loss_scale, dsc_tensor *dlogits,
                            dsc_tensor *stats) {
    pixel_call call = describe(logits, labels, grad_scale, loss_scale, dlogits);
    double total[SUMS], none[SUMS];
    DSC_TRY(run_parts(q, dsc_tensor_count(logits), EXPONENTIAL, dice_part, &call, total));
    call.both = total[0];
    call.sum = total[1];
    call.scale *= total[3];
    if (dlogits)
        DSC_TRY(run_parts(q, dsc_tensor_count(logits), EXPONENTIAL, dice_gradient, &call, none));
    add_stats(stats, total[3] * dsc_dice(call.both, call.sum), total[2], total[3]);
    return DSC_OK;
}

/* ---- squared errors ---- */

/* sums: the squares of errors. call->scale is the factor of an error in the gradient. */
static void mse_part(const pixel_call *call, dsc_cpu_range r, double *sums) {
    double squares = 0;
    for (int64_t i = r.first; i < r.first + r.count; i++) {
        double error = (double)call->x[i] - (double)call->targets[i];
        squares += error * error;
        if (call->dx)
            call->dx[i] = (float)(call->scale * error);
    }
    sums[0] = squares;
}

static dsc_status mse_loss(dsc_queue *q, const dsc_tensor *y, const dsc_tensor *targets, double grad_scale,
                           const dsc_tensor *loss_scale, dsc_tensor *dy, dsc_tensor *stats) {
    int64_t rows = y->dim[0], width = dsc_tensor_count(y) / rows;
    pixel_call call = describe(y, targets, grad_scale, loss_scale, dy);
    double total[SUMS];
    call.scale *= 2 / (double)width;
    DSC_TRY(run_parts(q, rows * width, 1, mse_part, &call, total));
    add_stats(stats, total[0] / (double)width, 0, (double)rows);
    return DSC_OK;
}

void dsc_cpu_table_pixel_loss(dsc_device_table *table) {
    table->bce_loss = bce_loss;
    table->dice_loss = dice_loss;
    table->mse_loss = mse_loss;
}
