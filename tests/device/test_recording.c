/* Recordings: what was recorded runs at every replay, on the contents at that time, in the order of queues
 * and events; what cannot be recorded is refused, and a queue survives every failure. Left out on devices
 * that do not record. */
#include "device/recording.h"
#include "device/rig.h"
#include "device/updates.h"

#include <stdlib.h>
#include <string.h>

enum { N = 1000, ROUNDS = 4 };

/* rigs that record, one after the other: for (int i = first_rig(0); i < rig_count; i = first_rig(i + 1)) */
static int first_rig(int i) {
    while (i < rig_count && !dsc_device_records(rigs[i].device))
        i++;
    return i;
}

static void write_number(const rig *r, place *p, double value) {
    double values[N];
    for (int i = 0; i < N; i++)
        values[i] = value + i;
    place_write(r, p, values);
}

/* a (value + i), element by element */
static void expect_number(const rig *r, const place *p, double value, double a, const char *what) {
    double values[N];
    for (int i = 0; i < N; i++)
        values[i] = a * (value + i);
    place_expect(r, p, values, what);
}

static void free_places(place *const *places, size_t count) {
    for (size_t i = 0; i < count; i++)
        place_free(places[i]);
}

#define FREE_PLACES(...)                                                                                     \
    free_places((place *const[]){__VA_ARGS__}, sizeof((place *const[]){__VA_ARGS__}) / sizeof(place *))

/* ---- replays ---- */

static void test_replay(void **state) {
    (void)state;
    for (int i = first_rig(0); i < rig_count; i = first_rig(i + 1)) {
        const rig *r = &rigs[i];
        place x = place_make(r, DSC_F32, SHAPE(N)), y = place_make(r, DSC_F32, SHAPE(N));
        place count = place_of(r, DSC_I64, SHAPE(1), (const double[]){0});
        dsc_recording *recording = NULL;
        write_number(r, &x, 1);
        write_number(r, &y, -1);
        assert_int_equal(dsc_queue_is_recording(r->q), 0);
        assert_ok(dsc_recording_begin(r->q));
        assert_int_equal(dsc_queue_is_recording(r->q), 1);
        assert_ok(dsc_op_axpby(r->q, 2, &x.t, 0, &y.t));
        assert_ok(dsc_op_axpby(r->q, 1, &y.t, 1, &y.t)); /* later work sees the results of earlier work */
        assert_ok(dsc_op_increment(r->q, &count.t));
        assert_ok(dsc_recording_end(r->q, &recording));
        assert_int_equal(dsc_queue_is_recording(r->q), 0);
        expect_number(r, &y, -1, 1, "what was recorded did not run");
        for (int round = 0; round < ROUNDS; round++) {
            write_number(r, &x, 10 * round);
            assert_ok(dsc_recording_replay(recording, r->q));
            expect_number(r, &y, 10 * round, 4, "a replay");
        }
        assert_ok(dsc_recording_replay(recording, r->q)); /* twice without a pause */
        assert_ok(dsc_recording_replay(recording, r->q));
        place_expect(r, &count, (const double[]){ROUNDS + 2}, "replays counted");
        dsc_recording_destroy(&recording);
        assert_null(recording);
        dsc_recording_destroy(&recording);
        dsc_recording_destroy(NULL);
        FREE_PLACES(&x, &y, &count);
    }
}

/* Several recordings of one queue, replayed in turn and in another queue of the device. */
static void test_several(void **state) {
    (void)state;
    for (int i = first_rig(0); i < rig_count; i = first_rig(i + 1)) {
        const rig *r = &rigs[i];
        place x = place_make(r, DSC_F32, SHAPE(N));
        dsc_recording *twice = NULL, *less = NULL;
        dsc_queue *other = NULL;
        assert_ok(dsc_queue_create(r->device, &other));
        place one = place_make(r, DSC_F32, SHAPE(N));
        place_fill(r, &one, 1);
        write_number(r, &x, 5);
        assert_ok(dsc_recording_begin(r->q));
        assert_ok(dsc_op_axpby(r->q, 2, &x.t, 0, &x.t));
        assert_ok(dsc_recording_end(r->q, &twice));
        assert_ok(dsc_recording_begin(r->q));
        assert_ok(dsc_op_axpby(r->q, -2, &one.t, 1, &x.t));
        assert_ok(dsc_recording_end(r->q, &less));
        assert_ok(dsc_recording_replay(twice, r->q));
        assert_ok(dsc_recording_replay(less, r->q));
        expect_number(r, &x, 4, 2, "two recordings"); /* 2 (5 + i) - 2 */
        assert_ok(dsc_queue_sync(r->q));
        assert_ok(dsc_recording_replay(twice, other));
        assert_ok(dsc_queue_sync(other));
        expect_number(r, &x, 4, 4, "a replay in another queue");
        dsc_recording_destroy(&twice);
        dsc_recording_destroy(&less);
        dsc_queue_destroy(&other);
        FREE_PLACES(&x, &one);
    }
}

