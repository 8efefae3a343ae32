/* The published files, where $DESCENT_DATA names a folder that holds cifar-10-batches-bin, fashion-mnist and
 * tiny-imagenet-10, isbi2012 and text; each is skipped where it is absent. */
#include "test.h"

#include "base/rng.h"
#include "data/dataset.h"

#include <math.h>
#include <stdlib.h>

static const char *root;

/* Opens both splits of kind:ROOT/name; skips the test where the folder is not there. */
static void open_both(const char *kind, const char *name, int64_t image_size, dsc_dataset *sets[2]) {
    char path[4096], spec[4200];
    snprintf(path, sizeof path, "%s/%s", root, name);
    if (!dsc_file_is_directory(path)) {
        print_message("skipped: there is no '%s'\n", path);
        skip();
    }
    snprintf(spec, sizeof spec, "%s:%s", kind, path);
    dsc_data_options options;
    dsc_data_options_init(&options);
    options.image_size = image_size;
    for (int s = 0; s < 2; s++)
        assert_ok(dsc_dataset_open(spec, s ? DSC_SPLIT_VAL : DSC_SPLIT_TRAIN, &options, &sets[s]));
}

/* Mean and standard deviation by channel over every `stride`-th sample; counts labels on the way. */
static void measure(const dsc_dataset *set, int64_t stride, double mean[3], double std[3], int64_t *labels) {
    dsc_dataset_info info = dsc_dataset_get_info(set);
    int64_t size = info.h * info.w * info.c;
    double sum[3] = {0}, squares[3] = {0}, n = 0;
    float *x = malloc((size_t)size * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < info.count; i += stride) {
        int32_t label = -1;
        assert_ok(dsc_dataset_sample(set, i, 0, 0, x, &label));
        assert_true(label >= 0 && label < info.classes);
        labels[label]++;
        for (int64_t p = 0; p < size; p++) {
            sum[p % info.c] += (double)x[p];
            squares[p % info.c] += (double)x[p] * (double)x[p];
        }
        n += (double)(size / info.c);
    }
    for (int64_t c = 0; c < info.c; c++) {
        mean[c] = sum[c] / n;
        std[c] = sqrt(squares[c] / n - mean[c] * mean[c]);
    }
    free(x);
}

/* The usual constants of CIFAR-10 are the set's own, to four digits. */
static void test_cifar10(void **state) {
    (void)state;
    dsc_dataset *sets[2];
    double mean[3], std[3];
    open_both("cifar10", "cifar-10-batches-bin", 0, sets);
    assert_int_equal(dsc_dataset_get_info(sets[0]).count, 50000);
    assert_int_equal(dsc_dataset_get_info(sets[1]).count, 10000);
    int64_t labels[10] = {0};
    measure(sets[0], 1, mean, std, labels);
    for (int c = 0; c < 3; c++) {
        assert_true(fabs(mean[c]) < 0.5e-4 / 0.24 * 2);
        assert_true(fabs(std[c] - 1) < 0.5e-4 / 0.24 * 2);
        assert_int_equal(labels[c], 5000);
    }
    float first[3072];
    int32_t label;
    assert_ok(dsc_dataset_sample(sets[0], 0, 0, 0, first, &label));
    assert_int_equal(label, 6); /* a frog, with a red of 59 in its corner */
    assert_true(first[0] == (float)((59 / 255.0 - 0.4914) / 0.2470));
    dsc_dataset_close(&sets[0]);
    dsc_dataset_close(&sets[1]);
}

static void test_fashion(void **state) {
    (void)state;
    dsc_dataset *sets[2];
    double mean[3], std[3];
    open_both("mnist", "fashion-mnist", 0, sets);
    dsc_dataset_info info = dsc_dataset_get_info(sets[0]);
    assert_true(info.count == 60000 && info.classes == 10 && info.h == 28 && info.w == 28 && info.c == 1);
    assert_int_equal(dsc_dataset_get_info(sets[1]).count, 10000);
    int64_t labels[10] = {0};
    measure(sets[0], 1, mean, std, labels);
    assert_true(fabs(mean[0]) < 1e-4 && fabs(std[0] - 1) < 1e-4);
    for (int k = 0; k < 10; k++)
        assert_int_equal(labels[k], 6000);
    const dsc_pixels *pixels = sets[0]->state; /* 0 stands for -mean / std: 0.2860 and 0.3530 are known */
    assert_true(fabs((double)pixels->normalise.value[0][0] + 0.2860 / 0.3530) < 1e-3);
    dsc_dataset_close(&sets[0]);
    dsc_dataset_close(&sets[1]);
}

