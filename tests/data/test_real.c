/* The published files, where $DESCENT_DATA names a folder that holds cifar-10-batches-bin, fashion-mnist and
 * tiny-imagenet-10; each is skipped where it is absent. */
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cifar10),
        cmocka_unit_test(test_fashion),
        cmocka_unit_test(test_tiny_imagenet),
    };
    root = getenv("DESCENT_DATA");
    if (!root || !*root) {
        printf("skipped: DESCENT_DATA names no folder with real data\n");
        return 77;
    }
    return cmocka_run_group_tests_name("data-real", tests, NULL, NULL);
}
