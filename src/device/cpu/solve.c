/* Decompositions of the cpu device by LAPACK, in float32 and float64. Each runs on one thread (below a thousand rows
 * LAPACK gains nothing from more), so its bits do not depend on the number of threads; many run in parallel.
 *
 * LAPACK is column-major: it sees a row-major matrix as its transpose, so the lower triangle is called
 * upper, and eigenvectors come back as rows. */
#include "device/cpu/triangle.h"

#include "base/error.h"
#include "base/memory.h"

#include <lapacke.h>
#include <limits.h>
#include <math.h>
#include <omp.h>

/* A result besides LAPACK's own info, which is negative for a wrong argument and positive for a numerical failure. */
enum { NOT_FINITE = INT_MIN };

/* A[n,n], which is overwritten; v[n] and work are those of eigenproblems. */
typedef struct problem {
    dsc_dtype dtype;
    int64_t n;
    void *a, *v, *work;
} problem;

static problem problem_of(const dsc_tensor *a, const dsc_tensor *v, void *work) {
    return (problem){a->dtype, a->dim[0], a->data, v ? v->data : NULL, work};
}

static int is_finite(const dsc_cpu_kernels *k, const problem *p) {
    int64_t bad = 0;
    for (int64_t i = 0; i < p->n; i++) {
        const double *row = (const double *)p->a + i * p->n;
        if (p->dtype == DSC_F32)
            bad += k->nonfinite(i + 1, (const float *)p->a + i * p->n);
        else
            for (int64_t j = 0; j <= i; j++)
                bad += !isfinite(row[j]);
    }
    return bad == 0;
}

/* Turns LAPACK's info into a status; `found` is the message for a positive one. */
static dsc_status report(const char *op, const problem *p, lapack_int info, const char *found) {
    if (info == NOT_FINITE)
        return DSC_FAIL(DSC_E_NUMERIC, "%s: A[%lld,%lld] holds elements that are not finite", op,
                        (long long)p->n, (long long)p->n);
    if (info < 0)
        return DSC_FAIL(DSC_E_INTERNAL, "%s: argument %d of LAPACK is wrong", op, (int)-info);
    if (info > 0)
        return DSC_FAIL(DSC_E_NUMERIC, "%s: A[%lld,%lld] %s (LAPACK: %d)", op, (long long)p->n,
                        (long long)p->n, found, (int)info);
    return DSC_OK;
}

static dsc_status check_size(const char *op, int64_t n, int64_t elements) {
    if (elements > INT_MAX)
        return DSC_FAIL(DSC_E_UNSUPPORTED, "%s: %lld rows; this LAPACK counts %d elements", op, (long long)n,
                        INT_MAX);
    return DSC_OK;
}

/* ---- eigenproblems ---- */

/* The workspace that xSYEVD documents for eigenvectors, and room for the best block size of the reduction to
 * tridiagonal form. */
static int64_t syev_reals(int64_t n) {
    return 1 + 6 * n + 2 * n * n + 64 * n;
}

static int64_t syev_ints(int64_t n) {
    return 3 + 5 * n;
}

/* Rounded up to whole cache lines, so that the workspaces of two threads never share one. */
static size_t syev_bytes(dsc_dtype dtype, int64_t n) {
    size_t bytes = (size_t)syev_reals(n) * dsc_dtype_size(dtype) + (size_t)syev_ints(n) * sizeof(lapack_int);
    return (bytes + DSC_ALIGNMENT - 1) / DSC_ALIGNMENT * DSC_ALIGNMENT;
}

static size_t syev_workspace(dsc_device *device, dsc_dtype dtype, int64_t n) {
    (void)device;
    return syev_bytes(dtype, n);
}

/* Sets no error message, since several threads call it at the same time; returns LAPACK's info or NOT_FINITE. */
static lapack_int solve_eigen(const dsc_queue *q, const problem *p) {
    lapack_int n = (lapack_int)p->n, reals = (lapack_int)syev_reals(n), ints = (lapack_int)syev_ints(n), info;
    if (!is_finite(dsc_cpu_kernels_of(q), p))
        return NOT_FINITE;
    if (p->dtype == DSC_F32) {
        float *space = p->work;
        info = LAPACKE_ssyevd_work(LAPACK_COL_MAJOR, 'V', 'U', n, p->a, n, p->v, space, reals,
                                   (lapack_int *)(space + reals), ints);
    } else {
        double *space = p->work;
        info = LAPACKE_dsyevd_work(LAPACK_COL_MAJOR, 'V', 'U', n, p->a, n, p->v, space, reals,
                                   (lapack_int *)(space + reals), ints);
    }
    if (info == 0)
        dsc_cpu_transpose(q->device, p->dtype, p->n, p->a);
    return info;
}

static dsc_status syev(dsc_queue *q, dsc_tensor *a, dsc_tensor *work, dsc_tensor *v) {
    problem p = problem_of(a, v, work->data);
    DSC_TRY(check_size("syev", p.n, syev_reals(p.n)));
    dsc_cpu_threads before = dsc_cpu_use_threads(1);
    lapack_int info = solve_eigen(q, &p);
    dsc_cpu_leave_threads(before);
    DSC_TRY(report("syev", &p, info, "made the solver fail to converge"));
    return DSC_OK;
}

