/* Averaging by gossip: rounds of push-sum, one under way at a time.
 *
 * Round r follows step r of the graph. With the shares of that step, x and w alike:
 *
 *   begin   share_j x leaves for every peer j;  x <- self x
 *   end     x <- x + what came
 *
 * Rounds are numbered, not timed: a rank may be rounds ahead of one that is not its peer, and messages match
 * because two ranks' messages arrive in order. */
#include "consensus/average.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/versioned.h"
#include "comm/table.h"
#include "consensus/topology_table.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { TAG_BUCKETS, TAG_HEADER };

void (*dsc_average_hook)(void);

/* ---- options ---- */

void dsc_average_options_init_sized(dsc_average_options *options, size_t size) {
    const dsc_average_options defaults = {
        .peers = 1,
        .bucket_bytes = (size_t)4 << 20,
        .wire = DSC_F32,
        .traffic = DSC_TRAFFIC_PARAMETERS,
    };
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}

static dsc_status check_options(const dsc_average_options *o) {
    if (o->bucket_bytes == 0)
        return DSC_FAIL(DSC_E_INVALID, "averaging: buckets of 0 bytes; give 1 at least");
    if (o->wire != DSC_F32 && o->wire != DSC_BF16 && o->wire != DSC_F16)
        return DSC_FAIL(DSC_E_INVALID, "averaging: '%s' cannot travel; use fp32, bf16 or fp16",
                        dsc_dtype_name(o->wire));
    if ((unsigned)o->traffic >= DSC_TRAFFIC_COUNT)
        return DSC_FAIL(DSC_E_INVALID, "averaging: traffic kind %d is unknown", (int)o->traffic);
    if (!(o->timeout >= 0))
        return DSC_FAIL(DSC_E_INVALID, "averaging: a timeout of %g s: must be 0 (none) or more", o->timeout);
    return DSC_OK;
}

static dsc_status make_topology(dsc_average *a, int peers) {
    dsc_topology_options options;
    dsc_topology_options_init(&options);
    options.peers = peers;
    dsc_topology *topology = NULL;
    DSC_TRY(dsc_topology_create(a->graph, a->ranks, &options, &topology));
    if (a->options.pairwise && !dsc_topology_is_matching(topology)) {
        dsc_topology_destroy(&topology);
        return DSC_FAIL(DSC_E_INVALID,
                        "graph '%s' is no matching, and averaging in pairs needs one: take "
                        "bipartite-exponential, bipartite-linear, hypercube or base-2, or push-sum",
                        a->graph);
    }
    dsc_topology_destroy(&a->topology);
    a->topology = topology;
    return DSC_OK;
}

/* Room for the rounds of a->topology, which was made for so many peers. Without it nothing can begin. */
static dsc_status make_plan(dsc_average *a, int peers) {
    a->planned = 0;
    a->request_count = a->complete = a->taken = 0; /* the list of requests is made anew */
    DSC_TRY(dsc_plan_create(a));
    a->planned = 1;
    a->options.peers = peers;
    return DSC_OK;
}

/* ---- life ---- */

static dsc_status take_tensors(dsc_average *a, const dsc_tensor *tensors, int64_t count) {
    dsc_device *device = dsc_queue_device(a->queue);
    if (count < 0)
        return DSC_FAIL(DSC_E_INVALID, "averaging: %" PRId64 " tensors", count);
    for (int64_t i = 0; i < count; i++) {
        if (tensors[i].device != device)
            return DSC_FAIL(DSC_E_INVALID, "averaging: tensor %" PRId64 " is not on the device of the queue",
                            i);
        if (tensors[i].dtype != DSC_F32)
            return DSC_FAIL(DSC_E_UNSUPPORTED, "averaging: tensor %" PRId64 " is %s; fp32 can be averaged", i,
                            dsc_dtype_name(tensors[i].dtype));
    }
    DSC_TRY(dsc_memory_alloc(count, sizeof *a->tensors, &a->tensors));
    if (count)
        memcpy(a->tensors, tensors, (size_t)count * sizeof *tensors);
    a->count = count;
    return DSC_OK;
}

/* A number that two ranks have in common when their messages fit each other. */
static dsc_status hash_facts(const dsc_average *a, uint64_t *hash) {
    int64_t facts[] = {a->plan.total, a->plan.bucket, (int64_t)a->plan.wire, a->options.pairwise != 0};
    *hash = dsc_hash_bytes(0, facts, sizeof facts);
    return dsc_topology_hash(a->topology, hash);
}

