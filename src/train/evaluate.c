/* Evaluation: every rank takes its part of the validation set, each image once; sums are added over all
 * ranks. */
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/versioned.h"
#include "comm/table.h"
#include "data/dataset.h"
#include "descent/log.h"
#include "device/scope.h"
#include "model/exec.h"
#include "train/model_file.h"
#include "train/share.h"
#include "train/statedict.h"
#include "train/stored_model.h"
#include "train/tally.h"
#include "train/trainer_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* All batches of one pass over the loader; `tally` may be NULL. `place` is where this rank's part of a batch begins. */
static dsc_status pass_over(dsc_queue *queue, dsc_exec *exec, dsc_loader *loader, int64_t place,
                            dsc_tally *tally) {
    DSC_TRY(dsc_exec_clear_stats(exec, queue));
    for (int64_t i = 0; i < dsc_loader_batches(loader); i++) {
        dsc_batch batch;
        DSC_TRY(dsc_loader_next(loader, queue, &batch));
        DSC_TRY(dsc_exec_forward(exec, queue, &batch.x));
        DSC_TRY(dsc_exec_loss(exec, queue, &batch.labels, 0));
        if (tally)
            DSC_TRY(
                dsc_tally_add(tally, queue, batch.position + place, dsc_exec_logits(exec), &batch.labels));
    }
    return DSC_OK;
}

/* One pass over the loaders of all ranks. Images that are missing in the sums could not be read. Collective. */
static dsc_status evaluate(dsc_comm *comm, dsc_queue *queue, dsc_exec *exec, dsc_loader *loader,
                           dsc_bad_images *bad, dsc_tally *tally, dsc_eval_result *result) {
    double begun = dsc_clock_now(), sums[4];
    int64_t found;
    DSC_TRY(pass_over(queue, exec, loader, dsc_comm_rank(comm) * exec->batch, tally));
    dsc_tensor stats = *dsc_exec_stats(exec);
    DSC_TRY(dsc_queue_sync(queue));
    DSC_TRY(dsc_comm_allreduce(comm, DSC_TRAFFIC_OTHER, DSC_SUM, &stats));
    DSC_TRY(dsc_tensor_download(queue, &stats, sizeof sums, sums));
    DSC_TRY(dsc_queue_sync(queue));
    /* Where samples have many labels, some of which may be missing, all samples were read. */
    const int64_t positions = dsc_model_positions(dsc_exec_model(exec));
    result->bad_images = positions > 1 ? 0 : bad->count - (int64_t)sums[3];
    if (result->bad_images > 0) {
        DSC_TRY(dsc_comm_agree(comm, dsc_bad_images_take(bad, loader, &found)));
        DSC_TRY(dsc_bad_images_name(bad, comm, queue));
    }
    if (!(sums[3] > 0) && positions > 1)
        return DSC_FAIL(DSC_E_INVALID,
                        "none of the %lld validation samples has a label: use more data, or mask more tokens",
                        (long long)bad->count);
    if (!(sums[3] > 0))
        return DSC_FAIL(DSC_E_FORMAT, "none of the %lld validation images can be read; the first: %s",
                        (long long)bad->count, bad->first);
    result->images = positions > 1 ? bad->count : (int64_t)sums[3];
    result->positions = positions;
    result->labels = (int64_t)sums[3];
    if (dsc_model_takes_tokens(dsc_exec_model(exec)))
        result->tokens = positions;
    result->loss = sums[0] / sums[3];
    result->top1 = sums[1] / sums[3];
    result->top5 = sums[2] / sums[3];
    result->seconds = dsc_clock_now() - begun;
    return DSC_OK;
}

/* Fills in the parts of a result that only the data set knows. */
static void note_data(const dsc_dataset *data, dsc_eval_result *result) {
    result->mask = data->mask;
    result->pictures = data->pictures;
    result->bytes_per_token =
        data->mask > 0 ? 0 : data->bytes_per_token; /* masked tokens are not all of the text */
}

/* How all of a data set is evaluated. */
typedef struct job {
    dsc_loader_options loader; /* batch and threads */
    const dsc_loss *loss;      /* NULL: the model's own */
    const char *bad_images;
    dsc_eval_report **report; /* may be NULL */
} job;

