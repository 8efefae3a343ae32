/* Training runs with a model, a data set and a layer that the program defines itself, all found by their registered
 * names: a dense layer that declares itself linear is trained by K-FAC exactly as the built-in one. */
#include "test.h"

#include "base/error.h"
#include "descent/data.h"
#include "model/own_layers.h"
#include "train/runs.h"
#include "train/scratch.h"

enum { COUNT = 64, SIDE = 6, CHANNELS = 2, CLASSES = 4, SAMPLE = SIDE * SIDE * CHANNELS };

static dsc_comm *comm;
static dsc_device *device;
static char directory[SCRATCH_SIZE];

/* Bright squares in one of four corners, over noise. */
static dsc_status open_corners(void *context, const char *argument, dsc_split split,
                               const dsc_data_options *options, dsc_dataset **out) {
    static uint8_t images[COUNT * SAMPLE];
    static int32_t labels[COUNT];
    static const double mean[CHANNELS] = {0.3, 0.3}, std[CHANNELS] = {0.25, 0.25};
    (void)context, (void)argument;
    uint32_t noise = 1;
    for (int i = 0; i < COUNT; i++) {
        labels[i] = i % CLASSES;
        for (int k = 0; k < SAMPLE; k++) {
            int y = k / CHANNELS / SIDE, x = k / CHANNELS % SIDE;
            int lit = (y >= SIDE / 2) == labels[i] / 2 && (x >= SIDE / 2) == labels[i] % 2;
            noise = noise * 1664525u + 1013904223u;
            images[i * SAMPLE + k] = (uint8_t)((noise >> 25) + (lit ? 100 : 0));
        }
    }
    dsc_memory_data d;
    dsc_memory_data_init(&d);
    d.name = "corners";
    d.count = split == DSC_SPLIT_TRAIN ? COUNT : COUNT / 4;
    d.h = d.w = SIDE;
    d.c = CHANNELS;
    d.classes = CLASSES;
    d.images = images;
    d.dtype = DSC_U8;
    d.labels = labels;
    d.copy = 1;
    d.mean = mean;
    d.std = std;
    d.pad = 1;
    d.seed = options->seed;
    return dsc_dataset_from_memory(&d, out);
}

/* context: whether the dense layers are the program's own. */
static dsc_status build(void *context, dsc_model *m, dsc_value x, int64_t classes, dsc_value *logits) {
    dsc_status (*dense)(dsc_model *, const char *, dsc_value, int64_t, int, dsc_value *) =
        *(int *)context ? own_dense : dsc_model_linear;
    dsc_conv2d_shape conv = square_conv(8, 3);
    conv.stride_h = conv.stride_w = 3; /* 2 x 2 is left */
    DSC_TRY(dsc_model_conv2d(m, "conv", x, &conv, 1, &x));
    DSC_TRY(dsc_model_relu(m, x, &x));
    DSC_TRY(dsc_model_max_pool(m, x, 2, 2, 0, &x));
    DSC_TRY(dsc_model_flatten(m, x, &x));
    DSC_TRY(dense(m, "fc1", x, 12, 1, &x));
    DSC_TRY(dsc_model_relu(m, x, &x));
    return dense(m, "fc2", x, classes, 0, logits);
}

static int setup(void **state) {
    (void)state;
    static int no = 0, yes = 1;
    runs_open(&comm, &device);
    scratch_make(directory);
    dsc_dataset_kind kind;
    dsc_dataset_kind_init(&kind);
    kind.name = "corners";
    kind.open = open_corners;
    assert_ok(dsc_dataset_register(&kind));
    dsc_zoo_entry entry;
    dsc_zoo_entry_init(&entry);
    entry.side = SIDE;
    entry.channels = CHANNELS;
    entry.classes = CLASSES;
    entry.build = build;
    entry.name = "plain";
    entry.context = &no;
    assert_ok(dsc_zoo_register(&entry));
    entry.name = "own";
    entry.context = &yes;
    assert_ok(dsc_zoo_register(&entry));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    scratch_remove(directory);
    dsc_device_destroy(&device);
    dsc_comm_destroy(&comm);
    return 0;
}

/* K-FAC of all layers, with checkpoints and evaluation; then a run that stops and resumes. */
static void test_kfac(void **state) {
    (void)state;
    static const char *const models[] = {"plain", "own"};
    char out[2][SCRATCH_SIZE];
    for (int i = 0; i < 2; i++) {
        dsc_train_options o;
        snprintf(out[i], SCRATCH_SIZE, "%s", scratch_path(directory, models[i]));
        runs_options(&o, out[i]);
        o.model = models[i];
        o.data = "corners";
        kfac_of(&o)->update_freq = 3;
        for (int part = 0; part < 2 - (i == 0); part++) { /* the own one in two parts */
            o.epochs = i == 1 && part == 0 ? 1 : 2;
            o.resume = part ? "auto" : NULL;
            assert_ok(dsc_train_run(comm, device, &o, NULL));
        }
    }
    assert_int_equal(runs_differences(out[0], out[1], 2 * COUNT / 16), 0);
    json_t *lines = runs_lines(out[1]);
    assert_true(runs_count(lines, "kfac") > 0);
    const json_t *run = runs_line(lines, "run", 0);
    assert_non_null(run);
    json_decref(lines);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kfac)};
    return cmocka_run_group_tests_name("train-own", tests, setup, teardown);
}
