/* The contents of a state file: one list that names every tensor and number a run needs to continue. Saving,
 * loading, checking and moving to another number of ranks are loops over it (checkpoint_write.c,
 * checkpoint_read.c). A new piece of state is one line in state_list.c.
 *
 *   train.*            progress of the run (train_state.h); losses and loss scale are rank 0's
 *   optimizer.steps    steps the optimiser has done
 *   optimizer.NAME     the optimiser's tensors, in this library's layout
 *   NAME               running statistics of batch norm
 *   kfac.NAME          K-FAC's counters, factors and decompositions (dsc_kfac_state_entries)
 * and with gossip
 *   train              F64[4]: sum and number of the losses of this epoch, loss scale and its age
 *   consensus          F64[DSC_CONSENSUS_NUMBERS]: push-sum weight, rounds, ... (dsc_consensus_get_numbers)
 *   factors            F64[2]: weight and rounds of the factors' gossip, where K-FAC's scope is gossip
 *   parameter.NAME     numerators
 *   consensus.NAME     slow momentum
 *
 * Values that differ between ranks are stored once per rank, as "rank.R.NAME". */
#ifndef DSC_TRAIN_STATE_LIST_H
#define DSC_TRAIN_STATE_LIST_H

#include "consensus/table.h"
#include "train/checkpoint.h"
#include "train/share.h"

/* All items of a part are stored in the same form in a file: once, or once per rank. */
typedef enum dsc_state_part {
    DSC_STATE_RUN,     /* once */
    DSC_STATE_OPTIM,   /* once per rank with gossip, else once */
    DSC_STATE_BUFFERS, /* once per rank */
    DSC_STATE_GOSSIP,  /* once per rank; useless for another algorithm, graph or number of ranks */
    DSC_STATE_KFAC,    /* once per rank where every rank has a K-FAC of its own, else once */
    DSC_STATE_PARTS
} dsc_state_part;

/* Values that a number may have. */
typedef struct dsc_state_bound {
    double low, high;
    const char *text; /* "from 0 to 2^53" */
} dsc_state_bound;

typedef struct dsc_state_item {
    char *name; /* without "rank.R." */
    dsc_state_part part;
    int per_rank; /* every rank of this run has its own */
    /* Type, shape and memory. If its device is NULL, the memory is host memory in the list's `numbers`; if
     * its data is NULL, the item is entry `kfac_index` of K-FAC's state. */
    dsc_tensor value;
    int64_t kfac_index;
    const dsc_state_bound *bounds; /* one for each number; NULL: any value is valid */
    /* Not NULL: number `same_index` must be equal on all ranks, and messages call it by this name. */
    const char *same;
    int64_t same_index;
    int finite;   /* infinities and NaN are refused */
    int optional; /* a file may lack it: then it is all zero */
    int late;     /* K-FAC's decompositions: loaded after everything else, all or none */
} dsc_state_item;

/* A tensor of the state file. */
typedef struct dsc_state_place {
    const dsc_state_item *item;
    int rank; /* the rank it belongs to; 0 for one that all ranks share */
} dsc_state_place;

/* Items point into this struct, so it may not be copied. */
typedef struct dsc_state_list {
    dsc_state_item *items;
    int64_t count, capacity;
    dsc_state_place *places; /* in the order of the file */
    int64_t place_count;
    struct {
        dsc_train_state state;
        int64_t optim_steps;
        double train[4], consensus[DSC_CONSENSUS_NUMBERS], factors[2];
    } numbers; /* copied here from the run to be saved, or loaded here before the run takes them over */
} dsc_state_list;

/* Lists the state of this run, with its present numbers. The list must be destroyed even after a failure. */
dsc_status dsc_state_list_create(const dsc_snapshot *s, dsc_state_list *list) DSC_MUST_CHECK;
void dsc_state_list_destroy(dsc_state_list *list);
/* Opens a carrier with enough memory for every item that this rank handles. Not collective. */
dsc_status dsc_state_list_carry(const dsc_snapshot *s, const dsc_state_list *list,
                                dsc_carrier *out) DSC_MUST_CHECK;
/* Copies the list's numbers into the run; with `gossip` also those of DSC_STATE_GOSSIP, whose tensors have been
 * loaded already. DSC_E_FORMAT or DSC_E_INVALID when the consensus refuses them. */
dsc_status dsc_state_list_apply(const dsc_snapshot *s, const dsc_state_list *list, int gossip) DSC_MUST_CHECK;

/* Copy this rank's value of an item to host memory, and back. For a K-FAC that all ranks share they are
 * collective, and only rank 0's memory is used; otherwise they concern the calling rank only. They block. */
dsc_status dsc_state_item_get(const dsc_snapshot *s, const dsc_state_item *item, void *host) DSC_MUST_CHECK;
dsc_status dsc_state_item_set(const dsc_snapshot *s, const dsc_state_item *item,
                              const void *host) DSC_MUST_CHECK;
/* The item "train" of a gossip run, for a run whose list lacks it. Its values are in `numbers`; its name is static. */
dsc_state_item dsc_state_item_losses(double numbers[4]);
/* 1 for an item of a K-FAC that all ranks share. */
int dsc_state_item_is_collective(const dsc_state_item *item);
/* "NAME" or "rank.R.NAME", in new memory. */
dsc_status dsc_state_item_name(const dsc_state_item *item, int per_rank, int64_t rank,
                               char **out) DSC_MUST_CHECK;

#endif
