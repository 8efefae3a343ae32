/* Solvers: the retries after the batched solver has failed, and the accuracy of every retry on matrices that are
 * known to break solvers. With Frobenius norms an eigen solve is accepted when
 *   |A - Q diag(v) Q'| <= 64 n eps |A|,  |Q'Q - I| <= 25 n eps. */
#include "kfac/twin.h"

#include "base/error.h"
#include "base/rng.h"
#include "kfac/internal.h"

#include <math.h>
#include <stdlib.h>

/* ---- the sequence of retries, with scripted ones ---- */

static int loads, calls[3];

/* diag(1, 2), loaded anew for every retry. */
static dsc_status load_two(void *context, dsc_queue *q, dsc_tensor *a) {
    static const double values[] = {1, 0, 0, 2};
    loads += *(int *)context;
    DSC_TRY(dsc_tensor_upload(q, values, sizeof values, a));
    return dsc_queue_sync(q);
}

static int is_fresh(const dsc_tensor *a) {
    const double *x = a->data;
    return x[0] == 1 && x[1] == 0 && x[2] == 0 && x[3] == 2;
}

static dsc_status spoils(dsc_queue *q, double floor, dsc_tensor *a, dsc_tensor *v) {
    (void)floor;
    (void)v;
    assert_true(is_fresh(a));
    calls[0]++;
    DSC_TRY(dsc_op_fill(q, 99, a));
    return DSC_FAIL(DSC_E_NUMERIC, "does not converge");
}

static dsc_status gives_nan(dsc_queue *q, double floor, dsc_tensor *a, dsc_tensor *v) {
    (void)floor;
    assert_true(is_fresh(a));
    calls[1]++;
    return dsc_op_fill(q, calls[1] % 2 ? NAN : INFINITY, calls[1] % 3 && v->data ? v : a);
}

static dsc_status succeeds(dsc_queue *q, double floor, dsc_tensor *a, dsc_tensor *v) {
    (void)floor;
    assert_true(is_fresh(a));
    calls[2]++;
    if (v->data)
        DSC_TRY(dsc_op_fill(q, 5, v));
    return dsc_op_fill(q, 7, a);
}

static dsc_status breaks(dsc_queue *q, double floor, dsc_tensor *a, dsc_tensor *v) {
    (void)floor;
    (void)q;
    (void)a;
    (void)v;
    return DSC_FAIL(DSC_E_DEVICE, "the device is gone");
}

static void reset(void) {
    loads = calls[0] = calls[1] = calls[2] = 0;
}

static void test_retries(void **state) {
    (void)state;
    static const dsc_solve_one retries[] = {spoils, gives_nan, succeeds, breaks};
    double matrix[4] = {0}, values[2] = {0};
    dsc_tensor a = dsc_tensor_view(host_device, matrix, DSC_F64, 2, (const int64_t[]){2, 2});
    dsc_tensor v = dsc_tensor_view(host_device, values, DSC_F64, 1, (const int64_t[]){2});
    int solved = -1, one = 1;
    for (int with_values = 0; with_values < 2; with_values++) {
        dsc_tensor none = {0}, *values_of = with_values ? &v : &none;
        reset();
        dsc_solver solver = {NULL, retries, 3};
        assert_ok(dsc_solve_retry(&solver, host_queue, load_two, &one, 0, &a, values_of, &solved));
        assert_true(solved == 1 && loads == 3 && matrix[0] == 7);
        assert_true(calls[0] == 1 && calls[1] == 1 && calls[2] == 1);
        solver.retry_count = 2;
        assert_ok(dsc_solve_retry(&solver, host_queue, load_two, &one, 0, &a, values_of, &solved));
        assert_true(solved == 0 && loads == 5);
        solver.retry_count = 0;
        assert_ok(dsc_solve_retry(&solver, host_queue, load_two, &one, 0, &a, values_of, &solved));
        assert_true(solved == 0 && loads == 5);
        solver = (dsc_solver){NULL, retries + 2, 2}; /* nothing is tried after a success */
        assert_ok(dsc_solve_retry(&solver, host_queue, load_two, &one, 0, &a, values_of, &solved));
        assert_true(solved == 1);
        solver = (dsc_solver){NULL, retries + 3, 1};
        assert_fails(DSC_E_DEVICE, "the device is gone",
                     dsc_solve_retry(&solver, host_queue, load_two, &one, 0, &a, values_of, &solved));
    }
}

