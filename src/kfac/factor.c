/* Factors: the mean of the batch factors (capture.c) over the ranks, and the running averages.
 *
 *   average   F <- decay F + (1 - decay) F_batch, unless F_batch is not finite
 *
 * With options.warmup_factors the n-th update of a layer has the decay min(decay, 1 - 1/n). Updates whose batch factor
 * was rejected because it is not finite count, too: only the device knows which ones were.
 *
 * Averages are packed lower triangles. */
#include "kfac/internal.h"

#include "base/error.h"
#include "base/memory.h"

/* ---- order of the exchange ---- */

dsc_status dsc_kfac_factors_create(dsc_kfac *k) {
    int64_t count = k->factor_count;
    dsc_bucket_options options;
    dsc_tensor *tensors = NULL;
    int *roots = NULL;
    if (!k->batches.data)
        return DSC_OK;
    dsc_bucket_options_init(&options);
    options.bytes = k->options.bucket_bytes;
    options.wire = k->factor_dtype == k->dtype ? DSC_F32 : k->factor_dtype;
    options.traffic = DSC_TRAFFIC_FACTORS;
    options.divide_first = 1; /* factors may be large: their sum over the ranks might overflow in fp16 */
    DSC_TRY(dsc_memory_alloc(count, sizeof *tensors, &tensors));
    dsc_status status = dsc_memory_alloc(count, sizeof *roots, &roots);
    for (int64_t u = 0; status == DSC_OK && u < k->unit_count; u++) {
        for (int side = 0; side < DSC_KFAC_SIDES; side++) {
            const dsc_kfac_factor *f = &k->members[u].factor[side];
            if (f->shared)
                continue;
            tensors[f->slot] = f->batch;
            roots[f->slot] = f->owner;
        }
    }
    options.roots = dsc_kfac_keeps_everywhere(k) ? NULL : roots;
    if (status == DSC_OK)
        status = dsc_buckets_create(k->exchange, k->queue, tensors, count, &options, &k->buckets);
    dsc_memory_free(&roots);
    dsc_memory_free(&tensors);
    return status;
}

/* ---- decay ---- */

dsc_status dsc_kfac_decays_upload(dsc_kfac *k, dsc_queue *q) {
    if (!k->decays.data)
        return DSC_OK;
    for (int64_t l = 0; l < k->layer_count; l++) {
        double n = (double)k->progress[l].updates + 1, mean = 1 - 1 / n;
        k->decays_host[l] = mean < k->hyper.stat_decay ? mean : k->hyper.stat_decay;
    }
    return dsc_tensor_upload(q, k->decays_host, dsc_tensor_bytes(&k->decays), &k->decays);
}

void dsc_kfac_updates_guess(dsc_kfac *k) {
    const int64_t many = (int64_t)1 << 30;
    for (int64_t l = 0; l < k->layer_count; l++)
        k->progress[l].updates = k->progress[l].contributed ? many : 0;
}

dsc_tensor dsc_kfac_decay_of(const dsc_kfac *k, int64_t layer) {
    return k->decays.data ? dsc_tensor_slice(&k->decays, layer, 1)
                          : dsc_tensor_slice(&k->numbers, DSC_KFAC_DECAY, 1);
}

/* ---- running averages ---- */

dsc_status dsc_kfac_factor_read(dsc_kfac *k, dsc_queue *q, const dsc_kfac_factor *f, dsc_tensor *out) {
    *out = f->average;
    if (k->factor_dtype == k->dtype)
        return DSC_OK;
    *out = dsc_tensor_slice(&k->packed, 0, f->packed);
    return dsc_op_convert(q, &f->average, out);
}

/* Updates an average that is stored in a half type: computes it in the arithmetic type, rounds it, and keeps the result
 * only if it is finite after rounding. */
