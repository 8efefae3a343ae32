/* Bilinear resampling of RGB images, antialiased when they shrink. */
#ifndef DSC_DATA_RESAMPLE_H
#define DSC_DATA_RESAMPLE_H

#include "data/files.h"

/* One axis: the stretch [start, start + length) of `in` pixels becomes `total` pixels, of which `count` from
 * number `first` on are wanted. */
typedef struct dsc_resample_axis {
    int64_t in;
    double start, length;
    int64_t total, first, count;
} dsc_resample_axis;

/* out[y.count, x.count, 3] from image[y.in, x.in, 3], as floats in 0 to 255. */
dsc_status dsc_resample(const uint8_t *image, const dsc_resample_axis *y, const dsc_resample_axis *x,
                        dsc_bytes *scratch, float *out) DSC_MUST_CHECK;

#endif
