/* SGP, OSGP and D-PSGD between steps: exact averages and slow momentum, swapped-in values, checkpoints,
 * costs, mistakes, a lost rank. */
#include "consensus/net.h"

#include "comm/table.h"
#include "consensus/table.h"

/* ---- exact averages ---- */

/* SlowMo on the model. */
static void model_slow(model *m, double momentum, double slow_rate, double lr, double *anchor, double *u) {
    for (int i = 0; i < m->length; i++) {
        u[i] = momentum * u[i] + (anchor[i] - model_mean(m, i)) / lr;
        anchor[i] -= slow_rate * lr * u[i];
        for (int r = 0; r < m->ranks; r++)
            m->x[r][i] = anchor[i];
    }
    for (int r = 0; r < m->ranks; r++)
        m->w[r] = 1;
}

static void check_averages(const dsc_consensus_options *options, double tolerance) {
    net n;
    model m;
    float z[LENGTH];
    double anchor[LENGTH], u[LENGTH] = {0};
    make_net(&n);
    n.lr = 0.25;
    write_first_values(&n, rank);
    dsc_consensus *c = make_consensus(&n, options);
    EXPECT_OK(dsc_consensus_start(c));
    model_start(&m, ranks, LENGTH);
    for (int r = 0; r < ranks; r++)
        memcpy(m.x[r], m.x[0], sizeof m.x[0]);
    memcpy(anchor, m.x[0], sizeof anchor);
    dsc_topology *topology = make_topology(options->graph, ranks, 1);
    int64_t round = 0;
    for (int t = 0; t < 8; t++) {
        int due = (t + 1) % options->average_every == 0;
        step(c, &n, z);
        EXPECT(differing(&m, rank, z, 1, tolerance) == 0);
        if (due && options->kind == DSC_CONSENSUS_SGP) {
            double own[MOST_RANKS][MOST_LENGTH];
            model_debias(&m, own);
            model_update(&m, &n, own, 1);
        } else {
            model_step(&m, &n, topology, round++, options->kind == DSC_CONSENSUS_OSGP, 1);
        }
        if (due)
            model_slow(&m, options->slow_momentum, options->slow_rate, n.lr, anchor, u);
        double distance = 1, norm = 0;
        EXPECT_OK(dsc_consensus_settle(c, queue));
        EXPECT_OK(dsc_consensus_distance(c, queue, &distance, &norm));
        EXPECT(!due || distance < 1e-5);
    }
    EXPECT(dsc_consensus_state_count(c) == (options->slow_momentum > 0 ? 2 * PARAMS : 0));
    if (options->slow_momentum > 0) {
        const dsc_param *slow = dsc_consensus_state(c);
        EXPECT(strcmp(slow[1].name, "slow.a.bias") == 0 && slow[1].grad.data == NULL);
        EXPECT(strcmp(slow[PARAMS + 2].name, "anchor.b.weight") == 0);
        pull(&slow[1].value, z);
        for (int i = 0; i < counts[1]; i++)
            EXPECT(fabs(z[i] - u[counts[0] + i]) < 1e-4);
    }
    dsc_consensus_destroy(&c);
    dsc_topology_destroy(&topology);
    free_net(&n);
}

static void test_averages(void **state) {
    (void)state;
    static const dsc_consensus_kind kinds[] = {DSC_CONSENSUS_SGP, DSC_CONSENSUS_OSGP};
    char path[128];
    write_graph_file(path, sizeof path);
    for (int k = 0; k < 2; k++) {
        dsc_consensus_options options = usual_options(kinds[k], "exponential");
        options.average_every = 3;
        check_averages(&options, 1e-5);
        options.slow_momentum = 0.5;
        options.slow_rate = 0.75;
        check_averages(&options, 1e-4);
        options.graph = path; /* weights go back to 1 */
        if (ranks > 2)
            check_averages(&options, 1e-3);
    }
    all_fine(comm);
    remove_graph_file(path);
}

/* ---- between steps ---- */

/* Mean, own values and distance against the model, on a graph where weights travel; hiding brings every bit
 * back. */
