/* Many small problems at once: products, eigen problems, inverses, quotients. Against plain loops in double,
 * on every device, in both types. */
#include "device/eigen.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

static const dsc_dtype types[] = {DSC_F32, DSC_F64};

/* ---- products ---- */

typedef struct gemm_case {
    int trans_a, trans_b;
    int64_t m, n, k;
    double alpha, beta;
} gemm_case;

static const gemm_case gemm_cases[] = {
    {0, 0, 64, 96, 96, 1, 0}, {1, 0, 32, 72, 32, 1, 0},    {0, 1, 16, 48, 48, 2, 0},
    {1, 1, 7, 5, 3, -0.5, 1}, {0, 0, 1, 1, 1, 1, 0},       {0, 1, 10, 65, 65, 1, 0.25},
    {1, 0, 1, 40, 9, 1, -2},  {0, 0, 33, 1, 17, 0.125, 1}, {0, 0, 16, 27, 27, 1, 0},
    {0, 1, 3, 200, 31, 1, 0}, {1, 1, 130, 12, 64, 1, 0.5}, {0, 0, 2, 3, 4, 0, 1},
};
enum { GEMMS = sizeof gemm_cases / sizeof gemm_cases[0] };

typedef struct gemm_places {
    place a, b, c;
} gemm_places;

static dsc_gemm_item gemm_item(const gemm_case *c, const gemm_places *p) {
    return (dsc_gemm_item){.trans_a = c->trans_a,
                           .trans_b = c->trans_b,
                           .alpha = c->alpha,
                           .beta = c->beta,
                           .a = p->a.t,
                           .b = p->b.t,
                           .c = p->c.t};
}

/* C = alpha op(A) op(B) + beta C, and the size of what was added up. */
static void naive_gemm(const gemm_case *c, const double *a, const double *b, const double *before,
                       double *want, double *size) {
    for (int64_t i = 0; i < c->m; i++)
        for (int64_t j = 0; j < c->n; j++) {
            double sum = 0, magnitude = 0;
            for (int64_t l = 0; l < c->k; l++) {
                double term =
                    a[c->trans_a ? l * c->m + i : i * c->k + l] * b[c->trans_b ? j * c->k + l : l * c->n + j];
                sum += term;
                magnitude += fabs(term);
            }
            int64_t e = i * c->n + j;
            want[e] = c->alpha * sum + (c->beta == 0 ? 0 : c->beta * before[e]);
            size[e] = fabs(c->alpha) * magnitude + (c->beta == 0 ? 0 : fabs(c->beta * before[e]));
        }
}

/* Random operands of a case; C holds NaN where it is not read. */
static gemm_places gemm_make(const rig *r, dsc_dtype type, const gemm_case *c, uint64_t stream) {
    int64_t largest = c->m * c->k + c->n * c->k + c->m * c->n;
    double *values = test_array(largest, sizeof *values);
    gemm_places p;
    random_values(3 * stream, c->m * c->k, values);
    p.a = place_of(r, type, 2, c->trans_a ? (const int64_t[]){c->k, c->m} : (const int64_t[]){c->m, c->k},
                   values);
    random_values(3 * stream + 1, c->n * c->k, values);
    p.b = place_of(r, type, 2, c->trans_b ? (const int64_t[]){c->n, c->k} : (const int64_t[]){c->k, c->n},
                   values);
    random_values(3 * stream + 2, c->m * c->n, values);
    for (int64_t i = 0; c->beta == 0 && i < c->m * c->n; i++)
        values[i] = NAN;
    p.c = place_of(r, type, SHAPE(c->m, c->n), values);
    free(values);
    return p;
}

static void gemm_free(gemm_places *p) {
    place_free(&p->a);
    place_free(&p->b);
    place_free(&p->c);
}

