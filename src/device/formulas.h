/* Element-wise formulas: written once, expanded by C loops and by CUDA kernels (DSC_FORMULA, of base/rng.h).
 *
 * What ref computes in double has a name without suffix; `_f` is the same in float, for backends whose
 * tensors are float32. */
#ifndef DSC_DEVICE_FORMULAS_H
#define DSC_DEVICE_FORMULAS_H

#include "base/rng.h"
#include "device/ops.h"

#include <math.h>

/* ---- ReLU ---- */

/* max(x, 0); NaN stays NaN. */
DSC_FORMULA double dsc_relu(double x) {
    return x < 0 ? 0 : x;
}

DSC_FORMULA float dsc_relu_f(float x) {
    return x < 0 ? 0 : x;
}

/* Where the gradient passes: the mask reads the output. */
DSC_FORMULA double dsc_relu_mask(double y, double dy) {
    return y > 0 ? dy : 0;
}

DSC_FORMULA float dsc_relu_mask_f(float y, float dy) {
    return y > 0 ? dy : 0;
}

/* ---- dropout ----
 *
 * Element e = first_sample * row length + i of layer l in step s is word e % 4 of the Philox block with
 *   counter (l, s mod 2^32, e/4 mod 2^32, e/4 div 2^32),   key that of dsc_rng_start(seed, DSC_RNG_DROPOUT).
 * In other words: word e % 4 of block l of the sequence (seed, DSC_RNG_DROPOUT, epoch s, index e/4). It is
 * kept when the word's upper 24 bits, as a fraction of 2^24, are at least the rate. */
typedef struct dsc_dropout_stream {
    uint32_t key[2];
    uint32_t layer, step;
    uint32_t threshold; /* kept from here on, of 2^24 */
} dsc_dropout_stream;

DSC_FORMULA dsc_dropout_stream dsc_dropout_start(const dsc_dropout_desc *desc, int64_t step) {
    dsc_rng rng = dsc_rng_start(desc->seed, DSC_RNG_DROPOUT, (uint32_t)step, 0);
    dsc_dropout_stream stream = {{rng.key[0], rng.key[1]}, (uint32_t)desc->layer, (uint32_t)step, 0};
    stream.threshold = (uint32_t)ceil(desc->rate * 0x1p24);
    return stream;
}

/* The words of elements 4 block .. 4 block + 3. */
DSC_FORMULA void dsc_dropout_words(const dsc_dropout_stream *stream, int64_t block, uint32_t words[4]) {
    const uint32_t counter[4] = {stream->layer, stream->step, (uint32_t)block,
                                 (uint32_t)((uint64_t)block >> 32)};
    dsc_rng_philox(counter, stream->key, words);
}

DSC_FORMULA int dsc_dropout_keeps(const dsc_dropout_stream *stream, uint32_t word) {
    return (word >> 8) >= stream->threshold;
}

/* ---- clipping and trust ratios: one value a tensor, always in double ---- */

/* min(1, limit / sqrt(sumsq)), 1 for sumsq = 0. NaN stays NaN, so that a bad gradient is not hidden. */
DSC_FORMULA double dsc_clip_factor(double sumsq, double limit) {
    double norm = sqrt(sumsq);
    return norm <= limit || norm == 0 ? 1 : limit / norm;
}

/* LARS: trust |z| / (|g| + decay |z|), from sums of squares; 1 when either norm is 0. */
DSC_FORMULA double dsc_lars_rate(double z_sumsq, double g_sumsq, double trust, double decay) {
    double z = sqrt(z_sumsq), g = sqrt(g_sumsq);
    return z == 0 || g == 0 ? 1 : trust * z / (g + decay * z);
}

/* LAMB: |z| / |u|, from sums of squares; 1 when either is 0. */
DSC_FORMULA double dsc_lamb_rate(double z_sumsq, double u_sumsq) {
    return z_sumsq == 0 || u_sumsq == 0 ? 1 : sqrt(z_sumsq) / sqrt(u_sumsq);
}

/* ---- loss scale ---- */

/* The rule of dsc_op_loss_scale; `bad`: elements that are not finite. */
DSC_FORMULA void dsc_loss_scale_move(double scale[DSC_SCALE_COUNT], double bad) {
    double value = scale[DSC_SCALE_VALUE], interval = scale[DSC_SCALE_INTERVAL];
    double good = bad != 0 ? 0 : scale[DSC_SCALE_GOOD] + 1;
    scale[DSC_SCALE_INVERSE] = 1 / value;
    scale[DSC_SCALE_INVERSE_SQUARE] = 1 / value / value;
    if (interval > 0 && bad != 0) {
        value = value / 2 < 1 ? 1 : value / 2;
    } else if (interval > 0 && good >= interval) {
        value = 2 * value > 0x1p24 ? 0x1p24 : 2 * value;
        good = 0;
    }
    scale[DSC_SCALE_VALUE] = value;
    scale[DSC_SCALE_GOOD] = good;
}

