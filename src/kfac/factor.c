/* Factors: batch factors from inputs and gradients, averaged over the ranks, entering running averages.
 *
 *   A = alpha_A sum a a',  G = alpha_G sum g g'  over all rows of the layer's patches and gradients
 *   alpha, paper         1 / (N S^2)    N S / scale^2      N samples, S output positions, g of scale * loss
 *   alpha, kfac-pytorch  1 / (N S^3)    1 / (N S^3) / scale^2
 *
 * A batch factor is a lower triangle in `gram`. It waits in the factor's `batch` for the other passes and
 * ranks, or enters the average at once when there are none. Averages are packed triangles. */
#include "kfac/internal.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

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

/* An average stored in a half type: computed in full, rounded, and taken only if rounding left it finite. */
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

/* The average takes in a batch factor x[packed], unless that is not finite. With a half type
 * x may lie neither in `packed` nor in the first half of `spare`. */
static dsc_status absorb(dsc_kfac *k, dsc_queue *q, dsc_kfac_factor *f, const dsc_tensor *x) {
    dsc_tensor bad = dsc_tensor_slice(&k->bad, 2 * f->slot, 2), count = dsc_tensor_slice(&bad, 0, 1);
    dsc_tensor decay = dsc_tensor_slice(&k->numbers, DSC_KFAC_DECAY, 1);
    DSC_TRY(dsc_op_fill(q, 0, &count));
    DSC_TRY(dsc_op_count_nonfinite(q, x, &count));
    if (k->factor_dtype == k->dtype)
        return dsc_op_blend(q, &decay, x, &bad, &f->average);
    return blend_half(k, q, f, x, &bad);
}

/* ---- batch factors ---- */

typedef struct rows {
    dsc_tensor x;       /* [n, h, w, c] */
    dsc_conv_desc desc; /* whose patches count */
    int64_t samples, positions;
} rows;

static rows rows_of(const dsc_tensor *t, int64_t channels, int64_t groups) {
    int64_t count = channels > 0 ? dsc_tensor_count(t) / channels : 0;
    const int64_t dim[4] = {count, 1, 1, channels};
    rows r = {.x = dsc_tensor_view(t->device, t->data, t->dtype, 4, dim), .samples = count, .positions = 1};
    r.desc = (dsc_conv_desc){.dtype = t->dtype, .n = count};
    dsc_conv2d_shape_init(&r.desc.shape);
    r.desc.shape.in_h = r.desc.shape.in_w = 1;
    r.desc.shape.in_c = channels;
    r.desc.shape.out_c = r.desc.shape.groups = groups;
    return r;
}

static rows input_rows(const dsc_kfac_layer *l, const dsc_tensor *a) {
    rows r = rows_of(a, l->in_c, 1);
    if (l->kind == DSC_KFAC_LINEAR)
        return r;
    int64_t h, w;
    dsc_kfac_layer_output(l, &h, &w);
    r.x = *a;
    r.samples = a->dim[0];
    r.positions = h * w;
    r.desc = (dsc_conv_desc){.dtype = a->dtype,
                             .n = a->dim[0],
                             .shape = {.size = sizeof(dsc_conv2d_shape),
                                       .in_h = l->in_h,
                                       .in_w = l->in_w,
                                       .in_c = l->in_c,
                                       .out_c = l->out_c,
                                       .kernel_h = l->kernel_h,
                                       .kernel_w = l->kernel_w,
                                       .stride_h = l->stride_h,
                                       .stride_w = l->stride_w,
                                       .pad_h = l->pad_h,
                                       .pad_w = l->pad_w,
                                       .dilation_h = l->dilation_h,
                                       .dilation_w = l->dilation_w,
                                       .groups = l->groups}};
    return r;
}

static double scale_of(const dsc_kfac *k, dsc_kfac_side side, int64_t samples, int64_t positions) {
    double n = (double)samples, s = (double)positions, scale = k->loss_scale * k->loss_scale;
    double alpha = 1 / (n * s * s);
    if (k->options.scaling == DSC_KFAC_PYTORCH)
        alpha /= s;
    else if (side == DSC_KFAC_G)
        alpha = n * s;
    return side == DSC_KFAC_G ? alpha / scale : alpha;
}

