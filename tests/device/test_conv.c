/* Convolution: its three passes and patch extraction. */
#include "device/trial.h"

#include <math.h>
#include <stdlib.h>

typedef struct conv_case {
    dsc_conv_desc desc; /* its type is set by the trial */
    double beta;
    int bias;
} conv_case;

/*   n, h, w, c   k   kh kw  stride  pad    dil   groups   beta bias */
static const conv_case cases[] = {
    {CONV(DSC_F32, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0, 0},
    {CONV(DSC_F32, 2, 5, 7, 3, 4, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 1},   /* 3x3, same size */
    {CONV(DSC_F32, 3, 8, 8, 16, 32, 3, 3, 2, 2, 1, 1, 1, 1, 1), 1, 0}, /* a stage's first conv */
    {CONV(DSC_F32, 2, 8, 8, 16, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1), 1, 0}, /* vector width */
    {CONV(DSC_F32, 2, 6, 6, 8, 24, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0, 0},  /* 1x1 */
    {CONV(DSC_F32, 2, 7, 5, 6, 10, 1, 1, 2, 2, 0, 0, 1, 1, 1), 1, 1},  /* 1x1 with stride */
    {CONV(DSC_F32, 2, 11, 9, 3, 8, 5, 5, 1, 1, 0, 0, 1, 1, 1), 0, 1},  /* lenet's */
    {CONV(DSC_F32, 8, 32, 32, 3, 6, 5, 5, 1, 1, 2, 2, 1, 1, 1), 0, 1},
    {CONV(DSC_F32, 12, 16, 16, 6, 16, 5, 5, 1, 1, 0, 0, 1, 1, 1), 1, 1},
    {CONV(DSC_F32, 1, 15, 17, 3, 7, 7, 7, 2, 2, 3, 3, 1, 1, 1), 0, 0},  /* an ImageNet stem */
    {CONV(DSC_F32, 2, 9, 8, 5, 3, 3, 2, 2, 3, 1, 0, 1, 1, 1), 1, 1},    /* nothing square */
    {CONV(DSC_F32, 1, 10, 11, 4, 6, 3, 3, 1, 2, 2, 1, 2, 3, 1), 0, 1},  /* dilation */
    {CONV(DSC_F32, 2, 6, 6, 8, 12, 3, 3, 1, 1, 1, 1, 1, 1, 4), 1, 1},   /* groups */
    {CONV(DSC_F32, 2, 7, 7, 6, 6, 3, 3, 2, 2, 1, 1, 1, 1, 6), 0, 0},    /* depthwise */
    {CONV(DSC_F32, 1, 8, 9, 4, 6, 3, 3, 2, 1, 2, 2, 2, 2, 2), 1, 1},    /* all of it */
    {CONV(DSC_F32, 1, 3, 3, 2, 2, 3, 3, 1, 1, 0, 0, 1, 1, 1), 0, 1},    /* one output */
    {CONV(DSC_F32, 1, 2, 2, 1, 1, 4, 4, 3, 3, 1, 1, 1, 1, 1), 0, 0},    /* kernel larger than the input */
    {CONV(DSC_F32, 1, 4, 4, 2, 3, 1, 1, 1, 1, 2, 2, 1, 1, 1), 1, 0},    /* outputs from padding alone */
    {CONV(DSC_F32, 4, 26, 26, 16, 8, 3, 3, 1, 1, 1, 1, 1, 1, 1), 0, 1}, /* enough for several threads */
    {CONV(DSC_F32, 2, 33, 37, 32, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0, 1}, /* the end of a U-Net */
    {CONV(DSC_F32, 1, 3, 5, 16, 2, 1, 1, 1, 1, 0, 0, 1, 1, 1), 1, 1},   /* 1x1, few outputs */
    {CONV(DSC_F32, 2, 9, 11, 24, 3, 1, 1, 1, 1, 0, 0, 1, 1, 1), 1, 0},
    {CONV(DSC_F32, 3, 7, 7, 320, 8, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0, 1},
    {CONV(DSC_F32, 1, 1, 1, 1024, 5, 1, 1, 1, 1, 0, 0, 1, 1, 1), 1, 1},
};
enum { CASES = sizeof cases / sizeof cases[0] };

typedef enum pass { FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT } pass;

/* Plans (forward passes with a bias: for that pass alone), runs one pass in a workspace full of NaN, and
 * checks the workspace's guards. */
static dsc_status run_pass(pass which, dsc_queue *q, dsc_tensor *t, const conv_case *c) {
    rig r = {.device = dsc_queue_device(q), .q = q, .label = "conv"};
    dsc_conv_desc desc = c->desc;
    desc.dtype = t[0].dtype;
    dsc_conv *conv;
    if (which == FORWARD && c->bias)
        assert_ok(dsc_conv_create_forward(r.device, &desc, &conv));
    else
        assert_ok(dsc_conv_create(r.device, &desc, &conv));
    place work = place_make(&r, DSC_U8, SHAPE((int64_t)dsc_conv_workspace(conv)));
    place_fill(&r, &work, 255);
    dsc_status status = DSC_OK;
    if (which == FORWARD)
        status =
            dsc_op_conv_forward(q, conv, &t[0], &t[1], c->bias ? &t[2] : NULL, &work.t, &t[c->bias ? 3 : 2]);
    else if (which == BACKWARD_DATA)
        status = dsc_op_conv_backward_data(q, conv, &t[0], &t[1], c->beta, &work.t, &t[2]);
    else
        status = dsc_op_conv_backward_weight(q, conv, &t[0], &t[1], c->beta, &work.t, &t[2]);
    if (status == DSC_OK)
        place_check_guards(&r, &work, "conv's work");
    place_free(&work);
    dsc_conv_destroy(&conv);
    return status;
}

static dsc_status forward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    return run_pass(FORWARD, q, t, params);
}

static dsc_status backward_data_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    return run_pass(BACKWARD_DATA, q, t, params);
}

static dsc_status backward_weight_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    return run_pass(BACKWARD_WEIGHT, q, t, params);
}

typedef struct conv_shapes {
    int64_t x[4], w[4], y[4];
} conv_shapes;

static conv_shapes shapes_of(const dsc_conv_desc *d) {
    int64_t oh = 0, ow = 0;
    assert_ok(dsc_conv_output(d, &oh, &ow));
    return (conv_shapes){
        {d->n, d->shape.in_h, d->shape.in_w, d->shape.in_c},
        {d->shape.out_c, d->shape.kernel_h, d->shape.kernel_w, d->shape.in_c / d->shape.groups},
        {d->n, oh, ow, d->shape.out_c}};
}

static void test_forward(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        const dsc_conv_desc *d = &cases[i].desc;
        conv_shapes s = shapes_of(d);
        char name[40];
        snprintf(name, sizeof name, "conv_forward case %d", i);
        trial tr;
        trial_start(&tr, name, forward_run, &cases[i]);
        tr.linear = tr.conv = 1;
        tr.terms = (double)(d->shape.kernel_h * d->shape.kernel_w * d->shape.in_c / d->shape.groups + 1);
        trial_in(&tr, "x", 4, s.x);
        trial_in(&tr, "w", 4, s.w);
        if (cases[i].bias)
            trial_in(&tr, "bias", SHAPE(d->shape.out_c));
        trial_out(&tr, "y", 1, 4, s.y);
        trial_check(&tr);
    }
}

static void test_backward_data(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        const dsc_conv_desc *d = &cases[i].desc;
        conv_shapes s = shapes_of(d);
        char name[40];
        snprintf(name, sizeof name, "conv_backward_data case %d", i);
        trial tr;
        trial_start(&tr, name, backward_data_run, &cases[i]);
        tr.linear = tr.conv = 1;
        tr.terms = (double)(d->shape.kernel_h * d->shape.kernel_w * d->shape.out_c / d->shape.groups + 1);
        trial_in(&tr, "w", 4, s.w);
        trial_in(&tr, "dy", 4, s.y);
        trial_beta(&tr, "dx", 1, cases[i].beta, 4, s.x);
        trial_check(&tr);
    }
}

