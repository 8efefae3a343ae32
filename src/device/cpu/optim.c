/* Optimiser updates of the cpu device; formulas in ops.h. */
#include "device/cpu/cpu.h"

enum { UNIT = 64 };

static dsc_status sgd(dsc_queue *q, int nesterov, const dsc_tensor *hyper, const dsc_tensor *z,
                      const dsc_tensor *g, dsc_tensor *m, dsc_tensor *x) {
    if (dsc_step_skips(hyper->data))
        return DSC_OK;
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    dsc_step_f h = dsc_step_load_f(hyper->data);
    int64_t n = dsc_tensor_count(x);
    int parts = dsc_cpu_parts(q->device, n);
    const float *zs = z->data, *gs = g->data;
    float *ms = m->data, *xs = x->data;
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(n, UNIT, parts, p);
        k->sgd(r.count, nesterov, &h, zs + r.first, gs + r.first, ms + r.first, xs + r.first);
    }
    return DSC_OK;
}

static dsc_status adam(dsc_queue *q, int decoupled, const dsc_tensor *hyper, const dsc_tensor *z,
                       const dsc_tensor *g, dsc_tensor *m, dsc_tensor *v, dsc_tensor *x) {
    if (dsc_step_skips(hyper->data))
        return DSC_OK;
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    dsc_step_f h = dsc_step_load_f(hyper->data);
    int64_t n = dsc_tensor_count(x);
    int parts = dsc_cpu_parts(q->device, n);
    const float *zs = z->data, *gs = g->data;
    float *ms = m->data, *vs = v->data, *xs = x->data;
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(n, UNIT, parts, p);
        k->adam(r.count, decoupled, &h, zs + r.first, gs + r.first, ms + r.first, vs + r.first, xs + r.first);
    }
    return DSC_OK;
}

static dsc_status lars(dsc_queue *q, const dsc_tensor *hyper, const dsc_tensor *norms, const dsc_tensor *z,
                       const dsc_tensor *g, dsc_tensor *m, dsc_tensor *x) {
    if (dsc_step_skips(hyper->data))
        return DSC_OK;
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    dsc_step_f h = dsc_step_load_f(hyper->data);
    dsc_step exact = dsc_step_load(hyper->data);
    const double *sumsq = norms->data;
    float rate = (float)(exact.lr * dsc_lars_rate(sumsq[0], sumsq[1], exact.trust, exact.decay));
    int64_t n = dsc_tensor_count(x);
    int parts = dsc_cpu_parts(q->device, n);
    const float *zs = z->data, *gs = g->data;
    float *ms = m->data, *xs = x->data;
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(n, UNIT, parts, p);
        k->lars(r.count, &h, rate, zs + r.first, gs + r.first, ms + r.first, xs + r.first);
    }
    return DSC_OK;
}

static dsc_status lamb_direction(dsc_queue *q, const dsc_tensor *hyper, const dsc_tensor *z,
                                 const dsc_tensor *g, dsc_tensor *m, dsc_tensor *v, dsc_tensor *u) {
    if (dsc_step_skips(hyper->data))
        return DSC_OK;
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    dsc_step_f h = dsc_step_load_f(hyper->data);
    int64_t n = dsc_tensor_count(u);
    int parts = dsc_cpu_parts(q->device, n);
    const float *zs = z->data, *gs = g->data;
    float *ms = m->data, *vs = v->data, *us = u->data;
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(n, UNIT, parts, p);
        k->lamb(r.count, &h, zs + r.first, gs + r.first, ms + r.first, vs + r.first, us + r.first);
    }
    return DSC_OK;
}

static dsc_status lamb_apply(dsc_queue *q, const dsc_tensor *hyper, const dsc_tensor *norms,
                             const dsc_tensor *u, dsc_tensor *x) {
    if (dsc_step_skips(hyper->data))
        return DSC_OK;
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    const double *values = hyper->data, *sumsq = norms->data;
    float step = (float)(-values[DSC_HYPER_LR] * dsc_lamb_rate(sumsq[0], sumsq[1]));
    int64_t n = dsc_tensor_count(x);
    int parts = dsc_cpu_parts(q->device, n);
    const float *us = u->data;
    float *xs = x->data;
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int p = 0; p < parts; p++) {
        dsc_cpu_range r = dsc_cpu_share(n, UNIT, parts, p);
        k->axpby(r.count, step, us + r.first, 1, xs + r.first);
    }
    return DSC_OK;
}

void dsc_cpu_table_optim(dsc_device_table *table) {
    table->sgd = sgd;
    table->adam = adam;
    table->lars = lars;
    table->lamb_direction = lamb_direction;
    table->lamb_apply = lamb_apply;
}
