/* Matrix products of the cpu device, by oneDNN, OpenBLAS or our own kernels. */
#include "device/cpu/gemm.h"

#include "base/error.h"

#include <cblas.h>
#include <limits.h>

dsc_cpu_gemm dsc_cpu_product(const int trans[2], double alpha, const dsc_tensor *a, const dsc_tensor *b,
                             double beta, const dsc_tensor *c) {
    return (dsc_cpu_gemm){.m = c->dim[0],
                          .n = c->dim[1],
                          .k = a->dim[trans[0] ? 0 : 1],
                          .a = a->data,
                          .b = b->data,
                          .a_row = trans[0] ? 1 : a->dim[1],
                          .a_column = trans[0] ? a->dim[1] : 1,
                          .b_row = trans[1] ? 1 : b->dim[1],
                          .b_column = trans[1] ? b->dim[1] : 1,
                          .c = c->data,
                          .c_row = c->dim[1],
                          .alpha = (float)alpha,
                          .beta = (float)beta};
}

dsc_status dsc_cpu_product_check(const dsc_cpu *cpu, const char *op, const dsc_cpu_gemm *g) {
    int64_t largest = g->m > g->n ? g->m : g->n;
    if (g->k > largest)
        largest = g->k;
    if (largest > INT_MAX && cpu->blas && !cpu->onednn)
        return DSC_FAIL(DSC_E_UNSUPPORTED, "%s: a dimension of %lld; this BLAS counts to %d", op,
                        (long long)largest, INT_MAX);
    return DSC_OK;
}

/* A leading dimension only matters if there is a second row, but BLAS always wants a plausible one. */
static int leading(int64_t stride, int64_t least) {
    return (int)(stride > least ? stride : least);
}

static void blas_gemm(const dsc_cpu_gemm *g) {
    int trans_a = g->a_column != 1, trans_b = g->b_column != 1;
    int lda = trans_a ? leading(g->a_column, g->m) : leading(g->a_row, g->k);
    int ldb = trans_b ? leading(g->b_column, g->k) : leading(g->b_row, g->n);
    cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans, trans_b ? CblasTrans : CblasNoTrans,
                (int)g->m, (int)g->n, (int)g->k, g->alpha, g->a, lda, g->b, ldb, g->beta, g->c,
                (int)g->c_row);
}

dsc_status dsc_cpu_multiply(const dsc_cpu *cpu, const dsc_cpu_gemm *g) {
#ifdef DSC_HAVE_ONEDNN
    if (cpu->onednn)
        return dsc_onednn_gemm(g);
#endif
    if (cpu->blas)
        blas_gemm(g);
    else
        dsc_own_gemm_one(cpu->kernels, g);
    return DSC_OK;
}

/* C is divided into a grid of rows x columns parts. */
typedef struct grid {
    int rows, columns;
} grid;

/* The grid of at most `parts` parts in which a part takes the least time. Besides its multiplications, a thread copies
 * its share of A and B into OpenBLAS's layout; copying an element costs about as much as 16 multiplications. */
static grid best_grid(const dsc_cpu_gemm *g, int parts) {
    enum { COPY_COST = 16 };
    grid best = {1, 1};
    int64_t least = INT64_MAX;
    for (int i = 1; i <= parts; i++) {
        int j = parts / i;
        int64_t rows = (g->m + i - 1) / i, columns = (g->n + j - 1) / j;
        int64_t cost = rows * columns + COPY_COST * (rows + columns);
        if (cost < least) {
            least = cost;
            best = (grid){i, j};
        }
    }
    return best;
}

/* A product by OpenBLAS on the device's threads: each thread calls it for a part of C. */
static void shared_blas_gemm(const dsc_device *device, const dsc_cpu_gemm *g) {
    enum { ROW_UNIT = 8, COLUMN_UNIT = 32 }; /* whole tiles of OpenBLAS's kernels */
    grid cut = best_grid(g, dsc_cpu_parts(device, g->m * g->n * g->k / 8));
    int parts = cut.rows * cut.columns;
    dsc_cpu_threads before = dsc_cpu_use_threads(1);
    if (parts == 1) {
        blas_gemm(g);
    } else {
#pragma omp parallel for num_threads(parts) schedule(static, 1)
        for (int p = 0; p < parts; p++) {
            dsc_cpu_range rows = dsc_cpu_share(g->m, ROW_UNIT, cut.rows, p / cut.columns);
            dsc_cpu_range columns = dsc_cpu_share(g->n, COLUMN_UNIT, cut.columns, p % cut.columns);
            dsc_cpu_gemm part = *g;
            part.m = rows.count;
            part.n = columns.count;
            part.a += rows.first * g->a_row;
            part.b += columns.first * g->b_column;
            part.c += rows.first * g->c_row + columns.first;
            if (part.m > 0 && part.n > 0)
                blas_gemm(&part);
        }
    }
    dsc_cpu_leave_threads(before);
}

static dsc_status gemm(dsc_queue *q, int trans_a, int trans_b, double alpha, const dsc_tensor *a,
                       const dsc_tensor *b, double beta, dsc_tensor *c) {
    const dsc_cpu *cpu = dsc_cpu_of(q);
    dsc_cpu_gemm call = dsc_cpu_product((const int[]){trans_a, trans_b}, alpha, a, b, beta, c);
    DSC_TRY(dsc_cpu_product_check(cpu, "gemm", &call));
    if (cpu->onednn) {
        dsc_cpu_threads before = dsc_cpu_use_threads(q->device->threads);
        dsc_status status = dsc_cpu_multiply(cpu, &call);
        dsc_cpu_leave_threads(before);
        return status;
    }
    if (cpu->blas)
        shared_blas_gemm(q->device, &call);
    else
        dsc_own_gemm(q->device, &call);
    return DSC_OK;
}

/* Uses our own kernels, which skip the upper triangle. */
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
    for (int64_t i = 0; i < n; i++) /* an empty sum: only beta C is left */
        dsc_cpu_kernels_of(q)->axpby(i + 1, (float)beta, to + i * n, 0, to + i * n);
    return DSC_OK;
}

void dsc_cpu_table_linalg(dsc_device_table *table) {
    table->gemm = gemm;
    table->syrk = syrk;
}
