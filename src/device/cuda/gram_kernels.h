/* Launches of gram.cu and gram_shift.cu: C = alpha P' P + beta C over patches P, lower triangle. */
#ifndef DSC_DEVICE_CUDA_GRAM_KERNELS_H
#define DSC_DEVICE_CUDA_GRAM_KERNELS_H

#include "descent/device.h"
#include "device/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The patches P[rows, n]: their columns are the (tap, channel) pairs of one group, then a column of ones if
 * n = width + 1. A P that consists of the rows of x themselves is described as images of one pixel. */
typedef struct dsc_gram_patches {
    const void *x; /* [images, h, w, c] */
    dsc_dtype dtype;
    int h, w, oh, ow, kw, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w;
    int64_t images, c, cg, first; /* channels: of a pixel, of the group; the group's first one */
    int64_t rows, width, n;
} dsc_gram_patches;

/* The result: a row-major c[n, n], or the packed triangle; double if the patches are, else float. */
typedef struct dsc_gram_target {
    void *c;
    double alpha, beta;
    int64_t n;
    int packed;
} dsc_gram_target;

/* The lower triangle is cut into square tiles, the rows of P into splits of `chunk` rows: a block computes one tile of
 * one split. partial: [splits][tiles][tile * tile] floats, not used with one split. */
typedef struct dsc_gram_plan {
    int tile;   /* side of a tile: 16 or 32 (one tile), 64, 128 */
    int stages; /* stages of rows in shared memory: 3 or 2 */
    int64_t tiles, splits, chunk;
    float *partial;
} dsc_gram_plan;

/* The rows of P that a block with tiles of this size loads at a time. */
int dsc_cuda_gram_stage_rows(int tile);
/* The shared memory of a block with tiles of this size and `stages` stages. */
size_t dsc_cuda_gram_shared(dsc_dtype dtype, int tile, int stages);

/* For F32, BF16 and F16. vector: 1 if four channels may be read at a time. */
cudaError_t dsc_cuda_launch_gram(const dsc_cuda_launch *at, const dsc_gram_patches *p,
                                 const dsc_gram_plan *plan, const dsc_gram_target *to, int vector);
/* For F64. */
cudaError_t dsc_cuda_launch_gram_double(const dsc_cuda_launch *at, const dsc_gram_patches *p,
                                        const dsc_gram_target *to);

/* 3x3 convolutions with stride 1 and padding 1 of at least 2 x 2 pixels, with the channels of a group in tiles of
 * DSC_GRAM_CHANNELS (see gram_shift.cu). A block does a pair of tiles for a part of the lines of all images, or for a
 * part of their first and last lines (the border). */
enum {
    DSC_GRAM_CHANNELS = 16,
    DSC_GRAM_LINES = 32,  /* lines that a block does at a time, */
    DSC_GRAM_IMAGES = 16, /* or images whose first and last lines it does at a time */
    DSC_GRAM_BLOCKS = 2,  /* blocks that run on a multiprocessor at a time */
    DSC_GRAM_MAIN = 19,   /* sums over all lines */
    DSC_GRAM_BORDER = 10, /* sums over first and last lines */
    DSC_GRAM_TAPS = 9
};
typedef struct dsc_gram_shift_plan {
    int columns, chunks;    /* a line's columns are done in `chunks` steps of `columns` */
    int parts, border;      /* blocks per pair, for all lines and for the border */
    int64_t groups, frames; /* numbers of groups of DSC_GRAM_LINES lines, and of DSC_GRAM_IMAGES images; a
                             * stage has `columns` columns of one group */
    size_t shared;          /* bytes */
    float *partial;         /* [parts][MAIN][pairs][16 * 16], [border][BORDER][pairs][16 * 16] */
    double *ones;           /* [one_parts][9][cg]: sums of x, used only with a column of ones */
    int one_parts;
} dsc_gram_shift_plan;

/* The bytes of shared memory needed for `columns` columns at a time. */
size_t dsc_cuda_gram_shift_shared(dsc_dtype dtype, int columns, int pairs);
/* For F32, BF16 and F16; reads four channels of x at a time. */
cudaError_t dsc_cuda_launch_gram_shift(const dsc_cuda_launch *at, const dsc_gram_patches *p,
                                       const dsc_gram_shift_plan *plan, const dsc_gram_target *to);

/* Writes rows [first, first + rows) of P to `out`, in x's type. */
cudaError_t dsc_cuda_launch_patches(const dsc_cuda_launch *at, const dsc_gram_patches *p, int64_t first,
                                    int64_t rows, void *out);

#ifdef __cplusplus
}
#endif

#endif
