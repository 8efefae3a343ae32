/* Pooling in windows and globally; the parameter-free shortcut. */
#include "device/trial.h"

#include <math.h>

typedef struct pool_case {
    dsc_pool_desc desc;
    int64_t n, h, w, c;
    double beta;
} pool_case;

static const pool_case cases[] = {
    {{DSC_POOL_MAX, 1, 1, 1, 1, 0, 0}, 1, 1, 1, 1, 0},
    {{DSC_POOL_AVG, 1, 1, 1, 1, 0, 0}, 1, 2, 1, 3, 1},
    {{DSC_POOL_MAX, 2, 2, 2, 2, 0, 0}, 2, 8, 6, 6, 0},
    {{DSC_POOL_AVG, 2, 2, 2, 2, 0, 0}, 2, 8, 6, 16, 0},
    {{DSC_POOL_MAX, 3, 3, 2, 2, 1, 1}, 2, 9, 10, 16, 1},
    {{DSC_POOL_AVG, 3, 3, 2, 2, 1, 1}, 2, 9, 10, 5, 1},
    {{DSC_POOL_MAX, 3, 2, 1, 3, 1, 0}, 1, 7, 8, 17, 0},
    {{DSC_POOL_AVG, 3, 2, 1, 3, 1, 0}, 1, 7, 8, 17, 0},
    {{DSC_POOL_MAX, 2, 2, 3, 3, 1, 1}, 1, 8, 8, 2, 1},
    {{DSC_POOL_AVG, 4, 4, 3, 3, 2, 2}, 1, 8, 8, 2, 1},
    {{DSC_POOL_MAX, 3, 3, 2, 2, 1, 1}, 3, 30, 30, 16, 0},
    {{DSC_POOL_AVG, 2, 2, 2, 2, 0, 0}, 3, 30, 30, 16, 1},
    {{DSC_POOL_MAX, 2, 2, 2, 2, 0, 0}, 2, 10, 14, 32, 1},  /* a U-Net's */
    {{DSC_POOL_MAX, 2, 2, 2, 2, 0, 0}, 1, 9, 7, 8, 0},     /* rows and columns that no window covers */
    {{DSC_POOL_MAX, 16, 16, 4, 4, 0, 0}, 1, 20, 24, 3, 0}, /* places up to 255 */
};
enum { CASES = sizeof cases / sizeof cases[0] };

static dsc_status max_forward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    return dsc_op_pool_forward(q, &((const pool_case *)params)->desc, &t[0], &t[1], &t[2]);
}

static dsc_status avg_forward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    return dsc_op_pool_forward(q, &((const pool_case *)params)->desc, &t[0], NULL, &t[1]);
}

/* The types of an index; every case is run with each of them. */
static const dsc_dtype index_types[] = {DSC_I32, DSC_U8};

static void test_pool_forward(void **state) {
    (void)state;
    for (int i = 0; i < 2 * CASES; i++) {
        const pool_case *c = &cases[i / 2];
        int is_max = c->desc.kind == DSC_POOL_MAX;
        int64_t oh = 0, ow = 0;
        assert_ok(dsc_pool_output(&c->desc, c->h, c->w, &oh, &ow));
        trial tr;
        trial_start(&tr, is_max ? "max pool_forward" : "average pool_forward",
                    is_max ? max_forward_run : avg_forward_run, c);
        tr.terms = (double)(c->desc.kh * c->desc.kw);
        trial_in(&tr, "x", SHAPE(c->n, c->h, c->w, c->c));
        if (is_max)
            trial_typed(&tr, "index", ROLE_OUT, index_types[i % 2], 0, SHAPE(c->n, oh, ow, c->c));
        trial_out(&tr, "y", is_max ? 0 : 1, SHAPE(c->n, oh, ow, c->c));
        trial_check(&tr);
        if (is_max) { /* where no backward follows */
            trial_start(&tr, "max pool_forward without index", avg_forward_run, c);
            trial_in(&tr, "x", SHAPE(c->n, c->h, c->w, c->c));
            trial_out(&tr, "y", 0, SHAPE(c->n, oh, ow, c->c));
            trial_check(&tr);
        }
    }
}

