/* A model's state dict in a safetensors file. */
#include "train/statedict.h"

#include "base/error.h"
#include "base/memory.h"
#include "device/half.h"
#include "model/graph.h"
#include "train/hub_names.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* "[2, 3]" */
static void print_shape(int ndim, const int64_t *dim, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < ndim && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? ", " : "", (long long)dim[i]);
    if (used < size)
        snprintf(text + used, size - used, "]");
}

/* to[o][c][p] = from[o][p][c] over pixels p of a kernel; elements of `width` bytes. With the two inner sizes
 * swapped it is its own inverse. */
static void transpose_inner(const char *from, char *to, int64_t outer, int64_t pixels, int64_t channels,
                            size_t width) {
    for (int64_t o = 0; o < outer; o++) {
        const char *block = from + (size_t)(o * pixels * channels) * width;
        for (int64_t c = 0; c < channels; c++) {
            for (int64_t p = 0; p < pixels; p++) {
                memcpy(to, block + (size_t)(p * channels + c) * width, width);
                to += width;
            }
        }
    }
}

/* ---- writing ---- */

static dsc_status write_entry(const dsc_state_entry *e, int64_t index, dsc_queue *queue, char *here,
                              char *there, dsc_st_writer *writer) {
    size_t bytes = dsc_tensor_bytes(e->tensor);
    DSC_TRY(dsc_tensor_download(queue, e->tensor, bytes, here));
    DSC_TRY(dsc_queue_sync(queue));
    if (e->permuted)
        transpose_inner(here, there, e->ohwc[0], e->ohwc[1] * e->ohwc[2], e->ohwc[3],
                        dsc_dtype_size(e->tensor->dtype));
    return dsc_st_writer_write(writer, index, e->permuted ? there : here, bytes);
}

dsc_status dsc_statedict_write(const dsc_model *model, dsc_queue *queue, dsc_st_writer *writer) {
    const dsc_state_entry *entries = dsc_model_state(model);
    int64_t count = dsc_model_state_count(model);
    size_t largest = 0;
    char *buffer;
    for (int64_t i = 0; i < count; i++) {
        size_t bytes = dsc_tensor_bytes(entries[i].tensor);
        largest = bytes > largest ? bytes : largest;
        DSC_TRY(dsc_st_writer_declare(writer, entries[i].name, entries[i].tensor->dtype, entries[i].ndim,
                                      entries[i].dim));
    }
    DSC_TRY(dsc_st_writer_begin(writer));
    DSC_TRY(dsc_memory_alloc(2, largest, &buffer));
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < count && status == DSC_OK; i++)
        status = write_entry(&entries[i], i, queue, buffer, buffer + largest, writer);
    dsc_memory_free(&buffer);
    return status;
}

/* ---- comparing ---- */

static int is_real(dsc_dtype dtype) {
    return dtype == DSC_F32 || dtype == DSC_F64 || dtype == DSC_BF16 || dtype == DSC_F16;
}

/* The shapes are equal, and the file's type can be converted to the model's. */
static int fits(const dsc_st_tensor *t, const dsc_state_entry *e) {
    int equal = t->ndim == e->ndim;
    for (int i = 0; i < t->ndim && equal; i++)
        equal = t->dim[i] == e->dim[i];
    return equal && (t->dtype == e->tensor->dtype || (is_real(t->dtype) && is_real(e->tensor->dtype)));
}

/* 1: the entry is a table of the positions of a sequence. */
static int is_of_positions(const dsc_model *model, const dsc_state_entry *e) {
    const dsc_state_tensor *own = &model->tensors[e - dsc_model_state(model)];
    for (int64_t i = 0; i < model->node_count && own->trained; i++)
        if (dsc_embedding_is_of_positions(&model->nodes[i]) && model->nodes[i].weight == own->number)
            return 1;
    return 0;
}

/* The number of rows that two tables of positions have in common, when they differ in nothing but their number of rows;
 * 0: they are not such tables. */
static int64_t common_rows(const dsc_model *model, const dsc_st_tensor *t, const dsc_state_entry *e) {
    if (!is_of_positions(model, e) || t->ndim != 2 || t->dim[1] != e->dim[1] || t->dim[0] < 1 ||
        !is_real(t->dtype))
        return 0;
    return t->dim[0] < e->dim[0] ? t->dim[0] : e->dim[0];
}

/* 1 when the file has the tensor of entry `index` under the name of another entry: the model ties them. */
static int has_tied(const dsc_model *model, const dsc_st_reader *reader, int64_t index) {
    const dsc_state_entry *entries = dsc_model_state(model);
    for (int64_t i = 0; i < dsc_model_state_count(model); i++)
        if (i != index && entries[i].tensor == entries[index].tensor && dsc_hub_find(reader, entries[i].name))
            return 1;
    return 0;
}

