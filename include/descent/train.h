/* Training and evaluation of models and data that are given by name, with metrics and checkpoints. The header
 * trainer.h does the same for the caller's own model and data, with the same options and results. */
#ifndef DSC_TRAIN_H
#define DSC_TRAIN_H

#include "descent/comm.h"
#include "descent/consensus.h"
#include "descent/kfac.h"
#include "descent/model.h"
#include "descent/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The kinds of progress reports that a run passes to the caller's function, and the members of dsc_progress
 * that each kind sets. Members that do not apply are 0. */
typedef enum dsc_event_kind {
    DSC_EVENT_START,      /* text: "model: ...", one of several lines that describe the run */
    DSC_EVENT_STEP,       /* step, epoch, loss (with gossip that of rank 0), lr, images_per_s, eta_s */
    DSC_EVENT_EPOCH,      /* an epoch is done: mean training loss, images_per_s */
    DSC_EVENT_EVAL,       /* loss, top1, top5 */
    DSC_EVENT_CHECKPOINT, /* text: the file */
    DSC_EVENT_NOTE        /* text */
} dsc_event_kind;

typedef struct dsc_progress {
    dsc_event_kind kind;
    int64_t step, epoch;                /* steps done; epoch counted from 0 */
    int64_t step_of_epoch, epoch_steps; /* steps done in this epoch, and its number of steps */
    int64_t epochs;                     /* of the whole run */
    double loss, lr, images_per_s, eta_s, top1, top5;
    const char *text;
    int64_t tokens; /* per sample, always set for models of sequences; images_per_s then counts sequences */
    /* Set with the images_per_s of steps and epochs: the model FLOPs utilisation, that is, the floating-point
     * operations of forward and backward passes per second (dsc_model_flops) as a fraction of the devices' peak
     * (dsc_device_measure_peak); 0: unknown. */
    double mfu;
    int64_t positions; /* predictions per sample: 1, the tokens of a sequence, or the pixels of an image */
} dsc_progress;

/* Receives a progress report, which is valid during the call only. */
typedef void (*dsc_progress_function)(void *context, const dsc_progress *progress);

/* Which labels are used for the gradients that K-FAC computes its factors G from (the Fisher matrix). EMPIRICAL: the
 * true labels. SAMPLED: labels drawn from the model's own output, which costs one more backward pass in steps that
 * update the factors. */
typedef enum dsc_fisher { DSC_FISHER_EMPIRICAL, DSC_FISHER_SAMPLED } dsc_fisher;

/* Converts "empirical" and "sampled" to their constants, and back. An unknown name is DSC_E_INVALID, and the message
 * lists the known ones. */
DSC_API dsc_status dsc_fisher_parse(const char *name, dsc_fisher *out) DSC_MUST_CHECK;
DSC_API const char *dsc_fisher_name(dsc_fisher fisher);

/* How the factors of K-FAC are averaged if ranks gossip. GLOBAL: over all ranks by all-reduce (comm-opt only; steps
 * then wait for all ranks). GOSSIP: over peers, by gossip as for the parameters. LOCAL: not at all. With the last two
 * a step has no collectives, and every rank decomposes all layers itself. Without gossip (DSC_CONSENSUS_ALLREDUCE) only
 * GLOBAL is allowed. */
typedef enum dsc_kfac_scope { DSC_SCOPE_GLOBAL, DSC_SCOPE_GOSSIP, DSC_SCOPE_LOCAL } dsc_kfac_scope;

/* Converts "global", "gossip" and "local" to their constants, and back. An unknown name is DSC_E_INVALID, and the
 * message lists the known ones. */
DSC_API dsc_status dsc_kfac_scope_parse(const char *name, dsc_kfac_scope *out) DSC_MUST_CHECK;
DSC_API const char *dsc_kfac_scope_name(dsc_kfac_scope scope);

/* What happens if a rank does not answer for consensus->peer_timeout seconds. STOP: the run fails. CONTINUE: the
 * other ranks continue training, each from the parameters that it has. This needs gossip without groups, K-FAC's
 * scope gossip or local, a communicator created with dsc_comm_options.survive, and a launcher that does not end the
 * other ranks. */
typedef enum dsc_peer_loss { DSC_PEER_LOSS_STOP, DSC_PEER_LOSS_CONTINUE } dsc_peer_loss;

/* Why a run ended before its last epoch. */
typedef enum dsc_stop_reason {
    DSC_STOP_NONE,    /* it did not */
    DSC_STOP_TARGET,  /* an evaluation reached dsc_train_options.stop_at */
    DSC_STOP_PATIENCE /* dsc_train_options.patience evaluations in a row were no better than the best */
} dsc_stop_reason;

