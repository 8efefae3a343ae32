/* Counter-based random numbers (Philox 4x32-10): a value is a pure function of (seed, purpose, epoch, index),
 * so it depends neither on ranks nor threads nor on how often anyone asked. */
#ifndef DSC_BASE_RNG_H
#define DSC_BASE_RNG_H

#include <stdint.h>

/* What a stream of numbers is for. Values are part of the reproducibility contract: append only. */
typedef enum dsc_rng_purpose {
    DSC_RNG_INIT = 1,    /* epoch: parameter number, index: element */
    DSC_RNG_SHUFFLE = 2, /* index: position */
    DSC_RNG_AUGMENT = 3, /* index: sample */
    DSC_RNG_DROPOUT = 4, /* epoch: layer and step, index: element */
    DSC_RNG_SYNTHETIC = 5,
    DSC_RNG_TEST = 6,
    DSC_RNG_FISHER = 7 /* epoch: step, index: sample */
} dsc_rng_purpose;

/* The raw generator: 128 bits of counter, 64 bits of key, 128 bits out. */
void dsc_rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* A sequence of its own for one (seed, purpose, epoch, index). */
typedef struct dsc_rng {
    uint32_t key[2];
    uint32_t counter[4]; /* [0]: block number inside the sequence */
    uint32_t block[4];
    int used; /* words of `block` handed out */
} dsc_rng;

dsc_rng dsc_rng_start(uint64_t seed, dsc_rng_purpose purpose, uint32_t epoch, uint64_t index);
uint32_t dsc_rng_u32(dsc_rng *rng);
/* Uniform in [0, n), unbiased; n > 0. */
uint32_t dsc_rng_below(dsc_rng *rng, uint32_t n);
/* Uniform in [0, 1), 24 bits. */
float dsc_rng_uniform(dsc_rng *rng);
/* Standard normal (Box-Muller). */
double dsc_rng_normal(dsc_rng *rng);

#endif
