/* Element-wise operations, reductions, bias, ReLU, add, dropout. */
#include "device/trial.h"

#include "base/rng.h"

#include <math.h>
#include <stdlib.h>

/* From a single element to more than one thread gets. */
static const int64_t sizes[] = {1, 3, 7, 16, 257, 40003};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

/* ---- fill and convert: exact ---- */

static void test_fill(void **state) {
    (void)state;
    static const dsc_dtype types[] = {DSC_F32, DSC_F64, DSC_BF16, DSC_F16, DSC_I32, DSC_I64, DSC_U8};
    double *want = test_array(40003, sizeof *want);
    for (int i = 0; i < 40003; i++)
        want[i] = 5;
    for (int r = 0; r < rig_count; r++)
        for (size_t type = 0; type < 7; type++)
            for (int s = 0; s < SIZES; s++) {
                place p = place_make(&rigs[r], types[type], SHAPE(sizes[s]));
                assert_ok(dsc_op_fill(rigs[r].q, 5, &p.t));
                place_expect(&rigs[r], &p, want, "fill");
                place_free(&p);
            }
    free(want);
}

static void test_fill_refuses(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        place bytes = place_make(&rigs[r], DSC_U8, SHAPE(3)), ints = place_make(&rigs[r], DSC_I32, SHAPE(3));
        assert_fails(DSC_E_INVALID, "fill: 256 is not a value of type u8",
                     dsc_op_fill(rigs[r].q, 256, &bytes.t));
        assert_fails(DSC_E_INVALID, "fill: -1 is not", dsc_op_fill(rigs[r].q, -1, &bytes.t));
        assert_fails(DSC_E_INVALID, "fill: 0.5 is not", dsc_op_fill(rigs[r].q, 0.5, &ints.t));
        assert_fails(DSC_E_INVALID, "fill: nan is not", dsc_op_fill(rigs[r].q, NAN, &ints.t));
        place_free(&bytes);
        place_free(&ints);
    }
}

/* Every pair of floating types, on values that show the rounding of each: 1 + 2^-8 is a tie in bf16 (stays
 * 1), 1 + 3 * 2^-8 is one that goes up, 1 + 2^-11 a tie in fp16, 65520 the first that overflows fp16. */
static void test_convert(void **state) {
    (void)state;
    enum { COUNT = 8 };
    static const dsc_dtype types[] = {DSC_F32, DSC_F64, DSC_BF16, DSC_F16};
    static const double values[COUNT] = {0,           -1.5,  1 + 0x1p-8, 1 + 0x3p-8,
                                         1 + 0x1p-11, 65520, 0x1p-24,    1 + 0x1p-11 + 0x1p-40};
    static const double as_bf16[COUNT] = {0, -1.5, 1, 1 + 0x1p-6, 1, 65536, 0x1p-24, 1};
    static const double as_f16[COUNT] = {0, -1.5, 1 + 0x1p-8, 1 + 0x3p-8, 1, INFINITY, 0x1p-24, 1 + 0x1p-10};
    for (int r = 0; r < rig_count; r++) {
        place doubles = place_of(&rigs[r], DSC_F64, SHAPE(COUNT), values);
        place bf16 = place_make(&rigs[r], DSC_BF16, SHAPE(COUNT));
        place f16 = place_make(&rigs[r], DSC_F16, SHAPE(COUNT));
        assert_ok(dsc_op_convert(rigs[r].q, &doubles.t, &bf16.t));
        place_expect(&rigs[r], &bf16, as_bf16, "fp64 to bf16");
        assert_ok(dsc_op_convert(rigs[r].q, &doubles.t, &f16.t));
        place_expect(&rigs[r], &f16, as_f16, "fp64 to fp16");
        place_free(&doubles);
        place_free(&bf16);
        place_free(&f16);
    }
    double *random = test_array(40003, sizeof *random);
    random_integers(1, 128, 40003, random); /* all four types hold these */
    for (int r = 0; r < rig_count; r++)
        for (int pair = 0; pair < 16; pair++)
            for (int s = 0; s < SIZES; s++) {
                place from = place_of(&rigs[r], types[pair / 4], SHAPE(sizes[s]), random);
                place to = place_make(&rigs[r], types[pair % 4], SHAPE(sizes[s]));
                assert_ok(dsc_op_convert(rigs[r].q, &from.t, &to.t));
                place_expect(&rigs[r], &to, random, "convert");
                place_free(&from);
                place_free(&to);
            }
    free(random);
}

