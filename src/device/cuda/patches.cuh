/* Where the elements of the matrix P of patches come from (dsc_gram_patches): a row of P is an output position, a
 * column is a tap and a channel. */
#ifndef DSC_DEVICE_CUDA_PATCHES_CUH
#define DSC_DEVICE_CUDA_PATCHES_CUH

#include "device/cuda/gram_kernels.h"

#include <limits.h>

namespace {

/* A column of P, or the first of several: the shift of its tap, and its offset from the pixel of tap (0, 0) of a patch
 * without padding. */
struct column {
    int kind; /* 0: past the last column, 1: from x, 2: the column of ones */
    int y, x;
    int64_t offset;
};

/* An output position. */
struct place {
    int64_t image;
    int y, x;
};

__device__ column find_column(const dsc_gram_patches &p, int64_t at) {
    column k = {at < p.width ? 1 : at < p.n ? 2 : 0, INT_MIN / 2, 0, 0}; /* outside of any image */
    if (k.kind == 1) {
        int channels = (int)p.cg, tap = (int)at / channels;
        k.y = tap / p.kw * p.dil_h - p.pad_h;
        k.x = tap % p.kw * p.dil_w - p.pad_w;
        k.offset = ((int64_t)k.y * p.w + k.x) * p.c + p.first + (int)at % channels;
    }
    return k;
}

/* The same if the rows of P are those of x. */
__device__ column find_straight_column(const dsc_gram_patches &p, int64_t at) {
    return {at < p.width ? 1 : at < p.n ? 2 : 0, 0, 0, p.first + at};
}

__device__ place find_place(const dsc_gram_patches &p, int64_t row) {
    place at;
    at.image = row / ((int64_t)p.oh * p.ow);
    int rest = (int)(row - at.image * p.oh * p.ow);
    at.y = rest / p.ow;
    at.x = rest % p.ow;
    return at;
}

/* Moves `at` forward by `step`, a number of rows written as a position. */
__device__ void advance(const dsc_gram_patches &p, const place &step, place *at) {
    at->x += step.x;
    at->y += step.y;
    at->image += step.image;
    if (at->x >= p.ow) {
        at->x -= p.ow;
        at->y++;
    }
    if (at->y >= p.oh) {
        at->y -= p.oh;
        at->image++;
    }
}

/* The pixel of tap (0, 0), without padding. */
struct pixel {
    int y, x;
    int64_t offset;
};

__device__ pixel find_pixel(const dsc_gram_patches &p, const place &at) {
    pixel v = {at.y * p.stride_h, at.x * p.stride_w, 0};
    v.offset = ((at.image * p.h + v.y) * p.w + v.x) * p.c;
    return v;
}

__device__ bool has_source(const dsc_gram_patches &p, const column &k, const pixel &v) {
    return (unsigned)(v.y + k.y) < (unsigned)p.h && (unsigned)(v.x + k.x) < (unsigned)p.w;
}

} // namespace

#endif
