/* Warm refresh against exact decompositions of the same factors, on one rank: over many steps, and for factors
 * on which rotations are hard or go wrong. */
#include "kfac/pair.h"
#include "kfac/refresh.h"
#include "kfac/twin.h"

#include <math.h>
#include <stdlib.h>

/* Factors of 180 and 24 rows, 161 and 140, 150 and 130: all but one are rotated. */
enum { WIDE = 3, WIDE_SAMPLES = 16, ROTATED = 5 };
static const net_shape wide[WIDE] = {
    {"conv", DSC_KFAC_CONV2D, .in_c = 20, .out_c = 24, .in_h = 4, .in_w = 4, .kernel_h = 3, .kernel_w = 3,
     .pad_h = 1, .pad_w = 1},
    {"linear", DSC_KFAC_LINEAR, .in_c = 160, .out_c = 140, .bias = 1},
    {"rows", DSC_KFAC_LINEAR, .in_c = 150, .out_c = 130, .sequence = 8},
};

static double rank = 1; /* of bases, in the tests that follow */

static dsc_kfac_options options_of(int64_t update_freq) {
    dsc_kfac_options options;
    dsc_kfac_options_init(&options);
    options.rank = rank;
    options.kl_clip = 0;
    options.update_freq = update_freq;
    return options;
}

/* ---- data like that of a training ---- */

/* Rows x = M_t z with z drawn anew in every step: columns of M_t fall like 1/j, and turn slowly, a hundredth of
 * a radian in a step, into those of another matrix. */
typedef struct source {
    int64_t n;
    double *from, *to; /* [n, n] */
} source;

static source sources[WIDE][DSC_KFAC_SIDES];

static double draw(uint64_t *seed) {
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(*seed >> 11) * 0x1p-53 - 0.5;
    }
    return sum * sqrt(3);
}

static int64_t filled; /* the step whose rows the net holds */

static void open_sources(const net *n) {
    filled = -1;
    for (int l = 0; l < n->count; l++) {
        const int64_t sizes[] = {n->layers[l].shape.in_c, n->layers[l].shape.out_c};
        for (int side = 0; side < DSC_KFAC_SIDES; side++) {
            source *s = &sources[l][side];
            uint64_t seed = (uint64_t)(2 * l + side + 1);
            s->n = sizes[side];
            s->from = net_array(s->n * s->n, sizeof(double));
            s->to = net_array(s->n * s->n, sizeof(double));
            for (int64_t i = 0; i < s->n * s->n; i++) {
                double scale = 1 / (1 + (double)(i % s->n));
                s->from[i] = scale * draw(&seed);
                s->to[i] = scale * draw(&seed);
            }
        }
    }
}

static void close_sources(void) {
    for (int i = 0; i < WIDE * DSC_KFAC_SIDES; i++) {
        free(sources[i / 2][i % 2].from);
        free(sources[i / 2][i % 2].to);
    }
}

/* rows[count, n] of step `step`, on the device. */
static void fill_rows(const net *n, const source *s, int64_t step, uint64_t seed, double scale,
                      dsc_tensor *t) {
    int64_t count = dsc_tensor_count(t) / s->n;
    double c = cos(0.01 * (double)step), d = sin(0.01 * (double)step);
    float *x = net_array(count * s->n, sizeof *x);
    double *z = net_array(s->n, sizeof *z);
    seed = (seed + 1000 * (uint64_t)step) * 0x9e3779b97f4a7c15u;
    for (int64_t r = 0; r < count; r++) {
        for (int64_t j = 0; j < s->n; j++)
            z[j] = draw(&seed);
        for (int64_t i = 0; i < s->n; i++) {
            double sum = 0;
            for (int64_t j = 0; j < s->n; j++)
                sum += (c * s->from[i * s->n + j] + d * s->to[i * s->n + j]) * z[j];
            x[r * s->n + i] = (float)(scale * sum);
        }
    }
    assert_ok(dsc_tensor_upload(n->queue, x, dsc_tensor_bytes(t), t));
    assert_ok(dsc_queue_sync(n->queue));
    free(x);
    free(z);
}