/* The entry that a tensor of the file is for; NULL for none. */
static const dsc_state_entry *find_entry(const dsc_model *model, const dsc_st_reader *reader,
                                         const dsc_st_tensor *t) {
    const dsc_state_entry *entries = dsc_model_state(model);
    for (int64_t i = 0; i < dsc_model_state_count(model); i++)
        if (dsc_hub_find(reader, entries[i].name) == t)
            return &entries[i];
    return NULL;
}

/* `shorter`: the file may have more positions. */
static dsc_status check_entry(const dsc_model *model, const dsc_state_entry *e, const char *name, int shorter,
                              const dsc_st_reader *reader) {
    const dsc_st_tensor *t = dsc_hub_find(reader, e->name);
    const char *word = name ? "model " : "the model", *path = dsc_st_path(reader);
    char here[128], there[128];
    name = name ? name : "";
    if (!t)
        return DSC_FAIL(DSC_E_INVALID, "'%s' lacks '%s' of %s%s: it holds another model's parameters", path,
                        e->name, word, name);
    const int64_t rows = common_rows(model, t, e);
    if (fits(t, e) || (shorter && rows > 0 && rows == e->dim[0]))
        return DSC_OK;
    if (shorter && rows > 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "'%s': '%s' has %lld positions, fewer than the %lld tokens of a sequence: use "
                        "context %lld or less",
                        path, t->name, (long long)t->dim[0], (long long)e->dim[0], (long long)t->dim[0]);
    print_shape(t->ndim, t->dim, there, sizeof there);
    print_shape(e->ndim, e->dim, here, sizeof here);
    return DSC_FAIL(DSC_E_INVALID, "'%s': '%s' is %s %s, in %s%s it is %s %s", path, t->name,
                    dsc_dtype_name(t->dtype), there, word, name, dsc_dtype_name(e->tensor->dtype), here);
}

static dsc_status check_all(const dsc_model *model, const char *name, int shorter,
                            const dsc_st_reader *reader) {
    const dsc_state_entry *entries = dsc_model_state(model);
    for (int64_t i = 0; i < dsc_model_state_count(model); i++)
        if (dsc_hub_find(reader, entries[i].name) || !has_tied(model, reader, i))
            DSC_TRY(check_entry(model, &entries[i], name, shorter, reader));
    for (int64_t i = 0; i < dsc_st_count(reader); i++) {
        const dsc_st_tensor *t = &dsc_st_tensors(reader)[i];
        if (!find_entry(model, reader, t) && !dsc_hub_is_ignored(model, t->name))
            return DSC_FAIL(DSC_E_INVALID,
                            "'%s' holds '%.80s', which %s%s does not have: it is another model's",
                            dsc_st_path(reader), t->name, name ? "model " : "the model", name ? name : "");
    }
    return DSC_OK;
}

dsc_status dsc_statedict_check(const dsc_model *model, const char *name, const dsc_st_reader *reader) {
    return check_all(model, name, 0, reader);
}

dsc_status dsc_statedict_check_shorter(const dsc_model *model, const char *name,
                                       const dsc_st_reader *reader) {
    return check_all(model, name, 1, reader);
}

dsc_status dsc_statedict_check_named(const dsc_model *model, const dsc_st_reader *reader) {
    for (int64_t i = 0; i < dsc_model_state_count(model); i++)
        if (dsc_hub_find(reader, dsc_model_state(model)[i].name))
            DSC_TRY(check_entry(model, &dsc_model_state(model)[i], NULL, 0, reader));
    return DSC_OK;
}

/* A report while it is built; the public struct `shown` points into the other members. */
typedef struct full_report {
    dsc_load_report shown; /* must be the first member: callers hold its address */
    const char **loaded, **missing;
    dsc_load_skipped *skipped, *resized;
    char *names; /* memory of all names */
} full_report;

void dsc_load_report_free(dsc_load_report **report) {
    if (!report || !*report)
        return;
    full_report *r = (full_report *)(void *)*report;
    dsc_memory_free(&r->loaded);
    dsc_memory_free(&r->missing);
    dsc_memory_free(&r->skipped);
    dsc_memory_free(&r->resized);
    dsc_memory_free(&r->names);
    dsc_memory_free(report);
}

static const char *copy_name(const char *name, char **next) {
    char *copy = *next;
    size_t size = strlen(name) + 1;
    memcpy(copy, name, size);
    *next += size;
    return copy;
}

