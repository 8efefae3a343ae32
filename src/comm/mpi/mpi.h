/* What the files of the MPI backend know of each other. */
#ifndef DSC_COMM_MPI_MPI_H
#define DSC_COMM_MPI_MPI_H

#include "comm/table.h"

#include <mpi.h>

typedef struct dsc_mpi_state {
    MPI_Comm comm;
} dsc_mpi_state;

/* DSC_OK, or DSC_E_COMM with MPI's own text behind the name of the call. */
dsc_status dsc_mpi_check(int code, const char *call) DSC_MUST_CHECK;
/* Makes `comm` one of the ranks of `made`, which it owns from then on: state and ranks. Collective. */
dsc_status dsc_mpi_adopt(dsc_comm *comm, MPI_Comm made) DSC_MUST_CHECK;

/* Gives `comm` a watch over its ranks. Collective. */
dsc_status dsc_mpi_watch(dsc_comm *comm) DSC_MUST_CHECK;
/* As in the table; survivors leaves the description as it is. */
dsc_status dsc_mpi_look(dsc_watch *watch, int *alarmed) DSC_MUST_CHECK;
dsc_status dsc_mpi_survivors(dsc_comm *comm, double patience, dsc_comm *child) DSC_MUST_CHECK;
void dsc_mpi_close_watch(dsc_watch *watch);

#endif
