/* Random choices are drawn from a generator keyed by (seed, sample, epoch) alone, always in the same order:
 * crop first, then flip. */
#include "data/augment.h"

#include <math.h>
#include <stddef.h>

void dsc_normalise_init(dsc_normalise *normalise, int channels, const double *mean, const double *std) {
    for (int c = 0; c < channels; c++) {
        normalise->mean[c] = mean[c];
        normalise->std[c] = std[c];
        for (int v = 0; v < 256; v++)
            normalise->value[c][v] = (float)((v / 255.0 - mean[c]) / std[c]);
    }
}

dsc_rng dsc_augment_rng(uint64_t seed, dsc_sample_key key) {
    return dsc_rng_start(seed, DSC_RNG_AUGMENT, (uint32_t)key.epoch, (uint64_t)key.index);
}

dsc_crop dsc_crop_draw(dsc_rng *rng, int64_t pad) {
    dsc_crop crop;
    crop.top = (int64_t)dsc_rng_below(rng, (uint32_t)(2 * pad + 1)) - pad;
    crop.left = (int64_t)dsc_rng_below(rng, (uint32_t)(2 * pad + 1)) - pad;
    crop.flip = (int)(dsc_rng_u32(rng) >> 31);
    return crop;
}

void dsc_crop_apply(const uint8_t *image, int64_t h, int64_t w, int64_t c, dsc_crop crop,
                    const dsc_normalise *normalise, float *out) {
    for (int64_t y = 0; y < h; y++) {
        int64_t from_y = y + crop.top;
        for (int64_t x = 0; x < w; x++) {
            int64_t from_x = (crop.flip ? w - 1 - x : x) + crop.left;
            int inside = from_y >= 0 && from_y < h && from_x >= 0 && from_x < w;
            const uint8_t *pixel = inside ? image + (from_y * w + from_x) * c : NULL;
            for (int64_t k = 0; k < c; k++)
                *out++ = normalise->value[k][pixel ? pixel[k] : 0];
        }
    }
}

static dsc_box centred_box(int64_t h, int64_t w) {
    const double narrow = 3.0 / 4, wide = 4.0 / 3;
    dsc_box box = {0, 0, (double)w, (double)h};
    double ratio = box.w / box.h;
    if (ratio < narrow)
        box.h = fmax(round(box.w / narrow), 1);
    else if (ratio > wide)
        box.w = fmax(round(box.h * wide), 1);
    box.x = floor(((double)w - box.w) / 2);
    box.y = floor(((double)h - box.h) / 2);
    return box;
}

dsc_box dsc_box_draw(dsc_rng *rng, int64_t h, int64_t w) {
    for (int i = 0; i < 10; i++) {
        double area = (double)h * (double)w * (0.08 + 0.92 * (double)dsc_rng_uniform(rng));
        double span = log(4.0 / 3);
        double ratio = exp(span * (2 * (double)dsc_rng_uniform(rng) - 1));
        int64_t box_w = llround(sqrt(area * ratio)), box_h = llround(sqrt(area / ratio));
        if (box_w < 1 || box_w > w || box_h < 1 || box_h > h)
            continue;
        double y = dsc_rng_below(rng, (uint32_t)(h - box_h + 1));
        double x = dsc_rng_below(rng, (uint32_t)(w - box_w + 1));
        return (dsc_box){x, y, (double)box_w, (double)box_h};
    }
    return centred_box(h, w);
}