static void check_gemm(const rig *r, dsc_dtype type, const gemm_case *c, uint64_t stream,
                       const gemm_places *p) {
    int64_t count = c->m * c->n;
    double *a = test_array(c->m * c->k, sizeof *a), *b = test_array(c->n * c->k, sizeof *b);
    double *before = test_array(count, sizeof *before), *want = test_array(count, sizeof *want);
    double *limit = test_array(count, sizeof *limit);
    random_values(3 * stream, c->m * c->k, a);
    random_values(3 * stream + 1, c->n * c->k, b);
    random_values(3 * stream + 2, count, before);
    naive_gemm(c, a, b, before, want, limit);
    for (int64_t i = 0; i < count; i++)
        limit[i] *= 2 * (double)(c->k + 4) * dtype_eps(type);
    place_expect_near(r, &p->c, want, limit, "gemm_batch: c");
    place_expect(r, &p->a, a, "gemm_batch: a");
    place_expect(r, &p->b, b, "gemm_batch: b");
    double *all[] = {a, b, before, want, limit};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

static void test_gemm_batch(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < 2; type++) {
            gemm_places places[GEMMS];
            dsc_gemm_item items[GEMMS];
            for (int i = 0; i < GEMMS; i++) {
                places[i] = gemm_make(&rigs[r], types[type], &gemm_cases[i], (uint64_t)i);
                items[i] = gemm_item(&gemm_cases[i], &places[i]);
            }
            int64_t allocations = dsc_memory_allocations();
            assert_ok(dsc_op_gemm_batch(rigs[r].q, items, GEMMS));
            assert_int_equal(dsc_memory_allocations(), allocations);
            assert_ok(dsc_queue_sync(rigs[r].q));
            for (int i = 0; i < GEMMS; i++) {
                check_gemm(&rigs[r], types[type], &gemm_cases[i], (uint64_t)i, &places[i]);
                gemm_free(&places[i]);
            }
        }
}

/* An item large enough to be cut among threads, beside a small one: elements here and there against plain
 * sums. Returns all of C. */
static double *large_product(const rig *r, const gemm_case *large) {
    const gemm_case small = {0, 0, 5, 6, 7, 1, 0};
    gemm_places p = gemm_make(r, DSC_F32, large, 50), q = gemm_make(r, DSC_F32, &small, 51);
    dsc_gemm_item items[] = {gemm_item(large, &p), gemm_item(&small, &q)};
    assert_ok(dsc_op_gemm_batch(r->q, items, 2));
    assert_ok(dsc_queue_sync(r->q));
    check_gemm(r, DSC_F32, &small, 51, &q);
    place_check_guards(r, &p.c, "gemm_batch: c");
    int64_t m = large->m, n = large->n, k = large->k;
    double *a = test_array(m * k, sizeof *a), *b = test_array(n * k, sizeof *b);
    double *c = test_array(m * n, sizeof *c);
    place_read(r, &p.a, a);
    place_read(r, &p.b, b);
    place_read(r, &p.c, c);
    for (int64_t e = 0; e < m * n; e += 173) {
        double sum = 0, size = 0;
        for (int64_t l = 0; l < k; l++) {
            double term = a[e / n * k + l] * b[e % n * k + l];
            sum += term;
            size += fabs(term);
        }
        if (!(fabs(c[e] - sum) <= 2 * (double)(k + 4) * dtype_eps(DSC_F32) * size))
            fail_msg("%s: element %lld of a large product is %g instead of %g", r->label, (long long)e, c[e],
                     sum);
    }
    gemm_free(&p);
    gemm_free(&q);
    free(a);
    free(b);
    return c;
}

/* 1: the same device with another number of threads. */
static int same_but_threads(const rig *r, const rig *s) {
    size_t length = strcspn(r->label, ",");
    return r != s && strcspn(s->label, ",") == length && strncmp(r->label, s->label, length) == 0;
}

/* 120 * 1031 * 1100 is just over 2^27 multiplications. */
static void test_large_product(void **state) {
    (void)state;
    static const gemm_case large = {0, 1, 120, 1031, 1100, 1, 0};
    double *results[MAX_RIGS] = {0};
    int pairs = 0;
    for (int r = 1; r < rig_count; r++)
        results[r] = large_product(&rigs[r], &large);
    for (int r = 1; r < rig_count; r++)
        for (int s = r + 1; s < rig_count; s++)
            if (same_but_threads(&rigs[r], &rigs[s])) {
                pairs++;
                assert_memory_equal(results[r], results[s], (size_t)(large.m * large.n) * sizeof *results[r]);
            }
    assert_true(pairs > 0 || chosen());
    for (int r = 1; r < rig_count; r++)
        free(results[r]);
}

/* Products from a size on that GPUs treat differently, several of a shape, in every order, tiny and huge ones, beside a
 * small one. */
