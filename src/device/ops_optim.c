/* Fronts of the optimisers' updates: check, early out, select, execute. Parameters are taken as flat vectors,
 * so shapes count only by their number of elements. */
#include "device/checks.h"

#include "base/error.h"

/* hyper, and the tensors that every update has: x (or LAMB's direction u) and what has as many elements. */
static dsc_status check_step(dsc_check *check, const char *op, dsc_queue *q, const dsc_tensor *hyper,
                             const dsc_tensor *x) {
    DSC_TRY(dsc_check_begin(check, op, q, "x", x));
    DSC_TRY(dsc_check_f64(check, "hyper", hyper, DSC_HYPER_COUNT));
    return DSC_OK;
}

/* State of the optimiser: as many elements as x, and memory of its own. */
static dsc_status check_state(const dsc_check *check, const char *name, const dsc_tensor *m,
                              const dsc_tensor *x, const dsc_tensor *g) {
    DSC_TRY(dsc_check_real_count(check, name, m, "x", x));
    DSC_TRY(dsc_check_apart(check, name, m, "x", x));
    DSC_TRY(dsc_check_apart(check, name, m, "g", g));
    return DSC_OK;
}

static dsc_status check_gradient(const dsc_check *check, const dsc_tensor *z, const dsc_tensor *g,
                                 const dsc_tensor *x) {
    DSC_TRY(dsc_check_real_count(check, "z", z, "x", x));
    DSC_TRY(dsc_check_real_count(check, "g", g, "x", x));
    DSC_TRY(dsc_check_apart_or_same(check, "x", x, "z", z));
    DSC_TRY(dsc_check_apart(check, "x", x, "g", g));
    return DSC_OK;
}

dsc_status dsc_op_sgd(dsc_queue *q, int nesterov, const dsc_tensor *hyper, const dsc_tensor *z,
                      const dsc_tensor *g, dsc_tensor *m, dsc_tensor *x) {
    dsc_check check;
    DSC_TRY(check_step(&check, "sgd", q, hyper, x));
    DSC_TRY(check_gradient(&check, z, g, x));
    DSC_TRY(check_state(&check, "m", m, x, g));
    if (dsc_tensor_count(x) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->sgd(q, nesterov, hyper, z, g, m, x));
    return DSC_OK;
}

dsc_status dsc_op_adam(dsc_queue *q, int decoupled, const dsc_tensor *hyper, const dsc_tensor *z,
                       const dsc_tensor *g, dsc_tensor *m, dsc_tensor *v, dsc_tensor *x) {
    dsc_check check;
    DSC_TRY(check_step(&check, "adam", q, hyper, x));
    DSC_TRY(check_gradient(&check, z, g, x));
    DSC_TRY(check_state(&check, "m", m, x, g));
    DSC_TRY(check_state(&check, "v", v, x, g));
    DSC_TRY(dsc_check_apart(&check, "v", v, "m", m));
    if (dsc_tensor_count(x) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->adam(q, decoupled, hyper, z, g, m, v, x));
    return DSC_OK;
}

dsc_status dsc_op_lars(dsc_queue *q, const dsc_tensor *hyper, const dsc_tensor *norms, const dsc_tensor *z,
                       const dsc_tensor *g, dsc_tensor *m, dsc_tensor *x) {
    dsc_check check;
    DSC_TRY(check_step(&check, "lars", q, hyper, x));
    DSC_TRY(dsc_check_f64(&check, "norms", norms, 2));
    DSC_TRY(check_gradient(&check, z, g, x));
    DSC_TRY(check_state(&check, "m", m, x, g));
    if (dsc_tensor_count(x) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->lars(q, hyper, norms, z, g, m, x));
    return DSC_OK;
}

dsc_status dsc_op_lamb_direction(dsc_queue *q, const dsc_tensor *hyper, const dsc_tensor *z,
                                 const dsc_tensor *g, dsc_tensor *m, dsc_tensor *v, dsc_tensor *u) {
    dsc_check check;
    DSC_TRY(check_step(&check, "lamb_direction", q, hyper, u));
    DSC_TRY(dsc_check_real_count(&check, "z", z, "u", u));
    DSC_TRY(dsc_check_real_count(&check, "g", g, "u", u));
    DSC_TRY(dsc_check_apart(&check, "u", u, "z", z));
    DSC_TRY(dsc_check_apart_or_same(&check, "u", u, "g", g));
    DSC_TRY(check_state(&check, "m", m, u, g));
    DSC_TRY(check_state(&check, "v", v, u, g));
    DSC_TRY(dsc_check_apart(&check, "v", v, "m", m));
    if (dsc_tensor_count(u) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->lamb_direction(q, hyper, z, g, m, v, u));
    return DSC_OK;
}

dsc_status dsc_op_lamb_apply(dsc_queue *q, const dsc_tensor *hyper, const dsc_tensor *norms,
                             const dsc_tensor *u, dsc_tensor *x) {
    dsc_check check;
    DSC_TRY(check_step(&check, "lamb_apply", q, hyper, x));
    DSC_TRY(dsc_check_f64(&check, "norms", norms, 2));
    DSC_TRY(dsc_check_real_count(&check, "u", u, "x", x));
    DSC_TRY(dsc_check_apart(&check, "x", x, "u", u));
    if (dsc_tensor_count(x) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->lamb_apply(q, hyper, norms, u, x));
    return DSC_OK;
}
