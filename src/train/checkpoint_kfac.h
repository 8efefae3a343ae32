/* K-FAC's part of the state file: its entries (dsc_kfac_state_entries) under "kfac.", the same for every
 * number of ranks and strategy. They pass through rank 0 one by one. Without K-FAC (snapshot->kfac NULL)
 * nothing is written, and what a file holds is left alone. */
#ifndef DSC_TRAIN_CHECKPOINT_KFAC_H
#define DSC_TRAIN_CHECKPOINT_KFAC_H

#include "train/checkpoint.h"

/* Rank 0: metadata, and the declaration of all entries. */
dsc_status dsc_checkpoint_kfac_declare(const dsc_snapshot *s, dsc_st_writer *writer) DSC_MUST_CHECK;
/* Writes all entries, which are the writer's tensors from `first` on; writer matters on rank 0 only.
 * Collective; fails on all ranks or on none. Every entry is collected even when one cannot be written. */
dsc_status dsc_checkpoint_kfac_save(const dsc_snapshot *s, dsc_st_writer *writer,
                                    int64_t first) DSC_MUST_CHECK;

/* Rank 0: whether the file holds a state for this run. DSC_E_FORMAT when it does and the state does not fit.
 */
dsc_status dsc_checkpoint_kfac_check(const dsc_snapshot *s, const dsc_st_reader *reader,
                                     int *found) DSC_MUST_CHECK;
/* Loads what the check found: counters and factors, and decompositions if they are those that this run makes.
 * reader: NULL but on rank 0, where alone `found` matters. Collective; fails on all ranks or on none. */
dsc_status dsc_checkpoint_kfac_load(const dsc_snapshot *s, const dsc_st_reader *reader,
                                    int found) DSC_MUST_CHECK;

#endif
