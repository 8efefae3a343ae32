/* Every strategy, placement, fraction and form of messages gives the preconditioned gradient that one rank with the
 * whole batch would compute, with the same bits on every rank, and sends and keeps the bytes that the formulas say.
 *
 * p ranks of batch b against one rank of batch p b: S output positions, g_r of the loss averaged over the
 * rank's own b samples, so g_r = p g. By the formulas of `paper` scaling
 *
 *   A   mean over ranks of sum_r a a' / (b S^2) = sum a a' / (p b S^2)
 *   G   mean over ranks of b S sum_r g_r g_r' = (1/p) b S p^2 sum g g' = p b S sum g g'
 *
 * so it holds exactly. With `kfac-pytorch` scaling A agrees, and G comes out p^2 times as large:
 *
 *   G   mean over ranks of sum_r g_r g_r' / (b S^3) = p^2 sum g g' / (p b S^3)
 *
 * The gradients themselves are averaged by the training loop; here every rank is handed the same ones. */
#include "kfac/crew.h"

#include "base/memory.h"

enum { STEPS = 4 };

static naive naives[METHODS];
static double *expected[METHODS][STEPS][LAYERS]; /* gradients after each step */
static double expected_nu[METHODS][STEPS];

/* ---- what is expected ---- */

static void compute_expected(void) {
    for (int method = 0; method < METHODS; method++) {
        dsc_kfac_options options = base_options(method);
        naive_open(&naives[method], &nets[REF], &options);
        for (int k = 0; k < STEPS; k++) {
            net_step step = step_of(k);
            naive_gradients_open(&nets[REF], expected[method][k]);
            expected_nu[method][k] =
                naive_run(&naives[method], &nets[REF], &step, HYPER(&options), expected[method][k]);
        }
    }
}

/* Co-location is required where one rank does all of a layer, and by the outer product. */
static int is_valid(const config *c) {
    int single = c->strategy == DSC_KFAC_MEM_OPT || c->strategy == DSC_KFAC_LAYER_WISE ||
                 (c->strategy == DSC_KFAC_HYBRID_OPT && c->rows == 1 && ranks > 1);
    return c->colocate || !(single || c->method == 1);
}

typedef void (*config_function)(const config *c);

/* Calls f for every valid combination of strategy, fraction, placement and co-location. Methods take turns,
 * so that each strategy runs with all of them; packing and the size of buckets, too. */
static void for_each_config(config_function f) {
    static const dsc_kfac_strategy strategies[] = {DSC_KFAC_COMM_OPT, DSC_KFAC_MEM_OPT, DSC_KFAC_LAYER_WISE,
                                                   DSC_KFAC_HYBRID_OPT};
    static const dsc_kfac_placement placements[] = {DSC_KFAC_ROUND_ROBIN, DSC_KFAC_COMPUTE, DSC_KFAC_MEMORY};
    static const size_t buckets[] = {1, 700, 4 << 20};
    int turn = 0, grid = 0;
    for (int s = 0; s < 4; s++)
        for (int rows = 1; rows <= ranks; rows++) {
            int wanted = s == 0 ? rows == ranks : (s == 3 ? ranks % rows == 0 : rows == 1);
            for (int rest = 0; wanted && rest < 3 * 2; rest++) {
                config c = {.strategy = strategies[s],
                            .rows = rows,
                            .placement = placements[rest % 3],
                            .colocate = rest / 3,
                            .method = rest / 3 ? (rest + grid) % 3 : (rest + grid) % 2 * 2,
                            .symmetric = turn % 2,
                            .bucket_bytes = buckets[turn / 2 % 3]};
                if (!is_valid(&c))
                    continue;
                f(&c);
                turn++;
            }
            grid += wanted;
        }
}

/* ---- what must travel and be held ---- */

typedef struct amounts {
    double sent[DSC_TRAFFIC_COUNT];
    size_t factors, decompositions, exchange;
    double work;
} amounts;

