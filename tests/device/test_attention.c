/* Multi-head self-attention: every device against ref in double, values by hand, threads, memory,
 * refusals. */
#include "device/recording.h"
#include "device/table.h"
#include "device/trial.h"

#include <math.h>
#include <stdlib.h>

typedef struct attention_case {
    int64_t n, t, heads, dh;
    int causal;
    double size; /* of queries and keys: 16 gives scores whose exponential no float holds */
    double beta;
} attention_case;

/* One position; fewer, as many and more positions than a block has on any device; one head and many; heads of
 * all sizes. */
static const attention_case cases[] = {
    {1, 1, 1, 1, 0, 1, 0},   {2, 1, 2, 4, 1, 1, 1},     {1, 5, 1, 3, 0, 1, 0},    {2, 7, 3, 5, 1, 1, 1},
    {1, 8, 16, 2, 1, 1, 0},  {1, 64, 1, 16, 1, 1, 0},   {2, 65, 2, 8, 1, 1, 1},   {1, 192, 1, 5, 0, 1, 0},
    {1, 197, 2, 8, 1, 1, 0}, {1, 33, 2, 64, 1, 1, 1},   {1, 40, 1, 128, 0, 1, 0}, {1, 37, 1, 72, 1, 1, 0},
    {1, 90, 2, 8, 0, 16, 0}, {1, 130, 1, 16, 1, 16, 1}, {1, 400, 1, 4, 1, 1, 0},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static dsc_attention_desc describe(const attention_case *c) {
    return (dsc_attention_desc){.heads = c->heads, .causal = c->causal};
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
    dsc_status status = dsc_op_attention_forward(q, &desc, &t[0], &work, &t[1], &t[2]);
    assert_ok(dsc_queue_sync(q));
    dsc_tensor_free(&work);
    return status;
}

static dsc_status backward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    dsc_attention_desc desc = describe(params);
    dsc_tensor work = make_work(q, &desc, &t[0]);
    dsc_attention_grads grads = {.beta = ((const attention_case *)params)->beta, .work = &work, .dx = &t[4]};
    dsc_status status = dsc_op_attention_backward(q, &desc, &t[0], &t[2], &t[1], &t[3], &grads);
    assert_ok(dsc_queue_sync(q));
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
    return 1 + c->size * c->size * sqrt((double)c->dh) / 3;
}

static void start_forward(trial *tr, const attention_case *c) {
    int64_t d = c->heads * c->dh;
    trial_start(tr, "attention_forward", forward_run, c);
    tr->terms = (double)(c->t + c->dh);
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
    double largest = 0;
    for (int64_t j = 0; j < tr->operands[4].count; j++)
        largest = fmax(largest, fabs(place_get(g, &p[4], j)));
    for (int i = 0; i < 5; i++)
        place_free(&p[i]);
    return largest;
}

static void start_backward(trial *tr, const attention_case *c) {
    int64_t d = c->heads * c->dh;
    trial_start(tr, "attention_backward", backward_run, c);
    tr->terms = (double)(c->t + c->dh);
    enlarge(c, trial_in(tr, "x", SHAPE(c->n, c->t, 1, 3 * d)));
    trial_in(tr, "lse", SHAPE(c->n, c->heads, c->t));
    trial_param(tr);
    trial_in(tr, "y", SHAPE(c->n, c->t, 1, d));
    trial_in(tr, "dy", SHAPE(c->n, c->t, 1, d));
    trial_beta(tr, "dx", 1, c->beta, SHAPE(c->n, c->t, 1, 3 * d));
    tr->operands[4].scale = (1 + fill_saved(tr, c)) * score_size(c);
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
        trial_check_halves(&tr);
    }
}

