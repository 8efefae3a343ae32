/* The KL clip, which bounds how far a step changes the model's output: lr^2 sum nu^2 <P, D> <= bound.
 *
 *   global   nu = min(1, sqrt(bound / |lr^2 sum <P, D>|)), one factor for all L units
 *   layer    nu_u = min(1, sqrt(bound / (L |lr^2 <P_u, D_u>|))), an equal share of the bound for each
 *
 * Everything stays on the device. With the clip by layer, nu is the mean of all nu_u, for reports; if any product is
 * not finite, all of them are NaN and no gradient is written. */
#include "kfac/internal.h"

#include "base/error.h"
#include "base/memory.h"

/* The mean of more batches has less noise, so with kl_clip_scaling the bound grows with their number: see
 * docs/kfac.md. */
double dsc_kfac_clip_bound(const dsc_kfac *k) {
    double bound = k->hyper.kl_clip;
    if (k->options.kl_clip_scaling == DSC_KFAC_CLIP_RANKS)
        bound *= (double)k->ranks * (double)k->options.passes;
    if (k->options.clip == DSC_KFAC_CLIP_LAYER && k->unit_count > 0)
        bound /= (double)k->unit_count;
    return bound;
}

dsc_status dsc_kfac_clip_create(dsc_kfac *k) {
    if (k->options.clip != DSC_KFAC_CLIP_LAYER || k->unit_count == 0)
        return DSC_OK;
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, k->unit_count, &k->clip.nus));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, 1, &k->clip.finite));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, 2, &k->clip.zeros));
    DSC_TRY(dsc_op_fill(k->queue, 1, &k->clip.nus)); /* for a report before the first step */
    return dsc_op_fill(k->queue, 0, &k->clip.zeros);
}

void dsc_kfac_clip_destroy(dsc_kfac *k) {
    dsc_tensor_free(&k->clip.nus);
    dsc_tensor_free(&k->clip.finite);
    dsc_tensor_free(&k->clip.zeros);
}

dsc_status dsc_kfac_clip_find(dsc_kfac *k, dsc_queue *q) {
    dsc_tensor inner = dsc_tensor_slice(&k->products, 0, k->unit_count);
    dsc_tensor limits = dsc_tensor_slice(&k->numbers, DSC_KFAC_RATE, 2);
    if (!k->clip.nus.data)
        return dsc_op_kl_clip(q, &k->sum, &limits, &k->nu_tensor);
    DSC_TRY(dsc_op_kl_clip(q, &inner, &limits, &k->clip.nus));
    DSC_TRY(dsc_op_kl_clip(q, &k->sum, &k->clip.zeros, &k->clip.finite));
    DSC_TRY(dsc_op_scale_by(q, &k->clip.finite, &k->clip.nus));
    DSC_TRY(dsc_op_dot(q, &k->clip.nus, &k->ones, 0, &k->nu_tensor));
    return dsc_op_axpby(q, 1 / (double)k->unit_count, &k->nu_tensor, 0, &k->nu_tensor);
}

dsc_status dsc_kfac_clip_write(dsc_kfac *k, dsc_queue *q) {
    int64_t count = 0;
    for (int64_t u = 0; u < k->unit_count; u++) {
        if (!dsc_kfac_takes_part(k, u))
            continue;
        k->joins[count] = k->members[u].gradient;
        k->joins[count].d = k->members[u].p;
        if (k->clip.nus.data) {
            dsc_tensor nu = dsc_tensor_slice(&k->clip.nus, u, 1);
            DSC_TRY(dsc_op_split_batch(q, &nu, &k->joins[count], 1));
        }
        count++;
    }
    return k->clip.nus.data ? DSC_OK : dsc_op_split_batch(q, &k->nu_tensor, k->joins, count);
}

/* ---- the quadratic model's terms ---- */

/* Computes sum nu_u <P_u, D_u> and sum nu_u^2 <P_u, D_u>, on the host. */
static dsc_status terms_of_layers(dsc_kfac *k, dsc_queue *q, double terms[2]) {
    int64_t n = k->unit_count;
    double *host;
    dsc_tensor inner = dsc_tensor_slice(&k->products, 0, n);
    DSC_TRY(dsc_memory_alloc(2 * n, sizeof *host, &host));
    dsc_status status = dsc_tensor_download(q, &inner, (size_t)n * sizeof *host, host);
    if (status == DSC_OK)
        status = dsc_tensor_download(q, &k->clip.nus, (size_t)n * sizeof *host, host + n);
    if (status == DSC_OK)
        status = dsc_queue_sync(q);
    terms[0] = terms[1] = 0;
    for (int64_t u = 0; status == DSC_OK && u < n; u++) {
        terms[0] += host[n + u] * host[u];
        terms[1] += host[n + u] * host[n + u] * host[u];
    }
    dsc_memory_free(&host);
    return status;
}

dsc_status dsc_kfac_step_terms(dsc_kfac *kfac, dsc_queue *queue, double terms[2]) {
    double sum = 0, nu = 1;
    if (kfac->clip.nus.data)
        return terms_of_layers(kfac, queue, terms);
    if (kfac->unit_count > 0) {
        DSC_TRY(dsc_tensor_download(queue, &kfac->sum, sizeof sum, &sum));
        DSC_TRY(dsc_tensor_download(queue, &kfac->nu_tensor, sizeof nu, &nu));
        DSC_TRY(dsc_queue_sync(queue));
    }
    terms[0] = nu * sum;
    terms[1] = nu * nu * sum;
    return DSC_OK;
}
