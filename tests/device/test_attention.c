/* Multi-head self-attention: every device against ref in double, ref against matrices that are written out, values by
 * hand, padding, threads, memory, refusals. */
#include "device/formulas.h"
#include "device/recording.h"
#include "device/table.h"
#include "device/trial.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct attention_case {
    int64_t n, t, heads, dh;
    int causal;
    double size; /* of queries and keys: 16 gives scores whose exponential no float holds */
    double beta;
    double rate; /* of dropout */
    int padded;  /* 1: samples of fewer positions, the first of none where it is causal */
} attention_case;

/* One position; fewer, as many and more positions than a block has on any device; one head and many; heads of
 * all sizes. The last ones have more tiles than the ring of attention_hopper.cu has places. */
static const attention_case cases[] = {
    {1, 1, 1, 1, 0, 1, 0, 0, 0},     {2, 1, 2, 4, 1, 1, 1, 0, 0},     {1, 5, 1, 3, 0, 1, 0, 0, 0},
    {2, 7, 3, 5, 1, 1, 1, 0, 0},     {1, 8, 16, 2, 1, 1, 0, 0, 0},    {1, 64, 1, 16, 1, 1, 0, 0, 0},
    {2, 65, 2, 8, 1, 1, 1, 0, 0},    {1, 192, 1, 5, 0, 1, 0, 0, 0},   {1, 197, 2, 8, 1, 1, 0, 0, 0},
    {1, 33, 2, 64, 1, 1, 1, 0, 0},   {1, 40, 1, 128, 0, 1, 0, 0, 0},  {1, 37, 1, 72, 1, 1, 0, 0, 0},
    {1, 90, 2, 8, 0, 16, 0, 0, 0},   {1, 130, 1, 16, 1, 16, 1, 0, 0}, {1, 400, 1, 4, 1, 1, 0, 0, 0},
    {1, 1, 1, 4, 0, 1, 0, .5, 0},    {2, 7, 2, 5, 1, 1, 1, .25, 0},   {1, 70, 2, 16, 0, 1, 0, .5, 0},
    {1, 197, 1, 4, 1, 1, 0, .1, 0},  {1, 33, 2, 65, 0, 1, 1, .3, 0},  {4, 66, 2, 8, 0, 1, 0, 0, 1},
    {3, 130, 1, 8, 0, 1, 1, .2, 1},  {3, 140, 1, 4, 1, 1, 0, .2, 1},  {3, 9, 3, 72, 0, 16, 0, .5, 1},
    {1, 330, 2, 64, 1, 1, 0, 0, 0},  {1, 259, 1, 64, 0, 1, 1, 0, 0},  {1, 257, 1, 40, 1, 4, 1, 0, 0},
    {4, 200, 1, 64, 1, 1, 1, 0, 1},  {1, 193, 1, 48, 1, 1, 0, .1, 0}, {4, 129, 1, 56, 0, 1, 0, .1, 1},
    {4, 200, 2, 32, 1, 1, 0, .2, 1}, {2, 140, 3, 24, 0, 1, 0, 0, 0},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static dsc_attention_desc describe(const attention_case *c) {
    const dsc_dropout_desc dropout = {.rate = c->rate, .seed = 77, .layer = 3};
    return (dsc_attention_desc){.heads = c->heads, .causal = c->causal, .dropout = dropout};
}

enum { STEP = 12, FIRST_SAMPLE = 5, MOST_SAMPLES = 4 };

/* Positions of sample i that are no padding: none, one, some, and more than there are. */
static int32_t length_of(const attention_case *c, int64_t i) {
    const int32_t lengths[MOST_SAMPLES] = {0, 1, (int32_t)(c->t * 2 / 3), (int32_t)c->t + 9};
    return c->padded ? lengths[(i + !c->causal) % MOST_SAMPLES] : (int32_t)c->t;
}

/* The tensors of a case's context, on one device. */
typedef struct setting {
    dsc_tensor position, lengths;
    dsc_attention_context context;
} setting;

static void setting_open(dsc_queue *q, const attention_case *c, setting *s) {
    const int64_t position[2] = {STEP, FIRST_SAMPLE}, two = 2;
    int32_t lengths[MOST_SAMPLES];
    assert_true(c->n <= MOST_SAMPLES);
    for (int64_t i = 0; i < c->n; i++)
        lengths[i] = length_of(c, i);
    assert_ok(dsc_tensor_alloc(dsc_queue_device(q), DSC_I64, 1, &two, &s->position));
    assert_ok(dsc_tensor_alloc(dsc_queue_device(q), DSC_I32, 1, &c->n, &s->lengths));
    assert_ok(dsc_tensor_upload(q, position, sizeof position, &s->position));
    assert_ok(dsc_tensor_upload(q, lengths, (size_t)c->n * sizeof lengths[0], &s->lengths));
    assert_ok(dsc_queue_sync(q));
    s->context = (dsc_attention_context){.position = c->rate > 0 ? &s->position : NULL,
                                         .lengths = c->padded ? &s->lengths : NULL};
}

static void setting_close(setting *s) {
    dsc_tensor_free(&s->position);
    dsc_tensor_free(&s->lengths);
}

/* Workspace for one call, filled with NaN. */
static dsc_tensor make_work(dsc_queue *q, const dsc_attention_desc *desc, const dsc_tensor *x) {
    dsc_tensor work;
    int64_t bytes = (int64_t)dsc_op_attention_workspace(dsc_queue_device(q), desc, x);
    assert_ok(dsc_tensor_alloc(dsc_queue_device(q), DSC_U8, 1, &bytes, &work));
    assert_ok(dsc_op_fill(q, 255, &work));
    return work;
}

static dsc_status forward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    dsc_attention_desc desc = describe(params);
    dsc_tensor work = make_work(q, &desc, &t[0]);
    setting s;
    setting_open(q, params, &s);
    dsc_status status = dsc_op_attention_forward(q, &desc, &t[0], &s.context, &work, &t[1], &t[2]);
    assert_ok(dsc_queue_sync(q));
    setting_close(&s);
    dsc_tensor_free(&work);
    return status;
}

