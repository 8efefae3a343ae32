/* Prediction: every rank takes its part of each batch of images; rank 0 reports the results in the images' order. */
#include "descent/predict.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/option.h"
#include "base/versioned.h"
#include "comm/table.h"
#include "data/image_files.h"
#include "descent/data.h"
#include "device/scope.h"
#include "train/predict_masks.h"
#include "train/share.h"
#include "train/statedict.h"
#include "train/stored_model.h"
#include "train/tally.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- options ---- */

#define AT(member) offsetof(dsc_predict_options, member)
static const dsc_option table[] = {
    {.name = "checkpoint",
     .kind = DSC_OPTION_STRING,
     .offset = AT(checkpoint),
     .placeholder = "FILE|DIR[:best|:latest|:STEP]",
     .default_text = "",
     .help =
         "a model file, or the directory of a run and which of its checkpoints; latest unless it is given",
     .group = "What to use"},
    {.name = "model",
     .kind = DSC_OPTION_STRING,
     .offset = AT(model),
     .placeholder = "NAME",
     .default_text = "what the checkpoint says",
     .help = "model of the zoo"},
    {.name = "image-size",
     .kind = DSC_OPTION_INT64,
     .offset = AT(image_size),
     .placeholder = "N",
     .range = "[0, 4096]",
     .default_text = "what the checkpoint says",
     .help = "side of the centre crop, or of the tiles of a mask, in pixels"},
    {.name = "top",
     .kind = DSC_OPTION_INT64,
     .offset = AT(top),
     .value = "5",
     .placeholder = "K",
     .range = "[1, 1e6]",
     .help = "classes that are told of each image, the most probable ones"},
    {.name = "masks",
     .kind = DSC_OPTION_STRING,
     .offset = AT(masks),
     .placeholder = "DIR",
     .default_text = "",
     .help = "write DIR/NAME.png for every image (DIR/NAME-001.png ... for the pages of a TIFF), with a "
             "model that "
             "predicts every pixel"},
    {.name = "overwrite",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(overwrite),
     .help = "replace masks that are there already"},
    {.name = "batch-size",
     .kind = DSC_OPTION_INT64,
     .offset = AT(batch_size),
     .value = "64",
     .placeholder = "N",
     .range = "[1, 1e9]",
     .help = "images, or tiles of them, per rank and batch",
     .group = "How to run"},
    {.name = "data-threads",
     .kind = DSC_OPTION_INT,
     .offset = AT(data_threads),
     .value = "1",
     .placeholder = "N",
     .range = "[1, 1024]",
     .help = "threads per rank that read and decode images"},
    {.name = NULL},
};
#undef AT

const dsc_option *dsc_predict_option_table(void) {
    return table;
}

void dsc_predict_options_init_sized(dsc_predict_options *options, size_t size) {
    dsc_predict_options defaults = {0};
    dsc_option_defaults(table, &defaults);
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}

/* ---- what a run needs ---- */

/* The result of one image, as ranks exchange it; in memory, the classes and their probabilities follow it. */
typedef struct record {
    int64_t state; /* 0: there is none; 1: read; 2: it cannot be read */
} record;

typedef struct session {
    dsc_predict_options options;
    dsc_comm *comm;
    dsc_device *device;
    dsc_queue *queue;
    int rank, ranks;
    dsc_path_list list;    /* the files, until the data set takes over the list */
    int64_t *pages;        /* with masks: the number of pages of each file in the list */
    dsc_st_reader *reader; /* rank 0 */
    dsc_model_facts facts;
    const char *const *names; /* rank 0: of the classes */
    int64_t name_count;
    dsc_dataset *set;
    dsc_model *model;
    dsc_exec *exec;
    dsc_loader *loader;
    int64_t batch, top;
    size_t record_bytes;
    float *logits;   /* [batch, classes] */
    int32_t *labels; /* [batch] */
    double *row;     /* [classes] */
    char *records;   /* [batch] of record_bytes */
    const char **top_names;
    dsc_prediction_function function;
    void *context;
} session;

static void close_session(session *s) {
    dsc_loader_destroy(&s->loader);
    dsc_exec_destroy(&s->exec);
    dsc_model_destroy(&s->model);
    dsc_dataset_close(&s->set);
    dsc_path_list_free(&s->list);
    dsc_memory_free(&s->pages);
    dsc_st_close(&s->reader);
    dsc_queue_destroy(&s->queue);
    dsc_memory_free(&s->names);
    dsc_memory_free(&s->logits);
    dsc_memory_free(&s->labels);
    dsc_memory_free(&s->row);
    dsc_memory_free(&s->records);
    dsc_memory_free(&s->top_names);
}

