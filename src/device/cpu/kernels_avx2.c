/* The kernels for machines with AVX2. */
#ifdef __x86_64__

#include "device/cpu/kernels.h"
#include "device/half.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

enum { VECTOR_FLOATS = 8, TILE_ROWS = 6 };
typedef __m256 vector;

static inline vector broadcast(float x) {
    return _mm256_set1_ps(x);
}

static inline vector multiply_add(vector a, vector b, vector c) {
    return _mm256_fmadd_ps(a, b, c);
}

#define KERNELS      dsc_cpu_kernels_avx2
#define KERNELS_NAME "AVX2"
#define KERNELS_F16C 1
#include "device/cpu/kernels.inc"

#ifdef __clang__
#pragma clang attribute pop
#endif

#else
typedef int dsc_cpu_kernels_avx2_need_x86; /* a translation unit may not be empty */
#endif