static void test_large_products(void **state) {
    (void)state;
    static const gemm_case cases[] = {
        {0, 0, 97, 520, 601, 1, 0}, {1, 0, 520, 97, 601, -0.5, 0}, {0, 1, 131, 130, 1900, 2, 0.25},
        {0, 0, 97, 520, 601, 3, 1}, {0, 0, 9, 10, 11, 1, 0},       {1, 1, 400, 99, 777, 1, 0},
    };
    static const double sizes[] = {1, 0x1p-100, 0x1p50, 1, 1, 0x1p-40}; /* of a */
    enum { COUNT = sizeof cases / sizeof cases[0] };
    for (int r = 1; r < rig_count; r++) {
        gemm_places places[COUNT];
        dsc_gemm_item items[COUNT];
        for (int i = 0; i < COUNT; i++) {
            places[i] = gemm_make(&rigs[r], DSC_F32, &cases[i], (uint64_t)(60 + i));
            items[i] = gemm_item(&cases[i], &places[i]);
            assert_ok(dsc_op_axpby(rigs[r].q, 0, &items[i].a, sizes[i], &items[i].a));
            items[i].alpha /= sizes[i];
        }
        assert_ok(dsc_op_gemm_batch(rigs[r].q, items, COUNT));
        for (int i = 0; i < COUNT; i++) {
            assert_ok(dsc_op_axpby(rigs[r].q, 0, &items[i].a, 1 / sizes[i], &items[i].a));
            assert_ok(dsc_queue_sync(rigs[r].q));
            check_gemm(&rigs[r], DSC_F32, &cases[i], (uint64_t)(60 + i), &places[i]);
            gemm_free(&places[i]);
        }
    }
}

/* Sums of nothing, matrices without rows, and no items. */
static void test_gemm_empty(void **state) {
    (void)state;
    static const gemm_case cases[] = {
        {0, 0, 2, 2, 0, 1, 0.5}, {0, 0, 2, 3, 0, 1, 0}, {1, 1, 0, 4, 3, 1, 0}, {0, 1, 4, 5, 6, 1, 1}};
    enum { COUNT = sizeof cases / sizeof cases[0] };
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < 2; type++) {
            gemm_places places[COUNT];
            dsc_gemm_item items[COUNT];
            for (int i = 0; i < COUNT; i++) {
                places[i] = gemm_make(&rigs[r], types[type], &cases[i], (uint64_t)i);
                items[i] = gemm_item(&cases[i], &places[i]);
            }
            assert_ok(dsc_op_gemm_batch(rigs[r].q, items, COUNT));
            assert_ok(dsc_op_gemm_batch(rigs[r].q, items, 0));
            assert_ok(dsc_op_gemm_batch(rigs[r].q, NULL, 0));
            for (int i = 0; i < COUNT; i++) {
                check_gemm(&rigs[r], types[type], &cases[i], (uint64_t)i, &places[i]);
                gemm_free(&places[i]);
            }
        }
}

static void test_gemm_refusals(void **state) {
    (void)state;
    const gemm_case good = {0, 0, 2, 3, 4, 1, 0};
    for (int r = 0; r < rig_count; r++) {
        dsc_queue *q = rigs[r].q;
        gemm_places p = gemm_make(&rigs[r], DSC_F32, &good, 0), s = gemm_make(&rigs[r], DSC_F64, &good, 0);
        dsc_gemm_item items[2] = {gemm_item(&good, &p), gemm_item(&good, &s)};
        assert_fails(DSC_E_INVALID, "item 1: gemm_batch: a is fp64; fp32 is expected",
                     dsc_op_gemm_batch(q, items, 2));
        items[1] = items[0];
        items[1].trans_b = 1;
        assert_fails(DSC_E_INVALID, "item 1: gemm_batch: b is [4,3]; [4,4] is expected",
                     dsc_op_gemm_batch(q, items, 2));
        items[1] = items[0];
        items[1].c.data = items[1].a.data;
        assert_fails(DSC_E_INVALID, "item 1: gemm_batch: c shares memory with a",
                     dsc_op_gemm_batch(q, items, 2));
        items[1] = items[0];
        items[1].b.device = rigs[(r + 1) % rig_count].device;
        assert_fails(DSC_E_INVALID, "item 1: gemm_batch: b is on device", dsc_op_gemm_batch(q, items, 2));
        assert_true(isnan(place_get(&rigs[r], &p.c, 0))); /* nothing was computed */
        assert_fails(DSC_E_INVALID, "-1 items", dsc_op_gemm_batch(q, items, -1));
        assert_fails(DSC_E_INVALID, "no array", dsc_op_gemm_batch(q, NULL, 1));
        gemm_free(&p);
        gemm_free(&s);
    }
}

/* ---- eigen problems ---- */

/* What is put into item i: a matrix of some kind and size, or a bad one. */
typedef struct solve_case {
    int kind; /* of `matrices`, or -1: with a NaN in its lower triangle */
    int64_t n;
} solve_case;

static double *solve_matrix(const solve_case *c, dsc_dtype type) {
    double *a = make_matrix(matrices[c->kind < 0 ? DENSE : c->kind].element, type, c->n);
    if (c->kind < 0)
        a[(c->n - 1) * c->n] = NAN;
    return a;
}

