/* What a checkpoint holds: counters, running averages as packed triangles, decompositions by item.
 *
 * The list does not depend on ranks, strategy or placement. Each entry has one owner that hands it in;
 * loading gives it to its owner (averages to everybody where everybody keeps them), and at the end
 * decompositions go around the columns as after a solve. */
#include "kfac/internal.h"

#include "base/error.h"
#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TAG = 7, NAME_SIZE = 512 };

typedef enum source_kind {
    STEP,
    DECOMPOSED,
    BLOCKS,
    FAILED,
    RETRIED,
    REJECTED,
    DAMPING,
    NUMBERS, /* so many single numbers */
    FACTOR = NUMBERS,
    VECTORS,
    VALUES
} source_kind;

struct dsc_kfac_source {
    source_kind kind;
    int64_t index; /* unit * 2 + side of a factor; item of a decomposition */
};

static const char *const number_names[NUMBERS] = {[STEP] = "step",
                                                  [DECOMPOSED] = "decomposed",
                                                  [BLOCKS] = "blocks",
                                                  [FAILED] = "failed_solves",
                                                  [RETRIED] = "retried_solves",
                                                  [REJECTED] = "rejected_factors",
                                                  [DAMPING] = "damping"};

/* ---- the list ---- */

static dsc_status add_entry(dsc_kfac_state_list *list, const dsc_kfac_entry *like, const char *name,
                            source_kind kind, int64_t index) {
    char *copy;
    DSC_TRY(dsc_memory_strdup(name, &copy));
    list->entries[list->count] = *like;
    list->entries[list->count].name = copy;
    list->sources[list->count] = (struct dsc_kfac_source){kind, index};
    list->count++;
    return DSC_OK;
}

static dsc_status add_numbers(dsc_kfac_state_list *list) {
    for (int i = 0; i < NUMBERS; i++) {
        dsc_kfac_entry entry = {.dtype = i == DAMPING ? DSC_F64 : DSC_I64};
        DSC_TRY(add_entry(list, &entry, number_names[i], (source_kind)i, 0));
    }
    return DSC_OK;
}

static dsc_status add_factors(const dsc_kfac *k, dsc_kfac_state_list *list) {
    char name[NAME_SIZE];
    for (int64_t i = 0; i < DSC_KFAC_SIDES * k->unit_count; i++) {
        dsc_kfac_entry entry = {
            .dtype = k->factor_dtype, .ndim = 1, .dim = {k->members[i / 2].factor[i % 2].packed}};
        snprintf(name, sizeof name, "%s.%c", k->layouts[0].plan->units[i / 2].name,
                 i % 2 == DSC_KFAC_A ? 'A' : 'G');
        DSC_TRY(add_entry(list, &entry, name, FACTOR, i));
    }
    return DSC_OK;
}

static dsc_status add_item(const dsc_kfac *k, const dsc_kfac_plan *plan, int64_t i,
                           dsc_kfac_state_list *list) {
    const dsc_kfac_item *item = &plan->items[i];
    const dsc_kfac_unit *u = &plan->units[item->unit];
    char name[NAME_SIZE], block[32] = "";
    char side = item->side == DSC_KFAC_A ? 'A' : 'G';
    int eigen = k->options.method == DSC_KFAC_EIGEN;
    if ((item->side == DSC_KFAC_A ? u->a_blocks : u->g_blocks) > 1)
        snprintf(block, sizeof block, ".%lld", (long long)item->block);
    dsc_kfac_entry vectors = {.dtype = k->inverse_dtype, .ndim = 2, .dim = {item->n, item->n}, .optional = 1};
    snprintf(name, sizeof name, "%s.%c.%s%s", u->name, side, eigen ? "vectors" : "inverse", block);
    DSC_TRY(add_entry(list, &vectors, name, VECTORS, i));
    if (!eigen)
        return DSC_OK;
    dsc_kfac_entry values = {.dtype = k->dtype, .ndim = 1, .dim = {item->n}, .optional = 1};
    snprintf(name, sizeof name, "%s.%c.values%s", u->name, side, block);
    return add_entry(list, &values, name, VALUES, i);
}

