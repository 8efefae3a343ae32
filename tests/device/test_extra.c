/* What a step that never asks the host needs: counters, guards, the loss scale, skipped updates, batches of
 * small operations, packed factors, images made on the device. Against plain loops, on every device. */
#include "device/rig.h"
#include "device/updates.h"

#include <math.h>
#include <stdlib.h>

static const dsc_dtype types[] = {DSC_F32, DSC_F64};
enum { TYPES = 2 };

static void free_places(place *const *places, size_t count) {
    for (size_t i = 0; i < count; i++)
        place_free(places[i]);
}

#define FREE_PLACES(...)                                                                                     \
    free_places((place *const[]){__VA_ARGS__}, sizeof((place *const[]){__VA_ARGS__}) / sizeof(place *))

/* |got - want| <= share |want|, NaN for NaN, and intact guards. */
static void expect_within(const rig *r, const place *p, const double *want, double share, const char *what) {
    int64_t count = dsc_tensor_count(&p->t);
    double *got = test_array(count, sizeof *got);
    place_read(r, p, got);
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(got[i] - want[i]) <= share * fabs(want[i])) && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("%s, %s: %s[%lld] is %.9g instead of %.9g", r->label, dsc_dtype_name(p->t.dtype), what,
                     (long long)i, got[i], want[i]);
    free(got);
    place_check_guards(r, p, what);
}

/* ---- counters, guards, the loss scale ---- */

static void test_increment(void **state) {
    (void)state;
    for (int i = 0; i < rig_count; i++) {
        const rig *r = &rigs[i];
        double values[600];
        random_integers(1, 1 << 29, 600, values);
        place t = place_of(r, DSC_I64, SHAPE(600), values);
        assert_ok(dsc_op_increment(r->q, &t.t));
        assert_ok(dsc_op_increment(r->q, &t.t));
        for (int e = 0; e < 600; e++)
            values[e] += 2;
        place_expect(r, &t, values, "increment");
        place none = place_make(r, DSC_I64, SHAPE(0)), other = place_make(r, DSC_I32, SHAPE(2));
        assert_ok(dsc_op_increment(r->q, &none.t));
        assert_fails(DSC_E_INVALID, "increment: t is i32; i64 is expected", dsc_op_increment(r->q, &other.t));
        FREE_PLACES(&t, &none, &other);
    }
}

static void test_guard(void **state) {
    (void)state;
    static const struct {
        double value, before, flag;
        int firm;
    } cases[] = {{0, 1, 1, 1},   {1e308, 1, 1, 1}, {-INFINITY, 1, 2, 1}, {NAN, 1, 2, 1}, {NAN, 0, 2, 1},
                 {NAN, 0, 2, 0}, {NAN, 1, 1, 0},   {NAN, 2, 2, 0},       {1, 0, 0, 0},   {1, 1, 1, 0}};
    for (int i = 0; i < rig_count; i++) {
        const rig *r = &rigs[i];
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            place value = place_of(r, DSC_F64, SHAPE(1), &cases[c].value);
            place flag = place_of(r, DSC_F64, SHAPE(1), &cases[c].before);
            assert_ok(dsc_op_guard(r->q, &value.t, cases[c].firm, &flag.t));
            place_expect(r, &flag, &cases[c].flag, "guard: flag");
            place_expect(r, &value, &cases[c].value, "guard: value");
            assert_fails(DSC_E_INVALID, "guard: flag shares memory with value",
                         dsc_op_guard(r->q, &value.t, 1, &value.t));
            FREE_PLACES(&value, &flag);
        }
    }
}

typedef struct scale_case {
    double bad, skip;
    double before[3]; /* value, good, interval */
    double value, good, skipped;
} scale_case;

static const scale_case scale_cases[] = {
    {0, 0, {1024, 3, 10}, 1024, 4, 0},
    {0, 1, {1024, 9, 10}, 2048, 0, 0},       /* after its interval */
    {7, 0, {1024, 9, 10}, 512, 0, 1},        /* halved */
    {1, 0, {1, 5, 10}, 1, 0, 1},             /* not below 1 */
    {0, 0, {0x1p24, 9, 10}, 0x1p24, 0, 0},   /* not above 2^24 */
    {0, 0, {0x1.8p23, 9, 10}, 0x1p24, 0, 0}, /* */
    {2, 0, {64, 5, 0}, 64, 0, 1},            /* one that stays as it is */
    {0, 0, {64, 1000, 0}, 64, 1001, 0},      /* */
    {0, 2, {1024, 3, 10}, 1024, 4, 2},       /* what a guard said stays */
    {3, 2, {1024, 3, 10}, 512, 0, 2},        /* */
};

