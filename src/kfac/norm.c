/* Preconditions scale and shift of norms by a 2x2 Fisher matrix per channel.
 *
 *   u = sum over positions of (g xhat, g)    the gradient of one sample, for one channel
 *   F = M sum u u' / loss_scale^2            sum over samples; the loss is the mean of M terms, one per sample or as
 *                                            options.loss_terms says
 *   F <- decay F + (1 - decay) F_batch       like factors: starts as the identity; F_batch is averaged over passes
 *                                            and ranks
 *   P = (F + damping I)^-1 D                 D = (dgamma, dshift); option `diagonal`: without the off-diagonal elements
 *                                            of F; norms without a shift: gamma alone
 *
 * The matrices are small, so every rank keeps all of them and solves with the current ones in every step, whatever the
 * strategy. <P, D> counts in the clip. Layers that did not run keep their gradient; so do all norms if K-FAC covers no
 * linear or convolution layer. A late gradient is preconditioned in every step that has one, even without a capture in
 * that step, once F contains a batch. */
#include "kfac/internal.h"

#include "base/error.h"
#include "base/memory.h"

#include <string.h>

enum { PLANES = 3 }; /* F00, F01, F11 */

/* ---- creation ---- */

dsc_status dsc_kfac_check_extra(const dsc_kfac *k, int64_t layer) {
    for (int64_t l = 0; l < layer; l++)
        if (strcmp(k->layers[l].name, k->layers[layer].name) == 0)
            return DSC_FAIL(DSC_E_INVALID,
                            "K-FAC layers %lld and %lld are both named '%s': names must differ", (long long)l,
                            (long long)layer, k->layers[layer].name);
    if (k->layers[layer].weight_grad.device != k->device)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer '%s': its gradients are not on the queue's device",
                        k->layers[layer].name);
    return DSC_OK;
}

/* Returns a vector with one element for each channel. */
static dsc_tensor channels_at(const dsc_kfac *k, void *data, int64_t channels) {
    return dsc_tensor_view(k->device, data, k->dtype, 1, &channels);
}

dsc_status dsc_kfac_norm_find(dsc_kfac *k) {
    dsc_kfac_norms *n = &k->norms;
    unsigned char *skip;
    if (k->options.norm == DSC_KFAC_NORM_OFF || k->unit_count == 0)
        return DSC_OK;
    DSC_TRY(dsc_memory_alloc(k->layer_count, sizeof *n->list, &n->list));
    DSC_TRY(dsc_memory_alloc(k->layer_count, sizeof *n->of, &n->of));
    DSC_TRY(dsc_memory_alloc(k->layer_count, 1, &skip));
    dsc_status status = dsc_kfac_skip(k->layers, k->layer_count, k->options.skip_layers, skip);
    for (int64_t l = 0; l < k->layer_count && status == DSC_OK; l++) {
        const dsc_kfac_layer *layer = &k->layers[l];
        n->of[l] = -1;
        if ((layer->kind != DSC_KFAC_BATCH_NORM && layer->kind != DSC_KFAC_LAYER_NORM) || skip[l])
            continue;
        n->of[l] = n->count;
        n->list[n->count++] = (dsc_kfac_norm){.layer = l,
                                              .channels = layer->in_c,
                                              .gamma = channels_at(k, layer->weight_grad.data, layer->in_c),
                                              .shift = channels_at(k, layer->bias_grad.data, layer->in_c)};
        n->widest = layer->in_c > n->widest ? layer->in_c : n->widest;
        status = dsc_kfac_check_extra(k, l);
    }
    dsc_memory_free(&skip);
    return status;
}

/* Sets the averages to the identity, with which they start. */
static dsc_status start(dsc_kfac *k) {
    for (int64_t i = 0; i < k->norms.count; i++)
        for (int plane = 0; plane < PLANES; plane++) {
            int64_t c = k->norms.list[i].channels;
            dsc_tensor row = dsc_tensor_slice(&k->norms.list[i].f, plane * c, c);
            DSC_TRY(dsc_op_fill(k->queue, plane == 1 ? 0 : 1, &row));
        }
    return dsc_queue_sync(k->queue);
}

