/* Pooling in windows and globally. Gradients are gathered: every element of dx visits the outputs in whose window it
 * was, in their order. If windows of 2x2 cover every element exactly once, as in U-Nets, every output writes the
 * elements of its window instead, so that its gradient is read only once. */
#include "device/cuda/entries.h"
#include "device/cuda/layer.cuh"

typedef struct dsc_cuda_pool_shape {
    dsc_pool_desc window;
    int64_t n, h, w, c, oh, ow;
} dsc_cuda_pool_shape;

/* ---- windows ---- */

/* Finds the places [low, high) in the window of output o that lie inside the input. */
__device__ __forceinline__ void inside(int64_t o, int64_t kernel, int64_t stride, int64_t pad, int64_t size,
                                       int64_t &low, int64_t &high) {
    int64_t start = o * stride - pad;
    low = start < 0 ? -start : 0;
    high = size - start < kernel ? size - start : kernel;
}

/* Returns the corner of output i's window, which may lie outside the input x, and finds the window's rows [r0, r1) and
 * columns [s0, s1) that lie inside. */
template <typename T>
__device__ __forceinline__ const T *window_at(const dsc_cuda_pool_shape &s, const T *x, int64_t i,
                                              int64_t &r0, int64_t &r1, int64_t &s0, int64_t &s1) {
    int64_t n = i, c = dsc_peel(n, s.c), column = dsc_peel(n, s.ow), row = dsc_peel(n, s.oh);
    inside(row, s.window.kh, s.window.stride_h, s.window.pad_h, s.h, r0, r1);
    inside(column, s.window.kw, s.window.stride_w, s.window.pad_w, s.w, s0, s1);
    int64_t top = n * s.h + row * s.window.stride_h - s.window.pad_h;
    return x + (top * s.w + column * s.window.stride_w - s.window.pad_w) * s.c + c;
}

/* Finds the outputs [low, high) whose windows cover input i. */
__device__ __forceinline__ void covering(int64_t i, int64_t kernel, int64_t stride, int64_t pad,
                                         int64_t outputs, int64_t &low, int64_t &high) {
    int64_t last = i + pad, before = last - kernel;
    high = last;
    dsc_peel(high, stride);
    high = high + 1 < outputs ? high + 1 : outputs;
    low = 0;
    if (before >= 0) {
        low = before;
        dsc_peel(low, stride);
        low++;
    }
}

/* I: the type of the index. */
template <typename T, typename I> struct pool_max {
    dsc_cuda_pool_shape s;
    const T *x;
    I *index;
    T *y;

    template <int N> __device__ __forceinline__ void at(int64_t i) const {
        typedef dsc_number<T> A;
        int64_t r0, r1, s0, s1;
        const T *corner = window_at(s, x, i, r0, r1, s0, s1);
        A best[N] = {};
        int32_t place[N];
#pragma unroll
        for (int k = 0; k < N; k++)
            place[k] = -1;
        for (int64_t r = r0; r < r1; r++)
            for (int64_t q = s0; q < s1; q++) {
                dsc_vector<T, N> value = dsc_load<T, N>(corner + (r * s.w + q) * s.c);
#pragma unroll
                for (int k = 0; k < N; k++) {
                    A v = value.get(k);
                    if (place[k] < 0 || v > best[k] || v != v) { /* a NaN is a maximum */
                        best[k] = v;
                        place[k] = (int32_t)(r * s.window.kw + q);
                    }
                }
            }
        dsc_vector<T, N> out = {};
        dsc_vector<I, N> places;
#pragma unroll
        for (int k = 0; k < N; k++) {
            out.set(k, best[k]);
            places.at[k] = (I)place[k];
        }
        dsc_store<T, N>(y + i, out);
        if (index)
            dsc_store<I, N>(index + i, places);
    }
};

