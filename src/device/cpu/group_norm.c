/* Group norm on the cpu device; the formulas are in ops.h.
 *
 * How work is divided depends only on the shape, and the sums of pieces are added in order: results do not depend on
 * the number of threads. A layer norm (one position, one group) has its row in the cache in every pass. The others
 * first sum per channel, like batch norm, over pieces of a sample. */
#include "device/cpu/cpu.h"

#include "base/error.h"

#include <math.h>
#include <string.h>

static void add_grad(dsc_tensor *grad, int64_t ch, double beta, double value) {
    float *to = (float *)grad->data + ch;
    *to = (float)(beta == 0 ? value : (double)*to + value);
}

static void put(dsc_tensor *t, int64_t i, double value) {
    if (t)
        ((float *)t->data)[i] = (float)value;
}

/* ---- rows (layer norm) ---- */

/* The largest number of blocks of rows, and the number of rows whose gradients are summed in float before they
 * are added to double sums. */
enum { ROW_BLOCKS = 32, ROWS_TOGETHER = 64 };

static void forward_row(const dsc_cpu_kernels *k, const dsc_group_norm_desc *desc, dsc_cpu_row_norm *a,
                        double statistics[2]) {
    double moments[2], m = (double)a->n, mean = 0;
    float about = 0;
    if (!desc->rms) {
        k->row_moments(a->n, a->x, a->x[0], moments);
        about = (float)((double)a->x[0] + moments[0] / m);
    }
    k->row_moments(a->n, a->x, about, moments);
    double first = desc->rms ? 0 : moments[0] / m, var = moments[1] / m - first * first;
    mean = (double)about + first;
    statistics[0] = mean;
    statistics[1] = 1 / sqrt((var > 0 ? var : var == var ? 0 : var) + desc->eps);
    a->mean = about;
    a->invstd = (float)statistics[1];
    a->offset = (float)(-first * statistics[1]);
    k->row_apply(a);
}

static dsc_status rows_forward(dsc_queue *q, const dsc_group_norm_desc *desc, const dsc_tensor *x,
                               const dsc_tensor *gamma, const dsc_tensor *shift, dsc_tensor *mean,
                               dsc_tensor *invstd, dsc_tensor *y) {
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    int64_t rows = x->dim[0], c = dsc_tensor_count(gamma);
    int parts = dsc_cpu_parts(q->device, rows * c);
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        double statistics[2];
        dsc_cpu_row_norm a = {.n = c,
                              .x = (const float *)x->data + row * c,
                              .gamma = gamma->data,
                              .shift = shift ? shift->data : NULL,
                              .to = (float *)y->data + row * c};
        forward_row(k, desc, &a, statistics);
        put(mean, row, statistics[0]);
        put(invstd, row, statistics[1]);
    }
    return DSC_OK;
}

/* The backward pass of rows [first, last). own: their sums, 2 c doubles, followed by 2 c floats of scratch memory. */
static void backward_rows(const dsc_cpu_kernels *k, int rms, const dsc_cpu_row_norm *all, const float *mean,
                          const float *invstd, int64_t first, int64_t last, double *own) {
    int64_t c = all->n;
    float *run = (void *)(own + 2 * c);
    memset(own, 0, (size_t)(2 * c) * (sizeof *own + sizeof *run));
    for (int64_t row = first; row < last; row++) {
        double sums[2];
        dsc_cpu_row_norm a = *all;
        a.x += row * c;
        a.dy += row * c;
        a.mean = rms ? 0 : mean[row];
        a.invstd = invstd[row];
        k->row_sums(&a, run, run + c, sums);
        if (a.to) {
            a.to += row * c;
            a.mean_u = rms ? 0 : (float)(sums[0] / (double)c);
            a.mean_uxh = (float)(sums[1] / (double)c);
            k->row_grad(&a);
        }
        if ((row + 1 - first) % ROWS_TOGETHER == 0 || row + 1 == last) {
            k->add_to_double(2 * c, run, own);
            memset(run, 0, (size_t)(2 * c) * sizeof *run);
        }
    }
}