static void test_show(void **state) {
    (void)state;
    char path[128];
    net n;
    float before[LENGTH], swapped[LENGTH], after[LENGTH], z[LENGTH];
    if (ranks < 3)
        return;
    write_graph_file(path, sizeof path);
    make_net(&n);
    random_values(&n);
    dsc_consensus_options options = usual_options(DSC_CONSENSUS_OSGP, path);
    dsc_consensus *c = make_consensus(&n, &options);
    for (int t = 0; t < 2; t++)
        step(c, &n, z);
    EXPECT_FAILS(DSC_E_INVALID, "dsc_consensus_settle", dsc_consensus_swap_in(c, queue, DSC_VALUES_MEAN));
    EXPECT_OK(dsc_consensus_settle(c, queue));
    read_values(&n, before);
    double mean[LENGTH], distance = 0, norm = 0, squares = 0, size = 0, weight = dsc_consensus_weight(c);
    for (int i = 0; i < LENGTH; i++) {
        mean[i] = sum_of(before[i]) / ranks;
        squares += pow(before[i] / weight - mean[i], 2);
        size += mean[i] * mean[i];
    }
    squares = sum_of(squares);
    for (int what = 0; what < 2; what++) {
        EXPECT_OK(dsc_consensus_swap_in(c, queue, what ? DSC_VALUES_OWN : DSC_VALUES_MEAN));
        read_values(&n, swapped);
        for (int i = 0; i < LENGTH; i++)
            EXPECT(fabs(swapped[i] - (what ? before[i] / weight : mean[i])) < 1e-5);
        EXPECT_FAILS(DSC_E_INVALID, "dsc_consensus_swap_out",
                     dsc_consensus_swap_in(c, queue, DSC_VALUES_OWN));
        EXPECT_FAILS(DSC_E_INVALID, "dsc_consensus_swap_out", dsc_consensus_before_forward(c, queue));
        EXPECT_OK(dsc_consensus_swap_out(c, queue));
        read_values(&n, after);
        EXPECT(memcmp(before, after, sizeof before) == 0);
    }
    EXPECT_OK(dsc_consensus_distance(c, queue, &distance, &norm));
    EXPECT(fabs(distance - sqrt(squares / ranks)) < 1e-5 && fabs(norm - sqrt(size)) < 1e-5);
    read_values(&n, after);
    EXPECT(memcmp(before, after, sizeof before) == 0);
    EXPECT_FAILS(DSC_E_INVALID, "nothing is swapped in", dsc_consensus_swap_out(c, queue));
    dsc_consensus_destroy(&c);
    free_net(&n);
    all_fine(comm);
    remove_graph_file(path);
}

static void test_allreduce_shows_itself(void **state) {
    (void)state;
    net n;
    float before[LENGTH], after[LENGTH];
    make_net(&n);
    write_first_values(&n, 0);
    dsc_consensus *c = make_consensus(&n, NULL);
    double mass = 0, distance = 1, norm = 0, numbers[DSC_CONSENSUS_NUMBERS];
    EXPECT(dsc_consensus_is_collective(c) && dsc_consensus_records(c) == dsc_comm_records(comm));
    read_values(&n, before);
    EXPECT_OK(dsc_consensus_settle(c, queue));
    EXPECT_OK(dsc_consensus_swap_in(c, queue, DSC_VALUES_MEAN));
    read_values(&n, after);
    EXPECT(memcmp(before, after, sizeof before) == 0);
    EXPECT_OK(dsc_consensus_swap_out(c, queue));
    EXPECT_OK(dsc_consensus_mass(c, &mass));
    EXPECT_OK(dsc_consensus_distance(c, queue, &distance, &norm));
    EXPECT(mass == ranks && distance == 0 && norm > 0);
    dsc_consensus_get_numbers(c, numbers);
    EXPECT_OK(dsc_consensus_set_numbers(c, numbers));
    EXPECT(dsc_consensus_state_count(c) == 0);
    EXPECT_FAILS(DSC_E_INVALID, "no number of peers", dsc_consensus_set_peers(c, 2));
    dsc_consensus_destroy(&c);
    free_net(&n);
    all_fine(comm);
}

/* Values and state of a checkpoint, as a trainer would keep them. */
typedef struct saved {
    float values[LENGTH], state[2 * LENGTH];
    double numbers[DSC_CONSENSUS_NUMBERS];
} saved;

static void save(const net *n, const dsc_consensus *c, saved *s) {
    int at = 0;
    read_values(n, s->values);
    dsc_consensus_get_numbers(c, s->numbers);
    for (int64_t i = 0; i < dsc_consensus_state_count(c); i++) {
        pull(&dsc_consensus_state(c)[i].value, s->state + at);
        at += (int)dsc_tensor_count(&dsc_consensus_state(c)[i].value);
    }
}