template <typename T> struct pool_mean {
    dsc_cuda_pool_shape s;
    const T *x;
    T *y;

    template <int N> __device__ __forceinline__ void at(int64_t i) const {
        typedef dsc_number<T> A;
        int64_t r0, r1, s0, s1;
        const T *corner = window_at(s, x, i, r0, r1, s0, s1);
        A sum[N] = {};
        for (int64_t r = r0; r < r1; r++)
            for (int64_t q = s0; q < s1; q++) {
                dsc_vector<T, N> value = dsc_load<T, N>(corner + (r * s.w + q) * s.c);
#pragma unroll
                for (int k = 0; k < N; k++)
                    sum[k] += value.get(k);
            }
        dsc_vector<T, N> out = {};
#pragma unroll
        for (int k = 0; k < N; k++)
            out.set(k, sum[k] / (A)(s.window.kh * s.window.kw));
        dsc_store<T, N>(y + i, out);
    }
};

/* bytes: 1: the index, if there is one, consists of bytes. */
template <typename T>
static cudaError_t run_pool_forward(const dsc_cuda_launch *at, const dsc_cuda_pool_shape *s, const void *x,
                                    int bytes, void *index, void *y) {
    int64_t count = s->n * s->oh * s->ow * s->c;
    int wide = dsc_fits<T>(s->c, x, index, y);
    if (s->window.kind != DSC_POOL_MAX)
        return dsc_flat_run<T>(at, count, wide, pool_mean<T>{*s, (const T *)x, (T *)y});
    if (bytes)
        return dsc_flat_run<T>(at, count, wide,
                               pool_max<T, uint8_t>{*s, (const T *)x, (uint8_t *)index, (T *)y});
    return dsc_flat_run<T>(at, count, wide, pool_max<T, int32_t>{*s, (const T *)x, (int32_t *)index, (T *)y});
}

/* index: NULL for average pooling. */
template <typename T, typename I> struct pool_grad {
    dsc_cuda_pool_shape s;
    const I *index;
    const T *dy;
    int add;
    T *dx;

    template <int N> __device__ __forceinline__ void at(int64_t i) const {
        typedef dsc_number<T> A;
        int64_t n = i, c = dsc_peel(n, s.c), column = dsc_peel(n, s.w), row = dsc_peel(n, s.h);
        int64_t r0, r1, s0, s1;
        covering(row, s.window.kh, s.window.stride_h, s.window.pad_h, s.oh, r0, r1);
        covering(column, s.window.kw, s.window.stride_w, s.window.pad_w, s.ow, s0, s1);
        A sum[N] = {}, parts = index ? (A)1 : (A)(s.window.kh * s.window.kw);
        for (int64_t r = r0; r < r1; r++)
            for (int64_t q = s0; q < s1; q++) {
                int64_t output = ((n * s.oh + r) * s.ow + q) * s.c + c;
                int32_t here = (int32_t)((row + s.window.pad_h - r * s.window.stride_h) * s.window.kw +
                                         column + s.window.pad_w - q * s.window.stride_w);
                dsc_vector<T, N> grad = dsc_load<T, N>(dy + output);
                dsc_vector<I, N> place = {};
                if (index)
                    place = dsc_load<I, N>(index + output);
#pragma unroll
                for (int k = 0; k < N; k++)
                    if (!index || place.at[k] == here)
                        sum[k] += grad.get(k);
            }
        dsc_vector<T, N> out = {};
        if (add)
            out = dsc_load<T, N>(dx + i);
#pragma unroll
        for (int k = 0; k < N; k++)
            out.set(k, add ? out.get(k) + sum[k] / parts : sum[k] / parts);
        dsc_store<T, N>(dx + i, out);
    }
};

/* For windows of 2x2 without padding that cover every element of dx once. Here i is the index of an output. */
template <typename T, typename I> struct pool_grad_2x2 {
    dsc_cuda_pool_shape s;
    const I *index;
    const T *dy;
    int add;
    T *dx;

    template <int N> __device__ __forceinline__ void at(int64_t i) const {
        int64_t n = i, c = dsc_peel(n, s.c), column = dsc_peel(n, s.ow); /* n: the row, over all images */
        T *corner = dx + (2 * n * s.w + 2 * column) * s.c + c;
        dsc_vector<T, N> grad = dsc_load<T, N>(dy + i), out[4] = {};
        dsc_vector<I, N> place = {};
        if (index)
            place = dsc_load<I, N>(index + i);
        if (add) {
#pragma unroll
            for (int q = 0; q < 4; q++)
                out[q] = dsc_load<T, N>(corner + (q / 2 * s.w + q % 2) * s.c);
        }
#pragma unroll
        for (int q = 0; q < 4; q++) {
#pragma unroll
            for (int k = 0; k < N; k++) {
                dsc_number<T> share = index ? place.at[k] == q ? grad.get(k) : 0 : grad.get(k) / 4;
                out[q].set(k, add ? out[q].get(k) + share : share);
            }
            dsc_store<T, N>(corner + (q / 2 * s.w + q % 2) * s.c, out[q]);
        }
    }
};

