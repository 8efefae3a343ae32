/* The refresh of an eigenbasis: rotations, orthonormal columns, Rayleigh quotients. Against plain loops in
 * double, on every device, in both types. */
#include "chosen.h"
#include "device/rig.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const dsc_dtype types[] = {DSC_F32, DSC_F64};

/* |got - want| <= limit[i], and intact guards. */
static void expect_near(const rig *r, const place *p, const double *want, const double *limit,
                        const char *what) {
    int64_t count = dsc_tensor_count(&p->t);
    double *got = test_array(count, sizeof *got);
    place_read(r, p, got);
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(got[i] - want[i]) <= limit[i]) && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("%s, %s: %s[%lld] of %lld is %.9g instead of %.9g (limit %.3g)", r->label,
                     dsc_dtype_name(p->t.dtype), what, (long long)i, (long long)count, got[i], want[i],
                     limit[i]);
    free(got);
    place_check_guards(r, p, what);
}

static void free_places(place *places, int count) {
    for (int i = 0; i < count; i++)
        place_free(&places[i]);
}

/* A number as the type holds it. */
static double rounded(dsc_dtype type, double value) {
    return type == DSC_F32 ? (double)(float)value : value;
}

/* ---- rotations ---- */

typedef struct rotation_case {
    int64_t n, k;
    double size;  /* of A's eigenvalues */
    double delta; /* relative to size */
    int kind;     /* of the diagonal, below */
} rotation_case;

enum { DISTINCT, TIED, EQUAL, NEGATIVE, WITH_NAN };

static const rotation_case rotations[] = {
    {150, 37, 1, 1e-3, DISTINCT},  {70, 70, 1, 1e-3, DISTINCT},     {5, 5, 1, 0.1, TIED},
    {1, 1, 1, 0.1, DISTINCT},      {2, 1, 1, 0.1, DISTINCT},        {33, 32, 1, 1e-3, TIED},
    {64, 64, 1, 1e-3, TIED},       {40, 10, 1e-25, 1e-3, DISTINCT}, {40, 40, 1e-25, 1e-3, DISTINCT},
    {40, 40, 1e20, 0.1, DISTINCT}, {20, 20, 1, 1e-3, EQUAL},        {20, 7, 1, 1e-3, EQUAL},
    {20, 7, 1, 1e-3, NEGATIVE},    {20, 20, 1, 1e-3, NEGATIVE},     {20, 20, 1, 1e-3, WITH_NAN},
    {300, 280, 1, 1e-3, DISTINCT}, {21, 6, 1, 1e-3, WITH_NAN},
};
enum { ROTATIONS = sizeof rotations / sizeof rotations[0] };

/* b, q, y, x, z of a case, with what they hold before. */
typedef struct rotation {
    place places[5];
    double *values[3];
} rotation;

/* B: a diagonal of the case's kind and small numbers beside it; NaN in what is only written. */
static rotation rotation_make(const rig *r, dsc_dtype type, const rotation_case *c, uint64_t stream) {
    const int64_t rows[] = {c->k, c->n, c->n, c->k, c->n};
    rotation it;
    for (int i = 0; i < 5; i++) {
        int64_t count = rows[i] * c->k;
        double *values = test_array(count, sizeof *values);
        random_values(5 * stream + (uint64_t)i, count, values);
        for (int64_t e = 0; i == 0 && e < count; e++) {
            int64_t row = e / c->k;
            double entry = values[e];
            if (row != e % c->k)
                values[e] = entry * 0.05;
            else if (c->kind == EQUAL)
                values[e] = 0.5;
            else if (c->kind == TIED)
                values[e] = (double)(row * 7 % 3);
            else if (c->kind == NEGATIVE)
                values[e] = -fabs(entry);
            else if (c->kind == WITH_NAN && row % 4 == 1)
                values[e] = NAN;
            values[e] = rounded(type, values[e] * c->size);
        }
        for (int64_t e = 0; i > 2 && e < count; e++)
            values[e] = NAN;
        it.places[i] = place_of(r, type, SHAPE(rows[i], c->k), values);
        if (i < 3)
            it.values[i] = values;
        else
            free(values);
    }
    return it;
}

