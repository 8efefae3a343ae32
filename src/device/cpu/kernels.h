/* Single-threaded loops of the cpu device, compiled once per instruction set (kernels.inc) and chosen when
 * the device is opened. Callers distribute work over threads. The pointers of a call are equal or do not overlap.
 *
 * "Periodic" data: rows of c channels, treated as runs ("periods") of `width` elements, where width is a multiple of c,
 * so that narrow rows fill wide vectors, too. Per-channel operands are repeated to `width` elements. */
#ifndef DSC_DEVICE_CPU_KERNELS_H
#define DSC_DEVICE_CPU_KERNELS_H

#include "device/formulas.h"

#include <stddef.h>
#include <stdint.h>

/* y = act((x - mean) scale + shift + residual); mean, scale and shift: [width]; residual may be NULL. */
typedef struct dsc_cpu_norm_apply {
    const float *mean, *scale, *shift;
    const float *x, *residual;
    float *y;
    int relu;
} dsc_cpu_norm_apply;

/* g = dy where y > 0 (everywhere if y is NULL), else 0.
 * Sums: sum_g[width] += g, sum_gx[width] += g (x - mean).
 * Gradient: dx = beta_x dx + scale (g - mean_g - (x - mean) slope); dresidual = beta_r dresidual + g. */
typedef struct dsc_cpu_norm_grad {
    const float *mean, *scale, *mean_g, *slope;
    const float *x, *y, *dy;
    float *dx, *dresidual;
    int beta_x, beta_r;
    double *sum_g, *sum_gx;
    float *temporary; /* [3 width] */
} dsc_cpu_norm_grad;

/* One row of a layer norm: xhat = (x - mean) invstd, u = gamma dy. */
typedef struct dsc_cpu_row_norm {
    int64_t n;
    const float *x, *dy, *gamma, *shift; /* shift may be NULL */
    float mean, invstd;
    float offset;           /* added to xhat: the rounding error of the mean, times invstd */
    float mean_u, mean_uxh; /* the means of u and u xhat over the row */
    float *to;              /* y, or dx */
    int add;                /* 1: dx += */
} dsc_cpu_row_norm;

/* C[m,n] = alpha A B + beta C. Element (i, p) of A is a[i a_row + p a_column], and so for B; the elements of a row of C
 * are contiguous. lower: only the lower triangle of C is computed and written. beta 0: C is not read. */
typedef struct dsc_cpu_gemm {
    int64_t m, n, k;
    const float *a, *b;
    int64_t a_row, a_column, b_row, b_column;
    float *c;
    int64_t c_row;
    float alpha, beta;
    int lower;
} dsc_cpu_gemm;

/* C[m,n] += alpha sum over pixels of a[pixel]' b[pixel]. Pixels are in lines of images, at the same pitches
 * (in floats) from `a` and from `b`. Sums are in float: no more than a few thousand pixels per call. lower:
 * only the lower triangle of C is computed and written. After the last pixel's channels, up to DSC_GRAM_SLACK
 * floats may be read, unless m and n are multiples of it. */
enum { DSC_GRAM_SLACK = 16 };
typedef struct dsc_cpu_gram {
    int64_t m, n;
    const float *a, *b;
    int64_t images, lines, pixels;
    int64_t image_pitch, line_pitch, pixel_pitch;
    float *c;
    int64_t c_row;
    float alpha;
    int lower;
} dsc_cpu_gram;

/* A block of attention scores s[rows, DSC_SCORES_ROW], of which `keys` columns are used. Row i attends to its first
 * min(real, seen + i) keys; the probabilities of the others become 0. With dropout they are then multiplied by Z (see
 * ops.h), from the words of the stream's blocks block + i block_row and following. */
enum { DSC_SCORES_ROW = 64 };
typedef struct dsc_cpu_scores {
    int64_t rows, keys, real, seen;
    int first; /* 1: this is the first block of keys of these rows */
    float *s;
    const dsc_dropout_stream *dropout; /* NULL: none */
    float kept;                        /* 1 / (1 - rate) */
    int64_t block, block_row;
} dsc_cpu_scores;

/* One query of attention over `keys` keys and values of `width` channels, `row` floats apart. */
typedef struct dsc_cpu_step {
    int64_t keys, width, row;
    float scale; /* of the scores */
    const float *query, *key, *value;
    float *y;
} dsc_cpu_step;