static dsc_status backward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    dsc_attention_desc desc = describe(params);
    dsc_tensor work = make_work(q, &desc, &t[0]);
    dsc_attention_grads grads = {.beta = ((const attention_case *)params)->beta, .work = &work, .dx = &t[4]};
    setting s;
    setting_open(q, params, &s);
    dsc_status status = dsc_op_attention_backward(q, &desc, &t[0], &s.context, &t[2], &t[1], &t[3], &grads);
    assert_ok(dsc_queue_sync(q));
    setting_close(&s);
    dsc_tensor_free(&work);
    return status;
}

/* Makes queries and keys larger. */
static void enlarge(const attention_case *c, double *x) {
    int64_t d = c->heads * c->dh;
    for (int64_t i = 0; i < c->n * c->t * 3 * d; i++)
        if (i % (3 * d) < 2 * d)
            x[i] *= c->size;
}

/* An error of a score is one of its exponential, relative to it. */
static double score_size(const attention_case *c) {
    return (1 + c->size * c->size * sqrt((double)c->dh) / 3) / (1 - c->rate);
}

static void start_forward(trial *tr, const attention_case *c) {
    int64_t d = c->heads * c->dh;
    trial_start(tr, "attention_forward", forward_run, c);
    tr->terms = (double)(c->t + c->dh);
    tr->rounded = 1; /* probabilities, and the gradients of scores, enter products of halves as halves */
    enlarge(c, trial_in(tr, "x", SHAPE(c->n, c->t, 1, 3 * d)));
    trial_out(tr, "lse", score_size(c) + log((double)c->t), SHAPE(c->n, c->heads, c->t));
    trial_param(tr);
    trial_out(tr, "y", score_size(c), SHAPE(c->n, c->t, 1, d));
}

/* What ref computes from x in double: lse and y, as a float32 holds them, and the largest |dx| without what
 * was in dx before. */