/* Strings are copied when training starts. Epochs count from 0. A number or word by itself in a comment is the
 * default. */
typedef struct dsc_train_options {
    size_t size;
    const char *model, *data; /* "resnet20", "synthetic" */
    int64_t epochs, steps;    /* 100 and 0; steps > 0 ends the run after that many steps in total */
    int64_t batch_size;       /* per rank, 128 */
    int64_t val_batch_size;   /* per rank, 0: batch_size */
    uint64_t seed;            /* 42 */
    const char *out;          /* directory of metrics and checkpoints; NULL: writes nothing */
    /* The checkpoint to continue from. NULL: none; "auto": the newest intact checkpoint in `out`, if there is one;
     * otherwise a model file, or DIR[:best|:latest|:STEP]. */
    const char *resume;
    int64_t image_size;    /* as in dsc_data_options; 0: what the model is made for */
    int data_threads;      /* 1 */
    int augment;           /* 1 */
    dsc_dtype activations; /* fp32; bf16 or fp16 on a GPU */

    /* The options of the parts. They stay the caller's and are copied when training starts. optim and consensus NULL:
     * their defaults; kfac NULL, or with an update_freq of 0: no K-FAC. kfac->schedule is called after the schedules
     * below; the trainer sets kfac->passes itself. */
    const dsc_optim_options *optim;
    const dsc_consensus_options *consensus;
    const dsc_kfac_options *kfac;

    double lr; /* -1 (the default): the optimiser's own, dsc_optim_default_rate, such as 0.1 for sgd */
    dsc_schedule_kind lr_schedule; /* step */
    double warmup_epochs;          /* 5 */
    double warmup_start;           /* negative (the default): lr */
    /* 1 (default): the target rate is lr * ranks * batches_per_allreduce; 0: lr. This also applies to gossip, where
     * the mean of the ranks' parameters moves by the mean of their steps. */
    int lr_scaling;
    double lr_decay[DSC_MAX_DECAYS];
    int lr_decay_count;
    double lr_decay_rate;          /* 0.1 */
    double label_smoothing;        /* 0 */
    int64_t batches_per_allreduce; /* 1 */
    int64_t checkpoint_every;      /* steps; 0: at the end of every epoch; -1: only at the end of the run */
    int64_t keep;                  /* checkpoints kept besides the best and the last, 2 */
    int64_t eval_every;            /* epochs between evaluations, 1; 0: never */
    /* Steps between `step` lines in the metrics; 0 (default): chosen to give 200 to 400 lines per epoch, at least 1. */
    int64_t log_every;
    /* All-reduce only: steps between comparisons of the ranks' parameters, 500; 0: never. */
    int64_t check_every;
    dsc_progress_function progress; /* called on rank 0 only; may be NULL */
    void *progress_context;         /* passed to it */

    /* The schedules of K-FAC: value(epoch) = base * alpha^(number of listed epochs <= epoch). */
    dsc_fisher kfac_fisher;    /* empirical */
    double kfac_damping_alpha; /* 0.5 */
    double kfac_damping_decay[DSC_MAX_DECAYS];
    int kfac_damping_decay_count;
    double kfac_update_freq_alpha; /* 10; for both frequencies, which are rounded and at least 1 */
    double kfac_update_freq_decay[DSC_MAX_DECAYS];
    int kfac_update_freq_decay_count;
    double kfac_diag_warmup;   /* the epoch from which factors are split into kfac->diag_blocks; 0 */
    dsc_kfac_scope kfac_scope; /* global */

    /* Gossip: peers_values[i] peers per step from the start of epoch peers_epochs[i] on (increasing, at least 0);
     * before the first of them consensus->peers. peers_count is the number of entries. */
    int64_t peers_epochs[DSC_MAX_DECAYS];
    int peers_values[DSC_MAX_DECAYS];
    int peers_count;
    int bn_average; /* 0: evaluations use rank 0's batch-norm statistics; 1: the average over all ranks */
    int eval_ranks; /* 0; 1: every rank's own model is evaluated as well */
    int64_t distance_every;     /* steps between `consensus` lines of the metrics; 0: at evaluations only */
    dsc_peer_loss on_peer_loss; /* stop */

    /* The number of steps that count as an epoch if the caller passes the batches (dsc_trainer_step_on), 1000. */
    int64_t epoch_steps;
    /* Further lines, `key = value`, for the file `config` in `out`, which holds the options of the run: for programs
     * that also read options of their own from it. NULL: none. */
    const char *config_lines;

    /* K-FAC: at intervals of this many steps the damping is adapted, within the bounds, by comparing the reduction of
     * the loss by a step with the predicted one; 0: never. SGD without gossip only. */
    int64_t kfac_damping_adapt;                /* 0 */
    double kfac_damping_min, kfac_damping_max; /* 1e-6, 10 */

    /* Schedules. lr_rise: one-cycle: the fraction of the run in which the rate rises, 0.3. lr_power: polynomial: the
     * power, 2. lr_period, lr_period_factor: restarts: the first period in epochs, 10, and the factor by which the
     * period grows at each restart, 2. */
    double lr_rise, lr_power, lr_period, lr_period_factor;

    /* Early stopping, at evaluations inside dsc_trainer_run. patience: the run ends after this many evaluations without
     * a better one than the best so far; 0: never. The best one has the highest top-1 accuracy, or the lowest loss if
     * the model predicts tokens or pixels. stop_at: the run ends when an evaluation reaches "top1=X" or "top5=X" in
     * percent, or "loss=X"; NULL: never. */
    int64_t patience;
    const char *stop_at;

    /* What to do with image files that cannot be read. "skip:N": up to N of a set are replaced, and each is named once
     * in the log; if there are more, the run ends with a checkpoint and DSC_E_FORMAT. "stop": N is 0. NULL or "skip": N
     * is one in a thousand of the set, rounded up. */
    const char *bad_images;

    /* The decay of an exponential moving average of the weights over the steps, below 1; 0: no average. It is evaluated
     * in addition to the model, and saved as checkpoint-STEP.ema.safetensors. */
    double ema;

    /* The directory that event files for TensorBoard are written to; "auto": `out`; NULL: none are written. Needs an
     * `out`, and a library that was built with protobuf-c. */
    const char *tensorboard;

    /* Fine-tuning. init: a safetensors file written by this library or by PyTorch, or DIR[:best|:latest|:STEP] of a
     * run. Tensors of the model whose name and shape match one in it start from its values; all others start as they
     * would without it. NULL (default): no file. Not used if a run is resumed. */
    const char *init;
    /* A POSIX extended regular expression: parameters whose name it matches in part are not updated, and K-FAC leaves
     * out their layers. Batch norms still follow the statistics of the images. With gossip, averaging may round frozen
     * parameters. NULL (default): all are updated. */
    const char *freeze;
    double head_lr; /* 1: factor of the learning rate for the parameters of the last layer that has some */

    /* As in dsc_data_options, if the data are opened by name; 0. */
    double val_split;

    /* A file to which each rank writes a trace (rank R: with `.rank-R` before the last dot), in the JSON format of
     * Perfetto and chrome://tracing; NULL: none. A process can write one trace at a time. */
    const char *trace;

    /* Augmentation of the training samples, as in dsc_loader_options; all 0, randaugment_ops 2. */
    double mixup, cutmix, random_erasing, randaugment;
    int randaugment_ops;
    /* Class weights in the training loss. "balanced": inversely proportional to the number of training samples of each
     * class; otherwise a file with one number per class; NULL (default): 1. They are scaled so that their mean over the
     * training samples is 1. K-FAC's sampled Fisher matrix does not use them. */
    const char *class_weights;

    /* What to do if `out` already contains a run. 1: it is removed when this one begins, unless this one resumes;
     * 0 (default): this one is refused. */
    int overwrite;
    int64_t shuffle_buffer; /* as in dsc_loader_options; 0 */
    /* COSINE, LINEAR, POLYNOMIAL: the fraction of the target rate that is left at the end; 0. */
    double lr_end;
    int64_t lr_steps; /* the number of steps after which the schedule ends; 0: those of all epochs */
    double elastic;   /* masks: as in dsc_data_options; 0 */
    int64_t context;  /* tokens per sequence, for models of sequences; 0: what the model is made for */
    int recompute;    /* as in dsc_model_options, for a model that is given by name; 0 */
    /* tokens and text: as in dsc_data_options; 0. The gradient is the sum over the labelled tokens divided by their
     * expected number, so that p ranks or micro-batches of b sequences give the same as one batch of p b. */
    double mask;
    /* Cross-entropy. The other losses are for masks with two values, and give a model of the zoo one output. A model of
     * the caller's own with a single output is trained with BCE instead of cross-entropy. */
    dsc_loss loss;
    int64_t vocabulary; /* tokens and text: as in dsc_data_options; 0: that of the data */
    int64_t mask_token; /* with `mask`, as in dsc_data_options; -1 */
} dsc_train_options;

