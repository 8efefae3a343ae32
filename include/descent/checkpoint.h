/* Saving and loading a model: the state dict in a safetensors file, with PyTorch's names and layout (convolution
 * weights OIHW), as a run writes it to checkpoint-STEP.safetensors. PyTorch can load such a file with strict=True,
 * and files written by PyTorch with safetensors can be loaded here.
 *
 * Nothing here is collective: every rank that calls a function reads or writes the file itself. */
#ifndef DSC_CHECKPOINT_H
#define DSC_CHECKPOINT_H

#include "descent/model.h"
#include "descent/tokens.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is stored about the model in the file's metadata. Strings are copied. */
typedef struct dsc_save_options {
    size_t size;
    /* The name from which dsc_eval_run builds the model again. NULL (default): stored as "custom", which stands
     * for any model. */
    const char *model;
    /* The data that the model was trained on, as a spec for dsc_dataset_open. NULL (default): not stored. */
    const char *data;
    /* Steps and epochs of training done; -1 (default): not stored. */
    int64_t step;
    int64_t epoch;
    int has_seed; /* default 0: the seed is not stored */
    uint64_t seed;
    /* The names of the first class_name_count classes; NULL (default): not stored. */
    const char *const *class_names;
    int64_t class_name_count;
    /* How the bytes of images were normalised: (value / 255 - mean) / std, with one mean and one std for each
     * channel, at most 4. NULL (default): not stored. */
    const double *mean, *std;
    /* The fraction of `data` that was used for validation (dsc_data_options.val_split); 0 (default): not stored. */
    double val_split;
    /* How images are fitted to the model's input: the shorter side is scaled to `resize` pixels, at least the height
     * and width of the input, and the middle is cropped; 0 (default): not stored. */
    int64_t resize;
    /* The fraction of tokens that the model had to predict (dsc_data_options.mask); 0 (default): not stored. */
    double mask;
    /* The name of the loss (dsc_loss_name); NULL (default): not stored, which stands for cross-entropy. */
    const char *loss;
    /* The tokenizer of the text that the model was trained on, which is stored completely; NULL (default): none. */
    const dsc_tokenizer *tokenizer;
    /* As in dsc_data_options; mask_token only if tokens were masked. 0 and -1 (the defaults): not stored. */
    int64_t vocabulary, mask_token;
} dsc_save_options;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_save_options_init_sized(dsc_save_options *options, size_t size);
#define dsc_save_options_init(options) dsc_save_options_init_sized((options), sizeof *(options))
/* Writes the parameters and buffers of a sealed model to the file `path`. It is written under a temporary name in the
 * same directory, synced and renamed: it appears complete or not at all, and replaces an older file. Wait for pending
 * work on the model first (dsc_queue_sync). options may be NULL: the defaults. Blocks. */
DSC_API dsc_status dsc_model_save(const dsc_model *model, const char *path,
                                  const dsc_save_options *options) DSC_MUST_CHECK;

typedef struct dsc_load_options {
    size_t size;
    /* 0 (default), strict: the file must contain every tensor of the model in its shape, and no other tensor.
     * 1, partial: loads the tensors that have the name and shape of a tensor of the model, and leaves the rest of
     * the model as it is. Of a table of positions with a different number of rows, it loads the first rows, as many
     * as both have. */
    int partial;
} dsc_load_options;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_load_options_init_sized(dsc_load_options *options, size_t size);
#define dsc_load_options_init(options) dsc_load_options_init_sized((options), sizeof *(options))

/* A tensor of the file that was not loaded, or was loaded in another shape. */
typedef struct dsc_load_skipped {
    const char *name;
    int in_model; /* 1: the model has it in another shape or type; 0: the model has no tensor of this name */
    dsc_dtype file_dtype, model_dtype; /* model_*: 0 unless in_model */
    int file_ndim, model_ndim;
    int64_t file_dim[DSC_MAX_DIMS], model_dim[DSC_MAX_DIMS];
} dsc_load_skipped;

/* What happened to each tensor of the file and of the model. */
typedef struct dsc_load_report {
    int64_t loaded_count;
    const char *const *loaded; /* in the model's order */
    int64_t skipped_count;
    const dsc_load_skipped *skipped; /* sorted by name */
    int64_t missing_count;
    const char *const *missing; /* in the model but not in the file; in the model's order */
    /* Those loaded tables of positions that have different numbers of rows in the file and in the model. */
    int64_t resized_count;
    const dsc_load_skipped *resized;
} dsc_load_report;

