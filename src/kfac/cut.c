/* Bases that keep only the leading eigenvectors of large factors, and the mean of the other eigenvalues.
 *
 * What a cut loses depends on the dropped eigenvalues, whose mean m is known; they are between 0 and l, the smallest
 * eigenvalue that is kept. Their standard deviation is at most sqrt(m (l - m)), and preconditioning divides by about
 * m + delta in their directions, where delta = damping / largest eigenvalue of the other factor. The quotient of the
 * two, the spread, is small if the dropped eigenvalues are alike or all below delta. The rank of a basis (the number
 * of vectors it keeps) starts at the requested share, doubles while the spread is above 0.3, and is halved again if
 * that leaves the spread below 0.15. A factor that had to be solved exactly after a refused rotation becomes whole, and
 * stays so.
 *
 * The owner of a factor decides. A result whose rank has changed waits in separate memory (`grown`) until all
 * processes know the new ranks; then all bases move to new memory. */
#include "base/error.h"
#include "base/memory.h"
#include "kfac/refresh.h"

#include <math.h>

/* ---- ranks and memory ---- */

static const double most_spread = 0.3;

static double spread_of(double mean, double largest, double delta) {
    double deviation = sqrt(fmax(mean * (largest - mean), 0));
    return deviation > 0 ? deviation / (mean + delta) : 0;
}

void dsc_kfac_cut_plan(const dsc_kfac *k, dsc_kfac_layout *layout, int64_t exact_rows) {
    for (int64_t i = 0; i < layout->plan->item_count; i++) {
        int64_t n = layout->plan->items[i].n;
        layout->upkeep[i].rank = dsc_kfac_planned_rank(&k->options, n, exact_rows);
    }
}

/* Returns 1 if an item of this rank's column now has another rank than its memory was allocated for. */
static int is_changed(const dsc_kfac *k, const dsc_kfac_layout *layout) {
    for (int64_t i = 0; i < layout->plan->item_count; i++)
        if (layout->plan->units[layout->plan->items[i].unit].column == k->my_column &&
            layout->bases[i].vectors.dim[1] != layout->upkeep[i].rank)
            return 1;
    return 0;
}

/* Returns the product with the bases of a unit; its scratch memory is carved from `block`. */
static dsc_kfac_product product_of(const dsc_kfac *k, const dsc_kfac_layout *layout, int64_t unit,
                                   const dsc_tensor *block, int64_t *used) {
    const dsc_kfac_basis *a = &layout->bases[dsc_kfac_a_item(layout->plan, unit)];
    const dsc_kfac_basis *g = &layout->bases[dsc_kfac_g_item(layout->plan, unit)];
    dsc_kfac_product p = {.qa = a->vectors,
                          .qg = g->vectors,
                          .va = a->values,
                          .vg = g->values,
                          .rest_a = a->rest,
                          .rest_g = g->rest,
                          .x = k->members[unit].gradient.d,
                          .out = k->members[unit].p};
    dsc_kfac_product_carve(&p, a->vectors.dim[1] < a->vectors.dim[0], g->vectors.dim[1] < g->vectors.dim[0],
                           block, used);
    return p;
}

/* Allocates scratch memory for the products of the largest batch. */
static dsc_status reserve_scratch(dsc_kfac *k, dsc_kfac_layout *layout) {
    const dsc_tensor none = {.device = k->device, .dtype = k->dtype};
    int64_t most = 0;
    for (int64_t i = 0; i < layout->batch_count; i++) {
        const dsc_kfac_batch *b = &layout->batches[i];
        int64_t used = 0;
        for (int64_t j = b->first; b->turn.root == k->my_column && j < b->first + b->count; j++)
            (void)product_of(k, layout, layout->units[j], &none, &used);
        most = used > most ? used : most;
    }
    if (layout->first.data && dsc_tensor_count(&layout->first) >= most)
        return DSC_OK;
    dsc_tensor_free(&layout->first);
    return dsc_kfac_alloc(k, k->dtype, most, &layout->first);
}

