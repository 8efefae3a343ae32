/* Communicators: choice of the backend, life cycle, the queue, properties. */
#include "comm/backends.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/versioned.h"
#include "descent/log.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef dsc_status (*open_function)(dsc_comm *comm, const dsc_comm_options *options);

/* ---- choice of the backend ---- */

void dsc_comm_options_init_sized(dsc_comm_options *options, size_t size) {
    const dsc_comm_options defaults = {.kind = "auto"};
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}

dsc_status dsc_comm_read_options(const dsc_comm_options *given, dsc_comm_options *out) {
    dsc_comm_options_init(out);
    DSC_TRY(dsc_versioned_read("comm", given, sizeof *out, out));
    if (!out->kind)
        out->kind = "auto";
    if (out->message_limit == 0)
        out->message_limit = INT_MAX;
    if (out->message_limit < 1 || out->message_limit > INT_MAX)
        return DSC_FAIL(
            DSC_E_INVALID,
            "communicator options: message_limit %lld: must be 1 to %d elements, or 0 for the most",
            (long long)out->message_limit, INT_MAX);
    if (out->mpi_comm && strcmp(out->kind, "self") == 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "communicator kind 'self' with an MPI communicator: use auto, mpi or nccl");
    if (out->survive && strcmp(out->kind, "nccl") == 0)
        return DSC_FAIL(DSC_E_UNSUPPORTED, "communicator kind 'nccl' cannot continue without a rank that was "
                                           "lost (survive): use mpi, which copies over the host");
    return DSC_OK;
}

/* Fails under torchrun: MPI does not see the other processes, and each would be the only rank. */
static dsc_status check_other_launcher(void) {
    int launched = dsc_launcher_other_size();
    if (launched <= 1)
        return DSC_OK;
    return DSC_FAIL(
        DSC_E_COMM,
        "a launcher that is not MPI's has started %d processes (WORLD_SIZE is %d, and RANK is set), "
        "and each would work alone: start the program with mpirun or srun; or connect the processes "
        "by dsc_comm_create_from_functions or dsc_comm_create_from_contact (in Python: call "
        "torch.distributed.init_process_group first); or choose the communicator 'self', if each is "
        "to work alone",
        launched, launched);
}

/* Chooses for "auto": MPI under a launcher, or in a program that has initialised it. If MPI cannot be used, a single
 * process may go on by itself; several would all do the same work. */
static dsc_status choose_for_launch(open_function *open) {
    const dsc_mpi_functions *mpi = NULL;
    int launched = dsc_launcher_size();
    DSC_TRY(dsc_mpi_find_running(&mpi));
    if (!mpi && launched > 0) {
        dsc_status status = dsc_mpi_find("auto", &mpi);
        if (status != DSC_OK && launched > 1)
            return dsc_error_prefix(status, "a launcher has started %d processes, which need MPI", launched);
        if (status != DSC_OK)
            dsc_log(DSC_LOG_DEBUG, "%s", dsc_error_message());
    }
    if (!mpi)
        DSC_TRY(check_other_launcher());
    *open = mpi ? mpi->open : dsc_self_open;
    return DSC_OK;
}

static dsc_status choose(const dsc_comm_options *options, open_function *open) {
    const dsc_mpi_functions *mpi;
    const char *kind = options->kind;
    int is_auto = strcmp(kind, "auto") == 0;
    if (strcmp(kind, "self") == 0) {
        *open = dsc_self_open;
    } else if (is_auto && !options->mpi_comm) {
        DSC_TRY(choose_for_launch(open));
    } else if (is_auto || strcmp(kind, "mpi") == 0 || strcmp(kind, "nccl") == 0 ||
               strncmp(kind, "mpi:", 4) == 0) {
        DSC_TRY(dsc_mpi_find(kind, &mpi));
        *open = mpi->open;
    } else {
        return DSC_FAIL(DSC_E_INVALID,
                        "communicator kind '%s': known are auto, self, mpi (also mpi:openmpi and mpi:mpich) "
                        "and nccl",
                        kind);
    }
    return DSC_OK;
}

