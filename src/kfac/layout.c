/* Everything that depends on whether factors are whole or split: where decompositions are stored, what is sent
 * together, which products make up a step. It is planned once and is the same on every rank of a column; what concerns
 * messages along the rows of the grid is the same on every rank.
 *
 * A parcel holds items of one owner, the largest first; a batch holds units of one column. Both end at
 * options.bucket_bytes, and the parcels of different owners (batches of different columns) take turns: while one of
 * them is sent, the next is computed. */
#include "kfac/internal.h"

#include "base/error.h"
#include "base/memory.h"

#include <stdlib.h>

/* ---- order ---- */

typedef struct entry {
    int64_t group, cost, pair, index; /* sorted by group, then by descending cost, then by pair and index */
} entry;

static int compare_entries(const void *x, const void *y) {
    const entry *a = x, *b = y;
    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    if (a->cost != b->cost)
        return a->cost > b->cost ? -1 : 1;
    if (a->pair != b->pair)
        return a->pair < b->pair ? -1 : 1;
    return (a->index > b->index) - (a->index < b->index);
}

/* Sorts the entries and writes their indices, in that order, to a new array. */
static dsc_status sort_entries(entry *entries, int64_t count, int64_t **order) {
    DSC_TRY(dsc_memory_alloc(count, sizeof **order, order));
    qsort(entries, (size_t)count, sizeof *entries, compare_entries);
    for (int64_t i = 0; i < count; i++)
        (*order)[i] = entries[i].index;
    return DSC_OK;
}

/* Compares parcels or batches, which both begin with their turn. */
static int compare_turns(const void *x, const void *y) {
    const dsc_kfac_turn *a = x, *b = y;
    if (a->round != b->round)
        return a->round < b->round ? -1 : 1;
    return (a->root > b->root) - (a->root < b->root);
}

/* ---- parcels ---- */

/* Returns 1 if all factors of units that share an A stay together. */
static int keeps_pairs(const dsc_kfac *k, const dsc_kfac_layout *layout) {
    return k->options.outer_product || dsc_kfac_pairs(k, layout);
}

/* Lists the items of this rank's column in the order they are solved: by owner, the largest first. If the two factors
 * of a unit stay together, the largest unit comes first, with those that share its A. */
static dsc_status order_items(const dsc_kfac *k, dsc_kfac_layout *layout, int64_t *count) {
    const dsc_kfac_plan *plan = layout->plan;
    entry *entries;
    DSC_TRY(dsc_memory_alloc(plan->item_count, sizeof *entries, &entries));
    *count = 0;
    for (int64_t i = 0; i < plan->item_count; i++) {
        const dsc_kfac_item *item = &plan->items[i];
        int64_t pair = plan->a_unit[item->unit];
        const dsc_kfac_unit *u = &plan->units[pair];
        if (u->column != k->my_column)
            continue;
        entries[*count] = (entry){item->owner / k->columns, item->n, 0, i};
        if (keeps_pairs(k, layout)) {
            entries[*count].cost = u->a_n + u->g_n;
            entries[*count].pair = pair;
        }
        (*count)++;
    }
    dsc_status status = sort_entries(entries, *count, &layout->order);
    dsc_memory_free(&entries);
    return status;
}

/* Carves the eigenvalues of one item and, if its basis is cut, the mean of the others. */
static void place_values(const dsc_kfac_layout *layout, int64_t rank, int cut, dsc_kfac_basis *basis,
                         int64_t *used) {
    int64_t count = rank + (cut != 0), start = *used;
    basis->stored = dsc_kfac_carve(&layout->values, used, 1, &count);
    basis->values = dsc_kfac_carve(&layout->values, &start, 1, &rank);
    basis->rest = (dsc_tensor){0};
    count = 1;
    if (cut)
        basis->rest = dsc_kfac_carve(&layout->values, &start, 1, &count);
}

