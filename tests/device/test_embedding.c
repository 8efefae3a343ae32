/* Lengths of sequences, and embeddings: every device against ref in double, values by hand, threads, recordings,
 * refusals. */
#include "device/recording.h"
#include "device/table.h"
#include "device/trial.h"

#include <math.h>
#include <stdlib.h>

typedef enum id_pattern { REPEATED, EQUAL, OUTSIDE, ONCE } id_pattern;

typedef struct embedding_case {
    int64_t rows, vocabulary, features;
    id_pattern pattern;
    double beta;
    int wide; /* ids in float64 */
} embedding_case;

/* One row; fewer and more rows than a GPU's block sorts, and of one id than its warp adds up; ids of 1, 2 and 3 bytes;
 * features with and without whole vectors; none. */
static const embedding_case cases[] = {
    {1, 1, 1, REPEATED, 0, 0},    {1, 5, 8, REPEATED, 1, 1},     {7, 3, 5, REPEATED, 0, 0},
    {40, 40, 16, ONCE, 0, 1},     {64, 5, 24, EQUAL, 1, 0},      {65, 5, 24, EQUAL, 0, 0},
    {50, 9, 7, OUTSIDE, 1, 0},    {300, 10, 8, REPEATED, 1, 0},  {700, 300, 16, OUTSIDE, 0, 0},
    {600, 256, 1, EQUAL, 0, 0},   {530, 2, 264, REPEATED, 0, 1}, {257, 255, 12, OUTSIDE, 0.5, 0},
    {90, 70000, 4, ONCE, 1, 0},   {90, 66000, 3, OUTSIDE, 0, 1}, {9, 4, 0, REPEATED, 0, 0},
    {0, 6, 8, REPEATED, 0, 0},    {0, 6, 8, REPEATED, -2, 0},    {5, 0, 8, OUTSIDE, 0, 0},
    {1000, 33, 64, OUTSIDE, 1, 0}};
enum { CASES = sizeof cases / sizeof cases[0] };

static void fill_ids(const embedding_case *c, double *ids) {
    const double outside[] = {-1, (double)c->vocabulary, NAN, INFINITY, 0.5, -INFINITY, 0x1p90};
    for (int64_t i = 0; i < c->rows; i++) {
        uint32_t mixed = (uint32_t)i * 2654435761u >> 8;
        int64_t id = c->vocabulary > 0 ? mixed % (uint32_t)c->vocabulary : 0;
        if (c->pattern == EQUAL)
            id = c->vocabulary - 1;
        if (c->pattern == ONCE) /* falling, the last of the table among them */
            id = c->vocabulary - 1 - i * (c->vocabulary / c->rows);
        ids[i] = c->pattern == OUTSIDE && (i % 3 == 1 || c->vocabulary == 0) ? outside[i % 7] : (double)id;
    }
}

static void add_ids(trial *tr, const embedding_case *c) {
    fill_ids(c, trial_typed(tr, "ids", ROLE_IN, c->wide ? DSC_F64 : DSC_F32, 1, SHAPE(c->rows)));
}

/* Workspace for one call, filled with ones; NULL data where none is needed. */
static dsc_tensor make_work(dsc_queue *q, int64_t rows, int64_t vocabulary) {
    dsc_tensor work;
    int64_t bytes = (int64_t)dsc_op_embedding_workspace(dsc_queue_device(q), rows, vocabulary);
    assert_ok(dsc_tensor_alloc(dsc_queue_device(q), DSC_U8, 1, &bytes, &work));
    assert_ok(dsc_op_fill(q, 255, &work));
    return work;
}

static dsc_status forward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    (void)params;
    return dsc_op_embedding_forward(q, &t[0], &t[1], &t[2]);
}

static dsc_status backward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    dsc_tensor work = make_work(q, dsc_tensor_count(&t[0]), t[2].dim[0]);
    dsc_status status =
        dsc_op_embedding_backward(q, &t[0], &t[1], ((const embedding_case *)params)->beta, &work, &t[2]);
    assert_ok(dsc_queue_sync(q));
    dsc_tensor_free(&work);
    return status;
}

