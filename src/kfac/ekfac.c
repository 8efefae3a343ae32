/* EKFAC: the eigenvalues of a unit are estimated in its basis, instead of being products of the factors'
 * eigenvalues.
 *
 *   s[g_n, a_n]   running average of the elementwise second moments of QG' D_n QA, where D_n is the gradient of
 *                 one sample
 *   P = QG [(QG' D QA) / (s + damping)] QA'
 *
 * Where D_n comes from:
 *
 *   batch     the gradient D of a step is the mean of N of them, and those of different samples are nearly
 *             independent, so N (QG' D QA)^2 has the right mean. One operation updates s and divides by it.
 *   samples   the captured tensors. With one position per sample, D_n = N g a', so that
 *             s_batch = N sum (QG' g)^2 (QA' a)^2, a product of two matrices. With several positions,
 *             D_n = N sum g a' over them is formed for a number of samples at a time.
 *
 * s has the scale of vG vA', which is its initial value at the first decomposition. Later decompositions change the
 * basis, and s is transformed: with R = Q_new' Q_old for both factors, s <- (RG o RG) s (RA o RA)', the diagonal in the
 * new basis of the matrix that s describes in the old one. A unit whose factors do not contain a batch yet starts
 * again.
 *
 * s of a unit is kept in its column. Samples stay on the rank that has captured them, so every rank projects its own
 * samples onto the bases of all units: those of other columns are sent along the rows after each decomposition. */
#include "kfac/internal.h"

#include "base/error.h"
#include "base/memory.h"

/* The largest number of samples, and of elements of scratch memory, that are worked on at a time. */
enum { MOST_SAMPLES = 256, HOST_NUMBERS = 1 << 22, DEVICE_NUMBERS = 1 << 24 };

static int is_on(const dsc_kfac *k) {
    return k->options.ekfac != DSC_KFAC_EKFAC_OFF;
}

static int is_mine(const dsc_kfac *k, int64_t unit) {
    return k->layouts[0].plan->units[unit].column == k->my_column;
}

static int takes_samples(const dsc_kfac *k) {
    return k->options.ekfac == DSC_KFAC_EKFAC_SAMPLES;
}

/* Returns the item of a factor that a unit uses; factors are whole. */
static int64_t item_of(const dsc_kfac *k, int64_t unit, int side) {
    const dsc_kfac_plan *plan = k->layouts[0].plan;
    return side == DSC_KFAC_A ? dsc_kfac_a_item(plan, unit) : dsc_kfac_g_item(plan, unit);
}

/* Returns the vectors of an item of any column, as stored. */
static dsc_tensor *vectors_of(const dsc_kfac *k, int64_t item) {
    return is_mine(k, k->layouts[0].plan->items[item].unit) ? &k->layouts[0].bases[item].vectors
                                                            : &k->moments.foreign[item];
}

/* ---- creation ---- */

/* Carves the moments of this rank's column, the batch moments of all units and the bases of the other columns out of
 * their blocks, column by column. While the blocks have no memory yet, it only counts. */
static void place_moments(dsc_kfac *k, int64_t used[3]) {
    const dsc_kfac_plan *plan = k->layouts[0].plan;
    dsc_kfac_moments *m = &k->moments;
    for (int64_t i = 0; i < k->columns * k->unit_count; i++) {
        int64_t u = i % k->unit_count;
        const dsc_kfac_unit *unit = &plan->units[u];
        const int64_t dim[2] = {unit->g_n, unit->a_n};
        if (unit->column != i / k->unit_count)
            continue;
        if (is_mine(k, u))
            m->s[u] = dsc_kfac_carve(&m->memory, &used[0], 2, dim);
        if (takes_samples(k))
            m->batch[u] = dsc_kfac_carve(&m->batches, &used[1], 2, dim);
        for (int side = 0; takes_samples(k) && !is_mine(k, u) && side < DSC_KFAC_SIDES; side++) {
            const int64_t square[2] = {dim[1 - side], dim[1 - side]};
            if (side == DSC_KFAC_A && plan->a_unit[u] != u)
                continue;
            m->foreign[item_of(k, u, side)] = dsc_kfac_carve(&m->foreign_memory, &used[2], 2, square);
        }
    }
}

