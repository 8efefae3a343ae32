/* Numbers that are moved: weights with strides (join_batch, split_batch), images (nhwc_batch), packed triangles
 * (tri_unpack_batch), and copies in other types (convert_batch). All values are small whole numbers, so results
 * are exact. */
#include "device/rig.h"

#include <math.h>
#include <stdlib.h>

static void free_places(place *const *places, size_t count) {
    for (size_t i = 0; i < count; i++)
        place_free(places[i]);
}

#define FREE_PLACES(...)                                                                                     \
    free_places((place *const[]){__VA_ARGS__}, sizeof((place *const[]){__VA_ARGS__}) / sizeof(place *))

enum { TYPES = 2 };
static const dsc_dtype types[TYPES] = {DSC_F32, DSC_F64};

/* Weights somewhere in memory: [rows, positions, channels] as D has them, with these strides. */
typedef struct stride_case {
    int64_t rows, positions, channels, row_stride, position_stride, channel_stride;
    int bias;
} stride_case;

static const stride_case strides[] = {
    {5, 9, 7, 63, 7, 1, 0},      /* as D */
    {5, 9, 7, 63, 1, 9, 0},      /* OIHW */
    {5, 9, 7, 63, 1, 9, 1},      /* with a bias */
    {33, 1, 65, 1, 0, 33, 1},    /* [in, out] */
    {4, 6, 3, 1, 12, 4, 0},      /* HWIO */
    {3, 4, 5, 50, 11, 2, 1},     /* with gaps */
    {1, 1, 1, 0, 0, 0, 1},       /* one number */
    {64, 49, 3, 147, 1, 49, 0},  /* large enough for several blocks */
    {3, 1, 300, 300, 300, 1, 1}, /* plain */
    {0, 3, 5, 15, 5, 1, 0},      /* empty */
};
enum { STRIDES = sizeof strides / sizeof strides[0] };

static int64_t stride_place(const stride_case *c, int64_t i, int64_t j) {
    return i * c->row_stride + j / c->channels * c->position_stride + j % c->channels * c->channel_stride;
}

/* Joins item number `number` of a batch of `count` alike, and splits it; what lies between its numbers stays. */
static void check_strides(const rig *r, dsc_dtype type, const stride_case *c, int64_t count) {
    int64_t n = c->positions * c->channels, width = n + c->bias;
    int64_t span = c->rows > 0 ? stride_place(c, c->rows - 1, n - 1) + 1 : 0;
    double *w = test_array(span, sizeof *w), *b = test_array(c->rows + 1, sizeof *b);
    double *d = test_array(c->rows * width + 1, sizeof *d);
    place *pw = test_array(count, sizeof *pw), *pb = test_array(count, sizeof *pb);
    place *pd = test_array(count, sizeof *pd);
    dsc_join_item *items = test_array(count, sizeof *items);
    random_integers(1, 1000, span, w);
    random_integers(2, 1000, c->rows, b);
    for (int64_t i = 0; i < c->rows; i++)
        for (int64_t j = 0; j < width; j++)
            d[i * width + j] = j < n ? w[stride_place(c, i, j)] : b[i];
    for (int64_t i = 0; i < count; i++) {
        pw[i] = place_of(r, type, SHAPE(span), w);
        pb[i] = place_of(r, type, SHAPE(c->rows), b);
        pd[i] = place_make(r, type, SHAPE(c->rows, width));
        items[i] = (dsc_join_item){.w = dsc_tensor_view(r->device, pw[i].t.data, type, SHAPE(c->rows, n)),
                                   .b = pb[i].t,
                                   .d = pd[i].t,
                                   .channels = c->channels,
                                   .row_stride = c->row_stride,
                                   .position_stride = c->position_stride,
                                   .channel_stride = c->channel_stride};
        if (!c->bias)
            items[i].b.data = NULL;
    }
    assert_ok(dsc_op_join_batch(r->q, items, count));
    for (int64_t i = 0; i < count; i++)
        place_expect(r, &pd[i], d, "join_batch with strides: d");
    double factor = -0.5;
    place scale = place_of(r, DSC_F64, SHAPE(1), &factor);
    assert_ok(dsc_op_split_batch(r->q, &scale.t, items, count));
    for (int64_t i = 0; i < c->rows; i++) {
        for (int64_t j = 0; j < n; j++)
            w[stride_place(c, i, j)] *= factor;
        b[i] *= c->bias ? factor : 1;
    }
    for (int64_t i = 0; i < count; i++) {
        place_expect(r, &pw[i], w, "split_batch with strides: w");
        place_expect(r, &pb[i], b, "split_batch with strides: b");
        FREE_PLACES(&pw[i], &pb[i], &pd[i]);
    }
    place_free(&scale);
    free(w);
    free(b);
    free(d);
    free(pw);
    free(pb);
    free(pd);
    free(items);
}