static void test_loss_scale(void **state) {
    (void)state;
    for (int i = 0; i < rig_count; i++) {
        const rig *r = &rigs[i];
        for (size_t n = 0; n < sizeof scale_cases / sizeof scale_cases[0]; n++) {
            const scale_case *c = &scale_cases[n];
            double was[DSC_SCALE_COUNT] = {c->before[0], NAN, NAN, c->before[1], c->before[2]};
            double want[DSC_SCALE_COUNT] = {c->value, 1 / c->before[0], 1 / c->before[0] / c->before[0],
                                            c->good, c->before[2]};
            place bad = place_of(r, DSC_F64, SHAPE(1), &c->bad);
            place scale = place_of(r, DSC_F64, SHAPE(DSC_SCALE_COUNT), was);
            place skip = place_of(r, DSC_F64, SHAPE(1), &c->skip);
            assert_ok(dsc_op_loss_scale(r->q, &bad.t, &scale.t, &skip.t));
            expect_within(r, &scale, want, 2 * dtype_eps(DSC_F64), "loss_scale: scale");
            place_expect(r, &skip, &c->skipped, "loss_scale: skip");
            assert_fails(DSC_E_INVALID, "loss_scale: scale is [1]; 5 elements are expected",
                         dsc_op_loss_scale(r->q, &bad.t, &bad.t, &skip.t));
            FREE_PLACES(&bad, &scale, &skip);
        }
    }
}

/* ---- updates that are skipped ---- */

static void check_skip(const rig *r, dsc_dtype type, double flag) {
    enum { N = 1003 };
    double *values = test_array(N, sizeof *values), hyper[DSC_HYPER_COUNT];
    for (int i = 0; i < DSC_HYPER_COUNT; i++)
        hyper[i] = 0.5;
    hyper[DSC_HYPER_SKIP] = flag;
    random_values(3, N, values);
    place h = place_of(r, DSC_F64, SHAPE(DSC_HYPER_COUNT), hyper), x = place_of(r, type, SHAPE(N), values);
    place g = place_of(r, type, SHAPE(N), values), m = place_of(r, type, SHAPE(N), values);
    place v = place_of(r, type, SHAPE(N), values), u = place_of(r, type, SHAPE(N), values);
    place norms = place_of(r, DSC_F64, SHAPE(2), (const double[]){1, 2});
    assert_ok(sgd(r->q, 1, &h.t, &x.t, &g.t, &m.t, &x.t));
    assert_ok(adam(r->q, 1, &h.t, &x.t, &g.t, &m.t, &v.t, &x.t));
    assert_ok(lars(r->q, &h.t, &norms.t, &x.t, &g.t, &m.t, &x.t));
    assert_ok(lamb_direction(r->q, &h.t, &x.t, &g.t, &m.t, &v.t, &u.t));
    assert_ok(lamb_apply(r->q, &h.t, &norms.t, &u.t, &x.t));
    const place *places[] = {&x, &m, &v, &u};
    for (int i = 0; i < 4; i++) {
        if (flag != 0)
            place_expect(r, places[i], values, "skipped update");
        else
            assert_true(place_get(r, places[i], 0) != (double)(float)values[0]);
    }
    FREE_PLACES(&h, &x, &g, &m, &v, &u, &norms);
    free(values);
}

static void test_skip(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++)
        for (int t = 0; t < TYPES; t++) {
            check_skip(&rigs[r], types[t], 1);
            check_skip(&rigs[r], types[t], 2);
            check_skip(&rigs[r], types[t], 0);
        }
}

/* ---- batches ---- */

static const int64_t lengths[] = {1, 7, 70000, 0, 513, 31, 4096, 5000};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

/* Elements of item i: all lengths once, then short ones. */
static int64_t length_of(int64_t i, int with_empty) {
    int64_t n = i < LENGTHS ? lengths[i] : lengths[i % LENGTHS] % 613;
    return n == 0 && !with_empty ? 3 : n;
}

/* Whole numbers, so that sums are exact. */
static void check_dots(const rig *r, dsc_dtype type, int64_t count, int with_empty) {
    dsc_dot_item *items = test_array(count, sizeof *items);
    place *x = test_array(count, sizeof *x), *y = test_array(count, sizeof *y);
    double *want = test_array(count, sizeof *want);
    for (int64_t i = 0; i < count; i++) {
        int64_t n = length_of(i, with_empty);
        double *a = test_array(n, sizeof *a), *b = test_array(n, sizeof *b);
        random_integers(2 * (uint64_t)i, 9, n, a);
        random_integers(2 * (uint64_t)i + 1, 9, n, b);
        for (int64_t e = 0; e < n; e++)
            want[i] += a[e] * b[e];
        x[i] = place_of(r, type, SHAPE(n), a);
        y[i] = place_of(r, type, SHAPE(1, n), b);
        items[i] = (dsc_dot_item){x[i].t, y[i].t};
        free(a);
        free(b);
    }
    place out = place_make(r, DSC_F64, SHAPE(count));
    assert_ok(dsc_op_dot_batch(r->q, items, count, &out.t));
    place_expect(r, &out, want, "dot_batch");
    for (int64_t i = 0; i < count; i++)
        FREE_PLACES(&x[i], &y[i]);
    place_free(&out);
    free(items);
    free(x);
    free(y);
    free(want);
}

