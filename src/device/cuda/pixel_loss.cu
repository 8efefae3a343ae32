/* Losses that compare single numbers (binary cross-entropy, soft Dice, squared errors), in double; see ops.h for the
 * formulas. */
#include "device/cuda/entries.h"
#include "device/cuda/layer.cuh"

typedef struct dsc_cuda_pixel_call {
    int64_t count, rows;   /* how many numbers; in how many rows, for squared errors */
    const int32_t *labels; /* either labels or targets are used */
    const float *targets;
    double grad_scale;
    const double *loss_scale; /* may be NULL */
    double *stats;

    __device__ __forceinline__ double scale() const {
        return loss_scale ? grad_scale * loss_scale[0] : grad_scale;
    }
} dsc_cuda_pixel_call;

enum { WARPS = DSC_COLUMN_WARPS, SUMS = 4 };

/* Adds up the numbers of all threads; the grid is (1, blocks). In threads t below SUMS of the last block, returns 1 and
 * sets total to the sum over mine[t]; returns 0 in all others. */
__device__ __forceinline__ int add_up(double (&mine)[SUMS], double *partials, unsigned *tickets,
                                      double &total) {
    __shared__ double warps[WARPS][SUMS];
    int t = (int)threadIdx.x;
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2)
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            mine[i] += __shfl_xor_sync(0xFFFFFFFFu, mine[i], apart);
    if (t % 32 == 0)
        for (int i = 0; i < SUMS; i++)
            warps[t / 32][i] = mine[i];
    __syncthreads();
    double sum[1] = {0};
    if (t < SUMS)
        for (int w = 0; w < WARPS; w++)
            sum[0] += warps[w][t];
    int last = dsc_merge_blocks<1>(SUMS, partials, tickets, sum);
    total = sum[0];
    return last;
}