/* Room for the workspace of the first captures; batches are the same size after that. */
static dsc_status reserve_work(dsc_kfac *k, size_t bytes) {
    int64_t count = (int64_t)bytes > 1 ? (int64_t)bytes : 1;
    if (k->work.data && dsc_tensor_bytes(&k->work) >= bytes)
        return DSC_OK;
    dsc_tensor_free(&k->work);
    k->work = (dsc_tensor){0};
    return dsc_tensor_alloc(k->device, DSC_U8, 1, &count, &k->work);
}

typedef struct gram_task {
    const rows *r;
    dsc_kfac_side side;
    int64_t group;
    double alpha;
    int first; /* no pass before this one */
} gram_task;

/* As whole matrix, added to where it waits. */
static dsc_status gram_full(dsc_kfac *k, dsc_queue *q, const gram_task *t, dsc_tensor *gram,
                            dsc_kfac_factor *f) {
    DSC_TRY(dsc_op_patch_gram(q, &t->r->desc, &t->r->x, t->group, t->alpha, 0, &k->work, gram));
    DSC_TRY(dsc_op_symmetrize(q, gram));
    return t->first ? dsc_op_convert(q, gram, &f->batch) : dsc_op_axpby(q, 1, gram, 1, &f->batch);
}

/* As triangle, which goes where it waits, or straight into the average. */
static dsc_status gram_packed(dsc_kfac *k, dsc_queue *q, const gram_task *t, dsc_tensor *gram,
                              dsc_kfac_factor *f) {
    dsc_tensor to = dsc_tensor_slice(&k->packed, 0, f->packed);
    if (f->batch.data && t->first)
        to = f->batch;
    else if (!f->batch.data && k->spare.data) /* blend_half uses `packed` and the first half of `spare` */
        to = dsc_tensor_slice(&k->spare, k->largest_packed, f->packed);
    DSC_TRY(dsc_op_patch_gram_packed(q, &t->r->desc, &t->r->x, t->group, t->alpha, &k->work, gram, &to));
    if (!f->batch.data && t->side == DSC_KFAC_G && k->g_scale)
        DSC_TRY(dsc_op_scale_by(q, k->g_scale, &to));
    if (!f->batch.data)
        return absorb(k, q, f, &to);
    return t->first ? DSC_OK : dsc_op_axpby(q, 1, &to, 1, &f->batch);
}

/* One factor of one unit, `done` of its passes before this one. */
static dsc_status add_factor(dsc_kfac *k, dsc_queue *q, int64_t unit, dsc_kfac_side side, const rows *r,
                             double scale, int64_t done) {
    const dsc_kfac_unit *u = &k->layouts[0].plan->units[unit];
    dsc_kfac_factor *f = &k->members[unit].factor[side];
    const int64_t square[2] = {f->n, f->n};
    int64_t used = 0;
    dsc_tensor gram = dsc_kfac_carve(&k->gram, &used, 2, square);
    int ones = side == DSC_KFAC_A && k->members[unit].bias.data;
    DSC_TRY(reserve_work(k, dsc_op_patch_gram_workspace(k->device, &r->desc, ones)));
    const gram_task task = {r, side, u->group, scale / (double)k->options.passes, done == 0};
    if (f->batch.data && !k->options.symmetric)
        DSC_TRY(gram_full(k, q, &task, &gram, f));
    else
        DSC_TRY(gram_packed(k, q, &task, &gram, f));
    /* What is recorded leaves later: a replay must not depend on what else is in the recording. */
    if (k->buckets && done + 1 == k->options.passes && !dsc_queue_is_recording(q)) {
        f->announced = 1;
        return dsc_buckets_ready(k->buckets, f->slot);
    }
    return DSC_OK;
}

/* ---- captures ---- */

