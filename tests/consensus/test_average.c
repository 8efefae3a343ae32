/* Averaging by gossip on real ranks, against a naive model of all of them: exactly where the data is dyadic.
 */
#include "consensus/vectors.h"

/* 1 when all shares of this graph are powers of two. */
static int is_dyadic(const dsc_topology *topology) {
    dsc_edge edges[MOST_RANKS];
    int exponent, dyadic = 1;
    for (int64_t step = 0; step < dsc_topology_period(topology); step++)
        for (int r = 0; r < ranks; r++) {
            double self;
            int count = dsc_topology_out(topology, r, step, edges, &self);
            dyadic = dyadic && frexp(self, &exponent) == 0.5;
            for (int e = 0; e < count; e++)
                dyadic = dyadic && frexp(edges[e].share, &exponent) == 0.5;
        }
    return dyadic;
}

/* ---- rounds ---- */

static void check_in_flight(dsc_average *average, vectors *v, const model *before) {
    dsc_edge edges[MOST_RANKS];
    double self;
    model kept = *before;
    dsc_topology_out(dsc_average_topology(average), rank, dsc_average_rounds(average) - 1, edges, &self);
    for (int i = 0; i < LENGTH; i++)
        kept.x[rank][i] *= self;
    check_values(v, &kept, 0);
    EXPECT(dsc_average_weight(average) == self * before->w[rank]);
    EXPECT(dsc_average_is_under_way(average) == 1);
}

/* Eight rounds against the model, with what is kept while a round is under way. */
static void check_graph(const char *graph, int peers, size_t bucket_bytes) {
    vectors v;
    model m;
    make_vectors(&v);
    write_first_values(&v);
    model_start(&m, ranks, LENGTH);
    dsc_average_options options = usual_options(graph, peers);
    options.bucket_bytes = bucket_bytes;
    dsc_average *average = make_average(&v, &options);
    const dsc_topology *topology = dsc_average_topology(average);
    double tolerance = is_dyadic(topology) ? 0 : 1e-5;
    for (int round = 0; round < 8; round++) {
        EXPECT(dsc_average_rounds(average) == round);
        EXPECT_OK(dsc_average_begin(average, queue));
        if (tolerance == 0)
            check_in_flight(average, &v, &m);
        model_mix(&m, topology, round);
        EXPECT_OK(dsc_average_end(average, queue));
        check_values(&v, &m, tolerance);
        EXPECT(dsc_average_weight(average) > 0);
        EXPECT(dsc_topology_is_regular(topology) ? dsc_average_weight(average) == 1
                                                 : fabs(dsc_average_weight(average) - m.w[rank]) < 1e-12);
        EXPECT(dsc_average_is_under_way(average) == 0);
    }
    dsc_average_destroy(&average);
    dsc_tensor_free(&v.memory);
}

/* A graph of the program's own, which is not regular: rank 0 gives equal shares, the others a quarter to
 * it. */
static dsc_status star_period(void *context, int n, int peers, int64_t *period) {
    (void)context, (void)n, (void)peers;
    *period = 1;
    return DSC_OK;
}

static dsc_status star_out(void *context, int n, int peers, int64_t step, int from, dsc_edge *edges,
                           int *count) {
    (void)context, (void)peers, (void)step;
    *count = from == 0 ? n - 1 : 1;
    if (from != 0)
        edges[0] = (dsc_edge){0, 0.25};
    for (int i = 1; i < n && from == 0; i++)
        edges[i - 1].rank = i;
    return DSC_OK;
}

static void test_graphs(void **state) {
    (void)state;
    dsc_topology_def star;
    dsc_topology_def_init(&star);
    star.name = "star";
    star.period = star_period;
    star.out = star_out;
    EXPECT_OK(dsc_topology_register(&star));
    static const struct {
        const char *name;
        int peers;
    } graphs[] = {{"exponential", 1},
                  {"exponential", 2},
                  {"exponential", 3},
                  {"exponential", 6},
                  {"exponential-pm", 1},
                  {"linear", 1},
                  {"ring", 1},
                  {"ring", 2},
                  {"static-exponential", 1},
                  {"complete", 1},
                  {"hypercube", 1},
                  {"bipartite-linear", 1},
                  {"base-2", 1},
                  {"star", 1}};
    for (size_t g = 0; g < sizeof graphs / sizeof *graphs; g++) {
        dsc_topology_options options;
        dsc_topology *topology = NULL;
        dsc_topology_options_init(&options);
        options.peers = graphs[g].peers;
        if (dsc_topology_create(graphs[g].name, ranks, &options, &topology) != DSC_OK)
            continue; /* not for this number of ranks */
        dsc_topology_destroy(&topology);
        check_graph(graphs[g].name, graphs[g].peers, (size_t)4 << 20);
    }
    all_fine(comm);
}

