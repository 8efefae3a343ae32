/* Finds the functions of MPI and NCCL, and chooses the MPI library. Compiled twice: with DSC_LOAD_MODULES for
 * libdescent.so, without it for everything that has the backends linked in. */
#include "comm/backends.h"

#include "base/config.h"
#include "base/error.h"
#include "descent/log.h"

#include <stdatomic.h>
#include <string.h>

#if defined(DSC_HAVE_NCCL) && !defined(DSC_EMULATED)
#define WITH_NCCL 1
#else
#define WITH_NCCL 0
#endif

/* ---- MPI ---- */

#ifndef DSC_HAVE_MPI
dsc_status dsc_mpi_find(const char *kind, const dsc_mpi_functions **out) {
    (void)out;
    return DSC_FAIL(DSC_E_UNSUPPORTED,
                    "communicator kind '%s': this build has no MPI; install Open MPI or MPICH and configure "
                    "again with DESCENT_MPI=ON",
                    kind);
}

dsc_status dsc_mpi_find_running(const dsc_mpi_functions **out) {
    *out = NULL;
    return DSC_OK;
}
#else

/* Returns "mpich" for kind "mpi:mpich"; NULL: any library will do. */
static const char *wanted_library(const char *kind) {
    return strncmp(kind, "mpi:", 4) == 0 ? kind + 4 : NULL;
}

#ifndef DSC_LOAD_MODULES
dsc_status dsc_mpi_find(const char *kind, const dsc_mpi_functions **out) {
    const dsc_mpi_functions *mpi = dsc_mpi_module()->table;
    const char *wanted = wanted_library(kind);
    if (wanted && strcmp(wanted, mpi->library) != 0)
        return DSC_FAIL(DSC_E_UNSUPPORTED,
                        "communicator kind '%s': this program has %s linked in, and no other MPI", kind,
                        mpi->library);
    *out = mpi;
    return DSC_OK;
}

dsc_status dsc_mpi_find_running(const dsc_mpi_functions **out) {
    const dsc_mpi_functions *mpi = dsc_mpi_module()->table;
    *out = mpi->is_up() ? mpi : NULL;
    return DSC_OK;
}
#else

static dsc_status load_mpi(const char *library, const dsc_mpi_functions **out) {
    const void *table;
    DSC_TRY(dsc_module_load(library, "dsc_mpi_module", &table));
    *out = table;
    return DSC_OK;
}

/* Loads the launcher's MPI, or else the one of the build, which may understand the launcher as well: several MPIs
 * speak Slurm's protocols. If it does not, dsc_comm_create notices that it sees only one process. */
static dsc_status load_for_launcher(const dsc_mpi_functions **out) {
    const char *library = dsc_launcher_library();
    if (library && strcmp(library, DSC_MPI_LIBRARY) != 0) {
        if (load_mpi(library, out) == DSC_OK)
            return DSC_OK;
        dsc_log(DSC_LOG_DEBUG, "%s", dsc_error_message());
    }
    return load_mpi(DSC_MPI_LIBRARY, out);
}

dsc_status dsc_mpi_find(const char *kind, const dsc_mpi_functions **out) {
    int is_up;
    const char *wanted = wanted_library(kind), *present = dsc_mpi_in_process(&is_up);
    if (wanted && present && strcmp(wanted, present) != 0)
        return DSC_FAIL(DSC_E_UNSUPPORTED,
                        "communicator kind '%s': this process has loaded another MPI, %s, and cannot use two",
                        kind, present);
    if (wanted || present) {
        dsc_status status = load_mpi(wanted ? wanted : present, out);
        return status == DSC_OK ? DSC_OK : dsc_error_prefix(status, "communicator kind '%s'", kind);
    }
    return load_for_launcher(out);
}

dsc_status dsc_mpi_find_running(const dsc_mpi_functions **out) {
    int is_up;
    const char *present = dsc_mpi_in_process(&is_up);
    *out = NULL;
    if (!present || !is_up)
        return DSC_OK;
    return load_mpi(present, out);
}
#endif
#endif

/* ---- NCCL ---- */

static _Atomic(const dsc_nccl_functions *) nccl_in_use;

const dsc_nccl_functions *dsc_nccl_in_use(void) {
    return atomic_load(&nccl_in_use);
}

dsc_status dsc_nccl_find(const dsc_nccl_functions **out) {
#if WITH_NCCL && defined(DSC_LOAD_MODULES)
    const void *table;
    dsc_status status = dsc_module_load("nccl", "dsc_nccl_module", &table);
    if (status != DSC_OK)
        return dsc_error_prefix(status, "communicator kind 'nccl'");
#elif WITH_NCCL
    const void *table = dsc_nccl_module()->table;
#else
    const void *table = NULL;
    if (!table)
        return DSC_FAIL(
            DSC_E_UNSUPPORTED,
            "communicator kind 'nccl': this build has no NCCL; configure again with CUDA and NCCL "
            "installed, or use mpi, which copies tensors of a GPU over the host");
#endif
    *out = table;
    atomic_store(&nccl_in_use, *out);
    return DSC_OK;
}
