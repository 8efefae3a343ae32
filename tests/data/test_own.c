/* Data sets that a program makes itself: from memory, from a callback, and registered under a name; with loaders of
 * several threads. Uses the public headers only, except to count allocations. */
#include "chosen.h"

#include "base/memory.h"
#include "descent/data.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { COUNT = 30, H = 5, W = 4, C = 2, SAMPLE = H * W * C, CLASSES = 3, BATCH = 6 };

static dsc_device *device;
static dsc_queue *queue;
static uint8_t bytes[COUNT * SAMPLE];
static float floats[COUNT * SAMPLE];
static int32_t labels[COUNT];

static int setup(void **state) {
    (void)state;
    device = chosen_open(chosen_or("ref"), 0);
    assert_ok(dsc_queue_create(device, &queue));
    for (int i = 0; i < COUNT * SAMPLE; i++) {
        bytes[i] = (uint8_t)(i * 37 + i / 11);
        floats[i] = (float)i / 8 - 3;
    }
    for (int i = 0; i < COUNT; i++)
        labels[i] = i % CLASSES;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    assert_int_equal(dsc_device_bytes(device), 0);
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
    return 0;
}

static dsc_memory_data memory_of(dsc_dtype dtype) {
    dsc_memory_data d;
    dsc_memory_data_init(&d);
    d.count = COUNT;
    d.h = H;
    d.w = W;
    d.c = C;
    d.classes = CLASSES;
    d.images = dtype == DSC_U8 ? (const void *)bytes : floats;
    d.dtype = dtype;
    d.labels = labels;
    return d;
}

static void close_set(dsc_dataset **set) {
    dsc_dataset_close(set);
    assert_null(*set);
}

/* ---- memory ---- */

static void test_floats(void **state) {
    (void)state;
    for (int copy = 0; copy < 2; copy++) {
        dsc_memory_data d = memory_of(DSC_F32);
        dsc_dataset *set = NULL;
        float x[SAMPLE];
        int32_t label;
        d.copy = copy;
        d.name = copy ? NULL : "waves";
        assert_ok(dsc_dataset_from_memory(&d, &set));
        dsc_dataset_info info = dsc_dataset_get_info(set);
        assert_string_equal(info.name, copy ? "memory" : "waves");
        assert_int_equal(info.count, COUNT);
        assert_int_equal(info.h, H);
        assert_int_equal(info.w, W);
        assert_int_equal(info.c, C);
        assert_int_equal(info.classes, CLASSES);
        float before = floats[7 * SAMPLE];
        floats[7 * SAMPLE] = 99; /* seen where the memory is borrowed, not where it was copied */
        assert_ok(dsc_dataset_sample(set, 7, 1, 3, x, &label));
        assert_true(x[0] == (copy ? before : 99));
        floats[7 * SAMPLE] = before;
        assert_memory_equal(x + 1, floats + 7 * SAMPLE + 1, (SAMPLE - 1) * sizeof *x);
        assert_int_equal(label, 7 % CLASSES);
        assert_fails(DSC_E_INVALID, "sample 30 of 30", dsc_dataset_sample(set, COUNT, 0, 0, x, &label));
        close_set(&set);
    }
}

static void test_bytes(void **state) {
    (void)state;
    const double mean[C] = {0.25, 0.5}, std[C] = {0.5, 0.125};
    dsc_memory_data d = memory_of(DSC_U8);
    dsc_dataset *plain = NULL, *normal = NULL;
    float x[SAMPLE], y[SAMPLE];
    int32_t label;
    assert_ok(dsc_dataset_from_memory(&d, &plain));
    d.mean = mean;
    d.std = std;
    d.copy = 1;
    assert_ok(dsc_dataset_from_memory(&d, &normal));
    for (int i = 0; i < COUNT; i++) {
        assert_ok(dsc_dataset_sample(plain, i, 1, i, x, &label)); /* nothing to augment with */
        assert_int_equal(label, i % CLASSES);
        assert_ok(dsc_dataset_sample(normal, i, 0, 0, y, &label));
        for (int k = 0; k < SAMPLE; k++) {
            double value = bytes[i * SAMPLE + k] / 255.0;
            assert_true(x[k] == (float)value);
            assert_true(y[k] == (float)((value - mean[k % C]) / std[k % C]));
        }
    }
    close_set(&plain);
    close_set(&normal);
}

