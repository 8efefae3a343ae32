/* Log messages. The library never prints: it passes its messages to a handler that the program sets, and without a
 * handler they are dropped. */
#ifndef DSC_LOG_H
#define DSC_LOG_H

#include "descent/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dsc_log_level { DSC_LOG_DEBUG, DSC_LOG_INFO, DSC_LOG_WARNING } dsc_log_level;

/* Receives one message. `text` has no newline at its end and is valid during the call only. */
typedef void (*dsc_log_handler)(void *context, dsc_log_level level, const char *text);

/* Sets the handler of the process; NULL removes it. Not thread-safe: call it before anything else. The handler may be
 * called from any thread. `context` is passed to it, and stays the caller's. */
DSC_API void dsc_log_set_handler(dsc_log_handler handler, void *context);

/* Formats a line, printf-style, and passes it to the handler. `format` has no newline at its end. */
DSC_API void dsc_log(dsc_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif
#endif