static void check_case(const embedding_case *c, void (*check)(trial *tr)) {
    trial tr;
    trial_start(&tr, "embedding_forward", forward_run, c);
    add_ids(&tr, c);
    trial_in(&tr, "table", SHAPE(c->vocabulary, c->features));
    trial_out(&tr, "y", 0, SHAPE(c->rows, c->features)); /* copies are exact */
    check(&tr);
    trial_start(&tr, "embedding_backward", backward_run, c);
    tr.linear = 1;
    tr.terms = (double)c->rows;
    add_ids(&tr, c);
    trial_in(&tr, "dy", SHAPE(c->rows, c->features));
    trial_beta(&tr, "dtable", 1, c->beta, SHAPE(c->vocabulary, c->features));
    trial_param(&tr);
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

/* Leading dimensions of ids and y; an id twice, and what is no id; then the gradient of it, with beta 0, 1 and 2. */
static void test_by_hand(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place ids = place_of(g, DSC_F32, SHAPE(2, 3, 1, 1), (const double[]){2, 0, 2, 3, 0.5, -1});
        place table = place_of(g, DSC_F32, SHAPE(3, 2), (const double[]){1, 2, 3, 4, 5, 6});
        place y = place_make(g, DSC_F32, SHAPE(2, 3, 1, 2));
        assert_ok(dsc_op_embedding_forward(g->q, &ids.t, &table.t, &y.t));
        place_expect(g, &y, (const double[]){5, 6, 1, 2, 5, 6, 0, 0, 0, 0, 0, 0}, "rows of the table");
        place_write(g, &y, (const double[]){1, 10, 2, 20, 4, 40, 8, 80, 16, 160, 32, 320});
        place_fill(g, &table, NAN);
        dsc_tensor work = make_work(g->q, 6, 3);
        assert_ok(dsc_op_embedding_backward(g->q, &ids.t, &y.t, 0, &work, &table.t));
        place_expect(g, &table, (const double[]){2, 20, 0, 0, 5, 50}, "the gradient");
        assert_ok(dsc_op_embedding_backward(g->q, &ids.t, &y.t, 1, &work, &table.t));
        place_expect(g, &table, (const double[]){4, 40, 0, 0, 10, 100}, "the gradient, added");
        place_write(g, &table, (const double[]){1, 1, 1, 1, 1, 1});
        assert_ok(dsc_op_embedding_backward(g->q, &ids.t, &y.t, 2, &work, &table.t));
        place_expect(g, &table, (const double[]){4, 22, 2, 2, 7, 52}, "the gradient, with beta 2");
        assert_ok(dsc_queue_sync(g->q));
        dsc_tensor_free(&work);
        place_free(&ids);
        place_free(&table);
        place_free(&y);
    }
}

/* <dy, embedding(table)> has, as the derivative by the table, what the backward pass gives. Exact, as all numbers are
 * small whole numbers. */
static void test_transpose(void **state) {
    (void)state;
    enum { ROWS = 400, V = 37, F = 6 };
    static const embedding_case c = {ROWS, V, F, OUTSIDE, 0, 0};
    double ids[ROWS], table[V * F], dy[ROWS * F], got[ROWS * F];
    fill_ids(&c, ids);
    random_integers(1, 9, V * F, table);
    random_integers(2, 9, ROWS * F, dy);
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place p[] = {place_of(g, DSC_F32, SHAPE(ROWS), ids), place_of(g, DSC_F32, SHAPE(ROWS, F), dy),
                     place_of(g, DSC_F32, SHAPE(V, F), table)};
        place y = place_make(g, DSC_F32, SHAPE(ROWS, F));
        double there = 0, back = 0;
        assert_ok(dsc_op_embedding_forward(g->q, &p[0].t, &p[2].t, &y.t));
        place_read(g, &y, got);
        for (int i = 0; i < ROWS * F; i++)
            there += got[i] * dy[i];
        dsc_tensor t[] = {p[0].t, p[1].t, p[2].t};
        assert_ok(backward_run(g->q, t, &c));
        place_read(g, &p[2], got);
        for (int i = 0; i < V * F; i++)
            back += got[i] * table[i];
        assert_true(there == back);
        for (int i = 0; i < 3; i++)
            place_free(&p[i]);
        place_free(&y);
    }
}

