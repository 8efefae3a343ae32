/* The refresh of eigenbases: as many items a call of the kernels as it takes and as scratch memory holds. */
#include "device/cuda/entries.h"
#include "device/cuda/refresh_kernels.h"
#include "device/cuda/state.h"

/* ---- rotations ---- */

enum { MOST_COLUMNS = DSC_CUDA_SCRATCH / (sizeof(double) + sizeof(int32_t)) };

static dsc_rotation rotation_of(const dsc_cuda_launch *at, const dsc_rotation_item *item, int64_t used) {
    double *values = at->scratch;
    return (dsc_rotation){.b = item->b.data,
                          .q = item->q.data,
                          .y = item->y.data,
                          .x = item->x.data,
                          .z = item->z.data,
                          .values = values + used,
                          .order = (int32_t *)(values + MOST_COLUMNS) + used,
                          .delta = item->delta,
                          .n = (int32_t)item->q.dim[0],
                          .k = (int32_t)item->q.dim[1]};
}

dsc_status dsc_cuda_rotation_batch(dsc_queue *q, const dsc_rotation_item *items, int64_t count) {
    const dsc_cuda_launch *at = dsc_cuda_at(q);
    dsc_rotation part[DSC_REFRESH_ITEMS];
    for (int64_t done = 0; done < count;) {
        int64_t used = 0;
        int n = 0;
        while (n < DSC_REFRESH_ITEMS && done + n < count && used + items[done + n].q.dim[1] <= MOST_COLUMNS) {
            part[n] = rotation_of(at, &items[done + n], used);
            used += part[n++].k;
        }
        if (n == 0)
            return DSC_FAIL(DSC_E_UNSUPPORTED, "rotation_batch: a basis of %lld columns; %d are possible",
                            (long long)items[done].q.dim[1], (int)MOST_COLUMNS);
        DSC_CUDA_TRY(dsc_cuda_launch_rotations(at, items[0].q.dtype == DSC_F64, part, n));
        done += n;
    }
    return DSC_OK;
}

/* ---- Rayleigh quotients ---- */

enum { LEAST_ROWS = 256, MOST_SUMS = DSC_CUDA_SCRATCH / sizeof(double) };

/* Scratch numbers of an item in parts of this many rows. */
static int64_t sums_of(const dsc_rayleigh *r) {
    return ((int64_t)r->n + r->rows - 1) / r->rows * r->k * 3;
}

/* Parts of 256 rows, or of more where their sums would not fit. */
static dsc_rayleigh rayleigh_of(const dsc_rayleigh_item *item) {
    dsc_rayleigh r = {.a = item->a.data,
                      .q = item->q.data,
                      .y = item->y.data,
                      .v = item->v.data,
                      .result = item->result.data,
                      .delta = item->delta,
                      .n = (int32_t)item->q.dim[0],
                      .k = (int32_t)item->q.dim[1],
                      .rows = LEAST_ROWS};
    while (r.rows < r.n && sums_of(&r) > MOST_SUMS)
        r.rows *= 2;
    return r;
}

dsc_status dsc_cuda_rayleigh_batch(dsc_queue *q, const dsc_rayleigh_item *items, int64_t count) {
    const dsc_cuda_launch *at = dsc_cuda_at(q);
    dsc_rayleigh part[DSC_REFRESH_ITEMS];
    for (int64_t done = 0; done < count;) {
        int64_t used = 0;
        int n = 0;
        while (n < DSC_REFRESH_ITEMS && done + n < count) {
            part[n] = rayleigh_of(&items[done + n]);
            part[n].sums = (double *)at->scratch + used;
            used += sums_of(&part[n]);
            if (used > MOST_SUMS)
                break;
            n++;
        }
        if (n == 0)
            return DSC_FAIL(DSC_E_UNSUPPORTED, "rayleigh_batch: a basis of %lld columns; %d are possible",
                            (long long)items[done].q.dim[1], (int)(MOST_SUMS / 3));
        DSC_CUDA_TRY(dsc_cuda_launch_rayleighs(at, items[0].q.dtype == DSC_F64, part, n));
        done += n;
    }
    return DSC_OK;
}

