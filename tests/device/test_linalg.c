/* Products, triangles, Cholesky inverse. */
#include "device/table.h"
#include "device/trial.h"

#include <math.h>
#include <stdlib.h>

/* ---- gemm ---- */

typedef struct gemm_case {
    int trans_a, trans_b;
    int64_t m, n, k;
    double alpha, beta;
} gemm_case;

/* The magnitudes' run is the scale of an element, so alpha and beta have one sign where both count. */
static const gemm_case gemm_cases[] = {
    {0, 0, 1, 1, 1, 1, 0},        {0, 0, 2, 3, 4, 1, 0},         {1, 0, 5, 7, 3, 0.5, 1},
    {0, 1, 17, 9, 33, 2, 0.25},   {1, 1, 8, 8, 8, -1.5, 0},      {0, 0, 64, 1, 100, 1, 1},
    {0, 1, 1, 64, 100, 1, 0},     {1, 0, 31, 33, 257, -0.1, -2}, {0, 1, 40, 10, 130, 1, 1},
    {0, 0, 128, 96, 64, 1, 0},    {1, 1, 70, 65, 1, 3, 0},       {1, 0, 96, 10, 128, 1, 0},
    {0, 0, 300, 130, 16, 0.5, 1},
};

static dsc_status gemm_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const gemm_case *c = params;
    return dsc_op_gemm(q, c->trans_a, c->trans_b, c->alpha, &t[0], &t[1], c->beta, &t[2]);
}

static void test_gemm(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof gemm_cases / sizeof gemm_cases[0]; i++) {
        const gemm_case *c = &gemm_cases[i];
        char name[80];
        snprintf(name, sizeof name, "gemm case %zu", i);
        trial tr;
        trial_start(&tr, name, gemm_run, c);
        tr.linear = 1;
        tr.terms = (double)c->k;
        trial_in(&tr, "a", 2, c->trans_a ? (const int64_t[]){c->k, c->m} : (const int64_t[]){c->m, c->k});
        trial_in(&tr, "b", 2, c->trans_b ? (const int64_t[]){c->n, c->k} : (const int64_t[]){c->k, c->n});
        trial_beta(&tr, "c", 1, c->beta, SHAPE(c->m, c->n));
        trial_check(&tr);
    }
}

/* ---- a product and what follows it ---- */

typedef struct linear_case {
    int64_t m, n, k;
    int bias, term, gelu;
} linear_case;

static const linear_case linear_cases[] = {
    {1, 1, 1, 1, 0, 0},     {3, 5, 7, 1, 0, 0},     {40, 24, 16, 1, 0, 0},  {130, 64, 72, 1, 0, 0},
    {9, 8, 264, 1, 0, 0},   {3, 5, 7, 0, 1, 0},     {130, 64, 72, 1, 1, 0}, {40, 24, 16, 0, 1, 0},
    {3, 5, 7, 1, 0, 1},     {130, 64, 72, 1, 0, 1}, {40, 24, 16, 0, 0, 1},  {9, 8, 264, 0, 0, 0},
    {256, 128, 64, 1, 0, 1}};

static dsc_status linear_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const linear_case *c = params;
    const dsc_linear_epilogue e = {.b = c->bias ? &t[2] : NULL,
                                   .half_b = c->bias ? &t[3] : NULL,
                                   .term = c->term ? &t[4] : NULL,
                                   .inner = c->gelu ? &t[6] : NULL};
    return dsc_op_linear(q, &t[0], &t[1], &e, &t[5]);
}

/* Halves hold the numbers of both biases. */
static void start_linear(trial *tr, const linear_case *c) {
    trial_start(tr, "linear", linear_run, c);
    tr->linear = !c->gelu;
    tr->terms = (double)c->k + 2;
    tr->rounded = 2; /* before the bias is added, and after it */
    trial_in(tr, "x", SHAPE(c->m, c->k));
    trial_in(tr, "w", SHAPE(c->n, c->k));
    double *b = trial_in(tr, "b", SHAPE(c->n));
    trial_param(tr);
    double *half_b = trial_in(tr, "half_b", SHAPE(c->n));
    for (int64_t i = 0; i < c->n; i++)
        b[i] = half_b[i] = (double)(i % 13 - 6) / 4;
    trial_in(tr, "term", SHAPE(c->m, c->n));
    trial_out(tr, "y", c->gelu ? (double)c->k + 2 : 1, SHAPE(c->m, c->n));
    if (c->gelu)
        trial_out(tr, "inner", (double)c->k + 2, SHAPE(c->m, c->n));
}

static void test_linear(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof linear_cases / sizeof linear_cases[0]; i++) {
        trial tr;
        start_linear(&tr, &linear_cases[i]);
        trial_check(&tr);
        if (!rigs[rig_count - 1].device->has_halves)
            continue;
        start_linear(&tr, &linear_cases[i]);
        trial_check_halves(&tr);
    }
}

