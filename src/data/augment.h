/* Turns stored pixels into the input of a network: normalisation, random crops, flips. */
#ifndef DSC_DATA_AUGMENT_H
#define DSC_DATA_AUGMENT_H

#include "base/rng.h"

#include <stdint.h>

enum { DSC_PIXEL_CHANNELS = 4 }; /* at most, as in dsc_op_augment */

/* (value / 255 - mean) / std of a byte, by channel. */
typedef struct dsc_normalise {
    float value[DSC_PIXEL_CHANNELS][256];
    double mean[DSC_PIXEL_CHANNELS], std[DSC_PIXEL_CHANNELS];
} dsc_normalise;

void dsc_normalise_init(dsc_normalise *normalise, int channels, const double *mean, const double *std);

/* Which sample it is, and whether to augment it: all that its random choices depend on, besides the seed. */
typedef struct dsc_sample_key {
    int64_t index, epoch;
    int augment;
} dsc_sample_key;

dsc_rng dsc_augment_rng(uint64_t seed, dsc_sample_key key);

/* A crop of an image's own size out of the image with a black border: its first row and column, counted from
 * the image's corner, so in [-pad, pad]; flipped afterwards. */
typedef struct dsc_crop {
    int64_t top, left;
    int flip;
} dsc_crop;

dsc_crop dsc_crop_draw(dsc_rng *rng, int64_t pad);
/* out[h,w,c] = the normalised crop of image[h,w,c]. */
void dsc_crop_apply(const uint8_t *image, int64_t h, int64_t w, int64_t c, dsc_crop crop,
                    const dsc_normalise *normalise, float *out);

/* A rectangle of an image, in pixels. */
typedef struct dsc_box {
    double x, y, w, h;
} dsc_box;

/* The box of a random resized crop: 8 to 100 % of the area, an aspect ratio of 3/4 to 4/3; after ten boxes
 * that do not fit, the largest centred one whose ratio is in that range. */
dsc_box dsc_box_draw(dsc_rng *rng, int64_t h, int64_t w);

#endif
