/* Before the first step: output directory, resume; and saving a checkpoint. */
#include "train/trainer_internal.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/output.h"
#include "comm/table.h"
#include "device/ops.h"
#include "train/checkpoint.h"
#include "train/checkpoint_directory.h"
#include "train/checkpoint_find.h"
#include "train/died.h"
#include "train/finetune.h"
#include "train/resume_note.h"
#include "train/run_files.h"
#include "train/share.h"
#include "train/sync.h"
#include "train/trace_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static dsc_snapshot snapshot(dsc_trainer *t) {
    return (dsc_snapshot){.comm = t->comm,
                          .queue = t->queue,
                          .model = t->model,
                          .optim = t->optim,
                          .kfac = t->kfac,
                          .options = &t->options,
                          .samples = t->info.count,
                          .data = t->train_set,
                          .state = &t->state,
                          .gossip = t->collective ? NULL : t->consensus,
                          .factors = t->factors,
                          .kfac_alone = t->kfac_comm != NULL,
                          .ema = t->ema};
}

/* ---- checkpoints ---- */

/* Counts the parameters (bad[0]) and the batch-norm statistics (bad[1]) that are not finite. */
static dsc_status count_bad(dsc_trainer *t, dsc_tensor *count, double bad[2]) {
    dsc_tensor values = dsc_model_values(t->model);
    const dsc_param *buffers = dsc_model_buffers(t->model);
    dsc_tensor of_values = dsc_tensor_slice(count, 0, 1), of_buffers = dsc_tensor_slice(count, 1, 1);
    DSC_TRY(dsc_op_count_nonfinite(t->queue, &values, &of_values));
    for (int64_t i = 0; i < dsc_model_buffer_count(t->model); i++)
        if (buffers[i].value.dtype == values.dtype) /* the others count batches */
            DSC_TRY(dsc_op_count_nonfinite(t->queue, &buffers[i].value, &of_buffers));
    DSC_TRY(dsc_tensor_download(t->queue, count, 2 * sizeof *bad, bad));
    return dsc_queue_sync(t->queue);
}

static dsc_status check_finite(dsc_trainer *t) {
    const int64_t two = 2;
    dsc_tensor count;
    double bad[2] = {0, 0};
    DSC_TRY(dsc_tensor_alloc(t->device, DSC_F64, 1, &two, &count));
    dsc_status status = count_bad(t, &count, bad);
    dsc_tensor_free(&count);
    DSC_TRY(status);
    if (bad[0] + bad[1] > 0)
        return DSC_FAIL(DSC_E_NUMERIC,
                        "after step %lld %.0f %s are not finite, and no checkpoint of it was written "
                        "(last good checkpoint: %s): try a lower learning rate or a longer warm-up",
                        (long long)t->state.step, bad[0] > 0 ? bad[0] : bad[1],
                        bad[0] > 0 ? "parameters" : "batch-norm statistics", dsc_trainer_good(t));
    return DSC_OK;
}

const char *dsc_trainer_good(const dsc_trainer *t) {
    return t->good ? t->good : "none";
}

static dsc_status set_good(dsc_trainer *t, const char *path) {
    dsc_memory_free(&t->good);
    return dsc_memory_strdup(path, &t->good);
}

/* The model file holds the values that evaluations use. Collective; fails on all ranks or on none. */
static dsc_status write_model(dsc_trainer *t, const dsc_snapshot *s, const char *path, dsc_st_writer **out) {
    int swaps = dsc_trainer_swaps(t);
    if (swaps)
        DSC_TRY(dsc_comm_agree(t->comm, dsc_trainer_swap_in(t)));
    dsc_status status = dsc_checkpoint_write_model(s, path, out);
    dsc_status swapped = swaps ? dsc_comm_agree(t->comm, dsc_trainer_swap_out(t)) : DSC_OK;
    return status == DSC_OK ? swapped : status;
}

/* The same for the average of the weights, which has a file of its own beside the model's. */
static dsc_status write_ema(dsc_trainer *t, const dsc_snapshot *s, const char *model, dsc_st_writer **out) {
    char *path = NULL;
    if (!t->ema)
        return DSC_OK;
    DSC_TRY(dsc_comm_agree(t->comm, dsc_checkpoint_ema_path(model, &path)));
    dsc_status status = dsc_comm_agree(t->comm, dsc_ema_swap_in(t));
    if (status == DSC_OK)
        status = dsc_checkpoint_write_model(s, path, out);
    dsc_status swapped = dsc_comm_agree(t->comm, dsc_ema_swap_out(t));
    dsc_memory_free(&path);
    return status == DSC_OK ? swapped : status;
}

