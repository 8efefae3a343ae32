/* Averaging by gossip: rounds of push-sum, of which at most one is under way.
 *
 * Round r uses step r of the graph. With the shares of that step, both the values x and the weight w are treated
 * like this:
 *
 *   begin   send share_j x to every peer j, keep x <- self x
 *   end     x <- x + everything received
 *
 * Rounds have numbers, not times: a rank may be several rounds ahead of one that is not its peer. Messages are
 * matched correctly nevertheless, because those between two ranks arrive in the order in which they were sent. */
#include "consensus/average.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/versioned.h"
#include "comm/table.h"
#include "consensus/same.h"
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
        return DSC_FAIL(DSC_E_INVALID, "averaging: '%s' cannot be sent; use fp32, bf16 or fp16",
                        dsc_dtype_name(o->wire));
    if ((unsigned)o->traffic >= DSC_TRAFFIC_COUNT)
        return DSC_FAIL(DSC_E_INVALID, "averaging: traffic kind %d is unknown", (int)o->traffic);
    if (!(o->timeout >= 0))
        return DSC_FAIL(DSC_E_INVALID, "averaging: a timeout of %g s: must be 0 (none) or more", o->timeout);
    return DSC_OK;
}

/* Replaces a->topology with one for this number of peers per step, and allocates the memory that its rounds need.
 * If that fails, no round can begin until another call has succeeded. */
static dsc_status use_topology(dsc_average *a, int peers) {
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
    a->planned = 0;
    a->request_count = a->complete = a->taken = 0; /* dsc_plan_create makes a new list of requests */
    DSC_TRY(dsc_plan_create(a));
    a->planned = 1;
    a->options.peers = peers;
    return DSC_OK;
}

/* ---- creating ---- */

/* The part of creation that needs no other rank. Ranks with equal *hash can exchange messages. */
static dsc_status prepare(dsc_average *a, const dsc_comm *comm, const dsc_tensor *tensors, int64_t count,
                          uint64_t *hash) {
    dsc_device *device = dsc_queue_device(a->queue);
    const char *graph = a->options.graph;
    DSC_TRY(check_options(&a->options));
    if (!dsc_device_is_host(device) && a->ranks > 1)
        DSC_TRY(dsc_comm_check_queue(comm, "averaging", device));
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
    if (!graph && a->options.pairwise)
        graph = a->ranks % 2 ? "base-2" : "bipartite-exponential";
    DSC_TRY(dsc_memory_strdup(graph ? graph : "exponential", &a->graph));
    a->options.graph = a->graph;
    dsc_device_options device_options;
    dsc_device_options_init(&device_options);
    device_options.name = "ref";
    DSC_TRY(dsc_device_create(&device_options, &a->host));
    DSC_TRY(use_topology(a, a->options.peers));
    int64_t facts[] = {a->plan.total, a->plan.bucket, (int64_t)a->plan.wire, a->options.pairwise != 0};
    *hash = dsc_hash_bytes(0, facts, sizeof facts);
    return dsc_topology_hash(a->topology, hash);
}

/* Returns a->number as a tensor. */
static dsc_tensor number_of(dsc_average *a) {
    const int64_t one = 1;
    return dsc_tensor_view(a->host, &a->number, DSC_I64, 1, &one);
}

/* Refuses differences between ranks that would mix up messages or leave ranks waiting for ever. Collective. */
static dsc_status check_same(dsc_average *a, uint64_t hash) {
    const dsc_same_list list = {.what = "averaging: tensor",
                                .remedy = "give the same tensors on all ranks",
                                .count = a->count,
                                .tensors = a->tensors,
                                .layouts = a->options.layouts};
    DSC_TRY(dsc_same_check(a->comm, &list));
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
    a->settle_comm = a->comm;
    DSC_TRY_GOTO(status, check_same(a, hash), failed);
    a->options.layouts = NULL; /* the caller's memory, which may be freed */
    *out = a;
    return DSC_OK;
failed:
    dsc_average_destroy(&a);
    return status;
}

/* ---- requests ---- */

/* The number of requests per message: one per bucket, and with push-sum one for the header before them. */
static int64_t rows(const dsc_average *a) {
    return a->plan.bucket_count + (a->options.pairwise ? 0 : 1);
}