void dsc_kfac_place_parcels(const dsc_kfac *k, dsc_kfac_layout *layout, int64_t used[3]) {
    int eigen = k->options.method == DSC_KFAC_EIGEN, outer = k->options.outer_product;
    int packed = !eigen && k->options.symmetric && k->rows > 1;
    for (int64_t j = 0; j < layout->parcel_count; j++) {
        dsc_kfac_parcel *p = &layout->parcels[j];
        const int64_t start[3] = {used[0], used[1], used[2]};
        for (int64_t i = p->first; i < p->first + p->count; i++) {
            const dsc_kfac_item *item = &layout->plan->items[layout->order[i]];
            const dsc_kfac_unit *u = &layout->plan->units[item->unit];
            int64_t rank = layout->upkeep ? layout->upkeep[layout->order[i]].rank : item->n;
            const int64_t shape[2] = {item->n, rank}, gradient[2] = {u->g_n, u->a_n};
            dsc_kfac_basis *basis = &layout->bases[layout->order[i]];
            basis->vectors = dsc_kfac_carve(&layout->vectors, &used[0], 2, shape);
            if (outer && item->side == DSC_KFAC_G)
                layout->outer[item->unit] = dsc_kfac_carve(&layout->vectors, &used[0], 2, gradient);
            if (eigen && (!outer || item->owner == k->rank))
                place_values(layout, rank, rank < item->n, basis, &used[1]);
            used[2] += packed ? item->n * (item->n + 1) / 2 : 0;
        }
        p->vectors = dsc_tensor_slice(&layout->vectors, start[0], used[0] - start[0]);
        if (eigen && !outer)
            p->values = dsc_tensor_slice(&layout->values, start[1], used[1] - start[1]);
        if (packed)
            p->packed = dsc_tensor_slice(&layout->packed, start[2], used[2] - start[2]);
    }
}

static dsc_status make_parcels(dsc_kfac *k, dsc_kfac_layout *layout) {
    const dsc_kfac_item *items = layout->plan->items;
    int64_t count = 0, numbers = 0, sizes[3] = {0}, used[3] = {0};
    DSC_TRY(order_items(k, layout, &count));
    DSC_TRY(dsc_memory_alloc(layout->plan->item_count, sizeof *layout->bases, &layout->bases));
    DSC_TRY(dsc_memory_alloc(k->unit_count, sizeof *layout->outer, &layout->outer));
    DSC_TRY(dsc_memory_alloc(count, sizeof *layout->parcels, &layout->parcels));
    dsc_kfac_parcel *p = NULL;
    for (int64_t i = 0; i < count; i++) {
        const dsc_kfac_item *item = &items[layout->order[i]];
        int root = item->owner / k->columns;
        int full =
            k->rows > 1 && (size_t)numbers * dsc_dtype_size(k->inverse_dtype) >= k->options.bucket_bytes;
        const int64_t *a_unit = layout->plan->a_unit;
        int joined =
            keeps_pairs(k, layout) && i > 0 && a_unit[items[layout->order[i - 1]].unit] == a_unit[item->unit];
        if (!p || p->turn.root != root || (full && !joined)) {
            int64_t round = p && p->turn.root == root ? p->turn.round + 1 : 0;
            p = &layout->parcels[layout->parcel_count++];
            *p = (dsc_kfac_parcel){.turn = {round, root}, .first = i};
            numbers = 0;
        }
        p->count++;
        numbers += item->n * item->n;
    }
    qsort(layout->parcels, (size_t)layout->parcel_count, sizeof *layout->parcels, compare_turns);
    DSC_TRY(dsc_kfac_upkeep_create(k, layout));
    dsc_kfac_place_parcels(k, layout, sizes);
    DSC_TRY(dsc_kfac_alloc(k, k->inverse_dtype, sizes[0], &layout->vectors));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, sizes[1], &layout->values));
    DSC_TRY(dsc_kfac_alloc(k, k->inverse_dtype, sizes[2], &layout->packed));
    dsc_kfac_place_parcels(k, layout, used);
    return DSC_OK;
}

