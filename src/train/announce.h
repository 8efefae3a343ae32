/* Describes a run in progress events when it starts. */
#ifndef DSC_TRAIN_ANNOUNCE_H
#define DSC_TRAIN_ANNOUNCE_H

#include "train/trainer_internal.h"

/* Sends the progress events of the start: a DSC_EVENT_START for each line "label: text" of the description,
 * then the notes. `resumed` is the checkpoint that the run continues from, "" for none. */
void dsc_announce(const dsc_trainer *t, const char *resumed);

#endif
