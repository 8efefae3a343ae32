/* Gram matrices of patches, the direct algorithm: for any convolution, P is formed tile by tile in shared memory.
 *
 * A block sums one tile of the lower triangle over its share of the rows, on tensor cores: floats are split into two
 * tf32 (the product of the low parts is left out), half-precision numbers are exact. Tensor cores truncate when they
 * add, so their sums cover only a stage (a few dozen rows) and are added up by ordinary additions; the blocks' sums
 * are added in double, in order. */
#include "device/cuda/gram.cuh"
#include "device/cuda/patches.cuh"

namespace {

enum { THREADS = 256, WARPS = THREADS / 32 };

/* A tile is cut into DOWN x ACROSS warp tiles; warps that are left over take other rows of P (APART sets of warps). */
template <int TILE> struct shape {
    enum {
        WARP_M = TILE == 128  ? 64
                 : TILE == 16 ? 16
                              : 32,
        WARP_N = TILE == 16 ? 16 : 32,
        DOWN = TILE / WARP_M,
        ACROSS = TILE / WARP_N,
        APART = WARPS / (DOWN * ACROSS),
        ROWS = TILE == 128  ? 32
               : TILE == 64 ? 64
               : TILE == 32 ? 128
                            : 256,
        OPERANDS = TILE > 32 ? 2 : 1,
        PITCH = TILE + 8 /* so that the lanes of a fragment read from different banks */
    };

    /* A warp's part of the tile: its first row and column, and its set of rows of P. */
    struct spot {
        int m, n, apart;
    };

    static __device__ spot find_spot() {
        int warp = (int)threadIdx.x / 32, inner = warp % (DOWN * ACROSS);
        return {inner / ACROSS * WARP_M, inner % ACROSS * WARP_N, warp / (DOWN * ACROSS)};
    }
};

/* How columns are read: one by one; four at a time; or four at a time from an x whose rows are those of P. */
enum { SCALAR, VECTOR, STRAIGHT };

/* Copies VEC elements to shared memory. */
template <int VEC> __device__ void copy(float *to, const float *from, int there) {
    if (VEC == 4)
        dsc_async16(to, from, there);
    else
        dsc_async4(to, from, there);
}

template <int VEC, typename H> __device__ void copy(H *to, const H *from, int there) {
    if (VEC == 4)
        dsc_async8(to, from, there);
    else
        to->bits = there ? from->bits : (uint16_t)0;
}

/* Copies VEC columns of a row of P. `row`: the row exists; `there`: it does, and its source is inside the image. */
template <int VEC, typename T>
__device__ void fetch(const dsc_gram_patches &p, const column &k, bool row, bool there, int64_t source,
                      T *to) {
    const T *x = (const T *)p.x;
    if (k.kind != 2) {
        copy<VEC>(to, there ? x + source : x, there);
        return;
    }
    T values[VEC] = {};
    if (row)
        gram_one(values[0]);
    for (int v = 0; v < VEC; v++)
        to[v] = values[v];
}

/* Loads stages of a tile's columns into shared memory, one after the other. */
template <typename T, int TILE, int MODE> struct loader {
    typedef shape<TILE> S;
    enum { VEC = MODE == SCALAR ? 1 : 4, GROUPS = TILE / VEC };
    enum { STEP = THREADS / GROUPS, PASSES = S::ROWS / STEP };
    column columns[S::OPERANDS];
    place at, step;
    int64_t row, end;
    int operands, place_in_tile;

    __device__ void begin(const dsc_gram_patches &p, int64_t tile_row, int64_t tile_column, int64_t first,
                          int64_t last) {
        int group = (int)threadIdx.x % GROUPS, mine = (int)threadIdx.x / GROUPS;
        operands = tile_row == tile_column ? 1 : (int)S::OPERANDS;
        int64_t down = tile_row * TILE + group * VEC, across = tile_column * TILE + group * VEC;
        columns[0] = MODE == STRAIGHT ? find_straight_column(p, down) : find_column(p, down);
        columns[S::OPERANDS - 1] =
            MODE == STRAIGHT ? find_straight_column(p, across) : find_column(p, across);
        place_in_tile = mine * S::PITCH + group * VEC;
        row = first + mine;
        end = last;
        if (MODE != STRAIGHT) {
            at = find_place(p, row);
            step = find_place(p, STEP);
        }
    }

    /* Loads the next stage. STRAIGHT: pixels are rows, and all columns belong to tap (0, 0). */
    __device__ void load(const dsc_gram_patches &p, T *stage) {
        T *to = stage + place_in_tile;
        int64_t line = MODE == STRAIGHT ? row * p.c : 0;
#pragma unroll 4
        for (int pass = 0; pass < PASSES; pass++) {
            bool inside = row < end;
            pixel v = {0, 0, line};
            if (MODE != STRAIGHT)
                v = find_pixel(p, at);
#pragma unroll
            for (int i = 0; i < S::OPERANDS; i++) {
                const column &k = columns[i];
                bool there = inside && (MODE == STRAIGHT ? k.kind == 1 : has_source(p, k, v));
                if (i < operands)
                    fetch<VEC>(p, k, inside, there, v.offset + k.offset, to + i * S::ROWS * S::PITCH);
            }
            to += STEP * S::PITCH;
            row += STEP;
            line += STEP * p.c;
            if (MODE != STRAIGHT)
                advance(p, step, &at);
        }
    }
};

/* acc += A' B over 8 rows of P; a and b point to this lane's element of the warp's columns. */
template <typename T, int TILE>
__device__ void multiply(const T *a, const T *b,
                         float (&acc)[shape<TILE>::WARP_M / 16][shape<TILE>::WARP_N / 8][4]) {
    typedef shape<TILE> S;
    enum { MT = S::WARP_M / 16, NT = S::WARP_N / 8 };
    uint32_t ah[MT][4], al[MT][4], bh[NT][2], bl[NT][2];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            gram_split(a[m * 16 + (i & 1) * 8 + (i >> 1) * 4 * S::PITCH], ah[m][i], al[m][i]);
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            gram_split(b[n * 8 + i * 4 * S::PITCH], bh[n][i], bl[n][i]);
#pragma unroll
    for (int part = gram_type<T>::SPLIT ? 0 : 2; part < 3; part++)
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < NT; n++)
                dsc_mma_tf32(acc[m][n], part == 0 ? al[m] : ah[m], part == 1 ? bl[n] : bh[n]);
}

