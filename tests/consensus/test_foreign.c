/* What programs with an optimiser and gradients of their own need: comparison of the ranks' parameters,
 * gradients that move, steps of several passes and without an update, optimisers that run on z, and freeing
 * without the other ranks. */
#include "consensus/net.h"

#include "base/clock.h"

static const dsc_consensus_kind kinds[] = {DSC_CONSENSUS_ALLREDUCE, DSC_CONSENSUS_SGP, DSC_CONSENSUS_OSGP,
                                           DSC_CONSENSUS_DPSGD, DSC_CONSENSUS_ADPSGD};
enum { KINDS = 5 };

/* ---- comparison ---- */

static void expect_refused(const net *n, const dsc_consensus_options *options, const char *text) {
    dsc_consensus *c = NULL;
    if (ranks == 1)
        return;
    EXPECT_FAILS(DSC_E_INVALID, text, dsc_consensus_create(comm, queue, n->params, PARAMS, options, &c));
    EXPECT(c == NULL);
}

static void test_names_differ(void **state) {
    (void)state;
    net n;
    char text[128];
    make_net(&n);
    if (rank == ranks - 1)
        n.params[1].name = "a.offset";
    snprintf(
        text, sizeof text,
        "parameter 1 differs between ranks: rank 0 has 'a.bias' fp32 [5], rank %d has 'a.offset' fp32 [5]",
        ranks - 1);
    expect_refused(&n, NULL, text);
    free_net(&n);
    all_fine(comm);
}

/* The same number of elements in another shape, and in another order. */
static void test_shapes_and_layouts_differ(void **state) {
    (void)state;
    net n;
    const char *layouts[PARAMS] = {"[10]", "[5]", "[9] strides [1]"};
    make_net(&n);
    dsc_consensus_options options = usual_options(DSC_CONSENSUS_SGP, NULL);
    options.layouts = layouts;
    dsc_consensus *c = make_consensus(&n, &options);
    dsc_consensus_destroy(&c);
    if (rank > 0)
        layouts[2] = "[9] strides [3]";
    expect_refused(
        &n, &options,
        "parameter 2 differs between ranks: rank 0 has 'b.weight' fp32 [9], layout [9] strides [1], "
        "rank 1 has 'b.weight' fp32 [9], layout [9] strides [3]");
    options.layouts = NULL;
    if (rank > 0) {
        n.params[2].value.ndim = n.params[2].grad.ndim = 2;
        n.params[2].value.dim[0] = n.params[2].value.dim[1] = 3;
        n.params[2].grad.dim[0] = n.params[2].grad.dim[1] = 3;
    }
    expect_refused(&n, &options, "rank 0 has 'b.weight' fp32 [9], rank 1 has 'b.weight' fp32 [3,3]");
    free_net(&n);
    all_fine(comm);
}

/* A layout that is longer than the message has room for counts to its end. */
static void test_long_layouts(void **state) {
    (void)state;
    enum { LONG = 2000 };
    net n;
    char text[LONG];
    const char *layouts[PARAMS] = {"", "", text};
    make_net(&n);
    memset(text, 'x', sizeof text);
    text[LONG - 2] = rank == 0 ? 'a' : 'b';
    text[LONG - 1] = '\0';
    dsc_consensus_options options = usual_options(DSC_CONSENSUS_ALLREDUCE, NULL);
    options.layouts = layouts;
    expect_refused(&n, &options, "parameter 2 differs between ranks");
    free_net(&n);
    all_fine(comm);
}

static void test_averages_differ(void **state) {
    (void)state;
    net n;
    dsc_tensor values[PARAMS];
    const char *layouts[PARAMS] = {"[10]", "[5]", rank == 0 ? "rows" : "columns"};
    make_net(&n);
    for (int p = 0; p < PARAMS; p++)
        values[p] = n.params[p].value;
    dsc_average_options options;
    dsc_average_options_init(&options);
    options.layouts = layouts;
    dsc_average *a = NULL;
    if (ranks > 1)
        EXPECT_FAILS(DSC_E_INVALID,
                     "tensor 2 differs between ranks: rank 0 has fp32 [9], layout rows, rank 1 has",
                     dsc_average_create(comm, queue, values, PARAMS, &options, &a));
    options.layouts = NULL;
    if (ranks > 1)
        EXPECT_FAILS(DSC_E_INVALID, "of which the first 2 are the same",
                     dsc_average_create(comm, queue, values, rank == 0 ? 3 : 2, &options, &a));
    EXPECT(a == NULL);
    free_net(&n);
    all_fine(comm);
}

