/* What the program's files use beside the public headers. */
#ifndef DSC_CLI_SUPPORT_H
#define DSC_CLI_SUPPORT_H

#include "descent/status.h"

/* Use: return DSC_CLI_FAIL(DSC_E_INVALID, "--ranks %d: must be positive", n); */
#define DSC_CLI_FAIL(status, ...) dsc_error_set((status), __VA_ARGS__)

/* Returns from the calling function when `call` fails. */
#define DSC_CLI_TRY(call)                                                                                    \
    do {                                                                                                     \
        dsc_status dsc_cli_status_ = (call);                                                                 \
        if (dsc_cli_status_ != DSC_OK)                                                                       \
            return dsc_cli_status_;                                                                          \
    } while (0)

/* Seconds of a clock that never goes back. */
double dsc_cli_now(void);

#endif
