/* The trainer's struct and what its source files share. The files of this folder:
 *
 *   trainer.c     creating and destroying a trainer
 *   begin.c       before the first step: output directory, resume, the `run` line; saving a checkpoint
 *   step.c        one training step, and around it:
 *                   recorder.c    recording its work once and replaying it
 *                   phases.c      how long its phases take
 *                   results.c     its results, which are read a step later on a GPU
 *                   loss_scale.c  the loss scale of fp16
 *   loop.c        epochs, evaluations, checkpoints, the end: dsc_trainer_run; early_stop.c: ending early
 *   bad_images.c  images that cannot be read
 *   progress.c    reports of steps, epochs and evaluations; announce.c: what the run is, at its start;
 *                 warn.c: what looks wrong in it
 *   evaluate.c    evaluation inside a run, and of a file: dsc_eval_run
 *   swap.c        the model that is evaluated and saved when ranks hold different ones
 *   kfac_setup.c  K-FAC of a run: scope and schedules; factors.c: its factors averaged by gossip;
 *                 kfac_layers.c: the model's layers as K-FAC sees them
 *   finetune.c    starting from given weights, frozen parameters, the head's own rate
 *   damping.c     K-FAC's damping adapted by the reduction of the loss
 *   ema.c         the moving average of the weights; class_weights.c: weights of classes in the loss
 *   sync.c        where ranks that gossip synchronise
 *   survive.c     continuing without ranks that were lost
 *   engines.c     which engines the convolutions of a GPU use
 *   settings.c    the options: defaults, checks, comparison of ranks
 *   trace_file.c  the trace of a rank
 *   metrics.c     metrics.jsonl; tensorboard.c: the same as events, in the records of event_file.c
 *   state_list.c  the list of a run's state; checkpoint_write.c: saving it; checkpoint_read.c:
 *                 loading it; checkpoint_directory.c: which checkpoints a directory holds and keeps
 *   model_file.c  a model's own file: dsc_model_save, dsc_model_load; statedict.c: its tensors; hub_names.c: the names
 *                 that these have in files of the Hugging Face hub
 *   safetensors*  the file format; share.c: moving data between ranks; file.c: files that appear whole or
 *                 not at all; lock.c: keeps a second run out of a directory; died.c: the end of a run that was
 *                 killed */
#ifndef DSC_TRAIN_TRAINER_INTERNAL_H
#define DSC_TRAIN_TRAINER_INTERNAL_H

#include "descent/consensus.h"
#include "descent/optim.h"
#include "descent/trainer.h"
#include "train/bad_images.h"
#include "train/ema.h"
#include "train/factors.h"
#include "train/lock.h"
#include "train/loss_scale.h"
#include "train/metrics.h"
#include "train/phases.h"
#include "train/recorder.h"
#include "train/results.h"
#include "train/settings.h"
#include "train/train_state.h"

typedef struct dsc_gossip dsc_gossip;

/* Memory for trying a step of K-FAC (damping.c); none where the damping is not adapted. */
typedef struct dsc_damping {
    int64_t param_count, buffer_count;
    int64_t *params;     /* indices of the parameters that K-FAC preconditions */
    dsc_tensor *values;  /* copies of them */
    dsc_tensor *buffers; /* copies of the batch-norm statistics */
    dsc_tensor stats;    /* F64[4]: of the loss after the step, over all ranks */
} dsc_damping;

enum { DSC_ORIGIN_SIZE = 1024 };

/* The checkpoint to resume from; "" for none. */
typedef struct dsc_origin {
    char path[DSC_ORIGIN_SIZE];
} dsc_origin;

/* What warnings (warn.c) remember of a run. */
typedef struct dsc_run_watch {
    int64_t steps;          /* collected in this process */
    int64_t evaluations;    /* done in this process */
    double loss;            /* smoothed over the last steps */
    double first;           /* `loss` after the first steps, but at least the loss of guessing */
    double lowest;          /* the lowest of `loss` */
    double chance;          /* the accuracy of guessing */
    int exploded, guessing; /* 1: the warning has been given */
} dsc_run_watch;