/* ---- gradients that move ---- */

/* A step whose gradients are at another place each time; parameter 1 has none on rank 0 in step 1. */
static void step_with_moving_gradients(dsc_consensus *c, net *n, dsc_tensor *places, int t) {
    float z[LENGTH], zeros[LENGTH] = {0};
    void *grads[PARAMS];
    net moved = *n;
    EXPECT_OK(dsc_consensus_before_forward(c, queue));
    for (int p = 0, at = 0; p < PARAMS; at += (int)counts[p++]) {
        moved.params[p].grad = dsc_tensor_slice(&places[t % 2], at, counts[p]);
        grads[p] = moved.params[p].grad.data;
    }
    compute(&moved, z);
    if (t == 1 && rank == 0) {
        grads[1] = NULL;
        push(&moved.params[1].grad, zeros);
    }
    EXPECT_OK(dsc_consensus_set_gradients(c, 0, PARAMS, grads));
    EXPECT_OK(dsc_consensus_after_backward(c, queue));
    EXPECT_OK(update(c, queue, &moved));
}

/* The same steps with gradients at one place, where no gradient is zeros. */
static void step_at_one_place(dsc_consensus *c, net *n, int t) {
    float z[LENGTH], zeros[LENGTH] = {0};
    EXPECT_OK(dsc_consensus_before_forward(c, queue));
    compute(n, z);
    if (t == 1 && rank == 0)
        push(&n->params[1].grad, zeros);
    for (int p = PARAMS - 1; p >= 0; p--)
        EXPECT_OK(dsc_consensus_grad_ready(c, queue, p));
    EXPECT_OK(dsc_consensus_after_backward(c, queue));
    if (t == 1 && rank == 0) /* the mean is not written where there is no gradient */
        push(&n->params[1].grad, zeros);
    EXPECT_OK(update(c, queue, n));
}

static void compare_moving(const dsc_consensus_options *options, int without_memory) {
    const int64_t length = LENGTH;
    net n, fixed;
    dsc_tensor places[2];
    float z[LENGTH], expected[LENGTH];
    make_net(&n);
    make_net(&fixed);
    for (int i = 0; i < 2; i++)
        assert_ok(dsc_tensor_alloc(device, DSC_F32, 1, &length, &places[i]));
    write_first_values(&n, 0);
    write_first_values(&fixed, 0);
    n.lr = fixed.lr = 0.25;
    for (int p = 0; p < PARAMS && without_memory; p++)
        n.params[p].grad.data = NULL;
    dsc_consensus *c = make_consensus(&n, options), *plain = make_consensus(&fixed, options);
    for (int t = 0; t < 4; t++) {
        step_with_moving_gradients(c, &n, places, t);
        step_at_one_place(plain, &fixed, t);
    }
    EXPECT_OK(dsc_consensus_settle(c, queue));
    EXPECT_OK(dsc_consensus_settle(plain, queue));
    read_values(&n, z);
    read_values(&fixed, expected);
    EXPECT(memcmp(z, expected, sizeof z) == 0);
    dsc_consensus_destroy(&c);
    dsc_consensus_destroy(&plain);
    for (int i = 0; i < 2; i++)
        dsc_tensor_free(&places[i]);
    free_net(&n);
    free_net(&fixed);
}

static void test_moving_gradients(void **state) {
    (void)state;
    for (int without_memory = 0; without_memory < 2; without_memory++) {
        dsc_consensus_options options = usual_options(DSC_CONSENSUS_ALLREDUCE, NULL);
        compare_moving(&options, without_memory);
        options.wire = DSC_BF16;
        compare_moving(&options, without_memory);
        options = usual_options(DSC_CONSENSUS_SGP, NULL);
        compare_moving(&options, without_memory);
        options.group = ranks;
        compare_moving(&options, without_memory);
        options.kind = DSC_CONSENSUS_OSGP;
        options.group = ranks % 2 ? 1 : 2;
        compare_moving(&options, without_memory);
    }
    all_fine(comm);
}

