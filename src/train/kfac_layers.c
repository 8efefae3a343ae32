/* A model's layers as the preconditioner sees them. */
#include "train/kfac_layers.h"

#include "base/error.h"
#include "base/memory.h"

static dsc_kfac_layer describe(const dsc_layer_info *info, const dsc_param *params) {
    dsc_kfac_layer layer;
    dsc_kfac_layer_init(&layer);
    layer.name = info->name;
    layer.kind = info->kind == DSC_LAYER_CONV2D ? DSC_KFAC_CONV2D : DSC_KFAC_LINEAR;
    const dsc_conv2d_shape *shape = info->shape;
    layer.in_c = shape->in_c;
    layer.out_c = shape->out_c;
    if (info->kind == DSC_LAYER_CONV2D) {
        layer.in_h = shape->in_h;
        layer.in_w = shape->in_w;
        layer.kernel_h = shape->kernel_h;
        layer.kernel_w = shape->kernel_w;
        layer.stride_h = shape->stride_h;
        layer.stride_w = shape->stride_w;
        layer.pad_h = shape->pad_h;
        layer.pad_w = shape->pad_w;
        layer.dilation_h = shape->dilation_h;
        layer.dilation_w = shape->dilation_w;
        layer.groups = shape->groups;
    }
    layer.weight_grad = params[info->weight].grad;
    if (info->bias >= 0)
        layer.bias_grad = params[info->bias].grad;
    return layer;
}

dsc_status dsc_kfac_layers_of(const dsc_model *model, dsc_kfac_layer **out, int64_t *count) {
    const dsc_layer_info *infos = dsc_model_layers(model);
    int64_t layers = dsc_model_layer_count(model);
    DSC_TRY(dsc_memory_alloc(layers, sizeof **out, out));
    for (int64_t i = 0; i < layers; i++)
        (*out)[i] = describe(&infos[i], dsc_model_params(model));
    *count = layers;
    return DSC_OK;
}