__device__ __forceinline__ int64_t first_number() {
    return (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ int64_t number_step() {
    return (int64_t)gridDim.y * blockDim.x;
}

/* ---- binary cross-entropy ---- */

template <typename T>
static __global__ void __launch_bounds__(DSC_COLUMN_THREADS, 2)
    bce_loss(const dsc_cuda_pixel_call a, const T *logits, T *dlogits, double *partials, unsigned *tickets) {
    double sums[SUMS] = {}, total, scale = a.scale(); /* losses, correct, correct, rows */
    for (int64_t i = first_number(); i < a.count; i += number_step()) {
        int counts = a.labels[i] >= 0;
        double z = (double)dsc_get(logits[i]), t = dsc_binary_target(a.labels[i]);
        if (counts) {
            int correct = dsc_binary_correct(z, t);
            sums[0] += dsc_bce(z, t);
            sums[1] += correct;
            sums[2] += correct;
            sums[3] += 1;
        }
        if (dlogits)
            dsc_set(dlogits[i], (dsc_number<T>)(counts ? scale * dsc_bce_slope(z, t) : 0));
    }
    if (add_up(sums, partials, tickets, total))
        a.stats[threadIdx.x] += total;
}

/* ---- soft Dice ---- */

/* Computes totals[4]: sum p t, sum p + sum t, correct, rows. */
template <typename T>
static __global__ void __launch_bounds__(DSC_COLUMN_THREADS, 2)
    dice_sums(const dsc_cuda_pixel_call a, const T *logits, double *totals, double *partials,
              unsigned *tickets) {
    double sums[SUMS] = {}, total;
    for (int64_t i = first_number(); i < a.count; i += number_step()) {
        if (a.labels[i] < 0)
            continue;
        double z = (double)dsc_get(logits[i]), t = dsc_binary_target(a.labels[i]), p = dsc_sigmoid(z);
        sums[0] += p * t;
        sums[1] += p + t;
        sums[2] += dsc_binary_correct(z, t);
        sums[3] += 1;
    }
    if (add_up(sums, partials, tickets, total))
        totals[threadIdx.x] = total;
}

template <typename T>
static __global__ void __launch_bounds__(DSC_COLUMN_THREADS, 2)
    dice_gradient(const dsc_cuda_pixel_call a, const T *logits, const double *totals, T *dlogits) {
    double both = totals[0], sum = totals[1], rows = totals[3], scale = a.scale() * rows;
    for (int64_t i = first_number(); dlogits && i < a.count; i += number_step()) {
        double t = dsc_binary_target(a.labels[i]);
        dsc_set(
            dlogits[i],
            (dsc_number<T>)(t < 0 ? 0 : scale * dsc_dice_slope((double)dsc_get(logits[i]), t, both, sum)));
    }
    if (first_number() == 0) {
        a.stats[0] += rows * dsc_dice(both, sum);
        a.stats[1] += totals[2];
        a.stats[2] += totals[2];
        a.stats[3] += rows;
    }
}

/* ---- squared errors ---- */

template <typename T>
static __global__ void __launch_bounds__(DSC_COLUMN_THREADS, 2)
    mse_loss(const dsc_cuda_pixel_call a, const T *y, T *dy, double *partials, unsigned *tickets) {
    double sums[SUMS] = {}, total, share = (double)a.rows / (double)a.count, scale = 2 * share * a.scale();
    for (int64_t i = first_number(); i < a.count; i += number_step()) {
        double error = (double)dsc_get(y[i]) - (double)a.targets[i];
        sums[0] += error * error;
        if (dy)
            dsc_set(dy[i], (dsc_number<T>)(scale * error));
    }
    if (add_up(sums, partials, tickets, total) && threadIdx.x == 0) {
        a.stats[0] += share * total;
        a.stats[3] += (double)a.rows;
    }
}

/* ---- the operations ---- */

static dim3 blocks_of(const dsc_cuda_launch *at, int64_t count) {
    int64_t blocks = (count + DSC_COLUMN_THREADS - 1) / DSC_COLUMN_THREADS,
            most = 2 * (int64_t)at->multiprocessors;
    return dim3(1, (unsigned)(blocks < most ? blocks : most));
}

template <typename T>
static cudaError_t run_bce(const dsc_cuda_launch *at, const dsc_cuda_pixel_call *a, const void *logits,
                           void *dlogits) {
    DSC_LAUNCH((bce_loss<T>), blocks_of(at, a->count), dim3(DSC_COLUMN_THREADS), 0, at->stream)
    (*a, (const T *)logits, (T *)dlogits, (double *)at->scratch, at->tickets);
    return cudaGetLastError();
}

template <typename T>
static cudaError_t run_dice(const dsc_cuda_launch *at, const dsc_cuda_pixel_call *a, const void *logits,
                            void *dlogits) {
    double *totals = (double *)at->scratch, *partials = totals + SUMS;
    DSC_LAUNCH((dice_sums<T>), blocks_of(at, a->count), dim3(DSC_COLUMN_THREADS), 0, at->stream)
    (*a, (const T *)logits, totals, partials, at->tickets);
    DSC_LAUNCH((dice_gradient<T>), blocks_of(at, dlogits ? a->count : 1), dim3(DSC_COLUMN_THREADS), 0,
               at->stream)
    (*a, (const T *)logits, totals, (T *)dlogits);
    return cudaGetLastError();
}

template <typename T>
static cudaError_t run_mse(const dsc_cuda_launch *at, const dsc_cuda_pixel_call *a, const void *y, void *dy) {
    DSC_LAUNCH((mse_loss<T>), blocks_of(at, a->count), dim3(DSC_COLUMN_THREADS), 0, at->stream)
    (*a, (const T *)y, (T *)dy, (double *)at->scratch, at->tickets);
    return cudaGetLastError();
}

static dsc_cuda_pixel_call describe(const dsc_tensor *x, const dsc_tensor *against, double grad_scale,
                                    const dsc_tensor *loss_scale, dsc_tensor *stats) {
    dsc_cuda_pixel_call a = {};
    a.count = dsc_tensor_count(x);
    a.rows = x->ndim > 0 ? x->dim[0] : 1;
    a.labels = dsc_data(against);
    a.targets = dsc_data(against);
    a.grad_scale = grad_scale;
    a.loss_scale = dsc_data(loss_scale);
    a.stats = dsc_data(stats);
    return a;
}

dsc_status dsc_cuda_bce_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_tensor *labels,
                             double grad_scale, const dsc_tensor *loss_scale, dsc_tensor *dlogits,
                             dsc_tensor *stats) {
    dsc_cuda_pixel_call call = describe(logits, labels, grad_scale, loss_scale, stats);
    DSC_CUDA_TRY(
        DSC_BY_TYPE(logits->dtype, run_bce, dsc_cuda_at(q), &call, dsc_data(logits), dsc_data(dlogits)));
    return DSC_OK;
}

dsc_status dsc_cuda_dice_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_tensor *labels,
                              double grad_scale, const dsc_tensor *loss_scale, dsc_tensor *dlogits,
                              dsc_tensor *stats) {
    dsc_cuda_pixel_call call = describe(logits, labels, grad_scale, loss_scale, stats);
    DSC_CUDA_TRY(
        DSC_BY_TYPE(logits->dtype, run_dice, dsc_cuda_at(q), &call, dsc_data(logits), dsc_data(dlogits)));
    return DSC_OK;
}

dsc_status dsc_cuda_mse_loss(dsc_queue *q, const dsc_tensor *y, const dsc_tensor *targets, double grad_scale,
                             const dsc_tensor *loss_scale, dsc_tensor *dy, dsc_tensor *stats) {
    dsc_cuda_pixel_call call = describe(y, targets, grad_scale, loss_scale, stats);
    DSC_CUDA_TRY(DSC_BY_TYPE(y->dtype, run_mse, dsc_cuda_at(q), &call, dsc_data(y), dsc_data(dy)));
    return DSC_OK;
}
