/* Consensus: the public functions. Each checks its arguments and calls the table of the chosen algorithm.
 * What all algorithms share is also here: all ranks start with rank 0's values, and the parameters of the ranks
 * can be compared. */
#include "descent/consensus.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/option.h"
#include "base/versioned.h"
#include "comm/table.h"
#include "consensus/same.h"
#include "consensus/table.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const dsc_consensus_table *const tables[] = {
    [DSC_CONSENSUS_ALLREDUCE] = &dsc_consensus_allreduce, [DSC_CONSENSUS_SGP] = &dsc_consensus_sgp,
    [DSC_CONSENSUS_OSGP] = &dsc_consensus_osgp,           [DSC_CONSENSUS_DPSGD] = &dsc_consensus_dpsgd,
    [DSC_CONSENSUS_ADPSGD] = &dsc_consensus_adpsgd,
};

/* ---- options ---- */

/* Copies the caller's options over the defaults and checks them. */
static dsc_status take_options(const dsc_consensus_options *given, dsc_consensus_options *out) {
    dsc_consensus_options_init(out);
    DSC_TRY(dsc_versioned_read("consensus", given, sizeof *out, out));
    return dsc_option_check_values(dsc_consensus_option_table(), out, "");
}

/* ---- creating and destroying ---- */

static dsc_status check_params(dsc_device *device, const dsc_param *params, int64_t count) {
    if (count < 0)
        return DSC_FAIL(DSC_E_INVALID, "%" PRId64 " parameters: must be 0 or more", count);
    for (int64_t i = 0; i < count; i++) {
        const dsc_tensor *value = &params[i].value, *grad = &params[i].grad;
        if (value->device != device || grad->device != device)
            return DSC_FAIL(DSC_E_INVALID, "parameter '%s' is not in memory of the queue's device '%s'",
                            params[i].name, dsc_device_name(device));
        if (value->dtype != grad->dtype || dsc_tensor_count(value) != dsc_tensor_count(grad))
            return DSC_FAIL(DSC_E_INVALID, "parameter '%s': value and gradient must be of one type and size",
                            params[i].name);
    }
    return DSC_OK;
}

/* Replaces both elements by their maximum over all ranks. Collective. */
static dsc_status max_over_ranks(dsc_consensus *c, int64_t host[2]) {
    DSC_TRY(dsc_tensor_upload(c->queue, host, 2 * sizeof *host, &c->hashes));
    DSC_TRY(dsc_queue_sync(c->queue));
    DSC_TRY(dsc_comm_allreduce(c->comm, DSC_TRAFFIC_OTHER, DSC_MAX, &c->hashes));
    DSC_TRY(dsc_tensor_download(c->queue, &c->hashes, 2 * sizeof *host, host));
    return dsc_queue_sync(c->queue);
}

/* One all-reduce gives max(v) and max(~v) = ~min(v); all ranks have the same v if maximum and minimum are equal. */
dsc_status dsc_consensus_is_same(dsc_consensus *c, uint64_t value, int *same) {
    int64_t pair[2];
    uint64_t both[2] = {value, ~value};
    memcpy(pair, both, sizeof pair);
    DSC_TRY(max_over_ranks(c, pair));
    *same = pair[0] == ~pair[1];
    return DSC_OK;
}

/* Refuses parameter lists that differ between ranks: they would mix up or block every later message.
 * Collective. */
static dsc_status check_same_layout(dsc_consensus *c, const char *const *layouts) {
    const dsc_same_list list = {.what = "parameter",
                                .remedy = "build the same model on all ranks",
                                .count = c->count,
                                .params = c->params,
                                .layouts = layouts};
    return dsc_same_check(c->comm, &list);
}

/* Merges the values of parameters that are contiguous in memory on every rank into one run each, so that there
 * are few pieces. joined[i] becomes 1 if parameter i continues the run of parameter i - 1. Collective. */