static void test_convert_equal_types(void **state) {
    (void)state;
    static const int64_t value = ((int64_t)1 << 60) + 1; /* no double holds it */
    for (int r = 0; r < rig_count; r++) {
        place from = place_make(&rigs[r], DSC_I64, SHAPE(1)), to = place_make(&rigs[r], DSC_I64, SHAPE(1));
        place floats = place_make(&rigs[r], DSC_F32, SHAPE(1));
        int64_t got = 0;
        assert_ok(dsc_tensor_upload(rigs[r].q, &value, sizeof value, &from.t));
        assert_ok(dsc_op_convert(rigs[r].q, &from.t, &to.t));
        assert_ok(dsc_tensor_download(rigs[r].q, &to.t, sizeof got, &got));
        assert_ok(dsc_queue_sync(rigs[r].q));
        assert_true(got == value);
        assert_fails(DSC_E_INVALID, "convert: i64 to fp32", dsc_op_convert(rigs[r].q, &from.t, &floats.t));
        place_free(&from);
        place_free(&to);
        place_free(&floats);
    }
}

/* ---- axpby, scale_by, dot ---- */

typedef struct axpby_case {
    double alpha, beta;
} axpby_case;

static dsc_status axpby_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const axpby_case *c = params;
    return dsc_op_axpby(q, c->alpha, &t[0], c->beta, &t[1]);
}

static void test_axpby(void **state) {
    (void)state;
    static const axpby_case cases[] = {{1, 0}, {-0.75, 0}, {0.1, 1}, {2, -0.5}, {0, 1}, {0, 0}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
        for (int s = 0; s < SIZES; s++) {
            trial tr;
            trial_start(&tr, "axpby", axpby_run, &cases[c]);
            trial_in(&tr, "x", SHAPE(sizes[s]));
            trial_beta(&tr, "y", fabs(cases[c].alpha) + fabs(cases[c].beta), cases[c].beta, SHAPE(sizes[s]));
            trial_check(&tr);
        }
}

static dsc_status scale_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    (void)params;
    return dsc_op_scale_by(q, &t[0], &t[1]);
}

static void test_scale_by(void **state) {
    (void)state;
    for (int s = 0; s < SIZES; s++) {
        trial tr;
        trial_start(&tr, "scale_by", scale_run, NULL);
        trial_typed(&tr, "s", ROLE_IN, DSC_F64, 1, SHAPE(1))[0] = 0.3;
        trial_inout(&tr, "t", 1, SHAPE(sizes[s]));
        trial_check(&tr);
    }
}

static dsc_status dot_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const double *beta = params;
    return dsc_op_dot(q, &t[0], &t[1], *beta, &t[2]);
}

/* The bound is that of a sum in double, in both types. */
static void test_dot(void **state) {
    (void)state;
    static const double betas[] = {0, 1};
    for (int b = 0; b < 2; b++)
        for (int s = 0; s < SIZES; s++) {
            trial tr;
            trial_start(&tr, "dot", dot_run, &betas[b]);
            tr.linear = 1;
            tr.terms = (double)sizes[s];
            trial_in(&tr, "x", SHAPE(sizes[s]));
            trial_in(&tr, "y", SHAPE(sizes[s]));
            double *out = trial_typed(&tr, "out", b ? ROLE_INOUT : ROLE_OUT, DSC_F64, 1, SHAPE(1));
            if (b)
                out[0] = 3;
            trial_check(&tr);
        }
}

