/* The plan: placement by its rules, on hand-made lists and on ResNets, for all numbers of ranks; the work, memory and
 * traffic of each rank compared with formulas implemented a second time, rank by rank; the published sizes and figures
 * of ResNet-50. */
#include "test.h"

#include "base/memory.h"
#include "kfac/placement.h"

#include <math.h>

enum { MAX_LAYERS = 160, NAME_SIZE = 32 };

/* ---- lists of layers ---- */

typedef struct layer_list {
    dsc_kfac_layer layers[MAX_LAYERS];
    dsc_conv2d_shape shapes[MAX_LAYERS];
    char names[MAX_LAYERS][NAME_SIZE];
    int64_t count;
} layer_list;

static float some_memory; /* a bias exists when its gradient has memory, which is never read */

static dsc_kfac_layer *add(layer_list *list, const char *name, dsc_kfac_kind kind, int64_t in_c,
                           int64_t out_c) {
    dsc_kfac_layer *layer = &list->layers[list->count];
    snprintf(list->names[list->count], NAME_SIZE, "%s", name);
    dsc_kfac_layer_init(layer);
    layer->name = list->names[list->count++];
    layer->kind = kind;
    layer->in_c = in_c;
    layer->out_c = out_c;
    return layer;
}

static void add_conv(layer_list *list, const char *name, int64_t in_c, int64_t out_c, int64_t kernel) {
    dsc_conv2d_shape *shape = &list->shapes[list->count];
    dsc_kfac_layer *layer = add(list, name, DSC_KFAC_CONV2D, in_c, out_c);
    dsc_conv2d_shape_init(shape);
    shape->in_h = shape->in_w = 8;
    shape->in_c = in_c;
    shape->out_c = out_c;
    shape->kernel_h = shape->kernel_w = kernel;
    shape->pad_h = shape->pad_w = kernel / 2;
    layer->conv = shape;
}

static void add_bias(dsc_kfac_layer *layer) {
    layer->bias_grad = dsc_tensor_view(NULL, &some_memory, DSC_F32, 1, &layer->out_c);
}

/* Linear layers without bias: A of a[i] rows, G of g[i]. */
static void add_sizes(layer_list *list, const int64_t (*sizes)[2], int64_t count) {
    char name[NAME_SIZE];
    for (int64_t i = 0; i < count; i++) {
        snprintf(name, sizeof name, "l%lld", (long long)i);
        add(list, name, DSC_KFAC_LINEAR, sizes[i][0], sizes[i][1]);
    }
}

/* The convolutions of an ImageNet ResNet of bottlenecks, in their order, and its last layer. */
static void add_resnet(layer_list *list, const int blocks[4]) {
    char name[NAME_SIZE];
    int64_t in = 64;
    add_conv(list, "conv1", 3, 64, 7);
    for (int s = 0; s < 4; s++) {
        int64_t width = (int64_t)64 << s;
        for (int b = 0; b < blocks[s]; b++) {
            const struct {
                const char *part;
                int64_t in, out, kernel;
            } convs[] = {{"conv1", in, width, 1},
                         {"conv2", width, width, 3},
                         {"conv3", width, 4 * width, 1},
                         {"downsample.0", in, 4 * width, 1}};
            for (int c = 0; c < (b == 0 ? 4 : 3); c++) {
                snprintf(name, sizeof name, "layer%d.%d.%s", s + 1, b, convs[c].part);
                add_conv(list, name, convs[c].in, convs[c].out, convs[c].kernel);
            }
            in = 4 * width;
        }
    }
    add_bias(add(list, "fc", DSC_KFAC_LINEAR, 2048, 1000));
}

static const int resnet50[4] = {3, 4, 6, 3};

static dsc_kfac_options make_options(dsc_kfac_strategy strategy, dsc_kfac_placement placement, int colocate) {
    dsc_kfac_options o;
    dsc_kfac_options_init(&o);
    o.strategy = strategy;
    o.placement = placement;
    o.colocate_factors = colocate;
    return o;
}

static dsc_kfac_plan *make_plan(const layer_list *list, int ranks, const dsc_kfac_options *o) {
    dsc_kfac_plan *plan = NULL;
    assert_ok(dsc_kfac_plan_create(list->layers, list->count, ranks, o, o->diag_blocks, &plan));
    return plan;
}

static void assert_owners(const dsc_kfac_plan *plan, const int *owners, int64_t count) {
    assert_int_equal(dsc_kfac_plan_item_count(plan), count);
    for (int64_t i = 0; i < count; i++)
        assert_int_equal(dsc_kfac_plan_items(plan)[i].owner, owners[i]);
}

