/* The losses of an executor. */
#include "base/error.h"
#include "base/option.h"
#include "model/exec.h"

/* In the order of dsc_loss. */
const char *const dsc_loss_names[] = {"cross-entropy", "bce", "dice", "bce-dice", NULL};

dsc_status dsc_loss_parse(const char *name, dsc_loss *out) {
    int value = 0;
    dsc_status status = dsc_option_choice_parse("loss", dsc_loss_names, name, &value);
    if (status == DSC_OK)
        *out = (dsc_loss)value;
    return status;
}

const char *dsc_loss_name(dsc_loss loss) {
    return dsc_option_choice_name(dsc_loss_names, (int)loss);
}

/* ---- settings of the losses ---- */

void dsc_exec_smooth_labels(dsc_exec *exec, int on) {
    exec->plain_labels = !on || exec->mode != DSC_EXEC_TRAIN;
    exec->label_smoothing = exec->plain_labels ? 0 : exec->model->options.label_smoothing;
}

void dsc_exec_mix_labels(dsc_exec *exec, const dsc_tensor *others, const dsc_tensor *shares) {
    exec->others = others && shares ? *others : (dsc_tensor){0};
    exec->shares = others && shares ? *shares : (dsc_tensor){0};
}

void dsc_exec_weigh_classes(dsc_exec *exec, const dsc_tensor *weights) {
    exec->class_weights = weights ? *weights : (dsc_tensor){0};
}

void dsc_exec_scale_loss(dsc_exec *exec, const dsc_tensor *scale) {
    exec->loss_scale = scale ? *scale : (dsc_tensor){0};
}

dsc_status dsc_exec_set_loss(dsc_exec *exec, dsc_loss loss) {
    if (!exec)
        return DSC_FAIL(DSC_E_INVALID, "loss: no executor");
    const int64_t classes = dsc_model_classes(exec->model), stats = DSC_STAT_COUNT;
    if (loss < DSC_LOSS_CROSS_ENTROPY || loss > DSC_LOSS_BCE_DICE)
        return DSC_FAIL(DSC_E_INVALID, "loss: there is no loss number %d", (int)loss);
    if ((loss == DSC_LOSS_CROSS_ENTROPY) == (classes == 1))
        return DSC_FAIL(DSC_E_INVALID, "loss %s: the model has %lld outputs at a position, but must have %s",
                        dsc_loss_name(loss), (long long)classes,
                        classes == 1 ? "one for each class" : "one, the logit of the second of two classes");
    const dsc_tensor *like = &exec->logits;
    if (loss == DSC_LOSS_BCE_DICE && exec->mode == DSC_EXEC_TRAIN && !exec->second.dlogits.data)
        DSC_TRY(dsc_tensor_alloc(like->device, like->dtype, like->ndim, like->dim, &exec->second.dlogits));
    if (loss == DSC_LOSS_BCE_DICE && !exec->second.stats.data)
        DSC_TRY(dsc_tensor_alloc(like->device, DSC_F64, 1, &stats, &exec->second.stats));
    exec->loss = loss;
    return DSC_OK;
}

/* ---- losses ---- */

static const dsc_tensor *scale_of(const dsc_exec *exec) {
    return exec->loss_scale.data ? &exec->loss_scale : NULL;
}

static dsc_tensor *gradient_of(dsc_exec *exec) {
    return exec->mode == DSC_EXEC_TRAIN ? &exec->dlogits : NULL;
}

static dsc_status begin(dsc_exec *exec, dsc_queue *q) {
    DSC_TRY(dsc_exec_check_call("loss", exec, q));
    if (!exec->has_forward)
        return DSC_FAIL(DSC_E_INVALID, "loss: there was no forward before it");
    if (exec->used_up)
        return DSC_FAIL(
            DSC_E_INVALID,
            "loss: the executor was made for one backward pass after each forward pass, which has "
            "run: call dsc_exec_forward first, or create it with DSC_EXEC_TRAIN");
    return DSC_OK;
}

