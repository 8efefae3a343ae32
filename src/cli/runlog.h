/* Reads the metrics.jsonl of a run: what `descent report` and the plot at the end of a training show. */
#ifndef DSC_CLI_RUNLOG_H
#define DSC_CLI_RUNLOG_H

#include "descent/status.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct dsc_runlog {
    char *name;              /* of the run: its directory */
    char model[64];          /* "" when the file does not say */
    int64_t ranks;           /* 0: not said */
    int64_t epochs;          /* done in full */
    int64_t steps;           /* done */
    double best_top1;        /* in percent; NaN: never evaluated */
    double loss;             /* of the last evaluation; before the first, the last training loss; NaN: none */
    int loss_is_eval;        /* 1: it is that of an evaluation */
    double images_per_s;     /* the last that was written; NaN: none */
    double seconds;          /* since the run began; NaN: none */
    double *eval_epoch;      /* epochs done at each evaluation, rising */
    double *eval_top1;       /* in percent */
    int64_t evals, capacity; /* used, and available, in both arrays */
    char alarms[4][512];     /* messages of alarms, each once; later ones are left out */
    int alarm_count;
    int64_t lines, bad_lines; /* read, and skipped */
    char first_bad[512];      /* "FILE:LINE: why" of the first line skipped */
} dsc_runlog;

/* Reads `run`, a directory with a metrics.jsonl or such a file. Lines that are not what they should be are
 * counted in bad_lines and skipped; an incomplete last line is not counted (the run is still writing it).
 * DSC_E_NOT_FOUND without a file, DSC_E_FORMAT when not one line can be read. */
dsc_status dsc_runlog_read(const char *run, dsc_runlog **out) DSC_MUST_CHECK;
/* The same from a stream, which stays the caller's; `file` is its name in messages, `name` that of the run.
 */
dsc_status dsc_runlog_read_stream(const char *name, const char *file, FILE *stream,
                                  dsc_runlog **out) DSC_MUST_CHECK;
void dsc_runlog_destroy(dsc_runlog **log);

/* Plots top-1 accuracy over epochs, one curve per run, to `out`: a terminal or a file. */
dsc_status dsc_runlog_plot(FILE *out, dsc_runlog *const *logs, int64_t count) DSC_MUST_CHECK;

#endif
