/* Decompositions: every rank solves the items it owns, parcel by parcel, and broadcasts them in its column.
 *
 *   eigen     A = QA diag(vA) QA'    vectors QA[n, n] as columns, values vA[n]
 *   inverse   (A + damping I)^-1     [n, n]   with the damping of this factor (split.c)
 *
 * All ranks of a column start their broadcasts in the same order; while a rank solves a parcel, the parcels before it
 * are being sent. A stored decomposition is overwritten only by a solve that succeeded. */
#include "kfac/internal.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "descent/log.h"

/* ---- one item ---- */

typedef struct task {
    dsc_kfac *k;
    dsc_kfac_layout *layout;
    int64_t item;
} task;

/* Writes the factor of an item, or one of its blocks, into a[n, n]. */
static dsc_status unpack_item(dsc_kfac *k, dsc_queue *q, const dsc_kfac_layout *layout, int64_t number,
                              dsc_tensor *a) {
    const dsc_kfac_item *item = &layout->plan->items[number];
    const dsc_kfac_factor *f = dsc_kfac_factor_of(k, item);
    dsc_tensor packed;
    DSC_TRY(dsc_kfac_factor_read(k, q, f, &packed));
    if (!layout->index.data)
        return dsc_op_tri_unpack(q, &packed, a);
    const int64_t square[2] = {f->n, f->n};
    int64_t used = 0;
    dsc_tensor whole = dsc_kfac_carve(&k->gram, &used, 2, square);
    dsc_tensor rows = dsc_tensor_slice(&layout->index, layout->index_first[number], item->n);
    DSC_TRY(dsc_op_tri_unpack(q, &packed, &whole));
    return dsc_op_gather(q, &whole, &rows, &rows, a);
}

/* Adds the damping of the item to the diagonal of a, with the inverse method only. */
static dsc_status add_damping(dsc_kfac *k, dsc_queue *q, const dsc_kfac_item *item, dsc_tensor *a) {
    if (k->options.method == DSC_KFAC_EIGEN)
        return DSC_OK;
    dsc_tensor damping = dsc_kfac_damping_of(k, item);
    return dsc_op_add_diagonal(q, &damping, a);
}

static dsc_status load_task(void *context, dsc_queue *q, dsc_tensor *a) {
    const task *t = context;
    DSC_TRY(unpack_item(t->k, q, t->layout, t->item, a));
    return add_damping(t->k, q, &t->layout->plan->items[t->item], a);
}

/* All items at once, except that blocks and factors in a half type go one by one through scratch memory. */
dsc_status dsc_kfac_load_items(dsc_kfac *k, dsc_queue *q, const dsc_kfac_layout *layout, const int64_t *items,
                               int64_t count) {
    int at_once = !layout->index.data && k->factor_dtype == k->dtype;
    for (int64_t i = 0; i < count; i++) {
        if (at_once)
            k->unpacks[i].p = dsc_kfac_factor_of(k, &layout->plan->items[items[i]])->average;
        else
            DSC_TRY(unpack_item(k, q, layout, items[i], &k->unpacks[i].a));
    }
    if (at_once)
        DSC_TRY(dsc_op_tri_unpack_batch(q, k->unpacks, count));
    for (int64_t i = 0; i < count; i++)
        DSC_TRY(add_damping(k, q, &layout->plan->items[items[i]], &k->unpacks[i].a));
    return DSC_OK;
}

/* Adds the copies that store a solved matrix and its eigenvalues to k->converts, of which *listed are in use.
 * Eigenvalues are clamped, because rounding may have made a 0 negative. */
static dsc_status store_item(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout, int64_t item,
                             const dsc_solve_item *s, int64_t *listed) {
    const dsc_kfac_basis *basis = &layout->bases[item];
    if (dsc_kfac_is_cut(k))
        return dsc_kfac_cut_store(k, q, layout, item, s, listed);
    k->converts[(*listed)++] = (dsc_convert_item){.src = s->a, .dst = basis->vectors};
    if (k->options.method == DSC_KFAC_EIGEN)
        k->converts[(*listed)++] = (dsc_convert_item){.src = s->v, .dst = basis->values, .clamp = 1};
    return DSC_OK;
}

