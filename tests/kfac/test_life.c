/* Health, abandoning, and comparisons among ranks that arrive later. */
#include "kfac/crew.h"
#include "kfac/internal.h"

#include <stdlib.h>

/* ---- health ---- */

static dsc_kfac_health_report health_of(dsc_kfac *kfac, dsc_queue *q) {
    dsc_kfac_health_report h = {.size = sizeof h};
    EXPECT_OK(dsc_kfac_health(kfac, q, &h));
    return h;
}

/* The smallest cosine of the layers that count, from the report. */
static double report_cosine(dsc_kfac *kfac, dsc_queue *q, const char *kind_layers) {
    const dsc_kfac_report *r = NULL;
    double smallest = NAN;
    EXPECT_OK(dsc_kfac_get_report(kfac, q, &r));
    for (int64_t i = 0; r && i < r->layer_count; i++)
        if (strstr(kind_layers, r->layers[i].name) || strncmp(r->layers[i].name, "grouped", 7) == 0)
            smallest = fmin(smallest, r->layers[i].cosine);
    return smallest;
}

/* With a damping that drowns the factors P is parallel to D. */
static void test_health(void **state) {
    (void)state;
    int count;
    const config *list = some_configs(&count);
    for (int i = 0; i < count; i++) {
        const config *c = &list[i];
        net *n = &nets[c->place];
        dsc_kfac_options options = options_of(c);
        options.update_freq = 10;
        options.damping = 1e6;
        dsc_kfac *kfac = create(c, &options);
        dsc_kfac_health_report h = health_of(kfac, n->queue);
        expect(!h.degenerate && isnan(h.smallest_cosine) && h.since == -1, c, 0,
               "health before the first step");
        for (int k = 0; k < 110; k++) {
            net_step step = step_of(k);
            EXPECT_OK(net_run(n, kfac, &step));
            h = health_of(kfac, n->queue);
            if (k % 10 == 0)
                expect(fabs(h.smallest_cosine - report_cosine(kfac, n->queue, "first pointwise")) < 1e-12, c,
                       k, "another cosine than the report's");
            expect(h.smallest_cosine > 0.999, c, k, "the cosine is not near 1");
            expect(h.degenerate == (k >= 99), c, k, "degenerate at the wrong time");
            expect(h.since == (k >= 99 ? 0 : -1), c, k, "since another step");
            const char *text = NULL;
            expect(dsc_kfac_alarm_now(kfac, &text) == h.alarm, c, k, "another answer without waiting");
            expect(h.alarm == (k >= 99 ? DSC_KFAC_ALARM_PARALLEL : DSC_KFAC_ALARM_NONE), c, k, "alarm");
            expect(k >= 99 ? h.message && strstr(h.message, "since step 0 (all cosines are above 0.999): the "
                                                            "damping, 1e+06, is large")
                           : !h.message,
                   c, k, "message");
        }
        dsc_kfac_hyper hyper = dsc_kfac_hyper_of(&options);
        hyper.damping = 0.01; /* it recovers with the next decomposition */
        EXPECT_OK(dsc_kfac_set_hyper(kfac, &hyper));
        net_step step = step_of(110);
        EXPECT_OK(net_run(n, kfac, &step));
        h = health_of(kfac, n->queue);
        expect(!h.degenerate && h.since == -1 && h.smallest_cosine < 0.999, c, 110, "did not recover");
        expect(h.alarm == DSC_KFAC_ALARM_NONE && !h.message, c, 110, "an alarm after recovery");
        h.size = 3;
        EXPECT_FAILS(DSC_E_INVALID, "dsc_kfac_health_report", dsc_kfac_health(kfac, n->queue, &h));
        dsc_kfac_destroy(&kfac);
    }
    all_fine(comm);
}

/* The alarm for a clip that leaves less than a twentieth of the steps, over as many steps as the options say. It ends
 * at a decomposition step in which the clip does not, and can then be raised again. */
