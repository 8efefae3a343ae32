/* The median rule, on the evaluations in the runs' metrics. */
#include "cli/sweep_rule.h"
#include "cli/runlog.h"
#include "cli/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_OTHERS = 3, MAX_EPOCHS = 1000000 };

void dsc_sweep_curve_free(dsc_sweep_curve *curve) {
    dsc_cli_free(&curve->best);
    curve->epochs = 0;
}

/* Whole epochs done at an evaluation; 0 where the row does not say it. */
static int64_t epochs_of(const double *row) {
    double epoch = row[DSC_RUNLOG_EPOCH] + 1e-6;
    return epoch >= 1 && epoch <= MAX_EPOCHS ? (int64_t)epoch : 0;
}

/* best[e] is NaN before the first evaluation. */
static dsc_status fill(dsc_sweep_curve *curve, const dsc_runlog_table *evals) {
    const int64_t top1 = dsc_runlog_column(evals, "top1");
    double best = NAN;
    int64_t last = 0;
    for (int64_t i = 0; i < evals->rows; i++)
        if (epochs_of(evals->values + i * evals->columns) > last)
            last = epochs_of(evals->values + i * evals->columns);
    DSC_CLI_TRY(dsc_cli_alloc(last, sizeof *curve->best, &curve->best));
    for (int64_t i = 0; i < evals->rows; i++) {
        const double *row = evals->values + i * evals->columns;
        const int64_t epochs = epochs_of(row);
        const double value = curve->by_loss ? -dsc_runlog_loss(evals, row) : 100 * row[top1];
        if (epochs == 0 || !isfinite(value))
            continue;
        while (curve->epochs < epochs)
            curve->best[curve->epochs++] = best; /* epochs without an evaluation */
        best = fmax(best, value);                /* the other one where one is NaN */
        curve->best[curve->epochs - 1] = best;
    }
    return DSC_OK;
}

dsc_status dsc_sweep_curve_read(const char *directory, dsc_sweep_curve *curve, char *text) {
    dsc_runlog *log = NULL;
    dsc_sweep_curve_free(curve);
    text[0] = '\0';
    dsc_status status = dsc_runlog_read(directory, &log);
    if (status == DSC_E_NOT_FOUND || status == DSC_E_FORMAT)
        return DSC_OK; /* it has not begun, or was stopped before its first line was whole */
    DSC_CLI_TRY(status);
    memcpy(text, log->status, sizeof log->status);
    curve->by_loss = log->by_loss;
    status = fill(curve, &log->tables[DSC_RUNLOG_EVALS]);
    dsc_runlog_destroy(&log);
    return status;
}

const char *dsc_sweep_best_text(const dsc_sweep_curve *curve, double value, char *text, size_t size) {
    if (curve->by_loss)
        snprintf(text, size, "loss %.4f", -value);
    else
        snprintf(text, size, "top-1 %.2f %%", value);
    return text;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int dsc_sweep_rule(const dsc_sweep_curve *curves, int64_t count, int64_t number, int64_t grace,
                   double *median) {
    const dsc_sweep_curve *own = &curves[number];
    const int64_t epoch = own->epochs;
    double *others = NULL;
    int64_t found = 0;
    if (epoch < 1 || epoch < grace || epoch >= own->planned || !isfinite(own->best[epoch - 1]) ||
        dsc_cli_alloc(count, sizeof *others, &others) != DSC_OK)
        return 0;
    for (int64_t i = 0; i < count; i++)
        if (i != number && curves[i].epochs >= epoch && isfinite(curves[i].best[epoch - 1]))
            others[found++] = curves[i].best[epoch - 1];
    qsort(others, (size_t)found, sizeof *others, compare);
    *median = found > 0 ? (others[(found - 1) / 2] + others[found / 2]) / 2 : NAN;
    dsc_cli_free(&others);
    return found >= LEAST_OTHERS && own->best[epoch - 1] < *median;
}
