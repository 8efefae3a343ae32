/* Option tables: command lines, configuration files, values as text for people. */
#include "test.h"

#include "base/memory.h"
#include "base/rng.h"
#include "descent/options.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_LIST = 4 };

typedef struct settings {
    int nesterov, augment, colocate, threads;
    int64_t epochs;
    uint64_t seed;
    double lr, momentum;
    size_t bucket;
    const char *device, *out, *resume, *config;
    double decay[MAX_LIST];
    int decay_count;
} settings;

#define AT(member) offsetof(settings, member)

static const char *const devices[] = {"auto", "ref", "cpu", NULL};

static const dsc_option table[] = {
    {.name = "nesterov", .kind = DSC_OPTION_FLAG, .offset = AT(nesterov), .letter = 'n'},
    {.name = "no-augment", .kind = DSC_OPTION_NO_FLAG, .offset = AT(augment)},
    {.name = "colocate", .kind = DSC_OPTION_ON_OFF, .offset = AT(colocate)},
    {.name = "threads", .kind = DSC_OPTION_INT, .offset = AT(threads), .placeholder = "N", .letter = 't'},
    {.name = "epochs",
     .kind = DSC_OPTION_INT64,
     .offset = AT(epochs),
     .placeholder = "N",
     .range = "[1, inf)"},
    {.name = "seed", .kind = DSC_OPTION_UINT64, .offset = AT(seed), .placeholder = "N"},
    {.name = "lr", .kind = DSC_OPTION_DOUBLE, .offset = AT(lr), .placeholder = "X"},
    {.name = "momentum",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(momentum),
     .placeholder = "X",
     .range = "[0, 1)"},
    {.name = "bucket-mb",
     .kind = DSC_OPTION_MIB,
     .offset = AT(bucket),
     .placeholder = "X",
     .range = "(0, 1e6]"},
    {.name = "device", .kind = DSC_OPTION_WORD, .offset = AT(device), .choices = devices},
    {.name = "out", .kind = DSC_OPTION_STRING, .offset = AT(out), .placeholder = "DIR"},
    {.name = "resume",
     .kind = DSC_OPTION_STRING,
     .offset = AT(resume),
     .placeholder = "auto|FILE",
     .bare = "auto"},
    {.name = "lr-decay",
     .kind = DSC_OPTION_LIST,
     .offset = AT(decay),
     .count_offset = AT(decay_count),
     .capacity = MAX_LIST,
     .placeholder = "E...",
     .range = "[0, inf)"},
    {.name = "config", .kind = DSC_OPTION_CONFIG, .offset = AT(config), .placeholder = "FILE"},
    {.name = NULL},
};

static settings defaults(void) {
    return (settings){.augment = 1,
                      .epochs = 100,
                      .seed = 42,
                      .lr = 0.1,
                      .momentum = 0.9,
                      .bucket = 4 << 20,
                      .device = "auto"};
}

/* Splits `line` at blanks (in place; '' is an empty word) and parses it. The text must outlive `values`. */
static dsc_status parse(char *line, settings *values, dsc_option_set **set) {
    char *argv[64];
    int argc = 0;
    *values = defaults();
    for (char *word = strtok(line, " "); word && argc < 64; word = strtok(NULL, " "))
        argv[argc++] = strcmp(word, "''") == 0 ? word + 2 : word;
    return dsc_option_parse(table, argc, argv, values, set);
}

