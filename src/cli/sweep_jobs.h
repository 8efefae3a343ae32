/* The trainings of a sweep: several processes of `descent train` at a time. */
#ifndef DSC_CLI_SWEEP_JOBS_H
#define DSC_CLI_SWEEP_JOBS_H

#include "cli/sweep_plan.h"
#include "cli/sweep_rule.h"

#include <sys/types.h>

typedef enum dsc_sweep_state {
    DSC_SWEEP_WAITING,
    DSC_SWEEP_RUNNING,
    DSC_SWEEP_DONE,
    DSC_SWEEP_STOPPED,     /* early, by the median rule */
    DSC_SWEEP_INTERRUPTED, /* with the sweep, by a signal */
    DSC_SWEEP_FAILED
} dsc_sweep_state;

/* A process, in one of the places for runs at the same time. */
typedef struct dsc_sweep_job {
    pid_t process; /* 0: the place is free */
    int64_t run;
    double started, next_read; /* when its metrics are read next */
    double median;             /* that it fell below; NaN: it was not stopped early */
    double asked;              /* when it was asked to stop; 0: it was not */
} dsc_sweep_job;

typedef struct dsc_sweep {
    const dsc_sweep_plan *plan;
    const char *out;       /* directory */
    const char *launcher;  /* words before the program, "" for none */
    int jobs;              /* at a time */
    int threads;           /* of each rank of each; 0: as the runs' own options say */
    int gpus;              /* that the runs are divided among; 0: none, or left alone */
    const char *gpu_names; /* CUDA_VISIBLE_DEVICES of the sweep, "" where it is not set */
    int early;             /* 1: the median rule stops runs */
    int64_t grace;         /* epochs that every run gets */

    /* One per run. */
    dsc_sweep_state *states;
    dsc_sweep_curve *curves;

    dsc_sweep_job *places; /* [jobs] */
    int64_t next;          /* the first run that may be waiting */
    int running;
    double stopping; /* when a signal asked to stop; 0: none did */
} dsc_sweep;

/* The path of a run's directory, with an ending for the files beside it: "", ".conf", ".log", ".stopped". Returns
 * `path`. */
const char *dsc_sweep_path(const dsc_sweep *sweep, int64_t run, const char *ending, char *path, size_t size);
/* Runs all that wait, and returns when no process is left. SIGINT, SIGTERM and SIGUSR1 stop them, each with a
 * checkpoint, and start no more. */
dsc_status dsc_sweep_run_all(dsc_sweep *sweep) DSC_MUST_CHECK;

#endif
