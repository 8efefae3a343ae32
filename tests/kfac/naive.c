#include "kfac/naive.h"

#include <math.h>
#include <stdlib.h>

/* ---- memory ---- */

static double *identity(int64_t n) {
    double *m = net_array(n * n, sizeof *m);
    for (int64_t i = 0; i < n; i++)
        m[i * n + i] = 1;
    return m;
}

static double *square(int64_t n) {
    return net_array(n * n, sizeof(double));
}

/* Groups of a convolution, or blocks of a linear layer. */
static int64_t units_of(const net_layer *l) {
    return l->shape.groups * l->shape.blocks;
}

static void open_unit(naive_unit *u, const net_layer *l, int layer, int64_t group) {
    *u = (naive_unit){
        .layer = layer, .group = group, .a_n = l->columns, .g_n = l->rows / units_of(l), .cosine = NAN};
    u->a = identity(u->a_n);
    u->g = identity(u->g_n);
    u->a_batch = square(u->a_n);
    u->g_batch = square(u->g_n);
    u->a_solved = square(u->a_n);
    u->g_solved = square(u->g_n);
    u->p = net_array(u->g_n * u->a_n, sizeof(double));
}

void naive_open(naive *v, const net *n, const dsc_kfac_options *options) {
    *v = (naive){.n = n,
                 .method = options->method,
                 .scaling = options->scaling,
                 .split = options->damping_split,
                 .warmup = options->warmup_factors,
                 .clip = options->clip,
                 .part = options->factor_samples,
                 .frozen_damping = options->outer_product,
                 .g_factor = 1};
    for (int l = 0; l < n->count; l++)
        for (int64_t group = 0; group < units_of(&n->layers[l]); group++) {
            assert_true(v->count < NAIVE_UNITS);
            open_unit(&v->units[v->count++], &n->layers[l], l, group);
        }
}

void naive_close(naive *v) {
    for (int i = 0; i < v->count; i++) {
        naive_unit *u = &v->units[i];
        double *all[] = {u->a, u->g, u->a_batch, u->g_batch, u->a_solved, u->g_solved, u->p};
        for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
            free(all[k]);
    }
    v->count = 0;
}

/* ---- factors ---- */

/* m += scale row row'. */
static void add_outer(const double *row, int64_t n, double scale, double *m) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            m[i * n + j] += scale * row[i] * row[j];
}

/* The patch of sample `image` at output (oy, ox), channels of one group, followed by the 1 of the bias. */
static void take_patch(const net_layer *l, const double *image, int64_t group, const int64_t out[2],
                       double *row) {
    const net_shape *s = &l->shape;
    int64_t channels = s->in_c / s->groups, k = 0;
    for (int64_t ky = 0; ky < s->kernel_h; ky++)
        for (int64_t kx = 0; kx < s->kernel_w; kx++)
            for (int64_t c = 0; c < channels; c++) {
                int64_t y = out[0] * s->stride_h - s->pad_h + ky * s->dilation_h;
                int64_t x = out[1] * s->stride_w - s->pad_w + kx * s->dilation_w;
                int inside = y >= 0 && y < s->in_h && x >= 0 && x < s->in_w;
                row[k++] = inside ? image[(y * s->in_w + x) * s->in_c + group * channels + c] : 0;
            }
    if (s->bias)
        row[k] = 1;
}

/* 1 when the factors are made of this sample, too. */
static int is_used(const naive *v, int64_t sample) {
    return v->part == 0 || sample % (v->n->samples / v->n->ranks) < v->part;
}

/* The ratio of all samples to those that the factors are made of. */
static double whole_for_part(const naive *v) {
    int64_t share = v->n->samples / v->n->ranks;
    return v->part == 0 || v->part > share ? 1 : (double)share / (double)v->part;
}

static void capture_conv(const naive *v, naive_unit *u, double scale_a, double scale_g) {
    const net_layer *l = &v->n->layers[u->layer];
    double *row = net_array(u->a_n, sizeof *row), *grad = net_array(u->g_n, sizeof *grad);
    for (int64_t i = 0; i < v->n->samples; i++)
        for (int64_t p = 0; p < l->positions && is_used(v, i); p++) {
            take_patch(l, l->whole_a + i * l->a_size, u->group, (int64_t[]){p / l->out_w, p % l->out_w}, row);
            add_outer(row, u->a_n, scale_a, u->a_batch);
            const double *g = l->whole_g + i * l->g_size + p * l->shape.out_c + u->group * u->g_n;
            for (int64_t k = 0; k < u->g_n; k++)
                grad[k] = g[k] * v->g_factor;
            add_outer(grad, u->g_n, scale_g, u->g_batch);
        }
    free(row);
    free(grad);
}

