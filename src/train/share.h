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
/* Rank 0's text to all; the others' is new. `status`: this rank's so far; a failure of one fails all.
 * Collective; blocks. */
dsc_status dsc_share_text(dsc_comm *comm, dsc_queue *queue, dsc_status status, char **text) DSC_MUST_CHECK;

/* Bytes on their way between rank 0 and one other. */
typedef struct dsc_carrier {
    dsc_comm *comm; /* lent, and so is the queue */
    dsc_queue *queue;
    void *host;           /* what is handed in or has arrived; the caller writes and reads here */
    dsc_tensor block;     /* U8, as large */
    dsc_request *request; /* not NULL: a wait has failed, and the block is still in flight */
} dsc_carrier;

/* Room for `bytes`. Not collective. */
dsc_status dsc_carrier_open(dsc_comm *comm, dsc_queue *queue, size_t bytes, dsc_carrier *out) DSC_MUST_CHECK;
/* Accepts one that was never opened, all zero. A block in flight is never given back: it is MPI's. */
void dsc_carrier_close(dsc_carrier *carrier);
/* The first `bytes` of host memory from rank `from` to rank `to`; others do nothing, and nobody does when
 * both are the same. After a failure the carrier can only be closed. Blocks. */
dsc_status dsc_carrier_move(dsc_carrier *carrier, int from, int to, size_t bytes) DSC_MUST_CHECK;

/* The buffers (running statistics) of rank 0's model to all. Collective; blocks. */
dsc_status dsc_share_buffers(dsc_comm *comm, dsc_queue *queue, dsc_model *model) DSC_MUST_CHECK;
/* Parameters and buffers. */
dsc_status dsc_share_model(dsc_comm *comm, dsc_queue *queue, dsc_model *model) DSC_MUST_CHECK;

#endif
