/* Reports how much device memory a preconditioner holds on this rank, and for what. Every tensor that it has allocated
 * is counted once; memory that communication and the device's own libraries use is not counted. */
#include "kfac/refresh.h"

#include "base/error.h"
#include "base/versioned.h"

static size_t bytes_of(const dsc_tensor *t) {
    return t->data ? dsc_tensor_bytes(t) : 0;
}

static size_t sum_of(const dsc_tensor *const *tensors, size_t count) {
    size_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += bytes_of(tensors[i]);
    return sum;
}
#define SUM_OF(list) sum_of((list), sizeof(list) / sizeof *(list))

/* Adds the factors of all units and tables, and the decompositions of all layouts. */
static void add_units(const dsc_kfac *k, dsc_kfac_memory *m) {
    for (int64_t i = 0; i < DSC_KFAC_SIDES * k->unit_count; i++) {
        const dsc_kfac_factor *f = &k->members[i / 2].factor[i % 2];
        m->factors[i % 2] += bytes_of(&f->average);
        m->batches[i % 2] += bytes_of(&f->batch);
    }
    for (int64_t i = 0; i < k->tables.count; i++) {
        const dsc_kfac_table *t = &k->tables.list[i];
        const int side = t->is_head ? DSC_KFAC_A : DSC_KFAC_G;
        m->factors[DSC_KFAC_A] += bytes_of(&t->a);
        m->factors[side] += bytes_of(&t->g);
        m->batches[DSC_KFAC_A] += bytes_of(&t->a_batch);
        m->batches[side] += bytes_of(&t->g_batch);
        m->decompositions[DSC_KFAC_A] += bytes_of(&t->shares);
        m->decompositions[side] += bytes_of(&t->vectors) + bytes_of(&t->values);
    }
    for (int j = 0; j < k->layout_count; j++) {
        const dsc_kfac_layout *l = &k->layouts[j];
        for (int64_t i = 0; i < l->plan->item_count; i++)
            m->decompositions[l->plan->items[i].side] +=
                bytes_of(&l->bases[i].vectors) + bytes_of(&l->bases[i].stored);
        for (int64_t i = 0; j == 0 && k->moments.foreign && i < l->plan->item_count; i++)
            m->decompositions[l->plan->items[i].side] += bytes_of(&k->moments.foreign[i]);
        for (int64_t u = 0; u < k->unit_count; u++)
            m->outer_products += bytes_of(&l->outer[u]);
    }
}

/* Returns the bytes that belong to none of the other categories of the result. */
static size_t work_of(const dsc_kfac *k) {
    const dsc_kfac_moments *e = &k->moments;
    const dsc_kfac_norms *n = &k->norms;
    const dsc_tensor *const own[] = {&k->gram,
                                     &k->packed,
                                     &k->half,
                                     &k->spare,
                                     &k->solve,
                                     &k->solve_values,
                                     &k->work,
                                     &k->images,
                                     &k->bad,
                                     &k->means,
                                     &k->numbers,
                                     &k->decays,
                                     &k->products,
                                     &k->partial,
                                     &k->ones,
                                     &k->sum,
                                     &k->nu_tensor,
                                     &k->ran,
                                     &k->gathered,
                                     &k->joined,
                                     &k->messages,
                                     &k->shared_d,
                                     &k->split.diagonal,
                                     &k->split.traces,
                                     &k->split.rows,
                                     &k->split.dampings,
                                     &k->clip.nus,
                                     &k->clip.finite,
                                     &k->clip.zeros,
                                     &e->old,
                                     &e->bad,
                                     &e->ones,
                                     &e->work,
                                     &e->all_samples,
                                     &n->solved,
                                     &n->bad,
                                     &n->products,
                                     &n->ones,
                                     &n->work,
                                     &n->sample_ones,
                                     &n->zeros,
                                     &k->padding.vectors,
                                     &k->padding.scalars,
                                     &k->padding.kept};
    const dsc_kfac_tables *t = &k->tables;
    const dsc_tensor *const tables[] = {&t->solved, &t->between, &t->full,    &t->packed, &t->counts,
                                        &t->ones,   &t->work,    &t->numbers, &t->bad,    &t->wide};
    size_t sum = SUM_OF(own) + SUM_OF(tables);
    for (int64_t l = 0; l < k->layer_count; l++)
        sum += bytes_of(&k->progress[l].joined);
    for (int j = 0; j < k->layout_count; j++) {
        const dsc_kfac_layout *l = &k->layouts[j];
        const dsc_tensor *const parts[] = {&l->packed, &l->notes, &l->index,
                                           &l->loads,  &l->first, &l->pieces};
        sum += SUM_OF(parts);
        for (int64_t i = 0; l->grown && i < l->plan->item_count; i++)
            sum += bytes_of(&l->grown[i].vectors) + bytes_of(&l->grown[i].stored);
    }
    if (k->wave)
        sum += dsc_kfac_refresh_bytes(k) + bytes_of(&k->wave->index) + bytes_of(&k->wave->results);
    return sum;
}

static size_t total_of(const dsc_kfac_memory *m) {
    size_t sum = m->outer_products + m->moments + m->norms + m->work;
    for (int side = 0; side < DSC_KFAC_SIDES; side++)
        sum += m->factors[side] + m->batches[side] + m->decompositions[side];
    return sum;
}

static dsc_kfac_memory memory_of(const dsc_kfac *k) {
    dsc_kfac_memory m = {.size = sizeof m,
                         .moments = bytes_of(&k->moments.memory) + bytes_of(&k->moments.batches),
                         .norms = bytes_of(&k->norms.averages) + bytes_of(&k->norms.batches),
                         .work = work_of(k)};
    add_units(k, &m);
    return m;
}

dsc_status dsc_kfac_get_memory(dsc_kfac *kfac, dsc_kfac_memory *out) {
    DSC_TRY(dsc_versioned_check("dsc_kfac_memory", out, sizeof *out));
    dsc_kfac_async_wait(kfac);
    dsc_kfac_memory m = memory_of(kfac);
    if (dsc_kfac_async_twin(kfac)) {
        dsc_kfac_memory twin = memory_of(dsc_kfac_async_twin(kfac));
        m.work += total_of(&twin);
    }
    dsc_versioned_write(&m, out);
    return DSC_OK;
}
