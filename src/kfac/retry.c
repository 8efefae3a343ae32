/* The solvers for factors, and what is tried after the batched one failed on a matrix: double precision, then another
 * algorithm. */
#include "kfac/retry.h"

#include "base/error.h"

/* ---- all matrices of a batch ---- */

static dsc_status eigen_batch(dsc_queue *q, dsc_solve_item *items, int64_t count, dsc_tensor *work) {
    return dsc_op_syev_batch(q, items, count, work);
}

static dsc_status inverse_batch(dsc_queue *q, dsc_solve_item *items, int64_t count, dsc_tensor *work) {
    (void)work;
    return dsc_op_chol_inverse_batch(q, items, count);
}

/* ---- in double precision ---- */

static dsc_status in_double(dsc_queue *q, int eigen, dsc_tensor *a, dsc_tensor *v) {
    int64_t n = a->dim[0];
    const int64_t square[2] = {n, n};
    int64_t bytes = eigen ? (int64_t)dsc_op_syev_workspace(a->device, DSC_F64, n) : 0;
    dsc_tensor wide = {0}, values = {0}, work = {0};
    dsc_status status = dsc_tensor_alloc(a->device, DSC_F64, 2, square, &wide);
    if (status == DSC_OK)
        status = dsc_tensor_alloc(a->device, DSC_F64, 1, &n, &values);
    if (status == DSC_OK)
        status = dsc_tensor_alloc(a->device, DSC_U8, 1, &bytes, &work);
    if (status == DSC_OK)
        status = dsc_op_convert(q, a, &wide);
    if (status == DSC_OK)
        status = eigen ? dsc_op_syev(q, &wide, &work, &values) : dsc_op_chol_inverse(q, &wide);
    if (status == DSC_OK && eigen)
        status = dsc_op_convert(q, &values, v);
    if (status == DSC_OK)
        status = dsc_op_convert(q, &wide, a);
    if (status == DSC_OK)
        status = dsc_queue_sync(q);
    dsc_tensor_free(&wide);
    dsc_tensor_free(&values);
    dsc_tensor_free(&work);
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

typedef struct scratch {
    dsc_tensor ones, values, scaled, out, floor;
} scratch;

static dsc_status make_scratch(dsc_queue *q, const dsc_tensor *a, double floor, scratch *s) {
    const int64_t n[2] = {a->dim[0], a->dim[0]}, one = 1;
    DSC_TRY(dsc_tensor_alloc(a->device, a->dtype, 1, n, &s->ones));
    DSC_TRY(dsc_tensor_alloc(a->device, a->dtype, 1, n, &s->values));
    DSC_TRY(dsc_tensor_alloc(a->device, a->dtype, 2, n, &s->scaled));
    DSC_TRY(dsc_tensor_alloc(a->device, a->dtype, 2, n, &s->out));
    DSC_TRY(dsc_tensor_alloc(a->device, DSC_F64, 1, &one, &s->floor));
    DSC_TRY(dsc_op_fill(q, floor, &s->floor));
    return dsc_op_fill(q, 1, &s->ones);
}

/* Computes Q diag(1 / max(v, floor)) Q', for a matrix that rounding has made indefinite. */
static dsc_status invert_by_eigen(dsc_queue *q, double floor, scratch *s, dsc_tensor *a) {
    DSC_TRY(dsc_op_syev_careful(q, a, &s->values));
    DSC_TRY(dsc_op_axpby(q, -floor, &s->ones, 1, &s->values));
    DSC_TRY(dsc_op_relu_forward(q, &s->values, &s->values));
    DSC_TRY(dsc_op_outer_inverse(q, &s->floor, &s->ones, &s->values, &s->scaled));
    DSC_TRY(dsc_op_multiply(q, a, &s->scaled));
    DSC_TRY(dsc_op_gemm(q, 0, 1, 1, &s->scaled, a, 0, &s->out));
    DSC_TRY(dsc_op_convert(q, &s->out, a));
    DSC_TRY(dsc_op_symmetrize(q, a));
    return dsc_queue_sync(q);
}

static dsc_status inverse_careful(dsc_queue *q, double floor, dsc_tensor *a, dsc_tensor *v) {
    scratch s = {0};
    (void)v;
    dsc_status status = make_scratch(q, a, floor, &s);
    if (status == DSC_OK)
        status = invert_by_eigen(q, floor, &s, a);
    dsc_tensor *const all[] = {&s.ones, &s.values, &s.scaled, &s.out, &s.floor};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        dsc_tensor_free(all[i]);
    return status;
}

static const dsc_solve_one eigen_retries[] = {eigen_double, eigen_careful};
static const dsc_solve_one inverse_retries[] = {inverse_double, inverse_careful};
const dsc_solver dsc_solver_eigen = {eigen_batch, eigen_retries, 2};
const dsc_solver dsc_solver_inverse = {inverse_batch, inverse_retries, 2};

/* ---- retries ---- */

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
    for (int i = 0; i < solver->retry_count && !*solved; i++) {
        DSC_TRY(load(context, q, a));
        dsc_status status = solver->retries[i](q, floor, a, v);
        if (status == DSC_OK)
            DSC_TRY(dsc_solve_check(q, a, v, solved));
        else if (status != DSC_E_NUMERIC)
            return dsc_error_pass(status, __FILE__, __LINE__);
    }
    return DSC_OK;
}
