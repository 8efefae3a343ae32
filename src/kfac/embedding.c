/* Embeddings: linear layers on inputs with a single 1. A is diagonal, with the shares of the tokens; G is as of any layer.
 *
 *   A_v = rows with token v / R        R rows with a token, of N samples; the same for positions, 1 / their number where
 *                                      there is no padding
 *   G   = M sum g g' / loss_scale^2    M terms of the loss: R, or options.loss_terms
 *   P_v = Q [(Q' D_v) / (A_v vG + damping)]    for row v of the gradient D, G = Q diag(vG) Q'; A and G of the last
 *                                              decomposition
 *
 * A and G are averaged as other factors are. There are few such tables, so that every rank keeps all of them, decomposes
 * their G whenever decompositions are made (always by eigenvectors, and at once with options.async_steps), and
 * preconditions them, whatever the strategy. <P, D> counts in the clip. Layers that did not run keep their gradient. */
#include "kfac/internal.h"

#include "base/error.h"
#include "base/memory.h"
#include "descent/log.h"

#include <string.h>

/* ---- creation ---- */

static int64_t packed_of(const dsc_kfac_table *t) {
    return t->width * (t->width + 1) / 2;
}

dsc_status dsc_kfac_tables_find(dsc_kfac *k) {
    dsc_kfac_tables *t = &k->tables;
    unsigned char *skip;
    if (!k->options.embeddings || k->unit_count == 0)
        return DSC_OK;
    DSC_TRY(dsc_memory_alloc(k->layer_count, sizeof *t->list, &t->list));
    DSC_TRY(dsc_memory_alloc(k->layer_count, sizeof *t->of, &t->of));
    DSC_TRY(dsc_memory_alloc(k->layer_count, 1, &skip));
    dsc_status status = dsc_kfac_skip(k->layers, k->layer_count, k->options.skip_layers, skip);
    for (int64_t l = 0; l < k->layer_count && status == DSC_OK; l++) {
        const dsc_kfac_layer *layer = &k->layers[l];
        const int64_t dim[2] = {layer->in_c, layer->out_c};
        t->of[l] = -1;
        if (layer->kind != DSC_KFAC_EMBEDDING || skip[l])
            continue;
        t->of[l] = t->count;
        t->list[t->count++] =
            (dsc_kfac_table){.layer = l,
                             .rows = layer->in_c,
                             .width = layer->out_c,
                             .d = dsc_tensor_view(k->device, layer->weight_grad.data, k->dtype, 2, dim)};
        t->longest = layer->in_c > t->longest ? layer->in_c : t->longest;
        t->widest = layer->out_c > t->widest ? layer->out_c : t->widest;
        t->largest = layer->in_c * layer->out_c > t->largest ? layer->in_c * layer->out_c : t->largest;
        status = dsc_kfac_check_extra(k, l);
    }
    dsc_memory_free(&skip);
    return status;
}

/* Carves everything out of the blocks; used[4] counts their numbers. While they have no memory yet this only counts. */
static void place_tables(dsc_kfac_tables *all, int64_t used[4]) {
    for (int64_t i = 0; i < all->count; i++) {
        dsc_kfac_table *t = &all->list[i];
        const int64_t packed = packed_of(t), square[2] = {t->width, t->width}, rows[2] = {t->rows, t->width};
        t->a = dsc_kfac_carve(&all->averages, &used[0], 1, &t->rows);
        t->g = dsc_kfac_carve(&all->averages, &used[0], 1, &packed);
        t->a_batch = dsc_kfac_carve(&all->batches, &used[1], 1, &t->rows);
        t->g_batch = dsc_kfac_carve(&all->batches, &used[1], 1, &packed);
        t->vectors = dsc_kfac_carve(&all->bases, &used[2], 2, square);
        t->values = dsc_kfac_carve(&all->bases, &used[2], 1, &t->width);
        t->shares = dsc_kfac_carve(&all->bases, &used[2], 1, &t->rows);
        t->p = dsc_kfac_carve(&all->solved, &used[3], 2, rows);
    }
}

