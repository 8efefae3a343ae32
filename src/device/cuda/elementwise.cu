/* Element-wise operations, reductions and scalars. */
#include "device/cuda/elementwise.cuh"
#include "device/cuda/entries.h"
#include "device/half.h"

#include <string.h>
#include <type_traits>
#ifdef DSC_EMULATED
#include <time.h>
#endif

enum { DSC_CUDA_DOTS = 128, DSC_CUDA_ABSORBS = 108, DSC_CUDA_CONVERTS = 100 };

typedef struct dsc_cuda_convert_item {
    const void *src;
    void *dst;
    int64_t count;
    int clamp; /* 1: negative numbers become 0 */
} dsc_cuda_convert_item;

typedef struct dsc_cuda_dot_item {
    const void *x, *y;
    int64_t count;
} dsc_cuda_dot_item;

typedef struct dsc_cuda_absorb_item {
    const void *x;
    double *bad;
    void *y;
    int64_t count;
} dsc_cuda_absorb_item;

namespace {

/* ---- filling and copying ---- */

template <typename U> struct fill_body {
    U bits;
    U *t;

    __device__ bool start() {
        return true;
    }

    template <int N> __device__ void run(int64_t at) const {
        dsc_vector<U, N> v;
#pragma unroll
        for (int i = 0; i < N; i++)
            v.at[i] = bits;
        dsc_store<U, N>(t + at, v);
    }
};

template <typename U> cudaError_t fill(const dsc_cuda_launch *at, uint64_t bits, int64_t count, void *t) {
    fill_body<U> body = {(U)bits, (U *)t};
    return dsc_flat_run<dsc_width<U>>(at, body, count, dsc_aligned(t));
}

template <typename U> struct copy_body {
    const U *src;
    U *dst;

    __device__ bool start() {
        return true;
    }

    template <int N> __device__ void run(int64_t at) const {
        dsc_store<U, N>(dst + at, dsc_load<U, N>(src + at));
    }
};

template <typename U> cudaError_t copy(const dsc_cuda_launch *at, int64_t count, const void *src, void *dst) {
    copy_body<U> body = {(const U *)src, (U *)dst};
    return dsc_flat_run<dsc_width<U>>(at, body, count, dsc_aligned(src, dst));
}

/* ---- type conversion ---- */

__device__ __forceinline__ void round_to(double &to, double x) {
    to = x;
}

__device__ __forceinline__ void round_to(float &to, double x) {
    to = (float)x;
}

/* Rounds once, not twice by way of float. */
__device__ __forceinline__ void round_to(__half &to, double x) {
    to = __double2half(x);
}

__device__ __forceinline__ void round_to(__nv_bfloat16 &to, double x) {
    to = __double2bfloat16(x);
}

/* Sets element i of a vector. Vectors converted from double have at most two elements and are not packed; other types
 * are converted from float. */
template <typename To, int N> __device__ __forceinline__ void put(dsc_vector<To, N> &to, int i, double x) {
    round_to(to.at[i], x);
}

template <typename To, int N> __device__ __forceinline__ void put(dsc_vector<To, N> &to, int i, float x) {
    to.set(i, x);
}

template <typename From, typename To, bool CLAMP> struct convert_body {
    const From *src;
    To *dst;

    __device__ bool start() {
        return true;
    }

    template <int N> __device__ void run(int64_t at) const {
        dsc_vector<From, N> from = dsc_load<From, N>(src + at);
        dsc_vector<To, N> to;
#pragma unroll
        for (int i = 0; i < N; i++)
            put(to, i, CLAMP ? dsc_relu(from.get(i)) : from.get(i));
        dsc_store<To, N>(dst + at, to);
    }
};

/* The number of elements converted at once: 16 bytes of the smaller type, but only two if one type is double. */
template <typename From, typename To>
constexpr int convert_width = dsc_width<From> == 2 || dsc_width<To> == 2 ? 2
                              : dsc_width<From> > dsc_width<To>          ? dsc_width<From>
                                                                         : dsc_width<To>;

template <typename From, typename To>
cudaError_t convert(const dsc_cuda_launch *at, int64_t count, const void *src, void *dst) {
    convert_body<From, To, false> body = {(const From *)src, (To *)dst};
    return dsc_flat_run<convert_width<From, To>>(at, body, count, dsc_aligned(src, dst));
}

template <typename From>
cudaError_t convert_from(const dsc_cuda_launch *at, dsc_dtype to, int64_t count, const void *src, void *dst) {
    switch (to) {
    case DSC_F32:
        return convert<From, float>(at, count, src, dst);
    case DSC_F64:
        return convert<From, double>(at, count, src, dst);
    case DSC_BF16:
        return convert<From, __nv_bfloat16>(at, count, src, dst);
    case DSC_F16:
        return convert<From, __half>(at, count, src, dst);
    default:
        return cudaErrorInvalidValue;
    }
}

typedef dsc_batch<dsc_cuda_convert_item, DSC_CUDA_CONVERTS> convert_batch;
static_assert(sizeof(convert_batch) <= 3900, "a launch takes at most 4000 bytes");

/* Runs a body on elements begin .. end - 1, on N at once if `aligned`. */
template <int N, class Body>
__device__ __forceinline__ void run_range(const Body &body, bool aligned, int64_t begin, int64_t end) {
    int64_t whole = aligned ? begin + (end - begin) / N * N : begin;
    for (int64_t e = begin + (int64_t)threadIdx.x * N; e < whole; e += DSC_FLAT_THREADS * N)
        body.template run<N>(e);
    for (int64_t e = whole + threadIdx.x; e < end; e += DSC_FLAT_THREADS)
        body.template run<1>(e);
}

template <typename From, typename To>
__global__ void __launch_bounds__(DSC_FLAT_THREADS) convert_kernel(const __grid_constant__ convert_batch b) {
    dsc_batch_place p = dsc_batch_find(b);
    const From *src = (const From *)b.item[p.item].src;
    To *dst = (To *)b.item[p.item].dst;
    bool aligned = ((uintptr_t)src | (uintptr_t)dst) % 16 == 0;
    constexpr int n = convert_width<From, To>;
    if constexpr (!std::is_same<From, To>::value)
        run_range<n>(convert_body<From, To, false>{src, dst}, aligned, p.begin, p.end);
    else if (b.item[p.item].clamp)
        run_range<n>(convert_body<From, To, true>{src, dst}, aligned, p.begin, p.end);
    else
        run_range<n>(copy_body<From>{src, dst}, aligned, p.begin, p.end);
}

template <typename From, typename To>
cudaError_t convert_some(const dsc_cuda_launch *at, const dsc_cuda_convert_item *items, int count) {
    convert_batch b;
    unsigned blocks = dsc_batch_plan(at, items, count, &b);
    DSC_LAUNCH((convert_kernel<From, To>), blocks, DSC_FLAT_THREADS, 0, at->stream)(b);
    return cudaGetLastError();
}

template <typename From>
cudaError_t converts(const dsc_cuda_launch *at, dsc_dtype to, const dsc_cuda_convert_item *items, int count) {
    switch (to) {
    case DSC_F32:
        return convert_some<From, float>(at, items, count);
    case DSC_F64:
        return convert_some<From, double>(at, items, count);
    case DSC_BF16:
        return convert_some<From, __nv_bfloat16>(at, items, count);
    case DSC_F16:
        return convert_some<From, __half>(at, items, count);
    default:
        return cudaErrorInvalidValue;
    }
}

/* ---- linear combinations and products ---- */

template <typename T> struct axpby_body {
    dsc_number<T> alpha, beta;
    const T *x;
    T *y;

    __device__ bool start() {
        return true;
    }

    template <int N> __device__ void run(int64_t at) const {
        dsc_vector<T, N> from = dsc_load<T, N>(x + at), to;
        if (beta != 0)
            to = dsc_load<T, N>(y + at);
#pragma unroll
        for (int i = 0; i < N; i++) {
            dsc_number<T> value = alpha * from.get(i);
            to.set(i, beta != 0 ? beta * to.get(i) + value : value);
        }
        dsc_store<T, N>(y + at, to);
    }
};

template <typename T>
cudaError_t axpby(const dsc_cuda_launch *at, int64_t count, double alpha, const void *x, double beta,
                  void *y) {
    axpby_body<T> body = {(dsc_number<T>)alpha, (dsc_number<T>)beta, (const T *)x, (T *)y};
    return dsc_flat_run<dsc_width<T>>(at, body, count, dsc_aligned(x, y));
}

template <typename T> struct scale_body {
    const double *s;
    T *t;
    T factor;

    __device__ bool start() {
        factor = (T)*s;
        return true;
    }

    template <int N> __device__ void run(int64_t at) const {
        dsc_vector<T, N> v = dsc_load<T, N>(t + at);
#pragma unroll
        for (int i = 0; i < N; i++)
            v.at[i] *= factor;
        dsc_store<T, N>(t + at, v);
    }
};

template <typename T>
cudaError_t scale_by(const dsc_cuda_launch *at, int64_t count, const double *s, void *t) {
    scale_body<T> body = {s, (T *)t, 0};
    return dsc_flat_run<dsc_width<T>>(at, body, count, dsc_aligned(t));
}

/* ---- sums ---- */

typedef dsc_batch<dsc_cuda_dot_item, DSC_CUDA_DOTS> dot_batch;
static_assert(sizeof(dot_batch) <= 3900, "a launch takes at most 4000 bytes");

template <typename T, int N>
__device__ __forceinline__ double dot_range(const T *x, const T *y, int64_t begin, int64_t end) {
    double sum = 0;
    int64_t whole = begin + (end - begin) / N * N;
#pragma unroll 2
    for (int64_t e = begin + (int64_t)threadIdx.x * N; e < whole; e += DSC_FLAT_THREADS * N) {
        dsc_vector<T, N> a = dsc_load<T, N>(x + e), b = dsc_load<T, N>(y + e);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum += (double)a.at[i] * (double)b.at[i];
    }
    if (whole + threadIdx.x < end)
        sum += (double)x[whole + threadIdx.x] * (double)y[whole + threadIdx.x];
    return sum;
}

template <typename T>
__global__ void __launch_bounds__(DSC_FLAT_THREADS)
    dot_kernel(const __grid_constant__ dot_batch b, double *partials, unsigned *tickets, double beta,
               double *out) {
    dsc_batch_place p = dsc_batch_find(b);
    const T *x = (const T *)b.item[p.item].x, *y = (const T *)b.item[p.item].y;
    double sum = ((uintptr_t)x | (uintptr_t)y) % 16 == 0 ? dot_range<T, dsc_width<T>>(x, y, p.begin, p.end)
                                                         : dot_range<T, 1>(x, y, p.begin, p.end);
    sum = dsc_flat_sum(sum);
    if (dsc_batch_total(p, partials, tickets, sum))
        out[p.item] = beta == 0 ? sum : beta * out[p.item] + sum;
}

template <typename T>
cudaError_t dots(const dsc_cuda_launch *at, const dsc_cuda_dot_item *items, int count, double beta,
                 double *out) {
    dot_batch b;
    unsigned blocks = dsc_batch_plan(at, items, count, &b);
    DSC_LAUNCH((dot_kernel<T>), blocks, DSC_FLAT_THREADS, 0, at->stream)
    (b, (double *)at->scratch, at->tickets, beta, out);
    return cudaGetLastError();
}

/* ---- running averages, not updated by non-finite numbers ---- */

typedef dsc_batch<dsc_cuda_absorb_item, DSC_CUDA_ABSORBS> absorb_batch;
static_assert(sizeof(absorb_batch) <= 3950, "a launch takes at most 4000 bytes");

template <typename T, int N>
__device__ __forceinline__ int64_t count_range(const T *x, int64_t begin, int64_t end) {
    int64_t bad = 0, whole = begin + (end - begin) / N * N;
#pragma unroll 2
    for (int64_t e = begin + (int64_t)threadIdx.x * N; e < whole; e += DSC_FLAT_THREADS * N) {
        dsc_vector<T, N> v = dsc_load<T, N>(x + e);
#pragma unroll
        for (int i = 0; i < N; i++)
            bad += !isfinite(v.get(i));
    }
    if (whole + threadIdx.x < end)
        bad += !isfinite(dsc_get(x[whole + threadIdx.x]));
    return bad;
}

template <typename T>
__global__ void __launch_bounds__(DSC_FLAT_THREADS)
    count_kernel(const __grid_constant__ absorb_batch b, double *partials, unsigned *tickets, int add) {
    dsc_batch_place p = dsc_batch_find(b);
    const T *x = (const T *)b.item[p.item].x;
    int64_t found = (uintptr_t)x % 16 == 0 ? count_range<T, dsc_width<T>>(x, p.begin, p.end)
                                           : count_range<T, 1>(x, p.begin, p.end);
    double sum = dsc_flat_sum((double)found), *bad = b.item[p.item].bad;
    if (dsc_batch_total(p, partials, tickets, sum))
        bad[0] = add ? bad[0] + sum : sum;
}

template <typename T>
cudaError_t counts(const dsc_cuda_launch *at, const dsc_cuda_absorb_item *items, int count, int add) {
    absorb_batch b;
    unsigned blocks = dsc_batch_plan(at, items, count, &b);
    DSC_LAUNCH((count_kernel<T>), blocks, DSC_FLAT_THREADS, 0, at->stream)
    (b, (double *)at->scratch, at->tickets, add);
    return cudaGetLastError();
}

template <typename T, int N>
__device__ __forceinline__ void blend_range(T keep, T take, const T *x, T *y, int64_t begin, int64_t end) {
    int64_t whole = begin + (end - begin) / N * N;
    for (int64_t e = begin + (int64_t)threadIdx.x * N; e < whole; e += DSC_FLAT_THREADS * N) {
        dsc_vector<T, N> a = dsc_load<T, N>(x + e), b = dsc_load<T, N>(y + e);
#pragma unroll
        for (int i = 0; i < N; i++)
            b.at[i] = keep * b.at[i] + take * a.at[i];
        dsc_store<T, N>(y + e, b);
    }
    int64_t rest = whole + threadIdx.x;
    if (rest < end)
        y[rest] = keep * y[rest] + take * x[rest];
}

template <typename T>
__global__ void __launch_bounds__(DSC_FLAT_THREADS)
    blend_kernel(const __grid_constant__ absorb_batch b, const double *decay) {
    dsc_batch_place p = dsc_batch_find(b);
    const T *x = (const T *)b.item[p.item].x;
    T *y = (T *)b.item[p.item].y;
    double *bad = b.item[p.item].bad;
    if (bad[0] > 0) {
        if (p.block == 0 && threadIdx.x == 0)
            bad[1] += 1;
        return;
    }
    double keep = *decay;
    if (((uintptr_t)x | (uintptr_t)y) % 16 == 0)
        blend_range<T, dsc_width<T>>((T)keep, (T)(1 - keep), x, y, p.begin, p.end);
    else
        blend_range<T, 1>((T)keep, (T)(1 - keep), x, y, p.begin, p.end);
}

template <typename T>
cudaError_t blends(const dsc_cuda_launch *at, const double *decay, const dsc_cuda_absorb_item *items,
                   int count) {
    absorb_batch b;
    unsigned blocks = dsc_batch_plan(at, items, count, &b);
    DSC_LAUNCH((blend_kernel<T>), blocks, DSC_FLAT_THREADS, 0, at->stream)(b, decay);
    return cudaGetLastError();
}

/* ---- counters and flags of a training step ---- */

struct increment_body {
    int64_t *t;