/* Buckets of one element, some that cut tensors, one that ends with one. */
static void test_buckets(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 4, 28, 60, 160, 4096};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        check_graph("exponential", 1, sizes[s]);
    all_fine(comm);
}

/* Averages the data once and compares with the true mean. */
static void check_mean(const char *graph, int rounds, double tolerance) {
    vectors v;
    model m;
    float host[LENGTH];
    make_vectors(&v);
    write_first_values(&v);
    model_start(&m, ranks, LENGTH);
    dsc_average_options options = usual_options(graph, 1);
    dsc_average *average = make_average(&v, &options);
    run_rounds(average, rounds);
    read_vectors(&v, host);
    int wrong = 0;
    for (int i = 0; i < LENGTH; i++)
        wrong += !(fabs(host[i] - model_mean(&m, i)) <= tolerance);
    EXPECT(wrong == 0);
    dsc_average_destroy(&average);
    dsc_tensor_free(&v.memory);
}

static void test_exact_means(void **state) {
    (void)state;
    static const int base2_rounds[MOST_RANKS + 1] = {0, 0, 1, 3, 2, 5, 4, 5, 3};
    int dyadic = (ranks & (ranks - 1)) == 0, log2 = 0;
    while (1 << log2 < ranks)
        log2++;
    check_mean("complete", 1, dyadic ? 0 : 1e-5);
    check_mean("base-2", base2_rounds[ranks], dyadic ? 0 : 1e-5);
    if (dyadic) {
        check_mean("exponential", log2, 0);
        check_mean("hypercube", log2, 0);
    }
    all_fine(comm);
}

static void test_alone(void **state) {
    (void)state;
    vectors v;
    float before[LENGTH], after[LENGTH];
    make_vectors(&v);
    for (int i = 0; i < LENGTH; i++)
        before[i] = 0.1f * (float)(i + 1);
    write_vectors(&v, before);
    dsc_comm_options options;
    dsc_comm_options_init(&options);
    options.kind = "self";
    dsc_comm *alone = NULL;
    assert_ok(dsc_comm_create(&options, &alone));
    dsc_average *average = NULL;
    assert_ok(dsc_average_create(alone, queue, v.piece, PIECES, NULL, &average));
    run_rounds(average, 3);
    EXPECT_OK(dsc_average_begin(average, queue));
    EXPECT_OK(dsc_average_settle(average, queue));
    read_vectors(&v, after);
    EXPECT(memcmp(before, after, sizeof before) == 0);
    EXPECT(dsc_average_weight(average) == 1 && dsc_average_rounds(average) == 4);
    EXPECT(dsc_comm_bytes(alone, DSC_TRAFFIC_PARAMETERS) == 0);
    dsc_average_destroy(&average);
    dsc_average_destroy(&average);
    dsc_average_destroy(NULL);
    dsc_comm_destroy(&alone);
    dsc_tensor_free(&v.memory);
    all_fine(comm);
}

/* No tensors: rounds, and the weight, go on. */
static void test_nothing(void **state) {
    (void)state;
    dsc_average *average = NULL;
    assert_ok(dsc_average_create(comm, queue, NULL, 0, NULL, &average));
    run_rounds(average, 3);
    EXPECT_OK(dsc_average_settle(average, queue));
    EXPECT(dsc_average_weight(average) == 1);
    dsc_average_destroy(&average);
    all_fine(comm);
}

/* ---- irregular graphs ---- */