/* The destination of a block's tile: its partial sums, or C. */
template <int TILE> struct sink {
    dsc_gram_target to;
    float *partial; /* NULL: to C */
    int64_t row, column;

    __device__ void put(int i, int j, float x, float y) const {
        if (partial) {
            *(float2 *)(partial + i * TILE + j) = make_float2(x, y);
        } else {
            gram_put<float>(to, row + i, column + j, x);
            gram_put<float>(to, row + i, column + j + 1, y);
        }
    }
};

/* Writes the warps' sums to `out`. If several warps have the same tile, their sums are first added in order, by way of
 * `parts` in shared memory. */
template <int TILE>
__device__ void put_tile(const float (&sum)[shape<TILE>::WARP_M / 16][shape<TILE>::WARP_N / 8][4],
                         float *parts, const sink<TILE> &out) {
    typedef shape<TILE> S;
    typename S::spot at = S::find_spot();
    int lane = dsc_lane();
    if (S::APART > 1)
        __syncthreads();
#pragma unroll
    for (int m = 0; m < S::WARP_M / 16; m++)
#pragma unroll
        for (int n = 0; n < S::WARP_N / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                int row = at.m + m * 16 + dsc_c_row(lane, i), column = at.n + n * 8 + dsc_c_column(lane, i);
                if (S::APART > 1)
                    *(float2 *)(parts + (at.apart * TILE + row) * TILE + column) =
                        make_float2(sum[m][n][i], sum[m][n][i + 1]);
                else
                    out.put(row, column, sum[m][n][i], sum[m][n][i + 1]);
            }
    if (S::APART == 1)
        return;
    __syncthreads();
    for (int e = 2 * (int)threadIdx.x; e < TILE * TILE; e += 2 * THREADS) {
        float x = parts[e], y = parts[e + 1];
        for (int other = 1; other < S::APART; other++) {
            x += parts[other * TILE * TILE + e];
            y += parts[other * TILE * TILE + e + 1];
        }
        out.put(e / TILE, e % TILE, x, y);
    }
}