static void test_dot_batch(void **state) {
    (void)state;
    for (int i = 0; i < rig_count; i++) {
        const rig *r = &rigs[i];
        for (int t = 0; t < TYPES; t++) {
            check_dots(r, types[t], 0, 0);
            check_dots(r, types[t], 3, 0);
            check_dots(r, types[t], LENGTHS, 1);
            check_dots(r, types[t], 300, 0);
        }
        place x = place_make(r, DSC_F32, SHAPE(3)), y = place_make(r, DSC_F32, SHAPE(2));
        place out = place_make(r, DSC_F64, SHAPE(2));
        dsc_dot_item items[] = {{x.t, x.t}, {x.t, y.t}};
        assert_fails(DSC_E_INVALID, "item 1: dot_batch: y is [2]; as many elements as x, [3], are expected",
                     dsc_op_dot_batch(r->q, items, 2, &out.t));
        assert_fails(DSC_E_INVALID, "dot_batch: out is [2]; 1 element is expected",
                     dsc_op_dot_batch(r->q, items, 1, &out.t));
        FREE_PLACES(&x, &y, &out);
    }
}

typedef struct join_case {
    int64_t m, n;
    int bias;
} join_case;

static const join_case joins[] = {{1, 1, 1}, {64, 577, 1}, {10, 64, 0}, {16, 27, 1},
                                  {0, 5, 1}, {7, 1, 0},    {33, 144, 1}};
enum { JOINS = sizeof joins / sizeof joins[0], JOIN_COUNT = 150 };

static double element(int64_t item, int64_t i, int64_t j) {
    return (double)((item * 31 + i * 7 + j * 3) % 257 - 128);
}

/* d of item `item`, times `factor`; w and b apart. */
static void join_values(int64_t item, const join_case *c, double factor, double *w, double *b, double *d) {
    int64_t width = c->n + c->bias;
    for (int64_t i = 0; i < c->m; i++)
        for (int64_t j = 0; j < width; j++) {
            double value = element(item, i, j);
            d[i * width + j] = value;
            if (j < c->n)
                w[i * c->n + j] = factor * value;
            else
                b[i] = factor * value;
        }
}

/* scale 0: none. */
static void check_joins(const rig *r, dsc_dtype type, int64_t count, double scale) {
    dsc_join_item *items = test_array(count, sizeof *items);
    place *w = test_array(count, sizeof *w), *b = test_array(count, sizeof *b),
          *d = test_array(count, sizeof *d);
    place factor = place_of(r, DSC_F64, SHAPE(1), &scale);
    double *values[3];
    for (int k = 0; k < 3; k++)
        values[k] = test_array(64 * 578, sizeof(double));
    for (int64_t i = 0; i < count; i++) {
        const join_case *c = &joins[i % JOINS];
        join_values(i, c, 1, values[0], values[1], values[2]);
        w[i] = place_of(r, type, SHAPE(c->m, 1, c->n), values[0]);
        b[i] = place_of(r, type, SHAPE(c->m), values[1]);
        d[i] = place_make(r, type, SHAPE(c->m, c->n + c->bias));
        items[i] = (dsc_join_item){.w = w[i].t, .b = b[i].t, .d = d[i].t};
        if (!c->bias)
            items[i].b.data = NULL;
    }
    assert_ok(dsc_op_join_batch(r->q, items, count));
    for (int64_t i = 0; i < count; i++) {
        join_values(i, &joins[i % JOINS], 1, values[0], values[1], values[2]);
        place_expect(r, &d[i], values[2], "join_batch: d");
        place_expect(r, &w[i], values[0], "join_batch: w");
        if (!isfinite(scale)) /* nothing is written then */
            continue;
        place_fill(r, &w[i], NAN);
        if (items[i].b.data)
            place_fill(r, &b[i], NAN);
    }
    assert_ok(dsc_op_split_batch(r->q, scale == 0 ? NULL : &factor.t, items, count));
    for (int64_t i = 0; i < count; i++) {
        join_values(i, &joins[i % JOINS], isfinite(scale) && scale != 0 ? scale : 1, values[0], values[1],
                    values[2]);
        place_expect(r, &w[i], values[0], "split_batch: w");
        if (items[i].b.data)
            place_expect(r, &b[i], values[1], "split_batch: b");
        place_expect(r, &d[i], values[2], "split_batch: d");
        FREE_PLACES(&w[i], &b[i], &d[i]);
    }
    place_free(&factor);
    free(items);
    free(w);
    free(b);
    free(d);
    for (int k = 0; k < 3; k++)
        free(values[k]);
}

