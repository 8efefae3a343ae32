/* Images with masks against broken inputs: PNG files and TIFF volumes, truncated and with flipped bits. They may be
 * accepted or refused; they must not crash, leak, hang, or be refused without a message. Sanitizers see the rest. */
#include "test.h"

#include "base/config.h"
#include "base/rng.h"
#include "data/encode.h"
#include "data/fixture.h"
#include "data/image_tiff.h"
#include "descent/data.h"

#include <stdlib.h>

enum { INPUTS = 3000, ROOM = 4096, SIDE = 8, PAGES = 3, PIXELS = SIDE * SIDE };

static char folder[TEST_PATH];
static uint8_t broken[ROOM];

/* Writes the contents to `name` with one to four flipped bits, or cut off, or both. */
static void write_broken(const char *name, const uint8_t *contents, size_t size, uint32_t stream,
                         uint64_t i) {
    dsc_rng rng = dsc_rng_start(1, DSC_RNG_TEST, stream, i);
    uint32_t choice = dsc_rng_below(&rng, 4);
    memcpy(broken, contents, size);
    for (uint32_t n = choice ? 1 + dsc_rng_below(&rng, 4) : 0; n > 0; n--)
        broken[dsc_rng_below(&rng, (uint32_t)size)] ^= (uint8_t)(1u << dsc_rng_below(&rng, 8));
    test_write(folder, name, broken, choice <= 1 ? dsc_rng_below(&rng, (uint32_t)size + 1) : size);
}

/* Opens a split and reads all samples. Returns 1 if that works. */
static int try_set(const char *spec, dsc_split split) {
    dsc_data_options o;
    dsc_dataset *set = NULL;
    dsc_data_options_init(&o);
    o.elastic = 3;
    if (dsc_dataset_open(spec, split, &o, &set) != DSC_OK) {
        assert_true(strlen(dsc_error_message()) > 10);
        return 0;
    }
    const dsc_dataset_info info = dsc_dataset_get_info(set);
    const int64_t labels = dsc_dataset_label_count(set);
    float *x = malloc((size_t)(info.h * info.w * info.c) * sizeof *x);
    int32_t *label = malloc((size_t)labels * sizeof *label);
    assert_true(x && label);
    for (int64_t i = 0; i < info.count; i++) {
        assert_ok(dsc_dataset_sample(set, i, 1, i, x, label));
        for (int64_t k = 0; k < labels; k++)
            assert_true(label[k] >= 0 && label[k] < info.classes);
    }
    free(x);
    free(label);
    dsc_dataset_close(&set);
    return 1;
}

/* Reads a TIFF as predict does, page by page. Returns 1 where all of it can be read. */
static int try_pages(const char *name) {
    char path[TEST_PATH + 64];
    static dsc_bytes pixels; /* used again, as predict does */
    dsc_tiff *tiff = NULL;
    int64_t count = 0, h, w;
    int found = 1, bits;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_ok(dsc_tiff_count(path, &count));
    assert_true(count > 0);
    dsc_status status = dsc_tiff_open(path, &tiff);
    for (int64_t i = 0; i < count && status == DSC_OK && found; i++) {
        assert_int_equal(dsc_tiff_at(tiff), i);
        if (dsc_tiff_decode(tiff, &pixels, &h, &w, &bits) == DSC_OK)
            pixels.data[3 * h * w - 1] ^= 1; /* the last byte is there */
        status = dsc_tiff_next(tiff, &found);
    }
    if (status != DSC_OK)
        assert_true(strlen(dsc_error_message()) > 10);
    else
        assert_int_equal(dsc_tiff_at(tiff) + 1, count);
    dsc_tiff_close(&tiff);
    if (pixels.capacity > 1 << 20)
        dsc_bytes_free(&pixels);
    return status == DSC_OK;
}

/* Breaks one of the two files, by turns. */
static void fuzz(const char *const names[2], uint8_t contents[2][ROOM], const size_t sizes[2],
                 uint32_t stream) {
    char spec[TEST_PATH + 32];
    int accepted = 0;
    test_spec("masks", folder, spec);
    for (int f = 0; f < 2; f++)
        test_write(folder, names[f], contents[f], sizes[f]);
    assert_true(try_set(spec, DSC_SPLIT_TRAIN) && try_set(spec, DSC_SPLIT_VAL));
    for (uint64_t i = 0; i < INPUTS; i++) {
        const int f = (int)(i % 2);
        write_broken(names[f], contents[f], sizes[f], stream, i);
        const int pages = !dsc_tiff_has_name(names[f]) || try_pages(names[f]);
        const int set = try_set(spec, i % 4 < 2 ? DSC_SPLIT_TRAIN : DSC_SPLIT_VAL);
        assert_true(pages || !set);
        accepted += set;
        test_write(folder, names[f], contents[f], sizes[f]);
    }
    assert_in_range(accepted, 1, INPUTS - 1);
}

static void test_files(void **state) {
    (void)state;
#ifndef DSC_HAVE_PNG
    skip();
#endif
    static const char *const names[] = {"image/1.png", "label/1.png"};
    static uint8_t contents[2][ROOM], pixels[PIXELS];
    size_t sizes[2];
    test_make_folder(folder);
    for (int f = 0; f < 2; f++) {
        for (int i = 0; i < PIXELS; i++)
            pixels[i] = (uint8_t)(f ? i % 3 : i * 4);
        const test_image image = {SIDE, SIDE, pixels};
        sizes[f] = test_png(&image, TEST_PNG_GREY, 0, ROOM, contents[f]);
        test_write(folder, f ? "label/2.png" : "image/2.png", contents[f], sizes[f]);
    }
    fuzz(names, contents, sizes, 41);
    test_remove(folder);
}

static void test_volumes(void **state) {
    (void)state;
#ifndef DSC_HAVE_TIFF
    skip();
#endif
    static const char *const names[] = {"image.tif", "label.tif"};
    static uint8_t contents[2][ROOM], pixels[PAGES * PIXELS];
    size_t sizes[2];
    test_make_folder(folder);
    for (int f = 0; f < 2; f++) {
        for (int i = 0; i < PAGES * PIXELS; i++)
            pixels[i] = (uint8_t)(f ? i % 3 : i * 4);
        sizes[f] = test_tiff(pixels, 8, PAGES, SIDE, SIDE, contents[f]);
    }
    fuzz(names, contents, sizes, 42);
    test_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_files), cmocka_unit_test(test_volumes)};
    return cmocka_run_group_tests_name("data-fuzz-masks", tests, NULL, NULL);
}
