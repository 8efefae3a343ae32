/* First-order optimisers over a list of parameters. The formulas are operations of the device (device/ops.h);
 * this file owns the state, passes the hyper-parameters, clips the gradients and calls the operations.
 *
 * sgd, adam and adamw are element-wise, so parameters that are contiguous in memory (values as well as gradients)
 * are updated in one call. lars and lamb need the norms of each parameter, so they are called once per
 * parameter. State tensors of one kind lie in one block in the order of the parameters: if parameters are
 * contiguous, so is their state. If weight decay reads other tensors than the values (`read`), these need not be
 * contiguous, and every parameter is updated by its own call.
 *
 * All that is specific to one optimiser is its update function and its entry in `rules`. */
#include "optim/optim_parts.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/option.h"
#include "base/versioned.h"
#include "device/ops.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_SLOTS = 2 }; /* state tensors per parameter */

/* One parameter, or several contiguous ones: value, gradient and state as vectors. */
typedef struct piece {
    int64_t first; /* its first element among those of all parameters */
    dsc_tensor value, grad;
    dsc_tensor slot[MAX_SLOTS];
    int group; /* index of its hyper-parameters in `groups`; -1: it is not updated */
} piece;

/* Parameters that have the same hyper-parameters. */
typedef struct group {
    double factor;    /* the learning rate is multiplied by this */
    int decays;       /* 1: weight decay acts on them */
    dsc_tensor hyper; /* F64[DSC_HYPER_COUNT] */
} group;

/* One kind of optimiser. */
typedef struct rule {
    const char *slot_name[MAX_SLOTS]; /* the names of a parameter's state tensors; NULL: fewer */
    int per_param;                    /* 1: needs norms of single parameters */
    int direction;                    /* 1: needs a scratch vector as long as a parameter */
    double eps;                       /* the default of the option eps */
    double rate;                      /* the trainer's default learning rate */
    /* Updates p->value and the state p->slot with p->grad; weight decay and norms read z. */
    dsc_status (*update)(dsc_optim *o, dsc_queue *queue, piece *p, const dsc_tensor *z);
} rule;

struct dsc_optim {
    dsc_device *device;
    const rule *rule;
    int slots; /* state tensors per parameter */
    dsc_optim_options options;
    int64_t steps;

    piece *params; /* one per parameter */
    int64_t count;
    piece *runs; /* the same with contiguous parameters merged, without those that are not updated */
    int64_t run_count;

    dsc_tensor block[MAX_SLOTS]; /* the state's memory, one parameter after the other */
    dsc_param *state;            /* views of it, with names in `names` */
    char *names;

    group *groups; /* the first has factor 1 and weight decay */
    int group_count;
    int64_t group_capacity;
    dsc_tensor hypers;        /* F64[group_count, DSC_HYPER_COUNT]: the memory of all groups */
    dsc_tensor skip;          /* the last element of the first group's hyper-parameters */
    dsc_tensor norms;         /* F64[2], for rules with per_param */
    dsc_tensor direction;     /* as long as the longest parameter, for rules with direction */
    dsc_tensor sumsq, factor; /* F64 scalars, for clipping */
};

/* ---- the optimisers ---- */

/* Fills in the tensors of an update, without norms. */
static dsc_update tensors_of(dsc_optim *o, piece *p, const dsc_tensor *z) {
    return (dsc_update){.hyper = &o->groups[p->group].hyper,
                        .z = z,
                        .g = &p->grad,
                        .m = &p->slot[0],
                        .v = o->slots > 1 ? &p->slot[1] : NULL,
                        .x = &p->value};
}

static dsc_status update_sgd(dsc_optim *o, dsc_queue *queue, piece *p, const dsc_tensor *z) {
    dsc_update u = tensors_of(o, p, z);
    return dsc_op_update(queue, o->options.nesterov ? DSC_UPDATE_NESTEROV : DSC_UPDATE_SGD, &u);
}

/* Weight decay is added to the gradient. */
static dsc_status update_adam(dsc_optim *o, dsc_queue *queue, piece *p, const dsc_tensor *z) {
    dsc_update u = tensors_of(o, p, z);
    return dsc_op_update(queue, DSC_UPDATE_ADAM, &u);
}

/* Weight decay acts on the values directly (decoupled), not through the gradient. */
static dsc_status update_adamw(dsc_optim *o, dsc_queue *queue, piece *p, const dsc_tensor *z) {
    dsc_update u = tensors_of(o, p, z);
    return dsc_op_update(queue, DSC_UPDATE_ADAMW, &u);
}

