/* Cholesky factorisations of many matrices at once, H = L L': orthonormal columns Z L^-T, and inverses.
 *
 * Right-looking elimination of H with the rows of Z below it: what turns the columns of H into those of L turns Z
 * into Z L^-T. Panels of DSC_PANEL columns are finished one after the other. A panel reduces only the other columns
 * of its wide panel; the wide panel as a whole reduces the columns to its right, so that these are read and written
 * less often. All items go through each step together. For an inverse, Z is the identity, and A^-1 = L^-T L^-1. */
#include "device/cuda/cholesky_kernels.h"
#include "device/cuda/entries.h"
#include "device/cuda/halves.h"
#include "device/cuda/state.h"

enum { WIDE_PANEL = 4 * DSC_PANEL, PANEL_ELEMENTS = DSC_PANEL * DSC_PANEL, MOST = 256 };
/* From FAST_COLUMNS columns on, cuBLAS computes the products of wide panels. It reduces FAST_BLOCK columns of H at a
 * time: what it computes above the diagonal is not used. */
enum { FAST_COLUMNS = 640, FAST_BLOCK = 1024 };

/* The part of a batch that is worked on at the same time. */
typedef struct part {
    dsc_queue *q;
    dsc_cuda_launch at;
    int wide, count;
    dsc_cholesky items[MOST];
    int fast[MOST]; /* 1: cuBLAS reduces by wide panels, in TF32 */
    int failed[MOST];
} part;

static void start(part *p, dsc_queue *q, const dsc_tensor *first) {
    p->q = q;
    p->at = *dsc_cuda_at(q);
    p->wide = first->dtype == DSC_F64;
    p->count = 0;
}

/* Adds an item; z: NULL for an inverse. Scratch memory holds the inverses of the triangles, then the `failed` flags. */
static void add(part *p, const dsc_tensor *h, const dsc_tensor *z) {
    int i = p->count++;
    p->fast[i] = 0;
    size_t size = p->wide ? sizeof(double) : sizeof(float);
    char *inverses = p->at.scratch;
    p->items[i] = (dsc_cholesky){.h = h->data,
                                 .z = z ? z->data : NULL,
                                 .inverse = inverses + (size_t)i * PANEL_ELEMENTS * size,
                                 .failed = (int *)(inverses + (size_t)MOST * PANEL_ELEMENTS * size) + i,
                                 .n = z ? (int32_t)z->dim[0] : 0,
                                 .k = (int32_t)h->dim[0]};
}

/* Reduces the columns from `to` on by the wide panel from .. to - 1, in TF32: those of H, from the diagonal blocks of
 * FAST_BLOCK columns down, and those of Z. */
static dsc_status reduce_fast(dsc_queue *q, const dsc_cholesky *item, int32_t from, int32_t to) {
    int64_t k = item->k;
    float *h = item->h, *z = item->z;
    dsc_tf32_product p = {.k = to - from, .width = k, .alpha = -1, .beta = 1};
    for (int64_t first = to; first < k; first += FAST_BLOCK) {
        p.b = h + first * k + from;
        p.n = k - first < FAST_BLOCK ? k - first : FAST_BLOCK;
        p.a = p.b;
        p.c = h + first * k + first;
        p.m = k - first;
        DSC_TRY(dsc_cuda_multiply_tf32(q, &p));
    }
    p.a = z + from;
    p.b = h + (int64_t)to * k + from;
    p.c = z + to;
    p.m = item->n;
    p.n = k - to;
    return dsc_cuda_multiply_tf32(q, &p);
}

/* Reduces the columns to the right of the wide panel `by`. */
static dsc_status reduce_rest(const part *p, dsc_column_range by, int32_t most) {
    dsc_cholesky others[MOST];
    int count = 0;
    for (int i = 0; i < p->count; i++) {
        if (!p->fast[i])
            others[count++] = p->items[i];
        else if (p->items[i].k > by.end)
            DSC_TRY(reduce_fast(p->q, &p->items[i], by.begin, by.end));
    }
    DSC_CUDA_TRY(
        dsc_cuda_launch_reductions(&p->at, p->wide, others, count, by, (dsc_column_range){by.end, most}));
    return DSC_OK;
}