/* Whether column a comes before column b, by the words of the contract. */
static int before(const double *b, int64_t k, int64_t one, int64_t other) {
    double l = b[one * (k + 1)], m = b[other * (k + 1)];
    if (isnan(l) || isnan(m))
        return isnan(l) == isnan(m) ? one < other : isnan(m);
    return l == m ? one < other : l > m;
}

/* order[j]: the column that becomes j. */
static int64_t *rotation_order(const double *b, int64_t k) {
    int64_t *order = test_array(k, sizeof *order);
    for (int64_t c = 0; c < k; c++) {
        int64_t j = c;
        for (; j > 0 && before(b, k, c, order[j - 1]); j--)
            order[j] = order[j - 1];
        order[j] = c;
    }
    return order;
}

static double positive(double value) {
    return value > 0 ? value : 0;
}

static double angle_of(double element, double li, double lj, double delta) {
    double g = lj - li, u = (positive(li) + delta) * (positive(lj) + delta);
    double size = g * g + 0.03 * 0.03 * u + 4 * element * element;
    return size == 0 ? 0 : element * g / size;
}

static void check_rotation(const rig *r, dsc_dtype type, const rotation_case *c, const rotation *it) {
    const double *b = it->values[0], *q = it->values[1], *y = it->values[2];
    int64_t n = c->n, k = c->k, *order = rotation_order(b, k);
    double *x = test_array(k * k, sizeof *x), *x_limit = test_array(k * k, sizeof *x);
    double *z = test_array(n * k, sizeof *z), *z_limit = test_array(n * k, sizeof *z);
    double top = b[order[0] * (k + 1)], eps = 16 * dtype_eps(type), delta = c->delta * c->size;
    for (int64_t j = 0; j < k; j++) {
        int64_t o = order[j];
        double l = b[o * (k + 1)], s = 0;
        if (k < n && top > 0)
            s = 1 / (l > top / 1024 ? l : top / 1024);
        for (int64_t i = 0; i < k; i++) {
            double element = (b[i * k + o] + b[o * k + i]) / 2;
            double turn = i == o ? 0 : angle_of(element, b[i * (k + 1)], l, delta);
            double drawn = s == 0 ? 0 : element * s;
            x[i * k + j] = turn - drawn;
            x_limit[i * k + j] = eps * (fabs(turn) + fabs(drawn));
        }
        for (int64_t i = 0; i < n; i++) {
            z[i * k + j] = q[i * k + o] + y[i * k + o] * s;
            z_limit[i * k + j] = k == n ? 0 : eps * (fabs(q[i * k + o]) + fabs(y[i * k + o] * s));
        }
    }
    expect_near(r, &it->places[3], x, x_limit, "rotation_batch: x");
    expect_near(r, &it->places[4], z, z_limit, "rotation_batch: z");
    place_expect(r, &it->places[1], q, "rotation_batch: q");
    place_expect(r, &it->places[2], y, "rotation_batch: y");
    place_check_guards(r, &it->places[0], "rotation_batch: b");
    double *all[] = {x, x_limit, z, z_limit};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    free(order);
}

static dsc_rotation_item rotation_item(const rotation_case *c, const rotation *it) {
    return (dsc_rotation_item){.b = it->places[0].t,
                               .q = it->places[1].t,
                               .y = it->places[2].t,
                               .x = it->places[3].t,
                               .z = it->places[4].t,
                               .delta = c->delta * c->size};
}

static void rotation_free(rotation *it) {
    free_places(it->places, 5);
    for (int i = 0; i < 3; i++)
        free(it->values[i]);
}

static void test_rotation_batch(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < 2; type++) {
            rotation all[ROTATIONS];
            dsc_rotation_item items[ROTATIONS];
            for (int i = 0; i < ROTATIONS; i++) {
                all[i] = rotation_make(&rigs[r], types[type], &rotations[i], (uint64_t)i);
                items[i] = rotation_item(&rotations[i], &all[i]);
            }
            assert_ok(dsc_op_rotation_batch(rigs[r].q, items, ROTATIONS));
            assert_ok(dsc_op_rotation_batch(rigs[r].q, NULL, 0));
            for (int i = 0; i < ROTATIONS; i++) {
                check_rotation(&rigs[r], types[type], &rotations[i], &all[i]);
                rotation_free(&all[i]);
            }
        }
}

