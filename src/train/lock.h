/* A lock that lets one run at a time write into a directory. */
#ifndef DSC_TRAIN_LOCK_H
#define DSC_TRAIN_LOCK_H

#include "descent/status.h"

typedef struct dsc_lock dsc_lock;

/* Makes the directory if need be and locks it for this process; DSC_E_INVALID when another process holds the
 * lock. On a file system without locks it succeeds and locks nothing. A process may take the lock twice; the
 * first release ends it. */
dsc_status dsc_lock_take(const char *directory, dsc_lock **out) DSC_MUST_CHECK;
/* Also removes the directory if taking the lock has made it and it is empty. Accepts NULL and *lock ==
 * NULL. */
void dsc_lock_release(dsc_lock **lock);

#endif
