/* Captures: compute batch factors from the inputs of a layer and the gradients at its outputs.
 *
 *   A = alpha_A sum a a',  G = alpha_G sum g g'  over all rows, as defined by the layer's kind
 *                   alpha_A        alpha_G
 *   paper           1 / (N S^2)    M S / scale^2           N samples, S positions, M terms, g of scale * loss
 *   kfac-pytorch    1 / (N S^3)    1 / (N S^3) / scale^2
 *
 * M, the number of terms that the loss is the mean of, is N unless options.loss_terms says how many a sample has.
 * (With R = N S rows this is sum a a' / R and M sum g g', except that a factor S moves from A to G.)
 *
 * With options.factor_samples n, the sums run over the first n of the N samples. g belongs to a loss averaged over
 * all N, so the gradient of one sample's loss is N g, and N becomes n in every alpha except that of G in the
 * paper's scaling, where it becomes N^2 / n (and M becomes M N / n).
 *
 * With sharing reduce, the rows of a linear layer on sequences of t positions are means, whereas those of g should be
 * sums: alpha_G is multiplied by t^2.
 *
 * With m passes and u uses of the layer in each, a capture is weighted with alpha_A / (m u) and alpha_G / m: A is the
 * mean over all captures, G the mean over the passes of the sum over the uses. A batch factor is formed in `gram` and
 * waits in the factor's `batch` for other captures and ranks, or updates the average at once if there are none. */
#include "kfac/internal.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/versioned.h"
#include "device/recording.h"

/* ---- batch factors ---- */

/* Returns alpha of a factor, not yet divided by the numbers of passes and uses. */
static double alpha_of(const dsc_kfac *k, dsc_kfac_side side, const dsc_kfac_pass *pass) {
    double n = (double)pass->samples, s = (double)pass->positions, scale = k->loss_scale * k->loss_scale;
    double alpha = 1 / (n * s * s);
    if (k->options.scaling == DSC_KFAC_PYTORCH)
        alpha /= s;
    else if (side == DSC_KFAC_G)
        alpha =
            (double)pass->terms * pass->whole * pass->whole * s * (double)(pass->averaged * pass->averaged);
    return side == DSC_KFAC_G ? alpha / scale : alpha;
}

/* Rescales a factor x that was formed with padding rows, which are 0, to the rows that remain. The mean square of the
 * bias's 1, which is the last element of A, is set to that of rows without padding. */
static dsc_status leave_padding_out(dsc_queue *q, const dsc_kfac_pass *pass, dsc_kfac_side side, double alpha,
                                    int ones, dsc_tensor *x) {
    dsc_tensor last = dsc_tensor_slice(x, dsc_tensor_count(x) - 1, 1);
    if (!pass->scale[side].data)
        return DSC_OK;
    DSC_TRY(dsc_op_scale_by(q, &pass->scale[side], x));
    return ones ? dsc_op_fill(q, alpha * (double)pass->samples, &last) : DSC_OK;
}

/* Adds what one capture contributes to one factor, alpha sum x x': to the batch factor if that waits for other captures
 * or ranks, otherwise directly to the running average. */
static dsc_status add_factor(dsc_kfac *k, dsc_queue *q, int64_t unit, dsc_kfac_side side,
                             const dsc_kfac_pass *pass, double alpha) {
    const dsc_kfac_rows *rows = &pass->rows[side];
    int64_t group = dsc_kfac_rows_group(rows, k->layouts[0].plan->units[unit].group), used = 0;
    const dsc_kfac_progress *progress = &k->progress[dsc_kfac_layer_of(k, unit)];
    dsc_kfac_factor *f = &k->members[unit].factor[side];
    int waits = f->batch.data != NULL, first = progress->captures == 0;
    int ones = side == DSC_KFAC_A && k->layers[dsc_kfac_layer_of(k, unit)].bias_grad.data;
    const int64_t square[2] = {f->n, f->n};
    dsc_tensor gram = dsc_kfac_carve(&k->gram, &used, 2, square);
    DSC_TRY(dsc_kfac_reserve(k, dsc_op_patch_gram_workspace(k->device, &rows->desc, ones), &k->work));
    if (waits && !k->options.symmetric) {
        DSC_TRY(dsc_op_patch_gram(q, &rows->desc, &rows->x, group, alpha, 0, &k->work, &gram));
        DSC_TRY(dsc_op_symmetrize(q, &gram));
        DSC_TRY(leave_padding_out(q, pass, side, alpha, ones, &gram));
        DSC_TRY(first ? dsc_op_convert(q, &gram, &f->batch) : dsc_op_axpby(q, 1, &gram, 1, &f->batch));
    } else {
        dsc_tensor to = dsc_tensor_slice(&k->packed, 0, f->packed);
        if (waits && first)
            to = f->batch;
        else if (!waits && k->spare.data) /* blend_half uses `packed` and the first half of `spare` */
            to = dsc_tensor_slice(&k->spare, k->largest_packed, f->packed);
        DSC_TRY(dsc_op_patch_gram_packed(q, &rows->desc, &rows->x, group, alpha, &k->work, &gram, &to));
        DSC_TRY(leave_padding_out(q, pass, side, alpha, ones, &to));
        if (!waits && side == DSC_KFAC_G && k->g_scale)
            DSC_TRY(dsc_op_scale_by(q, k->g_scale, &to));
        if (!waits)
            return dsc_kfac_factor_absorb(k, q, f, &to);
        if (!first)
            DSC_TRY(dsc_op_axpby(q, 1, &to, 1, &f->batch));
    }
    /* Nothing is announced in a recording: its replays must not depend on what else is in it. */
    int last = progress->uses > 0 && progress->captures + 1 == k->options.passes * progress->uses;
    if (k->buckets && last && !dsc_queue_is_recording(q)) {
        f->announced = 1;
        return dsc_buckets_ready(k->buckets, f->slot);
    }
    return DSC_OK;
}