static dsc_status update_lars(dsc_optim *o, dsc_queue *queue, piece *p, const dsc_tensor *z) {
    dsc_tensor z_norm = dsc_tensor_slice(&o->norms, 0, 1), g_norm = dsc_tensor_slice(&o->norms, 1, 1);
    dsc_update u = tensors_of(o, p, z);
    DSC_TRY(dsc_op_dot(queue, z, z, 0, &z_norm));
    DSC_TRY(dsc_op_dot(queue, &p->grad, &p->grad, 0, &g_norm));
    u.norms = &o->norms;
    return dsc_op_update(queue, DSC_UPDATE_LARS, &u);
}

/* The rate depends on the norm of the direction, so the direction is computed first. */
static dsc_status update_lamb(dsc_optim *o, dsc_queue *queue, piece *p, const dsc_tensor *z) {
    dsc_tensor z_norm = dsc_tensor_slice(&o->norms, 0, 1), u_norm = dsc_tensor_slice(&o->norms, 1, 1);
    dsc_tensor direction = dsc_tensor_slice(&o->direction, 0, p->value.dim[0]);
    dsc_update u = tensors_of(o, p, z);
    u.x = &direction;
    DSC_TRY(dsc_op_update(queue, DSC_UPDATE_LAMB_DIRECTION, &u));
    DSC_TRY(dsc_op_dot(queue, z, z, 0, &z_norm));
    DSC_TRY(dsc_op_dot(queue, &direction, &direction, 0, &u_norm));
    u = (dsc_update){.hyper = u.hyper, .norms = &o->norms, .g = &direction, .x = &p->value};
    return dsc_op_update(queue, DSC_UPDATE_LAMB_APPLY, &u);
}

static const rule rules[] = {
    [DSC_SGD] = {.slot_name = {"momentum"}, .eps = 1e-8, .rate = 0.1, .update = update_sgd},
    [DSC_ADAM] = {.slot_name = {"exp_avg", "exp_avg_sq"}, .eps = 1e-8, .rate = 0.001, .update = update_adam},
    [DSC_ADAMW] = {.slot_name = {"exp_avg", "exp_avg_sq"},
                   .eps = 1e-8,
                   .rate = 0.001,
                   .update = update_adamw},
    [DSC_LARS] = {.slot_name = {"momentum"}, .per_param = 1, .eps = 1e-8, .rate = 1, .update = update_lars},
    [DSC_LAMB] = {.slot_name = {"exp_avg", "exp_avg_sq"},
                  .per_param = 1,
                  .direction = 1,
                  .eps = 1e-6,
                  .rate = 0.005,
                  .update = update_lamb},
};

double dsc_optim_default_rate(dsc_optim_kind kind) {
    const int known = kind >= 0 && (size_t)kind < sizeof rules / sizeof *rules;
    return known && rules[kind].rate > 0 ? rules[kind].rate : rules[DSC_SGD].rate;
}

/* ---- options ---- */

/* Copies the caller's options over the defaults and checks them. */
static dsc_status take_options(const dsc_optim_options *given, dsc_optim_options *out) {
    dsc_optim_options_init(out);
    DSC_TRY(dsc_versioned_read("optim", given, sizeof *out, out));
    DSC_TRY(dsc_option_check_values(dsc_optim_option_table(), out, ""));
    if (out->eps < 0)
        out->eps = rules[out->kind].eps;
    return DSC_OK;
}

static dsc_status check_factors(const double *factors, const dsc_param *params, int64_t count) {
    for (int64_t i = 0; i < count && factors; i++)
        if (!(factors[i] >= 0 && isfinite(factors[i])))
            return DSC_FAIL(DSC_E_INVALID, "parameter '%s': the factor of its rate is %g: must be 0 or more",
                            params[i].name, factors[i]);
    return DSC_OK;
}

static int has_memory(const dsc_device *device, const dsc_tensor *t) {
    return t->device == device && (t->data || dsc_tensor_count(t) == 0);
}

