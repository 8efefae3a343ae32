/* Continuing without ranks that were lost (dsc_train_options.on_peer_loss).
 *
 * Every remaining rank keeps its own values z, momentum and K-FAC, and starts again with push-sum weight 1.
 * The values of the lost ranks and the messages in flight are gone, and the sum of the weights is the number
 * of ranks again. */
#ifndef DSC_TRAIN_SURVIVE_H
#define DSC_TRAIN_SURVIVE_H

#include "train/trainer_internal.h"

/* Where ranks may be lost: checks the communicator and limits its waits. Not collective. */
dsc_status dsc_survive_prepare(dsc_trainer *t) DSC_MUST_CHECK;
/* After DSC_E_LOST, at any point of the loop: puts the remaining ranks on a new communicator and at the same
 * step, that of the furthest rank. DSC_E_LOST: another rank was lost meanwhile, call it again. After any
 * other failure this rank cannot continue. Collective among the remaining ranks; blocks. */
dsc_status dsc_survive(dsc_trainer *t) DSC_MUST_CHECK;

#endif