static dsc_status eliminate(const part *p) {
    const dsc_cholesky *items = p->items;
    int32_t most = 0;
    for (int i = 0; i < p->count; i++)
        most = items[i].k > most ? items[i].k : most;
    for (int32_t begin = 0; begin < most; begin += WIDE_PANEL) {
        int32_t end = most - begin > WIDE_PANEL ? begin + WIDE_PANEL : most;
        for (int32_t panel = begin; panel < end; panel += DSC_PANEL) {
            int32_t next = panel + DSC_PANEL;
            DSC_CUDA_TRY(dsc_cuda_launch_panels(&p->at, p->wide, items, p->count, panel));
            if (next < end)
                DSC_CUDA_TRY(dsc_cuda_launch_reductions(&p->at, p->wide, items, p->count,
                                                        (dsc_column_range){panel, next},
                                                        (dsc_column_range){next, end}));
        }
        if (end < most)
            DSC_TRY(reduce_rest(p, (dsc_column_range){begin, end}, most));
    }
    return DSC_OK;
}

/* Solves the part, waits for the end and reads the `failed` flags. */
static dsc_status solve(part *p) {
    size_t bytes = (size_t)p->count * sizeof *p->failed;
    cudaStream_t stream = p->at.stream;
    DSC_CUDA_TRY(cudaMemsetAsync(p->items[0].failed, 0, bytes, stream));
    DSC_TRY(eliminate(p));
    if (!p->items[0].z)
        DSC_CUDA_TRY(dsc_cuda_launch_inverses(&p->at, p->wide, p->items, p->count));
    DSC_CUDA_TRY(cudaMemcpyAsync(p->failed, p->items[0].failed, bytes, cudaMemcpyDeviceToHost, stream));
    DSC_CUDA_TRY(cudaStreamSynchronize(stream));
    return DSC_OK;
}

static void add_orthonormal(part *p, const dsc_orthonormal_item *item) {
    add(p, &item->h, &item->z);
    p->fast[p->count - 1] = item->fast && !p->wide && item->h.dim[0] >= FAST_COLUMNS &&
                            item->h.dim[0] % 4 == 0 && !dsc_cuda_of(p->q->device)->strict;
}

dsc_status dsc_cuda_orthonormal_batch(dsc_queue *q, dsc_orthonormal_item *items, int64_t count) {
    part p;
    DSC_TRY(dsc_cuda_refuse_recording(q, "orthonormal_batch"));
    for (int64_t done = 0; done < count; done += p.count) {
        start(&p, q, &items[0].h);
        while (p.count < MOST && done + p.count < count)
            add_orthonormal(&p, &items[done + p.count]);
        DSC_TRY(solve(&p));
        for (int i = 0; i < p.count; i++)
            items[done + i].failed = p.failed[i];
    }
    return DSC_OK;
}

static dsc_status check_rows(const char *op, const dsc_tensor *a) {
    if (a->dim[0] > INT32_MAX / 2)
        return DSC_FAIL(DSC_E_UNSUPPORTED, "%s: %lld rows; %d are possible", op, (long long)a->dim[0],
                        INT32_MAX / 2);
    return DSC_OK;
}

dsc_status dsc_cuda_chol_inverse_batch(dsc_queue *q, dsc_solve_item *items, int64_t count) {
    part p;
    DSC_TRY(dsc_cuda_refuse_recording(q, "chol_inverse_batch"));
    for (int64_t i = 0; i < count; i++)
        DSC_TRY(check_rows("chol_inverse_batch", &items[i].a));
    for (int64_t done = 0; done < count; done += p.count) {
        start(&p, q, &items[0].a);
        while (p.count < MOST && done + p.count < count)
            add(&p, &items[done + p.count].a, NULL);
        DSC_TRY(solve(&p));
        for (int i = 0; i < p.count; i++)
            items[done + i].failed = p.failed[i];
    }
    return DSC_OK;
}

dsc_status dsc_cuda_chol_inverse(dsc_queue *q, dsc_tensor *a) {
    part p;
    DSC_TRY(dsc_cuda_refuse_recording(q, "chol_inverse"));
    DSC_TRY(check_rows("chol_inverse", a));
    start(&p, q, a);
    add(&p, a, NULL);
    DSC_TRY(solve(&p));
    if (p.failed[0])
        return DSC_FAIL(DSC_E_NUMERIC,
                        "chol_inverse: A[%lld,%lld] is not finite, or not positive definite: add damping",
                        (long long)a->dim[0], (long long)a->dim[0]);
    return DSC_OK;
}