static dsc_status read_options(const dsc_predict_options *given, dsc_predict_options *out) {
    dsc_predict_options_init(out);
    DSC_TRY(dsc_versioned_read("predict", given, sizeof *out, out));
    if (!out->checkpoint)
        return DSC_FAIL(DSC_E_INVALID, "checkpoint may not be NULL");
    return dsc_option_check_values(table, out, "");
}

/* Rank 0: counts the classes of a file that does not say how many it has, by the tensor that has one output for each
 * of them. */
static dsc_status count_classes(session *s) {
    dsc_model *model = NULL;
    int64_t side, channels, classes;
    DSC_TRY(dsc_zoo_default_input(s->facts.model, &side, &channels, &classes));
    DSC_TRY(dsc_stored_model_create(s->device, &s->facts, side, side, channels, classes, &model));
    const dsc_state_entry *last = &dsc_model_state(model)[dsc_model_state_count(model) - 1];
    const dsc_st_tensor *t = dsc_st_find(s->reader, last->name);
    if (t && t->ndim >= 1)
        classes = t->dim[0];
    dsc_model_destroy(&model);
    s->facts.classes = classes;
    return DSC_OK;
}

/* Rank 0: fills in what the checkpoint does not say. */
static dsc_status complete_facts(session *s) {
    int64_t side, channels, classes;
    dsc_model_facts *f = &s->facts;
    if (f->classes < 1)
        DSC_TRY(count_classes(s));
    DSC_TRY(dsc_zoo_default_input(f->model, &side, &channels, &classes));
    if (f->channels < 1)
        f->channels = channels;
    if (f->height < 1)
        f->height = f->width = side;
    const int64_t own = f->height;
    if (s->options.image_size > 0)
        f->height = f->width = s->options.image_size;
    if (f->resize > 0) /* the same part of every image as in training */
        f->resize = llround((double)f->resize * (double)f->height / (double)own);
    return DSC_OK;
}

/* 1 for sets of small images, which are not cropped. Used for files that do not say how images are formed. */
static int is_small_set(const char *data) {
    static const char *const kinds[] = {"cifar10", "cifar100", "mnist", "synthetic"};
    size_t length = strcspn(data, ":");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strlen(kinds[i]) == length && strncmp(kinds[i], data, length) == 0)
            return 1;
    return 0;
}

/* Rank 0: everything that is read from the disk, without the images. */
static dsc_status read_all(session *s, const char *const *paths, int64_t count) {
    DSC_TRY(dsc_stored_model_open(s->options.checkpoint, s->options.model, &s->reader, &s->facts));
    DSC_TRY(dsc_model_file_class_names(s->reader, &s->names, &s->name_count));
    DSC_TRY(complete_facts(s));
    const int masks = s->options.masks != NULL;
    for (int64_t i = 0; i < count; i++)
        DSC_TRY(dsc_path_list_add(&s->list, paths[i], masks ? dsc_mask_job_takes : dsc_image_has_name,
                                  masks ? "images (" DSC_MASK_JOB_ENDINGS ")"
                                        : "images (" DSC_IMAGE_ENDINGS ")"));
    if (s->list.count == 0)
        return DSC_FAIL(DSC_E_INVALID, "no images to predict: name files or folders");
    return masks ? dsc_mask_job_count_pages(&s->list, &s->pages) : DSC_OK;
}

/* Gives all ranks the list of rank 0. */
static dsc_status share_list(session *s) {
    int64_t sizes[2] = {s->list.used, s->list.count};
    dsc_status status = DSC_OK;
    DSC_TRY(dsc_share_bytes(s->comm, s->queue, sizes, sizeof sizes));
    if (s->rank != 0)
        status = dsc_memory_grow(&s->list.text, &s->list.capacity, sizes[0], 1);
    if (s->rank != 0 && s->options.masks && status == DSC_OK)
        status = dsc_memory_alloc(sizes[1], sizeof *s->pages, &s->pages);
    DSC_TRY(dsc_comm_agree(s->comm, status));
    s->list.used = sizes[0];
    s->list.count = sizes[1];
    if (s->options.masks)
        DSC_TRY(dsc_share_bytes(s->comm, s->queue, s->pages, (size_t)sizes[1] * sizeof *s->pages));
    return dsc_share_bytes(s->comm, s->queue, s->list.text, (size_t)sizes[0]);
}

