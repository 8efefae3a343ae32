/* Layers that read the same input have one A: every strategy gives the gradients of layers with an A each, and A is
 * computed, kept, sent and decomposed once. (Blocks of one layer share theirs in the same way: those of crew.h are
 * part of all tests of several ranks.) */
#include "kfac/states.h"

/* The readers of one input are not next to each other. */
static const net_shape readers[LAYERS] = {
    {"query", DSC_KFAC_LINEAR, .in_c = 4, .out_c = 3, .bias = 1, .sequence = 2},
    {"key", DSC_KFAC_LINEAR, .in_c = 4, .out_c = 2, .bias = 1, .sequence = 2, .reads = 1},
    {"conv", DSC_KFAC_CONV2D, .in_c = 2, .out_c = 3, .bias = 1, .in_h = 4, .in_w = 4, .kernel_h = 3,
     .kernel_w = 3, .pad_h = 1, .pad_w = 1},
    {"value", DSC_KFAC_LINEAR, .in_c = 4, .out_c = 4, .bias = 1, .sequence = 2, .reads = 1},
    {"last", DSC_KFAC_LINEAR, .in_c = 5, .out_c = 4, .bias = 1},
};
enum { A_ROWS = 5, STEPS = 5, MOST = 128 };

/* The crew with other layers. */
static int open_readers(void **state) {
    (void)state;
    crew_open();
    for (int p = 0; p < PLACES; p++) {
        net_close(&nets[p]);
        net_open_share(&nets[p], places[p].queue, places[p].dtype, readers, LAYERS, SAMPLES, comm);
    }
    return 0;
}

static void test_strategies(void **state) {
    (void)state;
    const net_step steps[] = {step_of(0), step_of(1), step_of(2), step_of(3), step_of(4)};
    static const dsc_kfac_placement placements[] = {DSC_KFAC_ROUND_ROBIN, DSC_KFAC_COMPUTE, DSC_KFAC_MEMORY};
    int count;
    const config *configs = some_configs(&count);
    for (int i = 0; i < count; i++)
        for (int p = 0; p < 3; p++) {
            config c = configs[i];
            c.placement = placements[p];
            dsc_kfac_options options = options_of(&c);
            options.damping_split = c.method == 2 && p > 0 ? DSC_KFAC_SPLIT_PI : DSC_KFAC_SPLIT_NONE;
            run_beside(&c, &options, steps, STEPS, 1);
        }
    all_fine(comm);
}

/* Inverses of factors on different ranks, which have to exchange the traces. */
static void test_split_apart(void **state) {
    (void)state;
    const net_step steps[] = {step_of(0), step_of(1), step_of(2), step_of(3)};
    config c = {.strategy = DSC_KFAC_HYBRID_OPT, .rows = ranks % 2 == 0 ? 2 : 1, .method = 2, .symmetric = 1};
    c.colocate = c.rows == 1;
    c.bucket_bytes = 700;
    dsc_kfac_options options = options_of(&c);
    options.damping_split = DSC_KFAC_SPLIT_PI;
    run_beside(&c, &options, steps, 4, 1);
    all_fine(comm);
}

/* ---- the same layers with an A each ---- */

static dsc_kfac *create_with(const config *c, const dsc_kfac_options *options, int shares) {
    dsc_kfac_layer layers[NET_LAYERS];
    dsc_kfac *kfac = NULL;
    net_describe(&nets[c->place], layers);
    for (int l = 0; l < LAYERS && !shares; l++)
        layers[l].same_input = 0;
    EXPECT_OK(dsc_kfac_create(comm, places[c->place].queue, layers, LAYERS, options, &kfac));
    return kfac;
}

