/* The communicator and the device a command runs on. */
#include "cli/cli.h"
#include "cli/support.h"

#include "descent/log.h"
#include "descent/version.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static int has_nccl(void) {
    return strstr(dsc_build_info(), "with NCCL") != NULL;
}

static const double patience = 2.0; /* seconds that a failed rank waits for the others to fail */

/* The rank as the launcher gives it to the process, for use before MPI is initialised. */
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

/* A device in host memory, for text and numbers that ranks exchange, whichever device they compute on. */
static dsc_status open_host(dsc_cli_session *session) {
    dsc_device_options options;
    dsc_device_options_init(&options);
    options.name = "ref";
    return dsc_device_create(&options, &session->host);
}

static dsc_status open_device(dsc_cli_session *session, const char *name, int threads) {
    dsc_device_options options;
    dsc_device_options_init(&options);
    options.name = strcmp(name, "gpu") == 0 ? "cuda" : name;
    options.threads = threads > 0 ? threads : dsc_comm_threads(session->comm);
    options.ordinal = dsc_comm_local_rank(session->comm);
    options.tune = session->tune;
    return dsc_device_create(&options, &session->device);
}

/* Fills all[r] with the identity of rank r's device, 0 where NCCL is missing. Collective. */
static dsc_status gather_identities(const dsc_cli_session *session, int64_t *all) {
    const int64_t ranks = dsc_comm_size(session->comm), rank = dsc_comm_rank(session->comm);
    dsc_tensor whole = dsc_tensor_view(session->host, all, DSC_I64, 1, &ranks);
    dsc_tensor own = dsc_tensor_slice(&whole, rank, 1);
    dsc_request *request = NULL;
    all[rank] = dsc_comm_check_kind("nccl") == DSC_OK ? (int64_t)dsc_device_identity(session->device) : 0;
    DSC_CLI_TRY(dsc_comm_allgather_begin(session->comm, DSC_TRAFFIC_OTHER, &own, &whole, &request));
    return dsc_comm_wait(&request);
}

/* *own = 1, on all ranks, when no two ranks share a GPU and every rank has one and NCCL. Collective. */
static dsc_status have_own_gpus(dsc_cli_session *session, int *own) {
    int ranks = dsc_comm_size(session->comm);
    int64_t *all = NULL;
    DSC_CLI_TRY(dsc_cli_agree(session, dsc_cli_alloc(ranks, sizeof *all, &all)));
    dsc_status status = gather_identities(session, all);
    *own = status == DSC_OK;
    for (int r = 0; r < ranks && *own; r++) {
        *own = all[r] != 0;
        for (int other = 0; other < r; other++)
            *own = *own && all[other] != all[r];
    }
    dsc_cli_free(&all);
    return status;
}

/* Ranks that have a GPU each communicate through NCCL, unless --comm says otherwise. Collective. */
static dsc_status choose_comm(dsc_cli_session *session, const char *kind) {
    dsc_comm_options options;
    dsc_comm *comm = NULL;
    int own = 0;
    dsc_comm_options_init(&options);
    options.kind = "nccl";
    options.thread_multiple = session->several_threads;
    if (strncmp(kind, "mpi", 3) == 0 || strcmp(kind, "self") == 0 || dsc_device_is_host(session->device))
        return DSC_OK;
    if (strcmp(kind, "auto") == 0 && dsc_comm_size(session->comm) > 1 && has_nccl())
        DSC_CLI_TRY(have_own_gpus(session, &own));
    if (strcmp(kind, "auto") == 0 && !own)
        return DSC_OK;
    DSC_CLI_TRY(dsc_cli_agree(session, dsc_comm_check_kind("nccl")));
    DSC_CLI_TRY(dsc_comm_create(&options, &comm));
    dsc_comm_destroy(&session->comm);
    session->comm = comm;
    return DSC_OK;
}

/* Makes the communicator for failures at the start, because after a failure nothing should be allocated, and because
 * messages about failures must not mix with those of the training. */