static void load(net *n, dsc_consensus *c, const saved *s) {
    int at = 0;
    write_values(n, s->values);
    for (int64_t i = 0; i < dsc_consensus_state_count(c); i++) {
        dsc_tensor value = dsc_consensus_state(c)[i].value;
        push(&value, s->state + at);
        at += (int)dsc_tensor_count(&value);
    }
    EXPECT_OK(dsc_consensus_set_numbers(c, s->numbers));
}

static void check_resume(const dsc_consensus_options *options) {
    net n;
    saved s;
    float z[LENGTH], through[LENGTH], resumed[LENGTH];
    make_net(&n);
    n.lr = 0.3;
    random_values(&n);
    dsc_consensus *c = make_consensus(&n, options);
    EXPECT_OK(dsc_consensus_start(c));
    for (int t = 0; t < 5; t++)
        step(c, &n, z);
    EXPECT_OK(dsc_consensus_settle(c, queue));
    save(&n, c, &s);
    for (int part = 0; part < 2; part++) {
        for (int t = 0; t < 6; t++)
            step(c, &n, z);
        EXPECT_OK(dsc_consensus_settle(c, queue));
        read_values(&n, part ? resumed : through);
        dsc_consensus_destroy(&c);
        if (part == 0) {
            random_values(&n);
            c = make_consensus(&n, options);
            EXPECT_OK(dsc_consensus_start(c));
            load(&n, c, &s);
        }
    }
    EXPECT(memcmp(through, resumed, sizeof through) == 0);
    free_net(&n);
}

static void test_resume(void **state) {
    (void)state;
    static const dsc_consensus_kind kinds[] = {DSC_CONSENSUS_SGP, DSC_CONSENSUS_OSGP, DSC_CONSENSUS_DPSGD};
    char path[128];
    write_graph_file(path, sizeof path);
    for (int k = 0; k < 3; k++) {
        dsc_consensus_options options = usual_options(kinds[k], NULL);
        check_resume(&options);
        options.average_every = 4;
        options.slow_momentum = 0.5;
        check_resume(&options);
        options = usual_options(kinds[k], path);
        if (kinds[k] != DSC_CONSENSUS_DPSGD && ranks > 2)
            check_resume(&options);
    }
    all_fine(comm);
    remove_graph_file(path);
}

/* Another number of peers in mid-run: mass stays, and the schedule goes on. */
static void test_peers(void **state) {
    (void)state;
    net n;
    model m;
    float z[LENGTH];
    make_net(&n);
    n.lr = 0.25;
    write_first_values(&n, rank);
    model_start(&m, ranks, LENGTH);
    dsc_consensus_options options = usual_options(DSC_CONSENSUS_OSGP, "exponential");
    dsc_consensus *c = make_consensus(&n, &options);
    for (int part = 0; part < 3; part++) {
        int peers = part == 1 && ranks > 2 ? 2 : 1;
        dsc_topology *topology = make_topology("exponential", ranks, peers);
        EXPECT_OK(dsc_consensus_set_peers(c, peers));
        for (int t = 0; t < 3; t++) {
            step(c, &n, z);
            EXPECT(differing(&m, rank, z, 1, 1e-5) == 0);
            model_step(&m, &n, topology, 3 * part + t, 1, 1);
        }
        if (ranks > 1)
            EXPECT_FAILS(DSC_E_INVALID, "dsc_consensus_settle", dsc_consensus_set_peers(c, 1));
        EXPECT_OK(dsc_consensus_settle(c, queue));
        dsc_topology_destroy(&topology);
    }
    double mass = 0;
    EXPECT_OK(dsc_consensus_mass(c, &mass));
    EXPECT(mass == ranks);
    dsc_consensus_destroy(&c);
    free_net(&n);
    all_fine(comm);
}

/* ---- costs ---- */

static void test_bytes(void **state) {
    (void)state;
    static const dsc_consensus_kind kinds[] = {DSC_CONSENSUS_SGP, DSC_CONSENSUS_OSGP};
    static const dsc_dtype wires[] = {DSC_F32, DSC_BF16};
    for (int k = 0; k < 2; k++)
        for (int w = 0; w < 2; w++) {
            net n;
            float z[LENGTH];
            make_net(&n);
            write_first_values(&n, rank);
            dsc_consensus_options options = usual_options(kinds[k], "exponential");
            options.wire = wires[w];
            dsc_consensus *c = make_consensus(&n, &options);
            uint64_t before = dsc_comm_bytes(comm, DSC_TRAFFIC_PARAMETERS);
            uint64_t gradients = dsc_comm_bytes(comm, DSC_TRAFFIC_GRADIENTS);
            for (int t = 0; t < 5; t++)
                step(c, &n, z);
            EXPECT(dsc_comm_bytes(comm, DSC_TRAFFIC_PARAMETERS) - before ==
                   (ranks > 1 ? 5 * LENGTH * dsc_dtype_size(wires[w]) : 0));
            EXPECT(dsc_comm_bytes(comm, DSC_TRAFFIC_GRADIENTS) == gradients);
            EXPECT(!dsc_consensus_is_collective(c) && !dsc_consensus_records(c));
            EXPECT_OK(dsc_consensus_settle(c, queue));
            dsc_consensus_destroy(&c);
            free_net(&n);
        }
    all_fine(comm);
}

