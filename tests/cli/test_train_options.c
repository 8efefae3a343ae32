/* How descent train reads the options of gossip: the schedule of peers, combinations that are refused, and damaged
 * configurations. */
#include "test.h"

#include "base/rng.h"
#include "cli/train_options.h"

#include <math.h>
#include <stdlib.h>

/* Parses and completes the text of a configuration file. */
static dsc_status configure(const char *text, size_t length, dsc_cli_train_values *v) {
    dsc_option_set *set = NULL;
    dsc_cli_train_init(v);
    dsc_status status = dsc_option_parse_text(dsc_cli_train_options, "x.conf", text, length, v, &set);
    if (status == DSC_OK)
        status = dsc_cli_train_finish(v, set);
    dsc_option_set_destroy(&set);
    return status;
}

static dsc_status configure_text(const char *text, dsc_cli_train_values *v) {
    return configure(text, strlen(text), v);
}

/* Without any options: the library's defaults, and all-reduce. */
static void test_defaults(void **state) {
    (void)state;
    dsc_cli_train_values v;
    dsc_train_options o;
    dsc_consensus_options c;
    dsc_train_options_init(&o);
    dsc_consensus_options_init(&c);
    assert_ok(configure_text("", &v));
    assert_int_equal(v.o.consensus->kind, DSC_CONSENSUS_ALLREDUCE);
    assert_int_equal(v.o.consensus->peers, c.peers);
    assert_int_equal(v.o.consensus->group, c.group);
    assert_int_equal(v.o.consensus->synch_freq, 0);
    assert_int_equal(v.o.kfac_scope, DSC_SCOPE_GLOBAL);
    assert_int_equal(v.o.peers_count, 0);
    assert_int_equal(v.o.bn_average, o.bn_average);
    assert_int_equal(v.o.eval_ranks, o.eval_ranks);
    assert_ok(configure_text("model = lenet\ndata = mnist:/a/b\nseed = 7\n", &v));
    assert_string_equal(v.o.out, "runs/lenet-mnist-seed7"); /* a number follows */
    assert_ok(configure_text(
        "nesterov\noptimizer = sgd\nlr-schedule = cosine\nepochs = 3\nlr = 0.1\nbatch-size = 128\n"
        "kfac-update-freq = 10\nconsensus = sgp\ngraph = ring\nkeep = 5\n",
        &v));
    assert_string_equal(
        v.o.out,
        "runs/resnet20-synthetic-nesterov-lr0.1-lr-schedule-cosine-kfac-update-freq10-sgp-and-1-more");
    assert_ok(configure_text("out = none\n", &v));
    assert_null(v.o.out);
}

static void test_every_option(void **state) {
    (void)state;
    dsc_cli_train_values v;
    assert_ok(configure_text(
        "consensus = osgp\ngraph = ring\npeers-per-step = 2\npeers-schedule = 0:1, 30:2\n"
        "synch-freq = 3\ngossip-group = 4\naverage-every = 48\nslow-momentum = 0.7\n"
        "slow-rate = 0.9\npeer-timeout = 2.5\non-peer-loss = stop\nbn-average\neval-ranks\n"
        "distance-every = 10\nkfac-update-freq = 5\nkfac-scope = gossip\nallreduce-dtype = bf16\n",
        &v));
    const dsc_consensus_options *c = v.o.consensus;
    assert_int_equal(c->kind, DSC_CONSENSUS_OSGP);
    assert_int_equal(c->peers, 2);
    assert_int_equal(c->synch_freq, 3);
    assert_int_equal(c->group, 4);
    assert_int_equal(c->average_every, 48);
    assert_true(c->slow_momentum == 0.7 && c->slow_rate == 0.9 && c->peer_timeout == 2.5);
    assert_int_equal(c->wire, DSC_BF16);
    assert_int_equal(v.o.peers_count, 2);
    assert_true(v.o.bn_average == 1 && v.o.eval_ranks == 1);
    assert_int_equal(v.o.distance_every, 10);
    assert_int_equal(v.o.kfac_scope, DSC_SCOPE_GOSSIP);
}

