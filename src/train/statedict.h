/* A model's state dict in a safetensors file: PyTorch's names and shapes. Conv weights are OHWI here and OIHW
 * there; they are turned at this edge only. */
#ifndef DSC_TRAIN_STATEDICT_H
#define DSC_TRAIN_STATEDICT_H

#include "descent/model.h"
#include "train/safetensors.h"

/* Bytes of the largest entry: the size of the two host buffers that writing and reading need. */
size_t dsc_statedict_largest(const dsc_model *model);
/* Declares all entries, in order, and after begin writes them; entry i is tensor i of the file. */
dsc_status dsc_statedict_declare(const dsc_model *model, dsc_st_writer *writer) DSC_MUST_CHECK;
dsc_status dsc_statedict_write(const dsc_model *model, dsc_queue *queue,
                               dsc_st_writer *writer) DSC_MUST_CHECK;
/* Checks names, types and shapes against the model, nothing missing and nothing too many; `name` is the
 * model's, for messages. */
dsc_status dsc_statedict_check(const dsc_model *model, const char *name,
                               const dsc_st_reader *reader) DSC_MUST_CHECK;
/* Fills the model's parameters and buffers from a file that passed the check. */
dsc_status dsc_statedict_read(dsc_model *model, dsc_queue *queue, const dsc_st_reader *reader) DSC_MUST_CHECK;

#endif
