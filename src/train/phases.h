/* How long the phases of a step take.
 *
 * On a host device they are measured with the host's clock: all time since the last mark belongs to the phase
 * that is marked, except the time that layers spend in K-FAC during a backward pass, which K-FAC measures
 * itself. On other devices time stamps in the queue mark the ends of phases; there the products of the
 * factors count as part of the pass in which they run. */
#ifndef DSC_TRAIN_PHASES_H
#define DSC_TRAIN_PHASES_H

#include "descent/kfac.h"
#include "descent/trainer.h"

/* Time stamps of a step: one at its start, one at the end of each phase. */
enum { DSC_STAMP_START = DSC_PHASE_COUNT, DSC_STAMP_COUNT };

typedef struct dsc_phases {
    int is_host;       /* of the device */
    int timed;         /* 1: time stamps are taken; they cost a little time of the device */
    dsc_tensor stamps; /* I64[DSC_STAMP_COUNT] on the device, nanoseconds */
    double *ms;        /* [DSC_PHASE_COUNT] of the step under way, as far as the host measures them */
    double last;       /* host clock at the last mark */
    double in_kfac;    /* seconds spent in K-FAC since then */
} dsc_phases;

/* A step begins; its times go to `ms`, which must be 0. */
void dsc_phases_begin(dsc_phases *p, double *ms);
/* The start of the step's work in the queue. */
dsc_status dsc_phases_start(dsc_phases *p, dsc_queue *queue) DSC_MUST_CHECK;
/* The end of `phase` in the queue. */
dsc_status dsc_phases_mark(dsc_phases *p, dsc_queue *queue, dsc_phase phase) DSC_MUST_CHECK;
/* The end of `phase`, on host devices only. */
void dsc_phases_mark_host(dsc_phases *p, dsc_phase phase);
/* The host's own work since the last mark belongs to `phase`, on every device. */
void dsc_phases_host_work(dsc_phases *p, dsc_phase phase);
/* On host devices: the phases that K-FAC has measured itself. */
void dsc_phases_add_kfac(dsc_phases *p, const dsc_kfac *kfac);
/* Adds the differences of a finished step's stamps to its times. */
void dsc_phases_read_stamps(const int64_t *stamps, int with_kfac, double *ms);

#endif
