/* Options of K-FAC: defaults, names, refusals with their reasons, the grid. Layers: copies, checks, sizes,
 * what captures contribute, order of columns, and which are skipped. */
#include "test.h"

#include "base/memory.h"
#include "kfac/placement.h"

#include <math.h>

static dsc_kfac_options defaults(void) {
    dsc_kfac_options o;
    dsc_kfac_options_init(&o);
    return o;
}

static void test_defaults(void **state) {
    (void)state;
    dsc_kfac_options o = defaults();
    assert_int_equal(o.size, sizeof o);
    assert_true(o.damping == 0.003 && o.stat_decay == 0.95 && o.kl_clip == 0.001);
    assert_true(o.factor_freq == 1 && o.update_freq == 10);
    assert_null(o.schedule);
    assert_true(o.method == DSC_KFAC_EIGEN && o.scaling == DSC_KFAC_PAPER && o.strategy == DSC_KFAC_COMM_OPT);
    assert_true(o.placement == DSC_KFAC_COMPUTE && o.grad_worker_fraction == 0.5);
    assert_true(o.colocate_factors == 1 && o.symmetric == 1 && o.outer_product == 0 && o.diag_blocks == 1);
    assert_true(o.refresh == DSC_KFAC_EXACT && o.rank == 1);
    assert_null(o.skip_layers);
    assert_true(o.factor_dtype == DSC_F32 && o.inverse_dtype == DSC_F32 && o.passes == 1);
    assert_int_equal(o.bucket_bytes, 4 << 20);
    dsc_kfac_options read;
    assert_ok(dsc_kfac_options_read(&o, 7, &read));
    assert_memory_equal(&o, &read, sizeof o);
    memset(&read, 0, sizeof read);
    assert_ok(dsc_kfac_options_read(NULL, 7, &read));
    assert_true(read.size == sizeof read && read.damping == 0.003 && read.passes == 1);
}

/* A program compiled against a shorter struct passes the options it knows; the others have their defaults. */
static void test_older_callers(void **state) {
    (void)state;
    dsc_kfac_options o = defaults(), read;
    o.damping = 0.25;
    o.passes = 0; /* after the end of the older struct */
    o.size = offsetof(dsc_kfac_options, passes);
    assert_ok(dsc_kfac_options_read(&o, 1, &read));
    assert_true(read.damping == 0.25 && read.passes == 1 && read.size == sizeof read);
    o.size = 0;
    assert_fails(DSC_E_INVALID, "dsc_kfac_options_init", dsc_kfac_options_read(&o, 1, &read));
    o.size = sizeof o + 8;
    assert_fails(DSC_E_INVALID, "dsc_kfac_options_init", dsc_kfac_options_read(&o, 1, &read));
}

