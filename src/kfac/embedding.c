/* Embeddings: linear layers on one-hot inputs. A is diagonal and holds the shares of the tokens; G is as for any layer.
 *
 *   A_v = rows with token v / R        R rows with a token, of N samples; likewise for positions, where it is 1 / their
 *                                      number without padding. Rows without a token enter neither A nor G
 *   G   = M sum g g' / loss_scale^2    M terms of the loss: R, or options.loss_terms
 *   P_v = Q [(Q' D_v) / (A_v vG + damping)]    for row v of the gradient D, G = Q diag(vG) Q'; A and G of the last
 *                                              decomposition
 *
 * A tied head is the table of an embedding that a linear layer uses as well. Its gradient D is the sum of both parts,
 * and is not 0 for rows that do not occur in the batch. It is treated as a table whose A is the identity, and whose "G"
 * is the factor A of the linear layer's input: with A_v = 1 the formula above is P = D (A + damping I)^-1.
 *
 *   A   = sum a a' / R                 R rows of its input
 *
 * A and G are averaged like other factors. There are few such tables, so every rank keeps all of them, decomposes their
 * G whenever decompositions are made (always into eigenvectors, and within the step even with options.async_steps), and
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

static int is_wanted(const dsc_kfac *k, dsc_kfac_kind kind) {
    const dsc_kfac_options *o = &k->options;
    return (kind == DSC_KFAC_EMBEDDING && o->embeddings) ||
           (kind == DSC_KFAC_TIED_HEAD && o->tied_head == DSC_KFAC_TIED_INPUT);
}

static void add_table(dsc_kfac *k, int64_t l) {
    const dsc_kfac_layer *layer = &k->layers[l];
    dsc_kfac_tables *t = &k->tables;
    const int is_head = layer->kind == DSC_KFAC_TIED_HEAD;
    const int64_t rows = is_head ? layer->out_c : layer->in_c, width = is_head ? layer->in_c : layer->out_c;
    const int64_t dim[2] = {rows, width};
    t->of[l] = t->count;
    t->list[t->count++] =
        (dsc_kfac_table){.layer = l,
                         .is_head = is_head,
                         .rows = rows,
                         .width = width,
                         .d = dsc_tensor_view(k->device, layer->weight_grad.data, k->dtype, 2, dim)};
    t->longest = rows > t->longest ? rows : t->longest;
    t->widest = width > t->widest ? width : t->widest;
    t->largest = rows * width > t->largest ? rows * width : t->largest;
}

dsc_status dsc_kfac_tables_find(dsc_kfac *k) {
    dsc_kfac_tables *t = &k->tables;
    unsigned char *skip;
    if ((!is_wanted(k, DSC_KFAC_EMBEDDING) && !is_wanted(k, DSC_KFAC_TIED_HEAD)) || k->unit_count == 0)
        return DSC_OK;
    DSC_TRY(dsc_memory_alloc(k->layer_count, sizeof *t->list, &t->list));
    DSC_TRY(dsc_memory_alloc(k->layer_count, sizeof *t->of, &t->of));
    DSC_TRY(dsc_memory_alloc(k->layer_count, 1, &skip));
    dsc_status status = dsc_kfac_skip(k->layers, k->layer_count, k->options.skip_layers, skip);
    for (int64_t l = 0; l < k->layer_count && status == DSC_OK; l++) {
        t->of[l] = -1;
        if (!is_wanted(k, k->layers[l].kind) || skip[l])
            continue;
        add_table(k, l);
        status = dsc_kfac_check_extra(k, l);
    }
    dsc_memory_free(&skip);
    return status;
}

/* Carves everything out of the blocks and adds the elements it takes to used[4]. While the blocks have no memory yet,
 * it only counts. */
static void place_tables(dsc_kfac_tables *all, int64_t used[4]) {
    for (int64_t i = 0; i < all->count; i++) {
        dsc_kfac_table *t = &all->list[i];
        const int64_t packed = packed_of(t), square[2] = {t->width, t->width}, rows[2] = {t->rows, t->width};
        if (!t->is_head) {
            t->a = dsc_kfac_carve(&all->averages, &used[0], 1, &t->rows);
            t->a_batch = dsc_kfac_carve(&all->batches, &used[1], 1, &t->rows);
        }
        t->g = dsc_kfac_carve(&all->averages, &used[0], 1, &packed);
        t->g_batch = dsc_kfac_carve(&all->batches, &used[1], 1, &packed);
        t->vectors = dsc_kfac_carve(&all->bases, &used[2], 2, square);
        t->values = dsc_kfac_carve(&all->bases, &used[2], 1, &t->width);
        t->shares = dsc_kfac_carve(&all->bases, &used[2], 1, &t->rows);
        t->p = dsc_kfac_carve(&all->solved, &used[3], 2, rows);
    }
}