static void check_syev(const rig *r, dsc_dtype type, const solve_case *c, const place *a, const place *v) {
    char what[120];
    double *matrix = solve_matrix(c, type), *q = test_array(c->n * c->n, sizeof *q);
    double *values = test_array(c->n, sizeof *values);
    snprintf(what, sizeof what, "%s: %s matrix of a batch, n = %lld, %s", r->label, matrices[c->kind].name,
             (long long)c->n, dsc_dtype_name(type));
    place_read(r, a, q);
    place_read(r, v, values);
    place_check_guards(r, a, what);
    place_check_guards(r, v, what);
    check_solution(what, matrix, q, values, c->n, dtype_eps(type));
    free(matrix);
    free(q);
    free(values);
}

static void check_syev_batch(const rig *r, dsc_dtype type, const solve_case *cases, int64_t count,
                             int quick) {
    place *a = test_array(count, sizeof *a), *v = test_array(count, sizeof *v);
    dsc_solve_item *items = test_array(count, sizeof *items);
    int64_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        double *matrix = solve_matrix(&cases[i], type);
        a[i] = place_of(r, type, SHAPE(cases[i].n, cases[i].n), matrix);
        v[i] = place_make(r, type, SHAPE(cases[i].n));
        items[i] = (dsc_solve_item){a[i].t, v[i].t, 7, quick};
        largest = cases[i].n > largest ? cases[i].n : largest;
        free(matrix);
    }
    place work =
        place_make(r, DSC_U8, SHAPE((int64_t)dsc_op_syev_batch_workspace(r->device, type, largest, count)));
    assert_ok(dsc_op_syev_batch(r->q, items, count, &work.t));
    place_check_guards(r, &work, "syev_batch: work");
    for (int64_t i = 0; i < count; i++) {
        assert_int_equal(items[i].failed, cases[i].kind < 0);
        if (!items[i].failed)
            check_syev(r, type, &cases[i], &a[i], &v[i]);
        place_free(&a[i]);
        place_free(&v[i]);
    }
    place_free(&work);
    free(a);
    free(v);
    free(items);
}

/* Every nasty matrix, a bad one among each four, an empty one, one alone. */
static void test_syev_batch(void **state) {
    (void)state;
    enum { COUNT = MATRICES + MATRICES / 4 };
    solve_case cases[COUNT + 1];
    int64_t count = 0;
    for (int m = 0; m < MATRICES; m++) {
        cases[count++] = (solve_case){m, 40 - m};
        if (m % 4 == 3)
            cases[count++] = (solve_case){-1, 9};
    }
    assert_int_equal(count, COUNT);
    cases[COUNT] = (solve_case){0, 0};
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < 2; type++) {
            for (int quick = 0; quick < 2; quick++) {
                check_syev_batch(&rigs[r], types[type], cases, COUNT, quick);
                check_syev_batch(&rigs[r], types[type], cases + COUNT - 5, 6, quick);
                check_syev_batch(&rigs[r], types[type], cases + 2, 1, quick);
            }
            check_syev_batch(&rigs[r], types[type], cases, 0, 0);
        }
}

/* Every nasty matrix by the quick algorithm at the sizes that it is for, even and odd ones, the largest that it
 * takes and one that it leaves to others. */
static void test_quick_syev(void **state) {
    (void)state;
    static const int64_t sizes[] = {128, 65, 27, 10, 2, 1};
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    for (int r = 1; r < rig_count; r++) {
        solve_case cases[MATRICES];
        for (int s = 0; s < SIZES; s++) {
            for (int m = 0; m < MATRICES; m++)
                cases[m] = (solve_case){m, sizes[s]};
            check_syev_batch(&rigs[r], DSC_F32, cases, MATRICES, 1);
        }
        const solve_case large[] = {{DENSE, 200}, {DENSE, 161}, {DENSE, 160},
                                    {DENSE, 159}, {-1, 33},     {TRIDIAGONAL, 4}};
        check_syev_batch(&rigs[r], DSC_F32, large, 6, 1);
    }
}

/* The bits of a batch's items on this device, one vector of eigenvalues and vectors after the other. */
static double *batch_bits(const rig *r, int64_t count, int64_t n) {
    place *a = test_array(count, sizeof *a), *v = test_array(count, sizeof *v);
    dsc_solve_item *items = test_array(count, sizeof *items);
    double *bits = test_array(count * (n * n + n), sizeof *bits);
    for (int64_t i = 0; i < count; i++) {
        double *matrix = make_matrix(matrices[(DENSE + i) % MATRICES].element, DSC_F32, n);
        a[i] = place_of(r, DSC_F32, SHAPE(n, n), matrix);
        v[i] = place_make(r, DSC_F32, SHAPE(n));
        items[i] = (dsc_solve_item){.a = a[i].t, .v = v[i].t};
        free(matrix);
    }
    place work =
        place_make(r, DSC_U8, SHAPE((int64_t)dsc_op_syev_batch_workspace(r->device, DSC_F32, n, count)));
    assert_ok(dsc_op_syev_batch(r->q, items, count, &work.t));
    for (int64_t i = 0; i < count; i++) {
        assert_int_equal(items[i].failed, 0);
        place_read(r, &a[i], bits + i * (n * n + n));
        place_read(r, &v[i], bits + i * (n * n + n) + n * n);
        place_free(&a[i]);
        place_free(&v[i]);
    }
    place_free(&work);
    free(a);
    free(v);
    free(items);
    return bits;
}