/* ---- order and type of captured tensors ---- */

/* Returns t[n, channels, h, w] with the shape [n, h, w, channels]; its elements are still in the old order. */
static dsc_tensor as_nhwc(const dsc_tensor *t) {
    const int64_t dim[4] = {t->dim[0], t->dim[2], t->dim[3], t->dim[1]};
    return t->data && t->ndim == 4 ? dsc_tensor_view(t->device, t->data, t->dtype, 4, dim) : *t;
}

/* Returns the next piece of `images`, for `count` elements. While `images` has no memory yet, it only counts. */
static void *next_piece(const dsc_kfac *k, int64_t count, dsc_dtype dtype, size_t *used) {
    const size_t alignment = 256;
    char *piece = k->images.data ? (char *)k->images.data + *used : NULL;
    *used += ((size_t)count * dsc_dtype_size(dtype) + alignment - 1) / alignment * alignment;
    return piece;
}

/* A captured tensor, and what must be done to it before it can be used. */
typedef struct incoming {
    const dsc_tensor *given;
    int turns;  /* 1: its elements are reordered to [n, h, w, channels] */
    int widens; /* 1: they are converted to F32, because the device does not compute in half types */
    void *turned, *wide;
} incoming;

static size_t place_incoming(const dsc_kfac *k, incoming *in) {
    size_t used = 0;
    for (int side = 0; side < DSC_KFAC_SIDES; side++) {
        int64_t count = dsc_tensor_count(in[side].given);
        if (in[side].turns)
            in[side].turned = next_piece(k, count, in[side].given->dtype, &used);
        if (in[side].widens)
            in[side].wide = next_piece(k, count, DSC_F32, &used);
    }
    return used;
}

/* Copies captured tensors to the order and type that are needed. seen: the tensors as [n, h, w, channels]. */
static dsc_status convert_incoming(dsc_kfac *k, dsc_queue *q, incoming *in, const dsc_tensor *seen,
                                   dsc_kfac_pass *pass) {
    dsc_nhwc_item items[DSC_KFAC_SIDES];
    int64_t count = 0;
    DSC_TRY(dsc_kfac_reserve(k, place_incoming(k, in), &k->images));
    place_incoming(k, in);
    for (int side = 0; side < DSC_KFAC_SIDES; side++) {
        if (!in[side].turns)
            continue;
        items[count] = (dsc_nhwc_item){*in[side].given, seen[side]};
        pass->rows[side].x.data = items[count++].y.data = in[side].turned;
    }
    DSC_TRY(dsc_op_nhwc_batch(q, items, count));
    for (int side = 0; side < DSC_KFAC_SIDES; side++) {
        dsc_kfac_rows *rows = &pass->rows[side];
        dsc_tensor wide = rows->x;
        if (!in[side].widens)
            continue;
        wide.data = in[side].wide;
        wide.dtype = rows->desc.dtype = DSC_F32;
        DSC_TRY(dsc_op_convert(q, &rows->x, &wide));
        rows->x = wide;
    }
    return DSC_OK;
}

/* Finds what a and g contribute to the factors. Images [n, channels, h, w] are reordered, both tensors by one
 * operation. */
