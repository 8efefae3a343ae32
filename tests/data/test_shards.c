/* WebDataset: which shards there are, their samples and classes, and what is refused. */
#include "test.h"

#include "base/config.h"
#include "base/memory.h"
#include "data/dataset.h"
#include "data/encode.h"
#include "data/fixture.h"
#include "data/shards.h"

#if defined DSC_HAVE_ARCHIVE && defined DSC_HAVE_PNG
#include <sys/stat.h>
#include <unistd.h>

enum { ROOM = 1 << 16, SIDE = 16 };

static uint8_t tar[ROOM];
static size_t used;

static void member(const char *name, const void *data, size_t size) {
    assert_true(used + size + 2048 < ROOM);
    used += test_tar_member(name, data, size, tar + used);
}

static void end_shard(const char *folder, const char *name) {
    memset(tar + used, 0, 1024);
    test_write(folder, name, tar, used + 1024);
    used = 0;
}

/* KEY.png, all of one grey value, and KEY.cls. */
static void add_sample(const char *key, int value, const char *class) {
    static uint8_t pixels[SIDE * SIDE * 3], packed[4 * sizeof pixels];
    char name[128];
    memset(pixels, value, sizeof pixels);
    test_image image = {SIDE, SIDE, pixels};
    snprintf(name, sizeof name, "%s.png", key);
    member(name, packed, test_png(&image, TEST_PNG_RGB, 0, sizeof packed, packed));
    snprintf(name, sizeof name, "%s.cls", key);
    member(name, class, strlen(class));
}

static dsc_dataset *open_part(const char *spec, dsc_split split) {
    dsc_data_options options;
    dsc_dataset *set = NULL;
    dsc_data_options_init(&options);
    options.image_size = 4;
    assert_ok(dsc_dataset_open(spec, split, &options, &set));
    return set;
}

/* The grey value of sample `index`, and its label. */
static int value_of(const dsc_dataset *set, int64_t index, int32_t *label) {
    float x[4 * 4 * 3];
    assert_ok(dsc_dataset_sample(set, index, 0, 0, x, label));
    return (int)((x[0] * 0.229f + 0.485f) * 255 + 0.5f);
}

static void test_numbers(void **state) {
    (void)state;
    char folder[TEST_PATH], spec[TEST_PATH + 64];
    int32_t label;
    test_make_folder(folder);
    add_sample("a/0001", 10, "2\n");
    member("a/0002.json", "{}", 2); /* a sample without image and class is none */
    add_sample("a/0003", 30, "0");
    end_shard(folder, "train-000.tar");
    member("a/0004.seg.png", "x", 1); /* not the image of the sample */
    add_sample("a/0004", 40, " 1 ");
    end_shard(folder, "train-001.tar");
    end_shard(folder, "train-002.tar"); /* empty */
    add_sample("b/0005", 50, "1");
    end_shard(folder, "imagenet-val-0.tar");
    test_spec("webdataset", folder, spec);
    dsc_dataset *train = open_part(spec, DSC_SPLIT_TRAIN), *val = open_part(spec, DSC_SPLIT_VAL);
    dsc_dataset_info info = dsc_dataset_get_info(train);
    assert_true(info.count == 3 && info.h == 4 && info.w == 4 && info.c == 3 && info.classes == 3);
    assert_null(dsc_dataset_class_name(train, 0));
    static const int values[] = {10, 30, 40}, labels[] = {2, 0, 1};
    for (int64_t i = 2; i >= 0; i--) { /* in any order */
        assert_int_equal(value_of(train, i, &label), values[i]);
        assert_int_equal(label, labels[i]);
        assert_int_equal(train->type->label(train, i), labels[i]);
        assert_int_equal(train->type->group(train, i), i == 2);
    }
    info = dsc_dataset_get_info(val);
    assert_true(info.count == 1 && info.classes == 3);
    assert_int_equal(value_of(val, 0, &label), 50);
    dsc_dataset_close(&train);
    assert_int_equal(value_of(val, 0, &label), 50); /* the listing is shared, and lives on */
    dsc_dataset_close(&val);
    test_remove(folder);
}

