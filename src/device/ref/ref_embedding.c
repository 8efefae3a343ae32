/* Reference: lengths of sequences; embeddings (rows of a table) and their gradients. */
#include "device/formulas.h"
#include "device/ref/element.h"
#include "device/ref/ref.h"

dsc_status dsc_ref_sequence_lengths(dsc_queue *q, const dsc_tensor *ids, dsc_tensor *lengths) {
    (void)q;
    int64_t t = dsc_tensor_count(ids) / ids->dim[0];
    for (int64_t i = 0; i < ids->dim[0]; i++) {
        int64_t length = t;
        while (length > 0 && !(get(ids, i * t + length - 1) >= 0))
            length--;
        set(lengths, i, (double)length);
    }
    return DSC_OK;
}

dsc_status dsc_ref_embedding_forward(dsc_queue *q, const dsc_tensor *ids, const dsc_tensor *table,
                                     dsc_tensor *y) {
    (void)q;
    int64_t rows = dsc_tensor_count(ids), features = table->dim[1];
    for (int64_t i = 0; i < rows; i++) {
        int64_t v = dsc_embedding_row(get(ids, i), table->dim[0]);
        for (int64_t c = 0; c < features; c++)
            set(y, i * features + c, v < 0 ? 0 : get(table, at2(table, v, c)));
    }
    return DSC_OK;
}

size_t dsc_ref_embedding_workspace(const dsc_device *device, int64_t rows, int64_t vocabulary) {
    (void)device, (void)rows, (void)vocabulary;
    return 0;
}

dsc_status dsc_ref_embedding_backward(dsc_queue *q, const dsc_tensor *ids, const dsc_tensor *dy, double beta,
                                      dsc_tensor *work, dsc_tensor *dtable) {
    (void)q, (void)work;
    int64_t rows = dsc_tensor_count(ids), features = dtable->dim[1];
    for (int64_t i = 0; i < dsc_tensor_count(dtable); i++)
        update(dtable, i, beta, 0);
    for (int64_t i = 0; i < rows; i++) {
        int64_t v = dsc_embedding_row(get(ids, i), dtable->dim[0]);
        for (int64_t c = 0; v >= 0 && c < features; c++)
            update(dtable, at2(dtable, v, c), 1, get(dy, i * features + c));
    }
    return DSC_OK;
}
