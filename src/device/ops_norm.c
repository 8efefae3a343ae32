/* Fronts of batch norm and group norm: check, early out, select, execute. */
#include "device/checks.h"

#include "base/error.h"

/* Checks that x has channels and that eps is not negative. */
static dsc_status check_input(dsc_check *check, const char *op, dsc_queue *q, const dsc_norm_desc *desc,
                              const dsc_tensor *x) {
    DSC_TRY(dsc_check_begin_half(check, op, q, "x", x));
    if (x->ndim < 1)
        return DSC_FAIL(DSC_E_INVALID, "%s: x has no dimension; [..., c] is expected", op);
    if (!(desc->eps >= 0))
        return DSC_FAIL(DSC_E_INVALID, "%s: eps is %g; it may not be negative", op, desc->eps);
    return DSC_OK;
}

static dsc_status check_channels(const dsc_check *check, const char *name, const dsc_tensor *t,
                                 const dsc_tensor *x) {
    DSC_TRY(dsc_check_param_shape(check, name, t, DSC_SHAPE(x->dim[x->ndim - 1])));
    return DSC_OK;
}

/* Checks dsc_norm_params.applied: [2, c], or NULL. */
static dsc_status check_applied(const dsc_check *check, const dsc_tensor *t, const dsc_tensor *x) {
    if (t)
        DSC_TRY(dsc_check_param_shape(check, "applied", t, DSC_SHAPE(2, x->dim[x->ndim - 1])));
    return DSC_OK;
}

static dsc_status check_forward(dsc_check *check, const char *op, dsc_queue *q, const dsc_norm_desc *desc,
                                const dsc_tensor *x, const dsc_tensor *residual,
                                const dsc_norm_params *params, const dsc_tensor *y) {
    DSC_TRY(check_input(check, op, q, desc, x));
    DSC_TRY(check_channels(check, "gamma", params->gamma, x));
    DSC_TRY(check_channels(check, "shift", params->shift, x));
    DSC_TRY(check_channels(check, "running_mean", params->running_mean, x));
    DSC_TRY(check_channels(check, "running_var", params->running_var, x));
    DSC_TRY(dsc_check_real_like(check, "y", y, "x", x));
    DSC_TRY(dsc_check_apart(check, "y", y, "x", x));
    if (residual) {
        DSC_TRY(dsc_check_real_like(check, "residual", residual, "x", x));
        DSC_TRY(dsc_check_apart_or_same(check, "y", y, "residual", residual));
    }
    return DSC_OK;
}

dsc_status dsc_op_norm_forward_train(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                     const dsc_tensor *residual, const dsc_norm_params *params,
                                     dsc_tensor *mean, dsc_tensor *invstd, dsc_tensor *y) {
    dsc_check check;
    DSC_TRY(check_forward(&check, "norm_forward_train", q, desc, x, residual, params, y));
    DSC_TRY(check_channels(&check, "mean", mean, x));
    DSC_TRY(check_channels(&check, "invstd", invstd, x));
    DSC_TRY(check_applied(&check, params->applied, x));
    if (params->applied && residual)
        return DSC_FAIL(DSC_E_INVALID, "norm_forward_train: applied is computed without the residual; leave "
                                       "one of them out");
    if (!(desc->momentum >= 0 && desc->momentum <= 1))
        return DSC_FAIL(DSC_E_INVALID, "norm_forward_train: the momentum is %g; 0 to 1 is expected",
                        desc->momentum);
    if (dsc_tensor_count(x) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)
                ->norm_forward_train(q, desc, x, residual, params, mean, invstd, y));
    return DSC_OK;
}

dsc_status dsc_op_norm_forward_eval(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                    const dsc_tensor *residual, const dsc_norm_params *params,
                                    dsc_tensor *y) {
    dsc_check check;
    DSC_TRY(check_forward(&check, "norm_forward_eval", q, desc, x, residual, params, y));
    if (dsc_tensor_count(x) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->norm_forward_eval(q, desc, x, residual, params, y));
    return DSC_OK;
}

