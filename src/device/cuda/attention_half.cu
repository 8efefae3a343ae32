/* Multi-head self-attention in half precision on tensor cores, with sums in float32.
 *
 * A block of WARPS warps owns a tile of queries (or keys) of one head, 16 or 32 rows per warp, and loops over all tiles
 * of N keys (or queries), which are copied to shared memory while it works on the tile before. Products of two
 * fragments stay in registers: an accumulator has the layout of the left operand of the next product.
 *
 * The backward pass has two kernels. The first, by tiles of queries, computes delta = rowsum(dY Y), which it also
 * writes for the second, and dQ. The second, by tiles of keys, computes dK and dV from S' and dP', the transposes. S
 * and dP are thus computed twice, but every sum is added in a fixed order and there are no atomics. */
#include "device/cuda/attention_half.cuh"

enum { WARPS = 4, HALF_THREADS = 32 * WARPS, STAGES = 2 };

/* ---- tiles in shared memory ----
 *
 * Rows of D half-precision numbers, padded by 16 bytes so that the eight rows of a matrix that ldmatrix reads lie in
 * different banks. */
template <int D> struct tile { static constexpr int PITCH = D + 8; };

/* Copies rows of dh numbers, `stride` apart; fills up with zeros after the last of `rows` rows and the last channel. */
template <int ROWS, int D, typename T>
static __device__ __forceinline__ void copy_tile(T *to, const T *from, int64_t stride, int64_t rows,
                                                 int64_t dh) {
    constexpr int EACH = D / 8;
    static_assert(ROWS * EACH % HALF_THREADS == 0, "every thread copies as much");
#pragma unroll
    for (int n = 0; n < ROWS * EACH / HALF_THREADS; n++) {
        int i = (int)threadIdx.x + n * HALF_THREADS, row = i / EACH, column = i % EACH * 8;
        int there = row < rows && column < dh;
        dsc_async16(to + row * tile<D>::PITCH + column, from + (there ? row * stride + column : 0), there);
    }
}

/* Loads rows r .. r + 15, columns k .. k + 15 as a left operand. */
template <int D, typename T>
static __device__ __forceinline__ void left_fragment(uint32_t (&a)[4], const T *rows, int r, int k) {
    int lane = dsc_lane();
    dsc_ldmatrix(a, rows + (r + lane % 16) * tile<D>::PITCH + k + lane / 16 * 8);
}

/* Loads the right operands of two products with 8 columns each, from a tile whose rows are the operand's columns. */
template <int D, typename T>
static __device__ __forceinline__ void right_fragments(uint32_t (&b)[2][2], const T *rows, int n, int k) {
    int lane = dsc_lane();
    uint32_t r[4];
    dsc_ldmatrix(r, rows + (n + lane % 8 + lane / 16 * 8) * tile<D>::PITCH + k + lane / 8 % 2 * 8);
    b[0][0] = r[0], b[0][1] = r[1], b[1][0] = r[2], b[1][1] = r[3];
}

/* The same from a tile whose rows are the operand's rows. */
template <int D, typename T>
static __device__ __forceinline__ void turned_fragments(uint32_t (&b)[2][2], const T *rows, int k, int n) {
    int lane = dsc_lane();
    uint32_t r[4];
    dsc_ldmatrix_transposed(r, rows + (k + lane % 16) * tile<D>::PITCH + n + lane / 16 * 8);
    b[0][0] = r[0], b[0][1] = r[1], b[1][0] = r[2], b[1][1] = r[3];
}

/* ---- products of a warp ---- */

/* The 16 M rows from `first` on of a tile, as left operands: kept in registers if there is room for all of them. */
template <typename T, int D, int M> struct left_rows {
    static constexpr bool HELD = D <= 64;
    uint32_t held[M][HELD ? D / 16 : 1][4];
    const T *rows;
    int first;

    __device__ __forceinline__ left_rows(const T *rows, int first) : rows(rows), first(first) {
    }

    /* Call this once the tile has arrived. */
    __device__ __forceinline__ void hold() {
        if (HELD)
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int k = 0; k < D / 16; k++)
                    left_fragment<D>(held[m][HELD ? k : 0], rows, first + 16 * m, 16 * k);
    }

    __device__ __forceinline__ void get(uint32_t (&a)[4], int m, int k) const {
        if (HELD)
#pragma unroll
            for (int i = 0; i < 4; i++)
                a[i] = held[m][HELD ? k : 0][i];
        else
            left_fragment<D>(a, rows, first + 16 * m, 16 * k);
    }
};