/* More items than one launch of a GPU's kernel takes. */
static void test_many_rotations(void **state) {
    (void)state;
    enum { COUNT = 150 };
    static const rotation_case cases[] = {{9, 4, 1, 0.1, DISTINCT}, {3, 3, 1, 0.1, TIED}};
    for (int r = 0; r < rig_count; r++) {
        rotation all[COUNT];
        dsc_rotation_item items[COUNT];
        for (int i = 0; i < COUNT; i++) {
            all[i] = rotation_make(&rigs[r], DSC_F32, &cases[i % 2], (uint64_t)i);
            items[i] = rotation_item(&cases[i % 2], &all[i]);
        }
        assert_ok(dsc_op_rotation_batch(rigs[r].q, items, COUNT));
        for (int i = 0; i < COUNT; i++) {
            check_rotation(&rigs[r], DSC_F32, &cases[i % 2], &all[i]);
            rotation_free(&all[i]);
        }
    }
}

static void test_rotation_refusals(void **state) {
    (void)state;
    const rotation_case good = {5, 3, 1, 0.1, DISTINCT};
    for (int r = 0; r < rig_count; r++) {
        dsc_queue *q = rigs[r].q;
        rotation it = rotation_make(&rigs[r], DSC_F32, &good, 0);
        place wide = place_make(&rigs[r], DSC_F32, SHAPE(3, 5)),
              none = place_make(&rigs[r], DSC_F32, SHAPE(5, 0));
        dsc_rotation_item item = rotation_item(&good, &it), items[2] = {item, item};
        items[1].b = wide.t;
        assert_fails(DSC_E_INVALID, "item 1: rotation_batch: b is [3,5]; [3,3] is expected",
                     dsc_op_rotation_batch(q, items, 2));
        items[0].q = wide.t;
        assert_fails(DSC_E_INVALID, "item 0: rotation_batch: q is [3,5]; 1 column at least",
                     dsc_op_rotation_batch(q, items, 1));
        items[0].q = none.t;
        assert_fails(DSC_E_INVALID, "item 0: rotation_batch: q is [5,0]; 1 column at least",
                     dsc_op_rotation_batch(q, items, 1));
        items[0] = item;
        items[0].x = item.b;
        assert_fails(DSC_E_INVALID, "x shares memory with b", dsc_op_rotation_batch(q, items, 1));
        items[0] = item;
        items[0].delta = 0;
        assert_fails(DSC_E_INVALID, "delta is 0; a positive number", dsc_op_rotation_batch(q, items, 1));
        items[0].delta = NAN;
        assert_fails(DSC_E_INVALID, "delta is nan; a positive number", dsc_op_rotation_batch(q, items, 1));
        items[0].delta = INFINITY;
        assert_fails(DSC_E_INVALID, "delta is inf; a positive number", dsc_op_rotation_batch(q, items, 1));
        assert_fails(DSC_E_INVALID, "-1 items", dsc_op_rotation_batch(q, items, -1));
        assert_true(isnan(place_get(&rigs[r], &it.places[3], 0))); /* nothing was computed */
        rotation_free(&it);
        place_free(&wide);
        place_free(&none);
    }
}

/* ---- orthonormal columns ---- */

/* What H of a case is. */
enum { GOOD, INDEFINITE, NOT_FINITE, INFINITE_PIVOT, ZERO };

typedef struct basis_case {
    int64_t n, k;
    int kind;
    double size; /* of Z's columns */
} basis_case;

static const basis_case bases[] = {
    {300, 290, GOOD, 1},     {400, 130, GOOD, 1},     {70, 5, INDEFINITE, 1},    {150, 65, GOOD, 1e-8},
    {130, 64, GOOD, 1e8},    {90, 37, GOOD, 1},       {90, 80, NOT_FINITE, 1},   {64, 64, GOOD, 1},
    {33, 33, GOOD, 1},       {20, 20, INDEFINITE, 1}, {7, 3, INFINITE_PIVOT, 1}, {200, 131, INDEFINITE, 1},
    {200, 129, GOOD, 1},     {1, 1, GOOD, 1},         {5, 2, ZERO, 1},           {9, 1, GOOD, 1},
    {40, 35, NOT_FINITE, 1},
};
enum { BASES = sizeof bases / sizeof bases[0] };

