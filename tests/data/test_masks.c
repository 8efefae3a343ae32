/* Images with a class for every pixel: files, splits, classes, crops, turns, deformation, and TIFF volumes. */
#include "chosen.h"

#include "base/config.h"
#include "base/error.h"
#include "base/memory.h"
#include "data/dataset.h"
#include "data/encode.h"
#include "data/fixture.h"
#include "data/mask_view.h"
#include "descent/log.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { COUNT = 11, H = 20, W = 24, PIXELS = H * W, SEED = 5, SIDE = 8, ROOM = 1 << 16 };

static dsc_device *device;
static dsc_queue *queue;
static char folder[TEST_PATH];

/* Image n: all of its pixels differ from their neighbours; its mask has the values 7, 100 and, in image 10 alone,
 * 255. */
static uint8_t image_at(int n, int64_t p) {
    return (uint8_t)(p * 37 + p / W * 11 + 50 * n);
}

static uint8_t label_at(int n, int64_t p) {
    return n == 10 && p == 5 ? 255 : (p + n) % 3 == 0 ? 100 : 7;
}

static int class_at(int n, int64_t p) {
    int value = label_at(n, p);
    return value == 7 ? 0 : value == 100 ? 1 : 2;
}

/* Writes folder/name, a grey PNG of the pixels that `at` gives for image n. */
static void write_grey(const char *name, int n, uint8_t (*at)(int n, int64_t p)) {
    uint8_t pixels[PIXELS], file[ROOM];
    for (int64_t p = 0; p < PIXELS; p++)
        pixels[p] = at(n, p);
    const test_image image = {W, H, pixels};
    test_write(folder, name, file, test_png(&image, TEST_PNG_GREY, 0, sizeof file, file));
}

static void write_pair(const char *set, const char *name, int n) {
    char path[TEST_PATH];
    snprintf(path, sizeof path, "%s/image/%s.png", set, name);
    write_grey(path, n, image_at);
    snprintf(path, sizeof path, "%s/label/%s.png", set, name);
    write_grey(path, n, label_at);
}

static const char *spec_of(const char *name) {
    static char spec[TEST_PATH + 64];
    snprintf(spec, sizeof spec, "masks:%s/%s", folder, name);
    return spec;
}

static dsc_data_options options_of(int64_t side) {
    dsc_data_options o;
    dsc_data_options_init(&o);
    o.image_size = side;
    o.seed = SEED;
    return o;
}

static dsc_dataset *open_set(const char *name, dsc_split split, const dsc_data_options *o) {
    dsc_dataset *set = NULL;
    assert_ok(dsc_dataset_open(spec_of(name), split, o, &set));
    return set;
}

static int setup(void **state) {
    (void)state;
    device = chosen_open(chosen_or("ref"), 0);
    assert_ok(dsc_queue_create(device, &queue));
    test_make_folder(folder);
#ifdef DSC_HAVE_PNG
    for (int n = 0; n < COUNT; n++) {
        char name[32];
        snprintf(name, sizeof name, "slice%d", n);
        write_pair("set", name, n);
    }
#endif
    return 0;
}

static int teardown(void **state) {
    (void)state;
    test_remove(folder);
    assert_int_equal(dsc_device_bytes(device), 0);
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
    return 0;
}

static void test_order(void **state) {
    (void)state;
    static const char *const names[] = {"",      "0",  "1",   "01",   "2",   "10",   "a",     "a1b2",
                                        "a1b10", "a2", "a02", "a010", "b/3", "b/20", "b/20a", "\xC3\xA9"};
    const int count = sizeof names / sizeof *names;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            int order = dsc_natural_order(names[i], names[j]), wanted = i - j;
            if (strcmp(names[i], "1") == 0 && strcmp(names[j], "01") == 0)
                wanted = 1; /* equal as numbers: by their bytes */
            if (strcmp(names[i], "01") == 0 && strcmp(names[j], "1") == 0)
                wanted = -1;
            if (strcmp(names[i], "a2") == 0 && strcmp(names[j], "a02") == 0)
                wanted = 1;
            if (strcmp(names[i], "a02") == 0 && strcmp(names[j], "a2") == 0)
                wanted = -1;
            if ((order > 0) != (wanted > 0) || (order < 0) != (wanted < 0))
                fail_msg("'%s' and '%s': %d", names[i], names[j], order);
        }
}

#ifdef DSC_HAVE_PNG
/* Sample `index` is the whole image n. */
static void check_whole(const dsc_dataset *set, int64_t index, int augment, int n) {
    float x[PIXELS];
    int32_t label[PIXELS];
    double mean, std;
    assert_int_equal(dsc_dataset_normalisation(set, &mean, &std), 1);
    assert_ok(dsc_dataset_sample(set, index, augment, 3, x, label));
    for (int64_t p = 0; p < PIXELS; p++) {
        assert_true(x[p] == (float)((image_at(n, p) / 255.0 - mean) / std));
        assert_int_equal(label[p], class_at(n, p));
    }
}

