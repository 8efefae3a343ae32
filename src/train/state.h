/* Where a run stands: what a checkpoint holds besides tensors; and what a step reports. */
#ifndef DSC_TRAIN_STATE_H
#define DSC_TRAIN_STATE_H

#include "descent/comm.h"

/* Phases of a step, in the order of the metrics. */
#define DSC_PHASE_LIST(X)                                                                                    \
    X(DSC_PHASE_DATA, "data")                                                                                \
    X(DSC_PHASE_FORWARD, "forward")                                                                          \
    X(DSC_PHASE_BACKWARD, "backward")                                                                        \
    X(DSC_PHASE_EXCHANGE, "exchange")                                                                        \
    X(DSC_PHASE_FACTOR, "factor")                                                                            \
    X(DSC_PHASE_DECOMPOSE, "decompose")                                                                      \
    X(DSC_PHASE_PRECONDITION, "precondition")                                                                \
    X(DSC_PHASE_UPDATE, "update")

typedef enum dsc_phase {
#define DSC_PHASE_ENUM(phase, text) phase,
    DSC_PHASE_LIST(DSC_PHASE_ENUM)
#undef DSC_PHASE_ENUM
        DSC_PHASE_COUNT
} dsc_phase;

typedef struct dsc_step_report {
    int64_t step, epoch; /* steps done with this one; the epoch it belongs to */
    double time;         /* of wall-clock time so far, at its end */
    double loss, lr, seconds;
    double ms[DSC_PHASE_COUNT];
    uint64_t bytes[DSC_TRAFFIC_COUNT]; /* sent by this rank in the step */
    int stop;                          /* some rank asks to end */
    int failed;                        /* some rank could not write its metrics */
    double nu;                         /* of K-FAC's clip; NaN without K-FAC */
    double loss_scale;                 /* 1 unless gradients are of fp16 */
    int skipped;                       /* gradients overflowed: nothing was updated */
    int decomposed;                    /* K-FAC decomposed its factors */
} dsc_step_report;

typedef struct dsc_train_state {
    int64_t step;                /* steps done */
    int64_t epoch, position;     /* the next sample to train on: epoch, and global samples of it done */
    double loss_sum, loss_rows;  /* of the epoch under way */
    double epoch_loss;           /* mean of the last whole epoch; negative: none */
    double val_loss, top1, top5; /* of the last evaluation; negative: none */
    int64_t evaluated_step;      /* when it was; -1: never */
    double best_top1;            /* negative: none */
    int64_t best_step;           /* -1: none */
    double seconds;              /* of wall-clock time so far */
    double loss_scale[2];        /* dsc_stepper_get_scale's, when the state was saved */
} dsc_train_state;

void dsc_train_state_init(dsc_train_state *state);

#endif
