/* Counter-based random numbers, which depend on their arguments alone: neither on ranks and threads nor on how many
 * numbers were drawn before. Philox 4x32-10 (Salmon et al., SC'11). Everything random in this library comes from these
 * sequences. */
#ifndef DSC_RANDOM_H
#define DSC_RANDOM_H

#include "descent/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The first value of `purpose` that is left to programs: the library never uses this or a larger one. */
enum { DSC_RANDOM_USER = 1000 };

/* Writes the first `count` words of the sequence (seed, purpose, epoch, index) to words[count], each uniform over 32
 * bits. Sequences that differ in any of the four numbers are independent; the same four give the same words in every
 * version. The purpose separates uses that share a seed; a program chooses its own from DSC_RANDOM_USER on. */
DSC_API void dsc_random_words(uint64_t seed, uint32_t purpose, uint32_t epoch, uint64_t index, int64_t count,
                              uint32_t *words);

#ifdef __cplusplus
}
#endif
#endif
