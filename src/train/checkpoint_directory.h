/* The checkpoints of an output directory: their names, which one is the latest, which ones are kept.
 *
 *   checkpoint-STEP.safetensors         the model
 *   checkpoint-STEP.state.safetensors   the rest of the run
 *   latest                              text: the name of the newest model file, and a newline
 *   best                                the same for the one with the best validation accuracy, if it still exists */
#ifndef DSC_TRAIN_CHECKPOINT_DIRECTORY_H
#define DSC_TRAIN_CHECKPOINT_DIRECTORY_H

#include "descent/status.h"

#include <stdint.h>

/* Names in new memory, which the caller frees with dsc_memory_free. */
dsc_status dsc_checkpoint_path(const char *directory, int64_t step, char **out) DSC_MUST_CHECK;
/* The state file beside a model file: X.safetensors -> X.state.safetensors. DSC_E_INVALID when the name ends
 * otherwise, or is that of a state file itself. */
dsc_status dsc_checkpoint_state_path(const char *model_path, char **out) DSC_MUST_CHECK;
/* The same for the average of the weights: X.safetensors -> X.ema.safetensors. */
dsc_status dsc_checkpoint_ema_path(const char *model_path, char **out) DSC_MUST_CHECK;

/* The steps of the checkpoints in a directory that have both files, in descending order; NULL for none, else
 * the caller frees them. A directory that does not exist has none. */
dsc_status dsc_checkpoint_list(const char *directory, int64_t **out, int64_t *count) DSC_MUST_CHECK;
/* The newest checkpoint: the one that `latest` names; without that file, the one of the highest step. *out is
 * NULL when there is none. DSC_E_FORMAT when `latest` names no checkpoint, DSC_E_NOT_FOUND when the one it
 * names does not exist; the message says what to do. */
dsc_status dsc_checkpoint_latest(const char *directory, char **out) DSC_MUST_CHECK;
/* The checkpoint that `best` names. The same errors; DSC_E_NOT_FOUND, too, when there is no such file. */
dsc_status dsc_checkpoint_best(const char *directory, char **out) DSC_MUST_CHECK;
/* Makes `latest` name the checkpoint of this step. Called when both of its files exist. */
dsc_status dsc_checkpoint_set_latest(const char *directory, int64_t step) DSC_MUST_CHECK;
/* Makes `best` name the checkpoint of this step if it is there, and removes `best` if it is not. */
dsc_status dsc_checkpoint_set_best(const char *directory, int64_t step) DSC_MUST_CHECK;
/* Removes the checkpoints of steps before `step`, except for the last `keep` of them and that of step `best`
 * (-1: none). Checkpoints of later steps stay. A file that cannot be removed is logged. */
dsc_status dsc_checkpoint_prune(const char *directory, int64_t step, int64_t keep,
                                int64_t best) DSC_MUST_CHECK;
/* Removes temporary files that a killed run has left, but not those of another process that still runs on
 * this machine. */
void dsc_checkpoint_sweep(const char *directory);

#endif
