/* What a loader does to training samples beyond the augmentation of their data set: RandAugment, random erasing,
 * mixup and CutMix. All choices are pure functions of (seed, epoch, sample), so they depend neither on ranks nor on
 * threads, and a sample is mixed with one of the whole epoch, not of its batch. */
#ifndef DSC_DATA_MIX_H
#define DSC_DATA_MIX_H

#include "base/rng.h"
#include "data/dataset.h"

/* Refuses values that make no sense, RandAugment of samples that are not made of bytes, and all of these changes for
 * samples with several labels, which would have to change alike. */
dsc_status dsc_mix_check(const dsc_loader_options *o, const dsc_dataset *dataset) DSC_MUST_CHECK;
/* is_on: 1 when samples are changed at all. mixes: 1 when they are mixed. */
int dsc_mix_is_on(const dsc_loader_options *o);
int dsc_mix_mixes(const dsc_loader_options *o);

/* Applies RandAugment, then erasing, to sample x[h,w,c] of the data set; `image` is scratch memory. */
dsc_status dsc_mix_vary(const dsc_loader_options *o, const dsc_dataset *dataset, int64_t epoch, int64_t index,
                        dsc_bytes *image, float *x) DSC_MUST_CHECK;

/* How a sample is mixed. The share of the other sample is 1/2 at most, so that a sample keeps its label as the one
 * that counts: with lambda from Beta(alpha, alpha) it is min(lambda, 1 - lambda), which gives the same mixtures. */
typedef struct dsc_mix_choice {
    int64_t other; /* place of the other sample in the epoch */
    double share;  /* of the other; 0: not mixed */
    int cut;       /* 1: CutMix, the box below is the other's; 0: mixup */
    int64_t top, left, h, w;
} dsc_mix_choice;

/* `places`: the number of samples that the epoch uses. */
dsc_mix_choice dsc_mix_draw(const dsc_loader_options *o, const dsc_dataset_info *info, int64_t places,
                            int64_t epoch, int64_t index);
/* x = (1 - share) x + share other, or x with the other's box. */
void dsc_mix_apply(const dsc_mix_choice *choice, const dsc_dataset_info *info, const float *other, float *x);

/* ---- randaugment.c ---- */
/* Applies `ops` operations, each drawn from fourteen, with magnitude 0 to 30, to image[h,w,c]; `work` is scratch memory
 * of the same size. */
void dsc_randaugment(dsc_rng *rng, int ops, double magnitude, int64_t h, int64_t w, int64_t c, uint8_t *image,
                     uint8_t *work);

/* The operations, for tests. `strength` has the sign and the unit of the operation. */
typedef enum dsc_vary_op {
    DSC_VARY_IDENTITY,
    DSC_VARY_SHEAR_X,     /* columns by a row */
    DSC_VARY_SHEAR_Y,     /* rows by a column */
    DSC_VARY_TRANSLATE_X, /* part of the width */
    DSC_VARY_TRANSLATE_Y, /* part of the height */
    DSC_VARY_ROTATE,      /* degrees */
    DSC_VARY_BRIGHTNESS, /* this and the next three: added to 1, the factor of the distance from black, ... */
    DSC_VARY_COLOUR,     /* ... from the grey image, ... */
    DSC_VARY_CONTRAST,   /* ... from the mean grey, ... */
    DSC_VARY_SHARPNESS,  /* ... from the smoothed image */
    DSC_VARY_POSTERIZE,  /* low bits that are cleared */
    DSC_VARY_SOLARIZE,   /* values of 256 - strength and more are inverted */
    DSC_VARY_AUTOCONTRAST,
    DSC_VARY_EQUALIZE,
    DSC_VARY_COUNT
} dsc_vary_op;
void dsc_vary_apply(dsc_vary_op op, double strength, int64_t h, int64_t w, int64_t c, uint8_t *image,
                    uint8_t *work);

#endif