static void test_join_batch(void **state) {
    (void)state;
    for (int i = 0; i < rig_count; i++) {
        const rig *r = &rigs[i];
        for (int t = 0; t < TYPES; t++) {
            check_joins(r, types[t], 0, 1);
            check_joins(r, types[t], 4, 0.25); /* none empty */
            check_joins(r, types[t], 4, 0);
            check_joins(r, types[t], 4, NAN);
            check_joins(r, types[t], 4, -INFINITY);
            check_joins(r, types[t], JOINS, -2);
            check_joins(r, types[t], JOIN_COUNT, 0.5);
        }
        place w = place_make(r, DSC_F32, SHAPE(2, 3)), d = place_make(r, DSC_F32, SHAPE(2, 4));
        place b = place_make(r, DSC_F32, SHAPE(2));
        dsc_join_item item = {.w = w.t, .b = b.t, .d = d.t};
        item.b.data = NULL;
        assert_fails(DSC_E_INVALID,
                     "item 0: join_batch: 6 elements of w and 0 of b do not make the rows of d[2,4]",
                     dsc_op_join_batch(r->q, &item, 1));
        assert_fails(DSC_E_INVALID, "split_batch: scale is fp32; fp64 is expected",
                     dsc_op_split_batch(r->q, &w.t, &item, 1));
        FREE_PLACES(&w, &d, &b);
    }
}

/* Item i has i % 3 elements that are not finite. */
static void check_absorbs(const rig *r, dsc_dtype type, int64_t count, int with_empty) {
    dsc_absorb_item *items = test_array(count, sizeof *items);
    place *x = test_array(count, sizeof *x), *y = test_array(count, sizeof *y),
          *bad = test_array(count, sizeof *bad);
    double keep = 0.75, **want = test_array(count, sizeof *want);
    place decay = place_of(r, DSC_F64, SHAPE(1), &keep);
    for (int64_t i = 0; i < count; i++) {
        int64_t n = length_of(i, with_empty);
        double *a = test_array(n, sizeof *a);
        want[i] = test_array(n, sizeof **want);
        random_integers(2 * (uint64_t)i, 1000, n, a);
        random_integers(2 * (uint64_t)i + 1, 1000, n, want[i]);
        y[i] = place_of(r, type, SHAPE(n), want[i]);
        int64_t spoilt = i % 3 < n ? i % 3 : n;
        for (int64_t e = 0; e < n && spoilt == 0; e++)
            want[i][e] = keep * want[i][e] + (1 - keep) * a[e]; /* exact in either type */
        for (int64_t e = 0; e < spoilt; e++)
            a[e * (n - 1)] = e ? INFINITY : NAN;
        x[i] = place_of(r, type, SHAPE(1, n), a);
        bad[i] = place_of(r, DSC_F64, SHAPE(2), (const double[]){17, (double)i});
        items[i] = (dsc_absorb_item){.x = x[i].t, .bad = bad[i].t, .y = y[i].t};
        free(a);
    }
    assert_ok(dsc_op_absorb_batch(r->q, &decay.t, items, count));
    for (int64_t i = 0; i < count; i++) {
        int64_t n = dsc_tensor_count(&x[i].t), spoilt = i % 3 < n ? i % 3 : n;
        const double flags[] = {(double)spoilt, (double)(i + (spoilt > 0))};
        place_expect(r, &y[i], want[i], "absorb_batch: y");
        place_expect(r, &bad[i], flags, "absorb_batch: bad");
        FREE_PLACES(&x[i], &y[i], &bad[i]);
        free(want[i]);
    }
    place_free(&decay);
    free(items);
    free(x);
    free(y);
    free(bad);
    free(want);
}

static void test_absorb_batch(void **state) {
    (void)state;
    for (int i = 0; i < rig_count; i++) {
        const rig *r = &rigs[i];
        for (int t = 0; t < TYPES; t++) {
            check_absorbs(r, types[t], 0, 0);
            check_absorbs(r, types[t], 3, 0);
            check_absorbs(r, types[t], LENGTHS, 1);
            check_absorbs(r, types[t], 300, 0);
        }
        place x = place_make(r, DSC_F32, SHAPE(3)), y = place_make(r, DSC_F32, SHAPE(3));
        place one = place_make(r, DSC_F64, SHAPE(1));
        dsc_absorb_item item = {.x = x.t, .bad = one.t, .y = y.t};
        assert_fails(DSC_E_INVALID, "item 0: absorb_batch: bad is [1]; 2 elements are expected",
                     dsc_op_absorb_batch(r->q, &one.t, &item, 1));
        FREE_PLACES(&x, &y, &one);
    }
}