static dsc_status merge_runs(dsc_consensus *c, dsc_tensor *joined, uint8_t *host) {
    dsc_tensor last = {0};
    for (int64_t i = 0; i < c->count; i++) {
        const dsc_tensor *value = &c->params[i].value;
        host[i] = i > 0 && last.dtype == value->dtype &&
                  (const char *)last.data + dsc_tensor_bytes(&last) == (const char *)value->data;
        last = *value;
    }
    DSC_TRY(dsc_tensor_upload(c->queue, host, (size_t)c->count, joined));
    DSC_TRY(dsc_queue_sync(c->queue));
    DSC_TRY(dsc_comm_allreduce(c->comm, DSC_TRAFFIC_OTHER, DSC_MIN, joined));
    DSC_TRY(dsc_tensor_download(c->queue, joined, (size_t)c->count, host));
    DSC_TRY(dsc_queue_sync(c->queue));
    DSC_TRY(dsc_memory_alloc(c->count, sizeof *c->runs, &c->runs));
    for (int64_t i = 0; i < c->count; i++) {
        const dsc_tensor *value = &c->params[i].value;
        int64_t length = dsc_tensor_count(value);
        c->total += length;
        if (host[i])
            c->runs[c->run_count - 1].dim[0] += length;
        else
            c->runs[c->run_count++] = dsc_tensor_slice(value, 0, length);
    }
    return DSC_OK;
}

static dsc_status find_runs(dsc_consensus *c) {
    if (c->count == 0)
        return DSC_OK;
    uint8_t *host;
    DSC_TRY(dsc_memory_alloc(c->count, sizeof *host, &host));
    dsc_tensor joined = {0};
    dsc_status status = dsc_tensor_alloc(dsc_queue_device(c->queue), DSC_U8, 1, &c->count, &joined);
    if (status == DSC_OK) {
        status = merge_runs(c, &joined, host);
        dsc_tensor_free(&joined);
    }
    dsc_memory_free(&host);
    return status;
}

static dsc_status set_up(dsc_consensus *c, const dsc_param *params, const dsc_consensus_options *options) {
    const int64_t two = 2;
    DSC_TRY(dsc_tensor_alloc(dsc_queue_device(c->queue), DSC_I64, 1, &two, &c->hashes));
    DSC_TRY(dsc_tensor_alloc(dsc_queue_device(c->queue), DSC_F64, 1, &two, &c->sums));
    DSC_TRY(dsc_memory_alloc(c->count, sizeof *c->params, &c->params));
    if (c->count)
        memcpy(c->params, params, (size_t)c->count * sizeof *params);
    DSC_TRY(check_same_layout(c, options->layouts));
    DSC_TRY(find_runs(c));
    if (!c->table->keeps_equal) {
        DSC_TRY(dsc_consensus_check_types(c));
        DSC_TRY(dsc_slow_open(c, options));
    }
    DSC_TRY(c->table->open(c, options));
    return DSC_OK;
}

dsc_status dsc_consensus_create(dsc_comm *comm, dsc_queue *queue, const dsc_param *params, int64_t count,
                                const dsc_consensus_options *options, dsc_consensus **out) {
    dsc_consensus_options taken;
    DSC_TRY(take_options(options, &taken));
    DSC_TRY(check_params(dsc_queue_device(queue), params, count));
    dsc_consensus *c;
    DSC_TRY(dsc_memory_alloc(1, sizeof *c, &c));
    c->table = tables[taken.kind];
    c->comm = comm;
    c->queue = queue;
    c->count = count;
    c->rate = -1;
    dsc_status status;
    DSC_TRY_GOTO(status, set_up(c, params, &taken), failed);
    *out = c;
    return DSC_OK;
failed:
    dsc_consensus_destroy(&c);
    return status;
}

void dsc_consensus_destroy(dsc_consensus **consensus) {
    if (!consensus || !*consensus)
        return;
    dsc_consensus *c = *consensus;
    dsc_consensus_update_cancel(c);
    if (c->state)
        c->table->close(c);
    dsc_consensus_close_gradients(c);
    dsc_slow_close(c);
    dsc_tensor *const memory[] = {&c->hashes, &c->sums, &c->shadow_memory};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        if (memory[i]->data)
            dsc_tensor_free(memory[i]);
    dsc_memory_free(&c->shadow);
    dsc_memory_free(&c->read);
    dsc_memory_free(&c->runs);
    dsc_memory_free(&c->params);
    dsc_memory_free(consensus);
}

void dsc_consensus_abandon(dsc_consensus **consensus) {
    if (!consensus || !*consensus)
        return;
    (*consensus)->abandoned = 1;
    dsc_consensus_destroy(consensus);
}

