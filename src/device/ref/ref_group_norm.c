/* Reference: group norm. The forward formulas are in ops.h; backward, with m numbers in a group, xhat = (x - mean)
 * invstd (x invstd with rms) and u = gamma dy:
 *   dshift = sum dy;  dgamma = sum dy xhat;
 *   dx = invstd (u - (sum u) / m - xhat (sum u xhat) / m), without the second term with rms. */
#include "device/ref/element.h"
#include "device/ref/ref.h"

#include <math.h>

/* The m numbers of one group of one sample: number i is element at(i) of x, in channel channel(i). */
typedef struct group {
    int64_t first, channel, width, stride, m;
} group;

static group group_of(const dsc_group_norm_desc *desc, const dsc_tensor *x, int64_t statistic) {
    int64_t c = x->dim[x->ndim - 1], sample = dsc_tensor_count(x) / x->dim[0], width = c / desc->groups;
    int64_t channel = statistic % desc->groups * width;
    return (group){statistic / desc->groups * sample + channel, channel, width, c, sample / desc->groups};
}

static int64_t at(const group *g, int64_t i) {
    return g->first + i / g->width * g->stride + i % g->width;
}

static int64_t channel(const group *g, int64_t i) {
    return g->channel + i % g->width;
}

dsc_status dsc_ref_group_norm_forward(dsc_queue *q, const dsc_group_norm_desc *desc, const dsc_tensor *x,
                                      const dsc_tensor *gamma, const dsc_tensor *shift, dsc_tensor *mean,
                                      dsc_tensor *invstd, dsc_tensor *y) {
    (void)q;
    for (int64_t s = 0; s < x->dim[0] * desc->groups; s++) {
        group g = group_of(desc, x, s);
        double centre = 0, squares = 0;
        for (int64_t i = 0; i < g.m && !desc->rms; i++)
            centre += get(x, at(&g, i)) / (double)g.m;
        for (int64_t i = 0; i < g.m; i++)
            squares += (get(x, at(&g, i)) - centre) * (get(x, at(&g, i)) - centre);
        double inverse = 1 / sqrt(squares / (double)g.m + desc->eps);
        if (mean)
            set(mean, s, centre);
        if (invstd)
            set(invstd, s, inverse);
        for (int64_t i = 0; i < g.m; i++) {
            double xhat = (get(x, at(&g, i)) - centre) * inverse, b = shift ? get(shift, channel(&g, i)) : 0;
            set(y, at(&g, i), get(gamma, channel(&g, i)) * xhat + b);
        }
    }
    return DSC_OK;
}

/* Computes the gradients of gamma and shift of one channel. */
static void channel_grads(const dsc_group_norm_desc *desc, const dsc_tensor *x, const dsc_tensor *dy,
                          const dsc_tensor *mean, const dsc_tensor *invstd, int64_t ch,
                          const dsc_norm_grads *grads) {
    int64_t c = x->dim[x->ndim - 1], sample = dsc_tensor_count(x) / x->dim[0];
    double dgamma = 0, dshift = 0;
    for (int64_t n = 0; n < x->dim[0]; n++) {
        int64_t s = n * desc->groups + ch / (c / desc->groups);
        double centre = desc->rms ? 0 : get(mean, s), inverse = get(invstd, s);
        for (int64_t i = n * sample + ch; i < (n + 1) * sample; i += c) {
            dgamma += get(dy, i) * (get(x, i) - centre) * inverse;
            dshift += get(dy, i);
        }
    }
    if (grads->dgamma)
        update(grads->dgamma, ch, grads->beta_p, dgamma);
    if (grads->dshift)
        update(grads->dshift, ch, grads->beta_p, dshift);
}

dsc_status dsc_ref_group_norm_backward(dsc_queue *q, const dsc_group_norm_desc *desc, const dsc_tensor *x,
                                       const dsc_tensor *dy, const dsc_tensor *gamma, const dsc_tensor *mean,
                                       const dsc_tensor *invstd, const dsc_norm_grads *grads) {
    (void)q;
    for (int64_t ch = 0; ch < gamma->dim[0] && (grads->dgamma || grads->dshift); ch++)
        channel_grads(desc, x, dy, mean, invstd, ch, grads);
    for (int64_t s = 0; s < x->dim[0] * desc->groups && grads->dx; s++) {
        group g = group_of(desc, x, s);
        double centre = desc->rms ? 0 : get(mean, s), inverse = get(invstd, s), mean_u = 0, mean_uxh = 0;
        for (int64_t i = 0; i < g.m; i++) {
            double u = get(gamma, channel(&g, i)) * get(dy, at(&g, i)) / (double)g.m;
            mean_u += desc->rms ? 0 : u;
            mean_uxh += u * (get(x, at(&g, i)) - centre) * inverse;
        }
        for (int64_t i = 0; i < g.m; i++) {
            double u = get(gamma, channel(&g, i)) * get(dy, at(&g, i));
            double xhat = (get(x, at(&g, i)) - centre) * inverse;
            update(grads->dx, at(&g, i), grads->beta_x, inverse * (u - mean_u - xhat * mean_uxh));
        }
    }
    return DSC_OK;
}
