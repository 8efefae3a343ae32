/* Fronts of token numbers and embeddings: check, early out, select, execute. */
#include "device/checks.h"

#include "base/error.h"

/* Checks that ids has type F32 or F64. */
static dsc_status check_ids(const dsc_check *check, const dsc_tensor *ids) {
    DSC_TRY(dsc_check_any(check, "ids", ids));
    if (ids->dtype != DSC_F32 && ids->dtype != DSC_F64)
        return DSC_FAIL(DSC_E_INVALID, "%s: ids is %s; fp32 or fp64 is expected", check->op,
                        dsc_dtype_name(ids->dtype));
    return DSC_OK;
}

dsc_status dsc_op_sequence_lengths(dsc_queue *q, const dsc_tensor *ids, dsc_tensor *lengths) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_any(&check, "sequence_lengths", q));
    DSC_TRY(check_ids(&check, ids));
    if (ids->ndim < 1 || dsc_tensor_count(ids) > INT32_MAX)
        return DSC_FAIL(
            DSC_E_INVALID,
            "sequence_lengths: ids has %d dimensions and %lld numbers; [samples, ...] with at most "
            "%d is expected",
            ids->ndim, (long long)dsc_tensor_count(ids), INT32_MAX);
    DSC_TRY(dsc_check_typed(&check, "lengths", lengths, DSC_I32));
    DSC_TRY(dsc_check_shape(&check, "lengths", lengths, DSC_SHAPE(ids->dim[0])));
    DSC_TRY(dsc_check_apart(&check, "lengths", lengths, "ids", ids));
    if (ids->dim[0] == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, ids->dtype)->sequence_lengths(q, ids, lengths));
    return DSC_OK;
}

/* Checks ids, and that `rows` has as many rows of the table's number of features. */
static dsc_status check_call(const dsc_check *check, const dsc_tensor *ids, const dsc_tensor *table,
                             const char *name, const dsc_tensor *rows) {
    DSC_TRY(check_ids(check, ids));
    int64_t count = dsc_tensor_count(ids), vocabulary = table->dim[0], features = table->dim[1];
    if (count >= INT32_MAX || vocabulary >= INT32_MAX)
        return DSC_FAIL(DSC_E_INVALID, "%s: %lld rows of a table of %lld; fewer than %d are possible",
                        check->op, (long long)count, (long long)vocabulary, INT32_MAX);
    if (dsc_tensor_count(rows) != count * features)
        return DSC_FAIL(DSC_E_INVALID, "%s: %s has %lld numbers; %lld rows of %lld features are expected",
                        check->op, name, (long long)dsc_tensor_count(rows), (long long)count,
                        (long long)features);
    return DSC_OK;
}

dsc_status dsc_op_embedding_forward(dsc_queue *q, const dsc_tensor *ids, const dsc_tensor *table,
                                    dsc_tensor *y) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_half(&check, "embedding_forward", q, "table", table));
    DSC_TRY(dsc_check_dims(&check, "table", table, 2));
    DSC_TRY(dsc_check_real(&check, "y", y));
    DSC_TRY(check_call(&check, ids, table, "y", y));
    DSC_TRY(dsc_check_apart(&check, "y", y, "table", table));
    DSC_TRY(dsc_check_apart(&check, "y", y, "ids", ids));
    if (dsc_tensor_count(y) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->embedding_forward(q, ids, table, y));
    return DSC_OK;
}

size_t dsc_op_embedding_workspace(const dsc_device *device, int64_t rows, int64_t vocabulary) {
    if (rows < 0 || vocabulary < 0)
        return 0; /* the operation itself will report the error */
    return device->table->embedding_workspace(device, rows, vocabulary);
}

dsc_status dsc_op_embedding_backward(dsc_queue *q, const dsc_tensor *ids, const dsc_tensor *dy, double beta,
                                     dsc_tensor *work, dsc_tensor *dtable) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_half(&check, "embedding_backward", q, "dy", dy));
    DSC_TRY(dsc_check_param(&check, "dtable", dtable));
    DSC_TRY(dsc_check_dims(&check, "dtable", dtable, 2));
    DSC_TRY(check_call(&check, ids, dtable, "dy", dy));
    DSC_TRY(dsc_check_work(&check, work,
                           dsc_op_embedding_workspace(q->device, dsc_tensor_count(ids), dtable->dim[0])));
    DSC_TRY(dsc_check_apart(&check, "dtable", dtable, "dy", dy));
    DSC_TRY(dsc_check_apart(&check, "dtable", dtable, "ids", ids));
    if (dsc_tensor_count(dtable) == 0)
        return DSC_OK;
    DSC_TRY(dsc_device_table_for(q->device, check.dtype)->embedding_backward(q, ids, dy, beta, work, dtable));
    return DSC_OK;
}
