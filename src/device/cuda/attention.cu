/* Multi-head self-attention in tiles: a block of 8 x 8 = THREADS threads owns B = 8 R queries (or keys) of one
 * head and loops over all tiles of B keys (or queries). Tiles, with rows of D channels, are kept in shared memory
 * as float (double for float64); thread (ty, tx) holds rows ty + 8 r and columns tx + 8 c of a product in
 * registers. Heads of fewer than D channels are padded with zeros.
 *
 * The backward pass has three kernels: delta = rowsum(dY Y); dQ by tiles of queries; dK and dV by tiles of
 * keys. Every sum is added in a fixed order: there are no atomics. */
#include "device/cuda/attention.cuh"
#include "device/cuda/entries.h"

enum { LANES = 8, THREADS = LANES * LANES };

static __device__ __forceinline__ float power(float x) {
    return expf(x);
}

static __device__ __forceinline__ double power(double x) {
    return exp(x);
}

static __device__ __forceinline__ float logarithm(float x) {
    return logf(x);
}

static __device__ __forceinline__ double logarithm(double x) {
    return log(x);
}

/* Loads rows of dh numbers, `stride` apart, into to[B][D]; fills up with zeros after the last of `rows` rows and
 * after the last channel. */
template <int B, int D, typename T, typename A>
static __device__ __forceinline__ void load_tile(const T *from, int64_t stride, int64_t rows, int64_t dh,
                                                 A (*to)[D + 1]) {
    for (int i = threadIdx.x; i < B * D; i += THREADS) {
        int row = i / D, column = i % D;
        to[row][column] = row < rows && column < dh ? (A)dsc_get(from[row * stride + column]) : (A)0;
    }
}

/* sum[r][c] = dot product of row ty + 8 r of a and row tx + 8 c of b. */
template <int R, int D, typename A>
static __device__ __forceinline__ void multiply_rows(const A (*a)[D + 1], const A (*b)[D + 1], int64_t dh,
                                                     A (&sum)[R][R]) {
    int ty = (int)threadIdx.x / LANES, tx = (int)threadIdx.x % LANES;
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < R; c++)
            sum[r][c] = 0;
    for (int k = 0; k < dh; k++) {
        A left[R], right[R];
#pragma unroll
        for (int r = 0; r < R; r++) {
            left[r] = a[ty + LANES * r][k];
            right[r] = b[tx + LANES * r][k];
        }
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int c = 0; c < R; c++)
                sum[r][c] += left[r] * right[c];
    }
}

/* sum[r][c] += sum over the B rows j of v of w[ty + 8 r][j] v[j][tx + 8 c]; TURNED: of w[j][ty + 8 r]. */
template <int R, int D, bool TURNED, typename A>
static __device__ __forceinline__ void multiply_add(const A (*w)[LANES * R + 1], const A (*v)[D + 1],
                                                    A (&sum)[R][D / LANES]) {
    int ty = (int)threadIdx.x / LANES, tx = (int)threadIdx.x % LANES;
    for (int j = 0; j < LANES * R; j++) {
        A left[R];
#pragma unroll
        for (int r = 0; r < R; r++)
            left[r] = TURNED ? w[j][ty + LANES * r] : w[ty + LANES * r][j];
#pragma unroll
        for (int c = 0; c < D / LANES; c++) {
            A right = v[j][tx + LANES * c];
#pragma unroll
            for (int r = 0; r < R; r++)
                sum[r][c] += left[r] * right;
        }
    }
}

/* Writes rows ty + 8 r of a tile of dx, or adds to them, without what is past the last position or channel. */
template <int R, int D, typename T, typename A>
static __device__ __forceinline__ void store_grad(const dsc_cuda_attention &a, const attention_place &at,
                                                  int part, const A (&sum)[R][D / LANES]) {
    int ty = (int)threadIdx.x / LANES, tx = (int)threadIdx.x % LANES;
    for (int r = 0; r < R; r++) {
        int64_t row = at.first + ty + LANES * r;
        T *out = (T *)a.dx + at.x + part * at.d + row * 3 * at.d;
        for (int c = 0; c < D / LANES; c++) {
            int column = tx + LANES * c;
            if (row < a.t && column < a.dh)
                dsc_set(out[column], a.add ? (A)dsc_get(out[column]) + sum[r][c] : sum[r][c]);
        }
    }
}

static __device__ __forceinline__ bool is_seen(const dsc_cuda_attention &a, const attention_place &at,
                                               int64_t query, int64_t key) {
    return key < at.length && query < a.t && (!a.causal || key <= query);
}

