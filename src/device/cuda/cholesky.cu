/* Cholesky factorisations of many matrices at once (cholesky.c describes the order of the steps). Matrices are
 * row-major.
 *
 * One block eliminates a panel's triangle in registers; only its inverse is used. Everything else is products of
 * 64 x 64 tiles: the rows of a panel times that inverse, and finished rows times finished rows. float32 is split
 * into two tf32 as in grouped.cu. */
#include "device/cuda/cholesky_kernels.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/tiles.cuh"

namespace {

enum { SIDE = DSC_PANEL, MOST = 90 };

/* The items of a launch. by, to: the columns that it reads and those that it writes; a panel's launch reads and
 * writes `by`. */
struct matrices {
    dsc_tiles<dsc_cholesky, MOST> tiles;
    dsc_column_range by, to;
};
static_assert(sizeof(matrices) <= 4000, "a launch takes at most 4000 bytes");

/* The number of tiles along `size` rows or columns. */
__host__ __device__ __forceinline__ int64_t along(int64_t size) {
    return size > 0 ? (size + SIDE - 1) / SIDE : 0;
}

__host__ __device__ __forceinline__ int least(int64_t a, int64_t b) {
    return (int)(a < b ? a : b);
}

/* ---- a panel's triangle ----
 *
 * Elimination of M = [A | I] without pivoting. One square array holds both the part of A that is not yet eliminated
 * and the part of I that has been changed. Step j, for the rows i > j:
 *   f = M[i,j] / M[j,j],   M[i,l] -= f M[j,l] for l != j,   M[i,j] = -f
 * leaves the pivots d on the diagonal and the inverse of the unit triangle below it; row i of L^-1 is row i of that
 * inverse divided by sqrt(d[i]). A thread holds every 16th element of every 16th row. */

enum { GRID = 16, EACH = SIDE / GRID, TRIANGLE_THREADS = GRID * GRID };

template <typename T> struct square { T at[EACH][EACH]; };

/* Loads H's diagonal block at `begin` as a full symmetric square; fills up with the identity beyond H's end. */
template <typename T>
__device__ __forceinline__ void load_square(const dsc_cholesky &item, int64_t begin, int y, int x,
                                            square<T> &m) {
    const T *h = (const T *)item.h;
    int64_t k = item.k;
#pragma unroll
    for (int a = 0; a < EACH; a++)
#pragma unroll
        for (int b = 0; b < EACH; b++) {
            int64_t i = begin + y + a * GRID, l = begin + x + b * GRID;
            if (i >= k || l >= k)
                m.at[a][b] = i == l ? (T)1 : (T)0;
            else
                m.at[a][b] = i >= l ? h[i * k + l] : h[l * k + i];
        }
}

/* Returns the pivot if it is positive and finite; else returns 1 and sets `bad`. */
template <typename T> __device__ __forceinline__ T checked(T pivot, int &bad) {
    if (pivot > 0 && pivot - pivot == 0) /* neither NaN nor infinite */
        return pivot;
    bad = 1;
    return 1;
}

/* Does steps GRID * COLUMN .. GRID * (COLUMN + 1) - 1. Shared memory has room for the rows and columns of two steps,
 * so that one barrier per step is enough. */
template <typename T, int COLUMN>
__device__ __forceinline__ void eliminate(square<T> &m, int y, int x, T (*row)[SIDE], T (*column)[SIDE],
                                          int &bad) {
    for (int step = 0; step < GRID; step++) {
        int j = COLUMN * GRID + step, turn = step % 2;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            if (x == step)
                column[turn][y + e * GRID] = m.at[e][COLUMN];
            if (y == step)
                row[turn][x + e * GRID] = m.at[COLUMN][e];
        }
        __syncthreads();
        T inverse = 1 / checked(column[turn][j], bad);
#pragma unroll
        for (int a = 0; a < EACH; a++) {
            if (y + a * GRID <= j)
                continue;
            T factor = column[turn][y + a * GRID] * inverse;
#pragma unroll
            for (int b = 0; b < EACH; b++)
                m.at[a][b] = x + b * GRID == j ? -factor : m.at[a][b] - factor * row[turn][x + b * GRID];
        }
    }
}

/* Writes an element of the diagonal block of L^-T, the transpose of the inverse. */
template <typename T>
__device__ __forceinline__ void store_turned(const dsc_cholesky &item, int64_t row, int64_t column, T value) {
    if (row < item.k && column < item.k)
        ((T *)item.h)[row * item.k + column] = value;
}