static int is_out(const dsc_trainer *t, const char *directory) {
    return t->options.out && strcmp(directory, t->options.out) == 0;
}

/* Rank 0: makes this step's checkpoint the newest of its directory, and removes those that need not stay. */
static dsc_status keep_latest(const dsc_trainer *t, const char *directory) {
    DSC_TRY(dsc_checkpoint_set_latest(directory, t->state.step));
    if (!is_out(t, directory)) /* checkpoints there may be of other runs, or were saved on purpose */
        return DSC_OK;
    DSC_TRY(dsc_checkpoint_set_best(directory, t->state.best_step));
    return dsc_checkpoint_prune(directory, t->state.step, t->options.keep, t->state.best_step);
}

static dsc_status write_to(dsc_trainer *t, const char *directory, const char *path) {
    dsc_snapshot s = snapshot(t);
    dsc_st_writer *model = NULL, *ema = NULL;
    int64_t bytes = 0;
    double begun = dsc_clock_now();
    DSC_TRY(dsc_loss_scale_get(&t->loss_scale, t->queue, t->state.loss_scale));
    t->state.seconds = begun - t->start;
    DSC_TRY(dsc_comm_agree(t->comm, check_finite(t)));
    dsc_status status = write_model(t, &s, path, &model);
    if (status == DSC_OK)
        status = write_ema(t, &s, path, &ema);
    if (status != DSC_OK) {
        dsc_st_writer_destroy(&model);
        dsc_st_writer_destroy(&ema);
    }
    DSC_TRY(status);
    DSC_TRY(dsc_checkpoint_save(&s, path, &model, &ema, &bytes));
    DSC_TRY(dsc_comm_agree(t->comm, t->rank == 0 ? keep_latest(t, directory) : DSC_OK));
    DSC_TRY(set_good(t, path));
    dsc_metrics_checkpoint(t->metrics, &t->state, dsc_trainer_last_epoch(t), strrchr(path, '/') + 1, bytes,
                           dsc_clock_now() - begun);
    dsc_trainer_emit_text(t, DSC_EVENT_CHECKPOINT, path);
    return DSC_OK;
}

dsc_status dsc_trainer_write_checkpoint(dsc_trainer *t, const char *directory) {
    char *path = NULL;
    int own = is_out(t, directory);
    if (own && t->saved_step == t->state.step)
        return DSC_OK;
    DSC_TRY(dsc_checkpoint_path(directory, t->state.step, &path));
    dsc_status status = DSC_OK;
    if (!own && t->rank == 0)
        status = dsc_directory_make(directory);
    status = dsc_comm_agree(t->comm, status);
    if (status == DSC_OK)
        status = write_to(t, directory, path);
    if (status == DSC_OK && own)
        t->saved_step = t->state.step;
    dsc_memory_free(&path);
    return status;
}

/* ---- where a run begins ---- */

static dsc_status refuse_other_run(const char *directory) {
    char *path = NULL;
    DSC_TRY(dsc_checkpoint_latest(directory, &path));
    if (!path)
        return DSC_OK;
    dsc_status status = DSC_FAIL(DSC_E_INVALID,
                                 "'%s' is the checkpoint of an earlier run: resume it, choose another output "
                                 "directory or remove it",
                                 path);
    dsc_memory_free(&path);
    return status;
}

static dsc_status set_origin(const char *path, dsc_origin *from) {
    if (strlen(path) >= sizeof from->path)
        return DSC_FAIL(DSC_E_INVALID, "'%.60s...': a checkpoint's path may have %d characters at most", path,
                        DSC_ORIGIN_SIZE - 1);
    snprintf(from->path, sizeof from->path, "%s", path);
    return DSC_OK;
}

