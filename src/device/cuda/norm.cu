/* Batch norm: two launches for each pass, one that sums and one that writes.
 *
 * The blocks that sum write their sums to scratch memory. Every block that writes adds up the sums of its own channels,
 * always in the same order, while its first rows are being loaded. No block waits for another. There are few blocks
 * (one per multiprocessor), each with many loads in flight, since layers of a few MB are limited by latency.
 *
 * Statistics: for each channel, k is a typical value (the median of three rows). With s = sum (x - k) and
 * q = sum (x - k)^2 over m rows, mean = k + s / m and var = (q - s^2 / m) / m. There is no cancellation however large
 * the mean is, since k is one of the values and not an outlier. */
#include "device/cuda/entries.h"
#include "device/cuda/layer.cuh"

typedef struct dsc_cuda_norm_forward_call {
    dsc_dtype dtype;
    int relu;
    int64_t rows, channels; /* both positive */
    double eps, momentum;
    const void *x, *residual, *gamma, *shift;
    void *running_mean, *running_var;
    void *mean, *invstd; /* in training */
    void *applied;       /* in training; may be NULL */
    void *y;
} dsc_cuda_norm_forward_call;

typedef struct dsc_cuda_norm_backward_call {
    dsc_dtype dtype;
    int64_t rows, channels;
    int add_x, add_residual, add_params; /* 1: beta is 1 */
    const void *x, *y, *dy, *gamma, *mean, *invstd;
    const void *applied; /* NULL: the mask is read from y */
    void *dx, *dresidual, *dgamma, *dshift;
} dsc_cuda_norm_backward_call;

/* One block per multiprocessor, with 128 registers per thread. */
enum { THREADS = DSC_COLUMN_THREADS, WARPS = THREADS / 32 };

/* The number of rows that a thread loads at once: as many as registers allow. */
enum { MOMENTS_ROWS = 8, APPLY_ROWS = 8, SUMS_ROWS = 4, GRAD_ROWS = 4 };

/* Tensors of up to SMALL_BYTES, which are in the cache, are cut into groups of channels of NARROW_BYTES per row: then
 * all multiprocessors have work, and each channel has few partial sums. */
enum { SMALL_BYTES = 16 << 20, NARROW_BYTES = 64 };

/* The number of blocks whose sums of a channel a thread loads at once. */
enum { PAIRS = 8 };

/* Returns the number of rows that a thread processes. */
__device__ __forceinline__ int rows_of(const dsc_column_place &p) {
    return p.first < p.end ? (int)((p.end - p.first + p.step - 1) >> (__ffs(p.step) - 1)) : 0;
}

/* ---- sums of blocks ---- */

/* Adds up the M values of the lanes that process the same channels. At each step two lanes exchange halves of their
 * values, so that few are moved; at the end a lane has the totals from number `first` on. */
template <int M, int APART, typename A>
__device__ __forceinline__ void sum_lanes(int lanes, int first, A *v, A *to) {
    if (APART < lanes) {
#pragma unroll
        for (int j = 0; j < M; j++)
            to[first + j] = v[j];
        return;
    }
    if constexpr (APART > 0) {
        constexpr int HALF = M > 1 ? M / 2 : 1, OTHER = M > 1 ? HALF : 0;
        int upper = (threadIdx.x & APART) != 0;
#pragma unroll
        for (int j = 0; j < HALF; j++) {
            A keep = upper ? v[j + OTHER] : v[j], send = upper ? v[j] : v[j + OTHER];
            v[j] = keep + __shfl_xor_sync(0xFFFFFFFFu, send, APART);
        }
        sum_lanes<HALF, APART / 2>(lanes, upper ? first + OTHER : first, v, to);
    }
}

/* Writes the block's two sums of each channel to partials[channel][chunk][2]. mine: the thread's two sums of each of
 * its channels. All threads call it. */
