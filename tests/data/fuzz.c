/* Every reader against 10,000 broken inputs: valid small files, truncated and with flipped bits. They may be
 * accepted or refused; they must not crash, leak, hang, or be refused without a message. Sanitizers see the
 * rest.
 */
#include "test.h"

#include "base/rng.h"
#include "data/dataset.h"
#include "data/encode.h"
#include "data/fixture.h"
#include "data/image_decode.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { INPUTS = 10000, ROOM = 1 << 14, SAMPLE = 32 * 32 * 3 };

static uint8_t base[ROOM], broken[ROOM];
static float x[4 * SAMPLE];

/* A copy of base[size] with one to eight flipped bits, or cut off, or both. Returns its size. */
static size_t mutate(dsc_rng *rng, size_t size) {
    memcpy(broken, base, size);
    uint32_t way = dsc_rng_below(rng, 4);
    if (way != 0) {
        uint32_t flips = 1 + dsc_rng_below(rng, 8);
        for (uint32_t i = 0; i < flips; i++) /* headers are small: every other flip goes there */
            broken[dsc_rng_below(rng, i % 2 && size > 64 ? 64 : (uint32_t)size)] ^=
                (uint8_t)(1u << dsc_rng_below(rng, 8));
    }
    return way <= 1 ? dsc_rng_below(rng, (uint32_t)size + 1) : size;
}

static void check(dsc_status status) {
    if (status != DSC_OK)
        assert_true(strlen(dsc_error_message()) > 10);
}

/* Opens a set and, if that works, reads all its samples. */
static int try_set(const char *spec, dsc_split split, int64_t image_size) {
    dsc_data_options options;
    dsc_data_options_init(&options);
    options.image_size = image_size;
    dsc_dataset *set = NULL;
    dsc_status status = dsc_dataset_open(spec, split, &options, &set);
    check(status);
    if (status != DSC_OK)
        return 0;
    dsc_dataset_info info = dsc_dataset_get_info(set);
    if (info.h * info.w * info.c <= 4 * SAMPLE) {
        for (int64_t i = 0; i < info.count && i < 4; i++) {
            int32_t label = -1;
            status = dsc_dataset_sample(set, i, (int)(i % 2), 0, x, &label);
            check(status);
            if (status == DSC_OK)
                assert_true(label >= 0 && label < info.classes);
        }
    }
    dsc_dataset_close(&set);
    return 1;
}

/* ---- whole files ---- */
static void fuzz_file(const char *kind, const char *folder, const char *name, size_t size, uint32_t stream) {
    char spec[TEST_PATH + 32];
    test_spec(kind, folder, spec);
    test_write(folder, name, base, size);
    assert_true(try_set(spec, DSC_SPLIT_VAL, 0));
    for (uint64_t i = 0; i < INPUTS; i++) {
        dsc_rng rng = dsc_rng_start(1, DSC_RNG_TEST, stream, i);
        test_write(folder, name, broken, mutate(&rng, size));
        try_set(spec, DSC_SPLIT_VAL, 0);
    }
}

static void test_cifar_files(void **state) {
    (void)state;
    char folder[TEST_PATH];
    test_make_folder(folder);
    fuzz_file("cifar10", folder, "test_batch.bin", test_cifar(2, 1, 10, base), 1);
    fuzz_file("cifar100", folder, "test.bin", test_cifar(2, 2, 100, base), 2);
    test_remove(folder);
}

