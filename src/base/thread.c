#include "base/thread.h"

#include "base/error.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>

dsc_status dsc_thread_start(pthread_t *thread, void *(*function)(void *), void *argument, const char *what) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int code = pthread_create(thread, NULL, function, argument);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (code)
        return DSC_FAIL(DSC_E_MEMORY, "cannot start %s: %s", what, strerror(code));
    return DSC_OK;
}

int dsc_condition_init(pthread_cond_t *condition) {
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0)
        return 0;
    int made = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 &&
               pthread_cond_init(condition, &attributes) == 0;
    pthread_condattr_destroy(&attributes);
    return made;
}

int dsc_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, double deadline) {
    const double most = 1e9; /* seconds since the machine started: decades, so never reached */
    const time_t whole = (time_t)(deadline = deadline < most ? deadline : most);
    const struct timespec time = {.tv_sec = whole, .tv_nsec = (long)((deadline - (double)whole) * 1e9)};
    return pthread_cond_timedwait(condition, lock, &time) != ETIMEDOUT;
}