/* Sets the averages to the identity, with which they start. */
static dsc_status start(dsc_kfac *k, dsc_kfac_table *t) {
    const int64_t square[2] = {t->width, t->width};
    dsc_tensor one = dsc_tensor_slice(&k->tables.numbers, 0, 1);
    dsc_tensor full = dsc_tensor_view(k->device, k->tables.full.data, k->dtype, 2, square);
    DSC_TRY(dsc_op_fill(k->queue, 1, t->is_head ? &t->shares : &t->a));
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

/* Sets counts[v] to the number of rows with the id v. */
static dsc_status count_ids(dsc_kfac *k, dsc_queue *q, const dsc_tensor *ids, int64_t rows,
                            dsc_tensor *counts) {
    dsc_kfac_tables *all = &k->tables;
    const int64_t v = dsc_tensor_count(counts), ones_dim[2] = {rows, 1}, counts_dim[2] = {v, 1};
    dsc_tensor table = dsc_tensor_view(k->device, counts->data, k->dtype, 2, counts_dim);
    size_t sort = dsc_op_embedding_workspace(k->device, rows, v);
    size_t bytes = (sort + 255) / 256 * 256 + (size_t)rows * dsc_dtype_size(k->dtype);
    DSC_TRY(dsc_kfac_reserve(k, bytes, &all->work));
    dsc_tensor dy =
        dsc_tensor_view(k->device, (char *)all->work.data + (sort + 255) / 256 * 256, k->dtype, 2, ones_dim);
    int64_t size = (int64_t)sort;
    dsc_tensor work = dsc_tensor_view(k->device, all->work.data, DSC_U8, 1, &size);
    DSC_TRY(dsc_op_fill(q, 1, &dy));
    return dsc_op_embedding_backward(q, ids, &dy, 0, &work, &table);
}

/* Sets counts[v] to the number of rows of position v that dsc_kfac_padding_apply has found not to be padding. */
static dsc_status count_positions(dsc_kfac *k, dsc_queue *q, int64_t rows, dsc_tensor *counts) {
    dsc_kfac_tables *all = &k->tables;
    const int64_t v = dsc_tensor_count(counts), dim[2] = {rows / v, v};
    DSC_TRY(dsc_kfac_reserve(k, (size_t)rows * dsc_dtype_size(k->dtype), &all->work));
    dsc_tensor keeps = dsc_tensor_view(k->device, all->work.data, k->dtype, 1, &rows);
    DSC_TRY(dsc_kfac_padding_keeps(k, q, &keeps));
    keeps = dsc_tensor_view(k->device, all->work.data, k->dtype, 2, dim);
    return dsc_op_bias_grad(q, &keeps, 0, counts);
}

/* Computes A of one capture, in all->counts: the share of each token or position in the rows that count. For tokens and
 * with padding, the number of these rows is written to numbers[2]. Positions have no ids. */
static dsc_status count_tokens(dsc_kfac *k, dsc_queue *q, const dsc_kfac_table *t, const dsc_kfac_sample *s,
                               int64_t rows) {
    dsc_kfac_tables *all = &k->tables;
    dsc_tensor counts = dsc_tensor_slice(&all->counts, 0, t->rows),
               ones = dsc_tensor_slice(&all->ones, 0, t->rows);
    dsc_tensor one = dsc_tensor_slice(&all->numbers, 0, 1), least = dsc_tensor_slice(&all->numbers, 1, 1);
    dsc_tensor total = dsc_tensor_slice(&all->numbers, 2, 1), inverse = dsc_tensor_slice(&all->numbers, 3, 1);
    dsc_tensor square = inverse;
    square.ndim = 2;
    square.dim[0] = square.dim[1] = 1;
    if (s->a.data)
        DSC_TRY(count_ids(k, q, &s->a, rows, &counts));
    else if (s->tokens.data)
        DSC_TRY(count_positions(k, q, rows, &counts));
    else
        return dsc_op_fill(q, 1.0 / (double)t->rows, &counts);
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
    if (!ids->data && rows % l->in_c != 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC: layer '%s': %lld rows of gradients for sequences of %lld positions", l->name,
                        (long long)rows, (long long)l->in_c);
    return DSC_OK;
}

/* Reads x as a matrix of rows of `channels` elements, in a type that the device can compute in. */
static dsc_status read_rows(dsc_kfac *k, dsc_queue *q, const dsc_tensor *x, int64_t channels,
                            dsc_kfac_rows *out) {
    dsc_kfac_tables *all = &k->tables;
    dsc_tensor wide = *x;
    if (x->dtype != k->dtype && dsc_device_is_host(k->device)) { /* the host does not compute in half types */
        DSC_TRY(dsc_kfac_reserve(k, (size_t)dsc_tensor_count(x) * dsc_dtype_size(k->dtype), &all->wide));
        wide.data = all->wide.data;
        wide.dtype = k->dtype;
        DSC_TRY(dsc_op_convert(q, x, &wide));
    }
    *out = dsc_kfac_matrix_rows(&wide, channels, 1);
    return DSC_OK;
}

/* Computes t->g_batch = keep t->g_batch + alpha scale sum x x' over the rows x; scale: a scalar on the device, no
 * memory: 1. */
static dsc_status add_products(dsc_kfac *k, dsc_queue *q, dsc_kfac_table *t, const dsc_kfac_rows *rows,
                               double alpha, const dsc_tensor *scale, double keep) {
    dsc_kfac_tables *all = &k->tables;
    const int64_t square[2] = {t->width, t->width};
    dsc_tensor full = dsc_tensor_view(k->device, all->full.data, k->dtype, 2, square);
    dsc_tensor to = dsc_tensor_slice(&all->packed, 0, packed_of(t));
    DSC_TRY(dsc_kfac_reserve(k, dsc_op_patch_gram_workspace(k->device, &rows->desc, 0), &all->work));
    DSC_TRY(dsc_op_patch_gram_packed(q, &rows->desc, &rows->x, 0, alpha, &all->work, &full, &to));
    if (scale->data)
        DSC_TRY(dsc_op_scale_by(q, scale, &to));
    return dsc_op_axpby(q, 1, &to, keep, &t->g_batch);
}

static dsc_status capture_head(dsc_kfac *k, dsc_queue *q, dsc_kfac_table *t, const dsc_kfac_sample *s) {
    const dsc_kfac_layer *layer = &k->layers[t->layer];
    const dsc_kfac_progress *p = &k->progress[t->layer];
    DSC_TRY(dsc_kfac_check_captured(layer, "its input", &s->a, t->width, -1));
    dsc_kfac_pass pass = {.samples = dsc_tensor_count(&s->a) / t->width};
    DSC_TRY(read_rows(k, q, &s->a, t->width, &pass.rows[DSC_KFAC_A]));
    if (s->tokens.data)
        DSC_TRY(dsc_kfac_padding_apply(k, q, layer, &s->tokens, &pass));
    const double uses = p->uses > 0 ? (double)p->uses : 1;
    const double alpha = 1 / ((double)pass.samples * (double)k->options.passes * uses);
    return add_products(k, q, t, &pass.rows[DSC_KFAC_A], alpha, &pass.scale[DSC_KFAC_A],
                        p->captures > 0 ? 1 : 0);
}

static dsc_status capture_embedding(dsc_kfac *k, dsc_queue *q, dsc_kfac_table *t, const dsc_kfac_sample *s) {
    dsc_kfac_tables *all = &k->tables;
    const dsc_kfac_progress *p = &k->progress[t->layer];
    DSC_TRY(check_sample(k, &k->layers[t->layer], s));
    int64_t rows = dsc_tensor_count(&s->g) / t->width;
    double passes = (double)k->options.passes, uses = p->uses > 0 ? (double)p->uses : 1;
    double keep = p->captures > 0 ? 1 : 0, scale = k->loss_scale * k->loss_scale * passes;
    const int given = k->options.loss_terms > 0,
              counted = !given && (s->a.data || s->tokens.data); /* the rows with a token, on the device */
    const double terms = given ? (double)(s->g.dim[0] * k->options.loss_terms) : counted ? 1 : (double)rows;
    dsc_kfac_pass pass = {.samples = rows};
    DSC_TRY(read_rows(k, q, &s->g, t->width, &pass.rows[DSC_KFAC_G]));
    const dsc_tensor *tokens = s->a.data ? &s->a : &s->tokens; /* negative for rows that do not count */
    if (tokens->data)
        DSC_TRY(dsc_kfac_padding_apply(k, q, &k->layers[t->layer], tokens, &pass));
    DSC_TRY(count_tokens(k, q, t, s, rows));
    dsc_tensor counts = dsc_tensor_slice(&all->counts, 0, t->rows);
    const dsc_tensor total = dsc_tensor_slice(&all->numbers, 2, 1), none = {0};
    DSC_TRY(dsc_op_axpby(q, 1 / (passes * uses), &counts, keep, &t->a_batch));
    return add_products(k, q, t, &pass.rows[DSC_KFAC_G], terms / scale, counted ? &total : &none, keep);
}

dsc_status dsc_kfac_tables_capture(dsc_kfac *k, dsc_queue *q, int64_t layer, const dsc_kfac_sample *s) {
    dsc_kfac_table *t = &k->tables.list[k->tables.of[layer]];
    return t->is_head ? capture_head(k, q, t, s) : capture_embedding(k, q, t, s);
}

/* ---- averages ---- */

/* Makes A the mean over the captures that were made; before the exchange, because ranks may differ in their number. */
static dsc_status scale_a(dsc_kfac *k, dsc_queue *q, dsc_kfac_table *t) {
    const dsc_kfac_progress *p = &k->progress[t->layer];
    const double all = (double)k->options.passes * (p->uses > 0 ? (double)p->uses : 1);
    if (p->captures == 0 || (double)p->captures == all)
        return DSC_OK;
    dsc_tensor *a = t->is_head ? &t->g_batch : &t->a_batch;
    return dsc_op_axpby(q, all / (double)p->captures, a, 0, a);
}

dsc_status dsc_kfac_tables_exchange(dsc_kfac *k, dsc_queue *q) {
    dsc_kfac_tables *t = &k->tables;
    if (!t->buckets)
        return DSC_OK;
    for (int64_t i = 0; i < t->count; i++) {
        DSC_TRY(scale_a(k, q, &t->list[i]));
        if (k->progress[t->list[i].layer].captures > 0)
            continue;
        if (!t->list[i].is_head)
            DSC_TRY(dsc_op_fill(q, 0, &t->list[i].a_batch));
        DSC_TRY(dsc_op_fill(q, 0, &t->list[i].g_batch)); /* sent with the others, and not used */
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
            DSC_TRY(scale_a(k, q, t));
        if (!t->is_head && came != k->options.passes)
            DSC_TRY(dsc_op_axpby(q, (double)k->options.passes / (double)came, &t->g_batch, 0, &t->g_batch));
        if (!t->is_head && k->g_scale)
            DSC_TRY(dsc_op_scale_by(q, k->g_scale, &t->g_batch));
        const dsc_absorb_item items[2] = {{t->g_batch, dsc_tensor_slice(&all->bad, 4 * i + 2, 2), t->g},
                                          {t->a_batch, dsc_tensor_slice(&all->bad, 4 * i, 2), t->a}};
        DSC_TRY(dsc_op_absorb_batch(q, &decay, items, t->is_head ? 1 : 2));
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
        k->counters[DSC_KFAC_RETRIED] += k->rank == 0; /* all ranks solve the same problem */
        k->counters[DSC_KFAC_FAILED] += !solved && k->rank == 0;
    }
    if (!solved && k->rank == 0)
        dsc_log(DSC_LOG_WARNING, "K-FAC: %s '%s' cannot be decomposed: %s",
                t->is_head ? "A of the tied head" : "G of the table", k->layers[t->layer].name,
                t->decomposed ? "the last decomposition stays in use" : "it keeps its gradient");
    if (!solved) /* the earlier decomposition stays in use, or else the gradient stays as it is */
        return DSC_OK;
    t->decomposed = 1;
    const dsc_convert_item copies[3] = {{.src = item.a, .dst = t->vectors},
                                        {.src = item.v, .dst = t->values, .clamp = 1},
                                        {.src = t->a, .dst = t->shares}};
    return dsc_op_convert_batch(q, copies, t->is_head ? 2 : 3);
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
