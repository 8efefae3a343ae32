/* SGP, OSGP and D-PSGD on real ranks against a naive model of all of them: the recurrences, what equals what,
 * overlap over several steps, groups. */
#include "consensus/net.h"

/* Steps against the model: what forward sees, and what is left when all is settled. */
static void check_steps(const dsc_consensus_options *options, double decay, double tolerance, int steps) {
    net n;
    model m;
    float z[LENGTH];
    int group = options->group, overlapped = options->kind == DSC_CONSENSUS_OSGP;
    make_net(&n);
    n.lr = tolerance > 0 ? 0.25 : 1; /* small weights amplify rounding at a large one */
    n.decay = decay;
    write_first_values(&n, rank / group);
    model_start(&m, ranks / group, LENGTH);
    dsc_topology *topology = make_topology(options->graph, ranks / group, options->peers);
    dsc_consensus *c = make_consensus(&n, options);
    for (int t = 0; t < steps; t++) {
        model before = m;
        step(c, &n, z);
        EXPECT(differing(&before, rank / group, z, 1, tolerance) == 0);
        model_step(&m, &n, topology, t, overlapped, group);
    }
    EXPECT_OK(dsc_consensus_settle(c, queue));
    read_values(&n, z);
    EXPECT(differing(&m, rank / group, z, 0, tolerance) == 0);
    double mass = 0;
    EXPECT_OK(dsc_consensus_mass(c, &mass));
    EXPECT(fabs(mass - ranks) < 1e-12);
    EXPECT((n.saw_read > 0) == (ranks / group > 1 && (overlapped || !dsc_topology_is_regular(topology))));
    dsc_consensus_destroy(&c);
    dsc_topology_destroy(&topology);
    free_net(&n);
}

/* ---- the recurrences ---- */

static void test_sgp(void **state) {
    (void)state;
    dsc_consensus_options options = usual_options(DSC_CONSENSUS_SGP, "exponential");
    check_steps(&options, 0, 0, 5);
    check_steps(&options, 0.5, 0, 4);
    options.graph = "ring";
    check_steps(&options, 0.5, 0, 4);
    options.peers = 2;
    if (ranks > 2)
        check_steps(&options, 0.5, 1e-5, 12);
    all_fine(comm);
}

static void test_osgp(void **state) {
    (void)state;
    dsc_consensus_options options = usual_options(DSC_CONSENSUS_OSGP, "exponential");
    check_steps(&options, 0, 0, 5);
    check_steps(&options, 0.5, 0, 4); /* half the mass is in flight: decay acts on z all the same */
    options.peers = 2;
    if (ranks > 2)
        check_steps(&options, 0.25, 1e-5, 12);
    all_fine(comm);
}

static void test_dpsgd(void **state) {
    (void)state;
    dsc_consensus_options options =
        usual_options(DSC_CONSENSUS_DPSGD, ranks % 2 ? "base-2" : "bipartite-exponential");
    check_steps(&options, 0.5, ranks % 2 || ranks == 6 ? 1e-5 : 0, 4);
    all_fine(comm);
}

static void test_irregular(void **state) {
    (void)state;
    char path[128];
    if (ranks < 3)
        return;
    write_graph_file(path, sizeof path);
    dsc_consensus_options options = usual_options(DSC_CONSENSUS_SGP, path);
    check_steps(&options, 0.25, 1e-4, 15);
    options.kind = DSC_CONSENSUS_OSGP;
    check_steps(&options, 0.25, 1e-4, 15);
    all_fine(comm);
    remove_graph_file(path);
}