void dsc_consensus_close_comm(const dsc_consensus *c, dsc_comm **comm) {
    if (c->abandoned)
        dsc_comm_release(comm);
    else
        dsc_comm_destroy(comm);
}

/* ---- the start, and the calls of a step ---- */

dsc_status dsc_consensus_start(dsc_consensus *consensus) {
    dsc_consensus *c = consensus;
    DSC_TRY(dsc_consensus_check_settled(c, "start"));
    DSC_TRY(dsc_queue_sync(c->queue));
    for (int64_t i = 0; i < c->run_count; i++)
        DSC_TRY(dsc_comm_broadcast(c->comm, DSC_TRAFFIC_PARAMETERS, 0, &c->runs[i]));
    if (c->table->adopt)
        DSC_TRY(c->table->adopt(c, c->queue));
    return dsc_slow_start(c, c->queue);
}

int dsc_consensus_is_collective(const dsc_consensus *consensus) {
    return consensus->table->keeps_equal;
}

int dsc_consensus_records(const dsc_consensus *consensus) {
    return consensus->table->keeps_equal && dsc_comm_records(consensus->comm);
}

static dsc_status check_not_updating(const dsc_consensus *c, const char *what) {
    if (c->updating)
        return DSC_FAIL(
            DSC_E_INVALID,
            "%s within an update: call dsc_consensus_update_end or dsc_consensus_update_cancel first", what);
    return DSC_OK;
}

dsc_status dsc_consensus_before_forward(dsc_consensus *consensus, dsc_queue *queue) {
    if (consensus->swapped)
        return DSC_FAIL(DSC_E_INVALID, "a step begins while other values are swapped in: call "
                                       "dsc_consensus_swap_out first");
    DSC_TRY(check_not_updating(consensus, "a step begins"));
    if (consensus->table->before_forward)
        DSC_TRY(consensus->table->before_forward(consensus, queue));
    return DSC_OK;
}

dsc_status dsc_consensus_grad_ready(dsc_consensus *consensus, dsc_queue *queue, int64_t param) {
    if (param < 0 || param >= consensus->count)
        return DSC_FAIL(DSC_E_INVALID, "parameter %" PRId64 " is ready: there are %" PRId64, param,
                        consensus->count);
    if (consensus->table->grad_ready)
        DSC_TRY(consensus->table->grad_ready(consensus, queue, param));
    return DSC_OK;
}

dsc_status dsc_consensus_after_backward(dsc_consensus *consensus, dsc_queue *queue) {
    if (consensus->table->after_backward)
        DSC_TRY(consensus->table->after_backward(consensus, queue));
    return DSC_OK;
}

dsc_status dsc_consensus_update_begin(dsc_consensus *consensus, dsc_queue *queue, const dsc_tensor **read) {
    dsc_consensus *c = consensus;
    DSC_TRY(check_not_updating(c, "an update begins"));
    c->average_due = c->average_every > 0 && (c->steps + 1) % c->average_every == 0;
    *read = NULL;
    if (c->table->update_begin)
        DSC_TRY(c->table->update_begin(c, queue, read));
    c->updating = 1;
    return DSC_OK;
}

dsc_status dsc_consensus_update_end(dsc_consensus *consensus, dsc_queue *queue) {
    dsc_consensus *c = consensus;
    if (!c->updating)
        return DSC_FAIL(DSC_E_INVALID, "an update ends that has not begun: call dsc_consensus_update_begin");
    c->updating = 0;
    if (c->table->update_end)
        DSC_TRY(c->table->update_end(c, queue));
    c->steps++;
    if (c->average_due)
        DSC_TRY(dsc_slow_average(c, queue));
    c->average_due = 0;
    return DSC_OK;
}

void dsc_consensus_update_cancel(dsc_consensus *consensus) {
    dsc_consensus *c = consensus;
    if (!c || !c->updating)
        return;
    if (c->table->update_cancel)
        c->table->update_cancel(c);
    c->updating = 0;
}

void dsc_consensus_set_rate(dsc_consensus *consensus, double lr) {
    consensus->rate = lr;
}

/* ---- between steps ---- */

