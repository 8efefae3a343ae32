/* Plans the memory of an executor: which values share storage because they are views or are computed in place, when
 * each storage is needed, and one block of device memory for all of them; with recompute, also which segments need
 * the least memory. */
#include "base/error.h"
#include "base/memory.h"
#include "model/arena.h"
#include "model/exec.h"

/* Blocks that are needed the whole time. */
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
    int64_t n, ops, end; /* number of values, number of operations, last time */
    int64_t *uses;       /* per value: the number of operations that read it */
    int64_t *producer;   /* per value: the operation that computes it; -1 for none */
    int64_t *root;       /* per value: the value in whose storage it lies */
    int64_t *grad_root;  /* the same for gradients */
    int64_t *giver;      /* per value: the operation from which its first gradient comes; -1 for none */
    int64_t *segment, *again,
        *back;           /* per operation: its segment, and the times of recompute and of backward */
    unsigned char *kept; /* recompute: per value and its root: another segment or the loss reads it */
    unsigned char *read; /* recompute: per root: backward, or an operation that runs again, reads it */
    dsc_interval *values, *grads, *saved, *unused_dx, *fixed; /* parts of `blocks` */
    dsc_interval *blocks;
    int64_t block_count;
} place;

static int recomputes(const place *p) {
    return p->exec->segment_count > 0;
}

/* Returns 1 for operations of the last segment, whose values are still in memory when backward begins. */
static int in_last_segment(const place *p, int64_t i) {
    return p->segment[i] == p->exec->segment_count - 1;
}

static void touch(dsc_interval *block, size_t bytes, int64_t time) {
    if (block->bytes == 0) {
        block->first = block->last = time;
        block->bytes = bytes;
    }
    block->first = time < block->first ? time : block->first;
    block->last = time > block->last ? time : block->last;
}

static void touch_again(dsc_interval *block, int64_t time) {
    if (block->again_last == 0)
        block->again_first = block->again_last = time;
    block->again_first = time < block->again_first ? time : block->again_first;
    block->again_last = time > block->again_last ? time : block->again_last;
}

static int wants_gradient(const place *p, dsc_value v) {
    return p->producer[v] >= 0 && p->exec->ops[p->producer[v]].backward;
}

/* ---- segments ---- */

static void set_times(place *p) {
    const dsc_exec *exec = p->exec;
    int64_t end = p->ops, time = end;
    for (int64_t k = recomputes(p) ? exec->segment_count - 1 : 0; k >= 0; k--) {
        int64_t first = recomputes(p) ? exec->segments[k] : 0;
        for (int64_t i = first; i < end; i++) {
            p->segment[i] = k;
            p->again[i] = recomputes(p) ? ++time : 0;
        }
        for (int64_t i = end - 1; i >= first; i--)
            p->back[i] = ++time;
        end = first;
    }
    p->end = exec->mode == DSC_EXEC_TRAIN ? time : p->ops;
}

/* Marks the values that another segment or the loss reads, and the values that they are views of: they are kept. */
static void keep_values(place *p) {
    const dsc_exec *exec = p->exec;
    if (!recomputes(p))
        return;
    p->kept[exec->model->logits] = 1;
    for (int64_t i = p->ops - 1; i >= 0; i--) {
        const dsc_exec_op *s = &exec->ops[i];
        for (int k = 0; k < s->inputs; k++) {
            int64_t from = p->producer[s->in[k]];
            if (from >= 0 && p->segment[from] != p->segment[i])
                p->kept[s->in[k]] = 1;
        }
        if (s->view && p->kept[s->out])
            p->kept[s->in[0]] = 1;
    }
}

/* Returns 1 if the result of an operation is kept. It need not run again then: its saved tensors are kept as well. */
static int keeps_result(const place *p, const dsc_exec_op *s) {
    return p->kept[p->root[s->out]];
}

static int saves(const dsc_exec_op *s) {
    int found = 0;
    for (int k = 0; k < DSC_LAYER_TENSORS; k++)
        found |= s->saved[k].ndim > 0;
    return found;
}

static void find_repeated(place *p) {
    for (int64_t v = 0; v < p->n; v++)
        if (p->kept[v])
            p->kept[p->root[v]] = 1;
    for (int64_t i = p->ops - 1; i >= 0; i--) {
        dsc_exec_op *s = &p->exec->ops[i];
        int64_t out = p->root[s->out];
        p->read[out] |= s->keeps_y != 0;
        s->again = recomputes(p) && !(p->exec->once && in_last_segment(p, i)) && !s->view &&
                   !keeps_result(p, s) && (p->read[out] || (s->backward && saves(s)));
        for (int k = 0; k < s->inputs; k++)
            p->read[p->root[s->in[k]]] |= s->again || k < s->keeps_x;
    }
}