/* The mean of the parameters after everybody's update. */
static void test_complete(void **state) {
    (void)state;
    net n;
    model m;
    float z[LENGTH];
    make_net(&n);
    write_first_values(&n, rank);
    model_start(&m, ranks, LENGTH);
    dsc_consensus_options options = usual_options(DSC_CONSENSUS_SGP, "complete");
    dsc_consensus *c = make_consensus(&n, &options);
    step(c, &n, z);
    EXPECT_OK(dsc_consensus_settle(c, queue));
    read_values(&n, z);
    int wrong = 0;
    for (int i = 0; i < LENGTH; i++) {
        double mean = 0;
        for (int r = 0; r < ranks; r++)
            mean += (m.x[r][i] - gradient(m.x[r][i], r, i)) / ranks;
        wrong += !(fabs(z[i] - mean) <= ((ranks & (ranks - 1)) ? 1e-5 : 0));
    }
    EXPECT(wrong == 0);
    dsc_consensus_destroy(&c);
    free_net(&n);
    all_fine(comm);
}

/* One rank alone: plain SGD, bit for bit. */
static void test_alone(void **state) {
    (void)state;
    static const dsc_consensus_kind kinds[] = {DSC_CONSENSUS_SGP, DSC_CONSENSUS_OSGP, DSC_CONSENSUS_DPSGD};
    dsc_comm_options comm_options;
    dsc_comm_options_init(&comm_options);
    comm_options.kind = "self";
    dsc_comm *alone = NULL;
    assert_ok(dsc_comm_create(&comm_options, &alone));
    EXPECT_OK(dsc_comm_use_queue(alone, queue));
    for (int k = 0; k < 3; k++) {
        net n, plain;
        float first[LENGTH], z[LENGTH], expected[LENGTH];
        make_net(&n);
        make_net(&plain);
        n.lr = plain.lr = 0.3;
        n.decay = plain.decay = 0.01;
        for (int i = 0; i < LENGTH; i++)
            first[i] = 0.1f * (float)(i + 1);
        write_values(&n, first);
        write_values(&plain, first);
        dsc_consensus_options options = usual_options(kinds[k], NULL);
        dsc_consensus *c = NULL;
        assert_ok(dsc_consensus_create(alone, queue, n.params, PARAMS, &options, &c));
        for (int t = 0; t < 7; t++) {
            step(c, &n, z);
            compute(&plain, expected);
            EXPECT(memcmp(z, expected, sizeof z) == 0);
            EXPECT_OK(descend(&plain, queue, NULL));
        }
        EXPECT_OK(dsc_consensus_settle(c, queue));
        read_values(&n, z);
        read_values(&plain, expected);
        EXPECT(memcmp(z, expected, sizeof z) == 0 && n.saw_read == 0);
        dsc_consensus_destroy(&c);
        free_net(&n);
        free_net(&plain);
    }
    dsc_comm_destroy(&alone);
    all_fine(comm);
}

/* ---- equivalences ---- */

/* `steps` steps with or without settling between them. */
static void run_random(const dsc_consensus_options *options, int steps, int settle_every, float *out) {
    net n;
    float z[LENGTH];
    make_net(&n);
    n.lr = 0.3;
    n.decay = 0.01;
    random_values(&n);
    dsc_consensus *c = make_consensus(&n, options);
    for (int t = 0; t < steps; t++) {
        step(c, &n, z);
        if (settle_every && t % settle_every == 0)
            EXPECT_OK(dsc_consensus_settle(c, queue));
    }
    EXPECT_OK(dsc_consensus_settle(c, queue));
    read_values(&n, out);
    dsc_consensus_destroy(&c);
    free_net(&n);
}

static void test_sgp_is_dpsgd(void **state) {
    (void)state;
    float sgp[LENGTH], dpsgd[LENGTH];
    const char *graph = ranks % 2 ? "base-2" : "bipartite-linear";
    dsc_consensus_options options = usual_options(DSC_CONSENSUS_SGP, graph);
    run_random(&options, 9, 0, sgp);
    options.kind = DSC_CONSENSUS_DPSGD;
    run_random(&options, 9, 0, dpsgd);
    EXPECT(memcmp(sgp, dpsgd, sizeof sgp) == 0);
    all_fine(comm);
}