/* The gradients that pixel (i, j) of a transposed convolution's input has contributed to. */
static void take_outputs(const net_layer *l, const double *g, int64_t i, int64_t j, double *grad) {
    const net_shape *s = &l->shape;
    for (int64_t k = 0; k < l->rows; k++) {
        int64_t y = i * s->stride_h - s->pad_h + k / s->out_c / s->kernel_w * s->dilation_h;
        int64_t x = j * s->stride_w - s->pad_w + k / s->out_c % s->kernel_w * s->dilation_w;
        int inside = y >= 0 && y < l->out_h && x >= 0 && x < l->out_w;
        grad[k] = inside ? g[(y * l->out_w + x) * s->out_c + k % s->out_c] : 0;
    }
}

static void capture_transposed(const naive *v, naive_unit *u, double scale_a, double scale_g) {
    const net_layer *l = &v->n->layers[u->layer];
    double *grad = net_array(u->g_n, sizeof *grad);
    for (int64_t i = 0; i < v->n->samples; i++)
        for (int64_t p = 0; p < l->positions && is_used(v, i); p++) {
            add_outer(l->whole_a + i * l->a_size + p * u->a_n, u->a_n, scale_a, u->a_batch);
            take_outputs(l, l->whole_g + i * l->g_size, p / l->shape.in_w, p % l->shape.in_w, grad);
            for (int64_t k = 0; k < u->g_n; k++)
                grad[k] *= v->g_factor;
            add_outer(grad, u->g_n, scale_g, u->g_batch);
        }
    free(grad);
}

static void capture_linear(const naive *v, naive_unit *u, int64_t rows, double scale_a, double scale_g) {
    const net_layer *l = &v->n->layers[u->layer];
    const net_shape *s = &l->shape;
    double *row = net_array(u->a_n, sizeof *row), *grad = net_array(u->g_n, sizeof *grad);
    for (int64_t i = 0; i < rows; i++) {
        if (!is_used(v, i / (rows / v->n->samples)))
            continue;
        for (int64_t k = 0; k < s->in_c; k++)
            row[k] = l->whole_a[i * s->in_c + k];
        if (s->bias)
            row[s->in_c] = 1;
        for (int64_t k = 0; k < u->g_n; k++)
            grad[k] = l->whole_g[i * s->out_c + u->group * u->g_n + k] * v->g_factor;
        add_outer(row, u->a_n, scale_a, u->a_batch);
        add_outer(grad, u->g_n, scale_g, u->g_batch);
    }
    free(row);
    free(grad);
}

void naive_capture(naive *v, unsigned absent) {
    for (int i = 0; i < v->count; i++) {
        naive_unit *u = &v->units[i];
        const net_layer *l = &v->n->layers[u->layer];
        int64_t rows = v->n->samples * (l->shape.sequence > 0 ? l->shape.sequence : 1);
        double n = (double)rows, s = (double)l->positions;
        double scale_a = 1 / (n * s * s), scale_g = n * s;
        if (v->scaling == DSC_KFAC_PYTORCH)
            scale_a = scale_g = 1 / (n * s * s * s);
        scale_a *= whole_for_part(v);
        scale_g *= whole_for_part(v);
        if (absent >> u->layer & 1)
            continue;
        u->ran++;
        if (l->shape.kind == DSC_KFAC_CONV2D)
            capture_conv(v, u, scale_a, scale_g);
        else if (l->shape.kind == DSC_KFAC_CONV_TRANSPOSE2D)
            capture_transposed(v, u, scale_a, scale_g);
        else
            capture_linear(v, u, rows, scale_a, scale_g);
    }
}

static void average(double decay, int64_t passes, int64_t n, double *batch, double *running) {
    for (int64_t i = 0; i < n * n; i++)
        running[i] = decay * running[i] + (1 - decay) * batch[i] / (double)passes;
}

/* ---- decomposition ---- */

/* The block that row i lies in: floor(n / blocks) rows each, the last takes the rest. */
static int64_t block_of(int64_t i, int64_t n, int64_t blocks) {
    int64_t count = blocks < n ? blocks : n, block = i / (n / count);
    return block < count ? block : count - 1;
}

