/* Reference: the pieces of a second-order step; the formulas are in device/formulas.h. */
#include "device/formulas.h"
#include "device/ref/element.h"
#include "device/ref/ref.h"

#include <math.h>

dsc_status dsc_ref_divide_batch(dsc_queue *q, const dsc_tensor *damping, const dsc_divide_item *items,
                                int64_t count) {
    (void)q;
    for (int64_t item = 0; item < count; item++) {
        const dsc_tensor *rows = &items[item].rows, *columns = &items[item].columns;
        dsc_tensor x = items[item].x;
        for (int64_t i = 0; i < x.dim[0]; i++)
            for (int64_t j = 0; j < x.dim[1]; j++)
                set(&x, at2(&x, i, j),
                    dsc_divide(get(&x, at2(&x, i, j)), get(rows, i), get(columns, j), get(damping, 0)));
    }
    return DSC_OK;
}

dsc_status dsc_ref_weigh_batch(dsc_queue *q, const dsc_tensor *damping, const dsc_weigh_item *items,
                               int64_t count) {
    (void)q;
    for (int64_t item = 0; item < count; item++) {
        const dsc_weigh_item *it = &items[item];
        dsc_tensor x = it->x;
        int rows = it->rows.data != NULL, columns = it->columns.data != NULL;
        int other_rows = it->other_row.data != NULL, other_columns = it->other_column.data != NULL;
        double row = other_rows ? get(&it->other_row, 0) : 0;
        double column = other_columns ? get(&it->other_column, 0) : 0;
        for (int64_t i = 0; i < x.dim[0]; i++)
            for (int64_t j = 0; j < x.dim[1]; j++)
                set(&x, at2(&x, i, j),
                    get(&it->from, at2(&x, i, j)) * dsc_weight(rows ? get(&it->rows, i) : row,
                                                               columns ? get(&it->columns, j) : column,
                                                               get(damping, 0), rows && other_rows, row,
                                                               columns && other_columns, column));
    }
    return DSC_OK;
}

dsc_status dsc_ref_moment_divide_batch(dsc_queue *q, const dsc_tensor *decay, const dsc_tensor *damping,
                                       const dsc_moment_item *items, int64_t count) {
    (void)q;
    for (int64_t item = 0; item < count; item++) {
        dsc_tensor s = items[item].s, x = items[item].x;
        double keep = get(decay, 0);
        double take = items[item].scale.data ? dsc_moment_take(keep, get(&items[item].scale, 0)) : 0;
        for (int64_t i = 0; i < dsc_tensor_count(&x); i++) {
            if (take > 0)
                set(&s, i, dsc_moment(get(&x, i), get(&s, i), keep, take));
            set(&x, i, dsc_divide(get(&x, i), get(&s, i), 1, get(damping, 0)));
        }
    }
    return DSC_OK;
}

/* The place in w of column j of d's row i. */
static int64_t join_place(const dsc_join_item *item, int64_t i, int64_t j) {
    if (item->channels == 0)
        return i * (item->d.dim[1] - (item->b.data ? 1 : 0)) + j;
    return i * item->row_stride + j / item->channels * item->position_stride +
           j % item->channels * item->channel_stride;
}

dsc_status dsc_ref_join_batch(dsc_queue *q, const dsc_join_item *items, int64_t count) {
    (void)q;
    for (int64_t item = 0; item < count; item++) {
        const dsc_tensor *w = &items[item].w, *b = &items[item].b;
        dsc_tensor d = items[item].d;
        int64_t n = d.dim[1] - (b->data ? 1 : 0);
        for (int64_t i = 0; i < d.dim[0]; i++) {
            for (int64_t j = 0; j < n; j++)
                set(&d, at2(&d, i, j), get(w, join_place(&items[item], i, j)));
            if (b->data)
                set(&d, at2(&d, i, n), get(b, i));
        }
    }
    return DSC_OK;
}

dsc_status dsc_ref_split_batch(dsc_queue *q, const dsc_tensor *scale, const dsc_join_item *items,
                               int64_t count) {
    (void)q;
    double factor = scale ? get(scale, 0) : 1;
    for (int64_t item = 0; isfinite(factor) && item < count; item++) {
        dsc_tensor w = items[item].w, b = items[item].b;
        const dsc_tensor *d = &items[item].d;
        int64_t n = d->dim[1] - (b.data ? 1 : 0);
        for (int64_t i = 0; i < d->dim[0]; i++) {
            for (int64_t j = 0; j < n; j++)
                set(&w, join_place(&items[item], i, j), factor * get(d, at2(d, i, j)));
            if (b.data)
                set(&b, i, factor * get(d, at2(d, i, n)));
        }
    }
    return DSC_OK;
}

dsc_status dsc_ref_outer_inverse(dsc_queue *q, const dsc_tensor *damping, const dsc_tensor *rows,
                                 const dsc_tensor *columns, dsc_tensor *out) {
    (void)q;
    for (int64_t i = 0; i < out->dim[0]; i++)
        for (int64_t j = 0; j < out->dim[1]; j++)
            set(out, at2(out, i, j), dsc_outer_inverse(get(rows, i), get(columns, j), get(damping, 0)));
    return DSC_OK;
}

dsc_status dsc_ref_gather(dsc_queue *q, const dsc_tensor *src, const dsc_tensor *rows,
                          const dsc_tensor *columns, dsc_tensor *dst) {
    (void)q;
    const int32_t *row = rows->data, *column = columns->data;
    for (int64_t i = 0; i < dst->dim[0]; i++)
        for (int64_t j = 0; j < dst->dim[1]; j++)
            set(dst, at2(dst, i, j), get(src, at2(src, row[i], column[j])));
    return DSC_OK;
}

dsc_status dsc_ref_scatter(dsc_queue *q, const dsc_tensor *src, const dsc_tensor *rows,
                           const dsc_tensor *columns, dsc_tensor *dst) {
    (void)q;
    const int32_t *row = rows->data, *column = columns->data;
    for (int64_t i = 0; i < src->dim[0]; i++)
        for (int64_t j = 0; j < src->dim[1]; j++)
            set(dst, at2(dst, row[i], column[j]), get(src, at2(src, i, j)));
    return DSC_OK;
}

dsc_status dsc_ref_kl_clip(dsc_queue *q, const dsc_tensor *sum, const dsc_tensor *limits, dsc_tensor *out) {
    (void)q;
    for (int64_t i = 0; i < dsc_tensor_count(out); i++)
        set(out, i, dsc_kl_clip(get(sum, i), get(limits, 0), get(limits, 1)));
    return DSC_OK;
}

dsc_status dsc_ref_damping_split(dsc_queue *q, const dsc_tensor *damping, const dsc_tensor *traces,
                                 const dsc_tensor *rows, dsc_tensor *out) {
    (void)q;
    for (int64_t i = 0; i < out->dim[0]; i++) {
        int64_t j = i ^ 1;
        set(out, i,
            dsc_split_damping(get(damping, 0), get(traces, i) / get(rows, i), get(traces, j) / get(rows, j)));
    }
    return DSC_OK;
}
