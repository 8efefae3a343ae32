/* Prepares matrices for cuSOLVER, and brings its results back. blockIdx.y is the number of the matrix. The matrices of
 * a launch may differ in size; blocks beyond the end of a small one return at once. */
#include "device/cuda/solve_kernels.h"

namespace {

enum { TILE = 32, ROWS = 8, THREADS = TILE * ROWS, PER_THREAD = 8, MOST_BLOCKS = 1024 };

using places = dsc_cuda_solve_places;

/* Returns the largest number of the block to all its threads. A kernel may call it only once. */
__device__ int largest_of_block(int mine) {
    __shared__ int most;
    if (threadIdx.x == 0)
        most = 0;
    __syncthreads();
    mine = __reduce_max_sync(~0u, mine);
    if (threadIdx.x % 32 == 0)
        atomicMax(&most, mine);
    __syncthreads();
    return most;
}

template <typename T> __global__ void check(const __grid_constant__ places p, int *scales) {
    const dsc_cuda_solve_place &place = p.place[blockIdx.y];
    const T *from = static_cast<const T *>(place.from);
    int64_t n = place.n, count = n * n, stride = (int64_t)gridDim.x * THREADS;
    T most = 0;
    bool bad = false;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += stride) {
        int64_t row = i / n;
        if (i - row * n > row)
            continue;
        T value = from[i];
        bad |= !(value - value == 0); /* true for NaN and infinities */
        value = value < 0 ? -value : value;
        most = value > most ? value : most;
    }
    int scale = bad ? DSC_CUDA_SOLVE_NOT_FINITE : most > 0 ? DSC_CUDA_SOLVE_ONE + ilogb((double)most) : 0;
    scale = largest_of_block(scale);
    if (threadIdx.x == 0 && scale > 0)
        atomicMax(&scales[place.index], scale);
}

/* Returns the exponent that was taken out of the matrix before the solver saw it. */
__device__ int exponent_of(int scale) {
    return scale == 0 || scale == DSC_CUDA_SOLVE_NOT_FINITE ? 0 : scale - DSC_CUDA_SOLVE_ONE;
}

/* Uses ldexp, since the power itself may be outside the range of T. */
template <typename T> __global__ void copy(const __grid_constant__ places p, const int *scales) {
    const dsc_cuda_solve_place &place = p.place[blockIdx.y];
    const T *from = static_cast<const T *>(place.from);
    T *to = static_cast<T *>(place.to);
    int64_t n = place.n, count = n * n, stride = (int64_t)gridDim.x * THREADS;
    int scale = scales[place.index], exponent = exponent_of(scale);
    bool bad = scale == DSC_CUDA_SOLVE_NOT_FINITE;
    if (from == to && !bad)
        return;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += stride)
        to[i] = !bad ? ldexp(from[i], -exponent) : i % (n + 1) == 0 ? (T)1 : (T)0;
}

/* Returns the row of tile b of a triangle of tiles that are counted row by row. */
__device__ int64_t tile_row(int64_t b) {
    int64_t row = (int64_t)((sqrt(8.0 * (double)b + 1.0) - 1.0) / 2.0);
    while (row * (row + 1) / 2 > b)
        row--;
    while ((row + 1) * (row + 2) / 2 <= b)
        row++;
    return row;
}

/* Loads the tile of a row-major matrix that begins at (row, column). */
template <typename T>
__device__ void load_tile(const T *m, int64_t n, int64_t row, int64_t column, T (*tile)[TILE + 1]) {
    int x = threadIdx.x % TILE;
    for (int y = threadIdx.x / TILE; y < TILE; y += ROWS)
        if (row + y < n && column + x < n)
            tile[y][x] = m[(row + y) * n + column + x];
}

/* Stores the transpose of a tile in the matrix, beginning at (row, column). */
template <typename T>
__device__ void store_turned(T *m, int64_t n, int64_t row, int64_t column, const T (*tile)[TILE + 1]) {
    int x = threadIdx.x % TILE;
    for (int y = threadIdx.x / TILE; y < TILE; y += ROWS)
        if (row + y < n && column + x < n)
            m[(row + y) * n + column + x] = tile[x][y];
}

/* A block transposes a tile of the lower triangle and its mirror image across the diagonal. */
template <typename T> __global__ void transpose(const __grid_constant__ places p, const int *scales) {
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
        int exponent = exponent_of(scales[place.index]);
        for (int64_t k = threadIdx.x; k < n; k += THREADS)
            static_cast<T *>(place.values_to)[k] = ldexp(values[k], exponent);
    }
    load_tile<T>(from, n, row, column, low);
    load_tile<T>(from, n, column, row, high);
    __syncthreads();
    store_turned<T>(to, n, column, row, low);
    if (row != column)
        store_turned<T>(to, n, row, column, high);
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
                                                   const dsc_cuda_solve_places *p, int *scales) {
    if (wide)
        DSC_LAUNCH((check<double>), grid_of_elements(p), dim3(THREADS), 0, at->stream)(*p, scales);
    else
        DSC_LAUNCH((check<float>), grid_of_elements(p), dim3(THREADS), 0, at->stream)(*p, scales);
    return cudaGetLastError();
}

extern "C" cudaError_t dsc_cuda_launch_solve_copy(const dsc_cuda_launch *at, int wide,
                                                  const dsc_cuda_solve_places *p, const int *scales) {
    if (wide)
        DSC_LAUNCH((copy<double>), grid_of_elements(p), dim3(THREADS), 0, at->stream)(*p, scales);
    else
        DSC_LAUNCH((copy<float>), grid_of_elements(p), dim3(THREADS), 0, at->stream)(*p, scales);
    return cudaGetLastError();
}

extern "C" cudaError_t dsc_cuda_launch_solve_transpose(const dsc_cuda_launch *at, int wide,
                                                       const dsc_cuda_solve_places *p, const int *scales) {
    if (wide)
        DSC_LAUNCH((transpose<double>), grid_of_tiles(p), dim3(THREADS), 0, at->stream)(*p, scales);
    else
        DSC_LAUNCH((transpose<float>), grid_of_tiles(p), dim3(THREADS), 0, at->stream)(*p, scales);
    return cudaGetLastError();
}