/* Two positions of one channel: scores (0, 0) and (0, log 3), values 4 and 8. */
static void test_by_hand(void **state) {
    (void)state;
    double third = log(3);
    const double x[] = {0, 0, 4, third, 1, 8}, zero[4] = {0, 0, 0, 0};
    for (int r = 0; r < rig_count; r++)
        for (int causal = 0; causal < 2; causal++) {
            const rig *g = &rigs[r];
            attention_case c = {1, 2, 1, 1, causal, 1, 0};
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
            assert_ok(dsc_op_attention_forward(g->q, &desc, &in.t, &work, NULL, &y.t));
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
        attention_case c = {1, T, 2, 2, 1, 1, 0};
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
    static const attention_case c = {3, 420, 3, 24, 1, 1, 0};
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

static void both_passes(dsc_queue *q, dsc_tensor *t, dsc_tensor *work) {
    dsc_attention_desc desc = {.heads = 2, .causal = 1};
    dsc_attention_grads grads = {.work = work, .dx = &t[3]};
    assert_ok(dsc_op_attention_forward(q, &desc, &t[0], work, &t[1], &t[2]));
    assert_ok(dsc_op_attention_backward(q, &desc, &t[0], &t[2], &t[1], &t[2], &grads));
}

/* Both passes replayed on another x give what calls give; only on devices that record. */
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
        assert_ok(dsc_recording_begin(g->q));
        both_passes(g->q, t, &work);
        assert_ok(dsc_recording_end(g->q, &recording));
        random_values(2, T * 3 * D, values);
        place_write(g, &p[0], values);
        both_passes(g->q, t, &work);
        place_read(g, &p[3], want);
        place_fill(g, &p[3], NAN);
        assert_ok(dsc_recording_replay(recording, g->q));
        place_expect(g, &p[3], want, "dx of a replay");
        dsc_recording_destroy(&recording);
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
        assert_fails(DSC_E_INVALID, "attention_forward: x is [3,24]",
                     dsc_op_attention_forward(g->q, &desc, &flat.t, &work, &lse.t, &y.t));
        assert_fails(DSC_E_INVALID, "x has width 2; [n, positions, 1, channels] is expected",
                     dsc_op_attention_forward(g->q, &desc, &wide.t, &work, &lse.t, &y.t));
        assert_fails(DSC_E_INVALID, "attention: 8 channels cannot be cut into queries, keys and values",
                     dsc_op_attention_forward(g->q, &desc, &y.t, &work, &lse.t, &y.t));
        assert_fails(DSC_E_INVALID, "attention: 8 channels of queries cannot be cut into 3 heads",
                     dsc_op_attention_forward(g->q, &three, &x.t, &work, &lse.t, &y.t));
        assert_fails(DSC_E_INVALID, "cannot be cut into 0 heads",
                     dsc_op_attention_forward(g->q, &none, &x.t, &work, &lse.t, &y.t));
        assert_fails(DSC_E_INVALID, "attention_forward: y is [1,3,1,24]; [1,3,1,8] is expected",
                     dsc_op_attention_forward(g->q, &desc, &x.t, &work, &lse.t, &x.t));
        assert_fails(DSC_E_INVALID, "attention_forward: lse is [1,3,1,8]; [1,2,3] is expected",
                     dsc_op_attention_forward(g->q, &desc, &x.t, &work, &y.t, &y.t));
        assert_fails(DSC_E_INVALID, "work", dsc_op_attention_forward(g->q, &desc, &x.t, &less, &lse.t, &y.t));
        assert_fails(DSC_E_INVALID, "attention_backward: lse is missing",
                     dsc_op_attention_backward(g->q, &desc, &x.t, &y.t, NULL, &y.t, &grads));
        assert_fails(DSC_E_INVALID, "attention_backward: dx",
                     dsc_op_attention_backward(g->q, &desc, &x.t, &y.t, &lse.t, &y.t, &grads));
        if (!dsc_device_is_host(g->device))
            assert_fails(DSC_E_UNSUPPORTED,
                         "heads of 129 channels; on a GPU they may have 128: use more heads",
                         dsc_op_attention_forward(g->q, &desc, &large.t, &work, &lse.t, &y.t));
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
        cmocka_unit_test(test_recording), cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
