/* Peak arithmetic and memory rates of this machine. */
#include "ops/peak.h"

#include "base/clock.h"
#include "device/multiply_adds.h"

#include <stdint.h>
#include <stdlib.h>

enum { REPEATS = 5 };

double dsc_bench_peak_flops(int threads) {
    double best = 0;
    float sink = 0;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        double flops = 0, start = dsc_clock_now();
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(+ : flops, sink)
        for (int t = 0; t < threads; t++)
            flops += dsc_multiply_adds(&sink);
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