static void test_names(void **state) {
    (void)state;
    const char *const method_names[] = {"eigen", "inverse"};
    const char *const strategy_names[] = {"comm-opt", "mem-opt", "hybrid-opt", "layer-wise"};
    const char *const placement_names[] = {"round-robin", "compute", "memory"};
    const char *const scaling_names[] = {"paper", "kfac-pytorch"};
    const char *const refresh_names[] = {"exact", "warm", "auto"};
    dsc_kfac_method method;
    dsc_kfac_strategy strategy;
    dsc_kfac_placement placement;
    dsc_kfac_scaling scaling;
    dsc_kfac_refresh refresh;
    for (int i = 0; i < 4; i++) {
        assert_string_equal(dsc_kfac_strategy_name((dsc_kfac_strategy)i), strategy_names[i]);
        assert_ok(dsc_kfac_strategy_parse(strategy_names[i], &strategy));
        assert_int_equal(strategy, i);
    }
    for (int i = 0; i < 3; i++) {
        assert_string_equal(dsc_kfac_placement_name((dsc_kfac_placement)i), placement_names[i]);
        assert_ok(dsc_kfac_placement_parse(placement_names[i], &placement));
        assert_int_equal(placement, i);
        assert_string_equal(dsc_kfac_refresh_name((dsc_kfac_refresh)i), refresh_names[i]);
        assert_ok(dsc_kfac_refresh_parse(refresh_names[i], &refresh));
        assert_int_equal(refresh, i);
    }
    for (int i = 0; i < 2; i++) {
        assert_string_equal(dsc_kfac_method_name((dsc_kfac_method)i), method_names[i]);
        assert_ok(dsc_kfac_method_parse(method_names[i], &method));
        assert_int_equal(method, i);
        assert_string_equal(dsc_kfac_scaling_name((dsc_kfac_scaling)i), scaling_names[i]);
        assert_ok(dsc_kfac_scaling_parse(scaling_names[i], &scaling));
        assert_int_equal(scaling, i);
    }
    assert_fails(DSC_E_INVALID, "kfac-method 'qr' is unknown: choose one of eigen, inverse",
                 dsc_kfac_method_parse("qr", &method));
    assert_fails(DSC_E_INVALID,
                 "kfac-strategy '' is unknown: choose one of comm-opt, mem-opt, hybrid-opt, layer-wise",
                 dsc_kfac_strategy_parse("", &strategy));
    assert_fails(DSC_E_INVALID,
                 "kfac-placement 'Memory' is unknown: choose one of round-robin, compute, memory",
                 dsc_kfac_placement_parse("Memory", &placement));
    assert_fails(DSC_E_INVALID, "kfac-scaling 'none' is unknown: choose one of paper, kfac-pytorch",
                 dsc_kfac_scaling_parse("none", &scaling));
    assert_fails(DSC_E_INVALID, "kfac-refresh 'cold' is unknown: choose one of exact, warm, auto",
                 dsc_kfac_refresh_parse("cold", &refresh));
    assert_fails(DSC_E_INVALID, "kfac-scaling '' is unknown: choose one of paper",
                 dsc_kfac_scaling_parse(NULL, &scaling));
    assert_string_equal(dsc_kfac_strategy_name((dsc_kfac_strategy)4), "unknown");
    assert_string_equal(dsc_kfac_method_name((dsc_kfac_method)-1), "unknown");
}

/* ---- refusals ---- */

/* Changes one of the defaults (a damping of NaN, say) and expects a message. */
#define assert_refused(change, ranks, text)                                                                  \
    do {                                                                                                     \
        dsc_kfac_options o = defaults(), read = {.passes = -7};                                              \
        change;                                                                                              \
        assert_fails(DSC_E_INVALID, text, dsc_kfac_options_read(&o, ranks, &read));                          \
        assert_int_equal(read.passes, -7);                                                                   \
    } while (0)

static void test_bad_numbers(void **state) {
    (void)state;
    assert_refused(o.damping = 0, 1, "kfac-damping 0: must be above 0");
    assert_refused(o.damping = -1, 1, "kfac-damping -1: must be above 0");
    assert_refused(o.damping = NAN, 1, "must be a finite number");
    assert_refused(o.damping = INFINITY, 1, "kfac-damping inf: must be a finite number");
    assert_refused(o.damping = 1e-50, 1, "damping 1e-50: must be positive in float32");
    assert_refused(o.damping = 1e-40, 1, "1.17549e-38 to 3.40282e+38");
    assert_refused(o.damping = 1e39, 1, "damping 1e+39: must be positive in float32");
    assert_refused(o.stat_decay = 1.5, 1, "kfac-stat-decay 1.5: must be at least 0 and at most 1");
    assert_refused(o.stat_decay = -0.1, 1, "kfac-stat-decay -0.1: must be at least 0 and at most 1");
    assert_refused(o.stat_decay = NAN, 1, "must be a finite number");
    assert_refused(o.kl_clip = -1, 1, "kfac-kl-clip -1: must be at least 0");
    assert_refused(o.factor_freq = -1, 1, "kfac-cov-update-freq -1: must be at least 0");
    assert_refused(o.update_freq = -2, 1, "kfac-update-freq -2: must be at least 0");
    assert_refused(o.diag_blocks = -1, 1, "kfac-diag-blocks -1: must be at least 1");
    assert_refused(o.diag_blocks = 0, 1, "kfac-diag-blocks 0: must be at least 1");
    assert_refused(o.passes = 0, 1, "0 passes of a K-FAC step: must be 1 or more");
    assert_refused(o.bucket_bytes = 0, 1, "kfac-bucket-mb 0: must be above 0");
    assert_refused(o.factor_dtype = DSC_F64, 1,
                   "kfac-factor-dtype 1 is unknown: choose one of fp32, bf16, fp16");
    assert_refused(o.inverse_dtype = DSC_I32, 1, "kfac-inverse-dtype 4 is unknown: choose one of fp32");
    assert_refused(o.method = (dsc_kfac_method)2, 1, "kfac-method 2 is unknown: choose one of");
    assert_refused(o.strategy = (dsc_kfac_strategy)-1, 1, "kfac-strategy -1 is unknown: choose one of");
    assert_refused(o.placement = (dsc_kfac_placement)3, 1, "kfac-placement 3 is unknown: choose one of");
    assert_refused(o.scaling = (dsc_kfac_scaling)2, 1, "kfac-scaling 2 is unknown: choose one of");
    assert_refused(o.passes = 1, 0, "0 ranks: must be 1 or more");
}

