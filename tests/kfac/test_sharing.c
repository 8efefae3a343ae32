/* Layers that are applied to every position of a sequence: the scale of factors for losses of many terms, and both
 * ways to share a weight, on cases whose Fisher matrix is known.
 *
 * With a decay of 0 the running averages are the batch factors, which the state shows as packed triangles. A linear
 * layer y = W a is followed by z = V y, and the loss is the mean of |z|^2 / 2 over M terms: the Gauss-Newton matrix
 * of W is V'V (x) E[a a']. A backward pass that starts with e_c / M at every term gives g = V[c] / M; the G of all c
 * together should be V'V. */
#include "kfac/twin.h"

#include "device/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 3, T = 5, IN = 4, OUT = 3, C = 6, MOST = 64 };

static double number(int i) {
    return ((i * 37 + 11) % 23 - 11) / 8.0;
}

static const double *outer_weights(void) {
    static double v[C * OUT];
    for (int i = 0; i < C * OUT; i++)
        v[i] = number(i + 100);
    return v;
}

/* Factor A or G of the only layer, as a packed triangle of n rows. */
static void read_factor(dsc_kfac *kfac, const place *p, const char *name, double *out) {
    double host[MOST];
    int64_t index = twin_entry(kfac, name), count = 1;
    const dsc_kfac_entry *e = &dsc_kfac_state_entries(kfac)[index];
    for (int k = 0; k < e->ndim; k++)
        count *= e->dim[k];
    assert_true(count <= MOST);
    assert_ok(dsc_kfac_state_get(kfac, p->queue, index, host));
    for (int64_t i = 0; i < count; i++)
        out[i] = e->dtype == DSC_F64 ? host[i] : (double)((const float *)(const void *)host)[i];
}

static dsc_tensor make(const place *p, int ndim, const int64_t *dim, const double *values) {
    dsc_tensor t;
    int64_t count = 1;
    for (int i = 0; i < ndim; i++)
        count *= dim[i];
    float *narrow = net_array(count, sizeof *narrow);
    for (int64_t i = 0; i < count; i++)
        narrow[i] = (float)values[i];
    assert_ok(dsc_tensor_alloc(p->handle, p->dtype, ndim, dim, &t));
    assert_ok(dsc_tensor_upload(p->queue, p->dtype == DSC_F64 ? (const void *)values : narrow,
                                dsc_tensor_bytes(&t), &t));
    assert_ok(dsc_queue_sync(p->queue));
    free(narrow);
    return t;
}

static void read_numbers(const place *p, const dsc_tensor *t, double *out) {
    float narrow[MOST];
    int64_t count = dsc_tensor_count(t);
    assert_true(count <= MOST);
    assert_ok(
        dsc_tensor_download(p->queue, t, dsc_tensor_bytes(t), p->dtype == DSC_F64 ? (void *)out : narrow));
    assert_ok(dsc_queue_sync(p->queue));
    for (int64_t i = 0; i < count && p->dtype != DSC_F64; i++)
        out[i] = (double)narrow[i];
}

/* The parameters of a case; positions 0: plain rows; conv: a 1x1 convolution of positions x 1 maps. */
typedef struct sharing_case {
    int64_t positions, terms;
    dsc_kfac_sharing sharing;
    int conv;
} sharing_case;

