/* 1x1 convolutions with few output channels: products of a long matrix x[rows, c] and k rows of weights, which take as
 * long as reading or writing x.
 *
 *   forward   y[r,j]  = bias[j] + sum over ch of w[j,ch] x[r,ch]
 *   data      dx[r,ch] = [dx[r,ch] +] sum over j of dy[r,j] w[j,ch]
 *   weights   dw[j,ch] = [dw[j,ch] +] sum over r of dy[r,j] x[r,ch]
 *
 * A team of threads, a power of two within a warp, processes a row, and each of its threads has vectors of 16 bytes of
 * the row. Sums are float32 in a fixed order; those over rows are finished in double (layer.cuh). */
#include "device/cuda/narrow_conv.h"

#include "device/cuda/entries.h"
#include "device/cuda/layer.cuh"

enum { MOST_OUTPUTS = 8, MOST_CHANNELS = 1024, ROWS = 4 /* a thread loads this many at once */ };

typedef struct dsc_cuda_narrow_call {
    int64_t rows, c;
    int k, team, add;
    const void *x, *w, *dy;
    const float *bias; /* may be NULL */
    void *y, *dx;
} dsc_cuda_narrow_call;

/* Loads the weights as float32 [K][c], with zeros for outputs that do not exist. All threads call it. */
template <typename T, int K>
__device__ __forceinline__ void share_weights(const dsc_cuda_narrow_call &a, float *weights) {
    const T *w = (const T *)a.w;
    for (int64_t i = threadIdx.x; i < K * a.c; i += blockDim.x)
        weights[i] = i < a.k * a.c ? dsc_get(w[i]) : 0;
    __syncthreads();
}

/* The rows of a team are `step` apart, and the block's first team begins at `base`. */
typedef struct dsc_cuda_narrow_rows {
    int64_t base, step;
    int team, lane; /* the number of the team in the block, and of the thread in the team */
} dsc_cuda_narrow_rows;

__device__ __forceinline__ dsc_cuda_narrow_rows narrow_rows(int team) {
    int teams = (int)blockDim.x / team;
    return {(int64_t)blockIdx.x * teams, (int64_t)gridDim.x * teams, (int)threadIdx.x / team,
            (int)threadIdx.x % team};
}

template <typename T, int N, int K>
static __global__ void __launch_bounds__(DSC_FLAT_THREADS) narrow_forward(const dsc_cuda_narrow_call a) {
    DSC_SHARED(float, weights);
    share_weights<T, K>(a, weights);
    dsc_cuda_narrow_rows r = narrow_rows(a.team);
    const T *x = (const T *)a.x;
    T *y = (T *)a.y;
    for (int64_t base = r.base; base < a.rows; base += ROWS * r.step) {
        float sum[ROWS][K] = {};
        for (int64_t ch = r.lane * N; ch < a.c; ch += a.team * N) {
            dsc_vector<T, N> value[ROWS];
#pragma unroll
            for (int u = 0; u < ROWS; u++) {
                int64_t row = base + u * r.step + r.team;
                value[u] = dsc_load<T, N>(x + (row < a.rows ? row : base) * a.c + ch);
            }
#pragma unroll
            for (int j = 0; j < K; j++)
#pragma unroll
                for (int i = 0; i < N; i++) {
                    float weight = weights[j * a.c + ch + i];
#pragma unroll
                    for (int u = 0; u < ROWS; u++)
                        sum[u][j] += weight * value[u].get(i);
                }
        }
        for (int apart = a.team / 2; apart > 0; apart /= 2) {
#pragma unroll
            for (int u = 0; u < ROWS; u++)
#pragma unroll
                for (int j = 0; j < K; j++)
                    sum[u][j] += __shfl_xor_sync(0xFFFFFFFFu, sum[u][j], apart);
        }
#pragma unroll
        for (int u = 0; u < ROWS; u++) {
            int64_t row = base + u * r.step + r.team;
#pragma unroll
            for (int j = 0; j < K; j++)
                if (r.lane == 0 && row < a.rows && j < a.k)
                    dsc_set(y[row * a.k + j], sum[u][j] + (a.bias ? a.bias[j] : 0));
        }
    }
}

