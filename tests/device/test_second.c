/* Pieces of a second-order step, and labels drawn from a softmax. Against plain loops in double, on every
 * device, in both types. */
#include "device/rig.h"

#include "base/rng.h"

#include <math.h>
#include <stdlib.h>

static const dsc_dtype types[] = {DSC_F32, DSC_F64};

/* |got - want| <= share |want|, and intact guards. */
static void expect_within(const rig *r, const place *p, const double *want, double share, const char *what) {
    int64_t count = dsc_tensor_count(&p->t);
    double *got = test_array(count, sizeof *got);
    place_read(r, p, got);
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(got[i] - want[i]) <= share * fabs(want[i])))
            fail_msg("%s, %s: %s[%lld] is %.9g instead of %.9g", r->label, dsc_dtype_name(p->t.dtype), what,
                     (long long)i, got[i], want[i]);
    free(got);
    place_check_guards(r, p, what);
}

static void free_places(place *const *places, size_t count) {
    for (size_t i = 0; i < count; i++)
        place_free(places[i]);
}

#define FREE_PLACES(...)                                                                                     \
    free_places((place *const[]){__VA_ARGS__}, sizeof((place *const[]){__VA_ARGS__}) / sizeof(place *))

/* ---- element by element ---- */

static void check_diagonal(const rig *r, dsc_dtype type, int64_t n) {
    double *values = test_array(n * n, sizeof *values);
    random_integers((uint64_t)n, 100, n * n, values);
    place a = place_of(r, type, SHAPE(n, n), values);
    place added = place_of(r, DSC_F64, SHAPE(1), (const double[]){0.375});
    assert_ok(dsc_op_add_diagonal(r->q, &added.t, &a.t));
    for (int64_t i = 0; i < n; i++)
        values[i * n + i] += 0.375; /* exact in either type */
    place_expect(r, &a, values, "add_diagonal");
    FREE_PLACES(&a, &added);
    free(values);
}

static void test_add_diagonal(void **state) {
    (void)state;
    static const int64_t sizes[] = {0, 1, 2, 33, 257};
    for (int r = 0; r < rig_count; r++) {
        for (int s = 0; s < 5; s++) {
            check_diagonal(&rigs[r], DSC_F32, sizes[s]);
            check_diagonal(&rigs[r], DSC_F64, sizes[s]);
        }
        place wide = place_make(&rigs[r], DSC_F32, SHAPE(2, 3)),
              one = place_make(&rigs[r], DSC_F32, SHAPE(1));
        place square = place_make(&rigs[r], DSC_F32, SHAPE(2, 2));
        assert_fails(DSC_E_INVALID, "add_diagonal: a is [2,3]; [2,2] is expected",
                     dsc_op_add_diagonal(rigs[r].q, &one.t, &wide.t));
        assert_fails(DSC_E_INVALID, "add_diagonal: value is fp32; fp64 is expected",
                     dsc_op_add_diagonal(rigs[r].q, &one.t, &square.t));
        FREE_PLACES(&wide, &one, &square);
    }
}

static void check_outer_inverse(const rig *r, dsc_dtype type, int64_t m, int64_t n) {
    double *rows = test_array(m, sizeof *rows), *columns = test_array(n, sizeof *columns);
    double *want = test_array(m * n, sizeof *want), damping = 0.0009765625;
    random_values(1, m, rows);
    random_values(2, n, columns);
    for (int64_t i = 0; i < m; i++)
        rows[i] = fabs(rows[i]);
    for (int64_t j = 0; j < n; j++)
        columns[j] = j == 0 ? 0 : fabs(columns[j]);
    for (int64_t e = 0; e < m * n; e++)
        want[e] = 1 / (rows[e / n] * columns[e % n] + damping);
    place pr = place_of(r, type, SHAPE(m), rows), pc = place_of(r, type, SHAPE(n), columns);
    place value = place_of(r, DSC_F64, SHAPE(1), &damping), out = place_make(r, type, SHAPE(m, n));
    assert_ok(dsc_op_outer_inverse(r->q, &value.t, &pr.t, &pc.t, &out.t));
    expect_within(r, &out, want, 4 * dtype_eps(type), "outer_inverse");
    place_expect(r, &pr, rows, "outer_inverse: rows");
    FREE_PLACES(&pr, &pc, &value, &out);
    free(rows);
    free(columns);
    free(want);
}