/* The amounts of rank r by the formulas of the documentation, for the owners in a plan. */
static amounts amounts_of(const config *c, const dsc_kfac_plan *plan, int r) {
    const dsc_kfac_unit *units = dsc_kfac_plan_units(plan);
    const dsc_kfac_item *items = dsc_kfac_plan_items(plan);
    size_t s = dsc_dtype_size(places[c->place].dtype);
    size_t sf = c->factor_dtype == DSC_F32 ? s : 2, si = c->inverse_dtype == DSC_F32 ? s : 2;
    int columns = ranks / c->rows;
    amounts m = {0};
    for (int64_t i = 0; i < dsc_kfac_plan_item_count(plan); i++) {
        const dsc_kfac_item *it = &items[i];
        size_t n = (size_t)it->n, tri = n * (n + 1) / 2, shape = c->symmetric ? tri : n * n;
        int mine = it->owner == r, here = units[it->unit].column == r % columns;
        m.work += mine ? (double)(n * n * n) : 0;
        m.factors += c->rows == ranks || mine ? tri * sf : 0;
        m.exchange += ranks > 1 ? shape * s : 0;
        if (c->rows == ranks)
            m.sent[DSC_TRAFFIC_FACTORS] += 2.0 * (ranks - 1) / ranks * (double)(shape * sf);
        else if (!mine)
            m.sent[DSC_TRAFFIC_FACTORS] += (double)(shape * sf);
        size_t solved = c->method == 2 ? n * n * si : n * n * si + n * s;
        if (c->method == 1)
            solved = n * n * si + (mine ? n * s : 0);
        m.decompositions += here ? solved : 0;
        size_t travels = c->method == 2 ? shape * si : n * n * si + (c->method == 0 ? n * s : 0);
        m.sent[DSC_TRAFFIC_DECOMPOSITIONS] += mine ? (double)travels * (c->rows - 1) : 0;
    }
    for (int64_t u = 0; u < dsc_kfac_plan_unit_count(plan); u++) {
        size_t count = (size_t)(units[u].a_n * units[u].g_n);
        int here = units[u].column == r % columns;
        if (c->method == 1) {
            m.decompositions += here ? count * si : 0;
            m.sent[DSC_TRAFFIC_DECOMPOSITIONS] +=
                items[units[u].first_item].owner == r ? (double)(count * si) * (c->rows - 1) : 0;
        }
        m.sent[DSC_TRAFFIC_PRECONDITIONED] += here ? (double)(count * s) * (columns - 1) : 0;
    }
    return m;
}

static dsc_kfac_plan *plan_of(const config *c) {
    dsc_kfac_layer layers[NET_LAYERS];
    dsc_kfac_options options = options_of(c);
    dsc_kfac_plan *plan = NULL;
    net_describe(&nets[c->place], layers);
    assert_ok(dsc_kfac_plan_create(layers, LAYERS, ranks, &options, 1, &plan));
    assert_int_equal(dsc_kfac_plan_rows(plan), c->rows);
    /* Two groups, and three blocks with one A. */
    assert_int_equal(dsc_kfac_plan_unit_count(plan), LAYERS + 1 + 2);
    assert_int_equal(dsc_kfac_plan_item_count(plan), 2 * (LAYERS + 1) + 2);
    return plan;
}

/* Bytes sent since `before` are those of a step of this kind; a message may be rounded by a byte. */
static void check_traffic(const config *c, const amounts *wanted, const uint64_t *before, int64_t k) {
    static const dsc_traffic kinds[] = {DSC_TRAFFIC_FACTORS, DSC_TRAFFIC_DECOMPOSITIONS,
                                        DSC_TRAFFIC_PRECONDITIONED};
    const int happens[] = {k % 2 == 0, k % 3 == 0, 1};
    for (int i = 0; i < 3; i++) {
        double sent = (double)(dsc_comm_bytes(comm, kinds[i]) - before[kinds[i]]);
        double want = happens[i] ? wanted->sent[kinds[i]] : 0, slack = want > 0 ? 2 * (LAYERS + 1) : 0;
        if (fabs(sent - want) > slack) {
            char what[100];
            snprintf(what, sizeof what, "sent %.0f bytes of %s instead of %.1f", sent,
                     dsc_traffic_name(kinds[i]), want);
            expect(0, c, k, what);
        }
    }
}

