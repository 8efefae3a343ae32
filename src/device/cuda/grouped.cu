/* Many products at once on tensor cores.
 *
 * A block computes one tile of one C. Slabs of K terms of both operands go through a ring of STAGES places in shared
 * memory; each warp holds its part of the tile as fragments. Warps of different "slices" take different terms of a
 * slab; their sums are added at the end in a fixed order.
 *
 * float32 on tensor cores: each operand is split into two tf32 (11 bits each), and three of the four products are
 * computed. Because tensor cores truncate when they add, a fragment accumulates only WINDOW * 8 terms and is then
 * added to an ordinary sum. */
#include "device/cuda/grouped_kernels.h"
#include "device/cuda/mma.cuh"

/* ---- shapes of tiles ---- */

template <int M_, int N_, int WARPS_M_, int WARPS_N_, int SLICES_, int K_, int BLOCKS_, int FAST_BLOCKS_>
struct tile_shape {
    static constexpr int M = M_, N = N_, K = K_;
    static constexpr int WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, SLICES = SLICES_;
    static constexpr int BLOCKS = BLOCKS_, FAST_BLOCKS = FAST_BLOCKS_; /* per multiprocessor, at least */
    static constexpr int STAGES = 4, WINDOW = 4;
    static constexpr int WARPS = WARPS_M * WARPS_N, THREADS = 32 * WARPS * SLICES;
    static constexpr int ROWS = M / WARPS_M, COLUMNS = N / WARPS_N; /* of a warp */
    static constexpr int DOWN = ROWS / 16, ACROSS = COLUMNS / 8;    /* fragments of a warp */
    static constexpr int STEPS = K / 8 / SLICES;                    /* steps of a warp per slab */
    static constexpr int SLABS = WINDOW / STEPS;                    /* slabs that a fragment accumulates */
    /* Floats of a slab of A and of B, enough for both layouts, and of both slabs. */
    static constexpr int SIZE_A = M * K + (4 * M > 8 * K ? 4 * M : 8 * K);
    static constexpr int SIZE_B = N * K + (4 * N > 8 * K ? 4 * N : 8 * K);
    static constexpr int STAGE = SIZE_A + SIZE_B;
    static constexpr int SHARED = STAGES * STAGE * (int)sizeof(float);
};

typedef tile_shape<128, 128, 2, 4, 1, 16, 1, 2> large_tile;
typedef tile_shape<64, 64, 2, 2, 2, 32, 2, 2> medium_tile;
typedef tile_shape<32, 32, 1, 1, 4, 32, 4, 4> small_tile;

/* A slab of one operand: SIDE of its rows or columns, K terms. Its layout in shared memory is the one in global memory:
 * either terms are next to each other (ALONG = 1), or each line has one term. The padding spreads both the rows of a
 * copy and the lanes of a fragment over all banks. */
template <int SIDE, int K, int ALONG> struct slab {
    static constexpr int LINES = ALONG ? SIDE : K, WIDTH = ALONG ? K : SIDE;
    static constexpr int PITCH = ALONG ? K + 4 : SIDE + 8;

    static __device__ __forceinline__ int at(int i, int k) {
        return ALONG ? i * PITCH + k : k * PITCH + i;
    }
};

/* ---- copies ---- */

/* An operand with `side` rows or columns, as many as C has, and `k` terms. */
struct operand {
    const float *data;
    int side, k, wide;
};

/* Copies the slab that begins at row or column i0 and term k0, EACH floats at a time; zeros outside the matrix. */
template <class L, int ALONG, int THREADS, int EACH>
static __device__ __forceinline__ void copy_lines(float *to, const operand &x, int i0, int k0) {
    constexpr int STEP = THREADS * EACH / L::WIDTH; /* lines that the threads copy at once */
    static_assert(THREADS * EACH % L::WIDTH == 0 && L::LINES % STEP == 0, "every thread copies as much");
    const int lines = ALONG ? x.side : x.k, width = ALONG ? x.k : x.side;
    const int line = (int)threadIdx.x * EACH / L::WIDTH, column = (int)threadIdx.x * EACH % L::WIDTH;
    const int from_line = (ALONG ? i0 : k0) + line, from_column = (ALONG ? k0 : i0) + column;
    int64_t from = (int64_t)from_line * width + from_column;
#pragma unroll(EACH == 4 ? L::LINES / STEP : 2)
    for (int n = 0; n < L::LINES; n += STEP) {
        int there = from_line + n < lines && from_column < width;
        if (EACH == 4)
            dsc_async16(to + (line + n) * L::PITCH + column, x.data + (there ? from : 0), there);
        else
            dsc_async4(to + (line + n) * L::PITCH + column, x.data + (there ? from : 0), there);
        from += (int64_t)STEP * width;
    }
}