/* The same for one item alone: the second thread may not change its bits. */
static void test_syev_threads(void **state) {
    (void)state;
    static const int64_t counts[] = {1, 3, 5}, sizes[] = {400, 150, 100};
    for (int r = 1; r < rig_count; r++)
        for (int s = r + 1; s < rig_count; s++)
            for (int c = 0; same_but_threads(&rigs[r], &rigs[s]) && c < 3; c++) {
                int64_t n = sizes[c];
                double *one = batch_bits(&rigs[r], counts[c], n), *two = batch_bits(&rigs[s], counts[c], n);
                assert_memory_equal(one, two, (size_t)(counts[c] * (n * n + n)) * sizeof *one);
                free(one);
                free(two);
            }
}

static void test_solve_refusals(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        dsc_queue *q = rigs[r].q;
        place a = place_make(&rigs[r], DSC_F32, SHAPE(8, 8)), v = place_make(&rigs[r], DSC_F32, SHAPE(8));
        place wide = place_make(&rigs[r], DSC_F32, SHAPE(2, 3));
        int64_t bytes = (int64_t)dsc_op_syev_batch_workspace(rigs[r].device, DSC_F32, 8, 2);
        place work = place_make(&rigs[r], DSC_U8, SHAPE(bytes));
        dsc_solve_item items[2] = {{.a = a.t, .v = v.t}, {.a = wide.t, .v = v.t}};
        dsc_tensor small = dsc_tensor_slice(&work.t, 0, bytes - 1);
        assert_fails(DSC_E_INVALID, "item 1: syev_batch: a is [2,3]; [2,2] is expected",
                     dsc_op_syev_batch(q, items, 2, &work.t));
        assert_fails(DSC_E_INVALID, "item 1: chol_inverse_batch: a is [2,3]",
                     dsc_op_chol_inverse_batch(q, items, 2));
        items[1] = (dsc_solve_item){.a = a.t, .v = wide.t};
        assert_fails(DSC_E_INVALID, "item 1: syev_batch: v is [2,3]; [8] is expected",
                     dsc_op_syev_batch(q, items, 2, &work.t));
        items[1] = items[0];
        assert_fails(DSC_E_INVALID, "are needed", dsc_op_syev_batch(q, items, 2, &small));
        assert_fails(DSC_E_INVALID, "work is missing", dsc_op_syev_batch(q, items, 2, NULL));
        assert_ok(dsc_op_syev_batch(q, NULL, 0, NULL));
        assert_ok(dsc_op_chol_inverse_batch(q, NULL, 0));
        place *all[] = {&a, &v, &wide, &work};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

/* ---- inverses ---- */

/* A = I + u u' with u_i = (i mod 3) / 2, so A^-1 = I - u u' / (1 + u'u). Bad: -1 at the end of the diagonal,
 * or NaN beside it. */
static void make_definite(int64_t n, int bad, double *a, double *inverse) {
    double square = 0;
    for (int64_t i = 0; i < n; i++)
        square += (double)(i % 3 * (i % 3)) / 4;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            double product = (double)(i % 3 * (j % 3)) / 4;
            a[i * n + j] = j <= i ? (i == j) + product : NAN; /* the upper triangle is not read */
            inverse[i * n + j] = (i == j) - product / (1 + square);
        }
    if (bad == 1)
        a[n * n - 1] = -1;
    else if (bad == 2)
        a[(n - 1) * n] = NAN;
}

static void check_inverses(const rig *r, dsc_dtype type, const int64_t *sizes, const int *bad, int count) {
    place places[8];
    dsc_solve_item items[8];
    double *inverses[8];
    for (int i = 0; i < count; i++) {
        double *a = test_array(sizes[i] * sizes[i], sizeof *a);
        inverses[i] = test_array(sizes[i] * sizes[i], sizeof *a);
        make_definite(sizes[i], bad[i], a, inverses[i]);
        places[i] = place_of(r, type, SHAPE(sizes[i], sizes[i]), a);
        items[i] = (dsc_solve_item){.a = places[i].t, .failed = 7};
        free(a);
    }
    assert_ok(dsc_op_chol_inverse_batch(r->q, items, count));
    for (int i = 0; i < count; i++) {
        int64_t n = sizes[i];
        double *limit = test_array(n * n, sizeof *limit);
        /* condition 1 + u'u, at most 1 + n/2, of n sums */
        for (int64_t e = 0; e < n * n; e++)
            limit[e] = 2 * (double)(n + 4) * (1 + (double)n / 2) * dtype_eps(type);
        assert_int_equal(items[i].failed, bad[i] != 0);
        if (!bad[i])
            place_expect_near(r, &places[i], inverses[i], limit, "chol_inverse_batch: a");
        place_free(&places[i]);
        free(inverses[i]);
        free(limit);
    }
}

