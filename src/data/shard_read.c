/* Listing the samples of a tar file with libarchive. Members that follow each other and have the same key, which is
 * the name up to the first dot after its last slash, are one sample. Names without a key or without a dot are passed
 * over, wherever they are (macOS's tar puts "._NAME" before every file). */
#include "base/config.h"
#include "base/error.h"
#include "base/memory.h"
#include "data/image_view.h"
#include "data/shards.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

void dsc_shard_free(dsc_shard *shard) {
    dsc_memory_free(&shard->samples);
    dsc_memory_free(&shard->text);
    *shard = (dsc_shard){0};
}

#ifdef DSC_HAVE_ARCHIVE
#include <archive.h>
#include <archive_entry.h>

#include <dlfcn.h>
#include <pthread.h>

enum { BLOCK = 1 << 16, MAX_CLASS = 256, MAX_KEY = 1024 };

/* libarchive is loaded when it is used for the first time: it needs a dozen libraries, which a machine that reads no
 * shards does not have to have. */
#define FUNCTIONS(F)                                                                                         \
    F(archive_entry_filetype)                                                                                \
    F(archive_entry_hardlink)                                                                                \
    F(archive_entry_pathname)                                                                                \
    F(archive_entry_pathname_utf8)                                                                           \
    F(archive_entry_size)                                                                                    \
    F(archive_entry_sparse_count)                                                                            \
    F(archive_error_string)                                                                                  \
    F(archive_filter_bytes)                                                                                  \
    F(archive_read_data)                                                                                     \
    F(archive_read_free)                                                                                     \
    F(archive_read_new)                                                                                      \
    F(archive_read_next_header)                                                                              \
    F(archive_read_open_filename)                                                                            \
    F(archive_read_support_format_tar)

/* The functions by their names; they do not change once the library is loaded. */
static struct {
#define MEMBER(name) __typeof__(name) *name;
    FUNCTIONS(MEMBER)
#undef MEMBER
} lib;

static const char library[] = "libarchive.so.13";
static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static char load_failure[512]; /* "": it is loaded */

static void find_function(void *handle, const char *name, void *place) {
    void *symbol = dlsym(handle, name);
    memcpy(place, &symbol, sizeof symbol); /* C has no conversion to a pointer to a function */
    if (!symbol)
        snprintf(load_failure, sizeof load_failure, "%s lacks %s", library, name);
}

static void load(void) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        snprintf(load_failure, sizeof load_failure, "%s", dlerror());
        return;
    }
#define FIND(name) find_function(handle, #name, &lib.name);
    FUNCTIONS(FIND)
#undef FIND
}

/* The sample whose members are being read. */
typedef struct group {
    char key[MAX_KEY];
    char class[MAX_CLASS];
    int has_image, has_class;
    int64_t offset, size;
} group;

static dsc_status add_text(dsc_shard *s, const char *text, int64_t *place) {
    int64_t size = (int64_t)strlen(text) + 1;
    DSC_TRY(dsc_memory_grow(&s->text, &s->text_capacity, s->text_used + size, 1));
    memcpy(s->text + s->text_used, text, (size_t)size);
    *place = s->text_used;
    s->text_used += size;
    return DSC_OK;
}

/* Adds the sample that is complete now, if it is one. */
static dsc_status end_group(const char *path, dsc_shard *s, const group *g) {
    if (!g->has_image && !g->has_class)
        return DSC_OK;
    if (!g->has_image || !g->has_class)
        return DSC_FAIL(DSC_E_FORMAT,
                        "webdataset: '%s': sample '%s' has %s: every sample needs both, side by side", path,
                        g->key,
                        g->has_image ? "an image, but no class (.cls)"
                                     : "a class, but no image (.jpg, .jpeg, .png, .webp)");
    DSC_TRY(dsc_memory_grow(&s->samples, &s->capacity, s->count + 1, sizeof *s->samples));
    dsc_shard_sample *sample = &s->samples[s->count];
    sample->offset = g->offset;
    sample->size = g->size;
    DSC_TRY(add_text(s, g->key, &sample->key));
    DSC_TRY(add_text(s, g->class, &sample->class));
    s->count++;
    return DSC_OK;
}

