/* Sweep files and the median rule. */
#include "test.h"

#include "base/rng.h"
#include "cli/sweep_places.h"
#include "cli/sweep_plan.h"
#include "cli/sweep_rule.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static dsc_status parse(const char *text, size_t length, dsc_sweep_plan *plan) {
    char *copy = malloc(length + 1); /* exactly as long, so that a sanitizer sees reads after the end */
    assert_non_null(copy);
    memcpy(copy, text, length);
    copy[length] = '\0';
    dsc_status status = dsc_sweep_plan_parse("a.sweep", copy, length, plan);
    free(copy);
    return status;
}

static void expect_error(const char *text, const char *message) {
    dsc_sweep_plan plan;
    assert_int_equal(parse(text, strlen(text), &plan), DSC_E_INVALID);
    if (!strstr(dsc_error_message(), message))
        fail_msg("'%s' gives '%s', which lacks '%s'", text, dsc_error_message(), message);
    assert_null(plan.runs);
}

static void test_grid(void **state) {
    (void)state;
    dsc_sweep_plan plan;
    const char text[] =
        "# fixed\nmodel = lenet   # comment\nnesterov\nlr = grid 0.1 0.2\n\nseed = grid 1 2 3\n"
        "lr-decay = 3 5\ndata = grid \"imagefolder:my data\"\n";
    assert_ok(parse(text, sizeof text - 1, &plan));
    assert_int_equal(plan.count, 6);
    assert_int_equal(plan.repeated, 0);
    assert_string_equal(plan.runs[0].name, "lr=0.1,seed=1");
    assert_string_equal(plan.runs[1].name, "lr=0.1,seed=2");
    assert_string_equal(plan.runs[5].name, "lr=0.2,seed=3");
    assert_string_equal(
        plan.runs[5].config,
        "data = \"imagefolder:my data\"\nlr = 0.2\nlr-decay = 3 5\nmodel = lenet\nnesterov\nseed = 3\n");
    assert_string_equal(plan.runs[5].lined,
                        "\nmodel = lenet\nnesterov\nlr = 0.2\n\nseed = 3\nlr-decay = 3 5\n"
                        "data = \"imagefolder:my data\"");
    dsc_sweep_plan_free(&plan);
    assert_null(plan.runs);
}

/* Blanks alone divide values: those of a model have commas and equals signs. */
static void test_model_keys(void **state) {
    (void)state;
    dsc_sweep_plan plan;
    const char grid[] = "model = grid gpt-mini:layers=2,width=64 gpt-mini:layers=4,width=64\n",
               fixed[] = "model = gpt-mini:layers=2,width=64 # small\nlr = grid 0.1 0.2\n";
    assert_ok(parse(grid, sizeof grid - 1, &plan));
    assert_int_equal(plan.count, 2);
    assert_string_equal(plan.runs[0].config, "model = gpt-mini:layers=2,width=64\n");
    assert_string_equal(plan.runs[1].config, "model = gpt-mini:layers=4,width=64\n");
    assert_true(strncmp(plan.runs[1].name, "model=gpt-mini_layers=4,width=64-", 33) == 0);
    dsc_sweep_plan_free(&plan);
    assert_ok(parse(fixed, sizeof fixed - 1, &plan));
    assert_int_equal(plan.count, 2);
    assert_string_equal(plan.runs[1].name, "lr=0.2");
    assert_string_equal(plan.runs[1].config, "lr = 0.2\nmodel = gpt-mini:layers=2,width=64\n");
    dsc_sweep_plan_free(&plan);
}

/* A name that is not usable for a file, or too long, ends with a hash; if nothing varies there is one run. */
static void test_names(void **state) {
    (void)state;
    dsc_sweep_plan plan;
    const char odd[] = "data = grid cifar10:/a cifar10:_a\n";
    assert_ok(parse(odd, sizeof odd - 1, &plan));
    assert_int_equal(plan.count, 2);
    assert_true(strncmp(plan.runs[0].name, "data=cifar10__a-", 16) == 0 && strlen(plan.runs[0].name) == 24);
    assert_true(strcmp(plan.runs[0].name, plan.runs[1].name) != 0);
    dsc_sweep_plan_free(&plan);
    const char one[] = "lr = 0.1";
    assert_ok(parse(one, sizeof one - 1, &plan));
    assert_int_equal(plan.count, 1);
    assert_string_equal(plan.runs[0].name, "run");
    dsc_sweep_plan_free(&plan);
    char text[400] = "data = grid a ";
    memset(text + 14, 'x', 300);
    assert_ok(parse(text, strlen(text), &plan));
    assert_int_equal(strlen(plan.runs[1].name), 109);
    dsc_sweep_plan_free(&plan);
}

