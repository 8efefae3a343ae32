/* Counts the floating-point operations of a model: two, a multiplication and an addition, for every element of a weight
 * matrix at every position where it is used, and for every pair of positions and every feature in both products of
 * attention,
 *   scores = queries keys',   output = softmax(scores) values,
 * which are counted in full even if a causal mask leaves out half of them. Everything else is small beside these. */
#include "model/graph.h"

static double positions(const dsc_shape *shape) {
    return shape->flat ? 1 : (double)shape->h * (double)shape->w;
}

static double flops_of(const dsc_model *m, const dsc_node *node) {
    if (node->type == &dsc_layer_attention)
        return 2 * 2 * positions(&node->shape) * positions(&node->shape) * (double)node->shape.c;
    const int transposed = node->type == &dsc_layer_conv_transpose2d;
    if (node->type != &dsc_layer_linear && node->type != &dsc_layer_conv2d && !transposed)
        return 0;
    const double weights = (double)dsc_tensor_count(&m->params[node->weight].value);
    return 2 * weights * positions(transposed ? dsc_graph_input(m, node, 0) : &node->shape);
}

double dsc_model_flops(const dsc_model *m) {
    double sum = 0;
    for (int64_t i = 0; m->sealed && i < m->node_count; i++)
        sum += flops_of(m, &m->nodes[i]);
    return sum;
}