static dsc_status make_arrays(dsc_kfac_norms *n) {
    DSC_TRY(dsc_memory_alloc(n->count, sizeof *n->absorbs, &n->absorbs));
    DSC_TRY(dsc_memory_alloc(n->count, sizeof *n->solves, &n->solves));
    DSC_TRY(dsc_memory_alloc(2 * n->count, sizeof *n->dots, &n->dots));
    return dsc_memory_alloc(2 * n->count, sizeof *n->joins, &n->joins);
}

dsc_status dsc_kfac_norm_create(dsc_kfac *k) {
    dsc_kfac_norms *n = &k->norms;
    int64_t channels = 0, used[3] = {0};
    dsc_bucket_options options;
    if (n->count == 0)
        return DSC_OK;
    for (int64_t i = 0; i < n->count; i++)
        channels += n->list[i].channels;
    DSC_TRY(make_arrays(n));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, PLANES * channels, &n->averages));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, PLANES * channels, &n->batches));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, 2 * channels, &n->solved));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, 2 * n->count, &n->bad));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, 2 * n->count, &n->products));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, 2 * n->count, &n->ones));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, n->widest, &n->zeros));
    DSC_TRY(dsc_op_fill(k->queue, 0, &n->zeros));
    DSC_TRY(dsc_op_fill(k->queue, 0, &n->bad));
    DSC_TRY(dsc_op_fill(k->queue, 1, &n->ones));
    for (int64_t i = 0; i < n->count; i++) {
        const int64_t matrix[2] = {PLANES, n->list[i].channels}, pair[2] = {2, n->list[i].channels};
        n->list[i].f = dsc_kfac_carve(&n->averages, &used[0], 2, matrix);
        n->list[i].batch = dsc_kfac_carve(&n->batches, &used[1], 2, matrix);
        n->list[i].p = dsc_kfac_carve(&n->solved, &used[2], 2, pair);
    }
    DSC_TRY(start(k));
    if (k->ranks == 1)
        return DSC_OK;
    dsc_bucket_options_init(&options);
    options.bytes = k->options.bucket_bytes;
    options.traffic = DSC_TRAFFIC_FACTORS;
    return dsc_buckets_create(k->exchange, k->queue, &n->batches, 1, &options, &n->buckets);
}

void dsc_kfac_norm_destroy(dsc_kfac *k) {
    dsc_kfac_norms *n = &k->norms;
    dsc_tensor *const blocks[] = {&n->averages, &n->batches, &n->solved,      &n->bad,  &n->products,
                                  &n->ones,     &n->work,    &n->sample_ones, &n->zeros};
    void *const arrays[] = {&n->list, &n->of, &n->absorbs, &n->solves, &n->dots, &n->joins};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        dsc_tensor_free(blocks[i]);
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        dsc_memory_free(arrays[i]);
}

dsc_status dsc_kfac_norm_set_gradients(dsc_kfac *k, int64_t layer, const dsc_kfac_gradients *gradients) {
    if (!dsc_kfac_is_norm(k, layer) || !gradients->weight)
        return DSC_OK;
    dsc_kfac_norm *norm = &k->norms.list[k->norms.of[layer]];
    if (gradients->out_stride != 1 && norm->channels > 1)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC: layer '%s': the gradient of its scale has a stride of %lld: the numbers of a "
                        "norm must lie next to each other",
                        k->layers[layer].name, (long long)gradients->out_stride);
    norm->gamma.data = gradients->weight;
    norm->shift.data = gradients->bias;
    return DSC_OK;
}

/* ---- captures ---- */

/* Makes room for the matrices of `samples` samples, and for as many ones. It grows during the first captures. */
static dsc_status reserve(dsc_kfac *k, int64_t samples) {
    dsc_kfac_norms *n = &k->norms;
    int64_t numbers = samples * PLANES * n->widest;
    if (!n->sample_ones.data || dsc_tensor_count(&n->sample_ones) < samples) {
        dsc_tensor_free(&n->sample_ones);
        n->sample_ones = (dsc_tensor){0};
        DSC_TRY(dsc_kfac_alloc(k, k->dtype, samples, &n->sample_ones));
        DSC_TRY(dsc_op_fill(k->queue, 1, &n->sample_ones));
        dsc_tensor_free(&n->work);
        n->work = (dsc_tensor){0};
        DSC_TRY(dsc_kfac_alloc(k, k->dtype, numbers, &n->work));
    }
    return DSC_OK;
}

