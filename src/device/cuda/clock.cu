/* The device's clock. */
#include "device/cuda/entries.h"
#include "device/cuda/launch.h"

#ifdef DSC_EMULATED
#include <time.h>
#endif

static __device__ int64_t now() {
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

static __global__ void timestamp(int64_t *out) {
    *out = now();
}

static cudaError_t launch_timestamp(const dsc_cuda_launch *at, int64_t *out) {
    DSC_LAUNCH((timestamp), 1, 1, 0, at->stream)(out);
    return cudaGetLastError();
}

dsc_status dsc_cuda_timestamp(dsc_queue *q, dsc_tensor *t) {
    DSC_CUDA_TRY(launch_timestamp(dsc_cuda_at(q), (int64_t *)t->data));
    return DSC_OK;
}
