/* The directory a training writes into: its default name, and whether a run is in it already. */
#ifndef DSC_CLI_OUTDIR_H
#define DSC_CLI_OUTDIR_H

#include "descent/status.h"

#include <stddef.h>
#include <stdint.h>

/* "runs/MODEL-DATA-SEED", DATA being what stands before the colon. Returns `text`. */
const char *dsc_outdir_default(const char *model, const char *data, uint64_t seed, char *text, size_t size);

/* Finds a run in `directory`: *file is the name of one of its files, "" when there is none or no directory.
 */
dsc_status dsc_outdir_find_run(const char *directory, char *file, size_t size) DSC_MUST_CHECK;
/* Removes the files of a run, and nothing else. */
dsc_status dsc_outdir_remove_run(const char *directory) DSC_MUST_CHECK;

#endif