/* Plans `sizes` and compares the owners of all items, and the columns of all units. */
static void assert_placed(const int64_t (*sizes)[2], int64_t count, int ranks, const dsc_kfac_options *o,
                          const int *columns, const int *owners) {
    layer_list list = {.count = 0};
    add_sizes(&list, sizes, count);
    dsc_kfac_plan *plan = make_plan(&list, ranks, o);
    assert_owners(plan, owners, 2 * count);
    for (int64_t u = 0; u < count; u++)
        assert_int_equal(dsc_kfac_plan_units(plan)[u].column, columns[u]);
    dsc_kfac_plan_destroy(&plan);
    assert_null(plan);
}

/* ---- placement, by hand ---- */

static const int64_t small[5][2] = {{4, 2}, {3, 3}, {10, 1}, {4, 2}, {5, 5}};

static void test_round_robin(void **state) {
    (void)state;
    dsc_kfac_options o = make_options(DSC_KFAC_COMM_OPT, DSC_KFAC_ROUND_ROBIN, 1);
    assert_placed(small, 5, 3, &o, (int[]){0, 0, 0, 0, 0}, (int[]){0, 0, 1, 1, 2, 2, 0, 0, 1, 1});
    o.colocate_factors = 0;
    assert_placed(small, 5, 3, &o, (int[]){0, 0, 0, 0, 0}, (int[]){0, 1, 2, 0, 1, 2, 0, 1, 2, 0});
    /* 6 ranks in 2 rows of 3: column c is ranks c and c + 3, taking turns */
    o = make_options(DSC_KFAC_HYBRID_OPT, DSC_KFAC_ROUND_ROBIN, 1);
    o.grad_worker_fraction = 1.0 / 3;
    assert_placed(small, 5, 6, &o, (int[]){0, 1, 2, 0, 1}, (int[]){0, 0, 1, 1, 2, 2, 3, 3, 4, 4});
    o.colocate_factors = 0;
    assert_placed(small, 5, 6, &o, (int[]){0, 1, 2, 0, 1}, (int[]){0, 3, 1, 4, 2, 5, 0, 3, 1, 4});
    o = make_options(DSC_KFAC_MEM_OPT, DSC_KFAC_ROUND_ROBIN, 1);
    assert_placed(small, 5, 2, &o, (int[]){0, 1, 0, 1, 0}, (int[]){0, 0, 1, 1, 0, 0, 1, 1, 0, 0});
}

static void test_by_cost(void **state) {
    (void)state;
    /* n^3: 72, 54, 1001, 72, 250; so layers 2, 4, 0, 3 (of two equal ones the lower first), 1 */
    dsc_kfac_options o = make_options(DSC_KFAC_MEM_OPT, DSC_KFAC_COMPUTE, 1);
    assert_placed(small, 5, 3, &o, (int[]){2, 2, 0, 2, 1}, (int[]){2, 2, 2, 2, 0, 0, 2, 2, 1, 1});
    o.strategy = DSC_KFAC_COMM_OPT;
    assert_placed(small, 5, 3, &o, (int[]){0, 0, 0, 0, 0}, (int[]){2, 2, 2, 2, 0, 0, 2, 2, 1, 1});
    /* n^2: 20, 18, 101, 20, 50: the same order; loads 101, 50, 20, 40, then 18 more on rank 2 (40) */
    o.placement = DSC_KFAC_MEMORY;
    assert_placed(small, 5, 3, &o, (int[]){0, 0, 0, 0, 0}, (int[]){2, 2, 2, 2, 0, 0, 2, 2, 1, 1});
    /* spread, in that order: 1000 to rank 0, 1 to 1, 125 to 2, 125 to 1, 64 to 2, 8 to 1, 64 to 1, 8 to 2, 27
     * to 2, 27 to 1 */
    o = make_options(DSC_KFAC_COMM_OPT, DSC_KFAC_COMPUTE, 0);
    assert_placed(small, 5, 3, &o, (int[]){0, 0, 0, 0, 0}, (int[]){2, 1, 2, 1, 0, 1, 1, 2, 2, 1});
    /* two columns of two ranks: 1001 | 250, 72, 72, 54; in a column the larger item first */
    o = make_options(DSC_KFAC_HYBRID_OPT, DSC_KFAC_COMPUTE, 0);
    assert_placed(small, 5, 4, &o, (int[]){1, 1, 0, 1, 1}, (int[]){1, 3, 1, 3, 0, 2, 3, 1, 1, 3});
}

/* Placement by work and by size differ. */
static void test_compute_is_not_memory(void **state) {
    (void)state;
    const int64_t sizes[3][2] = {{10, 1}, {8, 8}, {8, 8}}; /* n^3: 1001 1024 1024; n^2: 101 128 128 */
    const int64_t apart[2][2] = {{11, 1}, {9, 8}};         /* n^3: 1332 1241; n^2: 122 145 */
    dsc_kfac_options o = make_options(DSC_KFAC_MEM_OPT, DSC_KFAC_COMPUTE, 1);
    assert_placed(sizes, 3, 2, &o, (int[]){0, 0, 1}, (int[]){0, 0, 0, 0, 1, 1});
    assert_placed(apart, 2, 2, &o, (int[]){0, 1}, (int[]){0, 0, 1, 1});
    o.placement = DSC_KFAC_MEMORY;
    assert_placed(apart, 2, 2, &o, (int[]){1, 0}, (int[]){1, 1, 0, 0});
}