dsc_status dsc_consensus_wait(dsc_consensus *c, dsc_queue *queue, dsc_request **request) {
    return c->table->wait ? c->table->wait(c, queue, request) : dsc_comm_wait(request);
}

dsc_status dsc_consensus_settle(dsc_consensus *consensus, dsc_queue *queue) {
    if (consensus->swapped)
        return DSC_FAIL(DSC_E_INVALID,
                        "settle: other values are swapped in: call dsc_consensus_swap_out first");
    DSC_TRY(check_not_updating(consensus, "settle"));
    if (consensus->table->settle)
        DSC_TRY(consensus->table->settle(consensus, queue));
    return DSC_OK;
}

dsc_status dsc_consensus_set_peers(dsc_consensus *consensus, int peers) {
    DSC_TRY(dsc_consensus_check_settled(consensus, "another number of peers"));
    if (!consensus->table->set_peers)
        return DSC_FAIL(DSC_E_INVALID, "%s has no number of peers to change", consensus->table->name);
    return consensus->table->set_peers(consensus, peers);
}

const dsc_topology *dsc_consensus_topology(const dsc_consensus *consensus) {
    return consensus->table->topology ? consensus->table->topology(consensus) : NULL;
}

double dsc_consensus_weight(const dsc_consensus *consensus) {
    return consensus->table->weight ? consensus->table->weight(consensus) : 1;
}

int64_t dsc_consensus_rounds(const dsc_consensus *consensus) {
    return consensus->table->rounds ? consensus->table->rounds(consensus) : 0;
}

int64_t dsc_consensus_steps(const dsc_consensus *consensus) {
    return consensus->steps;
}

dsc_status dsc_consensus_restore(dsc_consensus *consensus, double weight, int64_t rounds, int64_t steps) {
    dsc_consensus *c = consensus;
    DSC_TRY(dsc_consensus_check_settled(c, "restore"));
    if (rounds < 0 || steps < 0)
        return DSC_FAIL(DSC_E_INVALID, "restore: %" PRId64 " rounds and %" PRId64 " steps: must be 0 or more",
                        rounds, steps);
    if (c->table->adopt)
        DSC_TRY(c->table->adopt(c, c->queue));
    if (c->table->restore)
        DSC_TRY(c->table->restore(c, weight, rounds));
    c->steps = steps;
    return DSC_OK;
}

enum { STEPS_AT = 6 };

void dsc_consensus_get_numbers(const dsc_consensus *consensus, double numbers[DSC_CONSENSUS_NUMBERS]) {
    int weighted = consensus->table->weight != NULL;
    memset(numbers, 0, DSC_CONSENSUS_NUMBERS * sizeof *numbers);
    if (weighted)
        numbers[0] = dsc_consensus_weight(consensus);
    numbers[weighted] = (double)dsc_consensus_rounds(consensus);
    numbers[STEPS_AT] = (double)consensus->steps;
}

dsc_status dsc_consensus_set_numbers(dsc_consensus *consensus, const double numbers[DSC_CONSENSUS_NUMBERS]) {
    int weighted = consensus->table->weight != NULL;
    const double counts[2] = {numbers[weighted], numbers[STEPS_AT]};
    for (int i = 0; i < 2; i++)
        if (!(counts[i] >= 0 && counts[i] < 0x1p53) || counts[i] != floor(counts[i]))
            return DSC_FAIL(DSC_E_INVALID, "a checkpoint's consensus has done %g %s: must be a whole number",
                            counts[i], i ? "steps" : "rounds");
    return dsc_consensus_restore(consensus, weighted ? numbers[0] : 1, (int64_t)counts[0],
                                 (int64_t)counts[1]);
}

int64_t dsc_consensus_state_count(const dsc_consensus *consensus) {
    return consensus->slow_state ? 2 * consensus->count : 0;
}

const dsc_param *dsc_consensus_state(const dsc_consensus *consensus) {
    return consensus->slow_state;
}

/* ---- comparing ranks ---- */

