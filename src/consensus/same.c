/* Compares the lists of tensors that the ranks are about to average. Equal sizes are not enough: with another order
 * of the tensors, or another memory format, the average would be nonsense, without any error.
 *
 * Every tensor has a text: its name, type, shape and layout. One hash over all texts is compared first. Only if it
 * differs, the first text that differs is found by bisection over hashes of the first n texts. */
#include "consensus/same.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_SIZE = 512 };

typedef struct comparison {
    dsc_comm *comm;
    const dsc_same_list *list;
    dsc_device *host;
    uint64_t *hashes;          /* [count + 1]: hashes[n] is the hash of the first n texts */
    int64_t shortest, longest; /* the smallest and the largest number of tensors that any rank has */
    char texts[2][TEXT_SIZE];
} comparison;

static void describe(const dsc_same_list *l, int64_t i, char text[TEXT_SIZE]) {
    const dsc_tensor *t = l->params ? &l->params[i].value : &l->tensors[i];
    size_t used = 0;
    memset(text, 0, TEXT_SIZE);
    if (l->params)
        used += (size_t)snprintf(text, TEXT_SIZE / 2, "'%s' ", l->params[i].name ? l->params[i].name : "");
    if (used > TEXT_SIZE / 2 - 1)
        used = TEXT_SIZE / 2 - 1;
    used += (size_t)snprintf(text + used, TEXT_SIZE - used, "%s [", dsc_dtype_name(t->dtype));
    for (int d = 0; d < t->ndim; d++)
        used += (size_t)snprintf(text + used, TEXT_SIZE - used, "%s%" PRId64, d ? "," : "", t->dim[d]);
    used += (size_t)snprintf(text + used, TEXT_SIZE - used, "]");
    if (l->layouts && l->layouts[i])
        snprintf(text + used, TEXT_SIZE - used, ", layout %s", l->layouts[i]);
}

/* Continues `hash` with tensor i. A long layout is cut off in the text for people, but not in the hash. */
static uint64_t hash_text(const dsc_same_list *l, int64_t i, uint64_t hash, char text[TEXT_SIZE]) {
    describe(l, i, text);
    hash = dsc_hash_bytes(hash, text, strlen(text) + 1);
    if (l->layouts && l->layouts[i])
        hash = dsc_hash_bytes(hash, l->layouts[i], strlen(l->layouts[i]) + 1);
    return hash;
}

/* Replaces *value by its minimum over all ranks. Collective. */
static dsc_status min_over_ranks(comparison *c, int64_t *value) {
    const int64_t one = 1;
    dsc_tensor t = dsc_tensor_view(c->host, value, DSC_I64, 1, &one);
    return dsc_comm_allreduce(c->comm, DSC_TRAFFIC_OTHER, DSC_MIN, &t);
}

/* Sets *same to 1 if the first n texts are equal on all ranks, otherwise to 0. Collective. */
static dsc_status compare_first(comparison *c, int64_t n, int *same) {
    const int64_t two = 2;
    uint64_t hash = c->hashes[n] >> 1; /* both numbers fit into an I64 */
    int64_t both[2] = {(int64_t)hash, -(int64_t)hash};
    dsc_tensor t = dsc_tensor_view(c->host, both, DSC_I64, 1, &two);
    DSC_TRY(dsc_comm_allreduce(c->comm, DSC_TRAFFIC_OTHER, DSC_MIN, &t));
    *same = both[0] == -both[1];
    return DSC_OK;
}

/* Sets texts[0] to rank 0's text i, *rank to the first rank whose text differs, and texts[1] to that rank's text.
 * Collective. */
