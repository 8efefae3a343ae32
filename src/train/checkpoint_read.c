/* Loading a checkpoint. Rank 0 checks both files against the run before anything changes, reads them, and
 * sends every rank its items. Where the state comes from, for rank r, when P ranks wrote the file:
 *
 *   file        run         parameters           the optimiser's tensors      running statistics, own K-FAC
 *   allreduce   allreduce   model file           optimizer.*                  of rank r mod P
 *   gossip      the same    rank.R.parameter.*   rank.R.optimizer.*           of rank R
 *   gossip      allreduce   model file           rank.0.optimizer.*           of rank r mod P
 *   gossip      another     model file           of rank r mod P              of rank r mod P
 *   allreduce   gossip      model file           optimizer.*                  of rank r mod P */
#include "train/checkpoint.h"

#include "base/error.h"
#include "base/memory.h"
#include "descent/log.h"
#include "train/checkpoint_directory.h"
#include "train/model_file.h"
#include "train/share.h"
#include "train/state_list.h"
#include "train/statedict.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Which parts of the state a file holds, and in which form; known to all ranks. */
typedef struct origin {
    int64_t ranks;                 /* that wrote it */
    int gossip;                    /* it holds the state of a gossip run */
    int taken[DSC_STATE_PARTS];    /* this run takes the part over */
    int per_rank[DSC_STATE_PARTS]; /* the file has it once a rank */
} origin;

/* Both files while they are read. */
typedef struct source {
    dsc_st_reader *model, *state; /* rank 0; NULL elsewhere */
    origin from;
    dsc_state_list list;
    dsc_carrier carrier;
} source;

/* ---- tensors of the state file ---- */

/* Rank 0: finds the tensor of the file that holds an item for rank r of this run; *out is NULL when there is none.
 * `name`, in new memory, is the tensor's name in the file. */
static dsc_status find(const source *f, const dsc_state_item *item, int64_t r, char **name,
                       const dsc_st_tensor **out) {
    DSC_TRY(dsc_state_item_name(item, f->from.per_rank[item->part], r % f->from.ranks, name));
    *out = dsc_st_find(f->state, *name);
    return DSC_OK;
}

static int fits(const dsc_st_tensor *t, const dsc_state_item *item) {
    return t && t->dtype == item->value.dtype && t->bytes == dsc_tensor_bytes(&item->value);
}

static dsc_status refuse(const source *f, const dsc_state_item *item, const char *name,
                         const dsc_st_tensor *t) {
    const char *path = dsc_st_path(f->state);
    int kfac = item->part == DSC_STATE_KFAC;
    if (!t)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' lacks '%s': it %s", path, name,
                        kfac ? "was written by a run that left other layers out of K-FAC, or is damaged"
                             : "is damaged, or of another program");
    return DSC_FAIL(DSC_E_FORMAT, "'%s': '%s' holds %lld numbers of type %s, this run has %lld of %s%s", path,
                    name, (long long)(t->bytes / dsc_dtype_size(t->dtype)), dsc_dtype_name(t->dtype),
                    (long long)dsc_tensor_count(&item->value), dsc_dtype_name(item->value.dtype),
                    kfac ? ": K-FAC's factors must be stored in the same type" : "");
}

/* Number i of an item of 8-byte numbers. */
static double number_at(const dsc_state_item *item, const void *host, int64_t i) {
    return item->value.dtype == DSC_I64 ? (double)((const int64_t *)host)[i] : ((const double *)host)[i];
}

/* DSC_E_FORMAT for numbers that no run has. */
static dsc_status check_bounds(const source *f, const dsc_state_item *item, const char *name) {
    char value[32], which[32] = "";
    for (int64_t i = 0; i < dsc_tensor_count(&item->value); i++) {
        const dsc_state_bound *b = &item->bounds[i];
        int64_t whole = ((const int64_t *)f->carrier.host)[i];
        double real = ((const double *)f->carrier.host)[i];
        if (item->value.dtype == DSC_I64 ? whole >= (int64_t)b->low && whole <= (int64_t)b->high
                                         : real >= b->low && real <= b->high) /* false for NaN */
            continue;
        if (item->value.dtype == DSC_I64)
            snprintf(value, sizeof value, "%" PRId64, whole);
        else
            snprintf(value, sizeof value, "%g", real);
        if (item->value.ndim > 0)
            snprintf(which, sizeof which, "number %" PRId64 " of ", i);
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is damaged: %s'%s' is %s: it must be %s", dsc_st_path(f->state),
                        which, name, value, b->text);
    }
    return DSC_OK;
}