static void test_splits(void **state) {
    (void)state;
    dsc_data_options o = options_of(0);
    double mean[2], std[2], sum = 0, squares = 0;
    dsc_dataset *train = open_set("set", DSC_SPLIT_TRAIN, &o), *val = open_set("set", DSC_SPLIT_VAL, &o);
    dsc_dataset_info info = dsc_dataset_get_info(train);
    assert_int_equal(info.count, COUNT - 2); /* a fifth of 11, rounded */
    assert_int_equal(dsc_dataset_get_info(val).count, 2);
    assert_int_equal(info.h, H);
    assert_int_equal(info.w, W);
    assert_int_equal(info.c, 1);
    assert_int_equal(info.classes, 3); /* one of them in the last image only, which is for validation */
    assert_int_equal(dsc_dataset_get_info(val).classes, 3);
    assert_string_equal(dsc_dataset_class_name(train, 0), "7");
    assert_string_equal(dsc_dataset_class_name(train, 1), "100");
    assert_string_equal(dsc_dataset_class_name(val, 2), "255");
    assert_null(dsc_dataset_class_name(val, 3));
    assert_int_equal(dsc_dataset_label_count(train), PIXELS);
    for (int n = 0; n < COUNT; n++) /* slice10 comes last */
        check_whole(n < 9 ? train : val, n < 9 ? n : n - 9, n >= 9, n);
    for (int n = 0; n < COUNT - 2; n++)
        for (int64_t p = 0; p < PIXELS; p++) {
            sum += image_at(n, p) / 255.0;
            squares += image_at(n, p) / 255.0 * image_at(n, p) / 255.0;
        }
    sum /= 9 * PIXELS;
    assert_true(dsc_dataset_normalisation(train, &mean[0], &std[0]));
    assert_true(dsc_dataset_normalisation(val, &mean[1], &std[1]));
    assert_true(fabs(mean[0] - sum) < 1e-12 &&
                fabs(std[0] - sqrt(squares / (9 * PIXELS) - sum * sum)) < 1e-12);
    assert_true(mean[0] == mean[1] && std[0] == std[1]);
    dsc_dataset_close(&train);
    dsc_dataset_close(&val);

    o.val_split = 0.5; /* the last 5 or 6 in one piece */
    val = open_set("set", DSC_SPLIT_VAL, &o);
    assert_int_equal(dsc_dataset_get_info(val).count, 6);
    for (int n = 5; n < COUNT; n++)
        check_whole(val, n - 5, 1, n);
    dsc_dataset_close(&val);

    write_pair("own/train", "a", 1); /* folders of their own */
    write_pair("own/train", "b", 2);
    write_pair("own/val", "c", 3);
    o.val_split = 0;
    train = open_set("own", DSC_SPLIT_TRAIN, &o);
    val = open_set("own", DSC_SPLIT_VAL, &o);
    assert_int_equal(dsc_dataset_get_info(train).count, 2);
    assert_int_equal(dsc_dataset_get_info(val).count, 1);
    check_whole(train, 1, 0, 2);
    check_whole(val, 0, 0, 3);
    dsc_dataset_close(&train);
    dsc_dataset_close(&val);
    o.val_split = 0.5; /* divides the training images, and leaves the others aside */
    val = open_set("own", DSC_SPLIT_VAL, &o);
    check_whole(val, 0, 0, 2);
    dsc_dataset_close(&val);
}

/* The source of pixel (i, j) of a crop that is mirrored and then turned by `turns` quarters. */
static int64_t source_of(int i, int j, int turns, int flip, int top, int left) {
    for (int t = 0; t < turns; t++) { /* one turn counter-clockwise: row j of the last column */
        int row = j, column = SIDE - 1 - i;
        i = row;
        j = column;
    }
    j = flip ? SIDE - 1 - j : j;
    return (int64_t)(top + i) * W + left + j;
}

/* Finds crop, turns and flip of a training sample, which must exist; image and labels agree on them. */
static void find_view(int n, const float *x, const int32_t *label, double mean, double std, int view[4]) {
    for (int turns = 0; turns < 4; turns++)
        for (int flip = 0; flip < 2; flip++)
            for (int top = 0; top <= H - SIDE; top++)
                for (int left = 0; left <= W - SIDE; left++) {
                    int k = 0;
                    for (; k < SIDE * SIDE; k++) {
                        int64_t p = source_of(k / SIDE, k % SIDE, turns, flip, top, left);
                        if (x[k] != (float)((image_at(n, p) / 255.0 - mean) / std) ||
                            label[k] != class_at(n, p))
                            break;
                    }
                    if (k < SIDE * SIDE)
                        continue;
                    memcpy(view, (int[4]){turns, flip, top, left}, 4 * sizeof *view);
                    return;
                }
    fail_msg("no crop of image %d is this sample", n);
}

/* The tiles of the validation images, the first of which is number 9: every pixel has its label in one of them. */
static void check_tiles(const dsc_dataset *val, double mean, double std) {
    const int across = (W + SIDE - 1) / SIDE, down = (H + SIDE - 1) / SIDE;
    assert_int_equal(dsc_dataset_get_info(val).h, SIDE);
    assert_int_equal(dsc_dataset_get_info(val).count, (COUNT - 9) * across * down);
    for (int n = 9, index = 0; n < COUNT; n++) {
        int seen[H * W] = {0};
        for (int tile = 0; tile < across * down; tile++, index++) {
            float x[SIDE * SIDE];
            int32_t label[SIDE * SIDE];
            int top = tile / across * SIDE, left = tile % across * SIDE;
            top = top < H - SIDE ? top : H - SIDE;
            left = left < W - SIDE ? left : W - SIDE;
            assert_ok(dsc_dataset_sample(val, index, 1, 3, x, label));
            for (int k = 0; k < SIDE * SIDE; k++) {
                int64_t p = (top + k / SIDE) * W + left + k % SIDE;
                assert_true(x[k] == (float)((image_at(n, p) / 255.0 - mean) / std));
                assert_true(label[k] == -1 || label[k] == class_at(n, p));
                seen[p] += label[k] >= 0;
            }
        }
        for (int p = 0; p < H * W; p++)
            assert_int_equal(seen[p], 1);
    }
}

