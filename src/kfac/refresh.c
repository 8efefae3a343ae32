/* Warm refresh of the decompositions of a parcel: what is rotated and what is solved, whether a rotation is accepted,
 * and what happens if it is not.
 *
 *   solved exactly   factors of up to 128 rows, those of layers of which the last decompositions contain no batch,
 *                    and cut bases of the A described below
 *   rotated          all others: one iteration; two from update_freq 50 on; three from 100 on (whole bases);
 *                    at least three, with products in float32, for A of linear layers with one row per sample
 *   accepted         if this rank has both factors and the gradient: residuals <= 0.1 of both, or eta <= 0.3 (eta.c);
 *                    otherwise, a residual <= 0.2
 *   refused          one more iteration, now and in later refreshes; of a layer's two factors, for the one with the
 *                    larger residual
 *   still eta > 0.5 (residual > 1/3), or not finite: solved exactly
 *
 * The owner of a factor decides; its upkeep is sent with the result, so that all ranks of a column know it. */
#include "kfac/refresh.h"

#include "base/error.h"
#include "base/memory.h"

#include <math.h>

/* The largest number of elements in the memory of a wave, unless one layer needs more. */
static const int64_t host_numbers = (int64_t)1 << 27, device_numbers = (int64_t)1 << 29;

/* The limits in the first round, and after a retry. */
static const double most_eta[2] = {0.3, 0.5}, most_residual[2] = {0.2, 1.0 / 3};
static const double most_delta = 1e15; /* its square is finite in float32 */
enum { ROUNDS = 4 };

/* ---- memory ---- */

/* Returns the end of the items from `first` on that must stay together: the factors of a unit, and of those that share
 * its A, if this rank has all of them. */
static int64_t group_end(const dsc_kfac *k, const dsc_kfac_layout *layout, int64_t first, int64_t end) {
    const dsc_kfac_item *items = layout->plan->items;
    const int64_t *a_unit = layout->plan->a_unit;
    int64_t next = first + 1;
    while (dsc_kfac_pairs(k, layout) && next < end &&
           a_unit[items[layout->order[next]].unit] == a_unit[items[layout->order[first]].unit])
        next++;
    return next;
}

/* Lists items [first, end) of layout->order as the wave, without deciding what is done with them. An A is followed by
 * the G of all units that use it. */
static void list_wave(dsc_refresh_wave *w, dsc_kfac_layout *layout, int64_t first, int64_t end) {
    int pairs = dsc_kfac_pairs(w->k, layout);
    int64_t a = 0;
    w->layout = layout;
    w->first = first;
    w->count = end - first;
    w->unit_count = 0;
    for (int64_t i = 0; i < w->count; i++) {
        int64_t item = layout->order[first + i];
        const dsc_kfac_item *own = &layout->plan->items[item];
        dsc_refresh_item *t = &w->items[i];
        *t = (dsc_refresh_item){.item = item, .n = own->n, .rank = layout->upkeep[item].rank};
        if (own->side == DSC_KFAC_A)
            a = i;
        else if (pairs)
            w->units[w->unit_count++] = (dsc_refresh_unit){.a = a, .g = i, .unit = own->unit};
    }
}

/* Carves the tensors of the wave out of `memory`; returns the number of elements used. Scratch memory for rotations and
 * scratch memory for judging them overlap. If `memory` has no data, it only counts. */