int64_t dsc_average_receives(const dsc_average *a) {
    return rows(a) * a->in_count;
}

/* Tests requests, beginning with the first that is not known to be complete, until one is not complete. This also
 * lets MPI make progress. */
static dsc_status poll_requests(dsc_average *a, int64_t until) {
    int done = 1;
    DSC_TRY(dsc_average_check_alarm(a));
    while (done && a->complete < until) {
        if (dsc_average_hook)
            dsc_average_hook();
        if (a->requests[a->complete])
            DSC_TRY(dsc_comm_poll(a->requests[a->complete], &done));
        a->complete += done;
    }
    return DSC_OK;
}

/* Sleeps for a moment between two tests. Returns the seconds waited so far. */
static double pause_waiting(dsc_patience *p) {
    double waited = dsc_comm_waited(p);
    dsc_comm_rest(waited);
    return waited;
}

/* Waits until requests [0, until) are complete; the timeout starts anew whenever one completes. */
static dsc_status wait_until(dsc_average *a, int64_t until) {
    dsc_patience p = {0};
    for (;;) {
        int64_t before = a->complete;
        DSC_TRY(poll_requests(a, until));
        if (a->complete >= until)
            return DSC_OK;
        if (a->complete > before)
            p = (dsc_patience){0};
        DSC_TRY(dsc_average_check_timeout(a, a->complete, pause_waiting(&p)));
    }
}

/* Waits up to `seconds` for requests that are still in flight. Returns 1 if all of them have completed. */
static int finish_requests(dsc_average *a, double seconds) {
    dsc_patience p = {0};
    a->complete = a->complete < a->taken ? a->taken : a->complete;
    while (a->complete < a->request_count || a->settle_request) {
        int settled = 1;
        if (poll_requests(a, a->request_count) != DSC_OK ||
            dsc_comm_test(&a->settle_request, &settled) != DSC_OK)
            return 0;
        if ((a->complete < a->request_count || !settled) && pause_waiting(&p) > seconds)
            return 0;
    }
    for (int64_t r = 0; r < a->request_count; r++)
        if (dsc_comm_wait(&a->requests[r]) != DSC_OK)
            return 0;
    return 1;
}

