/* consensus over MPI: gradients averaged exactly on dyadic data, values handed out, drift noticed. */
#include "chosen.h"
#include "comm/parallel.h"

#include "base/hash.h"
#include "base/memory.h"
#include "base/rng.h"
#include "descent/consensus.h"

enum { PARAMS = 5, TOTAL = 33 + 15 + 1 + 18 + 1001, WATCHDOG_S = 240 };

static const int64_t counts[PARAMS] = {33, 15, 1, 18, 1001};
static const char *const names[PARAMS] = {"a.weight", "b.weight", "b.bias", "c.weight", "d.weight"};

static dsc_comm *comm;
static dsc_device *device;
static dsc_queue *queue;
static int rank, ranks;

/* With a copy of values and gradients on the host, which push and pull take to the device and back. */
typedef struct net {
    dsc_tensor values, grads;
    dsc_param params[PARAMS];
    float *host_values, *host_grads;
} net;

static void push(const dsc_tensor *t, const float *host) {
    dsc_tensor whole = *t;
    EXPECT_OK(dsc_tensor_upload(queue, host, dsc_tensor_bytes(t), &whole));
    EXPECT_OK(dsc_queue_sync(queue));
}

static void pull(const dsc_tensor *t, float *host) {
    EXPECT_OK(dsc_tensor_download(queue, t, dsc_tensor_bytes(t), host));
    EXPECT_OK(dsc_queue_sync(queue));
}

/* gap: elements between neighbours. */
static void make_net(int64_t gap, net *n) {
    const int64_t room = TOTAL + PARAMS * gap;
    assert_ok(dsc_tensor_alloc(device, DSC_F32, 1, &room, &n->values));
    assert_ok(dsc_tensor_alloc(device, DSC_F32, 1, &room, &n->grads));
    n->host_values = calloc((size_t)room, sizeof(float));
    n->host_grads = calloc((size_t)room, sizeof(float));
    assert_true(n->host_values && n->host_grads);
    int64_t at = 0;
    for (int p = 0; p < PARAMS; p++) {
        n->params[p] = (dsc_param){.name = names[p],
                                   .value = dsc_tensor_slice(&n->values, at, counts[p]),
                                   .grad = dsc_tensor_slice(&n->grads, at, counts[p])};
        at += counts[p] + gap;
    }
}

static void free_net(net *n) {
    dsc_tensor_free(&n->values);
    dsc_tensor_free(&n->grads);
    free(n->host_values);
    free(n->host_grads);
}

/* In the copies. */
static float *value_of(net *n, int p) {
    return n->host_values + ((char *)n->params[p].value.data - (char *)n->values.data) / 4;
}

static float *grad_of(net *n, int p) {
    return n->host_grads + ((char *)n->params[p].grad.data - (char *)n->grads.data) / 4;
}

static dsc_consensus *make_consensus(net *n, size_t bucket_bytes, dsc_dtype wire) {
    dsc_consensus_options options;
    dsc_consensus_options_init(&options);
    options.bucket_bytes = bucket_bytes;
    options.wire = wire;
    dsc_consensus *consensus = NULL;
    assert_ok(dsc_consensus_create(comm, queue, n->params, PARAMS, &options, &consensus));
    return consensus;
}

/* Powers of two of either sign; 12 of them divide by 1, 2, 3 and 4 without a remainder. */
static float unit(int p, int64_t i) {
    static const float units[] = {1, -2, 0.5f, 4, -0.25f};
    return units[(p + i) % 5];
}

static void fill_grads(net *n) {
    for (int p = 0; p < PARAMS; p++)
        for (int64_t i = 0; i < counts[p]; i++)
            grad_of(n, p)[i] = 12 * (float)(rank + 1) * unit(p, i);
    push(&n->grads, n->host_grads);
}

