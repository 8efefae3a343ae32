/* Log messages. The library never prints: without a handler its messages are dropped. */
#ifndef DSC_LOG_H
#define DSC_LOG_H

#include "descent/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dsc_log_level { DSC_LOG_DEBUG, DSC_LOG_INFO, DSC_LOG_WARNING } dsc_log_level;

typedef void (*dsc_log_handler)(void *context, dsc_log_level level, const char *text);

/* Sets the handler of the process (NULL: none). Not thread-safe: call it before anything else. The handler
 * may be called from any thread; `context` stays the caller's. */
DSC_API void dsc_log_set_handler(dsc_log_handler handler, void *context);

/* Passes a formatted line, without a newline at its end, to the handler. */
DSC_API void dsc_log(dsc_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif
#endif