/* A and G of one step with a[N * positions, IN] and g[N * positions, OUT]. */
static void factors_of(const place *p, sharing_case c, const double *a, const double *g, double *factor_a,
                       double *factor_g) {
    const int64_t t = c.positions > 0 ? c.positions : 1, weights = OUT * IN;
    const int64_t rows[2][3] = {{N, t, IN}, {N, t, OUT}}, maps[2][4] = {{N, t, 1, IN}, {N, t, 1, OUT}};
    const int64_t plain[2][2] = {{N, IN}, {N, OUT}};
    dsc_conv2d_shape shape;
    dsc_kfac_options options = twin_options();
    dsc_kfac_layer layer;
    dsc_kfac *kfac;
    dsc_tensor grad, both[2];
    options.stat_decay = 0;
    options.loss_terms = c.terms;
    options.sharing = c.sharing;
    assert_ok(dsc_tensor_alloc(p->handle, p->dtype, 1, &weights, &grad));
    assert_ok(dsc_op_fill(p->queue, 1, &grad));
    dsc_kfac_layer_init(&layer);
    dsc_conv2d_shape_init(&shape);
    shape.in_h = t;
    shape.in_w = 1;
    shape.in_c = IN;
    shape.out_c = OUT;
    layer.name = "layer";
    layer.kind = c.conv ? DSC_KFAC_CONV2D : DSC_KFAC_LINEAR;
    layer.in_c = IN;
    layer.out_c = OUT;
    layer.conv = &shape;
    layer.weight_grad = grad;
    assert_ok(dsc_kfac_create(alone, p->queue, &layer, 1, &options, &kfac));
    for (int i = 0; i < 2; i++)
        both[i] = c.conv            ? make(p, 4, maps[i], i ? g : a)
                  : c.positions > 0 ? make(p, 3, rows[i], i ? g : a)
                                    : make(p, 2, plain[i], i ? g : a);
    assert_ok(dsc_kfac_begin(kfac, 1));
    assert_ok(dsc_kfac_capture(kfac, p->queue, 0, &both[0], &both[1]));
    assert_ok(dsc_kfac_step(kfac, p->queue, 0.5));
    read_factor(kfac, p, "layer.A", factor_a);
    read_factor(kfac, p, "layer.G", factor_g);
    dsc_kfac_destroy(&kfac);
    dsc_tensor_free(&both[0]);
    dsc_tensor_free(&both[1]);
    dsc_tensor_free(&grad);
}

/* The sum over c of G where every row of g is V[c] times `seed`; A of the inputs. */
static void sum_of_passes(const place *p, sharing_case what, double seed, double *factor_a, double *sum_g) {
    double a[N * T * IN], g[N * T * OUT], factor_g[MOST];
    const double *v = outer_weights();
    int64_t rows = N * (what.positions > 0 ? what.positions : 1);
    for (int i = 0; i < N * T * IN; i++)
        a[i] = number(i);
    memset(sum_g, 0, MOST * sizeof *sum_g);
    for (int c = 0; c < C; c++) {
        for (int64_t i = 0; i < rows * OUT; i++)
            g[i] = v[c * OUT + i % OUT] * seed;
        factors_of(p, what, a, g, factor_a, factor_g);
        for (int i = 0; i < OUT * (OUT + 1) / 2; i++)
            sum_g[i] += factor_g[i];
    }
}

/* sum_g = scale V'V. */
static void expect_outer(const place *p, const double *sum_g, double scale, const char *what) {
    const double *v = outer_weights();
    for (int i = 0, at = 0; i < OUT; i++)
        for (int j = 0; j <= i; j++, at++) {
            double wanted = 0, size = 0;
            for (int c = 0; c < C; c++) {
                wanted += scale * v[c * OUT + i] * v[c * OUT + j];
                size += scale * fabs(v[c * OUT + i] * v[c * OUT + j]);
            }
            if (!(fabs(sum_g[at] - wanted) <= 64 * N * T * p->eps * size))
                fail_msg("%s: G[%d,%d] is %.12g instead of %.12g", what, i, j, sum_g[at], wanted);
        }
}

/* One term of the loss at every position, as in a language model: the Gauss-Newton matrix. */
static void test_every_position(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++) {
        double a[MOST], g[MOST];
        const double m = N * T;
        sum_of_passes(&places[p], (sharing_case){T, T, DSC_KFAC_EXPAND, 0}, 1 / m, a, g);
        expect_outer(&places[p], g, 1, "expand");
        sum_of_passes(&places[p], (sharing_case){T, 0, DSC_KFAC_EXPAND, 0}, 1 / m, a, g);
        expect_outer(&places[p], g, 1, "every row is a term by default");
        for (int i = 0, at = 0; i < IN; i++)
            for (int j = 0; j <= i; j++, at++) {
                double wanted = 0;
                for (int r = 0; r < N * T; r++)
                    wanted += number(r * IN + i) * number(r * IN + j) / m;
                assert_true(fabs(a[at] - wanted) <= 64 * m * places[p].eps);
            }
    }
}

/* The mean over positions follows the layer, and the loss has one term per sequence: reduce is exact, expand's G is
 * smaller by the number of positions. */
