/* Events that ranks must handle together: steps that are begun again, layers that run on some ranks only,
 * numbers that are not finite, solves and creations that fail on one rank. */
#include "kfac/crew.h"

#include "base/memory.h"
#include "kfac/internal.h"

static void test_passes_and_loss_scale(void **state) {
    (void)state;
    int count;
    const config *list = some_configs(&count);
    for (int i = 0; i < count; i++) {
        dsc_kfac_options options = options_of(&list[i]);
        net_step steps[4];
        options.passes = 2;
        for (int k = 0; k < 4; k++)
            steps[k] = (net_step){.number = k, .lr = 0.5, .passes = 2, .loss_scale = 512};
        run_beside(&list[i], &options, steps, 4, 1);
    }
    all_fine(comm);
}

/* A step that is begun again after some captures: those have entered the averages. */
static void test_begun_again(void **state) {
    (void)state;
    int count;
    const config *list = some_configs(&count);
    net *n = &nets[REF];
    double *want[NET_LAYERS];
    naive_gradients_open(n, want);
    for (int i = 0; i < count; i++) {
        dsc_kfac_options options = options_of(&list[i]);
        naive v;
        dsc_kfac *kfac = create(&list[i], &options);
        naive_open(&v, n, &options);
        for (int64_t k = 0; kfac && k < 3; k++) {
            net_step step = step_of(k);
            EXPECT_OK(dsc_kfac_begin(kfac, 1));
            net_draw(n, 20 + k, 0, 1);
            naive_capture(&v, 3);
            for (int l = LAYERS - 1; l >= 2; l--)
                EXPECT_OK(dsc_kfac_capture(kfac, n->queue, l, &n->layers[l].a, &n->layers[l].g));
            naive_step(&v, HYPER(&options), k % 2 == 0, 0, 0.5, want);
            naive_run(&v, n, &step, HYPER(&options), want);
            EXPECT_OK(net_run(n, kfac, &step));
            expect(naive_excess(&v, want, options.damping, DBL_EPSILON) <= 1, &list[i], k,
                   "another gradient than one rank's");
            expect(ranks_agree(n), &list[i], k, "ranks differ");
        }
        naive_close(&v);
        dsc_kfac_destroy(&kfac);
    }
    naive_gradients_close(n, want);
    all_fine(comm);
}

/* Layers that run on no rank are left out; each of them is absent in some steps. */
static void test_absent_everywhere(void **state) {
    (void)state;
    int count;
    const config *list = some_configs(&count);
    for (int i = 0; i < count; i++) {
        dsc_kfac_options options = options_of(&list[i]);
        static const unsigned absent[] = {0, 2, 1 | 8, 31, 16, 0};
        net_step steps[6];
        options.factor_freq = options.update_freq = 1;
        for (int k = 0; k < 6; k++)
            steps[k] = (net_step){.number = k, .lr = 0.5, .absent = absent[k]};
        run_beside(&list[i], &options, steps, 6, 1);
    }
    all_fine(comm);
}

/* A layer that ran on some ranks only is refused by all of them, on steps with and without updates. */
static void test_absent_somewhere(void **state) {
    (void)state;
    int count;
    const config *list = some_configs(&count);
    for (int i = 0; i < count * 2 && ranks > 1; i++) {
        const config *c = &list[i / 2];
        dsc_kfac_options options = options_of(c);
        dsc_kfac *kfac = create(c, &options);
        for (int64_t k = 0; kfac && k <= i % 2; k++) {
            net_step step = step_of(k);
            step.absent = k == i % 2 && rank == ranks - 1 ? 4 : 0;
            if (k == i % 2)
                EXPECT_FAILS(DSC_E_INVALID, "pointwise", net_run(&nets[REF], kfac, &step));
            else
                EXPECT_OK(net_run(&nets[REF], kfac, &step));
        }
        dsc_kfac_destroy(&kfac);
    }
    all_fine(comm);
}