/* One rank's plan without the exchange of factors, so that there is nothing to round differently: same bits. */
static void test_same_bits(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++)
        for (int method = 0; method < METHODS; method++) {
            config c = {.strategy = DSC_KFAC_COMM_OPT, .rows = ranks, .colocate = 1, .symmetric = 1};
            c.place = p;
            c.method = method;
            c.bucket_bytes = 700;
            c.inverse_dtype = p == CPU && method == 0 ? DSC_BF16 : DSC_F32;
            dsc_kfac_options options = options_of(&c);
            dsc_kfac *one = create_with(&c, &options, 1), *each = create_with(&c, &options, 0);
            net *n = &nets[p];
            for (int64_t k = 0; one && each && k < STEPS; k++) {
                double want[LAYERS][MOST];
                net_step step = step_of(k);
                EXPECT_OK(net_run(n, each, &step));
                for (int l = 0; l < LAYERS; l++)
                    net_read(n, l, want[l]);
                EXPECT_OK(net_run(n, one, &step));
                for (int l = 0; l < LAYERS; l++)
                    expect(net_gradient_is(n, l, want[l]), &c, k, readers[l].name);
            }
            dsc_kfac_destroy(&one);
            dsc_kfac_destroy(&each);
        }
    all_fine(comm);
}

/* Two readers fewer keep, send and decompose an A. */
static void test_counted_once(void **state) {
    (void)state;
    config c = {.strategy = DSC_KFAC_COMM_OPT, .rows = ranks, .colocate = 1, .symmetric = 1};
    c.bucket_bytes = 1 << 20;
    dsc_kfac_options options = options_of(&c);
    const size_t triangle = A_ROWS * (A_ROWS + 1) / 2 * sizeof(double);
    const size_t basis = (A_ROWS * A_ROWS + A_ROWS) * sizeof(double);
    dsc_kfac_memory memory[2] = {{.size = sizeof memory[0]}, {.size = sizeof memory[1]}};
    uint64_t sent[2][2] = {{0}};
    net_step step = step_of(0);
    for (int shares = 0; shares < 2; shares++) {
        uint64_t before[2] = {dsc_comm_bytes(comm, DSC_TRAFFIC_FACTORS),
                              dsc_comm_bytes(comm, DSC_TRAFFIC_DECOMPOSITIONS)};
        dsc_kfac *kfac = create_with(&c, &options, shares);
        EXPECT_OK(net_run(&nets[REF], kfac, &step));
        EXPECT_OK(dsc_kfac_get_memory(kfac, &memory[shares]));
        sent[shares][0] = dsc_comm_bytes(comm, DSC_TRAFFIC_FACTORS) - before[0];
        sent[shares][1] = dsc_comm_bytes(comm, DSC_TRAFFIC_DECOMPOSITIONS) - before[1];
        dsc_kfac_destroy(&kfac);
    }
    EXPECT(memory[0].factors[0] - memory[1].factors[0] == 2 * triangle);
    EXPECT(memory[0].batches[0] - memory[1].batches[0] ==
           (ranks > 1 || !dsc_device_is_host(places[REF].device) ? 2 * triangle : 0));
    EXPECT(memory[0].decompositions[0] - memory[1].decompositions[0] == 2 * basis);
    EXPECT(memory[0].factors[1] == memory[1].factors[1]);
    double less = 2.0 * (ranks - 1) / ranks * (double)(2 * triangle);
    EXPECT(fabs((double)sent[0][0] - (double)sent[1][0] - less) <= 2);
    /* Decompositions are sent by their owners, which differ: all ranks together. */
    double sums[2] = {(double)sent[0][1], (double)sent[1][1]};
    int64_t two = 2;
    dsc_tensor t = dsc_tensor_view(host_device, sums, DSC_F64, 1, &two);
    EXPECT_OK(dsc_comm_allreduce(comm, DSC_TRAFFIC_OTHER, DSC_SUM, &t));
    EXPECT(sums[0] - sums[1] == (double)(2 * basis) * (ranks - 1));
    all_fine(comm);
}