static void test_check(void **state) {
    (void)state;
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    double matrix[4] = {1, 2, 3, 4}, values[2] = {5, 6};
    dsc_tensor a = dsc_tensor_view(host_device, matrix, DSC_F64, 2, (const int64_t[]){2, 2});
    dsc_tensor v = dsc_tensor_view(host_device, values, DSC_F64, 1, (const int64_t[]){2}), none = {0};
    int finite = -1;
    assert_ok(dsc_solve_check(host_queue, &a, &v, &finite));
    assert_int_equal(finite, 1);
    for (int i = 0; i < 3; i++) {
        matrix[3] = bad[i];
        assert_ok(dsc_solve_check(host_queue, &a, &none, &finite));
        assert_int_equal(finite, 0);
        matrix[3] = 4;
        values[1] = bad[i];
        assert_ok(dsc_solve_check(host_queue, &a, &v, &finite));
        assert_int_equal(finite, 0);
        assert_ok(dsc_solve_check(host_queue, &a, &none, &finite));
        assert_int_equal(finite, 1);
        values[1] = 6;
    }
}

/* ---- inside a step ---- */

static const dsc_solver *true_solver;
static int64_t failing_rows; /* items with this number of rows fail; 0: all */
static int failing;          /* 0: the batched solver works as usual */

static int fails(int64_t n) {
    return failing && (failing_rows == 0 || failing_rows == n);
}

static dsc_status patchy_batch(dsc_queue *q, dsc_solve_item *items, int64_t count, dsc_tensor *work) {
    DSC_TRY(true_solver->batch(q, items, count, work));
    for (int64_t i = 0; i < count; i++)
        if (fails(items[i].a.dim[0])) {
            DSC_TRY(dsc_op_fill(q, NAN, &items[i].a));
            items[i].failed = 1;
        }
    return DSC_OK;
}

static dsc_status no_help(dsc_queue *q, double floor, dsc_tensor *a, dsc_tensor *v) {
    (void)floor;
    (void)v;
    DSC_TRY(dsc_op_fill(q, NAN, a));
    return DSC_FAIL(DSC_E_NUMERIC, "does not converge");
}

/* The retries after a batched solver that fails on purpose: first `hopeless` retries that fail, too, then the real
 * ones. */
static dsc_solve_one patched_retries[4];

static dsc_solver patch(const dsc_kfac *kfac, int hopeless, int helpful) {
    true_solver = kfac->solver;
    for (int i = 0; i < hopeless; i++)
        patched_retries[i] = no_help;
    for (int i = 0; i < helpful; i++)
        patched_retries[hopeless + i] = true_solver->retries[i];
    return (dsc_solver){patchy_batch, patched_retries, hopeless + helpful};
}

static dsc_kfac_options options_of(int method) {
    dsc_kfac_options options = twin_options();
    options.method = method == 2 ? DSC_KFAC_INVERSE : DSC_KFAC_EIGEN;
    options.outer_product = method == 1;
    options.kl_clip = 0.001;
    return options;
}

/* A later retry gives the same gradient; every matrix counts once. */
static void test_retried(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++)
        for (int method = 0; method < 3; method++)
            for (int hopeless = 0; hopeless < 3; hopeless++) {
                twin t;
                dsc_kfac_options options = options_of(method);
                twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
                dsc_solver solver = patch(t.kfac, hopeless, 1);
                t.kfac->solver = &solver;
                failing = 1;
                failing_rows = 0;
                twin_step(&t, &(net_step){.number = 0, .lr = 0.5}, "all retried");
                assert_int_equal(twin_report(&t)->retried_solves, 10);
                failing_rows = 19;
                twin_step(&t, &(net_step){.number = 1, .lr = 0.5}, "one retried");
                assert_int_equal(twin_report(&t)->retried_solves, 11);
                failing = 0;
                twin_step(&t, &(net_step){.number = 2, .lr = 0.5}, "none retried");
                assert_int_equal(twin_report(&t)->retried_solves, 11);
                assert_int_equal(twin_report(&t)->failed_solves, 0);
                twin_close(&t);
            }
}

/* The last retry of the eigen solver works alone. */
static void test_last_retry(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++) {
        twin t;
        dsc_kfac_options options = options_of(0);
        twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
        dsc_solver solver = patch(t.kfac, 1, 0);
        assert_int_equal(true_solver->retry_count, 2);
        patched_retries[1] = true_solver->retries[1];
        solver.retry_count = 2;
        t.kfac->solver = &solver;
        failing = 1;
        failing_rows = 0;
        for (int64_t k = 0; k < 3; k++)
            twin_step(&t, &(net_step){.number = k, .lr = 0.5}, "last retry");
        assert_int_equal(twin_report(&t)->retried_solves, 30);
        twin_close(&t);
    }
}