template <int N, typename A>
__device__ __forceinline__ void write_partials(const dsc_columns &c, A (&mine)[2 * N], A *partials) {
    __shared__ A warps[WARPS][2 * N * DSC_COLUMN_LANES];
    int t = (int)threadIdx.x, lane = t & (c.lanes - 1);
    sum_lanes<2 * N, 16>(c.lanes, 0, mine, &warps[t / 32][lane * 2 * N]);
    __syncthreads();
    if (t >= 2 * N * c.lanes)
        return;
    A sum[4] = {};
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        sum[w % 4] += warps[w][t];
    int64_t channel = (int64_t)blockIdx.x * c.lanes * N + t / 2;
    partials[(channel * c.chunks + blockIdx.y) * 2 + t % 2] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* A thread's part in adding up the sums of the blocks: `share` neighbouring threads, a power of two, have a channel. */
template <typename A> struct merge_part {
    int64_t channel;
    int index, own, share; /* index: the channel's number in the block */
    int finishes, writes;  /* finishes: it gets the total; writes: it also writes the channel's results */
    const A *from;         /* NULL: beyond the block's channels */
    dsc_vector<A, 2> pair[PAIRS];
};

template <typename A>
__device__ __forceinline__ void load_pairs(const dsc_columns &c, merge_part<A> &m, int chunk) {
#pragma unroll
    for (int k = 0; k < PAIRS; k++) {
        int at = chunk + m.own + k * m.share;
        m.pair[k] = {};
        if (m.from && at < (int)c.chunks)
            m.pair[k] = dsc_load<A, 2>(m.from + 2 * at);
    }
}

/* Starts the loads. partials may be NULL: then there is nothing to add up. */
template <int N, typename A>
__device__ __forceinline__ merge_part<A> merge_begin(const dsc_columns &c, const A *partials) {
    merge_part<A> m;
    int t = (int)threadIdx.x, width = c.lanes * N, log_share = min(5, __ffs(THREADS) - __ffs(width));
    m.share = 1 << log_share;
    m.own = t & (m.share - 1);
    m.index = t >> log_share;
    m.channel = (int64_t)blockIdx.x * width + m.index;
    m.finishes = m.own == 0 && m.index < width && m.channel < c.width;
    m.writes = m.finishes && blockIdx.y == 0;
    m.from = partials && m.index < width ? partials + m.channel * c.chunks * 2 : 0;
    load_pairs(c, m, 0);
    return m;
}

/* Adds up, and gives the totals to the threads that finish a channel. All threads call it. */
template <typename A>
__device__ __forceinline__ void merge_end(const dsc_columns &c, merge_part<A> &m, double (&sum)[2]) {
    double s = 0, q = 0;
    for (int chunk = 0;;) {
#pragma unroll
        for (int k = 0; k < PAIRS; k++) {
            s += (double)m.pair[k].at[0];
            q += (double)m.pair[k].at[1];
        }
        chunk += PAIRS * m.share;
        if (chunk >= (int)c.chunks)
            break;
        load_pairs(c, m, chunk);
    }
    int apart = m.share / 2, upper = (m.own & apart) != 0; /* one half of them adds s, the other q */
    double total = (upper ? q : s) + __shfl_xor_sync(0xFFFFFFFFu, upper ? s : q, apart);
    for (int near = apart / 2; near > 0; near /= 2)
        total += __shfl_xor_sync(0xFFFFFFFFu, total, near);
    sum[0] = total;
    sum[1] = __shfl_xor_sync(0xFFFFFFFFu, total, apart);
}

/* ---- forward ---- */

template <typename T> struct forward_call {
    typedef dsc_number<T> A;
    dsc_columns at;
    int relu;
    double eps, momentum;
    double inverse_rows, inverse_freedom; /* 1 / rows, 1 / (rows - 1) */
    const T *x, *residual;
    const A *gamma, *shift;
    A *running_mean, *running_var, *mean, *invstd, *applied;
    T *y;
    A *partials; /* NULL: running statistics are used */
};

/* The channels of a thread in the first, the middle and the last row. */
template <typename T, int N> struct three_rows { dsc_vector<T, N> at[3]; };

template <typename T, int N>
__device__ __forceinline__ three_rows<T, N> load_three(const T *x, const dsc_columns &c) {
    return {{dsc_load<T, N>(x), dsc_load<T, N>(x + c.rows / 2 * c.stride),
             dsc_load<T, N>(x + (c.rows - 1) * c.stride)}};
}

/* Returns the median of channel i. */
template <typename T, int N>
__device__ __forceinline__ dsc_number<T> typical(const three_rows<T, N> &rows, int i) {
    dsc_number<T> a = rows.at[0].get(i), b = rows.at[1].get(i), c = rows.at[2].get(i);
    return fmax(fmin(a, b), fmin(fmax(a, b), c));
}

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS, 1) norm_moments(const forward_call<T> a) {
    typedef dsc_number<T> A;
    dsc_column_place p = dsc_column_place_of<N>(a.at);
    A mine[2 * N] = {}, base[N];
    int left = rows_of(p);
    if (left > 0) {
        dsc_vector<T, N> x[MOMENTS_ROWS];
        int64_t jump = p.step * a.at.stride;
        const T *from = a.x + p.first * a.at.stride + p.channel;
        three_rows<T, N> three = load_three<T, N>(a.x + p.channel, a.at);
#pragma unroll
        for (int u = 0; u < MOMENTS_ROWS; u++)
            if (u < left)
                x[u] = dsc_load<T, N>(from + u * jump);
#pragma unroll
        for (int i = 0; i < N; i++)
            base[i] = typical(three, i);
        for (; left > 0; left -= MOMENTS_ROWS, from += MOMENTS_ROWS * jump) {
#pragma unroll
            for (int u = 0; u < MOMENTS_ROWS; u++) {
                if (u >= left)
                    break;
#pragma unroll
                for (int i = 0; i < N; i++) {
                    A d = x[u].get(i) - base[i];
                    mine[2 * i] += d;
                    mine[2 * i + 1] += d * d;
                }
                if (u + MOMENTS_ROWS < left)
                    x[u] = dsc_load<T, N>(from + (u + MOMENTS_ROWS) * jump);
            }
        }
    }
    write_partials<N>(a.at, mine, a.partials);
}