template <typename T>
__global__ void __launch_bounds__(TRIANGLE_THREADS) triangle_kernel(const __grid_constant__ matrices all) {
    __shared__ T row[2][SIDE], column[2][SIDE], pivots[SIDE];
    int64_t block;
    const dsc_cholesky &item = dsc_tiles_find(all.tiles, block);
    int y = (int)threadIdx.x / GRID, x = (int)threadIdx.x % GRID, bad = 0;
    square<T> m;
    load_square(item, all.by.begin, y, x, m);
    eliminate<T, 0>(m, y, x, row, column, bad);
    eliminate<T, 1>(m, y, x, row, column, bad);
    eliminate<T, 2>(m, y, x, row, column, bad);
    eliminate<T, 3>(m, y, x, row, column, bad);
#pragma unroll
    for (int a = 0; a < EACH; a++)
        if (x == y)
            pivots[y + a * GRID] = 1 / sqrt(checked(m.at[a][a], bad));
    __syncthreads();
    T *inverse = (T *)item.inverse;
#pragma unroll
    for (int a = 0; a < EACH; a++)
#pragma unroll
        for (int b = 0; b < EACH; b++) {
            int i = y + a * GRID, l = x + b * GRID;
            T scale = pivots[i], value = i == l ? scale : i > l ? m.at[a][b] * scale : (T)0;
            inverse[i * SIDE + l] = value;
            if (!item.z)
                store_turned(item, all.by.begin + l, all.by.begin + i, value);
        }
    if (bad)
        *item.failed = 1;
}

/* ---- tiles ---- */

/* C[rows, columns] = A B', or C - A B', of A[rows, terms] and B[columns, terms]; at most SIDE rows and columns.
 * C = A B' may overwrite A or B: C is written after both have been read completely. */
template <typename T> struct tile {
    const T *a, *b;
    T *c;
    int64_t a_width, b_width, c_width; /* from one row to the next */
    int rows, columns, terms;
    int fresh; /* 1: C's memory still holds something else and counts as 0 */
};

/* The number of tiles of those rows of Z that are not 0 in the columns before `end`. */
__host__ __device__ __forceinline__ int64_t tiles_of_z(const dsc_cholesky &item, int64_t end) {
    return item.z ? along(item.n) : along(end);
}

/* The rows of a tile, in H or in Z. */
template <typename T> struct place {
    T *data;
    int64_t first; /* first row, in its matrix */
    int rows, in_z;
};

/* Finds the rows of tile `number`: first come the tiles of H from row `below` on, then those of Z. */
template <typename T>
__device__ __forceinline__ place<T> find_rows(const dsc_cholesky &item, int64_t number, int64_t below) {
    int64_t k = item.k, in_h = along(k - below);
    place<T> p;
    p.in_z = number >= in_h;
    p.first = p.in_z ? (number - in_h) * SIDE : below + number * SIDE;
    p.data = (T *)(p.in_z && item.z ? item.z : item.h) + p.first * k;
    p.rows = least(SIDE, (p.in_z && item.z ? item.n : k) - p.first);
    return p;
}

/* The tile of a block of the panel's launch: the panel's columns of some rows. */
template <typename T>
__device__ __forceinline__ tile<T> panel_tile(const dsc_cholesky &item, const matrices &all, int64_t block) {
    int64_t k = item.k;
    place<T> p = find_rows<T>(item, block, all.by.end);
    tile<T> t;
    t.a = t.c = p.data + all.by.begin;
    t.b = (const T *)item.inverse;
    t.a_width = t.c_width = k;
    t.b_width = SIDE;
    t.rows = p.rows;
    t.columns = t.terms = least(SIDE, k - all.by.begin);
    t.fresh = 0;
    return t;
}

/* The number of tiles of a column of tiles of `to`: the rows of H from the diagonal down, and the rows of Z. */
__host__ __device__ __forceinline__ int64_t reduction_rows(const dsc_cholesky &item, const matrices &all,
                                                           int64_t column) {
    return along(item.k - all.to.begin - column * SIDE) + tiles_of_z(item, all.by.end);
}

/* The tile of a block of a reduction. Where Z starts as the identity, its rows begin at the diagonal: what lies before
 * it in memory belongs to L, and their place in the columns `to` still holds H. */