static dsc_status max_backward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const pool_case *c = params;
    return dsc_op_pool_backward(q, &c->desc, &t[2], &t[0], c->beta, &t[1]);
}

static dsc_status avg_backward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const pool_case *c = params;
    return dsc_op_pool_backward(q, &c->desc, NULL, &t[0], c->beta, &t[1]);
}

/* A place in the window of output row (or column) o that is inside the input. */
static int64_t inside(int64_t o, int64_t pick, int64_t kernel, int64_t stride, int64_t pad, int64_t size) {
    int64_t low = pad - o * stride > 0 ? pad - o * stride : 0;
    int64_t high = size - 1 + pad - o * stride < kernel - 1 ? size - 1 + pad - o * stride : kernel - 1;
    return low + pick % (high - low + 1);
}

static void fill_index(const pool_case *c, int64_t oh, int64_t ow, double *index) {
    for (int64_t i = 0; i < c->n * oh * ow * c->c; i++) {
        int64_t row = i / (c->c * ow) % oh, column = i / c->c % ow;
        int64_t r = inside(row, i, c->desc.kh, c->desc.stride_h, c->desc.pad_h, c->h);
        int64_t s = inside(column, i / 3, c->desc.kw, c->desc.stride_w, c->desc.pad_w, c->w);
        index[i] = (double)(r * c->desc.kw + s);
    }
}

static void test_pool_backward(void **state) {
    (void)state;
    for (int i = 0; i < 2 * CASES; i++) {
        const pool_case *c = &cases[i / 2];
        int is_max = c->desc.kind == DSC_POOL_MAX;
        int64_t oh = 0, ow = 0;
        assert_ok(dsc_pool_output(&c->desc, c->h, c->w, &oh, &ow));
        trial tr;
        trial_start(&tr, is_max ? "max pool_backward" : "average pool_backward",
                    is_max ? max_backward_run : avg_backward_run, c);
        tr.linear = 1;
        tr.terms = (double)(c->desc.kh * c->desc.kw);
        trial_in(&tr, "dy", SHAPE(c->n, oh, ow, c->c));
        trial_beta(&tr, "dx", 1, c->beta, SHAPE(c->n, c->h, c->w, c->c));
        if (is_max)
            fill_index(c, oh, ow,
                       trial_typed(&tr, "index", ROLE_IN, index_types[i % 2], 0, SHAPE(c->n, oh, ow, c->c)));
        trial_check(&tr);
    }
}