/* Settling in between changes no result. */
static void test_settling_changes_nothing(void **state) {
    (void)state;
    static const dsc_consensus_kind kinds[] = {DSC_CONSENSUS_SGP, DSC_CONSENSUS_OSGP, DSC_CONSENSUS_DPSGD};
    for (int k = 0; k < 3; k++) {
        float through[LENGTH], settled[LENGTH];
        dsc_consensus_options options = usual_options(kinds[k], NULL);
        start_delays(2);
        run_random(&options, 8, 0, through);
        run_random(&options, 8, 3, settled);
        stop_delays();
        EXPECT(memcmp(through, settled, sizeof through) == 0);
    }
    all_fine(comm);
}

/* A unit gradient on one rank, once: -1/n everywhere in the end. */
static void test_unit_gradient(void **state) {
    (void)state;
    static const dsc_consensus_kind kinds[] = {DSC_CONSENSUS_SGP, DSC_CONSENSUS_OSGP, DSC_CONSENSUS_DPSGD};
    for (int k = 0; k < 3; k++) {
        net n;
        float host[LENGTH] = {0};
        make_net(&n);
        dsc_consensus_options options = usual_options(kinds[k], NULL);
        dsc_consensus *c = make_consensus(&n, &options);
        write_values(&n, host);
        int dyadic = (ranks & (ranks - 1)) == 0;
        for (int t = 0; t < (dyadic ? 10 : 60); t++) {
            EXPECT_OK(dsc_consensus_before_forward(c, queue));
            for (int i = 0; i < LENGTH; i++)
                host[i] = t == 1 && rank == ranks / 2 ? 1 : 0;
            for (int p = 0; p < PARAMS; p++)
                push(&n.params[p].grad, host);
            EXPECT_OK(update(c, queue, &n));
        }
        EXPECT_OK(dsc_consensus_settle(c, queue));
        read_values(&n, host);
        for (int i = 0; i < LENGTH; i++)
            EXPECT(dyadic ? host[i] == -1.0f / (float)ranks : fabs(host[i] + 1.0 / ranks) < 1e-6);
        dsc_consensus_destroy(&c);
        free_net(&n);
    }
    all_fine(comm);
}

/* ---- overlap over several steps ---- */

static int64_t rounds_of(const dsc_consensus *c) {
    return dsc_consensus_rounds(c);
}

/* Steps at random speeds: no round lasts longer than synch_freq + 1 steps, nobody waits for ever, and mass is
 * kept: targets are 0 and decay is, so that only mixing changes values. */
static void run_stale(int64_t synch_freq, int group, int steps, int *left_out) {
    net n;
    float host[LENGTH], zero[LENGTH] = {0};
    make_net(&n);
    write_first_values(&n, rank / group);
    dsc_consensus_options options = usual_options(DSC_CONSENSUS_OSGP, "exponential");
    options.synch_freq = synch_freq;
    options.group = group;
    dsc_consensus *c = make_consensus(&n, &options);
    for (int p = 0; p < PARAMS; p++)
        push(&n.params[p].grad, zero);
    double before = sum_of(first_value(rank / group, 0));
    int64_t age = 0, rounds = 0;
    for (int t = 0; t < steps; t++) {
        EXPECT_OK(dsc_consensus_before_forward(c, queue));
        age = rounds_of(c) > rounds ? 0 : age + 1;
        *left_out += age > 0;
        EXPECT(age <= synch_freq);
        EXPECT(rounds_of(c) <= rounds + 1);
        rounds = rounds_of(c);
        for (int p = PARAMS - 1; p >= 0; p--)
            EXPECT_OK(dsc_consensus_grad_ready(c, queue, p));
        EXPECT_OK(dsc_consensus_after_backward(c, queue));
        EXPECT_OK(update(c, queue, &n));
        if (t % 97 == 96) {
            EXPECT_OK(dsc_consensus_settle(c, queue));
            rounds = rounds_of(c);
            EXPECT(sum_of((double)rounds) == (double)rounds * ranks);
        }
    }
    EXPECT_OK(dsc_consensus_settle(c, queue));
    read_values(&n, host);
    EXPECT(fabs(sum_of(host[0]) - before) < 1e-4);
    double mass = 0;
    EXPECT_OK(dsc_consensus_mass(c, &mass));
    EXPECT(mass == ranks);
    dsc_consensus_destroy(&c);
    free_net(&n);
}