template <typename T>
__device__ __forceinline__ tile<T> reduction_tile(const dsc_cholesky &item, const matrices &all,
                                                  int64_t block) {
    int64_t k = item.k, column = 0;
    for (; block >= reduction_rows(item, all, column); column++)
        block -= reduction_rows(item, all, column);
    int64_t first = all.to.begin + column * SIDE, from = all.by.begin;
    place<T> p = find_rows<T>(item, block, first);
    tile<T> t;
    t.fresh = !item.z && p.in_z && p.first >= from;
    if (t.fresh)
        from = p.first;
    t.a = p.data + from;
    t.b = (const T *)item.h + first * k + from;
    t.c = p.data + first;
    t.a_width = t.b_width = t.c_width = k;
    t.rows = p.rows;
    t.columns = least(SIDE, least(all.to.end, k) - first);
    t.terms = (int)(all.by.end - from);
    return t;
}

/* The tile (i, j), j <= i, of U U', where U is the upper triangular matrix in the memory of H. */
template <typename T>
__device__ __forceinline__ tile<T> inverse_tile(const dsc_cholesky &item, int64_t i, int64_t j) {
    int64_t k = item.k;
    T *h = (T *)item.h;
    tile<T> t;
    t.a = h + i * SIDE * (k + 1);
    t.b = h + j * SIDE * k + i * SIDE;
    t.c = h + i * SIDE * k + j * SIDE;
    t.a_width = t.b_width = t.c_width = k;
    t.terms = (int)(k - i * SIDE);
    t.rows = least(SIDE, t.terms);
    t.columns = least(SIDE, k - j * SIDE);
    t.fresh = 0;
    return t;
}

/* ---- products of tiles in float, on tensor cores ---- */

enum { TILE_THREADS = 128, TERMS = 32, PITCH = TERMS + 4, STAGES = 3 };
enum { DOWN = 2, ACROSS = 4, PART = 32 }; /* a warp has a part of 32 x 32 */
enum { SLAB = SIDE * PITCH, SHARED = STAGES * 2 * SLAB * (int)sizeof(float) };

/* Copies TERMS terms of a tile's rows from term k0 on, EACH_COPY at a time; zeros outside the matrix. */
template <int EACH_COPY>
__device__ __forceinline__ void copy_slab(float *to, const float *from, int64_t width, int rows, int terms,
                                          int k0) {
    enum { COPIES = TERMS / EACH_COPY, STEP = TILE_THREADS / COPIES };
    int column = (int)threadIdx.x % COPIES * EACH_COPY;
#pragma unroll 4
    for (int row = (int)threadIdx.x / COPIES; row < SIDE; row += STEP) {
        int there = row < rows && k0 + column < terms;
        const float *source = from + (there ? row * width + k0 + column : 0);
        if (EACH_COPY == 4)
            dsc_async16(to + row * PITCH + column, source, there);
        else
            dsc_async4(to + row * PITCH + column, source, there);
    }
}

/* Returns true if rows can be copied 16 bytes at a time. */
__device__ __forceinline__ bool is_wide(const float *p, int64_t width, int terms) {
    return (uintptr_t)p % 16 == 0 && width % 4 == 0 && terms % 4 == 0;
}

__device__ __forceinline__ void copy_terms(float *to, const tile<float> &t, int k0) {
    if (is_wide(t.a, t.a_width, t.terms))
        copy_slab<4>(to, t.a, t.a_width, t.rows, t.terms, k0);
    else
        copy_slab<1>(to, t.a, t.a_width, t.rows, t.terms, k0);
    if (is_wide(t.b, t.b_width, t.terms))
        copy_slab<4>(to + SLAB, t.b, t.b_width, t.columns, t.terms, k0);
    else
        copy_slab<1>(to + SLAB, t.b, t.b_width, t.columns, t.terms, k0);
}

typedef float fragments[DOWN][ACROSS][4];

__device__ __forceinline__ void clear(fragments &x) {
#pragma unroll
    for (int i = 0; i < DOWN; i++)
#pragma unroll
        for (int j = 0; j < ACROSS; j++)
#pragma unroll
            for (int r = 0; r < 4; r++)
                x[i][j][r] = 0;
}