/* KAISA's example: 8 workers, 2 of them for a layer: columns {0,4} {1,5} {2,6} {3,7}. */
static void test_kaisa_grid(void **state) {
    (void)state;
    layer_list list = {.count = 0};
    add_resnet(&list, resnet50);
    dsc_kfac_options o = make_options(DSC_KFAC_HYBRID_OPT, DSC_KFAC_COMPUTE, 0);
    o.grad_worker_fraction = 0.25;
    dsc_kfac_plan *plan = make_plan(&list, 8, &o);
    assert_int_equal(dsc_kfac_plan_rows(plan), 2);
    assert_int_equal(dsc_kfac_plan_columns(plan), 4);
    int used[8] = {0};
    for (int64_t i = 0; i < dsc_kfac_plan_item_count(plan); i++) {
        const dsc_kfac_item *item = &dsc_kfac_plan_items(plan)[i];
        int column = dsc_kfac_plan_units(plan)[item->unit].column;
        assert_true(item->owner == column || item->owner == column + 4);
        used[item->owner] = 1;
    }
    for (int r = 0; r < 8; r++)
        assert_int_equal(used[r], 1);
    dsc_kfac_plan_destroy(&plan);
}

/* ---- units and items ---- */

static void test_groups_and_skips(void **state) {
    (void)state;
    layer_list list = {.count = 0};
    add_conv(&list, "stem", 3, 8, 3);
    add_conv(&list, "wide", 8, 12, 3);
    list.shapes[1].groups = 4;
    add_bias(&list.layers[1]);
    add_bias(add(&list, "fc1", DSC_KFAC_LINEAR, 20, 10));
    add(&list, "fc2", DSC_KFAC_LINEAR, 10, 5);
    dsc_kfac_options o = make_options(DSC_KFAC_COMM_OPT, DSC_KFAC_ROUND_ROBIN, 1);
    o.skip_layers = "^stem$ fc2";
    dsc_kfac_plan *plan = make_plan(&list, 2, &o);
    assert_int_equal(dsc_kfac_plan_unit_count(plan), 5);
    for (int64_t u = 0; u < 4; u++) {
        const dsc_kfac_unit *unit = &dsc_kfac_plan_units(plan)[u];
        char name[NAME_SIZE];
        snprintf(name, sizeof name, "wide[%d]", (int)u);
        assert_string_equal(unit->name, name);
        assert_int_equal(unit->layer, 1);
        assert_int_equal(unit->group, u);
        assert_int_equal(unit->a_n, 9 * 2 + 1);
        assert_int_equal(unit->g_n, 3);
        assert_int_equal(unit->first_item, 2 * u);
    }
    const dsc_kfac_unit *last = &dsc_kfac_plan_units(plan)[4];
    assert_string_equal(last->name, "fc1");
    assert_int_equal(last->layer, 2);
    assert_int_equal(last->kind, DSC_KFAC_LINEAR);
    assert_int_equal(last->a_n, 21);
    assert_int_equal(last->g_n, 10);
    dsc_kfac_plan_destroy(&plan);
    o.skip_layers = "linear conv"; /* nothing is left */
    plan = make_plan(&list, 3, &o);
    assert_int_equal(dsc_kfac_plan_unit_count(plan), 0);
    assert_true(dsc_kfac_plan_loads(plan)[2].work == 0);
    dsc_kfac_plan_destroy(&plan);
}