/* Columns of about the same length, at angles of about 60 degrees and more. */
static double *make_basis(dsc_dtype type, const basis_case *c, uint64_t stream) {
    double *z = test_array(c->n * c->k, sizeof *z);
    random_values(stream, c->n * c->k, z);
    for (int64_t i = 0; i < c->n; i++)
        for (int64_t j = 0; j < c->k; j++) {
            double entry = (i == j ? 1 + 0.1 * z[i * c->k + j] : 0.5 * z[i * c->k + j] / sqrt((double)c->n));
            z[i * c->k + j] = rounded(type, entry * c->size);
        }
    return z;
}

/* The lower triangle of Z'Z, or what the case makes of it; NaN above, where nothing is read. */
static double *make_products(dsc_dtype type, const basis_case *c, const double *z) {
    int64_t n = c->n, k = c->k;
    double *h = test_array(k * k, sizeof *h);
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < k; j++) {
            double sum = 0;
            for (int64_t l = 0; l < n; l++)
                sum += z[l * k + i] * z[l * k + j];
            h[i * k + j] = j > i ? NAN : c->kind == ZERO ? 0 : rounded(type, sum);
        }
    if (c->kind == INDEFINITE)
        h[(k - 2) * (k + 1)] = -h[(k - 2) * (k + 1)];
    if (c->kind == NOT_FINITE)
        h[(k - 1) * k] = NAN;
    if (c->kind == INFINITE_PIVOT)
        h[(k - 1) * (k + 1)] = INFINITY;
    return h;
}

/* R' of R'R = H, in double. */
static void cholesky(int64_t k, double *h) {
    for (int64_t j = 0; j < k; j++)
        for (int64_t i = j; i < k; i++) {
            double sum = h[i * k + j];
            for (int64_t l = 0; l < j; l++)
                sum -= h[i * k + l] * h[j * k + l];
            h[i * k + j] = i == j ? sqrt(sum) : sum / h[j * k + j];
        }
}

/* Z R^-1, and what its rounding errors are measured by: the sizes of the numbers that are added up. */
static void solve_rows(const basis_case *c, const double *l, const double *z, double *want, double *size) {
    int64_t k = c->k;
    for (int64_t r = 0; r < c->n; r++)
        for (int64_t j = 0; j < k; j++) {
            double sum = z[r * k + j], magnitude = fabs(sum);
            for (int64_t i = 0; i < j; i++) {
                sum -= want[r * k + i] * l[j * k + i];
                magnitude += size[r * k + i] * fabs(l[j * k + i]);
            }
            want[r * k + j] = sum / l[j * (k + 1)];
            size[r * k + j] = magnitude / l[j * (k + 1)];
        }
}

static void check_basis(const rig *r, dsc_dtype type, const basis_case *c, uint64_t stream, const place *z) {
    int64_t n = c->n, k = c->k;
    double *from = make_basis(type, c, stream), *l = make_products(type, c, from);
    double *want = test_array(n * k, sizeof *want), *limit = test_array(n * k, sizeof *limit);
    double *got = test_array(n * k, sizeof *got), worst = 0;
    cholesky(k, l);
    solve_rows(c, l, from, want, limit);
    for (int64_t e = 0; e < n * k; e++)
        limit[e] = 4 * dtype_eps(type) * (16 * limit[e] + 1);
    expect_near(r, z, want, limit, "orthonormal_batch: z");
    place_read(r, z, got);
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j <= i; j++) {
            double sum = i == j ? -1 : 0;
            for (int64_t e = 0; e < n; e++)
                sum += got[e * k + i] * got[e * k + j];
            worst = fmax(worst, fabs(sum));
        }
    if (!(worst <= 100 * dtype_eps(type)))
        fail_msg("%s, %s: %lld columns of %lld are orthonormal to %.3g", r->label, dsc_dtype_name(type),
                 (long long)k, (long long)n, worst);
    double *all[] = {from, l, want, limit, got};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

