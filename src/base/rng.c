/* Philox 4x32-10 (Salmon et al., SC'11): ten rounds of two 32x32->64 bit products, with a Weyl key schedule.
 */
#include "base/rng.h"

#include <math.h>

void dsc_rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The counter is (block, epoch, index low, index high); purpose and seed are the key. The seed's upper half
 * is folded into the first key word by an odd multiplier, so that all 64 bits count. */
dsc_rng dsc_rng_start(uint64_t seed, dsc_rng_purpose purpose, uint32_t epoch, uint64_t index) {
    dsc_rng rng = {{0}, {0}, {0}, 4};
    rng.key[0] = (uint32_t)seed ^ ((uint32_t)(seed >> 32) * 0x85EBCA6Bu);
    rng.key[1] = (uint32_t)purpose ^ ((uint32_t)(seed >> 32) * 0xC2B2AE35u);
    rng.counter[1] = epoch;
    rng.counter[2] = (uint32_t)index;
    rng.counter[3] = (uint32_t)(index >> 32);
    return rng;
}

uint32_t dsc_rng_u32(dsc_rng *rng) {
    if (rng->used == 4) {
        dsc_rng_philox(rng->counter, rng->key, rng->block);
        rng->counter[0]++;
        rng->used = 0;
    }
    return rng->block[rng->used++];
}

uint32_t dsc_rng_below(dsc_rng *rng, uint32_t n) {
    uint32_t rest = (uint32_t)(-n) % n; /* 2^32 mod n: the values that would favour small results */
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