/* Continues `hash` with the bytes of a tensor that the host cannot read directly: downloads it piece by piece. */
static dsc_status hash_remote(dsc_queue *queue, const dsc_tensor *t, uint64_t *hash) {
    enum { PIECE = 1 << 20 };
    char *host;
    DSC_TRY(dsc_memory_alloc(PIECE, 1, &host));
    int64_t step = (int64_t)(PIECE / dsc_dtype_size(t->dtype)), count = dsc_tensor_count(t);
    dsc_status status = DSC_OK;
    for (int64_t first = 0; first < count && status == DSC_OK; first += step) {
        dsc_tensor piece = dsc_tensor_slice(t, first, count - first < step ? count - first : step);
        size_t bytes = dsc_tensor_bytes(&piece);
        status = dsc_tensor_download(queue, &piece, bytes, host);
        if (status == DSC_OK)
            status = dsc_queue_sync(queue);
        if (status == DSC_OK)
            *hash = dsc_hash_bytes(*hash, host, bytes);
    }
    dsc_memory_free(&host);
    return status;
}

static dsc_status hash_params(const dsc_consensus *c, dsc_queue *queue, uint64_t *hash) {
    DSC_TRY(dsc_queue_sync(queue));
    *hash = 0;
    for (int64_t i = 0; i < c->count; i++) {
        const dsc_tensor *value = &c->params[i].value;
        if (dsc_device_is_host(value->device))
            *hash = dsc_hash_bytes(*hash, value->data, dsc_tensor_bytes(value));
        else
            DSC_TRY(hash_remote(queue, value, hash));
    }
    return DSC_OK;
}

/* Gathers the hashes of all ranks, in rank order. Collective. */
static dsc_status gather_hashes(dsc_consensus *c, uint64_t own, dsc_tensor *all, uint64_t *host) {
    dsc_tensor part = dsc_tensor_slice(&c->hashes, 0, 1);
    DSC_TRY(dsc_tensor_upload(c->queue, &own, sizeof own, &part));
    DSC_TRY(dsc_queue_sync(c->queue));
    dsc_request *request = NULL;
    DSC_TRY(dsc_comm_allgather_begin(c->comm, DSC_TRAFFIC_OTHER, &part, all, &request));
    DSC_TRY(dsc_comm_wait(&request));
    DSC_TRY(dsc_tensor_download(c->queue, all, dsc_tensor_bytes(all), host));
    return dsc_queue_sync(c->queue);
}

/* Fails with a message that names rank 0's hash and those that differ from it, at most eight of them. */
static dsc_status drifted(const uint64_t *hashes, int ranks) {
    enum { NAMED = 8 };
    char text[NAMED * 48] = "";
    size_t used = 0;
    int different = 0;
    for (int r = 1; r < ranks; r++) {
        if (hashes[r] == hashes[0])
            continue;
        if (different++ < NAMED)
            used +=
                (size_t)snprintf(text + used, sizeof text - used, ", rank %d has %016" PRIx64, r, hashes[r]);
    }
    if (different > NAMED)
        snprintf(text + used, sizeof text - used, ", and %d more differ", different - NAMED);
    return DSC_FAIL(DSC_E_NUMERIC,
                    "parameters have drifted apart: rank 0 has hash %016" PRIx64
                    "%s; %d of %d ranks differ from rank 0; go back to the last good checkpoint",
                    hashes[0], text, different, ranks);
}

static dsc_status report_drift(dsc_consensus *c, uint64_t own) {
    int64_t ranks = dsc_comm_size(c->comm);
    dsc_tensor all = {0};
    DSC_TRY(dsc_tensor_alloc(dsc_queue_device(c->queue), DSC_I64, 1, &ranks, &all));
    uint64_t *host = NULL;
    dsc_status status = dsc_memory_alloc(ranks, sizeof *host, &host);
    if (status == DSC_OK)
        status = gather_hashes(c, own, &all, host);
    if (status == DSC_OK)
        status = drifted(host, (int)ranks);
    dsc_memory_free(&host);
    dsc_tensor_free(&all);
    return status;
}

dsc_status dsc_consensus_check(dsc_consensus *consensus, dsc_queue *queue) {
    if (!consensus->table->keeps_equal)
        return DSC_OK;
    uint64_t hash = 0;
    int same = 0;
    DSC_TRY(hash_params(consensus, queue, &hash));
    DSC_TRY(dsc_consensus_is_same(consensus, hash, &same));
    if (!same)
        DSC_TRY(report_drift(consensus, hash));
    return DSC_OK;
}