static void test_irregular(void **state) {
    (void)state;
    if (ranks < 3) /* of two ranks nothing is irregular but the shares */
        return;
    char path[128];
    vectors v;
    model m, start;
    write_graph_file(path, sizeof path);
    make_vectors(&v);
    write_first_values(&v);
    model_start(&m, ranks, LENGTH);
    start = m;
    dsc_average_options options = usual_options(path, 1);
    dsc_average *average = make_average(&v, &options);
    int travelled = 0, wrong = 0;
    float host[LENGTH];
    for (int round = 0; round < 400; round++) {
        run_rounds(average, 1);
        model_mix(&m, dsc_average_topology(average), round);
        travelled += dsc_average_weight(average) != 1;
        EXPECT(dsc_average_weight(average) > 0);
        EXPECT(fabs(dsc_average_weight(average) - m.w[rank]) < 1e-12);
    }
    EXPECT(travelled > 200);
    EXPECT(fabs(sum_of(dsc_average_weight(average)) - ranks) < 1e-12);
    read_vectors(&v, host);
    for (int i = 0; i < LENGTH; i++)
        wrong += !(fabs(host[i] / dsc_average_weight(average) - model_mean(&start, i)) < 1e-4);
    EXPECT(wrong == 0);
    dsc_average_destroy(&average);
    dsc_tensor_free(&v.memory);
    all_fine(comm);
    remove_graph_file(path);
}

/* ---- pairs ---- */

/* In pairs and by push-sum on the same matchings: the same bits, and no header travels. */
static void test_pairs(void **state) {
    (void)state;
    float results[2][LENGTH], host[LENGTH];
    for (int pairwise = 0; pairwise < 2; pairwise++) {
        vectors v;
        make_vectors(&v);
        for (int i = 0; i < LENGTH; i++) {
            dsc_rng rng = dsc_rng_start((uint64_t)rank, DSC_RNG_TEST, 1, (uint64_t)i);
            host[i] = (float)dsc_rng_normal(&rng);
        }
        write_vectors(&v, host);
        dsc_average_options options = usual_options(pairwise    ? NULL
                                                    : ranks % 2 ? "base-2"
                                                                : "bipartite-exponential",
                                                    1);
        options.pairwise = pairwise;
        dsc_average *average = make_average(&v, &options);
        EXPECT(strcmp(dsc_topology_name(dsc_average_topology(average)),
                      ranks % 2 ? "base-2" : "bipartite-exponential") == 0);
        uint64_t before = dsc_comm_bytes(comm, DSC_TRAFFIC_OTHER);
        run_rounds(average, 9);
        if (pairwise)
            EXPECT(dsc_comm_bytes(comm, DSC_TRAFFIC_OTHER) == before);
        EXPECT(dsc_average_weight(average) == 1);
        read_vectors(&v, results[pairwise]);
        dsc_average_destroy(&average);
        dsc_tensor_free(&v.memory);
    }
    EXPECT(memcmp(results[0], results[1], sizeof results[0]) == 0);
    all_fine(comm);
}

/* ---- what travels ---- */

static void test_bytes(void **state) {
    (void)state;
    static const dsc_dtype wires[] = {DSC_F32, DSC_BF16, DSC_F16};
    for (size_t w = 0; w < sizeof wires / sizeof *wires; w++)
        for (int peers = 1; peers < ranks && peers < 4; peers++) {
            vectors v;
            make_vectors(&v);
            dsc_average_options options = usual_options("exponential", peers);
            options.wire = wires[w];
            options.bucket_bytes = 32;
            options.traffic = DSC_TRAFFIC_FACTORS;
            dsc_average *average = make_average(&v, &options);
            dsc_edge edges[MOST_RANKS];
            uint64_t before = dsc_comm_bytes(comm, DSC_TRAFFIC_FACTORS);
            uint64_t heads = dsc_comm_bytes(comm, DSC_TRAFFIC_OTHER);
            uint64_t messages = 0;
            for (int round = 0; round < 4; round++) {
                messages +=
                    (uint64_t)dsc_topology_out(dsc_average_topology(average), rank, round, edges, NULL);
                run_rounds(average, 1);
            }
            EXPECT(peers > 1 || messages == 4);
            EXPECT(average->plan.most_copies == 1); /* peers with the same share get the same copy */
            EXPECT(dsc_comm_bytes(comm, DSC_TRAFFIC_FACTORS) - before ==
                   messages * LENGTH * dsc_dtype_size(wires[w]));
            EXPECT(dsc_comm_bytes(comm, DSC_TRAFFIC_OTHER) - heads ==
                   messages * DSC_HEADER_COUNT * sizeof(double));
            dsc_average_destroy(&average);
            dsc_tensor_free(&v.memory);
        }
    all_fine(comm);
}

