/* Fronts of the batches: every item is checked before the first one is computed. The functions of backends get no
 * empty matrices, except weigh_batch: a batch with empty matrices is computed item by item, and so is one for which
 * the backend has no function. Solvers, which gain most from a batch, still get the runs of items between them. */
#include "device/checks.h"

#include "base/error.h"

/* ---- products ---- */

static dsc_status check_gemm_item(dsc_check *check, int64_t i, const dsc_gemm_item *item) {
    DSC_TRY(dsc_check_first(check, i, "a", &item->a));
    DSC_TRY(
        dsc_check_product(check, (const int[]){item->trans_a, item->trans_b}, &item->a, &item->b, &item->c));
    return DSC_OK;
}

static dsc_status gemm_items(dsc_queue *q, const dsc_gemm_item *items, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        dsc_tensor c = items[i].c;
        DSC_TRY(dsc_op_gemm(q, items[i].trans_a, items[i].trans_b, items[i].alpha, &items[i].a, &items[i].b,
                            items[i].beta, &c));
    }
    return DSC_OK;
}

dsc_status dsc_op_gemm_batch(dsc_queue *q, const dsc_gemm_item *items, int64_t count) {
    dsc_check check;
    int empty = 0;
    DSC_TRY(dsc_check_batch(&check, "gemm_batch", q, items, count));
    for (int64_t i = 0; i < count; i++) {
        dsc_status status = check_gemm_item(&check, i, &items[i]);
        if (status != DSC_OK)
            return dsc_error_prefix(status, "item %lld", (long long)i);
        empty |= dsc_tensor_count(&items[i].a) == 0 || dsc_tensor_count(&items[i].b) == 0;
    }
    if (count == 0)
        return DSC_OK;
    const dsc_device_table *table = dsc_device_table_for(q->device, check.dtype);
    if (table->gemm_batch && !empty)
        DSC_TRY(table->gemm_batch(q, items, count));
    else
        DSC_TRY(gemm_items(q, items, count));
    return DSC_OK;
}

/* ---- solvers ---- */

/* Checks all items; *largest is the largest number of rows. */
static dsc_status check_solve(dsc_check *check, const dsc_solve_item *items, int64_t count, int with_v,
                              int64_t *largest) {
    *largest = 0;
    for (int64_t i = 0; i < count; i++) {
        const dsc_tensor *a = &items[i].a, *v = &items[i].v;
        dsc_status status = dsc_check_first(check, i, "a", a);
        if (status == DSC_OK)
            status = dsc_check_square(check, "a", a);
        if (status == DSC_OK && with_v)
            status = dsc_check_real_shape(check, "v", v, DSC_SHAPE(a->dim[0]));
        if (status == DSC_OK && with_v)
            status = dsc_check_apart(check, "v", v, "a", a);
        if (status != DSC_OK)
            return dsc_error_prefix(status, "item %lld", (long long)i);
        *largest = a->dim[0] > *largest ? a->dim[0] : *largest;
    }
    return DSC_OK;
}

/* The number of items before the next empty one. If the first item is empty, marks it as not failed. */
static int64_t run_length(dsc_solve_item *items, int64_t count) {
    int64_t length = 0;
    while (length < count && items[length].a.dim[0] > 0)
        length++;
    if (length == 0)
        items[0].failed = 0;
    return length;
}

size_t dsc_op_syev_batch_workspace(dsc_device *device, dsc_dtype dtype, int64_t n, int64_t count) {
    if (n <= 0 || count <= 0)
        return 0;
    if (!device->table->syev_batch)
        return dsc_op_syev_workspace(device, dtype, n);
    return device->table->syev_batch_workspace(device, dtype, n, count);
}

/* A numerical failure is noted in the item; any other failure is that of the call. */
static dsc_status note_outcome(dsc_status status, dsc_solve_item *item) {
    item->failed = status == DSC_E_NUMERIC;
    return item->failed ? DSC_OK : status;
}

static dsc_status syev_items(dsc_queue *q, dsc_solve_item *items, int64_t count, dsc_tensor *work) {
    for (int64_t i = 0; i < count; i++)
        DSC_TRY(note_outcome(dsc_op_syev(q, &items[i].a, work, &items[i].v), &items[i]));
    return DSC_OK;
}

static dsc_status syev_runs(dsc_queue *q, dsc_solve_item *items, int64_t count, dsc_tensor *work) {
    for (int64_t i = 0; i < count; i++) {
        int64_t length = run_length(items + i, count - i);
        if (length > 0)
            DSC_TRY(q->device->table->syev_batch(q, items + i, length, work));
        i += length > 0 ? length - 1 : 0;
    }
    return DSC_OK;
}

