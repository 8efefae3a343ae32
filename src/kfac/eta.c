/* Estimates the error that refreshed bases leave in a unit's preconditioned gradient. P = M^-1 D should solve
 * G P A + damping P = D, where M^-1 is the preconditioner formed from the bases. Its relative error is about
 *
 *   eta = |M^-1 R| / |P|,  R = D - G P A - damping P
 *
 * Products before a division by eigenvalues are in float32, because the division magnifies their errors. */
#include "kfac/refresh.h"

#include "base/error.h"

#include <math.h>

/* Bases with residuals up to this are accepted without computing eta, which costs as much as the preconditioning of
 * three steps. It is half of the limit for bases that cannot be judged by eta. */
static const double sure_residual = 0.1;

/* Multiplies D (residual 0) or R (residual 1) of the active units by M^-1; the results are P, or overwrite R. */
static dsc_status precondition(dsc_refresh_wave *w, int residual) {
    dsc_tensor damping = dsc_tensor_slice(&w->k->numbers, DSC_KFAC_DAMPING, 1);
    int64_t count = 0;
    for (int64_t i = 0; i < w->unit_count; i++) {
        const dsc_refresh_unit *u = &w->units[i];
        const dsc_refresh_item *a = &w->items[u->a], *g = &w->items[u->g];
        int64_t used = 0;
        if (!u->active)
            continue;
        dsc_kfac_product *p = &w->products[count++];
        *p = (dsc_kfac_product){.qa = a->q,
                                .qg = g->q,
                                .va = a->v,
                                .vg = g->v,
                                .rest_a = a->rest,
                                .rest_g = g->rest,
                                .x = residual ? u->r : u->d,
                                .out = residual ? u->r : u->p};
        dsc_kfac_product_carve(p, a->rest.data != NULL, g->rest.data != NULL, &u->space, &used);
    }
    return dsc_kfac_multiply(w->queue, &damping, w->products, count, &w->lists);
}

/* Computes R = D - damping P - G P A. */
static dsc_status find_residuals(dsc_refresh_wave *w) {
    dsc_gemm_item *gemms = w->lists.gemms;
    dsc_convert_item *copies = w->k->converts;
    int64_t count = 0;
    for (int64_t i = 0; i < w->unit_count; i++) {
        const dsc_refresh_unit *u = &w->units[i];
        dsc_tensor product = u->p;
        if (!u->active)
            continue;
        product.data = u->space.data;
        copies[count] = (dsc_convert_item){.src = u->d, .dst = u->r};
        gemms[count++] = (dsc_gemm_item){.alpha = 1, .a = w->items[u->g].a, .b = u->p, .c = product};
    }
    DSC_TRY(dsc_op_convert_batch(w->queue, copies, count));
    DSC_TRY(dsc_op_gemm_batch(w->queue, gemms, count));
    DSC_TRY(dsc_op_axpby(w->queue, -w->k->hyper.damping, &w->ps, 1, &w->rs));
    count = 0;
    for (int64_t i = 0; i < w->unit_count; i++) {
        const dsc_refresh_unit *u = &w->units[i];
        if (!u->active)
            continue;
        gemms[count] =
            (dsc_gemm_item){.alpha = -1, .beta = 1, .a = gemms[count].c, .b = w->items[u->a].a, .c = u->r};
        count++;
    }
    return dsc_op_gemm_batch(w->queue, gemms, count);
}

/* Computes |M^-1 R|^2, |P|^2 and |D|^2 of every active unit, and eta from them. */
static dsc_status read_norms(dsc_refresh_wave *w) {
    int64_t count = 0;
    for (int64_t i = 0; i < w->unit_count; i++) {
        const dsc_refresh_unit *u = &w->units[i];
        if (!u->active)
            continue;
        w->dots[count++] = (dsc_dot_item){u->r, u->r};
        w->dots[count++] = (dsc_dot_item){u->p, u->p};
        w->dots[count++] = (dsc_dot_item){u->d, u->d};
    }
    dsc_tensor out = dsc_tensor_slice(&w->results, 0, count);
    DSC_TRY(dsc_op_dot_batch(w->queue, w->dots, count, &out));
    DSC_TRY(dsc_tensor_download(w->queue, &out, dsc_tensor_bytes(&out), w->host));
    DSC_TRY(dsc_queue_sync(w->queue));
    count = 0;
    for (int64_t i = 0; i < w->unit_count; i++) {
        dsc_refresh_unit *u = &w->units[i];
        if (!u->active)
            continue;
        const double *norms = w->host + 3 * count++;
        /* If P is finite and M^-1 R is not, the factors themselves are not finite, which says nothing about the
         * bases. */
        u->judged = isfinite(norms[2]) && norms[2] > 0 && (isfinite(norms[0]) || !isfinite(norms[1]));
        u->eta = u->judged ? sqrt(norms[0]) / sqrt(norms[1]) : NAN;
    }
    return DSC_OK;
}

/* Gathers D of the active units. */
static dsc_status gather_gradients(dsc_refresh_wave *w) {
    int64_t count = 0;
    for (int64_t i = 0; i < w->unit_count; i++) {
        dsc_refresh_unit *u = &w->units[i];
        const dsc_kfac_member *m = &w->k->members[u->unit];
        u->d = m->gathered ? u->joined : m->gradient.d;
        if (!u->active || !m->gathered)
            continue;
        w->k->joins[count] = m->gradient;
        w->k->joins[count++].d = u->joined;
    }
    return dsc_op_join_batch(w->queue, w->k->joins, count);
}

/* Returns 1 unless the residuals alone show that the unit's bases are accurate. */
static int is_doubtful(const dsc_refresh_wave *w, const dsc_refresh_unit *u) {
    const dsc_refresh_item *a = &w->items[u->a], *g = &w->items[u->g];
    return (a->warm && !(a->residual <= sure_residual)) || (g->warm && !(g->residual <= sure_residual));
}

dsc_status dsc_refresh_judge(dsc_refresh_wave *w) {
    int64_t count = 0;
    for (int64_t i = 0; i < w->unit_count; i++) {
        dsc_refresh_unit *u = &w->units[i];
        u->judged = 0;
        u->active = u->active && is_doubtful(w, u);
        count += u->active;
    }
    if (count == 0)
        return DSC_OK;
    DSC_TRY(gather_gradients(w));
    DSC_TRY(precondition(w, 0));
    DSC_TRY(find_residuals(w));
    DSC_TRY(precondition(w, 1));
    return read_norms(w);
}