/* The bits of the gradient do not depend on the number of threads. */
static void test_threads(void **state) {
    (void)state;
    skip_on_chosen("threads are the cpu's");
    enum { ROWS = 900, V = 50, F = 100 };
    static const embedding_case c = {ROWS, V, F, REPEATED, 0, 0};
    double *values = test_array(ROWS * F, sizeof *values), *first = test_array(V * F, sizeof *first);
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        if (strncmp(g->label, "cpu,", 4) != 0)
            continue;
        fill_ids(&c, values);
        place ids = place_of(g, DSC_F32, SHAPE(ROWS), values), dtable = place_make(g, DSC_F32, SHAPE(V, F));
        random_values(1, ROWS * F, values);
        place dy = place_of(g, DSC_F32, SHAPE(ROWS, F), values);
        dsc_tensor t[] = {ids.t, dy.t, dtable.t};
        assert_ok(backward_run(g->q, t, &c));
        if (g->device->threads == 1)
            place_read(g, &dtable, first);
        else
            place_expect(g, &dtable, first, "the gradient with more threads");
        place_free(&ids);
        place_free(&dy);
        place_free(&dtable);
    }
    free(values);
    free(first);
}

/* Replayed on other ids, both passes give what calls give; only on devices that record. */
static void test_recording(void **state) {
    (void)state;
    enum { ROWS = 300, V = 20, F = 4 };
    static const embedding_case before = {ROWS, V, F, EQUAL, 0, 0}, after = {ROWS, V, F, OUTSIDE, 0, 0};
    double values[ROWS * F], want[V * F], rows[ROWS * F];
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        if (!dsc_device_records(g->device))
            continue;
        fill_ids(&before, values);
        place ids = place_of(g, DSC_F32, SHAPE(ROWS), values), y = place_make(g, DSC_F32, SHAPE(ROWS, F));
        random_values(1, V * F, values);
        place table = place_of(g, DSC_F32, SHAPE(V, F), values), d = place_make(g, DSC_F32, SHAPE(V, F));
        dsc_tensor work = make_work(g->q, ROWS, V);
        dsc_recording *recording = NULL;
        assert_ok(dsc_recording_begin(g->q));
        assert_ok(dsc_op_embedding_forward(g->q, &ids.t, &table.t, &y.t));
        assert_ok(dsc_op_embedding_backward(g->q, &ids.t, &y.t, 0, &work, &d.t));
        assert_ok(dsc_recording_end(g->q, &recording));
        fill_ids(&after, values);
        place_write(g, &ids, values);
        assert_ok(dsc_op_embedding_forward(g->q, &ids.t, &table.t, &y.t));
        assert_ok(dsc_op_embedding_backward(g->q, &ids.t, &y.t, 0, &work, &d.t));
        place_read(g, &y, rows);
        place_read(g, &d, want);
        place_fill(g, &y, NAN);
        place_fill(g, &d, NAN);
        assert_ok(dsc_recording_replay(recording, g->q));
        place_expect(g, &y, rows, "y of a replay");
        place_expect(g, &d, want, "dtable of a replay");
        dsc_recording_destroy(&recording);
        dsc_tensor_free(&work);
        place *all[] = {&ids, &y, &table, &d};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

/* The padding at the end of samples of 1 to 100 positions, in both types of ids. */
static void test_lengths(void **state) {
    (void)state;
    enum { N = 5, T = 100 };
    static const int positions[] = {1, 31, 32, 33, T};
    double ids[N * T], want[N];
    for (size_t k = 0; k < 2 * sizeof positions / sizeof positions[0]; k++) {
        int t = positions[k / 2], full[N] = {t, 0, 1, t / 2, t - 1};
        for (int n = 0; n < N; n++) {
            want[n] = full[n];
            for (int i = 0; i < t; i++) /* a negative number among the others is no padding */
                ids[n * t + i] = i >= full[n]                    ? (i % 2 ? -1 : NAN)
                                 : i + 1 < full[n] && i % 5 == 2 ? -1
                                                                 : i % 4;
        }
        for (int r = 0; r < rig_count; r++) {
            const rig *g = &rigs[r];
            place in = place_of(g, k % 2 ? DSC_F64 : DSC_F32, SHAPE(N, t, 1, 1), ids);
            place out = place_make(g, DSC_I32, SHAPE(N));
            assert_ok(dsc_op_sequence_lengths(g->q, &in.t, &out.t));
            place_expect(g, &out, want, "lengths");
            assert_fails(DSC_E_INVALID, "sequence_lengths: ids is i32",
                         dsc_op_sequence_lengths(g->q, &out.t, &out.t));
            assert_fails(DSC_E_INVALID, "sequence_lengths: lengths is",
                         dsc_op_sequence_lengths(g->q, &in.t, &in.t));
            place_free(&in);
            place_free(&out);
        }
    }
}

static void test_refusals(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place ids = place_make(g, DSC_F32, SHAPE(2, 3)), whole = place_make(g, DSC_I32, SHAPE(6));
        place table = place_make(g, DSC_F32, SHAPE(5, 4)), y = place_make(g, DSC_F32, SHAPE(6, 4));
        place less = place_make(g, DSC_F32, SHAPE(5, 4)), wide = place_make(g, DSC_F64, SHAPE(6, 4));
        dsc_tensor work = make_work(g->q, 6, 5), none = dsc_tensor_slice(&work, 0, 0);
        assert_fails(DSC_E_INVALID, "embedding_forward: ids is i32; fp32 or fp64 is expected",
                     dsc_op_embedding_forward(g->q, &whole.t, &table.t, &y.t));
        assert_fails(DSC_E_INVALID, "embedding_forward: table is missing",
                     dsc_op_embedding_forward(g->q, &ids.t, NULL, &y.t));
        assert_fails(DSC_E_INVALID, "embedding_forward: y has 20 numbers; 6 rows of 4 features are expected",
                     dsc_op_embedding_forward(g->q, &ids.t, &table.t, &less.t));
        assert_fails(DSC_E_INVALID, "embedding_forward: y is fp64; fp32 is expected",
                     dsc_op_embedding_forward(g->q, &ids.t, &table.t, &wide.t));
        assert_fails(DSC_E_INVALID, "y shares memory with table",
                     dsc_op_embedding_forward(g->q, &ids.t, &y.t, &y.t));
        assert_fails(DSC_E_INVALID,
                     "embedding_backward: dy has 20 numbers; 6 rows of 4 features are expected",
                     dsc_op_embedding_backward(g->q, &ids.t, &less.t, 0, &work, &table.t));
        assert_fails(DSC_E_INVALID, "embedding_backward: dtable is fp32; fp64 is expected",
                     dsc_op_embedding_backward(g->q, &ids.t, &wide.t, 0, &work, &table.t));
        if (!dsc_device_is_host(g->device))
            assert_fails(DSC_E_INVALID, "embedding_backward: work has 0 bytes",
                         dsc_op_embedding_backward(g->q, &ids.t, &y.t, 0, &none, &table.t));
        dsc_tensor_free(&work);
        place *all[] = {&ids, &whole, &table, &y, &less, &wide};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conformance), cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_transpose),   cmocka_unit_test(test_threads),
        cmocka_unit_test(test_recording),   cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_lengths),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