/* Evaluates all of `data`, each sample once, with an executor and a loader of its own. Collective. */
static dsc_status evaluate_set(dsc_comm *comm, dsc_queue *queue, dsc_model *model, dsc_dataset *data,
                               const job *how, dsc_eval_result *result) {
    dsc_loader_options o = how->loader;
    dsc_eval_report **report = how->report;
    dsc_bad_images bad;
    dsc_exec *exec = NULL;
    dsc_loader *loader = NULL;
    dsc_tally *tally = NULL;
    int64_t count = dsc_dataset_get_info(data).count;
    o.batch = o.batch < count ? o.batch : count;
    o.rank = dsc_comm_rank(comm);
    o.ranks = dsc_comm_size(comm);
    o.shuffle = 0;
    o.augment = 0;
    o.keep_last = 1;
    o.skip_bad = 1;
    dsc_bad_images_init(&bad, "validation", count, how->bad_images);
    dsc_status status = dsc_loader_create(data, dsc_model_device(model), &o, &loader);
    if (status == DSC_OK)
        status = dsc_exec_create(model, DSC_EXEC_EVAL, o.batch, &exec);
    if (status == DSC_OK && how->loss)
        status = dsc_exec_set_loss(exec, *how->loss);
    if (status == DSC_OK && report)
        status =
            dsc_tally_create(data, dsc_model_classes(model), dsc_model_positions(model), o.batch, &tally);
    status = dsc_comm_agree(comm, status);
    if (status == DSC_OK)
        status = evaluate(comm, queue, exec, loader, &bad, tally, result);
    note_data(data, result);
    if (status == DSC_OK)
        status = dsc_bad_images_check(&bad, result->bad_images, "");
    if (status == DSC_OK && report)
        status = dsc_tally_report(tally, comm, queue, report);
    dsc_tally_destroy(&tally);
    dsc_bad_images_free(&bad);
    dsc_exec_destroy(&exec);
    dsc_loader_destroy(&loader);
    return status;
}

static dsc_status evaluate_model(dsc_comm *comm, dsc_queue *queue, dsc_model *model, dsc_dataset *data,
                                 int64_t batch, dsc_eval_result *result) {
    job how = {.loss = NULL};
    dsc_loader_options_init(&how.loader);
    how.loader.batch = batch;
    DSC_TRY(dsc_comm_use_queue(comm, queue));
    return evaluate_set(comm, queue, model, data, &how, result);
}

dsc_status dsc_model_evaluate(dsc_comm *comm, dsc_model *model, dsc_dataset *data, int64_t batch,
                              dsc_eval_result *result) {
    dsc_queue *before = dsc_comm_queue(comm), *queue = NULL;
    dsc_eval_result own = {0};
    dsc_status status = dsc_versioned_check("dsc_eval_result", result, sizeof own);
    if (status == DSC_OK && batch < 1)
        status =
            DSC_FAIL(DSC_E_INVALID, "evaluation with batch size %lld: must be 1 at least", (long long)batch);
    if (status == DSC_OK)
        status = dsc_queue_create(dsc_model_device(model), &queue);
    status = dsc_comm_agree(comm, status);
    if (status == DSC_OK)
        status = evaluate_model(comm, queue, model, data, batch, &own);
    dsc_versioned_write(&own, result);
    dsc_comm_return_queue(comm, before);
    dsc_queue_destroy(&queue);
    return status;
}

/* ---- inside a run ---- */

/* `data` NULL: the validation set, with the executor that was planned for it. */
static dsc_status evaluate_swapped(dsc_trainer *t, dsc_dataset *data, dsc_eval_result *result) {
    dsc_status status;
    DSC_TRY(dsc_trainer_swap_in(t));
    if (!data) {
        status = evaluate(t->comm, t->queue, t->val_exec, t->val_loader, &t->bad.val, NULL, result);
        note_data(t->val_set, result);
    } else {
        job how = {.loss = &t->options.loss, .bad_images = t->options.bad_images};
        dsc_loader_options_init(&how.loader);
        how.loader.batch = t->options.val_batch_size > 0 ? t->options.val_batch_size : t->options.batch_size;
        how.loader.threads = t->options.data_threads;
        status = evaluate_set(t->comm, t->queue, t->model, data, &how, result);
    }
    dsc_status swapped = dsc_trainer_swap_out(t); /* after a failure, too: training can go on */
    return status == DSC_OK ? swapped : status;
}

