/* Formulas for single elements and scalars. Each is written once and used in C loops and in CUDA kernels
 * (DSC_FORMULA, from base/rng.h). Those that exist for both float and double are in formulas.inc: NAME computes in
 * double, like ref, and NAME_f in float, for backends whose tensors are float32. In C++ (CUDA) both are
 * called NAME. */
#ifndef DSC_DEVICE_FORMULAS_H
#define DSC_DEVICE_FORMULAS_H

#include "base/rng.h"
#include "device/ops.h"
#ifndef __cplusplus
#include "device/float_math.h"
#endif

#include <math.h>

/* ---- dropout ----
 *
 * Element e = first_sample * row length + i of layer l in step s uses word e % 4 of the Philox block with
 *   counter (l, s mod 2^32, e/4 mod 2^32, e/4 div 2^32)   and the key of dsc_rng_start(seed, DSC_RNG_DROPOUT).
 * In other words: word e % 4 of block l of the sequence (seed, DSC_RNG_DROPOUT, epoch s, index e/4). The element is
 * kept if the word's upper 24 bits, as a fraction of 2^24, are at least the rate. */
typedef struct dsc_dropout_stream {
    uint32_t key[2];
    uint32_t layer, step;
    uint32_t threshold; /* elements are kept from this value on, of 2^24 */
} dsc_dropout_stream;

DSC_FORMULA dsc_dropout_stream dsc_dropout_start(const dsc_dropout_desc *desc, int64_t step) {
    dsc_rng rng = dsc_rng_start(desc->seed, DSC_RNG_DROPOUT, (uint32_t)step, 0);
    dsc_dropout_stream stream = {{rng.key[0], rng.key[1]}, (uint32_t)desc->layer, (uint32_t)step, 0};
    stream.threshold = (uint32_t)ceil(desc->rate * 0x1p24);
    return stream;
}

/* Writes the four words of the counter, at a stride of `apart`. */
DSC_FORMULA void dsc_dropout_counter(const dsc_dropout_stream *stream, int64_t block, uint32_t *counter,
                                     int apart) {
    counter[0] = stream->layer;
    counter[apart] = stream->step;
    counter[2 * apart] = (uint32_t)block;
    counter[3 * apart] = (uint32_t)((uint64_t)block >> 32);
}

/* Computes the words of elements 4 block .. 4 block + 3. */
DSC_FORMULA void dsc_dropout_words(const dsc_dropout_stream *stream, int64_t block, uint32_t words[4]) {
    uint32_t counter[4];
    dsc_dropout_counter(stream, block, counter, 1);
    dsc_rng_philox(counter, stream->key, words);
}

DSC_FORMULA int dsc_dropout_keeps(const dsc_dropout_stream *stream, uint32_t word) {
    return (word >> 8) >= stream->threshold;
}

/* Attention drops elements of its probabilities P. The probability of a sample, a head, a query and a key is element
 *   e = ((first_sample + sample) heads + head) t t4 + query t4 + key,   t4 = t rounded up to a multiple of 4,
 * of the stream, so that keys 4 k .. 4 k + 3 of a query share one block of words. Returns the block of keys 0 .. 3;
 * `head` is (first_sample + sample) heads + head. */
DSC_FORMULA int64_t dsc_attention_block(int64_t head, int64_t t, int64_t query) {
    return (head * t + query) * ((t + 3) / 4);
}

/* ---- upsampling by 2 (dsc_op_upsample_forward) ---- */

/* The weights of the two inputs that a bilinear output lies between: of input i / 2, and of its neighbour. */
#define DSC_UPSAMPLE_NEAR 0.75
#define DSC_UPSAMPLE_FAR  0.25

/* The neighbour of input i / 2 that is closer to output i, in a line of `size` inputs. */
DSC_FORMULA int64_t dsc_upsample_neighbour(int64_t i, int64_t size) {
    int64_t other = i / 2 + (i % 2 ? 1 : -1);
    return other < 0 ? 0 : other < size ? other : size - 1;
}

/* ---- embedding ---- */

/* The row of the table for an id; -1 if the id is not a whole number from 0 to vocabulary - 1. */
DSC_FORMULA int64_t dsc_embedding_row(double id, int64_t vocabulary) {
    return id >= 0 && id < (double)vocabulary && id == floor(id) ? (int64_t)id : -1;
}

/* ---- clipping and trust ratios: one value per tensor, always in double ---- */

/* min(1, limit / sqrt(sumsq)), or 1 if sumsq = 0. NaN stays NaN, so that a bad gradient is noticed. */
DSC_FORMULA double dsc_clip_factor(double sumsq, double limit) {
    double norm = sqrt(sumsq);
    return norm <= limit || norm == 0 ? 1 : limit / norm;
}