/* Tries slower methods in turn after the batched solver failed on an item. If all fail, the earlier decomposition stays
 * in use. */
static dsc_status rescue_item(task *t, dsc_queue *q, dsc_solve_item *s, int64_t *listed) {
    dsc_kfac *k = t->k;
    const dsc_kfac_item *item = &t->layout->plan->items[t->item];
    int solved;
    double floor = 0;
    if (k->options.method == DSC_KFAC_INVERSE) {
        dsc_tensor damping = dsc_kfac_damping_of(k, item);
        DSC_TRY(dsc_tensor_download(q, &damping, sizeof floor, &floor));
        DSC_TRY(dsc_queue_sync(q));
    }
    DSC_TRY(dsc_solve_retry(k->solver, q, load_task, t, floor, &s->a, &s->v, &solved));
    k->counters[DSC_KFAC_RETRIED]++;
    if (solved)
        return store_item(k, q, t->layout, t->item, s, listed);
    const char *name = t->layout->plan->units[item->unit].name;
    const char *side = item->side == DSC_KFAC_A ? "A" : "G";
    k->counters[DSC_KFAC_FAILED]++;
    if (!k->decomposed || t->layout != &k->layouts[k->active])
        return DSC_FAIL(
            DSC_E_NUMERIC,
            "K-FAC: step %lld: factor %s of layer '%s' (%lld rows) cannot be decomposed, and there is "
            "no earlier decomposition of this kind: try a larger damping",
            (long long)k->step, side, name, (long long)item->n);
    dsc_log(DSC_LOG_WARNING,
            "K-FAC: step %lld: factor %s of layer '%s' (%lld rows) could not be decomposed; the earlier "
            "decomposition stays in use",
            (long long)k->step, side, name, (long long)item->n);
    return DSC_OK;
}

/* ---- a parcel ---- */

/* Computes 1/(vG vA' + damping) for the units of a parcel whose eigenvalues this rank has. */
static dsc_status form_outer(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout, const dsc_kfac_parcel *p) {
    dsc_tensor damping = dsc_tensor_slice(&k->numbers, DSC_KFAC_DAMPING, 1);
    for (int64_t i = p->first; i < p->first + p->count; i++) {
        const dsc_kfac_item *item = &layout->plan->items[layout->order[i]];
        const dsc_kfac_unit *u = &layout->plan->units[item->unit];
        if (item->side != DSC_KFAC_G)
            continue;
        const int64_t dim[2] = {u->g_n, u->a_n};
        int64_t used = 0;
        dsc_tensor out = dsc_kfac_carve(&layout->first, &used, 2, dim);
        DSC_TRY(dsc_op_outer_inverse(q, &damping, &layout->bases[layout->order[i]].values,
                                     &layout->bases[dsc_kfac_a_item(layout->plan, item->unit)].values, &out));
        DSC_TRY(dsc_op_convert(q, &out, &layout->outer[item->unit]));
    }
    return DSC_OK;
}

/* Converts inverses to packed triangles (pack 1), or back (pack 0). */
static dsc_status pack_parcel(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout, dsc_kfac_parcel *p,
                              int pack) {
    int64_t used = 0;
    for (int64_t i = p->first; i < p->first + p->count; i++) {
        dsc_tensor *vectors = &layout->bases[layout->order[i]].vectors;
        int64_t n = vectors->dim[0], count = n * (n + 1) / 2, at = 0;
        dsc_tensor triangle = dsc_kfac_carve(&p->packed, &used, 1, &count);
        if (k->inverse_dtype == k->dtype) {
            DSC_TRY(pack ? dsc_op_tri_pack(q, vectors, &triangle) : dsc_op_tri_unpack(q, &triangle, vectors));
            continue;
        }
        /* Packing is implemented for the arithmetic type only. */
        dsc_tensor full = dsc_kfac_carve(&k->gram, &at, 2, vectors->dim);
        dsc_tensor packed = dsc_tensor_slice(&k->packed, 0, count);
        DSC_TRY(dsc_op_convert(q, pack ? vectors : &triangle, pack ? &full : &packed));
        DSC_TRY(pack ? dsc_op_tri_pack(q, &full, &packed) : dsc_op_tri_unpack(q, &packed, &full));
        DSC_TRY(dsc_op_convert(q, pack ? &packed : &full, pack ? &triangle : vectors));
    }
    return DSC_OK;
}