dsc_status dsc_trainer_evaluate_mean(dsc_trainer *t, dsc_eval_result *result) {
    return evaluate_swapped(t, NULL, result);
}

dsc_status dsc_trainer_evaluate_ema(dsc_trainer *t, dsc_eval_result *result) {
    DSC_TRY(dsc_ema_swap_in(t));
    dsc_status status = evaluate(t->comm, t->queue, t->val_exec, t->val_loader, &t->bad.val, NULL, result);
    dsc_status swapped = dsc_ema_swap_out(t); /* after a failure, too: training can go on */
    return status == DSC_OK ? swapped : status;
}

dsc_status dsc_trainer_evaluate(dsc_trainer *trainer, dsc_dataset *data, dsc_eval_result *result) {
    dsc_eval_result own = {0};
    DSC_TRY(dsc_versioned_check("dsc_eval_result", result, sizeof own));
    if (!data && !trainer->val_exec)
        data = trainer->val_set;
    if (!data && !trainer->val_exec)
        return DSC_FAIL(DSC_E_INVALID, "nothing to evaluate on: this trainer has no validation set");
    DSC_ON_DEVICE(trainer->device);
    DSC_TRY(dsc_trainer_finish(trainer, NULL));
    DSC_TRY(dsc_trainer_note_loss(trainer, evaluate_swapped(trainer, data, &own)));
    dsc_versioned_write(&own, result);
    return DSC_OK;
}

/* Top-1 of this rank's own model. */
static dsc_status evaluate_own(dsc_trainer *t, double *top1) {
    double sums[4];
    DSC_TRY(dsc_consensus_swap_in(t->consensus, t->queue, DSC_VALUES_OWN));
    DSC_TRY(pass_over(t->queue, t->val_exec, t->whole_loader, 0, NULL));
    dsc_loader_take_bad(t->whole_loader, NULL, 0); /* the evaluation of the mean has counted them */
    DSC_TRY(dsc_tensor_download(t->queue, dsc_exec_stats(t->val_exec), sizeof sums, sums));
    DSC_TRY(dsc_queue_sync(t->queue));
    DSC_TRY(dsc_consensus_swap_out(t->consensus, t->queue));
    if (!(sums[3] > 0))
        return DSC_FAIL(DSC_E_FORMAT, "no validation image can be read");
    *top1 = sums[1] / sums[3];
    return DSC_OK;
}

static dsc_ranks_result summarise(const double *top1, int ranks) {
    dsc_ranks_result r = {.rank0 = top1[0], .min = top1[0], .max = top1[0]};
    double sum = 0, squares = 0;
    for (int i = 0; i < ranks; i++) {
        sum += top1[i];
        r.min = fmin(r.min, top1[i]);
        r.max = fmax(r.max, top1[i]);
    }
    r.mean = sum / ranks;
    for (int i = 0; i < ranks; i++)
        squares += (top1[i] - r.mean) * (top1[i] - r.mean);
    r.std = sqrt(squares / ranks);
    return r;
}

dsc_status dsc_trainer_evaluate_ranks(dsc_trainer *t, dsc_ranks_result *result) {
    double own = 0;
    void *all;
    dsc_status status = evaluate_own(t, &own);
    DSC_TRY(dsc_share_gather(t->comm, t->queue, status, &own, sizeof own, &all));
    *result = summarise(all, t->ranks);
    dsc_memory_free(&all);
    return DSC_OK;
}

/* ---- of a file ---- */

/* Everything dsc_eval_run makes. */
typedef struct session {
    dsc_eval_options options;
    dsc_comm *comm;
    dsc_device *device;
    dsc_st_reader *reader; /* rank 0 */
    dsc_model_facts facts;
    dsc_queue *queue;
    dsc_dataset *set;
    dsc_model *model;
} session;

static void close_session(session *s) {
    dsc_model_destroy(&s->model);
    dsc_dataset_close(&s->set);
    dsc_queue_destroy(&s->queue);
    dsc_st_close(&s->reader);
}