static void test_staleness(void **state) {
    (void)state;
    int steps = chosen_is_emulated(device) ? 60 : 700, left_out = 0, never = 0;
    start_delays(3);
    run_stale(0, 1, steps, &never);
    EXPECT(never == 0);
    for (int64_t synch_freq = 1; synch_freq < 4; synch_freq++)
        run_stale(synch_freq, 1, steps, &left_out);
    if (ranks > 2 && ranks % 2 == 0)
        run_stale(2, 2, steps, &left_out);
    stop_delays();
    EXPECT(sum_of(left_out) > 0 || ranks == 1); /* else nothing was tested */
    all_fine(comm);
}

/* ---- groups ---- */

static void test_groups(void **state) {
    (void)state;
    for (int group = 2; group <= ranks; group++) {
        dsc_consensus_options options = usual_options(DSC_CONSENSUS_SGP, "exponential");
        options.group = group;
        if (ranks % group) {
            net n;
            dsc_consensus *c = NULL;
            make_net(&n);
            EXPECT_FAILS(DSC_E_INVALID, "cannot be divided evenly",
                         dsc_consensus_create(comm, queue, n.params, PARAMS, &options, &c));
            free_net(&n);
            continue;
        }
        double tolerance = (group & (group - 1)) ? 1e-5 : 0;
        check_steps(&options, 0.5, tolerance, 3);
        options.kind = DSC_CONSENSUS_OSGP;
        check_steps(&options, 0.5, tolerance, 3);
        options.kind = DSC_CONSENSUS_DPSGD;
        options.graph = "base-2";
        check_steps(&options, 0.5, 1e-5, 3);
    }
    all_fine(comm);
}

/* All ranks of the tests are on one node: a group of all is an all-reduce of gradients. */
static void test_group_of_node(void **state) {
    (void)state;
    net n;
    float z[LENGTH];
    make_net(&n);
    write_first_values(&n, 0);
    dsc_consensus_options options = usual_options(DSC_CONSENSUS_SGP, "exponential");
    options.group = 0;
    dsc_consensus *c = make_consensus(&n, &options);
    step(c, &n, z);
    EXPECT_OK(dsc_consensus_settle(c, queue));
    read_values(&n, z);
    int wrong = 0;
    for (int i = 0; i < LENGTH; i++) {
        double mean = 0, first = first_value(0, i);
        for (int r = 0; r < ranks; r++)
            mean += gradient(first, r, i) / ranks;
        wrong += !(fabs(z[i] - (first - mean)) < 1e-5);
    }
    EXPECT(wrong == 0);
    dsc_consensus_destroy(&c);
    free_net(&n);
    all_fine(comm);
}

/* ---- what travels ---- */

/* In half precision values stay near those in float32. */
static void test_wire(void **state) {
    (void)state;
    float exact[LENGTH], half[LENGTH];
    dsc_consensus_options options = usual_options(DSC_CONSENSUS_SGP, "exponential");
    run_random(&options, 20, 0, exact);
    options.wire = DSC_BF16;
    run_random(&options, 20, 0, half);
    for (int i = 0; i < LENGTH; i++)
        EXPECT(fabs(exact[i] - half[i]) < 0.05);
    all_fine(comm);
}

int main(void) {
    chosen_or_skip();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sgp),           cmocka_unit_test(test_osgp),
        cmocka_unit_test(test_dpsgd),         cmocka_unit_test(test_irregular),
        cmocka_unit_test(test_complete),      cmocka_unit_test(test_alone),
        cmocka_unit_test(test_sgp_is_dpsgd),  cmocka_unit_test(test_settling_changes_nothing),
        cmocka_unit_test(test_unit_gradient), cmocka_unit_test(test_staleness),
        cmocka_unit_test(test_groups),        cmocka_unit_test(test_group_of_node),
        cmocka_unit_test(test_wire),
    };
    return cmocka_run_group_tests_name("gossip", tests, open_ranks, close_ranks);
}
