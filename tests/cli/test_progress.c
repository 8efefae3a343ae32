/* What a training shows while it goes on, where there is no terminal. */
#include "test.h"

#include "cli/progress_bar.h"

#include <stdlib.h>

static char *text;
static size_t size;

static void start(dsc_cli_progress *progress, int verbose) {
    dsc_cli_progress_init(progress, verbose);
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
    stop(&progress, "epoch  4/10: loss 1.2500, validation loss 1.5000, top-1 62.50 %, top-5 96.88 %, 500 "
                    "images/s, 0.0s\n");
}

/* Without one the epoch is printed when the next event comes, or at the end. */
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

/* Steps are quiet for half a minute. */
static void test_steps(void **state) {
    (void)state;
    dsc_cli_progress progress;
    start(&progress, 0);
    for (int i = 0; i < 1000; i++)
        dsc_cli_progress_event(&progress, &step);
    progress.last -= 31;
    for (int i = 0; i < 1000; i++)
        dsc_cli_progress_event(&progress, &step);
    stop(&progress, "epoch 5/10, step 1/10: loss 1.1250, 480 images/s, 1m05s left\n");
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
        drawn, "\repoch 5/10 [##--------------------]  10%  loss 1.1250  480 images/s  1m05s left\033[K"
               "\r\033[K");
    stop(&progress, "something happened\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_epoch_with_evaluation),
        cmocka_unit_test(test_epoch_alone),
        cmocka_unit_test(test_evaluation_alone),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_bar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