/* Values that a half type holds are averaged exactly in it. */
static void check_half_exact(dsc_dtype wire) {
    vectors v;
    model m;
    make_vectors(&v);
    write_first_values(&v);
    model_start(&m, ranks, LENGTH);
    dsc_average_options options = usual_options("exponential", 1);
    options.wire = wire;
    options.bucket_bytes = 30;
    dsc_average *average = make_average(&v, &options);
    for (int round = 0; round < 2; round++) {
        run_rounds(average, 1);
        model_mix(&m, dsc_average_topology(average), round);
        check_values(&v, &m, 0);
    }
    dsc_average_destroy(&average);
    dsc_tensor_free(&v.memory);
}

/* Others: what rounding takes from a message stays with the sender, so mass is kept, and values that are the
 * same everywhere stay so. */
static void check_half_mass(dsc_dtype wire, int peers) {
    vectors v;
    float host[LENGTH], same[LENGTH], after[LENGTH];
    make_vectors(&v);
    dsc_average_options options = usual_options("exponential", peers);
    options.wire = wire;
    dsc_average *average = make_average(&v, &options);
    for (int i = 0; i < LENGTH; i++)
        same[i] = 1 + 0.001f * (float)i;
    write_vectors(&v, same);
    run_rounds(average, 20);
    read_vectors(&v, after);
    for (int i = 0; i < LENGTH; i++)
        EXPECT(fabs(after[i] - same[i]) < 20 * 0x1p-22);
    for (int i = 0; i < LENGTH; i++)
        host[i] = 1 + 0.1f * (float)(rank + 1) / (float)(i + 3);
    write_vectors(&v, host);
    double before = sum_of(host[0] + (double)host[LENGTH - 1]);
    run_rounds(average, 20);
    read_vectors(&v, after);
    double then = sum_of(after[0] + (double)after[LENGTH - 1]);
    EXPECT(fabs(then - before) < ranks * 1e-5);
    EXPECT(fabs(after[0] + (double)after[LENGTH - 1] - before / ranks) < 0.02);
    dsc_average_destroy(&average);
    dsc_tensor_free(&v.memory);
}

static void test_wires(void **state) {
    (void)state;
    static const dsc_dtype wires[] = {DSC_BF16, DSC_F16};
    for (int w = 0; w < 2; w++) {
        check_half_exact(wires[w]);
        for (int peers = 1; peers < ranks && peers < 3; peers++)
            check_half_mass(wires[w], peers);
    }
    if (ranks > 2)
        check_half_mass(DSC_F32, 2);
    all_fine(comm);
}

/* ---- state ---- */

static void test_set_peers(void **state) {
    (void)state;
    static const int schedule[] = {1, 3, 1, 2, 2, 3};
    vectors v;
    model m;
    make_vectors(&v);
    write_first_values(&v);
    model_start(&m, ranks, LENGTH);
    dsc_average_options options = usual_options("exponential", 1);
    dsc_average *average = make_average(&v, &options);
    int64_t round = 0;
    for (size_t s = 0; s < sizeof schedule / sizeof *schedule; s++) {
        int peers = schedule[s] < ranks ? schedule[s] : 1;
        EXPECT_OK(dsc_average_set_peers(average, peers));
        for (int i = 0; i < 2; i++, round++) {
            run_rounds(average, 1);
            model_mix(&m, dsc_average_topology(average), round);
            check_values(&v, &m, 1e-5);
            EXPECT(dsc_average_weight(average) == 1);
        }
    }
    EXPECT_FAILS(DSC_E_INVALID, "0 peers", dsc_average_set_peers(average, 0));
    EXPECT_OK(dsc_average_begin(average, queue));
    EXPECT_FAILS(DSC_E_INVALID, "under way", dsc_average_set_peers(average, 1));
    EXPECT_FAILS(DSC_E_INVALID, "under way", dsc_average_restore(average, 1, 0));
    EXPECT_OK(dsc_average_end(average, queue));
    dsc_average_destroy(&average);
    dsc_tensor_free(&v.memory);
    all_fine(comm);
}

