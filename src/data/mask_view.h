/* What is cut out of an image and its mask, and how it is turned and deformed; this is the same for both.
 *
 * A pixel (i, j) of the sample lies at (u, v) of the crop, by flip and quarter turns; it is taken from the point
 * (top + u + dy(u, v), left + v + dx(u, v)) of the image. The displacements dy and dx are bicubic between the nodes of
 * a 3 x 3 grid over the crop (Ronneberger et al., 2015). Beyond its borders the image is mirrored. */
#ifndef DSC_DATA_MASK_VIEW_H
#define DSC_DATA_MASK_VIEW_H

#include "data/augment.h"
#include "data/files.h"
#include "data/mask_list.h"

enum { DSC_MASK_GRID = 3 };

typedef struct dsc_mask_view {
    int64_t top, left, h, w; /* the crop, which may reach beyond the image */
    int64_t margin;          /* pixels at each side of the crop that have no label */
    int flip;                /* 1: mirrored, left to right */
    int turns;               /* quarter turns, counter-clockwise; 0 or 2 where the crop is no square */
    int elastic;             /* 1: deformed */
    double shift[DSC_MASK_GRID][DSC_MASK_GRID][2]; /* dy and dx of the nodes */
} dsc_mask_view;

/* In all of these, h x w is the size of the labelled part of a view, which lies in the image of image_h x image_w. */

/* The middle of an image, neither turned nor deformed. */
dsc_mask_view dsc_mask_view_middle(int64_t image_h, int64_t image_w, int64_t h, int64_t w);
/* An image is cut into tiles of h x w, row by row; the last tile of a row or column overlaps the one before it.
 * dsc_mask_tiles returns their number, dsc_mask_view_tile tile `index`. *done_h and *done_w are the numbers of the
 * tile's first rows and columns that earlier tiles have already. */
int64_t dsc_mask_tiles(int64_t image_h, int64_t image_w, int64_t h, int64_t w);
dsc_mask_view dsc_mask_view_tile(int64_t image_h, int64_t image_w, int64_t h, int64_t w, int64_t index,
                                 int64_t *done_h, int64_t *done_w);
/* A random view; `elastic` is the standard deviation of the displacements in pixels, 0: none. */
dsc_mask_view dsc_mask_view_draw(dsc_rng *rng, int64_t image_h, int64_t image_w, int64_t h, int64_t w,
                                 double elastic);

/* Adds a margin to a view without one. */
dsc_mask_view dsc_mask_view_widen(dsc_mask_view view, int64_t margin);
/* The row or column of n that pixel i is taken from: mirrored beyond the borders, which are not repeated. */
int64_t dsc_mask_mirror(int64_t i, int64_t n);

/* x[h, w, c] and label[h - 2 margin, w - 2 margin] of the view: the image with bilinear interpolation, normalised;
 * the class of the nearest value of the mask. A grey image is spread over c channels. `work` is scratch memory. */
dsc_status dsc_mask_view_apply(const dsc_mask_view *view, const dsc_mask_item *item, int64_t c,
                               const dsc_normalise *normalise, const int32_t class_of[256], dsc_bytes *work,
                               float *x, int32_t *label) DSC_MUST_CHECK;

#endif
