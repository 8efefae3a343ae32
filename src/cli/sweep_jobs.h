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

/* A place for a run; as many runs as there are places run at the same time. */
typedef struct dsc_sweep_job {
    pid_t process; /* 0: the place is free */
    int64_t run;
    double started, next_read; /* when its metrics are read next */
    double median;             /* the median it fell below; NaN: it was not stopped early */
    double asked;              /* when it was asked to stop; 0: it was not */
} dsc_sweep_job;

typedef struct dsc_sweep {
    const dsc_sweep_plan *plan;
    const char *out;       /* directory */
    const char *launcher;  /* words before the program, "" for none */
    int jobs;              /* runs at a time */
    int threads;           /* threads of each rank of a run; 0: as the run's own options say */
    int gpus;              /* GPUs to divide among the runs; 0: none, or the sweep does not assign them */
    const char *gpu_names; /* CUDA_VISIBLE_DEVICES of the sweep, "" where it is not set */
    int early;             /* 1: the median rule stops runs */
    int64_t grace;         /* epochs before which no run is stopped early */

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
/* Runs all waiting runs, and returns when no process is left. After SIGINT, SIGTERM or SIGUSR1 the processes stop, each
 * with a checkpoint, and no more are started. */
dsc_status dsc_sweep_run_all(dsc_sweep *sweep) DSC_MUST_CHECK;

#endif