static void check_memory(const config *c, const dsc_kfac_plan *plan, const dsc_kfac_report *report) {
    const dsc_kfac_load *loads = dsc_kfac_plan_loads(plan);
    amounts m = amounts_of(c, plan, rank);
    expect(report->factor_bytes == m.factors, c, STEPS, "factor_bytes");
    expect(report->decomposition_bytes == m.decompositions, c, STEPS, "decomposition_bytes");
    if (ranks > 1 || dsc_device_is_host(places[c->place].device)) /* a GPU keeps batch factors in any case */
        expect(report->exchange_bytes == m.exchange, c, STEPS, "exchange_bytes");
    expect(report->ranks == ranks, c, STEPS, "ranks");
    for (int r = 0; r < ranks; r++) {
        m = amounts_of(c, plan, r);
        expect(report->work[r] == m.work, c, STEPS, "work");
        expect(loads[r].work == m.work, c, STEPS, "planned work");
        expect(loads[r].factor_bytes == m.factors, c, STEPS, "planned factor_bytes");
        expect(loads[r].decomposition_bytes == m.decompositions, c, STEPS, "planned decomposition_bytes");
        expect(loads[r].exchange_bytes == m.exchange, c, STEPS, "planned exchange_bytes");
        expect(fabs(loads[r].factors_sent - m.sent[DSC_TRAFFIC_FACTORS]) < 1e-6, c, STEPS, "factors_sent");
        expect(fabs(loads[r].decompositions_sent - m.sent[DSC_TRAFFIC_DECOMPOSITIONS]) < 1e-6, c, STEPS,
               "decompositions_sent");
        expect(fabs(loads[r].preconditioned_sent - m.sent[DSC_TRAFFIC_PRECONDITIONED]) < 1e-6, c, STEPS,
               "preconditioned_sent");
    }
}

/* ---- runs ---- */

static void run_config(const config *c) {
    net *n = &nets[c->place];
    dsc_kfac_options options = options_of(c);
    dsc_kfac *kfac = create(c, &options);
    dsc_kfac_plan *plan = plan_of(c);
    amounts wanted = amounts_of(c, plan, rank);
    for (int64_t k = 0; kfac && k < STEPS; k++) {
        uint64_t before[DSC_TRAFFIC_COUNT];
        net_step step = step_of(k);
        double nu = -1;
        for (int t = 0; t < DSC_TRAFFIC_COUNT; t++)
            before[t] = dsc_comm_bytes(comm, (dsc_traffic)t);
        EXPECT_OK(net_run(n, kfac, &step));
        check_traffic(c, &wanted, before, k);
        naives[c->method].n = n;
        double excess =
            naive_excess(&naives[c->method], expected[c->method][k], options.damping, places[c->place].eps);
        naives[c->method].n = &nets[REF];
        expect(excess <= 1, c, k, "another gradient than one rank's");
        expect(ranks_agree(n), c, k, "ranks differ");
        EXPECT_OK(dsc_kfac_nu(kfac, n->queue, &nu));
        expect(fabs(nu - expected_nu[c->method][k]) <= 0.01 * nu, c, k, "nu");
    }
    const dsc_kfac_report *report = NULL;
    if (kfac)
        EXPECT_OK(dsc_kfac_get_report(kfac, n->queue, &report));
    if (report)
        check_memory(c, plan, report);
    dsc_kfac_plan_destroy(&plan);
    dsc_kfac_destroy(&kfac);
}

static void test_all(void **state) {
    (void)state;
    for_each_config(run_config);
    all_fine(comm);
}

/* A few of the configurations in float32 on the fast device. */
static int taken;

static void run_some_in_float(const config *c) {
    config narrow = *c;
    narrow.place = CPU;
    if (taken++ % 4 == 0)
        run_config(&narrow);
}

