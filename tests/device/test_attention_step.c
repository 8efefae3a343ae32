/* Attention with a cache, position after position: every device against the rows of ref's attention_forward in double,
 * values by hand, threads, recordings, refusals. */
#include "device/recording.h"
#include "device/table.h"
#include "device/trial.h"

#include <math.h>
#include <stdlib.h>

enum { SPARE = 2 }; /* rows of a cache after the last position: nothing reads or writes them */

typedef struct step_case {
    int64_t n, heads, dh, t;
    double size; /* of queries and keys: 16 gives scores whose exponential no float holds */
} step_case;

/* One position; fewer and more positions than a block of keys has on any device, and all remainders of a group of keys;
 * one head and many, of all sizes. */
static const step_case cases[] = {
    {1, 1, 1, 1, 1},   {2, 2, 4, 3, 1},    {3, 3, 5, 9, 1},   {1, 16, 2, 6, 1},  {2, 1, 16, 66, 1},
    {1, 2, 64, 68, 1}, {1, 1, 128, 37, 1}, {2, 1, 72, 20, 1}, {1, 2, 8, 135, 1}, {1, 1, 33, 100, 16},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static dsc_attention_desc describe(const step_case *c) {
    return (dsc_attention_desc){.heads = c->heads, .causal = 1};
}

/* Row `i` of a tensor [rows, ...], as one of this shape. */
static dsc_tensor row_as(const dsc_tensor *t, int64_t i, int ndim, const int64_t *dim) {
    char *data = (char *)t->data + (size_t)(i * (dsc_tensor_count(t) / t->dim[0])) * dsc_dtype_size(t->dtype);
    return dsc_tensor_view(t->device, data, t->dtype, ndim, dim);
}

/* What the steps must give, from one forward pass over whole sequences, on a host in double: t as for run_steps. */
static dsc_status run_whole(dsc_queue *q, dsc_tensor *t, const step_case *c) {
    int64_t d = c->heads * c->dh, bytes;
    const double *by_step = t[0].data;
    double *cache = t[1].data, *out = t[2].data;
    dsc_attention_desc desc = describe(c);
    place x = place_make(&rigs[0], DSC_F64, SHAPE(c->n, c->t, 1, 3 * d));
    place y = place_make(&rigs[0], DSC_F64, SHAPE(c->n, c->t, 1, d));
    bytes = (int64_t)dsc_op_attention_workspace(dsc_queue_device(q), &desc, &x.t);
    place work = place_make(&rigs[0], DSC_U8, SHAPE(bytes));
    for (int64_t i = 0; i < c->n; i++)
        for (int64_t j = 0; j < c->t; j++) {
            const double *from = by_step + (j * c->n + i) * 3 * d;
            memcpy((double *)x.t.data + (i * c->t + j) * 3 * d, from, (size_t)(3 * d) * sizeof *from);
            memcpy(cache + (i * (c->t + SPARE) + j) * 2 * d, from + d, (size_t)(2 * d) * sizeof *from);
        }
    dsc_status status = dsc_op_attention_forward(q, &desc, &x.t, NULL, &work.t, NULL, &y.t);
    for (int64_t i = 0; i < c->n; i++)
        for (int64_t j = 0; j < c->t; j++)
            memcpy(out + (j * c->n + i) * d, (double *)y.t.data + (i * c->t + j) * d,
                   (size_t)d * sizeof *out);
    place_free(&x);
    place_free(&y);
    place_free(&work);
    return status;
}

/* t: x[positions, n, 3 d], the cache, y[positions, n, d]. ref in double, against which trials compare, takes the
 * whole sequences at once. */
static dsc_status run_steps(dsc_queue *q, dsc_tensor *t, const void *params) {
    const step_case *c = params;
    int64_t d = c->heads * c->dh;
    dsc_attention_desc desc = describe(c);
    if (q == rigs[0].q && t[0].dtype == DSC_F64)
        return run_whole(q, t, c);
    for (int64_t position = 0; position < c->t; position++) {
        dsc_tensor x = row_as(&t[0], position, SHAPE(c->n, 1, 1, 3 * d));
        dsc_tensor y = row_as(&t[2], position, SHAPE(c->n, 1, 1, d));
        dsc_status status = dsc_op_attention_step(q, &desc, &x, position, &t[1], &y);
        if (status != DSC_OK)
            return status;
    }
    return DSC_OK;
}

static void check_case(const step_case *c, void (*check)(trial *tr)) {
    trial tr;
    int64_t d = c->heads * c->dh;
    trial_start(&tr, "attention_step", run_steps, c);
    tr.terms = (double)(c->t + c->dh);
    double *x = trial_in(&tr, "x", SHAPE(c->t, c->n, 3 * d));
    for (int64_t i = 0; i < c->t * c->n * 3 * d; i++)
        if (i % (3 * d) < 2 * d)
            x[i] *= c->size;
    trial_out(&tr, "cache", 0, SHAPE(c->n, c->t + SPARE, 2 * d)); /* copies are exact */
    /* An error of a score is one of its exponential, relative to it. */
    trial_out(&tr, "y", 1 + c->size * c->size * sqrt((double)c->dh) / 3, SHAPE(c->t, c->n, d));
    check(&tr);
}

static void test_conformance(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        check_case(&cases[i], trial_check);
        if (rigs[rig_count - 1].device->has_halves)
            check_case(&cases[i], trial_check_halves);
    }
}

