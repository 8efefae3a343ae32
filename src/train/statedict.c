/* A model's state dict in a safetensors file. */
#include "train/statedict.h"

#include "base/error.h"
#include "base/memory.h"

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

size_t dsc_statedict_largest(const dsc_model *model) {
    const dsc_state_entry *entries = dsc_model_state(model);
    size_t largest = 0;
    for (int64_t i = 0; i < dsc_model_state_count(model); i++) {
        size_t bytes = dsc_tensor_bytes(entries[i].tensor);
        if (bytes > largest)
            largest = bytes;
    }
    return largest;
}

/* to[o][c][p] = from[o][p][c] over pixels p of a kernel; elements of `width` bytes. The way back is the same
 * with the two inner sizes swapped. */
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

dsc_status dsc_statedict_declare(const dsc_model *model, dsc_st_writer *writer) {
    const dsc_state_entry *entries = dsc_model_state(model);
    for (int64_t i = 0; i < dsc_model_state_count(model); i++)
        DSC_TRY(dsc_st_writer_declare(writer, entries[i].name, entries[i].tensor->dtype, entries[i].ndim,
                                      entries[i].dim));
    return DSC_OK;
}

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
    size_t largest = dsc_statedict_largest(model);
    char *buffer;
    DSC_TRY(dsc_memory_alloc(2, largest, &buffer));
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < dsc_model_state_count(model) && status == DSC_OK; i++)
        status = write_entry(&entries[i], i, queue, buffer, buffer + largest, writer);
    dsc_memory_free(&buffer);
    return status;
}

static dsc_status check_entry(const dsc_state_entry *e, const char *name, const dsc_st_reader *reader) {
    const dsc_st_tensor *t = dsc_st_find(reader, e->name);
    if (!t)
        return DSC_FAIL(DSC_E_INVALID, "'%s' lacks '%s' of model %s: it holds another model's parameters",
                        dsc_st_path(reader), e->name, name);
    int equal = t->ndim == e->ndim && t->dtype == e->tensor->dtype;
    for (int i = 0; i < t->ndim && equal; i++)
        equal = t->dim[i] == e->dim[i];
    if (!equal) {
        char here[128], there[128];
        print_shape(e->ndim, e->dim, here, sizeof here);
        print_shape(t->ndim, t->dim, there, sizeof there);
        return DSC_FAIL(DSC_E_INVALID, "'%s': '%s' is %s %s, in model %s it is %s %s", dsc_st_path(reader),
                        e->name, dsc_dtype_name(t->dtype), there, name, dsc_dtype_name(e->tensor->dtype),
                        here);
    }
    return DSC_OK;
}

dsc_status dsc_statedict_check(const dsc_model *model, const char *name, const dsc_st_reader *reader) {
    const dsc_state_entry *entries = dsc_model_state(model);
    int64_t count = dsc_model_state_count(model);
    for (int64_t i = 0; i < count; i++)
        DSC_TRY(check_entry(&entries[i], name, reader));
    if (dsc_st_count(reader) != count)
        return DSC_FAIL(DSC_E_INVALID, "'%s' holds %lld tensors, model %s has %lld: it is another model's",
                        dsc_st_path(reader), (long long)dsc_st_count(reader), name, (long long)count);
    return DSC_OK;
}

static dsc_status read_entry(const dsc_state_entry *e, dsc_queue *queue, char *here, char *there,
                             const dsc_st_reader *reader) {
    dsc_tensor target = *e->tensor;
    size_t bytes = dsc_tensor_bytes(&target);
    DSC_TRY(dsc_st_read_finite(reader, dsc_st_find(reader, e->name), there, bytes));
    if (e->permuted)
        transpose_inner(there, here, e->ohwc[0], e->ohwc[3], e->ohwc[1] * e->ohwc[2],
                        dsc_dtype_size(target.dtype));
    DSC_TRY(dsc_tensor_upload(queue, e->permuted ? here : there, bytes, &target));
    return dsc_queue_sync(queue);
}

dsc_status dsc_statedict_read(dsc_model *model, dsc_queue *queue, const dsc_st_reader *reader) {
    const dsc_state_entry *entries = dsc_model_state(model);
    size_t largest = dsc_statedict_largest(model);
    char *buffer;
    DSC_TRY(dsc_memory_alloc(2, largest, &buffer));
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < dsc_model_state_count(model) && status == DSC_OK; i++)
        status = read_entry(&entries[i], queue, buffer, buffer + largest, reader);
    dsc_memory_free(&buffer);
    return status;
}
