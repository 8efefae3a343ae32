/* Fine-tuning: starting from given weights, parameters that stay as they are, and a rate for the head.
 *
 * A frozen parameter gets a gradient like every other, which is averaged over the ranks and then not used. Batch
 * norms normalise by the statistics of the batch, and their running statistics follow the images, whether their
 * parameters are frozen or not, as PyTorch does it with requires_grad = False. */
#ifndef DSC_TRAIN_FINETUNE_H
#define DSC_TRAIN_FINETUNE_H

#include "descent/kfac.h"
#include "descent/trainer.h"
#include "train/settings.h"

/* Refuses options that are wrong whatever the model is: DSC_E_INVALID. */
dsc_status dsc_finetune_check(const dsc_settings *settings, const char *prefix) DSC_MUST_CHECK;
/* Sets t->rates; it stays NULL where every parameter has the common rate. */
dsc_status dsc_finetune_rates(dsc_trainer *t) DSC_MUST_CHECK;
/* Marks the layers that have a frozen parameter. `layers` are those of dsc_kfac_setup_layers. */
void dsc_finetune_leave_out(const dsc_trainer *t, dsc_kfac_layer *layers, int64_t count);
/* Loads the weights of options.init, if it is given, and gives them to all ranks. Collective. */
dsc_status dsc_finetune_start(dsc_trainer *t) DSC_MUST_CHECK;
/* Says what was loaded and what is frozen. */
void dsc_finetune_report(const dsc_trainer *t);

#endif