static void test_backward_weight(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        conv_shapes s = shapes_of(&cases[i].desc);
        char name[40];
        snprintf(name, sizeof name, "conv_backward_weight case %d", i);
        trial tr;
        trial_start(&tr, name, backward_weight_run, &cases[i]);
        tr.linear = tr.conv = 1;
        tr.terms = (double)(s.y[0] * s.y[1] * s.y[2] + 1);
        trial_in(&tr, "x", 4, s.x);
        trial_in(&tr, "dy", 4, s.y);
        trial_beta(&tr, "dw", 1, cases[i].beta, 4, s.w);
        trial_check(&tr);
    }
}

/* ---- patches: exact ---- */

typedef struct patches_case {
    dsc_conv_desc desc;
    int64_t group, first;
} patches_case;

static dsc_status patches_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const patches_case *c = params;
    dsc_conv_desc desc = c->desc;
    desc.dtype = t[0].dtype;
    return dsc_op_patches(q, &desc, &t[0], c->group, c->first, &t[1]);
}

static void check_patches(const dsc_conv_desc *d, int64_t group, int64_t first, int64_t rows, int ones) {
    patches_case c = {*d, group, first};
    conv_shapes s = shapes_of(d);
    trial tr;
    trial_start(&tr, "patches", patches_run, &c);
    trial_in(&tr, "x", 4, s.x);
    trial_out(&tr, "out", 0,
              SHAPE(rows, d->shape.kernel_h * d->shape.kernel_w * d->shape.in_c / d->shape.groups + ones));
    trial_check(&tr);
}