/* In the order of a backward pass, each announced as soon as its place is known. */
static void test_gradients_one_by_one(void **state) {
    (void)state;
    net n;
    float z[LENGTH];
    make_net(&n);
    write_first_values(&n, 0);
    dsc_tensor memory = n.grads;
    dsc_consensus_options options = usual_options(DSC_CONSENSUS_ALLREDUCE, NULL);
    for (int p = 0; p < PARAMS; p++)
        n.params[p].grad.data = NULL;
    dsc_consensus *c = make_consensus(&n, &options);
    EXPECT_OK(dsc_consensus_before_forward(c, queue));
    for (int p = 0, at = 0; p < PARAMS; at += (int)counts[p++])
        n.params[p].grad = dsc_tensor_slice(&memory, at, counts[p]);
    compute(&n, z);
    for (int p = PARAMS - 1; p >= 1; p--) {
        void *grad = n.params[p].grad.data;
        EXPECT_OK(dsc_consensus_set_gradients(c, p, 1, &grad));
        EXPECT_OK(dsc_consensus_grad_ready(c, queue, p));
    }
    if (ranks > 1) {
        void *grad = z;
        EXPECT_FAILS(DSC_E_INVALID, "after it was announced", dsc_consensus_set_gradients(c, 1, 1, &grad));
        EXPECT_FAILS(DSC_E_INVALID, "for the second time", dsc_consensus_grad_ready(c, queue, 1));
    }
    void *first = n.params[0].grad.data;
    EXPECT_OK(dsc_consensus_set_gradients(c, 0, 1, &first));
    EXPECT_OK(dsc_consensus_after_backward(c, queue)); /* announces the first */
    float g[LENGTH];
    for (int p = 0, at = 0; p < PARAMS; at += (int)counts[p++])
        pull(&n.params[p].grad, g + at);
    for (int i = 0; i < LENGTH; i++) {
        double mean = 0;
        for (int r = 0; r < ranks; r++)
            mean += gradient(z[i], r, i) / ranks;
        EXPECT(fabs(g[i] - mean) < 1e-5);
    }
    EXPECT_FAILS(DSC_E_INVALID, "there are 3 parameters", dsc_consensus_set_gradients(c, 1, 3, NULL));
    EXPECT_FAILS(DSC_E_INVALID, "there are 3 parameters", dsc_consensus_set_gradients(c, -1, 1, &first));
    EXPECT_OK(dsc_consensus_set_gradients(c, 3, 0, NULL));
    dsc_consensus_destroy(&c);
    free_net(&n);
    all_fine(comm);
}

/* ---- steps ---- */

/* `passes` forward passes, of which the last one counts, then an update; twice cancelled on the way. */
static void run_passes(const dsc_consensus_options *options, int passes, float *out) {
    net n;
    float z[LENGTH], again[LENGTH];
    const dsc_tensor *read;
    make_net(&n);
    n.lr = 0.25;
    n.decay = 0.5;
    write_first_values(&n, rank);
    dsc_consensus *c = make_consensus(&n, options);
    for (int t = 0; t < 5; t++) {
        for (int pass = 1; pass < passes; pass++) {
            EXPECT_OK(dsc_consensus_before_forward(c, queue));
            read_values(&n, again);
            if (pass == 2) { /* no update after all, and everything settles */
                EXPECT_OK(dsc_consensus_update_begin(c, queue, &read));
                dsc_consensus_update_cancel(c);
                EXPECT_OK(dsc_consensus_settle(c, queue));
            }
        }
        step(c, &n, z);
        if (passes == 2)
            EXPECT(memcmp(z, again, sizeof z) == 0);
    }
    EXPECT_OK(dsc_consensus_settle(c, queue));
    EXPECT(dsc_consensus_steps(c) == 5);
    read_values(&n, out);
    dsc_consensus_destroy(&c);
    free_net(&n);
}

static void test_several_passes(void **state) {
    (void)state;
    for (int k = 0; k < KINDS - 1; k++) { /* adpsgd averages at any time */
        float once[LENGTH], twice[LENGTH], settled[LENGTH];
        dsc_consensus_options options = usual_options(kinds[k], NULL);
        run_passes(&options, 1, once);
        run_passes(&options, 2, twice);
        EXPECT(memcmp(once, twice, sizeof once) == 0);
        run_passes(&options, 4, settled);
        if (kinds[k] != DSC_CONSENSUS_OSGP) /* there a message arrives a step earlier */
            EXPECT(memcmp(once, settled, sizeof once) == 0);
    }
    all_fine(comm);
}

