/* Reference: element-wise operations and reductions. */
#include "device/formulas.h"
#include "device/ref/element.h"
#include "device/ref/ref.h"

#include <math.h>
#include <string.h>

dsc_status dsc_ref_fill(dsc_queue *q, double value, dsc_tensor *t) {
    (void)q;
    for (int64_t i = 0, count = dsc_tensor_count(t); i < count; i++)
        set(t, i, value);
    return DSC_OK;
}

dsc_status dsc_ref_convert(dsc_queue *q, const dsc_tensor *src, dsc_tensor *dst) {
    (void)q;
    if (src->dtype == dst->dtype) { /* copies the bits: not every int64 fits into a double */
        memcpy(dst->data, src->data, dsc_tensor_bytes(src));
        return DSC_OK;
    }
    for (int64_t i = 0, count = dsc_tensor_count(dst); i < count; i++)
        set(dst, i, get(src, i));
    return DSC_OK;
}

dsc_status dsc_ref_axpby(dsc_queue *q, double alpha, const dsc_tensor *x, double beta, dsc_tensor *y) {
    (void)q;
    for (int64_t i = 0, count = dsc_tensor_count(y); i < count; i++)
        update(y, i, beta, alpha * get(x, i));
    return DSC_OK;
}

dsc_status dsc_ref_scale_by(dsc_queue *q, const dsc_tensor *s, dsc_tensor *t) {
    (void)q;
    for (int64_t i = 0, count = dsc_tensor_count(t); i < count; i++)
        set(t, i, get(t, i) * get(s, 0));
    return DSC_OK;
}

dsc_status dsc_ref_dot(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *y, double beta, dsc_tensor *out) {
    (void)q;
    double sum = 0;
    for (int64_t i = 0, count = dsc_tensor_count(x); i < count; i++)
        sum += get(x, i) * get(y, i);
    update(out, 0, beta, sum);
    return DSC_OK;
}

dsc_status dsc_ref_clip_factor(dsc_queue *q, const dsc_tensor *sumsq, double limit, dsc_tensor *out) {
    (void)q;
    set(out, 0, dsc_clip_factor(get(sumsq, 0), limit));
    return DSC_OK;
}

dsc_status dsc_ref_blend(dsc_queue *q, const dsc_tensor *decay, const dsc_tensor *x, dsc_tensor *bad,
                         dsc_tensor *y) {
    (void)q;
    double keep = get(decay, 0);
    if (get(bad, 0) > 0) {
        set(bad, 1, get(bad, 1) + 1);
        return DSC_OK;
    }
    for (int64_t i = 0, count = dsc_tensor_count(y); i < count; i++)
        set(y, i, keep * get(y, i) + (1 - keep) * get(x, i));
    return DSC_OK;
}

dsc_status dsc_ref_count_nonfinite(dsc_queue *q, const dsc_tensor *t, dsc_tensor *out) {
    (void)q;
    double bad = 0;
    for (int64_t i = 0, count = dsc_tensor_count(t); i < count; i++)
        bad += !isfinite(get(t, i));
    update(out, 0, 1, bad);
    return DSC_OK;
}

/* ---- counters, flags and the loss scale ---- */

dsc_status dsc_ref_increment(dsc_queue *q, dsc_tensor *t) {
    (void)q;
    int64_t *values = t->data;
    for (int64_t i = 0, count = dsc_tensor_count(t); i < count; i++)
        values[i]++;
    return DSC_OK;
}

dsc_status dsc_ref_guard(dsc_queue *q, const dsc_tensor *value, int firm, dsc_tensor *flag) {
    (void)q;
    if (!isfinite(get(value, 0)) && (firm || get(flag, 0) != 1))
        set(flag, 0, 2);
    return DSC_OK;
}

dsc_status dsc_ref_loss_scale(dsc_queue *q, const dsc_tensor *bad, dsc_tensor *scale, dsc_tensor *skip) {
    (void)q;
    dsc_loss_scale_move(scale->data, get(bad, 0));
    set(skip, 0, dsc_skip_move(get(skip, 0), get(bad, 0)));
    return DSC_OK;
}

/* ---- y = beta y + f(a, b) ---- */

