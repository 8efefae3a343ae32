/* Warm refresh on several ranks: under every strategy the result is near that of exact decompositions and has
 * the same bits on all ranks; a resumed run has the bits of one that went on. */
#include "kfac/internal.h"
#include "kfac/states.h"

#include <stdlib.h>

enum { STEPS = 9, RESUMED = 4, EXACT_ROWS = 2, MAX_ENTRIES = 200 };

static double share = 1; /* options.rank */

static dsc_kfac_options warm_options(const config *c) {
    dsc_kfac_options options = options_of(c);
    options.rank = c->method == 0 && c->inverse_dtype == DSC_F32 ? share : 1;
    options.stat_decay = 0.9;
    options.kl_clip = 0;
    options.factor_freq = 1;
    options.update_freq = 2;
    options.refresh = DSC_KFAC_WARM;
    return options;
}

static dsc_kfac *create_warm(const config *c, const dsc_kfac_options *options) {
    dsc_kfac *kfac = create(c, options);
    if (kfac && options->refresh == DSC_KFAC_WARM)
        EXPECT_OK(dsc_kfac_refresh_exact_rows(kfac, EXACT_ROWS));
    return kfac;
}

typedef void (*config_function)(const config *c);

/* Strategies and fractions, co-location, the outer product, half types. */
static void for_each_config(config_function f) {
    static const dsc_kfac_strategy strategies[] = {DSC_KFAC_COMM_OPT, DSC_KFAC_MEM_OPT, DSC_KFAC_HYBRID_OPT};
    for (int s = 0; s < 3; s++) {
        int half = ranks % 2 == 0 ? ranks / 2 : ranks, rows = s == 0 ? ranks : s == 1 ? 1 : half;
        for (int kind = 0; kind < 4; kind++) {
            config c = {.strategy = strategies[s],
                        .rows = rows,
                        .placement = DSC_KFAC_COMPUTE,
                        .colocate = kind != 1,
                        .symmetric = 1,
                        .method = kind == 2,
                        .bucket_bytes = kind == 3 ? 4 << 20 : 700};
            if (kind == 3) {
                c.place = CPU;
                c.inverse_dtype = DSC_BF16;
            }
            if (c.colocate || (s != 1 && (rows > 1 || ranks == 1)))
                f(&c);
        }
    }
}

/* ---- near exact decompositions, alike on all ranks ---- */

static void follow(const config *c) {
    net *n = &nets[c->place];
    dsc_kfac_options options = warm_options(c), exact_options = options;
    exact_options.refresh = DSC_KFAC_EXACT;
    exact_options.rank = 1;
    dsc_kfac *warm = create_warm(c, &options), *exact = create_warm(c, &exact_options);
    const dsc_kfac_report *report = NULL;
    double want[MAX_NUMBERS], have[MAX_NUMBERS];
    for (int64_t k = 0; warm && exact && k < STEPS; k++) {
        net_step step = step_of(k);
        EXPECT_OK(net_run(n, exact, &step));
        int64_t count = read_all(n, want);
        EXPECT_OK(net_run(n, warm, &step));
        read_all(n, have);
        expect(naive_distance(have, want, count) < 0.4, c, k, "far from exact decompositions");
        expect(ranks_agree(n), c, k, "ranks differ");
    }
    if (warm && dsc_kfac_get_report(warm, n->queue, &report) == DSC_OK) {
        expect(report->refreshed_factors > 20, c, STEPS, "few factors were refreshed");
        if (share == 1)
            expect(report->refreshed_factors + report->exact_fallbacks == 4 * 12, c, STEPS, "another count");
    } else {
        expect(0, c, STEPS, "no report");
    }
    dsc_kfac_destroy(&warm);
    dsc_kfac_destroy(&exact);
}

static void test_every_strategy(void **state) {
    (void)state;
    for_each_config(follow);
    share = 0.5;
    for_each_config(follow);
    share = 1;
    all_fine(comm);
}

/* ---- states ---- */

static int unsteady; /* 1: factors change so much that rotations are refused */

static void resume(const config *c) {
    net *n = &nets[c->place];
    dsc_kfac_options options = warm_options(c);
    options.stat_decay = unsteady ? 0.2 : options.stat_decay;
    options.damping = unsteady ? 0.001 : options.damping;
    dsc_kfac *first = create_warm(c, &options), *second = create_warm(c, &options);
    double want[MAX_NUMBERS], have[MAX_NUMBERS];
    for (int64_t k = 0; first && second && k < STEPS; k++) {
        net_step step = step_of(k);
        if (k == RESUMED)
            copy_state(first, second, n->queue);
        EXPECT_OK(net_run(n, first, &step));
        int64_t count = read_all(n, want);
        if (k < RESUMED)
            continue;
        EXPECT_OK(net_run(n, second, &step));
        read_all(n, have);
        expect(memcmp(have, want, (size_t)count * sizeof *have) == 0, c, k, "a resumed run has other bits");
    }
    const dsc_kfac_report *report = NULL;
    int64_t refreshed = 0;
    if (first && second && dsc_kfac_get_report(first, n->queue, &report) == DSC_OK)
        refreshed = report->refreshed_factors;
    if (first && second && dsc_kfac_get_report(second, n->queue, &report) == DSC_OK)
        expect(report->refreshed_factors == refreshed && refreshed > 0, c, STEPS, "counters are lost");
    if (unsteady && report)
        expect(report->extra_iterations > 0, c, STEPS, "no rotation was refused");
    dsc_kfac_destroy(&first);
    dsc_kfac_destroy(&second);
}

static void test_resumes_with_the_same_bits(void **state) {
    (void)state;
    for_each_config(resume);
    share = 0.5;
    for_each_config(resume);
    share = 1;
    unsteady = 1;
    for_each_config(resume);
    unsteady = 0;
    all_fine(comm);
}

