/* Saving and loading a model: the state dict in a safetensors file, under the names and in the layout of
 * PyTorch (convolution weights OIHW), as a run writes it into checkpoint-STEP.safetensors. Python loads such
 * a file strictly; files that PyTorch's safetensors wrote load here.
 *
 * Nothing here is collective: every rank that calls a function reads or writes the file itself. */
#ifndef DSC_CHECKPOINT_H
#define DSC_CHECKPOINT_H

#include "descent/model.h"
#include "descent/tokens.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the file's metadata says about the model. Strings are copied. */
typedef struct dsc_save_options {
    size_t size;
    /* The name by which dsc_eval_run builds the model again. NULL (default): stored as "custom", which stands
     * for any model. */
    const char *model;
    /* The data it was trained on, as dsc_dataset_open takes it. NULL (default): not stored. */
    const char *data;
    /* Steps and epochs of training; -1 (default): not stored. */
    int64_t step;
    int64_t epoch;
    int has_seed; /* default 0: the seed is not stored */
    uint64_t seed;
    /* The names of the first class_name_count classes; NULL (default): not stored. */
    const char *const *class_names;
    int64_t class_name_count;
    /* How bytes of images were normalised, by channel: (value / 255 - mean) / std. NULL (default): not
     * stored. At most 4 channels. */
    const double *mean, *std;
    /* The part of `data` that was used for validation (dsc_data_options.val_split); 0 (default): not stored. */
    double val_split;
    /* How images become as large as the model's input: the shorter side becomes `resize` pixels, at least the height
     * and width of the input, and the middle is cut out; 0 (default): not stored. */
    int64_t resize;
    /* The share of the tokens that were to be predicted (dsc_data_options.mask); 0 (default): not stored. */
    double mask;
    /* The name of the loss (dsc_loss_name); NULL (default): not stored, which stands for cross-entropy. */
    const char *loss;
    /* The tokenizer of the text it was trained on, all of which is stored; NULL (default): none. */
    const dsc_tokenizer *tokenizer;
    /* dsc_data_options.vocabulary, 0 (default), and, where tokens were masked, mask_token, -1 (default): not stored. */
    int64_t vocabulary, mask_token;
} dsc_save_options;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_save_options_init_sized(dsc_save_options *options, size_t size);
#define dsc_save_options_init(options) dsc_save_options_init_sized((options), sizeof *(options))
/* Writes parameters and buffers of a sealed model into `path`. The file is written under a temporary name in
 * the same directory, synced and renamed: it appears whole or not at all, and replaces an older one. Wait for
 * work on the model first (dsc_queue_sync). options may be NULL. Blocks. */
DSC_API dsc_status dsc_model_save(const dsc_model *model, const char *path,
                                  const dsc_save_options *options) DSC_MUST_CHECK;

typedef struct dsc_load_options {
    size_t size;
    /* 0 (default), strict: the file must hold every tensor of the model in its shape, and no other.
     * 1, partial: takes what has the name and shape of a tensor of the model, and leaves the rest of the
     * model as it is. Of a table of positions with another number of rows it takes the first, as many as both have. */
    int partial;
} dsc_load_options;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_load_options_init_sized(dsc_load_options *options, size_t size);
#define dsc_load_options_init(options) dsc_load_options_init_sized((options), sizeof *(options))

/* A tensor of the file that was not loaded, or not as it is. */
typedef struct dsc_load_skipped {
    const char *name;
    int in_model; /* 1: the model has it, in another shape or type; 0: the model has no tensor of this name */
    dsc_dtype file_dtype, model_dtype; /* model_*: 0 unless in_model */
    int file_ndim, model_ndim;
    int64_t file_dim[DSC_MAX_DIMS], model_dim[DSC_MAX_DIMS];
} dsc_load_skipped;

/* What became of every tensor of the file and of the model. */
typedef struct dsc_load_report {
    int64_t loaded_count;
    const char *const *loaded; /* in the model's order */
    int64_t skipped_count;
    const dsc_load_skipped *skipped; /* by name */
    int64_t missing_count;
    const char *const *missing; /* in the model, not in the file; in the model's order */
    /* Of those that were loaded, the tables of positions of which file and model have different numbers of rows. */
    int64_t resized_count;
    const dsc_load_skipped *resized;
} dsc_load_report;