static dsc_status rows_backward(dsc_queue *q, const dsc_group_norm_desc *desc, const dsc_tensor *x,
                                const dsc_tensor *dy, const dsc_tensor *gamma, const dsc_tensor *mean,
                                const dsc_tensor *invstd, const dsc_norm_grads *grads) {
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    int64_t rows = x->dim[0], c = dsc_tensor_count(gamma);
    int blocks = rows < ROW_BLOCKS ? (int)rows : ROW_BLOCKS, parts = dsc_cpu_parts(q->device, rows * c);
    const dsc_cpu_row_norm all = {.n = c,
                                  .x = x->data,
                                  .dy = dy->data,
                                  .gamma = gamma->data,
                                  .to = grads->dx ? grads->dx->data : NULL,
                                  .add = grads->beta_x != 0};
    double *sums;
    DSC_TRY(dsc_cpu_scratch(q, blocks * 3 * c * (int64_t)sizeof *sums, &sums));
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int b = 0; b < blocks; b++)
        backward_rows(k, desc->rms, &all, desc->rms ? NULL : mean->data, invstd->data, rows * b / blocks,
                      rows * (b + 1) / blocks, sums + 3 * c * b);
    for (int64_t i = 0; i < 2 * c; i++) {
        double sum = 0;
        dsc_tensor *to = i < c ? grads->dgamma : grads->dshift;
        for (int b = 0; b < blocks; b++)
            sum += sums[3 * c * b + i];
        if (to)
            add_grad(to, i % c, grads->beta_p, sum);
    }
    return DSC_OK;
}

/* ---- groups of channels ---- */

/* How one call is divided: each sample, of `size` numbers, into pieces of whole periods. */
typedef struct group_cut {
    int64_t n, c, size, width, groups, tasks;
    int pieces, parts;
    float *wide;  /* per sample: 4 operands of `width` floats */
    double *own;  /* per task: 2 width doubles, then 4 width floats */
    double *sums; /* 2 c */
} group_cut;

/* The desired number of tasks, to be shared among threads. */
enum { TASKS = 32 };

static dsc_status cut_groups(dsc_queue *q, const dsc_tensor *x, int64_t groups, group_cut *cut) {
    int64_t n = x->dim[0], c = x->dim[x->ndim - 1], width = dsc_cpu_period(c);
    *cut = (group_cut){.n = n, .c = c, .size = dsc_tensor_count(x) / n, .width = width, .groups = groups};
    cut->pieces = n < TASKS ? (int)((TASKS + n - 1) / n) : 1;
    cut->tasks = n * cut->pieces;
    cut->parts = dsc_cpu_parts(q->device, n * cut->size);
    int64_t wide = n * 2 * width; /* in doubles */
    DSC_TRY(
        dsc_cpu_scratch(q, (2 * c + cut->tasks * 4 * width + wide) * (int64_t)sizeof(double), &cut->sums));
    cut->own = cut->sums + 2 * c;
    cut->wide = (void *)(cut->own + cut->tasks * 4 * width);
    return DSC_OK;
}

static dsc_cpu_range piece_of(const group_cut *cut, int64_t task) {
    dsc_cpu_range r = dsc_cpu_share(cut->size, cut->width, cut->pieces, (int)(task % cut->pieces));
    r.first += task / cut->pieces * cut->size;
    return r;
}

static double *own_sums(const group_cut *cut, int64_t task) {
    return cut->own + task * 4 * cut->width;
}

static float *own_floats(const group_cut *cut, int64_t task) {
    return (void *)(own_sums(cut, task) + 2 * cut->width);
}

/* Sets channel ch of operand `which` of a sample, repeated over the period. */
static void set_wide(const group_cut *cut, int64_t sample, int which, int64_t ch, double value) {
    float *to = cut->wide + (4 * sample + which) * cut->width;
    for (int64_t i = ch; i < cut->width; i += cut->c)
        to[i] = (float)value;
}

static const float *wide_of(const group_cut *cut, int64_t sample, int which) {
    return cut->wide + (4 * sample + which) * cut->width;
}

typedef struct moments {
    double count, mean, m2;
} moments;

static moments merge(moments a, moments b) {
    if (b.count == 0)
        return a;
    double count = a.count + b.count, delta = b.mean - a.mean;
    return (moments){count, a.mean + delta * b.count / count,
                     a.m2 + b.m2 + delta * delta * a.count * b.count / count};
}

/* The moments of a channel in one sample: for each piece, its lanes in order, then the rows after its last whole
 * period. */
static moments channel_moments(const group_cut *cut, const float *x, int64_t sample, int64_t ch) {
    moments all = {0, 0, 0};
    for (int64_t task = sample * cut->pieces; task < (sample + 1) * cut->pieces; task++) {
        dsc_cpu_range r = piece_of(cut, task);
        const double *mean = own_sums(cut, task), *m2 = mean + cut->width;
        int64_t periods = r.count / cut->width;
        for (int64_t i = ch; i < cut->width; i += cut->c)
            all = merge(all, (moments){(double)periods, mean[i], m2[i]});
        for (int64_t i = periods * cut->width + ch; i < r.count; i += cut->c)
            all = merge(all, (moments){1, (double)x[r.first + i], 0});
    }
    return all;
}

