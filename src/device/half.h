/* Converts bf16 and fp16, stored as 16-bit patterns, to and from float32 and float64, rounding to nearest, ties to
 * even. NaN stays NaN (quiet), infinities stay, numbers that are too large become infinite, and subnormal results are
 * rounded correctly.
 *
 * float64 is rounded to 16 bits only once: a conversion through the nearest float32 would round twice. */
#ifndef DSC_DEVICE_HALF_H
#define DSC_DEVICE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t dsc_float_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float dsc_float_from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A bf16 is the upper half of a float32. */
static inline float dsc_bf16_to_float(uint16_t half) {
    return dsc_float_from_bits((uint32_t)half << 16);
}

static inline uint16_t dsc_bf16_from_float(float x) {
    uint32_t bits = dsc_float_bits(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)((bits >> 16) | 0x0040u); /* quiet: a payload cut to 0 would make it infinity */
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

/* An fp16 has 1 sign, 5 exponent (bias 15) and 10 fraction bits. Placed into the bits of a float32 it is too
 * small by a factor of 2^112, whether normal or subnormal; one multiplication corrects that. */
static inline float dsc_f16_to_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t rest = (uint32_t)(half & 0x7FFFu) << 13;
    if ((half & 0x7C00u) == 0x7C00u)
        return dsc_float_from_bits(sign | 0x7F800000u | rest);
    return dsc_float_from_bits(sign | dsc_float_bits(dsc_float_from_bits(rest) * 0x1p112f));
}

static inline uint16_t dsc_f16_from_float(float x) {
    uint32_t bits = dsc_float_bits(x);
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    uint32_t size = bits & 0x7FFFFFFFu;
    if (size > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00u | ((size >> 13) & 0x1FFu));
    if (size >= 0x477FF000u) /* 65520, halfway between the largest fp16 and 2^16 */
        return (uint16_t)(sign | 0x7C00u);
    if (size < 0x38800000u) { /* below 2^-14: adding 1/2 rounds to fp16's subnormal units, the last bits */
        uint32_t sum = dsc_float_bits(dsc_float_from_bits(size) + 0.5f);
        return (uint16_t)(sign | (uint16_t)(sum - 0x3F000000u));
    }
    uint32_t rounded = size + 0xFFFu + ((size >> 13) & 1u);
    return (uint16_t)(sign | (uint16_t)((rounded - 0x38000000u) >> 13));
}

/* Converts float64 to float32, but sets the last bit if bits were lost ("round to odd"). Rounding this result to
 * 16 bits then gives the same as a single rounding. */
static inline float dsc_float_round_to_odd(double x) {
    float nearest = (float)x;
    uint32_t bits = dsc_float_bits(nearest);
    if ((double)nearest == x || x != x || (bits & 1u))
        return nearest;
    double size = x < 0 ? -x : x, got = nearest < 0 ? -(double)nearest : (double)nearest;
    return dsc_float_from_bits(got < size ? bits + 1u : bits - 1u); /* the odd neighbour beyond x */
}

static inline uint16_t dsc_bf16_from_double(double x) {
    return dsc_bf16_from_float(dsc_float_round_to_odd(x));
}

static inline uint16_t dsc_f16_from_double(double x) {
    return dsc_f16_from_float(dsc_float_round_to_odd(x));
}

#endif
