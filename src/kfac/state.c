/* State for checkpoints: a list of entries, which is built once, and which reading and writing use.
 *
 *   step, decomposed, blocks, failed_solves, retried_solves, rejected_factors     I64
 *   damping                                                                       F64, of the decompositions
 *   LAYER.updates                   I64, optional     of its averages; only with options.warmup_factors
 *   refreshed_factors, extra_iterations, exact_fallbacks      I64, only with warm refresh
 *   refresh                         [items, 4]        F64, only with warm refresh: upkeep of every item;
 *                                                     named refresh.shared if units share an A
 *   next_step, next_update_freq     I64, only with options.async_steps: for the decomposition under way; 0: none
 *   next_damping                    F64, likewise
 *   LAYER.next                      I64, 1: the layer's averages contained a batch when it was started
 *   next.UNIT.A, next.UNIT.G        [n (n + 1) / 2]   the averages that are being decomposed
 *   UNIT.A, UNIT.G                  [n (n + 1) / 2]   running averages; a shared A is stored for the first unit only
 *   UNIT.A.vectors, UNIT.A.inverse  [n, n]            optional; followed by ".B" for diagonal block B
 *   UNIT.A.values                   [n]               optional, eigenvalues; the same for G
 *   LAYER.A, LAYER.G                [rows], [n (n + 1) / 2]   averages of an embedding; A is diagonal
 *   LAYER.G.vectors, LAYER.G.values, LAYER.A.values   optional, of an embedding: [n, n], [n], [rows]; the vectors are 0
 *                                                     if no decomposition has succeeded
 *   LAYER.A, LAYER.A.vectors, LAYER.A.values          of a tied head: [n (n + 1) / 2]; the others optional, as above
 *   LAYER.norm                      [3, channels]     Fisher matrices of a norm; 0: it starts with the identity
 *   UNIT.moments, UNIT.samples      [g_n, a_n], [1]   optional, with EKFAC: eigenvalues of the unit; N
 *
 * If only k of n vectors are kept, vectors are [n, k] and values [k + 1], with the mean of the others last.
 *
 * The list does not depend on ranks, strategy or placement. A tensor is read from the rank that owns it and written to
 * that rank (averages to every rank, if every rank keeps them); at the end of loading, decompositions are broadcast in
 * their columns as after a solve. */
#include "kfac/internal.h"

#include "base/error.h"
#include "base/memory.h"
#include "device/half.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TAG = 7, NAME_SIZE = 512 };

/* What an entry is: single numbers, up to NEXT_DAMPING; two numbers of a layer; a tensor (NUMBERS); the upkeep of all
 * items. */
enum {
    STEP,
    DECOMPOSED,
    BLOCKS,
    FAILED,
    RETRIED,
    REJECTED,
    DAMPING,
    REFRESHED,
    EXTRA_ITERATIONS,
    FALLBACKS,
    NEXT_STEP,
    NEXT_FREQ,
    NEXT_DAMPING,
    UPDATES,
    NEXT_LAYER,
    NUMBERS,
    UPKEEP
};
static const struct {
    const char *name;
    int counter; /* -1: none */
} numbers[NUMBERS] = {{"step", -1},
                      {"decomposed", -1},
                      {"blocks", -1},
                      {"failed_solves", DSC_KFAC_FAILED},
                      {"retried_solves", DSC_KFAC_RETRIED},
                      {"rejected_factors", DSC_KFAC_REJECTED},
                      {"damping", -1},
                      {"refreshed_factors", DSC_KFAC_REFRESHED},
                      {"extra_iterations", DSC_KFAC_EXTRA_ITERATIONS},
                      {"exact_fallbacks", DSC_KFAC_FALLBACKS},
                      {"next_step", -1},
                      {"next_update_freq", -1},
                      {"next_damping", -1},
                      {NULL, -1},
                      {NULL, -1}};

static int is_real(int number) {
    return number == DAMPING || number == NEXT_DAMPING;
}

/* Where the value of an entry is kept. */
struct dsc_kfac_source {
    int number;        /* which of the numbers; NUMBERS for a tensor; UPKEEP */
    dsc_tensor *place; /* has memory on its owner only, or everywhere */
    int owner;         /* the rank from which it is read */
    int everywhere;    /* 1: every rank keeps it */
    int values;        /* 1: eigenvalues, which may not be negative */
    int64_t layer;
    int average;  /* 1: a running average; 0: a part of a decomposition */
    int first;    /* 1: the first of its layer */
    int spread;   /* 1: loaded by every rank that has memory for it; may not be negative */
    int64_t item; /* 1 + the index of the item whose vectors or values these are; 0: none */
    int next;     /* 1: of the decomposition under way */
    int table;    /* 1: of an embedding or a tied head */
    int norm;     /* 1: of a norm */
};

