/* The MPI backend: the only part of the library that is compiled with MPI. Every piece is one non-blocking call on a
 * communicator that the library owns, a duplicate of MPI_COMM_WORLD or of a communicator of the program's (or a part
 * of it), so that its messages never match the program's. Failures are returned as DSC_E_COMM with MPI's own text. */
#define _DEFAULT_SOURCE /* on_exit */
#include "comm/mpi/mpi.h"

#include "comm/backends.h"
#include "comm/mpi/half_ops.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "descent/version.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* MPI is initialised and finalised once in a process. Communicators are created and destroyed by one thread
 * at a time. */
static struct {
    int users;        /* number of communicators */
    int started_here; /* 1: the library initialised MPI, and finalises it */
    pid_t process;    /* the one that has initialised MPI: a process forked from it has none */
    int abandoned;    /* 1: a communicator was abandoned, so MPI is not finalised */
    int has_ops;      /* 1: ops are valid: while there are users, or until the library finalises MPI */
    dsc_half_ops ops;
    dsc_comm *released; /* communicators whose operations are checked once more at the end */
} world;

/* Seconds that operations of released communicators get to complete at the end of the process. */
static const double RELEASED_S = 2;

_Static_assert(sizeof(MPI_Request) <= sizeof(((dsc_piece *)0)->handle),
               "a request fits into a piece's handle");

dsc_status dsc_mpi_check(int code, const char *call) {
    if (code == MPI_SUCCESS)
        return DSC_OK;
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return DSC_FAIL(DSC_E_COMM, "%s: %s", call, text);
}

/* ---- transfers ---- */

static MPI_Datatype mpi_type(dsc_dtype dtype) {
    switch (dtype) {
    case DSC_F32:
        return MPI_FLOAT;
    case DSC_F64:
        return MPI_DOUBLE;
    case DSC_BF16:
    case DSC_F16:
        return MPI_UINT16_T;
    case DSC_I32:
        return MPI_INT32_T;
    case DSC_I64:
        return MPI_INT64_T;
    case DSC_U8:
        return MPI_UINT8_T;
    }
    return MPI_DATATYPE_NULL;
}

static MPI_Op mpi_op(dsc_dtype dtype, dsc_reduction reduction) {
    if (dtype == DSC_BF16)
        return world.ops.bf16[reduction];
    if (dtype == DSC_F16)
        return world.ops.f16[reduction];
    switch (reduction) {
    case DSC_SUM:
        return MPI_SUM;
    case DSC_MAX:
        return MPI_MAX;
    case DSC_MIN:
        return MPI_MIN;
    }
    return MPI_OP_NULL;
}

static int start_reduce(const dsc_comm *comm, MPI_Comm mpi, const dsc_transfer *t, MPI_Request *request) {
    MPI_Datatype type = mpi_type(t->dtype);
    MPI_Op op = mpi_op(t->dtype, t->reduction);
    if (comm->rank != t->peer)
        return MPI_Ireduce(t->send, NULL, (int)t->count, type, op, t->peer, mpi, request);
    const void *send = t->send == t->recv ? MPI_IN_PLACE : t->send;
    return MPI_Ireduce(send, t->recv, (int)t->count, type, op, t->peer, mpi, request);
}

static int start_allgather(const dsc_comm *comm, MPI_Comm mpi, const dsc_transfer *t, MPI_Request *request) {
    MPI_Datatype type = mpi_type(t->dtype);
    const char *place =
        (const char *)t->recv + (size_t)comm->rank * (size_t)t->count * dsc_dtype_size(t->dtype);
    const void *send = t->send == place ? MPI_IN_PLACE : t->send;
    return MPI_Iallgather(send, (int)t->count, type, t->recv, (int)t->count, type, mpi, request);
}

