/* Averaging by gossip when something goes wrong: delays, lost ranks, no memory, mistakes. */
#include "consensus/vectors.h"

#include "comm/table.h"

#include <errno.h>
#include <sys/stat.h>

/* ---- delays and losses ---- */

static void random_round(dsc_average *average, dsc_rng *rng) {
    int done = 0, tries = (int)(dsc_rng_u32(rng) % 4);
    EXPECT_OK(dsc_average_begin(average, queue));
    for (int i = 0; i < tries && !done; i++)
        EXPECT_OK(dsc_average_test(average, &done));
    EXPECT_OK(dsc_average_end(average, queue));
}

static void test_delays(void **state) {
    (void)state;
    int rounds = chosen_is_emulated(device) ? 100 : 1500;
    vectors v;
    float host[LENGTH];
    make_vectors(&v);
    write_first_values(&v);
    dsc_average_options options = usual_options("exponential", 1);
    options.bucket_bytes = 64;
    dsc_average *average = make_average(&v, &options);
    dsc_rng rng = dsc_rng_start(5, DSC_RNG_TEST, (uint32_t)rank, 0);
    double before = sum_of(first_value(rank, 0));
    start_delays(1);
    for (int i = 0; i < rounds; i++)
        random_round(average, &rng);
    stop_delays();
    EXPECT_OK(dsc_average_settle(average, queue));
    read_vectors(&v, host);
    EXPECT(fabs(sum_of(host[0]) - before) < 1e-4);
    EXPECT(dsc_average_weight(average) == 1 && dsc_average_rounds(average) == rounds);
    dsc_average_destroy(&average);
    dsc_tensor_free(&v.memory);
    all_fine(comm);
}

/* Rank 0 begins late: who waits for it says so in time, and the round can still end. */
static void test_timeout(void **state) {
    (void)state;
    vectors v;
    model m;
    make_vectors(&v);
    write_first_values(&v);
    model_start(&m, ranks, LENGTH);
    dsc_average_options options = usual_options("ring", 1);
    options.timeout = 0.2;
    dsc_average *average = make_average(&v, &options);
    if (rank != 0)
        EXPECT_OK(dsc_average_begin(average, queue));
    if (rank == 1)
        EXPECT_FAILS(DSC_E_COMM,
                     "rank 0 has sent nothing in round 0 for 0.", /* 0.2 s, or more on a busy machine */
                     dsc_average_end(average, queue));
    if (rank == 1)
        EXPECT(strstr(dsc_error_message(), "peer-timeout") != NULL);
    EXPECT_OK(dsc_comm_barrier(comm));
    average->options.timeout = 60;
    if (rank == 0)
        EXPECT_OK(dsc_average_begin(average, queue));
    EXPECT_OK(dsc_average_end(average, queue));
    model_mix(&m, dsc_average_topology(average), 0);
    check_values(&v, &m, 0);
    dsc_average_destroy(&average);
    dsc_tensor_free(&v.memory);
    all_fine(comm);
}

static int looks, met_rank_0;

/* As if this process had been stopped, for longer than the timeout, between two looks. */
static void stop_at_the_second_look(void) {
    const struct timespec moment = {.tv_sec = 3, .tv_nsec = 500000000};
    looks++;
    if (looks == 2)
        nanosleep(&moment, NULL);
    if (looks == 3) { /* goes on to wait: now rank 0 may begin */
        met_rank_0 = 1;
        EXPECT_OK(dsc_comm_barrier(comm));
    }
}

/* Time for which a process was stopped itself is not time that its peers stayed away. */
static void test_stopped(void **state) {
    (void)state;
    vectors v;
    make_vectors(&v);
    dsc_average_options options = usual_options("ring", 1);
    options.timeout = 3;
    dsc_average *average = make_average(&v, &options);
    if (ranks > 1 && rank != 0)
        EXPECT_OK(dsc_average_begin(average, queue));
    looks = met_rank_0 = 0;
    if (rank == 1) {
        dsc_average_hook = stop_at_the_second_look;
        EXPECT_OK(dsc_average_end(average, queue));
        dsc_average_hook = NULL;
    }
    if (!met_rank_0)
        EXPECT_OK(dsc_comm_barrier(comm));
    if (ranks > 1 && rank == 0)
        EXPECT_OK(dsc_average_begin(average, queue));
    if (dsc_average_is_under_way(average))
        EXPECT_OK(dsc_average_end(average, queue));
    dsc_average_destroy(&average);
    dsc_tensor_free(&v.memory);
    all_fine(comm);
}

