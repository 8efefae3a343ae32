/* Writing safetensors files: the header is known before the first number, so data is streamed. */
#include "train/safetensors.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/output.h"
#include "train/safetensors_types.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct entry {
    char *name;           /* owned */
    dsc_st_tensor tensor; /* its check sum is known once it was written */
    int written;
} entry;

struct dsc_st_writer {
    dsc_output output;
    json_t *metadata;
    entry *entries;
    int64_t count, capacity;
    size_t data_start, data_bytes;
};

dsc_status dsc_st_writer_create(const char *path, dsc_st_writer **out) {
    dsc_st_writer *w;
    DSC_TRY(dsc_memory_alloc(1, sizeof *w, &w));
    w->output.fd = -1;
    w->metadata = json_object();
    dsc_status status = w->metadata ? dsc_output_open(path, &w->output)
                                    : DSC_FAIL(DSC_E_MEMORY, "no memory for the header of '%s'", path);
    if (status != DSC_OK) {
        dsc_st_writer_destroy(&w);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = w;
    return DSC_OK;
}

void dsc_st_writer_destroy(dsc_st_writer **writer) {
    if (!writer || !*writer)
        return;
    dsc_st_writer *w = *writer;
    dsc_output_close(&w->output);
    json_decref(w->metadata);
    for (int64_t i = 0; i < w->count; i++)
        dsc_memory_free(&w->entries[i].name);
    dsc_memory_free(&w->entries);
    dsc_memory_free(writer);
}

dsc_status dsc_st_writer_metadata(dsc_st_writer *writer, const char *key, const char *value) {
    if (json_object_set_new(writer->metadata, key, json_string(value)) != 0)
        return DSC_FAIL(DSC_E_INVALID, "'%s': metadata '%s' cannot be stored: is its value '%s' UTF-8?",
                        writer->output.path, key, value);
    return DSC_OK;
}

dsc_status dsc_st_writer_declare(dsc_st_writer *writer, const char *name, dsc_dtype dtype, int ndim,
                                 const int64_t *dim) {
    int fits = 0;
    if (ndim < 0 || ndim > DSC_MAX_DIMS || !dsc_st_type_name(dtype))
        return DSC_FAIL(DSC_E_INVALID, "tensor '%s': %d dimensions of type %d cannot be stored", name, ndim,
                        (int)dtype);
    entry new = {.tensor = {.dtype = dtype, .ndim = ndim}};
    new.tensor.bytes = dsc_st_bytes(dtype, ndim, dim, &fits);
    if (!fits)
        return DSC_FAIL(DSC_E_INVALID, "tensor '%s': its dimensions cannot be stored", name);
    for (int i = 0; i < ndim; i++)
        new.tensor.dim[i] = dim[i];
    DSC_TRY(dsc_memory_grow(&writer->entries, &writer->capacity, writer->count + 1, sizeof new));
    DSC_TRY(dsc_memory_strdup(name, &new.name));
    new.tensor.name = new.name;
    writer->entries[writer->count++] = new;
    return DSC_OK;
}

static void place(dsc_st_writer *w) {
    for (size_t width = 8; width >= 1; width /= 2) {
        for (int64_t i = 0; i < w->count; i++) {
            dsc_st_tensor *t = &w->entries[i].tensor;
            if (dsc_dtype_size(t->dtype) != width)
                continue;
            t->offset = w->data_bytes;
            w->data_bytes += t->bytes;
        }
    }
}

/* NULL when there is no memory, or a name that JSON cannot hold. */
static json_t *describe(const dsc_st_tensor *t) {
    json_t *shape = json_array();
    for (int i = 0; i < t->ndim; i++) {
        if (json_array_append_new(shape, json_integer((json_int_t)t->dim[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dsc_st_type_name(t->dtype), "shape", shape,
                     "data_offsets", (json_int_t)t->offset, (json_int_t)(t->offset + t->bytes));
}

/* Puts the check sums of all tensors into the metadata; 0 when there is no memory. */
static int describe_sums(dsc_st_writer *w) {
    json_t *sums = json_object();
    char text[DSC_ST_SUM_SIZE];
    int done = sums != NULL;
    for (int64_t i = 0; i < w->count && done; i++) {
        dsc_st_sum_text(w->entries[i].tensor.sum, text);
        done = json_object_set_new(sums, w->entries[i].name, json_string(text)) == 0;
    }
    char *all = done ? json_dumps(sums, JSON_COMPACT) : NULL;
    done = all && json_object_set_new(w->metadata, DSC_ST_SUMS, json_string(all)) == 0;
    free(all);
    json_decref(sums);
    return done;
}

/* Adds the check sum of the metadata itself; 0 when there is no memory. */
static int describe_metadata_sum(dsc_st_writer *w) {
    char *keys = NULL, text[DSC_ST_SUM_SIZE];
    size_t length = 0;
    uint32_t sum = 0;
    const char *key;
    json_t *value;
    FILE *stream = open_memstream(&keys, &length);
    if (!stream)
        return 0;
    fputs("00000000", stream); /* placeholder for the sum */
    json_object_foreach(w->metadata, key, value) {
        if (strcmp(key, DSC_ST_METADATA_SUM) == 0 || strpbrk(key, " \n"))
            continue;
        sum = dsc_st_sum(sum, key, strlen(key));
        sum = dsc_st_sum(sum, "=", 1);
        sum = dsc_st_sum(sum, json_string_value(value), json_string_length(value));
        sum = dsc_st_sum(sum, "\n", 1);
        fputc(' ', stream);
        fputs(key, stream);
    }
    int done = fclose(stream) == 0;
    dsc_st_sum_text(sum, text);
    if (done)
        memcpy(keys, text, DSC_ST_SUM_SIZE - 1);
    done = done && json_object_set_new(w->metadata, DSC_ST_METADATA_SUM, json_string(keys)) == 0;
    free(keys);
    return done;
}

static dsc_status build_header(const dsc_st_writer *w, json_t *header) {
    int failed = 0;
    if (json_object_size(w->metadata) > 0)
        failed = json_object_set(header, DSC_ST_METADATA, w->metadata);
    for (int64_t i = 0; i < w->count && !failed; i++) {
        const dsc_st_tensor *t = &w->entries[i].tensor;
        if (json_object_get(header, t->name))
            return DSC_FAIL(DSC_E_INVALID, "'%s': two tensors are called '%s'", w->output.path, t->name);
        failed = json_object_set_new(header, t->name, describe(t));
    }
    if (failed)
        return DSC_FAIL(DSC_E_MEMORY, "'%s': the header cannot be built", w->output.path);
    return DSC_OK;
}

static dsc_status write_header(dsc_st_writer *w, const char *text) {
    static const char blanks[8] = "        ";
    unsigned char raw[8];
    size_t length = strlen(text);
    size_t padded = (length + 7) / 8 * 8;
    if (padded > DSC_ST_HEADER_LIMIT)
        return DSC_FAIL(DSC_E_INVALID,
                        "'%s': a header of %zu bytes for %lld tensors: %d at most; use fewer ranks or layers",
                        w->output.path, padded, (long long)w->count, DSC_ST_HEADER_LIMIT);
    for (int i = 0; i < 8; i++)
        raw[i] = (unsigned char)((uint64_t)padded >> (8 * i));
    if (w->data_start > 0 && w->data_start != 8 + padded) /* check sums have a fixed length */
        return DSC_FAIL(DSC_E_INTERNAL, "'%s': the header has changed its length", w->output.path);
    w->data_start = 8 + padded;
    DSC_TRY(dsc_output_write(&w->output, raw, 8, 0));
    DSC_TRY(dsc_output_write(&w->output, text, length, 8));
    return dsc_output_write(&w->output, blanks, padded - length, 8 + (int64_t)length);
}

/* Writes the header with the check sums that are known now; those of tensors that are not written yet are 0.
 */
static dsc_status put_header(dsc_st_writer *writer) {
    if (!describe_sums(writer) || !describe_metadata_sum(writer))
        return DSC_FAIL(DSC_E_MEMORY, "'%s': no memory for the check sums", writer->output.path);
    json_t *header = json_object();
    char *text = NULL;
    dsc_status status = header ? build_header(writer, header)
                               : DSC_FAIL(DSC_E_MEMORY, "'%s': no memory", writer->output.path);
    if (status == DSC_OK) {
        text = json_dumps(header, JSON_COMPACT);
        status = text ? write_header(writer, text)
                      : DSC_FAIL(DSC_E_MEMORY, "'%s': no memory for the header", writer->output.path);
    }
    free(text);
    json_decref(header);
    return status;
}

dsc_status dsc_st_writer_begin(dsc_st_writer *writer) {
    place(writer);
    return put_header(writer);
}

dsc_status dsc_st_writer_write(dsc_st_writer *writer, int64_t index, const void *data, size_t bytes) {
    if (index < 0 || index >= writer->count || writer->entries[index].written)
        return DSC_FAIL(DSC_E_INVALID, "'%s': tensor %lld was not declared or is there already",
                        writer->output.path, (long long)index);
    entry *e = &writer->entries[index];
    if (bytes != e->tensor.bytes)
        return DSC_FAIL(DSC_E_INVALID, "'%s': tensor '%s' was declared with %zu bytes, not %zu",
                        writer->output.path, e->name, e->tensor.bytes, bytes);
    DSC_TRY(dsc_output_write(&writer->output, data, bytes, (int64_t)(writer->data_start + e->tensor.offset)));
    e->tensor.sum = dsc_st_sum(0, data, bytes);
    e->written = 1;
    return DSC_OK;
}

dsc_status dsc_st_writer_sync(dsc_st_writer *writer) {
    for (int64_t i = 0; i < writer->count; i++)
        if (!writer->entries[i].written)
            return DSC_FAIL(DSC_E_INTERNAL, "'%s': tensor '%s' was never written", writer->output.path,
                            writer->entries[i].name);
    DSC_TRY(put_header(writer));
    return dsc_output_sync(&writer->output);
}

dsc_status dsc_st_writer_commit(dsc_st_writer *writer) {
    return dsc_output_commit(&writer->output);
}

int64_t dsc_st_writer_bytes(const dsc_st_writer *writer) {
    return (int64_t)(writer->data_start + writer->data_bytes);
}