/* ---- orthonormal columns ----
 *
 * Right-looking Cholesky of H with the rows of Z below it: what turns the columns of H into those of R' turns
 * Z into Z R^-1. Panels of DSC_PANEL columns are finished one after the other; within a wide panel each
 * reduces only the columns of that one, and the wide panel as a whole reduces the columns behind it, so that
 * these are read and written less often. All items go through a step together. */

enum { WIDE_PANEL = 4 * DSC_PANEL, PANEL_ELEMENTS = DSC_PANEL * DSC_PANEL, MOST_BASES = 256 };

static dsc_orthonormal orthonormal_of(const dsc_cuda_launch *at, const dsc_orthonormal_item *item, int i) {
    int wide = item->z.dtype == DSC_F64;
    size_t place = (size_t)i * PANEL_ELEMENTS * (wide ? sizeof(double) : sizeof(float));
    size_t flags = MOST_BASES * PANEL_ELEMENTS * sizeof(double);
    return (dsc_orthonormal){.h = item->h.data,
                             .z = item->z.data,
                             .inverse = (char *)at->scratch + place,
                             .failed = (int *)((char *)at->scratch + flags) + i,
                             .n = (int32_t)item->z.dim[0],
                             .k = (int32_t)item->z.dim[1]};
}

static dsc_status make_orthonormal(const dsc_cuda_launch *at, int wide, const dsc_orthonormal *items,
                                   int count) {
    int32_t most = 0;
    for (int i = 0; i < count; i++)
        most = items[i].k > most ? items[i].k : most;
    for (int32_t begin = 0; begin < most; begin += WIDE_PANEL) {
        int32_t end = most - begin > WIDE_PANEL ? begin + WIDE_PANEL : most;
        for (int32_t at_column = begin; at_column < end; at_column += DSC_PANEL) {
            int32_t next = at_column + DSC_PANEL;
            DSC_CUDA_TRY(dsc_cuda_launch_panels(at, wide, items, count, at_column));
            if (next < end)
                DSC_CUDA_TRY(dsc_cuda_launch_reductions(at, wide, items, count,
                                                        (dsc_column_range){at_column, next},
                                                        (dsc_column_range){next, end}));
        }
        if (end < most)
            DSC_CUDA_TRY(dsc_cuda_launch_reductions(at, wide, items, count, (dsc_column_range){begin, end},
                                                    (dsc_column_range){end, most}));
    }
    return DSC_OK;
}

dsc_status dsc_cuda_orthonormal_batch(dsc_queue *q, dsc_orthonormal_item *items, int64_t count) {
    const dsc_cuda_launch *at = dsc_cuda_at(q);
    dsc_orthonormal part[MOST_BASES];
    int failed[MOST_BASES];
    DSC_TRY(dsc_cuda_refuse_recording(q, "orthonormal_batch"));
    for (int64_t done = 0; done < count;) {
        int n = 0;
        for (; n < MOST_BASES && done + n < count; n++)
            part[n] = orthonormal_of(at, &items[done + n], n);
        DSC_CUDA_TRY(cudaMemsetAsync(part[0].failed, 0, (size_t)n * sizeof *failed, at->stream));
        DSC_TRY(make_orthonormal(at, items[0].z.dtype == DSC_F64, part, n));
        DSC_CUDA_TRY(cudaMemcpyAsync(failed, part[0].failed, (size_t)n * sizeof *failed,
                                     cudaMemcpyDeviceToHost, at->stream));
        DSC_CUDA_TRY(cudaStreamSynchronize(at->stream));
        for (int i = 0; i < n; i++)
            items[done + i].failed = failed[i];
        done += n;
    }
    return DSC_OK;
}
