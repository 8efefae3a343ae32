/* Data sets with several labels per sample: in memory, from a callback, in loaders of several ranks and threads, in
 * subsets, and what they refuse. */
#include "chosen.h"

#include "base/error.h"
#include "base/memory.h"
#include "data/dataset.h"
#include "data/sampler.h"

enum {
    COUNT = 23,
    H = 3,
    W = 2,
    C = 2,
    SAMPLE = H * W * C,
    LABELS = H * W,
    CLASSES = 5,
    BATCH = 4,
    SEED = 7
};

static dsc_device *device;
static dsc_queue *queue;
static uint8_t bytes[COUNT * SAMPLE];
static float floats[COUNT * SAMPLE];
static int32_t labels[COUNT * LABELS];

static int setup(void **state) {
    (void)state;
    device = chosen_open(chosen_or("ref"), 0);
    assert_ok(dsc_queue_create(device, &queue));
    for (int i = 0; i < COUNT * SAMPLE; i++) {
        bytes[i] = (uint8_t)(i * 37 + i / 11);
        floats[i] = (float)i;
    }
    for (int i = 0; i < COUNT * LABELS; i++)
        labels[i] = i * 3 % (CLASSES + 1) - 1; /* some of them -1 */
    return 0;
}

static int teardown(void **state) {
    (void)state;
    assert_int_equal(dsc_device_bytes(device), 0);
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
    return 0;
}

/* ---- sets ---- */

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
    d.label_count = LABELS;
    return d;
}

static dsc_status make_sample(void *context, int64_t index, int augment, int64_t epoch, float *x,
                              int32_t *label) {
    (void)augment;
    (void)epoch;
    memcpy(x, floats + index * SAMPLE, SAMPLE * sizeof *x);
    memcpy(label, labels + index * LABELS, LABELS * sizeof *label);
    if (context && index == *(int *)context)
        label[LABELS - 1] = CLASSES;
    return DSC_OK;
}

static dsc_callback_data callback_of(int *bad) {
    dsc_callback_data d;
    dsc_callback_data_init(&d);
    d.count = COUNT;
    d.h = H;
    d.w = W;
    d.c = C;
    d.classes = CLASSES;
    d.label_count = LABELS;
    d.context = bad;
    d.sample = make_sample;
    return d;
}

/* Samples that are divisible by 5 cannot be read. */
static dsc_status sample_of_files(const dsc_dataset *set, int64_t index, int augment, int64_t epoch,
                                  dsc_scratch *scratch, float *x, int32_t *label) {
    (void)set;
    (void)scratch;
    if (index % 5 == 0)
        return DSC_FAIL(DSC_E_FORMAT, "file %lld is broken", (long long)index);
    return make_sample(NULL, index, augment, epoch, x, label);
}

static void close_nothing(dsc_dataset *set) {
    (void)set;
}

static dsc_dataset *broken_set(void) {
    static const dsc_dataset_type type = {
        .close = close_nothing, .sample = sample_of_files, .reads_files = 1};
    dsc_data_options options;
    dsc_dataset *set = NULL;
    dsc_data_options_init(&options);
    assert_ok(dsc_dataset_create(&type, "broken", DSC_SPLIT_TRAIN, &options, &set));
    assert_int_equal(dsc_dataset_label_count(set), 1); /* until it says otherwise */
    set->info = (dsc_dataset_info){COUNT, H, W, C, CLASSES, set->info.name};
    set->label_count = LABELS;
    return set;
}

/* ---- samples ---- */

/* The labels of every sample, with a guard after their end. */
static void check_samples(const dsc_dataset *set) {
    assert_int_equal(dsc_dataset_label_count(set), LABELS);
    for (int i = 0; i < COUNT; i++) {
        float x[SAMPLE];
        int32_t got[LABELS + 1];
        got[LABELS] = 12345;
        assert_ok(dsc_dataset_sample(set, i, 1, 2, x, got));
        assert_memory_equal(got, labels + i * LABELS, LABELS * sizeof *got);
        assert_int_equal(got[LABELS], 12345);
    }
}

static void test_samples(void **state) {
    (void)state;
    dsc_dataset *set = NULL;
    for (int i = 0; i < 4; i++) {
        dsc_memory_data d = memory_of(i % 2 ? DSC_U8 : DSC_F32);
        d.copy = i / 2;
        assert_ok(dsc_dataset_from_memory(&d, &set));
        check_samples(set);
        dsc_dataset_close(&set);
    }
    dsc_callback_data c = callback_of(NULL);
    assert_ok(dsc_dataset_from_callback(&c, &set));
    check_samples(set);
    dsc_dataset_close(&set);
    c.label_count = 0;
    assert_ok(dsc_dataset_from_callback(&c, &set));
    assert_int_equal(dsc_dataset_label_count(set), 1);
    dsc_dataset_close(&set);
    assert_int_equal(dsc_dataset_label_count(NULL), 0);
}

