/* Checks that all ranks of a run were given the same options. */
#ifndef DSC_TRAIN_SAME_OPTIONS_H
#define DSC_TRAIN_SAME_OPTIONS_H

#include "train/trainer_internal.h"

/* DSC_E_INVALID, naming the first option that differs, unless all ranks have rank 0's options. Only what a
 * rank needs for itself may differ: data_threads, where its data lies, names of files that rank 0 alone reads
 * and writes (`out`, `resume`), callbacks. Collective: when one rank fails, all do. */
dsc_status dsc_same_options_check(dsc_trainer *t) DSC_MUST_CHECK;

#endif