static dsc_status mpi_start(dsc_comm *comm, const dsc_transfer *t, dsc_piece *piece) {
    MPI_Comm mpi = ((dsc_mpi_state *)comm->state)->comm;
    MPI_Datatype type = mpi_type(t->dtype);
    MPI_Op op = mpi_op(t->dtype, t->reduction);
    MPI_Request request = MPI_REQUEST_NULL;
    int n = (int)t->count; /* at most message_limit, which is at most INT_MAX */
    DSC_TRY(dsc_mpi_check_free());
    switch (t->op) {
    case DSC_COMM_ALLREDUCE:
        DSC_TRY(dsc_mpi_check(MPI_Iallreduce(MPI_IN_PLACE, t->recv, n, type, op, mpi, &request),
                              "MPI_Iallreduce"));
        break;
    case DSC_COMM_REDUCE:
        DSC_TRY(dsc_mpi_check(start_reduce(comm, mpi, t, &request), "MPI_Ireduce"));
        break;
    case DSC_COMM_BROADCAST:
        DSC_TRY(dsc_mpi_check(MPI_Ibcast(t->recv, n, type, t->peer, mpi, &request), "MPI_Ibcast"));
        break;
    case DSC_COMM_ALLGATHER:
        DSC_TRY(dsc_mpi_check(start_allgather(comm, mpi, t, &request), "MPI_Iallgather"));
        break;
    case DSC_COMM_REDUCE_SCATTER:
        DSC_TRY(dsc_mpi_check(MPI_Ireduce_scatter_block(t->send, t->recv, n, type, op, mpi, &request),
                              "MPI_Ireduce_scatter_block"));
        break;
    case DSC_COMM_SEND:
        DSC_TRY(dsc_mpi_check(MPI_Isend(t->send, n, type, t->peer, t->tag, mpi, &request), "MPI_Isend"));
        break;
    case DSC_COMM_RECV:
        DSC_TRY(dsc_mpi_check(MPI_Irecv(t->recv, n, type, t->peer, t->tag, mpi, &request), "MPI_Irecv"));
        break;
    case DSC_COMM_BARRIER:
        DSC_TRY(dsc_mpi_check(MPI_Ibarrier(mpi, &request), "MPI_Ibarrier"));
        break;
    }
    memcpy(&piece->handle, &request, sizeof request);
    return DSC_OK;
}

/* Checks the length of a message: MPI does not report one that is shorter than its receive. */
static dsc_status check_length(const dsc_piece *piece, const MPI_Status *status) {
    if (piece->expected < 0)
        return DSC_OK;
    int got = 0;
    DSC_TRY(dsc_mpi_check(MPI_Get_count(status, mpi_type(piece->dtype), &got), "MPI_Get_count"));
    if (got != piece->expected)
        return DSC_FAIL(DSC_E_COMM, "recv with tag %d from rank %d: expected %lld elements of %s, got %d",
                        status->MPI_TAG, status->MPI_SOURCE, (long long)piece->expected,
                        dsc_dtype_name(piece->dtype), got);
    return DSC_OK;
}

static dsc_status mpi_test(dsc_comm *comm, dsc_piece *piece, int *done) {
    (void)comm;
    MPI_Request request;
    MPI_Status status;
    DSC_TRY(dsc_mpi_check_free());
    memcpy(&request, &piece->handle, sizeof request);
    int code = MPI_Test(&request, done, &status);
    memcpy(&piece->handle, &request, sizeof request); /* MPI_REQUEST_NULL once it is complete */
    DSC_TRY(dsc_mpi_check(code, "MPI_Test"));
    return *done ? check_length(piece, &status) : DSC_OK;
}

static dsc_status mpi_wait(dsc_comm *comm, dsc_piece *piece) {
    (void)comm;
    MPI_Request request;
    MPI_Status status;
    DSC_TRY(dsc_mpi_check_free());
    memcpy(&request, &piece->handle, sizeof request);
    DSC_TRY(dsc_mpi_check(MPI_Wait(&request, &status), "MPI_Wait"));
    return check_length(piece, &status);
}

/* Cancels a receive. MPI cannot cancel one that has already matched its message: it stays in flight. */
static void mpi_cancel(dsc_comm *comm, dsc_piece *piece) {
    (void)comm;
    MPI_Request request;
    MPI_Status status;
    int done = 0;
    memcpy(&request, &piece->handle, sizeof request);
    if (!dsc_mpi_is_free() || request == MPI_REQUEST_NULL || MPI_Cancel(&request) != MPI_SUCCESS)
        return;
    (void)MPI_Test(&request, &done, &status);
    memcpy(&piece->handle, &request, sizeof request);
}

/* ---- life cycle ---- */

int dsc_mpi_is_up(void) {
    int initialised = 0, finalised = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    return initialised && !finalised;
}

static void mpi_abort(int exit_status) {
    MPI_Abort(MPI_COMM_WORLD, exit_status);
}

