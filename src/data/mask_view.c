#include "data/mask_view.h"

#include "base/error.h"

#include <math.h>

dsc_mask_view dsc_mask_view_middle(int64_t image_h, int64_t image_w, int64_t h, int64_t w) {
    return (dsc_mask_view){.top = (image_h - h) / 2, .left = (image_w - w) / 2, .h = h, .w = w};
}

static int64_t tiles_along(int64_t length, int64_t side) {
    return (length + side - 1) / side;
}

int64_t dsc_mask_tiles(int64_t image_h, int64_t image_w, int64_t h, int64_t w) {
    return tiles_along(image_h, h) * tiles_along(image_w, w);
}

dsc_mask_view dsc_mask_view_tile(int64_t image_h, int64_t image_w, int64_t h, int64_t w, int64_t index,
                                 int64_t *done_h, int64_t *done_w) {
    const int64_t across = tiles_along(image_w, w), top = index / across * h, left = index % across * w;
    dsc_mask_view view = {.h = h, .w = w};
    view.top = top < image_h - h ? top : image_h - h;
    view.left = left < image_w - w ? left : image_w - w;
    *done_h = top - view.top;
    *done_w = left - view.left;
    return view;
}

/* One draw per statement, always in this order. */
dsc_mask_view dsc_mask_view_draw(dsc_rng *rng, int64_t image_h, int64_t image_w, int64_t h, int64_t w,
                                 double elastic) {
    dsc_mask_view v = {.h = h, .w = w, .elastic = elastic > 0};
    v.top = dsc_rng_below(rng, (uint32_t)(image_h - h + 1));
    v.left = dsc_rng_below(rng, (uint32_t)(image_w - w + 1));
    v.flip = (int)(dsc_rng_u32(rng) >> 31);
    v.turns = (int)dsc_rng_below(rng, 4);
    if (h != w)
        v.turns &= 2;
    for (int i = 0; v.elastic && i < DSC_MASK_GRID; i++)
        for (int j = 0; j < DSC_MASK_GRID; j++)
            for (int k = 0; k < 2; k++)
                v.shift[i][j][k] = elastic * dsc_rng_normal(rng);
    return v;
}

dsc_mask_view dsc_mask_view_widen(dsc_mask_view view, int64_t margin) {
    view.top -= margin;
    view.left -= margin;
    view.h += 2 * margin;
    view.w += 2 * margin;
    view.margin = margin;
    return view;
}

/* Where pixel (i, j) of the sample lies in the crop. */
static inline void place_of(const dsc_mask_view *v, int64_t i, int64_t j, int64_t *row, int64_t *column) {
    const int64_t last_row = v->h - 1, last_column = v->w - 1;
    *row = v->turns == 0 ? i : v->turns == 1 ? j : v->turns == 2 ? last_row - i : last_row - j;
    *column = v->turns == 0 ? j : v->turns == 1 ? last_column - i : v->turns == 2 ? last_column - j : i;
    if (v->flip)
        *column = last_column - *column;
}

/* ---- deformation ---- */

/* Cubic convolution (Keys, a = -1/2) at distance t from a node. */
static double cubic(double t) {
    t = fabs(t);
    if (t < 1)
        return (1.5 * t - 2.5) * t * t + 1;
    return t < 2 ? ((-0.5 * t + 2.5) * t - 4) * t + 2 : 0;
}

/* weight[n][3] of the nodes at each of n pixels; the first and last node lie on the first and last pixel, and beyond
 * these the grid repeats them. */
static void weigh(int64_t n, double *weight) {
    for (int64_t p = 0; p < n; p++, weight += DSC_MASK_GRID) {
        const double s = n > 1 ? (DSC_MASK_GRID - 1) * (double)p / (double)(n - 1) : 0;
        for (int k = 0; k < DSC_MASK_GRID; k++)
            weight[k] = 0;
        for (int node = -1; node <= DSC_MASK_GRID; node++) {
            const int k = node < 0 ? 0 : node >= DSC_MASK_GRID ? DSC_MASK_GRID - 1 : node;
            weight[k] += cubic(s - node);
        }
    }
}

