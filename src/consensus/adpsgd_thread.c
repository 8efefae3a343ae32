/* AD-PSGD's averaging thread. A rank either asks (active) or answers (passive), so there is no circular
 * wait: an active rank waits for one passive rank, which waits only for ranks that have asked it and are
 * waiting for its answer.
 *
 * In an exchange the active rank sends a header {1, share} and its values in buckets, and receives as many
 * buckets. The header {0, 0} tells the partner that this rank will not ask again. Passive ranks keep a receive
 * posted for the header of every partner. Requests are polled with short sleeps in between, because ranks may
 * share cores. */
#include "consensus/adpsgd.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/trace.h"
#include "comm/table.h"
#include "device/ops.h"
#include "device/scope.h"

#include <stdio.h>
#include <time.h>

enum { TAG_HEADER, TAG_ASK, TAG_ANSWER };
enum { SHORTEST_NAP_NS = 20000, LONGEST_NAP_NS = 500000 };

static void (*hook)(int rank, dsc_adpsgd_point point);

void dsc_adpsgd_set_hook(void (*function)(int rank, dsc_adpsgd_point point)) {
    hook = function;
}

static void at(const dsc_adpsgd *a, dsc_adpsgd_point point) {
    if (hook)
        hook(a->rank, point);
}

/* Keeps the first failure with its message, and shortens the wait when the thread ends. */
static void keep_failure(dsc_adpsgd *a, dsc_status status) {
    if (status == DSC_OK)
        return;
    double soon = dsc_clock_now() + DSC_ADPSGD_FAILED_END;
    pthread_mutex_lock(&a->lock);
    if (!a->failed) {
        if (soon < atomic_load(&a->end_by))
            atomic_store(&a->end_by, soon);
        a->failure = status;
        snprintf(a->message, sizeof a->message, "%s", dsc_error_message());
        atomic_store(&a->failed, 1);
    }
    pthread_mutex_unlock(&a->lock);
}

/* ---- waiting ---- */

typedef struct patience {
    dsc_patience wait;
    long nap_ns;
} patience;

static patience be_patient(void) {
    patience p = {.nap_ns = SHORTEST_NAP_NS};
    (void)dsc_comm_waited(&p.wait);
    return p;
}

static void nap(patience *p) {
    struct timespec time = {.tv_nsec = p->nap_ns};
    nanosleep(&time, NULL);
    p->nap_ns = p->nap_ns * 2 < LONGEST_NAP_NS ? p->nap_ns * 2 : LONGEST_NAP_NS;
    (void)dsc_comm_waited(&p->wait);
}

static int wish_of(dsc_adpsgd *a) {
    return atomic_load(&a->wish);
}

static int must_end_now(dsc_adpsgd *a) {
    return wish_of(a) == DSC_ADPSGD_END && dsc_clock_now() > atomic_load(&a->end_by);
}

static dsc_status check_alarm(dsc_adpsgd *a) {
    int alarmed = 0;
    DSC_TRY(dsc_comm_is_alarmed(a->comm, &alarmed));
    if (alarmed)
        return DSC_FAIL(DSC_E_LOST, "adpsgd: another rank reports that a rank was lost");
    return DSC_OK;
}

static dsc_status check_patience(dsc_adpsgd *a, const patience *p, int peer) {
    DSC_TRY(check_alarm(a));
    /* After a failure only end_by limits the wait. */
    if (a->timeout > 0 && p->wait.waited > a->timeout && !a->failed)
        return DSC_FAIL(a->comm->watch ? DSC_E_LOST : DSC_E_COMM,
                        "adpsgd: rank %d has not answered for %.3g s: it has ended, hangs, or is very slow; "
                        "look at its messages, or wait longer (option peer-timeout)",
                        peer, p->wait.waited);
    if (must_end_now(a))
        return DSC_FAIL(DSC_E_COMM, "adpsgd: the exchange with rank %d was not over at the end", peer);
    return DSC_OK;
}

static dsc_status test(dsc_adpsgd *a, dsc_request **request, int *done) {
    at(a, DSC_ADPSGD_AT_TEST);
    return dsc_comm_test(request, done);
}

static dsc_status await(dsc_adpsgd *a, dsc_request **request, int peer) {
    patience p = be_patient();
    for (int done = 0;;) {
        DSC_TRY(test(a, request, &done));
        if (done)
            return DSC_OK;
        DSC_TRY(check_patience(a, &p, peer));
        nap(&p);
    }
}