static dsc_status check_grads(const dsc_check *check, const dsc_tensor *x, const dsc_tensor *dy,
                              const dsc_norm_grads *grads) {
    DSC_TRY(dsc_check_real_like(check, "dx", grads->dx, "x", x));
    DSC_TRY(dsc_check_apart(check, "dx", grads->dx, "x", x));
    if (grads->beta_x == 0)
        DSC_TRY(dsc_check_apart_or_same(check, "dx", grads->dx, "dy", dy));
    else
        DSC_TRY(dsc_check_apart(check, "dx", grads->dx, "dy", dy));
    DSC_TRY(dsc_check_beta(check, "beta_x", grads->beta_x));
    DSC_TRY(check_applied(check, grads->applied, x));
    DSC_TRY(check_channels(check, "dgamma", grads->dgamma, x));
    DSC_TRY(check_channels(check, "dshift", grads->dshift, x));
    DSC_TRY(dsc_check_beta(check, "beta_p", grads->beta_p));
    if (grads->dresidual) {
        DSC_TRY(dsc_check_real_like(check, "dresidual", grads->dresidual, "x", x));
        DSC_TRY(dsc_check_apart(check, "dresidual", grads->dresidual, "x", x));
        DSC_TRY(dsc_check_apart(check, "dresidual", grads->dresidual, "dx", grads->dx));
        DSC_TRY(dsc_check_apart(check, "dresidual", grads->dresidual, "dy", dy));
        DSC_TRY(dsc_check_beta(check, "beta_residual", grads->beta_residual));
    }
    return DSC_OK;
}

dsc_status dsc_op_norm_backward(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                const dsc_tensor *y, const dsc_tensor *dy, const dsc_tensor *gamma,
                                const dsc_tensor *mean, const dsc_tensor *invstd,
                                const dsc_norm_grads *grads) {
    dsc_check check;
    DSC_TRY(check_input(&check, "norm_backward", q, desc, x));
    DSC_TRY(dsc_check_real_like(&check, "dy", dy, "x", x));
    if (desc->relu)
        DSC_TRY(dsc_check_real_like(&check, "y", y, "x", x));
    DSC_TRY(check_channels(&check, "gamma", gamma, x));
    DSC_TRY(check_channels(&check, "mean", mean, x));
    DSC_TRY(check_channels(&check, "invstd", invstd, x));
    DSC_TRY(check_grads(&check, x, dy, grads));
    if (desc->relu)
        DSC_TRY(dsc_check_apart(&check, "dx", grads->dx, "y", y));
    if (dsc_tensor_count(x) == 0) {
        DSC_TRY(dsc_check_empty_sum(&check, grads->beta_p, grads->dgamma));
        DSC_TRY(dsc_check_empty_sum(&check, grads->beta_p, grads->dshift));
        return DSC_OK;
    }
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)
                ->norm_backward(q, desc, x, y, dy, gamma, mean, invstd, grads));
    return DSC_OK;
}

/* ---- group norm ---- */

static dsc_status check_groups(dsc_check *check, const char *op, dsc_queue *q,
                               const dsc_group_norm_desc *desc, const dsc_tensor *x) {
    DSC_TRY(dsc_check_begin_half(check, op, q, "x", x));
    if (x->ndim < 2)
        return DSC_FAIL(DSC_E_INVALID, "%s: x has %d dimensions; [n, ..., c] is expected", op, x->ndim);
    if (!(desc->eps >= 0))
        return DSC_FAIL(DSC_E_INVALID, "%s: eps is %g; it may not be negative", op, desc->eps);
    int64_t c = x->dim[x->ndim - 1];
    if (desc->groups < 1 || c % desc->groups != 0)
        return DSC_FAIL(DSC_E_INVALID, "%s: %lld groups of %lld channels; a divisor is expected", op,
                        (long long)desc->groups, (long long)c);
    return DSC_OK;
}