/* The contents of a .cls file without white space around it. */
static dsc_status read_class(const char *path, struct archive *a, group *g) {
    char text[MAX_CLASS];
    la_ssize_t size = lib.archive_read_data(a, text, sizeof text);
    if (size < 0)
        return DSC_FAIL(DSC_E_FORMAT, "webdataset: '%s': the class of sample '%s' cannot be read: %s", path,
                        g->key, lib.archive_error_string(a));
    size_t first = 0, end = (size_t)size;
    while (end > 0 && strchr(" \t\r\n", text[end - 1]))
        end--;
    while (first < end && strchr(" \t\r\n", text[first]))
        first++;
    if (end == first || size == sizeof text || memchr(text, '\0', end))
        return DSC_FAIL(
            DSC_E_FORMAT,
            "webdataset: '%s': the class of sample '%s' is not a number or a name of 1 to %d characters",
            path, g->key, MAX_CLASS - 1);
    snprintf(g->class, sizeof g->class, "%.*s", (int)(end - first), text + first);
    g->has_class = 1;
    return DSC_OK;
}

/* One member of the file. A group is ended when the next one begins. */
static dsc_status take_member(const char *path, struct archive *a, struct archive_entry *entry, dsc_shard *s,
                              group *g) {
    const char *name = lib.archive_entry_pathname(entry);
    if (!name) /* not of the locale's characters */
        name = lib.archive_entry_pathname_utf8(entry);
    if (!name || lib.archive_entry_filetype(entry) != AE_IFREG || lib.archive_entry_hardlink(entry))
        return DSC_OK;
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name, *dot = strchr(base, '.');
    if (!dot || dot == base)
        return DSC_OK;
    size_t length = (size_t)(dot - name);
    if (length >= MAX_KEY)
        return DSC_FAIL(DSC_E_FORMAT, "webdataset: '%s': the name '%.64s...' is longer than %d bytes", path,
                        name, MAX_KEY - 1);
    if (strlen(g->key) != length || strncmp(g->key, name, length) != 0) {
        DSC_TRY(end_group(path, s, g));
        *g = (group){.has_image = 0};
        memcpy(g->key, name, length);
    }
    const int is_class = strcasecmp(dot, ".cls") == 0;
    if (!is_class && (strchr(dot + 1, '.') || !dsc_image_has_name(dot)))
        return DSC_OK;
    if (is_class ? g->has_class : g->has_image)
        return DSC_FAIL(DSC_E_FORMAT,
                        "webdataset: '%s': sample '%s' has two %s: names up to the first dot must differ",
                        path, g->key, is_class ? "classes" : "images");
    if (is_class)
        return read_class(path, a, g);
    if (lib.archive_entry_sparse_count(entry) > 0)
        return DSC_FAIL(DSC_E_FORMAT, "webdataset: '%s': '%s' is stored as a sparse file: pack it again",
                        path, name);
    g->has_image = 1;
    g->offset = lib.archive_filter_bytes(a, -1); /* its data begin where the header ended */
    g->size = lib.archive_entry_size(entry);
    return DSC_OK;
}

static dsc_status read_members(const char *path, struct archive *a, dsc_shard *s) {
    group g = {.has_image = 0};
    struct archive_entry *entry;
    int result;
    while ((result = lib.archive_read_next_header(a, &entry)) == ARCHIVE_OK || result == ARCHIVE_WARN)
        DSC_TRY(take_member(path, a, entry, s, &g));
    if (result != ARCHIVE_EOF)
        return DSC_FAIL(DSC_E_FORMAT, "webdataset: '%s' is broken after %lld samples: %s", path,
                        (long long)s->count,
                        lib.archive_error_string(a) ? lib.archive_error_string(a) : "no tar file");
    return end_group(path, s, &g);
}

dsc_status dsc_shard_read(const char *path, dsc_shard *shard) {
    int64_t size;
    dsc_status status = dsc_file_size(path, &size);
    if (status != DSC_OK)
        return dsc_error_prefix(status, "webdataset");
    pthread_once(&load_once, load);
    if (load_failure[0])
        return DSC_FAIL(DSC_E_UNSUPPORTED, "webdataset: tar files cannot be read: %s: install libarchive13",
                        load_failure);
    struct archive *a = lib.archive_read_new();
    if (!a || lib.archive_read_support_format_tar(a) != ARCHIVE_OK) {
        status = DSC_FAIL(DSC_E_MEMORY, "webdataset: libarchive cannot start");
    } else if (lib.archive_read_open_filename(a, path, BLOCK) != ARCHIVE_OK) {
        status = DSC_FAIL(DSC_E_FORMAT,
                          "webdataset: '%s' is no tar file (compressed ones have to be unpacked): %s", path,
                          lib.archive_error_string(a));
    } else {
        status = read_members(path, a, shard);
    }
    if (a)
        lib.archive_read_free(a);
    return status;
}
#else
dsc_status dsc_shard_read(const char *path, dsc_shard *shard) {
    (void)shard;
    return DSC_FAIL(
        DSC_E_UNSUPPORTED,
        "webdataset: '%s': this build cannot read tar files: install libarchive-dev and build again", path);
}
#endif