/* Waits for all messages of the exchange. Each may take the whole timeout: every arrival shows that the peer lives. */
static dsc_status await_exchange(dsc_adpsgd *a) {
    for (int64_t i = 0; i < a->request_count; i++)
        DSC_TRY(await(a, &a->requests[i], a->peer));
    a->request_count = 0;
    return DSC_OK;
}

int dsc_adpsgd_values_are_stuck(const dsc_adpsgd *a) {
    for (int64_t i = 0; i < a->request_count; i++)
        if (a->requests[i])
            return 1;
    return 0;
}

int dsc_adpsgd_is_stuck(const dsc_adpsgd *a) {
    if (dsc_adpsgd_values_are_stuck(a))
        return 1;
    for (int i = 0; i < a->partner_count; i++)
        if (a->partners[i].request || a->partners[i].last_request)
            return 1;
    return 0;
}

/* ---- messages ---- */

static dsc_tensor bucket_of(const dsc_adpsgd *a, const dsc_tensor *t, int64_t index) {
    int64_t first = index * a->bucket, left = a->total - first;
    return dsc_tensor_slice(t, first, left < a->bucket ? left : a->bucket);
}

static dsc_status begin_recv(dsc_adpsgd *a, int from, int tag) {
    a->peer = from;
    for (int64_t b = 0; b < a->bucket_count; b++) {
        dsc_tensor bucket = bucket_of(a, &a->got, b);
        at(a, DSC_ADPSGD_AT_RECV);
        DSC_TRY(dsc_comm_recv_begin(a->comm, from, tag, &bucket, &a->requests[a->request_count]));
        a->request_count++;
    }
    return DSC_OK;
}

static dsc_status begin_send(dsc_adpsgd *a, int to, int tag) {
    a->peer = to;
    for (int64_t b = 0; b < a->bucket_count; b++) {
        dsc_tensor bucket = bucket_of(a, &a->sent, b);
        at(a, DSC_ADPSGD_AT_SEND);
        DSC_TRY(dsc_comm_send_begin(a->comm, DSC_TRAFFIC_PARAMETERS, to, tag, &bucket,
                                    &a->requests[a->request_count]));
        a->request_count++;
    }
    return DSC_OK;
}

static dsc_status send_header(dsc_adpsgd *a, dsc_adpsgd_partner *to, double share) {
    double *header = to->header.data;
    header[0] = 1;
    header[1] = share;
    at(a, DSC_ADPSGD_AT_SEND);
    return dsc_comm_send_begin(a->comm, DSC_TRAFFIC_OTHER, to->rank, TAG_HEADER, &to->header, &to->request);
}

/* Sends the header {0, 0}: partner->last was zeroed when it was allocated. */
static dsc_status send_last(dsc_adpsgd *a, dsc_adpsgd_partner *to) {
    at(a, DSC_ADPSGD_AT_SEND);
    return dsc_comm_send_begin(a->comm, DSC_TRAFFIC_OTHER, to->rank, TAG_HEADER, &to->last,
                               &to->last_request);
}

static dsc_status expect_header(dsc_adpsgd *a, dsc_adpsgd_partner *from) {
    at(a, DSC_ADPSGD_AT_RECV);
    return dsc_comm_recv_begin(a->comm, from->rank, TAG_HEADER, &from->header, &from->request);
}

/* ---- mixing ---- */

static dsc_status begin_work_on_x(dsc_adpsgd *a) {
    pthread_mutex_lock(&a->lock);
    return dsc_queue_wait(a->queue, a->trained);
}

/* Records the end of the work and unlocks, even if `status` is a failure. */
static dsc_status end_work_on_x(dsc_adpsgd *a, dsc_status status) {
    if (status == DSC_OK)
        status = dsc_event_record(a->mixed, a->queue);
    pthread_mutex_unlock(&a->lock);
    return status;
}

static dsc_status take_snapshot(dsc_adpsgd *a) {
    dsc_status status = begin_work_on_x(a);
    if (status == DSC_OK)
        status = dsc_op_convert(a->queue, &a->x, &a->sent);
    return end_work_on_x(a, status);
}