/* y = (x - mean) scale + shift. The mean is rounded to A; the rounding error goes into the shift. */
template <typename A> struct apply_coefficients { A mean, scale, shift; };

template <typename A> __device__ __forceinline__ A apply(A x, A mean, A scale, A shift) {
    return (x - mean) * scale + shift;
}

template <typename A>
__device__ __forceinline__ apply_coefficients<A> coefficients_of(double mean, double scale, double shift) {
    A rounded = (A)mean;
    return {rounded, (A)scale, (A)(shift + ((double)rounded - mean) * scale)};
}

/* Returns 1 / sqrt(x). With float, the result is rounded to float later, so the last digit of the double does not
 * matter. */
__device__ __forceinline__ double inverse_root(double x, float) {
    return rsqrt(x);
}

__device__ __forceinline__ double inverse_root(double x, double) {
    return 1 / sqrt(x);
}

/* The parameters of a channel that a thread finishes. */
template <typename T> struct channel_params {
    three_rows<T, 1> three;
    dsc_number<T> gamma, shift, running_mean, running_var;
};

template <typename T>
__device__ __forceinline__ void load_params(const forward_call<T> &a, const merge_part<dsc_number<T>> &m,
                                            channel_params<T> &c) {
    c = {};
    if (m.finishes) {
        c.gamma = a.gamma[m.channel];
        c.shift = a.shift[m.channel];
        if (a.partials)
            c.three = load_three<T, 1>(a.x + m.channel, a.at);
    }
    if (m.finishes && (m.writes || !a.partials)) {
        c.running_mean = a.running_mean[m.channel];
        c.running_var = a.running_var[m.channel];
    }
}

/* Computes the statistics from the sums about the typical value. */
template <typename T>
__device__ __forceinline__ apply_coefficients<dsc_number<T>>
finish_moments(const forward_call<T> &a, const merge_part<dsc_number<T>> &m, const channel_params<T> &c,
               const double (&sum)[2]) {
    typedef dsc_number<T> A;
    double squares = sum[1] - sum[0] * sum[0] * a.inverse_rows;
    squares = squares < 0 ? 0 : squares;
    double mean = (double)typical(c.three, 0) + sum[0] * a.inverse_rows;
    double inverse = inverse_root(squares * a.inverse_rows + a.eps, A());
    if (m.writes) {
        double keep = 1 - a.momentum, unbiased = squares * a.inverse_freedom;
        a.mean[m.channel] = (A)mean;
        a.invstd[m.channel] = (A)inverse;
        a.running_mean[m.channel] = (A)(keep * (double)c.running_mean + a.momentum * mean);
        a.running_var[m.channel] = (A)(keep * (double)c.running_var + a.momentum * unbiased);
    }
    apply_coefficients<A> to = coefficients_of<A>(mean, (double)c.gamma * inverse, (double)c.shift);
    if (m.writes && a.applied) {
        a.applied[m.channel] = to.scale;
        a.applied[a.at.stride + m.channel] = to.shift;
    }
    return to;
}