/* Reads a safetensors file into the parameters and buffers of a sealed model. Numbers of type fp32, fp64,
 * fp16 and bf16 are converted to the model's type. Wait for pending work on the model first (dsc_queue_sync).
 * options may be NULL: the defaults. Blocks.
 *
 * If it fails, the model does not change: DSC_E_NOT_FOUND, DSC_E_FORMAT (damaged file, numbers that are not
 * finite), DSC_E_INVALID (the file does not fit the model; partial: none of its tensors does).
 *
 * `report` may be NULL. Otherwise *report becomes a new report, which the caller frees with dsc_load_report_free;
 * after DSC_E_INVALID it says what did not fit, with nothing loaded, and after any other failure it is NULL. */
DSC_API dsc_status dsc_model_load(dsc_model *model, const char *path, const dsc_load_options *options,
                                  dsc_load_report **report) DSC_MUST_CHECK;
/* Frees a report and sets *report to NULL. Accepts NULL and *report == NULL. */
DSC_API void dsc_load_report_free(dsc_load_report **report);

/* ---- checkpoints of runs ---- */

/* What a checkpoint says about itself. Later versions may append members. Strings are "" and numbers are -1 if the file
 * does not say it, as in files of other programs. */
typedef struct dsc_checkpoint_info {
    const char *path;    /* the model file */
    const char *version; /* of the library that wrote it */
    const char *model, *data;
    int64_t step, epoch;
    int64_t classes, height, width, channels;
    int has_seed;
    uint64_t seed;
    int64_t class_name_count; /* 0: the classes have no names */
    const char *const *class_names;
    const double *mean, *std; /* [channels] each, as in dsc_save_options; NULL: not stored */
    /* The model file's number of tensors, of their floating-point numbers (parameters and running statistics), and
     * of their bytes. */
    int64_t tensors, numbers, bytes;
    int has_sums;           /* 1: every tensor has a checksum */
    const char *state_path; /* the file with the rest of the run's state; NULL: there is none */
    int64_t ranks;          /* the number of ranks that wrote it */
    const char *optimizer, *consensus;
    int64_t resize; /* as in dsc_save_options */
    /* The stored tokenizer, owned by the info; NULL: none. */
    const dsc_tokenizer *tokenizer;
    /* As in dsc_save_options. If the file does not say it, `mask` is 0 (no tokens were masked), `mask_token` and
     * `vocabulary` are -1, and `loss` is "cross-entropy" ("bce" for a model with one output). */
    double mask;
    int64_t mask_token, vocabulary;
    const char *loss;
} dsc_checkpoint_info;

/* Finds a checkpoint and reads what it says about itself. `checkpoint` is a model file, or the directory of a run with
 * one of its checkpoints: "DIR" or "DIR:latest" (the newest), "DIR:best" (the one with the best evaluation, see
 * dsc_train_options.patience), "DIR:STEP". The message of DSC_E_NOT_FOUND lists the checkpoints that exist. The caller
 * frees *out with dsc_checkpoint_info_free. */
DSC_API dsc_status dsc_checkpoint_read_info(const char *checkpoint, dsc_checkpoint_info **out) DSC_MUST_CHECK;
/* Writes the directory in which the files of `checkpoint`, a name as above, are looked for, whether they exist or not,
 * to directory[size]: that of a run, or the one that contains a model file. DSC_E_INVALID if `size` is too small. */
DSC_API dsc_status dsc_checkpoint_directory(const char *checkpoint, char *directory,
                                            size_t size) DSC_MUST_CHECK;
/* Writes to path[size] the model file of the newest intact checkpoint in a run's directory, the one from which
 * `resume = "auto"` continues, and warns about newer ones that it skips. `path` becomes "" if there is no checkpoint at
 * all. If none is intact, fails with the error of the newest one; DSC_E_INVALID if `size` is too small. */
DSC_API dsc_status dsc_checkpoint_find_intact(const char *directory, char *path, size_t size) DSC_MUST_CHECK;
/* Frees an info and sets *info to NULL. Accepts NULL and *info == NULL. */
DSC_API void dsc_checkpoint_info_free(dsc_checkpoint_info **info);
/* Reads the whole checkpoint, including its state file if there is one, and compares the checksums. The message of
 * DSC_E_FORMAT names what is damaged. */
DSC_API dsc_status dsc_checkpoint_verify(const char *checkpoint) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