dsc_status dsc_op_syev_batch(dsc_queue *q, dsc_solve_item *items, int64_t count, dsc_tensor *work) {
    dsc_check check;
    int64_t largest;
    DSC_TRY(dsc_check_batch(&check, "syev_batch", q, items, count));
    DSC_TRY(check_solve(&check, items, count, 1, &largest));
    DSC_TRY(
        dsc_check_work(&check, work, dsc_op_syev_batch_workspace(q->device, check.dtype, largest, count)));
    if (count == 0)
        return DSC_OK;
    if (q->device->table->syev_batch)
        DSC_TRY(syev_runs(q, items, count, work));
    else
        DSC_TRY(syev_items(q, items, count, work));
    return DSC_OK;
}

static dsc_status chol_inverse_items(dsc_queue *q, dsc_solve_item *items, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        DSC_TRY(note_outcome(dsc_op_chol_inverse(q, &items[i].a), &items[i]));
    return DSC_OK;
}

static dsc_status chol_inverse_runs(dsc_queue *q, dsc_solve_item *items, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        int64_t length = run_length(items + i, count - i);
        if (length > 0)
            DSC_TRY(q->device->table->chol_inverse_batch(q, items + i, length));
        i += length > 0 ? length - 1 : 0;
    }
    return DSC_OK;
}

dsc_status dsc_op_chol_inverse_batch(dsc_queue *q, dsc_solve_item *items, int64_t count) {
    dsc_check check;
    int64_t largest;
    DSC_TRY(dsc_check_batch(&check, "chol_inverse_batch", q, items, count));
    DSC_TRY(check_solve(&check, items, count, 0, &largest));
    if (count == 0)
        return DSC_OK;
    if (q->device->table->chol_inverse_batch)
        DSC_TRY(chol_inverse_runs(q, items, count));
    else
        DSC_TRY(chol_inverse_items(q, items, count));
    return DSC_OK;
}

/* ---- quotients ---- */

static dsc_status check_divide_item(dsc_check *check, int64_t i, const dsc_tensor *damping,
                                    const dsc_divide_item *item) {
    const dsc_tensor *x = &item->x;
    DSC_TRY(dsc_check_first(check, i, "x", x));
    DSC_TRY(dsc_check_dims(check, "x", x, 2));
    DSC_TRY(dsc_check_real_shape(check, "rows", &item->rows, DSC_SHAPE(x->dim[0])));
    DSC_TRY(dsc_check_real_shape(check, "columns", &item->columns, DSC_SHAPE(x->dim[1])));
    DSC_TRY(dsc_check_apart(check, "x", x, "rows", &item->rows));
    DSC_TRY(dsc_check_apart(check, "x", x, "columns", &item->columns));
    DSC_TRY(dsc_check_apart(check, "x", x, "damping", damping));
    return DSC_OK;
}

static dsc_status divide_items(dsc_queue *q, const dsc_device_table *table, const dsc_tensor *damping,
                               const dsc_divide_item *items, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (dsc_tensor_count(&items[i].x) > 0)
            DSC_TRY(table->divide_batch(q, damping, &items[i], 1));
    return DSC_OK;
}

dsc_status dsc_op_divide_batch(dsc_queue *q, const dsc_tensor *damping, const dsc_divide_item *items,
                               int64_t count) {
    dsc_check check;
    int empty = 0;
    DSC_TRY(dsc_check_batch(&check, "divide_batch", q, items, count));
    DSC_TRY(dsc_check_f64(&check, "damping", damping, 1));
    for (int64_t i = 0; i < count; i++) {
        dsc_status status = check_divide_item(&check, i, damping, &items[i]);
        if (status != DSC_OK)
            return dsc_error_prefix(status, "item %lld", (long long)i);
        empty |= dsc_tensor_count(&items[i].x) == 0;
    }
    if (count == 0)
        return DSC_OK;
    const dsc_device_table *table = dsc_device_table_for(q->device, check.dtype);
    if (!empty)
        DSC_TRY(table->divide_batch(q, damping, items, count));
    else
        DSC_TRY(divide_items(q, table, damping, items, count));
    return DSC_OK;
}

/* Checks a vector of `count` numbers and the scalar `other`; either may be missing, but not both. */
static dsc_status check_weigh_side(dsc_check *check, const char *name, const dsc_tensor *side, int64_t count,
                                   const char *other_name, const dsc_tensor *other) {
    if (side->data)
        DSC_TRY(dsc_check_real_shape(check, name, side, DSC_SHAPE(count)));
    if (other->data || !side->data)
        DSC_TRY(dsc_check_real_shape(check, other_name, other, DSC_SHAPE(1)));
    return DSC_OK;
}