static void write_file(char *path, const char *text, size_t length) {
    strcpy(path, "test-option-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, length), (ssize_t)length);
    close(fd);
}

static void test_every_kind(void **state) {
    (void)state;
    settings v;
    dsc_option_set *set;
    char line[] =
        "--nesterov --no-augment --colocate on --threads 3 --epochs=7 --seed 18446744073709551615 --lr 1e-3 "
        "--momentum=0 --bucket-mb 0.5 --device ref --out a=b --resume x.safetensors";
    assert_ok(parse(line, &v, &set));
    assert_int_equal(v.nesterov, 1);
    assert_int_equal(v.augment, 0);
    assert_int_equal(v.colocate, 1);
    assert_int_equal(v.threads, 3);
    assert_int_equal(v.epochs, 7);
    assert_true(v.seed == UINT64_MAX);
    assert_true(v.lr == 1e-3 && v.momentum == 0);
    assert_int_equal(v.bucket, 524288);
    assert_string_equal(v.device, "ref");
    assert_string_equal(v.out, "a=b");
    assert_string_equal(v.resume, "x.safetensors");
    assert_int_equal(dsc_option_given(set, "epochs"), 1);
    assert_int_equal(dsc_option_given(set, "lr-decay"), 0);
    dsc_option_set_destroy(&set);
    assert_null(set);
    dsc_option_set_destroy(&set);
}

static void test_nothing_given_keeps_defaults(void **state) {
    (void)state;
    settings v, d = defaults();
    dsc_option_set *set;
    char line[] = "";
    assert_ok(parse(line, &v, &set));
    assert_int_equal(v.epochs, d.epochs);
    assert_true(v.lr == d.lr && v.augment == d.augment && v.bucket == d.bucket && v.out == NULL);
    assert_int_equal(dsc_option_positional_count(set), 0);
    assert_null(dsc_option_positional(set, 0));
    dsc_option_set_destroy(&set);
}

/* Every way to write 35 75 90, and what ends a list. */
static void test_lists(void **state) {
    (void)state;
    static const char *const forms[] = {"--lr-decay 35 75 90",
                                        "--lr-decay 35,75,90",
                                        "--lr-decay=35,75,90",
                                        "--lr-decay=35 75 90",
                                        "--lr-decay 35, 75 ,90",
                                        "--lr-decay 35,75 90 --epochs 5",
                                        "--lr-decay 1 --lr-decay 35,75,90",
                                        "--lr-decay 35 , 75 , 90 -n",
                                        "--lr-decay ,35,,75,90,",
                                        "--lr-decay 3.5e1 +75 90.0 --resume"};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        settings v;
        dsc_option_set *set;
        char line[128];
        strcpy(line, forms[i]);
        assert_ok(parse(line, &v, &set));
        assert_int_equal(v.decay_count, 3);
        assert_true(v.decay[0] == 35 && v.decay[1] == 75 && v.decay[2] == 90);
        assert_int_equal(dsc_option_positional_count(set), 0);
        dsc_option_set_destroy(&set);
    }
    settings v;
    dsc_option_set *set;
    char empty[] = "--lr-decay 1 2 --lr-decay ''";
    assert_ok(parse(empty, &v, &set));
    assert_int_equal(v.decay_count, 0);
    dsc_option_set_destroy(&set);
}

static void test_bare_values_letters_positionals(void **state) {
    (void)state;
    settings v;
    dsc_option_set *set;
    char line[] = "a --resume --nesterov=off -n b -t 2 --lr -0.5 - -- --epochs -x";
    assert_ok(parse(line, &v, &set));
    assert_string_equal(v.resume, "auto");
    assert_int_equal(v.nesterov, 1);
    assert_int_equal(v.threads, 2);
    assert_true(v.lr == -0.5);
    assert_int_equal(v.epochs, 100);
    const char *const expected[] = {"a", "b", "-", "--epochs", "-x"};
    assert_int_equal(dsc_option_positional_count(set), 5);
    for (int i = 0; i < 5; i++)
        assert_string_equal(dsc_option_positional(set, i), expected[i]);
    dsc_option_set_destroy(&set);
    char last[] = "--epochs 1 --epochs 2 --no-augment --no-augment=off --resume";
    assert_ok(parse(last, &v, &set));
    assert_int_equal(v.epochs, 2);
    assert_int_equal(v.augment, 1);
    assert_string_equal(v.resume, "auto");
    dsc_option_set_destroy(&set);
}