dsc_status dsc_comm_check_kind(const char *kind) {
    open_function open;
    const dsc_nccl_functions *nccl;
    const dsc_comm_options options = {.size = sizeof options, .kind = kind};
    if (!kind)
        return DSC_FAIL(DSC_E_INVALID, "no communicator kind");
    if (strcmp(kind, "nccl") == 0)
        DSC_TRY(dsc_nccl_find(&nccl));
    DSC_TRY(choose(&options, &open));
    return DSC_OK;
}

/* Fails under the launcher of a different MPI, where every process sees only itself, and all would do the same work. */
static dsc_status check_launch(const dsc_comm *comm) {
    int launched = dsc_launcher_size();
    const char *library = dsc_launcher_library();
    char hint[80] = "";
    if (comm->size > 1)
        return DSC_OK;
    DSC_TRY(check_other_launcher());
    if (launched <= 1)
        return DSC_OK;
    if (library)
        snprintf(hint, sizeof hint, " (the launcher seems to be that of %s: kind mpi:%s)", library, library);
    return DSC_FAIL(DSC_E_COMM,
                    "a launcher has started %d processes, but MPI sees only this one (%s): start the program "
                    "with the mpiexec of that MPI, or srun with the matching --mpi%s",
                    launched, comm->description, hint);
}

/* ---- life cycle ---- */

static void release_counters(dsc_comm_counters **counters) {
    if (*counters && atomic_fetch_sub(&(*counters)->users, 1) == 1)
        dsc_memory_free(counters);
    *counters = NULL;
}

/* Waits until nothing is in flight and, with a time limit, for all ranks before MPI is finalised, since MPI_Finalize
 * has no limit. Returns 0 if that failed. */
static int is_quiet(dsc_comm *comm) {
    if (comm->watch && atomic_load(&comm->watch->alarmed))
        return 0;
    if (!dsc_comm_settle_requests(comm))
        return 0;
    return comm->timeout == 0 || !comm->table->is_last || !comm->table->is_last(comm) ||
           dsc_comm_barrier(comm) == DSC_OK;
}

void dsc_comm_destroy(dsc_comm **comm) {
    if (!comm || !*comm)
        return;
    if ((*comm)->table) {
        if (!is_quiet(*comm) && (*comm)->table->abandon) {
            dsc_comm_abandon(comm);
            return;
        }
        dsc_comm_drop_requests(*comm);
        dsc_staging_drop(*comm);
        dsc_memory_free(&(*comm)->own);
        dsc_watch_release((*comm)->table, &(*comm)->watch);
        if ((*comm)->device_table)
            (*comm)->device_table->close(*comm);
        (*comm)->table->close(*comm);
    }
    release_counters(&(*comm)->counters);
    dsc_memory_free(comm);
}

dsc_status dsc_comm_alloc(const dsc_comm_options *options, dsc_comm **out) {
    dsc_comm *comm = NULL;
    const dsc_nccl_functions *nccl = NULL;
    dsc_status status;
    if (strcmp(options->kind, "nccl") == 0)
        DSC_TRY(dsc_nccl_find(&nccl));
    DSC_TRY(dsc_memory_alloc(1, sizeof *comm, &comm));
    comm->message_limit = options->message_limit;
    comm->thread_multiple = options->thread_multiple;
    comm->nccl = nccl;
    DSC_TRY_GOTO(status, dsc_memory_alloc(1, sizeof *comm->counters, &comm->counters), fail);
    atomic_init(&comm->counters->users, 1);
    *out = comm;
    return DSC_OK;
fail:
    dsc_memory_free(&comm);
    return status;
}

