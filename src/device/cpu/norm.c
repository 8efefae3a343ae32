/* Batch norm on the cpu device; the formulas are in ops.h.
 *
 * Forward and backward each make two passes over memory: reduce, then write. The second one runs backwards through
 * each thread's share, because the end of the share is what the first one has left in the cache. */
#include "device/cpu/cpu.h"

#include "base/error.h"

#include <math.h>
#include <string.h>

/* How one call is divided: rows of c channels as periods of `width`, shared among `parts` threads. */
typedef struct norm_cut {
    int64_t n, c, rows, width;
    int parts;
    float *wide;       /* up to 4 per-channel operands, repeated to `width` each */
    char *own;         /* per part: 2 width doubles, 4 width floats */
    int64_t own_bytes; /* of one part */
} norm_cut;

static dsc_status cut_norm(dsc_queue *q, const dsc_tensor *x, int64_t c, norm_cut *cut) {
    int64_t n = dsc_tensor_count(x), width = dsc_cpu_period(c);
    *cut = (norm_cut){.n = n, .c = c, .rows = n / c, .width = width};
    cut->parts = dsc_cpu_parts(q->device, n);
    cut->own_bytes = width * (int64_t)(2 * sizeof(double) + 4 * sizeof(float));
    int64_t wide_bytes = 4 * width * (int64_t)sizeof(float);
    DSC_TRY(dsc_cpu_scratch(q, wide_bytes + cut->parts * cut->own_bytes, &cut->wide));
    cut->own = (char *)cut->wide + wide_bytes;
    return DSC_OK;
}

static double *own_sums(const norm_cut *cut, int part) {
    return (void *)(cut->own + part * cut->own_bytes);
}

static float *own_floats(const norm_cut *cut, int part) {
    return (void *)(own_sums(cut, part) + 2 * cut->width);
}

/* The number of elements that one kernel call of a second pass processes. */
static int64_t chunk_of(const norm_cut *cut) {
    return (16384 + cut->width - 1) / cut->width * cut->width;
}

/* ---- forward ---- */

typedef struct moments {
    double count, mean, m2; /* m2: the sum of squares about the mean */
} moments;

static moments merge(moments a, moments b) {
    if (b.count == 0)
        return a;
    double count = a.count + b.count, delta = b.mean - a.mean;
    return (moments){count, a.mean + delta * b.count / count,
                     a.m2 + b.m2 + delta * delta * a.count * b.count / count};
}

static void reduce_moments(const dsc_cpu_kernels *k, const norm_cut *cut, const float *x) {
#pragma omp parallel for num_threads(cut->parts) schedule(static, 1)
    for (int p = 0; p < cut->parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(cut->n, cut->width, cut->parts, p);
        double *mean = own_sums(cut, p), *m2 = mean + cut->width;
        memset(mean, 0, (size_t)cut->width * 2 * sizeof *mean);
        k->norm_moments(r.count / cut->width, cut->width, x + r.first, own_floats(cut, p), mean, m2);
    }
}

/* The moments of one channel: the parts' lanes in order, then the rows after the last whole period. */
static moments channel_moments(const norm_cut *cut, const float *x, int64_t ch) {
    moments all = {0, 0, 0};
    for (int p = 0; p < cut->parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(cut->n, cut->width, cut->parts, p);
        const double *mean = own_sums(cut, p), *m2 = mean + cut->width;
        for (int64_t i = ch; i < cut->width; i += cut->c)
            all = merge(all, (moments){(double)(r.count / cut->width), mean[i], m2[i]});
    }
    for (int64_t i = cut->n / cut->width * cut->width + ch; i < cut->n; i += cut->c)
        all = merge(all, (moments){1, (double)x[i], 0});
    return all;
}

