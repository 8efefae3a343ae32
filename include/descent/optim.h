/* First-order optimisers over a list of parameters, and learning-rate schedules. */
#ifndef DSC_OPTIM_H
#define DSC_OPTIM_H

#include "descent/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_optim dsc_optim;

typedef enum dsc_optim_kind { DSC_SGD, DSC_ADAM, DSC_ADAMW, DSC_LARS, DSC_LAMB } dsc_optim_kind;

/* Which parameters weight decay acts on. WEIGHTS: those of two dimensions or more, so neither biases nor the
 * scale and shift of normalisations. */
typedef enum dsc_decay_on { DSC_DECAY_ALL, DSC_DECAY_WEIGHTS } dsc_decay_on;

typedef struct dsc_optim_options {
    size_t size;
    dsc_optim_kind kind; /* default DSC_SGD */
    double momentum;     /* sgd, lars; default 0.9 */
    int nesterov;        /* sgd; default 0 */
    double weight_decay; /* default 5e-4 */
    double beta1, beta2; /* adam, adamw, lamb; defaults 0.9 and 0.999 */
    double eps;          /* adam, adamw, lamb; negative (the default): 1e-8, with lamb 1e-6 */
    double trust;        /* lars's eta; default 0.001 */
    double clip_norm;    /* gradients are scaled so that their joint norm is at most this; 0 (default): off */
    dsc_decay_on decay_on; /* default DSC_DECAY_ALL */
    /* For each parameter the factor of its learning rate; 0: it is not updated, and its gradient does not
     * count for clip_norm. Read by dsc_optim_create only. NULL (default): 1 for all. */
    const double *factors;
} dsc_optim_options;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_optim_options_init_sized(dsc_optim_options *options, size_t size);
#define dsc_optim_options_init(options) dsc_optim_options_init_sized((options), sizeof *(options))
/* "sgd" to DSC_SGD, and back. The message of DSC_E_INVALID lists the known names. */
DSC_API dsc_status dsc_optim_parse(const char *name, dsc_optim_kind *out) DSC_MUST_CHECK;
DSC_API const char *dsc_optim_name(dsc_optim_kind kind);
/* The learning rate that the trainer uses with this optimiser when none is given. */
DSC_API double dsc_optim_default_rate(dsc_optim_kind kind);

/* `params` is copied; names and memory stay the caller's. Parameters that are neighbours in memory are
 * updated together. All state is allocated here, none in a step. */
DSC_API dsc_status dsc_optim_create(dsc_queue *queue, const dsc_param *params, int64_t count,
                                    const dsc_optim_options *options, dsc_optim **out) DSC_MUST_CHECK;
/* Accepts NULL and *optim == NULL. */
DSC_API void dsc_optim_destroy(dsc_optim **optim);
/* One step with learning rate `lr`: clips the gradients in place, then updates the values. `read` holds one
 * tensor per parameter with the values that weight decay and norms use (gossip: see
 * dsc_consensus_update_begin); NULL: the parameters themselves. Asynchronous. */
DSC_API dsc_status dsc_optim_step(dsc_optim *optim, dsc_queue *queue, double lr,
                                  const dsc_tensor *read) DSC_MUST_CHECK;
/* The squared joint norm of the gradients of the last step before clipping: one F64 on the device, owned
 * by the optimiser. NULL when clip_norm is 0. */
DSC_API const dsc_tensor *dsc_optim_grad_sumsq(const dsc_optim *optim);

/* State for checkpoints: named tensors ("momentum.NAME", "exp_avg.NAME", "exp_avg_sq.NAME") that are read and
 * overwritten in place. They stay owned by the optimiser; grad.data is NULL. */
DSC_API int64_t dsc_optim_state_count(const dsc_optim *optim);
DSC_API const dsc_param *dsc_optim_state(const dsc_optim *optim);
/* The number of steps done; set_steps limits it to 0..2^53. */
DSC_API int64_t dsc_optim_steps(const dsc_optim *optim);
DSC_API void dsc_optim_set_steps(dsc_optim *optim, int64_t steps);

/* Learning-rate schedules: the rate is a pure function of the step (schedule.c has the formulas). The kinds
 * are named after what the rate does once it has reached its target. */
typedef enum dsc_schedule_kind {
    DSC_SCHEDULE_STEP,      /* it is multiplied by a factor at given epochs */
    DSC_SCHEDULE_COSINE,    /* half a cosine, to 0 at the end of the run */
    DSC_SCHEDULE_ONE_CYCLE, /* no warm-up: rises from 1/25 of the target along a cosine, and falls along one */
    DSC_SCHEDULE_LINEAR,    /* a straight line, to 0 at the end of the run */
    DSC_SCHEDULE_POLYNOMIAL, /* (1 - p)^power, where p is the part done of the epochs after warm-up */
    DSC_SCHEDULE_RESTARTS    /* half a cosine to 0, again and again from the target */
} dsc_schedule_kind;

enum { DSC_MAX_DECAYS = 32 };

typedef struct dsc_schedule {
    dsc_schedule_kind kind;
    double target;        /* the rate after warm-up */
    double warmup_start;  /* the rate of step 0 */
    double warmup_epochs; /* the rate rises linearly, step by step, over so many epochs; 0: no warm-up */
    /* STEP: factor of the rate at each of the epochs in `decay`. POLYNOMIAL: the power. ONE_CYCLE: the part
     * of the run in which the rate rises. RESTARTS: factor of the period at each restart, 1 or more. */
    double decay_rate;
    double decay[DSC_MAX_DECAYS]; /* STEP: epochs. RESTARTS: decay[0] is the first period in epochs. */
    int decay_count;
    double epochs;           /* of the run: all kinds but STEP and RESTARTS end there */
    int64_t steps_per_epoch; /* > 0 */
} dsc_schedule;

DSC_API double dsc_schedule_rate(const dsc_schedule *schedule, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
