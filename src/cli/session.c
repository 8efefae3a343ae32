/* The communicator and the device a command runs on. */
#include "cli/cli.h"

#include "base/error.h"

#include <stdlib.h>

/* Where launchers put the rank of a process, before MPI is up. */
static int launcher_rank(void) {
    static const char *const names[] = {
        "OMPI_COMM_WORLD_RANK", "PMIX_RANK",    "PMI_RANK", "MV2_COMM_WORLD_RANK",
        "PALS_RANKID",          "SLURM_PROCID", NULL};
    for (int i = 0; names[i]; i++) {
        const char *text = getenv(names[i]);
        if (text && *text)
            return (int)strtol(text, NULL, 10);
    }
    return 0;
}

int dsc_cli_prints(const dsc_cli_session *session) {
    return (session->comm ? dsc_comm_rank(session->comm) : launcher_rank()) == 0;
}

dsc_status dsc_cli_agree(dsc_cli_session *session, dsc_status own) {
    dsc_status status = dsc_comm_agree(session->comm, own);
    session->agreed = status != DSC_OK;
    return status;
}

static dsc_status open_device(dsc_cli_session *session, const char *name, int threads) {
    dsc_device_options options;
    dsc_device_options_init(&options);
    options.name = name;
    options.threads = threads > 0 ? threads : dsc_comm_threads(session->comm);
    return dsc_device_create(&options, &session->device);
}

dsc_status dsc_cli_open(dsc_cli_session *session, const char *device, int threads) {
    dsc_comm_options options;
    dsc_comm_options_init(&options);
    DSC_TRY(dsc_comm_create(&options, &session->comm));
    DSC_TRY(dsc_cli_agree(session, open_device(session, device, threads)));
    return DSC_OK;
}

void dsc_cli_close(dsc_cli_session *session) {
    dsc_device_destroy(&session->device);
    dsc_comm_destroy(&session->comm);
}
