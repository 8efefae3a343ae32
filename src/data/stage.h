/* Batches on their way to a device whose memory the host cannot write.
 *
 * Each goes over a queue of its own, so that it travels while the step before it runs, into one of two places
 * in turn; in the order of the caller's queue it then becomes x and labels, always at the same place: as
 * bytes that the device normalises, crops and mirrors (where the data set has them), or as floats. */
#ifndef DSC_DATA_STAGE_H
#define DSC_DATA_STAGE_H

#include "data/dataset.h"

typedef struct dsc_stage dsc_stage;

/* One batch in memory of the host (dsc_host_alloc). */
typedef struct dsc_staged {
    void *x;         /* bytes or floats: [batch, h, w, c] */
    int32_t *place;  /* [batch, 3]; bytes only */
    int32_t *labels; /* [batch] */
} dsc_staged;

/* dtype: of x. */
dsc_status dsc_stage_create(const dsc_dataset *dataset, dsc_device *device, int64_t batch, dsc_dtype dtype,
                            dsc_stage **out) DSC_MUST_CHECK;
void dsc_stage_destroy(dsc_stage **stage);

dsc_status dsc_stage_alloc(dsc_stage *stage, dsc_staged *out) DSC_MUST_CHECK;
void dsc_stage_free(dsc_stage *stage, dsc_staged *staged);

/* Puts a batch into `queue`'s x and labels. Its memory is needed until dsc_stage_settle, which waits for the
 * last one to have been copied. */
dsc_status dsc_stage_send(dsc_stage *stage, dsc_queue *queue, const dsc_staged *staged, dsc_tensor *x,
                          dsc_tensor *labels) DSC_MUST_CHECK;
dsc_status dsc_stage_settle(dsc_stage *stage) DSC_MUST_CHECK;

#endif
