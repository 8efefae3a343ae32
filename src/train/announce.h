/* What a run is, told at its start. */
#ifndef DSC_TRAIN_ANNOUNCE_H
#define DSC_TRAIN_ANNOUNCE_H

#include "train/trainer_internal.h"

/* Sends the progress events of the start: a DSC_EVENT_START for each line "label: text" of the description,
 * then notes. `resumed`: the checkpoint, "" for none. */
void dsc_announce(const dsc_trainer *t, const char *resumed);

#endif
