/* First-order optimisers for a list of parameters, and learning-rate schedules. */
#ifndef DSC_OPTIM_H
#define DSC_OPTIM_H

#include "descent/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_optim dsc_optim;

typedef enum dsc_optim_kind { DSC_SGD, DSC_ADAM, DSC_ADAMW, DSC_LARS, DSC_LAMB } dsc_optim_kind;

/* Which parameters weight decay acts on. WEIGHTS: those with two dimensions or more, that is, neither biases nor the
 * scale and shift of normalisations. */
typedef enum dsc_decay_on { DSC_DECAY_ALL, DSC_DECAY_WEIGHTS } dsc_decay_on;

typedef struct dsc_optim_options {
    size_t size;
    dsc_optim_kind kind; /* default DSC_SGD */
    double momentum;     /* sgd, lars; default 0.9 */
    int nesterov;        /* sgd; 1: Nesterov momentum; default 0 */
    double weight_decay; /* default 5e-4 */
    double beta1, beta2; /* adam, adamw, lamb; defaults 0.9 and 0.999 */
    double eps;          /* adam, adamw, lamb; negative (default): 1e-8, and 1e-6 for lamb */
    double trust;        /* lars: the trust coefficient eta; default 0.001 */
    double clip_norm;    /* gradients are scaled so that their joint norm is at most this; 0 (default): off */
    dsc_decay_on decay_on; /* default DSC_DECAY_ALL */
    /* For each parameter, the factor that its learning rate is multiplied by; 0: it is not updated, and its gradient
     * does not count for clip_norm. Read only by dsc_optim_create. NULL (default): 1 for all. */
    const double *factors;
} dsc_optim_options;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_optim_options_init_sized(dsc_optim_options *options, size_t size);
#define dsc_optim_options_init(options) dsc_optim_options_init_sized((options), sizeof *(options))
/* Converts a name, such as "sgd", to its constant, here DSC_SGD, and back. An unknown name is DSC_E_INVALID, and the
 * message lists the known ones. */
DSC_API dsc_status dsc_optim_parse(const char *name, dsc_optim_kind *out) DSC_MUST_CHECK;
DSC_API const char *dsc_optim_name(dsc_optim_kind kind);
/* Returns the learning rate that the trainer uses with this optimiser if none is given. */
DSC_API double dsc_optim_default_rate(dsc_optim_kind kind);

/* Creates an optimiser of params[count]. `params` is copied; the names and the memory of the tensors stay the caller's.
 * Parameters that are adjacent in memory are updated together. All state is allocated here, none in a step. */
DSC_API dsc_status dsc_optim_create(dsc_queue *queue, const dsc_param *params, int64_t count,
                                    const dsc_optim_options *options, dsc_optim **out) DSC_MUST_CHECK;
/* Destroys an optimiser and sets *optim to NULL. Accepts NULL and *optim == NULL. */
DSC_API void dsc_optim_destroy(dsc_optim **optim);
/* Does one step with learning rate `lr`: clips the gradients in place if clip_norm is set, then updates the values.
 * `read` holds one tensor per parameter with the values that weight decay and norms use instead of the parameters
 * themselves (for gossip, see dsc_consensus_update_begin); NULL: the parameters. Asynchronous. */
DSC_API dsc_status dsc_optim_step(dsc_optim *optim, dsc_queue *queue, double lr,
                                  const dsc_tensor *read) DSC_MUST_CHECK;
/* Returns the squared joint norm of the gradients of the last step before clipping: one F64 on the device, owned
 * by the optimiser. NULL if clip_norm is 0. */
DSC_API const dsc_tensor *dsc_optim_grad_sumsq(const dsc_optim *optim);

/* The state for checkpoints: an array of named tensors ("momentum.NAME", "exp_avg.NAME", "exp_avg_sq.NAME"), which the
 * caller reads and overwrites in place. They belong to the optimiser; grad.data is NULL. */
DSC_API int64_t dsc_optim_state_count(const dsc_optim *optim);
DSC_API const dsc_param *dsc_optim_state(const dsc_optim *optim);
/* Returns or sets the number of steps done; a number that is set is limited to 0..2^53. */
DSC_API int64_t dsc_optim_steps(const dsc_optim *optim);
DSC_API void dsc_optim_set_steps(dsc_optim *optim, int64_t steps);

/* Learning-rate schedules: the rate is a pure function of the step (src/optim/schedule.c has the formulas). The kinds
 * are named after what the rate does once warm-up has brought it to its target. */
typedef enum dsc_schedule_kind {
    DSC_SCHEDULE_STEP,      /* it is multiplied by a factor at given epochs */
    DSC_SCHEDULE_COSINE,    /* half a cosine, to 0 at the end of the run */
    DSC_SCHEDULE_ONE_CYCLE, /* no warm-up: rises from 1/25 of the target along a cosine, and falls along one */
    DSC_SCHEDULE_LINEAR,    /* a straight line, to 0 at the end of the run */
    DSC_SCHEDULE_POLYNOMIAL, /* target (1 - p)^power, p the fraction done of the epochs after warm-up */
    DSC_SCHEDULE_RESTARTS    /* half a cosine from the target to 0, again and again */
} dsc_schedule_kind;

enum { DSC_MAX_DECAYS = 32 };

typedef struct dsc_schedule {
    dsc_schedule_kind kind;
    double target;        /* the rate after warm-up */
    double warmup_start;  /* the rate of step 0 */
    double warmup_epochs; /* the rate rises linearly, step by step, over this many epochs; 0: no warm-up */
    /* STEP: the rate is multiplied by this at each of the epochs in `decay`. POLYNOMIAL: the power. ONE_CYCLE: the
     * fraction of the run in which the rate rises. RESTARTS: the period is multiplied by this at each restart; at
     * least 1. */
    double decay_rate;
    double decay[DSC_MAX_DECAYS]; /* STEP: the epochs. RESTARTS: decay[0] is the first period in epochs. */
    int decay_count;
    double epochs;           /* of the run, at whose end all kinds but STEP and RESTARTS end */
    int64_t steps_per_epoch; /* > 0 */
} dsc_schedule;

/* Returns the learning rate of step `step`, counted from 0. */
DSC_API double dsc_schedule_rate(const dsc_schedule *schedule, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
