/* The contents of a state file. */
#include "train/state_list.h"

#include "base/error.h"
#include "base/memory.h"

#include <float.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

void dsc_train_state_init(dsc_train_state *state) {
    *state = (dsc_train_state){.epoch_loss = -1,
                               .val_loss = -1,
                               .top1 = -1,
                               .top5 = -1,
                               .evaluated_step = -1,
                               .best_top1 = -1,
                               .best_loss = -1,
                               .best_step = -1,
                               .ema_loss = -1,
                               .ema_top1 = -1,
                               .ema_top5 = -1,
                               .damping_factor = 1,
                               .loss_scale = {1, 0}};
}

/* ---- the items ---- */

/* Counters are used as real numbers, too. */
static const dsc_state_bound counter = {0, 0x1p53, "from 0 to 2^53"},
                             counter_or_none = {-1, 0x1p53, "from 0 to 2^53, or -1 for none"},
                             real = {-DBL_MAX, DBL_MAX, "finite"},
                             positive = {0, DBL_MAX, "finite and not negative"};

/* Sum and number of the losses, loss scale and its age. */
static const dsc_state_bound of_train[] = {{-DBL_MAX, DBL_MAX, "finite"},
                                           {0, DBL_MAX, "finite and not negative"},
                                           {1, DBL_MAX, "finite, and 1 or more"},
                                           {0, DBL_MAX, "finite and not negative"}};

/* Members of dsc_train_state, 8 bytes each. */
static const struct {
    const char *name;
    dsc_dtype dtype;
    size_t offset;
    const dsc_state_bound *bound;
    int optional; /* older files lack it; 2: only runs with an average of the weights have it */
} run_numbers[] = {
    {"train.step", DSC_I64, offsetof(dsc_train_state, step), &counter, 0},
    {"train.epoch", DSC_I64, offsetof(dsc_train_state, epoch), &counter, 0},
    {"train.position", DSC_I64, offsetof(dsc_train_state, position), &counter, 0},
    {"train.loss_sum", DSC_F64, offsetof(dsc_train_state, loss_sum), &of_train[0], 0},
    {"train.loss_rows", DSC_F64, offsetof(dsc_train_state, loss_rows), &of_train[1], 0},
    {"train.epoch_loss", DSC_F64, offsetof(dsc_train_state, epoch_loss), NULL, 0},
    {"train.val_loss", DSC_F64, offsetof(dsc_train_state, val_loss), NULL, 0},
    {"train.top1", DSC_F64, offsetof(dsc_train_state, top1), NULL, 0},
    {"train.top5", DSC_F64, offsetof(dsc_train_state, top5), NULL, 0},
    {"train.evaluated_step", DSC_I64, offsetof(dsc_train_state, evaluated_step), &counter_or_none, 0},
    {"train.best_top1", DSC_F64, offsetof(dsc_train_state, best_top1), &real, 0},
    {"train.best_loss", DSC_F64, offsetof(dsc_train_state, best_loss), &real, 1},
    {"train.best_step", DSC_I64, offsetof(dsc_train_state, best_step), &counter_or_none, 0},
    {"train.seconds", DSC_F64, offsetof(dsc_train_state, seconds), &positive, 0},
    {"train.loss_scale", DSC_F64, offsetof(dsc_train_state, loss_scale), &of_train[2], 0},
    {"train.loss_scale_steps", DSC_F64, offsetof(dsc_train_state, loss_scale) + sizeof(double), &of_train[3],
     0},
    {"train.stale", DSC_I64, offsetof(dsc_train_state, stale), &counter, 1},
    {"train.ema_weight", DSC_F64, offsetof(dsc_train_state, ema_weight), &positive, 2},
    {"train.ema_loss", DSC_F64, offsetof(dsc_train_state, ema_loss), NULL, 2},
    {"train.ema_top1", DSC_F64, offsetof(dsc_train_state, ema_top1), NULL, 2},
    {"train.ema_top5", DSC_F64, offsetof(dsc_train_state, ema_top5), NULL, 2},
    {"train.target_s", DSC_F64, offsetof(dsc_train_state, target_s), &positive, 1},
};