/* ---- which values share storage ---- */

/* Returns 1 if `s` may overwrite its first input: nothing else reads that storage, in forward or in backward. */
static int may_overwrite(const place *p, const dsc_exec_op *s) {
    int64_t root = p->root[s->in[0]];
    if (!s->type->in_place || s->keeps_x || root == p->exec->model->input || p->kept[s->out])
        return 0;
    for (int64_t v = 0; v < p->n; v++)
        if (p->root[v] == root && (p->uses[v] != 1 || p->kept[v] || p->exec->ops[p->producer[v]].keeps_y))
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
    for (int64_t i = 0; i < p->ops; i++) {
        p->producer[exec->ops[i].out] = i;
        for (int k = 0; k < exec->ops[i].inputs; k++)
            p->uses[exec->ops[i].in[k]]++;
    }
    keep_values(p);
    for (int64_t i = 0; i < p->ops; i++) {
        const dsc_exec_op *s = &exec->ops[i];
        p->root[s->out] = s->view || may_overwrite(p, s) ? p->root[s->in[0]] : s->out;
    }
}

/* A gradient that is computed in place overwrites the one that it is computed from, which nothing else reads. */
static void share_gradients(place *p) {
    for (int64_t v = 0; v < p->n; v++)
        p->grad_root[v] = v;
    for (int64_t i = p->ops - 1; i >= 0; i--) {
        const dsc_exec_op *s = &p->exec->ops[i];
        if ((s->type->in_place || s->type->grad_in_place) && p->uses[s->in[0]] == 1)
            p->grad_root[s->in[0]] = p->grad_root[s->out];
    }
}

/* Returns 1 if the gradient of input k equals that of the output. */
static int passes_gradient(const dsc_exec_op *s, int k) {
    return s->type == &dsc_layer_add || (s->adds && k == 1);
}

/* Returns the operation from which v gets its first gradient in backward: the last one that reads v, or, for the
 * logits, the loss (p->ops). */
static int64_t first_giver(const place *p, dsc_value v) {
    if (v == p->exec->model->logits)
        return p->ops;
    for (int64_t j = p->ops - 1; j >= 0; j--)
        for (int e = 0; e < p->exec->ops[j].inputs; e++)
            if (p->exec->ops[j].in[e] == v)
                return j;
    return -1;
}

/* What the backward of one operation does to memory that several gradients share. */
typedef struct effect {
    int reads;         /* 1: the gradient at its output lies in this memory */
    int begins, added; /* the number of gradients that it starts there, and of those that it adds to */
    int writes;        /* the number of gradients that it writes to this memory */
    int in_place;      /* 1: it may overwrite the gradient that it reads */
} effect;

static effect effect_of(const place *p, int64_t j, const unsigned char *there) {
    const dsc_exec_op *s = &p->exec->ops[j];
    effect f = {.reads = there[s->out]};
    for (int e = 0; e < s->inputs; e++) {
        if (!there[s->in[e]] || !wants_gradient(p, s->in[e]))
            continue;
        const int first = p->giver[s->in[e]] == j && (e == 0 || s->in[0] != s->in[e]);
        f.begins += first;
        f.added += !first;
        if (first && f.reads && passes_gradient(s, e))
            continue;
        f.writes++;
        f.in_place = first && e == 0 && (s->type->in_place || s->type->grad_in_place);
    }
    return f;
}

/* Returns 1 if the gradients of the marked values can share memory: whenever one is written, the memory holds no other
 * that is still to be read. In backward, operations run from the last to the first. */
static int fit_together(const place *p, const unsigned char *there) {
    int64_t live = there[p->exec->model->logits];
    for (int64_t j = p->ops - 1; j >= 0; j--) {
        if (!p->exec->ops[j].backward)
            continue;
        const effect f = effect_of(p, j, there);
        if (f.writes && (f.begins + f.added > 1 || live - f.reads - f.added > 0 || (f.reads && !f.in_place)))
            return 0;
        live += f.begins - f.reads;
    }
    return 1;
}

/* Returns 1 if the gradient of input k of operation i may stay in the memory of the gradient at its output. */
static int may_stay(const place *p, int64_t i, int k, unsigned char *there) {
    const dsc_exec_op *s = &p->exec->ops[i];
    const int64_t root = p->grad_root[s->out];
    const dsc_value x = s->in[k];
    if (!s->backward || !passes_gradient(s, k) || p->grad_root[x] != x || x == root ||
        !wants_gradient(p, x) || p->giver[x] != i)
        return 0;
    for (int64_t v = 0; v < p->n; v++)
        there[v] = wants_gradient(p, (dsc_value)v) && (p->grad_root[v] == root || p->grad_root[v] == x);
    return fit_together(p, there);
}

