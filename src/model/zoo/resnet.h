/* The building block of both families of ResNets. */
#ifndef DSC_MODEL_ZOO_RESNET_H
#define DSC_MODEL_ZOO_RESNET_H

#include "descent/model.h"

/* The size of a buffer for the name of a layer. */
enum { DSC_RESNET_NAME = 64 };

/* A square convolution without bias, padded by half its kernel, and the batch norm after it. Their names are
 * `prefix` (for example "layer1.0.", or "") followed by `conv` and `norm`. */
typedef struct dsc_resnet_conv {
    const char *prefix, *conv, *norm;
    int64_t channels, kernel, stride;
} dsc_resnet_conv;

dsc_status dsc_resnet_conv_norm(dsc_model *m, dsc_resnet_conv what, dsc_value x, dsc_value *y) DSC_MUST_CHECK;

#endif