static void test_bad_combinations(void **state) {
    (void)state;
    assert_refused(o.strategy = DSC_KFAC_MEM_OPT;
                   o.colocate_factors = 0, 4, "strategy mem-opt keeps both factors of a layer on one rank");
    assert_refused(o.strategy = DSC_KFAC_LAYER_WISE;
                   o.colocate_factors = 0, 1, "turn co-location on, or choose comm-opt or hybrid-opt");
    assert_refused(o.strategy = DSC_KFAC_HYBRID_OPT; o.grad_worker_fraction = 0.25;
                   o.colocate_factors = 0, 4,
                   "fraction 0.25 of 4 ranks is one worker a layer, but its factors are not co-located: turn "
                   "co-location on, or choose a larger fraction");
    assert_refused(o.outer_product = 1; o.method = DSC_KFAC_INVERSE, 2, "choose method eigen");
    assert_refused(o.refresh = DSC_KFAC_WARM; o.method = DSC_KFAC_INVERSE, 2, "choose method eigen");
    assert_refused(o.rank = 0.5, 2, "choose refresh warm, or rank 1");
    assert_refused(o.rank = 0.5; o.refresh = DSC_KFAC_AUTO, 2, "but refresh is auto: choose refresh warm");
    assert_refused(o.rank = 0.5; o.refresh = DSC_KFAC_WARM;
                   o.outer_product = 1, 2, "outer product needs all");
    assert_refused(o.rank = 0.5; o.refresh = DSC_KFAC_WARM;
                   o.ekfac = DSC_KFAC_EKFAC_BATCH, 2, "EKFAC needs all");
    assert_refused(o.rank = 0.5; o.refresh = DSC_KFAC_WARM;
                   o.diag_blocks = 2, 2, "choose 1 block, or rank 1");
    assert_refused(o.rank = 0.5; o.refresh = DSC_KFAC_WARM;
                   o.inverse_dtype = DSC_BF16, 2, "in fp32, or choose");
    assert_refused(o.rank = 0; o.refresh = DSC_KFAC_WARM, 2, "rank");
    assert_refused(o.rank = 1.5; o.refresh = DSC_KFAC_WARM, 2, "rank");
    assert_refused(o.rank = NAN; o.refresh = DSC_KFAC_WARM, 2, "rank");
    assert_refused(o.outer_product = 1; o.colocate_factors = 0, 2, "turn co-location on");
    assert_refused(o.outer_product = 1; o.diag_blocks = 2, 2, "split into 2 diagonal blocks");
    assert_refused(
        o.strategy = DSC_KFAC_MEM_OPT;
        o.diag_blocks = 3, 2,
        "3 K-FAC diagonal blocks go to different ranks, which strategy mem-opt does not allow: choose "
        "comm-opt");
    assert_refused(o.strategy = DSC_KFAC_HYBRID_OPT; o.grad_worker_fraction = 1;
                   o.diag_blocks = 3, 2, "strategy hybrid-opt");
}