/* Rank 0 comes late to the synchronisation point: the others say so, come again, and settle with it. */
static void test_settle_again(void **state) {
    (void)state;
    vectors v;
    model m;
    make_vectors(&v);
    write_first_values(&v);
    model_start(&m, ranks, LENGTH);
    dsc_average_options options = usual_options("complete", 1);
    options.timeout = 0.2;
    dsc_average *average = make_average(&v, &options);
    if (rank != 0) {
        EXPECT_OK(dsc_average_begin(average, queue));
        EXPECT_FAILS(DSC_E_COMM, "not all ranks have come", dsc_average_settle(average, queue));
        EXPECT_FAILS(DSC_E_COMM, "not all ranks have come", dsc_average_settle(average, queue));
        EXPECT_FAILS(DSC_E_INVALID, "dsc_average_settle again", dsc_average_begin(average, queue));
    }
    EXPECT_OK(dsc_comm_barrier(comm));
    average->options.timeout = 60;
    if (rank == 0 && ranks == 1)
        EXPECT_OK(dsc_average_begin(average, queue));
    EXPECT_OK(dsc_average_settle(average, queue));
    EXPECT(!dsc_average_is_under_way(average) && dsc_average_rounds(average) == 1);
    model_mix(&m, dsc_average_topology(average), 0);
    check_values(&v, &m, ranks == 3 ? 1e-5 : 0);
    run_rounds(average, 1);
    EXPECT_OK(dsc_average_settle(average, queue));
    dsc_average_destroy(&average);
    dsc_tensor_free(&v.memory);
    all_fine(comm);
}

/* A transport on which an all-reduce comes to its end when the test says so. */
static struct {
    int64_t *number;
    int arrived;
} slow;

static dsc_status slow_start(dsc_comm *with, const dsc_transfer *transfer, dsc_piece *piece) {
    (void)with;
    (void)piece;
    slow.number = transfer->recv;
    return DSC_OK;
}

static dsc_status slow_test(dsc_comm *with, dsc_piece *piece, int *done) {
    (void)with;
    (void)piece;
    *done = slow.arrived;
    return DSC_OK;
}

static dsc_status slow_wait(dsc_comm *with, dsc_piece *piece) {
    (void)with;
    (void)piece;
    EXPECT(slow.arrived); /* else it would wait for ever */
    return DSC_OK;
}

static void slow_close(dsc_comm *with) {
    (void)with;
}

static const dsc_comm_table slow_table = {
    .name = "slow", .close = slow_close, .start = slow_start, .test = slow_test, .wait = slow_wait};

static dsc_comm *self_comm(void) {
    dsc_comm_options options;
    dsc_comm *alone = NULL;
    dsc_comm_options_init(&options);
    options.kind = "self";
    assert_ok(dsc_comm_create(&options, &alone));
    assert_ok(dsc_comm_use_queue(alone, queue));
    return alone;
}

static dsc_comm *slow_comm(void) {
    dsc_comm *made = self_comm();
    made->table->close(made);
    made->table = &slow_table;
    made->size = 2;
    slow.arrived = 0;
    return made;
}

