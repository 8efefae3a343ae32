/* Lowers a graph to operations: one per layer, except that a batch norm or a linear layer is fused with what follows,
 *   batch norm -> relu,
 *   batch norm -> add(other) -> relu              and
 *   linear -> add(other),
 * if nothing else reads the values in between. The fused operation runs at the place of the last of these layers,
 * because only there the other term is sure to be computed. If both terms can be fused, the later one is: then no
 * operation moves past another layer with parameters, and gradients become final in the order of the graph.
 *
 * In training with half types, on a GPU, the GELU between two linear layers stays an operation with its own memory, but
 * the layer before it computes its output, and the layer after it the gradient of its input: the epilogues of the two
 * matrix products then replace two passes over memory. */
#include "base/error.h"
#include "base/memory.h"
#include "model/exec.h"

static void count_uses(const dsc_model *m, int64_t *uses) {
    uses[m->logits]++; /* by the loss */
    for (int64_t i = 0; i < m->node_count; i++)
        for (int k = 0; k < m->nodes[i].inputs; k++)
            uses[m->nodes[i].in[k]]++;
}

/* Returns which term (0 or 1) of an addition is a layer of the given type that can be fused with it; -1 for none. Its
 * own input may not be the other term: one operation would then write two gradients to the same memory. */
static int fusible_term(const dsc_model *m, const int64_t *uses, const dsc_layer_type *type,
                        const dsc_node *add) {
    int best = -1;
    for (int k = 0; k < 2; k++) {
        dsc_value term = add->in[k], other = add->in[1 - k];
        if (m->nodes[term].type == type && uses[term] == 1 && m->nodes[term].in[0] != other &&
            (best < 0 || term > add->in[best]))
            best = k;
    }
    return best;
}

static dsc_exec_op plain_op(const dsc_model *m, dsc_value v) {
    const dsc_node *node = &m->nodes[v];
    dsc_exec_op op = {
        .node = node, .type = node->type, .inputs = node->inputs, .out = v, .activated = -1, .inner = -1};
    for (int k = 0; k < node->inputs; k++)
        op.in[k] = node->in[k];
    return op;
}

/* Sets fused[v] to the batch norm that the ReLU v is fused with, or the linear layer that the addition v is fused with,
 * or -1; and taken[u] to 1 for values u that are then not computed separately. */
static void find_fusions(const dsc_model *m, const int64_t *uses, int64_t *fused, unsigned char *taken) {
    for (int64_t v = 0; v < m->node_count; v++) {
        const dsc_node *node = &m->nodes[v];
        fused[v] = -1;
        if (node->type != &dsc_layer_relu || uses[node->in[0]] != 1)
            continue;
        dsc_value before = node->in[0];
        const dsc_node *add = &m->nodes[before];
        if (add->type == &dsc_layer_batch_norm) {
            fused[v] = before;
        } else if (add->type == &dsc_layer_add) {
            int term = fusible_term(m, uses, &dsc_layer_batch_norm, add);
            if (term < 0)
                continue;
            fused[v] = add->in[term];
            taken[before] = 1;
        } else {
            continue;
        }
        taken[fused[v]] = 1;
    }
    for (int64_t v = 0; v < m->node_count; v++) {
        const dsc_node *add = &m->nodes[v];
        int term =
            add->type == &dsc_layer_add && !taken[v] ? fusible_term(m, uses, &dsc_layer_linear, add) : -1;
        if (term >= 0) {
            fused[v] = add->in[term];
            taken[fused[v]] = 1;
        }
    }
}

/* Makes one operation of the layer `first` and the ReLU or the addition `last` that it is fused with. */
static dsc_exec_op fused_op(const dsc_model *m, dsc_value last, dsc_value first) {
    dsc_exec_op op = plain_op(m, first);
    op.out = last;
    op.relu = m->nodes[last].type == &dsc_layer_relu;
    op.adds = !op.relu;
    const dsc_node *add = &m->nodes[op.relu ? m->nodes[last].in[0] : last];
    if (add->type == &dsc_layer_add) {
        op.inputs = 2;
        op.in[1] = add->in[0] == first ? add->in[1] : add->in[0];
    }
    return op;
}

