/* The builders of the zoo's own models: dsc_zoo_entry's `build`. */
#ifndef DSC_MODEL_ZOO_ZOO_H
#define DSC_MODEL_ZOO_ZOO_H

#include "descent/model.h"

dsc_status dsc_zoo_mlp(void *unused, dsc_model *m, dsc_value x, int64_t classes,
                       dsc_value *logits) DSC_MUST_CHECK;
dsc_status dsc_zoo_lenet(void *unused, dsc_model *m, dsc_value x, int64_t classes,
                         dsc_value *logits) DSC_MUST_CHECK;
/* depth: the number in the model's name, an int. */
dsc_status dsc_zoo_resnet_cifar(void *depth, dsc_model *m, dsc_value x, int64_t classes,
                                dsc_value *logits) DSC_MUST_CHECK;
dsc_status dsc_zoo_resnet_imagenet(void *depth, dsc_model *m, dsc_value x, int64_t classes,
                                   dsc_value *logits) DSC_MUST_CHECK;

/* Adds input and layers of the named model to an empty one, without sealing it. */
dsc_status dsc_zoo_build(dsc_model *m, const char *name, const int64_t shape[3], int64_t classes,
                         dsc_value *logits) DSC_MUST_CHECK;

#endif
