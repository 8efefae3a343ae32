/* Status codes and error messages.
 *
 * Every function that can fail returns a dsc_status. The library itself never prints, exits or aborts: it is the
 * program that prints dsc_error_message() and ends the job (with dsc_comm_abort in a parallel job). */
#ifndef DSC_STATUS_H
#define DSC_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Exports a function from the shared library; makes the compiler warn when the result of a function is ignored. */
#define DSC_API        __attribute__((visibility("default")))
#define DSC_MUST_CHECK __attribute__((warn_unused_result))

/* All status codes: the constant, and the short description that dsc_status_text returns. */
#define DSC_STATUS_LIST(X)                                                                                   \
    X(DSC_OK, "success")                                                                                     \
    X(DSC_E_INVALID, "invalid argument")                                                                     \
    X(DSC_E_NOT_FOUND, "not found")                                                                          \
    X(DSC_E_FORMAT, "malformed input")                                                                       \
    X(DSC_E_UNSUPPORTED, "not supported")                                                                    \
    X(DSC_E_MEMORY, "out of memory")                                                                         \
    X(DSC_E_IO, "input or output failed")                                                                    \
    X(DSC_E_NUMERIC, "numerical failure")                                                                    \
    X(DSC_E_DEVICE, "device failure")                                                                        \
    X(DSC_E_COMM, "communication failure")                                                                   \
    X(DSC_E_LOST, "a peer was lost")                                                                         \
    X(DSC_E_INTERRUPTED, "interrupted")                                                                      \
    X(DSC_E_INTERNAL, "internal error")

typedef enum dsc_status {
#define DSC_STATUS_ENUM(name, text) name,
    DSC_STATUS_LIST(DSC_STATUS_ENUM)
#undef DSC_STATUS_ENUM
} dsc_status;

/* Returns a short description of the code, a static string; "unknown status" for any other number. Never NULL. */
DSC_API const char *dsc_status_text(dsc_status status);

/* Returns the message of the last call that failed in this thread: the offending value, its limits and what to do.
 * In a parallel job it starts with "rank R: ". Never NULL; "" if no call has failed yet. The string belongs to the
 * library and is valid until the next failure in this thread. */
DSC_API const char *dsc_error_message(void);

/* For callbacks that the library calls: sets the message of this thread, printf-style, and returns `status`, so that
 * a callback can end with: return dsc_error_set(DSC_E_IO, "cannot read %s", path);
 * The library puts its own context in front of the message. */
DSC_API dsc_status dsc_error_set(dsc_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Returns the trace of the last failure in this thread: one "file:line" of the library's source per line, innermost
 * first. Owned by the library, and valid as long as the message. */
DSC_API const char *dsc_error_trace(void);

#ifdef __cplusplus
}
#endif
#endif