static double fill_saved(trial *tr, const attention_case *c) {
    const rig *g = &rigs[0];
    place p[5];
    dsc_tensor t[5];
    attention_case fresh = *c;
    fresh.beta = 0;
    for (int i = 0; i < 5; i++) {
        const operand *o = &tr->operands[i];
        p[i] = place_of(g, DSC_F64, o->ndim, o->dim, o->values);
        t[i] = p[i].t;
    }
    assert_ok(forward_run(g->q, t, c));
    for (int i = 1; i < 3; i++) {
        place_read(g, &p[i], tr->operands[i].values);
        for (int64_t j = 0; j < tr->operands[i].count; j++)
            tr->operands[i].values[j] = (double)(float)tr->operands[i].values[j];
    }
    assert_ok(backward_run(g->q, t, &fresh));
    double largest = 0, *dx = test_array(tr->operands[4].count, sizeof *dx);
    place_read(g, &p[4], dx);
    for (int64_t j = 0; j < tr->operands[4].count; j++)
        largest = fmax(largest, fabs(dx[j]));
    free(dx);
    for (int i = 0; i < 5; i++)
        place_free(&p[i]);
    return largest;
}

static void start_backward(trial *tr, const attention_case *c) {
    int64_t d = c->heads * c->dh;
    trial_start(tr, "attention_backward", backward_run, c);
    tr->terms = (double)(c->t + c->dh);
    tr->rounded = 1; /* probabilities, and the gradients of scores, enter products of halves as halves */
    enlarge(c, trial_in(tr, "x", SHAPE(c->n, c->t, 1, 3 * d)));
    trial_in(tr, "lse", SHAPE(c->n, c->heads, c->t));
    trial_param(tr);
    trial_in(tr, "y", SHAPE(c->n, c->t, 1, d));
    trial_in(tr, "dy", SHAPE(c->n, c->t, 1, d));
    trial_beta(tr, "dx", 1, c->beta, SHAPE(c->n, c->t, 1, 3 * d));
    tr->operands[4].scale = (1 + fill_saved(tr, c)) * score_size(c);
}

/* Halves are also held to a typical error: over many keys the worst case is larger than most gradients. Not where
 * these are sums with what was there before, nearly 0, or decided by few scores. Errors of 0.72 roundings were seen. */
static void expect_typical(trial *tr, const attention_case *c, int parts) {
    tr->parts = c->t >= 32 && c->size == 1 && c->beta == 0 ? parts : 0;
    tr->typical = 2;
}

static int has_halves(void) {
    return rigs[rig_count - 1].device->has_halves;
}

static void test_forward(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        trial tr;
        start_forward(&tr, &cases[i]);
        trial_check(&tr);
        if (!has_halves())
            continue;
        start_forward(&tr, &cases[i]);
        expect_typical(&tr, &cases[i], 1);
        trial_check_halves(&tr);
    }
}

static void test_backward(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        trial tr;
        start_backward(&tr, &cases[i]);
        trial_check(&tr);
        if (!has_halves())
            continue;
        start_backward(&tr, &cases[i]);
        expect_typical(&tr, &cases[i], 3); /* of queries, keys and values */
        trial_check_halves(&tr);
    }
}

/* ---- ref against matrices that are written out ---- */

enum { MOST_T = 12, MOST_DH = 4 };

/* One head: P and Z as whole matrices, and all products by their definition. rows: Q, K, V and dY. */
typedef struct written_out {
    double p[MOST_T][MOST_T], z[MOST_T][MOST_T], y[MOST_T][MOST_DH], lse[MOST_T];
    double dq[MOST_T][MOST_DH], dk[MOST_T][MOST_DH], dv[MOST_T][MOST_DH];
} written_out;

static double dot(int64_t n, const double *a, const double *b) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Z of query i and key j of head `head` of all heads of the case, from the number of its element. */
static double kept(const attention_case *c, int64_t head, int64_t i, int64_t j) {
    const dsc_attention_desc desc = describe(c);
    const dsc_dropout_stream stream = dsc_dropout_start(&desc.dropout, STEP);
    int64_t t4 = c->t;
    while (t4 % 4 != 0)
        t4++;
    int64_t e = (FIRST_SAMPLE * c->heads + head) * c->t * t4 + i * t4 + j;
    uint32_t words[4];
    dsc_dropout_words(&stream, e / 4, words);
    return c->rate == 0 ? 1 : dsc_dropout_keeps(&stream, words[e % 4]) ? 1 / (1 - c->rate) : 0;
}

