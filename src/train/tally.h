/* Counts the predictions of an evaluation: which class every labelled sample is taken for, and with which
 * confidence. */
#ifndef DSC_TRAIN_TALLY_H
#define DSC_TRAIN_TALLY_H

#include "descent/comm.h"
#include "descent/data.h"
#include "descent/train.h"

typedef struct dsc_tally dsc_tally;

/* For batches of at most `batch` samples of the data set, and a model with `outputs` outputs at each of its `positions`
 * positions. A single output is the logit of the second of two classes. The data set stays the caller's. */
dsc_status dsc_tally_create(const dsc_dataset *data, int64_t outputs, int64_t positions, int64_t batch,
                            dsc_tally **out) DSC_MUST_CHECK;
/* Accepts *tally == NULL. */
void dsc_tally_destroy(dsc_tally **tally);
/* Adds the rows of a batch that have a label; `first` is the index of its first sample. Waits for the queue. */
dsc_status dsc_tally_add(dsc_tally *tally, dsc_queue *queue, int64_t first, const dsc_tensor *logits,
                         const dsc_tensor *labels) DSC_MUST_CHECK;
/* The sums over all ranks, with the names of the data set's classes. Collective; blocks. */
dsc_status dsc_tally_report(dsc_tally *tally, dsc_comm *comm, dsc_queue *queue,
                            dsc_eval_report **out) DSC_MUST_CHECK;

/* to[count] = softmax of from[count]. Returns the index of the largest element, the first of equal ones. */
int64_t dsc_softmax(const float *from, int64_t count, double *to);

#endif