/* Adds a copy of `like` called PREFIX NAME. */
static dsc_status add(dsc_state_list *list, const char *prefix, const char *name, dsc_state_item like) {
    size_t size = strlen(prefix) + strlen(name) + 1;
    DSC_TRY(dsc_memory_grow(&list->items, &list->capacity, list->count + 1, sizeof like));
    DSC_TRY(dsc_memory_alloc((int64_t)size, 1, &like.name));
    snprintf(like.name, size, "%s%s", prefix, name);
    list->items[list->count++] = like;
    return DSC_OK;
}

static dsc_status add_tensors(dsc_state_list *list, const char *prefix, const dsc_param *params,
                              int64_t count, dsc_state_item like) {
    for (int64_t i = 0; i < count; i++) {
        like.value = params[i].value;
        dsc_state_item item = like;
        item.finite = like.finite && like.value.dtype == DSC_F32;
        DSC_TRY(add(list, prefix, params[i].name, item));
    }
    return DSC_OK;
}

static dsc_tensor numbers_at(void *data, dsc_dtype dtype, int64_t count) {
    return (dsc_tensor){.data = data, .dtype = dtype, .ndim = count > 1, .dim = {count}};
}

dsc_state_item dsc_state_item_losses(double numbers[4]) {
    static char name[] = "train";
    return (dsc_state_item){.name = name,
                            .part = DSC_STATE_GOSSIP,
                            .per_rank = 1,
                            .value = numbers_at(numbers, DSC_F64, 4),
                            .bounds = of_train};
}

/* The state that gossip needs to continue with the same bits; it includes the optimiser's tensors. */
static dsc_status list_gossip(const dsc_snapshot *s, dsc_state_list *list, dsc_state_item optim) {
    const dsc_state_item number = {.part = DSC_STATE_GOSSIP, .per_rank = 1},
                         tensor = {.part = DSC_STATE_GOSSIP, .per_rank = 1, .finite = 1};
    dsc_state_item train = dsc_state_item_losses(list->numbers.train), consensus = number, factors = number;
    consensus.value = numbers_at(list->numbers.consensus, DSC_F64, DSC_CONSENSUS_NUMBERS);
    if (s->options->consensus->kind != DSC_CONSENSUS_ADPSGD) {
        consensus.same = "rounds of gossip"; /* else ranks would wait for messages that nobody sends */
        consensus.same_index = 1;
    }
    factors.value = numbers_at(list->numbers.factors, DSC_F64, 2);
    factors.optional = 1;
    DSC_TRY(add(list, "", train.name, train));
    DSC_TRY(add(list, "", "consensus", consensus));
    if (s->factors)
        DSC_TRY(add(list, "", "factors", factors));
    DSC_TRY(
        add_tensors(list, "parameter.", dsc_model_params(s->model), dsc_model_param_count(s->model), tensor));
    DSC_TRY(
        add_tensors(list, "optimizer.", dsc_optim_state(s->optim), dsc_optim_state_count(s->optim), optim));
    return add_tensors(list, "consensus.", dsc_consensus_state(s->gossip),
                       dsc_consensus_state_count(s->gossip), tensor);
}

static dsc_status list_kfac(const dsc_snapshot *s, dsc_state_list *list) {
    for (int64_t i = 0; i < dsc_kfac_state_count(s->kfac); i++) {
        const dsc_kfac_entry *e = &dsc_kfac_state_entries(s->kfac)[i];
        dsc_state_item item = {.part = DSC_STATE_KFAC, .per_rank = s->kfac_alone, .kfac_index = i};
        item.value = (dsc_tensor){.dtype = e->dtype, .ndim = e->ndim, .dim = {e->dim[0], e->dim[1]}};
        item.late = e->optional == 1;
        item.optional = e->optional == 2;
        item.same = strcmp(e->name, "blocks") == 0 ? "blocks of K-FAC's factors" : NULL;
        DSC_TRY(add(list, "kfac.", e->name, item));
    }
    return DSC_OK;
}