static int64_t place_wave(dsc_refresh_wave *w, const dsc_tensor *memory) {
    int64_t used = 0, values = 0, rests = 0, shared, most;
    for (int64_t i = 0; i < w->count; i++) {
        dsc_refresh_item *t = &w->items[i];
        const int64_t square[2] = {t->n, t->n}, tall[2] = {t->n, t->rank};
        t->a = dsc_kfac_carve(memory, &used, 2, square);
        for (int j = 0; j < 2; j++)
            t->place[j] = dsc_kfac_carve(memory, &used, 2, tall);
    }
    shared = used;
    for (int64_t i = 0; i < w->count; i++) {
        dsc_refresh_item *t = &w->items[i];
        const int64_t tall[2] = {t->n, t->rank}, small[2] = {t->rank, t->rank};
        t->y = dsc_kfac_carve(memory, &used, 2, tall);
        t->b = dsc_kfac_carve(memory, &used, 2, small);
        t->x = dsc_kfac_carve(memory, &used, 2, small);
        t->v = dsc_tensor_slice(&w->value_memory, values, t->rank);
        values += t->rank;
        t->result = dsc_tensor_slice(&w->results, DSC_KFAC_RESULTS * i, DSC_KFAC_RESULTS);
    }
    w->values = dsc_tensor_slice(&w->value_memory, 0, values);
    for (int64_t i = 0; i < w->count; i++)
        if (w->items[i].rank < w->items[i].n)
            w->items[i].rest = dsc_tensor_slice(&w->value_memory, values + rests++, 1);
    w->rests = dsc_tensor_slice(&w->value_memory, values, rests);
    most = used;
    used = shared;
    for (int part = 0; part < 4; part++) {
        int64_t start = used;
        for (int64_t i = 0; i < w->unit_count; i++) {
            dsc_refresh_unit *u = &w->units[i];
            const int64_t dim[2] = {w->items[u->g].n, w->items[u->a].n}, space = 3 * dim[0] * dim[1];
            dsc_tensor *const parts[] = {&u->p, &u->r, &u->joined, &u->space};
            *parts[part] = dsc_kfac_carve(memory, &used, part == 3 ? 1 : 2, part == 3 ? &space : dim);
        }
        int64_t count = used - start;
        if (part < 2)
            *(part == 0 ? &w->ps : &w->rs) = dsc_kfac_carve(memory, &start, 1, &count);
    }
    return used > most ? used : most;
}

/* Returns the elements of memory that waves need: enough for the largest group of items, and for all items of a parcel
 * together if that is within the limit. */
static int64_t measure(dsc_kfac *k, dsc_kfac_layout *layout) {
    dsc_refresh_wave *w = k->wave;
    const dsc_tensor none = {.device = k->device, .dtype = k->dtype};
    int64_t limit = dsc_device_is_host(k->device) ? host_numbers : device_numbers, most = 0;
    for (int64_t j = 0; j < layout->parcel_count; j++) {
        const dsc_kfac_parcel *p = &layout->parcels[j];
        int64_t end = p->first + p->count;
        if (p->turn.root != k->my_row)
            continue;
        for (int64_t first = p->first, next; first < end; first = next) {
            next = group_end(k, layout, first, end);
            list_wave(w, layout, first, next);
            int64_t numbers = place_wave(w, &none);
            most = numbers > most ? numbers : most;
        }
        list_wave(w, layout, p->first, end);
        int64_t numbers = place_wave(w, &none);
        numbers = numbers < limit ? numbers : limit;
        most = numbers > most ? numbers : most;
    }
    return most;
}

static dsc_status make_lists(dsc_refresh_wave *w, int64_t items, int64_t units) {
    int64_t results = DSC_KFAC_RESULTS * (items > units ? items : units);
    DSC_TRY(dsc_memory_alloc(items, sizeof *w->items, &w->items));
    DSC_TRY(dsc_memory_alloc(units, sizeof *w->units, &w->units));
    DSC_TRY(dsc_memory_alloc(items, sizeof *w->chosen, &w->chosen));
    DSC_TRY(dsc_memory_alloc(items, sizeof *w->largest, &w->largest));
    DSC_TRY(dsc_memory_alloc(items, sizeof *w->smallest, &w->smallest));
    DSC_TRY(dsc_memory_alloc(results, sizeof *w->host, &w->host));
    DSC_TRY(dsc_memory_alloc(items, sizeof *w->gemms, &w->gemms));
    DSC_TRY(dsc_memory_alloc(units, sizeof *w->products, &w->products));
    DSC_TRY(dsc_memory_alloc(2 * units, sizeof *w->lists.gemms, &w->lists.gemms));
    DSC_TRY(dsc_memory_alloc(units, sizeof *w->lists.divides, &w->lists.divides));
    DSC_TRY(dsc_memory_alloc(4 * units, sizeof *w->lists.weights, &w->lists.weights));
    DSC_TRY(dsc_memory_alloc(items, sizeof *w->rotations, &w->rotations));
    DSC_TRY(dsc_memory_alloc(items, sizeof *w->orthonormals, &w->orthonormals));
    DSC_TRY(dsc_memory_alloc(items, sizeof *w->rayleighs, &w->rayleighs));
    DSC_TRY(dsc_memory_alloc(3 * units, sizeof *w->dots, &w->dots));
    return dsc_kfac_alloc(w->k, DSC_F64, results, &w->results);
}

