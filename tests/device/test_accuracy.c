/* How wrong long sums in float32 may be: factors over many rows of one sign, where a sum that loses a bit a thousand
 * terms loses all of them, and products with and without TF32. Large ones that a GPU makes of fp16 parts may lose a
 * little more where all terms have one sign: tensor cores truncate. */
#include "device/rig.h"

#include <math.h>
#include <stdlib.h>

/* ---- factors ---- */

typedef struct factor_case {
    const char *name;
    dsc_conv_desc desc;
    int ones;
    double limit; /* of the relative error */
} factor_case;

static const factor_case factors[] = {
    {"40000 rows of 64", CONV(DSC_F32, 40000, 1, 1, 64, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0, 2e-6},
    {"40000 rows of 64 and ones", CONV(DSC_F32, 40000, 1, 1, 64, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1), 1, 2e-6},
    {"9000 rows of 200 and ones", CONV(DSC_F32, 9000, 1, 1, 200, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1), 1, 2e-6},
    {"3x3 patches of 16 channels", CONV(DSC_F32, 16, 32, 32, 16, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 2e-6},
    {"3x3 patches at stride 2", CONV(DSC_F32, 16, 32, 32, 16, 1, 3, 3, 2, 2, 1, 1, 1, 1, 1), 1, 2e-6},
};
enum { FACTORS = sizeof factors / sizeof factors[0] };

static int64_t width_of(const factor_case *f) {
    return f->desc.shape.kernel_h * f->desc.shape.kernel_w * f->desc.shape.in_c + f->ones;
}

/* The patch of output position p. */
static void read_patch(const factor_case *f, int64_t oh, int64_t ow, const double *x, int64_t p,
                       double *row) {
    const dsc_conv_desc *d = &f->desc;
    int64_t n = p / (oh * ow), top = p / ow % oh * d->shape.stride_h - d->shape.pad_h,
            left = p % ow * d->shape.stride_w - d->shape.pad_w;
    for (int64_t tap = 0; tap < d->shape.kernel_h * d->shape.kernel_w; tap++) {
        int64_t h = top + tap / d->shape.kernel_w, w = left + tap % d->shape.kernel_w;
        int inside = h >= 0 && h < d->shape.in_h && w >= 0 && w < d->shape.in_w;
        for (int64_t c = 0; c < d->shape.in_c; c++)
            row[tap * d->shape.in_c + c] =
                inside ? x[((n * d->shape.in_h + h) * d->shape.in_w + w) * d->shape.in_c + c] : 0;
    }
    if (f->ones)
        row[d->shape.kernel_h * d->shape.kernel_w * d->shape.in_c] = 1;
}

/* The packed lower triangle of P'P / rows, in double. */
static double *exact_factor(const factor_case *f, const double *x, double *alpha) {
    int64_t oh = 0, ow = 0, n = width_of(f);
    assert_ok(dsc_conv_output(&f->desc, &oh, &ow));
    double *sum = test_array(n * (n + 1) / 2, sizeof *sum), *row = test_array(n, sizeof *row);
    int64_t rows = f->desc.n * oh * ow;
    for (int64_t p = 0; p < rows; p++) {
        read_patch(f, oh, ow, x, p, row);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j <= i; j++)
                sum[i * (i + 1) / 2 + j] += row[i] * row[j];
    }
    *alpha = 1 / (double)rows;
    for (int64_t i = 0; i < n * (n + 1) / 2; i++)
        sum[i] *= *alpha;
    free(row);
    return sum;
}

static double relative_error(int64_t count, const double *got, const double *want) {
    double error = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        error += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    return sqrt(error / size);
}

static void check_error(const rig *r, const char *what, double error, double limit) {
    print_message("%s, %s: relative error %.3g of %.3g\n", r->label, what, error, limit);
    if (!(error <= limit))
        fail_msg("%s, %s: relative error %.3g, at most %.3g is allowed", r->label, what, error, limit);
}

static void check_factor(const rig *r, const factor_case *f, const double *x, const double *want,
                         double alpha) {
    const dsc_conv_desc *d = &f->desc;
    int64_t n = width_of(f), packed = n * (n + 1) / 2;
    double *got = test_array(packed, sizeof *got), *square = test_array(n * n, sizeof *square);
    int64_t bytes = (int64_t)dsc_op_patch_gram_workspace(r->device, d, f->ones);
    place px = place_of(r, DSC_F32, SHAPE(d->n, d->shape.in_h, d->shape.in_w, d->shape.in_c), x),
          work = place_make(r, DSC_U8, SHAPE(bytes));
    place c = place_make(r, DSC_F32, SHAPE(n, n)), full = place_make(r, DSC_F32, SHAPE(n * n));
    place p = place_make(r, DSC_F32, SHAPE(packed));
    assert_ok(dsc_op_patch_gram_packed(r->q, d, &px.t, 0, alpha, &work.t, &full.t, &p.t));
    place_read(r, &p, got);
    check_error(r, f->name, relative_error(packed, got, want), f->limit);
    assert_ok(dsc_op_patch_gram(r->q, d, &px.t, 0, alpha, 0, &work.t, &c.t));
    place_read(r, &c, square);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++)
            got[i * (i + 1) / 2 + j] = square[i * n + j];
    check_error(r, f->name, relative_error(packed, got, want), f->limit);
    place *all[] = {&px, &work, &c, &full, &p};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        place_free(all[i]);
    free(got);
    free(square);
}

