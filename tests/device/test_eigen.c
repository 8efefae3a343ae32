/* Symmetric eigen solve on matrices that have broken solvers. With Frobenius norms it is accepted when
 *   |A - Q diag(v) Q'| <= 64 n eps |A|,   |Q'Q - I| <= 25 n eps,   v rising. */
#include "device/rig.h"

#include <math.h>
#include <stdlib.h>

/* Element (i, j), j <= i, of a test matrix of size n. */
typedef double (*matrix_function)(int64_t n, int64_t i, int64_t j);

static double noise(int64_t i, int64_t j) {
    double value;
    random_values((uint64_t)(i * 1000 + j), 1, &value);
    return value;
}

static double zero(int64_t n, int64_t i, int64_t j) {
    (void)n;
    (void)i;
    (void)j;
    return 0;
}

static double identity(int64_t n, int64_t i, int64_t j) {
    (void)n;
    return i == j;
}

static double dense(int64_t n, int64_t i, int64_t j) {
    (void)n;
    return noise(i, j);
}

/* Already diagonal, falling, with equal neighbours. */
static double falling(int64_t n, int64_t i, int64_t j) {
    return i == j ? (double)((n - i) / 2) : 0;
}

static double rank_one(int64_t n, int64_t i, int64_t j) {
    return (double)((i + 1) * (j + 1)) / (double)(n * n);
}

/* I - 2 u u'/u'u with u = (1, 2, 3, ...): eigenvalue -1 once, 1 otherwise. */
static double reflection(int64_t n, int64_t i, int64_t j) {
    double square = (double)n * (double)(n + 1) * (double)(2 * n + 1) / 6;
    return (i == j) - 2 * (double)(i + 1) * (double)(j + 1) / square;
}

/* Eigenvalues within 1e-6 of each other. */
static double clustered(int64_t n, int64_t i, int64_t j) {
    return (i == j) + 1e-6 * noise(i, j) / (double)n;
}

/* Second difference; eigenvalues 2 - 2 cos(k pi / (n + 1)). */
static double tridiagonal(int64_t n, int64_t i, int64_t j) {
    (void)n;
    return i == j ? 2 : (i - j == 1 ? -1 : 0);
}

static double banded(int64_t n, int64_t i, int64_t j) {
    (void)n;
    return i - j <= 5 ? noise(i, j) : 0;
}

/* Wilkinson's W: pairs of eigenvalues that agree in many digits. */
static double wilkinson(int64_t n, int64_t i, int64_t j) {
    return i == j ? fabs((double)i - (double)(n - 1) / 2) : (i - j == 1 ? 1 : 0);
}

/* Rows and columns from 1 to 1e-12: graded, as the factors of dead channels are. */
static double graded(int64_t n, int64_t i, int64_t j) {
    return noise(i, j) * pow(10, -6 * (double)(i + j) / (double)n);
}

/* Hilbert's matrix: eigenvalues fall to nothing. */
static double hilbert(int64_t n, int64_t i, int64_t j) {
    (void)n;
    return 1 / (double)(i + j + 1);
}

static double huge(int64_t n, int64_t i, int64_t j) {
    return 1e30 * dense(n, i, j);
}

static double tiny(int64_t n, int64_t i, int64_t j) {
    return 1e-30 * dense(n, i, j);
}

static const struct {
    const char *name;
    matrix_function element;
} matrices[] = {
    {"zero", zero},           {"identity", identity},
    {"dense", dense},         {"falling", falling},
    {"rank one", rank_one},   {"reflection", reflection},
    {"clustered", clustered}, {"tridiagonal", tridiagonal},
    {"banded", banded},       {"wilkinson", wilkinson},
    {"graded", graded},       {"hilbert", hilbert},
    {"huge", huge},           {"tiny", tiny},
};
enum { MATRICES = sizeof matrices / sizeof matrices[0] };

/* A as the device sees it, rounded to its type, with both triangles filled. */
static double *make_matrix(matrix_function element, dsc_dtype type, int64_t n) {
    double *a = test_array(n * n, sizeof *a);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            double value = element(n, i, j);
            a[i * n + j] = a[j * n + i] = type == DSC_F32 ? (double)(float)value : value;
        }
    return a;
}

