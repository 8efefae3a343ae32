/* Multiply-adds in registers. */
#include "device/multiply_adds.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

enum { ROUNDS = 400000 };

#ifdef __x86_64__
/* Twelve independent chains hide the latency of two FMA units. */
__attribute__((target("avx512f"))) static double with_avx512(float *sink) {
    __m512 chain[12];
    const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
    for (int i = 0; i < 12; i++)
        chain[i] = _mm512_set1_ps((float)i);
    for (int r = 0; r < ROUNDS; r++)
        for (int i = 0; i < 12; i++)
            chain[i] = _mm512_fmadd_ps(chain[i], a, b);
    for (int i = 0; i < 12; i++)
        *sink += _mm512_cvtss_f32(chain[i]);
    return 2.0 * 16 * 12 * ROUNDS;
}

__attribute__((target("avx2,fma"))) static double with_avx2(float *sink) {
    __m256 chain[12];
    const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
    for (int i = 0; i < 12; i++)
        chain[i] = _mm256_set1_ps((float)i);
    for (int r = 0; r < ROUNDS; r++)
        for (int i = 0; i < 12; i++)
            chain[i] = _mm256_fmadd_ps(chain[i], a, b);
    for (int i = 0; i < 12; i++)
        *sink += _mm256_cvtss_f32(chain[i]);
    return 2.0 * 8 * 12 * ROUNDS;
}
#endif

static double plain(float *sink) {
    const int rounds = ROUNDS / 10;
    float chain[64];
    for (int i = 0; i < 64; i++)
        chain[i] = (float)i;
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < 64; i++)
            chain[i] = chain[i] * 0.999f + 0.001f;
    for (int i = 0; i < 64; i++)
        *sink += chain[i];
    return 2.0 * 64 * rounds;
}

double dsc_multiply_adds(float *sink) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f"))
        return with_avx512(sink);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return with_avx2(sink);
#endif
    return plain(sink);
}