/* Works in waves, each with as many items as fit into the scratch memory. */
dsc_status dsc_kfac_solve_items(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout, const int64_t *items,
                                int64_t count) {
    for (int64_t first = 0, next = first; first < count; first = next) {
        int64_t used = 0, used_values = 0, listed = 0;
        for (; next < count; next++) {
            dsc_solve_item *s = &k->solving[next - first];
            int64_t n = layout->plan->items[items[next]].n;
            const int64_t square[2] = {n, n};
            if (used > 0 && used + n * n > dsc_tensor_count(&k->solve))
                break;
            *s = (dsc_solve_item){.a = dsc_kfac_carve(&k->solve, &used, 2, square),
                                  .quick = k->options.refresh == DSC_KFAC_WARM};
            if (k->options.method == DSC_KFAC_EIGEN)
                s->v = dsc_kfac_carve(&k->solve_values, &used_values, 1, square);
            k->unpacks[next - first].a = s->a;
        }
        DSC_TRY(dsc_kfac_load_items(k, q, layout, items + first, next - first));
        DSC_TRY(k->solver->batch(q, k->solving, next - first, &k->work));
        for (int64_t i = first; i < next; i++) {
            task t = {k, layout, items[i]};
            dsc_solve_item *s = &k->solving[i - first];
            DSC_TRY(s->failed ? rescue_item(&t, q, s, &listed)
                              : store_item(k, q, layout, t.item, s, &listed));
        }
        DSC_TRY(dsc_op_convert_batch(q, k->converts, listed));
    }
    return DSC_OK;
}

/* Solves or refreshes the decompositions of a parcel of this rank. */
static dsc_status fill_parcel(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout, const dsc_kfac_parcel *p,
                              int warm) {
    if (warm)
        DSC_TRY(dsc_kfac_refresh_parcel(k, q, layout, p));
    else
        DSC_TRY(dsc_kfac_solve_items(k, q, layout, layout->order + p->first, p->count));
    return k->options.outer_product ? form_outer(k, q, layout, p) : DSC_OK;
}

dsc_status dsc_kfac_decompose_own(dsc_kfac *k, dsc_queue *q, int index) {
    dsc_kfac_layout *layout = &k->layouts[index];
    int warm = dsc_kfac_is_warm(k, index);
    double began = dsc_clock_now();
    dsc_status status = dsc_kfac_take_solve_space(k);
    if (warm && status == DSC_OK)
        status = dsc_kfac_refresh_begin(k, q, index);
    for (int64_t i = 0; i < layout->parcel_count && status == DSC_OK; i++)
        if (layout->parcels[i].turn.root == k->my_row)
            status = fill_parcel(k, q, layout, &layout->parcels[i], warm);
    dsc_kfac_return_solve_space(k);
    if (warm)
        dsc_kfac_refresh_end(k);
    k->solve_ms = 1000 * (dsc_clock_now() - began);
    return status;
}

/* ---- in the column ---- */