static void check_bases(const rig *r, dsc_dtype type, const basis_case *cases, int64_t count) {
    place *h = test_array(count, sizeof *h), *z = test_array(count, sizeof *z);
    dsc_orthonormal_item *items = test_array(count, sizeof *items);
    for (int64_t i = 0; i < count; i++) {
        double *from = make_basis(type, &cases[i], (uint64_t)i), *of = make_products(type, &cases[i], from);
        z[i] = place_of(r, type, SHAPE(cases[i].n, cases[i].k), from);
        h[i] = place_of(r, type, SHAPE(cases[i].k, cases[i].k), of);
        items[i] = (dsc_orthonormal_item){h[i].t, z[i].t, 7, 0};
        free(from);
        free(of);
    }
    assert_ok(dsc_op_orthonormal_batch(r->q, items, count));
    for (int64_t i = 0; i < count; i++) {
        assert_int_equal(items[i].failed, cases[i].kind != GOOD);
        if (!items[i].failed)
            check_basis(r, type, &cases[i], (uint64_t)i, &z[i]);
        place_check_guards(r, &h[i], "orthonormal_batch: h");
        place_check_guards(r, &z[i], "orthonormal_batch: z");
    }
    free_places(h, (int)count);
    free_places(z, (int)count);
    free(h);
    free(z);
    free(items);
}

static void test_orthonormal_batch(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < 2; type++) {
            check_bases(&rigs[r], types[type], bases, BASES);
            check_bases(&rigs[r], types[type], bases + 2, 2);
            check_bases(&rigs[r], types[type], bases, 0);
        }
}

/* The largest element of Z'Zx - x for a vector x, Z[n,n]. */
static double wrong_by(const double *z, const double *x, int64_t n) {
    double *product = test_array(n, sizeof *product), worst = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            product[i] += z[i * n + j] * x[j];
    for (int64_t j = 0; j < n; j++) {
        double sum = -x[j];
        for (int64_t i = 0; i < n; i++)
            sum += z[i * n + j] * product[i];
        worst = fmax(worst, fabs(sum));
    }
    free(product);
    return worst;
}

/* A large basis whose products may be rounded to TF32: the identity, turned a little, beside a small basis. The last
 * test, because it adds a device that rounds. */
static void test_fast_bases(void **state) {
    (void)state;
    if (chosen() && strcmp(chosen(), chosen_exact_or(NULL)) != 0)
        assert_int_equal(rig_open(chosen(), 1), 0);
    enum { N = 700, SMALL = 6 };
    double *from = test_array(N * N, sizeof *from), *of = test_array(N * N, sizeof *of),
           *x = test_array(N, sizeof *x);
    random_values(1, N, x);
    random_values(2, N * N, from);
    for (int64_t e = 0; e < N * N; e++)
        from[e] = (e % (N + 1) == 0) + 0.004 * from[e];
    for (int64_t i = 0; i < N; i++)
        for (int64_t e = 0; e < N; e++)
            for (int64_t j = 0; j < N; j++)
                of[i * N + j] += from[e * N + i] * from[e * N + j];
    for (int r = 0; r < rig_count; r++) {
        place z[2] = {place_of(&rigs[r], DSC_F32, SHAPE(N, N), from),
                      place_of(&rigs[r], DSC_F32, SHAPE(SMALL, 1), from)};
        place h[2] = {place_of(&rigs[r], DSC_F32, SHAPE(N, N), of),
                      place_of(&rigs[r], DSC_F32, SHAPE(1, 1), of)};
        dsc_orthonormal_item items[2] = {{h[0].t, z[0].t, 7, 1}, {h[1].t, z[1].t, 7, 1}};
        assert_ok(dsc_op_orthonormal_batch(rigs[r].q, items, 2));
        assert_int_equal(items[0].failed, 0);
        double *got = test_array(N * N, sizeof *got);
        place_read(&rigs[r], &z[0], got);
        double wrong = wrong_by(got, x, N);
        if (!(wrong <= 1e-3))
            fail_msg("%s: Z'Z differs from the identity by %.3g", rigs[r].label, wrong);
        free(got);
        for (int i = 0; i < 2; i++) {
            place_check_guards(&rigs[r], &h[i], "orthonormal_batch: h");
            place_check_guards(&rigs[r], &z[i], "orthonormal_batch: z");
        }
        free_places(h, 2);
        free_places(z, 2);
    }
    free(from);
    free(of);
    free(x);
}