/* x and y one tensor; nothing at all. */
static void test_dot_corners(void **state) {
    (void)state;
    static const double values[] = {3, 4};
    for (int r = 0; r < rig_count; r++) {
        place x = place_of(&rigs[r], DSC_F32, SHAPE(2), values),
              out = place_make(&rigs[r], DSC_F64, SHAPE(1));
        place empty = place_make(&rigs[r], DSC_F32, SHAPE(0));
        assert_ok(dsc_op_dot(rigs[r].q, &x.t, &x.t, 0, &out.t));
        place_expect(&rigs[r], &out, (const double[]){25}, "dot");
        assert_ok(dsc_op_dot(rigs[r].q, &empty.t, &empty.t, 1, &out.t));
        place_expect(&rigs[r], &out, (const double[]){25}, "dot of nothing, added");
        place_fill(&rigs[r], &out, NAN);
        assert_ok(dsc_op_dot(rigs[r].q, &empty.t, &empty.t, 0, &out.t));
        place_expect(&rigs[r], &out, (const double[]){0}, "dot of nothing");
        assert_fails(DSC_E_INVALID, "dot: beta is 0.5; 0 or 1 is expected",
                     dsc_op_dot(rigs[r].q, &x.t, &x.t, 0.5, &out.t));
        place_free(&x);
        place_free(&out);
        place_free(&empty);
    }
}

static void test_clip_factor(void **state) {
    (void)state;
    static const struct {
        double sumsq, limit, want;
    } cases[] = {{0, 1, 1}, {4, 1, 0.5}, {4, 2, 1}, {1, 8, 1}, {16, 0, 0}, {0, 0, 1}, {NAN, 1, NAN}};
    for (int r = 0; r < rig_count; r++)
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
            place sumsq = place_of(&rigs[r], DSC_F64, SHAPE(1), &cases[c].sumsq);
            place out = place_make(&rigs[r], DSC_F64, SHAPE(1));
            assert_ok(dsc_op_clip_factor(rigs[r].q, &sumsq.t, cases[c].limit, &out.t));
            place_expect(&rigs[r], &out, &cases[c].want, "clip_factor");
            assert_fails(DSC_E_INVALID, "the limit is -1",
                         dsc_op_clip_factor(rigs[r].q, &sumsq.t, -1, &out.t));
            place_free(&sumsq);
            place_free(&out);
        }
}

static void test_count_nonfinite(void **state) {
    (void)state;
    static const dsc_dtype types[] = {DSC_F32, DSC_F64};
    double *values = test_array(40003, sizeof *values);
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < 2; type++)
            for (int s = 0; s < SIZES; s++) {
                random_values(3, sizes[s], values);
                values[0] = NAN;
                values[sizes[s] - 1] = INFINITY;
                values[sizes[s] / 2] = -INFINITY;
                double want = (sizes[s] > 2 ? 3 : 1) + 10;
                place t = place_of(&rigs[r], types[type], SHAPE(sizes[s]), values);
                place out = place_of(&rigs[r], DSC_F64, SHAPE(1), (const double[]){10});
                assert_ok(dsc_op_count_nonfinite(rigs[r].q, &t.t, &out.t));
                place_expect(&rigs[r], &out, &want, "count_nonfinite");
                place_free(&t);
                place_free(&out);
            }
    free(values);
}

/* ---- bias ---- */

static const int64_t bias_shapes[][2] = {{1, 1}, {5, 3}, {33, 16}, {7, 130}, {4001, 10}, {3, 20001}};
enum { BIAS_SHAPES = sizeof bias_shapes / sizeof bias_shapes[0] };

static dsc_status bias_add_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    (void)params;
    return dsc_op_bias_add(q, &t[0], &t[1]);
}

static void test_bias_add(void **state) {
    (void)state;
    for (int s = 0; s < BIAS_SHAPES; s++) {
        trial tr;
        trial_start(&tr, "bias_add", bias_add_run, NULL);
        trial_in(&tr, "b", SHAPE(bias_shapes[s][1]));
        trial_inout(&tr, "y", 2, SHAPE(bias_shapes[s][0], bias_shapes[s][1]));
        trial_check(&tr);
    }
}

static dsc_status bias_grad_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const double *beta = params;
    return dsc_op_bias_grad(q, &t[0], *beta, &t[1]);
}