/* The caller sets `size` to sizeof(dsc_train_result); members beyond that size are not written. */
typedef struct dsc_train_result {
    size_t size;
    int64_t steps, epochs;       /* done in total */
    double train_loss;           /* mean over the last epoch that was done in full or in part */
    double val_loss, top1, top5; /* of the last evaluation; negative if there was none */
    double best_top1;
    double seconds;
    double images_per_s; /* over all steps of this process, all ranks together */
    int rank, ranks;     /* at the end: they differ from those at the start if ranks were lost */
    dsc_stop_reason stopped;
    double target_s;   /* seconds of the run until stop_at was reached; negative: it was not */
    int64_t tokens;    /* per sample, for models of sequences; 0: images */
    double best_loss;  /* the lowest validation loss; negative if there was none */
    int64_t positions; /* predictions per sample: 1, the tokens of a sequence, or the pixels of an image */
    double mfu;        /* as in dsc_progress, over all steps of this process */
} dsc_train_result;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_train_options_init_sized(dsc_train_options *options, size_t size);
#define dsc_train_options_init(options) dsc_train_options_init_sized((options), sizeof *(options))
/* Returns DSC_E_INVALID, with the reason, for options that dsc_train_run would refuse whatever the data, the device and
 * the ranks are. `prefix` (NULL: none) is put before the names of options in the message (options.h). */
