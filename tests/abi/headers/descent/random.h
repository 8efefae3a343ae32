/* Random numbers that depend on nothing but their arguments, neither on ranks and threads nor on how many
 * numbers were drawn before: Philox 4x32-10 (Salmon et al., SC'11). Everything random in this library comes
 * from these sequences. */
#ifndef DSC_RANDOM_H
#define DSC_RANDOM_H

#include "descent/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The first purpose that this library will never use itself. */
enum { DSC_RANDOM_USER = 1000 };

/* Writes the first `count` words, each uniform over 32 bits, of the sequence (seed, purpose, epoch, index).
 * Sequences that differ in any of the four are independent; the same four give the same words in every
 * version. A purpose keeps apart what is drawn with one seed; a program's own start at DSC_RANDOM_USER. */
DSC_API void dsc_random_words(uint64_t seed, uint32_t purpose, uint32_t epoch, uint64_t index, int64_t count,
                              uint32_t *words);

#ifdef __cplusplus
}
#endif
#endif