void dsc_comm_finish(dsc_comm *comm) {
    if (comm->nccl)
        comm->nccl->describe(comm);
    if (comm->size > 1)
        dsc_error_set_rank(comm->rank);
}

dsc_status dsc_comm_create(const dsc_comm_options *options, dsc_comm **out) {
    dsc_comm_options o;
    open_function open = NULL;
    dsc_comm *comm = NULL;
    dsc_status status;
    /* Everything that can fail on one rank alone comes before the first collective step. */
    DSC_TRY(dsc_comm_read_options(options, &o));
    DSC_TRY(dsc_comm_alloc(&o, &comm));
    DSC_TRY_GOTO(status, choose(&o, &open), fail);
    DSC_TRY_GOTO(status, open(comm, &o), fail);
    if (open != dsc_self_open && !o.mpi_comm)
        DSC_TRY_GOTO(status, check_launch(comm), fail);
    dsc_comm_finish(comm);
    *out = comm;
    return DSC_OK;
fail:
    dsc_comm_destroy(&comm);
    return status;
}

/* Copies the settings of a communicator to one that is split from it. */
static void inherit(const dsc_comm *comm, dsc_comm *child) {
    child->message_limit = comm->message_limit;
    child->threads = comm->threads;
    child->queue = comm->queue;
    child->nccl = comm->nccl;
    child->thread_multiple = comm->thread_multiple;
    child->alone_too = comm->alone_too;
    child->timeout = comm->timeout;
    memcpy(child->description, comm->description, sizeof child->description);
}

static void share_counters(const dsc_comm *comm, dsc_comm *child) {
    child->counters = comm->counters;
    atomic_fetch_add(&child->counters->users, 1);
}

dsc_status dsc_comm_split(dsc_comm *comm, int colour, int key, dsc_comm **out) {
    dsc_comm *child;
    DSC_TRY(dsc_comm_check("split", comm));
    DSC_TRY(dsc_memory_alloc(1, sizeof *child, &child));
    inherit(comm, child);
    dsc_status status = comm->table->split(comm, colour, key, child);
    if (status != DSC_OK || colour < 0) {
        dsc_memory_free(&child);
        if (status != DSC_OK)
            return dsc_error_pass(status, __FILE__, __LINE__);
        *out = NULL;
        return DSC_OK;
    }
    child->table = comm->table;
    share_counters(comm, child);
    child->watch = comm->watch;
    if (child->watch)
        atomic_fetch_add(&child->watch->users, 1);
    if (comm->device_table) /* it uses NCCL, and so will the child */
        status = comm->nccl->inherit(child, comm);
    if (status != DSC_OK)
        dsc_comm_destroy(&child);
    DSC_TRY(status);
    *out = child;
    return DSC_OK;
}

dsc_status dsc_comm_survivors(dsc_comm *comm, double patience, dsc_comm **out) {
    if (!comm->owns_watch)
        return DSC_FAIL(DSC_E_INVALID,
                        "survivors of communicator '%s': it is not one that was created with "
                        "dsc_comm_options.survive on several ranks",
                        dsc_comm_name(comm));
    if (!(patience > 0))
        return DSC_FAIL(DSC_E_INVALID, "survivors: a patience of %g s: must be positive", patience);
    dsc_comm *child;
    DSC_TRY(dsc_memory_alloc(1, sizeof *child, &child));
    inherit(comm, child);
    atomic_store(&comm->watch->alarmed, 1);
    dsc_status status = comm->table->survivors(comm, patience, child);
    if (status != DSC_OK)
        dsc_memory_free(&child);
    DSC_TRY(status);
    child->table = comm->table;
    share_counters(comm, child);
    *out = child;
    return DSC_OK;
}