static dsc_status check_tensor(const dsc_kfac *k, const char *what, const dsc_kfac_layer *l,
                               const dsc_tensor *t, int64_t channels) {
    if (!t || !t->data)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer '%s': this step needs %s, and there is none", l->name,
                        what);
    int fits = t->dtype == k->dtype || t->dtype == DSC_BF16 || t->dtype == DSC_F16;
    if (t->device != k->device || !fits)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer '%s': %s is %s on %s, its gradients are %s on %s",
                        l->name, what, dsc_dtype_name(t->dtype),
                        t->device ? dsc_device_name(t->device) : "no device", dsc_dtype_name(k->dtype),
                        dsc_device_name(k->device));
    if (dsc_tensor_count(t) == 0)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer '%s': %s is empty; leave out a layer that did not run",
                        l->name, what);
    if (t->ndim < 1 || t->dim[t->ndim - 1] != channels)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer '%s': the last dimension of %s is %lld, expected %lld",
                        l->name, what, (long long)(t->ndim < 1 ? 0 : t->dim[t->ndim - 1]),
                        (long long)channels);
    return DSC_OK;
}

static dsc_status check_capture(const dsc_kfac *k, const dsc_kfac_layer *l, const dsc_tensor *a,
                                const dsc_tensor *g) {
    int64_t h, w;
    DSC_TRY(check_tensor(k, "its input", l, a, l->in_c));
    DSC_TRY(check_tensor(k, "the gradient at its output", l, g, l->out_c));
    dsc_kfac_layer_output(l, &h, &w);
    if (l->kind == DSC_KFAC_CONV2D && (a->ndim != 4 || a->dim[1] != l->in_h || a->dim[2] != l->in_w))
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer '%s': its input must be [n,%lld,%lld,%lld]", l->name,
                        (long long)l->in_h, (long long)l->in_w, (long long)l->in_c);
    int64_t expected = l->kind == DSC_KFAC_CONV2D ? a->dim[0] * h * w : dsc_tensor_count(a) / l->in_c;
    if (dsc_tensor_count(g) / l->out_c != expected)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC: layer '%s': the gradient at its output has %lld rows, its input makes %lld",
                        l->name, (long long)(dsc_tensor_count(g) / l->out_c), (long long)expected);
    return DSC_OK;
}

