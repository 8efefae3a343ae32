/* Files of tokens: reading by mapping them into memory, and writing. */
#include "base/error.h"
#include "base/memory.h"
#include "base/output.h"
#include "base/versioned.h"
#include "data/tokenizer.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MAGIC = 20240520, /* of llm.c's header, 256 numbers of 32 bits */
    VERSION = 1,
    HEADER_BYTES = 1024,
    WRITER_BYTES = 1 << 18
};

struct dsc_token_file {
    char *path;
    uint8_t *map;
    int64_t map_bytes;
    const uint8_t *tokens; /* in the map, after the header */
    int64_t count, vocabulary, text_bytes;
    dsc_token_format format;
};

static uint32_t get32(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void put32(uint8_t *p, uint32_t value) {
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(value >> 8 * i);
}

/* ---- opening ---- */

void dsc_token_file_options_init_sized(dsc_token_file_options *options, size_t size) {
    const dsc_token_file_options defaults = {0};
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}

static dsc_status map_file(dsc_token_file *f) {
    struct stat info;
    int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return DSC_FAIL(errno == ENOENT || errno == ENOTDIR ? DSC_E_NOT_FOUND : DSC_E_IO,
                        "cannot read '%s': %s", f->path, strerror(errno));
    dsc_status status = DSC_OK;
    if (fstat(fd, &info) != 0)
        status = DSC_FAIL(DSC_E_IO, "cannot read '%s': %s", f->path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = DSC_FAIL(DSC_E_FORMAT, "'%s' is not a regular file", f->path);
    else if (info.st_size == 0)
        status = DSC_FAIL(DSC_E_FORMAT, "'%s' is empty: it should hold tokens", f->path);
    if (status == DSC_OK) {
        void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
            status = DSC_FAIL(DSC_E_IO, "cannot map '%s' into memory: %s", f->path, strerror(errno));
        else
            f->map = map;
        f->map_bytes = (int64_t)info.st_size;
    }
    close(fd);
    return status;
}

/* Finds the format, the place and the number of the tokens. */
static dsc_status read_layout(dsc_token_file *f, int wide) {
    int width = wide ? 4 : 2;
    f->tokens = f->map;
    if (f->map_bytes >= 8 && get32(f->map) == MAGIC) {
        if (get32(f->map + 4) != VERSION)
            return DSC_FAIL(DSC_E_FORMAT, "'%s' has llm.c's header of version %lu: only version %d is read",
                            f->path, (unsigned long)get32(f->map + 4), VERSION);
        int64_t held = (f->map_bytes - HEADER_BYTES) / 2;
        if (f->map_bytes < HEADER_BYTES)
            return DSC_FAIL(DSC_E_FORMAT, "'%s' ends after %lld of the %d bytes of llm.c's header", f->path,
                            (long long)f->map_bytes, HEADER_BYTES);
        f->count = get32(f->map + 8);
        if (f->count < 1 || f->count != held || f->map_bytes % 2)
            return DSC_FAIL(
                DSC_E_FORMAT,
                "'%s': its header says that there are %lld tokens, but %lld bytes follow; write it again",
                f->path, (long long)f->count, (long long)(f->map_bytes - HEADER_BYTES));
        f->tokens += HEADER_BYTES;
        f->format = DSC_TOKENS_LLMC;
        return DSC_OK;
    }
    if (f->map_bytes % width)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' has %lld bytes, which is no whole number of tokens of %d bytes",
                        f->path, (long long)f->map_bytes, width);
    f->count = f->map_bytes / width;
    f->format = wide ? DSC_TOKENS_UINT32 : DSC_TOKENS_UINT16;
    return DSC_OK;
}

/* Reads a number of tokens.json, which must be from `least` to `most`. */
static dsc_status read_number(const char *path, const json_t *object, const char *key, int64_t least,
                              int64_t most, int64_t *out) {
    const json_t *number = json_object_get(object, key);
    char value[DSC_JSON_VALUE];
    *out = json_integer_value(number); /* 0 for other types */
    if (json_is_integer(number) && *out >= least && *out <= most)
        return DSC_OK;
    return DSC_FAIL(DSC_E_FORMAT,
                    "the " DSC_TOKENS_JSON
                    " beside '%s': '%s' is %s: must be %lld to %lld; run descent tokenize again",
                    path, key, dsc_json_value_text(number, value), (long long)least, (long long)most);
}

/* Reads the file as its description (NULL: there is none) says, and compares. */
static dsc_status compare_with(dsc_token_file *f, const json_t *json, const dsc_token_file_options *o) {
    const char *slash = strrchr(f->path, '/');
    const json_t *entry = json_object_get(json_object_get(json, "files"), slash ? slash + 1 : f->path);
    const char *format = json_string_value(json_object_get(json, "format"));
    DSC_TRY(read_layout(f, format ? strcmp(format, "uint32") == 0 : o->uint32));
    f->vocabulary = o->vocabulary;
    if (!json)
        return DSC_OK;
    int64_t vocabulary, count, bytes;
    DSC_TRY(read_number(f->path, json, "vocabulary", 1, INT32_MAX, &vocabulary));
    DSC_TRY(read_number(f->path, entry, "tokens", 1, INT64_MAX, &count));
    DSC_TRY(read_number(f->path, entry, "bytes", 0, INT64_MAX, &bytes));
    if (count != f->count)
        return DSC_FAIL(DSC_E_FORMAT,
                        "'%s' holds %lld tokens, but the " DSC_TOKENS_JSON
                        " beside it says %lld: run descent tokenize again",
                        f->path, (long long)f->count, (long long)count);
    if (o->vocabulary > 0 && o->vocabulary != vocabulary)
        return DSC_FAIL(DSC_E_INVALID, "'%s' was made with a vocabulary of %lld tokens, not %lld", f->path,
                        (long long)vocabulary, (long long)o->vocabulary);
    f->vocabulary = vocabulary;
    f->text_bytes = bytes;
    return DSC_OK;
}

static dsc_status open_file(const char *path, const dsc_token_file_options *o, dsc_token_file *f) {
    json_t *json;
    DSC_TRY(dsc_memory_strdup(path, &f->path));
    DSC_TRY(map_file(f));
    DSC_TRY(dsc_tokens_json_read(path, &json));
    dsc_status status = compare_with(f, json, o);
    json_decref(json);
    return status;
}

dsc_status dsc_token_file_open(const char *path, const dsc_token_file_options *options,
                               dsc_token_file **out) {
    dsc_token_file_options o;
    dsc_token_file *f;
    dsc_token_file_options_init(&o);
    DSC_TRY(dsc_versioned_read("token_file", options, sizeof o, &o));
    if (o.vocabulary < 0 || o.vocabulary > INT32_MAX)
        return DSC_FAIL(DSC_E_INVALID, "a vocabulary of %lld tokens: must be 0 (unknown) to %d",
                        (long long)o.vocabulary, INT32_MAX);
    DSC_TRY(dsc_memory_alloc(1, sizeof *f, &f));
    dsc_status status = open_file(path, &o, f);
    if (status != DSC_OK) {
        dsc_token_file_close(&f);
        return status;
    }
    *out = f;
    return DSC_OK;
}

void dsc_token_file_close(dsc_token_file **file) {
    if (!file || !*file)
        return;
    if ((*file)->map)
        munmap((*file)->map, (size_t)(*file)->map_bytes);
    dsc_memory_free(&(*file)->path);
    dsc_memory_free(file);
}

/* ---- reading ---- */

int64_t dsc_token_file_count(const dsc_token_file *file) {
    return file->count;
}

int64_t dsc_token_file_vocabulary(const dsc_token_file *file) {
    return file->vocabulary;
}

int64_t dsc_token_file_text_bytes(const dsc_token_file *file) {
    return file->text_bytes;
}

dsc_token_format dsc_token_file_format(const dsc_token_file *file) {
    return file->format;
}

dsc_status dsc_token_file_read(const dsc_token_file *f, int64_t first, int64_t count, int32_t *tokens) {
    if (first < 0 || count < 0 || first > f->count || count > f->count - first)
        return DSC_FAIL(DSC_E_INVALID, "'%s' has %lld tokens: there are no %lld from %lld on", f->path,
                        (long long)f->count, (long long)count, (long long)first);
    uint32_t limit = f->vocabulary > 0 ? (uint32_t)f->vocabulary : INT32_MAX, largest = 0;
    int64_t bad = 0;
    if (f->format == DSC_TOKENS_UINT32) {
        for (int64_t i = 0; i < count; i++) {
            uint32_t token = get32(f->tokens + 4 * (first + i));
            tokens[i] = (int32_t)token;
            largest = token > largest ? token : largest;
        }
    } else {
        const uint8_t *p = f->tokens + 2 * first;
        for (int64_t i = 0; i < count; i++) {
            uint32_t token = p[2 * i] | (uint32_t)p[2 * i + 1] << 8;
            tokens[i] = (int32_t)token;
            largest = token > largest ? token : largest;
        }
    }
    if (largest < limit)
        return DSC_OK;
    while ((uint32_t)tokens[bad] < limit)
        bad++;
    return DSC_FAIL(
        DSC_E_FORMAT,
        "'%s': token %lld is %lu, but the vocabulary has %lld tokens; was the file written with another "
        "vocabulary or width?",
        f->path, (long long)(first + bad), (unsigned long)(uint32_t)tokens[bad], (long long)limit);
}

/* ---- writing ---- */

struct dsc_token_writer {
    dsc_output output;
    dsc_token_format format;
    int64_t offset, count; /* bytes written; tokens appended */
    uint8_t *buffer;       /* [WRITER_BYTES] */
    int64_t used;
};

static dsc_status flush(dsc_token_writer *w) {
    DSC_TRY(dsc_output_write(&w->output, w->buffer, (size_t)w->used, w->offset));
    w->offset += w->used;
    w->used = 0;
    return DSC_OK;
}

dsc_status dsc_token_writer_create(const char *path, dsc_token_format format, dsc_token_writer **out) {
    dsc_token_writer *w;
    if (format < DSC_TOKENS_UINT16 || format > DSC_TOKENS_LLMC)
        return DSC_FAIL(DSC_E_INVALID, "there is no format of tokens with the number %d", (int)format);
    DSC_TRY(dsc_memory_alloc(1, sizeof *w, &w));
    w->format = format;
    w->output.fd = -1;
    dsc_status status = dsc_memory_alloc(WRITER_BYTES, 1, &w->buffer);
    if (status == DSC_OK)
        status = dsc_output_open(path, &w->output);
    if (status != DSC_OK) {
        dsc_token_writer_destroy(&w);
        return status;
    }
    w->used = format == DSC_TOKENS_LLMC ? HEADER_BYTES : 0; /* zeros, until it is complete */
    *out = w;
    return DSC_OK;
}

dsc_status dsc_token_writer_append(dsc_token_writer *w, const int32_t *tokens, int64_t count) {
    int width = w->format == DSC_TOKENS_UINT32 ? 4 : 2;
    for (int64_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || (width == 2 && tokens[i] > UINT16_MAX))
            return DSC_FAIL(DSC_E_INVALID, "'%s': token %lld is %d, which %d bits cannot hold; write 32 bits",
                            w->output.path, (long long)(w->count + i), tokens[i], 8 * width);
        if (w->used + width > WRITER_BYTES)
            DSC_TRY(flush(w));
        for (int b = 0; b < width; b++)
            w->buffer[w->used++] = (uint8_t)((uint32_t)tokens[i] >> 8 * b);
    }
    w->count += count;
    if (w->format == DSC_TOKENS_LLMC && w->count > INT32_MAX)
        return DSC_FAIL(DSC_E_UNSUPPORTED,
                        "'%s': llm.c's header holds at most %d tokens; write files without it",
                        w->output.path, INT32_MAX);
    return DSC_OK;
}

dsc_status dsc_token_writer_finish(dsc_token_writer *w) {
    uint8_t header[12];
    DSC_TRY(flush(w));
    if (w->format == DSC_TOKENS_LLMC) {
        put32(header, MAGIC);
        put32(header + 4, VERSION);
        put32(header + 8, (uint32_t)w->count);
        DSC_TRY(dsc_output_write(&w->output, header, sizeof header, 0));
    }
    return dsc_output_sync(&w->output);
}

dsc_status dsc_token_writer_commit(dsc_token_writer *w) {
    DSC_TRY(dsc_token_writer_finish(w));
    return dsc_output_commit(&w->output);
}

void dsc_token_writer_destroy(dsc_token_writer **writer) {
    if (!writer || !*writer)
        return;
    dsc_output_close(&(*writer)->output);
    dsc_memory_free(&(*writer)->buffer);
    dsc_memory_free(writer);
}