/* The four files of an IDX set in turn; packed ones have four dimensions, channels first, and names like EMNIST's. */
static void fuzz_idx(int packed) {
    const char *const names[] = {packed ? "a-train-images-idx4-ubyte" : "train-images-idx3-ubyte",
                                 packed ? "a-train-labels-idx1-ubyte" : "train-labels-idx1-ubyte",
                                 packed ? "a-test-images-idx4-ubyte" : "t10k-images-idx3-ubyte",
                                 packed ? "a-test-labels-idx1-ubyte" : "t10k-labels-idx1-ubyte"};
    static uint8_t contents[4][ROOM];
    size_t sizes[4];
    const uint32_t images[] = {4, 8, 8}, planes[] = {4, 2, 5, 8}, labels[] = {4};
    char folder[TEST_PATH], spec[TEST_PATH + 32], name[64], path[TEST_PATH + 64];
    test_make_folder(folder);
    test_spec("mnist", folder, spec);
    for (int f = 0; f < 4; f++) {
        sizes[f] = f % 2    ? test_idx(1, labels, 0, 3, base)
                   : packed ? test_idx(4, planes, f, 256, base)
                            : test_idx(3, images, f, 256, base);
        snprintf(name, sizeof name, "%s%s", names[f], packed ? ".gz" : "");
        (packed ? test_write_gz : test_write)(folder, name, base, sizes[f]);
        snprintf(path, sizeof path, "%s/%s", folder, name);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        sizes[f] = fread(contents[f], 1, ROOM, file);
        fclose(file);
    }
    assert_true(try_set(spec, DSC_SPLIT_VAL, 0));
    for (uint64_t i = 0; i < INPUTS; i++) {
        int f = (int)(i % 4);
        dsc_rng rng = dsc_rng_start(1, DSC_RNG_TEST, packed ? 4 : 3, i);
        snprintf(name, sizeof name, "%s%s", names[f], packed ? ".gz" : "");
        memcpy(base, contents[f], sizes[f]);
        test_write(folder, name, broken, mutate(&rng, sizes[f]));
        try_set(spec, i % 8 < 4 ? DSC_SPLIT_VAL : DSC_SPLIT_TRAIN, 0);
        test_write(folder, name, contents[f], sizes[f]);
    }
    test_remove(folder);
}

static void test_idx_raw(void **state) {
    (void)state;
    fuzz_idx(0);
}

static void test_idx_packed(void **state) {
    (void)state;
    fuzz_idx(1);
}

/* ---- images in memory ---- */
#if defined DSC_HAVE_JPEG || defined DSC_HAVE_PNG || defined DSC_HAVE_WEBP
static uint8_t pixels[16 * 16 * 6];

static void fill_pixels(void) {
    for (size_t i = 0; i < sizeof pixels; i++)
        pixels[i] = (uint8_t)(i * i + i / 11);
}

static int try_image(size_t size, int shrink) {
    dsc_encoded encoded = {"input", broken, (int64_t)size};
    static dsc_bytes out; /* reused, as a loader does */
    int64_t h = 0, w = 0;
    dsc_status status = dsc_image_size(&encoded, &h, &w);
    check(status);
    if (status == DSC_OK) {
        status = dsc_image_decode(&encoded, shrink, &out, &h, &w);
        check(status);
    }
    if (status == DSC_OK) {
        assert_true(h > 0 && w > 0 && h * w * 3 <= out.capacity);
        out.data[h * w * 3 - 1] ^= 1; /* the last byte is there */
    }
    if (out.capacity > 1 << 20)
        dsc_bytes_free(&out);
    return status == DSC_OK;
}
#endif

#ifdef DSC_HAVE_JPEG
static void test_jpeg_images(void **state) {
    (void)state;
    fill_pixels();
    int accepted = 0;
    for (uint64_t i = 0; i < INPUTS; i++) {
        dsc_rng rng = dsc_rng_start(1, DSC_RNG_TEST, 5, i);
        test_image image = {8 + (int)dsc_rng_below(&rng, 9), 8 + (int)dsc_rng_below(&rng, 9), pixels};
        size_t size = test_jpeg(&image, (test_colours)(i % 4), i % 8 > 3, i % 3 == 0, ROOM, base);
        accepted += try_image(mutate(&rng, size), 1 << i % 4);
    }
    assert_true(accepted > INPUTS / 100); /* else nothing but signatures was tested */
    assert_true(accepted < INPUTS);
}
#endif