/* The mean of 12 (r + 1) over the ranks r is 6 (ranks + 1). */
static void check_means(net *n) {
    int wrong = 0;
    pull(&n->grads, n->host_grads);
    for (int p = 0; p < PARAMS; p++)
        for (int64_t i = 0; i < counts[p]; i++)
            wrong += grad_of(n, p)[i] != 6 * (float)(ranks + 1) * unit(p, i);
    EXPECT(wrong == 0);
}

static void exchange(dsc_consensus *consensus, const int order[PARAMS]) {
    EXPECT_OK(dsc_consensus_before_forward(consensus, queue));
    for (int k = 0; k < PARAMS; k++)
        EXPECT_OK(dsc_consensus_grad_ready(consensus, queue, order[k]));
    EXPECT_OK(dsc_consensus_after_backward(consensus, queue));
}

static const int falling[PARAMS] = {4, 3, 2, 1, 0};

static void test_mean(void **state) {
    (void)state;
    const size_t sizes[] = {4, 200, (size_t)4 << 20};
    const dsc_dtype wires[] = {DSC_F32, DSC_BF16, DSC_F16};
    for (int64_t gap = 0; gap < 2; gap++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (size_t w = 0; w < sizeof wires / sizeof *wires; w++) {
                net n;
                make_net(gap, &n);
                dsc_consensus *consensus = make_consensus(&n, sizes[s], wires[w]);
                for (int round = 0; round < 3; round++) {
                    fill_grads(&n);
                    exchange(consensus, falling);
                    check_means(&n);
                }
                dsc_consensus_destroy(&consensus);
                free_net(&n);
            }
    all_fine(comm);
}

/* What needs more than bfloat16's 8 bits comes back rounded, and half the bytes travel. */
static void test_wire(void **state) {
    (void)state;
    uint64_t bytes[2];
    for (int half = 0; half < 2; half++) {
        net n;
        make_net(0, &n);
        dsc_consensus *consensus = make_consensus(&n, 4096, half ? DSC_BF16 : DSC_F32);
        for (int p = 0; p < PARAMS; p++)
            for (int64_t i = 0; i < counts[p]; i++)
                grad_of(&n, p)[i] = 12 + 0x1p-8f;
        push(&n.grads, n.host_grads);
        uint64_t before = dsc_comm_bytes(comm, DSC_TRAFFIC_GRADIENTS);
        exchange(consensus, falling);
        bytes[half] = dsc_comm_bytes(comm, DSC_TRAFFIC_GRADIENTS) - before;
        float expected = half && ranks > 1 ? 12 : 12 + 0x1p-8f;
        pull(&n.grads, n.host_grads);
        int wrong = 0;
        for (int p = 0; p < PARAMS; p++)
            for (int64_t i = 0; i < counts[p]; i++)
                wrong += grad_of(&n, p)[i] != expected;
        EXPECT(wrong == 0);
        dsc_consensus_destroy(&consensus);
        free_net(&n);
    }
    /* The formula's division may round once per bucket, and there are at most five. */
    EXPECT(bytes[0] >= 2 * bytes[1] && bytes[0] <= 2 * bytes[1] + 2 * PARAMS);
    EXPECT(ranks == 1 ? bytes[0] == 0 : bytes[0] > 0);
    all_fine(comm);
}

/* Gradients whose sums do round: the order in which they become ready does not change a bit. */
static void test_order(void **state) {
    (void)state;
    static const int orders[][PARAMS] = {{4, 3, 2, 1, 0}, {0, 1, 2, 3, 4}, {2, 0, 4, 1, 3}};
    static float expected[PARAMS][1001];
    for (int k = 0; k < 3; k++) {
        net n;
        make_net(0, &n);
        dsc_consensus *consensus = make_consensus(&n, 256, DSC_F32);
        for (int p = 0; p < PARAMS; p++)
            for (int64_t i = 0; i < counts[p]; i++) {
                dsc_rng rng = dsc_rng_start((uint64_t)rank, DSC_RNG_TEST, (uint32_t)p, (uint64_t)i);
                grad_of(&n, p)[i] = (float)dsc_rng_normal(&rng);
            }
        push(&n.grads, n.host_grads);
        exchange(consensus, orders[k]);
        pull(&n.grads, n.host_grads);
        for (int p = 0; p < PARAMS; p++) {
            size_t size = (size_t)counts[p] * sizeof(float);
            if (k == 0)
                memcpy(expected[p], grad_of(&n, p), size);
            else
                EXPECT(memcmp(expected[p], grad_of(&n, p), size) == 0);
        }
        dsc_consensus_destroy(&consensus);
        free_net(&n);
    }
    all_fine(comm);
}

/* Rank 0's values for everybody, however the memory of each rank lies. */
static void test_start(void **state) {
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        net n;
        make_net(kind == 2 ? rank % 2 : kind, &n);
        dsc_consensus *consensus = make_consensus(&n, 4096, DSC_F32);
        for (int p = 0; p < PARAMS; p++)
            for (int64_t i = 0; i < counts[p]; i++)
                value_of(&n, p)[i] = (float)(100000 * rank + 2000 * p + i);
        push(&n.values, n.host_values);
        uint64_t before = dsc_comm_bytes(comm, DSC_TRAFFIC_PARAMETERS);
        EXPECT_OK(dsc_consensus_start(consensus));
        uint64_t bytes = dsc_comm_bytes(comm, DSC_TRAFFIC_PARAMETERS) - before;
        EXPECT(bytes == (rank == 0 ? (uint64_t)(ranks - 1) * TOTAL * sizeof(float) : 0));
        pull(&n.values, n.host_values);
        int wrong = 0;
        for (int p = 0; p < PARAMS; p++)
            for (int64_t i = 0; i < counts[p]; i++)
                wrong += value_of(&n, p)[i] != (float)(2000 * p + i);
        EXPECT(wrong == 0);
        EXPECT_OK(dsc_consensus_check(consensus, queue));
        dsc_consensus_destroy(&consensus);
        free_net(&n);
    }
    all_fine(comm);
}