/* Each message names option, value and what is valid. */
static void test_wrong_command_lines(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"--epochs 0", "--epochs 0: must be at least 1"},
        {"--epochs=-3", "--epochs -3: must be at least 1"},
        {"--epochs 1.5", "--epochs 1.5: is not a whole number"},
        {"--epochs 99999999999999999999", "does not fit into 64 bits"},
        {"--epochs", "--epochs needs a value: --epochs N"},
        {"--epochs --lr 1", "--epochs needs a value"},
        {"--epochs=", "--epochs needs a value"},
        {"--threads 3000000000", "--threads 3000000000: does not fit into 32 bits"},
        {"--seed -1", "--seed -1: is not a whole number of 0 or more"},
        {"--seed 18446744073709551616", "does not fit into 64 bits"},
        {"--lr abc", "--lr abc: is not a number"},
        {"--lr 0.1x", "--lr 0.1x: is not a number"},
        {"--lr nan", "--lr nan: is not a number"},
        {"--lr inf", "--lr inf: is not a number"},
        {"--lr 1e999", "--lr 1e999: is not a number"},
        {"--momentum 1", "--momentum 1: must be at least 0 and below 1"},
        {"--bucket-mb 0", "--bucket-mb 0: must be above 0 and at most 1000000"},
        {"--device gpu", "--device gpu: must be one of auto, ref, cpu (did you mean cpu?)"},
        {"--device cuda", "--device cuda: must be one of auto, ref, cpu"},
        {"--device", "--device needs a value: --device auto|ref|cpu"},
        {"--colocate", "--colocate needs a value: --colocate on|off"},
        {"--colocate maybe", "--colocate maybe: must be on or off"},
        {"--nesterov=1", "--nesterov 1: must be on or off"},
        {"--lr-decay", "--lr-decay needs a value: --lr-decay E..."},
        {"--lr-decay 1 2 3 4 5", "--lr-decay 5: more than 4 numbers"},
        {"--lr-decay 35 -75", "--lr-decay -75: must be at least 0"},
        {"--lr-decay 35x", "--lr-decay 35x: is not a number"},
        {"--epoch 3", "unknown option --epoch (did you mean --epochs?)"},
        {"--momentun=1", "unknown option --momentun (did you mean --momentum?)"},
        {"--bucket 1", "unknown option --bucket (did you mean --bucket-mb?)"},
        {"--zzzzzz", "unknown option --zzzzzz"},
        {"-z", "unknown option"},
        {"--config", "--config needs a value: --config FILE"},
        {"--config no/such/file", "--config no/such/file: No such file"},
        {"--config .", "--config .: "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        settings v;
        dsc_option_set *set = NULL;
        char line[128];
        strcpy(line, cases[i][0]);
        dsc_status status = parse(line, &v, &set);
        if (status != DSC_E_INVALID && status != DSC_E_NOT_FOUND)
            fail_msg("'%s' gives status '%s'", cases[i][0], dsc_status_text(status));
        if (!strstr(dsc_error_message(), cases[i][1]))
            fail_msg("'%s': message '%s' lacks '%s'", cases[i][0], dsc_error_message(), cases[i][1]);
        assert_null(set);
    }
}

static const char config_text[] = "# a comment\n"
                                  "epochs = 9\r\n"
                                  "\n"
                                  "  lr=0.25   # and one behind a value\n"
                                  "lr-decay = 35, 75 90\n"
                                  "out = a dir/with#hash\n"
                                  "nesterov\n"
                                  "no-augment = off\n"
                                  "resume =\n"
                                  "device = \"cpu\"";

static void test_config(void **state) {
    (void)state;
    settings v = defaults();
    dsc_option_set *set;
    assert_ok(dsc_option_parse_text(table, "x.conf", config_text, sizeof config_text - 1, &v, &set));
    assert_int_equal(v.epochs, 9);
    assert_true(v.lr == 0.25);
    assert_int_equal(v.decay_count, 3);
    assert_true(v.decay[2] == 90);
    assert_string_equal(v.out, "a dir/with#hash");
    assert_int_equal(v.nesterov, 1);
    assert_int_equal(v.augment, 1);
    assert_string_equal(v.resume, "auto");
    assert_string_equal(v.device, "cpu");
    assert_int_equal(dsc_option_given(set, "out"), 1);
    assert_int_equal(dsc_option_given(set, "seed"), 0);
    dsc_option_set_destroy(&set);
}