static void forward_sample(const dsc_group_norm_desc *desc, const group_cut *cut, const float *x,
                           int64_t sample, const dsc_tensor *gamma, const dsc_tensor *shift,
                           double *statistics) {
    int64_t per = cut->c / cut->groups;
    for (int64_t g = 0; g < cut->groups; g++) {
        moments all = {0, 0, 0};
        for (int64_t ch = g * per; ch < (g + 1) * per; ch++)
            all = merge(all, channel_moments(cut, x, sample, ch));
        double mean = desc->rms ? 0 : all.mean,
               var = all.m2 / all.count + (desc->rms ? all.mean * all.mean : 0);
        double inverse = 1 / sqrt(var + desc->eps);
        statistics[2 * g] = mean;
        statistics[2 * g + 1] = inverse;
        for (int64_t ch = g * per; ch < (g + 1) * per; ch++) {
            double scale = (double)((const float *)gamma->data)[ch] * inverse;
            double b = shift ? (double)((const float *)shift->data)[ch] : 0;
            set_wide(cut, sample, 0, ch, mean);
            set_wide(cut, sample, 1, ch, scale);
            set_wide(cut, sample, 2, ch, b + ((double)(float)mean - mean) * scale);
        }
    }
}

static dsc_status groups_forward(dsc_queue *q, const dsc_group_norm_desc *desc, const dsc_tensor *x,
                                 const dsc_tensor *gamma, const dsc_tensor *shift, dsc_tensor *mean,
                                 dsc_tensor *invstd, dsc_tensor *y) {
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    group_cut cut;
    DSC_TRY(cut_groups(q, x, desc->groups, &cut));
    const float *from = x->data;
#pragma omp parallel for num_threads(cut.parts) schedule(static)
    for (int64_t task = 0; task < cut.tasks; task++) {
        dsc_cpu_range r = piece_of(&cut, task);
        double *own = own_sums(&cut, task);
        memset(own, 0, (size_t)cut.width * 2 * sizeof *own);
        k->norm_moments(r.count / cut.width, cut.width, from + r.first, own_floats(&cut, task), own,
                        own + cut.width);
    }
    for (int64_t sample = 0; sample < cut.n; sample++) {
        forward_sample(desc, &cut, from, sample, gamma, shift, cut.sums);
        for (int64_t g = 0; g < cut.groups; g++) {
            put(mean, sample * cut.groups + g, cut.sums[2 * g]);
            put(invstd, sample * cut.groups + g, cut.sums[2 * g + 1]);
        }
    }
#pragma omp parallel for num_threads(cut.parts) schedule(static)
    for (int64_t task = 0; task < cut.tasks; task++) {
        dsc_cpu_range r = piece_of(&cut, task);
        int64_t sample = task / cut.pieces;
        dsc_cpu_norm_apply a = {.mean = wide_of(&cut, sample, 0),
                                .scale = wide_of(&cut, sample, 1),
                                .shift = wide_of(&cut, sample, 2),
                                .x = from + r.first,
                                .y = (float *)y->data + r.first};
        k->norm_apply(r.count, cut.width, &a);
    }
    return DSC_OK;
}

/* A channel's sum over one sample: of g if `which` is 0, of g (x - mean) if it is 1. */
static double channel_sum(const group_cut *cut, int64_t sample, int which, int64_t ch) {
    double sum = 0;
    for (int64_t task = sample * cut->pieces; task < (sample + 1) * cut->pieces; task++)
        for (int64_t i = ch; i < cut->width; i += cut->c)
            sum += own_sums(cut, task)[which * cut->width + i];
    return sum;
}

/* Computes the coefficients of dx, and adds the sample's part of dgamma and dshift. */
static void backward_sample(const dsc_group_norm_desc *desc, const group_cut *cut, int64_t sample,
                            const float *gamma, const float *invstd) {
    int64_t per = cut->c / cut->groups;
    double m = (double)(cut->size / cut->groups);
    for (int64_t g = 0; g < cut->groups; g++) {
        double inverse = (double)invstd[sample * cut->groups + g], sum_u = 0, sum_uxh = 0;
        for (int64_t ch = g * per; ch < (g + 1) * per; ch++) {
            double sum_g = channel_sum(cut, sample, 0, ch),
                   sum_gxh = channel_sum(cut, sample, 1, ch) * inverse;
            sum_u += desc->rms ? 0 : (double)gamma[ch] * sum_g;
            sum_uxh += (double)gamma[ch] * sum_gxh;
            cut->sums[ch] += sum_gxh;
            cut->sums[cut->c + ch] += sum_g;
        }
        for (int64_t ch = g * per; ch < (g + 1) * per; ch++) {
            set_wide(cut, sample, 1, ch, inverse * (double)gamma[ch]);
            set_wide(cut, sample, 2, ch, -inverse * inverse * sum_uxh / m);
            set_wide(cut, sample, 3, ch, -inverse * sum_u / m);
        }
    }
}