/* Ends after some rounds and goes on in another object: the same bits as without. */
static void test_restore(void **state) {
    (void)state;
    float host[LENGTH], through[LENGTH], resumed[LENGTH];
    vectors v;
    make_vectors(&v);
    for (int i = 0; i < LENGTH; i++) {
        dsc_rng rng = dsc_rng_start((uint64_t)rank, DSC_RNG_TEST, 2, (uint64_t)i);
        host[i] = (float)dsc_rng_normal(&rng);
    }
    write_vectors(&v, host);
    dsc_average_options options = usual_options("exponential", ranks > 2 ? 2 : 1);
    dsc_average *average = make_average(&v, &options);
    run_rounds(average, 3);
    read_vectors(&v, host);
    double weight = dsc_average_weight(average);
    run_rounds(average, 4);
    read_vectors(&v, through);
    dsc_average_destroy(&average);
    write_vectors(&v, host);
    average = make_average(&v, &options);
    EXPECT_OK(dsc_average_restore(average, weight, 3));
    run_rounds(average, 4);
    read_vectors(&v, resumed);
    EXPECT(memcmp(through, resumed, sizeof through) == 0);
    EXPECT(dsc_average_rounds(average) == 7);
    EXPECT_FAILS(DSC_E_INVALID, "weight 0", dsc_average_restore(average, 0, 3));
    EXPECT_FAILS(DSC_E_INVALID, "weight nan", dsc_average_restore(average, NAN, 3));
    EXPECT_FAILS(DSC_E_INVALID, "-1 rounds", dsc_average_restore(average, 1, -1));
    /* Weights that are not 1 go on, too: their sum stays. */
    EXPECT_OK(dsc_average_restore(average, rank == 0 ? 1.5 : 1, 7));
    run_rounds(average, 5);
    EXPECT(fabs(sum_of(dsc_average_weight(average)) - ranks - 0.5) < 1e-12);
    dsc_average_destroy(&average);
    dsc_tensor_free(&v.memory);
    all_fine(comm);
}

/* Ranks that have begun different numbers of rounds: settled, all have the same. */
static void test_settle(void **state) {
    (void)state;
    vectors v;
    model m;
    make_vectors(&v);
    write_first_values(&v);
    model_start(&m, ranks, LENGTH);
    dsc_average_options options = usual_options("exponential", 1);
    dsc_average *average = make_average(&v, &options);
    for (int part = 0; part < 4; part++) {
        /* Rank 0 looks most often, and may so be furthest. */
        for (int i = 0; i < 4 * (ranks - rank); i++) {
            int done = 1;
            if (dsc_average_is_under_way(average))
                EXPECT_OK(dsc_average_test(average, &done));
            if (dsc_average_is_under_way(average) && done)
                EXPECT_OK(dsc_average_end(average, queue));
            if (done && dsc_average_rounds(average) < 10)
                EXPECT_OK(dsc_average_begin(average, queue));
        }
        EXPECT_OK(dsc_average_settle(average, queue));
        EXPECT(!dsc_average_is_under_way(average));
        EXPECT(sum_of((double)dsc_average_rounds(average)) == (double)(ranks * dsc_average_rounds(average)));
        EXPECT(dsc_average_weight(average) == 1);
    }
    for (int64_t round = 0; round < dsc_average_rounds(average); round++)
        model_mix(&m, dsc_average_topology(average), round);
    check_values(&v, &m, 0);
    dsc_average_destroy(&average);
    dsc_tensor_free(&v.memory);
    all_fine(comm);
}

/* Rank 1 waits in the end of a round that rank 0 has not begun, and rank 0 waits for all to settle. */
static void test_settle_lends_a_hand(void **state) {
    (void)state;
    vectors v;
    make_vectors(&v);
    write_first_values(&v);
    dsc_average_options options = usual_options("ring", 1);
    dsc_average *average = make_average(&v, &options);
    if (rank == 1 % ranks)
        run_rounds(average, 3);
    EXPECT_OK(dsc_average_settle_within(average, queue, 3));
    EXPECT(dsc_average_rounds(average) == 3);
    dsc_average_destroy(&average);
    dsc_tensor_free(&v.memory);
    all_fine(comm);
}

int main(void) {
    chosen_or_skip();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graphs),
        cmocka_unit_test(test_buckets),
        cmocka_unit_test(test_exact_means),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_irregular),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_wires),
        cmocka_unit_test(test_set_peers),
        cmocka_unit_test(test_restore),
        cmocka_unit_test(test_settle),
        cmocka_unit_test(test_settle_lends_a_hand),
    };
    return cmocka_run_group_tests_name("average", tests, open_ranks, close_ranks);
}
