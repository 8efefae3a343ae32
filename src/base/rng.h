/* Counter-based random numbers (Philox 4x32-10): a value is a pure function of (seed, purpose, epoch, index),
 * so it depends neither on ranks and threads nor on how many values were drawn before. */
#ifndef DSC_BASE_RNG_H
#define DSC_BASE_RNG_H

#include <stdint.h>

/* Functions that are written once, for C code and for CUDA kernels. */
#ifdef __CUDACC__
#define DSC_FORMULA static inline __host__ __device__
#else
#define DSC_FORMULA static inline
#endif

/* What a sequence of numbers is used for, and what `epoch` and `index` stand for in it. The values are part of the
 * reproducibility contract: only append to them. */
typedef enum dsc_rng_purpose {
    DSC_RNG_INIT = 1,    /* epoch: parameter number, index: element */
    DSC_RNG_SHUFFLE = 2, /* index: position */
    DSC_RNG_AUGMENT = 3, /* index: sample */
    DSC_RNG_DROPOUT = 4, /* epoch: layer and step, index: element */
    DSC_RNG_SYNTHETIC = 5,
    DSC_RNG_TEST = 6,
    DSC_RNG_FISHER = 7,   /* epoch: step, index: sample */
    DSC_RNG_REPLACE = 8,  /* index: the sample that cannot be read */
    DSC_RNG_SPLIT = 9,    /* epoch: class, index: position */
    DSC_RNG_MIX = 10,     /* index: sample; mixup and CutMix: its partner */
    DSC_RNG_VARY = 11,    /* index: sample; RandAugment and erasing */
    DSC_RNG_GROUP = 12,   /* index: position among the groups */
    DSC_RNG_WINDOW = 13,  /* where the windows of a text begin */
    DSC_RNG_MASK = 14,    /* index: sample; tokens that are masked */
    DSC_RNG_GENERATE = 15 /* index: number of the token being drawn */
} dsc_rng_purpose;

/* The raw generator, from a 128-bit counter and a 64-bit key to 128 bits: Philox 4x32-10 (Salmon et al.,
 * SC'11), ten rounds of two 32x32->64 bit products, with a Weyl key schedule. */
enum { DSC_RNG_ROUNDS = 10 };

/* Does one round, with that round's key. Loops that compute many blocks at once do the same round for all of them. */
DSC_FORMULA void dsc_rng_philox_round(uint32_t k0, uint32_t k1, uint32_t *c0, uint32_t *c1, uint32_t *c2,
                                      uint32_t *c3) {
    uint64_t p0 = (uint64_t)0xD2511F53u * *c0;
    uint64_t p1 = (uint64_t)0xCD9E8D57u * *c2;
    *c0 = (uint32_t)(p1 >> 32) ^ *c1 ^ k0;
    *c2 = (uint32_t)(p0 >> 32) ^ *c3 ^ k1;
    *c1 = (uint32_t)p1;
    *c3 = (uint32_t)p0;
}

/* Advances the key to that of the next round. */
DSC_FORMULA void dsc_rng_philox_next(uint32_t *k0, uint32_t *k1) {
    *k0 += 0x9E3779B9u;
    *k1 += 0xBB67AE85u;
}

DSC_FORMULA void dsc_rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < DSC_RNG_ROUNDS; round++) {
        dsc_rng_philox_round(k0, k1, &c0, &c1, &c2, &c3);
        dsc_rng_philox_next(&k0, &k1);
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The state of the sequence for one (seed, purpose, epoch, index). */
typedef struct dsc_rng {
    uint32_t key[2];
    uint32_t counter[4]; /* [0]: block number inside the sequence */
    uint32_t block[4];
    int used; /* number of words of `block` already returned */
} dsc_rng;

/* The counter is (block, epoch, index low, index high); purpose and seed are the key. The seed's upper half
 * is mixed into both key words by odd multipliers, so that all 64 bits matter. */
DSC_FORMULA dsc_rng dsc_rng_start(uint64_t seed, dsc_rng_purpose purpose, uint32_t epoch, uint64_t index) {
    dsc_rng rng = {{0}, {0}, {0}, 4};
    rng.key[0] = (uint32_t)seed ^ ((uint32_t)(seed >> 32) * 0x85EBCA6Bu);
    rng.key[1] = (uint32_t)purpose ^ ((uint32_t)(seed >> 32) * 0xC2B2AE35u);
    rng.counter[1] = epoch;
    rng.counter[2] = (uint32_t)index;
    rng.counter[3] = (uint32_t)(index >> 32);
    return rng;
}

DSC_FORMULA uint32_t dsc_rng_u32(dsc_rng *rng) {
    if (rng->used == 4) {
        dsc_rng_philox(rng->counter, rng->key, rng->block);
        rng->counter[0]++;
        rng->used = 0;
    }
    return rng->block[rng->used++];
}

/* Returns an integer that is uniform in [0, n), without bias; n > 0. */
uint32_t dsc_rng_below(dsc_rng *rng, uint32_t n);
/* Returns a number that is uniform in [0, 1), with 24 random bits. */
float dsc_rng_uniform(dsc_rng *rng);
/* Returns a standard normal number (Box-Muller). */
double dsc_rng_normal(dsc_rng *rng);

#endif
