#include "data/encode.h"

#include "test.h"

#include <stdlib.h>
#ifdef DSC_HAVE_JPEG
#include <jpeglib.h>
#endif
#ifdef DSC_HAVE_PNG
#include <png.h>
#endif
#ifdef DSC_HAVE_WEBP
#include <webp/encode.h>
#endif

#ifdef DSC_HAVE_JPEG
size_t test_jpeg(const test_image *image, test_colours colours, int adobe_marker, int progressive,
                 size_t room, uint8_t *out) {
    struct jpeg_compress_struct info;
    struct jpeg_error_mgr errors;
    info.err = jpeg_std_error(&errors);
    jpeg_create_compress(&info);
    unsigned char *buffer = NULL;
    unsigned long size = 0;
    jpeg_mem_dest(&info, &buffer, &size);
    info.image_width = (JDIMENSION)image->w;
    info.image_height = (JDIMENSION)image->h;
    info.input_components = colours == TEST_GREY ? 1 : colours == TEST_RGB ? 3 : 4;
    info.in_color_space = colours == TEST_GREY ? JCS_GRAYSCALE : colours == TEST_RGB ? JCS_RGB : JCS_CMYK;
    jpeg_set_defaults(&info);
    if (colours == TEST_CMYK)
        jpeg_set_colorspace(&info, JCS_CMYK);
    if (colours == TEST_YCCK)
        jpeg_set_colorspace(&info, JCS_YCCK);
    info.write_Adobe_marker = adobe_marker;
    jpeg_set_quality(&info, 100, TRUE);
    if (progressive)
        jpeg_simple_progression(&info);
    jpeg_start_compress(&info, TRUE);
    while (info.next_scanline < info.image_height) {
        JSAMPROW row =
            image->pixels + (size_t)info.next_scanline * (size_t)(image->w * info.input_components);
        jpeg_write_scanlines(&info, &row, 1);
    }
    jpeg_finish_compress(&info);
    jpeg_destroy_compress(&info);
    assert_true(size <= room);
    memcpy(out, buffer, size);
    free(buffer);
    return size;
}
#else
size_t test_jpeg(const test_image *image, test_colours colours, int adobe_marker, int progressive,
                 size_t room, uint8_t *out) {
    (void)image, (void)colours, (void)adobe_marker, (void)progressive, (void)room, (void)out;
    fail_msg("no JPEG library");
    return 0;
}
#endif

#ifdef DSC_HAVE_PNG
typedef struct sink {
    uint8_t *out;
    size_t size, room;
} sink;

static void sink_write(png_structp png, png_bytep data, size_t size) {
    sink *s = png_get_io_ptr(png);
    assert_true(s->size + size <= s->room);
    memcpy(s->out + s->size, data, size);
    s->size += size;
}

static void sink_flush(png_structp png) {
    (void)png;
}

static const struct {
    int type, depth, bytes; /* bytes a pixel in test_image */
} png_kinds[TEST_PNG_KINDS] = {
    {PNG_COLOR_TYPE_RGB, 8, 3},       {PNG_COLOR_TYPE_GRAY, 8, 1},    {PNG_COLOR_TYPE_GRAY_ALPHA, 8, 2},
    {PNG_COLOR_TYPE_RGB_ALPHA, 8, 4}, {PNG_COLOR_TYPE_PALETTE, 8, 1}, {PNG_COLOR_TYPE_RGB, 16, 6},
    {PNG_COLOR_TYPE_GRAY, 1, 1},
};

static void set_palette(png_structp png, png_infop info) {
    png_color colours[256];
    png_byte alpha[256];
    for (int i = 0; i < 256; i++) {
        colours[i] = (png_color){(png_byte)i, (png_byte)(255 - i), (png_byte)(2 * i)};
        alpha[i] = (png_byte)(i * 3);
    }
    png_set_PLTE(png, info, colours, 256);
    png_set_tRNS(png, info, alpha, 256, NULL);
}

size_t test_png(const test_image *image, test_png_kind kind, int interlaced, size_t room, uint8_t *out) {
    sink s = {out, 0, room};
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    png_set_write_fn(png, &s, sink_write, sink_flush);
    png_set_IHDR(png, info, (png_uint_32)image->w, (png_uint_32)image->h, png_kinds[kind].depth,
                 png_kinds[kind].type, interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    if (kind == TEST_PNG_PALETTE)
        set_palette(png, info);
    png_write_info(png, info);
    if (kind == TEST_PNG_GREY1)
        png_set_packing(png);
    int passes = png_set_interlace_handling(png);
    for (int pass = 0; pass < passes; pass++)
        for (int y = 0; y < image->h; y++)
            png_write_row(png, image->pixels + (size_t)y * (size_t)(image->w * png_kinds[kind].bytes));
    png_write_end(png, NULL);
    png_destroy_write_struct(&png, &info);
    return s.size;
}
#else
size_t test_png(const test_image *image, test_png_kind kind, int interlaced, size_t room, uint8_t *out) {
    (void)image, (void)kind, (void)interlaced, (void)room, (void)out;
    fail_msg("no PNG library");
    return 0;
}
#endif

static uint8_t *put(uint8_t *p, uint32_t value, int bytes) {
    for (int i = 0; i < bytes; i++)
        *p++ = (uint8_t)(value >> 8 * i);
    return p;
}

/* Each page: its directory of 9 entries, then its pixels as one strip. */
size_t test_tiff(const uint8_t *pixels, int bits, int pages, int h, int w, uint8_t *out) {
    enum { ENTRIES = 9, DIRECTORY = 2 + 12 * ENTRIES + 4 };
    const uint32_t bytes = (uint32_t)(h * w * bits / 8);
    uint8_t *p = out;
    memcpy(p, "II*", 4);
    p = put(p + 4, 8, 4);
    for (int n = 0; n < pages; n++) {
        const uint32_t at = (uint32_t)(p - out) + DIRECTORY;
        const uint32_t entries[ENTRIES][2] = {{256, (uint32_t)w}, {257, (uint32_t)h}, {258, (uint32_t)bits},
                                              {259, 1},           {262, 1},           {273, at},
                                              {277, 1},           {278, (uint32_t)h}, {279, bytes}};
        p = put(p, ENTRIES, 2);
        for (int i = 0; i < ENTRIES; i++) {
            p = put(p, entries[i][0], 2);
            p = put(p, 4, 2); /* a number of 32 bits */
            p = put(p, 1, 4);
            p = put(p, entries[i][1], 4);
        }
        p = put(p, n + 1 < pages ? at + bytes : 0, 4);
        memcpy(p, pixels + (size_t)n * bytes, bytes);
        p += bytes;
    }
    return (size_t)(p - out);
}

#ifdef DSC_HAVE_WEBP
size_t test_webp(const test_image *image, int lossless, size_t room, uint8_t *out) {
    uint8_t *packed = NULL;
    size_t size = lossless ? WebPEncodeLosslessRGB(image->pixels, image->w, image->h, 3 * image->w, &packed)
                           : WebPEncodeRGB(image->pixels, image->w, image->h, 3 * image->w, 90, &packed);
    assert_true(size > 0 && size <= room);
    memcpy(out, packed, size);
    WebPFree(packed);
    return size;
}
#else
size_t test_webp(const test_image *image, int lossless, size_t room, uint8_t *out) {
    (void)image, (void)lossless, (void)room, (void)out;
    fail_msg("built without libwebp");
    return 0;
}
#endif