template <typename T, typename I>
static cudaError_t pool_backward(const dsc_cuda_launch *at, const dsc_cuda_pool_shape *s, const I *index,
                                 const T *dy, int add, T *dx) {
    const dsc_pool_desc *w = &s->window;
    const int wide = dsc_fits<T>(s->c, index, dy, dx);
    if (w->kh == 2 && w->kw == 2 && w->stride_h == 2 && w->stride_w == 2 && w->pad_h == 0 && w->pad_w == 0 &&
        s->h == 2 * s->oh && s->w == 2 * s->ow)
        return dsc_flat_run<T>(at, s->n * s->oh * s->ow * s->c, wide,
                               pool_grad_2x2<T, I>{*s, index, dy, add, dx});
    return dsc_flat_run<T>(at, s->n * s->h * s->w * s->c, wide, pool_grad<T, I>{*s, index, dy, add, dx});
}

template <typename T>
static cudaError_t run_pool_backward(const dsc_cuda_launch *at, const dsc_cuda_pool_shape *s, int bytes,
                                     const void *index, const void *dy, int add, void *dx) {
    if (bytes)
        return pool_backward<T, uint8_t>(at, s, (const uint8_t *)index, (const T *)dy, add, (T *)dx);
    return pool_backward<T, int32_t>(at, s, (const int32_t *)index, (const T *)dy, add, (T *)dx);
}

/* ---- global ---- */

enum { MEAN_ROWS = 4 }; /* pixels that a thread loads at once */

/* blockIdx.x is the group of channels, blockIdx.y the first image. */
template <typename T, int N>
static __global__ void __launch_bounds__(DSC_COLUMN_THREADS, 2)
    global_mean(const dsc_columns c, int64_t n, const T *x, T *y) {
    int lane = (int)threadIdx.x & (c.lanes - 1), step = (int)blockDim.x / c.lanes;
    int64_t channel = ((int64_t)blockIdx.x * c.lanes + lane) * N, own = dsc_column_own<N>(c);
    int64_t first = channel < c.width ? (int)threadIdx.x / c.lanes : c.rows;
    for (int64_t image = blockIdx.y; image < n; image += gridDim.y) {
        const T *from = x + image * c.rows * c.stride + channel;
        dsc_number<T> mine[1][N] = {};
        double sum[1] = {0};
        for (int64_t row = first; row < c.rows; row += MEAN_ROWS * step) {
            dsc_vector<T, N> value[MEAN_ROWS];
#pragma unroll
            for (int u = 0; u < MEAN_ROWS; u++)
                value[u] = dsc_load<T, N>(from + (row + (row + u * step < c.rows ? u : 0) * step) * c.stride);
#pragma unroll
            for (int u = 0; u < MEAN_ROWS; u++)
#pragma unroll
                for (int i = 0; i < N; i++)
                    mine[0][i] += row + u * step < c.rows ? value[u].get(i) : 0;
        }
        dsc_block_sums<1>(c.lanes, mine, sum);
        if ((int)threadIdx.x < c.lanes * N && own < c.width)
            dsc_set(y[image * c.width + own], (dsc_number<T>)(sum[0] / (double)c.rows));
        __syncthreads();
    }
}

template <typename T, int N>
static cudaError_t mean_of_images(const dsc_cuda_launch *at, int64_t n, int64_t pixels, int64_t channels,
                                  const T *x, T *y) {
    dsc_columns c = dsc_columns_of(pixels, channels, channels, N, DSC_COLUMN_THREADS, MEAN_ROWS, 1);
    DSC_LAUNCH((global_mean<T, N>), dim3(c.groups, (unsigned)(n < 65535 ? n : 65535)),
               dim3(DSC_COLUMN_THREADS), 0, at->stream)
    (c, n, x, y);
    return cudaGetLastError();
}

