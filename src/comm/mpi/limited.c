/* Time limits for MPI calls that have none: all ranks make a communicator together, and a rank that has
 * ended or hangs would block the others for ever. With a limit such a call is made in a separate
 * thread. At the limit that thread is left running with all its data, and MPI is not called again in this
 * process, because MPI was promised one caller at a time. */
#include "comm/mpi/mpi.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/thread.h"

#include <stdio.h>

static const double shortest = 5; /* seconds: limits are meant for one message, and this takes several */

typedef struct call {
    dsc_status (*function)(void *argument);
    void *argument;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int done;
    dsc_status status;
    char message[DSC_COMM_MESSAGE_SIZE];
} call;

static _Atomic(call *) given_up; /* the call that has reached its limit, or NULL */

int dsc_mpi_is_free(void) {
    return given_up == NULL;
}

dsc_status dsc_mpi_check_free(void) {
    int finalised = 0;
    MPI_Finalized(&finalised);
    if (finalised)
        return DSC_FAIL(DSC_E_COMM, "MPI has been finalised while a communicator was still in use: destroy "
                                    "communicators first");
    if (!dsc_mpi_is_free())
        return DSC_FAIL(DSC_E_COMM,
                        "MPI still waits for a rank that was to make a communicator: nothing more "
                        "can be sent or received");
    return DSC_OK;
}

static void *run(void *argument) {
    call *c = argument;
    dsc_status status = c->function(c->argument);
    pthread_mutex_lock(&c->lock);
    if (status != DSC_OK)
        snprintf(c->message, sizeof c->message, "%s", dsc_error_message());
    c->status = status;
    c->done = 1;
    pthread_cond_signal(&c->ended);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Returns 1 if the call has ended in time; its thread has then ended, too. */
static int await(call *c, pthread_t thread, double seconds) {
    double deadline = dsc_clock_now() + seconds;
    pthread_mutex_lock(&c->lock);
    while (!c->done && dsc_condition_wait(&c->ended, &c->lock, deadline))
        ;
    int done = c->done;
    if (!done)
        given_up = c;
    pthread_mutex_unlock(&c->lock);
    if (done)
        pthread_join(thread, NULL);
    else
        pthread_detach(thread);
    return done;
}

static dsc_status run_limited(call *c, double seconds, int *ended) {
    pthread_t thread;
    DSC_TRY(dsc_thread_start(&thread, run, c, "a thread that makes a communicator"));
    *ended = await(c, thread, seconds);
    if (!*ended)
        return DSC_FAIL(
            DSC_E_COMM,
            "a communicator is not made after %g s: a rank has ended, hangs or is slow: look at the "
            "messages of all ranks, or wait longer (option peer-timeout)",
            seconds);
    return c->status == DSC_OK ? DSC_OK : dsc_error_adopt(c->status, c->message);
}

/* A limit needs an MPI that allows calls from another thread while this one waits. */
static int can_limit(double seconds) {
    int provided = MPI_THREAD_SINGLE;
    return seconds > 0 && MPI_Query_thread(&provided) == MPI_SUCCESS && provided >= MPI_THREAD_SERIALIZED;
}

dsc_status dsc_mpi_run(double seconds, dsc_status (*function)(void *argument), void *argument) {
    call *c;
    DSC_TRY(dsc_mpi_check_free());
    if (!can_limit(seconds))
        return function(argument);
    seconds = seconds < shortest ? shortest : seconds;
    DSC_TRY(dsc_memory_alloc(1, sizeof *c, &c));
    c->function = function;
    c->argument = argument;
    int has_lock = pthread_mutex_init(&c->lock, NULL) == 0, has_condition = dsc_condition_init(&c->ended);
    int ended = 1;
    dsc_status status = has_lock && has_condition
                            ? run_limited(c, seconds, &ended)
                            : DSC_FAIL(DSC_E_MEMORY, "cannot create a lock for making a communicator");
    if (!ended)
        return status;
    if (has_condition)
        pthread_cond_destroy(&c->ended);
    if (has_lock)
        pthread_mutex_destroy(&c->lock);
    dsc_memory_free(&c);
    return status;
}