    __device__ bool start() {
        return true;
    }

    template <int N> __device__ void run(int64_t at) const {
        t[at]++;
    }
};

__global__ void clip_factor_kernel(const double *sumsq, double limit, double *out) {
    *out = dsc_clip_factor(*sumsq, limit);
}

__global__ void guard_kernel(const double *value, int firm, double *flag) {
    if (!isfinite(*value) && (firm || *flag != 1))
        *flag = 2;
}

__global__ void loss_scale_kernel(const double *bad, double *scale, double *skip) {
    double found = *bad;
    dsc_loss_scale_move(scale, found);
    *skip = dsc_skip_move(*skip, found);
}

/* The time of the GPU's clock in nanoseconds. */
__device__ int64_t now() {
#ifdef DSC_EMULATED
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
#else
    int64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
#endif
}

__global__ void timestamp_kernel(int64_t *out) {
    *out = now();
}

} // namespace

static cudaError_t launch_fill(const dsc_cuda_launch *at, int size, uint64_t bits, int64_t count, void *t) {
    switch (size) {
    case 1:
        return fill<uint8_t>(at, bits, count, t);
    case 2:
        return fill<uint16_t>(at, bits, count, t);
    case 4:
        return fill<uint32_t>(at, bits, count, t);
    default:
        return fill<uint64_t>(at, bits, count, t);
    }
}