/* Which of a thread's R x R elements of a tile dropout keeps: bit r R + c is for row ty + 8 r and column tx + 8 c.
 * Queries start at i, keys at j, a multiple of 4: the four neighbouring threads with the same tx / 4 need the words
 * of the same R x R blocks of random numbers, and each of them generates a quarter. */
template <int R, bool DROPS>
static __device__ __forceinline__ uint32_t kept_of(const dsc_cuda_attention &a, const attention_place &at,
                                                   int64_t i, int64_t j) {
    if (!DROPS)
        return 0; /* not read */
    int ty = (int)threadIdx.x / LANES, tx = (int)threadIdx.x % LANES;
    dsc_dropout_stream stream = a.dropout;
    stream.step = (uint32_t)a.position[0];
    uint32_t kept = 0;
#pragma unroll
    for (int group = 0; group < R * R; group += 4) {
        int own = group + tx % 4, r = own / R % R, c = own % R;
        uint32_t words[4], bits = 0;
        dsc_dropout_words(&stream,
                          dsc_attention_block(at.number, a.t, i + ty + LANES * r) + (j + tx + LANES * c) / 4,
                          words);
#pragma unroll
        for (int k = 0; k < 4; k++)
            bits |= (uint32_t)dsc_dropout_keeps(&stream, words[k]) << k;
#pragma unroll
        for (int k = 0; k < 4 && group + k < R * R; k++)
            kept |= (__shfl_sync(0xFFFFFFFFu, bits, k, 4) >> tx % 4 & 1) << (group + k);
    }
    return kept;
}

/* Element (r, c) of the dropout mask Z of ops.h, from the bits of kept_of. */
template <int R, bool DROPS, typename A>
static __device__ __forceinline__ A dropped(const dsc_cuda_attention &a, uint32_t kept, int r, int c) {
    return !DROPS ? (A)1 : kept >> (r * R + c) & 1 ? (A)a.kept : (A)0;
}

/* ---- forward ---- */

/* The online softmax for one tile of keys: s becomes exp(s - m'), m' being the new maximum, and the rows' maxima and
 * sums are updated; factor = exp(m - m'). The 8 threads of a row are neighbours in one warp. */
template <int R, typename A>
static __device__ __forceinline__ void softmax_step(A (&s)[R][R], A (&largest)[R], A (&sum)[R],
                                                    A (&factor)[R]) {
#pragma unroll
    for (int r = 0; r < R; r++) {
        A most = largest[r], total = 0;
#pragma unroll
        for (int c = 0; c < R; c++)
            most = s[r][c] > most ? s[r][c] : most;
        for (int apart = LANES / 2; apart > 0; apart /= 2) {
            A other = __shfl_xor_sync(0xFFFFFFFFu, most, apart);
            most = other > most ? other : most;
        }
        factor[r] = power(largest[r] - most);
#pragma unroll
        for (int c = 0; c < R; c++) {
            s[r][c] = power(s[r][c] - most);
            total += s[r][c];
        }
        for (int apart = LANES / 2; apart > 0; apart /= 2)
            total += __shfl_xor_sync(0xFFFFFFFFu, total, apart);
        sum[r] = sum[r] * factor[r] + total;
        largest[r] = most;
    }
}