/* ---- events ---- */

/* The second queue takes part from the event it waits for to the event that the first waits for. */
static void test_two_queues(void **state) {
    (void)state;
    for (int i = first_rig(0); i < rig_count; i = first_rig(i + 1)) {
        const rig *r = &rigs[i];
        place x = place_make(r, DSC_F32, SHAPE(N)), y = place_make(r, DSC_F32, SHAPE(N));
        dsc_recording *recording = NULL;
        dsc_queue *second = NULL;
        dsc_event *there = NULL, *back = NULL;
        double ms = -1;
        assert_ok(dsc_queue_create(r->device, &second));
        assert_ok(dsc_event_create(r->device, &there));
        assert_ok(dsc_event_create(r->device, &back));
        write_number(r, &x, 0);
        write_number(r, &y, 0);
        assert_ok(dsc_recording_begin(r->q));
        assert_ok(dsc_op_axpby(r->q, 3, &x.t, 0, &x.t));
        assert_ok(dsc_event_record(there, r->q));
        assert_ok(dsc_queue_wait(second, there));
        assert_ok(dsc_op_axpby(second, 2, &x.t, 0, &y.t));
        assert_ok(dsc_event_record(back, second));
        assert_ok(dsc_queue_wait(r->q, back));
        assert_ok(dsc_op_axpby(r->q, 1, &y.t, 1, &x.t));
        assert_ok(dsc_recording_end(r->q, &recording));
        for (int round = 0; round < ROUNDS; round++) {
            write_number(r, &x, round);
            assert_ok(dsc_recording_replay(recording, r->q));
            assert_ok(dsc_event_sync(back));
            expect_number(r, &y, round, 6, "the second queue's part");
            expect_number(r, &x, round, 9, "the first queue's part");
        }
        assert_ok(dsc_event_elapsed(there, back, &ms));
        assert_true(ms >= 0);
        assert_ok(dsc_op_axpby(second, 2, &x.t, 0, &y.t)); /* it is a queue as before */
        assert_ok(dsc_queue_sync(second));
        expect_number(r, &y, ROUNDS - 1, 18, "the second queue afterwards");
        dsc_recording_destroy(&recording);
        dsc_event_destroy(&there);
        dsc_event_destroy(&back);
        dsc_queue_destroy(&second);
        FREE_PLACES(&x, &y);
    }
}

/* A recorded product is right after a larger one, which takes more of the queue's own memory. Large ones take too
 * long on an emulated GPU. */
static void test_larger_product(void **state) {
    (void)state;
    enum { SIDE = 400, LARGE = 4200, TERMS = 96 };
    for (int i = first_rig(0); i < rig_count; i = first_rig(i + 1)) {
        const rig *r = &rigs[i];
        if (strstr(dsc_device_description(r->device), "emulated"))
            continue;
        place x = place_make(r, DSC_F32, SHAPE(SIDE, SIDE)), y = place_make(r, DSC_F32, SHAPE(SIDE, SIDE)),
              a = place_make(r, DSC_F32, SHAPE(LARGE, TERMS)),
              c = place_make(r, DSC_F32, SHAPE(LARGE, LARGE));
        const dsc_gemm_item small = {.alpha = 1, .a = x.t, .b = x.t, .c = y.t};
        const dsc_gemm_item large = {.trans_b = 1, .alpha = 1, .a = a.t, .b = a.t, .c = c.t};
        dsc_recording *recording = NULL;
        place_fill(r, &x, 1);
        place_fill(r, &a, 2);
        assert_ok(dsc_op_gemm_batch(r->q, &small, 1));
        assert_ok(dsc_recording_begin(r->q));
        assert_ok(dsc_op_gemm_batch(r->q, &small, 1));
        assert_ok(dsc_recording_end(r->q, &recording));
        assert_ok(dsc_op_gemm_batch(r->q, &large, 1));
        place_fill(r, &x, 3);
        assert_ok(dsc_recording_replay(recording, r->q));
        assert_ok(dsc_queue_sync(r->q));
        assert_true(place_get(r, &y, 0) == 9 * SIDE && place_get(r, &y, SIDE * SIDE - 1) == 9 * SIDE);
        assert_true(place_get(r, &c, LARGE * LARGE - 1) == 4 * TERMS);
        dsc_recording_destroy(&recording);
        FREE_PLACES(&x, &y, &a, &c);
    }
}

