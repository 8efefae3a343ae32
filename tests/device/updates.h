/* The updates of the optimisers with their tensors as arguments, for tests. */
#ifndef DSC_TESTS_DEVICE_UPDATES_H
#define DSC_TESTS_DEVICE_UPDATES_H

#include "device/ops.h"

static inline dsc_status sgd(dsc_queue *q, int nesterov, const dsc_tensor *hyper, const dsc_tensor *z,
                             const dsc_tensor *g, dsc_tensor *m, dsc_tensor *x) {
    dsc_update u = {.hyper = hyper, .z = z, .g = g, .m = m, .x = x};
    return dsc_op_update(q, nesterov ? DSC_UPDATE_NESTEROV : DSC_UPDATE_SGD, &u);
}

static inline dsc_status adam(dsc_queue *q, int decoupled, const dsc_tensor *hyper, const dsc_tensor *z,
                              const dsc_tensor *g, dsc_tensor *m, dsc_tensor *v, dsc_tensor *x) {
    dsc_update u = {.hyper = hyper, .z = z, .g = g, .m = m, .v = v, .x = x};
    return dsc_op_update(q, decoupled ? DSC_UPDATE_ADAMW : DSC_UPDATE_ADAM, &u);
}

static inline dsc_status lars(dsc_queue *q, const dsc_tensor *hyper, const dsc_tensor *norms,
                              const dsc_tensor *z, const dsc_tensor *g, dsc_tensor *m, dsc_tensor *x) {
    dsc_update u = {.hyper = hyper, .norms = norms, .z = z, .g = g, .m = m, .x = x};
    return dsc_op_update(q, DSC_UPDATE_LARS, &u);
}

static inline dsc_status lamb_direction(dsc_queue *q, const dsc_tensor *hyper, const dsc_tensor *z,
                                        const dsc_tensor *g, dsc_tensor *m, dsc_tensor *v,
                                        dsc_tensor *direction) {
    dsc_update u = {.hyper = hyper, .z = z, .g = g, .m = m, .v = v, .x = direction};
    return dsc_op_update(q, DSC_UPDATE_LAMB_DIRECTION, &u);
}

static inline dsc_status lamb_apply(dsc_queue *q, const dsc_tensor *hyper, const dsc_tensor *norms,
                                    const dsc_tensor *direction, dsc_tensor *x) {
    dsc_update u = {.hyper = hyper, .norms = norms, .g = direction, .x = x};
    return dsc_op_update(q, DSC_UPDATE_LAMB_APPLY, &u);
}

#endif
