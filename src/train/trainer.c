/* Creating and destroying a trainer: everything that a step needs is planned and allocated here. */
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/versioned.h"
#include "comm/table.h"
#include "consensus/table.h"
#include "data/dataset.h"
#include "kfac/kfac_parts.h"
#include "model/graph.h"
#include "train/class_weights.h"
#include "train/engines.h"
#include "train/finetune.h"
#include "train/kfac_setup.h"
#include "train/model_file.h"
#include "train/same_options.h"
#include "train/share.h"
#include "train/survive.h"
#include "train/sync.h"
#include "train/trace_file.h"
#include "train/trainer_internal.h"

#include <stdlib.h>
#include <string.h>

void dsc_trainer_free_step(dsc_trainer *t) {
    dsc_recorder_destroy(&t->recorder);
    dsc_results_destroy(&t->results);
    dsc_loss_scale_free(&t->loss_scale);
    dsc_tensor_free(&t->fisher_labels);
    dsc_tensor_free(&t->fisher_stats);
}

void dsc_trainer_destroy(dsc_trainer **trainer) {
    if (!trainer || !*trainer)
        return;
    dsc_trainer *t = *trainer;
    if (t->report.stop_requested || t->agreed.stop)
        dsc_stop_clear(); /* the request was this trainer's */
    dsc_trace_file_close(t);
    dsc_metrics_close(&t->metrics);
    dsc_trainer_free_step(t);
    if (!t->alone) { /* else the others would have to take part, and the job is about to be ended */
        dsc_kfac_setup_destroy(t);
        dsc_sync_destroy(&t->gossip);
        dsc_consensus_destroy(&t->consensus);
    } else if (t->consensus && t->options.consensus->kind == DSC_CONSENSUS_ADPSGD) {
        t->consensus->hurried = 1;
        dsc_consensus_destroy(&t->consensus); /* its thread works on the device, which may go next */
    }
    dsc_trainer_free_swapped(t);
    dsc_ema_destroy(&t->ema);
    dsc_tensor_free(&t->class_weights);
    dsc_optim_destroy(&t->optim);
    dsc_exec_destroy(&t->val_exec);
    dsc_exec_destroy(&t->exec);
    dsc_loader_destroy(&t->whole_loader);
    dsc_loader_destroy(&t->val_loader);
    dsc_loader_destroy(&t->loader);
    if (t->owned) {
        dsc_model_destroy(&t->model);
        dsc_dataset_close(&t->val_set);
        dsc_dataset_close(&t->train_set);
    }
    if (!t->alone)
        dsc_comm_destroy(&t->survivors);
    if (t->queue && dsc_comm_queue(t->caller.comm) == t->queue)
        dsc_comm_return_queue(t->caller.comm, t->caller.queue);
    dsc_queue_destroy(&t->queue);
    dsc_lock_release(&t->lock);
    dsc_bad_images_free(&t->bad.train);
    dsc_bad_images_free(&t->bad.val);
    dsc_memory_free(&t->good);
    dsc_memory_free(&t->resume_path);
    free(t->finetune_note);
    dsc_memory_free(&t->rates);
    if (!t->alone)
        dsc_settings_clear(&t->settings);
    *trainer = NULL;
    if (t->alone) /* keeps the objects that all ranks would have to destroy together */
        dsc_memory_keep(t);
    else
        dsc_memory_free(&t);
}

/* ---- data, sizes, schedule ---- */

/* Sets the sizes of steps and epochs for the present number of ranks. Without training data an epoch has as many steps
 * as the options say. */
