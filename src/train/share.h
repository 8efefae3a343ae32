/* Giving everybody what rank 0 has, or what each has. */
#ifndef DSC_TRAIN_SHARE_H
#define DSC_TRAIN_SHARE_H

#include "descent/comm.h"
#include "descent/model.h"

/* Host memory of rank 0 to all. Collective; blocks. */
dsc_status dsc_share_bytes(dsc_comm *comm, dsc_queue *queue, void *data, size_t bytes) DSC_MUST_CHECK;
/* Every rank's host memory, `bytes` each, in rank order: *all is new. `status`: this rank's so far; a failure
 * of one fails all. Collective; blocks. */
dsc_status dsc_share_gather(dsc_comm *comm, dsc_queue *queue, dsc_status status, const void *own,
                            size_t bytes, void **all) DSC_MUST_CHECK;
/* The buffers (running statistics) of rank 0's model to all. Collective; blocks. */
dsc_status dsc_share_buffers(dsc_comm *comm, dsc_queue *queue, dsc_model *model) DSC_MUST_CHECK;
/* Parameters and buffers. */
dsc_status dsc_share_model(dsc_comm *comm, dsc_queue *queue, dsc_model *model) DSC_MUST_CHECK;

#endif
