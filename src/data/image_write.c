/* Writing with libpng, whose errors jump back to where the writing began, as in image_decode.c. */
#include "data/image_write.h"

#include "base/config.h"
#include "base/error.h"
#include "base/output.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#ifdef DSC_HAVE_PNG
#include <png.h>

enum { MESSAGE_SIZE = 256 };

typedef struct png_writer {
    png_structp png;
    png_infop info;
    dsc_output output;
    int64_t written;
    dsc_status status; /* of the output */
    jmp_buf escape;
    char message[MESSAGE_SIZE];
} png_writer;

static void on_error(png_structp png, png_const_charp message) {
    png_writer *writer = png_get_error_ptr(png);
    snprintf(writer->message, sizeof writer->message, "%s", message);
    longjmp(writer->escape, 1);
}

static void on_warning(png_structp png, png_const_charp message) {
    (void)png, (void)message;
}

static void on_write(png_structp png, png_bytep data, size_t bytes) {
    png_writer *writer = png_get_io_ptr(png);
    writer->status = dsc_output_write(&writer->output, data, bytes, writer->written);
    if (writer->status != DSC_OK)
        png_error(png, "the output failed");
    writer->written += (int64_t)bytes;
}

static void on_flush(png_structp png) {
    (void)png;
}

/* The functions with setjmp change no variables of their own, and leave the cleaning up to their caller. */
static int try_start(png_writer *writer) {
    if (setjmp(writer->escape))
        return 0;
    writer->png = png_create_write_struct(PNG_LIBPNG_VER_STRING, writer, on_error, on_warning);
    if (writer->png)
        writer->info = png_create_info_struct(writer->png);
    return writer->info != NULL;
}

static dsc_status try_write(png_writer *writer, const char *path, const uint8_t *pixels, int64_t h,
                            int64_t w) {
    if (setjmp(writer->escape))
        return writer->status != DSC_OK
                   ? writer->status
                   : DSC_FAIL(DSC_E_IO, "cannot write '%s': libpng: %s", path, writer->message);
    png_set_write_fn(writer->png, writer, on_write, on_flush);
    png_set_user_limits(writer->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_set_IHDR(writer->png, writer->info, (png_uint_32)w, (png_uint_32)h, 8, PNG_COLOR_TYPE_GRAY,
                 PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(writer->png, writer->info);
    for (int64_t y = 0; y < h; y++)
        png_write_row(writer->png, pixels + y * w);
    png_write_end(writer->png, NULL);
    return DSC_OK;
}

dsc_status dsc_png_can_write(void) {
    return DSC_OK;
}

dsc_status dsc_png_write_grey(const char *path, const uint8_t *pixels, int64_t h, int64_t w) {
    png_writer writer;
    memset(&writer, 0, sizeof writer);
    DSC_TRY(dsc_output_open(path, &writer.output));
    dsc_status status = try_start(&writer) ? try_write(&writer, path, pixels, h, w)
                                           : DSC_FAIL(DSC_E_MEMORY, "'%s': libpng cannot start", path);
    if (status == DSC_OK)
        status = dsc_output_sync(&writer.output);
    if (status == DSC_OK)
        status = dsc_output_commit(&writer.output);
    png_destroy_write_struct(&writer.png, &writer.info);
    dsc_output_close(&writer.output);
    return status;
}
#else
dsc_status dsc_png_can_write(void) {
    return DSC_FAIL(DSC_E_UNSUPPORTED,
                    "this build cannot write PNG files: install libpng's headers and build again");
}

dsc_status dsc_png_write_grey(const char *path, const uint8_t *pixels, int64_t h, int64_t w) {
    (void)path, (void)pixels, (void)h, (void)w;
    return dsc_png_can_write();
}
#endif