/* The sums of the weights are stored like the optimiser's tensors, those of the statistics like statistics. */
static dsc_status list_ema(const dsc_snapshot *s, dsc_state_list *list, dsc_state_item value,
                           dsc_state_item buffer) {
    value.finite = value.optional = buffer.optional = 1;
    DSC_TRY(add_tensors(list, "ema.", s->ema->params, s->ema->param_count, value));
    return add_tensors(list, "ema.", s->ema->buffers, s->ema->buffer_count, buffer);
}

static dsc_status list_all(const dsc_snapshot *s, dsc_state_list *list) {
    const dsc_state_item run = {.part = DSC_STATE_RUN},
                         buffer = {.part = DSC_STATE_BUFFERS, .per_rank = 1, .finite = 1},
                         optim = {.part = DSC_STATE_OPTIM, .per_rank = s->gossip != NULL};
    for (size_t i = 0; i < sizeof run_numbers / sizeof *run_numbers; i++) {
        dsc_state_item item = run;
        if (run_numbers[i].optional == 2 && !s->ema)
            continue;
        item.value =
            numbers_at((char *)&list->numbers.state + run_numbers[i].offset, run_numbers[i].dtype, 1);
        item.bounds = run_numbers[i].bound;
        item.optional = run_numbers[i].optional > 0;
        DSC_TRY(add(list, "", run_numbers[i].name, item));
    }
    if (s->options->kfac_damping_adapt > 0) {
        dsc_state_item factor = run;
        factor.value = numbers_at(&list->numbers.state.damping_factor, DSC_F64, 1);
        factor.bounds = &positive;
        factor.optional = 1;
        DSC_TRY(add(list, "train.", "damping_factor", factor));
    }
    dsc_state_item bad = run;
    bad.value = numbers_at(&list->numbers.state.bad_images, DSC_I64, 1);
    bad.bounds = &counter;
    bad.optional = 1;
    DSC_TRY(add(list, "train.", "bad_images", bad));
    dsc_state_item steps = run;
    steps.value = numbers_at(&list->numbers.optim_steps, DSC_I64, 1);
    steps.bounds = &counter;
    DSC_TRY(add(list, "optimizer.", "steps", steps));
    if (!s->gossip)
        DSC_TRY(add_tensors(list, "optimizer.", dsc_optim_state(s->optim), dsc_optim_state_count(s->optim),
                            optim));
    DSC_TRY(add_tensors(list, "", dsc_model_buffers(s->model), dsc_model_buffer_count(s->model), buffer));
    if (s->ema)
        DSC_TRY(list_ema(s, list, optim, buffer));
    if (s->gossip)
        DSC_TRY(list_gossip(s, list, optim));
    return s->kfac ? list_kfac(s, list) : DSC_OK;
}

/* ---- the list ---- */

/* Items of which every rank has its own are stored rank by rank, K-FAC's after all others. */
static dsc_status place_all(dsc_state_list *list, int ranks) {
    DSC_TRY(dsc_memory_alloc(list->count * ranks, sizeof *list->places, &list->places));
    for (int64_t first = 0, end; first < list->count; first = end) {
        const dsc_state_item *items = list->items;
        int kfac = items[first].part == DSC_STATE_KFAC, per_rank = items[first].per_rank;
        for (end = first + 1; end < list->count; end++)
            if ((items[end].part == DSC_STATE_KFAC) != kfac || items[end].per_rank != per_rank)
                break;
        for (int r = 0; r < (per_rank ? ranks : 1); r++)
            for (int64_t i = first; i < end; i++)
                list->places[list->place_count++] = (dsc_state_place){&items[i], r};
    }
    return DSC_OK;
}

dsc_status dsc_state_list_create(const dsc_snapshot *s, dsc_state_list *list) {
    const dsc_train_state *state = s->state;
    *list = (dsc_state_list){.numbers = {.state = *state, .optim_steps = dsc_optim_steps(s->optim)}};
    if (s->gossip) {
        const double own[4] = {state->loss_sum, state->loss_rows, state->loss_scale[0], state->loss_scale[1]};
        memcpy(list->numbers.train, own, sizeof own);
        dsc_consensus_get_numbers(s->gossip, list->numbers.consensus);
    }
    if (s->factors)
        dsc_factors_get(s->factors, list->numbers.factors);
    DSC_TRY(list_all(s, list));
    return place_all(list, dsc_comm_size(s->comm));
}

