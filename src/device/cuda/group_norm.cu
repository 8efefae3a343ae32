/* Group, layer and RMS norms: norms of single samples. A team of threads does one group of one sample: a warp if groups
 * are small, else a block. It reads its numbers again for every sum, from the cache after the first time. Gradients of
 * gamma and shift are sums over rows, as in layer.cuh. Half-precision rows that fit into a warp's registers are read
 * only once. */
#include "device/cuda/entries.h"
#include "device/cuda/layer.cuh"

typedef struct dsc_cuda_group_norm_call {
    int64_t n, positions, channels, groups;
    int rms, add_x, add_params;
    double eps;
    const void *x, *dy, *gamma, *shift;
    void *mean, *invstd, *y, *dx, *dgamma, *dshift;
} dsc_cuda_group_norm_call;

enum { THREADS = 256, WARPS = THREADS / 32, SMALL_GROUP = 4096, ROWS = 4 };

/* The group that a team of TEAM warps does: m numbers in `width` adjacent channels. */
template <int TEAM> struct group_place {
    int64_t statistic, first, channel, width, stride, m;
    int own; /* the thread's index in the team */

    __device__ explicit group_place(const dsc_cuda_group_norm_call &a) {
        statistic = (int64_t)blockIdx.x * (WARPS / TEAM) + (int)threadIdx.x / (32 * TEAM);
        own = (int)threadIdx.x % (32 * TEAM);
        int64_t sample = statistic, group = dsc_peel(sample, a.groups);
        width = a.channels / a.groups;
        stride = a.channels;
        channel = group * width;
        first = sample * a.positions * a.channels + channel;
        m = a.positions * width;
    }

    /* Returns the offset of number e; `in` becomes its channel. */
    __device__ int64_t at(int64_t e, int64_t &in) const {
        if (m == width) {
            in = channel + e;
            return first + e;
        }
        int64_t position = e, rest = dsc_peel(position, width);
        in = channel + rest;
        return first + position * stride + rest;
    }
};

/* Gives every thread of the team the sums, always added in the same order. All threads of the team must call it. */
template <int TEAM> __device__ __forceinline__ void team_sums(double &a, double &b) {
    for (int apart = 16; apart > 0; apart /= 2) {
        a += __shfl_xor_sync(0xFFFFFFFFu, a, apart);
        b += __shfl_xor_sync(0xFFFFFFFFu, b, apart);
    }
    if (TEAM > 1) {
        __shared__ double part[2][WARPS];
        __syncthreads(); /* until earlier sums have been read */
        if (threadIdx.x % 32 == 0) {
            part[0][threadIdx.x / 32] = a;
            part[1][threadIdx.x / 32] = b;
        }
        __syncthreads();
        a = b = 0;
        for (int w = 0; w < WARPS; w++) {
            a += part[0][w];
            b += part[1][w];
        }
    }
}

/* Computes the sums of x - about and of its square. */
template <typename T, int N, int TEAM>
__device__ __forceinline__ void moments_about(const group_place<TEAM> &p, const T *x, dsc_number<T> about,
                                              double &s, double &q) {
    typedef dsc_number<T> A;
    A mine = 0, squares = 0;
    for (int64_t e = (int64_t)p.own * N; e < p.m; e += 32 * TEAM * N) {
        int64_t channel;
        dsc_vector<T, N> v = dsc_load<T, N>(x + p.at(e, channel));
#pragma unroll
        for (int i = 0; i < N; i++) {
            A d = v.get(i) - about;
            mine += d;
            squares += d * d;
        }
    }
    s = (double)mine;
    q = (double)squares;
    team_sums<TEAM>(s, q);
}