static dsc_image_form form_of(const dsc_model_facts *f) {
    dsc_image_form form = {.size = f->height, .channels = (int)f->channels};
    form.side = is_small_set(f->data) ? f->height : dsc_image_evaluation_side(f->height);
    if (f->resize > 0)
        form.side = f->resize;
    for (int c = 0; c < form.channels; c++) {
        form.mean[c] = f->has_normalisation ? f->mean[c] : dsc_image_mean[c];
        form.std[c] = f->has_normalisation ? f->std[c] : dsc_image_std[c];
    }
    return form;
}

/* Models of tokens, of images and of pixels are used in different ways. */
static dsc_status check_kind(const session *s) {
    const dsc_model_facts *f = &s->facts;
    const int64_t positions = dsc_model_positions(s->model);
    const int masks = s->options.masks != NULL;
    if (dsc_model_takes_tokens(s->model))
        return DSC_FAIL(DSC_E_INVALID, "model %s is one of text, not of images: use descent generate",
                        f->model);
    if (positions > 1 && !masks)
        return DSC_FAIL(DSC_E_INVALID,
                        "model %s predicts every pixel: name a folder for masks, into which they are written "
                        "(--masks DIR)",
                        f->model);
    if (positions == 1 && masks)
        return DSC_FAIL(DSC_E_INVALID,
                        "masks '%s': model %s has one prediction for a whole image; leave --masks out",
                        s->options.masks, f->model);
    const int64_t margin = dsc_zoo_margin(f->model);
    if (masks && positions != (f->height - 2 * margin) * (f->width - 2 * margin))
        return DSC_FAIL(DSC_E_UNSUPPORTED,
                        "model %s predicts %lld of the %lld x %lld pixels of its input: masks need all of "
                        "them but a margin that the model names (dsc_zoo_entry.margin)",
                        f->model, (long long)positions, (long long)f->width, (long long)f->height);
    if ((f->height != f->width && !masks) || (f->channels != 1 && f->channels != 3))
        return DSC_FAIL(
            DSC_E_UNSUPPORTED,
            "the model of '%s' takes %lldx%lldx%lld numbers: images are square and have 1 or 3 channels",
            s->options.checkpoint, (long long)f->height, (long long)f->width, (long long)f->channels);
    return DSC_OK;
}

static dsc_status make_model(session *s) {
    const dsc_model_facts *f = &s->facts;
    DSC_TRY(dsc_stored_model_create(s->device, f, f->height, f->width, f->channels, f->classes, &s->model));
    DSC_TRY(check_kind(s));
    if (!s->reader)
        return DSC_OK;
    if (!s->options.masks) /* masks are made of whole images, which are not cropped */
        dsc_stored_model_note_form(f, is_small_set(f->data) ? f->data : "image folders");
    DSC_TRY(dsc_statedict_check(s->model, f->model, s->reader));
    return dsc_statedict_read(s->model, s->queue, s->reader);
}

static dsc_status make_local(session *s) {
    const int64_t classes = s->facts.classes, count = s->list.count;
    const dsc_image_form form = form_of(&s->facts);
    dsc_loader_options o;
    int64_t part = (count + s->ranks - 1) / s->ranks;
    s->batch = s->options.batch_size < part ? s->options.batch_size : part;
    s->top = s->options.top < classes ? s->options.top : classes;
    s->record_bytes = sizeof(record) + (size_t)s->top * (sizeof(int64_t) + sizeof(double));
    DSC_TRY(dsc_image_files_open(&s->list, &form, &s->set));
    dsc_loader_options_init(&o);
    o.batch = s->batch;
    o.rank = s->rank;
    o.ranks = s->ranks;
    o.threads = s->options.data_threads;
    o.shuffle = 0;
    o.augment = 0;
    o.keep_last = 1;
    o.skip_bad = 1;
    DSC_TRY(dsc_loader_create(s->set, s->device, &o, &s->loader));
    DSC_TRY(dsc_exec_create(s->model, DSC_EXEC_EVAL, s->batch, &s->exec));
    DSC_TRY(dsc_memory_alloc(s->batch * classes, sizeof *s->logits, &s->logits));
    DSC_TRY(dsc_memory_alloc(s->batch, sizeof *s->labels, &s->labels));
    DSC_TRY(dsc_memory_alloc(classes, sizeof *s->row, &s->row));
    DSC_TRY(dsc_memory_alloc(s->top, sizeof *s->top_names, &s->top_names));
    return dsc_memory_alloc(s->batch, s->record_bytes, &s->records);
}