static dsc_status check_statistic(const dsc_check *check, const char *name, const dsc_tensor *t,
                                  const dsc_group_norm_desc *desc, const dsc_tensor *x) {
    DSC_TRY(dsc_check_param_shape(check, name, t, DSC_SHAPE(x->dim[0], desc->groups)));
    return DSC_OK;
}

dsc_status dsc_op_group_norm_forward(dsc_queue *q, const dsc_group_norm_desc *desc, const dsc_tensor *x,
                                     const dsc_tensor *gamma, const dsc_tensor *shift, dsc_tensor *mean,
                                     dsc_tensor *invstd, dsc_tensor *y) {
    dsc_check check;
    DSC_TRY(check_groups(&check, "group_norm_forward", q, desc, x));
    DSC_TRY(check_channels(&check, "gamma", gamma, x));
    if (shift)
        DSC_TRY(check_channels(&check, "shift", shift, x));
    if (mean)
        DSC_TRY(check_statistic(&check, "mean", mean, desc, x));
    if (invstd)
        DSC_TRY(check_statistic(&check, "invstd", invstd, desc, x));
    DSC_TRY(dsc_check_real_like(&check, "y", y, "x", x));
    DSC_TRY(dsc_check_apart(&check, "y", y, "x", x));
    if (dsc_tensor_count(x) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)
                ->group_norm_forward(q, desc, x, gamma, shift, mean, invstd, y));
    return DSC_OK;
}

static dsc_status check_group_grads(const dsc_check *check, const dsc_tensor *x, const dsc_tensor *dy,
                                    const dsc_norm_grads *grads) {
    if (grads->dx) {
        DSC_TRY(dsc_check_real_like(check, "dx", grads->dx, "x", x));
        DSC_TRY(dsc_check_apart(check, "dx", grads->dx, "x", x));
        DSC_TRY(dsc_check_apart(check, "dx", grads->dx, "dy", dy));
        DSC_TRY(dsc_check_beta(check, "beta_x", grads->beta_x));
    }
    DSC_TRY(dsc_check_beta(check, "beta_p", grads->beta_p));
    if (grads->dgamma)
        DSC_TRY(check_channels(check, "dgamma", grads->dgamma, x));
    if (grads->dshift)
        DSC_TRY(check_channels(check, "dshift", grads->dshift, x));
    return DSC_OK;
}

dsc_status dsc_op_group_norm_backward(dsc_queue *q, const dsc_group_norm_desc *desc, const dsc_tensor *x,
                                      const dsc_tensor *dy, const dsc_tensor *gamma, const dsc_tensor *mean,
                                      const dsc_tensor *invstd, const dsc_norm_grads *grads) {
    dsc_check check;
    DSC_TRY(check_groups(&check, "group_norm_backward", q, desc, x));
    DSC_TRY(dsc_check_real_like(&check, "dy", dy, "x", x));
    DSC_TRY(check_channels(&check, "gamma", gamma, x));
    if (!desc->rms)
        DSC_TRY(check_statistic(&check, "mean", mean, desc, x));
    DSC_TRY(check_statistic(&check, "invstd", invstd, desc, x));
    DSC_TRY(check_group_grads(&check, x, dy, grads));
    if (dsc_tensor_count(x) == 0) {
        if (grads->dgamma)
            DSC_TRY(dsc_check_empty_sum(&check, grads->beta_p, grads->dgamma));
        if (grads->dshift)
            DSC_TRY(dsc_check_empty_sum(&check, grads->beta_p, grads->dshift));
        return DSC_OK;
    }
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)
                ->group_norm_backward(q, desc, x, dy, gamma, mean, invstd, grads));
    return DSC_OK;
}

/* ---- Fisher matrices ---- */