static void test_chol_inverse_batch(void **state) {
    (void)state;
    static const int64_t sizes[] = {60, 33, 20, 12, 5, 2, 1, 0};
    static const int bad[] = {0, 1, 0, 2, 0, 1, 0, 0};
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < 2; type++) {
            check_inverses(&rigs[r], types[type], sizes, bad, 7);
            check_inverses(&rigs[r], types[type], sizes, bad, 8); /* with an empty one */
            check_inverses(&rigs[r], types[type], sizes, bad, 1);
        }
}

/* Sizes at which devices cut matrices into blocks. A = M'M / n + I / 2 of random M, of which the condition is
 * at most 9: A X = I, and X is symmetric to the bit. */
static void check_large_inverse(const rig *r, dsc_dtype type, int64_t n, const double *a,
                                const place *inverse) {
    double *x = test_array(n * n, sizeof *x), limit = 18 * (double)(n + 4) * dtype_eps(type);
    place_read(r, inverse, x);
    place_check_guards(r, inverse, "chol_inverse_batch: a");
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = i == j ? -1 : 0;
            for (int64_t l = 0; l < n; l++)
                sum += a[i * n + l] * x[j * n + l];
            if (!(fabs(sum) <= limit) || x[i * n + j] != x[j * n + i])
                fail_msg("%s, %s: element (%lld,%lld) of A A^-1 - I, n = %lld, is %g (limit %g)", r->label,
                         dsc_dtype_name(type), (long long)i, (long long)j, (long long)n, sum, limit);
        }
    free(x);
}

static double *make_large(dsc_dtype type, int64_t n) {
    double *m = test_array(n * n, sizeof *m), *a = test_array(n * n, sizeof *a);
    random_values((uint64_t)n, n * n, m);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            double sum = 0;
            for (int64_t l = 0; l < n; l++)
                sum += m[l * n + i] * m[l * n + j];
            sum = sum / (double)n + (i == j ? 0.5 : 0);
            a[i * n + j] = a[j * n + i] = type == DSC_F32 ? (double)(float)sum : sum;
        }
    free(m);
    return a;
}

static void test_large_inverses(void **state) {
    (void)state;
    static const int64_t sizes[] = {321, 257, 128, 65, 64};
    enum { COUNT = sizeof sizes / sizeof sizes[0] };
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < 2; type++) {
            place places[COUNT];
            double *a[COUNT];
            dsc_solve_item items[COUNT];
            for (int i = 0; i < COUNT; i++) {
                a[i] = make_large(types[type], sizes[i]);
                places[i] = place_of(&rigs[r], types[type], SHAPE(sizes[i], sizes[i]), a[i]);
                items[i] = (dsc_solve_item){.a = places[i].t, .failed = 7};
            }
            assert_ok(dsc_op_chol_inverse_batch(rigs[r].q, items, COUNT));
            for (int i = 0; i < COUNT; i++) {
                assert_int_equal(items[i].failed, 0);
                check_large_inverse(&rigs[r], types[type], sizes[i], a[i], &places[i]);
                place_free(&places[i]);
                free(a[i]);
            }
        }
}

/* ---- quotients ---- */

typedef struct divide_places {
    place rows, columns, x;
    double *want, *limit;
} divide_places;

static divide_places divide_make(const rig *r, dsc_dtype type, int64_t m, int64_t n, double damping,
                                 uint64_t stream) {
    double *rows = test_array(m, sizeof *rows), *columns = test_array(n, sizeof *columns);
    double *x = test_array(m * n, sizeof *x);
    divide_places p = {.want = test_array(m * n, sizeof *p.want), .limit = test_array(m * n, sizeof *x)};
    random_values(3 * stream, m, rows);
    random_values(3 * stream + 1, n, columns);
    random_values(3 * stream + 2, m * n, x);
    for (int64_t i = 0; i < m; i++)
        rows[i] = fabs(rows[i]);
    for (int64_t j = 0; j < n; j++)
        columns[j] = fabs(columns[j]);
    for (int64_t e = 0; e < m * n; e++) {
        p.want[e] = x[e] / (rows[e / n] * columns[e % n] + damping);
        p.limit[e] = 4 * dtype_eps(type) * fabs(p.want[e]);
    }
    p.rows = place_of(r, type, SHAPE(m), rows);
    p.columns = place_of(r, type, SHAPE(n), columns);
    p.x = place_of(r, type, SHAPE(m, n), x);
    free(rows);
    free(columns);
    free(x);
    return p;
}