static uint64_t hash_of(net *n) {
    uint64_t hash = 0;
    for (int p = 0; p < PARAMS; p++)
        hash = dsc_hash_bytes(hash, value_of(n, p), (size_t)counts[p] * sizeof(float));
    return hash;
}

static void flip(net *n, int p, int64_t i, uint32_t mask) {
    uint32_t bits;
    memcpy(&bits, &value_of(n, p)[i], sizeof bits);
    bits ^= mask;
    memcpy(&value_of(n, p)[i], &bits, sizeof bits);
    push(&n->values, n->host_values);
}

/* One rank differs by one bit: every rank says so and names it, with both hashes. */
static void check_drift_of(int culprit) {
    net n;
    make_net(1, &n);
    dsc_consensus *consensus = make_consensus(&n, 4096, DSC_F32);
    for (int p = 0; p < PARAMS; p++)
        for (int64_t i = 0; i < counts[p]; i++)
            value_of(&n, p)[i] = (float)(p + i);
    push(&n.values, n.host_values);
    EXPECT_OK(dsc_consensus_check(consensus, queue));
    uint64_t good = hash_of(&n);
    flip(&n, 4, 1000, 1);
    uint64_t bad = hash_of(&n);
    if (rank != culprit)
        flip(&n, 4, 1000, 1);
    char text[128];
    snprintf(text, sizeof text, "rank 0 has hash %016llx, rank %d has %016llx",
             (unsigned long long)(culprit == 0 ? bad : good), culprit == 0 ? 1 : culprit,
             (unsigned long long)(culprit == 0 ? good : bad));
    EXPECT_FAILS(DSC_E_NUMERIC, text, dsc_consensus_check(consensus, queue));
    snprintf(text, sizeof text, "%d of %d ranks differ from rank 0", culprit == 0 ? ranks - 1 : 1, ranks);
    EXPECT(strstr(dsc_error_message(), text) != NULL);
    /* Put right, they agree again. */
    if (rank == culprit)
        flip(&n, 4, 1000, 1);
    EXPECT_OK(dsc_consensus_check(consensus, queue));
    dsc_consensus_destroy(&consensus);
    free_net(&n);
}

