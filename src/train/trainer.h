/* The trainer: everything a training step needs, made once; then one step after the other.
 *
 *   settings.c    options: defaults, checks; same_options.c: whether all ranks have the same
 *   trainer.c     creation and destruction; engines.c: which engines its convolutions take
 *   start.c       before the first step: output directory, resume; saving a checkpoint
 *   step.c        one step; stepper.c: its work on the device; precondition.c: K-FAC's schedules and scope;
 *                 factors.c: its factors averaged by gossip; kfac_layers.c: the model as K-FAC sees it
 *   gossip.c      where ranks come together whose steps do not wait for each other
 *   survive.c     going on without ranks that were lost
 *   loop.c        epochs, evaluations, checkpoints, the end: dsc_train_run
 *   eval.c        evaluation, inside a run and of a file: dsc_eval_run; show.c: the model that is judged
 *   statedict.c   the model's tensors to and from a file, in PyTorch's layout
 *   checkpoint.c  saving all of a run; checkpoint_load.c: loading it; checkpoint_parts.c: its contents;
 *                 checkpoint_ranks.c: what differs between ranks; checkpoint_kfac.c: K-FAC's part, and
 *                 checkpoint_kfac_ranks.c where every rank has its own; checkpoint_directory.c: which files
 *                 there are and stay
 *   share.c       data of one rank to another, or to everybody
 *   metrics.c     metrics.jsonl
 *   safetensors*  the file format; file.c: files that appear whole or not at all; lock.c: one run in a
 *                 directory */
#ifndef DSC_TRAIN_TRAINER_H
#define DSC_TRAIN_TRAINER_H

#include "descent/consensus.h"
#include "descent/data.h"
#include "descent/model.h"
#include "descent/optim.h"
#include "descent/train.h"
#include "train/lock.h"
#include "train/metrics.h"
#include "train/settings.h"
#include "train/state.h"
#include "train/stepper.h"

typedef struct dsc_gossip dsc_gossip;

typedef struct dsc_trainer {
    dsc_settings settings;
    dsc_train_options options; /* settings.train, whose parts are in `settings` */
    dsc_comm *comm;
    struct {
        dsc_comm *comm;
        dsc_queue *queue; /* its own before, which it gets back */
    } given;
    dsc_comm *next_comm; /* the same, where ranks were lost; NULL: `comm` is the caller's */
    dsc_device *device;
    int rank, ranks;
    int ranks_told; /* how many there are as far as was told */
    int collective; /* all ranks take part in every step, and hold the same parameters */

    dsc_queue *queue;
    dsc_dataset *train_set, *val_set; /* val_set, val_loader, val_exec: NULL without evaluation */
    dsc_loader *loader, *val_loader;
    dsc_loader *whole_loader; /* all of val_set on this rank; NULL unless every rank's model is judged */
    dsc_model *model;
    dsc_exec *exec, *val_exec;
    dsc_optim *optim;
    dsc_consensus *consensus;
    dsc_kfac *kfac;       /* NULL: gradients are left as they are */
    dsc_comm *self;       /* where K-FAC is this rank's own */
    dsc_factors *factors; /* its factors by gossip; NULL: not so */
    dsc_gossip *gossip;   /* NULL where steps are collective */
    dsc_schedule schedule;
    dsc_metrics *metrics; /* rank 0 with an output directory only */
    dsc_lock *lock;       /* the same */

    dsc_dataset_info info;
    int64_t step_images;                   /* of a step, all ranks and micro-batches together */
    int64_t epoch_steps;                   /* whole steps of an epoch */
    int64_t loader_epoch, loader_position; /* where the next batch of `loader` starts */

    dsc_train_state state;
    int64_t saved_step; /* of the last checkpoint in the output directory, -1: none */
    char *good;         /* the last checkpoint written or resumed from; NULL: none */
    int save_now;       /* the epoch that just ended wants a checkpoint */
    double start;       /* clock when the run began, less the seconds of the runs it continues */
    double process_start;
    double step_seconds;    /* in steps of this process */
    int64_t process_images; /* in them, of all ranks */
    double epoch_seconds;   /* in steps of this epoch, in this process */
    int64_t epoch_images;   /* images of this epoch, in this process */
    double smoothed;        /* seconds of a step, recent ones weighing more; 0 before the first */
    dsc_stepper *stepper;
    dsc_step_report pending[2]; /* of steps that were put into the queue; their results are still to come */
    dsc_step_report report;     /* of the last step that was collected */
    int has_report;             /* and nobody was told of it */

    /* Gossip. */
    struct {
        int stop, failed; /* as in a report, known to all ranks alike */
    } agreed;
    double met_loss[2]; /* loss_sum and loss_rows of all ranks, at the last meeting */
    int peers;          /* in force */
    int lost;           /* this rank failed where others may have gone on, which then cannot help to end */

    dsc_tensor *own_buffers; /* a copy, while the model holds others (show.c); NULL: no memory yet */
    int buffers_kept;        /* it does */
} dsc_trainer;

