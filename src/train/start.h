/* Before the first step and around checkpoints: where a run begins, and what it writes down. */
#ifndef DSC_TRAIN_START_H
#define DSC_TRAIN_START_H

#include "train/trainer.h"

enum { DSC_ORIGIN_SIZE = 1024 };

/* The checkpoint to resume from; "" for none. */
typedef struct dsc_origin {
    char path[DSC_ORIGIN_SIZE];
} dsc_origin;

/* From where the options ask to go on. Not collective. */
dsc_status dsc_origin_find(const dsc_train_options *o, dsc_origin *from) DSC_MUST_CHECK;
/* Prepares the output directory, resumes where asked to, gives everybody rank 0's parameters and opens the
 * metrics. Collective; fails on all ranks or on none. */
dsc_status dsc_trainer_start(dsc_trainer *t) DSC_MUST_CHECK;
/* Writes a checkpoint of this step, unless there is one or no output directory. Refuses parameters and
 * batch-norm statistics that are not finite. Collective; fails on all ranks or on none. */
dsc_status dsc_trainer_save(dsc_trainer *t) DSC_MUST_CHECK;
/* Where the run stands, for an event of this kind; the caller fills in the rest and tells it. */
dsc_progress dsc_trainer_progress(const dsc_trainer *t, dsc_event_kind kind);
/* Hands an event to the caller of the run; on rank 0 only. */
void dsc_trainer_tell(const dsc_trainer *t, const dsc_progress *progress);

#endif