static void test_outer_inverse(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        for (int type = 0; type < 2; type++) {
            check_outer_inverse(&rigs[r], types[type], 1, 1);
            check_outer_inverse(&rigs[r], types[type], 10, 65);
            check_outer_inverse(&rigs[r], types[type], 64, 577);
            check_outer_inverse(&rigs[r], types[type], 0, 5);
        }
        place two = place_make(&rigs[r], DSC_F32, SHAPE(2)), out = place_make(&rigs[r], DSC_F32, SHAPE(2, 3));
        place value = place_make(&rigs[r], DSC_F64, SHAPE(1));
        assert_fails(DSC_E_INVALID, "outer_inverse: out is [2,3]; [2,2] is expected",
                     dsc_op_outer_inverse(rigs[r].q, &value.t, &two.t, &two.t, &out.t));
        FREE_PLACES(&two, &out, &value);
    }
}

static void check_multiply(const rig *r, dsc_dtype type, int64_t n) {
    double *x = test_array(n, sizeof *x), *y = test_array(n, sizeof *y);
    random_integers(1, 1000, n, x);
    random_integers(2, 1000, n, y);
    place px = place_of(r, type, SHAPE(n), x), py = place_of(r, type, SHAPE(n, 1), y);
    assert_ok(dsc_op_multiply(r->q, &px.t, &py.t));
    for (int64_t i = 0; i < n; i++)
        y[i] *= x[i];
    place_expect(r, &py, y, "multiply: y");
    place_expect(r, &px, x, "multiply: x");
    assert_ok(dsc_op_multiply(r->q, &px.t, &px.t)); /* a square */
    for (int64_t i = 0; i < n; i++)
        x[i] *= x[i];
    place_expect(r, &px, x, "multiply: x by itself");
    FREE_PLACES(&px, &py);
    free(x);
    free(y);
}

static void test_multiply(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        for (int type = 0; type < 2; type++) {
            check_multiply(&rigs[r], types[type], 0);
            check_multiply(&rigs[r], types[type], 1);
            check_multiply(&rigs[r], types[type], 100);
            check_multiply(&rigs[r], types[type], 40001);
        }
        place two = place_make(&rigs[r], DSC_F32, SHAPE(2)), three = place_make(&rigs[r], DSC_F32, SHAPE(3));
        assert_fails(DSC_E_INVALID, "multiply: y is [3]; as many elements as x, [2], are expected",
                     dsc_op_multiply(rigs[r].q, &two.t, &three.t));
        FREE_PLACES(&two, &three);
    }
}

/* ---- weights and bias as one matrix ---- */

static void check_join(const rig *r, dsc_dtype type, int64_t m, int64_t n) {
    double *w = test_array(m * n, sizeof *w), *b = test_array(m, sizeof *b);
    double *d = test_array(m * (n + 1), sizeof *d);
    random_integers(1, 1000, m * n, w);
    random_integers(2, 1000, m, b);
    for (int64_t e = 0; e < m * (n + 1); e++)
        d[e] = e % (n + 1) < n ? w[e / (n + 1) * n + e % (n + 1)] : b[e / (n + 1)];
    place pw = place_of(r, type, SHAPE(m, 1, n), w), pb = place_of(r, type, SHAPE(m), b);
    place pd = place_make(r, type, SHAPE(m, n + 1));
    assert_ok(dsc_op_join_batch(r->q, &(dsc_join_item){.w = pw.t, .b = pb.t, .d = pd.t}, 1));
    place_expect(r, &pd, d, "join");
    FREE_PLACES(&pw, &pb, &pd);
    free(w);
    free(b);
    free(d);
}

static void test_join(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{1, 1}, {2, 3}, {10, 64}, {64, 600}, {3, 0}, {0, 3}};
    for (int r = 0; r < rig_count; r++) {
        for (int s = 0; s < 6; s++) {
            check_join(&rigs[r], DSC_F32, sizes[s][0], sizes[s][1]);
            check_join(&rigs[r], DSC_F64, sizes[s][0], sizes[s][1]);
        }
        place w = place_make(&rigs[r], DSC_F32, SHAPE(2, 3)), b = place_make(&rigs[r], DSC_F32, SHAPE(2));
        place d = place_make(&rigs[r], DSC_F32, SHAPE(2, 3)), flat = place_make(&rigs[r], DSC_F32, SHAPE(8));
        assert_fails(DSC_E_INVALID, "item 0: join_batch: 6 elements of w and 2 of b do not make",
                     dsc_op_join_batch(rigs[r].q, &(dsc_join_item){.w = w.t, .b = b.t, .d = d.t}, 1));
        assert_fails(DSC_E_INVALID, "item 0: join_batch: d is [8]; 2 dimensions are expected",
                     dsc_op_join_batch(rigs[r].q, &(dsc_join_item){.w = w.t, .b = b.t, .d = flat.t}, 1));
        FREE_PLACES(&w, &b, &d, &flat);
    }
}