static void write_out(const attention_case *c, int64_t head, const double *x, const double *dy,
                      written_out *w) {
    int64_t d = c->heads * c->dh, length = length_of(c, head / c->heads), first = head % c->heads * c->dh;
    const double *q = x + head / c->heads * c->t * 3 * d + first, *k = q + d, *v = k + d,
                 root = sqrt((double)c->dh);
    dy += head / c->heads * c->t * d + first;
    memset(w, 0, sizeof *w);
    for (int64_t i = 0; i < c->t; i++) {
        double sum = 0, delta = 0, dp[MOST_T];
        for (int64_t j = 0; j < c->t; j++) {
            int seen = j < length && (!c->causal || j <= i);
            w->p[i][j] = seen ? exp(dot(c->dh, q + i * 3 * d, k + j * 3 * d) / root) : 0;
            w->z[i][j] = kept(c, head, i, j);
            sum += w->p[i][j];
        }
        w->lse[i] = sum > 0 ? log(sum) : 0;
        for (int64_t j = 0; j < c->t; j++) {
            w->p[i][j] = sum > 0 ? w->p[i][j] / sum : 0;
            dp[j] = w->z[i][j] * dot(c->dh, dy + i * d, v + j * 3 * d);
            delta += w->p[i][j] * dp[j];
        }
        for (int64_t j = 0; j < c->t; j++)
            for (int64_t e = 0; e < c->dh; e++) {
                double ds = w->p[i][j] * (dp[j] - delta) / root, pz = w->p[i][j] * w->z[i][j];
                w->y[i][e] += pz * v[j * 3 * d + e];
                w->dv[j][e] += pz * dy[i * d + e];
                w->dq[i][e] += ds * k[j * 3 * d + e];
                w->dk[j][e] += ds * q[i * 3 * d + e];
            }
    }
}

static void expect_written_out(const rig *g, const attention_case *c, const place *p, const written_out *w,
                               int64_t head) {
    const double limit = 1e-12;
    int64_t d = c->heads * c->dh, first = head / c->heads * c->t, in_head = head % c->heads * c->dh;
    for (int64_t i = 0; i < c->t; i++) {
        assert_true(fabs(place_get(g, &p[1], head * c->t + i) - w->lse[i]) < limit);
        for (int64_t e = 0; e < c->dh; e++) {
            int64_t at = (first + i) * 3 * d + in_head + e;
            assert_true(fabs(place_get(g, &p[2], (first + i) * d + in_head + e) - w->y[i][e]) < limit);
            assert_true(fabs(place_get(g, &p[4], at) - w->dq[i][e]) < limit);
            assert_true(fabs(place_get(g, &p[4], at + d) - w->dk[i][e]) < limit);
            assert_true(fabs(place_get(g, &p[4], at + 2 * d) - w->dv[i][e]) < limit);
        }
    }
}

static void test_written_out(void **state) {
    (void)state;
    static const attention_case some[] = {{2, 7, 2, 3, 0, 1, 0, .5, 0},
                                          {3, 12, 2, 4, 1, 1, 0, .25, 0},
                                          {4, 10, 1, 3, 0, 1, 0, 0, 1},
                                          {4, 11, 2, 2, 0, 1, 0, .4, 1},
                                          {4, 9, 2, 2, 1, 1, 0, .4, 1}};
    const rig *g = &rigs[0];
    for (size_t k = 0; k < sizeof some / sizeof some[0]; k++) {
        const attention_case *c = &some[k];
        int64_t d = c->heads * c->dh, count = c->n * c->t * d;
        double *x = test_array(3 * count, sizeof *x), *dy = test_array(count, sizeof *dy);
        written_out w;
        random_values(k, 3 * count, x);
        random_values(k + 50, count, dy);
        place p[] = {place_of(g, DSC_F64, SHAPE(c->n, c->t, 1, 3 * d), x),
                     place_make(g, DSC_F64, SHAPE(c->n, c->heads, c->t)),
                     place_make(g, DSC_F64, SHAPE(c->n, c->t, 1, d)),
                     place_of(g, DSC_F64, SHAPE(c->n, c->t, 1, d), dy),
                     place_make(g, DSC_F64, SHAPE(c->n, c->t, 1, 3 * d))};
        dsc_tensor t[] = {p[0].t, p[1].t, p[2].t, p[3].t, p[4].t};
        assert_ok(forward_run(g->q, t, c));
        assert_ok(backward_run(g->q, t, c));
        for (int64_t head = 0; head < c->n * c->heads; head++) {
            write_out(c, head, x, dy, &w);
            expect_written_out(g, c, p, &w, head);
        }
        for (int i = 0; i < 5; i++)
            place_free(&p[i]);
        free(x);
        free(dy);
    }
}