static void mpi_close(dsc_comm *comm) {
    dsc_mpi_state *mpi = comm->state;
    if (dsc_mpi_is_up() && dsc_mpi_is_free()) { /* the program may have finalised MPI too early */
        MPI_Comm_free(&mpi->comm);
        if (world.users == 1 && !world.abandoned && !world.started_here) {
            dsc_half_ops_free(&world.ops);
            world.has_ops = 0;
        }
    }
    world.users--;
    dsc_memory_free(&comm->state);
}

/* Returns 1 if all operations of released communicators are complete. Gives them a moment, since other ranks may
 * have begun them a little later. */
static int released_are_complete(void) {
    double began = dsc_clock_now();
    dsc_comm *comm = world.released;
    while (comm) {
        if (dsc_comm_is_complete(comm)) {
            comm = comm->next_released;
            continue;
        }
        if (dsc_clock_now() - began > RELEASED_S)
            return 0;
        dsc_comm_rest(0);
    }
    return 1;
}

/* Called at the end of the process. MPI_Finalize waits for all ranks, so it is only called if this rank ends as
 * planned: all communicators are destroyed, or the exit status is 0. Otherwise the launcher notices that a
 * rank has ended without it, and ends the others. */
static void end_mpi(int exit_status, void *unused) {
    (void)unused;
    int planned = world.users == 0 || exit_status == 0;
    if (!planned || world.abandoned || getpid() != world.process || !dsc_mpi_is_up() || !dsc_mpi_is_free())
        return;
    if (!released_are_complete())
        return;
    if (world.has_ops)
        dsc_half_ops_free(&world.ops);
    MPI_Finalize();
}

/* Operations in flight need the communicator, and may need the reduction operators: both are kept. Finalising MPI
 * would wait for these operations, or for ranks that are gone. */
static void mpi_abandon(dsc_comm *comm) {
    if (comm->released) {
        comm->next_released = world.released;
        world.released = comm;
    } else {
        world.abandoned = 1;
    }
    world.users--;
}

static int mpi_is_last(const dsc_comm *comm) {
    (void)comm;
    return world.users == 1 && world.started_here && !world.abandoned && dsc_mpi_is_up() && dsc_mpi_is_free();
}

/* Fills in rank and size in mpi->comm, and local_rank and local_size on this node; *node = the communicator of the
 * ranks on this node. */
static dsc_status locate(const dsc_mpi_state *mpi, dsc_comm *comm, MPI_Comm *node) {
    DSC_TRY(dsc_mpi_check(MPI_Comm_rank(mpi->comm, &comm->rank), "MPI_Comm_rank"));
    DSC_TRY(dsc_mpi_check(MPI_Comm_size(mpi->comm, &comm->size), "MPI_Comm_size"));
    DSC_TRY(
        dsc_mpi_check(MPI_Comm_split_type(mpi->comm, MPI_COMM_TYPE_SHARED, comm->rank, MPI_INFO_NULL, node),
                      "MPI_Comm_split_type"));
    DSC_TRY(dsc_mpi_check(MPI_Comm_rank(*node, &comm->local_rank), "MPI_Comm_rank"));
    return dsc_mpi_check(MPI_Comm_size(*node, &comm->local_size), "MPI_Comm_size");
}

/* Divides the CPUs among the ranks of a node that are bound to the same ones. */
static dsc_status share_cpus(MPI_Comm node, int *threads) {
    int cpus, sharers;
    uint64_t hash;
    MPI_Comm same;
    dsc_affinity(&cpus, &hash);
    DSC_TRY(dsc_mpi_check(MPI_Comm_split(node, (int)(hash & INT_MAX), 0, &same), "MPI_Comm_split"));
    DSC_TRY(dsc_mpi_check(MPI_Comm_size(same, &sharers), "MPI_Comm_size"));
    *threads = cpus / sharers > 1 ? cpus / sharers : 1;
    return dsc_mpi_check(MPI_Comm_free(&same), "MPI_Comm_free");
}

dsc_status dsc_mpi_adopt(dsc_comm *comm, MPI_Comm made) {
    dsc_mpi_state *mpi;
    MPI_Comm node = MPI_COMM_NULL;
    DSC_TRY(dsc_memory_alloc(1, sizeof *mpi, &mpi));
    mpi->comm = made;
    dsc_status status;
    DSC_TRY_GOTO(status, locate(mpi, comm, &node), fail);
    DSC_TRY_GOTO(status, dsc_mpi_check(MPI_Comm_free(&node), "MPI_Comm_free"), fail);
    comm->state = mpi;
    return DSC_OK;
fail:
    dsc_memory_free(&mpi);
    return status;
}

