/* The ResNets for ImageNet (He et al. 2016) as in torchvision: a 7x7 convolution and a max pool, each with
 * stride 2, four stages of basic blocks (two 3x3) or bottlenecks (1x1, 3x3 with the stride, 1x1 to four
 * times the channels), global average pooling, one linear layer. If a block changes the shape, its shortcut
 * is a 1x1 convolution with batch norm. */
#include "base/error.h"
#include "model/zoo/resnet.h"
#include "model/zoo/zoo.h"

#include <stdio.h>

typedef struct design {
    int depth;
    int bottleneck;
    int blocks[4];
} design;

static const design designs[] = {
    {18, 0, {2, 2, 2, 2}},   {34, 0, {3, 4, 6, 3}},   {50, 1, {3, 4, 6, 3}},
    {101, 1, {3, 4, 23, 3}}, {152, 1, {3, 8, 36, 3}},
};

typedef struct block {
    const char *prefix;
    int64_t width, out, stride; /* width: channels inside; out: channels of the output */
    int downsample;
} block;

static dsc_status basic_branch(dsc_model *m, const block *b, dsc_value x, dsc_value *y) {
    DSC_TRY(
        dsc_resnet_conv_norm(m, (dsc_resnet_conv){b->prefix, "conv1", "bn1", b->width, 3, b->stride}, x, y));
    DSC_TRY(dsc_model_relu(m, *y, y));
    return dsc_resnet_conv_norm(m, (dsc_resnet_conv){b->prefix, "conv2", "bn2", b->out, 3, 1}, *y, y);
}

static dsc_status bottleneck_branch(dsc_model *m, const block *b, dsc_value x, dsc_value *y) {
    DSC_TRY(dsc_resnet_conv_norm(m, (dsc_resnet_conv){b->prefix, "conv1", "bn1", b->width, 1, 1}, x, y));
    DSC_TRY(dsc_model_relu(m, *y, y));
    DSC_TRY(
        dsc_resnet_conv_norm(m, (dsc_resnet_conv){b->prefix, "conv2", "bn2", b->width, 3, b->stride}, *y, y));
    DSC_TRY(dsc_model_relu(m, *y, y));
    return dsc_resnet_conv_norm(m, (dsc_resnet_conv){b->prefix, "conv3", "bn3", b->out, 1, 1}, *y, y);
}

static dsc_status add_block(dsc_model *m, const block *b, int bottleneck, dsc_value x, dsc_value *y) {
    dsc_value shortcut = x, branch;
    if (bottleneck)
        DSC_TRY(bottleneck_branch(m, b, x, &branch));
    else
        DSC_TRY(basic_branch(m, b, x, &branch));
    if (b->downsample) {
        dsc_resnet_conv conv = {b->prefix, "downsample.0", "downsample.1", b->out, 1, b->stride};
        DSC_TRY(dsc_resnet_conv_norm(m, conv, x, &shortcut));
    }
    DSC_TRY(dsc_model_add(m, branch, shortcut, y));
    return dsc_model_relu(m, *y, y);
}

static dsc_status add_stages(dsc_model *m, const design *d, dsc_value x, dsc_value *y) {
    int64_t channels = 64;
    *y = x;
    for (int stage = 0; stage < 4; stage++)
        for (int i = 0; i < d->blocks[stage]; i++) {
            char prefix[DSC_RESNET_NAME];
            snprintf(prefix, sizeof prefix, "layer%d.%d.", stage + 1, i);
            block b = {.prefix = prefix, .width = 64 << stage, .stride = stage > 0 && i == 0 ? 2 : 1};
            b.out = d->bottleneck ? 4 * b.width : b.width;
            b.downsample = b.stride != 1 || channels != b.out;
            DSC_TRY(add_block(m, &b, d->bottleneck, *y, y));
            channels = b.out;
        }
    return DSC_OK;
}

dsc_status dsc_zoo_resnet_imagenet(void *depth, dsc_model *m, dsc_value x, int64_t classes,
                                   dsc_value *logits) {
    const design *d = NULL;
    for (size_t i = 0; i < sizeof designs / sizeof designs[0]; i++)
        if (designs[i].depth == *(const int *)depth)
            d = &designs[i];
    if (!d)
        return DSC_FAIL(DSC_E_INTERNAL, "no ResNet of depth %d is designed", *(const int *)depth);
    DSC_TRY(dsc_resnet_conv_norm(m, (dsc_resnet_conv){"", "conv1", "bn1", 64, 7, 2}, x, &x));
    DSC_TRY(dsc_model_relu(m, x, &x));
    DSC_TRY(dsc_model_max_pool(m, x, 3, 2, 1, &x));
    DSC_TRY(add_stages(m, d, x, &x));
    DSC_TRY(dsc_model_global_pool(m, x, &x));
    return dsc_model_linear(m, "fc", x, classes, 1, logits);
}