/* Adds the products of eight terms of a slab to a warp's part; a and b point to the part's first rows. */
__device__ __forceinline__ void multiply(fragments &c, const float *a, const float *b, int lane) {
    uint32_t high_a[DOWN][4], low_a[DOWN][4], high_b[ACROSS][2], low_b[ACROSS][2];
#pragma unroll
    for (int i = 0; i < DOWN; i++)
#pragma unroll
        for (int r = 0; r < 4; r++)
            dsc_tf32_split(a[(i * 16 + dsc_a_row(lane, r)) * PITCH + dsc_tf32_a_k(lane, r)], high_a[i][r],
                           low_a[i][r]);
#pragma unroll
    for (int j = 0; j < ACROSS; j++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            dsc_tf32_split(b[(j * 8 + dsc_b_column(lane)) * PITCH + dsc_tf32_b_k(lane, r)], high_b[j][r],
                           low_b[j][r]);
#pragma unroll
    for (int i = 0; i < DOWN; i++)
#pragma unroll
        for (int j = 0; j < ACROSS; j++)
            dsc_mma_tf32_split(c[i][j], high_a[i], low_a[i], high_b[j], low_b[j]);
}

/* Stores the warp's part of the tile, which begins at (row, column). */
template <bool REDUCE>
__device__ __forceinline__ void store(const tile<float> &t, int row, int column, int lane,
                                      const fragments &sum) {
#pragma unroll
    for (int i = 0; i < DOWN; i++)
#pragma unroll
        for (int j = 0; j < ACROSS; j++)
#pragma unroll
            for (int r = 0; r < 4; r++) {
                int y = row + i * 16 + dsc_c_row(lane, r), x = column + j * 8 + dsc_c_column(lane, r);
                float *to = t.c + y * t.c_width + x;
                if (y < t.rows && x < t.columns)
                    *to = REDUCE ? (t.fresh ? 0 : *to) - sum[i][j][r] : sum[i][j][r];
            }
}

template <bool REDUCE> __device__ __forceinline__ void make_tile(const tile<float> &t, float *shared) {
    int warp = (int)threadIdx.x / 32, lane = dsc_lane(), slabs = (t.terms + TERMS - 1) / TERMS;
    int row = warp / 2 * PART, column = warp % 2 * PART;
    fragments sum;
    clear(sum);
    auto copy = [&](int n) {
        if (n < slabs)
            copy_terms(shared + n % STAGES * 2 * SLAB, t, n * TERMS);
        dsc_async_commit();
    };
    for (int n = 0; n < STAGES - 1; n++)
        copy(n);
    for (int n = 0; n < slabs; n++) {
        const float *a = shared + n % STAGES * 2 * SLAB + row * PITCH;
        const float *b = shared + n % STAGES * 2 * SLAB + SLAB + column * PITCH;
        fragments window; /* a short sum, because tensor cores truncate when they add */
        dsc_async_wait<STAGES - 2>();
        __syncthreads(); /* slab n has arrived, and all are done with slab n - 1, whose place is refilled */
        copy(n + STAGES - 1);
        clear(window);
#pragma unroll
        for (int k = 0; k < TERMS; k += 8)
            multiply(window, a + k, b + k, lane);
#pragma unroll
        for (int i = 0; i < DOWN; i++)
#pragma unroll
            for (int j = 0; j < ACROSS; j++)
#pragma unroll
                for (int r = 0; r < 4; r++)
                    sum[i][j][r] += window[i][j][r];
    }
    store<REDUCE>(t, row, column, lane, sum);
}

/* ---- products of tiles in double ---- */

enum { WIDE_TERMS = 16, WIDE_ROWS = 4, WIDE_COLUMNS = 8, WIDE_SLAB = SIDE * (WIDE_TERMS + 1) };
static_assert(SIDE / WIDE_ROWS * (SIDE / WIDE_COLUMNS) == TILE_THREADS, "a thread has 4 x 8 elements");
static_assert(2 * WIDE_SLAB * sizeof(double) <= SHARED, "slabs of double have no more memory");

template <bool REDUCE> __device__ __forceinline__ void make_tile(const tile<double> &t, double *shared) {
    enum { ROW_STEP = SIDE / WIDE_ROWS, COLUMN_STEP = SIDE / WIDE_COLUMNS, WIDTH = WIDE_TERMS + 1 };
    int y = (int)threadIdx.x / COLUMN_STEP, x = (int)threadIdx.x % COLUMN_STEP;
    double sum[WIDE_ROWS][WIDE_COLUMNS] = {{0}};
    for (int k0 = 0; k0 < t.terms; k0 += WIDE_TERMS) {
        __syncthreads();
        for (int e = (int)threadIdx.x; e < SIDE * WIDE_TERMS; e += TILE_THREADS) {
            int row = e / WIDE_TERMS, k = e % WIDE_TERMS, there = k0 + k < t.terms;
            shared[row * WIDTH + k] = there && row < t.rows ? t.a[row * t.a_width + k0 + k] : 0;
            shared[WIDE_SLAB + row * WIDTH + k] =
                there && row < t.columns ? t.b[row * t.b_width + k0 + k] : 0;
        }
        __syncthreads();
        for (int k = 0; k < WIDE_TERMS; k++)
#pragma unroll
            for (int i = 0; i < WIDE_ROWS; i++)
#pragma unroll
                for (int j = 0; j < WIDE_COLUMNS; j++)
                    sum[i][j] += shared[(y + i * ROW_STEP) * WIDTH + k] *
                                 shared[WIDE_SLAB + (x + j * COLUMN_STEP) * WIDTH + k];
    }
#pragma unroll
    for (int i = 0; i < WIDE_ROWS; i++)
#pragma unroll
        for (int j = 0; j < WIDE_COLUMNS; j++) {
            int row = y + i * ROW_STEP, column = x + j * COLUMN_STEP;
            double *to = t.c + row * t.c_width + column;
            if (row < t.rows && column < t.columns)
                *to = REDUCE ? (t.fresh ? 0 : *to) - sum[i][j] : sum[i][j];
        }
}

/* ---- kernels and launches ---- */

template <typename T>
__global__ void __launch_bounds__(TILE_THREADS) panel_kernel(const __grid_constant__ matrices all) {
    DSC_SHARED(T, shared);
    int64_t block;
    const dsc_cholesky &item = dsc_tiles_find(all.tiles, block);
    make_tile<false>(panel_tile<T>(item, all, block), shared);
}

template <typename T>
__global__ void __launch_bounds__(TILE_THREADS) reduction_kernel(const __grid_constant__ matrices all) {
    DSC_SHARED(T, shared);
    int64_t block;
    const dsc_cholesky &item = dsc_tiles_find(all.tiles, block);
    make_tile<true>(reduction_tile<T>(item, all, block), shared);
}

/* Writes the tiles of the inverse below the diagonal, where nothing is needed any more; then, in another launch, those
 * on the diagonal, each of which only its own block still reads. */
template <typename T, bool DIAGONAL>
__global__ void __launch_bounds__(TILE_THREADS) inverse_kernel(const __grid_constant__ matrices all) {
    DSC_SHARED(T, shared);
    int64_t block, i = 1;
    const dsc_cholesky &item = dsc_tiles_find(all.tiles, block);
    while (!DIAGONAL && block >= i)
        block -= i++;
    make_tile<false>(inverse_tile<T>(item, DIAGONAL ? block : i, block), shared);
}

/* Each block copies a tile of the lower triangle to the upper. */
enum { MIRROR = 32, MIRROR_THREADS = 256, MIRROR_STEP = MIRROR_THREADS / MIRROR };

template <typename T>
__global__ void __launch_bounds__(MIRROR_THREADS) mirror_kernel(const __grid_constant__ matrices all) {
    __shared__ T turned[MIRROR][MIRROR + 1];
    int64_t block, i = 0;
    const dsc_cholesky &item = dsc_tiles_find(all.tiles, block);
    T *h = (T *)item.h;
    for (; block > i; i++)
        block -= i + 1;
    int64_t k = item.k, top = i * MIRROR, left = block * MIRROR;
    int column = (int)threadIdx.x % MIRROR, line = (int)threadIdx.x / MIRROR;
    for (int row = line; row < MIRROR; row += MIRROR_STEP)
        if (top + row < k && left + column <= top + row)
            turned[row][column] = h[(top + row) * k + left + column];
    __syncthreads();
    for (int row = line; row < MIRROR; row += MIRROR_STEP)
        if (top + column < k && left + row < top + column)
            h[(left + row) * k + top + column] = turned[column][row];
}

template <class Kernel>
cudaError_t launch(const dsc_cuda_launch *at, Kernel *kernel, unsigned threads, size_t shared,
                   matrices *all) {
    if (all->tiles.count == 0)
        return cudaSuccess;
    cudaError_t error =
        shared > 0 ? cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared)
                   : cudaSuccess;
    if (error != cudaSuccess)
        return error;
    DSC_LAUNCH(kernel, dsc_tiles_blocks(&all->tiles), threads, shared, at->stream)(*all);
    dsc_tiles_clear(&all->tiles);
    return cudaGetLastError();
}