/* ---- the list ---- */

static dsc_status add(dsc_kfac_state_list *list, const char *name, dsc_kfac_entry entry,
                      struct dsc_kfac_source source) {
    char *copy;
    DSC_TRY(dsc_memory_strdup(name, &copy));
    entry.name = copy;
    list->entries[list->count] = entry;
    list->sources[list->count++] = source;
    return DSC_OK;
}

static dsc_status add_item(dsc_kfac *k, dsc_kfac_layout *layout, int64_t i, dsc_kfac_state_list *list) {
    const dsc_kfac_item *item = &layout->plan->items[i];
    const dsc_kfac_unit *u = &layout->plan->units[item->unit];
    char name[NAME_SIZE], block[32] = "", side = item->side == DSC_KFAC_A ? 'A' : 'G';
    int eigen = k->options.method == DSC_KFAC_EIGEN;
    dsc_kfac_entry matrix = {.dtype = k->inverse_dtype, .ndim = 2, .dim = {item->n, item->n}, .optional = 1};
    dsc_kfac_entry vector = {.dtype = k->dtype, .ndim = 1, .dim = {item->n}, .optional = 1};
    struct dsc_kfac_source source = {.number = NUMBERS,
                                     .place = &layout->bases[i].vectors,
                                     .owner = item->owner,
                                     .layer = u->layer,
                                     .first = i == u->first_item && !u->group,
                                     .item = i + 1};
    if ((item->side == DSC_KFAC_A ? u->a_blocks : u->g_blocks) > 1)
        snprintf(block, sizeof block, ".%lld", (long long)item->block);
    snprintf(name, sizeof name, "%s.%c.%s%s", u->name, side, eigen ? "vectors" : "inverse", block);
    DSC_TRY(add(list, name, matrix, source));
    if (!eigen)
        return DSC_OK;
    source.place = &layout->bases[i].stored;
    source.values = 1;
    snprintf(name, sizeof name, "%s.%c.values%s", u->name, side, block);
    return add(list, name, vector, source);
}

/* Adds the number of updates of every layer that K-FAC covers. */
static dsc_status add_updates(dsc_kfac *k, dsc_kfac_state_list *list) {
    const dsc_kfac_entry entry = {.dtype = DSC_I64, .optional = 1};
    char name[NAME_SIZE];
    for (int64_t l = 0; k->options.warmup_factors && l < k->layer_count; l++) {
        if (!dsc_kfac_covers(k, l))
            continue;
        snprintf(name, sizeof name, "%s.updates", k->layers[l].name);
        DSC_TRY(add(list, name, entry, (struct dsc_kfac_source){.number = UPDATES, .layer = l}));
    }
    return DSC_OK;
}

static dsc_status add_moments(dsc_kfac *k, dsc_kfac_layout *layout, dsc_kfac_state_list *list) {
    char name[NAME_SIZE];
    for (int64_t i = 0; k->options.ekfac != DSC_KFAC_EKFAC_OFF && i < k->unit_count; i++) {
        const dsc_kfac_unit *u = &layout->plan->units[i];
        dsc_kfac_entry matrix = {.dtype = k->dtype, .ndim = 2, .dim = {u->g_n, u->a_n}, .optional = 1};
        dsc_kfac_entry number = {.dtype = DSC_F64, .ndim = 1, .dim = {1}, .optional = 1};
        struct dsc_kfac_source source = {.number = NUMBERS,
                                         .place = &k->moments.s[i],
                                         .owner = layout->plan->items[u->first_item].owner,
                                         .layer = u->layer,
                                         .spread = 1};
        snprintf(name, sizeof name, "%s.moments", u->name);
        DSC_TRY(add(list, name, matrix, source));
        source.place = &k->moments.samples[i];
        snprintf(name, sizeof name, "%s.samples", u->name);
        DSC_TRY(add(list, name, number, source));
    }
    return DSC_OK;
}