/* Diagonal blocks that a schedule asks for must be those of the plan, or 1: whole factors. */
static void test_blocks_of_a_step(void **state) {
    (void)state;
    dsc_kfac_options o = defaults();
    dsc_kfac_hyper hyper = dsc_kfac_hyper_of(&o);
    assert_true(hyper.damping == 0.003 && hyper.stat_decay == 0.95 && hyper.kl_clip == 0.001);
    assert_true(hyper.factor_freq == 1 && hyper.update_freq == 10 && hyper.diag_blocks == 1);
    assert_ok(dsc_kfac_hyper_check(&o, &hyper));
    hyper.diag_blocks = 2;
    assert_fails(DSC_E_INVALID, "2 K-FAC diagonal blocks in a step, planned for whole factors",
                 dsc_kfac_hyper_check(&o, &hyper));
    hyper.diag_blocks = -1;
    assert_fails(DSC_E_INVALID, "must be 1", dsc_kfac_hyper_check(&o, &hyper));
    o.diag_blocks = 4;
    hyper.diag_blocks = 3;
    assert_fails(DSC_E_INVALID, "planned for 4: must be 1 or 4", dsc_kfac_hyper_check(&o, &hyper));
    for (hyper.diag_blocks = 0; hyper.diag_blocks <= 4; hyper.diag_blocks += hyper.diag_blocks ? 3 : 1)
        assert_ok(dsc_kfac_hyper_check(&o, &hyper));
}

static void test_good_combinations(void **state) {
    (void)state;
    dsc_kfac_options o = defaults(), read;
    o.colocate_factors = 0;
    assert_ok(dsc_kfac_options_read(&o, 4, &read));
    o.diag_blocks = 4;
    assert_ok(dsc_kfac_options_read(&o, 4, &read));
    assert_true(read.diag_blocks == 4);
    o = defaults();
    o.strategy = DSC_KFAC_HYBRID_OPT;
    o.colocate_factors = 0;
    assert_ok(dsc_kfac_options_read(&o, 4, &read));
    o.grad_worker_fraction = 1;
    assert_ok(dsc_kfac_options_read(&o, 1, &read)); /* one rank is all ranks */
    o.strategy = DSC_KFAC_COMM_OPT;
    o.grad_worker_fraction = 17; /* ignored by this strategy */
    assert_ok(dsc_kfac_options_read(&o, 1, &read));
    o = defaults();
    o.strategy = DSC_KFAC_MEM_OPT;
    o.outer_product = 1;
    o.damping = 1e-9;
    o.stat_decay = 1;
    o.kl_clip = 0;
    o.factor_freq = o.update_freq = 0;
    o.factor_dtype = DSC_F16;
    o.inverse_dtype = DSC_BF16;
    assert_ok(dsc_kfac_options_read(&o, 5, &read));
    o.inverse_dtype = DSC_F16; /* 1/damping overflows in it, eigenvectors do not */
    assert_fails(DSC_E_INVALID, "does not fit into fp16", dsc_kfac_options_read(&o, 5, &read));
    o.damping = 2e-5;
    assert_ok(dsc_kfac_options_read(&o, 5, &read));
    o.damping = 1e-9;
    o.outer_product = 0;
    assert_ok(dsc_kfac_options_read(&o, 5, &read));
    o.method = DSC_KFAC_INVERSE;
    assert_fails(DSC_E_INVALID, "does not fit into fp16", dsc_kfac_options_read(&o, 5, &read));
}

/* ---- the grid ---- */

static int rows_of(dsc_kfac_strategy strategy, double fraction, int ranks) {
    dsc_kfac_options o = defaults();
    int rows = 0;
    o.strategy = strategy;
    o.grad_worker_fraction = fraction;
    assert_ok(dsc_kfac_grid_rows(&o, ranks, &rows));
    return rows;
}

