/* The files of a run in its output directory. */
#ifndef DSC_TRAIN_RUN_FILES_H
#define DSC_TRAIN_RUN_FILES_H

#include "descent/status.h"

/* dsc_train_remove_run for a directory that the caller has locked. */
dsc_status dsc_run_files_remove(const char *directory) DSC_MUST_CHECK;

#endif