template <typename T>
__device__ __forceinline__ apply_coefficients<dsc_number<T>> from_running(const forward_call<T> &a,
                                                                          const channel_params<T> &c) {
    return coefficients_of<dsc_number<T>>(
        (double)c.running_mean, (double)c.gamma / sqrt((double)c.running_var + a.eps), (double)c.shift);
}

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS, 1) norm_apply(const forward_call<T> a) {
    typedef dsc_number<T> A;
    __shared__ __align__(16) A shared[3][DSC_COLUMN_LANES * N];
    dsc_column_place p = dsc_column_place_of<N>(a.at);
    merge_part<A> m = merge_begin<N>(a.at, (const A *)a.partials);
    channel_params<T> params;
    load_params(a, m, params);
    dsc_vector<T, N> x[APPLY_ROWS], residual[APPLY_ROWS];
    int64_t jump = p.step * a.at.stride, at = p.first * a.at.stride + p.channel;
    int left = rows_of(p);
#pragma unroll
    for (int u = 0; u < APPLY_ROWS; u++)
        if (u < left) {
            x[u] = dsc_load<T, N>(a.x + at + u * jump);
            if (a.residual)
                residual[u] = dsc_load<T, N>(a.residual + at + u * jump);
        }
    double sum[2] = {0, 0};
    if (a.partials)
        merge_end(a.at, m, sum);
    if (m.finishes) {
        apply_coefficients<A> c = a.partials ? finish_moments(a, m, params, sum) : from_running(a, params);
        shared[0][m.index] = c.mean;
        shared[1][m.index] = c.scale;
        shared[2][m.index] = c.shift;
    }
    __syncthreads();
    int lane = (int)threadIdx.x & (a.at.lanes - 1);
    dsc_vector<A, N> mean = dsc_load<A, N>(&shared[0][lane * N]);
    dsc_vector<A, N> scale = dsc_load<A, N>(&shared[1][lane * N]);
    dsc_vector<A, N> shift = dsc_load<A, N>(&shared[2][lane * N]);
    for (; left > 0; left -= APPLY_ROWS) {
#pragma unroll
        for (int u = 0; u < APPLY_ROWS; u++, at += jump) {
            if (u >= left)
                break;
#pragma unroll
            for (int i = 0; i < N; i++) {
                A h = apply(x[u].get(i), mean.at[i], scale.at[i], shift.at[i]);
                if (a.residual)
                    h += residual[u].get(i);
                x[u].set(i, a.relu ? dsc_relu(h) : h);
            }
            dsc_store<T, N>(a.y + at, x[u]);
            if (u + APPLY_ROWS < left) {
                x[u] = dsc_load<T, N>(a.x + at + APPLY_ROWS * jump);
                if (a.residual)
                    residual[u] = dsc_load<T, N>(a.residual + at + APPLY_ROWS * jump);
            }
        }
    }
}

/* ---- backward ---- */

template <typename T> struct grad_call {
    typedef dsc_number<T> A;
    dsc_columns at;
    int add_x, add_residual, add_params;
    double inverse_rows;
    const T *x, *y, *dy; /* y: NULL without ReLU, and with `applied` */
    const A *gamma, *mean, *invstd, *applied;
    T *dx, *dresidual;
    A *dgamma, *dshift;
    A *partials;
};

/* The elements of a row that are read. */
template <typename T, int N> struct grad_row { dsc_vector<T, N> x, dy, y; };

/* With COMPUTED the mask is computed from x (dsc_norm_grads.applied), and y is not read. */
template <bool COMPUTED, typename T, int N>
__device__ __forceinline__ void load_row(const grad_call<T> &a, int64_t at, grad_row<T, N> &row) {
    row.x = dsc_load<T, N>(a.x + at);
    row.dy = dsc_load<T, N>(a.dy + at);
    if (!COMPUTED && a.y)
        row.y = dsc_load<T, N>(a.y + at);
}