dsc_status dsc_origin_find(dsc_trainer *t, dsc_origin *from) {
    const dsc_train_options *o = &t->options;
    char *path = NULL;
    dsc_status status;
    if (!o->resume)
        return DSC_OK;
    if (t->origin_of == o->resume) {
        *from = t->origin;
        return DSC_OK;
    }
    if (strcmp(o->resume, "auto") == 0)
        status = dsc_checkpoint_newest_intact(o->out, &path);
    else
        status = dsc_checkpoint_find(o->resume, &path);
    if (status == DSC_OK && path)
        status = set_origin(path, from);
    dsc_memory_free(&path);
    DSC_TRY(status);
    t->origin = *from;
    t->origin_of = o->resume;
    return DSC_OK;
}

/* The directory that a path lies in. */
static void find_parent(const char *path, char parent[DSC_ORIGIN_SIZE]) {
    snprintf(parent, DSC_ORIGIN_SIZE, "%s", path);
    char *slash = strrchr(parent, '/');
    if (slash)
        slash[slash == parent] = '\0';
    else
        snprintf(parent, DSC_ORIGIN_SIZE, ".");
}

/* Whether a checkpoint lies in this directory. */
static int lies_in(const char *path, const char *directory) {
    char parent[DSC_ORIGIN_SIZE];
    struct stat a, b;
    find_parent(path, parent);
    return stat(parent, &a) == 0 && stat(directory, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* Rank 0: makes the directory. It may only hold a run if that is the run which continues. */
static dsc_status prepare(dsc_trainer *t, dsc_origin *from) {
    const dsc_train_options *o = &t->options;
    if (o->out) {
        DSC_TRY(dsc_directory_make(o->out));
        dsc_checkpoint_sweep(o->out);
    }
    if (o->out && o->overwrite && !o->resume)
        DSC_TRY(dsc_run_files_remove(o->out));
    DSC_TRY(dsc_origin_find(t, from));
    if (o->out && !(from->path[0] && lies_in(from->path, o->out)))
        DSC_TRY(refuse_other_run(o->out));
    return DSC_OK;
}

/* Rank 0: adds a remedy to the message of a failure to load: the newest complete checkpoint of an earlier
 * step. */
static void name_earlier(const dsc_trainer *t, const char *path, dsc_status status) {
    int64_t *steps = NULL, count = 0, at = 0;
    char *earlier = NULL;
    if (!t->options.out || dsc_checkpoint_list(t->options.out, &steps, &count) != DSC_OK)
        count = 0;
    while (at < count && !earlier) {
        if (dsc_checkpoint_path(t->options.out, steps[at++], &earlier) == DSC_OK &&
            strcmp(earlier, path) == 0)
            dsc_memory_free(&earlier);
    }
    if (earlier)
        dsc_error_prefix(status, "cannot resume from '%s' (to go on from another checkpoint, name it: '%s')",
                         path, earlier);
    dsc_memory_free(&earlier);
    dsc_memory_free(&steps);
}

/* *note (rank 0): what differs from the saved run, read before this one writes its own `config`; the caller
 * frees it. */
static dsc_status resume(dsc_trainer *t, const char *path, int *as_it_was, char **note) {
    dsc_snapshot s = snapshot(t);
    char *own = NULL, parent[DSC_ORIGIN_SIZE];
    find_parent(path, parent);
    DSC_TRY(dsc_comm_agree(t->comm, t->rank == 0 ? dsc_resume_compare(&t->settings, parent, note) : DSC_OK));
    dsc_status status = dsc_checkpoint_load(&s, path, as_it_was);
    if (status != DSC_OK && t->rank == 0)
        name_earlier(t, path, status);
    DSC_TRY(status);
    if (t->state.loss_scale[0] != 1) /* 1: the saved run had none, and this one starts with its own */
        DSC_TRY(dsc_loss_scale_set(&t->loss_scale, t->queue, t->state.loss_scale));
    DSC_TRY(set_good(t, path));
    t->start = t->process_start - t->state.seconds;
    if (t->options.out && t->rank == 0) {
        status = dsc_checkpoint_path(t->options.out, t->state.step, &own);
        if (status == DSC_OK && strcmp(own, path) == 0)
            t->saved_step = t->state.step;
        dsc_memory_free(&own);
    }
    DSC_TRY(dsc_comm_agree(t->comm, status));
    /* The names of the ranks' output directories may differ: rank 0's counts. */
    return dsc_share_bytes(t->comm, t->queue, &t->saved_step, sizeof t->saved_step);
}

/* ---- the beginning ---- */

/* Called once the parameters are set, new or loaded: opens the metrics, writes `config` and sends the first reports. */
static dsc_status start(dsc_trainer *t, const dsc_origin *from, int as_it_was, const char *note) {
    if (!as_it_was)
        DSC_TRY(dsc_consensus_start(t->consensus));
    if (!t->collective)
        DSC_TRY(dsc_comm_agree(t->comm, dsc_sync_start_peers(t)));
    dsc_status status = DSC_OK;
    if (t->options.out && t->rank == 0) {
        status = t->options.resume ? dsc_died_complete(t->options.out) : DSC_OK;
        if (status == DSC_OK)
            status = dsc_metrics_open(t->options.out, t->options.resume != NULL, &t->metrics);
        const char *events = t->options.tensorboard;
        if (status == DSC_OK && events)
            status = dsc_metrics_open_tensorboard(t->metrics,
                                                  strcmp(events, "auto") == 0 ? t->options.out : events);
        if (status == DSC_OK)
            status = dsc_settings_write(&t->settings, t->options.out);
    }
    DSC_TRY(dsc_comm_agree(t->comm, status));
    DSC_TRY(dsc_trace_file_open(t));
    DSC_TRY(dsc_trainer_report_start(t, from->path));
    if (note)
        dsc_trainer_emit_text(t, DSC_EVENT_NOTE, note);
    dsc_finetune_report(t);
    return DSC_OK;
}

dsc_status dsc_trainer_begin(dsc_trainer *t) {
    dsc_origin from = {{0}};
    if (!t->results)
        return DSC_FAIL(DSC_E_LOST, "this trainer has lost ranks and could not go on without them");
    if (dsc_comm_queue(t->comm) != t->queue) /* another trainer has used the communicator since */
        DSC_TRY(dsc_comm_use_queue(t->comm, t->queue));
    if (t->begun)
        return DSC_OK;
    /* Before a directory is made or a run is removed. */
    DSC_TRY(dsc_comm_agree(t->comm, dsc_train_probe_files(&t->options, t->rank)));
    if (!t->options.resume)
        DSC_TRY(dsc_finetune_start(t));
    DSC_TRY(dsc_comm_agree(t->comm, t->rank == 0 ? prepare(t, &from) : DSC_OK));
    DSC_TRY(dsc_share_bytes(t->comm, t->queue, &from, sizeof from));
    if (t->options.resume && !from.path[0])
        DSC_TRY(dsc_finetune_start(t));
    int as_it_was = 0;
    char *note = NULL;
    dsc_status status = from.path[0] ? resume(t, from.path, &as_it_was, &note) : DSC_OK;
    if (status == DSC_OK)
        status = start(t, &from, as_it_was, note);
    free(note);
    DSC_TRY(status);
    t->begun = 1;
    return DSC_OK;
}

dsc_status dsc_trainer_resume(dsc_trainer *trainer, const char *path) {
    dsc_trainer *t = trainer;
    dsc_status status = DSC_OK;
    char *own = NULL;
    if (!path)
        status = DSC_FAIL(DSC_E_INVALID, "no checkpoint to resume from: path is NULL");
    else if (strcmp(path, "auto") == 0 && !t->options.out)
        status = DSC_FAIL(DSC_E_INVALID, "resume auto looks into the output directory, and there is none: "
                                         "name a directory or a checkpoint file");
    else if (t->begun)
        status =
            DSC_FAIL(DSC_E_INVALID,
                     "cannot resume from '%s': this trainer has begun; resume before its first step", path);
    else
        status = dsc_memory_strdup(path, &own);
    status = dsc_comm_agree(t->comm, status);
    if (status != DSC_OK) {
        dsc_memory_free(&own);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    dsc_memory_free(&t->resume_path); /* of an attempt that has failed */
    t->origin_of = NULL;
    t->options.resume = t->resume_path = own;
    return dsc_trainer_begin(t);
}

dsc_status dsc_trainer_save(dsc_trainer *trainer, const char *directory) {
    DSC_TRY(dsc_trainer_finish(trainer, NULL));
    if (!directory)
        directory = trainer->options.out;
    if (!directory)
        return DSC_FAIL(DSC_E_INVALID, "no directory to save a checkpoint into, and options.out is NULL");
    return dsc_trainer_note_loss(trainer, dsc_trainer_write_checkpoint(trainer, directory));
}
