/* K-FAC of a run: its schedules and its making. */
#include "train/precondition.h"

#include "base/error.h"
#include "base/memory.h"
#include "train/kfac_layers.h"

#include <math.h>

/* ---- schedules ---- */

static double power_at(const double *epochs, int count, double alpha, double epoch) {
    double product = 1;
    for (int i = 0; i < count; i++)
        if (epochs[i] <= epoch)
            product *= alpha;
    return product;
}

/* 0 stays 0: never. */
static int64_t scaled_frequency(int64_t base, double factor) {
    const double most = 1e15;
    double scaled = round((double)base * factor);
    if (base == 0)
        return 0;
    return scaled < 1 ? 1 : scaled > most ? (int64_t)most : (int64_t)scaled;
}

dsc_kfac_hyper dsc_precondition_hyper(const dsc_train_options *o, dsc_kfac_hyper base, double epoch) {
    double frequency = power_at(o->kfac_update_freq_decay, o->kfac_update_freq_decay_count,
                                o->kfac_update_freq_alpha, epoch);
    base.damping *=
        power_at(o->kfac_damping_decay, o->kfac_damping_decay_count, o->kfac_damping_alpha, epoch);
    base.factor_freq = scaled_frequency(base.factor_freq, frequency);
    base.update_freq = scaled_frequency(base.update_freq, frequency);
    if (epoch < o->kfac_diag_warmup)
        base.diag_blocks = 1;
    return base;
}

/* The epoch schedules, then the caller's own. The epoch is the trainer's: K-FAC's steps may have begun later.
 */
static dsc_status schedule(void *context, int64_t step, dsc_kfac_hyper *hyper) {
    const dsc_trainer *t = context;
    const dsc_kfac_options *own = &t->options.kfac;
    double share = (double)(t->state.position / t->step_images) / (double)t->epoch_steps;
    *hyper = dsc_precondition_hyper(&t->options, *hyper, (double)t->state.epoch + share);
    return own->schedule ? own->schedule(own->context, step, hyper) : DSC_OK;
}

/* ---- making it ---- */

dsc_status dsc_precondition_create(dsc_trainer *t) {
    dsc_kfac_options o = t->options.kfac;
    dsc_kfac_layer *layers = NULL;
    int64_t count = 0;
    if (o.hyper.update_freq == 0)
        return DSC_OK;
    o.schedule = schedule;
    o.context = t;
    o.hyper.diag_blocks = o.diag_blocks;
    o.passes = t->options.batches_per_allreduce;
    dsc_status status = dsc_kfac_layers_of(t->model, &layers, &count);
    status = dsc_comm_agree(t->comm, status);
    if (status == DSC_OK)
        status = dsc_kfac_create(t->comm, t->queue, layers, count, &o, &t->kfac);
    dsc_memory_free(&layers);
    return status;
}

void dsc_precondition_destroy(dsc_trainer *t) {
    dsc_kfac_destroy(&t->kfac);
}
