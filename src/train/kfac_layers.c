/* Describes a model's layers to K-FAC: dsc_kfac_layers_of_model. */
#include "base/error.h"
#include "base/memory.h"
#include "base/versioned.h"
#include "descent/trainer.h"

static const dsc_kfac_kind kinds[] = {
    [DSC_LAYER_LINEAR] = DSC_KFAC_LINEAR, [DSC_LAYER_CONV2D] = DSC_KFAC_CONV2D};

dsc_status dsc_kfac_layers_of_model_sized(const dsc_model *model, size_t size, dsc_kfac_layer **out,
                                          int64_t *count) {
    const dsc_layer_info *infos = dsc_model_layers(model);
    const dsc_param *params = dsc_model_params(model);
    int64_t layers = dsc_model_layer_count(model);
    char *all;
    DSC_TRY(dsc_versioned_check("dsc_kfac_layer", &size, sizeof(dsc_kfac_layer)));
    DSC_TRY(dsc_memory_alloc(layers, size, &all));
    for (int64_t i = 0; i < layers; i++) {
        dsc_kfac_layer layer, *caller = (dsc_kfac_layer *)(all + (size_t)i * size);
        dsc_kfac_layer_init(&layer);
        layer.name = infos[i].name;
        layer.kind = kinds[infos[i].kind];
        layer.in_c = infos[i].shape->in_c;
        layer.out_c = infos[i].shape->out_c;
        layer.conv = infos[i].shape;
        layer.weight_grad = params[infos[i].weight].grad;
        if (infos[i].bias >= 0)
            layer.bias_grad = params[infos[i].bias].grad;
        dsc_kfac_layer_init_sized(caller, size);
        dsc_versioned_write(&layer, caller);
    }
    *out = (dsc_kfac_layer *)all;
    *count = layers;
    return DSC_OK;
}

void dsc_kfac_layers_free(dsc_kfac_layer **layers) {
    if (layers)
        dsc_memory_free(layers);
}