/* Computes x += share (got - sent). The difference is rounded before it is added, so it is the same on both sides. */
static dsc_status add_difference(dsc_adpsgd *a, double share) {
    for (int64_t b = 0; b < a->bucket_count; b++) {
        dsc_tensor x = bucket_of(a, &a->x, b), sent = bucket_of(a, &a->sent, b),
                   got = bucket_of(a, &a->got, b);
        if (a->wire != DSC_F32) {
            dsc_tensor wide_sent = dsc_tensor_slice(&a->wide_a, 0, dsc_tensor_count(&x));
            dsc_tensor wide_got = dsc_tensor_slice(&a->wide_b, 0, dsc_tensor_count(&x));
            DSC_TRY(dsc_op_convert(a->queue, &sent, &wide_sent));
            DSC_TRY(dsc_op_convert(a->queue, &got, &wide_got));
            sent = wide_sent;
            got = wide_got;
        }
        DSC_TRY(dsc_op_axpby(a->queue, -1, &sent, 1, &got));
        DSC_TRY(dsc_op_axpby(a->queue, share, &got, 1, &x));
    }
    return DSC_OK;
}

/* Adds the difference to x. A passive rank first makes the copy of x that it will send back, so that it
 * answers with its latest values. */
static dsc_status mix(dsc_adpsgd *a, double share) {
    dsc_status status = begin_work_on_x(a);
    if (status == DSC_OK && !a->active)
        status = dsc_op_convert(a->queue, &a->x, &a->sent);
    if (status == DSC_OK)
        status = add_difference(a, share);
    a->exchanges += status == DSC_OK;
    return end_work_on_x(a, status);
}

/* ---- active ---- */

static dsc_adpsgd_partner *find_partner(dsc_adpsgd *a, int rank) {
    int i = 0;
    while (a->partners[i].rank != rank)
        i++;
    return &a->partners[i];
}

static dsc_status ask(dsc_adpsgd *a, const dsc_edge *edge) {
    dsc_adpsgd_partner *partner = find_partner(a, edge->rank);
    double began = dsc_clock_now();
    DSC_TRY(take_snapshot(a));
    DSC_TRY(begin_recv(a, edge->rank, TAG_ANSWER));
    DSC_TRY(send_header(a, partner, edge->share));
    DSC_TRY(begin_send(a, edge->rank, TAG_ASK));
    DSC_TRY(await(a, &partner->request, edge->rank));
    DSC_TRY(await_exchange(a));
    DSC_TRY(mix(a, edge->share));
    dsc_trace_span(DSC_TRACK_AVERAGING, "ask", began, dsc_clock_now(), "peer", edge->rank);
    return DSC_OK;
}

/* Makes the next exchange. The number of exchanges, not of training steps, selects the step of the graph: if every
 * exchange took two training steps, counting those would skip every other step of the graph. */
static dsc_status take_turn(dsc_adpsgd *a) {
    dsc_edge edge;
    if (dsc_topology_out(a->topology, a->rank, a->exchanges, &edge, NULL) == 1)
        return ask(a, &edge);
    pthread_mutex_lock(&a->lock);
    a->exchanges++; /* this rank has no peer in this step of the graph */
    pthread_mutex_unlock(&a->lock);
    return DSC_OK;
}

/* Waits until there was a training step after the last exchange began. Returns 0 when the thread is to end. */
static int wait_for_step(dsc_adpsgd *a) {
    int wish, ready;
    pthread_mutex_lock(&a->lock);
    for (;;) {
        wish = wish_of(a);
        ready = wish == DSC_ADPSGD_AVERAGE && !a->failed && a->steps > a->used;
        if (ready || wish == DSC_ADPSGD_END)
            break;
        a->resting = wish == DSC_ADPSGD_REST || a->failed;
        if (a->resting)
            pthread_cond_broadcast(&a->changed);
        pthread_cond_wait(&a->changed, &a->lock);
    }
    a->resting = 0;
    a->used = a->steps;
    pthread_mutex_unlock(&a->lock);
    return ready;
}

/* Sends the last header to all partners, even after a failure with one of them. */
static void say_goodbye(dsc_adpsgd *a) {
    for (int i = 0; i < a->partner_count; i++)
        keep_failure(a, send_last(a, &a->partners[i]));
    for (int i = 0; i < a->partner_count; i++) {
        dsc_adpsgd_partner *partner = &a->partners[i];
        keep_failure(a, await(a, &partner->request, partner->rank)); /* left over from a failed exchange */
        keep_failure(a, await(a, &partner->last_request, partner->rank));
    }
    keep_failure(a, await_exchange(a));
}

/* ---- passive ---- */