static dsc_status read_options(const dsc_eval_options *given, dsc_eval_options *out) {
    dsc_eval_options_init(out);
    DSC_TRY(dsc_versioned_read("eval", given, sizeof *out, out));
    if (out->report)
        *out->report = NULL;
    if (!out->checkpoint)
        return DSC_FAIL(DSC_E_INVALID, "checkpoint may not be NULL");
    if (out->batch_size < 1 || out->data_threads < 1)
        return DSC_FAIL(DSC_E_INVALID, "batch size %lld and data threads %d: both must be 1 at least",
                        (long long)out->batch_size, out->data_threads);
    return dsc_bad_images_check_rule(out->bad_images, "");
}

/* Refuses options of images for a model of sequences, and the reverse. */
static dsc_status check_form(const dsc_eval_options *o, const char *model) {
    const int tokens = dsc_zoo_takes_tokens(model);
    if (o->image_size > 0 && tokens)
        return DSC_FAIL(DSC_E_INVALID, "image-size %lld: model %s is one of sequences: use context",
                        (long long)o->image_size, model);
    if (o->context > 0 && !tokens)
        return DSC_FAIL(DSC_E_INVALID,
                        "context %lld: model %s is one of images, not of sequences; leave it out",
                        (long long)o->context, model);
    if (o->vocabulary > 0 && !tokens)
        return DSC_FAIL(DSC_E_INVALID, "vocabulary %lld: model %s has no tokens; leave it out",
                        (long long)o->vocabulary, model);
    return DSC_OK;
}

static int same_kind(const char *a, const char *b) {
    size_t length = strcspn(a, ":");
    return length == strcspn(b, ":") && strncmp(a, b, length) == 0;
}

/* The data to evaluate on: those of the options, of the checkpoint, or synthetic ones, in this order. */
static void choose_data(session *s) {
    dsc_eval_options *o = &s->options;
    const char *stored = s->facts.data;
    if (o->data && stored[0] && !same_kind(o->data, stored) && dsc_comm_rank(s->comm) == 0)
        dsc_log(DSC_LOG_WARNING, "the checkpoint was trained on %s, and is evaluated on %s", stored, o->data);
    const int own = !o->data || strcmp(o->data, stored) == 0;
    if (o->val_split < 0)
        o->val_split = own ? s->facts.val_split : 0;
    if (!o->data)
        o->data = stored[0] ? stored : "synthetic";
    if (o->seed == DSC_SEED_OF_CHECKPOINT)
        o->seed = s->facts.has_seed ? s->facts.seed : 42;
}

/* Images may have another size, if that is asked for: whether the model can be made for it, with tensors of the same
 * shapes, is checked later. */
static dsc_status check_data(const session *s, const dsc_dataset_info *info) {
    const dsc_model_facts *f = &s->facts;
    const int64_t asked = s->set->whole_numbers ? s->options.context : s->options.image_size;
    const int sized = (f->height == info->h && f->width == info->w) || asked > 0;
    if (f->classes < 0 ||
        (dsc_output_classes(f->classes) == info->classes && sized && f->channels == info->c))
        return DSC_OK;
    char there[DSC_FORM_TEXT], here[DSC_FORM_TEXT];
    const int64_t more = f->classes - info->classes; /* 1, -1: the token of the mask */
    const int masks = f->of_tables && s->set->mask > 0 && s->set->options.mask_token < 0;
    const int tokens = dsc_zoo_takes_tokens(f->model);
    const char *remedy = "use data like those of its training";
    if (tokens && s->set->whole_numbers)
        remedy = more == -1 && masks
                     ? "name the token that masks others (mask-token; 103 in the vocabulary of BERT's files)"
                 : more == 1 || more == -1 ? "do --mask or the vocabulary differ?"
                                           : "use data with the same vocabulary (or name it: vocabulary)";
    else if (!sized && !tokens && !s->set->whole_numbers)
        remedy = "use data like those of its training, or image folders, which are resized";
    return DSC_FAIL(
        DSC_E_INVALID, "the checkpoint is for %s, %s has %s: %s",
        dsc_form_text(f->height, f->width, f->channels, f->classes, tokens, there), s->options.data,
        dsc_form_text(info->h, info->w, info->c, info->classes, s->set->whole_numbers, here), remedy);
}

