/* Splits float matrices into sums of two fp16 matrices, and puts the results of their products together. Everything
 * is elementwise, but for the largest magnitude, an exact maximum for which the order of blocks does not matter. */
#include "device/cuda/gram.cuh"
#include "device/cuda/halves_kernels.h"
#include "device/cuda/patches.cuh"

namespace {

enum { THREADS = 256, EACH = 4, BLOCK_ROUNDS = 8, BLOCK_ELEMENTS = THREADS * EACH * BLOCK_ROUNDS };

/* After scaling, all magnitudes of a split matrix are below 2^(TOP+1) = 2^15. */
enum { TOP = 14 };

/* Returns the exponent of the power of two by which the elements of a matrix are multiplied. */
__device__ int shift_of(unsigned limit) {
    int exponent = (int)(limit >> 23);
    if (exponent == 255) /* infinity or NaN, which stay what they are */
        return 0;
    int shift = TOP + 127 - exponent;
    return shift > 126 ? 126 : shift; /* the power must be a float */
}

__device__ float power_of(int shift) {
    return __uint_as_float((unsigned)(shift + 127) << 23);
}

/* Returns the last item that begins at or before this block. */
template <class T> __device__ int find_item(const T &all, int block) {
    int low = 0, high = all.count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (all.items[middle].first <= block)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* ---- limits ---- */

__device__ unsigned magnitude(float x) {
    return __float_as_uint(x) & 0x7FFFFFFFu;
}

/* Returns the thread's largest magnitude in a part of a matrix. Reads four elements at a time if the rows are
 * contiguous. */
__device__ unsigned largest_of(const dsc_halves_matrix &m, int64_t begin, int64_t end) {
    unsigned mine = 0;
    if (m.step == m.columns && (uintptr_t)m.from % 16 == 0 && end - begin == BLOCK_ELEMENTS) {
        const uint4 *from = (const uint4 *)(m.from + begin) + threadIdx.x;
#pragma unroll
        for (int round = 0; round < BLOCK_ROUNDS; round++) {
            uint4 x = from[round * THREADS];
            unsigned two = max(x.x & 0x7FFFFFFFu, x.y & 0x7FFFFFFFu),
                     more = max(x.z & 0x7FFFFFFFu, x.w & 0x7FFFFFFFu);
            mine = max(mine, max(two, more));
        }
        return mine;
    }
#pragma unroll 4
    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS) {
        int64_t at = m.step == m.columns ? i : i / m.columns * m.step + i % m.columns;
        mine = max(mine, magnitude(m.from[at]));
    }
    return mine;
}

__global__ void __launch_bounds__(THREADS) limits_kernel(const __grid_constant__ dsc_halves_matrices all) {
    __shared__ unsigned largest;
    const dsc_halves_matrix &m = all.items[find_item(all, (int)blockIdx.x)];
    const int64_t count = (int64_t)m.given * m.columns;
    const int64_t begin = (int64_t)((int)blockIdx.x - m.first) * BLOCK_ELEMENTS;
    const int64_t end = begin + BLOCK_ELEMENTS < count ? begin + BLOCK_ELEMENTS : count;
    if (threadIdx.x == 0)
        largest = 0;
    __syncthreads();
    unsigned mine = largest_of(m, begin, end);
    for (int apart = 16; apart > 0; apart /= 2)
        mine = max(mine, __shfl_xor_sync(0xFFFFFFFFu, mine, apart));
    if (threadIdx.x % 32 == 0)
        atomicMax(&largest, mine);
    __syncthreads();
    if (threadIdx.x == 0)
        atomicMax(m.limit, largest);
}

/* ---- splitting ---- */

__device__ uint16_t half_bits(float x) {
    return __half_as_ushort(__float2half_rn(x));
}

__device__ float half_value(uint16_t bits) {
    return __half2float(__ushort_as_half(bits));
}

/* Stores four elements as fp16. */
__device__ void put(const float (&x)[EACH], uint16_t *to) {
    unsigned bits[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++)
        bits[i] = half_bits(x[i]);
    *(uint2 *)to = make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
}

/* Stores the high parts of four elements of a row and, if m asks for them, their low parts and their high parts times
 * 0.5. */
__device__ void put_parts(const dsc_halves_matrix &m, const float (&x)[EACH], int row, int column) {
    int64_t at = (int64_t)row * m.pitch + column;
    if (m.half) /* slices of three blocks */
        at += (int64_t)(row / DSC_GRAM_SLICE) * 2 * m.half;
    float high[EACH], rest[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        high[i] = half_value(half_bits(x[i]));
        rest[i] = x[i] - high[i];
    }
    put(high, m.high + at);
    if (m.low)
        put(rest, m.high + at + m.low);
    if (!m.half)
        return;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        high[i] *= 0.5f;
    put(high, m.high + at + m.half);
}

__global__ void __launch_bounds__(THREADS) split_kernel(const __grid_constant__ dsc_halves_matrices all) {
    const dsc_halves_matrix &m = all.items[find_item(all, (int)blockIdx.x)];
    const int64_t count = (int64_t)m.rows * m.pitch;
    const int64_t begin = (int64_t)((int)blockIdx.x - m.first) * BLOCK_ELEMENTS;
    const int64_t end = begin + BLOCK_ELEMENTS < count ? begin + BLOCK_ELEMENTS : count;
    const float power = power_of(shift_of(*m.limit));
#pragma unroll 4
    for (int64_t at = begin + (int)threadIdx.x * EACH; at < end; at += THREADS * EACH) {
        int row = (int)at / m.pitch,
            column = (int)at - row * m.pitch; /* a wave has fewer than 2^31 elements */
        const float *from = m.from + (int64_t)row * m.step + column;
        float x[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            x[i] = row < m.given && column + i < m.columns ? from[i] * power : 0;
            if (m.ones && column + i == m.columns && row < m.given)
                x[i] = (float)(1 << TOP);
        }
        put_parts(m, x, row, column);
    }
}

enum { PATCH_ROWS = 64, PATCH_LINES = 8, PATCH_COLUMNS = EACH * THREADS / PATCH_LINES };

/* Splits rows of patches: a thread has EACH columns, and every PATCH_LINES-th row of its block. */
__global__ void __launch_bounds__(THREADS)
    patches_kernel(const dsc_gram_patches p, const dsc_halves_matrix m, int64_t first_row, int across) {
    const int column0 =
        (int)blockIdx.x % across * PATCH_COLUMNS + (int)threadIdx.x % (THREADS / PATCH_LINES) * EACH;
    const int row0 = (int)blockIdx.x / across * PATCH_ROWS + (int)threadIdx.x / (THREADS / PATCH_LINES);
    const float power = power_of(shift_of(*m.limit));
    const float *from = (const float *)p.x;
    if (column0 >= m.pitch)
        return;
    column columns[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++)
        columns[i] = find_column(p, column0 + i);
    for (int row = row0; row < row0 + PATCH_ROWS && row < m.rows; row += PATCH_LINES) {
        float x[EACH] = {0, 0, 0, 0};
        if (row < m.given) {
            pixel v = find_pixel(p, find_place(p, first_row + row));
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                if (columns[i].kind == 1 && has_source(p, columns[i], v))
                    x[i] = from[v.offset + columns[i].offset] * power;
                else if (columns[i].kind == 2)
                    x[i] = (float)(1 << TOP);
            }
        }
        put_parts(m, x, row, column0);
    }
}

