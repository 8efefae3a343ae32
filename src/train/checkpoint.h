/* Checkpoints: the whole state of a run in two files, which appear complete or not at all.
 *
 * The model file holds the state dict (model_file.h), the state file everything else: state_list.h lists its
 * contents. The metadata of the state file describes the run that wrote it and, if convolutions were tuned,
 * their engines (engines.h).
 *
 * Only rank 0 reads and writes files; data of other ranks go through the communicator, so these ranks need
 * not see the directory. A run may continue with another number of ranks than the P that wrote the files:
 * rank r then takes the state of rank r mod P. With gossip a run continues exactly only with the same
 * algorithm, graph and number of ranks; otherwise all ranks start from the model file. The state of a K-FAC
 * that all ranks share can be loaded into K-FACs that belong to one rank each, and vice versa. */
#ifndef DSC_TRAIN_CHECKPOINT_H
#define DSC_TRAIN_CHECKPOINT_H

#include "descent/comm.h"
#include "descent/data.h"
#include "descent/kfac.h"
#include "descent/model.h"
#include "descent/optim.h"
#include "descent/train.h"
#include "train/ema.h"
#include "train/factors.h"
#include "train/safetensors.h"
#include "train/train_state.h"

/* The parts of a run that are saved and loaded; all of them stay the caller's. */
typedef struct dsc_snapshot {
    dsc_comm *comm;
    dsc_queue *queue;
    dsc_model *model;
    dsc_optim *optim;
    dsc_kfac *kfac; /* NULL: none */
    const dsc_train_options *options;
    int64_t samples;         /* in the data set */
    const dsc_dataset *data; /* whose class names and normalisation are stored; NULL: neither is */
    dsc_train_state *state;
    dsc_consensus *gossip; /* settled; NULL where all ranks hold the same parameters */
    dsc_factors *factors;  /* settled; NULL: none */
    int kfac_alone;        /* 1: every rank has its own K-FAC */
    const dsc_ema *ema;    /* NULL: none */
} dsc_snapshot;

/* Writes the model file `path`, X.safetensors, under a temporary name; *out is the writer on rank 0 and NULL
 * elsewhere. The model is written as it is: if evaluations use other values than training, swap them in
 * before and out afterwards. Collective; fails on all ranks or on none. */
dsc_status dsc_checkpoint_write_model(const dsc_snapshot *s, const char *path,
                                      dsc_st_writer **out) DSC_MUST_CHECK;
/* Writes the state file beside it, X.state.safetensors, and gives all files their names. Destroys *model, and *ema
 * (*ema NULL: there is none), the file X.ema.safetensors of the average of the weights: both were made by
 * dsc_checkpoint_write_model. `bytes` (rank 0): the size of all files together. Collective; fails on all ranks or on
 * none. A failure leaves older files of these names as they were, and no temporary file. */
dsc_status dsc_checkpoint_save(const dsc_snapshot *s, const char *path, dsc_st_writer **model,
                               dsc_st_writer **ema, int64_t *bytes) DSC_MUST_CHECK;
/* Loads both files; rank 0 reads, `path` names the model file. *exact (NULL: not asked for) becomes 1 when
 * every rank of a gossip run has its own parameters back, 0 when all have those of the model file. Rank 0
 * checks the files before anything in the run changes. Collective; fails on all ranks or on none. */
dsc_status dsc_checkpoint_load(const dsc_snapshot *s, const char *path, int *exact) DSC_MUST_CHECK;

/* Name of the graph in the state file's metadata. */
const char *dsc_checkpoint_graph(const dsc_snapshot *s);

#endif