static dsc_status gelu_gradient_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    (void)params;
    return dsc_op_gelu_gradient(q, &t[0], &t[1], &t[2], &t[3]);
}

static void start_gelu_gradient(trial *tr, const linear_case *c) {
    trial_start(tr, "gelu_gradient", gelu_gradient_run, c);
    tr->terms = (double)c->k;
    tr->rounded = 1;
    trial_in(tr, "dy", SHAPE(c->m, c->k));
    trial_in(tr, "w", SHAPE(c->k, c->n));
    double *inner = trial_in(tr, "inner", SHAPE(c->m, c->n));
    for (int64_t i = 0; i < c->m * c->n; i++)
        inner[i] = (double)(float)(3 * inner[i]);
    trial_out(tr, "dx", (double)c->k, SHAPE(c->m, c->n));
}

static void test_gelu_gradient(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof linear_cases / sizeof linear_cases[0]; i++) {
        trial tr;
        start_gelu_gradient(&tr, &linear_cases[i]);
        trial_check(&tr);
        if (!rigs[rig_count - 1].device->has_halves)
            continue;
        start_gelu_gradient(&tr, &linear_cases[i]);
        trial_check_halves(&tr);
    }
}

/* ref composes these operations as the others do, so that what they are needs numbers of its own. x w' + b = (1, -2)
 * with x = 1/2, w = (4, -2), b = (-1, -1); GELU(1) = 0.841192, GELU(-2) = -0.045402. Its slopes at 1 and -2 are
 * 1.082964 and -0.086099; dy w = (6, -3) with dy = 1/2 and w = (12, -6). */
static void test_linear_by_hand(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place x = place_of(g, DSC_F32, SHAPE(1, 1), (const double[]){0.5});
        place w = place_of(g, DSC_F32, SHAPE(2, 1), (const double[]){4, -2});
        place v = place_of(g, DSC_F32, SHAPE(1, 2), (const double[]){12, -6});
        place b = place_of(g, DSC_F32, SHAPE(2), (const double[]){-1, -1});
        place term = place_of(g, DSC_F32, SHAPE(1, 2), (const double[]){10, 20});
        place inner = place_make(g, DSC_F32, SHAPE(1, 2)), y = place_make(g, DSC_F32, SHAPE(1, 2));
        const dsc_linear_epilogue adds = {.b = &b.t, .term = &term.t}, gelu = {.b = &b.t, .inner = &inner.t};
        const dsc_linear_epilogue both = {.term = &term.t, .inner = &inner.t};
        double got[2];
        assert_ok(dsc_op_linear(g->q, &x.t, &w.t, &adds, &y.t));
        place_expect(g, &y, (const double[]){11, 18}, "a term");
        assert_ok(dsc_op_linear(g->q, &x.t, &w.t, &gelu, &y.t));
        place_expect(g, &inner, (const double[]){1, -2}, "the input of a GELU");
        place_read(g, &y, got);
        assert_true(fabs(got[0] - 0.841192) < 1e-5 && fabs(got[1] + 0.045402) < 1e-5);
        assert_ok(dsc_op_gelu_gradient(g->q, &x.t, &v.t, &inner.t, &y.t));
        place_read(g, &y, got);
        assert_true(fabs(got[0] - 6 * 1.082964) < 1e-4 && fabs(got[1] - 3 * 0.086099) < 1e-4);
        assert_int_equal(dsc_op_linear(g->q, &x.t, &w.t, &both, &y.t), DSC_E_INVALID);
        assert_fails(DSC_E_INVALID, "linear: y", dsc_op_linear(g->q, &x.t, &w.t, &adds, &term.t));
        assert_fails(DSC_E_INVALID, "linear: y", dsc_op_linear(g->q, &x.t, &w.t, &gelu, &inner.t));
        assert_fails(DSC_E_INVALID, "gelu_gradient: dx",
                     dsc_op_gelu_gradient(g->q, &x.t, &v.t, &inner.t, &inner.t));
        place *all[] = {&x, &w, &v, &b, &term, &inner, &y};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

/* [1 2; 3 4; 5 6] [1 0 2; 0 1 3] = [1 2 8; 3 4 18; 5 6 28] in all four ways of storing it, with
 * C = 2 A B - C of C = 1. */
static void test_gemm_by_hand(void **state) {
    (void)state;
    static const double a[6] = {1, 2, 3, 4, 5, 6}, at[6] = {1, 3, 5, 2, 4, 6};
    static const double b[6] = {1, 0, 2, 0, 1, 3}, bt[6] = {1, 0, 0, 1, 2, 3};
    static const double want[9] = {1, 3, 15, 5, 7, 35, 9, 11, 55};
    static const double ones[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    for (int r = 0; r < rig_count; r++)
        for (int way = 0; way < 8; way++) {
            int ta = way & 1, tb = way >> 1 & 1;
            dsc_dtype type = way & 4 ? DSC_F64 : DSC_F32;
            place pa = place_of(&rigs[r], type, 2, ta ? (const int64_t[]){2, 3} : (const int64_t[]){3, 2},
                                ta ? at : a);
            place pb = place_of(&rigs[r], type, 2, tb ? (const int64_t[]){3, 2} : (const int64_t[]){2, 3},
                                tb ? bt : b);
            place pc = place_of(&rigs[r], type, SHAPE(3, 3), ones);
            assert_ok(dsc_op_gemm(rigs[r].q, ta, tb, 2, &pa.t, &pb.t, -1, &pc.t));
            place_expect(&rigs[r], &pc, want, "gemm by hand");
            place_free(&pa);
            place_free(&pb);
            place_free(&pc);
        }
}

/* A sum of no terms leaves beta C; no rows or columns is no work. */
static void test_gemm_empty(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        dsc_queue *q = rigs[r].q;
        place a = place_make(&rigs[r], DSC_F32, SHAPE(2, 0)), b = place_make(&rigs[r], DSC_F32, SHAPE(0, 2));
        place c = place_of(&rigs[r], DSC_F32, SHAPE(2, 2), (const double[]){1, 2, 3, 4});
        place none = place_make(&rigs[r], DSC_F32, SHAPE(0, 0));
        assert_ok(dsc_op_gemm(q, 0, 0, 1, &a.t, &b.t, 0.5, &c.t));
        place_expect(&rigs[r], &c, (const double[]){0.5, 1, 1.5, 2}, "gemm of nothing, halved");
        place_fill(&rigs[r], &c, NAN);
        assert_ok(dsc_op_gemm(q, 0, 0, 1, &a.t, &b.t, 0, &c.t));
        place_expect(&rigs[r], &c, (const double[]){0, 0, 0, 0}, "gemm of nothing");
        assert_ok(dsc_op_gemm(q, 1, 1, 1, &a.t, &b.t, 0, &none.t));
        place_free(&a);
        place_free(&b);
        place_free(&c);
        place_free(&none);
    }
}

/* ---- syrk ---- */

typedef struct syrk_case {
    int64_t m, n;
    double alpha, beta;
} syrk_case;

static const syrk_case syrk_cases[] = {
    {1, 1, 1, 0}, {3, 5, 1, 0}, {40, 17, 0.5, 1}, {7, 64, 2, 0.95}, {257, 33, -1, 0}, {128, 130, 0.01, 0},
};

static dsc_status syrk_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const syrk_case *c = params;
    return dsc_op_syrk(q, c->alpha, &t[0], c->beta, &t[1]);
}