static void test_drift(void **state) {
    (void)state;
    for (int culprit = 0; culprit < ranks && ranks > 1; culprit++)
        check_drift_of(culprit);
    all_fine(comm);
}

static void test_hash(void **state) {
    (void)state;
    unsigned char data[64] = {0};
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(7 * i);
    uint64_t hash = dsc_hash_bytes(0, data, sizeof data);
    EXPECT(hash == dsc_hash_bytes(dsc_hash_bytes(0, data, 24), data + 24, 40));
    for (size_t bit = 0; bit < 8 * sizeof data; bit++) {
        data[bit / 8] ^= (unsigned char)(1u << bit % 8);
        EXPECT(dsc_hash_bytes(0, data, sizeof data) != hash);
        data[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    /* Two sign bits at the top of words, which a plain product would let cancel. */
    data[7] ^= 0x80;
    data[15] ^= 0x80;
    EXPECT(dsc_hash_bytes(0, data, sizeof data) != hash);
    /* Short ends count, too. */
    EXPECT(dsc_hash_bytes(0, "abc", 3) != dsc_hash_bytes(0, "abd", 3));
    all_fine(comm);
}

static void test_update(void **state) {
    (void)state;
    net n;
    make_net(0, &n);
    dsc_consensus *consensus = make_consensus(&n, 4096, DSC_F32);
    const dsc_tensor *read = &n.values;
    EXPECT_FAILS(DSC_E_INVALID, "dsc_consensus_update_begin", dsc_consensus_update_end(consensus, queue));
    EXPECT_OK(dsc_consensus_update_begin(consensus, queue, &read));
    EXPECT(read == NULL);
    EXPECT_FAILS(DSC_E_INVALID, "dsc_consensus_update_end",
                 dsc_consensus_update_begin(consensus, queue, &read));
    EXPECT_FAILS(DSC_E_INVALID, "dsc_consensus_update_end", dsc_consensus_before_forward(consensus, queue));
    EXPECT_FAILS(DSC_E_INVALID, "dsc_consensus_update_end", dsc_consensus_settle(consensus, queue));
    EXPECT_OK(dsc_consensus_update_end(consensus, queue));
    EXPECT_OK(dsc_consensus_update_begin(consensus, queue, &read));
    dsc_consensus_update_cancel(consensus);
    dsc_consensus_update_cancel(consensus);
    dsc_consensus_update_cancel(NULL);
    EXPECT_OK(dsc_consensus_update_begin(consensus, queue, &read)); /* destroying cancels it */
    dsc_consensus_destroy(&consensus);
    dsc_consensus_destroy(&consensus);
    dsc_consensus_destroy(NULL);
    free_net(&n);
    all_fine(comm);
}

static void test_step_allocates_nothing(void **state) {
    (void)state;
    net n;
    make_net(0, &n);
    dsc_consensus *consensus = make_consensus(&n, 200, DSC_BF16);
    const dsc_tensor *read;
    int64_t allocations = 0;
    size_t bytes = 0;
    for (int step = 0; step < 10; step++) {
        if (step == 2) {
            allocations = dsc_memory_allocations();
            bytes = dsc_device_bytes(device);
        }
        fill_grads(&n);
        exchange(consensus, falling);
        EXPECT_OK(dsc_consensus_update_begin(consensus, queue, &read));
        EXPECT_OK(dsc_consensus_update_end(consensus, queue));
    }
    EXPECT(dsc_memory_allocations() == allocations);
    EXPECT(dsc_device_bytes(device) == bytes);
    dsc_consensus_destroy(&consensus);
    free_net(&n);
    all_fine(comm);
}

/* Ranks with different lists are refused on every rank instead of hanging. */
static void test_layout_differs(void **state) {
    (void)state;
    net n;
    make_net(0, &n);
    dsc_consensus *consensus = NULL;
    int last = rank == ranks - 1;
    if (ranks > 1) {
        EXPECT_FAILS(DSC_E_INVALID, "rank 0 has 5, of which the first 4 are the same",
                     dsc_consensus_create(comm, queue, n.params, PARAMS - last, NULL, &consensus));
        n.params[0].value.dim[0] -= last;
        n.params[0].grad.dim[0] -= last;
        EXPECT_FAILS(DSC_E_INVALID,
                     "parameter 0 differs between ranks: rank 0 has 'a.weight' fp32 [33], rank",
                     dsc_consensus_create(comm, queue, n.params, PARAMS, NULL, &consensus));
        EXPECT(consensus == NULL);
    }
    free_net(&n);
    all_fine(comm);
}

static void test_bad_input(void **state) {
    (void)state;
    net n;
    make_net(0, &n);
    dsc_consensus_kind kind;
    EXPECT_OK(dsc_consensus_parse("allreduce", &kind));
    EXPECT(kind == DSC_CONSENSUS_ALLREDUCE);
    EXPECT(strcmp(dsc_consensus_name(kind), "allreduce") == 0);
    static const char *const kinds[] = {"allreduce", "sgp", "osgp", "dpsgd", "adpsgd"};
    for (int i = 0; i < 5; i++) {
        EXPECT_OK(dsc_consensus_parse(kinds[i], &kind));
        EXPECT((int)kind == i && strcmp(dsc_consensus_name(kind), kinds[i]) == 0);
    }
    EXPECT_FAILS(DSC_E_INVALID,
                 "consensus 'allgather' is unknown: choose one of allreduce, sgp, osgp, dpsgd, adpsgd",
                 dsc_consensus_parse("allgather", &kind));
    dsc_consensus *consensus = NULL;
    dsc_consensus_options options;
    dsc_consensus_options_init(&options);
    options.size = 0;
    EXPECT_FAILS(DSC_E_INVALID, "dsc_consensus_options_init",
                 dsc_consensus_create(comm, queue, n.params, PARAMS, &options, &consensus));
    dsc_consensus_options_init(&options);
    options.kind = (dsc_consensus_kind)77;
    EXPECT_FAILS(DSC_E_INVALID, "consensus 77 is unknown: choose one of allreduce, sgp",
                 dsc_consensus_create(comm, queue, n.params, PARAMS, &options, &consensus));
    dsc_consensus_options_init(&options);
    options.bucket_bytes = 0;
    EXPECT_FAILS(DSC_E_INVALID, "bucket-mb 0: must be above 0",
                 dsc_consensus_create(comm, queue, n.params, PARAMS, &options, &consensus));
    EXPECT_FAILS(DSC_E_INVALID, "-1 parameters",
                 dsc_consensus_create(comm, queue, n.params, -1, NULL, &consensus));
    n.params[1].grad.dim[0]--;
    EXPECT_FAILS(DSC_E_INVALID, "parameter 'b.weight'",
                 dsc_consensus_create(comm, queue, n.params, PARAMS, NULL, &consensus));
    n.params[1].grad.dim[0]++;
    EXPECT(consensus == NULL);
    EXPECT_OK(dsc_consensus_create(comm, queue, n.params, PARAMS, NULL, &consensus));
    EXPECT_FAILS(DSC_E_INVALID, "parameter 5 is ready", dsc_consensus_grad_ready(consensus, queue, PARAMS));
    EXPECT_FAILS(DSC_E_INVALID, "parameter -1 is ready", dsc_consensus_grad_ready(consensus, queue, -1));
    /* Backward never reached parameter 2. */
    for (int p = PARAMS - 1; p >= 0; p--)
        if (p != 2)
            EXPECT_OK(dsc_consensus_grad_ready(consensus, queue, p));
    EXPECT_FAILS(DSC_E_INVALID, "", dsc_consensus_after_backward(consensus, queue));
    dsc_consensus_destroy(&consensus);
    free_net(&n);
    all_fine(comm);
}

static void expect_refused(net *n, const dsc_consensus_options *options, const char *text) {
    dsc_consensus *consensus = NULL;
    EXPECT_FAILS(DSC_E_INVALID, text,
                 dsc_consensus_create(comm, queue, n->params, PARAMS, options, &consensus));
    EXPECT(consensus == NULL);
    dsc_consensus_destroy(&consensus);
}

/* What only gossip does is not passed over. */
static void test_gossip_options(void **state) {
    (void)state;
    net n;
    make_net(0, &n);
    dsc_consensus_options usual, options;
    dsc_consensus_options_init(&usual);
    options = usual;
    options.graph = "ring";
    expect_refused(&n, &options, "allreduce with graph 'ring'");
    options = usual;
    options.peers = 2;
    expect_refused(&n, &options, "allreduce with 2 peers");
    options = usual;
    options.synch_freq = 1;
    expect_refused(&n, &options, "allreduce with synch_freq 1");
    options = usual;
    options.group = 0;
    expect_refused(&n, &options, "allreduce with groups of 0");
    options = usual;
    options.average_every = 4;
    expect_refused(&n, &options, "allreduce with average_every 4");
    options = usual;
    options.slow_momentum = 0.5;
    expect_refused(&n, &options, "slow_momentum 0.5");
    options = usual;
    options.slow_rate = 0.5;
    expect_refused(&n, &options, "slow_rate 0.5");
    free_net(&n);
    all_fine(comm);
}

/* Each allocation of create fails once. Alone, so that no other rank waits. */
static void test_create_survives_failures(void **state) {
    (void)state;
    net n;
    make_net(1, &n);
    dsc_comm_options options;
    dsc_comm_options_init(&options);
    options.kind = "self";
    dsc_comm *alone = NULL;
    EXPECT_OK(dsc_comm_create(&options, &alone));
    EXPECT_OK(dsc_comm_use_queue(alone, queue));
    size_t bytes = dsc_device_bytes(device);
    dsc_status status = DSC_E_MEMORY;
    int nth = 0;
    while (status != DSC_OK && ++nth < 1000) {
        dsc_consensus *consensus = NULL;
        dsc_memory_fail_at(nth);
        status = dsc_consensus_create(alone, queue, n.params, PARAMS, NULL, &consensus);
        dsc_memory_fail_at(0);
        EXPECT(status == DSC_OK ? consensus != NULL : status == DSC_E_MEMORY && consensus == NULL);
        dsc_consensus_destroy(&consensus);
        EXPECT(dsc_device_bytes(device) == bytes);
    }
    EXPECT(status == DSC_OK && nth > 4);
    dsc_comm_destroy(&alone);
    free_net(&n);
    all_fine(comm);
}

static void open_all(void) {
    assert_ok(dsc_comm_create(NULL, &comm));
    rank = dsc_comm_rank(comm);
    ranks = dsc_comm_size(comm);
    device = chosen_open(chosen_or("ref"), 0);
    assert_ok(dsc_queue_create(device, &queue));
    assert_ok(dsc_comm_use_queue(comm, queue));
}

static int open_group(void **state) {
    (void)state;
    start_watchdog(WATCHDOG_S);
    open_all();
    silence_other_ranks(comm);
    return 0;
}

static int close_group(void **state) {
    (void)state;
    int leaked = dsc_device_bytes(device) != 0;
    dsc_comm_destroy(&comm);
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
    return leaked;
}

int main(void) {
    chosen_or_skip();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mean),           cmocka_unit_test(test_wire),
        cmocka_unit_test(test_order),          cmocka_unit_test(test_start),
        cmocka_unit_test(test_drift),          cmocka_unit_test(test_hash),
        cmocka_unit_test(test_update),         cmocka_unit_test(test_step_allocates_nothing),
        cmocka_unit_test(test_layout_differs), cmocka_unit_test(test_create_survives_failures),
        cmocka_unit_test(test_bad_input),      cmocka_unit_test(test_gossip_options),
    };
    return cmocka_run_group_tests_name("consensus", tests, open_group, close_group);
}