template <typename T, int N, int K>
static __global__ void __launch_bounds__(DSC_FLAT_THREADS) narrow_data(const dsc_cuda_narrow_call a) {
    DSC_SHARED(float, weights);
    share_weights<T, K>(a, weights);
    dsc_cuda_narrow_rows r = narrow_rows(a.team);
    const T *dy = (const T *)a.dy;
    T *dx = (T *)a.dx;
    for (int64_t ch = r.lane * N; ch < a.c; ch += a.team * N) {
        float weight[K][N];
#pragma unroll
        for (int j = 0; j < K; j++)
#pragma unroll
            for (int i = 0; i < N; i++)
                weight[j][i] = weights[j * a.c + ch + i];
        for (int64_t row = r.base + r.team; row < a.rows; row += ROWS * r.step) {
            float g[ROWS][K];
            dsc_vector<T, N> out[ROWS];
#pragma unroll
            for (int u = 0; u < ROWS; u++) {
                int64_t at = row + (row + u * r.step < a.rows ? u : 0) * r.step;
#pragma unroll
                for (int j = 0; j < K; j++)
                    g[u][j] = j < a.k ? dsc_get(dy[at * a.k + j]) : 0;
                if (a.add)
                    out[u] = dsc_load<T, N>(dx + at * a.c + ch);
            }
#pragma unroll
            for (int u = 0; u < ROWS; u++) {
                if (row + u * r.step >= a.rows)
                    break;
#pragma unroll
                for (int i = 0; i < N; i++) {
                    float sum = a.add ? out[u].get(i) : 0;
#pragma unroll
                    for (int j = 0; j < K; j++)
                        sum += g[u][j] * weight[j][i];
                    out[u].set(i, sum);
                }
                dsc_store<T, N>(dx + (row + u * r.step) * a.c + ch, out[u]);
            }
        }
    }
}

/* ---- the gradient of the weights ---- */

template <typename T> struct narrow_weight_call {
    dsc_columns at;
    int k, first, add; /* k: the number of outputs; first: the first output of this launch */
    const T *x, *dy;
    float *dw;
    double *partials;
    unsigned *tickets;
};

/* The gradients of outputs first ... first + Q - 1. */
template <typename T, int N, int Q>
static __global__ void __launch_bounds__(DSC_COLUMN_THREADS, 2) narrow_weight(const narrow_weight_call<T> a) {
    dsc_column_place p = dsc_column_place_of<N>(a.at);
    float mine[Q][N] = {};
    double sum[Q] = {};
    int64_t own = dsc_column_own<N>(a.at);
    for (int64_t row = p.first; row < p.end; row += ROWS * p.step) {
        dsc_vector<T, N> x[ROWS];
        float g[ROWS][Q];
#pragma unroll
        for (int u = 0; u < ROWS; u++) {
            int64_t at = row + (row + u * p.step < p.end ? u : 0) * p.step;
            x[u] = dsc_load<T, N>(a.x + at * a.at.stride + p.channel);
#pragma unroll
            for (int q = 0; q < Q; q++)
                g[u][q] =
                    a.first + q < a.k && row + u * p.step < p.end ? dsc_get(a.dy[at * a.k + a.first + q]) : 0;
        }
#pragma unroll
        for (int u = 0; u < ROWS; u++) {
            if (row + u * p.step >= p.end)
                break; /* 0 times an infinity would not be 0 */
#pragma unroll
            for (int q = 0; q < Q; q++)
#pragma unroll
                for (int i = 0; i < N; i++)
                    mine[q][i] += g[u][q] * x[u].get(i);
        }
    }
    dsc_block_sums<Q>(a.at.lanes, mine, sum);
    if (!dsc_merge_blocks<Q>(a.at.lanes * N, a.partials, a.tickets, sum) || own >= a.at.width)
        return;
#pragma unroll
    for (int q = 0; q < Q; q++)
        if (a.first + q < a.k) {
            float *to = a.dw + (a.first + q) * a.at.stride + own;
            *to = (float)(a.add ? (double)*to + sum[q] : sum[q]);
        }
}

/* ---- launches ---- */

/* Returns the threads for a row: as many as it has vectors of n numbers, rounded up to a power of two, at most a
 * warp. */
static int team_of(int64_t c, int n) {
    int team = 1;
    while (team < 32 && team * n < c)
        team *= 2;
    return team;
}

template <typename T, int N, int K>
static void launch_narrow(const dsc_cuda_launch *at, dsc_cuda_narrow_call a) {
    a.team = team_of(a.c, N);
    unsigned blocks = dsc_flat_blocks(at, (a.rows + ROWS - 1) / ROWS * a.team);
    size_t shared = (size_t)(K * a.c) * sizeof(float);
    if (a.dx)
        DSC_LAUNCH((narrow_data<T, N, K>), blocks, DSC_FLAT_THREADS, shared, at->stream)(a);
    else
        DSC_LAUNCH((narrow_forward<T, N, K>), blocks, DSC_FLAT_THREADS, shared, at->stream)(a);
}

template <typename T, int N>
static void launch_outputs(const dsc_cuda_launch *at, const dsc_cuda_narrow_call &a) {
    if (a.k == 1)
        launch_narrow<T, N, 1>(at, a);
    else if (a.k == 2)
        launch_narrow<T, N, 2>(at, a);
    else if (a.k <= 4)
        launch_narrow<T, N, 4>(at, a);
    else
        launch_narrow<T, N, 8>(at, a);
}