/* Solves a copy of A in double, whose rows are LAPACK's columns, and writes the eigenvectors back to A. */
static lapack_int solve_carefully(const problem *p, lapack_int reals, double *copy, double *values,
                                  double *space) {
    lapack_int n = (lapack_int)p->n;
    for (int64_t i = 0; i < p->n * p->n; i++)
        copy[i] = p->dtype == DSC_F32 ? (double)((const float *)p->a)[i] : ((const double *)p->a)[i];
    lapack_int info = LAPACKE_dsyev_work(LAPACK_COL_MAJOR, 'V', 'U', n, copy, n, values, space, reals);
    if (info != 0)
        return info;
    for (int64_t i = 0; i < p->n; i++) {
        if (p->dtype == DSC_F32)
            ((float *)p->v)[i] = (float)values[i];
        else
            ((double *)p->v)[i] = values[i];
        for (int64_t j = 0; j < p->n; j++) {
            if (p->dtype == DSC_F32)
                ((float *)p->a)[i * p->n + j] = (float)copy[j * p->n + i];
            else
                ((double *)p->a)[i * p->n + j] = copy[j * p->n + i];
        }
    }
    return 0;
}

static dsc_status syev_careful(dsc_queue *q, dsc_tensor *a, dsc_tensor *v) {
    problem p = problem_of(a, v, NULL);
    int64_t reals = 66 * p.n; /* the workspace of DSYEV, with blocks of 64 */
    double *memory;
    DSC_TRY(check_size("syev_careful", p.n, p.n * p.n));
    if (!is_finite(dsc_cpu_kernels_of(q), &p))
        return report("syev_careful", &p, NOT_FINITE, NULL);
    DSC_TRY(dsc_memory_alloc(p.n * p.n + p.n + reals, sizeof *memory, &memory));
    dsc_cpu_threads before = dsc_cpu_use_threads(1);
    lapack_int info =
        solve_carefully(&p, (lapack_int)reals, memory, memory + p.n * p.n, memory + p.n * p.n + p.n);
    dsc_cpu_leave_threads(before);
    dsc_memory_free(&memory);
    DSC_TRY(report("syev_careful", &p, info, "made the solver fail to converge"));
    return DSC_OK;
}

/* ---- inverses ---- */

static lapack_int invert(const dsc_queue *q, const problem *p) {
    lapack_int n = (lapack_int)p->n, info;
    if (!is_finite(dsc_cpu_kernels_of(q), p))
        return NOT_FINITE;
    if (p->dtype == DSC_F32) {
        info = LAPACKE_spotrf_work(LAPACK_COL_MAJOR, 'U', n, p->a, n);
        if (info == 0)
            info = LAPACKE_spotri_work(LAPACK_COL_MAJOR, 'U', n, p->a, n);
    } else {
        info = LAPACKE_dpotrf_work(LAPACK_COL_MAJOR, 'U', n, p->a, n);
        if (info == 0)
            info = LAPACKE_dpotri_work(LAPACK_COL_MAJOR, 'U', n, p->a, n);
    }
    if (info == 0)
        dsc_cpu_mirror(q->device, p->dtype, p->n, p->a);
    return info;
}

static dsc_status chol_inverse(dsc_queue *q, dsc_tensor *a) {
    problem p = problem_of(a, NULL, NULL);
    DSC_TRY(check_size("chol_inverse", p.n, p.n));
    dsc_cpu_threads before = dsc_cpu_use_threads(1);
    lapack_int info = invert(q, &p);
    dsc_cpu_leave_threads(before);
    DSC_TRY(report("chol_inverse", &p, info, "is not positive definite; add damping"));
    return DSC_OK;
}

/* ---- batches ----
 *
 * The next item goes to whichever thread is free; callers put the large items first. */

static int64_t largest_of(const dsc_solve_item *items, int64_t count) {
    int64_t largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = items[i].a.dim[0] > largest ? items[i].a.dim[0] : largest;
    return largest;
}

/* The number of items that are solved at the same time. */
static int busy_threads(const dsc_device *device, int64_t count) {
    return count < device->threads ? (int)count : device->threads;
}

static size_t syev_batch_workspace(dsc_device *device, dsc_dtype dtype, int64_t n, int64_t count) {
    return syev_bytes(dtype, n) * (size_t)busy_threads(device, count);
}

static dsc_status syev_batch(dsc_queue *q, dsc_solve_item *items, int64_t count, dsc_tensor *work) {
    int64_t largest = largest_of(items, count);
    size_t bytes = syev_bytes(items[0].a.dtype, largest);
    int team = busy_threads(q->device, count);
    char *space = work->data;
    DSC_TRY(check_size("syev_batch", largest, syev_reals(largest)));
    dsc_cpu_threads before = dsc_cpu_use_threads(1);
#pragma omp parallel for num_threads(team) schedule(dynamic, 1)
    for (int64_t i = 0; i < count; i++) {
        problem p = problem_of(&items[i].a, &items[i].v, space + (size_t)omp_get_thread_num() * bytes);
        items[i].failed = solve_eigen(q, &p) != 0;
    }
    dsc_cpu_leave_threads(before);
    return DSC_OK;
}

static dsc_status chol_inverse_batch(dsc_queue *q, dsc_solve_item *items, int64_t count) {
    int64_t largest = largest_of(items, count);
    int team = busy_threads(q->device, count);
    DSC_TRY(check_size("chol_inverse_batch", largest, largest));
    dsc_cpu_threads before = dsc_cpu_use_threads(1);
#pragma omp parallel for num_threads(team) schedule(dynamic, 1)
    for (int64_t i = 0; i < count; i++) {
        problem p = problem_of(&items[i].a, NULL, NULL);
        items[i].failed = invert(q, &p) != 0;
    }
    dsc_cpu_leave_threads(before);
    return DSC_OK;
}

void dsc_cpu_table_solve(dsc_device_table *table) {
    table->syev_workspace = syev_workspace;
    table->syev = syev;
    table->chol_inverse = chol_inverse;
    table->syev_careful = syev_careful;
    table->syev_batch_workspace = syev_batch_workspace;
    table->syev_batch = syev_batch;
    table->chol_inverse_batch = chol_inverse_batch;
}
