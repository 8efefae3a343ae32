/* Resources that the simultaneous runs of a sweep share: GPUs and ranks. */
#ifndef DSC_CLI_SWEEP_PLACES_H
#define DSC_CLI_SWEEP_PLACES_H

#include <stddef.h>

/* The number of ranks that a launcher starts, from its -n N, -np N or --ntasks=N; 1 without such an option. */
int dsc_sweep_ranks_of(const char *launcher);
/* The GPUs of one of `jobs` places for runs, in the form of CUDA_VISIBLE_DEVICES: an equal share of all `gpus` or, when
 * there are more places than GPUs, one of them in turn. `names` is the sweep's own CUDA_VISIBLE_DEVICES, "" for none.
 * Returns `text`. */
const char *dsc_sweep_gpus_of(int place, int jobs, int gpus, const char *names, char *text, size_t size);

#endif
