/* Decoding with libjpeg and libpng. Both report errors through a function that must not return: it keeps the
 * message and jumps back to where the decoding began, which cleans up. Nothing is printed. */
#include "data/image_decode.h"

#include "base/config.h"
#include "base/error.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#ifdef DSC_HAVE_JPEG
#include <jpeglib.h>
/* after jpeglib.h */
#include <jerror.h>
#endif
#ifdef DSC_HAVE_PNG
#include <png.h>
#endif

enum { MAX_SCANS = 500, MESSAGE_SIZE = 256 };
/* Bytes that libjpeg may use, which keeps all coefficients of a progressive image. */
static const long max_jpeg_memory = 1L << 30;

typedef enum image_type { IMAGE_OTHER, IMAGE_JPEG, IMAGE_PNG, IMAGE_WEBP } image_type;

static image_type type_of(const dsc_encoded *e) {
    static const uint8_t jpeg[] = {0xFF, 0xD8, 0xFF};
    static const uint8_t png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
    if (e->size >= (int64_t)sizeof jpeg && memcmp(e->data, jpeg, sizeof jpeg) == 0)
        return IMAGE_JPEG;
    if (e->size >= (int64_t)sizeof png && memcmp(e->data, png, sizeof png) == 0)
        return IMAGE_PNG;
    return dsc_webp_is(e) ? IMAGE_WEBP : IMAGE_OTHER;
}

int dsc_image_bits(const dsc_encoded *e) {
    enum { PNG_BITS = 24 }; /* offset of the bit depth: after signature, IHDR, width and height */
    return type_of(e) == IMAGE_PNG && e->size > PNG_BITS ? e->data[PNG_BITS] : 8;
}

static dsc_status fail_other(const dsc_encoded *e) {
    static const char *const tiff[] = {"II*", "MM\0*", "II+", "MM\0+"}; /* 4 bytes each, a final 0 included */
    char start[16] = " nowhere";
    for (size_t i = 0; i < sizeof tiff / sizeof *tiff; i++)
        if (e->size >= 4 && memcmp(e->data, tiff[i], 4) == 0)
            return DSC_FAIL(
                DSC_E_FORMAT,
                "'%s' is a TIFF, which only masks:DIR and predict --masks take (as .tif or .tiff): save "
                "it as PNG, or as JPEG or WebP",
                e->name);
    if (e->size > 0)
        start[0] = '\0';
    for (int i = 0; i < 4 && i < e->size; i++)
        snprintf(start + 3 * i, sizeof start - 3 * (size_t)i, " %02x", e->data[i]);
    return DSC_FAIL(DSC_E_FORMAT, "'%s' is no JPEG, PNG or WebP (%lld bytes, starts%s)", e->name,
                    (long long)e->size, start);
}

static int fits(int64_t h, int64_t w) {
    return h <= DSC_IMAGE_SIDE && w <= DSC_IMAGE_SIDE && h * w <= DSC_IMAGE_PIXELS;
}

static dsc_status check_size(const dsc_encoded *e, int64_t h, int64_t w) {
    if (h < 1 || w < 1 || !fits(h, w))
        return DSC_FAIL(DSC_E_FORMAT,
                        "'%s' has %lld x %lld pixels: at most %d a side and %d in all are accepted", e->name,
                        (long long)w, (long long)h, DSC_IMAGE_SIDE, DSC_IMAGE_PIXELS);
    return DSC_OK;
}

/* ---- JPEG ---- */
#ifdef DSC_HAVE_JPEG
typedef struct jpeg_reader {
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    int large; /* 1: larger than images that are decoded at full size */
    jmp_buf escape;
    char message[JMSG_LENGTH_MAX];
} jpeg_reader;

static void jpeg_on_error(j_common_ptr info) {
    jpeg_reader *reader = info->client_data;
    if (info->err->msg_code == JERR_NO_BACKING_STORE)
        snprintf(reader->message, sizeof reader->message,
                 "as a progressive file it needs more than %ld MiB to be decoded: save it as a baseline JPEG",
                 max_jpeg_memory >> 20);
    else
        reader->errors.format_message(info, reader->message);
    longjmp(reader->escape, 1);
}

