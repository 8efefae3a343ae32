/* Reference: parts of feature maps, upsampling by 2. */
#include "device/formulas.h"
#include "device/ref/element.h"
#include "device/ref/ref.h"

/* ---- parts ---- */

dsc_status dsc_ref_cut(dsc_queue *q, const dsc_part_desc *desc, const dsc_tensor *whole, double beta,
                       dsc_tensor *part) {
    (void)q;
    for (int64_t n = 0; n < part->dim[0]; n++)
        for (int64_t h = 0; h < part->dim[1]; h++)
            for (int64_t w = 0; w < part->dim[2]; w++)
                for (int64_t c = 0; c < part->dim[3]; c++)
                    update(part, at4(part, n, h, w, c), beta,
                           get(whole, at4(whole, n, desc->top + h, desc->left + w, desc->first + c)));
    return DSC_OK;
}

dsc_status dsc_ref_paste(dsc_queue *q, const dsc_part_desc *desc, const dsc_tensor *part, double beta,
                         dsc_tensor *whole) {
    (void)q;
    for (int64_t n = 0; n < part->dim[0]; n++)
        for (int64_t h = 0; h < part->dim[1]; h++)
            for (int64_t w = 0; w < part->dim[2]; w++)
                for (int64_t c = 0; c < part->dim[3]; c++)
                    update(whole, at4(whole, n, desc->top + h, desc->left + w, desc->first + c), beta,
                           get(part, at4(part, n, h, w, c)));
    return DSC_OK;
}

/* ---- upsampling ---- */

/* The weight of input r in output i, in a line of `size` inputs. */
static double share(dsc_upsample_kind kind, int64_t i, int64_t r, int64_t size) {
    if (kind == DSC_UPSAMPLE_NEAREST)
        return i / 2 == r;
    return DSC_UPSAMPLE_NEAR * (i / 2 == r) + DSC_UPSAMPLE_FAR * (dsc_upsample_neighbour(i, size) == r);
}

static int64_t not_below(int64_t i, int64_t least) {
    return i < least ? least : i;
}

static int64_t not_above(int64_t i, int64_t most) {
    return i > most ? most : i;
}

static double upsampled(dsc_upsample_kind kind, const dsc_tensor *x, const int64_t at[4]) {
    int64_t h = x->dim[1], w = x->dim[2];
    double sum = 0;
    for (int64_t r = not_below(at[1] / 2 - 1, 0); r <= not_above(at[1] / 2 + 1, h - 1); r++)
        for (int64_t s = not_below(at[2] / 2 - 1, 0); s <= not_above(at[2] / 2 + 1, w - 1); s++) {
            double weight = share(kind, at[1], r, h) * share(kind, at[2], s, w);
            if (weight != 0)
                sum += weight * get(x, at4(x, at[0], r, s, at[3]));
        }
    return sum;
}

dsc_status dsc_ref_upsample_forward(dsc_queue *q, dsc_upsample_kind kind, const dsc_tensor *x,
                                    dsc_tensor *y) {
    (void)q;
    for (int64_t n = 0; n < y->dim[0]; n++)
        for (int64_t i = 0; i < y->dim[1]; i++)
            for (int64_t j = 0; j < y->dim[2]; j++)
                for (int64_t c = 0; c < y->dim[3]; c++)
                    set(y, at4(y, n, i, j, c), upsampled(kind, x, (const int64_t[]){n, i, j, c}));
    return DSC_OK;
}

/* The sum over all outputs to which the input `at` contributes. */
static double gathered(dsc_upsample_kind kind, const dsc_tensor *dy, const int64_t at[4]) {
    int64_t h = dy->dim[1], w = dy->dim[2];
    double sum = 0;
    for (int64_t i = not_below(2 * at[1] - 1, 0); i <= not_above(2 * at[1] + 2, h - 1); i++)
        for (int64_t j = not_below(2 * at[2] - 1, 0); j <= not_above(2 * at[2] + 2, w - 1); j++) {
            double weight = share(kind, i, at[1], h / 2) * share(kind, j, at[2], w / 2);
            if (weight != 0)
                sum += weight * get(dy, at4(dy, at[0], i, j, at[3]));
        }
    return sum;
}

dsc_status dsc_ref_upsample_backward(dsc_queue *q, dsc_upsample_kind kind, const dsc_tensor *dy, double beta,
                                     dsc_tensor *dx) {
    (void)q;
    for (int64_t n = 0; n < dx->dim[0]; n++)
        for (int64_t r = 0; r < dx->dim[1]; r++)
            for (int64_t s = 0; s < dx->dim[2]; s++)
                for (int64_t c = 0; c < dx->dim[3]; c++)
                    update(dx, at4(dx, n, r, s, c), beta, gathered(kind, dy, (const int64_t[]){n, r, s, c}));
    return DSC_OK;
}