/* The command line wins, wherever --config stands; a later file wins over an earlier one. */
static void test_config_precedence(void **state) {
    (void)state;
    char first[32], second[32], line[256];
    write_file(first, config_text, sizeof config_text - 1);
    write_file(second, "epochs = 11\n", 12);
    settings v;
    dsc_option_set *set;
    snprintf(line, sizeof line, "--lr 3 --lr-decay 5 --config %s --seed 1", first);
    assert_ok(parse(line, &v, &set));
    assert_true(v.lr == 3 && v.seed == 1 && v.epochs == 9);
    assert_int_equal(v.decay_count, 1);
    assert_string_equal(v.out, "a dir/with#hash");
    dsc_option_set_destroy(&set);
    snprintf(line, sizeof line, "--config=%s --config %s --nesterov=off", first, second);
    assert_ok(parse(line, &v, &set));
    assert_int_equal(v.epochs, 11);
    assert_int_equal(v.nesterov, 0);
    dsc_option_set_destroy(&set);
    unlink(first);
    unlink(second);
}

static void test_wrong_configs(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"lr = 1\nepochs = 0\n", "x.conf:2: epochs 0: must be at least 1"},
        {"\n\nepoch = 3", "x.conf:3: unknown key epoch (did you mean epochs?)"},
        {"--epochs = 3", "x.conf:1: unknown key --epochs (did you mean epochs?)"},
        {"epochs", "x.conf:1: epochs needs a value: epochs = N"},
        {"epochs = # 3", "x.conf:1: epochs needs a value"},
        {"device = gpu", "x.conf:1: device gpu: must be one of auto, ref, cpu"},
        {"config = y.conf", "x.conf:1: a configuration file cannot name another one"},
        {"= 3", "x.conf:1: unknown key"},
        {"nesterov = 2", "x.conf:1: nesterov 2: must be on or off"},
        {"lr-decay = 1 2 3 4 5", "x.conf:1: lr-decay 5: more than 4 numbers"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        settings v = defaults();
        dsc_option_set *set = NULL;
        assert_fails(DSC_E_INVALID, cases[i][1],
                     dsc_option_parse_text(table, "x.conf", cases[i][0], strlen(cases[i][0]), &v, &set));
        assert_null(set);
    }
    settings v = defaults();
    dsc_option_set *set = NULL;
    assert_fails(DSC_E_INVALID, "x.conf:2: holds a byte 0",
                 dsc_option_parse_text(table, "x.conf", "lr = 1\nlr\0 = 2", 13, &v, &set));
    size_t length = (1 << 20) + 1;
    char *large = malloc(length), path[32], line[64];
    memset(large, '\n', length);
    write_file(path, large, length);
    free(large);
    snprintf(line, sizeof line, "--config %s", path);
    assert_fails(DSC_E_INVALID, "not a configuration file", parse(line, &v, &set));
    unlink(path);
}