/* The new DSC_HYPER_SKIP: 2 stays, that of a guard. */
DSC_FORMULA double dsc_skip_move(double skip, double bad) {
    return skip == 2 ? 2 : bad != 0;
}

/* ---- images ---- */

/* A byte, normalised. */
DSC_FORMULA double dsc_pixel(double byte, double scale, double shift) {
    return byte * scale + shift;
}

DSC_FORMULA float dsc_pixel_f(float byte, float scale, float shift) {
    return byte * scale + shift;
}

/* ---- second-order steps ---- */

/* What a direction is divided by: the product of its two eigenvalues, and the damping. */
DSC_FORMULA double dsc_damped(double row, double column, double damping) {
    return row * column + damping;
}

DSC_FORMULA float dsc_damped_f(float row, float column, float damping) {
    return row * column + damping;
}

DSC_FORMULA double dsc_divide(double x, double row, double column, double damping) {
    return x / dsc_damped(row, column, damping);
}

DSC_FORMULA float dsc_divide_f(float x, float row, float column, float damping) {
    return x / dsc_damped_f(row, column, damping);
}

DSC_FORMULA double dsc_outer_inverse(double row, double column, double damping) {
    return 1 / dsc_damped(row, column, damping);
}

DSC_FORMULA float dsc_outer_inverse_f(float row, float column, float damping) {
    return 1 / dsc_damped_f(row, column, damping);
}

/* min(1, sqrt(limit / |lr^2 sum|)), 1 when limit or product is 0; NaN for a sum that is not finite, so that
 * it is not hidden. By square roots, so that the product does not overflow. */
DSC_FORMULA double dsc_kl_clip(double sum, double lr, double limit) {
    double size = fabs(lr) * sqrt(fabs(sum)), bound = sqrt(limit);
    if (!isfinite(sum))
        return NAN;
    return bound == 0 || size <= bound ? 1 : bound / size;
}

/* ---- labels drawn from a softmax ----
 *
 * Everything in double, whatever the type of the logits, and in one order: every device draws the same. */

/* Uniform in [0, 1), of 32 bits: the first word of the sequence (seed, DSC_RNG_FISHER, step mod 2^32,
 * sample).
 */
DSC_FORMULA double dsc_label_uniform(uint64_t seed, int64_t step, int64_t sample) {
    dsc_rng rng = dsc_rng_start(seed, DSC_RNG_FISHER, (uint32_t)step, (uint64_t)sample);
    return (double)dsc_rng_u32(&rng) * 0x1p-32;
}

/* A row of logits: one of the two is set. */
typedef struct dsc_logits {
    const float *single;
    const double *wide;
} dsc_logits;

DSC_FORMULA dsc_logits dsc_logits_row(const dsc_tensor *logits, int64_t row) {
    dsc_logits z = {0, 0};
    if (logits->dtype == DSC_F64)
        z.wide = (const double *)logits->data + row * logits->dim[1];
    else
        z.single = (const float *)logits->data + row * logits->dim[1];
    return z;
}

DSC_FORMULA double dsc_logit(dsc_logits z, int64_t i) {
    return z.wide ? z.wide[i] : (double)z.single[i];
}

/* The first class at which the sum of the weights exp(z - max z) exceeds u times the whole. A class without
 * weight does not raise the sum, so it is never the first. When a logit is NaN or infinite no sum compares:
 * then it is the last class with a weight, or class 0. */
DSC_FORMULA int32_t dsc_draw_label(dsc_logits z, int64_t classes, double u) {
    double largest = dsc_logit(z, 0), whole = 0, sum = 0;
    int32_t last = 0;
    for (int64_t i = 1; i < classes; i++)
        largest = fmax(largest, dsc_logit(z, i));
    for (int64_t i = 0; i < classes; i++)
        whole += exp(dsc_logit(z, i) - largest);
    for (int64_t i = 0; i < classes; i++) {
        double weight = exp(dsc_logit(z, i) - largest);
        sum += weight;
        if (sum > u * whole)
            return (int32_t)i;
        if (weight > 0)
            last = (int32_t)i;
    }
    return last;
}

/* ---- optimisers ----
 *
 * Coefficients of a step, from the tensor of hyper-parameters. Complements and reciprocals are taken in
 * double: 1 - beta2 in float would have lost four digits. */
typedef struct dsc_step {
    double lr, momentum, decay;
    double beta1, beta2, rest1, rest2; /* rest = 1 - beta */
    double eps, scale1, scale2;        /* scale = 1 / correction */
    double trust;
} dsc_step;

typedef struct dsc_step_f {
    float lr, momentum, decay;
    float beta1, beta2, rest1, rest2;
    float eps, scale1, scale2;
    float trust;
} dsc_step_f;