void dsc_mpi_move(const dsc_comm *from, dsc_comm *to) {
    to->rank = from->rank;
    to->size = from->size;
    to->local_rank = from->local_rank;
    to->local_size = from->local_size;
    to->state = from->state;
    to->watch = from->watch;
    to->owns_watch = from->owns_watch;
}

typedef struct split {
    MPI_Comm from;
    int colour, key;
    dsc_comm made;
} split;

static dsc_status make_split(void *argument) {
    split *s = argument;
    MPI_Comm made = MPI_COMM_NULL;
    DSC_TRY(dsc_mpi_check(MPI_Comm_split(s->from, s->colour, s->key, &made), "MPI_Comm_split"));
    return s->colour == MPI_UNDEFINED ? DSC_OK : dsc_mpi_adopt(&s->made, made);
}

static dsc_status mpi_split(dsc_comm *comm, int colour, int key, dsc_comm *child) {
    split *s;
    DSC_TRY(dsc_memory_alloc(1, sizeof *s, &s));
    s->from = ((dsc_mpi_state *)comm->state)->comm;
    s->colour = colour < 0 ? MPI_UNDEFINED : colour;
    s->key = key;
    dsc_status status = dsc_mpi_run(comm->timeout, make_split, s);
    if (status == DSC_OK && colour >= 0) {
        dsc_mpi_move(&s->made, child);
        world.users++;
    }
    if (dsc_mpi_is_free())
        dsc_memory_free(&s);
    return status;
}

static const char *thread_level_name(int level) {
    return level == MPI_THREAD_MULTIPLE     ? "multiple"
           : level == MPI_THREAD_SERIALIZED ? "serialized"
           : level == MPI_THREAD_FUNNELED   ? "funneled"
                                            : "single";
}

/* Writes a description like "mpi: 4 ranks, Open MPI v4.1.4, threads serialized", with the library's text up to its
 * first comma or line end. */
static void describe(dsc_comm *comm, int provided) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n")] = '\0';
    for (char *c = text; *c; c++) {
        if (*c == '\t')
            *c = ' ';
    }
    snprintf(comm->description, sizeof comm->description, "mpi: %d rank%s, %.80s, threads %s", comm->size,
             comm->size == 1 ? "" : "s", text, thread_level_name(provided));
}

static dsc_status mpi_survivors(dsc_comm *comm, double patience, dsc_comm *child) {
    int provided = MPI_THREAD_SINGLE;
    DSC_TRY(dsc_mpi_survivors(comm, patience, child));
    world.users++;
    DSC_TRY(dsc_mpi_check(MPI_Query_thread(&provided), "MPI_Query_thread"));
    describe(child, provided);
    return DSC_OK;
}

static const dsc_comm_table mpi_table = {
    .name = "mpi",
    .close = mpi_close,
    .split = mpi_split,
    .start = mpi_start,
    .test = mpi_test,
    .wait = mpi_wait,
    .cancel = mpi_cancel,
    .abandon = mpi_abandon,
    .is_last = mpi_is_last,
    .look = dsc_mpi_look,
    .survivors = mpi_survivors,
    .close_watch = dsc_mpi_close_watch,
};

/* The algorithm that Open MPI 4.1 chooses for an in-place MPI_Iallreduce sends far more than is needed
 * (docs/performance.md). A value set by the user is kept, and other libraries ignore the variable. */
static void prefer_algorithms(void) {
    (void)setenv("OMPI_MCA_coll_libnbc_iallreduce_algorithm", "rabenseifner", 0);
}

