/* Attention for one new position with a cache of keys and values. A block does one head of one sequence; its warps take
 * turns at groups of GROUP keys, and lane l of a warp has channels l, l + 32, ... of all of them. Every warp keeps the
 * maximum, the sum of exponentials and the weighted sum of values of its own keys; at the end these are merged in the
 * order of the warps. */
#include "device/cuda/entries.h"
#include "device/cuda/layer.cuh"

enum { GROUP = 4, WARPS = 16, THREADS = 32 * WARPS };

typedef struct dsc_cuda_step {
    int64_t n, heads, dh, positions, position;
    double scale; /* 1 / sqrt(dh) */
    const void *x;
    void *cache, *y;
} dsc_cuda_step;

static __device__ __forceinline__ float power(float x) {
    return expf(x);
}

static __device__ __forceinline__ double power(double x) {
    return exp(x);
}

/* The softmax over the keys that a warp has visited: `sum` adds up exp(s - largest) v for the lane's N channels. */
template <typename A, int N> struct visited_keys { A largest, total, sum[N]; };

/* Computes the scores of a group of keys from j on, -INFINITY after the last of `keys`; every lane gets all of them. */
template <typename T, int N, typename A>
static __device__ __forceinline__ void score_group(const T *key, int64_t row, int64_t keys, int64_t j,
                                                   int64_t dh, const A (&query)[N], A (&s)[GROUP]) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        s[g] = 0;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (j + g < keys && lane + 32 * i < dh)
                s[g] += query[i] * (A)dsc_get(key[(j + g) * row + lane + 32 * i]);
    }
    for (int apart = 16; apart > 0; apart /= 2)
#pragma unroll
        for (int g = 0; g < GROUP; g++)
            s[g] += __shfl_xor_sync(0xFFFFFFFFu, s[g], apart);
#pragma unroll
    for (int g = 0; g < GROUP; g++)
        s[g] = j + g < keys ? s[g] : (A)-INFINITY;
}

template <typename T, int N, typename A>
static __device__ __forceinline__ void visit_group(const T *value, int64_t row, int64_t keys, int64_t j,
                                                   int64_t dh, const A (&s)[GROUP], visited_keys<A, N> &to) {
    int lane = (int)threadIdx.x % 32;
    A most = to.largest;
#pragma unroll
    for (int g = 0; g < GROUP; g++)
        most = s[g] > most ? s[g] : most;
    A factor = power(to.largest - most);
    to.largest = most;
    to.total *= factor;
#pragma unroll
    for (int i = 0; i < N; i++)
        to.sum[i] *= factor;
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        A weight = power(s[g] - most);
        to.total += weight;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (j + g < keys && lane + 32 * i < dh)
                to.sum[i] += weight * (A)dsc_get(value[(j + g) * row + lane + 32 * i]);
    }
}

/* Merges the warps' sums and writes y. Warp 0 has key 0, so the maximum is finite; a warp without keys has weight
 * exp(-INFINITY) = 0. */
template <typename T, int N, typename A>
static __device__ __forceinline__ void merge_warps(const visited_keys<A, N> &mine, int64_t dh, T *y) {
    __shared__ A largest[WARPS], total[WARPS], sum[WARPS][32 * N];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    if (lane == 0) {
        largest[warp] = mine.largest;
        total[warp] = mine.total;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        sum[warp][lane + 32 * i] = mine.sum[i];
    __syncthreads();
    if (threadIdx.x < dh) {
        A most = largest[0], all = 0, value = 0;
        for (int w = 1; w < WARPS; w++)
            most = largest[w] > most ? largest[w] : most;
        for (int w = 0; w < WARPS; w++) {
            A factor = power(largest[w] - most);
            all += factor * total[w];
            value += factor * sum[w][threadIdx.x];
        }
        dsc_set(y[threadIdx.x], value / all);
    }
}

template <typename T, int N>
__global__ void __launch_bounds__(THREADS) attention_step_kernel(const dsc_cuda_step a) {
    typedef dsc_number<T> A;
    int64_t sample = blockIdx.x, number = dsc_peel(sample, a.heads), d = a.heads * a.dh, row = 2 * d;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const T *x = (const T *)a.x + sample * 3 * d + number * a.dh;
    T *key = (T *)a.cache + sample * a.positions * row + number * a.dh, *own = key + a.position * row;
    if (threadIdx.x < a.dh) {
        own[threadIdx.x] = x[d + threadIdx.x];
        own[d + threadIdx.x] = x[2 * d + threadIdx.x];
    }
    A query[N];
    visited_keys<A, N> mine;
    mine.largest = -INFINITY;
    mine.total = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        query[i] = lane + 32 * i < a.dh ? (A)dsc_get(x[lane + 32 * i]) * (A)a.scale : (A)0;
        mine.sum[i] = 0;
    }
    __syncthreads(); /* the new row of the cache has been written */
    for (int64_t j = warp * GROUP; j <= a.position; j += WARPS * GROUP) {
        A s[GROUP];
        score_group<T, N>(key, row, a.position + 1, j, a.dh, query, s);
        visit_group<T, N>(key + d, row, a.position + 1, j, a.dh, s, mine);
    }
    merge_warps<T, N>(mine, a.dh, (T *)a.y + sample * d + number * a.dh);
}

template <typename T, int N> static cudaError_t run_of(const dsc_cuda_launch *at, const dsc_cuda_step *a) {
    DSC_LAUNCH((attention_step_kernel<T, N>), (unsigned)(a->n * a->heads), THREADS, 0, at->stream)(*a);
    return cudaGetLastError();
}

template <typename T> static cudaError_t run(const dsc_cuda_launch *at, const dsc_cuda_step *a) {
    return a->dh <= 64 ? run_of<T, 2>(at, a) : run_of<T, 4>(at, a);
}

dsc_status dsc_cuda_attention_step(dsc_queue *q, const dsc_attention_desc *desc, const dsc_tensor *x,
                                   int64_t position, dsc_tensor *cache, dsc_tensor *y) {
    dsc_cuda_step a = {};
    a.n = x->dim[0];
    a.heads = desc->heads;
    a.dh = y->dim[3] / desc->heads;
    a.positions = cache->dim[1];
    a.position = position;
    a.scale = 1 / sqrt((double)a.dh);
    a.x = x->data;
    a.cache = cache->data;
    a.y = y->data;
    DSC_CUDA_TRY(DSC_BY_TYPE(x->dtype, run, dsc_cuda_at(q), &a));
    return DSC_OK;
}