static void test_tiny_imagenet(void **state) {
    (void)state;
    dsc_dataset *sets[2];
    double mean[3], std[3];
    open_both("imagefolder", "tiny-imagenet-10", 56, sets);
    dsc_dataset_info info = dsc_dataset_get_info(sets[0]);
    assert_true(info.count == 5000 && info.classes == 10 && info.h == 56 && info.w == 56 && info.c == 3);
    assert_int_equal(dsc_dataset_get_info(sets[1]).count, 500);
    int64_t labels[10] = {0};
    measure(sets[0], 10, mean, std, labels);
    for (int c = 0; c < 3; c++) /* natural images: roughly normalised */
        assert_true(fabs(mean[c]) < 0.6 && std[c] > 0.7 && std[c] < 1.5);
    for (int k = 0; k < 10; k++)
        assert_int_equal(labels[k], 50);
    float x[56 * 56 * 3];
    int32_t label;
    for (int64_t i = 0; i < 100; i++)
        assert_ok(dsc_dataset_sample(sets[0], 50 * i, 1, i, x, &label));
    dsc_dataset_close(&sets[0]);
    dsc_dataset_close(&sets[1]);
}

/* Shapes, classes and normalisation of ISBI 2012 are known: 22 % of the pixels are membranes. */
static void test_isbi(void **state) {
    (void)state;
    dsc_dataset *sets[2];
    open_both("masks", "isbi2012", 192, sets);
    dsc_dataset_info info = dsc_dataset_get_info(sets[0]), val = dsc_dataset_get_info(sets[1]);
    assert_true(info.count == 24 && info.classes == 2 && info.h == 192 && info.w == 192 && info.c == 1);
    assert_true(val.count == 6 && val.classes == 2 && val.h == 512 && val.w == 512 && val.c == 1);
    assert_string_equal(dsc_dataset_class_name(sets[0], 1), "255");
    double mean, std, membrane = 0;
    assert_true(dsc_dataset_normalisation(sets[1], &mean, &std));
    assert_true(fabs(mean - 0.495) < 0.01 && fabs(std - 0.173) < 0.005);
    float *x = malloc(512 * 512 * sizeof *x);
    int32_t *label = malloc(512 * 512 * sizeof *label);
    assert_true(x && label);
    for (int64_t i = 0; i < val.count; i++) {
        assert_ok(dsc_dataset_sample(sets[1], i, 0, 0, x, label));
        for (int k = 0; k < 512 * 512; k++)
            membrane += label[k] == 0;
    }
    membrane /= 6 * 512 * 512;
    assert_true(membrane > 0.18 && membrane < 0.26);
    free(x);
    free(label);
    dsc_dataset_close(&sets[0]);
    dsc_dataset_close(&sets[1]);
}

/* The first 90 % of tinyshakespeare are 1,003,854 characters, of 65 kinds. */
static void test_shakespeare(void **state) {
    (void)state;
    char path[4096], spec[4200];
    int64_t bytes;
    snprintf(path, sizeof path, "%s/text/tinyshakespeare.txt", root);
    if (dsc_file_size(path, &bytes) != DSC_OK)
        skip();
    snprintf(spec, sizeof spec, "text:%s", path);
    for (dsc_split split = DSC_SPLIT_TRAIN; split <= DSC_SPLIT_VAL; split++) {
        dsc_dataset *set = NULL;
        float x[256];
        int32_t label[256];
        char text[257] = "";
        assert_ok(dsc_dataset_open(spec, split, NULL, &set));
        dsc_dataset_info info = dsc_dataset_get_info(set);
        assert_int_equal(info.classes, 65);
        assert_int_equal(info.count, split == DSC_SPLIT_TRAIN ? 1003854 / 256 - 1 : (111540 - 1) / 256);
        assert_ok(dsc_dataset_sample(set, 0, 0, 0, x, label));
        assert_ok(dsc_tokenizer_decode(dsc_dataset_tokenizer(set), label, 256, text, 256, &bytes));
        assert_non_null(
            strstr(text, split == DSC_SPLIT_TRAIN ? "irst Citizen:\nBefore we proceed" : "GREMIO:"));
        dsc_dataset_close(&set);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cifar10),       cmocka_unit_test(test_fashion),
        cmocka_unit_test(test_tiny_imagenet), cmocka_unit_test(test_isbi),
        cmocka_unit_test(test_shakespeare),
    };
    root = getenv("DESCENT_DATA");
    if (!root || !*root) {
        printf("skipped: DESCENT_DATA names no folder with real data\n");
        return 77;
    }
    return cmocka_run_group_tests_name("data-real", tests, NULL, NULL);
}
