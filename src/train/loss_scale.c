/* The loss scale of fp16. */
#include "train/loss_scale.h"

#include "base/error.h"
#include "device/ops.h"
#include "kfac/kfac_parts.h"

enum { INTERVAL = 2000 }; /* good steps after which the scale doubles */
static const double first_value = 65536;

dsc_status dsc_loss_scale_init(dsc_loss_scale *s, dsc_queue *queue, dsc_exec *exec, dsc_kfac *kfac) {
    const int64_t count = DSC_SCALE_COUNT, one = 1;
    dsc_device *device = dsc_queue_device(queue);
    *s = (dsc_loss_scale){0};
    if (dsc_exec_logits(exec)->dtype != DSC_F16)
        return DSC_OK;
    DSC_TRY(dsc_tensor_alloc(device, DSC_F64, 1, &count, &s->state));
    DSC_TRY(dsc_tensor_alloc(device, DSC_F64, 1, &one, &s->overflows));
    s->value = dsc_tensor_slice(&s->state, DSC_SCALE_VALUE, 1);
    s->inverse = dsc_tensor_slice(&s->state, DSC_SCALE_INVERSE, 1);
    s->inverse_square = dsc_tensor_slice(&s->state, DSC_SCALE_INVERSE_SQUARE, 1);
    dsc_exec_scale_loss(exec, &s->value);
    if (kfac)
        dsc_kfac_scale_g(kfac, &s->inverse_square);
    return dsc_loss_scale_set(s, queue, (const double[]){first_value, 0});
}

void dsc_loss_scale_free(dsc_loss_scale *s) {
    dsc_tensor_free(&s->state);
    dsc_tensor_free(&s->overflows);
}

dsc_status dsc_loss_scale_unscale(dsc_loss_scale *s, dsc_queue *queue, dsc_tensor *grads, dsc_tensor *skip) {
    if (!s->state.data)
        return DSC_OK;
    DSC_TRY(dsc_op_fill(queue, 0, &s->overflows));
    DSC_TRY(dsc_op_count_nonfinite(queue, grads, &s->overflows));
    DSC_TRY(dsc_op_loss_scale(queue, &s->overflows, &s->state, skip));
    return dsc_op_scale_by(queue, &s->inverse, grads);
}

dsc_status dsc_loss_scale_get(dsc_loss_scale *s, dsc_queue *queue, double numbers[2]) {
    double all[DSC_SCALE_COUNT] = {[DSC_SCALE_VALUE] = 1};
    if (s->state.data) {
        DSC_TRY(dsc_tensor_download(queue, &s->state, sizeof all, all));
        DSC_TRY(dsc_queue_sync(queue));
    }
    numbers[0] = all[DSC_SCALE_VALUE];
    numbers[1] = all[DSC_SCALE_GOOD];
    return DSC_OK;
}

dsc_status dsc_loss_scale_set(dsc_loss_scale *s, dsc_queue *queue, const double numbers[2]) {
    const double all[DSC_SCALE_COUNT] = {[DSC_SCALE_VALUE] = numbers[0],
                                         [DSC_SCALE_INVERSE] = 1 / numbers[0],
                                         [DSC_SCALE_INVERSE_SQUARE] = 1 / (numbers[0] * numbers[0]),
                                         [DSC_SCALE_GOOD] = numbers[1],
                                         [DSC_SCALE_INTERVAL] = INTERVAL};
    return s->state.data ? dsc_tensor_upload(queue, all, sizeof all, &s->state) : DSC_OK;
}
