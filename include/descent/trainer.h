/* The trainer: trains the caller's own model on the caller's own data, with everything that `descent train`
 * offers: K-FAC, gossip, steps recorded as CUDA graphs on GPUs, checkpoints, metrics, evaluation, stop and resume.
 *
 *   dsc_trainer_create(comm, device, model, train, val, &options, &trainer);
 *   dsc_trainer_run(trainer, &result);            to the end: evaluations, checkpoints, metrics
 *   dsc_trainer_destroy(&trainer);
 *
 * or, instead of dsc_trainer_run, the caller's own loop around dsc_trainer_step. Options, results and progress
 * reports are those of train.h.
 *
 * The trainer keeps pointers to communicator, device, model and data sets, which stay the caller's and must
 * outlive it; options are copied, strings included. No pointer may be NULL unless its function says so.
 *
 * All functions are collective unless they say otherwise: every rank calls them in the same order. When one
 * fails, it fails on all ranks, except for steps: with gossip a rank may fail alone (see dsc_train_run), and
 * so does a rank whose own batch is refused, or whose device fails. The program must then end the job
 * (dsc_comm_abort). */
#ifndef DSC_TRAINER_H
#define DSC_TRAINER_H

#include "descent/data.h"
#include "descent/model.h"
#include "descent/train.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_trainer dsc_trainer;

/* The phases of a step, in the order in which they run. */
typedef enum dsc_phase {
    DSC_PHASE_DATA, /* waiting for the batch */
    DSC_PHASE_FORWARD,
    DSC_PHASE_BACKWARD,     /* loss and backward pass */
    DSC_PHASE_EXCHANGE,     /* averaging gradients, or waiting for messages of gossip */
    DSC_PHASE_FACTOR,       /* K-FAC: updating the factors */
    DSC_PHASE_DECOMPOSE,    /* K-FAC: decomposing them */
    DSC_PHASE_PRECONDITION, /* K-FAC: preconditioning the gradient */
    DSC_PHASE_UPDATE,       /* the optimiser */
    DSC_PHASE_COUNT
} dsc_phase;

/* Returns the name of a phase, a static string: "data", "forward", ...; "unknown" for other values. */
DSC_API const char *dsc_phase_name(dsc_phase phase);

/* Sizes of arrays, with space for phases and kinds of traffic that later versions may add. */
enum { DSC_PHASE_ROOM = 16, DSC_TRAFFIC_ROOM = 16 };

/* The results of a step. With gossip, loss and flags are this rank's own; otherwise they are those of all
 * ranks together. The caller sets `size` to sizeof(dsc_step_report). */
typedef struct dsc_step_report {
    size_t size;
    int64_t step;   /* the number of this step, from 1; 0: no step has finished yet */
    int64_t epoch;  /* the epoch it belongs to, from 0 */
    double time_s;  /* wall-clock seconds of the run at the end of the step, with the runs that it resumes */
    double seconds; /* wall-clock seconds of this step */
    double loss;    /* mean over the batch */
    double lr;
    double nu;                        /* the factor of K-FAC's KL clip; NaN without K-FAC */
    double loss_scale;                /* scale of the loss in fp16; 1 for other types */
    int skipped;                      /* 1: gradients overflowed in fp16, and nothing was updated */
    int decomposed;                   /* 1: K-FAC decomposed its factors */
    int stop_requested;               /* 1: a rank was asked to stop (dsc_train_request_stop) */
    int metrics_failed;               /* 1: a rank could not write its metrics */
    double phase_ms[DSC_PHASE_ROOM];  /* milliseconds by dsc_phase; on GPUs see dsc_trainer_time_phases */
    uint64_t bytes[DSC_TRAFFIC_ROOM]; /* sent by this rank in this step, by dsc_traffic */
} dsc_step_report;

/* Creates a trainer; plans and allocates everything that a step needs. The caller destroys it with dsc_trainer_destroy.
 * `val` may be NULL: then nothing is evaluated. `train` may be NULL if the caller passes the batches itself
 * (dsc_trainer_step_on). The model must be sealed; it has its own precision and label smoothing, so the options model,
 * data, image_size, activations and label_smoothing are not used. options may be NULL: the defaults. If options.resume
 * is set, that checkpoint is loaded at once; if options.out is set, the trainer creates that directory and locks it
 * against other runs. */
DSC_API dsc_status dsc_trainer_create(dsc_comm *comm, dsc_device *device, dsc_model *model,
                                      dsc_dataset *train, dsc_dataset *val, const dsc_train_options *options,
                                      dsc_trainer **out) DSC_MUST_CHECK;
/* The same for a model and data that the options name; the trainer creates and owns them. */
DSC_API dsc_status dsc_trainer_create_named(dsc_comm *comm, dsc_device *device,
                                            const dsc_train_options *options,
                                            dsc_trainer **out) DSC_MUST_CHECK;
/* Destroys a trainer and sets *trainer to NULL. Accepts NULL and *trainer == NULL. */
DSC_API void dsc_trainer_destroy(dsc_trainer **trainer);

/* Trains from the current step to the end that the options set, with evaluations, checkpoints, metrics and
 * progress reports. `result` (may be NULL) is filled in after failures, too. Errors are those of
 * dsc_train_run. After DSC_E_INTERRUPTED another call continues the run. */
DSC_API dsc_status dsc_trainer_run(dsc_trainer *trainer, dsc_train_result *result) DSC_MUST_CHECK;