static void apply_parts(const dsc_cpu_kernels *k, const norm_cut *cut, const dsc_cpu_norm_apply *all) {
    int64_t chunk = chunk_of(cut);
#pragma omp parallel for num_threads(cut->parts) schedule(static, 1)
    for (int p = 0; p < cut->parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(cut->n, cut->width, cut->parts, p);
        for (int64_t first = (r.count - 1) / chunk * chunk; r.count > 0 && first >= 0; first -= chunk) {
            dsc_cpu_norm_apply a = *all;
            int64_t at = r.first + first, count = r.count - first < chunk ? r.count - first : chunk;
            a.x += at;
            a.y += at;
            if (a.residual)
                a.residual += at;
            k->norm_apply(count, cut->width, &a);
        }
    }
}

static dsc_cpu_norm_apply apply_arguments(const dsc_norm_desc *desc, const norm_cut *cut, const dsc_tensor *x,
                                          const dsc_tensor *residual, dsc_tensor *y) {
    return (dsc_cpu_norm_apply){.mean = cut->wide,
                                .scale = cut->wide + cut->width,
                                .shift = cut->wide + 2 * cut->width,
                                .x = x->data,
                                .residual = residual ? residual->data : NULL,
                                .y = y->data,
                                .relu = desc->relu};
}

/* Sets the operands of channel ch for y = (x - mean) scale + shift. The mean is rounded to float; the rounding error
 * goes into the shift. */
static void set_channel(const norm_cut *cut, int64_t ch, double mean, double scale, double shift) {
    float rounded = (float)mean;
    float *to = cut->wide + ch;
    for (int64_t i = 0; i < cut->width; i += cut->c) {
        to[i] = rounded;
        to[i + cut->width] = (float)scale;
        to[i + 2 * cut->width] = (float)(shift + ((double)rounded - mean) * scale);
    }
}

static dsc_status norm_forward_train(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                     const dsc_tensor *residual, const dsc_norm_params *params,
                                     dsc_tensor *mean, dsc_tensor *invstd, dsc_tensor *y) {
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    norm_cut cut;
    DSC_TRY(cut_norm(q, x, dsc_tensor_count(mean), &cut));
    reduce_moments(k, &cut, x->data);
    const float *gamma = params->gamma->data, *shift = params->shift->data;
    float *run_mean = params->running_mean->data, *run_var = params->running_var->data;
    for (int64_t ch = 0; ch < cut.c; ch++) {
        moments all = channel_moments(&cut, x->data, ch);
        double var = all.m2 / all.count, unbiased = all.count > 1 ? all.m2 / (all.count - 1) : var;
        double inverse = 1 / sqrt(var + desc->eps);
        ((float *)mean->data)[ch] = (float)all.mean;
        ((float *)invstd->data)[ch] = (float)inverse;
        run_mean[ch] = (float)((1 - desc->momentum) * (double)run_mean[ch] + desc->momentum * all.mean);
        run_var[ch] = (float)((1 - desc->momentum) * (double)run_var[ch] + desc->momentum * unbiased);
        set_channel(&cut, ch, all.mean, (double)gamma[ch] * inverse, (double)shift[ch]);
    }
    dsc_cpu_norm_apply a = apply_arguments(desc, &cut, x, residual, y);
    apply_parts(k, &cut, &a);
    return DSC_OK;
}

static dsc_status norm_forward_eval(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                    const dsc_tensor *residual, const dsc_norm_params *params,
                                    dsc_tensor *y) {
    norm_cut cut;
    DSC_TRY(cut_norm(q, x, dsc_tensor_count(params->gamma), &cut));
    const float *gamma = params->gamma->data, *shift = params->shift->data;
    const float *mean = params->running_mean->data, *var = params->running_var->data;
    for (int64_t ch = 0; ch < cut.c; ch++)
        set_channel(&cut, ch, (double)mean[ch], (double)gamma[ch] / sqrt((double)var[ch] + desc->eps),
                    (double)shift[ch]);
    dsc_cpu_norm_apply a = apply_arguments(desc, &cut, x, residual, y);
    apply_parts(dsc_cpu_kernels_of(q), &cut, &a);
    return DSC_OK;
}

/* ---- backward ---- */