/* Rank 0: warns where images differ from those of the training. */
static void compare_form(const session *s) {
    const dsc_model_facts *f = &s->facts;
    int differ = 0;
    if (s->set->resize > 0)
        dsc_stored_model_note_form(f, "image folders");
    for (int64_t c = 0; f->has_normalisation && s->set->std[0] > 0 && c < s->set->info.c; c++)
        differ |= fabs(f->mean[c] - s->set->mean[c]) > 1e-3 || fabs(f->std[c] - s->set->std[c]) > 1e-3;
    if (differ)
        dsc_log(DSC_LOG_WARNING,
                "the images of %s have mean %.3g and standard deviation %.3g removed, those of the "
                "training had %.3g and %.3g (first channel): expect a lower accuracy",
                s->options.data, s->set->mean[0], s->set->std[0], f->mean[0], f->std[0]);
}

/* Rank 0: warns where a class is another value of the masks than in training. */
static dsc_status compare_values(const session *s) {
    const char *const *names;
    int64_t count, c = 0;
    if (s->set->pictures == 0)
        return DSC_OK;
    DSC_TRY(dsc_model_file_class_names(s->reader, &names, &count));
    while (c < count && strcmp(names[c], dsc_dataset_class_name(s->set, c)) == 0)
        c++;
    if (c < count)
        dsc_log(DSC_LOG_WARNING, "class %lld is the value %s in the masks of %s, and was %s in training",
                (long long)c, dsc_dataset_class_name(s->set, c), s->options.data, names[c]);
    dsc_memory_free(&names);
    return DSC_OK;
}

/* Fills in the form of sequences: as the options say, or else the checkpoint. */
static dsc_status form_sequences(const session *s, dsc_data_options *data) {
    const dsc_eval_options *o = &s->options;
    const dsc_model_facts *f = &s->facts;
    data->context = o->context > 0 ? o->context : data->image_size;
    data->vocabulary = o->vocabulary > 0 ? o->vocabulary : f->vocabulary > 0 ? f->vocabulary : 0;
    data->mask = o->mask >= 0 ? o->mask : f->mask;
    data->mask_token = o->mask_token >= 0 ? o->mask_token : f->mask > 0 ? f->mask_token : -1;
    if (o->mask_token >= 0 && data->mask == 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "mask-token %lld: no tokens are masked; leave it out, or mask some (mask 0.15)",
                        (long long)o->mask_token);
    return DSC_OK;
}

static dsc_status open_data(session *s) {
    dsc_data_options data;
    dsc_data_options_init(&data);
    data.seed = s->options.seed;
    data.image_size = s->options.image_size;
    data.val_split = s->options.val_split;
    if (data.image_size == 0 && s->facts.height > 0)
        data.image_size = s->facts.height;
    if (data.image_size == 0) { /* a file that does not say it, as those of PyTorch do not */
        int64_t channels, classes;
        DSC_TRY(dsc_zoo_default_input(s->facts.model, &data.image_size, &channels, &classes));
    }
    const dsc_model_facts *f = &s->facts;
    DSC_TRY(form_sequences(s, &data));
    data.margin = dsc_zoo_margin(f->model);
    if (f->resize > 0 && data.image_size == f->height) /* as the model saw images in training */
        data.resize = f->resize;
    double mean[3], std[3];
    for (int c = 0; c < 3; c++) { /* grey images have one value for all */
        mean[c] = f->mean[f->channels == 3 ? c : 0];
        std[c] = f->std[f->channels == 3 ? c : 0];
    }
    if (f->has_normalisation && (f->channels == 1 || f->channels == 3)) {
        data.mean = mean;
        data.std = std;
    }
    dsc_status status = dsc_dataset_open(s->options.data, DSC_SPLIT_VAL, &data, &s->set);
    if (status != DSC_OK && s->options.data == s->facts.data)
        dsc_error_prefix(status, "data '%s', as the checkpoint says (name it, if it lies elsewhere now)",
                         s->facts.data);
    DSC_TRY(status);
    dsc_dataset_info info = dsc_dataset_get_info(s->set);
    DSC_TRY(check_data(s, &info));
    if (!s->reader)
        return DSC_OK;
    compare_form(s);
    DSC_TRY(compare_values(s));
    if (s->options.vocabulary == 0)
        DSC_TRY(dsc_stored_model_check_vocabulary(f, dsc_dataset_tokenizer(s->set), s->options.data));
    return dsc_model_file_check_tokenizer(s->reader, dsc_dataset_tokenizer(s->set), s->options.data);
}

