/* Solving one factor: double precision, then another algorithm. */
#include "kfac/solve.h"

#include "base/error.h"

/* ---- the fast way ---- */

static dsc_status eigen_batch(dsc_queue *q, dsc_solve_item *items, int64_t count, dsc_tensor *work) {
    return dsc_op_syev_batch(q, items, count, work);
}

static dsc_status inverse_batch(dsc_queue *q, dsc_solve_item *items, int64_t count, dsc_tensor *work) {
    (void)work;
    return dsc_op_chol_inverse_batch(q, items, count);
}

/* ---- in double ---- */

typedef struct doubles {
    dsc_tensor a, v, work;
} doubles;

static dsc_status make_doubles(dsc_device *device, int64_t n, int eigen, doubles *d) {
    const int64_t square[2] = {n, n};
    int64_t bytes = eigen ? (int64_t)dsc_op_syev_workspace(device, DSC_F64, n) : 0;
    DSC_TRY(dsc_tensor_alloc(device, DSC_F64, 2, square, &d->a));
    DSC_TRY(dsc_tensor_alloc(device, DSC_F64, 1, &n, &d->v));
    return dsc_tensor_alloc(device, DSC_U8, 1, &bytes, &d->work);
}

static void free_doubles(doubles *d) {
    dsc_tensor_free(&d->a);
    dsc_tensor_free(&d->v);
    dsc_tensor_free(&d->work);
}

static dsc_status solve_doubles(dsc_queue *q, int eigen, doubles *d, dsc_tensor *a, dsc_tensor *v) {
    DSC_TRY(dsc_op_convert(q, a, &d->a));
    if (!eigen)
        DSC_TRY(dsc_op_chol_inverse(q, &d->a));
    else {
        DSC_TRY(dsc_op_syev(q, &d->a, &d->work, &d->v));
        DSC_TRY(dsc_op_convert(q, &d->v, v));
    }
    DSC_TRY(dsc_op_convert(q, &d->a, a));
    return dsc_queue_sync(q);
}

static dsc_status in_double(dsc_queue *q, int eigen, dsc_tensor *a, dsc_tensor *v) {
    doubles d = {0};
    dsc_status status = make_doubles(a->device, a->dim[0], eigen, &d);
    if (status == DSC_OK)
        status = solve_doubles(q, eigen, &d, a, v);
    free_doubles(&d);
    return status;
}

static dsc_status eigen_double(dsc_queue *q, double floor, dsc_tensor *a, dsc_tensor *v) {
    (void)floor;
    return in_double(q, 1, a, v);
}

static dsc_status inverse_double(dsc_queue *q, double floor, dsc_tensor *a, dsc_tensor *v) {
    (void)floor;
    return in_double(q, 0, a, v);
}

/* ---- another algorithm ---- */

static dsc_status eigen_careful(dsc_queue *q, double floor, dsc_tensor *a, dsc_tensor *v) {
    (void)floor;
    return dsc_op_syev_careful(q, a, v);
}

typedef struct room {
    dsc_tensor ones, values, scaled, out, floor;
} room;

static dsc_status make_room(dsc_queue *q, const dsc_tensor *a, double floor, room *r) {
    const int64_t n[2] = {a->dim[0], a->dim[0]}, one = 1;
    DSC_TRY(dsc_tensor_alloc(a->device, a->dtype, 1, n, &r->ones));
    DSC_TRY(dsc_tensor_alloc(a->device, a->dtype, 1, n, &r->values));
    DSC_TRY(dsc_tensor_alloc(a->device, a->dtype, 2, n, &r->scaled));
    DSC_TRY(dsc_tensor_alloc(a->device, a->dtype, 2, n, &r->out));
    DSC_TRY(dsc_tensor_alloc(a->device, DSC_F64, 1, &one, &r->floor));
    DSC_TRY(dsc_op_fill(q, floor, &r->floor));
    return dsc_op_fill(q, 1, &r->ones);
}

static void free_room(room *r) {
    dsc_tensor_free(&r->ones);
    dsc_tensor_free(&r->values);
    dsc_tensor_free(&r->scaled);
    dsc_tensor_free(&r->out);
    dsc_tensor_free(&r->floor);
}

/* Q diag(1 / max(v, floor)) Q': for what rounding has made indefinite. */
static dsc_status invert_by_eigen(dsc_queue *q, double floor, room *r, dsc_tensor *a) {
    DSC_TRY(dsc_op_syev_careful(q, a, &r->values));
    DSC_TRY(dsc_op_axpby(q, -floor, &r->ones, 1, &r->values));
    DSC_TRY(dsc_op_relu_forward(q, &r->values, &r->values));
    DSC_TRY(dsc_op_outer_inverse(q, &r->floor, &r->ones, &r->values, &r->scaled));
    DSC_TRY(dsc_op_multiply(q, a, &r->scaled));
    DSC_TRY(dsc_op_gemm(q, 0, 1, 1, &r->scaled, a, 0, &r->out));
    DSC_TRY(dsc_op_convert(q, &r->out, a));
    DSC_TRY(dsc_op_symmetrize(q, a));
    return dsc_queue_sync(q);
}

static dsc_status inverse_careful(dsc_queue *q, double floor, dsc_tensor *a, dsc_tensor *v) {
    room r = {0};
    (void)v;
    dsc_status status = make_room(q, a, floor, &r);
    if (status == DSC_OK)
        status = invert_by_eigen(q, floor, &r, a);
    free_room(&r);
    return status;
}

static const dsc_solve_one eigen_rungs[] = {eigen_double, eigen_careful};
static const dsc_solve_one inverse_rungs[] = {inverse_double, inverse_careful};
const dsc_solver dsc_solver_eigen = {eigen_batch, eigen_rungs, 2};
const dsc_solver dsc_solver_inverse = {inverse_batch, inverse_rungs, 2};

/* ---- the ladder ---- */

dsc_status dsc_solve_check(dsc_queue *q, const dsc_tensor *a, const dsc_tensor *v, int *finite) {
    double bad = 0;
    int64_t one = 1;
    dsc_tensor count;
    DSC_TRY(dsc_tensor_alloc(a->device, DSC_F64, 1, &one, &count));
    dsc_status status = dsc_op_count_nonfinite(q, a, &count);
    if (status == DSC_OK && v->data)
        status = dsc_op_count_nonfinite(q, v, &count);
    if (status == DSC_OK)
        status = dsc_tensor_download(q, &count, sizeof bad, &bad);
    if (status == DSC_OK)
        status = dsc_queue_sync(q);
    dsc_tensor_free(&count);
    *finite = bad == 0;
    return status;
}

dsc_status dsc_solve_retry(const dsc_solver *solver, dsc_queue *q, dsc_solve_load load, void *context,
                           double floor, dsc_tensor *a, dsc_tensor *v, int *solved) {
    *solved = 0;
    for (int i = 0; i < solver->rung_count && !*solved; i++) {
        DSC_TRY(load(context, q, a));
        dsc_status status = solver->rungs[i](q, floor, a, v);
        if (status == DSC_OK)
            DSC_TRY(dsc_solve_check(q, a, v, solved));
        else if (status != DSC_E_NUMERIC)
            return dsc_error_pass(status, __FILE__, __LINE__);
    }
    return DSC_OK;
}