/* Destroyed when settling has failed: it neither waits for ever nor gives back what is still written to. */
static void test_destroy_while_settling(void **state) {
    (void)state;
    vectors v;
    make_vectors(&v);
    dsc_comm *alone = self_comm(), *together = slow_comm();
    dsc_average_options options = usual_options("exponential", 1);
    options.timeout = 0.1;
    for (int late = 0; late < 2; late++) {
        dsc_average *average = NULL;
        assert_ok(dsc_average_create(alone, queue, v.piece, PIECES, &options, &average));
        average->settle_comm = together;
        slow.arrived = 0;
        EXPECT_FAILS(DSC_E_COMM, "not all ranks have come", dsc_average_settle(average, queue));
        slow.arrived = !late;
        dsc_plan_destroy(&average->plan); /* empty; what stays shall be what is written to */
        dsc_average_destroy(&average);
        EXPECT(average == NULL);
        if (late)
            *slow.number = 7;
        slow.arrived = late; /* the one that came in time is not asked for again */
    }
    dsc_comm_destroy(&together);
    dsc_comm_destroy(&alone);
    dsc_tensor_free(&v.memory);
    all_fine(comm);
}

/* Rank 0 is lost before it sends: the others give the round up, and what each holds is a mean of what reached
 * it. (Later rank 0 does send, so that the program can end as others do.) */
static void check_give_up(int pairwise) {
    vectors v;
    float host[LENGTH];
    make_vectors(&v);
    write_first_values(&v);
    dsc_average_options options = usual_options(pairwise ? NULL : "ring", 1);
    options.pairwise = pairwise;
    options.timeout = 0.2;
    options.bucket_bytes = 28;
    dsc_average *average = make_average(&v, &options);
    dsc_edge in[MOST_RANKS];
    int count = dsc_topology_in(dsc_average_topology(average), rank, 0, in);
    int waits = rank != 0 && count > 0 && in[0].rank == 0;
    if (rank != 0)
        EXPECT_OK(dsc_average_begin(average, queue));
    if (waits)
        EXPECT(dsc_average_end(average, queue) == DSC_E_COMM);
    EXPECT_OK(dsc_comm_barrier(comm));
    if (rank != 0) {
        int done = 0; /* small messages of the living are there, or soon will be */
        for (int i = 0; i < 1000 && !done; i++)
            EXPECT_OK(dsc_average_test(average, &done));
        EXPECT_OK(dsc_average_give_up(average, queue));
        EXPECT(!dsc_average_is_under_way(average));
        read_vectors(&v, host);
        double weight = dsc_average_weight(average);
        int from = waits || count == 0 ? rank : in[0].rank, wrong = 0;
        for (int i = 0; i < LENGTH; i++)
            wrong += host[i] / weight != 0.5 * (first_value(rank, i) + first_value(from, i));
        EXPECT(wrong == 0 || ranks % 2); /* base-2 has other shares */
        EXPECT(weight == (waits ? 0.5 : 1) || ranks % 2);
        if (waits)
            EXPECT_FAILS(DSC_E_INVALID, "round 0 is under way", dsc_average_begin(average, queue));
    }
    EXPECT_OK(dsc_comm_barrier(comm));
    if (rank == 0) {
        EXPECT_OK(dsc_average_begin(average, queue));
        EXPECT_OK(dsc_average_end(average, queue));
    }
    dsc_average_destroy(&average);
    dsc_tensor_free(&v.memory);
}

static void test_give_up(void **state) {
    (void)state;
    check_give_up(0);
    check_give_up(1);
    all_fine(comm);
}