static dsc_status send_parcel(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout, dsc_kfac_parcel *p) {
    if (!k->column)
        return DSC_OK;
    dsc_tensor *message = p->packed.data ? &p->packed : &p->vectors;
    if (p->packed.data && p->turn.root == k->my_row)
        DSC_TRY(pack_parcel(k, q, layout, p, 1));
    DSC_TRY(dsc_comm_broadcast_begin(k->column, DSC_TRAFFIC_DECOMPOSITIONS, p->turn.root, message,
                                     &p->request[0]));
    if (p->values.data)
        DSC_TRY(dsc_comm_broadcast_begin(k->column, DSC_TRAFFIC_DECOMPOSITIONS, p->turn.root, &p->values,
                                         &p->request[1]));
    return dsc_kfac_upkeep_send(k, q, layout, p);
}

static dsc_status receive_parcels(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout) {
    for (int64_t i = 0; i < layout->parcel_count; i++) {
        dsc_kfac_parcel *p = &layout->parcels[i];
        for (int j = 0; j < DSC_KFAC_PARCEL_MESSAGES; j++)
            DSC_TRY(dsc_comm_wait(&p->request[j]));
        if (p->packed.data && p->turn.root != k->my_row)
            DSC_TRY(pack_parcel(k, q, layout, p, 0));
    }
    return dsc_kfac_upkeep_receive(k, q, layout);
}

dsc_status dsc_kfac_decompose_layout(dsc_kfac *k, dsc_queue *q, int index) {
    dsc_kfac_layout *layout = &k->layouts[index];
    dsc_status status = dsc_kfac_take_solve_space(k);
    int warm = dsc_kfac_is_warm(k, index), cut = dsc_kfac_is_cut(k);
    status = dsc_kfac_split_damping(k, q, status);
    if (status == DSC_OK)
        status = dsc_kfac_ekfac_keep(k, q);
    if (warm && status == DSC_OK)
        status = dsc_kfac_refresh_begin(k, q, index);
    k->solve_ms = 0;
    k->used_damping = k->hyper.damping;
    for (int64_t i = 0; i < layout->parcel_count; i++) {
        dsc_kfac_parcel *p = &layout->parcels[i];
        if (p->turn.root == k->my_row && status == DSC_OK) {
            double began = dsc_clock_now();
            status = fill_parcel(k, q, layout, p, warm);
            k->solve_ms += 1000 * (dsc_clock_now() - began);
        }
        if (!cut)
            DSC_TRY(send_parcel(k, q, layout, p)); /* even after a failure: the other ranks wait for it */
    }
    dsc_kfac_return_solve_space(k);
    if (warm)
        dsc_kfac_refresh_end(k);
    if (cut) /* sizes are known only after all items are decomposed */
        DSC_TRY(dsc_kfac_cut_share(k, q, status));
    for (int64_t i = 0; cut && i < layout->parcel_count; i++)
        DSC_TRY(send_parcel(k, q, layout, &layout->parcels[i]));
    DSC_TRY(receive_parcels(k, q, layout));
    DSC_TRY(dsc_comm_agree(k->control, status));
    for (int64_t l = 0; l < k->layer_count; l++)
        k->progress[l].next_ready = k->progress[l].contributed;
    return dsc_kfac_put_into_use(k, q, index);
}

dsc_status dsc_kfac_put_into_use(dsc_kfac *k, dsc_queue *q, int index) {
    DSC_TRY(dsc_kfac_ekfac_decomposed(k, q));
    k->decomposed = k->decomposed_now = 1;
    k->active = index;
    k->any_ready = 0;
    for (int64_t l = 0; l < k->layer_count; l++) {
        k->progress[l].ready = k->progress[l].next_ready;
        k->any_ready |= k->progress[l].ready;
    }
    return DSC_OK;
}

dsc_status dsc_kfac_share_decompositions(dsc_kfac *k, dsc_queue *q, int index) {
    dsc_kfac_layout *layout = &k->layouts[index];
    for (int64_t i = 0; i < layout->parcel_count; i++) {
        dsc_kfac_parcel *p = &layout->parcels[i];
        if (p->turn.root == k->my_row && k->options.outer_product)
            DSC_TRY(form_outer(k, q, layout, p));
        DSC_TRY(send_parcel(k, q, layout, p));
    }
    return receive_parcels(k, q, layout);
}