template <typename T, int D, int R, bool DROPS>
__global__ void __launch_bounds__(THREADS) attention_forward_kernel(const dsc_cuda_attention a) {
    typedef dsc_number<T> A;
    enum { B = LANES * R };
    __shared__ A queries[B][D + 1], keys[B][D + 1], weights[B][B + 1];
    const attention_place at(a, B);
    int ty = (int)threadIdx.x / LANES, tx = (int)threadIdx.x % LANES;
    const T *x = (const T *)a.x + at.x;
    int64_t stride = 3 * at.d, end = a.causal && at.first + B < at.length ? at.first + B : at.length;
    A sum[R][D / LANES] = {}, largest[R], total[R] = {};
    for (int r = 0; r < R; r++)
        largest[r] = -INFINITY;
    load_tile<B, D>(x + at.first * stride, stride, a.t - at.first, a.dh, queries);
    for (int64_t j = 0; j < end; j += B) {
        A s[R][R], factor[R];
        load_tile<B, D>(x + at.d + j * stride, stride, a.t - j, a.dh, keys);
        __syncthreads();
        multiply_rows<R, D>(queries, keys, a.dh, s);
        for (int r = 0; r < R; r++)
            for (int c = 0; c < R; c++) {
                int64_t key = j + tx + LANES * c, query = at.first + ty + LANES * r;
                bool seen = key < at.length && (!a.causal || key <= query);
                s[r][c] = seen ? s[r][c] * (A)a.scale : (A)-INFINITY;
            }
        softmax_step<R>(s, largest, total, factor);
        uint32_t kept = kept_of<R, DROPS>(a, at, at.first, j);
        for (int r = 0; r < R; r++)
            for (int c = 0; c < R; c++)
                weights[ty + LANES * r][tx + LANES * c] = s[r][c] * dropped<R, DROPS, A>(a, kept, r, c);
        for (int r = 0; r < R; r++)
            for (int c = 0; c < D / LANES; c++)
                sum[r][c] *= factor[r];
        __syncthreads(); /* the keys have been read */
        load_tile<B, D>(x + 2 * at.d + j * stride, stride, a.t - j, a.dh, keys);
        __syncthreads();
        multiply_add<R, D, false>(weights, keys, sum);
        __syncthreads();
    }
    for (int r = 0; r < R; r++) {
        int64_t row = at.first + ty + LANES * r;
        bool empty = end <= 0; /* the rows see no keys */
        for (int c = 0; c < D / LANES; c++)
            if (row < a.t && tx + LANES * c < a.dh)
                dsc_set(((T *)a.y)[at.y + row * at.d + tx + LANES * c], empty ? (A)0 : sum[r][c] / total[r]);
        if (a.lse && tx == 0 && row < a.t)
            ((A *)a.lse)[at.rows + row] = empty ? (A)0 : largest[r] + logarithm(total[r]);
    }
}

/* ---- backward ---- */

/* delta, one warp per row. */
template <typename T>
__global__ void __launch_bounds__(DSC_FLAT_THREADS) delta_kernel(const dsc_cuda_attention a) {
    typedef dsc_number<T> A;
    int64_t rows = a.n * a.heads * a.t, warps = dsc_flat_step() / 32;
    for (int64_t row = dsc_flat_first() / 32; row < rows; row += warps) {
        int64_t sample = row, position = dsc_peel(sample, a.t), number = dsc_peel(sample, a.heads);
        int64_t from = ((sample * a.t + position) * a.heads + number) * a.dh;
        A sum = 0;
        for (int64_t c = threadIdx.x % 32; c < a.dh; c += 32)
            sum += dsc_get(((const T *)a.dy)[from + c]) * dsc_get(((const T *)a.y)[from + c]);
        for (int apart = 16; apart > 0; apart /= 2)
            sum += __shfl_xor_sync(0xFFFFFFFFu, sum, apart);
        if (threadIdx.x % 32 == 0)
            ((A *)a.delta)[row] = sum;
    }
}

/* Turns s = Q K' and ds = dP of a tile into s = P Z and ds = P (Z dP - delta) / sqrt(dh); queries start at i, keys
 * at j. */
template <int R, bool DROPS, typename A>
static __device__ __forceinline__ void softmax_grad(const dsc_cuda_attention &a, const attention_place &at,
                                                    int64_t i, int64_t j, A (&s)[R][R], A (&ds)[R][R]) {
    int ty = (int)threadIdx.x / LANES, tx = (int)threadIdx.x % LANES;
    uint32_t kept = kept_of<R, DROPS>(a, at, i, j);
    for (int r = 0; r < R; r++) {
        int64_t query = i + ty + LANES * r, row = at.rows + (query < a.t ? query : 0);
        A lse = ((const A *)a.lse)[row], delta = ((const A *)a.delta)[row];
        for (int c = 0; c < R; c++) {
            bool seen = is_seen(a, at, query, j + tx + LANES * c);
            A p = seen ? power(s[r][c] * (A)a.scale - lse) : (A)0, z = dropped<R, DROPS, A>(a, kept, r, c);
            s[r][c] = p * z;
            ds[r][c] = seen ? p * (z * ds[r][c] - delta) * (A)a.scale : (A)0;
        }
    }
}

