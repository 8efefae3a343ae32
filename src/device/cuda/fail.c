/* Errors of the CUDA runtime. In a file of its own because it is also linked into the NCCL module. */
#include "base/error.h"
#include "device/cuda/launch.h"

dsc_status dsc_cuda_fail(cudaError_t error, const char *what, const char *file, int line) {
    (void)cudaGetLastError(); /* clears the error, which the next launch must not report again */
    int captured = error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread;
    return dsc_error_raise(error == cudaErrorMemoryAllocation ? DSC_E_MEMORY : DSC_E_DEVICE, file, line,
                           "cuda: %s: %s (%s)%s", what, cudaGetErrorString(error), cudaGetErrorName(error),
                           captured
                               ? "; a stream is being captured into a CUDA graph, which this call cannot "
                                 "be part of: end the capture first"
                               : "");
}