static double value_after(const char *name, const char *key) {
    const char *at = strstr(name, key);
    assert_non_null(at);
    return strtod(at + strlen(key), NULL);
}

/* Drawn values lie in their ranges, are spread over them, and more samples keep the first. */
static void test_draws(void **state) {
    (void)state;
    dsc_sweep_plan few, many, other;
    const char text[] =
        "a = uniform -1 1\nb = log 1e-4 1\nc = int 2 4\nd = pick x y\nseed = grid 7 8\nsamples = ";
    char source[200];
    snprintf(source, sizeof source, "%s3\n", text);
    assert_ok(parse(source, strlen(source), &few));
    snprintf(source, sizeof source, "%s400\n", text);
    assert_ok(parse(source, strlen(source), &many));
    snprintf(source, sizeof source, "%s3\ndraw-seed = 2\n", text);
    assert_ok(parse(source, strlen(source), &other));
    assert_int_equal(few.count, 6);
    assert_int_equal(many.count + many.repeated, 800);
    int below = 0, small = 0, whole[5] = {0}, xs = 0;
    for (int64_t i = 0; i < few.count; i++)
        assert_string_equal(few.runs[i].name, many.runs[i].name);
    assert_true(strcmp(few.runs[0].name, other.runs[0].name) != 0);
    for (int64_t i = 0; i < many.count; i++) {
        const char *name = many.runs[i].name;
        double a = value_after(name, "a="), b = value_after(name, ",b="), c = value_after(name, ",c=");
        assert_true(a >= -1 && a <= 1 && b >= 1e-4 && b <= 1 && c >= 2 && c <= 4 && floor(c) == c);
        below += a < 0;
        small += b < 1e-2;
        whole[(int)c]++;
        xs += strstr(name, "d=x") != NULL;
    }
    const double n = (double)many.count, spread = 5 * sqrt(n) / 2; /* five standard deviations of n coins */
    assert_true(fabs(below - n / 2) < spread && fabs(small - n / 2) < spread && fabs(xs - n / 2) < spread);
    for (int i = 2; i <= 4; i++)
        assert_true(fabs(whole[i] - n / 3) < spread);
    /* Both points of the grid get the same samples. */
    assert_true(value_after(few.runs[0].name, "a=") == value_after(few.runs[1].name, "a="));
    dsc_sweep_plan_free(&few);
    dsc_sweep_plan_free(&many);
    dsc_sweep_plan_free(&other);
}

static void test_bad_files(void **state) {
    (void)state;
    expect_error("", "says nothing");
    expect_error("# only\n", "says nothing");
    expect_error("lr = 1\nlr = 2\n", "a.sweep:2: lr stands in line 1, too");
    expect_error("lr = uniform 1 2\n", "a.sweep:1: lr is drawn at random: say how often");
    expect_error("lr = grid 1 2\nsamples = 3\n", "a.sweep:2: samples 3, but no value is drawn");
    expect_error("lr = uniform 2 1\nsamples = 3\n", "a range is two numbers, the lower first");
    expect_error("lr = uniform 1 x\nsamples = 3\n", "a range is two numbers");
    expect_error("lr = uniform 1 2 3\nsamples = 3\n", "a range is two numbers");
    expect_error("lr = uniform nan inf\nsamples = 3\n", "a range is two numbers");
    expect_error("lr = log 0 1\nsamples = 3\n", "both numbers must be above 0");
    expect_error("keep = int 0.5 1\nsamples = 3\n", "both must be whole numbers");
    expect_error("lr = uniform 1 2\nsamples = 0\n", "a.sweep:2: samples 0: must be a whole number from 1");
    expect_error("lr = uniform 1 2\nsamples = 1e3\n", "must be a whole number");
    expect_error("lr = uniform 1 2\nsamples\n", "must be a whole number");
    expect_error("lr = uniform 1 2\nsamples = 2\nsamples = 3\n", "a.sweep:3: samples stands in line 2, too");
    expect_error("out = x\n", "a.sweep:1: out: not in a sweep file");
    expect_error("resume = auto\n", "not in a sweep file");
    expect_error("lr 0.1\n", "'lr 0.1' is no key");
    expect_error("= 3\n", "is no key");
    expect_error("data = grid \"\"\n", "a value is empty");
    expect_error("data = grid a\"b\n", "quotation mark");
    expect_error("lr = 0.1\n\x01\n", "a.sweep:2: holds a byte 1");
    expect_error("a = grid 1 2 3 4 5 6 7 8 9\nb = grid 1 2 3 4 5 6 7 8 9\nc = grid 1 2 3 4 5 6 7 8 9\n"
                 "d = grid 1 2 3 4 5 6 7 8 9\n",
                 "a.sweep:4: the grids have more than 4096 points");
    expect_error("a = grid 1 2 3\nb = uniform 0 1\nsamples = 4000\n", "more than 4096 runs");
}

