/* The built-in set, CIFAR, IDX; specs, messages, crop and flip. */
#include "test.h"

#include "base/memory.h"
#include "base/rng.h"
#include "data/augment.h"
#include "data/dataset.h"
#include "data/fixture.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SIDE = 32, SAMPLE = SIDE * SIDE * 3 };

static const double mean10[3] = {0.4914, 0.4822, 0.4465}, std10[3] = {0.2470, 0.2435, 0.2616};
static const double mean100[3] = {0.5071, 0.4865, 0.4409}, std100[3] = {0.2673, 0.2564, 0.2762};

static dsc_dataset *open_set(const char *spec, dsc_split split) {
    dsc_dataset *set = NULL;
    assert_ok(dsc_dataset_open(spec, split, NULL, &set));
    return set;
}

/* ---- specs ---- */
static void test_specs(void **state) {
    (void)state;
    dsc_dataset *set = NULL;
    const char *known =
        "known are synthetic[:N], cifar10:DIR, cifar100:DIR, mnist:DIR[/NAME], imagefolder:DIR";
    assert_fails(DSC_E_INVALID, known, dsc_dataset_open("imagenet:/data", DSC_SPLIT_TRAIN, NULL, &set));
    assert_fails(DSC_E_INVALID, "unknown kind 'cifar'",
                 dsc_dataset_open("cifar", DSC_SPLIT_TRAIN, NULL, &set));
    assert_fails(DSC_E_INVALID, "data set '': unknown kind ''; known are synthetic[:N], cifar10:DIR",
                 dsc_dataset_open(NULL, DSC_SPLIT_TRAIN, NULL, &set));
    assert_fails(DSC_E_INVALID, "unknown kind ''", dsc_dataset_open("", DSC_SPLIT_TRAIN, NULL, &set));
    assert_fails(DSC_E_INVALID, "needs a folder, as in 'cifar10:DIR'",
                 dsc_dataset_open("cifar10", DSC_SPLIT_TRAIN, NULL, &set));
    assert_fails(DSC_E_INVALID, "needs a folder", dsc_dataset_open("mnist:", DSC_SPLIT_TRAIN, NULL, &set));
    const char *bad[] = {"synthetic:", "synthetic:0", "synthetic:-3", "synthetic:12x",
                         "synthetic:99999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(DSC_E_INVALID, "must be 1 to 10000000",
                     dsc_dataset_open(bad[i], DSC_SPLIT_TRAIN, NULL, &set));
    assert_null(set);
    dsc_dataset_close(&set);
    dsc_dataset_close(NULL);
}

/* ---- synthetic ---- */
static void test_synthetic_info(void **state) {
    (void)state;
    const struct {
        const char *spec;
        dsc_split split;
        int64_t count;
    } cases[] = {{"synthetic", DSC_SPLIT_TRAIN, 10000}, {"synthetic", DSC_SPLIT_VAL, 2000},
                 {"synthetic:77", DSC_SPLIT_TRAIN, 77}, {"synthetic:77", DSC_SPLIT_VAL, 15},
                 {"synthetic:3", DSC_SPLIT_TRAIN, 3},   {"synthetic:3", DSC_SPLIT_VAL, 10}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dsc_dataset *set = open_set(cases[i].spec, cases[i].split);
        dsc_dataset_info info = dsc_dataset_get_info(set);
        assert_int_equal(info.count, cases[i].count);
        assert_int_equal(info.h, SIDE);
        assert_int_equal(info.w, SIDE);
        assert_int_equal(info.c, 3);
        assert_int_equal(info.classes, 10);
        assert_string_equal(info.name, "synthetic");
        dsc_dataset_close(&set);
        assert_null(set);
    }
}

/* Drawing in integers gives these bytes on every machine. */
static void test_names_and_normalisation(void **state) {
    (void)state;
    double mean[3] = {0}, std[3] = {0};
    dsc_dataset *set = open_set("synthetic:20", DSC_SPLIT_VAL);
    assert_string_equal(dsc_dataset_class_name(set, 0), "disc");
    assert_string_equal(dsc_dataset_class_name(set, 9), "triangle");
    assert_null(dsc_dataset_class_name(set, 10));
    assert_null(dsc_dataset_class_name(set, -1));
    assert_null(dsc_dataset_class_name(NULL, 0));
    assert_true(dsc_dataset_normalisation(set, mean, std));
    assert_true(mean[2] == 0.5 && std[2] == 0.25);
    assert_false(dsc_dataset_normalisation(NULL, mean, std));
    dsc_dataset_close(&set);
    const float x = 0;
    const int32_t label = 0;
    dsc_memory_data data; /* floats are not normalised, and have no names */
    dsc_memory_data_init(&data);
    data.count = data.h = data.w = data.c = 1;
    data.classes = 2;
    data.images = &x;
    data.labels = &label;
    assert_ok(dsc_dataset_from_memory(&data, &set));
    assert_null(dsc_dataset_class_name(set, 0));
    assert_false(dsc_dataset_normalisation(set, mean, std));
    dsc_dataset_close(&set);
}

static void test_synthetic_is_fixed(void **state) {
    (void)state;
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    uint8_t pixels[SAMPLE];
    for (int64_t i = 0; i < 100; i++) {
        assert_int_equal(dsc_synthetic_draw(42, i % 2 ? DSC_SPLIT_VAL : DSC_SPLIT_TRAIN, i, pixels), i % 10);
        for (int p = 0; p < SAMPLE; p++)
            hash = (hash ^ pixels[p]) * 1099511628211u;
    }
    assert_true(hash == 0x39f9f295d2d53faau);
}