static dsc_status check_weigh_item(dsc_check *check, int64_t i, const dsc_tensor *damping,
                                   const dsc_weigh_item *item) {
    const dsc_tensor *x = &item->x;
    DSC_TRY(dsc_check_first(check, i, "x", x));
    DSC_TRY(dsc_check_dims(check, "x", x, 2));
    DSC_TRY(dsc_check_real_like(check, "from", &item->from, "x", x));
    DSC_TRY(check_weigh_side(check, "rows", &item->rows, x->dim[0], "other_row", &item->other_row));
    DSC_TRY(
        check_weigh_side(check, "columns", &item->columns, x->dim[1], "other_column", &item->other_column));
    if (item->rows.data)
        DSC_TRY(dsc_check_apart(check, "x", x, "rows", &item->rows));
    if (item->columns.data)
        DSC_TRY(dsc_check_apart(check, "x", x, "columns", &item->columns));
    return dsc_check_apart(check, "x", x, "damping", damping);
}

dsc_status dsc_op_weigh_batch(dsc_queue *q, const dsc_tensor *damping, const dsc_weigh_item *items,
                              int64_t count) {
    dsc_check check;
    DSC_TRY(dsc_check_batch(&check, "weigh_batch", q, items, count));
    DSC_TRY(dsc_check_f64(&check, "damping", damping, 1));
    for (int64_t i = 0; i < count; i++) {
        dsc_status status = check_weigh_item(&check, i, damping, &items[i]);
        if (status != DSC_OK)
            return dsc_error_prefix(status, "item %lld", (long long)i);
    }
    if (count == 0)
        return DSC_OK;
    return dsc_device_table_for(q->device, check.dtype)->weigh_batch(q, damping, items, count);
}

static dsc_status check_moment_item(dsc_check *check, int64_t i, const dsc_moment_item *item) {
    DSC_TRY(dsc_check_first(check, i, "x", &item->x));
    DSC_TRY(dsc_check_real_like(check, "s", &item->s, "x", &item->x));
    DSC_TRY(dsc_check_apart(check, "s", &item->s, "x", &item->x));
    if (item->scale.data)
        DSC_TRY(dsc_check_f64(check, "scale", &item->scale, 1));
    return DSC_OK;
}

dsc_status dsc_op_moment_divide_batch(dsc_queue *q, const dsc_tensor *decay, const dsc_tensor *damping,
                                      const dsc_moment_item *items, int64_t count) {
    dsc_check check;
    int empty = 0;
    DSC_TRY(dsc_check_batch(&check, "moment_divide_batch", q, items, count));
    DSC_TRY(dsc_check_f64(&check, "decay", decay, 1));
    DSC_TRY(dsc_check_f64(&check, "damping", damping, 1));
    for (int64_t i = 0; i < count; i++) {
        dsc_status status = check_moment_item(&check, i, &items[i]);
        if (status != DSC_OK)
            return dsc_error_prefix(status, "item %lld", (long long)i);
        empty |= dsc_tensor_count(&items[i].x) == 0;
    }
    if (count == 0)
        return DSC_OK;
    const dsc_device_table *table = dsc_device_table_for(q->device, check.dtype);
    if (!empty)
        DSC_TRY(table->moment_divide_batch(q, decay, damping, items, count));
    for (int64_t i = 0; empty && i < count; i++)
        if (dsc_tensor_count(&items[i].x) > 0)
            DSC_TRY(table->moment_divide_batch(q, decay, damping, &items[i], 1));
    return DSC_OK;
}

/* ---- sums ---- */

static dsc_status check_dot_item(dsc_check *check, int64_t i, const dsc_dot_item *item,
                                 const dsc_tensor *out) {
    DSC_TRY(dsc_check_first(check, i, "x", &item->x));
    DSC_TRY(dsc_check_real_count(check, "y", &item->y, "x", &item->x));
    DSC_TRY(dsc_check_apart(check, "out", out, "x", &item->x));
    DSC_TRY(dsc_check_apart(check, "out", out, "y", &item->y));
    return DSC_OK;
}

static dsc_status dot_items(dsc_queue *q, const dsc_dot_item *items, int64_t count, const dsc_tensor *out) {
    for (int64_t i = 0; i < count; i++) {
        dsc_tensor sum = dsc_tensor_slice(out, i, 1);
        DSC_TRY(dsc_op_dot(q, &items[i].x, &items[i].y, 0, &sum));
    }
    return DSC_OK;
}

