/* Finds the ranks that are still alive, by messages, for MPI libraries that cannot themselves survive the loss
 * of ranks.
 *
 * A communicator created with `survive` has a duplicate of itself for these messages, its watch. A rank
 * that finds another one missing starts the agreement by sending an alarm to all others, which notice it and take
 * part, too.
 *
 *   alarm   to all     I am alive and take part.
 *   call    to all     The sender is coordinator: join it. To a rank that has joined the sender: join the
 *                      named coordinator instead.
 *   join    to one     The receiver is my coordinator: I wait for its list.
 *   list    to all     The ranks that go on, one bit each.
 *
 * A rank waits for alarms until it has heard from all ranks or its patience is over. Then it joins the
 * lowest rank that it has heard from; if that is itself, it sends a call. A rank that receives a call
 * before that joins the caller. The coordinator waits, at most for its patience, until all ranks it has
 * heard from have joined, and sends the list of those that have joined to all: a rank that is not in it came too
 * late. A rank joins one coordinator at a time, and changes to another only if the first has asked it to,
 * or was silent for so long that it must be gone; so no rank is in two lists. Of two ranks that call at
 * the same time, the higher one joins the lower. The ranks in the list then make their communicator, with a
 * time limit: if a rank ends within these milliseconds, the others end with an error.
 *
 * The messages are so short (the list has one bit per rank) that MPI sends them without the receiver's
 * help, so a dead rank blocks nobody. Their memory belongs to the watch, which is never freed once an
 * alarm was raised. All ranks exchange a message when the watch is made, because no first connection can be
 * made to a rank that is dead. */
#include "comm/mpi/mpi.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

#include <limits.h>
#include <string.h>

enum { NOTE = 1, GROUP }; /* tags */
enum { NOBODY = -1 };

static const double least_call = 0.05; /* seconds that a coordinator at least waits to hear from others */
static const double slack = 0.5;       /* seconds that a coordinator may be late beyond its patience */

/* A message; a list is followed by its bits. All have the same tag, and messages with other tags are not
 * received, because MPI may use the same communicator while a group is being made. */
typedef enum kind { ALARM, CALL, JOIN, LIST } kind;
typedef struct note {
    kind kind;
    int coordinator; /* the one that a call names */
} note;

typedef struct watch_state {
    MPI_Comm comm;
    int rank, size;
    note alarm, join;
    note *calls;           /* [size], each naming one rank as coordinator */
    note *list, *arrived;  /* followed by bits */
    unsigned char *heard;  /* [size] 1: alive */
    unsigned char *joined; /* [size] 1: waits for this rank's list */
} watch_state;

/* The state of this rank in the agreement. */
typedef struct agreement {
    watch_state *w;
    double patience;
    double limit;     /* when the current state ends */
    double called_at; /* when this rank, as coordinator, sent its call */
    double last;      /* when this rank, as coordinator, was last active */
    int coordinator;  /* the one joined, or this rank itself; NOBODY: still waiting for alarms */
    int other;        /* another rank that was named as coordinator, or NOBODY */
    int decided, late;
} agreement;

/* ---- messages ---- */

static int list_bytes(const watch_state *w) {
    return (int)sizeof(note) + (w->size + CHAR_BIT - 1) / CHAR_BIT;
}

static int is_in(const note *list, int rank) {
    const unsigned char *bits = (const unsigned char *)(list + 1);
    return bits[rank / CHAR_BIT] >> rank % CHAR_BIT & 1;
}

/* Sends a message and frees its request at once, as nobody waits for these. */
static dsc_status post(const watch_state *w, int to, const note *n) {
    int bytes = n->kind == LIST ? list_bytes(w) : (int)sizeof *n;
    MPI_Request request;
    DSC_TRY(dsc_mpi_check(MPI_Isend(n, bytes, MPI_BYTE, to, NOTE, w->comm, &request), "MPI_Isend"));
    return dsc_mpi_check(MPI_Request_free(&request), "MPI_Request_free");
}