/* Makes the lists, on the device, of the rows of its factor that each diagonal block consists of. */
static dsc_status make_index(dsc_kfac *k, dsc_kfac_layout *layout) {
    const dsc_kfac_plan *plan = layout->plan;
    int64_t total = 0, used = 0;
    int32_t *host;
    DSC_TRY(dsc_memory_alloc(plan->item_count, sizeof *layout->index_first, &layout->index_first));
    for (int64_t i = 0; i < plan->item_count; i++)
        total += plan->items[i].n;
    DSC_TRY(dsc_tensor_alloc(k->device, DSC_I32, 1, &total, &layout->index));
    DSC_TRY(dsc_memory_alloc(total, sizeof *host, &host));
    for (int64_t i = 0; i < plan->item_count; i++) {
        const dsc_kfac_item *item = &plan->items[i];
        const dsc_kfac_layer *l = &k->layers[plan->units[item->unit].layer];
        const dsc_kfac_kind_entry *kind = dsc_kfac_kind_of(l);
        layout->index_first[i] = used;
        for (int64_t j = item->first; j < item->first + item->n; j++)
            host[used++] = (int32_t)(item->side == DSC_KFAC_A ? kind->column(l, j) : j);
    }
    dsc_status status = dsc_tensor_upload(k->queue, host, (size_t)total * sizeof *host, &layout->index);
    if (status == DSC_OK)
        status = dsc_queue_sync(k->queue);
    dsc_memory_free(&host);
    return status;
}

/* ---- batches ---- */

/* Lists the units by column, the most expensive first. */
static dsc_status order_units(const dsc_kfac *k, dsc_kfac_layout *layout) {
    entry *entries;
    DSC_TRY(dsc_memory_alloc(k->unit_count, sizeof *entries, &entries));
    for (int64_t i = 0; i < k->unit_count; i++) {
        const dsc_kfac_unit *u = &layout->plan->units[i];
        entries[i] = (entry){u->column, u->a_n * u->g_n * (u->a_n + u->g_n), 0, i};
    }
    dsc_status status = sort_entries(entries, k->unit_count, &layout->units);
    dsc_memory_free(&entries);
    return status;
}

/* Returns the size in bytes at which batches end. It is limited if batches are sent along the rows, if vectors must be
 * converted piece by piece, and if a framework needs the memory of a batch for activations. */
static size_t batch_bytes(const dsc_kfac *k) {
    const size_t message = k->options.bucket_bytes, most = (size_t)64 << 20;
    if (k->columns > 1 || k->inverse_dtype != k->dtype)
        return message;
    return !k->any_late ? SIZE_MAX : message < most / 16 ? 16 * message : most;
}

/* P of every unit is stored in the message of its batch; both layouts order units alike. */
static dsc_status make_batches(dsc_kfac *k, dsc_kfac_layout *layout) {
    int64_t numbers = 0, used = 0;
    dsc_kfac_batch *b = NULL;
    DSC_TRY(order_units(k, layout));
    DSC_TRY(dsc_memory_alloc(k->unit_count, sizeof *layout->batches, &layout->batches));
    for (int64_t i = 0; i < k->unit_count; i++) {
        const dsc_kfac_unit *u = &layout->plan->units[layout->units[i]];
        int full = (size_t)numbers * dsc_dtype_size(k->dtype) >= batch_bytes(k);
        if (!b || b->turn.root != u->column || full) {
            int64_t round = b && b->turn.root == u->column ? b->turn.round + 1 : 0;
            b = &layout->batches[layout->batch_count++];
            *b = (dsc_kfac_batch){.turn = {round, u->column}, .first = i};
            numbers = 0;
        }
        b->count++;
        numbers += u->a_n * u->g_n;
    }
    qsort(layout->batches, (size_t)layout->batch_count, sizeof *layout->batches, compare_turns);
    for (int64_t i = 0; i < layout->batch_count; i++) {
        int64_t start = used;
        b = &layout->batches[i];
        for (int64_t j = b->first; j < b->first + b->count; j++) {
            const dsc_kfac_unit *u = &layout->plan->units[layout->units[j]];
            const int64_t dim[2] = {u->g_n, u->a_n};
            k->members[layout->units[j]].place = used - start;
            k->members[layout->units[j]].p = dsc_kfac_carve(&k->messages, &used, 2, dim);
        }
        b->message = dsc_tensor_slice(&k->messages, start, used - start);
        k->largest_batch = used - start > k->largest_batch ? used - start : k->largest_batch;
    }
    return DSC_OK;
}

/* ---- products ---- */

/* The number of elements used of a layout's blocks `first`, `loads` and `pieces`. */
typedef struct places {
    int64_t between, loads, pieces;
} places;

/* Returns the vectors of an item as the products of batch b use them: as stored, or a converted copy in `loads`, which
 * all products of the batch share. */