static dsc_status make_list(const dsc_kfac *k, const dsc_kfac_plan *plan, dsc_kfac_state_list *list) {
    int64_t most = NUMBERS + DSC_KFAC_SIDES * k->unit_count + 2 * plan->item_count;
    DSC_TRY(dsc_memory_alloc(most, sizeof *list->entries, &list->entries));
    DSC_TRY(dsc_memory_alloc(most, sizeof *list->sources, &list->sources));
    DSC_TRY(add_numbers(list));
    DSC_TRY(add_factors(k, list));
    for (int64_t i = 0; i < plan->item_count; i++)
        DSC_TRY(add_item(k, plan, i, list));
    return DSC_OK;
}

dsc_status dsc_kfac_state_create(dsc_kfac *k) {
    for (int i = 0; i < k->layout_count; i++)
        DSC_TRY(make_list(k, k->layouts[i].plan, &k->state[i]));
    k->active = k->options.diag_blocks > 1;
    return DSC_OK;
}

void dsc_kfac_state_destroy(dsc_kfac *k) {
    for (int i = 0; i < 2; i++) {
        dsc_kfac_state_list *list = &k->state[i];
        for (int64_t j = 0; j < list->count; j++) {
            char *name = (char *)(uintptr_t)list->entries[j].name;
            dsc_memory_free(&name);
        }
        dsc_memory_free(&list->entries);
        dsc_memory_free(&list->sources);
    }
}

int64_t dsc_kfac_state_count(const dsc_kfac *kfac) {
    return kfac->state[kfac->active].count;
}

const dsc_kfac_entry *dsc_kfac_state_entries(const dsc_kfac *kfac) {
    return kfac->state[kfac->active].entries;
}

static dsc_status find(dsc_kfac *k, int64_t index, const dsc_kfac_entry **entry,
                       const struct dsc_kfac_source **source) {
    const dsc_kfac_state_list *list = &k->state[k->active];
    if (index < 0 || index >= list->count)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: state entry %lld; there are 0 to %lld", (long long)index,
                        (long long)list->count - 1);
    *entry = &list->entries[index];
    *source = &list->sources[index];
    return DSC_OK;
}

/* ---- single numbers ---- */

static dsc_status get_number(dsc_kfac *k, dsc_queue *q, source_kind kind, void *host) {
    int64_t totals[3] = {0}, value;
    if (kind == FAILED || kind == RETRIED || kind == REJECTED)
        DSC_TRY(dsc_kfac_totals(k, q, totals));
    value = kind == STEP         ? k->step
            : kind == DECOMPOSED ? k->decomposed
            : kind == BLOCKS     ? (k->active ? k->options.diag_blocks : 1)
                                 : totals[kind - FAILED < 3 ? kind - FAILED : 0];
    if (host && kind == DAMPING)
        memcpy(host, &k->used_damping, sizeof k->used_damping);
    else if (host)
        memcpy(host, &value, sizeof value);
    return DSC_OK;
}

static dsc_status take_number(dsc_kfac *k, source_kind kind, int64_t value, double real) {
    const int64_t most = (int64_t)1 << 53; /* room enough to count on from */
    if (kind == DAMPING && (!isfinite(real) || real < 0))
        return DSC_FAIL(DSC_E_FORMAT, "K-FAC: state '%s' is %g: it may not be negative", number_names[kind],
                        real);
    if (value < 0 || value > most)
        return DSC_FAIL(DSC_E_FORMAT, "K-FAC: state '%s' is %lld: it must be in 0..2^53", number_names[kind],
                        (long long)value);
    if (kind == STEP)
        k->step = value;
    else if (kind == DECOMPOSED)
        k->decomposed = value > 0;
    else if (kind == BLOCKS)
        k->active = value > 1 && value == k->options.diag_blocks;
    else if (kind == DAMPING)
        k->used_damping = real;
    else
        k->counted[kind - FAILED] = k->rank == 0 ? value : 0;
    return DSC_OK;
}