/* Reads an item into the carrier's memory, and checks its numbers. */
static dsc_status read_tensor(const source *f, const dsc_state_item *item, const dsc_st_tensor *t) {
    size_t bytes = dsc_tensor_bytes(&item->value);
    if (item->finite)
        return dsc_st_read_finite(f->state, t, f->carrier.host, bytes);
    DSC_TRY(dsc_st_read(f->state, t, f->carrier.host, bytes));
    return item->bounds ? check_bounds(f, item, t->name) : DSC_OK;
}

static dsc_status read_item(const source *f, const dsc_state_item *item, int64_t r) {
    const dsc_st_tensor *t = NULL;
    char *name = NULL;
    dsc_status status = find(f, item, r, &name, &t);
    if (status == DSC_OK && t)
        status = read_tensor(f, item, t);
    else if (status == DSC_OK && item->optional)
        memset(f->carrier.host, 0, dsc_tensor_bytes(&item->value));
    else if (status == DSC_OK)
        status = refuse(f, item, name, t);
    dsc_memory_free(&name);
    return status;
}

/* ---- checking, on rank 0 ---- */

/* Checks that the file has an item for rank r as this run needs it. Numbers are read and checked, too; those that
 * all ranks share stay in the list. `first` is rank 0's number, which must be equal on all ranks. */
static dsc_status check_item(const source *f, const dsc_state_item *item, int64_t r, double *first) {
    const dsc_st_tensor *t = NULL;
    char *name = NULL;
    dsc_status status = find(f, item, r, &name, &t);
    if (status == DSC_OK && !fits(t, item) && !(item->optional && !t))
        status = refuse(f, item, name, t);
    dsc_memory_free(&name);
    DSC_TRY(status);
    if (!t || (!item->bounds && !item->same && item->part != DSC_STATE_RUN))
        return DSC_OK;
    DSC_TRY(read_tensor(f, item, t));
    if (item->part == DSC_STATE_RUN)
        memcpy(item->value.data, f->carrier.host, t->bytes);
    if (!item->same)
        return DSC_OK;
    double number = number_at(item, f->carrier.host, item->same_index);
    *first = r == 0 ? number : *first;
    if (number != *first)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is damaged: rank %lld has %g %s, rank 0 has %g",
                        dsc_st_path(f->state), (long long)r, number, item->same, *first);
    return DSC_OK;
}

static dsc_status check_items(const source *f) {
    for (int64_t i = 0; i < f->list.count; i++) {
        const dsc_state_item *item = &f->list.items[i];
        int64_t copies = item->per_rank && f->from.per_rank[item->part] ? f->from.ranks : 1;
        double first = 0;
        for (int64_t r = 0; r < copies && f->from.taken[item->part] && !item->late; r++)
            DSC_TRY(check_item(f, item, r, &first));
    }
    return DSC_OK;
}

static int has_prefix(const dsc_st_reader *reader, const char *prefix) {
    for (int64_t i = 0; i < dsc_st_count(reader); i++)
        if (strncmp(dsc_st_tensors(reader)[i].name, prefix, strlen(prefix)) == 0)
            return 1;
    return 0;
}

/* Whether each rank of this run can continue with the state of the same rank in the file. */
static int is_same_gossip(const dsc_snapshot *s, const source *f, dsc_consensus_kind kind) {
    const char *graph = dsc_st_metadata(f->state, "graph"),
               *group = dsc_st_metadata(f->state, "gossip_group");
    char own[32], name[512];
    snprintf(own, sizeof own, "%d", s->options->consensus->group);
    if (!s->gossip || kind != s->options->consensus->kind || f->from.ranks != dsc_comm_size(s->comm) ||
        !graph || strcmp(graph, dsc_checkpoint_graph(s)) != 0 || !group || strcmp(group, own) != 0)
        return 0;
    for (int64_t i = 0; i < f->list.count; i++) { /* slow momentum, which the file's run may not have had */
        const dsc_state_item *item = &f->list.items[i];
        snprintf(name, sizeof name, "rank.0.%s", item->name);
        if (item->part == DSC_STATE_GOSSIP && strncmp(item->name, "consensus.", 10) == 0 &&
            !dsc_st_find(f->state, name))
            return 0;
    }
    return 1;
}

