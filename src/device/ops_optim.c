/* The front of the optimisers' updates: check, early out, select, execute. */
#include "device/checks.h"

#include "base/error.h"

/* Properties of the rules, from the list in ops.h. */
static const struct {
    const char *name;
    int states, norms;
} rules[] = {
#define RULE(NAME, name, states, norms) {#name, states, norms},
    DSC_UPDATE_RULES(RULE)
#undef RULE
};

/* Checks a state tensor: it has as many elements as x, and shares no memory with x or g. */
static dsc_status check_state(const dsc_check *check, const char *name, const dsc_tensor *m,
                              const dsc_update *u) {
    DSC_TRY(dsc_check_real_count(check, name, m, "x", u->x));
    DSC_TRY(dsc_check_apart(check, name, m, "x", u->x));
    DSC_TRY(dsc_check_apart(check, name, m, "g", u->g));
    return DSC_OK;
}

/* x may be z, since each element is read before it is written. For LAMB's direction, where x is only an output, it may
 * be g instead. */
static dsc_status check_inputs(const dsc_check *check, dsc_update_rule rule, const dsc_update *u) {
    DSC_TRY(dsc_check_real_count(check, "g", u->g, "x", u->x));
    if (rules[rule].states == 0)
        return dsc_check_apart(check, "x", u->x, "g", u->g);
    DSC_TRY(dsc_check_real_count(check, "z", u->z, "x", u->x));
    if (rule == DSC_UPDATE_LAMB_DIRECTION) {
        DSC_TRY(dsc_check_apart(check, "x", u->x, "z", u->z));
        DSC_TRY(dsc_check_apart_or_same(check, "x", u->x, "g", u->g));
    } else {
        DSC_TRY(dsc_check_apart_or_same(check, "x", u->x, "z", u->z));
        DSC_TRY(dsc_check_apart(check, "x", u->x, "g", u->g));
    }
    return DSC_OK;
}

dsc_status dsc_op_update(dsc_queue *q, dsc_update_rule rule, const dsc_update *u) {
    dsc_check check;
    if ((int)rule < 0 || rule >= DSC_UPDATE_COUNT)
        return DSC_FAIL(DSC_E_INVALID, "update: rule %d is unknown", (int)rule);
    DSC_TRY(dsc_check_begin(&check, rules[rule].name, q, "x", u->x));
    DSC_TRY(dsc_check_f64(&check, "hyper", u->hyper, DSC_HYPER_COUNT));
    if (rules[rule].norms)
        DSC_TRY(dsc_check_f64(&check, "norms", u->norms, 2));
    DSC_TRY(check_inputs(&check, rule, u));
    if (rules[rule].states > 0)
        DSC_TRY(check_state(&check, "m", u->m, u));
    if (rules[rule].states > 1) {
        DSC_TRY(check_state(&check, "v", u->v, u));
        DSC_TRY(dsc_check_apart(&check, "v", u->v, "m", u->m));
    }
    if (dsc_tensor_count(u->x) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->update(q, rule, u));
    return DSC_OK;
}
