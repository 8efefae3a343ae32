/* How kernels are launched; included by .c and .cu files alike. */
#ifndef DSC_DEVICE_CUDA_LAUNCH_H
#define DSC_DEVICE_CUDA_LAUNCH_H

#include "descent/device.h"

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The first argument of every launch function. `scratch` (DSC_CUDA_SCRATCH bytes) and `tickets` (DSC_CUDA_TICKETS
 * counters) belong to the stream, and their contents are valid during one operation only. Tickets are 0 between
 * launches: a kernel that uses one resets it. */
typedef struct dsc_cuda_launch {
    cudaStream_t stream;
    void *scratch;
    unsigned *tickets;
    int multiprocessors;
    int capability; /* 80, 90, ... */
} dsc_cuda_launch;

/* Returns the launch arguments of a queue. */
const dsc_cuda_launch *dsc_cuda_at(const dsc_queue *q);

/* Raises DSC_E_MEMORY if memory is exhausted, else DSC_E_DEVICE, with the runtime's message. */
dsc_status dsc_cuda_fail(cudaError_t error, const char *what, const char *file, int line);

/* Returns from the calling function if a call of the runtime, or a launch, fails. */
#define DSC_CUDA_TRY(...)                                                                                    \
    do {                                                                                                     \
        cudaError_t dsc_cuda_error_ = (__VA_ARGS__);                                                         \
        if (dsc_cuda_error_ != cudaSuccess)                                                                  \
            return dsc_cuda_fail(dsc_cuda_error_, #__VA_ARGS__, __FILE__, __LINE__);                         \
    } while (0)

#ifdef __cplusplus
}
#endif

/* DSC_LAUNCH((kernel<float, 4>), grid, block, shared bytes, stream)(arguments...); */
#if defined(__CUDACC__)
#define DSC_LAUNCH(kernel, grid, block, shared, stream) (kernel)<<<(grid), (block), (shared), (stream)>>>
/* Declares dynamic shared memory, whose size is set at launch. */
#define DSC_SHARED(type, name)                                                                               \
    extern __shared__ __align__(16) unsigned char dsc_shared_bytes[];                                        \
    type *name = reinterpret_cast<type *>(dsc_shared_bytes)
#elif defined(DSC_EMULATED) && defined(__cplusplus)
#include "emulator/emulator.h"
#endif

#endif