template <typename T, int TILE, int MODE, int STAGES>
__global__ void __launch_bounds__(THREADS, TILE == 128 ? 1 : 2)
    gram_tile(const dsc_gram_patches p, const dsc_gram_plan plan, const dsc_gram_target to) {
    typedef shape<TILE> S;
    enum { MT = S::WARP_M / 16, NT = S::WARP_N / 8, OPERAND = S::ROWS * S::PITCH };
    DSC_SHARED(T, shared);
    unsigned split = blockIdx.x / (unsigned)plan.tiles, tile = blockIdx.x - split * (unsigned)plan.tiles;
    int64_t first = split * plan.chunk, last = min(first + plan.chunk, p.rows), tile_row, tile_column;
    gram_find_tile(tile, &tile_row, &tile_column);
    loader<T, TILE, MODE> load;
    load.begin(p, tile_row, tile_column, first, last);
    int stages = (int)((last - first + S::ROWS - 1) / S::ROWS);

    typename S::spot spot = S::find_spot();
    int mine = (dsc_lane() & 3) * S::PITCH + (dsc_lane() >> 2),
        b_place = tile_row == tile_column ? 0 : OPERAND;
    float sum[MT][NT][4] = {};
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < stages)
            load.load(p, shared + s * S::OPERANDS * OPERAND);
        dsc_async_commit();
    }
    for (int s = 0; s < stages; s++) {
        dsc_async_wait<STAGES - 2>();
        __syncthreads();
        if (s + STAGES - 1 < stages)
            load.load(p, shared + (s + STAGES - 1) % STAGES * S::OPERANDS * OPERAND);
        dsc_async_commit();
        const T *a = shared + s % STAGES * S::OPERANDS * OPERAND + mine, *b = a + b_place;
        float acc[MT][NT][4] = {};
#pragma unroll
        for (int k = 0; k < S::ROWS / 8 / S::APART; k++) {
            int row = (k * S::APART + spot.apart) * 8 * S::PITCH;
            multiply<T, TILE>(a + row + spot.m, b + row + spot.n, acc);
        }
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sum[m][n][i] += acc[m][n][i];
    }

    sink<TILE> out = {to, nullptr, tile_row * TILE, tile_column * TILE};
    if (plan.splits > 1)
        out.partial = plan.partial + (int64_t)blockIdx.x * TILE * TILE;
    put_tile<TILE>(sum, (float *)shared, out);
}

/* Adds up the splits. A block has THREADS / groups vectors of 4 elements, each of which is summed by `groups`
 * threads. */
__global__ void __launch_bounds__(THREADS)
    gram_finish(const dsc_gram_plan plan, const dsc_gram_target to, int groups) {
    DSC_SHARED(double, sums);
    int vectors = THREADS / groups, mine = (int)threadIdx.x % vectors, group = (int)threadIdx.x / vectors;
    int size = plan.tile * plan.tile, blocks = size / (4 * vectors); /* of a tile */
    unsigned tile = blockIdx.x / (unsigned)blocks;
    int e = ((int)(blockIdx.x - tile * (unsigned)blocks) * vectors + mine) * 4;
    const float *from = plan.partial + (int64_t)tile * size + e;
    double sum[4] = {};
#pragma unroll 4
    for (int64_t s = group; s < plan.splits; s += groups) {
        float4 x = *(const float4 *)(from + s * plan.tiles * size);
        sum[0] += x.x;
        sum[1] += x.y;
        sum[2] += x.z;
        sum[3] += x.w;
    }
    for (int i = 0; i < 4; i++)
        sums[i * THREADS + (int)threadIdx.x] = sum[i];
    __syncthreads();
    if (group > 0)
        return;
    int64_t tile_row, tile_column;
    gram_find_tile(tile, &tile_row, &tile_column);
    for (int i = 0; i < 4; i++) {
        for (int other = 1; other < groups; other++)
            sum[i] += sums[i * THREADS + other * vectors + mine];
        gram_put<float>(to, tile_row * plan.tile + e / plan.tile, tile_column * plan.tile + e % plan.tile + i,
                        sum[i]);
    }
}

