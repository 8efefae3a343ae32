/* Threads of the library. */
#ifndef DSC_BASE_THREAD_H
#define DSC_BASE_THREAD_H

#include "descent/status.h"

#include <pthread.h>

/* Starts one that takes no signals: those are for whoever owns main(). `what` names it in the error. */
dsc_status dsc_thread_start(pthread_t *thread, void *(*function)(void *), void *argument,
                            const char *what) DSC_MUST_CHECK;

/* Waits for `condition`, made by dsc_condition_init, until `deadline` on the library's clock at the latest.
 * 0: it has passed. */
int dsc_condition_init(pthread_cond_t *condition) DSC_MUST_CHECK; /* 0: it cannot be made */
int dsc_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, double deadline);

#endif