/* Every truncation, and many flips of a bit: a plan or a message, and nothing else happens. */
static void test_damaged(void **state) {
    (void)state;
    static const char good[] =
        "model = lenet # net\nlr = grid 0.05 0.1 \"0.2\"\nkfac-damping = log 1e-3 1e-1\n"
        "momentum = uniform 0.8 0.99\nkeep = int 1 3\noptimizer = pick sgd adam\n"
        "samples = 4\ndraw-seed = 3\nnesterov\nseed = grid 1 2\n";
    const size_t length = sizeof good - 1;
    for (size_t cut = 0; cut <= length; cut++) {
        dsc_sweep_plan plan;
        if (parse(good, cut, &plan) == DSC_OK)
            assert_true(plan.count > 0);
        dsc_sweep_plan_free(&plan);
    }
    for (uint64_t i = 0; i < 3000; i++) {
        char text[sizeof good];
        dsc_sweep_plan plan;
        memcpy(text, good, sizeof good);
        dsc_rng rng = dsc_rng_start(3, DSC_RNG_TEST, 0, i);
        for (int flips = 0; flips < 1 + (int)(i % 3); flips++)
            text[dsc_rng_below(&rng, (uint32_t)length)] ^= (char)(1u << dsc_rng_below(&rng, 8));
        if (parse(text, length, &plan) == DSC_OK)
            assert_true(plan.count > 0);
        dsc_sweep_plan_free(&plan);
    }
}

/* ---- the median rule ---- */

static void test_rule(void **state) {
    (void)state;
    double good[] = {20, 40, 60}, fair[] = {30, 35, 36}, bad[] = {10, 11}, short_one[] = {90};
    dsc_sweep_curve curves[] = {
        {good, 3, 5, 0}, {fair, 3, 5, 0}, {good, 3, 5, 0}, {bad, 2, 5, 0}, {short_one, 1, 5, 0}};
    double median = 0;
    assert_true(dsc_sweep_rule(curves, 5, 3, 1, &median)); /* 40, 35, 40 after two epochs */
    assert_true(median == 40);
    assert_false(dsc_sweep_rule(curves, 5, 3, 3, &median)); /* has its grace */
    assert_false(dsc_sweep_rule(curves, 5, 0, 1, &median)); /* two others have come as far */
    curves[3].planned = 2;
    assert_false(dsc_sweep_rule(curves, 5, 3, 1, &median)); /* has done all of its epochs */
    assert_false(dsc_sweep_rule(curves, 5, 4, 1, &median)); /* 20, 30, 20, 10: the best of all */
    assert_true(median == 20);
    short_one[0] = 20;
    assert_false(dsc_sweep_rule(curves, 5, 4, 1, &median)); /* as good as the median */
    short_one[0] = (double)NAN;
    assert_false(dsc_sweep_rule(curves, 5, 4, 1, &median));
}