/* ---- parts of tensors ----
 *
 * A slice begins anywhere and has any length; values are small dyadic numbers, so that everything is exact.
 */

enum { SLICE_ROOM = 8, SLICE_TENSORS = 4 };

typedef struct slice_case {
    int64_t offset[SLICE_TENSORS], count;
} slice_case;

static void slice_values(uint64_t stream, int64_t count, double *values) {
    random_integers(stream, 16, count, values);
}

/* Tensors x, y, m and v of a case, and their slices. */
typedef struct slice_set {
    place whole[SLICE_TENSORS];
    dsc_tensor part[SLICE_TENSORS];
    double *values[SLICE_TENSORS]; /* of the whole */
    double *at[SLICE_TENSORS];     /* of the part */
} slice_set;

static slice_set slices_make(const rig *r, dsc_dtype type, const slice_case *c) {
    slice_set set;
    int64_t all = c->count + SLICE_ROOM;
    for (int i = 0; i < SLICE_TENSORS; i++) {
        set.values[i] = test_array(all, sizeof(double));
        slice_values((uint64_t)i + 1, all, set.values[i]);
        set.whole[i] = place_of(r, type, SHAPE(all), set.values[i]);
        set.part[i] = dsc_tensor_slice(&set.whole[i].t, c->offset[i], c->count);
        set.at[i] = set.values[i] + c->offset[i];
    }
    return set;
}

/* Everything is as expected, also around the parts; frees them. */
static void slices_close(const rig *r, slice_set *set, const char *what) {
    for (int i = 0; i < SLICE_TENSORS; i++) {
        place_expect(r, &set->whole[i], set->values[i], what);
        place_free(&set->whole[i]);
        free(set->values[i]);
    }
}

static void slice_scalar(const rig *r, dsc_status status, place *p, double want, const char *what) {
    assert_ok(status);
    place_expect(r, p, &want, what);
    place_free(p);
}

static void check_linear_slices(const rig *r, dsc_dtype type, const slice_case *c) {
    slice_set set = slices_make(r, type, c);
    double **v = set.at, sum = 5;
    place scale = place_of(r, DSC_F64, SHAPE(1), (const double[]){0.5});
    place out = place_of(r, DSC_F64, SHAPE(1), (const double[]){5});
    for (int64_t e = 0; e < c->count; e++) {
        sum += v[0][e] * v[1][e];
        v[3][e] *= v[1][e];
        v[1][e] = 2 * v[0][e] - v[1][e];
        v[0][e] *= 0.5;
        v[2][e] = -3;
    }
    slice_scalar(r, dsc_op_dot(r->q, &set.part[0], &set.part[1], 1, &out.t), &out, sum, "dot of slices");
    assert_ok(dsc_op_multiply(r->q, &set.part[1], &set.part[3]));
    assert_ok(dsc_op_axpby(r->q, 2, &set.part[0], -1, &set.part[1]));
    assert_ok(dsc_op_scale_by(r->q, &scale.t, &set.part[0]));
    assert_ok(dsc_op_fill(r->q, -3, &set.part[2]));
    slices_close(r, &set, "arithmetic on slices");
    place_free(&scale);
}

/* SGD without Nesterov's, then LARS at a rate of 1/2. */
static void check_update_slices(const rig *r, dsc_dtype type, const slice_case *c) {
    static const double hyper[DSC_HYPER_COUNT] = {
        [DSC_HYPER_LR] = 0.5,  [DSC_HYPER_MOMENTUM] = 0.25, [DSC_HYPER_DECAY] = 1,
        [DSC_HYPER_TRUST] = 1, [DSC_HYPER_CORRECTION1] = 1, [DSC_HYPER_CORRECTION2] = 1};
    slice_set set = slices_make(r, type, c);
    double **v = set.at;
    place h = place_of(r, DSC_F64, SHAPE(DSC_HYPER_COUNT), hyper);
    place norms = place_of(r, DSC_F64, SHAPE(2), (const double[]){4, 4});
    for (int64_t e = 0; e < c->count; e++) {
        v[2][e] = 0.25 * v[2][e] + v[1][e] + v[0][e];
        v[3][e] -= 0.5 * v[2][e];
        v[2][e] = 0.25 * v[2][e] + 0.25 * (v[1][e] + v[0][e]);
        v[3][e] -= v[2][e];
        v[3][e] -= 0.5 * v[1][e];
    }
    assert_ok(sgd(r->q, 0, &h.t, &set.part[0], &set.part[1], &set.part[2], &set.part[3]));
    assert_ok(lars(r->q, &h.t, &norms.t, &set.part[0], &set.part[1], &set.part[2], &set.part[3]));
    assert_ok(lamb_apply(r->q, &h.t, &norms.t, &set.part[1], &set.part[3]));
    slices_close(r, &set, "updates of slices");
    FREE_PLACES(&h, &norms);
}

