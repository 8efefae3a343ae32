/* Linked into a test program with -Wl,--wrap=dsc_comm_create, this makes "auto" a communicator of functions
 * (dsc_comm_create_from_functions). The functions are implemented with MPI. */
#include "comm/table.h"

#include "comm/reduce.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct operation {
    MPI_Request request;
    MPI_Datatype type;
    int expected; /* elements of a receive; -1 for others */
    int tag, peer;
} operation;

static MPI_Op half_op[2][3];

#define HALF_OP(type, name, reduction)                                                                       \
    static void type##_##name(void *in, void *inout, int *n, MPI_Datatype *unused) {                         \
        (void)unused;                                                                                        \
        dsc_reduce_##type(in, inout, *n, reduction);                                                         \
    }
HALF_OP(bf16, sum, DSC_SUM)
HALF_OP(bf16, max, DSC_MAX)
HALF_OP(bf16, min, DSC_MIN)
HALF_OP(f16, sum, DSC_SUM)
HALF_OP(f16, max, DSC_MAX)
HALF_OP(f16, min, DSC_MIN)

static dsc_status check(int code, const char *call) {
    return code == MPI_SUCCESS ? DSC_OK : dsc_error_set(DSC_E_COMM, "%s failed", call);
}

static MPI_Datatype type_of(dsc_dtype dtype) {
    const MPI_Datatype types[] = {
        [DSC_F32] = MPI_FLOAT,   [DSC_F64] = MPI_DOUBLE,  [DSC_BF16] = MPI_UINT16_T, [DSC_F16] = MPI_UINT16_T,
        [DSC_I32] = MPI_INT32_T, [DSC_I64] = MPI_INT64_T, [DSC_U8] = MPI_UINT8_T};
    return types[dtype];
}

static MPI_Op op_of(const dsc_comm_message *m) {
    if (m->dtype == DSC_BF16 || m->dtype == DSC_F16)
        return half_op[m->dtype == DSC_F16][m->reduction];
    return m->reduction == DSC_SUM ? MPI_SUM : m->reduction == DSC_MAX ? MPI_MAX : MPI_MIN;
}

static int begin(MPI_Comm comm, const dsc_comm_message *m, operation *o) {
    int n = (int)m->count, rank;
    const void *send = m->send == m->recv ? MPI_IN_PLACE : m->send;
    MPI_Comm_rank(comm, &rank);
    switch (m->op) {
    case DSC_COMM_ALLREDUCE:
        return MPI_Iallreduce(MPI_IN_PLACE, m->recv, n, o->type, op_of(m), comm, &o->request);
    case DSC_COMM_REDUCE:
        return MPI_Ireduce(rank == m->peer ? send : m->send, m->recv, n, o->type, op_of(m), m->peer, comm,
                           &o->request);
    case DSC_COMM_BROADCAST:
        return MPI_Ibcast(m->recv, n, o->type, m->peer, comm, &o->request);
    case DSC_COMM_ALLGATHER:
        if (m->send == (char *)m->recv + (size_t)rank * (size_t)n * dsc_dtype_size(m->dtype))
            send = MPI_IN_PLACE;
        return MPI_Iallgather(send, n, o->type, m->recv, n, o->type, comm, &o->request);
    case DSC_COMM_REDUCE_SCATTER:
        return MPI_Ireduce_scatter_block(m->send, m->recv, n, o->type, op_of(m), comm, &o->request);
    case DSC_COMM_SEND:
        return MPI_Isend(m->send, n, o->type, m->peer, m->tag, comm, &o->request);
    case DSC_COMM_RECV:
        return MPI_Irecv(m->recv, n, o->type, m->peer, m->tag, comm, &o->request);
    case DSC_COMM_BARRIER:
        return MPI_Ibarrier(comm, &o->request);
    }
    return MPI_ERR_OTHER;
}

static dsc_status start(void *context, const dsc_comm_message *message, void **handle) {
    operation *o = calloc(1, sizeof *o);
    if (!o)
        return dsc_error_set(DSC_E_MEMORY, "no memory for an operation");
    if (message->size != sizeof *message)
        return dsc_error_set(DSC_E_INVALID, "a message of %zu bytes", message->size);
    o->type = message->op == DSC_COMM_BARRIER ? MPI_BYTE : type_of(message->dtype);
    o->expected = message->op == DSC_COMM_RECV ? (int)message->count : -1;
    o->tag = message->tag;
    o->peer = message->peer;
    *handle = o;
    return check(begin(*(MPI_Comm *)context, message, o), dsc_comm_op_name(message->op));
}

