/* Early stopping: a run ends before its last epoch when its evaluations reach a target (options.stop_at), or when
 * none of the last few was better than all before it (options.patience). Both depend on the state of the run
 * alone, so that ranks agree without a message, and a run that has ended so stays ended when it is resumed with
 * the same options. */
#ifndef DSC_TRAIN_EARLY_STOP_H
#define DSC_TRAIN_EARLY_STOP_H

#include "train/trainer_internal.h"

/* Why the run is at its end now; DSC_STOP_NONE: it is not, or for another reason than these. */
dsc_stop_reason dsc_early_stop(const dsc_trainer *t);
/* After an evaluation, whose results are in t->state: notes the time to the target, and reports a run that ends
 * here. */
void dsc_early_report(dsc_trainer *t);

#endif