/* One rank's input is not a number: no factor is lost anywhere. */
static void test_bad_input_on_one_rank(void **state) {
    (void)state;
    int count;
    const config *list = some_configs(&count);
    for (int i = 0; i < count; i++) {
        net *n = &nets[REF];
        dsc_kfac_options options = options_of(&list[i]);
        options.factor_freq = options.update_freq = 1;
        dsc_kfac *kfac = create(&list[i], &options);
        for (int64_t k = 0; kfac && k < 3; k++) {
            EXPECT_OK(dsc_kfac_begin(kfac, 1));
            net_draw(n, k, 0, 1);
            net_draw_gradients(n, k);
            if (k == 1 && rank == ranks - 1)
                net_set(n, &n->layers[4].a, 3, NAN);
            for (int l = LAYERS - 1; l >= 0; l--)
                EXPECT_OK(dsc_kfac_capture(kfac, n->queue, l, &n->layers[l].a, &n->layers[l].g));
            EXPECT_OK(dsc_kfac_step(kfac, n->queue, 0.5));
            expect(ranks_agree(n), &list[i], k, "ranks differ"); /* NaN would not be equal to itself */
            double d[100];
            net_read(n, 4, d);
            expect(isfinite(d[0]) && isfinite(d[20]), &list[i], k, "gradient is not finite");
            const dsc_kfac_report *report = NULL;
            EXPECT_OK(dsc_kfac_get_report(kfac, n->queue, &report));
            if (report)
                expect((report->rejected_factors > 0) == (k > 0), &list[i], k, "rejected_factors");
        }
        dsc_kfac_destroy(&kfac);
    }
    all_fine(comm);
}

/* A gradient that is not finite is an error on every rank; on a GPU nu reports it. */
static void expect_bad_step(dsc_kfac *kfac, net *n) {
    double nu = 0;
    if (dsc_device_is_host(dsc_queue_device(n->queue))) {
        EXPECT_FAILS(DSC_E_NUMERIC, "", dsc_kfac_step(kfac, n->queue, 0.5));
        return;
    }
    EXPECT_OK(dsc_kfac_step(kfac, n->queue, 0.5));
    EXPECT_OK(dsc_kfac_nu(kfac, n->queue, &nu));
    EXPECT(isnan(nu));
}

static void test_bad_gradient(void **state) {
    (void)state;
    int count;
    const config *list = some_configs(&count);
    for (int i = 0; i < count; i++) {
        net *n = &nets[REF];
        dsc_kfac_options options = options_of(&list[i]);
        dsc_kfac *kfac = create(&list[i], &options);
        for (int64_t k = 0; kfac && k < 6; k++) { /* every second time, on steps of all kinds */
            EXPECT_OK(dsc_kfac_begin(kfac, 1));
            net_draw(n, k, 0, 1);
            net_draw_gradients(n, k);
            if (k % 2 == 0)
                net_set(n, &n->layers[2].weight_grad, 3, NAN);
            for (int l = LAYERS - 1; l >= 0; l--)
                EXPECT_OK(dsc_kfac_capture(kfac, n->queue, l, &n->layers[l].a, &n->layers[l].g));
            if (k % 2 == 0) {
                expect_bad_step(kfac, n);
                continue;
            }
            EXPECT_OK(dsc_kfac_step(kfac, n->queue, 0.5));
            expect(ranks_agree(n), &list[i], k, "ranks differ");
        }
        dsc_kfac_destroy(&kfac);
    }
    all_fine(comm);
}

/* All solvers fail for matrices of 19 rows, of which one rank has the only one. */
static const dsc_solver *true_solver;
static int failing;

static dsc_status patchy_batch(dsc_queue *q, dsc_solve_item *items, int64_t count, dsc_tensor *work) {
    DSC_TRY(true_solver->batch(q, items, count, work));
    for (int64_t i = 0; failing && i < count; i++)
        items[i].failed |= items[i].a.dim[0] == 19;
    return DSC_OK;
}