/* The index of a column of A, which is in weight order (kernel, channel), when channels are counted first. A transposed
 * convolution's A has channels only. */
static int64_t by_channel(const net_shape *s, int64_t column) {
    int64_t kernel = s->kernel_h * s->kernel_w, channels = s->in_c / s->groups;
    if (s->kind == DSC_KFAC_CONV_TRANSPOSE2D)
        return column;
    return column < kernel * channels ? column % channels * kernel + column / channels : column;
}

static double mean_trace(const double *m, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += m[i * n + i];
    return sum / (double)n;
}

/* The layer whose inputs a unit reads. */
static int source_of(const naive *v, const naive_unit *u) {
    int64_t reads = v->n->layers[u->layer].shape.reads;
    return reads > 0 ? (int)reads - 1 : u->layer;
}

/* The mean trace of G; of several G that share an A, taken as blocks of one matrix. */
static double joint_trace(const naive *v, const naive_unit *u) {
    double sum = 0, rows = 0;
    int linear = v->n->layers[u->layer].shape.kind == DSC_KFAC_LINEAR;
    for (int i = 0; i < v->count; i++) {
        const naive_unit *other = &v->units[i];
        if (other != u && !(linear && source_of(v, other) == source_of(v, u)))
            continue;
        sum += mean_trace(other->g, other->g_n) * (double)other->g_n;
        rows += (double)other->g_n;
    }
    return sum / rows;
}

/* The damping of A and of G. */
static void split_damping(const naive *v, naive_unit *u, double damping) {
    double a = mean_trace(u->a, u->a_n), g = joint_trace(v, u);
    double pi = a > 0 && g > 0 ? sqrt(a / g) : 1;
    u->solved_split[0] = v->split == DSC_KFAC_SPLIT_PI ? sqrt(damping) * pi : damping;
    u->solved_split[1] = v->split == DSC_KFAC_SPLIT_PI ? sqrt(damping) / pi : damping;
}

static void take_over(const naive *v, naive_unit *u, const dsc_kfac_hyper *hyper) {
    const net_shape *s = &v->n->layers[u->layer].shape;
    int64_t blocks = s->kind != DSC_KFAC_LINEAR ? hyper->diag_blocks : 1;
    for (int64_t i = 0; i < u->a_n; i++)
        for (int64_t j = 0; j < u->a_n; j++) {
            int together =
                block_of(by_channel(s, i), u->a_n, blocks) == block_of(by_channel(s, j), u->a_n, blocks);
            u->a_solved[i * u->a_n + j] = together ? u->a[i * u->a_n + j] : 0;
        }
    for (int64_t i = 0; i < u->g_n; i++)
        for (int64_t j = 0; j < u->g_n; j++) {
            int together = block_of(i, u->g_n, blocks) == block_of(j, u->g_n, blocks);
            u->g_solved[i * u->g_n + j] = together ? u->g[i * u->g_n + j] : 0;
        }
    u->solved_damping = hyper->damping;
    split_damping(v, u, hyper->damping);
    u->solved = 1;
}

/* ---- the dense solve ---- */

/* Row with the largest element of column k, from row k on. */
static int64_t pivot_row(const long double *m, int64_t n, int64_t k) {
    int64_t best = k;
    for (int64_t i = k + 1; i < n; i++)
        if (fabsl(m[i * n + k]) > fabsl(m[best * n + k]))
            best = i;
    return best;
}

/* Solves m x = b and writes x over b; overwrites m. */
static void solve(long double *m, int64_t n, long double *b) {
    for (int64_t k = 0; k < n; k++) {
        int64_t p = pivot_row(m, n, k);
        for (int64_t j = 0; j < n && p != k; j++) {
            long double t = m[k * n + j];
            m[k * n + j] = m[p * n + j];
            m[p * n + j] = t;
        }
        long double t = b[k];
        b[k] = b[p];
        b[p] = t;
        for (int64_t i = k + 1; i < n; i++) {
            long double f = m[i * n + k] / m[k * n + k];
            for (int64_t j = k; j < n && f != 0; j++)
                m[i * n + j] -= f * m[k * n + j];
            b[i] -= f * b[k];
        }
    }
    for (int64_t k = n - 1; k >= 0; k--) {
        for (int64_t j = k + 1; j < n; j++)
            b[k] -= m[k * n + j] * b[j];
        b[k] /= m[k * n + k];
    }
}

