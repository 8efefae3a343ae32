/* Rotates a wave of eigenbases towards the eigenvectors of the present factors. With B = Q'AQ and l its diagonal, the
 * first-order angle between columns i and j is B_ij / (l_j - l_i), regularised where the eigenvalues are close to each
 * other (dsc_op_rotation_batch):
 *
 *   iteration    Y = A Q;  B = Q'Y;  X, Z from the angles;  Z += Q X;  H = Z'Z;  Q = Z R^-1 with R'R = H
 *   at the end   Y = A Q;  v_j = q_j'y_j / q_j'q_j, and the residuals
 *
 * The same product of all items runs as one batch. */
#include "kfac/refresh.h"

#include "base/error.h"

#include <math.h>

/* Adds C = alpha op(A) B + beta C to the list. */
static void add_product(dsc_refresh_wave *w, int64_t *count, int trans_a, const dsc_tensor *a,
                        const dsc_tensor *b, double beta, const dsc_tensor *c, int fast) {
    w->gemms[(*count)++] = (dsc_gemm_item){
        .trans_a = trans_a, .fast = fast, .alpha = 1, .beta = beta, .a = *a, .b = *b, .c = *c};
}

static int is_turning(const dsc_refresh_item *t) {
    return t->warm && t->iterations > 0 && !t->failed;
}

/* Returns the place that does not hold the current vectors. */
static dsc_tensor *free_place(dsc_refresh_item *t) {
    return &t->place[t->q.data == t->place[0].data];
}

/* Computes Y = A Q for the items for which `marked` returns 1. */
static dsc_status multiply(dsc_refresh_wave *w, int (*marked)(const dsc_refresh_item *t)) {
    int64_t count = 0;
    for (int64_t i = 0; i < w->count; i++) {
        const dsc_refresh_item *t = &w->items[i];
        if (marked(t))
            add_product(w, &count, 0, &t->a, &t->q, 0, &t->y, !t->precise);
    }
    return dsc_op_gemm_batch(w->queue, w->gemms, count);
}

static dsc_status find_angles(dsc_refresh_wave *w) {
    int64_t count = 0;
    for (int64_t i = 0; i < w->count; i++) {
        const dsc_refresh_item *t = &w->items[i];
        if (is_turning(t))
            add_product(w, &count, 1, &t->q, &t->y, 0, &t->b, !t->precise);
    }
    DSC_TRY(dsc_op_gemm_batch(w->queue, w->gemms, count));
    count = 0;
    for (int64_t i = 0; i < w->count; i++) {
        dsc_refresh_item *t = &w->items[i];
        if (is_turning(t))
            w->rotations[count++] = (dsc_rotation_item){
                .b = t->b, .q = t->q, .y = t->y, .x = t->x, .z = *free_place(t), .delta = t->delta};
    }
    return dsc_op_rotation_batch(w->queue, w->rotations, count);
}

/* Computes Z += Q X and, in the memory of B, H = Z'Z; then makes the columns of Z orthonormal. */
static dsc_status turn(dsc_refresh_wave *w) {
    int64_t count = 0;
    for (int64_t i = 0; i < w->count; i++) {
        dsc_refresh_item *t = &w->items[i];
        if (is_turning(t))
            add_product(w, &count, 0, &t->q, &t->x, 1, free_place(t), 1);
    }
    DSC_TRY(dsc_op_gemm_batch(w->queue, w->gemms, count));
    count = 0;
    for (int64_t i = 0; i < w->count; i++) {
        dsc_refresh_item *t = &w->items[i];
        if (!is_turning(t))
            continue;
        t->q = *free_place(t);
        /* A cut basis amplifies errors in orthogonality. */
        int fast = !t->precise && t->rank == t->n;
        w->orthonormals[count] = (dsc_orthonormal_item){.h = t->b, .z = t->q, .fast = fast};
        add_product(w, &count, 1, &t->q, &t->q, 0, &t->b, fast);
    }
    DSC_TRY(dsc_op_gemm_batch(w->queue, w->gemms, count));
    DSC_TRY(dsc_op_orthonormal_batch(w->queue, w->orthonormals, count));
    count = 0;
    for (int64_t i = 0; i < w->count; i++) {
        dsc_refresh_item *t = &w->items[i];
        if (!is_turning(t))
            continue;
        t->failed = w->orthonormals[count++].failed;
        t->iterations--;
    }
    return DSC_OK;
}

static int is_turned(const dsc_refresh_item *t) {
    return t->warm && t->iterations == 0 && !t->failed && isnan(t->residual);
}

/* Computes the eigenvalues and residuals of the items that were rotated. */
static dsc_status find_values(dsc_refresh_wave *w) {
    int64_t count = 0;
    DSC_TRY(multiply(w, is_turned));
    for (int64_t i = 0; i < w->count; i++) {
        const dsc_refresh_item *t = &w->items[i];
        if (is_turned(t))
            w->rayleighs[count++] = (dsc_rayleigh_item){
                .a = t->a, .q = t->q, .y = t->y, .v = t->v, .result = t->result, .delta = t->delta};
    }
    if (count == 0)
        return DSC_OK;
    DSC_TRY(dsc_op_rayleigh_batch(w->queue, w->rayleighs, count));
    DSC_TRY(dsc_op_relu_forward(w->queue, &w->values, &w->values)); /* rounding may have made a 0 negative */
    dsc_tensor results = dsc_tensor_slice(&w->results, 0, DSC_KFAC_RESULTS * w->count);
    DSC_TRY(dsc_tensor_download(w->queue, &results, dsc_tensor_bytes(&results), w->host));
    if (dsc_kfac_is_cut(w->k))
        DSC_TRY(dsc_tensor_download(w->queue, &w->values, dsc_tensor_bytes(&w->values), w->values_host));
    DSC_TRY(dsc_queue_sync(w->queue));
    for (int64_t i = 0; i < w->count; i++) {
        dsc_refresh_item *t = &w->items[i];
        if (!is_turned(t))
            continue;
        t->trace = w->host[DSC_KFAC_RESULTS * i];
        t->sum = w->host[DSC_KFAC_RESULTS * i + 1];
        t->residual = w->host[DSC_KFAC_RESULTS * i + 2];
        t->failed = !isfinite(t->residual) || !isfinite(t->sum) || !isfinite(t->trace);
    }
    return DSC_OK;
}

dsc_status dsc_refresh_rotate(dsc_refresh_wave *w) {
    int any = 0;
    for (int64_t i = 0; i < w->count; i++)
        if (is_turning(&w->items[i]))
            w->items[i].residual = NAN;
    do {
        any = 0;
        for (int64_t i = 0; i < w->count; i++)
            any |= is_turning(&w->items[i]);
        if (any) {
            DSC_TRY(multiply(w, is_turning));
            DSC_TRY(find_angles(w));
            DSC_TRY(turn(w));
        }
    } while (any);
    return find_values(w);
}