static dsc_status count_steps(dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    t->step_images = o->batch_size * o->batches_per_allreduce * t->ranks;
    if (!t->train_set)
        t->info.count = o->epoch_steps * t->step_images;
    t->epoch_steps = t->info.count / t->step_images;
    if (t->epoch_steps == 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "%s has %lld sample%s, a step takes %lld (%d rank%s, batch size %lld, %lld batch%s): "
                        "use a smaller batch%s",
                        o->data, (long long)t->info.count, t->info.count == 1 ? "" : "s",
                        (long long)t->step_images, t->ranks, t->ranks == 1 ? "" : "s",
                        (long long)o->batch_size, (long long)o->batches_per_allreduce,
                        o->batches_per_allreduce == 1 ? "" : "es",
                        t->train_set && t->train_set->whole_numbers ? " or a shorter context" : "");
    return DSC_OK;
}

static void init_loader(const dsc_trainer *t, int64_t batch, dsc_loader_options *o) {
    dsc_loader_options_init(o);
    o->batch = batch;
    o->rank = t->rank;
    o->ranks = t->ranks;
    o->threads = t->options.data_threads;
    o->skip_bad = 1;
    /* A 16-bit floating-point type would round token numbers. */
    const int whole = dsc_device_is_host(t->device) || (t->model && dsc_model_takes_tokens(t->model));
    o->dtype = whole ? DSC_F32 : t->options.activations;
}

static dsc_status load_training(dsc_trainer *t) {
    dsc_loader_options o;
    t->loader_epoch = t->loader_position = 0;
    DSC_TRY(count_steps(t));
    if (!t->train_set)
        return DSC_OK;
    init_loader(t, t->options.batch_size, &o);
    o.seed = t->options.seed;
    o.shuffle_buffer = t->options.shuffle_buffer;
    o.augment = t->options.augment;
    o.mixup = t->options.mixup;
    o.cutmix = t->options.cutmix;
    o.random_erasing = t->options.random_erasing;
    o.randaugment = t->options.randaugment;
    o.randaugment_ops = t->options.randaugment_ops;
    return dsc_loader_create(t->train_set, t->device, &o, &t->loader);
}

/* No larger than the validation set. */
static int64_t val_batch(const dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    int64_t asked = o->val_batch_size > 0 ? o->val_batch_size : o->batch_size;
    int64_t count = dsc_dataset_get_info(t->val_set).count;
    return asked < count ? asked : count;
}

static dsc_status load_validation(dsc_trainer *t) {
    dsc_loader_options o;
    init_loader(t, val_batch(t), &o);
    o.shuffle = 0;
    o.augment = 0;
    o.keep_last = 1;
    DSC_TRY(dsc_loader_create(t->val_set, t->device, &o, &t->val_loader));
    if (!t->options.eval_ranks)
        return DSC_OK;
    o.rank = 0;
    o.ranks = 1;
    return dsc_loader_create(t->val_set, t->device, &o, &t->whole_loader);
}

/* What options.lr is multiplied by. */
static double rate_scale(const dsc_trainer *t) {
    return t->options.lr_scaling ? (double)(t->ranks * t->options.batches_per_allreduce) : 1;
}

void dsc_trainer_set_lr(dsc_trainer *trainer, double lr) {
    trainer->fixed_rate = lr * rate_scale(trainer);
}

static void set_schedule(dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    dsc_schedule *s = &t->schedule;
    s->kind = o->lr_schedule;
    s->target = o->lr * rate_scale(t);
    s->warmup_start = o->warmup_start < 0 ? o->lr : o->warmup_start;
    s->warmup_epochs = o->warmup_epochs;
    s->decay_rate = o->lr_schedule == DSC_SCHEDULE_ONE_CYCLE    ? o->lr_rise
                    : o->lr_schedule == DSC_SCHEDULE_POLYNOMIAL ? o->lr_power
                    : o->lr_schedule == DSC_SCHEDULE_RESTARTS   ? o->lr_period_factor
                                                                : o->lr_decay_rate;
    s->decay_count = o->lr_decay_count;
    for (int i = 0; i < o->lr_decay_count; i++)
        s->decay[i] = o->lr_decay[i];
    if (o->lr_schedule == DSC_SCHEDULE_RESTARTS)
        s->decay[0] = o->lr_period;
    s->epochs = o->lr_steps > 0 ? (double)o->lr_steps / (double)t->epoch_steps : (double)o->epochs;
    s->steps_per_epoch = t->epoch_steps;
}

