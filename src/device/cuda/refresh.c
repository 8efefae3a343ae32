/* The refresh of eigenbases. A call of the kernels gets as many items as it takes and as scratch memory can serve. */
#include "device/cuda/entries.h"
#include "device/cuda/refresh_kernels.h"
#include "device/cuda/state.h"

/* ---- rotations ---- */

enum { MOST_COLUMNS = DSC_CUDA_SCRATCH / (sizeof(double) + sizeof(int32_t)) };

static dsc_rotation rotation_of(const dsc_cuda_launch *at, const dsc_rotation_item *item, int64_t used) {
    double *values = at->scratch;
    int32_t *orders = (void *)((char *)at->scratch + MOST_COLUMNS * sizeof(double));
    return (dsc_rotation){.b = item->b.data,
                          .q = item->q.data,
                          .y = item->y.data,
                          .x = item->x.data,
                          .z = item->z.data,
                          .values = values + used,
                          .order = orders + used,
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

/* Returns the scratch numbers of an item whose parts have r->rows rows. */
static int64_t sums_of(const dsc_rayleigh *r) {
    return ((int64_t)r->n + r->rows - 1) / r->rows * r->k * 3;
}

/* Describes an item in parts of 256 rows, or of more if their sums would not fit. */
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
