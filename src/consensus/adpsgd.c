/* AD-PSGD, the training thread's side. This thread computes gradients at a copy of x, which may be stale by
 * the time the gradients are applied, and never waits for another rank. A second thread (adpsgd_thread.c)
 * averages x with one peer at a time, with its own communicator and queue. adpsgd.h shows both side by side.
 *
 * At most one gradient waits at a time, so there is no queue of gradients: the training thread applies each one
 * itself, under the lock, before it begins the next.
 *
 * Between settle and the next before_forward the averaging threads rest and the parameters hold the values;
 * before_forward then copies them to x, whoever has written them. */
#include "consensus/adpsgd.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/thread.h"
#include "comm/table.h"
#include "consensus/topology_table.h"
#include "descent/log.h"

#include <inttypes.h>
#include <string.h>

/* ---- checks ---- */

static dsc_status check_comm(const dsc_comm *comm, const dsc_device *device) {
    if (comm->size % 2)
        return DSC_FAIL(DSC_E_INVALID,
                        "adpsgd with %d ranks: odd ranks average with even ones, so their number must be "
                        "even; start one more or one less, or use dpsgd, which takes any number with the "
                        "graph base-2",
                        comm->size);
    if (!comm->thread_multiple)
        return DSC_FAIL(DSC_E_INVALID, "adpsgd: a thread of its own averages, but the communicator was made "
                                       "for one thread: create it with thread_multiple = 1");
    if (strcmp(dsc_comm_name(comm), "nccl") == 0 && !dsc_device_is_host(device))
        return DSC_FAIL(DSC_E_UNSUPPORTED,
                        "adpsgd with nccl: NCCL keeps the operations of all ranks in one order, and adpsgd "
                        "has none; use mpi (option comm)");
    return DSC_OK;
}

static dsc_status set_peers(dsc_consensus *c, int peers) {
    (void)c;
    if (peers != 1)
        return DSC_FAIL(DSC_E_INVALID, "adpsgd with %d peers per step: pairs average, so it must be 1",
                        peers);
    return DSC_OK;
}

static dsc_status check_options(dsc_consensus *c, const dsc_consensus_options *options) {
    DSC_TRY(set_peers(c, options->peers));
    if (options->synch_freq != 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "adpsgd with synch_freq %" PRId64
                        ": exchanges go on at any moment, and no step waits for one; use osgp, or 0",
                        options->synch_freq);
    if (options->group != 1)
        return DSC_FAIL(DSC_E_UNSUPPORTED,
                        "adpsgd with groups of %d ranks: those of a group would wait for each other in every "
                        "step; use a group of 1, or sgp, osgp or dpsgd",
                        options->group);
    return DSC_OK;
}

/* Checks that in every step an odd rank exchanges with one even rank, or with none. */
static dsc_status check_graph(const dsc_topology *topology) {
    const char *name = dsc_topology_name(topology);
    if (!dsc_topology_is_matching(topology) || dsc_topology_most_peers(topology) > 1)
        return DSC_FAIL(DSC_E_INVALID,
                        "adpsgd with graph '%s': ranks must exchange in pairs, with equal shares; use "
                        "bipartite-exponential or bipartite-linear",
                        name);
    for (int64_t step = 0; step < dsc_topology_period(topology); step++)
        for (int rank = 0; rank < dsc_topology_ranks(topology); rank++) {
            dsc_edge edge;
            if (dsc_topology_out(topology, rank, step, &edge, NULL) == 1 && (rank + edge.rank) % 2 == 0)
                return DSC_FAIL(DSC_E_INVALID,
                                "adpsgd with graph '%s': ranks %d and %d exchange in step %" PRId64
                                ", but odd ranks ask and even ones answer, so only an odd and an even one "
                                "can exchange; use bipartite-exponential or bipartite-linear",
                                name, rank, edge.rank, step);
        }
    return DSC_OK;
}

/* ---- creating and destroying ---- */

/* Lists the ranks that the graph ever pairs this rank with. */
static dsc_status find_partners(dsc_adpsgd *a) {
    int ranks = dsc_topology_ranks(a->topology);
    DSC_TRY(dsc_memory_alloc(ranks, sizeof *a->partners, &a->partners));
    for (int64_t step = 0; step < dsc_topology_period(a->topology); step++) {
        dsc_edge edge;
        if (dsc_topology_out(a->topology, a->rank, step, &edge, NULL) == 1)
            a->partners[edge.rank].rank = 1; /* only marks the rank; the list is made below */
    }
    for (int rank = 0; rank < ranks; rank++) {
        if (a->partners[rank].rank)
            a->partners[a->partner_count++].rank = rank;
    }
    int64_t room = (int64_t)a->partner_count * 2 * DSC_ADPSGD_HEADER;
    DSC_TRY(dsc_tensor_alloc(a->host, DSC_F64, 1, &room, &a->header_memory));
    for (int64_t i = 0; i < a->partner_count; i++) {
        int64_t first = i * 2 * DSC_ADPSGD_HEADER;
        a->partners[i].header = dsc_tensor_slice(&a->header_memory, first, DSC_ADPSGD_HEADER);
        a->partners[i].last =
            dsc_tensor_slice(&a->header_memory, first + DSC_ADPSGD_HEADER, DSC_ADPSGD_HEADER);
    }
    return DSC_OK;
}