static void free_all(dsc_average *a) {
    dsc_plan_destroy(&a->plan);
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

void dsc_average_destroy(dsc_average **average) {
    if (!average || !*average)
        return;
    dsc_average *a = *average;
    *average = NULL;
    if (!finish_requests(a, 5)) {
        dsc_comm_abandon(&a->comm);
        dsc_average_keep(a);
        return;
    }
    dsc_comm_destroy(&a->comm);
    free_all(a);
}

void dsc_average_abandon(dsc_average **average) {
    if (!average || !*average)
        return;
    dsc_average *a = *average;
    *average = NULL;
    int done = finish_requests(a, 0);
    dsc_comm_release(&a->comm);
    if (done)
        free_all(a);
    else
        dsc_average_keep(a);
}

/* ---- a round ---- */

dsc_tensor dsc_average_header(const dsc_average *a, int got, int i) {
    return dsc_tensor_slice(&a->plan.headers, (int64_t)(got * a->plan.most + i) * DSC_HEADER_COUNT,
                            DSC_HEADER_COUNT);
}

static dsc_status receive(dsc_average *a, int from, int tag, dsc_tensor t, dsc_request **request) {
    if (dsc_average_hook)
        dsc_average_hook();
    return dsc_comm_recv_begin(a->comm, from, tag, &t, request);
}

static dsc_status send(dsc_average *a, int to, int tag, dsc_tensor t, dsc_request **request) {
    if (dsc_average_hook)
        dsc_average_hook();
    dsc_traffic traffic = tag == TAG_HEADER ? DSC_TRAFFIC_OTHER : a->options.traffic;
    return dsc_comm_send_begin(a->comm, traffic, to, tag, &t, request);
}

static dsc_status begin_sends(dsc_average *a, dsc_queue *queue) {
    dsc_request **next = a->requests + dsc_average_receives(a);
    for (int i = 0; i < a->out_count && !a->options.pairwise; i++) {
        dsc_tensor header = dsc_average_header(a, 0, i);
        double *values = header.data;
        values[DSC_HEADER_WEIGHT] = a->weight * a->out[i].share;
        values[DSC_HEADER_ROUND] = (double)a->rounds;
        DSC_TRY(send(a, a->out[i].rank, TAG_HEADER, header, next++));
    }
    for (int64_t b = 0; b < a->plan.bucket_count; b++) {
        DSC_TRY(dsc_plan_pack(a, queue, b));
        for (int i = 0; i < a->out_count; i++)
            DSC_TRY(send(a, a->out[i].rank, TAG_BUCKETS, dsc_plan_sent(&a->plan, a->copy_of[i], b), next++));
    }
    return DSC_OK;
}

static dsc_status begin_receives(dsc_average *a) {
    dsc_request **next = a->requests;
    for (int i = 0; i < a->in_count && !a->options.pairwise; i++)
        DSC_TRY(receive(a, a->in[i].rank, TAG_HEADER, dsc_average_header(a, 1, i), next++));
    for (int64_t b = 0; b < a->plan.bucket_count; b++)
        for (int i = 0; i < a->in_count; i++)
            DSC_TRY(receive(a, a->in[i].rank, TAG_BUCKETS, dsc_plan_got(&a->plan, i, b), next++));
    return DSC_OK;
}

/* Checks the queue of a round: messages in GPU memory follow the order of their communicator's queue alone. */
static dsc_status check_queue(const dsc_average *a, const dsc_queue *queue) {
    if (a->ranks == 1 || queue == a->comm->queue || dsc_device_is_host(dsc_queue_device(a->queue)))
        return DSC_OK;
    return DSC_FAIL(DSC_E_INVALID,
                    "averaging: a round in another queue than the communicator's, whose order messages keep: "
                    "pass the queue that dsc_comm_use_queue had before dsc_average_create");
}

static dsc_status begin_round(dsc_average *a, dsc_queue *queue) {
    if (a->under_way || a->taken < a->request_count)
        return DSC_FAIL(DSC_E_INVALID, "averaging: round %" PRId64 " is under way: end it before the next",
                        a->rounds - 1);
    if (!a->planned)
        return DSC_FAIL(DSC_E_INVALID, "averaging: the last change of the number of peers has failed: call "
                                       "dsc_average_set_peers again before the next round");
    DSC_TRY(check_queue(a, queue));
    a->out_count = dsc_topology_out(a->topology, a->rank, a->rounds, a->out, &a->self);
    a->in_count = dsc_topology_in(a->topology, a->rank, a->rounds, a->in);
    a->copy_count = dsc_plan_copies(a->out, a->out_count, a->copies, a->copy_of);
    a->request_count = rows(a) * (a->in_count + a->out_count);
    a->complete = a->taken = 0;
    a->under_way = 1;
    /* Sends come first: over TCP, Open MPI then transfers a pair's messages in both directions at once (at 100 Mb/s
     * a round of 3.3 MB takes 0.28 s instead of 0.44). After a failure, requests that were not begun are NULL. */
    DSC_TRY(begin_sends(a, queue));
    DSC_TRY(begin_receives(a));
    a->weight *= a->self;
    a->rounds++;
    return poll_requests(a, a->request_count); /* starts messages that were held back to be sent together */
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
    DSC_TRY(poll_requests(average, average->request_count));
    *done = average->complete == average->request_count;
    return DSC_OK;
}

/* Adds the weights in the headers that have arrived. */
static dsc_status add_weights(dsc_average *a) {
    for (int i = 0; i < a->in_count; i++) {
        dsc_tensor header = dsc_average_header(a, 1, i);
        const double *values = header.data;
        if (values[DSC_HEADER_ROUND] != (double)(a->rounds - 1))
            return DSC_FAIL(DSC_E_INTERNAL,
                            "gossip: rank %d is in round %.0f, this one in %" PRId64
                            ": resume all ranks from the same checkpoint",
                            a->name_factor * a->in[i].rank + a->name_offset, values[DSC_HEADER_ROUND],
                            a->rounds - 1);
        a->weight += values[DSC_HEADER_WEIGHT];
    }
    /* On a regular graph the sum is 1, except for rounding. */
    if (dsc_topology_is_regular(a->topology) && fabs(a->weight - 1) < 1e-9)
        a->weight = 1;
    return DSC_OK;
}

dsc_status dsc_average_end(dsc_average *average, dsc_queue *queue) {
    dsc_average *a = average;
    if (!a->under_way)
        return DSC_FAIL(DSC_E_INVALID, "averaging: no round has begun that could end");
    DSC_TRY(check_queue(a, queue));
    int64_t receives = dsc_average_receives(a), header_rows = rows(a) - a->plan.bucket_count;
    while (a->taken < a->request_count) { /* in order, so that sums do not depend on timing */
        int64_t r = a->taken;
        DSC_TRY(wait_until(a, r + 1));
        DSC_TRY(dsc_comm_wait(&a->requests[r]));
        a->taken++;
        if (r < receives && r / a->in_count >= header_rows)
            DSC_TRY(dsc_plan_add(a, queue, 1, (int)(r % a->in_count), r / a->in_count - header_rows));
    }
    if (a->options.pairwise)
        a->weight = 1;
    else
        DSC_TRY(add_weights(a));
    a->under_way = 0;
    return DSC_OK;
}

int dsc_average_is_under_way(const dsc_average *average) {
    return average->under_way;
}

/* ---- settling ---- */

dsc_status dsc_average_wait_within(dsc_average *a, dsc_queue *queue, int64_t most, dsc_request **request) {
    dsc_patience p = {0};
    for (;;) {
        int done = 0;
        DSC_TRY(dsc_comm_test(request, &done));
        if (done)
            return DSC_OK;
        DSC_TRY(dsc_average_check_alarm(a));
        /* Take part in rounds that others are waiting in. */
        if (a->under_way) {
            DSC_TRY(dsc_average_test(a, &done));
            if (done)
                DSC_TRY(dsc_average_end(a, queue));
        } else if (a->rounds < most) {
            DSC_TRY(begin_round(a, queue));
        }
        DSC_TRY(dsc_average_check_timeout(a, -1, pause_waiting(&p)));
    }
}

/* Sets a->number to the maximum of `value` over all ranks. A call that fails leaves the request in flight, because
 * the other ranks take part in it, and the next call continues to wait for it. */
static dsc_status highest(dsc_average *a, dsc_queue *queue, int64_t most, int64_t value) {
    if (!a->settle_request) {
        dsc_tensor t = number_of(a);
        a->number = value;
        DSC_TRY(dsc_comm_allreduce_begin(a->settle_comm, DSC_TRAFFIC_OTHER, DSC_MAX, &t, &a->settle_request));
    }
    return dsc_average_wait_within(a, queue, most, &a->settle_request);
}

dsc_status dsc_average_settle_within(dsc_average *a, dsc_queue *queue, int64_t most) {
    if (a->settling == DSC_SETTLING_NOT)
        a->settling = DSC_SETTLING_GATHER;
    if (a->settling == DSC_SETTLING_GATHER) {
        DSC_TRY(highest(a, queue, most, 0)); /* a barrier: afterwards no rank waits in a round */
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

static dsc_status check_idle(const dsc_average *a, const char *what) {
    if (a->under_way || a->taken < a->request_count)
        return DSC_FAIL(DSC_E_INVALID, "averaging: %s while round %" PRId64 " is under way: end it first",
                        what, a->rounds - 1);
    return check_not_settling(a, what);
}

dsc_status dsc_average_restore(dsc_average *average, double weight, int64_t rounds) {
    DSC_TRY(check_idle(average, "restoring"));
    if (!(weight > 0 && weight < HUGE_VAL) || rounds < 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "averaging: weight %g after %" PRId64 " rounds: must be positive, and 0 or more",
                        weight, rounds);
    average->weight = average->options.pairwise ? 1 : weight;
    average->rounds = rounds;
    return DSC_OK;
}

dsc_status dsc_average_set_peers(dsc_average *average, int peers) {
    DSC_TRY(check_idle(average, "another number of peers"));
    if (average->planned && peers == average->options.peers)
        return DSC_OK;
    return use_topology(average, peers);
}