template <typename T, int N, int TEAM>
static __global__ void __launch_bounds__(THREADS) group_forward(const dsc_cuda_group_norm_call a) {
    typedef dsc_number<T> A;
    group_place<TEAM> p(a);
    if (p.statistic >= a.n * a.groups)
        return;
    const T *x = (const T *)a.x;
    const A *gamma = (const A *)a.gamma, *shift = (const A *)a.shift;
    T *y = (T *)a.y;
    double s, q, inverse_m = 1 / (double)p.m;
    A about = 0;
    if (!a.rms) {
        A start = dsc_get(x[p.first]);
        moments_about<T, N, TEAM>(p, x, start, s, q);
        about = (A)((double)start + s * inverse_m);
    }
    moments_about<T, N, TEAM>(p, x, about, s, q);
    double first = a.rms ? 0 : s * inverse_m, var = q * inverse_m - first * first;
    double inverse = 1 / sqrt((var < 0 ? 0 : var) + a.eps);
    A scale = (A)inverse, offset = (A)(-first * inverse);
    if (p.own == 0 && a.mean)
        ((A *)a.mean)[p.statistic] = (A)((double)about + first);
    if (p.own == 0 && a.invstd)
        ((A *)a.invstd)[p.statistic] = scale;
    for (int64_t e = (int64_t)p.own * N; e < p.m; e += 32 * TEAM * N) {
        int64_t channel, at = p.at(e, channel);
        dsc_vector<T, N> v = dsc_load<T, N>(x + at);
#pragma unroll
        for (int i = 0; i < N; i++) {
            A h = ((v.get(i) - about) * scale + offset) * gamma[channel + i];
            v.set(i, shift ? h + shift[channel + i] : h);
        }
        dsc_store<T, N>(y + at, v);
    }
}

template <typename T, int N, int TEAM>
static __global__ void __launch_bounds__(THREADS) group_backward(const dsc_cuda_group_norm_call a) {
    typedef dsc_number<T> A;
    group_place<TEAM> p(a);
    if (p.statistic >= a.n * a.groups)
        return;
    const T *x = (const T *)a.x, *dy = (const T *)a.dy;
    const A *gamma = (const A *)a.gamma;
    T *dx = (T *)a.dx;
    A mean = a.rms ? (A)0 : ((const A *)a.mean)[p.statistic], scale = ((const A *)a.invstd)[p.statistic];
    A sum_u = 0, sum_uxh = 0;
    for (int64_t e = (int64_t)p.own * N; e < p.m; e += 32 * TEAM * N) {
        int64_t channel, at = p.at(e, channel);
        dsc_vector<T, N> v = dsc_load<T, N>(x + at), g = dsc_load<T, N>(dy + at);
#pragma unroll
        for (int i = 0; i < N; i++) {
            A u = gamma[channel + i] * g.get(i);
            sum_u += u;
            sum_uxh += u * ((v.get(i) - mean) * scale);
        }
    }
    double s = (double)sum_u, q = (double)sum_uxh;
    team_sums<TEAM>(s, q);
    A mean_u = a.rms ? (A)0 : (A)(s / (double)p.m), mean_uxh = (A)(q / (double)p.m);
    for (int64_t e = (int64_t)p.own * N; e < p.m; e += 32 * TEAM * N) {
        int64_t channel, at = p.at(e, channel);
        dsc_vector<T, N> v = dsc_load<T, N>(x + at), g = dsc_load<T, N>(dy + at), old = {};
        if (a.add_x)
            old = dsc_load<T, N>(dx + at);
#pragma unroll
        for (int i = 0; i < N; i++) {
            A xhat = (v.get(i) - mean) * scale;
            A value = scale * (gamma[channel + i] * g.get(i) - mean_u - xhat * mean_uxh);
            old.set(i, a.add_x ? old.get(i) + value : value);
        }
        dsc_store<T, N>(dx + at, old);
    }
}

/* ---- rows in half precision ----
 *
 * For transformers' layer norms: a warp holds a row in registers, at most HELD vectors per lane. Sums are float32. */
enum { EACH = 8, HELD = 4, LONGEST_ROW = 32 * EACH * HELD };

__device__ __forceinline__ float row_sum(float x) {
    for (int apart = 16; apart > 0; apart /= 2)
        x += __shfl_xor_sync(0xFFFFFFFFu, x, apart);
    return x;
}

