/* What depends on how factors are cut: where decompositions lie, what travels together, which products make
 * up a step. Planned once; the same on every rank of a column, and for messages along rows on every rank.
 *
 * Parcels hold items of one owner, the largest first; batches hold units of one column. Both are cut at
 * options.bucket_bytes, and the parcels of different owners (batches of different columns) take turns: while
 * one of them travels the next is computed. */
#include "kfac/internal.h"

#include "base/error.h"
#include "base/memory.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- sorting ---- */

typedef struct entry {
    int64_t group, rank, index; /* sorted by group, then falling rank, then index */
} entry;

static int compare_entries(const void *x, const void *y) {
    const entry *a = x, *b = y;
    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    if (a->rank != b->rank)
        return a->rank > b->rank ? -1 : 1;
    return (a->index > b->index) - (a->index < b->index);
}

/* Reorders structs of `size` bytes, each with an int (its owner or column) at `offset`, that stand group by
 * group: the first of each group, then the second of each, ... */
static dsc_status take_turns(void *elements, int64_t count, size_t size, size_t offset) {
    entry *turns = NULL;
    char *from = elements, *sorted = NULL;
    DSC_TRY(dsc_memory_alloc(count, sizeof *turns, &turns));
    dsc_status status = dsc_memory_alloc(count, size, &sorted);
    for (int64_t i = 0, turn = 0, before = -1; status == DSC_OK && i < count; i++) {
        int group;
        memcpy(&group, from + (size_t)i * size + offset, sizeof group);
        turn = group == before ? turn + 1 : 0;
        before = group;
        turns[i] = (entry){turn, -group, i};
    }
    if (status == DSC_OK) {
        qsort(turns, (size_t)count, sizeof *turns, compare_entries);
        for (int64_t i = 0; i < count; i++)
            memcpy(sorted + (size_t)i * size, from + (size_t)turns[i].index * size, size);
        memcpy(from, sorted, (size_t)count * size);
    }
    dsc_memory_free(&sorted);
    dsc_memory_free(&turns);
    return status;
}

/* ---- parcels ---- */

/* 1 when decompositions travel as packed triangles. */
static int sends_packed(const dsc_kfac *k) {
    return k->options.method == DSC_KFAC_INVERSE && k->options.symmetric && k->rows > 1;
}

/* The items of my column in the order they are solved: by owner, the largest first. With the outer product
 * the two factors of a unit stay together. */
static dsc_status order_items(dsc_kfac *k, dsc_kfac_layout *layout, int64_t *count, entry **out) {
    const dsc_kfac_plan *plan = layout->plan;
    DSC_TRY(dsc_memory_alloc(plan->item_count, sizeof **out, out));
    *count = 0;
    for (int64_t i = 0; i < plan->item_count; i++) {
        const dsc_kfac_item *item = &plan->items[i];
        const dsc_kfac_unit *u = &plan->units[item->unit];
        if (u->column == k->my_column)
            (*out)[(*count)++] =
                (entry){item->owner / k->columns, k->options.outer_product ? u->a_n + u->g_n : item->n, i};
    }
    qsort(*out, (size_t)*count, sizeof **out, compare_entries);
    return DSC_OK;
}

/* 1 when a parcel may be cut before entry i: the owner changes, or it is large enough already. */
static int cut_before(const dsc_kfac *k, const dsc_kfac_plan *plan, const entry *entries, int64_t i,
                      int64_t numbers) {
    if (entries[i].group != entries[i - 1].group)
        return 1;
    int64_t unit = plan->items[entries[i].index].unit;
    if (k->options.outer_product && plan->items[entries[i - 1].index].unit == unit)
        return 0;
    size_t bytes = (size_t)numbers * dsc_dtype_size(k->inverse_dtype);
    return k->rows > 1 && bytes >= k->options.bucket_bytes;
}

static void cut_parcels(dsc_kfac *k, dsc_kfac_layout *layout, const entry *entries, int64_t count) {
    int64_t numbers = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t n = layout->plan->items[entries[i].index].n;
        if (i == 0 || cut_before(k, layout->plan, entries, i, numbers)) {
            layout->parcels[layout->parcel_count++] =
                (dsc_kfac_parcel){.root = (int)entries[i].group, .first = i};
            numbers = 0;
        }
        layout->order[i] = entries[i].index;
        layout->parcels[layout->parcel_count - 1].count++;
        numbers += n * n;
    }
}