/* The operation is complete: checks the length of a message, and frees it. */
static dsc_status finish(operation *o, int code, const MPI_Status *result) {
    int got = -1;
    if (o->expected >= 0 && code == MPI_SUCCESS)
        MPI_Get_count(result, o->type, &got);
    int expected = o->expected, tag = o->tag, peer = o->peer;
    free(o);
    if (expected >= 0 && got != expected)
        return dsc_error_set(DSC_E_COMM, "recv with tag %d from rank %d: expected %d elements", tag, peer,
                             expected);
    return check(code, "waiting");
}

static dsc_status test(void *context, void *handle, int *done) {
    operation *o = handle;
    MPI_Status result;
    (void)context;
    int code = MPI_Test(&o->request, done, &result);
    return *done || code != MPI_SUCCESS ? finish(o, code, &result) : DSC_OK;
}

static dsc_status wait_for(void *context, void *handle) {
    operation *o = handle;
    MPI_Status result;
    (void)context;
    int code = MPI_Wait(&o->request, &result);
    return finish(o, code, &result);
}

static void close_comm(void *context) {
    int finalised = 0;
    MPI_Finalized(&finalised);
    if (!finalised)
        MPI_Comm_free((MPI_Comm *)context);
    free(context);
}

/* Fills in context and ranks from a communicator. */
static dsc_status describe(MPI_Comm comm, dsc_comm_functions *f) {
    MPI_Comm node, *context = malloc(sizeof *context);
    if (!context)
        return dsc_error_set(DSC_E_MEMORY, "no memory for a communicator");
    *context = comm;
    f->context = context;
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, &f->rank);
    MPI_Comm_size(comm, &f->ranks);
    MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &f->local_rank);
    MPI_Comm_size(node, &f->local_ranks);
    MPI_Comm_free(&node);
    return DSC_OK;
}

static dsc_status split(void *context, int colour, int key, dsc_comm_functions *child) {
    MPI_Comm made = MPI_COMM_NULL;
    if (MPI_Comm_split(*(MPI_Comm *)context, colour < 0 ? MPI_UNDEFINED : colour, key, &made) != MPI_SUCCESS)
        return dsc_error_set(DSC_E_COMM, "MPI_Comm_split failed");
    return colour < 0 ? DSC_OK : describe(made, child);
}

static void finalise(void) {
    MPI_Finalize();
}

static void start_mpi(void) {
    int initialised = 0, provided;
    MPI_User_function *const functions[2][3] = {{bf16_sum, bf16_max, bf16_min}, {f16_sum, f16_max, f16_min}};
    MPI_Initialized(&initialised);
    if (!initialised) {
        MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
        atexit(finalise);
    }
    for (int i = 0; i < 6 && !half_op[i / 3][i % 3]; i++)
        MPI_Op_create(functions[i / 3][i % 3], 1, &half_op[i / 3][i % 3]);
}

dsc_status __real_dsc_comm_create(const dsc_comm_options *options, dsc_comm **out);
dsc_status __wrap_dsc_comm_create(const dsc_comm_options *options, dsc_comm **out);

dsc_status __wrap_dsc_comm_create(const dsc_comm_options *options, dsc_comm **out) {
    dsc_comm_functions f;
    dsc_comm_options o;
    MPI_Comm all;
    if (options && options->kind && strcmp(options->kind, "auto") != 0)
        return __real_dsc_comm_create(options, out);
    if (options) {
        o = *options;
        o.survive = 0; /* not possible with functions */
    }
    start_mpi();
    dsc_comm_functions_init(&f);
    f.name = "test";
    f.start = start;
    f.test = test;
    f.wait = wait_for;
    f.split = split;
    f.close = close_comm;
    /* MPICH reports errors of a wait to these two, not to the communicator of the request. */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_dup(MPI_COMM_WORLD, &all);
    dsc_status status = describe(all, &f);
    if (status == DSC_OK)
        status = dsc_comm_create_from_functions(&f, options ? &o : NULL, out);
    if (status != DSC_OK)
        close_comm(f.context);
    return status;
}