static void test_grid(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 64; ranks++) {
        assert_int_equal(rows_of(DSC_KFAC_COMM_OPT, 0.5, ranks), ranks);
        assert_int_equal(rows_of(DSC_KFAC_MEM_OPT, 0.5, ranks), 1);
        assert_int_equal(rows_of(DSC_KFAC_LAYER_WISE, 0.5, ranks), 1);
        for (int workers = 1; workers <= ranks; workers++)
            if (ranks % workers == 0)
                assert_int_equal(rows_of(DSC_KFAC_HYBRID_OPT, (double)workers / ranks, ranks), workers);
    }
    assert_int_equal(rows_of(DSC_KFAC_HYBRID_OPT, 0.25, 8), 2);
    assert_int_equal(rows_of(DSC_KFAC_HYBRID_OPT, 0.33, 3), 1); /* 0.99 workers: off by no more than 0.01 */
    assert_int_equal(rows_of(DSC_KFAC_HYBRID_OPT, 0.3333, 6), 2);
    assert_int_equal(rows_of(DSC_KFAC_HYBRID_OPT, 0, 6), 1); /* at least one */
    assert_int_equal(rows_of(DSC_KFAC_HYBRID_OPT, 1, 6), 6);
}

static void test_bad_fractions(void **state) {
    (void)state;
    dsc_kfac_options o = defaults();
    int rows = -1;
    o.strategy = DSC_KFAC_HYBRID_OPT;
    assert_fails(
        DSC_E_INVALID,
        "fraction 0.5 of 3 ranks is 1.5 workers a layer: must be a whole number that divides 3; valid are "
        "1/3 (1 worker), 1 (3 workers)",
        dsc_kfac_grid_rows(&o, 3, &rows));
    o.grad_worker_fraction = 2.0 / 3;
    assert_fails(
        DSC_E_INVALID,
        "is 4 workers a layer, which does not divide 6; valid are 1/6 (1 worker), 1/3 (2 workers), 1/2 (3 "
        "workers), 1 (6 workers)",
        dsc_kfac_grid_rows(&o, 6, &rows));
    o.grad_worker_fraction = 0.32;
    assert_fails(DSC_E_INVALID, "0.96 workers", dsc_kfac_grid_rows(&o, 3, &rows));
    o.grad_worker_fraction = 1.0001;
    assert_fails(DSC_E_INVALID, "must be in [0, 1]; of 2 ranks 1/2", dsc_kfac_grid_rows(&o, 2, &rows));
    o.grad_worker_fraction = -0.5;
    assert_fails(DSC_E_INVALID, "must be in [0, 1]", dsc_kfac_grid_rows(&o, 2, &rows));
    o.grad_worker_fraction = NAN;
    assert_fails(DSC_E_INVALID, "must be in [0, 1]", dsc_kfac_grid_rows(&o, 2, &rows));
    o.grad_worker_fraction = 0.3; /* more divisors than the message can hold */
    assert_fails(DSC_E_INVALID, "1/720720 (1 worker)", dsc_kfac_grid_rows(&o, 720720, &rows));
    assert_int_equal(rows, -1);
}

/* ---- layers ---- */

static float memory_of_gradients[64];

static dsc_conv2d_shape shape; /* of a_conv */

static dsc_kfac_layer a_conv(void) {
    dsc_kfac_layer l;
    dsc_conv2d_shape_init(&shape);
    shape.in_c = 6;
    shape.out_c = 4;
    shape.in_h = 9;
    shape.in_w = 7;
    shape.kernel_h = 3;
    shape.kernel_w = 2;
    dsc_kfac_layer_init(&l);
    l.name = "conv";
    l.kind = DSC_KFAC_CONV2D;
    l.conv = &shape;
    return l;
}

static dsc_kfac_layer a_linear(void) {
    dsc_kfac_layer l;
    dsc_kfac_layer_init(&l);
    l.name = "fc";
    l.in_c = 5;
    l.out_c = 3;
    return l;
}

static void set_gradient(dsc_tensor *t, dsc_dtype dtype, int64_t count) {
    *t = dsc_tensor_view(NULL, memory_of_gradients, dtype, 1, &count);
}

static void assert_sizes(const dsc_kfac_layer *l, int64_t a_n, int64_t g_n, int64_t units) {
    int64_t a = 0, g = 0, count = 0;
    assert_ok(dsc_kfac_layer_factors(l, &a, &g, &count));
    assert_int_equal(a, a_n);
    assert_int_equal(g, g_n);
    assert_int_equal(count, units);
}

