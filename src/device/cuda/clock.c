#include "device/cuda/clock_kernels.h"
#include "device/cuda/entries.h"
#include "device/cuda/state.h"

dsc_status dsc_cuda_timestamp(dsc_queue *q, dsc_tensor *t) {
    DSC_CUDA_TRY(dsc_cuda_launch_timestamp(dsc_cuda_at(q), t->data));
    return DSC_OK;
}