static void test_step_allocates_nothing(void **state) {
    (void)state;
    static const dsc_consensus_kind kinds[] = {DSC_CONSENSUS_SGP, DSC_CONSENSUS_OSGP, DSC_CONSENSUS_DPSGD};
    for (int k = 0; k < 3; k++) {
        net n;
        float z[LENGTH];
        int64_t allocations = 0;
        size_t bytes = 0;
        make_net(&n);
        dsc_consensus_options options = usual_options(kinds[k], NULL);
        options.group = ranks % 2 == 0 ? 2 : 1;
        dsc_consensus *c = make_consensus(&n, &options);
        for (int t = 0; t < 16; t++) {
            if (t == 8) {
                allocations = dsc_memory_allocations();
                bytes = dsc_device_bytes(device);
            }
            step(c, &n, z);
        }
        EXPECT(dsc_memory_allocations() == allocations);
        EXPECT(dsc_device_bytes(device) == bytes);
        EXPECT_OK(dsc_consensus_settle(c, queue));
        dsc_consensus_destroy(&c);
        free_net(&n);
    }
    all_fine(comm);
}

/* ---- mistakes ---- */

static void test_create_survives_failures(void **state) {
    (void)state;
    net n;
    make_net(&n);
    dsc_comm_options comm_options;
    dsc_comm_options_init(&comm_options);
    comm_options.kind = "self";
    dsc_comm *alone = NULL;
    assert_ok(dsc_comm_create(&comm_options, &alone));
    EXPECT_OK(dsc_comm_use_queue(alone, queue));
    dsc_consensus_options options = usual_options(DSC_CONSENSUS_OSGP, NULL);
    options.average_every = 2;
    options.slow_momentum = 0.5;
    size_t bytes = dsc_device_bytes(device);
    dsc_status status = DSC_E_MEMORY;
    int nth = 0;
    while (status != DSC_OK && ++nth < 1000) {
        dsc_consensus *c = NULL;
        dsc_memory_fail_at(nth);
        status = dsc_consensus_create(alone, queue, n.params, PARAMS, &options, &c);
        dsc_memory_fail_at(0);
        EXPECT(status == DSC_OK ? c != NULL : status == DSC_E_MEMORY && c == NULL);
        dsc_consensus_destroy(&c);
        EXPECT(dsc_device_bytes(device) == bytes);
    }
    EXPECT(status == DSC_OK && nth > 16);
    dsc_comm_destroy(&alone);
    free_net(&n);
    all_fine(comm);
}

static void expect_refused(net *n, const dsc_consensus_options *options, const char *text) {
    dsc_consensus *c = NULL;
    EXPECT_FAILS(DSC_E_INVALID, text, dsc_consensus_create(comm, queue, n->params, PARAMS, options, &c));
    EXPECT(c == NULL);
}

static void test_bad_options(void **state) {
    (void)state;
    net n;
    make_net(&n);
    dsc_consensus_options good = usual_options(DSC_CONSENSUS_SGP, NULL), bad = good;
    bad.synch_freq = 1;
    expect_refused(&n, &bad, "synch_freq 1");
    bad.synch_freq = -1;
    expect_refused(&n, &bad, "synch-freq -1");
    bad = good;
    bad.group = -2;
    expect_refused(&n, &bad, "gossip-group -2");
    bad = good;
    bad.average_every = -1;
    expect_refused(&n, &bad, "average-every -1");
    bad = good;
    bad.slow_momentum = 0.5;
    expect_refused(&n, &bad, "set average_every");
    bad.slow_momentum = 1;
    expect_refused(&n, &bad, "slow-momentum 1");
    bad = good;
    bad.slow_rate = 0;
    expect_refused(&n, &bad, "slow-rate 0");
    bad.slow_rate = 0.5;
    expect_refused(&n, &bad, "slow learning rate 0.5 acts at exact averages");
    bad = good;
    bad.peer_timeout = -1;
    expect_refused(&n, &bad, "peer-timeout -1");
    bad = good;
    bad.wire = DSC_I64;
    expect_refused(&n, &bad, "fp32, bf16, fp16");
    bad = usual_options(DSC_CONSENSUS_DPSGD, "ring");
    if (ranks > 2)
        expect_refused(&n, &bad, "no matching");
    bad = usual_options(DSC_CONSENSUS_DPSGD, "bipartite-linear");
    if (ranks > 1 && ranks % 2)
        expect_refused(&n, &bad, "bipartite-linear");
    free_net(&n);
    all_fine(comm);
}