static void test_blocks(void **state) {
    (void)state;
    layer_list list = {.count = 0};
    add_conv(&list, "conv", 5, 3,
             3); /* A 45, G 3: blocks of 11 11 11 12 and, at most as many as rows, 1 1 1 */
    add(&list, "fc", DSC_KFAC_LINEAR, 9, 9);
    dsc_kfac_options o = make_options(DSC_KFAC_COMM_OPT, DSC_KFAC_ROUND_ROBIN, 1);
    o.diag_blocks = 4;
    dsc_kfac_plan *plan = make_plan(&list, 3, &o);
    const int64_t n[9] = {11, 11, 11, 12, 1, 1, 1, 9, 9}, first[9] = {0, 11, 22, 33, 0, 1, 2, 0, 0};
    const int64_t block[9] = {0, 1, 2, 3, 0, 1, 2, 0, 0};
    /* blocks take turns one by one, co-located or not; the linear layer stays together */
    assert_owners(plan, (int[]){0, 1, 2, 0, 1, 2, 0, 1, 1}, 9);
    for (int i = 0; i < 9; i++) {
        const dsc_kfac_item *item = &dsc_kfac_plan_items(plan)[i];
        assert_int_equal(item->n, n[i]);
        assert_int_equal(item->first, first[i]);
        assert_int_equal(item->block, block[i]);
        assert_int_equal(item->unit, i >= 7);
        assert_int_equal(item->side, i < 4 || i == 7 ? DSC_KFAC_A : DSC_KFAC_G);
    }
    assert_int_equal(dsc_kfac_plan_units(plan)[1].first_item, 7);
    dsc_kfac_plan_destroy(&plan);
    o.placement = DSC_KFAC_COMPUTE; /* 12 11 11 11 1 1 1, then 9 and 9 together */
    plan = make_plan(&list, 3, &o);
    assert_owners(plan, (int[]){1, 2, 1, 0, 2, 2, 2, 2, 2}, 9);
    dsc_kfac_plan_destroy(&plan);
    /* whole factors with the same options: the warm-up */
    assert_ok(dsc_kfac_plan_create(list.layers, list.count, 3, &o, 1, &plan));
    assert_int_equal(dsc_kfac_plan_item_count(plan), 4);
    dsc_kfac_plan_destroy(&plan);
    assert_fails(DSC_E_INVALID, "with 3 diagonal blocks: must be 1 or the 4",
                 dsc_kfac_plan_create(list.layers, list.count, 3, &o, 3, &plan));
    assert_null(plan);
}

/* ---- what each rank does: the formulas, written rank by rank ---- */

static double half_or(dsc_dtype dtype, double grad) {
    return dtype == DSC_F32 ? grad : 2;
}

/* The number of elements of a symmetric matrix in a message. */
static double wire(const dsc_kfac_options *o, double n) {
    return o->symmetric ? n * (n + 1) / 2 : n * n;
}

typedef struct expectation {
    double work, factors, decompositions, exchange, factors_sent, decompositions_sent, preconditioned_sent;
} expectation;

/* Adds one factor to the expected load of a rank. */
static void expect_factor(const dsc_kfac_options *o, int ranks, int rows, int mine, double n, double s,
                          expectation *e) {
    double sf = half_or(o->factor_dtype, s), b = wire(o, n) * sf;
    if (rows == ranks || mine)
        e->factors += n * (n + 1) / 2 * sf;
    if (ranks > 1 || o->passes > 1)
        e->exchange += wire(o, n) * s;
    if (ranks > 1 && rows == ranks)
        e->factors_sent += b * 2 * (ranks - 1) / ranks;
    else if (ranks > 1 && !mine)
        e->factors_sent += b;
}

/* Adds one item to the expected load of a rank, for a unit in its column or not. */
static void expect_item(const dsc_kfac_options *o, int rows, int here, int mine, double n, double s,
                        expectation *e) {
    double si = half_or(o->inverse_dtype, s), vectors = n * n * si, values = n * s;
    double message = o->method == DSC_KFAC_INVERSE ? wire(o, n) * si
                     : o->outer_product            ? vectors
                                                   : vectors + values;
    if (here)
        e->decompositions += vectors;
    if (o->method == DSC_KFAC_EIGEN && (o->outer_product ? mine : here))
        e->decompositions += values;
    if (mine) {
        e->work += n * n * n;
        e->decompositions_sent += (rows - 1) * message;
    }
}

static expectation expect(const dsc_kfac_plan *plan, const dsc_kfac_options *o, double s, int r) {
    expectation e = {0};
    int rows = dsc_kfac_plan_rows(plan), columns = dsc_kfac_plan_columns(plan), ranks = rows * columns;
    for (int64_t u = 0; u < dsc_kfac_plan_unit_count(plan); u++) {
        const dsc_kfac_unit *unit = &dsc_kfac_plan_units(plan)[u];
        const dsc_kfac_item *items = dsc_kfac_plan_items(plan) + unit->first_item;
        int here = unit->column == r % columns;
        double area = (double)unit->g_n * (double)unit->a_n, si = half_or(o->inverse_dtype, s);
        expect_factor(o, ranks, rows, items[0].owner == r, (double)unit->a_n, s, &e);
        expect_factor(o, ranks, rows, items[unit->a_blocks].owner == r, (double)unit->g_n, s, &e);
        for (int64_t i = 0; i < unit->a_blocks + unit->g_blocks; i++)
            expect_item(o, rows, here, items[i].owner == r, (double)items[i].n, s, &e);
        if (o->outer_product && here)
            e.decompositions += area * si;
        if (o->outer_product && items[0].owner == r)
            e.decompositions_sent += (rows - 1) * area * si;
        if (here)
            e.preconditioned_sent += (columns - 1) * area * s;
    }
    return e;
}