/* p = (F + damping I)^-1 d for a symmetric 2x2 matrix f = (F00, F01, F11), or only its diagonal if `full` is 0. The
 * determinant is at least damping^2 in exact arithmetic; rounding must not make it smaller. */
DSC_FORMULA void dsc_norm_solve(const double f[3], double damping, int full, const double d[2], double p[2]) {
    double a = f[0] + damping, b = full ? f[1] : 0, c = f[2] + damping;
    double least = damping * damping, determinant = a * c - b * b;
    determinant = determinant < least ? least : determinant;
    p[0] = full ? (c * d[0] - b * d[1]) / determinant : d[0] / a;
    p[1] = full ? (a * d[1] - b * d[0]) / determinant : d[1] / c;
}

/* The weight of the square of a new value in a running average of second moments: (1 - decay) scale, or 0 if scale is
 * not positive: the average then does not change. */
DSC_FORMULA double dsc_moment_take(double decay, double scale) {
    return scale > 0 ? (1 - decay) * scale : 0;
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

/* The update of dsc_op_loss_scale; `bad`: the number of non-finite elements. */
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

/* The new DSC_HYPER_SKIP; a 2, set by dsc_op_guard, stays. */
DSC_FORMULA double dsc_skip_move(double skip, double bad) {
    return skip == 2 ? 2 : bad != 0;
}

/* ---- second-order steps ---- */

/* min(1, sqrt(limit / |lr^2 sum|)), but 1 if the limit or the product is 0, and NaN if the sum is not finite, so that
 * this is noticed. Computed from square roots, so that the product does not overflow. */
DSC_FORMULA double dsc_kl_clip(double sum, double lr, double limit) {
    double size = fabs(lr) * sqrt(fabs(sum)), bound = sqrt(limit);
    if (!isfinite(sum))
        return NAN;
    return bound == 0 || size <= bound ? 1 : bound / size;
}

/* ---- refresh of an eigenbasis (dsc_op_rotation_batch): always in double ----
 *
 * Squares of small eigenvalues would underflow in float. */
#define DSC_TURN_TAU 0.03

/* Returns 1 if column a, with eigenvalue la, comes before column b. */
DSC_FORMULA int dsc_turn_before(double la, int64_t a, double lb, int64_t b) {
    if (la > lb)
        return 1;
    if (la < lb)
        return 0;
    if (la == lb || (isnan(la) && isnan(lb)))
        return a < b;
    return isnan(lb);
}

/* The angle by which the column with eigenvalue lj turns towards the one with li; b is their element of Q'AQ. */
DSC_FORMULA double dsc_turn_angle(double b, double li, double lj, double delta) {
    double gap = lj - li, ui = (li > 0 ? li : 0) + delta, uj = (lj > 0 ? lj : 0) + delta;
    double size = gap * gap + DSC_TURN_TAU * DSC_TURN_TAU * ui * uj + 4 * b * b;
    return size == 0 ? 0 : b * gap / size;
}

/* The factor of A Q in the turned basis, when the basis has only k < n columns. */
DSC_FORMULA double dsc_turn_pull(double l, double largest) {
    double least = largest * 0x1p-10;
    return largest > 0 ? 1 / (l > least ? l : least) : 0;
}

/* x[i,j], for column i and the column that becomes column j; same: 1 if these are one column; pull: 0 if k = n. */
DSC_FORMULA double dsc_turn_share(double b, double li, double lj, double delta, double pull, int same) {
    double turn = same ? 0 : dsc_turn_angle(b, li, lj, delta);
    return pull == 0 ? turn : turn - b * pull;
}

/* The square of |y_j - v_j q_j| / (max(v_j, 0) + delta); rest = |y_j - v_j q_j|^2. */
DSC_FORMULA double dsc_residual_square(double rest, double value, double delta) {
    double size = (value > 0 ? value : 0) + delta;
    return rest / size / size;
}

/* The damping of one factor of a pair when `damping` is split by the ratio of their mean eigenvalues,
 * sqrt(damping mean / partner). Means that are not positive and finite are of no use: the damping is then split
 * evenly. */
DSC_FORMULA double dsc_split_damping(double damping, double mean, double partner) {
    double ratio = mean / partner;
    return sqrt(damping) * (mean > 0 && partner > 0 && ratio > 0 && isfinite(ratio) ? sqrt(ratio) : 1);
}

/* ---- labels drawn from a softmax ----
 *
 * Everything is computed in double, whatever the type of the logits, and in the same order: every device draws the
 * same labels. */

/* A uniform number in [0, 1) of 32 bits: the first word of the sequence (seed, DSC_RNG_FISHER, step mod 2^32,
 * sample). */
DSC_FORMULA double dsc_label_uniform(uint64_t seed, int64_t step, int64_t sample) {
    dsc_rng rng = dsc_rng_start(seed, DSC_RNG_FISHER, (uint32_t)step, (uint64_t)sample);
    return (double)dsc_rng_u32(&rng) * 0x1p-32;
}

/* A row of logits: one of the two pointers is set. */
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

/* Returns 1 with probability sigmoid(z), for a uniform u: 0 only if the probability of class 0, 1 / (1 + e^z),
 * exceeds u. */
DSC_FORMULA int32_t dsc_draw_binary(double z, double u) {
    return u * (1 + exp(z)) >= 1;
}

/* Returns the first class at which the running sum of the weights exp(z - max z) exceeds u times their total. A
 * class with weight 0 does not raise the sum, so it is never drawn. If a logit is NaN or +infinity, the total is
 * NaN and every comparison is false: the result is then the last class with a weight above 0, or class 0. */
DSC_FORMULA int32_t dsc_draw_label(dsc_logits z, int64_t classes, double u) {
    if (classes == 1)
        return dsc_draw_binary(dsc_logit(z, 0), u);
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

/* ---- optimisers ---- */

/* Returns 1 if the step must not change anything. */
DSC_FORMULA int dsc_step_skips(const double hyper[DSC_HYPER_COUNT]) {
    return hyper[DSC_HYPER_SKIP] != 0;
}

/* The learning rate, times the trust ratio if the rule has one; norms may be NULL for the other rules. */
DSC_FORMULA double dsc_update_rate(dsc_update_rule rule, const double *hyper, const double *norms) {
    double lr = hyper[DSC_HYPER_LR];
    switch (rule) {
    case DSC_UPDATE_LARS:
        return lr * dsc_lars_rate(norms[0], norms[1], hyper[DSC_HYPER_TRUST], hyper[DSC_HYPER_DECAY]);
    case DSC_UPDATE_LAMB_APPLY:
        return hyper[DSC_HYPER_DECAY] == 0 ? lr : lr * dsc_lamb_rate(norms[0], norms[1]);
    default:
        return lr;
    }
}

/* ---- formulas for float and double ---- */

#define DSC_REAL       double
#define DSC_NAME(name) name
#define DSC_TYPE(name) name
#define DSC_SQRT       sqrt
#define DSC_EXP        exp
#define DSC_TANH       tanh
#define DSC_ERFC       erfc
#include "device/formulas.inc"
#undef DSC_REAL
#undef DSC_NAME
#undef DSC_TYPE
#undef DSC_SQRT
#undef DSC_EXP
#undef DSC_TANH
#undef DSC_ERFC

/* ---- losses of single numbers (dsc_op_bce_loss, dsc_op_dice_loss): always in double ---- */

/* The target of a logit; NaN for a label above 1. */
DSC_FORMULA double dsc_binary_target(int32_t label) {
    return label <= 1 ? (double)label : NAN;
}

DSC_FORMULA int dsc_binary_correct(double z, double t) {
    return t == 1 ? z > 0 : t == 0 && z <= 0;
}

/* max(z, 0) - z t + log(1 + exp(-|z|)) with t 0 or 1; 0 if z is infinite and of the right sign. */
DSC_FORMULA double dsc_bce(double z, double t) {
    double wrong = t == 1 ? -z : z;
    return isnan(t) ? NAN : (wrong > 0 ? wrong : 0) + log1p(exp(-fabs(z)));
}

DSC_FORMULA double dsc_bce_slope(double z, double t) {
    double slope;
    return dsc_sigmoid_and_slope(z, &slope) - t;
}

/* The Dice loss, from the sums both = sum p t and sum = sum p + sum t. */
DSC_FORMULA double dsc_dice(double both, double sum) {
    return 1 - (2 * both + 1) / (sum + 1);
}

DSC_FORMULA double dsc_dice_slope(double z, double t, double both, double sum) {
    double slope;
    (void)dsc_sigmoid_and_slope(z, &slope);
    return (2 * both + 1 - 2 * t * (sum + 1)) * slope / ((sum + 1) * (sum + 1));
}

#define DSC_REAL float
#ifdef __cplusplus
#define DSC_NAME(name) name
#define DSC_EXP        expf
#define DSC_TANH       tanhf
#define DSC_ERFC       erfcf
#else
#define DSC_NAME(name) name##_f
#define DSC_EXP        dsc_exp_f
#define DSC_TANH       dsc_tanh_f
#define DSC_ERFC       dsc_erfc_f
#endif
#define DSC_TYPE(name) name##_f
#define DSC_SQRT       sqrtf
#include "device/formulas.inc"
#undef DSC_REAL
#undef DSC_NAME
#undef DSC_TYPE
#undef DSC_SQRT
#undef DSC_EXP
#undef DSC_TANH
#undef DSC_ERFC

#endif
