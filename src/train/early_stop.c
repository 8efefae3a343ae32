/* Early stopping: patience and targets. */
#include "train/early_stop.h"

#include "base/error.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In the order of dsc_target_kind. */
static const char *const names[] = {"", "top1=", "top5=", "loss="};

dsc_status dsc_target_parse(const char *text, const char *prefix, dsc_target *out) {
    *out = (dsc_target){.kind = DSC_TARGET_NONE};
    if (!text)
        return DSC_OK;
    for (int kind = DSC_TARGET_TOP1; kind <= DSC_TARGET_LOSS; kind++) {
        const char *number = text + strlen(names[kind]);
        char *end = NULL;
        if (strncmp(text, names[kind], strlen(names[kind])) != 0)
            continue;
        double value = strtod(number, &end);
        if ((!isdigit((unsigned char)*number) && *number != '.') || *end || !isfinite(value))
            return DSC_FAIL(DSC_E_INVALID, "%sstop-at %s: '%s' is not a number", prefix, text, number);
        if (kind != DSC_TARGET_LOSS && value > 100)
            return DSC_FAIL(DSC_E_INVALID, "%sstop-at %s: an accuracy is 100 percent at most", prefix, text);
        *out = (dsc_target){.kind = (dsc_target_kind)kind,
                            .value = kind == DSC_TARGET_LOSS ? value : value / 100};
        return DSC_OK;
    }
    return DSC_FAIL(
        DSC_E_INVALID,
        "%sstop-at %s: must be top1=X or top5=X, with X in percent, or loss=X, of the validation set", prefix,
        text);
}

static int reaches(const dsc_target *target, double loss, double top1, double top5) {
    if (!isfinite(loss))
        return 0;
    switch (target->kind) {
    case DSC_TARGET_TOP1:
        return top1 >= target->value;
    case DSC_TARGET_TOP5:
        return top5 >= target->value;
    case DSC_TARGET_LOSS:
        return loss >= 0 && loss <= target->value;
    default:
        return 0;
    }
}

/* Whether the last evaluation, if it was of this step, has reached the target: with the weights or with their
 * average. */
static int is_reached(const dsc_trainer *t) {
    const dsc_train_state *s = &t->state;
    return s->evaluated_step == s->step &&
           (reaches(&t->target, s->val_loss, s->top1, s->top5) ||
            (t->ema && reaches(&t->target, s->ema_loss, s->ema_top1, s->ema_top5)));
}

dsc_stop_reason dsc_early_stop(const dsc_trainer *t) {
    if (is_reached(t))
        return DSC_STOP_TARGET;
    return t->options.patience > 0 && t->state.stale >= t->options.patience ? DSC_STOP_PATIENCE
                                                                            : DSC_STOP_NONE;
}

void dsc_early_report(dsc_trainer *t) {
    char text[160];
    if (is_reached(t))
        t->state.target_s = t->state.seconds;
    switch (dsc_early_stop(t)) {
    case DSC_STOP_TARGET:
        snprintf(text, sizeof text, "the target %s is reached after %.1f s: the run ends", t->options.stop_at,
                 t->state.target_s);
        break;
    case DSC_STOP_PATIENCE:
        snprintf(text, sizeof text, "no %s in %lld evaluations: the run ends",
                 dsc_trainer_by_loss(t) ? "lower validation loss" : "better top-1 accuracy",
                 (long long)t->state.stale);
        break;
    default:
        return;
    }
    dsc_trainer_emit_text(t, DSC_EVENT_NOTE, text);
}
