/* A model's state dict in a safetensors file, with PyTorch's names and shapes. Convolution weights are OHWI
 * in this library and OIHW in the file; this is the only place that converts them. */
#ifndef DSC_TRAIN_STATEDICT_H
#define DSC_TRAIN_STATEDICT_H

#include "descent/checkpoint.h"
#include "train/safetensors.h"

/* Declares all entries and writes them, after the caller's metadata. Blocks. */
dsc_status dsc_statedict_write(const dsc_model *model, dsc_queue *queue,
                               dsc_st_writer *writer) DSC_MUST_CHECK;
/* DSC_E_INVALID unless the file holds all tensors of the model in their shapes, and no other. `name` is the
 * model's, for messages; NULL: it has none. */
dsc_status dsc_statedict_check(const dsc_model *model, const char *name,
                               const dsc_st_reader *reader) DSC_MUST_CHECK;
/* The same, but the file's tables of positions may have more rows, for a model that is used with a shorter context. */
dsc_status dsc_statedict_check_shorter(const dsc_model *model, const char *name,
                                       const dsc_st_reader *reader) DSC_MUST_CHECK;
/* Refuses the first tensor that has the name of one of the model's in another shape; DSC_OK when there is none. */
dsc_status dsc_statedict_check_named(const dsc_model *model, const dsc_st_reader *reader) DSC_MUST_CHECK;
/* Lists the tensors that fit, as `loaded`, and those that do not. To be freed with dsc_load_report_free. */
dsc_status dsc_statedict_compare(const dsc_model *model, const dsc_st_reader *reader,
                                 dsc_load_report **out) DSC_MUST_CHECK;
/* Fills parameters and buffers from the tensors of a file that fit; after dsc_statedict_check that is all of them. Of
 * a table of positions that has another number of rows, the first rows are filled, as many as both have. The whole
 * file is read before the model changes. Blocks. */
dsc_status dsc_statedict_read(dsc_model *model, dsc_queue *queue, const dsc_st_reader *reader) DSC_MUST_CHECK;

#endif