void dsc_state_list_destroy(dsc_state_list *list) {
    for (int64_t i = 0; i < list->count; i++)
        dsc_memory_free(&list->items[i].name);
    dsc_memory_free(&list->items);
    dsc_memory_free(&list->places);
    list->count = list->capacity = list->place_count = 0;
}

/* Items of all ranks pass through rank 0's host memory; only those that differ between ranks are sent. */
dsc_status dsc_state_list_carry(const dsc_snapshot *s, const dsc_state_list *list, dsc_carrier *out) {
    size_t any = sizeof list->numbers, own = any; /* numbers of other kinds of runs are read, too */
    for (int64_t i = 0; i < list->count; i++) {
        size_t bytes = dsc_tensor_bytes(&list->items[i].value);
        any = bytes > any ? bytes : any;
        if (list->items[i].per_rank && bytes > own)
            own = bytes;
    }
    return dsc_carrier_open(s->comm, s->queue, dsc_comm_rank(s->comm) == 0 ? any : own, own, out);
}

dsc_status dsc_state_list_apply(const dsc_snapshot *s, const dsc_state_list *list, int gossip) {
    dsc_train_state *state = s->state;
    *state = list->numbers.state;
    if (state->damping_factor == 0) /* the file has none */
        state->damping_factor = 1;
    dsc_optim_set_steps(s->optim, list->numbers.optim_steps);
    if (!gossip)
        return DSC_OK;
    state->loss_sum = list->numbers.train[0];
    state->loss_rows = list->numbers.train[1];
    state->loss_scale[0] = list->numbers.train[2];
    state->loss_scale[1] = list->numbers.train[3];
    DSC_TRY(dsc_consensus_set_numbers(s->gossip, list->numbers.consensus));
    if (s->factors && list->numbers.factors[0] != 0) /* 0: the file has none */
        DSC_TRY(dsc_factors_set(s->factors, list->numbers.factors));
    return DSC_OK;
}

/* ---- an item ---- */

int dsc_state_item_is_collective(const dsc_state_item *item) {
    return item->part == DSC_STATE_KFAC && !item->per_rank;
}

dsc_status dsc_state_item_get(const dsc_snapshot *s, const dsc_state_item *item, void *host) {
    size_t bytes = dsc_tensor_bytes(&item->value);
    if (item->part == DSC_STATE_KFAC)
        return dsc_kfac_state_get(s->kfac, s->queue, item->kfac_index, host);
    if (!item->value.device) {
        memcpy(host, item->value.data, bytes);
        return DSC_OK;
    }
    DSC_TRY(dsc_tensor_download(s->queue, &item->value, bytes, host));
    return dsc_queue_sync(s->queue);
}

dsc_status dsc_state_item_set(const dsc_snapshot *s, const dsc_state_item *item, const void *host) {
    dsc_tensor value = item->value;
    size_t bytes = dsc_tensor_bytes(&value);
    if (item->part == DSC_STATE_KFAC)
        return dsc_kfac_state_set(s->kfac, s->queue, item->kfac_index, host);
    if (!value.device) {
        memcpy(value.data, host, bytes);
        return DSC_OK;
    }
    DSC_TRY(dsc_tensor_upload(s->queue, host, bytes, &value));
    return dsc_queue_sync(s->queue);
}

dsc_status dsc_state_item_name(const dsc_state_item *item, int per_rank, int64_t rank, char **out) {
    size_t size = strlen(item->name) + 32;
    DSC_TRY(dsc_memory_alloc((int64_t)size, 1, out));
    if (per_rank)
        snprintf(*out, size, "rank.%lld.%s", (long long)rank, item->name);
    else
        snprintf(*out, size, "%s", item->name);
    return DSC_OK;
}