/* The bytes of shared memory of a block. */
template <int TILE> size_t tile_shared(int in_flight, size_t element) {
    typedef shape<TILE> S;
    size_t stages = (size_t)in_flight * S::OPERANDS * S::ROWS * S::PITCH * element;
    size_t parts = S::APART > 1 ? (size_t)S::APART * TILE * TILE * sizeof(float) : 0;
    return stages > parts ? stages : parts;
}

template <typename T, int TILE, int MODE, int STAGES>
cudaError_t launch_stages(const dsc_cuda_launch *at, const dsc_gram_patches *p, const dsc_gram_plan *plan,
                          const dsc_gram_target *to) {
    size_t bytes = tile_shared<TILE>(STAGES, sizeof(T));
    cudaError_t error = gram_allow_shared((const void *)gram_tile<T, TILE, MODE, STAGES>, bytes);
    if (error != cudaSuccess)
        return error;
    DSC_LAUNCH((gram_tile<T, TILE, MODE, STAGES>), dim3((unsigned)(plan->tiles * plan->splits)),
               dim3(THREADS), bytes, at->stream)
    (*p, *plan, *to);
    return cudaGetLastError();
}

/* Uses two stages only where three stages of floats would not fit. */
template <typename T, int TILE, int MODE>
cudaError_t launch_tiles(const dsc_cuda_launch *at, const dsc_gram_patches *p, const dsc_gram_plan *plan,
                         const dsc_gram_target *to) {
    if constexpr (sizeof(T) == 4 && TILE >= 64) {
        if (plan->stages == 2)
            return launch_stages<T, TILE, MODE, 2>(at, p, plan, to);
    }
    return launch_stages<T, TILE, MODE, 3>(at, p, plan, to);
}

template <typename T, int MODE>
cudaError_t launch_typed(const dsc_cuda_launch *at, const dsc_gram_patches *p, const dsc_gram_plan *plan,
                         const dsc_gram_target *to) {
    switch (plan->tile) {
    case 16:
        return launch_tiles<T, 16, MODE>(at, p, plan, to);
    case 32:
        return launch_tiles<T, 32, MODE>(at, p, plan, to);
    case 64:
        return launch_tiles<T, 64, MODE>(at, p, plan, to);
    default:
        return launch_tiles<T, 128, MODE>(at, p, plan, to);
    }
}

template <typename T>
cudaError_t launch_any(const dsc_cuda_launch *at, const dsc_gram_patches *p, const dsc_gram_plan *plan,
                       const dsc_gram_target *to, int vector) {
    int straight = p->h == 1 && p->w == 1 && p->oh == 1 && p->ow == 1 && p->pad_h == 0 && p->pad_w == 0 &&
                   p->width == p->cg;
    return !vector    ? launch_typed<T, SCALAR>(at, p, plan, to)
           : straight ? launch_typed<T, STRAIGHT>(at, p, plan, to)
                      : launch_typed<T, VECTOR>(at, p, plan, to);
}

/* ---- double ---- */

enum { SIDE = 16, DEPTH = 16 };

__device__ double element(const dsc_gram_patches &p, const column &k, const place &at, bool inside) {
    pixel v = find_pixel(p, at);
    if (k.kind == 2)
        return inside ? 1 : 0;
    return inside && has_source(p, k, v) ? ((const double *)p.x)[v.offset + k.offset] : 0;
}

__global__ void __launch_bounds__(SIDE *SIDE)
    gram_double(const dsc_gram_patches p, const dsc_gram_target to) {
    __shared__ double a[DEPTH][SIDE + 1], b[DEPTH][SIDE + 1];
    int64_t tile_row, tile_column;
    gram_find_tile(blockIdx.x, &tile_row, &tile_column);
    int i = (int)threadIdx.x / SIDE, j = (int)threadIdx.x % SIDE;
    column ka = find_column(p, tile_row * SIDE + j), kb = find_column(p, tile_column * SIDE + j);
    double sum = 0;
    for (int64_t row = 0; row < p.rows; row += DEPTH) {
        bool inside = row + i < p.rows;
        place at = find_place(p, row + i);
        a[i][j] = element(p, ka, at, inside);
        b[i][j] = element(p, kb, at, inside);
        __syncthreads();
        for (int k = 0; k < DEPTH; k++)
            sum += a[k][i] * b[k][j];
        __syncthreads();
    }
    gram_put<double>(to, tile_row * SIDE + i, tile_column * SIDE + j, sum);
}

