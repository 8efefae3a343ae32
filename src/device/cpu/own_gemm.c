/* Our own matrix product: the distribution of panels of columns over threads. Results do not depend on the number
 * of threads. */
#include "device/cpu/gemm.h"

/* The rows and columns that one thread computes. If only the lower triangle is needed, a panel's rows start at the
 * diagonal. */
typedef struct share {
    int64_t i0, i1, j0, step; /* rows [i0, i1); panels from column j0 on, `step` columns apart */
} share;

static void multiply_share(const dsc_cpu_kernels *k, const dsc_cpu_gemm *g, const share *s) {
    for (int64_t p = 0; p < g->k; p += k->gemm_depth)
        for (int64_t j = s->j0; j < g->n; j += s->step)
            k->gemm_panel(g, p, g->lower && j > s->i0 ? j : s->i0, s->i1, j);
}

void dsc_own_gemm_one(const dsc_cpu_kernels *k, const dsc_cpu_gemm *g) {
    share all = {0, g->m, 0, k->gemm_columns};
    multiply_share(k, g, &all);
}

/* Threads take whole panels in turn if there are enough for all of them, else a range of rows each. */
void dsc_own_gemm(const dsc_device *device, const dsc_cpu_gemm *g) {
    const dsc_cpu_kernels *k = ((const dsc_cpu *)device->state)->kernels;
    int64_t panels = (g->n + k->gemm_columns - 1) / k->gemm_columns;
    int parts = dsc_cpu_parts(device, g->m * g->n * g->k / 16);
    int by_panel = g->lower || panels >= 2 * parts;
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++) {
        dsc_cpu_range rows = dsc_cpu_share(g->m, 12, parts, p);
        share by_rows = {rows.first, rows.first + rows.count, 0, k->gemm_columns};
        share by_panels = {0, g->m, p * k->gemm_columns, parts * k->gemm_columns};
        multiply_share(k, g, by_panel ? &by_panels : &by_rows);
    }
}