/* ---- states of other runs ---- */

/* Steps of both from step `first` on; returns the largest distance between their gradients. */
static double distance_of(net *n, dsc_kfac *one, dsc_kfac *other, int64_t first) {
    double want[MAX_NUMBERS], have[MAX_NUMBERS], most = 0;
    for (int64_t k = first; k < STEPS; k++) {
        net_step step = step_of(k);
        EXPECT_OK(net_run(n, one, &step));
        int64_t count = read_all(n, want);
        EXPECT_OK(net_run(n, other, &step));
        read_all(n, have);
        most = fmax(most, naive_distance(have, want, count));
    }
    return most;
}

/* From comm-opt to mem-opt with warm refresh; from a run with exact decompositions, whose state has no upkeep,
 * to one with warm refresh, and back. */
static void test_states_of_other_runs(void **state) {
    (void)state;
    int count = 0;
    const config *list = some_configs(&count);
    for (int kind = 0; kind < 3; kind++) {
        net *n = &nets[REF];
        config from = list[0], to = list[kind == 0];
        from.colocate = to.colocate = 1;
        dsc_kfac_options options = warm_options(&from), others = warm_options(&to);
        options.refresh = kind == 1 ? DSC_KFAC_EXACT : DSC_KFAC_WARM;
        others.refresh = kind == 2 ? DSC_KFAC_EXACT : DSC_KFAC_WARM;
        dsc_kfac *one = create_warm(&from, &options), *other = create_warm(&to, &others);
        for (int64_t k = 0; one && other && k < RESUMED; k++) {
            net_step step = step_of(k);
            EXPECT_OK(net_run(n, one, &step));
        }
        if (one && other) {
            copy_state(one, other, n->queue);
            double most = distance_of(n, one, other, RESUMED);
            expect(most < (kind == 0 ? 1e-9 : 0.4), &to, kind,
                   "a state of another run gives other gradients");
        }
        dsc_kfac_destroy(&one);
        dsc_kfac_destroy(&other);
    }
    all_fine(comm);
}

static void test_damaged_upkeep(void **state) {
    (void)state;
    int configs = 0;
    const config *c = &some_configs(&configs)[0];
    dsc_kfac_options options = warm_options(c);
    dsc_kfac *kfac = create_warm(c, &options);
    static const double bad[][4] = {{-1, 0, 0, 0},  {9, 0, 0, 0},   {0.5, 0, 0, 0}, {NAN, 0, 0, 0},
                                    {0, 2, 0, 0},   {0, NAN, 0, 0}, {0, 0, -1, 0},  {0, 0, 1000, 0},
                                    {0, 0, 0.5, 0}, {0, 0, 0, 2}};
    for (int64_t i = 0; kfac && i < dsc_kfac_state_count(kfac); i++) {
        const dsc_kfac_entry *e = &dsc_kfac_state_entries(kfac)[i];
        if (strcmp(e->name, "refresh.shared") != 0)
            continue;
        double *host = net_array(e->dim[0] * e->dim[1], sizeof *host);
        for (size_t j = 0; j < sizeof bad / sizeof *bad; j++) {
            memcpy(host + 4, bad[j], sizeof bad[j]);
            EXPECT_FAILS(DSC_E_FORMAT, "refresh", dsc_kfac_state_set(kfac, nets[REF].queue, i, host));
        }
        free(host);
        kfac->step = -1; /* found */
    }
    EXPECT(!kfac || kfac->step == -1);
    dsc_kfac_destroy(&kfac);
    all_fine(comm);
}

/* ---- diagonal blocks ---- */

static void test_diagonal_blocks(void **state) {
    (void)state;
    int configs = 0;
    const config *c = &some_configs(&configs)[0];
    net *n = &nets[REF];
    dsc_kfac_options options = warm_options(c), exact_options;
    options.diag_blocks = 2;
    exact_options = options;
    exact_options.refresh = DSC_KFAC_EXACT;
    exact_options.rank = 1;
    dsc_kfac *warm = create_warm(c, &options), *exact = create_warm(c, &exact_options);
    const dsc_kfac_report *report = NULL, *other = NULL;
    if (warm && exact) {
        double most = distance_of(n, exact, warm, 0);
        expect(most > 0 && most < 0.4, c, STEPS, "blocks are far from exact decompositions");
        EXPECT_OK(dsc_kfac_get_report(warm, n->queue, &report));
        EXPECT_OK(dsc_kfac_get_report(exact, n->queue, &other));
        for (int64_t i = 0; report && other && i < report->layer_count; i++) {
            const dsc_kfac_layer_report *a = &report->layers[i], *b = &other->layers[i];
            expect(fabs(a->a_max - b->a_max) < 0.05 * b->a_max, c, i, "another largest eigenvalue of A");
            expect(fabs(a->g_max - b->g_max) < 0.05 * b->g_max, c, i, "another largest eigenvalue of G");
            expect(a->a_min <= a->a_max && fabs(a->a_min - b->a_min) < 0.1 * b->a_max, c, i,
                   "another smallest eigenvalue of A");
        }
        expect(report && report->refreshed_factors > 0, c, STEPS, "no block was refreshed");
    }
    dsc_kfac_destroy(&warm);
    dsc_kfac_destroy(&exact);
    all_fine(comm);
}

int main(void) {
    chosen_or_skip();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_strategy),       cmocka_unit_test(test_resumes_with_the_same_bits),
        cmocka_unit_test(test_states_of_other_runs), cmocka_unit_test(test_damaged_upkeep),
        cmocka_unit_test(test_diagonal_blocks),
    };
    return cmocka_run_group_tests_name("kfac refresh on ranks", tests, open_crew, close_crew);
}
