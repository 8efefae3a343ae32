/* The pages of TIFF files, decoded by libtiff. */
#include "data/image_tiff.h"
#include "base/config.h"
#include "base/error.h"
#include "base/memory.h"
#include "data/image_decode.h"

#include <string.h>
#include <strings.h>

int dsc_tiff_has_name(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot && (strcasecmp(dot, ".tif") == 0 || strcasecmp(dot, ".tiff") == 0);
}

#ifdef DSC_HAVE_TIFF
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
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

struct dsc_tiff {
    char *path;
    TIFF *file;
    int64_t page;
    dsc_bytes raster; /* of the page, as libtiff gives it */
};

static dsc_status fail_broken(const char *path, int64_t page) {
    return DSC_FAIL(DSC_E_FORMAT,
                    "'%s' is a broken TIFF, or of a kind that libtiff does not decode (page %lld): %s", path,
                    (long long)page + 1, last_error[0] ? last_error : "no reason is known");
}

/* ---- under the lock ---- */

static dsc_status open_file(dsc_tiff *t) {
    t->file =
        lib.TIFFOpen(t->path, "rm"); /* not mapped, so that a file that becomes shorter is an error only */
    return t->file && !last_error[0] ? DSC_OK : fail_broken(t->path, 0);
}

static dsc_status next_page(dsc_tiff *t, int *found) {
    *found = lib.TIFFReadDirectory(t->file);
    if (last_error[0]) /* the list of pages is damaged */
        return fail_broken(t->path, t->page + 1);
    t->page += *found;
    if (t->page >= MAX_PAGES)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' has more than %d pages: divide it", t->path, MAX_PAGES);
    return DSC_OK;
}

static dsc_status decode_page(dsc_tiff *t, dsc_bytes *out, int64_t *height, int64_t *width, int *bits) {
    uint32_t w = 0, h = 0;
    uint16_t own_bits = 1; /* unless the page says otherwise */
    lib.TIFFGetField(t->file, TIFFTAG_IMAGEWIDTH, &w);
    lib.TIFFGetField(t->file, TIFFTAG_IMAGELENGTH, &h);
    lib.TIFFGetField(t->file, TIFFTAG_BITSPERSAMPLE, &own_bits);
    if (w < 1 || h < 1 || w > DSC_IMAGE_SIDE || h > DSC_IMAGE_SIDE || (int64_t)w * h > DSC_IMAGE_PIXELS)
        return DSC_FAIL(
            DSC_E_FORMAT,
            "page %lld of '%s' has %lld x %lld pixels: at most %d a side and %d in all are accepted",
            (long long)t->page + 1, t->path, (long long)w, (long long)h, DSC_IMAGE_SIDE, DSC_IMAGE_PIXELS);
    const int64_t pixels = (int64_t)w * h;
    DSC_TRY(dsc_bytes_reserve(&t->raster, pixels * (int64_t)sizeof(uint32_t)));
    DSC_TRY(dsc_bytes_reserve(out, pixels * 3));
    uint32_t *values = (uint32_t *)(void *)t->raster.data;
    if (!lib.TIFFReadRGBAImageOriented(t->file, w, h, values, ORIENTATION_TOPLEFT, 1) || last_error[0])
        return fail_broken(t->path, t->page);
    for (int64_t i = 0; i < pixels; i++) {
        out->data[3 * i] = (uint8_t)TIFFGetR(values[i]);
        out->data[3 * i + 1] = (uint8_t)TIFFGetG(values[i]);
        out->data[3 * i + 2] = (uint8_t)TIFFGetB(values[i]);
    }
    *height = h;
    *width = w;
    *bits = own_bits;
    return DSC_OK;
}

/* ---- with the lock ---- */

typedef struct own_handlers {
    TIFFErrorHandler error, warning;
} own_handlers;

static own_handlers begin(void) {
    pthread_mutex_lock(&handlers);
    last_error[0] = '\0';
    return (own_handlers){lib.TIFFSetErrorHandler(on_error), lib.TIFFSetWarningHandler(on_warning)};
}

static void end(own_handlers before) {
    lib.TIFFSetErrorHandler(before.error);
    lib.TIFFSetWarningHandler(before.warning);
    pthread_mutex_unlock(&handlers);
}

dsc_status dsc_tiff_open(const char *path, dsc_tiff **out) {
    int64_t size;
    dsc_tiff *t;
    DSC_TRY(dsc_file_size(path, &size));
    pthread_once(&load_once, load);
    if (load_failure[0])
        return DSC_FAIL(DSC_E_UNSUPPORTED, "'%s' is a TIFF, which needs libtiff: %s; install libtiff6", path,
                        load_failure);
    DSC_TRY(dsc_memory_alloc(1, sizeof *t, &t));
    dsc_status status = dsc_memory_strdup(path, &t->path);
    if (status == DSC_OK) {
        const own_handlers before = begin();
        status = open_file(t);
        end(before);
    }
    if (status != DSC_OK)
        dsc_tiff_close(&t);
    *out = t;
    return status;
}

void dsc_tiff_close(dsc_tiff **tiff) {
    if (!*tiff)
        return;
    if ((*tiff)->file) {
        const own_handlers before = begin();
        lib.TIFFClose((*tiff)->file);
        end(before);
    }
    dsc_bytes_free(&(*tiff)->raster);
    dsc_memory_free(&(*tiff)->path);
    dsc_memory_free(tiff);
}

int64_t dsc_tiff_at(const dsc_tiff *tiff) {
    return tiff->page;
}

dsc_status dsc_tiff_next(dsc_tiff *tiff, int *found) {
    const own_handlers before = begin();
    dsc_status status = next_page(tiff, found);
    end(before);
    return status;
}

dsc_status dsc_tiff_decode(dsc_tiff *tiff, dsc_bytes *out, int64_t *h, int64_t *w, int *bits) {
    const own_handlers before = begin();
    dsc_status status = decode_page(tiff, out, h, w, bits);
    end(before);
    return status;
}
#else
dsc_status dsc_tiff_open(const char *path, dsc_tiff **out) {
    int64_t size;
    (void)out;
    DSC_TRY(dsc_file_size(path, &size));
    return DSC_FAIL(
        DSC_E_UNSUPPORTED,
        "'%s' is a TIFF, which this build cannot read: install libtiff-dev and build again, or save its "
        "pages as PNG files",
        path);
}

void dsc_tiff_close(dsc_tiff **tiff) {
    (void)tiff;
}

int64_t dsc_tiff_at(const dsc_tiff *tiff) {
    (void)tiff;
    return 0;
}

dsc_status dsc_tiff_next(dsc_tiff *tiff, int *found) {
    (void)tiff;
    *found = 0;
    return DSC_OK;
}

dsc_status dsc_tiff_decode(dsc_tiff *tiff, dsc_bytes *out, int64_t *h, int64_t *w, int *bits) {
    (void)tiff, (void)out, (void)h, (void)w, (void)bits;
    return DSC_FAIL(DSC_E_UNSUPPORTED, "this build cannot read TIFF files");
}
#endif

dsc_status dsc_tiff_count(const char *path, int64_t *count) {
    dsc_tiff *tiff = NULL;
    int found = 1;
    *count = 1;
    dsc_status status = dsc_tiff_open(path, &tiff);
    while (status == DSC_OK && found) {
        status = dsc_tiff_next(tiff, &found);
        *count += status == DSC_OK ? found : 1;
    }
    dsc_tiff_close(&tiff);
    return status == DSC_E_MEMORY ? status : DSC_OK;
}
