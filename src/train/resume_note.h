/* The options of a resumed run compared with those of the saved run. */
#ifndef DSC_TRAIN_RESUME_NOTE_H
#define DSC_TRAIN_RESUME_NOTE_H

#include "train/settings.h"

/* Reads the file `config` that the saved run wrote into the directory of its checkpoint. DSC_E_INVALID names an
 * option that must stay as it was (DSC_OPTION_FIXED) but has another value now. *note describes the others that
 * differ, except those that a continuation may change (DSC_OPTION_MAY_CHANGE): NULL when there is nothing to
 * report or no such file; the caller frees it with free(). */
dsc_status dsc_resume_compare(const dsc_settings *now, const char *directory, char **note) DSC_MUST_CHECK;

#endif