/* Creates the buckets that average batch moments over the ranks: for the only rank of the unit's column, or for all
 * ranks if columns have several. */
static dsc_status make_buckets(dsc_kfac *k) {
    dsc_bucket_options options;
    int *roots = NULL;
    if (k->ranks == 1 || !takes_samples(k))
        return DSC_OK;
    dsc_bucket_options_init(&options);
    options.bytes = k->options.bucket_bytes;
    options.traffic = DSC_TRAFFIC_FACTORS;
    DSC_TRY(dsc_memory_alloc(k->unit_count, sizeof *roots, &roots));
    for (int64_t u = 0; u < k->unit_count; u++)
        roots[u] = k->layouts[0].plan->units[u].column;
    options.roots = k->rows == 1 ? roots : NULL;
    dsc_status status = dsc_buckets_create(k->exchange, k->queue, k->moments.batch, k->unit_count, &options,
                                           &k->moments.buckets);
    dsc_memory_free(&roots);
    return status;
}

dsc_status dsc_kfac_ekfac_create(dsc_kfac *k) {
    dsc_kfac_moments *m = &k->moments;
    dsc_tensor *vectors = &k->layouts[0].vectors;
    int64_t sizes[3] = {0}, used[3] = {0}, n = k->unit_count, items = k->layouts[0].plan->item_count;
    if (!is_on(k) || n == 0)
        return DSC_OK;
    DSC_TRY(dsc_memory_alloc(n, sizeof *m->s, &m->s));
    DSC_TRY(dsc_memory_alloc(n, sizeof *m->batch, &m->batch));
    DSC_TRY(dsc_memory_alloc(n, sizeof *m->samples, &m->samples));
    DSC_TRY(dsc_memory_alloc(n, sizeof *m->samples_host, &m->samples_host));
    DSC_TRY(dsc_memory_alloc(n, sizeof *m->divides, &m->divides));
    DSC_TRY(dsc_memory_alloc(MOST_SAMPLES, sizeof *m->products, &m->products));
    DSC_TRY(dsc_memory_alloc(items, sizeof *m->foreign, &m->foreign));
    DSC_TRY(dsc_memory_alloc(items, sizeof(dsc_request *), &m->requests));
    place_moments(k, sizes);
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, sizes[0], &m->memory));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, sizes[1], &m->batches));
    DSC_TRY(dsc_kfac_alloc(k, k->inverse_dtype, sizes[2], &m->foreign_memory));
    place_moments(k, used);
    DSC_TRY(dsc_kfac_alloc(k, k->inverse_dtype, dsc_tensor_count(vectors), &m->old));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, n, &m->all_samples));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, 2 * n, &m->bad));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, MOST_SAMPLES, &m->ones));
    DSC_TRY(dsc_op_fill(k->queue, 0, &m->all_samples));
    DSC_TRY(dsc_op_fill(k->queue, 0, &m->bad));
    DSC_TRY(dsc_op_fill(k->queue, 1, &m->ones));
    for (int64_t u = 0; u < n; u++)
        m->samples[u] = dsc_tensor_slice(&m->all_samples, u, 1);
    /* Captures before the first decomposition read the bases, so they are set to 0. What these captures add to s does
     * not matter: the first decomposition sets it. */
    if (vectors->data)
        DSC_TRY(dsc_op_fill(k->queue, 0, vectors));
    if (m->foreign_memory.data)
        DSC_TRY(dsc_op_fill(k->queue, 0, &m->foreign_memory));
    if (m->memory.data)
        DSC_TRY(dsc_op_fill(k->queue, 0, &m->memory));
    return make_buckets(k);
}