/* A file that ends too early is an error; other warnings are common in the wild and harmless. In a large image it is
 * also an error when the compressed data end before all pixels are decoded: the header may be damaged, so that the
 * image only looks large. */
static void jpeg_on_message(j_common_ptr info, int level) {
    const jpeg_reader *reader = info->client_data;
    int code = info->err->msg_code;
    if (level < 0 && (code == JWRN_JPEG_EOF || (reader->large && code == JWRN_HIT_MARKER)))
        jpeg_on_error(info);
}

static void jpeg_on_output(j_common_ptr info) {
    (void)info;
}

/* A tiny progressive file can hold very many scans, each of which costs a pass over the whole image. */
static void jpeg_on_progress(j_common_ptr info) {
    jpeg_reader *reader = info->client_data;
    if (reader->info.input_scan_number > MAX_SCANS) {
        snprintf(reader->message, sizeof reader->message, "more than %d scans", MAX_SCANS);
        longjmp(reader->escape, 1);
    }
}

/* Opens the image and reads its header; errors jump to reader->escape. */
static void jpeg_start(jpeg_reader *reader, const dsc_encoded *e) {
    reader->info.err = jpeg_std_error(&reader->errors);
    reader->errors.error_exit = jpeg_on_error;
    reader->errors.emit_message = jpeg_on_message;
    reader->errors.output_message = jpeg_on_output;
    reader->info.client_data = reader;
    jpeg_create_decompress(&reader->info);
    reader->info.mem->max_memory_to_use = max_jpeg_memory;
    reader->progress.progress_monitor = jpeg_on_progress;
    reader->info.progress = &reader->progress;
    jpeg_mem_src(&reader->info, e->data, (unsigned long)e->size);
    jpeg_read_header(&reader->info, TRUE);
}

/* The functions with setjmp change no variables of their own, and leave the cleaning up to their callers. */
static dsc_status jpeg_try_size(jpeg_reader *reader, const dsc_encoded *e, int64_t *h, int64_t *w) {
    if (setjmp(reader->escape))
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is a broken JPEG: %s", e->name, reader->message);
    jpeg_start(reader, e);
    *h = reader->info.image_height;
    *w = reader->info.image_width;
    return DSC_OK;
}

static dsc_status jpeg_size(const dsc_encoded *e, int64_t *h, int64_t *w) {
    jpeg_reader reader;
    memset(&reader, 0, sizeof reader);
    dsc_status status = jpeg_try_size(&reader, e, h, w);
    jpeg_destroy_decompress(&reader.info);
    return status;
}

/* C M Y K to R G B; Adobe's files hold the inks inverted. */
static void cmyk_to_rgb(const uint8_t *cmyk, int64_t w, int inverted, uint8_t *rgb) {
    for (int64_t x = 0; x < w; x++) {
        for (int c = 0; c < 3; c++) {
            int ink = cmyk[4 * x + c], black = cmyk[4 * x + 3];
            int light = inverted ? ink * black : (255 - ink) * (255 - black);
            rgb[3 * x + c] = (uint8_t)((light + 127) / 255);
        }
    }
}

/* Reads all rows of the decompression that `reader` has started into out[h,w,3]; errors jump to
 * reader->escape. */
static void jpeg_read_rows(jpeg_reader *reader, uint8_t *out) {
    struct jpeg_decompress_struct *info = &reader->info;
    int64_t w = info->output_width;
    JSAMPARRAY cmyk = NULL;
    if (info->out_color_space == JCS_CMYK)
        cmyk = info->mem->alloc_sarray((j_common_ptr)info, JPOOL_IMAGE, (JDIMENSION)(4 * w), 1);
    while (info->output_scanline < info->output_height) {
        JSAMPROW row = out + (int64_t)info->output_scanline * w * 3;
        jpeg_read_scanlines(info, cmyk ? cmyk : &row, 1);
        if (cmyk)
            cmyk_to_rgb(cmyk[0], w, info->saw_Adobe_marker, row);
    }
}

