/* Making and destroying a trainer: everything that a step needs is planned and allocated here. */
#include "train/trainer.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "comm/table.h"
#include "consensus/table.h"
#include "train/engines.h"
#include "train/gossip.h"
#include "train/precondition.h"
#include "train/same_options.h"
#include "train/survive.h"

void dsc_trainer_destroy(dsc_trainer **trainer) {
    if (!trainer || !*trainer)
        return;
    dsc_trainer *t = *trainer;
    dsc_metrics_close(&t->metrics);
    dsc_stepper_destroy(&t->stepper);
    if (!t->lost) { /* else the others would have to take part, and the job is about to be ended */
        dsc_precondition_destroy(t);
        dsc_gossip_destroy(&t->gossip);
        dsc_consensus_destroy(&t->consensus);
    } else if (t->consensus && t->options.consensus->kind == DSC_CONSENSUS_ADPSGD) {
        t->consensus->hurried = 1;
        dsc_consensus_destroy(&t->consensus); /* its thread works on the device, which may go next */
    }
    dsc_trainer_free_shown(t);
    dsc_optim_destroy(&t->optim);
    dsc_exec_destroy(&t->val_exec);
    dsc_exec_destroy(&t->exec);
    dsc_model_destroy(&t->model);
    dsc_loader_destroy(&t->whole_loader);
    dsc_loader_destroy(&t->val_loader);
    dsc_loader_destroy(&t->loader);
    dsc_dataset_close(&t->val_set);
    dsc_dataset_close(&t->train_set);
    if (!t->lost)
        dsc_comm_destroy(&t->next_comm);
    if (t->queue && dsc_comm_queue(t->given.comm) == t->queue)
        dsc_comm_return_queue(t->given.comm, t->given.queue);
    dsc_queue_destroy(&t->queue);
    dsc_lock_release(&t->lock);
    dsc_memory_free(&t->good);
    if (!t->lost)
        dsc_settings_clear(&t->settings);
    *trainer = NULL;
    if (t->lost) /* with what the others would have to help to end */
        dsc_memory_keep(t);
    else
        dsc_memory_free(&t);
}

/* For as many ranks as there are now. */
static dsc_status count_steps(dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    t->step_images = o->batch_size * o->batches_per_allreduce * t->ranks;
    t->epoch_steps = t->info.count / t->step_images;
    if (t->epoch_steps == 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "%s has %lld samples, a step takes %lld (%d ranks, batch size %lld, %lld batches): "
                        "use a smaller batch",
                        o->data, (long long)t->info.count, (long long)t->step_images, t->ranks,
                        (long long)o->batch_size, (long long)o->batches_per_allreduce);
    return DSC_OK;
}

static dsc_status open_data(dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    dsc_data_options data;
    dsc_data_options_init(&data);
    data.seed = o->seed;
    data.image_size = o->image_size;
    DSC_TRY(dsc_dataset_open(o->data, DSC_SPLIT_TRAIN, &data, &t->train_set));
    t->info = dsc_dataset_get_info(t->train_set);
    return count_steps(t); /* before a batch that is too large takes memory */
}

static dsc_status load_data(dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    dsc_loader_options loader;
    t->loader_epoch = t->loader_position = 0;
    DSC_TRY(count_steps(t));
    dsc_loader_options_init(&loader);
    loader.batch = o->batch_size;
    loader.rank = t->rank;
    loader.ranks = t->ranks;
    loader.threads = o->data_threads;
    loader.seed = o->seed;
    loader.augment = o->augment;
    loader.dtype = dsc_device_is_host(t->device) ? DSC_F32 : o->activations;
    return dsc_loader_create(t->train_set, t->device, &loader, &t->loader);
}

/* No more than there are. */
static int64_t val_batch(const dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    int64_t asked = o->val_batch_size > 0 ? o->val_batch_size : o->batch_size;
    int64_t count = dsc_dataset_get_info(t->val_set).count;
    return asked < count ? asked : count;
}

static dsc_status open_validation(dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    dsc_data_options data;
    dsc_data_options_init(&data);
    data.seed = o->seed;
    data.image_size = o->image_size;
    DSC_TRY(dsc_dataset_open(o->data, DSC_SPLIT_VAL, &data, &t->val_set));
    return dsc_exec_create(t->model, DSC_EXEC_EVAL, val_batch(t), &t->val_exec);
}

static dsc_status load_validation(dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    dsc_loader_options loader;
    dsc_loader_options_init(&loader);
    loader.batch = val_batch(t);
    loader.rank = t->rank;
    loader.ranks = t->ranks;
    loader.threads = o->data_threads;
    loader.shuffle = 0;
    loader.augment = 0;
    loader.keep_last = 1;
    loader.dtype = dsc_device_is_host(t->device) ? DSC_F32 : o->activations;
    DSC_TRY(dsc_loader_create(t->val_set, t->device, &loader, &t->val_loader));
    if (!o->eval_ranks)
        return DSC_OK;
    loader.rank = 0;
    loader.ranks = 1;
    return dsc_loader_create(t->val_set, t->device, &loader, &t->whole_loader);
}

