/* What the state file of a checkpoint holds. */
#include "train/checkpoint_parts.h"

#include "base/error.h"
#include "base/memory.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

const dsc_checkpoint_scalar dsc_checkpoint_scalars[DSC_SCALAR_COUNT] = {
    {"train.step", DSC_I64, offsetof(dsc_train_state, step)},
    {"train.epoch", DSC_I64, offsetof(dsc_train_state, epoch)},
    {"train.position", DSC_I64, offsetof(dsc_train_state, position)},
    {"train.loss_sum", DSC_F64, offsetof(dsc_train_state, loss_sum)},
    {"train.loss_rows", DSC_F64, offsetof(dsc_train_state, loss_rows)},
    {"train.epoch_loss", DSC_F64, offsetof(dsc_train_state, epoch_loss)},
    {"train.val_loss", DSC_F64, offsetof(dsc_train_state, val_loss)},
    {"train.top1", DSC_F64, offsetof(dsc_train_state, top1)},
    {"train.top5", DSC_F64, offsetof(dsc_train_state, top5)},
    {"train.evaluated_step", DSC_I64, offsetof(dsc_train_state, evaluated_step)},
    {"train.best_top1", DSC_F64, offsetof(dsc_train_state, best_top1)},
    {"train.best_step", DSC_I64, offsetof(dsc_train_state, best_step)},
    {"train.seconds", DSC_F64, offsetof(dsc_train_state, seconds)},
    {"train.loss_scale", DSC_F64, offsetof(dsc_train_state, loss_scale)},
    {"train.loss_scale_steps", DSC_F64, offsetof(dsc_train_state, loss_scale) + sizeof(double)},
};

void dsc_train_state_init(dsc_train_state *state) {
    *state = (dsc_train_state){.epoch_loss = -1,
                               .val_loss = -1,
                               .top1 = -1,
                               .top5 = -1,
                               .evaluated_step = -1,
                               .best_top1 = -1,
                               .best_step = -1,
                               .loss_scale = {1, 0}};
}

dsc_status dsc_checkpoint_name(const char *prefix, const char *name, char **out) {
    size_t size = strlen(prefix) + strlen(name) + 1;
    DSC_TRY(dsc_memory_alloc((int64_t)size, 1, out));
    snprintf(*out, size, "%s%s", prefix, name);
    return DSC_OK;
}

static size_t largest_of(const dsc_param *params, int64_t count) {
    size_t largest = 8;
    for (int64_t i = 0; i < count; i++) {
        size_t bytes = dsc_tensor_bytes(&params[i].value);
        if (bytes > largest)
            largest = bytes;
    }
    return largest;
}

size_t dsc_checkpoint_largest(const dsc_snapshot *s) {
    return largest_of(dsc_optim_state(s->optim), dsc_optim_state_count(s->optim));
}

const char *dsc_checkpoint_graph(const dsc_snapshot *s) {
    return s->options->consensus->graph ? s->options->consensus->graph : "default";
}