static void test_pooled(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++) {
        double a[MOST], g[MOST];
        sum_of_passes(&places[p], (sharing_case){T, 1, DSC_KFAC_REDUCE, 0}, 1.0 / (N * T), a, g);
        expect_outer(&places[p], g, 1, "reduce");
        for (int i = 0, at = 0; i < IN; i++)
            for (int j = 0; j <= i; j++, at++) {
                double wanted = 0;
                for (int n = 0; n < N; n++) {
                    double x = 0, y = 0;
                    for (int t = 0; t < T; t++) {
                        x += number((n * T + t) * IN + i) / T;
                        y += number((n * T + t) * IN + j) / T;
                    }
                    wanted += x * y / N;
                }
                assert_true(fabs(a[at] - wanted) <= 64 * N * T * places[p].eps);
            }
        sum_of_passes(&places[p], (sharing_case){T, 1, DSC_KFAC_EXPAND, 0}, 1.0 / (N * T), a, g);
        expect_outer(&places[p], g, 1.0 / T, "expand of a pooled layer");
    }
}

/* One position: both ways, and plain rows, are the same. */
static void test_one_position(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++) {
        double a[3][MOST], g[3][MOST];
        const sharing_case cases[3] = {
            {0, 0, DSC_KFAC_EXPAND, 0}, {1, 1, DSC_KFAC_EXPAND, 0}, {1, 1, DSC_KFAC_REDUCE, 0}};
        for (int i = 0; i < 3; i++) {
            sum_of_passes(&places[p], cases[i], 1.0 / N, a[i], g[i]);
            expect_outer(&places[p], g[i], 1, "one position");
            assert_memory_equal(a[i], a[0], IN * (IN + 1) / 2 * sizeof a[i][0]);
        }
    }
}

/* A 1x1 convolution with a loss at every pixel is a linear layer at every position; a factor S moves from A to G. */
static void test_pixels(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++) {
        double a[2][MOST], g[2][MOST];
        sum_of_passes(&places[p], (sharing_case){T, T, DSC_KFAC_EXPAND, 0}, 1.0 / (N * T), a[0], g[0]);
        sum_of_passes(&places[p], (sharing_case){T, T, DSC_KFAC_EXPAND, 1}, 1.0 / (N * T), a[1], g[1]);
        expect_outer(&places[p], g[1], T, "pixels");
        for (int i = 0; i < IN * (IN + 1) / 2; i++)
            assert_true(fabs(a[1][i] * T - a[0][i]) <= 64 * N * T * places[p].eps);
    }
}