/* Compares the loads exactly, as they are sums of whole numbers below 2^53, except where 2(N-1)/N rounds. */
static void assert_loads(const dsc_kfac_plan *plan, const dsc_kfac_options *o, double s) {
    int ranks = dsc_kfac_plan_rows(plan) * dsc_kfac_plan_columns(plan);
    for (int r = 0; r < ranks; r++) {
        const dsc_kfac_load *load = &dsc_kfac_plan_loads(plan)[r];
        expectation e = expect(plan, o, s, r);
        double terms = 4.0 * (double)dsc_kfac_plan_item_count(plan);
        assert_true(load->work == e.work);
        assert_true((double)load->factor_bytes == e.factors);
        assert_true((double)load->decomposition_bytes == e.decompositions);
        assert_true((double)load->exchange_bytes == e.exchange);
        assert_true(fabs(load->factors_sent - e.factors_sent) <= terms * 2.3e-16 * e.factors_sent);
        assert_true(load->decompositions_sent == e.decompositions_sent);
        assert_true(load->preconditioned_sent == e.preconditioned_sent);
    }
}

/* Checks that owners are in their unit's column and together where asked for, that the work adds up, and that the
 * slowest rank is within the bound of greedy placement. */
static void assert_sound(const dsc_kfac_plan *plan, const dsc_kfac_options *o) {
    int rows = dsc_kfac_plan_rows(plan), columns = dsc_kfac_plan_columns(plan), ranks = rows * columns;
    double all = 0, done = 0, slowest = 0, largest_item = 0, largest_unit = 0;
    for (int64_t u = 0; u < dsc_kfac_plan_unit_count(plan); u++) {
        const dsc_kfac_unit *unit = &dsc_kfac_plan_units(plan)[u];
        const dsc_kfac_item *items = dsc_kfac_plan_items(plan) + unit->first_item;
        double cost = 0;
        assert_in_range(unit->column, 0, columns - 1);
        for (int64_t i = 0; i < unit->a_blocks + unit->g_blocks; i++) {
            double n = (double)items[i].n;
            assert_int_equal(items[i].unit, u);
            assert_in_range(items[i].owner, 0, ranks - 1);
            assert_int_equal(items[i].owner % columns, unit->column);
            cost += n * n * n;
            largest_item = fmax(largest_item, n * n * n);
        }
        if (o->colocate_factors && unit->a_blocks + unit->g_blocks == 2)
            assert_int_equal(items[0].owner, items[1].owner);
        largest_unit = fmax(largest_unit, cost);
        all += cost;
    }
    for (int r = 0; r < ranks; r++) {
        done += dsc_kfac_plan_loads(plan)[r].work;
        slowest = fmax(slowest, dsc_kfac_plan_loads(plan)[r].work);
    }
    assert_true(done == all);
    /* A column is at most its mean and (1 - 1/C) of a unit, a rank in it at most the column's mean and (1 -
     * 1/m) of what is placed at once. */
    double piece = o->colocate_factors ? largest_unit : largest_item;
    double bound = all / ranks + largest_unit / rows * (1 - 1.0 / columns) + piece * (1 - 1.0 / rows);
    if (o->placement == DSC_KFAC_COMPUTE)
        assert_true(slowest <= bound * (1 + 1e-12));
}

/* Method, types and other options take turns, so that each of them is combined with every grid. */
static void vary(dsc_kfac_options *o, int turn) {
    const dsc_dtype types[3] = {DSC_F32, DSC_BF16, DSC_F16};
    o->method = turn % 3 == 0 ? DSC_KFAC_INVERSE : DSC_KFAC_EIGEN;
    o->symmetric = turn % 2;
    o->outer_product = turn % 5 == 1 && o->method == DSC_KFAC_EIGEN && o->colocate_factors;
    o->factor_dtype = types[turn / 2 % 3];
    o->inverse_dtype = types[turn / 7 % 3];
    o->passes = 1 + turn % 11 / 8;
}

static int check_case(const layer_list *list, int ranks, dsc_kfac_options *o, int turn) {
    double s = list->layers[0].weight_grad.dtype == DSC_F64 ? 8 : 4;
    int rows = 0;
    assert_ok(dsc_kfac_grid_rows(o, ranks, &rows));
    if (!o->colocate_factors && (rows == 1 && (ranks > 1 || o->strategy != DSC_KFAC_HYBRID_OPT)) &&
        o->strategy != DSC_KFAC_COMM_OPT)
        return turn; /* refused; see test_options.c */
    vary(o, turn);
    dsc_kfac_plan *plan = make_plan(list, ranks, o);
    assert_int_equal(dsc_kfac_plan_rows(plan), rows);
    assert_int_equal(dsc_kfac_plan_columns(plan) * rows, ranks);
    assert_sound(plan, o);
    assert_loads(plan, o, s);
    dsc_kfac_plan_destroy(&plan);
    return turn + 1;
}

