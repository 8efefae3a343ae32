/* Reference: batch norm over the last dimension, with fused residual and ReLU.
 *
 * With xhat = (x - mean) invstd and dh = dy where y > 0 (all of dy without ReLU), over m rows:
 *   dshift = sum dh,   dgamma = sum dh xhat,   dx = gamma invstd (dh - dshift/m - xhat dgamma/m). */
#include "device/formulas.h"
#include "device/ref/element.h"
#include "device/ref/ref.h"

#include <math.h>

/* y of one channel, given what to subtract and to multiply with. */
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