static dsc_status answer(dsc_adpsgd *a, int peer, double share) {
    double began = dsc_clock_now();
    DSC_TRY(begin_recv(a, peer, TAG_ASK));
    DSC_TRY(await_exchange(a));
    DSC_TRY(mix(a, share));
    DSC_TRY(begin_send(a, peer, TAG_ANSWER));
    DSC_TRY(await_exchange(a));
    dsc_trace_span(DSC_TRACK_AVERAGING, "answer", began, dsc_clock_now(), "peer", peer);
    return DSC_OK;
}

static dsc_status serve(dsc_adpsgd *a, dsc_adpsgd_partner *partner) {
    const double *header = partner->header.data;
    double goes_on = header[0], share = header[1];
    if (goes_on == 0) {
        partner->gone = 1;
        return DSC_OK;
    }
    DSC_TRY(expect_header(a, partner));
    return answer(a, partner->rank, share);
}

/* Answers one partner that has asked, if there is one. The next call starts with the partner after it, so
 * that every partner gets its turn. */
static dsc_status look_around(dsc_adpsgd *a, int *served) {
    *served = 0;
    for (int i = 0; i < a->partner_count && !*served; i++) {
        int index = (a->next + i) % a->partner_count;
        dsc_adpsgd_partner *partner = &a->partners[index];
        if (partner->gone)
            continue;
        DSC_TRY(test(a, &partner->request, served));
        if (*served) {
            a->next = (index + 1) % a->partner_count;
            DSC_TRY(serve(a, partner));
        }
    }
    return DSC_OK;
}

/* Rests while the training thread wants that, and after a failure. Returns 0 when the thread is to end. */
static int wait_for_work(dsc_adpsgd *a) {
    pthread_mutex_lock(&a->lock);
    while (wish_of(a) == DSC_ADPSGD_REST || (wish_of(a) == DSC_ADPSGD_AVERAGE && a->failed)) {
        a->resting = 1;
        pthread_cond_broadcast(&a->changed);
        pthread_cond_wait(&a->changed, &a->lock);
    }
    a->resting = 0;
    pthread_mutex_unlock(&a->lock);
    return wish_of(a) != DSC_ADPSGD_END;
}

static void answer_all(dsc_adpsgd *a) {
    patience p = be_patient();
    int busy = 0;
    while (busy || wait_for_work(a)) {
        int served = 0;
        keep_failure(a, check_alarm(a));
        keep_failure(a, look_around(a, &served));
        if (served)
            p = be_patient();
        else
            nap(&p);
        busy = wish_of(a) == DSC_ADPSGD_AVERAGE && !a->failed;
    }
}

/* Answers until the last header of every partner has arrived. */
static dsc_status see_off(dsc_adpsgd *a) {
    DSC_TRY(await_exchange(a)); /* left over from a failed exchange */
    patience p = be_patient();
    for (int i = 0; i < a->partner_count;) {
        int served = 0;
        if (a->partners[i].gone) {
            i++;
            continue;
        }
        DSC_TRY(look_around(a, &served));
        if (served)
            continue;
        DSC_TRY(check_alarm(a));
        if (must_end_now(a))
            return DSC_FAIL(DSC_E_COMM, "adpsgd: rank %d has not come to the end", a->partners[i].rank);
        nap(&p);
    }
    return DSC_OK;
}

static dsc_status expect_headers(dsc_adpsgd *a) {
    for (int i = 0; i < a->partner_count; i++)
        DSC_TRY(expect_header(a, &a->partners[i]));
    return DSC_OK;
}

/* ---- the thread ---- */

/* Returns 1 if a rank was lost: then no more messages are sent. */
static int is_lost(dsc_adpsgd *a) {
    pthread_mutex_lock(&a->lock);
    int lost = a->failed && a->failure == DSC_E_LOST;
    pthread_mutex_unlock(&a->lock);
    return lost;
}

void *dsc_adpsgd_thread(void *argument) {
    dsc_adpsgd *a = argument;
    dsc_device_scope scope;
    keep_failure(a, dsc_device_enter(dsc_queue_device(a->queue), &scope));
    if (a->active) {
        while (wait_for_step(a))
            keep_failure(a, take_turn(a));
        if (!is_lost(a))
            say_goodbye(a);
    } else {
        keep_failure(a, expect_headers(a));
        answer_all(a);
        if (!is_lost(a))
            keep_failure(a, see_off(a));
    }
    dsc_device_leave(&scope);
    return NULL;
}