/* Adds the Fisher matrices of norms, which are the same on every rank. */
static dsc_status add_norms(dsc_kfac *k, dsc_kfac_state_list *list) {
    char name[NAME_SIZE];
    for (int64_t i = 0; i < k->norms.count; i++) {
        dsc_kfac_norm *norm = &k->norms.list[i];
        dsc_kfac_entry entry = {.dtype = k->dtype, .ndim = 2, .dim = {3, norm->channels}, .optional = 2};
        struct dsc_kfac_source source = {
            .number = NUMBERS, .place = &norm->f, .everywhere = 1, .layer = norm->layer, .norm = 1};
        snprintf(name, sizeof name, "%s.norm", k->layers[norm->layer].name);
        DSC_TRY(add(list, name, entry, source));
    }
    return DSC_OK;
}

/* Adds the averages of tables, and the eigenvectors and eigenvalues of G, or of A for a tied head. They are the same on
 * every rank. */
static dsc_status add_tables(dsc_kfac *k, dsc_kfac_state_list *list) {
    char name[NAME_SIZE];
    for (int64_t i = 0; i < k->tables.count; i++) {
        dsc_kfac_table *t = &k->tables.list[i];
        const struct {
            const char *name, *of_head; /* of_head: the name for a head; NULL: a head has none */
            dsc_tensor *place;
            int late;
        } parts[] = {{"A", NULL, &t->a, 0},
                     {"G", "A", &t->g, 0},
                     {"G.vectors", "A.vectors", &t->vectors, 1},
                     {"G.values", "A.values", &t->values, 1},
                     {"A.values", NULL, &t->shares, 1}};
        for (size_t j = 0; j < sizeof parts / sizeof parts[0]; j++) {
            const dsc_tensor *at = parts[j].place;
            const char *part = t->is_head ? parts[j].of_head : parts[j].name;
            if (!part)
                continue;
            dsc_kfac_entry entry = {.dtype = k->dtype,
                                    .ndim = at->ndim,
                                    .dim = {at->dim[0], at->dim[1]},
                                    .optional = parts[j].late};
            struct dsc_kfac_source source = {.number = NUMBERS,
                                             .place = parts[j].place,
                                             .everywhere = 1,
                                             .table = 1,
                                             .layer = t->layer,
                                             .values = parts[j].late && at->ndim == 1};
            if (at->ndim == 1)
                entry.dim[1] = 0;
            snprintf(name, sizeof name, "%s.%s", k->layers[t->layer].name, part);
            DSC_TRY(add(list, name, entry, source));
        }
    }
    return DSC_OK;
}

/* Adds the decomposition under way: the layers of which it contains a batch, and the averages it is made from. */
static dsc_status add_next(dsc_kfac *k, dsc_kfac_layout *layout, dsc_kfac_state_list *list) {
    dsc_kfac *twin = dsc_kfac_async_twin(k);
    char name[NAME_SIZE];
    for (int64_t l = 0; twin && l < k->layer_count; l++) {
        const dsc_kfac_entry entry = {.dtype = DSC_I64, .optional = 2};
        if (k->first_unit[l] == k->first_unit[l + 1])
            continue;
        snprintf(name, sizeof name, "%s.next", k->layers[l].name);
        DSC_TRY(add(list, name, entry, (struct dsc_kfac_source){.number = NEXT_LAYER, .layer = l}));
    }
    for (int64_t i = 0; twin && i < DSC_KFAC_SIDES * k->unit_count; i++) {
        dsc_kfac_factor *f = &twin->members[i / 2].factor[i % 2];
        if (f->shared)
            continue;
        dsc_kfac_entry entry = {.dtype = k->factor_dtype, .ndim = 1, .dim = {f->packed}, .optional = 2};
        snprintf(name, sizeof name, "next.%s.%c", layout->plan->units[i / 2].name,
                 i % 2 == DSC_KFAC_A ? 'A' : 'G');
        DSC_TRY(add(list, name, entry,
                    (struct dsc_kfac_source){.number = NUMBERS,
                                             .place = &f->average,
                                             .owner = f->owner,
                                             .everywhere = dsc_kfac_keeps_everywhere(k),
                                             .next = 1}));
    }
    return DSC_OK;
}