template <typename T>
static cudaError_t run_narrow(const dsc_cuda_launch *at, const dsc_cuda_narrow_call *a) {
    if (dsc_fits<T>(a->c, a->x, a->dx))
        launch_outputs<T, dsc_wide<T>()>(at, *a);
    else
        launch_outputs<T, 1>(at, *a);
    return cudaGetLastError();
}

template <typename T, int N> static void launch_weight(const dsc_cuda_launch *at, narrow_weight_call<T> a) {
    dim3 grid(a.at.groups, a.at.chunks), block(DSC_COLUMN_THREADS);
    for (a.first = 0; a.first < a.k; a.first += 2)
        if (a.k - a.first == 1)
            DSC_LAUNCH((narrow_weight<T, N, 1>), grid, block, 0, at->stream)(a);
        else
            DSC_LAUNCH((narrow_weight<T, N, 2>), grid, block, 0, at->stream)(a);
}

template <typename T>
static cudaError_t run_weight(const dsc_cuda_launch *at, int64_t rows, int64_t c, int k, const void *x,
                              const void *dy, int add, float *dw) {
    const int wide = dsc_fits<T>(c, x);
    dsc_columns columns = dsc_columns_of(rows, c, c, wide ? dsc_wide<T>() : 1, DSC_COLUMN_THREADS, ROWS,
                                         2 * (int64_t)at->multiprocessors);
    narrow_weight_call<T> a = {columns,    k, 0, add, (const T *)x, (const T *)dy, dw, (double *)at->scratch,
                               at->tickets};
    if (wide)
        launch_weight<T, dsc_wide<T>()>(at, a);
    else
        launch_weight<T, 1>(at, a);
    return cudaGetLastError();
}

/* ---- the operations ---- */

/* DSC_BY_TYPE without double. */
#define BY_TYPE(dtype, function, ...)                                                                        \
    ((dtype) == DSC_F32    ? function<float>(__VA_ARGS__)                                                    \
     : (dtype) == DSC_BF16 ? function<__nv_bfloat16>(__VA_ARGS__)                                            \
     : (dtype) == DSC_F16  ? function<__half>(__VA_ARGS__)                                                   \
                           : cudaErrorInvalidValue)

int dsc_cuda_is_narrow_conv(const dsc_conv_desc *desc) {
    const dsc_conv2d_shape *s = &desc->shape;
    const int type = desc->dtype == DSC_F32 || desc->dtype == DSC_BF16 || desc->dtype == DSC_F16;
    return type && s->kernel_h == 1 && s->kernel_w == 1 && s->stride_h == 1 && s->stride_w == 1 &&
           s->pad_h == 0 && s->pad_w == 0 && s->groups == 1 && s->out_c <= MOST_OUTPUTS &&
           s->in_c <= MOST_CHANNELS && s->in_c * (int64_t)dsc_dtype_size(desc->dtype) % 16 == 0;
}

/* Describes a call for x[..., c] and y[..., k]. */
static dsc_cuda_narrow_call narrow_call(const dsc_tensor *x, const dsc_tensor *y) {
    dsc_cuda_narrow_call call = {};
    call.c = x->dim[3];
    call.rows = dsc_tensor_count(x) / call.c;
    call.k = (int)y->dim[3];
    return call;
}

dsc_status dsc_cuda_narrow_conv_forward(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *w,
                                        const dsc_tensor *bias, dsc_tensor *y) {
    dsc_cuda_narrow_call call = narrow_call(x, y);
    call.x = x->data;
    call.w = w->data;
    call.bias = dsc_data(bias);
    call.y = y->data;
    DSC_CUDA_TRY(BY_TYPE(x->dtype, run_narrow, dsc_cuda_at(q), &call));
    return DSC_OK;
}

dsc_status dsc_cuda_narrow_conv_backward_data(dsc_queue *q, const dsc_tensor *w, const dsc_tensor *dy,
                                              double beta, dsc_tensor *dx) {
    dsc_cuda_narrow_call call = narrow_call(dx, dy);
    call.w = w->data;
    call.dy = dy->data;
    call.add = beta != 0;
    call.dx = dx->data;
    DSC_CUDA_TRY(BY_TYPE(dx->dtype, run_narrow, dsc_cuda_at(q), &call));
    return DSC_OK;
}

dsc_status dsc_cuda_narrow_conv_backward_weight(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *dy,
                                                double beta, dsc_tensor *dw) {
    dsc_cuda_narrow_call call = narrow_call(x, dy);
    DSC_CUDA_TRY(BY_TYPE(x->dtype, run_weight, dsc_cuda_at(q), call.rows, call.c, call.k, dsc_data(x),
                         dsc_data(dy), beta != 0, (float *)dw->data));
    return DSC_OK;
}