struct dsc_trainer {
    dsc_settings settings;
    dsc_train_options options; /* settings.train, whose parts are in `settings` */
    dsc_comm *comm;
    dsc_device *device;
    dsc_queue *queue;
    int rank, ranks;
    int collective; /* all ranks take part in every step, and hold the same parameters */

    /* The caller's, or created by name and `owned` by the trainer. train_set NULL: the caller passes the
     * batches; val_set NULL: nothing is evaluated. */
    dsc_model *model;
    dsc_dataset *train_set, *val_set;
    int owned;
    struct {
        dsc_comm *comm;
        dsc_queue *queue; /* the queue that `comm` used before, which is restored at the end */
    } caller;

    /* The objects that a step uses. */
    dsc_loader *loader;
    dsc_exec *exec;
    int beside; /* 1: K-FAC's captures may run concurrently with the backward pass of `exec` */
    dsc_optim *optim;
    double *rates; /* for each parameter the factor of its rate, 0: it is frozen; NULL: 1 for all */
    dsc_consensus *consensus;
    dsc_kfac *kfac;       /* NULL: gradients are left as they are */
    unsigned kfac_warned; /* bit a: the log has the message of K-FAC's alarm a */
    dsc_damping damping;
    dsc_ema *ema; /* the average of the weights over the steps; NULL: none */
    dsc_run_watch watch;
    dsc_comm *kfac_comm;  /* a communicator of this rank alone, where K-FAC is its own; else NULL */
    dsc_factors *factors; /* K-FAC's factors averaged by gossip; NULL: they are not */
    dsc_schedule schedule;
    dsc_target target; /* options.stop_at: reaching it ends the run */
    double fixed_rate; /* the rate of all steps, of dsc_trainer_set_lr; 0: the schedule's */
    dsc_recorder *recorder;
    dsc_phases phases;
    dsc_results *results;
    dsc_loss_scale loss_scale;
    double labels;                          /* expected number of labels of a sample */
    dsc_tensor class_weights;               /* F32[classes], in the training loss; no memory: 1 */
    dsc_tensor fisher_labels, fisher_stats; /* of the sampled Fisher */

    /* Evaluation; NULL without it. */
    dsc_exec *val_exec;
    dsc_loader *val_loader;   /* this rank's part of val_set */
    dsc_loader *whole_loader; /* all of val_set on this rank; NULL unless every rank's model is evaluated */
    dsc_tensor *own_buffers;  /* a copy of this rank's batch-norm statistics while others are swapped in */
    int buffers_swapped;      /* 1 while they are */

    /* Images that cannot be read. */
    struct {
        dsc_bad_images train, val;
        int64_t unnamed; /* found in training on all ranks since they were last named */
        int64_t own;     /* with gossip: found by this rank since the last synchronisation */
        int64_t in_val;  /* found in the last evaluation, all ranks */
    } bad;

    /* Sizes. */
    dsc_dataset_info info;                 /* of the training data */
    int64_t step_images;                   /* of a step, all ranks and micro-batches together */
    int64_t epoch_steps;                   /* whole steps of an epoch */
    int64_t loader_epoch, loader_position; /* where the next batch of `loader` starts */

    /* The progress of the run. */
    int begun; /* dsc_trainer_begin is done */
    dsc_train_state state;
    dsc_step_report report; /* of the last step that was collected */
    int64_t saved_step;     /* of the last checkpoint in the output directory, -1: none */
    char *good;             /* the last checkpoint written or resumed from; NULL: none */
    char *resume_path;      /* of dsc_trainer_resume */
    const char *origin_of;  /* the value of options.resume that `origin` was found for; NULL: none yet */
    dsc_origin origin;
    char *finetune_note; /* rank 0: a report of what options.init has loaded, in lines; NULL: nothing */
    int save_now;        /* the epoch that just ended wants a checkpoint */
    double start;        /* clock when the run began, less the seconds of the runs it continues */
    double process_start;

    /* Files of rank 0 with an output directory. */
    dsc_metrics *metrics;
    dsc_lock *lock;

    /* Speed, in this process. */
    double step_seconds, epoch_seconds; /* in steps; in steps of this epoch */
    dsc_load load;                      /* of the steps of this epoch */
    int64_t process_images, epoch_images;
    double smoothed_seconds; /* of a step, recent ones weighing more; 0 before the first */
    double peak;             /* operations per second that this rank's device reaches at most; 0: unknown */