void dsc_kfac_ekfac_destroy(dsc_kfac *k) {
    dsc_kfac_moments *m = &k->moments;
    dsc_tensor *const blocks[] = {&m->memory, &m->batches, &m->old,  &m->all_samples,
                                  &m->bad,    &m->ones,    &m->work, &m->foreign_memory};
    void *const arrays[] = {&m->s,       &m->batch,    &m->samples, &m->samples_host,
                            &m->divides, &m->products, &m->foreign, &m->requests};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        dsc_tensor_free(blocks[i]);
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        dsc_memory_free(arrays[i]);
}

/* Makes the scratch memory hold at least `count` elements. It grows during the first captures and decompositions. */
static dsc_status reserve(dsc_kfac *k, int64_t count) {
    dsc_tensor *work = &k->moments.work;
    if (work->data && dsc_tensor_count(work) >= count)
        return DSC_OK;
    dsc_tensor_free(work);
    *work = (dsc_tensor){0};
    return dsc_kfac_alloc(k, k->dtype, count, work);
}

/* ---- moments of a capture ---- */

/* A unit's part of a capture, and the scratch memory for some of its samples. */
typedef struct portion {
    int64_t unit, samples, positions; /* samples: how many are worked on at a time */
    const dsc_kfac_pass *pass;
    double alpha;
    dsc_tensor q[DSC_KFAC_SIDES];    /* the bases */
    dsc_tensor rows[DSC_KFAC_SIDES]; /* [samples * positions, n] of a and of g */
    dsc_tensor half;                 /* [samples * positions, larger n] rows before they are converted */
    /* With one position, projections of the rows; with several, D_n and D_n QA, [samples * g_n, a_n]. */
    dsc_tensor x[DSC_KFAC_SIDES];
} portion;

/* Carves everything out of the scratch memory; returns the number of elements that takes. */
static int64_t place_portion(dsc_kfac *k, portion *p) {
    const dsc_kfac_member *m = &k->members[p->unit];
    const int64_t n[DSC_KFAC_SIDES] = {m->factor[DSC_KFAC_A].n, m->factor[DSC_KFAC_G].n};
    int64_t used = 0, rows = p->samples * p->positions;
    for (int side = 0; side < DSC_KFAC_SIDES; side++) {
        const int64_t square[2] = {n[side], n[side]}, matrix[2] = {rows, n[side]};
        const int64_t gradients[2] = {p->samples * n[DSC_KFAC_G], n[DSC_KFAC_A]};
        p->q[side] = *vectors_of(k, item_of(k, p->unit, side));
        if (k->inverse_dtype != k->dtype)
            p->q[side] = dsc_kfac_carve(&k->moments.work, &used, 2, square);
        p->rows[side] = dsc_kfac_carve(&k->moments.work, &used, 2, matrix);
        p->x[side] = dsc_kfac_carve(&k->moments.work, &used, 2, p->positions > 1 ? gradients : matrix);
    }
    const int64_t larger[2] = {rows, n[0] > n[1] ? n[0] : n[1]};
    if (p->pass->rows[0].x.dtype != k->dtype || p->pass->rows[1].x.dtype != k->dtype)
        p->half = dsc_kfac_carve(&k->moments.work, &used, 2, larger);
    return used;
}

/* Chooses as many samples at a time as fit into the scratch memory, and allocates that. */
static dsc_status begin_portion(dsc_kfac *k, dsc_queue *q, portion *p) {
    int64_t limit = dsc_device_is_host(k->device) ? HOST_NUMBERS : DEVICE_NUMBERS;
    int64_t all = p->pass->samples;
    p->positions = p->pass->positions;
    p->samples = 1;
    int64_t one = place_portion(k, p);
    p->samples = 2;
    int64_t next = place_portion(k, p) - one; /* what one more sample takes */
    p->samples = one >= limit ? 1 : 1 + (limit - one) / next;
    if (p->positions > 1 && p->samples > MOST_SAMPLES)
        p->samples = MOST_SAMPLES;
    p->samples = p->samples < all ? p->samples : all;
    DSC_TRY(reserve(k, place_portion(k, p)));
    place_portion(k, p);
    for (int side = 0; side < DSC_KFAC_SIDES && k->inverse_dtype != k->dtype; side++)
        DSC_TRY(dsc_op_convert(q, vectors_of(k, item_of(k, p->unit, side)), &p->q[side]));
    return DSC_OK;
}