static void check_absorbed_slices(const rig *r, dsc_dtype type, const slice_case *c) {
    slice_set set = slices_make(r, type, c);
    double **v = set.at;
    place decay = place_of(r, DSC_F64, SHAPE(1), (const double[]){0.75});
    place bad = place_of(r, DSC_F64, SHAPE(2), (const double[]){9, 4});
    place spoilt = place_of(r, DSC_F64, SHAPE(2), (const double[]){0, 7});
    for (int64_t e = 0; e < c->count; e++)
        v[1][e] = 0.75 * v[1][e] + 0.25 * v[0][e];
    v[2][c->count - 1] = -INFINITY;
    place_write(r, &set.whole[2], set.values[2]);
    const dsc_absorb_item items[] = {{.x = set.part[0], .bad = bad.t, .y = set.part[1]},
                                     {.x = set.part[2], .bad = spoilt.t, .y = set.part[3]}};
    assert_ok(dsc_op_absorb_batch(r->q, &decay.t, items, 2));
    slices_close(r, &set, "absorbed slices");
    place_expect(r, &bad, (const double[]){0, 4}, "absorb_batch: bad");
    place_expect(r, &spoilt, (const double[]){1, 8}, "absorb_batch: bad of a spoilt one");
    FREE_PLACES(&decay, &bad, &spoilt);
}

/* From every type into every type, and the number of what is not finite, which slips through all of them. */
static void check_converted_slices(const rig *r, const slice_case *c) {
    static const dsc_dtype all[] = {DSC_F32, DSC_F64, DSC_BF16, DSC_F16};
    for (int from = 0; from < 4; from++)
        for (int to = 0; to < 4; to++) {
            slice_set a = slices_make(r, all[from], c), b = slices_make(r, all[to], c);
            a.at[0][c->count / 2] = NAN;
            place_write(r, &a.whole[0], a.values[0]);
            assert_ok(dsc_op_convert(r->q, &a.part[0], &b.part[1]));
            memcpy(b.at[1], a.at[0], (size_t)c->count * sizeof(double));
            if (to < 2 || !dsc_device_is_host(r->device)) {
                place found = place_of(r, DSC_F64, SHAPE(1), (const double[]){2});
                slice_scalar(r, dsc_op_count_nonfinite(r->q, &b.part[1], &found.t), &found, 3,
                             "count_nonfinite");
            }
            slices_close(r, &a, "converted: source");
            slices_close(r, &b, "converted: destination");
        }
}

static void test_slices(void **state) {
    (void)state;
    static const int64_t counts[] = {1, 3, 4, 8, 17, 33, 1027, 5003};
    for (int r = 0; r < rig_count; r++)
        for (size_t n = 0; n < sizeof counts / sizeof counts[0]; n++)
            for (int offset = 0; offset < 4; offset++) {
                const slice_case cases[] = {{{offset, offset, offset, offset}, counts[n]},
                                            {{0, offset, 0, 4}, counts[n]}};
                for (int c = 0; c < 2; c++) {
                    for (int t = 0; t < TYPES; t++) {
                        check_linear_slices(&rigs[r], types[t], &cases[c]);
                        check_update_slices(&rigs[r], types[t], &cases[c]);
                        check_absorbed_slices(&rigs[r], types[t], &cases[c]);
                    }
                    check_converted_slices(&rigs[r], &cases[c]);
                }
            }
}

/* ---- packed factors ---- */

