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
/* Runs a function that calls MPI, within so many seconds, at least 5; 0, or an MPI for one thread alone:
 * without a limit. DSC_E_COMM when it takes longer: it then goes on for ever, keeps `argument`, and MPI must
 * not be called any more. */
dsc_status dsc_mpi_run(double seconds, dsc_status (*function)(void *argument), void *argument) DSC_MUST_CHECK;
/* 0, and DSC_E_COMM, once that has happened. */
int dsc_mpi_is_free(void);
dsc_status dsc_mpi_check_free(void) DSC_MUST_CHECK;

/* Makes `comm` one of the ranks of `made`, which it owns from then on: state and ranks. Collective. */
dsc_status dsc_mpi_adopt(dsc_comm *comm, MPI_Comm made) DSC_MUST_CHECK;

/* Gives `comm` a watch over its ranks. Collective. */
dsc_status dsc_mpi_watch(dsc_comm *comm) DSC_MUST_CHECK;
/* Copies what adopt and watch have filled in. */
void dsc_mpi_move(const dsc_comm *from, dsc_comm *to);
/* As in the table; survivors leaves the description as it is. */
dsc_status dsc_mpi_look(dsc_watch *watch, int *alarmed) DSC_MUST_CHECK;
dsc_status dsc_mpi_survivors(dsc_comm *comm, double patience, dsc_comm *child) DSC_MUST_CHECK;
void dsc_mpi_close_watch(dsc_watch *watch);

/* For tests: called when survivors have agreed, before they make their communicator. NULL: nothing. */
void dsc_mpi_set_agreed_hook(void (*hook)(void));

#endif
