/* Shared by layer.cu, norm.cu, pool.cu, loss.cu and others: reading and writing elements as numbers, 16 bytes at a
 * time, and sums over the rows of a matrix.
 *
 * Sums over rows: a block of DSC_COLUMN_THREADS threads processes `lanes` vectors of neighbouring channels in `chunk`
 * rows; blockIdx.x is the group of channels, blockIdx.y the chunk. Blocks write their sums to scratch memory, and the
 * last block of a group to finish adds them up, always in the same order. */
#ifndef DSC_DEVICE_CUDA_LAYER_CUH
#define DSC_DEVICE_CUDA_LAYER_CUH

#include "device/cuda/launch.h"
#include "device/formulas.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* A tensor's memory, which converts to any pointer type; NULL if there is no tensor. */
struct dsc_data {
    void *memory;

    explicit dsc_data(const dsc_tensor *t) : memory(t ? t->data : NULL) {
    }

    template <typename T> operator T *() const {
        return (T *)memory;
    }
};

/* ---- elements ---- */

/* The type in which arithmetic on elements of type T is done. Parameters and statistics have this type, too. */
template <typename T> struct dsc_number_of { typedef float type; };

template <> struct dsc_number_of<double> { typedef double type; };

template <typename T> using dsc_number = typename dsc_number_of<T>::type;

__device__ __forceinline__ float dsc_get(float x) {
    return x;
}

__device__ __forceinline__ double dsc_get(double x) {
    return x;
}

__device__ __forceinline__ float dsc_get(__half x) {
    return __half2float(x);
}

__device__ __forceinline__ float dsc_get(__nv_bfloat16 x) {
    return __bfloat162float(x);
}

__device__ __forceinline__ void dsc_set(float &x, double value) {
    x = (float)value;
}

__device__ __forceinline__ void dsc_set(float &x, float value) {
    x = value;
}

__device__ __forceinline__ void dsc_set(double &x, double value) {
    x = value;
}

__device__ __forceinline__ void dsc_set(__half &x, float value) {
    x = __float2half_rn(value);
}

__device__ __forceinline__ void dsc_set(__nv_bfloat16 &x, float value) {
    x = __float2bfloat16_rn(value);
}

/* N elements that are loaded and stored at once. */
template <typename T, int N> struct alignas(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) dsc_vector {
    T at[N];

    __device__ __forceinline__ dsc_number<T> get(int i) const {
        return dsc_get(at[i]);
    }

    __device__ __forceinline__ void set(int i, dsc_number<T> value) {
        dsc_set(at[i], value);
    }
};

/* Eight halves, which stay packed until they are used: in separate registers they would take twice the space. */
struct alignas(16) dsc_packed {
    unsigned word[4];

    __device__ __forceinline__ unsigned short bits(int i) const {
        return (unsigned short)(word[i / 2] >> (i % 2 * 16));
    }

    __device__ __forceinline__ void set_bits(int i, unsigned bits) {
        word[i / 2] = i % 2 ? (word[i / 2] & 0xFFFFu) | bits << 16 : (word[i / 2] & 0xFFFF0000u) | bits;
    }
};

template <> struct alignas(16) dsc_vector<__half, 8> : dsc_packed {
    __device__ __forceinline__ float get(int i) const {
        return __half2float(__ushort_as_half(bits(i)));
    }

    __device__ __forceinline__ void set(int i, float value) {
        set_bits(i, __half_as_ushort(__float2half_rn(value)));
    }
};

template <> struct alignas(16) dsc_vector<__nv_bfloat16, 8> : dsc_packed {
    __device__ __forceinline__ float get(int i) const {
        return __uint_as_float(i % 2 ? word[i / 2] & 0xFFFF0000u : word[i / 2] << 16);
    }

    __device__ __forceinline__ void set(int i, float value) {
        set_bits(i, __bfloat16_as_ushort(__float2bfloat16_rn(value)));
    }
};

