/* Memory of an executor: which values share storage by being views or by being computed in place, when each
 * storage is needed, and one block of device memory for all of them. */
#include "base/error.h"
#include "base/memory.h"
#include "model/arena.h"
#include "model/exec.h"

/* Blocks that are needed all the time. */
enum {
    BLOCK_WORK,
    BLOCK_POSITION,
    BLOCK_STATS,
    BLOCK_LENGTHS,
    BLOCK_UNUSED0,
    BLOCK_UNUSED1,
    BLOCK_CONVERTED,
    BLOCK_HALF,
    FIXED_BLOCKS
};

typedef struct place {
    dsc_exec *exec;
    int64_t n, ops, end; /* values, operations, last time */
    int64_t *uses;       /* per value: operations that read it */
    int64_t *producer;   /* per value: its operation; -1 for none */
    int64_t *root;       /* per value: the value in whose storage it lies */
    int64_t *grad_root;  /* the same for gradients */
    dsc_interval *values, *grads, *saved, *unused_dx, *fixed; /* parts of `blocks` */
    dsc_interval *blocks;
    int64_t block_count;
} place;

static int64_t backward_time(const place *p, int64_t op) {
    return 2 * p->ops - op;
}

static void touch(dsc_interval *block, size_t bytes, int64_t time) {
    if (block->bytes == 0) {
        block->first = block->last = time;
        block->bytes = bytes;
    }
    block->first = time < block->first ? time : block->first;
    block->last = time > block->last ? time : block->last;
}

static int wants_gradient(const place *p, dsc_value v) {
    return p->producer[v] >= 0 && p->exec->ops[p->producer[v]].backward;
}

/* ---- who shares storage ---- */

/* Nothing but operation `s` reads the storage of its first input, in forward or in backward. */
static int may_overwrite(const place *p, const dsc_exec_op *s) {
    int64_t root = p->root[s->in[0]];
    if (!s->type->in_place || s->keeps_x || root == p->exec->model->input)
        return 0;
    for (int64_t v = 0; v < p->n; v++)
        if (p->root[v] == root && (p->uses[v] != 1 || p->exec->ops[p->producer[v]].keeps_y))
            return 0;
    return 1;
}

static void share_values(place *p) {
    const dsc_exec *exec = p->exec;
    for (int64_t v = 0; v < p->n; v++) {
        p->root[v] = -1;
        p->producer[v] = -1;
    }
    p->root[exec->model->input] = exec->model->input;
    for (int64_t i = 0; i < p->ops; i++)
        for (int k = 0; k < exec->ops[i].inputs; k++)
            p->uses[exec->ops[i].in[k]]++;
    for (int64_t i = 0; i < p->ops; i++) {
        const dsc_exec_op *s = &exec->ops[i];
        p->producer[s->out] = i;
        p->root[s->out] = s->view || may_overwrite(p, s) ? p->root[s->in[0]] : s->out;
    }
}

/* A gradient that is computed in place overwrites the one it is computed from, which nothing else reads. */
static void share_gradients(place *p) {
    for (int64_t v = 0; v < p->n; v++)
        p->grad_root[v] = v;
    for (int64_t i = p->ops - 1; i >= 0; i--) {
        const dsc_exec_op *s = &p->exec->ops[i];
        if (s->type->in_place && p->uses[s->in[0]] == 1)
            p->grad_root[s->in[0]] = p->grad_root[s->out];
    }
}

/* The first gradient that reaches a value overwrites, the others add. */
static dsc_status set_betas(place *p) {
    unsigned char *seen;
    DSC_TRY(dsc_memory_alloc(p->n, sizeof *seen, &seen));
    for (int64_t i = p->ops - 1; i >= 0; i--) {
        dsc_exec_op *s = &p->exec->ops[i];
        for (int k = 0; k < s->inputs; k++)
            if (s->backward && wants_gradient(p, s->in[k])) {
                s->beta[k] = seen[s->in[k]];
                seen[s->in[k]] = 1;
            }
    }
    dsc_memory_free(&seen);
    return DSC_OK;
}

/* ---- when storage is needed ---- */

static void live_values(place *p) {
    const dsc_exec *exec = p->exec;
    for (int64_t i = 0; i < p->ops; i++) {
        const dsc_exec_op *s = &exec->ops[i];
        dsc_interval *y = &p->values[p->root[s->out]];
        touch(y, dsc_tensor_bytes(&exec->values[s->out]), i);
        if (s->keeps_y)
            touch(y, 0, p->end);
        for (int k = 0; k < s->inputs; k++) {
            dsc_interval *x = &p->values[p->root[s->in[k]]];
            touch(x, dsc_tensor_bytes(&exec->values[s->in[k]]), i);
            if (k < s->keeps_x)
                touch(x, 0, p->end);
        }
        for (int k = 0; k < DSC_LAYER_TENSORS; k++)
            if (s->saved[k].ndim > 0 && (s->backward || s->saves_always)) {
                dsc_interval *saved = &p->saved[DSC_LAYER_TENSORS * i + k];
                touch(saved, dsc_tensor_bytes(&s->saved[k]), i);
                touch(saved, 0, s->backward ? p->end : i);
                if (exec->decodes) { /* a cache stays from call to call */
                    touch(saved, 0, 0);
                    touch(saved, 0, p->end);
                }
            }
    }
    touch(&p->values[p->root[exec->model->logits]], 0, p->end);
    p->values[exec->model->input].bytes = 0; /* the caller's memory */
}