/* A layer of three blocks preconditions as three layers on the same inputs do, each with its part of the outputs. */
static void test_blocks(void **state) {
    (void)state;
    enum { BLOCKS = 3, PART = OUT / BLOCKS, ALL = OUT * IN };
    const int64_t a_dim[3] = {N, T, IN}, g_dim[3] = {N, T, OUT}, part_dim[3] = {N, T, PART};
    const int64_t all = ALL, some = ALL / BLOCKS, outputs = OUT, part_outputs = PART;
    double a[N * T * IN], g[N * T * OUT], parts[BLOCKS][N * T * PART];
    for (int i = 0; i < N * T * IN; i++)
        a[i] = number(i);
    for (int i = 0; i < N * T * OUT; i++)
        g[i] = parts[i % OUT / PART][i / OUT * PART + i % PART] = number(i + 50) / 16;
    for (int p = 0; p < PLACES; p++) {
        const place *at = &places[p];
        dsc_kfac_options options = twin_options();
        dsc_kfac_layer one, three[BLOCKS];
        dsc_kfac *joint, *apart;
        char names[BLOCKS][16];
        dsc_tensor w, b, ws[BLOCKS], bs[BLOCKS], x = make(at, 3, a_dim, a), y = make(at, 3, g_dim, g);
        assert_ok(dsc_tensor_alloc(at->handle, at->dtype, 1, &all, &w));
        assert_ok(dsc_tensor_alloc(at->handle, at->dtype, 1, &outputs, &b));
        assert_ok(dsc_op_fill(at->queue, 0.5, &w));
        assert_ok(dsc_op_fill(at->queue, 0.25, &b));
        dsc_kfac_layer_init(&one);
        one.name = "qkv";
        one.kind = DSC_KFAC_LINEAR;
        one.in_c = IN;
        one.out_c = OUT;
        one.out_blocks = BLOCKS;
        one.weight_grad = w;
        one.bias_grad = b;
        assert_ok(dsc_kfac_create(alone, at->queue, &one, 1, &options, &joint));
        for (int i = 0; i < BLOCKS; i++) {
            assert_ok(dsc_tensor_alloc(at->handle, at->dtype, 1, &some, &ws[i]));
            assert_ok(dsc_tensor_alloc(at->handle, at->dtype, 1, &part_outputs, &bs[i]));
            assert_ok(dsc_op_fill(at->queue, 0.5, &ws[i]));
            assert_ok(dsc_op_fill(at->queue, 0.25, &bs[i]));
            three[i] = one;
            snprintf(names[i], sizeof names[i], "part%d", i);
            three[i].name = names[i];
            three[i].out_c = PART;
            three[i].out_blocks = 0;
            three[i].weight_grad = ws[i];
            three[i].bias_grad = bs[i];
        }
        assert_ok(dsc_kfac_create(alone, at->queue, three, BLOCKS, &options, &apart));
        assert_ok(dsc_kfac_begin(joint, 1));
        assert_ok(dsc_kfac_capture(joint, at->queue, 0, &x, &y));
        assert_ok(dsc_kfac_step(joint, at->queue, 0.5));
        assert_ok(dsc_kfac_begin(apart, 1));
        for (int i = 0; i < BLOCKS; i++) {
            dsc_tensor part = make(at, 3, part_dim, parts[i]);
            assert_ok(dsc_kfac_capture(apart, at->queue, i, &x, &part));
            assert_ok(dsc_queue_sync(at->queue));
            dsc_tensor_free(&part);
        }
        assert_ok(dsc_kfac_step(apart, at->queue, 0.5));
        for (int i = 0; i < BLOCKS; i++) {
            double whole[ALL], piece[ALL];
            read_numbers(at, &w, whole);
            read_numbers(at, &ws[i], piece);
            for (int j = 0; j < ALL / BLOCKS; j++)
                assert_true(fabs(whole[i * ALL / BLOCKS + j] - piece[j]) <= 4096 * at->eps);
            assert_true(fabs(piece[0] - 0.5) > 0.01); /* it was preconditioned at all */
            read_numbers(at, &b, whole);
            read_numbers(at, &bs[i], piece);
            for (int j = 0; j < PART; j++)
                assert_true(fabs(whole[i * PART + j] - piece[j]) <= 4096 * at->eps);
            dsc_tensor_free(&ws[i]);
            dsc_tensor_free(&bs[i]);
        }
        one.out_blocks = 2;
        dsc_kfac_destroy(&joint);
        assert_fails(DSC_E_INVALID, "2 blocks of 3 outputs",
                     dsc_kfac_create(alone, at->queue, &one, 1, &options, &joint));
        dsc_kfac_destroy(&apart);
        dsc_tensor_free(&w);
        dsc_tensor_free(&b);
        dsc_tensor_free(&x);
        dsc_tensor_free(&y);
    }
}

/* A and G of a layer with a bias, after `passes` captures of one step. Every sequence has `padding` rows more, whose
 * values must not count; their tokens mark them as padding. */