/* Averages start as the identity. */
static dsc_status start(dsc_kfac *k, dsc_kfac_table *t) {
    const int64_t square[2] = {t->width, t->width};
    dsc_tensor one = dsc_tensor_slice(&k->tables.numbers, 0, 1);
    dsc_tensor full = dsc_tensor_view(k->device, k->tables.full.data, k->dtype, 2, square);
    DSC_TRY(dsc_op_fill(k->queue, 1, &t->a));
    DSC_TRY(dsc_op_fill(k->queue, 0, &full));
    DSC_TRY(dsc_op_add_diagonal(k->queue, &one, &full));
    return dsc_op_tri_pack(k->queue, &full, &t->g);
}

dsc_status dsc_kfac_tables_create(dsc_kfac *k) {
    dsc_kfac_tables *t = &k->tables;
    int64_t sizes[4] = {0}, used[4] = {0};
    dsc_bucket_options options;
    if (t->count == 0)
        return DSC_OK;
    place_tables(t, sizes);
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, sizes[0], &t->averages));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, sizes[1], &t->batches));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, sizes[2], &t->bases));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, sizes[3], &t->solved));
    place_tables(t, used);
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, t->largest, &t->between));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, t->widest * t->widest, &t->full));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, t->widest * (t->widest + 1) / 2, &t->packed));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, t->longest, &t->counts));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, t->longest, &t->ones));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, 4, &t->numbers));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, 4 * t->count, &t->bad));
    DSC_TRY(dsc_memory_alloc(t->count, sizeof *t->joins, &t->joins));
    dsc_tensor one = dsc_tensor_slice(&t->numbers, 0, 1), least = dsc_tensor_slice(&t->numbers, 1, 1);
    DSC_TRY(dsc_op_fill(k->queue, 1, &t->ones));
    DSC_TRY(dsc_op_fill(k->queue, 1, &one));
    DSC_TRY(dsc_op_fill(k->queue, 1e-30, &least)); /* against a division by 0 */
    DSC_TRY(dsc_op_fill(k->queue, 0, &t->bad));
    for (int64_t i = 0; i < t->count; i++)
        DSC_TRY(start(k, &t->list[i]));
    DSC_TRY(dsc_queue_sync(k->queue));
    if (k->ranks == 1)
        return DSC_OK;
    dsc_bucket_options_init(&options);
    options.bytes = k->options.bucket_bytes;
    options.traffic = DSC_TRAFFIC_FACTORS;
    return dsc_buckets_create(k->exchange, k->queue, &t->batches, 1, &options, &t->buckets);
}

void dsc_kfac_tables_destroy(dsc_kfac *k) {
    dsc_kfac_tables *t = &k->tables;
    dsc_tensor *const blocks[] = {&t->averages, &t->batches, &t->bases,  &t->solved, &t->between,
                                  &t->full,     &t->packed,  &t->counts, &t->ones,   &t->numbers,
                                  &t->bad,      &t->work,    &t->wide};
    void *const arrays[] = {&t->list, &t->of, &t->joins};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        dsc_tensor_free(blocks[i]);
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        dsc_memory_free(arrays[i]);
}

/* ---- captures ---- */

/* counts = A of one capture: the shares of the tokens, and their number in numbers[2]. Positions have no ids; where
 * there is padding, `tokens` tells which rows count. */