static void test_join_strides(void **state) {
    (void)state;
    for (int i = 0; i < rig_count; i++) {
        const rig *r = &rigs[i];
        for (int t = 0; t < TYPES; t++) {
            for (int s = 0; s < STRIDES; s++)
                check_strides(r, types[t], &strides[s], 1);
            check_strides(r, types[t], &strides[2], 130);
        }
        place w = place_make(r, DSC_F32, SHAPE(2, 6)), d = place_make(r, DSC_F32, SHAPE(2, 6));
        dsc_join_item item = {.w = w.t, .d = d.t, .channels = 4, .row_stride = 6, .channel_stride = 1};
        assert_fails(DSC_E_INVALID, "item 0: join_batch: 4 channels do not divide the 6 columns of w",
                     dsc_op_join_batch(r->q, &item, 1));
        item.channels = 3;
        item.row_stride = -1;
        assert_fails(DSC_E_INVALID, "split_batch: strides -1, 0, 1 of w: must be in 0..2^31 - 1",
                     dsc_op_split_batch(r->q, NULL, &item, 1));
        /* The scale lies in a gap between the rows of w. */
        place gaps = place_make(r, DSC_F64, SHAPE(8)), rows = place_make(r, DSC_F64, SHAPE(2, 2));
        item =
            (dsc_join_item){.w = dsc_tensor_view(r->device, gaps.t.data, DSC_F64, SHAPE(2, 2)), .d = rows.t};
        item.channels = 2;
        item.row_stride = 6;
        item.channel_stride = 1;
        dsc_tensor scale = dsc_tensor_slice(&gaps.t, 4, 1);
        assert_fails(DSC_E_INVALID, "split_batch: w shares memory with scale",
                     dsc_op_split_batch(r->q, &scale, &item, 1));
        FREE_PLACES(&w, &d, &gaps, &rows);
    }
}

/* Images of any type, element by element the same in the other order. */
static void check_nhwc(const rig *r, const dsc_dtype *each, const int64_t (*dims)[4], int64_t count) {
    dsc_nhwc_item *items = test_array(count, sizeof *items);
    place *x = test_array(count, sizeof *x), *y = test_array(count, sizeof *y);
    double **want = test_array(count, sizeof *want);
    for (int64_t i = 0; i < count; i++) {
        int64_t n = dims[i][0], c = dims[i][1], h = dims[i][2], w = dims[i][3];
        double *from = test_array(n * c * h * w + 1, sizeof *from);
        want[i] = test_array(n * c * h * w + 1, sizeof **want);
        random_integers((uint64_t)i + 1, 128, n * c * h * w, from);
        for (int64_t e = 0; e < n * c * h * w; e++) {
            int64_t position = e % (h * w), channel = e / (h * w) % c, image = e / (h * w * c);
            want[i][(image * h * w + position) * c + channel] = from[e];
        }
        x[i] = place_of(r, each[i], SHAPE(n, c, h, w), from);
        y[i] = place_make(r, each[i], SHAPE(n, h, w, c));
        items[i] = (dsc_nhwc_item){x[i].t, y[i].t};
        free(from);
    }
    assert_ok(dsc_op_nhwc_batch(r->q, items, count));
    for (int64_t i = 0; i < count; i++) {
        place_expect(r, &y[i], want[i], "nhwc_batch: y");
        FREE_PLACES(&x[i], &y[i]);
        free(want[i]);
    }
    free(want);
    free(items);
    free(x);
    free(y);
}

static void test_nhwc_batch(void **state) {
    (void)state;
    static const int64_t dims[][4] = {{2, 3, 5, 7}, {1, 64, 8, 8},   {3, 70, 7, 7}, {1, 1, 4, 4},
                                      {2, 5, 1, 1}, {1, 130, 3, 23}, {1, 2, 40, 9}, {2, 33, 6, 11},
                                      {1, 4, 2, 2}, {2, 65, 5, 13}};
    static const dsc_dtype mixed[] = {DSC_F32, DSC_BF16, DSC_F16, DSC_F64, DSC_F32,
                                      DSC_F16, DSC_F64,  DSC_F32, DSC_F32, DSC_BF16};
    for (int i = 0; i < rig_count; i++) {
        const rig *r = &rigs[i];
        check_nhwc(r, mixed, dims, 0);
        check_nhwc(r, mixed, dims, 10); /* more than one launch */
        check_nhwc(r, mixed, dims + 2, 2);
        check_nhwc(r, mixed + 1, dims + 5, 4);
        check_nhwc(r, mixed, (const int64_t[][4]){{1, 2, 3, 3}, {0, 2, 3, 3}, {2, 70, 2, 3}}, 3);
        place x = place_make(r, DSC_F32, SHAPE(1, 2, 3, 4)), y = place_make(r, DSC_F32, SHAPE(1, 2, 3, 4));
        place whole = place_make(r, DSC_I32, SHAPE(1, 2, 3, 4));
        assert_fails(DSC_E_INVALID, "item 0: nhwc_batch: y is [1,2,3,4]; [1,3,4,2] is expected",
                     dsc_op_nhwc_batch(r->q, &(dsc_nhwc_item){x.t, y.t}, 1));
        assert_fails(DSC_E_INVALID, "nhwc_batch: x is i32; fp32, fp64, bf16 or fp16 is expected",
                     dsc_op_nhwc_batch(r->q, &(dsc_nhwc_item){whole.t, y.t}, 1));
        FREE_PLACES(&x, &y, &whole);
    }
}

