/* Errors of the CUDA runtime. In a file of its own, because the module of NCCL contains it, too. */
#include "base/error.h"
#include "device/cuda/launch.h"

dsc_status dsc_cuda_fail(cudaError_t error, const char *what, const char *file, int line) {
    (void)cudaGetLastError(); /* reported here: the next launch must not find it again */
    int captured = error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread;
    return dsc_error_raise(error == cudaErrorMemoryAllocation ? DSC_E_MEMORY : DSC_E_DEVICE, file, line,
                           "cuda: %s: %s (%s)%s", what, cudaGetErrorString(error), cudaGetErrorName(error),
                           captured
                               ? "; a stream is being captured into a CUDA graph, which this call cannot "
                                 "be part of: end the capture first"
                               : "");
}