static void test_layer_sizes(void **state) {
    (void)state;
    dsc_kfac_layer l = a_linear();
    assert_sizes(&l, 5, 3, 1);
    set_gradient(&l.bias_grad, DSC_F32, 3);
    assert_sizes(&l, 6, 3, 1);
    l = a_conv();
    assert_sizes(&l, 36, 4, 1);
    shape.groups = 2;
    set_gradient(&l.bias_grad, DSC_F32, 4);
    assert_sizes(&l, 19, 2, 2);
    assert_string_equal(dsc_kfac_kind_name(DSC_KFAC_LINEAR), "linear");
    assert_string_equal(dsc_kfac_kind_name(DSC_KFAC_CONV2D), "conv2d");
    assert_string_equal(dsc_kfac_kind_name((dsc_kfac_kind)-1), "unknown");
    assert_string_equal(dsc_kfac_kind_name(DSC_KFAC_BATCH_NORM), "batch_norm");
    assert_string_equal(dsc_kfac_kind_name(DSC_KFAC_CONV_TRANSPOSE2D), "conv_transpose2d");
    assert_string_equal(dsc_kfac_kind_name(DSC_KFAC_LAYER_NORM), "layer_norm");
    assert_string_equal(dsc_kfac_kind_name(DSC_KFAC_EMBEDDING), "embedding");
    assert_string_equal(dsc_kfac_kind_name(DSC_KFAC_TIED_HEAD), "tied_head");
    assert_string_equal(dsc_kfac_kind_name((dsc_kfac_kind)7), "unknown");
}

/* Samples and positions that a captured pair counts as: N and S of the scaling. */
static void test_captured_rows(void **state) {
    (void)state;
    dsc_kfac_layer given = a_conv(), *own;
    const int64_t images[4] = {2, 9, 7, 6}, outputs[4] = {2, 5, 2, 4}, rows[3] = {2, 3, 5},
                  short_rows[2] = {5, 3};
    dsc_kfac_pass pass;
    shape.groups = 2;
    shape.stride_h = shape.stride_w = 2;
    shape.pad_h = 1;
    shape.dilation_w = 3;
    set_gradient(&given.weight_grad, DSC_F32, 4 * 3 * 6);
    assert_ok(dsc_kfac_layers_copy(&given, 1, &own));
    dsc_tensor a = dsc_tensor_view(NULL, memory_of_gradients, DSC_F32, 4, images);
    dsc_tensor g = dsc_tensor_view(NULL, memory_of_gradients, DSC_F32, 4, outputs);
    assert_ok(dsc_kfac_kind_conv2d.capture(own, &a, &g, &pass));
    assert_int_equal(pass.samples, 2);
    assert_int_equal(pass.positions, 5 * 2); /* (9 + 2 - 3) / 2 + 1, (7 - 4) / 2 + 1 */
    dsc_kfac_layers_release(&own, 1);
    given = a_linear();
    assert_ok(dsc_kfac_layers_copy(&given, 1, &own));
    a = dsc_tensor_view(NULL, memory_of_gradients, DSC_F32, 3, rows);
    g = dsc_tensor_view(NULL, memory_of_gradients, DSC_F32, 2, short_rows);
    assert_fails(DSC_E_INVALID, "has 5 rows, its input makes 6",
                 dsc_kfac_kind_linear.capture(own, &a, &g, &pass));
    g = dsc_tensor_view(NULL, memory_of_gradients, DSC_F32, 3, (const int64_t[]){2, 3, 3});
    assert_ok(dsc_kfac_kind_linear.capture(own, &a, &g, &pass));
    assert_true(pass.samples == 6 && pass.positions == 1);
    dsc_kfac_layers_release(&own, 1);
}