static cudaError_t copy_bits(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t count, const void *src,
                             void *dst) {
    switch (dtype) {
    case DSC_U8:
        return copy<uint8_t>(at, count, src, dst);
    case DSC_BF16:
    case DSC_F16:
        return copy<uint16_t>(at, count, src, dst);
    case DSC_F32:
    case DSC_I32:
        return copy<uint32_t>(at, count, src, dst);
    default:
        return copy<uint64_t>(at, count, src, dst);
    }
}

static cudaError_t launch_convert(const dsc_cuda_launch *at, dsc_dtype from, dsc_dtype to, int64_t count,
                                  const void *src, void *dst) {
    if (from == to)
        return copy_bits(at, from, count, src, dst);
    return DSC_BY_TYPE(from, convert_from, at, to, count, src, dst);
}

static cudaError_t launch_clip_factor(const dsc_cuda_launch *at, const double *sumsq, double limit,
                                      double *out) {
    DSC_LAUNCH((clip_factor_kernel), 1, 1, 0, at->stream)(sumsq, limit, out);
    return cudaGetLastError();
}

static cudaError_t launch_increment(const dsc_cuda_launch *at, int64_t count, int64_t *t) {
    increment_body body = {t};
    return dsc_flat_run<1>(at, body, count, true);
}