dsc_status dsc_kfac_refresh_create(dsc_kfac *k) {
    int64_t items = 0, values = 0, stored = 0;
    if (k->options.refresh != DSC_KFAC_WARM)
        return DSC_OK;
    DSC_TRY(dsc_memory_alloc(1, sizeof *k->wave, &k->wave));
    dsc_refresh_wave *w = k->wave;
    w->k = k;
    w->queue = k->queue;
    w->exact_rows = DSC_KFAC_EXACT_ROWS;
    for (int j = 0; j < k->layout_count; j++) {
        const dsc_kfac_plan *plan = k->layouts[j].plan;
        int64_t own = 0;
        for (int64_t i = 0; i < plan->item_count; i++)
            own += plan->items[i].owner == k->rank ? plan->items[i].n : 0;
        values = own > values ? own : values;
        items = plan->item_count > items ? plan->item_count : items;
        int64_t column = 0;
        for (int64_t i = 0; i < plan->item_count; i++)
            column += plan->units[plan->items[i].unit].column == k->my_column ? plan->items[i].n : 0;
        stored = column > stored ? column : stored;
    }
    DSC_TRY(make_lists(w, items, k->unit_count));
    stored = stored > k->largest_n ? stored : k->largest_n;
    DSC_TRY(dsc_memory_alloc(stored, dsc_dtype_size(k->dtype), &w->stored));
    if (dsc_kfac_is_cut(k))
        DSC_TRY(dsc_memory_alloc(values, dsc_dtype_size(k->dtype), &w->values_host));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, values, &w->value_memory));
    for (int j = 0; j < k->layout_count; j++) {
        int64_t numbers = measure(k, &k->layouts[j]);
        w->numbers = numbers > w->numbers ? numbers : w->numbers;
    }
    return k->any_late ? DSC_OK : dsc_kfac_alloc(k, k->dtype, w->numbers, &w->memory);
}

void dsc_kfac_refresh_destroy(dsc_kfac *k) {
    dsc_refresh_wave *w = k->wave;
    if (!w)
        return;
    dsc_tensor_free(&w->memory);
    dsc_tensor_free(&w->value_memory);
    dsc_tensor_free(&w->results);
    void *const arrays[] = {
        &w->items,     &w->units,       &w->chosen,        &w->largest,       &w->host,         &w->gemms,
        &w->rotations, &w->rayleighs,   &w->products,      &w->dots,          &w->orthonormals, &w->smallest,
        &w->stored,    &w->lists.gemms, &w->lists.divides, &w->lists.weights, &w->values_host};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        dsc_memory_free(arrays[i]);
    dsc_memory_free(&k->wave);
}

size_t dsc_kfac_refresh_bytes(const dsc_kfac *k) {
    const dsc_refresh_wave *w = k->wave;
    size_t bytes = 0;
    if (w && w->memory.data)
        bytes += dsc_tensor_bytes(&w->memory);
    if (w && w->value_memory.data)
        bytes += dsc_tensor_bytes(&w->value_memory);
    return bytes;
}

dsc_status dsc_kfac_refresh_exact_rows(dsc_kfac *k, int64_t rows) {
    k->wave->exact_rows = rows;
    for (int j = 0; j < k->layout_count; j++)
        dsc_kfac_cut_plan(k, &k->layouts[j], rows);
    DSC_TRY(dsc_kfac_cut_resize(k, k->queue));
    dsc_kfac_state_resize(k);
    return DSC_OK;
}

