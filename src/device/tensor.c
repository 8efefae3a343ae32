/* Tensors: sizes, views and their memory. */
#include "device/table.h"

#include "base/error.h"

typedef struct dtype_entry {
    const char *name;
    size_t size;
} dtype_entry;

static const dtype_entry dtypes[] = {
    [DSC_F32] = {"fp32", 4}, [DSC_F64] = {"fp64", 8}, [DSC_BF16] = {"bf16", 2}, [DSC_F16] = {"fp16", 2},
    [DSC_I32] = {"i32", 4},  [DSC_I64] = {"i64", 8},  [DSC_U8] = {"u8", 1},
};

static int dtype_is_known(dsc_dtype dtype) {
    return (unsigned)dtype < sizeof dtypes / sizeof dtypes[0];
}

size_t dsc_dtype_size(dsc_dtype dtype) {
    return dtype_is_known(dtype) ? dtypes[dtype].size : 0;
}

const char *dsc_dtype_name(dsc_dtype dtype) {
    return dtype_is_known(dtype) ? dtypes[dtype].name : "unknown type";
}

/* An invalid view is returned without a device, so that every operation refuses it. */
static dsc_tensor no_view(void) {
    return (dsc_tensor){.ndim = 1};
}

dsc_tensor dsc_tensor_view(dsc_device *device, void *data, dsc_dtype dtype, int ndim, const int64_t *dim) {
    if (ndim < 0 || ndim > DSC_MAX_DIMS)
        return no_view();
    dsc_tensor t = {.data = data, .device = device, .dtype = dtype, .ndim = ndim};
    for (int i = 0; i < ndim; i++)
        t.dim[i] = dim[i];
    return t;
}

int64_t dsc_tensor_count(const dsc_tensor *t) {
    int64_t count = 1;
    for (int i = 0; i < t->ndim; i++)
        count *= t->dim[i];
    return count;
}

size_t dsc_tensor_bytes(const dsc_tensor *t) {
    return (size_t)dsc_tensor_count(t) * dsc_dtype_size(t->dtype);
}

dsc_tensor dsc_tensor_slice(const dsc_tensor *t, int64_t first, int64_t count) {
    int64_t all = dsc_tensor_count(t);
    if (first < 0 || count < 0 || first > all || count > all - first)
        return no_view();
    char *data = t->data;
    if (data)
        data += (size_t)first * dsc_dtype_size(t->dtype);
    return dsc_tensor_view(t->device, data, t->dtype, 1, &count);
}

dsc_status dsc_tensor_alloc(dsc_device *device, dsc_dtype dtype, int ndim, const int64_t *dim,
                            dsc_tensor *out) {
    if (!device)
        return DSC_FAIL(DSC_E_INVALID, "tensor: no device to allocate it on");
    if (!dtype_is_known(dtype))
        return DSC_FAIL(DSC_E_INVALID, "tensor: type %d is unknown", (int)dtype);
    if (ndim < 0 || ndim > DSC_MAX_DIMS)
        return DSC_FAIL(DSC_E_INVALID, "tensor: %d dimensions; 0 to %d are possible", ndim, DSC_MAX_DIMS);
    int64_t bytes = (int64_t)dtypes[dtype].size;
    int overflow = 0;
    for (int i = 0; i < ndim; i++) {
        if (dim[i] < 0)
            return DSC_FAIL(DSC_E_INVALID, "tensor: dimension %d is %lld; it may not be negative", i,
                            (long long)dim[i]);
        overflow |= __builtin_mul_overflow(bytes, dim[i], &bytes);
    }
    if (overflow)
        return DSC_FAIL(DSC_E_MEMORY, "tensor: its size in bytes exceeds 2^63");
    dsc_tensor t = dsc_tensor_view(device, NULL, dtype, ndim, dim);
    DSC_TRY(dsc_device_alloc(device, (size_t)bytes, &t.data));
    *out = t;
    return DSC_OK;
}

void dsc_tensor_free(dsc_tensor *t) {
    if (t && t->data)
        dsc_device_free(t->device, &t->data);
}