/* Events before and after a replay, with work of another queue between. */
static void test_events_outside(void **state) {
    (void)state;
    for (int i = first_rig(0); i < rig_count; i = first_rig(i + 1)) {
        const rig *r = &rigs[i];
        place x = place_make(r, DSC_F32, SHAPE(N)), y = place_make(r, DSC_F32, SHAPE(N));
        dsc_recording *recording = NULL;
        dsc_queue *second = NULL;
        dsc_event *event = NULL;
        assert_ok(dsc_queue_create(r->device, &second));
        assert_ok(dsc_event_create(r->device, &event));
        assert_ok(dsc_recording_begin(r->q));
        assert_ok(dsc_op_axpby(r->q, 3, &x.t, 0, &y.t));
        assert_ok(dsc_recording_end(r->q, &recording));
        for (int round = 0; round < ROUNDS; round++) {
            write_number(r, &x, round);
            assert_ok(dsc_op_axpby(second, 2, &x.t, 0, &x.t));
            assert_ok(dsc_event_record(event, second));
            assert_ok(dsc_queue_wait(r->q, event));
            assert_ok(dsc_recording_replay(recording, r->q));
            assert_ok(dsc_event_record(event, r->q));
            assert_ok(dsc_queue_wait(second, event));
            assert_ok(dsc_op_axpby(second, 1, &y.t, 0, &x.t));
            assert_ok(dsc_queue_sync(second));
            expect_number(r, &x, round, 6, "a replay between two events");
        }
        dsc_recording_destroy(&recording);
        dsc_event_destroy(&event);
        dsc_queue_destroy(&second);
        FREE_PLACES(&x, &y);
    }
}

/* ---- refusals and failures ---- */

static void test_refusals(void **state) {
    (void)state;
    for (int i = first_rig(0); i < rig_count; i = first_rig(i + 1)) {
        const rig *r = &rigs[i];
        static float host[N];
        place x = place_make(r, DSC_F32, SHAPE(N)), y = place_make(r, DSC_F32, SHAPE(N));
        place a = place_of(r, DSC_F32, SHAPE(2, 2), (const double[]){1, 0, 0, 1});
        dsc_recording *first = NULL, *recording = NULL;
        dsc_event *event = NULL;
        assert_ok(dsc_event_create(r->device, &event));
        assert_fails(DSC_E_INVALID, "none was begun", dsc_recording_end(r->q, &recording));
        assert_ok(dsc_recording_begin(r->q));
        assert_ok(dsc_op_axpby(r->q, 1, &x.t, 0, &y.t));
        assert_ok(dsc_recording_end(r->q, &first));
        write_number(r, &x, 7);
        assert_ok(dsc_recording_begin(r->q));
        assert_ok(dsc_op_axpby(r->q, 5, &x.t, 0, &y.t));
        assert_fails(DSC_E_INVALID, "recording already", dsc_recording_begin(r->q));
        assert_fails(DSC_E_INVALID, "cannot be recorded", dsc_tensor_upload(r->q, host, sizeof host, &x.t));
        assert_fails(DSC_E_INVALID, "cannot be recorded", dsc_tensor_download(r->q, &x.t, sizeof host, host));
        assert_fails(DSC_E_INVALID, "cannot be recorded", dsc_queue_sync(r->q));
        assert_fails(DSC_E_INVALID, "cannot be recorded", dsc_recording_replay(first, r->q));
        assert_ok(dsc_event_record(event, r->q));
        assert_fails(DSC_E_INVALID, "cannot be recorded", dsc_event_sync(event));
        assert_fails(DSC_E_INVALID, "cannot be recorded", dsc_op_chol_inverse(r->q, &a.t));
        assert_fails(DSC_E_INVALID, "add", dsc_op_add(r->q, &x.t, &a.t, &y.t)); /* a front's own */
        assert_ok(dsc_op_axpby(r->q, 1, &x.t, 1, &y.t));
        assert_ok(dsc_recording_end(r->q, &recording)); /* the rest is recorded all the same */
        assert_ok(dsc_recording_replay(recording, r->q));
        expect_number(r, &y, 7, 6, "a recording with refusals");
        assert_ok(dsc_op_chol_inverse(r->q, &a.t));
        assert_fails(DSC_E_INVALID, "another device", dsc_recording_replay(recording, rigs[0].q));
        assert_fails(DSC_E_UNSUPPORTED, "dsc_device_records", dsc_recording_begin(rigs[0].q));
        dsc_recording_destroy(&first);
        dsc_recording_destroy(&recording);
        dsc_event_destroy(&event);
        FREE_PLACES(&x, &y, &a);
    }
}

