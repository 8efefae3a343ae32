/* The kernels for machines with AVX-512. */
#ifdef __x86_64__

#include "device/cpu/kernels.h"
#include "device/half.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c"))),         \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c,prefer-vector-width=512")
#endif

enum { VECTOR_FLOATS = 16, TILE_ROWS = 12 };
typedef __m512 vector;

static inline vector broadcast(float x) {
    return _mm512_set1_ps(x);
}

static inline vector multiply_add(vector a, vector b, vector c) {
    return _mm512_fmadd_ps(a, b, c);
}

#define KERNELS      dsc_cpu_kernels_avx512
#define KERNELS_NAME "AVX-512"
#define KERNELS_F16C 1
#include "device/cpu/kernels.inc"

#ifdef __clang__
#pragma clang attribute pop
#endif

#else
typedef int dsc_cpu_kernels_avx512_need_x86; /* a translation unit may not be empty */
#endif
