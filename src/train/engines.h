/* Which engines the convolutions of a GPU take: all ranks the same, and a run that goes on those it had. */
#ifndef DSC_TRAIN_ENGINES_H
#define DSC_TRAIN_ENGINES_H

#include "train/trainer.h"

/* Where a state file's metadata keeps them. */
#define DSC_ENGINES_KEY "engines"

/* Calls `make`, by which a rank makes its convolutions. They take the engines of the checkpoint that the run
 * goes on from and, on a device that tunes, what rank 0 has found to be fastest. Collective: when one rank
 * fails, all do. */
dsc_status dsc_engines_make(dsc_trainer *t, dsc_status (*make)(dsc_trainer *t)) DSC_MUST_CHECK;
/* What the device has chosen so far, in new memory; "" for nothing. Not collective. */
dsc_status dsc_engines_text(dsc_device *device, char **out) DSC_MUST_CHECK;

#endif