/* What is in the padding changes no other position, and gets no gradient from them, however large it is. */
static void test_padding(void **state) {
    (void)state;
    enum { N = 2, T = 70, D = 4, REAL = 67 };
    const attention_case c = {N, T, 2, 2, 0, 1, 0, 0, 0};
    const int32_t lengths[N] = {REAL, T};
    const int64_t samples = N;
    double *x = test_array(N * T * 3 * D, sizeof *x), *y = test_array(N * T * D, sizeof *y);
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        dsc_attention_desc desc = describe(&c);
        random_values(3, N * T * 3 * D, x);
        place p[] = {place_of(g, DSC_F32, SHAPE(N, T, 1, 3 * D), x), place_make(g, DSC_F32, SHAPE(N, 2, T)),
                     place_make(g, DSC_F32, SHAPE(N, T, 1, D)),
                     place_make(g, DSC_F32, SHAPE(N, T, 1, 3 * D))};
        dsc_tensor work = make_work(g->q, &desc, &p[0].t), length;
        assert_ok(dsc_tensor_alloc(g->device, DSC_I32, 1, &samples, &length));
        assert_ok(dsc_tensor_upload(g->q, lengths, sizeof lengths, &length));
        const dsc_attention_context context = {.lengths = &length};
        const dsc_attention_grads grads = {.work = &work, .dx = &p[3].t};
        assert_ok(dsc_op_attention_forward(g->q, &desc, &p[0].t, &context, &work, &p[1].t, &p[2].t));
        place_read(g, &p[2], y);
        for (int i = 3 * D * REAL; i < 3 * D * T; i++)
            x[i] = 1e18;
        place_write(g, &p[0], x);
        assert_ok(dsc_op_attention_forward(g->q, &desc, &p[0].t, &context, &work, &p[1].t, &p[2].t));
        for (int i = 0; i < N * T * D; i++)
            if (i < REAL * D || i >= T * D)
                assert_true(place_get(g, &p[2], i) == y[i]);
        assert_ok(
            dsc_op_attention_backward(g->q, &desc, &p[0].t, &context, &p[2].t, &p[1].t, &p[2].t, &grads));
        for (int i = 3 * D * REAL; i < 3 * D * T; i++)
            assert_true(i % (3 * D) < D || place_get(g, &p[3], i) == 0);
        dsc_tensor_free(&work);
        dsc_tensor_free(&length);
        for (int i = 0; i < 4; i++)
            place_free(&p[i]);
    }
    free(x);
    free(y);
}

/* Two positions of one channel: scores (0, 0) and (0, log 3), values 4 and 8. */
static void test_by_hand(void **state) {
    (void)state;
    double third = log(3);
    const double x[] = {0, 0, 4, third, 1, 8}, zero[4] = {0, 0, 0, 0};
    for (int r = 0; r < rig_count; r++)
        for (int causal = 0; causal < 2; causal++) {
            const rig *g = &rigs[r];
            attention_case c = {1, 2, 1, 1, causal, 1, 0, 0, 0};
            place in = place_of(g, DSC_F32, SHAPE(1, 2, 1, 3), x),
                  lse = place_make(g, DSC_F32, SHAPE(1, 1, 2));
            place y = place_make(g, DSC_F32, SHAPE(1, 2, 1, 1));
            dsc_tensor t[] = {in.t, lse.t, y.t};
            assert_ok(forward_run(g->q, t, &c));
            const double want[] = {causal ? 4 : 6, 7}, sums[] = {causal ? 0 : log(2), log(4)};
            const double limit[] = {2e-6, 2e-6};
            place_expect_near(g, &y, want, limit, "y");
            place_expect_near(g, &lse, sums, limit, "lse");
            place_write(g, &y, zero);
            dsc_attention_desc desc = describe(&c);
            dsc_tensor work = make_work(g->q, &desc, &in.t);
            assert_ok(dsc_op_attention_forward(g->q, &desc, &in.t, NULL, &work, NULL, &y.t));
            place_expect_near(g, &y, want, limit, "y without lse");
            dsc_tensor_free(&work);
            place_free(&in);
            place_free(&lse);
            place_free(&y);
        }
}

