/* A communicator made of functions of the caller's. Every piece is one call of `start`; errors are reported
 * with the name of the function that failed, and the message that it has set. */
#include "comm/table.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/versioned.h"

#include <stdio.h>
#include <string.h>

typedef struct functions_state {
    dsc_comm_functions f;
    char name[64];
} functions_state;

/* ---- calls of the caller's functions ---- */

static dsc_status functions_start(dsc_comm *comm, const dsc_transfer *t, dsc_piece *piece) {
    const functions_state *s = comm->state;
    const dsc_comm_message message = {.size = sizeof message,
                                      .op = t->op,
                                      .reduction = t->reduction,
                                      .dtype = t->dtype,
                                      .peer = t->peer,
                                      .tag = t->tag,
                                      .send = t->send,
                                      .recv = t->recv,
                                      .count = t->count};
    unsigned errors = dsc_error_count();
    piece->handle.pointer = NULL;
    dsc_status status = s->f.start(s->f.context, &message, &piece->handle.pointer);
    if (status != DSC_OK)
        return dsc_error_callback(status, errors, "start", "communicator '%s': `start` of %s", s->name,
                                  dsc_comm_op_name(t->op));
    return DSC_OK;
}

static dsc_status functions_test(dsc_comm *comm, dsc_piece *piece, int *done) {
    const functions_state *s = comm->state;
    unsigned errors = dsc_error_count();
    *done = 0;
    dsc_status status = s->f.test(s->f.context, piece->handle.pointer, done);
    if (status != DSC_OK)
        return dsc_error_callback(status, errors, "test", "communicator '%s': `test`", s->name);
    return DSC_OK;
}

static dsc_status functions_wait(dsc_comm *comm, dsc_piece *piece) {
    const functions_state *s = comm->state;
    unsigned errors = dsc_error_count();
    dsc_status status = s->f.wait(s->f.context, piece->handle.pointer);
    if (status != DSC_OK)
        return dsc_error_callback(status, errors, "wait", "communicator '%s': `wait`", s->name);
    return DSC_OK;
}

/* ---- life cycle ---- */

static void close_context(const dsc_comm_functions *f) {
    if (f->close)
        f->close(f->context);
}

static void functions_close(dsc_comm *comm) {
    functions_state *s = comm->state;
    close_context(&s->f);
    dsc_memory_free(&comm->state);
}

/* The state is kept, like the communicator itself. */
static void functions_abandon(dsc_comm *comm) {
    const functions_state *s = comm->state;
    close_context(&s->f);
}

static dsc_status check(const char *name, const dsc_comm_functions *f) {
    const char *missing = !f->start ? "start" : !f->test ? "test" : !f->wait ? "wait" : NULL;
    if (missing)
        return DSC_FAIL(DSC_E_INVALID, "communicator '%s': the function `%s` is missing", name, missing);
    return dsc_comm_check_ranks(name, f->rank, f->ranks, f->local_rank, f->local_ranks);
}

/* Gives `comm` a copy of the functions, and fills in its ranks. */
static dsc_status adopt(dsc_comm *comm, const char *name, const dsc_comm_functions *f) {
    functions_state *s;
    DSC_TRY(check(name, f));
    DSC_TRY(dsc_memory_alloc(1, sizeof *s, &s));
    s->f = *f;
    snprintf(s->name, sizeof s->name, "%s", name);
    s->f.name = s->name;
    comm->state = s;
    comm->rank = f->rank;
    comm->size = f->ranks;
    comm->local_rank = f->local_rank;
    comm->local_size = f->local_ranks;
    return DSC_OK;
}

static dsc_status functions_split(dsc_comm *comm, int colour, int key, dsc_comm *child) {
    const functions_state *s = comm->state;
    dsc_comm_functions made = s->f;
    made.size = sizeof made;
    made.context = NULL;
    if (!s->f.split)
        return DSC_FAIL(DSC_E_UNSUPPORTED,
                        "communicator '%s' cannot be split: it was created without a function `split`",
                        s->name);
    unsigned errors = dsc_error_count();
    dsc_status status = s->f.split(s->f.context, colour, key, &made);
    if (status != DSC_OK)
        return dsc_error_callback(status, errors, "split", "communicator '%s': `split`", s->name);
    if (colour < 0)
        return DSC_OK;
    status = adopt(child, made.name ? made.name : s->name, &made);
    if (status != DSC_OK)
        close_context(&made);
    DSC_TRY(status);
    return DSC_OK;
}

static const dsc_comm_table functions_table = {
    .name = "functions",
    .close = functions_close,
    .split = functions_split,
    .start = functions_start,
    .test = functions_test,
    .wait = functions_wait,
    .abandon = functions_abandon,
};

/* ---- creation ---- */

void dsc_comm_functions_init_sized(dsc_comm_functions *functions, size_t size) {
    const dsc_comm_functions defaults = {.ranks = 1, .local_ranks = 1};
    dsc_versioned_init(functions, size, &defaults, sizeof defaults);
}

/* If this fails, the caller still owns the context. */
static dsc_status open_functions(dsc_comm *comm, const dsc_comm_functions *f) {
    const char *name = f->name && *f->name ? f->name : "functions";
    DSC_TRY(adopt(comm, name, f));
    comm->table = &functions_table;
    snprintf(comm->description, sizeof comm->description, "functions: %d rank%s, %.80s", comm->size,
             comm->size == 1 ? "" : "s", name);
    dsc_status status = dsc_comm_share_cpus(comm);
    if (status != DSC_OK) {
        dsc_comm_drop_requests(comm);
        dsc_memory_free(&comm->state);
        comm->table = NULL;
    }
    DSC_TRY(status);
    return DSC_OK;
}

dsc_status dsc_comm_create_from_functions(const dsc_comm_functions *functions,
                                          const dsc_comm_options *options, dsc_comm **out) {
    dsc_comm_options o;
    dsc_comm_functions f;
    dsc_comm *comm = NULL;
    dsc_comm_functions_init(&f);
    DSC_TRY(dsc_versioned_define("comm_functions", functions, sizeof f, &f));
    DSC_TRY(dsc_comm_read_options(options, &o));
    if (o.survive)
        return DSC_FAIL(DSC_E_UNSUPPORTED,
                        "a communicator made of functions cannot continue without a rank that was lost "
                        "(survive): use mpi");
    DSC_TRY(dsc_comm_alloc(&o, &comm));
    dsc_status status = open_functions(comm, &f);
    if (status != DSC_OK)
        dsc_comm_destroy(&comm);
    DSC_TRY(status);
    dsc_comm_finish(comm);
    *out = comm;
    return DSC_OK;
}