/* What one rank does by itself. */
static dsc_status prepare(dsc_average *a, const dsc_comm *comm, const dsc_tensor *tensors, int64_t count,
                          uint64_t *hash) {
    const char *graph = a->options.graph;
    DSC_TRY(check_options(&a->options));
    if (!dsc_device_is_host(dsc_queue_device(a->queue)) && a->ranks > 1)
        DSC_TRY(dsc_comm_check_queue(comm, "averaging", dsc_queue_device(a->queue)));
    DSC_TRY(take_tensors(a, tensors, count));
    if (!graph && a->options.pairwise)
        graph = a->ranks % 2 ? "base-2" : "bipartite-exponential";
    DSC_TRY(dsc_memory_strdup(graph ? graph : "exponential", &a->graph));
    a->options.graph = a->graph;
    DSC_TRY(make_topology(a, a->options.peers));
    dsc_device_options device_options;
    dsc_device_options_init(&device_options);
    device_options.name = "ref";
    DSC_TRY(dsc_device_create(&device_options, &a->host));
    DSC_TRY(make_plan(a, a->options.peers));
    return hash_facts(a, hash);
}

/* a->number as a tensor. */
static dsc_tensor number_of(dsc_average *a) {
    const int64_t one = 1;
    return dsc_tensor_view(a->host, &a->number, DSC_I64, 1, &one);
}

/* Refuses what would mix up messages or leave ranks waiting. Collective. */
static dsc_status check_same(dsc_average *a, uint64_t hash) {
    dsc_tensor number = number_of(a);
    int64_t own = (int64_t)(hash >> 1);
    a->number = own;
    DSC_TRY(dsc_comm_allreduce(a->comm, DSC_TRAFFIC_OTHER, DSC_MAX, &number));
    int64_t highest = a->number;
    a->number = own;
    DSC_TRY(dsc_comm_allreduce(a->comm, DSC_TRAFFIC_OTHER, DSC_MIN, &number));
    if (highest != a->number)
        return DSC_FAIL(DSC_E_INVALID,
                        "averaging: this rank has %" PRId64
                        " elements and graph '%s', and elements, the graph's "
                        "edges, peers, bucket or type differ from another rank's: give the same on all "
                        "ranks; a graph file must be the same on all nodes",
                        a->plan.total, a->graph);
    return DSC_OK;
}

dsc_status dsc_average_create(dsc_comm *comm, dsc_queue *queue, const dsc_tensor *tensors, int64_t count,
                              const dsc_average_options *options, dsc_average **out) {
    dsc_average_options taken;
    dsc_average_options_init(&taken);
    DSC_TRY(dsc_versioned_read("average", options, sizeof taken, &taken));
    dsc_average *a;
    DSC_TRY(dsc_memory_alloc(1, sizeof *a, &a));
    a->options = taken;
    a->rank = dsc_comm_rank(comm);
    a->ranks = dsc_comm_size(comm);
    a->queue = queue;
    a->weight = 1;
    a->name_factor = 1;
    uint64_t hash = 0;
    dsc_status status = prepare(a, comm, tensors, count, &hash);
    DSC_TRY_GOTO(status, dsc_comm_agree(comm, status), failed);
    DSC_TRY_GOTO(status, dsc_comm_split(comm, 0, a->rank, &a->comm), failed);
    a->meeting = a->comm;
    DSC_TRY_GOTO(status, check_same(a, hash), failed);
    *out = a;
    return DSC_OK;
failed:
    dsc_average_destroy(&a);
    return status;
}

/* ---- waiting ---- */

/* A moment between two looks. Returns the seconds waited so far. */
static double wait_a_moment(dsc_patience *p) {
    double waited = dsc_comm_waited(p);
    dsc_comm_rest(waited);
    return waited;
}

static int too_long(const dsc_average *a, double waited) {
    return a->options.timeout > 0 && waited > a->options.timeout;
}

/* ---- the list of requests ---- */

static int64_t header_rows(const dsc_average *a) {
    return a->options.pairwise ? 0 : 1;
}

/* Requests before this one are receives. */
static int64_t first_send(const dsc_average *a) {
    return (header_rows(a) + a->plan.bucket_count) * a->in_count;
}

static int peer_of(const dsc_average *a, int64_t request) {
    int64_t behind = request - first_send(a);
    return behind < 0 ? a->in[request % a->in_count].rank : a->out[behind % a->out_count].rank;
}

