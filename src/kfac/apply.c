/* Preconditioning: computes P from D for the units of this rank's column, broadcasts it along the rows of the grid, and
 * clips all of it.
 *
 *   eigen     P = QG [(QG' D QA) / (vG vA' + damping)] QA'
 *             (with EKFAC, s in place of vG vA': ekfac.c)
 *   inverse   P = G^-1 D A^-1   (the inverses already include the damping)
 *   clip      gradients <- nu P,  nu = min(1, sqrt(kl_clip / |lr^2 sum <P, D>|))
 *
 * After the broadcasts every rank has P of all units and adds up <P, D> in the same order, so that nu is bitwise
 * identical everywhere. */
#include "kfac/internal.h"

#include "base/error.h"

#include <math.h>

/* Computes P of one batch of units. The same product of all its cells runs as one batch. A cell is a whole unit, or a
 * pair of diagonal blocks, whose piece of D is gathered before the products and whose piece of P is scattered after
 * them. */
static dsc_status precondition_batch(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout,
                                     const dsc_kfac_batch *b) {
    int64_t first = b->first_cell, count = b->cell_count;
    dsc_kfac_cell *cells = layout->cells + first;
    dsc_tensor damping = dsc_tensor_slice(&k->numbers, DSC_KFAC_DAMPING, 1);
    if (dsc_kfac_is_cut(k))
        return dsc_kfac_cut_precondition(k, q, layout, b);
    for (int64_t i = b->first_copy; i < b->first_copy + b->copy_count; i++)
        DSC_TRY(dsc_op_convert(q, &layout->copies[i].src, &layout->copies[i].dst));
    for (int64_t i = 0; i < count; i++)
        if (cells[i].rows.data)
            DSC_TRY(dsc_op_gather(q, &k->members[cells[i].unit].gradient.d, &cells[i].rows, &cells[i].columns,
                                  &cells[i].d));
    DSC_TRY(dsc_op_gemm_batch(q, layout->gemms[0] + first, count));
    DSC_TRY(dsc_op_gemm_batch(q, layout->gemms[1] + first, count));
    if (k->options.method == DSC_KFAC_EIGEN) {
        if (k->options.ekfac != DSC_KFAC_EKFAC_OFF)
            DSC_TRY(dsc_kfac_ekfac_divide(k, q, layout, b));
        else if (!k->options.outer_product)
            DSC_TRY(dsc_op_divide_batch(q, &damping, layout->divides + first, count));
        for (int64_t i = 0; i < count && k->options.outer_product; i++) {
            dsc_tensor outer = layout->outer[cells[i].unit], full = layout->gemms[0][first + i].c;
            if (k->inverse_dtype !=
                k->dtype) { /* the first product is no longer needed: its memory takes the converted copy */
                DSC_TRY(dsc_op_convert(q, &outer, &full));
                outer = full;
            }
            DSC_TRY(dsc_op_multiply(q, &outer, &layout->divides[first + i].x));
        }
        DSC_TRY(dsc_op_gemm_batch(q, layout->gemms[2] + first, count));
        DSC_TRY(dsc_op_gemm_batch(q, layout->gemms[3] + first, count));
    }
    for (int64_t i = 0; i < count; i++)
        if (cells[i].rows.data)
            DSC_TRY(dsc_op_scatter(q, &cells[i].p, &cells[i].rows, &cells[i].columns,
                                   &k->members[cells[i].unit].p));
    return DSC_OK;
}

/* Computes <P, D> of every unit and, in a step that decomposed, also <P, P> and <D, D>. If batches share the memory of
 * D, only those of the units of batch b; the first batch sets all others to 0. Otherwise b is NULL. */
static dsc_status multiply(dsc_kfac *k, dsc_queue *q, const dsc_kfac_layout *layout,
                           const dsc_kfac_batch *b) {
    int64_t n = k->unit_count, count = b ? b->count : n;
    dsc_tensor inner = dsc_tensor_slice(&k->products, 0, n);
    dsc_tensor norms = dsc_tensor_slice(&k->products, 2 * n, 2 * n);
    const int64_t none[2] = {0, 0};
    dsc_tensor empty = dsc_tensor_view(k->device, NULL, k->dtype, 2, none);
    for (int64_t i = 0; b && i < 3 * n; i++)
        k->dots[i] = (dsc_dot_item){empty, empty};
    for (int64_t i = 0; i < count; i++) {
        int64_t u = b ? layout->units[b->first + i] : i;
        const dsc_tensor *p = &k->members[u].p, *d = &k->members[u].gradient.d;
        k->dots[u] = (dsc_dot_item){*p, *d};
        k->dots[n + u] = (dsc_dot_item){*p, *p};
        k->dots[2 * n + u] = (dsc_dot_item){*d, *d};
    }
    if (!b) {
        if (k->decomposed_now)
            DSC_TRY(dsc_op_dot_batch(q, k->dots + n, 2 * n, &norms));
        return dsc_op_dot_batch(q, k->dots, n, &inner);
    }
    int64_t all = k->decomposed_now ? 3 * n : n;
    dsc_tensor partial = dsc_tensor_slice(&k->partial, 0, all);
    dsc_tensor of_inner = dsc_tensor_slice(&k->partial, 0, n);
    double keep = b == layout->batches ? 0 : 1;
    DSC_TRY(dsc_op_dot_batch(q, k->dots, all, &partial));
    if (k->decomposed_now) {
        dsc_tensor of_norms = dsc_tensor_slice(&k->partial, n, 2 * n);
        DSC_TRY(dsc_op_axpby(q, 1, &of_norms, keep, &norms));
    }
    return dsc_op_axpby(q, 1, &of_inner, keep, &inner);
}