/* Returns the first rows of a matrix. */
static dsc_tensor top_rows(const dsc_tensor *t, int64_t rows) {
    const int64_t dim[2] = {rows, t->dim[1]};
    return dsc_tensor_view(t->device, t->data, t->dtype, 2, dim);
}

/* Copies rows of a (with the ones for the bias) or of g, from row `first` on, to *out. */
static dsc_status take_rows(dsc_kfac *k, dsc_queue *q, const portion *p, int side, int64_t first,
                            dsc_tensor *out) {
    const dsc_kfac_rows *rows = &p->pass->rows[side];
    int64_t group = dsc_kfac_rows_group(rows, k->layouts[0].plan->units[p->unit].group);
    if (rows->x.dtype == k->dtype)
        return dsc_op_patches(q, &rows->desc, &rows->x, group, first, out);
    dsc_tensor half = dsc_tensor_view(k->device, p->half.data, rows->x.dtype, 2, out->dim);
    DSC_TRY(dsc_op_patches(q, &rows->desc, &rows->x, group, first, &half));
    return dsc_op_convert(q, &half, out);
}

/* With one position per sample: to = beta to + alpha sum (QG' g)^2 (QA' a)^2 over the rows. */
static dsc_status add_rows(dsc_queue *q, const portion *p, const dsc_tensor rows[DSC_KFAC_SIDES], double beta,
                           dsc_tensor *to) {
    dsc_tensor x[DSC_KFAC_SIDES];
    for (int side = 0; side < DSC_KFAC_SIDES; side++) {
        x[side] = top_rows(&p->x[side], rows[side].dim[0]);
        DSC_TRY(dsc_op_gemm(q, 0, 0, 1, &rows[side], &p->q[side], 0, &x[side]));
        DSC_TRY(dsc_op_map(q, DSC_MAP_MULTIPLY, &x[side], &x[side], 0, &x[side]));
    }
    return dsc_op_gemm(q, 1, 0, p->alpha, &x[DSC_KFAC_G], &x[DSC_KFAC_A], beta, to);
}

/* With several positions: to = beta to + alpha sum (QG' D_n QA)^2 over the samples, D_n = sum g a'. */
static dsc_status add_gradients(dsc_kfac *k, dsc_queue *q, const portion *p,
                                const dsc_tensor rows[DSC_KFAC_SIDES], double beta, dsc_tensor *to) {
    int64_t g_n = p->q[DSC_KFAC_G].dim[0], a_n = p->q[DSC_KFAC_A].dim[0];
    int64_t count = rows[0].dim[0] / p->positions, at[4] = {0};
    const int64_t rows_a[2] = {p->positions, a_n}, rows_g[2] = {p->positions, g_n}, one[2] = {g_n, a_n};
    const int64_t flat[2] = {count, g_n * a_n}, line[2] = {1, g_n * a_n}, ones_dim[2] = {1, count};
    dsc_gemm_item *items = k->moments.products;
    for (int64_t i = 0; i < count; i++)
        items[i] = (dsc_gemm_item){.trans_a = 1,
                                   .alpha = 1,
                                   .a = dsc_kfac_carve(&rows[DSC_KFAC_G], &at[0], 2, rows_g),
                                   .b = dsc_kfac_carve(&rows[DSC_KFAC_A], &at[1], 2, rows_a),
                                   .c = dsc_kfac_carve(&p->x[0], &at[2], 2, one)};
    DSC_TRY(dsc_op_gemm_batch(q, items, count));
    dsc_tensor d = top_rows(&p->x[0], count * g_n), turned = top_rows(&p->x[1], count * g_n);
    DSC_TRY(dsc_op_gemm(q, 0, 0, 1, &d, &p->q[DSC_KFAC_A], 0, &turned));
    for (int64_t i = 0; i < count; i++)
        items[i] = (dsc_gemm_item){.trans_a = 1,
                                   .alpha = 1,
                                   .a = p->q[DSC_KFAC_G],
                                   .b = dsc_kfac_carve(&turned, &at[3], 2, one),
                                   .c = items[i].c};
    DSC_TRY(dsc_op_gemm_batch(q, items, count));
    DSC_TRY(dsc_op_map(q, DSC_MAP_MULTIPLY, &d, &d, 0, &d));
    dsc_tensor squares = dsc_tensor_view(k->device, d.data, k->dtype, 2, flat);
    dsc_tensor ones = dsc_tensor_view(k->device, k->moments.ones.data, k->dtype, 2, ones_dim);
    dsc_tensor sum = dsc_tensor_view(k->device, to->data, k->dtype, 2, line);
    return dsc_op_gemm(q, 0, 0, p->alpha, &ones, &squares, beta, &sum);
}

