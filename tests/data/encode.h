/* Writing JPEG, PNG and WebP images into memory, for tests. Without the libraries these fail the test: check
 * DSC_HAVE_JPEG, DSC_HAVE_PNG and DSC_HAVE_WEBP first. */
#ifndef DSC_TESTS_DATA_ENCODE_H
#define DSC_TESTS_DATA_ENCODE_H

#include "base/config.h"

#include <stddef.h>
#include <stdint.h>

typedef enum test_colours { TEST_GREY, TEST_RGB, TEST_CMYK, TEST_YCCK } test_colours;

typedef struct test_image {
    int w, h;
    uint8_t *pixels; /* [h, w, channels] */
} test_image;

/* A JPEG of pixels[h,w,channels] (1, 3 or 4). Returns its size; `out` has `room` bytes. */
size_t test_jpeg(const test_image *image, test_colours colours, int adobe_marker, int progressive,
                 size_t room, uint8_t *out);

typedef enum test_png_kind {
    TEST_PNG_RGB,
    TEST_PNG_GREY,
    TEST_PNG_GREY_ALPHA,
    TEST_PNG_RGBA,
    TEST_PNG_PALETTE,
    TEST_PNG_RGB16,
    TEST_PNG_GREY1,
    TEST_PNG_KINDS
} test_png_kind;

/* A PNG of the kind. `pixels` are as the kind stores them: RGB16 has two bytes per value, the high byte first;
 * PALETTE one index per pixel, colour i being (i, 255 - i, 2 i mod 256), with transparency; GREY1 one byte per pixel,
 * 0 or 1. */
size_t test_png(const test_image *image, test_png_kind kind, int interlaced, size_t room, uint8_t *out);

/* An uncompressed TIFF of grey pages, pixels[pages,h,w] of 8 or 16 bits, the low byte first; needs no library. Returns
 * its size; out holds 8 + pages * (h w bits / 8 + 114) bytes. */
size_t test_tiff(const uint8_t *pixels, int bits, int pages, int h, int w, uint8_t *out);

/* A WebP of pixels[h,w,3]. */
size_t test_webp(const test_image *image, int lossless, size_t room, uint8_t *out);

#endif
