/* K-FAC's damping adapted by the ratio of actual to predicted reduction of the loss (Levenberg-Marquardt).
 *
 * In every options.kfac_damping_adapt-th step, after K-FAC has replaced the gradients by nu P and before the
 * optimiser uses them, the step -r nu P is tried on the parameters that K-FAC preconditions: the loss of the same
 * batch is computed again, and everything is put back. With the terms of dsc_kfac_step_terms,
 *
 *   ratio = (loss before - loss after) / (r terms[0] - r^2 terms[1] / 2)
 *
 * where r = min(1, lr / (1 - momentum)): under momentum, steps in a constant direction add up to lr / (1 - momentum)
 * times that direction. So the ratio does not depend on the accumulated momentum, on weight decay, or on parameters
 * that K-FAC does not precondition: for these the model predicts nothing. */
#ifndef DSC_TRAIN_DAMPING_H
#define DSC_TRAIN_DAMPING_H

#include "train/trainer_internal.h"

/* DSC_E_INVALID when the damping cannot be adapted with these options. */
dsc_status dsc_damping_check(const dsc_trainer *t) DSC_MUST_CHECK;
/* To be called after trainer->kfac was made. */
dsc_status dsc_damping_create(dsc_trainer *t) DSC_MUST_CHECK;
void dsc_damping_destroy(dsc_trainer *t);

/* The damping of this step, given that of the schedules. */
double dsc_damping_now(const dsc_trainer *t, double scheduled);
/* 1 when a step is tried in this step. */
int dsc_damping_is_due(const dsc_trainer *t);
/* Tries the step and adapts the damping from the next step on. `batch`: the batch of this step; NULL: its
 * micro-batches are read again. Waits for the device. Collective. */
dsc_status dsc_damping_adapt(dsc_trainer *t, const dsc_batch *batch, double lr) DSC_MUST_CHECK;

/* The rule: the damping after a step whose loss fell by `actual` instead of `predicted`, `steps` steps after the
 * last change. With w = max(0.95^steps, 1/4): times w when the ratio is above 3/4, divided by w when it is below
 * 1/4 or not a number, and unchanged otherwise or when no change was predicted. Always within the bounds. */
double dsc_damping_next(double damping, double actual, double predicted, int64_t steps,
                        const double bounds[2]);

#endif