static cudaError_t launch_guard(const dsc_cuda_launch *at, const double *value, int firm, double *flag) {
    DSC_LAUNCH((guard_kernel), 1, 1, 0, at->stream)(value, firm, flag);
    return cudaGetLastError();
}

static cudaError_t launch_loss_scale(const dsc_cuda_launch *at, const double *bad, double *scale,
                                     double *skip) {
    DSC_LAUNCH((loss_scale_kernel), 1, 1, 0, at->stream)(bad, scale, skip);
    return cudaGetLastError();
}

static cudaError_t launch_timestamp(const dsc_cuda_launch *at, int64_t *out) {
    DSC_LAUNCH((timestamp_kernel), 1, 1, 0, at->stream)(out);
    return cudaGetLastError();
}

/* ---- operations on one or two tensors ---- */

/* Returns the bits of `value` as this type, in the lowest bytes. */
static uint64_t bits_of(double value, dsc_dtype dtype) {
    uint64_t bits = 0;
    switch (dtype) {
    case DSC_F32:
        return dsc_float_bits((float)value);
    case DSC_F64:
        memcpy(&bits, &value, sizeof bits);
        return bits;
    case DSC_BF16:
        return dsc_bf16_from_double(value);
    case DSC_F16:
        return dsc_f16_from_double(value);
    case DSC_I32:
        return (uint32_t)(int32_t)value;
    case DSC_I64:
        return (uint64_t)(int64_t)value;
    case DSC_U8:
        return (uint8_t)value;
    }
    return bits;
}

