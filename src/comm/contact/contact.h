/* Shared by the files of the backend for communicators that are set up by the caller's function `exchange`. */
#ifndef DSC_COMM_CONTACT_H
#define DSC_COMM_CONTACT_H

#include "comm/table.h"

/* Transfers of host memory through the GPU of the communicator's queue (lift.c): all of a communicator, and one. */
typedef struct dsc_lifts dsc_lifts;
typedef struct dsc_lift dsc_lift;

/* Copies the data to be sent to the GPU and starts the transfer there. DSC_E_UNSUPPORTED if the communicator does
 * not use NCCL. The first call creates *lifts. */
dsc_status dsc_lift_start(dsc_comm *comm, dsc_lifts **lifts, const dsc_transfer *transfer,
                          dsc_lift **out) DSC_MUST_CHECK;
/* Test or wait for the transfer. Once it is complete, they copy its result to the host and take the lift back. */
dsc_status dsc_lift_test(dsc_comm *comm, dsc_lift *lift, int *done) DSC_MUST_CHECK;
dsc_status dsc_lift_wait(dsc_comm *comm, dsc_lift *lift) DSC_MUST_CHECK;
/* Frees all memory. */
void dsc_lifts_free(dsc_lifts **lifts);

/* Does the work of dsc_comm_create_from_contact. by_nccl 0, for tests: without NCCL, so that nothing can go through a
 * GPU unless the test provides a device_table. */
dsc_status dsc_contact_create(const dsc_comm_contact *contact, const dsc_comm_options *options, int by_nccl,
                              dsc_comm **out) DSC_MUST_CHECK;

#endif
