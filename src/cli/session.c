/* The communicator and the device a command runs on, and small texts. */
#include "cli/cli.h"

#include "base/error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Where launchers put the rank of a process, before MPI is up. */
static int launcher_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", NULL};
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

const char *dsc_cli_duration(double seconds, char *text, size_t size) {
    if (!isfinite(seconds) || seconds < 0 || seconds >= 1e9)
        snprintf(text, size, "?");
    else if (seconds < 9.95)
        snprintf(text, size, "%.1fs", seconds);
    else if (seconds < 59.5)
        snprintf(text, size, "%.0fs", seconds);
    else if (seconds < 3599.5)
        snprintf(text, size, "%dm%02ds", (int)(seconds + 0.5) / 60, (int)(seconds + 0.5) % 60);
    else
        snprintf(text, size, "%dh%02dm", (int)(seconds + 30) / 3600, (int)(seconds + 30) % 3600 / 60);
    return text;
}

const char *dsc_cli_grouped(int64_t number, char *text, size_t size) {
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)number);
    size_t used = 0;
    for (int i = 0; i < length && used + 2 < size; i++) {
        if (i > 0 && digits[i - 1] != '-' && (length - i) % 3 == 0)
            text[used++] = ',';
        text[used++] = digits[i];
    }
    text[used] = '\0';
    return text;
}