/* Arrays of layers; structs that are larger than the library's, or were never initialised. */
static void test_layer_versions(void **state) {
    (void)state;
    dsc_kfac_layer pair[2] = {a_linear(), a_linear()}, *own;
    pair[1].name = "other";
    pair[1].in_c = 7;
    assert_ok(dsc_kfac_layers_copy(pair, 2, &own));
    assert_string_equal(own[1].name, "other");
    assert_true(own[1].name != pair[1].name && own[1].in_c == 7);
    dsc_kfac_layers_release(&own, 2);
    assert_null(own);
    pair[1].size = 0;
    assert_fails(DSC_E_INVALID, "dsc_kfac_layer_init", dsc_kfac_layers_copy(pair, 2, &own));
    pair[0].size = sizeof pair[0] + 8;
    assert_fails(DSC_E_INVALID, "dsc_kfac_layer_init", dsc_kfac_layers_copy(pair, 1, &own));
    assert_null(own);
    for (int nth = 1; nth <= 3; nth++) { /* the array, the name, the shape */
        dsc_kfac_layer l = a_conv();
        dsc_memory_fail_at(nth);
        dsc_status status = dsc_kfac_layers_copy(&l, 1, &own);
        dsc_memory_fail_at(0);
        assert_int_equal(status, DSC_E_MEMORY);
        assert_null(own);
    }
}

#define assert_bad_layer(start, change, text)                                                                \
    do {                                                                                                     \
        dsc_kfac_layer l = start();                                                                          \
        change;                                                                                              \
        int64_t a_n, g_n, units;                                                                             \
        assert_fails(DSC_E_INVALID, text, dsc_kfac_layer_factors(&l, &a_n, &g_n, &units));                   \
    } while (0)

static void test_bad_layers(void **state) {
    (void)state;
    assert_bad_layer(a_linear, l.name = NULL, "without a name");
    assert_bad_layer(a_linear, l.name = "", "without a name");
    assert_bad_layer(
        a_linear, l.kind = (dsc_kfac_kind)7,
        "layer 'fc': kind 7: must be one of linear (0), conv2d (1), batch_norm (2), conv_transpose2d (3), "
        "layer_norm (4), embedding (5), tied_head (6)");
    assert_bad_layer(a_linear, l.in_c = 0, "layer 'fc': inputs 0: must be in 1..");
    assert_bad_layer(a_linear, l.out_c = -3, "layer 'fc': outputs -3");
    assert_bad_layer(a_linear, l.in_c = (int64_t)1 << 40, "inputs 1099511627776: must be in 1..16777216");
    assert_bad_layer(a_conv, l.conv = NULL, "layer 'conv': a conv2d layer needs its shape");
    assert_bad_layer(a_conv, shape.size = 0, "dsc_conv2d_shape_init");
    assert_bad_layer(a_conv, shape.in_h = 0, "layer 'conv': input height 0");
    assert_bad_layer(a_conv, shape.in_w = -1, "input width -1");
    assert_bad_layer(a_conv, shape.kernel_h = 0, "kernel height 0");
    assert_bad_layer(a_conv, shape.kernel_w = (int64_t)1 << 60, "kernel width");
    assert_bad_layer(a_conv, shape.stride_w = 0, "stride 0");
    assert_bad_layer(a_conv, shape.pad_h = -1, "padding -1");
    assert_bad_layer(a_conv, shape.dilation_h = 0, "dilation 0");
    assert_bad_layer(a_conv, shape.dilation_h = INT64_MAX, "dilation 9223372036854775807");
    assert_bad_layer(a_conv, shape.groups = 0, "0 groups: must divide its 6 input and 4 output channels");
    assert_bad_layer(a_conv, shape.groups = 4, "4 groups: must divide");
    assert_bad_layer(a_conv, shape.groups = 3, "3 groups: must divide");
    assert_bad_layer(a_conv, shape.kernel_h = 10, "kernel of 10 x 2 does not fit into its input of 9 x 7");
    assert_bad_layer(a_conv, shape.dilation_w = 7, "does not fit");
    assert_bad_layer(a_conv, shape.in_h = shape.in_w = shape.kernel_h = shape.kernel_w = 5000,
                     "factor A would have 25000000 rows, at most 16777216 are possible: skip the layer");
    assert_bad_layer(a_conv, shape.in_c = 6000000, "factor A would have 36000000 rows");
    assert_bad_layer(a_linear, set_gradient(&l.weight_grad, DSC_F32, 14),
                     "layer 'fc': the gradient of its weight has 14 numbers: must be 15");
    assert_bad_layer(a_linear, set_gradient(&l.bias_grad, DSC_F32, 5), "its bias has 5 numbers: must be 3");
    assert_bad_layer(a_linear, set_gradient(&l.weight_grad, DSC_BF16, 15), "is bf16: must be fp32 or fp64");
    assert_bad_layer(a_linear, set_gradient(&l.weight_grad, DSC_F32, 15);
                     set_gradient(&l.bias_grad, DSC_F64, 3), "must be of one type and on one device");
}