/* Ranks x strategies x fractions x placements x co-location. */
static int check_all(const layer_list *list, int most_ranks) {
    const dsc_kfac_strategy strategies[] = {DSC_KFAC_COMM_OPT, DSC_KFAC_MEM_OPT, DSC_KFAC_LAYER_WISE,
                                            DSC_KFAC_HYBRID_OPT};
    int turn = 0;
    for (int ranks = 1; ranks <= most_ranks; ranks++)
        for (int which = 0; which < 6 * 4; which++) {
            dsc_kfac_options o =
                make_options(strategies[which / 6], (dsc_kfac_placement)(which % 3), which / 3 % 2);
            for (int workers = 1; workers <= (o.strategy == DSC_KFAC_HYBRID_OPT ? ranks : 1); workers++) {
                o.grad_worker_fraction = (double)workers / ranks;
                if (ranks % workers == 0)
                    turn = check_case(list, ranks, &o, turn);
            }
        }
    return turn;
}

static void test_resnet_on_all_grids(void **state) {
    (void)state;
    layer_list list = {.count = 0};
    add_resnet(&list, resnet50);
    assert_true(check_all(&list, 64) > 2000);
}

static void test_small_net_on_all_grids(void **state) {
    (void)state;
    layer_list list = {.count = 0};
    add_conv(&list, "conv", 6, 9, 3);
    list.shapes[0].groups = 3;
    add_bias(add(&list, "fc1", DSC_KFAC_LINEAR, 40, 30));
    add(&list, "fc2", DSC_KFAC_LINEAR, 30, 10);
    for (int64_t i = 0; i < list.count; i++)
        list.layers[i].weight_grad.dtype = DSC_F64;
    list.layers[1].bias_grad.dtype = DSC_F64;
    assert_true(check_all(&list, 12) > 300);
}

static void test_block_loads(void **state) {
    (void)state;
    layer_list list = {.count = 0};
    add_resnet(&list, resnet50);
    for (int which = 0; which < 24; which++) {
        dsc_kfac_options o = make_options(DSC_KFAC_COMM_OPT, (dsc_kfac_placement)(which % 3), which / 3 % 2);
        o.diag_blocks = 2 + which;
        o.method = which % 4 == 1 ? DSC_KFAC_INVERSE : DSC_KFAC_EIGEN;
        dsc_kfac_plan *plan = make_plan(&list, 1 + which, &o);
        assert_sound(plan, &o);
        assert_loads(plan, &o, 4);
        dsc_kfac_plan_destroy(&plan);
    }
}

/* ---- strategies that are equal ---- */

static void assert_same_plan(const layer_list *list, int ranks, const dsc_kfac_options *x,
                             const dsc_kfac_options *y) {
    dsc_kfac_plan *a = make_plan(list, ranks, x), *b = make_plan(list, ranks, y);
    assert_int_equal(a->rows, b->rows);
    for (int64_t i = 0; i < a->item_count; i++)
        assert_int_equal(a->items[i].owner, b->items[i].owner);
    for (int64_t u = 0; u < a->unit_count; u++)
        assert_int_equal(a->units[u].column, b->units[u].column);
    assert_memory_equal(a->loads, b->loads, (size_t)ranks * sizeof *a->loads);
    dsc_kfac_plan_destroy(&a);
    dsc_kfac_plan_destroy(&b);
}

static void test_equal_strategies(void **state) {
    (void)state;
    layer_list list = {.count = 0};
    add_resnet(&list, resnet50);
    for (int which = 0; which < 3; which++) {
        dsc_kfac_options hybrid = make_options(DSC_KFAC_HYBRID_OPT, (dsc_kfac_placement)which, 1);
        dsc_kfac_options other = hybrid;
        hybrid.grad_worker_fraction = 1;
        other.strategy = DSC_KFAC_COMM_OPT;
        assert_same_plan(&list, 6, &hybrid, &other);
        hybrid.grad_worker_fraction = 1.0 / 6;
        other.strategy = DSC_KFAC_MEM_OPT;
        assert_same_plan(&list, 6, &hybrid, &other);
        hybrid.strategy = DSC_KFAC_LAYER_WISE;
        assert_same_plan(&list, 6, &hybrid, &other);
    }
}

/* ---- published figures ---- */

