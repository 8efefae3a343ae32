/* What differs between ranks, in the state file under "rank.R.": a list of tensors, the same on every rank.
 *
 *   NAME              running statistics of batch norm
 * and with gossip
 *   train             F64[4]: sum and number of the losses of the epoch under way, loss scale and its age
 *   consensus         F64[DSC_CONSENSUS_NUMBERS]: push-sum weight, rounds, ... (dsc_consensus_get_numbers)
 *   factors           F64[2]: weight and rounds of the factors' gossip, where K-FAC's scope is gossip
 *   parameter.NAME    numerators
 *   optimizer.NAME    the optimiser's tensors
 *   consensus.NAME    slow momentum */
#ifndef DSC_TRAIN_CHECKPOINT_RANKS_H
#define DSC_TRAIN_CHECKPOINT_RANKS_H

#include "train/checkpoint.h"

/* Whether a run that cannot go on exactly takes a tensor over: from rank r mod P, or not at all; `factors`
 * may be missing. */
typedef enum dsc_rank_kind { DSC_RANK_TAKEN_OVER, DSC_RANK_EXACT, DSC_RANK_OPTIONAL } dsc_rank_kind;

typedef struct dsc_rank_item {
    const char *name; /* behind "rank.R." */
    dsc_rank_kind kind;
    dsc_tensor value; /* where it lives on this rank */
} dsc_rank_item;

typedef struct dsc_rank_list {
    dsc_rank_item *items;
    int64_t count;
    char *names;        /* memory of those that are made up */
    dsc_tensor numbers; /* memory of train, consensus, factors */
} dsc_rank_list;

dsc_status dsc_rank_list_create(const dsc_snapshot *s, dsc_rank_list *list) DSC_MUST_CHECK;
void dsc_rank_list_destroy(dsc_rank_list *list);
/* Bytes of the largest of them. */
size_t dsc_rank_list_largest(const dsc_rank_list *list);
/* The numbers as they are now go into the list's tensors; waits. */
dsc_status dsc_rank_list_collect(const dsc_snapshot *s, dsc_rank_list *list) DSC_MUST_CHECK;
/* And back: everything else of the list must be in place. DSC_E_FORMAT when they make no sense. */
dsc_status dsc_rank_list_apply(const dsc_snapshot *s, const dsc_rank_list *list) DSC_MUST_CHECK;

#endif