dsc_status dsc_op_dot_batch(dsc_queue *q, const dsc_dot_item *items, int64_t count, dsc_tensor *out) {
    dsc_check check;
    int empty = 0;
    DSC_TRY(dsc_check_batch(&check, "dot_batch", q, items, count));
    DSC_TRY(dsc_check_f64(&check, "out", out, count));
    for (int64_t i = 0; i < count; i++) {
        dsc_status status = check_dot_item(&check, i, &items[i], out);
        if (status != DSC_OK)
            return dsc_error_prefix(status, "item %lld", (long long)i);
        empty |= dsc_tensor_count(&items[i].x) == 0;
    }
    if (count == 0)
        return DSC_OK;
    const dsc_device_table *table = dsc_device_table_for(q->device, check.dtype);
    if (table->dot_batch && !empty)
        DSC_TRY(table->dot_batch(q, items, count, out));
    else
        DSC_TRY(dot_items(q, items, count, out));
    return DSC_OK;
}

/* ---- weights and bias as one matrix ---- */

/* w as a vector that spans its memory from the first to the last number. */
static dsc_tensor join_span(const dsc_join_item *item, int64_t columns) {
    dsc_tensor w = item->w;
    if (item->channels <= 0 || item->d.dim[0] == 0 || columns == 0)
        return w;
    int64_t count = 1 + (item->d.dim[0] - 1) * item->row_stride +
                    (columns / item->channels - 1) * item->position_stride +
                    (item->channels - 1) * item->channel_stride;
    return dsc_tensor_view(w.device, w.data, w.dtype, 1, &count);
}

static dsc_status check_join_strides(const dsc_check *check, const dsc_join_item *item, int64_t columns) {
    const int64_t most = INT32_MAX;
    if (item->channels == 0)
        return DSC_OK;
    if (item->channels < 0 || columns % item->channels || item->d.dim[1] > most)
        return DSC_FAIL(DSC_E_INVALID, "%s: %lld channels do not divide the %lld columns of w", check->op,
                        (long long)item->channels, (long long)columns);
    if (item->row_stride < 0 || item->position_stride < 0 || item->channel_stride < 0 ||
        item->row_stride > most || item->position_stride > most || item->channel_stride > most)
        return DSC_FAIL(DSC_E_INVALID, "%s: strides %lld, %lld, %lld of w: must be in 0..2^31 - 1", check->op,
                        (long long)item->row_stride, (long long)item->position_stride,
                        (long long)item->channel_stride);
    return DSC_OK;
}

/* Checks that w and b together have the elements of d; b has no data if d has no column for it. */
static dsc_status check_join_item(dsc_check *check, int64_t i, const dsc_join_item *item) {
    const dsc_tensor *d = &item->d, *w = &item->w, *b = &item->b;
    DSC_TRY(dsc_check_first(check, i, "d", d));
    DSC_TRY(dsc_check_dims(check, "d", d, 2));
    DSC_TRY(dsc_check_real(check, "w", w));
    int64_t m = d->dim[0], n = d->dim[1] - (b->data ? 1 : 0), biases = 0;
    if (b->data) {
        DSC_TRY(dsc_check_real(check, "b", b));
        biases = dsc_tensor_count(b);
    }
    if (n < 0 || dsc_tensor_count(w) != m * n || (b->data && biases != m))
        return DSC_FAIL(
            DSC_E_INVALID, "%s: %lld elements of w and %lld of b do not make the rows of d[%lld,%lld]",
            check->op, (long long)dsc_tensor_count(w), (long long)biases, (long long)m, (long long)d->dim[1]);
    DSC_TRY(check_join_strides(check, item, n));
    dsc_tensor span = join_span(item, n);
    DSC_TRY(dsc_check_apart(check, "d", d, "w", &span));
    if (b->data) {
        DSC_TRY(dsc_check_apart(check, "d", d, "b", b));
        DSC_TRY(dsc_check_apart(check, "w", &span, "b", b));
    }
    return DSC_OK;
}

static dsc_status check_joins(dsc_check *check, const dsc_join_item *items, int64_t count, int *empty) {
    *empty = 0;
    for (int64_t i = 0; i < count; i++) {
        dsc_status status = check_join_item(check, i, &items[i]);
        if (status != DSC_OK)
            return dsc_error_prefix(status, "item %lld", (long long)i);
        *empty |= dsc_tensor_count(&items[i].d) == 0;
    }
    return DSC_OK;
}

static dsc_status join_items(dsc_queue *q, const dsc_device_table *table, const dsc_join_item *items,
                             int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (dsc_tensor_count(&items[i].d) > 0)
            DSC_TRY(table->join_batch(q, &items[i], 1));
    return DSC_OK;
}