static dsc_status start_thread(dsc_adpsgd *a) {
    a->has_lock = pthread_mutex_init(&a->lock, NULL) == 0;
    a->has_changed = pthread_cond_init(&a->changed, NULL) == 0;
    if (!a->has_lock || !a->has_changed)
        return DSC_FAIL(DSC_E_MEMORY, "adpsgd: cannot create its lock");
    DSC_TRY(dsc_thread_start(&a->thread, dsc_adpsgd_thread, a, "the thread that averages"));
    a->has_thread = 1;
    return DSC_OK;
}

/* The part of creation that needs no other rank. Ranks with equal *hash can exchange messages. */
static dsc_status prepare(dsc_consensus *c, dsc_adpsgd *a, const dsc_consensus_options *options,
                          uint64_t *hash) {
    dsc_device *device = dsc_queue_device(c->queue);
    dsc_device_options host_options;
    dsc_device_options_init(&host_options);
    host_options.name = "ref";
    DSC_TRY(dsc_device_create(&host_options, &a->host));
    const char *graph = options->graph ? options->graph : "bipartite-exponential";
    DSC_TRY(dsc_topology_create(graph, c->comm->size, NULL, &a->topology));
    DSC_TRY(check_graph(a->topology));
    DSC_TRY(find_partners(a));

    int64_t fit = (int64_t)(options->bucket_bytes / dsc_dtype_size(a->wire));
    a->bucket = fit < 1 ? 1 : fit < a->total ? fit : a->total;
    a->bucket_count = (a->total + a->bucket - 1) / a->bucket;
    DSC_TRY(dsc_tensor_alloc(device, DSC_F32, 1, &a->total, &a->x));
    DSC_TRY(dsc_tensor_alloc(device, a->wire, 1, &a->total, &a->sent));
    DSC_TRY(dsc_tensor_alloc(device, a->wire, 1, &a->total, &a->got));
    if (a->wire != DSC_F32) {
        DSC_TRY(dsc_tensor_alloc(device, DSC_F32, 1, &a->bucket, &a->wide_a));
        DSC_TRY(dsc_tensor_alloc(device, DSC_F32, 1, &a->bucket, &a->wide_b));
    }
    DSC_TRY(dsc_memory_alloc(2 * a->bucket_count, sizeof *a->requests, &a->requests));
    DSC_TRY(dsc_memory_alloc(c->run_count, sizeof *a->x_runs, &a->x_runs));
    dsc_consensus_slice(c, &a->x, a->x_runs);

    DSC_TRY(dsc_event_create(device, &a->trained));
    DSC_TRY(dsc_event_create(device, &a->mixed));
    DSC_TRY(dsc_queue_create(device, &a->queue));
    int64_t facts[] = {a->bucket, (int64_t)a->wire};
    *hash = dsc_hash_bytes(0, facts, sizeof facts);
    return dsc_topology_hash(a->topology, hash);
}

/* Refuses differences between ranks that would mix up messages or leave ranks waiting for ever. Collective. */
static dsc_status check_same(dsc_consensus *c, const dsc_adpsgd *a, uint64_t hash) {
    int same = 0;
    DSC_TRY(dsc_consensus_is_same(c, hash, &same));
    if (!same)
        return DSC_FAIL(DSC_E_INVALID,
                        "adpsgd: this rank has graph '%s' and buckets of %" PRId64
                        " elements as %s, and the graph's edges, bucket or type differ from another rank's: "
                        "give the same on all ranks; a graph file must be the same on all nodes",
                        dsc_topology_name(a->topology), a->bucket, dsc_dtype_name(a->wire));
    return DSC_OK;
}

