/* Blocks of memory, allocated once, and where factors and gradients lie in them. */
#include "kfac/internal.h"

#include "base/error.h"
#include "base/memory.h"

/* Numbers that are solved at a time at most, unless one matrix a thread is more. */
enum { WAVE_NUMBERS = 1 << 26 };

dsc_tensor dsc_kfac_carve(const dsc_tensor *block, int64_t *used, int ndim, const int64_t *dim) {
    char *data = block->data;
    dsc_tensor t = dsc_tensor_view(block->device, NULL, block->dtype, ndim, dim);
    if (data)
        t.data = data + (size_t)*used * dsc_dtype_size(block->dtype);
    *used += dsc_tensor_count(&t);
    return t;
}

dsc_status dsc_kfac_alloc(const dsc_kfac *k, dsc_dtype dtype, int64_t count, dsc_tensor *out) {
    return count > 0 ? dsc_tensor_alloc(k->device, dtype, 1, &count, out) : DSC_OK;
}

/* ---- members ---- */

/* Gradients of one group as matrices. */
static void describe_gradients(dsc_kfac *k, int64_t unit) {
    const dsc_kfac_unit *u = &k->layouts[0].plan->units[unit];
    const dsc_kfac_layer *l = &k->layers[u->layer];
    dsc_kfac_member *m = &k->members[unit];
    int64_t columns = u->a_n - (l->bias_grad.data ? 1 : 0);
    const int64_t dim[2] = {u->g_n, columns};
    int64_t used = u->group * u->g_n * columns;
    m->weight = dsc_kfac_carve(&l->weight_grad, &used, 2, dim);
    used = u->group * u->g_n;
    if (l->bias_grad.data)
        m->bias = dsc_kfac_carve(&l->bias_grad, &used, 1, dim);
}

static void describe_factors(dsc_kfac *k, int64_t unit) {
    const dsc_kfac_plan *plan = k->layouts[0].plan;
    const dsc_kfac_unit *u = &plan->units[unit];
    for (int side = 0; side < DSC_KFAC_SIDES; side++) {
        dsc_kfac_factor *f = &k->members[unit].factor[side];
        f->n = side == DSC_KFAC_A ? u->a_n : u->g_n;
        f->packed = f->n * (f->n + 1) / 2;
        f->slot = DSC_KFAC_SIDES * (k->unit_count - 1 - unit) + side;
        f->owner = plan->items[u->first_item + side].owner;
        f->held = dsc_kfac_keeps_everywhere(k) || f->owner == k->rank;
        if (f->n > k->largest_n)
            k->largest_n = f->n;
    }
    k->largest_packed = k->largest_n * (k->largest_n + 1) / 2;
}

/* ---- factors ---- */

/* What one factor's batch takes. */
static int64_t batch_numbers(const dsc_kfac *k, const dsc_kfac_factor *f) {
    return k->options.symmetric ? f->packed : f->n * f->n;
}

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

static void place_batch(dsc_kfac *k, dsc_kfac_factor *f, int64_t *used) {
    const int64_t square[2] = {f->n, f->n};
    if (k->options.symmetric)
        f->batch = dsc_kfac_carve(&k->batches, used, 1, &f->packed);
    else
        f->batch = dsc_kfac_carve(&k->batches, used, 2, square);
}

/* In the order in which they travel, those with one destination next to each other: then buckets need no
 * copy. */
static dsc_status place_batches(dsc_kfac *k) {
    int64_t total = 0, used = 0;
    int everywhere = dsc_kfac_keeps_everywhere(k);
    if (k->ranks == 1 && k->options.passes == 1 && dsc_device_is_host(k->device) && !k->options.late_factors)
        return DSC_OK; /* on a GPU they wait, too: it moves all averages at once */
    for (int64_t i = 0; i < DSC_KFAC_SIDES * k->unit_count; i++)
        total += batch_numbers(k, &k->members[i / 2].factor[i % 2]);
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, total, &k->batches));
    for (int root = 0; root < (everywhere ? 1 : k->ranks); root++) {
        for (int64_t u = k->unit_count - 1; u >= 0; u--) {
            for (int side = 0; side < DSC_KFAC_SIDES; side++) {
                dsc_kfac_factor *f = &k->members[u].factor[side];
                if (everywhere || f->owner == root)
                    place_batch(k, f, &used);
            }
        }
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
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, k->largest_n * k->largest_n, &k->gram));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, k->largest_packed, &k->packed));
    DSC_TRY(dsc_kfac_alloc(k, k->factor_dtype, half ? k->largest_packed : 0, &k->half));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, half ? 2 * k->largest_packed : 0, &k->spare));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, 2 * DSC_KFAC_SIDES * k->unit_count, &k->bad));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, DSC_KFAC_NUMBERS, &k->numbers));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, 4 * k->unit_count, &k->products));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, k->unit_count, &k->ones));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, 1, &k->sum));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, 1, &k->nu_tensor));
    DSC_TRY(dsc_kfac_alloc(k, DSC_I32, 2 * k->layer_count, &k->ran));
    DSC_TRY(dsc_memory_alloc(2 * k->layer_count, sizeof *k->ran_host, &k->ran_host));
    DSC_TRY(dsc_memory_alloc(k->unit_count, sizeof *k->joins, &k->joins));
    DSC_TRY(dsc_memory_alloc(k->unit_count, sizeof *k->writes, &k->writes));
    DSC_TRY(dsc_memory_alloc(3 * k->unit_count, sizeof *k->dots, &k->dots));
    DSC_TRY(dsc_memory_alloc(DSC_KFAC_SIDES * k->unit_count, sizeof *k->absorbs, &k->absorbs));
    DSC_TRY(dsc_op_fill(k->queue, 1, &k->nu_tensor));
    return k->unit_count > 0 ? dsc_op_fill(k->queue, 1, &k->ones) : DSC_OK;
}

