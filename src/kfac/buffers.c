/* Device memory, allocated once in large blocks, and where factors and gradients are stored in them. */
#include "kfac/internal.h"

#include "base/error.h"
#include "base/memory.h"

/* The largest number of elements of matrices that are solved together, unless one matrix per thread takes more. */
enum { WAVE_NUMBERS = 1 << 26 };

dsc_tensor dsc_kfac_carve(const dsc_tensor *block, int64_t *used, int ndim, const int64_t *dim) {
    char *data = block->data;
    dsc_tensor t = dsc_tensor_view(block->device, NULL, block->dtype, ndim, dim);
    if (data)
        t.data = data + (size_t)*used * dsc_dtype_size(block->dtype);
    *used += dsc_tensor_count(&t);
    return t;
}

dsc_status dsc_kfac_reserve(const dsc_kfac *k, size_t bytes, dsc_tensor *work) {
    int64_t count = (int64_t)bytes > 1 ? (int64_t)bytes : 1;
    if (work->data && dsc_tensor_bytes(work) >= bytes)
        return DSC_OK;
    dsc_tensor_free(work);
    *work = (dsc_tensor){0};
    return dsc_tensor_alloc(k->device, DSC_U8, 1, &count, work);
}

dsc_status dsc_kfac_alloc(const dsc_kfac *k, dsc_dtype dtype, int64_t count, dsc_tensor *out) {
    return count > 0 ? dsc_tensor_alloc(k->device, dtype, 1, &count, out) : DSC_OK;
}

/* ---- members ---- */

/* The backward pass runs from the last layer to the first, and factors are sent in that order: slots count from the
 * last unit. */
static void describe_factors(dsc_kfac *k, int64_t unit) {
    const dsc_kfac_plan *plan = k->layouts[0].plan;
    const dsc_kfac_unit *u = &plan->units[unit];
    for (int side = 0; side < DSC_KFAC_SIDES; side++) {
        dsc_kfac_factor *f = &k->members[unit].factor[side];
        f->n = side == DSC_KFAC_A ? u->a_n : u->g_n;
        f->packed = f->n * (f->n + 1) / 2;
        f->layer = u->layer;
        f->shared = side == DSC_KFAC_A && plan->a_unit[unit] != unit;
        f->slot = f->owner = -1;
        if (f->shared)
            continue;
        f->slot = k->factor_count++;
        f->owner = plan->items[side == DSC_KFAC_A ? u->first_item : dsc_kfac_g_item(plan, unit)].owner;
        f->held = dsc_kfac_keeps_everywhere(k) || f->owner == k->rank;
        if (f->n > k->largest_n)
            k->largest_n = f->n;
    }
    k->largest_packed = k->largest_n * (k->largest_n + 1) / 2;
}

/* ---- factors ---- */

static dsc_status place_averages(dsc_kfac *k) {
    int64_t total = 0, used = 0;
    for (int64_t i = 0; i < DSC_KFAC_SIDES * k->unit_count; i++) {
        const dsc_kfac_factor *f = &k->members[i / 2].factor[i % 2];
        total += f->held ? f->packed : 0;
    }
    DSC_TRY(dsc_kfac_alloc(k, k->factor_dtype, total, &k->averages));
    for (int64_t i = 0; i < DSC_KFAC_SIDES * k->unit_count; i++) {
        dsc_kfac_factor *f = &k->members[i / 2].factor[i % 2];
        if (f->held)
            f->average = dsc_kfac_carve(&k->averages, &used, 1, &f->packed);
    }
    return DSC_OK;
}

/* Returns the number of elements that a batch factor takes while it waits. */
static int64_t batch_numbers(const dsc_kfac *k, const dsc_kfac_factor *f) {
    return f->shared ? 0 : k->options.symmetric ? f->packed : f->n * f->n;
}

/* Places batch factors in the order in which they are sent, those with the same destination next to each other, so
 * that buckets need no copies. */