static void test_syrk(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof syrk_cases / sizeof syrk_cases[0]; i++) {
        const syrk_case *c = &syrk_cases[i];
        trial tr;
        trial_start(&tr, "syrk", syrk_run, c);
        tr.linear = 1;
        tr.terms = (double)c->m;
        trial_in(&tr, "a", SHAPE(c->m, c->n));
        double *values = trial_inout(&tr, "c", 1, SHAPE(c->n, c->n));
        for (int64_t row = 0; c->beta == 0 && row < c->n; row++)
            for (int64_t column = 0; column <= row; column++)
                values[row * c->n + column] = NAN;
        trial_check(&tr);
    }
}

/* A = [1 2; 3 4], A'A = [10 14; 14 20]; the upper triangle keeps its 7, without rows only beta counts. */
static void test_syrk_by_hand(void **state) {
    (void)state;
    static const dsc_dtype types[] = {DSC_F32, DSC_F64};
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < 2; type++) {
            place a = place_of(&rigs[r], types[type], SHAPE(2, 2), (const double[]){1, 2, 3, 4});
            place none = place_make(&rigs[r], types[type], SHAPE(0, 2));
            place c = place_of(&rigs[r], types[type], SHAPE(2, 2), (const double[]){1, 7, 1, 1});
            assert_ok(dsc_op_syrk(rigs[r].q, 1, &a.t, 2, &c.t));
            place_expect(&rigs[r], &c, (const double[]){12, 7, 16, 22}, "syrk by hand");
            assert_ok(dsc_op_syrk(rigs[r].q, 1, &none.t, 0.5, &c.t));
            place_expect(&rigs[r], &c, (const double[]){6, 7, 8, 11}, "syrk of nothing");
            assert_ok(dsc_op_symmetrize(rigs[r].q, &c.t));
            place_expect(&rigs[r], &c, (const double[]){6, 8, 8, 11}, "symmetrize");
            place_free(&a);
            place_free(&none);
            place_free(&c);
        }
}

