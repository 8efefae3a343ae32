/* bf16 and fp16: all 65536 patterns, and roundings against an independent, slow conversion. */
#include "test.h"

#include "base/rng.h"
#include "device/half.h"

#include <math.h>

/* Value of a pattern with `fraction` fraction bits and `exponent` exponent bits, by the definition. */
static double slow_value(unsigned pattern, int exponent, int fraction) {
    int bias = (1 << (exponent - 1)) - 1;
    int e = (int)(pattern >> fraction) & ((1 << exponent) - 1);
    int f = (int)(pattern & ((1u << fraction) - 1));
    double sign = pattern & 0x8000u ? -1 : 1;
    if (e == (1 << exponent) - 1)
        return f ? NAN : sign * INFINITY;
    if (e == 0)
        return sign * ldexp(f, 1 - bias - fraction);
    return sign * ldexp(1 + ldexp(f, -fraction), e - bias);
}

/* Nearest pattern by bisection over the patterns of non-negative values (which rise with the pattern); the
 * place of infinity counts as the number that would follow. */
static unsigned slow_round(double x, int exponent, int fraction) {
    unsigned infinity = ((1u << exponent) - 1) << fraction;
    double beyond = slow_value(infinity - 1, exponent, fraction);
    beyond += beyond - slow_value(infinity - 2, exponent, fraction);
    double size = fabs(x);
    unsigned sign = signbit(x) ? 0x8000u : 0;
    if (size >= beyond)
        return sign | infinity;
    unsigned low = 0, high = infinity; /* value(low) <= size < value(high) */
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        if (slow_value(middle, exponent, fraction) <= size)
            low = middle;
        else
            high = middle;
    }
    double below = size - slow_value(low, exponent, fraction);
    double above = (high == infinity ? beyond : slow_value(high, exponent, fraction)) - size;
    if (below < above || (below == above && low % 2 == 0))
        return sign | low;
    return sign | high;
}

static void test_all_patterns(void **state) {
    (void)state;
    for (unsigned p = 0; p < 65536; p++) {
        double b = slow_value(p, 8, 7), h = slow_value(p, 5, 10);
        uint16_t pattern = (uint16_t)p;
        if (isnan(b)) {
            assert_true(isnan(dsc_bf16_to_float(pattern)));
            assert_true(isnan(dsc_bf16_to_float(dsc_bf16_from_float(dsc_bf16_to_float(pattern)))));
        } else {
            assert_true((double)dsc_bf16_to_float(pattern) == b);
            assert_int_equal(dsc_bf16_from_float(dsc_bf16_to_float(pattern)), pattern);
            assert_int_equal(dsc_bf16_from_double(b), pattern);
        }
        if (isnan(h)) {
            assert_true(isnan(dsc_f16_to_float(pattern)));
            assert_true(isnan(dsc_f16_to_float(dsc_f16_from_float(dsc_f16_to_float(pattern)))));
        } else {
            assert_true((double)dsc_f16_to_float(pattern) == h);
            assert_int_equal(dsc_f16_from_float(dsc_f16_to_float(pattern)), pattern);
            assert_int_equal(dsc_f16_from_double(h), pattern);
        }
    }
}

static void check_rounding(double x) {
    float f = (float)x;
    assert_int_equal(dsc_bf16_from_float(f), slow_round((double)f, 8, 7));
    assert_int_equal(dsc_f16_from_float(f), slow_round((double)f, 5, 10));
    assert_int_equal(dsc_bf16_from_double(x), slow_round(x, 8, 7));
    assert_int_equal(dsc_f16_from_double(x), slow_round(x, 5, 10));
}

/* Around every value of each type: the ties between neighbours, and just beside them in double. */
static void test_ties(void **state) {
    (void)state;
    for (unsigned p = 0; p < 0x7F80u; p += 1) {
        for (int type = 0; type < 2; type++) {
            int exponent = type ? 5 : 8, fraction = type ? 10 : 7;
            if (type && p >= 0x7C00u)
                continue;
            double low = slow_value(p, exponent, fraction);
            double high = p + 1 == (type ? 0x7C00u : 0x7F80u)
                              ? 2 * low - slow_value(p - 1, exponent, fraction)
                              : slow_value(p + 1, exponent, fraction);
            double tie = low / 2 + high / 2;
            check_rounding(tie);
            check_rounding(-tie);
            check_rounding(nextafter(tie, 0));
            check_rounding(nextafter(tie, INFINITY));
        }
    }
}

static void test_random_bits(void **state) {
    (void)state;
    dsc_rng rng = dsc_rng_start(1, DSC_RNG_TEST, 0, 0);
    for (int i = 0; i < 20000; i++) {
        float f = dsc_float_from_bits(dsc_rng_u32(&rng)); /* every exponent */
        if (!isnan(f))
            check_rounding((double)f * (1 + 0x1p-30 * (double)dsc_rng_uniform(&rng)));
        check_rounding(ldexp((double)dsc_rng_uniform(&rng), (int)dsc_rng_below(&rng, 50) - 30));
    }
    check_rounding(INFINITY);
    check_rounding(-INFINITY);
    check_rounding(1e300);
    check_rounding(1e-300);
    check_rounding(-0.0);
    assert_true(isnan(dsc_bf16_to_float(dsc_bf16_from_double(NAN))));
    assert_true(isnan(dsc_f16_to_float(dsc_f16_from_double(NAN))));
    assert_true(isnan(dsc_bf16_to_float(dsc_bf16_from_float(dsc_float_from_bits(0x7F800001u)))));
    assert_true(isnan(dsc_f16_to_float(dsc_f16_from_float(dsc_float_from_bits(0xFF800001u)))));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_patterns),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_random_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