static void test_update_without_a_step(void **state) {
    (void)state;
    for (int k = 1; k < KINDS; k++) {
        net n;
        float z[LENGTH];
        const dsc_tensor *read;
        if (kinds[k] == DSC_CONSENSUS_ADPSGD && (ranks == 1 || ranks % 2))
            continue;
        make_net(&n);
        write_first_values(&n, rank);
        dsc_consensus_options options = usual_options(kinds[k], NULL);
        dsc_consensus *c = make_consensus(&n, &options);
        EXPECT_FAILS(DSC_E_INVALID, "call dsc_consensus_before_forward",
                     dsc_consensus_update_begin(c, queue, &read));
        step(c, &n, z);
        if (kinds[k] != DSC_CONSENSUS_ADPSGD) /* there the values are the newest at any time */
            EXPECT_FAILS(DSC_E_INVALID, "call dsc_consensus_before_forward",
                         dsc_consensus_update_begin(c, queue, &read));
        EXPECT_OK(dsc_consensus_settle(c, queue));
        dsc_consensus_destroy(&c);
        free_net(&n);
    }
    all_fine(comm);
}

/* ---- an optimiser that runs on z ---- */

/* x + (new z - z), with an optimiser that sees and changes z only. */
static dsc_status update_on_z(dsc_consensus *c, net *n) {
    const dsc_tensor *read;
    DSC_TRY(dsc_consensus_update_begin(c, queue, &read));
    if (!read) {
        DSC_TRY(descend(n, queue, NULL));
        return dsc_consensus_update_end(c, queue);
    }
    net on_z;
    make_net(&on_z);
    on_z.lr = n->lr;
    on_z.decay = n->decay;
    for (int p = 0; p < PARAMS; p++) {
        DSC_TRY(dsc_op_convert(queue, &read[p], &on_z.params[p].value));
        DSC_TRY(dsc_op_convert(queue, &n->params[p].grad, &on_z.params[p].grad));
    }
    DSC_TRY(descend(&on_z, queue, NULL));
    for (int p = 0; p < PARAMS; p++) {
        DSC_TRY(dsc_op_axpby(queue, -1, &read[p], 1, &on_z.params[p].value));
        DSC_TRY(dsc_op_axpby(queue, 1, &on_z.params[p].value, 1, &n->params[p].value));
    }
    DSC_TRY(dsc_queue_sync(queue));
    free_net(&on_z);
    return dsc_consensus_update_end(c, queue);
}

static void test_optimiser_on_z(void **state) {
    (void)state;
    char path[128];
    write_graph_file(path, sizeof path);
    const dsc_consensus_options cases[] = {
        usual_options(DSC_CONSENSUS_ALLREDUCE, NULL), usual_options(DSC_CONSENSUS_SGP, NULL),
        usual_options(DSC_CONSENSUS_OSGP, NULL), usual_options(DSC_CONSENSUS_DPSGD, NULL),
        usual_options(DSC_CONSENSUS_SGP, ranks < 3 ? NULL : path)};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        net direct, on_z;
        float z[LENGTH], expected[LENGTH];
        make_net(&direct);
        make_net(&on_z);
        direct.lr = on_z.lr = 0.25;
        direct.decay = on_z.decay = 0.5;
        write_first_values(&direct, rank);
        write_first_values(&on_z, rank);
        dsc_consensus *c = make_consensus(&direct, &cases[k]), *other = make_consensus(&on_z, &cases[k]);
        for (int t = 0; t < 8; t++) {
            step(c, &direct, expected);
            EXPECT_OK(dsc_consensus_before_forward(other, queue));
            compute(&on_z, z);
            for (int p = PARAMS - 1; p >= 0; p--)
                EXPECT_OK(dsc_consensus_grad_ready(other, queue, p));
            EXPECT_OK(dsc_consensus_after_backward(other, queue));
            EXPECT_OK(update_on_z(other, &on_z));
            for (int i = 0; i < LENGTH; i++)
                EXPECT(fabs(z[i] - expected[i]) <= 8 * (t + 1) * 0x1p-24 * 16);
        }
        EXPECT_OK(dsc_consensus_settle(c, queue));
        EXPECT_OK(dsc_consensus_settle(other, queue));
        dsc_consensus_destroy(&c);
        dsc_consensus_destroy(&other);
        free_net(&direct);
        free_net(&on_z);
    }
    all_fine(comm);
    remove_graph_file(path);
}

