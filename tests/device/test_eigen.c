/* Symmetric eigen solve on matrices that have broken solvers: by the usual algorithm and by the careful one.
 */
#include "device/eigen.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

static place work_for(const rig *r, dsc_dtype type, int64_t n) {
    place work = place_make(r, DSC_U8, SHAPE((int64_t)dsc_op_syev_workspace(r->device, type, n)));
    if (dsc_tensor_count(&work.t) > 0)
        place_fill(r, &work, 255);
    return work;
}

static void solve_and_check(const rig *r, dsc_dtype type, const matrix_kind *kind, int64_t n, int careful) {
    char what[120];
    snprintf(what, sizeof what, "%s: %s matrix, n = %lld, %s%s", r->label, kind->name, (long long)n,
             dsc_dtype_name(type), careful ? ", careful" : "");
    double *a = make_matrix(kind->element, type, n), *q = test_array(n * n, sizeof *q);
    double *v = test_array(n, sizeof *v);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            q[i * n + j] = j <= i ? a[i * n + j] : NAN; /* the upper triangle is not read */
    place pa = place_of(r, type, SHAPE(n, n), q), pv = place_make(r, type, SHAPE(n));
    place work = work_for(r, type, n);
    if (careful)
        assert_ok(dsc_op_syev_careful(r->q, &pa.t, &pv.t));
    else
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
                solve_and_check(&rigs[r], DSC_F32, &matrices[m], sizes[s], 0);
                solve_and_check(&rigs[r], DSC_F64, &matrices[m], sizes[s], 0);
            }
}

/* The variants of the cpu device after the first two share this one. */
static void test_careful(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 2, 5, 33};
    for (int r = 0; r < 3 && r < rig_count; r++)
        for (int m = 0; m < MATRICES; m++)
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
                solve_and_check(&rigs[r], DSC_F32, &matrices[m], sizes[s], 1);
                solve_and_check(&rigs[r], DSC_F64, &matrices[m], sizes[s], 1);
            }
}

/* ref is slow and stops at 100; a few will do for it and for a second number of threads. */
static void test_larger_matrices(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        int64_t n = r == 0 ? 100 : 200;
        for (int m = 0; m < MATRICES; m++)
            if (r == 1 || m % 4 == 2)
                solve_and_check(&rigs[r], DSC_F32, &matrices[m], n, 0);
    }
    /* Solvers know both types. */
    const rig *other = &rigs[rig_count > 2 ? 2 : 1];
    solve_and_check(other, DSC_F64, &matrices[DENSE], 200, 0);
    solve_and_check(other, DSC_F32, &matrices[DENSE], 200, 1);
}

/* Against formulas: the second difference's spectrum, and [2 1; 1 2]. */
static void test_known_spectrum(void **state) {
    (void)state;
    enum { N = 20 };
    static const dsc_dtype types[] = {DSC_F32, DSC_F64};
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < 2; type++) {
            double eps = dtype_eps(types[type]);
            double *a = make_matrix(matrices[TRIDIAGONAL].element, types[type], N);
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
            double *a = make_matrix(matrices[DENSE].element, DSC_F32, N);
            a[(N - 1) * N] = bad[which % 3];
            place pa = place_of(&rigs[r], types[which / 3], SHAPE(N, N), a);
            place v = place_make(&rigs[r], types[which / 3], SHAPE(N));
            place work = work_for(&rigs[r], types[which / 3], N);
            assert_fails(DSC_E_NUMERIC, "syev", dsc_op_syev(rigs[r].q, &pa.t, &work.t, &v.t));
            place_write(&rigs[r], &pa, a);
            assert_fails(DSC_E_NUMERIC, "syev", dsc_op_syev_careful(rigs[r].q, &pa.t, &v.t));
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
        assert_fails(DSC_E_INVALID, "syev_careful: v is [0]; [8] is expected",
                     dsc_op_syev_careful(rigs[r].q, &a.t, &empty.t));
        assert_ok(dsc_op_syev(rigs[r].q, &none.t, NULL, &empty.t));
        assert_ok(dsc_op_syev_careful(rigs[r].q, &none.t, &empty.t));
        dsc_memory_fail_at(1);
        assert_fails(DSC_E_MEMORY, "bytes", dsc_op_syev_careful(rigs[r].q, &a.t, &v.t));
        dsc_memory_fail_at(0);
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
        cmocka_unit_test(test_nasty_matrices),  cmocka_unit_test(test_careful),
        cmocka_unit_test(test_larger_matrices), cmocka_unit_test(test_known_spectrum),
        cmocka_unit_test(test_not_finite),      cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