static dsc_status read_sample(dsc_kfac *k, dsc_queue *q, const dsc_kfac_layer *l, const dsc_kfac_sample *s,
                              dsc_kfac_pass *pass) {
    incoming in[DSC_KFAC_SIDES] = {{.given = &s->a}, {.given = &s->g}};
    const dsc_image_layout layouts[DSC_KFAC_SIDES] = {s->a_layout, s->g_layout};
    dsc_tensor seen[DSC_KFAC_SIDES];
    int images = l->kind == DSC_KFAC_CONV2D || l->kind == DSC_KFAC_CONV_TRANSPOSE2D, any = 0, nchw = 0;
    for (int side = 0; side < DSC_KFAC_SIDES; side++) {
        const dsc_tensor *t = in[side].given;
        int turned = images && layouts[side] == DSC_NCHW;
        int half = t->dtype == DSC_BF16 || t->dtype == DSC_F16;
        seen[side] = turned ? as_nhwc(t) : *t;
        in[side].turns = turned && t->ndim == 4 && t->dim[1] > 1 && t->dim[2] * t->dim[3] > 1;
        in[side].widens = half && dsc_device_is_host(k->device);
        any |= in[side].turns || in[side].widens;
        nchw |= turned;
    }
    dsc_status status = dsc_kfac_kind_of(l)->capture(l, &seen[DSC_KFAC_A], &seen[DSC_KFAC_G], pass);
    if (status != DSC_OK)
        return nchw ? dsc_error_prefix(status, "images seen as [n,h,w,channels]") : status;
    return any ? convert_incoming(k, q, in, seen, pass) : DSC_OK;
}

/* Replaces the positions of every sequence [n, t, channels] by their mean; the rows become [n, channels]. */
static dsc_status average_positions(dsc_kfac *k, dsc_queue *q, const dsc_kfac_layer *l, dsc_kfac_pass *pass,
                                    int64_t n) {
    const int64_t channels[DSC_KFAC_SIDES] = {l->in_c, l->out_c};
    size_t bytes[DSC_KFAC_SIDES];
    pass->averaged = pass->samples / n;
    for (int side = 0; side < DSC_KFAC_SIDES; side++)
        bytes[side] = (size_t)(n * channels[side]) * dsc_dtype_size(pass->rows[side].x.dtype);
    DSC_TRY(dsc_kfac_reserve(k, bytes[DSC_KFAC_A] + bytes[DSC_KFAC_G], &k->means));
    for (int side = 0; side < DSC_KFAC_SIDES; side++) {
        const dsc_tensor *x = &pass->rows[side].x;
        char *data = (char *)k->means.data + (side == DSC_KFAC_G ? bytes[DSC_KFAC_A] : 0);
        dsc_tensor from = dsc_tensor_view(x->device, x->data, x->dtype, 4,
                                          (int64_t[]){n, pass->averaged, 1, channels[side]});
        dsc_tensor to = dsc_tensor_view(x->device, data, x->dtype, 2, (int64_t[]){n, channels[side]});
        DSC_TRY(dsc_op_global_pool_forward(q, &from, &to));
        pass->rows[side] = dsc_kfac_matrix_rows(&to, channels[side], pass->rows[side].desc.shape.groups);
    }
    pass->samples = n;
    return DSC_OK;
}

/* Keeps only the first options.factor_samples samples of a capture; returns the old number / the new one. */
static double cut_sample(const dsc_kfac *k, dsc_kfac_sample *s) {
    int64_t most = k->options.factor_samples, all = s->a.ndim > 1 ? s->a.dim[0] : 0;
    if (most == 0 || all <= most || s->g.ndim < 2 || s->g.dim[0] != all)
        return 1;
    s->a.dim[0] = s->g.dim[0] = most;
    if (s->tokens.ndim > 1 && s->tokens.dim[0] == all)
        s->tokens.dim[0] = most;
    return (double)all / (double)most;
}

/* ---- one capture ---- */

static dsc_status check_capture(const dsc_kfac *k, const dsc_queue *queue, int64_t layer) {
    if (!k->begun)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: a capture before dsc_kfac_begin");
    if (queue != k->queue)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: a capture in another queue than that of its creation");
    if (layer < 0 || layer >= k->layer_count)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer %lld; there are 0 to %lld", (long long)layer,
                        (long long)k->layer_count - 1);
    const dsc_kfac_progress *p = &k->progress[layer];
    int covered = dsc_kfac_covers(k, layer);
    if (covered && p->uses > 0 && p->captures >= k->options.passes * p->uses)
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC: layer '%s' was captured more than %lld times in a step: set options.passes, or "
            "dsc_kfac_set_uses for a layer that is used several times in a pass",
            k->layers[layer].name, (long long)(k->options.passes * p->uses));
    return DSC_OK;
}