/* Some buckets of a peer were added, then it is lost: they are taken back. */
static void test_give_up_in_the_middle(void **state) {
    (void)state;
    vectors v;
    float before[LENGTH], host[LENGTH];
    if (ranks < 2)
        return;
    make_vectors(&v);
    write_first_values(&v);
    read_vectors(&v, before);
    dsc_average_options options = usual_options("ring", 1);
    options.bucket_bytes = 28;
    dsc_average *average = make_average(&v, &options);
    EXPECT_OK(dsc_average_begin(average, queue));
    int done = 0;
    while (!done)
        EXPECT_OK(dsc_average_test(average, &done));
    /* Header and two buckets are taken; of the next it is made to seem that it never comes. */
    for (int r = 0; r < 3; r++) {
        EXPECT_OK(dsc_comm_wait(&average->requests[r]));
        average->taken++;
        if (r > 0)
            EXPECT_OK(dsc_plan_add(average, queue, 1, 0, r - 1));
    }
    dsc_request *kept = average->requests[4], *never = NULL;
    dsc_tensor nothing = dsc_plan_got(&average->plan, 0, 3);
    EXPECT_OK(dsc_comm_recv_begin(average->comm, (rank + 1) % ranks, 77, &nothing, &never));
    average->requests[4] = never;
    EXPECT_OK(dsc_average_give_up(average, queue));
    EXPECT_OK(dsc_comm_barrier(comm));
    EXPECT(dsc_average_weight(average) == 0.5);
    read_vectors(&v, host);
    int wrong = 0;
    for (int i = 0; i < LENGTH; i++)
        wrong += host[i] != 0.5f * before[i];
    EXPECT(wrong == 0);
    average->requests[4] = kept;
    dsc_request *sent = NULL;
    EXPECT_OK(dsc_comm_send_begin(average->comm, DSC_TRAFFIC_OTHER, (rank + ranks - 1) % ranks, 77, &nothing,
                                  &sent));
    EXPECT_OK(dsc_comm_wait(&sent));
    EXPECT_OK(dsc_comm_wait(&never));
    dsc_average_destroy(&average);
    dsc_tensor_free(&v.memory);
    all_fine(comm);
}

/* Ranks that went on from different checkpoints notice it. */
static void test_different_rounds(void **state) {
    (void)state;
    vectors v;
    make_vectors(&v);
    dsc_average_options options = usual_options("ring", 1);
    dsc_average *average = make_average(&v, &options);
    EXPECT_OK(dsc_average_restore(average, 1, rank == 0 ? 5 : 4));
    EXPECT_OK(dsc_average_begin(average, queue));
    if (ranks > 1 && rank < 2)
        EXPECT_FAILS(DSC_E_INTERNAL, rank ? "rank 0 is in round 5, this one in 4" : "this one in 5",
                     dsc_average_end(average, queue));
    else
        EXPECT_OK(dsc_average_end(average, queue));
    dsc_average_destroy(&average);
    dsc_tensor_free(&v.memory);
    all_fine(comm);
}

/* Destroyed with a round under way: no crash, no leak. */
static void test_destroy_under_way(void **state) {
    (void)state;
    vectors v;
    make_vectors(&v);
    dsc_average_options options = usual_options("exponential", 1);
    dsc_average *average = make_average(&v, &options);
    EXPECT_OK(dsc_average_begin(average, queue));
    dsc_average_destroy(&average);
    EXPECT(average == NULL);
    dsc_tensor_free(&v.memory);
    all_fine(comm);
}

/* ---- memory, mistakes ---- */

static void test_rounds_allocate_nothing(void **state) {
    (void)state;
    vectors v;
    make_vectors(&v);
    dsc_average_options options = usual_options("exponential", 1);
    options.wire = DSC_BF16;
    options.bucket_bytes = 20;
    dsc_average *average = make_average(&v, &options);
    int64_t allocations = 0;
    size_t bytes = 0;
    for (int round = 0; round < 12; round++) {
        if (round == 4) {
            allocations = dsc_memory_allocations();
            bytes = dsc_device_bytes(device);
        }
        run_rounds(average, 1);
    }
    EXPECT(dsc_memory_allocations() == allocations);
    EXPECT(dsc_device_bytes(device) == bytes);
    dsc_average_destroy(&average);
    dsc_tensor_free(&v.memory);
    all_fine(comm);
}

static void test_create_survives_failures(void **state) {
    (void)state;
    vectors v;
    make_vectors(&v);
    dsc_comm *alone = self_comm();
    size_t bytes = dsc_device_bytes(device);
    dsc_status status = DSC_E_MEMORY;
    int nth = 0;
    while (status != DSC_OK && ++nth < 1000) {
        dsc_average *average = NULL;
        dsc_memory_fail_at(nth);
        status = dsc_average_create(alone, queue, v.piece, PIECES, NULL, &average);
        dsc_memory_fail_at(0);
        EXPECT(status == DSC_OK ? average != NULL : status == DSC_E_MEMORY && average == NULL);
        dsc_average_destroy(&average);
        EXPECT(dsc_device_bytes(device) == bytes);
    }
    EXPECT(status == DSC_OK && nth > 8);
    dsc_comm_destroy(&alone);
    dsc_tensor_free(&v.memory);
    all_fine(comm);
}