/* Avoids copying the gradient that one sum of several layers passes on to an earlier sum, where that is possible. The
 * gradient of only one input may stay in place, because one input may be computed from the other. */
static dsc_status pass_on_gradients(place *p) {
    unsigned char *there;
    DSC_TRY(dsc_memory_alloc(p->n, sizeof *there, &there));
    for (int64_t v = 0; v < p->n; v++)
        p->giver[v] = first_giver(p, (dsc_value)v);
    for (int64_t i = p->ops - 1; i >= 0; i--) {
        const dsc_exec_op *s = &p->exec->ops[i];
        int64_t root = p->grad_root[s->out];
        for (int k = 0; k < s->inputs; k++) {
            if (!may_stay(p, i, k, there))
                continue;
            for (int64_t v = 0; v < p->n; v++)
                if (p->grad_root[v] == s->in[k])
                    p->grad_root[v] = root;
            break;
        }
    }
    dsc_memory_free(&there);
    return DSC_OK;
}

/* The first gradient of a value overwrites its memory; later ones are added. */
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

/* Extends the life of a block that operation `i`, or another one in the same storage, writes in forward: it is also
 * read at `time`, after forward. */
static void live_later(const place *p, dsc_interval *block, int64_t i, int64_t time) {
    const int kept = !recomputes(p) || (i >= 0 && keeps_result(p, &p->exec->ops[i]));
    if (kept && !p->exec->once)
        touch(block, 0, p->end);
    else if (kept || i < 0 || in_last_segment(p, i))
        touch(block, 0, time);
    else
        touch_again(block, time);
}

static void value_lives(const place *p, dsc_value v, int64_t time) {
    int64_t root = p->root[v];
    live_later(p, &p->values[root], p->producer[root], time);
}

static void live_values(place *p) {
    const dsc_exec *exec = p->exec;
    for (int64_t i = 0; i < p->ops; i++) {
        const dsc_exec_op *s = &exec->ops[i];
        touch(&p->values[p->root[s->out]], dsc_tensor_bytes(&exec->values[s->out]), i);
        if (s->activated >= 0)
            touch(&p->values[p->root[s->activated]], dsc_tensor_bytes(&exec->values[s->activated]), i);
        if (s->again)
            value_lives(p, s->out, p->again[i]);
        if (s->keeps_y)
            value_lives(p, s->out, p->back[i]);
        for (int k = 0; k < s->inputs; k++) {
            touch(&p->values[p->root[s->in[k]]], dsc_tensor_bytes(&exec->values[s->in[k]]), i);
            if (s->again)
                value_lives(p, s->in[k], p->again[i]);
            if (k < s->keeps_x)
                value_lives(p, s->in[k], p->back[i]);
        }
        for (int k = 0; k < DSC_LAYER_TENSORS; k++)
            if (s->saved[k].ndim > 0 && (s->backward || s->saves_always)) {
                dsc_interval *saved = &p->saved[DSC_LAYER_TENSORS * i + k];
                touch(saved, dsc_tensor_bytes(&s->saved[k]), i);
                if (s->again)
                    live_later(p, saved, i, p->again[i]);
                if (s->backward)
                    live_later(p, saved, i, p->back[i]);
                if (exec->decodes) { /* the cache of keys and values lives from call to call */
                    touch(saved, 0, 0);
                    touch(saved, 0, p->end);
                }
            }
    }
    touch(&p->values[p->root[exec->model->logits]], 0, exec->once ? p->ops : p->end);
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
        touch(&p->grads[p->grad_root[s->out]], dsc_tensor_bytes(&exec->grads[s->out]), p->back[i]);
        for (int k = 0; k < s->inputs; k++) {
            size_t bytes = dsc_tensor_bytes(&exec->grads[s->in[k]]);
            if (wants_gradient(p, s->in[k]))
                touch(&p->grads[p->grad_root[s->in[k]]], bytes, p->back[i]);
            else if (k == 0 && s->type->dx_always)
                touch(&p->unused_dx[i], bytes, p->back[i]);
        }
    }
}