/* Loads EACH parameters from channel `first` on; sets them to `missing` if `from` is NULL. */
__device__ __forceinline__ void load_params(const float *from, int first, float missing, float (&to)[EACH]) {
#pragma unroll
    for (int i = 0; i < EACH; i += 4) {
        dsc_vector<float, 4> v = {};
        if (from)
            v = dsc_load<float, 4>(from + first + i);
#pragma unroll
        for (int k = 0; k < 4; k++)
            to[i + k] = from ? v.get(k) : missing;
    }
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) row_forward(const dsc_cuda_group_norm_call a) {
    int64_t row = (int64_t)blockIdx.x * WARPS + (int)threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32, channels = (int)a.channels;
    if (row >= a.n)
        return;
    const T *x = (const T *)a.x + row * a.channels;
    T *y = (T *)a.y + row * a.channels;
    dsc_vector<T, EACH> v[HELD] = {};
    float sum = 0, squares = 0, inverse_m = 1 / (float)channels;
#pragma unroll
    for (int k = 0; k < HELD; k++)
        if ((32 * k + lane) * EACH < channels)
            v[k] = dsc_load<T, EACH>(x + (32 * k + lane) * EACH);
#pragma unroll
    for (int k = 0; k < HELD; k++)
        for (int i = 0; i < EACH; i++)
            sum += (32 * k + lane) * EACH < channels ? v[k].get(i) : 0;
    float mean = a.rms ? 0 : row_sum(sum) * inverse_m;
#pragma unroll
    for (int k = 0; k < HELD; k++)
        for (int i = 0; i < EACH; i++) {
            float d = (32 * k + lane) * EACH < channels ? v[k].get(i) - mean : 0;
            squares += d * d;
        }
    float scale = (float)(1 / sqrt((double)(row_sum(squares) * inverse_m) + a.eps));
    if (lane == 0 && a.mean)
        ((float *)a.mean)[row] = mean;
    if (lane == 0 && a.invstd)
        ((float *)a.invstd)[row] = scale;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int first = (32 * k + lane) * EACH;
        if (first >= channels)
            continue;
        float gamma[EACH], shift[EACH];
        load_params((const float *)a.gamma, first, 1, gamma);
        load_params((const float *)a.shift, first, 0, shift);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            v[k].set(i, (v[k].get(i) - mean) * scale * gamma[i] + shift[i]);
        dsc_store<T, EACH>(y + first, v[k]);
    }
}

/* A lane's sums over its rows, for its channels. */
template <int H> struct row_params { float gamma[H][EACH], shift[H][EACH]; };

/* Writes dx of a row of H vectors per lane and, with PARAMS, adds the row's part of the parameters' gradients to
 * `mine`. */
template <typename T, int H, bool PARAMS>
__device__ __forceinline__ void row_gradient(const dsc_cuda_group_norm_call &a, int64_t row,
                                             row_params<H> &mine) {
    const int lane = (int)threadIdx.x % 32, channels = (int)a.channels;
    const T *x = (const T *)a.x + row * a.channels, *dy = (const T *)a.dy + row * a.channels;
    T *dx = (T *)a.dx + row * a.channels;
    dsc_vector<T, EACH> v[H] = {}, g[H] = {}, old[H] = {};
    float sum_u = 0, sum_uxh = 0, inverse_m = 1 / (float)channels;
#pragma unroll
    for (int k = 0; k < H; k++)
        if ((32 * k + lane) * EACH < channels) {
            v[k] = dsc_load<T, EACH>(x + (32 * k + lane) * EACH);
            g[k] = dsc_load<T, EACH>(dy + (32 * k + lane) * EACH);
            if (a.add_x)
                old[k] = dsc_load<T, EACH>(dx + (32 * k + lane) * EACH);
        }
    float mean = a.rms ? 0 : ((const float *)a.mean)[row], scale = ((const float *)a.invstd)[row];
#pragma unroll
    for (int k = 0; k < H; k++) {
        int first = (32 * k + lane) * EACH;
        if (first >= channels)
            continue;
        float gamma[EACH];
        load_params((const float *)a.gamma, first, 1, gamma);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            float u = gamma[i] * g[k].get(i), xhat = (v[k].get(i) - mean) * scale;
            sum_u += u;
            sum_uxh += u * xhat;
            if (PARAMS) {
                mine.gamma[k][i] += g[k].get(i) * xhat;
                mine.shift[k][i] += g[k].get(i);
            }
        }
    }
    float mean_u = a.rms ? 0 : row_sum(sum_u) * inverse_m, mean_uxh = row_sum(sum_uxh) * inverse_m;
