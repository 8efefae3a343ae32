/* Dense linear algebra of the cpu device: products by oneDNN, OpenBLAS or our own kernels, decompositions by
 * LAPACK.
 *
 * LAPACK is column-major: a row-major matrix is its own transpose there, so the lower triangle is named
 * upper, and eigenvectors come back as rows. */
#include "device/cpu/gemm.h"

#include "base/error.h"

#include <cblas.h>
#include <lapacke.h>
#include <limits.h>
#include <string.h>

/* Side of the square tiles in which matrices are transposed and packed. */
enum { TILE = 32 };

static dsc_status check_int(const char *op, int64_t a, int64_t b, int64_t c) {
    int64_t largest = a > b ? a : b;
    if (c > largest)
        largest = c;
    if (largest > INT_MAX)
        return DSC_FAIL(DSC_E_UNSUPPORTED, "%s: a dimension of %lld; this BLAS counts to %d", op,
                        (long long)largest, INT_MAX);
    return DSC_OK;
}

static dsc_status gemm(dsc_queue *q, int trans_a, int trans_b, double alpha, const dsc_tensor *a,
                       const dsc_tensor *b, double beta, dsc_tensor *c) {
    int64_t m = c->dim[0], n = c->dim[1], k = a->dim[trans_a ? 0 : 1];
    dsc_cpu_gemm call = {.m = m,
                         .n = n,
                         .k = k,
                         .a = a->data,
                         .b = b->data,
                         .a_row = trans_a ? 1 : a->dim[1],
                         .a_column = trans_a ? a->dim[1] : 1,
                         .b_row = trans_b ? 1 : b->dim[1],
                         .b_column = trans_b ? b->dim[1] : 1,
                         .c = c->data,
                         .c_row = n,
                         .alpha = (float)alpha,
                         .beta = (float)beta};
    dsc_cpu_use_threads(q->device);
#ifdef DSC_HAVE_ONEDNN
    if (dsc_cpu_of(q)->onednn)
        return dsc_onednn_gemm(&call);
#endif
    if (!dsc_cpu_of(q)->blas) {
        dsc_own_gemm(q->device, &call);
        return DSC_OK;
    }
    DSC_TRY(check_int("gemm", m, n, k));
    cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans, trans_b ? CblasTrans : CblasNoTrans,
                (int)m, (int)n, (int)k, (float)alpha, a->data, (int)a->dim[1], b->data, (int)b->dim[1],
                (float)beta, c->data, (int)n);
    return DSC_OK;
}

/* Our own kernels, which skip the upper triangle. */
static dsc_status syrk(dsc_queue *q, double alpha, const dsc_tensor *a, double beta, dsc_tensor *c) {
    int64_t m = a->dim[0], n = a->dim[1];
    float *to = c->data;
    dsc_cpu_gemm call = {.m = n,
                         .n = n,
                         .k = m,
                         .a = a->data,
                         .b = a->data,
                         .a_row = 1,
                         .a_column = n,
                         .b_row = n,
                         .b_column = 1,
                         .c = to,
                         .c_row = n,
                         .alpha = (float)alpha,
                         .beta = (float)beta,
                         .lower = 1};
    if (m > 0) {
        dsc_own_gemm(q->device, &call);
        return DSC_OK;
    }
    for (int64_t i = 0; i < n; i++) /* a sum of nothing: only beta C is left */
        dsc_cpu_kernels_of(q)->axpby(i + 1, (float)beta, to + i * n, 0, to + i * n);
    return DSC_OK;
}

/* ---- triangles ---- */

/* Rows [i0, i1) of the upper triangle from the lower one, tile by tile. */
static void mirror_tile(int64_t n, int64_t i0, int64_t j0, float *a) {
    int64_t i1 = i0 + TILE < n ? i0 + TILE : n, j1 = j0 + TILE < n ? j0 + TILE : n;
    for (int64_t i = i0; i < i1; i++)
        for (int64_t j = j0 > i ? j0 : i + 1; j < j1; j++)
            a[i * n + j] = a[j * n + i];
}

static void mirror(const dsc_device *device, int64_t n, float *a) {
    int parts = dsc_cpu_parts(device, n * n);
    int64_t tiles = (n + TILE - 1) / TILE;
#pragma omp parallel for num_threads(parts) schedule(static, 1) if (parts > 1)
    for (int64_t t = 0; t < tiles; t++)
        for (int64_t u = t; u < tiles; u++)
            mirror_tile(n, t * TILE, u * TILE, a);
}

static dsc_status symmetrize(dsc_queue *q, dsc_tensor *a) {
    mirror(q->device, a->dim[0], a->data);
    return DSC_OK;
}

static dsc_status tri_pack(dsc_queue *q, const dsc_tensor *a, dsc_tensor *p) {
    int64_t n = a->dim[0];
    int parts = dsc_cpu_parts(q->device, n * n);
    const float *from = a->data;
    float *to = p->data;
#pragma omp parallel for num_threads(parts) schedule(static, 16) if (parts > 1)
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * (i + 1) / 2, from + i * n, (size_t)(i + 1) * sizeof *to);
    return DSC_OK;
}

