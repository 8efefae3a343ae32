/* Measures the peak rate of a device: by multiply-adds in registers on a CPU, and by products of large matrices on a
 * GPU, where these come close to the peak and nothing else runs at the same time. */
#include "base/clock.h"
#include "base/error.h"
#include "descent/ops.h"
#include "device/multiply_adds.h"
#include "device/scope.h"

enum {
    REPEATS = 8, /* on a CPU; the best one counts */
    /* on a GPU: the rows of the first and of the largest matrices, and the number of products timed together */
    FIRST = 128,
    LARGEST = 4096,
    GROUP = 4
};

/* In seconds: from which duration on a product is large enough, and for how long products of the last size are
 * measured. */
static const double long_product = 1e-4, last_time = 0.02;

/* Measures one thread, because on a busy machine the rate of all threads together says little: the best of some short
 * runs is the rate of a thread that has its core to itself. */
static double measure_thread(void) {
    double best = 0;
    float sink = 0;
    for (int i = 0; i < REPEATS; i++) {
        double start = dsc_clock_now(), flops = dsc_multiply_adds(&sink), seconds = dsc_clock_now() - start;
        if (seconds > 0 && flops / seconds > best)
            best = flops / seconds;
    }
    return sink == 0.123f ? 0 : best; /* never true; keeps the sums alive */
}

/* Measures the time of a product c = a b, in seconds. */
static dsc_status time_product(dsc_queue *queue, const dsc_tensor *a, const dsc_tensor *b, dsc_tensor *c,
                               double *seconds) {
    DSC_TRY(dsc_queue_sync(queue));
    double start = dsc_clock_now();
    for (int i = 0; i < GROUP; i++)
        DSC_TRY(dsc_op_gemm(queue, 0, 0, 1, a, b, 0, c));
    DSC_TRY(dsc_queue_sync(queue));
    *seconds = (dsc_clock_now() - start) / GROUP;
    return DSC_OK;
}

/* Measures products of t[0] and t[1], both [n, n]: raises *flops_per_s to their best rate. The first ones, which may
 * include some set-up, do not count. Sets *large to 1 if this size is the last one. */
static dsc_status measure_products(dsc_queue *queue, dsc_tensor t[3], double *flops_per_s, int *large) {
    const double n = (double)t[0].dim[0], flops = 2 * n * n * n;
    double seconds = 0, end = 0;
    DSC_TRY(dsc_op_fill(queue, 0.5, &t[0]));
    DSC_TRY(dsc_op_fill(queue, 0.25, &t[1]));
    DSC_TRY(time_product(queue, &t[0], &t[1], &t[2], &seconds));
    do {
        DSC_TRY(time_product(queue, &t[0], &t[1], &t[2], &seconds));
        if (seconds > 0 && flops / seconds > *flops_per_s)
            *flops_per_s = flops / seconds;
        *large = n >= LARGEST || seconds >= long_product;
        end = end > 0 ? end : dsc_clock_now() + (*large ? last_time : 0);
    } while (dsc_clock_now() < end);
    return DSC_OK;
}

static dsc_status measure_gpu(dsc_queue *queue, dsc_dtype dtype, double *flops_per_s) {
    int large = 0;
    for (int64_t n = FIRST; !large; n *= 2) {
        dsc_tensor t[3] = {{0}};
        dsc_status status = DSC_OK;
        for (int i = 0; i < 3 && status == DSC_OK; i++)
            status = dsc_tensor_alloc(dsc_queue_device(queue), dtype, 2, (const int64_t[]){n, n}, &t[i]);
        if (status == DSC_OK)
            status = measure_products(queue, t, flops_per_s, &large);
        for (int i = 0; i < 3; i++)
            dsc_tensor_free(&t[i]);
        DSC_TRY(status);
    }
    return DSC_OK;
}

dsc_status dsc_device_measure_peak(dsc_queue *queue, dsc_dtype dtype, double *flops_per_s) {
    if (!queue || !flops_per_s)
        return DSC_FAIL(DSC_E_INVALID, "neither the queue nor the place for the rate may be NULL");
    dsc_device *device = dsc_queue_device(queue);
    *flops_per_s = 0;
    if (!dsc_device_is_host(device)) {
        DSC_ON_DEVICE(device);
        return measure_gpu(queue, dtype, flops_per_s);
    }
    *flops_per_s = measure_thread() * dsc_device_threads(device);
    return DSC_OK;
}