/* Computes nu from the sum of <P, D>, to which units that take no part contribute 0. A step that decomposed keeps all
 * products for reports. */
static dsc_status find_nu(dsc_kfac *k, dsc_queue *q) {
    int64_t n = k->unit_count;
    dsc_tensor inner = dsc_tensor_slice(&k->products, 0, n), kept = dsc_tensor_slice(&k->products, n, n);
    for (int64_t u = 0; u < n; u++) {
        const int64_t places[] = {u, 2 * n + u, 3 * n + u};
        for (int i = 0; i < (k->decomposed_now ? 3 : 1) && !dsc_kfac_takes_part(k, u); i++) {
            dsc_tensor out = dsc_tensor_slice(&k->products, places[i], 1);
            DSC_TRY(dsc_op_fill(q, 0, &out));
        }
    }
    if (k->decomposed_now)
        DSC_TRY(dsc_op_convert(q, &inner, &kept));
    DSC_TRY(dsc_op_dot(q, &inner, &k->ones, 0, &k->sum));
    DSC_TRY(dsc_kfac_norm_solve(k, q, &k->sum));
    DSC_TRY(dsc_kfac_tables_solve(k, q, &k->sum));
    DSC_TRY(dsc_kfac_clip_find(k, q));
    if (!dsc_device_is_host(k->device))
        return DSC_OK; /* a GPU does not wait for nu: it leaves the gradients unchanged if nu is not finite */
    DSC_TRY(dsc_tensor_download(q, &k->nu_tensor, sizeof k->nu, &k->nu));
    if (!isfinite(k->nu))
        return DSC_FAIL(
            DSC_E_NUMERIC,
            "K-FAC: step %lld: a gradient or its preconditioned form is not finite; the gradients "
            "were left alone",
            (long long)k->step);
    return DSC_OK;
}

/* Gathers D of those units of a batch that have a gradient. b NULL: of all units. */
static dsc_status gather_gradients(dsc_kfac *k, dsc_queue *q, const dsc_kfac_layout *layout,
                                   const dsc_kfac_batch *b) {
    int64_t count = 0;
    for (int64_t i = 0; i < (b ? b->count : k->unit_count); i++) {
        int64_t u = b ? layout->units[b->first + i] : i;
        if (k->members[u].gathered && dsc_kfac_has_gradient(k, u))
            k->joins[count++] = k->members[u].gradient;
    }
    return dsc_op_join_batch(q, k->joins, count);
}

static dsc_status precondition_batches(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout) {
    int shares = dsc_kfac_shares_d(k);
    if (!shares) /* the clip needs D of every unit */
        DSC_TRY(gather_gradients(k, q, layout, NULL));
    for (int64_t i = 0; i < layout->batch_count; i++) {
        dsc_kfac_batch *b = &layout->batches[i];
        if (shares)
            DSC_TRY(gather_gradients(k, q, layout, b));
        if (b->turn.root == k->my_column)
            DSC_TRY(precondition_batch(k, q, layout, b));
        if (shares)
            DSC_TRY(multiply(k, q, layout, b));
        if (k->row)
            DSC_TRY(dsc_comm_broadcast_begin(k->row, DSC_TRAFFIC_PRECONDITIONED, b->turn.root, &b->message,
                                             &b->request));
    }
    for (int64_t i = 0; i < layout->batch_count; i++)
        DSC_TRY(dsc_comm_wait(&layout->batches[i].request));
    return shares ? DSC_OK : multiply(k, q, layout, NULL);
}

dsc_status dsc_kfac_precondition(dsc_kfac *k, dsc_queue *q) {
    if (k->unit_count == 0)
        return DSC_OK;
    DSC_TRY(precondition_batches(k, q, &k->layouts[k->active]));
    DSC_TRY(find_nu(k, q));
    DSC_TRY(dsc_kfac_norm_write(k, q));
    DSC_TRY(dsc_kfac_tables_write(k, q));
    return dsc_kfac_clip_write(k, q);
}