dsc_status dsc_op_join_batch(dsc_queue *q, const dsc_join_item *items, int64_t count) {
    dsc_check check;
    int empty;
    DSC_TRY(dsc_check_batch(&check, "join_batch", q, items, count));
    DSC_TRY(check_joins(&check, items, count, &empty));
    if (count == 0)
        return DSC_OK;
    const dsc_device_table *table = dsc_device_table_for(q->device, check.dtype);
    if (!empty)
        DSC_TRY(table->join_batch(q, items, count));
    else
        DSC_TRY(join_items(q, table, items, count));
    return DSC_OK;
}

static dsc_status split_items(dsc_queue *q, const dsc_device_table *table, const dsc_tensor *scale,
                              const dsc_join_item *items, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (dsc_tensor_count(&items[i].d) > 0)
            DSC_TRY(table->split_batch(q, scale, &items[i], 1));
    return DSC_OK;
}

dsc_status dsc_op_split_batch(dsc_queue *q, const dsc_tensor *scale, const dsc_join_item *items,
                              int64_t count) {
    dsc_check check;
    int empty;
    DSC_TRY(dsc_check_batch(&check, "split_batch", q, items, count));
    if (scale)
        DSC_TRY(dsc_check_f64(&check, "scale", scale, 1));
    DSC_TRY(check_joins(&check, items, count, &empty));
    for (int64_t i = 0; scale && i < count; i++) {
        const int has_bias = items[i].b.data != NULL;
        dsc_tensor span = join_span(&items[i], items[i].d.dim[1] - has_bias);
        DSC_TRY(dsc_check_apart(&check, "w", &span, "scale", scale));
        if (has_bias)
            DSC_TRY(dsc_check_apart(&check, "b", &items[i].b, "scale", scale));
    }
    if (count == 0)
        return DSC_OK;
    const dsc_device_table *table = dsc_device_table_for(q->device, check.dtype);
    if (!empty)
        DSC_TRY(table->split_batch(q, scale, items, count));
    else
        DSC_TRY(split_items(q, table, scale, items, count));
    return DSC_OK;
}

/* ---- running averages ---- */

static dsc_status check_absorb_item(dsc_check *check, int64_t i, const dsc_tensor *decay,
                                    const dsc_absorb_item *item) {
    DSC_TRY(dsc_check_first(check, i, "x", &item->x));
    DSC_TRY(dsc_check_real_count(check, "y", &item->y, "x", &item->x));
    DSC_TRY(dsc_check_f64(check, "bad", &item->bad, 2));
    DSC_TRY(dsc_check_apart(check, "y", &item->y, "x", &item->x));
    DSC_TRY(dsc_check_apart(check, "y", &item->y, "decay", decay));
    DSC_TRY(dsc_check_apart(check, "bad", &item->bad, "x", &item->x));
    DSC_TRY(dsc_check_apart(check, "bad", &item->bad, "y", &item->y));
    DSC_TRY(dsc_check_apart(check, "bad", &item->bad, "decay", decay));
    return DSC_OK;
}

static dsc_status absorb_items(dsc_queue *q, const dsc_tensor *decay, const dsc_absorb_item *items,
                               int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        dsc_tensor bad = items[i].bad, y = items[i].y, found = dsc_tensor_slice(&bad, 0, 1);
        DSC_TRY(dsc_op_fill(q, 0.0, &found));
        DSC_TRY(dsc_op_count_nonfinite(q, &items[i].x, &found));
        DSC_TRY(dsc_op_blend(q, decay, &items[i].x, &bad, &y));
    }
    return DSC_OK;
}

dsc_status dsc_op_absorb_batch(dsc_queue *q, const dsc_tensor *decay, const dsc_absorb_item *items,
                               int64_t count) {
    dsc_check check;
    int empty = 0;
    DSC_TRY(dsc_check_batch(&check, "absorb_batch", q, items, count));
    DSC_TRY(dsc_check_f64(&check, "decay", decay, 1));
    for (int64_t i = 0; i < count; i++) {
        dsc_status status = check_absorb_item(&check, i, decay, &items[i]);
        if (status != DSC_OK)
            return dsc_error_prefix(status, "item %lld", (long long)i);
        empty |= dsc_tensor_count(&items[i].x) == 0;
    }
    if (count == 0)
        return DSC_OK;
    const dsc_device_table *table = dsc_device_table_for(q->device, check.dtype);
    if (table->absorb_batch && !empty)
        DSC_TRY(table->absorb_batch(q, decay, items, count));
    else
        DSC_TRY(absorb_items(q, decay, items, count));
    return DSC_OK;
}
