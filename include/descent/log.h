/* Messages of the library for people. Without a handler they are dropped: the library itself never prints. */
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

/* Hands a formatted line (no newline at its end) to the handler. */
DSC_API void dsc_log(dsc_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif
#endif