/* ---- parts of a matrix ---- */

/* m of the `height` rows and n of the `width` columns, in an order of their own. */
static void check_parts(const rig *r, dsc_dtype type, int64_t height, int64_t width, int64_t m, int64_t n) {
    double *whole = test_array(height * width, sizeof *whole), *part = test_array(m * n, sizeof *part);
    double *rows = test_array(m, sizeof *rows), *columns = test_array(n, sizeof *columns);
    random_integers(1, 1000, height * width, whole);
    for (int64_t i = 0; i < m; i++) /* odd steps around a power of two, or all */
        rows[i] = (double)((i * 5 + 3) % height);
    for (int64_t j = 0; j < n; j++)
        columns[j] = (double)((j * 3 + 1) % width);
    for (int64_t e = 0; e < m * n; e++)
        part[e] = whole[(int64_t)rows[e / n] * width + (int64_t)columns[e % n]];
    place src = place_of(r, type, SHAPE(height, width), whole), dst = place_make(r, type, SHAPE(m, n));
    place pr = place_of(r, DSC_I32, SHAPE(m), rows), pc = place_of(r, DSC_I32, SHAPE(n), columns);
    assert_ok(dsc_op_gather(r->q, &src.t, &pr.t, &pc.t, &dst.t));
    place_expect(r, &dst, part, "gather");
    place_expect(r, &src, whole, "gather: src");
    for (int64_t e = 0; e < m * n; e++) {
        part[e] = (double)e;
        whole[(int64_t)rows[e / n] * width + (int64_t)columns[e % n]] = (double)e;
    }
    place_write(r, &dst, part);
    assert_ok(dsc_op_scatter(r->q, &dst.t, &pr.t, &pc.t, &src.t));
    place_expect(r, &src, whole, "scatter");
    FREE_PLACES(&src, &dst, &pr, &pc);
    free(whole);
    free(part);
    free(rows);
    free(columns);
}

static void test_gather_and_scatter(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        for (int type = 0; type < 2; type++) {
            check_parts(&rigs[r], types[type], 1, 1, 1, 1);
            check_parts(&rigs[r], types[type], 8, 16, 3, 5);
            check_parts(&rigs[r], types[type], 256, 256, 256, 200);
            check_parts(&rigs[r], types[type], 4, 4, 0, 2);
        }
        place a = place_make(&rigs[r], DSC_F32, SHAPE(4, 4)), b = place_make(&rigs[r], DSC_F32, SHAPE(2, 3));
        place two = place_make(&rigs[r], DSC_I32, SHAPE(2)), real = place_make(&rigs[r], DSC_F32, SHAPE(2));
        assert_fails(DSC_E_INVALID, "gather: dst is [2,3]; [2,2] is expected",
                     dsc_op_gather(rigs[r].q, &a.t, &two.t, &two.t, &b.t));
        assert_fails(DSC_E_INVALID, "scatter: src is [2,3]; [2,2] is expected",
                     dsc_op_scatter(rigs[r].q, &b.t, &two.t, &two.t, &a.t));
        assert_fails(DSC_E_INVALID, "gather: rows is fp32; i32 is expected",
                     dsc_op_gather(rigs[r].q, &a.t, &real.t, &two.t, &b.t));
        FREE_PLACES(&a, &b, &two, &real);
    }
}

/* ---- step length ---- */