static dsc_status place_batches(dsc_kfac *k) {
    int64_t total = 0, used = 0;
    int everywhere = dsc_kfac_keeps_everywhere(k), symmetric = k->options.symmetric;
    /* A single capture can update the average at once. On a GPU that takes more launches than updating all averages
     * together, but a framework needs the memory for activations. */
    int at_once = dsc_device_is_host(k->device) || k->any_late;
    if (k->is_twin)
        return DSC_OK;
    if (k->ranks == 1 && k->options.passes == 1 && at_once && !k->options.late_factors)
        return DSC_OK;
    for (int64_t i = 0; i < DSC_KFAC_SIDES * k->unit_count; i++)
        total += batch_numbers(k, &k->members[i / 2].factor[i % 2]);
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, total, &k->batches));
    for (int root = 0; root < (everywhere ? 1 : k->ranks); root++) {
        for (int64_t i = 0; i < DSC_KFAC_SIDES * k->unit_count; i++) {
            dsc_kfac_factor *f = &k->members[k->unit_count - 1 - i / 2].factor[i % 2];
            const int64_t square[2] = {f->n, f->n};
            if (!f->shared && (everywhere || f->owner == root))
                f->batch =
                    dsc_kfac_carve(&k->batches, &used, symmetric ? 1 : 2, symmetric ? &f->packed : square);
        }
    }
    return DSC_OK;
}

dsc_status dsc_kfac_wait_memory(dsc_kfac *k, int64_t layer) {
    int64_t total = 0, used = 0, first = DSC_KFAC_SIDES * k->first_unit[layer];
    int64_t end = DSC_KFAC_SIDES * k->first_unit[layer + 1];
    int symmetric = k->options.symmetric;
    if (first == end || k->members[first / 2].factor[DSC_KFAC_G].batch.data)
        return DSC_OK;
    for (int64_t i = first; i < end; i++)
        total += batch_numbers(k, &k->members[i / 2].factor[i % 2]);
    dsc_tensor *block = &k->progress[layer].batch;
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, total, block));
    for (int64_t i = first; i < end; i++) {
        dsc_kfac_factor *f = &k->members[i / 2].factor[i % 2];
        const int64_t square[2] = {f->n, f->n};
        if (f->shared)
            continue;
        f->batch = dsc_kfac_carve(block, &used, symmetric ? 1 : 2, symmetric ? &f->packed : square);
    }
    return DSC_OK;
}

/* Averages start as the identity. */
static dsc_status start_averages(dsc_kfac *k) {
    DSC_TRY(dsc_op_fill(k->queue, 1, &k->sum));
    for (int64_t i = 0; i < DSC_KFAC_SIDES * k->unit_count; i++) {
        dsc_kfac_factor *f = &k->members[i / 2].factor[i % 2];
        const int64_t square[2] = {f->n, f->n};
        int64_t used = 0;
        if (!f->held)
            continue;
        dsc_tensor gram = dsc_kfac_carve(&k->gram, &used, 2, square);
        dsc_tensor packed = dsc_tensor_slice(&k->packed, 0, f->packed);
        DSC_TRY(dsc_op_fill(k->queue, 0, &gram));
        DSC_TRY(dsc_op_add_diagonal(k->queue, &k->sum, &gram));
        DSC_TRY(dsc_op_tri_pack(k->queue, &gram, &packed));
        DSC_TRY(dsc_op_convert(k->queue, &packed, &f->average));
    }
    return dsc_queue_sync(k->queue);
}

/* ---- scratch ---- */

