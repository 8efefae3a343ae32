/* Reference: batch norm over the last dimension, with fused residual and ReLU.
 *
 * With xhat = (x - mean) invstd and dh = dy where y > 0 (all of dy without ReLU), over m rows:
 *   dshift = sum dh,   dgamma = sum dh xhat,   dx = gamma invstd (dh - dshift/m - xhat dgamma/m). */
#include "device/formulas.h"
#include "device/ref/element.h"
#include "device/ref/ref.h"

#include <math.h>

/* Computes y of one channel; moments: the mean to subtract and the invstd to multiply by. */
static void normalise(const dsc_norm_desc *desc, const dsc_tensor *x, const dsc_tensor *residual,
                      const dsc_norm_params *params, int64_t channel, const double moments[2],
                      dsc_tensor *y) {
    double gamma = get(params->gamma, channel), shift = get(params->shift, channel);
    for (int64_t i = channel, count = dsc_tensor_count(x); i < count; i += params->gamma->dim[0]) {
        double h = gamma * (get(x, i) - moments[0]) * moments[1] + shift;
        if (residual)
            h += get(residual, i);
        set(y, i, desc->relu ? dsc_relu(h) : h);
    }
}

static void move_running(dsc_tensor *running, int64_t channel, double momentum, double value) {
    set(running, channel, (1 - momentum) * get(running, channel) + momentum * value);
}

dsc_status dsc_ref_norm_forward_train(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                      const dsc_tensor *residual, const dsc_norm_params *params,
                                      dsc_tensor *mean, dsc_tensor *invstd, dsc_tensor *y) {
    (void)q;
    int64_t channels = params->gamma->dim[0], count = dsc_tensor_count(x), rows = count / channels;
    for (int64_t c = 0; c < channels; c++) {
        double sum = 0, squares = 0;
        for (int64_t i = c; i < count; i += channels)
            sum += get(x, i);
        double centre = sum / (double)rows;
        for (int64_t i = c; i < count; i += channels)
            squares += (get(x, i) - centre) * (get(x, i) - centre);
        const double moments[2] = {centre, 1 / sqrt(squares / (double)rows + desc->eps)};
        set(mean, c, moments[0]);
        set(invstd, c, moments[1]);
        move_running(params->running_mean, c, desc->momentum, centre);
        move_running(params->running_var, c, desc->momentum, squares / (double)(rows > 1 ? rows - 1 : 1));
        normalise(desc, x, residual, params, c, moments, y);
    }
    return DSC_OK;
}

dsc_status dsc_ref_norm_forward_eval(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                     const dsc_tensor *residual, const dsc_norm_params *params,
                                     dsc_tensor *y) {
    (void)q;
    for (int64_t c = 0; c < params->gamma->dim[0]; c++) {
        const double moments[2] = {get(params->running_mean, c),
                                   1 / sqrt(get(params->running_var, c) + desc->eps)};
        normalise(desc, x, residual, params, c, moments, y);
    }
    return DSC_OK;
}

dsc_status dsc_ref_norm_backward(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                 const dsc_tensor *y, const dsc_tensor *dy, const dsc_tensor *gamma,
                                 const dsc_tensor *mean, const dsc_tensor *invstd,
                                 const dsc_norm_grads *grads) {
    (void)q;
    int64_t channels = gamma->dim[0], count = dsc_tensor_count(x);
    double rows = (double)(count / channels);
    for (int64_t c = 0; c < channels; c++) {
        double centre = get(mean, c), scale = get(invstd, c), dshift = 0, dgamma = 0;
        for (int64_t i = c; i < count; i += channels) {
            double dh = desc->relu ? dsc_relu_mask(get(y, i), get(dy, i)) : get(dy, i);
            dshift += dh;
            dgamma += dh * (get(x, i) - centre) * scale;
        }
        for (int64_t i = c; i < count; i += channels) {
            double dh = desc->relu ? dsc_relu_mask(get(y, i), get(dy, i)) : get(dy, i);
            double xhat = (get(x, i) - centre) * scale;
            double dx = get(gamma, c) * scale * (dh - dshift / rows - xhat * dgamma / rows);
            update(grads->dx, i, grads->beta_x, dx);
            if (grads->dresidual)
                update(grads->dresidual, i, grads->beta_residual, dh);
        }
        update(grads->dgamma, c, grads->beta_p, dgamma);
        update(grads->dshift, c, grads->beta_p, dshift);
    }
    return DSC_OK;
}

/* ---- Fisher matrices ---- */

dsc_status dsc_ref_norm_fisher(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *y, const dsc_tensor *dy,
                               const dsc_tensor *mean, const dsc_tensor *invstd, dsc_tensor *out) {
    int64_t n = x->dim[0], c = x->dim[x->ndim - 1], positions = dsc_tensor_count(x) / (n * c);
    dsc_norm_places places = dsc_norm_places_of(x, invstd);
    (void)q;
    for (int64_t i = 0; i < n; i++)
        for (int64_t ch = 0; ch < c; ch++) {
            double u[2] = {0, 0};
            for (int64_t p = 0; p < positions; p++) {
                int64_t at = (i * positions + p) * c + ch;
                int64_t of = i * places.sample + p * places.position + ch / places.width;
                double xhat = (get(x, at) - (mean ? get(mean, of) : 0)) * (invstd ? get(invstd, of) : 1);
                double g = y && !(get(y, at) > 0) ? 0 : get(dy, at);
                u[0] += g * xhat;
                u[1] += g;
            }
            set(out, (i * 3) * c + ch, u[0] * u[0]);
            set(out, (i * 3 + 1) * c + ch, u[0] * u[1]);
            set(out, (i * 3 + 2) * c + ch, u[1] * u[1]);
        }
    return DSC_OK;
}

dsc_status dsc_ref_norm_solve_batch(dsc_queue *q, const dsc_tensor *damping, int full,
                                    const dsc_norm_solve_item *items, int64_t count) {
    (void)q;
    for (int64_t i = 0; i < count; i++) {
        dsc_tensor p = items[i].p;
        int64_t c = p.dim[1];
        for (int64_t ch = 0; ch < c; ch++) {
            const double f[3] = {get(&items[i].f, ch), get(&items[i].f, c + ch),
                                 get(&items[i].f, 2 * c + ch)};
            const double d[2] = {get(&items[i].gamma, ch), get(&items[i].shift, ch)};
            double solved[2];
            dsc_norm_solve(f, get(damping, 0), full, d, solved);
            set(&p, ch, solved[0]);
            set(&p, c + ch, solved[1]);
        }
    }
    return DSC_OK;
}
