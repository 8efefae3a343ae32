/* Recording and replaying the device work of a training step (on a GPU: CUDA graphs).
 *
 * The work of a step is one stretch, or a few stretches between points at which the host must act: new input
 * for the next micro-batch, an exchange that goes through the host, the decompositions of K-FAC. Such a
 * stretch is a segment. The first time it occurs it simply runs, so that libraries can make their plans; the
 * second time it is recorded; from then on it is replayed. On devices that cannot record, every segment runs.
 *
 *   dsc_recorder_begin(recorder, &segment, &run)
 *   if (run) { ... put the work into the queue ... }
 *   dsc_recorder_end(recorder)
 *
 * A begin while a segment is open continues that segment. */
#ifndef DSC_TRAIN_RECORDER_H
#define DSC_TRAIN_RECORDER_H

#include "descent/comm.h"

typedef struct dsc_recorder dsc_recorder;

/* Where in a step a segment begins. */
typedef enum dsc_segment_start {
    DSC_SEGMENT_FIRST_BATCH, /* the first, or only, micro-batch */
    DSC_SEGMENT_NEXT_BATCH,
    DSC_SEGMENT_EXCHANGE,
    DSC_SEGMENT_UPDATE
} dsc_segment_start;

/* What distinguishes one recording from another: a recording may be replayed in every step in which all of
 * this is the same. */
typedef struct dsc_segment {
    dsc_segment_start start;
    int factors;            /* K-FAC updates its factors in this step */
    int decomposes;         /* K-FAC decomposes them in this step, which divides its work in two */
    int recipe;             /* dsc_kfac_recipe: which kind of preconditioning is in force */
    int tries;              /* a step of K-FAC is tried (damping.h), so that the update is not recorded */
    int timed;              /* the work includes time stamps */
    int64_t generation;     /* dsc_kfac_generation: with another one the segment is recorded anew */
    const void *x, *labels; /* memory of the batch, for segments that begin with one; else NULL */
} dsc_segment;

/* with_exchange: 1 when the exchange between ranks can be recorded, too; otherwise only the segments of
 * micro-batches are. Both objects stay the caller's and must outlive the recorder. */
dsc_status dsc_recorder_create(dsc_comm *comm, dsc_queue *queue, int with_exchange,
                               dsc_recorder **out) DSC_MUST_CHECK;
void dsc_recorder_destroy(dsc_recorder **recorder);
/* 1 when a whole step with one micro-batch can be a single segment. */
int dsc_recorder_takes_whole_step(const dsc_recorder *recorder);

/* *run = 1: the caller puts the work into the queue, where it runs or is recorded; 0: the caller leaves it
 * out, because dsc_recorder_end replays it. */
dsc_status dsc_recorder_begin(dsc_recorder *r, const dsc_segment *segment, int *run) DSC_MUST_CHECK;
dsc_status dsc_recorder_end(dsc_recorder *r) DSC_MUST_CHECK;
/* After a failure between the two: drops what was recorded, so that the queue can be used again. */
void dsc_recorder_cancel(dsc_recorder *r);

#endif