static void test_crops(void **state) {
    (void)state;
    dsc_data_options o = options_of(SIDE);
    dsc_dataset *train = open_set("set", DSC_SPLIT_TRAIN, &o), *val = open_set("set", DSC_SPLIT_VAL, &o);
    int seen[4][2] = {{0}}, lowest = H, highest = 0;
    double mean, std;
    dsc_dataset_normalisation(train, &mean, &std);
    assert_int_equal(dsc_dataset_get_info(train).h, SIDE);
    assert_int_equal(dsc_dataset_label_count(train), SIDE * SIDE);
    check_tiles(val, mean, std);
    for (int64_t epoch = 0; epoch < 40; epoch++)
        for (int n = 0; n < 9; n++) {
            float x[SIDE * SIDE];
            int32_t label[SIDE * SIDE];
            int view[4];
            assert_ok(dsc_dataset_sample(train, n, 1, epoch, x, label));
            find_view(n, x, label, mean, std, view);
            seen[view[0]][view[1]]++;
            lowest = view[2] < lowest ? view[2] : lowest;
            highest = view[2] > highest ? view[2] : highest;
        }
    for (int i = 0; i < 8; i++)
        assert_in_range(seen[i / 2][i % 2], 20, 75); /* 45 of 360 are expected */
    assert_int_equal(lowest, 0);
    assert_int_equal(highest, H - SIDE);
    float x[SIDE * SIDE];
    int32_t label[SIDE * SIDE];
    int view[4];
    assert_ok(dsc_dataset_sample(train, 4, 0, 9, x, label)); /* without augmentation the middle */
    find_view(4, x, label, mean, std, view);
    assert_memory_equal(view, ((int[4]){0, 0, (H - SIDE) / 2, (W - SIDE) / 2}), sizeof view);
    dsc_dataset_close(&train);
    dsc_dataset_close(&val);
}

/* ---- a margin without labels ---- */

enum { MARGIN = 5, WHOLE = SIDE + 2 * MARGIN };

/* The pixel of an image that a position beyond its borders mirrors, found step by step. */
static int reflect(int i, int n) {
    while (i < 0 || i >= n)
        i = i < 0 ? -i : 2 * (n - 1) - i;
    return i;
}

/* All pixels of x lie around the crop that `view` says, mirrored at the borders. */
static void check_around(int n, const float *x, const int view[4], double mean, double std) {
    for (int i = 0; i < WHOLE; i++)
        for (int j = 0; j < WHOLE; j++) {
            int row = i, column = j;
            for (int t = 0; t < view[0]; t++) {
                const int turned = column;
                column = WHOLE - 1 - row;
                row = turned;
            }
            column = view[1] ? WHOLE - 1 - column : column;
            const int64_t p =
                (int64_t)reflect(view[2] - MARGIN + row, H) * W + reflect(view[3] - MARGIN + column, W);
            assert_true(x[i * WHOLE + j] == (float)((image_at(n, p) / 255.0 - mean) / std));
        }
}

static void middle_of(const float *x, float *middle) {
    for (int k = 0; k < SIDE * SIDE; k++)
        middle[k] = x[(k / SIDE + MARGIN) * WHOLE + k % SIDE + MARGIN];
}