/* A state with an A of every reader, as older versions have written it: the A of the others is not needed. */
static void test_older_state(void **state) {
    (void)state;
    for (int warm = 0; warm < 2; warm++) {
        config c = {.strategy = DSC_KFAC_MEM_OPT, .rows = 1, .colocate = 1, .symmetric = 1};
        c.bucket_bytes = 700;
        dsc_kfac_options options = options_of(&c);
        options.refresh = warm ? DSC_KFAC_WARM : DSC_KFAC_EXACT;
        dsc_kfac *one = create_with(&c, &options, 1), *each = create_with(&c, &options, 0);
        net *n = &nets[REF];
        for (int64_t k = 0; one && each && k < STEPS + 3; k++) {
            double want[LAYERS][MOST];
            net_step step = step_of(k);
            EXPECT_OK(net_run(n, each, &step));
            for (int l = 0; l < LAYERS; l++)
                net_read(n, l, want[l]);
            if (k == STEPS - 1) /* the next step uses its decompositions, the one after it makes new ones */
                copy_state(each, one, n->queue);
            if (k < STEPS)
                continue;
            EXPECT_OK(net_run(n, one, &step));
            for (int l = 0; l < LAYERS; l++)
                expect(net_gradient_is(n, l, want[l]), &c, k, readers[l].name);
        }
        dsc_kfac_destroy(&one);
        dsc_kfac_destroy(&each);
    }
    all_fine(comm);
}

static int has_entry(const dsc_kfac *kfac, const char *name) {
    for (int64_t i = 0; i < dsc_kfac_state_count(kfac); i++)
        if (strcmp(dsc_kfac_state_entries(kfac)[i].name, name) == 0)
            return 1;
    return 0;
}

/* When the first reader is skipped, the next one owns the A. */
static void test_skipped(void **state) {
    (void)state;
    config c = {.strategy = DSC_KFAC_MEM_OPT, .rows = 1, .colocate = 1, .symmetric = 1, .bucket_bytes = 700};
    dsc_kfac_options options = options_of(&c);
    net *n = &nets[REF];
    double want[LAYERS][MOST];
    net_step step = step_of(0);
    for (int shares = 0; shares < 2; shares++) {
        options.skip_layers = "^query$";
        options.kl_clip = 0;
        dsc_kfac *kfac = create_with(&c, &options, shares);
        EXPECT_OK(net_run(n, kfac, &step));
        EXPECT(!has_entry(kfac, "query.A") && !has_entry(kfac, "query.G"));
        EXPECT(has_entry(kfac, "key.A") && has_entry(kfac, "value.A") == !shares);
        EXPECT(has_entry(kfac, "key.G") && has_entry(kfac, "value.G"));
        for (int l = 0; l < LAYERS; l++) {
            if (shares)
                expect(net_gradient_is(n, l, want[l]), &c, 0, readers[l].name);
            net_read(n, l, want[l]);
        }
        EXPECT(net_gradient_is(n, 0, n->layers[0].d)); /* the plain gradient */
        dsc_kfac_destroy(&kfac);
    }
    all_fine(comm);
}

static void test_refusals(void **state) {
    (void)state;
    dsc_kfac_layer layers[NET_LAYERS];
    dsc_kfac_plan *plan = NULL;
    net_describe(&nets[REF], layers);
    const struct {
        int64_t value;
        int layer;
        const char *message;
    } wrong[] = {
        {-1, 1, "layer 'key': same_input -1: must be 0"},
        {2, 1, "layer 'key': same_input 2: must be 0"},      /* itself */
        {5, 1, "layer 'key': same_input 5: must be 0"},      /* a later one */
        {2, 3, "layer 'value': same_input 2: must be 0"},    /* one that names another */
        {3, 3, "layers 'conv' and 'value' cannot have one"}, /* a convolution */
        {1, 4, "layers 'query' and 'last' cannot have one"}, /* more inputs */
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        int64_t right = layers[wrong[i].layer].same_input;
        layers[wrong[i].layer].same_input = wrong[i].value;
        assert_fails(DSC_E_INVALID, wrong[i].message,
                     dsc_kfac_plan_create(layers, LAYERS, ranks, NULL, 1, &plan));
        layers[wrong[i].layer].same_input = right;
    }
    layers[1].bias_grad = (dsc_tensor){0};
    layers[1].weight_grad.data = NULL;
    assert_fails(DSC_E_INVALID, "both with a bias or both without",
                 dsc_kfac_plan_create(layers, LAYERS, ranks, NULL, 1, &plan));
    all_fine(comm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strategies),  cmocka_unit_test(test_split_apart),
        cmocka_unit_test(test_same_bits),   cmocka_unit_test(test_counted_once),
        cmocka_unit_test(test_older_state), cmocka_unit_test(test_skipped),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("kfac-one-a", tests, open_readers, close_crew);
}