dsc_status dsc_trainer_spread(dsc_trainer *t) {
    dsc_loader_destroy(&t->whole_loader);
    dsc_loader_destroy(&t->val_loader);
    dsc_loader_destroy(&t->loader);
    DSC_TRY(load_training(t));
    if (t->val_exec)
        DSC_TRY(load_validation(t));
    set_schedule(t);
    return DSC_OK;
}

/* ---- executors, optimiser and other parts of a step ---- */

/* Creating the executors plans all convolutions. */
static dsc_status make_executors(dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    /* The products of a sequence's factors fill a GPU by themselves: a second queue would gain nothing. */
    t->beside = o->kfac->update_freq > 0 && !dsc_model_takes_tokens(t->model) &&
                dsc_kfac_can_capture_beside(o->kfac, t->device, t->ranks);
    /* The sampled Fisher has a backward pass of its own before that of the loss. */
    const int repeats = o->kfac->update_freq > 0 && o->kfac_fisher == DSC_FISHER_SAMPLED;
    const dsc_exec_mode mode = repeats ? DSC_EXEC_TRAIN : DSC_EXEC_TRAIN_ONCE;
    if (t->beside)
        DSC_TRY(dsc_exec_create_lasting(t->model, mode, o->batch_size, &t->exec));
    else
        DSC_TRY(dsc_exec_create(t->model, mode, o->batch_size, &t->exec));
    DSC_TRY(dsc_exec_set_loss(t->exec, o->loss));
    if (!t->val_set || o->eval_every == 0)
        return DSC_OK;
    DSC_TRY(dsc_exec_create(t->model, DSC_EXEC_EVAL, val_batch(t), &t->val_exec));
    return dsc_exec_set_loss(t->val_exec, o->loss);
}

static dsc_status make_optimiser(dsc_trainer *t) {
    dsc_optim_options o = *t->options.optim;
    DSC_TRY(dsc_finetune_rates(t));
    o.factors = t->rates;
    return dsc_optim_create(t->queue, dsc_model_params(t->model), dsc_model_param_count(t->model), &o,
                            &t->optim);
}

/* Creates the objects that need no other rank. On a device that tunes its convolutions rank 0 creates its own
 * first, and the others take over its choices. */
static dsc_status make_local(dsc_trainer *t) {
    int rank0_first = 0;
    DSC_TRY(dsc_engines_begin(t, &rank0_first));
    dsc_status status = DSC_OK;
    if (rank0_first && t->rank != 0)
        status = dsc_engines_share(t, status);
    if (status == DSC_OK)
        status = make_executors(t);
    if (rank0_first && t->rank == 0)
        status = dsc_engines_share(t, status);
    if (status == DSC_OK)
        status = make_optimiser(t);
    if (status == DSC_OK && t->options.ema > 0)
        status = dsc_ema_create(t->queue, t->model, &t->ema);
    if (status == DSC_OK)
        status = dsc_trainer_spread(t);
    return dsc_comm_agree(t->comm, status);
}

dsc_status dsc_trainer_make_consensus(dsc_trainer *t) {
    const dsc_consensus_options *o = t->options.consensus;
    dsc_status status = dsc_consensus_create(t->comm, t->queue, dsc_model_params(t->model),
                                             dsc_model_param_count(t->model), o, &t->consensus);
    DSC_TRY(dsc_comm_agree(t->comm, status));
    t->collective = dsc_consensus_is_collective(t->consensus);
    t->peers = o->peers;
    return DSC_OK;
}