static void move_to(dsc_cpu_norm_grad *a, int64_t at) {
    a->x += at;
    a->dy += at;
    a->dx += at;
    if (a->y)
        a->y += at;
    if (a->dresidual)
        a->dresidual += at;
}

static void reduce_sums(const dsc_cpu_kernels *k, const norm_cut *cut, const dsc_cpu_norm_grad *all) {
#pragma omp parallel for num_threads(cut->parts) schedule(static, 1)
    for (int p = 0; p < cut->parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(cut->n, cut->width, cut->parts, p);
        dsc_cpu_norm_grad a = *all;
        move_to(&a, r.first);
        a.sum_g = own_sums(cut, p);
        a.sum_gx = a.sum_g + cut->width;
        a.temporary = own_floats(cut, p);
        memset(a.sum_g, 0, (size_t)cut->width * 2 * sizeof *a.sum_g);
        k->norm_sums(r.count, cut->width, &a);
    }
}

static double channel_sum(const norm_cut *cut, int64_t ch, int64_t offset) {
    double sum = 0;
    for (int p = 0; p < cut->parts; p++)
        for (int64_t i = ch; i < cut->width; i += cut->c)
            sum += own_sums(cut, p)[offset + i];
    return sum;
}

static void grad_parts(const dsc_cpu_kernels *k, const norm_cut *cut, const dsc_cpu_norm_grad *all) {
    int64_t chunk = chunk_of(cut);
#pragma omp parallel for num_threads(cut->parts) schedule(static, 1)
    for (int p = 0; p < cut->parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(cut->n, cut->width, cut->parts, p);
        for (int64_t first = (r.count - 1) / chunk * chunk; r.count > 0 && first >= 0; first -= chunk) {
            dsc_cpu_norm_grad a = *all;
            move_to(&a, r.first + first);
            a.temporary = own_floats(cut, p);
            k->norm_grad(r.count - first < chunk ? r.count - first : chunk, cut->width, &a);
        }
    }
}

static void add_grad(dsc_tensor *grad, int64_t ch, double beta, double value) {
    float *to = (float *)grad->data + ch;
    *to = (float)(beta == 0 ? value : (double)*to + value);
}

static dsc_status norm_backward(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                const dsc_tensor *y, const dsc_tensor *dy, const dsc_tensor *gamma,
                                const dsc_tensor *mean, const dsc_tensor *invstd,
                                const dsc_norm_grads *grads) {
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    norm_cut cut;
    DSC_TRY(cut_norm(q, x, dsc_tensor_count(mean), &cut));
    dsc_cpu_norm_grad a = {.mean = cut.wide,
                           .scale = cut.wide + cut.width,
                           .mean_g = cut.wide + 2 * cut.width,
                           .slope = cut.wide + 3 * cut.width,
                           .x = x->data,
                           .y = desc->relu ? y->data : NULL,
                           .dy = dy->data,
                           .dx = grads->dx->data,
                           .dresidual = grads->dresidual ? grads->dresidual->data : NULL,
                           .beta_x = grads->beta_x != 0,
                           .beta_r = grads->beta_residual != 0};
    dsc_cpu_repeat(cut.c, cut.width, mean->data, cut.wide);
    reduce_sums(k, &cut, &a);
    for (int64_t ch = 0; ch < cut.c; ch++) {
        double sum_g = channel_sum(&cut, ch, 0), sum_gx = channel_sum(&cut, ch, cut.width);
        double inverse = (double)((const float *)invstd->data)[ch];
        add_grad(grads->dshift, ch, grads->beta_p, sum_g);
        add_grad(grads->dgamma, ch, grads->beta_p, sum_gx * inverse);
        for (int64_t i = ch; i < cut.width; i += cut.c) {
            cut.wide[i + cut.width] = (float)((double)((const float *)gamma->data)[ch] * inverse);
            cut.wide[i + 2 * cut.width] = (float)(sum_g / (double)cut.rows);
            cut.wide[i + 3 * cut.width] = (float)(sum_gx * inverse * inverse / (double)cut.rows);
        }
    }
    grad_parts(k, &cut, &a);
    return DSC_OK;
}