/* ---- triangles: exact ---- */

static void check_triangles(const rig *r, dsc_dtype type, int64_t n) {
    int64_t packed_count = n * (n + 1) / 2;
    double *full = test_array(n * n, sizeof *full), *packed = test_array(packed_count, sizeof *packed);
    double *symmetric = test_array(n * n, sizeof *symmetric);
    random_integers((uint64_t)n, 1000, n * n, full);
    int64_t next = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            packed[next++] = full[i * n + j];
            symmetric[i * n + j] = symmetric[j * n + i] = full[i * n + j];
        }
    place a = place_of(r, type, SHAPE(n, n), full), p = place_make(r, type, SHAPE(packed_count));
    place back = place_make(r, type, SHAPE(n, n));
    assert_ok(dsc_op_tri_pack(r->q, &a.t, &p.t));
    place_expect(r, &p, packed, "tri_pack");
    place_expect(r, &a, full, "tri_pack's input");
    assert_ok(dsc_op_tri_unpack(r->q, &p.t, &back.t));
    place_expect(r, &back, symmetric, "tri_unpack");
    assert_ok(dsc_op_symmetrize(r->q, &a.t));
    place_expect(r, &a, symmetric, "symmetrize");
    place_free(&a);
    place_free(&p);
    place_free(&back);
    free(full);
    free(packed);
    free(symmetric);
}

static void test_triangles(void **state) {
    (void)state;
    static const int64_t sizes[] = {0, 1, 2, 3, 16, 33, 65, 257};
    for (int r = 0; r < rig_count; r++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            check_triangles(&rigs[r], DSC_F32, sizes[s]);
            check_triangles(&rigs[r], DSC_F64, sizes[s]);
        }
}

/* ---- Cholesky inverse ---- */

static dsc_status chol_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    (void)params;
    return dsc_op_chol_inverse(q, &t[0]);
}

/* A = B'B/2n + 1/2 I of uniform B[2n,n] has eigenvalues between 1/2 and about 1.5: with condition 3 and
 * |A^-1| <= 2 an error is at most about n eps * 6. The upper triangle holds NaN: it is not read. */
static void test_chol_inverse(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 2, 3, 10, 33, 64, 100};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        int64_t n = sizes[s];
        double *b = test_array(2 * n * n, sizeof *b);
        random_values((uint64_t)n, 2 * n * n, b);
        trial tr;
        trial_start(&tr, "chol_inverse", chol_run, NULL);
        tr.terms = (double)n;
        double *a = trial_inout(&tr, "a", 6, SHAPE(n, n));
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) {
                double sum = i == j ? (double)n : 0;
                for (int64_t l = 0; l < 2 * n; l++)
                    sum += b[l * n + i] * b[l * n + j];
                a[i * n + j] = j <= i ? (double)(float)(sum / (double)(2 * n)) : NAN;
            }
        trial_check(&tr);
        free(b);
    }
}

static void test_chol_by_hand(void **state) {
    (void)state;
    static const dsc_dtype types[] = {DSC_F32, DSC_F64};
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < 2; type++) {
            place a = place_of(&rigs[r], types[type], SHAPE(2, 2), (const double[]){4, NAN, 2, 5});
            assert_ok(dsc_op_chol_inverse(rigs[r].q, &a.t)); /* L = [2 0; 1 2]: every step is exact */
            place_expect(&rigs[r], &a, (const double[]){0.3125, -0.125, -0.125, 0.25},
                         "chol_inverse by hand");
            place_write(&rigs[r], &a, (const double[]){1, 0, 2, 1});
            assert_fails(DSC_E_NUMERIC, "not positive definite", dsc_op_chol_inverse(rigs[r].q, &a.t));
            place_fill(&rigs[r], &a, 0);
            assert_fails(DSC_E_NUMERIC, "not positive definite", dsc_op_chol_inverse(rigs[r].q, &a.t));
            place_write(&rigs[r], &a, (const double[]){1, 0, NAN, 1});
            assert_int_equal(dsc_op_chol_inverse(rigs[r].q, &a.t), DSC_E_NUMERIC);
            place_check_guards(&rigs[r], &a, "chol_inverse");
            place_free(&a);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemm),           cmocka_unit_test(test_gemm_by_hand),
        cmocka_unit_test(test_gemm_empty),     cmocka_unit_test(test_syrk),
        cmocka_unit_test(test_linear),         cmocka_unit_test(test_gelu_gradient),
        cmocka_unit_test(test_linear_by_hand), cmocka_unit_test(test_syrk_by_hand),
        cmocka_unit_test(test_triangles),      cmocka_unit_test(test_chol_inverse),
        cmocka_unit_test(test_chol_by_hand),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