/* ---- a batch ---- */

static int64_t *classes_of(char *at) {
    return (int64_t *)(void *)(at + sizeof(record));
}

static double *probabilities_of(const session *s, char *at) {
    return (double *)(void *)(at + sizeof(record) + (size_t)s->top * sizeof(int64_t));
}

/* Fills in the most probable classes of one image; of equal ones the lower comes first. */
static void fill_record(session *s, const float *logits, char *at) {
    int64_t *classes = classes_of(at), count = 0;
    double *probabilities = probabilities_of(s, at);
    dsc_softmax(logits, s->facts.classes, s->row);
    for (int64_t c = 0; c < s->facts.classes; c++) {
        if (count == s->top && !(s->row[c] > probabilities[s->top - 1]))
            continue;
        int64_t place = count < s->top ? count++ : s->top - 1;
        for (; place > 0 && s->row[c] > probabilities[place - 1]; place--) {
            classes[place] = classes[place - 1];
            probabilities[place] = probabilities[place - 1];
        }
        classes[place] = c;
        probabilities[place] = s->row[c];
    }
}

/* Predicts this rank's part of a batch; *first is the index of the part's first image. */
static dsc_status predict_part(session *s, int64_t *first) {
    dsc_batch batch;
    DSC_TRY(dsc_loader_next(s->loader, s->queue, &batch));
    DSC_TRY(dsc_exec_forward(s->exec, s->queue, &batch.x));
    const dsc_tensor *logits = dsc_exec_logits(s->exec);
    DSC_TRY(dsc_tensor_download(s->queue, logits, dsc_tensor_bytes(logits), s->logits));
    DSC_TRY(dsc_tensor_download(s->queue, &batch.labels, dsc_tensor_bytes(&batch.labels), s->labels));
    DSC_TRY(dsc_queue_sync(s->queue));
    *first = batch.position + s->rank * s->batch;
    for (int64_t i = 0; i < s->batch; i++) {
        char *at = s->records + (size_t)i * s->record_bytes;
        int exists = *first + i < dsc_dataset_get_info(s->set).count;
        ((record *)(void *)at)->state = !exists ? 0 : s->labels[i] < 0 ? 2 : 1;
        if (exists && s->labels[i] >= 0)
            fill_record(s, s->logits + i * s->facts.classes, at);
    }
    return DSC_OK;
}

/* The largest number of images that a rank could not read. */
static int64_t most_bad(const session *s, const char *all) {
    int64_t most = 0;
    for (int r = 0; r < s->ranks; r++) {
        int64_t bad = 0;
        for (int64_t i = 0; i < s->batch; i++) {
            const char *at = all + (size_t)(r * s->batch + i) * s->record_bytes;
            bad += ((const record *)(const void *)at)->state == 2;
        }
        most = bad > most ? bad : most;
    }
    return most;
}

/* Every rank gets the messages of all ranks, `count` places for each of them. Collective. */
static dsc_status share_messages(session *s, int64_t count, dsc_bad_sample **out) {
    dsc_bad_sample *own = NULL;
    void *all = NULL;
    dsc_status status = dsc_memory_alloc(count, sizeof *own, &own);
    if (status == DSC_OK)
        dsc_loader_take_bad(s->loader, own, count);
    status = dsc_share_gather(s->comm, s->queue, status, own, (size_t)count * sizeof *own, &all);
    dsc_memory_free(&own);
    *out = all;
    return status;
}

/* Rank 0: reports one image to the caller. */
static void tell(session *s, int64_t index, char *at, const char *error) {
    dsc_prediction p = {.file = dsc_image_files_path(s->set, index), .error = error};
    if (!error) {
        p.count = s->top;
        p.classes = classes_of(at);
        p.probabilities = probabilities_of(s, at);
        for (int64_t i = 0; i < s->top; i++) {
            p.names = s->name_count == s->facts.classes ? s->top_names : NULL;
            s->top_names[i] = p.names ? s->names[p.classes[i]] : NULL;
        }
    }
    s->function(s->context, &p);
}