/* More items than one launch of a GPU's kernel takes. */
static void test_many_bases(void **state) {
    (void)state;
    enum { COUNT = 150 };
    basis_case cases[COUNT];
    for (int i = 0; i < COUNT; i++)
        cases[i] = (basis_case){4 + i % 7, 1 + i % 4, i % 10 == 3 ? ZERO : GOOD, 1};
    for (int r = 0; r < rig_count; r++)
        check_bases(&rigs[r], DSC_F32, cases, COUNT);
}

static void test_orthonormal_refusals(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        dsc_queue *q = rigs[r].q;
        place h = place_make(&rigs[r], DSC_F32, SHAPE(2, 2)), z = place_make(&rigs[r], DSC_F32, SHAPE(5, 3));
        place wide = place_make(&rigs[r], DSC_F32, SHAPE(2, 3));
        dsc_orthonormal_item item = {h.t, z.t, 7, 0};
        assert_fails(DSC_E_INVALID, "item 0: orthonormal_batch: h is [2,2]; [3,3] is expected",
                     dsc_op_orthonormal_batch(q, &item, 1));
        item.z = wide.t;
        assert_fails(DSC_E_INVALID, "z is [2,3]; 1 column at least", dsc_op_orthonormal_batch(q, &item, 1));
        item.z = item.h;
        assert_fails(DSC_E_INVALID, "h shares memory with z", dsc_op_orthonormal_batch(q, &item, 1));
        assert_fails(DSC_E_INVALID, "no array", dsc_op_orthonormal_batch(q, NULL, 1));
        assert_int_equal(item.failed, 7);
        place_free(&h);
        place_free(&z);
        place_free(&wide);
    }
}

/* ---- Rayleigh quotients ---- */

static const int64_t rayleighs[][2] = {{300, 75}, {700, 31}, {65, 65}, {1, 1}, {5, 2}, {33, 32}, {257, 257}};
enum { RAYLEIGHS = sizeof rayleighs / sizeof rayleighs[0] };

/* a, q, y, v, result. */
typedef struct rayleigh {
    place places[5];
    double *a, *q, *y;
} rayleigh;

static rayleigh rayleigh_make(const rig *r, dsc_dtype type, int64_t n, int64_t k) {
    double *a = test_array(n * n, sizeof *a), *q = test_array(n * k, sizeof *q);
    double *y = test_array(n * k, sizeof *y);
    random_values(1, n * n, a);
    random_values(2, n * k, q);
    random_values(3, n * k, y);
    for (int64_t e = 0; e < n * k;
         e++) { /* y is about v q, for v from -1 to 3, to which the residual is small */
        int64_t j = e % k;
        q[e] = j == 3 && k > 4 ? 0 : q[e];
        y[e] = rounded(type, (double)(j % 5 - 1) * q[e] + 1e-4 * y[e]);
    }
    rayleigh it = {.a = a, .q = q, .y = y};
    it.places[0] = place_of(r, type, SHAPE(n, n), a);
    it.places[1] = place_of(r, type, SHAPE(n, k), q);
    it.places[2] = place_of(r, type, SHAPE(n, k), y);
    it.places[3] = place_make(r, type, SHAPE(k));
    it.places[4] = place_make(r, DSC_F64, SHAPE(3));
    return it;
}

static const double rayleigh_delta = 0.01;