/* Returns t[n, ..., c] with the shape [n, positions, c]. */
static dsc_tensor in_samples(const dsc_tensor *t, int64_t c) {
    const int64_t n = t->dim[0], dim[3] = {n, dsc_tensor_count(t) / (n * c), c};
    return dsc_tensor_view(t->device, t->data, t->dtype, 3, dim);
}

static dsc_status check_sample(const dsc_kfac_layer *l, const dsc_kfac_sample *s) {
    int centred = l->kind == DSC_KFAC_BATCH_NORM;
    DSC_TRY(dsc_kfac_check_captured(l, "its input", &s->a, l->in_c, -1));
    int64_t rows = dsc_tensor_count(&s->a) / l->in_c;
    DSC_TRY(dsc_kfac_check_captured(l, "the gradient at its output", &s->g, l->in_c, rows));
    if (s->y.data)
        DSC_TRY(dsc_kfac_check_captured(l, "its output", &s->y, l->in_c, rows));
    if (s->a.ndim < 2 || s->a_layout != DSC_NHWC || s->g_layout != DSC_NHWC)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer '%s': its input must be [n,...,channels]", l->name);
    if ((s->mean.data && !s->invstd.data) || (centred && s->invstd.data && !s->mean.data))
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer '%s': mean and invstd come together, or not at all",
                        l->name);
    return DSC_OK;
}

dsc_status dsc_kfac_norm_capture(dsc_kfac *k, dsc_queue *q, int64_t layer, const dsc_kfac_sample *s) {
    const dsc_kfac_layer *l = &k->layers[layer];
    dsc_kfac_norm *norm = &k->norms.list[k->norms.of[layer]];
    int64_t used = 0;
    DSC_TRY(check_sample(l, s));
    int64_t n = s->a.dim[0], c = norm->channels, width = PLANES * c;
    DSC_TRY(reserve(k, n));
    dsc_tensor x = in_samples(&s->a, c), g = in_samples(&s->g, c), y = s->y;
    if (y.data)
        y = in_samples(&s->y, c);
    const int64_t each_dim[3] = {n, PLANES, c}, rows[2] = {n, width}, line[2] = {1, width},
                  ones_dim[2] = {1, n};
    dsc_tensor each = dsc_kfac_carve(&k->norms.work, &used, 3, each_dim);
    DSC_TRY(dsc_op_norm_fisher(q, &x, y.data ? &y : NULL, &g, s->mean.data ? &s->mean : NULL,
                               s->invstd.data ? &s->invstd : NULL, &each));
    int64_t terms = k->options.loss_terms > 0 ? n * k->options.loss_terms : n;
    double alpha = (double)terms / (k->loss_scale * k->loss_scale) / (double)k->options.passes;
    dsc_tensor matrix = dsc_tensor_view(k->device, each.data, k->dtype, 2, rows);
    dsc_tensor ones = dsc_tensor_view(k->device, k->norms.sample_ones.data, k->dtype, 2, ones_dim);
    dsc_tensor sum = dsc_tensor_view(k->device, norm->batch.data, k->dtype, 2, line);
    return dsc_op_gemm(q, 0, 0, alpha, &ones, &matrix, k->progress[layer].captures > 0 ? 1 : 0, &sum);
}

/* ---- averages ---- */

dsc_status dsc_kfac_norm_exchange(dsc_kfac *k, dsc_queue *q) {
    dsc_kfac_norms *n = &k->norms;
    if (!n->buckets)
        return DSC_OK;
    for (int64_t i = 0; i < n->count; i++)
        if (k->progress[n->list[i].layer].captures == 0) /* sent with the others, and not used */
            DSC_TRY(dsc_op_fill(q, 0, &n->list[i].batch));
    DSC_TRY(dsc_buckets_ready(n->buckets, 0));
    return dsc_buckets_wait(n->buckets);
}

