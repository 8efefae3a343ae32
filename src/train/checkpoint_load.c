/* Loading a run. Rank 0 checks both files against the run before anything is changed, reads them, and gives
 * everybody its part.
 *
 *   file        run         parameters           the optimiser's tensors      the rest of a rank's list
 *   allreduce   allreduce   model file           optimizer.*                  rank r mod P
 *   gossip      the same    rank.R.parameter.*   rank.R.optimizer.*           rank.R.*
 *   gossip      allreduce   model file           rank.0.optimizer.*           statistics of rank r mod P
 *   gossip      another     model file           rank r mod P                 statistics of rank r mod P
 *   allreduce   gossip      model file           optimizer.*                  statistics of rank r mod P */
#include "train/checkpoint.h"

#include "base/error.h"
#include "base/memory.h"
#include "consensus/table.h"
#include "descent/log.h"
#include "train/checkpoint_directory.h"
#include "train/checkpoint_kfac.h"
#include "train/checkpoint_parts.h"
#include "train/checkpoint_ranks.h"
#include "train/share.h"
#include "train/statedict.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What everybody has to know of the files. */
typedef struct origin {
    int64_t ranks; /* that wrote them */
    int gossip;    /* by gossip */
    int exact;     /* and this run can go on where every rank stood */
} origin;

/* Both files while they are read, on rank 0; origin, list and carrier on every rank. */
typedef struct pair {
    dsc_st_reader *model, *state;
    dsc_kfac_source_file kfac; /* of K-FAC's state, if this run wants it */
    origin from;
    dsc_rank_list list;
    dsc_carrier carrier; /* as large as any tensor */
} pair;

/* *value = -1 when there is no such key. */
static dsc_status read_number(const dsc_st_reader *r, const char *key, int64_t *value) {
    const char *text = dsc_st_metadata(r, key);
    char *end;
    *value = -1;
    if (!text)
        return DSC_OK;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno || end == text || *end != '\0')
        return DSC_FAIL(DSC_E_FORMAT, "'%s': metadata '%s' is '%s', not a number", dsc_st_path(r), key, text);
    *value = number;
    return DSC_OK;
}

/* A negative number stands for one above 2^63, as older files have it. */
static dsc_status read_seed(const dsc_st_reader *r, dsc_model_facts *facts) {
    const char *text = dsc_st_metadata(r, "seed");
    char *end;
    if (!text)
        return DSC_OK;
    errno = 0;
    facts->seed = strtoull(text, &end, 10);
    facts->has_seed = 1;
    if (errno || end == text || *end != '\0')
        return DSC_FAIL(DSC_E_FORMAT, "'%s': metadata 'seed' is '%s', not a number", dsc_st_path(r), text);
    return DSC_OK;
}

static dsc_status read_text(const dsc_st_reader *r, const char *key, char *out, size_t size) {
    const char *text = dsc_st_metadata(r, key);
    if (text && strlen(text) >= size)
        return DSC_FAIL(DSC_E_FORMAT, "'%s': the name of its %s has %zu characters: %zu at most",
                        dsc_st_path(r), key, strlen(text), size - 1);
    snprintf(out, size, "%s", text ? text : "");
    return DSC_OK;
}

dsc_status dsc_checkpoint_facts(const dsc_st_reader *reader, dsc_model_facts *facts) {
    memset(facts, 0, sizeof *facts);
    DSC_TRY(read_text(reader, "model", facts->model, sizeof facts->model));
    DSC_TRY(read_text(reader, "data", facts->data, sizeof facts->data));
    DSC_TRY(read_seed(reader, facts));
    DSC_TRY(read_number(reader, "classes", &facts->classes));
    DSC_TRY(read_number(reader, "height", &facts->height));
    DSC_TRY(read_number(reader, "width", &facts->width));
    return read_number(reader, "channels", &facts->channels);
}