/* If fp16 rounds a small positive number to y = 0, that number must count as 0 here, too. */
template <typename T> __device__ __forceinline__ dsc_number<T> before_rounding(dsc_number<T> h) {
    return h;
}

template <> __device__ __forceinline__ float before_rounding<__half>(float h) {
    return h <= 0x1p-25f ? 0 : h;
}

/* The coefficients with which the masks of a thread's channels are computed. */
template <typename T, int N> struct grad_mask { dsc_number<T> mean[N], scale[N], shift[N]; };

template <bool COMPUTED, typename T, int N>
__device__ __forceinline__ void load_mask(const grad_call<T> &a, const dsc_column_place &p,
                                          grad_mask<T, N> &mask) {
    if (COMPUTED && p.channel < a.at.width) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            mask.mean[i] = a.mean[p.channel + i];
            mask.scale[i] = a.applied[p.channel + i];
            mask.shift[i] = a.applied[a.at.stride + p.channel + i];
        }
    }
}

/* Returns dh of channel i. */
template <bool COMPUTED, typename T, int N>
__device__ __forceinline__ dsc_number<T> grad_of(const grad_call<T> &a, const grad_mask<T, N> &mask,
                                                 const grad_row<T, N> &row, int i) {
    if (COMPUTED)
        return dsc_relu_mask(
            before_rounding<T>(apply(row.x.get(i), mask.mean[i], mask.scale[i], mask.shift[i])),
            row.dy.get(i));
    return a.y ? dsc_relu_mask(row.y.get(i), row.dy.get(i)) : row.dy.get(i);
}

/* Sums dh and dh (x - mean). */
template <typename T, int N, bool COMPUTED>
static __global__ void __launch_bounds__(THREADS, 1) norm_sums(const grad_call<T> a) {
    typedef dsc_number<T> A;
    dsc_column_place p = dsc_column_place_of<N>(a.at);
    A mine[2 * N] = {}, mean[N];
    grad_mask<T, N> mask = {};
    load_mask<COMPUTED>(a, p, mask);
    int left = rows_of(p);
    if (left > 0) {
        grad_row<T, N> row[SUMS_ROWS];
        int64_t jump = p.step * a.at.stride, at = p.first * a.at.stride + p.channel;
#pragma unroll
        for (int i = 0; i < N; i++)
            mean[i] = a.mean[p.channel + i];
#pragma unroll
        for (int u = 0; u < SUMS_ROWS; u++)
            if (u < left)
                load_row<COMPUTED>(a, at + u * jump, row[u]);
        for (; left > 0; left -= SUMS_ROWS) {
#pragma unroll
            for (int u = 0; u < SUMS_ROWS; u++, at += jump) {
                if (u >= left)
                    break;
#pragma unroll
                for (int i = 0; i < N; i++) {
                    A g = grad_of<COMPUTED>(a, mask, row[u], i);
                    mine[2 * i] += g;
                    mine[2 * i + 1] += g * (row[u].x.get(i) - mean[i]);
                }
                if (u + SUMS_ROWS < left)
                    load_row<COMPUTED>(a, at + SUMS_ROWS * jump, row[u]);
            }
        }
    }
    write_partials<N>(a.at, mine, a.partials);
}

/* dx = scale (dh - mean_g - (x - mean) slope): the coefficients of a channel that a thread finishes. */
template <typename A> struct grad_coefficients { A mean, scale, mean_g, slope; };

/* The parameters of such a channel, and the gradients to which is added. */
template <typename A> struct grad_params { A gamma, mean, invstd, dgamma, dshift; };

template <typename T>
__device__ __forceinline__ void load_params(const grad_call<T> &a, const merge_part<dsc_number<T>> &m,
                                            grad_params<dsc_number<T>> &c) {
    c = {};
    if (m.finishes) {
        c.gamma = a.gamma[m.channel];
        c.mean = a.mean[m.channel];
        c.invstd = a.invstd[m.channel];
    }
    if (m.writes && a.add_params) {
        c.dgamma = a.dgamma[m.channel];
        c.dshift = a.dshift[m.channel];
    }
}

