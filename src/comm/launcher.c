/* Finds out whether an MPI launcher has started this process. Only then does "auto" initialise MPI.
 *
 * Launchers describe their processes in environment variables: Open MPI's mpirun sets
 * OMPI_COMM_WORLD_* (and PMIX_RANK), Hydra (MPICH, Intel MPI, MVAPICH) PMI_RANK and PMI_SIZE, MVAPICH's own
 * launchers MV2_COMM_WORLD_*, HPE's PALS_RANKID. Slurm's srun sets PMI_* or PMIX_* if it was asked for that
 * kind of MPI. With neither, its processes cannot find each other, but a step of several tasks was surely
 * meant to be one job: it counts as launched, and dsc_comm_create then reports that MPI sees only one
 * process. A batch script (SLURM_NTASKS, no step) is not a launched process. */
#include "comm/backends.h"

#include <limits.h>
#include <stdlib.h>

static const char *const size_variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"};
static const char *const rank_variables[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                             "MV2_COMM_WORLD_RANK", "PALS_RANKID"};

/* Returns the number in an environment variable, 0 if it is absent or not a positive number. */
static int positive_variable(const char *name) {
    const char *text = getenv(name);
    if (!text || !*text)
        return 0;
    char *end;
    long value = strtol(text, &end, 10);
    return *end == '\0' && value > 0 && value <= INT_MAX ? (int)value : 0;
}

int dsc_launcher_size(void) {
    for (size_t i = 0; i < sizeof size_variables / sizeof *size_variables; i++) {
        int size = positive_variable(size_variables[i]);
        if (size > 0)
            return size;
    }
    int tasks = positive_variable("SLURM_STEP_NUM_TASKS");
    if (tasks > 1 && getenv("SLURM_PROCID"))
        return tasks;
    for (size_t i = 0; i < sizeof rank_variables / sizeof *rank_variables; i++) {
        if (getenv(rank_variables[i]))
            return 1;
    }
    return 0;
}

int dsc_launcher_other_size(void) {
    return dsc_launcher_size() == 0 && getenv("RANK") ? positive_variable("WORLD_SIZE") : 0;
}

/* Slurm sets PMI_* for the protocols PMI-1 and PMI-2, which MPICH and its derivatives speak, and PMIX_* for that
 * of Open MPI. */
const char *dsc_launcher_library(void) {
    static const struct {
        const char *variable, *library;
    } signs[] = {
        {"OMPI_COMM_WORLD_RANK", "openmpi"},
        {"OMPI_COMM_WORLD_SIZE", "openmpi"},
        {"PMI_RANK", "mpich"},
        {"PMI_SIZE", "mpich"},
        {"MV2_COMM_WORLD_RANK", "mpich"},
        {"MV2_COMM_WORLD_SIZE", "mpich"},
        {"PALS_RANKID", "mpich"},
        {"PMIX_RANK", "openmpi"},
    };
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        if (getenv(signs[i].variable))
            return signs[i].library;
    }
    return NULL;
}