static void test_kl_clip(void **state) {
    (void)state;
    static const struct {
        double sum, lr, limit, want;
    } cases[] = {
        {1, 0.5, 1, 1},
        {16, 0.5, 1, 0.5},
        {-16, 0.5, 1, 0.5},
        {4, 0.5, 1, 1},
        {0, 0.5, 1, 1},
        {16, 0, 1, 1},
        {16, 0.5, 0, 1},
        {NAN, 0.5, 1, NAN},
        {INFINITY, 0.5, 1, NAN},
        {-INFINITY, 0.5, 1, NAN},
        {0x1p1000, 0.5, 0x1p-2, 0x1p-500},
        {0x1p1000, 0x1p100, 1, 0x1p-600},
        {NAN, 0.5, 0, NAN},
        {64, -0.5, 1, 0.25},
    };
    for (int r = 0; r < rig_count; r++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            place sum = place_of(&rigs[r], DSC_F64, SHAPE(1), &cases[i].sum);
            place limits =
                place_of(&rigs[r], DSC_F64, SHAPE(2), (const double[]){cases[i].lr, cases[i].limit});
            place out = place_of(&rigs[r], DSC_F64, SHAPE(1), (const double[]){-1});
            assert_ok(dsc_op_kl_clip(rigs[r].q, &sum.t, &limits.t, &out.t));
            place_expect(&rigs[r], &out, &cases[i].want, "kl_clip");
            assert_fails(DSC_E_INVALID, "kl_clip: limits is [1]; 2 elements are expected",
                         dsc_op_kl_clip(rigs[r].q, &sum.t, &sum.t, &out.t));
            FREE_PLACES(&sum, &limits, &out);
        }
    static const double sums[] = {16, 64, 1, NAN, 0}, want[] = {0.5, 0.25, 1, NAN, 1};
    for (int r = 0; r < rig_count; r++) { /* several at once */
        place sum = place_of(&rigs[r], DSC_F64, SHAPE(5), sums);
        place limits = place_of(&rigs[r], DSC_F64, SHAPE(2), (const double[]){0.5, 1});
        place out = place_of(&rigs[r], DSC_F64, SHAPE(5), sums);
        assert_ok(dsc_op_kl_clip(rigs[r].q, &sum.t, &limits.t, &out.t));
        place_expect(&rigs[r], &out, want, "kl_clip of several");
        assert_fails(DSC_E_INVALID, "kl_clip: sum is [2]; 5 elements are expected",
                     dsc_op_kl_clip(rigs[r].q, &limits.t, &limits.t, &out.t));
        FREE_PLACES(&sum, &limits, &out);
    }
}

/* ---- damping ---- */

