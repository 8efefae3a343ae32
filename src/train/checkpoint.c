/* Saving a run. */
#include "train/checkpoint.h"

#include "base/error.h"
#include "base/memory.h"
#include "descent/log.h"
#include "descent/version.h"
#include "train/checkpoint_directory.h"
#include "train/checkpoint_kfac.h"
#include "train/checkpoint_parts.h"
#include "train/checkpoint_ranks.h"
#include "train/engines.h"
#include "train/share.h"
#include "train/statedict.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Both files while they are written, on rank 0; list and carrier on every rank. */
typedef struct pair {
    dsc_st_writer *model, *state;
    dsc_rank_list list;
    dsc_carrier carrier; /* as large as any tensor */
} pair;

static dsc_status describe_number(dsc_st_writer *w, const char *key, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    return dsc_st_writer_metadata(w, key, text);
}

/* A name that the file cannot hold (a path that is not UTF-8, or a very long one) is left out. */
static dsc_status describe_data(const dsc_train_options *o, dsc_st_writer *w) {
    char seed[32];
    snprintf(seed, sizeof seed, "%" PRIu64, o->seed);
    if (strlen(o->data) < DSC_DATA_SIZE && dsc_st_writer_metadata(w, "data", o->data) != DSC_OK)
        dsc_log(DSC_LOG_WARNING, "the checkpoint does not name its data: %s", dsc_error_message());
    return dsc_st_writer_metadata(w, "seed", seed);
}

/* What both files say about themselves. */
static dsc_status describe(const dsc_snapshot *s, dsc_st_writer *w) {
    int64_t shape[3];
    dsc_model_input_shape(s->model, shape);
    DSC_TRY(dsc_st_writer_metadata(w, "format", "pt"));
    DSC_TRY(dsc_st_writer_metadata(w, "descent", dsc_version()));
    DSC_TRY(dsc_st_writer_metadata(w, "model", s->options->model));
    DSC_TRY(describe_number(w, "classes", dsc_model_classes(s->model)));
    DSC_TRY(describe_number(w, "height", shape[0]));
    DSC_TRY(describe_number(w, "width", shape[1]));
    DSC_TRY(describe_number(w, "channels", shape[2]));
    DSC_TRY(describe_number(w, "step", s->state->step));
    DSC_TRY(describe_number(w, "epoch", s->state->epoch));
    return describe_data(s->options, w);
}

static dsc_status describe_engines(const dsc_snapshot *s, dsc_st_writer *w) {
    char *text = NULL;
    DSC_TRY(dsc_engines_text(dsc_queue_device(s->queue), &text));
    dsc_status status = text[0] ? dsc_st_writer_metadata(w, DSC_ENGINES_KEY, text) : DSC_OK;
    dsc_memory_free(&text);
    return status;
}

static dsc_status describe_run(const dsc_snapshot *s, dsc_st_writer *w) {
    DSC_TRY(describe(s, w));
    DSC_TRY(describe_number(w, "ranks", dsc_comm_size(s->comm)));
    DSC_TRY(dsc_st_writer_metadata(w, "optimizer", dsc_optim_name(s->options->optim->kind)));
    DSC_TRY(dsc_st_writer_metadata(w, "consensus", dsc_consensus_name(s->options->consensus->kind)));
    if (s->gossip) {
        DSC_TRY(dsc_st_writer_metadata(w, "graph", dsc_checkpoint_graph(s)));
        DSC_TRY(describe_number(w, "gossip_group", s->options->consensus->group));
    }
    DSC_TRY(describe_number(w, "samples", s->samples));
    DSC_TRY(describe_engines(s, w));
    DSC_TRY(describe_number(w, "batch_size", s->options->batch_size));
    return describe_number(w, "batches_per_allreduce", s->options->batches_per_allreduce);
}