/* Eight bytes from rank 0 to everybody. */
static dsc_status set_number(dsc_kfac *k, dsc_queue *q, source_kind kind, const void *host) {
    dsc_tensor t = dsc_tensor_slice(&k->gathered, 0, 1);
    int64_t value = 0;
    double real = 0;
    t.dtype = kind == DAMPING ? DSC_F64 : DSC_I64;
    if (k->rank == 0)
        DSC_TRY(dsc_tensor_upload(q, host, sizeof value, &t));
    DSC_TRY(dsc_queue_sync(q));
    DSC_TRY(dsc_comm_broadcast(k->control, DSC_TRAFFIC_OTHER, 0, &t));
    DSC_TRY(dsc_tensor_download(q, &t, sizeof value, kind == DAMPING ? (void *)&real : (void *)&value));
    DSC_TRY(dsc_queue_sync(q));
    return take_number(k, kind, value, real);
}

/* ---- tensors ---- */

/* Where an entry lives on its owner. */
static dsc_tensor *place_of(dsc_kfac *k, const struct dsc_kfac_source *s, int *owner) {
    if (s->kind == FACTOR) {
        dsc_kfac_factor *f = &k->members[s->index / 2].factor[s->index % 2];
        *owner = f->owner;
        return &f->average;
    }
    dsc_kfac_layout *layout = &k->layouts[k->active];
    *owner = layout->plan->items[s->index].owner;
    dsc_kfac_basis *b = &layout->bases[s->index];
    return s->kind == VECTORS ? &b->vectors : &b->values;
}

/* The scratch matrix, as room for an entry that is not this rank's. */
static dsc_tensor room_for(const dsc_kfac *k, const dsc_kfac_entry *entry) {
    return dsc_tensor_view(k->device, k->gram.data, entry->dtype, entry->ndim, entry->dim);
}

dsc_status dsc_kfac_state_get(dsc_kfac *kfac, dsc_queue *queue, int64_t index, void *host) {
    dsc_kfac *k = kfac;
    const dsc_kfac_entry *entry = NULL;
    const struct dsc_kfac_source *source = NULL;
    dsc_request *request = NULL;
    int owner;
    DSC_TRY(find(k, index, &entry, &source));
    if (source->kind < NUMBERS)
        return get_number(k, queue, source->kind, k->rank == 0 ? host : NULL);
    dsc_tensor *place = place_of(k, source, &owner), room = room_for(k, entry);
    DSC_TRY(dsc_queue_sync(queue));
    if (owner != 0 && k->rank == owner)
        DSC_TRY(dsc_comm_send_begin(k->control, DSC_TRAFFIC_OTHER, 0, TAG, place, &request));
    if (owner != 0 && k->rank == 0)
        DSC_TRY(dsc_comm_recv_begin(k->control, owner, TAG, &room, &request));
    DSC_TRY(dsc_comm_wait(&request));
    if (k->rank != 0)
        return DSC_OK;
    const dsc_tensor *from = owner == 0 ? place : &room;
    DSC_TRY(dsc_tensor_download(queue, from, dsc_tensor_bytes(from), host));
    return dsc_queue_sync(queue);
}

/* From rank 0's room to the owner's, or everybody's. */
static dsc_status hand_out(dsc_kfac *k, int owner, int everywhere, dsc_tensor *room) {
    dsc_request *request = NULL;
    if (everywhere)
        return dsc_comm_broadcast(k->control, DSC_TRAFFIC_OTHER, 0, room);
    if (owner == 0)
        return DSC_OK;
    if (k->rank == 0)
        DSC_TRY(dsc_comm_send_begin(k->control, DSC_TRAFFIC_OTHER, owner, TAG, room, &request));
    else if (k->rank == owner)
        DSC_TRY(dsc_comm_recv_begin(k->control, 0, TAG, room, &request));
    return dsc_comm_wait(&request);
}