/* Initialises MPI unless the program has done so; *provided = its thread level. */
static dsc_status start_mpi(int thread_multiple, int *provided) {
    int initialised = 0, finalised = 0;
    MPI_Finalized(&finalised);
    if (finalised)
        return DSC_FAIL(DSC_E_UNSUPPORTED,
                        "MPI has been finalised by the program, and cannot be started again in this process");
    MPI_Initialized(&initialised);
    if (initialised) {
        DSC_TRY(dsc_mpi_check(MPI_Query_thread(provided), "MPI_Query_thread"));
    } else {
        dsc_mpi_serve_plugins();
        prefer_algorithms();
        int wanted = thread_multiple ? MPI_THREAD_MULTIPLE : MPI_THREAD_SERIALIZED;
        DSC_TRY(dsc_mpi_check(MPI_Init_thread(NULL, NULL, wanted, provided), "MPI_Init_thread"));
        world.started_here = 1;
        world.process = getpid();
        if (on_exit(end_mpi, NULL) != 0)
            return DSC_FAIL(DSC_E_MEMORY, "cannot register the end of MPI with the process");
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    }
    if (thread_multiple && *provided < MPI_THREAD_MULTIPLE)
        return DSC_FAIL(
            DSC_E_UNSUPPORTED, "several threads shall communicate, but MPI runs with thread level '%s': %s",
            thread_level_name(*provided),
            initialised ? "initialise it with MPI_THREAD_MULTIPLE" : "this MPI library gives no more");
    return DSC_OK;
}

/* Sets *out to the communicator to duplicate: the caller's at `given`, or that of all ranks if it is NULL. The handle
 * is read as whatever type MPI_Comm has in this MPI. */
static dsc_status find_source(const void *given, MPI_Comm *out) {
    int between = 0;
    *out = MPI_COMM_WORLD;
    if (!given)
        return DSC_OK;
    if (!dsc_mpi_is_up())
        return DSC_FAIL(DSC_E_INVALID, "an MPI communicator was given, but MPI is not initialised");
    memcpy(out, given, sizeof *out);
    if (*out == MPI_COMM_NULL)
        return DSC_FAIL(DSC_E_INVALID, "the MPI communicator that was given is MPI_COMM_NULL");
    DSC_TRY(dsc_mpi_check(MPI_Comm_test_inter(*out, &between), "MPI_Comm_test_inter"));
    if (between)
        return DSC_FAIL(DSC_E_INVALID, "the MPI communicator that was given is one between two groups "
                                       "(an inter-communicator): merge them first");
    return DSC_OK;
}

/* After a failure here MPI stays initialised, so that dsc_comm_abort can still end all ranks. */
static dsc_status open_world(dsc_comm *comm, dsc_mpi_state *mpi, MPI_Comm source, int provided) {
    MPI_Comm node = MPI_COMM_NULL;
    DSC_TRY(dsc_mpi_check(MPI_Comm_dup(source, &mpi->comm), "MPI_Comm_dup"));
    DSC_TRY(dsc_mpi_check(MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
    DSC_TRY(locate(mpi, comm, &node));
    DSC_TRY(share_cpus(node, &comm->threads));
    DSC_TRY(dsc_mpi_check(MPI_Comm_free(&node), "MPI_Comm_free"));
    if (!world.has_ops)
        DSC_TRY(dsc_mpi_check(dsc_half_ops_create(&world.ops), "MPI_Op_create"));
    world.has_ops = 1;
    describe(comm, provided);
    return DSC_OK;
}

static dsc_status mpi_open(dsc_comm *comm, const dsc_comm_options *options) {
    dsc_mpi_state *mpi;
    MPI_Comm source;
    int provided;
    DSC_TRY(dsc_memory_alloc(1, sizeof *mpi, &mpi));
    dsc_status status;
    DSC_TRY_GOTO(status, find_source(options->mpi_comm, &source), fail);
    DSC_TRY_GOTO(status, start_mpi(options->thread_multiple, &provided), fail);
    DSC_TRY_GOTO(status, open_world(comm, mpi, source, provided), fail);
    comm->state = mpi;
    comm->table = &mpi_table;
    world.users++;
    if (options->survive)
        DSC_TRY(dsc_mpi_watch(comm));
    return DSC_OK;
fail:
    dsc_memory_free(&mpi);
    return status;
}

/* Intel MPI, MVAPICH and Cray MPICH have the ABI of MPICH. */
#if defined(OPEN_MPI)
#define LIBRARY "openmpi"
#elif defined(MPICH_VERSION) || defined(MPICH_NUMVERSION) || defined(I_MPI_VERSION)
#define LIBRARY "mpich"
#else
#define LIBRARY "mpi"
#endif

const dsc_module *dsc_mpi_module(void) {
    static const dsc_mpi_functions functions = {
        .library = LIBRARY, .open = mpi_open, .is_up = dsc_mpi_is_up, .end_job = mpi_abort};
    static const dsc_module module = {.version = DSC_VERSION_STRING, .name = LIBRARY, .table = &functions};
    return &module;
}