template <typename T, int D, int R, bool DROPS>
__global__ void __launch_bounds__(THREADS) query_grad_kernel(const dsc_cuda_attention a) {
    typedef dsc_number<T> A;
    enum { B = LANES * R };
    __shared__ A queries[B][D + 1], grads[B][D + 1], keys[B][D + 1], values[B][D + 1], weights[B][B + 1];
    const attention_place at(a, B);
    int ty = (int)threadIdx.x / LANES, tx = (int)threadIdx.x % LANES;
    const T *x = (const T *)a.x + at.x;
    int64_t stride = 3 * at.d, end = a.causal && at.first + B < at.length ? at.first + B : at.length;
    A sum[R][D / LANES] = {};
    load_tile<B, D>(x + at.first * stride, stride, a.t - at.first, a.dh, queries);
    load_tile<B, D>((const T *)a.dy + at.y + at.first * at.d, at.d, a.t - at.first, a.dh, grads);
    for (int64_t j = 0; j < end; j += B) {
        A s[R][R], ds[R][R];
        load_tile<B, D>(x + at.d + j * stride, stride, a.t - j, a.dh, keys);
        load_tile<B, D>(x + 2 * at.d + j * stride, stride, a.t - j, a.dh, values);
        __syncthreads();
        multiply_rows<R, D>(queries, keys, a.dh, s);
        multiply_rows<R, D>(grads, values, a.dh, ds);
        softmax_grad<R, DROPS>(a, at, at.first, j, s, ds);
        for (int r = 0; r < R; r++)
            for (int c = 0; c < R; c++)
                weights[ty + LANES * r][tx + LANES * c] = ds[r][c];
        __syncthreads();
        multiply_add<R, D, false>(weights, keys, sum);
        __syncthreads();
    }
    store_grad<R, D, T>(a, at, 0, sum);
}

template <typename T, int D, int R, bool DROPS>
__global__ void __launch_bounds__(THREADS) key_grad_kernel(const dsc_cuda_attention a) {
    typedef dsc_number<T> A;
    enum { B = LANES * R };
    __shared__ A queries[B][D + 1], grads[B][D + 1], keys[B][D + 1], values[B][D + 1];
    __shared__ A weights[B][B + 1], slopes[B][B + 1];
    const attention_place at(a, B);
    int ty = (int)threadIdx.x / LANES, tx = (int)threadIdx.x % LANES;
    const T *x = (const T *)a.x + at.x, *dy = (const T *)a.dy + at.y;
    int64_t stride = 3 * at.d, end = at.first < at.length ? a.t : 0; /* padding has gradients of 0 */
    A key_sum[R][D / LANES] = {}, value_sum[R][D / LANES] = {};
    load_tile<B, D>(x + at.d + at.first * stride, stride, a.t - at.first, a.dh, keys);
    load_tile<B, D>(x + 2 * at.d + at.first * stride, stride, a.t - at.first, a.dh, values);
    for (int64_t i = a.causal ? at.first : 0; i < end; i += B) {
        A s[R][R], ds[R][R];
        load_tile<B, D>(x + i * stride, stride, a.t - i, a.dh, queries);
        load_tile<B, D>(dy + i * at.d, at.d, a.t - i, a.dh, grads);
        __syncthreads();
        multiply_rows<R, D>(queries, keys, a.dh, s);
        multiply_rows<R, D>(grads, values, a.dh, ds);
        softmax_grad<R, DROPS>(a, at, i, at.first, s, ds);
        for (int r = 0; r < R; r++)
            for (int c = 0; c < R; c++) {
                weights[ty + LANES * r][tx + LANES * c] = s[r][c];
                slopes[ty + LANES * r][tx + LANES * c] = ds[r][c];
            }
        __syncthreads();
        multiply_add<R, D, true>(weights, grads, value_sum);
        multiply_add<R, D, true>(slopes, queries, key_sum);
        __syncthreads();
    }
    store_grad<R, D, T>(a, at, 1, key_sum);
    store_grad<R, D, T>(a, at, 2, value_sum);
}

/* ---- the operations ---- */

static unsigned blocks_of(const dsc_cuda_attention *a, int side) {
    return (unsigned)((a->t + side - 1) / side * a->heads * a->n);
}

/* R is as large as 48 KiB of shared memory allow. Kernels without dropout (DROPS false) need fewer registers. */
template <typename T, int D, bool DROPS>
static cudaError_t run_forward_of(const dsc_cuda_launch *at, const dsc_cuda_attention *a) {
    constexpr int R = sizeof(dsc_number<T>) * D > 512 ? 2 : 4;
    DSC_LAUNCH((attention_forward_kernel<T, D, R, DROPS>), blocks_of(a, LANES * R), THREADS, 0, at->stream)
    (*a);
    return cudaGetLastError();
}

template <typename T, int D, bool DROPS>
static cudaError_t run_backward_of(const dsc_cuda_launch *at, const dsc_cuda_attention *a) {
    constexpr int R = 1024 / (int)(sizeof(dsc_number<T>) * D);
    DSC_LAUNCH((delta_kernel<T>), dsc_flat_blocks(at, a->n * a->heads * a->t * 32), DSC_FLAT_THREADS, 0,
               at->stream)
    (*a);
    DSC_LAUNCH((query_grad_kernel<T, D, R, DROPS>), blocks_of(a, LANES * R), THREADS, 0, at->stream)(*a);
    DSC_LAUNCH((key_grad_kernel<T, D, R, DROPS>), blocks_of(a, LANES * R), THREADS, 0, at->stream)(*a);
    return cudaGetLastError();
}

