/* The exponential moving average (EMA) of the weights, and of the running statistics of batch norms.
 *
 * With decay d, every step adds the present values x to a sum, and 1 - d to its weight (dsc_train_state.ema_weight):
 *
 *   sum = d sum + (1 - d) x,   weight = d weight + (1 - d),   average = sum / weight
 *
 * so that from the first step on it is an average of past values alone: the division removes the sum's start at 0.
 *
 * With all-reduce all ranks hold the same x after a step, and the same average. With gossip every rank averages its
 * own de-biased values z = x / w over the steps, and what is evaluated and saved is the mean of these averages over
 * the ranks: because both are linear that is the average over the steps of the ranks' mean, which is the model that
 * gossip evaluates and saves, and no step has to communicate for it. z is only known while a step computes with it,
 * so with gossip the values that a step starts with are added, not those that it ends with. */
#ifndef DSC_TRAIN_EMA_H
#define DSC_TRAIN_EMA_H

#include "descent/model.h"

typedef struct dsc_trainer dsc_trainer;

typedef struct dsc_ema {
    dsc_tensor values, running;         /* the sums of all parameters, and of all running statistics */
    dsc_tensor own_values, own_running; /* the model's own, while the average is swapped in */
    int swapped;
    /* Views of the sums under the names of the model's tensors, for checkpoints. */
    dsc_param *params, *buffers;
    int64_t param_count, buffer_count;
} dsc_ema;

/* Creates an average of nothing yet. */
dsc_status dsc_ema_create(dsc_queue *queue, const dsc_model *model, dsc_ema **out) DSC_MUST_CHECK;
void dsc_ema_destroy(dsc_ema **ema);
/* Adds the present values to the sums. Asynchronous; can be recorded. */
dsc_status dsc_ema_add(dsc_ema *ema, dsc_queue *queue, const dsc_model *model, double decay) DSC_MUST_CHECK;
/* After a synchronisation: swap_in puts the average (of all ranks, with gossip) into the model, with the statistics of
 * rank 0 or, with bn_average, of all ranks; swap_out puts this rank's own values back if they are swapped. swap_in is
 * collective; both block. */
dsc_status dsc_ema_swap_in(dsc_trainer *t) DSC_MUST_CHECK;
dsc_status dsc_ema_swap_out(dsc_trainer *t) DSC_MUST_CHECK;

#endif
