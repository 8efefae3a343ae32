/* A trace of this process: what its threads did when, in the JSON array format that Perfetto and chrome://tracing
 * open. A process has at most one at a time.
 *
 * Threads put spans into a buffer of fixed size, and a separate thread writes them to the file, so that no other thread
 * waits for a disk. Spans for which there is no room are dropped and counted. Every write ends with a complete event,
 * so the file of a process that was killed lacks only the closing bracket, which viewers do not need.
 *
 * While there is no trace, a span costs only the reading of one number. */
#ifndef DSC_BASE_TRACE_H
#define DSC_BASE_TRACE_H

#include "descent/status.h"

#include <stdatomic.h>
#include <stdint.h>

/* The tracks of a process. Spans of one track may be nested, but must not overlap otherwise. */
typedef enum dsc_track {
    DSC_TRACK_STEPS,          /* the thread that trains */
    DSC_TRACK_DEVICE,         /* a device that runs concurrently with the host */
    DSC_TRACK_DECOMPOSITIONS, /* K-FAC's decompositions that run concurrently with the steps */
    DSC_TRACK_AVERAGING,      /* adpsgd's averaging thread */
    DSC_TRACK_DATA            /* threads that prepare batches: each has a track of its own */
} dsc_track;

enum { DSC_TRACE_BUFFER = 16384 }; /* spans */

/* Starts the trace of this process in an open, empty file, which the trace owns from then on, even if this fails.
 * Times are relative to this moment. `rank` and `process` (plain text) name the process. After `limit` bytes, spans
 * are dropped. DSC_E_INVALID if there is already a trace. */
dsc_status dsc_trace_start(int file, int rank, const char *process, int64_t limit) DSC_MUST_CHECK;
/* Writes the remaining spans and closes the file. DSC_E_IO if not all could be written. *dropped: missing spans. */
dsc_status dsc_trace_stop(int64_t *dropped) DSC_MUST_CHECK;

extern atomic_int dsc_trace_running;
static inline int dsc_trace_is_on(void) {
    return atomic_load_explicit(&dsc_trace_running, memory_order_relaxed);
}

/* Adds a span; begin and end are times from dsc_clock_now. `name` and `key` must be constant strings without
 * characters that JSON escapes; key NULL: no number. */
void dsc_trace_span(dsc_track track, const char *name, double begin, double end, const char *key,
                    int64_t number);
/* Adds a message. Messages may overlap, so they are on no track. `kind`: what it carries; `op`: the operation. */
void dsc_trace_message(const char *kind, const char *op, double begin, double end, int64_t bytes);

#endif