static void test_patches(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        const dsc_conv_desc *d = &cases[i].desc;
        conv_shapes s = shapes_of(d);
        int64_t all = s.y[0] * s.y[1] * s.y[2];
        check_patches(d, 0, 0, all, 0);
        check_patches(d, d->shape.groups - 1, all / 3, all - all / 3, 1);
        check_patches(d, 0, all - 1, 1, 1);
        check_patches(d, 0, all / 2, 0, 0);
    }
}

/* ---- by hand ---- */

/* x = 1..9 as a 3x3 image, w = [1 2; 3 4], bias 10. */
static void test_by_hand(void **state) {
    (void)state;
    static const dsc_conv_desc desc = CONV(DSC_F32, 1, 3, 3, 1, 1, 2, 2, 1, 1, 0, 0, 1, 1, 1);
    static const double x[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, w[4] = {1, 2, 3, 4}, bias[1] = {10};
    static const double y[4] = {47, 57, 77, 87}, ones[4] = {1, 1, 1, 1};
    static const double dx[9] = {1, 3, 2, 4, 10, 6, 3, 7, 4}, dw[4] = {12, 16, 24, 28};
    static const double patches[10] = {1, 2, 4, 5, 1, 2, 3, 5, 6, 1};
    static const dsc_dtype types[] = {DSC_F32, DSC_F64};
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < 2 && rig_convolves(&rigs[r], types[type]); type++) {
            const conv_case c = {desc, 0, 1};
            const rig *g = &rigs[r];
            dsc_conv_desc typed = desc;
            typed.dtype = types[type];
            place px = place_of(g, types[type], SHAPE(1, 3, 3, 1), x);
            place pw = place_of(g, types[type], SHAPE(1, 2, 2, 1), w);
            place pb = place_of(g, types[type], SHAPE(1), bias);
            place py = place_make(g, types[type], SHAPE(1, 2, 2, 1));
            place pp = place_make(g, types[type], SHAPE(2, 5));
            assert_ok(run_pass(FORWARD, g->q, (dsc_tensor[]){px.t, pw.t, pb.t, py.t}, &c));
            place_expect(g, &py, y, "conv_forward by hand");
            assert_ok(dsc_op_patches(g->q, &typed, &px.t, 0, 0, &pp.t));
            place_expect(g, &pp, patches, "patches by hand");
            place_write(g, &py, ones);
            place_fill(g, &px, NAN);
            assert_ok(run_pass(BACKWARD_DATA, g->q, (dsc_tensor[]){pw.t, py.t, px.t}, &c));
            place_expect(g, &px, dx, "conv_backward_data by hand");
            place_write(g, &px, x);
            assert_ok(run_pass(BACKWARD_WEIGHT, g->q, (dsc_tensor[]){px.t, py.t, pw.t}, &c));
            place_expect(g, &pw, dw, "conv_backward_weight by hand");
            place *all[] = {&px, &pw, &pb, &py, &pp};
            for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
                place_free(all[i]);
        }
}

