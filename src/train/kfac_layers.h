/* A model's layers as the preconditioner sees them. */
#ifndef DSC_TRAIN_KFAC_LAYERS_H
#define DSC_TRAIN_KFAC_LAYERS_H

#include "descent/kfac.h"
#include "descent/model.h"

/* Layer i of the array is layer i of dsc_model_layers. Names and gradients' memory stay owned by the model;
 * the caller frees *out with dsc_memory_free. */
dsc_status dsc_kfac_layers_of(const dsc_model *model, dsc_kfac_layer **out, int64_t *count) DSC_MUST_CHECK;

#endif