template <typename T, int N> __device__ __forceinline__ dsc_vector<T, N> dsc_load(const T *from) {
    return *reinterpret_cast<const dsc_vector<T, N> *>(from);
}

template <typename T, int N> __device__ __forceinline__ void dsc_store(T *to, const dsc_vector<T, N> &value) {
    *reinterpret_cast<dsc_vector<T, N> *>(to) = value;
}

/* The number of elements in a vector of 16 bytes. */
template <typename T> constexpr int dsc_wide() {
    return 16 / (int)sizeof(T);
}

/* Returns whether vectors of 16 bytes can be used: all pointers (some may be NULL) are aligned, and a row of
 * `channels` elements is a whole number of vectors. */
template <typename T, typename... P> bool dsc_fits(int64_t channels, P... pointers) {
    return channels % dsc_wide<T>() == 0 && ((uintptr_t)0 | ... | (uintptr_t)pointers) % 16 == 0;
}

/* Calls the instance of a launch function for a real type. */
#define DSC_BY_TYPE(dtype, function, ...)                                                                    \
    ((dtype) == DSC_F32    ? function<float>(__VA_ARGS__)                                                    \
     : (dtype) == DSC_F64  ? function<double>(__VA_ARGS__)                                                   \
     : (dtype) == DSC_BF16 ? function<__nv_bfloat16>(__VA_ARGS__)                                            \
     : (dtype) == DSC_F16  ? function<__half>(__VA_ARGS__)                                                   \
                           : cudaErrorInvalidValue)

/* The same for operations without half types. */
#define DSC_BY_REAL(dtype, function, ...)                                                                    \
    ((dtype) == DSC_F64 ? function<double>(__VA_ARGS__) : function<float>(__VA_ARGS__))

/* ---- flat loops ---- */

enum { DSC_FLAT_THREADS = 256 };