static dsc_status count_tokens(dsc_kfac *k, dsc_queue *q, const dsc_kfac_table *t, const dsc_kfac_sample *s,
                               int64_t rows) {
    const dsc_tensor *ids = &s->a;
    dsc_kfac_tables *all = &k->tables;
    const int64_t ones_dim[2] = {rows, 1}, counts_dim[2] = {t->rows, 1};
    dsc_tensor counts = dsc_tensor_slice(&all->counts, 0, t->rows),
               ones = dsc_tensor_slice(&all->ones, 0, t->rows);
    dsc_tensor one = dsc_tensor_slice(&all->numbers, 0, 1), least = dsc_tensor_slice(&all->numbers, 1, 1);
    dsc_tensor total = dsc_tensor_slice(&all->numbers, 2, 1), inverse = dsc_tensor_slice(&all->numbers, 3, 1);
    dsc_tensor square = inverse, table = dsc_tensor_view(k->device, counts.data, k->dtype, 2, counts_dim);
    if (!ids->data && s->tokens.data)
        return dsc_kfac_padding_shares(k, q, &s->tokens, &counts, &total);
    if (!ids->data)
        return dsc_op_fill(q, 1.0 / (double)t->rows, &counts);
    size_t sort = dsc_op_embedding_workspace(k->device, rows, t->rows);
    size_t bytes = (sort + 255) / 256 * 256 + (size_t)rows * dsc_dtype_size(k->dtype);
    DSC_TRY(dsc_kfac_reserve(k, bytes, &all->work));
    dsc_tensor dy =
        dsc_tensor_view(k->device, (char *)all->work.data + (sort + 255) / 256 * 256, k->dtype, 2, ones_dim);
    int64_t size = (int64_t)sort;
    dsc_tensor work = dsc_tensor_view(k->device, all->work.data, DSC_U8, 1, &size);
    square.ndim = 2;
    square.dim[0] = square.dim[1] = 1;
    DSC_TRY(dsc_op_fill(q, 1, &dy));
    DSC_TRY(dsc_op_embedding_backward(q, ids, &dy, 0, &work, &table));
    DSC_TRY(dsc_op_dot(q, &counts, &ones, 0, &total));
    DSC_TRY(dsc_op_outer_inverse(q, &least, &total, &one, &square));
    return dsc_op_scale_by(q, &inverse, &counts);
}

static dsc_status check_sample(const dsc_kfac *k, const dsc_kfac_layer *l, const dsc_kfac_sample *s) {
    const dsc_tensor *ids = &s->a;
    DSC_TRY(dsc_kfac_check_captured(l, "the gradient at its output", &s->g, l->out_c, -1));
    int64_t rows = dsc_tensor_count(&s->g) / l->out_c;
    if (ids->data && (dsc_tensor_count(ids) != rows || (ids->dtype != DSC_F32 && ids->dtype != DSC_F64) ||
                      ids->device != k->device))
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC: layer '%s': %lld tokens of type %s for %lld rows of gradients: one for each of "
            "them is needed, as fp32 or fp64, on the layer's device",
            l->name, (long long)dsc_tensor_count(ids), dsc_dtype_name(ids->dtype), (long long)rows);
    if (s->tokens.data && (dsc_tensor_count(&s->tokens) != rows || s->tokens.dtype != k->dtype ||
                           s->tokens.device != k->device))
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC: layer '%s': %lld tokens of type %s for %lld rows of gradients: one for each of "
            "them is needed, as %s, on the layer's device",
            l->name, (long long)dsc_tensor_count(&s->tokens), dsc_dtype_name(s->tokens.dtype),
            (long long)rows, dsc_dtype_name(k->dtype));
    if (!ids->data && rows % l->in_c != 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC: layer '%s': %lld rows of gradients for sequences of %lld positions", l->name,
                        (long long)rows, (long long)l->in_c);
    return DSC_OK;
}