/* How a wait ends that was in vain. */
static dsc_status loss(const dsc_average *a) {
    return a->comm->watch ? DSC_E_LOST : DSC_E_COMM;
}

static dsc_status check_alarm(const dsc_average *a) {
    int alarmed = 0;
    DSC_TRY(dsc_comm_is_alarmed(a->comm, &alarmed));
    if (alarmed)
        return DSC_FAIL(DSC_E_LOST,
                        "gossip: a rank was lost, as another has noticed; round %" PRId64
                        " and what comes after it have to go on without it",
                        a->rounds);
    return DSC_OK;
}

static dsc_status peer_lost(const dsc_average *a, int64_t request, double waited) {
    int receives = request < first_send(a);
    return DSC_FAIL(loss(a),
                    "gossip: rank %d has %s nothing in round %" PRId64
                    " for %.3g s: it has ended, hangs, or is very slow; look at its messages, or wait longer "
                    "(peer_timeout, --peer-timeout)",
                    a->name_factor * peer_of(a, request) + a->name_offset, receives ? "sent" : "taken",
                    a->rounds - 1, waited);
}

/* Looks at requests from the first that was not complete on. */
static dsc_status look(dsc_average *a, int64_t until) {
    int done = 1;
    DSC_TRY(check_alarm(a));
    while (done && a->complete < until) {
        if (dsc_average_hook)
            dsc_average_hook();
        if (a->requests[a->complete])
            DSC_TRY(dsc_comm_poll(a->requests[a->complete], &done));
        a->complete += done;
    }
    return DSC_OK;
}

/* Waits until requests [0, until) are complete. */
static dsc_status wait_until(dsc_average *a, int64_t until) {
    dsc_patience p = {0};
    for (;;) {
        int64_t before = a->complete;
        DSC_TRY(look(a, until));
        if (a->complete >= until)
            return DSC_OK;
        if (a->complete > before)
            p = (dsc_patience){0};
        double waited = wait_a_moment(&p);
        if (too_long(a, waited))
            return peer_lost(a, a->complete, waited);
    }
}

/* ---- the end of life ---- */

/* What is still under way, of a round or a meeting, is given a moment. 1: it has come to its end. */
static int finish_requests(dsc_average *a) {
    enum { SECONDS = 5 };
    dsc_patience p = {0};
    a->complete = a->complete < a->taken ? a->taken : a->complete;
    while (a->complete < a->request_count || a->met) {
        int met = 1;
        if (look(a, a->request_count) != DSC_OK || dsc_comm_test(&a->met, &met) != DSC_OK)
            return 0;
        if ((a->complete < a->request_count || !met) && wait_a_moment(&p) > SECONDS)
            return 0;
    }
    for (int64_t r = 0; r < a->request_count; r++)
        if (dsc_comm_wait(&a->requests[r]) != DSC_OK)
            return 0;
    return 1;
}

/* Memory that messages may still use is never given back. */
static void abandon(dsc_average *a) {
    if (a->met && a->meeting != a->comm)
        a->met->expired = 1; /* the caller's communicator does not wait for it in its end, either */
    dsc_comm_abandon(&a->comm);
    dsc_memory_keep(a);
}

void dsc_average_destroy(dsc_average **average) {
    if (!average || !*average)
        return;
    dsc_average *a = *average;
    *average = NULL;
    if (!finish_requests(a)) {
        abandon(a);
        return;
    }
    dsc_plan_destroy(&a->plan);
    dsc_comm_destroy(&a->comm);
    dsc_device_destroy(&a->host);
    dsc_topology_destroy(&a->topology);
    dsc_memory_free(&a->requests);
    dsc_memory_free(&a->copies);
    dsc_memory_free(&a->copy_of);
    dsc_memory_free(&a->in);
    dsc_memory_free(&a->out);
    dsc_memory_free(&a->graph);
    dsc_memory_free(&a->tensors);
    dsc_memory_free(&a);
}

/* ---- a round ---- */

static dsc_tensor header(const dsc_average *a, int got, int i) {
    return dsc_tensor_slice(&a->plan.headers, (int64_t)(got * a->plan.most + i) * DSC_HEADER_COUNT,
                            DSC_HEADER_COUNT);
}

static dsc_status receive(dsc_average *a, int from, int tag, dsc_tensor *t, dsc_request **request) {
    if (dsc_average_hook)
        dsc_average_hook();
    return dsc_comm_recv_begin(a->comm, from, tag, t, request);
}

