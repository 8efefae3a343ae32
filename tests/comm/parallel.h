/* Tests that run on several ranks. A rank that finds a mistake must not leave the others waiting: EXPECT
 * remembers and goes on, and every test ends with all_fine(), which fails on all ranks when one has failed. A
 * watchdog ends what hangs all the same. */
#ifndef DSC_TESTS_COMM_PARALLEL_H
#define DSC_TESTS_COMM_PARALLEL_H

#include "test.h"

#include "base/error.h"
#include "descent/comm.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static int parallel_failures;

#define EXPECT(condition)                                                                                    \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            remember(__FILE__, __LINE__, #condition);                                                        \
    } while (0)

#define EXPECT_OK(call) expect_status((call), DSC_OK, "", #call, __FILE__, __LINE__)
/* The call fails with this status, and its message contains `text`. */
#define EXPECT_FAILS(status, text, call) expect_status((call), (status), (text), #call, __FILE__, __LINE__)

static inline void remember(const char *file, int line, const char *what) {
    if (parallel_failures++ < 10)
        fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
}

static inline void expect_status(dsc_status status, dsc_status wanted, const char *text, const char *call,
                                 const char *file, int line) {
    if (status == wanted && (wanted == DSC_OK || strstr(dsc_error_message(), text)))
        return;
    if (parallel_failures++ < 10)
        fprintf(stderr, "%s:%d: %s: '%s' instead of '%s' with '%s': %s\n%s\n", file, line, call,
                dsc_status_text(status), dsc_status_text(wanted), text, dsc_error_message(),
                dsc_error_trace());
}

/* Collective: the end of a test. */
static inline void all_fine(dsc_comm *comm) {
    int failures = parallel_failures;
    parallel_failures = 0;
    dsc_status own = failures ? DSC_FAIL(DSC_E_INTERNAL, "%d checks failed", failures) : DSC_OK;
    assert_ok(dsc_comm_agree(comm, own));
}

static inline void watchdog_bites(int signal_number) {
    static const char text[] = "watchdog: the test hangs\n";
    (void)signal_number;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
        _exit(98);
    _exit(99);
}

static inline void start_watchdog(unsigned seconds) {
    signal(SIGALRM, watchdog_bites);
    alarm(3 * seconds); /* on a busy machine */
}

/* Rank 0 speaks for all; failures still go to stderr. */
static inline void silence_other_ranks(const dsc_comm *comm) {
    if (dsc_comm_rank(comm) > 0 && !freopen("/dev/null", "w", stdout))
        fprintf(stderr, "cannot open /dev/null\n");
}

#endif