/* The naive step with the factors that `keep` names as they were at the last decomposition. */
static void naive_keeping(twin *t, const net_step *step, int64_t rows) {
    double *a[NAIVE_UNITS], *g[NAIVE_UNITS], *d[NET_LAYERS], nu;
    naive *v = &t->v;
    for (int i = 0; i < v->count; i++) {
        naive_unit *u = &v->units[i];
        a[i] = net_array(u->a_n * u->a_n, sizeof(double));
        g[i] = net_array(u->g_n * u->g_n, sizeof(double));
        memcpy(a[i], u->a_solved, (size_t)(u->a_n * u->a_n) * sizeof(double));
        memcpy(g[i], u->g_solved, (size_t)(u->g_n * u->g_n) * sizeof(double));
    }
    naive_run(v, &t->n, step, HYPER(&t->options), t->want);
    naive_gradients_open(&t->n, d);
    for (int i = 0; i < v->count; i++) {
        naive_unit *u = &v->units[i];
        if (rows == 0 || rows == u->a_n)
            memcpy(u->a_solved, a[i], (size_t)(u->a_n * u->a_n) * sizeof(double));
        if (rows == 0 || rows == u->g_n)
            memcpy(u->g_solved, g[i], (size_t)(u->g_n * u->g_n) * sizeof(double));
        u->ran = 1;
        free(a[i]);
        free(g[i]);
    }
    for (int l = 0; l < t->n.count; l++)
        memcpy(d[l], t->n.layers[l].d, (size_t)net_gradient_count(&t->n, l) * sizeof(double));
    nu = naive_step(v, HYPER(&t->options), 0, 0, step->lr, d);
    assert_true(nu > 0);
    for (int l = 0; l < t->n.count; l++)
        memcpy(t->want[l], d[l], (size_t)net_gradient_count(&t->n, l) * sizeof(double));
    naive_gradients_close(&t->n, d);
}

/* All retries fail: the earlier decomposition stays in use, only for the matrices that failed. */
static void test_kept(void **state) {
    (void)state;
    static const int64_t rows[] = {0, 19, 3};
    static const int64_t counts[] = {10, 1, 3}; /* matrices with these numbers of rows */
    for (int p = 0; p < PLACES; p++)
        for (int method = 0; method < 3; method++)
            for (int i = 0; i < 3; i++) {
                twin t;
                dsc_kfac_options options = options_of(method);
                twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
                dsc_solver solver = patch(t.kfac, 2, 0);
                t.kfac->solver = &solver;
                failing = 0;
                failing_rows = rows[i];
                twin_step(&t, &(net_step){.number = 0, .lr = 0.5}, "before");
                failing = 1;
                net_step step = {.number = 1, .lr = 0.5};
                naive_keeping(&t, &step, rows[i]);
                assert_ok(net_run(&t.n, t.kfac, &step));
                double excess = naive_excess(&t.v, t.want, options.damping, t.eps);
                if (!(excess <= 1))
                    fail_msg("%s, method %d, %d rows: off by %g times the bound", places[p].device, method,
                             (int)rows[i], excess);
                assert_int_equal(twin_report(&t)->failed_solves, counts[i]);
                failing = 0;
                twin_step(&t, &(net_step){.number = 2, .lr = 0.5}, "after");
                assert_int_equal(twin_report(&t)->failed_solves, counts[i]);
                twin_close(&t);
            }
}

/* All retries fail and there is no earlier decomposition. */
static void test_error(void **state) {
    (void)state;
    for (int method = 0; method < 3; method++) {
        twin t;
        dsc_kfac_options options = options_of(method);
        twin_open(&t, &places[CPU], twin_mixed, TWIN_MIXED, &options);
        dsc_solver solver = patch(t.kfac, 2, 0);
        t.kfac->solver = &solver;
        failing = 1;
        failing_rows = 19;
        assert_fails(DSC_E_NUMERIC, "conv", net_run(&t.n, t.kfac, &(net_step){.number = 0, .lr = 0.5}));
        twin_close(&t);
    }
}

/* ---- acceptance ---- */

/* Element (i, j), j <= i. */
typedef double (*matrix_function)(int64_t n, int64_t i, int64_t j);

