/* Opening the file of a model that is evaluated or used. */
#ifndef DSC_TRAIN_STORED_MODEL_H
#define DSC_TRAIN_STORED_MODEL_H

#include "train/model_file.h"

/* Finds the checkpoint, opens its model file and reads what it says. `model` is the name that the caller gives it,
 * NULL: none; it is DSC_E_INVALID when the file says another, or when neither says one. Warns of check sums and an
 * image size that the file lacks. */
dsc_status dsc_stored_model_open(const char *checkpoint, const char *model, dsc_st_reader **reader,
                                 dsc_model_facts *facts) DSC_MUST_CHECK;
/* A file of a model of sequences that says neither its input nor its output, as those of other programs: takes context and
 * vocabulary from the shapes of its tables of positions and tokens, where it has them. */
dsc_status dsc_stored_model_read_tables(dsc_device *device, const dsc_st_reader *reader,
                                        dsc_model_facts *facts) DSC_MUST_CHECK;
/* Warns when the file does not say how images are scaled, as files of older versions and of other programs; `like` is
 * the data set whose rule is used. */
void dsc_stored_model_note_form(const dsc_model_facts *facts, const char *like);

#endif