static void live_gradients(place *p) {
    const dsc_exec *exec = p->exec;
    dsc_value logits = exec->model->logits;
    touch(&p->grads[p->grad_root[logits]], dsc_tensor_bytes(&exec->grads[logits]), p->ops);
    for (int64_t i = 0; i < p->ops; i++) {
        const dsc_exec_op *s = &exec->ops[i];
        if (!s->backward)
            continue;
        touch(&p->grads[p->grad_root[s->out]], dsc_tensor_bytes(&exec->grads[s->out]), backward_time(p, i));
        for (int k = 0; k < s->inputs; k++) {
            size_t bytes = dsc_tensor_bytes(&exec->grads[s->in[k]]);
            if (wants_gradient(p, s->in[k]))
                touch(&p->grads[p->grad_root[s->in[k]]], bytes, backward_time(p, i));
            else if (k == 0 && s->type->dx_always)
                touch(&p->unused_dx[i], bytes, backward_time(p, i));
        }
    }
}

/* What a capture gets stays until the second next capture, which comes before that operation's backward. */
static void live_longer(place *p) {
    const dsc_exec *exec = p->exec;
    for (int64_t i = 0; i < p->ops; i++) {
        const dsc_exec_op *s = &exec->ops[i];
        if (!s->backward || s->node->layer < 0)
            continue;
        int64_t next = i;
        for (int found = 0; found < DSC_EXEC_CAPTURES && next >= 0;)
            found += --next >= 0 && exec->ops[next].backward && exec->ops[next].node->layer >= 0;
        touch(&p->grads[p->grad_root[s->out]], 0, next < 0 ? p->end : backward_time(p, next) - 1);
    }
}

static void live_always(place *p) {
    dsc_exec *exec = p->exec;
    dsc_model *m = exec->model;
    dsc_dtype dtype = m->options.dtype;
    int64_t work = (int64_t)exec->work_bytes;
    exec->work = dsc_tensor_view(m->device, NULL, DSC_U8, 1, &work);
    exec->position = dsc_tensor_view(m->device, NULL, DSC_I64, 1, (int64_t[]){2});
    exec->stats = dsc_tensor_view(m->device, NULL, DSC_F64, 1, (int64_t[]){DSC_STAT_COUNT});
    exec->lengths = dsc_tensor_view(m->device, NULL, DSC_I32, 1, &exec->batch);
    for (int i = 0; i < 2; i++)
        exec->unused_params[i] = dsc_tensor_view(m->device, NULL, dtype, 1, &exec->widest_norm);
    exec->converted = exec->values[m->input];
    dsc_dtype value = dsc_model_value_dtype(m);
    exec->half = dsc_tensor_view(m->device, NULL, value, 1, &m->parameter_total);
    size_t bytes[FIXED_BLOCKS] = {
        [BLOCK_WORK] = exec->work_bytes,
        [BLOCK_POSITION] = dsc_tensor_bytes(&exec->position),
        [BLOCK_STATS] = dsc_tensor_bytes(&exec->stats),
        [BLOCK_LENGTHS] = exec->padded ? dsc_tensor_bytes(&exec->lengths) : 0,
        [BLOCK_UNUSED0] = exec->mode == DSC_EXEC_TRAIN ? dsc_tensor_bytes(&exec->unused_params[0]) : 0,
        [BLOCK_UNUSED1] = exec->mode == DSC_EXEC_TRAIN ? dsc_tensor_bytes(&exec->unused_params[1]) : 0,
        [BLOCK_CONVERTED] = exec->converted.dtype == DSC_F32 ? 0 : dsc_tensor_bytes(&exec->converted),
        [BLOCK_HALF] = value == dtype ? 0 : dsc_tensor_bytes(&exec->half)};
    for (int i = 0; i < FIXED_BLOCKS; i++) {
        touch(&p->fixed[i], bytes[i], 0);
        touch(&p->fixed[i], 0, p->end);
    }
}

/* The sum if every result and every gradient had memory of its own. */
static size_t bytes_without_reuse(const place *p) {
    size_t sum = 0;
    for (int64_t i = 0; i < p->ops; i++) {
        const dsc_exec_op *s = &p->exec->ops[i];
        if (!s->view)
            sum += dsc_tensor_bytes(&p->exec->values[s->out]);
        if (s->backward && !s->view)
            sum += dsc_tensor_bytes(&p->exec->grads[s->out]);
        sum += p->unused_dx[i].bytes;
        for (int k = 0; k < DSC_LAYER_TENSORS; k++)
            sum += p->saved[DSC_LAYER_TENSORS * i + k].bytes;
    }
    for (int i = 0; i < FIXED_BLOCKS; i++)
        sum += p->fixed[i].bytes;
    return sum;
}