/* 1 when this rank keeps the eigenvalues of an item. */
static int keeps_values(const dsc_kfac *k, const dsc_kfac_item *item) {
    return k->options.method == DSC_KFAC_EIGEN && (!k->options.outer_product || item->owner == k->rank);
}

static void measure_parcels(const dsc_kfac *k, const dsc_kfac_layout *layout, int64_t count,
                            int64_t sizes[3]) {
    const dsc_kfac_plan *plan = layout->plan;
    sizes[0] = sizes[1] = sizes[2] = 0;
    for (int64_t i = 0; i < count; i++) {
        const dsc_kfac_item *item = &plan->items[layout->order[i]];
        const dsc_kfac_unit *u = &plan->units[item->unit];
        sizes[0] += item->n * item->n;
        if (k->options.outer_product && item->side == DSC_KFAC_A)
            sizes[0] += u->a_n * u->g_n;
        sizes[1] += keeps_values(k, item) ? item->n : 0;
        sizes[2] += sends_packed(k) ? item->n * (item->n + 1) / 2 : 0;
    }
}

/* A parcel's piece of each block, and the items in it. */
static void place_parcel(dsc_kfac *k, dsc_kfac_layout *layout, dsc_kfac_parcel *p, int64_t used[3]) {
    const int64_t start[3] = {used[0], used[1], used[2]};
    int travels = k->options.method == DSC_KFAC_EIGEN && !k->options.outer_product;
    for (int64_t i = p->first; i < p->first + p->count; i++) {
        const dsc_kfac_item *item = &layout->plan->items[layout->order[i]];
        const dsc_kfac_unit *u = &layout->plan->units[item->unit];
        const int64_t square[2] = {item->n, item->n}, gradient[2] = {u->g_n, u->a_n};
        dsc_kfac_basis *b = &layout->bases[layout->order[i]];
        b->vectors = dsc_kfac_carve(&layout->vectors, &used[0], 2, square);
        if (k->options.outer_product && item->side == DSC_KFAC_A)
            layout->outer[item->unit] = dsc_kfac_carve(&layout->vectors, &used[0], 2, gradient);
        if (keeps_values(k, item))
            b->values = dsc_kfac_carve(&layout->values, &used[1], 1, square);
        used[2] += sends_packed(k) ? item->n * (item->n + 1) / 2 : 0;
    }
    p->vectors = dsc_tensor_slice(&layout->vectors, start[0], used[0] - start[0]);
    if (travels)
        p->values = dsc_tensor_slice(&layout->values, start[1], used[1] - start[1]);
    if (sends_packed(k))
        p->packed = dsc_tensor_slice(&layout->packed, start[2], used[2] - start[2]);
}

static dsc_status make_parcels(dsc_kfac *k, dsc_kfac_layout *layout, const entry *entries, int64_t count) {
    int64_t sizes[3], used[3] = {0};
    DSC_TRY(dsc_memory_alloc(layout->plan->item_count, sizeof *layout->bases, &layout->bases));
    DSC_TRY(dsc_memory_alloc(k->unit_count, sizeof *layout->outer, &layout->outer));
    DSC_TRY(dsc_memory_alloc(count, sizeof *layout->order, &layout->order));
    DSC_TRY(dsc_memory_alloc(count, sizeof *layout->parcels, &layout->parcels));
    cut_parcels(k, layout, entries, count);
    DSC_TRY(take_turns(layout->parcels, layout->parcel_count, sizeof *layout->parcels,
                       offsetof(dsc_kfac_parcel, root)));
    measure_parcels(k, layout, count, sizes);
    DSC_TRY(dsc_kfac_alloc(k, k->inverse_dtype, sizes[0], &layout->vectors));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, sizes[1], &layout->values));
    DSC_TRY(dsc_kfac_alloc(k, k->inverse_dtype, sizes[2], &layout->packed));
    for (int64_t i = 0; i < layout->parcel_count; i++)
        place_parcel(k, layout, &layout->parcels[i], used);
    return DSC_OK;
}

/* ---- pieces of a factor ---- */

/* Which rows of its factor a block is made of, as a list on the device. */
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
        layout->index_first[i] = used;
        for (int64_t j = item->first; j < item->first + item->n; j++)
            host[used++] = (int32_t)(item->side == DSC_KFAC_A ? dsc_kfac_natural_column(l, j) : j);
    }
    dsc_status status = dsc_tensor_upload(k->queue, host, (size_t)total * sizeof *host, &layout->index);
    if (status == DSC_OK)
        status = dsc_queue_sync(k->queue);
    dsc_memory_free(&host);
    return status;
}

