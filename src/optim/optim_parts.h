/* Functions of optimisers that the training step needs in addition to descent/optim.h. */
#ifndef DSC_OPTIM_OPTIM_PARTS_H
#define DSC_OPTIM_OPTIM_PARTS_H

#include "descent/optim.h"

/* dsc_optim_step in two parts. `prepare` counts the step and uploads the numbers that differ from step to
 * step (learning rate, Adam's bias corrections); `apply` does the rest, and can be recorded and replayed. */
dsc_status dsc_optim_prepare(dsc_optim *optim, dsc_queue *queue, double lr) DSC_MUST_CHECK;
dsc_status dsc_optim_apply(dsc_optim *optim, dsc_queue *queue, const dsc_tensor *read) DSC_MUST_CHECK;

/* A flag on the device (one F64): while it is nonzero, a step leaves values and state as they are. Such a step
 * is counted all the same: the host computes Adam's bias corrections from the number of steps, and does not
 * wait for the device to learn whether a step was skipped. Owned by the optimiser. */
const dsc_tensor *dsc_optim_skip(const dsc_optim *optim);

#endif
