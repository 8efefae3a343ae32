/* How long the phases of a step take.
 *
 * On a host device they are measured with the host's clock: all time since the last mark belongs to the phase
 * that is marked, except the time that layers spend in K-FAC during a backward pass, which belongs to the phase of
 * the factors. On other devices time stamps in the queue mark the ends of phases; there the products of the factors
 * count as part of the pass in which they run. */
#ifndef DSC_TRAIN_PHASES_H
#define DSC_TRAIN_PHASES_H

#include "descent/kfac.h"
#include "descent/trainer.h"

/* Time stamps of a step: one at its start, one at the end of each phase. */
enum { DSC_STAMP_START = DSC_PHASE_COUNT, DSC_STAMP_COUNT };

/* Converts time stamps of a device to times of the host by adding `offset`, the smallest difference seen between the
 * moment at which the host noticed the end of a step and the last stamp of that step. */
typedef struct dsc_device_clock {
    double offset;  /* seconds; grows slowly, because clocks drift */
    double updated; /* host clock at the last step; 0: none yet */
    double end;     /* of the last span, which later ones do not overlap */
} dsc_device_clock;

typedef struct dsc_phases {
    int is_host;       /* of the device */
    int timed;         /* 1: time stamps are taken; they cost a little time of the device */
    dsc_tensor stamps; /* I64[DSC_STAMP_COUNT] on the device, nanoseconds */
    double *ms;        /* [DSC_PHASE_COUNT] of the step under way, for phases that the host measures */
    double last;       /* host clock at the last mark */
    double in_kfac;    /* seconds spent in K-FAC since then */
    int traced;        /* 1: phases are spans of a trace (base/trace.h) */
    int64_t step;      /* number of the step under way */
    dsc_device_clock device;
} dsc_phases;

/* Step number `step` begins; its times go to `ms`, which must be 0. */
void dsc_phases_begin(dsc_phases *p, int64_t step, double *ms);
/* The start of the step's work in the queue. */
dsc_status dsc_phases_start(dsc_phases *p, dsc_queue *queue) DSC_MUST_CHECK;
/* The end of `phase` in the queue. */
dsc_status dsc_phases_mark(dsc_phases *p, dsc_queue *queue, dsc_phase phase) DSC_MUST_CHECK;
/* The end of `phase`, on host devices only. */
void dsc_phases_mark_host(dsc_phases *p, dsc_phase phase);
/* The host's own work since the last mark belongs to `phase`, on every device. */
void dsc_phases_host_work(dsc_phases *p, dsc_phase phase);
/* Work of K-FAC in the middle of another phase, which began at `began` and ends now. */
void dsc_phases_in_kfac(dsc_phases *p, double began);
/* On other devices than the host: a decomposition, which began at `began` and ends now. */
void dsc_phases_decomposed(dsc_phases *p, double began);
/* Adds the differences of a finished step's stamps to its times. */
void dsc_phases_read_stamps(const int64_t *stamps, int with_kfac, double *ms);
/* Adds the phases of a finished step, which the host has noticed at `noticed`, to the trace. */
void dsc_phases_trace_stamps(dsc_phases *p, int64_t step, const int64_t *stamps, int with_kfac,
                             double noticed, const double *ms);

#endif