template <class L, int ALONG, int THREADS>
static __device__ __forceinline__ void copy_slab(float *to, const operand &x, int i0, int k0) {
    if (x.wide)
        copy_lines<L, ALONG, THREADS, 4>(to, x, i0, k0);
    else
        copy_lines<L, ALONG, THREADS, 1>(to, x, i0, k0);
}

/* ---- products ---- */

/* A warp's slice, and the position of its part in the tile. */
struct place {
    int lane, warp, slice, row, column;
};

template <class S> static __device__ __forceinline__ place find_place() {
    place p;
    int warp = (int)threadIdx.x / 32;
    p.lane = dsc_lane();
    p.slice = warp / S::WARPS;
    p.warp = warp % S::WARPS;
    p.row = p.warp / S::WARPS_N * S::ROWS;
    p.column = p.warp % S::WARPS_N * S::COLUMNS;
    return p;
}

template <class S> using fragments = float[S::DOWN][S::ACROSS][4];

template <class S> static __device__ __forceinline__ void clear(fragments<S> &x) {
#pragma unroll
    for (int i = 0; i < S::DOWN; i++)
#pragma unroll
        for (int j = 0; j < S::ACROSS; j++)
#pragma unroll
            for (int r = 0; r < 4; r++)
                x[i][j][r] = 0;
}

template <class S> static __device__ __forceinline__ void add_to(fragments<S> &sum, const fragments<S> &x) {
#pragma unroll
    for (int i = 0; i < S::DOWN; i++)
#pragma unroll
        for (int j = 0; j < S::ACROSS; j++)
#pragma unroll
            for (int r = 0; r < 4; r++)
                sum[i][j][r] += x[i][j][r];
}

template <class S>
static __device__ __forceinline__ void multiply(fragments<S> &c, const uint32_t (&a)[S::DOWN][4],
                                                const uint32_t (&b)[S::ACROSS][2]) {
#pragma unroll
    for (int i = 0; i < S::DOWN; i++)
#pragma unroll
        for (int j = 0; j < S::ACROSS; j++)
            dsc_mma_tf32(c[i][j], a[i], b[j]);
}

/* Adds the products of eight terms of a slab, from k on. Small products come first, and each kind is done for all
 * fragments in turn, so that a product seldom waits for the one before. */
template <class S, int FAST, class A, class B>
static __device__ __forceinline__ void multiply_step(fragments<S> &c, const float *a, const float *b,
                                                     const place &p, int k) {
    uint32_t high_a[S::DOWN][4], low_a[S::DOWN][4], high_b[S::ACROSS][2], low_b[S::ACROSS][2];
#pragma unroll
    for (int i = 0; i < S::DOWN; i++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float x = a[A::at(p.row + i * 16 + dsc_a_row(p.lane, r), k + dsc_tf32_a_k(p.lane, r))];
            if (FAST)
                high_a[i][r] = dsc_tf32(x);
            else
                dsc_tf32_split(x, high_a[i][r], low_a[i][r]);
        }
#pragma unroll
    for (int j = 0; j < S::ACROSS; j++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float x = b[B::at(p.column + j * 8 + dsc_b_column(p.lane), k + dsc_tf32_b_k(p.lane, r))];
            if (FAST)
                high_b[j][r] = dsc_tf32(x);
            else
                dsc_tf32_split(x, high_b[j][r], low_b[j][r]);
        }
    if (!FAST) {
        multiply<S>(c, low_a, high_b);
        multiply<S>(c, high_a, low_b);
    }
    multiply<S>(c, high_a, high_b);
}

/* ---- results ---- */

/* Adds the other slices' sums, in order, to those of slice 0. */
template <class S>
static __device__ __forceinline__ void gather_slices(float *shared, const place &p, fragments<S> &sum) {
    constexpr int COUNT = S::DOWN * S::ACROSS * 4;
    float *mine = shared + (p.slice * S::WARPS + p.warp) * COUNT * 32 + p.lane;
    __syncthreads();
    if (p.slice > 0)
#pragma unroll
        for (int n = 0; n < COUNT; n++)
            mine[n * 32] = sum[n / 4 / S::ACROSS][n / 4 % S::ACROSS][n % 4];
    __syncthreads();
    if (p.slice == 0)
        for (int slice = 1; slice < S::SLICES; slice++)
#pragma unroll
            for (int n = 0; n < COUNT; n++)
                sum[n / 4 / S::ACROSS][n / 4 % S::ACROSS][n % 4] += mine[(slice * S::WARPS * COUNT + n) * 32];
}