static void group_dx(const dsc_cpu_kernels *k, const group_cut *cut, const dsc_tensor *x,
                     const dsc_tensor *dy, const dsc_norm_grads *grads) {
#pragma omp parallel for num_threads(cut->parts) schedule(static)
    for (int64_t task = 0; task < cut->tasks; task++) {
        dsc_cpu_range r = piece_of(cut, task);
        int64_t sample = task / cut->pieces;
        dsc_cpu_norm_grad a = {.mean = wide_of(cut, sample, 0),
                               .scale = wide_of(cut, sample, 1),
                               .slope = wide_of(cut, sample, 2),
                               .mean_g = wide_of(cut, sample, 3),
                               .x = (const float *)x->data + r.first,
                               .dy = (const float *)dy->data + r.first,
                               .dx = (float *)grads->dx->data + r.first,
                               .beta_x = grads->beta_x != 0};
        k->group_grad(r.count, cut->width, &a);
    }
}

static dsc_status groups_backward(dsc_queue *q, const dsc_group_norm_desc *desc, const dsc_tensor *x,
                                  const dsc_tensor *dy, const dsc_tensor *gamma, const dsc_tensor *mean,
                                  const dsc_tensor *invstd, const dsc_norm_grads *grads) {
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    group_cut cut;
    DSC_TRY(cut_groups(q, x, desc->groups, &cut));
    for (int64_t i = 0; i < cut.n * cut.c; i++) {
        int64_t sample = i / cut.c, ch = i % cut.c, s = sample * cut.groups + ch / (cut.c / cut.groups);
        set_wide(&cut, sample, 0, ch, desc->rms ? 0 : (double)((const float *)mean->data)[s]);
    }
#pragma omp parallel for num_threads(cut.parts) schedule(static)
    for (int64_t task = 0; task < cut.tasks; task++) {
        dsc_cpu_range r = piece_of(&cut, task);
        dsc_cpu_norm_grad a = {.mean = wide_of(&cut, task / cut.pieces, 0),
                               .x = (const float *)x->data + r.first,
                               .dy = (const float *)dy->data + r.first,
                               .sum_g = own_sums(&cut, task),
                               .sum_gx = own_sums(&cut, task) + cut.width,
                               .temporary = own_floats(&cut, task)};
        memset(a.sum_g, 0, (size_t)cut.width * 2 * sizeof *a.sum_g);
        k->norm_sums(r.count, cut.width, &a);
    }
    memset(cut.sums, 0, (size_t)(2 * cut.c) * sizeof *cut.sums);
    for (int64_t sample = 0; sample < cut.n; sample++)
        backward_sample(desc, &cut, sample, gamma->data, invstd->data);
    for (int64_t ch = 0; ch < cut.c; ch++) {
        if (grads->dgamma)
            add_grad(grads->dgamma, ch, grads->beta_p, cut.sums[ch]);
        if (grads->dshift)
            add_grad(grads->dshift, ch, grads->beta_p, cut.sums[cut.c + ch]);
    }
    if (grads->dx)
        group_dx(k, &cut, x, dy, grads);
    return DSC_OK;
}

/* ---- the operations ---- */

static int is_rows(const dsc_group_norm_desc *desc, const dsc_tensor *x, const dsc_tensor *gamma) {
    return desc->groups == 1 && dsc_tensor_count(x) == x->dim[0] * dsc_tensor_count(gamma);
}

static dsc_status group_norm_forward(dsc_queue *q, const dsc_group_norm_desc *desc, const dsc_tensor *x,
                                     const dsc_tensor *gamma, const dsc_tensor *shift, dsc_tensor *mean,
                                     dsc_tensor *invstd, dsc_tensor *y) {
    return is_rows(desc, x, gamma) ? rows_forward(q, desc, x, gamma, shift, mean, invstd, y)
                                   : groups_forward(q, desc, x, gamma, shift, mean, invstd, y);
}

static dsc_status group_norm_backward(dsc_queue *q, const dsc_group_norm_desc *desc, const dsc_tensor *x,
                                      const dsc_tensor *dy, const dsc_tensor *gamma, const dsc_tensor *mean,
                                      const dsc_tensor *invstd, const dsc_norm_grads *grads) {
    return is_rows(desc, x, gamma) ? rows_backward(q, desc, x, dy, gamma, mean, invstd, grads)
                                   : groups_backward(q, desc, x, dy, gamma, mean, invstd, grads);
}

void dsc_cpu_table_group_norm(dsc_device_table *table) {
    table->group_norm_forward = group_norm_forward;
    table->group_norm_backward = group_norm_backward;
}