/* A queue that has waited for the recording, but does not come back to it: nothing is recorded, and both go
 * on as before. */
static void test_not_joined(void **state) {
    (void)state;
    for (int i = first_rig(0); i < rig_count; i = first_rig(i + 1)) {
        const rig *r = &rigs[i];
        place x = place_make(r, DSC_F32, SHAPE(N)), y = place_make(r, DSC_F32, SHAPE(N));
        dsc_recording *recording = NULL;
        dsc_queue *second = NULL;
        dsc_event *event = NULL;
        assert_ok(dsc_queue_create(r->device, &second));
        assert_ok(dsc_event_create(r->device, &event));
        write_number(r, &x, 2);
        write_number(r, &y, 3);
        assert_ok(dsc_recording_begin(r->q));
        assert_ok(dsc_event_record(event, r->q));
        assert_ok(dsc_queue_wait(second, event));
        assert_ok(dsc_op_axpby(second, 2, &x.t, 0, &y.t));
        assert_fails(DSC_E_INVALID, "recording", dsc_recording_end(r->q, &recording));
        assert_null(recording);
        assert_int_equal(dsc_queue_is_recording(r->q), 0);
        expect_number(r, &y, 3, 1, "what was not recorded did not run");
        assert_ok(dsc_op_axpby(second, 2, &x.t, 0, &y.t));
        assert_ok(dsc_queue_sync(second));
        expect_number(r, &y, 2, 2, "the second queue afterwards");
        assert_ok(dsc_recording_begin(r->q));
        assert_ok(dsc_op_axpby(r->q, 3, &x.t, 0, &y.t));
        assert_ok(dsc_recording_end(r->q, &recording));
        assert_ok(dsc_recording_replay(recording, r->q));
        expect_number(r, &y, 2, 3, "the first queue afterwards");
        dsc_recording_destroy(&recording);
        dsc_event_destroy(&event);
        dsc_queue_destroy(&second);
        FREE_PLACES(&x, &y);
    }
}

/* A queue may go while it records. */
static void test_abandoned(void **state) {
    (void)state;
    for (int i = first_rig(0); i < rig_count; i = first_rig(i + 1)) {
        const rig *r = &rigs[i];
        place x = place_make(r, DSC_F32, SHAPE(N));
        dsc_queue *q = NULL;
        write_number(r, &x, 1);
        assert_ok(dsc_queue_create(r->device, &q));
        assert_ok(dsc_recording_begin(q));
        assert_ok(dsc_op_fill(q, 0, &x.t));
        dsc_queue_destroy(&q);
        expect_number(r, &x, 1, 1, "an abandoned recording");
        place_free(&x);
    }
}

/* ---- the operations of a step ---- */

/* Tensors of a small step; those after RESULTS are scratch. */
enum {
    X,
    W,
    Y,
    Z,
    DX,
    DY,
    DW,
    GAMMA,
    SHIFT,
    MEAN,
    VAR,
    SAVED_MEAN,
    SAVED_INVSTD,
    DGAMMA,
    DSHIFT,
    MOMENTUM,
    POOLED,
    DPOOLED,
    FC,
    DFC,
    LOGITS,
    DLOGITS,
    LABELS,
    STATS,
    HYPER,
    NORMS,
    SQUARE,
    PACKED,
    RESULTS,
    FULL = RESULTS,
    WORK,
    GRAM_WORK,
    STEP_PLACES
};

typedef struct step {
    place at[STEP_PLACES];
    dsc_conv *conv;
} step;

