/* One run at a time in a directory. */
#ifndef DSC_TRAIN_LOCK_H
#define DSC_TRAIN_LOCK_H

#include "descent/status.h"

typedef struct dsc_lock dsc_lock;

/* Makes the directory if need be and locks it for this process; DSC_E_INVALID when another one has it. A file
 * system without locks is fine: then nothing is kept apart. Within one process it may be taken again, and the
 * first release ends it. */
dsc_status dsc_lock_take(const char *directory, dsc_lock **out) DSC_MUST_CHECK;
/* Removes the directory, too, if taking the lock has made it and nothing was put into it. Accepts NULL and
 * *lock == NULL. */
void dsc_lock_release(dsc_lock **lock);

#endif