static dsc_status exchange_texts(comparison *c, int64_t i, int *rank) {
    const int64_t size = TEXT_SIZE;
    int own = dsc_comm_rank(c->comm);
    int64_t first = dsc_comm_size(c->comm);
    char mine[TEXT_SIZE];
    int64_t hash = (int64_t)(hash_text(c->list, i, 0, mine) >> 1), zeros = hash;
    const int64_t one = 1;
    dsc_tensor number = dsc_tensor_view(c->host, &zeros, DSC_I64, 1, &one);
    DSC_TRY(dsc_comm_broadcast(c->comm, DSC_TRAFFIC_OTHER, 0, &number));
    if (zeros != hash)
        first = own;
    DSC_TRY(min_over_ranks(c, &first));
    *rank = (int)first;
    memcpy(c->texts[0], mine, TEXT_SIZE);
    memcpy(c->texts[1], mine, TEXT_SIZE);
    for (int k = 0; k < 2; k++) {
        dsc_tensor t = dsc_tensor_view(c->host, c->texts[k], DSC_U8, 1, &size);
        DSC_TRY(dsc_comm_broadcast(c->comm, DSC_TRAFFIC_OTHER, k ? *rank : 0, &t));
    }
    return DSC_OK;
}

/* Finds and reports the first text that differs; the first `above` texts are known to differ. Collective. */
static dsc_status report_difference(comparison *c, int64_t above) {
    int64_t below = 0;
    int rank = 0;
    while (above - below > 1) {
        int same = 0;
        int64_t middle = below + (above - below) / 2;
        DSC_TRY(compare_first(c, middle, &same));
        if (same)
            below = middle;
        else
            above = middle;
    }
    DSC_TRY(exchange_texts(c, below, &rank));
    return DSC_FAIL(DSC_E_INVALID, "%s %" PRId64 " differs between ranks: rank 0 has %s, rank %d has %s; %s",
                    c->list->what, below, c->texts[0], rank, c->texts[1], c->list->remedy);
}

/* Reports that some ranks have more tensors than others; those that all ranks have are equal. Collective. */
static dsc_status report_counts(comparison *c) {
    int own = dsc_comm_rank(c->comm), ranks = dsc_comm_size(c->comm);
    int64_t least_at = c->list->count == c->shortest ? own : ranks;
    int64_t most_at = c->list->count == c->longest ? own : ranks;
    DSC_TRY(min_over_ranks(c, &least_at));
    DSC_TRY(min_over_ranks(c, &most_at));
    return DSC_FAIL(DSC_E_INVALID,
                    "rank %" PRId64 " has %" PRId64 " %ss, rank %" PRId64 " has %" PRId64
                    ", of which the first %" PRId64 " are the same; %s",
                    least_at, c->shortest, c->list->what, most_at, c->longest, c->shortest, c->list->remedy);
}

static dsc_status compare(comparison *c) {
    const dsc_same_list *l = c->list;
    int same = 0;
    dsc_device_options options;
    dsc_device_options_init(&options);
    options.name = "ref";
    DSC_TRY(dsc_device_create(&options, &c->host));
    DSC_TRY(dsc_memory_alloc(l->count + 1, sizeof *c->hashes, &c->hashes));
    for (int64_t i = 0; i < l->count; i++)
        c->hashes[i + 1] = hash_text(l, i, c->hashes[i], c->texts[0]);
    const int64_t hash = (int64_t)(c->hashes[l->count] >> 1), four = 4;
    int64_t facts[4] = {l->count, -l->count, hash, -hash};
    dsc_tensor t = dsc_tensor_view(c->host, facts, DSC_I64, 1, &four);
    DSC_TRY(dsc_comm_allreduce(c->comm, DSC_TRAFFIC_OTHER, DSC_MIN, &t));
    if (facts[0] == -facts[1] && facts[2] == -facts[3])
        return DSC_OK;
    c->shortest = facts[0];
    c->longest = -facts[1];
    DSC_TRY(compare_first(c, c->shortest, &same));
    return same ? report_counts(c) : report_difference(c, c->shortest);
}

dsc_status dsc_same_check(dsc_comm *comm, const dsc_same_list *list) {
    comparison c = {.comm = comm, .list = list};
    if (dsc_comm_size(comm) == 1)
        return DSC_OK;
    dsc_status status = compare(&c);
    dsc_memory_free(&c.hashes);
    dsc_device_destroy(&c.host);
    return status;
}