static dsc_status read_origin(const dsc_snapshot *s, source *f) {
    const char *path = dsc_st_path(f->state), *name = dsc_st_metadata(f->state, "consensus");
    dsc_consensus_kind kind = DSC_CONSENSUS_ALLREDUCE;
    origin *from = &f->from;
    DSC_TRY(dsc_st_metadata_number(f->state, "ranks", &from->ranks));
    if (from->ranks < 1 || from->ranks > INT32_MAX)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' says that %lld ranks wrote it", path, (long long)from->ranks);
    if (name && dsc_consensus_parse(name, &kind) != DSC_OK)
        return DSC_FAIL(DSC_E_FORMAT,
                        "'%s' was written with consensus '%s', which this version does not know", path, name);
    from->gossip = kind != DSC_CONSENSUS_ALLREDUCE;
    int exact = is_same_gossip(s, f, kind), own_kfac = has_prefix(f->state, "rank.0.kfac.");
    int kfac = s->kfac && (own_kfac || has_prefix(f->state, "kfac."));
    from->taken[DSC_STATE_RUN] = from->taken[DSC_STATE_OPTIM] = from->taken[DSC_STATE_BUFFERS] = 1;
    from->taken[DSC_STATE_GOSSIP] = exact;
    from->taken[DSC_STATE_KFAC] = kfac;
    from->per_rank[DSC_STATE_OPTIM] = from->gossip;
    from->per_rank[DSC_STATE_BUFFERS] = from->per_rank[DSC_STATE_GOSSIP] = 1;
    from->per_rank[DSC_STATE_KFAC] = own_kfac;
    if (!exact && (s->gossip || from->gossip))
        dsc_log(DSC_LOG_WARNING,
                "'%s' was written by %lld ranks with %s, or another graph: all ranks start from the average "
                "that it holds, each with the optimiser's state of one of them",
                path, (long long)from->ranks, name ? name : "allreduce");
    if (s->kfac && !kfac)
        dsc_log(DSC_LOG_WARNING, "'%s' was written without K-FAC: factors start from the identity", path);
    return DSC_OK;
}

/* Checks that both files belong together, and to this kind of run. */
static dsc_status check_run(const dsc_snapshot *s, source *f) {
    int64_t step, state_step;
    const char *optimizer = dsc_st_metadata(f->state, "optimizer");
    const char *own = dsc_optim_name(s->options->optim->kind);
    DSC_TRY(dsc_st_metadata_number(f->model, "step", &step));
    DSC_TRY(dsc_st_metadata_number(f->state, "step", &state_step));
    if (step != state_step)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is of step %lld, '%s' of step %lld: they do not belong together",
                        dsc_st_path(f->model), (long long)step, dsc_st_path(f->state), (long long)state_step);
    if (!optimizer || strcmp(optimizer, own) != 0)
        return DSC_FAIL(DSC_E_INVALID, "'%s' was written with optimiser %s, this run uses %s",
                        dsc_st_path(f->state), optimizer ? optimizer : "(none)", own);
    return read_origin(s, f);
}

/* Warns of data that is not that of the run so far. */
static dsc_status compare_data(const dsc_snapshot *s, const source *f, int64_t samples) {
    const dsc_train_options *o = s->options;
    const dsc_train_state *state = &f->list.numbers.state;
    const char *path = dsc_st_path(f->state);
    dsc_model_facts facts;
    int64_t batch;
    DSC_TRY(dsc_model_facts_read(f->state, &facts));
    DSC_TRY(dsc_st_metadata_number(f->state, "batch_size", &batch));
    if (facts.data[0] && o->data && strcmp(facts.data, o->data) != 0)
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

/* Compares the run's numbers with the metadata and with the data set. */
static dsc_status check_place(const dsc_snapshot *s, const source *f) {
    const dsc_train_state *state = &f->list.numbers.state;
    const char *path = dsc_st_path(f->state);
    int64_t step, samples;
    DSC_TRY(dsc_st_metadata_number(f->state, "step", &step));
    DSC_TRY(dsc_st_metadata_number(f->state, "samples", &samples));
    if (step >= 0 && state->step != step)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is damaged: it is of step %lld, but 'train.step' is %lld", path,
                        (long long)step, (long long)state->step);
    if (state->position > 0 && samples != s->samples)
        return DSC_FAIL(DSC_E_INVALID,
                        "'%s' stands in the middle of an epoch of %lld samples, the data set has %lld: use "
                        "the same data",
                        path, (long long)samples, (long long)s->samples);
    if (state->position > s->samples)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is damaged: position %lld of %lld samples", path,
                        (long long)state->position, (long long)s->samples);
    return compare_data(s, f, samples);
}