/* ---- what is done with an item ---- */

int dsc_kfac_is_warm(const dsc_kfac *k, int layout) {
    return k->options.refresh == DSC_KFAC_WARM && k->decomposed && layout == k->active;
}

dsc_status dsc_kfac_refresh_extremes(dsc_kfac *k, dsc_queue *q, const dsc_kfac_layout *layout) {
    dsc_refresh_wave *w = k->wave;
    const double *wide = w->stored;
    const float *narrow = w->stored;
    if (!layout->values.data)
        return DSC_OK;
    DSC_TRY(dsc_tensor_download(q, &layout->values, dsc_tensor_bytes(&layout->values), w->stored));
    DSC_TRY(dsc_queue_sync(q));
    for (int64_t i = 0; i < layout->plan->item_count; i++) {
        const dsc_tensor *v = &layout->bases[i].stored;
        double largest = 0, smallest = INFINITY;
        size_t bytes = v->data ? (size_t)((const char *)v->data - (const char *)layout->values.data) : 0;
        int64_t first = (int64_t)(bytes / dsc_dtype_size(k->dtype)), end = first + (v->data ? v->dim[0] : 0);
        for (int64_t j = first; j < end; j++) {
            double value = k->dtype == DSC_F64 ? wide[j] : (double)narrow[j];
            largest = value > largest ? value : largest;
            smallest = value < smallest ? value : smallest;
        }
        w->largest[i] = largest;
        w->smallest[i] = smallest;
    }
    return DSC_OK;
}

dsc_status dsc_kfac_refresh_begin(dsc_kfac *k, dsc_queue *q, int layout) {
    dsc_refresh_wave *w = k->wave;
    if (dsc_kfac_is_cut(k)) { /* bases may have grown */
        int64_t numbers = measure(k, &k->layouts[layout]);
        if (numbers > w->numbers)
            dsc_tensor_free(&w->memory);
        w->numbers = numbers > w->numbers ? numbers : w->numbers;
    }
    if (!w->memory.data)
        DSC_TRY(dsc_kfac_alloc(k, k->dtype, w->numbers, &w->memory));
    return dsc_kfac_refresh_extremes(k, q, &k->layouts[layout]);
}

void dsc_kfac_refresh_end(dsc_kfac *k) {
    if (k->any_late)
        dsc_tensor_free(&k->wave->memory);
}

/* The largest eigenvalue is that over the blocks of the other factor; for an A, over all G of the units that use it. */
double dsc_kfac_refresh_delta(const dsc_kfac *k, const dsc_kfac_layout *layout, int64_t number) {
    const dsc_kfac_item *item = &layout->plan->items[number], *items = layout->plan->items;
    const int64_t *a_unit = layout->plan->a_unit;
    double largest = 0, damping = k->hyper.damping;
    if (!k->decomposed)
        return 0;
    if (item->side == DSC_KFAC_G) {
        int64_t first = dsc_kfac_a_item(layout->plan, item->unit);
        for (int64_t i = first; i < first + dsc_kfac_a_blocks(layout->plan, item->unit); i++)
            largest = fmax(largest, k->wave->largest[i]);
    } else {
        for (int64_t i = number; i < layout->plan->item_count; i++)
            if (items[i].side == DSC_KFAC_G && a_unit[items[i].unit] == item->unit)
                largest = fmax(largest, k->wave->largest[i]);
    }
    return damping < most_delta * largest ? damping / largest : most_delta;
}

static int64_t find_iterations(const dsc_kfac *k, const dsc_refresh_item *t, const dsc_kfac_upkeep *note) {
    int64_t gap = k->hyper.update_freq, iterations = 1;
    if (gap >= 50)
        iterations = gap >= 100 && t->rank == t->n ? 3 : 2;
    if (t->precise && iterations < 3)
        iterations = 3;
    iterations += note->extra;
    return iterations < DSC_KFAC_MOST_ITERATIONS ? iterations : DSC_KFAC_MOST_ITERATIONS;
}