static void test_refused(void **state) {
    (void)state;
    dsc_dataset *set = NULL;
    int32_t out[COUNT], one[LABELS];
    float x[SAMPLE];
    dsc_memory_data d = memory_of(DSC_F32);
    d.label_count = -1;
    assert_fails(DSC_E_INVALID, "-1 labels per sample: must be 1 to", dsc_dataset_from_memory(&d, &set));
    d.label_count = 1; /* with one label per sample each has a class */
    assert_fails(DSC_E_INVALID, "sample 0 has label -1, but with 5 classes they are 0 to 4",
                 dsc_dataset_from_memory(&d, &set));
    d = memory_of(DSC_F32);
    labels[COUNT * LABELS - 1] = -2;
    assert_fails(DSC_E_INVALID, "sample 22 has label -2, but with 5 classes they are -1 to 4",
                 dsc_dataset_from_memory(&d, &set));
    labels[COUNT * LABELS - 1] = 0;
    d = memory_of(DSC_U8);
    d.flip = 1;
    assert_fails(DSC_E_INVALID, "pad and flip move pixels, but not the 6 labels",
                 dsc_dataset_from_memory(&d, &set));
    int bad = 4;
    dsc_callback_data c = callback_of(&bad);
    assert_ok(dsc_dataset_from_callback(&c, &set));
    assert_ok(dsc_dataset_sample(set, 3, 0, 0, x, one));
    assert_fails(DSC_E_INVALID, "sample 4 has label 5", dsc_dataset_sample(set, 4, 0, 0, x, one));
    assert_fails(DSC_E_INVALID, "its samples have 6 labels each, so they belong to no class",
                 dsc_dataset_read_labels(set, out));
    for (int i = 0; i < 4; i++) {
        dsc_loader_options o;
        dsc_loader *loader = NULL;
        dsc_loader_options_init(&o);
        o.batch = BATCH;
        *(double *[]){&o.mixup, &o.cutmix, &o.random_erasing, &o.randaugment}[i] = 0.5;
        assert_fails(DSC_E_INVALID, "need one label per sample, and those of callback have 6",
                     dsc_loader_create(set, device, &o, &loader));
    }
    dsc_dataset_close(&set);
}

/* ---- loaders ---- */

static void check_batch(const dsc_loader_options *o, const dsc_batch *batch, int *seen) {
    uint32_t order[COUNT];
    float x[BATCH * SAMPLE];
    int32_t got[BATCH * LABELS];
    dsc_sampler_permute(SEED, batch->epoch, COUNT, order);
    assert_int_equal(batch->labels.ndim, 1);
    assert_int_equal(batch->labels.dim[0], BATCH * LABELS);
    assert_ok(dsc_tensor_download(queue, &batch->x, sizeof x, x));
    assert_ok(dsc_tensor_download(queue, &batch->labels, sizeof got, got));
    assert_ok(dsc_queue_sync(queue));
    for (int i = 0; i < BATCH; i++) {
        int64_t place = batch->position + o->rank * BATCH + i;
        int64_t sample = place < COUNT ? (int64_t)order[place] : -1;
        for (int k = 0; k < LABELS; k++)
            assert_int_equal(got[i * LABELS + k], sample < 0 ? -1 : labels[sample * LABELS + k]);
        if (sample >= 0)
            seen[sample]++;
    }
}

/* An epoch on one to three ranks: each sample once, with its labels; missing rows have none. */
static void check_epoch(const dsc_dataset *set, int ranks, int threads) {
    int seen[COUNT] = {0};
    for (int rank = 0; rank < ranks; rank++) {
        dsc_loader_options o;
        dsc_loader *loader = NULL;
        dsc_batch batch;
        dsc_loader_options_init(&o);
        o.batch = BATCH;
        o.rank = rank;
        o.ranks = ranks;
        o.threads = threads;
        o.seed = SEED;
        o.keep_last = 1;
        assert_ok(dsc_loader_create(set, device, &o, &loader));
        for (int64_t b = 0; b < dsc_loader_batches(loader); b++) {
            assert_ok(dsc_loader_next(loader, queue, &batch));
            check_batch(&o, &batch, seen);
        }
        dsc_loader_destroy(&loader);
    }
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(seen[i], 1);
}