/* Names of classes; folders of splits; patterns. */
static void test_names(void **state) {
    (void)state;
    char folder[TEST_PATH], spec[TEST_PATH + 64], pattern[2 * TEST_PATH];
    int32_t label;
    test_make_folder(folder);
    add_sample("1", 10, "wren");
    add_sample("2", 20, "auk");
    end_shard(folder, "train/x-08.tar");
    add_sample("3", 30, "3"); /* a name, too */
    end_shard(folder, "train/x-09.tar");
    add_sample("4", 40, "auk");
    end_shard(folder, "train/x-10.tar");
    add_sample("5", 50, "wren");
    end_shard(folder, "validation/x.tar");
    test_spec("webdataset", folder, spec);
    dsc_dataset *set = open_part(spec, DSC_SPLIT_TRAIN);
    assert_int_equal(dsc_dataset_get_info(set).count, 4);
    assert_string_equal(dsc_dataset_class_name(set, 0), "3");
    assert_string_equal(dsc_dataset_class_name(set, 1), "auk");
    assert_string_equal(dsc_dataset_class_name(set, 2), "wren");
    value_of(set, 0, &label);
    assert_int_equal(label, 2);
    dsc_dataset_close(&set);
    set = open_part(spec, DSC_SPLIT_VAL);
    assert_int_equal(value_of(set, 0, &label), 50);
    assert_int_equal(label, 2);
    dsc_dataset_close(&set);
    static const struct {
        const char *text;
        int64_t count;
    } cases[] = {{"train/x-{08..10}.tar", 4}, {"train/x-{08,10}.tar", 3},  {"train/x-1*.tar", 0},
                 {"train/x-0?.tar", 3},       {"train/x-{08..09}.tar", 3}, {"{train,train}/x-08.tar", 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dsc_shard_list list = {0};
        snprintf(pattern, sizeof pattern, "%s/%s", spec, cases[i].text);
        if (cases[i].count > 0) {
            set = open_part(pattern, DSC_SPLIT_TRAIN);
            assert_int_equal(dsc_dataset_get_info(set).count, cases[i].count);
            dsc_dataset_close(&set);
        }
        assert_ok(dsc_shards_find(strchr(pattern, ':') + 1, &list));
        assert_true(list.count >= 1);
        dsc_shards_free(&list);
    }
    test_remove(folder);
}

/* The words in a name that make a shard one of the validation split. */
static void test_splits(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int val;
    } cases[] = {{"val.tar", 1},     {"x-val-01.tar", 1},   {"valid_3.tar", 1}, {"validation.tar", 1},
                 {"test0.tar", 1},   {"interval-1.tar", 0}, {"values.tar", 0},  {"train.tar", 0},
                 {"contest.tar", 0}, {"0.tar", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[64];
        dsc_shard_list list = {0};
        snprintf(path, sizeof path, "/nowhere/val/%s", cases[i].name);
        assert_ok(dsc_shards_find(path, &list));
        assert_int_equal(list.is_val[0], cases[i].val);
        dsc_shards_free(&list);
    }
}

static void refuse(const char *folder, dsc_split split, dsc_status wanted, const char *message) {
    char spec[TEST_PATH + 64];
    dsc_dataset *set = NULL;
    test_spec("webdataset", folder, spec);
    assert_fails(wanted, message, dsc_dataset_open(spec, split, NULL, &set));
    assert_null(set);
}

static void test_refusals(void **state) {
    (void)state;
    char folder[TEST_PATH], path[TEST_PATH + 64];
    test_make_folder(folder);
    refuse(folder, DSC_SPLIT_TRAIN, DSC_E_NOT_FOUND, "holds no .tar files: give a folder of .tar files");
    snprintf(path, sizeof path, "%s/a-*.tar", folder);
    refuse(path, DSC_SPLIT_TRAIN, DSC_E_NOT_FOUND, "matches no files");
    snprintf(path, sizeof path, "%s/a-{0..1}.tar", folder);
    refuse(path, DSC_SPLIT_TRAIN, DSC_E_NOT_FOUND, "/a-0.tar': No such file");
    refuse("x{0..99999999}.tar", DSC_SPLIT_TRAIN, DSC_E_INVALID, "stands for more than 1048576 shards");
    refuse("x{000..999}{000..999}{0..99}.tar", DSC_SPLIT_TRAIN, DSC_E_INVALID, "more than 1048576 shards");
    refuse("x{000..999}{000..999}{0..99}*.tar", DSC_SPLIT_TRAIN, DSC_E_INVALID, "more than 4096 names with");
    refuse("{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}", DSC_SPLIT_TRAIN, DSC_E_INVALID,
           "17 pairs of braces: at most 16");
    member("1.png", "x", 1);
    end_shard(folder, "a.tar");
    refuse(folder, DSC_SPLIT_TRAIN, DSC_E_FORMAT, "sample '1' has an image, but no class (.cls)");
    member("1.cls", "1", 1);
    member("2.png", "x", 1);
    end_shard(folder, "a.tar");
    refuse(folder, DSC_SPLIT_TRAIN, DSC_E_FORMAT, "sample '1' has a class, but no image");
    add_sample("1", 0, "1");
    add_sample("1", 0, "0");
    end_shard(folder, "a.tar");
    refuse(folder, DSC_SPLIT_TRAIN, DSC_E_FORMAT, "sample '1' has two images");
    add_sample("1", 0, "1");
    member("1.CLS", "0", 1);
    end_shard(folder, "a.tar");
    refuse(folder, DSC_SPLIT_TRAIN, DSC_E_FORMAT, "sample '1' has two classes");
    add_sample("1", 0, " \n");
    end_shard(folder, "a.tar");
    refuse(folder, DSC_SPLIT_TRAIN, DSC_E_FORMAT, "the class of sample '1' is not a number or a name");
    add_sample("1", 0, "0");
    end_shard(folder, "a.tar");
    refuse(folder, DSC_SPLIT_TRAIN, DSC_E_FORMAT, "has 1 classes: must be 2");
    add_sample("1", 0, "99999999");
    end_shard(folder, "a.tar");
    refuse(folder, DSC_SPLIT_TRAIN, DSC_E_FORMAT, "has 100000000 classes: must be 2");
    add_sample("1", 0, "1");
    end_shard(folder, "a.tar");
    refuse(folder, DSC_SPLIT_VAL, DSC_E_NOT_FOUND,
           "has no validation shards: put the word val into their names");
    add_sample("7", 0, "2");
    end_shard(folder, "val.tar");
    refuse(folder, DSC_SPLIT_TRAIN, DSC_E_FORMAT,
           "/val.tar': sample '7' has class '2', which no training sample has");
    snprintf(path, sizeof path, "%s/a.tar", folder);
    assert_int_equal(unlink(path), 0);
    refuse(folder, DSC_SPLIT_TRAIN, DSC_E_NOT_FOUND, "has no training samples");
    snprintf(path, sizeof path, "%s/val.tar", folder);
    assert_int_equal(truncate(path, 700), 0);
    refuse(folder, DSC_SPLIT_TRAIN, DSC_E_FORMAT, "/val.tar' is broken after 0 samples: Truncated");
    test_write(folder, "val.tar", "\x1F\x8B\x08 this is packed", 18);
    refuse(folder, DSC_SPLIT_TRAIN, DSC_E_FORMAT, "is no tar file (compressed ones have to be unpacked)");
    test_remove(folder);
}

/* An image that breaks after the set was opened is named with its shard. */
static void test_broken_image(void **state) {
    (void)state;
    char folder[TEST_PATH], spec[TEST_PATH + 64], path[TEST_PATH + 64];
    float x[4 * 4 * 3];
    int32_t label;
    test_make_folder(folder);
    add_sample("a/1", 10, "0");
    member("a/._2.png", "hidden", 6); /* these two belong to no sample */
    member("a/2.png", "no image", 8);
    member("README", "x", 1);
    member("a/2.cls", "1", 1);
    member("a/3.png", "", 0);
    member("a/3.cls", "1", 1);
    end_shard(folder, "a.tar");
    test_spec("webdataset", folder, spec);
    dsc_dataset *set = open_part(spec, DSC_SPLIT_TRAIN);
    assert_ok(dsc_dataset_sample(set, 0, 1, 3, x, &label));
    assert_fails(DSC_E_FORMAT, "/a.tar: a/2' is no JPEG, PNG or WebP (8 bytes",
                 dsc_dataset_sample(set, 1, 0, 0, x, &label));
    assert_fails(DSC_E_FORMAT, "/a.tar: a/3' is no JPEG, PNG or WebP (0 bytes",
                 dsc_dataset_sample(set, 2, 0, 0, x, &label));
    snprintf(path, sizeof path, "%s/a.tar", folder);
    assert_int_equal(truncate(path, 530), 0);
    assert_fails(DSC_E_FORMAT, "/a.tar' ends after 530 of", dsc_dataset_sample(set, 0, 0, 0, x, &label));
    assert_int_equal(unlink(path), 0);
    assert_fails(DSC_E_NOT_FOUND, "/a.tar'", dsc_dataset_sample(set, 0, 0, 0, x, &label));
    dsc_dataset_close(&set);
    test_remove(folder);
}

static void test_out_of_memory(void **state) {
    (void)state;
    char folder[TEST_PATH], spec[TEST_PATH + 64];
    test_make_folder(folder);
    add_sample("1", 10, "ant");
    add_sample("2", 20, "bee");
    end_shard(folder, "a.tar");
    test_spec("webdataset", folder, spec);
    for (int64_t n = 1;; n++) {
        dsc_dataset *set = NULL;
        dsc_memory_fail_at(n);
        dsc_status status = dsc_dataset_open(spec, DSC_SPLIT_TRAIN, NULL, &set);
        dsc_memory_fail_at(0);
        dsc_dataset_close(&set);
        if (status == DSC_OK)
            break;
        assert_int_equal(status, DSC_E_MEMORY);
        assert_true(n < 1000);
    }
    test_remove(folder);
}
#else
static void test_refusals(void **state) {
    (void)state;
    dsc_dataset *set = NULL;
    assert_fails(DSC_E_UNSUPPORTED, "install libarchive-dev and build again",
                 dsc_dataset_open("webdataset:/nowhere/a.tar", DSC_SPLIT_TRAIN, NULL, &set));
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
#if defined DSC_HAVE_ARCHIVE && defined DSC_HAVE_PNG
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_splits),
        cmocka_unit_test(test_broken_image),
        cmocka_unit_test(test_out_of_memory),
#endif
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("data-shards", tests, NULL, NULL);
}