static void test_schedules(void **state) {
    (void)state;
    static const char *const forms[] = {"0:1 30:2 60:4", "0:1,30:2,60:4", " 0:1, 30:2 ,60:4,",
                                        "00:01\t30:2 60:4"};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        dsc_train_options o;
        dsc_train_options_init(&o);
        assert_ok(dsc_option_set_value(dsc_train_option_table(), &o, "peers-schedule", forms[i]));
        assert_int_equal(o.peers_count, 3);
        for (int p = 0; p < 3; p++) {
            assert_int_equal(o.peers_epochs[p], 30 * p);
            assert_int_equal(o.peers_values[p], 1 << p);
        }
    }
    static const char *const wrong[][2] = {
        {"", "(empty)"},
        {" , ", "(empty)"},
        {"1", "pairs EPOCH:NUMBER"},
        {"1:", "pairs EPOCH:NUMBER"},
        {":1", "pairs EPOCH:NUMBER"},
        {"1 :1", "pairs EPOCH:NUMBER"},
        {"1:1:1", "pairs EPOCH:NUMBER"},
        {"-1:1", "pairs EPOCH:NUMBER"},
        {"1:+1", "pairs EPOCH:NUMBER"},
        {"1:1.5", "pairs EPOCH:NUMBER"},
        {"1:0", "numbers of 1 or more"},
        {"1:1;2:2", "pairs EPOCH:NUMBER"},
        {"0x1:1", "pairs EPOCH:NUMBER"},
        {"99999999999999999999:1", "pairs EPOCH:NUMBER"},
        {"0:2147483648", "pairs EPOCH:NUMBER"},
        {"1:1 1:2", "epoch 1 does not come after epoch 1"},
        {"3:1 2:2", "epoch 2 does not come after epoch 3"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        dsc_train_options o;
        dsc_train_options_init(&o);
        assert_fails(DSC_E_INVALID, wrong[i][1],
                     dsc_option_set_value(dsc_train_option_table(), &o, "peers-schedule", wrong[i][0]));
    }
    char many[16 * (DSC_MAX_DECAYS + 1)] = "";
    for (int i = 0; i <= DSC_MAX_DECAYS; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), "%d:1 ", i);
    dsc_train_options o;
    assert_fails(DSC_E_INVALID, "more than",
                 dsc_option_set_value(dsc_train_option_table(), &o, "peers-schedule", many));
}