static void fill_like_training(net *n, int64_t step) {
    net_draw_gradients(n, step);
    for (int l = 0; filled != step && l < n->count; l++) {
        net_layer *layer = &n->layers[l];
        double rows = (double)(dsc_tensor_count(&layer->g) / layer->shape.out_c);
        fill_rows(n, &sources[l][0], step, (uint64_t)l, 1, &layer->a);
        fill_rows(n, &sources[l][1], step, (uint64_t)(l + 50), 1 / rows, &layer->g);
    }
    filled = step;
}

/* ---- steps ---- */

typedef struct limits {
    double mean, worst; /* of |P - P*| / |P*| over all layers: of all refreshes together, of one */
} limits;

static void follow(const place *where, int64_t update_freq, int steps, pair_fill fill, limits most) {
    net n;
    pair p;
    dsc_kfac_options options = options_of(update_freq);
    double sum = 0;
    int count = 0;
    net_open(&n, where->queue, where->dtype, wide, WIDE, WIDE_SAMPLES);
    open_sources(&n);
    pair_open(&p, &n, alone, &options, 128);
    p.fill = fill;
    for (int k = 0; k < steps; k++) {
        pair_step(&p, &(net_step){.number = k, .lr = 1});
        if (k == 0 || k % update_freq)
            continue;
        print_message("T %d, step %d: err %.3f, worst layer %.3f, smallest cosine %.4f\n", (int)update_freq,
                      k, p.mean, p.worst, p.cosine);
        sum += p.mean;
        count++;
        assert_true(p.mean < most.worst);
        assert_true(p.cosine > 0.8);
    }
    assert_true(sum / count < most.mean);
    const dsc_kfac_report *report = pair_report(&p);
    print_message("refreshed %d, extra iterations %d, exact %d, bytes %d\n", (int)report->refreshed_factors,
                  (int)report->extra_iterations, (int)report->exact_fallbacks,
                  (int)report->decomposition_bytes);
    if (rank == 1)
        assert_int_equal(report->refreshed_factors + report->exact_fallbacks, ROTATED * count);
    assert_true(report->refreshed_factors > 0);
    pair_close(&p);
    close_sources();
    net_close(&n);
}

static void test_follows_exact_solves(void **state) {
    (void)state;
    follow(&places[CPU], 10, 61, fill_like_training, (limits){0.1, 0.3});
}

/* Batches that have nothing in common: the acceptance test has to bound the error. */
static void test_unrelated_batches(void **state) {
    (void)state;
    follow(&places[CPU], 10, 61, NULL, (limits){0.3, 0.5});
}

static void test_gaps(void **state) {
    (void)state;
    follow(&places[CPU], 50, 101, fill_like_training, (limits){0.3, 0.5});
    follow(&places[CPU], 100, 201, fill_like_training, (limits){0.4, 0.5});
}

/* Bases that keep a part of the vectors. */
static void test_cut_bases(void **state) {
    (void)state;
    rank = 0.5;
    follow(&places[CPU], 10, 61, fill_like_training, (limits){0.2, 0.3});
    rank = 0.25;
    follow(&places[CPU], 10, 61, fill_like_training, (limits){0.2, 0.3});
    rank = 1;
}

/* ---- given factors ---- */

enum { A_N = 40, G_N = 30, CASE_STEPS = 5 };
static const net_shape small[1] = {{"linear", DSC_KFAC_LINEAR, .in_c = A_N, .out_c = G_N, .sequence = 2}};

/* A symmetric matrix with these eigenvalues, whose eigenvectors depend on the seed and turn with the step. */
static void make_matrix(double *a, int64_t n, uint64_t seed, double step, const double *values) {
    double *q = net_array(n * n, sizeof *q);
    uint64_t other = seed + 77;
    for (int64_t i = 0; i < n * n; i++)
        q[i] = draw(&seed) + 0.05 * step * draw(&other);
    for (int64_t j = 0; j < n; j++) { /* orthonormal columns, twice for accuracy */
        for (int64_t i = 0; i < 2 * j; i++) {
            double inner = 0;
            for (int64_t r = 0; r < n; r++)
                inner += q[r * n + i % j] * q[r * n + j];
            for (int64_t r = 0; r < n; r++)
                q[r * n + j] -= inner * q[r * n + i % j];
        }
        double norm = 0;
        for (int64_t r = 0; r < n; r++)
            norm += q[r * n + j] * q[r * n + j];
        for (int64_t r = 0; r < n; r++)
            q[r * n + j] /= sqrt(norm);
    }
    for (int64_t i = 0; i < n * n; i++) {
        a[i] = 0;
        for (int64_t j = 0; j < n; j++)
            a[i] += q[i / n * n + j] * values[j] * q[i % n * n + j];
    }
    free(q);
}