enum { BATCH = 4, SIDE = 8, CHANNELS = 16, CLASSES = 10, PATCH = 9 * CHANNELS };
static const dsc_conv_desc layer =
    CONV(DSC_F32, BATCH, SIDE, SIDE, CHANNELS, CHANNELS, 3, 3, 1, 1, 1, 1, 1, 1, 1);

static void open_random(const rig *r, step *s, int first, int last, int ndim, const int64_t *dim) {
    for (int i = first; i <= last; i++) {
        int64_t count = 1;
        for (int k = 0; k < ndim; k++)
            count *= dim[k];
        double *values = test_array(count, sizeof *values);
        random_values((uint64_t)i, count, values);
        s->at[i] = place_of(r, DSC_F32, ndim, dim, values);
        free(values);
    }
}

static void open_step(const rig *r, step *s) {
    static const double hyper[DSC_HYPER_COUNT] = {[DSC_HYPER_LR] = 0.1, [DSC_HYPER_MOMENTUM] = 0.9};
    static const double labels[BATCH] = {1, 2, -1, 9}, zeros[4] = {0};
    assert_ok(dsc_conv_create(r->device, &layer, &s->conv));
    open_random(r, s, X, DY, SHAPE(BATCH, SIDE, SIDE, CHANNELS));
    open_random(r, s, DW, DW, SHAPE(CHANNELS, 3, 3, CHANNELS));
    place_free(&s->at[W]);
    open_random(r, s, W, W, SHAPE(CHANNELS, 3, 3, CHANNELS));
    open_random(r, s, GAMMA, DSHIFT, SHAPE(CHANNELS));
    open_random(r, s, MOMENTUM, MOMENTUM, SHAPE(CHANNELS, 3, 3, CHANNELS));
    open_random(r, s, POOLED, DPOOLED, SHAPE(BATCH, CHANNELS));
    open_random(r, s, FC, DFC, SHAPE(CLASSES, CHANNELS));
    open_random(r, s, LOGITS, DLOGITS, SHAPE(BATCH, CLASSES));
    s->at[LABELS] = place_of(r, DSC_I32, SHAPE(BATCH), labels);
    s->at[STATS] = place_of(r, DSC_F64, SHAPE(4), zeros);
    s->at[HYPER] = place_of(r, DSC_F64, SHAPE(DSC_HYPER_COUNT), hyper);
    s->at[NORMS] = place_of(r, DSC_F64, SHAPE(2), zeros);
    open_random(r, s, SQUARE, SQUARE, SHAPE(CHANNELS, CHANNELS));
    open_random(r, s, PACKED, PACKED, SHAPE(PATCH * (PATCH + 1) / 2));
    open_random(r, s, FULL, FULL, SHAPE(PATCH * PATCH));
    s->at[WORK] = place_make(r, DSC_U8, SHAPE((int64_t)dsc_conv_workspace(s->conv)));
    s->at[GRAM_WORK] =
        place_make(r, DSC_U8, SHAPE((int64_t)dsc_op_patch_gram_workspace(r->device, &layer, 0)));
}

static void close_step(step *s) {
    for (int i = 0; i < STEP_PLACES; i++)
        place_free(&s->at[i]);
    dsc_conv_destroy(&s->conv);
}

static void put_forward(dsc_queue *q, step *s) {
    static const dsc_norm_desc norm = {1e-3, 0.1, 1};
    place *p = s->at;
    dsc_norm_params params = {&p[GAMMA].t, &p[SHIFT].t, &p[MEAN].t, &p[VAR].t, NULL};
    assert_ok(dsc_op_conv_forward(q, s->conv, &p[X].t, &p[W].t, NULL, &p[WORK].t, &p[Y].t));
    assert_ok(dsc_op_norm_forward_train(q, &norm, &p[Y].t, NULL, &params, &p[SAVED_MEAN].t,
                                        &p[SAVED_INVSTD].t, &p[Z].t));
    assert_ok(dsc_op_global_pool_forward(q, &p[Z].t, &p[POOLED].t));
    assert_ok(dsc_op_gemm(q, 0, 1, 1, &p[POOLED].t, &p[FC].t, 0, &p[LOGITS].t));
    assert_ok(
        dsc_op_softmax_loss(q, &p[LOGITS].t, &p[LABELS].t, 0.1, 0.25, NULL, &p[DLOGITS].t, &p[STATS].t));
}