/* Each allocation fails once: then nothing begins, and the change can be made again. */
static void test_set_peers_survives_failures(void **state) {
    (void)state;
    vectors v;
    model m;
    if (ranks == 2) /* has no other number of peers */
        return;
    make_vectors(&v);
    write_first_values(&v);
    model_start(&m, ranks, LENGTH);
    dsc_average_options options = usual_options("exponential", 1);
    dsc_average *average = make_average(&v, &options);
    dsc_status status = DSC_E_MEMORY;
    int refused = 0;
    for (int nth = 1; status != DSC_OK && nth < 100; nth++) {
        const dsc_topology *before = dsc_average_topology(average);
        dsc_memory_fail_at(nth);
        status = dsc_average_set_peers(average, 2);
        dsc_memory_fail_at(0);
        EXPECT(status == DSC_OK || status == DSC_E_MEMORY);
        if (status != DSC_OK && dsc_average_topology(average) != before) {
            EXPECT_FAILS(DSC_E_INVALID, "dsc_average_set_peers again", dsc_average_begin(average, queue));
            refused++;
        }
        EXPECT_OK(dsc_average_set_peers(average, 2));
        model_mix(&m, dsc_average_topology(average), dsc_average_rounds(average));
        run_rounds(average, 1);
        check_values(&v, &m, 1e-4);
        EXPECT_OK(dsc_average_set_peers(average, 1)); /* with fewer requests than the round had */
    }
    EXPECT(status == DSC_OK && refused > 4);
    dsc_average_destroy(&average);
    dsc_tensor_free(&v.memory);
    all_fine(comm);
}

static void expect_refused(vectors *v, const dsc_average_options *options, dsc_status status,
                           const char *text) {
    dsc_average *average = NULL;
    EXPECT_FAILS(status, text, dsc_average_create(comm, queue, v->piece, PIECES, options, &average));
    EXPECT(average == NULL);
}

static void test_bad_options(void **state) {
    (void)state;
    vectors v;
    make_vectors(&v);
    dsc_average_options good = usual_options("exponential", 1), bad = good;
    bad.size = 0;
    expect_refused(&v, &bad, DSC_E_INVALID, "dsc_average_options_init");
    bad = good;
    bad.bucket_bytes = 0;
    expect_refused(&v, &bad, DSC_E_INVALID, "buckets of 0 bytes");
    bad = good;
    bad.wire = DSC_I32;
    expect_refused(&v, &bad, DSC_E_INVALID, "cannot be sent; use fp32");
    bad = good;
    bad.traffic = DSC_TRAFFIC_COUNT;
    expect_refused(&v, &bad, DSC_E_INVALID, "traffic kind");
    bad = good;
    bad.timeout = -1;
    expect_refused(&v, &bad, DSC_E_INVALID, "timeout of -1 s");
    bad = usual_options("moebius", 1);
    expect_refused(&v, &bad, DSC_E_INVALID, "moebius");
    bad = usual_options("exponential", ranks + 1);
    if (ranks > 1)
        expect_refused(&v, &bad, DSC_E_INVALID, "peers");
    bad = usual_options("exponential", 1);
    bad.pairwise = 1;
    if (ranks > 2)
        expect_refused(&v, &bad, DSC_E_INVALID, "no matching");
    dsc_tensor_free(&v.memory);
    all_fine(comm);
}

