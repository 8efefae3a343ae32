/* What differs between ranks, as a list of tensors. */
#include "train/checkpoint_ranks.h"

#include "base/error.h"
#include "base/memory.h"
#include "consensus/table.h"
#include "train/checkpoint_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PARAMETER "parameter."
#define CONSENSUS "consensus."

/* Places in `numbers`. */
enum { TRAIN, CONSENSUS_AT = 4, FACTORS = CONSENSUS_AT + DSC_CONSENSUS_NUMBERS, NUMBERS = FACTORS + 2 };

void dsc_rank_list_destroy(dsc_rank_list *list) {
    dsc_tensor_free(&list->numbers);
    dsc_memory_free(&list->items);
    dsc_memory_free(&list->names);
}

static size_t name_bytes(const char *prefix, const dsc_param *params, int64_t count) {
    size_t bytes = 0;
    for (int64_t i = 0; i < count; i++)
        bytes += strlen(prefix) + strlen(params[i].name) + 1;
    return bytes;
}

static void add(dsc_rank_list *list, const char *name, dsc_rank_kind kind, const dsc_tensor *value) {
    list->items[list->count++] = (dsc_rank_item){name, kind, *value};
}

/* `next`: where names are made up; NULL: they stay as they are. */
static void add_params(dsc_rank_list *list, const char *prefix, dsc_rank_kind kind, const dsc_param *params,
                       int64_t count, char **next) {
    for (int64_t i = 0; i < count; i++) {
        const char *name = params[i].name;
        if (next) {
            size_t bytes = strlen(prefix) + strlen(params[i].name) + 1;
            name = *next;
            snprintf(*next, bytes, "%s%s", prefix, params[i].name);
            *next += bytes;
        }
        add(list, name, kind, &params[i].value);
    }
}

static void add_numbers(const dsc_snapshot *s, dsc_rank_list *list) {
    dsc_tensor train = dsc_tensor_slice(&list->numbers, TRAIN, 4);
    dsc_tensor consensus = dsc_tensor_slice(&list->numbers, CONSENSUS_AT, DSC_CONSENSUS_NUMBERS);
    dsc_tensor factors = dsc_tensor_slice(&list->numbers, FACTORS, 2);
    add(list, "train", DSC_RANK_EXACT, &train);
    add(list, "consensus", DSC_RANK_EXACT, &consensus);
    if (s->factors)
        add(list, "factors", DSC_RANK_OPTIONAL, &factors);
}

static dsc_status make(const dsc_snapshot *s, dsc_rank_list *list) {
    const dsc_param *params = dsc_model_params(s->model), *optim = dsc_optim_state(s->optim), *own = NULL;
    int64_t buffer_count = dsc_model_buffer_count(s->model), param_count = 0, optim_count = 0, own_count = 0;
    const int64_t numbers = NUMBERS;
    if (s->gossip) {
        param_count = dsc_model_param_count(s->model);
        optim_count = dsc_optim_state_count(s->optim);
        own = dsc_consensus_state(s->gossip);
        own_count = dsc_consensus_state_count(s->gossip);
    }
    size_t bytes = 1 + name_bytes(PARAMETER, params, param_count) +
                   name_bytes(DSC_OPTIM_PREFIX, optim, optim_count) + name_bytes(CONSENSUS, own, own_count);
    DSC_TRY(dsc_memory_alloc(buffer_count + param_count + optim_count + own_count + 3, sizeof *list->items,
                             &list->items));
    DSC_TRY(dsc_memory_alloc((int64_t)bytes, 1, &list->names));
    char *next = list->names;
    add_params(list, "", DSC_RANK_TAKEN_OVER, dsc_model_buffers(s->model), buffer_count, NULL);
    if (!s->gossip)
        return DSC_OK;
    DSC_TRY(dsc_tensor_alloc(dsc_model_device(s->model), DSC_F64, 1, &numbers, &list->numbers));
    add_numbers(s, list);
    add_params(list, PARAMETER, DSC_RANK_EXACT, params, param_count, &next);
    add_params(list, DSC_OPTIM_PREFIX, DSC_RANK_TAKEN_OVER, optim, optim_count, &next);
    add_params(list, CONSENSUS, DSC_RANK_EXACT, own, own_count, &next);
    return DSC_OK;
}

dsc_status dsc_rank_list_create(const dsc_snapshot *s, dsc_rank_list *list) {
    *list = (dsc_rank_list){0};
    dsc_status status = make(s, list);
    if (status != DSC_OK)
        dsc_rank_list_destroy(list);
    return status;
}

size_t dsc_rank_list_largest(const dsc_rank_list *list) {
    size_t largest = 8;
    for (int64_t i = 0; i < list->count; i++) {
        size_t bytes = dsc_tensor_bytes(&list->items[i].value);
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

/* ---- numbers ---- */

dsc_status dsc_rank_list_collect(const dsc_snapshot *s, dsc_rank_list *list) {
    const dsc_train_state *state = s->state;
    double n[NUMBERS] = {state->loss_sum, state->loss_rows, state->loss_scale[0], state->loss_scale[1]};
    if (!s->gossip)
        return DSC_OK;
    dsc_consensus_get_numbers(s->gossip, n + CONSENSUS_AT);
    if (s->factors)
        dsc_factors_get(s->factors, n + FACTORS);
    DSC_TRY(dsc_tensor_upload(s->queue, n, sizeof n, &list->numbers));
    return dsc_queue_sync(s->queue);
}

dsc_status dsc_rank_list_apply(const dsc_snapshot *s, const dsc_rank_list *list) {
    dsc_train_state *state = s->state;
    double n[NUMBERS];
    if (!s->gossip)
        return DSC_OK;
    DSC_TRY(dsc_tensor_download(s->queue, &list->numbers, sizeof n, n));
    DSC_TRY(dsc_queue_sync(s->queue));
    if (!isfinite(n[0]) || !isfinite(n[1]) || n[1] < 0 || !isfinite(n[2]) || n[2] < 1 || !isfinite(n[3]) ||
        n[3] < 0)
        return DSC_FAIL(DSC_E_FORMAT, "a rank's losses are %g of %g samples, its loss scale %g for %g steps",
                        n[0], n[1], n[2], n[3]);
    state->loss_sum = n[0];
    state->loss_rows = n[1];
    state->loss_scale[0] = n[2];
    state->loss_scale[1] = n[3];
    DSC_TRY(dsc_consensus_set_numbers(s->gossip, n + CONSENSUS_AT));
    if (s->factors && n[FACTORS] != 0) /* 0: the file has none */
        DSC_TRY(dsc_factors_set(s->factors, n + FACTORS));
    return DSC_OK;
}