template <typename T>
static cudaError_t run_global_pool_forward(const dsc_cuda_launch *at, int64_t n, int64_t pixels,
                                           int64_t channels, const void *x, void *y) {
    return dsc_fits<T>(channels, x)
               ? mean_of_images<T, dsc_wide<T>()>(at, n, pixels, channels, (const T *)x, (T *)y)
               : mean_of_images<T, 1>(at, n, pixels, channels, (const T *)x, (T *)y);
}

template <typename T> struct global_grad {
    int64_t pixels, channels;
    const T *dy;
    int add;
    T *dx;

    template <int N> __device__ __forceinline__ void at(int64_t i) const {
        typedef dsc_number<T> A;
        int64_t n = i, c = dsc_peel(n, channels);
        dsc_peel(n, pixels);
        dsc_vector<T, N> grad = dsc_load<T, N>(dy + n * channels + c), out = {};
        if (add)
            out = dsc_load<T, N>(dx + i);
#pragma unroll
        for (int k = 0; k < N; k++) {
            A share = grad.get(k) / (A)pixels;
            out.set(k, add ? out.get(k) + share : share);
        }
        dsc_store<T, N>(dx + i, out);
    }
};

template <typename T>
static cudaError_t run_global_pool_backward(const dsc_cuda_launch *at, int64_t n, int64_t pixels,
                                            int64_t channels, const void *dy, int add, void *dx) {
    global_grad<T> operation = {pixels, channels, (const T *)dy, add, (T *)dx};
    return dsc_flat_run<T>(at, n * pixels * channels, dsc_fits<T>(channels, dy, dx), operation);
}

/* ---- the operations ---- */

static dsc_cuda_pool_shape pool_shape(const dsc_pool_desc *desc, const dsc_tensor *x, const dsc_tensor *y) {
    return (dsc_cuda_pool_shape){.window = *desc,
                                 .n = x->dim[0],
                                 .h = x->dim[1],
                                 .w = x->dim[2],
                                 .c = x->dim[3],
                                 .oh = y->dim[1],
                                 .ow = y->dim[2]};
}

dsc_status dsc_cuda_pool_forward(dsc_queue *q, const dsc_pool_desc *desc, const dsc_tensor *x,
                                 dsc_tensor *index, dsc_tensor *y) {
    dsc_cuda_pool_shape shape = pool_shape(desc, x, y);
    DSC_CUDA_TRY(DSC_BY_TYPE(x->dtype, run_pool_forward, dsc_cuda_at(q), &shape, dsc_data(x),
                             index && index->dtype == DSC_U8, dsc_data(index), dsc_data(y)));
    return DSC_OK;
}

dsc_status dsc_cuda_pool_backward(dsc_queue *q, const dsc_pool_desc *desc, const dsc_tensor *index,
                                  const dsc_tensor *dy, double beta, dsc_tensor *dx) {
    dsc_cuda_pool_shape shape = pool_shape(desc, dx, dy);
    const dsc_tensor *places = desc->kind == DSC_POOL_MAX ? index : NULL;
    DSC_CUDA_TRY(DSC_BY_TYPE(dx->dtype, run_pool_backward, dsc_cuda_at(q), &shape,
                             places && places->dtype == DSC_U8, dsc_data(places), dsc_data(dy), beta != 0,
                             dsc_data(dx)));
    return DSC_OK;
}

dsc_status dsc_cuda_global_pool_forward(dsc_queue *q, const dsc_tensor *x, dsc_tensor *y) {
    int64_t pixels = x->dim[1] * x->dim[2];
    DSC_CUDA_TRY(DSC_BY_TYPE(x->dtype, run_global_pool_forward, dsc_cuda_at(q), x->dim[0], pixels, x->dim[3],
                             dsc_data(x), dsc_data(y)));
    return DSC_OK;
}

dsc_status dsc_cuda_global_pool_backward(dsc_queue *q, const dsc_tensor *dy, double beta, dsc_tensor *dx) {
    int64_t pixels = dx->dim[1] * dx->dim[2];
    DSC_CUDA_TRY(DSC_BY_TYPE(dx->dtype, run_global_pool_backward, dsc_cuda_at(q), dx->dim[0], pixels,
                             dx->dim[3], dsc_data(dy), beta != 0, dsc_data(dx)));
    return DSC_OK;
}