/* ---- results ---- */

__global__ void __launch_bounds__(THREADS) join_kernel(const __grid_constant__ dsc_halves_results all) {
    const dsc_halves_result &r = all.items[find_item(all, (int)blockIdx.x)];
    const int64_t count = (int64_t)r.m * r.n;
    const int64_t begin = (int64_t)((int)blockIdx.x - r.first) * BLOCK_ELEMENTS;
    const int64_t end = begin + BLOCK_ELEMENTS < count ? begin + BLOCK_ELEMENTS : count;
    const int shift = -shift_of(*r.limit_a) - shift_of(*r.limit_b), near = shift > -127 && shift < 128;
    const float power = near ? power_of(shift) : 1;
#pragma unroll 8
    for (int i = (int)begin + (int)threadIdx.x; i < end; i += THREADS) {
        int row = i / r.n;
        float sum = r.sum[row * r.pitch + (i - row * r.n)];
        sum = r.alpha * (near ? sum * power : scalbnf(sum, shift));
        r.c[i] = r.beta == 0 ? sum : sum + r.beta * r.c[i];
    }
}

enum { SIDE = 32, LINES = THREADS / SIDE };

/* A block computes a tile of the lower triangle. It sums over the parts in double, in order. */
__global__ void __launch_bounds__(THREADS) gram_kernel(const dsc_halves_gram g, const dsc_gram_target to) {
    __shared__ double mirror[SIDE][SIDE + 1];
    int64_t tile_row, tile_column;
    gram_find_tile(blockIdx.x, &tile_row, &tile_column);
    const int row0 = (int)tile_row * SIDE, column0 = (int)tile_column * SIDE;
    const int x = (int)threadIdx.x % SIDE, y = (int)threadIdx.x / SIDE;
    const int own = g.limit ? shift_of(*g.limit) : 0, one = g.limit ? TOP : 0;
    double sums[SIDE / LINES] = {}, turned[SIDE / LINES] = {};
#pragma unroll 4 /* keeps many loads in flight */
    for (int p = 0; p < g.parts; p++) {
        const float *s = g.sum + p * g.part;
#pragma unroll
        for (int n = 0; n < SIDE / LINES; n++) {
            int line = y + n * LINES;
            if (row0 + line < g.columns && column0 + x < g.columns)
                sums[n] += (double)s[(int64_t)(row0 + line) * g.pitch + column0 + x];
            if (g.limit && column0 + line < g.columns && row0 + x < g.columns)
                turned[n] += (double)s[(int64_t)(column0 + line) * g.pitch + row0 + x];
        }
    }
#pragma unroll
    for (int n = 0; n < SIDE / LINES; n++)
        mirror[y + n * LINES][x] = turned[n];
    __syncthreads();
    for (int n = 0; n < SIDE / LINES; n++) {
        int line = y + n * LINES, i = row0 + line, j = column0 + x;
        int shift = (i == g.ones ? one : own) + (j == g.ones ? one : own);
        double sum = scalbn(sums[n] + mirror[x][line], -shift);
        if (g.sums && i == g.ones) /* the last row; elements j > i are not written */
            sum = j < i ? (double)g.sums[j] : (double)g.rows;
        gram_put<float>(to, i, j, sum);
    }
}

