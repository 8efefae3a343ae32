/* The progress of a run: the numbers that a checkpoint holds besides tensors. */
#ifndef DSC_TRAIN_TRAIN_STATE_H
#define DSC_TRAIN_TRAIN_STATE_H

#include "descent/comm.h"

typedef struct dsc_train_state {
    int64_t step;                /* steps done */
    int64_t epoch, position;     /* the next sample to train on: epoch, and global samples of it done */
    double loss_sum, loss_rows;  /* of the epoch under way */
    double epoch_loss;           /* mean of the last whole epoch; negative: none */
    double val_loss, top1, top5; /* of the last evaluation; negative: none */
    int64_t evaluated_step;      /* the step of that evaluation; -1: none */
    double best_top1, best_loss; /* the highest accuracy, the lowest loss; negative: none */
    int64_t best_step;           /* -1: none */
    double seconds;              /* of wall-clock time so far */
    double loss_scale[2];        /* dsc_loss_scale_get's, when the state was saved */
    int64_t stale;               /* evaluations since the best one */
    double target_s;             /* `seconds` when the last evaluation reached options.stop_at; 0: none did */
    double damping_factor;       /* what adaptation multiplies K-FAC's damping by; 1: not adapted */
    /* Images of the epoch under way that could not be read, all ranks; with gossip as of the last
     * synchronisation. */
    int64_t bad_images;
    double ema_weight; /* of the sum of the weights over the steps (ema.h); 0: nothing was added */
    /* Of the last evaluation, for the average of the weights; negative: none. */
    double ema_loss, ema_top1, ema_top5;
} dsc_train_state;

void dsc_train_state_init(dsc_train_state *state);

#endif
