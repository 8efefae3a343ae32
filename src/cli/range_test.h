/* The result of a rate range test: the loss at rates that rose from step to step, and the rates that follow from it. */
#ifndef DSC_CLI_RANGE_TEST_H
#define DSC_CLI_RANGE_TEST_H

#include "descent/status.h"

#include <stdint.h>

/* loss[i] is the loss of step i, which uses the rate lr[i]; it is that of the model before the step. smoothed[i] is the
 * mean of the losses around step i. */
typedef struct dsc_range_test {
    int64_t planned, count;       /* steps asked for; steps done */
    double *lr, *loss, *smoothed; /* [planned] */
    int exploded;                 /* 1: the loss exploded, or was not finite in the step after the last */
    double factor;                /* from one rate to the next */
} dsc_range_test;

/* Rates that the curve shows; NaN where it does not. */
typedef struct dsc_range_rates {
    double steepest; /* where the smoothed loss falls fastest over the logarithm of the rate */
    double lowest;   /* where it is lowest */
    double rises;    /* from here on it rises again */
} dsc_range_rates;

/* Allocates the arrays and sets the rates, from `low` to `high`. At least 2 steps. */
dsc_status dsc_range_test_create(double low, double high, int64_t steps, dsc_range_test *out) DSC_MUST_CHECK;
void dsc_range_test_free(dsc_range_test *test);
/* Adds the loss of the next step. Returns 1 when the test is over: the loss exploded, or all steps are done. */
int dsc_range_test_add(dsc_range_test *test, double loss);
/* Computes the smoothed losses and the rates. */
dsc_range_rates dsc_range_test_rates(dsc_range_test *test);

#endif