/* ---- triangles ---- */

static void check_unpack(const rig *r, dsc_dtype type, const int64_t *sizes, int64_t count) {
    dsc_unpack_item *items = test_array(count, sizeof *items);
    place *p = test_array(count, sizeof *p), *a = test_array(count, sizeof *a);
    double **want = test_array(count, sizeof *want);
    for (int64_t k = 0; k < count; k++) {
        int64_t n = sizes[k], packed = n * (n + 1) / 2, next = 0;
        double *from = test_array(packed + 1, sizeof *from);
        want[k] = test_array(n * n + 1, sizeof **want);
        random_integers((uint64_t)k + 1, 1000, packed, from);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j <= i; j++, next++)
                want[k][i * n + j] = want[k][j * n + i] = from[next];
        p[k] = place_of(r, type, SHAPE(packed), from);
        a[k] = place_make(r, type, SHAPE(n, n));
        items[k] = (dsc_unpack_item){p[k].t, a[k].t};
        free(from);
    }
    assert_ok(dsc_op_tri_unpack_batch(r->q, items, count));
    for (int64_t k = 0; k < count; k++) {
        place_expect(r, &a[k], want[k], "tri_unpack_batch: a");
        FREE_PLACES(&p[k], &a[k]);
        free(want[k]);
    }
    free(want);
    free(items);
    free(p);
    free(a);
}

static void test_unpack_batch(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 2, 31, 32, 33, 64, 65, 200, 5, 500, 96, 10, 0, 3};
    int64_t many[230];
    for (int i = 0; i < 230; i++)
        many[i] = 1 + i * 7 % 40;
    for (int i = 0; i < rig_count; i++) {
        const rig *r = &rigs[i];
        for (int t = 0; t < TYPES; t++) {
            check_unpack(r, types[t], sizes, 0);
            check_unpack(r, types[t], sizes, 12);
            check_unpack(r, types[t], sizes + 10, 4); /* one of them empty */
            check_unpack(r, types[t], many, 230);     /* several launches */
        }
        place a = place_make(r, DSC_F32, SHAPE(3, 3)), p = place_make(r, DSC_F32, SHAPE(6));
        place wide = place_make(r, DSC_F64, SHAPE(6));
        const dsc_unpack_item wrong[] = {{p.t, a.t}, {a.t, a.t}, {wide.t, a.t}};
        assert_fails(DSC_E_INVALID, "item 1: tri_unpack_batch: p is [3,3]; [6] is expected",
                     dsc_op_tri_unpack_batch(r->q, wrong, 2));
        assert_fails(DSC_E_INVALID, "item 0: tri_unpack_batch: p is fp64; fp32 is expected",
                     dsc_op_tri_unpack_batch(r->q, wrong + 2, 1));
        FREE_PLACES(&a, &p, &wide);
    }
}

/* ---- copies in other types ---- */

typedef struct convert_case {
    dsc_dtype from, to;
    int64_t count, skip; /* skip: so many numbers before the first, so that it is not aligned */
    int clamp;
} convert_case;

static void check_convert(const rig *r, const convert_case *cases, int64_t count) {
    dsc_convert_item *items = test_array(count, sizeof *items);
    place *src = test_array(count, sizeof *src), *dst = test_array(count, sizeof *dst);
    for (int64_t k = 0; k < count; k++) {
        const convert_case *c = &cases[k];
        double *values = test_array(c->skip + c->count, sizeof *values);
        random_integers((uint64_t)k + 1, 128, c->skip + c->count, values); /* all four types hold these */
        src[k] = place_of(r, c->from, SHAPE(c->skip + c->count), values);
        dst[k] = place_make(r, c->to, SHAPE(c->skip + c->count));
        place_fill(r, &dst[k], 77);
        items[k] = (dsc_convert_item){dsc_tensor_slice(&src[k].t, c->skip, c->count),
                                      dsc_tensor_slice(&dst[k].t, c->skip, c->count), c->clamp};
        free(values);
    }
    assert_ok(dsc_op_convert_batch(r->q, items, count));
    for (int64_t k = 0; k < count; k++) {
        const convert_case *c = &cases[k];
        double *want = test_array(c->skip + c->count, sizeof *want);
        random_integers((uint64_t)k + 1, 128, c->skip + c->count, want);
        for (int64_t i = 0; i < c->skip + c->count; i++)
            want[i] = i < c->skip ? 77 : c->clamp && want[i] < 0 ? 0 : want[i];
        place_expect(r, &dst[k], want, "convert_batch: dst");
        FREE_PLACES(&src[k], &dst[k]);
        free(want);
    }
    free(items);
    free(src);
    free(dst);
}