static void test_bad_calls(void **state) {
    (void)state;
    net n;
    float z[LENGTH];
    make_net(&n);
    dsc_consensus_options options = usual_options(DSC_CONSENSUS_SGP, NULL);
    options.average_every = 1;
    options.slow_momentum = 0.5;
    dsc_consensus *c = make_consensus(&n, &options);
    double numbers[DSC_CONSENSUS_NUMBERS], mass;
    EXPECT_OK(dsc_consensus_before_forward(c, queue));
    EXPECT_FAILS(DSC_E_INVALID, "dsc_consensus_set_rate", update(c, queue, &n));
    dsc_consensus_destroy(&c);
    options = usual_options(DSC_CONSENSUS_SGP, NULL);
    c = make_consensus(&n, &options);
    dsc_consensus_get_numbers(c, numbers);
    numbers[0] = -1;
    EXPECT_FAILS(DSC_E_INVALID, "weight -1", dsc_consensus_set_numbers(c, numbers));
    step(c, &n, z);
    EXPECT_FAILS(DSC_E_INVALID, "dsc_consensus_settle", dsc_consensus_mass(c, &mass));
    EXPECT_FAILS(DSC_E_INVALID, "dsc_consensus_settle", dsc_consensus_set_numbers(c, numbers));
    EXPECT_OK(dsc_consensus_settle(c, queue));
    EXPECT_OK(dsc_consensus_mass(c, &mass));
    dsc_consensus_destroy(&c);
    options = usual_options(DSC_CONSENSUS_OSGP, NULL);
    c = make_consensus(&n, &options);
    EXPECT_OK(dsc_consensus_before_forward(c, queue));
    if (ranks > 1)
        EXPECT_FAILS(DSC_E_INVALID, "after dsc_consensus_update", dsc_consensus_settle(c, queue));
    EXPECT_OK(update(c, queue, &n));
    EXPECT_OK(dsc_consensus_settle(c, queue));
    dsc_consensus_destroy(&c);
    free_net(&n);
    all_fine(comm);
}

/* ---- a lost rank ---- */

/* Rank 0 comes late to settle: the others come again, and every member of a group gets what all have. */
static void test_settle_again(void **state) {
    (void)state;
    for (int group = 1; group <= 2 && ranks > 1 && ranks % group == 0; group++) {
        net n;
        float z[LENGTH];
        double mass = 0;
        make_net(&n);
        dsc_consensus_options options = usual_options(DSC_CONSENSUS_SGP, NULL);
        options.group = group;
        options.peer_timeout = 3; /* of the step before, too, on a busy machine */
        dsc_comm *aside = NULL;   /* the synchronisation point may be `comm` */
        assert_ok(dsc_comm_split(comm, 0, rank, &aside));
        dsc_consensus *c = make_consensus(&n, &options);
        write_first_values(&n, 0);
        step(c, &n, z);
        EXPECT_OK(dsc_comm_barrier(aside));
        if (rank != 0) {
            EXPECT_FAILS(DSC_E_COMM, "not all ranks have come", dsc_consensus_settle(c, queue));
            EXPECT_FAILS(DSC_E_INVALID, "dsc_consensus_settle", dsc_consensus_mass(c, &mass));
        }
        EXPECT_OK(dsc_comm_barrier(aside));
        dsc_status status = dsc_consensus_settle(c, queue);
        for (int i = 0; i < 200 && status == DSC_E_COMM; i++) /* on a busy machine */
            status = dsc_consensus_settle(c, queue);
        EXPECT_OK(status);
        EXPECT_OK(dsc_consensus_mass(c, &mass));
        EXPECT(mass == ranks);
        read_values(&n, z);
        for (int i = 0; i < LENGTH && ranks == 2; i++) { /* all mixed in one round */
            double other = 0.5 * (target(0, i) + target(1, i));
            EXPECT(z[i] == (float)(0.5 * (first_value(0, i) + other)));
        }
        dsc_consensus_destroy(&c);
        dsc_comm_destroy(&aside);
        free_net(&n);
    }
    all_fine(comm);
}