static void test_bias_grad(void **state) {
    (void)state;
    static const double betas[] = {0, 1};
    for (int b = 0; b < 2; b++)
        for (int s = 0; s < BIAS_SHAPES; s++) {
            trial tr;
            trial_start(&tr, "bias_grad", bias_grad_run, &betas[b]);
            tr.linear = 1;
            tr.terms = (double)bias_shapes[s][0];
            trial_in(&tr, "dy", SHAPE(1, bias_shapes[s][0], 1, bias_shapes[s][1]));
            trial_beta(&tr, "db", 1, betas[b], SHAPE(bias_shapes[s][1]));
            trial_check(&tr);
        }
    for (int r = 0; r < rig_count; r++) {
        place dy = place_make(&rigs[r], DSC_F32, SHAPE(0, 2)), db = place_make(&rigs[r], DSC_F32, SHAPE(2));
        place_fill(&rigs[r], &db, NAN);
        assert_ok(dsc_op_bias_grad(rigs[r].q, &dy.t, 0, &db.t));
        place_expect(&rigs[r], &db, (const double[]){0, 0}, "bias_grad without rows");
        place_free(&dy);
        place_free(&db);
    }
}

/* ---- ReLU and add: exact ---- */

static dsc_status relu_forward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    (void)params;
    return dsc_op_relu_forward(q, &t[0], &t[1]);
}

static dsc_status relu_backward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const double *beta = params;
    return dsc_op_relu_backward(q, &t[0], &t[1], *beta, &t[2]);
}

static void test_relu(void **state) {
    (void)state;
    static const double betas[] = {0, 1};
    for (int s = 0; s < SIZES; s++) {
        trial tr;
        trial_start(&tr, "relu_forward", relu_forward_run, NULL);
        trial_in(&tr, "x", SHAPE(sizes[s]))[0] = 0;
        trial_out(&tr, "y", 1, SHAPE(sizes[s]));
        trial_check(&tr);
        for (int b = 0; b < 2; b++) {
            trial_start(&tr, "relu_backward", relu_backward_run, &betas[b]);
            trial_in(&tr, "y", SHAPE(sizes[s]))[0] = 0;
            trial_in(&tr, "dy", SHAPE(sizes[s]));
            trial_beta(&tr, "dx", 2, betas[b], SHAPE(sizes[s]));
            trial_check(&tr);
        }
    }
}

/* ---- other activations ---- */

static const struct activation {
    const char *name;
    dsc_map forward, backward;
    double of_one, slope; /* at x = 1 */
} activations[] = {
    {"gelu", DSC_MAP_GELU, DSC_MAP_GELU_SLOPE, 0.84134474606854295, 1.0833154705876864},
    {"gelu_tanh", DSC_MAP_GELU_TANH, DSC_MAP_GELU_TANH_SLOPE, 0.84119199060827676, 1.0829640838457826},
    {"silu", DSC_MAP_SILU, DSC_MAP_SILU_SLOPE, 0.73105857863000488, 0.92767051187148687},
    {"tanh", DSC_MAP_TANH, DSC_MAP_TANH_SLOPE, 0.76159415595576489, 0.41997434161402607},
    {"sigmoid", DSC_MAP_SIGMOID, DSC_MAP_SIGMOID_SLOPE, 0.73105857863000488, 0.19661193324148185}};
enum { ACTIVATIONS = sizeof activations / sizeof activations[0] };

/* Of tanh and sigmoid the backward pass reads the output. */
static int reads_output(const struct activation *a) {
    return a->forward == DSC_MAP_TANH || a->forward == DSC_MAP_SIGMOID;
}

typedef struct activation_case {
    const struct activation *of;
    double beta;
} activation_case;

static dsc_status activation_forward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    return dsc_op_map(q, ((const activation_case *)params)->of->forward, &t[0], NULL, 0, &t[1]);
}

static dsc_status activation_backward_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const activation_case *c = params;
    return dsc_op_map(q, c->of->backward, &t[0], &t[1], c->beta, &t[2]);
}

/* Inputs in [-6, 6], where the functions bend; a last one far outside. */
static void spread(double *x, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        x[i] = (double)(float)(6 * x[i]);
    if (count > 16)
        x[count - 1] = -300;
}

