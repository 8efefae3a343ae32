/* The trace of a run (options.trace): one file per rank, because then no rank waits for another, nothing has to be
 * sent, and the trace of a rank that fails is kept. Rank 0 writes FILE, and rank R writes FILE with `.rank-R` before
 * its last dot. Times count from a synchronisation of all ranks. */
#ifndef DSC_TRAIN_TRACE_FILE_H
#define DSC_TRAIN_TRACE_FILE_H

#include "train/trainer_internal.h"

/* Begins the trace, if the options ask for one. An existing file that is not a trace is refused. Collective; fails on
 * all ranks or on none. */
dsc_status dsc_trace_file_open(dsc_trainer *t) DSC_MUST_CHECK;
/* Checks that the trace of this rank can be opened; `file` is options.trace. Leaves nothing on the disk. */
dsc_status dsc_trace_file_probe(const char *file, int rank) DSC_MUST_CHECK;
/* Ends the trace, and warns when something is missing in it. */
void dsc_trace_file_close(dsc_trainer *t);

#endif