static int reductions_left;
static const dsc_comm_table *real_table;

static dsc_status start_or_fail(dsc_comm *with, const dsc_transfer *transfer, dsc_piece *piece) {
    if (transfer->op == DSC_COMM_ALLREDUCE && transfer->dtype == DSC_F32 && reductions_left-- == 0)
        return DSC_FAIL(DSC_E_LOST, "a rank was lost");
    return real_table->start(with, transfer, piece);
}

/* The loss of a rank between two runs of an exact average: what is there is no sum. */
static void test_lost_in_an_average(void **state) {
    (void)state;
    net n;
    float z[LENGTH];
    make_net(&n);
    write_first_values(&n, rank);
    dsc_consensus_options options = usual_options(DSC_CONSENSUS_SGP, NULL);
    dsc_consensus *c = make_consensus(&n, &options);
    dsc_comm_table failing = *comm->table;
    failing.start = start_or_fail;
    real_table = comm->table;
    reductions_left = 1;
    comm->table = &failing;
    if (ranks > 1)
        EXPECT_FAILS(DSC_E_LOST, "a rank was lost", dsc_consensus_mean_in_place(c, queue, DSC_TRAFFIC_OTHER));
    comm->table = real_table;
    read_values(&n, z);
    model m;
    model_start(&m, ranks, LENGTH);
    for (int i = 0; i < LENGTH; i++) {
        double expected = i < counts[0] + counts[1] ? model_mean(&m, i) : first_value(rank, i);
        EXPECT(fabs(z[i] - expected) < 1e-5);
    }
    dsc_consensus_destroy(&c);
    free_net(&n);
    all_fine(comm);
}

enum { LOST_SGP, LOST_OSGP, LOST_OSGP_IN_STEP, LOST_COUNT };

/* Rank 0 does not take part, until the others have saved their own values. */
static void check_rescue(int when) {
    net n;
    float before[LENGTH], host[LENGTH], z[LENGTH];
    make_net(&n);
    n.lr = 0;
    write_first_values(&n, rank);
    read_values(&n, before);
    dsc_consensus_options options =
        usual_options(when == LOST_SGP ? DSC_CONSENSUS_SGP : DSC_CONSENSUS_OSGP, "ring");
    options.peer_timeout = 0.2;
    dsc_consensus *c = make_consensus(&n, &options);
    if (rank != 0 && when == LOST_OSGP_IN_STEP)
        EXPECT_OK(dsc_consensus_before_forward(c, queue));
    else if (rank != 0)
        step(c, &n, z);
    if (rank == 1 && when != LOST_OSGP_IN_STEP)
        EXPECT_FAILS(DSC_E_COMM, "rank 0 has sent nothing", dsc_consensus_before_forward(c, queue));
    if (rank == 1) {
        EXPECT_OK(dsc_consensus_rescue(c, queue));
        read_values(&n, host);
        EXPECT(memcmp(before, host, sizeof host) == 0);
    }
    EXPECT_OK(dsc_comm_barrier(comm));
    if (rank == 0) /* so that nothing is left in flight */
        step(c, &n, z);
    dsc_consensus_destroy(&c);
    free_net(&n);
}

static void test_rescue(void **state) {
    (void)state;
    for (int when = 0; when < LOST_COUNT && ranks > 1; when++)
        check_rescue(when);
    net n;
    make_net(&n);
    dsc_consensus *c = make_consensus(&n, NULL);
    EXPECT_FAILS(DSC_E_UNSUPPORTED, "allreduce cannot continue without a rank",
                 dsc_consensus_rescue(c, queue));
    dsc_consensus_destroy(&c);
    free_net(&n);
    all_fine(comm);
}

int main(void) {
    chosen_or_skip();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_averages),
        cmocka_unit_test(test_show),
        cmocka_unit_test(test_allreduce_shows_itself),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_peers),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_step_allocates_nothing),
        cmocka_unit_test(test_create_survives_failures),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_bad_calls),
        cmocka_unit_test(test_settle_again),
        cmocka_unit_test(test_lost_in_an_average),
        cmocka_unit_test(test_rescue),
    };
    return cmocka_run_group_tests_name("gossip-state", tests, open_ranks, close_ranks);
}
