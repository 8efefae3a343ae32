/* A trace of this process: what its threads did when, in the JSON array format that Perfetto and chrome://tracing
 * open. There is at most one per process.
 *
 * Threads put spans into a buffer of fixed size, and a thread of the trace's own writes them to the file, so nobody
 * waits for a disk. Spans for which there is no room are dropped and counted. Every write ends at the end of an event:
 * a file whose process was killed only lacks the bracket at its end, which viewers do not need.
 *
 * While there is no trace, a span costs reading one number. */
#ifndef DSC_BASE_TRACE_H
#define DSC_BASE_TRACE_H

#include "descent/status.h"

#include <stdatomic.h>
#include <stdint.h>

/* The tracks of a process. Spans of one track may contain each other, but must not overlap otherwise. */
typedef enum dsc_track {
    DSC_TRACK_STEPS,          /* the thread that trains */
    DSC_TRACK_DEVICE,         /* a device that works beside the host */
    DSC_TRACK_DECOMPOSITIONS, /* K-FAC's decompositions beside the steps */
    DSC_TRACK_AVERAGING,      /* the thread of adpsgd */
    DSC_TRACK_DATA            /* threads that prepare batches: each has a track of its own */
} dsc_track;

enum { DSC_TRACE_BUFFER = 16384 }; /* spans */

/* Begins the trace of this process in an open, empty file, which belongs to the trace from then on, also when this
 * fails. Times count from this moment. `rank` and `process` (plain text) name the process; `limit`: spans after this
 * many bytes are dropped. DSC_E_INVALID when there is a trace already. */
dsc_status dsc_trace_start(int file, int rank, const char *process, int64_t limit) DSC_MUST_CHECK;
/* Writes what is left and closes the file. DSC_E_IO when not all could be written. *dropped: spans that are missing. */
dsc_status dsc_trace_stop(int64_t *dropped) DSC_MUST_CHECK;

extern atomic_int dsc_trace_running;
static inline int dsc_trace_is_on(void) {
    return atomic_load_explicit(&dsc_trace_running, memory_order_relaxed);
}

/* Adds a span; begin and end are dsc_clock_now's. `name` and `key` must be constant strings without characters that
 * JSON escapes; key NULL: no number. */
void dsc_trace_span(dsc_track track, const char *name, double begin, double end, const char *key,
                    int64_t number);
/* Adds a message. Messages may overlap, so they are on no track. `kind`: what it carries; `op`: how. */
void dsc_trace_message(const char *kind, const char *op, double begin, double end, int64_t bytes);

#endif