typedef enum hard_case {
    REPEATED,  /* three different eigenvalues */
    ZERO,      /* both factors vanish after the first step */
    DEFICIENT, /* rank 5 */
    DEAD,      /* a third of the channels is 0 */
    SUDDEN,    /* unrelated to the last ones in step 3 */
    SCALES,    /* 1e6 beside 1e-3 */
    CASES,
    PLATEAU = CASES, /* for cut bases: an eighth of the eigenvalues falls, the others are alike */
    PLATEAU_A,       /* only those of A */
    PLATEAU_G        /* only those of G */
} hard_case;
static const char *const case_names[] = {"repeated", "zero",    "deficient", "dead",     "sudden",
                                         "scales",   "plateau", "plateau A", "plateau G"};

static void make_case(hard_case which, int64_t step, int64_t n, double *a) {
    double values[A_N];
    uint64_t seed = (uint64_t)n + (which == SUDDEN && step >= 3 ? 1000 : 0);
    for (int64_t j = 0; j < n; j++) {
        values[j] = 4 / (1 + (double)j);
        if (which == REPEATED)
            values[j] = 1 << (3 * j / n);
        else if (which == ZERO)
            values[j] = step == 0;
        else if (which == DEFICIENT)
            values[j] = j < 5 ? 1 : 0;
        else if (which == SCALES)
            values[j] = j < 4 ? 1e6 : 1e-3 * (1 + (double)j);
        else if (which == PLATEAU || (which == PLATEAU_A && n == A_N) || (which == PLATEAU_G && n == G_N))
            values[j] = j < n / 8 ? 4 / (1 + (double)j) : 0.25;
    }
    make_matrix(a, n, seed, (double)step, values);
    for (int64_t i = 0; which == DEAD && i < n * n; i++)
        if (i / n % 3 == 0 || i % n % 3 == 0)
            a[i] = 0;
}

/* Writes factor matrices over the running averages; side by side, packed. */
static void set_averages(const net *n, dsc_kfac *kfac, const double *a, const double *g) {
    const dsc_tensor *t = dsc_kfac_averages(kfac);
    int64_t used = 0, count = dsc_tensor_count(t);
    double *wide_numbers = net_array(count, sizeof *wide_numbers);
    float *narrow = net_array(count, sizeof *narrow);
    for (int64_t i = 0; i < A_N; i++)
        for (int64_t j = 0; j <= i; j++)
            wide_numbers[used++] = a[i * A_N + j];
    for (int64_t i = 0; i < G_N; i++)
        for (int64_t j = 0; j <= i; j++)
            wide_numbers[used++] = g[i * G_N + j];
    assert_int_equal(used, count);
    for (int64_t i = 0; i < count; i++)
        narrow[i] = (float)wide_numbers[i];
    dsc_tensor view = *t;
    assert_ok(dsc_tensor_upload(n->queue, n->dtype == DSC_F64 ? (void *)wide_numbers : narrow,
                                dsc_tensor_bytes(t), &view));
    assert_ok(dsc_queue_sync(n->queue));
    free(wide_numbers);
    free(narrow);
}

/* A preconditioner pair of one layer whose factors the test sets: captures do not change them. */
static void open_given(net *n, pair *p, const place *where) {
    dsc_kfac_options options = options_of(1);
    options.stat_decay = 1;
    net_open(n, where->queue, where->dtype, small, 1, WIDE_SAMPLES);
    pair_open(p, n, alone, &options, 0);
}

/* Checks that the estimate of the error that decided about the last refresh is near the actual error; without an
 * estimate the error is small. */
static void check_estimate(const pair *p) {
    const dsc_refresh_unit *u = &p->warm->wave->units[0];
    const dsc_refresh_item *of_a = &p->warm->wave->items[u->a], *of_g = &p->warm->wave->items[u->g];
    if (!u->judged) {
        assert_true(p->mean <= 0.3);
        assert_true((!of_a->warm || of_a->residual <= 0.1) && (!of_g->warm || of_g->residual <= 0.1));
    } else if (of_a->warm && of_g->warm && p->mean > 0.001) {
        assert_true(u->eta > 0.5 * p->mean && u->eta < 2 * p->mean);
    }
}

