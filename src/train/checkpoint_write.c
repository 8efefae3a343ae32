/* Saving a checkpoint. */
#include "train/checkpoint.h"

#include "base/error.h"
#include "base/memory.h"
#include "data/dataset.h"
#include "train/checkpoint_directory.h"
#include "train/engines.h"
#include "train/model_file.h"
#include "train/share.h"
#include "train/state_list.h"

#include <inttypes.h>
#include <stdio.h>

static dsc_save_options facts_of(const dsc_snapshot *s) {
    dsc_save_options o;
    dsc_save_options_init(&o);
    o.model = s->options->model;
    o.data = s->options->data;
    o.step = s->state->step;
    o.epoch = s->state->epoch;
    o.has_seed = 1;
    o.seed = s->options->seed;
    o.val_split = s->options->val_split;
    o.loss = s->options->loss == DSC_LOSS_CROSS_ENTROPY ? NULL : dsc_loss_name(s->options->loss);
    if (s->data) {
        o.mask = s->data->mask;
        o.mask_token = s->data->mask > 0 ? s->data->options.mask_token : -1;
        o.vocabulary = s->data->whole_numbers ? s->data->options.vocabulary : 0;
        o.class_names = s->data->class_names;
        o.class_name_count = s->data->class_names ? s->data->info.classes : 0;
        o.mean = s->data->std[0] > 0 ? s->data->mean : NULL;
        o.std = s->data->std;
        o.tokenizer = s->data->tokenizer;
        const int64_t h = s->data->info.h, w = s->data->info.w;
        if (o.mean && dsc_dataset_label_count(s->data) == 1) /* images made of bytes that are not tiles */
            o.resize = s->data->resize ? s->data->resize : h > w ? h : w;
    }
    return o;
}

const char *dsc_checkpoint_graph(const dsc_snapshot *s) {
    return s->options->consensus->graph ? s->options->consensus->graph : "default";
}

/* ---- the state file's metadata ---- */

static dsc_status describe_number(dsc_st_writer *w, const char *key, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    return dsc_st_writer_metadata(w, key, text);
}

static dsc_status describe_engines(const dsc_snapshot *s, dsc_st_writer *w) {
    char *text = NULL;
    DSC_TRY(dsc_engines_text(dsc_queue_device(s->queue), &text));
    dsc_status status = text[0] ? dsc_st_writer_metadata(w, DSC_ENGINES_KEY, text) : DSC_OK;
    dsc_memory_free(&text);
    return status;
}

static dsc_status describe_kfac(const dsc_snapshot *s, dsc_st_writer *w) {
    const dsc_kfac_options *o = s->options->kfac;
    DSC_TRY(dsc_st_writer_metadata(w, "kfac_method", dsc_kfac_method_name(o->method)));
    DSC_TRY(dsc_st_writer_metadata(w, "kfac_scaling", dsc_kfac_scaling_name(o->scaling)));
    DSC_TRY(dsc_st_writer_metadata(w, "kfac_strategy", dsc_kfac_strategy_name(o->strategy)));
    DSC_TRY(dsc_st_writer_metadata(w, "kfac_outer_product", o->outer_product ? "on" : "off"));
    if (s->kfac_alone)
        DSC_TRY(dsc_st_writer_metadata(w, "kfac_scope", dsc_kfac_scope_name(s->options->kfac_scope)));
    return describe_number(w, "kfac_diag_blocks", o->diag_blocks);
}

static dsc_status describe_run(const dsc_snapshot *s, dsc_st_writer *w) {
    dsc_save_options facts = facts_of(s);
    DSC_TRY(dsc_model_file_describe(s->model, &facts, w));
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
    DSC_TRY(describe_number(w, "batches_per_allreduce", s->options->batches_per_allreduce));
    return s->kfac ? describe_kfac(s, w) : DSC_OK;
}

/* ---- the files ---- */