static void test_margin(void **state) {
    (void)state;
    dsc_data_options o = options_of(WHOLE);
    o.margin = MARGIN;
    dsc_dataset *train = open_set("set", DSC_SPLIT_TRAIN, &o), *val = open_set("set", DSC_SPLIT_VAL, &o);
    const int across = (W + SIDE - 1) / SIDE, down = (H + SIDE - 1) / SIDE;
    float x[WHOLE * WHOLE], middle[SIDE * SIDE];
    int32_t label[SIDE * SIDE];
    double mean, std;
    int view[4], lowest = H;
    dsc_dataset_normalisation(train, &mean, &std);
    assert_int_equal(dsc_dataset_get_info(train).h, WHOLE);
    assert_int_equal(dsc_dataset_label_count(train), SIDE * SIDE);
    for (int64_t epoch = 0; epoch < 20; epoch++)
        for (int n = 0; n < 9; n++) {
            assert_ok(dsc_dataset_sample(train, n, 1, epoch, x, label));
            middle_of(x, middle);
            find_view(n, middle, label, mean, std, view);
            check_around(n, x, view, mean, std);
            lowest = view[2] < lowest ? view[2] : lowest;
        }
    assert_int_equal(lowest, 0); /* labelled parts reach the borders */
    assert_int_equal(dsc_dataset_get_info(val).count, (COUNT - 9) * across * down);
    assert_int_equal(dsc_dataset_pictures(val), COUNT - 9);
    assert_int_equal(dsc_dataset_pictures(train), 0);
    for (int n = 9, index = 0; n < COUNT; n++) {
        int seen[H * W] = {0};
        for (int tile = 0; tile < across * down; tile++, index++) {
            const int top = tile / across * SIDE, left = tile % across * SIDE;
            const int place[4] = {0, 0, top < H - SIDE ? top : H - SIDE, left < W - SIDE ? left : W - SIDE};
            assert_ok(dsc_dataset_sample(val, index, 1, 3, x, label));
            check_around(n, x, place, mean, std);
            for (int k = 0; k < SIDE * SIDE; k++) {
                int64_t p = (place[2] + k / SIDE) * W + place[3] + k % SIDE;
                assert_true(label[k] == -1 || label[k] == class_at(n, p));
                seen[p] += label[k] >= 0;
            }
        }
        for (int p = 0; p < H * W; p++)
            assert_int_equal(seen[p], 1);
    }
    dsc_dataset_close(&train);
    dsc_dataset_close(&val);
    o.image_size = 2 * MARGIN;
    assert_fails(
        DSC_E_INVALID,
        "a margin of 5 pixels leaves nothing of an image size of 10: the image size must be above 10",
        dsc_dataset_open(spec_of("set"), DSC_SPLIT_TRAIN, &o, &train));
    o.image_size = W + 2 * MARGIN; /* the images are not as high */
    assert_fails(DSC_E_FORMAT,
                 "too few for crops of 24 x 24 (an image size of 34 less a margin of 5 pixels on each side): "
                 "choose an image size of at most 30 (image-size)",
                 dsc_dataset_open(spec_of("set"), DSC_SPLIT_TRAIN, &o, &train));
}

/* Rectangles are turned by half turns only. */
static void test_rectangles(void **state) {
    (void)state;
    int seen[4] = {0};
    for (uint64_t i = 0; i < 100; i++) {
        dsc_rng rng = dsc_rng_start(SEED, DSC_RNG_TEST, 0, i);
        seen[dsc_mask_view_draw(&rng, H, W, H, W, 0).turns]++;
    }
    assert_true(seen[0] > 20 && seen[2] > 20 && seen[1] == 0 && seen[3] == 0);
}

/* ---- deformation ---- */

static uint8_t smooth_image[PIXELS], smooth_label[PIXELS];

/* A plane, which bilinear interpolation gives exactly, with a mask that is its upper half. */
static dsc_mask_item smooth_item(void) {
    for (int64_t p = 0; p < PIXELS; p++) {
        smooth_image[p] = (uint8_t)(3 * (p % W) + 5 * (p / W));
        smooth_label[p] = smooth_image[p] >= 80;
    }
    return (dsc_mask_item){.h = H, .w = W, .c = 1, .image = smooth_image, .label = smooth_label};
}

static void apply(const dsc_mask_view *v, const dsc_mask_item *item, float *x, int32_t *label) {
    static const double mean[3] = {0}, std[3] = {1 / 255.0, 1 / 255.0, 1 / 255.0};
    static int32_t class_of[256];
    dsc_normalise normalise;
    dsc_bytes work = {0};
    for (int i = 0; i < 256; i++)
        class_of[i] = i;
    dsc_normalise_init(&normalise, 1, mean, std);
    assert_ok(dsc_mask_view_apply(v, item, 1, &normalise, class_of, &work, x, label));
    dsc_bytes_free(&work);
}

static void test_deformation(void **state) {
    (void)state;
    float plain[PIXELS], x[PIXELS];
    int32_t plain_label[PIXELS], label[PIXELS];
    const dsc_mask_item item = smooth_item();
    dsc_mask_view v = dsc_mask_view_middle(H, W, SIDE, SIDE);
    v.turns = 1;
    v.flip = 1;
    apply(&v, &item, plain, plain_label);
    v.elastic = 1; /* without displacements the same */
    apply(&v, &item, x, label);
    for (int k = 0; k < SIDE * SIDE; k++) {
        assert_true(fabsf(x[k] - plain[k]) < 1e-4f);
        assert_int_equal(label[k], plain_label[k]);
    }
    for (int k = 0; k < 9; k++) { /* all nodes alike: a move, by parts of a pixel too */
        v.shift[k / 3][k % 3][0] = 1.25;
        v.shift[k / 3][k % 3][1] = -2;
    }
    apply(&v, &item, x, label);
    for (int k = 0; k < SIDE * SIDE; k++)
        assert_true(fabsf(x[k] - (plain[k] + 5 * 1.25f - 3 * 2)) < 1e-3f);
    memset(v.shift, 0, sizeof v.shift);
    v.turns = v.flip = 0;
    v.shift[1][1][0] =
        4; /* the middle node alone: most in the middle, nothing at the border, and smooth in between */
    v.h = v.w = 9;
    apply(&v, &item, x, label);
    dsc_mask_view same = dsc_mask_view_middle(H, W, SIDE, SIDE);
    same.h = same.w = 9;
    apply(&same, &item, plain, plain_label);
    assert_true(fabsf(x[4 * 9 + 4] - plain[4 * 9 + 4] - 20) < 1e-3f);
    for (int k = 0; k < 9; k++) {
        assert_true(fabsf(x[k] - plain[k]) < 1e-3f && fabsf(x[72 + k] - plain[72 + k]) < 1e-3f);
        if (k > 0 && k <= 4)
            assert_true(x[36 + k] - plain[36 + k] >= x[36 + k - 1] - plain[36 + k - 1]);
    }
}