/* A position that others may not see does not change them, however large it is. */
static void test_causal(void **state) {
    (void)state;
    enum { T = 70, D = 4 };
    double *x = test_array(T * 3 * D, sizeof *x), *y = test_array(T * D, sizeof *y);
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        attention_case c = {1, T, 2, 2, 1, 1, 0, 0, 0};
        random_values(3, T * 3 * D, x);
        place in = place_of(g, DSC_F32, SHAPE(1, T, 1, 3 * D), x),
              lse = place_make(g, DSC_F32, SHAPE(1, 2, T));
        place before = place_make(g, DSC_F32, SHAPE(1, T, 1, D)),
              after = place_make(g, DSC_F32, SHAPE(1, T, 1, D));
        dsc_tensor t[] = {in.t, lse.t, before.t};
        assert_ok(forward_run(g->q, t, &c));
        for (int i = 3 * D * (T - 1); i < 3 * D * T; i++)
            x[i] = 1e18;
        place_write(g, &in, x);
        t[2] = after.t;
        assert_ok(forward_run(g->q, t, &c));
        place_read(g, &before, y);
        for (int i = 0; i < (T - 1) * D; i++)
            assert_true(place_get(g, &after, i) == y[i]);
        assert_true(place_get(g, &after, (T - 1) * D) > 1e17);
        place *all[] = {&in, &lse, &before, &after};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
    free(x);
    free(y);
}

/* The bits of both passes do not depend on the number of threads. */
static void test_threads(void **state) {
    (void)state;
    skip_on_chosen("threads are the cpu's");
    static const attention_case c = {3, 420, 3, 24, 1, 1, 0, .2, 1};
    enum { X = 3 * 420 * 3 * 72, Y = 3 * 420 * 72 };
    const int64_t x_dim[] = {3, 420, 1, 216}, y_dim[] = {3, 420, 1, 72}, lse_dim[] = {3, 3, 420};
    const int64_t *dims[] = {x_dim, lse_dim, y_dim, y_dim, x_dim};
    double *values = test_array(X, sizeof *values);
    float *first = test_array(X + Y, sizeof *first);
    for (int threads = 1; threads <= 4; threads += 3) {
        dsc_device_options options;
        dsc_device *device;
        dsc_queue *q;
        dsc_tensor t[5];
        dsc_device_options_init(&options);
        options.name = "cpu";
        options.threads = threads;
        assert_ok(dsc_device_create(&options, &device));
        assert_ok(dsc_queue_create(device, &q));
        for (int i = 0; i < 5; i++) {
            assert_ok(dsc_tensor_alloc(device, DSC_F32, i == 1 ? 3 : 4, dims[i], &t[i]));
            random_values((uint64_t)i, dsc_tensor_count(&t[i]), values);
            for (int64_t j = 0; j < dsc_tensor_count(&t[i]); j++)
                ((float *)t[i].data)[j] = (float)values[j];
        }
        assert_ok(forward_run(q, t, &c));
        assert_ok(backward_run(q, t, &c));
        if (threads == 1) {
            memcpy(first, t[4].data, X * sizeof *first);
            memcpy(first + X, t[2].data, Y * sizeof *first);
        } else {
            assert_memory_equal(first, t[4].data, X * sizeof *first);
            assert_memory_equal(first + X, t[2].data, Y * sizeof *first);
        }
        for (int i = 0; i < 5; i++)
            dsc_tensor_free(&t[i]);
        dsc_queue_destroy(&q);
        dsc_device_destroy(&device);
    }
    free(values);
    free(first);
}