static void test_activations(void **state) {
    (void)state;
    for (int i = 0; i < ACTIVATIONS; i++)
        for (int s = 0; s < SIZES; s++) {
            activation_case c = {&activations[i], 0};
            trial tr;
            trial_start(&tr, activations[i].name, activation_forward_run, &c);
            spread(trial_in(&tr, "x", SHAPE(sizes[s])), sizes[s]);
            trial_out(&tr, "y", 1, SHAPE(sizes[s]));
            trial_check(&tr);
            for (c.beta = 0; c.beta <= 1; c.beta++) {
                trial_start(&tr, activations[i].name, activation_backward_run, &c);
                double *x = trial_in(&tr, "x or y", SHAPE(sizes[s]));
                if (!reads_output(&activations[i]))
                    spread(x, sizes[s]);
                trial_in(&tr, "dy", SHAPE(sizes[s]));
                trial_beta(&tr, "dx", 1, c.beta, SHAPE(sizes[s]));
                trial_check(&tr);
            }
        }
}

/* At 1, and far away, where no large number may spoil the result. x may be y, and dx may be dy. */
static void check_values(const rig *r, const struct activation *a, dsc_dtype type) {
    const int bounded = reads_output(a);
    const double want[] = {a->of_one, bounded ? 1 : 200, a->forward == DSC_MAP_TANH ? -1 : 0};
    const double slope[] = {a->slope, bounded ? 0 : 1, 0};
    const double limit[] = {4 * dtype_eps(type), 200 * dtype_eps(type), 4 * dtype_eps(type)};
    place x = place_of(r, type, SHAPE(3), (const double[]){1, 200, -200});
    place g = place_of(r, type, SHAPE(3), (const double[]){1, 1, 1});
    if (!bounded)
        assert_ok(dsc_op_map(r->q, a->backward, &x.t, &g.t, 0, &g.t));
    assert_ok(dsc_op_map(r->q, a->forward, &x.t, NULL, 0, &x.t));
    if (bounded)
        assert_ok(dsc_op_map(r->q, a->backward, &x.t, &g.t, 0, &g.t));
    place_expect_near(r, &x, want, limit, a->name);
    place_expect_near(r, &g, slope, limit, a->name);
    place_free(&x);
    place_free(&g);
}

/* NaN must reach the loss. */
static void check_nan(const rig *r, const struct activation *a, dsc_dtype type) {
    const double nan = NAN, one = 1;
    place x = place_of(r, type, SHAPE(1), &nan), g = place_of(r, type, SHAPE(1), &one);
    assert_ok(dsc_op_map(r->q, a->backward, &x.t, &g.t, 0, &g.t));
    assert_ok(dsc_op_map(r->q, a->forward, &x.t, NULL, 0, &x.t));
    assert_true(isnan(place_get(r, &x, 0)) && isnan(place_get(r, &g, 0)));
    place_free(&x);
    place_free(&g);
}

static void test_activation_values(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++)
        for (int i = 0; i < ACTIVATIONS; i++) {
            check_values(&rigs[r], &activations[i], DSC_F32);
            check_values(&rigs[r], &activations[i], DSC_F64);
            check_nan(&rigs[r], &activations[i], DSC_F32);
            check_nan(&rigs[r], &activations[i], DSC_F64);
        }
}

static dsc_status add_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    (void)params;
    return dsc_op_add(q, &t[0], &t[1], &t[2]);
}

static void test_add(void **state) {
    (void)state;
    for (int s = 0; s < SIZES; s++) {
        trial tr;
        trial_start(&tr, "add", add_run, NULL);
        trial_in(&tr, "a", SHAPE(sizes[s]));
        trial_in(&tr, "b", SHAPE(sizes[s]));
        trial_out(&tr, "y", 2, SHAPE(sizes[s]));
        trial_check(&tr);
    }
}