static void factors_with_padding(const place *p, const dsc_kfac_options *options, int64_t padding,
                                 double *factor_a, double *factor_g) {
    enum { MOST_T = T + 3 };
    int64_t t = T + padding;
    const int64_t weights = OUT * IN, outputs = OUT;
    const int64_t a_dim[3] = {N, t, IN}, g_dim[3] = {N, t, OUT}, tokens_dim[2] = {N, t};
    dsc_kfac_layer layer;
    dsc_kfac *kfac;
    dsc_tensor w, b;
    assert_ok(dsc_tensor_alloc(p->handle, p->dtype, 1, &weights, &w));
    assert_ok(dsc_tensor_alloc(p->handle, p->dtype, 1, &outputs, &b));
    dsc_kfac_layer_init(&layer);
    layer.name = "layer";
    layer.kind = DSC_KFAC_LINEAR;
    layer.in_c = IN;
    layer.out_c = OUT;
    layer.weight_grad = w;
    layer.bias_grad = b;
    assert_ok(dsc_kfac_create(alone, p->queue, &layer, 1, options, &kfac));
    assert_ok(dsc_kfac_begin(kfac, 1));
    for (int64_t pass = 0; pass < options->passes; pass++) {
        double a[N * MOST_T * IN], g[N * MOST_T * OUT], tokens[N * MOST_T];
        /* A sequence has T tokens, fewer by its number; the rest of its T rows is padding in any case. */
        for (int64_t n = 0; n < N; n++)
            for (int64_t i = 0; i < t; i++) {
                int is_token = i < T - n;
                tokens[n * t + i] = is_token ? (double)(i * n) : -1;
                for (int64_t c = 0; c < IN; c++)
                    a[(n * t + i) * IN + c] = is_token ? number((int)((n * T + i) * IN + c + 7 * pass)) : 99;
                for (int64_t c = 0; c < OUT; c++)
                    g[(n * t + i) * OUT + c] =
                        is_token ? number((int)((n * T + i) * OUT + c + 5 * pass)) : 77;
            }
        dsc_kfac_sample sample;
        dsc_kfac_sample_init(&sample);
        sample.a = make(p, 3, a_dim, a);
        sample.g = make(p, 3, g_dim, g);
        sample.tokens = make(p, 2, tokens_dim, tokens);
        assert_ok(dsc_kfac_capture_sample(kfac, p->queue, 0, &sample));
        assert_ok(dsc_queue_sync(p->queue));
        dsc_tensor *const all[] = {&sample.a, &sample.g, &sample.tokens};
        for (int i = 0; i < 3; i++)
            dsc_tensor_free(all[i]);
    }
    assert_ok(dsc_kfac_step(kfac, p->queue, 0.5));
    read_factor(kfac, p, "layer.A", factor_a);
    read_factor(kfac, p, "layer.G", factor_g);
    dsc_kfac_destroy(&kfac);
    dsc_tensor_free(&w);
    dsc_tensor_free(&b);
}

/* The same from the tokens alone; terms: M, 0: the number of tokens, -1: G is a mean over them. */
static void factors_by_hand(int64_t passes, int64_t terms, double *factor_a, double *factor_g) {
    double rows = 0;
    memset(factor_a, 0, MOST * sizeof *factor_a);
    memset(factor_g, 0, MOST * sizeof *factor_g);
    for (int64_t n = 0; n < N; n++)
        rows += (double)(T - n);
    double m = terms > 0 ? (double)terms : terms < 0 ? 1 / rows : rows;
    for (int64_t pass = 0; pass < passes; pass++)
        for (int64_t n = 0; n < N; n++)
            for (int64_t i = 0; i < T - n; i++) {
                double a[IN + 1], g[OUT];
                for (int64_t c = 0; c < IN; c++)
                    a[c] = number((int)((n * T + i) * IN + c + 7 * pass));
                a[IN] = 1;
                for (int64_t c = 0; c < OUT; c++)
                    g[c] = number((int)((n * T + i) * OUT + c + 5 * pass));
                for (int64_t r = 0, at = 0; r <= IN; r++)
                    for (int64_t c = 0; c <= r; c++, at++)
                        factor_a[at] += a[r] * a[c] / rows / (double)passes;
                for (int64_t r = 0, at = 0; r < OUT; r++)
                    for (int64_t c = 0; c <= r; c++, at++)
                        factor_g[at] += m * g[r] * g[c] / (double)passes;
            }
}

static void test_padding(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++)
        for (int i = 0; i < 16; i++) {
            dsc_kfac_options options = twin_options();
            double a[MOST], g[MOST], want_a[MOST], want_g[MOST];
            options.stat_decay = 0;
            options.scaling = i & 8 ? DSC_KFAC_PYTORCH : DSC_KFAC_PAPER;
            options.passes = 1 + (i & 1);
            options.symmetric = i & 2 ? 0 : 1;
            options.loss_terms = i & 4 ? 4 : 0;
            factors_by_hand(options.passes, i & 8 ? -1 : N * options.loss_terms, want_a, want_g);
            for (int64_t padding = 0; padding <= 3; padding += 3) {
                factors_with_padding(&places[p], &options, padding, a, g);
                for (int j = 0; j < (IN + 1) * (IN + 2) / 2; j++)
                    assert_true(fabs(a[j] - want_a[j]) <= 64 * N * T * places[p].eps);
                for (int j = 0; j < OUT * (OUT + 1) / 2; j++)
                    assert_true(fabs(g[j] - want_g[j]) <= 64 * N * T * places[p].eps * N * T);
            }
        }
}