/* Checks mean, which may be NULL, and invstd: one number per channel, or per group of channels in a row or a sample. */
static dsc_status check_statistics(dsc_check *check, const dsc_tensor *x, const dsc_tensor *mean,
                                   const dsc_tensor *invstd) {
    int64_t n = x->dim[0], c = x->dim[x->ndim - 1], rows = c > 0 ? dsc_tensor_count(x) / c : 0;
    if (invstd->ndim != 2) {
        DSC_TRY(check_channels(check, "invstd", invstd, x));
    } else {
        int64_t of = invstd->dim[0], groups = invstd->dim[1];
        if ((of != n && of != rows) || groups < 1 || c % groups != 0)
            return DSC_FAIL(
                DSC_E_INVALID,
                "norm_fisher: invstd is [%lld,%lld]: the first must be the %lld samples or the %lld "
                "positions of x, the second divide its %lld channels",
                (long long)of, (long long)groups, (long long)n, (long long)rows, (long long)c);
        DSC_TRY(dsc_check_param_shape(check, "invstd", invstd, DSC_SHAPE(of, groups)));
    }
    return mean ? dsc_check_param_shape(check, "mean", mean, invstd->ndim, invstd->dim) : DSC_OK;
}

dsc_status dsc_op_norm_fisher(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *y, const dsc_tensor *dy,
                              const dsc_tensor *mean, const dsc_tensor *invstd, dsc_tensor *out) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_half(&check, "norm_fisher", q, "x", x));
    if (x->ndim < 2)
        return DSC_FAIL(DSC_E_INVALID, "norm_fisher: x has %d dimensions; [n, ..., c] is expected", x->ndim);
    DSC_TRY(dsc_check_real_like(&check, "dy", dy, "x", x));
    if (y)
        DSC_TRY(dsc_check_real_like(&check, "y", y, "x", x));
    if (mean && !invstd)
        return DSC_FAIL(DSC_E_INVALID, "norm_fisher: invstd is missing");
    if (invstd)
        DSC_TRY(check_statistics(&check, x, mean, invstd));
    DSC_TRY(dsc_check_param_shape(&check, "out", out, DSC_SHAPE(x->dim[0], 3, x->dim[x->ndim - 1])));
    DSC_TRY(dsc_check_apart(&check, "out", out, "x", x));
    DSC_TRY(dsc_check_apart(&check, "out", out, "dy", dy));
    if (dsc_tensor_count(out) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->norm_fisher(q, x, y, dy, mean, invstd, out));
    return DSC_OK;
}

static dsc_status check_solve(dsc_check *check, int64_t i, const dsc_norm_solve_item *item) {
    DSC_TRY(dsc_check_first(check, i, "gamma", &item->gamma));
    DSC_TRY(dsc_check_dims(check, "gamma", &item->gamma, 1));
    int64_t c = item->gamma.dim[0];
    DSC_TRY(dsc_check_real_shape(check, "shift", &item->shift, DSC_SHAPE(c)));
    DSC_TRY(dsc_check_real_shape(check, "f", &item->f, DSC_SHAPE(3, c)));
    DSC_TRY(dsc_check_real_shape(check, "p", &item->p, DSC_SHAPE(2, c)));
    DSC_TRY(dsc_check_apart(check, "p", &item->p, "f", &item->f));
    DSC_TRY(dsc_check_apart(check, "p", &item->p, "gamma", &item->gamma));
    DSC_TRY(dsc_check_apart(check, "p", &item->p, "shift", &item->shift));
    return DSC_OK;
}

dsc_status dsc_op_norm_solve_batch(dsc_queue *q, const dsc_tensor *damping, int full,
                                   const dsc_norm_solve_item *items, int64_t count) {
    dsc_check check;
    DSC_TRY(dsc_check_batch(&check, "norm_solve_batch", q, items, count));
    DSC_TRY(dsc_check_f64(&check, "damping", damping, 1));
    for (int64_t i = 0; i < count; i++) {
        dsc_status status = check_solve(&check, i, &items[i]);
        if (status != DSC_OK)
            return dsc_error_prefix(status, "item %lld", (long long)i);
        if (items[i].gamma.dim[0] == 0)
            return DSC_FAIL(DSC_E_INVALID, "norm_solve_batch: item %lld has no channels", (long long)i);
    }
    if (count == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->norm_solve_batch(q, damping, full, items, count));
    return DSC_OK;
}