static dsc_status declare_as(dsc_st_writer *w, const char *prefix, const char *own, const dsc_tensor *t) {
    char *name;
    DSC_TRY(dsc_checkpoint_name(prefix, own, &name));
    dsc_status status = dsc_st_writer_declare(w, name, t->dtype, t->ndim, t->dim);
    dsc_memory_free(&name);
    return status;
}

/* The optimiser's tensors, where all ranks have the same. */
static int64_t shared_count(const dsc_snapshot *s) {
    return s->gossip ? 0 : dsc_optim_state_count(s->optim);
}

/* Order: scalars, optimizer.steps, the optimiser's tensors, then rank by rank its list, then K-FAC's. */
static dsc_status declare_state(const dsc_snapshot *s, const dsc_rank_list *list, dsc_st_writer *w) {
    const dsc_param *optim = dsc_optim_state(s->optim);
    for (int i = 0; i < DSC_SCALAR_COUNT; i++)
        DSC_TRY(dsc_st_writer_declare(w, dsc_checkpoint_scalars[i].name, dsc_checkpoint_scalars[i].dtype, 0,
                                      NULL));
    DSC_TRY(dsc_st_writer_declare(w, DSC_OPTIM_PREFIX "steps", DSC_I64, 0, NULL));
    for (int64_t i = 0; i < shared_count(s); i++)
        DSC_TRY(declare_as(w, DSC_OPTIM_PREFIX, optim[i].name, &optim[i].value));
    for (int r = 0; r < dsc_comm_size(s->comm); r++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, DSC_RANK_PREFIX, r);
        for (int64_t i = 0; i < list->count; i++)
            DSC_TRY(declare_as(w, prefix, list->items[i].name, &list->items[i].value));
    }
    return dsc_checkpoint_kfac_declare(s, w);
}

static dsc_status open_pair(const dsc_snapshot *s, const char *directory, pair *p) {
    char *model = NULL, *state = NULL;
    DSC_TRY(dsc_checkpoint_path(directory, s->state->step, &model));
    dsc_status status = dsc_checkpoint_state_path(model, &state);
    if (status == DSC_OK)
        status = dsc_st_writer_create(model, &p->model);
    if (status == DSC_OK)
        status = dsc_st_writer_create(state, &p->state);
    dsc_memory_free(&state);
    dsc_memory_free(&model);
    return status;
}

static dsc_status make_room(const dsc_snapshot *s, pair *p) {
    DSC_TRY(dsc_rank_list_create(s, &p->list));
    DSC_TRY(dsc_rank_list_collect(s, &p->list));
    size_t shared = dsc_checkpoint_largest(s), own = dsc_rank_list_largest(&p->list);
    return dsc_carrier_open(s->comm, s->queue, shared > own ? shared : own, &p->carrier);
}

static dsc_status begin(const dsc_snapshot *s, const char *directory, pair *p) {
    DSC_TRY(open_pair(s, directory, p));
    DSC_TRY(describe(s, p->model));
    DSC_TRY(dsc_statedict_declare(s->model, p->model));
    DSC_TRY(dsc_st_writer_begin(p->model));
    DSC_TRY(describe_run(s, p->state));
    DSC_TRY(declare_state(s, &p->list, p->state));
    return dsc_st_writer_begin(p->state);
}

static dsc_status fetch(const dsc_snapshot *s, const dsc_tensor *t, void *host) {
    DSC_TRY(dsc_tensor_download(s->queue, t, dsc_tensor_bytes(t), host));
    return dsc_queue_sync(s->queue);
}

/* Where the tensors of rank 0 begin in the state file. */
static int64_t first_of_ranks(const dsc_snapshot *s) {
    return DSC_SCALAR_COUNT + 1 + shared_count(s);
}

/* Collective; fails on all ranks or on none. */
static dsc_status write_model(const dsc_snapshot *s, const pair *p) {
    dsc_status status = s->show ? s->show(s->show_context, 1) : DSC_OK;
    DSC_TRY(dsc_comm_agree(s->comm, status));
    if (p->model)
        status = dsc_statedict_write(s->model, s->queue, p->model);
    status = dsc_comm_agree(s->comm, status);
    if (s->show)
        DSC_TRY(s->show(s->show_context, 0));
    return status;
}