dsc_status dsc_cuda_fill(dsc_queue *q, double value, dsc_tensor *t) {
    DSC_CUDA_TRY(launch_fill(dsc_cuda_at(q), (int)dsc_dtype_size(t->dtype), bits_of(value, t->dtype),
                             dsc_tensor_count(t), dsc_data(t)));
    return DSC_OK;
}

dsc_status dsc_cuda_convert(dsc_queue *q, const dsc_tensor *src, dsc_tensor *dst) {
    DSC_CUDA_TRY(launch_convert(dsc_cuda_at(q), src->dtype, dst->dtype, dsc_tensor_count(dst), dsc_data(src),
                                dsc_data(dst)));
    return DSC_OK;
}

/* Converts those items that have these two types. */
static cudaError_t convert_pair(const dsc_cuda_launch *at, const dsc_convert_item *items, int64_t count,
                                dsc_dtype from, dsc_dtype to) {
    dsc_cuda_convert_item part[DSC_CUDA_CONVERTS];
    cudaError_t error = cudaSuccess;
    int n = 0;
    for (int64_t i = 0; i < count && error == cudaSuccess; i++) {
        const dsc_convert_item *item = &items[i];
        if (item->src.dtype == from && item->dst.dtype == to)
            part[n++] = (dsc_cuda_convert_item){dsc_data(&item->src), dsc_data(&item->dst),
                                                dsc_tensor_count(&item->dst), item->clamp};
        if (n == DSC_CUDA_CONVERTS || (n > 0 && i == count - 1)) {
            error = DSC_BY_TYPE(from, converts, at, to, part, n);
            n = 0;
        }
    }
    return error;
}

