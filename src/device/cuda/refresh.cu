/* The refresh of an eigenbasis: rotations and Rayleigh quotients of many bases at once (device/ops.h). All arithmetic
 * is in double; the time goes into reading and writing the GPU's memory. */
#include "device/cuda/elementwise.cuh"
#include "device/cuda/refresh_kernels.h"
#include "device/cuda/tiles.cuh"

namespace {

/* In kernels that process columns, a block has LANES columns, and each column LINES threads. */
enum { THREADS = DSC_FLAT_THREADS, LANES = 32, LINES = THREADS / LANES };

int64_t along(int64_t size, int64_t side) {
    return (size + side - 1) / side;
}

/* ---- rotations ----
 *
 * The first kernel finds the rank of every column in its basis by counting, and writes the eigenvalues and the order of
 * the columns to scratch memory; the others compute x and z from these. */

typedef dsc_tiles<dsc_rotation, DSC_REFRESH_ITEMS> rotations;
static_assert(sizeof(rotations) <= 4000, "a launch takes at most 4000 bytes");

/* A block finds the ranks of LANES columns. */
template <typename T>
__global__ void __launch_bounds__(THREADS) order_kernel(const __grid_constant__ rotations all) {
    __shared__ int counts[LINES][LANES];
    int64_t block;
    const dsc_rotation &r = dsc_tiles_find(all, block);
    const T *b = (const T *)r.b;
    int line = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES, before = 0;
    int64_t k = r.k, own = block * LANES + lane;
    double value = own < k ? (double)b[own * (k + 1)] : 0;
#pragma unroll 4
    for (int64_t i = line; i < k; i += LINES)
        before += dsc_turn_before((double)b[i * (k + 1)], i, value, own);
    counts[line][lane] = before;
    __syncthreads();
    if (line > 0 || own >= k)
        return;
    int place = 0;
    for (int i = 0; i < LINES; i++)
        place += counts[i][lane];
    r.values[own] = value;
    r.order[place] = (int32_t)own;
}

/* Returns by how much column `from` is pulled; 0 for a complete basis. */
__device__ __forceinline__ double pull_of(const dsc_rotation &r, int64_t from) {
    return r.k < r.n ? dsc_turn_pull(r.values[from], r.values[r.order[0]]) : 0;
}

/* A block computes a tile of x. It reads rows of B directly, and those of its transpose through shared memory. */
enum { TILE = 32, TILE_ROWS = THREADS / TILE };

template <typename T>
__global__ void __launch_bounds__(THREADS) turn_kernel(const __grid_constant__ rotations all) {
    __shared__ T across[TILE][TILE + 1];
    int64_t block;
    const dsc_rotation &r = dsc_tiles_find(all, block);
    const T *b = (const T *)r.b;
    int64_t k = r.k, tiles = (k + TILE - 1) / TILE, i0 = block / tiles * TILE, j0 = block % tiles * TILE;
    int column = (int)(threadIdx.x % TILE), first = (int)(threadIdx.x / TILE);
    for (int row = first; row < TILE; row += TILE_ROWS)
        if (j0 + row < k && i0 + column < k)
            across[row][column] = b[r.order[j0 + row] * k + i0 + column];
    __syncthreads();
    int64_t j = j0 + column;
    if (j >= k)
        return;
    int64_t from = r.order[j];
    double value = r.values[from], pull = pull_of(r, from);
    for (int row = first; row < TILE && i0 + row < k; row += TILE_ROWS) {
        int64_t i = i0 + row;
        double element = ((double)b[i * k + from] + (double)across[column][row]) / 2;
        ((T *)r.x)[i * k + j] = (T)dsc_turn_share(element, r.values[i], value, r.delta, pull, i == from);
    }
}

/* A block computes MOVE_ROWS rows of MOVE_COLUMNS columns of z. */
enum { MOVE_COLUMNS = 64, MOVE_LINES = THREADS / MOVE_COLUMNS, MOVE_ROWS = 64 };

template <typename T>
__global__ void __launch_bounds__(THREADS) move_kernel(const __grid_constant__ rotations all) {
    int64_t block;
    const dsc_rotation &r = dsc_tiles_find(all, block);
    const T *q = (const T *)r.q, *y = (const T *)r.y;
    int64_t n = r.n, k = r.k, groups = (k + MOVE_COLUMNS - 1) / MOVE_COLUMNS;
    int64_t j = block % groups * MOVE_COLUMNS + threadIdx.x % MOVE_COLUMNS;
    int64_t row = block / groups * MOVE_ROWS, end = row + MOVE_ROWS < n ? row + MOVE_ROWS : n;
    if (j >= k)
        return;
    int64_t from = r.order[j];
    double pull = pull_of(r, from);
    for (row += threadIdx.x / MOVE_COLUMNS; row < end; row += MOVE_LINES) {
        double value = (double)q[row * k + from];
        ((T *)r.z)[row * k + j] = (T)(k < n ? value + (double)y[row * k + from] * pull : value);
    }
}

template <typename T> cudaError_t rotate(const dsc_cuda_launch *at, const dsc_rotation *items, int count) {
    rotations all;
    dsc_tiles_clear(&all);
    for (int i = 0; i < count; i++)
        dsc_tiles_add(&all, items[i], along(items[i].k, LANES));
    DSC_LAUNCH((order_kernel<T>), dsc_tiles_blocks(&all), THREADS, 0, at->stream)(all);
    dsc_tiles_clear(&all);
    for (int i = 0; i < count; i++)
        dsc_tiles_add(&all, items[i], along(items[i].k, TILE) * along(items[i].k, TILE));
    DSC_LAUNCH((turn_kernel<T>), dsc_tiles_blocks(&all), THREADS, 0, at->stream)(all);
    dsc_tiles_clear(&all);
    for (int i = 0; i < count; i++)
        dsc_tiles_add(&all, items[i], along(items[i].n, MOVE_ROWS) * along(items[i].k, MOVE_COLUMNS));
    DSC_LAUNCH((move_kernel<T>), dsc_tiles_blocks(&all), THREADS, 0, at->stream)(all);
    return cudaGetLastError();
}

/* ---- Rayleigh quotients ----
 *
 * A block processes one part of the rows of LANES columns. Its sums, first those of q'y and q'q, then those of the
 * squared residuals, go to scratch memory as [parts][k][2] and [parts][k]; code that needs a total adds them up in the
 * order of the parts. */

typedef dsc_tiles<dsc_rayleigh, DSC_REFRESH_ITEMS> rayleighs;
static_assert(sizeof(rayleighs) <= 4000, "a launch takes at most 4000 bytes");

__host__ __device__ __forceinline__ int64_t parts_of(const dsc_rayleigh &r) {
    return (r.n + r.rows - 1) / r.rows;
}

__device__ __forceinline__ double *rest_of(const dsc_rayleigh &r) {
    return r.sums + parts_of(r) * r.k * 2;
}

/* Returns the Rayleigh quotient of column j. */
__device__ __forceinline__ double quotient(const dsc_rayleigh &r, int64_t j) {
    double qy = 0, qq = 0;
    for (int64_t part = 0; part < parts_of(r); part++) {
        qy += r.sums[(part * r.k + j) * 2];
        qq += r.sums[(part * r.k + j) * 2 + 1];
    }
    return qq == 0 ? 0 : qy / qq;
}

/* Returns the sum over the threads of a column to the first of them. All threads call it. */
__device__ __forceinline__ double sum_lines(double (*shared)[LANES], double mine) {
    int line = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
    double sum = 0;
    __syncthreads();
    shared[line][lane] = mine;
    __syncthreads();
    for (int i = 0; line == 0 && i < LINES; i++)
        sum += shared[i][lane];
    return sum;
}

/* Sums the squared residuals if SECOND, else the products. */
template <typename T, bool SECOND>
__global__ void __launch_bounds__(THREADS) column_kernel(const __grid_constant__ rayleighs all) {
    __shared__ double shared[LINES][LANES];
    int64_t block;
    const dsc_rayleigh &r = dsc_tiles_find(all, block);
    const T *q = (const T *)r.q, *y = (const T *)r.y;
    int64_t n = r.n, k = r.k, groups = (k + LANES - 1) / LANES, part = block / groups;
    int64_t j = block % groups * LANES + threadIdx.x % LANES;
    int64_t row = part * r.rows, end = row + r.rows < n ? row + r.rows : n;
    double first = 0, second = 0, value = SECOND && j < k ? quotient(r, j) : 0;
    if (j < k)
        for (row += threadIdx.x / LANES; row < end; row += LINES) {
            double a = (double)q[row * k + j], b = (double)y[row * k + j];
            if (SECOND) {
                first += (b - value * a) * (b - value * a);
            } else {
                first += a * b;
                second += a * a;
            }
        }
    first = sum_lines(shared, first);
    if (!SECOND)
        second = sum_lines(shared, second);
    if (threadIdx.x >= LANES || j >= k)
        return;
    if (SECOND) {
        rest_of(r)[part * k + j] = first;
    } else {
        r.sums[(part * k + j) * 2] = first;
        r.sums[(part * k + j) * 2 + 1] = second;
    }
}

/* Each item has one block. */
template <typename T>
__global__ void __launch_bounds__(THREADS) result_kernel(const __grid_constant__ rayleighs all) {
    int64_t block;
    const dsc_rayleigh &r = dsc_tiles_find(all, block);
    double trace = 0, sum = 0, squares = 0;
    for (int64_t i = threadIdx.x; i < r.n; i += THREADS)
        trace += (double)((const T *)r.a)[i * (r.n + 1)];
    for (int64_t j = threadIdx.x; j < r.k; j += THREADS) {
        double value = quotient(r, j), rest = 0;
        for (int64_t part = 0; part < parts_of(r); part++)
            rest += rest_of(r)[part * r.k + j];
        ((T *)r.v)[j] = (T)value;
        sum += value;
        squares += dsc_residual_square(rest, value, r.delta);
    }
    trace = dsc_flat_sum(trace);
    sum = dsc_flat_sum(sum);
    squares = dsc_flat_sum(squares);
    if (threadIdx.x == 0) {
        r.result[0] = trace;
        r.result[1] = sum;
        r.result[2] = sqrt(squares / (double)r.k);
    }
}

template <typename T> cudaError_t measure(const dsc_cuda_launch *at, const dsc_rayleigh *items, int count) {
    rayleighs all;
    dsc_tiles_clear(&all);
    for (int i = 0; i < count; i++)
        dsc_tiles_add(&all, items[i], along(items[i].k, LANES) * parts_of(items[i]));
    DSC_LAUNCH((column_kernel<T, false>), dsc_tiles_blocks(&all), THREADS, 0, at->stream)(all);
    DSC_LAUNCH((column_kernel<T, true>), dsc_tiles_blocks(&all), THREADS, 0, at->stream)(all);
    dsc_tiles_clear(&all);
    for (int i = 0; i < count; i++)
        dsc_tiles_add(&all, items[i], 1);
    DSC_LAUNCH((result_kernel<T>), dsc_tiles_blocks(&all), THREADS, 0, at->stream)(all);
    return cudaGetLastError();
}

} // namespace

extern "C" cudaError_t dsc_cuda_launch_rotations(const dsc_cuda_launch *at, int wide,
                                                 const dsc_rotation *items, int count) {
    return wide ? rotate<double>(at, items, count) : rotate<float>(at, items, count);
}

extern "C" cudaError_t dsc_cuda_launch_rayleighs(const dsc_cuda_launch *at, int wide,
                                                 const dsc_rayleigh *items, int count) {
    return wide ? measure<double>(at, items, count) : measure<float>(at, items, count);
}
