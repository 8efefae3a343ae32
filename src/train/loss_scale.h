/* The loss scale of fp16: gradients are those of scale * loss, so that small ones do not underflow, and are
 * divided by the scale before they are used. When gradients overflow, that update is skipped and the scale is
 * halved; after a number of good steps it is doubled. bf16 has the range of fp32 and needs no scale. */
#ifndef DSC_TRAIN_LOSS_SCALE_H
#define DSC_TRAIN_LOSS_SCALE_H

#include "descent/kfac.h"
#include "descent/model.h"

/* All tensors are on the device. Where no scale is needed they have no memory, and every function does nothing. */
typedef struct dsc_loss_scale {
    dsc_tensor state;                   /* F64[DSC_SCALE_COUNT] of device/ops.h */
    dsc_tensor value;                   /* views of it */
    dsc_tensor inverse, inverse_square; /* likewise */
    dsc_tensor overflows;               /* F64 scalar: gradients that are not finite */
} dsc_loss_scale;

/* Makes the scale that `exec` needs and hands it to `exec` and to `kfac` (may be NULL). */
dsc_status dsc_loss_scale_init(dsc_loss_scale *s, dsc_queue *queue, dsc_exec *exec,
                               dsc_kfac *kfac) DSC_MUST_CHECK;
void dsc_loss_scale_free(dsc_loss_scale *s);
/* Divides the gradients by the scale; when one overflowed, sets `skip` (the optimiser's) for this step. */
dsc_status dsc_loss_scale_unscale(dsc_loss_scale *s, dsc_queue *queue, dsc_tensor *grads,
                                  dsc_tensor *skip) DSC_MUST_CHECK;
/* Get and set the numbers that a checkpoint stores: the scale, and the good steps since it last changed; (1, 0)
 * without a scale. Both block. */
dsc_status dsc_loss_scale_get(dsc_loss_scale *s, dsc_queue *queue, double numbers[2]) DSC_MUST_CHECK;
dsc_status dsc_loss_scale_set(dsc_loss_scale *s, dsc_queue *queue, const double numbers[2]) DSC_MUST_CHECK;

#endif
