/* Reference: the optimisers' updates, a loop over each formula of device/formulas.inc. */
#include "device/formulas.h"
#include "device/ref/element.h"
#include "device/ref/ref.h"

/* A rule without state reads neither z nor m nor v. */
#define LOOP(NAME, name, states, norms)                                                                      \
    static void update_##name(const dsc_coefficients *s, const dsc_update *u) {                              \
        for (int64_t i = 0, count = dsc_tensor_count(u->x); i < count; i++) {                                \
            double z = states > 0 ? get(u->z, i) : 0;                                                        \
            double m = states > 0 ? get(u->m, i) : 0, v = states > 1 ? get(u->v, i) : 0;                     \
            set(u->x, i, dsc_update_##name(s, z, get(u->g, i), &m, &v, get(u->x, i)));                       \
            if (states > 0)                                                                                  \
                set(u->m, i, m);                                                                             \
            if (states > 1)                                                                                  \
                set(u->v, i, v);                                                                             \
        }                                                                                                    \
    }
DSC_UPDATE_RULES(LOOP)
#undef LOOP

static void (*const loops[])(const dsc_coefficients *s, const dsc_update *u) = {
#define LOOP(NAME, name, states, norms) [DSC_UPDATE_##NAME] = update_##name,
    DSC_UPDATE_RULES(LOOP)
#undef LOOP
};

dsc_status dsc_ref_update(dsc_queue *q, dsc_update_rule rule, const dsc_update *u) {
    (void)q;
    if (dsc_step_skips(u->hyper->data))
        return DSC_OK;
    dsc_coefficients s = dsc_coefficients_load(rule, u->hyper->data, u->norms ? u->norms->data : NULL);
    loops[rule](&s, u);
    return DSC_OK;
}