static void decide(dsc_refresh_wave *w) {
    const dsc_kfac *k = w->k;
    for (int64_t i = 0; i < w->count; i++) {
        dsc_refresh_item *t = &w->items[i];
        const dsc_kfac_item *item = &w->layout->plan->items[t->item];
        int64_t layer = dsc_kfac_layer_of(k, item->unit);
        t->precise = item->side == DSC_KFAC_A && k->progress[layer].by_sample;
        t->warm = t->n > w->exact_rows && k->progress[layer].ready && !(t->precise && t->rank < t->n);
        t->delta = dsc_kfac_refresh_delta(k, w->layout, t->item);
        t->iterations = t->warm ? find_iterations(k, t, &w->layout->upkeep[t->item]) : 0;
        t->residual = NAN;
    }
    for (int64_t i = 0; i < w->unit_count; i++) {
        dsc_refresh_unit *u = &w->units[i];
        int64_t layer = dsc_kfac_layer_of(k, u->unit);
        int late = k->layers[layer].late_gradients;
        int ran = late ? k->progress[layer].present : k->progress[layer].captures > 0;
        u->active = ran && (w->items[u->a].warm || w->items[u->g].warm);
    }
}

/* ---- rounds ---- */

/* Uses the stored vectors of an item in the wave. If they have another type, a copy is added to k->converts, of which
 * *listed are in use. */
static void load_basis(dsc_refresh_wave *w, dsc_refresh_item *t, int64_t *listed) {
    const dsc_kfac_basis *basis = dsc_kfac_cut_basis(w->layout, t->item);
    t->q = basis->vectors;
    if (t->q.dtype == w->k->dtype)
        return;
    t->q = t->place[0];
    w->k->converts[(*listed)++] = (dsc_convert_item){.src = basis->vectors, .dst = t->q};
}

/* Solves the chosen items exactly, and stores the results. */
static dsc_status solve_chosen(dsc_refresh_wave *w, int64_t count) {
    int64_t listed = 0;
    if (count == 0)
        return DSC_OK;
    DSC_TRY(dsc_kfac_solve_items(w->k, w->queue, w->layout, w->chosen, count));
    for (int64_t i = 0, done = 0; i < w->count && done < count; i++) {
        dsc_refresh_item *t = &w->items[i];
        if (t->item != w->chosen[done])
            continue;
        done++;
        t->warm = t->failed = 0;
        t->residual = 0;
        t->v = dsc_kfac_cut_basis(w->layout, t->item)->values;
        t->rest = dsc_kfac_cut_basis(w->layout, t->item)->rest;
        load_basis(w, t, &listed);
    }
    return dsc_op_convert_batch(w->queue, w->k->converts, listed);
}

static dsc_status start_wave(dsc_refresh_wave *w) {
    int64_t exact = 0, listed = 0;
    decide(w);
    for (int64_t i = 0; i < w->count; i++) {
        dsc_refresh_item *t = &w->items[i];
        w->k->unpacks[i].a = t->a;
        if (t->warm)
            load_basis(w, t, &listed);
        else
            w->chosen[exact++] = t->item;
    }
    DSC_TRY(dsc_kfac_load_items(w->k, w->queue, w->layout, w->layout->order + w->first, w->count));
    DSC_TRY(dsc_op_convert_batch(w->queue, w->k->converts, listed));
    return solve_chosen(w, exact);
}

/* Returns the rotated factor of a unit with the larger residual; -1 if neither is rotated. */
static int64_t worse_factor(const dsc_refresh_wave *w, const dsc_refresh_unit *u) {
    const dsc_refresh_item *a = &w->items[u->a], *g = &w->items[u->g];
    if (!a->warm || !g->warm)
        return a->warm ? u->a : g->warm ? u->g : -1;
    return g->residual > a->residual ? u->g : u->a;
}

