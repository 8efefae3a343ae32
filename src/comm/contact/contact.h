/* Shared by the files of communicators that the caller's `exchange` has brought together. */
#ifndef DSC_COMM_CONTACT_H
#define DSC_COMM_CONTACT_H

#include "comm/table.h"

/* Host memory that is moved through the GPU of the communicator's queue (lift.c). All of a communicator. */
typedef struct dsc_lifts dsc_lifts;
typedef struct dsc_lift dsc_lift;

/* Copies what is sent to the GPU and starts the transfer there. DSC_E_UNSUPPORTED when the communicator does
 * not use NCCL. `lifts` is created by the first call. */
dsc_status dsc_lift_start(dsc_comm *comm, dsc_lifts **lifts, const dsc_transfer *transfer,
                          dsc_lift **out) DSC_MUST_CHECK;
/* Wait for the transfer and copy its result to the host. The lift is gone when the transfer is complete. */
dsc_status dsc_lift_test(dsc_comm *comm, dsc_lift *lift, int *done) DSC_MUST_CHECK;
dsc_status dsc_lift_wait(dsc_comm *comm, dsc_lift *lift) DSC_MUST_CHECK;
/* Frees all memory. */
void dsc_lifts_free(dsc_lifts **lifts);

/* dsc_comm_create_from_contact, also without NCCL, for tests: everything but GPU tensors works. */
dsc_status dsc_contact_create(const dsc_comm_contact *contact, const dsc_comm_options *options, int by_nccl,
                              dsc_comm **out) DSC_MUST_CHECK;

#endif