/* Whether pixel (i, j) of the sample has a label: the margin is the same on all sides, however the crop is turned. */
static inline int has_label(const dsc_mask_view *v, int64_t i, int64_t j) {
    return i >= v->margin && i < v->h - v->margin && j >= v->margin && j < v->w - v->margin;
}

int64_t dsc_mask_mirror(int64_t i, int64_t n) {
    const int64_t period = 2 * (n - 1);
    if (i >= 0 && i < n)
        return i;
    if (n == 1)
        return 0;
    i %= period;
    i = i < 0 ? i + period : i;
    return i < n ? i : period - i;
}

/* The pixel at (y, x), bilinear, as normalised floats. */
static void interpolate(const dsc_mask_item *item, double y, double x, int64_t c,
                        const dsc_normalise *normalise, float *out) {
    const int64_t top = (int64_t)floor(y), left = (int64_t)floor(x);
    const double b = y - (double)top, r = x - (double)left;
    const int64_t rows[2] = {dsc_mask_mirror(top, item->h), dsc_mask_mirror(top + 1, item->h)};
    const int64_t columns[2] = {dsc_mask_mirror(left, item->w), dsc_mask_mirror(left + 1, item->w)};
    const uint8_t *p[4];
    for (int k = 0; k < 4; k++)
        p[k] = item->image + (rows[k / 2] * item->w + columns[k % 2]) * item->c;
    for (int64_t k = 0; k < c; k++) {
        const int64_t channel = item->c == 1 ? 0 : k;
        const double value = (1 - b) * ((1 - r) * p[0][channel] + r * p[1][channel]) +
                             b * ((1 - r) * p[2][channel] + r * p[3][channel]);
        out[k] = (float)((value / 255 - normalise->mean[k]) / normalise->std[k]);
    }
}

static dsc_status apply_deformed(const dsc_mask_view *v, const dsc_mask_item *item, int64_t c,
                                 const dsc_normalise *normalise, const int32_t class_of[256], dsc_bytes *work,
                                 float *x, int32_t *label) {
    DSC_TRY(dsc_bytes_reserve(work, (v->h + v->w) * DSC_MASK_GRID * (int64_t)sizeof(double)));
    double *down = (double *)(void *)work->data, *across = down + v->h * DSC_MASK_GRID;
    weigh(v->h, down);
    weigh(v->w, across);
    for (int64_t i = 0; i < v->h; i++)
        for (int64_t j = 0; j < v->w; j++) {
            int64_t row, column;
            double shift[2] = {0, 0};
            place_of(v, i, j, &row, &column);
            for (int a = 0; a < DSC_MASK_GRID; a++)
                for (int b = 0; b < DSC_MASK_GRID; b++) {
                    const double weight = down[row * DSC_MASK_GRID + a] * across[column * DSC_MASK_GRID + b];
                    shift[0] += weight * v->shift[a][b][0];
                    shift[1] += weight * v->shift[a][b][1];
                }
            const double y = (double)(v->top + row) + shift[0], z = (double)(v->left + column) + shift[1];
            interpolate(item, y, z, c, normalise, x);
            x += c;
            if (has_label(v, i, j))
                *label++ = class_of[item->label[dsc_mask_mirror((int64_t)floor(y + 0.5), item->h) * item->w +
                                                dsc_mask_mirror((int64_t)floor(z + 0.5), item->w)]];
        }
    return DSC_OK;
}

/* ---- whole pixels ---- */

dsc_status dsc_mask_view_apply(const dsc_mask_view *v, const dsc_mask_item *item, int64_t c,
                               const dsc_normalise *normalise, const int32_t class_of[256], dsc_bytes *work,
                               float *x, int32_t *label) {
    if (v->elastic)
        return apply_deformed(v, item, c, normalise, class_of, work, x, label);
    for (int64_t i = 0; i < v->h; i++)
        for (int64_t j = 0; j < v->w; j++) {
            int64_t row, column;
            place_of(v, i, j, &row, &column);
            const int64_t at =
                dsc_mask_mirror(v->top + row, item->h) * item->w + dsc_mask_mirror(v->left + column, item->w);
            for (int64_t k = 0; k < c; k++)
                *x++ = normalise->value[k][item->image[at * item->c + (item->c == 1 ? 0 : k)]];
            if (has_label(v, i, j))
                *label++ = class_of[item->label[at]];
        }
    return DSC_OK;
}