DSC_FORMULA dsc_step dsc_step_load(const double hyper[DSC_HYPER_COUNT]) {
    dsc_step s;
    s.lr = hyper[DSC_HYPER_LR];
    s.momentum = hyper[DSC_HYPER_MOMENTUM];
    s.decay = hyper[DSC_HYPER_DECAY];
    s.beta1 = hyper[DSC_HYPER_BETA1];
    s.beta2 = hyper[DSC_HYPER_BETA2];
    s.rest1 = 1 - s.beta1;
    s.rest2 = 1 - s.beta2;
    s.eps = hyper[DSC_HYPER_EPS];
    s.scale1 = 1 / hyper[DSC_HYPER_CORRECTION1];
    s.scale2 = 1 / hyper[DSC_HYPER_CORRECTION2];
    s.trust = hyper[DSC_HYPER_TRUST];
    return s;
}

DSC_FORMULA dsc_step_f dsc_step_load_f(const double hyper[DSC_HYPER_COUNT]) {
    dsc_step d = dsc_step_load(hyper);
    dsc_step_f s;
    s.lr = (float)d.lr;
    s.momentum = (float)d.momentum;
    s.decay = (float)d.decay;
    s.beta1 = (float)d.beta1;
    s.beta2 = (float)d.beta2;
    s.rest1 = (float)d.rest1;
    s.rest2 = (float)d.rest2;
    s.eps = (float)d.eps;
    s.scale1 = (float)d.scale1;
    s.scale2 = (float)d.scale2;
    s.trust = (float)d.trust;
    return s;
}

/* 1 when the step is to leave everything as it is. */
DSC_FORMULA int dsc_step_skips(const double hyper[DSC_HYPER_COUNT]) {
    return hyper[DSC_HYPER_SKIP] != 0;
}

/* Each of these moves the state (m, v) in place and returns the new x. */

DSC_FORMULA double dsc_sgd_update(const dsc_step *s, int nesterov, double z, double g, double *m, double x) {
    double d = g + s->decay * z;
    *m = s->momentum * *m + d;
    return x - s->lr * (nesterov ? d + s->momentum * *m : *m);
}

DSC_FORMULA float dsc_sgd_update_f(const dsc_step_f *s, int nesterov, float z, float g, float *m, float x) {
    float d = g + s->decay * z;
    *m = s->momentum * *m + d;
    return x - s->lr * (nesterov ? d + s->momentum * *m : *m);
}

/* m and v move towards d and d^2; returns m/c1 / (sqrt(v/c2) + eps). */
DSC_FORMULA double dsc_adam_direction(const dsc_step *s, double d, double *m, double *v) {
    *m = s->beta1 * *m + s->rest1 * d;
    *v = s->beta2 * *v + s->rest2 * d * d;
    return *m * s->scale1 / (sqrt(*v * s->scale2) + s->eps);
}

DSC_FORMULA float dsc_adam_direction_f(const dsc_step_f *s, float d, float *m, float *v) {
    *m = s->beta1 * *m + s->rest1 * d;
    *v = s->beta2 * *v + s->rest2 * d * d;
    return *m * s->scale1 / (sqrtf(*v * s->scale2) + s->eps);
}

DSC_FORMULA double dsc_adam_update(const dsc_step *s, int decoupled, double z, double g, double *m, double *v,
                                   double x) {
    double decay = s->decay * z;
    double u = dsc_adam_direction(s, decoupled ? g : g + decay, m, v);
    return x - s->lr * (decoupled ? u + decay : u);
}

DSC_FORMULA float dsc_adam_update_f(const dsc_step_f *s, int decoupled, float z, float g, float *m, float *v,
                                    float x) {
    float decay = s->decay * z;
    float u = dsc_adam_direction_f(s, decoupled ? g : g + decay, m, v);
    return x - s->lr * (decoupled ? u + decay : u);
}

/* rate: lr times dsc_lars_rate. */
DSC_FORMULA double dsc_lars_update(const dsc_step *s, double rate, double z, double g, double *m, double x) {
    *m = s->momentum * *m + rate * (g + s->decay * z);
    return x - *m;
}

DSC_FORMULA float dsc_lars_update_f(const dsc_step_f *s, float rate, float z, float g, float *m, float x) {
    *m = s->momentum * *m + rate * (g + s->decay * z);
    return x - *m;
}

DSC_FORMULA double dsc_lamb_direction(const dsc_step *s, double z, double g, double *m, double *v) {
    return dsc_adam_direction(s, g, m, v) + s->decay * z;
}

DSC_FORMULA float dsc_lamb_direction_f(const dsc_step_f *s, float z, float g, float *m, float *v) {
    return dsc_adam_direction_f(s, g, m, v) + s->decay * z;
}

#endif