dsc_status dsc_kfac_ekfac_capture(dsc_kfac *k, dsc_queue *q, int64_t unit, const dsc_kfac_pass *pass) {
    double n = (double)pass->terms * pass->whole * pass->whole, scale = k->loss_scale * k->loss_scale;
    const dsc_kfac_progress *progress = &k->progress[dsc_kfac_layer_of(k, unit)];
    dsc_tensor *to = &k->moments.batch[unit];
    if (!takes_samples(k))
        return DSC_OK;
    portion p = {.unit = unit, .pass = pass, .alpha = n / scale / (double)k->options.passes};
    DSC_TRY(begin_portion(k, q, &p));
    for (int64_t first = 0; first < pass->samples; first += p.samples) {
        int64_t left = pass->samples - first, count = left < p.samples ? left : p.samples;
        double beta = progress->captures > 0 || first > 0 ? 1 : 0;
        dsc_tensor rows[DSC_KFAC_SIDES];
        for (int side = 0; side < DSC_KFAC_SIDES; side++) {
            rows[side] = top_rows(&p.rows[side], count * p.positions);
            DSC_TRY(take_rows(k, q, &p, side, first * p.positions, &rows[side]));
        }
        DSC_TRY(p.positions > 1 ? add_gradients(k, q, &p, rows, beta, to) : add_rows(q, &p, rows, beta, to));
    }
    return DSC_OK;
}

/* ---- the running averages ---- */

dsc_status dsc_kfac_ekfac_exchange(dsc_kfac *k, dsc_queue *q) {
    dsc_kfac_moments *m = &k->moments;
    if (!m->buckets)
        return DSC_OK;
    for (int64_t u = 0; u < k->unit_count; u++) {
        if (!dsc_kfac_was_captured(k, u)) /* sent with the others, and not used afterwards */
            DSC_TRY(dsc_op_fill(q, 0, &m->batch[u]));
        DSC_TRY(dsc_buckets_ready(m->buckets, u));
    }
    return dsc_buckets_wait(m->buckets);
}

dsc_status dsc_kfac_ekfac_absorb(dsc_kfac *k, dsc_queue *q) {
    dsc_kfac_moments *m = &k->moments;
    dsc_tensor decay = dsc_tensor_slice(&k->numbers, DSC_KFAC_DECAY, 1);
    int64_t count = 0;
    if (!takes_samples(k))
        return DSC_OK;
    for (int64_t u = 0; u < k->unit_count; u++) {
        const dsc_kfac_progress *p = &k->progress[dsc_kfac_layer_of(k, u)];
        if (p->captures == 0 || !is_mine(k, u))
            continue;
        /* The mean over the passes in which the layer ran. */
        int64_t came = p->uses > 0 ? (p->captures + p->uses - 1) / p->uses : k->options.passes;
        if (came != k->options.passes)
            DSC_TRY(dsc_op_axpby(q, (double)k->options.passes / (double)came, &m->batch[u], 0, &m->batch[u]));
        if (k->g_scale)
            DSC_TRY(dsc_op_scale_by(q, k->g_scale, &m->batch[u]));
        k->absorbs[count++] = (dsc_absorb_item){m->batch[u], dsc_tensor_slice(&m->bad, 2 * u, 2), m->s[u]};
    }
    return dsc_op_absorb_batch(q, &decay, k->absorbs, count);
}