/* ---- launches ---- */

int blocks_for(int64_t elements) {
    return (int)((elements + BLOCK_ELEMENTS - 1) / BLOCK_ELEMENTS);
}

} // namespace

extern "C" cudaError_t dsc_cuda_launch_halves_limits(const dsc_cuda_launch *at, dsc_halves_matrices *m) {
    m->blocks = 0;
    for (int i = 0; i < m->count; i++) {
        m->items[i].first = m->blocks;
        m->blocks += blocks_for((int64_t)m->items[i].given * m->items[i].columns);
    }
    if (m->blocks == 0)
        return cudaSuccess;
    DSC_LAUNCH((limits_kernel), (unsigned)m->blocks, THREADS, 0, at->stream)(*m);
    return cudaGetLastError();
}

extern "C" cudaError_t dsc_cuda_launch_halves_split(const dsc_cuda_launch *at, dsc_halves_matrices *m) {
    m->blocks = 0;
    for (int i = 0; i < m->count; i++) {
        m->items[i].first = m->blocks;
        m->blocks += blocks_for((int64_t)m->items[i].rows * m->items[i].pitch);
    }
    if (m->blocks == 0)
        return cudaSuccess;
    DSC_LAUNCH((split_kernel), (unsigned)m->blocks, THREADS, 0, at->stream)(*m);
    return cudaGetLastError();
}

extern "C" cudaError_t dsc_cuda_launch_halves_patches(const dsc_cuda_launch *at, const dsc_gram_patches *p,
                                                      const dsc_halves_matrix *m, int64_t first_row) {
    int across = (m->pitch + PATCH_COLUMNS - 1) / PATCH_COLUMNS,
        down = (m->rows + PATCH_ROWS - 1) / PATCH_ROWS;
    DSC_LAUNCH((patches_kernel), (unsigned)(across * down), THREADS, 0, at->stream)
    (*p, *m, first_row, across);
    return cudaGetLastError();
}

extern "C" cudaError_t dsc_cuda_launch_halves_join(const dsc_cuda_launch *at, dsc_halves_results *r) {
    r->blocks = 0;
    for (int i = 0; i < r->count; i++) {
        r->items[i].first = r->blocks;
        r->blocks += blocks_for((int64_t)r->items[i].m * r->items[i].n);
    }
    if (r->blocks == 0)
        return cudaSuccess;
    DSC_LAUNCH((join_kernel), (unsigned)r->blocks, THREADS, 0, at->stream)(*r);
    return cudaGetLastError();
}

extern "C" cudaError_t dsc_cuda_launch_halves_gram(const dsc_cuda_launch *at, const dsc_halves_gram *g,
                                                   const dsc_gram_target *to) {
    int64_t side = (to->n + SIDE - 1) / SIDE;
    DSC_LAUNCH((gram_kernel), (unsigned)(side * (side + 1) / 2), THREADS, 0, at->stream)(*g, *to);
    return cudaGetLastError();
}