static dsc_status check_model(const dsc_snapshot *s, const dsc_st_reader *r) {
    dsc_model_facts facts;
    int64_t shape[3], classes = dsc_model_classes(s->model);
    DSC_TRY(dsc_checkpoint_facts(r, &facts));
    dsc_model_input_shape(s->model, shape);
    if (facts.model[0] && strcmp(facts.model, s->options->model) != 0)
        return DSC_FAIL(DSC_E_INVALID, "'%s' is a checkpoint of model %s, this run trains %s", dsc_st_path(r),
                        facts.model, s->options->model);
    if (facts.classes >= 0 && (facts.classes != classes || facts.height != shape[0] ||
                               facts.width != shape[1] || facts.channels != shape[2]))
        return DSC_FAIL(DSC_E_INVALID,
                        "'%s' is a checkpoint of %s for %lldx%lldx%lld images and %lld classes, this run has "
                        "%lldx%lldx%lld and %lld",
                        dsc_st_path(r), s->options->model, (long long)facts.height, (long long)facts.width,
                        (long long)facts.channels, (long long)facts.classes, (long long)shape[0],
                        (long long)shape[1], (long long)shape[2], (long long)classes);
    return dsc_statedict_check(s->model, s->options->model, r);
}

static dsc_status check_tensor(const dsc_st_reader *r, const char *prefix, const char *name, dsc_dtype dtype,
                               int64_t count) {
    char *full;
    DSC_TRY(dsc_checkpoint_name(prefix, name, &full));
    const dsc_st_tensor *t = dsc_st_find(r, full);
    dsc_status status = DSC_OK;
    int64_t found = t ? (int64_t)(t->bytes / dsc_dtype_size(t->dtype)) : 0;
    if (!t)
        status = DSC_FAIL(DSC_E_FORMAT, "'%s' lacks '%s'", dsc_st_path(r), full);
    else if (t->dtype != dtype || found != count)
        status = DSC_FAIL(DSC_E_FORMAT, "'%s': '%s' holds %lld numbers of type %s, this run has %lld of %s",
                          dsc_st_path(r), full, (long long)found, dsc_dtype_name(t->dtype), (long long)count,
                          dsc_dtype_name(dtype));
    dsc_memory_free(&full);
    return status;
}

static dsc_status check_params(const dsc_st_reader *r, const char *prefix, const dsc_param *params,
                               int64_t count) {
    for (int64_t i = 0; i < count; i++)
        DSC_TRY(check_tensor(r, prefix, params[i].name, params[i].value.dtype,
                             dsc_tensor_count(&params[i].value)));
    return DSC_OK;
}

typedef dsc_status (*read_function)(const dsc_st_reader *r, const dsc_st_tensor *t, void *out, size_t bytes);

static dsc_status read_by(read_function read, const dsc_st_reader *r, const char *prefix, const char *name,
                          void *out, size_t bytes) {
    char *full;
    DSC_TRY(dsc_checkpoint_name(prefix, name, &full));
    dsc_status status = read(r, dsc_st_find(r, full), out, bytes);
    dsc_memory_free(&full);
    return status;
}

static dsc_status read_named(const dsc_st_reader *r, const char *prefix, const char *name, void *out,
                             size_t bytes) {
    return read_by(dsc_st_read, r, prefix, name, out, bytes);
}

static int has_tensor(const dsc_st_reader *r, const char *prefix, const char *name) {
    char full[512];
    int length = snprintf(full, sizeof full, "%s%s", prefix, name);
    return length < (int)sizeof full && dsc_st_find(r, full) != NULL;
}

/* Whose tensors of the list rank r takes. */
static void rank_prefix(const pair *p, int64_t r, char prefix[32]) {
    snprintf(prefix, 32, DSC_RANK_PREFIX, (int)(r % p->from.ranks));
}

/* Of the optimiser, whose moments may overflow and the parameters stay finite. */
static int is_moment(const dsc_rank_item *item) {
    return strncmp(item->name, DSC_OPTIM_PREFIX, strlen(DSC_OPTIM_PREFIX)) == 0;
}

/* Where an item for rank r comes from; 0: from nowhere. */
static int find_source(const pair *p, const dsc_rank_item *item, int64_t r, char prefix[32]) {
    int shared = !p->from.gossip && is_moment(item);
    rank_prefix(p, r, prefix);
    if (shared)
        prefix[0] = '\0'; /* the item's name is that of the tensor which all have */
    return item->kind == DSC_RANK_TAKEN_OVER || p->from.exact;
}

static dsc_status check_list(const pair *p) {
    for (int64_t r = 0; r < p->from.ranks; r++) {
        for (int64_t i = 0; i < p->list.count; i++) {
            const dsc_rank_item *item = &p->list.items[i];
            char prefix[32];
            if (!find_source(p, item, r, prefix) ||
                (item->kind == DSC_RANK_OPTIONAL && !has_tensor(p->state, prefix, item->name)))
                continue;
            DSC_TRY(check_tensor(p->state, prefix, item->name, item->value.dtype,
                                 dsc_tensor_count(&item->value)));
        }
    }
    return DSC_OK;
}