static dsc_status send(dsc_average *a, int to, int tag, const dsc_tensor *t, dsc_request **request) {
    if (dsc_average_hook)
        dsc_average_hook();
    dsc_traffic traffic = tag == TAG_HEADER ? DSC_TRAFFIC_OTHER : a->options.traffic;
    return dsc_comm_send_begin(a->comm, traffic, to, tag, t, request);
}

static dsc_status begin_receives(dsc_average *a) {
    dsc_request **next = a->requests;
    for (int i = 0; i < a->in_count && !a->options.pairwise; i++) {
        dsc_tensor head = header(a, 1, i);
        DSC_TRY(receive(a, a->in[i].rank, TAG_HEADER, &head, next++));
    }
    for (int64_t b = 0; b < a->plan.bucket_count; b++)
        for (int i = 0; i < a->in_count; i++) {
            dsc_tensor bucket = dsc_plan_got(&a->plan, i, b);
            DSC_TRY(receive(a, a->in[i].rank, TAG_BUCKETS, &bucket, next++));
        }
    return DSC_OK;
}

static dsc_status begin_sends(dsc_average *a, dsc_queue *queue) {
    dsc_request **next = a->requests + first_send(a);
    for (int i = 0; i < a->out_count && !a->options.pairwise; i++) {
        dsc_tensor head = header(a, 0, i);
        double *values = head.data;
        values[DSC_HEADER_WEIGHT] = a->weight * a->out[i].share;
        values[DSC_HEADER_ROUND] = (double)a->rounds;
        DSC_TRY(send(a, a->out[i].rank, TAG_HEADER, &head, next++));
    }
    for (int64_t b = 0; b < a->plan.bucket_count; b++) {
        DSC_TRY(dsc_plan_pack(a, queue, b));
        for (int i = 0; i < a->out_count; i++) {
            dsc_tensor bucket = dsc_plan_sent(&a->plan, a->copy_of[i], b);
            DSC_TRY(send(a, a->out[i].rank, TAG_BUCKETS, &bucket, next++));
        }
    }
    return DSC_OK;
}

/* Messages of a GPU's memory keep the order of their communicator's queue, and of no other. */
static dsc_status check_queue(const dsc_average *a, const dsc_queue *queue) {
    if (a->ranks == 1 || queue == a->comm->queue || dsc_device_is_host(dsc_queue_device(a->queue)))
        return DSC_OK;
    return DSC_FAIL(DSC_E_INVALID,
                    "averaging: a round in another queue than the communicator's, whose order messages keep: "
                    "pass the queue that dsc_comm_use_queue had before dsc_average_create");
}

static dsc_status check_can_begin(const dsc_average *a, const dsc_queue *queue) {
    if (a->under_way || a->taken < a->request_count)
        return DSC_FAIL(DSC_E_INVALID, "averaging: round %" PRId64 " is under way: end it before the next",
                        a->rounds - 1);
    if (!a->planned)
        return DSC_FAIL(DSC_E_INVALID, "averaging: the last change of the number of peers has failed: call "
                                       "dsc_average_set_peers again before the next round");
    return check_queue(a, queue);
}

/* Sends first: over TCP Open MPI then moves a pair's messages both ways at once (100 Mb/s: 0.28 s a round
 * of 3.3 MB instead of 0.44). A request that was not begun is NULL. */
static dsc_status begin_round(dsc_average *a, dsc_queue *queue) {
    DSC_TRY(check_can_begin(a, queue));
    a->out_count = dsc_topology_out(a->topology, a->rank, a->rounds, a->out, &a->self);
    a->in_count = dsc_topology_in(a->topology, a->rank, a->rounds, a->in);
    a->copy_count = dsc_plan_copies(a->out, a->out_count, a->copies, a->copy_of);
    a->request_count = first_send(a) + (header_rows(a) + a->plan.bucket_count) * a->out_count;
    a->complete = a->taken = 0;
    a->under_way = 1;
    DSC_TRY(begin_sends(a, queue));
    DSC_TRY(begin_receives(a));
    a->weight *= a->self;
    a->rounds++;
    return look(a, a->request_count); /* lets messages leave that wait for company */
}