/* ref adds in float32, one term after the other: not for long sums. Of a CPU one is enough. */
static void test_factors(void **state) {
    (void)state;
    for (int i = 0; i < FACTORS; i++) {
        const dsc_conv_desc *d = &factors[i].desc;
        int64_t count = d->n * d->shape.in_h * d->shape.in_w * d->shape.in_c;
        double *x = test_array(count, sizeof *x), alpha;
        random_values((uint64_t)i, count, x);
        for (int64_t k = 0; k < count; k++)
            x[k] = fabs(x[k]);
        double *want = exact_factor(&factors[i], x, &alpha);
        for (int r = 1; r < (chosen() ? rig_count : 2); r++)
            check_factor(&rigs[r], &factors[i], x, want, alpha);
        free(x);
        free(want);
    }
}

/* ---- products ---- */

typedef struct product_case {
    const char *name, *fast_name;
    int64_t m, n, k;
    int positive; /* 1: all terms have one sign */
    double limit; /* of the relative error */
} product_case;

static const product_case products[] = {
    {"a product", "a fast product", 144, 96, 577, 0, 1e-6},
    {"a large product", "a large fast product", 200, 130, 2000, 0, 2e-6},
    {"a large product of one sign", "a large fast product of one sign", 200, 130, 2000, 1, 8e-6},
};
enum { PRODUCTS = sizeof products / sizeof products[0] };

static double product_error(const rig *r, const product_case *p, int fast, const double *a, const double *b,
                            const double *want) {
    double *got = test_array(p->m * p->n, sizeof *got);
    place pa = place_of(r, DSC_F32, SHAPE(p->m, p->k), a), pb = place_of(r, DSC_F32, SHAPE(p->k, p->n), b);
    place pc = place_make(r, DSC_F32, SHAPE(p->m, p->n));
    const dsc_gemm_item item = {.alpha = 1, .a = pa.t, .b = pb.t, .c = pc.t, .fast = fast};
    assert_ok(dsc_op_gemm_batch(r->q, &item, 1));
    place_read(r, &pc, got);
    double error = relative_error(p->m * p->n, got, want);
    place *all[] = {&pa, &pb, &pc};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        place_free(all[i]);
    free(got);
    return error;
}

static void check_product(const product_case *p) {
    double *a = test_array(p->m * p->k, sizeof *a), *b = test_array(p->k * p->n, sizeof *b);
    double *want = test_array(p->m * p->n, sizeof *want);
    random_values(1, p->m * p->k, a);
    random_values(2, p->k * p->n, b);
    for (int64_t i = 0; p->positive && i < p->m * p->k; i++)
        a[i] = fabs(a[i]);
    for (int64_t i = 0; p->positive && i < p->k * p->n; i++)
        b[i] = fabs(b[i]);
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t k = 0; k < p->k; k++)
            for (int64_t j = 0; j < p->n; j++)
                want[i * p->n + j] += a[i * p->k + k] * b[k * p->n + j];
    for (int r = 1; r < (chosen() ? rig_count : 2); r++) {
        check_error(&rigs[r], p->name, product_error(&rigs[r], p, 0, a, b, want), p->limit);
        check_error(&rigs[r], p->fast_name, product_error(&rigs[r], p, 1, a, b, want), 1e-3);
    }
    free(a);
    free(b);
    free(want);
}

static void test_products(void **state) {
    (void)state;
    for (int i = 0; i < PRODUCTS; i++)
        check_product(&products[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_factors),
        cmocka_unit_test(test_products),
    };
    return cmocka_run_group_tests(tests, rigs_open_loose, rigs_close);
}