static dsc_status tri_unpack(dsc_queue *q, const dsc_tensor *p, dsc_tensor *a) {
    int64_t n = a->dim[0];
    int parts = dsc_cpu_parts(q->device, n * n);
    const float *from = p->data;
    float *to = a->data;
#pragma omp parallel for num_threads(parts) schedule(static, 16) if (parts > 1)
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * n, from + i * (i + 1) / 2, (size_t)(i + 1) * sizeof *to);
    mirror(q->device, n, to);
    return DSC_OK;
}

/* ---- decompositions ---- */

static dsc_status check_finite(const dsc_queue *q, const char *op, int64_t n, const float *a) {
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++)
        bad += k->nonfinite(i + 1, a + i * n);
    if (bad > 0)
        return DSC_FAIL(DSC_E_NUMERIC,
                        "%s: %lld elements of the lower triangle of A[%lld,%lld] are not finite", op,
                        (long long)bad, (long long)n, (long long)n);
    return DSC_OK;
}

static void swap_tiles(int64_t n, int64_t i0, int64_t j0, float *a) {
    int64_t i1 = i0 + TILE < n ? i0 + TILE : n, j1 = j0 + TILE < n ? j0 + TILE : n;
    for (int64_t i = i0; i < i1; i++) {
        for (int64_t j = j0 > i ? j0 : i + 1; j < j1; j++) {
            float kept = a[i * n + j];
            a[i * n + j] = a[j * n + i];
            a[j * n + i] = kept;
        }
    }
}

static void transpose(const dsc_device *device, int64_t n, float *a) {
    int parts = dsc_cpu_parts(device, n * n);
    int64_t tiles = (n + TILE - 1) / TILE;
#pragma omp parallel for num_threads(parts) schedule(static, 1) if (parts > 1)
    for (int64_t t = 0; t < tiles; t++)
        for (int64_t u = t; u < tiles; u++)
            swap_tiles(n, t * TILE, u * TILE, a);
}

/* What ssyevd documents for eigenvectors, and room for the best block size of the reduction to tridiagonal
 * form. */
static int64_t syev_floats(int64_t n) {
    return 1 + 6 * n + 2 * n * n + 64 * n;
}

static int64_t syev_ints(int64_t n) {
    return 3 + 5 * n;
}

static size_t syev_workspace(dsc_device *device, dsc_dtype dtype, int64_t n) {
    if (dtype != DSC_F32)
        return dsc_ref_table.syev_workspace(device, dtype, n);
    return (size_t)syev_floats(n) * sizeof(float) + (size_t)syev_ints(n) * sizeof(lapack_int);
}

static dsc_status syev(dsc_queue *q, dsc_tensor *a, dsc_tensor *work, dsc_tensor *v) {
    int64_t n = a->dim[0], floats = syev_floats(n);
    DSC_TRY(check_int("syev", floats, 0, 0));
    DSC_TRY(check_finite(q, "syev", n, a->data));
    dsc_cpu_use_threads(q->device);
    float *space = work->data;
    lapack_int info =
        LAPACKE_ssyevd_work(LAPACK_COL_MAJOR, 'V', 'U', (lapack_int)n, a->data, (lapack_int)n, v->data, space,
                            (lapack_int)floats, (lapack_int *)(space + floats), (lapack_int)syev_ints(n));
    if (info < 0)
        return DSC_FAIL(DSC_E_INTERNAL, "syev: argument %d of ssyevd is wrong", (int)-info);
    if (info > 0)
        return DSC_FAIL(DSC_E_NUMERIC, "syev: ssyevd did not converge on A[%lld,%lld] (info %d)",
                        (long long)n, (long long)n, (int)info);
    transpose(q->device, n, a->data);
    return DSC_OK;
}

static dsc_status chol_inverse(dsc_queue *q, dsc_tensor *a) {
    int64_t n = a->dim[0];
    DSC_TRY(check_int("chol_inverse", n, 0, 0));
    DSC_TRY(check_finite(q, "chol_inverse", n, a->data));
    dsc_cpu_use_threads(q->device);
    lapack_int info = LAPACKE_spotrf_work(LAPACK_COL_MAJOR, 'U', (lapack_int)n, a->data, (lapack_int)n);
    if (info == 0)
        info = LAPACKE_spotri_work(LAPACK_COL_MAJOR, 'U', (lapack_int)n, a->data, (lapack_int)n);
    if (info < 0)
        return DSC_FAIL(DSC_E_INTERNAL, "chol_inverse: argument %d of LAPACK is wrong", (int)-info);
    if (info > 0)
        return DSC_FAIL(DSC_E_NUMERIC,
                        "chol_inverse: A[%lld,%lld] is not positive definite (pivot %d); add damping",
                        (long long)n, (long long)n, (int)info);
    mirror(q->device, n, a->data);
    return DSC_OK;
}

void dsc_cpu_table_linalg(dsc_device_table *table) {
    table->gemm = gemm;
    table->syrk = syrk;
    table->symmetrize = symmetrize;
    table->tri_pack = tri_pack;
    table->tri_unpack = tri_unpack;
    table->syev_workspace = syev_workspace;
    table->syev = syev;
    table->chol_inverse = chol_inverse;
}