static dsc_status open_failures(dsc_cli_session *session) {
    int64_t length = DSC_CLI_TEXT;
    if (dsc_comm_size(session->comm) == 1)
        return DSC_OK;
    DSC_CLI_TRY(dsc_comm_split(session->comm, 0, dsc_comm_rank(session->comm), &session->failures));
    return dsc_cli_agree(session, dsc_tensor_alloc(session->host, DSC_U8, 1, &length, &session->text));
}

dsc_status dsc_cli_open(dsc_cli_session *session, const char *device, int threads, const char *comm) {
    dsc_comm_options options;
    if (strcmp(comm, "nccl") == 0 && !has_nccl())
        return DSC_CLI_FAIL(
            DSC_E_UNSUPPORTED,
            "--comm nccl: this build has no NCCL; give --comm mpi or leave it out, or build with CUDA "
            "and NCCL");
    dsc_comm_options_init(&options);
    if (strncmp(comm, "mpi:", 4) == 0 || strcmp(comm, "self") == 0)
        options.kind = comm;
    options.thread_multiple = session->several_threads;
    options.survive = session->survive;
    DSC_CLI_TRY(dsc_comm_create(&options, &session->comm));
    dsc_status status = open_host(session);
    if (status == DSC_OK)
        status = open_device(session, device, threads);
    DSC_CLI_TRY(dsc_cli_agree(session, status));
    if (session->tune && !dsc_device_tunes(session->device))
        dsc_log(DSC_LOG_WARNING, "--tune: there is nothing to tune on this device, %s",
                dsc_device_description(session->device));
    if (strcmp(comm, "nccl") == 0 && dsc_device_is_host(session->device))
        return dsc_cli_agree(session,
                             DSC_CLI_FAIL(DSC_E_INVALID,
                                          "--comm nccl: it sends between GPUs, but this is device %s; "
                                          "give --comm mpi or leave it out",
                                          dsc_device_name(session->device)));
    DSC_CLI_TRY(choose_comm(session, comm));
    DSC_CLI_TRY(open_failures(session));
    return dsc_comm_set_timeout(session->comm, session->timeout);
}

/* Gives every rank the text of rank 0; the texts of the others are empty. It is an all-reduce because that,
 * unlike a broadcast, completes only when all ranks take part. Returns 1 if it completed in time. */
static int share_text(dsc_cli_session *session) {
    const struct timespec nap = {0, 1000000};
    dsc_request *request = NULL;
    int done = 0;
    double end = dsc_cli_now() + patience;
    if (dsc_comm_allreduce_begin(session->failures, DSC_TRAFFIC_OTHER, DSC_MAX, &session->text, &request) !=
        DSC_OK)
        return 0;
    while (!done && dsc_cli_now() < end) {
        if (dsc_comm_test(&request, &done) != DSC_OK)
            return 0;
        nanosleep(&nap, NULL);
    }
    return done;
}

int dsc_cli_failed_together(dsc_cli_session *session, char *text) {
    dsc_queue *queue = NULL;
    if (!session->failures || !session->text.data || dsc_queue_create(session->host, &queue) != DSC_OK)
        return 0;
    if (dsc_comm_rank(session->comm) != 0)
        memset(text, 0, DSC_CLI_TEXT); /* so that the maximum is rank 0's text */
    int together = dsc_tensor_upload(queue, text, DSC_CLI_TEXT, &session->text) == DSC_OK &&
                   dsc_queue_sync(queue) == DSC_OK && share_text(session) &&
                   dsc_tensor_download(queue, &session->text, DSC_CLI_TEXT, text) == DSC_OK &&
                   dsc_queue_sync(queue) == DSC_OK;
    dsc_queue_destroy(&queue);
    return together;
}

void dsc_cli_close(dsc_cli_session *session) {
    dsc_tensor_free(&session->text);
    dsc_comm_destroy(&session->failures);
    dsc_device_destroy(&session->host);
    dsc_device_destroy(&session->device);
    dsc_comm_destroy(&session->comm);
}