static dsc_status check_params(dsc_device *device, const dsc_param *params, int64_t count) {
    if (count < 0)
        return DSC_FAIL(DSC_E_INVALID, "%lld parameters: must be 0 or more", (long long)count);
    if (count > 0 && !params)
        return DSC_FAIL(DSC_E_INVALID, "%lld parameters at NULL", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        const dsc_tensor *value = &params[i].value, *grad = &params[i].grad;
        if (!params[i].name)
            return DSC_FAIL(DSC_E_INVALID, "parameter %lld has no name", (long long)i);
        if (!has_memory(device, value) || !has_memory(device, grad))
            return DSC_FAIL(DSC_E_INVALID, "parameter '%s' is not in memory of the queue's device '%s'",
                            params[i].name, dsc_device_name(device));
        if (value->dtype != DSC_F32 && value->dtype != DSC_F64)
            return DSC_FAIL(DSC_E_INVALID, "parameter '%s' is %s: must be fp32 or fp64", params[i].name,
                            dsc_dtype_name(value->dtype));
        if (value->dtype != params[0].value.dtype || grad->dtype != value->dtype)
            return DSC_FAIL(DSC_E_INVALID, "parameter '%s': all values and gradients must be of one type",
                            params[i].name);
        if (dsc_tensor_count(value) != dsc_tensor_count(grad))
            return DSC_FAIL(
                DSC_E_INVALID, "parameter '%s' has %lld elements and its gradient %lld: must be equal",
                params[i].name, (long long)dsc_tensor_count(value), (long long)dsc_tensor_count(grad));
    }
    return DSC_OK;
}

/* ---- creating and destroying ---- */

static dsc_tensor as_vector(const dsc_tensor *t) {
    return dsc_tensor_slice(t, 0, dsc_tensor_count(t));
}

static int follows(const dsc_tensor *before, const dsc_tensor *t) {
    return (const char *)before->data + dsc_tensor_bytes(before) == (const char *)t->data;
}

/* Sets *out to the index of the group with this factor and decay, which is added if there is none. */
static dsc_status find_group(dsc_optim *o, double factor, int decays, int *out) {
    for (*out = 0; *out < o->group_count; (*out)++)
        if (o->groups[*out].factor == factor && o->groups[*out].decays == decays)
            return DSC_OK;
    DSC_TRY(dsc_memory_grow(&o->groups, &o->group_capacity, o->group_count + 1, sizeof *o->groups));
    o->groups[o->group_count++] = (group){.factor = factor, .decays = decays};
    return DSC_OK;
}

/* Merges parameters of the same group whose values and gradients are contiguous in memory. */
static void merge_runs(dsc_optim *o) {
    for (int64_t i = 0; i < o->count; i++) {
        const piece *p = &o->params[i];
        piece *last = o->run_count ? &o->runs[o->run_count - 1] : NULL;
        if (p->group < 0)
            continue;
        if (last && last->group == p->group && follows(&last->value, &p->value) &&
            follows(&last->grad, &p->grad)) {
            last->value.dim[0] += p->value.dim[0];
            last->grad.dim[0] += p->grad.dim[0];
        } else {
            o->runs[o->run_count++] = *p;
        }
    }
    for (int64_t i = 0; i < o->run_count; i++)
        for (int s = 0; s < o->slots; s++)
            o->runs[i].slot[s] = dsc_tensor_slice(&o->block[s], o->runs[i].first, o->runs[i].value.dim[0]);
}

static dsc_status alloc_state(dsc_optim *o, const dsc_param *params) {
    int64_t total = 0;
    for (int64_t i = 0; i < o->count; i++)
        total += dsc_tensor_count(&params[i].value);
    dsc_dtype dtype = o->count ? params[0].value.dtype : DSC_F32;
    for (int s = 0; s < o->slots; s++)
        DSC_TRY(dsc_tensor_alloc(o->device, dtype, 1, &total, &o->block[s]));
    DSC_TRY(dsc_memory_alloc(o->count, sizeof *o->params, &o->params));
    DSC_TRY(dsc_memory_alloc(o->count, sizeof *o->runs, &o->runs));
    int64_t first = 0;
    for (int64_t i = 0; i < o->count; i++) {
        piece *p = &o->params[i];
        const double factor = o->options.factors ? o->options.factors[i] : 1;
        *p = (piece){.first = first,
                     .value = as_vector(&params[i].value),
                     .grad = as_vector(&params[i].grad),
                     .group = -1};
        if (factor > 0)
            DSC_TRY(find_group(o, factor, o->options.decay_on == DSC_DECAY_ALL || params[i].value.ndim > 1,
                               &p->group));
        for (int s = 0; s < o->slots; s++)
            p->slot[s] = dsc_tensor_slice(&o->block[s], first, p->value.dim[0]);
        first += p->value.dim[0];
    }
    merge_runs(o);
    return DSC_OK;
}