/* s[16 M, N] = the left rows times the transpose of N rows of a tile. */
template <typename T, int D, int M, int N>
static __device__ __forceinline__ void multiply_rows(const left_rows<T, D, M> &a, const T *rows,
                                                     float (&s)[M][N / 8][4]) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[m][n][i] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t left[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            a.get(left[m], m, k);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            uint32_t right[2][2];
            right_fragments<D>(right, rows, 16 * n, 16 * k);
#pragma unroll
            for (int m = 0; m < M; m++) {
                half_math<T>::multiply(s[m][2 * n], left[m], right[0]);
                half_math<T>::multiply(s[m][2 * n + 1], left[m], right[1]);
            }
        }
    }
}

/* sum[16 M, D] += w[16 M, N] times N rows of a tile; w holds packed accumulators. */
template <typename T, int D, int M, int N>
static __device__ __forceinline__ void multiply_add(const uint32_t (&w)[M][N / 16][4], const T *rows,
                                                    float (&sum)[M][D / 8][4]) {
#pragma unroll
    for (int k = 0; k < N / 16; k++)
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t right[2][2];
            turned_fragments<D>(right, rows, 16 * k, 16 * n);
#pragma unroll
            for (int m = 0; m < M; m++) {
                half_math<T>::multiply(sum[m][2 * n], w[m][k], right[0]);
                half_math<T>::multiply(sum[m][2 * n + 1], w[m][k], right[1]);
            }
        }
}

/* ---- forward ---- */

/* The online softmax for one tile of keys: s becomes exp(s - m'), m' being the rows' new maximum, the maxima and totals
 * are updated, and `sum`, the weighted values so far, is scaled by exp(m - m'). Scores are in units of 1 / scale. */
template <int D, int N>
static __device__ __forceinline__ void softmax_step(float scale, float (&s)[N / 8][4], float (&largest)[2],
                                                    float (&total)[2], float (&sum)[D / 8][4]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = largest[half], part = 0;
#pragma unroll
        for (int n = 0; n < N / 8; n++)
            most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
        float factor = dsc_exp2((largest[half] - most) * scale);
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                s[n][i] = dsc_exp2(s[n][i] * scale - most * scale);
                part += s[n][i];
            }
        total[half] = total[half] * factor + part; /* this lane's columns only; lanes are added at the end */
        largest[half] = most;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            sum[n][2 * half] *= factor;
            sum[n][2 * half + 1] *= factor;
        }
    }
}

template <typename T, int D, int M, int N, bool DROPS>
__global__ void __launch_bounds__(HALF_THREADS) half_forward_kernel(const dsc_cuda_attention a) {
    enum { B = 16 * M * WARPS };
    DSC_SHARED(T, queries);
    T *ring = queries + B * tile<D>::PITCH;
    const attention_place at(a, B);
    const T *x = (const T *)a.x + at.x;
    const int64_t stride = 3 * at.d, end = a.causal && at.first + B < at.length ? at.first + B : at.length;
    const int64_t own = at.first + 16 * M * (threadIdx.x / 32); /* the warp's first query */
    const float scale = (float)a.scale * LOG2_E;
    left_rows<T, D, M> left(queries, (int)(own - at.first));
    float sum[M][D / 8][4] = {}, largest[M][2], total[M][2] = {};
    for (int m = 0; m < M; m++)
        largest[m][0] = largest[m][1] = -INFINITY;
    copy_tile<B, D>(queries, x + at.first * stride, stride, a.t - at.first, a.dh);
    for (int64_t j = -N; j < end; j += N) { /* each round starts the copy of tile j + N and works on tile j */
        T *keys = ring + (j / N & 1) * 2 * N * tile<D>::PITCH, *values = keys + N * tile<D>::PITCH;
        if (j + N < end) {
            T *next = ring + ((j / N + 1) & 1) * 2 * N * tile<D>::PITCH;
            const T *from = x + at.d + (j + N) * stride;
            copy_tile<N, D>(next, from, stride, a.t - j - N, a.dh);
            copy_tile<N, D>(next + N * tile<D>::PITCH, from + at.d, stride, a.t - j - N, a.dh);
        }
        dsc_async_commit();
        if (j < 0)
            continue;
        dsc_async_wait<1>();
        __syncthreads();
        if (j == 0)
            left.hold();
        float s[M][N / 8][4];
        uint32_t packed[M][N / 16][4];
        multiply_rows<T, D, M, N>(left, keys, s);
#pragma unroll
        for (int m = 0; m < M; m++) {
            hide<N>(a, at, own + 16 * m, j, s[m]);
            softmax_step<D, N>(scale, s[m], largest[m], total[m], sum[m]);
            if (DROPS) {
                uint32_t kept = kept_by_query<N>(a, at, own + 16 * m, j);
#pragma unroll
                for (int n = 0; n < N / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        s[m][n][i] = kept >> (4 * n + i) & 1 ? s[m][n][i] : 0;
            }
            pack<T, N>(s[m], packed[m]);
        }
        multiply_add<T, D, M, N>(packed, values, sum);
        __syncthreads(); /* the tile has been read */
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        float factor[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float whole = total[m][half];
            whole += __shfl_xor_sync(0xFFFFFFFFu, whole, 1);
            whole += __shfl_xor_sync(0xFFFFFFFFu, whole, 2);
            factor[half] = end > 0 ? (DROPS ? (float)a.kept : 1) / whole : 0; /* 0: the row sees no keys */
            int64_t row = own + 16 * m + dsc_c_row(dsc_lane(), 2 * half);
            if (a.lse && dsc_lane() % 4 == 0 && row < a.t)
                ((float *)a.lse)[at.rows + row] =
                    end > 0 ? largest[m][half] * (float)a.scale + log2f(whole) * LN_2 : 0;
        }
        store_rows<T, D>(a, (T *)a.y + at.y, at.d, own + 16 * m, sum[m], factor, 0);
    }
}

/* ---- backward ---- */

/* Computes delta of the warp's 16 rows; each lane gets those of its own two. */
template <typename T, int D>
static __device__ __forceinline__ void row_products(const left_rows<T, D, 1> &grads, const T *outputs,
                                                    int row, float (&delta)[2]) {
    delta[0] = delta[1] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t dy[4], y[4];
        grads.get(dy, 0, k);
        left_fragment<D>(y, outputs, row, 16 * k);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 u = half_math<T>::unpack(dy[i]), v = half_math<T>::unpack(y[i]);
            delta[i % 2] += u.x * v.x + u.y * v.y;
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        delta[half] += __shfl_xor_sync(0xFFFFFFFFu, delta[half], 1);
        delta[half] += __shfl_xor_sync(0xFFFFFFFFu, delta[half], 2);
    }
}