/* The same image through stride 2 with a border of 1, through dilation 2, and as one of two groups. */
static void test_geometry_by_hand(void **state) {
    (void)state;
    static const double x[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, w[4] = {1, 2, 3, 4};
    static const conv_case strided = {CONV(DSC_F32, 1, 3, 3, 1, 1, 2, 2, 2, 2, 1, 1, 1, 1, 1), 0, 0};
    static const double strided_y[4] = {4, 18, 36, 77}; /* 4*1; 3*2+4*3; 2*4+4*7; 5+12+24+36 */
    static const conv_case dilated = {CONV(DSC_F32, 1, 3, 3, 1, 1, 2, 2, 1, 1, 0, 0, 2, 2, 1), 0, 0};
    static const double dilated_y[1] = {64}; /* 1 + 2*3 + 3*7 + 4*9 */
    static const conv_case grouped = {CONV(DSC_F32, 1, 1, 2, 4, 2, 1, 1, 1, 1, 0, 0, 1, 1, 2), 0, 0};
    static const double grouped_x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, grouped_y[4] = {5, 25, 17, 53};
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        place px = place_of(g, DSC_F32, SHAPE(1, 3, 3, 1), x),
              pw = place_of(g, DSC_F32, SHAPE(1, 2, 2, 1), w);
        place py = place_make(g, DSC_F32, SHAPE(1, 2, 2, 1)), one = place_make(g, DSC_F32, SHAPE(1, 1, 1, 1));
        assert_ok(run_pass(FORWARD, g->q, (dsc_tensor[]){px.t, pw.t, py.t}, &strided));
        place_expect(g, &py, strided_y, "conv_forward with stride");
        assert_ok(run_pass(FORWARD, g->q, (dsc_tensor[]){px.t, pw.t, one.t}, &dilated));
        place_expect(g, &one, dilated_y, "conv_forward with dilation");
        place gx = place_of(g, DSC_F32, SHAPE(1, 1, 2, 4), grouped_x);
        place gw = place_of(g, DSC_F32, SHAPE(2, 1, 1, 2), w), gy = place_make(g, DSC_F32, SHAPE(1, 1, 2, 2));
        assert_ok(run_pass(FORWARD, g->q, (dsc_tensor[]){gx.t, gw.t, gy.t}, &grouped));
        place_expect(g, &gy, grouped_y, "conv_forward in groups");
        place *all[] = {&px, &pw, &py, &one, &gx, &gw, &gy};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

/* ---- refusals ---- */

static void test_descriptions(void **state) {
    (void)state;
    static const dsc_conv_desc good = CONV(DSC_F32, 2, 8, 8, 4, 6, 3, 3, 2, 2, 1, 1, 1, 1, 2);
    int64_t oh = -1, ow = -1;
    assert_ok(dsc_conv_output(&good, &oh, &ow));
    assert_int_equal(oh, 4);
    assert_int_equal(ow, 4);
    dsc_conv_desc d = good;
    d.shape.stride_w = 0;
    assert_fails(DSC_E_INVALID, "conv: stride_w is 0", dsc_conv_output(&d, &oh, &ow));
    d = good;
    d.shape.pad_h = -1;
    assert_fails(DSC_E_INVALID, "conv: pad_h is -1", dsc_conv_output(&d, &oh, &ow));
    d = good;
    d.shape.groups = 3;
    assert_fails(DSC_E_INVALID, "4 input and 6 output channels", dsc_conv_output(&d, &oh, &ow));
    d = good;
    d.shape.dilation_h = 8;
    assert_fails(DSC_E_INVALID, "reaches over 17 elements in height; the padded input has 10",
                 dsc_conv_output(&d, &oh, &ow));
    d = good;
    d.dtype = DSC_I32;
    assert_fails(DSC_E_INVALID, "the type is i32", dsc_conv_output(&d, &oh, &ow));
    d = good;
    d.n = d.shape.in_h = d.shape.in_w = INT32_MAX;
    assert_fails(DSC_E_INVALID, "too large", dsc_conv_output(&d, &oh, &ow));
    d.n = (int64_t)1 << 40;
    assert_fails(DSC_E_INVALID, "conv: n is 1099511627776", dsc_conv_output(&d, &oh, &ow));
    dsc_conv *conv = NULL;
    assert_fails(DSC_E_INVALID, "conv: n is", dsc_conv_create(rigs[0].device, &d, &conv));
    assert_null(conv);
    dsc_conv_destroy(&conv);
    dsc_conv_destroy(NULL);
}

static void test_refusals(void **state) {
    (void)state;
    static const conv_case c = {CONV(DSC_F32, 1, 3, 3, 1, 1, 2, 2, 1, 1, 0, 0, 1, 1, 1), 0, 0};
    static const conv_case half = {CONV(DSC_F32, 1, 3, 3, 1, 1, 2, 2, 1, 1, 0, 0, 1, 1, 1), 0.5, 0};
    for (int r = 0; r < rig_count; r++) {
        const rig *g = &rigs[r];
        dsc_queue *q = g->q;
        place x = place_make(g, DSC_F32, SHAPE(1, 3, 3, 1)), w = place_make(g, DSC_F32, SHAPE(1, 2, 2, 1));
        place y = place_make(g, DSC_F32, SHAPE(1, 2, 2, 1)), bad = place_make(g, DSC_F32, SHAPE(1, 2, 3, 1));
        place wide = place_make(g, DSC_F64, SHAPE(1, 2, 2, 1)), rows = place_make(g, DSC_F32, SHAPE(3, 4));
        assert_fails(DSC_E_INVALID, "conv_forward: x is [1,2,3,1]; [1,3,3,1] is expected",
                     run_pass(FORWARD, q, (dsc_tensor[]){bad.t, w.t, y.t}, &c));
        assert_fails(DSC_E_INVALID, "conv_forward: w is fp64; fp32 is expected",
                     run_pass(FORWARD, q, (dsc_tensor[]){x.t, wide.t, y.t}, &c));
        assert_fails(DSC_E_INVALID, "conv_forward: y shares memory with w",
                     run_pass(FORWARD, q, (dsc_tensor[]){x.t, w.t, w.t}, &c));
        assert_fails(DSC_E_INVALID, "conv_backward_data: dx is [1,2,3,1]",
                     run_pass(BACKWARD_DATA, q, (dsc_tensor[]){w.t, y.t, bad.t}, &c));
        assert_fails(DSC_E_INVALID, "conv_backward_weight: dy is [1,2,3,1]",
                     run_pass(BACKWARD_WEIGHT, q, (dsc_tensor[]){x.t, bad.t, w.t}, &c));
        assert_fails(DSC_E_INVALID, "beta is 0.5",
                     run_pass(BACKWARD_WEIGHT, q, (dsc_tensor[]){x.t, y.t, w.t}, &half));
        assert_fails(DSC_E_INVALID, "patches: group is 1", dsc_op_patches(q, &c.desc, &x.t, 1, 0, &rows.t));
        assert_fails(DSC_E_INVALID, "rows 2 to 5; there are 4",
                     dsc_op_patches(q, &c.desc, &x.t, 0, 2, &rows.t));
        assert_fails(DSC_E_INVALID, "patches: out is [1,2,2,1]; 2 dimensions are expected",
                     dsc_op_patches(q, &c.desc, &x.t, 0, 0, &y.t));
        dsc_conv *forward;
        assert_ok(dsc_conv_create_forward(g->device, &c.desc, &forward));
        place work = place_make(g, DSC_U8, SHAPE((int64_t)dsc_conv_workspace(forward)));
        assert_ok(dsc_op_conv_forward(q, forward, &x.t, &w.t, NULL, &work.t, &y.t));
        assert_fails(DSC_E_INVALID, "conv_backward_data: conv was planned for the forward pass only",
                     dsc_op_conv_backward_data(q, forward, &w.t, &y.t, 0, &work.t, &x.t));
        assert_fails(DSC_E_INVALID, "conv_backward_weight: conv was planned for the forward pass only",
                     dsc_op_conv_backward_weight(q, forward, &x.t, &y.t, 0, &work.t, &w.t));
        dsc_conv_destroy(&forward);
        dsc_conv *data;
        assert_ok(dsc_conv_create_backward_data(g->device, &c.desc, &data));
        place more = place_make(g, DSC_U8, SHAPE((int64_t)dsc_conv_workspace(data)));
        assert_ok(dsc_op_conv_backward_data(q, data, &w.t, &y.t, 0, &more.t, &x.t));
        assert_ok(dsc_op_conv_backward_data(q, data, &w.t, &y.t, 1, &more.t, &x.t));
        assert_fails(DSC_E_INVALID, "conv_forward: conv was planned for the gradient of x only",
                     dsc_op_conv_forward(q, data, &x.t, &w.t, NULL, &more.t, &y.t));
        dsc_conv_destroy(&data);
        place *all[] = {&x, &w, &y, &bad, &wide, &rows, &work, &more};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),         cmocka_unit_test(test_backward_data),
        cmocka_unit_test(test_backward_weight), cmocka_unit_test(test_patches),
        cmocka_unit_test(test_by_hand),         cmocka_unit_test(test_geometry_by_hand),
        cmocka_unit_test(test_descriptions),    cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, rigs_open_loose, rigs_close);
}
