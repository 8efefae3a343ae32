/* Gram matrices of patches, on every device and in both types, against a naive sum in double.
 *
 * An element is right when |got - want| <= 2 (positions + 4) eps scale, scale being the sum of the terms'
 * sizes; of many positions, the whole matrix must be far better. */
#include "device/rig.h"

#include <math.h>
#include <stdlib.h>

typedef struct gram_case {
    dsc_conv_desc desc; /* its type is set by the test */
    int64_t group;
    double alpha, beta;
    int ones;
} gram_case;

/*   n, h, w, c   k   kh kw  stride  pad    dil   groups   group alpha beta ones */
static const gram_case cases[] = {
    {CONV(DSC_F32, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0, 1, 0, 0},
    /* rows of x as they are: linear layers, gradients */
    {CONV(DSC_F32, 9, 1, 1, 10, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0, 1, 0, 0},
    {CONV(DSC_F32, 40, 1, 1, 65, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0, 0.5, 1, 0},
    {CONV(DSC_F32, 40, 1, 1, 64, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0, 0.5, 0.25, 1},
    {CONV(DSC_F32, 5, 30, 30, 16, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0, 2, 0, 0},
    {CONV(DSC_F32, 3, 30, 30, 7, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0, 1, -2, 0},
    {CONV(DSC_F32, 2, 10, 10, 48, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0, 1, 1, 0},
    {CONV(DSC_F32, 2, 9, 7, 12, 3, 1, 1, 1, 1, 0, 0, 1, 1, 3), 2, 1, 0.5, 0},
    {CONV(DSC_F32, 2, 9, 7, 40, 2, 1, 1, 1, 1, 0, 0, 1, 1, 2), 0, 1, 0, 0},
    {CONV(DSC_F32, 1, 10, 10, 736, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0, 1, 0, 0}, /* rows of C by thread */
    {CONV(DSC_F32, 1, 10, 10, 730, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0, 3, 0.5, 0},
    {CONV(DSC_F32, 6, 10, 10, 193, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0, 2, 0.5, 1}, /* many wide rows */
    {CONV(DSC_F32, 3, 33, 29, 15, 1, 3, 3, 2, 1, 1, 0, 1, 1, 1), 0, 1, 0.5, 1},  /* many wide patches */
    {CONV(DSC_F32, 2, 40, 41, 20, 2, 5, 3, 1, 2, 2, 1, 1, 2, 2), 1, 1, 0, 0},
    {CONV(DSC_F32, 2500, 1, 1, 404, 2, 1, 1, 1, 1, 0, 0, 1, 1, 2), 1, 1, 0, 0},
    {CONV(DSC_F32, 1, 10, 10, 200, 1, 2, 2, 1, 1, 0, 0, 1, 1, 1), 0, 1, 0, 1},
    /* any geometry */
    {CONV(DSC_F32, 2, 8, 7, 6, 1, 1, 1, 2, 3, 0, 0, 1, 1, 1), 0, 1, 0, 0},
    {CONV(DSC_F32, 2, 4, 5, 3, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1), 0, 1, 1, 1},
    {CONV(DSC_F32, 3, 16, 16, 16, 1, 3, 3, 2, 2, 1, 1, 1, 1, 1), 0, 0.125, 0, 0},
    {CONV(DSC_F32, 2, 9, 8, 5, 1, 3, 3, 1, 1, 0, 0, 1, 1, 1), 0, 1, 0.5, 1},
    {CONV(DSC_F32, 2, 9, 8, 5, 1, 3, 3, 1, 1, 2, 2, 1, 1, 1), 0, 1, 0, 0},
    {CONV(DSC_F32, 3, 14, 14, 5, 1, 5, 5, 1, 1, 2, 2, 1, 1, 1), 0, 1, 0, 1},
    {CONV(DSC_F32, 1, 15, 17, 3, 1, 7, 7, 2, 2, 3, 3, 1, 1, 1), 0, 1, 1, 0},
    {CONV(DSC_F32, 1, 10, 11, 4, 1, 3, 3, 1, 2, 2, 1, 2, 3, 1), 0, 1, 0, 1},
    {CONV(DSC_F32, 2, 9, 8, 6, 2, 3, 2, 2, 3, 1, 0, 1, 1, 2), 1, 1, 2, 1},
    {CONV(DSC_F32, 2, 7, 7, 6, 6, 3, 3, 1, 1, 1, 1, 1, 1, 6), 4, 1, 0, 0}, /* depthwise */
    {CONV(DSC_F32, 1, 2, 2, 1, 1, 4, 4, 3, 3, 1, 1, 1, 1, 1), 0, 1, 0, 0},
    /* 3x3, stride 1, padding 1, without patches */
    {CONV(DSC_F32, 3, 1, 1, 4, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 1, 0, 1},
    {CONV(DSC_F32, 2, 1, 6, 4, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 1, 0, 0},
    {CONV(DSC_F32, 2, 6, 1, 4, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 1, 0, 0},
    {CONV(DSC_F32, 3, 2, 2, 4, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 1, 0, 1},
    {CONV(DSC_F32, 2, 2, 5, 3, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 1, 1, 1},
    {CONV(DSC_F32, 2, 5, 2, 3, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 1, 0, 0},
    {CONV(DSC_F32, 1, 3, 3, 1, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 1, 0.5, 1},
    {CONV(DSC_F32, 2, 3, 4, 2, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 1, 0, 0},
    {CONV(DSC_F32, 51, 5, 2, 1, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 1, 0, 0}, /* images smaller than a vector */
    {CONV(DSC_F32, 3, 4, 3, 17, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 0.5, -1, 1},
    {CONV(DSC_F32, 3, 8, 8, 16, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 1, 0, 0},
    {CONV(DSC_F32, 2, 6, 5, 32, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 1, 1, 0},
    {CONV(DSC_F32, 20, 3, 2, 16, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 1, 0, 0}, /* very narrow images */
    {CONV(DSC_F32, 2, 8, 8, 64, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 0.25, 0.75, 1},
    {CONV(DSC_F32, 7, 20, 20, 2, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 1, 0, 1}, /* several images at a time */
    {CONV(DSC_F32, 2, 40, 30, 3, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 1, 0, 1}, /* bands of an image */
    {CONV(DSC_F32, 2, 2, 700, 3, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 1, 0, 0}, /* bands of one line */
    {CONV(DSC_F32, 2, 7, 6, 15, 3, 3, 3, 1, 1, 1, 1, 1, 1, 3), 1, 1, 0, 1},  /* groups */
    /* padding at the bottom and right only */
    {CONV_EXTRA(DSC_F32, 2, 1, 1, 5, 6, 4, 1, 2, 2, 1, 1, 0, 0, 1, 1, 1), 0, 1, 0, 1},
    {CONV_EXTRA(DSC_F32, 2, 0, 1, 8, 8, 16, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 1, 0, 1},
    {CONV_EXTRA(DSC_F32, 2, 1, 1, 1, 1, 16, 1, 2, 2, 1, 1, 0, 0, 1, 1, 1), 0, 1, 0, 0},
    {CONV_EXTRA(DSC_F32, 2, 1, 0, 4, 3, 8, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0, 1, 0.5, 0},
    {CONV(DSC_F32, 3, 12, 11, 32, 2, 3, 3, 1, 1, 1, 1, 1, 1, 2), 1, 1, 0, 0},  /* groups, no rests */
    {CONV(DSC_F32, 2, 3, 2, 136, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 0.5, 2, 1}, /* rows of C by thread */
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* ---- the truth ---- */

static double patch_value(const dsc_conv_desc *d, const double *x, const int64_t at[3], int64_t group,
                          int64_t column) {
    int64_t cg = d->shape.in_c / d->shape.groups, tap = column / cg;
    int64_t y = at[1] * d->shape.stride_h + tap / d->shape.kernel_w * d->shape.dilation_h - d->shape.pad_h;
    int64_t v = at[2] * d->shape.stride_w + tap % d->shape.kernel_w * d->shape.dilation_w - d->shape.pad_w;
    if (tap >= d->shape.kernel_h * d->shape.kernel_w) /* the column of ones */
        return 1;
    if (y < 0 || y >= d->shape.in_h || v < 0 || v >= d->shape.in_w)
        return 0;
    return x[((at[0] * d->shape.in_h + y) * d->shape.in_w + v) * d->shape.in_c + group * cg + column % cg];
}

static int64_t width_of(const gram_case *g) {
    return g->desc.shape.kernel_h * g->desc.shape.kernel_w * (g->desc.shape.in_c / g->desc.shape.groups) +
           g->ones;
}

/* c = alpha P' P + beta c, all of it; scale: the same of absolute values. */
static void truth(const gram_case *g, const double *x, double *c, double *scale) {
    int64_t oh = 0, ow = 0, n = width_of(g);
    double *row = test_array(n, sizeof *row);
    assert_ok(dsc_conv_output(&g->desc, &oh, &ow));
    for (int64_t i = 0; i < n * n; i++) {
        c[i] = g->beta == 0 ? 0 : g->beta * c[i];
        scale[i] = fabs(c[i]);
    }
    for (int64_t p = 0; p < g->desc.n * oh * ow; p++) {
        const int64_t at[3] = {p / (oh * ow), p / ow % oh, p % ow};
        for (int64_t j = 0; j < n; j++)
            row[j] = patch_value(&g->desc, x, at, g->group, j);
        for (int64_t i = 0; i < n; i++) {
            double left = g->alpha * row[i];
            for (int64_t j = 0; left != 0 && j <= i; j++) {
                c[i * n + j] += left * row[j];
                scale[i * n + j] += fabs(left * row[j]);
            }
        }
    }
    free(row);
}

/* ---- one run ---- */

/* The operation on values x and c in a workspace full of NaN; c gets the result. Guards, x and the upper
 * triangle must be intact. */
static void run(const rig *r, dsc_dtype dtype, const gram_case *g, const double *x, double *c) {
    dsc_conv_desc d = g->desc;
    int64_t n = width_of(g);
    d.dtype = dtype;
    size_t bytes = dsc_op_patch_gram_workspace(r->device, &d, g->ones);
    place px = place_of(r, dtype, SHAPE(d.n, d.shape.in_h, d.shape.in_w, d.shape.in_c), x),
          pc = place_of(r, dtype, SHAPE(n, n), c);
    place work = place_make(r, DSC_U8, SHAPE((int64_t)bytes));
    place_fill(r, &work, 255);
    assert_ok(dsc_op_patch_gram(r->q, &d, &px.t, g->group, g->alpha, g->beta, &work.t, &pc.t));
    place_expect(r, &px, x, "patch_gram's x");
    place_check_guards(r, &pc, "patch_gram's c");
    place_check_guards(r, &work, "patch_gram's work");
    double *before = test_array(n * n, sizeof *before);
    memcpy(before, c, (size_t)(n * n) * sizeof *c);
    place_read(r, &pc, c);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i + 1; j < n; j++)
            if (c[i * n + j] != before[i * n + j])
                fail_msg("%s: patch_gram wrote to [%lld,%lld]", r->label, (long long)i, (long long)j);
    free(before);
    place_free(&px);
    place_free(&pc);
    place_free(&work);
}

/* Inputs of a case: x, and c whose lower triangle is NaN where it may not be read. */
typedef struct inputs {
    double *x, *c, *want, *scale;
    int64_t n, count;
} inputs;

/* Draws the inputs, without the expected result. positive: x is not negative, so that nothing cancels. */
static inputs draw_inputs(const gram_case *g, uint64_t stream, int positive) {
    inputs in = {.n = width_of(g),
                 .count = g->desc.n * g->desc.shape.in_h * g->desc.shape.in_w * g->desc.shape.in_c};
    in.x = test_array(in.count, sizeof(double));
    in.c = test_array(in.n * in.n, sizeof(double));
    in.want = test_array(in.n * in.n, sizeof(double));
    in.scale = test_array(in.n * in.n, sizeof(double));
    random_values(2 * stream, in.count, in.x);
    for (int64_t i = 0; positive && i < in.count; i++)
        in.x[i] = fabs(in.x[i]);
    random_values(2 * stream + 1, in.n * in.n, in.c);
    for (int64_t i = 0; g->beta == 0 && i < in.n; i++)
        for (int64_t j = 0; j <= i; j++)
            in.c[i * in.n + j] = NAN;
    return in;
}

static void find_truth(const gram_case *g, inputs *in) {
    memcpy(in->want, in->c, (size_t)(in->n * in->n) * sizeof(double));
    truth(g, in->x, in->want, in->scale);
}

static inputs make_inputs(const gram_case *g, uint64_t stream, int positive) {
    inputs in = draw_inputs(g, stream, positive);
    find_truth(g, &in);
    return in;
}

static void free_inputs(inputs *in) {
    free(in->x);
    free(in->c);
    free(in->want);
    free(in->scale);
}

static int64_t positions_of(const gram_case *g) {
    int64_t oh = 0, ow = 0;
    assert_ok(dsc_conv_output(&g->desc, &oh, &ow));
    return g->desc.n * oh * ow;
}

/* Runs it twice: right, and the same bits again. */
static void check_on(const rig *r, dsc_dtype dtype, const char *name, const gram_case *g, const inputs *in) {
    size_t bytes = (size_t)(in->n * in->n) * sizeof(double);
    double *got = test_array(in->n * in->n, sizeof *got), *again = test_array(in->n * in->n, sizeof *got);
    double terms = (double)positions_of(g);
    memcpy(got, in->c, bytes);
    memcpy(again, in->c, bytes);
    run(r, dtype, g, in->x, got);
    for (int64_t i = 0; i < in->n; i++)
        for (int64_t j = 0; j <= i; j++) {
            int64_t at = i * in->n + j;
            double limit = 2 * (terms + 4) * dtype_eps(dtype) * in->scale[at];
            if (!(fabs(got[at] - in->want[at]) <= limit))
                fail_msg("patch_gram %s on %s in %s: [%lld,%lld] is %.9g instead of %.9g (limit %.3g)", name,
                         r->label, dsc_dtype_name(dtype), (long long)i, (long long)j, got[at], in->want[at],
                         limit);
        }
    if (dtype == DSC_F32) {
        run(r, dtype, g, in->x, again);
        assert_memory_equal(got, again, bytes);
    }
    free(got);
    free(again);
}

/* Too large for ref, which is slow, and serves every device in double: there, one other is enough. */
static int is_large(const gram_case *g) {
    return positions_of(g) * width_of(g) * width_of(g) > 4000000;
}

static void test_cases(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        char name[40];
        int large = is_large(&cases[i]);
        snprintf(name, sizeof name, "case %d", i);
        inputs in = make_inputs(&cases[i], (uint64_t)i, 0);
        for (int r = large ? 1 : 0; r < rig_count; r++) {
            check_on(&rigs[r], DSC_F32, name, &cases[i], &in);
            if (!large && r < 2)
                check_on(&rigs[r], DSC_F64, name, &cases[i], &in);
        }
        free_inputs(&in);
    }
}

/* ---- accuracy of long sums ---- */

/* Relative error in the Frobenius norm of the lower triangle. */
static double relative_error(int64_t n, const double *got, const double *want) {
    double error = 0, size = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            double e = got[i * n + j] - want[i * n + j];
            error += e * e;
            size += want[i * n + j] * want[i * n + j];
        }
    return sqrt(error / size);
}

/* 131072 positions: in runs of about a thousand (R), then S sums of runs, rounding errors of which most
 * cancel: about eps (sqrt(R) + sqrt(S)) / 4 of the whole for terms of one sign. The limit, 2e-6, is 17 eps.
 */
static void test_long_sums(void **state) {
    (void)state;
    static const gram_case big[] = {
        {CONV(DSC_F32, 128, 32, 32, 2, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 1, 0, 0},
        {CONV(DSC_F32, 128, 32, 32, 2, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 1, 0, 1},
        {CONV(DSC_F32, 128, 32, 32, 3, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0, 1, 0, 0},
        {CONV(DSC_F32, 128, 34, 34, 2, 1, 3, 3, 1, 1, 0, 0, 1, 1, 1), 0, 1, 0, 0},
    };
    for (size_t i = 0; i < sizeof big / sizeof big[0]; i++) {
        inputs in = make_inputs(&big[i], 1000 + i, i > 0);
        for (int r = 1; r < rig_count; r++) {
            double *got = test_array(in.n * in.n, sizeof *got);
            run(&rigs[r], DSC_F32, &big[i], in.x, got);
            double error = relative_error(in.n, got, in.want);
            if (!(error <= 2e-6))
                fail_msg("patch_gram, long sums %zu on %s: relative error %.3g", i, rigs[r].label, error);
            free(got);
        }
        free_inputs(&in);
    }
}

/* ---- rows of halves ---- */

static double round_to(dsc_dtype dtype, double x) {
    double step = ldexp(1, ilogb(x == 0 ? 1 : x) - (dtype == DSC_BF16 ? 7 : 10));
    return nearbyint(x / step) * step;
}

/* Factors come from halves as they are. `got`, on a device that computes in halves. */
static void run_half(const rig *r, dsc_dtype dtype, const gram_case *g, const double *x, double *got) {
    dsc_conv_desc d = g->desc;
    int64_t n = width_of(g);
    d.dtype = dtype;
    place px = place_of(r, dtype, SHAPE(d.n, d.shape.in_h, d.shape.in_w, d.shape.in_c), x),
          pc = place_of(r, DSC_F32, SHAPE(n, n), got);
    place work = place_make(r, DSC_U8, SHAPE((int64_t)dsc_op_patch_gram_workspace(r->device, &d, g->ones)));
    place_fill(r, &work, 255);
    assert_ok(dsc_op_patch_gram(r->q, &d, &px.t, g->group, g->alpha, g->beta, &work.t, &pc.t));
    place_check_guards(r, &pc, "patch_gram's c");
    place_check_guards(r, &work, "patch_gram's work");
    place_read(r, &pc, got);
    place_free(&px);
    place_free(&pc);
    place_free(&work);
}

/* Multiples of 1/4 up to 2, whose sums are exact: more rows than a slice, fewer, one group of three, a running sum,
 * several blocks. Then numbers of one sign: tensor cores truncate when they add 16 terms to a sum, by at most eps of
 * it. Each case runs both ways, in one type of halves each, and the next case the other way round. With sanitizers, which
 * do not look at rounding, only the exact way runs. */
static void test_half_rows(void **state) {
    (void)state;
    static const gram_case some[] = {
        {CONV(DSC_F32, 32868, 1, 1, 192, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0, 1, 0, 1},
        {CONV(DSC_F32, 1124, 1, 1, 576, 3, 1, 1, 1, 1, 0, 0, 1, 1, 3), 1, 2, 0, 0},
        {CONV(DSC_F32, 2048, 1, 1, 200, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0, 1, 1, 1},
        {CONV(DSC_F32, 1024, 1, 1, 1608, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0, 1, 0, 1},
    };
    static const dsc_dtype types[] = {DSC_BF16, DSC_F16};
    const rig *r = &rigs[rig_count - 1]; /* the only one that may be a GPU */
    if (dsc_device_is_host(r->device))
        return;
    const size_t step = getenv("DESCENT_TEST_QUICK") ? 2 : 1;
    for (size_t i = 0; i < 2 * sizeof some / sizeof some[0]; i += step) {
        const gram_case *g = &some[i / 2];
        dsc_dtype dtype = types[(i + i / 2) % 2];
        int exact = i % 2 == 0;
        inputs in = draw_inputs(g, 2000 + i, !exact);
        for (int64_t j = 0; j < in.count; j++)
            in.x[j] = exact ? nearbyint(8 * in.x[j]) / 4 : round_to(dtype, in.x[j]);
        for (int64_t j = 0; j < in.n * in.n; j++)
            in.c[j] = nearbyint(4 * in.c[j]) / 4;
        find_truth(g, &in);
        run_half(r, dtype, g, in.x, in.c);
        double error = relative_error(in.n, in.c, in.want);
        if (!(error <= (exact ? 0 : (double)g->desc.n / 16 * dtype_eps(DSC_F32))))
            fail_msg("patch_gram of %s, case %zu on %s: relative error %.3g", dsc_dtype_name(dtype), i,
                     r->label, error);
        free_inputs(&in);
    }
}

/* ---- memory ---- */

/* In memory that ends where the tensors end: a sanitizer sees what is read past them, which guard words
 * allow. */
static void test_exact_memory(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        const gram_case *g = &cases[i];
        const dsc_conv_desc *d = &g->desc;
        const int64_t x_dim[4] = {d->n, d->shape.in_h, d->shape.in_w, d->shape.in_c},
                      c_dim[2] = {width_of(g), width_of(g)};
        for (int r = 0; r < rig_count && !is_large(g); r++) {
            dsc_device *device = rigs[r].device;
            if (!dsc_device_is_host(device))
                continue;
            int64_t bytes = (int64_t)dsc_op_patch_gram_workspace(device, d, g->ones);
            dsc_tensor x = dsc_tensor_view(device, NULL, DSC_F32, 4, x_dim);
            dsc_tensor c = dsc_tensor_view(device, NULL, DSC_F32, 2, c_dim);
            x.data = test_array(dsc_tensor_count(&x), sizeof(float));
            c.data = test_array(dsc_tensor_count(&c), sizeof(float));
            dsc_tensor work = dsc_tensor_view(device, test_array(bytes, 1), DSC_U8, 1, &bytes);
            assert_ok(dsc_op_patch_gram(rigs[r].q, d, &x, g->group, 1, 0, &work, &c));
            free(x.data);
            free(c.data);
            free(work.data);
        }
    }
}

/* ---- by hand ---- */

/* x = 1..9 as a 3x3 image under a 3x3 kernel with padding 1, with ones: a few entries of each kind. */
static void test_by_hand(void **state) {
    (void)state;
    static const gram_case g = {CONV(DSC_F32, 1, 3, 3, 1, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 1, 0, 1};
    static const double x[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    static const struct {
        int row, column;
        double value;
    } entry[] = {
        {4, 4, 285}, /* the middle tap sees everything: 1 + 4 + ... + 81 */
        {0, 0, 46},  /* 1 + 4 + 16 + 25 */
        {2, 2, 74},  /* 4 + 9 + 25 + 36 */
        {8, 8, 206}, /* 25 + 36 + 64 + 81 */
        {1, 0, 58},  /* neighbours in the lines but the last: 2 + 6 + 20 + 30 */
        {3, 0, 82},  /* below each other, columns but the last: 4 + 10 + 28 + 40 */
        {8, 0, 9},   /* from one corner to the other */
        {6, 2, 21},  /* the other two */
        {9, 4, 45},  /* all of them */
        {9, 0, 12},  /* 1 + 2 + 4 + 5 */
        {9, 9, 9},   /* positions */
    };
    for (int r = 0; r < rig_count; r++) {
        double c[100] = {0};
        run(&rigs[r], DSC_F32, &g, x, c);
        for (size_t i = 0; i < sizeof entry / sizeof entry[0]; i++)
            if (c[entry[i].row * 10 + entry[i].column] != entry[i].value)
                fail_msg("%s: [%d,%d] is %g instead of %g", rigs[r].label, entry[i].row, entry[i].column,
                         c[entry[i].row * 10 + entry[i].column], entry[i].value);
    }
}

/* ---- refusals ---- */

static void test_refusals(void **state) {
    (void)state;
    static const dsc_conv_desc d = CONV(DSC_F32, 1, 4, 4, 2, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1);
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        int64_t bytes = (int64_t)dsc_op_patch_gram_workspace(g->device, &d, 1);
        place x = place_make(g, DSC_F32, SHAPE(1, 4, 4, 2)), c = place_make(g, DSC_F32, SHAPE(18, 18));
        place bad = place_make(g, DSC_F32, SHAPE(20, 20)), wide = place_make(g, DSC_F64, SHAPE(18, 18));
        place work = place_make(g, DSC_U8, SHAPE(bytes)), little = place_make(g, DSC_U8, SHAPE(8));
        assert_fails(DSC_E_INVALID, "patch_gram: c is [20,20]; [18,18] is expected",
                     dsc_op_patch_gram(g->q, &d, &x.t, 0, 1, 0, &work.t, &bad.t));
        assert_fails(DSC_E_INVALID, "patch_gram: c is fp64; fp32 is expected",
                     dsc_op_patch_gram(g->q, &d, &x.t, 0, 1, 0, &work.t, &wide.t));
        assert_fails(DSC_E_INVALID, "patch_gram: x is [18,18]; [1,4,4,2] is expected",
                     dsc_op_patch_gram(g->q, &d, &c.t, 0, 1, 0, &work.t, &c.t));
        assert_fails(DSC_E_INVALID, "patch_gram: group is 1; 0 to 0 is expected",
                     dsc_op_patch_gram(g->q, &d, &x.t, 1, 1, 0, &work.t, &c.t));
        if (bytes > 8) { /* else it does without */
            dsc_tensor over = c.t;
            over.data = work.t.data;
            assert_fails(DSC_E_INVALID, "patch_gram: work has 8 bytes",
                         dsc_op_patch_gram(g->q, &d, &x.t, 0, 1, 0, &little.t, &c.t));
            assert_fails(DSC_E_INVALID, "patch_gram: work is missing",
                         dsc_op_patch_gram(g->q, &d, &x.t, 0, 1, 0, NULL, &c.t));
            assert_fails(DSC_E_INVALID, "patch_gram: work shares memory with c",
                         dsc_op_patch_gram(g->q, &d, &x.t, 0, 1, 0, &work.t, &over));
        }
        dsc_conv_desc nonsense = d;
        nonsense.shape.stride_h = 0;
        assert_int_equal(dsc_op_patch_gram_workspace(g->device, &nonsense, 0), 0);
        assert_fails(DSC_E_INVALID, "stride_h is 0",
                     dsc_op_patch_gram(g->q, &nonsense, &x.t, 0, 1, 0, &work.t, &c.t));
        place *all[] = {&x, &c, &bad, &wide, &work, &little};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

/* ---- set-up ---- */

/* Two more devices: with more threads than images, and than rows of a tile. */
static int open_all(void **state) {
    static const int threads[] = {3, 5};
    int failed = rigs_open(state);
    for (int i = 0; !failed && !chosen() && i < 2; i++) {
        rig *r = &rigs[rig_count];
        dsc_device_options options;
        dsc_device_options_init(&options);
        options.name = "cpu";
        options.threads = threads[i];
        failed =
            dsc_device_create(&options, &r->device) != DSC_OK || dsc_queue_create(r->device, &r->q) != DSC_OK;
        snprintf(r->label, sizeof r->label, "cpu, %d threads", threads[i]);
        rig_count++;
    }
    return failed;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),   cmocka_unit_test(test_long_sums), cmocka_unit_test(test_exact_memory),
        cmocka_unit_test(test_by_hand), cmocka_unit_test(test_refusals),  cmocka_unit_test(test_half_rows),
    };
    return cmocka_run_group_tests(tests, open_all, rigs_close);
}