/* 1 when x is the image `index`, moved by (dy, dx) and mirrored if `flip`. */
static int is_moved(const float *x, int index, int dy, int dx, int flip) {
    for (int i = 0; i < H; i++)
        for (int j = 0; j < W; j++)
            for (int c = 0; c < C; c++) {
                int y = i + dy, z = (flip ? W - 1 - j : j) + dx;
                int inside = y >= 0 && y < H && z >= 0 && z < W;
                uint8_t byte = inside ? bytes[index * SAMPLE + (y * W + z) * C + c] : 0;
                if (x[(i * W + j) * C + c] != (float)(byte / 255.0))
                    return 0;
            }
    return 1;
}

/* Every augmented sample is a crop within the border; with flip 0 none is mirrored, with 1 some are. */
static void test_augmentation(void **state) {
    (void)state;
    for (int flip = 0; flip < 2; flip++)
        for (int pad = 0; pad < 3; pad += 2) {
            dsc_memory_data d = memory_of(DSC_U8);
            dsc_dataset *set = NULL;
            int mirrored = 0, moved = 0;
            d.flip = flip;
            d.pad = pad;
            assert_ok(dsc_dataset_from_memory(&d, &set));
            for (int i = 0; i < COUNT; i++) {
                float x[SAMPLE];
                int32_t label;
                int found = 0;
                assert_ok(dsc_dataset_sample(set, i, 1, 5, x, &label));
                for (int dy = -pad; dy <= pad && !found; dy++)
                    for (int dx = -pad; dx <= pad && !found; dx++)
                        for (int f = 0; f <= flip && !found; f++) {
                            found = is_moved(x, i, dy, dx, f);
                            mirrored += found && f;
                            moved += found && (dy || dx);
                        }
                assert_true(found);
                assert_ok(dsc_dataset_sample(set, i, 0, 5, x, &label));
                assert_true(is_moved(x, i, 0, 0, 0));
            }
            assert_true(flip ? mirrored > COUNT / 5 && mirrored < COUNT * 4 / 5 : mirrored == 0);
            assert_true(pad ? moved > COUNT / 2 : moved == 0);
            close_set(&set);
        }
}

static void test_bad_memory(void **state) {
    (void)state;
    dsc_dataset *set = NULL;
    const double zero[C] = {1, 0};
    assert_fails(DSC_E_INVALID, "dsc_memory_data_init", dsc_dataset_from_memory(NULL, &set));
    const struct {
        const char *message;
        size_t member; /* an int64_t of the struct, set to `value` */
        int64_t value;
    } cases[] = {
        {"0 samples of 5x4x2 in 3 classes", offsetof(dsc_memory_data, count), 0},
        {"30 samples of -1x4x2", offsetof(dsc_memory_data, h), -1},
        {"must be at least 1", offsetof(dsc_memory_data, classes), 0},
        {"at most 2147483647 numbers", offsetof(dsc_memory_data, w), INT64_MAX / 4},
        {"bytes in 5 channels, at most 4 work", offsetof(dsc_memory_data, c), 5},
        {"sample 2 has label 2, but with 2 classes they are 0 to 1", offsetof(dsc_memory_data, classes), 2},
        {"a border of 5 pixels around 5x4", offsetof(dsc_memory_data, pad), 5},
        {"a border of -1", offsetof(dsc_memory_data, pad), -1},
        {"bytes, this library knows", offsetof(dsc_memory_data, size), 4096},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dsc_memory_data d = memory_of(DSC_U8);
        memcpy((char *)&d + cases[i].member, &cases[i].value, sizeof(int64_t));
        assert_fails(DSC_E_INVALID, cases[i].message, dsc_dataset_from_memory(&d, &set));
    }
    dsc_memory_data d = memory_of(DSC_U8);
    d.std = zero;
    assert_fails(DSC_E_INVALID, "std of channel 1 is 0", dsc_dataset_from_memory(&d, &set));
    d = memory_of(DSC_F32);
    d.flip = 1;
    assert_fails(DSC_E_INVALID, "floats are taken as they are", dsc_dataset_from_memory(&d, &set));
    d = memory_of(DSC_I32);
    assert_fails(DSC_E_INVALID, "images of type", dsc_dataset_from_memory(&d, &set));
    d = memory_of(DSC_F32);
    d.labels = NULL;
    assert_fails(DSC_E_INVALID, "`labels` is NULL", dsc_dataset_from_memory(&d, &set));
    d.images = NULL;
    assert_fails(DSC_E_INVALID, "`images` is NULL", dsc_dataset_from_memory(&d, &set));
    assert_null(set);
    assert_string_equal(dsc_dataset_get_info(NULL).name, "");
    assert_fails(DSC_E_INVALID, "no data set", dsc_dataset_sample(NULL, 0, 0, 0, floats, labels));
    dsc_dataset_close(&set);
    dsc_dataset_close(NULL);
}