dsc_status dsc_kfac_tables_capture(dsc_kfac *k, dsc_queue *q, int64_t layer, const dsc_kfac_sample *s) {
    dsc_kfac_tables *all = &k->tables;
    dsc_kfac_table *t = &all->list[all->of[layer]];
    const dsc_kfac_progress *p = &k->progress[layer];
    DSC_TRY(check_sample(k, &k->layers[layer], s));
    int64_t rows = dsc_tensor_count(&s->g) / t->width, packed = packed_of(t);
    double passes = (double)k->options.passes, uses = p->uses > 0 ? (double)p->uses : 1;
    double keep = p->captures > 0 ? 1 : 0, scale = k->loss_scale * k->loss_scale * passes;
    const int given = k->options.loss_terms > 0,
              counted = !given && (s->a.data || s->tokens.data); /* on the device: rows with a token */
    const double terms = given ? (double)(s->g.dim[0] * k->options.loss_terms) : counted ? 1 : (double)rows;
    DSC_TRY(count_tokens(k, q, t, s, rows));
    dsc_tensor counts = dsc_tensor_slice(&all->counts, 0, t->rows), g = s->g;
    DSC_TRY(dsc_op_axpby(q, 1 / (passes * uses), &counts, keep, &t->a_batch));
    if (g.dtype != k->dtype && dsc_device_is_host(k->device)) { /* which does not compute in half types */
        DSC_TRY(dsc_kfac_reserve(k, (size_t)dsc_tensor_count(&g) * dsc_dtype_size(k->dtype), &all->wide));
        g.data = all->wide.data;
        g.dtype = k->dtype;
        DSC_TRY(dsc_op_convert(q, &s->g, &g));
    }
    dsc_kfac_rows gradients = dsc_kfac_matrix_rows(&g, t->width, 1);
    const int64_t square[2] = {t->width, t->width};
    dsc_tensor full = dsc_tensor_view(k->device, all->full.data, k->dtype, 2, square);
    dsc_tensor to = dsc_tensor_slice(&all->packed, 0, packed);
    DSC_TRY(dsc_kfac_reserve(k, dsc_op_patch_gram_workspace(k->device, &gradients.desc, 0), &all->work));
    DSC_TRY(
        dsc_op_patch_gram_packed(q, &gradients.desc, &gradients.x, 0, terms / scale, &all->work, &full, &to));
    dsc_tensor total = dsc_tensor_slice(&all->numbers, 2, 1);
    if (counted)
        DSC_TRY(dsc_op_scale_by(q, &total, &to));
    return dsc_op_axpby(q, 1, &to, keep, &t->g_batch);
}

/* ---- averages ---- */

/* Makes A the mean over the captures that came; before the exchange, since ranks may differ in their number. */
static dsc_status scale_shares(dsc_kfac *k, dsc_queue *q, dsc_kfac_table *t) {
    const dsc_kfac_progress *p = &k->progress[t->layer];
    const double all = (double)k->options.passes * (p->uses > 0 ? (double)p->uses : 1);
    if (p->captures == 0 || (double)p->captures == all)
        return DSC_OK;
    return dsc_op_axpby(q, all / (double)p->captures, &t->a_batch, 0, &t->a_batch);
}

dsc_status dsc_kfac_tables_exchange(dsc_kfac *k, dsc_queue *q) {
    dsc_kfac_tables *t = &k->tables;
    if (!t->buckets)
        return DSC_OK;
    for (int64_t i = 0; i < t->count; i++) {
        DSC_TRY(scale_shares(k, q, &t->list[i]));
        if (k->progress[t->list[i].layer].captures > 0)
            continue;
        DSC_TRY(dsc_op_fill(q, 0, &t->list[i].a_batch)); /* travels with the others, and is left alone */
        DSC_TRY(dsc_op_fill(q, 0, &t->list[i].g_batch));
    }
    DSC_TRY(dsc_buckets_ready(t->buckets, 0));
    return dsc_buckets_wait(t->buckets);
}

dsc_status dsc_kfac_tables_absorb(dsc_kfac *k, dsc_queue *q) {
    dsc_kfac_tables *all = &k->tables;
    for (int64_t i = 0; i < all->count; i++) {
        dsc_kfac_table *t = &all->list[i];
        const dsc_kfac_progress *p = &k->progress[t->layer];
        dsc_tensor decay = dsc_kfac_decay_of(k, t->layer);
        if (p->captures == 0)
            continue;
        int64_t came = p->uses > 0 ? (p->captures + p->uses - 1) / p->uses : k->options.passes;
        if (!all->buckets)
            DSC_TRY(scale_shares(k, q, t));
        if (came != k->options.passes)
            DSC_TRY(dsc_op_axpby(q, (double)k->options.passes / (double)came, &t->g_batch, 0, &t->g_batch));
        if (k->g_scale)
            DSC_TRY(dsc_op_scale_by(q, k->g_scale, &t->g_batch));
        const dsc_absorb_item items[2] = {{t->a_batch, dsc_tensor_slice(&all->bad, 4 * i, 2), t->a},
                                          {t->g_batch, dsc_tensor_slice(&all->bad, 4 * i + 2, 2), t->g}};
        DSC_TRY(dsc_op_absorb_batch(q, &decay, items, 2));
    }
    return DSC_OK;
}

