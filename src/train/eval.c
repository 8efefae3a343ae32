/* Evaluation: every rank takes its part of the validation set, each image once; sums are added over all
 * ranks. */
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/versioned.h"
#include "device/ops.h"
#include "train/checkpoint.h"
#include "train/checkpoint_directory.h"
#include "train/share.h"
#include "train/statedict.h"
#include "train/trainer.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Runs all batches of one pass over the loader. Collective. */
static dsc_status evaluate(dsc_comm *comm, dsc_queue *queue, dsc_exec *exec, dsc_loader *loader,
                           dsc_eval_result *result) {
    double begun = dsc_clock_now(), sums[4];
    DSC_TRY(dsc_exec_clear_stats(exec, queue));
    for (int64_t i = 0; i < dsc_loader_batches(loader); i++) {
        dsc_batch batch;
        DSC_TRY(dsc_loader_next(loader, queue, &batch));
        DSC_TRY(dsc_exec_forward(exec, queue, &batch.x));
        DSC_TRY(dsc_exec_loss(exec, queue, &batch.labels, 0));
    }
    dsc_tensor stats = *dsc_exec_stats(exec);
    DSC_TRY(dsc_queue_sync(queue));
    DSC_TRY(dsc_comm_allreduce(comm, DSC_TRAFFIC_OTHER, DSC_SUM, &stats));
    DSC_TRY(dsc_tensor_download(queue, &stats, sizeof sums, sums));
    DSC_TRY(dsc_queue_sync(queue));
    if (!(sums[3] > 0))
        return DSC_FAIL(DSC_E_INVALID, "the validation set is empty");
    result->images = (int64_t)sums[3];
    result->loss = sums[0] / sums[3];
    result->top1 = sums[1] / sums[3];
    result->top5 = sums[2] / sums[3];
    result->seconds = dsc_clock_now() - begun;
    return DSC_OK;
}

/* ---- inside a run ---- */

/* Copies all buffers into `copies`, or back. */
static dsc_status copy_buffers(dsc_trainer *t, dsc_tensor *copies, int back) {
    const dsc_param *buffers = dsc_model_buffers(t->model);
    for (int64_t i = 0; i < dsc_model_buffer_count(t->model); i++) {
        dsc_tensor own = buffers[i].value;
        if (back)
            DSC_TRY(dsc_op_convert(t->queue, &copies[i], &own));
        else
            DSC_TRY(dsc_op_convert(t->queue, &own, &copies[i]));
    }
    return DSC_OK;
}

static dsc_status alloc_copies(dsc_trainer *t, dsc_tensor **out) {
    const dsc_param *buffers = dsc_model_buffers(t->model);
    int64_t count = dsc_model_buffer_count(t->model);
    DSC_TRY(dsc_memory_alloc(count, sizeof **out, out));
    for (int64_t i = 0; i < count; i++) {
        const dsc_tensor *b = &buffers[i].value;
        DSC_TRY(dsc_tensor_alloc(t->device, b->dtype, b->ndim, b->dim, &(*out)[i]));
    }
    return DSC_OK;
}

static void free_copies(const dsc_trainer *t, dsc_tensor **copies) {
    for (int64_t i = 0; *copies && i < dsc_model_buffer_count(t->model); i++)
        if ((*copies)[i].data)
            dsc_tensor_free(&(*copies)[i]);
    dsc_memory_free(copies);
}

/* Running statistics differ between ranks. The whole set is judged with rank 0's, so that the result is that
 * of the checkpoint, whatever the number of ranks; then every rank goes on with its own. */
dsc_status dsc_trainer_evaluate(dsc_trainer *t, dsc_eval_result *result) {
    dsc_tensor *copies = NULL;
    if (t->ranks == 1 || dsc_model_buffer_count(t->model) == 0)
        return evaluate(t->comm, t->queue, t->val_exec, t->val_loader, result);
    dsc_status status = alloc_copies(t, &copies);
    if (status == DSC_OK)
        status = copy_buffers(t, copies, 0);
    status = dsc_comm_agree(t->comm, status);
    if (status == DSC_OK)
        status = dsc_share_buffers(t->comm, t->queue, t->model);
    if (status == DSC_OK)
        status = evaluate(t->comm, t->queue, t->val_exec, t->val_loader, result);
    if (status == DSC_OK)
        status = copy_buffers(t, copies, 1);
    free_copies(t, &copies);
    return status;
}

/* ---- of a file ---- */

/* Everything dsc_eval_run makes. */
typedef struct session {
    dsc_eval_options options;
    dsc_comm *comm;
    dsc_device *device;
    char *path;            /* rank 0 */
    dsc_st_reader *reader; /* rank 0 */
    dsc_model_facts facts;
    dsc_queue *queue;
    dsc_dataset *set;
    dsc_loader *loader;
    dsc_model *model;
    dsc_exec *exec;
} session;

static void close_session(session *s) {
    dsc_exec_destroy(&s->exec);
    dsc_model_destroy(&s->model);
    dsc_loader_destroy(&s->loader);
    dsc_dataset_close(&s->set);
    dsc_queue_destroy(&s->queue);
    dsc_st_close(&s->reader);
    dsc_memory_free(&s->path);
}