static void put_backward(dsc_queue *q, step *s) {
    static const dsc_norm_desc norm = {1e-3, 0.1, 1};
    place *p = s->at;
    dsc_norm_grads grads = {.dx = &p[DY].t, .dgamma = &p[DGAMMA].t, .dshift = &p[DSHIFT].t};
    assert_ok(dsc_op_gemm(q, 1, 0, 1, &p[DLOGITS].t, &p[POOLED].t, 0, &p[DFC].t));
    assert_ok(dsc_op_gemm(q, 0, 0, 1, &p[DLOGITS].t, &p[FC].t, 0, &p[DPOOLED].t));
    assert_ok(dsc_op_global_pool_backward(q, &p[DPOOLED].t, 0, &p[DX].t));
    assert_ok(dsc_op_norm_backward(q, &norm, &p[Y].t, &p[Z].t, &p[DX].t, &p[GAMMA].t, &p[SAVED_MEAN].t,
                                   &p[SAVED_INVSTD].t, &grads));
    assert_ok(dsc_op_conv_backward_weight(q, s->conv, &p[X].t, &p[DY].t, 0, &p[WORK].t, &p[DW].t));
    assert_ok(dsc_op_conv_backward_data(q, s->conv, &p[W].t, &p[DY].t, 0, &p[WORK].t, &p[DX].t));
}

static void put_step(dsc_queue *q, step *s) {
    place *p = s->at;
    dsc_tensor rows =
        dsc_tensor_view(p[DW].t.device, p[DW].t.data, DSC_F32, 2, (const int64_t[]){CHANNELS, PATCH});
    const dsc_dot_item dots[] = {{p[DW].t, p[DW].t}, {p[DFC].t, p[DFC].t}};
    const dsc_gemm_item square = {
        .trans_b = 1, .alpha = 1, .a = rows, .b = rows, .c = p[SQUARE].t, .fast = 1};
    put_forward(q, s);
    put_backward(q, s);
    assert_ok(
        dsc_op_patch_gram_packed(q, &layer, &p[X].t, 0, 0.5, &p[GRAM_WORK].t, &p[FULL].t, &p[PACKED].t));
    assert_ok(dsc_op_dot_batch(q, dots, 2, &p[NORMS].t));
    assert_ok(dsc_op_gemm_batch(q, &square, 1));
    assert_ok(sgd(q, 0, &p[HYPER].t, &p[W].t, &p[DW].t, &p[MOMENTUM].t, &p[W].t));
}

static void expect_same(const rig *r, step *a, step *b) {
    for (int i = 0; i < RESULTS; i++) {
        double *values = test_array(dsc_tensor_count(&a->at[i].t), sizeof *values);
        char what[40];
        place_read(r, &a->at[i], values);
        snprintf(what, sizeof what, "place %d of a step", i);
        place_expect(r, &b->at[i], values, what);
        free(values);
    }
}

/* Recorded and replayed, a step comes to the bits of the step that runs as it is. */
static void test_step(void **state) {
    (void)state;
    for (int i = first_rig(0); i < rig_count; i = first_rig(i + 1)) {
        const rig *r = &rigs[i];
        step plain, recorded;
        dsc_recording *recording = NULL;
        open_step(r, &plain);
        open_step(r, &recorded);
        put_step(r->q, &plain);
        put_step(r->q, &recorded); /* the first time as it is: libraries find their kernels */
        assert_ok(dsc_queue_sync(r->q));
        assert_ok(dsc_recording_begin(r->q));
        put_step(r->q, &recorded);
        assert_ok(dsc_recording_end(r->q, &recording));
        for (int round = 0; round < 3; round++) {
            put_step(r->q, &plain);
            assert_ok(dsc_recording_replay(recording, r->q));
            expect_same(r, &plain, &recorded);
        }
        dsc_recording_destroy(&recording);
        close_step(&plain);
        close_step(&recorded);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replay),         cmocka_unit_test(test_several),
        cmocka_unit_test(test_two_queues),     cmocka_unit_test(test_larger_product),
        cmocka_unit_test(test_events_outside), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_not_joined),     cmocka_unit_test(test_abandoned),
        cmocka_unit_test(test_step),
    };
    if (rigs_open_loose(NULL) != 0)
        return 1;
    if (first_rig(0) == rig_count) {
        (void)rigs_close(NULL);
        fprintf(stderr, "skipped: no device records\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, rigs_close);
}
