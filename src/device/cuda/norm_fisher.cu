/* The Fisher matrices of a norm's scale and shift, and the solution of linear systems with them. */
#include "device/cuda/elementwise.cuh"
#include "device/cuda/entries.h"

/* A block processes FISHER_CHANNELS channels of one sample; its rows of threads take turns with the positions. */
enum { FISHER_CHANNELS = 32, FISHER_ROWS = 8, SOLVES = 60 };

typedef struct dsc_cuda_fisher_call {
    int64_t n, positions, c;
    const void *x, *y, *dy, *mean, *invstd;
    void *out;
    dsc_norm_places places; /* where mean and invstd are */
} dsc_cuda_fisher_call;

typedef struct dsc_cuda_norm_solve_item {
    const void *f, *gamma, *shift;
    void *p;
    int64_t count; /* channels */
} dsc_cuda_norm_solve_item;

template <typename T>
__global__ void __launch_bounds__(FISHER_CHANNELS *FISHER_ROWS) fisher_kernel(dsc_cuda_fisher_call a) {
    typedef dsc_number<T> A;
    __shared__ A part[2][FISHER_ROWS][FISHER_CHANNELS];
    int64_t ch = (int64_t)blockIdx.x * FISHER_CHANNELS + threadIdx.x, i = blockIdx.y;
    A sum_gx = 0, sum_g = 0;
    if (ch < a.c) {
        const T *x = (const T *)a.x, *y = (const T *)a.y, *dy = (const T *)a.dy;
        const A *means = (const A *)a.mean, *scales = (const A *)a.invstd;
        int64_t first = i * a.places.sample + ch / a.places.width;
        for (int64_t p = threadIdx.y; p < a.positions; p += FISHER_ROWS) {
            int64_t at = (i * a.positions + p) * a.c + ch, of = first + p * a.places.position;
            A mean = means ? means[of] : (A)0, scale = scales ? scales[of] : (A)1;
            A g = y && !(dsc_get(y[at]) > 0) ? (A)0 : (A)dsc_get(dy[at]);
            sum_gx += g * ((dsc_get(x[at]) - mean) * scale);
            sum_g += g;
        }
    }
    part[0][threadIdx.y][threadIdx.x] = sum_gx;
    part[1][threadIdx.y][threadIdx.x] = sum_g;
    __syncthreads();
    if (threadIdx.y > 0 || ch >= a.c)
        return;
    for (int r = 1; r < FISHER_ROWS; r++) {
        sum_gx += part[0][r][threadIdx.x];
        sum_g += part[1][r][threadIdx.x];
    }
    A *out = (A *)a.out + i * 3 * a.c + ch;
    out[0] = sum_gx * sum_gx;
    out[a.c] = sum_gx * sum_g;
    out[2 * a.c] = sum_g * sum_g;
}

template <typename T>
static cudaError_t run_fisher(const dsc_cuda_launch *at, const dsc_cuda_fisher_call *call) {
    const int64_t most = 65535; /* the limit of a grid's second dimension */
    for (int64_t first = 0; first < call->n; first += most) {
        typedef dsc_number<T> A;
        dsc_cuda_fisher_call part = *call;
        int64_t offset = first * call->positions * call->c;
        part.n = call->n - first < most ? call->n - first : most;
        part.x = (const T *)call->x + offset;
        part.y = call->y ? (const T *)call->y + offset : NULL;
        part.dy = (const T *)call->dy + offset;
        part.mean = call->mean ? (const A *)call->mean + first * call->places.sample : NULL;
        part.invstd = call->invstd ? (const A *)call->invstd + first * call->places.sample : NULL;
        part.out = (A *)call->out + first * 3 * call->c;
        dim3 blocks((unsigned)((call->c + FISHER_CHANNELS - 1) / FISHER_CHANNELS), (unsigned)part.n);
        DSC_LAUNCH((fisher_kernel<T>), blocks, dim3(FISHER_CHANNELS, FISHER_ROWS), 0, at->stream)(part);
    }
    return cudaGetLastError();
}

dsc_status dsc_cuda_norm_fisher(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *y, const dsc_tensor *dy,
                                const dsc_tensor *mean, const dsc_tensor *invstd, dsc_tensor *out) {
    int64_t n = x->dim[0], c = x->dim[x->ndim - 1];
    dsc_cuda_fisher_call call = {n,
                                 dsc_tensor_count(x) / (n * c),
                                 c,
                                 dsc_data(x),
                                 dsc_data(y),
                                 dsc_data(dy),
                                 dsc_data(mean),
                                 dsc_data(invstd),
                                 dsc_data(out),
                                 dsc_norm_places_of(x, invstd)};
    DSC_CUDA_TRY(DSC_BY_TYPE(x->dtype, run_fisher, dsc_cuda_at(q), &call));
    return DSC_OK;
}

/* ---- solutions ---- */

typedef dsc_batch<dsc_cuda_norm_solve_item, SOLVES> solve_batch;
static_assert(sizeof(solve_batch) <= 3900, "a launch takes at most 4000 bytes");

template <typename T>
__global__ void __launch_bounds__(DSC_FLAT_THREADS)
    norm_solve_kernel(const __grid_constant__ solve_batch b, const double *damping, int full) {
    dsc_batch_place place = dsc_batch_find(b);
    const T *f = (const T *)b.item[place.item].f;
    const T *gamma = (const T *)b.item[place.item].gamma, *shift = (const T *)b.item[place.item].shift;
    T *p = (T *)b.item[place.item].p;
    int64_t c = b.item[place.item].count;
    for (int64_t ch = place.begin + threadIdx.x; ch < place.end; ch += DSC_FLAT_THREADS) {
        const double own[3] = {(double)f[ch], (double)f[c + ch], (double)f[2 * c + ch]};
        const double d[2] = {(double)gamma[ch], (double)shift[ch]};
        double solved[2];
        dsc_norm_solve(own, *damping, full, d, solved);
        p[ch] = (T)solved[0];
        p[c + ch] = (T)solved[1];
    }
}

template <typename T>
cudaError_t norm_solves(const dsc_cuda_launch *at, const double *damping, int full,
                        const dsc_cuda_norm_solve_item *items, int count) {
    solve_batch b;
    unsigned blocks = dsc_batch_plan(at, items, count, &b);
    DSC_LAUNCH((norm_solve_kernel<T>), blocks, DSC_FLAT_THREADS, 0, at->stream)(b, damping, full);
    return cudaGetLastError();
}

dsc_status dsc_cuda_norm_solve_batch(dsc_queue *q, const dsc_tensor *damping, int full,
                                     const dsc_norm_solve_item *items, int64_t count) {
    for (int64_t done = 0; done < count; done += SOLVES) {
        dsc_cuda_norm_solve_item part[SOLVES];
        int n = dsc_batch_part(count - done, SOLVES);
        for (int i = 0; i < n; i++) {
            const dsc_norm_solve_item *item = &items[done + i];
            part[i] = (dsc_cuda_norm_solve_item){dsc_data(&item->f), dsc_data(&item->gamma),
                                                 dsc_data(&item->shift), dsc_data(&item->p), item->p.dim[1]};
        }
        DSC_CUDA_TRY(
            DSC_BY_REAL(items[0].p.dtype, norm_solves, dsc_cuda_at(q), dsc_data(damping), full, part, n));
    }
    return DSC_OK;
}