/* Tensors that a capture gets stay until the second next capture, which is called before its operation's backward. */
static void live_longer(place *p) {
    const dsc_exec *exec = p->exec;
    for (int64_t i = 0; i < p->ops; i++) {
        const dsc_exec_op *s = &exec->ops[i];
        if (!s->backward || s->node->layer < 0)
            continue;
        int64_t next = i;
        for (int found = 0; found < DSC_EXEC_CAPTURES && next >= 0;)
            found += --next >= 0 && exec->ops[next].backward && exec->ops[next].node->layer >= 0;
        int64_t time = next < 0 ? p->end : p->back[next] - 1;
        touch(&p->grads[p->grad_root[s->out]], 0, time);
        value_lives(p, s->in[0], time);
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

/* The number of bytes if every result and every gradient had its own memory. */
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
        if (s->node->type == &dsc_layer_linear && !s->node->shape.flat)
            s->matrix.dim[0] = exec->values[s->out].dim[3]; /* rows of logits may be longer */
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
    int64_t width = exec->model->nodes[exec->model->logits].shape.flat ? dsc_model_classes(exec->model)
                                                                       : t->dim[t->ndim - 1];
    return dsc_tensor_view(t->device, t->data, t->dtype, 2, (int64_t[]){dsc_tensor_count(t) / width, width});
}

static dsc_status place_open(dsc_exec *exec, place *p) {
    p->exec = exec;
    p->n = exec->model->node_count;
    p->ops = exec->op_count;
    p->block_count = 2 * p->n + (DSC_LAYER_TENSORS + 1) * p->ops + FIXED_BLOCKS;
    DSC_TRY(dsc_memory_alloc(p->n, sizeof *p->uses, &p->uses));
    DSC_TRY(dsc_memory_alloc(p->n, sizeof *p->producer, &p->producer));
    DSC_TRY(dsc_memory_alloc(p->n, sizeof *p->root, &p->root));
    DSC_TRY(dsc_memory_alloc(p->n, sizeof *p->grad_root, &p->grad_root));
    DSC_TRY(dsc_memory_alloc(p->n, sizeof *p->giver, &p->giver));
    DSC_TRY(dsc_memory_alloc(p->ops, sizeof *p->segment, &p->segment));
    DSC_TRY(dsc_memory_alloc(p->ops, sizeof *p->again, &p->again));
    DSC_TRY(dsc_memory_alloc(p->ops, sizeof *p->back, &p->back));
    DSC_TRY(dsc_memory_alloc(p->n, sizeof *p->kept, &p->kept));
    DSC_TRY(dsc_memory_alloc(p->n, sizeof *p->read, &p->read));
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
    dsc_memory_free(&p->read);
    dsc_memory_free(&p->kept);
    dsc_memory_free(&p->back);
    dsc_memory_free(&p->again);
    dsc_memory_free(&p->segment);
    dsc_memory_free(&p->giver);
    dsc_memory_free(&p->grad_root);
    dsc_memory_free(&p->root);
    dsc_memory_free(&p->producer);
    dsc_memory_free(&p->uses);
}

/* Plans the memory of the executor with its present segments. */
static dsc_status plan(dsc_exec *exec, place *p) {
    DSC_TRY(place_open(exec, p));
    set_times(p);
    share_values(p);
    find_repeated(p);
    live_values(p);
    live_always(p);
    if (exec->mode == DSC_EXEC_TRAIN) {
        share_gradients(p);
        if (!exec->lasting) /* captures may read a gradient after its layer has run */
            DSC_TRY(pass_on_gradients(p));
        DSC_TRY(set_betas(p));
        live_gradients(p);
        if (exec->lasting)
            live_longer(p);
    }
    return dsc_arena_place(p->blocks, p->block_count, &exec->bytes);
}

/* Cuts the operations into the segments that need the least memory, or not at all when that needs the least. */
static dsc_status choose_segments(dsc_exec *exec) {
    int64_t best = 0, ops = exec->op_count;
    size_t fewest = 0;
    DSC_TRY(dsc_memory_alloc(ops + 1, sizeof *exec->segments, &exec->segments));
    for (int64_t parts = 1; parts <= ops; parts += 1 + parts / 4) {
        place p = {0};
        dsc_status status = parts > 1 ? dsc_exec_cut(exec, parts) : DSC_OK;
        if (status == DSC_OK)
            status = plan(exec, &p);
        place_close(&p);
        DSC_TRY(status);
        if (parts == 1)
            exec->bytes_without_recompute = exec->bytes;
        if (parts == 1 || exec->bytes < fewest) {
            best = parts;
            fewest = exec->bytes;
        }
    }
    exec->segment_count = 0;
    return best > 1 ? dsc_exec_cut(exec, best) : DSC_OK;
}

dsc_status dsc_exec_place(dsc_exec *exec) {
    place p = {0};
    dsc_status status;
    if (exec->recompute)
        DSC_TRY(choose_segments(exec));
    DSC_TRY_GOTO(status, plan(exec, &p), end);
    if (!exec->recompute)
        exec->bytes_without_recompute = exec->bytes;
    exec->bytes_without_reuse = bytes_without_reuse(&p);
    DSC_TRY_GOTO(status, dsc_device_alloc(exec->model->device, exec->bytes, &exec->arena), end);
    bind_tensors(&p);
    exec->logits = logit_rows(exec, &exec->values[exec->model->logits]);
    exec->dlogits = logit_rows(exec, &exec->grads[exec->model->logits]);
end:
    place_close(&p);
    return status;
}