static void test_synthetic_samples(void **state) {
    (void)state;
    dsc_data_options options;
    dsc_data_options_init(&options);
    options.seed = 5;
    dsc_dataset *train = NULL, *val = NULL, *other = open_set("synthetic:20", DSC_SPLIT_TRAIN);
    assert_ok(dsc_dataset_open("synthetic:20", DSC_SPLIT_TRAIN, &options, &train));
    assert_ok(dsc_dataset_open("synthetic:20", DSC_SPLIT_VAL, &options, &val));
    static float a[SAMPLE], b[SAMPLE];
    int32_t label;
    for (int64_t i = 0; i < 20; i++) {
        assert_ok(dsc_dataset_sample(train, i, 0, 0, a, &label));
        assert_int_equal(label, i % 10);
        uint8_t pixels[SAMPLE];
        dsc_synthetic_draw(5, DSC_SPLIT_TRAIN, i, pixels);
        for (int p = 0; p < SAMPLE; p++)
            assert_true(a[p] == (float)((pixels[p] / 255.0 - 0.5) / 0.25));
        assert_ok(dsc_dataset_sample(train, i, 0, 9, b, &label)); /* the second time: kept */
        assert_memory_equal(a, b, sizeof a);
        assert_ok(dsc_dataset_sample(train, i, 1, 0, b, &label));
        float again[SAMPLE];
        assert_ok(dsc_dataset_sample(train, i, 1, 0, again, &label));
        assert_memory_equal(b, again, sizeof again);
        assert_ok(dsc_dataset_sample(other, i, 0, 0, b, &label));
        assert_memory_not_equal(a, b, sizeof a);
    }
    assert_ok(dsc_dataset_sample(train, 3, 0, 0, a, &label));
    assert_ok(dsc_dataset_sample(val, 3, 0, 0, b, &label));
    assert_memory_not_equal(a, b, sizeof a);
    assert_fails(DSC_E_INVALID, "sample 20 of 20", dsc_dataset_sample(train, 20, 0, 0, a, &label));
    assert_fails(DSC_E_INVALID, "sample -1 of 20", dsc_dataset_sample(train, -1, 0, 0, a, &label));
    assert_fails(DSC_E_INVALID, "epoch -1", dsc_dataset_sample(train, 1, 1, -1, a, &label));
    dsc_dataset_close(&train);
    dsc_dataset_close(&val);
    dsc_dataset_close(&other);
}

/* A caller with a shorter struct of options keeps the defaults of the fields it does not know. */
static void test_short_options(void **state) {
    (void)state;
    dsc_data_options options = {.size = offsetof(dsc_data_options, image_size), .seed = 5, .image_size = -99};
    dsc_dataset *set = NULL;
    assert_ok(dsc_dataset_open("synthetic:20", DSC_SPLIT_TRAIN, &options, &set));
    assert_int_equal(set->options.seed, 5);
    assert_int_equal(set->options.image_size, 0);
    dsc_dataset_close(&set);
}

/* The mean image of a class says nothing about it: class means differ from each other by no more than noise.
 * With m images a class, the pixels of two means of the same distribution differ by about sigma sqrt(2 /
 * m). */
static void test_synthetic_has_no_template(void **state) {
    (void)state;
    enum { M = 300 };
    static double sum[10][SAMPLE];
    double squares = 0;
    memset(sum, 0, sizeof sum);
    for (int64_t i = 0; i < 10 * M; i++) {
        uint8_t pixels[SAMPLE];
        dsc_synthetic_draw(1, DSC_SPLIT_TRAIN, i, pixels);
        for (int p = 0; p < SAMPLE; p++) {
            sum[i % 10][p] += pixels[p];
            squares += (pixels[p] - 127.5) * (pixels[p] - 127.5);
        }
    }
    double sigma2 = squares / (10.0 * M * SAMPLE), distance = 0;
    for (int k = 1; k < 10; k++)
        for (int p = 0; p < SAMPLE; p++)
            distance += (sum[k][p] - sum[0][p]) * (sum[k][p] - sum[0][p]) / M / M;
    distance /= 9.0 * SAMPLE;
    assert_true(distance < 2 * 2 * sigma2 / M);
}

/* ---- crop and flip ---- */
/* The image in a black frame of `pad`, cut and mirrored step by step. */
static void naive_crop(const uint8_t *image, int h, int w, int c, int pad, dsc_crop crop, uint8_t *out) {
    int frame_w = w + 2 * pad, frame_h = h + 2 * pad;
    uint8_t *frame = calloc((size_t)(frame_w * frame_h), (size_t)c);
    assert_non_null(frame);
    for (int y = 0; y < h; y++)
        memcpy(frame + ((y + pad) * frame_w + pad) * c, image + y * w * c, (size_t)(w * c));
    for (int y = 0; y < h; y++) {
        const uint8_t *row = frame + ((y + pad + (int)crop.top) * frame_w + pad + (int)crop.left) * c;
        for (int x = 0; x < w; x++)
            memcpy(out + (y * w + x) * c, row + (crop.flip ? w - 1 - x : x) * c, (size_t)c);
    }
    free(frame);
}

