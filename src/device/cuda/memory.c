/* The GPU's memory, and page-locked memory of the host. */
#include "device/cuda/current.h"
#include "device/cuda/entries.h"
#include "device/cuda/state.h"

#include "base/memory.h"

#include <string.h>

static double gib(size_t bytes) {
    return (double)bytes / (1 << 30);
}

static dsc_status fail_alloc(const dsc_device *device, size_t bytes) {
    size_t free_bytes = 0, total = 0;
    (void)cudaGetLastError();
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess)
        (void)cudaGetLastError();
    return DSC_FAIL(
        DSC_E_MEMORY,
        "cannot allocate %zu bytes (%.2f GiB) of device memory: %.2f of %.2f GiB are free on GPU "
        "%d, %.2f GiB are this process's tensors; use a smaller batch, bf16, or a GPU that others "
        "do not use",
        bytes, gib(bytes), gib(free_bytes), gib(total), dsc_cuda_of(device)->ordinal,
        gib(dsc_device_bytes(device)));
}

dsc_status dsc_cuda_take_zeroed(size_t bytes, void **out) {
    DSC_CUDA_TRY(cudaMalloc(out, bytes > 0 ? bytes : 1));
    cudaError_t error = cudaMemsetAsync(*out, 0, bytes > 0 ? bytes : 1, cudaStreamPerThread);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(cudaStreamPerThread);
    if (error != cudaSuccess) {
        (void)cudaFree(*out);
        *out = NULL;
    }
    DSC_CUDA_TRY(error);
    return DSC_OK;
}

static dsc_status note_block(dsc_cuda *g, void *data, size_t bytes) {
    pthread_mutex_lock(&g->lock);
    dsc_status status =
        dsc_memory_grow(&g->blocks, &g->block_capacity, g->block_count + 1, sizeof(dsc_cuda_block));
    if (status == DSC_OK)
        g->blocks[g->block_count++] = (dsc_cuda_block){data, bytes};
    pthread_mutex_unlock(&g->lock);
    return status;
}

static size_t forget_block(dsc_cuda *g, const void *data) {
    size_t bytes = 0;
    pthread_mutex_lock(&g->lock);
    int64_t i = g->block_count - 1;
    while (i >= 0 && g->blocks[i].data != data)
        i--;
    if (i >= 0) {
        bytes = g->blocks[i].bytes;
        g->blocks[i] = g->blocks[--g->block_count];
    }
    pthread_mutex_unlock(&g->lock);
    return bytes;
}

dsc_status dsc_cuda_alloc(dsc_device *device, size_t bytes, void **out) {
    void *data = NULL;
    DSC_CUDA_ON(dsc_cuda_of(device)->ordinal);
    dsc_status status = bytes > (size_t)INT64_MAX ? DSC_E_MEMORY : dsc_cuda_take_zeroed(bytes, &data);
    if (status == DSC_E_MEMORY)
        return fail_alloc(device, bytes);
    DSC_TRY(status);
    status = note_block(device->state, data, bytes);
    if (status != DSC_OK)
        (void)cudaFree(data);
    DSC_TRY(status);
    dsc_device_count_alloc(device, bytes);
    *out = data;
    return DSC_OK;
}

enum cudaStreamCaptureMode dsc_cuda_capture_mode(enum cudaStreamCaptureMode mode) {
    if (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess)
        (void)cudaGetLastError();
    return mode;
}

void dsc_cuda_free(dsc_device *device, void *data) {
    dsc_device_count_free(device, forget_block(device->state, data));
    DSC_CUDA_ON_QUIETLY(dsc_cuda_of(device)->ordinal);
    enum cudaStreamCaptureMode mode = dsc_cuda_capture_mode(cudaStreamCaptureModeRelaxed);
    if (cudaFree(data) != cudaSuccess)
        (void)cudaGetLastError(); /* the error of earlier work, which the next sync reports */
    (void)dsc_cuda_capture_mode(mode);
}

dsc_status dsc_cuda_host_alloc(dsc_device *device, size_t bytes, void **out) {
    DSC_CUDA_ON(dsc_cuda_of(device)->ordinal);
    cudaError_t error = cudaHostAlloc(out, bytes > 0 ? bytes : 1, cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return DSC_FAIL(DSC_E_MEMORY, "cannot allocate %zu bytes of page-locked host memory", bytes);
    }
    DSC_CUDA_TRY(error);
    memset(*out, 0, bytes);
    return DSC_OK;
}

void dsc_cuda_host_free(dsc_device *device, void *data) {
    (void)device;
    if (cudaFreeHost(data) != cudaSuccess)
        (void)cudaGetLastError();
}

dsc_status dsc_cuda_check_memory(const dsc_device *device, const void *data) {
    struct cudaPointerAttributes about;
    int ordinal = dsc_cuda_of(device)->ordinal;
    DSC_CUDA_ON(ordinal);
    DSC_CUDA_TRY(cudaPointerGetAttributes(&about, data));
    if (about.type == cudaMemoryTypeManaged ||
        (about.type == cudaMemoryTypeDevice && about.device == ordinal))
        return DSC_OK;
    if (about.type == cudaMemoryTypeDevice)
        return DSC_FAIL(DSC_E_INVALID, "address %p is memory of GPU %d, and the tensor's device is GPU %d",
                        data, about.device, ordinal);
    if (about.type == cudaMemoryTypeHost)
        return DSC_FAIL(DSC_E_INVALID,
                        "address %p is page-locked memory of the host, and the tensor's device is GPU %d",
                        data, ordinal);
    return DSC_FAIL(DSC_E_INVALID,
                    "address %p is not memory of GPU %d: it is ordinary memory of the host, or was freed",
                    data, ordinal);
}