/* Makes views of the state with the shapes of the parameters, and their names. */
static dsc_status name_state(dsc_optim *o, const dsc_param *params) {
    size_t bytes = 0;
    for (int64_t i = 0; i < o->count; i++)
        for (int s = 0; s < o->slots; s++)
            bytes += strlen(o->rule->slot_name[s]) + 1 + strlen(params[i].name) + 1;
    DSC_TRY(dsc_memory_alloc((int64_t)bytes, 1, &o->names));
    DSC_TRY(dsc_memory_alloc(o->count * o->slots, sizeof *o->state, &o->state));
    size_t used = 0;
    for (int64_t i = 0; i < o->count; i++)
        for (int s = 0; s < o->slots; s++) {
            dsc_param *entry = &o->state[i * o->slots + s];
            entry->name = o->names + used;
            used += 1 + (size_t)snprintf(o->names + used, bytes - used, "%s.%s", o->rule->slot_name[s],
                                         params[i].name);
            entry->value = params[i].value;
            entry->value.data = o->params[i].slot[s].data;
        }
    return DSC_OK;
}

static dsc_status alloc_scratch(dsc_optim *o) {
    const int64_t one = 1, two = 2, hypers = (int64_t)o->group_count * DSC_HYPER_COUNT;
    DSC_TRY(dsc_tensor_alloc(o->device, DSC_F64, 1, &hypers, &o->hypers));
    for (int i = 0; i < o->group_count; i++)
        o->groups[i].hyper = dsc_tensor_slice(&o->hypers, (int64_t)i * DSC_HYPER_COUNT, DSC_HYPER_COUNT);
    o->skip = dsc_tensor_slice(&o->groups[0].hyper, DSC_HYPER_SKIP, 1);
    if (o->rule->per_param)
        DSC_TRY(dsc_tensor_alloc(o->device, DSC_F64, 1, &two, &o->norms));
    if (o->options.clip_norm > 0) {
        DSC_TRY(dsc_tensor_alloc(o->device, DSC_F64, 1, &one, &o->sumsq));
        DSC_TRY(dsc_tensor_alloc(o->device, DSC_F64, 1, &one, &o->factor));
    }
    if (o->rule->direction && o->count) {
        int64_t longest = 0;
        for (int64_t i = 0; i < o->count; i++)
            if (o->params[i].value.dim[0] > longest)
                longest = o->params[i].value.dim[0];
        DSC_TRY(dsc_tensor_alloc(o->device, o->params[0].value.dtype, 1, &longest, &o->direction));
    }
    return DSC_OK;
}

dsc_status dsc_optim_create(dsc_queue *queue, const dsc_param *params, int64_t count,
                            const dsc_optim_options *options, dsc_optim **out) {
    dsc_optim_options taken;
    if (!queue)
        return DSC_FAIL(DSC_E_INVALID, "optimiser: no queue");
    DSC_TRY(take_options(options, &taken));
    DSC_TRY(check_params(dsc_queue_device(queue), params, count));
    DSC_TRY(check_factors(taken.factors, params, count));
    dsc_optim *o;
    DSC_TRY(dsc_memory_alloc(1, sizeof *o, &o));
    o->device = dsc_queue_device(queue);
    o->options = taken;
    o->rule = &rules[taken.kind];
    while (o->slots < MAX_SLOTS && o->rule->slot_name[o->slots])
        o->slots++;
    o->count = count;
    int first;
    dsc_status status;
    DSC_TRY_GOTO(status, find_group(o, 1, 1, &first), failed);
    DSC_TRY_GOTO(status, alloc_state(o, params), failed);
    DSC_TRY_GOTO(status, name_state(o, params), failed);
    DSC_TRY_GOTO(status, alloc_scratch(o), failed);
    o->options.factors = NULL; /* not needed any more, and owned by the caller */
    *out = o;
    return DSC_OK;
failed:
    dsc_optim_destroy(&o);
    return status;
}

void dsc_optim_destroy(dsc_optim **optim) {
    if (!optim || !*optim)
        return;
    dsc_optim *o = *optim;
    dsc_tensor *owned[] = {&o->hypers, &o->norms,    &o->direction, &o->sumsq,
                           &o->factor, &o->block[0], &o->block[1]};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        if (owned[i]->data)
            dsc_tensor_free(owned[i]);
    dsc_memory_free(&o->groups);
    dsc_memory_free(&o->params);
    dsc_memory_free(&o->runs);
    dsc_memory_free(&o->state);
    dsc_memory_free(&o->names);
    dsc_memory_free(optim);
}

/* ---- the step ---- */