/* Adds up the ranks' losses of the epoch under way, for a run that does not continue the gossip of each rank. */
static dsc_status add_losses(source *f) {
    dsc_train_state *state = &f->list.numbers.state;
    double numbers[4];
    const dsc_state_item train = dsc_state_item_losses(numbers);
    state->loss_sum = state->loss_rows = 0;
    for (int64_t r = 0; r < f->from.ranks; r++) {
        DSC_TRY(check_item(f, &train, r, NULL));
        memcpy(numbers, f->carrier.host, sizeof numbers);
        state->loss_sum += numbers[0];
        state->loss_rows += numbers[1];
    }
    return DSC_OK;
}

/* Opens both files and checks all that can be checked before the run changes. */
static dsc_status open_files(const dsc_snapshot *s, const char *path, source *f) {
    char *state_path;
    DSC_TRY(dsc_checkpoint_state_path(path, &state_path));
    dsc_status status = dsc_st_open(path, &f->model);
    if (status == DSC_OK)
        status = dsc_model_file_check(s->model, s->options->model, f->model);
    if (status == DSC_OK)
        status = dsc_st_open(state_path, &f->state);
    if (status == DSC_E_NOT_FOUND && f->model)
        status = DSC_FAIL(DSC_E_NOT_FOUND,
                          "checkpoint '%s' has no '%s' beside it: a model alone can be evaluated, but "
                          "training cannot continue from it",
                          path, state_path);
    dsc_memory_free(&state_path);
    DSC_TRY(status);
    DSC_TRY(dsc_st_verify(f->model, 0));
    DSC_TRY(dsc_st_verify(f->state, 0));
    if (s->data)
        DSC_TRY(dsc_model_file_check_tokenizer(f->model, dsc_dataset_tokenizer(s->data),
                                               s->options->data ? s->options->data : "the data"));
    DSC_TRY(check_run(s, f));
    DSC_TRY(check_items(f));
    if (f->from.gossip && !f->from.taken[DSC_STATE_GOSSIP])
        DSC_TRY(add_losses(f));
    return check_place(s, f);
}

/* ---- sending items to the ranks ---- */

/* Sends one item from rank 0's carrier to the rank or ranks that it belongs to. */
static dsc_status hand_out(const dsc_snapshot *s, source *f, const dsc_state_place *place,
                           dsc_status status) {
    const dsc_state_item *item = place->item;
    size_t bytes = dsc_tensor_bytes(&item->value);
    int rank = dsc_comm_rank(s->comm);
    if (item->per_rank) {
        DSC_TRY(dsc_carrier_move(&f->carrier, 0, place->rank, bytes));
        return rank == place->rank && status == DSC_OK ? dsc_state_item_set(s, item, f->carrier.host)
                                                       : DSC_OK;
    }
    if (dsc_state_item_is_collective(item))
        return dsc_state_item_set(s, item, rank == 0 ? f->carrier.host : NULL);
    if (!item->value.device)
        return dsc_share_bytes(s->comm, s->queue, item->value.data, bytes);
    dsc_tensor value = item->value;
    dsc_status set = rank == 0 ? dsc_state_item_set(s, item, f->carrier.host) : DSC_OK;
    DSC_TRY(dsc_comm_broadcast(s->comm, DSC_TRAFFIC_OTHER, 0, &value));
    return set;
}

/* Sends every rank its items, or the late ones. After a failure items are still sent, so that no rank waits:
 * zeros where there is nothing to send, which no part refuses. Ends at once where nothing more can travel, or
 * where all ranks have failed alike. */
static dsc_status load_items(const dsc_snapshot *s, source *f, int late) {
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < f->list.place_count; i++) {
        const dsc_state_item *item = f->list.places[i].item;
        if (item->late != late || !f->from.taken[item->part])
            continue;
        if (f->state && status == DSC_OK && item->part != DSC_STATE_RUN)
            status = read_item(f, item, f->list.places[i].rank);
        if (f->state && status != DSC_OK)
            memset(f->carrier.host, 0, dsc_tensor_bytes(&item->value));
        dsc_status handed = hand_out(s, f, &f->list.places[i], status);
        if (handed == DSC_E_FORMAT && f->state)
            dsc_error_prefix(handed, "'%s' is damaged", dsc_st_path(f->state));
        status = status == DSC_OK ? handed : status;
        if (f->carrier.request || (handed != DSC_OK && dsc_state_item_is_collective(item)))
            break;
    }
    return dsc_comm_agree(s->comm, status);
}