/* Ranks that have settled have done the same number of rounds: messages of others would never meet. */
static dsc_status check_rounds(const dsc_snapshot *s, const pair *p) {
    double first = 0;
    if (!p->from.exact || s->options->consensus->kind == DSC_CONSENSUS_ADPSGD)
        return DSC_OK;
    for (int64_t r = 0; r < p->from.ranks; r++) {
        char prefix[32];
        double numbers[DSC_CONSENSUS_NUMBERS];
        rank_prefix(p, r, prefix);
        DSC_TRY(read_named(p->state, prefix, "consensus", numbers, sizeof numbers));
        first = r == 0 ? numbers[1] : first;
        if (numbers[1] != first)
            return DSC_FAIL(DSC_E_FORMAT,
                            "'%s' is damaged: rank %lld has done %g rounds of gossip, rank 0 %g",
                            dsc_st_path(p->state), (long long)r, numbers[1], first);
    }
    return DSC_OK;
}

/* The optimiser's tensors for a run in which they are the same on every rank. */
static const char *optim_prefix(const pair *p) {
    return p->from.gossip ? "rank.0." DSC_OPTIM_PREFIX : DSC_OPTIM_PREFIX;
}

static dsc_status check_tensors(const dsc_snapshot *s, pair *p) {
    for (int i = 0; i < DSC_SCALAR_COUNT; i++)
        DSC_TRY(
            check_tensor(p->state, "", dsc_checkpoint_scalars[i].name, dsc_checkpoint_scalars[i].dtype, 1));
    DSC_TRY(check_tensor(p->state, DSC_OPTIM_PREFIX, "steps", DSC_I64, 1));
    if (!s->gossip)
        DSC_TRY(check_params(p->state, optim_prefix(p), dsc_optim_state(s->optim),
                             dsc_optim_state_count(s->optim)));
    DSC_TRY(check_list(p));
    for (int64_t r = 0; p->from.gossip && r < p->from.ranks; r++) {
        char prefix[32];
        rank_prefix(p, r, prefix);
        DSC_TRY(check_tensor(p->state, prefix, "train", DSC_F64, 4));
    }
    DSC_TRY(check_rounds(s, p));
    return dsc_checkpoint_kfac_check(s, p->state, p->from.ranks, &p->kfac);
}

/* ---- who wrote it ---- */

static int same_gossip(const dsc_snapshot *s, const pair *p, dsc_consensus_kind kind) {
    const char *graph = dsc_st_metadata(p->state, "graph"),
               *group = dsc_st_metadata(p->state, "gossip_group");
    char own[32];
    snprintf(own, sizeof own, "%d", s->options->consensus->group);
    return kind == s->options->consensus->kind && p->from.ranks == dsc_comm_size(s->comm) && graph &&
           strcmp(graph, dsc_checkpoint_graph(s)) == 0 && group && strcmp(group, own) == 0;
}

/* Whether the file has slow momentum, or what else this run's consensus keeps. */
static int has_consensus(const pair *p) {
    static const char prefix[] = "consensus.";
    for (int64_t i = 0; i < p->list.count; i++) {
        const char *name = p->list.items[i].name;
        if (p->list.items[i].kind == DSC_RANK_EXACT && strncmp(name, prefix, strlen(prefix)) == 0 &&
            !has_tensor(p->state, "rank.0.", name))
            return 0;
    }
    return 1;
}

static dsc_status read_origin(const dsc_snapshot *s, pair *p) {
    const char *name = dsc_st_metadata(p->state, "consensus");
    dsc_consensus_kind kind = DSC_CONSENSUS_ALLREDUCE;
    DSC_TRY(read_number(p->state, "ranks", &p->from.ranks));
    if (p->from.ranks < 1 || p->from.ranks > INT32_MAX)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' says that %lld ranks wrote it", dsc_st_path(p->state),
                        (long long)p->from.ranks);
    if (name && dsc_consensus_parse(name, &kind) != DSC_OK)
        return DSC_FAIL(DSC_E_FORMAT,
                        "'%s' was written with consensus '%s', which this version does not know",
                        dsc_st_path(p->state), name);
    p->from.gossip = kind != DSC_CONSENSUS_ALLREDUCE;
    p->from.exact = s->gossip && same_gossip(s, p, kind);
    p->from.exact = p->from.exact && has_consensus(p);
    if (!p->from.exact && (s->gossip || p->from.gossip))
        dsc_log(DSC_LOG_WARNING,
                "'%s' was written by %lld ranks with %s, or another graph: all ranks start from the average "
                "that it holds, each with the optimiser's state of one of them",
                dsc_st_path(p->state), (long long)p->from.ranks, name ? name : "allreduce");
    return DSC_OK;
}

