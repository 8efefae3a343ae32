/* Which runs of a sweep are stopped early. */
#ifndef DSC_CLI_SWEEP_RULE_H
#define DSC_CLI_SWEEP_RULE_H

#include "descent/status.h"

#include <stddef.h>
#include <stdint.h>

/* The curve of a run: the best evaluation up to each epoch, as top-1 accuracy in percent or, for models of text and
 * pixels, as the loss with its sign reversed. Higher is better. */
typedef struct dsc_sweep_curve {
    double *best;    /* [epochs]: best[e] after e + 1 epochs */
    int64_t epochs;  /* up to its last evaluation */
    int64_t planned; /* epochs of the whole run */
    int by_loss;     /* 1: `best` is the negative loss */
} dsc_sweep_curve;

/* Reads the evaluations of the run in `directory`; those known before are forgotten. Without a file of metrics there
 * are none. `status` (16 bytes) becomes that of dsc_runlog, "" when there is no run. */
dsc_status dsc_sweep_curve_read(const char *directory, dsc_sweep_curve *curve, char *status) DSC_MUST_CHECK;
void dsc_sweep_curve_free(dsc_sweep_curve *curve);

/* "top-1 90.12 %", or "loss 1.2345", for a value of the curve. Returns `text`. */
const char *dsc_sweep_best_text(const dsc_sweep_curve *curve, double value, char *text, size_t size);

/* The median rule: 1 when run `number` should be stopped, because after its last evaluated epoch its best is
 * below the median of the best that the other runs had after that epoch. Only from `grace` epochs on, when at least 3
 * other runs have reached that epoch, and when the run has epochs left. *median becomes that median. */
int dsc_sweep_rule(const dsc_sweep_curve *curves, int64_t count, int64_t number, int64_t grace,
                   double *median);

#endif