/* Every pair of types in every size, all in one batch; and the same with clamps where these are possible. */
static void check_pairs(const rig *r) {
    static const dsc_dtype all[] = {DSC_F32, DSC_F64, DSC_BF16, DSC_F16};
    static const int64_t sizes[] = {1, 3, 8, 257, 1024, 1031, 2500};
    convert_case cases[16 * 7 * 2];
    int64_t count = 0;
    for (int i = 0; i < 16 * 7 * 2; i++) {
        dsc_dtype from = all[i / 4 % 4], to = all[i % 4];
        int clamp = i % 3 == 0 && from == to && (from == DSC_F32 || from == DSC_F64);
        cases[count++] = (convert_case){from, to, sizes[i / 16 % 7], i / (16 * 7), clamp};
    }
    check_convert(r, cases, count);
}

static void check_clamp(const rig *r, dsc_dtype type) {
    static const double values[] = {-1, 2, NAN, -INFINITY, INFINITY, 0}, want[] = {0, 2, NAN, 0, INFINITY, 0};
    place x = place_of(r, type, SHAPE(6), values), y = place_make(r, type, SHAPE(6));
    const dsc_convert_item copy = {x.t, y.t, 1}, in_place = {x.t, x.t, 1}, nothing = {y.t, y.t, 0};
    assert_ok(dsc_op_convert_batch(r->q, &copy, 1));
    assert_ok(dsc_op_convert_batch(r->q, &in_place, 1));
    assert_ok(dsc_op_convert_batch(r->q, &nothing, 1));
    for (int i = 0; i < 6; i++) {
        double got[2] = {place_get(r, &x, i), place_get(r, &y, i)};
        assert_true(isnan(want[i]) ? isnan(got[0]) && isnan(got[1]) : got[0] == want[i] && got[1] == want[i]);
    }
    FREE_PLACES(&x, &y);
}

static void test_convert_batch(void **state) {
    (void)state;
    static const convert_case plain[] = {{DSC_F32, DSC_F32, 40000, 0, 0}, {DSC_F32, DSC_BF16, 5, 0, 0},
                                         {DSC_F32, DSC_F32, 0, 0, 1},     {DSC_F32, DSC_F32, 9, 1, 1},
                                         {DSC_F16, DSC_F32, 40001, 0, 0}, {DSC_F64, DSC_F64, 33, 0, 1}};
    convert_case many[250];
    for (int i = 0; i < 250; i++)
        many[i] = (convert_case){DSC_F32, i % 5 ? DSC_F32 : DSC_BF16, 1 + i * 3, 0, i % 5 == 1};
    for (int i = 0; i < rig_count; i++) {
        const rig *r = &rigs[i];
        check_pairs(r);
        check_convert(r, many, 250); /* several launches */
        check_convert(r, plain, 6);  /* one of them empty */
        check_convert(r, plain, 0);
        check_clamp(r, DSC_F32);
        check_clamp(r, DSC_F64);
        place x = place_make(r, DSC_F32, SHAPE(4)), y = place_make(r, DSC_F64, SHAPE(4));
        place whole = place_make(r, DSC_I32, SHAPE(4)), three = place_make(r, DSC_F32, SHAPE(3));
        const dsc_convert_item wrong[] = {{x.t, y.t, 1}, {whole.t, whole.t, 0}, {x.t, three.t, 0}};
        assert_fails(DSC_E_INVALID, "item 0: convert_batch: fp32 to fp64; with clamp two of fp32, or of fp64",
                     dsc_op_convert_batch(r->q, wrong, 1));
        assert_fails(DSC_E_INVALID, "item 0: convert_batch: i32 to i32; two of fp32",
                     dsc_op_convert_batch(r->q, wrong + 1, 1));
        assert_fails(DSC_E_INVALID, "item 0: convert_batch: dst", dsc_op_convert_batch(r->q, wrong + 2, 1));
        FREE_PLACES(&x, &y, &whole, &three);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_join_strides),
        cmocka_unit_test(test_nhwc_batch),
        cmocka_unit_test(test_unpack_batch),
        cmocka_unit_test(test_convert_batch),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