/* Marks the items whose results are refused in this round. */
static void find_refused(dsc_refresh_wave *w, int later) {
    for (int64_t i = 0; i < w->count; i++) {
        dsc_refresh_item *t = &w->items[i];
        t->refused = t->warm && t->pending && t->residual > most_residual[later];
        t->pending = 0;
    }
    for (int64_t i = 0; i < w->unit_count; i++) {
        dsc_refresh_unit *u = &w->units[i];
        if (u->active && u->judged)
            w->items[u->a].refused = w->items[u->g].refused = 0;
    }
    for (int64_t i = 0; i < w->unit_count; i++) {
        dsc_refresh_unit *u = &w->units[i];
        if (!u->active || !u->judged)
            continue;
        int64_t worse = worse_factor(w, u);
        if (worse >= 0 && !(u->eta <= most_eta[later]))
            w->items[worse].refused = 1;
    }
}

/* Returns the mean of the eigenvalues that a cut basis has dropped. */
static double rest_of(const dsc_refresh_item *t) {
    return fmax(0, (t->trace - t->sum) / (double)(t->n - t->rank));
}

/* Uploads these means of all rotated items in one copy. */
static dsc_status fill_rests(dsc_refresh_wave *w) {
    double *wide = w->stored;
    float *narrow = w->stored;
    int64_t count = 0;
    for (int64_t i = 0; i < w->count; i++) {
        const dsc_refresh_item *t = &w->items[i];
        if (t->rank == t->n)
            continue;
        double rest = t->warm && !t->failed ? rest_of(t) : 0;
        if (w->k->dtype == DSC_F64)
            wide[count++] = rest;
        else
            narrow[count++] = (float)rest;
    }
    if (count == 0)
        return DSC_OK;
    return dsc_tensor_upload(w->queue, w->stored, dsc_tensor_bytes(&w->rests), &w->rests);
}

/* Makes a factor whose rotation did not succeed whole from now on. */
static void keep_whole(dsc_refresh_wave *w, const dsc_refresh_item *t) {
    w->layout->upkeep[t->item].rank = t->n;
    w->layout->upkeep[t->item].whole = 1;
}

/* Gives a refused item one more iteration in the first round, and an exact solve in later ones. Only units with such an
 * item are judged again. Returns the number of refused items. */
static int64_t answer_refused(dsc_refresh_wave *w, int later, int64_t *exact) {
    int64_t refused = 0;
    for (int64_t i = 0; i < w->unit_count; i++) {
        dsc_refresh_unit *u = &w->units[i];
        u->active = u->active && (w->items[u->a].refused || w->items[u->g].refused);
    }
    for (int64_t i = 0; i < w->count; i++) {
        dsc_refresh_item *t = &w->items[i];
        if (!t->refused)
            continue;
        refused++;
        t->refused = 0;
        if (later) {
            keep_whole(w, t);
            w->chosen[(*exact)++] = t->item;
            w->k->counters[DSC_KFAC_FALLBACKS]++;
            continue;
        }
        t->iterations = t->pending = 1;
        w->layout->upkeep[t->item].extra += w->layout->upkeep[t->item].extra < DSC_KFAC_MOST_ITERATIONS;
        w->k->counters[DSC_KFAC_EXTRA_ITERATIONS]++;
    }
    return refused;
}

/* Solves the items exactly whose rotation failed. */
static dsc_status solve_failed(dsc_refresh_wave *w) {
    int64_t exact = 0;
    for (int64_t i = 0; i < w->count; i++) {
        if (!w->items[i].warm || !w->items[i].failed)
            continue;
        keep_whole(w, &w->items[i]);
        w->chosen[exact++] = w->items[i].item;
        w->k->counters[DSC_KFAC_FALLBACKS]++;
    }
    return solve_chosen(w, exact);
}