/* A step of both preconditioners with the factors of a case. */
static void step_case(net *n, pair *p, const place *where, hard_case which, int step) {
    double a[A_N * A_N], g[G_N * G_N];
    make_case(which, step, A_N, a);
    make_case(which, step, G_N, g);
    set_averages(n, p->exact, a, g);
    set_averages(n, p->warm, a, g);
    pair_step(p, &(net_step){.number = step, .lr = 1});
    print_message("%s, %s, step %d: err %.3g\n", where->device, case_names[which], step, p->mean);
}

static void run_case(const place *where, hard_case which) {
    net n;
    pair p;
    open_given(&n, &p, where);
    for (int k = 0; k < CASE_STEPS; k++) {
        step_case(&n, &p, where, which, k);
        assert_true(p.mean < 0.5);
        if (k > 0)
            check_estimate(&p);
    }
    const dsc_kfac_report *report = pair_report(&p);
    assert_int_equal(report->failed_solves, 0);
    assert_int_equal(report->refreshed_factors + report->exact_fallbacks, 2 * (CASE_STEPS - 1));
    if (which == SUDDEN)
        assert_true(report->extra_iterations > 0 && report->exact_fallbacks > 0);
    pair_close(&p);
    net_close(&n);
}

static void test_hard_factors(void **state) {
    (void)state;
    for (int which = 0; which < CASES; which++) {
        run_case(&places[REF], which);
        if (which != SCALES) /* more than float32 can tell apart */
            run_case(&places[CPU], which);
    }
}

/* Where the dropped eigenvalues are all equal, a cut loses nothing: products of cut bases, of a cut and a whole
 * one, and of a whole and a cut one are exact. Step 0 cuts exact solutions, later ones rotate cut bases. */
static void check_cut(const place *where, hard_case which) {
    net n;
    pair p;
    int host = dsc_device_is_host(dsc_queue_device(where->queue)); /* elsewhere products are in TF32 */
    double most = where->dtype == DSC_F64 ? 1e-12 : host ? 1e-4 : 5e-3;
    open_given(&n, &p, where);
    for (int k = 0; k < CASE_STEPS; k++) {
        step_case(&n, &p, where, which, k);
        assert_true(p.mean < (k == 0 ? most : 0.3));
    }
    int64_t ranks[] = {p.warm->layouts[0].upkeep[0].rank, p.warm->layouts[0].upkeep[1].rank};
    assert_int_equal(ranks[0], which == PLATEAU_G ? A_N : A_N / 4);
    assert_int_equal(ranks[1], which == PLATEAU_A ? G_N : (G_N + 3) / 4);
    pair_close(&p);
    net_close(&n);
}

static void test_cut_is_exact(void **state) {
    (void)state;
    rank = 0.25;
    for (int which = PLATEAU; which <= PLATEAU_G; which++) {
        check_cut(&places[REF], which);
        check_cut(&places[CPU], which);
    }
    rank = 1;
}

/* A factor that is not finite: the earlier decomposition stays in use, and the next refresh starts from it. */
static void test_not_finite(void **state) {
    net n;
    pair p;
    double a[A_N * A_N], g[G_N * G_N];
    (void)state;
    open_given(&n, &p, &places[CPU]);
    for (int k = 0; k < 4; k++) {
        make_case(REPEATED, k, A_N, a);
        make_case(REPEATED, k, G_N, g);
        a[7 * A_N + 3] = k == 2 ? NAN : a[7 * A_N + 3];
        set_averages(&n, p.exact, a, g);
        set_averages(&n, p.warm, a, g);
        pair_step(&p, &(net_step){.number = k, .lr = 1});
        assert_true(p.mean < 0.5);
    }
    const dsc_kfac_report *report = pair_report(&p);
    assert_int_equal(report->failed_solves, 1);
    assert_int_equal(report->exact_fallbacks, 1);
    pair_close(&p);
    net_close(&n);
}

/* ---- waves ---- */

/* Equal bits; on a GPU, where products of another number of matrices may be cut into other tiles, equal but for
 * rounding. */