#pragma unroll
    for (int k = 0; k < H; k++) {
        int first = (32 * k + lane) * EACH;
        if (first >= channels)
            continue;
        float gamma[EACH];
        load_params((const float *)a.gamma, first, 1, gamma);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            float value = scale * (gamma[i] * g[k].get(i) - mean_u - (v[k].get(i) - mean) * scale * mean_uxh);
            old[k].set(i, a.add_x ? old[k].get(i) + value : value);
        }
        dsc_store<T, EACH>(dx + first, old[k]);
    }
}

/* Adds up the warps' sums, one warp after the other, and writes them to partials[block][2][channels]. */
template <int H>
__device__ __forceinline__ void store_params(int channels, const row_params<H> &mine, float *partials) {
    __shared__ float total[2][32 * EACH * H];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int w = 0; w < WARPS; w++) {
        if (warp == w)
#pragma unroll
            for (int k = 0; k < H; k++)
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    int channel = (32 * k + lane) * EACH + i;
                    total[0][channel] = (w ? total[0][channel] : 0) + mine.gamma[k][i];
                    total[1][channel] = (w ? total[1][channel] : 0) + mine.shift[k][i];
                }
        __syncthreads();
    }
    for (int i = (int)threadIdx.x; i < 2 * channels; i += THREADS)
        partials[(int64_t)blockIdx.x * 2 * channels + i] =
            i < channels ? total[0][i] : total[1][i - channels];
}

template <typename T, int H, bool PARAMS>
static __global__ void __launch_bounds__(THREADS, PARAMS ? 2 : 4)
    row_backward(const dsc_cuda_group_norm_call a, float *partials) {
    row_params<H> mine = {};
    for (int64_t row = (int64_t)blockIdx.x * WARPS + (int)threadIdx.x / 32; row < a.n;
         row += (int64_t)gridDim.x * WARPS)
        row_gradient<T, H, PARAMS>(a, row, mine);
    if (PARAMS)
        store_params<H>((int)a.channels, mine, partials);
}