/* The steps of ref in double, which the trials do not take, give the rows of the whole pass, too. */
static void test_ref_in_double(void **state) {
    (void)state;
    static const step_case c = {2, 2, 70, 30, 1};
    enum { N = 2, D = 140, T = 30 };
    const rig *g = &rigs[0];
    double *values = test_array(T * N * 3 * D, sizeof *values), limit[N * D];
    random_values(1, T * N * 3 * D, values);
    place x = place_of(g, DSC_F64, SHAPE(T, N, 3 * D), values), y = place_make(g, DSC_F64, SHAPE(N, 1, 1, D));
    place cache = place_make(g, DSC_F64, SHAPE(N, T + SPARE, 2 * D)),
          want = place_make(g, DSC_F64, SHAPE(T, N, D));
    dsc_tensor t[] = {x.t, cache.t, want.t};
    assert_ok(run_whole(g->q, t, &c));
    place_fill(g, &cache, NAN);
    for (int i = 0; i < N * D; i++)
        limit[i] = 2 * (T + 70 + 4) * dtype_eps(DSC_F64) * (1 + sqrt(70) / 3);
    for (int64_t position = 0; position < T; position++) {
        dsc_attention_desc desc = describe(&c);
        dsc_tensor in = row_as(&x.t, position, SHAPE(N, 1, 1, 3 * D));
        assert_ok(dsc_op_attention_step(g->q, &desc, &in, position, &cache.t, &y.t));
        place_expect_near(g, &y, (double *)want.t.data + position * N * D, limit, "y of ref in double");
    }
    place *all[] = {&x, &y, &cache, &want};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        place_free(all[i]);
    free(values);
}

/* Two positions of one channel: scores 0, then 0 and log 3, values 4 and 8. A second text in the same cache does not
 * depend on the first. */
static void test_by_hand(void **state) {
    (void)state;
    const double x[2][3] = {{0, 0, 4}, {log(3), 1, 8}}, want[] = {4, 7}, limit[] = {2e-6};
    const dsc_attention_desc desc = {.heads = 1, .causal = 1};
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place in = place_make(g, DSC_F32, SHAPE(1, 1, 1, 3)), y = place_make(g, DSC_F32, SHAPE(1, 1, 1, 1));
        place cache = place_make(g, DSC_F32, SHAPE(1, 3, 2));
        place_fill(g, &cache, -1);
        for (int i = 0; i < 4; i++) {
            place_write(g, &in, x[i % 2]);
            assert_ok(dsc_op_attention_step(g->q, &desc, &in.t, i % 2, &cache.t, &y.t));
            place_expect_near(g, &y, &want[i % 2], limit, "y");
        }
        place_expect(g, &cache, (const double[]){0, 4, 1, 8, -1, -1}, "the cache");
        place_free(&in);
        place_free(&y);
        place_free(&cache);
    }
}

/* The bits of y do not depend on the number of threads. */
static void test_threads(void **state) {
    (void)state;
    skip_on_chosen("threads are the cpu's");
    enum { N = 3, POSITION = 299, D = 48 };
    const dsc_attention_desc desc = {.heads = 3, .causal = 1};
    double *values = test_array(N * 300 * 2 * D, sizeof *values), first[N * D];
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        if (strncmp(g->label, "cpu,", 4) != 0)
            continue;
        random_values(1, N * 300 * 2 * D, values);
        place cache = place_of(g, DSC_F32, SHAPE(N, 300, 2 * D), values),
              y = place_make(g, DSC_F32, SHAPE(N, 1, 1, D));
        random_values(2, N * 3 * D, values);
        place x = place_of(g, DSC_F32, SHAPE(N, 1, 1, 3 * D), values);
        assert_ok(dsc_op_attention_step(g->q, &desc, &x.t, POSITION, &cache.t, &y.t));
        if (g->device->threads == 1)
            place_read(g, &y, first);
        else
            place_expect(g, &y, first, "y with more threads");
        place_free(&cache);
        place_free(&x);
        place_free(&y);
    }
    free(values);
}

