/* Which engines (algorithms of cuDNN) the convolutions of a GPU use: the same on all ranks, and after a
 * resumption the same as before. Calls around the creation of a rank's convolutions:
 *
 *   dsc_engines_begin            takes over the engines of the checkpoint that the run continues from
 *   [all but rank 0: dsc_engines_share, then create]     when the device tunes and there are several ranks
 *   [rank 0: create, then dsc_engines_share]             likewise
 */
#ifndef DSC_TRAIN_ENGINES_H
#define DSC_TRAIN_ENGINES_H

#include "train/trainer_internal.h"

/* Their key in the metadata of a state file. */
#define DSC_ENGINES_KEY "engines"

/* *rank0_first: rank 0 tunes first and shares its choices. Collective: when one rank fails, all do. */
dsc_status dsc_engines_begin(dsc_trainer *t, int *rank0_first) DSC_MUST_CHECK;
/* Rank 0 sends its choices to the other ranks, which use them from then on. `status`: rank 0's status so far;
 * if it is a failure, the call fails on all ranks. Collective. */
dsc_status dsc_engines_share(dsc_trainer *t, dsc_status status) DSC_MUST_CHECK;
/* The choices of the device so far, in new memory; "" if there are none. Not collective. */
dsc_status dsc_engines_text(dsc_device *device, char **out) DSC_MUST_CHECK;

#endif