static void test_damping_split(void **state) {
    (void)state;
    /* Traces and rows of pairs of matrices, and the dampings of both for a damping of 1/4. */
    static const double traces[] = {8, 1, 3, 3, 0, 5, 5, 0, -1, 4, NAN, 1, INFINITY, 1, 0x1p900, 0x1p-900};
    static const double rows[] = {2, 4, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const double want[] = {2,   0.125, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5,
                                  0.5, 0.5,   0.5, 0.5, 0.5, 0.5, 0.5, 0.5};
    enum { COUNT = sizeof traces / sizeof traces[0] };
    for (int r = 0; r < rig_count; r++) {
        place damping = place_of(&rigs[r], DSC_F64, SHAPE(1), (const double[]){0.25});
        place t = place_of(&rigs[r], DSC_F64, SHAPE(COUNT), traces);
        place n = place_of(&rigs[r], DSC_F64, SHAPE(COUNT), rows);
        place out = place_of(&rigs[r], DSC_F64, SHAPE(COUNT), traces);
        place odd = place_of(&rigs[r], DSC_F64, SHAPE(3), traces);
        assert_ok(dsc_op_damping_split(rigs[r].q, &damping.t, &t.t, &n.t, &out.t));
        place_expect(&rigs[r], &out, want, "damping_split");
        assert_fails(DSC_E_INVALID, "damping_split: out has 3 elements: must be pairs",
                     dsc_op_damping_split(rigs[r].q, &damping.t, &t.t, &n.t, &odd.t));
        assert_fails(DSC_E_INVALID, "damping_split: rows is [1]; 16 elements are expected",
                     dsc_op_damping_split(rigs[r].q, &damping.t, &t.t, &damping.t, &out.t));
        FREE_PLACES(&damping, &t, &n, &out, &odd);
    }
}

/* ---- labels ---- */

/* The labels of `rows` rows of logits on this device. */
static double *draw(const rig *r, dsc_dtype type, uint64_t seed, const double position[2],
                    const double *logits, int64_t rows, int64_t classes) {
    double *labels = test_array(rows, sizeof *labels);
    place z = place_of(r, type, SHAPE(rows, classes), logits), at = place_of(r, DSC_I64, SHAPE(2), position);
    place to = place_make(r, DSC_I32, SHAPE(rows));
    assert_ok(dsc_op_sample_labels(r->q, seed, &at.t, 1, &z.t, classes, NULL, &to.t));
    place_expect(r, &z, logits, "sample_labels: logits");
    place_expect(r, &at, position, "sample_labels: position");
    place_check_guards(r, &to, "sample_labels: labels");
    place_read(r, &to, labels);
    FREE_PLACES(&z, &at, &to);
    return labels;
}

/* By the book: normalised probabilities, added up until they reach the uniform number. */
static int naive_label(uint64_t seed, uint32_t step, uint64_t sample, const double *z, int64_t classes) {
    dsc_rng rng = dsc_rng_start(seed, DSC_RNG_FISHER, step, sample);
    double u = (double)dsc_rng_u32(&rng) / 4294967296.0, whole = 0, reached = 0;
    if (classes == 1)
        return u >= 1 - 1 / (1 + exp(-z[0]));
    for (int64_t c = 0; c < classes; c++)
        whole += exp(z[c]);
    for (int64_t c = 0; c < classes; c++) {
        reached += exp(z[c]) / whole;
        if (reached > u)
            return (int)c;
    }
    return (int)classes - 1;
}

static void test_labels(void **state) {
    (void)state;
    static const int64_t classes[] = {1, 2, 10, 100};
    const double position[2] = {4294967296.0 + 7, 5000000000.0}; /* the step counts modulo 2^32 */
    for (int c = 0; c < 4; c++) {
        int64_t rows = 300, count = rows * classes[c];
        double *logits = test_array(count, sizeof *logits);
        random_values((uint64_t)c, count, logits);
        for (int64_t i = 0; i < count; i++)
            logits[i] *= 4;
        for (int r = 0; r < rig_count; r++)
            for (int type = 0; type < 2; type++) {
                double *labels = draw(&rigs[r], types[type], 42, position, logits, rows, classes[c]);
                for (int64_t i = 0; i < rows; i++)
                    assert_int_equal((int)labels[i], naive_label(42, 7, 5000000000u + (uint64_t)i,
                                                                 logits + i * classes[c], classes[c]));
                free(labels);
            }
        free(logits);
    }
}

/* Rows without a label get none, and the others what they would get without them; samples of several rows have numbers
 * of their own. */
static void test_known_labels(void **state) {
    (void)state;
    enum { ROWS = 6, CLASSES = 3 };
    double logits[ROWS * CLASSES], known[ROWS] = {0, -1, 5, -1, -7, 2}, got[ROWS];
    random_values(9, ROWS * CLASSES, logits);
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < 2; type++) {
            place z = place_of(&rigs[r], types[type], SHAPE(ROWS, CLASSES), logits);
            place at = place_of(&rigs[r], DSC_I64, SHAPE(2), (const double[]){3, 40});
            place marks = place_of(&rigs[r], DSC_I32, SHAPE(ROWS), known),
                  to = place_make(&rigs[r], DSC_I32, SHAPE(ROWS));
            assert_ok(dsc_op_sample_labels(rigs[r].q, 11, &at.t, 2, &z.t, CLASSES, &marks.t, &to.t));
            place_expect(&rigs[r], &marks, known, "sample_labels: known");
            place_read(&rigs[r], &to, got);
            for (int i = 0; i < ROWS; i++)
                assert_int_equal(
                    (int)got[i],
                    known[i] < 0 ? -1 : naive_label(11, 3, 80 + (uint64_t)i, logits + i * CLASSES, CLASSES));
            FREE_PLACES(&z, &at, &marks, &to);
        }
}

/* Frequencies of 20000 draws from (0.5, 0.25, 0, 0.15, 0.1): with four classes that can occur chi-square has
 * 3 degrees of freedom, and exceeds 30 once in a million. Another step draws others. */
