/* Reading safetensors files. Nothing in the file is trusted: every length, offset and type is checked before
 * it is used, and data is fetched by offset, so that a file cut short later is an error, not a signal. */
#include "train/safetensors.h"

#include "base/error.h"
#include "base/memory.h"
#include "train/safetensors_types.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct dsc_st_reader {
    int fd;
    char *path;
    json_t *header; /* owns names and metadata */
    int64_t count;
    dsc_st_tensor *tensors; /* by name */
    size_t data_start, data_bytes;
};

void dsc_st_close(dsc_st_reader **reader) {
    if (!reader || !*reader)
        return;
    dsc_st_reader *r = *reader;
    if (r->fd >= 0)
        close(r->fd);
    json_decref(r->header);
    dsc_memory_free(&r->tensors);
    dsc_memory_free(&r->path);
    dsc_memory_free(reader);
}

static dsc_status read_at(const dsc_st_reader *r, size_t offset, void *out, size_t bytes) {
    char *to = out;
    while (bytes > 0) {
        ssize_t done = pread(r->fd, to, bytes, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return DSC_FAIL(DSC_E_IO, "cannot read '%s': %s", r->path, strerror(errno));
        if (done == 0)
            return DSC_FAIL(DSC_E_FORMAT, "'%s' ends at byte %zu, where %zu more were promised", r->path,
                            offset, bytes);
        to += done;
        offset += (size_t)done;
        bytes -= (size_t)done;
    }
    return DSC_OK;
}

static dsc_status parse_header(dsc_st_reader *r, const char *text, size_t length) {
    json_error_t error;
    if (text[0] != '{')
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is not a safetensors file: its header starts with byte 0x%02x",
                        r->path, (unsigned char)text[0]);
    r->header = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (!r->header)
        return DSC_FAIL(DSC_E_FORMAT, "'%s': the header is not valid JSON at byte %d: %s", r->path,
                        error.position, error.text);
    return DSC_OK;
}

static dsc_status read_header(dsc_st_reader *r) {
    struct stat info;
    unsigned char raw[8];
    if (fstat(r->fd, &info) != 0)
        return DSC_FAIL(DSC_E_IO, "cannot read '%s': %s", r->path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is not a regular file", r->path);
    if (info.st_size < 10)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' has %lld bytes: too short for a safetensors file", r->path,
                        (long long)info.st_size);
    DSC_TRY(read_at(r, 0, raw, sizeof raw));
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--)
        length = length << 8 | raw[i];
    if (length < 2 || length > DSC_ST_HEADER_LIMIT || length > (uint64_t)info.st_size - 8)
        return DSC_FAIL(DSC_E_FORMAT,
                        "'%s' promises a header of %llu bytes in a file of %lld: it was cut short or is not "
                        "a safetensors file",
                        r->path, (unsigned long long)length, (long long)info.st_size);
    char *text;
    DSC_TRY(dsc_memory_alloc((int64_t)length, 1, &text));
    dsc_status status = read_at(r, 8, text, (size_t)length);
    if (status == DSC_OK)
        status = parse_header(r, text, (size_t)length);
    dsc_memory_free(&text);
    r->data_start = 8 + (size_t)length;
    r->data_bytes = (size_t)info.st_size - r->data_start;
    return status;
}

static dsc_status check_metadata(const dsc_st_reader *r, json_t *metadata) {
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return DSC_FAIL(DSC_E_FORMAT, "'%s': " DSC_ST_METADATA " is not an object", r->path);
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return DSC_FAIL(DSC_E_FORMAT, "'%s': metadata '%s' is not a string", r->path, key);
    }
    return DSC_OK;
}

