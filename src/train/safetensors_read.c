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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 1 << 20 }; /* bytes that are verified at a time: whole numbers of any type */

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
        return DSC_FAIL(
            DSC_E_FORMAT,
            "'%s': tensor '%s' has dtype '%s': F32, F64, BF16, F16, I32, I64, U8 and BOOL are known", r->path,
            name, type);
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

/* ---- check sums ---- */

static dsc_status refuse_sum(const dsc_st_reader *r, const char *what) {
    return DSC_FAIL(DSC_E_FORMAT,
                    "'%s' is damaged: %s does not match its check sum; use another copy (or, if the file was "
                    "changed on purpose, remove '" DSC_ST_SUMS "' and '" DSC_ST_METADATA_SUM
                    "' from its metadata)",
                    r->path, what);
}

/* The metadata's own check sum: "HEX KEY KEY ...". */
static dsc_status check_metadata_sum(const dsc_st_reader *r) {
    const char *text = dsc_st_metadata(r, DSC_ST_METADATA_SUM);
    char hex[DSC_ST_SUM_SIZE] = "", *keys, *rest = NULL;
    uint32_t wanted, sum = 0;
    if (!text)
        return DSC_OK;
    snprintf(hex, sizeof hex, "%.*s", (int)strcspn(text, " "), text);
    if (strcspn(text, " ") != DSC_ST_SUM_SIZE - 1 || !dsc_st_sum_parse(hex, &wanted))
        return refuse_sum(r, "its metadata");
    DSC_TRY(dsc_memory_strdup(text + DSC_ST_SUM_SIZE - 1, &keys));
    for (char *key = strtok_r(keys, " ", &rest); key; key = strtok_r(NULL, " ", &rest)) {
        const char *value = dsc_st_metadata(r, key);
        sum = dsc_st_sum(sum, key, strlen(key));
        sum = dsc_st_sum(sum, "=", 1);
        sum = dsc_st_sum(sum, value, value ? strlen(value) : 0);
        sum = dsc_st_sum(sum, "\n", 1);
    }
    dsc_memory_free(&keys);
    return sum == wanted ? DSC_OK : refuse_sum(r, "its metadata");
}

/* Gives every tensor its check sum, from the parsed value of DSC_ST_SUMS. */
static dsc_status take_sums(dsc_st_reader *r, json_t *sums) {
    const char *name;
    json_t *value;
    if (!json_is_object(sums))
        return DSC_FAIL(DSC_E_FORMAT, "'%s': metadata '" DSC_ST_SUMS "' is not a JSON object", r->path);
    json_object_foreach(sums, name, value) {
        dsc_st_tensor *t = (dsc_st_tensor *)(uintptr_t)dsc_st_find(r, name);
        const char *text = json_string_value(value);
        if (!t)
            return DSC_FAIL(
                DSC_E_FORMAT,
                "'%s' has a check sum of '%.60s', but no such tensor: it is damaged, or was changed "
                "without removing '" DSC_ST_SUMS "' from its metadata",
                r->path, name);
        if (!text || !dsc_st_sum_parse(text, &t->sum))
            return DSC_FAIL(DSC_E_FORMAT, "'%s': the check sum of '%.60s' is not 8 hexadecimal digits",
                            r->path, name);
        t->has_sum = 1;
    }
    return DSC_OK;
}

static dsc_status parse_sums(dsc_st_reader *r) {
    const char *text = dsc_st_metadata(r, DSC_ST_SUMS);
    json_error_t error;
    DSC_TRY(check_metadata_sum(r));
    if (!text)
        return DSC_OK;
    json_t *sums = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    dsc_status status = take_sums(r, sums);
    json_decref(sums);
    return status;
}

static dsc_status check_sum(const dsc_st_reader *r, const dsc_st_tensor *t, uint32_t sum) {
    char what[96];
    if (!t->has_sum || t->sum == sum)
        return DSC_OK;
    snprintf(what, sizeof what, "'%.80s'", t->name);
    return refuse_sum(r, what);
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
    DSC_TRY(check_coverage(r));
    return parse_sums(r);
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
    DSC_TRY(read_at(reader, reader->data_start + tensor->offset, out, bytes));
    return check_sum(reader, tensor, dsc_st_sum(0, out, bytes));
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

static dsc_status refuse_nonfinite(const dsc_st_reader *r, const dsc_st_tensor *t) {
    return DSC_FAIL(DSC_E_FORMAT, "'%s' is damaged: '%s' holds numbers that are not finite", r->path,
                    t->name);
}

dsc_status dsc_st_read_finite(const dsc_st_reader *reader, const dsc_st_tensor *tensor, void *out,
                              size_t bytes) {
    DSC_TRY(dsc_st_read(reader, tensor, out, bytes));
    return has_nonfinite(out, tensor->dtype, bytes) ? refuse_nonfinite(reader, tensor) : DSC_OK;
}

int dsc_st_has_sums(const dsc_st_reader *reader) {
    int all = 1;
    for (int64_t i = 0; i < reader->count; i++)
        all = all && reader->tensors[i].has_sum;
    return all && reader->count > 0;
}

/* In pieces, so that a tensor may be larger than the memory. */
static dsc_status verify_tensor(const dsc_st_reader *r, const dsc_st_tensor *t, int finite, char *piece) {
    uint32_t sum = 0;
    int bad = 0;
    for (size_t done = 0; done < t->bytes;) {
        size_t bytes = t->bytes - done < PIECE ? t->bytes - done : PIECE;
        DSC_TRY(read_at(r, r->data_start + t->offset + done, piece, bytes));
        sum = dsc_st_sum(sum, piece, bytes);
        bad |= finite && has_nonfinite(piece, t->dtype, bytes);
        done += bytes;
    }
    DSC_TRY(check_sum(r, t, sum));
    return bad ? refuse_nonfinite(r, t) : DSC_OK;
}

dsc_status dsc_st_verify(const dsc_st_reader *reader, int finite) {
    char *piece;
    dsc_status status = DSC_OK;
    DSC_TRY(dsc_memory_alloc(PIECE, 1, &piece));
    for (int64_t i = 0; i < reader->count && status == DSC_OK; i++)
        status = verify_tensor(reader, &reader->tensors[i], finite, piece);
    dsc_memory_free(&piece);
    return status;
}