/* ---- abandoning ---- */

/* Between steps, or in the middle of one (`busy`). The other ranks are not needed: rank 0 does it first, and the
 * others only after it has said so. */
static void abandon(dsc_consensus_kind kind, int busy) {
    net n;
    float z[LENGTH];
    make_net(&n);
    write_first_values(&n, rank);
    dsc_consensus_options options = usual_options(kind, NULL);
    dsc_consensus *c = make_consensus(&n, &options);
    step(c, &n, z);
    if (!busy)
        EXPECT_OK(dsc_consensus_settle(c, queue));
    for (int p = PARAMS - 1; busy && kind == DSC_CONSENSUS_ALLREDUCE && p >= 0; p--)
        EXPECT_OK(dsc_consensus_grad_ready(c, queue, p));
    if (rank > 0)
        EXPECT_OK(dsc_comm_barrier(comm));
    double begun = dsc_clock_now();
    dsc_consensus_abandon(&c);
    EXPECT(c == NULL);
    /* It waits for nobody: not for the 5 s in which an average ends, nor for the 60 s of AD-PSGD's thread. */
    EXPECT(dsc_clock_now() - begun < (kind == DSC_CONSENSUS_ADPSGD ? 30 : 4));
    if (rank == 0)
        EXPECT_OK(dsc_comm_barrier(comm));
    if (busy) { /* a message may still use it */
        dsc_memory_keep(n.values.data);
        dsc_memory_keep(n.grads.data);
    } else {
        free_net(&n);
    }
}

static int has_kind(dsc_consensus_kind kind) {
    return kind != DSC_CONSENSUS_ADPSGD || ranks % 2 == 0 || ranks == 1;
}

static void test_abandon(void **state) {
    (void)state;
    size_t before = dsc_device_bytes(device);
    for (int k = 0; k < KINDS; k++)
        if (has_kind(kinds[k]))
            abandon(kinds[k], 0);
    EXPECT(dsc_device_bytes(device) == before); /* nothing was in flight: all of it is freed */
    dsc_consensus *none = NULL;
    dsc_average *no_average = NULL;
    dsc_consensus_abandon(NULL);
    dsc_consensus_abandon(&none);
    dsc_average_abandon(NULL);
    dsc_average_abandon(&no_average);
    all_fine(comm); /* the communicator is as good as before */
}

/* On a device of its own, whose memory stays where messages may use it. */
static void test_abandon_in_a_step(void **state) {
    (void)state;
    skip_on_chosen("messages of GPU memory keep the order of one queue");
    dsc_device *usual = device;
    dsc_queue *usual_queue = queue;
    device = chosen_open("ref", 0);
    assert_ok(dsc_queue_create(device, &queue));
    for (int k = 0; k < KINDS - 1; k++)
        abandon(kinds[k], 1);
    dsc_memory_keep(device);
    dsc_memory_keep(queue);
    device = usual;
    queue = usual_queue;
    all_fine(comm);
}

/* As open_ranks, for adpsgd's thread. */
static int open_threaded(void **state) {
    (void)state;
    dsc_comm_options options;
    dsc_comm_options_init(&options);
    options.thread_multiple = 1;
    start_watchdog(WATCHDOG_S);
    assert_ok(dsc_comm_create(&options, &comm));
    rank = dsc_comm_rank(comm);
    ranks = dsc_comm_size(comm);
    device = chosen_open(chosen_or("ref"), 0);
    assert_ok(dsc_queue_create(device, &queue));
    assert_ok(dsc_comm_use_queue(comm, queue));
    silence_other_ranks(comm);
    return 0;
}

int main(void) {
    chosen_or_skip();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_differ),      cmocka_unit_test(test_shapes_and_layouts_differ),
        cmocka_unit_test(test_long_layouts),      cmocka_unit_test(test_averages_differ),
        cmocka_unit_test(test_moving_gradients),  cmocka_unit_test(test_gradients_one_by_one),
        cmocka_unit_test(test_several_passes),    cmocka_unit_test(test_update_without_a_step),
        cmocka_unit_test(test_optimiser_on_z),    cmocka_unit_test(test_abandon),
        cmocka_unit_test(test_abandon_in_a_step),
    };
    return cmocka_run_group_tests_name("foreign", tests, open_threaded, close_ranks);
}
