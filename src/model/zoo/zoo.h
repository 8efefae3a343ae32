/* The builders of the zoo. Each adds its layers to a model behind the input `x` and gives the logits. */
#ifndef DSC_MODEL_ZOO_ZOO_H
#define DSC_MODEL_ZOO_ZOO_H

#include "descent/model.h"

/* depth: the number in the model's name. */
typedef dsc_status (*dsc_zoo_builder)(dsc_model *m, int depth, dsc_value x, int64_t classes,
                                      dsc_value *logits);

dsc_status dsc_zoo_mlp(dsc_model *m, int depth, dsc_value x, int64_t classes,
                       dsc_value *logits) DSC_MUST_CHECK;
dsc_status dsc_zoo_lenet(dsc_model *m, int depth, dsc_value x, int64_t classes,
                         dsc_value *logits) DSC_MUST_CHECK;
dsc_status dsc_zoo_resnet_cifar(dsc_model *m, int depth, dsc_value x, int64_t classes,
                                dsc_value *logits) DSC_MUST_CHECK;
dsc_status dsc_zoo_resnet_imagenet(dsc_model *m, int depth, dsc_value x, int64_t classes,
                                   dsc_value *logits) DSC_MUST_CHECK;

/* Adds input and layers of the named model to an empty one, without sealing it. */
dsc_status dsc_zoo_build(dsc_model *m, const char *name, const int64_t shape[3], int64_t classes,
                         dsc_value *logits) DSC_MUST_CHECK;

#endif