/* With one rank, or without parameters, there is no thread and c->state stays NULL: training is plain SGD. */
static dsc_status open_adpsgd(dsc_consensus *c, const dsc_consensus_options *options) {
    DSC_TRY(check_options(c, options));
    if (c->comm->size == 1)
        return DSC_OK;
    DSC_TRY(check_comm(c->comm, dsc_queue_device(c->queue)));
    if (c->total == 0)
        return DSC_OK;
    dsc_adpsgd *a;
    DSC_TRY(dsc_memory_alloc(1, sizeof *a, &a));
    c->state = a;
    a->rank = c->comm->rank;
    a->active = a->rank % 2;
    a->timeout = options->peer_timeout;
    a->wire = options->wire;
    a->total = c->total;
    a->settled = 1;
    atomic_init(&a->wish, DSC_ADPSGD_REST);
    atomic_init(&a->failed, 0);
    atomic_init(&a->end_by, 0);
    uint64_t hash = 0;
    DSC_TRY(dsc_comm_agree(c->comm, prepare(c, a, options, &hash)));
    DSC_TRY(check_same(c, a, hash));
    DSC_TRY(dsc_comm_split(c->comm, 0, a->rank, &a->comm));
    DSC_TRY(dsc_comm_use_queue(a->comm, a->queue));
    return start_thread(a);
}

static void end_thread(dsc_adpsgd *a, int hurried) {
    pthread_mutex_lock(&a->lock);
    double limit = a->failed || hurried ? DSC_ADPSGD_FAILED_END : DSC_ADPSGD_LONGEST_END + a->timeout;
    atomic_store(&a->end_by, dsc_clock_now() + limit);
    atomic_store(&a->wish, DSC_ADPSGD_END);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
}

/* Frees everything on the device. */
static void free_values(dsc_adpsgd *a) {
    if (a->trained && dsc_event_sync(a->trained) != DSC_OK) /* work on x may still be in a queue */
        dsc_log(DSC_LOG_DEBUG, "%s", dsc_error_message());
    dsc_queue_destroy(&a->queue);
    dsc_event_destroy(&a->mixed);
    dsc_event_destroy(&a->trained);
    dsc_tensor *const tensors[] = {&a->x, &a->sent, &a->got, &a->wide_a, &a->wide_b};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        if (tensors[i]->data)
            dsc_tensor_free(tensors[i]);
    }
}

static void close_adpsgd(dsc_consensus *c) {
    dsc_adpsgd *a = c->state;
    c->state = NULL;
    if (a->has_thread)
        end_thread(a, c->hurried || c->abandoned);
    if (dsc_adpsgd_is_stuck(a)) {
        /* Messages to or from a lost peer cannot complete, and not all can be cancelled: their memory is kept. */
        if (c->abandoned)
            dsc_comm_release(&a->comm);
        else
            dsc_comm_abandon(&a->comm);
        if (!dsc_adpsgd_values_are_stuck(a))
            free_values(a);
        dsc_memory_keep(a);
        return;
    }
    dsc_consensus_close_comm(c, &a->comm);
    free_values(a);
    if (a->has_changed)
        pthread_cond_destroy(&a->changed);
    if (a->has_lock)
        pthread_mutex_destroy(&a->lock);
    if (a->header_memory.data)
        dsc_tensor_free(&a->header_memory);
    dsc_memory_free(&a->x_runs);
    dsc_memory_free(&a->requests);
    dsc_memory_free(&a->partners);
    dsc_topology_destroy(&a->topology);
    dsc_device_destroy(&a->host);
    dsc_memory_free(&a);
}

/* ---- in a step ---- */

/* Returns the error of the averaging thread, if it has failed. */
static dsc_status check_failure(dsc_adpsgd *a) {
    if (!atomic_load(&a->failed))
        return DSC_OK;
    pthread_mutex_lock(&a->lock);
    dsc_status status = dsc_error_adopt(a->failure, a->message);
    pthread_mutex_unlock(&a->lock);
    return status;
}

static dsc_status copy_to_x(dsc_consensus *c, dsc_queue *queue, dsc_adpsgd *a) {
    return dsc_consensus_scale(c, queue, 1, c->runs, a->x_runs);
}

static dsc_status copy_from_x(dsc_consensus *c, dsc_queue *queue, const dsc_adpsgd *a) {
    return dsc_consensus_scale(c, queue, 1, a->x_runs, c->runs);
}

static dsc_status begin_work_on_x(dsc_adpsgd *a, dsc_queue *queue) {
    pthread_mutex_lock(&a->lock);
    return dsc_queue_wait(queue, a->mixed);
}

/* Records the end of the work and unlocks, even if `status` is a failure. */
static dsc_status end_work_on_x(dsc_adpsgd *a, dsc_queue *queue, dsc_status status) {
    if (status == DSC_OK)
        status = dsc_event_record(a->trained, queue);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    return status;
}

static dsc_status before_forward(dsc_consensus *c, dsc_queue *queue) {
    dsc_adpsgd *a = c->state;
    if (!a)
        return DSC_OK;
    DSC_TRY(check_failure(a));
    dsc_status status = begin_work_on_x(a, queue);
    if (status == DSC_OK)
        status = a->settled ? copy_to_x(c, queue, a) : copy_from_x(c, queue, a);
    if (status == DSC_OK && a->settled) {
        a->settled = 0;
        atomic_store(&a->wish, DSC_ADPSGD_AVERAGE);
    }
    return end_work_on_x(a, queue, status);
}

