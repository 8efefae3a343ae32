/* Raising and passing on errors, inside the library. */
#ifndef DSC_BASE_ERROR_H
#define DSC_BASE_ERROR_H

#include "descent/status.h"

/* Records message and place for this thread and returns `status`. */
dsc_status dsc_error_raise(dsc_status status, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Adds a place to the trace of the current error and returns `status`. */
dsc_status dsc_error_pass(dsc_status status, const char *file, int line);

/* Puts "context: " before the current message; used where a caller knows the file or flag that failed. */
dsc_status dsc_error_prefix(dsc_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Makes another thread's error this one's: `message` is its dsc_error_message(). Returns `status`. */
dsc_status dsc_error_adopt(dsc_status status, const char *message);

/* The rank named in messages of this process; -1 (the default) for none. Set by the communicator. */
void dsc_error_set_rank(int rank);

/* return DSC_FAIL(DSC_E_INVALID, "batch size %d: must be positive", n); */
#define DSC_FAIL(status, ...) dsc_error_raise((status), __FILE__, __LINE__, __VA_ARGS__)

/* Returns from the calling function when `call` fails. */
#define DSC_TRY(call)                                                                                        \
    do {                                                                                                     \
        dsc_status dsc_try_status_ = (call);                                                                 \
        if (dsc_try_status_ != DSC_OK)                                                                       \
            return dsc_error_pass(dsc_try_status_, __FILE__, __LINE__);                                      \
    } while (0)

/* For functions that clean up: sets `var` and jumps when `call` fails. */
#define DSC_TRY_GOTO(var, call, label)                                                                       \
    do {                                                                                                     \
        (var) = (call);                                                                                      \
        if ((var) != DSC_OK) {                                                                               \
            dsc_error_pass((var), __FILE__, __LINE__);                                                       \
            goto label;                                                                                      \
        }                                                                                                    \
    } while (0)

#endif
