/* Checks that all ranks of a run were given the same options. */
#ifndef DSC_TRAIN_SAME_OPTIONS_H
#define DSC_TRAIN_SAME_OPTIONS_H

#include "train/trainer_internal.h"

/* DSC_E_INVALID, naming the first option that differs, unless all ranks have rank 0's options. Only options
 * that concern one rank may differ: data_threads, the directory of its data, callbacks, and the names of
 * files that only rank 0 reads and writes (`out`, `resume`). Collective: when one rank fails, all do. */
dsc_status dsc_same_options_check(dsc_trainer *t) DSC_MUST_CHECK;

#endif