static dsc_status make_step(dsc_trainer *t) {
    const int64_t four = 4, labels = t->options.batch_size * dsc_model_positions(t->model);
    int timed = t->phases.ms ? t->phases.timed : t->options.out != NULL; /* a change of ranks keeps it */
    DSC_TRY(dsc_recorder_create(
        t->comm, t->queue, dsc_consensus_records(t->consensus) && dsc_comm_records(t->comm), &t->recorder));
    DSC_TRY(dsc_results_create(t->queue, &t->results));
    t->phases = (dsc_phases){
        .is_host = dsc_device_is_host(t->device), .timed = timed, .stamps = dsc_results_stamps(t->results)};
    DSC_TRY(dsc_loss_scale_init(&t->loss_scale, t->queue, t->exec, t->kfac));
    if (!t->kfac || t->options.kfac_fisher != DSC_FISHER_SAMPLED)
        return DSC_OK;
    DSC_TRY(dsc_tensor_alloc(t->device, DSC_I32, 1, &labels, &t->fisher_labels));
    return dsc_tensor_alloc(t->device, DSC_F64, 1, &four, &t->fisher_stats);
}

dsc_status dsc_trainer_make_step(dsc_trainer *t) {
    return dsc_comm_agree(t->comm, make_step(t));
}

/* ---- creation ---- */

static dsc_status check_data(const dsc_model *model, const dsc_dataset *data) {
    char wanted[DSC_FORM_TEXT], found[DSC_FORM_TEXT];
    int64_t shape[3], labels = dsc_dataset_label_count(data);
    dsc_dataset_info info = dsc_dataset_get_info(data);
    const int64_t positions = dsc_model_positions(model);
    if (labels != positions)
        return DSC_FAIL(DSC_E_INVALID,
                        "model %s makes %lld prediction%s of a sample, but samples of %s have %lld label%s: "
                        "%s",
                        dsc_model_name(model), (long long)positions, positions == 1 ? "" : "s", info.name,
                        (long long)labels, labels == 1 ? "" : "s",
                        positions == 1 ? "use a model of pixels, such as unet-bn"
                        : labels == 1  ? "use a model of images, such as resnet20, or images with masks "
                                         "(masks:DIR)"
                                       : "build the model for its data");
    dsc_model_input_shape(model, shape);
    if (shape[0] != info.h || shape[1] != info.w || shape[2] != info.c ||
        dsc_output_classes(dsc_model_classes(model)) < info.classes)
        return DSC_FAIL(DSC_E_INVALID, "the model takes %s, %s has %s: build the model for its data",
                        dsc_form_text(shape[0], shape[1], shape[2], dsc_model_classes(model),
                                      dsc_model_takes_tokens(model), wanted),
                        info.name,
                        dsc_form_text(info.h, info.w, info.c, info.classes, data->whole_numbers, found));
    return DSC_OK;
}

static dsc_status check_model(const dsc_trainer *t) {
    if (!t->model || !t->model->sealed)
        return DSC_FAIL(DSC_E_INVALID, "the trainer needs a model that is sealed (dsc_model_seal)");
    if (dsc_model_device(t->model) != t->device)
        return DSC_FAIL(DSC_E_INVALID, "the model was made on another device than the trainer's");
    if (t->train_set)
        DSC_TRY(check_data(t->model, t->train_set));
    if (!t->val_set && (t->options.patience > 0 || t->options.stop_at))
        return DSC_FAIL(DSC_E_INVALID,
                        "patience and stop-at look at evaluations, and this trainer has no validation set");
    return t->val_set ? check_data(t->model, t->val_set) : DSC_OK;
}

static void count_labels(dsc_trainer *t) {
    const double share = t->train_set && t->train_set->labelled > 0 ? t->train_set->labelled : 1;
    t->labels = (double)dsc_model_positions(t->model) * share;
}

/* Rank 0's `resume` counts: the others only know whether there is one. */
static dsc_status share_resume(dsc_trainer *t) {
    int resumes = t->options.resume != NULL;
    DSC_TRY(dsc_share_bytes(t->comm, t->queue, &resumes, sizeof resumes));
    if (t->rank != 0)
        t->options.resume = resumes ? "auto" : NULL;
    return DSC_OK;
}

