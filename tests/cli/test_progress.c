/* The output of a training while it runs, without a terminal. */
#include "test.h"

#include "cli/progress_bar.h"

#include <stdlib.h>
#include <string.h>

static char *text;
static size_t size;

static void start(dsc_cli_progress *progress, int verbose) {
    dsc_cli_progress_init(progress, verbose, 10);
    progress->colour = progress->bar_colour = 0;
    progress->bar = NULL;
    progress->lines = open_memstream(&text, &size);
    assert_non_null(progress->lines);
}

static void stop(dsc_cli_progress *progress, const char *expected) {
    dsc_cli_progress_end(progress);
    fclose(progress->lines);
    assert_string_equal(text, expected);
    free(text);
}

static const dsc_progress epoch = {
    .kind = DSC_EVENT_EPOCH, .step = 40, .epoch = 3, .epochs = 10, .loss = 1.25, .images_per_s = 500};
static const dsc_progress eval = {.kind = DSC_EVENT_EVAL,
                                  .step = 40,
                                  .epoch = 3,
                                  .epochs = 10,
                                  .loss = 1.5,
                                  .top1 = 0.625,
                                  .top5 = 0.96875};
static const dsc_progress checkpoint = {.kind = DSC_EVENT_CHECKPOINT,
                                        .text = "out/checkpoint-40.safetensors"};
static const dsc_progress note = {.kind = DSC_EVENT_NOTE, .text = "something happened"};
static const dsc_progress step = {.kind = DSC_EVENT_STEP,
                                  .step = 41,
                                  .epoch = 4,
                                  .epochs = 10,
                                  .step_of_epoch = 1,
                                  .epoch_steps = 10,
                                  .loss = 1.125,
                                  .images_per_s = 480,
                                  .eta_s = 65};

/* An epoch and the evaluation after it share a line, whatever comes between. */
static void test_epoch_with_evaluation(void **state) {
    (void)state;
    dsc_cli_progress progress;
    start(&progress, 0);
    dsc_cli_progress_event(&progress, &epoch);
    dsc_cli_progress_event(&progress, &checkpoint);
    dsc_cli_progress_event(&progress, &eval);
    stop(&progress, "epoch  4/10: loss 1.2500, val 1.5000, top-1 62.50 %, 500 images/s, 0.0s\n");
}

/* An epoch without an evaluation is printed when the next event comes, or at the end. */
static void test_epoch_alone(void **state) {
    (void)state;
    dsc_cli_progress progress;
    start(&progress, 0);
    dsc_cli_progress_event(&progress, &epoch);
    dsc_cli_progress_event(&progress, &note);
    dsc_cli_progress_event(&progress, &epoch);
    stop(&progress, "epoch  4/10: loss 1.2500, 500 images/s, 0.0s\nsomething happened\n"
                    "epoch  4/10: loss 1.2500, 500 images/s, 0.0s\n");
}

static void test_evaluation_alone(void **state) {
    (void)state;
    dsc_cli_progress progress;
    start(&progress, 1);
    dsc_cli_progress_event(&progress, &eval);
    dsc_cli_progress_event(&progress, &checkpoint);
    stop(&progress,
         "validation at step 40: loss 1.5000, top-1 62.50 %, top-5 96.88 %\nout/checkpoint-40.safetensors\n");
}

/* For models of pixels the share of wrong pixels is printed, also in a short line. */
static void test_pixels(void **state) {
    (void)state;
    dsc_cli_progress progress;
    dsc_progress pixels = eval;
    pixels.positions = 1024;
    start(&progress, 0);
    dsc_cli_progress_event(&progress, &pixels);
    stop(&progress, "validation at step 40: loss 1.5000, pixel error 37.50 %\n");
    start(&progress, 0);
    dsc_cli_progress_event(&progress, &epoch);
    dsc_cli_progress_event(&progress, &pixels);
    stop(&progress, "epoch  4/10: loss 1.2500, val 1.5000, pixel error 37.50 %, 500 images/s, 0.0s\n");
}

/* A line about steps comes when its time has come, or never. */
static void test_steps(void **state) {
    (void)state;
    dsc_cli_progress progress;
    start(&progress, 0);
    for (int i = 0; i < 1000; i++)
        dsc_cli_progress_event(&progress, &step);
    progress.last -= 11;
    for (int i = 0; i < 1000; i++)
        dsc_cli_progress_event(&progress, &step);
    stop(&progress, "epoch 5/10, step 1/10: loss 1.1250, 480 images/s, 1m05s left\n");
}

static void test_no_steps(void **state) {
    (void)state;
    dsc_cli_progress progress;
    start(&progress, 0);
    progress.every = 0;
    progress.last -= 1000;
    for (int i = 0; i < 10; i++)
        dsc_cli_progress_event(&progress, &step);
    stop(&progress, "");
}