static void test_crop(void **state) {
    (void)state;
    enum { H = 6, W = 9, PAD = 4 };
    const double zero[3] = {0, 0, 0}, scale[3] = {1 / 255.0, 1 / 255.0, 1 / 255.0};
    dsc_normalise identity;
    dsc_normalise_init(&identity, 3, zero, scale);
    for (int c = 1; c <= 3; c++) {
        uint8_t image[H * W * 3], wanted[H * W * 3];
        float out[H * W * 3];
        for (int i = 0; i < H * W * c; i++)
            image[i] = (uint8_t)(i + 1);
        for (int64_t top = -PAD; top <= PAD; top++) {
            for (int64_t left = -PAD; left <= PAD; left++) {
                for (int flip = 0; flip < 2; flip++) {
                    dsc_crop crop = {top, left, flip};
                    dsc_crop_apply(image, H, W, c, crop, &identity, out);
                    naive_crop(image, H, W, c, PAD, crop, wanted);
                    for (int i = 0; i < H * W * c; i++)
                        assert_true(out[i] == (float)wanted[i]);
                }
            }
        }
    }
}

/* All 81 places and both directions come up, evenly: 162 kinds, n / 162 each to within 6 deviations. */
static void test_crop_draws(void **state) {
    (void)state;
    enum { N = 162 * 100 };
    int counts[9][9][2] = {{{0}}};
    for (int i = 0; i < N; i++) {
        dsc_rng rng = dsc_augment_rng(3, (dsc_sample_key){i % 100, i / 100, 1});
        dsc_crop crop = dsc_crop_draw(&rng, 4);
        assert_true(crop.top >= -4 && crop.top <= 4 && crop.left >= -4 && crop.left <= 4);
        counts[crop.top + 4][crop.left + 4][crop.flip]++;
    }
    for (int i = 0; i < 162; i++)
        assert_true(abs((&counts[0][0][0])[i] - 100) < 60);
}

static void test_box(void **state) {
    (void)state;
    const int64_t sizes[][2] = {{64, 64}, {375, 500}, {1, 1}, {1, 500}, {500, 1}, {10, 100}, {3, 2}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        double h = (double)sizes[s][0], w = (double)sizes[s][1];
        for (int i = 0; i < 500; i++) {
            dsc_rng rng = dsc_rng_start(1, DSC_RNG_TEST, (uint32_t)s, (uint64_t)i);
            dsc_box box = dsc_box_draw(&rng, sizes[s][0], sizes[s][1]);
            assert_true(box.x >= 0 && box.y >= 0 && box.w >= 1 && box.h >= 1);
            assert_true(box.x + box.w <= w && box.y + box.h <= h);
            if (h >= 64 && w >= 64) { /* rounding to whole pixels moves each side by half a pixel at most */
                double share = box.w * box.h / (w * h), slack = 0.5 / box.w + 0.5 / box.h + 1e-3;
                assert_true(share > 0.08 * (1 - 2 * slack) && share <= 1);
                assert_true(box.w / box.h < 4.0 / 3 * (1 + 2 * slack));
                assert_true(box.w / box.h > 3.0 / 4 * (1 - 2 * slack));
            }
        }
    }
    dsc_rng rng = dsc_rng_start(1, DSC_RNG_TEST, 0, 0);
    dsc_box box = dsc_box_draw(&rng, 10, 1000); /* never fits: the middle */
    assert_true(box.h == 10 && box.w == 13 && box.x == 493 && box.y == 0);
}

/* ---- CIFAR ---- */
static uint8_t records[3 * 3074];

static void write_cifar10(const char *folder) {
    for (int f = 1; f <= 5; f++) {
        char name[64];
        snprintf(name, sizeof name, "data_batch_%d.bin", f);
        size_t size = test_cifar(2, 1, 10, records);
        records[0] = (uint8_t)f;
        records[1] = (uint8_t)(100 + f);
        test_write(folder, name, records, size);
    }
    test_write(folder, "test_batch.bin", records, test_cifar(3, 1, 10, records));
}

static void check_cifar(const dsc_dataset *set, int64_t index, const uint8_t *planes, const double *mean,
                        const double *std) {
    static float x[SAMPLE];
    static uint8_t image[SAMPLE], wanted[SAMPLE];
    int32_t label;
    for (int p = 0; p < SAMPLE; p++)
        image[p] = planes[p % 3 * SIDE * SIDE + p / 3];
    assert_ok(dsc_dataset_sample(set, index, 0, 0, x, &label));
    for (int p = 0; p < SAMPLE; p++)
        assert_true(x[p] == (float)((image[p] / 255.0 - mean[p % 3]) / std[p % 3]));
    for (int64_t epoch = 0; epoch < 5; epoch++) {
        dsc_rng rng = dsc_rng_start(42, DSC_RNG_AUGMENT, (uint32_t)epoch, (uint64_t)index);
        dsc_crop crop;
        crop.top = (int64_t)dsc_rng_below(&rng, 9) - 4;
        crop.left = (int64_t)dsc_rng_below(&rng, 9) - 4;
        crop.flip = (int)(dsc_rng_u32(&rng) >> 31);
        naive_crop(image, SIDE, SIDE, 3, 4, crop, wanted);
        assert_ok(dsc_dataset_sample(set, index, 1, epoch, x, &label));
        for (int p = 0; p < SAMPLE; p++)
            assert_true(x[p] == (float)((wanted[p] / 255.0 - mean[p % 3]) / std[p % 3]));
    }
}