static dsc_status check_not_settling(const dsc_average *a, const char *what) {
    if (a->settling)
        return DSC_FAIL(DSC_E_INVALID,
                        "averaging: %s while ranks settle, which has failed on this one: call "
                        "dsc_average_settle again first",
                        what);
    return DSC_OK;
}

dsc_status dsc_average_begin(dsc_average *average, dsc_queue *queue) {
    DSC_TRY(check_not_settling(average, "a round begins"));
    return begin_round(average, queue);
}

dsc_status dsc_average_test(dsc_average *average, int *done) {
    if (!average->under_way)
        return DSC_FAIL(DSC_E_INVALID, "averaging: no round is under way");
    DSC_TRY(look(average, average->request_count));
    *done = average->complete == average->request_count;
    return DSC_OK;
}

static dsc_status take_weights(dsc_average *a) {
    if (a->options.pairwise) {
        a->weight = 1;
        return DSC_OK;
    }
    for (int i = 0; i < a->in_count; i++) {
        dsc_tensor head = header(a, 1, i);
        const double *values = head.data;
        if (values[DSC_HEADER_ROUND] != (double)(a->rounds - 1))
            return DSC_FAIL(DSC_E_INTERNAL,
                            "gossip: rank %d is in round %.0f, this one in %" PRId64
                            ": resume all ranks from the same checkpoint",
                            a->name_factor * a->in[i].rank + a->name_offset, values[DSC_HEADER_ROUND],
                            a->rounds - 1);
        a->weight += values[DSC_HEADER_WEIGHT];
    }
    /* Of a regular graph the sum is 1, but for rounding. */
    if (dsc_topology_is_regular(a->topology) && fabs(a->weight - 1) < 1e-9)
        a->weight = 1;
    return DSC_OK;
}

/* Waits for one request and adds what it brought. */
static dsc_status take_next(dsc_average *a, dsc_queue *queue) {
    int64_t r = a->taken, row = a->in_count ? r / a->in_count - header_rows(a) : 0;
    DSC_TRY(wait_until(a, r + 1));
    DSC_TRY(dsc_comm_wait(&a->requests[r]));
    a->taken++;
    if (r < first_send(a) && row >= 0)
        DSC_TRY(dsc_plan_add(a, queue, 1, (int)(r % a->in_count), row));
    return DSC_OK;
}

dsc_status dsc_average_end(dsc_average *average, dsc_queue *queue) {
    dsc_average *a = average;
    if (!a->under_way)
        return DSC_FAIL(DSC_E_INVALID, "averaging: no round has begun that could end");
    DSC_TRY(check_queue(a, queue));
    while (a->taken < a->request_count)
        DSC_TRY(take_next(a, queue));
    DSC_TRY(take_weights(a));
    a->under_way = 0;
    return DSC_OK;
}

/* ---- giving up ---- */

/* 1 when all that peer i sends in this round is here. */
static dsc_status has_come(dsc_average *a, int i, int *all) {
    *all = 1;
    for (int64_t r = i; r < first_send(a) && *all; r += a->in_count)
        if (a->requests[r])
            DSC_TRY(dsc_comm_poll(a->requests[r], all));
    return DSC_OK;
}

/* Adds what is missing of a peer's message, or takes back what was added of one that will never be whole. */
static dsc_status take_whole_or_nothing(dsc_average *a, dsc_queue *queue, int i) {
    int whole = 0;
    dsc_tensor head = header(a, 1, i);
    DSC_TRY(has_come(a, i, &whole));
    for (int64_t r = i; r < first_send(a); r += a->in_count) {
        int64_t b = r / a->in_count - header_rows(a);
        int added = r < a->taken;
        if (whole && !added)
            DSC_TRY(dsc_comm_wait(&a->requests[r]));
        if (b >= 0 && whole != added)
            DSC_TRY(dsc_plan_add(a, queue, whole ? 1 : -1, i, b));
    }
    if (whole)
        a->weight += a->options.pairwise ? a->in[i].share : ((const double *)head.data)[DSC_HEADER_WEIGHT];
    return DSC_OK;
}

dsc_status dsc_average_give_up(dsc_average *a, dsc_queue *queue) {
    if (!a->under_way)
        return DSC_OK;
    for (int i = 0; i < a->in_count; i++)
        DSC_TRY(take_whole_or_nothing(a, queue, i));
    a->under_way = 0;
    return DSC_OK;
}

int dsc_average_is_under_way(const dsc_average *average) {
    return average->under_way;
}

/* ---- meeting ---- */

