/* The trace of a run (options.trace): one file per rank, because then no rank waits for another, nothing has to be sent,
 * and what a rank that fails has written stays. Rank 0 writes FILE, and rank R writes FILE with `.rank-R` before its
 * last dot. Times count from a moment at which all ranks have met. */
#ifndef DSC_TRAIN_TRACE_FILE_H
#define DSC_TRAIN_TRACE_FILE_H

#include "train/trainer_internal.h"

/* Begins the trace, if there is to be one. A file that is there and is no trace is refused. Collective; fails on all
 * ranks or on none. */
dsc_status dsc_trace_file_open(dsc_trainer *t) DSC_MUST_CHECK;
/* Whether the trace of this rank could be opened; `file` is options.trace. Leaves nothing on the disk. */
dsc_status dsc_trace_file_probe(const char *file, int rank) DSC_MUST_CHECK;
/* Ends it, and warns when something is missing in it. */
void dsc_trace_file_close(dsc_trainer *t);

#endif