/* Where ops.h says that output and input may be one. NaN must survive a ReLU: it must reach the loss. */
static void test_in_place(void **state) {
    (void)state;
    static const double values[4] = {-1, 2, 0, -3}, gradient[4] = {10, 20, 30, 40};
    for (int r = 0; r < rig_count; r++) {
        dsc_queue *q = rigs[r].q;
        place x = place_of(&rigs[r], DSC_F32, SHAPE(4), values);
        place g = place_of(&rigs[r], DSC_F32, SHAPE(4), gradient);
        assert_ok(dsc_op_relu_forward(q, &x.t, &x.t));
        place_expect(&rigs[r], &x, (const double[]){0, 2, 0, 0}, "relu_forward in place");
        assert_ok(dsc_op_relu_backward(q, &x.t, &g.t, 0, &g.t));
        place_expect(&rigs[r], &g, (const double[]){0, 20, 0, 0}, "relu_backward in place");
        assert_ok(dsc_op_add(q, &x.t, &g.t, &g.t));
        place_expect(&rigs[r], &g, (const double[]){0, 22, 0, 0}, "add into b");
        assert_ok(dsc_op_add(q, &g.t, &x.t, &g.t));
        place_expect(&rigs[r], &g, (const double[]){0, 24, 0, 0}, "add into a");
        assert_ok(dsc_op_axpby(q, 2, &g.t, -1, &g.t));
        place_expect(&rigs[r], &g, (const double[]){0, 24, 0, 0}, "axpby onto itself");
        place_write(&rigs[r], &x, (const double[]){NAN, -1, 1, NAN});
        assert_ok(dsc_op_relu_forward(q, &x.t, &x.t));
        place_expect(&rigs[r], &x, (const double[]){NAN, 0, 1, NAN}, "relu_forward of NaN");
        place_free(&x);
        place_free(&g);
    }
}

/* ---- dropout ---- */

typedef struct dropout_case {
    dsc_dropout_desc desc;
    double beta;
    int64_t step, first, rows, row;
} dropout_case;

static dsc_status dropout_run(dsc_queue *q, dsc_tensor *t, const void *params) {
    const dropout_case *c = params;
    return dsc_op_dropout(q, &c->desc, &t[0], &t[1], c->beta, &t[2]);
}

static void test_dropout(void **state) {
    (void)state;
    static const dropout_case cases[] = {
        {{0, 1, 0}, 0, 0, 0, 2, 5},
        {{0.5, 1, 0}, 0, 0, 0, 1, 1},
        {{0.3, 7, 2}, 1, 5, 3, 9, 31},
        {{0.1, 7, 2}, 0, 100000, 1, 3, 7},
        {{0.9, 1u << 31, 3}, 0, 1, 77, 33, 130},
        {{0.25, 3, 1}, 1, 2, 1000001, 41, 1001},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const dropout_case *c = &cases[i];
        trial tr;
        trial_start(&tr, "dropout", dropout_run, c);
        double *position = trial_typed(&tr, "position", ROLE_IN, DSC_I64, 1, SHAPE(2));
        position[0] = (double)c->step;
        position[1] = (double)c->first;
        trial_in(&tr, "x", SHAPE(c->rows, c->row));
        trial_beta(&tr, "y", 1 / (1 - c->desc.rate) + 1, c->beta, SHAPE(c->rows, c->row));
        trial_check(&tr);
    }
}

/* The mask, by the sequences of base/rng.h: word e % 4 of block `layer` of (seed, DROPOUT, step, e / 4). */
static int kept(const dsc_dropout_desc *desc, int64_t step, int64_t element) {
    dsc_rng rng = dsc_rng_start(desc->seed, DSC_RNG_DROPOUT, (uint32_t)step, (uint64_t)element / 4);
    rng.counter[0] = (uint32_t)desc->layer;
    for (int64_t skip = element % 4; skip > 0; skip--)
        (void)dsc_rng_u32(&rng);
    return (double)dsc_rng_uniform(&rng) >= desc->rate;
}