static dsc_status add_layer(dsc_kfac *k, dsc_queue *q, int64_t layer, const dsc_tensor *a,
                            const dsc_tensor *g) {
    const dsc_kfac_layer *l = &k->layers[layer];
    int64_t done = k->passes_done[layer];
    DSC_TRY(check_capture(k, l, a, g));
    rows input = input_rows(l, a);
    rows output = rows_of(g, l->out_c, dsc_kfac_layer_groups(l));
    double scale_a = scale_of(k, DSC_KFAC_A, input.samples, input.positions);
    double scale_g = scale_of(k, DSC_KFAC_G, input.samples, input.positions);
    for (int64_t u = k->first_unit[layer + 1] - 1; u >= k->first_unit[layer]; u--) {
        DSC_TRY(add_factor(k, q, u, DSC_KFAC_A, &input, scale_a, done));
        DSC_TRY(add_factor(k, q, u, DSC_KFAC_G, &output, scale_g, done));
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
    if (k->updating)
        DSC_TRY(add_layer(k, queue, layer, a, g));
    k->passes_done[layer]++;
    k->ms[0] += 1000 * (dsc_clock_now() - began);
    return DSC_OK;
}

/* ---- the end of the exchange ---- */

/* The lowest layer that did not run as often on one rank as on another, -1 for none. */
static dsc_status compare_passes(dsc_kfac *k, dsc_queue *q, int64_t *differs) {
    int64_t n = k->layer_count;
    *differs = -1;
    if (k->ranks == 1 || n == 0 ||
        dsc_queue_is_recording(q)) /* what is recorded ran before, and was compared */
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

/* What was not announced by its last capture: layers that ran in some of the passes, or not at all (they
 * travel with the others and are then left alone), and what was replayed. */
static dsc_status announce_rest(dsc_kfac *k, dsc_queue *q) {
    for (int64_t layer = k->layer_count - 1; layer >= 0; layer--) {
        int64_t done = k->passes_done[layer];
        for (int64_t u = k->first_unit[layer + 1] - 1; u >= k->first_unit[layer]; u--) {
            for (int side = 0; side < DSC_KFAC_SIDES; side++) {
                dsc_kfac_factor *f = &k->members[u].factor[side];
                if (f->announced)
                    continue;
                f->announced = 1;
                if (done > 0 && done < k->options.passes)
                    DSC_TRY(
                        dsc_op_axpby(q, (double)k->options.passes / (double)done, &f->batch, 0, &f->batch));
                else if (done == 0)
                    DSC_TRY(dsc_op_fill(q, 0, &f->batch));
                DSC_TRY(dsc_buckets_ready(k->buckets, f->slot));
            }
        }
    }
    return DSC_OK;
}

int dsc_kfac_all_ran(const dsc_kfac *k) {
    for (int64_t u = 0; u < k->unit_count; u++)
        if (k->passes_done[k->layouts[0].plan->units[u].layer] == 0)
            return 0;
    return 1;
}

static dsc_status take_in(dsc_kfac *k, dsc_queue *q, dsc_kfac_factor *f) {
    if (k->options.symmetric)
        return absorb(k, q, f, &f->batch);
    /* The average may have lost its symmetry by rounding: the lower triangle counts. The triangle fits into
     * the scratch of the matrix. */
    dsc_tensor packed = dsc_tensor_slice(&k->gram, 0, f->packed);
    DSC_TRY(dsc_op_tri_pack(q, &f->batch, &packed));
    return absorb(k, q, f, &packed);
}

/* All at once. */
static dsc_status take_together(dsc_kfac *k, dsc_queue *q) {
    dsc_tensor decay = dsc_tensor_slice(&k->numbers, DSC_KFAC_DECAY, 1);
    int64_t count = 0;
    for (int64_t i = 0; i < DSC_KFAC_SIDES * k->unit_count; i++) {
        dsc_kfac_factor *f = &k->members[i / 2].factor[i % 2];
        if (f->held)
            k->absorbs[count++] =
                (dsc_absorb_item){f->batch, dsc_tensor_slice(&k->bad, 2 * f->slot, 2), f->average};
    }
    return dsc_op_absorb_batch(q, &decay, k->absorbs, count);
}

/* What waits; the rest was scaled by gram_packed. */
static dsc_status scale_g(dsc_kfac *k, dsc_queue *q) {
    for (int64_t u = 0; k->g_scale && u < k->unit_count; u++) {
        dsc_kfac_factor *f = &k->members[u].factor[DSC_KFAC_G];
        if (f->held && f->batch.data)
            DSC_TRY(dsc_op_scale_by(q, k->g_scale, &f->batch));
    }
    return DSC_OK;
}

static dsc_status take_all(dsc_kfac *k, dsc_queue *q) {
    DSC_TRY(scale_g(k, q));
    if (k->options.symmetric && k->factor_dtype == k->dtype && dsc_kfac_all_ran(k))
        return take_together(k, q);
    for (int64_t u = 0; u < k->unit_count; u++) {
        if (k->passes_done[k->layouts[0].plan->units[u].layer] == 0)
            continue;
        for (int side = 0; side < DSC_KFAC_SIDES; side++) {
            dsc_kfac_factor *f = &k->members[u].factor[side];
            if (f->held)
                DSC_TRY(take_in(k, q, f));
        }
    }
    return DSC_OK;
}

dsc_status dsc_kfac_factors_finish(dsc_kfac *k, dsc_queue *q) {
    int64_t differs;
    int waiting = k->batches.data && k->updating;
    DSC_TRY(compare_passes(k, q, &differs));
    if (waiting) { /* even if ranks differ, so that nobody waits */
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
    return waiting ? take_all(k, q) : DSC_OK;
}