static dsc_status post_all(const watch_state *w, const note *n) {
    for (int r = 0; r < w->size; r++) {
        if (r != w->rank)
            DSC_TRY(post(w, r, n));
    }
    return DSC_OK;
}

/* ---- states ---- */

/* Joins a coordinator, and tells the ranks that have joined this one to join it instead. */
static dsc_status join(agreement *a, int coordinator) {
    watch_state *w = a->w;
    a->coordinator = coordinator;
    a->limit = dsc_clock_now() + 2 * a->patience + slack;
    DSC_TRY(post(w, coordinator, &w->join));
    for (int r = 0; r < w->size; r++) {
        if (w->joined[r])
            DSC_TRY(post(w, r, &w->calls[coordinator]));
        w->joined[r] = 0;
    }
    return DSC_OK;
}

static dsc_status call_all(agreement *a) {
    a->coordinator = a->w->rank;
    a->last = a->called_at = dsc_clock_now();
    a->limit = a->called_at + a->patience;
    return post_all(a->w, &a->w->calls[a->w->rank]);
}

static dsc_status choose(agreement *a) {
    const watch_state *w = a->w;
    if (a->other != NOBODY && w->heard[a->other])
        return join(a, a->other);
    int lowest = 0;
    while (!w->heard[lowest]) /* ends at this rank at the latest */
        lowest++;
    return lowest == w->rank ? call_all(a) : join(a, lowest);
}

static int all_heard(const watch_state *w) {
    return memchr(w->heard, 0, (size_t)w->size) == NULL;
}

/* Returns 1 if all ranks heard from have joined. */
static int all_joined(const watch_state *w) {
    for (int r = 0; r < w->size; r++) {
        if (r != w->rank && w->heard[r] && !w->joined[r])
            return 0;
    }
    return 1;
}

static dsc_status send_list(agreement *a) {
    watch_state *w = a->w;
    unsigned char *bits = (unsigned char *)(w->list + 1);
    memset(bits, 0, (size_t)list_bytes(w) - sizeof *w->list);
    for (int r = 0; r < w->size; r++) {
        if (r == w->rank || w->joined[r])
            bits[r / CHAR_BIT] |= (unsigned char)(1u << r % CHAR_BIT);
    }
    a->decided = 1;
    return post_all(w, w->list);
}

/* ---- receiving ---- */

static dsc_status take_call(agreement *a, int from, int coordinator) {
    const watch_state *w = a->w;
    if (coordinator < 0 || coordinator >= w->size || coordinator == w->rank)
        return DSC_OK;
    int yields = a->coordinator == w->rank && coordinator < w->rank && !a->decided;
    if (a->coordinator == NOBODY || a->coordinator == from || yields)
        return join(a, coordinator);
    a->other = coordinator;
    return DSC_OK;
}

static dsc_status take_join(agreement *a, int from) {
    const watch_state *w = a->w;
    if (a->coordinator != NOBODY && a->coordinator != w->rank)
        return post(w, from, &w->calls[a->coordinator]);
    w->joined[from] = 1;
    return DSC_OK;
}

static void take_list(agreement *a, int from) {
    const watch_state *w = a->w;
    if (a->decided)
        return;
    if (!is_in(w->arrived, w->rank)) {
        a->late = 1;
    } else if (from == a->coordinator) {
        memcpy(w->list, w->arrived, (size_t)list_bytes(w));
        a->decided = 1;
    }
}

static dsc_status take(agreement *a, int from) {
    const watch_state *w = a->w;
    DSC_TRY(dsc_mpi_check(
        MPI_Recv(w->arrived, list_bytes(w), MPI_BYTE, from, NOTE, w->comm, MPI_STATUS_IGNORE), "MPI_Recv"));
    w->heard[from] = 1;
    switch (w->arrived->kind) {
    case ALARM:
        break;
    case CALL:
        return take_call(a, from, w->arrived->coordinator);
    case JOIN:
        return take_join(a, from);
    case LIST:
        take_list(a, from);
        break;
    }
    return DSC_OK;
}

