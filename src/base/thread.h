/* Creating the library's own threads. */
#ifndef DSC_BASE_THREAD_H
#define DSC_BASE_THREAD_H

#include "base/visible.h"
#include "descent/status.h"

#include <pthread.h>

/* Starts a thread with all signals blocked, which leaves them to the program's own threads. `what` names the
 * thread in the error message. */
DSC_MODULE_API dsc_status dsc_thread_start(pthread_t *thread, void *(*function)(void *), void *argument,
                                           const char *what) DSC_MUST_CHECK;

/* dsc_condition_wait waits for a condition that dsc_condition_init has initialised, until dsc_clock_now() reaches
 * `deadline`, and returns 0 once it has. */
DSC_MODULE_API int dsc_condition_init(pthread_cond_t *condition) DSC_MUST_CHECK; /* returns 0 on failure */
DSC_MODULE_API int dsc_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, double deadline);

#endif
