/* Averages gradients over ranks in buckets, for all-reduce and for groups.
 *
 * Gradients become ready in descending order of the parameters, so that is their order in the buckets: tensor i of
 * the buckets is parameter count - 1 - i.
 *
 * The buckets are planned over fixed memory. This is the memory of the gradients, or, for callers whose gradients
 * move from step to step (dsc_consensus_set_gradients), a separate block: a gradient is copied to it when it is
 * ready, and the mean is copied back. */
#include "consensus/table.h"

#include "base/error.h"
#include "base/memory.h"
#include "comm/table.h"
#include "device/ops.h"

#include <inttypes.h>

/* ---- creating and destroying ---- */

static dsc_status make_buckets(dsc_consensus *c) {
    dsc_gradients *g = &c->gradients;
    dsc_bucket_options options;
    dsc_bucket_options_init(&options);
    options.bytes = g->bucket_bytes;
    options.wire = g->wire;
    dsc_tensor *grads;
    DSC_TRY(dsc_memory_alloc(c->count, sizeof *grads, &grads));
    for (int64_t i = 0; i < c->count; i++)
        grads[i] = g->own ? g->own[c->count - 1 - i] : c->params[c->count - 1 - i].grad;
    dsc_status status = dsc_buckets_create(g->comm, c->queue, grads, c->count, &options, &g->buckets);
    dsc_memory_free(&grads);
    return status;
}

/* Allocates a separate block for all gradients, in the order in which they become ready. */
static dsc_status make_own(dsc_consensus *c) {
    dsc_gradients *g = &c->gradients;
    size_t bytes = 0, widest = sizeof(double);
    for (int64_t i = 0; i < c->count; i++)
        bytes += (dsc_tensor_bytes(&c->params[i].grad) + widest - 1) / widest * widest;
    int64_t room = (int64_t)bytes;
    DSC_TRY(dsc_tensor_alloc(dsc_queue_device(c->queue), DSC_U8, 1, &room, &g->memory));
    DSC_TRY(dsc_memory_alloc(c->count, sizeof *g->own, &g->own));
    char *next = g->memory.data;
    for (int64_t i = c->count - 1; i >= 0; i--) {
        g->own[i] = c->params[i].grad;
        g->own[i].data = next;
        next += (dsc_tensor_bytes(&g->own[i]) + widest - 1) / widest * widest;
    }
    return DSC_OK;
}

dsc_status dsc_consensus_open_gradients(dsc_consensus *c, dsc_comm *comm,
                                        const dsc_consensus_options *options) {
    dsc_gradients *g = &c->gradients;
    int late = 0;
    g->comm = comm;
    g->bucket_bytes = options->bucket_bytes;
    g->wire = options->wire;
    for (int64_t i = 0; i < c->count; i++)
        late |= !c->params[i].grad.data && dsc_tensor_count(&c->params[i].grad) > 0;
    if (late && dsc_comm_size(comm) > 1)
        DSC_TRY(make_own(c));
    if (late && dsc_comm_size(comm) == 1)
        return DSC_OK; /* nothing is averaged, and there may be no memory to plan with */
    return make_buckets(c);
}

void dsc_consensus_close_gradients(dsc_consensus *c) {
    dsc_gradients *g = &c->gradients;
    int kept = 0;
    if (c->abandoned)
        kept = dsc_buckets_abandon(&g->buckets);
    else
        dsc_buckets_destroy(&g->buckets);
    if (kept) /* operations in flight may still use it */
        dsc_memory_keep(g->memory.data);
    else if (g->memory.data)
        dsc_tensor_free(&g->memory);
    dsc_memory_free(&g->own);
    *g = (dsc_gradients){0};
}

/* ---- addresses that change ---- */

/* Moves the buckets to a separate block; with one rank there is nothing to average. */
static dsc_status leave_callers_memory(dsc_consensus *c) {
    dsc_gradients *g = &c->gradients;
    dsc_buckets_destroy(&g->buckets);
    if (dsc_comm_size(g->comm) == 1)
        return DSC_OK;
    DSC_TRY(make_own(c));
    return make_buckets(c);
}

static int is_announced(const dsc_consensus *c, int64_t param) {
    return c->gradients.buckets && dsc_buckets_is_ready(c->gradients.buckets, c->count - 1 - param);
}

dsc_status dsc_consensus_set_gradients(dsc_consensus *consensus, int64_t first, int64_t count,
                                       void *const *grads) {
    dsc_consensus *c = consensus;
    dsc_gradients *g = &c->gradients;
    int moved = 0;
    if (first < 0 || count < 0 || first > c->count || count > c->count - first || (count > 0 && !grads))
        return DSC_FAIL(DSC_E_INVALID,
                        "gradients of parameters %" PRId64 " to %" PRId64 ": there are %" PRId64
                        " parameters, and an address is needed for each",
                        first, first + count - 1, c->count);
    for (int64_t i = 0; i < count; i++) {
        moved |= grads[i] != c->params[first + i].grad.data;
        if (is_announced(c, first + i))
            return DSC_FAIL(DSC_E_INVALID,
                            "a new address for the gradient of parameter '%s' after it was announced as "
                            "ready: set it before dsc_consensus_grad_ready",
                            c->params[first + i].name);
    }
    g->moving = 1;
    if (moved && g->buckets && !g->own) {
        if (dsc_buckets_is_under_way(g->buckets))
            return DSC_FAIL(DSC_E_INVALID,
                            "the first new addresses of gradients after some were announced as "
                            "ready: set them before dsc_consensus_grad_ready");
        DSC_TRY(leave_callers_memory(c));
    }
    for (int64_t i = 0; i < count; i++)
        c->params[first + i].grad.data = grads[i];
    return DSC_OK;
}

/* ---- in a step ---- */

dsc_status dsc_consensus_gradient_ready(dsc_consensus *c, dsc_queue *queue, int64_t param) {
    dsc_gradients *g = &c->gradients;
    if (!g->buckets)
        return DSC_OK;
    if (g->own && !is_announced(c, param)) {
        const dsc_tensor *grad = &c->params[param].grad;
        DSC_TRY(grad->data ? dsc_op_convert(queue, grad, &g->own[param])
                           : dsc_op_fill(queue, 0, &g->own[param]));
    }
    return dsc_buckets_ready(g->buckets, c->count - 1 - param);
}

dsc_status dsc_consensus_wait_gradients(dsc_consensus *c, dsc_queue *queue) {
    dsc_gradients *g = &c->gradients;
    if (!g->buckets)
        return DSC_OK;
    for (int64_t i = c->count - 1; g->moving && i >= 0; i--)
        if (!is_announced(c, i))
            DSC_TRY(dsc_consensus_gradient_ready(c, queue, i));
    DSC_TRY(dsc_buckets_wait(g->buckets));
    for (int64_t i = 0; i < c->count && g->own; i++)
        if (c->params[i].grad.data)
            DSC_TRY(dsc_op_convert(queue, &g->own[i], &c->params[i].grad));
    return DSC_OK;
}