static void test_float(void **state) {
    (void)state;
    taken = 0;
    for_each_config(run_some_in_float);
    all_fine(comm);
}

/* Stored and sent in 16 bits: near the exact gradient, the same on all ranks, half the bytes. */
static void run_half(const config *c) {
    static const dsc_dtype types[] = {DSC_BF16, DSC_F16, DSC_F32};
    config half = *c;
    net *n = &nets[CPU];
    half.place = CPU;
    if (taken++ % 4 != 0)
        return;
    half.factor_dtype = types[taken / 4 % 2];
    half.inverse_dtype = types[taken / 4 % 3];
    dsc_kfac_options options = options_of(&half);
    dsc_kfac *kfac = create(&half, &options);
    dsc_kfac_plan *plan = plan_of(&half);
    amounts wanted = amounts_of(&half, plan, rank);
    for (int64_t k = 0; kfac && k < STEPS; k++) {
        uint64_t before[DSC_TRAFFIC_COUNT];
        net_step step = step_of(k);
        for (int t = 0; t < DSC_TRAFFIC_COUNT; t++)
            before[t] = dsc_comm_bytes(comm, (dsc_traffic)t);
        EXPECT_OK(net_run(n, kfac, &step));
        check_traffic(&half, &wanted, before, k);
        expect(ranks_agree(n), &half, k, "ranks differ");
        for (int l = 0; l < LAYERS; l++) {
            double got[100], condition = naive_bound(&naives[half.method], l, options.damping, 1) /
                                         naive_bound(&naives[half.method], l, 1e9, 1);
            net_read(n, l, got);
            double off = naive_distance(got, expected[half.method][k][l], net_gradient_count(n, l));
            expect(off <= 4 * 0x1p-8 * condition, &half, k, "far from the exact gradient");
        }
    }
    const dsc_kfac_report *report = NULL;
    if (kfac)
        EXPECT_OK(dsc_kfac_get_report(kfac, n->queue, &report));
    if (report)
        check_memory(&half, plan, report);
    dsc_kfac_plan_destroy(&plan);
    dsc_kfac_destroy(&kfac);
}

static void test_half(void **state) {
    (void)state;
    taken = 0;
    for_each_config(run_half);
    all_fine(comm);
}

/* `kfac-pytorch` scaling: G of p ranks is p^2 times that of one rank with the whole batch. */
static void test_pytorch_scaling(void **state) {
    (void)state;
    int count;
    const config *list = some_configs(&count);
    for (int i = 0; i < count; i++) {
        dsc_kfac_options options = options_of(&list[i]);
        options.scaling = DSC_KFAC_PYTORCH;
        const net_step steps[] = {step_of(0), step_of(1), step_of(2)};
        run_beside(&list[i], &options, steps, 3, ranks);
    }
    all_fine(comm);
}

/* Blocks go to different workers; the result is that of explicit block-diagonal factors. */
static void test_diagonal_blocks(void **state) {
    (void)state;
    for (int64_t blocks = 2; blocks <= 3; blocks++)
        for (int placement = 0; placement < 3; placement++) {
            config c = {.strategy = DSC_KFAC_COMM_OPT,
                        .rows = ranks,
                        .placement = (dsc_kfac_placement)placement,
                        .colocate = placement != 2,
                        .symmetric = placement % 2,
                        .method = (placement + blocks) % 2 ? 2 : 0,
                        .bucket_bytes = 700};
            dsc_kfac_options options = options_of(&c);
            const net_step steps[] = {step_of(0), step_of(1), step_of(2), step_of(3)};
            options.diag_blocks = blocks;
            run_beside(&c, &options, steps, 4, 1);
        }
    all_fine(comm);
}