template <typename T>
__device__ __forceinline__ grad_coefficients<dsc_number<T>>
finish_sums(const grad_call<T> &a, const merge_part<dsc_number<T>> &m, const grad_params<dsc_number<T>> &c,
            const double (&sum)[2]) {
    typedef dsc_number<T> A;
    double inverse = (double)c.invstd, sum_gx = sum[1] * inverse;
    if (m.writes) {
        a.dshift[m.channel] = (A)((double)c.dshift + sum[0]);
        a.dgamma[m.channel] = (A)((double)c.dgamma + sum_gx);
    }
    return {c.mean, (A)((double)c.gamma * inverse), (A)(sum[0] * a.inverse_rows),
            (A)(sum_gx * inverse * a.inverse_rows)};
}

/* Stores `value`, or adds it if `add` is set. */
template <typename T, int N> __device__ __forceinline__ void put(int add, dsc_number<T> (&value)[N], T *to) {
    dsc_vector<T, N> old = {};
    if (add)
        old = dsc_load<T, N>(to);
#pragma unroll
    for (int i = 0; i < N; i++)
        old.set(i, add ? old.get(i) + value[i] : value[i]);
    dsc_store<T, N>(to, old);
}

template <typename T, int N, bool COMPUTED>
static __global__ void __launch_bounds__(THREADS, 1) norm_grad(const grad_call<T> a) {
    typedef dsc_number<T> A;
    __shared__ __align__(16) A shared[4][DSC_COLUMN_LANES * N];
    dsc_column_place p = dsc_column_place_of<N>(a.at);
    merge_part<A> m = merge_begin<N>(a.at, (const A *)a.partials);
    grad_params<A> params;
    load_params(a, m, params);
    grad_row<T, N> row[GRAD_ROWS];
    grad_mask<T, N> mask = {};
    load_mask<COMPUTED>(a, p, mask);
    int64_t jump = p.step * a.at.stride, at = p.first * a.at.stride + p.channel;
    int left = rows_of(p);
#pragma unroll
    for (int u = 0; u < GRAD_ROWS; u++)
        if (u < left)
            load_row<COMPUTED>(a, at + u * jump, row[u]);
    double sum[2];
    merge_end(a.at, m, sum);
    if (m.finishes) {
        grad_coefficients<A> c = finish_sums(a, m, params, sum);
        shared[0][m.index] = c.mean;
        shared[1][m.index] = c.scale;
        shared[2][m.index] = c.mean_g;
        shared[3][m.index] = c.slope;
    }
    __syncthreads();
    int lane = (int)threadIdx.x & (a.at.lanes - 1);
    dsc_vector<A, N> mean = dsc_load<A, N>(&shared[0][lane * N]);
    dsc_vector<A, N> scale = dsc_load<A, N>(&shared[1][lane * N]);
    dsc_vector<A, N> mean_g = dsc_load<A, N>(&shared[2][lane * N]);
    dsc_vector<A, N> slope = dsc_load<A, N>(&shared[3][lane * N]);
    for (; left > 0; left -= GRAD_ROWS) {
#pragma unroll
        for (int u = 0; u < GRAD_ROWS; u++, at += jump) {
            if (u >= left)
                break;
            A g[N], d[N];
#pragma unroll
            for (int i = 0; i < N; i++) {
                g[i] = grad_of<COMPUTED>(a, mask, row[u], i);
                d[i] = scale.at[i] * (g[i] - mean_g.at[i] - (row[u].x.get(i) - mean.at[i]) * slope.at[i]);
            }
            put<T, N>(a.add_x, d, a.dx + at);
            if (a.dresidual)
                put<T, N>(a.add_residual, g, a.dresidual + at);
            if (u + GRAD_ROWS < left)
                load_row<COMPUTED>(a, at + GRAD_ROWS * jump, row[u]);
        }
    }
}

/* ---- launches ---- */

/* Returns where a slice of channels starts; NULL stays NULL. */
template <typename P> static P *from(void *start, int64_t channel) {
    return start ? (P *)start + channel : 0;
}

template <typename P> static const P *from(const void *start, int64_t channel) {
    return start ? (const P *)start + channel : 0;
}

/* Returns the blocks for both launches of a pass: one per multiprocessor, but at least one for each group of
 * channels. */
