/* Lost ranks: waits with a time limit, the alarm, and abandoning a communicator; mpi/survivors.c finds the ranks
 * that are left. Waits come here only if the communicator has a time limit.
 *
 * A wait with a limit polls its operation, first without a pause, then with sleeps of about a sixteenth
 * of the time waited so far, so that they hardly lengthen it. In between it checks whether another rank
 * has raised the alarm.
 *
 * After a timeout MPI may still use the memory of the operation. An abandoned communicator is therefore
 * never freed, nor is anything that operations in flight may still access: requests, staging and its own
 * memory. */
#include "comm/table.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const double spin = 2e-4; /* seconds before the first sleep */
static const double shortest_sleep = 2e-5, longest_sleep = 2e-4;
static const double look_interval = 2e-3;
static const double longest_look = 0.25;

/* ---- alarm ---- */

/* Asks the backend at most once per look_interval, counting the calls of all threads. */
static dsc_status look(const dsc_comm *comm, int *alarmed) {
    dsc_watch *watch = comm->watch;
    *alarmed = atomic_load(&watch->alarmed);
    double now = dsc_clock_now();
    if (*alarmed || now < atomic_load(&watch->next_look))
        return DSC_OK;
    atomic_store(&watch->next_look, now + look_interval);
    DSC_TRY(comm->table->look(watch, alarmed));
    if (*alarmed)
        atomic_store(&watch->alarmed, 1);
    return DSC_OK;
}

dsc_status dsc_comm_is_alarmed(dsc_comm *comm, int *alarmed) {
    *alarmed = 0;
    return comm->watch ? look(comm, alarmed) : DSC_OK;
}

void dsc_watch_release(const dsc_comm_table *table, dsc_watch **watch) {
    if (*watch && atomic_fetch_sub(&(*watch)->users, 1) == 1) {
        table->close_watch(*watch);
        dsc_memory_free(watch);
    }
    *watch = NULL;
}

/* ---- waits with a limit ---- */

dsc_status dsc_comm_set_timeout(dsc_comm *comm, double seconds) {
    if (!(seconds >= 0))
        return DSC_FAIL(DSC_E_INVALID, "communicator timeout %g s: must be 0 (none) or more", seconds);
    comm->timeout = seconds;
    return DSC_OK;
}

int dsc_comm_is_limited(const dsc_request *request) {
    const dsc_comm *comm = request->comm;
    return comm->timeout > 0 && comm->size > 1 && request->table == comm->table;
}

double dsc_comm_waited(dsc_patience *p) {
    double now = dsc_clock_now();
    if (p->looked > 0)
        p->waited += fmin(now - p->looked, longest_look);
    p->looked = now;
    return p->waited;
}

void dsc_comm_rest(double waited) {
    if (waited < spin)
        return;
    double s = waited / 16;
    s = s < shortest_sleep ? shortest_sleep : s > longest_sleep ? longest_sleep : s;
    const struct timespec t = {.tv_nsec = (long)(s * 1e9)};
    nanosleep(&t, NULL);
}

/* Describes a request for messages: "recv with tag 3 from rank 2". */
static void describe(const dsc_request *r, char *text, size_t size) {
    const char *name = dsc_comm_op_name(r->op);
    if (r->op == DSC_COMM_SEND || r->op == DSC_COMM_RECV)
        snprintf(text, size, "%s with tag %d %s rank %d", name, r->tag,
                 r->op == DSC_COMM_SEND ? "to" : "from", r->peer);
    else if (r->op == DSC_COMM_REDUCE || r->op == DSC_COMM_BROADCAST)
        snprintf(text, size, "%s %s rank %d", name, r->op == DSC_COMM_REDUCE ? "to" : "from", r->peer);
    else
        snprintf(text, size, "%s over %d ranks", name, r->comm->size);
}

static dsc_status fail_alarmed(dsc_request *r) {
    char what[80];
    describe(r, what, sizeof what);
    r->expired = 1;
    return DSC_FAIL(DSC_E_LOST,
                    "%s: given up: a wait has timed out, here or on another rank, and a rank is missing",
                    what);
}

static dsc_status fail_expired(dsc_request *r) {
    char what[80];
    describe(r, what, sizeof what);
    r->expired = 1;
    if (r->comm->watch)
        atomic_store(&r->comm->watch->alarmed, 1);
    return DSC_FAIL(
        r->comm->watch ? DSC_E_LOST : DSC_E_COMM,
        "%s: not complete after %g s: a rank has ended, hangs or is slow: look at the messages of "
        "all ranks, or wait longer (option peer-timeout)",
        what, r->comm->timeout);
}

dsc_status dsc_comm_wait_limited(dsc_request *request) {
    dsc_comm *comm = request->comm;
    dsc_patience p = {0};
    for (;;) {
        int done = 0, alarmed = 0;
        DSC_TRY(dsc_comm_poll(request, &done));
        if (done)
            return DSC_OK;
        DSC_TRY(dsc_comm_is_alarmed(comm, &alarmed));
        if (alarmed)
            return fail_alarmed(request);
        double waited = dsc_comm_waited(&p);
        if (waited >= comm->timeout)
            return fail_expired(request);
        dsc_comm_rest(waited);
    }
}

/* ---- memory for operations that may time out ---- */

dsc_status dsc_own_take(dsc_comm *comm, const void *data, size_t bytes, void **own) {
    *own = NULL;
    if (comm->timeout == 0 || comm->size == 1 || bytes == 0)
        return DSC_OK;
    DSC_TRY(dsc_memory_grow(&comm->own, &comm->own_bytes, (int64_t)bytes, 1));
    memcpy(comm->own, data, bytes);
    *own = comm->own;
    return DSC_OK;
}

dsc_status dsc_own_wait(dsc_request *request, void *data, size_t bytes, void *own) {
    dsc_comm *comm = request->comm;
    dsc_status status = dsc_comm_wait(&request);
    if (status == DSC_OK && own)
        memcpy(data, own, bytes);
    if (request && own) { /* still in flight: the request keeps the memory */
        request->own = own;
        comm->own = NULL;
        comm->own_bytes = 0;
    }
    DSC_TRY(status);
    return DSC_OK;
}

/* ---- abandoning ---- */

static void cancel_receives(dsc_comm *comm) {
    for (dsc_request *r = comm->requests; r; r = r->next) {
        for (int64_t i = r->done; r->busy && r->table == comm->table && i < r->count; i++) {
            if (r->pieces[i].expected >= 0)
                comm->table->cancel(comm, &r->pieces[i]);
        }
    }
}

void dsc_comm_abandon(dsc_comm **comm) {
    if (!comm || !*comm)
        return;
    dsc_comm *c = *comm;
    if (!c->table || !c->table->abandon) {
        dsc_comm_destroy(comm);
        return;
    }
    *comm = NULL;
    if (c->table->cancel)
        cancel_receives(c);
    c->table->abandon(c);
    dsc_memory_keep(c);
}

int dsc_comm_is_complete(dsc_comm *comm) {
    for (dsc_request *r = comm->requests; r; r = r->next) {
        for (int64_t i = r->done; r->busy && r->table == comm->table && i < r->count; i++) {
            int done = 1;
            if (r->pieces[i].expected < 0 &&
                (comm->table->test(comm, &r->pieces[i], &done) != DSC_OK || !done))
                return 0;
        }
    }
    return 1;
}

void dsc_comm_release(dsc_comm **comm) {
    if (!comm || !*comm)
        return;
    (*comm)->released = 1;
    dsc_comm_abandon(comm);
}
