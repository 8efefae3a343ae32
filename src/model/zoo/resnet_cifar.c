/* The ResNets for CIFAR (He et al. 2016, section 4.2): a 3x3 convolution with 16 channels, three stages of n
 * blocks with 16, 32 and 64 channels, global average pooling, one linear layer; depth = 6n + 2. Shortcuts have
 * no parameters: where a stage halves the map, they take every second pixel and fill new channels with zeros. */
#include "base/error.h"
#include "model/zoo/resnet.h"
#include "model/zoo/zoo.h"

#include <stdio.h>

static dsc_status block(dsc_model *m, const char *prefix, dsc_value x, int64_t channels, int64_t stride,
                        dsc_value *y) {
    dsc_value shortcut = x;
    DSC_TRY(dsc_resnet_conv_norm(m, (dsc_resnet_conv){prefix, "conv1", "bn1", channels, 3, stride}, x, y));
    DSC_TRY(dsc_model_relu(m, *y, y));
    DSC_TRY(dsc_resnet_conv_norm(m, (dsc_resnet_conv){prefix, "conv2", "bn2", channels, 3, 1}, *y, y));
    if (stride > 1)
        DSC_TRY(dsc_model_shortcut(m, x, stride, channels, &shortcut));
    DSC_TRY(dsc_model_add(m, *y, shortcut, y));
    return dsc_model_relu(m, *y, y);
}

dsc_status dsc_zoo_resnet_cifar(void *depth, dsc_model *m, dsc_value x, int64_t classes, dsc_value *logits) {
    int blocks = (*(const int *)depth - 2) / 6;
    DSC_TRY(dsc_resnet_conv_norm(m, (dsc_resnet_conv){"", "conv1", "bn1", 16, 3, 1}, x, &x));
    DSC_TRY(dsc_model_relu(m, x, &x));
    for (int stage = 0; stage < 3; stage++)
        for (int i = 0; i < blocks; i++) {
            char prefix[DSC_RESNET_NAME];
            snprintf(prefix, sizeof prefix, "layer%d.%d.", stage + 1, i);
            DSC_TRY(block(m, prefix, x, 16 << stage, stage > 0 && i == 0 ? 2 : 1, &x));
        }
    DSC_TRY(dsc_model_global_pool(m, x, &x));
    return dsc_model_linear(m, "linear", x, classes, 1, logits);
}