static dsc_status check_run(const dsc_snapshot *s, pair *p) {
    int64_t step, state_step;
    const char *optimizer = dsc_st_metadata(p->state, "optimizer");
    const char *own = dsc_optim_name(s->options->optim->kind);
    DSC_TRY(read_number(p->model, "step", &step));
    DSC_TRY(read_number(p->state, "step", &state_step));
    if (step != state_step)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is of step %lld, '%s' of step %lld: they do not belong together",
                        dsc_st_path(p->model), (long long)step, dsc_st_path(p->state), (long long)state_step);
    if (!optimizer || strcmp(optimizer, own) != 0)
        return DSC_FAIL(DSC_E_INVALID, "'%s' was written with optimiser %s, this run uses %s",
                        dsc_st_path(p->state), optimizer ? optimizer : "(none)", own);
    DSC_TRY(read_origin(s, p));
    return check_tensors(s, p);
}

static dsc_status open_pair(const dsc_snapshot *s, const char *path, pair *p) {
    char *state_path;
    DSC_TRY(dsc_checkpoint_state_path(path, &state_path));
    dsc_status status = dsc_st_open(path, &p->model);
    if (status == DSC_OK)
        status = check_model(s, p->model);
    if (status == DSC_OK)
        status = dsc_st_open(state_path, &p->state);
    if (status == DSC_E_NOT_FOUND && p->model)
        status = DSC_FAIL(DSC_E_NOT_FOUND,
                          "checkpoint '%s' has no '%s' beside it: a model alone can be evaluated, but "
                          "training cannot go on from it",
                          path, state_path);
    dsc_memory_free(&state_path);
    DSC_TRY(status);
    return check_run(s, p);
}

static dsc_status put(const dsc_snapshot *s, const void *host, dsc_tensor *t) {
    DSC_TRY(dsc_tensor_upload(s->queue, host, dsc_tensor_bytes(t), t));
    return dsc_queue_sync(s->queue);
}

/* Epochs and steps are used as real numbers, too. */
static const int64_t most = INT64_C(1) << 53;

/* Where the run stands. */
static dsc_status check_place(const pair *p, const dsc_train_state *state) {
    const char *path = dsc_st_path(p->state);
    int64_t step;
    DSC_TRY(read_number(p->state, "step", &step));
    if (step >= 0 && state->step != step)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is damaged: it is of step %lld, but 'train.step' is %lld", path,
                        (long long)step, (long long)state->step);
    if (state->step < 0 || state->step > most || state->epoch < 0 || state->epoch > most ||
        state->position < 0)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is damaged: step %lld, epoch %lld, position %lld", path,
                        (long long)state->step, (long long)state->epoch, (long long)state->position);
    if (state->evaluated_step < -1 || state->evaluated_step > most || state->best_step < -1 ||
        state->best_step > most)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is damaged: evaluated at step %lld, best at step %lld", path,
                        (long long)state->evaluated_step, (long long)state->best_step);
    if (!isfinite(state->loss_sum) || !isfinite(state->loss_rows) || state->loss_rows < 0 ||
        !isfinite(state->seconds) || state->seconds < 0)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is damaged: losses are %g of %g samples, after %g seconds", path,
                        state->loss_sum, state->loss_rows, state->seconds);
    return DSC_OK;
}

