/* The options of a resumed run compared with those of the saved run. */
#ifndef DSC_TRAIN_RESUME_NOTE_H
#define DSC_TRAIN_RESUME_NOTE_H

#include "train/settings.h"

/* Reads the file `config` that the saved run wrote into the directory of its checkpoint and describes which
 * options have another value now, except those that a continuation may change (DSC_OPTION_MAY_CHANGE). NULL
 * when there is nothing to report or no such file; the caller frees the text with free(). */
char *dsc_resume_note(const dsc_settings *now, const char *directory);

#endif