static dsc_status cross_entropy(dsc_exec *exec, dsc_queue *q, const dsc_tensor *labels, double grad_scale) {
    const int mixed = !exec->plain_labels && exec->others.data;
    const dsc_targets targets = {
        .labels = labels,
        .smoothing = exec->label_smoothing,
        .others = mixed ? &exec->others : NULL,
        .shares = mixed ? &exec->shares : NULL,
        .weights = !exec->plain_labels && exec->class_weights.data ? &exec->class_weights : NULL,
        .classes = exec->logits.dim[1] > dsc_model_classes(exec->model) ? dsc_model_classes(exec->model) : 0};
    return dsc_op_target_loss(q, &exec->logits, &targets, grad_scale, scale_of(exec), gradient_of(exec),
                              &exec->stats);
}

/* Adds the Dice loss and its gradient to those of the binary cross-entropy, which was computed first. Only the loss is
 * added to the statistics: the rows have been counted already. */
static dsc_status add_dice(dsc_exec *exec, dsc_queue *q, const dsc_tensor *labels, double grad_scale) {
    dsc_tensor *gradient = gradient_of(exec), *more = gradient ? &exec->second.dlogits : NULL;
    const int64_t one = 1;
    dsc_tensor to = dsc_tensor_view(exec->stats.device, exec->stats.data, DSC_F64, 1, &one);
    dsc_tensor from = dsc_tensor_view(exec->stats.device, exec->second.stats.data, DSC_F64, 1, &one);
    DSC_TRY(dsc_op_fill(q, 0, &exec->second.stats));
    DSC_TRY(
        dsc_op_dice_loss(q, &exec->logits, labels, grad_scale, scale_of(exec), more, &exec->second.stats));
    DSC_TRY(dsc_op_axpby(q, 1, &from, 1, &to));
    return gradient ? dsc_op_map(q, DSC_MAP_ADD, gradient, more, 0, gradient) : DSC_OK;
}

static dsc_status compute(dsc_exec *exec, dsc_queue *q, const dsc_tensor *labels, double grad_scale,
                          dsc_loss loss) {
    if (loss == DSC_LOSS_CROSS_ENTROPY)
        DSC_TRY(cross_entropy(exec, q, labels, grad_scale));
    if (loss == DSC_LOSS_BCE || loss == DSC_LOSS_BCE_DICE)
        DSC_TRY(dsc_op_bce_loss(q, &exec->logits, labels, grad_scale, scale_of(exec), gradient_of(exec),
                                &exec->stats));
    if (loss == DSC_LOSS_DICE)
        DSC_TRY(dsc_op_dice_loss(q, &exec->logits, labels, grad_scale, scale_of(exec), gradient_of(exec),
                                 &exec->stats));
    if (loss == DSC_LOSS_BCE_DICE)
        DSC_TRY(add_dice(exec, q, labels, grad_scale));
    exec->has_loss = 1;
    return DSC_OK;
}

dsc_status dsc_exec_loss(dsc_exec *exec, dsc_queue *q, const dsc_tensor *labels, double grad_scale) {
    DSC_TRY(begin(exec, q));
    return compute(exec, q, labels, grad_scale, exec->loss);
}

dsc_status dsc_exec_likelihood_loss(dsc_exec *exec, dsc_queue *q, const dsc_tensor *labels,
                                    double grad_scale) {
    DSC_TRY(begin(exec, q));
    return compute(exec, q, labels, grad_scale,
                   exec->loss == DSC_LOSS_CROSS_ENTROPY ? DSC_LOSS_CROSS_ENTROPY : DSC_LOSS_BCE);
}

dsc_status dsc_exec_mse_loss(dsc_exec *exec, dsc_queue *q, const dsc_tensor *targets, double grad_scale) {
    DSC_TRY(begin(exec, q));
    DSC_TRY(dsc_op_mse_loss(q, &exec->logits, targets, grad_scale, scale_of(exec), gradient_of(exec),
                            &exec->stats));
    exec->has_loss = 1;
    return DSC_OK;
}