static void check_divide(const rig *r, dsc_dtype type, const int64_t sizes[][2], int count) {
    const double damping = 0.0078125; /* a power of two */
    divide_places places[6];
    dsc_divide_item items[6];
    place value = place_of(r, DSC_F64, SHAPE(1), &damping);
    for (int i = 0; i < count; i++) {
        places[i] = divide_make(r, type, sizes[i][0], sizes[i][1], damping, (uint64_t)i);
        items[i] = (dsc_divide_item){places[i].rows.t, places[i].columns.t, places[i].x.t};
    }
    int64_t allocations = dsc_memory_allocations();
    assert_ok(dsc_op_divide_batch(r->q, &value.t, items, count));
    assert_int_equal(dsc_memory_allocations(), allocations);
    for (int i = 0; i < count; i++) {
        place_expect_near(r, &places[i].x, places[i].want, places[i].limit, "divide_batch: x");
        place_check_guards(r, &places[i].rows, "divide_batch: rows");
        place_free(&places[i].rows);
        place_free(&places[i].columns);
        place_free(&places[i].x);
        free(places[i].want);
        free(places[i].limit);
    }
    place_free(&value);
}

static void test_divide_batch(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{64, 577}, {16, 144}, {10, 65}, {1, 1}, {3, 0}, {0, 4}};
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < 2; type++) {
            check_divide(&rigs[r], types[type], sizes, 4);
            check_divide(&rigs[r], types[type], sizes, 6);
            check_divide(&rigs[r], types[type], sizes, 0);
        }
}

static void test_divide_refusals(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        place x = place_make(&rigs[r], DSC_F32, SHAPE(2, 3)), two = place_make(&rigs[r], DSC_F32, SHAPE(2));
        place value = place_make(&rigs[r], DSC_F64, SHAPE(1)), pair = place_make(&rigs[r], DSC_F64, SHAPE(2));
        dsc_divide_item item = {two.t, two.t, x.t};
        assert_fails(DSC_E_INVALID, "item 0: divide_batch: columns is [2]; [3] is expected",
                     dsc_op_divide_batch(rigs[r].q, &value.t, &item, 1));
        assert_fails(DSC_E_INVALID, "divide_batch: damping is [2]; 1 element is expected",
                     dsc_op_divide_batch(rigs[r].q, &pair.t, &item, 1));
        place *all[] = {&x, &two, &value, &pair};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

/* ---- second moments ---- */

typedef struct moment_places {
    place scale, s, x;
    double *want_s, *want_x, *limit_s, *limit_x;
} moment_places;

static const double moment_decay = 0.75, moment_damping = 0.0078125; /* exact in float32 */

/* scale < 0: the item has none. The first element of x is infinite when `broken`. */
static moment_places moment_make(const rig *r, dsc_dtype type, const int64_t size[2], double scale,
                                 int broken) {
    int64_t m = size[0], n = size[1];
    double *s = test_array(m * n, sizeof *s), *x = test_array(m * n, sizeof *x);
    moment_places p = {.want_s = test_array(m * n, sizeof *s),
                       .want_x = test_array(m * n, sizeof *s),
                       .limit_s = test_array(m * n, sizeof *s),
                       .limit_x = test_array(m * n, sizeof *s)};
    random_values((uint64_t)(m + 100), m * n, s);
    random_values((uint64_t)(n + 200), m * n, x);
    for (int64_t e = 0; e < m * n; e++) {
        s[e] = fabs(s[e]);
        int still = scale <= 0 || (broken && e == 0);
        p.want_s[e] = still ? s[e] : moment_decay * s[e] + (1 - moment_decay) * scale * x[e] * x[e];
        p.want_x[e] = x[e] / (p.want_s[e] + moment_damping);
        p.limit_s[e] = still ? 0 : 8 * dtype_eps(type) * p.want_s[e];
        p.limit_x[e] = 16 * dtype_eps(type) * fabs(p.want_x[e]);
    }
    if (broken)
        x[0] = p.want_x[0] = INFINITY;
    if (scale >= 0)
        p.scale = place_of(r, DSC_F64, SHAPE(1), &scale);
    p.s = place_of(r, type, SHAPE(m, n), s);
    p.x = place_of(r, type, SHAPE(m, n), x);
    free(s);
    free(x);
    return p;
}

static void moment_drop(moment_places *p, int scaled) {
    if (scaled)
        place_free(&p->scale);
    place_free(&p->s);
    place_free(&p->x);
    free(p->want_s);
    free(p->want_x);
    free(p->limit_s);
    free(p->limit_x);
}

static void check_moment(const rig *r, dsc_dtype type, const int64_t sizes[][2], int count) {
    static const double scales[] = {128, -1, 0, 3, 2, 1};
    moment_places places[6];
    dsc_moment_item items[6];
    place decay = place_of(r, DSC_F64, SHAPE(1), &moment_decay);
    place damping = place_of(r, DSC_F64, SHAPE(1), &moment_damping);
    for (int i = 0; i < count; i++) {
        places[i] = moment_make(r, type, sizes[i], scales[i], 0);
        items[i] = (dsc_moment_item){.s = places[i].s.t, .x = places[i].x.t};
        if (scales[i] >= 0)
            items[i].scale = places[i].scale.t;
    }
    int64_t allocations = dsc_memory_allocations();
    assert_ok(dsc_op_moment_divide_batch(r->q, &decay.t, &damping.t, items, count));
    assert_int_equal(dsc_memory_allocations(), allocations);
    for (int i = 0; i < count; i++) {
        place_expect_near(r, &places[i].s, places[i].want_s, places[i].limit_s, "moment_divide_batch: s");
        place_expect_near(r, &places[i].x, places[i].want_x, places[i].limit_x, "moment_divide_batch: x");
        moment_drop(&places[i], scales[i] >= 0);
    }
    place_free(&decay);
    place_free(&damping);
}

static void test_moment_divide(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{64, 577}, {16, 144}, {10, 65}, {1, 1}, {3, 0}, {0, 4}};
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < 2; type++) {
            check_moment(&rigs[r], types[type], sizes, 4);
            check_moment(&rigs[r], types[type], sizes, 6);
            check_moment(&rigs[r], types[type], sizes, 0);
        }
}