/* ---- batches ---- */

static int64_t gradient_numbers(const dsc_kfac_unit *u) {
    return u->a_n * u->g_n;
}

/* Units by column, the costliest first. */
static dsc_status order_units(const dsc_kfac *k, dsc_kfac_layout *layout) {
    const dsc_kfac_plan *plan = layout->plan;
    entry *entries;
    DSC_TRY(dsc_memory_alloc(k->unit_count, sizeof *layout->units, &layout->units));
    DSC_TRY(dsc_memory_alloc(k->unit_count, sizeof *entries, &entries));
    for (int64_t i = 0; i < k->unit_count; i++) {
        const dsc_kfac_unit *u = &plan->units[i];
        entries[i] = (entry){u->column, gradient_numbers(u) * (u->a_n + u->g_n), i};
    }
    qsort(entries, (size_t)k->unit_count, sizeof *entries, compare_entries);
    for (int64_t i = 0; i < k->unit_count; i++)
        layout->units[i] = entries[i].index;
    dsc_memory_free(&entries);
    return DSC_OK;
}

/* Cut where messages are: along rows, or where vectors must be converted piece by piece. */
static dsc_status cut_batches(const dsc_kfac *k, dsc_kfac_layout *layout) {
    const dsc_kfac_plan *plan = layout->plan;
    int cutting = k->columns > 1 || k->inverse_dtype != k->dtype;
    int64_t numbers = 0;
    DSC_TRY(dsc_memory_alloc(k->unit_count, sizeof *layout->batches, &layout->batches));
    for (int64_t i = 0; i < k->unit_count; i++) {
        const dsc_kfac_unit *u = &plan->units[layout->units[i]];
        dsc_kfac_batch *last = layout->batch_count ? &layout->batches[layout->batch_count - 1] : NULL;
        int full = cutting && (size_t)numbers * dsc_dtype_size(k->dtype) >= k->options.bucket_bytes;
        if (!last || last->column != u->column || full) {
            last = &layout->batches[layout->batch_count++];
            *last = (dsc_kfac_batch){.column = u->column, .first = i};
            numbers = 0;
        }
        last->count++;
        numbers += gradient_numbers(u);
    }
    return DSC_OK;
}

/* P of every unit lies where its batch travels from. Both layouts order units alike. */
static void place_messages(dsc_kfac *k, dsc_kfac_layout *layout) {
    int64_t used = 0;
    for (int64_t i = 0; i < layout->batch_count; i++) {
        dsc_kfac_batch *b = &layout->batches[i];
        int64_t start = used;
        for (int64_t j = b->first; j < b->first + b->count; j++) {
            const dsc_kfac_unit *u = &layout->plan->units[layout->units[j]];
            const int64_t dim[2] = {u->g_n, u->a_n};
            k->members[layout->units[j]].p = dsc_kfac_carve(&k->messages, &used, 2, dim);
        }
        b->message = dsc_tensor_slice(&k->messages, start, used - start);
    }
}

/* ---- products ---- */

static int is_whole(const dsc_kfac_unit *u) {
    return u->a_blocks == 1 && u->g_blocks == 1;
}

/* Counts what the largest batch of my column needs: numbers between products, of loaded vectors, of pieces.
 */
typedef struct needs {
    int64_t cells, loaded;
    int64_t between, loads, pieces; /* of the largest batch */
} needs;

static void measure_batch(const dsc_kfac_layout *layout, dsc_kfac_batch *b, needs *all) {
    int64_t between = 0, loads = 0, pieces = 0;
    for (int64_t j = b->first; j < b->first + b->count; j++) {
        const dsc_kfac_unit *u = &layout->plan->units[layout->units[j]];
        all->cells += u->a_blocks * u->g_blocks;
        all->loaded += u->a_blocks + u->g_blocks;
        between += gradient_numbers(u);
        pieces += is_whole(u) ? 0 : 2 * gradient_numbers(u);
        for (int64_t i = 0; i < u->a_blocks + u->g_blocks; i++) {
            int64_t n = layout->plan->items[u->first_item + i].n;
            loads += n * n;
        }
    }
    all->between = between > all->between ? between : all->between;
    all->loads = loads > all->loads ? loads : all->loads;
    all->pieces = pieces > all->pieces ? pieces : all->pieces;
}