static void run_failing(const config *c, int from) {
    net *n = &nets[REF];
    dsc_kfac_options options = options_of(c);
    options.factor_freq = options.update_freq = 1;
    dsc_kfac *kfac = create(c, &options);
    if (!kfac)
        return;
    true_solver = kfac->solver;
    const dsc_solver hopeless = {patchy_batch, NULL, 0};
    kfac->solver = &hopeless;
    for (int64_t k = 0; k < 3; k++) {
        net_step step = step_of(k);
        failing = k >= from && k < 2;
        if (from == 0) {
            EXPECT_FAILS(DSC_E_NUMERIC, "first", net_run(n, kfac, &step));
            break;
        }
        EXPECT_OK(net_run(n, kfac, &step));
        expect(ranks_agree(n), c, k, "ranks differ");
        const dsc_kfac_report *report = NULL;
        EXPECT_OK(dsc_kfac_get_report(kfac, n->queue, &report));
        if (report)
            expect(report->failed_solves == (k >= from), c, k, "failed_solves");
    }
    dsc_kfac_destroy(&kfac);
}

/* When a solve fails on one rank, all ranks keep the earlier decomposition and count the failure; without an
 * earlier one all ranks fail. */
static void test_failed_solve(void **state) {
    (void)state;
    int count;
    const config *list = some_configs(&count);
    for (int i = 0; i < count; i++) {
        run_failing(&list[i], 1);
        run_failing(&list[i], 0);
    }
    all_fine(comm);
}

/* When creation fails on one rank, it fails on all. */
static void test_create_fails_together(void **state) {
    (void)state;
    int count;
    const config *list = some_configs(&count);
    for (int i = 0; i < count; i++) {
        dsc_kfac_layer layers[NET_LAYERS];
        dsc_kfac_options options = options_of(&list[i]);
        dsc_kfac *kfac = NULL;
        net_describe(&nets[REF], layers);
        if (rank == ranks - 1)
            nets[REF].layers[1].conv.stride_w = 0;
        EXPECT_FAILS(DSC_E_INVALID, "",
                     dsc_kfac_create(comm, places[REF].queue, layers, LAYERS, &options, &kfac));
        EXPECT(kfac == NULL);
        nets[REF].layers[1].conv.stride_w = 2;
        dsc_memory_fail_at(rank == 0 ? 1 + 7 * i : 0);
        EXPECT_FAILS(DSC_E_MEMORY, "",
                     dsc_kfac_create(comm, places[REF].queue, layers, LAYERS, &options, &kfac));
        dsc_memory_fail_at(0);
        EXPECT(kfac == NULL);
        dsc_kfac_destroy(&kfac);
    }
    all_fine(comm);
}

/* Ranks with different layers or options fail at creation instead of waiting for each other later. */
static void test_unlike(void **state) {
    (void)state;
    for (int what = 0; what < 4 && ranks > 1; what++) {
        dsc_kfac_layer layers[NET_LAYERS];
        int count;
        dsc_kfac_options options = options_of(&some_configs(&count)[0]);
        dsc_kfac *kfac = NULL;
        net_describe(&nets[REF], layers);
        int odd = rank == ranks - 1;
        options.update_freq += odd && what == 0;
        options.damping *= odd && what == 1 ? 2 : 1;
        if (odd && what == 2)
            layers[1].name = "another";
        options.passes += odd && what == 3;
        EXPECT_FAILS(DSC_E_INVALID, "different layers or options",
                     dsc_kfac_create(comm, places[REF].queue, layers, LAYERS, &options, &kfac));
        EXPECT(kfac == NULL);
        dsc_kfac_destroy(&kfac);
    }
    all_fine(comm);
}

int main(void) {
    chosen_or_skip();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passes_and_loss_scale),
        cmocka_unit_test(test_begun_again),
        cmocka_unit_test(test_absent_everywhere),
        cmocka_unit_test(test_absent_somewhere),
        cmocka_unit_test(test_bad_input_on_one_rank),
        cmocka_unit_test(test_bad_gradient),
        cmocka_unit_test(test_failed_solve),
        cmocka_unit_test(test_create_fails_together),
        cmocka_unit_test(test_unlike),
    };
    return cmocka_run_group_tests_name("kfac together", tests, open_crew, close_crew);
}