/* Far beyond the border the image repeats, mirrored without repeating its border. */
static void test_mirrored(void **state) {
    (void)state;
    static float x[PIXELS];
    static int32_t label[PIXELS];
    const dsc_mask_item item = smooth_item();
    dsc_mask_view v = dsc_mask_view_middle(H, W, H, W);
    v.elastic = 1;
    for (int shift = -100; shift <= 100; shift += 3) {
        for (int k = 0; k < 9; k++)
            v.shift[k / 3][k % 3][0] = shift;
        apply(&v, &item, x, label);
        for (int64_t p = 0; p < PIXELS; p++) {
            int64_t row = p / W + shift;
            while (row < 0 || row >= H)
                row = row < 0 ? -row : 2 * (H - 1) - row;
            const uint8_t wanted = smooth_image[row * W + p % W];
            assert_true(fabsf(x[p] - wanted) < 1e-3f);
            assert_int_equal(label[p], wanted >= 80);
        }
    }
    uint8_t one = 9; /* an image of one pixel is its own mirror */
    const dsc_mask_item dot = {.h = 1, .w = 1, .c = 1, .image = &one, .label = &one};
    v.h = v.w = 1;
    apply(&v, &dot, x, label);
    assert_true(fabsf(x[0] - 9) < 1e-4f && label[0] == 9);
}

/* Displacements have the deviation that was asked for, depend on (seed, epoch, sample), and keep image and mask
 * together. */
static void test_elastic(void **state) {
    (void)state;
    double squares = 0;
    for (uint64_t i = 0; i < 500; i++) {
        dsc_rng rng = dsc_rng_start(SEED, DSC_RNG_TEST, 1, i);
        dsc_mask_view v = dsc_mask_view_draw(&rng, H, W, SIDE, SIDE, 10);
        for (int k = 0; k < 18; k++)
            squares += v.shift[k / 6][k / 2 % 3][k % 2] * v.shift[k / 6][k / 2 % 3][k % 2];
    }
    assert_true(fabs(sqrt(squares / 9000) - 10) < 0.3); /* its own deviation is 0.075 */
    const dsc_mask_item item = smooth_item();
    for (uint64_t i = 0; i < 50; i++) {
        float x[SIDE * SIDE];
        int32_t label[SIDE * SIDE];
        dsc_rng rng = dsc_rng_start(SEED, DSC_RNG_TEST, 2, i);
        dsc_mask_view v = dsc_mask_view_draw(&rng, H, W, SIDE, SIDE, 1);
        apply(&v, &item, x, label);
        for (int k = 0; k < SIDE * SIDE; k++)
            assert_true(label[k] ? x[k] > 80 - 4 : x[k] < 80 + 4); /* the nearest pixel is half of one away */
    }
    dsc_data_options o = options_of(SIDE);
    o.elastic = 2;
    dsc_dataset *set = open_set("set", DSC_SPLIT_TRAIN, &o);
    float a[SIDE * SIDE], b[SIDE * SIDE];
    int32_t label[SIDE * SIDE];
    assert_ok(dsc_dataset_sample(set, 2, 1, 7, a, label));
    assert_ok(dsc_dataset_sample(set, 2, 1, 7, b, label));
    assert_memory_equal(a, b, sizeof a);
    assert_ok(dsc_dataset_sample(set, 2, 1, 8, b, label));
    assert_true(memcmp(a, b, sizeof a) != 0);
    dsc_dataset_close(&set);
}

/* ---- files ---- */

static uint8_t zero(int n, int64_t p) {
    (void)n, (void)p;
    return 0;
}

/* ---- what is likely to be a mistake ---- */

static char logged[1024];
static int logs;

static void keep_log(void *context, dsc_log_level level, const char *text) {
    (void)context;
    assert_int_equal(level, DSC_LOG_WARNING);
    snprintf(logged, sizeof logged, "%s", text);
    logs++;
}

/* Opens both splits and expects a single warning with these texts; NULL: no warning. */
static void check_warning(const char *name, const char *text, const char *other) {
    const dsc_data_options o = options_of(0);
    logs = 0;
    dsc_log_set_handler(keep_log, NULL);
    for (dsc_split split = DSC_SPLIT_TRAIN; split <= DSC_SPLIT_VAL; split++) {
        dsc_dataset *set = open_set(name, split, &o);
        dsc_dataset_close(&set);
    }
    dsc_log_set_handler(NULL, NULL);
    assert_int_equal(logs, text ? 1 : 0);
    assert_true(!text || (strstr(logged, text) && strstr(logged, other)));
}

static uint8_t many_values(int n, int64_t p) {
    return (uint8_t)(p % (20 + 5 * n));
}

