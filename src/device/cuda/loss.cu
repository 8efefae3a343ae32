/* Softmax cross-entropy, and labels sampled from a softmax; in double, except for the exponentials of long rows of
 * halves.
 *
 * With z the logits minus the largest of them, and the target t and weight w of a row (dsc_targets):
 *   loss = w (log sum exp(z) - sum t z),   dloss/dz = w (exp(z) / sum exp(z) - t). */
#include "device/cuda/entries.h"
#include "device/cuda/layer.cuh"
#include "device/cuda/mma.cuh"

typedef struct dsc_cuda_loss_call {
    int64_t rows, width, classes; /* all positive; width: numbers per row */
    double smoothing, grad_scale;
    const int32_t *labels, *others; /* others, shares, weights and loss_scale may be NULL */
    const float *shares, *weights;
    const double *loss_scale;
    double *stats;
} dsc_cuda_loss_call;

typedef struct dsc_cuda_sample_call {
    int64_t rows, width, classes;
    uint64_t seed;
    int64_t rows_of_sample;
    const int64_t *position;
    const int32_t *known; /* may be NULL */
    int32_t *labels;
} dsc_cuda_sample_call;

enum { STATS = 4, WARPS = DSC_COLUMN_WARPS };

/* ---- loss ---- */

/* TEAM threads share a row: a warp, or the block. Replaces Q values by their sums over the team, the same in every
 * thread. */
template <int TEAM, int Q> __device__ __forceinline__ void team_sum(double (&value)[Q]) {
    __shared__ double warps[Q][WARPS];
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2)
#pragma unroll
        for (int q = 0; q < Q; q++)
            value[q] += __shfl_xor_sync(0xFFFFFFFFu, value[q], apart);
    if (TEAM == 32)
        return;
    if (threadIdx.x % 32 == 0)
        for (int q = 0; q < Q; q++)
            warps[q][threadIdx.x / 32] = value[q];
    __syncthreads();
    for (int q = 0; q < Q; q++) {
        value[q] = 0;
        for (int w = 0; w < WARPS; w++)
            value[q] += warps[q][w];
    }
    __syncthreads();
}

template <int TEAM> __device__ __forceinline__ double team_max(double value) {
    __shared__ double warps[WARPS];
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2)
        value = fmax(value, __shfl_xor_sync(0xFFFFFFFFu, value, apart));
    if (TEAM == 32)
        return value;
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = value;
    __syncthreads();
    for (int w = 0; w < WARPS; w++)
        value = fmax(value, warps[w]);
    __syncthreads();
    return value;
}

template <typename T, int TEAM>
__device__ __forceinline__ void fill_row(int64_t classes, dsc_number<T> value, T *dz) {
    for (int64_t i = threadIdx.x % TEAM; dz && i < classes; i += TEAM)
        dsc_set(dz[i], value);
}

/* The target of a row. */
typedef struct dsc_cuda_target {
    int64_t label, other; /* other -1: none */
    double share, weight;
} dsc_cuda_target;

/* Processes a row with valid labels. Returns its loss; `before` becomes the number of classes ranked before the
 * label. */
template <typename T, int TEAM>
__device__ __forceinline__ double row_loss(const dsc_cuda_loss_call &a, const T *z, const dsc_cuda_target &to,
                                           double scale, T *dz, double &before) {
    typedef dsc_number<T> A;
    double highest = -INFINITY, sums[3] = {0, 0, 0}; /* exp(z), z, ranked before */
    const int64_t label = to.label;
    A own = dsc_get(z[label]);
    for (int64_t i = threadIdx.x % TEAM; i < a.classes; i += TEAM)
        highest = fmax(highest, (double)dsc_get(z[i]));
    highest = team_max<TEAM>(highest);
    for (int64_t i = threadIdx.x % TEAM; i < a.classes; i += TEAM) {
        A other = dsc_get(z[i]);
        sums[0] += exp((double)other - highest);
        sums[1] += (double)other - highest;
        sums[2] += !(other < own) && (other != own || i < label); /* a NaN ranks before */
    }
    team_sum<TEAM>(sums);
    double uniform = a.smoothing / (double)a.classes, loss = log(sums[0]);
    double first = (1 - a.smoothing) * (1 - to.share), second = (1 - a.smoothing) * to.share;
    if (first > 0)
        loss -= first * ((double)own - highest);
    if (second > 0)
        loss -= second * ((double)dsc_get(z[to.other]) - highest);
    if (a.smoothing > 0)
        loss -= uniform * sums[1];
    scale *= to.weight;
    for (int64_t i = threadIdx.x % TEAM; dz && i < a.classes; i += TEAM) {
        double target = uniform + (i == label ? first : 0) + (i == to.other ? second : 0);
        dsc_set(dz[i], (A)(scale * (exp((double)dsc_get(z[i]) - highest) / sums[0] - target)));
    }
    before = sums[2];
    return to.weight * loss;
}