/* Takes the lock and keeps it until update_end or update_cancel, unless it fails. */
static dsc_status update_begin(dsc_consensus *c, dsc_queue *queue, const dsc_tensor **read) {
    (void)read;
    dsc_adpsgd *a = c->state;
    if (!a)
        return DSC_OK;
    if (a->settled)
        return DSC_FAIL(DSC_E_INVALID,
                        "an update begins, but no step has begun since the last settling: call "
                        "dsc_consensus_before_forward");
    DSC_TRY(check_failure(a));
    dsc_status status = begin_work_on_x(a, queue);
    if (status == DSC_OK)
        status = copy_from_x(c, queue, a);
    return status == DSC_OK ? DSC_OK : end_work_on_x(a, queue, status);
}

static dsc_status update_end(dsc_consensus *c, dsc_queue *queue) {
    dsc_adpsgd *a = c->state;
    if (!a)
        return DSC_OK;
    dsc_status status = copy_to_x(c, queue, a);
    a->steps += status == DSC_OK;
    return end_work_on_x(a, queue, status);
}

static void update_cancel(dsc_consensus *c) {
    dsc_adpsgd *a = c->state;
    if (!a)
        return;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

/* ---- settling ---- */

/* Waits until the averaging thread rests, which it also does after a failure. */
static void let_rest(dsc_adpsgd *a) {
    pthread_mutex_lock(&a->lock);
    atomic_store(&a->wish, DSC_ADPSGD_REST);
    pthread_cond_broadcast(&a->changed);
    while (!a->resting)
        pthread_cond_wait(&a->changed, &a->lock);
    pthread_mutex_unlock(&a->lock);
}

/* Puts x into the parameters and waits for the copy. */
static dsc_status fetch(dsc_consensus *c, dsc_queue *queue, dsc_adpsgd *a) {
    dsc_status status = begin_work_on_x(a, queue);
    if (status == DSC_OK)
        status = copy_from_x(c, queue, a);
    DSC_TRY(end_work_on_x(a, queue, status));
    return dsc_queue_sync(queue);
}

/* Active ranks rest first; passive ranks continue to answer until all active ranks rest. Collective. */
static dsc_status settle(dsc_consensus *c, dsc_queue *queue) {
    dsc_adpsgd *a = c->state;
    if (!a || a->settled)
        return DSC_OK;
    if (a->active)
        let_rest(a);
    DSC_TRY(dsc_comm_agree(c->comm, check_failure(a)));
    if (!a->active)
        let_rest(a);
    DSC_TRY(check_failure(a));
    DSC_TRY(fetch(c, queue, a));
    a->settled = 1;
    return DSC_OK;
}

/* After the loss of a rank: an exchange that was not completed has changed nothing on this rank. */
static dsc_status rescue(dsc_consensus *c, dsc_queue *queue) {
    dsc_adpsgd *a = c->state;
    if (!a || a->settled)
        return DSC_OK;
    return fetch(c, queue, a);
}

static int is_busy(const dsc_consensus *c) {
    const dsc_adpsgd *a = c->state;
    return a && !a->settled;
}

/* ---- checkpoints ---- */

static int64_t rounds(const dsc_consensus *c) {
    dsc_adpsgd *a = c->state;
    if (!a)
        return 0;
    pthread_mutex_lock(&a->lock);
    int64_t exchanges = a->exchanges;
    pthread_mutex_unlock(&a->lock);
    return exchanges;
}

static const dsc_topology *topology_of(const dsc_consensus *c) {
    const dsc_adpsgd *a = c->state;
    return a ? a->topology : NULL;
}

static dsc_status restore(dsc_consensus *c, double weight, int64_t exchanges) {
    (void)weight; /* pairs average with equal shares, so there are no weights */
    dsc_adpsgd *a = c->state;
    if (!a)
        return DSC_OK;
    pthread_mutex_lock(&a->lock);
    a->exchanges = exchanges;
    pthread_mutex_unlock(&a->lock);
    return DSC_OK;
}

const dsc_consensus_table dsc_consensus_adpsgd = {
    .name = "adpsgd",
    .open = open_adpsgd,
    .close = close_adpsgd,
    .before_forward = before_forward,
    .update_begin = update_begin,
    .update_end = update_end,
    .update_cancel = update_cancel,
    .settle = settle,
    .rescue = rescue,
    .is_busy = is_busy,
    .set_peers = set_peers,
    .rounds = rounds,
    .topology = topology_of,
    .restore = restore,
};