static void test_odd_values(void **state) {
    (void)state;
    char name[64];
    for (int n = 1; n <= 3; n++) { /* 25, 30 and 35 values */
        snprintf(name, sizeof name, "many/image/%d.png", n);
        write_grey(name, n, image_at);
        snprintf(name, sizeof name, "many/label/%d.png", n);
        write_grey(name, n, many_values);
    }
    check_warning("many", "the labels have 35 different values, each of which is a class",
                  "many/label/3.png' has 35");
    test_remove(spec_of("many/label/3.png") + strlen("masks:"));
    test_remove(spec_of("many/image/3.png") + strlen("masks:"));
    check_warning("many", "the value 25 of '",
                  "many/label/2.png', for validation, is in no label for training (nor are 4 other values)");
    check_warning("set", "the value 255 of '",
                  "set/label/slice10.png', for validation, is in no label for training");
    for (int n = 0; n < 2; n++) {
        snprintf(name, sizeof name, "usual/%s/image/1.png", n ? "val" : "train");
        write_grey(name, n, image_at);
        snprintf(name, sizeof name, "usual/%s/label/1.png", n ? "val" : "train");
        write_grey(name, n, label_at);
    }
    check_warning("usual", NULL, NULL);
}

static void test_bad_files(void **state) {
    (void)state;
    dsc_dataset *set = NULL;
    uint8_t file[ROOM], pixels[PIXELS * 3];
    dsc_data_options o = options_of(0);
    const char *spec = spec_of("nothing");
    assert_fails(DSC_E_NOT_FOUND, "has no images: put them into '",
                 dsc_dataset_open(spec, DSC_SPLIT_TRAIN, &o, &set));
    write_pair("bad", "1", 1);
    assert_fails(DSC_E_FORMAT, "bad' has 1 image, which cannot be divided",
                 dsc_dataset_open(spec_of("bad"), DSC_SPLIT_TRAIN, &o, &set));
    write_grey("bad/image/2.png", 2, image_at);
    assert_fails(DSC_E_NOT_FOUND, "image/2.png' has no label: put it into '",
                 dsc_dataset_open(spec_of("bad"), DSC_SPLIT_TRAIN, &o, &set));
    test_write(folder, "bad/label/2.png", "GIF89a", 6);
    assert_fails(DSC_E_FORMAT, "label/2.png' is no JPEG, PNG or WebP",
                 dsc_dataset_open(spec_of("bad"), DSC_SPLIT_TRAIN, &o, &set));
    test_image small = {W, H - 1, pixels};
    memset(pixels, 7, sizeof pixels);
    test_write(folder, "bad/label/2.png", file, test_png(&small, TEST_PNG_GREY, 0, sizeof file, file));
    assert_fails(DSC_E_FORMAT, "has 24 x 20 pixels, but its label '",
                 dsc_dataset_open(spec_of("bad"), DSC_SPLIT_TRAIN, &o, &set));
    small.h = H;
    pixels[3 * (2 * W + 3)] = 8;
    test_write(folder, "bad/label/2.png", file, test_png(&small, TEST_PNG_RGB, 0, sizeof file, file));
    assert_fails(DSC_E_FORMAT, "label/2.png' has a coloured pixel (column 3, row 2)",
                 dsc_dataset_open(spec_of("bad"), DSC_SPLIT_TRAIN, &o, &set));
    write_grey("bad/label/1.png", 1, zero);
    write_grey("bad/label/2.png", 2, zero);
    assert_fails(DSC_E_FORMAT, "all pixels of the labels in '",
                 dsc_dataset_open(spec_of("bad"), DSC_SPLIT_TRAIN, &o, &set));
    o.image_size = H + 1;
    assert_fails(
        DSC_E_FORMAT,
        "has 24 x 20 pixels, too few for crops of 21 x 21: choose an image size of at most 20 (image-size)",
        dsc_dataset_open(spec_of("set"), DSC_SPLIT_TRAIN, &o, &set));
    o.image_size = -1;
    assert_fails(DSC_E_INVALID, "image size -1", dsc_dataset_open(spec_of("set"), DSC_SPLIT_TRAIN, &o, &set));
    o = options_of(0);
    o.elastic = NAN;
    assert_fails(DSC_E_INVALID, "elastic deformation of nan pixels",
                 dsc_dataset_open(spec_of("set"), DSC_SPLIT_TRAIN, &o, &set));
    assert_null(set);
}

/* A link that leads nowhere is an image that is missing, not a label. */
static void test_dangling_link(void **state) {
    (void)state;
    char path[TEST_PATH + 32];
    dsc_dataset *set = NULL;
    dsc_data_options o = options_of(0);
    write_pair("link", "1", 1);
    snprintf(path, sizeof path, "%s/link/image/9.png", folder);
    assert_int_equal(symlink("nowhere.png", path), 0);
    assert_fails(DSC_E_NOT_FOUND, "link/image/9.png'",
                 dsc_dataset_open(spec_of("link"), DSC_SPLIT_TRAIN, &o, &set));
    assert_null(strstr(dsc_error_message(), "has no label"));
}

/* Scaled to 8 bits, the classes 1 and 2 of 16 bits would be one. */
static void test_deep_labels(void **state) {
    (void)state;
    static uint8_t file[ROOM], pixels[PIXELS * 6];
    dsc_dataset *set = NULL;
    dsc_data_options o = options_of(0);
    const test_image label = {W, H, pixels};
    write_pair("deep", "1", 1);
    write_pair("deep", "2", 2);
    for (int64_t i = 0; i < PIXELS * 3; i++)
        pixels[2 * i + 1] = (uint8_t)(1 + i / 3 % 2);
    test_write(folder, "deep/label/2.png", file, test_png(&label, TEST_PNG_RGB16, 0, sizeof file, file));
    assert_fails(DSC_E_FORMAT, "deep/label/2.png' has 16 bits a pixel, but classes are values of 8 bits",
                 dsc_dataset_open(spec_of("deep"), DSC_SPLIT_TRAIN, &o, &set));
    write_pair("deep", "2", 2); /* images may have 16 bits */
    test_write(folder, "deep/image/2.png", file, test_png(&label, TEST_PNG_RGB16, 0, sizeof file, file));
    set = open_set("deep", DSC_SPLIT_TRAIN, &o);
    dsc_dataset_close(&set);
}