template <typename T, int D, int N, bool DROPS>
__global__ void __launch_bounds__(HALF_THREADS, D <= 64 ? 3 : 2)
    half_query_kernel(const dsc_cuda_attention a) {
    enum { B = 16 * WARPS };
    DSC_SHARED(T, queries);
    T *grads = queries + B * tile<D>::PITCH, *ring = grads + B * tile<D>::PITCH;
    const attention_place at(a, B);
    const T *x = (const T *)a.x + at.x;
    const int64_t stride = 3 * at.d, end = a.causal && at.first + B < at.length ? at.first + B : at.length;
    const int warp = (int)threadIdx.x / 32, lane = dsc_lane();
    const int64_t own = at.first + 16 * warp;
    const float scale = (float)a.scale * LOG2_E, kept = DROPS ? (float)a.kept : 1;
    left_rows<T, D, 1> left(queries, 16 * warp), left_grads(grads, 16 * warp);
    float sum[1][D / 8][4] = {}, lse[2], delta[2];
    copy_tile<B, D>(queries, x + at.first * stride, stride, a.t - at.first, a.dh);
    copy_tile<B, D>(grads, (const T *)a.dy + at.y + at.first * at.d, at.d, a.t - at.first, a.dh);
    copy_tile<B, D>(ring, (const T *)a.y + at.y + at.first * at.d, at.d, a.t - at.first, a.dh);
    dsc_async_commit();
    dsc_async_wait<0>();
    __syncthreads();
    left.hold();
    left_grads.hold();
    row_products<T, D>(left_grads, ring, 16 * warp, delta);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t row = own + dsc_c_row(lane, 2 * half);
        lse[half] = row < a.t ? ((const float *)a.lse)[at.rows + row] * LOG2_E : 0;
        if (lane % 4 == 0 && row < a.t)
            ((float *)a.delta)[at.rows + row] = delta[half];
    }
    __syncthreads(); /* the outputs have been read */
    for (int64_t j = -N; j < end; j += N) {
        T *keys = ring + (j / N & 1) * 2 * N * tile<D>::PITCH, *values = keys + N * tile<D>::PITCH;
        if (j + N < end) {
            T *next = ring + ((j / N + 1) & 1) * 2 * N * tile<D>::PITCH;
            const T *from = x + at.d + (j + N) * stride;
            copy_tile<N, D>(next, from, stride, a.t - j - N, a.dh);
            copy_tile<N, D>(next + N * tile<D>::PITCH, from + at.d, stride, a.t - j - N, a.dh);
        }
        dsc_async_commit();
        if (j < 0)
            continue;
        dsc_async_wait<1>();
        __syncthreads();
        float s[1][N / 8][4], ds[1][N / 8][4];
        uint32_t packed[1][N / 16][4];
        multiply_rows<T, D, 1, N>(left, keys, s);
        multiply_rows<T, D, 1, N>(left_grads, values, ds);
        hide<N>(a, at, own, j, s[0]);
        uint32_t bits = DROPS ? kept_by_query<N>(a, at, own, j) : 0;
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                softmax_grad(scale, !DROPS || bits >> (4 * n + i) & 1, kept, lse[i / 2], delta[i / 2],
                             s[0][n][i], ds[0][n][i]);
        pack<T, N>(ds[0], packed[0]);
        multiply_add<T, D, 1, N>(packed, keys, sum);
        __syncthreads();
    }
    const float factor[2] = {(float)a.scale, (float)a.scale};
    store_rows<T, D>(a, (T *)a.dx + at.x, stride, own, sum[0], factor, a.add);
}

