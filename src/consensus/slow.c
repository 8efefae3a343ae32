/* Exact averages over all ranks every few steps, and slow momentum (SlowMo) on top of them. With the average
 * x, the values y after the previous average, and the learning rate r:
 *
 *   u <- momentum u + (y - x) / r
 *   x <- y - slow_rate r u,   y <- x
 *
 * With momentum 0 and slow_rate 1 this is the plain average, and neither u nor y is kept. */
#include "consensus/table.h"

#include "base/error.h"
#include "base/memory.h"
#include "device/ops.h"

#include <stdio.h>
#include <string.h>

static const char *const prefixes[2] = {"slow.", "anchor."};

static dsc_status check_options(const dsc_consensus_options *o) {
    if (o->slow_momentum > 0 && o->average_every == 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "slow momentum %g acts at exact averages, and there are none: set average_every",
                        o->slow_momentum);
    if (o->slow_rate != 1 && o->average_every == 0)
        return DSC_FAIL(
            DSC_E_INVALID,
            "slow learning rate %g acts at exact averages, and there are none: set average_every, "
            "or leave it at 1",
            o->slow_rate);
    return DSC_OK;
}

/* Makes the names in checkpoints: for every parameter "slow.NAME" for u and "anchor.NAME" for y. */
static dsc_status make_names(dsc_consensus *c) {
    size_t bytes = 1;
    for (int64_t i = 0; i < c->count; i++)
        for (int p = 0; p < 2; p++)
            bytes += strlen(prefixes[p]) + strlen(c->params[i].name) + 1;
    DSC_TRY(dsc_memory_alloc((int64_t)bytes, 1, &c->names));
    DSC_TRY(dsc_memory_alloc(2 * c->count, sizeof *c->slow_state, &c->slow_state));
    char *next = c->names, *end = c->names + bytes;
    for (int p = 0; p < 2; p++)
        for (int64_t i = 0; i < c->count; i++) {
            c->slow_state[p * c->count + i].name = next;
            next += snprintf(next, (size_t)(end - next), "%s%s", prefixes[p], c->params[i].name) + 1;
        }
    return DSC_OK;
}

dsc_status dsc_slow_open(dsc_consensus *c, const dsc_consensus_options *options) {
    DSC_TRY(check_options(options));
    c->average_every = options->average_every;
    c->slow_momentum = options->slow_momentum;
    c->slow_rate = options->slow_rate;
    if (c->average_every == 0 || (c->slow_momentum == 0 && c->slow_rate == 1))
        return DSC_OK;
    int64_t both = 2 * c->total, at = 0;
    DSC_TRY(dsc_tensor_alloc(dsc_queue_device(c->queue), DSC_F32, 1, &both, &c->slow_memory));
    DSC_TRY(dsc_memory_alloc(2 * c->run_count, sizeof *c->slow, &c->slow));
    for (int p = 0; p < 2; p++) {
        dsc_tensor half = dsc_tensor_slice(&c->slow_memory, p * c->total, c->total);
        dsc_consensus_slice(c, &half, c->slow + p * c->run_count);
    }
    DSC_TRY(make_names(c));
    for (int64_t i = 0; i < 2 * c->count; i++) {
        dsc_tensor *value = &c->slow_state[i].value;
        *value = c->params[i % c->count].value;
        value->data = (float *)c->slow_memory.data + at;
        at += dsc_tensor_count(value);
    }
    return DSC_OK;
}

void dsc_slow_close(dsc_consensus *c) {
    if (c->slow_memory.data)
        dsc_tensor_free(&c->slow_memory);
    dsc_memory_free(&c->slow);
    dsc_memory_free(&c->slow_state);
    dsc_memory_free(&c->names);
}

dsc_status dsc_slow_start(dsc_consensus *c, dsc_queue *queue) {
    if (!c->slow)
        return DSC_OK;
    return dsc_consensus_scale(c, queue, 1, c->runs, c->slow + c->run_count);
}

/* Makes the update above; the parameters hold the average x. */
static dsc_status apply_momentum(dsc_consensus *c, dsc_queue *queue) {
    if (c->rate < 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "slow momentum needs the learning rate: call dsc_consensus_set_rate before a step");
    for (int64_t i = 0; i < c->run_count && c->rate > 0; i++) {
        dsc_tensor *x = &c->runs[i], *u = &c->slow[i], *y = &c->slow[c->run_count + i];
        DSC_TRY(dsc_op_axpby(queue, 1, y, -1, x));
        DSC_TRY(dsc_op_axpby(queue, 1 / c->rate, x, c->slow_momentum, u));
        DSC_TRY(dsc_op_convert(queue, y, x));
        DSC_TRY(dsc_op_axpby(queue, -c->slow_rate * c->rate, u, 1, x));
    }
    return dsc_slow_start(c, queue);
}

dsc_status dsc_slow_average(dsc_consensus *c, dsc_queue *queue) {
    if (c->table->settle)
        DSC_TRY(c->table->settle(c, queue));
    DSC_TRY(dsc_consensus_mean_in_place(c, queue, DSC_TRAFFIC_PARAMETERS));
    if (c->slow)
        DSC_TRY(apply_momentum(c, queue));
    if (c->table->adopt)
        DSC_TRY(c->table->adopt(c, queue));
    return DSC_OK;
}