dsc_status dsc_kfac_cut_create(dsc_kfac *k) {
    int64_t n = k->largest_n, used = 0;
    int32_t *host;
    if (!dsc_kfac_is_cut(k) || n == 0)
        return DSC_OK;
    DSC_TRY(dsc_memory_alloc(2 * n, sizeof *host, &host));
    for (int64_t i = 0; i < n; i++) {
        host[i] = (int32_t)i;
        host[n + i] = (int32_t)(n - 1 - i);
    }
    used = 2 * n;
    dsc_status status = dsc_tensor_alloc(k->device, DSC_I32, 1, &used, &k->wave->index);
    if (status == DSC_OK)
        status = dsc_tensor_upload(k->queue, host, (size_t)used * sizeof *host, &k->wave->index);
    if (status == DSC_OK)
        status = dsc_queue_sync(k->queue);
    dsc_memory_free(&host);
    DSC_TRY(status);
    return reserve_scratch(k, &k->layouts[0]);
}

static void drop_grown(dsc_kfac_basis *grown) {
    dsc_tensor_free(&grown->vectors);
    dsc_tensor_free(&grown->stored);
    *grown = (dsc_kfac_basis){0};
}

void dsc_kfac_cut_destroy(dsc_kfac *k) {
    dsc_kfac_layout *layout = &k->layouts[0];
    for (int64_t i = 0; layout->grown && i < layout->plan->item_count; i++)
        drop_grown(&layout->grown[i]);
    if (k->wave)
        dsc_tensor_free(&k->wave->index);
}

dsc_kfac_basis *dsc_kfac_cut_basis(dsc_kfac_layout *layout, int64_t item) {
    int waits = layout->grown && layout->grown[item].vectors.data;
    return waits ? &layout->grown[item] : &layout->bases[item];
}

/* Copies what this rank owns to the new memory: from `grown` if a result waits there, else from the old memory. */
static dsc_status move_own(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout, const dsc_kfac_basis *old) {
    int64_t count = 0;
    for (int64_t i = 0; i < layout->plan->item_count; i++) {
        const dsc_kfac_basis *from = layout->grown[i].vectors.data ? &layout->grown[i] : &old[i];
        const dsc_kfac_basis *to = &layout->bases[i];
        if (layout->plan->items[i].owner != k->rank || from->vectors.dim[1] != to->vectors.dim[1])
            continue;
        k->converts[count++] = (dsc_convert_item){.src = from->vectors, .dst = to->vectors};
        k->converts[count++] = (dsc_convert_item){.src = from->stored, .dst = to->stored};
    }
    DSC_TRY(dsc_op_convert_batch(q, k->converts, count));
    DSC_TRY(dsc_queue_sync(q));
    for (int64_t i = 0; i < layout->plan->item_count; i++)
        drop_grown(&layout->grown[i]);
    return DSC_OK;
}

dsc_status dsc_kfac_cut_resize(dsc_kfac *k, dsc_queue *q) {
    dsc_kfac_layout *layout = &k->layouts[0];
    int64_t sizes[3] = {0}, used[3] = {0};
    if (!dsc_kfac_is_cut(k) || !is_changed(k, layout))
        return DSC_OK;
    dsc_kfac_basis *old = NULL, *bases = layout->bases;
    dsc_tensor vectors = layout->vectors, values = layout->values;
    int64_t items = layout->plan->item_count;
    DSC_TRY(dsc_memory_alloc(items, sizeof *old, &old));
    for (int64_t i = 0; i < items; i++)
        old[i] = bases[i];
    layout->vectors.data = layout->values.data = NULL;
    dsc_kfac_place_parcels(k, layout, sizes);
    dsc_status status = dsc_kfac_alloc(k, k->inverse_dtype, sizes[0], &layout->vectors);
    if (status == DSC_OK)
        status = dsc_kfac_alloc(k, k->dtype, sizes[1], &layout->values);
    dsc_kfac_place_parcels(k, layout, used);
    if (status == DSC_OK)
        status = move_own(k, q, layout, old);
    dsc_tensor_free(&vectors);
    dsc_tensor_free(&values);
    dsc_memory_free(&old);
    k->generation++;
    return status == DSC_OK ? reserve_scratch(k, layout) : status;
}