dsc_status dsc_kfac_ekfac_divide(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout,
                                 const dsc_kfac_batch *b) {
    dsc_kfac_moments *m = &k->moments;
    dsc_tensor decay = dsc_tensor_slice(&k->numbers, DSC_KFAC_DECAY, 1);
    dsc_tensor damping = dsc_tensor_slice(&k->numbers, DSC_KFAC_DAMPING, 1);
    for (int64_t i = 0; i < b->cell_count; i++) {
        int64_t u = layout->cells[b->first_cell + i].unit;
        m->divides[i] = (dsc_moment_item){.s = m->s[u], .x = layout->divides[b->first_cell + i].x};
        if (k->options.ekfac == DSC_KFAC_EKFAC_BATCH && dsc_kfac_takes_part(k, u))
            m->divides[i].scale = m->samples[u];
    }
    return dsc_op_moment_divide_batch(q, &decay, &damping, m->divides, b->cell_count);
}

/* ---- decompositions ---- */

dsc_status dsc_kfac_ekfac_keep(dsc_kfac *k, dsc_queue *q) {
    if (!is_on(k) || !k->decomposed || !k->moments.old.data)
        return DSC_OK;
    return dsc_op_convert(q, &k->layouts[0].vectors, &k->moments.old);
}

/* Broadcasts the vectors of all items along the rows. A row of the grid has one rank of each column. */
static dsc_status send_bases(dsc_kfac *k) {
    const dsc_kfac_plan *plan = k->layouts[0].plan;
    for (int64_t i = 0; i < plan->item_count; i++)
        DSC_TRY(dsc_comm_broadcast_begin(k->row, DSC_TRAFFIC_DECOMPOSITIONS,
                                         plan->units[plan->items[i].unit].column, vectors_of(k, i),
                                         &k->moments.requests[i]));
    for (int64_t i = 0; i < plan->item_count; i++)
        DSC_TRY(dsc_comm_wait(&k->moments.requests[i]));
    return DSC_OK;
}

dsc_status dsc_kfac_ekfac_share(dsc_kfac *k, dsc_queue *q) {
    if (!takes_samples(k) || !k->row)
        return DSC_OK;
    DSC_TRY(dsc_queue_sync(q));
    k->broken = 1; /* as long as messages use the memory */
    DSC_TRY(send_bases(k));
    k->broken = 0;
    return DSC_OK;
}

/* Sets s = vG vA'. */
static dsc_status start(dsc_kfac *k, dsc_queue *q, int64_t unit) {
    const dsc_kfac_layout *layout = &k->layouts[0];
    const dsc_tensor *a = &layout->bases[item_of(k, unit, DSC_KFAC_A)].values;
    const dsc_tensor *g = &layout->bases[item_of(k, unit, DSC_KFAC_G)].values;
    const int64_t row[2] = {1, a->dim[0]}, column[2] = {g->dim[0], 1};
    dsc_tensor values_a = dsc_tensor_view(k->device, a->data, k->dtype, 2, row);
    dsc_tensor values_g = dsc_tensor_view(k->device, g->data, k->dtype, 2, column);
    return dsc_op_gemm(q, 0, 0, 1, &values_g, &values_a, 0, &k->moments.s[unit]);
}