static __device__ __forceinline__ void store_one(const dsc_product &item, int64_t e, float sum) {
    float value = item.alpha * sum;
    item.c[e] = item.beta == 0 ? value : value + item.beta * item.c[e];
}

static __device__ __forceinline__ void store_pair(const dsc_product &item, int64_t e, float x, float y) {
    float2 *to = reinterpret_cast<float2 *>(item.c + e), value = make_float2(item.alpha * x, item.alpha * y);
    if (item.beta != 0) {
        float2 old = *to;
        value.x += item.beta * old.x;
        value.y += item.beta * old.y;
    }
    *to = value;
}

/* Stores the warp's part of C, which begins at (row, column). */
template <class S>
static __device__ __forceinline__ void store(const dsc_product &item, int row, int column, int lane,
                                             const fragments<S> &sum) {
#pragma unroll
    for (int i = 0; i < S::DOWN; i++)
#pragma unroll
        for (int j = 0; j < S::ACROSS; j++)
#pragma unroll
            for (int r = 0; r < 4; r += 2) {
                int y = row + i * 16 + dsc_c_row(lane, r), x = column + j * 8 + dsc_c_column(lane, r);
                int64_t e = (int64_t)y * item.n + x;
                if (y >= item.m || x >= item.n)
                    continue;
                if (item.flags & DSC_PRODUCT_PAIRS_C) {
                    store_pair(item, e, sum[i][j][r], sum[i][j][r + 1]);
                } else {
                    store_one(item, e, sum[i][j][r]);
                    if (x + 1 < item.n)
                        store_one(item, e + 1, sum[i][j][r + 1]);
                }
            }
}

/* ---- one tile ---- */

/* Computes the tile at (row, column) of C; TA, TB: 1 if A or B is transposed. */
template <class S, int FAST, int TA, int TB>
static __device__ __forceinline__ void make_tile(const dsc_product &item, int row, int column,
                                                 float *shared) {
    typedef slab<S::M, S::K, !TA> A;
    typedef slab<S::N, S::K, TB> B;
    const operand a = {item.a, item.m, item.k, item.flags & DSC_PRODUCT_WIDE_A};
    const operand b = {item.b, item.n, item.k, item.flags & DSC_PRODUCT_WIDE_B};
    const place p = find_place<S>();
    const int slabs = (item.k + S::K - 1) / S::K;
    const int used = row + p.row < item.m && column + p.column < item.n;
    fragments<S> sum, window; /* FAST: one window for all terms */

    auto copy = [&](int n) {
        float *to = shared + n % S::STAGES * S::STAGE;
        if (n < slabs) {
            copy_slab<A, !TA, S::THREADS>(to, a, row, n * S::K);
            copy_slab<B, TB, S::THREADS>(to + S::SIZE_A, b, column, n * S::K);
        }
        dsc_async_commit();
    };

    clear<S>(sum);
    clear<S>(window);
    for (int n = 0; n < S::STAGES - 1; n++)
        copy(n);
    for (int n = 0; n < slabs; n++) {
        const float *from = shared + n % S::STAGES * S::STAGE;
        dsc_async_wait<S::STAGES - 2>();
        __syncthreads(); /* slab n has arrived, and all are done with slab n - 1, whose place is refilled */
        copy(n + S::STAGES - 1);
        if (!used)
            continue;
#pragma unroll
        for (int step = 0; step < S::STEPS; step++)
            multiply_step<S, FAST, A, B>(window, from, from + S::SIZE_A, p, (p.slice * S::STEPS + step) * 8);
        if (!FAST && n % S::SLABS == S::SLABS - 1) {
            add_to<S>(sum, window);
            clear<S>(window);
        }
    }
    add_to<S>(sum, window);
    dsc_async_wait<0>();
    if (S::SLICES > 1)
        gather_slices<S>(shared, p, sum);
    if (used && p.slice == 0)
        store<S>(item, row + p.row, column + p.column, p.lane, sum);
}

/* Returns the index of the item that tile `number` belongs to. */
static __device__ __forceinline__ int find_item(const dsc_products &products, int number) {
    int low = 0, high = products.count; /* item `low` begins at or before the tile, `high` after it */
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (products.items[middle].first <= number)
            low = middle;
        else
            high = middle;
    }
    return low;
}