static dsc_status blend_half(dsc_kfac *k, dsc_queue *q, dsc_kfac_factor *f, const dsc_tensor *x,
                             dsc_tensor *bad) {
    dsc_tensor old = dsc_tensor_slice(&k->packed, 0, f->packed);
    dsc_tensor fresh = dsc_tensor_slice(&k->spare, 0, f->packed);
    dsc_tensor half = dsc_tensor_slice(&k->half, 0, f->packed);
    dsc_tensor decay = dsc_kfac_decay_of(k, f->layer);
    dsc_tensor none = dsc_tensor_slice(&k->sum, 0, 1), count = dsc_tensor_slice(bad, 0, 1);
    DSC_TRY(dsc_op_convert(q, &f->average, &old));
    DSC_TRY(dsc_op_convert(q, &f->average, &fresh));
    DSC_TRY(dsc_op_blend(q, &decay, x, bad, &fresh));
    DSC_TRY(dsc_op_convert(q, &fresh, &half));
    DSC_TRY(dsc_op_convert(q, &half, &fresh));
    DSC_TRY(dsc_op_fill(q, 0, &count));
    DSC_TRY(dsc_op_count_nonfinite(q, &fresh, &count));
    DSC_TRY(dsc_op_fill(q, 0, &none));
    DSC_TRY(dsc_op_blend(q, &none, &fresh, bad, &old));
    return dsc_op_convert(q, &old, &f->average);
}

dsc_status dsc_kfac_factor_absorb(dsc_kfac *k, dsc_queue *q, dsc_kfac_factor *f, const dsc_tensor *x) {
    dsc_tensor bad = dsc_tensor_slice(&k->bad, 2 * f->slot, 2), count = dsc_tensor_slice(&bad, 0, 1);
    dsc_tensor decay = dsc_kfac_decay_of(k, f->layer);
    if (k->factor_dtype == k->dtype && !dsc_device_is_host(k->device)) { /* fewer launches */
        const dsc_absorb_item item = {*x, bad, f->average};
        return dsc_op_absorb_batch(q, &decay, &item, 1);
    }
    DSC_TRY(dsc_op_fill(q, 0, &count));
    DSC_TRY(dsc_op_count_nonfinite(q, x, &count));
    if (k->factor_dtype == k->dtype)
        return dsc_op_blend(q, &decay, x, &bad, &f->average);
    return blend_half(k, q, f, x, &bad);
}

/* ---- the end of the exchange ---- */

/* Rescales a batch factor, which is a mean over all passes (A also over the uses in a pass), if its layer did not run
 * in all of them: it becomes a mean over those that were captured. If the number of uses was not known, A has been a
 * sum over the uses until now. */
static dsc_status scale_batch(dsc_kfac *k, dsc_queue *q, int64_t layer, dsc_kfac_factor *f, int side) {
    const dsc_kfac_progress *p = &k->progress[layer];
    double passes = (double)k->options.passes, uses = p->uses > 0 ? (double)p->uses : 1;
    double came = (double)p->captures, scale = 1;
    if (side == DSC_KFAC_A)
        scale = passes * uses / came;
    else if (p->uses > 0)
        scale = passes / (double)((p->captures + p->uses - 1) / p->uses);
    return scale == 1 ? DSC_OK : dsc_op_axpby(q, scale, &f->batch, 0, &f->batch);
}

/* Announces to the exchange the factors that no capture has announced: those of layers that ran less often than
 * expected or not at all (the latter are sent with the others and then ignored), and those of replayed captures. */
static dsc_status announce_rest(dsc_kfac *k, dsc_queue *q) {
    for (int64_t i = DSC_KFAC_SIDES * k->unit_count - 1; i >= 0; i--) {
        int64_t u = i / 2, layer = dsc_kfac_layer_of(k, u);
        int side = 1 - (int)(i % 2);
        dsc_kfac_factor *f = &k->members[u].factor[side];
        if (f->announced || !f->batch.data)
            continue;
        f->announced = 1;
        if (k->progress[layer].captures > 0)
            DSC_TRY(scale_batch(k, q, layer, f, side));
        else if (k->buckets)
            DSC_TRY(dsc_op_fill(q, 0, &f->batch));
        if (k->buckets)
            DSC_TRY(dsc_buckets_ready(k->buckets, f->slot));
    }
    return DSC_OK;
}