static dsc_tensor load_vectors(const dsc_kfac *k, dsc_kfac_layout *layout, dsc_kfac_batch *b, int64_t item,
                               places *at) {
    const dsc_tensor *stored = &layout->bases[item].vectors;
    if (k->inverse_dtype == k->dtype)
        return *stored;
    for (int64_t i = b->first_copy; i < layout->copy_count; i++)
        if (layout->copies[i].src.data == stored->data)
            return layout->copies[i].dst;
    dsc_tensor copy = dsc_kfac_carve(&layout->loads, &at->loads, 2, stored->dim);
    layout->copies[layout->copy_count++] = (dsc_convert_item){.src = *stored, .dst = copy};
    b->copy_count++;
    return copy;
}

/* Adds a cell, with QA[a,a], QG[g,g], d and p [g,a], and its products:
 *
 *   eigen     first = d QA;  p = QG' first;  p /= vG vA' + damping;  first = QG p;  p = first QA'
 *   inverse   first = d A^-1;  p = G^-1 first */
static void add_cell(const dsc_kfac *k, dsc_kfac_layout *layout, dsc_kfac_batch *b, int64_t unit,
                     int64_t a_block, int64_t g_block, places *at) {
    int64_t index = layout->cell_count++;
    int64_t a_item = dsc_kfac_a_item(layout->plan, unit) + a_block;
    int64_t g_item = dsc_kfac_g_item(layout->plan, unit) + g_block;
    int whole = dsc_kfac_a_blocks(layout->plan, unit) == 1 && layout->plan->units[unit].g_blocks == 1;
    const int64_t dim[2] = {layout->plan->items[g_item].n, layout->plan->items[a_item].n};
    dsc_kfac_cell *c = &layout->cells[index];
    *c = (dsc_kfac_cell){.unit = unit};
    c->d = k->members[c->unit].gradient.d;
    c->p = k->members[c->unit].p;
    layout->cell_of[unit] = whole ? index : -1;
    if (!whole) {
        c->d = dsc_kfac_carve(&layout->pieces, &at->pieces, 2, dim);
        c->p = dsc_kfac_carve(&layout->pieces, &at->pieces, 2, dim);
        c->rows = dsc_tensor_slice(&layout->index, layout->index_first[g_item], dim[0]);
        c->columns = dsc_tensor_slice(&layout->index, layout->index_first[a_item], dim[1]);
    }
    dsc_tensor first = dsc_kfac_carve(&layout->first, &at->between, 2, dim);
    dsc_tensor qa = load_vectors(k, layout, b, a_item, at), qg = load_vectors(k, layout, b, g_item, at);
    layout->gemms[0][index] = (dsc_gemm_item){.alpha = 1, .a = c->d, .b = qa, .c = first};
    if (k->options.method == DSC_KFAC_INVERSE) {
        layout->gemms[1][index] = (dsc_gemm_item){.alpha = 1, .a = qg, .b = first, .c = c->p};
        return;
    }
    layout->gemms[1][index] = (dsc_gemm_item){.trans_a = 1, .alpha = 1, .a = qg, .b = first, .c = c->p};
    layout->divides[index] =
        (dsc_divide_item){layout->bases[g_item].values, layout->bases[a_item].values, c->p};
    /* Where eigenvalues are small, the division magnifies the errors of the products before it, but not of those after
     * it: from here on products may be fast ones. */
    layout->gemms[2][index] = (dsc_gemm_item){.fast = 1, .alpha = 1, .a = qg, .b = c->p, .c = first};
    layout->gemms[3][index] =
        (dsc_gemm_item){.trans_b = 1, .fast = 1, .alpha = 1, .a = first, .b = qa, .c = c->p};
}

/* Makes the cells of this rank's batches: every block of G with every block of A. Batches run one after the other and
 * share memory; returns what the largest needs. While the blocks have no memory yet, it only measures them. */
static places place_cells(const dsc_kfac *k, dsc_kfac_layout *layout) {
    places most = {0};
    layout->cell_count = layout->copy_count = 0;
    for (int64_t i = 0; i < layout->batch_count; i++) {
        dsc_kfac_batch *b = &layout->batches[i];
        places at = {0};
        b->first_cell = layout->cell_count;
        b->first_copy = layout->copy_count;
        b->copy_count = 0;
        for (int64_t j = b->first; b->turn.root == k->my_column && j < b->first + b->count; j++) {
            int64_t u = layout->units[j];
            for (int64_t g = 0; g < layout->plan->units[u].g_blocks; g++)
                for (int64_t a = 0; a < dsc_kfac_a_blocks(layout->plan, u); a++)
                    add_cell(k, layout, b, u, a, g, &at);
        }
        b->cell_count = layout->cell_count - b->first_cell;
        most.between = at.between > most.between ? at.between : most.between;
        most.loads = at.loads > most.loads ? at.loads : most.loads;
        most.pieces = at.pieces > most.pieces ? at.pieces : most.pieces;
    }
    return most;
}