template <typename T, int N>
static dsc_columns blocks_of(const dsc_cuda_launch *at, int64_t rows, int64_t stride, int64_t width) {
    int lanes = DSC_COLUMN_LANES;
    if (rows * stride * (int64_t)sizeof(T) <= SMALL_BYTES)
        while (lanes > 1 && lanes * N * (int)sizeof(T) > NARROW_BYTES)
            lanes /= 2;
    return dsc_columns_narrow(rows, stride, width, N, lanes, THREADS, 1, at->multiprocessors);
}

template <typename T>
static forward_call<T> forward_of(const dsc_columns &c, const dsc_cuda_norm_forward_call *f, int64_t first,
                                  void *partials) {
    typedef dsc_number<T> A;
    double rows = (double)f->rows;
    return {c,
            f->relu,
            f->eps,
            f->momentum,
            1 / rows,
            f->rows > 1 ? 1 / (rows - 1) : 1,
            from<T>(f->x, first),
            from<T>(f->residual, first),
            from<A>(f->gamma, first),
            from<A>(f->shift, first),
            from<A>(f->running_mean, first),
            from<A>(f->running_var, first),
            from<A>(f->mean, first),
            from<A>(f->invstd, first),
            from<A>(f->applied, first),
            from<T>(f->y, first),
            (A *)partials};
}

template <typename T, int N>
static cudaError_t train(const dsc_cuda_launch *at, const dsc_cuda_norm_forward_call *f) {
    for (int64_t first = 0; first < f->channels; first += DSC_COLUMN_SLICE) {
        int64_t width = dsc_column_slice(f->channels, first);
        dsc_columns c = blocks_of<T, N>(at, f->rows, f->channels, width);
        forward_call<T> a = forward_of<T>(c, f, first, at->scratch);
        DSC_LAUNCH((norm_moments<T, N>), dim3(c.groups, c.chunks), dim3(THREADS), 0, at->stream)(a);
        DSC_LAUNCH((norm_apply<T, N>), dim3(c.groups, c.chunks), dim3(THREADS), 0, at->stream)(a);
    }
    return cudaGetLastError();
}

template <typename T, int N>
static cudaError_t eval(const dsc_cuda_launch *at, const dsc_cuda_norm_forward_call *f) {
    for (int64_t first = 0; first < f->channels; first += DSC_COLUMN_SLICE) {
        int64_t width = dsc_column_slice(f->channels, first);
        dsc_columns c = blocks_of<T, N>(at, f->rows, f->channels, width);
        forward_call<T> a = forward_of<T>(c, f, first, 0);
        DSC_LAUNCH((norm_apply<T, N>), dim3(c.groups, c.chunks), dim3(THREADS), 0, at->stream)(a);
    }
    return cudaGetLastError();
}

template <typename T, int N, bool COMPUTED>
static cudaError_t backward(const dsc_cuda_launch *at, const dsc_cuda_norm_backward_call *b) {
    typedef dsc_number<T> A;
    for (int64_t first = 0; first < b->channels; first += DSC_COLUMN_SLICE) {
        int64_t width = dsc_column_slice(b->channels, first);
        dsc_columns c = blocks_of<T, N>(at, b->rows, b->channels, width);
        grad_call<T> a = {c,
                          b->add_x,
                          b->dresidual && b->add_residual,
                          b->add_params,
                          1 / (double)b->rows,
                          from<T>(b->x, first),
                          from<T>(b->y, first),
                          from<T>(b->dy, first),
                          from<A>(b->gamma, first),
                          from<A>(b->mean, first),
                          from<A>(b->invstd, first),
                          from<A>(b->applied, first),
                          from<T>(b->dx, first),
                          from<T>(b->dresidual, first),
                          from<A>(b->dgamma, first),
                          from<A>(b->dshift, first),
                          (A *)at->scratch};
        DSC_LAUNCH((norm_sums<T, N, COMPUTED>), dim3(c.groups, c.chunks), dim3(THREADS), 0, at->stream)(a);
        DSC_LAUNCH((norm_grad<T, N, COMPUTED>), dim3(c.groups, c.chunks), dim3(THREADS), 0, at->stream)(a);
    }
    return cudaGetLastError();
}

template <typename T>
static cudaError_t train_of(const dsc_cuda_launch *at, const dsc_cuda_norm_forward_call *f) {
    return dsc_fits<T>(f->channels, f->x, f->residual, f->y) ? train<T, dsc_wide<T>()>(at, f)
                                                             : train<T, 1>(at, f);
}

