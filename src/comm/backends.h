/* The MPI and NCCL backends, as the rest of the library sees them: one table each. They are either linked in or
 * loaded as modules (base/module.h); backends.c is compiled once for each case.
 *
 * There may be a module for every MPI library: "openmpi", and "mpich" for MPICH and the libraries with its
 * ABI. A process can use only one of them. */
#ifndef DSC_COMM_BACKENDS_H
#define DSC_COMM_BACKENDS_H

#include "base/module.h"
#include "comm/table.h"

typedef struct dsc_mpi_functions {
    const char *library; /* "openmpi", "mpich", or "mpi" for any other library */
    /* Fills in table, state, rank, size, local_rank, local_size, threads and description. Collective. */
    dsc_status (*open)(dsc_comm *comm, const dsc_comm_options *options);
    /* Returns 1 while MPI is initialised, by this library or by the program. */
    int (*is_up)(void);
    /* Ends all processes of the job. */
    void (*end_job)(int exit_status);
} dsc_mpi_functions;

typedef struct dsc_nccl_functions {
    /* Adds NCCL's version to the description. */
    void (*describe)(dsc_comm *comm);
    /* Makes the communicator use NCCL for the GPU of its queue, unless it already does. Collective. */
    dsc_status (*use)(dsc_comm *comm);
    /* Does the same for a communicator just split from `parent`, which uses NCCL. Collective. */
    dsc_status (*inherit)(dsc_comm *comm, dsc_comm *parent);
    /* Aborts the operations of all communicators of this process, without waiting. */
    void (*stop)(void);
    /* Makes a new id [DSC_NCCL_ID_BYTES] for a communicator, on one of its ranks. */
    dsc_status (*make_id)(unsigned char *id);
} dsc_nccl_functions;

/* The functions that the modules export. Defined only if the build has found MPI, or NCCL. */
DSC_MODULE_API const dsc_module *dsc_mpi_module(void);
DSC_MODULE_API const dsc_module *dsc_nccl_module(void);

/* Finds the MPI for a kind of communicator: for "mpi:LIBRARY" that library; for every other kind the one that the
 * process has already loaded, else the launcher's, else the one that descent was built with. DSC_E_UNSUPPORTED if
 * the build has no MPI, or the module or its libraries are missing. */
dsc_status dsc_mpi_find(const char *kind, const dsc_mpi_functions **out) DSC_MUST_CHECK;
/* Sets *out to the MPI that is initialised in this process; NULL: none is. Fails if there is no module for it. */
dsc_status dsc_mpi_find_running(const dsc_mpi_functions **out) DSC_MUST_CHECK;
dsc_status dsc_nccl_find(const dsc_nccl_functions **out) DSC_MUST_CHECK;
/* Returns NULL if NCCL has not been used. */
const dsc_nccl_functions *dsc_nccl_in_use(void);

/* Returns the MPI library that is loaded in this process, no matter by whom, named as in dsc_mpi_functions; NULL:
 * none. *is_up = 1 while it is initialised. */
const char *dsc_mpi_in_process(int *is_up);
/* Returns the MPI library to which the launcher of this process belongs; NULL: not known. */
const char *dsc_launcher_library(void);

#endif