/* Sum over the ranks of the bytes that they keep from step to step. */
static double total_held(const config *c, double *largest) {
    dsc_kfac_options options = options_of(c);
    dsc_kfac *kfac = create(c, &options);
    net_step step = step_of(0);
    const dsc_kfac_report *report = NULL;
    if (!kfac)
        return 0;
    EXPECT_OK(net_run(&nets[c->place], kfac, &step));
    EXPECT_OK(dsc_kfac_get_report(kfac, nets[c->place].queue, &report));
    double sum = report ? (double)(report->factor_bytes + report->decomposition_bytes) : 0;
    *largest = sum;
    const int64_t one = 1;
    dsc_tensor a = dsc_tensor_view(host_device, &sum, DSC_F64, 1, &one);
    dsc_tensor b = dsc_tensor_view(host_device, largest, DSC_F64, 1, &one);
    EXPECT_OK(dsc_comm_allreduce(comm, DSC_TRAFFIC_OTHER, DSC_SUM, &a));
    EXPECT_OK(dsc_comm_allreduce(comm, DSC_TRAFFIC_OTHER, DSC_MAX, &b));
    dsc_kfac_destroy(&kfac);
    return sum;
}

/* The memory falls from comm-opt over hybrid-opt to mem-opt; the total is N, m and 1 copies. */
static void test_memory_falls(void **state) {
    (void)state;
    for (int method = 0; method < METHODS && ranks % 2 == 0 && ranks > 2; method++) {
        config c = {.colocate = 1, .symmetric = 1, .method = method, .bucket_bytes = 700};
        double worst[3], total[3];
        static const dsc_kfac_strategy strategies[] = {DSC_KFAC_COMM_OPT, DSC_KFAC_HYBRID_OPT,
                                                       DSC_KFAC_MEM_OPT};
        c.placement = DSC_KFAC_MEMORY;
        for (int i = 0; i < 3; i++) {
            c.strategy = strategies[i];
            c.rows = i == 0 ? ranks : (i == 1 ? ranks / 2 : 1);
            total[i] = total_held(&c, &worst[i]);
        }
        EXPECT(total[0] > total[1] && total[1] > total[2] && total[2] > 0);
        EXPECT(worst[0] > worst[1] && worst[1] >= worst[2]); /* one layer may be most of it */
        if (method != 1) /* with the outer product only the owner keeps eigenvalues */
            EXPECT(total[0] == ranks * worst[0] && total[0] == ranks * total[2]);
    }
    all_fine(comm);
}

static void test_step_allocates_nothing(void **state) {
    (void)state;
    int count;
    const config *list = some_configs(&count);
    for (int i = 0; i < count; i++) {
        dsc_kfac_options options = options_of(&list[i]);
        dsc_kfac *kfac = create(&list[i], &options);
        int64_t allocations = 0;
        size_t bytes = 0;
        for (int64_t k = 0; kfac && k < 13; k++) {
            net_step step = step_of(k);
            EXPECT_OK(net_run(&nets[REF], kfac, &step));
            if (k == 6) { /* every kind of step has run once */
                allocations = dsc_memory_allocations();
                bytes = dsc_device_bytes(places[REF].device);
            }
        }
        expect(dsc_memory_allocations() == allocations, &list[i], 13, "host memory was allocated");
        expect(dsc_device_bytes(places[REF].device) == bytes, &list[i], 13, "device memory was allocated");
        dsc_kfac_destroy(&kfac);
    }
    all_fine(comm);
}

static int open_group(void **state) {
    (void)state;
    crew_open();
    compute_expected();
    return 0;
}

static int close_group(void **state) {
    (void)state;
    for (int method = 0; method < METHODS; method++) {
        for (int k = 0; k < STEPS; k++)
            naive_gradients_close(&nets[REF], expected[method][k]);
        naive_close(&naives[method]);
    }
    return crew_close();
}

int main(void) {
    chosen_or_skip();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all),
        cmocka_unit_test(test_float),
        cmocka_unit_test(test_half),
        cmocka_unit_test(test_pytorch_scaling),
        cmocka_unit_test(test_diagonal_blocks),
        cmocka_unit_test(test_memory_falls),
        cmocka_unit_test(test_step_allocates_nothing),
    };
    return cmocka_run_group_tests_name("kfac strategies", tests, open_group, close_group);
}
