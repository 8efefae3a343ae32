/* exp, tanh and erfc of a float, for loops that the compiler vectorises: without branches and calls, and with
 * polynomials in two halves, so that fewer operations wait for each other. Relative errors are below 3 * 2^-23; where
 * erfc is below 1e-3, its error grows to that of the exponential of a rounded square. NaN stays NaN. */
#ifndef DSC_DEVICE_FLOAT_MATH_H
#define DSC_DEVICE_FLOAT_MATH_H

#include "device/half.h"

#define DSC_FLOAT_MATH static inline __attribute__((always_inline))

/* e^x = scale (1 + result): x = n log 2 + r, scale = 2^n, and a polynomial for e^r - 1. x is clamped to [-80, 80]:
 * what is computed from the result then stays a normal number, which is faster than a denormal one. Adding
 * 1.5 * 2^23 rounds to a whole number and leaves it in the low bits. */
DSC_FLOAT_MATH float dsc_exp_split(float x, float *scale) {
    x = x < -80.0f ? -80.0f : x;
    x = x > 80.0f ? 80.0f : x;
    float shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float r2 = r * r, low = 0.5f + 0.166666672f * r, middle = 0.0416665487f + 0.00833332073f * r;
    float p = low + r2 * (middle + r2 * (0.00139269268f + 0.000198835231f * r));
    *scale = dsc_float_from_bits((dsc_float_bits(shifted) + 127u) << 23);
    return p * r2 + r;
}

DSC_FLOAT_MATH float dsc_exp_f(float x) {
    float scale, rest = dsc_exp_split(x, &scale);
    return scale * rest + scale;
}

/* tanh |x| = -m / (2 + m) with m = e^(-2|x|) - 1, which is accurate for small x, too. */
DSC_FLOAT_MATH float dsc_tanh_f(float x) {
    float size = x < 0 ? -x : x, scale, rest = dsc_exp_split(-2.0f * size, &scale);
    float m = scale * rest + (scale - 1.0f), t = -m / (2.0f + m);
    return x < 0 ? -t : t;
}

/* For z >= 0, erfc(z) = e^(-z^2) t q(t) with t = 1 / (1 + 0.35 z); q was fitted for z <= 10. */
DSC_FLOAT_MATH float dsc_erfc_f(float x) {
    float z = x < 0 ? -x : x, t = 1.0f / (1.0f + 0.35f * z);
    float t2 = t * t, t4 = t2 * t2;
    float q0 = (0.197489262f + 0.197030738f * t) + t2 * (0.1888064f + 0.146915779f * t);
    float q4 = (0.158554688f + 0.0634051114f * t) + t2 * (0.00104561506f + 0.159641206f * t);
    float q = q0 + t4 * (q4 + t4 * (0.0366547294f * t - 0.149543539f));
    float tail = t * q * dsc_exp_f(-z * z);
    return x < 0 ? 2.0f - tail : tail;
}

#undef DSC_FLOAT_MATH

#endif