/* Lets others' rounds come to their end while this rank has nothing to do but to wait for them. */
static dsc_status lend_a_hand(dsc_average *a, dsc_queue *queue, int64_t most) {
    int done = 0;
    if (!a->under_way)
        return a->rounds < most ? begin_round(a, queue) : DSC_OK;
    DSC_TRY(dsc_average_test(a, &done));
    return done ? dsc_average_end(a, queue) : DSC_OK;
}

static dsc_status nobody_came(const dsc_average *a, double waited) {
    return DSC_FAIL(
        loss(a),
        "gossip: after round %" PRId64
        " not all ranks have come to the meeting point within %.3g s: one has ended, hangs, or is "
        "very slow; look at their messages, or wait longer (peer_timeout, --peer-timeout)",
        a->rounds - 1, waited);
}

dsc_status dsc_average_wait_within(dsc_average *a, dsc_queue *queue, int64_t most, dsc_request **request) {
    dsc_patience p = {0};
    for (;;) {
        int done = 0;
        DSC_TRY(dsc_comm_test(request, &done));
        if (done)
            return DSC_OK;
        DSC_TRY(check_alarm(a));
        DSC_TRY(lend_a_hand(a, queue, most));
        double waited = wait_a_moment(&p);
        if (too_long(a, waited))
            return nobody_came(a, waited);
    }
}

/* a->number = the maximum of `value` over all ranks. What is under way of it when it fails, the next call
 * goes on to wait for: the others have counted it. */
static dsc_status highest(dsc_average *a, dsc_queue *queue, int64_t most, int64_t value) {
    if (!a->met) {
        dsc_tensor t = number_of(a);
        a->number = value;
        DSC_TRY(dsc_comm_allreduce_begin(a->meeting, DSC_TRAFFIC_OTHER, DSC_MAX, &t, &a->met));
    }
    return dsc_average_wait_within(a, queue, most, &a->met);
}

/* What a call that failed has reached is kept, and the next one goes on from there. */
dsc_status dsc_average_settle_within(dsc_average *a, dsc_queue *queue, int64_t most) {
    if (a->settling == DSC_SETTLING_NOT)
        a->settling = DSC_SETTLING_MEET;
    if (a->settling == DSC_SETTLING_MEET) {
        DSC_TRY(highest(a, queue, most, 0)); /* nobody waits elsewhere from here on */
        a->settling = DSC_SETTLING_COUNT;
    }
    if (a->settling == DSC_SETTLING_COUNT) {
        DSC_TRY(highest(a, queue, 0, a->rounds));
        a->settling = DSC_SETTLING_CATCH_UP;
    }
    if (a->under_way)
        DSC_TRY(dsc_average_end(a, queue));
    while (a->rounds < a->number) {
        DSC_TRY(begin_round(a, queue));
        DSC_TRY(dsc_average_end(a, queue));
    }
    a->settling = DSC_SETTLING_NOT;
    return DSC_OK;
}

dsc_status dsc_average_settle(dsc_average *average, dsc_queue *queue) {
    return dsc_average_settle_within(average, queue, average->rounds);
}

/* ---- state ---- */

double dsc_average_weight(const dsc_average *average) {
    return average->weight;
}

int64_t dsc_average_rounds(const dsc_average *average) {
    return average->rounds;
}

const dsc_topology *dsc_average_topology(const dsc_average *average) {
    return average->topology;
}

static dsc_status check_still(const dsc_average *a, const char *what) {
    if (a->under_way || a->taken < a->request_count)
        return DSC_FAIL(DSC_E_INVALID, "averaging: %s while round %" PRId64 " is under way: end it first",
                        what, a->rounds - 1);
    return check_not_settling(a, what);
}

dsc_status dsc_average_restore(dsc_average *average, double weight, int64_t rounds) {
    DSC_TRY(check_still(average, "restoring"));
    if (!(weight > 0 && weight < HUGE_VAL) || rounds < 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "averaging: weight %g after %" PRId64 " rounds: must be positive, and 0 or more",
                        weight, rounds);
    average->weight = average->options.pairwise ? 1 : weight;
    average->rounds = rounds;
    return DSC_OK;
}

dsc_status dsc_average_set_peers(dsc_average *average, int peers) {
    DSC_TRY(check_still(average, "another number of peers"));
    if (average->planned && peers == average->options.peers)
        return DSC_OK;
    DSC_TRY(make_topology(average, peers));
    return make_plan(average, peers);
}