static dsc_status make_room(const dsc_model *model, const dsc_st_reader *reader, full_report *r) {
    int64_t count = dsc_model_state_count(model), bytes = 1;
    for (int64_t i = 0; i < count; i++)
        bytes += (int64_t)strlen(dsc_model_state(model)[i].name) + 1;
    for (int64_t i = 0; i < dsc_st_count(reader); i++)
        bytes += (int64_t)strlen(dsc_st_tensors(reader)[i].name) + 1;
    DSC_TRY(dsc_memory_alloc(count, sizeof *r->loaded, &r->loaded));
    DSC_TRY(dsc_memory_alloc(count, sizeof *r->missing, &r->missing));
    DSC_TRY(dsc_memory_alloc(dsc_st_count(reader), sizeof *r->skipped, &r->skipped));
    DSC_TRY(dsc_memory_alloc(dsc_st_count(reader), sizeof *r->resized, &r->resized));
    return dsc_memory_alloc(bytes, 1, &r->names);
}

dsc_status dsc_statedict_compare(const dsc_model *model, const dsc_st_reader *reader, dsc_load_report **out) {
    full_report *r;
    DSC_TRY(dsc_memory_alloc(1, sizeof *r, &r));
    *out = &r->shown;
    dsc_status status = make_room(model, reader, r);
    if (status != DSC_OK) {
        dsc_load_report_free(out);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    char *next = r->names;
    for (int64_t i = 0; i < dsc_model_state_count(model); i++) {
        const dsc_state_entry *e = &dsc_model_state(model)[i];
        const dsc_st_tensor *t = dsc_hub_find(reader, e->name);
        if (!t && !has_tied(model, reader, i))
            r->missing[r->shown.missing_count++] = copy_name(e->name, &next);
        else if (t && (fits(t, e) || common_rows(model, t, e) > 0))
            r->loaded[r->shown.loaded_count++] = copy_name(e->name, &next);
    }
    for (int64_t i = 0; i < dsc_st_count(reader); i++) {
        const dsc_st_tensor *t = &dsc_st_tensors(reader)[i];
        const dsc_state_entry *e = find_entry(model, reader, t);
        if (e && fits(t, e))
            continue;
        const int resized = e && common_rows(model, t, e) > 0;
        dsc_load_skipped *s =
            resized ? &r->resized[r->shown.resized_count++] : &r->skipped[r->shown.skipped_count++];
        *s = (dsc_load_skipped){.in_model = e != NULL, .file_dtype = t->dtype, .file_ndim = t->ndim};
        s->name = copy_name(t->name, &next);
        memcpy(s->file_dim, t->dim, sizeof t->dim);
        if (!e)
            continue;
        s->model_dtype = e->tensor->dtype;
        s->model_ndim = e->ndim;
        memcpy(s->model_dim, e->dim, sizeof e->dim);
    }
    r->shown.loaded = r->loaded;
    r->shown.missing = r->missing;
    r->shown.resized = r->resized;
    r->shown.skipped = r->skipped;
    return DSC_OK;
}

/* ---- reading ---- */

static double real_at(dsc_dtype dtype, const void *data, int64_t i) {
    switch (dtype) {
    case DSC_F64:
        return ((const double *)data)[i];
    case DSC_BF16:
        return dsc_bf16_to_float(((const uint16_t *)data)[i]);
    case DSC_F16:
        return dsc_f16_to_float(((const uint16_t *)data)[i]);
    default:
        return ((const float *)data)[i];
    }
}

/* Reads a tensor in the model's type. `raw` has room for it in the file's type. */
static dsc_status read_converted(const dsc_st_reader *reader, const dsc_st_tensor *t, dsc_dtype dtype,
                                 void *raw, void *out) {
    if (t->dtype == dtype)
        return dsc_st_read_finite(reader, t, out, t->bytes);
    DSC_TRY(dsc_st_read_finite(reader, t, raw, t->bytes));
    int64_t count = (int64_t)(t->bytes / dsc_dtype_size(t->dtype));
    for (int64_t i = 0; i < count; i++) {
        double value = real_at(t->dtype, raw, i);
        if (dtype == DSC_F64)
            ((double *)out)[i] = value;
        else
            ((float *)out)[i] = (float)value;
        if (dtype == DSC_F32 && !isfinite((float)value))
            return DSC_FAIL(DSC_E_FORMAT, "'%s': '%s' holds %g, which the model's type %s cannot hold",
                            dsc_st_path(reader), t->name, value, dsc_dtype_name(dtype));
    }
    return DSC_OK;
}

/* The tensor of the file for an entry; NULL when there is none that fits. */
static const dsc_st_tensor *find_fitting(const dsc_model *model, const dsc_st_reader *reader,
                                         const dsc_state_entry *e) {
    const dsc_st_tensor *t = dsc_hub_find(reader, e->name);
    return t && (fits(t, e) || common_rows(model, t, e) > 0) ? t : NULL;
}

/* How many bytes of an entry the tensor that fits it fills: all of them, or the first rows of a table of positions. */
static size_t filled_bytes(const dsc_model *model, const dsc_st_tensor *t, const dsc_state_entry *e) {
    const size_t bytes = dsc_tensor_bytes(e->tensor);
    return fits(t, e) ? bytes : bytes / (size_t)e->dim[0] * (size_t)common_rows(model, t, e);
}

/* The earlier entry of the same tensor that the file has, for an alias; NULL for none. */
static const dsc_state_entry *find_first(const dsc_model *model, const dsc_st_reader *reader, int64_t alias) {
    const dsc_state_entry *entries = dsc_model_state(model);
    for (int64_t i = 0; i < alias && dsc_model_state_is_alias(model, alias); i++)
        if (entries[i].tensor == entries[alias].tensor && find_fitting(model, reader, &entries[i]))
            return &entries[i];
    return NULL;
}

/* Reads the tensor of an entry in this library's layout; `scratch` holds one tensor twice, in fp64 at most. */
static dsc_status read_entry(const dsc_model *model, const dsc_st_reader *reader, const dsc_state_entry *e,
                             size_t largest, char *scratch, char *out) {
    const dsc_st_tensor *t = find_fitting(model, reader, e);
    const int whole = fits(t, e);
    dsc_dtype dtype = e->tensor->dtype;
    DSC_TRY(read_converted(reader, t, dtype, scratch, e->permuted || !whole ? scratch + largest : out));
    if (e->permuted)
        transpose_inner(scratch + largest, out, e->ohwc[0], e->ohwc[3], e->ohwc[1] * e->ohwc[2],
                        dsc_dtype_size(dtype));
    else if (!whole)
        memcpy(out, scratch + largest, filled_bytes(model, t, e));
    return DSC_OK;
}

/* `all` gets the numbers of the entries that fit, one after the other; a second name for a tensor is compared with the
 * first. */
static dsc_status read_all(const dsc_model *model, const dsc_st_reader *reader, size_t largest, char *scratch,
                           char *all) {
    for (int64_t i = 0; i < dsc_model_state_count(model); i++) {
        const dsc_state_entry *e = &dsc_model_state(model)[i], *first = find_first(model, reader, i);
        const dsc_st_tensor *t = find_fitting(model, reader, e);
        if (!t)
            continue;
        const size_t bytes = filled_bytes(model, t, e);
        DSC_TRY(read_entry(model, reader, e, largest, scratch, all));
        if (first) {
            DSC_TRY(read_entry(model, reader, first, largest, scratch, all + bytes));
            if (memcmp(all, all + bytes, bytes) != 0)
                return DSC_FAIL(DSC_E_FORMAT,
                                "'%s': '%s' differs from '%s', but the model ties them: it is one tensor",
                                dsc_st_path(reader), e->name, first->name);
            continue;
        }
        all += bytes;
    }
    return DSC_OK;
}

static dsc_status upload_all(dsc_model *model, dsc_queue *queue, const dsc_st_reader *reader,
                             const char *all) {
    for (int64_t i = 0; i < dsc_model_state_count(model); i++) {
        const dsc_state_entry *e = &dsc_model_state(model)[i];
        const dsc_st_tensor *t = find_fitting(model, reader, e);
        if (!t || find_first(model, reader, i))
            continue;
        const size_t bytes = filled_bytes(model, t, e);
        dsc_tensor target =
            dsc_tensor_slice(e->tensor, 0, (int64_t)(bytes / dsc_dtype_size(e->tensor->dtype)));
        DSC_TRY(dsc_tensor_upload(queue, all, bytes, &target));
        all += bytes;
    }
    return dsc_queue_sync(queue);
}

dsc_status dsc_statedict_read(dsc_model *model, dsc_queue *queue, const dsc_st_reader *reader) {
    size_t largest = 0, total = 0;
    char *buffer;
    for (int64_t i = 0; i < dsc_model_state_count(model); i++) {
        const dsc_state_entry *e = &dsc_model_state(model)[i];
        const dsc_st_tensor *t = find_fitting(model, reader, e);
        size_t bytes = (size_t)dsc_tensor_count(e->tensor) * sizeof(double);
        if (t && t->ndim == 2 && !fits(t, e)) /* a longer table of positions */
            bytes = (size_t)(t->dim[0] * t->dim[1]) * sizeof(double);
        largest = bytes > largest ? bytes : largest;
        total += dsc_tensor_bytes(e->tensor);
    }
    DSC_TRY(dsc_memory_alloc((int64_t)(3 * largest + total), 1, &buffer));
    dsc_status status = read_all(model, reader, largest, buffer, buffer + 2 * largest);
    if (status == DSC_OK)
        status = upload_all(model, queue, reader, buffer + 2 * largest);
    dsc_memory_free(&buffer);
    return status;
}
