/* Small training runs, and looking at what they leave behind. Calls fail the test by themselves. */
#ifndef DSC_TESTS_TRAIN_RUNS_H
#define DSC_TESTS_TRAIN_RUNS_H

#include "descent/comm.h"
#include "descent/train.h"

#include <jansson.h>

/* A communicator of this process alone, a CPU device of one thread. */
void runs_open(dsc_comm **comm, dsc_device **device);

/* mlp on synthetic:64, batch 16 (4 steps an epoch, 12 validation images), 2 epochs, nothing scaled, no
 * warm-up; writes into `out` (NULL: nothing). */
void runs_options(dsc_train_options *options, const char *out);

/* A progress function that lets the run end after step *(int64_t *)context, which must be 2 at least: the
 * request comes after the step before. */
void runs_stop_at(void *context, const dsc_progress *progress);

/* The number of tensors that differ in a bit between the checkpoints of a step in two directories, model and
 * state file, the time that was spent left out; also counts those that only one has. */
int runs_differences(const char *directory, const char *other, int64_t step);

/* All lines of metrics.jsonl; every one must parse. The caller decrefs it. */
json_t *runs_lines(const char *directory);
/* How many are of this kind, and the n-th (from 0) of them; lent. */
int runs_count(json_t *lines, const char *kind);
json_t *runs_line(json_t *lines, const char *kind, int n);

#endif