/* Reports a whole batch on rank 0, and counts its images on all ranks. */
static void tell_all(session *s, int64_t first, char *all, const dsc_bad_sample *messages, int64_t room,
                     dsc_predict_result *result) {
    for (int r = 0; r < s->ranks; r++) {
        const dsc_bad_sample *message = messages ? messages + r * room : NULL;
        for (int64_t i = 0; i < s->batch; i++) {
            char *at = all + (size_t)(r * s->batch + i) * s->record_bytes;
            int64_t state = ((record *)(void *)at)->state;
            const char *error = state == 2 && message ? (message++)->message : NULL;
            result->images += state == 1;
            result->bad_images += state == 2;
            if (state != 0 && s->rank == 0 && s->function)
                tell(s, first + r * s->batch + i, at, error);
        }
    }
}

/* Predicts one batch on all ranks. Collective. */
static dsc_status predict_batch(session *s, dsc_predict_result *result) {
    int64_t first = 0;
    void *all = NULL;
    dsc_bad_sample *messages = NULL;
    dsc_status status = predict_part(s, &first);
    DSC_TRY(
        dsc_share_gather(s->comm, s->queue, status, s->records, (size_t)s->batch * s->record_bytes, &all));
    int64_t bad = most_bad(s, all);
    if (bad > 0)
        status = share_messages(s, bad, &messages);
    if (status == DSC_OK)
        tell_all(s, first - s->rank * s->batch, all, messages, bad, result);
    dsc_memory_free(&messages);
    dsc_memory_free(&all);
    return status;
}

/* ---- a run ---- */

static dsc_status predict_masks(session *s, dsc_predict_result *result) {
    const dsc_image_form form = form_of(&s->facts);
    dsc_mask_job job = {.comm = s->comm,
                        .queue = s->queue,
                        .model = s->model,
                        .list = &s->list,
                        .pages = s->pages,
                        .folder = s->options.masks,
                        .overwrite = s->options.overwrite,
                        .batch = s->options.batch_size,
                        .margin = dsc_zoo_margin(s->facts.model),
                        .names = s->name_count == dsc_output_classes(s->facts.classes) ? s->names : NULL,
                        .function = s->function,
                        .context = s->context};
    dsc_normalise_init(&job.normalise, form.channels, form.mean, form.std);
    return dsc_predict_masks(&job, result);
}

static dsc_status run_session(session *s, const dsc_predict_options *options, const char *const *paths,
                              int64_t count, dsc_predict_result *result) {
    dsc_status status = read_options(options, &s->options);
    if (status == DSC_OK)
        status = dsc_queue_create(s->device, &s->queue);
    if (status == DSC_OK && s->rank == 0)
        status = read_all(s, paths, count);
    DSC_TRY(dsc_comm_agree(s->comm, status));
    DSC_TRY(dsc_comm_use_queue(s->comm, s->queue));
    DSC_TRY(dsc_share_bytes(s->comm, s->queue, &s->facts, sizeof s->facts));
    DSC_TRY(share_list(s));
    DSC_TRY(dsc_comm_agree(s->comm, make_model(s)));
    DSC_TRY(dsc_share_model(s->comm, s->queue, s->model));
    if (s->options.masks)
        return predict_masks(s, result);
    DSC_TRY(dsc_comm_agree(s->comm, make_local(s)));
    const double began = dsc_clock_now();
    for (int64_t i = 0; i < dsc_loader_batches(s->loader); i++)
        DSC_TRY(predict_batch(s, result));
    result->seconds = dsc_clock_now() - began;
    return DSC_OK;
}

dsc_status dsc_predict_run(dsc_comm *comm, dsc_device *device, const dsc_predict_options *options,
                           const char *const *paths, int64_t count, dsc_prediction_function function,
                           void *context, dsc_predict_result *result) {
    session s = {.comm = comm, .device = device, .function = function, .context = context};
    dsc_queue *before = dsc_comm_queue(comm);
    dsc_predict_result own = {0};
    if (result)
        DSC_TRY(dsc_versioned_check("dsc_predict_result", result, sizeof own));
    s.rank = dsc_comm_rank(comm);
    s.ranks = dsc_comm_size(comm);
    dsc_status status = run_session(&s, options, paths, count, &own);
    dsc_comm_return_queue(comm, before);
    close_session(&s);
    if (result)
        dsc_versioned_write(&own, result);
    return status;
}