/* One image in colours makes all samples colour images; sizes may differ when crops are taken. */
static void test_colour_images(void **state) {
    (void)state;
    dsc_dataset *set = NULL;
    static uint8_t file[ROOM], pixels[(H + 4) * W * 3], marks[(H + 4) * W];
    dsc_data_options o = options_of(0);
    const double mean[3] = {0, 0, 0}, std[3] = {1 / 255.0, 1 / 255.0, 1 / 255.0};
    const test_image tall = {W, H + 4, pixels}, mask = {W, H + 4, marks};
    for (size_t i = 0; i < sizeof pixels; i++)
        pixels[i] = (uint8_t)(i * 29);
    write_pair("colours", "1", 1);
    write_pair("colours", "3", 3);
    test_write(folder, "colours/image/2.png", file, test_png(&tall, TEST_PNG_RGB, 0, sizeof file, file));
    test_write(folder, "colours/label/2.png", file, test_png(&mask, TEST_PNG_GREY1, 0, sizeof file, file));
    assert_fails(DSC_E_FORMAT, "whole images must be of one size",
                 dsc_dataset_open(spec_of("colours"), DSC_SPLIT_TRAIN, &o, &set));
    o.image_size = SIDE;
    o.mean = mean;
    o.std = std;
    set = open_set("colours", DSC_SPLIT_TRAIN, &o);
    assert_int_equal(dsc_dataset_get_info(set).c, 3);
    assert_int_equal(dsc_dataset_get_info(set).count, 2);
    float x[SIDE * SIDE * 3];
    int32_t label[SIDE * SIDE];
    assert_ok(dsc_dataset_sample(set, 1, 0, 0, x, label));
    for (int k = 0; k < SIDE * SIDE * 3; k++) {
        int64_t p = (int64_t)((H + 4 - SIDE) / 2 + k / 3 / SIDE) * W + (W - SIDE) / 2 + k / 3 % SIDE;
        assert_true(fabsf(x[k] - pixels[3 * p + k % 3]) < 1e-3f);
        assert_int_equal(label[k / 3], 0);
    }
    assert_ok(dsc_dataset_sample(set, 0, 1, 0, x, label));
    for (int k = 0; k < SIDE * SIDE; k++)
        assert_true(x[3 * k] == x[3 * k + 1] && x[3 * k] == x[3 * k + 2]);
    dsc_dataset_close(&set);
    set = open_set("colours", DSC_SPLIT_VAL, &o); /* grey itself, but the model has three channels */
    assert_int_equal(dsc_dataset_get_info(set).c, 3);
    dsc_dataset_close(&set);
}

static void test_memory(void **state) {
    (void)state;
    dsc_data_options o = options_of(SIDE);
    dsc_status status = DSC_E_MEMORY;
    for (int64_t n = 1; status != DSC_OK; n++) {
        dsc_dataset *set = NULL;
        dsc_memory_fail_at(n);
        status = dsc_dataset_open(spec_of("own"), DSC_SPLIT_TRAIN, &o, &set);
        dsc_memory_fail_at(0);
        assert_true(status == DSC_OK ? set != NULL : status == DSC_E_MEMORY && !set);
        dsc_dataset_close(&set);
    }
}

/* A batch is what the samples are, with several threads and on the device that was chosen. */
static void test_loader(void **state) {
    (void)state;
    enum { BATCH = 4 };
    dsc_data_options data = options_of(SIDE);
    dsc_loader_options o;
    dsc_loader *loader = NULL;
    dsc_batch batch;
    float x[BATCH * SIDE * SIDE], wanted[SIDE * SIDE];
    int32_t labels[BATCH * SIDE * SIDE], label[SIDE * SIDE];
    data.elastic = 3;
    dsc_dataset *set = open_set("set", DSC_SPLIT_TRAIN, &data);
    dsc_loader_options_init(&o);
    o.batch = BATCH;
    o.threads = 3;
    o.shuffle = 0;
    assert_ok(dsc_loader_create(set, device, &o, &loader));
    for (int b = 0; b < 4; b++) {
        assert_ok(dsc_loader_next(loader, queue, &batch));
        assert_ok(dsc_tensor_download(queue, &batch.x, sizeof x, x));
        assert_ok(dsc_tensor_download(queue, &batch.labels, sizeof labels, labels));
        assert_ok(dsc_queue_sync(queue));
        for (int i = 0; i < BATCH; i++) {
            assert_ok(dsc_dataset_sample(set, batch.position + i, 1, batch.epoch, wanted, label));
            assert_memory_equal(x + i * SIDE * SIDE, wanted, sizeof wanted);
            assert_memory_equal(labels + i * SIDE * SIDE, label, sizeof label);
        }
    }
    dsc_loader_destroy(&loader);
    o.mixup = 0.2;
    assert_fails(DSC_E_INVALID, "need one label per sample, and those of masks have 64",
                 dsc_loader_create(set, device, &o, &loader));
    dsc_dataset_close(&set);
}
#endif