static void test_dropout_mask(void **state) {
    (void)state;
    enum { ROWS = 40, ROW = 101, COUNT = ROWS * ROW };
    static const dsc_dropout_desc desc = {0.25, 99, 4};
    static double want[COUNT], ones[COUNT];
    int64_t count = 0;
    for (int i = 0; i < COUNT; i++) {
        ones[i] = 3;
        want[i] = kept(&desc, 6, 12 * ROW + i) ? 4 : 0; /* 3 / (1 - 1/4) */
        count += want[i] != 0;
    }
    /* Binomial: within five standard deviations of the expected number. */
    assert_true(fabs((double)count - 0.75 * COUNT) < 5 * sqrt(COUNT * 0.75 * 0.25));
    for (int r = 0; r < rig_count; r++) {
        place x = place_of(&rigs[r], DSC_F32, SHAPE(ROWS, ROW), ones);
        place position = place_of(&rigs[r], DSC_I64, SHAPE(2), (const double[]){6, 12});
        assert_ok(dsc_op_dropout(rigs[r].q, &desc, &position.t, &x.t, 0, &x.t)); /* in place */
        place_expect(&rigs[r], &x, want, "dropout");
        /* The second half of the batch on its own, as another rank would have it. */
        place half = place_of(&rigs[r], DSC_F32, SHAPE(ROWS / 2, ROW), ones);
        place_write(&rigs[r], &position, (const double[]){6, 12 + ROWS / 2});
        assert_ok(dsc_op_dropout(rigs[r].q, &desc, &position.t, &half.t, 0, &half.t));
        place_expect(&rigs[r], &half, want + COUNT / 2, "dropout of a half");
        place_free(&x);
        place_free(&position);
        place_free(&half);
    }
}

/* A quarter and three quarters of whole numbers are exact. */
static void test_blend(void **state) {
    (void)state;
    static const dsc_dtype types[] = {DSC_F32, DSC_F64};
    static const double fine[2] = {0, 5}, spoilt[2] = {2, 5}, counted[2] = {2, 6};
    double *x = test_array(40003, sizeof *x), *y = test_array(40003, sizeof *y);
    double *want = test_array(40003, sizeof *want);
    random_integers(41, 100, 40003, x);
    random_integers(42, 100, 40003, y);
    for (int i = 0; i < 40003; i++)
        want[i] = 0.75 * y[i] + 0.25 * x[i];
    for (int r = 0; r < rig_count; r++)
        for (int type = 0; type < 2; type++)
            for (int s = 0; s < SIZES; s++) {
                place from = place_of(&rigs[r], types[type], SHAPE(sizes[s]), x);
                place to = place_of(&rigs[r], types[type], SHAPE(sizes[s]), y);
                place decay = place_of(&rigs[r], DSC_F64, SHAPE(1), (const double[]){0.75});
                place bad = place_of(&rigs[r], DSC_F64, SHAPE(2), spoilt);
                assert_ok(dsc_op_blend(rigs[r].q, &decay.t, &from.t, &bad.t, &to.t));
                place_expect(&rigs[r], &to, y, "blend of something spoilt");
                place_expect(&rigs[r], &bad, counted, "blend counts it");
                place_write(&rigs[r], &bad, fine);
                assert_ok(dsc_op_blend(rigs[r].q, &decay.t, &from.t, &bad.t, &to.t));
                place_expect(&rigs[r], &to, want, "blend");
                place_expect(&rigs[r], &bad, fine, "blend has nothing to count");
                place_free(&from);
                place_free(&to);
                place_free(&decay);
                place_free(&bad);
            }
    free(x);
    free(y);
    free(want);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fill),
        cmocka_unit_test(test_fill_refuses),
        cmocka_unit_test(test_convert),
        cmocka_unit_test(test_convert_equal_types),
        cmocka_unit_test(test_axpby),
        cmocka_unit_test(test_scale_by),
        cmocka_unit_test(test_dot),
        cmocka_unit_test(test_dot_corners),
        cmocka_unit_test(test_clip_factor),
        cmocka_unit_test(test_count_nonfinite),
        cmocka_unit_test(test_bias_add),
        cmocka_unit_test(test_bias_grad),
        cmocka_unit_test(test_relu),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_activation_values),
        cmocka_unit_test(test_add),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_dropout_mask),
        cmocka_unit_test(test_blend),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