DSC_API dsc_status dsc_train_check(const dsc_train_options *options, const char *prefix) DSC_MUST_CHECK;
/* Trains from start (or checkpoint) to end. Collective; blocks. DSC_E_INTERRUPTED if dsc_train_request_stop was called:
 * a checkpoint has then been written (if there is an `out`). DSC_E_NUMERIC if a loss is not finite, or if the
 * parameters of the ranks differ; DSC_E_INVALID if another process trains into `out`. `result` (may be NULL) is also
 * filled in after failures; DSC_E_INVALID if its size was not set. Options must agree on all ranks: otherwise the
 * message of DSC_E_INVALID names the first that does not. Only data_threads, the directory in `data`, the values of
 * `out` and `resume` (those of rank 0 are used), and callbacks may differ. With gossip a rank may fail alone (a loss
 * that is not finite, a lost peer): it then returns without waiting for the others and without freeing what it shares
 * with them, and the program must end the job with dsc_comm_abort. */
DSC_API dsc_status dsc_train_run(dsc_comm *comm, dsc_device *device, const dsc_train_options *options,
                                 dsc_train_result *result) DSC_MUST_CHECK;
/* Asks the running training of this process to end after the current step; all ranks then do. With gossip
 * they agree on it within 64 steps. (adpsgd: slower ranks first reach the step of the fastest one. Groups of
 * adpsgd, or of osgp with synch_freq > 0, agree only at evaluations, checkpoints and ends of epochs.)
 *
 * Async-signal-safe. But a signal handler must not run in a thread that computes with oneDNN before 3.11.1,
 * whose matrix products use the stack pointer for other things: block signals before any other thread is
 * created, and wait for them in a thread of your own (sigwait). */
DSC_API void dsc_train_request_stop(void);

/* Checks whether `rank` of a run with these options can write its files: the output directory, the event files
 * (tensorboard) and the trace. Creates and removes directories and files for this, and leaves nothing behind. The
 * message of DSC_E_INVALID names what cannot be written. A run checks the same before it writes or removes anything. */
DSC_API dsc_status dsc_train_probe_files(const dsc_train_options *options, int rank) DSC_MUST_CHECK;

/* Looks for a run in `directory`: writes the name of one of its files to file[size], cut off if it is too long, or ""
 * if there is no run or no directory. DSC_E_INVALID if another process trains into the directory. Do not call this or
 * the next function for a directory into which this process trains: that would release its lock. */
DSC_API dsc_status dsc_train_find_run(const char *directory, char *file, size_t size) DSC_MUST_CHECK;
/* Removes the files of a run (metrics, checkpoints, `latest`, `best`, `config`) and nothing else. DSC_E_INVALID if
 * another process trains into the directory; then nothing is removed. */
DSC_API dsc_status dsc_train_remove_run(const char *directory) DSC_MUST_CHECK;

/* Completes the metrics of a run whose process was killed: writes an `end` line with status "died", and removes the
 * lock of the directory. Does nothing if the run has ended, or if there is none. DSC_E_INVALID if another process
 * trains into the directory. A run that is resumed does the same by itself. */
DSC_API dsc_status dsc_train_complete_died(const char *directory) DSC_MUST_CHECK;