static dsc_status read_options(const dsc_eval_options *given, dsc_eval_options *out) {
    dsc_eval_options_init(out);
    DSC_TRY(dsc_versioned_read("eval", given, sizeof *out, out));
    if (!out->checkpoint || !out->data)
        return DSC_FAIL(DSC_E_INVALID, "neither checkpoint nor data may be NULL");
    if (out->batch_size < 1 || out->data_threads < 1)
        return DSC_FAIL(DSC_E_INVALID, "batch size %lld and data threads %d: both must be 1 at least",
                        (long long)out->batch_size, out->data_threads);
    return DSC_OK;
}

/* Rank 0: which file, and what it says. */
static dsc_status find_file(session *s) {
    struct stat info;
    const char *given = s->options.checkpoint;
    if (stat(given, &info) == 0 && S_ISDIR(info.st_mode)) {
        DSC_TRY(dsc_checkpoint_latest(given, &s->path));
        if (!s->path)
            return DSC_FAIL(DSC_E_NOT_FOUND, "directory '%s' holds no checkpoint", given);
    } else {
        DSC_TRY(dsc_memory_strdup(given, &s->path));
    }
    DSC_TRY(dsc_st_open(s->path, &s->reader));
    DSC_TRY(dsc_checkpoint_facts(s->reader, &s->facts));
    const char *asked = s->options.model;
    if (!asked && !s->facts.model[0])
        return DSC_FAIL(DSC_E_INVALID, "'%s' does not say which model it holds: name it", s->path);
    if (asked && s->facts.model[0] && strcmp(asked, s->facts.model) != 0)
        return DSC_FAIL(DSC_E_INVALID, "'%s' is a checkpoint of model %s, not of %s", s->path, s->facts.model,
                        asked);
    if (asked)
        snprintf(s->facts.model, sizeof s->facts.model, "%s", asked);
    return DSC_OK;
}

static dsc_status check_data(const session *s, const dsc_dataset_info *info) {
    const dsc_model_facts *f = &s->facts;
    if (f->classes >= 0 && (f->classes != info->classes || f->height != info->h || f->width != info->w ||
                            f->channels != info->c))
        return DSC_FAIL(DSC_E_INVALID,
                        "the checkpoint is for %lldx%lldx%lld images and %lld classes, %s has %lldx%lldx%lld "
                        "and %lld",
                        (long long)f->height, (long long)f->width, (long long)f->channels,
                        (long long)f->classes, s->options.data, (long long)info->h, (long long)info->w,
                        (long long)info->c, (long long)info->classes);
    return DSC_OK;
}

static dsc_status open_data(session *s) {
    dsc_data_options data;
    dsc_loader_options loader;
    dsc_data_options_init(&data);
    data.seed = s->options.seed;
    data.image_size = s->options.image_size;
    if (data.image_size == 0 && s->facts.height > 0)
        data.image_size = s->facts.height;
    DSC_TRY(dsc_dataset_open(s->options.data, DSC_SPLIT_VAL, &data, &s->set));
    dsc_dataset_info info = dsc_dataset_get_info(s->set);
    DSC_TRY(check_data(s, &info));
    dsc_loader_options_init(&loader);
    loader.batch = s->options.batch_size;
    loader.rank = dsc_comm_rank(s->comm);
    loader.ranks = dsc_comm_size(s->comm);
    loader.threads = s->options.data_threads;
    loader.shuffle = 0;
    loader.augment = 0;
    loader.keep_last = 1;
    return dsc_loader_create(s->set, s->device, &loader, &s->loader);
}

static dsc_status make_local(session *s) {
    dsc_model_options model;
    DSC_TRY(open_data(s));
    dsc_dataset_info info = dsc_dataset_get_info(s->set);
    dsc_model_options_init(&model);
    DSC_TRY(
        dsc_zoo_create(s->device, s->facts.model, info.h, info.w, info.c, info.classes, &model, &s->model));
    DSC_TRY(dsc_exec_create(s->model, DSC_EXEC_EVAL, s->options.batch_size, &s->exec));
    if (s->reader) {
        DSC_TRY(dsc_statedict_check(s->model, s->facts.model, s->reader));
        DSC_TRY(dsc_statedict_read(s->model, s->queue, s->reader));
    }
    return DSC_OK;
}

static dsc_status run_session(session *s, const dsc_eval_options *options, dsc_eval_result *result) {
    dsc_status status = read_options(options, &s->options);
    if (status == DSC_OK)
        status = dsc_queue_create(s->device, &s->queue);
    if (status == DSC_OK && dsc_comm_rank(s->comm) == 0)
        status = find_file(s);
    DSC_TRY(dsc_comm_agree(s->comm, status));
    DSC_TRY(dsc_comm_use_queue(s->comm, s->queue));
    DSC_TRY(dsc_share_bytes(s->comm, s->queue, &s->facts, sizeof s->facts));
    DSC_TRY(dsc_comm_agree(s->comm, make_local(s)));
    DSC_TRY(dsc_share_model(s->comm, s->queue, s->model));
    return evaluate(s->comm, s->queue, s->exec, s->loader, result);
}

dsc_status dsc_eval_run(dsc_comm *comm, dsc_device *device, const dsc_eval_options *options,
                        dsc_eval_result *result) {
    session s = {.comm = comm, .device = device};
    memset(result, 0, sizeof *result);
    dsc_status status = run_session(&s, options, result);
    close_session(&s);
    return status;
}