/* Computes R o R, where R = Q_new' Q_old, for one factor, in `gram`. */
static dsc_status turn(dsc_kfac *k, dsc_queue *q, int64_t item, dsc_tensor *out) {
    const dsc_kfac_layout *layout = &k->layouts[0];
    dsc_tensor fresh = layout->bases[item].vectors, old = fresh;
    size_t offset = (size_t)((char *)fresh.data - (char *)layout->vectors.data);
    int64_t used = 0, n = fresh.dim[0];
    old.data = (char *)k->moments.old.data + offset;
    if (k->inverse_dtype != k->dtype) {
        DSC_TRY(reserve(k, 2 * n * n));
        dsc_tensor wide[2] = {dsc_kfac_carve(&k->moments.work, &used, 2, fresh.dim),
                              dsc_kfac_carve(&k->moments.work, &used, 2, fresh.dim)};
        DSC_TRY(dsc_op_convert(q, &fresh, &wide[0]));
        DSC_TRY(dsc_op_convert(q, &old, &wide[1]));
        fresh = wide[0];
        old = wide[1];
    }
    used = 0;
    *out = dsc_kfac_carve(&k->gram, &used, 2, fresh.dim);
    DSC_TRY(dsc_op_gemm(q, 1, 0, 1, &fresh, &old, 0, out));
    return dsc_op_map(q, DSC_MAP_MULTIPLY, out, out, 0, out);
}

/* Transforms s to the new bases: s <- (RG o RG) s (RA o RA)'. */
static dsc_status follow(dsc_kfac *k, dsc_queue *q, int64_t unit) {
    const dsc_kfac_unit *u = &k->layouts[0].plan->units[unit];
    const int64_t dim[2] = {u->g_n, u->a_n};
    int64_t used = 0;
    dsc_tensor squares, between = dsc_kfac_carve(&k->layouts[0].first, &used, 2, dim);
    DSC_TRY(turn(k, q, item_of(k, unit, DSC_KFAC_A), &squares));
    DSC_TRY(dsc_op_gemm(q, 0, 1, 1, &k->moments.s[unit], &squares, 0, &between));
    DSC_TRY(turn(k, q, item_of(k, unit, DSC_KFAC_G), &squares));
    return dsc_op_gemm(q, 0, 0, 1, &squares, &between, 0, &k->moments.s[unit]);
}

/* Counts N of every unit: the terms of the loss, over all ranks and passes. Units that have not been captured since a
 * state was loaded keep the number in that state. */
static dsc_status count_samples(dsc_kfac *k, dsc_queue *q) {
    dsc_kfac_moments *m = &k->moments;
    size_t bytes = dsc_tensor_bytes(&m->all_samples);
    DSC_TRY(dsc_tensor_download(q, &m->all_samples, bytes, m->samples_host));
    DSC_TRY(dsc_queue_sync(q));
    for (int64_t u = 0; u < k->unit_count; u++) {
        int64_t samples = k->progress[dsc_kfac_layer_of(k, u)].samples;
        if (samples > 0)
            m->samples_host[u] = (double)(k->options.passes * samples);
        else if (k->rank > 0) /* every rank has the same number: count it once */
            m->samples_host[u] = 0;
    }
    DSC_TRY(dsc_tensor_upload(q, m->samples_host, bytes, &m->all_samples));
    DSC_TRY(dsc_queue_sync(q));
    return dsc_comm_allreduce(k->control, DSC_TRAFFIC_OTHER, DSC_SUM, &m->all_samples);
}

dsc_status dsc_kfac_ekfac_decomposed(dsc_kfac *k, dsc_queue *q) {
    if (!is_on(k) || k->unit_count == 0)
        return DSC_OK;
    for (int64_t u = 0; u < k->unit_count; u++) {
        int known = k->decomposed && k->progress[dsc_kfac_layer_of(k, u)].ready;
        if (is_mine(k, u))
            DSC_TRY(known ? follow(k, q, u) : start(k, q, u));
    }
    DSC_TRY(dsc_kfac_ekfac_share(k, q));
    return count_samples(k, q);
}
