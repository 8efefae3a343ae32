/* The results of a step. On a GPU the host does not wait for them: they are copied to the host at the end of
 * the step, and read when the next step is in the queue. On host devices they are read at once. */
#ifndef DSC_TRAIN_RESULTS_H
#define DSC_TRAIN_RESULTS_H

#include "descent/trainer.h"
#include "train/phases.h"

typedef struct dsc_results dsc_results;

/* Indices of the numbers that a step leaves on the device, F64 each. Those before DSC_NUMBER_SUMMED are summed
 * over the ranks where a step is collective. */
typedef enum dsc_number {
    DSC_NUMBER_LOSS, /* sum over the rows */
    DSC_NUMBER_TOP1,
    DSC_NUMBER_TOP5,
    DSC_NUMBER_ROWS,
    DSC_NUMBER_STOP,   /* ranks that were asked to stop */
    DSC_NUMBER_FAILED, /* ranks that could not write their metrics */
    DSC_NUMBER_BAD,    /* images of the batch that could not be read, and were replaced */
    DSC_NUMBER_SUMMED,
    DSC_NUMBER_NU = DSC_NUMBER_SUMMED, /* K-FAC's clip; NaN without K-FAC */
    /* 0: updated; 1: this update was left out, because gradients overflowed; 2: this update and all later
     * ones are left out, because a number was not finite. */
    DSC_NUMBER_SKIP,
    DSC_NUMBER_SCALE, /* loss scale of fp16; 1 for other types */
    DSC_NUMBER_COUNT
} dsc_number;

/* A step that has ended: its report, and values that only the trainer reads. */
typedef struct dsc_outcome {
    dsc_step_report report;
    double loss_sum, rows;
    int64_t bad; /* images that were replaced */
    int skip;    /* as above */
    int with_stamps;
    int64_t stamps[DSC_STAMP_COUNT];
} dsc_outcome;

dsc_status dsc_results_create(dsc_queue *queue, dsc_results **out) DSC_MUST_CHECK;
void dsc_results_destroy(dsc_results **results);

/* `count` numbers from `first` on, on the device. */
dsc_tensor dsc_results_numbers(const dsc_results *r, dsc_number first, int64_t count);
/* Time stamps, for dsc_phases. */
dsc_tensor dsc_results_stamps(const dsc_results *r);

/* A step begins. Returns its report, zeroed, for the caller to fill in what the host knows; it stays there
 * until the step is collected. with_stamps: the device leaves time stamps in it. */
dsc_step_report *dsc_results_begin(dsc_results *r, int with_stamps);
/* The step's work is all in the queue. */
dsc_status dsc_results_end(dsc_results *r, dsc_queue *queue) DSC_MUST_CHECK;
/* pending: the number of steps that have ended and were not collected. lag: how many of them a caller may leave
 * uncollected: 0 on host devices, 1 on others. */
int dsc_results_pending(const dsc_results *r);
int dsc_results_lag(const dsc_results *r);
/* The oldest pending step; waits for it. with_kfac: K-FAC's phases are among its time stamps. */
dsc_status dsc_results_collect(dsc_results *r, int with_kfac, dsc_outcome *out) DSC_MUST_CHECK;

#endif