static dsc_status take_all(agreement *a) {
    for (;;) {
        int there = 0;
        MPI_Status found;
        DSC_TRY(dsc_mpi_check(MPI_Iprobe(MPI_ANY_SOURCE, NOTE, a->w->comm, &there, &found), "MPI_Iprobe"));
        if (!there)
            return DSC_OK;
        DSC_TRY(take(a, found.MPI_SOURCE));
    }
}

/* ---- the agreement ---- */

/* Sends the list if it is time. A coordinator that was itself stopped for long must not go on: the ranks that joined it
 * have left. */
static dsc_status coordinate(agreement *a, double now) {
    if (now - a->last > a->patience) {
        a->late = 1;
        return DSC_OK;
    }
    a->last = now;
    if (now >= a->limit || (now >= a->called_at + least_call && all_joined(a->w)))
        return send_list(a);
    return DSC_OK;
}

static dsc_status advance(agreement *a) {
    watch_state *w = a->w;
    double now = dsc_clock_now();
    if (a->coordinator == w->rank)
        return coordinate(a, now);
    if (a->coordinator == NOBODY)
        return now >= a->limit || all_heard(w) ? choose(a) : DSC_OK;
    if (now < a->limit)
        return DSC_OK;
    w->heard[a->coordinator] = 0;
    a->coordinator = NOBODY;
    return choose(a);
}

static dsc_status agree(watch_state *w, double patience) {
    double begin = dsc_clock_now();
    agreement a = {
        .w = w, .patience = patience, .limit = begin + patience, .coordinator = NOBODY, .other = NOBODY};
    w->heard[w->rank] = 1;
    DSC_TRY(post_all(w, &w->alarm));
    for (;;) {
        DSC_TRY(take_all(&a));
        if (a.late)
            return DSC_FAIL(
                DSC_E_COMM,
                "survivors: this rank came too late, and the others go on without it: it was "
                "stopped or away for long; more patience than %g s (option peer-timeout) keeps such ranks",
                patience);
        if (a.decided)
            return DSC_OK;
        DSC_TRY(advance(&a));
        if (!a.decided)
            dsc_comm_rest(dsc_clock_now() - begin);
    }
}

/* Makes the communicator of the ranks in the list. */
static dsc_status make_group(const watch_state *w, MPI_Comm *out) {
    MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
    int *ranks, count = 0;
    DSC_TRY(dsc_memory_alloc(w->size, sizeof *ranks, &ranks));
    for (int r = 0; r < w->size; r++) {
        if (is_in(w->list, r))
            ranks[count++] = r;
    }
    dsc_status status = dsc_mpi_check(MPI_Comm_group(w->comm, &all), "MPI_Comm_group");
    if (status == DSC_OK)
        status = dsc_mpi_check(MPI_Group_incl(all, count, ranks, &some), "MPI_Group_incl");
    if (status == DSC_OK)
        status = dsc_mpi_check(MPI_Comm_create_group(w->comm, some, GROUP, out), "MPI_Comm_create_group");
    if (some != MPI_GROUP_NULL)
        MPI_Group_free(&some);
    if (all != MPI_GROUP_NULL)
        MPI_Group_free(&all);
    dsc_memory_free(&ranks);
    return status;
}

typedef struct rest {
    const watch_state *w;
    dsc_comm made;
} rest;