static void test_texts(void **state) {
    (void)state;
    char text[128];
    assert_string_equal(dsc_option_range_text("[1, inf)", text, sizeof text), "at least 1");
    assert_string_equal(dsc_option_range_text("(0, inf)", text, sizeof text), "above 0");
    assert_string_equal(dsc_option_range_text("(-inf, 3]", text, sizeof text), "at most 3");
    assert_string_equal(dsc_option_range_text("[0, 1)", text, sizeof text), "at least 0 and below 1");
    assert_string_equal(dsc_option_range_text(NULL, text, sizeof text), "");
    settings v = defaults();
    v.decay[0] = 35;
    v.decay[1] = 75.5;
    v.decay_count = 2;
    static const char *const expected[] = {"",    "",  "off",  "0", "100", "42",      "0.1",
                                           "0.9", "4", "auto", "",  "",    "35 75.5", ""};
    for (int i = 0; table[i].name; i++)
        assert_string_equal(dsc_option_default_text(&table[i], &v, "--", text, sizeof text), expected[i]);
    dsc_option shown = table[4];
    shown.default_text = "as {lr}";
    assert_string_equal(dsc_option_default_text(&shown, &v, "--", text, sizeof text), "as --lr");
    assert_string_equal(dsc_option_default_text(&shown, &v, "", text, sizeof text), "as lr");
}

static void test_nearest(void **state) {
    (void)state;
    static const char *const names[] = {"train", "eval", "info", "bench", "report"};
    assert_string_equal(dsc_option_nearest("trian", names, 5), "train");
    assert_string_equal(dsc_option_nearest("benchmark", names, 5), "bench");
    assert_string_equal(dsc_option_nearest("eva", names, 5), "eval");
    assert_null(dsc_option_nearest("xyzzy", names, 5));
    assert_null(dsc_option_nearest("", names, 0));
    char endless[300];
    memset(endless, 't', sizeof endless - 1);
    endless[sizeof endless - 1] = '\0';
    assert_null(dsc_option_nearest(endless, names, 5));
}

/* Every allocation fails once: an error each time, nothing leaks (the sanitizers look). */
static void test_out_of_memory(void **state) {
    (void)state;
    char path[32];
    write_file(path, config_text, sizeof config_text - 1);
    for (int64_t nth = 1;; nth++) {
        settings v;
        dsc_option_set *set = NULL;
        char line[128];
        assert_true(nth < 100);
        snprintf(line, sizeof line, "x --config %s --lr-decay 1 2 y", path);
        dsc_memory_fail_at(nth);
        dsc_status status = parse(line, &v, &set);
        dsc_memory_fail_at(0);
        if (status == DSC_OK) {
            dsc_option_set_destroy(&set);
            assert_true(nth > 5);
            break;
        }
        assert_int_equal(status, DSC_E_MEMORY);
        assert_null(set);
    }
    unlink(path);
}

/* 10,000 damaged configurations: cut off, and up to eight bytes changed. */
static void test_fuzz(void **state) {
    (void)state;
    int accepted = 0;
    for (uint64_t round = 0; round < 10000; round++) {
        dsc_rng rng = dsc_rng_start(1, DSC_RNG_TEST, 0, round);
        size_t length = sizeof config_text - 1;
        char *text = malloc(length); /* exact, so that a read past its end is seen */
        memcpy(text, config_text, length);
        uint32_t changes = dsc_rng_below(&rng, 9);
        for (uint32_t i = 0; i < changes; i++)
            text[dsc_rng_below(&rng, (uint32_t)length)] ^= (char)(1u << dsc_rng_below(&rng, 8));
        if (round % 2)
            length = dsc_rng_below(&rng, (uint32_t)length);
        settings v = defaults();
        dsc_option_set *set = NULL;
        dsc_status status = dsc_option_parse_text(table, "fuzz.conf", text, length, &v, &set);
        assert_true(status == DSC_OK || status == DSC_E_INVALID);
        if (status == DSC_OK) {
            accepted++;
            assert_true(v.epochs >= 1 && isfinite(v.lr) && v.decay_count <= MAX_LIST);
        } else {
            assert_non_null(strstr(dsc_error_message(), "fuzz.conf:"));
        }
        dsc_option_set_destroy(&set);
        free(text);
    }
    assert_true(accepted > 500 && accepted < 9500);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind),
        cmocka_unit_test(test_nothing_given_keeps_defaults),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_bare_values_letters_positionals),
        cmocka_unit_test(test_wrong_command_lines),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_config_precedence),
        cmocka_unit_test(test_wrong_configs),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_nearest),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_fuzz),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