/* Adds a layer's sample to its factors. */
static dsc_status add_sample(dsc_kfac *k, dsc_queue *queue, int64_t layer, const dsc_kfac_sample *sample) {
    dsc_kfac_progress *p = &k->progress[layer];
    dsc_kfac_sample part = *sample;
    double whole = cut_sample(k, &part);
    dsc_kfac_pass pass = {0};
    DSC_TRY(read_sample(k, queue, &k->layers[layer], &part, &pass));
    pass.whole = whole;
    pass.averaged = 1;
    pass.terms = k->options.loss_terms > 0 ? part.a.dim[0] * k->options.loss_terms : pass.samples;
    if (part.tokens.data)
        DSC_TRY(dsc_kfac_padding_apply(k, queue, &k->layers[layer], &part.tokens, &pass));
    if (k->options.sharing == DSC_KFAC_REDUCE && k->layers[layer].kind == DSC_KFAC_LINEAR && part.a.ndim > 2)
        DSC_TRY(average_positions(k, queue, &k->layers[layer], &pass, part.a.dim[0]));
    p->by_sample = k->layers[layer].kind == DSC_KFAC_LINEAR && sample->a.ndim == 2;
    double passes = (double)k->options.passes, uses = p->uses > 0 ? (double)p->uses : 1;
    double alpha_a = alpha_of(k, DSC_KFAC_A, &pass) / (passes * uses);
    double alpha_g = alpha_of(k, DSC_KFAC_G, &pass) / passes;
    p->samples = (int64_t)((double)pass.terms * whole + 0.5);
    for (int64_t u = k->first_unit[layer + 1] - 1; u >= k->first_unit[layer]; u--) {
        DSC_TRY(dsc_kfac_ekfac_capture(k, queue, u, &pass));
        if (!k->members[u].factor[DSC_KFAC_A].shared)
            DSC_TRY(add_factor(k, queue, u, DSC_KFAC_A, &pass, alpha_a));
        DSC_TRY(add_factor(k, queue, u, DSC_KFAC_G, &pass, alpha_g));
    }
    return DSC_OK;
}

/* Adds a sample in the queue for captures, which waits for the caller's queue; the caller's queue waits for the capture
 * before the last. Skipped layers count as captures, too (sample NULL): tensors stay unchanged until the next but one
 * capture, whichever layer that is. */
static dsc_status add_beside(dsc_kfac *k, dsc_queue *queue, int64_t layer, const dsc_kfac_sample *sample) {
    dsc_kfac_beside *b = &k->beside;
    dsc_event *done = b->done[b->count % DSC_KFAC_BESIDE];
    if (b->count >= DSC_KFAC_BESIDE)
        DSC_TRY(dsc_queue_wait(queue, done));
    DSC_TRY(dsc_event_record(b->ready, queue));
    DSC_TRY(dsc_queue_wait(b->queue, b->ready));
    if (sample)
        DSC_TRY(add_sample(k, b->queue, layer, sample));
    DSC_TRY(dsc_event_record(done, b->queue));
    b->count++;
    return DSC_OK;
}

dsc_status dsc_kfac_join_captures(dsc_kfac *kfac, dsc_queue *queue) {
    dsc_kfac_beside *b = &kfac->beside;
    int64_t count = b->count;
    b->count = 0;
    return count == 0 ? DSC_OK : dsc_queue_wait(queue, b->done[(count - 1) % DSC_KFAC_BESIDE]);
}

int dsc_kfac_can_capture_beside(const dsc_kfac_options *options, const dsc_device *device, int ranks) {
    return !dsc_device_is_host(device) && ranks == 1 && options->norm == DSC_KFAC_NORM_OFF &&
           !options->embeddings && options->tied_head == DSC_KFAC_TIED_SKIP &&
           options->ekfac != DSC_KFAC_EKFAC_SAMPLES;
}

dsc_status dsc_kfac_capture_beside(dsc_kfac *kfac) {
    dsc_kfac_beside *b = &kfac->beside;
    if (b->queue || !dsc_kfac_can_capture_beside(&kfac->options, kfac->device, kfac->ranks))
        return DSC_OK;
    DSC_TRY(dsc_event_create(kfac->device, &b->ready));
    for (int i = 0; i < DSC_KFAC_BESIDE; i++)
        DSC_TRY(dsc_event_create(kfac->device, &b->done[i]));
    return dsc_queue_create_low(kfac->device, &b->queue);
}

