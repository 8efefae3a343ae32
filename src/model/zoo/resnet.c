#include "model/zoo/resnet.h"

#include "base/error.h"

#include <stdio.h>

dsc_status dsc_resnet_conv_norm(dsc_model *m, dsc_resnet_conv what, dsc_value x, dsc_value *y) {
    char name[DSC_RESNET_NAME];
    dsc_conv2d_shape conv;
    dsc_conv2d_shape_init(&conv);
    conv.out_c = what.channels;
    conv.kernel_h = conv.kernel_w = what.kernel;
    conv.stride_h = conv.stride_w = what.stride;
    conv.pad_h = conv.pad_w = what.kernel / 2;
    snprintf(name, sizeof name, "%s%s", what.prefix, what.conv);
    DSC_TRY(dsc_model_conv2d(m, name, x, &conv, 0, y));
    snprintf(name, sizeof name, "%s%s", what.prefix, what.norm);
    return dsc_model_batch_norm(m, name, *y, y);
}