/* A stage of the ring: N queries, N rows of dy, and the queries' lse and delta. */
template <int D, int N> struct query_stage {
    static constexpr int BYTES = 2 * (int)sizeof(uint16_t) * N * tile<D>::PITCH + 2 * (int)sizeof(float) * N;
};

template <typename T, int D, int N>
static __device__ __forceinline__ void copy_queries(const dsc_cuda_attention &a, const attention_place &at,
                                                    int64_t i, unsigned char *stage) {
    T *queries = (T *)stage, *grads = queries + N * tile<D>::PITCH;
    float *rows = (float *)(grads + N * tile<D>::PITCH);
    copy_tile<N, D>(queries, (const T *)a.x + at.x + i * 3 * at.d, 3 * at.d, a.t - i, a.dh);
    copy_tile<N, D>(grads, (const T *)a.dy + at.y + i * at.d, at.d, a.t - i, a.dh);
    int t = (int)threadIdx.x, there = i + t % N < a.t;
    const float *from = (const float *)(t < N ? a.lse : a.delta) + at.rows;
    if (t < 2 * N)
        dsc_async4(rows + t, from + (there ? i + t % N : 0), there);
}

template <typename T, int D, int N, bool DROPS>
__global__ void __launch_bounds__(HALF_THREADS) half_key_kernel(const dsc_cuda_attention a) {
    enum { B = 16 * WARPS };
    static_assert(2 * N <= HALF_THREADS, "a thread copies one number of lse or delta");
    DSC_SHARED(T, keys);
    T *values = keys + B * tile<D>::PITCH;
    unsigned char *ring = (unsigned char *)(values + B * tile<D>::PITCH);
    const attention_place at(a, B);
    const T *x = (const T *)a.x + at.x;
    const int64_t stride = 3 * at.d, begin = a.causal ? at.first : 0;
    const int64_t end = at.first < at.length ? a.t : 0; /* padding has gradients of 0 */
    const int warp = (int)threadIdx.x / 32, lane = dsc_lane();
    const int64_t own = at.first + 16 * warp;
    const float scale = (float)a.scale * LOG2_E, kept = DROPS ? (float)a.kept : 1;
    left_rows<T, D, 1> left(keys, 16 * warp), left_values(values, 16 * warp);
    float key_sum[1][D / 8][4] = {}, value_sum[1][D / 8][4] = {};
    copy_tile<B, D>(keys, x + at.d + at.first * stride, stride, a.t - at.first, a.dh);
    copy_tile<B, D>(values, x + 2 * at.d + at.first * stride, stride, a.t - at.first, a.dh);
    for (int64_t i = begin - N; i < end; i += N) {
        int64_t round = (i - begin) / N;
        if (i + N < end)
            copy_queries<T, D, N>(a, at, i + N, ring + ((round + 1) & 1) * query_stage<D, N>::BYTES);
        dsc_async_commit();
        if (i < begin)
            continue;
        dsc_async_wait<1>();
        __syncthreads();
        if (i == begin) {
            left.hold();
            left_values.hold();
        }
        const T *queries = (const T *)(ring + (round & 1) * query_stage<D, N>::BYTES);
        const T *grads = queries + N * tile<D>::PITCH;
        const float *lse = (const float *)(grads + N * tile<D>::PITCH), *delta = lse + N;
        float s[1][N / 8][4], ds[1][N / 8][4];
        uint32_t packed[1][N / 16][4];
        multiply_rows<T, D, 1, N>(left, queries, s);
        multiply_rows<T, D, 1, N>(left_values, grads, ds);
        hide_turned<N>(a, at, i, own, s[0]);
        uint32_t bits = DROPS ? kept_by_key<N>(a, at, i, own) : 0;
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                int column = 8 * n + dsc_c_column(lane, c);
                softmax_grad(scale, !DROPS || bits >> (4 * n + c) & 1, kept, lse[column] * LOG2_E,
                             delta[column], s[0][n][c], ds[0][n][c]);
            }
        pack<T, N>(s[0], packed[0]);
        multiply_add<T, D, 1, N>(packed, grads, value_sum);
        pack<T, N>(ds[0], packed[0]);
        multiply_add<T, D, 1, N>(packed, queries, key_sum);
        __syncthreads();
    }
    const float key_factor[2] = {(float)a.scale, (float)a.scale}, value_factor[2] = {kept, kept};
    store_rows<T, D>(a, (T *)a.dx + at.x + at.d, stride, own, key_sum[0], key_factor, a.add);
    store_rows<T, D>(a, (T *)a.dx + at.x + 2 * at.d, stride, own, value_sum[0], value_factor, a.add);
}