template <class S, int FAST>
static __global__ void __launch_bounds__(S::THREADS, FAST ? S::FAST_BLOCKS : S::BLOCKS)
    products_kernel(const __grid_constant__ dsc_products products) {
    DSC_SHARED(float, shared);
    const dsc_product &item = products.items[find_item(products, (int)blockIdx.x)];
    const int number = (int)blockIdx.x - item.first, down = (item.m + S::M - 1) / S::M;
    const int row = number % down * S::M, column = number / down * S::N; /* neighbours share columns of B */
    switch (item.flags & (DSC_PRODUCT_TRANS_A | DSC_PRODUCT_TRANS_B)) {
    case 0:
        make_tile<S, FAST, 0, 0>(item, row, column, shared);
        break;
    case DSC_PRODUCT_TRANS_A:
        make_tile<S, FAST, 1, 0>(item, row, column, shared);
        break;
    case DSC_PRODUCT_TRANS_B:
        make_tile<S, FAST, 0, 1>(item, row, column, shared);
        break;
    default:
        make_tile<S, FAST, 1, 1>(item, row, column, shared);
    }
}

/* ---- float64 ---- */

enum { WIDE_SIDE = 16 };

static __global__ void __launch_bounds__(WIDE_SIDE *WIDE_SIDE) wide_kernel(const dsc_wide_product p) {
    __shared__ double a[WIDE_SIDE][WIDE_SIDE + 1], b[WIDE_SIDE][WIDE_SIDE + 1];
    const int x = (int)threadIdx.x % WIDE_SIDE, y = (int)threadIdx.x / WIDE_SIDE;
    const int64_t across = (p.n + WIDE_SIDE - 1) / WIDE_SIDE;
    const int64_t row0 = blockIdx.x / across * WIDE_SIDE, column0 = blockIdx.x % across * WIDE_SIDE;
    double sum = 0;
    for (int64_t k0 = 0; k0 < p.k; k0 += WIDE_SIDE) {
        int64_t ay = p.trans_a ? k0 + y : row0 + y, ax = p.trans_a ? row0 + x : k0 + x;
        int64_t by = p.trans_b ? column0 + y : k0 + y, bx = p.trans_b ? k0 + x : column0 + x;
        int64_t a_lines = p.trans_a ? p.k : p.m, a_width = p.trans_a ? p.m : p.k;
        int64_t b_lines = p.trans_b ? p.n : p.k, b_width = p.trans_b ? p.k : p.n;
        a[y][x] = ay < a_lines && ax < a_width ? p.a[ay * a_width + ax] : 0;
        b[y][x] = by < b_lines && bx < b_width ? p.b[by * b_width + bx] : 0;
        __syncthreads();
        for (int k = 0; k < WIDE_SIDE; k++)
            sum += (p.trans_a ? a[k][y] : a[y][k]) * (p.trans_b ? b[x][k] : b[k][x]);
        __syncthreads();
    }
    if (row0 + y < p.m && column0 + x < p.n) {
        double *to = p.c + (row0 + y) * p.n + column0 + x;
        *to = p.beta == 0 ? p.alpha * sum : p.alpha * sum + p.beta * *to;
    }
}

/* ---- launches ---- */

template <class S, int FAST>
static cudaError_t launch(const dsc_cuda_launch *at, const dsc_products *products) {
    cudaError_t error = cudaFuncSetAttribute((const void *)products_kernel<S, FAST>,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED);
    if (error != cudaSuccess)
        return error;
    DSC_LAUNCH((products_kernel<S, FAST>), products->tiles, S::THREADS, S::SHARED, at->stream)(*products);
    return cudaGetLastError();
}

template <class S>
static cudaError_t launch_either(const dsc_cuda_launch *at, const dsc_products *products, int fast) {
    return fast ? launch<S, 1>(at, products) : launch<S, 0>(at, products);
}

extern "C" cudaError_t dsc_cuda_launch_products(const dsc_cuda_launch *at, const dsc_products *products,
                                                dsc_product_tile tile, int fast) {
    switch (tile) {
    case DSC_TILE_128:
        return launch_either<large_tile>(at, products, fast);
    case DSC_TILE_64:
        return launch_either<medium_tile>(at, products, fast);
    default:
        return launch_either<small_tile>(at, products, fast);
    }
}

extern "C" cudaError_t dsc_cuda_launch_wide_product(const dsc_cuda_launch *at,
                                                    const dsc_wide_product *product) {
    int64_t tiles = dsc_tiles_along(product->m, WIDE_SIDE) * dsc_tiles_along(product->n, WIDE_SIDE);
    DSC_LAUNCH((wide_kernel), (unsigned)tiles, WIDE_SIDE * WIDE_SIDE, 0, at->stream)(*product);
    return cudaGetLastError();
}
