/* From a graph to operations: one a layer, except that a batch norm is fused with what follows it,
 *   batch norm -> relu              and
 *   batch norm -> add(other) -> relu,
 * when each of these values has no other reader. The fused operation takes the place of the ReLU, because
 * only there the other term is known to be computed. When both terms are batch norms the later one is fused:
 * then nothing moves past another layer with parameters, and gradients become final in the order of the
 * graph. */
#include "base/error.h"
#include "base/memory.h"
#include "model/exec.h"

static void count_uses(const dsc_model *m, int64_t *uses) {
    uses[m->logits]++; /* by the loss */
    for (int64_t i = 0; i < m->node_count; i++)
        for (int k = 0; k < m->nodes[i].inputs; k++)
            uses[m->nodes[i].in[k]]++;
}

static int is_private_norm(const dsc_model *m, const int64_t *uses, dsc_value v) {
    return m->nodes[v].type == &dsc_layer_batch_norm && uses[v] == 1;
}

/* The term of the addition that can be fused with the other and the ReLU; -1 for none. Its own input may not
 * be the other term: one operation would then write two gradients to the same memory. */
static int fusible_term(const dsc_model *m, const int64_t *uses, const dsc_node *add) {
    int best = -1;
    for (int k = 0; k < 2; k++) {
        dsc_value norm = add->in[k], other = add->in[1 - k];
        if (is_private_norm(m, uses, norm) && m->nodes[norm].in[0] != other &&
            (best < 0 || norm > add->in[best]))
            best = k;
    }
    return best;
}

static dsc_exec_op plain_op(const dsc_model *m, dsc_value v) {
    const dsc_node *node = &m->nodes[v];
    dsc_exec_op op = {.node = node, .type = node->type, .inputs = node->inputs, .out = v};
    for (int k = 0; k < node->inputs; k++)
        op.in[k] = node->in[k];
    return op;
}

/* fused[v]: the batch norm that the ReLU v is fused with, or -1; taken[u]: 1 for values that then vanish. */
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
            int term = fusible_term(m, uses, add);
            if (term < 0)
                continue;
            fused[v] = add->in[term];
            taken[before] = 1;
        } else {
            continue;
        }
        taken[fused[v]] = 1;
    }
}

static dsc_exec_op fused_op(const dsc_model *m, dsc_value relu, dsc_value norm) {
    dsc_exec_op op = plain_op(m, norm);
    op.out = relu;
    op.relu = 1;
    const dsc_node *before = &m->nodes[m->nodes[relu].in[0]];
    if (before->type == &dsc_layer_add) {
        op.inputs = 2;
        op.in[1] = before->in[0] == norm ? before->in[1] : before->in[0];
    }
    return op;
}

/* trained[v]: a gradient at v is needed, because v depends on a parameter. */
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
            op->keeps_x = 1; /* a capture gets it */
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
end:
    dsc_memory_free(&trained);
    dsc_memory_free(&taken);
    dsc_memory_free(&fused);
    dsc_memory_free(&uses);
    return status;
}