/* ---- Fisher matrices ---- */

/* One sample: x, y (or NULL) and dy, and its statistics (or NULL), per channel or per group. */
typedef struct fisher_input {
    int64_t positions, c;
    const float *x, *y, *dy, *mean, *invstd;
} fisher_input;

static void fisher_sums(const fisher_input *in, float *sum_gx, float *sum_g) {
    for (int64_t at = 0; at < in->positions * in->c; at += in->c) {
        const float *x = in->x + at, *y = in->y ? in->y + at : NULL, *dy = in->dy + at;
#pragma omp simd
        for (int64_t ch = 0; ch < in->c; ch++) {
            float g = y && !(y[ch] > 0) ? 0 : dy[ch];
            float centred = in->mean ? x[ch] - in->mean[ch] : x[ch];
            sum_gx[ch] += g * (in->invstd ? centred * in->invstd[ch] : centred);
            sum_g[ch] += g;
        }
    }
}

/* The same with one statistic per group of channels. */
static void fisher_sums_of_groups(const fisher_input *in, dsc_norm_places places, float *sum_gx,
                                  float *sum_g) {
    for (int64_t p = 0; p < in->positions; p++)
        for (int64_t first = 0; first < in->c; first += places.width) {
            int64_t at = p * in->c, of = p * places.position + first / places.width;
            float mean = in->mean ? in->mean[of] : 0, invstd = in->invstd[of];
            const float *x = in->x + at, *y = in->y ? in->y + at : NULL, *dy = in->dy + at;
#pragma omp simd
            for (int64_t ch = first; ch < first + places.width; ch++) {
                float g = y && !(y[ch] > 0) ? 0 : dy[ch];
                sum_gx[ch] += g * ((x[ch] - mean) * invstd);
                sum_g[ch] += g;
            }
        }
}

/* Computes the matrices of one sample: sums over its positions, then their products. */
static void fisher_sample(const fisher_input *in, int grouped, dsc_norm_places places, float *out) {
    int64_t c = in->c;
    float *sum_gx = out, *between = out + c, *sum_g = out + 2 * c;
    memset(out, 0, (size_t)(3 * c) * sizeof *out);
    if (grouped)
        fisher_sums_of_groups(in, places, sum_gx, sum_g);
    else
        fisher_sums(in, sum_gx, sum_g);
    for (int64_t ch = 0; ch < c; ch++) {
        between[ch] = sum_gx[ch] * sum_g[ch];
        sum_gx[ch] *= sum_gx[ch];
        sum_g[ch] *= sum_g[ch];
    }
}

static dsc_status norm_fisher(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *y, const dsc_tensor *dy,
                              const dsc_tensor *mean, const dsc_tensor *invstd, dsc_tensor *out) {
    int64_t n = x->dim[0], c = x->dim[x->ndim - 1], size = dsc_tensor_count(x) / n;
    int parts = dsc_cpu_parts(q->device, dsc_tensor_count(x)), grouped = invstd && invstd->ndim == 2;
    dsc_norm_places places = dsc_norm_places_of(x, invstd);
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        const fisher_input in = {
            .positions = size / c,
            .c = c,
            .x = (const float *)x->data + i * size,
            .y = y ? (const float *)y->data + i * size : NULL,
            .dy = (const float *)dy->data + i * size,
            .mean = mean ? (const float *)mean->data + i * places.sample : NULL,
            .invstd = invstd ? (const float *)invstd->data + i * places.sample : NULL,
        };
        fisher_sample(&in, grouped, places, (float *)out->data + i * 3 * c);
    }
    return DSC_OK;
}

void dsc_cpu_table_norm(dsc_device_table *table) {
    table->norm_fisher = norm_fisher;
    table->norm_forward_train = norm_forward_train;
    table->norm_forward_eval = norm_forward_eval;
    table->norm_backward = norm_backward;
}
