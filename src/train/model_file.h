/* The file of a model: its state dict, and metadata that says which model it is and how it was trained. */
#ifndef DSC_TRAIN_MODEL_FILE_H
#define DSC_TRAIN_MODEL_FILE_H

#include "descent/checkpoint.h"
#include "descent/train.h"
#include "train/safetensors.h"

enum { DSC_FACTS_CHANNELS = 4 }; /* of images that are stored as bytes, at most */

/* What the metadata of a file says about the model and its data ("it" below is the file). */
typedef struct dsc_model_facts {
    char model[64];                           /* "" when it does not say, or says "custom" */
    int64_t classes, height, width, channels; /* -1 when it does not say */
    char data[DSC_DATA_SIZE];                 /* the training data; "" when it does not say */
    int has_seed;
    uint64_t seed;
    double val_split;      /* the part of the data that was used for validation; 0: none */
    int has_normalisation; /* of bytes: (value / 255 - mean) / std, by channel */
    double mean[DSC_FACTS_CHANNELS], std[DSC_FACTS_CHANNELS];
    int64_t resize; /* the shorter side of an image before the middle is cut out; -1 when it does not say */
    double mask;    /* the share of the tokens that were to be predicted; 0: the next token was */
    int64_t mask_token; /* the token that replaced them; -1: one after the vocabulary */
    int64_t vocabulary; /* the vocabulary that was asked for; -1: that of the data */
    int of_tables; /* 1: it does not say classes and vocabulary; they are the rows of the table of tokens */
    dsc_loss loss;
} dsc_model_facts;

/* "32x32x3 images and 10 classes", or "sequences of 16 tokens and a vocabulary of 59", for a message. Returns
 * `text`. */
enum { DSC_FORM_TEXT = 112 };
const char *dsc_form_text(int64_t h, int64_t w, int64_t c, int64_t outputs, int tokens,
                          char text[DSC_FORM_TEXT]);
/* The number of classes that a model distinguishes: a single output is the logit of the second of two classes. */
int64_t dsc_output_classes(int64_t outputs);
/* Reads the facts; DSC_E_FORMAT when one of them is not valid. */
dsc_status dsc_model_facts_read(const dsc_st_reader *reader, dsc_model_facts *facts) DSC_MUST_CHECK;
/* The names of the classes, in new memory that the caller frees with dsc_memory_free: an array whose strings
 * are in the same memory. *count is 0, and *out NULL, when the file has none. DSC_E_FORMAT when they are not
 * names, or more than there are classes. */
dsc_status dsc_model_file_class_names(const dsc_st_reader *reader, const char *const **out,
                                      int64_t *count) DSC_MUST_CHECK;
/* The tokenizer that is stored, to be destroyed by the caller; NULL when the file has none. DSC_E_FORMAT when it is not
 * valid. */
dsc_status dsc_model_file_tokenizer(const dsc_st_reader *reader, dsc_tokenizer **out) DSC_MUST_CHECK;
/* DSC_E_INVALID when the file has a tokenizer whose tokens stand for other text than those of `tokenizer` (NULL:
 * unknown). `data` is for the message. */
dsc_status dsc_model_file_check_tokenizer(const dsc_st_reader *reader, const dsc_tokenizer *tokenizer,
                                          const char *data) DSC_MUST_CHECK;
/* Writes the metadata that says which model it is and how it was trained. */
dsc_status dsc_model_file_describe(const dsc_model *model, const dsc_save_options *facts,
                                   dsc_st_writer *writer) DSC_MUST_CHECK;
/* Writes class names, the tokenizer and how images are formed, and reads the latter (model_file_data.c). */
dsc_status dsc_model_file_describe_data(const dsc_model *model, const dsc_save_options *facts,
                                        dsc_st_writer *writer) DSC_MUST_CHECK;
dsc_status dsc_model_file_read_form(const dsc_st_reader *reader, dsc_model_facts *facts) DSC_MUST_CHECK;
/* Writes the whole file, which the caller then has to sync and commit. */
dsc_status dsc_model_file_write(const dsc_model *model, dsc_queue *queue, const char *path,
                                const dsc_save_options *facts, dsc_st_writer **out) DSC_MUST_CHECK;
/* Checks that a file is of this model: name (NULL or "custom": a model of the caller's own), input, classes,
 * and all tensors. */
dsc_status dsc_model_file_check(const dsc_model *model, const char *name,
                                const dsc_st_reader *reader) DSC_MUST_CHECK;

#endif
