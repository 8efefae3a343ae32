/* Decides where a training executor cuts its operations into segments. Only values that pass from one segment to a
 * later one are kept for the backward pass. The other values of a segment are computed again, from those, right before
 * the backward pass of the segment; those of the last segment are still in memory.
 *
 * A cut is good where few bytes pass it and many are written before it: between the blocks of a transformer only the
 * sum of their outputs passes, and in a U-Net the maps that are concatenated later cost nothing more once kept. */
#include "base/error.h"
#include "base/memory.h"
#include "model/exec.h"

typedef struct cutter {
    const dsc_exec *exec;
    int64_t *producer,
        *last;           /* per value: the operation that computes it, the last that reads it; -1: none */
    unsigned char *kept; /* per value: 1 if it passes a cut */
    size_t *weight;      /* per operation: the number of bytes that it writes */
} cutter;

static size_t weight_of(const dsc_exec *exec, const dsc_exec_op *op) {
    size_t sum = op->view ? 0 : dsc_tensor_bytes(&exec->values[op->out]);
    for (int k = 0; k < DSC_LAYER_TENSORS; k++)
        if (op->saved[k].ndim > 0)
            sum += dsc_tensor_bytes(&op->saved[k]);
    return sum;
}

static dsc_status cutter_open(const dsc_exec *exec, cutter *c) {
    int64_t values = exec->model->node_count, ops = exec->op_count;
    c->exec = exec;
    DSC_TRY(dsc_memory_alloc(values, sizeof *c->producer, &c->producer));
    DSC_TRY(dsc_memory_alloc(values, sizeof *c->last, &c->last));
    DSC_TRY(dsc_memory_alloc(values, sizeof *c->kept, &c->kept));
    DSC_TRY(dsc_memory_alloc(ops, sizeof *c->weight, &c->weight));
    for (int64_t v = 0; v < values; v++)
        c->producer[v] = c->last[v] = -1;
    for (int64_t i = 0; i < ops; i++) {
        const dsc_exec_op *op = &exec->ops[i];
        c->weight[i] = weight_of(exec, op);
        c->producer[op->out] = i;
        for (int k = 0; k < op->inputs; k++)
            c->last[op->in[k]] = i;
    }
    for (int64_t i = ops - 1; i >= 0; i--) { /* reading a view means reading the value that it is a view of */
        const dsc_exec_op *op = &exec->ops[i];
        if (op->view && c->last[op->out] > c->last[op->in[0]])
            c->last[op->in[0]] = c->last[op->out];
    }
    return DSC_OK;
}

static void cutter_close(cutter *c) {
    dsc_memory_free(&c->weight);
    dsc_memory_free(&c->kept);
    dsc_memory_free(&c->last);
    dsc_memory_free(&c->producer);
}

/* Returns 1 if value v passes a cut after operation `end`. Views are not counted, only the values they are views of. */
static int passes(const cutter *c, int64_t v, int64_t end) {
    int64_t producer = c->producer[v];
    return producer >= 0 && producer <= end && c->last[v] > end && !c->exec->ops[producer].view;
}

/* The number of bytes that a cut after operation `end` keeps in addition to those that other cuts keep. */
static size_t bytes_of_cut(const cutter *c, int64_t end) {
    size_t sum = 0;
    for (int64_t v = 0; v < c->exec->model->node_count; v++)
        if (!c->kept[v] && passes(c, v, end))
            sum += dsc_tensor_bytes(&c->exec->values[v]);
    return sum;
}

/* Returns the last operation of the segment that begins at `first` and writes about `most` bytes at most: the one with
 * the smallest ratio of bytes that the cut keeps to bytes that the segment writes. -1: the segment goes to the end. */
static int64_t find_cut(const cutter *c, int64_t first, size_t most) {
    int64_t ops = c->exec->op_count, best = -1;
    double best_share = 0;
    size_t rest = 0, inside = 0;
    for (int64_t i = first; i < ops; i++)
        rest += c->weight[i];
    if (rest <= most)
        return -1;
    for (int64_t i = first; i < ops - 1; i++) {
        inside += c->weight[i];
        if (inside > most && best >= 0)
            break;
        double share = inside > 0 ? (double)bytes_of_cut(c, i) / (double)inside : 1;
        if (best < 0 || share <= best_share) {
            best = i;
            best_share = share;
        }
    }
    return best;
}

dsc_status dsc_exec_cut(dsc_exec *exec, int64_t parts) {
    cutter c = {0};
    dsc_status status;
    size_t all = 0;
    DSC_TRY_GOTO(status, cutter_open(exec, &c), end);
    for (int64_t i = 0; i < exec->op_count; i++)
        all += c.weight[i];
    exec->segment_count = 1;
    exec->segments[0] = 0;
    for (int64_t cut;
         (cut = find_cut(&c, exec->segments[exec->segment_count - 1], all / (size_t)parts)) >= 0;) {
        for (int64_t v = 0; v < exec->model->node_count; v++)
            c.kept[v] |= (unsigned char)passes(&c, v, cut);
        exec->segments[exec->segment_count++] = cut + 1;
    }
    exec->segments[exec->segment_count] = exec->op_count;
end:
    cutter_close(&c);
    return status;
}
