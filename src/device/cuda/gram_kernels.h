/* Launches of gram.cu and gram_shift.cu: C = alpha P' P + beta C over patches P, lower triangle. */
#ifndef DSC_DEVICE_CUDA_GRAM_KERNELS_H
#define DSC_DEVICE_CUDA_GRAM_KERNELS_H

#include "descent/device.h"
#include "device/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* P[rows, n]: columns are (tap, channel) of one group, then a column of ones where n = width + 1. Rows of x
 * as they are: images of one pixel. */
typedef struct dsc_gram_patches {
    const void *x; /* [images, h, w, c] */
    dsc_dtype dtype;
    int h, w, oh, ow, kw, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w;
    int64_t images, c, cg, first; /* channels of a pixel, of a tap, and where the group's begin */
    int64_t rows, width, n;
} dsc_gram_patches;

/* Where sums go: row by row c[n, n], or the packed triangle; double where the patches are. */
typedef struct dsc_gram_target {
    void *c;
    double alpha, beta;
    int64_t n;
    int packed;
} dsc_gram_target;

/* The lower triangle in square tiles, the rows of P cut into splits of `chunk` rows: a block has a tile of a
 * split. partial: [splits][tiles][tile * tile] floats, not used with one split. */
typedef struct dsc_gram_plan {
    int tile;   /* 16 or 32: the only one; 64, 128 */
    int stages; /* of rows in shared memory: 3, or 2 */
    int64_t tiles, splits, chunk;
    float *partial;
} dsc_gram_plan;

/* Rows of P that a block of this tile takes at a time. */
int dsc_cuda_gram_stage_rows(int tile);
/* Shared memory of a block of this tile, with so many stages. */
size_t dsc_cuda_gram_shared(dsc_dtype dtype, int tile, int stages);

/* F32, BF16, F16. vector: 1 when four channels at a time may be read. */
cudaError_t dsc_cuda_launch_gram(const dsc_cuda_launch *at, const dsc_gram_patches *p,
                                 const dsc_gram_plan *plan, const dsc_gram_target *to, int vector);
/* F64. */
cudaError_t dsc_cuda_launch_gram_double(const dsc_cuda_launch *at, const dsc_gram_patches *p,
                                        const dsc_gram_target *to);

/* 3x3 convolutions with stride 1 and padding 1 of at least 2 x 2 pixels, channels of a group in tiles of
 * DSC_GRAM_CHANNELS (see gram_shift.cu). A block has a pair of tiles and a part of the lines of all images,
 * or of their first and last lines (the border). */
enum {
    DSC_GRAM_CHANNELS = 16,
    DSC_GRAM_LINES = 32,  /* that a block has at a time, */
    DSC_GRAM_IMAGES = 16, /* or the first and last lines of so many images */
    DSC_GRAM_BLOCKS = 2,  /* that a multiprocessor has at a time */
    DSC_GRAM_MAIN = 19,   /* sums over all lines */
    DSC_GRAM_BORDER = 10, /* over first and last ones */
    DSC_GRAM_TAPS = 9
};
typedef struct dsc_gram_shift_plan {
    int columns, chunks;    /* of a line: how many at a time, and how often */
    int parts, border;      /* blocks of a pair, for all lines and for the border */
    int64_t groups, frames; /* DSC_GRAM_LINES, DSC_GRAM_IMAGES at a time: how often in all; a stage has
                             * `columns` columns of one */
    size_t shared;          /* bytes */
    float *partial;         /* [parts][MAIN][pairs][16 * 16], [border][BORDER][pairs][16 * 16] */
    double *ones;           /* [one_parts][9][cg]: sums of x, with a column of ones only */
    int one_parts;
} dsc_gram_shift_plan;

/* Bytes of shared memory for so many columns at a time. */
size_t dsc_cuda_gram_shift_shared(dsc_dtype dtype, int columns, int pairs);
/* F32, BF16, F16; four channels of x are read at once. */
cudaError_t dsc_cuda_launch_gram_shift(const dsc_cuda_launch *at, const dsc_gram_patches *p,
                                       const dsc_gram_shift_plan *plan, const dsc_gram_target *to);

/* Rows [first, first + rows) of P, of x's type. */
cudaError_t dsc_cuda_launch_patches(const dsc_cuda_launch *at, const dsc_gram_patches *p, int64_t first,
                                    int64_t rows, void *out);

#ifdef __cplusplus
}
#endif

#endif