/* ---- callback ---- */

typedef struct source {
    atomic_int calls, destroyed;
    int64_t silent, bad,
        loud; /* samples that fail without a message, have a bad label, fail with a message */
} source;

static void source_reset(source *s) {
    atomic_init(&s->calls, 0);
    atomic_init(&s->destroyed, 0);
    s->silent = s->bad = s->loud = -1;
}

static dsc_status make_sample(void *context, int64_t index, int augment, int64_t epoch, float *x,
                              int32_t *label) {
    source *s = context;
    atomic_fetch_add(&s->calls, 1);
    if (index == s->silent)
        return DSC_E_IO;
    if (index == s->loud)
        return dsc_error_set(DSC_E_NOT_FOUND, "well %d is dry", (int)index);
    for (int i = 0; i < SAMPLE; i++)
        x[i] = (float)(index * 100 + i) + (augment ? (float)epoch / 16 : 0);
    *label = index == s->bad ? CLASSES : (int32_t)(index % CLASSES);
    return DSC_OK;
}

static void end_source(void *context) {
    source *s = context;
    atomic_fetch_add(&s->destroyed, 1);
}

static dsc_dataset *callback_set(source *s) {
    dsc_callback_data d;
    dsc_dataset *set = NULL;
    dsc_callback_data_init(&d);
    d.name = "wells";
    d.count = COUNT;
    d.h = H;
    d.w = W;
    d.c = C;
    d.classes = CLASSES;
    d.context = s;
    d.sample = make_sample;
    d.destroy = end_source;
    assert_ok(dsc_dataset_from_callback(&d, &set));
    return set;
}

static void test_callback(void **state) {
    (void)state;
    source s;
    float x[SAMPLE];
    int32_t label;
    source_reset(&s);
    dsc_dataset *set = callback_set(&s);
    assert_string_equal(dsc_dataset_get_info(set).name, "wells");
    assert_ok(dsc_dataset_sample(set, 4, 1, 2, x, &label));
    assert_true(x[1] == 401.125f);
    assert_int_equal(label, 1);
    s.silent = 5;
    s.loud = 6;
    s.bad = 7;
    assert_fails(DSC_E_IO,
                 "data set 'wells': sample 5: the caller's function `sample` returned DSC_E_IO (input or "
                 "output failed)",
                 dsc_dataset_sample(set, 5, 0, 0, x, &label));
    assert_fails(DSC_E_NOT_FOUND, "data set 'wells': sample 6: well 6 is dry",
                 dsc_dataset_sample(set, 6, 0, 0, x, &label));
    assert_fails(DSC_E_INVALID, "data set 'wells': sample 7 has label 3, but with 3 classes they are 0 to 2",
                 dsc_dataset_sample(set, 7, 0, 0, x, &label));
    assert_int_equal(atomic_load(&s.destroyed), 0);
    close_set(&set);
    assert_int_equal(atomic_load(&s.destroyed), 1);

    dsc_callback_data d;
    assert_fails(DSC_E_INVALID, "dsc_callback_data_init", dsc_dataset_from_callback(NULL, &set));
    dsc_callback_data_init(&d);
    assert_fails(DSC_E_INVALID, "data set 'callback': 0 samples", dsc_dataset_from_callback(&d, &set));
    d.count = d.h = d.w = d.c = d.classes = 1;
    d.context = &s;
    d.destroy = end_source;
    assert_fails(DSC_E_INVALID, "has no function `sample`", dsc_dataset_from_callback(&d, &set));
    d.sample = make_sample;
    dsc_memory_fail_at(2);
    assert_int_equal(dsc_dataset_from_callback(&d, &set), DSC_E_MEMORY);
    dsc_memory_fail_at(0);
    assert_int_equal(atomic_load(&s.destroyed), 1); /* a context that was not taken over */
    assert_null(set);
}