static void test_health_clip(void **state) {
    (void)state;
    int count;
    const config *list = some_configs(&count);
    for (int i = 0; i < count; i++) {
        const config *c = &list[i];
        net *n = &nets[c->place];
        dsc_kfac_options options = options_of(c);
        double nu;
        options.update_freq = 3;
        options.kl_clip = 1e-9;
        options.health_steps = 7;
        dsc_kfac *kfac = create(c, &options);
        for (int k = 0; k < 24; k++) {
            net_step step = step_of(k);
            step.lr = k == 12 ? 1e-9 : 0.5;
            EXPECT_OK(net_run(n, kfac, &step));
            EXPECT_OK(dsc_kfac_nu(kfac, n->queue, &nu));
            dsc_kfac_health_report h = health_of(kfac, n->queue);
            int64_t since = k < 12 ? 0 : 15;
            int alarm = k >= since + 6 && k != 12;
            if (k % 3 == 0)
                expect(h.nu == nu, c, k, "another nu");
            expect(h.alarm == (alarm ? DSC_KFAC_ALARM_CLIPPED : DSC_KFAC_ALARM_NONE), c, k, "alarm");
            expect(alarm ? h.message && strstr(h.message, since ? "since step 15 (nu" : "since step 0 (nu") &&
                               strstr(h.message, "raise the clip, 1e-09, or lower the rate")
                         : !h.message,
                   c, k, "message");
        }
        dsc_kfac_destroy(&kfac);
        options.health_steps = 0;
        dsc_kfac_layer layers[NET_LAYERS];
        net_describe(n, layers);
        EXPECT_FAILS(DSC_E_INVALID, "0 steps before an alarm of K-FAC: must be 1 or more",
                     dsc_kfac_create(comm, n->queue, layers, LAYERS, &options, &kfac));
    }
    all_fine(comm);
}

/* The alarm for half of the refreshes refused, by the counters of this rank, which the test increases before the step
 * as a decomposition would. */
static void test_health_refused(void **state) {
    (void)state;
    config c = {.strategy = DSC_KFAC_COMM_OPT, .rows = ranks, .colocate = 1, .symmetric = 1};
    net *n = &nets[REF];
    dsc_kfac_options options = base_options(0);
    options.update_freq = 1;
    options.kl_clip = 0;
    options.health_steps = 4;
    dsc_kfac *kfac = create(&c, &options);
    for (int k = 0; k < 12; k++) {
        net_step step = step_of(k);
        kfac->counters[DSC_KFAC_FALLBACKS] += k == 7 ? 0 : k == 6 ? 1 : 2;
        kfac->counters[DSC_KFAC_REFRESHED] += k == 7 ? 0 : k == 6 ? 3 : 2;
        EXPECT_OK(net_run(n, kfac, &step));
        dsc_kfac_health_report h = health_of(kfac, n->queue);
        int alarm = (k >= 3 && k < 6) || k >= 11;
        expect(h.alarm == (alarm ? DSC_KFAC_ALARM_REFUSED : DSC_KFAC_ALARM_NONE), &c, k, "refused: alarm");
        expect(!alarm || strstr(h.message, "decompose more often"), &c, k, "refused: message");
    }
    dsc_kfac_destroy(&kfac);
    all_fine(comm);
}

/* Without convolutions all layers count. */
static void test_health_linear(void **state) {
    (void)state;
    net *n = &nets[REF];
    dsc_kfac_options options = base_options(0);
    dsc_kfac_layer layers[NET_LAYERS];
    dsc_kfac *kfac = NULL;
    net_describe(n, layers);
    EXPECT_OK(dsc_kfac_create(comm, n->queue, layers + 3, 2, &options, &kfac));
    EXPECT_OK(dsc_kfac_begin(kfac, 1));
    net_draw(n, 0, 0, 1);
    net_draw_gradients(n, 0);
    for (int l = 1; l >= 0; l--)
        EXPECT_OK(dsc_kfac_capture(kfac, n->queue, l, &n->layers[3 + l].a, &n->layers[3 + l].g));
    EXPECT_OK(dsc_kfac_step(kfac, n->queue, 0.5));
    dsc_kfac_health_report h = health_of(kfac, n->queue);
    EXPECT(fabs(h.smallest_cosine - report_cosine(kfac, n->queue, "rows last")) < 1e-12);
    dsc_kfac_destroy(&kfac);
    all_fine(comm);
}

