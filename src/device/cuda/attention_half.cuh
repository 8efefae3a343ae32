/* Shared by the two sets of half-precision attention kernels (attention_half.cu, attention_hopper.cu): functions on
 * accumulators in the layout of C in mma.cuh, with 16 rows per warp. wgmma has the same layout. */
#ifndef DSC_DEVICE_CUDA_ATTENTION_HALF_CUH
#define DSC_DEVICE_CUDA_ATTENTION_HALF_CUH

#include "device/cuda/attention.cuh"
#include "device/cuda/mma.cuh"

#define LOG2_E 1.4426950408889634f
#define LN_2   0.6931471805599453f

template <typename T> struct half_math;

template <> struct half_math<__nv_bfloat16> {
    static __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4],
                                                    const uint32_t (&b)[2]) {
        dsc_mma_bf16(c, a, b);
    }

    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return (uint32_t)__bfloat16_as_ushort(pair.x) | (uint32_t)__bfloat16_as_ushort(pair.y) << 16;
    }

    static __device__ __forceinline__ float2 unpack(uint32_t pair) {
        return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
    }
};

template <> struct half_math<__half> {
    static __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4],
                                                    const uint32_t (&b)[2]) {
        dsc_mma_f16(c, a, b);
    }

    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        __half2 pair = __floats2half2_rn(low, high);
        return (uint32_t)__half_as_ushort(pair.x) | (uint32_t)__half_as_ushort(pair.y) << 16;
    }

    static __device__ __forceinline__ float2 unpack(uint32_t pair) {
        return make_float2(__half2float(__ushort_as_half((unsigned short)pair)),
                           __half2float(__ushort_as_half((unsigned short)(pair >> 16))));
    }
};

/* Converts accumulators to left operands of the next product. */
template <typename T, int N>
static __device__ __forceinline__ void pack(const float (&s)[N / 8][4], uint32_t (&packed)[N / 16][4]) {
#pragma unroll
    for (int k = 0; k < N / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *from = s[2 * k + i / 2];
            packed[k][i] = half_math<T>::pack(from[i % 2 * 2], from[i % 2 * 2 + 1]);
        }
}

/* Writes the 16 rows of `sum`, each times its factor, from position `first` on; `out` points to position 0. */
template <typename T, int D>
static __device__ __forceinline__ void store_rows(const dsc_cuda_attention &a, T *out, int64_t stride,
                                                  int64_t first, const float (&sum)[D / 8][4],
                                                  const float (&factor)[2], int add) {
    int lane = dsc_lane();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t row = first + dsc_c_row(lane, 2 * half);
        if (row >= a.t)
            continue;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            int column = 8 * n + dsc_c_column(lane, 0);
            if (column >= a.dh)
                continue;
            uint32_t *at = reinterpret_cast<uint32_t *>(out + row * stride + column);
            float low = sum[n][2 * half] * factor[half], high = sum[n][2 * half + 1] * factor[half];
            float2 old = add ? half_math<T>::unpack(*at) : make_float2(0, 0);
            *at = half_math<T>::pack(old.x + low, old.y + high);
        }
    }
}

/* ---- dropout ----
 *
 * The random words for keys 4 k .. 4 k + 3 of a query come from one block of random numbers, which several lanes need:
 * each lane generates some blocks and shuffles their keep bits to the others. Bit 4 n + i of a result is 1 if element i
 * of fragment n is kept. */

/* The keep bits of one block: bit k is for key `key` + k. */

static __device__ __forceinline__ uint32_t kept_of_block(const dsc_cuda_attention &a,
                                                         const attention_place &at, int64_t query,
                                                         int64_t key) {
    dsc_dropout_stream stream = a.dropout;
    uint32_t words[4], bits = 0;
    stream.step = (uint32_t)a.position[0];
    dsc_dropout_words(&stream, dsc_attention_block(at.number, a.t, query) + key / 4, words);
#pragma unroll
    for (int k = 0; k < 4; k++)
        bits |= (uint32_t)dsc_dropout_keeps(&stream, words[k]) << k;
    return bits;
}

/* For fragments whose rows are queries, from `query` on, and whose columns are keys, from `key` on. Lanes t and t + 1,
 * t even, share two blocks. */
template <int N>
static __device__ __forceinline__ uint32_t kept_by_query(const dsc_cuda_attention &a,
                                                         const attention_place &at, int64_t query,
                                                         int64_t key) {
    int lane = dsc_lane(), odd = lane % 2;
    uint32_t kept = 0;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        uint32_t own = kept_of_block(a, at, query + lane / 4 + 8 * odd, key + 8 * n + lane % 4 / 2 * 4);
        uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, own, 1);
        uint32_t upper = odd ? other : own, lower = odd ? own : other;
        kept |= ((upper >> 2 * odd & 3) | (lower >> 2 * odd & 3) << 2) << 4 * n;
    }
    return kept;
}

/* For fragments whose rows are keys and columns are queries: the four lanes of neighbouring rows share four blocks. */
template <int N>
static __device__ __forceinline__ uint32_t kept_by_key(const dsc_cuda_attention &a, const attention_place &at,
                                                       int64_t query, int64_t key) {
    int lane = dsc_lane(), g = lane / 4, t = lane % 4;
    uint32_t kept = 0;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        int64_t column = query + 8 * n + 2 * t + g % 2, row = key + g / 4 * 4 + g % 4 / 2 * 8;
        uint32_t own = kept_of_block(a, at, column, row);
#pragma unroll
        for (int i = 0; i < 4; i++)
            kept |= (__shfl_sync(0xFFFFFFFFu, own, (g / 4 * 4 + i) * 4 + t) >> g % 4 & 1) << (4 * n + i);
    }
    return kept;
}

/* ---- scores ---- */

/* Masks scores: sets those of keys that a query does not see to -infinity. */
template <int N>
static __device__ __forceinline__ void hide(const dsc_cuda_attention &a, const attention_place &at,
                                            int64_t query, int64_t key, float (&s)[N / 8][4]) {
    int lane = dsc_lane();
    if (key + N <= at.length && (!a.causal || key + N <= query + 1))
        return;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int64_t column = key + 8 * n + dsc_c_column(lane, i), row = query + dsc_c_row(lane, i);
            if (column >= at.length || (a.causal && column > row))
                s[n][i] = -INFINITY;
        }
}

/* For one element, turns s = Q K' and ds = dP into s = P where it is kept, else 0, and ds = P (Z dP - delta). scale and
 * lse are for powers of 2; kept: 1 / (1 - rate). The factors missing here are applied to the sums at the end. */
static __device__ __forceinline__ void softmax_grad(float scale, bool keeps, float kept, float lse,
                                                    float delta, float &s, float &ds) {
    float p = dsc_exp2(s * scale - lse);
    ds = p * ((keeps ? ds : 0) * kept - delta);
    s = keeps ? p : 0;
}

/* Like hide, for rows of keys and columns of queries. */
template <int N>
static __device__ __forceinline__ void hide_turned(const dsc_cuda_attention &a, const attention_place &at,
                                                   int64_t query, int64_t key, float (&s)[N / 8][4]) {
    int lane = dsc_lane();
    if (key + 16 <= at.length && query + N <= a.t && (!a.causal || key + 15 <= query))
        return;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int64_t column = query + 8 * n + dsc_c_column(lane, i), row = key + dsc_c_row(lane, i);
            if (row >= at.length || column >= a.t || (a.causal && row > column))
                s[n][i] = -INFINITY;
        }
}

#endif