static void test_loaders(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        dsc_dataset *set = NULL;
        dsc_memory_data d = memory_of(i ? DSC_U8 : DSC_F32);
        assert_ok(dsc_dataset_from_memory(&d, &set));
        for (int ranks = 1; ranks <= 3; ranks++)
            for (int threads = 1; threads <= 4; threads += 3)
                check_epoch(set, ranks, threads);
        dsc_dataset_close(&set);
    }
}

/* A sample that cannot be read has no labels when its row is kept, and else all labels of another sample. */
static void test_bad_rows(void **state) {
    (void)state;
    dsc_dataset *set = broken_set();
    for (int keep = 0; keep < 2; keep++) {
        dsc_loader_options o;
        dsc_loader *loader = NULL;
        dsc_batch batch;
        float x[BATCH * SAMPLE];
        int32_t got[BATCH * LABELS];
        dsc_loader_options_init(&o);
        o.batch = BATCH;
        o.shuffle = 0;
        o.skip_bad = 1;
        o.keep_last = keep;
        assert_ok(dsc_loader_create(set, device, &o, &loader));
        assert_ok(dsc_loader_next(loader, queue, &batch));
        assert_ok(dsc_tensor_download(queue, &batch.x, sizeof x, x));
        assert_ok(dsc_tensor_download(queue, &batch.labels, sizeof got, got));
        assert_ok(dsc_queue_sync(queue));
        int64_t other = (int64_t)x[0] / SAMPLE;
        assert_true(keep || other % 5 != 0);
        for (int k = 0; k < LABELS; k++)
            assert_int_equal(got[k], keep ? -1 : labels[other * LABELS + k]);
        assert_memory_equal(got + LABELS, labels + LABELS, (BATCH - 1) * LABELS * sizeof *got);
        assert_int_equal(dsc_loader_take_bad(loader, NULL, 0), 1);
        dsc_loader_destroy(&loader);
    }
    int64_t bad = 0;
    assert_ok(dsc_dataset_check(set, NULL, &bad));
    assert_int_equal(bad, 5);
    dsc_dataset_close(&set);
}

typedef struct report {
    int64_t done, bad;
} report;

static void note_report(void *context, int64_t done, int64_t bad) {
    *(report *)context = (report){done, bad};
}

/* The last report of a check is that of all samples, however fast the threads are. */
static void test_check_reports_the_end(void **state) {
    (void)state;
    dsc_dataset *set = broken_set();
    for (int i = 0; i < 200; i++) {
        report last = {0, 0};
        dsc_check_options o;
        int64_t bad = 0;
        dsc_check_options_init(&o);
        o.threads = 1 + i % 2;
        o.context = &last;
        o.progress = note_report;
        assert_ok(dsc_dataset_check(set, &o, &bad));
        assert_int_equal(last.done, COUNT);
        assert_int_equal(last.bad, bad);
    }
    dsc_dataset_close(&set);
}

/* ---- a part for validation ---- */

static dsc_status open_set(void *context, const char *argument, dsc_split split,
                           const dsc_data_options *options, dsc_dataset **out) {
    (void)context;
    (void)argument;
    (void)split;
    (void)options;
    dsc_memory_data d = memory_of(DSC_F32);
    return dsc_dataset_from_memory(&d, out);
}

static void test_subset(void **state) {
    (void)state;
    dsc_dataset_kind kind;
    dsc_data_options options;
    int seen[COUNT] = {0};
    dsc_dataset_kind_init(&kind);
    kind.name = "positions";
    kind.open = open_set;
    assert_ok(dsc_dataset_register(&kind));
    dsc_data_options_init(&options);
    options.val_split = 0.25;
    for (dsc_split split = DSC_SPLIT_TRAIN; split <= DSC_SPLIT_VAL; split++) {
        dsc_dataset *set = NULL;
        assert_ok(dsc_dataset_open("positions", split, &options, &set));
        assert_int_equal(dsc_dataset_label_count(set), LABELS);
        assert_int_equal(dsc_dataset_get_info(set).count, split == DSC_SPLIT_VAL ? 6 : COUNT - 6);
        for (int64_t i = 0; i < dsc_dataset_get_info(set).count; i++) {
            float x[SAMPLE];
            int32_t got[LABELS];
            assert_ok(dsc_dataset_sample(set, i, 0, 0, x, got));
            int whole = (int)x[0] / SAMPLE;
            assert_memory_equal(got, labels + whole * LABELS, sizeof got);
            seen[whole]++;
        }
        dsc_dataset_close(&set);
    }
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(seen[i], 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_samples),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_loaders),
        cmocka_unit_test(test_bad_rows),
        cmocka_unit_test(test_check_reports_the_end),
        cmocka_unit_test(test_subset),
    };
    return cmocka_run_group_tests_name("data-labels", tests, setup, teardown);
}