static void both_passes(dsc_queue *q, dsc_tensor *t, const dsc_attention_context *context, dsc_tensor *work) {
    dsc_attention_desc desc = {.heads = 2, .causal = 1, .dropout = {.rate = 0.3, .seed = 5}};
    dsc_attention_grads grads = {.work = work, .dx = &t[3]};
    assert_ok(dsc_op_attention_forward(q, &desc, &t[0], context, work, &t[1], &t[2]));
    assert_ok(dsc_op_attention_backward(q, &desc, &t[0], context, &t[2], &t[1], &t[2], &grads));
}

static void set_step(dsc_queue *q, int64_t step, setting *s) {
    const int64_t position[2] = {step, FIRST_SAMPLE};
    assert_ok(dsc_tensor_upload(q, position, sizeof position, &s->position));
    assert_ok(dsc_queue_sync(q));
}

/* Both passes replayed on another x, in another step, give what calls give; only on devices that record. */
static void test_recording(void **state) {
    (void)state;
    enum { T = 40, D = 6 };
    double values[T * 3 * D], want[T * 3 * D];
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        if (!dsc_device_records(g->device))
            continue;
        random_values(1, T * 3 * D, values);
        place p[] = {place_of(g, DSC_F32, SHAPE(1, T, 1, 3 * D), values),
                     place_make(g, DSC_F32, SHAPE(1, 2, T)), place_make(g, DSC_F32, SHAPE(1, T, 1, D)),
                     place_make(g, DSC_F32, SHAPE(1, T, 1, 3 * D))};
        dsc_tensor t[] = {p[0].t, p[1].t, p[2].t, p[3].t};
        dsc_attention_desc desc = {.heads = 2, .causal = 1};
        dsc_tensor work = make_work(g->q, &desc, &t[0]);
        dsc_recording *recording = NULL;
        setting s;
        setting_open(g->q, &(attention_case){1, T, 2, 3, 1, 1, 0, .3, 0}, &s);
        assert_ok(dsc_recording_begin(g->q));
        both_passes(g->q, t, &s.context, &work);
        assert_ok(dsc_recording_end(g->q, &recording));
        random_values(2, T * 3 * D, values);
        place_write(g, &p[0], values);
        both_passes(g->q, t, &s.context, &work);
        place_read(g, &p[3], want);
        set_step(g->q, STEP + 1, &s);
        both_passes(g->q, t, &s.context, &work);
        assert_true(place_get(g, &p[3], (T - 1) * 3 * D) != want[(T - 1) * 3 * D]); /* others are dropped */
        set_step(g->q, STEP, &s);
        place_fill(g, &p[3], NAN);
        assert_ok(dsc_recording_replay(recording, g->q));
        place_expect(g, &p[3], want, "dx of a replay");
        dsc_recording_destroy(&recording);
        setting_close(&s);
        dsc_tensor_free(&work);
        for (int i = 0; i < 4; i++)
            place_free(&p[i]);
    }
}

/* Twice as many positions need at most twice the workspace. */
static void test_memory(void **state) {
    (void)state;
    dsc_attention_desc desc = {.heads = 4};
    for (int r = 0; r < rig_count; r++) {
        const int64_t dim[] = {2, 1 << 15, 1, 96}, twice[] = {2, 1 << 16, 1, 96};
        dsc_tensor x = dsc_tensor_view(rigs[r].device, NULL, DSC_F32, 4, dim);
        dsc_tensor longer = dsc_tensor_view(rigs[r].device, NULL, DSC_F32, 4, twice);
        size_t bytes = dsc_op_attention_workspace(rigs[r].device, &desc, &x);
        assert_true(bytes > 0);
        assert_true(dsc_op_attention_workspace(rigs[r].device, &desc, &longer) <= 2 * bytes);
        assert_true(bytes < ((size_t)1 << 15) * (1 << 15));
    }
}