static double noise(int64_t i, int64_t j) {
    dsc_rng rng = dsc_rng_start(3, DSC_RNG_TEST, 0, (uint64_t)(i * 1000 + j));
    return (double)(2 * dsc_rng_uniform(&rng) - 1);
}

static double identity(int64_t n, int64_t i, int64_t j) {
    (void)n;
    return i == j;
}

static double zero(int64_t n, int64_t i, int64_t j) {
    (void)n;
    (void)i;
    (void)j;
    return 0;
}

/* Sum of three outer products. */
static double rank_deficient(int64_t n, int64_t i, int64_t j) {
    (void)n;
    double sum = 0;
    for (int64_t k = 0; k < 3; k++)
        sum += noise(i, 900 + k) * noise(j, 900 + k);
    return sum;
}

static double clustered(int64_t n, int64_t i, int64_t j) {
    return (i == j) + 1e-6 * noise(i, j) / (double)n;
}

/* I - 2 u u'/u'u + I: eigenvalue 0 once, 2 otherwise. */
static double repeated(int64_t n, int64_t i, int64_t j) {
    double square = (double)n * (double)(n + 1) * (double)(2 * n + 1) / 6;
    return 2 * (i == j) - 2 * (double)(i + 1) * (double)(j + 1) / square;
}

static double banded(int64_t n, int64_t i, int64_t j) {
    (void)n;
    return i - j <= 3 ? noise(i, j) : 0;
}

/* Rows and columns from 1 to 1e-6: factors of dead channels. */
static double graded(int64_t n, int64_t i, int64_t j) {
    return (i == j ? 2 : noise(i, j) / (double)n) * pow(10, -3 * (double)(i + j) / (double)n);
}

static double huge(int64_t n, int64_t i, int64_t j) {
    return 1e18 * rank_deficient(n, i, j);
}

static double tiny(int64_t n, int64_t i, int64_t j) {
    return 1e-18 * rank_deficient(n, i, j);
}

static const struct {
    const char *name;
    matrix_function element;
} matrices[] = {{"identity", identity},   {"zero", zero},         {"rank 3", rank_deficient},
                {"clustered", clustered}, {"repeated", repeated}, {"banded", banded},
                {"graded", graded},       {"huge", huge},         {"tiny", tiny}};
enum { MATRICES = sizeof matrices / sizeof matrices[0], SIZES = 5 };
static const int64_t sizes[SIZES] = {1, 2, 7, 24, 33};

/* A matrix and its eigenvalues on a device, and the matrix in double. */
typedef struct problem {
    const place *p;
    int64_t n;
    dsc_solve_item item;
    double *a;
} problem;

/* Contents of a tensor as doubles; to be freed. */
static double *pull(dsc_queue *q, const dsc_tensor *t) {
    int64_t count = dsc_tensor_count(t);
    double *values = net_array(count, sizeof *values);
    assert_ok(dsc_tensor_download(q, t, dsc_tensor_bytes(t), values));
    assert_ok(dsc_queue_sync(q));
    for (int64_t i = count - 1; t->dtype == DSC_F32 && i >= 0; i--) { /* spread in place, from the end */
        float x;
        memcpy(&x, (const char *)values + (size_t)i * sizeof x, sizeof x);
        values[i] = (double)x;
    }
    return values;
}

static void push(dsc_queue *q, const double *values, dsc_tensor *t) {
    int64_t count = dsc_tensor_count(t);
    float *narrow = net_array(count, sizeof *narrow);
    for (int64_t i = 0; i < count; i++)
        narrow[i] = (float)values[i];
    assert_ok(
        dsc_tensor_upload(q, t->dtype == DSC_F32 ? (const void *)narrow : values, dsc_tensor_bytes(t), t));
    assert_ok(dsc_queue_sync(q));
    free(narrow);
}

static void set(const place *p, dsc_tensor *t, int64_t i, double value) {
    dsc_tensor one = dsc_tensor_slice(t, i, 1);
    push(p->queue, &value, &one);
}

static dsc_status load_problem(void *context, dsc_queue *q, dsc_tensor *a) {
    const problem *x = context;
    push(q, x->a, a);
    return DSC_OK;
}