/* Updates the averages that this rank keeps with the batch factors that waited, all at once where possible. Layers that
 * did not always run together may have different decays; this does not occur in a recording. */
static dsc_status move_averages(dsc_kfac *k, dsc_queue *q) {
    int together = k->options.symmetric && k->factor_dtype == k->dtype;
    int64_t count = 0, before = -1;
    for (int64_t i = 0; i < DSC_KFAC_SIDES * k->unit_count; i++) {
        dsc_kfac_factor *f = &k->members[i / 2].factor[i % 2];
        int64_t layer = dsc_kfac_layer_of(k, i / 2);
        if (!f->held || !f->batch.data || !dsc_kfac_was_captured(k, i / 2))
            continue;
        if (k->decays.data && count > 0 && k->progress[layer].updates != k->progress[before].updates) {
            dsc_tensor decay = dsc_kfac_decay_of(k, before);
            DSC_TRY(dsc_op_absorb_batch(q, &decay, k->absorbs, count));
            count = 0;
        }
        before = layer;
        if (k->g_scale && i % 2 == DSC_KFAC_G)
            DSC_TRY(dsc_op_scale_by(q, k->g_scale, &f->batch));
        if (together) {
            k->absorbs[count++] =
                (dsc_absorb_item){f->batch, dsc_tensor_slice(&k->bad, 2 * f->slot, 2), f->average};
        } else if (k->options.symmetric) {
            DSC_TRY(dsc_kfac_factor_absorb(k, q, f, &f->batch));
        } else {
            /* Rounding may have made the mean over the ranks asymmetric: the lower triangle is used. It fits into the
             * scratch memory of the matrix. */
            dsc_tensor packed = dsc_tensor_slice(&k->gram, 0, f->packed);
            DSC_TRY(dsc_op_tri_pack(q, &f->batch, &packed));
            DSC_TRY(dsc_kfac_factor_absorb(k, q, f, &packed));
        }
    }
    if (count == 0)
        return DSC_OK;
    dsc_tensor decay = dsc_kfac_decay_of(k, before);
    return dsc_op_absorb_batch(q, &decay, k->absorbs, count);
}

void dsc_kfac_factors_note(dsc_kfac *k) {
    for (int64_t l = 0; k->updating && l < k->layer_count; l++) {
        k->progress[l].contributed |= k->progress[l].captures > 0;
        k->progress[l].updates += k->progress[l].captures > 0;
    }
}

dsc_status dsc_kfac_factors_finish(dsc_kfac *k, dsc_queue *q) {
    int64_t differs;
    DSC_TRY(dsc_kfac_compare(k, q, &differs));
    if (k->updating) { /* even if ranks differ: the others wait for it */
        DSC_TRY(announce_rest(k, q));
        if (k->buckets) {
            k->broken = 1;
            DSC_TRY(dsc_buckets_wait(k->buckets));
            DSC_TRY(dsc_kfac_ekfac_exchange(k, q));
            DSC_TRY(dsc_kfac_norm_exchange(k, q));
            DSC_TRY(dsc_kfac_tables_exchange(k, q));
            k->broken = 0;
        }
    }
    if (differs >= 0)
        return dsc_kfac_refuse_difference(k, k->ran_host, k->step, differs);
    dsc_kfac_factors_note(k);
    if (!k->updating)
        return DSC_OK;
    DSC_TRY(dsc_kfac_ekfac_absorb(k, q));
    DSC_TRY(dsc_kfac_norm_absorb(k, q));
    DSC_TRY(dsc_kfac_tables_absorb(k, q));
    return move_averages(k, q);
}