dsc_status dsc_kfac_norm_absorb(dsc_kfac *k, dsc_queue *q) {
    dsc_kfac_norms *n = &k->norms;
    int64_t count = 0;
    for (int64_t i = 0; i < n->count; i++) {
        const dsc_kfac_progress *p = &k->progress[n->list[i].layer];
        dsc_tensor decay = dsc_kfac_decay_of(k, n->list[i].layer), *batch = &n->list[i].batch;
        if (p->captures == 0)
            continue;
        int64_t came = p->uses > 0 ? (p->captures + p->uses - 1) / p->uses : k->options.passes;
        if (came != k->options.passes)
            DSC_TRY(dsc_op_axpby(q, (double)k->options.passes / (double)came, batch, 0, batch));
        if (k->g_scale)
            DSC_TRY(dsc_op_scale_by(q, k->g_scale, batch));
        n->absorbs[count] = (dsc_absorb_item){*batch, dsc_tensor_slice(&n->bad, 2 * i, 2), n->list[i].f};
        if (k->decays.data) /* every layer has its own decay */
            DSC_TRY(dsc_op_absorb_batch(q, &decay, &n->absorbs[count], 1));
        else
            count++;
    }
    dsc_tensor decay = dsc_tensor_slice(&k->numbers, DSC_KFAC_DECAY, 1);
    return dsc_op_absorb_batch(q, &decay, n->absorbs, count);
}

/* ---- preconditioning ---- */

static int takes_part(const dsc_kfac *k, int64_t layer) {
    const dsc_kfac_progress *p = &k->progress[layer];
    return k->layers[layer].late_gradients ? p->present && p->contributed : p->captures > 0;
}

/* Lists the norms that take part, either those with a shift or those without: their solves, and the dot products and
 * copies of their gradients. Returns the number of these norms. */
static int64_t list_active(dsc_kfac *k, int with_shift, dsc_norm_solve_item *solves) {
    dsc_kfac_norms *n = &k->norms;
    int64_t count = 0;
    for (int64_t i = 0; i < n->count; i++) {
        const dsc_kfac_norm *norm = &n->list[i];
        const int64_t row[2] = {1, norm->channels};
        int64_t used = 0;
        if (!takes_part(k, norm->layer) || (norm->shift.data != NULL) != with_shift)
            continue;
        dsc_tensor none = dsc_tensor_slice(&n->zeros, 0, norm->channels);
        solves[count++] =
            (dsc_norm_solve_item){norm->f, norm->gamma, with_shift ? norm->shift : none, norm->p};
        for (int half = 0; half <= with_shift; half++) {
            dsc_tensor p = dsc_kfac_carve(&norm->p, &used, 2, row);
            const dsc_tensor *d = half ? &norm->shift : &norm->gamma;
            dsc_tensor wide = dsc_tensor_view(k->device, d->data, k->dtype, 2, row);
            n->dots[n->active] = (dsc_dot_item){p, wide};
            n->joins[n->active++] = (dsc_join_item){.w = wide, .d = p};
        }
    }
    return count;
}

dsc_status dsc_kfac_norm_solve(dsc_kfac *k, dsc_queue *q, dsc_tensor *sum) {
    dsc_kfac_norms *n = &k->norms;
    dsc_tensor damping = dsc_tensor_slice(&k->numbers, DSC_KFAC_DAMPING, 1);
    n->active = 0;
    int64_t pairs = list_active(k, 1, n->solves), alone = list_active(k, 0, n->solves + pairs);
    if (n->active == 0)
        return DSC_OK;
    dsc_tensor products = dsc_tensor_slice(&n->products, 0, n->active);
    dsc_tensor ones = dsc_tensor_slice(&n->ones, 0, n->active);
    DSC_TRY(dsc_op_norm_solve_batch(q, &damping, k->options.norm == DSC_KFAC_NORM_FULL, n->solves, pairs));
    DSC_TRY(dsc_op_norm_solve_batch(q, &damping, 0, n->solves + pairs, alone));
    DSC_TRY(dsc_op_dot_batch(q, n->dots, n->active, &products));
    return dsc_op_dot(q, &products, &ones, 1, sum);
}

dsc_status dsc_kfac_norm_write(dsc_kfac *k, dsc_queue *q) {
    return dsc_op_split_batch(q, &k->nu_tensor, k->norms.joins, k->norms.active);
}