/* Warns of data that is not that of the run so far. */
static dsc_status compare_data(const dsc_snapshot *s, const pair *p, const dsc_train_state *state,
                               int64_t samples) {
    const dsc_train_options *o = s->options;
    const char *path = dsc_st_path(p->state);
    dsc_model_facts facts;
    int64_t batch;
    DSC_TRY(dsc_checkpoint_facts(p->state, &facts));
    DSC_TRY(read_number(p->state, "batch_size", &batch));
    if (facts.data[0] && strcmp(facts.data, o->data) != 0)
        dsc_log(DSC_LOG_WARNING, "'%s' was written with data %s, this run has %s", path, facts.data, o->data);
    else if (state->position == 0 && samples >= 0 && samples != s->samples)
        dsc_log(DSC_LOG_WARNING, "'%s' was written with %lld samples, this run has %lld", path,
                (long long)samples, (long long)s->samples);
    if (facts.has_seed && facts.seed != o->seed)
        dsc_log(DSC_LOG_WARNING, "'%s' was written with seed %" PRIu64 ", this run has %" PRIu64 "%s", path,
                facts.seed, o->seed,
                state->position > 0 ? ": the rest of this epoch takes samples in another order, some twice "
                                      "and some not at all"
                                    : "");
    if (batch >= 0 && batch != o->batch_size)
        dsc_log(DSC_LOG_WARNING, "'%s' was written with batch size %lld, this run has %lld", path,
                (long long)batch, (long long)o->batch_size);
    return DSC_OK;
}

static dsc_status check_state(const dsc_snapshot *s, const pair *p, const dsc_train_state *state) {
    int64_t samples;
    DSC_TRY(read_number(p->state, "samples", &samples));
    DSC_TRY(check_place(p, state));
    if (!isfinite(state->loss_scale[0]) || state->loss_scale[0] < 1 || !isfinite(state->loss_scale[1]) ||
        state->loss_scale[1] < 0)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is damaged: the loss scale is %g for %g steps: must be 1 or more",
                        dsc_st_path(p->state), state->loss_scale[0], state->loss_scale[1]);
    if (!isfinite(state->best_top1))
        return DSC_FAIL(DSC_E_FORMAT,
                        "'%s' is damaged: the best accuracy is %g: must be a number, negative for none",
                        dsc_st_path(p->state), state->best_top1);
    if (state->position > 0 && samples != s->samples)
        return DSC_FAIL(DSC_E_INVALID,
                        "'%s' stands in the middle of an epoch of %lld samples, the data set has %lld: use "
                        "the same data",
                        dsc_st_path(p->state), (long long)samples, (long long)s->samples);
    if (state->position > s->samples)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is damaged: position %lld of %lld samples", dsc_st_path(p->state),
                        (long long)state->position, (long long)s->samples);
    return compare_data(s, p, state, samples);
}

/* The losses of an epoch that gossip ranks have begun, of all of them. */
static dsc_status add_losses(const pair *p, dsc_train_state *state) {
    state->loss_sum = state->loss_rows = 0;
    for (int64_t r = 0; r < p->from.ranks; r++) {
        char prefix[32];
        double numbers[4];
        rank_prefix(p, r, prefix);
        DSC_TRY(read_named(p->state, prefix, "train", numbers, sizeof numbers));
        state->loss_sum += numbers[0];
        state->loss_rows += numbers[1];
    }
    return DSC_OK;
}

/* Rank 0: what is the same for all. */
static dsc_status read_all(const dsc_snapshot *s, const pair *p) {
    const dsc_param *optim = dsc_optim_state(s->optim);
    dsc_train_state state;
    int64_t steps;
    for (int i = 0; i < DSC_SCALAR_COUNT; i++)
        DSC_TRY(read_named(p->state, "", dsc_checkpoint_scalars[i].name,
                           (char *)&state + dsc_checkpoint_scalars[i].offset, 8));
    if (p->from.gossip && !p->from.exact)
        DSC_TRY(add_losses(p, &state));
    DSC_TRY(check_state(s, p, &state));
    DSC_TRY(read_named(p->state, DSC_OPTIM_PREFIX, "steps", &steps, sizeof steps));
    if (steps < 0 || steps > most)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is damaged: the optimiser has done %lld steps",
                        dsc_st_path(p->state), (long long)steps);
    for (int64_t i = 0; !s->gossip && i < dsc_optim_state_count(s->optim); i++) {
        dsc_tensor t = optim[i].value;
        DSC_TRY(read_named(p->state, optim_prefix(p), optim[i].name, p->carrier.host, dsc_tensor_bytes(&t)));
        DSC_TRY(put(s, p->carrier.host, &t));
    }
    DSC_TRY(dsc_statedict_read(s->model, s->queue, p->model));
    dsc_optim_set_steps(s->optim, steps);
    *s->state = state;
    return DSC_OK;
}