typedef struct dsc_cpu_kernels {
    const char *name;
    void (*fill)(int64_t n, float value, float *y);
    void (*axpby)(int64_t n, float alpha, const float *x, float beta, float *y); /* beta 0: y is not read */
    void (*scale)(int64_t n, float s, float *y);
    double (*dot)(int64_t n, const float *x, const float *y);
    int64_t (*nonfinite)(int64_t n, const float *x);
    /* y = f(a, b), or y += f(a, b) if `add` is 1; b may be NULL for operations with one input. */
    void (*map[DSC_MAP_COUNT])(int64_t n, const float *a, const float *b, int add, float *y);
    void (*to_bf16)(int64_t n, const float *x, uint16_t *y);
    void (*from_bf16)(int64_t n, const uint16_t *x, float *y);
    void (*to_f16)(int64_t n, const float *x, uint16_t *y); /* NULL: no better than ref's */
    void (*from_f16)(int64_t n, const uint16_t *x, float *y);

    /* y[i] += b[i mod width]; sums[width] += the sum over the periods of x, `temporary`: [width]. n: any count. */
    void (*bias_add)(int64_t n, int64_t width, const float *b, float *y);
    void (*column_sums)(int64_t n, int64_t width, const float *x, float *temporary, double *sums);
    /* Computes mean[width] and m2[width] (sums of squares about the mean) of `periods` whole periods; both must be 0
     * before. temporary: [3 width]. */
    void (*norm_moments)(int64_t periods, int64_t width, const float *x, float *temporary, double *mean,
                         double *m2);
    void (*norm_apply)(int64_t n, int64_t width, const dsc_cpu_norm_apply *a);
    void (*norm_sums)(int64_t n, int64_t width, const dsc_cpu_norm_grad *a);
    void (*norm_grad)(int64_t n, int64_t width, const dsc_cpu_norm_grad *a);

    /* dx = [dx +] a dy + b (x - mean) + c with periodic mean, a, b and c, which are the members mean, scale, slope and
     * mean_g of dsc_cpu_norm_grad; beta_x 1: adds to dx. */
    void (*group_grad)(int64_t n, int64_t width, const dsc_cpu_norm_grad *a);
    /* moments[0] = sum of x - about, moments[1] = sum of (x - about)^2. */
    void (*row_moments)(int64_t n, const float *x, float about, double moments[2]);
    void (*row_apply)(const dsc_cpu_row_norm *a);
    /* sums[0] = sum of u, sums[1] = sum of u xhat; dgamma[n] += dy xhat, dshift[n] += dy. */
    void (*row_sums)(const dsc_cpu_row_norm *a, float *dgamma, float *dshift, double sums[2]);
    void (*row_grad)(const dsc_cpu_row_norm *a);
    void (*add_to_double)(int64_t n, const float *x, double *sums);

    /* Computes rows [i0, i1) of the panel of gemm_columns columns from j0 on: the product over gemm_depth of the
     * k, from p0 on. Called for ascending p0. */
    void (*gemm_panel)(const dsc_cpu_gemm *g, int64_t p0, int64_t i0, int64_t i1, int64_t j0);
    int64_t gemm_columns, gemm_depth;
    /* Computes rows [i0, i0 + gram_rows) of C; i0 is a multiple of gram_rows. */
    void (*gram_strip)(const dsc_cpu_gram *g, int64_t i0);
    int64_t gram_rows;

    /* One tap of a max pool's window, of c channels: y = max(y, x), and the index of the tap; index may be NULL. */
    void (*max_tap)(int64_t c, int32_t tap, const float *x, int32_t *index, float *y);

    /* With m the old maximum of a row (`largest`) and m' the new one: s = exp(s - m'), largest = m', sum = exp(m - m')
     * sum + the row's sum, y (`width` channels) *= exp(m - m'). For the first block neither sum nor y is read. */
    void (*softmax_rows)(const dsc_cpu_scores *b, float *largest, float *sum, float *y, int64_t y_row,
                         int64_t width);
    /* s = p = exp(s - lse); ds = factor p (ds - delta); ds is a block like s. */
    void (*softmax_grad_rows)(const dsc_cpu_scores *b, const float *lse, const float *delta, float factor,
                              float *ds);
    void (*attention_step)(const dsc_cpu_step *a);

    void (*update[DSC_UPDATE_COUNT])(int64_t n, const dsc_coefficients_f *coefficients, const float *z,
                                     const float *g, float *m, float *v, float *x);
} dsc_cpu_kernels;

/* y = a + b */
static inline void dsc_cpu_add(const dsc_cpu_kernels *k, int64_t n, const float *a, const float *b,
                               float *y) {
    k->map[DSC_MAP_ADD](n, a, b, 0, y);
}

extern const dsc_cpu_kernels dsc_cpu_kernels_base;
#ifdef __x86_64__
extern const dsc_cpu_kernels dsc_cpu_kernels_avx2;
extern const dsc_cpu_kernels dsc_cpu_kernels_avx512;
#endif

#endif