static dsc_status make_rest(void *argument) {
    rest *r = argument;
    MPI_Comm made = MPI_COMM_NULL;
    DSC_TRY(make_group(r->w, &made));
    DSC_TRY(dsc_mpi_check(MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
    DSC_TRY(dsc_mpi_adopt(&r->made, made));
    return dsc_mpi_watch(&r->made);
}

static void (*hook)(void);

void dsc_mpi_set_agreed_hook(void (*function)(void)) {
    hook = function;
}

dsc_status dsc_mpi_survivors(dsc_comm *comm, double patience, dsc_comm *child) {
    rest *r;
    watch_state *w = comm->watch->state;
    DSC_TRY(dsc_mpi_check_free());
    DSC_TRY(agree(w, patience));
    if (hook)
        hook();
    DSC_TRY(dsc_memory_alloc(1, sizeof *r, &r));
    r->w = w;
    dsc_status status = dsc_mpi_run(patience + slack, make_rest, r);
    if (status == DSC_OK)
        dsc_mpi_move(&r->made, child);
    if (dsc_mpi_is_free())
        dsc_memory_free(&r);
    return status;
}

/* ---- the watch ---- */

dsc_status dsc_mpi_look(dsc_watch *watch, int *alarmed) {
    const watch_state *w = watch->state;
    DSC_TRY(dsc_mpi_check_free());
    return dsc_mpi_check(MPI_Iprobe(MPI_ANY_SOURCE, NOTE, w->comm, alarmed, MPI_STATUS_IGNORE), "MPI_Iprobe");
}

static dsc_status allocate(watch_state *w) {
    DSC_TRY(dsc_memory_alloc(w->size, sizeof *w->calls, &w->calls));
    DSC_TRY(dsc_memory_alloc(w->size, 1, &w->heard));
    DSC_TRY(dsc_memory_alloc(w->size, 1, &w->joined));
    DSC_TRY(dsc_memory_alloc(list_bytes(w), 1, &w->list));
    DSC_TRY(dsc_memory_alloc(list_bytes(w), 1, &w->arrived));
    w->alarm.kind = ALARM;
    w->join.kind = JOIN;
    w->list->kind = LIST;
    for (int r = 0; r < w->size; r++)
        w->calls[r] = (note){.kind = CALL, .coordinator = r};
    return DSC_OK;
}

static void free_state(watch_state **state) {
    watch_state *w = *state;
    dsc_memory_free(&w->calls);
    dsc_memory_free(&w->heard);
    dsc_memory_free(&w->joined);
    dsc_memory_free(&w->list);
    dsc_memory_free(&w->arrived);
    dsc_memory_free(state);
}

void dsc_mpi_close_watch(dsc_watch *watch) {
    watch_state *w = watch->state;
    if (dsc_mpi_is_up() && dsc_mpi_is_free())
        MPI_Comm_free(&w->comm);
    free_state(&w);
}

/* Exchanges one message between every two ranks, so that all connections exist. */
static dsc_status greet(const watch_state *w) {
    for (int width = 1; width < w->size; width++) {
        int to = (w->rank + width) % w->size, from = (w->rank + w->size - width) % w->size;
        DSC_TRY(dsc_mpi_check(MPI_Sendrecv(NULL, 0, MPI_BYTE, to, NOTE, NULL, 0, MPI_BYTE, from, NOTE,
                                           w->comm, MPI_STATUS_IGNORE),
                              "MPI_Sendrecv"));
    }
    return DSC_OK;
}

static dsc_status open_watch(const dsc_comm *comm, watch_state *w) {
    w->rank = comm->rank;
    w->size = comm->size;
    DSC_TRY(allocate(w));
    DSC_TRY(dsc_mpi_check(MPI_Comm_dup(((dsc_mpi_state *)comm->state)->comm, &w->comm), "MPI_Comm_dup"));
    return greet(w);
}

dsc_status dsc_mpi_watch(dsc_comm *comm) {
    dsc_watch *watch;
    watch_state *w;
    if (comm->size == 1)
        return DSC_OK;
    DSC_TRY(dsc_memory_alloc(1, sizeof *watch, &watch));
    dsc_status status = dsc_memory_alloc(1, sizeof *w, &w);
    if (status == DSC_OK) {
        status = open_watch(comm, w);
        if (status != DSC_OK)
            free_state(&w);
    }
    if (status != DSC_OK)
        dsc_memory_free(&watch);
    DSC_TRY(status);
    atomic_init(&watch->users, 1);
    watch->state = w;
    comm->watch = watch;
    comm->owns_watch = 1;
    return DSC_OK;
}