dsc_status dsc_checkpoint_write_model(const dsc_snapshot *s, const char *path, dsc_st_writer **out) {
    dsc_save_options facts = facts_of(s);
    dsc_status status = DSC_OK;
    *out = NULL;
    if (dsc_comm_rank(s->comm) == 0)
        status = dsc_model_file_write(s->model, s->queue, path, &facts, out);
    status = dsc_comm_agree(s->comm, status);
    if (status != DSC_OK)
        dsc_st_writer_destroy(out);
    return status;
}

/* Rank 0: the header of the state file. */
static dsc_status begin_state(const dsc_snapshot *s, const char *model, const dsc_state_list *list,
                              dsc_st_writer **out) {
    char *path = NULL, *name = NULL;
    DSC_TRY(dsc_checkpoint_state_path(model, &path));
    dsc_status status = dsc_st_writer_create(path, out);
    dsc_memory_free(&path);
    DSC_TRY(status);
    DSC_TRY(describe_run(s, *out));
    for (int64_t i = 0; i < list->place_count; i++) {
        const dsc_state_item *item = list->places[i].item;
        DSC_TRY(dsc_state_item_name(item, item->per_rank, list->places[i].rank, &name));
        status = dsc_st_writer_declare(*out, name, item->value.dtype, item->value.ndim, item->value.dim);
        dsc_memory_free(&name);
        DSC_TRY(status);
    }
    return dsc_st_writer_begin(*out);
}

/* Every rank's items through rank 0: all of them even when the disk is full, so that nobody waits. */
static dsc_status write_state(const dsc_snapshot *s, const dsc_state_list *list, dsc_carrier *carrier,
                              dsc_st_writer *file) {
    int rank = dsc_comm_rank(s->comm);
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < list->place_count; i++) {
        const dsc_state_item *item = list->places[i].item;
        int owner = list->places[i].rank;
        size_t bytes = dsc_tensor_bytes(&item->value);
        if (dsc_state_item_is_collective(item))
            DSC_TRY(dsc_state_item_get(s, item, rank == 0 ? carrier->host : NULL));
        else if (rank == owner && status == DSC_OK)
            status = dsc_state_item_get(s, item, carrier->host);
        DSC_TRY(dsc_carrier_move(carrier, owner, 0, bytes));
        if (rank == 0 && status == DSC_OK)
            status = dsc_st_writer_write(file, i, carrier->host, bytes);
    }
    return status;
}

/* Rank 0. The model file appears last: whoever sees it finds the others beside it. */
static dsc_status publish(dsc_st_writer *model, dsc_st_writer *ema, dsc_st_writer *state, int64_t *bytes) {
    DSC_TRY(dsc_st_writer_sync(model));
    DSC_TRY(dsc_st_writer_sync(state));
    if (ema)
        DSC_TRY(dsc_st_writer_sync(ema));
    DSC_TRY(dsc_st_writer_commit(state));
    if (ema)
        DSC_TRY(dsc_st_writer_commit(ema));
    *bytes = dsc_st_writer_bytes(model) + dsc_st_writer_bytes(state) + (ema ? dsc_st_writer_bytes(ema) : 0);
    return dsc_st_writer_commit(model);
}

dsc_status dsc_checkpoint_save(const dsc_snapshot *s, const char *path, dsc_st_writer **model,
                               dsc_st_writer **ema, int64_t *bytes) {
    int writer = dsc_comm_rank(s->comm) == 0;
    dsc_state_list list;
    dsc_carrier carrier = {0};
    dsc_st_writer *state = NULL;
    dsc_status status = dsc_state_list_create(s, &list);
    if (status == DSC_OK)
        status = dsc_state_list_carry(s, &list, &carrier);
    if (status == DSC_OK && writer)
        status = begin_state(s, path, &list, &state);
    status = dsc_comm_agree(s->comm, status);
    if (status == DSC_OK)
        status = dsc_comm_agree(s->comm, write_state(s, &list, &carrier, state));
    if (status == DSC_OK)
        status = dsc_comm_agree(s->comm, writer ? publish(*model, *ema, state, bytes) : DSC_OK);
    dsc_st_writer_destroy(model);
    dsc_st_writer_destroy(ema);
    dsc_st_writer_destroy(&state);
    dsc_carrier_close(&carrier);
    dsc_state_list_destroy(&list);
    return status;
}
