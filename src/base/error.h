/* Raising errors and passing them on to the caller, inside the library. */
#ifndef DSC_BASE_ERROR_H
#define DSC_BASE_ERROR_H

#include "base/visible.h"
#include "descent/status.h"

/* Records the message and its source location for this thread. Returns `status`. */
DSC_MODULE_API dsc_status dsc_error_raise(dsc_status status, const char *file, int line, const char *format,
                                          ...) __attribute__((format(printf, 4, 5)));

/* Adds a source location to the trace of the current error. Returns `status`. */
DSC_MODULE_API dsc_status dsc_error_pass(dsc_status status, const char *file, int line);

/* Puts "context: " in front of the current message, in callers that know which file or option failed. */
dsc_status dsc_error_prefix(dsc_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns the number of errors that this thread has raised so far. Read before a user's callback is called, it tells
 * dsc_error_callback whether the callback has set a message of its own. */
unsigned dsc_error_count(void);
/* Reports that the user's callback `function` failed with `status`: puts "context: " in front of the message that it
 * has set, or of one that says that it has set none; never shows an older message. format NULL: no context. */
dsc_status dsc_error_callback(dsc_status status, unsigned count_before, const char *function,
                              const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Returns dsc_error_message() without the rank at its start, for errors that do not depend on the rank: any rank might
 * have read the broken file. */
const char *dsc_error_message_without_rank(void);
/* Raises another thread's error in this thread: `message` is that thread's dsc_error_message(). Returns
 * `status`. */
DSC_MODULE_API dsc_status dsc_error_adopt(dsc_status status, const char *message);

/* Sets the rank with which this process's messages begin; -1 (the default): no rank. Called by the
 * communicator. */
void dsc_error_set_rank(int rank);

/* Use: return DSC_FAIL(DSC_E_INVALID, "batch size %d: must be positive", n); */
#define DSC_FAIL(status, ...) dsc_error_raise((status), __FILE__, __LINE__, __VA_ARGS__)

/* Returns from the calling function when `call` fails. */
#define DSC_TRY(call)                                                                                        \
    do {                                                                                                     \
        dsc_status dsc_try_status_ = (call);                                                                 \
        if (dsc_try_status_ != DSC_OK)                                                                       \
            return dsc_error_pass(dsc_try_status_, __FILE__, __LINE__);                                      \
    } while (0)

/* For functions with clean-up code: sets `var` to the status of `call`, and jumps to `label` if it failed. */
#define DSC_TRY_GOTO(var, call, label)                                                                       \
    do {                                                                                                     \
        (var) = (call);                                                                                      \
        if ((var) != DSC_OK) {                                                                               \
            dsc_error_pass((var), __FILE__, __LINE__);                                                       \
            goto label;                                                                                      \
        }                                                                                                    \
    } while (0)

#endif