#ifdef DSC_HAVE_WEBP
static void test_webp_images(void **state) {
    (void)state;
    fill_pixels();
    int accepted = 0;
    for (uint64_t i = 0; i < INPUTS; i++) {
        dsc_rng rng = dsc_rng_start(1, DSC_RNG_TEST, 8, i);
        test_image image = {8 + (int)dsc_rng_below(&rng, 9), 8 + (int)dsc_rng_below(&rng, 9), pixels};
        static size_t sizes[2];
        static uint8_t packed[2][ROOM];
        if (i % 64 < 2) /* encoding takes longer than decoding */
            sizes[i % 2] = test_webp(&image, i % 2, ROOM, packed[i % 2]);
        memcpy(base, packed[i % 2], sizes[i % 2]);
        accepted += try_image(mutate(&rng, sizes[i % 2]), 1);
    }
    assert_true(accepted > INPUTS / 100);
    assert_true(accepted < INPUTS);
}
#endif

#ifdef DSC_HAVE_PNG
static uint32_t big_endian(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Makes the checksums of all chunks right again, so that flipped bits get past them. */
static void repair(size_t size) {
    for (size_t at = 8; at + 12 <= size;) {
        size_t length = big_endian(broken + at);
        if (length > size - at - 12)
            return;
        uLong sum = crc32(0, broken + at + 4, (uInt)(length + 4));
        for (int k = 0; k < 4; k++)
            broken[at + 8 + length + (size_t)k] = (uint8_t)(sum >> (24 - 8 * k));
        at += length + 12;
    }
}

static void test_png_images(void **state) {
    (void)state;
    fill_pixels();
    int accepted = 0;
    for (uint64_t i = 0; i < INPUTS; i++) {
        dsc_rng rng = dsc_rng_start(1, DSC_RNG_TEST, 6, i);
        test_image image = {8 + (int)dsc_rng_below(&rng, 9), 8 + (int)dsc_rng_below(&rng, 9), pixels};
        test_png_kind kind = (test_png_kind)(i % TEST_PNG_KINDS);
        for (size_t p = 0; kind == TEST_PNG_GREY1 && p < sizeof pixels; p++)
            pixels[p] &= 1;
        size_t size = test_png(&image, kind, i % 2 == 0, ROOM, base);
        size = mutate(&rng, size);
        if (i % 3)
            repair(size);
        accepted += try_image(size, 1);
        if (kind == TEST_PNG_GREY1)
            fill_pixels();
    }
    assert_true(accepted > INPUTS / 100);
    assert_true(accepted < INPUTS);
}

/* ---- folders ---- */
/* A name made of a valid one by the same means; never empty, "." or "..", and without slashes. */
static void mutate_name(dsc_rng *rng, const char *name, char *out, size_t room) {
    size_t size = strlen(name);
    memcpy(base, name, size);
    size_t got = mutate(rng, size);
    got = got < room - 2 ? got : room - 2;
    out[0] = 'n';
    memcpy(out + 1, broken, got);
    out[got + 1] = '\0';
    for (char *p = out; *p; p++)
        if (*p == '/')
            *p = '_';
}

/* A small set to which each time a file, folder or link with a broken name is added, or in which a file is broken. */
static void test_listing(void **state) {
    (void)state;
    char folder[TEST_PATH], spec[TEST_PATH + 32], name[256], path[2 * TEST_PATH];
    static const char *const places[] = {"train",  "val", "train/ant", "train/bee", "train/ant/images",
                                         "val/bee"};
    static const char *const names[] = {"bee", "5.png", "5.JPEG", "images", "train"};
    static uint8_t image_file[ROOM];
    test_make_folder(folder);
    test_spec("imagefolder", folder, spec);
    fill_pixels();
    test_image image = {16, 16, pixels};
    size_t size = test_png(&image, TEST_PNG_RGB, 0, ROOM, image_file);
    const char *const files[] = {"train/ant/images/0.png", "train/bee/1.png", "val/bee/2.png"};
    for (int f = 0; f < 3; f++)
        test_write(folder, files[f], image_file, size);
    assert_true(try_set(spec, DSC_SPLIT_VAL, 8));
    int accepted = 0;
    for (uint64_t i = 0; i < INPUTS; i++) {
        dsc_rng rng = dsc_rng_start(1, DSC_RNG_TEST, 7, i);
        const char *place = places[dsc_rng_below(&rng, 6)];
        mutate_name(&rng, names[dsc_rng_below(&rng, 5)], name, sizeof name);
        snprintf(path, sizeof path, "%s/%s/%s", folder, place, name);
        uint32_t way = dsc_rng_below(&rng, 4);
        memcpy(base, image_file, size);
        size_t cut = mutate(&rng, size);
        if (way == 0)
            assert_int_equal(mkdir(path, 0777), 0);
        else if (way == 1)
            assert_int_equal(symlink(i % 2 ? ".." : "nowhere", path), 0);
        else
            test_write(folder, path + strlen(folder) + 1, broken, cut);
        accepted += try_set(spec, i % 2 ? DSC_SPLIT_VAL : DSC_SPLIT_TRAIN, 8);
        test_remove(path);
    }
    assert_true(accepted > INPUTS / 2);
    assert_true(accepted < INPUTS);
    test_remove(folder);
}
#endif

#if defined DSC_HAVE_ARCHIVE && defined DSC_HAVE_PNG
/* A shard whose headers, classes and images are damaged; checksums of headers are made right again in most. */
static void test_shards(void **state) {
    (void)state;
    char folder[TEST_PATH], spec[TEST_PATH + 32];
    static uint8_t packed[4096];
    size_t size = 0;
    int accepted = 0;
    fill_pixels();
    test_image image = {8, 8, pixels};
    size_t png_size = test_png(&image, TEST_PNG_RGB, 0, sizeof packed, packed);
    for (int i = 0; i < 3; i++) {
        char name[32], class[2] = {(char)('0' + i), 0};
        snprintf(name, sizeof name, "k/%d.png", i);
        size += test_tar_member(name, packed, png_size, base + size);
        snprintf(name, sizeof name, "k/%d.cls", i);
        size += test_tar_member(name, class, 1, base + size);
    }
    memset(base + size, 0, 1024);
    size += 1024;
    assert_true(size <= ROOM);
    test_make_folder(folder);
    test_spec("webdataset", folder, spec);
    test_write(folder, "a.tar", base, size);
    assert_true(try_set(spec, DSC_SPLIT_TRAIN, 8));
    for (uint64_t i = 0; i < INPUTS; i++) {
        dsc_rng rng = dsc_rng_start(1, DSC_RNG_TEST, 9, i);
        size_t cut = mutate(&rng, size);
        for (size_t at = 0; i % 4 && at + 512 <= cut; at += 512) {
            unsigned sum = 8 * ' ';
            if (memcmp(broken + at + 257, "ustar", 5) != 0)
                continue;
            for (int k = 0; k < 512; k++)
                sum += k >= 148 && k < 156 ? 0 : broken[at + (size_t)k];
            char text[8];
            snprintf(text, sizeof text, "%06o", sum & 0777777);
            memcpy(broken + at + 148, text, 7);
        }
        test_write(folder, "a.tar", broken, cut);
        accepted += try_set(spec, DSC_SPLIT_TRAIN, 8);
    }
    assert_true(accepted > INPUTS / 100);
    assert_true(accepted < INPUTS);
    test_remove(folder);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cifar_files),
        cmocka_unit_test(test_idx_raw),
        cmocka_unit_test(test_idx_packed),
#ifdef DSC_HAVE_JPEG
        cmocka_unit_test(test_jpeg_images),
#endif
#ifdef DSC_HAVE_WEBP
        cmocka_unit_test(test_webp_images),
#endif
#ifdef DSC_HAVE_PNG
        cmocka_unit_test(test_png_images),
        cmocka_unit_test(test_listing),
#endif
#if defined DSC_HAVE_ARCHIVE && defined DSC_HAVE_PNG
        cmocka_unit_test(test_shards),
#endif
    };
    return cmocka_run_group_tests_name("data-fuzz", tests, NULL, NULL);
}