/* Everything but checkpoint and metrics. Collective: when one rank fails, all do. */
dsc_status dsc_trainer_create(dsc_comm *comm, dsc_device *device, const dsc_train_options *options,
                              dsc_trainer **out) DSC_MUST_CHECK;
void dsc_trainer_destroy(dsc_trainer **trainer);

/* Parts of it, for a number of ranks that has changed: loaders, sizes and schedule, of what is there anew;
 * consensus and stepper, when there is none. The last two are collective: when one rank fails, all do. */
dsc_status dsc_trainer_spread(dsc_trainer *t) DSC_MUST_CHECK;
dsc_status dsc_trainer_make_consensus(dsc_trainer *t) DSC_MUST_CHECK;
dsc_status dsc_trainer_make_stepper(dsc_trainer *t) DSC_MUST_CHECK;

/* One step. On a host device `report` and `state` then tell what came out of it, on others of the one before
 * (`has_report`). Collective, and losses are those of all ranks, where t->collective says so; with gossip
 * both are the rank's own. DSC_E_NUMERIC on a loss that is not finite: then nothing was updated (on any rank,
 * where it is collective). */
dsc_status dsc_trainer_step(dsc_trainer *t) DSC_MUST_CHECK;
/* Waits for the oldest step that was not collected, if any, and makes it `report`. */
dsc_status dsc_trainer_collect(dsc_trainer *t) DSC_MUST_CHECK;
/* The epoch of the last step done; 0 before the first. */
int64_t dsc_trainer_last_epoch(const dsc_trainer *t);
/* Fewer samples are left in this epoch than a step takes. */
int dsc_trainer_epoch_done(const dsc_trainer *t);
/* Compares the ranks' parameters. Collective; fails on all ranks alike. */
dsc_status dsc_trainer_check(dsc_trainer *t) DSC_MUST_CHECK;

/* The whole validation set with the model that dsc_trainer_show shows. Collective. */
dsc_status dsc_trainer_evaluate(dsc_trainer *t, dsc_eval_result *result) DSC_MUST_CHECK;
/* Every rank's own model (its z, its batch-norm statistics), each on the whole validation set. Collective. */
dsc_status dsc_trainer_evaluate_ranks(dsc_trainer *t, dsc_ranks_result *result) DSC_MUST_CHECK;

/* Puts into the model what is judged and what a checkpoint's model file holds: the ranks' average, with rank
 * 0's batch-norm statistics, or their average; and back. After a meeting. Collective; blocks. */
dsc_status dsc_trainer_show(dsc_trainer *t) DSC_MUST_CHECK;
dsc_status dsc_trainer_hide(dsc_trainer *t) DSC_MUST_CHECK;
/* 1 when that is something else than rank 0 has anyway. */
int dsc_trainer_shows_other(const dsc_trainer *t);
void dsc_trainer_free_shown(dsc_trainer *t);
/* Puts the own batch-norm statistics back if showing or hiding was broken off. */
dsc_status dsc_trainer_recover_buffers(dsc_trainer *t) DSC_MUST_CHECK;

/* 1 when dsc_train_request_stop was called in this process. */
int dsc_stop_requested(void);
void dsc_stop_clear(void);

#endif