void dsc_kfac_beside_destroy(dsc_kfac *k) {
    dsc_kfac_beside *b = &k->beside;
    dsc_queue_destroy(&b->queue);
    dsc_event_destroy(&b->ready);
    for (int i = 0; i < DSC_KFAC_BESIDE; i++)
        dsc_event_destroy(&b->done[i]);
}

/* Captures a layer. sample: a struct of this library's version; its tensors have no memory if they are not needed. */
static dsc_status capture(dsc_kfac *k, dsc_queue *queue, int64_t layer, const dsc_kfac_sample *sample) {
    double began = dsc_clock_now();
    DSC_TRY(check_capture(k, queue, layer));
    if (!dsc_kfac_covers(k, layer)) /* skipped */
        return k->updating && k->beside.queue ? add_beside(k, queue, layer, NULL) : DSC_OK;
    dsc_kfac_progress *p = &k->progress[layer];
    if (k->updating && dsc_kfac_is_norm(k, layer))
        DSC_TRY(dsc_kfac_norm_capture(k, queue, layer, sample));
    else if (k->updating && dsc_kfac_is_table(k, layer))
        DSC_TRY(dsc_kfac_tables_capture(k, queue, layer, sample));
    else if (k->updating)
        DSC_TRY(k->beside.queue ? add_beside(k, queue, layer, sample) : add_sample(k, queue, layer, sample));
    p->captures++;
    k->times.factor += 1000 * (dsc_clock_now() - began);
    return DSC_OK;
}

dsc_status dsc_kfac_capture(dsc_kfac *kfac, dsc_queue *queue, int64_t layer, const dsc_tensor *a,
                            const dsc_tensor *g) {
    dsc_kfac_sample sample = {.size = sizeof sample};
    if (a)
        sample.a = *a;
    if (g)
        sample.g = *g;
    return capture(kfac, queue, layer, &sample);
}

void dsc_kfac_sample_init_sized(dsc_kfac_sample *sample, size_t size) {
    const dsc_kfac_sample defaults = {.size = sizeof defaults};
    dsc_versioned_init(sample, size, &defaults, sizeof defaults);
}

dsc_status dsc_kfac_capture_sample(dsc_kfac *kfac, dsc_queue *queue, int64_t layer,
                                   const dsc_kfac_sample *sample) {
    dsc_kfac_sample own;
    dsc_kfac_sample_init(&own);
    DSC_TRY(dsc_versioned_define("kfac_sample", sample, sizeof own, &own));
    const dsc_image_layout layouts[] = {own.a_layout, own.g_layout};
    for (int i = 0; i < DSC_KFAC_SIDES; i++)
        if (layouts[i] != DSC_NHWC && layouts[i] != DSC_NCHW)
            return DSC_FAIL(DSC_E_INVALID, "K-FAC: image layout %d: must be DSC_NHWC (%d) or DSC_NCHW (%d)",
                            (int)layouts[i], (int)DSC_NHWC, (int)DSC_NCHW);
    return capture(kfac, queue, layer, &own);
}

/* ---- uses and passes ---- */

dsc_status dsc_kfac_set_uses(dsc_kfac *kfac, int64_t layer, int64_t uses) {
    dsc_kfac *k = kfac;
    if (layer < 0 || layer >= k->layer_count)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer %lld; there are 0 to %lld", (long long)layer,
                        (long long)k->layer_count - 1);
    dsc_kfac_progress *p = &k->progress[layer];
    if (uses < 0 || uses > DSC_KFAC_MOST_USES)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer '%s': %lld uses in a pass: must be in 0..%d",
                        k->layers[layer].name, (long long)uses, DSC_KFAC_MOST_USES);
    if (k->begun && p->captures > 0 && uses != p->uses)
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC: layer '%s': its uses in a pass change from %lld to %lld after captures of this "
            "step: set them before, or 0 for any number",
            k->layers[layer].name, (long long)p->uses, (long long)uses);
    if (uses != 1)
        DSC_TRY(dsc_kfac_wait_memory(k, layer));
    p->uses = uses;
    return DSC_OK;
}

dsc_status dsc_kfac_set_passes(dsc_kfac *kfac, int64_t passes) {
    if (passes < 1 || passes > DSC_KFAC_MOST_USES)
        return DSC_FAIL(DSC_E_INVALID, "%lld passes of a K-FAC step: must be in 1..%d", (long long)passes,
                        DSC_KFAC_MOST_USES);
    for (int64_t l = 0; passes > 1 && l < kfac->layer_count; l++)
        DSC_TRY(dsc_kfac_wait_memory(kfac, l));
    kfac->next_passes = passes;
    return DSC_OK;
}
