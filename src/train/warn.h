/* Warnings about a run that looks wrong although nothing has failed. Each is given once, with a remedy, in the
 * log and as an `alarm` line of the metrics, by rank 0. */
#ifndef DSC_TRAIN_WARN_H
#define DSC_TRAIN_WARN_H

#include "train/trainer_internal.h"

/* Logs a warning about this run and writes it to the metrics. Does nothing on other ranks than 0. */
void dsc_warn(const dsc_trainer *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Before the first step: warns of options that have no effect, milestones that are never reached, suspicious data. */
void dsc_warn_of_start(dsc_trainer *t, const char *resumed);
/* After a step was collected: warns of a loss that explodes. */
void dsc_warn_of_loss(dsc_trainer *t);
/* After an evaluation: warns of an accuracy that is no better than guessing. */
void dsc_warn_of_accuracy(dsc_trainer *t, const dsc_eval_result *result);

#endif