static void test_cifar10(void **state) {
    (void)state;
    char folder[TEST_PATH], inner[TEST_PATH + 32], spec[TEST_PATH + 32];
    test_make_folder(folder);
    snprintf(inner, sizeof inner, "%s/cifar-10-batches-bin", folder);
    mkdir(inner, 0777);
    write_cifar10(inner);
    test_spec("cifar10", folder, spec); /* the parent ... */
    dsc_dataset *train = open_set(spec, DSC_SPLIT_TRAIN);
    dsc_dataset_info info = dsc_dataset_get_info(train);
    assert_int_equal(info.count, 10);
    assert_int_equal(info.classes, 10);
    static float x[SAMPLE];
    int32_t label;
    for (int f = 1; f <= 5; f++) {
        assert_ok(dsc_dataset_sample(train, 2 * f - 2, 0, 0, x, &label));
        assert_int_equal(label, f);
        assert_true(x[0] == (float)(((100 + f) / 255.0 - mean10[0]) / std10[0]));
        assert_ok(dsc_dataset_sample(train, 2 * f - 1, 0, 0, x, &label));
        assert_int_equal(label, 1);
    }
    dsc_dataset_close(&train);
    test_spec("cifar10", inner, spec); /* ... or the folder itself */
    dsc_dataset *val = open_set(spec, DSC_SPLIT_VAL);
    assert_int_equal(dsc_dataset_get_info(val).count, 3);
    test_cifar(3, 1, 10, records);
    for (int i = 0; i < 3; i++)
        check_cifar(val, i, records + i * 3073 + 1, mean10, std10);
    dsc_dataset_close(&val);
    test_remove(folder);
}

static void test_cifar100(void **state) {
    (void)state;
    char folder[TEST_PATH], spec[TEST_PATH + 32];
    test_make_folder(folder);
    size_t size = test_cifar(3, 2, 100, records);
    records[1] = 99;
    test_write(folder, "cifar-100-binary/train.bin", records, size);
    test_spec("cifar100", folder, spec);
    dsc_dataset *set = open_set(spec, DSC_SPLIT_TRAIN);
    assert_int_equal(dsc_dataset_get_info(set).classes, 100);
    assert_string_equal(dsc_dataset_get_info(set).name, "cifar100");
    static float x[SAMPLE];
    int32_t label;
    assert_ok(dsc_dataset_sample(set, 0, 0, 0, x, &label));
    assert_int_equal(label, 99); /* the fine one */
    for (int i = 0; i < 3; i++)
        check_cifar(set, i, records + i * 3074 + 2, mean100, std100);
    dsc_dataset_close(&set);
    dsc_dataset *val = NULL;
    assert_fails(DSC_E_NOT_FOUND, "cifar-100-binary/test.bin' is missing",
                 dsc_dataset_open(spec, DSC_SPLIT_VAL, NULL, &val));
    records[1] = 100;
    test_write(folder, "cifar-100-binary/train.bin", records, size);
    assert_fails(DSC_E_FORMAT, "image 0 has label 100, the largest is 99",
                 dsc_dataset_open(spec, DSC_SPLIT_TRAIN, NULL, &set));
    test_remove(folder);
}

static void test_cifar_messages(void **state) {
    (void)state;
    char folder[TEST_PATH], spec[TEST_PATH + 32], wanted[3 * TEST_PATH], path[TEST_PATH + 32];
    dsc_dataset *set = NULL;
    test_make_folder(folder);
    test_spec("cifar10", folder, spec);
    snprintf(wanted, sizeof wanted,
             "cifar10: '%s/data_batch_1.bin' is missing: download "
             "http://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz and unpack it in '%s'",
             folder, folder);
    assert_fails(DSC_E_NOT_FOUND, wanted, dsc_dataset_open(spec, DSC_SPLIT_TRAIN, NULL, &set));
    assert_fails(DSC_E_NOT_FOUND, "'/nowhere/at/all/test_batch.bin' is missing",
                 dsc_dataset_open("cifar10:/nowhere/at/all", DSC_SPLIT_VAL, NULL, &set));
    write_cifar10(folder);
    test_write(folder, "data_batch_4.bin", records, 3072);
    assert_fails(DSC_E_FORMAT, "data_batch_4.bin' has 3072 bytes, which is not a whole number of 3073-byte",
                 dsc_dataset_open(spec, DSC_SPLIT_TRAIN, NULL, &set));
    test_write(folder, "data_batch_4.bin", records, 0);
    assert_fails(DSC_E_FORMAT, "has 0 bytes", dsc_dataset_open(spec, DSC_SPLIT_TRAIN, NULL, &set));
    test_cifar(2, 1, 10, records);
    records[3073] = 10;
    test_write(folder, "data_batch_4.bin", records, 2 * 3073);
    assert_fails(DSC_E_FORMAT, "data_batch_4.bin' image 1 has label 10, the largest is 9",
                 dsc_dataset_open(spec, DSC_SPLIT_TRAIN, NULL, &set));
    snprintf(path, sizeof path, "%s/data_batch_4.bin", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0666), 0); /* would never end, were it opened */
    assert_fails(DSC_E_FORMAT, "is not a regular file", dsc_dataset_open(spec, DSC_SPLIT_TRAIN, NULL, &set));
    if (geteuid() != 0) { /* root reads everything */
        snprintf(path, sizeof path, "%s/test_batch.bin", folder);
        assert_int_equal(chmod(path, 0), 0);
        assert_fails(DSC_E_IO, "Permission denied", dsc_dataset_open(spec, DSC_SPLIT_VAL, NULL, &set));
    }
    assert_null(set);
    test_remove(folder);
}

