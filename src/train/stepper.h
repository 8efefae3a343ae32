/* One training step as device work: forward, backward, exchange, preconditioning, update. With p ranks, m
 * micro-batches and batch b:
 *
 *   gradient = 1/p sum_ranks 1/(m b) sum_micro sum_rows dloss/dx
 *
 * so p ranks of batch b, m micro-batches of batch b and one batch of p m b agree up to rounding. With gossip
 * the sum over ranks is left out, and so is every other collective: losses are then the rank's own.
 *
 * What differs from step to step goes to the device first (dsc_stepper_begin, _micro); the rest is the same
 * every time, and on a device that records it is recorded at its second occurrence and replayed from then on,
 * in as few pieces as there are things between them that the host must do: new input for the next
 * micro-batch, decompositions, an exchange that goes over the host. Nothing waits for the device: results are
 * collected when the next step has begun (dsc_stepper_collect). An update that would follow a loss, or a
 * preconditioned gradient, that is not finite is left out by the device, and so are all after it. */
#ifndef DSC_TRAIN_STEPPER_H
#define DSC_TRAIN_STEPPER_H

#include "descent/consensus.h"
#include "descent/kfac.h"
#include "descent/model.h"
#include "descent/optim.h"
#include "train/factors.h"
#include "train/state.h"

typedef struct dsc_stepper dsc_stepper;

/* What it works with; all lent. */
typedef struct dsc_stepper_parts {
    dsc_comm *comm;
    dsc_queue *queue;
    dsc_model *model;
    dsc_exec *exec;
    dsc_optim *optim;
    dsc_consensus *consensus;
    dsc_kfac *kfac;       /* NULL: gradients are left as they are */
    dsc_factors *factors; /* NULL: its factors are no matter of gossip */
    int64_t batch, micro_batches;
    int sampled;   /* the sampled Fisher */
    uint64_t seed; /* of its labels */
    int timed;     /* phases are told, for a little time of the device */
} dsc_stepper_parts;

/* What a step tells. */
typedef struct dsc_step_results {
    double loss_sum, top1, top5, rows; /* of all ranks; with gossip of this one */
    double stop, failed;               /* sums of the flags that were passed; with gossip those passed */
    double nu;                         /* of K-FAC's clip; NaN without K-FAC */
    double skip;                       /* 0: updated; 1: left out, its gradients overflowed; 2: see above */
    double loss_scale;                 /* 1 unless gradients are of fp16 */
    double seconds;                    /* between the steps' ends, or from its begin */
    double ms[DSC_PHASE_COUNT];
} dsc_step_results;

dsc_status dsc_stepper_create(const dsc_stepper_parts *parts, dsc_stepper **out) DSC_MUST_CHECK;
void dsc_stepper_destroy(dsc_stepper **stepper);

/* A step at rate lr; the flags are summed over the ranks unless they gossip. */
dsc_status dsc_stepper_begin(dsc_stepper *s, double lr, int stop, int failed) DSC_MUST_CHECK;
/* Micro-batch 0, 1, ... of it: `step` and its first sample, for whatever draws random numbers. x and labels
 * should lie at the same place in every step. */
dsc_status dsc_stepper_micro(dsc_stepper *s, int64_t step, int64_t first_sample, const dsc_tensor *x,
                             const dsc_tensor *labels) DSC_MUST_CHECK;
/* Collective in effect, without gossip. */
dsc_status dsc_stepper_end(dsc_stepper *s) DSC_MUST_CHECK;

/* Steps that were ended and not collected: the caller keeps at most dsc_stepper_lag() of them before the next
 * begins. */
int dsc_stepper_pending(const dsc_stepper *s);
/* 0 on host devices, 1 on others. */
int dsc_stepper_lag(const dsc_stepper *s);
/* The oldest of them; waits for it. */
dsc_status dsc_stepper_collect(dsc_stepper *s, dsc_step_results *results) DSC_MUST_CHECK;

/* The loss scale, and the steps since it last changed: what a checkpoint holds of it. Both wait. */
dsc_status dsc_stepper_get_scale(dsc_stepper *s, double scale[2]) DSC_MUST_CHECK;
dsc_status dsc_stepper_set_scale(dsc_stepper *s, const double scale[2]) DSC_MUST_CHECK;

#endif