#define DSC_SEED_OF_CHECKPOINT UINT64_MAX
enum { DSC_DATA_SIZE = 4096 }; /* the size in bytes of a text that names data, in a checkpoint */

/* What an evaluation says about individual classes, and about the calibration of the model. Later versions may append
 * members. */
typedef struct dsc_eval_report {
    int64_t classes;
    const char *const *class_names; /* [classes]: for text the tokens, in quotes; NULL: no names */
    /* [classes, classes]: the number of images of the row's class that were predicted to be of the column's class. NULL
     * with more than 4096 classes. */
    const int64_t *confusion;
    /* The expected calibration error: images are put into bins of equal width by the probability that the model assigns
     * to its prediction; the error is the mean over all images of |accuracy - mean probability| of their bin. */
    double calibration_error;
    int bins; /* 15 */
    const int64_t *bin_images;
    const double *bin_accuracy, *bin_confidence; /* [bins]; 0 in a bin without images */
    /* masks:DIR with two values: the foreground-restricted Rand score (docs/data.md) of the objects, which are the
     * connected pixels of the second value, as the mean over all pictures; and the probability at which a pixel starts
     * to count as part of an object, the one of 0.1, 0.2, ... 0.9 that gives the highest score. Negative: other data,
     * no picture with an object, or more than 2^28 pixels. */
    double v_rand, v_rand_threshold;
} dsc_eval_report;

/* Frees a report and sets *report to NULL. Accepts NULL and *report == NULL. */
DSC_API void dsc_eval_report_free(dsc_eval_report **report);

/* A number by itself in a comment is the default. */
typedef struct dsc_eval_options {
    size_t size;
    const char *checkpoint; /* a model file, or DIR[:best|:latest|:STEP] (dsc_checkpoint_read_info) */
    const char *model;      /* the name of the model; NULL: as the checkpoint says */
    const char *data;       /* NULL: as the checkpoint says, or synthetic if it names none */
    int64_t batch_size;     /* per rank, 128 */
    int64_t image_size;     /* of crops of image folders and tiles of masks, 0: as the checkpoint says */
    uint64_t seed;          /* of synthetic images; DSC_SEED_OF_CHECKPOINT: as it says, or else 42 */
    int data_threads;       /* 1 */
    /* As in dsc_train_options, but bad images are left out instead of replaced. */
    const char *bad_images;
    /* As in dsc_data_options; negative (default): if the checkpoint's own data are evaluated, as it says; otherwise 0.
     * */
    double val_split;
    /* NULL: no report. Otherwise *report becomes a new report, on every rank, which the caller frees with
     * dsc_eval_report_free; NULL after a failure. */
    dsc_eval_report **report;
    /* tokens and text: as in dsc_data_options; negative (default): as the checkpoint says. */
    double mask;
    /* tokens and text: as in dsc_data_options; 0, and -1 for mask_token (the defaults): as the checkpoint says. For a
     * file without metadata, context and vocabulary are taken from its tables of positions and tokens. The context may
     * be shorter than that of the checkpoint. */
    int64_t context, vocabulary, mask_token;
} dsc_eval_options;

/* The caller sets `size` to sizeof(dsc_eval_result). */
typedef struct dsc_eval_result {
    size_t size;
    int64_t images;
    double loss, top1, top5; /* top1, top5: fractions in [0, 1] */
    double seconds;
    char data[DSC_DATA_SIZE]; /* dsc_eval_run: the data that the model was evaluated on */
    int64_t bad_images;       /* images that could not be read; not counted in `images` */
    int64_t tokens;           /* per sample, for models of sequences; 0: images */
    /* The average number of bytes of text per token: loss / (ln 2 * bytes_per_token) is bits per byte. 0: unknown, or
     * images. */
    double bytes_per_token;
    int64_t positions; /* predictions per sample: 1, the tokens of a sequence, or the pixels of an image */
    int64_t labels;    /* the number of labels that loss and accuracies are the mean over */
    int64_t pictures;  /* masks:DIR: the number of whole images, whose tiles `images` counts; 0: other data */
    double mask;       /* masked tokens: the fraction to be predicted; 0: all other data */
} dsc_eval_result;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_eval_options_init_sized(dsc_eval_options *options, size_t size);
#define dsc_eval_options_init(options) dsc_eval_options_init_sized((options), sizeof *(options))
/* Evaluates a checkpoint on the validation split, all ranks together, each image once. Collective; blocks. */
DSC_API dsc_status dsc_eval_run(dsc_comm *comm, dsc_device *device, const dsc_eval_options *options,
                                dsc_eval_result *result) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
