/* Multiplies matrices by the inverses of damped Kronecker products, for many units at once. With bases of all
 * eigenvectors
 *
 *   out = QG [(QG' x QA) / (vG vA' + d)] QA'
 *
 * A basis may keep only the leading vectors and the mean r of the other eigenvalues: A = QA vA QA' + rA (I - QA QA').
 * With w11 = 1/(vG vA' + d), w10 = 1/(vG rA + d), w01 = 1/(rG vA' + d), w00 = 1/(rG rA + d) then
 *
 *   out = w00 x + QG [(w10 - w00) o (QG' x)] + [(w01 - w00) o (x QA)] QA'
 *         + QG [(w11 - w10 - w01 + w00) o (QG' x QA)] QA'
 *
 * where w10 and w00 are 0 if A is whole, and w01 and w00 if G is. Names below: u = x QA, t = QG' x, s = QG' x QA.
 *
 * Products after the division may be in TF32; so may those before it if a basis is cut, because the cut costs more
 * precision than they do (docs/decisions/cut-products.md). */
#include "base/error.h"
#include "kfac/refresh.h"

static int cuts_a(const dsc_kfac_product *p) {
    return p->rest_a.data != NULL;
}

static int cuts_g(const dsc_kfac_product *p) {
    return p->rest_g.data != NULL;
}

void dsc_kfac_product_carve(dsc_kfac_product *p, int cut_a, int cut_g, const dsc_tensor *block,
                            int64_t *used) {
    const int64_t u[2] = {p->qg.dim[0], p->qa.dim[1]}, t[2] = {p->qg.dim[1], p->qa.dim[0]},
                  s[2] = {p->qg.dim[1], p->qa.dim[1]};
    if (!cut_a || cut_g)
        p->u = dsc_kfac_carve(block, used, 2, u);
    if (cut_a)
        p->t = dsc_kfac_carve(block, used, 2, t);
    if (cut_a || cut_g)
        p->s = dsc_kfac_carve(block, used, 2, s);
    else
        p->s = p->out;
}

/* Lists the products of one stage, which do not depend on each other; returns how many there are. */
static int add_stage(const dsc_kfac_product *p, int stage, dsc_gemm_item *out) {
    int a = cuts_a(p), g = cuts_g(p), fast = a || g, count = 0;
    switch (stage) {
    case 0:
        if (!a || g)
            out[count++] = (dsc_gemm_item){.fast = fast, .alpha = 1, .a = p->x, .b = p->qa, .c = p->u};
        if (a)
            out[count++] =
                (dsc_gemm_item){.trans_a = 1, .fast = fast, .alpha = 1, .a = p->qg, .b = p->x, .c = p->t};
        break;
    case 1:
        if (a && !g)
            out[count++] = (dsc_gemm_item){.fast = fast, .alpha = 1, .a = p->t, .b = p->qa, .c = p->s};
        else
            out[count++] =
                (dsc_gemm_item){.trans_a = 1, .fast = fast, .alpha = 1, .a = p->qg, .b = p->u, .c = p->s};
        break;
    case 2:
        if (a && !g)
            out[count++] = (dsc_gemm_item){
                .trans_b = 1, .fast = 1, .alpha = 1, .beta = 1, .a = p->s, .b = p->qa, .c = p->t};
        else
            out[count++] =
                (dsc_gemm_item){.fast = 1, .alpha = 1, .beta = g, .a = p->qg, .b = p->s, .c = p->u};
        break;
    case 3:
        if (a)
            out[count++] =
                (dsc_gemm_item){.fast = 1, .alpha = 1, .beta = g, .a = p->qg, .b = p->t, .c = p->out};
        else
            out[count++] =
                (dsc_gemm_item){.trans_b = 1, .fast = 1, .alpha = 1, .a = p->u, .b = p->qa, .c = p->out};
        break;
    default:
        if (a && g)
            out[count++] = (dsc_gemm_item){
                .trans_b = 1, .fast = 1, .alpha = 1, .beta = 1, .a = p->u, .b = p->qa, .c = p->out};
    }
    return count;
}

static dsc_status run_stage(dsc_queue *q, const dsc_kfac_product *products, int64_t count, int stage,
                            dsc_kfac_lists *lists) {
    int64_t gemms = 0;
    for (int64_t i = 0; i < count; i++)
        gemms += add_stage(&products[i], stage, lists->gemms + gemms);
    return dsc_op_gemm_batch(q, lists->gemms, gemms);
}

/* Divides s for whole bases, and multiplies s, t, u and x by their weights for cut ones. */
static dsc_status weigh(dsc_queue *q, const dsc_tensor *damping, const dsc_kfac_product *products,
                        int64_t count, dsc_kfac_lists *lists) {
    int64_t divides = 0, weights = 0;
    for (int64_t i = 0; i < count; i++) {
        const dsc_kfac_product *p = &products[i];
        int a = cuts_a(p), g = cuts_g(p);
        if (!a && !g) {
            lists->divides[divides++] = (dsc_divide_item){p->vg, p->va, p->s};
            continue;
        }
        lists->weights[weights++] = (dsc_weigh_item){p->vg, p->va, p->rest_g, p->rest_a, p->s, p->s};
        if (a)
            lists->weights[weights++] = (dsc_weigh_item){
                .rows = p->vg, .other_row = p->rest_g, .other_column = p->rest_a, .from = p->t, .x = p->t};
        if (g)
            lists->weights[weights++] = (dsc_weigh_item){
                .columns = p->va, .other_row = p->rest_g, .other_column = p->rest_a, .from = p->u, .x = p->u};
        if (a && g)
            lists->weights[weights++] = (dsc_weigh_item){
                .other_row = p->rest_g, .other_column = p->rest_a, .from = p->x, .x = p->out};
    }
    DSC_TRY(dsc_op_divide_batch(q, damping, lists->divides, divides));
    return dsc_op_weigh_batch(q, damping, lists->weights, weights);
}

dsc_status dsc_kfac_multiply(dsc_queue *q, const dsc_tensor *damping, const dsc_kfac_product *products,
                             int64_t count, dsc_kfac_lists *lists) {
    enum { STAGES = 5, BEFORE = 2 };
    for (int stage = 0; stage < STAGES; stage++) {
        if (stage == BEFORE)
            DSC_TRY(weigh(q, damping, products, count, lists));
        DSC_TRY(run_stage(q, products, count, stage, lists));
    }
    return DSC_OK;
}