static dsc_status make_scratch(dsc_kfac *k) {
    int half = k->factor_dtype != k->dtype;
    /* The entries of a checkpoint pass through `gram`, so it must also hold those of norms and tables, and an F64. */
    int64_t largest = k->largest_n * k->largest_n, most = 3 * k->norms.widest;
    int64_t square = k->tables.widest * k->tables.widest, longest = k->tables.longest;
    most = square > most ? square : most;
    most = longest > most ? longest : most;
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, (largest > most ? largest : most) + 1, &k->gram));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, k->largest_packed, &k->packed));
    DSC_TRY(dsc_kfac_alloc(k, k->factor_dtype, half ? k->largest_packed : 0, &k->half));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, half ? 2 * k->largest_packed : 0, &k->spare));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, 2 * k->factor_count, &k->bad));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, DSC_KFAC_NUMBERS, &k->numbers));
    if (k->options.warmup_factors) {
        DSC_TRY(dsc_kfac_alloc(k, DSC_F64, k->layer_count, &k->decays));
        DSC_TRY(dsc_memory_alloc(k->layer_count, sizeof *k->decays_host, &k->decays_host));
    }
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, 4 * k->unit_count, &k->products));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, k->any_late ? 3 * k->unit_count : 0, &k->partial));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, k->unit_count, &k->ones));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, 1, &k->sum));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, 1, &k->nu_tensor));
    DSC_TRY(dsc_memory_alloc(k->unit_count, sizeof *k->joins, &k->joins));
    DSC_TRY(dsc_memory_alloc(3 * k->unit_count, sizeof *k->dots, &k->dots));
    DSC_TRY(dsc_memory_alloc(DSC_KFAC_SIDES * k->unit_count, sizeof *k->absorbs, &k->absorbs));
    DSC_TRY(dsc_op_fill(k->queue, 1, &k->nu_tensor));
    return k->unit_count > 0 ? dsc_op_fill(k->queue, 1, &k->ones) : DSC_OK;
}

dsc_status dsc_kfac_take_solve_space(dsc_kfac *k) {
    return k->solve.data ? DSC_OK : dsc_kfac_alloc(k, k->dtype, k->solve_numbers, &k->solve);
}

void dsc_kfac_return_solve_space(dsc_kfac *k) {
    if (k->any_late)
        dsc_tensor_free(&k->solve);
}

/* Allocates memory for the matrices that this rank solves at a time: all of them, but on a CPU about WAVE_NUMBERS
 * elements at most. With late gradients it is allocated for each decomposition only, because the framework needs it
 * for activations in between. */
static dsc_status make_solve_space(dsc_kfac *k) {
    int64_t largest = 0, total = 0, values = 0, items = 0;
    for (int j = 0; j < k->layout_count; j++) {
        const dsc_kfac_plan *plan = k->layouts[j].plan;
        int64_t own = 0, own_values = 0;
        for (int64_t i = 0; i < plan->item_count; i++) {
            int64_t n = plan->items[i].owner == k->rank ? plan->items[i].n : 0;
            own += n * n;
            own_values += n;
            largest = n > largest ? n : largest;
        }
        total = own > total ? own : total;
        values = own_values > values ? own_values : values;
        items = plan->item_count > items ? plan->item_count : items;
    }
    int64_t wave = dsc_device_threads(k->device) * largest * largest;
    wave = wave > WAVE_NUMBERS ? wave : WAVE_NUMBERS;
    if (!dsc_device_is_host(k->device))
        wave = total; /* a GPU solves them side by side */
    k->solve_numbers = total < wave ? total : wave;
    if (!k->any_late)
        DSC_TRY(dsc_kfac_take_solve_space(k));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, values, &k->solve_values));
    DSC_TRY(dsc_memory_alloc(items, sizeof *k->solving, &k->solving));
    DSC_TRY(dsc_memory_alloc(items, sizeof *k->unpacks, &k->unpacks));
    DSC_TRY(dsc_memory_alloc(3 * items, sizeof *k->converts, &k->converts));
    if (k->options.method == DSC_KFAC_INVERSE || largest == 0)
        return DSC_OK;
    return dsc_kfac_alloc(
        k, DSC_U8, (int64_t)dsc_op_syev_batch_workspace(k->device, k->dtype, largest, items), &k->work);
}

/* ---- gradients ---- */

/* Places D: a gradient with a bias, or in another order than D, is gathered into separate memory; others are used as D
 * where they are. Late gradients are placed during the steps. */