/* What is the same on every rank. */
static dsc_status share(const dsc_snapshot *s, pair *p) {
    const dsc_param *optim = dsc_optim_state(s->optim);
    int64_t steps = dsc_optim_steps(s->optim);
    DSC_TRY(dsc_share_bytes(s->comm, s->queue, &p->from, sizeof p->from));
    DSC_TRY(dsc_share_model(s->comm, s->queue, s->model));
    DSC_TRY(dsc_share_bytes(s->comm, s->queue, s->state, sizeof *s->state));
    DSC_TRY(dsc_share_bytes(s->comm, s->queue, &steps, sizeof steps));
    dsc_optim_set_steps(s->optim, steps);
    for (int64_t i = 0; !s->gossip && i < dsc_optim_state_count(s->optim); i++) {
        dsc_tensor t = optim[i].value;
        DSC_TRY(dsc_comm_broadcast(s->comm, DSC_TRAFFIC_OTHER, 0, &t));
    }
    return DSC_OK;
}

/* Rank 0: one item for a rank; what is missing and may be becomes 0. */
static dsc_status read_item(const pair *p, const dsc_rank_item *item, const char *prefix) {
    size_t bytes = dsc_tensor_bytes(&item->value);
    if (item->kind == DSC_RANK_OPTIONAL && !has_tensor(p->state, prefix, item->name)) {
        memset(p->carrier.host, 0, bytes);
        return DSC_OK;
    }
    int finite = item->value.dtype == DSC_F32 && !is_moment(item); /* others are judged where they are used */
    return read_by(finite ? dsc_st_read_finite : dsc_st_read, p->state, prefix, item->name, p->carrier.host,
                   bytes);
}

/* Gives every rank its list; something travels even after a failure, so that nobody waits. */
static dsc_status hand_out(const dsc_snapshot *s, pair *p) {
    int64_t count = p->list.count;
    int rank = dsc_comm_rank(s->comm);
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < dsc_comm_size(s->comm) * count; i++) {
        int r = (int)(i / count);
        const dsc_rank_item *item = &p->list.items[i % count];
        dsc_tensor t = item->value;
        char prefix[32];
        if (!find_source(p, item, r, prefix))
            continue;
        if (rank == 0 && status == DSC_OK)
            status = read_item(p, item, prefix);
        DSC_TRY(dsc_carrier_move(&p->carrier, 0, r, dsc_tensor_bytes(&t)));
        if (rank == r && status == DSC_OK)
            status = put(s, p->carrier.host, &t);
    }
    return status;
}

/* Numbers of this rank's own, with everything else in place. */
static dsc_status settle_down(const dsc_snapshot *s, const pair *p) {
    if (p->from.exact) {
        dsc_status status = dsc_rank_list_apply(s, &p->list);
        if (status != DSC_OK && p->state)
            dsc_error_prefix(status, "'%s' is damaged", dsc_st_path(p->state));
        return status;
    }
    if (s->gossip && dsc_comm_rank(s->comm) > 0) /* rank 0 has those of all */
        s->state->loss_sum = s->state->loss_rows = 0;
    return DSC_OK;
}

static dsc_status load_all(const dsc_snapshot *s, const char *path, pair *p) {
    int reader = dsc_comm_rank(s->comm) == 0;
    dsc_status status = reader ? open_pair(s, path, p) : DSC_OK;
    if (reader && status == DSC_OK)
        status = read_all(s, p);
    DSC_TRY(dsc_comm_agree(s->comm, status));
    DSC_TRY(share(s, p));
    DSC_TRY(dsc_comm_agree(s->comm, hand_out(s, p)));
    DSC_TRY(dsc_comm_agree(s->comm, settle_down(s, p)));
    if (s->as_it_was)
        *s->as_it_was = p->from.exact;
    return dsc_checkpoint_kfac_load(s, p->state, &p->kfac);
}

static dsc_status make_room(const dsc_snapshot *s, pair *p) {
    DSC_TRY(dsc_rank_list_create(s, &p->list));
    size_t shared = dsc_checkpoint_largest(s), own = dsc_rank_list_largest(&p->list);
    return dsc_carrier_open(s->comm, s->queue, shared > own ? shared : own, &p->carrier);
}

dsc_status dsc_checkpoint_load(const dsc_snapshot *s, const char *path) {
    pair p = {0};
    dsc_status status = dsc_comm_agree(s->comm, make_room(s, &p));
    if (status == DSC_OK)
        status = load_all(s, path, &p);
    dsc_st_close(&p.model);
    dsc_st_close(&p.state);
    dsc_carrier_close(&p.carrier);
    dsc_rank_list_destroy(&p.list);
    return status;
}