dsc_status dsc_cuda_convert_batch(dsc_queue *q, const dsc_convert_item *items, int64_t count) {
    static const dsc_dtype types[] = {DSC_F32, DSC_F64, DSC_BF16, DSC_F16};
    uint64_t pairs = 0; /* bit 8 from + to: there is such an item */
    for (int64_t i = 0; i < count; i++)
        pairs |= (uint64_t)1 << (8 * (int)items[i].src.dtype + (int)items[i].dst.dtype);
    for (int i = 0; i < 16; i++) {
        dsc_dtype from = types[i / 4], to = types[i % 4];
        if (pairs >> (8 * (int)from + (int)to) & 1)
            DSC_CUDA_TRY(convert_pair(dsc_cuda_at(q), items, count, from, to));
    }
    return DSC_OK;
}

dsc_status dsc_cuda_axpby(dsc_queue *q, double alpha, const dsc_tensor *x, double beta, dsc_tensor *y) {
    DSC_CUDA_TRY(DSC_BY_TYPE(y->dtype, axpby, dsc_cuda_at(q), dsc_tensor_count(y), alpha, dsc_data(x), beta,
                             dsc_data(y)));
    return DSC_OK;
}

dsc_status dsc_cuda_scale_by(dsc_queue *q, const dsc_tensor *s, dsc_tensor *t) {
    DSC_CUDA_TRY(
        DSC_BY_REAL(t->dtype, scale_by, dsc_cuda_at(q), dsc_tensor_count(t), dsc_data(s), dsc_data(t)));
    return DSC_OK;
}

/* ---- sums ---- */

dsc_status dsc_cuda_dot(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *y, double beta,
                        dsc_tensor *out) {
    const dsc_cuda_dot_item item = {dsc_data(x), dsc_data(y), dsc_tensor_count(x)};
    DSC_CUDA_TRY(DSC_BY_REAL(x->dtype, dots, dsc_cuda_at(q), &item, 1, beta, dsc_data(out)));
    return DSC_OK;
}

dsc_status dsc_cuda_count_nonfinite(dsc_queue *q, const dsc_tensor *t, dsc_tensor *out) {
    const dsc_cuda_absorb_item item = {.x = dsc_data(t), .bad = dsc_data(out), .count = dsc_tensor_count(t)};
    DSC_CUDA_TRY(DSC_BY_TYPE(t->dtype, counts, dsc_cuda_at(q), &item, 1, 1));
    return DSC_OK;
}

