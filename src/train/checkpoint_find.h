/* Which file a checkpoint's name stands for, and whether the file is intact. */
#ifndef DSC_TRAIN_CHECKPOINT_FIND_H
#define DSC_TRAIN_CHECKPOINT_FIND_H

#include "descent/status.h"

#include <stddef.h>

/* The model file that `spec` names: a file, or DIR[:best|:latest|:STEP]. In new memory. A file need not exist;
 * DSC_E_NOT_FOUND when a directory lacks the checkpoint. */
dsc_status dsc_checkpoint_find(const char *spec, char **out) DSC_MUST_CHECK;
/* 1 when `spec` is a directory, with or without a suffix that selects one of its checkpoints; *length is then the
 * length of the directory's own name. */
int dsc_checkpoint_spec_is_directory(const char *spec, size_t *length);
/* Reads both files of the checkpoint whose model file is `path`, and compares their check sums, where they have
 * some. DSC_E_FORMAT: one is damaged. DSC_E_NOT_FOUND: one is missing; with `model_alone` the state file may
 * be missing. */
dsc_status dsc_checkpoint_check(const char *path, int model_alone) DSC_MUST_CHECK;
/* The newest checkpoint of a directory that is intact; *out is NULL when there is none at all. Warns of those
 * that are passed over. When none is intact, the error of the newest. */
dsc_status dsc_checkpoint_newest_intact(const char *directory, char **out) DSC_MUST_CHECK;

#endif
