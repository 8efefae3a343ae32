/* The front of attention with a cache of keys and values: check, early out, select, execute. */
#include "device/checks.h"

#include "base/error.h"

dsc_status dsc_op_attention_step(dsc_queue *q, const dsc_attention_desc *desc, const dsc_tensor *x,
                                 int64_t position, dsc_tensor *cache, dsc_tensor *y) {
    const char *op = "attention_step";
    int64_t d = 0;
    dsc_check check;
    DSC_TRY(dsc_check_begin_half(&check, op, q, "x", x));
    DSC_TRY(dsc_check_dims(&check, "x", x, 4));
    int64_t n = x->dim[0];
    DSC_TRY(dsc_check_shape(&check, "x", x, DSC_SHAPE(n, 1, 1, x->dim[3])));
    if (desc->causal != 1)
        return DSC_FAIL(DSC_E_INVALID,
                        "%s: causal is %d; 1 is expected, because the cache has no later positions", op,
                        desc->causal);
    DSC_TRY(dsc_attention_width(q->device, desc, x->dim[3], &d));
    DSC_TRY(dsc_check_real(&check, "cache", cache));
    DSC_TRY(dsc_check_dims(&check, "cache", cache, 3));
    DSC_TRY(dsc_check_shape(&check, "cache", cache, DSC_SHAPE(n, cache->dim[1], 2 * d)));
    if (position < 0 || position >= cache->dim[1])
        return DSC_FAIL(DSC_E_INVALID, "%s: position %lld is outside the cache, which has %lld positions", op,
                        (long long)position, (long long)cache->dim[1]);
    DSC_TRY(dsc_check_real_shape(&check, "y", y, DSC_SHAPE(n, 1, 1, d)));
    DSC_TRY(dsc_check_apart(&check, "cache", cache, "x", x));
    DSC_TRY(dsc_check_apart(&check, "y", y, "x", x));
    DSC_TRY(dsc_check_apart(&check, "y", y, "cache", cache));
    if (n == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->attention_step(q, desc, x, position, cache, y));
    return DSC_OK;
}