/* Returns the number of blocks for `count` independent pieces of work: at most as many as run at once. */
static inline unsigned dsc_flat_blocks(const dsc_cuda_launch *at, int64_t count) {
    int64_t blocks = (count + DSC_FLAT_THREADS - 1) / DSC_FLAT_THREADS,
            most = (int64_t)at->multiprocessors * 8;
    return (unsigned)(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

__device__ __forceinline__ int64_t dsc_flat_first() {
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ int64_t dsc_flat_step() {
    return (int64_t)gridDim.x * blockDim.x;
}

/* Calls operation.at<N>(i) for elements i ... i + N - 1, so that every element is processed once, and at<1> for each of
 * the elements that are left over at the end. */
template <int N, typename F>
static __global__ void __launch_bounds__(DSC_FLAT_THREADS) dsc_flat(int64_t count, const F operation) {
    int64_t vectors = count / N;
    for (int64_t v = dsc_flat_first(); v < vectors; v += dsc_flat_step())
        operation.template at<N>(v * N);
    if (N > 1 && dsc_flat_first() < count - vectors * N)
        operation.template at<1>(vectors * N + dsc_flat_first());
}

/* wide: 1: uses vectors of 16 bytes. */
template <typename T, typename F>
static cudaError_t dsc_flat_run(const dsc_cuda_launch *at, int64_t count, int wide, const F &operation) {
    if (wide)
        DSC_LAUNCH((dsc_flat<dsc_wide<T>(), F>), dsc_flat_blocks(at, count / dsc_wide<T>()), DSC_FLAT_THREADS,
                   0, at->stream)
    (count, operation);
    else DSC_LAUNCH((dsc_flat<1, F>), dsc_flat_blocks(at, count), DSC_FLAT_THREADS, 0, at->stream)(count,
                                                                                                   operation);
    return cudaGetLastError();
}

/* Divides index by extent and returns the remainder. Neither may be negative. Divides in 32 bits where possible, which
 * is several times faster. */
__device__ __forceinline__ int64_t dsc_peel(int64_t &index, int64_t extent) {
    if (((index | extent) >> 32) == 0) {
        uint32_t all = (uint32_t)index, part = (uint32_t)extent, whole = all / part;
        index = whole;
        return all - whole * part;
    }
    int64_t whole = index / extent, rest = index - whole * extent;
    index = whole;
    return rest;
}

/* ---- sums over rows ---- */

enum { DSC_COLUMN_THREADS = 512, DSC_COLUMN_WARPS = DSC_COLUMN_THREADS / 32, DSC_COLUMN_LANES = 16 };
/* The most channels of one launch, so that scratch memory and tickets suffice. */
enum { DSC_COLUMN_SLICE = 32768 };

static inline int64_t dsc_column_slice(int64_t channels, int64_t first) {
    int64_t rest = channels - first, most = DSC_COLUMN_SLICE;
    return rest < most ? rest : most;
}

typedef struct dsc_columns {
    int64_t rows, stride, width; /* rows of `stride` channels, of which `width` are processed */
    int64_t chunk;               /* rows per block */
    int lanes;                   /* vectors of channels per block: a power of two */
    unsigned groups, chunks;
} dsc_columns;

/* Divides a matrix among blocks of `threads` threads, with vectors of n elements, at most `lanes` (a power of two) of
 * them per block. A thread loads `unroll` rows at once. There are at most `blocks` blocks, but at least one for each
 * group of channels. */
static inline dsc_columns dsc_columns_narrow(int64_t rows, int64_t stride, int64_t width, int n, int lanes,
                                             int threads, int unroll, int64_t blocks) {
    dsc_columns c = {rows, stride, width, 0, 1, 0, 0};
    int64_t vectors = (width + n - 1) / n;
    while (c.lanes < lanes && c.lanes < vectors)
        c.lanes *= 2;
    int64_t groups = (vectors + c.lanes - 1) / c.lanes, batch = (int64_t)(threads / c.lanes) * unroll;
    int64_t batches = (rows + batch - 1) / batch, chunks = blocks / groups;
    chunks = chunks < 1 ? 1 : chunks > 65535 ? 65535 : chunks;
    chunks = chunks < batches ? chunks : batches;
    c.chunk = (batches + chunks - 1) / chunks * batch;
    c.groups = (unsigned)groups;
    c.chunks = (unsigned)((rows + c.chunk - 1) / c.chunk);
    return c;
}

static inline dsc_columns dsc_columns_of(int64_t rows, int64_t stride, int64_t width, int n, int threads,
                                         int unroll, int64_t blocks) {
    return dsc_columns_narrow(rows, stride, width, n, DSC_COLUMN_LANES, threads, unroll, blocks);
}

/* Returns how many doubles of scratch memory `sums` sums per channel take. */
static inline int64_t dsc_columns_scratch(const dsc_columns *c, int n, int sums) {
    return (int64_t)c->groups * c->chunks * c->lanes * n * sums;
}

/* A thread's part: rows first, first + step, ... below end, from this channel on. A thread beyond the last channel has
 * no rows. */
typedef struct dsc_column_place {
    int64_t first, end, top; /* top: the block's first row */
    int64_t channel;
    int step;
} dsc_column_place;

template <int N> __device__ __forceinline__ dsc_column_place dsc_column_place_of(const dsc_columns &c) {
    dsc_column_place p;
    int lane = (int)threadIdx.x & (c.lanes - 1), log_lanes = __ffs(c.lanes) - 1;
    p.step = (int)blockDim.x >> log_lanes;
    p.channel = ((int64_t)blockIdx.x * c.lanes + lane) * N;
    p.top = (int64_t)blockIdx.y * c.chunk;
    p.end = p.top + c.chunk < c.rows ? p.top + c.chunk : c.rows;
    p.first = p.channel < c.width ? p.top + ((int)threadIdx.x >> log_lanes) : p.end;
    return p;
}

/* Returns the channel that a thread below lanes * N finishes. */
template <int N> __device__ __forceinline__ int64_t dsc_column_own(const dsc_columns &c) {
    return (int64_t)blockIdx.x * c.lanes * N + threadIdx.x;
}

/* Adds up Q quantities over the block: afterwards thread t below lanes * N has the sums of the block's channel t. All
 * threads call it. */
template <int Q, typename A, int N>
__device__ __forceinline__ void dsc_block_sums(int lanes, A (&mine)[Q][N], double (&sum)[Q]) {
    __shared__ A warps[DSC_COLUMN_WARPS][Q][DSC_COLUMN_LANES * N];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int apart = 16; apart >= lanes; apart /= 2) {
#pragma unroll
        for (int q = 0; q < Q; q++)
#pragma unroll
            for (int i = 0; i < N; i++)
                mine[q][i] += __shfl_xor_sync(0xFFFFFFFFu, mine[q][i], apart);
    }
    if (lane < lanes) {
#pragma unroll
        for (int q = 0; q < Q; q++)
#pragma unroll
            for (int i = 0; i < N; i++)
                warps[warp][q][lane * N + i] = mine[q][i];
    }
    __syncthreads();
    if ((int)threadIdx.x < lanes * N) {
#pragma unroll
        for (int q = 0; q < Q; q++) {
            sum[q] = 0;
#pragma unroll
            for (int w = 0; w < DSC_COLUMN_WARPS; w++)
                sum[q] += (double)warps[w][q][threadIdx.x];
        }
    }
}

/* Adds up the sums of the blocks, held by the threads below `width`, a power of two. Returns 1 in the threads below
 * `width` of the last block, which then have the totals. All threads call it. */
template <int Q>
__device__ __forceinline__ int dsc_merge_blocks(int width, double *partials, unsigned *tickets,
                                                double (&sum)[Q]) {
    enum { TOGETHER = 8 };
    __shared__ double slices[Q][DSC_COLUMN_THREADS];
    __shared__ int last;
    int t = (int)threadIdx.x, own = t & (width - 1), chunks = (int)gridDim.y;
    if (chunks == 1)
        return t < width;
    double *group = partials + (int64_t)blockIdx.x * chunks * Q * width;
    if (t < width) {
#pragma unroll
        for (int q = 0; q < Q; q++)
            group[((int64_t)blockIdx.y * Q + q) * width + t] = sum[q];
        __threadfence();
    }
    __syncthreads();
    if (t == 0) {
        last = atomicAdd(&tickets[blockIdx.x], 1u) == gridDim.y - 1;
        if (last)
            tickets[blockIdx.x] = 0;
        __threadfence();
    }
    __syncthreads();
    if (!last)
        return 0;
#pragma unroll
    for (int q = 0; q < Q; q++)
        sum[q] = 0;
    int step = DSC_COLUMN_THREADS / width;
    for (int chunk = t / width; chunk < chunks; chunk += TOGETHER * step) {
        double loaded[TOGETHER][Q];
#pragma unroll
        for (int k = 0; k < TOGETHER; k++)
#pragma unroll
            for (int q = 0; q < Q; q++) {
                int from = chunk + k * step;
                loaded[k][q] = from < chunks ? __ldcg(&group[((int64_t)from * Q + q) * width + own]) : 0;
            }
#pragma unroll
        for (int k = 0; k < TOGETHER; k++)
#pragma unroll
            for (int q = 0; q < Q; q++)
                sum[q] += loaded[k][q];
    }
#pragma unroll
    for (int q = 0; q < Q; q++)
        slices[q][t] = sum[q];
    for (int half = DSC_COLUMN_THREADS / 2; half >= width; half /= 2) {
        __syncthreads();
        if (t < half) {
#pragma unroll
            for (int q = 0; q < Q; q++)
                slices[q][t] = sum[q] += slices[q][t + half];
        }
    }
    return t < width;
}

#endif