/* Numbers of a long run on many GPUs, and a loss that explodes, leave a line of 80 columns. */
static void test_width(void **state) {
    (void)state;
    dsc_cli_progress progress;
    dsc_progress large = step, long_epoch = epoch, long_eval = eval;
    large.epoch = long_epoch.epoch = long_eval.epoch = 998;
    large.epochs = long_epoch.epochs = long_eval.epochs = 1000;
    large.step_of_epoch = large.epoch_steps = 99999;
    large.images_per_s = long_epoch.images_per_s = 123456;
    large.eta_s = 1e6;
    large.loss = long_epoch.loss = 1e30;
    long_eval.loss = 2e30;
    long_eval.top1 = 1;
    start(&progress, 0);
    progress.last -= 11;
    dsc_cli_progress_event(&progress, &large);
    dsc_cli_progress_event(&progress, &long_epoch);
    dsc_cli_progress_event(&progress, &long_eval);
    fflush(progress.lines);
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
        assert_true(strcspn(line, "\n") <= 80);
    stop(&progress, "epoch 999/1000, step 99999/99999: loss 1.00e+30, 123456 images/s, 277h47m left\n"
                    "epoch 999/1000: loss 1.00e+30, val 2.00e+30, top-1 100.00 %, 0.0s\n");
}

/* The utilisation is the last part of the line, if it fits. */
static void test_utilisation(void **state) {
    (void)state;
    dsc_cli_progress progress;
    dsc_progress known = step, known_epoch = epoch;
    known.mfu = known_epoch.mfu = 0.4321;
    start(&progress, 0);
    progress.last -= 11;
    dsc_cli_progress_event(&progress, &known);
    known.epoch_steps = known.step_of_epoch = 123456;
    progress.last -= 11;
    dsc_cli_progress_event(&progress, &known);
    dsc_cli_progress_event(&progress, &known_epoch);
    dsc_cli_progress_event(&progress, &note);
    dsc_cli_progress_event(&progress, &known_epoch);
    dsc_cli_progress_event(&progress, &eval);
    stop(&progress, "epoch 5/10, step 1/10: loss 1.1250, 480 images/s, 1m05s left, mfu 43.2 %\n"
                    "epoch 5/10, step 123456/123456: loss 1.1250, 480 images/s, 1m05s left\n"
                    "epoch  4/10: loss 1.2500, 500 images/s, 0.0s, mfu 43.2 %\n"
                    "something happened\n"
                    "epoch  4/10: loss 1.2500, val 1.5000, top-1 62.50 %, 500 images/s, 0.0s\n");
}

/* The description of a run: labels in a column, wrapped after commas. */
static void test_description(void **state) {
    (void)state;
    dsc_cli_progress progress;
    dsc_progress line = {.kind = DSC_EVENT_START,
                         .text = "K-FAC: eigen, update-freq 10, cov-update-freq 1, damping 0.003, "
                                 "stat-decay 0.95, kl-clip 0.001, strategy comm-opt"};
    start(&progress, 0);
    dsc_cli_progress_event(&progress, &line);
    line.text = "no label";
    dsc_cli_progress_event(&progress, &line);
    line.text = "output: a directory with blanks, and commas";
    progress.colour = 1;
    dsc_cli_progress_event(&progress, &line);
    stop(&progress, "K-FAC      eigen, update-freq 10, cov-update-freq 1, damping 0.003,\n"
                    "           stat-decay 0.95, kl-clip 0.001, strategy comm-opt\n"
                    "no label\n"
                    "\033[1moutput\033[0m     a directory with blanks, and commas\n");
}

/* The bar is drawn at most ten times a second and taken away before a line. */
static void test_bar(void **state) {
    (void)state;
    dsc_cli_progress progress;
    start(&progress, 0);
    progress.bar = tmpfile();
    progress.utf8 = 0;
    progress.last -= 1;
    for (int i = 0; i < 10; i++)
        dsc_cli_progress_event(&progress, &step);
    dsc_cli_progress_event(&progress, &note);
    char drawn[512] = "";
    rewind(progress.bar);
    size_t length = fread(drawn, 1, sizeof drawn - 1, progress.bar);
    fclose(progress.bar);
    assert_true(length > 0);
    assert_string_equal(
        drawn, "\repoch 5/10 [##------------------]  10%  loss 1.1250  480 images/s  1m05s left\033[K"
               "\r\033[K");
    stop(&progress, "something happened\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_epoch_with_evaluation),
        cmocka_unit_test(test_epoch_alone),
        cmocka_unit_test(test_evaluation_alone),
        cmocka_unit_test(test_pixels),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_no_steps),
        cmocka_unit_test(test_utilisation),
        cmocka_unit_test(test_width),
        cmocka_unit_test(test_description),
        cmocka_unit_test(test_bar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