/* ---- decompositions ---- */

static dsc_status load(void *context, dsc_queue *q, dsc_tensor *a) {
    const dsc_kfac_table *t = context;
    return dsc_op_tri_unpack(q, &t->g, a);
}

static dsc_status decompose(dsc_kfac *k, dsc_queue *q, dsc_kfac_table *t) {
    dsc_kfac_tables *all = &k->tables;
    const int64_t square[2] = {t->width, t->width};
    dsc_solve_item item = {.a = dsc_tensor_view(k->device, all->full.data, k->dtype, 2, square),
                           .v = dsc_tensor_slice(&all->packed, 0, t->width)};
    int solved = 1;
    DSC_TRY(load(t, q, &item.a));
    DSC_TRY(dsc_kfac_reserve(k, dsc_op_syev_batch_workspace(k->device, k->dtype, t->width, 1), &all->work));
    DSC_TRY(dsc_solver_eigen.batch(q, &item, 1, &all->work));
    if (item.failed) {
        DSC_TRY(dsc_solve_retry(&dsc_solver_eigen, q, load, t, 0, &item.a, &item.v, &solved));
        k->counters[DSC_KFAC_RETRIED] += k->rank == 0; /* all ranks solve the same */
        k->counters[DSC_KFAC_FAILED] += !solved && k->rank == 0;
    }
    if (!solved && k->rank == 0)
        dsc_log(DSC_LOG_WARNING, "K-FAC: G of the table '%s' cannot be decomposed: %s",
                k->layers[t->layer].name,
                t->decomposed ? "the last decomposition stays in use" : "it keeps its gradient");
    if (!solved) /* the earlier decomposition stays in use, or the plain gradient */
        return DSC_OK;
    t->decomposed = 1;
    const dsc_convert_item copies[3] = {{.src = item.a, .dst = t->vectors},
                                        {.src = item.v, .dst = t->values, .clamp = 1},
                                        {.src = t->a, .dst = t->shares}};
    return dsc_op_convert_batch(q, copies, 3);
}

dsc_status dsc_kfac_tables_decompose(dsc_kfac *k, dsc_queue *q) {
    for (int64_t i = 0; i < k->tables.count; i++)
        DSC_TRY(decompose(k, q, &k->tables.list[i]));
    return DSC_OK;
}

void dsc_kfac_tables_loaded(dsc_kfac *k) {
    for (int64_t i = 0; i < k->tables.count; i++)
        k->tables.list[i].decomposed = k->progress[k->tables.list[i].layer].ready;
}

/* ---- preconditioning ---- */

dsc_status dsc_kfac_tables_solve(dsc_kfac *k, dsc_queue *q, dsc_tensor *sum) {
    dsc_kfac_tables *all = &k->tables;
    dsc_tensor damping = dsc_tensor_slice(&k->numbers, DSC_KFAC_DAMPING, 1);
    all->active = 0;
    for (int64_t i = 0; i < all->count; i++) {
        dsc_kfac_table *t = &all->list[i];
        if (!t->decomposed || k->progress[t->layer].captures == 0)
            continue;
        dsc_tensor between = dsc_tensor_view(k->device, all->between.data, k->dtype, 2, t->d.dim);
        const dsc_divide_item divide = {t->shares, t->values, between};
        DSC_TRY(dsc_op_gemm(q, 0, 0, 1, &t->d, &t->vectors, 0, &between));
        DSC_TRY(dsc_op_divide_batch(q, &damping, &divide, 1));
        DSC_TRY(dsc_op_gemm(q, 0, 1, 1, &between, &t->vectors, 0, &t->p));
        DSC_TRY(dsc_op_dot(q, &t->p, &t->d, 1, sum));
        all->joins[all->active++] = (dsc_join_item){.w = t->d, .d = t->p};
    }
    return DSC_OK;
}

dsc_status dsc_kfac_tables_write(dsc_kfac *k, dsc_queue *q) {
    return dsc_op_split_batch(q, &k->nu_tensor, k->tables.joins, k->tables.active);
}
