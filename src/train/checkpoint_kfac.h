/* K-FAC's part of the state file: its entries (dsc_kfac_state_entries) under "kfac.", the same for every
 * number of ranks and strategy; where every rank has a K-FAC of its own (snapshot->kfac_alone), under
 * "rank.R.kfac.", which is checkpoint_kfac_ranks.c's. They pass through rank 0 one by one. Either form loads
 * into either kind of run: a common K-FAC takes rank 0's entries, rank r of a run with its own those of rank
 * r mod P, or the common ones. Without K-FAC (snapshot->kfac NULL) nothing is written, and what a file holds
 * is left alone. */
#ifndef DSC_TRAIN_CHECKPOINT_KFAC_H
#define DSC_TRAIN_CHECKPOINT_KFAC_H

#include "train/checkpoint.h"

#define DSC_KFAC_PREFIX "kfac."

/* What a file holds for this run. */
typedef struct dsc_kfac_source_file {
    int found;
    int alone;     /* of every rank its own */
    int64_t ranks; /* that wrote it */
} dsc_kfac_source_file;

/* Rank 0: metadata, and the declaration of all entries. */
dsc_status dsc_checkpoint_kfac_declare(const dsc_snapshot *s, dsc_st_writer *writer) DSC_MUST_CHECK;
/* Writes all entries, which are the writer's tensors from `first` on; writer matters on rank 0 only.
 * Collective; fails on all ranks or on none. Every entry is collected even when one cannot be written. */
dsc_status dsc_checkpoint_kfac_save(const dsc_snapshot *s, dsc_st_writer *writer,
                                    int64_t first) DSC_MUST_CHECK;

/* Rank 0: whether the file, written by so many ranks, holds a state for this run. DSC_E_FORMAT when it does
 * and the state does not fit. */
dsc_status dsc_checkpoint_kfac_check(const dsc_snapshot *s, const dsc_st_reader *reader, int64_t ranks,
                                     dsc_kfac_source_file *file) DSC_MUST_CHECK;
/* Loads what the check found: counters and factors, and decompositions if they are those that this run makes.
 * reader: NULL but on rank 0, where alone `file` matters. Collective; fails on all ranks or on none. */
dsc_status dsc_checkpoint_kfac_load(const dsc_snapshot *s, const dsc_st_reader *reader,
                                    dsc_kfac_source_file *file) DSC_MUST_CHECK;

/* ---- for checkpoint_kfac_ranks.c ---- */

/* Of a run where every rank has its own; as the functions above. */
dsc_status dsc_checkpoint_kfac_save_ranks(const dsc_snapshot *s, dsc_st_writer *writer,
                                          int64_t first) DSC_MUST_CHECK;
dsc_status dsc_checkpoint_kfac_load_ranks(const dsc_snapshot *s, const dsc_st_reader *reader,
                                          const dsc_kfac_source_file *file) DSC_MUST_CHECK;
int64_t dsc_checkpoint_kfac_count(const dsc_snapshot *s);
size_t dsc_checkpoint_kfac_bytes(const dsc_kfac_entry *entry);
/* Bytes of the largest entry. */
size_t dsc_checkpoint_kfac_largest(const dsc_snapshot *s);
/* Rank 0: an entry for rank r (a common K-FAC: 0); its numbers; and whether all optional ones are there,
 * which is logged if not. */
dsc_status dsc_checkpoint_kfac_find(const dsc_st_reader *reader, const dsc_kfac_source_file *file, int64_t r,
                                    const dsc_kfac_entry *entry, const dsc_st_tensor **out) DSC_MUST_CHECK;
dsc_status dsc_checkpoint_kfac_read(const dsc_st_reader *reader, const dsc_kfac_source_file *file, int64_t r,
                                    const dsc_kfac_entry *entry, void *host) DSC_MUST_CHECK;
dsc_status dsc_checkpoint_kfac_optional(const dsc_snapshot *s, const dsc_st_reader *reader,
                                        const dsc_kfac_source_file *file, int *found) DSC_MUST_CHECK;

#endif