static dsc_status make_cells(dsc_kfac *k, dsc_kfac_layout *layout) {
    int64_t count = 0, copies = 0;
    for (int64_t u = 0; u < k->unit_count; u++) {
        const dsc_kfac_unit *unit = &layout->plan->units[u];
        int64_t blocks = dsc_kfac_a_blocks(layout->plan, u);
        count += unit->column == k->my_column ? blocks * unit->g_blocks : 0;
        copies += blocks + unit->g_blocks;
    }
    DSC_TRY(dsc_memory_alloc(count, sizeof *layout->cells, &layout->cells));
    for (int i = 0; i < 4; i++)
        DSC_TRY(dsc_memory_alloc(count, sizeof *layout->gemms[i], &layout->gemms[i]));
    DSC_TRY(dsc_memory_alloc(count, sizeof *layout->divides, &layout->divides));
    DSC_TRY(dsc_memory_alloc(copies, sizeof *layout->copies, &layout->copies));
    DSC_TRY(dsc_memory_alloc(k->unit_count, sizeof *layout->cell_of, &layout->cell_of));
    for (int64_t u = 0; u < k->unit_count; u++)
        layout->cell_of[u] = -1;
    places most = place_cells(k, layout);
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, most.between, &layout->first));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, most.loads, &layout->loads));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, most.pieces, &layout->pieces));
    place_cells(k, layout);
    return DSC_OK;
}

/* ---- a layout ---- */

dsc_status dsc_kfac_layout_create(dsc_kfac *k, dsc_kfac_layout *layout) {
    DSC_TRY(make_parcels(k, layout));
    if (layout == &k->layouts[1])
        DSC_TRY(make_index(k, layout));
    if (k->is_twin)
        return DSC_OK;
    DSC_TRY(make_batches(k, layout));
    return make_cells(k, layout);
}

int dsc_kfac_layout_has_messages(const dsc_kfac_layout *layout) {
    int found = 0;
    for (int64_t i = 0; layout->parcels && i < DSC_KFAC_PARCEL_MESSAGES * layout->parcel_count; i++)
        found |= layout->parcels[i / DSC_KFAC_PARCEL_MESSAGES].request[i % DSC_KFAC_PARCEL_MESSAGES] != NULL;
    for (int64_t i = 0; layout->batches && i < layout->batch_count; i++)
        found |= layout->batches[i].request != NULL;
    return found;
}

void dsc_kfac_layout_settle(dsc_kfac_layout *layout) {
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < DSC_KFAC_PARCEL_MESSAGES * layout->parcel_count && status == DSC_OK; i++)
        status = dsc_comm_wait(
            &layout->parcels[i / DSC_KFAC_PARCEL_MESSAGES].request[i % DSC_KFAC_PARCEL_MESSAGES]);
    for (int64_t i = 0; i < layout->batch_count && status == DSC_OK; i++)
        status = dsc_comm_wait(&layout->batches[i].request);
}

void dsc_kfac_layout_destroy(dsc_kfac_layout *layout) {
    dsc_tensor *const blocks[] = {&layout->vectors, &layout->values, &layout->packed, &layout->index,
                                  &layout->loads,   &layout->first,  &layout->pieces, &layout->notes};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        dsc_tensor_free(blocks[i]);
    void *const arrays[] = {&layout->bases,      &layout->outer,    &layout->order,       &layout->parcels,
                            &layout->copies,     &layout->units,    &layout->index_first, &layout->batches,
                            &layout->cells,      &layout->divides,  &layout->gemms[0],    &layout->gemms[1],
                            &layout->gemms[2],   &layout->gemms[3], &layout->cell_of,     &layout->upkeep,
                            &layout->notes_host, &layout->grown};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        dsc_memory_free(arrays[i]);
}
