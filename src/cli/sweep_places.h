/* What the runs of a sweep at the same time share: graphics cards and ranks. */
#ifndef DSC_CLI_SWEEP_PLACES_H
#define DSC_CLI_SWEEP_PLACES_H

#include <stddef.h>

/* Ranks that a launcher starts, from its -n N, -np N or --ntasks=N; 1 where it does not say. */
int dsc_sweep_ranks_of(const char *launcher);
/* The GPUs of one of `jobs` places for runs, as CUDA_VISIBLE_DEVICES takes them: equal shares of all `gpus`, or one, by
 * turns, where there are more places. `names` is the CUDA_VISIBLE_DEVICES that holds for all places, "" for none.
 * Returns `text`. */
const char *dsc_sweep_gpus_of(int place, int jobs, int gpus, const char *names, char *text, size_t size);

#endif
