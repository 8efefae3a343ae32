/* Reference: the optimisers' updates; the formulas are in device/formulas.h. */
#include "device/formulas.h"
#include "device/ref/element.h"
#include "device/ref/ref.h"

dsc_status dsc_ref_sgd(dsc_queue *q, int nesterov, const dsc_tensor *hyper, const dsc_tensor *z,
                       const dsc_tensor *g, dsc_tensor *m, dsc_tensor *x) {
    (void)q;
    if (dsc_step_skips(hyper->data))
        return DSC_OK;
    dsc_step step = dsc_step_load(hyper->data);
    for (int64_t i = 0, count = dsc_tensor_count(x); i < count; i++) {
        double moment = get(m, i);
        set(x, i, dsc_sgd_update(&step, nesterov, get(z, i), get(g, i), &moment, get(x, i)));
        set(m, i, moment);
    }
    return DSC_OK;
}

dsc_status dsc_ref_adam(dsc_queue *q, int decoupled, const dsc_tensor *hyper, const dsc_tensor *z,
                        const dsc_tensor *g, dsc_tensor *m, dsc_tensor *v, dsc_tensor *x) {
    (void)q;
    if (dsc_step_skips(hyper->data))
        return DSC_OK;
    dsc_step step = dsc_step_load(hyper->data);
    for (int64_t i = 0, count = dsc_tensor_count(x); i < count; i++) {
        double first = get(m, i), second = get(v, i);
        set(x, i, dsc_adam_update(&step, decoupled, get(z, i), get(g, i), &first, &second, get(x, i)));
        set(m, i, first);
        set(v, i, second);
    }
    return DSC_OK;
}

dsc_status dsc_ref_lars(dsc_queue *q, const dsc_tensor *hyper, const dsc_tensor *norms, const dsc_tensor *z,
                        const dsc_tensor *g, dsc_tensor *m, dsc_tensor *x) {
    (void)q;
    if (dsc_step_skips(hyper->data))
        return DSC_OK;
    dsc_step step = dsc_step_load(hyper->data);
    double rate = step.lr * dsc_lars_rate(get(norms, 0), get(norms, 1), step.trust, step.decay);
    for (int64_t i = 0, count = dsc_tensor_count(x); i < count; i++) {
        double moment = get(m, i);
        set(x, i, dsc_lars_update(&step, rate, get(z, i), get(g, i), &moment, get(x, i)));
        set(m, i, moment);
    }
    return DSC_OK;
}

dsc_status dsc_ref_lamb_direction(dsc_queue *q, const dsc_tensor *hyper, const dsc_tensor *z,
                                  const dsc_tensor *g, dsc_tensor *m, dsc_tensor *v, dsc_tensor *u) {
    (void)q;
    if (dsc_step_skips(hyper->data))
        return DSC_OK;
    dsc_step step = dsc_step_load(hyper->data);
    for (int64_t i = 0, count = dsc_tensor_count(u); i < count; i++) {
        double first = get(m, i), second = get(v, i);
        set(u, i, dsc_lamb_direction(&step, get(z, i), get(g, i), &first, &second));
        set(m, i, first);
        set(v, i, second);
    }
    return DSC_OK;
}

dsc_status dsc_ref_lamb_apply(dsc_queue *q, const dsc_tensor *hyper, const dsc_tensor *norms,
                              const dsc_tensor *u, dsc_tensor *x) {
    (void)q;
    if (dsc_step_skips(hyper->data))
        return DSC_OK;
    dsc_step step = dsc_step_load(hyper->data);
    double rate = step.lr * dsc_lamb_rate(get(norms, 0), get(norms, 1));
    for (int64_t i = 0, count = dsc_tensor_count(x); i < count; i++)
        set(x, i, get(x, i) - rate * get(u, i));
    return DSC_OK;
}
