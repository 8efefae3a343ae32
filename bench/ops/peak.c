/* Peak arithmetic and memory rates of this machine. */
#include "ops/peak.h"

#include "base/clock.h"

#include <stdint.h>
#include <stdlib.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

enum { ROUNDS = 400000, REPEATS = 5 };

#ifdef __x86_64__
/* Twelve chains hide the latency of two units; returns flops, and a value so that nothing is optimised away.
 */
__attribute__((target("avx512f"))) static double flops_avx512(float *sink) {
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

__attribute__((target("avx2,fma"))) static double flops_avx2(float *sink) {
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

static double flops_plain(float *sink) {
    float chain[64];
    for (int i = 0; i < 64; i++)
        chain[i] = (float)i;
    for (int r = 0; r < ROUNDS; r++)
        for (int i = 0; i < 64; i++)
            chain[i] = chain[i] * 0.999f + 0.001f;
    for (int i = 0; i < 64; i++)
        *sink += chain[i];
    return 2.0 * 64 * ROUNDS;
}

static double flops_of_thread(float *sink) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f"))
        return flops_avx512(sink);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return flops_avx2(sink);
#endif
    return flops_plain(sink);
}

double dsc_bench_peak_flops(int threads) {
    double best = 0;
    float sink = 0;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        double flops = 0, start = dsc_clock_now();
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(+ : flops, sink)
        for (int t = 0; t < threads; t++)
            flops += flops_of_thread(&sink);
        double rate = flops / (dsc_clock_now() - start) * 1e-9;
        best = rate > best ? rate : best;
    }
    return sink == 0.123f ? 0 : best; /* never; keeps the sums alive */
}

double dsc_bench_peak_bandwidth(int threads) {
    const int64_t n = 16 << 20;
    float *a = malloc((size_t)n * sizeof *a), *b = malloc((size_t)n * sizeof *b),
          *c = malloc((size_t)n * sizeof *c);
    double best = -1;
    for (int repeat = 0; a && b && c && repeat <= REPEATS; repeat++) {
        double start = dsc_clock_now();
        /* The first round also fills the arrays, each thread its own part. */
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t i = 0; i < n; i++) {
            if (repeat == 0) {
                b[i] = 1;
                c[i] = (float)i;
            }
            a[i] = b[i] + 0.5f * c[i];
        }
        double rate = 3.0 * (double)n * sizeof *a / (dsc_clock_now() - start) * 1e-9;
        if (repeat > 0 && rate > best)
            best = rate;
    }
    free(a);
    free(b);
    free(c);
    return best;
}