/* ---- IDX ---- */
enum { N = 4, H = 5, W = 3 };

static uint8_t idx[256];

typedef void (*writer)(const char *folder, const char *name, const void *data, size_t size);

static void write_idx(const char *folder, writer write, const char *ending) {
    char name[64];
    const uint32_t train[] = {N, H, W}, val[] = {2, H, W}, train_labels[] = {N}, val_labels[] = {2};
    snprintf(name, sizeof name, "train-images-idx3-ubyte%s", ending);
    write(folder, name, idx, test_idx(3, train, 10, 256, idx));
    snprintf(name, sizeof name, "train-labels-idx1-ubyte%s", ending);
    write(folder, name, idx, test_idx(1, train_labels, 0, 3, idx));
    snprintf(name, sizeof name, "t10k-images-idx3-ubyte%s", ending);
    write(folder, name, idx, test_idx(3, val, 100, 256, idx));
    snprintf(name, sizeof name, "t10k-labels-idx1-ubyte%s", ending);
    write(folder, name, idx, test_idx(1, val_labels, 1, 3, idx));
}

/* Training pixels are 10, 11, ..., 69: mean and variance follow. */
static void check_idx(const char *spec) {
    double mean = 0, variance = 0;
    for (int v = 10; v < 70; v++)
        mean += v / 60.0;
    for (int v = 10; v < 70; v++)
        variance += (v - mean) * (v - mean) / 60;
    const double std = sqrt(variance);
    dsc_dataset *train = open_set(spec, DSC_SPLIT_TRAIN), *val = open_set(spec, DSC_SPLIT_VAL);
    assert_int_equal(dsc_dataset_get_info(train).count, N);
    dsc_dataset_info info = dsc_dataset_get_info(val);
    assert_true(info.count == 2 && info.h == H && info.w == W && info.c == 1 && info.classes == 3);
    float x[H * W];
    int32_t label;
    for (int augment = 0; augment < 2; augment++) { /* no difference: there is none */
        for (int64_t i = 0; i < N; i++) {
            assert_ok(dsc_dataset_sample(train, i, augment, 7, x, &label));
            assert_int_equal(label, i % 3);
            for (int p = 0; p < H * W; p++)
                assert_true(fabs(x[p] - (10 + i * H * W + p - mean) / std) < 1e-6);
        }
        assert_ok(dsc_dataset_sample(val, 1, augment, 7, x, &label));
        assert_int_equal(label, 2);
        for (int p = 0; p < H * W; p++)
            assert_true(fabs(x[p] - (100 + H * W + p - mean) / std) < 1e-6);
    }
    dsc_dataset_close(&train);
    dsc_dataset_close(&val);
}

static void test_idx_sets(void **state) {
    (void)state;
    char folder[TEST_PATH], spec[TEST_PATH + 32];
    test_make_folder(folder);
    test_spec("mnist", folder, spec);
    write_idx(folder, test_write_gz, ".gz");
    check_idx(spec);
    write_idx(folder, test_write, ""); /* raw files are preferred */
    check_idx(spec);
    test_remove(folder);
}

static void expect_idx(const char *spec, const char *folder, const char *name, size_t size, dsc_split split,
                       const char *message) {
    dsc_dataset *set = NULL;
    test_write(folder, name, idx, size);
    assert_fails(DSC_E_FORMAT, message, dsc_dataset_open(spec, split, NULL, &set));
    assert_null(set);
    write_idx(folder, test_write, "");
}

static void test_idx_messages(void **state) {
    (void)state;
    const char *images = "train-images-idx3-ubyte", *labels = "train-labels-idx1-ubyte";
    const char *val_images = "t10k-images-idx3-ubyte", *val_labels = "t10k-labels-idx1-ubyte";
    char folder[TEST_PATH], spec[TEST_PATH + 32];
    dsc_dataset *set = NULL;
    test_make_folder(folder);
    test_spec("mnist", folder, spec);
    assert_fails(DSC_E_NOT_FOUND, "train-images-idx3-ubyte' is missing, with and without .gz",
                 dsc_dataset_open(spec, DSC_SPLIT_TRAIN, NULL, &set));
    write_idx(folder, test_write, "");
    const uint32_t three[] = {N, H, W}, one[] = {N}, five[] = {5}, none[] = {0, H, W};
    const uint32_t other[] = {2, W, H}, two[] = {2}, lie[] = {4000000000u, 4096, 4096};
    size_t size = test_idx(3, three, 0, 256, idx);
    expect_idx(spec, folder, images, size - 1, DSC_SPLIT_TRAIN, "has fewer than the 60 bytes its header");
    test_idx(3, three, 0, 256, idx);
    expect_idx(spec, folder, images, size + 1, DSC_SPLIT_TRAIN, "has more than the 60 bytes its header");
    test_idx(3, three, 0, 256, idx);
    expect_idx(spec, folder, images, 9, DSC_SPLIT_TRAIN, "ends after 9 bytes, inside its header");
    expect_idx(spec, folder, images, 0, DSC_SPLIT_VAL, "ends after 0 bytes");
    memcpy(idx, (uint8_t[]){0, 0, 0x0D, 3}, 4);
    expect_idx(spec, folder, images, size, DSC_SPLIT_TRAIN,
               "starts 00 00 0d 03; bytes in 3 dimensions start 00 00 08 03");
    size = test_idx(1, one, 0, 3, idx);
    expect_idx(spec, folder, images, size, DSC_SPLIT_TRAIN, "ends after 12 bytes");
    size = test_idx(1, five, 0, 3, idx);
    expect_idx(spec, folder, labels, size, DSC_SPLIT_TRAIN, "has 4 train images, but 5 labels");
    size = test_idx(3, none, 0, 256, idx);
    expect_idx(spec, folder, images, size, DSC_SPLIT_TRAIN, "has dimension 0 in place 0");
    test_idx(3, three, 0, 256, idx);
    memcpy(idx + 12, (uint8_t[]){0, 0, 0x13, 0x88}, 4);
    expect_idx(spec, folder, images, 76, DSC_SPLIT_TRAIN, "has dimension 5000 in place 2: must be 1 to 4096");
    test_idx(3, three, 0, 256, idx);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 4; k++)
            idx[4 + 4 * i + k] = (uint8_t)(lie[i] >> (24 - 8 * k));
    expect_idx(spec, folder, images, 76, DSC_SPLIT_TRAIN, "has fewer than the 67108864000000000 bytes");
    size = test_idx(3, other, 0, 256, idx);
    expect_idx(spec, folder, val_images, size, DSC_SPLIT_VAL, "training images of 5 x 3, others of 3 x 5");
    size = test_idx(1, two, 2, 4, idx);
    expect_idx(spec, folder, val_labels, size, DSC_SPLIT_VAL,
               "has label 3, the largest of the training labels is 2");
    test_remove(folder);
}