/* ---- launches ---- */

template <typename Kernel>
static cudaError_t launch(const dsc_cuda_launch *at, const dsc_cuda_attention *a, Kernel kernel, int side,
                          int shared) {
    cudaError_t error =
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (error != cudaSuccess)
        return error;
    unsigned blocks = (unsigned)((a->t + side - 1) / side * a->heads * a->n);
    DSC_LAUNCH(kernel, blocks, HALF_THREADS, shared, at->stream)(*a);
    return cudaGetLastError();
}

/* Two fragments of rows per warp (M = 2), where there are enough registers, halve the reads from shared memory. */
template <typename T, int D, bool DROPS>
static cudaError_t forward_of(const dsc_cuda_launch *at, const dsc_cuda_attention *a) {
    enum { M = D <= 64 ? 2 : 1, N = 64, B = 16 * M * WARPS };
    return launch(at, a, half_forward_kernel<T, D, M, N, DROPS>, B,
                  (int)sizeof(T) * (B * tile<D>::PITCH + STAGES * 2 * N * tile<D>::PITCH));
}

template <typename T, int D, bool DROPS>
static cudaError_t backward_of(const dsc_cuda_launch *at, const dsc_cuda_attention *a) {
    enum { N = 64, KEY_N = D <= 64 ? 64 : 32, B = 16 * WARPS };
    int two = 2 * (int)sizeof(T) * B * tile<D>::PITCH;
    cudaError_t error = launch(at, a, half_query_kernel<T, D, N, DROPS>, B,
                               two + STAGES * 2 * (int)sizeof(T) * N * tile<D>::PITCH);
    if (error != cudaSuccess)
        return error;
    return launch(at, a, half_key_kernel<T, D, KEY_N, DROPS>, B, two + STAGES * query_stage<D, KEY_N>::BYTES);
}

template <typename T, bool DROPS>
static cudaError_t run_of(const dsc_cuda_launch *at, const dsc_cuda_attention *a, int backward) {
    if (backward)
        return a->dh <= 64 ? backward_of<T, 64, DROPS>(at, a) : backward_of<T, 128, DROPS>(at, a);
    return a->dh <= 64 ? forward_of<T, 64, DROPS>(at, a) : forward_of<T, 128, DROPS>(at, a);
}

static cudaError_t run(const dsc_cuda_launch *at, const dsc_cuda_attention *a, dsc_dtype dtype,
                       int backward) {
    if (dtype == DSC_BF16)
        return a->position ? run_of<__nv_bfloat16, true>(at, a, backward)
                           : run_of<__nv_bfloat16, false>(at, a, backward);
    return a->position ? run_of<__half, true>(at, a, backward) : run_of<__half, false>(at, a, backward);
}

/* Rows are copied 16 bytes at a time, which the conditions on dh and on the addresses allow. */
int dsc_cuda_attention_is_half(const dsc_cuda_attention *a, dsc_dtype dtype) {
    uintptr_t places = (uintptr_t)a->x | (uintptr_t)a->y | (uintptr_t)a->dy | (uintptr_t)a->dx;
    return (dtype == DSC_BF16 || dtype == DSC_F16) && a->dh % 8 == 0 && places % 16 == 0;
}

cudaError_t dsc_cuda_attention_half_forward(const dsc_cuda_launch *at, const dsc_cuda_attention *a,
                                            dsc_dtype dtype) {
    return run(at, a, dtype, 0);
}

cudaError_t dsc_cuda_attention_half_backward(const dsc_cuda_launch *at, const dsc_cuda_attention *a,
                                             dsc_dtype dtype) {
    return run(at, a, dtype, 1);
}
