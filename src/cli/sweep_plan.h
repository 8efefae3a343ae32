/* The contents of a sweep file: the runs of a sweep, each with its name and its options. */
#ifndef DSC_CLI_SWEEP_PLAN_H
#define DSC_CLI_SWEEP_PLAN_H

#include "descent/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct dsc_sweep_run {
    char *name;   /* the options that vary: "lr=0.1,seed=2"; usable as a file's name */
    char *config; /* its options as lines `key = value`, by key, as --config reads them */
    char *lined;  /* the same, but each on its line of the sweep file, for messages */
} dsc_sweep_run;

typedef struct dsc_sweep_plan {
    dsc_sweep_run *runs; /* no two of the same name */
    int64_t count;
    int64_t repeated; /* runs left out because the same options were drawn before */
} dsc_sweep_plan;

/* Reads the text of a sweep file: `length` bytes and a 0 after them; changes it. `file` is its name in messages. Keys
 * and values are not compared with any table of options. DSC_E_INVALID names file and line. The caller frees *out. */
dsc_status dsc_sweep_plan_parse(const char *file, char *text, size_t length,
                                dsc_sweep_plan *out) DSC_MUST_CHECK;
void dsc_sweep_plan_free(dsc_sweep_plan *plan);

#endif