void dsc_comm_abort(dsc_comm *comm, int exit_status) {
    (void)comm;     /* the whole job ends, whichever communicator noticed the failure */
    fflush(stdout); /* not all streams: another thread may hold the lock of one while it waits for a disk */
    fflush(stderr);
    const dsc_nccl_functions *nccl = dsc_nccl_in_use();
    const dsc_mpi_functions *mpi = NULL;
    if (nccl)
        nccl->stop();
    /* A launcher may lose the last output of its ranks when the job ends: give it time to pass that on. */
    const struct timespec moment = {.tv_nsec = 300000000};
    if (dsc_mpi_find_running(&mpi) == DSC_OK && mpi) {
        nanosleep(&moment, NULL);
        mpi->end_job(exit_status);
    }
    _exit(exit_status);
}

/* ---- the queue ---- */

dsc_status dsc_comm_use_queue(dsc_comm *comm, dsc_queue *queue) {
    DSC_TRY(dsc_comm_check("use_queue", comm));
    comm->queue = queue;
    if (comm->nccl && queue && !dsc_device_is_host(dsc_queue_device(queue)))
        DSC_TRY(comm->nccl->use(comm));
    return DSC_OK;
}

dsc_queue *dsc_comm_queue(const dsc_comm *comm) {
    return comm->queue;
}

void dsc_comm_return_queue(dsc_comm *comm, dsc_queue *queue) {
    comm->queue = queue;
}

int dsc_comm_records(const dsc_comm *comm) {
    return comm->size == 1 || comm->device_table != NULL;
}

dsc_status dsc_comm_check_queue(const dsc_comm *comm, const char *what, const dsc_device *device) {
    if (!comm->queue)
        return DSC_FAIL(
            DSC_E_INVALID,
            "%s: the tensor is in memory of device '%s', and the communicator has no queue to move "
            "it in order with: call dsc_comm_use_queue first",
            what, dsc_device_name(device));
    if (dsc_queue_device(comm->queue) != device)
        return DSC_FAIL(DSC_E_INVALID,
                        "%s: the tensor is in memory of device '%s', the communicator's queue is one of "
                        "another device '%s': call dsc_comm_use_queue with one of the tensor's device",
                        what, dsc_device_name(device), dsc_device_name(dsc_queue_device(comm->queue)));
    return DSC_OK;
}

/* ---- properties ---- */

int dsc_comm_rank(const dsc_comm *comm) {
    return comm->rank;
}

int dsc_comm_size(const dsc_comm *comm) {
    return comm->size;
}

int dsc_comm_local_rank(const dsc_comm *comm) {
    return comm->local_rank;
}

int dsc_comm_local_size(const dsc_comm *comm) {
    return comm->local_size;
}

int dsc_comm_threads(const dsc_comm *comm) {
    return comm->threads;
}

const char *dsc_comm_name(const dsc_comm *comm) {
    return comm->nccl ? "nccl" : comm->table->name;
}

const char *dsc_comm_description(const dsc_comm *comm) {
    return comm->description;
}

void dsc_comm_add_bytes(dsc_comm *comm, dsc_traffic traffic, uint64_t bytes) {
    atomic_fetch_add(&comm->counters->bytes[traffic], bytes);
}

uint64_t dsc_comm_bytes(const dsc_comm *comm, dsc_traffic traffic) {
    return (unsigned)traffic < DSC_TRAFFIC_COUNT ? atomic_load(&comm->counters->bytes[traffic]) : 0;
}

const char *dsc_traffic_name(dsc_traffic traffic) {
    switch (traffic) {
    case DSC_TRAFFIC_GRADIENTS:
        return "gradients";
    case DSC_TRAFFIC_FACTORS:
        return "factors";
    case DSC_TRAFFIC_DECOMPOSITIONS:
        return "decompositions";
    case DSC_TRAFFIC_PRECONDITIONED:
        return "preconditioned";
    case DSC_TRAFFIC_PARAMETERS:
        return "parameters";
    case DSC_TRAFFIC_OTHER:
        return "other";
    case DSC_TRAFFIC_COUNT:
        break;
    }
    return "unknown traffic";
}
