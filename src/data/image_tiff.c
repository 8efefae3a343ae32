/* The pages of TIFF files, decoded by libtiff. */
#include "base/config.h"
#include "base/error.h"
#include "base/memory.h"
#include "data/image_decode.h"
#include "data/mask_list.h"

void dsc_tiff_free(dsc_tiff *tiff) {
    for (int64_t i = 0; i < tiff->count; i++)
        dsc_memory_free(&tiff->pages[i].rgb);
    dsc_memory_free(&tiff->pages);
    *tiff = (dsc_tiff){0};
}

#ifdef DSC_HAVE_TIFF
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <tiffio.h>

enum { MAX_PAGES = 65535, MESSAGE_SIZE = 256 };

/* libtiff is loaded when it is used for the first time: it needs a dozen libraries, which a machine that reads no TIFF
 * files does not have to have. */
#define FUNCTIONS(F)                                                                                         \
    F(TIFFClose)                                                                                             \
    F(TIFFGetField)                                                                                          \
    F(TIFFOpen)                                                                                              \
    F(TIFFReadDirectory)                                                                                     \
    F(TIFFReadRGBAImageOriented)                                                                             \
    F(TIFFSetErrorHandler)                                                                                   \
    F(TIFFSetWarningHandler)

/* The functions by their names; they do not change once the library is loaded. */
static struct {
#define MEMBER(name) __typeof__(name) *name;
    FUNCTIONS(MEMBER)
#undef MEMBER
} lib;

static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static char load_failure[512]; /* "": it is loaded */

static void find_function(void *handle, const char *name, void *place) {
    void *symbol = dlsym(handle, name);
    memcpy(place, &symbol, sizeof symbol); /* C has no conversion to a pointer to a function */
    if (!symbol)
        snprintf(load_failure, sizeof load_failure, "libtiff lacks %s", name);
}

/* These functions are the same in both versions. */
static void load(void) {
    void *handle = dlopen("libtiff.so.6", RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        handle = dlopen("libtiff.so.5", RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        snprintf(load_failure, sizeof load_failure, "%s", dlerror());
        return;
    }
#define FIND(name) find_function(handle, #name, &lib.name);
    FUNCTIONS(FIND)
#undef FIND
}

/* libtiff reports errors to one function of the process. It is set while a file is read and then set back, since the
 * program may use libtiff, too; the lock keeps two threads from setting back each other's. */
static pthread_mutex_t handlers = PTHREAD_MUTEX_INITIALIZER;
static char last_error[MESSAGE_SIZE];

static void on_error(const char *module, const char *format, va_list arguments) {
    (void)module;
    if (!last_error[0]) /* the first one is the cause */
        vsnprintf(last_error, sizeof last_error, format, arguments);
}

static void on_warning(const char *module, const char *format, va_list arguments) {
    (void)module, (void)format, (void)arguments;
}

static dsc_status fail_broken(const char *path, int64_t page) {
    return DSC_FAIL(DSC_E_FORMAT,
                    "'%s' is a broken TIFF, or of a kind that libtiff does not decode (page %lld): %s", path,
                    (long long)page + 1, last_error[0] ? last_error : "no reason is known");
}

/* Adds the page that the file is at. `raster` is memory for h w pixels. */
static dsc_status read_page(TIFF *file, const char *path, dsc_bytes *raster, dsc_tiff *out) {
    uint32_t w = 0, h = 0;
    uint16_t bits = 1; /* unless the page says otherwise */
    lib.TIFFGetField(file, TIFFTAG_IMAGEWIDTH, &w);
    lib.TIFFGetField(file, TIFFTAG_IMAGELENGTH, &h);
    lib.TIFFGetField(file, TIFFTAG_BITSPERSAMPLE, &bits);
    if (w < 1 || h < 1 || w > DSC_IMAGE_SIDE || h > DSC_IMAGE_SIDE || (int64_t)w * h > DSC_IMAGE_PIXELS)
        return DSC_FAIL(
            DSC_E_FORMAT,
            "page %lld of '%s' has %lld x %lld pixels: at most %d a side and %d in all are accepted",
            (long long)out->count + 1, path, (long long)w, (long long)h, DSC_IMAGE_SIDE, DSC_IMAGE_PIXELS);
    const int64_t pixels = (int64_t)w * h;
    DSC_TRY(dsc_bytes_reserve(raster, pixels * (int64_t)sizeof(uint32_t)));
    uint32_t *values = (uint32_t *)(void *)raster->data;
    if (!lib.TIFFReadRGBAImageOriented(file, w, h, values, ORIENTATION_TOPLEFT, 1))
        return fail_broken(path, out->count);
    DSC_TRY(dsc_memory_grow(&out->pages, &out->capacity, out->count + 1, sizeof *out->pages));
    dsc_tiff_page *page = &out->pages[out->count];
    DSC_TRY(dsc_memory_alloc(pixels, 3, &page->rgb));
    page->h = h;
    page->w = w;
    page->bits = bits;
    out->count++;
    for (int64_t i = 0; i < pixels; i++) {
        page->rgb[3 * i] = (uint8_t)TIFFGetR(values[i]);
        page->rgb[3 * i + 1] = (uint8_t)TIFFGetG(values[i]);
        page->rgb[3 * i + 2] = (uint8_t)TIFFGetB(values[i]);
    }
    return DSC_OK;
}

static dsc_status read_pages(const char *path, dsc_tiff *out) {
    dsc_bytes raster = {0};
    last_error[0] = '\0';
    TIFF *file =
        lib.TIFFOpen(path, "rm"); /* not mapped, so that a file that becomes shorter is an error only */
    if (!file)
        return fail_broken(path, 0);
    dsc_status status = DSC_OK;
    do {
        status = out->count < MAX_PAGES
                     ? read_page(file, path, &raster, out)
                     : DSC_FAIL(DSC_E_FORMAT, "'%s' has more than %d pages: divide it", path, MAX_PAGES);
    } while (status == DSC_OK && lib.TIFFReadDirectory(file));
    if (status == DSC_OK && last_error[0]) /* the list of pages is damaged */
        status = fail_broken(path, out->count);
    lib.TIFFClose(file);
    dsc_bytes_free(&raster);
    return status;
}

dsc_status dsc_tiff_read(const char *path, dsc_tiff *out) {
    int64_t size;
    DSC_TRY(dsc_file_size(path, &size));
    pthread_once(&load_once, load);
    if (load_failure[0])
        return DSC_FAIL(DSC_E_UNSUPPORTED, "'%s' is a TIFF, which needs libtiff: %s; install libtiff6", path,
                        load_failure);
    pthread_mutex_lock(&handlers);
    TIFFErrorHandler error = lib.TIFFSetErrorHandler(on_error),
                     warning = lib.TIFFSetWarningHandler(on_warning);
    dsc_status status = read_pages(path, out);
    lib.TIFFSetErrorHandler(error);
    lib.TIFFSetWarningHandler(warning);
    pthread_mutex_unlock(&handlers);
    return status;
}
#else
dsc_status dsc_tiff_read(const char *path, dsc_tiff *out) {
    (void)out;
    return DSC_FAIL(
        DSC_E_UNSUPPORTED,
        "'%s' is a TIFF, which this build cannot read: install libtiff-dev and build again, or save its "
        "pages as PNG files",
        path);
}
#endif
