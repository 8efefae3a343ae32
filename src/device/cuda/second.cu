/* Triangles, and the pieces of a second-order step: kernels and their launches. */
#include "device/cuda/elementwise.cuh"
#include "device/cuda/second_kernels.h"

namespace {

/* ---- triangles ----
 *
 * Packing goes row by row, one warp a row. Unpacking and symmetrising go tile by tile: a tile of the lower
 * triangle is read by rows, and its mirror image is written by rows. */

enum { TILE = 32, TILE_ROWS = 8 };

template <typename T>
__global__ void __launch_bounds__(DSC_FLAT_THREADS) pack_kernel(int64_t n, const T *a, T *p) {
    int64_t warps = dsc_flat_step() / 32, lane = threadIdx.x % 32;
    for (int64_t i = dsc_flat_first() / 32; i < n; i += warps) {
        const T *from = a + i * n;
        T *to = p + i * (i + 1) / 2;
#pragma unroll 4
        for (int64_t j = lane; j <= i; j += 32)
            to[j] = from[j];
    }
}

/* Element (i, j), j <= i, of what the lower triangle is read from. */
template <typename T, bool PACKED>
__device__ __forceinline__ T lower(const T *from, int64_t n, int64_t i, int64_t j) {
    return PACKED ? from[i * (i + 1) / 2 + j] : from[i * n + j];
}

template <typename T, bool PACKED>
__global__ void __launch_bounds__(TILE *TILE_ROWS) mirror_kernel(int64_t n, const T *from, T *a) {
    __shared__ T tile[TILE][TILE + 1];
    if (blockIdx.x > blockIdx.y)
        return;
    int64_t top = (int64_t)blockIdx.y * TILE, left = (int64_t)blockIdx.x * TILE;
    for (int r = (int)threadIdx.y; r < TILE; r += TILE_ROWS) {
        int64_t i = top + r, j = left + threadIdx.x;
        if (i >= n || j > i)
            continue;
        T value = lower<T, PACKED>(from, n, i, j);
        tile[r][threadIdx.x] = value;
        if (PACKED)
            a[i * n + j] = value;
    }
    __syncthreads();
    for (int r = (int)threadIdx.y; r < TILE; r += TILE_ROWS) { /* row of the mirror image */
        int64_t i = left + r, j = top + threadIdx.x;
        if (j < n && i < j)
            a[i * n + j] = tile[threadIdx.x][r];
    }
}

template <typename T, bool PACKED>
cudaError_t mirror(const dsc_cuda_launch *at, int64_t n, const void *from, void *a) {
    unsigned tiles = (unsigned)((n + TILE - 1) / TILE);
    DSC_LAUNCH((mirror_kernel<T, PACKED>), dim3(tiles, tiles), dim3(TILE, TILE_ROWS), 0, at->stream)
    (n, (const T *)from, (T *)a);
    return cudaGetLastError();
}

template <typename T> cudaError_t pack(const dsc_cuda_launch *at, int64_t n, const void *a, void *p) {
    DSC_LAUNCH((pack_kernel<T>), dsc_flat_blocks(at, n * 32), DSC_FLAT_THREADS, 0, at->stream)
    (n, (const T *)a, (T *)p);
    return cudaGetLastError();
}

template <typename T> struct diagonal_body {
    int64_t n;
    const double *value;
    T *a;
    double add;

    __device__ bool start() {
        add = *value;
        return true;
    }

    template <int N> __device__ void run(int64_t i) const {
        a[i * (n + 1)] = (T)((double)a[i * (n + 1)] + add);
    }
};

template <typename T>
cudaError_t add_diagonal(const dsc_cuda_launch *at, int64_t n, const double *value, void *a) {
    diagonal_body<T> body = {n, value, (T *)a, 0};
    return dsc_flat_run<1>(at, body, n, true);
}

/* ---- quotients ---- */

__device__ __forceinline__ float quotient(float x, float row, float column, float damping) {
    return dsc_divide_f(x, row, column, damping);
}

__device__ __forceinline__ double quotient(double x, double row, double column, double damping) {
    return dsc_divide(x, row, column, damping);
}

typedef dsc_batch<dsc_cuda_divide_item, DSC_CUDA_PIECES> divide_batch;
static_assert(sizeof(divide_batch) <= 3900, "a launch takes at most 4000 bytes");

template <typename T>
__global__ void __launch_bounds__(DSC_FLAT_THREADS)
    divide_kernel(const __grid_constant__ divide_batch b, const double *damping) {
    dsc_batch_place p = dsc_batch_find(b);
    const T *rows = (const T *)b.item[p.item].rows, *columns = (const T *)b.item[p.item].columns;
    T *x = (T *)b.item[p.item].x, add = (T)*damping;
    int64_t width = b.item[p.item].width;
#pragma unroll 4
    for (int64_t e = p.begin + threadIdx.x; e < p.end; e += DSC_FLAT_THREADS) {
        int64_t i = e, j = dsc_peel(i, width);
        x[e] = quotient(x[e], rows[i], columns[j], add);
    }
}

template <typename T>
cudaError_t divides(const dsc_cuda_launch *at, const double *damping, const dsc_cuda_divide_item *items,
                    int count) {
    divide_batch b;
    unsigned blocks = dsc_batch_plan(at, items, count, &b);
    DSC_LAUNCH((divide_kernel<T>), blocks, DSC_FLAT_THREADS, 0, at->stream)(b, damping);
    return cudaGetLastError();
}

__device__ __forceinline__ float inverse(float row, float column, float damping) {
    return dsc_outer_inverse_f(row, column, damping);
}

__device__ __forceinline__ double inverse(double row, double column, double damping) {
    return dsc_outer_inverse(row, column, damping);
}

template <typename T> struct inverse_body {
    int64_t n;
    const double *damping;
    const T *rows, *columns;
    T *out;
    T add;

    __device__ bool start() {
        add = (T)*damping;
        return true;
    }

    template <int N> __device__ void run(int64_t e) const {
        int64_t i = e, j = dsc_peel(i, n);
        out[e] = inverse(rows[i], columns[j], add);
    }
};

template <typename T>
cudaError_t outer_inverse(const dsc_cuda_launch *at, int64_t m, int64_t n, const double *damping,
                          const void *rows, const void *columns, void *out) {
    inverse_body<T> body = {n, damping, (const T *)rows, (const T *)columns, (T *)out, 0};
    return dsc_flat_run<1>(at, body, m * n, true);
}

/* ---- weights and bias as one matrix ---- */

typedef dsc_batch<dsc_cuda_join_item, DSC_CUDA_PIECES> join_batch;
static_assert(sizeof(join_batch) <= 3900, "a launch takes at most 4000 bytes");

/* Where element e of d is kept: in w or in b. */
template <typename T> __device__ __forceinline__ T *origin(const dsc_cuda_join_item &item, int64_t e) {
    int64_t i = e, j = dsc_peel(i, item.width);
    if (!item.b)
        return (T *)item.w + e;
    return j == item.width - 1 ? (T *)item.b + i : (T *)item.w + (e - i);
}

template <typename T>
__global__ void __launch_bounds__(DSC_FLAT_THREADS) join_kernel(const __grid_constant__ join_batch b) {
    dsc_batch_place p = dsc_batch_find(b);
    T *d = (T *)b.item[p.item].d;
#pragma unroll 4
    for (int64_t e = p.begin + threadIdx.x; e < p.end; e += DSC_FLAT_THREADS)
        d[e] = *origin<T>(b.item[p.item], e);
}

template <typename T>
__global__ void __launch_bounds__(DSC_FLAT_THREADS)
    split_kernel(const __grid_constant__ join_batch b, const double *scale) {
    dsc_batch_place p = dsc_batch_find(b);
    const T *d = (const T *)b.item[p.item].d;
    double factor = scale ? *scale : 1;
    if (!isfinite(factor))
        return;
#pragma unroll 4
    for (int64_t e = p.begin + threadIdx.x; e < p.end; e += DSC_FLAT_THREADS)
        *origin<T>(b.item[p.item], e) = (T)factor * d[e];
}

template <typename T>
cudaError_t joins(const dsc_cuda_launch *at, const dsc_cuda_join_item *items, int count) {
    join_batch b;
    unsigned blocks = dsc_batch_plan(at, items, count, &b);
    DSC_LAUNCH((join_kernel<T>), blocks, DSC_FLAT_THREADS, 0, at->stream)(b);
    return cudaGetLastError();
}

template <typename T>
cudaError_t splits(const dsc_cuda_launch *at, const double *scale, const dsc_cuda_join_item *items,
                   int count) {
    join_batch b;
    unsigned blocks = dsc_batch_plan(at, items, count, &b);
    DSC_LAUNCH((split_kernel<T>), blocks, DSC_FLAT_THREADS, 0, at->stream)(b, scale);
    return cudaGetLastError();
}

/* ---- parts of a matrix ---- */

template <typename T, bool GATHER> struct part_body {
    dsc_cuda_part part;
    const T *src;
    T *dst;

    __device__ bool start() {
        return true;
    }

    template <int N> __device__ void run(int64_t e) const {
        int64_t i = e, j = dsc_peel(i, part.n), at = part.rows[i] * part.width + part.columns[j];
        if (GATHER)
            dst[e] = src[at];
        else
            dst[at] = src[e];
    }
};

template <typename T, bool GATHER>
cudaError_t move_part(const dsc_cuda_launch *at, const dsc_cuda_part *part, const void *src, void *dst) {
    part_body<T, GATHER> body = {*part, (const T *)src, (T *)dst};
    return dsc_flat_run<1>(at, body, part->m * part->n, true);
}

__global__ void kl_clip_kernel(const double *sum, const double *limits, double *out) {
    *out = dsc_kl_clip(*sum, limits[0], limits[1]);
}

} // namespace