static problem open_problem(const place *p, matrix_function element, int64_t n, double shift) {
    problem x = {.p = p, .n = n, .a = net_array(n * n, sizeof(double))};
    assert_ok(dsc_tensor_alloc(p->handle, p->dtype, 2, (const int64_t[]){n, n}, &x.item.a));
    assert_ok(dsc_tensor_alloc(p->handle, p->dtype, 1, &n, &x.item.v));
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            double value = element(n, i, j) + (i == j ? shift : 0);
            x.a[i * n + j] = x.a[j * n + i] = p->dtype == DSC_F32 ? (double)(float)value : value;
        }
    assert_ok(load_problem(&x, p->queue, &x.item.a));
    return x;
}

static void close_problem(problem *x) {
    dsc_tensor_free(&x->item.a);
    dsc_tensor_free(&x->item.v);
    free(x->a);
}

/* |Q diag(v) Q' - A|, |Q'Q - I| and |A|. */
static void measure(const problem *x, double *residual, double *skew, double *size) {
    int64_t n = x->n;
    double r = 0, s = 0, a = 0;
    double *q = pull(x->p->queue, &x->item.a), *v = pull(x->p->queue, &x->item.v);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            double rest = x->a[i * n + j], gram = i == j ? -1 : 0;
            for (int64_t k = 0; k < n; k++) {
                rest -= q[i * n + k] * v[k] * q[j * n + k];
                gram += q[k * n + i] * q[k * n + j];
            }
            r += rest * rest;
            s += gram * gram;
            a += x->a[i * n + j] * x->a[i * n + j];
        }
    free(q);
    free(v);
    *residual = sqrt(r);
    *skew = sqrt(s);
    *size = sqrt(a);
}

static void accept(const problem *x, const char *matrix, const char *method) {
    double residual, skew, size, terms = (double)x->n * x->p->eps;
    measure(x, &residual, &skew, &size);
    if (!(residual <= 64 * terms * size) || !(skew <= 25 * terms))
        fail_msg("%s, %s matrix of %d rows, %s: |A - QVQ'| %g of %g allowed, |Q'Q - I| %g of %g",
                 x->p->device, matrix, (int)x->n, method, residual, 64 * terms * size, skew, 25 * terms);
}

static void test_eigen_batch(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++) {
        enum { COUNT = MATRICES * SIZES };
        problem list[COUNT];
        dsc_solve_item items[COUNT];
        dsc_tensor work;
        const int64_t bytes =
            (int64_t)dsc_op_syev_batch_workspace(places[p].handle, places[p].dtype, sizes[SIZES - 1], COUNT);
        assert_ok(dsc_tensor_alloc(places[p].handle, DSC_U8, 1, &bytes, &work));
        for (int i = 0; i < COUNT; i++) {
            list[i] = open_problem(&places[p], matrices[i / SIZES].element, sizes[i % SIZES], 0);
            items[i] = list[i].item;
        }
        assert_ok(dsc_op_syev_batch(places[p].queue, items, COUNT, &work));
        for (int i = 0; i < COUNT; i++) {
            assert_int_equal(items[i].failed, 0);
            accept(&list[i], matrices[i / SIZES].name, "batch");
            close_problem(&list[i]);
        }
        dsc_tensor_free(&work);
    }
}

/* Each retry by itself. */
static void test_eigen_retries(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++)
        for (int i = 0; i < MATRICES * SIZES; i++)
            for (int retry = 0; retry < dsc_solver_eigen.retry_count; retry++) {
                problem x = open_problem(&places[p], matrices[i / SIZES].element, sizes[i % SIZES], 0);
                dsc_solver one = {NULL, &dsc_solver_eigen.retries[retry], 1};
                int solved = 0;
                assert_ok(dsc_op_fill(places[p].queue, NAN, &x.item.a));
                assert_ok(dsc_solve_retry(&one, places[p].queue, load_problem, &x, 0, &x.item.a, &x.item.v,
                                          &solved));
                assert_int_equal(solved, 1);
                accept(&x, matrices[i / SIZES].name, retry ? "second retry" : "first retry");
                close_problem(&x);
            }
}

/* |A X - I| of an inverse is at most terms eps |A| |X|. */
static void accept_inverse(const problem *x, const char *matrix) {
    int64_t n = x->n;
    double off = 0, a = 0, inverse = 0, *got = pull(x->p->queue, &x->item.a);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = i == j ? -1 : 0;
            for (int64_t k = 0; k < n; k++)
                sum += x->a[i * n + k] * got[k * n + j];
            off += sum * sum;
            a += x->a[i * n + j] * x->a[i * n + j];
            inverse += got[i * n + j] * got[i * n + j];
            assert_true(got[i * n + j] == got[j * n + i]);
        }
    free(got);
    double allowed = 8 * (double)n * x->p->eps * sqrt(a * inverse);
    if (!(sqrt(off) <= allowed))
        fail_msg("%s, inverse of %s of %d rows: |A X - I| %g of %g", x->p->device, matrix, (int)n, sqrt(off),
                 allowed);
}

