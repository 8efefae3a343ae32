/* Which engines the convolutions of a GPU use: the same on all ranks, and in a run that goes on the same as
 * before. Around the creation of a rank's convolutions:
 *
 *   dsc_engines_begin            takes over the engines of the checkpoint that the run goes on from
 *   [all but rank 0: dsc_engines_share, then create]     when the device tunes and there are several ranks
 *   [rank 0: create, then dsc_engines_share]             likewise
 */
#ifndef DSC_TRAIN_ENGINES_H
#define DSC_TRAIN_ENGINES_H

#include "train/trainer_internal.h"

/* Where a state file's metadata keeps them. */
#define DSC_ENGINES_KEY "engines"

/* *rank0_first: rank 0 tunes first and shares its choices. Collective: when one rank fails, all do. */
dsc_status dsc_engines_begin(dsc_trainer *t, int *rank0_first) DSC_MUST_CHECK;
/* Rank 0 hands what it has chosen to the others, which use it from then on. `status`: rank 0's so far; its
 * failure fails all. Collective. */
dsc_status dsc_engines_share(dsc_trainer *t, dsc_status status) DSC_MUST_CHECK;
/* What the device has chosen so far, in new memory; "" for nothing. Not collective. */
dsc_status dsc_engines_text(dsc_device *device, char **out) DSC_MUST_CHECK;

#endif