/* Adapts the ranks of cut bases. If too much is dropped, an exact solve makes a larger basis. */
static dsc_status fit_ranks(dsc_refresh_wave *w) {
    int64_t count = 0;
    if (!dsc_kfac_is_cut(w->k))
        return DSC_OK;
    for (int64_t i = 0; i < w->count; i++) {
        dsc_refresh_item *t = &w->items[i];
        double mean = t->rank < t->n ? rest_of(t) : 0;
        if (!t->warm)
            continue;
        const char *values = (const char *)w->values_host + ((char *)t->v.data - (char *)w->values.data);
        if (dsc_kfac_cut_grows(w->k, w->layout, t, values, mean))
            w->chosen[count++] = t->item;
        else
            DSC_TRY(dsc_kfac_cut_shrink(w->k, w->queue, w->layout, t, values, mean, &t->stored));
    }
    return solve_chosen(w, count);
}

/* Stores the results that were rotated and accepted. */
static dsc_status store_wave(dsc_refresh_wave *w) {
    dsc_convert_item *copies = w->k->converts;
    int64_t count = 0;
    for (int64_t i = 0; i < w->count; i++) {
        const dsc_refresh_item *t = &w->items[i];
        const dsc_kfac_basis *basis = &w->layout->bases[t->item];
        if (!t->warm)
            continue;
        w->k->counters[DSC_KFAC_REFRESHED]++;
        if (t->stored)
            continue;
        copies[count++] = (dsc_convert_item){.src = t->q, .dst = basis->vectors};
        copies[count++] = (dsc_convert_item){.src = t->v, .dst = basis->values};
        if (t->rest.data)
            copies[count++] = (dsc_convert_item){.src = t->rest, .dst = basis->rest};
    }
    return dsc_op_convert_batch(w->queue, copies, count);
}

static dsc_status refresh_wave(dsc_refresh_wave *w) {
    DSC_TRY(start_wave(w));
    for (int64_t i = 0; i < w->count; i++)
        w->items[i].pending = w->items[i].warm;
    int64_t refused = 1;
    for (int round = 0; round < ROUNDS && refused > 0; round++) {
        int64_t exact = 0;
        DSC_TRY(dsc_refresh_rotate(w));
        DSC_TRY(fill_rests(w));
        DSC_TRY(solve_failed(w));
        DSC_TRY(dsc_refresh_judge(w));
        find_refused(w, round > 0);
        refused = answer_refused(w, round > 0, &exact);
        DSC_TRY(solve_chosen(w, exact));
    }
    DSC_TRY(fit_ranks(w));
    return store_wave(w);
}

/* Returns 1 if items [first, end) of layout->order fit into the memory of the wave. */
static int fits(dsc_refresh_wave *w, dsc_kfac_layout *layout, int64_t first, int64_t end) {
    const dsc_tensor none = {.device = w->k->device, .dtype = w->k->dtype};
    list_wave(w, layout, first, end);
    return place_wave(w, &none) <= w->numbers;
}

/* Returns the end of the next wave, from `first` on: as many groups as fit, at least one. The whole rest is tried
 * first; otherwise the end is found by bisection. */
static int64_t wave_end(dsc_refresh_wave *w, dsc_kfac_layout *layout, int64_t first, int64_t end) {
    int64_t good = group_end(w->k, layout, first, end), bad = end;
    if (good == end || fits(w, layout, first, end))
        return end;
    while (group_end(w->k, layout, good, bad) < bad) { /* a group ends between the two */
        int64_t middle = group_end(w->k, layout, good + (bad - good) / 2 - 1, bad);
        if (middle == bad) /* the last group has more than half of the items */
            middle = group_end(w->k, layout, good, bad);
        if (fits(w, layout, first, middle))
            good = middle;
        else
            bad = middle;
    }
    return good;
}

dsc_status dsc_kfac_refresh_parcel(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout,
                                   const dsc_kfac_parcel *p) {
    dsc_refresh_wave *w = k->wave;
    int64_t end = p->first + p->count;
    w->queue = q;
    for (int64_t first = p->first, next; first < end; first = next) {
        next = wave_end(w, layout, first, end);
        list_wave(w, layout, first, next);
        place_wave(w, &w->memory);
        DSC_TRY(refresh_wave(w));
    }
    return DSC_OK;
}
