/* Raising and passing on errors, inside the library. */
#ifndef DSC_BASE_ERROR_H
#define DSC_BASE_ERROR_H

#include "base/visible.h"
#include "descent/status.h"

/* Records message and place for this thread and returns `status`. */
DSC_MODULE_API dsc_status dsc_error_raise(dsc_status status, const char *file, int line, const char *format,
                                          ...) __attribute__((format(printf, 4, 5)));

/* Adds a place to the trace of the current error and returns `status`. */
DSC_MODULE_API dsc_status dsc_error_pass(dsc_status status, const char *file, int line);

/* Puts "context: " before the current message, where a caller knows which file or option failed. */
dsc_status dsc_error_prefix(dsc_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* How many errors this thread has raised so far. Taken before a callback of the caller's is called, it lets
 * dsc_error_callback see whether the callback set a message of its own. */
unsigned dsc_error_count(void);
/* The caller's function of this name failed with `status`: puts "context: " before the message it set, or
 * says that it gave none; never shows an older message. format NULL: no context. */
dsc_status dsc_error_callback(dsc_status status, unsigned count_before, const char *function,
                              const char *format, ...) __attribute__((format(printf, 4, 5)));

/* dsc_error_message() without the rank at its start, for errors that do not depend on the rank: any of them might have
 * read the broken file. */
const char *dsc_error_message_without_rank(void);
/* Raises an error of another thread in this one: `message` is that thread's dsc_error_message(). Returns
 * `status`. */
DSC_MODULE_API dsc_status dsc_error_adopt(dsc_status status, const char *message);

/* Sets the rank that messages of this process begin with; -1 (the default): none. Called by the
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