/* Launches a kernel on all items, with as many items per launch as its arguments have room for. */
template <class Kernel, class Blocks>
cudaError_t launch_all(const dsc_cuda_launch *at, Kernel *kernel, unsigned threads, size_t shared,
                       const dsc_cholesky *items, int count, matrices *all, Blocks blocks) {
    cudaError_t error = cudaSuccess;
    dsc_tiles_clear(&all->tiles);
    for (int i = 0; i < count && error == cudaSuccess; i++) {
        dsc_tiles_add(&all->tiles, items[i], blocks(items[i]));
        if (all->tiles.count == MOST)
            error = launch(at, kernel, threads, shared, all);
    }
    return error == cudaSuccess ? launch(at, kernel, threads, shared, all) : error;
}

template <typename T>
cudaError_t panels(const dsc_cuda_launch *at, const dsc_cholesky *items, int count, int32_t begin) {
    matrices all;
    all.by = all.to = {begin, begin + SIDE};
    cudaError_t error = launch_all(at, triangle_kernel<T>, TRIANGLE_THREADS, 0, items, count, &all,
                                   [&](const dsc_cholesky &item) -> int64_t { return item.k > begin; });
    if (error != cudaSuccess)
        return error;
    return launch_all(at, panel_kernel<T>, TILE_THREADS, SHARED, items, count, &all,
                      [&](const dsc_cholesky &item) -> int64_t {
                          return item.k > begin ? along(item.k - all.by.end) + tiles_of_z(item, begin) : 0;
                      });
}