/* Files of one name, in folders of their own, as on nodes without a common file system. */
static void test_graphs_differ(void **state) {
    (void)state;
    char home[512], path[128];
    vectors v;
    if (ranks < 2)
        return;
    make_vectors(&v);
    snprintf(path, sizeof path, "/tmp/descent-test-%ld-%d", (long)getppid(), rank);
    assert_non_null(getcwd(home, sizeof home));
    assert_true((mkdir(path, 0700) == 0 || errno == EEXIST) && chdir(path) == 0);
    for (int differs = 0; differs < 2; differs++) {
        FILE *file = fopen("same.graph", "w");
        assert_non_null(file);
        fprintf(file, "ranks %d\nstep\n", ranks);
        for (int r = 0; r < ranks; r++)
            fprintf(file, "%d %d %s\n", r, (r + 1) % ranks, differs && rank == ranks - 1 ? "0.25" : "0.5");
        fclose(file);
        dsc_average_options options = usual_options("./same.graph", 1);
        dsc_average *average = NULL;
        dsc_status status = dsc_average_create(comm, queue, v.piece, PIECES, &options, &average);
        EXPECT(status == (differs ? DSC_E_INVALID : DSC_OK));
        EXPECT(!differs || strstr(dsc_error_message(), "the graph's edges"));
        dsc_average_destroy(&average);
    }
    remove("same.graph");
    EXPECT(chdir(home) == 0 && rmdir(path) == 0);
    dsc_tensor_free(&v.memory);
    all_fine(comm);
}

/* Rounds of a GPU's memory keep the order of one queue. */
static void test_other_queue(void **state) {
    (void)state;
    if (dsc_device_is_host(device) || ranks == 1)
        return;
    vectors v;
    make_vectors(&v);
    dsc_average_options options = usual_options("exponential", 1);
    dsc_average *average = make_average(&v, &options);
    dsc_queue *other = NULL;
    assert_ok(dsc_queue_create(device, &other));
    EXPECT_FAILS(DSC_E_INVALID, "dsc_comm_use_queue", dsc_average_begin(average, other));
    EXPECT_OK(dsc_average_begin(average, queue));
    EXPECT_FAILS(DSC_E_INVALID, "dsc_comm_use_queue", dsc_average_end(average, other));
    EXPECT_OK(dsc_average_end(average, queue));
    dsc_average_destroy(&average);
    dsc_queue_destroy(&other);
    dsc_tensor_free(&v.memory);
    all_fine(comm);
}

static void test_bad_calls(void **state) {
    (void)state;
    vectors v;
    make_vectors(&v);
    dsc_average_options good = usual_options("exponential", 1);
    dsc_average *average = make_average(&v, &good);
    int done;
    EXPECT_FAILS(DSC_E_INVALID, "no round has begun", dsc_average_end(average, queue));
    EXPECT_FAILS(DSC_E_INVALID, "no round is under way", dsc_average_test(average, &done));
    EXPECT_OK(dsc_average_begin(average, queue));
    EXPECT_FAILS(DSC_E_INVALID, "round 0 is under way", dsc_average_begin(average, queue));
    EXPECT_OK(dsc_average_end(average, queue));
    dsc_average_destroy(&average);
    /* One rank fails, or differs: everybody hears of it. */
    int last = rank == ranks - 1;
    v.piece[0].dtype = last ? DSC_I32 : DSC_F32;
    expect_refused(&v, &good, DSC_E_UNSUPPORTED, "fp32 can be averaged");
    v.piece[0].dtype = DSC_F32;
    v.piece[0].dim[0] -= last;
    if (ranks > 1)
        expect_refused(&v, &good, DSC_E_INVALID, "differs between ranks: rank 0 has fp32");
    dsc_tensor_free(&v.memory);
    all_fine(comm);
}

int main(void) {
    chosen_or_skip();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_delays),
        cmocka_unit_test(test_timeout),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_settle_again),
        cmocka_unit_test(test_destroy_while_settling),
        cmocka_unit_test(test_give_up),
        cmocka_unit_test(test_give_up_in_the_middle),
        cmocka_unit_test(test_different_rounds),
        cmocka_unit_test(test_destroy_under_way),
        cmocka_unit_test(test_rounds_allocate_nothing),
        cmocka_unit_test(test_create_survives_failures),
        cmocka_unit_test(test_set_peers_survives_failures),
        cmocka_unit_test(test_graphs_differ),
        cmocka_unit_test(test_other_queue),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_bad_calls),
    };
    return cmocka_run_group_tests_name("average-faults", tests, open_ranks, close_ranks);
}