/* The K-FAC layers of ResNet-50: 108 factors, how many of each size, 615 MB, 308 MB packed. */
static void test_resnet50_sizes(void **state) {
    (void)state;
    const int64_t sizes[13][2] = {{3, 4608},  {6, 2304}, {6, 2048}, {1, 2049}, {4, 1152},
                                  {14, 1024}, {1, 1000}, {3, 576},  {19, 512}, {26, 256},
                                  {1, 147},   {12, 128}, {12, 64}};
    layer_list list = {.count = 0};
    add_resnet(&list, resnet50);
    assert_int_equal(list.count, 54);
    dsc_kfac_options o;
    dsc_kfac_options_init(&o);
    dsc_kfac_plan *plan = make_plan(&list, 2, &o);
    assert_int_equal(dsc_kfac_plan_unit_count(plan), 54);
    assert_int_equal(dsc_kfac_plan_item_count(plan), 108);
    double whole = 0;
    for (int k = 0; k < 13; k++) {
        int64_t found = 0;
        for (int64_t i = 0; i < 108; i++)
            found += dsc_kfac_plan_items(plan)[i].n == sizes[k][1];
        assert_int_equal(found, sizes[k][0]);
        whole += 4.0 * (double)(sizes[k][0] * sizes[k][1] * sizes[k][1]);
    }
    assert_int_equal((int)round(whole / 1e6), 615);
    assert_int_equal((int)round((double)dsc_kfac_plan_loads(plan)[0].factor_bytes / 1e6), 308);
    assert_int_equal((int)round((double)dsc_kfac_plan_loads(plan)[1].factor_bytes / 1e6), 308);
    /* packed factors by an all-reduce of two ranks: as much as one rank holds */
    assert_int_equal((int)round(dsc_kfac_plan_loads(plan)[0].factors_sent / 1e6), 308);
    dsc_kfac_plan_destroy(&plan);
    o.symmetric = 0;
    plan = make_plan(&list, 2, &o);
    assert_int_equal((int)round(dsc_kfac_plan_loads(plan)[0].factors_sent / 1e6), 615);
    assert_int_equal((int)round((double)dsc_kfac_plan_loads(plan)[0].exchange_bytes / 1e6), 615);
    dsc_kfac_plan_destroy(&plan);
}

/* Least and most of the sum of n^2 over a rank's items. */
static void parameter_range(const dsc_kfac_plan *plan, int ranks, double *least, double *most) {
    *least = HUGE_VAL;
    *most = 0;
    for (int r = 0; r < ranks; r++) {
        double sum = 0;
        for (int64_t i = 0; i < dsc_kfac_plan_item_count(plan); i++) {
            const dsc_kfac_item *item = &dsc_kfac_plan_items(plan)[i];
            sum += item->owner == r ? (double)(item->n * item->n) : 0;
        }
        *least = fmin(*least, sum);
        *most = fmax(*most, sum);
    }
}

/* What the SC'20 paper says of round-robin placement (section VI-C4): numbers assigned to a worker range from
 * 1.46e6 to 2.83e7 on 16 and from 1.64e4 to 2.26e7 on 64 workers. The paper's program keeps the factors of a layer
 * together until there are more workers than layers. */
static void test_papers_round_robin(void **state) {
    (void)state;
    double least, most;
    layer_list list = {.count = 0};
    add_resnet(&list, resnet50);
    dsc_kfac_options o = make_options(DSC_KFAC_COMM_OPT, DSC_KFAC_ROUND_ROBIN, 1);
    dsc_kfac_plan *plan = make_plan(&list, 16, &o);
    parameter_range(plan, 16, &least, &most);
    assert_int_equal((int)round(least / 1e4), 146);
    assert_int_equal((int)round(most / 1e5), 283);
    dsc_kfac_plan_destroy(&plan);
    o.colocate_factors = 0;
    plan = make_plan(&list, 64, &o);
    parameter_range(plan, 64, &least, &most);
    assert_int_equal((int)round(least / 1e2), 164);
    assert_int_equal((int)round(most / 1e5), 226);
    dsc_kfac_plan_destroy(&plan);
}

/* Bytes kept from step to step: those of the fullest rank, and the mean. */
static double kept_bytes(const layer_list *list, int ranks, const dsc_kfac_options *o, double *mean) {
    dsc_kfac_plan *plan = make_plan(list, ranks, o);
    double most = 0;
    *mean = 0;
    for (int r = 0; r < ranks; r++) {
        const dsc_kfac_load *load = &dsc_kfac_plan_loads(plan)[r];
        double kept = (double)(load->factor_bytes + load->decomposition_bytes);
        most = fmax(most, kept);
        *mean += kept / ranks;
    }
    dsc_kfac_plan_destroy(&plan);
    return most;
}

/* Memory falls from comm-opt over hybrid-opt to mem-opt: of all ranks together with every halving of the
 * gradient workers, of the fullest rank from the first to the second to the last. */