static dsc_status make_local(session *s) {
    DSC_TRY(open_data(s));
    dsc_dataset_info info = dsc_dataset_get_info(s->set);
    /* Of a file that does not say how many outputs its model has, the tensors are compared below. */
    const int64_t outputs = s->facts.classes == 1 ? 1 : info.classes;
    DSC_TRY(dsc_stored_model_create(s->device, &s->facts, info.h, info.w, info.c, outputs, &s->model));
    if (s->set->whole_numbers && s->set->mask == 0 && dsc_graph_sees_ahead(s->model))
        return DSC_FAIL(DSC_E_INVALID,
                        "model %s has layers that may see the next token, which it would have to predict: "
                        "evaluate it on masked tokens (mask 0.15)",
                        s->facts.model);
    if (s->reader) {
        DSC_TRY(dsc_statedict_check_shorter(s->model, s->facts.model, s->reader));
        DSC_TRY(dsc_statedict_read(s->model, s->queue, s->reader));
    }
    return DSC_OK;
}

/* The batch size that was asked for, or as many samples as memory will hold, at least one. Activations of a model of
 * pixels are as large as its input, times the channels, so a batch of tiles has at most 2^20 pixels. A language model
 * has a logit for every position and token, so a batch has at most 2^28 logits, 1 GB. */
static int64_t limit_batch(const session *s) {
    const int64_t batch_pixels = 1 << 20, pixels = s->set->info.h * s->set->info.w;
    const int64_t batch_logits = 1 << 28,
                  logits = dsc_model_positions(s->model) * dsc_model_classes(s->model);
    int64_t batch = s->options.batch_size;
    if (s->set->pictures > 0 && batch > batch_pixels / pixels)
        batch = batch_pixels / pixels;
    if (batch > batch_logits / logits)
        batch = batch_logits / logits;
    batch = batch > 1 ? batch : 1;
    if (batch < s->options.batch_size && s->reader)
        dsc_log(DSC_LOG_INFO, "batches of %lld samples instead of %lld, to save memory", (long long)batch,
                (long long)s->options.batch_size);
    return batch;
}

static dsc_status run_session(session *s, const dsc_eval_options *options, dsc_eval_result *result) {
    dsc_status status = read_options(options, &s->options);
    if (status == DSC_OK)
        status = dsc_queue_create(s->device, &s->queue);
    if (status == DSC_OK && dsc_comm_rank(s->comm) == 0)
        status = dsc_stored_model_open(s->options.checkpoint, s->options.model, &s->reader, &s->facts);
    if (status == DSC_OK && s->reader)
        status = check_form(&s->options, s->facts.model);
    if (status == DSC_OK && s->reader)
        status = dsc_stored_model_read_tables(s->device, s->reader, &s->facts);
    DSC_TRY(dsc_comm_agree(s->comm, status));
    DSC_TRY(dsc_comm_use_queue(s->comm, s->queue));
    DSC_TRY(dsc_share_bytes(s->comm, s->queue, &s->facts, sizeof s->facts));
    choose_data(s);
    snprintf(result->data, sizeof result->data, "%s", s->options.data);
    DSC_TRY(dsc_comm_agree(s->comm, make_local(s)));
    DSC_TRY(dsc_share_model(s->comm, s->queue, s->model));
    job how = {.loss = &s->facts.loss, .bad_images = s->options.bad_images, .report = s->options.report};
    dsc_loader_options_init(&how.loader);
    how.loader.batch = limit_batch(s);
    how.loader.threads = s->options.data_threads;
    return evaluate_set(s->comm, s->queue, s->model, s->set, &how, result);
}

dsc_status dsc_eval_run(dsc_comm *comm, dsc_device *device, const dsc_eval_options *options,
                        dsc_eval_result *result) {
    session s = {.comm = comm, .device = device};
    dsc_queue *before = dsc_comm_queue(comm);
    dsc_eval_result own = {0};
    DSC_TRY(dsc_versioned_check("dsc_eval_result", result, sizeof own));
    dsc_status status = run_session(&s, options, &own);
    dsc_comm_return_queue(comm, before);
    close_session(&s);
    dsc_versioned_write(&own, result);
    return status;
}