/* ---- exact solutions ---- */

static dsc_status alloc_grown(dsc_kfac *k, dsc_kfac_layout *layout, int64_t item) {
    dsc_kfac_basis *grown = &layout->grown[item];
    int64_t n = layout->plan->items[item].n, rank = layout->upkeep[item].rank, count = rank + (rank < n);
    const int64_t shape[2] = {n, rank};
    drop_grown(grown);
    DSC_TRY(dsc_tensor_alloc(k->device, k->inverse_dtype, 2, shape, &grown->vectors));
    DSC_TRY(dsc_tensor_alloc(k->device, k->dtype, 1, &count, &grown->stored));
    grown->values = dsc_tensor_slice(&grown->stored, 0, rank);
    if (rank < n)
        grown->rest = dsc_tensor_slice(&grown->stored, rank, 1);
    return DSC_OK;
}

/* Copies the given columns of a basis and their eigenvalues, and the mean of the other eigenvalues. */
static dsc_status take_columns(dsc_kfac *k, dsc_queue *q, const dsc_tensor *vectors, const dsc_tensor *v,
                               const dsc_tensor *columns, double mean, dsc_kfac_basis *to) {
    const int64_t all[2] = {1, v->dim[0]}, kept[2] = {1, columns->dim[0]};
    dsc_tensor rows = dsc_tensor_slice(&k->wave->index, 0, vectors->dim[0]);
    dsc_tensor first = dsc_tensor_slice(&k->wave->index, 0, 1);
    dsc_tensor from = dsc_tensor_view(k->device, v->data, v->dtype, 2, all);
    dsc_tensor values = dsc_tensor_view(k->device, to->values.data, to->values.dtype, 2, kept);
    DSC_TRY(dsc_op_gather(q, vectors, &rows, columns, &to->vectors));
    DSC_TRY(dsc_op_gather(q, &from, &first, columns, &values));
    DSC_TRY(dsc_op_relu_forward(q, &to->values, &to->values));
    return dsc_op_fill(q, mean, &to->rest);
}

static double value_at(const dsc_kfac *k, const void *values, int64_t i) {
    double value = k->dtype == DSC_F64 ? ((const double *)values)[i] : (double)((const float *)values)[i];
    return value > 0 ? value : 0;
}

/* Raises the rank at which to cut a solved item as far as needed, and sets *mean to the mean of the eigenvalues that
 * are dropped. v is in ascending order. */
static dsc_status choose_rank(dsc_kfac *k, dsc_queue *q, const dsc_kfac_layout *layout, int64_t item,
                              const dsc_tensor *v, double *mean) {
    int64_t n = v->dim[0], *rank = &layout->upkeep[item].rank;
    double delta = dsc_kfac_refresh_delta(k, layout, item);
    DSC_TRY(dsc_tensor_download(q, v, dsc_tensor_bytes(v), k->wave->stored));
    DSC_TRY(dsc_queue_sync(q));
    for (;; *rank = 2 * *rank < n ? 2 * *rank : n) {
        *mean = 0;
        for (int64_t i = 0; i < n - *rank; i++)
            *mean += value_at(k, k->wave->stored, i) / (double)(n - *rank);
        if (*rank == n || spread_of(*mean, value_at(k, k->wave->stored, n - *rank), delta) <= most_spread)
            return DSC_OK;
    }
}