static void test_refusals(void **state) {
    (void)state;
    dsc_attention_desc desc = {.heads = 2}, three = {.heads = 3}, none = {.heads = 0};
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place x = place_make(g, DSC_F32, SHAPE(1, 3, 1, 24)), y = place_make(g, DSC_F32, SHAPE(1, 3, 1, 8));
        place lse = place_make(g, DSC_F32, SHAPE(1, 2, 3)), wide = place_make(g, DSC_F32, SHAPE(1, 3, 2, 24));
        place flat = place_make(g, DSC_F32, SHAPE(3, 24)),
              large = place_make(g, DSC_F32, SHAPE(1, 1, 1, 774));
        dsc_tensor work = make_work(g->q, &desc, &x.t), less = dsc_tensor_slice(&work, 0, 1);
        dsc_attention_grads grads = {.beta = 0, .work = &work, .dx = &x.t};
        const dsc_attention_desc whole = {.heads = 2, .dropout = {.rate = 1}};
        const dsc_attention_context at = {.position = &lse.t}, padded = {.lengths = &lse.t};
        assert_fails(DSC_E_INVALID, "attention_forward: the rate of dropout is 1; at least 0 and less than 1",
                     dsc_op_attention_forward(g->q, &whole, &x.t, NULL, &work, &lse.t, &y.t));
        assert_fails(DSC_E_INVALID, "attention_forward: position is",
                     dsc_op_attention_forward(g->q, &desc, &x.t, &at, &work, &lse.t, &y.t));
        assert_fails(DSC_E_INVALID, "attention_backward: lengths is",
                     dsc_op_attention_backward(g->q, &desc, &x.t, &padded, &y.t, &lse.t, &y.t, &grads));
        assert_fails(DSC_E_INVALID, "attention_forward: x is [3,24]",
                     dsc_op_attention_forward(g->q, &desc, &flat.t, NULL, &work, &lse.t, &y.t));
        assert_fails(DSC_E_INVALID, "x has width 2; [n, positions, 1, channels] is expected",
                     dsc_op_attention_forward(g->q, &desc, &wide.t, NULL, &work, &lse.t, &y.t));
        assert_fails(DSC_E_INVALID, "attention: 8 channels cannot be cut into queries, keys and values",
                     dsc_op_attention_forward(g->q, &desc, &y.t, NULL, &work, &lse.t, &y.t));
        assert_fails(DSC_E_INVALID, "attention: 8 channels of queries cannot be cut into 3 heads",
                     dsc_op_attention_forward(g->q, &three, &x.t, NULL, &work, &lse.t, &y.t));
        assert_fails(DSC_E_INVALID, "cannot be cut into 0 heads",
                     dsc_op_attention_forward(g->q, &none, &x.t, NULL, &work, &lse.t, &y.t));
        assert_fails(DSC_E_INVALID, "attention_forward: y is [1,3,1,24]; [1,3,1,8] is expected",
                     dsc_op_attention_forward(g->q, &desc, &x.t, NULL, &work, &lse.t, &x.t));
        assert_fails(DSC_E_INVALID, "attention_forward: lse is [1,3,1,8]; [1,2,3] is expected",
                     dsc_op_attention_forward(g->q, &desc, &x.t, NULL, &work, &y.t, &y.t));
        assert_fails(DSC_E_INVALID, "work",
                     dsc_op_attention_forward(g->q, &desc, &x.t, NULL, &less, &lse.t, &y.t));
        assert_fails(DSC_E_INVALID, "attention_backward: lse is missing",
                     dsc_op_attention_backward(g->q, &desc, &x.t, NULL, &y.t, NULL, &y.t, &grads));
        assert_fails(DSC_E_INVALID, "attention_backward: dx",
                     dsc_op_attention_backward(g->q, &desc, &x.t, NULL, &y.t, &lse.t, &y.t, &grads));
        if (!dsc_device_is_host(g->device))
            assert_fails(DSC_E_UNSUPPORTED,
                         "heads of 129 channels; on a GPU they may have 128: use more heads",
                         dsc_op_attention_forward(g->q, &desc, &large.t, NULL, &work, &lse.t, &y.t));
        dsc_tensor_free(&work);
        place *all[] = {&x, &y, &lse, &wide, &flat, &large};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),   cmocka_unit_test(test_backward), cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_causal),    cmocka_unit_test(test_threads),  cmocka_unit_test(test_memory),
        cmocka_unit_test(test_recording), cmocka_unit_test(test_refusals), cmocka_unit_test(test_written_out),
        cmocka_unit_test(test_padding),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