/* The vectors of an item as products use them: as stored, or converted into `loads` before. */
static dsc_tensor vectors_of(const dsc_kfac *k, dsc_kfac_layout *layout, int64_t item, int64_t *used) {
    dsc_tensor stored = layout->bases[item].vectors;
    if (k->inverse_dtype == k->dtype)
        return stored;
    dsc_tensor use = dsc_kfac_carve(&layout->loads, used, 2, stored.dim);
    layout->loaded[layout->loaded_count++] = (dsc_kfac_loaded){stored, use};
    return use;
}

/* The products of one cell, QA[a,a], QG[g,g], d and p [g,a]:
 *   eigen    first = d QA;  second = QG' first;  second / (vG vA' + damping);  first = QG second;  p = first
 * QA' inverse  first = d A^-1;  p = G^-1 first */
static void add_products(const dsc_kfac *k, dsc_kfac_layout *layout, int64_t index, const dsc_tensor *qa,
                         const dsc_tensor *qg, const dsc_tensor between[2]) {
    const dsc_kfac_cell *c = &layout->cells[index];
    const dsc_tensor *first = &between[0], *second = &between[1];
    layout->gemms[0][index] = (dsc_gemm_item){.alpha = 1, .a = c->d, .b = *qa, .c = *first};
    if (k->options.method == DSC_KFAC_INVERSE) {
        layout->gemms[1][index] = (dsc_gemm_item){.alpha = 1, .a = *qg, .b = *first, .c = c->p};
        return;
    }
    layout->gemms[1][index] = (dsc_gemm_item){.trans_a = 1, .alpha = 1, .a = *qg, .b = *first, .c = *second};
    /* Before the division errors are magnified where eigenvalues are small; after it they stay what they are.
     */
    layout->gemms[2][index] = (dsc_gemm_item){.fast = 1, .alpha = 1, .a = *qg, .b = *second, .c = *first};
    layout->gemms[3][index] =
        (dsc_gemm_item){.trans_b = 1, .fast = 1, .alpha = 1, .a = *first, .b = *qa, .c = c->p};
    layout->divides[index] =
        (dsc_divide_item){layout->bases[c->g_item].values, layout->bases[c->a_item].values, *second};
}

typedef struct places {
    int64_t first, second, loads, pieces; /* numbers used of each block */
} places;

static void add_cell(dsc_kfac *k, dsc_kfac_layout *layout, const dsc_kfac_unit *u, const int64_t block[2],
                     const dsc_tensor vectors[2], places *at) {
    int64_t index = layout->cell_count++;
    dsc_kfac_cell *c = &layout->cells[index];
    *c = (dsc_kfac_cell){.unit = layout->plan->items[u->first_item].unit,
                         .a_item = u->first_item + block[DSC_KFAC_A],
                         .g_item = u->first_item + u->a_blocks + block[DSC_KFAC_G]};
    int64_t a = layout->plan->items[c->a_item].n, g = layout->plan->items[c->g_item].n;
    const int64_t dim[2] = {g, a};
    if (is_whole(u)) {
        c->d = k->members[c->unit].d;
        c->p = k->members[c->unit].p;
    } else {
        c->d = dsc_kfac_carve(&layout->pieces, &at->pieces, 2, dim);
        c->p = dsc_kfac_carve(&layout->pieces, &at->pieces, 2, dim);
        c->rows = dsc_tensor_slice(&layout->index, layout->index_first[c->g_item], g);
        c->columns = dsc_tensor_slice(&layout->index, layout->index_first[c->a_item], a);
    }
    const dsc_tensor between[2] = {dsc_kfac_carve(&layout->first, &at->first, 2, dim),
                                   dsc_kfac_carve(&layout->second, &at->second, 2, dim)};
    add_products(k, layout, index, &vectors[DSC_KFAC_A], &vectors[DSC_KFAC_G], between);
}