static void test_label_frequencies(void **state) {
    (void)state;
    enum { ROWS = 20000, CLASSES = 5 };
    static const double p[CLASSES] = {0.5, 0.25, 0, 0.15, 0.1};
    double *logits = test_array(ROWS * CLASSES, sizeof *logits);
    for (int i = 0; i < ROWS * CLASSES; i++) /* exp(-1000) is 0 in double */
        logits[i] = p[i % CLASSES] > 0 ? (double)(float)(100 + log(p[i % CLASSES])) : -900;
    for (int r = 0; r < rig_count; r++) {
        double counts[CLASSES] = {0}, chi = 0;
        double *labels = draw(&rigs[r], DSC_F32, 1, (const double[]){0, 0}, logits, ROWS, CLASSES);
        double *others = draw(&rigs[r], DSC_F32, 1, (const double[]){1, 0}, logits, ROWS, CLASSES);
        int64_t equal = 0;
        for (int i = 0; i < ROWS; i++) {
            counts[(int)labels[i]] += 1;
            equal += labels[i] == others[i];
        }
        for (int c = 0; c < CLASSES; c++)
            if (p[c] > 0)
                chi += (counts[c] - ROWS * p[c]) * (counts[c] - ROWS * p[c]) / (ROWS * p[c]);
        assert_true(counts[2] == 0);
        assert_true(chi < 30);
        /* sum p^2 = 0.345 of independent draws agree, give or take 6 of their standard deviations */
        assert_true(fabs((double)equal - 0.345 * ROWS) < 6 * sqrt(0.345 * 0.655 * ROWS));
        free(labels);
        free(others);
    }
    free(logits);
}

/* Far apart, infinitely far apart, and not numbers: always a class, of the only weight where there is one. */
static void test_odd_logits(void **state) {
    (void)state;
    enum { ROWS = 7, CLASSES = 3 };
    static const double logits[ROWS * CLASSES] = {
        -1000, 1000, 0, 0, 0,        -INFINITY, 0x1p100, -0x1p100,  0,         -INFINITY, -INFINITY,
        5,     NAN,  1, 2, INFINITY, 0,         1,       -INFINITY, -INFINITY, -INFINITY};
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < 2; type++)
            for (int step = 0; step < 20; step++) {
                double *labels =
                    draw(&rigs[r], types[type], 3, (const double[]){step, 0}, logits, ROWS, CLASSES);
                assert_int_equal((int)labels[0], 1);
                assert_in_range((int)labels[1], 0, 1);
                assert_int_equal((int)labels[2], 0);
                assert_int_equal((int)labels[3], 2);
                for (int i = 4; i < ROWS; i++)
                    assert_in_range((int)labels[i], 0, CLASSES - 1);
                free(labels);
            }
}

static void test_label_refusals(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        place z = place_make(&rigs[r], DSC_F32, SHAPE(4, 3)),
              none = place_make(&rigs[r], DSC_F32, SHAPE(0, 3));
        place flat = place_make(&rigs[r], DSC_F32, SHAPE(4, 0)), at = place_make(&rigs[r], DSC_I64, SHAPE(2));
        place four = place_make(&rigs[r], DSC_I32, SHAPE(4)), zero = place_make(&rigs[r], DSC_I32, SHAPE(0));
        assert_ok(dsc_op_sample_labels(rigs[r].q, 1, &at.t, 1, &none.t, 3, NULL, &zero.t));
        assert_fails(DSC_E_INVALID, "sample_labels: labels is [0]; [4] is expected",
                     dsc_op_sample_labels(rigs[r].q, 1, &at.t, 1, &z.t, 3, NULL, &zero.t));
        assert_fails(DSC_E_INVALID, "sample_labels: 3 classes of rows of 0",
                     dsc_op_sample_labels(rigs[r].q, 1, &at.t, 1, &flat.t, 3, NULL, &four.t));
        assert_fails(DSC_E_INVALID, "sample_labels: position is i32; i64 is expected",
                     dsc_op_sample_labels(rigs[r].q, 1, &four.t, 1, &z.t, 3, NULL, &four.t));
        assert_fails(DSC_E_INVALID, "sample_labels: known is [0]; [4] is expected",
                     dsc_op_sample_labels(rigs[r].q, 1, &at.t, 1, &z.t, 3, &zero.t, &four.t));
        FREE_PLACES(&z, &none, &flat, &at, &four, &zero);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_add_diagonal),       cmocka_unit_test(test_outer_inverse),
        cmocka_unit_test(test_multiply),           cmocka_unit_test(test_join),
        cmocka_unit_test(test_gather_and_scatter), cmocka_unit_test(test_kl_clip),
        cmocka_unit_test(test_damping_split),      cmocka_unit_test(test_labels),
        cmocka_unit_test(test_known_labels),       cmocka_unit_test(test_label_frequencies),
        cmocka_unit_test(test_odd_logits),         cmocka_unit_test(test_label_refusals),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