/* Makes all other parts, once settings, model and data exist. */
static dsc_status make_all(dsc_trainer *t, dsc_status status) {
    const char *rule = t->options.bad_images;
    dsc_bad_images_init(&t->bad.train, "training", t->info.count, rule);
    dsc_bad_images_init(&t->bad.val, "validation", dsc_dataset_get_info(t->val_set).count, rule);
    if (status == DSC_OK)
        status = check_model(t);
    if (status == DSC_OK)
        count_labels(t);
    if (status == DSC_OK)
        status = dsc_target_parse(t->options.stop_at, "", &t->target);
    if (status == DSC_OK)
        status = count_steps(t); /* before a batch that is too large takes memory */
    if (status == DSC_OK && t->rank == 0 && t->options.out)
        status = dsc_lock_take(t->options.out, &t->lock);
    if (status == DSC_OK)
        status = dsc_queue_create(t->device, &t->queue);
    DSC_TRY(dsc_comm_agree(t->comm, status));
    DSC_TRY(dsc_comm_use_queue(t->comm, t->queue));
    DSC_TRY(dsc_same_options_check(t));
    DSC_TRY(share_resume(t));
    DSC_TRY(dsc_kfac_setup_refresh(t));
    DSC_TRY(make_local(t));
    DSC_TRY(dsc_class_weights_set(t));
    DSC_TRY(dsc_comm_agree(t->comm, dsc_survive_prepare(t)));
    DSC_TRY(dsc_trainer_make_consensus(t));
    DSC_TRY(dsc_sync_create(t));
    DSC_TRY(dsc_kfac_setup_create(t));
    return dsc_trainer_make_step(t);
}

