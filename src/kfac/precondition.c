/* Preconditioning: D -> P for the units of the own column, P along the rows, one clip for all.
 *
 * Every rank then has all P, sums <P, D> over all units in the same order, and writes nu P over the
 * gradients. */
#include "kfac/internal.h"

#include "base/error.h"

#include <math.h>

enum { PRODUCTS = 3 }; /* of a unit: <P, D>, <P, P>, <D, D> */

static int ran(const dsc_kfac *k, int64_t unit) {
    return k->passes_done[k->layouts[0].plan->units[unit].layer] > 0;
}

/* Gradients with their bias as last column, of all units: the clip needs every D. */
static dsc_status join_gradients(dsc_kfac *k, dsc_queue *q) {
    for (int64_t u = 0; u < k->unit_count; u++) {
        dsc_kfac_member *m = &k->members[u];
        if (m->bias.data)
            DSC_TRY(dsc_op_join(q, &m->weight, &m->bias, &m->d));
    }
    return DSC_OK;
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
        DSC_TRY(dsc_queue_sync(q));
        DSC_TRY(dsc_comm_broadcast_begin(k->row, DSC_TRAFFIC_PRECONDITIONED, b->column, &b->message,
                                         &b->request));
    }
    for (int64_t i = 0; i < layout->batch_count; i++)
        DSC_TRY(dsc_comm_wait(&layout->batches[i].request));
    return DSC_OK;
}

/* ---- clip ---- */

static dsc_status multiply_members(dsc_kfac *k, dsc_queue *q) {
    for (int64_t u = 0; u < k->unit_count; u++) {
        const dsc_kfac_member *m = &k->members[u];
        const dsc_tensor *const pairs[PRODUCTS][2] = {{&m->p, &m->d}, {&m->p, &m->p}, {&m->d, &m->d}};
        int wanted = !ran(k, u) ? 0 : k->decomposed_now ? PRODUCTS : 1; /* the rest is for reports */
        for (int i = 0; i < PRODUCTS; i++) {
            dsc_tensor out = dsc_tensor_slice(&k->products, i * k->unit_count + u, 1);
            if (i < wanted)
                DSC_TRY(dsc_op_dot(q, pairs[i][0], pairs[i][1], 0, &out));
            else if (i == 0 || k->decomposed_now)
                DSC_TRY(dsc_op_fill(q, 0, &out));
        }
    }
    return DSC_OK;
}

static dsc_status find_nu(dsc_kfac *k, dsc_queue *q) {
    dsc_tensor inner = dsc_tensor_slice(&k->products, 0, k->unit_count);
    dsc_tensor limits = dsc_tensor_slice(&k->numbers, DSC_KFAC_RATE, 2);
    DSC_TRY(multiply_members(k, q));
    if (k->decomposed_now)
        DSC_TRY(dsc_tensor_download(q, &k->products, dsc_tensor_bytes(&k->products), k->report_products));
    DSC_TRY(dsc_op_dot(q, &inner, &k->ones, 0, &k->sum));
    DSC_TRY(dsc_op_kl_clip(q, &k->sum, &limits, &k->nu_tensor));
    DSC_TRY(dsc_tensor_download(q, &k->nu_tensor, sizeof k->nu, &k->nu));
    DSC_TRY(dsc_queue_sync(q));
    if (!isfinite(k->nu))
        return DSC_FAIL(
            DSC_E_NUMERIC,
            "K-FAC: step %lld: a gradient or its preconditioned form is not finite; the gradients "
            "were left alone",
            (long long)k->step);
    return DSC_OK;
}

static dsc_status write_gradients(dsc_kfac *k, dsc_queue *q) {
    if (k->nu != 1)
        DSC_TRY(dsc_op_scale_by(q, &k->nu_tensor, &k->messages));
    for (int64_t u = 0; u < k->unit_count; u++) {
        dsc_kfac_member *m = &k->members[u];
        if (!ran(k, u))
            continue;
        if (m->bias.data)
            DSC_TRY(dsc_op_split(q, &m->p, &m->weight, &m->bias));
        else
            DSC_TRY(dsc_op_convert(q, &m->p, &m->weight));
    }
    return DSC_OK;
}

dsc_status dsc_kfac_precondition(dsc_kfac *k, dsc_queue *q) {
    if (k->unit_count == 0)
        return DSC_OK;
    DSC_TRY(join_gradients(k, q));
    DSC_TRY(make_all(k, q, &k->layouts[k->active]));
    DSC_TRY(find_nu(k, q));
    return write_gradients(k, q);
}