/* Room for the matrices that this rank solves at a time: all of them, within reason. */
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
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, total < wave ? total : wave, &k->solve));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, values, &k->solve_values));
    DSC_TRY(dsc_memory_alloc(items, sizeof *k->solving, &k->solving));
    if (k->options.method == DSC_KFAC_INVERSE || largest == 0)
        return DSC_OK;
    return dsc_kfac_alloc(
        k, DSC_U8, (int64_t)dsc_op_syev_batch_workspace(k->device, k->dtype, largest, items), &k->work);
}

/* ---- gradients ---- */

/* A gradient with a bias is joined in memory of its own; others are used where they are. */
static dsc_status place_gradients(dsc_kfac *k) {
    int64_t joined = 0, total = 0, used = 0;
    for (int64_t u = 0; u < k->unit_count; u++) {
        int64_t count = k->members[u].factor[DSC_KFAC_A].n * k->members[u].factor[DSC_KFAC_G].n;
        joined += k->members[u].bias.data ? count : 0;
        total += count;
    }
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, joined, &k->joined));
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, total, &k->messages));
    for (int64_t u = 0; u < k->unit_count; u++) {
        dsc_kfac_member *m = &k->members[u];
        const int64_t dim[2] = {m->factor[DSC_KFAC_G].n, m->factor[DSC_KFAC_A].n};
        m->d = m->bias.data ? dsc_kfac_carve(&k->joined, &used, 2, dim) : m->weight;
        if (m->bias.data)
            k->joins[k->join_count++] = (dsc_join_item){m->weight, m->bias, m->d};
    }
    return DSC_OK;
}

dsc_status dsc_kfac_memory_create(dsc_kfac *k) {
    DSC_TRY(dsc_memory_alloc(k->unit_count, sizeof *k->members, &k->members));
    for (int64_t u = 0; u < k->unit_count; u++) {
        describe_gradients(k, u);
        describe_factors(k, u);
    }
    DSC_TRY(make_scratch(k));
    DSC_TRY(place_averages(k));
    DSC_TRY(place_batches(k));
    DSC_TRY(start_averages(k));
    DSC_TRY(make_solve_space(k));
    DSC_TRY(place_gradients(k));
    for (int i = 0; i < k->layout_count; i++)
        DSC_TRY(dsc_kfac_layout_create(k, &k->layouts[i]));
    return DSC_OK;
}

void dsc_kfac_memory_destroy(dsc_kfac *k) {
    dsc_tensor *const blocks[] = {&k->averages, &k->batches, &k->joined,    &k->messages, &k->gram,
                                  &k->packed,   &k->half,    &k->spare,     &k->solve,    &k->solve_values,
                                  &k->work,     &k->bad,     &k->numbers,   &k->products, &k->ones,
                                  &k->sum,      &k->ran,     &k->nu_tensor, &k->gathered};
    for (int i = 0; i < 2; i++)
        dsc_kfac_layout_destroy(&k->layouts[i]);
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        dsc_tensor_free(blocks[i]);
    dsc_memory_free(&k->ran_host);
    dsc_memory_free(&k->solving);
    dsc_memory_free(&k->joins);
    dsc_memory_free(&k->writes);
    dsc_memory_free(&k->dots);
    dsc_memory_free(&k->absorbs);
    dsc_memory_free(&k->members);
    dsc_memory_free(&k->layer_reports);
    dsc_memory_free(&k->report_work);
    dsc_memory_free(&k->report_solve_ms);
    dsc_memory_free(&k->report_products);
    dsc_memory_free(&k->report_extremes);
    dsc_memory_free(&k->gathered_host);
}
