/* How files of the Hugging Face hub name the tensors of GPT-2 and BERT. Models write the names of GPT2LMHeadModel and
 * BertForMaskedLM; the hub's files differ from these by their age and by the class they were saved from. The rules are
 * the tables of hub_names.c. */
#ifndef DSC_TRAIN_HUB_NAMES_H
#define DSC_TRAIN_HUB_NAMES_H

#include "descent/model.h"
#include "train/safetensors.h"

/* The tensor of the file that a model's tensor `name` is read from: the one with that name, else one with another name
 * that the hub uses for it. NULL when there is none. */
const dsc_st_tensor *dsc_hub_find(const dsc_st_reader *reader, const char *name);
/* 1 when `name` is a tensor that hub files of this kind of model contain but the model does not use: masks, position
 * indices, and heads for other tasks. */
int dsc_hub_is_ignored(const dsc_model *model, const char *name);

#endif