static void check_rayleigh(const rig *r, dsc_dtype type, int64_t n, int64_t k, const rayleigh *it) {
    double *v = test_array(k, sizeof *v), *limit = test_array(k, sizeof *limit);
    double result[3] = {0}, result_limit[3], sizes[2] = {0};
    for (int64_t i = 0; i < n; i++) {
        result[0] += it->a[i * (n + 1)];
        sizes[0] += fabs(it->a[i * (n + 1)]);
    }
    for (int64_t j = 0; j < k; j++) {
        double qy = 0, qq = 0, rest = 0, size = 0;
        for (int64_t e = j; e < n * k; e += k) {
            qy += it->q[e] * it->y[e];
            size += fabs(it->q[e] * it->y[e]);
            qq += it->q[e] * it->q[e];
        }
        v[j] = qq == 0 ? 0 : qy / qq;
        for (int64_t e = j; e < n * k; e += k)
            rest += (it->y[e] - v[j] * it->q[e]) * (it->y[e] - v[j] * it->q[e]);
        result[1] += v[j];
        sizes[1] += qq == 0 ? 0 : size / qq;
        double relative = sqrt(rest) / (positive(v[j]) + rayleigh_delta);
        result[2] += relative * relative / (double)k;
        limit[j] = 2 * dtype_eps(type) * fabs(v[j]) + 4 * (double)n * DBL_EPSILON * (qq == 0 ? 0 : size / qq);
    }
    result[2] = sqrt(result[2]);
    for (int i = 0; i < 2; i++)
        result_limit[i] = 4 * (double)(n + k) * DBL_EPSILON * sizes[i];
    result_limit[2] = 1e-9 * result[2] + 16 * DBL_EPSILON; /* 0 of one row is a rounding error of y */
    expect_near(r, &it->places[3], v, limit, "rayleigh_batch: v");
    expect_near(r, &it->places[4], result, result_limit, "rayleigh_batch: result");
    place_expect(r, &it->places[1], it->q, "rayleigh_batch: q");
    place_expect(r, &it->places[2], it->y, "rayleigh_batch: y");
    free(v);
    free(limit);
}

static void test_rayleigh_batch(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < 2; type++) {
            rayleigh all[RAYLEIGHS];
            dsc_rayleigh_item items[RAYLEIGHS];
            for (int i = 0; i < RAYLEIGHS; i++) {
                all[i] = rayleigh_make(&rigs[r], types[type], rayleighs[i][0], rayleighs[i][1]);
                const place *p = all[i].places;
                items[i] = (dsc_rayleigh_item){p[0].t, p[1].t, p[2].t, p[3].t, p[4].t, rayleigh_delta};
            }
            assert_ok(dsc_op_rayleigh_batch(rigs[r].q, items, RAYLEIGHS));
            assert_ok(dsc_op_rayleigh_batch(rigs[r].q, NULL, 0));
            for (int i = 0; i < RAYLEIGHS; i++) {
                check_rayleigh(&rigs[r], types[type], rayleighs[i][0], rayleighs[i][1], &all[i]);
                free_places(all[i].places, 5);
                free(all[i].a);
                free(all[i].q);
                free(all[i].y);
            }
        }
}

/* A NaN reaches the results of its item, and of no other. */
static void test_rayleigh_nan(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        rayleigh bad = rayleigh_make(&rigs[r], DSC_F32, 40, 10),
                 good = rayleigh_make(&rigs[r], DSC_F32, 40, 10);
        bad.y[123] = NAN; /* column 3 is 0: 0 NaN */
        bad.y[124] = NAN;
        place_write(&rigs[r], &bad.places[2], bad.y);
        const place *p = bad.places, *g = good.places;
        dsc_rayleigh_item items[] = {{p[0].t, p[1].t, p[2].t, p[3].t, p[4].t, rayleigh_delta},
                                     {g[0].t, g[1].t, g[2].t, g[3].t, g[4].t, rayleigh_delta}};
        assert_ok(dsc_op_rayleigh_batch(rigs[r].q, items, 2));
        assert_true(isnan(place_get(&rigs[r], &p[3], 4)));
        assert_true(isnan(place_get(&rigs[r], &p[4], 1)));
        assert_true(isnan(place_get(&rigs[r], &p[4], 2)));
        assert_false(isnan(place_get(&rigs[r], &p[3], 5)));
        check_rayleigh(&rigs[r], DSC_F32, 40, 10, &good);
        rayleigh *both[] = {&bad, &good};
        for (int i = 0; i < 2; i++) {
            free_places(both[i]->places, 5);
            free(both[i]->a);
            free(both[i]->q);
            free(both[i]->y);
        }
    }
}