    /* Gossip. */
    dsc_gossip *gossip; /* NULL where steps are collective */
    struct {
        int stop, failed; /* as in a report, known to all ranks alike */
    } agreed;
    /* Sum and rows of the epoch's losses over all ranks, at the last synchronisation. */
    double summed_loss[2];
    int peers; /* per step, at present */

    /* Lost ranks (survive.c). */
    dsc_comm *survivors; /* the communicator of the remaining ranks; NULL: no rank was lost */
    int reported_ranks;  /* number of ranks in the last progress report */
    int alone;           /* 1: this rank failed while others may continue, so they do not help to clean up */
};

/* Create parts of a trainer, at the start and after the number of ranks has changed: loaders, sizes and
 * schedule (_spread); the consensus; recorder, results and loss scale (_make_step). The last two parts must
 * have been freed before. Collective: when one rank fails, all do. */
dsc_status dsc_trainer_spread(dsc_trainer *t) DSC_MUST_CHECK;
dsc_status dsc_trainer_make_consensus(dsc_trainer *t) DSC_MUST_CHECK;
dsc_status dsc_trainer_make_step(dsc_trainer *t) DSC_MUST_CHECK;
void dsc_trainer_free_step(dsc_trainer *t);

/* ---- begin.c ---- */
/* The checkpoint that options.resume and options.out ask for. It is searched for only once, because the search may take
 * time and log warnings. Not collective. */
dsc_status dsc_origin_find(dsc_trainer *t, dsc_origin *from) DSC_MUST_CHECK;
/* Once, before the first step: prepares the output directory, resumes if asked to, gives all ranks rank
 * 0's parameters and opens the metrics. Collective; fails on all ranks or on none. */
dsc_status dsc_trainer_begin(dsc_trainer *t) DSC_MUST_CHECK;
/* After a synchronisation: writes a checkpoint of this step into `directory`, unless it is the output
 * directory and holds it already. Refuses parameters and batch-norm statistics that are not finite.
 * Collective; fails on all ranks or on none. */
dsc_status dsc_trainer_write_checkpoint(dsc_trainer *t, const char *directory) DSC_MUST_CHECK;
/* The last good checkpoint, for messages; "none" when there is none. */
const char *dsc_trainer_good(const dsc_trainer *t);

/* ---- step.c ---- */
/* Work of the thread that trains, which began at `began` and ends now, for the trace. `name`: a constant string. */
void dsc_trainer_trace(const dsc_trainer *t, const char *name, double began);
/* Micro-batch number `micro` of this step, of the training data. */
dsc_status dsc_trainer_next_batch(dsc_trainer *t, int64_t micro, dsc_batch *batch) DSC_MUST_CHECK;
/* One step; results of the oldest pending one are collected when more are pending than may be. */
dsc_status dsc_trainer_take_step(dsc_trainer *t, const dsc_batch *given) DSC_MUST_CHECK;
/* Waits for the oldest pending step, if any, makes it `report` and reports it. */
dsc_status dsc_trainer_collect(dsc_trainer *t) DSC_MUST_CHECK;
/* The same for all pending steps. */
dsc_status dsc_trainer_drain(dsc_trainer *t) DSC_MUST_CHECK;

/* ---- loop.c ---- */
/* Waits for all steps, and with gossip synchronises the ranks (sync.h). Collective with gossip. */
dsc_status dsc_trainer_synchronise(dsc_trainer *t) DSC_MUST_CHECK;
/* Returns `status`. For DSC_E_LOST it also sets t->alone when the remaining ranks cannot destroy shared objects
 * together. */
dsc_status dsc_trainer_note_loss(dsc_trainer *t, dsc_status status);
/* The epoch of the last step done; 0 before the first. */
int64_t dsc_trainer_last_epoch(const dsc_trainer *t);
/* 1 when this rank knows of more images that cannot be read than the options allow. With gossip the others
 * may not know yet. */
