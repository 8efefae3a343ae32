/* Opens the file of a model for evaluation, prediction or generation. */
#ifndef DSC_TRAIN_STORED_MODEL_H
#define DSC_TRAIN_STORED_MODEL_H

#include "train/model_file.h"

/* Finds the checkpoint, opens its model file and reads its metadata. `model` is the name that the caller gives it, NULL
 * for none; DSC_E_INVALID when the file names another model, or when neither names one. Warns when the file lacks check
 * sums or an image size. */
dsc_status dsc_stored_model_open(const char *checkpoint, const char *model, dsc_st_reader **reader,
                                 dsc_model_facts *facts) DSC_MUST_CHECK;
/* For a file of a sequence model that says neither its input nor its output, as files of other programs: takes context
 * and vocabulary from the shapes of its tables of positions and tokens, if it has them. */
dsc_status dsc_stored_model_read_tables(dsc_device *device, const dsc_st_reader *reader,
                                        dsc_model_facts *facts) DSC_MUST_CHECK;
/* Creates the model of the zoo that the file holds, for samples of h x w x c. Its values are zeros, to be read from the
 * file. */
dsc_status dsc_stored_model_create(dsc_device *device, const dsc_model_facts *facts, int64_t h, int64_t w,
                                   int64_t c, int64_t outputs, dsc_model **out) DSC_MUST_CHECK;
/* For a model whose vocabulary dsc_stored_model_read_tables took from its table: DSC_E_INVALID when `tokenizer` (NULL:
 * unknown) has another one, because its tokens then stand for other text. The table may have some more rows, as files of
 * other programs often do, for speed. `data` is for the message. */
dsc_status dsc_stored_model_check_vocabulary(const dsc_model_facts *facts, const dsc_tokenizer *tokenizer,
                                             const char *data) DSC_MUST_CHECK;
/* Warns when the file does not say how images are scaled, as is the case for older versions and other programs; `like`
 * is the data set whose rule is used instead. */
void dsc_stored_model_note_form(const dsc_model_facts *facts, const char *like);

#endif