static void test_rayleigh_refusals(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        dsc_queue *q = rigs[r].q;
        rayleigh it = rayleigh_make(&rigs[r], DSC_F32, 5, 3);
        const place *p = it.places;
        const dsc_rayleigh_item good = {p[0].t, p[1].t, p[2].t, p[3].t, p[4].t, 1};
        dsc_rayleigh_item item = good;
        item.result = p[3].t;
        assert_fails(DSC_E_INVALID, "item 0: rayleigh_batch: result is fp32; fp64 is expected",
                     dsc_op_rayleigh_batch(q, &item, 1));
        item = good;
        item.a = p[1].t;
        assert_fails(DSC_E_INVALID, "a is [5,3]; [5,5] is expected", dsc_op_rayleigh_batch(q, &item, 1));
        item = good;
        item.y = p[1].t;
        assert_fails(DSC_E_INVALID, "y shares memory with q", dsc_op_rayleigh_batch(q, &item, 1));
        item = good;
        item.delta = -1;
        assert_fails(DSC_E_INVALID, "delta is -1; a positive number", dsc_op_rayleigh_batch(q, &item, 1));
        free_places(it.places, 5);
        free(it.a);
        free(it.q);
        free(it.y);
    }
}

/* ---- threads ---- */

/* 1: the same device with another number of threads. */
static int same_but_threads(const rig *r, const rig *s) {
    size_t length = strcspn(r->label, ",");
    return r != s && strcspn(s->label, ",") == length && strncmp(r->label, s->label, length) == 0;
}

/* A basis large enough to be cut among threads: x and z of its rotation, z made orthonormal, and v. */
static double *large_refresh(const rig *r, int64_t *count) {
    const rotation_case turned = {700, 390, 1, 1e-3, DISTINCT};
    const basis_case made = {700, 390, GOOD, 1};
    int64_t n = turned.n, k = turned.k;
    rotation it = rotation_make(r, DSC_F32, &turned, 3);
    dsc_rotation_item turn = rotation_item(&turned, &it);
    double *from = make_basis(DSC_F32, &made, 4), *products = make_products(DSC_F32, &made, from);
    place z = place_of(r, DSC_F32, SHAPE(n, k), from), h = place_of(r, DSC_F32, SHAPE(k, k), products);
    dsc_orthonormal_item basis = {h.t, z.t, 7, 0};
    rayleigh sums = rayleigh_make(r, DSC_F32, n, k);
    const place *p = sums.places;
    const dsc_rayleigh_item measured = {p[0].t, p[1].t, p[2].t, p[3].t, p[4].t, rayleigh_delta};
    assert_ok(dsc_op_rotation_batch(r->q, &turn, 1));
    assert_ok(dsc_op_orthonormal_batch(r->q, &basis, 1));
    assert_ok(dsc_op_rayleigh_batch(r->q, &measured, 1));
    assert_int_equal(basis.failed, 0);
    *count = k * k + 2 * n * k + k + 3;
    double *all = test_array(*count, sizeof *all), *to = all;
    const place *outputs[] = {&it.places[3], &it.places[4], &z, &p[3], &p[4]};
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; to += dsc_tensor_count(&outputs[i++]->t))
        place_read(r, outputs[i], to);
    rotation_free(&it);
    place_free(&z);
    place_free(&h);
    free_places(sums.places, 5);
    double *inputs[] = {from, products, sums.a, sums.q, sums.y};
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
        free(inputs[i]);
    return all;
}

/* Bits do not depend on the number of threads. */
static void test_threads(void **state) {
    (void)state;
    int pairs = 0;
    for (int r = 1; r < rig_count; r++)
        for (int s = r + 1; s < rig_count; s++)
            if (same_but_threads(&rigs[r], &rigs[s])) {
                int64_t count;
                double *one = large_refresh(&rigs[r], &count), *other = large_refresh(&rigs[s], &count);
                assert_memory_equal(one, other, (size_t)count * sizeof *one);
                free(one);
                free(other);
                pairs++;
            }
    assert_true(pairs > 0 || chosen());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rotation_batch),    cmocka_unit_test(test_many_rotations),
        cmocka_unit_test(test_rotation_refusals), cmocka_unit_test(test_orthonormal_batch),
        cmocka_unit_test(test_many_bases),        cmocka_unit_test(test_orthonormal_refusals),
        cmocka_unit_test(test_rayleigh_batch),    cmocka_unit_test(test_rayleigh_nan),
        cmocka_unit_test(test_rayleigh_refusals), cmocka_unit_test(test_threads),
        cmocka_unit_test(test_fast_bases),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
