/* Shared by the kernels of gram.cu and gram_shift.cu: elements of x as tf32, and writing sums to C. */
#ifndef DSC_DEVICE_CUDA_GRAM_CUH
#define DSC_DEVICE_CUDA_GRAM_CUH

#include "device/cuda/gram_kernels.h"
#include "device/cuda/mma.cuh"

#include <cuda_fp16.h>

/* Elements of x are float, dsc_half_bf16 or dsc_half_f16 (mma.cuh). A half-precision number is a tf32 as it is, so its
 * products are exact; a float is split into two tf32 (SPLIT). */
template <typename T> struct gram_type {
    enum { SPLIT = 0 };
};

template <> struct gram_type<float> {
    enum { SPLIT = 1 };
};

DSC_MMA void gram_one(float &x) {
    x = 1;
}

DSC_MMA void gram_one(double &x) {
    x = 1;
}

DSC_MMA void gram_one(dsc_half_bf16 &x) {
    x.bits = 0x3F80;
}

DSC_MMA void gram_one(dsc_half_f16 &x) {
    x.bits = 0x3C00;
}

/* Converts an element to tf32: to its value and 0, or to a high and a low part. */
template <typename T> DSC_MMA void gram_split(T x, uint32_t &high, uint32_t &low) {
    if (gram_type<T>::SPLIT) {
        dsc_tf32_split(dsc_half_value(x), high, low);
    } else {
        high = __float_as_uint(dsc_half_value(x));
        low = 0;
    }
}

/* Sets C[i,j] = alpha sum + beta C[i,j] if (i, j) is in the lower triangle. */
template <typename C> DSC_MMA void gram_put(const dsc_gram_target &to, int64_t i, int64_t j, double sum) {
    if (j > i || i >= to.n)
        return;
    C *c = (C *)to.c + (to.packed ? i * (i + 1) / 2 : i * to.n) + j;
    *c = (C)(to.beta == 0 ? to.alpha * sum : to.alpha * sum + to.beta * (double)*c);
}

/* Finds the row and column of a tile of the lower triangle from its number; tiles are counted row by row. */
DSC_MMA void gram_find_tile(int64_t tile, int64_t *row, int64_t *column) {
    int64_t i = tile == 0 ? 0 : (int64_t)((sqrt(8.0 * (double)tile + 1) - 1) / 2);
    while (i * (i + 1) / 2 > tile)
        i--;
    while ((i + 1) * (i + 2) / 2 <= tile)
        i++;
    *row = i;
    *column = tile - i * (i + 1) / 2;
}

/* Lets a kernel use more shared memory than the default limit. */
static inline cudaError_t gram_allow_shared(const void *kernel, size_t bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

#endif
