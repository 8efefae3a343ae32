/* Signals are taken by a thread that waits for them, and are blocked in all others: a handler that interrupts
 * a matrix product of oneDNN (before 3.11.1) writes into its buffers, because its kernels use the stack
 * pointer for other things (github.com/uxlfoundation/oneDNN/issues/4845). */
#include "cli/signals.h"
#include "cli/support.h"

#include "descent/train.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

static sigset_t caught;

/* The handler, for threads that a library has started earlier and that do not block signals. */
static void request(int number) {
    (void)number;
    dsc_train_request_stop();
}

/* Ends the process as if the signal had not been caught. */
static void die_of(int number) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    signal(number, SIG_DFL);
    raise(number);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
}

/* One request may arrive more than once: a launcher, a shell and timeout(1) send theirs to the process and to
 * its group. Another SIGINT or SIGTERM after more than a second is a new request, to end at once. */
static void *listen(void *unused) {
    (void)unused;
    const double patience = 1.0; /* seconds */
    double first = -1;
    for (;;) {
        int number = 0;
        if (sigwait(&caught, &number) != 0)
            continue;
        dsc_train_request_stop();
        if (number == SIGUSR1)
            continue;
        if (first < 0)
            first = dsc_cli_now();
        else if (dsc_cli_now() - first > patience)
            die_of(number);
    }
    return NULL;
}

dsc_status dsc_cli_catch_signals(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1};
    struct sigaction action;
    pthread_t thread;
    memset(&action, 0, sizeof action);
    action.sa_handler = request;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigemptyset(&caught);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        sigaddset(&caught, numbers[i]);
        sigaction(numbers[i], &action, NULL);
    }
    int failed = pthread_sigmask(SIG_BLOCK, &caught, NULL);
    if (!failed)
        failed = pthread_create(&thread, NULL, listen, NULL);
    if (!failed)
        failed = pthread_detach(thread);
    return failed ? DSC_CLI_FAIL(DSC_E_INTERNAL, "signals cannot be caught: %s", strerror(failed)) : DSC_OK;
}