/* Returns the linear layer whose output is v, if v is read only once; otherwise NULL. */
static dsc_exec_op *linear_before(dsc_exec *exec, const int64_t *uses, dsc_value v) {
    for (int64_t i = 0; i < exec->op_count; i++)
        if (exec->ops[i].out == v)
            return exec->ops[i].type == &dsc_layer_linear && !exec->ops[i].adds && uses[v] == 1
                       ? &exec->ops[i]
                       : NULL;
    return NULL;
}

/* Returns the linear layer that alone reads v; NULL for none. */
static dsc_exec_op *linear_after(dsc_exec *exec, const int64_t *uses, dsc_value v) {
    for (int64_t i = 0; i < exec->op_count; i++)
        if (exec->ops[i].in[0] == v)
            return exec->ops[i].type == &dsc_layer_linear && uses[v] == 1 ? &exec->ops[i] : NULL;
    return NULL;
}

static void share_gelus(dsc_exec *exec, const int64_t *uses) {
    const dsc_model *m = exec->model;
    if (exec->mode != DSC_EXEC_TRAIN || exec->recompute || dsc_model_value_dtype(m) == m->options.dtype)
        return;
    for (int64_t i = 0; i < exec->op_count; i++) {
        dsc_exec_op *gelu = &exec->ops[i], *before, *after;
        if (!dsc_layer_is_gelu_tanh(gelu->type) || !gelu->backward)
            continue;
        before = linear_before(exec, uses, gelu->in[0]);
        after = linear_after(exec, uses, gelu->out);
        if (!before || !after)
            continue;
        before->activated = gelu->out;
        after->inner = gelu->in[0];
        gelu->absorbed = 1;
    }
}

/* Writes the operations. Sets trained[v] to 1 if a gradient at v is needed, because v depends on a parameter. */
static dsc_status emit(dsc_exec *exec, const int64_t *fused, const unsigned char *taken,
                       unsigned char *trained) {
    const dsc_model *m = exec->model;
    for (int64_t v = 0; v < m->node_count; v++) {
        if (taken[v] || m->nodes[v].inputs == 0)
            continue;
        dsc_exec_op *op = &exec->ops[exec->op_count++];
        *op = fused[v] >= 0 ? fused_op(m, (dsc_value)v, (dsc_value)fused[v]) : plain_op(m, (dsc_value)v);
        op->keeps_x = op->type->keeps_x;
        op->keeps_y = op->type->keeps_y;
        if (op->node->layer >= 0 && op->keeps_x < 1)
            op->keeps_x = 1; /* the function `capture` gets it */
        if (op->type->plan)
            DSC_TRY(op->type->plan(exec, op));
        trained[v] = op->node->param_count > 0;
        for (int k = 0; k < op->inputs; k++)
            trained[v] |= trained[op->in[k]];
        op->backward = exec->mode == DSC_EXEC_TRAIN && trained[v];
        if (!op->backward)
            op->keeps_x = op->keeps_y = 0;
    }
    return DSC_OK;
}

dsc_status dsc_exec_lower(dsc_exec *exec) {
    const dsc_model *m = exec->model;
    int64_t *uses = NULL, *fused = NULL;
    unsigned char *taken = NULL, *trained = NULL;
    dsc_status status;
    DSC_TRY_GOTO(status, dsc_memory_alloc(m->node_count, sizeof *uses, &uses), end);
    DSC_TRY_GOTO(status, dsc_memory_alloc(m->node_count, sizeof *fused, &fused), end);
    DSC_TRY_GOTO(status, dsc_memory_alloc(m->node_count, sizeof *taken, &taken), end);
    DSC_TRY_GOTO(status, dsc_memory_alloc(m->node_count, sizeof *trained, &trained), end);
    DSC_TRY_GOTO(status, dsc_memory_alloc(m->node_count, sizeof *exec->ops, &exec->ops), end);
    count_uses(m, uses);
    find_fusions(m, uses, fused, taken);
    DSC_TRY_GOTO(status, emit(exec, fused, taken, trained), end);
    share_gelus(exec, uses);
end:
    dsc_memory_free(&trained);
    dsc_memory_free(&taken);
    dsc_memory_free(&fused);
    dsc_memory_free(&uses);
    return status;
}
