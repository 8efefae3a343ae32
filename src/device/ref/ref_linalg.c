/* Reference: dense linear algebra on row-major matrices. */
#include "base/error.h"
#include "base/memory.h"
#include "device/ref/element.h"
#include "device/ref/ref.h"

#include <float.h>
#include <math.h>

dsc_status dsc_ref_gemm(dsc_queue *q, int trans_a, int trans_b, double alpha, const dsc_tensor *a,
                        const dsc_tensor *b, double beta, dsc_tensor *c) {
    (void)q;
    int64_t terms = a->dim[trans_a ? 0 : 1];
    for (int64_t i = 0; i < c->dim[0]; i++) {
        for (int64_t j = 0; j < c->dim[1]; j++) {
            double sum = 0;
            for (int64_t l = 0; l < terms; l++)
                sum += get(a, trans_a ? at2(a, l, i) : at2(a, i, l)) *
                       get(b, trans_b ? at2(b, j, l) : at2(b, l, j));
            update(c, at2(c, i, j), beta, alpha * sum);
        }
    }
    return DSC_OK;
}

dsc_status dsc_ref_syrk(dsc_queue *q, double alpha, const dsc_tensor *a, double beta, dsc_tensor *c) {
    (void)q;
    for (int64_t i = 0; i < c->dim[0]; i++) {
        for (int64_t j = 0; j <= i; j++) {
            double sum = 0;
            for (int64_t l = 0; l < a->dim[0]; l++)
                sum += get(a, at2(a, l, i)) * get(a, at2(a, l, j));
            update(c, at2(c, i, j), beta, alpha * sum);
        }
    }
    return DSC_OK;
}

dsc_status dsc_ref_symmetrize(dsc_queue *q, dsc_tensor *a) {
    (void)q;
    for (int64_t i = 0; i < a->dim[0]; i++)
        for (int64_t j = 0; j < i; j++)
            set(a, at2(a, j, i), get(a, at2(a, i, j)));
    return DSC_OK;
}

dsc_status dsc_ref_tri_pack(dsc_queue *q, const dsc_tensor *a, dsc_tensor *p) {
    (void)q;
    for (int64_t i = 0; i < a->dim[0]; i++)
        for (int64_t j = 0; j <= i; j++)
            set(p, i * (i + 1) / 2 + j, get(a, at2(a, i, j)));
    return DSC_OK;
}

dsc_status dsc_ref_tri_unpack(dsc_queue *q, const dsc_tensor *p, dsc_tensor *a) {
    (void)q;
    for (int64_t i = 0; i < a->dim[0]; i++) {
        for (int64_t j = 0; j <= i; j++) {
            double value = get(p, i * (i + 1) / 2 + j);
            set(a, at2(a, i, j), value);
            set(a, at2(a, j, i), value);
        }
    }
    return DSC_OK;
}

/* ---- symmetric eigenproblems: cyclic Jacobi ----
 *
 * Each rotation J in the plane (p, r) zeroes s[p][r] of S <- J' S J and rotates the basis, Q <- Q J. The
 * off-diagonal part shrinks with every sweep over all planes, quadratically in the end. */

enum { MAX_SWEEPS = 60 };

/* Columns p and r of the n x n matrix m become (c mp - s mr, s mp + c mr). */
static void rotate_columns(double *m, int64_t n, int64_t p, int64_t r, double c, double s) {
    for (int64_t i = 0; i < n; i++) {
        double mp = m[i * n + p], mr = m[i * n + r];
        m[i * n + p] = c * mp - s * mr;
        m[i * n + r] = s * mp + c * mr;
    }
}

static void rotate_rows(double *m, int64_t n, int64_t p, int64_t r, double c, double s) {
    for (int64_t j = 0; j < n; j++) {
        double mp = m[p * n + j], mr = m[r * n + j];
        m[p * n + j] = c * mp - s * mr;
        m[r * n + j] = s * mp + c * mr;
    }
}

/* Zeroes s[p][r], by the smaller of the two possible rotation angles. */
static void annihilate(double *s, double *basis, int64_t n, int64_t p, int64_t r) {
    double off = s[p * n + r];
    double theta = (s[r * n + r] - s[p * n + p]) / (2 * off);
    double tangent = copysign(1, theta) / (fabs(theta) + hypot(theta, 1));
    double cosine = 1 / hypot(tangent, 1), sine = tangent * cosine;
    rotate_columns(s, n, p, r, cosine, sine);
    rotate_rows(s, n, p, r, cosine, sine);
    s[p * n + r] = s[r * n + p] = 0;
    rotate_columns(basis, n, p, r, cosine, sine);
}

/* Sweeps until everything off the diagonal is negligible compared to the norm of the matrix. */
static dsc_status jacobi(double *s, double *basis, int64_t n, double norm) {
    double negligible = norm * DBL_EPSILON / (double)(8 * n);
    for (int sweep = 0; sweep < MAX_SWEEPS; sweep++) {
        int rotations = 0;
        for (int64_t p = 0; p < n; p++) {
            for (int64_t r = p + 1; r < n; r++) {
                if (fabs(s[p * n + r]) <= negligible)
                    continue;
                annihilate(s, basis, n, p, r);
                rotations++;
            }
        }
        if (rotations == 0)
            return DSC_OK;
    }
    return DSC_FAIL(DSC_E_NUMERIC, "syev: no convergence within %d sweeps (n = %lld)", MAX_SWEEPS,
                    (long long)n);
}