/* |X|_F over n*n entries. */
static double norm_of(const double *x, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

static void check_solution(const char *what, const double *a, const double *q, const double *v, int64_t n,
                           double eps) {
    double *rest = test_array(n * n, sizeof *rest), *gram = test_array(n * n, sizeof *gram);
    double *qt = test_array(n * n, sizeof *qt);
    for (int64_t i = 0; i < n * n; i++) {
        rest[i] = a[i];
        qt[i % n * n + i / n] = q[i];
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            for (int64_t l = 0; l < n; l++) {
                rest[i * n + j] -= q[i * n + l] * v[l] * q[j * n + l];
                gram[i * n + j] += qt[i * n + l] * qt[j * n + l];
            }
            gram[i * n + j] -= i == j;
        }
    double residual = norm_of(rest, n * n), size = norm_of(a, n * n), skew = norm_of(gram, n * n);
    if (!(residual <= 64 * (double)n * eps * size))
        fail_msg("%s: |A - QVQ'| is %g of |A|", what, residual / size);
    if (!(skew <= 25 * (double)n * eps))
        fail_msg("%s: |Q'Q - I| is %g", what, skew);
    for (int64_t i = 1; i < n; i++)
        if (!(v[i - 1] <= v[i]))
            fail_msg("%s: eigenvalue %lld is %g, the next %g", what, (long long)(i - 1), v[i - 1], v[i]);
    free(rest);
    free(gram);
    free(qt);
}

static place work_for(const rig *r, dsc_dtype type, int64_t n) {
    place work = place_make(r, DSC_U8, SHAPE((int64_t)dsc_op_syev_workspace(r->device, type, n)));
    if (dsc_tensor_count(&work.t) > 0)
        place_fill(r, &work, 255);
    return work;
}

static void solve_and_check(const rig *r, dsc_dtype type, const char *name, matrix_function element,
                            int64_t n) {
    char what[120];
    snprintf(what, sizeof what, "%s: %s matrix, n = %lld, %s", r->label, name, (long long)n,
             dsc_dtype_name(type));
    double *a = make_matrix(element, type, n), *q = test_array(n * n, sizeof *q);
    double *v = test_array(n, sizeof *v);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            q[i * n + j] = j <= i ? a[i * n + j] : NAN; /* the upper triangle is not read */
    place pa = place_of(r, type, SHAPE(n, n), q), pv = place_make(r, type, SHAPE(n));
    place work = work_for(r, type, n);
    assert_ok(dsc_op_syev(r->q, &pa.t, &work.t, &pv.t));
    assert_ok(dsc_queue_sync(r->q));
    place_check_guards(r, &pa, what);
    place_check_guards(r, &pv, what);
    place_check_guards(r, &work, what);
    place_read(r, &pa, q);
    place_read(r, &pv, v);
    check_solution(what, a, q, v, n, dtype_eps(type));
    place_free(&pa);
    place_free(&pv);
    place_free(&work);
    free(a);
    free(q);
    free(v);
}

static void test_nasty_matrices(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 2, 3, 5, 16, 33};
    for (int r = 0; r < rig_count; r++)
        for (int m = 0; m < MATRICES; m++)
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
                solve_and_check(&rigs[r], DSC_F32, matrices[m].name, matrices[m].element, sizes[s]);
                solve_and_check(&rigs[r], DSC_F64, matrices[m].name, matrices[m].element, sizes[s]);
            }
}

/* ref is slow and stops at 100; a few will do for it and for a second number of threads. */
static void test_larger_matrices(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        int64_t n = r == 0 ? 100 : 200;
        for (int m = 0; m < MATRICES; m++)
            if (r == 1 || m % 4 == 2)
                solve_and_check(&rigs[r], DSC_F32, matrices[m].name, matrices[m].element, n);
    }
}