/* Four dimensions, with channels last or first: pixel (h, w) of channel c of image i is 40 i + 12 c + 4 h + w, so
 * every channel has a mean of its own. */
static void write_colours(const char *folder, const char *name, int count, int channels_first) {
    const int h = 2, w = 4, c = 3;
    uint8_t *p = idx;
    memcpy(p, (uint8_t[]){0, 0, 8, 4}, 4);
    const int dim[] = {count, channels_first ? c : h, channels_first ? h : w, channels_first ? w : c};
    for (int i = 0; i < 4; i++)
        memcpy(p + 4 + 4 * i, (uint8_t[]){0, 0, 0, (uint8_t)dim[i]}, 4);
    for (int i = 0; i < count * h * w * c; i++) {
        int image = i / (h * w * c), rest = i % (h * w * c);
        int channel = channels_first ? rest / (h * w) : rest % c,
            pixel = channels_first ? rest % (h * w) : rest / c;
        p[20 + i] = (uint8_t)(40 * image + 12 * channel + 4 * (pixel / w) + pixel % w);
    }
    test_write(folder, name, idx, (size_t)(20 + count * h * w * c));
}

static void test_idx_four_dimensions(void **state) {
    (void)state;
    char folder[TEST_PATH], spec[TEST_PATH + 32];
    const uint32_t labels[] = {2};
    dsc_dataset *set = NULL;
    test_make_folder(folder);
    test_spec("mnist", folder, spec);
    test_write(folder, "train-labels-idx1-ubyte", idx, test_idx(1, labels, 0, 2, idx));
    write_colours(folder, "train-images-idx4-ubyte", 2, 0);
    set = open_set(spec, DSC_SPLIT_TRAIN);
    dsc_dataset_info info = dsc_dataset_get_info(set);
    assert_true(info.count == 2 && info.h == 2 && info.w == 4 && info.c == 3 && info.classes == 2);
    double mean[3], std[3];
    float x[24];
    int32_t label;
    assert_int_equal(dsc_dataset_normalisation(set, mean, std), 1);
    for (int c = 0; c < 3; c++) /* images 0 and 40 apart, pixels 0 to 7 */
        assert_true(fabs(255 * mean[c] - (20 + 12 * c + 3.5)) < 1e-9);
    assert_ok(dsc_dataset_sample(set, 1, 0, 0, x, &label));
    for (int i = 0; i < 24; i++)
        assert_true(fabs(x[i] - ((40 + 12 * (i % 3) + i / 3) / 255.0 - mean[i % 3]) / std[i % 3]) < 1e-5);
    dsc_dataset_close(&set);
    /* Planes: [2, 3, 2, 8] cannot be channels last. */
    memcpy(idx, (uint8_t[]){0, 0, 8, 4, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 8}, 20);
    for (int i = 0; i < 96; i++)
        idx[20 + i] = (uint8_t)i;
    test_write(folder, "train-images-idx4-ubyte", idx, 116);
    set = open_set(spec, DSC_SPLIT_TRAIN);
    info = dsc_dataset_get_info(set);
    assert_true(info.count == 2 && info.h == 2 && info.w == 8 && info.c == 3);
    float y[48];
    assert_int_equal(dsc_dataset_normalisation(set, mean, std), 1);
    assert_ok(dsc_dataset_sample(set, 1, 0, 0, y, &label));
    for (int i = 0; i < 48; i++)
        assert_true(fabs(y[i] - ((48 + 16 * (i % 3) + i / 3) / 255.0 - mean[i % 3]) / std[i % 3]) < 1e-5);
    dsc_dataset_close(&set);
    const uint32_t wide[] = {1, 5, 2, 8};
    test_write(folder, "train-images-idx4-ubyte", idx, test_idx(4, wide, 0, 256, idx));
    assert_fails(DSC_E_FORMAT, "the last of four dimensions, or the second, must be at most 4 channels",
                 dsc_dataset_open(spec, DSC_SPLIT_TRAIN, NULL, &set));
    test_remove(folder);
}

