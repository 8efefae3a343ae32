/* Reference: the refresh of an eigenbasis; the formulas are in device/formulas.h. */
#include "device/formulas.h"
#include "device/ref/element.h"
#include "device/ref/ref.h"

#include <math.h>

/* ---- rotations ---- */

static double diagonal(const dsc_tensor *b, int64_t i) {
    return get(b, at2(b, i, i));
}

/* The column of the turned basis that column c becomes: the number of columns before it. */
static int64_t place_of(const dsc_tensor *b, int64_t c) {
    int64_t before = 0;
    for (int64_t i = 0; i < b->dim[0]; i++)
        before += dsc_turn_before(diagonal(b, i), i, diagonal(b, c), c);
    return before;
}

static void rotate(const dsc_rotation_item *item) {
    const dsc_tensor *b = &item->b, *q = &item->q, *y = &item->y;
    dsc_tensor x = item->x, z = item->z;
    int64_t n = q->dim[0], k = q->dim[1];
    double largest = diagonal(b, 0);
    for (int64_t i = 1; i < k; i++)
        largest = fmax(largest, diagonal(b, i));
    for (int64_t c = 0; c < k; c++) {
        int64_t j = place_of(b, c);
        double pull = k < n ? dsc_turn_pull(diagonal(b, c), largest) : 0;
        for (int64_t i = 0; i < k; i++) {
            double element = (get(b, at2(b, i, c)) + get(b, at2(b, c, i))) / 2;
            set(&x, at2(&x, i, j),
                dsc_turn_share(element, diagonal(b, i), diagonal(b, c), item->delta, pull, i == c));
        }
        for (int64_t r = 0; r < n; r++)
            set(&z, at2(&z, r, j), get(q, at2(q, r, c)) + (k < n ? get(y, at2(y, r, c)) * pull : 0));
    }
}

dsc_status dsc_ref_rotation_batch(dsc_queue *q, const dsc_rotation_item *items, int64_t count) {
    (void)q;
    for (int64_t item = 0; item < count; item++)
        rotate(&items[item]);
    return DSC_OK;
}

/* ---- orthonormal columns ---- */

/* Factorises H = L L' in the lower triangle, where L is R'; returns 0 if there is no such L. */
static int factorise(dsc_tensor *h) {
    int64_t k = h->dim[0];
    for (int64_t j = 0; j < k; j++)
        for (int64_t i = j; i < k; i++) {
            double sum = get(h, at2(h, i, j));
            for (int64_t l = 0; l < j; l++)
                sum -= get(h, at2(h, i, l)) * get(h, at2(h, j, l));
            if (i == j && !(sum > 0 && isfinite(sum)))
                return 0;
            sum = i == j ? sqrt(sum) : sum / get(h, at2(h, j, j));
            if (!isfinite(sum))
                return 0;
            set(h, at2(h, i, j), sum);
        }
    return 1;
}

/* Z := Z L'^-1, row by row. */
static void divide_rows(const dsc_tensor *l, dsc_tensor *z) {
    for (int64_t r = 0; r < z->dim[0]; r++)
        for (int64_t j = 0; j < z->dim[1]; j++) {
            double sum = get(z, at2(z, r, j));
            for (int64_t i = 0; i < j; i++)
                sum -= get(z, at2(z, r, i)) * get(l, at2(l, j, i));
            set(z, at2(z, r, j), sum / get(l, at2(l, j, j)));
        }
}

dsc_status dsc_ref_orthonormal_batch(dsc_queue *q, dsc_orthonormal_item *items, int64_t count) {
    (void)q;
    for (int64_t item = 0; item < count; item++) {
        items[item].failed = !factorise(&items[item].h);
        if (!items[item].failed)
            divide_rows(&items[item].h, &items[item].z);
    }
    return DSC_OK;
}

/* ---- Rayleigh quotients ---- */

static void measure(const dsc_rayleigh_item *item) {
    const dsc_tensor *q = &item->q, *y = &item->y;
    dsc_tensor v = item->v, result = item->result;
    int64_t n = q->dim[0], k = q->dim[1];
    double trace = 0, sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++)
        trace += diagonal(&item->a, i);
    for (int64_t j = 0; j < k; j++) {
        double qy = 0, qq = 0, rest = 0;
        for (int64_t i = 0; i < n; i++) {
            qy += get(q, at2(q, i, j)) * get(y, at2(y, i, j));
            qq += get(q, at2(q, i, j)) * get(q, at2(q, i, j));
        }
        double value = qq == 0 ? 0 : qy / qq;
        for (int64_t i = 0; i < n; i++) {
            double left = get(y, at2(y, i, j)) - value * get(q, at2(q, i, j));
            rest += left * left;
        }
        set(&v, j, value);
        sum += value;
        squares += dsc_residual_square(rest, value, item->delta);
    }
    set(&result, 0, trace);
    set(&result, 1, sum);
    set(&result, 2, sqrt(squares / (double)k));
}

dsc_status dsc_ref_rayleigh_batch(dsc_queue *q, const dsc_rayleigh_item *items, int64_t count) {
    (void)q;
    for (int64_t item = 0; item < count; item++)
        measure(&items[item]);
    return DSC_OK;
}