int dsc_trainer_finds_too_many_bad(const dsc_trainer *t);
/* Names the bad images that were found since the last call. All ranks must have found the same number.
 * Collective when there are any. */
dsc_status dsc_trainer_name_bad(dsc_trainer *t) DSC_MUST_CHECK;
/* 1 when fewer samples are left in this epoch than a step takes. */
int dsc_trainer_epoch_done(const dsc_trainer *t);
/* Compares the ranks' parameters. Collective; fails on all ranks alike. */
dsc_status dsc_trainer_check(dsc_trainer *t) DSC_MUST_CHECK;
/* 1 when dsc_train_request_stop was called in this process. */
int dsc_stop_requested(void);
void dsc_stop_clear(void);

/* ---- progress.c ---- */
/* An event of this kind with the present step and epoch; the caller fills in the rest. */
dsc_progress dsc_trainer_progress(const dsc_trainer *t, dsc_event_kind kind);
/* Hands an event to the caller's progress function, on rank 0 only. */
void dsc_trainer_emit(const dsc_trainer *t, const dsc_progress *progress);
/* 1 when the evaluation with the lowest loss is the best one, 0 when that with the highest accuracy is. */
int dsc_trainer_by_loss(const dsc_trainer *t);
/* Tokens of a sample; 0 of models of images. */
int64_t dsc_trainer_tokens(const dsc_trainer *t);
void dsc_trainer_emit_text(const dsc_trainer *t, dsc_event_kind kind, const char *text);
/* The step that was collected last; the epoch that has just ended; an evaluation. */
void dsc_trainer_report_step(dsc_trainer *t);
void dsc_trainer_report_epoch(dsc_trainer *t, int64_t epoch);
/* Writes a `load` line: what every rank did in the epoch that has ended. Collective. */
dsc_status dsc_trainer_report_load(dsc_trainer *trainer, int64_t epoch) DSC_MUST_CHECK;
void dsc_trainer_report_evaluation(dsc_trainer *t, int64_t epoch, const dsc_evaluation *e);
/* The `run` line of the metrics and the first events. `resumed`: the checkpoint, "" for none. Collective. */
dsc_status dsc_trainer_report_start(dsc_trainer *t, const char *resumed) DSC_MUST_CHECK;
/* Fills in the result of a run. */
void dsc_trainer_fill_result(dsc_trainer *t, dsc_train_result *result);

/* ---- evaluate.c ---- */
/* After a synchronisation: evaluates the model of dsc_trainer_swap_in on the whole validation set. Collective. */
dsc_status dsc_trainer_evaluate_mean(dsc_trainer *t, dsc_eval_result *result) DSC_MUST_CHECK;
/* The same with the average of the weights over the steps. Collective. */
dsc_status dsc_trainer_evaluate_ema(dsc_trainer *t, dsc_eval_result *result) DSC_MUST_CHECK;
/* Evaluates every rank's own model (its z, its batch-norm statistics), each on the whole validation set. Collective. */
dsc_status dsc_trainer_evaluate_ranks(dsc_trainer *t, dsc_ranks_result *result) DSC_MUST_CHECK;

/* ---- swap.c ---- */
/* swap_in puts into the model the values that are evaluated and saved in a checkpoint's model file: the average over
 * the ranks, with rank 0's batch-norm statistics or their average. swap_out puts this rank's own values back. After a
 * synchronisation. Collective; blocks. */
dsc_status dsc_trainer_swap_in(dsc_trainer *t) DSC_MUST_CHECK;
dsc_status dsc_trainer_swap_out(dsc_trainer *t) DSC_MUST_CHECK;
/* Gives all ranks the batch-norm statistics of rank 0's model or, with bn_average, the average. Collective. */
dsc_status dsc_trainer_unite_buffers(dsc_trainer *t) DSC_MUST_CHECK;
/* 1 when swapping changes the model, 0 when all ranks hold the model of rank 0 anyway. */
int dsc_trainer_swaps(const dsc_trainer *t);
void dsc_trainer_free_swapped(dsc_trainer *t);
/* Puts this rank's batch-norm statistics back after a failure between swapping in and out. */
dsc_status dsc_trainer_recover_buffers(dsc_trainer *t) DSC_MUST_CHECK;

#endif