static void expect_alike(const net *n, int l, const double *x, const double *y) {
    double error = 0, norm = 0;
    int64_t count = net_gradient_count(n, l);
    for (int64_t i = 0; i < count; i++) {
        error += pow(x[i] - y[i], 2);
        norm += pow(x[i], 2);
    }
    assert_true(error <= 1e-8 * norm);
    if (dsc_device_is_host(dsc_queue_device(n->queue)))
        assert_memory_equal(x, y, (size_t)count * sizeof *x);
}

/* Memory for `fit` of eight equal layers at a time gives the same as memory for all of them, and the last wave is
 * what is left over. */
static void check_waves(int64_t fit) {
    enum { LAYERS = 8 };
    static const char *const names[LAYERS] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    net_shape shapes[LAYERS];
    net n;
    pair all, parts;
    dsc_kfac_options options = options_of(1);
    for (int l = 0; l < LAYERS; l++)
        shapes[l] = (net_shape){names[l], DSC_KFAC_LINEAR, .in_c = 12, .out_c = 9, .sequence = 2};
    net_open(&n, places[CPU].queue, places[CPU].dtype, shapes, LAYERS, WIDE_SAMPLES);
    pair_open(&all, &n, alone, &options, 0);
    pair_open(&parts, &n, alone, &options, 0);
    const dsc_refresh_wave *w = parts.warm->wave;
    parts.warm->wave->numbers = w->numbers / LAYERS * fit;
    for (int k = 0; k < 4; k++) {
        pair_step(&all, &(net_step){.number = k, .lr = 1});
        pair_step(&parts, &(net_step){.number = k, .lr = 1});
        for (int l = 0; l < LAYERS; l++)
            expect_alike(&n, l, all.have[l], parts.have[l]);
    }
    int64_t last = LAYERS % fit ? LAYERS % fit : fit;
    assert_int_equal(all.warm->wave->count, 2 * LAYERS);
    assert_int_equal(all.warm->wave->unit_count, LAYERS);
    assert_int_equal(w->first, 2 * (LAYERS - last));
    assert_int_equal(w->count, 2 * last);
    assert_int_equal(w->unit_count, last);
    assert_true(pair_report(&parts)->refreshed_factors > 0);
    pair_close(&all);
    pair_close(&parts);
    net_close(&n);
}

static void test_waves(void **state) {
    (void)state;
    for (int64_t fit = 1; fit <= 8; fit++)
        check_waves(fit);
}

/* Layers with one G and with three, so that groups that stay together have two and four factors: any memory that is
 * enough for one of them gives the same. */
static void test_uneven_waves(void **state) {
    enum { LAYERS = 7, SHARES = 16 };
    static const char *const names[LAYERS] = {"a", "b", "c", "d", "e", "f", "g"};
    net_shape shapes[LAYERS];
    net n;
    pair all, parts;
    dsc_kfac_options options = options_of(1);
    (void)state;
    for (int l = 0; l < LAYERS; l++)
        shapes[l] = (net_shape){names[l],   DSC_KFAC_LINEAR, .in_c = 12,
                                .out_c = 9, .sequence = 2,   .blocks = l % 3 == 1 ? 1 : 3};
    net_open(&n, places[CPU].queue, places[CPU].dtype, shapes, LAYERS, WIDE_SAMPLES);
    pair_open(&all, &n, alone, &options, 0);
    pair_open(&parts, &n, alone, &options, 0);
    int64_t numbers = parts.warm->wave->numbers;
    for (int k = 0; k <= SHARES; k++) {
        parts.warm->wave->numbers = numbers / SHARES * k;
        pair_step(&all, &(net_step){.number = k, .lr = 1});
        pair_step(&parts, &(net_step){.number = k, .lr = 1});
        for (int l = 0; l < LAYERS; l++)
            expect_alike(&n, l, all.have[l], parts.have[l]);
    }
    pair_close(&all);
    pair_close(&parts);
    net_close(&n);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_follows_exact_solves),
        cmocka_unit_test(test_unrelated_batches),
        cmocka_unit_test(test_gaps),
        cmocka_unit_test(test_cut_bases),
        cmocka_unit_test(test_hard_factors),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_cut_is_exact),
        cmocka_unit_test(test_waves),
        cmocka_unit_test(test_uneven_waves),
    };
    if (argc > 1) /* runs only tests whose names match */
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, places_open, places_close);
}