/* Column j, counted channel by channel, is kernel position j % (kh kw) of channel j / (kh kw). */
static void test_block_order(void **state) {
    (void)state;
    dsc_kfac_layer l = a_conv();
    shape.groups = 2;
    set_gradient(&l.bias_grad, DSC_F32, 4);
    int64_t j = 0, channels = 3;
    for (int64_t c = 0; c < channels; c++)
        for (int64_t y = 0; y < shape.kernel_h; y++)
            for (int64_t x = 0; x < shape.kernel_w; x++, j++)
                assert_int_equal(dsc_kfac_kind_conv2d.column(&l, j), (y * shape.kernel_w + x) * channels + c);
    assert_int_equal(dsc_kfac_kind_conv2d.column(&l, j), j); /* the bias */
    assert_int_equal(j + 1, dsc_kfac_kind_conv2d.sizes(&l).a_n);
    l = a_linear();
    for (int64_t i = 0; i < 5; i++)
        assert_int_equal(dsc_kfac_kind_linear.column(&l, i), i);
}

/* ---- skipped layers ---- */

static void assert_skipped(const char *expressions, const char *wanted) {
    const char *const names[] = {"conv1",           "layer1.0.conv1", "layer1.0.conv2",
                                 "layer10.0.conv1", "linear_conv",    "fc"};
    dsc_kfac_layer layers[6];
    unsigned char skip[6];
    for (int i = 0; i < 6; i++) {
        layers[i] = i < 4 ? a_conv() : a_linear();
        layers[i].name = names[i];
        skip[i] = 9;
    }
    assert_ok(dsc_kfac_skip(layers, 6, expressions, skip));
    for (int i = 0; i < 6; i++)
        assert_int_equal(skip[i], wanted[i] == 'x');
}

static void test_skip(void **state) {
    (void)state;
    assert_skipped(NULL, "......");
    assert_skipped("", "......");
    assert_skipped("  \t ", "......");
    assert_skipped("nothing", "......");
    assert_skipped("conv1", "xx.x.."); /* found anywhere in the name */
    assert_skipped("^conv1$", "x.....");
    assert_skipped("linear", "....xx"); /* name or kind */
    assert_skipped("conv2d", "xxxx..");
    assert_skipped("^layer1\\.", ".xx...");
    assert_skipped("^fc$ conv2$", "..x..x");
    assert_skipped("  ^fc$   conv2$ ", "..x..x");
    assert_skipped("layer(1|10)\\.0\\.conv[0-9]", ".xxx..");
    assert_skipped("FC", "......");
    assert_skipped(".", "xxxxxx");
}

static void test_bad_expressions(void **state) {
    (void)state;
    dsc_kfac_layer l = a_linear();
    unsigned char skip;
    assert_fails(DSC_E_INVALID,
                 "'(' is not a POSIX extended regular expression: ", dsc_kfac_skip(&l, 1, "fc (", &skip));
    assert_fails(DSC_E_INVALID, "'[a'", dsc_kfac_skip(&l, 1, "[a", &skip));
    dsc_memory_fail_at(1);
    dsc_status status = dsc_kfac_skip(&l, 1, "fc", &skip);
    dsc_memory_fail_at(0);
    assert_int_equal(status, DSC_E_MEMORY);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_older_callers),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_bad_numbers),
        cmocka_unit_test(test_bad_combinations),
        cmocka_unit_test(test_blocks_of_a_step),
        cmocka_unit_test(test_good_combinations),
        cmocka_unit_test(test_grid),
        cmocka_unit_test(test_bad_fractions),
        cmocka_unit_test(test_layer_sizes),
        cmocka_unit_test(test_bad_layers),
        cmocka_unit_test(test_block_order),
        cmocka_unit_test(test_captured_rows),
        cmocka_unit_test(test_layer_versions),
        cmocka_unit_test(test_skip),
        cmocka_unit_test(test_bad_expressions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
