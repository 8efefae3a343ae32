/* The network's input, images or token numbers; its memory is the caller's. */
#include "base/error.h"
#include "model/graph.h"

static dsc_status shape(const dsc_model *m, dsc_node *node) {
    if (m->input >= 0)
        return DSC_FAIL(DSC_E_INVALID, "input: the model has one already, of %s",
                        dsc_shape_text(&m->nodes[m->input].shape));
    node->shape = *(const dsc_shape *)node->attributes;
    return DSC_OK;
}

static const dsc_layer_type input = {.name = "input", .attribute_bytes = sizeof(dsc_shape), .shape = shape};

static const dsc_layer_type tokens = {.name = "tokens", .attribute_bytes = sizeof(dsc_shape), .shape = shape};

dsc_status dsc_model_input(dsc_model *m, int64_t h, int64_t w, int64_t c, dsc_value *y) {
    dsc_shape size = {.h = h, .w = w, .c = c};
    DSC_TRY(dsc_graph_add(m, &input, NULL, NULL, 0, &size, y));
    m->input = *y;
    return DSC_OK;
}

dsc_status dsc_model_tokens(dsc_model *m, int64_t positions, dsc_value *y) {
    dsc_shape size = {.h = positions, .w = 1, .c = 1};
    DSC_TRY(dsc_graph_add(m, &tokens, NULL, NULL, 0, &size, y));
    m->input = *y;
    m->tokens = 1;
    return DSC_OK;
}
