/* The values that warnings about a run compare with: the loss and the accuracy of guessing, and the deviation of the
 * latter. */
#include "test.h"

#include "descent/log.h"
#include "train/runs.h"
#include "train/trainer_internal.h"
#include "train/warn.h"

#include <string.h>

enum { SAMPLES = 16, FEATURES = 2 };

static dsc_comm *comm;
static dsc_device *device;
static char noted[2048]; /* the last warning */

static void note(void *context, dsc_log_level level, const char *message) {
    (void)context;
    if (level == DSC_LOG_WARNING)
        snprintf(noted, sizeof noted, "%s", message);
}

/* A trainer of points in `classes` classes, by a model with as many outputs, or with one for two classes. */
static dsc_trainer *make(int classes, dsc_model **m, dsc_dataset **data) {
    static float points[SAMPLES * FEATURES];
    static int32_t labels[SAMPLES];
    dsc_memory_data memory;
    dsc_train_options o;
    dsc_trainer *t = NULL;
    dsc_value x;
    for (int i = 0; i < SAMPLES; i++)
        labels[i] = i % classes;
    dsc_memory_data_init(&memory);
    memory.count = SAMPLES;
    memory.h = memory.w = 1;
    memory.c = FEATURES;
    memory.classes = classes;
    memory.images = points;
    memory.labels = labels;
    assert_ok(dsc_dataset_from_memory(&memory, data));
    assert_ok(dsc_model_create(device, NULL, m));
    assert_ok(dsc_model_input(*m, 1, 1, FEATURES, &x));
    assert_ok(dsc_model_flatten(*m, x, &x));
    assert_ok(dsc_model_linear(*m, "fc", x, classes == 2 ? 1 : classes, 1, &x));
    assert_ok(dsc_model_seal(*m, x));
    runs_options(&o, NULL);
    o.batch_size = 8;
    o.loss = classes == 2 ? DSC_LOSS_BCE : DSC_LOSS_CROSS_ENTROPY;
    assert_ok(dsc_trainer_create(comm, device, *m, *data, NULL, &o, &t));
    noted[0] = '\0';
    dsc_warn_of_start(t, "");
    dsc_log_set_handler(note, NULL);
    return t;
}

static void end(dsc_trainer *t, dsc_model *m, dsc_dataset *data) {
    dsc_log_set_handler(NULL, NULL);
    dsc_trainer_destroy(&t);
    dsc_model_destroy(&m);
    dsc_dataset_close(&data);
}

/* A model with one output guesses among two classes, with a loss of ln 2. */
static void test_loss(void **state) {
    (void)state;
    dsc_model *m;
    dsc_dataset *data;
    dsc_trainer *t = make(2, &m, &data);
    for (int i = 0; i < 30; i++) {
        t->report.loss = 0.6;
        dsc_warn_of_loss(t);
    }
    assert_string_equal(noted, "");
    for (int i = 0; i < 100; i++) {
        t->report.loss = 2.5; /* three times ln 2 is 2.08 */
        dsc_warn_of_loss(t);
    }
    assert_non_null(strstr(noted, "the loss has grown to 2.09 at step"));
    assert_non_null(strstr(noted, "from 0.6; guessing has 0.693"));
    end(t, m, data);
}

/* 1 when there is a warning about an accuracy of 20 % among ten classes. */
static int warned(int64_t images, int64_t positions, int64_t labels) {
    dsc_model *m;
    dsc_dataset *data;
    dsc_trainer *t = make(10, &m, &data);
    const dsc_eval_result result = {.images = images, .positions = positions, .labels = labels};
    t->state.best_top1 = 0.2;
    for (int i = 0; i < 3; i++)
        dsc_warn_of_accuracy(t, &result);
    int found = strstr(noted, "the accuracy, 20.00 %, is still that of guessing (10.00 %)") != NULL;
    assert_true(found == (noted[0] != '\0'));
    end(t, m, data);
    return found;
}

/* Labels count, neither images nor positions: the deviation of 50 guesses is 0.042, that of 1000 is 0.0095. */
static void test_accuracy(void **state) {
    (void)state;
    assert_true(warned(50, 1, 50));
    assert_false(warned(1000, 1, 1000));
    assert_true(warned(10, 100, 50)); /* masked tokens: few of the positions have a label */
    assert_false(warned(10, 100, 1000));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_loss), cmocka_unit_test(test_accuracy)};
    runs_open(&comm, &device);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    dsc_device_destroy(&device);
    dsc_comm_destroy(&comm);
    return failed;
}