/* ---- long rows of halves ----
 *
 * Exponentials are in float32, to base 2, and a thread takes EACH numbers at once, starting where the row is aligned
 * for that. One pass finds the largest number and the sum, a second one writes the gradient. Labels are tested for once
 * per EACH numbers: a row of a language model has 50000, and the passes should wait for nothing but memory. */
enum { EACH = 8, AHEAD = 4 }; /* AHEAD: vectors that a thread loads at a time */

#define LOG2_E 1.4426950408889634f
#define LN_2   0.6931471805599453

template <typename T, class Body>
__device__ __forceinline__ void walk_row(const T *z, const T *dz, int classes, Body &body) {
    typedef dsc_vector<T, EACH> vector;
    const int apart = (int)((uintptr_t)z / sizeof(T) % EACH), lead = apart ? EACH - apart : 0;
    const bool alike = !dz || ((uintptr_t)z - (uintptr_t)dz) % 16 == 0;
    const int head = lead < classes && alike ? lead : classes, whole = (classes - head) / EACH;
    int i = (int)threadIdx.x;
    for (int k = i; k < head; k += DSC_COLUMN_THREADS)
        body.take(dsc_load<T, 1>(z + k), k);
    for (; i + (AHEAD - 1) * DSC_COLUMN_THREADS < whole; i += AHEAD * DSC_COLUMN_THREADS) {
        vector v[AHEAD];
#pragma unroll
        for (int n = 0; n < AHEAD; n++)
            v[n] = dsc_load<T, EACH>(z + head + (i + n * DSC_COLUMN_THREADS) * EACH);
#pragma unroll
        for (int n = 0; n < AHEAD; n++)
            body.take(v[n], head + (i + n * DSC_COLUMN_THREADS) * EACH);
    }
    for (; i < whole; i += DSC_COLUMN_THREADS)
        body.take(dsc_load<T, EACH>(z + head + i * EACH), head + i * EACH);
    for (int k = head + whole * EACH + (int)threadIdx.x; k < classes; k += DSC_COLUMN_THREADS)
        body.take(dsc_load<T, 1>(z + k), k);
}