static dsc_status jpeg_try_decode(jpeg_reader *reader, const dsc_encoded *e, int shrink, dsc_bytes *out) {
    struct jpeg_decompress_struct *const info = &reader->info;
    if (setjmp(reader->escape))
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is a broken JPEG: %s", e->name, reader->message);
    jpeg_start(reader, e);
    int cmyk = info->jpeg_color_space == JCS_CMYK || info->jpeg_color_space == JCS_YCCK;
    info->out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    reader->large = !fits(info->image_height, info->image_width);
    info->scale_num = 1;
    info->scale_denom = (unsigned)shrink;
    jpeg_calc_output_dimensions(info);
    for (; !fits(info->output_height, info->output_width) && info->scale_denom < 8;
         jpeg_calc_output_dimensions(info))
        info->scale_denom *= 2;
    DSC_TRY(check_size(e, info->output_height, info->output_width));
    DSC_TRY(dsc_bytes_reserve(out, (int64_t)info->output_height * info->output_width * 3));
    jpeg_start_decompress(info);
    jpeg_read_rows(reader, out->data);
    return DSC_OK;
}

static dsc_status jpeg_decode(const dsc_encoded *e, int shrink, dsc_bytes *out, int64_t *h, int64_t *w) {
    jpeg_reader reader;
    memset(&reader, 0, sizeof reader);
    dsc_status status = jpeg_try_decode(&reader, e, shrink, out);
    *h = reader.info.output_height;
    *w = reader.info.output_width;
    jpeg_destroy_decompress(&reader.info);
    return status;
}
#else
static dsc_status jpeg_size(const dsc_encoded *e, int64_t *h, int64_t *w) {
    (void)h, (void)w;
    return DSC_FAIL(DSC_E_UNSUPPORTED,
                    "'%s' is a JPEG, which this build cannot read: install libjpeg's headers and build again",
                    e->name);
}

static dsc_status jpeg_decode(const dsc_encoded *e, int shrink, dsc_bytes *out, int64_t *h, int64_t *w) {
    (void)shrink, (void)out;
    return jpeg_size(e, h, w);
}
#endif

/* ---- PNG ---- */
#ifdef DSC_HAVE_PNG
typedef struct png_reader {
    png_structp png;
    png_infop info;
    const uint8_t *data;
    size_t left;
    jmp_buf escape;
    char message[MESSAGE_SIZE];
} png_reader;

static void png_on_error(png_structp png, png_const_charp message) {
    png_reader *reader = png_get_error_ptr(png);
    snprintf(reader->message, sizeof reader->message, "%s", message);
    longjmp(reader->escape, 1);
}

static void png_on_warning(png_structp png, png_const_charp message) {
    (void)png, (void)message;
}

static void png_on_read(png_structp png, png_bytep out, size_t size) {
    png_reader *reader = png_get_io_ptr(png);
    if (size > reader->left)
        png_error(png, "the file ends too early");
    memcpy(out, reader->data, size);
    reader->data += size;
    reader->left -= size;
}

/* The header chunk comes first and has a fixed place. */
static dsc_status png_size(const dsc_encoded *e, int64_t *h, int64_t *w) {
    if (e->size < 33 || memcmp(e->data + 12, "IHDR", 4) != 0)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is a broken PNG: it has no header", e->name);
    const uint8_t *b = e->data + 16;
    *w = (int64_t)b[0] << 24 | (int64_t)b[1] << 16 | (int64_t)b[2] << 8 | b[3];
    *h = (int64_t)b[4] << 24 | (int64_t)b[5] << 16 | (int64_t)b[6] << 8 | b[7];
    return DSC_OK;
}