/* Files that are called as EMNIST's. */
static void write_named(const char *folder, const char *prefix, int first) {
    char name[128];
    const uint32_t train[] = {N, H, W}, val[] = {2, H, W}, train_labels[] = {N}, val_labels[] = {2};
    snprintf(name, sizeof name, "%s-train-images-idx3-ubyte.gz", prefix);
    test_write_gz(folder, name, idx, test_idx(3, train, first, 256, idx));
    snprintf(name, sizeof name, "%s-train-labels-idx1-ubyte.gz", prefix);
    test_write_gz(folder, name, idx, test_idx(1, train_labels, 0, 3, idx));
    snprintf(name, sizeof name, "%s-test-images-idx3-ubyte.gz", prefix);
    test_write_gz(folder, name, idx, test_idx(3, val, 100, 256, idx));
    snprintf(name, sizeof name, "%s-test-labels-idx1-ubyte.gz", prefix);
    test_write_gz(folder, name, idx, test_idx(1, val_labels, 1, 3, idx));
}

static void test_idx_names(void **state) {
    (void)state;
    char folder[TEST_PATH], spec[TEST_PATH + 32], one[TEST_PATH + 64];
    dsc_dataset *set = NULL;
    test_make_folder(folder);
    test_spec("mnist", folder, spec);
    snprintf(one, sizeof one, "%s/emnist-letters", spec);
    write_named(folder, "emnist-letters", 10);
    check_idx(spec);
    check_idx(one);
    write_named(folder, "emnist-digits", 20);
    check_idx(one);
    assert_fails(DSC_E_INVALID, "holds several sets (emnist-",
                 dsc_dataset_open(spec, DSC_SPLIT_TRAIN, NULL, &set));
    snprintf(one, sizeof one, "%s/emnist-none", spec);
    assert_fails(DSC_E_NOT_FOUND, "/emnist-none-train-images-idx3-ubyte' is missing, with and without .gz",
                 dsc_dataset_open(one, DSC_SPLIT_TRAIN, NULL, &set));
    write_idx(folder, test_write, ""); /* plain names come first */
    check_idx(spec);
    test_remove(folder);
    test_make_folder(folder);
    test_spec("mnist", folder, spec);
    const uint32_t train[] = {N, H, W},
                   labels[] = {N}; /* a dot instead of a dash, as some archives have it */
    test_write(folder, "train-images.idx3-ubyte", idx, test_idx(3, train, 10, 256, idx));
    test_write(folder, "train-labels.idx1-ubyte", idx, test_idx(1, labels, 0, 3, idx));
    set = open_set(spec, DSC_SPLIT_TRAIN);
    assert_int_equal(dsc_dataset_get_info(set).count, N);
    dsc_dataset_close(&set);
    test_remove(folder);
}

/* ---- validation from a part of the training samples ---- */

enum { PART_COUNT = 107, PART_CLASSES = 4 };

/* Classes of 50, 40, 16 and 1 samples, mixed; sample i has the only pixel i. */
static dsc_status open_counted(void *context, const char *argument, dsc_split split,
                               const dsc_data_options *options, dsc_dataset **out) {
    static float pixels[PART_COUNT];
    static int32_t labels[PART_COUNT];
    (void)context, (void)argument, (void)split, (void)options;
    for (int i = 0; i < PART_COUNT; i++) {
        pixels[i] = (float)i;
        labels[i] = i == 0 ? 3 : i % 2 == 0 && i <= 100 ? 0 : i % 2 == 1 && i < 80 ? 1 : 2;
    }
    dsc_memory_data data;
    dsc_memory_data_init(&data);
    data.count = PART_COUNT;
    data.h = data.w = data.c = 1;
    data.classes = PART_CLASSES;
    data.images = pixels;
    data.labels = labels;
    return dsc_dataset_from_memory(&data, out);
}

/* Which samples a split holds: seen[i] 1. Returns their number; of[c]: how many of each class. */
static int64_t members(const char *spec, dsc_split split, uint64_t seed, double share, char *seen,
                       int64_t *of) {
    dsc_data_options options;
    dsc_dataset *set = NULL;
    dsc_data_options_init(&options);
    options.seed = seed;
    options.val_split = share;
    memset(seen, 0, PART_COUNT);
    memset(of, 0, PART_CLASSES * sizeof *of);
    assert_ok(dsc_dataset_open(spec, split, &options, &set));
    int64_t count = dsc_dataset_get_info(set).count, last = -1;
    assert_int_equal(dsc_dataset_get_info(set).classes, PART_CLASSES);
    for (int64_t i = 0; i < count; i++) {
        float x;
        int32_t label;
        assert_ok(dsc_dataset_sample(set, i, 0, 0, &x, &label));
        assert_true((int64_t)x > last); /* in the order of the set */
        last = (int64_t)x;
        seen[last] = 1;
        of[label]++;
    }
    dsc_dataset_close(&set);
    return count;
}