/* Reads a safetensors file into the parameters and buffers of a sealed model. Numbers of type fp32, fp64,
 * fp16 and bf16 are converted to the model's type. Wait for work on the model first (dsc_queue_sync). options
 * may be NULL. Blocks.
 *
 * On failure the model does not change: DSC_E_NOT_FOUND, DSC_E_FORMAT (damaged file, numbers that are not
 * finite), DSC_E_INVALID (the file does not fit the model; partial: no tensor of it does).
 *
 * `report` may be NULL. Otherwise *report is a new report, to be freed with dsc_load_report_free; after
 * DSC_E_INVALID it says what did not fit, with nothing loaded, and after any other failure it is NULL. */
DSC_API dsc_status dsc_model_load(dsc_model *model, const char *path, const dsc_load_options *options,
                                  dsc_load_report **report) DSC_MUST_CHECK;
/* Accepts NULL and *report == NULL; sets *report to NULL. */
DSC_API void dsc_load_report_free(dsc_load_report **report);

/* ---- checkpoints of runs ---- */

/* What a checkpoint says about itself. Later versions may append members. Texts are "" and numbers -1 where
 * the file does not say it, as files of other programs do not. */
typedef struct dsc_checkpoint_info {
    const char *path;    /* of the model file */
    const char *version; /* of the library that wrote it */
    const char *model, *data;
    int64_t step, epoch;
    int64_t classes, height, width, channels;
    int has_seed;
    uint64_t seed;
    int64_t class_name_count; /* 0: the classes have no names */
    const char *const *class_names;
    const double *mean, *std; /* [channels] each, as in dsc_save_options; NULL: not stored */
    /* Of the model file: its tensors, their floating-point numbers (parameters and running statistics), and
     * their bytes. */
    int64_t tensors, numbers, bytes;
    int has_sums;           /* every tensor has a check sum */
    const char *state_path; /* the file with the rest of the run; NULL: there is none */
    int64_t ranks;          /* that wrote it */
    const char *optimizer, *consensus;
    int64_t resize; /* as in dsc_save_options */
    /* The tokenizer that is stored, owned by the info; NULL: none. */
    const dsc_tokenizer *tokenizer;
    /* As in dsc_save_options. What the file does not say is 0 for `mask` (no tokens were masked), -1 for `mask_token` and
     * `vocabulary`, and cross-entropy for the name of the loss (bce for a model of one output). */
    double mask;
    int64_t mask_token, vocabulary;
    const char *loss;
} dsc_checkpoint_info;

/* Finds a checkpoint and reads what it says. `checkpoint` is a model file, or a directory of a run and which of
 * its checkpoints: "DIR" or "DIR:latest" (the newest), "DIR:best" (the one with the best evaluation, dsc_train_options.patience),
 * "DIR:STEP". DSC_E_NOT_FOUND says which checkpoints there are. *out is to be freed with
 * dsc_checkpoint_info_free. */
DSC_API dsc_status dsc_checkpoint_read_info(const char *checkpoint, dsc_checkpoint_info **out) DSC_MUST_CHECK;
/* The directory in which `checkpoint`, a name as above, looks for files, whether they exist or not: that of a
 * run, or the one that a model file lies in. DSC_E_INVALID when `size` is too small for it. */
DSC_API dsc_status dsc_checkpoint_directory(const char *checkpoint, char *directory,
                                            size_t size) DSC_MUST_CHECK;
/* The model file of the newest intact checkpoint of a run's directory, which `resume = "auto"` goes on from. Warns of
 * those that are passed over. `path` gets "" when there is none at all; DSC_E_INVALID when `size` is too small; the
 * error of the newest one when none is intact. */
DSC_API dsc_status dsc_checkpoint_find_intact(const char *directory, char *path, size_t size) DSC_MUST_CHECK;
/* Accepts NULL and *info == NULL; sets *info to NULL. */
DSC_API void dsc_checkpoint_info_free(dsc_checkpoint_info **info);
/* Reads all of a checkpoint, its state file included where there is one, and compares the check sums.
 * DSC_E_FORMAT names what is damaged. */
DSC_API dsc_status dsc_checkpoint_verify(const char *checkpoint) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