template <typename T, int D>
static cudaError_t run_forward_in(const dsc_cuda_launch *at, const dsc_cuda_attention *a) {
    return a->position ? run_forward_of<T, D, true>(at, a) : run_forward_of<T, D, false>(at, a);
}

template <typename T, int D>
static cudaError_t run_backward_in(const dsc_cuda_launch *at, const dsc_cuda_attention *a) {
    return a->position ? run_backward_of<T, D, true>(at, a) : run_backward_of<T, D, false>(at, a);
}

template <typename T> static cudaError_t run_forward(const dsc_cuda_launch *at, const dsc_cuda_attention *a) {
    return a->dh <= 64 ? run_forward_in<T, 64>(at, a) : run_forward_in<T, 128>(at, a);
}

template <typename T>
static cudaError_t run_backward(const dsc_cuda_launch *at, const dsc_cuda_attention *a) {
    return a->dh <= 64 ? run_backward_in<T, 64>(at, a) : run_backward_in<T, 128>(at, a);
}

static dsc_cuda_attention describe(const dsc_attention_desc *desc, const dsc_attention_context *context,
                                   const dsc_tensor *x, const dsc_tensor *y, const dsc_tensor *lse) {
    int64_t dh = y->dim[3] / desc->heads;
    dsc_cuda_attention a = {};
    a.n = x->dim[0];
    a.t = x->dim[1];
    a.heads = desc->heads;
    a.dh = dh;
    a.causal = desc->causal;
    a.scale = 1 / sqrt((double)dh);
    a.x = x->data;
    a.y = y->data;
    a.lse = dsc_data(lse);
    a.lengths = (const int32_t *)dsc_data(context->lengths);
    if (context->position && desc->dropout.rate > 0) {
        a.position = (const int64_t *)context->position->data;
        a.dropout = dsc_dropout_start(&desc->dropout, 0); /* the step is read from the device */
        a.kept = 1 / (1 - desc->dropout.rate);
    }
    return a;
}

/* Room for delta, for the rows of all heads. */
size_t dsc_cuda_attention_workspace(dsc_device *, const dsc_attention_desc *desc, const dsc_tensor *x) {
    return (size_t)(x->dim[0] * desc->heads * x->dim[1]) *
           (x->dtype == DSC_F64 ? sizeof(double) : sizeof(float));
}

dsc_status dsc_cuda_attention_forward(dsc_queue *q, const dsc_attention_desc *desc, const dsc_tensor *x,
                                      const dsc_attention_context *context, dsc_tensor *, dsc_tensor *lse,
                                      dsc_tensor *y) {
    dsc_cuda_attention a = describe(desc, context, x, y, lse);
    if (dsc_cuda_attention_is_hopper(dsc_cuda_at(q), &a, x->dtype))
        DSC_CUDA_TRY(dsc_cuda_attention_hopper(dsc_cuda_at(q), &a, x->dtype, 0));
    else if (dsc_cuda_attention_is_half(&a, x->dtype))
        DSC_CUDA_TRY(dsc_cuda_attention_half_forward(dsc_cuda_at(q), &a, x->dtype));
    else
        DSC_CUDA_TRY(DSC_BY_TYPE(x->dtype, run_forward, dsc_cuda_at(q), &a));
    return DSC_OK;
}

dsc_status dsc_cuda_attention_backward(dsc_queue *q, const dsc_attention_desc *desc, const dsc_tensor *x,
                                       const dsc_attention_context *context, const dsc_tensor *y,
                                       const dsc_tensor *lse, const dsc_tensor *dy,
                                       const dsc_attention_grads *grads) {
    dsc_cuda_attention a = describe(desc, context, x, y, lse);
    a.dy = dy->data;
    a.delta = grads->work->data;
    a.dx = grads->dx->data;
    a.add = grads->beta != 0;
    if (dsc_cuda_attention_is_hopper(dsc_cuda_at(q), &a, x->dtype))
        DSC_CUDA_TRY(dsc_cuda_attention_hopper(dsc_cuda_at(q), &a, x->dtype, 1));
    else if (dsc_cuda_attention_is_half(&a, x->dtype))
        DSC_CUDA_TRY(dsc_cuda_attention_half_backward(dsc_cuda_at(q), &a, x->dtype));
    else
        DSC_CUDA_TRY(DSC_BY_TYPE(x->dtype, run_backward, dsc_cuda_at(q), &a));
    return DSC_OK;
}
