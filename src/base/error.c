/* Error messages and traces, one of each per thread. */
#include "base/error.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_SIZE = 2048, TRACE_SIZE = 2048 };

static _Thread_local char message[MESSAGE_SIZE];
static _Thread_local char trace[TRACE_SIZE];
static _Thread_local unsigned raised; /* number of errors that this thread has raised so far */
static atomic_int own_rank = -1;

const char *dsc_status_text(dsc_status status) {
    switch (status) {
#define STATUS_CASE(name, text)                                                                              \
    case name:                                                                                               \
        return text;
        DSC_STATUS_LIST(STATUS_CASE)
#undef STATUS_CASE
    }
    return "unknown status";
}

const char *dsc_error_message(void) {
    return message;
}

const char *dsc_error_message_without_rank(void) {
    int length = 0;
    sscanf(message, "rank %*d: %n", &length);
    return message + length;
}

const char *dsc_error_trace(void) {
    return trace;
}

void dsc_error_set_rank(int rank) {
    atomic_store(&own_rank, rank);
}

static void add_place(const char *file, int line) {
    size_t used = strlen(trace);
    const char *src = strstr(file, "src/");
    snprintf(trace + used, TRACE_SIZE - used, "%s%s:%d", used ? "\n" : "", src ? src : file, line);
}

dsc_status dsc_error_adopt(dsc_status status, const char *text) {
    snprintf(message, MESSAGE_SIZE, "%s", text);
    trace[0] = '\0';
    raised++;
    return status;
}

static void set_message(const char *format, va_list args) {
    int used = 0;
    int rank = atomic_load(&own_rank);
    if (rank >= 0)
        used = snprintf(message, MESSAGE_SIZE, "rank %d: ", rank);
    vsnprintf(message + used, MESSAGE_SIZE - (size_t)used, format, args);
    trace[0] = '\0';
    raised++;
}

dsc_status dsc_error_raise(dsc_status status, const char *file, int line, const char *format, ...) {
    va_list args;
    va_start(args, format);
    set_message(format, args);
    va_end(args);
    add_place(file, line);
    return status;
}

dsc_status dsc_error_set(dsc_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    set_message(format, args);
    va_end(args);
    return status;
}

unsigned dsc_error_count(void) {
    return raised;
}

static const char *status_name(dsc_status status) {
    switch (status) {
#define STATUS_NAME(name, text)                                                                              \
    case name:                                                                                               \
        return #name;
        DSC_STATUS_LIST(STATUS_NAME)
#undef STATUS_NAME
    }
    return "a number";
}

dsc_status dsc_error_callback(dsc_status status, unsigned count_before, const char *function,
                              const char *format, ...) {
    char context[512];
    if (raised == count_before)
        dsc_error_set(status, "the caller's function `%s` returned %s (%s) without a message", function,
                      status_name(status), dsc_status_text(status));
    if (!format)
        return status;
    va_list args;
    va_start(args, format);
    vsnprintf(context, sizeof context, format, args);
    va_end(args);
    return dsc_error_prefix(status, "%s", context);
}

dsc_status dsc_error_pass(dsc_status status, const char *file, int line) {
    add_place(file, line);
    return status;
}

dsc_status dsc_error_prefix(dsc_status status, const char *format, ...) {
    char old[MESSAGE_SIZE];
    int rank = atomic_load(&own_rank);
    int skip = 0;
    if (rank >= 0) {
        char head[32];
        int length = snprintf(head, sizeof head, "rank %d: ", rank);
        if (strncmp(message, head, (size_t)length) == 0)
            skip = length;
    }
    memcpy(old, message + skip, MESSAGE_SIZE - (size_t)skip);
    va_list args;
    va_start(args, format);
    int used = skip + vsnprintf(message + skip, MESSAGE_SIZE - (size_t)skip, format, args);
    va_end(args);
    if (used < MESSAGE_SIZE)
        snprintf(message + used, MESSAGE_SIZE - (size_t)used, ": %s", old);
    return status;
}