/* A step replayed on another x gives what a call gives; only on devices that record. */
static void test_recording(void **state) {
    (void)state;
    enum { T = 5, D = 6 };
    const dsc_attention_desc desc = {.heads = 2, .causal = 1};
    double values[T * 2 * D], want[D];
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        if (!dsc_device_records(g->device))
            continue;
        random_values(1, T * 2 * D, values);
        place cache = place_of(g, DSC_F32, SHAPE(1, T, 2 * D), values),
              y = place_make(g, DSC_F32, SHAPE(1, 1, 1, D));
        random_values(2, 3 * D, values);
        place x = place_of(g, DSC_F32, SHAPE(1, 1, 1, 3 * D), values);
        dsc_recording *recording = NULL;
        assert_ok(dsc_recording_begin(g->q));
        assert_ok(dsc_op_attention_step(g->q, &desc, &x.t, T - 1, &cache.t, &y.t));
        assert_ok(dsc_recording_end(g->q, &recording));
        random_values(3, 3 * D, values);
        place_write(g, &x, values);
        assert_ok(dsc_op_attention_step(g->q, &desc, &x.t, T - 1, &cache.t, &y.t));
        place_read(g, &y, want);
        place_fill(g, &y, NAN);
        assert_ok(dsc_recording_replay(recording, g->q));
        place_expect(g, &y, want, "y of a replay");
        dsc_recording_destroy(&recording);
        place_free(&cache);
        place_free(&x);
        place_free(&y);
    }
}

static void test_refusals(void **state) {
    (void)state;
    const dsc_attention_desc desc = {.heads = 2, .causal = 1}, all_keys = {.heads = 2},
                             three = {.heads = 3, .causal = 1};
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place x = place_make(g, DSC_F32, SHAPE(2, 1, 1, 24)), y = place_make(g, DSC_F32, SHAPE(2, 1, 1, 8));
        place cache = place_make(g, DSC_F32, SHAPE(2, 5, 16)),
              longer = place_make(g, DSC_F32, SHAPE(2, 3, 1, 24));
        place fewer = place_make(g, DSC_F32, SHAPE(1, 5, 16)), wide = place_make(g, DSC_F64, SHAPE(2, 5, 16));
        place large = place_make(g, DSC_F32, SHAPE(1, 1, 1, 774));
        dsc_tensor shared = dsc_tensor_view(g->device, x.t.data, DSC_F32, SHAPE(2, 1, 1, 8));
        dsc_tensor none = dsc_tensor_view(g->device, NULL, DSC_F32, SHAPE(2, 0, 16));
        assert_fails(DSC_E_INVALID, "attention_step: x is [2,3,1,24]; [2,1,1,24] is expected",
                     dsc_op_attention_step(g->q, &desc, &longer.t, 0, &cache.t, &y.t));
        assert_fails(DSC_E_INVALID, "attention_step: x is [2,5,16]",
                     dsc_op_attention_step(g->q, &desc, &cache.t, 0, &cache.t, &y.t));
        assert_fails(DSC_E_INVALID, "attention_step: causal is 0; 1 is expected",
                     dsc_op_attention_step(g->q, &all_keys, &x.t, 0, &cache.t, &y.t));
        assert_fails(DSC_E_INVALID, "attention: 8 channels of queries cannot be cut into 3 heads",
                     dsc_op_attention_step(g->q, &three, &x.t, 0, &cache.t, &y.t));
        assert_fails(DSC_E_INVALID, "attention_step: cache is missing",
                     dsc_op_attention_step(g->q, &desc, &x.t, 0, NULL, &y.t));
        assert_fails(DSC_E_INVALID, "attention_step: cache is [2,1,1,8]",
                     dsc_op_attention_step(g->q, &desc, &x.t, 0, &y.t, &y.t));
        assert_fails(DSC_E_INVALID, "attention_step: cache is [1,5,16]; [2,5,16] is expected",
                     dsc_op_attention_step(g->q, &desc, &x.t, 0, &fewer.t, &y.t));
        assert_fails(DSC_E_INVALID, "attention_step: cache is fp64; fp32 is expected",
                     dsc_op_attention_step(g->q, &desc, &x.t, 0, &wide.t, &y.t));
        assert_fails(DSC_E_INVALID, "attention_step: position 5 is outside the cache, which has 5 positions",
                     dsc_op_attention_step(g->q, &desc, &x.t, 5, &cache.t, &y.t));
        assert_fails(DSC_E_INVALID, "attention_step: position -1 is outside the cache, which has 5 positions",
                     dsc_op_attention_step(g->q, &desc, &x.t, -1, &cache.t, &y.t));
        assert_fails(DSC_E_INVALID, "attention_step: position 0 is outside the cache, which has 0 positions",
                     dsc_op_attention_step(g->q, &desc, &x.t, 0, &none, &y.t));
        assert_fails(DSC_E_INVALID, "attention_step: y is [2,1,1,24]; [2,1,1,8] is expected",
                     dsc_op_attention_step(g->q, &desc, &x.t, 0, &cache.t, &x.t));
        assert_fails(DSC_E_INVALID, "y shares memory with x",
                     dsc_op_attention_step(g->q, &desc, &x.t, 0, &cache.t, &shared));
        if (!dsc_device_is_host(g->device))
            assert_fails(DSC_E_UNSUPPORTED,
                         "heads of 129 channels; on a GPU they may have 128: use more heads",
                         dsc_op_attention_step(g->q, &desc, &large.t, 0, &cache.t, &y.t));
        place *all[] = {&x, &y, &cache, &longer, &fewer, &wide, &large};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conformance), cmocka_unit_test(test_ref_in_double),
        cmocka_unit_test(test_by_hand),     cmocka_unit_test(test_threads),
        cmocka_unit_test(test_recording),   cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
