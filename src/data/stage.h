/* Copies batches to a device whose memory the host cannot write.
 *
 * A queue of the stage's own copies each batch, while the previous step runs, into one of two buffers in
 * turn: as bytes where the data set has them, else as floats. In the order of the caller's queue the device
 * then turns it into x and labels, which have the same address for every batch; bytes are normalised, cropped
 * and mirrored on the device. */
#ifndef DSC_DATA_STAGE_H
#define DSC_DATA_STAGE_H

#include "data/dataset.h"

typedef struct dsc_stage dsc_stage;

/* One batch in memory of the host (dsc_host_alloc). */
typedef struct dsc_staged {
    void *x;         /* bytes or floats: [batch, h, w, c] */
    int32_t *place;  /* [batch, 3]; bytes only */
    int32_t *labels; /* [batch, label_count] */
    int32_t *others; /* [batch], as dsc_loader_mixed_labels has them */
    float *shares;   /* [batch] */
} dsc_staged;

/* dtype: of x; bytes 0: samples are sent as floats even if the data set has bytes. */
dsc_status dsc_stage_create(const dsc_dataset *dataset, dsc_device *device, int64_t batch, dsc_dtype dtype,
                            int bytes, dsc_stage **out) DSC_MUST_CHECK;
void dsc_stage_destroy(dsc_stage **stage);

dsc_status dsc_stage_alloc(dsc_stage *stage, dsc_staged *out) DSC_MUST_CHECK;
void dsc_stage_free(dsc_stage *stage, dsc_staged *staged);

/* Sends a batch and writes it to x and labels, in the order of `queue`; mixed 1: also the other labels and shares.
 * The memory of `staged` is in use until dsc_stage_settle, which waits until the last batch has been copied. */
dsc_status dsc_stage_send(dsc_stage *stage, dsc_queue *queue, const dsc_staged *staged, int mixed,
                          dsc_tensor *x, dsc_tensor *labels) DSC_MUST_CHECK;
/* The other labels and their shares of the batch that was sent last. */
void dsc_stage_mixed(const dsc_stage *stage, dsc_tensor *others, dsc_tensor *shares);
dsc_status dsc_stage_settle(dsc_stage *stage) DSC_MUST_CHECK;

#endif