/* Against formulas: the second difference's spectrum, and [2 1; 1 2]. */
static void test_known_spectrum(void **state) {
    (void)state;
    enum { N = 20 };
    static const dsc_dtype types[] = {DSC_F32, DSC_F64};
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < 2; type++) {
            double eps = dtype_eps(types[type]);
            double *a = make_matrix(tridiagonal, types[type], N);
            place pa = place_of(&rigs[r], types[type], SHAPE(N, N), a);
            place v = place_make(&rigs[r], types[type], SHAPE(N));
            place work = work_for(&rigs[r], types[type], N);
            assert_ok(dsc_op_syev(rigs[r].q, &pa.t, &work.t, &v.t));
            for (int k = 0; k < N; k++) {
                double want = 2 - 2 * cos((k + 1) * 3.14159265358979323846 / (N + 1));
                assert_true(fabs(place_get(&rigs[r], &v, k) - want) <= 64 * N * eps * 4);
            }
            place_free(&pa);
            place_free(&v);
            place_free(&work);
            free(a);
            pa = place_of(&rigs[r], types[type], SHAPE(2, 2), (const double[]){2, 1, 1, 2});
            v = place_make(&rigs[r], types[type], SHAPE(2));
            work = work_for(&rigs[r], types[type], 2);
            assert_ok(dsc_op_syev(rigs[r].q, &pa.t, &work.t, &v.t));
            assert_true(fabs(place_get(&rigs[r], &v, 0) - 1) <= 64 * eps);
            assert_true(fabs(place_get(&rigs[r], &v, 1) - 3) <= 64 * eps);
            double q[4]; /* columns (1, -1) and (1, 1), up to sign, over sqrt(2) */
            place_read(&rigs[r], &pa, q);
            assert_true(fabs(q[0] + q[2]) <= 64 * eps && fabs(q[1] - q[3]) <= 64 * eps);
            place_free(&pa);
            place_free(&v);
            place_free(&work);
        }
}

static void test_not_finite(void **state) {
    (void)state;
    static const dsc_dtype types[] = {DSC_F32, DSC_F64};
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    for (int r = 0; r < rig_count; r++)
        for (int which = 0; which < 6; which++) {
            enum { N = 40 };
            double *a = make_matrix(dense, DSC_F32, N);
            a[(N - 1) * N] = bad[which % 3];
            place pa = place_of(&rigs[r], types[which / 3], SHAPE(N, N), a);
            place v = place_make(&rigs[r], types[which / 3], SHAPE(N));
            place work = work_for(&rigs[r], types[which / 3], N);
            assert_fails(DSC_E_NUMERIC, "syev", dsc_op_syev(rigs[r].q, &pa.t, &work.t, &v.t));
            place_free(&pa);
            place_free(&v);
            place_free(&work);
            free(a);
        }
}

static void test_refusals(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        place a = place_make(&rigs[r], DSC_F32, SHAPE(8, 8)), v = place_make(&rigs[r], DSC_F32, SHAPE(8));
        place wide = place_make(&rigs[r], DSC_F32, SHAPE(2, 3)), work = work_for(&rigs[r], DSC_F32, 8);
        place none = place_make(&rigs[r], DSC_F32, SHAPE(0, 0)),
              empty = place_make(&rigs[r], DSC_F32, SHAPE(0));
        assert_fails(DSC_E_INVALID, "syev: a is [2,3]; [2,2] is expected",
                     dsc_op_syev(rigs[r].q, &wide.t, &work.t, &v.t));
        assert_fails(DSC_E_INVALID, "syev: v is [0]; [8] is expected",
                     dsc_op_syev(rigs[r].q, &a.t, &work.t, &empty.t));
        assert_ok(dsc_op_syev(rigs[r].q, &none.t, NULL, &empty.t));
        if (dsc_tensor_count(&work.t) > 0) {
            dsc_tensor small = dsc_tensor_slice(&work.t, 0, dsc_tensor_count(&work.t) - 1);
            assert_fails(DSC_E_INVALID, "are needed", dsc_op_syev(rigs[r].q, &a.t, &small, &v.t));
            assert_fails(DSC_E_INVALID, "work is missing", dsc_op_syev(rigs[r].q, &a.t, NULL, &v.t));
        }
        place *all[] = {&a, &v, &wide, &work, &none, &empty};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nasty_matrices), cmocka_unit_test(test_larger_matrices),
        cmocka_unit_test(test_known_spectrum), cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