/* Does one step on the next batch of the training data; after the last batch of an epoch the next epoch begins.
 * `report` (may be NULL; set its size first) describes the newest step that has finished: on host devices this one, on
 * GPUs the one before, because the call does not wait for the GPU. Writes a `step` line to the metrics, but neither
 * evaluates nor saves. DSC_E_NUMERIC if the loss is not finite: then nothing was updated. */
DSC_API dsc_status dsc_trainer_step(dsc_trainer *trainer, dsc_step_report *report) DSC_MUST_CHECK;
/* Does one step on the caller's batch: x[batch_size, h, w, c], F32 or of the model's type, and labels
 * I32[batch_size * dsc_model_positions], sample after sample, both on the device; a row with a negative label is
 * left out. Batches that do not fit are refused. The memory may be changed once the step's work is done: after
 * dsc_trainer_finish, or, if every step uses the same memory, by work that the caller puts into dsc_trainer_queue.
 * An epoch is options.epoch_steps steps long. Not with options.batches_per_allreduce > 1. */
DSC_API dsc_status dsc_trainer_step_on(dsc_trainer *trainer, const dsc_tensor *x, const dsc_tensor *labels,
                                       dsc_step_report *report) DSC_MUST_CHECK;
/* Waits until all steps are done; `report` (may be NULL) describes the last. With gossip this also completes
 * all messages in flight. */
DSC_API dsc_status dsc_trainer_finish(dsc_trainer *trainer, dsc_step_report *report) DSC_MUST_CHECK;
/* Turns the timing of phases on a GPU on or off. It costs a little GPU time, and is on by default when there
 * is an output directory. On host devices phases are always timed. Not collective. */
DSC_API void dsc_trainer_time_phases(dsc_trainer *trainer, int on);
/* Fixes the learning rate from the next step on, without warm-up and schedule, at the rate that options.lr = `lr`
 * stands for: `lr`, times ranks and accumulated batches if options.lr_scaling is set. 0: the schedule of the options
 * again. Every rank must set the same rate. It is not stored in checkpoints. Not collective. */
DSC_API void dsc_trainer_set_lr(dsc_trainer *trainer, double lr);

/* Evaluates on `data` (NULL: the validation set), all ranks together, each sample once. With gossip the average of the
 * models over the ranks is evaluated. */
DSC_API dsc_status dsc_trainer_evaluate(dsc_trainer *trainer, dsc_dataset *data,
                                        dsc_eval_result *result) DSC_MUST_CHECK;
/* Writes a checkpoint of the current step to `directory` (NULL: options.out), in the files that docs/files.md
 * describes. Older checkpoints in options.out are removed according to options.keep; in other directories nothing is
 * removed. Parameters that are not finite are refused. */
DSC_API dsc_status dsc_trainer_save(dsc_trainer *trainer, const char *directory) DSC_MUST_CHECK;
/* Continues from a checkpoint: `path` is what options.resume can be, such as a model file or the directory of a run,
 * whose latest checkpoint is used. Allowed only before the first step, and not after options.resume. With the same
 * ranks, threads and device, the following steps give the same bits as in the run that was saved; a different number of
 * ranks is possible. On a GPU that tunes its convolutions only options.resume adopts the algorithms that the checkpoint
 * names; with this function they are those that were chosen when the trainer was created. */
DSC_API dsc_status dsc_trainer_resume(dsc_trainer *trainer, const char *path) DSC_MUST_CHECK;

/* ---- queries; not collective, and everything returned is owned by the trainer ---- */
/* Return the number of steps done, and the epoch that the next step belongs to. */
DSC_API int64_t dsc_trainer_steps(const dsc_trainer *trainer);
DSC_API int64_t dsc_trainer_epoch(const dsc_trainer *trainer);
/* Returns 1 if the epochs or steps of the options are done, otherwise 0. */
DSC_API int dsc_trainer_is_done(const dsc_trainer *trainer);
/* Returns the queue that steps put their work into. */
DSC_API dsc_queue *dsc_trainer_queue(const dsc_trainer *trainer);
/* Returns the preconditioner, for its reports; NULL without K-FAC. */
DSC_API dsc_kfac *dsc_trainer_kfac(const dsc_trainer *trainer);

/* ---- without a trainer ---- */
/* Evaluates a model on all samples of `data`, all ranks together, each once, in batches of `batch` per rank.
 * Every rank must hold the same parameters. */
DSC_API dsc_status dsc_model_evaluate(dsc_comm *comm, dsc_model *model, dsc_dataset *data, int64_t batch,
                                      dsc_eval_result *result) DSC_MUST_CHECK;
/* Describes the layers of a model that K-FAC can precondition, for dsc_kfac_create: *out becomes an array of *count
 * layers, which the caller frees with dsc_kfac_layers_free; names and gradients stay the model's. Layer i is layer i of
 * dsc_model_layers. The macro passes the size of the struct that the caller was compiled with. Not collective. */
DSC_API dsc_status dsc_kfac_layers_of_model_sized(const dsc_model *model, size_t size, dsc_kfac_layer **out,
                                                  int64_t *count) DSC_MUST_CHECK;
#define dsc_kfac_layers_of_model(model, out, count)                                                          \
    dsc_kfac_layers_of_model_sized((model), sizeof **(out), (out), (count))
/* Frees *layers and sets it to NULL; accepts NULL. */
DSC_API void dsc_kfac_layers_free(dsc_kfac_layer **layers);

#ifdef __cplusplus
}
#endif
#endif