/* ---- volumes ---- */

static void test_volumes(void **state) {
    (void)state;
    enum { PAGES = 5 };
    static uint8_t volume[ROOM], pixels[PAGES * PIXELS];
    dsc_dataset *set = NULL;
    dsc_data_options o = options_of(0);
    for (int n = 0; n < PAGES; n++)
        for (int64_t p = 0; p < PIXELS; p++)
            pixels[n * PIXELS + p] = image_at(n, p);
    size_t size = test_tiff(pixels, 8, PAGES, H, W, volume);
    test_write(folder, "volume/train-volume.tif", volume, size);
    for (int n = 0; n < PAGES; n++)
        for (int64_t p = 0; p < PIXELS; p++)
            pixels[n * PIXELS + p] = label_at(n, p);
    test_write(folder, "volume/train-labels.tif", volume, test_tiff(pixels, 8, PAGES, H, W, volume));
#ifdef DSC_HAVE_TIFF
    float x[PIXELS];
    int32_t label[PIXELS];
    double mean, std;
    for (dsc_split split = DSC_SPLIT_TRAIN; split <= DSC_SPLIT_VAL; split++) {
        set = open_set("volume", split, &o);
        assert_int_equal(dsc_dataset_get_info(set).count, split == DSC_SPLIT_TRAIN ? PAGES - 1 : 1);
        assert_int_equal(dsc_dataset_get_info(set).classes, 2);
        assert_true(dsc_dataset_normalisation(set, &mean, &std));
        const int n = split == DSC_SPLIT_TRAIN ? 2 : PAGES - 1;
        assert_ok(dsc_dataset_sample(set, split == DSC_SPLIT_TRAIN ? 2 : 0, 0, 0, x, label));
        for (int64_t p = 0; p < PIXELS; p++) {
            assert_true(x[p] == (float)((image_at(n, p) / 255.0 - mean) / std));
            assert_int_equal(label[p], class_at(n, p));
        }
        dsc_dataset_close(&set);
    }
    test_write(folder, "volume/train-labels.tif", volume, test_tiff(pixels, 8, PAGES - 1, H, W, volume));
    assert_fails(DSC_E_FORMAT, "train-volume.tif' has 5 pages, but '",
                 dsc_dataset_open(spec_of("volume"), DSC_SPLIT_TRAIN, &o, &set));
    test_write(folder, "volume/train-labels.tif", volume, 200);
    assert_fails(DSC_E_FORMAT, "train-labels.tif' is a broken TIFF",
                 dsc_dataset_open(spec_of("volume"), DSC_SPLIT_TRAIN, &o, &set));
    test_remove(spec_of("volume/train-labels.tif") + strlen("masks:"));
    assert_fails(DSC_E_NOT_FOUND, "train-labels.tif",
                 dsc_dataset_open(spec_of("volume"), DSC_SPLIT_TRAIN, &o, &set));
#else
    assert_fails(DSC_E_UNSUPPORTED, "install libtiff-dev and build again",
                 dsc_dataset_open(spec_of("volume"), DSC_SPLIT_TRAIN, &o, &set));
#endif
    assert_null(set);
}

static void test_deep_volumes(void **state) {
    (void)state;
#ifdef DSC_HAVE_TIFF
    static uint8_t volume[ROOM], pixels[2 * 2 * PIXELS];
    dsc_dataset *set = NULL;
    dsc_data_options o = options_of(0);
    for (int64_t i = 0; i < 2 * PIXELS; i++)
        pixels[2 * i] = (uint8_t)(1 + i % 2);
    test_write(folder, "deep-volume/image.tif", volume, test_tiff(pixels, 16, 2, H, W, volume));
    test_write(folder, "deep-volume/label.tif", volume, test_tiff(pixels, 16, 2, H, W, volume));
    assert_fails(DSC_E_FORMAT, "deep-volume/label.tif' has 16 bits a pixel",
                 dsc_dataset_open(spec_of("deep-volume"), DSC_SPLIT_TRAIN, &o, &set));
    test_write(folder, "deep-volume/label.tif", volume, test_tiff(pixels, 8, 2, H, W, volume));
    set = open_set("deep-volume", DSC_SPLIT_TRAIN, &o); /* images may have 16 bits */
    dsc_dataset_close(&set);
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
#ifdef DSC_HAVE_PNG
        cmocka_unit_test(test_splits),      cmocka_unit_test(test_crops),
        cmocka_unit_test(test_margin),      cmocka_unit_test(test_rectangles),
        cmocka_unit_test(test_deformation), cmocka_unit_test(test_mirrored),
        cmocka_unit_test(test_elastic),     cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_odd_values),  cmocka_unit_test(test_colour_images),
        cmocka_unit_test(test_memory),      cmocka_unit_test(test_loader),
        cmocka_unit_test(test_deep_labels), cmocka_unit_test(test_dangling_link),
#endif
        cmocka_unit_test(test_volumes),     cmocka_unit_test(test_deep_volumes),
    };
    return cmocka_run_group_tests_name("data-masks", tests, setup, teardown);
}