/* Creates a trainer that has its settings only. Collective: when one rank fails, all do. */
static dsc_status create(dsc_comm *comm, dsc_device *device, dsc_trainer **out) {
    dsc_trainer *t = NULL;
    dsc_status status = dsc_comm_agree(comm, dsc_memory_alloc(1, sizeof *t, &t));
    if (status != DSC_OK) {
        dsc_memory_free(&t);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    t->comm = t->caller.comm = comm;
    t->caller.queue = dsc_comm_queue(comm);
    t->device = device;
    t->rank = dsc_comm_rank(comm);
    t->ranks = t->reported_ranks = dsc_comm_size(comm);
    t->saved_step = -1;
    t->start = t->process_start = dsc_clock_now();
    dsc_train_state_init(&t->state);
    *out = t;
    return DSC_OK;
}

static dsc_status finish_creation(dsc_trainer *t, dsc_status status, dsc_trainer **out) {
    status = make_all(t, status);
    if (status == DSC_E_MEMORY)
        dsc_error_prefix(status, "the run needs more memory than there is (a smaller model or batch-size, or "
                                 "recompute, needs less)");
    if (status == DSC_OK && t->options.resume)
        status = dsc_trainer_begin(t);
    if (status != DSC_OK) {
        dsc_trainer_destroy(&t);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = t;
    return DSC_OK;
}

/* Reads the options of a trainer whose model and data are the caller's; options about model and data are ignored. */
static dsc_status read_settings(const dsc_train_options *given, dsc_settings *out) {
    dsc_train_options o, defaults;
    dsc_train_options_init(&o);
    dsc_train_options_init(&defaults);
    DSC_TRY(dsc_versioned_read("train", given, sizeof o, &o));
    o.model = defaults.model;
    o.data = defaults.data;
    o.image_size = defaults.image_size;
    o.context = defaults.context;
    o.val_split = defaults.val_split;
    o.activations = defaults.activations;
    o.recompute = defaults.recompute;
    o.label_smoothing = defaults.label_smoothing;
    o.mask = defaults.mask;
    o.vocabulary = defaults.vocabulary;
    o.mask_token = defaults.mask_token;
    return dsc_settings_read(&o, out);
}

/* The model and the data determine these values, whatever the options say. */
static void adopt(dsc_trainer *t, dsc_model *model, dsc_dataset *train, dsc_dataset *val) {
    dsc_train_options *o = &t->settings.train;
    t->model = model;
    t->train_set = train;
    t->val_set = val;
    if (train)
        t->info = dsc_dataset_get_info(train);
    o->activations = model ? model->options.activations : DSC_F32;
    o->recompute = model ? model->options.recompute : 0;
    o->label_smoothing = model ? model->options.label_smoothing : 0;
    o->model = model ? dsc_model_name(model) : "none";
    o->data = train ? t->info.name : "batches of the caller";
    o->image_size = t->info.h;
    o->mask = train ? train->mask : 0;
    o->vocabulary = train && train->whole_numbers ? train->options.vocabulary : 0;
    o->mask_token = o->mask > 0 ? train->options.mask_token : -1;
    if (model && dsc_model_classes(model) == 1 && o->loss == DSC_LOSS_CROSS_ENTROPY)
        o->loss = DSC_LOSS_BCE;
}

dsc_status dsc_trainer_create(dsc_comm *comm, dsc_device *device, dsc_model *model, dsc_dataset *train,
                              dsc_dataset *val, const dsc_train_options *options, dsc_trainer **out) {
    dsc_trainer *t = NULL;
    DSC_TRY(create(comm, device, &t));
    dsc_status status = read_settings(options, &t->settings);
    if (status == DSC_OK)
        adopt(t, model, train, val);
    t->options = t->settings.train;
    return finish_creation(t, status, out);
}

/* Losses of one output are for data with two classes. */
static dsc_status check_loss(const dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    if (o->loss == DSC_LOSS_CROSS_ENTROPY ||
        (t->info.classes == 2 && dsc_dataset_label_count(t->train_set) > 1 && !t->train_set->whole_numbers))
        return DSC_OK;
    return DSC_FAIL(
        DSC_E_INVALID,
        "loss %s is for masks with two values (masks:DIR), but %s has %lld classes and %lld label%s "
        "per sample: use cross-entropy",
        dsc_loss_name(o->loss), o->data, (long long)t->info.classes,
        (long long)dsc_dataset_label_count(t->train_set),
        dsc_dataset_label_count(t->train_set) == 1 ? "" : "s");
}

/* Refuses data of tokens for a model of images, which would take the tokens for pixels. */
static dsc_status check_kind(const dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    DSC_TRY(dsc_zoo_default_input(o->model, NULL, NULL, NULL)); /* fails for an unknown model */
    if (!t->train_set->whole_numbers || dsc_zoo_takes_tokens(o->model))
        return DSC_OK;
    return DSC_FAIL(
        DSC_E_INVALID,
        "model %s takes images, but %s has sequences of tokens: use a model of sequences, such as "
        "gpt-mini",
        o->model, o->data);
}

/* Refuses options of tasks that the data cannot have, such as masked tokens with images. */
static dsc_status check_task(const dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    if (o->mask > 0 && !(t->train_set->mask > 0))
        return DSC_FAIL(DSC_E_INVALID, "mask %g: %s has no tokens that could be masked; leave it out",
                        o->mask, o->data);
    if (o->elastic > 0 && (t->train_set->whole_numbers || dsc_dataset_label_count(t->train_set) == 1))
        return DSC_FAIL(DSC_E_INVALID,
                        "elastic %g: only images with masks (masks:DIR) are deformed, and %s has none; leave "
                        "it out",
                        o->elastic, o->data);
    if (o->vocabulary > 0 && !t->train_set->whole_numbers)
        return DSC_FAIL(DSC_E_INVALID, "vocabulary %lld: %s has no tokens; leave it out",
                        (long long)o->vocabulary, o->data);
    if (t->train_set->whole_numbers && o->mask == 0 && dsc_graph_sees_ahead(t->model))
        return DSC_FAIL(DSC_E_INVALID,
                        "model %s has layers that may see the next token, which it would have to predict: "
                        "train it on masked tokens (mask 0.15)",
                        o->model);
    return DSC_OK;
}

static dsc_status open_named(dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    dsc_data_options data;
    dsc_model_options model;
    dsc_data_options_init(&data);
    data.seed = o->seed;
    data.image_size = data.context = o->image_size;
    data.elastic = o->elastic;
    data.vocabulary = o->vocabulary;
    data.mask = o->mask;
    data.mask_token = o->mask_token;
    data.margin = dsc_zoo_margin(o->model);
    data.val_split = o->val_split;
    DSC_TRY(dsc_dataset_open(o->data, DSC_SPLIT_TRAIN, &data, &t->train_set));
    t->info = dsc_dataset_get_info(t->train_set);
    DSC_TRY(count_steps(t));
    dsc_model_options_init(&model);
    model.seed = o->seed;
    model.label_smoothing = o->label_smoothing;
    model.activations = o->activations;
    model.recompute = o->recompute;
    const int64_t outputs = o->loss == DSC_LOSS_CROSS_ENTROPY ? t->info.classes : 1;
    DSC_TRY(check_kind(t));
    DSC_TRY(check_loss(t));
    DSC_TRY(dsc_zoo_create(t->device, o->model, t->info.h, t->info.w, t->info.c, outputs, &model, &t->model));
    DSC_TRY(check_task(t));
    return o->eval_every > 0 ? dsc_dataset_open(o->data, DSC_SPLIT_VAL, &data, &t->val_set) : DSC_OK;
}

/* Sequences have no image size. A run that was saved has its context under both names, so that its options are
 * taken. */
static dsc_status check_sequences(const dsc_trainer *t, const dsc_train_options *given) {
    const int saved = given->resume && strcmp(given->resume, "auto") != 0;
    int64_t usual = 0;
    if (given->image_size == 0 || given->context > 0 || saved)
        return DSC_OK;
    DSC_TRY(dsc_zoo_default_input(t->options.model, &usual, NULL, NULL));
    if (given->image_size == usual)
        return DSC_OK;
    return DSC_FAIL(DSC_E_INVALID, "image-size %lld: model %s is one of sequences: use context",
                    (long long)given->image_size, t->options.model);
}

/* Only some data sets have images that are resized, or sequences of any length. */
static dsc_status check_size(dsc_trainer *t, const dsc_train_options *given) {
    const long long asked = given ? (long long)given->image_size : 0;
    if (given && dsc_model_takes_tokens(t->model))
        DSC_TRY(check_sequences(t, given));
    if (t->settings.train.context > 0 && !dsc_model_takes_tokens(t->model))
        return DSC_FAIL(DSC_E_INVALID,
                        "context %lld: model %s is one of images, not of sequences; leave it out",
                        (long long)t->settings.train.context, t->options.model);
    if (asked > 0 && asked != t->info.h && !dsc_model_takes_tokens(t->model))
        return DSC_FAIL(
            DSC_E_INVALID,
            "image-size %lld: the images of %s are %lldx%lld and are not resized; leave the option "
            "out, or use an image folder (imagefolder:DIR)",
            asked, t->options.data, (long long)t->info.h, (long long)t->info.w);
    t->settings.train.image_size = t->options.image_size = t->info.h;
    return DSC_OK;
}

dsc_status dsc_trainer_create_named(dsc_comm *comm, dsc_device *device, const dsc_train_options *options,
                                    dsc_trainer **out) {
    dsc_trainer *t = NULL;
    DSC_TRY(create(comm, device, &t));
    t->owned = 1;
    dsc_status status = dsc_settings_read(options, &t->settings);
    t->options = t->settings.train;
    if (status == DSC_OK)
        status = open_named(t);
    if (status == DSC_OK)
        status = check_size(t, options);
    return finish_creation(t, status, out);
}

/* ---- accessors ---- */

dsc_queue *dsc_trainer_queue(const dsc_trainer *trainer) {
    return trainer->queue;
}

dsc_kfac *dsc_trainer_kfac(const dsc_trainer *trainer) {
    return trainer->kfac;
}