/* ---- loaders ---- */

/* An epoch with several threads holds each sample once, with the numbers that the data set gives for it. */
static void check_epoch(const dsc_dataset *set, int threads) {
    dsc_loader_options o;
    dsc_loader *loader = NULL;
    int seen[COUNT] = {0};
    dsc_loader_options_init(&o);
    o.batch = BATCH;
    o.threads = threads;
    assert_ok(dsc_loader_create(set, device, &o, &loader));
    assert_ok(dsc_loader_seek(loader, 1, 0));
    for (int b = 0; b < COUNT / BATCH; b++) {
        dsc_batch batch;
        float x[BATCH * SAMPLE], wanted[SAMPLE];
        int32_t label, got[BATCH];
        assert_ok(dsc_loader_next(loader, queue, &batch));
        assert_int_equal(batch.epoch, 1);
        assert_ok(dsc_tensor_download(queue, &batch.x, sizeof x, x));
        assert_ok(dsc_tensor_download(queue, &batch.labels, sizeof got, got));
        assert_ok(dsc_queue_sync(queue));
        for (int i = 0; i < BATCH; i++) {
            int match = -1;
            for (int s = 0; s < COUNT && match < 0; s++) {
                double worst = 0;
                assert_ok(dsc_dataset_sample(set, s, 1, 1, wanted, &label));
                for (int k = 0; k < SAMPLE; k++)
                    worst = fmax(worst, fabs((double)x[i * SAMPLE + k] - (double)wanted[k]));
                if (worst <= (dsc_device_is_host(device) ? 0 : 4 * FLT_EPSILON))
                    match = s;
            }
            assert_true(match >= 0);
            assert_int_equal(got[i], match % CLASSES);
            seen[match]++;
        }
    }
    for (int s = 0; s < COUNT; s++)
        assert_int_equal(seen[s], 1);
    dsc_loader_destroy(&loader);
}

static void test_loaders(void **state) {
    (void)state;
    for (int threads = 1; threads <= 4; threads += 3) {
        dsc_dataset *set = NULL;
        dsc_memory_data d = memory_of(DSC_U8);
        d.pad = 1;
        d.flip = 1;
        assert_ok(dsc_dataset_from_memory(&d, &set));
        check_epoch(set, threads);
        close_set(&set);
        d = memory_of(DSC_F32);
        assert_ok(dsc_dataset_from_memory(&d, &set));
        check_epoch(set, threads);
        close_set(&set);
        source s;
        source_reset(&s);
        set = callback_set(&s);
        check_epoch(set, threads);
        close_set(&set);
        assert_true(atomic_load(&s.calls) >= COUNT);
        assert_int_equal(atomic_load(&s.destroyed), 1);
    }
}

/* A failure in a loader's thread arrives with status and message at dsc_loader_next. */
static void test_failure_in_thread(void **state) {
    (void)state;
    source s;
    source_reset(&s);
    s.loud = 3;
    dsc_dataset *set = callback_set(&s);
    dsc_loader_options o;
    dsc_loader *loader = NULL;
    dsc_batch batch;
    dsc_loader_options_init(&o);
    o.batch = BATCH;
    o.threads = 3;
    o.shuffle = 0;
    assert_ok(dsc_loader_create(set, device, &o, &loader));
    assert_fails(DSC_E_NOT_FOUND, "data set 'wells': sample 3: well 3 is dry",
                 dsc_loader_next(loader, queue, &batch));
    dsc_loader_destroy(&loader);
    close_set(&set);
}

/* ---- registered ---- */

