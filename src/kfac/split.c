/* Divides the damping d of the inverse method between the factors of a unit:
 *
 *   none   A + d I,           G + d I
 *   pi     A + pi sqrt(d) I,  G + sqrt(d) / pi I,   pi^2 = (tr A / a_n) / (tr G / g_n)
 *
 * With pi both factors are damped by the same share of their mean eigenvalue, and scaling A up and G down by the same
 * number has no effect, as it does not change their product either. All diagonal blocks of a split factor have the
 * damping of the whole factor. The G of units that share an A are treated together, like blocks of one G.
 *
 * A rank that decomposes one factor of a unit needs the traces of both. If it keeps all averages of its column, it
 * computes them itself; otherwise both factors of a unit have one owner (co-location), or the owners in the column add
 * up their traces. Everything stays on the device, so that nothing waits for it. */
#include "kfac/internal.h"

#include "base/error.h"
#include "base/memory.h"

static dsc_status make_diagonal(dsc_kfac *k) {
    const int64_t square[2] = {k->largest_n, k->largest_n};
    int64_t used = 0;
    dsc_tensor one = dsc_tensor_slice(&k->ones, 0, 1), gram = dsc_kfac_carve(&k->gram, &used, 2, square);
    DSC_TRY(dsc_kfac_alloc(k, k->dtype, k->largest_packed, &k->split.diagonal));
    DSC_TRY(dsc_op_fill(k->queue, 0, &gram));
    DSC_TRY(dsc_op_add_diagonal(k->queue, &one, &gram));
    return dsc_op_tri_pack(k->queue, &gram, &k->split.diagonal);
}

dsc_status dsc_kfac_split_create(dsc_kfac *k) {
    int64_t count = DSC_KFAC_SIDES * k->unit_count;
    double *rows = NULL;
    if (k->options.damping_split == DSC_KFAC_SPLIT_NONE || count == 0)
        return DSC_OK;
    DSC_TRY(make_diagonal(k));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, count, &k->split.traces));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, count, &k->split.rows));
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, count, &k->split.dampings));
    DSC_TRY(dsc_memory_alloc(count, sizeof *rows, &rows));
    for (int64_t i = 0; i < count; i++)
        rows[i] = (double)k->members[i / 2].factor[i % 2].n;
    for (int64_t u = 0; u < k->unit_count; u++) /* sums of all G, at the first unit, then at all of them */
        rows[2 * k->layouts[0].plan->a_unit[u] + 1] +=
            k->members[u].factor[DSC_KFAC_A].shared ? rows[2 * u + 1] : 0;
    for (int64_t u = 0; u < k->unit_count; u++)
        rows[2 * u + 1] = rows[2 * k->layouts[0].plan->a_unit[u] + 1];
    dsc_status status = dsc_tensor_upload(k->queue, rows, (size_t)count * sizeof *rows, &k->split.rows);
    if (status == DSC_OK)
        status = dsc_queue_sync(k->queue);
    dsc_memory_free(&rows);
    return status;
}

void dsc_kfac_split_destroy(dsc_kfac *k) {
    dsc_tensor *const blocks[] = {&k->split.diagonal, &k->split.traces, &k->split.rows, &k->split.dampings};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        dsc_tensor_free(blocks[i]);
}

/* Computes the traces of the averages that this rank keeps, all at once where possible; 0 for the others. */
static dsc_status find_traces(dsc_kfac *k, dsc_queue *q) {
    int64_t count = DSC_KFAC_SIDES * k->unit_count;
    int together = dsc_kfac_keeps_everywhere(k) && k->factor_dtype == k->dtype;
    DSC_TRY(dsc_op_fill(q, 0, &k->split.traces));
    for (int64_t i = 0; i < count; i++) {
        int64_t unit = i % 2 == DSC_KFAC_A ? k->layouts[0].plan->a_unit[i / 2] : i / 2;
        const dsc_kfac_factor *f = &k->members[unit].factor[i % 2];
        dsc_tensor diagonal = dsc_tensor_slice(&k->split.diagonal, 0, f->packed), packed;
        dsc_tensor trace = dsc_tensor_slice(&k->split.traces, i, 1);
        k->dots[i] = (dsc_dot_item){f->average, diagonal};
        if (together || !f->held)
            continue;
        DSC_TRY(dsc_kfac_factor_read(k, q, f, &packed));
        DSC_TRY(dsc_op_dot(q, &packed, &diagonal, 0, &trace));
    }
    return together ? dsc_op_dot_batch(q, k->dots, count, &k->split.traces) : DSC_OK;
}

/* Replaces the traces of all G that share an A by their sum. */
static dsc_status join_traces(dsc_kfac *k, dsc_queue *q) {
    const int64_t *a_unit = k->layouts[0].plan->a_unit;
    for (int gather = 1; gather >= 0; gather--)
        for (int64_t u = 0; u < k->unit_count; u++) {
            dsc_tensor own = dsc_tensor_slice(&k->split.traces, 2 * u + DSC_KFAC_G, 1);
            dsc_tensor all = dsc_tensor_slice(&k->split.traces, 2 * a_unit[u] + DSC_KFAC_G, 1);
            if (a_unit[u] != u)
                DSC_TRY(gather ? dsc_op_axpby(q, 1, &own, 1, &all) : dsc_op_axpby(q, 1, &all, 0, &own));
        }
    return DSC_OK;
}

dsc_status dsc_kfac_split_damping(dsc_kfac *k, dsc_queue *q, dsc_status status) {
    dsc_tensor damping = dsc_tensor_slice(&k->numbers, DSC_KFAC_DAMPING, 1);
    if (!k->split.traces.data)
        return status;
    if (status == DSC_OK)
        status = find_traces(k, q);
    if (k->column && !k->options.colocate_factors && !dsc_kfac_keeps_everywhere(k)) {
        DSC_TRY(dsc_queue_sync(q));
        DSC_TRY(dsc_comm_allreduce(k->column, DSC_TRAFFIC_OTHER, DSC_SUM, &k->split.traces));
    }
    if (status == DSC_OK)
        status = join_traces(k, q);
    if (status == DSC_OK)
        status = dsc_op_damping_split(q, &damping, &k->split.traces, &k->split.rows, &k->split.dampings);
    return status;
}

dsc_tensor dsc_kfac_damping_of(const dsc_kfac *k, const dsc_kfac_item *item) {
    if (k->split.dampings.data)
        return dsc_tensor_slice(&k->split.dampings, DSC_KFAC_SIDES * item->unit + (int)item->side, 1);
    return dsc_tensor_slice(&k->numbers, DSC_KFAC_DAMPING, 1);
}