static dsc_status place_gradients(dsc_kfac *k) {
    int64_t joined = 0, total = 0, used = 0;
    if (k->is_twin)
        return DSC_OK;
    for (int64_t u = 0; u < k->unit_count; u++) {
        dsc_kfac_member *m = &k->members[u];
        int64_t count = m->factor[DSC_KFAC_A].n * m->factor[DSC_KFAC_G].n;
        int differs = m->gradient.b.data || m->gradient.channels > 0;
        m->gathered = differs && !k->layers[dsc_kfac_layer_of(k, u)].late_gradients;
        joined += m->gathered ? count : 0;
        total += count;
    }
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, joined, &k->joined));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, total, &k->messages));
    for (int64_t u = 0; u < k->unit_count; u++) {
        dsc_kfac_member *m = &k->members[u];
        const int64_t dim[2] = {m->factor[DSC_KFAC_G].n, m->factor[DSC_KFAC_A].n};
        m->gradient.d = m->gathered ? dsc_kfac_carve(&k->joined, &used, 2, dim) : m->gradient.w;
    }
    return DSC_OK;
}

void dsc_kfac_use_gradient(dsc_kfac *k, int64_t unit, dsc_tensor d) {
    k->members[unit].gradient.d = d;
    for (int i = 0; i < k->layout_count; i++) {
        dsc_kfac_layout *layout = &k->layouts[i];
        int64_t cell = layout->cell_of[unit];
        if (cell < 0)
            continue;
        layout->cells[cell].d = d;
        layout->gemms[0][cell].a = d;
    }
}

dsc_status dsc_kfac_memory_create(dsc_kfac *k) {
    DSC_TRY(dsc_memory_alloc(k->unit_count, sizeof *k->members, &k->members));
    for (int64_t u = 0; u < k->unit_count; u++) {
        const dsc_kfac_unit *unit = &k->layouts[0].plan->units[u];
        const dsc_kfac_layer *layer = &k->layers[unit->layer];
        dsc_kfac_kind_of(layer)->gradient(layer, unit->group, &k->members[u].gradient);
    }
    for (int64_t u = k->unit_count - 1; u >= 0; u--)
        describe_factors(k, u);
    DSC_TRY(make_scratch(k));
    DSC_TRY(place_averages(k));
    DSC_TRY(place_batches(k));
    DSC_TRY(start_averages(k));
    DSC_TRY(make_solve_space(k));
    DSC_TRY(place_gradients(k));
    for (int i = 0; i < k->layout_count; i++)
        DSC_TRY(dsc_kfac_layout_create(k, &k->layouts[i]));
    dsc_kfac_late_start(k);
    return DSC_OK;
}

void dsc_kfac_memory_destroy(dsc_kfac *k) {
    for (int64_t l = 0; k->progress && l < k->layer_count; l++) {
        dsc_tensor_free(&k->progress[l].joined);
        dsc_tensor_free(&k->progress[l].batch);
    }
    dsc_tensor *const blocks[] = {&k->averages, &k->batches, &k->joined,    &k->messages, &k->gram,
                                  &k->packed,   &k->half,    &k->spare,     &k->solve,    &k->solve_values,
                                  &k->work,     &k->bad,     &k->numbers,   &k->products, &k->ones,
                                  &k->sum,      &k->ran,     &k->nu_tensor, &k->gathered, &k->images,
                                  &k->shared_d, &k->partial, &k->decays,    &k->means};
    for (int i = 0; i < 2; i++)
        dsc_kfac_layout_destroy(&k->layouts[i]);
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        dsc_tensor_free(blocks[i]);
    void *const arrays[] = {&k->solving,         &k->joins,           &k->dots,          &k->absorbs,
                            &k->members,         &k->layer_reports,   &k->report_work,   &k->report_solve_ms,
                            &k->report_products, &k->report_extremes, &k->gathered_host, &k->decays_host,
                            &k->unpacks,         &k->converts,        &k->report_nus};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        dsc_memory_free(arrays[i]);
}
