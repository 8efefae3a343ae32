/* Options of training and evaluation: defaults and checks. */
#include "base/error.h"
#include "base/versioned.h"
#include "train/trainer.h"

#include <math.h>
#include <string.h>

void dsc_train_options_init(dsc_train_options *options) {
    *options = (dsc_train_options){
        .size = sizeof *options,
        .model = "resnet20",
        .data = "synthetic",
        .epochs = 100,
        .batch_size = 128,
        .seed = 42,
        .data_threads = 1,
        .augment = 1,
        .lr = 0.1,
        .lr_schedule = DSC_SCHEDULE_STEP,
        .warmup_epochs = 5,
        .warmup_start = -1,
        .lr_scaling = 1,
        .lr_decay_rate = 0.1,
        .batches_per_allreduce = 1,
        .keep = 2,
        .eval_every = 1,
        .log_every = 1,
        .check_every = 500,
    };
    dsc_optim_options_init(&options->optim);
    dsc_consensus_options_init(&options->consensus);
}

void dsc_eval_options_init(dsc_eval_options *options) {
    *options = (dsc_eval_options){
        .size = sizeof *options, .data = "synthetic", .batch_size = 128, .seed = 42, .data_threads = 1};
}

static dsc_status at_least(const char *name, int64_t value, int64_t limit) {
    if (value < limit)
        return DSC_FAIL(DSC_E_INVALID, "%s %lld: must be %lld at least", name, (long long)value,
                        (long long)limit);
    return DSC_OK;
}

static dsc_status finite_at_least(const char *name, double value, double limit) {
    if (!isfinite(value) || value < limit)
        return DSC_FAIL(DSC_E_INVALID, "%s %g: must be a number, %g at least", name, value, limit);
    return DSC_OK;
}

static dsc_status check_counts(const dsc_train_options *o) {
    DSC_TRY(at_least("epochs", o->epochs, 1));
    DSC_TRY(at_least("steps", o->steps, 0));
    DSC_TRY(at_least("batch size", o->batch_size, 1));
    DSC_TRY(at_least("validation batch size", o->val_batch_size, 0));
    DSC_TRY(at_least("image size", o->image_size, 0));
    DSC_TRY(at_least("data threads", o->data_threads, 1));
    DSC_TRY(at_least("batches per all-reduce", o->batches_per_allreduce, 1));
    DSC_TRY(at_least("checkpoints to keep", o->keep, 0));
    DSC_TRY(at_least("epochs between evaluations", o->eval_every, 0));
    DSC_TRY(at_least("steps between lines of the log", o->log_every, 1));
    return at_least("steps between checks", o->check_every, 0);
}

static dsc_status check_rates(const dsc_train_options *o) {
    DSC_TRY(finite_at_least("learning rate", o->lr, 0));
    DSC_TRY(finite_at_least("warm-up epochs", o->warmup_epochs, 0));
    if (!isfinite(o->warmup_start))
        return DSC_FAIL(DSC_E_INVALID, "start of the warm-up %g: must be a number", o->warmup_start);
    DSC_TRY(finite_at_least("decay of the learning rate", o->lr_decay_rate, 0));
    if (o->lr_decay_count < 0 || o->lr_decay_count > DSC_MAX_DECAYS)
        return DSC_FAIL(DSC_E_INVALID, "%d epochs of decay: 0 to %d are allowed", o->lr_decay_count,
                        DSC_MAX_DECAYS);
    for (int i = 0; i < o->lr_decay_count; i++)
        DSC_TRY(finite_at_least("epoch of decay", o->lr_decay[i], 0));
    if (!(o->label_smoothing >= 0 && o->label_smoothing < 1))
        return DSC_FAIL(DSC_E_INVALID, "label smoothing %g: must be in [0, 1)", o->label_smoothing);
    return DSC_OK;
}

dsc_status dsc_train_options_read(const dsc_train_options *given, dsc_train_options *out) {
    dsc_train_options_init(out);
    DSC_TRY(dsc_versioned_read("train", given, sizeof *out, out));
    if (!out->model || !out->data)
        return DSC_FAIL(DSC_E_INVALID, "neither model nor data may be NULL");
    if (out->resume && strcmp(out->resume, "auto") == 0 && !out->out)
        return DSC_FAIL(DSC_E_INVALID, "resume 'auto' looks in the output directory, and none was given");
    DSC_TRY(check_counts(out));
    return check_rates(out);
}
