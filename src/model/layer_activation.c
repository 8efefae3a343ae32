/* Element-wise activations other than ReLU. The backward pass of GELU and SiLU computes the derivative from the input;
 * that of tanh and sigmoid computes it from the output, so that they can run in place. */
#include "base/error.h"
#include "model/exec.h"

typedef struct attributes {
    dsc_map forward, backward;
} attributes;

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    const attributes *own = op->node->attributes;
    (void)exec;
    return op->absorbed ? DSC_OK : dsc_op_map(q, own->forward, op->x[0], NULL, 0, op->y);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                           const dsc_backward_pass *pass) {
    const attributes *own = op->node->attributes;
    (void)exec;
    (void)pass;
    if (op->absorbed)
        return DSC_OK;
    return dsc_op_map(q, own->backward, op->type->keeps_x ? op->x[0] : op->y, op->dy, op->beta[0], op->dx[0]);
}

/* reads_x: 1 if backward reads the input, 0 if it reads the output. */
#define TYPE(of, reads_x)                                                                                    \
    {                                                                                                        \
        .name = of, .attribute_bytes = sizeof(attributes), .in_place = 1, .keeps_x = (reads_x),              \
        .keeps_y = !(reads_x), .by_position = 1, .shape = dsc_graph_same_shape, .forward = forward,          \
        .backward = backward                                                                                 \
    }

static const struct {
    dsc_layer_type type;
    attributes maps;
} kinds[] = {
    [DSC_ACTIVATION_GELU] = {TYPE("gelu", 1), {DSC_MAP_GELU, DSC_MAP_GELU_SLOPE}},
    [DSC_ACTIVATION_GELU_TANH] = {TYPE("gelu_tanh", 1), {DSC_MAP_GELU_TANH, DSC_MAP_GELU_TANH_SLOPE}},
    [DSC_ACTIVATION_SILU] = {TYPE("silu", 1), {DSC_MAP_SILU, DSC_MAP_SILU_SLOPE}},
    [DSC_ACTIVATION_TANH] = {TYPE("tanh", 0), {DSC_MAP_TANH, DSC_MAP_TANH_SLOPE}},
    [DSC_ACTIVATION_SIGMOID] = {TYPE("sigmoid", 0), {DSC_MAP_SIGMOID, DSC_MAP_SIGMOID_SLOPE}},
};

int dsc_layer_is_gelu_tanh(const dsc_layer_type *type) {
    return type == &kinds[DSC_ACTIVATION_GELU_TANH].type;
}

dsc_status dsc_model_activation(dsc_model *m, dsc_value x, dsc_activation activation, dsc_value *y) {
    int kind = (int)activation;
    if (kind == DSC_ACTIVATION_RELU)
        return dsc_model_relu(m, x, y);
    if (kind < 0 || kind >= (int)(sizeof kinds / sizeof kinds[0]))
        return DSC_FAIL(DSC_E_INVALID, "activation: number %d is unknown; 0 to %d are expected", kind,
                        (int)(sizeof kinds / sizeof kinds[0]) - 1);
    return dsc_graph_add(m, &kinds[kind].type, NULL, &x, 1, &kinds[kind].maps, y);
}