/* Cells of a unit: every block of G with every block of A. */
static dsc_status add_unit(dsc_kfac *k, dsc_kfac_layout *layout, const dsc_kfac_unit *u, places *at) {
    dsc_tensor *a_vectors;
    DSC_TRY(dsc_memory_alloc(u->a_blocks, sizeof *a_vectors, &a_vectors));
    for (int64_t i = 0; i < u->a_blocks; i++)
        a_vectors[i] = vectors_of(k, layout, u->first_item + i, &at->loads);
    for (int64_t g = 0; g < u->g_blocks; g++) {
        dsc_tensor g_vectors = vectors_of(k, layout, u->first_item + u->a_blocks + g, &at->loads);
        for (int64_t a = 0; a < u->a_blocks; a++) {
            const int64_t block[2] = {[DSC_KFAC_A] = a, [DSC_KFAC_G] = g};
            const dsc_tensor vectors[2] = {[DSC_KFAC_A] = a_vectors[a], [DSC_KFAC_G] = g_vectors};
            add_cell(k, layout, u, block, vectors, at);
        }
    }
    dsc_memory_free(&a_vectors);
    return DSC_OK;
}

static dsc_status make_cells(dsc_kfac *k, dsc_kfac_layout *layout) {
    needs n = {0};
    for (int64_t i = 0; i < layout->batch_count; i++) {
        if (layout->batches[i].column == k->my_column)
            measure_batch(layout, &layout->batches[i], &n);
    }
    DSC_TRY(dsc_memory_alloc(n.cells, sizeof *layout->cells, &layout->cells));
    for (int i = 0; i < 4; i++)
        DSC_TRY(dsc_memory_alloc(n.cells, sizeof *layout->gemms[i], &layout->gemms[i]));
    DSC_TRY(dsc_memory_alloc(n.cells, sizeof *layout->divides, &layout->divides));
    DSC_TRY(dsc_memory_alloc(n.loaded, sizeof *layout->loaded, &layout->loaded));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, n.between, &layout->first));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, n.between, &layout->second));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, k->inverse_dtype == k->dtype ? 0 : n.loads, &layout->loads));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, n.pieces, &layout->pieces));
    for (int64_t i = 0; i < layout->batch_count; i++) {
        dsc_kfac_batch *b = &layout->batches[i];
        places at = {0};
        b->first_cell = layout->cell_count;
        b->first_load = layout->loaded_count;
        for (int64_t j = b->first; b->column == k->my_column && j < b->first + b->count; j++)
            DSC_TRY(add_unit(k, layout, &layout->plan->units[layout->units[j]], &at));
        b->cell_count = layout->cell_count - b->first_cell;
        b->load_count = layout->loaded_count - b->first_load;
    }
    return DSC_OK;
}

/* ---- a layout ---- */

dsc_status dsc_kfac_layout_create(dsc_kfac *k, dsc_kfac_layout *layout) {
    entry *entries = NULL;
    int64_t count = 0;
    dsc_status status = order_items(k, layout, &count, &entries);
    if (status == DSC_OK)
        status = make_parcels(k, layout, entries, count);
    dsc_memory_free(&entries);
    DSC_TRY(status);
    if (layout == &k->layouts[1])
        DSC_TRY(make_index(k, layout));
    DSC_TRY(order_units(k, layout));
    DSC_TRY(cut_batches(k, layout));
    DSC_TRY(take_turns(layout->batches, layout->batch_count, sizeof *layout->batches,
                       offsetof(dsc_kfac_batch, column)));
    place_messages(k, layout);
    return make_cells(k, layout);
}

/* What a failed step left under way still uses the memory. */
static void drain(dsc_kfac_layout *layout) {
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < layout->parcel_count && status == DSC_OK; i++)
        for (int j = 0; j < 2 && status == DSC_OK; j++)
            status = dsc_comm_wait(&layout->parcels[i].request[j]);
    for (int64_t i = 0; i < layout->batch_count && status == DSC_OK; i++)
        status = dsc_comm_wait(&layout->batches[i].request);
}

void dsc_kfac_layout_destroy(dsc_kfac_layout *layout) {
    drain(layout);
    dsc_tensor *const blocks[] = {&layout->vectors, &layout->values, &layout->packed, &layout->index,
                                  &layout->loads,   &layout->first,  &layout->second, &layout->pieces};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        dsc_tensor_free(blocks[i]);
    dsc_memory_free(&layout->bases);
    dsc_memory_free(&layout->outer);
    dsc_memory_free(&layout->order);
    dsc_memory_free(&layout->parcels);
    dsc_memory_free(&layout->index_first);
    dsc_memory_free(&layout->units);
    dsc_memory_free(&layout->batches);
    dsc_memory_free(&layout->cells);
    for (int i = 0; i < 4; i++)
        dsc_memory_free(&layout->gemms[i]);
    dsc_memory_free(&layout->divides);
    dsc_memory_free(&layout->loaded);
}