template <typename T>
static cudaError_t eval_of(const dsc_cuda_launch *at, const dsc_cuda_norm_forward_call *f) {
    return dsc_fits<T>(f->channels, f->x, f->residual, f->y) ? eval<T, dsc_wide<T>()>(at, f)
                                                             : eval<T, 1>(at, f);
}

template <typename T>
static cudaError_t backward_of(const dsc_cuda_launch *at, const dsc_cuda_norm_backward_call *b) {
    int wide = dsc_fits<T>(b->channels, b->x, b->y, b->dy, b->dx, b->dresidual);
    if (b->applied)
        return wide ? backward<T, dsc_wide<T>(), true>(at, b) : backward<T, 1, true>(at, b);
    return wide ? backward<T, dsc_wide<T>(), false>(at, b) : backward<T, 1, false>(at, b);
}

/* ---- the operations ---- */

static dsc_cuda_norm_forward_call describe_forward(const dsc_norm_desc *desc, const dsc_tensor *x,
                                                   const dsc_tensor *residual, const dsc_norm_params *params,
                                                   dsc_tensor *y) {
    int64_t channels = params->gamma->dim[0];
    return (dsc_cuda_norm_forward_call){.dtype = x->dtype,
                                        .relu = desc->relu,
                                        .rows = dsc_tensor_count(x) / channels,
                                        .channels = channels,
                                        .eps = desc->eps,
                                        .momentum = desc->momentum,
                                        .x = dsc_data(x),
                                        .residual = dsc_data(residual),
                                        .gamma = dsc_data(params->gamma),
                                        .shift = dsc_data(params->shift),
                                        .running_mean = dsc_data(params->running_mean),
                                        .running_var = dsc_data(params->running_var),
                                        .y = dsc_data(y)};
}

dsc_status dsc_cuda_norm_forward_train(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                       const dsc_tensor *residual, const dsc_norm_params *params,
                                       dsc_tensor *mean, dsc_tensor *invstd, dsc_tensor *y) {
    dsc_cuda_norm_forward_call call = describe_forward(desc, x, residual, params, y);
    call.mean = dsc_data(mean);
    call.invstd = dsc_data(invstd);
    call.applied = dsc_data(params->applied);
    DSC_CUDA_TRY(DSC_BY_TYPE(call.dtype, train_of, dsc_cuda_at(q), &call));
    return DSC_OK;
}

dsc_status dsc_cuda_norm_forward_eval(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                      const dsc_tensor *residual, const dsc_norm_params *params,
                                      dsc_tensor *y) {
    dsc_cuda_norm_forward_call call = describe_forward(desc, x, residual, params, y);
    DSC_CUDA_TRY(DSC_BY_TYPE(call.dtype, eval_of, dsc_cuda_at(q), &call));
    return DSC_OK;
}

dsc_status dsc_cuda_norm_backward(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                  const dsc_tensor *y, const dsc_tensor *dy, const dsc_tensor *gamma,
                                  const dsc_tensor *mean, const dsc_tensor *invstd,
                                  const dsc_norm_grads *grads) {
    int64_t channels = gamma->dim[0];
    const int computed = desc->relu && !grads->dresidual && grads->applied;
    dsc_cuda_norm_backward_call call = {.dtype = x->dtype,
                                        .rows = dsc_tensor_count(x) / channels,
                                        .channels = channels,
                                        .add_x = grads->beta_x != 0,
                                        .add_residual = grads->beta_residual != 0,
                                        .add_params = grads->beta_p != 0,
                                        .x = dsc_data(x),
                                        .y = dsc_data(desc->relu && !computed ? y : NULL),
                                        .dy = dsc_data(dy),
                                        .gamma = dsc_data(gamma),
                                        .mean = dsc_data(mean),
                                        .invstd = dsc_data(invstd),
                                        .applied = dsc_data(computed ? grads->applied : NULL),
                                        .dx = dsc_data(grads->dx),
                                        .dresidual = dsc_data(grads->dresidual),
                                        .dgamma = dsc_data(grads->dgamma),
                                        .dshift = dsc_data(grads->dshift)};
    DSC_CUDA_TRY(DSC_BY_TYPE(call.dtype, backward_of, dsc_cuda_at(q), &call));
    return DSC_OK;
}