/* ---- patches ---- */

template <typename T>
__global__ void __launch_bounds__(THREADS)
    patch_elements(const dsc_gram_patches p, int64_t first, int64_t count, T *out) {
    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < count;
         e += (int64_t)gridDim.x * THREADS) {
        int64_t row = e / p.n;
        column k = find_column(p, e - row * p.n);
        T value = {};
        if (k.kind == 2) {
            gram_one(value);
        } else {
            pixel v = find_pixel(p, find_place(p, first + row));
            if (has_source(p, k, v))
                value = ((const T *)p.x)[v.offset + k.offset];
        }
        out[e] = value;
    }
}

template <typename T>
cudaError_t launch_patches(const dsc_cuda_launch *at, const dsc_gram_patches *p, int64_t first, int64_t rows,
                           void *out) {
    int64_t count = rows * p->n, blocks = (count + THREADS - 1) / THREADS;
    if (blocks > at->multiprocessors * 8)
        blocks = at->multiprocessors * 8;
    DSC_LAUNCH((patch_elements<T>), dim3((unsigned)blocks), dim3(THREADS), 0, at->stream)
    (*p, first, count, (T *)out);
    return cudaGetLastError();
}

} // namespace

extern "C" int dsc_cuda_gram_stage_rows(int tile) {
    const int rows[] = {shape<16>::ROWS, shape<32>::ROWS, shape<64>::ROWS, shape<128>::ROWS};
    return rows[tile == 16 ? 0 : tile == 32 ? 1 : tile == 64 ? 2 : 3];
}

extern "C" size_t dsc_cuda_gram_shared(dsc_dtype dtype, int tile, int stages) {
    size_t element = dtype == DSC_F32 ? 4 : 2;
    return tile == 16   ? tile_shared<16>(stages, element)
           : tile == 32 ? tile_shared<32>(stages, element)
           : tile == 64 ? tile_shared<64>(stages, element)
                        : tile_shared<128>(stages, element);
}

extern "C" cudaError_t dsc_cuda_launch_gram(const dsc_cuda_launch *at, const dsc_gram_patches *p,
                                            const dsc_gram_plan *plan, const dsc_gram_target *to,
                                            int vector) {
    cudaError_t error = p->dtype == DSC_F32    ? launch_any<float>(at, p, plan, to, vector)
                        : p->dtype == DSC_BF16 ? launch_any<dsc_half_bf16>(at, p, plan, to, vector)
                                               : launch_any<dsc_half_f16>(at, p, plan, to, vector);
    if (error != cudaSuccess || plan->splits == 1)
        return error;
    int groups = plan->tile == 16 ? 4 : 1; /* a block's vectors must belong to one tile */
    while (groups < 32 && groups * 4 < plan->splits)
        groups *= 2;
    int64_t vectors = plan->tiles * plan->tile * plan->tile / 4;
    DSC_LAUNCH((gram_finish), dim3((unsigned)(vectors * groups / THREADS)), dim3(THREADS),
               4 * THREADS * sizeof(double), at->stream)
    (*plan, *to, groups);
    return cudaGetLastError();
}

extern "C" cudaError_t dsc_cuda_launch_gram_double(const dsc_cuda_launch *at, const dsc_gram_patches *p,
                                                   const dsc_gram_target *to) {
    int64_t side = (p->n + SIDE - 1) / SIDE;
    DSC_LAUNCH((gram_double), dim3((unsigned)(side * (side + 1) / 2)), dim3(SIDE * SIDE), 0, at->stream)
    (*p, *to);
    return cudaGetLastError();
}

extern "C" cudaError_t dsc_cuda_launch_patches(const dsc_cuda_launch *at, const dsc_gram_patches *p,
                                               int64_t first, int64_t rows, void *out) {
    return p->dtype == DSC_F64    ? launch_patches<double>(at, p, first, rows, out)
           : p->dtype == DSC_F32  ? launch_patches<float>(at, p, first, rows, out)
           : p->dtype == DSC_BF16 ? launch_patches<dsc_half_bf16>(at, p, first, rows, out)
                                  : launch_patches<dsc_half_f16>(at, p, first, rows, out);
}