static void test_memory_falls(void **state) {
    (void)state;
    layer_list list = {.count = 0};
    add_resnet(&list, resnet50);
    for (int ranks = 4; ranks <= 32; ranks *= 2)
        for (int which = 0; which < 3; which++) {
            double mean, next, most[3] = {0};
            dsc_kfac_options o = make_options(DSC_KFAC_COMM_OPT, (dsc_kfac_placement)which, 1);
            most[0] = kept_bytes(&list, ranks, &o, &mean);
            assert_true(fabs(mean - most[0]) <= ranks * 2.3e-16 * mean); /* the same on every rank */
            o.strategy = DSC_KFAC_HYBRID_OPT;
            for (int workers = ranks / 2; workers >= 1; workers /= 2) {
                o.grad_worker_fraction = (double)workers / ranks;
                double kept = kept_bytes(&list, ranks, &o, &next);
                assert_true(next < mean);
                mean = next;
                if (workers == ranks / 2)
                    most[1] = kept;
            }
            o.strategy = DSC_KFAC_MEM_OPT;
            most[2] = kept_bytes(&list, ranks, &o, &next);
            assert_true(next == mean);
            assert_true(most[0] > most[1] && most[1] > most[2]);
        }
}

/* ---- refusals ---- */

static void test_refusals(void **state) {
    (void)state;
    layer_list list = {.count = 0};
    add(&list, "a", DSC_KFAC_LINEAR, 3, 4);
    add(&list, "b", DSC_KFAC_LINEAR, 4, 5);
    dsc_kfac_plan *plan = NULL;
    dsc_kfac_options o;
    dsc_kfac_options_init(&o);
    assert_fails(DSC_E_INVALID, "0 ranks", dsc_kfac_plan_create(list.layers, 2, 0, &o, 1, &plan));
    assert_fails(DSC_E_INVALID, "-1 K-FAC layers", dsc_kfac_plan_create(list.layers, -1, 1, &o, 1, &plan));
    assert_fails(DSC_E_INVALID, "at NULL", dsc_kfac_plan_create(NULL, 2, 1, &o, 1, &plan));
    list.layers[1].name = "a";
    assert_fails(DSC_E_INVALID, "layers 0 and 1 are both named 'a'",
                 dsc_kfac_plan_create(list.layers, 2, 1, &o, 1, &plan));
    list.layers[1].name = NULL;
    assert_fails(DSC_E_INVALID, "without a name", dsc_kfac_plan_create(list.layers, 2, 1, &o, 1, &plan));
    list.layers[1].name = "b";
    list.layers[1].weight_grad.dtype = DSC_F64;
    assert_fails(DSC_E_INVALID, "of layer 'a' are fp32, those of 'b' fp64: must be of one type",
                 dsc_kfac_plan_create(list.layers, 2, 1, &o, 1, &plan));
    list.layers[1].in_c = 0;
    assert_fails(DSC_E_INVALID, "layer 'b': inputs 0", dsc_kfac_plan_create(list.layers, 2, 1, &o, 1, &plan));
    o.skip_layers = "b("; /* skipped layers are not checked, expressions are */
    assert_fails(DSC_E_INVALID, "'b('", dsc_kfac_plan_create(list.layers, 2, 1, &o, 1, &plan));
    o.skip_layers = "b";
    assert_ok(dsc_kfac_plan_create(list.layers, 2, 1, &o, 1, &plan));
    dsc_kfac_plan_destroy(&plan);
    dsc_kfac_plan_destroy(&plan);
    dsc_kfac_plan_destroy(NULL);
    assert_ok(dsc_kfac_plan_create(NULL, 0, 3, NULL, 1, &plan)); /* defaults */
    assert_int_equal(dsc_kfac_plan_rows(plan), 3);
    dsc_kfac_plan_destroy(&plan);
}

/* Each allocation fails once: an error, nothing leaked, *out untouched. */
static void test_memory_failures(void **state) {
    (void)state;
    const int64_t sizes[3][2] = {{4, 2}, {3, 3}, {10, 1}};
    layer_list list = {.count = 0};
    add_sizes(&list, sizes, 3);
    dsc_kfac_options o;
    dsc_kfac_options_init(&o);
    o.skip_layers = "nothing";
    int failures = 0;
    for (int64_t nth = 1;; nth++) {
        dsc_kfac_plan *plan = NULL;
        dsc_memory_fail_at(nth);
        dsc_status status = dsc_kfac_plan_create(list.layers, 3, 2, &o, 1, &plan);
        dsc_memory_fail_at(0);
        if (status == DSC_OK) {
            dsc_kfac_plan_destroy(&plan);
            break;
        }
        assert_int_equal(status, DSC_E_MEMORY);
        assert_null(plan);
        failures++;
    }
    assert_true(failures >= 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_robin),           cmocka_unit_test(test_by_cost),
        cmocka_unit_test(test_compute_is_not_memory), cmocka_unit_test(test_kaisa_grid),
        cmocka_unit_test(test_groups_and_skips),      cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_resnet_on_all_grids),   cmocka_unit_test(test_small_net_on_all_grids),
        cmocka_unit_test(test_block_loads),           cmocka_unit_test(test_equal_strategies),
        cmocka_unit_test(test_resnet50_sizes),        cmocka_unit_test(test_papers_round_robin),
        cmocka_unit_test(test_memory_falls),          cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_memory_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
