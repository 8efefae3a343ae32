/* Preconditioning: D -> P for the units of the own column, P along the rows, one clip for all.
 *
 * Every rank then has all P, sums <P, D> over all units in the same order, and writes nu P over the
 * gradients. */
#include "kfac/internal.h"

#include "base/error.h"

#include <math.h>

static int ran(const dsc_kfac *k, int64_t unit) {
    return k->passes_done[k->layouts[0].plan->units[unit].layer] > 0;
}

/* Pieces of D for blocks, and pieces of P back. */
static dsc_status cut_pieces(dsc_kfac *k, dsc_queue *q, const dsc_kfac_batch *b, dsc_kfac_cell *cells) {
    for (int64_t i = b->first_cell; i < b->first_cell + b->cell_count; i++) {
        dsc_kfac_cell *c = &cells[i];
        if (c->rows.data)
            DSC_TRY(dsc_op_gather(q, &k->members[c->unit].d, &c->rows, &c->columns, &c->d));
    }
    return DSC_OK;
}

static dsc_status join_pieces(dsc_kfac *k, dsc_queue *q, const dsc_kfac_batch *b,
                              const dsc_kfac_cell *cells) {
    for (int64_t i = b->first_cell; i < b->first_cell + b->cell_count; i++) {
        const dsc_kfac_cell *c = &cells[i];
        if (c->rows.data)
            DSC_TRY(dsc_op_scatter(q, &c->p, &c->rows, &c->columns, &k->members[c->unit].p));
    }
    return DSC_OK;
}

/* Between the products: division by vG vA' + damping, or the outer product made of it. */
static dsc_status divide(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout, const dsc_kfac_batch *b) {
    dsc_tensor damping = dsc_tensor_slice(&k->numbers, DSC_KFAC_DAMPING, 1);
    if (!k->options.outer_product)
        return dsc_op_divide_batch(q, &damping, layout->divides + b->first_cell, b->cell_count);
    for (int64_t i = b->first_cell; i < b->first_cell + b->cell_count; i++) {
        dsc_tensor outer = layout->outer[layout->cells[i].unit], second = layout->divides[i].x;
        if (k->inverse_dtype != k->dtype) {
            /* p is not written yet: room for the outer product in full */
            dsc_tensor full = layout->cells[i].p;
            DSC_TRY(dsc_op_convert(q, &outer, &full));
            outer = full;
        }
        DSC_TRY(dsc_op_multiply(q, &outer, &second));
    }
    return DSC_OK;
}

static dsc_status precondition_batch(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout,
                                     const dsc_kfac_batch *b) {
    int64_t first = b->first_cell, count = b->cell_count;
    for (int64_t i = b->first_load; i < b->first_load + b->load_count; i++)
        DSC_TRY(dsc_op_convert(q, &layout->loaded[i].stored, &layout->loaded[i].used));
    DSC_TRY(cut_pieces(k, q, b, layout->cells));
    DSC_TRY(dsc_op_gemm_batch(q, layout->gemms[0] + first, count));
    DSC_TRY(dsc_op_gemm_batch(q, layout->gemms[1] + first, count));
    if (k->options.method == DSC_KFAC_EIGEN) {
        DSC_TRY(divide(k, q, layout, b));
        DSC_TRY(dsc_op_gemm_batch(q, layout->gemms[2] + first, count));
        DSC_TRY(dsc_op_gemm_batch(q, layout->gemms[3] + first, count));
    }
    return join_pieces(k, q, b, layout->cells);
}

/* ---- along the rows ---- */

static dsc_status make_all(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout) {
    for (int64_t i = 0; i < layout->batch_count; i++) {
        dsc_kfac_batch *b = &layout->batches[i];
        if (b->column == k->my_column)
            DSC_TRY(precondition_batch(k, q, layout, b));
        if (!k->row)
            continue;
        DSC_TRY(dsc_comm_broadcast_begin(k->row, DSC_TRAFFIC_PRECONDITIONED, b->column, &b->message,
                                         &b->request));
    }
    for (int64_t i = 0; i < layout->batch_count; i++)
        DSC_TRY(dsc_comm_wait(&layout->batches[i].request));
    return DSC_OK;
}

