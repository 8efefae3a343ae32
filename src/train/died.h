/* The end of a run whose process was killed. */
#ifndef DSC_TRAIN_DIED_H
#define DSC_TRAIN_DIED_H

#include "descent/status.h"

/* Appends an `end` line of status "died" to DIRECTORY/metrics.jsonl, unless the last run in it has an end or
 * there is none. The caller holds the lock of the directory. */
dsc_status dsc_died_complete(const char *directory) DSC_MUST_CHECK;

#endif