static void test_curve(void **state) {
    (void)state;
    char directory[] = "/tmp/descent-sweep-XXXXXX", path[64], status[16] = "x", text[64];
    dsc_sweep_curve curve = {.planned = 9};
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/metrics.jsonl", directory);
    assert_ok(dsc_sweep_curve_read(directory, &curve, status)); /* not begun */
    assert_true(curve.epochs == 0 && !*status);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "{\"kind\":\"run\",\"step\":0,\"config\":{}}\n"
                  "{\"kind\":\"eval\",\"epoch\":1,\"step\":20,\"loss\":1.0,\"top1\":0.5,\"top5\":1.0}\n"
                  "{\"kind\":\"eval\",\"epoch\":3,\"step\":40,\"loss\":1.0,\"top1\":0.25,\"top5\":1.0}\n"
                  "{\"kind\":\"eval\",\"epoch\":4,\"step\":50,\"loss\":1.0,\"top1\":0.75,\"top5\":1.0}\n"
                  "{\"kind\":\"end\",\"status\":\"done\"}\n{\"kind\":\"ev");
    fclose(file);
    assert_ok(dsc_sweep_curve_read(directory, &curve, status));
    assert_false(curve.by_loss);
    assert_string_equal(status, "done");
    assert_int_equal(curve.epochs, 5);
    assert_true(isnan(curve.best[0]) && curve.best[1] == 50 && curve.best[2] == 50 && curve.best[3] == 50 &&
                curve.best[4] == 75);
    assert_int_equal(curve.planned, 9);
    file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "{\"kind\":\"run\",\"step\":0,\"positions\":64,\"tokens\":64,\"config\":{}}\n"
                  "{\"kind\":\"eval\",\"epoch\":0,\"step\":10,\"loss\":2.0,\"top1\":0.5,\"top5\":1.0}\n"
                  "{\"kind\":\"eval\",\"epoch\":1,\"step\":20,\"loss\":1.5,\"top1\":0.4,\"top5\":1.0}\n"
                  "{\"kind\":\"eval\",\"epoch\":2,\"step\":30,\"loss\":1.75,\"top1\":0.6,\"top5\":1.0}\n");
    fclose(file);
    assert_ok(dsc_sweep_curve_read(directory, &curve, status));
    assert_true(curve.by_loss && curve.epochs == 3);
    assert_true(curve.best[0] == -2 && curve.best[1] == -1.5 && curve.best[2] == -1.5);
    assert_string_equal(dsc_sweep_best_text(&curve, curve.best[2], text, sizeof text), "loss 1.5000");
    curve.by_loss = 0;
    assert_string_equal(dsc_sweep_best_text(&curve, 99, text, sizeof text), "top-1 99.00 %");
    dsc_sweep_curve_free(&curve);
    unlink(path);
    rmdir(directory);
}

/* ---- places ---- */

static void expect_gpus(int place, int jobs, int gpus, const char *names, const char *expected) {
    char text[64];
    assert_string_equal(dsc_sweep_gpus_of(place, jobs, gpus, names, text, sizeof text), expected);
}

static void test_places(void **state) {
    (void)state;
    expect_gpus(0, 4, 4, "", "0");
    expect_gpus(3, 4, 4, "", "3");
    expect_gpus(1, 2, 4, "", "2,3");
    expect_gpus(1, 2, 5, "", "2,3");
    expect_gpus(5, 8, 4, "", "1"); /* shared by two places */
    expect_gpus(1, 2, 2, "4,7", "7");
    expect_gpus(0, 1, 2, "GPU-a1,GPU-b2", "GPU-a1,GPU-b2");
    assert_int_equal(dsc_sweep_ranks_of(""), 1);
    assert_int_equal(dsc_sweep_ranks_of("mpirun -n 4"), 4);
    assert_int_equal(dsc_sweep_ranks_of("mpiexec --oversubscribe -np 2 --bind-to none"), 2);
    assert_int_equal(dsc_sweep_ranks_of("srun --ntasks=8"), 8);
    assert_int_equal(dsc_sweep_ranks_of("taskset -c 3"), 1);
    assert_int_equal(dsc_sweep_ranks_of("mpirun -n x"), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grid),  cmocka_unit_test(test_model_keys), cmocka_unit_test(test_names),
        cmocka_unit_test(test_draws), cmocka_unit_test(test_bad_files),  cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_rule),  cmocka_unit_test(test_curve),      cmocka_unit_test(test_places)};
    return cmocka_run_group_tests_name("sweep", tests, NULL, NULL);
}
