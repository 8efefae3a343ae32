/* Names and sizes of element types in safetensors files, and check sums. */
#include "train/safetensors_types.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

uint32_t dsc_st_sum(uint32_t sum, const void *data, size_t bytes) {
    return bytes > 0 ? (uint32_t)crc32_z(sum, data, bytes) : sum;
}

void dsc_st_sum_text(uint32_t sum, char text[DSC_ST_SUM_SIZE]) {
    snprintf(text, DSC_ST_SUM_SIZE, "%08" PRIx32, sum);
}

int dsc_st_sum_parse(const char *text, uint32_t *out) {
    if (strlen(text) != DSC_ST_SUM_SIZE - 1 || strspn(text, "0123456789abcdef") != DSC_ST_SUM_SIZE - 1)
        return 0;
    *out = (uint32_t)strtoul(text, NULL, 16);
    return 1;
}

static const struct {
    dsc_dtype dtype;
    const char *name;
} types[] = {
    {DSC_F32, "F32"}, {DSC_F64, "F64"}, {DSC_BF16, "BF16"}, {DSC_F16, "F16"},
    {DSC_I32, "I32"}, {DSC_I64, "I64"}, {DSC_U8, "U8"},
};

enum { TYPE_COUNT = sizeof types / sizeof types[0] };

const char *dsc_st_type_name(dsc_dtype dtype) {
    for (int i = 0; i < TYPE_COUNT; i++)
        if (types[i].dtype == dtype)
            return types[i].name;
    return NULL;
}

int dsc_st_type_parse(const char *name, dsc_dtype *out) {
    if (strcmp(name, "BOOL") == 0) /* a byte each: masks of other programs, which no model here reads */
        name = "U8";
    for (int i = 0; i < TYPE_COUNT; i++) {
        if (strcmp(types[i].name, name) == 0) {
            *out = types[i].dtype;
            return 1;
        }
    }
    return 0;
}

size_t dsc_st_bytes(dsc_dtype dtype, int ndim, const int64_t *dim, int *ok) {
    size_t bytes = dsc_dtype_size(dtype);
    *ok = 1;
    for (int i = 0; i < ndim; i++) {
        if (dim[i] < 0 || __builtin_mul_overflow(bytes, (size_t)dim[i], &bytes) || bytes > INT64_MAX) {
            *ok = 0;
            return 0;
        }
    }
    return bytes;
}
