/* Factors: batch factors from inputs and gradients, their mean over the ranks, and the running averages.
 *
 *   A = alpha_A sum a a',  G = alpha_G sum g g'  over all rows that the layer's kind names
 *                   alpha_A        alpha_G
 *   paper           1 / (N S^2)    N S / scale^2           N samples, S positions, g of scale * loss
 *   kfac-pytorch    1 / (N S^3)    1 / (N S^3) / scale^2
 *   average         F <- decay F + (1 - decay) F_batch, unless F_batch is not finite
 *
 * A batch factor is formed in `gram` and waits in the factor's `batch` for other passes and ranks, or enters
 * the average at once when there are none. Averages are packed lower triangles. */
#include "kfac/internal.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "device/recording.h"

/* ---- order of the exchange ---- */

/* Gradients come from the last layer to the first, so factors leave in that order. */
dsc_status dsc_kfac_factors_create(dsc_kfac *k) {
    int64_t count = DSC_KFAC_SIDES * k->unit_count;
    dsc_bucket_options options;
    dsc_tensor *tensors = NULL;
    int *roots = NULL;
    if (!k->batches.data)
        return DSC_OK;
    dsc_bucket_options_init(&options);
    options.bytes = k->options.bucket_bytes;
    options.wire = k->factor_dtype == k->dtype ? DSC_F32 : k->factor_dtype;
    options.traffic = DSC_TRAFFIC_FACTORS;
    options.divide_first = 1; /* factors may be large: their sum over the ranks need not fit into fp16 */
    DSC_TRY(dsc_memory_alloc(count, sizeof *tensors, &tensors));
    dsc_status status = dsc_memory_alloc(count, sizeof *roots, &roots);
    for (int64_t u = 0; status == DSC_OK && u < k->unit_count; u++) {
        for (int side = 0; side < DSC_KFAC_SIDES; side++) {
            const dsc_kfac_factor *f = &k->members[u].factor[side];
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

/* ---- running averages ---- */

dsc_status dsc_kfac_factor_read(dsc_kfac *k, dsc_queue *q, const dsc_kfac_factor *f, dsc_tensor *out) {
    *out = f->average;
    if (k->factor_dtype == k->dtype)
        return DSC_OK;
    *out = dsc_tensor_slice(&k->packed, 0, f->packed);
    return dsc_op_convert(q, &f->average, out);
}

/* An average stored in a half type: computed in the arithmetic type, rounded, and kept only if rounding left
 * it finite. */
static dsc_status blend_half(dsc_kfac *k, dsc_queue *q, dsc_kfac_factor *f, const dsc_tensor *x,
                             dsc_tensor *bad) {
    dsc_tensor old = dsc_tensor_slice(&k->packed, 0, f->packed);
    dsc_tensor fresh = dsc_tensor_slice(&k->spare, 0, f->packed);
    dsc_tensor half = dsc_tensor_slice(&k->half, 0, f->packed);
    dsc_tensor decay = dsc_tensor_slice(&k->numbers, DSC_KFAC_DECAY, 1);
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

/* The average takes in a batch factor x[packed], unless x is not finite. For averages in a half type x may
 * lie neither in `packed` nor in the first half of `spare`. */
static dsc_status absorb(dsc_kfac *k, dsc_queue *q, dsc_kfac_factor *f, const dsc_tensor *x) {
    dsc_tensor bad = dsc_tensor_slice(&k->bad, 2 * f->slot, 2), count = dsc_tensor_slice(&bad, 0, 1);
    dsc_tensor decay = dsc_tensor_slice(&k->numbers, DSC_KFAC_DECAY, 1);
    DSC_TRY(dsc_op_fill(q, 0, &count));
    DSC_TRY(dsc_op_count_nonfinite(q, x, &count));
    if (k->factor_dtype == k->dtype)
        return dsc_op_blend(q, &decay, x, &bad, &f->average);
    return blend_half(k, q, f, x, &bad);
}

/* ---- captures ---- */

/* alpha of a factor, without the number of passes. */
static double alpha_of(const dsc_kfac *k, dsc_kfac_side side, const dsc_kfac_pass *pass) {
    double n = (double)pass->samples, s = (double)pass->positions, scale = k->loss_scale * k->loss_scale;
    double alpha = 1 / (n * s * s);
    if (k->options.scaling == DSC_KFAC_PYTORCH)
        alpha /= s;
    else if (side == DSC_KFAC_G)
        alpha = n * s;
    return side == DSC_KFAC_G ? alpha / scale : alpha;
}

/* Makes `work` large enough. It grows during the first captures; later batches have the same size. */
static dsc_status reserve_work(dsc_kfac *k, size_t bytes) {
    int64_t count = (int64_t)bytes > 1 ? (int64_t)bytes : 1;
    if (k->work.data && dsc_tensor_bytes(&k->work) >= bytes)
        return DSC_OK;
    dsc_tensor_free(&k->work);
    k->work = (dsc_tensor){0};
    return dsc_tensor_alloc(k->device, DSC_U8, 1, &count, &k->work);
}

/* Adds what one pass contributes to one factor, after `done` earlier passes of this step: alpha sum x x', to
 * the batch factor where that waits for other passes or ranks, else to the running average at once. */
static dsc_status add_factor(dsc_kfac *k, dsc_queue *q, int64_t unit, dsc_kfac_side side,
                             const dsc_kfac_rows *rows, double alpha, int64_t done) {
    int64_t group = k->layouts[0].plan->units[unit].group, used = 0;
    dsc_kfac_factor *f = &k->members[unit].factor[side];
    int waits = f->batch.data != NULL, first = done == 0;
    int ones = side == DSC_KFAC_A && k->members[unit].bias.data;
    const int64_t square[2] = {f->n, f->n};
    dsc_tensor gram = dsc_kfac_carve(&k->gram, &used, 2, square);
    DSC_TRY(reserve_work(k, dsc_op_patch_gram_workspace(k->device, &rows->desc, ones)));
    if (waits && !k->options.symmetric) {
        DSC_TRY(dsc_op_patch_gram(q, &rows->desc, &rows->x, group, alpha, 0, &k->work, &gram));
        DSC_TRY(dsc_op_symmetrize(q, &gram));
        DSC_TRY(first ? dsc_op_convert(q, &gram, &f->batch) : dsc_op_axpby(q, 1, &gram, 1, &f->batch));
    } else {
        dsc_tensor to = dsc_tensor_slice(&k->packed, 0, f->packed);
        if (waits && first)
            to = f->batch;
        else if (!waits && k->spare.data) /* blend_half uses `packed` and the first half of `spare` */
            to = dsc_tensor_slice(&k->spare, k->largest_packed, f->packed);
        DSC_TRY(dsc_op_patch_gram_packed(q, &rows->desc, &rows->x, group, alpha, &k->work, &gram, &to));
        if (!waits && side == DSC_KFAC_G && k->g_scale)
            DSC_TRY(dsc_op_scale_by(q, k->g_scale, &to));
        if (!waits)
            return absorb(k, q, f, &to);
        if (!first)
            DSC_TRY(dsc_op_axpby(q, 1, &to, 1, &f->batch));
    }
    /* A recording announces nothing: its replays must not depend on what else is in the recording. */
    if (k->buckets && done + 1 == k->options.passes && !dsc_queue_is_recording(q)) {
        f->announced = 1;
        return dsc_buckets_ready(k->buckets, f->slot);
    }
    return DSC_OK;
}

dsc_status dsc_kfac_capture(dsc_kfac *kfac, dsc_queue *queue, int64_t layer, const dsc_tensor *a,
                            const dsc_tensor *g) {
    dsc_kfac *k = kfac;
    double began = dsc_clock_now();
    if (!k->begun)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: a capture before dsc_kfac_begin");
    if (queue != k->queue)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: a capture in another queue than that of its creation");
    if (layer < 0 || layer >= k->layer_count)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer %lld; there are 0 to %lld", (long long)layer,
                        (long long)k->layer_count - 1);
    if (k->first_unit[layer] == k->first_unit[layer + 1])
        return DSC_OK; /* skipped */
    if (k->passes_done[layer] >= k->options.passes)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC: layer '%s' was captured more than %lld times in a step: set options.passes",
                        k->layers[layer].name, (long long)k->options.passes);
    if (k->updating) {
        dsc_kfac_pass pass;
        DSC_TRY(dsc_kfac_kind_of(&k->layers[layer])->capture(&k->layers[layer], a, g, &pass));
        double alpha_a = alpha_of(k, DSC_KFAC_A, &pass) / (double)k->options.passes;
        double alpha_g = alpha_of(k, DSC_KFAC_G, &pass) / (double)k->options.passes;
        int64_t done = k->passes_done[layer];
        for (int64_t u = k->first_unit[layer + 1] - 1; u >= k->first_unit[layer]; u--) {
            DSC_TRY(add_factor(k, queue, u, DSC_KFAC_A, &pass.rows[DSC_KFAC_A], alpha_a, done));
            DSC_TRY(add_factor(k, queue, u, DSC_KFAC_G, &pass.rows[DSC_KFAC_G], alpha_g, done));
        }
    }
    k->passes_done[layer]++;
    k->times.factor += 1000 * (dsc_clock_now() - began);
    return DSC_OK;
}

/* ---- the end of the exchange ---- */

/* *differs: the lowest layer that did not run equally often on all ranks, -1 when there is none. */
static dsc_status compare_passes(dsc_kfac *k, dsc_queue *q, int64_t *differs) {
    int64_t n = k->layer_count;
    *differs = -1;
    if (k->ranks == 1 || n == 0 || dsc_queue_is_recording(q)) /* the step before a recording compared them */
        return DSC_OK;
    for (int64_t i = 0; i < n; i++) {
        k->ran_host[i] = (int32_t)k->passes_done[i];
        k->ran_host[n + i] = -(int32_t)k->passes_done[i];
    }
    size_t bytes = dsc_tensor_bytes(&k->ran);
    DSC_TRY(dsc_tensor_upload(q, k->ran_host, bytes, &k->ran));
    DSC_TRY(dsc_queue_sync(q));
    DSC_TRY(dsc_comm_allreduce(k->control, DSC_TRAFFIC_OTHER, DSC_MIN, &k->ran));
    DSC_TRY(dsc_tensor_download(q, &k->ran, bytes, k->ran_host));
    DSC_TRY(dsc_queue_sync(q));
    for (int64_t i = n - 1; i >= 0; i--) {
        if (k->ran_host[i] != -k->ran_host[n + i])
            *differs = i;
    }
    return DSC_OK;
}

/* Announces to the exchange what the last capture did not: layers that ran in some of the passes (their mean
 * is taken over those) or in none (they travel with the others and are left alone afterwards), and
 * replays. */
static dsc_status announce_rest(dsc_kfac *k, dsc_queue *q) {
    double passes = (double)k->options.passes;
    for (int64_t i = DSC_KFAC_SIDES * k->unit_count - 1; i >= 0; i--) {
        int64_t u = i / 2, done = k->passes_done[k->layouts[0].plan->units[u].layer];
        dsc_kfac_factor *f = &k->members[u].factor[1 - i % 2];
        if (f->announced)
            continue;
        f->announced = 1;
        if (done == 0)
            DSC_TRY(dsc_op_fill(q, 0, &f->batch));
        else if (done < k->options.passes)
            DSC_TRY(dsc_op_axpby(q, passes / (double)done, &f->batch, 0, &f->batch));
        DSC_TRY(dsc_buckets_ready(k->buckets, f->slot));
    }
    return DSC_OK;
}

int dsc_kfac_all_ran(const dsc_kfac *k) {
    for (int64_t u = 0; u < k->unit_count; u++)
        if (!dsc_kfac_ran(k, u))
            return 0;
    return 1;
}

/* The averages that this rank keeps take in the batch factors of units that ran, all at once where
 * possible. */
static dsc_status move_averages(dsc_kfac *k, dsc_queue *q) {
    int together = k->options.symmetric && k->factor_dtype == k->dtype && dsc_kfac_all_ran(k);
    dsc_tensor decay = dsc_tensor_slice(&k->numbers, DSC_KFAC_DECAY, 1);
    int64_t count = 0;
    for (int64_t u = 0; k->g_scale && u < k->unit_count; u++) {
        dsc_kfac_factor *f = &k->members[u].factor[DSC_KFAC_G];
        if (f->held)
            DSC_TRY(dsc_op_scale_by(q, k->g_scale, &f->batch));
    }
    for (int64_t i = 0; i < DSC_KFAC_SIDES * k->unit_count; i++) {
        dsc_kfac_factor *f = &k->members[i / 2].factor[i % 2];
        if (!f->held || !dsc_kfac_ran(k, i / 2))
            continue;
        if (together) {
            k->absorbs[count++] =
                (dsc_absorb_item){f->batch, dsc_tensor_slice(&k->bad, 2 * f->slot, 2), f->average};
        } else if (k->options.symmetric) {
            DSC_TRY(absorb(k, q, f, &f->batch));
        } else {
            /* The mean over the ranks may have lost its symmetry by rounding: the lower triangle counts. The
             * triangle fits into the scratch of the matrix. */
            dsc_tensor packed = dsc_tensor_slice(&k->gram, 0, f->packed);
            DSC_TRY(dsc_op_tri_pack(q, &f->batch, &packed));
            DSC_TRY(absorb(k, q, f, &packed));
        }
    }
    return together ? dsc_op_absorb_batch(q, &decay, k->absorbs, count) : DSC_OK;
}

dsc_status dsc_kfac_factors_finish(dsc_kfac *k, dsc_queue *q) {
    int64_t differs;
    int waiting = k->batches.data && k->updating;
    DSC_TRY(compare_passes(k, q, &differs));
    if (waiting) { /* also when ranks differ: the others wait for it */
        DSC_TRY(announce_rest(k, q));
        DSC_TRY(dsc_buckets_wait(k->buckets));
    }
    if (differs >= 0)
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC: step %lld: layer '%s' ran %d times on one rank and %d on another: a layer must "
            "run on all ranks or on none",
            (long long)k->step, k->layers[differs].name, (int)k->ran_host[differs],
            -(int)k->ran_host[k->layer_count + differs]);
    return waiting ? move_averages(k, q) : DSC_OK;
}