/* Positive semi-definite matrices plus a damping: the batched solver and a retry. */
static void test_inverse(void **state) {
    (void)state;
    static const int semi_definite[] = {0, 1, 2, 3, 4, 6};
    for (int p = 0; p < PLACES; p++)
        for (int m = 0; m < 6; m++)
            for (int s = 0; s < SIZES; s++) {
                const char *name = matrices[semi_definite[m]].name;
                problem x = open_problem(&places[p], matrices[semi_definite[m]].element, sizes[s], 0.01);
                x.item.failed = -1;
                assert_ok(dsc_solver_inverse.batch(places[p].queue, &x.item, 1, NULL));
                assert_int_equal(x.item.failed, 0);
                accept_inverse(&x, name);
                int solved = 0;
                assert_ok(dsc_solve_retry(&dsc_solver_inverse, places[p].queue, load_problem, &x, 0,
                                          &x.item.a, &x.item.v, &solved));
                assert_int_equal(solved, 1);
                accept_inverse(&x, name);
                close_problem(&x);
            }
}

/* Eigenvalues 3, 2 and -1/1024, where rounding has spoilt one that was at least 1/8: the last retry uses
 * 1/8. */
static void test_indefinite_inverse(void **state) {
    (void)state;
    static const double matrix[9] = {2.5, 0.5, 0, 0.5, 2.5, 0, 0, 0, -0x1p-10};
    static const double want[9] = {2.5 / 6, -0.5 / 6, 0, -0.5 / 6, 2.5 / 6, 0, 0, 0, 8};
    for (int p = 0; p < PLACES; p++) {
        problem x = open_problem(&places[p], identity, 3, 0);
        for (int i = 0; i < 9; i++)
            x.a[i] = matrix[i];
        int solved = 0;
        assert_ok(dsc_solve_retry(&dsc_solver_inverse, places[p].queue, load_problem, &x, 0.125, &x.item.a,
                                  &x.item.v, &solved));
        assert_int_equal(solved, 1);
        double *got = pull(places[p].queue, &x.item.a);
        for (int i = 0; i < 9; i++)
            assert_true(fabs(got[i] - want[i]) <= 64 * places[p].eps * 8);
        free(got);
        close_problem(&x);
    }
}

/* A matrix that cannot be solved is marked as failed and does not spoil its neighbours. */
static void test_batch_failures(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++) {
        problem list[3];
        dsc_solve_item items[3];
        for (int i = 0; i < 3; i++) {
            list[i] = open_problem(&places[p], identity, 24, 0.5);
            if (i == 1)
                set(&places[p], &list[i].item.a, 24 * 5 + 2, NAN);
            items[i] = list[i].item;
        }
        const int64_t bytes = (int64_t)dsc_op_syev_batch_workspace(places[p].handle, places[p].dtype, 24, 3);
        dsc_tensor work;
        assert_ok(dsc_tensor_alloc(places[p].handle, DSC_U8, 1, &bytes, &work));
        assert_ok(dsc_solver_eigen.batch(places[p].queue, items, 3, &work));
        for (int i = 0; i < 3; i++)
            assert_int_equal(items[i].failed, i == 1);
        accept(&list[0], "identity", "beside a failure");
        accept(&list[2], "identity", "beside a failure");
        for (int i = 0; i < 3; i++)
            assert_ok(load_problem(&list[i], places[p].queue, &list[i].item.a));
        set(&places[p], &list[1].item.a, 0, -3); /* not positive definite */
        assert_ok(dsc_solver_inverse.batch(places[p].queue, items, 3, NULL));
        for (int i = 0; i < 3; i++) {
            assert_int_equal(items[i].failed, i == 1);
            close_problem(&list[i]);
        }
        dsc_tensor_free(&work);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_retries),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_retried),
        cmocka_unit_test(test_last_retry),
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_error),
        cmocka_unit_test(test_indefinite_inverse),
        cmocka_unit_test(test_eigen_batch),
        cmocka_unit_test(test_eigen_retries),
        cmocka_unit_test(test_inverse),
        cmocka_unit_test(test_batch_failures),
    };
    return cmocka_run_group_tests_name("kfac solve", tests, places_open, places_close);
}