/* ---- clip ---- */

/* <P, D> of every unit; where it decomposed also <P, P> and <D, D>, for reports, which keep them all. */
static dsc_status multiply_members(dsc_kfac *k, dsc_queue *q) {
    int64_t n = k->unit_count, wanted = k->decomposed_now ? 3 : 1;
    for (int64_t u = 0; u < n; u++) {
        const dsc_kfac_member *m = &k->members[u];
        k->dots[u] = (dsc_dot_item){m->p, m->d};
        k->dots[n + u] = (dsc_dot_item){m->p, m->p};
        k->dots[2 * n + u] = (dsc_dot_item){m->d, m->d};
    }
    if (k->decomposed_now) {
        dsc_tensor norms = dsc_tensor_slice(&k->products, 2 * n, 2 * n);
        DSC_TRY(dsc_op_dot_batch(q, k->dots + n, 2 * n, &norms));
    }
    dsc_tensor inner = dsc_tensor_slice(&k->products, 0, n), kept = dsc_tensor_slice(&k->products, n, n);
    DSC_TRY(dsc_op_dot_batch(q, k->dots, n, &inner));
    for (int64_t u = 0; u < n && !dsc_kfac_all_ran(k); u++)
        for (int64_t i = 0; i < wanted && !ran(k, u); i++) {
            dsc_tensor out = dsc_tensor_slice(&k->products, (i > 0 ? (i + 1) * n : 0) + u, 1);
            DSC_TRY(dsc_op_fill(q, 0, &out));
        }
    return k->decomposed_now ? dsc_op_convert(q, &inner, &kept) : DSC_OK;
}

static dsc_status find_nu(dsc_kfac *k, dsc_queue *q) {
    dsc_tensor inner = dsc_tensor_slice(&k->products, 0, k->unit_count);
    dsc_tensor limits = dsc_tensor_slice(&k->numbers, DSC_KFAC_RATE, 2);
    DSC_TRY(multiply_members(k, q));
    DSC_TRY(dsc_op_dot(q, &inner, &k->ones, 0, &k->sum));
    DSC_TRY(dsc_op_kl_clip(q, &k->sum, &limits, &k->nu_tensor));
    if (!dsc_device_is_host(k->device))
        return DSC_OK; /* nobody waits for it; gradients are left alone where it is not finite */
    DSC_TRY(dsc_tensor_download(q, &k->nu_tensor, sizeof k->nu, &k->nu));
    if (!isfinite(k->nu))
        return DSC_FAIL(
            DSC_E_NUMERIC,
            "K-FAC: step %lld: a gradient or its preconditioned form is not finite; the gradients "
            "were left alone",
            (long long)k->step);
    return DSC_OK;
}

static dsc_status write_gradients(dsc_kfac *k, dsc_queue *q) {
    int64_t count = 0;
    for (int64_t u = 0; u < k->unit_count; u++) {
        const dsc_kfac_member *m = &k->members[u];
        if (ran(k, u))
            k->writes[count++] = (dsc_join_item){m->weight, m->bias, m->p};
    }
    return dsc_op_split_batch(q, &k->nu_tensor, k->writes, count);
}

dsc_status dsc_kfac_precondition(dsc_kfac *k, dsc_queue *q) {
    if (k->unit_count == 0)
        return DSC_OK;
    DSC_TRY(dsc_op_join_batch(q, k->joins, k->join_count)); /* of all units: the clip needs every D */
    DSC_TRY(make_all(k, q, &k->layouts[k->active]));
    DSC_TRY(find_nu(k, q));
    return write_gradients(k, q);
}
