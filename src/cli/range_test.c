/* The curve of a rate range test.
 *
 * Let N be the number of steps asked for. The smoothed loss s[i] is the mean of the losses of the steps i - N/20 to
 * i + N/20. The slope at step i is that of the line that fits s best (least squares) over the steps i - N/10 to
 * i + N/10; because the rate grows by the same factor in every step, it is the slope over the rate's logarithm. */
#include "cli/range_test.h"
#include "cli/support.h"

#include <math.h>

static const double explodes = 4;      /* times the loss of the first step */
static const double least_fall = 0.03; /* of the first smoothed loss; less counts as noise */
static const double rise = 0.1;        /* of what the loss has fallen; less counts as still low */

dsc_status dsc_range_test_create(double low, double high, int64_t steps, dsc_range_test *out) {
    *out = (dsc_range_test){.planned = steps, .factor = pow(high / low, 1.0 / (double)(steps - 1))};
    DSC_CLI_TRY(dsc_cli_alloc(3 * steps, sizeof *out->lr, &out->lr));
    out->loss = out->lr + steps;
    out->smoothed = out->loss + steps;
    for (int64_t i = 0; i < steps; i++)
        out->lr[i] = i == steps - 1 ? high : low * pow(out->factor, (double)i);
    return DSC_OK;
}

void dsc_range_test_free(dsc_range_test *test) {
    dsc_cli_free(&test->lr);
    *test = (dsc_range_test){0};
}

int dsc_range_test_add(dsc_range_test *test, double loss) {
    if (!isfinite(loss)) {
        test->exploded = 1;
        return 1;
    }
    test->loss[test->count++] = loss;
    test->exploded = loss > explodes * test->loss[0];
    return test->exploded || test->count == test->planned;
}

/* The steps around step i, `half` to each side as far as there are any: from *first to before *end. */
static void around(const dsc_range_test *test, int64_t i, int64_t half, int64_t *first, int64_t *end) {
    *first = i > half ? i - half : 0;
    *end = i + half + 1 < test->count ? i + half + 1 : test->count;
}

static void smooth(dsc_range_test *test) {
    const int64_t half = test->planned / 20 > 0 ? test->planned / 20 : 1;
    for (int64_t i = 0; i < test->count; i++) {
        int64_t first, end;
        double sum = 0;
        around(test, i, half, &first, &end);
        for (int64_t j = first; j < end; j++)
            sum += test->loss[j];
        test->smoothed[i] = sum / (double)(end - first);
    }
}

/* Steps to each side that the slope is computed from. */
static int64_t slope_steps(const dsc_range_test *test) {
    return test->planned / 10 > 1 ? test->planned / 10 : 2;
}

/* Change of the smoothed loss per step. */
static double slope(const dsc_range_test *test, int64_t i) {
    const int64_t half = slope_steps(test);
    int64_t first, end;
    double above = 0, below = 0;
    around(test, i, half, &first, &end);
    const double middle = 0.5 * (double)(first + end - 1);
    for (int64_t j = first; j < end; j++) {
        double x = (double)j - middle;
        above += x * test->smoothed[j];
        below += x * x;
    }
    return below > 0 ? above / below : 0;
}

dsc_range_rates dsc_range_test_rates(dsc_range_test *test) {
    dsc_range_rates rates = {NAN, NAN, NAN};
    int64_t lowest = 0;
    smooth(test);
    for (int64_t i = 1; i < test->count; i++)
        if (test->smoothed[i] < test->smoothed[lowest])
            lowest = i;
    const double fall = test->count > 0 ? test->smoothed[0] - test->smoothed[lowest] : 0;
    if (test->count < 3 || fall <= least_fall * fabs(test->smoothed[0]))
        return rates;
    const int64_t first =
        slope_steps(test) < lowest ? slope_steps(test) : lowest; /* fewer steps are mostly noise */
    int64_t steepest = first;
    for (int64_t i = first; i <= lowest; i++)
        if (slope(test, i) < slope(test, steepest))
            steepest = i;
    rates.steepest = test->lr[steepest];
    rates.lowest = test->lr[lowest];
    int64_t last = test->count - 1; /* the last step at which the loss is still low */
    while (test->smoothed[last] > test->smoothed[lowest] + rise * fall)
        last--;
    if (last + 1 < test->count)
        rates.rises = test->lr[last + 1];
    else if (test->exploded && test->count < test->planned)
        rates.rises = test->lr[test->count]; /* from a low loss to one that is not finite */
    return rates;
}
