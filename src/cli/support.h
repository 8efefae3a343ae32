/* Small helpers of the commands: errors, memory, time. */
#ifndef DSC_CLI_SUPPORT_H
#define DSC_CLI_SUPPORT_H

#include "descent/status.h"

#include <stddef.h>
#include <stdint.h>

/* Use: return DSC_CLI_FAIL(DSC_E_INVALID, "--ranks %d: must be positive", n); */
#define DSC_CLI_FAIL(status, ...) dsc_error_set((status), __VA_ARGS__)

/* Returns from the calling function when `call` fails. */
#define DSC_CLI_TRY(call)                                                                                    \
    do {                                                                                                     \
        dsc_status dsc_cli_status_ = (call);                                                                 \
        if (dsc_cli_status_ != DSC_OK)                                                                       \
            return dsc_cli_status_;                                                                          \
    } while (0)

/* Stores `count` zeroed elements of `size` bytes in the pointer at `out`; count 0 gives a valid pointer. The
 * caller frees it with dsc_cli_free. DSC_E_MEMORY when there is not enough memory; the pointer is then
 * NULL. */
dsc_status dsc_cli_alloc(int64_t count, size_t size, void *out) DSC_MUST_CHECK;
/* `pointer` is the address of a pointer, which may be NULL and is set to NULL. */
void dsc_cli_free(void *pointer);

/* Seconds of a clock that never goes back. */
double dsc_cli_now(void);

#endif