/* ---- abandoning ---- */

/* Some ranks abandon between two steps, the others do nothing: nothing waits, and no memory is left. */
static void test_abandon(void **state) {
    (void)state;
    int count;
    const config *list = some_configs(&count);
    for (int i = 0; i < count; i++)
        for (int steps = 0; steps < 3; steps++) {
            const config *c = &list[i];
            net *n = &nets[c->place];
            dsc_kfac_options options = options_of(c);
            size_t before = dsc_device_bytes(places[c->place].device);
            dsc_kfac *kfac = create(c, &options);
            for (int k = 0; kfac && k < steps; k++) {
                net_step step = step_of(k);
                EXPECT_OK(net_run(n, kfac, &step));
            }
            if (rank % 2 == 0)
                dsc_kfac_abandon(&kfac);
            EXPECT_OK(dsc_comm_barrier(comm)); /* the others have not freed anything */
            dsc_kfac_abandon(&kfac);
            EXPECT(kfac == NULL);
            EXPECT(dsc_device_bytes(places[c->place].device) == before);
        }
    dsc_kfac_abandon(NULL);
    all_fine(comm);
}

/* In the middle of a step, on one rank: there are no messages, and everything is freed. */
static void test_abandon_inside(void **state) {
    (void)state;
    const config *c = some_configs(&(int){0});
    net *n = &nets[c->place];
    dsc_kfac_options options = options_of(c);
    if (ranks > 1)
        return; /* messages would be under way, whose memory stays, and MPI could not end as planned */
    dsc_kfac *kfac = create(c, &options);
    EXPECT_OK(dsc_kfac_begin(kfac, 1));
    net_draw(n, 0, 0, 1);
    for (int l = LAYERS - 1; l > 0; l--)
        EXPECT_OK(dsc_kfac_capture(kfac, n->queue, l, &n->layers[l].a, &n->layers[l].g));
    dsc_kfac_abandon(&kfac);
    EXPECT(kfac == NULL);
    all_fine(comm);
}

/* ---- comparisons that arrive later ---- */

/* As over NCCL: a step does not wait for the comparison among ranks; the next step fails and names what differs. */
static void test_late_comparison(void **state) {
    (void)state;
    const config *c = some_configs(&(int){0});
    net *n = &nets[c->place];
    dsc_kfac_options options = options_of(c);
    dsc_kfac *kfac = ranks > 1 ? create(c, &options) : NULL;
    if (!kfac) {
        all_fine(comm);
        return;
    }
    kfac->compares_late = 1;
    for (int k = 0; k < 20; k++) { /* more than there are places */
        net_step step = step_of(k);
        EXPECT_OK(net_run(n, kfac, &step));
    }
    net_step step = step_of(20);
    step.absent = rank == 0 ? 1u << 3 : 0;
    EXPECT_OK(net_run(n, kfac, &step));
    EXPECT_FAILS(DSC_E_INVALID, "K-FAC: step 20: layer 'rows' ran 0 times on one rank and 1 on another",
                 dsc_kfac_begin(kfac, 1));
    EXPECT_OK(dsc_kfac_begin(kfac, 1)); /* reported once */
    dsc_kfac_destroy(&kfac);
    all_fine(comm);
}

int main(void) {
    chosen_or_skip();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_health),         cmocka_unit_test(test_health_linear),
        cmocka_unit_test(test_health_clip),    cmocka_unit_test(test_health_refused),
        cmocka_unit_test(test_abandon),        cmocka_unit_test(test_late_comparison),
        cmocka_unit_test(test_abandon_inside),
    };
    return cmocka_run_group_tests_name("kfac life", tests, open_crew, close_crew);
}