dsc_status dsc_optim_prepare(dsc_optim *optim, dsc_queue *queue, double lr) {
    dsc_optim *o = optim;
    double t = (double)(o->steps + 1);
    double h[DSC_HYPER_SKIP] = {
        [DSC_HYPER_MOMENTUM] = o->options.momentum,
        [DSC_HYPER_BETA1] = o->options.beta1,
        [DSC_HYPER_BETA2] = o->options.beta2,
        [DSC_HYPER_EPS] = o->options.eps,
        [DSC_HYPER_CORRECTION1] = 1 - pow(o->options.beta1, t),
        [DSC_HYPER_CORRECTION2] = 1 - pow(o->options.beta2, t),
        [DSC_HYPER_TRUST] = o->options.trust,
    };
    if (!(lr >= 0 && isfinite(lr)))
        return DSC_FAIL(DSC_E_INVALID, "learning rate %g: must be 0 or more", lr);
    for (int i = 0; i < o->group_count; i++) {
        dsc_tensor numbers = dsc_tensor_slice(&o->groups[i].hyper, 0, DSC_HYPER_SKIP);
        h[DSC_HYPER_LR] = lr * o->groups[i].factor;
        h[DSC_HYPER_DECAY] = o->groups[i].decays ? o->options.weight_decay : 0;
        DSC_TRY(dsc_tensor_upload(queue, h, sizeof h, &numbers));
    }
    o->steps++;
    return DSC_OK;
}

/* Computes g *= min(1, limit / |all g|) on the device, without downloading the norm. */
static dsc_status clip(dsc_optim *o, dsc_queue *queue) {
    for (int64_t i = 0; i < o->run_count; i++)
        DSC_TRY(dsc_op_dot(queue, &o->runs[i].grad, &o->runs[i].grad, i > 0, &o->sumsq));
    DSC_TRY(dsc_op_clip_factor(queue, &o->sumsq, o->options.clip_norm, &o->factor));
    for (int64_t i = 0; i < o->run_count; i++)
        DSC_TRY(dsc_op_scale_by(queue, &o->factor, &o->runs[i].grad));
    return DSC_OK;
}

static dsc_status check_read(const dsc_optim *o, const dsc_tensor *read) {
    for (int64_t i = 0; i < o->count; i++)
        if (dsc_tensor_count(&read[i]) != o->params[i].value.dim[0])
            return DSC_FAIL(DSC_E_INVALID, "tensor %lld to read has %lld elements: its parameter has %lld",
                            (long long)i, (long long)dsc_tensor_count(&read[i]),
                            (long long)o->params[i].value.dim[0]);
    return DSC_OK;
}

dsc_status dsc_optim_apply(dsc_optim *optim, dsc_queue *queue, const dsc_tensor *read) {
    if (read)
        DSC_TRY(check_read(optim, read));
    if (optim->options.clip_norm > 0)
        DSC_TRY(clip(optim, queue));
    for (int i = 1; i < optim->group_count; i++) { /* only the device knows whether the step is skipped */
        dsc_tensor skip = dsc_tensor_slice(&optim->groups[i].hyper, DSC_HYPER_SKIP, 1);
        DSC_TRY(dsc_op_convert(queue, &optim->skip, &skip));
    }
    int single = read || optim->rule->per_param;
    piece *pieces = single ? optim->params : optim->runs;
    int64_t count = single ? optim->count : optim->run_count;
    for (int64_t i = 0; i < count; i++) {
        if (pieces[i].group < 0)
            continue;
        dsc_tensor z = read ? as_vector(&read[i]) : pieces[i].value;
        DSC_TRY(optim->rule->update(optim, queue, &pieces[i], &z));
    }
    return DSC_OK;
}

dsc_status dsc_optim_step(dsc_optim *optim, dsc_queue *queue, double lr, const dsc_tensor *read) {
    if (read)
        DSC_TRY(check_read(optim, read));
    DSC_TRY(dsc_optim_prepare(optim, queue, lr));
    return dsc_optim_apply(optim, queue, read);
}

/* ---- what an optimiser holds ---- */

const dsc_tensor *dsc_optim_skip(const dsc_optim *optim) {
    return &optim->skip;
}

const dsc_tensor *dsc_optim_grad_sumsq(const dsc_optim *optim) {
    return optim->sumsq.data ? &optim->sumsq : NULL;
}

int64_t dsc_optim_state_count(const dsc_optim *optim) {
    return optim->count * optim->slots;
}

const dsc_param *dsc_optim_state(const dsc_optim *optim) {
    return optim->state;
}

int64_t dsc_optim_steps(const dsc_optim *optim) {
    return optim->steps;
}

void dsc_optim_set_steps(dsc_optim *optim, int64_t steps) {
    const int64_t most = (int64_t)1 << 53; /* leaves room for further steps */
    optim->steps = steps < 0 ? 0 : steps > most ? most : steps;
}