/* Rank 0: what is the same for all. */
static dsc_status write_shared(const dsc_snapshot *s, const pair *p) {
    const dsc_param *optim = dsc_optim_state(s->optim);
    int64_t steps = dsc_optim_steps(s->optim), index = 0;
    for (int i = 0; i < DSC_SCALAR_COUNT; i++)
        DSC_TRY(dsc_st_writer_write(p->state, index++,
                                    (const char *)s->state + dsc_checkpoint_scalars[i].offset, 8));
    DSC_TRY(dsc_st_writer_write(p->state, index++, &steps, sizeof steps));
    for (int64_t i = 0; i < shared_count(s); i++) {
        DSC_TRY(fetch(s, &optim[i].value, p->carrier.host));
        DSC_TRY(dsc_st_writer_write(p->state, index++, p->carrier.host, dsc_tensor_bytes(&optim[i].value)));
    }
    return DSC_OK;
}

/* Every rank's list through rank 0; all of it, even when the disk is full, so that nobody waits. */
static dsc_status write_state(const dsc_snapshot *s, pair *p) {
    int64_t count = p->list.count, first = first_of_ranks(s);
    int rank = dsc_comm_rank(s->comm);
    dsc_status status = rank == 0 ? write_shared(s, p) : DSC_OK;
    for (int64_t i = 0; i < dsc_comm_size(s->comm) * count; i++) {
        int r = (int)(i / count);
        const dsc_tensor *t = &p->list.items[i % count].value;
        if (rank == r && status == DSC_OK)
            status = fetch(s, t, p->carrier.host);
        DSC_TRY(dsc_carrier_move(&p->carrier, r, 0, dsc_tensor_bytes(t)));
        if (rank == 0 && status == DSC_OK)
            status = dsc_st_writer_write(p->state, first + i, p->carrier.host, dsc_tensor_bytes(t));
    }
    return status;
}

static dsc_status save_kfac(const dsc_snapshot *s, const pair *p) {
    int64_t first = first_of_ranks(s) + dsc_comm_size(s->comm) * p->list.count;
    return dsc_checkpoint_kfac_save(s, p->state, first);
}

/* The state first: whoever sees the model file finds its state beside it. */
static dsc_status publish(const dsc_snapshot *s, const char *directory, const pair *p) {
    DSC_TRY(dsc_st_writer_sync(p->model));
    DSC_TRY(dsc_st_writer_sync(p->state));
    DSC_TRY(dsc_st_writer_commit(p->state));
    DSC_TRY(dsc_st_writer_commit(p->model));
    DSC_TRY(dsc_checkpoint_set_latest(directory, s->state->step));
    return dsc_checkpoint_prune(directory, s->state->step, s->options->keep, s->state->best_step);
}

dsc_status dsc_checkpoint_save(const dsc_snapshot *s, const char *directory, int64_t *bytes) {
    pair p = {0};
    int writer = dsc_comm_rank(s->comm) == 0;
    dsc_status status = make_room(s, &p);
    if (status == DSC_OK && writer)
        status = begin(s, directory, &p);
    status = dsc_comm_agree(s->comm, status);
    if (status == DSC_OK)
        status = write_model(s, &p);
    if (status == DSC_OK)
        status = dsc_comm_agree(s->comm, write_state(s, &p));
    if (status == DSC_OK)
        status = save_kfac(s, &p);
    if (status == DSC_OK)
        status = dsc_comm_agree(s->comm, writer ? publish(s, directory, &p) : DSC_OK);
    if (status == DSC_OK && writer)
        *bytes = dsc_st_writer_bytes(p.model) + dsc_st_writer_bytes(p.state);
    dsc_st_writer_destroy(&p.model);
    dsc_st_writer_destroy(&p.state);
    dsc_carrier_close(&p.carrier);
    dsc_rank_list_destroy(&p.list);
    return status;
}