static void test_padding_refusals(void **state) {
    (void)state;
    const place *p = &places[REF];
    const int64_t weights = OUT * IN, a_dim[3] = {N, T, IN}, g_dim[3] = {N, T, OUT};
    const int64_t maps[2][4] = {{N, T, 1, IN}, {N, T, 1, OUT}}, few = N * T - 1;
    double zeros[N * T * IN] = {0};
    dsc_tensor grad;
    assert_ok(dsc_tensor_alloc(p->handle, p->dtype, 1, &weights, &grad));
    for (int i = 0; i < 4; i++) {
        static const char *const messages[] = {"14 tokens of type fp64 for 15 rows",
                                               "tokens with sharing reduce", "tokens with ekfac samples",
                                               "tokens of a conv2d layer"};
        dsc_kfac_options options = twin_options();
        dsc_conv2d_shape shape;
        dsc_kfac_layer layer;
        dsc_kfac_sample sample;
        dsc_kfac *kfac;
        options.sharing = i == 1 ? DSC_KFAC_REDUCE : DSC_KFAC_EXPAND;
        options.ekfac = i == 2 ? DSC_KFAC_EKFAC_SAMPLES : DSC_KFAC_EKFAC_OFF;
        dsc_kfac_layer_init(&layer);
        dsc_conv2d_shape_init(&shape);
        shape.in_h = T;
        shape.in_w = 1;
        shape.in_c = IN;
        shape.out_c = OUT;
        layer.name = "layer";
        layer.kind = i == 3 ? DSC_KFAC_CONV2D : DSC_KFAC_LINEAR;
        layer.in_c = IN;
        layer.out_c = OUT;
        layer.conv = &shape;
        layer.weight_grad = grad;
        assert_ok(dsc_kfac_create(alone, p->queue, &layer, 1, &options, &kfac));
        dsc_kfac_sample_init(&sample);
        sample.a = i == 3 ? make(p, 4, maps[0], zeros) : make(p, 3, a_dim, zeros);
        sample.g = i == 3 ? make(p, 4, maps[1], zeros) : make(p, 3, g_dim, zeros);
        sample.tokens = i == 0 ? make(p, 1, &few, zeros) : make(p, 2, a_dim, zeros);
        assert_ok(dsc_kfac_begin(kfac, 1));
        dsc_status status = dsc_kfac_capture_sample(kfac, p->queue, 0, &sample);
        assert_int_not_equal(status, DSC_OK);
        assert_non_null(strstr(dsc_error_message(), messages[i]));
        dsc_kfac_destroy(&kfac);
        dsc_tensor *const all[] = {&sample.a, &sample.g, &sample.tokens};
        for (int j = 0; j < 3; j++)
            dsc_tensor_free(all[j]);
    }
    dsc_tensor_free(&grad);
}

static void test_refusals(void **state) {
    (void)state;
    dsc_kfac_options options = twin_options();
    dsc_kfac_sharing sharing;
    dsc_kfac *kfac;
    options.loss_terms = -1;
    assert_fails(DSC_E_INVALID, "-1 terms", dsc_kfac_create(alone, host_queue, NULL, 0, &options, &kfac));
    options.loss_terms = 0;
    options.sharing = DSC_KFAC_REDUCE;
    options.ekfac = DSC_KFAC_EKFAC_SAMPLES;
    assert_fails(DSC_E_INVALID, "sharing reduce with ekfac samples",
                 dsc_kfac_create(alone, host_queue, NULL, 0, &options, &kfac));
    assert_ok(dsc_kfac_sharing_parse("reduce", &sharing));
    assert_int_equal(sharing, DSC_KFAC_REDUCE);
    assert_string_equal(dsc_kfac_sharing_name(DSC_KFAC_EXPAND), "expand");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_position),   cmocka_unit_test(test_pooled),
        cmocka_unit_test(test_one_position),     cmocka_unit_test(test_pixels),
        cmocka_unit_test(test_blocks),           cmocka_unit_test(test_padding),
        cmocka_unit_test(test_padding_refusals), cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("kfac-sharing", tests, places_open, places_close);
}
