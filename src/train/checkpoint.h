/* Checkpoints: all of a run in two files, written by rank 0 so that they appear whole or not at all.
 *
 * The model file holds the state dict, batch-norm statistics as rank 0 has them, or what evaluations judge
 * instead (snapshot->show). The state file holds
 *   train.*           where the run stands, one number each (state.h); of losses and loss scale rank 0's
 *   optimizer.steps   steps the optimiser has done
 *   optimizer.*       its tensors, where they are the same on every rank; in this library's layout
 *   kfac.*            K-FAC's factors, decompositions and counters, where there is K-FAC (checkpoint_kfac.h)
 *   rank.R.*          what differs between ranks (checkpoint_ranks.h)
 * and, where convolutions were tuned, their engines in its metadata (engines.h).
 * Only rank 0 reads and writes; the rest travels through the communicator, so the other ranks need not see
 * the directory. A run may go on with another number of ranks than P that wrote it: rank r then takes the
 * statistics of rank r mod P. Gossip goes on exactly with the same way, graph and number of ranks only; else
 * everybody starts from the model file, with the optimiser's tensors of rank r mod P. */
#ifndef DSC_TRAIN_CHECKPOINT_H
#define DSC_TRAIN_CHECKPOINT_H

#include "descent/comm.h"
#include "descent/kfac.h"
#include "descent/model.h"
#include "descent/optim.h"
#include "descent/train.h"
#include "train/factors.h"
#include "train/safetensors.h"
#include "train/state.h"

/* What is saved and loaded; everything is lent. */
typedef struct dsc_snapshot {
    dsc_comm *comm;
    dsc_queue *queue;
    dsc_model *model;
    dsc_optim *optim;
    dsc_kfac *kfac; /* NULL: none */
    const dsc_train_options *options;
    int64_t samples; /* in the data set */
    dsc_train_state *state;
    dsc_consensus *gossip; /* settled; NULL where all ranks hold the same parameters */
    dsc_factors *factors;  /* settled; NULL: none */
    int kfac_alone;        /* kfac is this rank's own */
    /* Puts what the model file shall hold into the model (on 1), and back. Collective. NULL: it is there. */
    dsc_status (*show)(void *context, int on);
    void *show_context;
    int *as_it_was; /* set by loading, unless NULL: every rank stands where it stood, parameters included */
} dsc_snapshot;

/* What the metadata of a file says about the model and its data. */
typedef struct dsc_model_facts {
    char model[64]; /* "" when it does not say */
    int64_t classes, height, width, channels;
    char data[DSC_DATA_SIZE]; /* that it was trained on; "" when it does not say */
    int has_seed;
    uint64_t seed;
} dsc_model_facts;

/* Writes both files and `latest`, then removes what need not stay. `bytes` (rank 0): of both files.
 * Collective; fails on all ranks or on none. A failure leaves earlier checkpoints as they were, and no
 * temporary file. */
dsc_status dsc_checkpoint_save(const dsc_snapshot *s, const char *directory, int64_t *bytes) DSC_MUST_CHECK;
/* Loads both files (path: the model's, read on rank 0 only). Collective; fails on all ranks or on none. */
dsc_status dsc_checkpoint_load(const dsc_snapshot *s, const char *path) DSC_MUST_CHECK;
/* Reads the model's facts; DSC_E_FORMAT when they are there and make no sense. Not collective. */
dsc_status dsc_checkpoint_facts(const dsc_st_reader *reader, dsc_model_facts *facts) DSC_MUST_CHECK;

#endif