static dsc_status parse_shape(const dsc_st_reader *r, json_t *shape, dsc_st_tensor *t) {
    if (!json_is_array(shape))
        return DSC_FAIL(DSC_E_FORMAT, "'%s': tensor '%s' has no shape", r->path, t->name);
    size_t ndim = json_array_size(shape);
    if (ndim > DSC_MAX_DIMS)
        return DSC_FAIL(DSC_E_FORMAT, "'%s': tensor '%s' has %zu dimensions: %d at most", r->path, t->name,
                        ndim, DSC_MAX_DIMS);
    t->ndim = (int)ndim;
    for (size_t i = 0; i < ndim; i++) {
        json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return DSC_FAIL(DSC_E_FORMAT, "'%s': tensor '%s': dimension %zu is not a number >= 0", r->path,
                            t->name, i);
        t->dim[i] = (int64_t)json_integer_value(dim);
    }
    return DSC_OK;
}

static dsc_status parse_offsets(const dsc_st_reader *r, json_t *offsets, dsc_st_tensor *t) {
    json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return DSC_FAIL(DSC_E_FORMAT, "'%s': tensor '%s': data_offsets are not two numbers", r->path,
                        t->name);
    long long from = json_integer_value(begin), to = json_integer_value(end);
    if (from < 0 || to < from || (unsigned long long)to > r->data_bytes)
        return DSC_FAIL(DSC_E_FORMAT,
                        "'%s': tensor '%s' lies at [%lld, %lld) of %zu bytes of data: the file was cut short "
                        "or is damaged",
                        r->path, t->name, from, to, r->data_bytes);
    int fits;
    size_t bytes = dsc_st_bytes(t->dtype, t->ndim, t->dim, &fits);
    if (!fits || bytes != (size_t)(to - from))
        return DSC_FAIL(DSC_E_FORMAT,
                        "'%s': tensor '%s': its shape needs %s%zu bytes, data_offsets give %lld", r->path,
                        t->name, fits ? "" : "more than ", fits ? bytes : (size_t)INT64_MAX, to - from);
    t->offset = (size_t)from;
    t->bytes = bytes;
    return DSC_OK;
}

static dsc_status parse_tensor(const dsc_st_reader *r, const char *name, json_t *entry, dsc_st_tensor *t) {
    t->name = name;
    if (!json_is_object(entry))
        return DSC_FAIL(DSC_E_FORMAT, "'%s': tensor '%s' is not an object", r->path, name);
    const char *type = json_string_value(json_object_get(entry, "dtype"));
    if (!type)
        return DSC_FAIL(DSC_E_FORMAT, "'%s': tensor '%s' has no dtype", r->path, name);
    if (!dsc_st_type_parse(type, &t->dtype))
        return DSC_FAIL(DSC_E_FORMAT,
                        "'%s': tensor '%s' has dtype '%s': F32, F64, BF16, F16, I32, I64 and U8 are known",
                        r->path, name, type);
    DSC_TRY(parse_shape(r, json_object_get(entry, "shape"), t));
    DSC_TRY(parse_offsets(r, json_object_get(entry, "data_offsets"), t));
    return DSC_OK;
}

static int by_offset(const void *a, const void *b) {
    const dsc_st_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty ones first */
}

