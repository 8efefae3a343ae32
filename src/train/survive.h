/* Going on without ranks that were lost (dsc_train_options.on_peer_loss).
 *
 * Every rank that is left keeps its own values z, momentum and K-FAC, and starts anew with push-sum weight 1
 * among the others: what was in flight and what the lost ranks had is gone, and the mass is the number of
 * ranks again. */
#ifndef DSC_TRAIN_SURVIVE_H
#define DSC_TRAIN_SURVIVE_H

#include "train/trainer_internal.h"

/* Where ranks may be lost: checks the communicator and limits its waits. Not collective. */
dsc_status dsc_survive_prepare(dsc_trainer *t) DSC_MUST_CHECK;
/* After DSC_E_LOST, at any moment of the loop: all ranks that are left, on a communicator of their own, stand
 * at the same step, that of the one who was furthest. DSC_E_LOST: another one was lost meanwhile, call it
 * again. Any other failure is this rank's end. Collective among those left; blocks. */
dsc_status dsc_survive(dsc_trainer *t) DSC_MUST_CHECK;

#endif
