/* What is done to matrices before and after cuSOLVER. A block of the grid's second dimension serves one
 * matrix; matrices of a launch may differ in size, blocks that a small one has no use for end at once. */
#include "device/cuda/solve_kernels.h"

namespace {

enum { TILE = 32, ROWS = 8, THREADS = TILE * ROWS, PER_THREAD = 8, MOST_BLOCKS = 1024 };

using places = dsc_cuda_solve_places;

template <typename T> __global__ void check(const __grid_constant__ places p, int *flags) {
    const dsc_cuda_solve_place &place = p.place[blockIdx.y];
    const T *from = static_cast<const T *>(place.from);
    T *to = static_cast<T *>(place.to);
    int64_t n = place.n, count = n * n, stride = (int64_t)gridDim.x * THREADS;
    int bad = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += stride) {
        T value = from[i];
        int64_t row = i / n;
        bad |= i - row * n <= row && !(value - value == 0); /* NaN and infinities are not */
        if (to != from)
            to[i] = value;
    }
    bad = __syncthreads_or(bad);
    if (bad && threadIdx.x == 0)
        flags[place.index] = 1;
}

template <typename T> __global__ void replace(const __grid_constant__ places p, const int *flags) {
    const dsc_cuda_solve_place &place = p.place[blockIdx.y];
    T *to = static_cast<T *>(place.to);
    int64_t n = place.n, count = n * n, stride = (int64_t)gridDim.x * THREADS;
    if (flags[place.index] == 0)
        return;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += stride)
        to[i] = i % (n + 1) == 0 ? (T)1 : (T)0;
}

/* Block b of a triangle of tiles, counted row by row: its row. */
__device__ int64_t tile_row(int64_t b) {
    int64_t row = (int64_t)((sqrt(8.0 * (double)b + 1.0) - 1.0) / 2.0);
    while (row * (row + 1) / 2 > b)
        row--;
    while ((row + 1) * (row + 2) / 2 <= b)
        row++;
    return row;
}

/* A tile of a row-major matrix, from (row, column) on. */
template <typename T>
__device__ void load_tile(const T *m, int64_t n, int64_t row, int64_t column, T (*tile)[TILE + 1]) {
    int x = threadIdx.x % TILE;
    for (int y = threadIdx.x / TILE; y < TILE; y += ROWS)
        if (row + y < n && column + x < n)
            tile[y][x] = m[(row + y) * n + column + x];
}

/* The transpose of a tile, to (row, column) on; `above`: only what lies above the diagonal. */
template <typename T>
__device__ void store_turned(T *m, int64_t n, int64_t row, int64_t column, const T (*tile)[TILE + 1],
                             bool above) {
    int x = threadIdx.x % TILE;
    for (int y = threadIdx.x / TILE; y < TILE; y += ROWS)
        if (row + y < n && column + x < n && (!above || column + x > row + y))
            m[(row + y) * n + column + x] = tile[x][y];
}

/* A block takes a tile of the lower triangle and the one across the diagonal. */
template <typename T> __global__ void transpose(const __grid_constant__ places p) {
    __shared__ T low[TILE][TILE + 1], high[TILE][TILE + 1];
    const dsc_cuda_solve_place &place = p.place[blockIdx.y];
    const T *from = static_cast<const T *>(place.from);
    T *to = static_cast<T *>(place.to);
    int64_t n = place.n, i = tile_row(blockIdx.x), row = i * TILE;
    int64_t column = (blockIdx.x - i * (i + 1) / 2) * TILE;
    if (row >= n)
        return;
    if (blockIdx.x == 0 && place.values_to) {
        const T *values = static_cast<const T *>(place.values_from);
        for (int64_t k = threadIdx.x; k < n; k += THREADS)
            static_cast<T *>(place.values_to)[k] = values[k];
    }
    load_tile<T>(from, n, row, column, low);
    load_tile<T>(from, n, column, row, high);
    __syncthreads();
    store_turned<T>(to, n, column, row, low, false);
    if (row != column)
        store_turned<T>(to, n, row, column, high, false);
}

template <typename T> __global__ void mirror(const __grid_constant__ places p) {
    __shared__ T low[TILE][TILE + 1];
    const dsc_cuda_solve_place &place = p.place[blockIdx.y];
    T *to = static_cast<T *>(place.to);
    int64_t n = place.n, i = tile_row(blockIdx.x), row = i * TILE;
    int64_t column = (blockIdx.x - i * (i + 1) / 2) * TILE;
    if (row >= n)
        return;
    load_tile<T>(to, n, row, column, low);
    __syncthreads();
    store_turned<T>(to, n, column, row, low, true);
}

int64_t largest(const places *p) {
    int64_t n = 0;
    for (int i = 0; i < p->count; i++)
        n = p->place[i].n > n ? p->place[i].n : n;
    return n;
}

dim3 grid_of_elements(const places *p) {
    int64_t n = largest(p), blocks = (n * n + THREADS * PER_THREAD - 1) / (THREADS * PER_THREAD);
    return dim3((unsigned)(blocks < MOST_BLOCKS ? blocks : (int64_t)MOST_BLOCKS), (unsigned)p->count);
}

dim3 grid_of_tiles(const places *p) {
    int64_t tiles = (largest(p) + TILE - 1) / TILE;
    return dim3((unsigned)(tiles * (tiles + 1) / 2), (unsigned)p->count);
}

} // namespace

extern "C" cudaError_t dsc_cuda_launch_solve_check(const dsc_cuda_launch *at, int wide,
                                                   const dsc_cuda_solve_places *p, int *flags) {
    if (wide)
        DSC_LAUNCH((check<double>), grid_of_elements(p), dim3(THREADS), 0, at->stream)(*p, flags);
    else
        DSC_LAUNCH((check<float>), grid_of_elements(p), dim3(THREADS), 0, at->stream)(*p, flags);
    return cudaGetLastError();
}

extern "C" cudaError_t dsc_cuda_launch_solve_replace(const dsc_cuda_launch *at, int wide,
                                                     const dsc_cuda_solve_places *p, const int *flags) {
    if (wide)
        DSC_LAUNCH((replace<double>), grid_of_elements(p), dim3(THREADS), 0, at->stream)(*p, flags);
    else
        DSC_LAUNCH((replace<float>), grid_of_elements(p), dim3(THREADS), 0, at->stream)(*p, flags);
    return cudaGetLastError();
}

extern "C" cudaError_t dsc_cuda_launch_solve_transpose(const dsc_cuda_launch *at, int wide,
                                                       const dsc_cuda_solve_places *p) {
    if (wide)
        DSC_LAUNCH((transpose<double>), grid_of_tiles(p), dim3(THREADS), 0, at->stream)(*p);
    else
        DSC_LAUNCH((transpose<float>), grid_of_tiles(p), dim3(THREADS), 0, at->stream)(*p);
    return cudaGetLastError();
}

extern "C" cudaError_t dsc_cuda_launch_solve_mirror(const dsc_cuda_launch *at, int wide,
                                                    const dsc_cuda_solve_places *p) {
    if (wide)
        DSC_LAUNCH((mirror<double>), grid_of_tiles(p), dim3(THREADS), 0, at->stream)(*p);
    else
        DSC_LAUNCH((mirror<float>), grid_of_tiles(p), dim3(THREADS), 0, at->stream)(*p);
    return cudaGetLastError();
}