/* sum: the sum of 2^(z log2(e) - shift), where shift is log2(e) times the largest number so far. */
template <typename T> struct row_sums {
    int label, smooths;
    float own, most, shift, sum, plain;
    int before;

    template <int N> __device__ __forceinline__ void take(const dsc_vector<T, N> &v, int first) {
        float top = v.get(0);
#pragma unroll
        for (int i = 1; i < N; i++)
            top = fmaxf(top, v.get(i));
        if (top > most) {
            float moved = top * LOG2_E;
            if (most > -INFINITY) /* otherwise the sum is 0, and the factor may be infinite */
                sum *= dsc_exp2(shift - moved);
            most = top;
            shift = moved;
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            sum += dsc_exp2(fmaf(v.get(i), LOG2_E, -shift));
        /* The first of equal numbers ranks before the others; a NaN ranks before all. */
        if (first + N <= label)
#pragma unroll
            for (int i = 0; i < N; i++)
                before += !(v.get(i) < own);
        else if (first > label)
#pragma unroll
            for (int i = 0; i < N; i++)
                before += !(v.get(i) <= own);
        else
            for (int i = 0; i < N; i++)
                before += first + i < label ? !(v.get(i) < own) : !(v.get(i) <= own);
        if (smooths)
#pragma unroll
            for (int i = 0; i < N; i++)
                plain += v.get(i);
    }
};

/* Writes gradients. share (1 / the sum), uniform, first and second are already multiplied by the scale. */
template <typename T> struct row_grads {
    T *dz;
    int label, other;
    float shift, share, uniform, first, second;

    template <int N> __device__ __forceinline__ void take(const dsc_vector<T, N> &v, int at) {
        dsc_vector<T, N> out;
        float value[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            value[i] = fmaf(dsc_exp2(fmaf(v.get(i), LOG2_E, -shift)), share, -uniform);
        if ((unsigned)(label - at) < N || (unsigned)(other - at) < N)
#pragma unroll
            for (int i = 0; i < N; i++)
                value[i] -= (at + i == label ? first : 0) + (at + i == other ? second : 0);
#pragma unroll
        for (int i = 0; i < N; i++)
            out.set(i, value[i]);
        dsc_store<T, N>(dz + at, out);
    }
};

/* Like row_loss. */
template <typename T>
__device__ __forceinline__ double long_row_loss(const dsc_cuda_loss_call &a, const T *z,
                                                const dsc_cuda_target &to, double scale, T *dz,
                                                double &before) {
    const int classes = (int)a.classes;
    double own = (double)dsc_get(z[to.label]), second = to.other < 0 ? 0 : (double)dsc_get(z[to.other]);
    row_sums<T> r = {(int)to.label, a.smoothing > 0, (float)own, -INFINITY, 0, 0, 0, 0};
    walk_row(z, (const T *)0, classes, r);
    double shift = team_max<DSC_COLUMN_THREADS>(r.most > -INFINITY ? (double)r.shift : -INFINITY);
    shift = shift > -INFINITY ? shift : 0; /* 0: all numbers are -infinity */
    double share = r.most > -INFINITY ? exp2((double)r.shift - shift) : 1;
    double sums[3] = {share * (double)r.sum, (double)r.plain, (double)r.before};
    team_sum<DSC_COLUMN_THREADS>(sums);
    double uniform = a.smoothing / (double)classes, loss = shift * LN_2 + log(sums[0]);
    double first_share = (1 - a.smoothing) * (1 - to.share), second_share = (1 - a.smoothing) * to.share;
    if (first_share > 0)
        loss -= first_share * own;
    if (second_share > 0)
        loss -= second_share * second;
    if (a.smoothing > 0)
        loss -= uniform * sums[1];
    before = sums[2];
    scale *= to.weight;
    if (dz) {
        row_grads<T> g = {dz,
                          (int)to.label,
                          (int)to.other,
                          (float)shift,
                          (float)(scale / sums[0]),
                          (float)(scale * uniform),
                          (float)(scale * first_share),
                          (float)(scale * second_share)};
        walk_row(z, (const T *)dz, classes, g);
    }
    return to.weight * loss;
}

template <typename T, int TEAM>
__device__ __forceinline__ double any_row_loss(const dsc_cuda_loss_call &a, const T *z,
                                               const dsc_cuda_target &to, double scale, T *dz,
                                               double &before) {
    if constexpr (sizeof(T) == 2 && TEAM == DSC_COLUMN_THREADS)
        return long_row_loss<T>(a, z, to, scale, dz, before);
    else
        return row_loss<T, TEAM>(a, z, to, scale, dz, before);
}

/* Finds the target of a row. Returns 0 if a label is not a class. */
__device__ __forceinline__ int find_target(const dsc_cuda_loss_call &a, int64_t row, dsc_cuda_target &to) {
    to.label = a.labels[row];
    to.other = -1;
    to.share = 0;
    to.weight = 1;
    if (a.others && a.shares[row] > 0) {
        to.other = a.others[row];
        to.share = (double)a.shares[row];
        if (to.other < 0 || to.other >= a.classes)
            return 0;
    }
    if (to.label >= a.classes)
        return 0;
    if (a.weights)
        to.weight = (1 - to.share) * (double)a.weights[to.label] +
                    (to.share > 0 ? to.share * (double)a.weights[to.other] : 0);
    return 1;
}

template <typename T, int TEAM>
__device__ __forceinline__ void loss_row(const dsc_cuda_loss_call &a, const T *logits, int64_t row,
                                         double scale, T *dlogits, double (&stats)[STATS]) {
    dsc_cuda_target to;
    T *dz = dlogits ? dlogits + row * a.width : 0;
    if (a.labels[row] < 0) {
        fill_row<T, TEAM>(a.width, 0, dz);
        return;
    }
    fill_row<T, TEAM>(a.width - a.classes, 0, dz ? dz + a.classes : 0);
    stats[3] += 1;
    if (!find_target(a, row, to)) {
        stats[0] = NAN;
        fill_row<T, TEAM>(a.classes, (dsc_number<T>)NAN, dz);
        return;
    }
    double before = 0;
    stats[0] += any_row_loss<T, TEAM>(a, logits + row * a.width, to, scale, dz, before);
    stats[1] += before < 1;
    stats[2] += before < 5;
}

/* The grid is (1, blocks). */
template <typename T, int TEAM>
static __global__ void __launch_bounds__(DSC_COLUMN_THREADS, 2)
    softmax_loss(const dsc_cuda_loss_call a, const T *logits, T *dlogits, double *partials,
                 unsigned *tickets) {
    enum { TEAMS = DSC_COLUMN_THREADS / TEAM };
    __shared__ double teams[TEAMS][STATS];
    int team = (int)threadIdx.x / TEAM, t = (int)threadIdx.x;
    double stats[STATS] = {0, 0, 0, 0}, sum[1] = {0};
    double scale = a.loss_scale ? a.grad_scale * a.loss_scale[0] : a.grad_scale;
    for (int64_t row = (int64_t)blockIdx.y * TEAMS + team; row < a.rows; row += (int64_t)gridDim.y * TEAMS)
        loss_row<T, TEAM>(a, logits, row, scale, dlogits, stats);
    if (t % TEAM == 0)
        for (int i = 0; i < STATS; i++)
            teams[team][i] = stats[i];
    __syncthreads();
    if (t < STATS)
        for (int i = 0; i < TEAMS; i++)
            sum[0] += teams[i][t];
    if (dsc_merge_blocks<1>(STATS, partials, tickets, sum))
        a.stats[t] += sum[0];
}

template <typename T, int TEAM>
static void launch_loss(const dsc_cuda_launch *at, const dsc_cuda_loss_call *call, const T *logits,
                        T *dlogits) {
    int64_t teams = DSC_COLUMN_THREADS / TEAM, blocks = (call->rows + teams - 1) / teams;
    int64_t most = (sizeof(T) == 2 ? 8 : 2) * (int64_t)at->multiprocessors;
    DSC_LAUNCH((softmax_loss<T, TEAM>), dim3(1, (unsigned)(blocks < most ? blocks : most)),
               dim3(DSC_COLUMN_THREADS), 0, at->stream)
    (*call, logits, dlogits, (double *)at->scratch, at->tickets);
}

template <typename T>
static cudaError_t run_softmax_loss(const dsc_cuda_launch *at, const dsc_cuda_loss_call *call,
                                    const void *logits, void *dlogits) {
    if (call->classes <= 128)
        launch_loss<T, 32>(at, call, (const T *)logits, (T *)dlogits);
    else
        launch_loss<T, DSC_COLUMN_THREADS>(at, call, (const T *)logits, (T *)dlogits);
    return cudaGetLastError();
}

/* ---- labels ----
 *
 * dsc_draw_label by a warp, with the same sums in the same order: the lanes compute the weights of SPAN classes at
 * once, and the first lane adds them up. */
enum { SPAN = 256, SAMPLE_WARPS = 4 };

/* Computes the weights exp(z - largest) of up to SPAN classes from `first` on, and returns their number. Afterwards all
 * lanes see all weights. */
template <typename T>
__device__ __forceinline__ int weigh(int64_t classes, const T *z, double largest, int64_t first,
                                     double *weights) {
    int64_t rest = classes - first;
    int count = rest < SPAN ? (int)rest : (int)SPAN;
    __syncwarp();
    for (int i = (int)threadIdx.x % 32; i < count; i += 32)
        weights[i] = exp((double)dsc_get(z[first + i]) - largest);
    __syncwarp();
    return count;
}

/* Samples a label. All lanes call it; only the first lane's result is valid. */
template <typename T>
__device__ __forceinline__ int32_t draw(int64_t classes, const T *z, double u, double *weights) {
    if (classes == 1)
        return dsc_draw_binary((double)dsc_get(z[0]), u);
    double largest = -INFINITY, whole = 0, sum = 0;
    int32_t last = 0, chosen = -1;
    int lane = (int)threadIdx.x % 32;
    for (int64_t i = lane; i < classes; i += 32)
        largest = fmax(largest, (double)dsc_get(z[i]));
    largest = team_max<32>(largest);
    for (int64_t first = 0; first < classes; first += SPAN) {
        int count = weigh(classes, z, largest, first, weights);
        for (int i = 0; lane == 0 && i < count; i++)
            whole += weights[i];
    }
    for (int64_t first = 0; first < classes; first += SPAN) {
        int count = weigh(classes, z, largest, first, weights);
        for (int i = 0; lane == 0 && chosen < 0 && i < count; i++) {
            sum += weights[i];
            if (sum > u * whole)
                chosen = (int32_t)(first + i);
            if (weights[i] > 0)
                last = (int32_t)(first + i);
        }
        if (__shfl_sync(0xFFFFFFFFu, chosen, 0) >= 0)
            break;
    }
    return chosen < 0 ? last : chosen;
}

template <typename T>
static __global__ void __launch_bounds__(32 * SAMPLE_WARPS)
    sample_labels(const dsc_cuda_sample_call a, const T *logits) {
    __shared__ double weights[SAMPLE_WARPS][SPAN];
    int warp = (int)threadIdx.x / 32;
    for (int64_t row = (int64_t)blockIdx.x * SAMPLE_WARPS + warp; row < a.rows;
         row += (int64_t)gridDim.x * SAMPLE_WARPS) {
        double u = dsc_label_uniform(a.seed, a.position[0], a.position[1] * a.rows_of_sample + row);
        int32_t label = -1;
        if (!a.known || a.known[row] >= 0) /* the same for all lanes */
            label = draw(a.classes, logits + row * a.width, u, weights[warp]);
        if (threadIdx.x % 32 == 0)
            a.labels[row] = label;
    }
}

template <typename T>
static cudaError_t run_sample_labels(const dsc_cuda_launch *at, const dsc_cuda_sample_call *call,
                                     const void *logits) {
    int64_t blocks = (call->rows + SAMPLE_WARPS - 1) / SAMPLE_WARPS, most = 8 * (int64_t)at->multiprocessors;
    DSC_LAUNCH((sample_labels<T>), dim3((unsigned)(blocks < most ? blocks : most)), dim3(32 * SAMPLE_WARPS),
               0, at->stream)
    (*call, (const T *)logits);
    return cudaGetLastError();
}

/* ---- the operations ---- */

dsc_status dsc_cuda_target_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_targets *targets,
                                double grad_scale, const dsc_tensor *loss_scale, dsc_tensor *dlogits,
                                dsc_tensor *stats) {
    dsc_cuda_loss_call call = {.rows = logits->dim[0],
                               .width = logits->dim[1],
                               .classes = targets->classes > 0 ? targets->classes : logits->dim[1],
                               .smoothing = targets->smoothing,
                               .grad_scale = grad_scale,
                               .labels = dsc_data(targets->labels),
                               .others = dsc_data(targets->others),
                               .shares = dsc_data(targets->shares),
                               .weights = dsc_data(targets->weights),
                               .loss_scale = dsc_data(loss_scale),
                               .stats = dsc_data(stats)};
    DSC_CUDA_TRY(DSC_BY_TYPE(logits->dtype, run_softmax_loss, dsc_cuda_at(q), &call, dsc_data(logits),
                             dsc_data(dlogits)));
    return DSC_OK;
}

dsc_status dsc_cuda_sample_labels(dsc_queue *q, uint64_t seed, const dsc_tensor *position,
                                  int64_t rows_of_sample, const dsc_tensor *logits, int64_t classes,
                                  const dsc_tensor *known, dsc_tensor *labels) {
    dsc_cuda_sample_call call = {.rows = logits->dim[0],
                                 .width = logits->dim[1],
                                 .classes = classes,
                                 .seed = seed,
                                 .rows_of_sample = rows_of_sample,
                                 .position = dsc_data(position),
                                 .known = dsc_data(known),
                                 .labels = dsc_data(labels)};
    DSC_CUDA_TRY(DSC_BY_TYPE(logits->dtype, run_sample_labels, dsc_cuda_at(q), &call, dsc_data(logits)));
    return DSC_OK;
}