/* Adds up the sums of all blocks, in order. A block here has 32 numbers, each of which WARPS threads add up. */
static __global__ void __launch_bounds__(THREADS)
    row_params_sum(const dsc_cuda_group_norm_call a, int blocks, const float *partials) {
    __shared__ double parts[WARPS][32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, channels = (int)a.channels;
    const int own = (int)blockIdx.x * 32 + lane;
    double sum = 0;
    if (own < 2 * channels)
        for (int b = warp; b < blocks; b += WARPS)
            sum += (double)partials[(int64_t)b * 2 * channels + own];
    parts[warp][lane] = sum;
    __syncthreads();
    float *to = (float *)(own < channels ? a.dgamma : a.dshift);
    if (warp > 0 || own >= 2 * channels || !to)
        return;
    sum = 0;
    for (int w = 0; w < WARPS; w++)
        sum += parts[w][lane];
    to += own < channels ? own : own - channels;
    *to = (float)(a.add_params ? (double)*to + sum : sum);
}

template <typename T, int H>
static cudaError_t launch_rows(const dsc_cuda_launch *at, const dsc_cuda_group_norm_call *c) {
    int64_t blocks = (c->n + WARPS - 1) / WARPS, most = 2 * (int64_t)at->multiprocessors;
    float *partials = (float *)at->scratch;
    if (!c->dgamma && !c->dshift) {
        DSC_LAUNCH((row_backward<T, H, false>), (unsigned)blocks, THREADS, 0, at->stream)(*c, partials);
        return cudaGetLastError();
    }
    blocks = blocks < most ? blocks : most;
    DSC_LAUNCH((row_backward<T, H, true>), (unsigned)blocks, THREADS, 0, at->stream)(*c, partials);
    DSC_LAUNCH(row_params_sum, (unsigned)((2 * c->channels + 31) / 32), THREADS, 0, at->stream)
    (*c, (int)blocks, partials);
    return cudaGetLastError();
}

static bool is_row(const dsc_cuda_group_norm_call *c) {
    uintptr_t params = (uintptr_t)c->gamma | (uintptr_t)c->shift;
    return c->positions == 1 && c->groups == 1 && c->channels <= LONGEST_ROW && params % 16 == 0;
}

template <typename T>
static cudaError_t rows_forward(const dsc_cuda_launch *at, const dsc_cuda_group_norm_call *c) {
    DSC_LAUNCH((row_forward<T>), (unsigned)((c->n + WARPS - 1) / WARPS), THREADS, 0, at->stream)(*c);
    return cudaGetLastError();
}

/* Computes dx and, where wanted, the gradients of the parameters. */
template <typename T>
static cudaError_t rows_backward(const dsc_cuda_launch *at, const dsc_cuda_group_norm_call *c) {
    switch ((c->channels + 32 * EACH - 1) / (32 * EACH)) {
    case 1:
        return launch_rows<T, 1>(at, c);
    case 2:
        return launch_rows<T, 2>(at, c);
    case 3:
        return launch_rows<T, 3>(at, c);
    default:
        return launch_rows<T, HELD>(at, c);
    }
}

/* ---- gradients of gamma and shift ---- */

template <typename T> struct group_params_call {
    typedef dsc_number<T> A;
    dsc_columns at;
    int64_t positions, groups, width, first; /* width: channels of a group; first: channel of the slice */
    int rms, add;
    const T *x, *dy;
    const A *mean, *invstd;
    A *dgamma, *dshift;
    double *partials;
    unsigned *tickets;
};

template <typename T, int N>
static __global__ void __launch_bounds__(DSC_COLUMN_THREADS, sizeof(T) == 2 ? 2 : 1)
    group_params(const group_params_call<T> a) {
    typedef dsc_number<T> A;
    dsc_column_place p = dsc_column_place_of<N>(a.at);
    A mine[2][N] = {};
    double sum[2] = {0, 0};
    int64_t own = dsc_column_own<N>(a.at);
    for (int64_t row = p.first; row < p.end; row += p.step) {
        int64_t at = row * a.at.stride + p.channel, sample = row;
        dsc_vector<T, N> x = dsc_load<T, N>(a.x + at), dy = dsc_load<T, N>(a.dy + at);
        dsc_peel(sample, a.positions);
#pragma unroll
        for (int i = 0; i < N; i++) {
            int64_t s = a.groups == 1 ? sample : sample * a.groups + (a.first + p.channel + i) / a.width;
            A xhat = (x.get(i) - (a.rms ? (A)0 : a.mean[s])) * a.invstd[s];
            mine[0][i] += dy.get(i) * xhat;
            mine[1][i] += dy.get(i);
        }
    }
    dsc_block_sums<2>(a.at.lanes, mine, sum);
    if (!dsc_merge_blocks<2>(a.at.lanes * N, a.partials, a.tickets, sum) || own >= a.at.width)
        return;
    if (a.dgamma)
        a.dgamma[own] = (A)(a.add ? (double)a.dgamma[own] + sum[0] : sum[0]);
    if (a.dshift)
        a.dshift[own] = (A)(a.add ? (double)a.dshift[own] + sum[1] : sum[1]);
}

template <typename T, int N>
static cudaError_t run_params(const dsc_cuda_launch *at, const dsc_cuda_group_norm_call *c) {
    typedef dsc_number<T> A;
    for (int64_t first = 0; first < c->channels; first += DSC_COLUMN_SLICE) {
        dsc_columns columns =
            dsc_columns_of(c->n * c->positions, c->channels, dsc_column_slice(c->channels, first), N,
                           DSC_COLUMN_THREADS, ROWS, (sizeof(T) == 2 ? 2 : 1) * (int64_t)at->multiprocessors);
        group_params_call<T> a = {columns,
                                  c->positions,
                                  c->groups,
                                  c->channels / c->groups,
                                  first,
                                  c->rms,
                                  c->add_params,
                                  (const T *)c->x + first,
                                  (const T *)c->dy + first,
                                  (const A *)c->mean,
                                  (const A *)c->invstd,
                                  c->dgamma ? (A *)c->dgamma + first : NULL,
                                  c->dshift ? (A *)c->dshift + first : NULL,
                                  (double *)at->scratch,
                                  at->tickets};
        DSC_LAUNCH((group_params<T, N>), dim3(columns.groups, columns.chunks), dim3(DSC_COLUMN_THREADS), 0,
                   at->stream)
        (a);
    }
    return cudaGetLastError();
}

/* ---- launches ---- */

template <typename T, int N, int TEAM>
static cudaError_t run_team(const dsc_cuda_launch *at, const dsc_cuda_group_norm_call *c, int backward) {
    int64_t teams = WARPS / TEAM, blocks = (c->n * c->groups + teams - 1) / teams;
    if (backward)
        DSC_LAUNCH((group_backward<T, N, TEAM>), (unsigned)blocks, THREADS, 0, at->stream)(*c);
    else
        DSC_LAUNCH((group_forward<T, N, TEAM>), (unsigned)blocks, THREADS, 0, at->stream)(*c);
    return cudaGetLastError();
}

template <typename T, int N>
static cudaError_t run_size(const dsc_cuda_launch *at, const dsc_cuda_group_norm_call *c, int backward) {
    if constexpr (sizeof(T) == 2 && N == EACH)
        if (is_row(c) && !backward)
            return rows_forward<T>(at, c);
    return c->positions * (c->channels / c->groups) <= SMALL_GROUP ? run_team<T, N, 1>(at, c, backward)
                                                                   : run_team<T, N, WARPS>(at, c, backward);
}

template <typename T>
static cudaError_t forward_of(const dsc_cuda_launch *at, const dsc_cuda_group_norm_call *c) {
    return dsc_fits<T>(c->channels / c->groups, c->x, c->y) ? run_size<T, dsc_wide<T>()>(at, c, 0)
                                                            : run_size<T, 1>(at, c, 0);
}

template <typename T>
static cudaError_t backward_of(const dsc_cuda_launch *at, const dsc_cuda_group_norm_call *c) {
    cudaError_t error = cudaSuccess;
    if constexpr (sizeof(T) == 2)
        if (is_row(c) && c->dx && dsc_fits<T>(c->channels, c->x, c->dy, c->dx))
            return rows_backward<T>(at, c);
    if (c->dgamma || c->dshift)
        error = dsc_fits<T>(c->channels, c->x, c->dy) ? run_params<T, dsc_wide<T>()>(at, c)
                                                      : run_params<T, 1>(at, c);
    if (error != cudaSuccess || !c->dx)
        return error;
    return dsc_fits<T>(c->channels / c->groups, c->x, c->dy, c->dx) ? run_size<T, dsc_wide<T>()>(at, c, 1)
                                                                    : run_size<T, 1>(at, c, 1);
}

/* ---- the operations ---- */

static dsc_cuda_group_norm_call describe(const dsc_group_norm_desc *desc, const dsc_tensor *x,
                                         const dsc_tensor *gamma) {
    dsc_cuda_group_norm_call call = {};
    call.n = x->dim[0];
    call.channels = gamma->dim[0];
    call.positions = dsc_tensor_count(x) / (call.n * call.channels);
    call.groups = desc->groups;
    call.rms = desc->rms;
    call.eps = desc->eps;
    call.x = dsc_data(x);
    call.gamma = dsc_data(gamma);
    return call;
}

dsc_status dsc_cuda_group_norm_forward(dsc_queue *q, const dsc_group_norm_desc *desc, const dsc_tensor *x,
                                       const dsc_tensor *gamma, const dsc_tensor *shift, dsc_tensor *mean,
                                       dsc_tensor *invstd, dsc_tensor *y) {
    dsc_cuda_group_norm_call call = describe(desc, x, gamma);
    call.shift = dsc_data(shift);
    call.mean = dsc_data(mean);
    call.invstd = dsc_data(invstd);
    call.y = dsc_data(y);
    DSC_CUDA_TRY(DSC_BY_TYPE(x->dtype, forward_of, dsc_cuda_at(q), &call));
    return DSC_OK;
}

dsc_status dsc_cuda_group_norm_backward(dsc_queue *q, const dsc_group_norm_desc *desc, const dsc_tensor *x,
                                        const dsc_tensor *dy, const dsc_tensor *gamma, const dsc_tensor *mean,
                                        const dsc_tensor *invstd, const dsc_norm_grads *grads) {
    dsc_cuda_group_norm_call call = describe(desc, x, gamma);
    call.dy = dsc_data(dy);
    call.mean = dsc_data(desc->rms ? NULL : mean);
    call.invstd = dsc_data(invstd);
    call.dx = dsc_data(grads->dx);
    call.dgamma = dsc_data(grads->dgamma);
    call.dshift = dsc_data(grads->dshift);
    call.add_x = grads->beta_x != 0;
    call.add_params = grads->beta_p != 0;
    DSC_CUDA_TRY(DSC_BY_TYPE(x->dtype, backward_of, dsc_cuda_at(q), &call));
    return DSC_OK;
}
