/* Optimiser updates of the cpu device: divided into parts, with one kernel call each. */
#include "device/cpu/cpu.h"

enum { UNIT = 64 };

static float *part_of(const dsc_tensor *t, dsc_cpu_range r) {
    return t ? (float *)t->data + r.first : NULL;
}

static dsc_status update(dsc_queue *q, dsc_update_rule rule, const dsc_update *u) {
    if (dsc_step_skips(u->hyper->data))
        return DSC_OK;
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    dsc_coefficients_f s = dsc_coefficients_load_f(rule, u->hyper->data, u->norms ? u->norms->data : NULL);
    int64_t n = dsc_tensor_count(u->x);
    int parts = dsc_cpu_parts(q->device, n);
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(n, UNIT, parts, p);
        k->update[rule](r.count, &s, part_of(u->z, r), part_of(u->g, r), part_of(u->m, r), part_of(u->v, r),
                        part_of(u->x, r));
    }
    return DSC_OK;
}

void dsc_cpu_table_optim(dsc_device_table *table) {
    table->update = update;
}