/* 3x3 image, windows of 2 at stride 1: a tie of fives, where the first wins; all negative under padding. */
static void test_by_hand(void **state) {
    (void)state;
    static const dsc_pool_desc max = {DSC_POOL_MAX, 2, 2, 1, 1, 0, 0}, avg = {DSC_POOL_AVG, 2, 2, 1, 1, 0, 0};
    static const dsc_pool_desc padded = {DSC_POOL_MAX, 3, 3, 3, 3, 1, 1},
                               half = {DSC_POOL_AVG, 2, 2, 2, 2, 1, 1};
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place x = place_of(g, DSC_F32, SHAPE(1, 3, 3, 1), (const double[]){1, 5, 5, 2, 5, 0, -1, -2, -3});
        place y = place_make(g, DSC_F32, SHAPE(1, 2, 2, 1)),
              index = place_make(g, DSC_I32, SHAPE(1, 2, 2, 1));
        place one = place_make(g, DSC_F32, SHAPE(1, 1, 1, 1)),
              place_one = place_make(g, DSC_I32, SHAPE(1, 1, 1, 1));
        assert_ok(dsc_op_pool_forward(g->q, &max, &x.t, &index.t, &y.t));
        place_expect(g, &y, (const double[]){5, 5, 5, 5}, "max pool");
        place_expect(g, &index, (const double[]){1, 0, 1, 0}, "max pool's index");
        place_write(g, &y, (const double[]){1, 10, 100, 1000});
        place_fill(g, &x, 1);
        assert_ok(dsc_op_pool_backward(g->q, &max, &index.t, &y.t, 1, &x.t));
        place_expect(g, &x, (const double[]){1, 12, 1, 1, 1101, 1, 1, 1, 1}, "max pool backwards");
        place_write(g, &x, (const double[]){1, 2, 3, 4, 5, 6, 7, 8, 9});
        assert_ok(dsc_op_pool_forward(g->q, &avg, &x.t, NULL, &y.t));
        place_expect(g, &y, (const double[]){3, 4, 6, 7}, "average pool");
        place_write(g, &y, (const double[]){4, 8, 12, 16});
        place_fill(g, &x, NAN);
        assert_ok(dsc_op_pool_backward(g->q, &avg, NULL, &y.t, 0, &x.t));
        place_expect(g, &x, (const double[]){1, 3, 2, 4, 10, 6, 3, 7, 4}, "average pool backwards");
        place_write(g, &x, (const double[]){-4, -3, -9, -2, -5, -9, -9, -9, -9});
        assert_ok(dsc_op_pool_forward(g->q, &padded, &x.t, &place_one.t, &one.t));
        place_expect(g, &one, (const double[]){-2}, "max pool of negative values");
        place_expect(g, &place_one, (const double[]){7}, "index with padding");
        assert_ok(dsc_op_pool_forward(g->q, &half, &x.t, NULL, &y.t));
        place_expect(g, &y, (const double[]){-1, -3, -2.75, -8}, "average pool, pads count");
        place *all[] = {&x, &y, &index, &one, &place_one};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

/* ---- global ---- */

static const int64_t global_shapes[][4] = {
    {1, 1, 1, 1}, {3, 2, 5, 7}, {4, 8, 8, 64}, {2, 20, 30, 40}, {130, 4, 4, 17}};

static dsc_status global_forward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    (void)params;
    return dsc_op_global_pool_forward(q, &t[0], &t[1]);
}

static dsc_status global_backward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const double *beta = params;
    return dsc_op_global_pool_backward(q, &t[0], *beta, &t[1]);
}

static void test_global_pool(void **state) {
    (void)state;
    static const double betas[] = {0, 1};
    for (size_t i = 0; i < sizeof global_shapes / sizeof global_shapes[0]; i++) {
        const int64_t *d = global_shapes[i];
        trial tr;
        trial_start(&tr, "global_pool_forward", global_forward_run, NULL);
        tr.linear = 1;
        tr.terms = (double)(d[1] * d[2]);
        trial_in(&tr, "x", 4, d);
        trial_out(&tr, "y", 1, SHAPE(d[0], d[3]));
        trial_check(&tr);
        for (int b = 0; b < 2; b++) {
            trial_start(&tr, "global_pool_backward", global_backward_run, &betas[b]);
            tr.linear = 1;
            trial_in(&tr, "dy", SHAPE(d[0], d[3]));
            trial_beta(&tr, "dx", 1, betas[b], 4, d);
            trial_check(&tr);
        }
    }
}

/* ---- shortcut ---- */

typedef struct shortcut_case {
    int64_t stride, n, h, w, c, k;
    double beta;
} shortcut_case;

static const shortcut_case shortcut_cases[] = {
    {1, 1, 1, 1, 1, 1, 0}, {2, 2, 8, 8, 16, 32, 0},  {2, 1, 7, 5, 3, 6, 1},
    {1, 2, 4, 4, 4, 9, 1}, {3, 2, 5, 10, 17, 40, 0},
};

static dsc_status shortcut_forward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    return dsc_op_shortcut_forward(q, ((const shortcut_case *)params)->stride, &t[0], &t[1]);
}

static dsc_status shortcut_backward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const shortcut_case *c = params;
    return dsc_op_shortcut_backward(q, c->stride, &t[0], c->beta, &t[1]);
}

static void test_shortcut(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shortcut_cases / sizeof shortcut_cases[0]; i++) {
        const shortcut_case *c = &shortcut_cases[i];
        int64_t oh = (c->h + c->stride - 1) / c->stride, ow = (c->w + c->stride - 1) / c->stride;
        trial tr;
        trial_start(&tr, "shortcut_forward", shortcut_forward_run, c);
        trial_in(&tr, "x", SHAPE(c->n, c->h, c->w, c->c));
        trial_out(&tr, "y", 0, SHAPE(c->n, oh, ow, c->k));
        trial_check(&tr);
        trial_start(&tr, "shortcut_backward", shortcut_backward_run, c);
        trial_in(&tr, "dy", SHAPE(c->n, oh, ow, c->k));
        trial_beta(&tr, "dx", 2, c->beta, SHAPE(c->n, c->h, c->w, c->c));
        trial_check(&tr);
    }
}

