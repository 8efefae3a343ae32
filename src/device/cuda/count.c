#include "device/cuda/state.h"

int dsc_cuda_count(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}