template <typename T>
cudaError_t reductions(const dsc_cuda_launch *at, const dsc_cholesky *items, int count, dsc_column_range by,
                       dsc_column_range to) {
    matrices all;
    all.by = by;
    all.to = to;
    return launch_all(at, reduction_kernel<T>, TILE_THREADS, SHARED, items, count, &all,
                      [&](const dsc_cholesky &item) -> int64_t {
                          int64_t blocks = 0, columns = along(least(to.end, item.k) - to.begin);
                          for (int64_t column = 0; column < columns; column++)
                              blocks += reduction_rows(item, all, column);
                          return blocks;
                      });
}

template <typename T> cudaError_t inverses(const dsc_cuda_launch *at, const dsc_cholesky *items, int count) {
    matrices all;
    cudaError_t error =
        launch_all(at, inverse_kernel<T, false>, TILE_THREADS, SHARED, items, count, &all,
                   [](const dsc_cholesky &item) { return along(item.k) * (along(item.k) - 1) / 2; });
    if (error != cudaSuccess)
        return error;
    error = launch_all(at, inverse_kernel<T, true>, TILE_THREADS, SHARED, items, count, &all,
                       [](const dsc_cholesky &item) { return along(item.k); });
    if (error != cudaSuccess)
        return error;
    return launch_all(at, mirror_kernel<T>, MIRROR_THREADS, 0, items, count, &all,
                      [](const dsc_cholesky &item) {
                          int64_t tiles = (item.k + MIRROR - 1) / MIRROR;
                          return tiles * (tiles + 1) / 2;
                      });
}

} // namespace

extern "C" cudaError_t dsc_cuda_launch_panels(const dsc_cuda_launch *at, int wide, const dsc_cholesky *items,
                                              int count, int32_t begin) {
    return wide ? panels<double>(at, items, count, begin) : panels<float>(at, items, count, begin);
}

extern "C" cudaError_t dsc_cuda_launch_reductions(const dsc_cuda_launch *at, int wide,
                                                  const dsc_cholesky *items, int count, dsc_column_range by,
                                                  dsc_column_range to) {
    return wide ? reductions<double>(at, items, count, by, to) : reductions<float>(at, items, count, by, to);
}

extern "C" cudaError_t dsc_cuda_launch_inverses(const dsc_cuda_launch *at, int wide,
                                                const dsc_cholesky *items, int count) {
    return wide ? inverses<double>(at, items, count) : inverses<float>(at, items, count);
}