static void check_packed(const rig *r, const dsc_conv_desc *desc, int ones) {
    int64_t n = desc->shape.kernel_h * desc->shape.kernel_w * (desc->shape.in_c / desc->shape.groups) + ones,
            packed = n * (n + 1) / 2;
    int64_t count = desc->n * desc->shape.in_h * desc->shape.in_w * desc->shape.in_c;
    int64_t bytes = (int64_t)dsc_op_patch_gram_workspace(r->device, desc, ones);
    double *values = test_array(count, sizeof *values), *full = test_array(n * n, sizeof *full);
    double *want = test_array(packed, sizeof *want);
    random_integers(5, 3, count, values); /* sums are exact */
    place x = place_of(r, desc->dtype, SHAPE(desc->n, desc->shape.in_h, desc->shape.in_w, desc->shape.in_c),
                       values);
    place work = place_make(r, DSC_U8, SHAPE(bytes)), c = place_make(r, desc->dtype, SHAPE(n, n));
    place scratch = place_make(r, desc->dtype, SHAPE(n * n)), p = place_make(r, desc->dtype, SHAPE(packed));
    int64_t group = desc->shape.groups - 1;
    assert_ok(dsc_op_patch_gram(r->q, desc, &x.t, group, 0.5, 0, &work.t, &c.t));
    assert_ok(dsc_op_patch_gram_packed(r->q, desc, &x.t, group, 0.5, &work.t, &scratch.t, &p.t));
    place_read(r, &c, full);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++)
            want[i * (i + 1) / 2 + j] = full[i * n + j];
    place_expect(r, &p, want, "patch_gram_packed");
    dsc_tensor few = dsc_tensor_slice(&scratch.t, 0, n * n - 1);
    if (dsc_device_is_host(r->device)) /* a GPU does without */
        assert_fails(DSC_E_INVALID, "patch_gram_packed: full has",
                     dsc_op_patch_gram_packed(r->q, desc, &x.t, group, 0.5, &work.t, &few, &p.t));
    assert_fails(DSC_E_INVALID, "rows is expected",
                 dsc_op_patch_gram_packed(r->q, desc, &x.t, group, 0.5, &work.t, &scratch.t, &scratch.t));
    FREE_PLACES(&x, &work, &c, &scratch, &p);
    free(values);
    free(full);
    free(want);
}

static void test_patch_gram_packed(void **state) {
    (void)state;
    dsc_conv_desc cases[] = {
        CONV(DSC_F32, 3, 8, 8, 4, 6, 3, 3, 1, 1, 1, 1, 1, 1, 1),
        CONV(DSC_F32, 2, 9, 7, 6, 6, 3, 3, 2, 2, 1, 1, 1, 1, 2),
        CONV(DSC_F32, 40, 1, 1, 33, 10, 1, 1, 1, 1, 0, 0, 1, 1, 1),
    };
    for (int r = 0; r < rig_count; r++)
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
            for (int t = 0; t < TYPES; t++) {
                cases[c].dtype = types[t];
                check_packed(&rigs[r], &cases[c], 0);
                check_packed(&rigs[r], &cases[c], 1);
            }
}

/* ---- images ---- */

typedef struct augment_case {
    int64_t n, h, w, c, rh, rw;
} augment_case;

static const augment_case augments[] = {
    {5, 32, 32, 3, 32, 32}, {3, 28, 28, 1, 28, 28}, {2, 7, 5, 4, 9, 11}, {300, 4, 3, 2, 5, 2}};
static const dsc_augment_desc pixels = {{0.5F, 0.25F, 2, 1}, {-1, 3, 0, 0.125F}, {7, -7, 0.5F, 0}};

static void check_augment(const rig *r, dsc_dtype type, const augment_case *a) {
    int64_t bytes = a->n * a->rh * a->rw * a->c, count = a->n * a->h * a->w * a->c;
    double *raw = test_array(bytes, sizeof *raw), *place_values = test_array(3 * a->n, sizeof *raw);
    double *want = test_array(count, sizeof *want);
    for (int64_t i = 0; i < bytes; i++)
        raw[i] = (double)(i * 37 % 256);
    random_integers(1, 4, 3 * a->n, place_values);
    for (int64_t i = 0; i < a->n; i++)
        place_values[3 * i + 2] = (double)(i % 2);
    for (int64_t e = 0; e < count; e++) {
        int64_t ch = e % a->c, x = e / a->c % a->w, y = e / (a->c * a->w) % a->h,
                i = e / (a->c * a->w * a->h);
        int64_t row = y + (int64_t)place_values[3 * i];
        int64_t column = (i % 2 ? a->w - 1 - x : x) + (int64_t)place_values[3 * i + 1];
        want[e] = (double)pixels.outside[ch];
        if (row >= 0 && row < a->rh && column >= 0 && column < a->rw)
            want[e] = raw[((i * a->rh + row) * a->rw + column) * a->c + ch] * (double)pixels.scale[ch] +
                      (double)pixels.shift[ch];
    }
    place from = place_of(r, DSC_U8, SHAPE(a->n, a->rh, a->rw, a->c), raw);
    place where = place_of(r, DSC_I32, SHAPE(a->n, 3), place_values);
    place x = place_make(r, type, SHAPE(a->n, a->h, a->w, a->c));
    assert_ok(dsc_op_augment(r->q, &pixels, &from.t, &where.t, &x.t));
    place_expect(r, &x, want, "augment");
    FREE_PLACES(&from, &where, &x);
    free(raw);
    free(place_values);
    free(want);
}