dsc_status dsc_cuda_blend(dsc_queue *q, const dsc_tensor *decay, const dsc_tensor *x, dsc_tensor *bad,
                          dsc_tensor *y) {
    const dsc_cuda_absorb_item item = {dsc_data(x), dsc_data(bad), dsc_data(y), dsc_tensor_count(y)};
    DSC_CUDA_TRY(DSC_BY_REAL(y->dtype, blends, dsc_cuda_at(q), dsc_data(decay), &item, 1));
    return DSC_OK;
}

/* ---- scalars ---- */

dsc_status dsc_cuda_clip_factor(dsc_queue *q, const dsc_tensor *sumsq, double limit, dsc_tensor *out) {
    DSC_CUDA_TRY(launch_clip_factor(dsc_cuda_at(q), dsc_data(sumsq), limit, dsc_data(out)));
    return DSC_OK;
}

dsc_status dsc_cuda_increment(dsc_queue *q, dsc_tensor *t) {
    DSC_CUDA_TRY(launch_increment(dsc_cuda_at(q), dsc_tensor_count(t), dsc_data(t)));
    return DSC_OK;
}

dsc_status dsc_cuda_guard(dsc_queue *q, const dsc_tensor *value, int firm, dsc_tensor *flag) {
    DSC_CUDA_TRY(launch_guard(dsc_cuda_at(q), dsc_data(value), firm, dsc_data(flag)));
    return DSC_OK;
}

dsc_status dsc_cuda_loss_scale(dsc_queue *q, const dsc_tensor *bad, dsc_tensor *scale, dsc_tensor *skip) {
    DSC_CUDA_TRY(launch_loss_scale(dsc_cuda_at(q), dsc_data(bad), dsc_data(scale), dsc_data(skip)));
    return DSC_OK;
}

dsc_status dsc_cuda_dot_batch(dsc_queue *q, const dsc_dot_item *items, int64_t count, dsc_tensor *out) {
    for (int64_t done = 0; done < count; done += DSC_CUDA_DOTS) {
        dsc_cuda_dot_item part[DSC_CUDA_DOTS];
        int n = dsc_batch_part(count - done, DSC_CUDA_DOTS);
        for (int i = 0; i < n; i++) {
            const dsc_dot_item *item = &items[done + i];
            part[i] = (dsc_cuda_dot_item){dsc_data(&item->x), dsc_data(&item->y), dsc_tensor_count(&item->x)};
        }
        DSC_CUDA_TRY(
            DSC_BY_REAL(items[0].x.dtype, dots, dsc_cuda_at(q), part, n, 0, (double *)out->data + done));
    }
    return DSC_OK;
}

dsc_status dsc_cuda_absorb_batch(dsc_queue *q, const dsc_tensor *decay, const dsc_absorb_item *items,
                                 int64_t count) {
    for (int64_t done = 0; done < count; done += DSC_CUDA_ABSORBS) {
        dsc_cuda_absorb_item part[DSC_CUDA_ABSORBS];
        int n = dsc_batch_part(count - done, DSC_CUDA_ABSORBS);
        for (int i = 0; i < n; i++) {
            const dsc_absorb_item *item = &items[done + i];
            part[i] = (dsc_cuda_absorb_item){dsc_data(&item->x), dsc_data(&item->bad), dsc_data(&item->y),
                                             dsc_tensor_count(&item->x)};
        }
        DSC_CUDA_TRY(DSC_BY_TYPE(items[0].x.dtype, counts, dsc_cuda_at(q), part, n, 0));
        DSC_CUDA_TRY(DSC_BY_REAL(items[0].x.dtype, blends, dsc_cuda_at(q), dsc_data(decay), part, n));
    }
    return DSC_OK;
}

dsc_status dsc_cuda_timestamp(dsc_queue *q, dsc_tensor *t) {
    DSC_CUDA_TRY(launch_timestamp(dsc_cuda_at(q), (int64_t *)t->data));
    return DSC_OK;
}