static dsc_status open_waves(void *context, const char *argument, dsc_split split,
                             const dsc_data_options *options, dsc_dataset **out) {
    int *opened = context;
    if (strcmp(argument, "nothing") == 0)
        return DSC_OK;
    if (strcmp(argument, "silent") == 0)
        return DSC_E_IO;
    if (strcmp(argument, "loud") == 0)
        return dsc_error_set(DSC_E_FORMAT, "waves: '%s' is no number", argument);
    dsc_memory_data d = memory_of(DSC_F32);
    d.name = "waves";
    d.count = split == DSC_SPLIT_TRAIN ? atoi(argument) : 1;
    d.seed = options->seed;
    (*opened)++;
    return dsc_dataset_from_memory(&d, out);
}

static void test_registered(void **state) {
    (void)state;
    static int opened;
    dsc_dataset *set = NULL;
    dsc_dataset_kind kind;
    char name[] = "waves";
    dsc_dataset_kind_init(&kind);
    assert_fails(DSC_E_INVALID, "dsc_dataset_kind_init", dsc_dataset_register(NULL));
    kind.name = name;
    assert_fails(DSC_E_INVALID, "'waves' cannot be registered: it has no function `open`",
                 dsc_dataset_register(&kind));
    kind.open = open_waves;
    kind.context = &opened;
    kind.needs_argument = 1;
    kind.usage = "waves:COUNT";
    assert_fails(DSC_E_INVALID, "unknown kind 'waves'",
                 dsc_dataset_open("waves:3", DSC_SPLIT_TRAIN, NULL, &set));
    assert_ok(dsc_dataset_register(&kind));
    memset(name, 'x', 5); /* the name was copied */
    assert_ok(dsc_dataset_open("waves:12", DSC_SPLIT_TRAIN, NULL, &set));
    assert_int_equal(dsc_dataset_get_info(set).count, 12);
    close_set(&set);
    assert_ok(dsc_dataset_open("waves:12", DSC_SPLIT_VAL, NULL, &set));
    assert_int_equal(dsc_dataset_get_info(set).count, 1);
    close_set(&set);
    assert_int_equal(opened, 2);
    assert_fails(DSC_E_INVALID, "data set 'waves': needs an argument, as in 'waves:COUNT'",
                 dsc_dataset_open("waves", DSC_SPLIT_TRAIN, NULL, &set));
    assert_fails(DSC_E_IO, "data set 'waves:silent': the caller's function `open` returned DSC_E_IO",
                 dsc_dataset_open("waves:silent", DSC_SPLIT_TRAIN, NULL, &set));
    assert_fails(DSC_E_FORMAT, "waves: 'loud' is no number",
                 dsc_dataset_open("waves:loud", DSC_SPLIT_TRAIN, NULL, &set));
    assert_fails(DSC_E_INTERNAL, "gave no data set",
                 dsc_dataset_open("waves:nothing", DSC_SPLIT_TRAIN, NULL, &set));
    assert_fails(DSC_E_INVALID,
                 "synthetic[:N], cifar10:DIR, cifar100:DIR, mnist:DIR[/NAME], imagefolder:DIR, "
                 "webdataset:DIR|PATTERN, tokens:DIR|FILE, text:[bytes:|chars:]PATH, masks:DIR, waves:COUNT",
                 dsc_dataset_open("wave:12", DSC_SPLIT_TRAIN, NULL, &set));
    assert_null(set);

    static const char *const taken[] = {"waves", "cifar10", "synthetic"};
    for (int i = 0; i < 3; i++) {
        kind.name = taken[i];
        assert_fails(DSC_E_INVALID, "there is one of this name already", dsc_dataset_register(&kind));
    }
    static const char *const bad[] = {NULL, "", "a:b", "a b", "a/b"};
    for (int i = 0; i < 5; i++) {
        kind.name = bad[i];
        assert_fails(DSC_E_INVALID, "made of letters, digits, '-', '_' and '.'", dsc_dataset_register(&kind));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_floats),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_augmentation),
        cmocka_unit_test(test_bad_memory),
        cmocka_unit_test(test_callback),
        cmocka_unit_test(test_loaders),
        cmocka_unit_test(test_failure_in_thread),
        cmocka_unit_test(test_registered),
    };
    return cmocka_run_group_tests_name("data-own", tests, setup, teardown);
}
