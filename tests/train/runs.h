/* Small training runs, and looking at what they leave behind. Calls fail the test by themselves. */
#ifndef DSC_TESTS_TRAIN_RUNS_H
#define DSC_TESTS_TRAIN_RUNS_H

#include "descent/comm.h"
#include "descent/train.h"

#include <jansson.h>

/* A communicator of this process alone, a CPU device of one thread or the environment's (chosen.h); exact:
 * without TF32, for comparisons that expect float32's rounding. */
void runs_open(dsc_comm **comm, dsc_device **device);
void runs_open_exact(dsc_comm **comm, dsc_device **device);
/* The number of steps that a run may still take after a request to stop: 0 on a host device. */
int runs_lag(const dsc_device *device);
/* Contents of a tensor; to be freed. Waits for the queue. */
void *runs_read(dsc_queue *queue, const dsc_tensor *t);

/* mlp on synthetic:64, batch 16 (4 steps an epoch, 12 validation images), 2 epochs, nothing scaled, no
 * warm-up; writes into `out` (NULL: nothing). */
void runs_options(dsc_train_options *options, const char *out);
/* The parts of options that runs_options filled in, to be changed; K-FAC's update_freq is 0. Every call of
 * runs_options takes new ones, of which the last 64 are kept. */
dsc_optim_options *optim_of(const dsc_train_options *options);
dsc_consensus_options *consensus_of(const dsc_train_options *options);
dsc_kfac_options *kfac_of(const dsc_train_options *options);

/* A progress function that lets the run end after step *(int64_t *)context, which must be 2 at least: the
 * request comes after the step before. On a device whose results come late the run ends up to runs_lag()
 * steps later. */
void runs_stop_at(void *context, const dsc_progress *progress);

/* Trains, and returns the warnings of that run, one per line. They stay valid until the next such run. */
dsc_status runs_noting(dsc_comm *comm, dsc_device *device, const dsc_train_options *options,
                       const char **warnings);

/* The number of tensors that differ in a bit between the checkpoints of a step in two directories: model file, state
 * file and the average of the weights, without the time spent. Tensors that only one has also count. */
int runs_differences(const char *directory, const char *other, int64_t step);

/* All lines of metrics.jsonl; every one must parse. The caller decrefs it. */
json_t *runs_lines(const char *directory);
/* runs_count: the number of lines of this kind. runs_line: the n-th of them, from 0, which stays owned by `lines`. */
int runs_count(json_t *lines, const char *kind);
json_t *runs_line(json_t *lines, const char *kind, int n);

#endif