static void test_val_split(void **state) {
    (void)state;
    dsc_dataset_kind kind;
    char train[PART_COUNT], val[PART_COUNT], other[PART_COUNT];
    int64_t of_train[PART_CLASSES], of_val[PART_CLASSES];
    dsc_dataset_kind_init(&kind);
    kind.name = "counted";
    kind.open = open_counted;
    assert_ok(dsc_dataset_register(&kind));
    assert_int_equal(members("counted", DSC_SPLIT_VAL, 1, 0.1, val, of_val), 5 + 4 + 2);
    assert_int_equal(members("counted", DSC_SPLIT_TRAIN, 1, 0.1, train, of_train), PART_COUNT - 11);
    assert_true(of_val[0] == 5 && of_val[1] == 4 && of_val[2] == 2 && of_val[3] == 0);
    for (int i = 0; i < PART_COUNT; i++)
        assert_int_equal(train[i] + val[i], 1);
    members("counted", DSC_SPLIT_VAL, 1, 0.1, other, of_val);
    assert_memory_equal(val, other, sizeof val);
    members("counted", DSC_SPLIT_VAL, 2, 0.1, other, of_val); /* another seed, other samples */
    assert_true(memcmp(val, other, sizeof val) != 0);
    members("counted", DSC_SPLIT_VAL, 1, 0.001, val, of_val); /* one at least ... */
    assert_true(of_val[0] == 1 && of_val[1] == 1 && of_val[2] == 1 && of_val[3] == 0);
    members("counted", DSC_SPLIT_TRAIN, 1, 0.999, train, of_train); /* ... in both parts */
    assert_true(of_train[0] == 1 && of_train[1] == 1 && of_train[2] == 1 && of_train[3] == 1);
    dsc_dataset *set = NULL;
    dsc_data_options options;
    dsc_data_options_init(&options);
    for (int i = 0; i < 3; i++) {
        options.val_split = (const double[]){1, -0.5, NAN}[i];
        assert_fails(DSC_E_INVALID, "val-split", dsc_dataset_open("counted", DSC_SPLIT_VAL, &options, &set));
    }
    options.val_split = 0.25; /* samples that a device augments */
    assert_ok(dsc_dataset_open("synthetic:40", DSC_SPLIT_TRAIN, &options, &set));
    assert_non_null(set->type->raw);
    assert_string_equal(dsc_dataset_class_name(set, 0), "disc");
    dsc_dataset_close(&set);
}

static void test_idx_broken_gz(void **state) {
    (void)state;
    char folder[TEST_PATH], spec[TEST_PATH + 32], path[TEST_PATH + 64];
    uint8_t packed[512];
    test_make_folder(folder);
    test_spec("mnist", folder, spec);
    write_idx(folder, test_write_gz, ".gz");
    snprintf(path, sizeof path, "%s/train-images-idx3-ubyte.gz", folder);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t size = fread(packed, 1, sizeof packed, file);
    fclose(file);
    dsc_dataset *set = NULL;
    packed[size - 6] ^= 1; /* the checksum */
    test_write(folder, "train-images-idx3-ubyte.gz", packed, size);
    assert_fails(DSC_E_FORMAT, "cannot be unpacked", dsc_dataset_open(spec, DSC_SPLIT_TRAIN, NULL, &set));
    packed[size - 6] ^= 1;
    test_write(folder, "train-images-idx3-ubyte.gz", packed, size - 20);
    assert_int_equal(dsc_dataset_open(spec, DSC_SPLIT_TRAIN, NULL, &set), DSC_E_FORMAT);
    assert_null(set);
    test_remove(folder);
}

/* ---- every allocation fails once ---- */
static void torture(const char *spec, dsc_split split) {
    dsc_data_options options;
    dsc_data_options_init(&options);
    options.val_split = split == DSC_SPLIT_TRAIN ? 0.5 : 0;
    for (int64_t n = 1;; n++) {
        dsc_dataset *set = NULL;
        dsc_memory_fail_at(n);
        dsc_status status = dsc_dataset_open(spec, split, &options, &set);
        dsc_memory_fail_at(0);
        dsc_dataset_close(&set);
        if (status == DSC_OK)
            break;
        assert_int_equal(status, DSC_E_MEMORY);
        assert_true(n < 1000);
    }
}

static void test_out_of_memory(void **state) {
    (void)state;
    char folder[TEST_PATH], spec[TEST_PATH + 32];
    torture("synthetic:5", DSC_SPLIT_TRAIN);
    test_make_folder(folder);
    write_cifar10(folder);
    write_idx(folder, test_write_gz, ".gz");
    test_spec("cifar10", folder, spec);
    torture(spec, DSC_SPLIT_TRAIN);
    test_spec("mnist", folder, spec);
    torture(spec, DSC_SPLIT_VAL);
    test_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_specs),
        cmocka_unit_test(test_synthetic_info),
        cmocka_unit_test(test_names_and_normalisation),
        cmocka_unit_test(test_synthetic_is_fixed),
        cmocka_unit_test(test_synthetic_samples),
        cmocka_unit_test(test_short_options),
        cmocka_unit_test(test_synthetic_has_no_template),
        cmocka_unit_test(test_crop),
        cmocka_unit_test(test_crop_draws),
        cmocka_unit_test(test_box),
        cmocka_unit_test(test_cifar10),
        cmocka_unit_test(test_cifar100),
        cmocka_unit_test(test_cifar_messages),
        cmocka_unit_test(test_idx_sets),
        cmocka_unit_test(test_idx_messages),
        cmocka_unit_test(test_idx_broken_gz),
        cmocka_unit_test(test_idx_four_dimensions),
        cmocka_unit_test(test_idx_names),
        cmocka_unit_test(test_val_split),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests_name("data-sets", tests, NULL, NULL);
}