/* The matrix of the whole layer: vec counts (i, j) of D[g_n, a_n] row by row. */
static long double *kronecker(const naive *v, const naive_unit *u, long double damping) {
    int64_t a_n = u->a_n, g_n = u->g_n, n = a_n * g_n;
    long double *m = net_array(n * n, sizeof *m);
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < n; c++) {
            int64_t i = r / a_n, j = r % a_n, k = c / a_n, l = c % a_n;
            long double g = u->g_solved[i * g_n + k], a = u->a_solved[j * a_n + l];
            if (v->method == DSC_KFAC_INVERSE)
                m[r * n + c] =
                    (g + (i == k ? u->solved_split[1] : 0)) * (a + (j == l ? u->solved_split[0] : 0));
            else
                m[r * n + c] = g * a + (r == c ? damping : 0);
        }
    return m;
}

/* Computes u->p from the unit's rows of D; returns <P, D>. */
static double precondition(const naive *v, naive_unit *u, double damping, const double *d) {
    int64_t n = u->a_n * u->g_n;
    int frozen = v->method == DSC_KFAC_INVERSE || v->frozen_damping;
    long double *m = kronecker(v, u, frozen ? u->solved_damping : damping);
    long double *x = net_array(n, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = d[i];
    solve(m, n, x);
    double inner = 0, pp = 0, dd = 0;
    for (int64_t i = 0; i < n; i++) {
        u->p[i] = (double)x[i];
        inner += u->p[i] * d[i];
        pp += u->p[i] * u->p[i];
        dd += d[i] * d[i];
    }
    u->cosine = inner / sqrt(pp * dd);
    free(m);
    free(x);
    return inner;
}

/* The unit's rows of its layer's D. */
static double *rows_of(const naive_unit *u, double **d) {
    return d[u->layer] + u->group * u->g_n * u->a_n;
}

static double clip(const dsc_kfac_hyper *hyper, double lr, double sum) {
    double product = fabs(lr * lr * sum);
    return hyper->kl_clip > 0 && product > 0 ? fmin(1, sqrt(hyper->kl_clip / product)) : 1;
}

/* nu of one unit, of which <P, D> is `inner`. */
static double clip_unit(const naive *v, const dsc_kfac_hyper *hyper, double lr, double inner) {
    dsc_kfac_hyper share = *hyper;
    share.kl_clip /= v->count;
    return clip(&share, lr, inner);
}

double naive_step(naive *v, const dsc_kfac_hyper *hyper, int update, int decompose, double lr, double **d) {
    double sum = 0;
    for (int i = 0; i < v->count; i++) {
        naive_unit *u = &v->units[i];
        if (update && u->ran) {
            double decay = hyper->stat_decay;
            if (v->warmup)
                decay = fmin(decay, 1 - 1.0 / ++u->updates);
            average(decay, u->ran, u->a_n, u->a_batch, u->a);
            average(decay, u->ran, u->g_n, u->g_batch, u->g);
        }
        memset(u->a_batch, 0, (size_t)(u->a_n * u->a_n) * sizeof *u->a_batch);
        memset(u->g_batch, 0, (size_t)(u->g_n * u->g_n) * sizeof *u->g_batch);
    }
    for (int i = 0; i < v->count; i++) {
        naive_unit *u = &v->units[i];
        if (decompose)
            take_over(v, u, hyper);
        u->cosine = NAN;
        if (u->ran && u->solved && hyper->update_freq)
            sum += precondition(v, u, hyper->damping, rows_of(u, d));
    }
    double nu = clip(hyper, lr, sum), mean = 0;
    for (int i = 0; i < v->count; i++) {
        naive_unit *u = &v->units[i];
        double *rows = rows_of(u, d), inner = 0;
        for (int64_t k = 0; k < u->a_n * u->g_n && u->ran && u->solved && hyper->update_freq; k++)
            inner += u->p[k] * rows[k];
        if (v->clip == DSC_KFAC_CLIP_LAYER)
            nu = clip_unit(v, hyper, lr, inner);
        mean += nu / v->count;
        u->nu = nu;
        for (int64_t k = 0; k < u->a_n * u->g_n && u->ran && u->solved && hyper->update_freq; k++)
            rows[k] = nu * u->p[k];
        u->ran = 0;
    }
    return v->clip == DSC_KFAC_CLIP_LAYER ? mean : nu;
}

double naive_run(naive *v, net *n, const net_step *step, const dsc_kfac_hyper *hyper, double **d) {
    for (int64_t pass = 0; pass < (step->passes ? step->passes : 1); pass++) {
        net_draw(n, step->number, pass, step->loss_scale > 0 ? step->loss_scale : 1);
        naive_capture(v, step->absent);
    }
    net_draw_gradients(n, step->number);
    for (int l = 0; l < n->count; l++)
        memcpy(d[l], n->layers[l].d, (size_t)net_gradient_count(n, l) * sizeof **d);
    int update = hyper->factor_freq > 0 && step->number % hyper->factor_freq == 0;
    int decompose = hyper->update_freq > 0 && step->number % hyper->update_freq == 0;
    return naive_step(v, hyper, update, decompose, step->lr, d);
}

/* ---- comparison ---- */

static double norm(const double *x, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

double naive_bound(const naive *v, int layer, double damping, double eps) {
    double worst = 0;
    for (int i = 0; i < v->count; i++) {
        const naive_unit *u = &v->units[i];
        const net_layer *l = &v->n->layers[u->layer];
        if (u->layer != layer)
            continue;
        double a = norm(u->a_solved, u->a_n * u->a_n), g = norm(u->g_solved, u->g_n * u->g_n);
        double condition = (a * g + damping) / damping;
        if (v->method == DSC_KFAC_INVERSE) {
            int split = v->split == DSC_KFAC_SPLIT_PI;
            double da = split ? u->solved_split[0] : damping, dg = split ? u->solved_split[1] : damping;
            condition = (a + da) / da + (g + dg) / dg;
        }
        int64_t rows = v->n->samples * l->positions * (l->shape.sequence > 0 ? l->shape.sequence : 1);
        double terms = (double)(rows + 8 * (u->a_n + u->g_n));
        worst = fmax(worst, terms * eps * condition);
    }
    return worst;
}

double naive_distance(const double *x, const double *y, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (x[i] - y[i]) * (x[i] - y[i]);
    return sqrt(sum) / norm(y, count);
}

double naive_excess(const naive *v, double *const *want, double damping, double eps) {
    double worst = 0;
    for (int l = 0; l < v->n->count; l++) {
        int64_t count = net_gradient_count(v->n, l);
        double *got = net_array(count, sizeof *got);
        net_read(v->n, l, got);
        double excess = naive_distance(got, want[l], count) / naive_bound(v, l, damping, eps);
        free(got);
        if (!(excess <= worst))
            worst = isnan(excess) ? INFINITY : excess;
    }
    return worst;
}

/* One rotation that makes m[p,q] zero. */
static void rotate(double *m, int64_t n, int64_t p, int64_t q) {
    if (m[p * n + q] == 0)
        return;
    double theta = (m[q * n + q] - m[p * n + p]) / (2 * m[p * n + q]);
    double t = (theta >= 0 ? 1 : -1) / (fabs(theta) + sqrt(theta * theta + 1));
    double c = 1 / sqrt(t * t + 1), s = t * c;
    for (int64_t k = 0; k < n; k++) {
        double x = m[k * n + p], y = m[k * n + q];
        m[k * n + p] = c * x - s * y;
        m[k * n + q] = s * x + c * y;
    }
    for (int64_t k = 0; k < n; k++) {
        double x = m[p * n + k], y = m[q * n + k];
        m[p * n + k] = c * x - s * y;
        m[q * n + k] = s * x + c * y;
    }
}

void naive_extremes(const double *a, int64_t n, double *smallest, double *largest) {
    double *m = square(n);
    memcpy(m, a, (size_t)(n * n) * sizeof *m);
    for (int sweep = 0; sweep < 30; sweep++)
        for (int64_t p = 0; p < n; p++)
            for (int64_t q = p + 1; q < n; q++)
                rotate(m, n, p, q);
    *smallest = *largest = m[0];
    for (int64_t i = 1; i < n; i++) {
        *smallest = fmin(*smallest, m[i * n + i]);
        *largest = fmax(*largest, m[i * n + i]);
    }
    free(m);
}

void naive_gradients_open(const net *n, double **d) {
    for (int l = 0; l < n->count; l++)
        d[l] = net_array(net_gradient_count(n, l), sizeof **d);
}

void naive_gradients_close(const net *n, double **d) {
    for (int l = 0; l < n->count; l++)
        free(d[l]);
}
