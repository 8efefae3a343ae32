/* Random numbers made from the words that Philox gives. */
#include "base/rng.h"

#include "descent/random.h"

#include <math.h>

uint32_t dsc_rng_below(dsc_rng *rng, uint32_t n) {
    uint32_t rest = (uint32_t)(-n) % n; /* 2^32 mod n: words below it would favour small results */
    for (;;) {
        uint32_t x = dsc_rng_u32(rng);
        if (x >= rest)
            return x % n;
    }
}

float dsc_rng_uniform(dsc_rng *rng) {
    return (float)(dsc_rng_u32(rng) >> 8) * 0x1p-24f;
}

double dsc_rng_normal(dsc_rng *rng) {
    double u = ((double)dsc_rng_u32(rng) + 1.0) * 0x1p-32; /* (0, 1] */
    double v = (double)dsc_rng_u32(rng) * 0x1p-32;
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

void dsc_random_words(uint64_t seed, uint32_t purpose, uint32_t epoch, uint64_t index, int64_t count,
                      uint32_t *words) {
    dsc_rng rng = dsc_rng_start(seed, (dsc_rng_purpose)purpose, epoch, index);
    for (int64_t i = 0; i < count; i++)
        words[i] = dsc_rng_u32(&rng);
}