/* One channel becomes three: zeros on both sides; every second pixel. */
static void test_shortcut_by_hand(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place x = place_of(g, DSC_F32, SHAPE(1, 2, 3, 1), (const double[]){1, 2, 3, 4, 5, 6});
        place y = place_make(g, DSC_F32, SHAPE(1, 1, 2, 3));
        assert_ok(dsc_op_shortcut_forward(g->q, 2, &x.t, &y.t));
        place_expect(g, &y, (const double[]){0, 1, 0, 0, 3, 0}, "shortcut");
        place_write(g, &y, (const double[]){1, 2, 3, 4, 5, 6});
        assert_ok(dsc_op_shortcut_backward(g->q, 2, &y.t, 0, &x.t));
        place_expect(g, &x, (const double[]){2, 0, 5, 0, 0, 0}, "shortcut backwards");
        place_free(&x);
        place_free(&y);
    }
}

static void test_refusals(void **state) {
    (void)state;
    static const dsc_pool_desc good = {DSC_POOL_MAX, 2, 2, 2, 2, 0, 0},
                               avg = {DSC_POOL_AVG, 2, 2, 2, 2, 0, 0};
    int64_t oh = 0, ow = 0;
    dsc_pool_desc d = good;
    d.pad_w = 2;
    assert_fails(DSC_E_INVALID, "pool: 2 pads for a kernel of 2 in width; 0 to 1",
                 dsc_pool_output(&d, 4, 4, &oh, &ow));
    d = good;
    d.stride_h = 0;
    assert_fails(DSC_E_INVALID, "stride 0 in height", dsc_pool_output(&d, 4, 4, &oh, &ow));
    assert_fails(DSC_E_INVALID, "reaches over 2 elements in width", dsc_pool_output(&good, 4, 1, &oh, &ow));
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place x = place_make(g, DSC_F32, SHAPE(1, 4, 4, 2)), y = place_make(g, DSC_F32, SHAPE(1, 2, 2, 2));
        place index = place_make(g, DSC_I32, SHAPE(1, 2, 2, 2)), flat = place_make(g, DSC_F32, SHAPE(1, 2));
        assert_fails(DSC_E_INVALID, "pool_forward: y is [1,2]; [1,2,2,2] is expected",
                     dsc_op_pool_forward(g->q, &good, &x.t, NULL, &flat.t));
        assert_fails(DSC_E_INVALID, "index is fp32; i32 is expected",
                     dsc_op_pool_forward(g->q, &good, &x.t, &y.t, &y.t));
        assert_fails(DSC_E_INVALID, "an average has no index",
                     dsc_op_pool_forward(g->q, &avg, &x.t, &index.t, &y.t));
        assert_fails(DSC_E_INVALID, "pool_backward: index is missing",
                     dsc_op_pool_backward(g->q, &good, NULL, &y.t, 0, &x.t));
        assert_fails(DSC_E_INVALID, "global_pool_forward: y is [1,2,2,2]; [1,2] is expected",
                     dsc_op_global_pool_forward(g->q, &x.t, &y.t));
        assert_fails(DSC_E_INVALID, "shortcut_forward: the stride is 0",
                     dsc_op_shortcut_forward(g->q, 0, &x.t, &y.t));
        assert_fails(DSC_E_INVALID, "shortcut_forward: y is [1,2,2,2]; [1,4,4,2] is expected",
                     dsc_op_shortcut_forward(g->q, 1, &x.t, &y.t));
        place *all[] = {&x, &y, &index, &flat};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_forward), cmocka_unit_test(test_pool_backward),
        cmocka_unit_test(test_by_hand),      cmocka_unit_test(test_global_pool),
        cmocka_unit_test(test_shortcut),     cmocka_unit_test(test_shortcut_by_hand),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