/* Numbers in a half type are checked as floats, in the solvers' scratch where that is large enough. */
static dsc_status check_finite(dsc_kfac *k, dsc_queue *q, const dsc_kfac_entry *entry, dsc_tensor *t) {
    double bad = 0;
    int64_t count = dsc_tensor_count(t);
    dsc_tensor real = *t;
    if (t->dtype != k->dtype) {
        dsc_tensor *scratch = count <= dsc_tensor_count(&k->packed) ? &k->packed : &k->solve;
        if (!scratch->data || count > dsc_tensor_count(scratch))
            return DSC_OK;
        real = dsc_tensor_slice(scratch, 0, count);
        DSC_TRY(dsc_op_convert(q, t, &real));
    }
    DSC_TRY(dsc_op_fill(q, 0, &k->sum));
    DSC_TRY(dsc_op_count_nonfinite(q, &real, &k->sum));
    DSC_TRY(dsc_tensor_download(q, &k->sum, sizeof bad, &bad));
    DSC_TRY(dsc_queue_sync(q));
    if (bad > 0)
        return DSC_FAIL(DSC_E_FORMAT, "K-FAC: state '%s': %.0f of its numbers are not finite", entry->name,
                        bad);
    return DSC_OK;
}

/* Solvers leave none below 0. */
static dsc_status check_values(const dsc_kfac_entry *entry, const void *host) {
    for (int64_t i = 0; i < entry->dim[0]; i++) {
        double value = entry->dtype == DSC_F64 ? ((const double *)host)[i] : (double)((const float *)host)[i];
        if (value < 0)
            return DSC_FAIL(DSC_E_FORMAT, "K-FAC: state '%s': eigenvalue %lld is %g: it may not be negative",
                            entry->name, (long long)i, value);
    }
    return DSC_OK;
}

static dsc_status set_tensor(dsc_kfac *k, dsc_queue *q, const dsc_kfac_entry *entry,
                             const struct dsc_kfac_source *source, const void *host) {
    int owner;
    dsc_tensor *place = place_of(k, source, &owner), room = room_for(k, entry);
    int everywhere = source->kind == FACTOR && dsc_kfac_keeps_everywhere(k);
    if (k->rank == 0)
        DSC_TRY(dsc_tensor_upload(q, host, dsc_tensor_bytes(&room), &room));
    DSC_TRY(dsc_queue_sync(q));
    DSC_TRY(hand_out(k, owner, everywhere, &room));
    if (!everywhere && k->rank != owner)
        return DSC_OK;
    DSC_TRY(check_finite(k, q, entry, &room));
    DSC_TRY(dsc_op_convert(q, &room, place));
    return dsc_queue_sync(q);
}

dsc_status dsc_kfac_state_set(dsc_kfac *kfac, dsc_queue *queue, int64_t index, const void *host) {
    const dsc_kfac_entry *entry = NULL;
    const struct dsc_kfac_source *source = NULL;
    DSC_TRY(find(kfac, index, &entry, &source));
    dsc_status status = source->kind < NUMBERS ? set_number(kfac, queue, source->kind, host)
                                               : set_tensor(kfac, queue, entry, source, host);
    if (status == DSC_OK && source->kind == VALUES && kfac->rank == 0)
        status = check_values(entry, host);
    return dsc_comm_agree(kfac->control, status);
}

dsc_status dsc_kfac_state_done(dsc_kfac *kfac, dsc_queue *queue, int with_decompositions) {
    dsc_kfac *k = kfac;
    if (k->begun)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: a state is loaded between two steps, not inside one");
    k->failed_solves = k->retried_solves = 0;
    k->decomposed = k->decomposed && with_decompositions;
    k->decomposed_now = 0;
    if (k->unit_count == 0)
        return DSC_OK;
    DSC_TRY(dsc_op_fill(queue, 0, &k->bad));
    if (!k->decomposed)
        return DSC_OK;
    dsc_tensor damping = dsc_tensor_slice(&k->numbers, DSC_KFAC_DAMPING, 1);
    DSC_TRY(dsc_tensor_upload(queue, &k->used_damping, sizeof k->used_damping, &damping));
    DSC_TRY(dsc_queue_sync(queue));
    return dsc_comm_agree(k->control, dsc_kfac_share_decompositions(k, queue, k->active));
}