/* The list of this run, and a carrier for it. Collective; fails on all ranks or on none. */
static dsc_status make_list(const dsc_snapshot *s, source *f) {
    dsc_status status = dsc_state_list_create(s, &f->list);
    if (status == DSC_OK)
        status = dsc_state_list_carry(s, &f->list, &f->carrier);
    return dsc_comm_agree(s->comm, status);
}

/* Rank 0: whether the file has all late items. */
static dsc_status find_late(const source *f, int *found) {
    *found = 1;
    for (int64_t i = 0; i < f->list.count && *found; i++) {
        const dsc_state_item *item = &f->list.items[i];
        int64_t copies = f->from.per_rank[item->part] ? f->from.ranks : 1;
        for (int64_t r = 0; r < copies && item->late; r++) {
            const dsc_st_tensor *t = NULL;
            char *name = NULL;
            dsc_status status = find(f, item, r, &name, &t);
            dsc_memory_free(&name);
            DSC_TRY(status);
            *found = *found && fits(t, item);
        }
    }
    if (!*found)
        dsc_log(DSC_LOG_WARNING,
                "'%s' was written with other decompositions than this run makes: they are made anew from the "
                "factors",
                dsc_st_path(f->state));
    return DSC_OK;
}

/* K-FAC's decompositions. Which ones there are depends on what it has loaded: it is listed anew. */
static dsc_status load_late(const dsc_snapshot *s, source *f) {
    int found = 0;
    dsc_carrier_close(&f->carrier);
    dsc_state_list_destroy(&f->list);
    DSC_TRY(make_list(s, f));
    DSC_TRY(dsc_comm_agree(s->comm, f->state ? find_late(f, &found) : DSC_OK));
    DSC_TRY(dsc_share_bytes(s->comm, s->queue, &found, sizeof found));
    if (found)
        DSC_TRY(load_items(s, f, 1));
    return dsc_comm_agree(s->comm, dsc_kfac_state_done(s->kfac, s->queue, found));
}

/* Copies the loaded numbers into the run. */
static dsc_status apply(const dsc_snapshot *s, const source *f) {
    int exact = f->from.taken[DSC_STATE_GOSSIP];
    dsc_status status = dsc_state_list_apply(s, &f->list, exact);
    if (status != DSC_OK && f->state)
        dsc_error_prefix(status, "'%s' is damaged", dsc_st_path(f->state));
    if (s->gossip && !exact && dsc_comm_rank(s->comm) > 0) /* rank 0 has the losses of all */
        s->state->loss_sum = s->state->loss_rows = 0;
    return status;
}

static dsc_status load_all(const dsc_snapshot *s, const char *path, source *f) {
    int reader = dsc_comm_rank(s->comm) == 0;
    DSC_TRY(make_list(s, f));
    DSC_TRY(dsc_comm_agree(s->comm, reader ? open_files(s, path, f) : DSC_OK));
    DSC_TRY(dsc_share_bytes(s->comm, s->queue, &f->from, sizeof f->from));
    DSC_TRY(dsc_comm_agree(s->comm, reader ? dsc_statedict_read(s->model, s->queue, f->model) : DSC_OK));
    DSC_TRY(dsc_share_model(s->comm, s->queue, s->model));
    DSC_TRY(load_items(s, f, 0));
    DSC_TRY(dsc_comm_agree(s->comm, apply(s, f)));
    return f->from.taken[DSC_STATE_KFAC] ? load_late(s, f) : DSC_OK;
}

dsc_status dsc_checkpoint_load(const dsc_snapshot *s, const char *path, int *exact) {
    source f = {0};
    dsc_status status = load_all(s, path, &f);
    if (status == DSC_OK && exact)
        *exact = f.from.taken[DSC_STATE_GOSSIP];
    dsc_st_close(&f.model);
    dsc_st_close(&f.state);
    dsc_carrier_close(&f.carrier);
    dsc_state_list_destroy(&f.list);
    return status;
}
