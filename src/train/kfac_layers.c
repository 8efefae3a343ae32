/* Describes a model's layers to K-FAC: dsc_kfac_layers_of_model. */
#include "base/error.h"
#include "base/memory.h"
#include "base/versioned.h"
#include "descent/trainer.h"
#include "model/graph.h"
#include "train/kfac_setup.h"

#include <string.h>

static const dsc_kfac_kind kinds[] = {[DSC_LAYER_LINEAR] = DSC_KFAC_LINEAR,
                                      [DSC_LAYER_CONV2D] = DSC_KFAC_CONV2D,
                                      [DSC_LAYER_CONV_TRANSPOSE2D] = DSC_KFAC_CONV_TRANSPOSE2D};

/* 1 more than the number of the first linear layer that reads the same value as layer i, also linear, in the same
 * way; 0 where that is layer i itself. */
static int64_t same_input(const dsc_model *m, int64_t i) {
    const dsc_layer_info *infos = dsc_model_layers(m), *own = &infos[i];
    dsc_value value = -1;
    for (int64_t n = 0; n < m->node_count; n++)
        if (m->nodes[n].layer == i)
            value = m->nodes[n].in[0];
    for (int64_t n = 0; n < m->node_count && own->kind == DSC_LAYER_LINEAR; n++) {
        const dsc_node *node = &m->nodes[n];
        if (node->layer < 0 || node->layer >= i || node->in[0] != value)
            continue;
        const dsc_layer_info *other = &infos[node->layer];
        if (other->kind == DSC_LAYER_LINEAR && (other->bias < 0) == (own->bias < 0))
            return node->layer + 1;
    }
    return 0;
}

/* A language model's own head has a row of G for every token: too many for most vocabularies. */
static int is_large_head(const dsc_model *m, int64_t i) {
    enum { MOST_TOKENS = 1024 };
    const dsc_node *last = &m->nodes[m->logits];
    return m->tokens && last->layer == i && dsc_model_layers(m)[i].shape->out_c > MOST_TOKENS;
}

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
        layer.out_blocks = dsc_model_layer_blocks(model, i);
        layer.same_input = same_input(model, i);
        layer.leave_out = is_large_head(model, i);
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

/* ---- norms, tables of embeddings, tied heads ---- */

static void describe_norm(const dsc_model *model, const dsc_node *node, dsc_kfac_layer *layer) {
    const dsc_param *params = dsc_model_params(model);
    dsc_kfac_layer_init(layer);
    layer->name = node->name;
    layer->kind = node->buffer >= 0 ? DSC_KFAC_BATCH_NORM : DSC_KFAC_LAYER_NORM;
    layer->weight_grad = params[node->weight].grad;
    if (node->bias >= 0)
        layer->bias_grad = params[node->bias].grad;
    layer->in_c = dsc_tensor_count(&layer->weight_grad);
}

/* A table that a head shares is left out: the head's gradient reaches tokens that the batch does not have. The head
 * itself may be preconditioned, see below. */
static void describe_table(const dsc_model *model, const dsc_node *node, dsc_kfac_layer *layer) {
    dsc_kfac_layer_init(layer);
    layer->name = node->name;
    layer->kind = DSC_KFAC_EMBEDDING;
    layer->weight_grad = dsc_model_params(model)[node->weight].grad;
    layer->in_c = layer->weight_grad.dim[0];
    layer->out_c = layer->weight_grad.dim[1];
    layer->leave_out = dsc_embedding_is_shared(node);
}

/* A tied head has the gradient of the table, which is the sum of both parts: the embedding's and the head's. */
static void describe_tied(const dsc_model *model, const dsc_node *node, dsc_kfac_layer *layer) {
    dsc_kfac_layer_init(layer);
    layer->name = node->name;
    layer->kind = DSC_KFAC_TIED_HEAD;
    layer->weight_grad = dsc_model_params(model)[node->weight].grad;
    layer->out_c = layer->weight_grad.dim[0];
    layer->in_c = layer->weight_grad.dim[1];
}

int64_t dsc_kfac_first_of(const dsc_model *model, const dsc_kfac_options *options, dsc_kfac_extra extra) {
    int64_t number = dsc_model_layer_count(model);
    if (extra > DSC_KFAC_NORMS && options->norm != DSC_KFAC_NORM_OFF)
        number += model->norm_count;
    if (extra > DSC_KFAC_TABLES && options->embeddings)
        number += model->table_count;
    if (extra > DSC_KFAC_TIED_HEADS && options->tied_head != DSC_KFAC_TIED_SKIP)
        number += model->tied_count;
    return number;
}

int64_t dsc_kfac_number_of(const dsc_model *model, const dsc_kfac_options *options, const dsc_node *node) {
    if (node->norm >= 0 && options->norm != DSC_KFAC_NORM_OFF)
        return dsc_kfac_first_of(model, options, DSC_KFAC_NORMS) + node->norm;
    if (node->table >= 0 && options->embeddings)
        return dsc_kfac_first_of(model, options, DSC_KFAC_TABLES) + node->table;
    if (node->tied >= 0 && options->tied_head != DSC_KFAC_TIED_SKIP)
        return dsc_kfac_first_of(model, options, DSC_KFAC_TIED_HEADS) + node->tied;
    return -1;
}

dsc_status dsc_kfac_setup_layers(const dsc_model *model, const dsc_kfac_options *options,
                                 dsc_kfac_layer **out, int64_t *count) {
    dsc_kfac_layer *all = NULL, *given = NULL;
    int64_t layers = 0, total = dsc_kfac_first_of(model, options, DSC_KFAC_EXTRAS);
    DSC_TRY(dsc_kfac_layers_of_model(model, &given, &layers));
    *out = given;
    *count = layers;
    if (total == layers)
        return DSC_OK;
    dsc_status status = dsc_memory_alloc(total, sizeof *all, &all);
    if (status == DSC_OK && layers > 0)
        memcpy(all, given, (size_t)layers * sizeof *all);
    dsc_kfac_layers_free(&given);
    *out = all;
    DSC_TRY(status);
    for (int64_t i = 0; i < model->node_count; i++) {
        const dsc_node *node = &model->nodes[i];
        const int64_t number = dsc_kfac_number_of(model, options, node);
        if (number < 0)
            continue;
        if (node->norm >= 0)
            describe_norm(model, node, &all[number]);
        else if (node->table >= 0)
            describe_table(model, node, &all[number]);
        else
            describe_tied(model, node, &all[number]);
    }
    *count = total;
    return DSC_OK;
}