static void test_augment(void **state) {
    (void)state;
    for (int i = 0; i < rig_count; i++) {
        const rig *r = &rigs[i];
        for (int t = 0; t < TYPES; t++)
            for (size_t c = 0; c < sizeof augments / sizeof augments[0]; c++)
                check_augment(r, types[t], &augments[c]);
        place raw = place_make(r, DSC_U8, SHAPE(1, 2, 2, 5)), x = place_make(r, DSC_F32, SHAPE(1, 2, 2, 5));
        place where = place_make(r, DSC_I32, SHAPE(1, 3)), two = place_make(r, DSC_I32, SHAPE(1, 2));
        assert_fails(DSC_E_INVALID, "augment: x has 5 channels; at most 4 are possible",
                     dsc_op_augment(r->q, &pixels, &raw.t, &where.t, &x.t));
        assert_fails(DSC_E_INVALID, "augment: place is [1,2]; [1,3] is expected",
                     dsc_op_augment(r->q, &pixels, &raw.t, &two.t, &x.t));
        FREE_PLACES(&raw, &x, &where, &two);
    }
}

/* ---- scaled losses ---- */

static void check_scaled_loss(const rig *r, dsc_dtype type) {
    enum { N = 33, C = 10 };
    double logits[N * C], labels[N], stats[4] = {0}, want[N * C], plain[N * C];
    random_values(1, N * C, logits);
    for (int i = 0; i < N; i++)
        labels[i] = i % (C + 1) - 1;
    place z = place_of(r, type, SHAPE(N, C), logits), l = place_of(r, DSC_I32, SHAPE(N), labels);
    place s = place_of(r, DSC_F64, SHAPE(4), stats), d = place_make(r, type, SHAPE(N, C));
    place scale = place_of(r, DSC_F64, SHAPE(1), (const double[]){1024});
    assert_ok(dsc_op_softmax_loss(r->q, &z.t, &l.t, 0.1, 0.5, NULL, &d.t, &s.t));
    place_read(r, &d, plain);
    place_read(r, &s, stats);
    place_fill(r, &s, 0);
    assert_ok(dsc_op_softmax_loss(r->q, &z.t, &l.t, 0.1, 0.5, &scale.t, &d.t, &s.t));
    for (int i = 0; i < N * C; i++)
        want[i] = 1024 * plain[i]; /* a power of two changes no digit */
    place_expect(r, &d, want, "softmax_loss: scaled gradient");
    place_expect(r, &s, stats, "softmax_loss: stats of a scaled loss");
    FREE_PLACES(&z, &l, &s, &d, &scale);
}

static void test_scaled_loss(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++)
        for (int t = 0; t < TYPES; t++)
            check_scaled_loss(&rigs[r], types[t]);
}

/* ---- half types ---- */

/* A host device says that it does not compute in them; any device refuses mixtures. */
static void test_halves(void **state) {
    (void)state;
    for (int i = 0; i < rig_count; i++) {
        const rig *r = &rigs[i];
        place half = place_make(r, DSC_BF16, SHAPE(2, 4)), whole = place_make(r, DSC_I32, SHAPE(2, 4));
        place bias = place_make(r, DSC_F32, SHAPE(4));
        place_fill(r, &half, 0);
        place_fill(r, &bias, 0);
        assert_fails(DSC_E_INVALID, "relu_forward: x is i32; fp32",
                     dsc_op_relu_forward(r->q, &whole.t, &whole.t));
        dsc_status status = dsc_op_bias_add(r->q, &bias.t, &half.t);
        if (dsc_device_is_host(r->device)) {
            char text[96];
            snprintf(text, sizeof text, "bias_add: y is bf16; device %s computes in fp32 and fp64 only",
                     dsc_device_name(r->device));
            assert_fails(DSC_E_INVALID, text, status);
            dsc_conv_desc desc = CONV(DSC_F16, 1, 4, 4, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1);
            dsc_conv *conv = NULL;
            assert_fails(DSC_E_INVALID, "conv: the type is fp16; device",
                         dsc_conv_create(r->device, &desc, &conv));
        } else {
            assert_ok(status);
        }
        FREE_PLACES(&half, &whole, &bias);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_increment),    cmocka_unit_test(test_guard),
        cmocka_unit_test(test_loss_scale),   cmocka_unit_test(test_skip),
        cmocka_unit_test(test_dot_batch),    cmocka_unit_test(test_join_batch),
        cmocka_unit_test(test_absorb_batch), cmocka_unit_test(test_patch_gram_packed),
        cmocka_unit_test(test_augment),      cmocka_unit_test(test_scaled_loss),
        cmocka_unit_test(test_halves),       cmocka_unit_test(test_slices),
    };
    if (argc > 1) /* leaves out tests whose names match */
        cmocka_set_skip_filter(argv[1]);
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