extern "C" {

cudaError_t dsc_cuda_launch_symmetrize(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t n, void *a) {
    return dtype == DSC_F64 ? mirror<double, false>(at, n, a, a) : mirror<float, false>(at, n, a, a);
}

cudaError_t dsc_cuda_launch_tri_pack(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t n, const void *a,
                                     void *p) {
    return dtype == DSC_F64 ? pack<double>(at, n, a, p) : pack<float>(at, n, a, p);
}

cudaError_t dsc_cuda_launch_tri_unpack(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t n, const void *p,
                                       void *a) {
    return dtype == DSC_F64 ? mirror<double, true>(at, n, p, a) : mirror<float, true>(at, n, p, a);
}

cudaError_t dsc_cuda_launch_add_diagonal(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t n,
                                         const double *value, void *a) {
    return dtype == DSC_F64 ? add_diagonal<double>(at, n, value, a) : add_diagonal<float>(at, n, value, a);
}

cudaError_t dsc_cuda_launch_divides(const dsc_cuda_launch *at, dsc_dtype dtype, const double *damping,
                                    const dsc_cuda_divide_item *items, int count) {
    return dtype == DSC_F64 ? divides<double>(at, damping, items, count)
                            : divides<float>(at, damping, items, count);
}

cudaError_t dsc_cuda_launch_joins(const dsc_cuda_launch *at, dsc_dtype dtype, const dsc_cuda_join_item *items,
                                  int count) {
    return dtype == DSC_F64 ? joins<double>(at, items, count) : joins<float>(at, items, count);
}

cudaError_t dsc_cuda_launch_splits(const dsc_cuda_launch *at, dsc_dtype dtype, const double *scale,
                                   const dsc_cuda_join_item *items, int count) {
    return dtype == DSC_F64 ? splits<double>(at, scale, items, count)
                            : splits<float>(at, scale, items, count);
}

cudaError_t dsc_cuda_launch_outer_inverse(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t m, int64_t n,
                                          const double *damping, const void *rows, const void *columns,
                                          void *out) {
    return dtype == DSC_F64 ? outer_inverse<double>(at, m, n, damping, rows, columns, out)
                            : outer_inverse<float>(at, m, n, damping, rows, columns, out);
}

cudaError_t dsc_cuda_launch_gather(const dsc_cuda_launch *at, dsc_dtype dtype, const dsc_cuda_part *part,
                                   const void *src, void *dst) {
    return dtype == DSC_F64 ? move_part<double, true>(at, part, src, dst)
                            : move_part<float, true>(at, part, src, dst);
}

cudaError_t dsc_cuda_launch_scatter(const dsc_cuda_launch *at, dsc_dtype dtype, const dsc_cuda_part *part,
                                    const void *src, void *dst) {
    return dtype == DSC_F64 ? move_part<double, false>(at, part, src, dst)
                            : move_part<float, false>(at, part, src, dst);
}

cudaError_t dsc_cuda_launch_kl_clip(const dsc_cuda_launch *at, const double *sum, const double *limits,
                                    double *out) {
    DSC_LAUNCH((kl_clip_kernel), 1, 1, 0, at->stream)(sum, limits, out);
    return cudaGetLastError();
}

} // extern "C"
