/* Memory and time. */
#include "cli/support.h"

#include <stdlib.h>
#include <time.h>

dsc_status dsc_cli_alloc(int64_t count, size_t size, void *out) {
    void *memory = count < 0 ? NULL : calloc(count > 0 ? (size_t)count : 1, size);
    *(void **)out = memory;
    if (!memory)
        return DSC_CLI_FAIL(DSC_E_MEMORY, "cannot allocate %lld elements of %zu bytes", (long long)count,
                            size);
    return DSC_OK;
}

void dsc_cli_free(void *pointer) {
    void **address = pointer;
    free(*address);
    *address = NULL;
}

double dsc_cli_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