/* Each option of gossip with each algorithm: accepted where it belongs, else refused with both names. */
static void test_fits(void **state) {
    (void)state;
    static const char *const kinds[] = {"allreduce", "sgp", "osgp", "dpsgd", "adpsgd"};
    static const struct {
        const char *text, *name, *taken; /* taken: by kind, as in `kinds` */
    } cases[] = {
        {"graph = complete", "--graph", "01111"},
        {"peers-per-step = 1", "--peers-per-step", "01110"},
        {"peers-schedule = 0:1", "--peers-schedule", "01110"},
        {"synch-freq = 0", "--synch-freq", "00100"},
        {"gossip-group = 0", "--gossip-group", "01110"},
        {"average-every = 8", "--average-every", "01111"},
        {"average-every = 8\nslow-momentum = 0.5", "--average-every", "01111"},
        {"average-every = 8\nslow-rate = 0.5", "--average-every", "01111"},
        {"slow-momentum = 0.5", "--slow-momentum", "00000"},
        {"slow-rate = 0.5", "--slow-rate", "00000"},
        {"peer-timeout = 1", "--peer-timeout", "11111"},
        {"eval-ranks", "--eval-ranks", "01111"},
        {"distance-every = 1", "--distance-every", "01111"},
        {"kfac-update-freq = 5\nkfac-scope = local", "--kfac-scope local", "01111"},
        {"kfac-update-freq = 5\nkfac-scope = global", "--kfac-scope global", "11111"},
        {"bn-average", "--bn-average", "11111"},
        {"on-peer-loss = stop", "--on-peer-loss", "11111"},
        {"on-peer-loss = continue", "--on-peer-loss continue", "01111"},
        {"on-peer-loss = continue\npeer-timeout = 5", "--on-peer-loss continue", "01111"},
        {"on-peer-loss = continue\npeer-timeout = 0", "--on-peer-loss continue", "00000"},
        {"on-peer-loss = continue\nkfac-update-freq = 5", "--on-peer-loss continue", "00000"},
        {"on-peer-loss = continue\nkfac-update-freq = 5\nkfac-scope = local", "", "01111"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 5; k++) {
            dsc_cli_train_values v;
            char text[128];
            snprintf(text, sizeof text, "consensus = %s\n%s\n", kinds[k], cases[i].text);
            dsc_status status = configure_text(text, &v);
            if ((status == DSC_OK) != (cases[i].taken[k] == '1'))
                fail_msg("'%s' with %s: %s", cases[i].text, kinds[k], dsc_status_text(status));
            if (status != DSC_OK && !strstr(dsc_error_message(), cases[i].name))
                fail_msg("'%s' with %s: '%s' does not name it", cases[i].text, kinds[k], dsc_error_message());
        }
}

static const char config[] =
    "model = mlp\nconsensus = osgp\ngraph = exponential-pm\npeers-schedule = 0:1 30:2,60:3\n"
    "synch-freq = 12\ngossip-group = 2\naverage-every = 48\nslow-momentum = 0.7\n"
    "slow-rate = 1.0\npeer-timeout = 30.5\ndistance-every = 100\nbn-average = on\n"
    "kfac-update-freq = 5\nkfac-scope = local\non-peer-loss = stop\n";

/* 10,000 damaged configurations: cut off, and up to six bytes changed. */
static void test_fuzz(void **state) {
    (void)state;
    int accepted = 0;
    for (uint64_t round = 0; round < 10000; round++) {
        dsc_rng rng = dsc_rng_start(2, DSC_RNG_TEST, 0, round);
        size_t length = sizeof config - 1;
        char *text = malloc(length); /* exact, so that a read past its end is seen */
        memcpy(text, config, length);
        uint32_t changes = dsc_rng_below(&rng, 7);
        for (uint32_t i = 0; i < changes; i++)
            text[dsc_rng_below(&rng, (uint32_t)length)] ^= (char)(1u << dsc_rng_below(&rng, 8));
        if (round % 2)
            length = dsc_rng_below(&rng, (uint32_t)length);
        dsc_cli_train_values v;
        dsc_status status = configure(text, length, &v);
        free(text);
        if (status != DSC_OK) {
            assert_true(status == DSC_E_INVALID || status == DSC_E_NOT_FOUND || status == DSC_E_UNSUPPORTED);
            continue;
        }
        accepted++;
        const dsc_consensus_options *c = v.o.consensus;
        assert_true(c->synch_freq >= 0 && c->group >= 0 && c->peers >= 1 && c->average_every >= 0);
        assert_true(c->slow_momentum >= 0 && c->slow_momentum < 1 && c->slow_rate > 0 &&
                    c->peer_timeout >= 0);
        assert_true(isfinite(c->peer_timeout) && v.o.peers_count <= DSC_MAX_DECAYS);
        for (int i = 0; i < v.o.peers_count; i++)
            assert_true(v.o.peers_values[i] >= 1 &&
                        (i == 0 || v.o.peers_epochs[i] > v.o.peers_epochs[i - 1]));
    }
    assert_true(accepted > 500 && accepted < 9500);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),  cmocka_unit_test(test_every_option),
        cmocka_unit_test(test_schedules), cmocka_unit_test(test_fits),
        cmocka_unit_test(test_fuzz),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