static dsc_status make_list(dsc_kfac *k, dsc_kfac_layout *layout, dsc_kfac_state_list *list) {
    int64_t factors = DSC_KFAC_SIDES * k->unit_count;
    int64_t most = NUMBERS + k->norms.count + 5 * k->tables.count + 1 + 2 * k->layer_count + 3 * factors +
                   2 * layout->plan->item_count;
    int warm = k->options.refresh == DSC_KFAC_WARM;
    char name[NAME_SIZE];
    DSC_TRY(dsc_memory_alloc(most, sizeof *list->entries, &list->entries));
    DSC_TRY(dsc_memory_alloc(most, sizeof *list->sources, &list->sources));
    for (int i = 0; i < UPDATES; i++) {
        dsc_kfac_entry entry = {.dtype = is_real(i) ? DSC_F64 : DSC_I64, .optional = i >= REFRESHED ? 2 : 0};
        if (i >= REFRESHED && !(i >= NEXT_STEP ? dsc_kfac_async_twin(k) != NULL : warm))
            continue;
        DSC_TRY(add(list, numbers[i].name, entry, (struct dsc_kfac_source){.number = i}));
    }
    if (warm) {
        dsc_kfac_entry entry = {.dtype = DSC_F64,
                                .ndim = 2,
                                .dim = {layout->plan->item_count, DSC_KFAC_UPKEEP_NUMBERS},
                                .optional = 2};
        /* Version 0.4 kept an A for each unit: its upkeep belongs to other items and is not read. */
        const char *entry_name = k->factor_count < factors ? "refresh.shared" : "refresh";
        DSC_TRY(add(list, entry_name, entry, (struct dsc_kfac_source){.number = UPKEEP}));
    }
    for (int64_t i = 0; i < factors; i++) {
        dsc_kfac_factor *f = &k->members[i / 2].factor[i % 2];
        if (f->shared)
            continue;
        dsc_kfac_entry entry = {.dtype = k->factor_dtype, .ndim = 1, .dim = {f->packed}};
        snprintf(name, sizeof name, "%s.%c", layout->plan->units[i / 2].name,
                 i % 2 == DSC_KFAC_A ? 'A' : 'G');
        const dsc_kfac_unit *u = &layout->plan->units[i / 2];
        DSC_TRY(add(list, name, entry,
                    (struct dsc_kfac_source){.number = NUMBERS,
                                             .place = &f->average,
                                             .owner = f->owner,
                                             .everywhere = dsc_kfac_keeps_everywhere(k),
                                             .layer = u->layer,
                                             .average = 1,
                                             .first = i % 2 == (u->a_blocks == 0) && !u->group}));
    }
    for (int64_t i = 0; i < layout->plan->item_count; i++)
        DSC_TRY(add_item(k, layout, i, list));
    DSC_TRY(add_updates(k, list));
    DSC_TRY(add_norms(k, list));
    DSC_TRY(add_tables(k, list));
    DSC_TRY(add_next(k, layout, list));
    return add_moments(k, layout, list);
}

dsc_status dsc_kfac_state_create(dsc_kfac *k) {
    for (int i = 0; i < k->layout_count; i++)
        DSC_TRY(make_list(k, &k->layouts[i], &k->state[i]));
    k->active = k->options.diag_blocks > 1;
    dsc_kfac_state_resize(k);
    return DSC_OK;
}

void dsc_kfac_state_destroy(dsc_kfac *k) {
    for (int i = 0; i < 2; i++) {
        for (int64_t j = 0; j < k->state[i].count; j++)
            dsc_memory_free(&k->state[i].entries[j].name);
        dsc_memory_free(&k->state[i].entries);
        dsc_memory_free(&k->state[i].sources);
    }
}

