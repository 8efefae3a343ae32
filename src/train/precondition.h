/* K-FAC inside a training step: made with the trainer, told when the step begins, fed during backward, and
 * asked for preconditioned gradients before the update. Without K-FAC (trainer->kfac NULL) every call does
 * nothing. */
#ifndef DSC_TRAIN_PRECONDITION_H
#define DSC_TRAIN_PRECONDITION_H

#include "train/trainer.h"

/* Makes trainer->kfac when the options ask for it. Collective: when one rank fails, all do. */
dsc_status dsc_precondition_create(dsc_trainer *t) DSC_MUST_CHECK;
/* Collective. */
void dsc_precondition_destroy(dsc_trainer *t);

/* What the epoch schedules make of `base` at an epoch (a real number): a pure function, so nothing compounds.
 *   damping            base alpha^k, k the listed epochs that are not later
 *   both frequencies   the same with their own alpha and list, rounded to whole numbers, 1 at least
 *   diagonal blocks    1 before the end of their warm-up */
dsc_kfac_hyper dsc_precondition_hyper(const dsc_train_options *options, dsc_kfac_hyper base, double epoch);

/* The moments of a step, in this order. Collective in effect. */
dsc_status dsc_precondition_begin(dsc_trainer *t) DSC_MUST_CHECK;
/* After the forward pass of micro-batch `micro`, before its loss: with the sampled Fisher, on steps that move
 * the factors, a backward pass for labels drawn from the model's own output, its time told as that of
 * factors. Leaves the statistics of the loss as they were. */
dsc_status dsc_precondition_sample(dsc_trainer *t, int64_t micro) DSC_MUST_CHECK;
/* Lets a backward pass of the true labels hand layers to K-FAC, unless a sampled one has. */
void dsc_precondition_watch(const dsc_trainer *t, dsc_backward_options *backward);
/* The gradients, averaged before, become the preconditioned ones; fills in their phases of the report. */
dsc_status dsc_precondition_step(dsc_trainer *t) DSC_MUST_CHECK;

#endif
