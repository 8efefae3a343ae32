/* The error that refreshed bases leave in a unit's preconditioned gradient. P = M^-1 D should solve
 * G P A + damping P = D, with M^-1 the preconditioner that the bases make. Its error is about
 *
 *   eta = |M^-1 R| / |P|,  R = D - G P A - damping P
 *
 * Products before a division by eigenvalues are in float32: the division magnifies their errors. */
#include "kfac/refresh.h"

#include "base/error.h"

#include <math.h>

/* One product of every active unit. */
typedef void (*make_product)(const dsc_refresh_wave *w, const dsc_refresh_unit *u, dsc_gemm_item *out);

static dsc_status multiply(dsc_refresh_wave *w, make_product make) {
    int64_t count = 0;
    for (int64_t i = 0; i < w->unit_count; i++)
        if (w->units[i].active)
            make(w, &w->units[i], &w->gemms[count++]);
    return dsc_op_gemm_batch(w->queue, w->gemms, count);
}

/* first = D QA, first = R QA */
static void d_qa(const dsc_refresh_wave *w, const dsc_refresh_unit *u, dsc_gemm_item *out) {
    *out = (dsc_gemm_item){.alpha = 1, .a = u->d, .b = w->items[u->a].q, .c = u->first};
}

static void r_qa(const dsc_refresh_wave *w, const dsc_refresh_unit *u, dsc_gemm_item *out) {
    *out = (dsc_gemm_item){.alpha = 1, .a = u->r, .b = w->items[u->a].q, .c = u->first};
}

/* second = QG' first */
static void qg_first(const dsc_refresh_wave *w, const dsc_refresh_unit *u, dsc_gemm_item *out) {
    *out = (dsc_gemm_item){.trans_a = 1, .alpha = 1, .a = w->items[u->g].q, .b = u->first, .c = u->second};
}

/* first = QG second */
static void qg_second(const dsc_refresh_wave *w, const dsc_refresh_unit *u, dsc_gemm_item *out) {
    *out = (dsc_gemm_item){.fast = 1, .alpha = 1, .a = w->items[u->g].q, .b = u->second, .c = u->first};
}

/* P = first QA', R = first QA' */
static void p_from_first(const dsc_refresh_wave *w, const dsc_refresh_unit *u, dsc_gemm_item *out) {
    *out =
        (dsc_gemm_item){.trans_b = 1, .fast = 1, .alpha = 1, .a = u->first, .b = w->items[u->a].q, .c = u->p};
}

static void r_from_first(const dsc_refresh_wave *w, const dsc_refresh_unit *u, dsc_gemm_item *out) {
    *out =
        (dsc_gemm_item){.trans_b = 1, .fast = 1, .alpha = 1, .a = u->first, .b = w->items[u->a].q, .c = u->r};
}

/* first = G P;  R -= first A */
static void g_p(const dsc_refresh_wave *w, const dsc_refresh_unit *u, dsc_gemm_item *out) {
    *out = (dsc_gemm_item){.alpha = 1, .a = w->items[u->g].a, .b = u->p, .c = u->first};
}

static void first_a(const dsc_refresh_wave *w, const dsc_refresh_unit *u, dsc_gemm_item *out) {
    *out = (dsc_gemm_item){.alpha = -1, .beta = 1, .a = u->first, .b = w->items[u->a].a, .c = u->r};
}

/* P from D, or R from R, through the bases. */
static dsc_status precondition(dsc_refresh_wave *w, make_product in, make_product out) {
    dsc_tensor damping = dsc_tensor_slice(&w->k->numbers, DSC_KFAC_DAMPING, 1);
    int64_t count = 0;
    DSC_TRY(multiply(w, in));
    DSC_TRY(multiply(w, qg_first));
    for (int64_t i = 0; i < w->unit_count; i++) {
        const dsc_refresh_unit *u = &w->units[i];
        if (u->active)
            w->divides[count++] = (dsc_divide_item){w->items[u->g].v, w->items[u->a].v, u->second};
    }
    DSC_TRY(dsc_op_divide_batch(w->queue, &damping, w->divides, count));
    DSC_TRY(multiply(w, qg_second));
    return multiply(w, out);
}

/* |M^-1 R|^2, |P|^2 and |D|^2 of every active unit, and eta from them. */
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
        /* Where P is finite and M^-1 R is not, the factors themselves are not finite, which tells nothing
         * about the bases. */
        u->judged = isfinite(norms[2]) && norms[2] > 0 && (isfinite(norms[0]) || !isfinite(norms[1]));
        u->eta = u->judged ? sqrt(norms[0]) / sqrt(norms[1]) : NAN;
    }
    return DSC_OK;
}

/* D of the active units. */
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

dsc_status dsc_refresh_judge(dsc_refresh_wave *w) {
    int64_t count = 0;
    for (int64_t i = 0; i < w->unit_count; i++)
        count += w->units[i].active;
    if (count == 0)
        return DSC_OK;
    DSC_TRY(gather_gradients(w));
    DSC_TRY(precondition(w, d_qa, p_from_first));
    DSC_TRY(multiply(w, g_p));
    for (int64_t i = 0; i < w->unit_count; i++)
        if (w->units[i].active)
            DSC_TRY(dsc_op_convert(w->queue, &w->units[i].d, &w->units[i].r));
    DSC_TRY(dsc_op_axpby(w->queue, -w->k->hyper.damping, &w->ps, 1, &w->rs));
    DSC_TRY(multiply(w, first_a));
    DSC_TRY(precondition(w, r_qa, r_from_first));
    return read_norms(w);
}