static int by_name(const void *a, const void *b) {
    const dsc_st_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static dsc_status check_coverage(dsc_st_reader *r) {
    size_t end = 0;
    qsort(r->tensors, (size_t)r->count, sizeof *r->tensors, by_offset);
    for (int64_t i = 0; i < r->count; i++) {
        const dsc_st_tensor *t = &r->tensors[i];
        if (t->offset != end)
            return DSC_FAIL(DSC_E_FORMAT, "'%s': tensor '%s' starts at byte %zu of the data, %s at %zu",
                            r->path, t->name, t->offset,
                            t->offset < end ? "inside another that ends" : "after a gap that starts", end);
        end = t->offset + t->bytes;
    }
    if (end != r->data_bytes)
        return DSC_FAIL(DSC_E_FORMAT, "'%s': %zu bytes follow the last tensor", r->path, r->data_bytes - end);
    qsort(r->tensors, (size_t)r->count, sizeof *r->tensors, by_name);
    return DSC_OK;
}

static dsc_status parse_tensors(dsc_st_reader *r) {
    const char *name;
    json_t *entry;
    DSC_TRY(dsc_memory_alloc((int64_t)json_object_size(r->header), sizeof *r->tensors, &r->tensors));
    json_object_foreach(r->header, name, entry) {
        if (strcmp(name, DSC_ST_METADATA) == 0)
            DSC_TRY(check_metadata(r, entry));
        else
            DSC_TRY(parse_tensor(r, name, entry, &r->tensors[r->count++]));
    }
    return check_coverage(r);
}

static dsc_status open_reader(const char *path, dsc_st_reader *r) {
    DSC_TRY(dsc_memory_strdup(path, &r->path));
    r->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (r->fd < 0) {
        dsc_status status = errno == ENOENT ? DSC_E_NOT_FOUND : errno == EACCES ? DSC_E_INVALID : DSC_E_IO;
        return DSC_FAIL(status, "cannot open '%s': %s", path, strerror(errno));
    }
    DSC_TRY(read_header(r));
    DSC_TRY(parse_tensors(r));
    return DSC_OK;
}

dsc_status dsc_st_open(const char *path, dsc_st_reader **out) {
    dsc_st_reader *r;
    DSC_TRY(dsc_memory_alloc(1, sizeof *r, &r));
    r->fd = -1;
    dsc_status status = open_reader(path, r);
    if (status != DSC_OK) {
        dsc_st_close(&r);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = r;
    return DSC_OK;
}

const char *dsc_st_path(const dsc_st_reader *reader) {
    return reader->path;
}

int64_t dsc_st_count(const dsc_st_reader *reader) {
    return reader->count;
}

const dsc_st_tensor *dsc_st_tensors(const dsc_st_reader *reader) {
    return reader->tensors;
}

const dsc_st_tensor *dsc_st_find(const dsc_st_reader *reader, const char *name) {
    dsc_st_tensor key = {.name = name};
    return bsearch(&key, reader->tensors, (size_t)reader->count, sizeof key, by_name);
}

const char *dsc_st_metadata(const dsc_st_reader *reader, const char *key) {
    return json_string_value(json_object_get(json_object_get(reader->header, DSC_ST_METADATA), key));
}

dsc_status dsc_st_metadata_number(const dsc_st_reader *reader, const char *key, int64_t *out) {
    const char *text = dsc_st_metadata(reader, key);
    char *end;
    *out = -1;
    if (!text)
        return DSC_OK;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno || end == text || *end != '\0')
        return DSC_FAIL(DSC_E_FORMAT, "'%s': metadata '%s' is '%s', not a number", reader->path, key, text);
    *out = number;
    return DSC_OK;
}

dsc_status dsc_st_read(const dsc_st_reader *reader, const dsc_st_tensor *tensor, void *out, size_t bytes) {
    if (bytes != tensor->bytes)
        return DSC_FAIL(DSC_E_INVALID, "'%s': tensor '%s' has %zu bytes, not %zu", reader->path, tensor->name,
                        tensor->bytes, bytes);
    return read_at(reader, reader->data_start + tensor->offset, out, bytes);
}

/* 1 when a floating-point number of it is infinite or NaN: all bits of its exponent are set. */
static int has_nonfinite(const void *data, dsc_dtype dtype, size_t bytes) {
    const uint16_t *half = data;
    const float *single = data;
    const double *full = data;
    size_t count = bytes / dsc_dtype_size(dtype);
    uint16_t exponent = dtype == DSC_BF16 ? 0x7f80 : 0x7c00;
    int bad = 0;
    for (size_t i = 0; i < count && dtype == DSC_F32; i++)
        bad |= !isfinite(single[i]);
    for (size_t i = 0; i < count && dtype == DSC_F64; i++)
        bad |= !isfinite(full[i]);
    for (size_t i = 0; i < count && (dtype == DSC_BF16 || dtype == DSC_F16); i++)
        bad |= (half[i] & exponent) == exponent;
    return bad;
}

dsc_status dsc_st_read_finite(const dsc_st_reader *reader, const dsc_st_tensor *tensor, void *out,
                              size_t bytes) {
    DSC_TRY(dsc_st_read(reader, tensor, out, bytes));
    if (has_nonfinite(out, tensor->dtype, bytes))
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is damaged: '%s' holds numbers that are not finite", reader->path,
                        tensor->name);
    return DSC_OK;
}