static dsc_status make_model(dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    dsc_model_options model;
    dsc_model_options_init(&model);
    model.seed = o->seed;
    model.label_smoothing = o->label_smoothing;
    model.activations = o->activations;
    DSC_TRY(dsc_zoo_create(t->device, o->model, t->info.h, t->info.w, t->info.c, t->info.classes, &model,
                           &t->model));
    DSC_TRY(dsc_exec_create(t->model, DSC_EXEC_TRAIN, o->batch_size, &t->exec));
    return dsc_optim_create(t->queue, dsc_model_params(t->model), dsc_model_param_count(t->model), o->optim,
                            &t->optim);
}

static void set_schedule(dsc_trainer *t) {
    const dsc_train_options *o = &t->options;
    dsc_schedule *s = &t->schedule;
    double scale = o->lr_scaling ? (double)(t->ranks * o->batches_per_allreduce) : 1;
    s->kind = o->lr_schedule;
    s->target = o->lr * scale;
    s->warmup_start = o->warmup_start < 0 ? o->lr : o->warmup_start;
    s->warmup_epochs = o->warmup_epochs;
    s->decay_rate = o->lr_decay_rate;
    s->decay_count = o->lr_decay_count;
    for (int i = 0; i < o->lr_decay_count; i++)
        s->decay[i] = o->lr_decay[i];
    s->epochs = (double)o->epochs;
    s->steps_per_epoch = t->epoch_steps;
}

dsc_status dsc_trainer_spread(dsc_trainer *t) {
    dsc_loader_destroy(&t->whole_loader);
    dsc_loader_destroy(&t->val_loader);
    dsc_loader_destroy(&t->loader);
    DSC_TRY(load_data(t));
    if (t->val_set)
        DSC_TRY(load_validation(t));
    set_schedule(t);
    return DSC_OK;
}

/* What each rank makes by itself. */
static dsc_status make_local(dsc_trainer *t) {
    DSC_TRY(open_data(t));
    DSC_TRY(make_model(t));
    if (t->options.eval_every > 0)
        DSC_TRY(open_validation(t));
    return dsc_trainer_spread(t);
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

dsc_status dsc_trainer_make_stepper(dsc_trainer *t) {
    const dsc_stepper_parts parts = {.comm = t->comm,
                                     .queue = t->queue,
                                     .model = t->model,
                                     .exec = t->exec,
                                     .optim = t->optim,
                                     .consensus = t->consensus,
                                     .kfac = t->kfac,
                                     .factors = t->factors,
                                     .batch = t->options.batch_size,
                                     .micro_batches = t->options.batches_per_allreduce,
                                     .sampled = t->kfac && t->options.kfac_fisher == DSC_FISHER_SAMPLED,
                                     .seed = t->options.seed,
                                     .timed = t->options.out != NULL};
    return dsc_comm_agree(t->comm, dsc_stepper_create(&parts, &t->stepper));
}

static dsc_status make_all(dsc_trainer *t, const dsc_train_options *options) {
    dsc_status status = dsc_settings_read(options, &t->settings);
    t->options = t->settings.train;
    if (status == DSC_OK && t->rank == 0 && t->options.out)
        status = dsc_lock_take(t->options.out, &t->lock);
    if (status == DSC_OK)
        status = dsc_queue_create(t->device, &t->queue);
    DSC_TRY(dsc_comm_agree(t->comm, status));
    DSC_TRY(dsc_comm_use_queue(t->comm, t->queue));
    DSC_TRY(dsc_same_options_check(t));
    DSC_TRY(dsc_engines_make(t, make_local));
    DSC_TRY(dsc_comm_agree(t->comm, dsc_survive_prepare(t)));
    DSC_TRY(dsc_trainer_make_consensus(t));
    DSC_TRY(dsc_gossip_create(t));
    DSC_TRY(dsc_precondition_create(t));
    return dsc_trainer_make_stepper(t);
}

dsc_status dsc_trainer_create(dsc_comm *comm, dsc_device *device, const dsc_train_options *options,
                              dsc_trainer **out) {
    dsc_trainer *t = NULL;
    dsc_status status = dsc_comm_agree(comm, dsc_memory_alloc(1, sizeof *t, &t));
    if (status != DSC_OK) {
        dsc_memory_free(&t);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    t->comm = t->given.comm = comm;
    t->given.queue = dsc_comm_queue(comm);
    t->device = device;
    t->rank = dsc_comm_rank(comm);
    t->ranks = t->ranks_told = dsc_comm_size(comm);
    t->saved_step = -1;
    t->start = t->process_start = dsc_clock_now();
    dsc_train_state_init(&t->state);
    status = make_all(t, options);
    if (status != DSC_OK) {
        dsc_trainer_destroy(&t);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = t;
    return DSC_OK;
}

int64_t dsc_trainer_last_epoch(const dsc_trainer *t) {
    const dsc_train_state *s = &t->state;
    return s->position > 0 || s->epoch == 0 ? s->epoch : s->epoch - 1;
}

int dsc_trainer_epoch_done(const dsc_trainer *t) {
    return t->state.position + t->step_images > t->info.count;
}

dsc_status dsc_trainer_check(dsc_trainer *t) {
    dsc_status status = dsc_consensus_check(t->consensus, t->queue);
    if (status == DSC_E_NUMERIC)
        dsc_error_prefix(status, "after step %lld (last good checkpoint: %s)", (long long)t->state.step,
                         t->good ? t->good : "none");
    return dsc_comm_agree(t->comm, status);
}