/* ---- tensors ---- */

static void *address(const place *p, const dsc_interval *block) {
    return block->bytes == 0 ? NULL : (char *)p->exec->arena + block->offset;
}

static void bind_tensors(place *p) {
    dsc_exec *exec = p->exec;
    exec->half.data = address(p, &p->fixed[BLOCK_HALF]);
    for (int64_t i = 0; i < p->ops; i++) {
        dsc_exec_op *s = &exec->ops[i];
        exec->values[s->out].data = address(p, &p->values[p->root[s->out]]);
        exec->from_input[s->out] = p->root[s->out] == exec->model->input;
        if (s->backward)
            exec->grads[s->out].data = address(p, &p->grads[p->grad_root[s->out]]);
        for (int k = 0; k < DSC_LAYER_TENSORS; k++)
            s->saved[k].data = address(p, &p->saved[DSC_LAYER_TENSORS * i + k]);
        s->unused_dx = exec->grads[s->in[0]];
        s->unused_dx.data = address(p, &p->unused_dx[i]);
        if (s->node->weight >= 0)
            s->matrix = dsc_exec_param(exec, s->node->weight);
        s->y = &exec->values[s->out];
        s->dy = &exec->grads[s->out];
        for (int k = 0; k < s->inputs; k++) {
            s->x[k] = &exec->values[s->in[k]];
            s->dx[k] = s->backward && wants_gradient(p, s->in[k]) ? &exec->grads[s->in[k]] : NULL;
        }
    }
    exec->from_input[exec->model->input] = 1;
    exec->work.data = address(p, &p->fixed[BLOCK_WORK]);
    exec->position.data = address(p, &p->fixed[BLOCK_POSITION]);
    exec->stats.data = address(p, &p->fixed[BLOCK_STATS]);
    exec->lengths.data = address(p, &p->fixed[BLOCK_LENGTHS]);
    exec->unused_params[0].data = address(p, &p->fixed[BLOCK_UNUSED0]);
    exec->unused_params[1].data = address(p, &p->fixed[BLOCK_UNUSED1]);
    exec->converted.data = address(p, &p->fixed[BLOCK_CONVERTED]);
}

static dsc_tensor logit_rows(const dsc_exec *exec, const dsc_tensor *t) {
    int64_t classes = dsc_model_classes(exec->model);
    return dsc_tensor_view(t->device, t->data, t->dtype, 2,
                           (int64_t[]){dsc_tensor_count(t) / classes, classes});
}

static dsc_status place_open(dsc_exec *exec, place *p) {
    p->exec = exec;
    p->n = exec->model->node_count;
    p->ops = exec->op_count;
    p->end = exec->mode == DSC_EXEC_TRAIN ? 2 * p->ops : p->ops;
    p->block_count = 2 * p->n + (DSC_LAYER_TENSORS + 1) * p->ops + FIXED_BLOCKS;
    DSC_TRY(dsc_memory_alloc(p->n, sizeof *p->uses, &p->uses));
    DSC_TRY(dsc_memory_alloc(p->n, sizeof *p->producer, &p->producer));
    DSC_TRY(dsc_memory_alloc(p->n, sizeof *p->root, &p->root));
    DSC_TRY(dsc_memory_alloc(p->n, sizeof *p->grad_root, &p->grad_root));
    DSC_TRY(dsc_memory_alloc(p->block_count, sizeof *p->blocks, &p->blocks));
    p->values = p->blocks;
    p->grads = p->values + p->n;
    p->saved = p->grads + p->n;
    p->unused_dx = p->saved + DSC_LAYER_TENSORS * p->ops;
    p->fixed = p->unused_dx + p->ops;
    return DSC_OK;
}

static void place_close(place *p) {
    dsc_memory_free(&p->blocks);
    dsc_memory_free(&p->grad_root);
    dsc_memory_free(&p->root);
    dsc_memory_free(&p->producer);
    dsc_memory_free(&p->uses);
}

dsc_status dsc_exec_place(dsc_exec *exec) {
    place p = {0};
    dsc_status status;
    DSC_TRY_GOTO(status, place_open(exec, &p), end);
    share_values(&p);
    live_values(&p);
    live_always(&p);
    if (exec->mode == DSC_EXEC_TRAIN) {
        share_gradients(&p);
        DSC_TRY_GOTO(status, set_betas(&p), end);
        live_gradients(&p);
        if (exec->lasting)
            live_longer(&p);
    }
    DSC_TRY_GOTO(status, dsc_arena_place(p.blocks, p.block_count, &exec->bytes), end);
    exec->bytes_without_reuse = bytes_without_reuse(&p);
    DSC_TRY_GOTO(status, dsc_device_alloc(exec->model->device, exec->bytes, &exec->arena), end);
    bind_tensors(&p);
    exec->logits = logit_rows(exec, &exec->values[exec->model->logits]);
    exec->dlogits = logit_rows(exec, &exec->grads[exec->model->logits]);
end:
    place_close(&p);
    return status;
}