/* An element that is not finite leaves its average alone, and only its own. */
static void test_moment_not_finite(void **state) {
    (void)state;
    static const int64_t size[2] = {3, 5};
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < 2; type++) {
            place decay = place_of(&rigs[r], DSC_F64, SHAPE(1), &moment_decay);
            place damping = place_of(&rigs[r], DSC_F64, SHAPE(1), &moment_damping);
            moment_places p = moment_make(&rigs[r], types[type], size, 128, 1);
            dsc_moment_item item = {p.scale.t, p.s.t, p.x.t};
            assert_ok(dsc_op_moment_divide_batch(rigs[r].q, &decay.t, &damping.t, &item, 1));
            place_expect_near(&rigs[r], &p.s, p.want_s, p.limit_s, "moment_divide_batch: s");
            moment_drop(&p, 1);
            place_free(&decay);
            place_free(&damping);
        }
}

static void test_moment_refusals(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        place x = place_make(&rigs[r], DSC_F32, SHAPE(2, 3)), s = place_make(&rigs[r], DSC_F32, SHAPE(3, 2));
        place value = place_make(&rigs[r], DSC_F64, SHAPE(1)), pair = place_make(&rigs[r], DSC_F64, SHAPE(2));
        dsc_moment_item other = {value.t, s.t, x.t}, same = {value.t, x.t, x.t};
        assert_fails(DSC_E_INVALID, "item 0: moment_divide_batch: s is [3,2]",
                     dsc_op_moment_divide_batch(rigs[r].q, &value.t, &value.t, &other, 1));
        assert_fails(DSC_E_INVALID, "item 0: moment_divide_batch: ",
                     dsc_op_moment_divide_batch(rigs[r].q, &value.t, &value.t, &same, 1));
        assert_fails(DSC_E_INVALID, "moment_divide_batch: decay is [2]; 1 element is expected",
                     dsc_op_moment_divide_batch(rigs[r].q, &pair.t, &value.t, &same, 1));
        place *all[] = {&x, &s, &value, &pair};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemm_batch),        cmocka_unit_test(test_large_product),
        cmocka_unit_test(test_large_products),    cmocka_unit_test(test_gemm_empty),
        cmocka_unit_test(test_gemm_refusals),     cmocka_unit_test(test_syev_batch),
        cmocka_unit_test(test_quick_syev),        cmocka_unit_test(test_syev_threads),
        cmocka_unit_test(test_solve_refusals),    cmocka_unit_test(test_chol_inverse_batch),
        cmocka_unit_test(test_large_inverses),    cmocka_unit_test(test_divide_batch),
        cmocka_unit_test(test_divide_refusals),   cmocka_unit_test(test_moment_divide),
        cmocka_unit_test(test_moment_not_finite), cmocka_unit_test(test_moment_refusals),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
