/* Shared by the files of the MPI backend. */
#ifndef DSC_COMM_MPI_MPI_H
#define DSC_COMM_MPI_MPI_H

#include "comm/table.h"

#include <mpi.h>

typedef struct dsc_mpi_state {
    MPI_Comm comm;
} dsc_mpi_state;

/* Returns 1 while MPI is initialised, by this library or by the program. */
int dsc_mpi_is_up(void);
/* Makes the MPI library visible to its plug-ins. To be called before MPI is initialised. */
void dsc_mpi_serve_plugins(void);
/* Converts MPI's code: DSC_OK, or DSC_E_COMM with the name of the call and MPI's own text. */
dsc_status dsc_mpi_check(int code, const char *call) DSC_MUST_CHECK;
/* Runs a function that calls MPI, with a time limit of `seconds`, but at least 5. There is no limit if
 * `seconds` is 0 or MPI allows calls from one thread only. DSC_E_COMM at the limit: the function then goes on
 * running for ever and keeps `argument`, and MPI must not be called any more. */
dsc_status dsc_mpi_run(double seconds, dsc_status (*function)(void *argument), void *argument) DSC_MUST_CHECK;
/* Tell whether MPI may be called: 0, or DSC_E_COMM, once a call has reached its limit. The second also fails after
 * MPI_Finalize. */
int dsc_mpi_is_free(void);
dsc_status dsc_mpi_check_free(void) DSC_MUST_CHECK;

/* Makes `comm` the communicator of the ranks of `made`, which it owns from then on: fills in state and ranks.
 * Collective. */
dsc_status dsc_mpi_adopt(dsc_comm *comm, MPI_Comm made) DSC_MUST_CHECK;

/* Gives `comm` a watch over its ranks. Collective. */
dsc_status dsc_mpi_watch(dsc_comm *comm) DSC_MUST_CHECK;
/* Copies the fields that dsc_mpi_adopt and dsc_mpi_watch have filled in. */
void dsc_mpi_move(const dsc_comm *from, dsc_comm *to);
/* Functions of dsc_comm_table, except that survivors does not fill in the description. */
dsc_status dsc_mpi_look(dsc_watch *watch, int *alarmed) DSC_MUST_CHECK;
dsc_status dsc_mpi_survivors(dsc_comm *comm, double patience, dsc_comm *child) DSC_MUST_CHECK;
void dsc_mpi_close_watch(dsc_watch *watch);

/* For tests: sets a function that is called after survivors have agreed and before they make their communicator. */
void dsc_mpi_set_agreed_hook(void (*hook)(void));

#endif
