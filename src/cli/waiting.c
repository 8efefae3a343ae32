/* How OpenMP's threads wait for each other.
 *
 * GNU's OpenMP lets them spin for milliseconds by default. When another program takes one of the cores, threads that
 * share a core then spin while the one they wait for could run, and a training is four to ten times slower. A short
 * spin costs little alone and little beside others. The runtimes read their settings when they are loaded, so the
 * program sets them and starts itself once more, before MPI is initialised. */
#include "cli/cli.h"

#include <stdlib.h>
#include <unistd.h>

/* The number of spins for GNU's OpenMP, and the milliseconds of spinning for LLVM's and Intel's. */
#define SPINS        "10000"
#define MILLISECONDS "0"

void dsc_cli_settle_waiting(char *const *argv) {
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || getenv("KMP_BLOCKTIME"))
        return; /* the user's choice, or the second start */
    if (setenv("GOMP_SPINCOUNT", SPINS, 1) == 0 && setenv("KMP_BLOCKTIME", MILLISECONDS, 1) == 0)
        (void)execv("/proc/self/exe", argv); /* if it fails, everything works as it would have */
}