void dsc_kfac_state_resize(dsc_kfac *k) {
    const dsc_kfac_layout *layout = &k->layouts[0];
    for (int64_t j = 0; dsc_kfac_is_cut(k) && j < k->state[0].count; j++) {
        dsc_kfac_entry *entry = &k->state[0].entries[j];
        const struct dsc_kfac_source *s = &k->state[0].sources[j];
        if (s->item == 0)
            continue;
        int64_t rank = layout->upkeep[s->item - 1].rank, n = layout->plan->items[s->item - 1].n;
        entry->dim[entry->ndim - 1] = rank + (s->values && rank < n);
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

/* ---- numbers ---- */

/* Copies a number to `host`: one that every rank knows, or a counter, from `counters`. */
static void copy_number(const dsc_kfac *k, const struct dsc_kfac_source *s,
                        const int64_t counters[DSC_KFAC_COUNTERS], void *host) {
    int64_t value = 0;
    int number = s->number;
    double real = k->used_damping;
    const dsc_kfac *twin = dsc_kfac_async_twin(k);
    if (number == NEXT_DAMPING)
        real = k->started >= 0 ? twin->hyper.damping : 0;
    else if (numbers[number].counter >= 0)
        value = counters[numbers[number].counter];
    else if (number == STEP)
        value = k->step;
    else if (number == DECOMPOSED)
        value = k->decomposed;
    else if (number == BLOCKS)
        value = k->active ? k->options.diag_blocks : 1;
    else if (number == UPDATES)
        value = k->progress[s->layer].updates;
    else if (number == NEXT_STEP)
        value = k->started + 1;
    else if (number == NEXT_FREQ)
        value = k->started >= 0 ? twin->hyper.update_freq : 0;
    else if (number == NEXT_LAYER)
        value = k->started >= 0 && twin->progress[s->layer].contributed;
    memcpy(host, is_real(number) ? (const void *)&real : &value, sizeof value);
}

/* Copies a number to `host` on rank 0. Collective for counters, which are sums over the ranks. */
static dsc_status get_number(dsc_kfac *k, dsc_queue *q, const struct dsc_kfac_source *s, void *host) {
    int64_t totals[DSC_KFAC_COUNTERS] = {0};
    if (numbers[s->number].counter >= 0)
        DSC_TRY(dsc_kfac_totals(k, q, totals));
    if (k->rank == 0)
        copy_number(k, s, totals, host);
    return DSC_OK;
}

/* Broadcasts a number from rank 0 and sets it on every rank. */
static dsc_status set_number(dsc_kfac *k, dsc_queue *q, const dsc_kfac_entry *entry,
                             const struct dsc_kfac_source *s, const void *host) {
    const int64_t most = (int64_t)1 << 53; /* leaves enough room to count further */
    int number = s->number;
    dsc_tensor t = dsc_tensor_slice(&k->gathered, 0, 1);
    int64_t value = 0;
    double real = 0;
    dsc_kfac *twin = dsc_kfac_async_twin(k);
    t.dtype = is_real(number) ? DSC_F64 : DSC_I64;
    if (k->rank == 0)
        DSC_TRY(dsc_tensor_upload(q, host, sizeof value, &t));
    DSC_TRY(dsc_queue_sync(q));
    DSC_TRY(dsc_comm_broadcast(k->control, DSC_TRAFFIC_OTHER, 0, &t));
    DSC_TRY(dsc_tensor_download(q, &t, sizeof value, is_real(number) ? (void *)&real : (void *)&value));
    DSC_TRY(dsc_queue_sync(q));
    if (!isfinite(real) || real < 0)
        return DSC_FAIL(DSC_E_FORMAT, "K-FAC: state '%s' is %g: it may not be negative", entry->name, real);
    if (value < 0 || value > most)
        return DSC_FAIL(DSC_E_FORMAT, "K-FAC: state '%s' is %lld: it must be in 0..2^53", entry->name,
                        (long long)value);
    if (number == STEP)
        k->step = value;
    else if (number == DECOMPOSED)
        k->decomposed = value > 0;
    else if (number == BLOCKS)
        k->active = value > 1 && value == k->options.diag_blocks;
    else if (number == DAMPING)
        k->used_damping = real;
    else if (number == UPDATES)
        k->progress[s->layer].updates = value;
    else if (number == NEXT_STEP)
        k->started = value - 1;
    else if (number == NEXT_FREQ)
        twin->hyper.update_freq = value;
    else if (number == NEXT_DAMPING)
        twin->hyper.damping = real;
    else if (number == NEXT_LAYER)
        twin->progress[s->layer].contributed = value > 0;
    else
        k->counted[numbers[number].counter] = k->rank == 0 ? value : 0;
    return DSC_OK;
}

/* ---- tensors ---- */

/* Returns the scratch matrix as memory for an entry on ranks that do not keep it. */
static dsc_tensor scratch_for(const dsc_kfac *k, const dsc_kfac_entry *entry) {
    return dsc_tensor_view(k->device, k->gram.data, entry->dtype, entry->ndim, entry->dim);
}

dsc_status dsc_kfac_state_get(dsc_kfac *kfac, dsc_queue *queue, int64_t index, void *host) {
    dsc_kfac *k = kfac;
    const dsc_kfac_entry *entry = NULL;
    const struct dsc_kfac_source *s = NULL;
    dsc_request *request = NULL;
    DSC_TRY(find(k, index, &entry, &s));
    if (s->number < NUMBERS)
        return get_number(k, queue, s, host);
    if (s->number == UPKEEP)
        return dsc_kfac_upkeep_get(k, queue, 0, host);
    dsc_tensor scratch = scratch_for(k, entry);
    DSC_TRY(dsc_queue_sync(queue));
    if (s->owner != 0 && k->rank == s->owner)
        DSC_TRY(dsc_comm_send_begin(k->control, DSC_TRAFFIC_OTHER, 0, TAG, s->place, &request));
    if (s->owner != 0 && k->rank == 0)
        DSC_TRY(dsc_comm_recv_begin(k->control, s->owner, TAG, &scratch, &request));
    DSC_TRY(dsc_comm_wait(&request));
    if (k->rank != 0)
        return DSC_OK;
    const dsc_tensor *from = s->owner == 0 ? s->place : &scratch;
    DSC_TRY(dsc_tensor_download(queue, from, dsc_tensor_bytes(from), host));
    return dsc_queue_sync(queue);
}

dsc_status dsc_kfac_state_get_own(dsc_kfac *kfac, dsc_queue *queue, int64_t index, void *host, int *held) {
    dsc_kfac *k = kfac;
    const dsc_kfac_entry *entry = NULL;
    const struct dsc_kfac_source *s = NULL;
    DSC_TRY(find(k, index, &entry, &s));
    *held = 1;
    if (s->number < NUMBERS) {
        int64_t counters[DSC_KFAC_COUNTERS];
        for (int i = 0; i < DSC_KFAC_COUNTERS; i++)
            counters[i] = k->counted[i] + k->counters[i];
        copy_number(k, s, counters, host);
        return DSC_OK;
    }
    if (s->number == UPKEEP) {
        *held = dsc_kfac_keeps_everywhere(k);
        return *held ? dsc_kfac_upkeep_get(k, queue, 1, host) : DSC_OK;
    }
    *held = s->place->data != NULL;
    if (!*held)
        return DSC_OK;
    DSC_TRY(dsc_tensor_download(queue, s->place, dsc_tensor_bytes(s->place), host));
    return dsc_queue_sync(queue);
}

/* Checks that all elements are finite. Those of another type than K-FAC's are converted for this, a piece at a time;
 * only units have such entries, so there is memory for a packed factor. */
static dsc_status check_finite(dsc_kfac *k, dsc_queue *q, const dsc_kfac_entry *entry, const dsc_tensor *t) {
    const int64_t count = dsc_tensor_count(t),
                  most = t->dtype == k->dtype ? count : dsc_tensor_count(&k->packed);
    double bad = 0;
    DSC_TRY(dsc_op_fill(q, 0, &k->sum));
    for (int64_t first = 0; first < count; first += most) {
        const int64_t left = count - first;
        dsc_tensor piece = dsc_tensor_slice(t, first, left < most ? left : most), real = piece;
        if (t->dtype != k->dtype) {
            real = dsc_tensor_slice(&k->packed, 0, dsc_tensor_count(&piece));
            DSC_TRY(dsc_op_convert(q, &piece, &real));
        }
        DSC_TRY(dsc_op_count_nonfinite(q, &real, &k->sum));
    }
    DSC_TRY(dsc_tensor_download(q, &k->sum, sizeof bad, &bad));
    DSC_TRY(dsc_queue_sync(q));
    if (bad > 0)
        return DSC_FAIL(DSC_E_FORMAT, "K-FAC: state '%s': %.0f of its numbers are not finite", entry->name,
                        bad);
    return DSC_OK;
}

/* Checks that no value is negative: solvers clamp eigenvalues at 0, and second moments are not negative. */
static dsc_status check_values(const dsc_kfac_entry *entry, const void *host) {
    int64_t count = entry->dim[0] * (entry->ndim == 2 ? entry->dim[1] : 1);
    for (int64_t i = 0; i < count; i++) {
        double value = entry->dtype == DSC_F64 ? ((const double *)host)[i] : (double)((const float *)host)[i];
        if (value < 0)
            return DSC_FAIL(DSC_E_FORMAT, "K-FAC: state '%s': eigenvalue %lld is %g: it may not be negative",
                            entry->name, (long long)i, value);
    }
    return DSC_OK;
}

/* Returns element i of an array of any floating-point type. */
static double number_at(dsc_dtype dtype, const void *host, int64_t i) {
    switch (dtype) {
    case DSC_F64:
        return ((const double *)host)[i];
    case DSC_BF16:
        return (double)dsc_bf16_to_float(((const uint16_t *)host)[i]);
    case DSC_F16:
        return (double)dsc_f16_to_float(((const uint16_t *)host)[i]);
    default:
        return (double)((const float *)host)[i];
    }
}

/* Returns 1 if an entry is what it was before the first batch: the identity as a packed triangle or as a matrix (for an
 * inverse, a multiple of it), or the eigenvalues of the identity. */
static int is_untouched(const dsc_kfac_entry *entry, const struct dsc_kfac_source *s, const void *host) {
    double one = s->average || s->values ? 1 : number_at(entry->dtype, host, 0);
    int64_t count = entry->dim[0] * (entry->ndim == 2 ? entry->dim[1] : 1), diagonal = 0, row = 0;
    for (int64_t i = 0; i < count; i++) {
        int on = s->values || i == diagonal;
        if (number_at(entry->dtype, host, i) != (on ? one : 0))
            return 0;
        if (on)
            diagonal += s->average ? ++row + 1 : entry->ndim == 2 ? entry->dim[1] + 1 : 1;
    }
    return 1;
}

/* Returns 1 if the matrices [3, channels] of a norm are those before the first batch. */
static int is_identity(const dsc_kfac_entry *entry, const void *host) {
    int64_t c = entry->dim[1];
    for (int64_t i = 0; i < 3 * c; i++)
        if (number_at(entry->dtype, host, i) != (i / c == 1 ? 0 : 1))
            return 0;
    return 1;
}

/* Returns 1 if all elements of a matrix are 0: those of a norm that the state lacks, or eigenvectors that were never
 * computed. */
static int is_zero(const dsc_kfac_entry *entry, const void *host) {
    for (int64_t i = 0; i < entry->dim[0] * entry->dim[1]; i++)
        if (number_at(entry->dtype, host, i) != 0)
            return 0;
    return 1;
}

/* On rank 0, copies an entry from host memory. A norm that the state lacks starts with the identity. */
static dsc_status upload(dsc_queue *q, const dsc_kfac_entry *entry, const struct dsc_kfac_source *s,
                         const void *host, dsc_tensor *to) {
    if (!s->norm || !is_zero(entry, host))
        return dsc_tensor_upload(q, host, dsc_tensor_bytes(to), to);
    int64_t count = dsc_tensor_count(to);
    dsc_tensor all = dsc_tensor_view(to->device, to->data, to->dtype, 1, &count);
    dsc_tensor middle = dsc_tensor_slice(&all, entry->dim[1], entry->dim[1]);
    DSC_TRY(dsc_op_fill(q, 1, &all));
    return dsc_op_fill(q, 0, &middle);
}

/* Records on rank 0 which layers' averages and decompositions contain a batch. With eigenvectors, the eigenvalues show
 * whether they do. */
static void note_touched(dsc_kfac *k, const dsc_kfac_entry *entry, const struct dsc_kfac_source *s,
                         const void *host) {
    dsc_kfac_progress *p = &k->progress[s->layer];
    int *flag = s->average ? &p->contributed : &p->ready, touched = 0;
    if (s->average || s->values || k->options.method == DSC_KFAC_INVERSE)
        touched = !is_untouched(entry, s, host);
    *flag = (s->first && !s->values ? 0 : *flag) | touched;
}

/* The same for a table: its eigenvectors are 0 as long as no decomposition of it has succeeded. */
static void note_table(dsc_kfac *k, const dsc_kfac_entry *entry, const struct dsc_kfac_source *s,
                       const void *host) {
    k->progress[s->layer].contributed = 1;
    if (entry->ndim == 2)
        k->progress[s->layer].ready = !is_zero(entry, host);
}

/* Broadcasts what rank 0 has recorded. */
static dsc_status share_touched(dsc_kfac *k, dsc_queue *q) {
    int64_t n = k->layer_count;
    size_t bytes = dsc_tensor_bytes(&k->ran);
    for (int64_t l = 0; l < n; l++) {
        k->ran_host[l] = k->progress[l].contributed;
        k->ran_host[n + l] = k->progress[l].ready && k->decomposed;
    }
    DSC_TRY(dsc_tensor_upload(q, k->ran_host, bytes, &k->ran));
    DSC_TRY(dsc_queue_sync(q));
    DSC_TRY(dsc_comm_broadcast(k->control, DSC_TRAFFIC_OTHER, 0, &k->ran));
    DSC_TRY(dsc_tensor_download(q, &k->ran, bytes, k->ran_host));
    DSC_TRY(dsc_queue_sync(q));
    k->any_ready = 0;
    for (int64_t l = 0; l < n; l++) {
        k->progress[l].contributed = k->ran_host[l];
        k->progress[l].ready = k->ran_host[n + l];
        k->any_ready |= k->progress[l].ready;
    }
    return DSC_OK;
}

/* Copies an entry from rank 0's host memory to the scratch matrix of its owner, or of every rank, and from there to its
 * place. */
static dsc_status set_tensor(dsc_kfac *k, dsc_queue *q, const dsc_kfac_entry *entry,
                             const struct dsc_kfac_source *s, const void *host) {
    dsc_tensor scratch = scratch_for(k, entry);
    dsc_request *request = NULL;
    if (k->rank == 0)
        DSC_TRY(upload(q, entry, s, host, &scratch));
    DSC_TRY(dsc_queue_sync(q));
    if (s->everywhere || s->spread)
        DSC_TRY(dsc_comm_broadcast(k->control, DSC_TRAFFIC_OTHER, 0, &scratch));
    else if (s->owner != 0 && k->rank == 0)
        DSC_TRY(dsc_comm_send_begin(k->control, DSC_TRAFFIC_OTHER, s->owner, TAG, &scratch, &request));
    else if (s->owner != 0 && k->rank == s->owner)
        DSC_TRY(dsc_comm_recv_begin(k->control, 0, TAG, &scratch, &request));
    DSC_TRY(dsc_comm_wait(&request));
    if (s->everywhere || k->rank == s->owner || (s->spread && s->place->data)) {
        DSC_TRY(check_finite(k, q, entry, &scratch));
        DSC_TRY(dsc_op_convert(q, &scratch, s->place));
        DSC_TRY(dsc_queue_sync(q));
    }
    if (k->rank != 0 || s->next)
        return DSC_OK;
    if (s->table)
        note_table(k, entry, s, host);
    else if (s->norm)
        k->progress[s->layer].contributed = !is_identity(entry, host) && !is_zero(entry, host);
    else
        note_touched(k, entry, s, host);
    return s->values || s->spread ? check_values(entry, host) : DSC_OK;
}

dsc_status dsc_kfac_state_set(dsc_kfac *kfac, dsc_queue *queue, int64_t index, const void *host) {
    const dsc_kfac_entry *entry = NULL;
    const struct dsc_kfac_source *s = NULL;
    DSC_TRY(find(kfac, index, &entry, &s));
    dsc_status status = DSC_OK;
    dsc_kfac_async_wait(kfac);
    if (s->number < NUMBERS)
        status = set_number(kfac, queue, entry, s, host);
    else if (s->number == UPKEEP)
        status = dsc_kfac_upkeep_set(kfac, queue, host);
    else
        status = set_tensor(kfac, queue, entry, s, host);
    return dsc_comm_agree(kfac->control, status);
}

dsc_status dsc_kfac_state_done(dsc_kfac *kfac, dsc_queue *queue, int with_decompositions) {
    dsc_kfac *k = kfac;
    if (k->begun)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: a state is loaded between two steps, not inside one");
    memset(k->counters, 0, sizeof k->counters);
    k->decomposed = k->decomposed && with_decompositions;
    k->decomposed_now = 0;
    dsc_kfac_health_forget(k);
    dsc_kfac_async_wait(k);
    if (!k->decomposed)
        k->started = -1; /* it runs only while steps use earlier decompositions, and there are none */
    if (k->unit_count == 0)
        return DSC_OK;
    DSC_TRY(dsc_op_fill(queue, 0, &k->bad));
    DSC_TRY(dsc_comm_agree(k->control, share_touched(k, queue)));
    dsc_kfac_tables_loaded(k);
    if (!with_decompositions)
        dsc_kfac_updates_guess(k);
    if (!k->decomposed)
        return DSC_OK;
    dsc_tensor damping = dsc_tensor_slice(&k->numbers, DSC_KFAC_DAMPING, 1);
    DSC_TRY(dsc_tensor_upload(queue, &k->used_damping, sizeof k->used_damping, &damping));
    DSC_TRY(dsc_queue_sync(queue));
    DSC_TRY(dsc_comm_agree(k->control, dsc_kfac_share_decompositions(k, queue, k->active)));
    DSC_TRY(dsc_kfac_ekfac_share(k, queue));
    return dsc_kfac_async_resume(k, queue);
}
