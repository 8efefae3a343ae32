/* Moving host memory and models between ranks: from rank 0 to all, from all to all, from one to another. */
#ifndef DSC_TRAIN_SHARE_H
#define DSC_TRAIN_SHARE_H

#include "descent/comm.h"
#include "descent/model.h"

/* Copies host memory of rank 0 to all ranks. Collective; blocks. */
dsc_status dsc_share_bytes(dsc_comm *comm, dsc_queue *queue, void *data, size_t bytes) DSC_MUST_CHECK;
/* Gathers host memory of all ranks, `bytes` each, in rank order on every rank; the caller frees *all.
 * `status` is this rank's so far: when one rank has failed, all fail. Collective; blocks. */
dsc_status dsc_share_gather(dsc_comm *comm, dsc_queue *queue, dsc_status status, const void *own,
                            size_t bytes, void **all) DSC_MUST_CHECK;
/* Copies rank 0's text to all ranks; the others free theirs. `status` is this rank's so far: when one rank
 * has failed, all fail. Collective; blocks. */
dsc_status dsc_share_text(dsc_comm *comm, dsc_queue *queue, dsc_status status, char **text) DSC_MUST_CHECK;

/* Buffers to send bytes from one rank to another. */
typedef struct dsc_carrier {
    dsc_comm *comm; /* stays the caller's, and so does the queue */
    dsc_queue *queue;
    void *host;           /* the caller writes data to send here, and reads received data */
    dsc_tensor block;     /* U8, on the device */
    dsc_request *request; /* not NULL: a wait has failed, and the block is still in flight */
} dsc_carrier;

/* Allocates `bytes` of host memory, of which up to `sent` are sent in one message. Not collective. */
dsc_status dsc_carrier_open(dsc_comm *comm, dsc_queue *queue, size_t bytes, size_t sent,
                            dsc_carrier *out) DSC_MUST_CHECK;
/* Accepts a carrier that is all zero. A block that is still in flight is never freed: MPI may write to it. */
void dsc_carrier_close(dsc_carrier *carrier);
/* Copies the first `bytes` of host memory from rank `from` to rank `to`. Does nothing on other ranks, or when
 * both are the same. When `request` is set after a failure, the carrier can only be closed. Blocks. */
dsc_status dsc_carrier_move(dsc_carrier *carrier, int from, int to, size_t bytes) DSC_MUST_CHECK;

/* Copies the buffers (running statistics) of rank 0's model to all ranks. Collective; blocks. */
dsc_status dsc_share_buffers(dsc_comm *comm, dsc_queue *queue, dsc_model *model) DSC_MUST_CHECK;
/* The same for parameters and buffers. */
dsc_status dsc_share_model(dsc_comm *comm, dsc_queue *queue, dsc_model *model) DSC_MUST_CHECK;

#endif