/* Everything to 8-bit RGB, then all rows (and all passes of an interlaced file) into out[h,w,3]. */
static dsc_status png_try_decode(png_reader *reader, const dsc_encoded *e, int64_t h, int64_t w,
                                 uint8_t *out) {
    png_structp const png = reader->png;
    if (setjmp(reader->escape))
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is a broken PNG: %s", e->name, reader->message);
    png_set_read_fn(png, reader, png_on_read);
    png_set_user_limits(png, DSC_IMAGE_SIDE, DSC_IMAGE_SIDE);
    png_read_info(png, reader->info);
    png_set_expand(png);
    png_set_scale_16(png);
    png_set_strip_alpha(png);
    png_set_gray_to_rgb(png);
    int passes = png_set_interlace_handling(png);
    png_read_update_info(png, reader->info);
    if (png_get_image_height(png, reader->info) != (png_uint_32)h ||
        png_get_rowbytes(png, reader->info) != (size_t)(3 * w))
        png_error(png, "its rows have an unexpected length");
    for (int pass = 0; pass < passes; pass++)
        for (int64_t y = 0; y < h; y++)
            png_read_row(png, out + y * w * 3, NULL);
    png_read_end(png, NULL);
    return DSC_OK;
}

/* Starting libpng can fail by a jump, too. */
static int png_try_start(png_reader *reader) {
    if (setjmp(reader->escape))
        return 0;
    reader->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, reader, png_on_error, png_on_warning);
    if (reader->png)
        reader->info = png_create_info_struct(reader->png);
    return reader->info != NULL;
}

static dsc_status png_decode(const dsc_encoded *e, int shrink, dsc_bytes *out, int64_t *h, int64_t *w) {
    (void)shrink;
    DSC_TRY(png_size(e, h, w));
    DSC_TRY(check_size(e, *h, *w));
    DSC_TRY(dsc_bytes_reserve(out, *h * *w * 3));
    png_reader reader;
    memset(&reader, 0, sizeof reader);
    reader.data = e->data;
    reader.left = (size_t)e->size;
    dsc_status status = png_try_start(&reader) ? png_try_decode(&reader, e, *h, *w, out->data)
                                               : DSC_FAIL(DSC_E_MEMORY, "'%s': libpng cannot start", e->name);
    png_destroy_read_struct(&reader.png, &reader.info, NULL);
    return status;
}
#else
static dsc_status png_size(const dsc_encoded *e, int64_t *h, int64_t *w) {
    (void)h, (void)w;
    return DSC_FAIL(DSC_E_UNSUPPORTED,
                    "'%s' is a PNG, which this build cannot read: install libpng's headers and build again",
                    e->name);
}

static dsc_status png_decode(const dsc_encoded *e, int shrink, dsc_bytes *out, int64_t *h, int64_t *w) {
    (void)shrink, (void)out;
    return png_size(e, h, w);
}
#endif

dsc_status dsc_image_size(const dsc_encoded *encoded, int64_t *h, int64_t *w) {
    switch (type_of(encoded)) {
    case IMAGE_JPEG: /* of any size: large ones are decoded at a reduced size */
        return jpeg_size(encoded, h, w);
    case IMAGE_PNG:
        DSC_TRY(png_size(encoded, h, w));
        break;
    case IMAGE_WEBP:
        DSC_TRY(dsc_webp_size(encoded, h, w));
        break;
    default:
        return fail_other(encoded);
    }
    return check_size(encoded, *h, *w);
}

dsc_status dsc_image_decode(const dsc_encoded *encoded, int shrink, dsc_bytes *out, int64_t *h, int64_t *w) {
    switch (type_of(encoded)) {
    case IMAGE_JPEG:
        return jpeg_decode(encoded, shrink, out, h, w);
    case IMAGE_PNG:
        return png_decode(encoded, shrink, out, h, w);
    case IMAGE_WEBP:
        DSC_TRY(dsc_image_size(encoded, h, w));
        DSC_TRY(dsc_bytes_reserve(out, *h * *w * 3));
        return dsc_webp_decode(encoded, *h, *w, out->data);
    default:
        return fail_other(encoded);
    }
}