dsc_status dsc_ref_map(dsc_queue *q, dsc_map map, const dsc_tensor *a, const dsc_tensor *b, double beta,
                       dsc_tensor *y) {
    static double (*const formulas[])(double a, double b) = {
#define FORMULA(NAME, name, op, a, b, y) dsc_map_##name,
        DSC_MAPS(FORMULA)
#undef FORMULA
    };
    (void)q;
    for (int64_t i = 0, count = dsc_tensor_count(y); i < count; i++)
        update(y, i, beta, formulas[map](get(a, i), b ? get(b, i) : 0));
    return DSC_OK;
}

/* ---- simple layers ---- */

dsc_status dsc_ref_bias_add(dsc_queue *q, const dsc_tensor *b, dsc_tensor *y) {
    (void)q;
    for (int64_t i = 0, count = dsc_tensor_count(y); i < count; i++)
        set(y, i, get(y, i) + get(b, i % b->dim[0]));
    return DSC_OK;
}

dsc_status dsc_ref_bias_grad(dsc_queue *q, const dsc_tensor *dy, double beta, dsc_tensor *db) {
    (void)q;
    for (int64_t c = 0; c < db->dim[0]; c++) {
        double sum = 0;
        for (int64_t i = c, count = dsc_tensor_count(dy); i < count; i += db->dim[0])
            sum += get(dy, i);
        update(db, c, beta, sum);
    }
    return DSC_OK;
}

dsc_status dsc_ref_dropout(dsc_queue *q, const dsc_dropout_desc *desc, const dsc_tensor *position,
                           const dsc_tensor *x, double beta, dsc_tensor *y) {
    (void)q;
    const int64_t *at = position->data; /* step, first sample */
    int64_t row = dsc_tensor_count(x) / x->dim[0];
    dsc_dropout_stream stream = dsc_dropout_start(desc, at[0]);
    for (int64_t i = 0, count = dsc_tensor_count(y); i < count; i++) {
        uint32_t words[4];
        int64_t element = at[1] * row + i;
        dsc_dropout_words(&stream, element / 4, words);
        double kept = dsc_dropout_keeps(&stream, words[element % 4]) ? get(x, i) / (1 - desc->rate) : 0;
        update(y, i, beta, kept);
    }
    return DSC_OK;
}

/* Computes one pixel of the output: row y and column x of image i. */
static void augment_pixel(const dsc_augment_desc *desc, const dsc_tensor *raw, const int32_t place[3],
                          int64_t i, int64_t y, int64_t x, dsc_tensor *out) {
    int64_t row = y + place[0], column = (place[2] == 1 ? out->dim[2] - 1 - x : x) + place[1];
    int inside = row >= 0 && row < raw->dim[1] && column >= 0 && column < raw->dim[2];
    for (int64_t c = 0; c < out->dim[3]; c++) {
        double value = (double)desc->outside[c];
        if (inside)
            value = dsc_pixel(get(raw, at4(raw, i, row, column, c)), (double)desc->scale[c],
                              (double)desc->shift[c]);
        set(out, at4(out, i, y, x, c), value);
    }
}

dsc_status dsc_ref_augment(dsc_queue *q, const dsc_augment_desc *desc, const dsc_tensor *raw,
                           const dsc_tensor *place, dsc_tensor *x) {
    (void)q;
    const int32_t *places = place->data;
    for (int64_t i = 0; i < x->dim[0]; i++)
        for (int64_t row = 0; row < x->dim[1]; row++)
            for (int64_t column = 0; column < x->dim[2]; column++)
                augment_pixel(desc, raw, places + 3 * i, i, row, column, x);
    return DSC_OK;
}

dsc_status dsc_ref_nhwc_batch(dsc_queue *q, const dsc_nhwc_item *items, int64_t count) {
    (void)q;
    for (int64_t item = 0; item < count; item++) {
        const dsc_tensor *x = &items[item].x;
        dsc_tensor y = items[item].y;
        for (int64_t n = 0; n < x->dim[0]; n++)
            for (int64_t c = 0; c < x->dim[1]; c++)
                for (int64_t h = 0; h < x->dim[2]; h++)
                    for (int64_t w = 0; w < x->dim[3]; w++)
                        set(&y, at4(&y, n, h, w, c), get(x, at4(x, n, c, h, w)));
    }
    return DSC_OK;
}