dsc_status dsc_kfac_cut_store(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout, int64_t item,
                              const dsc_solve_item *s, int64_t *listed) {
    const dsc_kfac_item *own = &layout->plan->items[item];
    int64_t n = own->n, *rank = &layout->upkeep[item].rank;
    double mean = 0;
    /* The A of linear layers with one row per sample is the hardest for a rotation to follow, and stays whole. */
    if (own->side == DSC_KFAC_A && k->progress[dsc_kfac_layer_of(k, own->unit)].by_sample)
        *rank = n;
    if (*rank < n)
        DSC_TRY(choose_rank(k, q, layout, item, &s->v, &mean));
    if (layout->bases[item].vectors.dim[1] != *rank)
        DSC_TRY(alloc_grown(k, layout, item));
    dsc_kfac_basis *to = dsc_kfac_cut_basis(layout, item);
    if (*rank == n) {
        k->converts[(*listed)++] = (dsc_convert_item){.src = s->a, .dst = to->vectors};
        k->converts[(*listed)++] = (dsc_convert_item){.src = s->v, .dst = to->values, .clamp = 1};
        return DSC_OK;
    }
    dsc_tensor columns =
        dsc_tensor_slice(&k->wave->index, 2 * k->largest_n - n, *rank); /* n - 1, n - 2, ... */
    return take_columns(k, q, &s->a, &s->v, &columns, mean, to);
}

/* ---- rotated bases ---- */

int dsc_kfac_cut_grows(const dsc_kfac *k, dsc_kfac_layout *layout, const dsc_refresh_item *t,
                       const void *values, double mean) {
    double least = INFINITY;
    if (t->rank == t->n)
        return 0;
    for (int64_t j = 0; j < t->rank; j++) {
        double value = value_at(k, values, j);
        least = value < least ? value : least;
    }
    if (spread_of(mean, least, t->delta) <= most_spread)
        return 0;
    layout->upkeep[t->item].rank = 2 * t->rank < t->n ? 2 * t->rank : t->n;
    return 1;
}

dsc_status dsc_kfac_cut_shrink(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout, const dsc_refresh_item *t,
                               const void *values, double mean, int *shrunk) {
    int64_t asked = dsc_kfac_planned_rank(&k->options, t->n, k->wave->exact_rows),
            rank = t->rank / 2 > asked ? t->rank / 2 : asked;
    double sum = mean * (double)(t->n - t->rank), least = INFINITY;
    *shrunk = 0;
    if (t->precise || layout->upkeep[t->item].whole || rank >= t->rank)
        return DSC_OK;
    for (int64_t j = 0; j < t->rank; j++) {
        double value = value_at(k, values, j);
        sum += j < rank ? 0 : value;
        least = j < rank && value < least ? value : least;
    }
    sum /= (double)(t->n - rank);
    if (spread_of(sum, least, t->delta) > most_spread / 2)
        return DSC_OK;
    layout->upkeep[t->item].rank = rank;
    *shrunk = 1;
    DSC_TRY(alloc_grown(k, layout, t->item));
    dsc_tensor columns = dsc_tensor_slice(&k->wave->index, 0, rank);
    return take_columns(k, q, &t->q, &t->v, &columns, sum, &layout->grown[t->item]);
}

/* ---- all ranks ---- */

dsc_status dsc_kfac_cut_share(dsc_kfac *k, dsc_queue *q, dsc_status status) {
    DSC_TRY(dsc_comm_agree(k->control, status));
    DSC_TRY(dsc_kfac_upkeep_gather(k, q));
    DSC_TRY(dsc_comm_agree(k->control, dsc_kfac_cut_resize(k, q)));
    dsc_kfac_state_resize(k);
    return DSC_OK;
}

/* ---- preconditioning ---- */

dsc_status dsc_kfac_cut_precondition(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout,
                                     const dsc_kfac_batch *b) {
    dsc_tensor damping = dsc_tensor_slice(&k->numbers, DSC_KFAC_DAMPING, 1);
    int64_t used = 0;
    for (int64_t j = 0; j < b->count; j++)
        k->wave->products[j] = product_of(k, layout, layout->units[b->first + j], &layout->first, &used);
    return dsc_kfac_multiply(q, &damping, k->wave->products, b->count, &k->wave->lists);
}