/* Sorts the eigenvalues in ascending order, by selection, and the columns of the basis with them. */
static void sort_pairs(double *s, double *basis, int64_t n) {
    for (int64_t k = 0; k < n; k++) {
        int64_t least = k;
        for (int64_t i = k + 1; i < n; i++)
            if (s[i * n + i] < s[least * n + least])
                least = i;
        double value = s[least * n + least];
        s[least * n + least] = s[k * n + k];
        s[k * n + k] = value;
        for (int64_t i = 0; i < n; i++) {
            double entry = basis[i * n + least];
            basis[i * n + least] = basis[i * n + k];
            basis[i * n + k] = entry;
        }
    }
}

size_t dsc_ref_syev_workspace(dsc_device *device, dsc_dtype dtype, int64_t n) {
    (void)device;
    (void)dtype;
    return 2 * sizeof(double) * (size_t)n * (size_t)n; /* the matrix and its basis */
}

dsc_status dsc_ref_syev(dsc_queue *q, dsc_tensor *a, dsc_tensor *work, dsc_tensor *v) {
    (void)q;
    int64_t n = a->dim[0];
    double *s = work->data, *basis = s + n * n;
    double largest = 0;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j <= i; j++) {
            double value = get(a, at2(a, i, j));
            if (!isfinite(value))
                return DSC_FAIL(DSC_E_NUMERIC, "syev: element (%lld,%lld) of the %lld x %lld matrix is %g",
                                (long long)i, (long long)j, (long long)n, (long long)n, value);
            s[i * n + j] = s[j * n + i] = value;
            basis[i * n + j] = basis[j * n + i] = i == j;
            largest = fmax(largest, fabs(value));
        }
    }
    /* Scales by a power of two, so that squares neither overflow nor underflow. */
    int exponent = 0;
    (void)frexp(largest, &exponent);
    double squares = 0;
    for (int64_t i = 0; i < n * n; i++) {
        s[i] = ldexp(s[i], -exponent);
        squares += s[i] * s[i];
    }
    DSC_TRY(jacobi(s, basis, n, sqrt(squares)));
    sort_pairs(s, basis, n);
    for (int64_t i = 0; i < n; i++)
        set(v, i, ldexp(s[i * n + i], exponent));
    for (int64_t i = 0; i < n * n; i++)
        set(a, i, basis[i]);
    return DSC_OK;
}

/* The same as dsc_ref_syev: ref's only algorithm is careful enough. */
dsc_status dsc_ref_syev_careful(dsc_queue *q, dsc_tensor *a, dsc_tensor *v) {
    int64_t bytes = (int64_t)dsc_ref_syev_workspace(q->device, a->dtype, a->dim[0]);
    void *space;
    DSC_TRY(dsc_memory_alloc(bytes, 1, &space));
    dsc_tensor work = dsc_tensor_view(q->device, space, DSC_U8, 1, &bytes);
    dsc_status status = dsc_ref_syev(q, a, &work, v);
    dsc_memory_free(&space);
    return status;
}

dsc_status dsc_ref_add_diagonal(dsc_queue *q, const dsc_tensor *value, dsc_tensor *a) {
    (void)q;
    for (int64_t i = 0; i < a->dim[0]; i++)
        update(a, at2(a, i, i), 1, get(value, 0));
    return DSC_OK;
}

/* ---- inverse by Cholesky, A = L L', in the lower triangle ---- */

static dsc_status factorise(dsc_tensor *a) {
    int64_t n = a->dim[0];
    for (int64_t j = 0; j < n; j++) {
        for (int64_t i = j; i < n; i++) {
            double sum = get(a, at2(a, i, j));
            for (int64_t l = 0; l < j; l++)
                sum -= get(a, at2(a, i, l)) * get(a, at2(a, j, l));
            if (i > j)
                sum /= get(a, at2(a, j, j));
            else if (sum > 0 && isfinite(sum))
                sum = sqrt(sum);
            else
                return DSC_FAIL(
                    DSC_E_NUMERIC,
                    "chol_inverse: the %lld x %lld matrix is not positive definite (pivot %lld is "
                    "%g)",
                    (long long)n, (long long)n, (long long)j, sum);
            set(a, at2(a, i, j), sum);
        }
    }
    return DSC_OK;
}

/* Replaces L by L^-1: solves L X = I column by column. */
static void invert_lower(dsc_tensor *a) {
    int64_t n = a->dim[0];
    for (int64_t j = 0; j < n; j++) {
        set(a, at2(a, j, j), 1 / get(a, at2(a, j, j)));
        for (int64_t i = j + 1; i < n; i++) {
            double sum = 0;
            for (int64_t l = j; l < i; l++)
                sum -= get(a, at2(a, i, l)) * get(a, at2(a, l, j));
            set(a, at2(a, i, j), sum / get(a, at2(a, i, i)));
        }
    }
}

dsc_status dsc_ref_chol_inverse(dsc_queue *q, dsc_tensor *a) {
    int64_t n = a->dim[0];
    DSC_TRY(factorise(a));
    invert_lower(a);
    /* A^-1 = L^-T L^-1: element (i, j) reads rows from i on, and (i, i), which all of row i reads, is written last. */
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j <= i; j++) {
            double sum = 0;
            for (int64_t l = i; l < n; l++)
                sum += get(a, at2(a, l, i)) * get(a, at2(a, l, j));
            set(a, at2(a, i, j), sum);
        }
    }
    return dsc_ref_symmetrize(q, a);
}
