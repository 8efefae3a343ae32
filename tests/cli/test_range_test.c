/* The rates that a rate range test finds, on curves whose answer is known. */
#include "test.h"

#include "cli/range_test.h"

#include <math.h>

/* Adds losses until the test is over; returns the number added. */
static int64_t fill(dsc_range_test *test, double (*loss)(double lr)) {
    int64_t i = 0;
    while (i < test->planned && !dsc_range_test_add(test, loss(test->lr[i])))
        i++;
    return i < test->planned ? i + 1 : i;
}

/* Falls from 3 to 1, fastest at 1e-2; rises steeply from 1 on. */
static double valley(double lr) {
    double x = log10(lr);
    return 2 - tanh(2 * (x + 2)) + (x > 0 ? 20 * x * x : 0);
}

static double flat(double lr) {
    return 2.3 + 0.01 * sin(50 * log10(lr));
}

static double falling(double lr) {
    return -log10(lr) + 5;
}

static double to_nan(double lr) {
    return lr < 0.0999 ? falling(lr) : (double)NAN;
}

static void test_valley(void **state) {
    (void)state;
    dsc_range_test test;
    assert_ok(dsc_range_test_create(1e-5, 100, 701, &test));
    assert_true(test.lr[0] == 1e-5 && test.lr[700] == 100);
    assert_true(fabs(test.lr[100] / 1e-4 - 1) < 1e-9);
    int64_t steps = fill(&test, valley);
    /* 1 + 20 x^2 > 4 * 3 at x = 0.742 */
    assert_true(test.exploded && steps == test.count && fabs(log10(test.lr[steps - 1]) - 0.742) < 0.02);
    dsc_range_rates rates = dsc_range_test_rates(&test);
    assert_true(fabs(log10(rates.steepest) + 2) < 0.02);
    assert_true(rates.lowest > rates.steepest && rates.rises > rates.lowest);
    assert_true(rates.rises > 0.4 && rates.rises < 1.5);
    dsc_range_test_free(&test);
    assert_null(test.lr);
}

static void test_no_answer(void **state) {
    (void)state;
    dsc_range_test test;
    assert_ok(dsc_range_test_create(1e-5, 10, 100, &test));
    assert_int_equal(fill(&test, flat), 100);
    dsc_range_rates rates = dsc_range_test_rates(&test);
    assert_true(!test.exploded && isnan(rates.steepest) && isnan(rates.lowest) && isnan(rates.rises));
    dsc_range_test_free(&test);
    assert_ok(dsc_range_test_create(1e-5, 10, 100, &test));
    rates = dsc_range_test_rates(&test); /* without any step */
    assert_true(isnan(rates.steepest));
    dsc_range_test_free(&test);
}

static void test_no_rise(void **state) {
    (void)state;
    dsc_range_test test;
    assert_ok(dsc_range_test_create(1e-5, 1, 100, &test));
    assert_int_equal(fill(&test, falling), 100);
    dsc_range_rates rates = dsc_range_test_rates(&test);
    assert_true(!test.exploded && isfinite(rates.steepest) && rates.lowest == 1 && isnan(rates.rises));
    dsc_range_test_free(&test);
}

/* A loss that was low and then is not finite explodes at the next rate. */
static void test_not_finite(void **state) {
    (void)state;
    dsc_range_test test;
    assert_ok(dsc_range_test_create(1e-5, 1, 101, &test));
    fill(&test, to_nan);
    assert_true(test.exploded && test.count == 80);
    dsc_range_rates rates = dsc_range_test_rates(&test);
    assert_true(fabs(rates.rises / 0.1 - 1) < 1e-9);
    dsc_range_test_free(&test);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_valley), cmocka_unit_test(test_no_answer),
                                       cmocka_unit_test(test_no_rise), cmocka_unit_test(test_not_finite)};
    return cmocka_run_group_tests_name("range test", tests, NULL, NULL);
}
